//! The memory medium: written blocks, packed, with copy-on-write snapshots.
//!
//! A 4 KiB block without zero sub-blocks and without out-of-band bytes is kept as the page in which
//! it was written. A read returns the same page without copying it, because shared pages cannot be
//! changed. Any other block is stored as its 512-byte sub-blocks that are not all zero, under a bit
//! mask, followed by its out-of-band bytes up to the last one that is not zero. A block of zeros
//! takes only its tag.
//!
//! ```text
//! Memory ── Arc<Blocks> per zone ── Arc<Chunk> per 64 blocks ── Entry: a tag and a reference
//! ```
//!
//! Invariants: an entry's bytes never change; a write makes a new entry. So a clone of the whole
//! medium costs one reference per zone, and the next write copies only the tags of one chunk, and
//! no payload.
//!
//! The medium knows no write pointer: a read of blocks that were not written gives zeros.

use crate::transfer::{MediumError, Span};
use furrow_rt::buf::is_zero;
use furrow_rt::{PAGE_SIZE, Page};
use furrow_zone::Geometry;
use std::sync::Arc;

/// Size in bytes of a sub-block, the unit in which zeros are left out.
const SUB: usize = 512;
/// Number of blocks per chunk, the unit of copying after a snapshot.
const CHUNK: usize = 64;

/// One block, as the medium stores it.
#[derive(Clone, Default)]
pub(crate) enum Entry {
    #[default]
    Zeros,
    /// The block takes a whole page, which is kept as it was written.
    Whole(Page),
    Packed {
        /// The stored sub-blocks one after the other, then `oob_len` out-of-band bytes.
        data: Arc<[u8]>,
        oob_len: u16,
        /// Bit i is set if sub-block i is stored; otherwise sub-block i is zeros.
        mask: u8,
    },
    /// The block cannot be read: it was unreadable in the image from which it was copied.
    Unreadable,
}

const _: () = assert!(size_of::<Entry>() <= 24);

#[derive(Clone)]
struct Chunk([Entry; CHUNK]);

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk(std::array::from_fn(|_| Entry::default()))
    }
}

#[derive(Clone, Default)]
struct Blocks {
    chunks: Vec<Option<Arc<Chunk>>>,
}

/// Blocks of a whole drive in memory. Cloning is a snapshot.
#[derive(Clone)]
pub struct Memory {
    zones: Vec<Arc<Blocks>>,
    /// The blocks that all empty zones share.
    nothing: Arc<Blocks>,
    block_size: usize,
    oob_bytes: usize,
    /// A buffer for packing a block, kept for reuse of its allocation.
    scratch: Vec<u8>,
}

impl Entry {
    /// The entry of `block`, which is all of `page` or a part of it.
    fn pack(page: &Page, block: &[u8], oob: &[u8], scratch: &mut Vec<u8>) -> Entry {
        let mut mask = 0u8;
        for (index, sub) in block.chunks_exact(SUB).enumerate() {
            mask |= u8::from(!is_zero(sub)) << index;
        }
        let oob = trimmed(oob);
        if mask == u8::MAX && oob.is_empty() {
            return Entry::Whole(page.clone());
        }
        if mask == 0 && oob.is_empty() {
            return Entry::Zeros;
        }
        scratch.clear();
        for (index, sub) in block.chunks_exact(SUB).enumerate() {
            if mask & (1 << index) != 0 {
                scratch.extend_from_slice(sub);
            }
        }
        scratch.extend_from_slice(oob);
        Entry::Packed { data: Arc::from(scratch.as_slice()), oob_len: oob.len() as u16, mask }
    }

