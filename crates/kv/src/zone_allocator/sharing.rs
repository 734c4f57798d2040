//! Allocation policies: which files share zones.
//!
//! The policies are those that the Same-Victim GC paper compares (§II-C, §IV-A, §IV-B), and
//! `Generations`.

use crate::extent::Lifetime;
use crate::file_kind::FileKind;
use furrow_zone::{Error, ErrorKind, words};
use std::str::FromStr;

/// Which files share zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Files of one lifetime share a zone, even if they are written at the same time.
    Shared,
    /// The paper's description of LIZA (§II-C): files of one lifetime share a zone, but tables and
    /// blobs do not. A writer holds its file's zone, and a concurrent writer takes another.
    LizaPaper,
    /// The rule of the released ZenFS: each writer gets an empty zone as long as permits last. Then
    /// it gets the zone whose files outlive the new file by the least; if there is none, the zone
    /// with the least space is finished and an empty one opened.
    LizaZenfs,
    /// BAZA (§IV-A): blob files share zones in the order of their creation, whatever their
    /// lifetime. A writer holds its zone, so a concurrent writer takes another one. The next file
    /// goes to the zone that was opened first among those that no file holds (§IV-B, Fig. 5).
    /// Otherwise like `LizaPaper`.
    #[default]
    Baza,
    /// Like `Baza`, but blocks moved by cleaning go to separate zones, sorted by how often they
    /// were moved. Cleaning takes the zone that pays most by cost and benefit, not the one with
    /// the most garbage.
    Generations,
}

impl Policy {
    /// All policies with their names.
    pub const NAMES: [(&'static str, Policy); 5] = [
        ("shared", Policy::Shared),
        ("liza-paper", Policy::LizaPaper),
        ("liza-zenfs", Policy::LizaZenfs),
        ("baza", Policy::Baza),
        ("generations", Policy::Generations),
    ];

    /// Returns the use of the zone that takes a file of this kind and lifetime.
    pub(crate) fn usage(self, kind: FileKind, lifetime: Lifetime) -> Use {
        match (self, kind) {
            (Policy::Baza | Policy::Generations, FileKind::Blob) => Use::Blobs(Lifetime::NotSet),
            (Policy::LizaPaper, FileKind::Blob) => Use::Blobs(lifetime),
            _ => Use::Files(lifetime),
        }
    }

    /// Whether a zone has one writer at a time.
    pub(crate) fn holds(self) -> bool {
        self != Policy::Shared
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Policy, Error> {
        let found = Policy::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, policy)| *policy).ok_or_else(|| {
            let names: Vec<&str> = Policy::NAMES.iter().map(|(name, _)| *name).collect();
            let hint = words::hint(text, names.iter().copied());
            let message = format!("{text}: no policy{hint}: there are {}", names.join(", "));
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

/// The kind of content that a zone is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Files of a lifetime.
    Files(Lifetime),
    /// Blob files of a lifetime.
    Blobs(Lifetime),
    /// Blocks moved by cleaning, with the number of moves if the policy distinguishes it.
    Moved(u8),
}

impl Use {
    pub(crate) fn lifetime(self) -> Option<Lifetime> {
        match self {
            Use::Files(lifetime) | Use::Blobs(lifetime) => Some(lifetime),
            Use::Moved(_) => None,
        }
    }

    pub(crate) fn is_moved(self) -> bool {
        matches!(self, Use::Moved(_))
    }

    /// The cost of putting a file of this use into a zone of another use: lower is better.
    pub(crate) fn far(self, other: Use) -> i32 {
        if let (Use::Moved(a), Use::Moved(b)) = (self, other) {
            return i32::from(a.abs_diff(b));
        }
        let (Some(a), Some(b)) = (self.lifetime(), other.lifetime()) else { return 19 };
        let apart = std::mem::discriminant(&self) != std::mem::discriminant(&other);
        (a as i32 - b as i32).abs() + if apart { 10 } else { 0 }
    }

    /// Rates a zone for a file as ZenFS does: 100 if the zone's files die earlier, 50 if at the
    /// same time, otherwise the difference of the lifetimes. For a file without a lifetime: 0 if
    /// the zone has the same hint, 100 if the zone has another hint.
    pub(crate) fn zenfs_diff(self, file: Use) -> i32 {
        let (Some(zone), Some(file)) = (self.lifetime(), file.lifetime()) else { return 100 };
        match file {
            Lifetime::NotSet | Lifetime::None if zone == file => 0,
            Lifetime::NotSet | Lifetime::None => 100,
            _ if zone > file => zone as i32 - file as i32,
            _ if zone == file => 50,
            _ => 100,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zenfs_prefers_zones_that_live_longer_by_little() {
        use Lifetime::{Extreme, Long, Medium, NotSet, Short};
        let diff = |zone, file| Use::Files(zone).zenfs_diff(Use::Files(file));
        assert_eq!(diff(Extreme, Medium), 2);
        assert_eq!(diff(Long, Medium), 1);
        assert_eq!(diff(Medium, Medium), 50);
        assert_eq!(diff(Short, Medium), 100);
        assert_eq!((diff(NotSet, NotSet), diff(Long, NotSet)), (0, 100));
    }
}
