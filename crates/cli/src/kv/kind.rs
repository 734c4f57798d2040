//! Kinds of files, as RocksDB names them.

use furrow_kv::{Node, Snapshot};
use std::collections::BTreeMap;

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Large values.
    Blob,
    /// Sorted tables.
    Sst,
    /// The write-ahead log.
    Wal,
    /// The database's own state: the list of its files.
    Manifest,
    /// Everything else.
    Other,
}

/// Number of valid blocks of each kind in a zone.
pub type Kinds = BTreeMap<Kind, u64>;

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] = [Kind::Blob, Kind::Sst, Kind::Wal, Kind::Manifest, Kind::Other];

    /// The kind of the file at `path`.
    pub fn of(path: &str) -> Kind {
        let name = path.rsplit('/').next().unwrap_or_default();
        match name.rsplit_once('.') {
            _ if name.starts_with("MANIFEST") => Kind::Manifest,
            Some((_, "blob")) => Kind::Blob,
            Some((_, "sst")) => Kind::Sst,
            Some((_, "log")) => Kind::Wal,
            _ => Kind::Other,
        }
    }

    /// The kind's name in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Blob => "blob",
            Kind::Sst => "sst",
            Kind::Wal => "wal",
            Kind::Manifest => "manifest",
            Kind::Other => "other",
        }
    }

    /// The pattern of the names of this kind's files.
    pub fn pattern(self) -> &'static str {
        match self {
            Kind::Blob => "*.blob",
            Kind::Sst => "*.sst",
            Kind::Wal => "*.log",
            Kind::Manifest => "MANIFEST*",
            Kind::Other => "all else",
        }
    }
}

/// The kind of each file of a store, by file number. The first of a file's names decides its kind.
pub fn files(store: &Snapshot) -> BTreeMap<furrow_kv::FileId, Kind> {
    let mut kinds = BTreeMap::new();
    for (path, node) in store.names() {
        if let Node::File(id) = node {
            kinds.entry(id).or_insert_with(|| Kind::of(path));
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_names() {
        for (path, kind) in [
            ("db/000012.sst", Kind::Sst),
            ("db/000013.blob", Kind::Blob),
            ("db/000014.log", Kind::Wal),
            ("db/MANIFEST-000004", Kind::Manifest),
            ("db/LOG", Kind::Other),
            ("db/LOG.old.1700000000000000", Kind::Other),
            ("db.sst/CURRENT", Kind::Other),
            ("", Kind::Other),
        ] {
            assert_eq!(Kind::of(path), kind, "{path}");
        }
    }
}
