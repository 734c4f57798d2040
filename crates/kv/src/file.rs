//! A file in memory: where its content lies, and what of it is durable.
//!
//! Invariants
//! - Extents are in the order of the file, without gaps from block 0 on.
//! - Behind the extents come whole blocks that were not dispatched yet, then the bytes behind the
//!   last whole block. Only the last block of an extent of a file that ended is padded.
//! - What was dispatched and not answered yet is in `flying` too, to be read there.

use crate::entries::FileState;
use crate::file_kind::{Claim, FileKind, Role};
use furrow_log::BlockAddr;
use furrow_log::record::crc32c;
use furrow_rt::{PAGE_SIZE, Page, Semaphore};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Number of a file; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// How long a file is expected to live: RocksDB's hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Lifetime {
    /// Nobody said.
    #[default]
    NotSet = 0,
    /// No hint is to be used.
    None = 1,
    /// Shortest.
    Short = 2,
    /// Longer.
    Medium = 3,
    /// Longer still.
    Long = 4,
    /// Longest.
    Extreme = 5,
}

impl Lifetime {
    /// From what is stored.
    pub fn from_byte(byte: u8) -> Option<Lifetime> {
        use Lifetime::{Extreme, Long, Medium, None as NoHint, NotSet, Short};
        [NotSet, NoHint, Short, Medium, Long, Extreme].get(usize::from(byte)).copied()
    }
}

/// Checksums of an extent's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sums {
    /// Of each block.
    Here(Rc<Vec<u32>>),
    /// In a block of the drive.
    At(BlockAddr),
}

/// A run of blocks that lie one after the other in a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block in the file.
    pub(crate) first: u32,
    pub(crate) blocks: u32,
    pub(crate) at: BlockAddr,
    pub(crate) sums: Sums,
}

impl Extent {
    pub(crate) fn end(&self) -> u32 {
        self.first + self.blocks
    }
}

/// A whole block of content, with its CRC32C.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) page: Page,
    pub(crate) sum: u32,
}

impl Block {
    pub(crate) fn of(page: Page) -> Block {
        Block { sum: crc32c(page.bytes()), page }
    }
}

/// A file.
pub(crate) struct File {
    pub(crate) extents: Vec<Extent>,
    pub(crate) flying: BTreeMap<u32, Page>,
    pub(crate) waiting: VecDeque<Block>,
    pub(crate) tail: Page,
    pub(crate) size: u64,
    pub(crate) modified: i64,
    pub(crate) lifetime: Lifetime,
    pub(crate) role: Role,
    /// What was said of who writes it.
    pub(crate) claim: Claim,
    /// Paths that name it.
    pub(crate) names: u32,
    /// Handles.
    pub(crate) opens: u32,
    /// What the last durable round says of it, without its extents; `None`: nothing.
    pub(crate) synced: Option<Synced>,
    /// Blocks whose extents are as the last round has them.
    pub(crate) journaled: u32,
    /// One change of its content at a time.
    pub(crate) lock: Semaphore,
}

/// What is durable of a file, but for where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Synced {
    pub(crate) blocks: u32,
    pub(crate) size: u64,
    pub(crate) tail: Vec<u8>,
    pub(crate) modified: i64,
}

impl File {
    pub(crate) fn new(lifetime: Lifetime, modified: i64) -> File {
        File {
            extents: Vec::new(),
            flying: BTreeMap::new(),
            waiting: VecDeque::new(),
            tail: Page::zeroed(),
            size: 0,
            modified,
            lifetime,
            role: Role::default(),
            claim: Claim::Others,
            names: 0,
            opens: 0,
            synced: None,
            journaled: 0,
            lock: Semaphore::new(1),
        }
    }

    /// From what recovery found.
    pub(crate) fn recovered(state: FileState) -> File {
        let mut file = File::new(state.lifetime, state.modified);
        let blocks = state.extents.last().map_or(0, Extent::end);
        file.tail = Page::from_slice(&state.tail);
        file.size = state.size;
        file.synced =
            Some(Synced { blocks, size: state.size, tail: state.tail, modified: state.modified });
        file.extents = state.extents;
        file.journaled = blocks;
        file
    }

