//! What kind a file is, by its name as RocksDB gives it.
//!
//! From the name follow a file's claim to the last zones and, of a blob file, its number and column
//! family.

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
}
