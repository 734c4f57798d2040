//! A sparse volume in memory: for tests, benchmarks and trying out clients.
//!
//! The volume keeps the pages that it gets and returns them, so a benchmark with it measures only
//! the server. Blocks that were never written take no memory and read as zeroes. Every request is
//! answered at once. Nothing outlives the process, so a flush does nothing.

use crate::volume::{Extent, Volume};
use furrow_rt::{Page, Pages};
use furrow_zone::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::future::{Future, ready};

/// Number of blocks of a leaf of the table: 2 MiB of data.
const LEAF: u64 = 512;

/// The pages of a leaf's blocks, and the number of blocks that have a page.
struct Leaf {
    pages: Vec<Option<Page>>,
    used: usize,
}

impl Leaf {
    fn new() -> Leaf {
        Leaf { pages: vec![None; LEAF as usize], used: 0 }
    }
}

/// A sparse volume in memory; see the module's documentation.
pub struct Memory {
    blocks: u64,
    leaves: RefCell<Vec<Option<Leaf>>>,
    zero: Page,
    used: Cell<u64>,
    flushes: Cell<u64>,
}

impl Memory {
    /// An empty volume of `blocks` blocks. Its table takes 32 bytes per 2 MiB of the volume's size;
    /// a written block takes its own size and 8 bytes.
    pub fn new(blocks: u64) -> Memory {
        let leaves = (0..blocks.div_ceil(LEAF)).map(|_| None).collect();
        let zero = Page::zeroed();
        let (used, flushes) = (Cell::new(0), Cell::new(0));
        Memory { blocks, leaves: RefCell::new(leaves), zero, used, flushes }
    }

    /// Number of allocated blocks.
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// Number of flushes so far, including those for writes with FUA.
    pub fn flushes(&self) -> u64 {
        self.flushes.get()
    }

    fn check(&self, block: u64, count: u64) -> Result<()> {
        if block.checked_add(count).is_some_and(|end| end <= self.blocks) {
            return Ok(());
        }
        let size = self.blocks;
        let message = format!("{count} blocks from {block} on reach past the end of {size} blocks");
        Err(Error::new(ErrorKind::Invalid, message))
    }

    fn count_fua(&self, fua: bool) {
        self.flushes.set(self.flushes.get() + u64::from(fua));
    }

    fn get(&self, block: u64, count: u32) -> Result<Pages> {
        self.check(block, u64::from(count))?;
        let leaves = self.leaves.borrow();
        let page = |block: u64| {
            let leaf = leaves[(block / LEAF) as usize].as_ref();
            leaf.and_then(|leaf| leaf.pages[(block % LEAF) as usize].as_ref())
        };
        Ok((block..block + u64::from(count))
            .map(|b| page(b).unwrap_or(&self.zero).clone())
            .collect())
    }

    fn put(&self, block: u64, data: Pages) -> Result<()> {
        self.check(block, data.len() as u64)?;
        let mut leaves = self.leaves.borrow_mut();
        for (block, page) in (block..).zip(data) {
            let leaf = leaves[(block / LEAF) as usize].get_or_insert_with(Leaf::new);
            if leaf.pages[(block % LEAF) as usize].replace(page).is_none() {
                leaf.used += 1;
                self.used.set(self.used.get() + 1);
            }
        }
        Ok(())
    }

    fn free(&self, block: u64, count: u64) -> Result<()> {
        self.check(block, count)?;
        let mut leaves = self.leaves.borrow_mut();
        let mut at = block;
        while at < block + count {
            let end = (block + count).min((at / LEAF + 1) * LEAF);
            let slot = &mut leaves[(at / LEAF) as usize];
            if let Some(leaf) = slot {
                let run = (at % LEAF) as usize..(at % LEAF + (end - at)) as usize;
                let freed = leaf.pages[run].iter_mut().filter_map(Option::take).count();
                leaf.used -= freed;
                self.used.set(self.used.get() - freed as u64);
                if leaf.used == 0 {
                    *slot = None;
                }
            }
            at = end;
        }
        Ok(())
    }