    /// Which of the last zones it may have.
    pub(crate) fn claim(&self) -> Claim {
        // What is kept for flushes is kept from logs.
        let said = if self.role.kind == FileKind::Wal { Claim::Others } else { self.claim };
        said.max(self.role.claim)
    }

    /// Whole blocks that have a place.
    pub(crate) fn placed(&self) -> u32 {
        self.extents.last().map_or(0, Extent::end)
    }

    /// Whole blocks, those that have no place yet included.
    pub(crate) fn blocks(&self) -> u32 {
        self.placed() + self.waiting.len() as u32
    }

    /// Bytes behind the last whole block.
    pub(crate) fn tail_len(&self) -> usize {
        self.size.saturating_sub(u64::from(self.blocks()) * PAGE_SIZE as u64) as usize
    }

    /// Adds bytes at the end.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = self.tail_len();
            let (now, rest) = bytes.split_at(bytes.len().min(PAGE_SIZE - at));
            self.tail.make_mut()[at..at + now.len()].copy_from_slice(now);
            self.size += now.len() as u64;
            if at + now.len() == PAGE_SIZE {
                let whole = std::mem::replace(&mut self.tail, Page::zeroed());
                self.waiting.push_back(Block::of(whole));
            }
            bytes = rest;
        }
    }

    /// The page of a block, if it is in memory.
    pub(crate) fn in_memory(&self, block: u32) -> Option<Page> {
        let placed = self.placed();
        if block < placed {
            return self.flying.get(&block).cloned();
        }
        match self.waiting.get((block - placed) as usize) {
            Some(block) => Some(block.page.clone()),
            None if block == self.blocks() => Some(self.tail.clone()),
            None => None,
        }
    }

    /// The extent that a block is in.
    pub(crate) fn extent_of(&self, block: u32) -> Option<&Extent> {
        let after = self.extents.partition_point(|extent| extent.first <= block);
        self.extents.get(after.checked_sub(1)?).filter(|extent| block < extent.end())
    }

    /// The file as the next round is to have it: what has a place, and the bytes behind. Of a block
    /// that was filled since, and waits for its place, all but the last byte: more was not to be
    /// synced, since a sync places whole blocks.
    pub(crate) fn view(&self) -> Synced {
        let blocks = self.placed();
        let (size, tail) = match self.waiting.front() {
            Some(block) => {
                // A file's last block may be padded.
                let placed = u64::from(blocks) * PAGE_SIZE as u64;
                let size = self.size.min(placed + PAGE_SIZE as u64 - 1);
                (size, &block.page.bytes()[..(size - placed) as usize])
            }
            None => (self.size, &self.tail.bytes()[..self.tail_len()]),
        };
        Synced { blocks, size, tail: tail.to_vec(), modified: self.modified }
    }

    /// Whether something of it is not durable.
    pub(crate) fn is_unsynced(&self) -> bool {
        let durable = self.synced.as_ref().is_some_and(|synced| synced.size == self.size);
        !durable || self.journaled < self.blocks()
    }

    /// The extents up to block `blocks`, from the one on that holds block `from`.
    pub(crate) fn extents_between(&self, from: u32, blocks: u32) -> Vec<Extent> {
        let inside = self.extents.iter().filter(|e| e.end() > from && e.first < blocks);
        inside
            .map(|extent| {
                let count = extent.blocks.min(blocks - extent.first);
                let sums = match &extent.sums {
                    // A hole has none.
                    Sums::Here(all) => {
                        Sums::Here(Rc::new(all.iter().take(count as usize).copied().collect()))
                    }
                    at => at.clone(),
                };
                Extent { blocks: count, sums, ..*extent }
            })
            .collect()
    }

    /// As it is durable, whole.
    pub(crate) fn durable(&self, synced: &Synced) -> FileState {
        FileState {
            size: synced.size,
            modified: synced.modified,
            lifetime: self.lifetime,
            extents: self.extents_between(0, synced.blocks),
            tail: synced.tail.clone(),
        }
    }

    /// Something of the extents from `block` on is otherwise than the last round has it.
    pub(crate) fn changed_from(&mut self, block: u32) {
        self.journaled = self.journaled.min(block);
    }
}