    /// Fills `block` and `oob` completely. If `oob` is empty, only `block` is filled.
    fn unpack(&self, block: &mut [u8], oob: &mut [u8]) -> Result<(), MediumError> {
        match self {
            Entry::Zeros => {
                block.fill(0);
                oob.fill(0);
            }
            Entry::Whole(page) => {
                block.copy_from_slice(&page.bytes()[..]);
                oob.fill(0);
            }
            Entry::Packed { data, oob_len, mask } => {
                let (subs, stored) = data.split_at(data.len() - usize::from(*oob_len));
                let mut subs = subs.chunks_exact(SUB);
                for (index, sub) in block.chunks_exact_mut(SUB).enumerate() {
                    match if mask & (1 << index) != 0 { subs.next() } else { None } {
                        Some(bytes) => sub.copy_from_slice(bytes),
                        None => sub.fill(0),
                    }
                }
                let known = stored.len().min(oob.len());
                oob[..known].copy_from_slice(&stored[..known]);
                oob[known..].fill(0);
            }
            Entry::Unreadable => return Err(MediumError::Failed),
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        match self {
            Entry::Whole(_) => PAGE_SIZE,
            Entry::Packed { data, .. } => data.len(),
            Entry::Zeros | Entry::Unreadable => 0,
        }
    }
}

fn trimmed(oob: &[u8]) -> &[u8] {
    let used = oob.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &oob[..used]
}

impl Memory {
    /// An empty medium for a drive of `geometry`.
    pub fn new(geometry: &Geometry) -> Memory {
        let nothing = Arc::new(Blocks::default());
        Memory {
            zones: vec![nothing.clone(); geometry.zones as usize],
            nothing,
            block_size: geometry.block_size.0 as usize,
            oob_bytes: usize::from(geometry.oob_bytes),
            scratch: Vec::new(),
        }
    }

    fn entry(&self, zone: usize, block: usize) -> Option<&Entry> {
        let chunk = self.zones[zone].chunks.get(block / CHUNK)?.as_ref()?;
        Some(&chunk.0[block % CHUNK])
    }

    fn entry_mut(&mut self, zone: usize, block: usize) -> &mut Entry {
        let blocks = Arc::make_mut(&mut self.zones[zone]);
        if blocks.chunks.len() <= block / CHUNK {
            blocks.chunks.resize(block / CHUNK + 1, None);
        }
        let chunk = blocks.chunks[block / CHUNK].get_or_insert_with(Default::default);
        &mut Arc::make_mut(chunk).0[block % CHUNK]
    }

    /// Stores the blocks of `span`, which are in `pages` one after another.
    pub(crate) fn write(&mut self, span: Span, pages: &[Page], oob: &[u8]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for i in 0..span.blocks as usize {
            let at = i * self.block_size;
            let page = &pages[at / PAGE_SIZE];
            let block = &page.bytes()[at % PAGE_SIZE..][..self.block_size];
            let oob = oob.get(i * self.oob_bytes..(i + 1) * self.oob_bytes).unwrap_or(&[]);
            let entry = Entry::pack(page, block, oob, &mut scratch);
            *self.entry_mut(span.zone.0 as usize, span.offset as usize + i) = entry;
        }
        self.scratch = scratch;
    }

    /// Fills the blocks of `pages` and `oob` from number `into` on with the blocks of `span`. If
    /// `oob` is empty, only `pages` is filled.
    pub(crate) fn read(
        &self,
        span: Span,
        pages: &mut [Page],
        into: usize,
        oob: &mut [u8],
    ) -> Result<(), MediumError> {
        for i in 0..span.blocks as usize {
            let at = (into + i) * self.block_size;
            let from = (into + i) * self.oob_bytes;
            let oob = oob.get_mut(from..from + self.oob_bytes).unwrap_or(&mut []);
            let entry = self.entry(span.zone.0 as usize, span.offset as usize + i);
            if let Some(Entry::Whole(page)) = entry {
                // This is the page in which the block was written: while it is shared, nobody can
                // change it.
                pages[at / PAGE_SIZE] = page.clone();
                if !oob.is_empty() {
                    oob.fill(0);
                }
                continue;
            }
            let page = pages[at / PAGE_SIZE].make_mut();
            let block = &mut page[at % PAGE_SIZE..][..self.block_size];
            match entry {
                Some(entry) => entry.unpack(block, oob)?,
                None => {
                    block.fill(0);
                    oob.fill(0);
                }
            }
        }
        Ok(())
    }

