//! Content of files in the model: which bytes come from which write.
//!
//! A file is a size and extents. An extent names the payload its bytes come from: the file, the
//! version, and the offset in it. So bytes that were copied to another file or place still show
//! where they were written. Bytes without an extent read as zeros.

use crate::fs::op::{How, Object, Op, SECTOR, SECTORS_PER_BLOCK, fill};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Bytes per block: durability is per block.
pub const BLOCK: u64 = SECTOR as u64 * SECTORS_PER_BLOCK;

/// Where the bytes of a file up to offset `end` were written. They start at the extent's key in the
/// map of extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    end: u64,
    object: Object,
    version: u32,
    /// Offset of the first byte in the payload.
    at: u64,
}

impl Extent {
    /// This extent, which starts at `start`, without its bytes before `from`.
    fn skip(self, start: u64, from: u64) -> Extent {
        Extent { at: self.at + (from - start), ..self }
    }
}

/// Content of a file: its size and the ranges with data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Size of the file in bytes.
    pub size: u64,
    extents: BTreeMap<u64, Extent>,
}

/// The content that a copy writes, determined when the copy is submitted, because the source may
/// change later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Byte range of the target file that the copy writes.
    range: Range<u64>,
    /// Extents to write, by their place in the target.
    extents: BTreeMap<u64, Extent>,
    /// Target offsets at which an interrupted copy may have stopped, ascending; the last one is the
    /// end of the copy.
    ends: Vec<u64>,
}

impl Copied {
    /// True if there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl Content {
    /// Empty content of unlimited size.
    pub(crate) fn endless() -> Content {
        Content { size: u64::MAX, extents: BTreeMap::new() }
    }

    /// The extents in `range`, clipped to it.
    fn within(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Extent)> + '_ {
        let before = self.extents.range(..range.start).next_back();
        let before = before.filter(|(_, extent)| extent.end > range.start);
        let all = before.into_iter().chain(self.extents.range(range.start..range.end));
        all.map(move |(&start, &extent)| {
            let from = start.max(range.start);
            (from, Extent { end: extent.end.min(range.end), ..extent.skip(start, from) })
        })
    }

    /// Turns `range` into a hole.
    fn clear(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((&start, extent)) = self.extents.range_mut(..range.start).next_back()
            && extent.end > range.start
        {
            let whole = *extent;
            extent.end = range.start;
            if whole.end > range.end {
                self.extents.insert(range.end, whole.skip(start, range.end));
            }
        }
        while let Some((&start, &extent)) = self.extents.range(range.start..range.end).next() {
            self.extents.remove(&start);
            if extent.end > range.end {
                self.extents.insert(range.end, extent.skip(start, range.end));
            }
        }
    }

    /// Writes `length` bytes of version `version` of `object`.
    pub fn write(&mut self, object: Object, offset: u64, length: u32, version: u32) {
        let end = offset + u64::from(length);
        self.clear(offset..end);
        self.extents.insert(offset, Extent { end, object, version, at: offset });
        self.size = self.size.max(end);
    }

    /// Sets the size; truncated bytes read as zeros if the file grows again.
    pub fn truncate(&mut self, size: u64) {
        self.clear(size..u64::MAX);
        self.size = size;
    }

    /// Applies the operation if it changes content; a copy uses [`Content::paste`].
    pub fn apply(&mut self, op: &Op) {
        match *op {
            Op::Write { object, offset, length, version } => {
                self.write(object, offset, length, version);
            }
            Op::Truncate { size, .. } => self.truncate(size),
            Op::Fallocate { how, offset, length, .. } => {
                if matches!(how, How::Punch | How::Zero | How::ZeroKeepSize) {
                    self.clear(offset..offset + length);
                }
                if matches!(how, How::Extend | How::Zero) {
                    self.size = self.size.max(offset + length);
                }
            }
            _ => {}
        }
    }

    /// The content that a copy of `length` bytes from `source` on writes at `target`.
    pub fn copy(&self, source: u64, target: u64, length: u64) -> Copied {
        let length = length.min(self.size.saturating_sub(source));
        let range = target..target + length;
        let mut ends = Vec::new();
        // The engine makes a copy that begins with data in one piece. A copy that begins with a
        // hole may stop at any block boundary.
        let starts_in_hole = self.within(source..source + 1).next().is_none();
        if starts_in_hole {
            let next = (source / BLOCK + 1) * BLOCK;
            ends.extend((next..source + length).step_by(BLOCK as usize));
        }
        ends.push(source + length);
        let extents = self.within(source..source + length).map(|(start, extent)| {
            let moved = |at: u64| at - source + target;
            (moved(start), Extent { end: moved(extent.end), ..extent })
        });
        Copied {
            range,
            extents: extents.collect(),
            ends: ends.into_iter().map(|end| end - source + target).collect(),
        }
    }

    /// Applies a copy, and calls `seen` with each intermediate state that may be seen.
    pub fn paste(&mut self, copied: &Copied, mut seen: impl FnMut(&Content)) {
        let mut from = copied.range.start;
        for &end in copied.ends.iter().filter(|_| !copied.is_empty()) {
            self.clear(from..end);
            let whole = Content { size: u64::MAX, extents: copied.extents.clone() };
            self.extents.extend(whole.within(from..end));
            self.size = self.size.max(end);
            from = end;
            seen(self);
        }
    }

    /// Fills `out` with the content from `offset` on, and with zeros past the end of the file.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        out.fill(0);
        let end = offset.saturating_add(out.len() as u64);
        for (start, extent) in self.within(offset..end) {
            let out = &mut out[(start - offset) as usize..(extent.end - offset) as usize];
            fill(out, extent.object, extent.at, extent.version);
        }
    }

    /// Copies block `block` from `other`.
    pub fn adopt_block(&mut self, other: &Content, block: u64) {
        let range = block * BLOCK..(block + 1) * BLOCK;
        self.clear(range.clone());
        self.extents.extend(other.within(range));
    }

    /// The numbers of the blocks that hold data.
    pub fn blocks(&self) -> BTreeSet<u64> {
        let blocks = |(start, extent): (&u64, &Extent)| start / BLOCK..extent.end.div_ceil(BLOCK);
        self.extents.iter().flat_map(blocks).collect()
    }
}

