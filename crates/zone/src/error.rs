//! Errors of all Furrow engines: a kind on which a caller can act, and a message that names the
//! device, the zone, the offset, what was expected and what was found.

use crate::Status;

/// The kind of an error, by which a caller decides what to do. Each kind maps to an
/// errno ([`ErrorKind::errno`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such file, directory, attribute value or object.
    NotFound,
    /// The name exists already.
    Exists,
    /// A path component that must be a directory is something else.
    NotDirectory,
    /// The object is a directory, where none is allowed.
    IsDirectory,
    /// The directory still has entries.
    NotEmpty,
    /// An argument is invalid: fix the call.
    Invalid,
    /// A name is longer than 255 bytes, or a link target longer than 4095.
    NameTooLong,
    /// No space or no inode left.
    NoSpace,
    /// Too many files are open.
    TooManyOpen,
    /// The object has 65,535 links.
    TooManyLinks,
    /// The offset is past the largest file offset.
    TooLarge,
    /// The file system is mounted read-only, or became read-only after an error.
    ReadOnly,
    /// The device failed.
    Io,
    /// Bytes on the medium are not what was written there.
    Corrupt,
    /// The object is in use elsewhere.
    Busy,
    /// Not supported.
    Unsupported,
    /// The attribute does not exist.
    NoAttribute,
    /// The device holds data of another kind or of a newer version: it is the wrong device.
    WrongFormat,
    /// Permission denied.
    Denied,
    /// The engine's own accounts contradict each other: a defect of the engine.
    Internal,
}

impl ErrorKind {
    /// The Linux errno of the kind.
    pub fn errno(self) -> i32 {
        match self {
            ErrorKind::NotFound => 2,
            ErrorKind::Io => 5,
            ErrorKind::Denied => 13,
            ErrorKind::Busy => 16,
            ErrorKind::Exists => 17,
            ErrorKind::NotDirectory => 20,
            ErrorKind::IsDirectory => 21,
            ErrorKind::Invalid => 22,
            ErrorKind::TooManyOpen => 23,
            ErrorKind::TooLarge => 27,
            ErrorKind::NoSpace => 28,
            ErrorKind::ReadOnly => 30,
            ErrorKind::TooManyLinks => 31,
            ErrorKind::NameTooLong => 36,
            ErrorKind::NotEmpty => 39,
            ErrorKind::NoAttribute => 61,
            ErrorKind::Unsupported => 95,
            ErrorKind::Corrupt => 117,
            ErrorKind::WrongFormat => 124,
            ErrorKind::Internal => 131,
        }
    }
}

/// An error: a kind and a message.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    gone: bool,
}

/// Result of operations that fail with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error of this kind with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), gone: false }
    }

    /// The kind of the error, on which a caller can act.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Creates the error for `what`, an operation that a device refused. The kind is `Io`; it is
    /// `Corrupt` if the drive reports that the blocks were never written, because then a retry
    /// would not help.
    pub fn device(name: &str, what: impl std::fmt::Display, status: Status) -> Error {
        let kind = match status {
            Status::Unwritten => ErrorKind::Corrupt,
            _ => ErrorKind::Io,
        };
        let gone = status == Status::InternalError;
        let advice = match status {
            Status::CapacityExceeded => {
                ": the storage that holds this drive is full: free space there, then mount (or \
                 assemble) again"
            }
            _ => "",
        };
        Error { gone, ..Error::new(kind, format!("{name}: {what}: {status}{advice}")) }
    }

    /// Whether the device answered like one that has disappeared; a retry may succeed once the
    /// device is back.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Puts the place of the error in front of the message.
    #[must_use]
    pub fn at(mut self, place: impl std::fmt::Display) -> Error {
        self.message = format!("{place}: {}", self.message);
        self
    }
}
