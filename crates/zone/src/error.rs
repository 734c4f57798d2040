//! Errors as every Furrow engine reports them: a coarse kind a caller can act on, and a message
//! that names the device, the zone, the offset, what was expected and what was found.

use crate::Status;

/// What a caller can do about an error. Maps to an errno ([`ErrorKind::errno`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such file, directory, attribute value or object.
    NotFound,
    /// The name exists already.
    Exists,
    /// A component that must be a directory is none.
    NotDirectory,
    /// The object is a directory where none may be.
    IsDirectory,
    /// The directory still has entries.
    NotEmpty,
    /// An argument makes no sense: fix the call.
    Invalid,
    /// A name is longer than 255 bytes, a link target longer than 4095.
    NameTooLong,
    /// No space or no inode left.
    NoSpace,
    /// As many files are open as can be.
    TooManyOpen,
    /// The object has 65,535 links.
    TooManyLinks,
    /// Past the largest file offset.
    TooLarge,
    /// Mounted read-only, or made so by an error.
    ReadOnly,
    /// The device failed.
    Io,
    /// Bytes on the medium are not what was written there.
    Corrupt,
    /// In use by someone else.
    Busy,
    /// Not offered.
    Unsupported,
    /// The attribute does not exist.
    NoAttribute,
    /// Not this kind of thing, or of a newer version: a wrong device.
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

/// An error: a kind and a sentence.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    gone: bool,
}

/// Result of anything that can fail this way.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), gone: false }
    }

    /// What a caller can act on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A device's refusal of `what`. `Io`, but `Corrupt` if the drive is sure that the blocks read
    /// were never written: to try again would not help.
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

    /// Whether the device answered as one that is not there: what was asked may be had from it when
    /// it is.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// The same error, its message prefixed by where it happened.
    #[must_use]
    pub fn at(mut self, place: impl std::fmt::Display) -> Error {
        self.message = format!("{place}: {}", self.message);
        self
    }
}
