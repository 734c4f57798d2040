//! Where files go: what kind a file is, by its name, and what shares a zone with what.
//!
//! Names are RocksDB's. The policies are those that the Same-Victim GC paper compares (§II-C,
//! §IV-A, §IV-B), and one of our own.

use crate::file::Lifetime;
use furrow_zone::{Error, ErrorKind};
use std::str::FromStr;

/// What a file is, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// `NNNNNN.blob`: values.
    Blob,
    /// `NNNNNN.sst`: a sorted table.
    Table,
    /// `NNNNNN.log`: a write-ahead log.
    Wal,
    /// `MANIFEST-NNNNNN`, `CURRENT`: what a database is made of.
    Manifest,
    /// Something else.
    #[default]
    Other,
}

impl FileKind {
    /// All of them, in the order of their discriminants.
    pub const ALL: [FileKind; 5] =
        [FileKind::Blob, FileKind::Table, FileKind::Wal, FileKind::Manifest, FileKind::Other];

    /// Of the file with this path.
    pub fn of(path: &str) -> FileKind {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.') {
            Some((_, "blob")) => FileKind::Blob,
            Some((_, "sst")) => FileKind::Table,
            Some((_, "log")) => FileKind::Wal,
            _ if name == "CURRENT" || name.starts_with("MANIFEST-") => FileKind::Manifest,
            _ => FileKind::Other,
        }
    }

    /// One word.
    pub fn name(self) -> &'static str {
        ["blob", "table", "wal", "manifest", "other"][self as usize]
    }
}

/// A column family of a database: blob files of one are collected apart from those of others.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Family {
    /// The directory of the database.
    pub directory: String,
    /// The column family's name; empty if nobody said.
    pub name: String,
}

/// Who may have the last zones, least first: each has what is kept for it, and for those before
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// Logs, files of users.
    #[default]
    Others,
    /// Output of a compaction: what it takes the place of is removed after it.
    Compaction,
    /// Output of a flush: it takes the place of a log.
    Flush,
    /// What a database is made of: without it nothing that is removed can be written down.
    Catalog,
}

impl Claim {
    /// How many there are.
    pub(crate) const COUNT: usize = 4;

    /// Of the file with this name.
    fn of(name: &str, kind: FileKind) -> Claim {
        let small = name.starts_with("OPTIONS-") || name == "IDENTITY" || name.ends_with(".dbtmp");
        if kind == FileKind::Manifest || small { Claim::Catalog } else { Claim::Others }
    }
}

/// What is known of a file besides its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) kind: FileKind,
    /// By its name.
    pub(crate) claim: Claim,
    /// Of a blob file: its number, which grows with each that is made.
    pub(crate) number: Option<u64>,
    pub(crate) family: Family,
}

impl Role {
    pub(crate) fn of(path: &str) -> Role {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let kind = FileKind::of(path);
        let digits = name.split('.').next().unwrap_or_default();
        let number = digits.parse().ok().filter(|_| kind == FileKind::Blob);
        let family = Family { directory: directory.to_owned(), name: String::new() };
        Role { kind, claim: Claim::of(name, kind), number, family }
    }
}

/// Which files share zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Files of one lifetime share a zone, also those that are written at the same time.
    #[default]
    Shared,
    /// The paper's description of LIZA (§II-C): files of one lifetime share a zone, tables and
    /// blobs apart. Who writes a file holds its zone: a concurrent writer takes another.
    LizaPaper,
    /// What the released ZenFS does: an empty zone for each writer as long as permits last; after
    /// that the zone whose files live longer, but as little longer as can be; or the zone with the
    /// least room is ended for an empty one.
    LizaZenfs,
    /// BAZA (§IV-A): blob files in the order in which they were made. Who writes one holds its
    /// zone, a concurrent one takes another, the next file goes back to the earlier zone (§IV-B,
    /// Fig. 5). All others as `LizaPaper`.
    Baza,
    /// As `Baza`, and what cleaning moves lies in zones of its own by how often it was moved.
    /// Cleaning takes the zone that pays most, by cost and benefit, instead of the one with the
    /// most garbage.
    Generations,
}

impl Policy {
    /// All of them, and their names.
    pub const NAMES: [(&'static str, Policy); 5] = [
        ("shared", Policy::Shared),
        ("liza-paper", Policy::LizaPaper),
        ("liza-zenfs", Policy::LizaZenfs),
        ("baza", Policy::Baza),
        ("generations", Policy::Generations),
    ];

    /// What a zone is open for that takes a file of this kind and lifetime.
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
            let message = format!("{text}: no policy: there are {}", names.join(", "));
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

/// What a zone is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Files of a lifetime.
    Files(Lifetime),
    /// Blob files of a lifetime.
    Blobs(Lifetime),
    /// What cleaning moves, by how often it was moved, as far as the policy tells that apart.
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

    /// How much one likes to put a file of this use into a zone of another: less is better.
    pub(crate) fn far(self, other: Use) -> i32 {
        if let (Use::Moved(a), Use::Moved(b)) = (self, other) {
            return i32::from(a.abs_diff(b));
        }
        let (Some(a), Some(b)) = (self.lifetime(), other.lifetime()) else { return 19 };
        let apart = std::mem::discriminant(&self) != std::mem::discriminant(&other);
        (a as i32 - b as i32).abs() + if apart { 10 } else { 0 }
    }

    /// ZenFS's measure of a zone for a file: 100 for a zone that lives shorter, 50 for the same,
    /// else by how much longer.
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
    fn files_are_known_by_their_names() {
        let kind = |path| FileKind::of(path);
        assert_eq!(kind("db/000012.blob"), FileKind::Blob);
        assert_eq!(kind("000012.sst"), FileKind::Table);
        assert_eq!(kind("a.b/000012.log"), FileKind::Wal);
        assert_eq!(kind("db/MANIFEST-000004"), FileKind::Manifest);
        assert_eq!(kind("db/CURRENT"), FileKind::Manifest);
        assert_eq!(kind("db/LOG"), FileKind::Other);
        assert_eq!(kind("blob"), FileKind::Other);
        let role = Role::of("a/db/000012.blob");
        assert_eq!((role.number, role.family.directory.as_str()), (Some(12), "a/db"));
        assert_eq!(Role::of("a/db/x.blob").number, None);
        for name in ["MANIFEST-000004", "CURRENT", "OPTIONS-000007", "IDENTITY", "000008.dbtmp"] {
            assert_eq!(Role::of(&format!("db/{name}")).claim, Claim::Catalog, "{name}");
        }
        for name in ["000012.blob", "000012.sst", "000012.log", "LOG", "backup"] {
            assert_eq!(Role::of(&format!("db/{name}")).claim, Claim::Others, "{name}");
        }
        assert_eq!(FileKind::ALL.map(|kind| kind as usize), [0, 1, 2, 3, 4]);
    }

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