    fn runs(&self, block: u64, count: u64, limit: usize) -> Result<Vec<Extent>> {
        self.check(block, count)?;
        let leaves = self.leaves.borrow();
        let mut runs: Vec<Extent> = Vec::new();
        let mut at = block;
        while at < block + count {
            let leaf = leaves[(at / LEAF) as usize].as_ref();
            let (blocks, hole) = match leaf {
                None => ((at / LEAF + 1) * LEAF - at, true),
                Some(leaf) => (1, leaf.pages[(at % LEAF) as usize].is_none()),
            };
            let blocks = blocks.min(block + count - at);
            let told = runs.len();
            match runs.last_mut() {
                Some(last) if last.hole == hole => last.blocks += blocks,
                _ if told == limit => break,
                _ => runs.push(Extent { blocks, hole }),
            }
            at += blocks;
        }
        Ok(runs)
    }
}

impl Volume for Memory {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, block: u64, count: u32) -> impl Future<Output = Result<Pages>> {
        ready(self.get(block, count))
    }

    fn write(&self, block: u64, data: Pages, fua: bool) -> impl Future<Output = Result<()>> {
        self.count_fua(fua);
        ready(self.put(block, data))
    }

    fn write_zeroes(
        &self,
        block: u64,
        count: u64,
        may_free: bool,
        fua: bool,
    ) -> impl Future<Output = Result<()>> {
        self.count_fua(fua);
        ready(match may_free {
            true => self.free(block, count),
            false => self.check(block, count).and_then(|()| {
                (block..block + count).try_for_each(|block| {
                    // Each block gets its own page, because NO_HOLE asks for allocated space.
                    self.put(block, Pages::from_iter([Page::zeroed()]))
                })
            }),
        })
    }

    fn trim(&self, block: u64, count: u64, fua: bool) -> impl Future<Output = Result<()>> {
        self.count_fua(fua);
        ready(self.free(block, count))
    }

    fn flush(&self) -> impl Future<Output = Result<()>> {
        self.count_fua(true);
        ready(Ok(()))
    }

    fn extents(
        &self,
        block: u64,
        count: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Extent>>> {
        ready(self.runs(block, count, limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Config, Rt};
    use std::rc::Rc;

    fn page(byte: u8) -> Page {
        Page::from_slice(&[byte; 4096])
    }

    #[test]
    fn blocks_are_kept_freed_and_told_apart() {
        let rt = Rt::new(Config::simulated(1));
        let volume = Rc::new(Memory::new(2 * LEAF + 7));
        rt.block_on(async move {
            let data: Pages = (1..=4).map(page).collect();
            volume.write(LEAF - 2, data, false).await.unwrap();
            let back = volume.read(LEAF - 3, 6).await.unwrap();
            assert_eq!(back.iter().map(|p| p[9]).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0]);
            volume.trim(LEAF - 1, 2, true).await.unwrap();
            let extents = volume.extents(LEAF - 3, 6, 9).await.unwrap();
            let told: Vec<_> = extents.iter().map(|e| (e.blocks, e.hole)).collect();
            assert_eq!(told, [(1, true), (1, false), (2, true), (1, false), (1, true)]);
            assert_eq!(volume.extents(LEAF - 3, 6, 2).await.unwrap().len(), 2);
            assert_eq!((volume.used(), volume.flushes()), (2, 1));
            volume.write_zeroes(0, 3, false, false).await.unwrap();
            assert_eq!(volume.used(), 5);
            volume.write_zeroes(0, volume.blocks(), true, false).await.unwrap();
            assert_eq!(volume.used(), 0);
            assert!(
                volume.leaves.borrow().iter().all(Option::is_none),
                "leaves go with their pages"
            );
            assert!(volume.read(volume.blocks(), 1).await.is_err());
            assert!(volume.trim(1, u64::MAX, false).await.is_err());
        });
    }
}
