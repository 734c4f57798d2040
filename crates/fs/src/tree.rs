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
use directory_index::DirectoryIndexes;
use furrow_rt::Page;
use open_files::OpenFiles;
use rename_cycle::DirectoryMoves;
use std::collections::{BTreeMap, BTreeSet};

/// What is in memory of files and directories, but for their pages, which are in the cache.
///
/// Invariants:
/// - `inodes` is the number of nodes in the NAT that are inodes.
/// - No inode that was ever made has `generation`, or a later one.
pub(crate) struct Tree {
    files: OpenFiles,
    /// Where names are in large directories.
    directories: DirectoryIndexes,
    /// Times of access that are only here so far (`lazy_time`).
    accessed: BTreeMap<Ino, Time>,
    inodes: u64,
    /// Of the next inode.
    generation: u32,
    /// The page of a hole.
    zero: Page,
    moves: DirectoryMoves,
}

impl Tree {
    /// A tree of which nothing is in the cache, which has at most `pages` pages. A checkpoint tells
    /// of `inodes`, the next `generation` and `orphans`.
    pub(crate) fn new(
        pages: usize,
        (inodes, generation): (u64, u32),
        orphans: BTreeSet<Ino>,
    ) -> Tree {
        Tree {
            files: OpenFiles::new(orphans),
            directories: DirectoryIndexes::new(pages),
            accessed: BTreeMap::new(),
            inodes,
            generation,
            zero: Page::zeroed(),
            moves: DirectoryMoves::default(),
        }
    }

    /// Open files, and inodes without a name.
    pub(crate) fn files(&self) -> &OpenFiles {
        &self.files
    }

    /// The same, to be changed.
    pub(crate) fn files_mut(&mut self) -> &mut OpenFiles {
        &mut self.files
    }

    /// Where names are in large directories.
    pub(crate) fn directories(&self) -> &DirectoryIndexes {
        &self.directories
    }

    /// A directory is gone, or its blocks were changed elsewhere.
    pub(crate) fn forget_directory(&mut self, ino: Ino) {
        self.directories.forget(ino.0);
    }

    /// Inodes in use.
    pub(crate) fn inodes(&self) -> u64 {
        self.inodes
    }

    /// At repair: inodes in use.
    pub(crate) fn set_inodes(&mut self, inodes: u64) {
        self.inodes = inodes;
    }

    /// The generation of the next inode.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// An inode is made, of `generation` or a later one.
    pub(crate) fn take_generation(&mut self, generation: u32) {
        self.generation = self.generation.max(generation).wrapping_add(1);
    }

    /// The next inode gets `generation` at least.
    pub(crate) fn pass_generation(&mut self, generation: u32) {
        self.generation = self.generation.max(generation);
    }
}
