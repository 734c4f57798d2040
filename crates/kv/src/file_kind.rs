//! The kind of a file, derived from the name that RocksDB gives it.
//!
//! The name also decides a file's claim to the last zones and, for a blob file, its number and
//! column family.

/// The kind of a file, judged by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// `NNNNNN.blob`: a blob file, which holds values.
    Blob,
    /// `NNNNNN.sst`: a sorted table.
    Table,
    /// `NNNNNN.log`: a write-ahead log.
    Wal,
    /// `MANIFEST-NNNNNN`, `CURRENT` and their like: the database's own state.
    Manifest,
    /// Anything else.
    #[default]
    Other,
}

impl FileKind {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [FileKind; 5] =
        [FileKind::Blob, FileKind::Table, FileKind::Wal, FileKind::Manifest, FileKind::Other];

    /// Derives the kind from a file's path.
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

    /// The kind's name, one word.
    pub fn name(self) -> &'static str {
        ["blob", "table", "wal", "manifest", "other"][self as usize]
    }
}

/// A column family of a database. Its blob files are collected separately from those of
/// other families.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Family {
    /// The directory of the database.
    pub directory: String,
    /// The column family's name; empty if it was never stated.
    pub name: String,
}

/// Claims to the last free zones, weakest first. Each claim may use its own reserve and the
/// reserves of the claims before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// Logs, and all other files.
    #[default]
    Others,
    /// Output of a compaction. The files that it replaces are removed afterwards.
    Compaction,
    /// Output of a flush, which replaces a log.
    Flush,
    /// The database's own state: without it RocksDB cannot record removals.
    Catalog,
}

impl Claim {
    /// The number of claims.
    pub(crate) const COUNT: usize = 4;

    /// Derives the claim from a file's name.
    fn of(name: &str, kind: FileKind) -> Claim {
        let small = name.starts_with("OPTIONS-") || name == "IDENTITY" || name.ends_with(".dbtmp");
        if kind == FileKind::Manifest || small { Claim::Catalog } else { Claim::Others }
    }
}

/// The properties of a file that follow from its name and its family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) kind: FileKind,
    /// The claim that follows from the file's name.
    pub(crate) claim: Claim,
    /// The number in a blob file's name; each new blob file has a higher one.
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
