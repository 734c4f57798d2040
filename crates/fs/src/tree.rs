//! What users see of a file system: files, directories, names and attributes, in the cache.

mod acl;
mod atime;
pub mod cache;
pub(crate) mod directory_index;
pub mod dirent;
pub(crate) mod file;
mod file_pages;
pub(crate) mod holes;
pub(crate) mod lifetime;
pub(crate) mod namespace;
pub(crate) mod node;
mod open_files;
mod ranges;
pub(crate) mod readdir;
pub(crate) mod rename_cycle;
pub mod shape;
pub(crate) mod xattr;

use crate::types::{Ino, Time};
use cache::Cache;
use directory_index::DirectoryIndexes;
use furrow_rt::{Page, Semaphore};
use std::collections::{BTreeMap, BTreeSet};

/// What is in memory of files and directories.
pub(crate) struct Tree {
    pub(crate) cache: Cache,
    pub(crate) open: BTreeMap<Ino, u32>,
    pub(crate) orphans: BTreeSet<Ino>,
    /// Orphans that never had a name, and may get one.
    pub(crate) unnamed: BTreeSet<Ino>,
    /// Where names are in large directories.
    pub(crate) directories: DirectoryIndexes,
    /// Times of access that are only here so far (`lazy_time`).
    pub(crate) accessed: BTreeMap<Ino, Time>,
    pub(crate) inodes: u64,
    pub(crate) generation: u32,
    /// The page of a hole.
    pub(crate) zero: Page,
    /// What a replay has removed and not freed yet.
    pub(crate) removed: Vec<Ino>,
    /// Who moves a directory far down the tree: one at a time, and nobody else moves any.
    pub(crate) cycle_check: Semaphore,
    /// Directories moved to another one.
    pub(crate) directory_moves: u64,
}

impl Tree {
    /// A tree of which nothing is in the cache, of at most `pages` pages. A checkpoint tells of
    /// `inodes`, the next `generation` and `orphans`.
    pub(crate) fn new(
        pages: usize,
        (inodes, generation): (u64, u32),
        orphans: BTreeSet<Ino>,
    ) -> Tree {
        Tree {
            cache: Cache::new(pages.max(256)),
            open: BTreeMap::new(),
            orphans,
            unnamed: BTreeSet::new(),
            directories: DirectoryIndexes::new(pages),
            accessed: BTreeMap::new(),
            inodes,
            generation,
            zero: Page::zeroed(),
            removed: Vec::new(),
            cycle_check: Semaphore::new(1),
            directory_moves: 0,
        }
    }
}