/// A change of content that may have been applied.
#[derive(Clone, Debug)]
pub struct Change {
    /// The operation that changes the content.
    pub op: Op,
    /// The content that a copy writes; `None` for other operations.
    pub copied: Option<Rc<Copied>>,
    /// Whether the operation was not answered: it was in flight, or failed midway. A part of the
    /// operation may be done permanently.
    pub torn: bool,
}

impl Change {
    /// Applies the change, and calls `seen` with each intermediate state that may be seen.
    pub fn apply(&self, content: &mut Content, mut seen: impl FnMut(&Content)) {
        match &self.copied {
            Some(copied) => content.paste(copied, seen),
            None => {
                content.apply(&self.op);
                seen(content);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::buf::is_zero;

    const ONE: Object = Object(0x100_0000);
    const TWO: Object = Object(0x100_0001);

    fn bytes(content: &Content) -> Vec<u8> {
        let mut out = vec![0xff; content.size as usize];
        content.read(0, &mut out);
        out
    }

    fn payload(object: Object, version: u32, range: Range<u64>) -> Vec<u8> {
        let mut out = vec![0; (range.end - range.start) as usize];
        fill(&mut out, object, range.start, version);
        out
    }

    #[test]
    fn truncation_leaves_zeros_when_the_file_grows_again() {
        let mut content = Content::default();
        content.write(ONE, 0, 8192, 1);
        content.truncate(700);
        content.truncate(8192);
        let found = bytes(&content);
        assert_eq!(found[..700], payload(ONE, 1, 0..700));
        assert!(is_zero(&found[700..]));
        assert_eq!(content.blocks().into_iter().collect::<Vec<_>>(), [0]);
        content.truncate(0);
        assert_eq!(content, Content::default());
    }

    /// Compares the model with plain bytes under any mix of writes, holes, truncations and copies.
    #[test]
    fn it_is_what_a_string_of_bytes_would_be() {
        let mut rng = furrow_rt::Rng::new(5);
        let (mut content, mut plain) = (Content::default(), Vec::<u8>::new());
        for version in 1..3000 {
            let (offset, length) = (rng.below(20_000), 1 + rng.below(6000));
            let range = offset as usize..(offset + length) as usize;
            match rng.below(6) {
                0 | 1 => {
                    content.write(ONE, offset, length as u32, version);
                    plain.resize(plain.len().max(range.end), 0);
                    plain[range].copy_from_slice(&payload(ONE, version, offset..offset + length));
                }
                2 => {
                    content.truncate(offset);
                    plain.resize(offset as usize, 0);
                }
                3 => {
                    let how = [How::Punch, How::Zero, How::ZeroKeepSize][rng.below(3) as usize];
                    content.apply(&Op::Fallocate { object: ONE, how, offset, length });
                    if how == How::Zero {
                        plain.resize(plain.len().max(range.end), 0);
                    }
                    let end = range.end.min(plain.len());
                    plain[range.start.min(end)..end].fill(0);
                }
                4 => {
                    let target = offset + length + rng.below(3000);
                    let copied = content.copy(offset, target, length);
                    content.paste(&copied, |_| {});
                    let source =
                        plain[range.start.min(plain.len())..range.end.min(plain.len())].to_vec();
                    if !source.is_empty() {
                        let end = target as usize + source.len();
                        plain.resize(plain.len().max(end), 0);
                        plain[target as usize..end].copy_from_slice(&source);
                    }
                }
                _ => {
                    let mut other = Content::endless();
                    content.blocks().iter().for_each(|&at| other.adopt_block(&content, at));
                    other.truncate(content.size);
                    assert_eq!(bytes(&other), plain);
                }
            }
            assert_eq!(bytes(&content), plain, "at version {version}");
        }
    }

    #[test]
    fn a_copy_says_where_its_bytes_were_written() {
        let mut content = Content::default();
        content.write(ONE, 1000, 500, 1);
        let copied = content.copy(900, 5, 10_000);
        let mut other = Content::default();
        other.write(TWO, 0, 2000, 7);
        other.paste(&copied, |_| {});
        assert_eq!(other.size, 2000);
        let found = bytes(&other);
        assert_eq!(found[..5], payload(TWO, 7, 0..5));
        assert!(is_zero(&found[5..105]));
        assert_eq!(found[105..605], payload(ONE, 1, 1000..1500));
        assert_eq!(found[605..], payload(TWO, 7, 605..2000));
        assert!(content.copy(1500, 0, 10).is_empty());
    }
}
