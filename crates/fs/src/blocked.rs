//! Why an operation was not applied: it failed, or it is blocked until a block is loaded,
//! until there is space, or until fewer pages are dirty. The operation has changed nothing;
//! see [`crate::core`].

use crate::format::Pointer;
use crate::tree::cache::Key;
use furrow_zone::{Error, ErrorKind};
use smallvec::SmallVec;

/// A block to be read into the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub(crate) key: Key,
    pub(crate) pointer: Pointer,
}

/// The resource that an operation lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Blocks of the drive that can be written before any zone is reset.
    Space,
    /// User blocks: as many are in use as users may have.
    Blocks,
    /// Free node ids.
    Nodes,
}

impl Lack {
    pub(crate) fn error(self) -> Error {
        let message = match self {
            Lack::Space | Lack::Blocks => "no space left on the drive",
            Lack::Nodes => "no inode left",
        };
        Error::new(ErrorKind::NoSpace, message)
    }
}

/// The condition that a blocked operation waits for before it is retried.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// The operation needs these blocks in the cache.
    Load(SmallVec<[Fetch; 4]>),
    /// The operation needs space on the drive, or node ids.
    Space(Lack),
    /// The operation waits until fewer pages are dirty.
    Throttle,
}

/// The reason why an operation was not applied.
#[derive(Debug)]
pub(crate) enum NotApplied {
    /// The operation failed, and retrying would not help.
    Failed(Error),
    Blocked(Blocked),
}

impl From<Error> for NotApplied {
    fn from(error: Error) -> NotApplied {
        NotApplied::Failed(error)
    }
}

impl From<Blocked> for NotApplied {
    fn from(blocked: Blocked) -> NotApplied {
        NotApplied::Blocked(blocked)
    }
}

/// Converts `why` into an error, for an operation that is not retried.
pub(crate) fn error_of(why: NotApplied) -> Error {
    match why {
        NotApplied::Failed(error) => error,
        NotApplied::Blocked(Blocked::Space(lack)) => lack.error(),
        NotApplied::Blocked(Blocked::Load(_) | Blocked::Throttle) => {
            Error::new(ErrorKind::Io, "not prepared")
        }
    }
}
