//! A file in memory: where its content lies, and what of it is durable.
//!
//! Invariants
//! - Extents are in the order of the file, without gaps from block 0 on.
//! - After the extents come the whole blocks that were not dispatched yet, then the bytes after the
//!   last whole block. Only the last block of a closed file is padded; it ends the last extent.
//! - Blocks that were dispatched and not answered yet are in `flying` too, and are read there.

use crate::entries::FileState;
use crate::extent::{Extent, Lifetime, Sums};
use crate::file_kind::{Claim, FileKind, Role};
use crate::kept::Kept;
use crate::ring_load::FileLoad;
use furrow_log::record::crc32c;
use furrow_rt::{PAGE_SIZE, Page, Semaphore};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

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

/// A file in memory.
pub(crate) struct File {
    pub(crate) extents: Vec<Extent>,
    pub(crate) flying: BTreeMap<u32, Page>,
    pub(crate) waiting: VecDeque<Block>,
    pub(crate) tail: Page,
    pub(crate) size: u64,
    pub(crate) modified: i64,
    pub(crate) lifetime: Lifetime,
    pub(crate) role: Role,
    /// The claim that the file's writer stated.
    pub(crate) claim: Claim,
    /// Number of paths that name the file.
    pub(crate) names: u32,
    /// Number of open handles.
    pub(crate) opens: u32,
    /// The old content of this file that is kept for each view of the store.
    pub(crate) views: Vec<Rc<Kept>>,
    /// The file's state in the last durable group commit, without extents; `None` if that commit
    /// does not have the file.
    pub(crate) synced: Option<Synced>,
    /// Number of leading blocks whose extents are as the last group commit recorded them.
    pub(crate) journaled: u32,
    /// Bytes that the file adds to a snapshot.
    pub(crate) load: FileLoad,
    /// Held while the content changes, so that one change happens at a time.
    pub(crate) lock: Semaphore,
}

/// The durable state of a file, without its extents.
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
            views: Vec::new(),
            synced: None,
            journaled: 0,
            load: FileLoad::default(),
            lock: Semaphore::new(1),
        }
    }

    /// Creates a file from the state that recovery found.
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

    /// The claim, which decides which of the last free zones the file may use.
    pub(crate) fn claim(&self) -> Claim {
        // Logs may not use the reserve for flushes.
        let said = if self.role.kind == FileKind::Wal { Claim::Others } else { self.claim };
        said.max(self.role.claim)
    }

    /// Counts the whole blocks that have a place on the drive.
    pub(crate) fn placed(&self) -> u32 {
        self.extents.last().map_or(0, Extent::end)
    }

    /// Counts the whole blocks, including those without a place yet.
    pub(crate) fn blocks(&self) -> u32 {
        self.placed() + self.waiting.len() as u32
    }

    /// Number of bytes after the last whole block.
    pub(crate) fn tail_len(&self) -> usize {
        self.size.saturating_sub(u64::from(self.blocks()) * PAGE_SIZE as u64) as usize
    }

    /// Pads the bytes after the last whole block with zeros, which makes them a whole block.
    pub(crate) fn pad(&mut self) {
        let last = std::mem::replace(&mut self.tail, Page::zeroed());
        self.waiting.push_back(Block::of(last));
    }

    /// Appends bytes to the tail. A block that becomes full waits for a place.
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

    /// Returns the page of a block if it is in memory.
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

    /// Returns the extent that holds a block.
    pub(crate) fn extent_of(&self, block: u32) -> Option<&Extent> {
        let after = self.extents.partition_point(|extent| extent.first <= block);
        self.extents.get(after.checked_sub(1)?).filter(|extent| block < extent.end())
    }

    /// Returns the file as the next group commit records it: the blocks with a place, and the bytes
    /// after them. If the tail has become a whole block that waits for a place, the block's last
    /// byte is left out, so that the rest still counts as a tail. No caller synced that byte: the
    /// sync would have given the block a place.
    pub(crate) fn view(&self) -> Synced {
        let blocks = self.placed();
        let (size, tail) = match self.waiting.front() {
            Some(block) => {
                // If the file's last block is padded, the file ends within it.
                let placed = u64::from(blocks) * PAGE_SIZE as u64;
                let size = self.size.min(placed + PAGE_SIZE as u64 - 1);
                (size, &block.page.bytes()[..(size - placed) as usize])
            }
            None => (self.size, &self.tail.bytes()[..self.tail_len()]),
        };
        Synced { blocks, size, tail: tail.to_vec(), modified: self.modified }
    }

    /// Bytes after the last whole block that the ring has to hold: the durable ones or the present
    /// ones, whichever are more.
    pub(crate) fn tail_recorded(&self) -> u64 {
        let durable = self.synced.as_ref().map_or(0, |synced| synced.tail.len());
        durable.max(self.tail_len()) as u64
    }

    /// Whether part of the file is not durable.
    pub(crate) fn is_unsynced(&self) -> bool {
        let durable = self.synced.as_ref().is_some_and(|synced| synced.size == self.size);
        !durable || self.journaled < self.blocks()
    }

    /// Returns the extents from the one that holds block `from` up to block `blocks`.
    pub(crate) fn extents_between(&self, from: u32, blocks: u32) -> Vec<Extent> {
        let inside = self.extents.iter().filter(|e| e.end() > from && e.first < blocks);
        inside
            .map(|extent| {
                let count = extent.blocks.min(blocks - extent.first);
                let sums = match &extent.sums {
                    // A hole has no checksums.
                    Sums::Here(all) => {
                        Sums::Here(Rc::new(all.iter().take(count as usize).copied().collect()))
                    }
                    at => at.clone(),
                };
                Extent { blocks: count, sums, ..*extent }
            })
            .collect()
    }

    /// Returns the whole file in its durable state.
    pub(crate) fn durable(&self, synced: &Synced) -> FileState {
        FileState {
            size: synced.size,
            modified: synced.modified,
            lifetime: self.lifetime,
            extents: self.extents_between(0, synced.blocks),
            tail: synced.tail.clone(),
        }
    }

    /// Notes that extents from `block` on differ from what the last group commit recorded.
    pub(crate) fn changed_from(&mut self, block: u32) {
        self.journaled = self.journaled.min(block);
    }
}
