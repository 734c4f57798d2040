//! The RAID volume as a [`Volume`].
//!
//! This module does two things that the RAID volume does not. It writes real zeroes where space
//! must stay allocated, because a log-structured volume stores nothing for blocks that read as
//! zeroes. And it queries extents in parts, because a client's range may have any number of them.

use crate::volume::{Extent, Volume};
use furrow_rt::{Page, Pages};
use furrow_zone::Result;

/// Maximum number of blocks in one write of zeroes.
const ZEROES: u64 = 256;

impl Volume for furrow_raid::Volume {
    fn blocks(&self) -> u64 {
        furrow_raid::Volume::blocks(self)
    }

    /// The size of a full stripe of large chunks.
    fn preferred_blocks(&self) -> u32 {
        self.shape().placement.k.saturating_mul(self.config().chunk_large).max(1)
    }

    fn read_only(&self) -> bool {
        self.failed().is_some()
    }

    async fn read(&self, block: u64, count: u32) -> Result<Pages> {
        furrow_raid::Volume::read(self, block, count).await
    }

    async fn write(&self, block: u64, data: Pages, fua: bool) -> Result<()> {
        furrow_raid::Volume::write(self, block, data, fua).await
    }

    async fn write_zeroes(&self, block: u64, count: u64, may_free: bool, fua: bool) -> Result<()> {
        if may_free {
            return furrow_raid::Volume::write_zeroes(self, block, count, fua).await;
        }
        let zero = Page::zeroed();
        let end = block + count;
        for at in (block..end).step_by(ZEROES as usize) {
            let data = (at..end.min(at + ZEROES)).map(|_| zero.clone()).collect();
            furrow_raid::Volume::write(self, at, data, fua).await?;
        }
        Ok(())
    }

    async fn trim(&self, block: u64, count: u64, fua: bool) -> Result<()> {
        furrow_raid::Volume::trim(self, block, count, fua).await
    }

    async fn flush(&self) -> Result<()> {
        furrow_raid::Volume::flush(self).await
    }

    async fn extents(&self, block: u64, count: u64, limit: usize) -> Result<Vec<Extent>> {
        let mut found: Vec<Extent> = Vec::new();
        let (mut at, end) = (block, block + count);
        // A part of the range has at most as many extents as blocks.
        let piece = limit.max(2) as u64;
        while at < end {
            let until = end.min(at + piece);
            for (blocks, hole) in furrow_raid::Volume::extents(self, at, until - at).await? {
                let told = found.len();
                match found.last_mut() {
                    Some(last) if last.hole == hole => last.blocks += blocks,
                    _ if told == limit => return Ok(found),
                    _ => found.push(Extent { blocks, hole }),
                }
            }
            at = until;
        }
        Ok(found)
    }
}
