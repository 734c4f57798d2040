//! Blocks that a truncation takes from a file, kept for the views of the open store.

use furrow_rt::{PAGE_SIZE, Page, Pages};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Maximum number of blocks that are kept for a view of a file. Enough for RocksDB, which truncates
/// only the last page of a file and blocks that it allocated ahead.
const KEPT_MAX: u32 = 256;

/// The old content of a truncated file that is kept for one view.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Size of the file in the view, in bytes.
    size: u64,
    /// Offset up to which the file still has the view's bytes.
    intact: Cell<u64>,
    /// Blocks that the file lost by truncation, for the view to read.
    blocks: RefCell<BTreeMap<u32, Page>>,
}

impl Kept {
    /// Begins to keep old content for a view in which the file has `size` bytes.
    pub(crate) fn new(size: u64) -> Kept {
        Kept { size, intact: Cell::new(size), blocks: RefCell::default() }
    }

    /// Number of the block after the view's last one.
    pub(crate) fn end(&self) -> u32 {
        self.size.div_ceil(PAGE_SIZE as u64) as u32
    }

    /// Returns the first block that must still be kept before the file is truncated at block
    /// `from`; `None` if nothing is missing, or if the truncation takes more blocks than a
    /// view keeps.
    pub(crate) fn missing(&self, from: u32) -> Option<u32> {
        let blocks = self.blocks.borrow();
        let mut wanted = from..self.end();
        let is_missing = |block: &u32| !blocks.contains_key(block) && self.is_intact(*block);
        if wanted.len() > KEPT_MAX as usize { None } else { wanted.find(is_missing) }
    }

    /// Keeps blocks from `block` on.
    pub(crate) fn keep(&self, block: u32, pages: Pages) {
        self.blocks.borrow_mut().extend((block..).zip(pages));
    }

    /// Returns a block if it is kept.
    pub(crate) fn page(&self, block: u32) -> Option<Page> {
        self.blocks.borrow().get(&block).cloned()
    }

    /// Number of the view's bytes that the file still has.
    pub(crate) fn intact(&self) -> u64 {
        self.intact.get()
    }

    /// Whether the file still has all bytes of a block that the view has.
    pub(crate) fn is_intact(&self, block: u32) -> bool {
        (u64::from(block + 1) * PAGE_SIZE as u64).min(self.size) <= self.intact.get()
    }

    /// Notes that the file has lost the view's bytes from `size` on.
    pub(crate) fn cut(&self, size: u64) {
        self.intact.set(self.intact.get().min(size));
    }
}
