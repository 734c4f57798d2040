//! The tree that users see: files, directories, names and attributes, in the cache.

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
pub(crate) mod open_files;
mod ranges;
pub(crate) mod readdir;
mod rename;
pub(crate) mod rename_cycle;
pub mod shape;
mod truncate;
pub(crate) mod xattr;

use crate::types::{Ino, Time};
use directory_index::DirectoryIndexes;
use furrow_log::audit::Broken;
use furrow_rt::Page;
use open_files::OpenFiles;
use rename_cycle::DirectoryMoves;
use std::collections::{BTreeMap, BTreeSet};

/// The state of files and directories in memory, except for their pages, which are in the cache.
///
/// Invariants:
/// - `inodes` is the number of nodes in the NAT that are inodes.
/// - Every inode that was ever made has a generation below `generation`.
pub(crate) struct Tree {
    files: OpenFiles,
    /// The index of names in large directories.
    directories: DirectoryIndexes,
    /// Access times that exist only in memory so far (`lazy_time`).
    accessed: BTreeMap<Ino, Time>,
    inodes: u64,
    /// Generation of the next inode.
    generation: u32,
    /// The page of zeros that stands for a hole.
    zero: Page,
    moves: DirectoryMoves,
}

impl Tree {
    /// Builds a tree. `pages` is the capacity of the page cache, in pages; `inodes`, the next
    /// `generation` and `orphans` are those of a checkpoint.
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

    /// From now on, the tree reports to `broken` each account that would go below zero.
    pub(crate) fn note_broken_in(&mut self, broken: &Broken) {
        self.directories.note_broken_in(broken);
    }

    /// Open files, and inodes without a name.
    pub(crate) fn files(&self) -> &OpenFiles {
        &self.files
    }

    /// Like [`Tree::files`], for changes.
    pub(crate) fn files_mut(&mut self) -> &mut OpenFiles {
        &mut self.files
    }

    /// The index of names in large directories.
    pub(crate) fn directories(&self) -> &DirectoryIndexes {
        &self.directories
    }

    /// Drops the index of directory `ino`, because its blocks changed without updates of the index.
    pub(crate) fn forget_directory(&mut self, ino: Ino) {
        self.directories.forget(ino.0);
    }

    /// Number of inodes in use.
    pub(crate) fn inodes(&self) -> u64 {
        self.inodes
    }

    /// At repair, sets the number of inodes in use.
    pub(crate) fn set_inodes(&mut self, inodes: u64) {
        self.inodes = inodes;
    }

    /// The generation of the next inode.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Raises the generation of the next inode above its present value and above `generation`,
    /// which a new inode has taken.
    pub(crate) fn take_generation(&mut self, generation: u32) {
        self.generation = self.generation.max(generation).wrapping_add(1);
    }

    /// Makes the generation of the next inode at least `generation`.
    pub(crate) fn pass_generation(&mut self, generation: u32) {
        self.generation = self.generation.max(generation);
    }
}
