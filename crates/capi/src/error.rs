//! Errors in the form that callers in C get.

use furrow_zone::{Error, ErrorKind};
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Kinds of errors. A number is never reused for another error.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum furrow_kind {
    /// No error.
    FURROW_OK = 0,
    /// There is no such file or directory.
    FURROW_NOT_FOUND = 1,
    /// The name exists already.
    FURROW_EXISTS = 2,
    /// A path component that must be a directory is not a directory.
    FURROW_NOT_DIRECTORY = 3,
    /// A path that must not be a directory is a directory.
    FURROW_IS_DIRECTORY = 4,
    /// The directory has entries.
    FURROW_NOT_EMPTY = 5,
    /// An argument is invalid.
    FURROW_INVALID = 6,
    /// There is no space, and cleaning can free none.
    FURROW_NO_SPACE = 7,
    /// The drive failed; nothing more is written.
    FURROW_IO = 8,
    /// Bytes on the drive differ from those that were written.
    FURROW_CORRUPT = 9,
    /// In use by another program or caller.
    FURROW_BUSY = 10,
    /// Not supported.
    FURROW_UNSUPPORTED = 11,
    /// The drive holds no store, or one of a newer version.
    FURROW_WRONG_FORMAT = 12,
    /// The process was forked; the store is the parent's.
    FURROW_FORKED = 13,
    /// Nothing may be written.
    FURROW_READ_ONLY = 14,
    /// A defect of this library; the store has stopped.
    FURROW_DEFECT = 15,
}

/// Bytes of a message, including the zero at its end.
pub const FURROW_MESSAGE_BYTES: usize = 1020;

/// The error of a function that failed. The caller provides it; a function that succeeds does not
/// change it.
#[repr(C)]
pub struct furrow_error {
    /// A `furrow_kind`.
    pub kind: i32,
    /// The error, as a sentence.
    pub message: [c_char; FURROW_MESSAGE_BYTES],
}

/// The error of a function, as kind and message.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: furrow_kind,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(kind: furrow_kind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(furrow_kind::FURROW_INVALID, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        use ErrorKind as K;
        use furrow_kind as F;
        let kind = match error.kind() {
            K::NotFound | K::NoAttribute => F::FURROW_NOT_FOUND,
            K::Exists => F::FURROW_EXISTS,
            K::NotDirectory => F::FURROW_NOT_DIRECTORY,
            K::IsDirectory => F::FURROW_IS_DIRECTORY,
            K::NotEmpty => F::FURROW_NOT_EMPTY,
            K::Invalid | K::NameTooLong | K::TooLarge | K::TooManyLinks => F::FURROW_INVALID,
            K::NoSpace => F::FURROW_NO_SPACE,
            K::Io | K::Internal => F::FURROW_IO,
            K::Corrupt => F::FURROW_CORRUPT,
            K::Busy | K::TooManyOpen => F::FURROW_BUSY,
            K::Unsupported => F::FURROW_UNSUPPORTED,
            K::WrongFormat => F::FURROW_WRONG_FORMAT,
            K::ReadOnly | K::Denied => F::FURROW_READ_ONLY,
        };
        Failure { kind, message: error.to_string() }
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Runs the body of a function: a panic does not reach the caller, and an error is stored
/// in `error`.
///
/// # Safety
/// `error` is null or may be written.
pub(crate) unsafe fn answer(error: *mut furrow_error, body: impl FnOnce() -> Outcome) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::new(furrow_kind::FURROW_DEFECT, format!("a defect of Furrow: {text}")))
    });
    let Err(failure) = outcome else { return furrow_kind::FURROW_OK as i32 };
    // SAFETY: as the caller promises.
    if let Some(error) = unsafe { error.as_mut() } {
        error.kind = failure.kind as i32;
        let mut end = failure.message.len().min(FURROW_MESSAGE_BYTES - 1);
        while !failure.message.is_char_boundary(end) {
            end -= 1;
        }
        let bytes = failure.message.as_bytes()[..end].iter().map(|byte| *byte as c_char);
        error.message.iter_mut().zip(bytes.chain([0])).for_each(|(to, from)| *to = from);
    }
    failure.kind as i32
}
