//! Requests that begin or end within a block of the volume. The block is read, changed and written
//! as a whole, in turn with all other requests for it, so that no client undoes another's write.

use super::Session;
use crate::request::Header;
use crate::status::count;
use crate::volume::{BLOCK, Volume};
use furrow_rt::{PAGE_SIZE, Pages};
use furrow_zone::Result;
use std::ops::Range;

impl<V: Volume> Session<V> {
    pub(super) async fn write(&self, header: &Header, mut pages: Pages, fua: bool) -> Result<()> {
        let (blocks, whole) = (header.blocks(), header.is_whole());
        if whole {
            let _held = self.export.turns.hold(blocks.clone()).await;
            return self.export.volume().write(blocks.start, pages, fua).await;
        }
        let _turn = self.link.turn(1).await;
        let _held = self.export.turns.hold(blocks.clone()).await;
        self.tally(|counters| count(&counters.partial, 1));
        self.fill_edges(header, &mut pages).await?;
        self.export.volume().write(blocks.start, pages, fua).await
    }

    /// Reads the parts of a write's first and last block that the write leaves unchanged, into the
    /// write's pages.
    async fn fill_edges(&self, header: &Header, pages: &mut Pages) -> Result<()> {
        let blocks = header.blocks();
        let (head, tail) = edges(header);
        let last = pages.len() - 1;
        if head > 0 || (last == 0 && tail < PAGE_SIZE) {
            let old = self.load(blocks.start..blocks.start + 1).await?;
            let page = pages[0].make_mut();
            page[..head].copy_from_slice(&old[0][..head]);
            if last == 0 {
                page[tail..].copy_from_slice(&old[0][tail..]);
            }
        }
        if last > 0 && tail < PAGE_SIZE {
            let old = self.load(blocks.end - 1..blocks.end).await?;
            pages[last].make_mut()[tail..].copy_from_slice(&old[0][tail..]);
        }
        Ok(())
    }

    pub(super) async fn zero_part(&self, block: u64, part: Range<usize>, fua: bool) -> Result<()> {
        let _held = self.export.turns.hold(block..block + 1).await;
        let mut pages = self.load(block..block + 1).await?;
        pages[0].make_mut()[part].fill(0);
        self.export.volume().write(block, pages, fua).await
    }
}

/// Offsets in bytes at which the request starts in its first block and ends in its last block.
pub(super) fn edges(header: &Header) -> (usize, usize) {
    let end = header.offset + u64::from(header.length);
    ((header.offset % BLOCK) as usize, ((end - 1) % BLOCK + 1) as usize)
}