    /// Replaces the blocks of `zone` with those in `then`, another medium of the same shape.
    pub(crate) fn put_back(&mut self, zone: usize, then: &Memory) {
        self.zones[zone] = then.zones[zone].clone();
    }

    /// Drops the blocks of `zone` from `offset` on.
    pub(crate) fn truncate(&mut self, zone: usize, offset: usize) {
        if offset == 0 {
            self.zones[zone] = self.nothing.clone();
            return;
        }
        if self.zones[zone].chunks.len() * CHUNK <= offset {
            return;
        }
        let blocks = Arc::make_mut(&mut self.zones[zone]);
        blocks.chunks.truncate(offset.div_ceil(CHUNK));
        if !offset.is_multiple_of(CHUNK)
            && let Some(Some(last)) = blocks.chunks.last_mut()
        {
            Arc::make_mut(last).0[offset % CHUNK..].fill(Entry::default());
        }
    }

    /// The entries of the blocks of `span`.
    pub(crate) fn stored(&self, span: Span) -> Arc<[Entry]> {
        let blocks = span.offset..span.offset + span.blocks;
        let entry = |block: u64| self.entry(span.zone.0 as usize, block as usize);
        blocks.map(|block| entry(block).cloned().unwrap_or_default()).collect()
    }

    /// Sets a block back to an earlier entry.
    pub(crate) fn set_back(&mut self, zone: usize, block: usize, entry: Entry) {
        *self.entry_mut(zone, block) = entry;
    }

    /// Flips one bit of a stored block.
    pub(crate) fn flip(&mut self, zone: usize, block: usize, bit: u64) -> Result<(), MediumError> {
        let mut page = Page::zeroed();
        let bytes = &mut page.make_mut()[..self.block_size];
        let mut oob = vec![0; self.oob_bytes];
        let entry = self.entry_mut(zone, block);
        entry.unpack(bytes, &mut oob)?;
        let at = (bit / 8) as usize % bytes.len();
        bytes[at] ^= 1 << (bit % 8);
        let length = bytes.len();
        let flipped = Entry::pack(&page, &page.bytes()[..length], &oob, &mut Vec::new());
        *self.entry_mut(zone, block) = flipped;
        Ok(())
    }

    /// Marks a block as one that cannot be read.
    pub(crate) fn lose(&mut self, zone: usize, block: usize) {
        *self.entry_mut(zone, block) = Entry::Unreadable;
    }

    /// Number of bytes of stored payload and out-of-band data; shared bytes count once
    /// per reference.
    pub fn stored_bytes(&self) -> u64 {
        let chunks = self.zones.iter().flat_map(|zone| &zone.chunks).flatten();
        chunks.flat_map(|chunk| &chunk.0).map(|entry| entry.bytes() as u64).sum()
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({} bytes)", self.bytes())
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} zones)", self.zones.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_zone::{ZoneId, presets};

    /// Pages are shared with writers and readers: neither can change the stored block.
    #[test]
    fn a_page_read_is_the_readers_own_once_it_is_changed() {
        let mut memory = Memory::new(&presets::plain());
        let span = Span { zone: ZoneId(3), offset: 7, blocks: 1 };
        let mut written = Page::from_slice(&[5; PAGE_SIZE]);
        memory.write(span, std::slice::from_ref(&written), &[]);
        written.make_mut()[0] = 6;
        let read = || {
            let mut pages = [Page::zeroed()];
            memory.read(span, &mut pages, 0, &mut []).expect("it was written");
            let [page] = pages;
            page
        };
        let mut first = read();
        assert!(first.is_shared() && first.iter().all(|byte| *byte == 5));
        first.make_mut()[1] = 7;
        assert!(read().iter().all(|byte| *byte == 5));
    }
}
