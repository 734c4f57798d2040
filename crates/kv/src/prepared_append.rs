//! An append prepared before the caller takes the engine: content in pages, with checksums.
//!
//! Copying and checksums are most of the work of an append. A caller does both on its own thread,
//! without the engine, and then hands over the pages.

use crate::file::{Block, File};
use furrow_rt::{PAGE_SIZE, Page, Pool};

/// Bytes to be appended, in pages.
///
/// The caller keeps the file's last page between appends: [`PreparedAppend::tail`].
#[derive(Clone, Debug)]
pub struct PreparedAppend {
    /// Size that the file must have when the pages are appended.
    from: u64,
    blocks: Vec<Block>,
    tail: Page,
    end: u64,
}

impl PreparedAppend {
    /// Copies `bytes`, which will be appended to a file of `from` bytes. `tail` begins with the
    /// file's bytes after its last whole page.
    pub fn new(from: u64, tail: &Page, bytes: &[u8], pages: &Pool) -> PreparedAppend {
        let mut filled = (from % PAGE_SIZE as u64) as usize;
        let (mut page, mut rest, mut blocks) = (tail.clone(), bytes, Vec::new());
        if filled == 0 {
            page = pages.take_dirty();
        }
        blocks.reserve(bytes.len() / PAGE_SIZE + 1);
        loop {
            let (now, later) = rest.split_at(rest.len().min(PAGE_SIZE - filled));
            let room = page.make_mut();
            room[filled..filled + now.len()].copy_from_slice(now);
            filled += now.len();
            rest = later;
            if filled < PAGE_SIZE {
                // Pages from the pool hold old content.
                room[filled..].fill(0);
                break;
            }
            blocks.push(Block::of(std::mem::replace(&mut page, pages.take_dirty())));
            filled = 0;
        }
        PreparedAppend { from, blocks, tail: page, end: from + bytes.len() as u64 }
    }

    /// The last page: the bytes after the last whole page, then zeros.
    pub fn tail(&self) -> &Page {
        &self.tail
    }

    /// Number of bytes to append.
    pub fn len(&self) -> usize {
        (self.end - self.from) as usize
    }

    /// True if there are no bytes to append.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the prepared bytes to the file in memory. Returns false, and changes nothing, if the
    /// file no longer has the size for which the append was prepared, or its last page was padded.
    pub(crate) fn push_to(self, file: &mut File) -> bool {
        let padded = u64::from(file.blocks()) * PAGE_SIZE as u64 > file.size;
        if file.size != self.from || padded {
            return false;
        }
        file.waiting.extend(self.blocks);
        file.tail = self.tail;
        file.size = self.end;
        true
    }
}
