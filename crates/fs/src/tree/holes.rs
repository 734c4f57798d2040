//! Holes: making them, filling them, finding them.
//!
//! A block that was never written takes no space and reads as zeros. *Punching* frees the space of
//! whole blocks and zeroes the partial blocks at both ends. *Filling* writes zeros into holes, so
//! that later writes there only replace blocks: on a drive without overwrites in place, this is all
//! that preallocation can do. No blocks are kept past the end of the file.
//!
//! Punching and filling run in steps, and each step is applied completely. The file is consistent
//! between two steps, and a crash may leave only some of the steps done.

use crate::alloc::space::Claim;
use crate::blocked::{Blocked, Lack, NotApplied};
use crate::core::Core;
use crate::format::{HOLE, INODE_POINTERS, LEAF_POINTERS, NO_NODE, Pointer};
use crate::tree::cache::{Entry, Key};
use crate::tree::node::{as_index, as_leaf, children, stamp};
use crate::tree::shape::Shape;
use crate::types::{Ino, Seek};
use furrow_log::record::crc32c;
use furrow_rt::PAGE_SIZE;
use furrow_zone::{Error, ErrorKind};
use std::ops::Range;

const PAGE: u64 = PAGE_SIZE as u64;
/// Largest number of blocks in one step of punching.
const PUNCH_BLOCKS: u64 = 4 * LEAF_POINTERS as u64;
/// Largest number of blocks in one step of filling holes or searching for one.
const STEP_BLOCKS: u64 = 512;
/// Largest number of leaves that one step of a search for data reads.
const LEAVES_LOOKED_AT: u32 = 8;

/// The result of one step of a search.
pub(crate) enum Sought {
    /// The search has ended at this position: a byte offset for [`Core::seek`], a block
    /// for [`Core::next_block`].
    Found(u64),
    /// The search has reached the end without a result.
    None,
    /// There is no result before this block: the search must continue from here.
    More(u64),
}

impl Core {
    /// Searches `ino` from block `from` on for the first block that is not a hole, whether it is on
    /// the drive or only in the cache. One call reads only a few leaves, because a long range may
    /// consist of holes.
    pub(crate) fn next_block(&mut self, ino: Ino, from: u64) -> Result<Sought, NotApplied> {
        let dirty = u32::try_from(from).ok();
        let dirty = dirty.and_then(|from| self.cache.dirty_in(ino.0, from..).next());
        let dirty = dirty.map_or(u64::MAX, u64::from);
        let mut at = from;
        for _ in 0..LEAVES_LOOKED_AT {
            if at >= dirty {
                return Ok(Sought::Found(dirty));
            }
            let inode = self.inode(ino)?;
            let used = |slots: &[Pointer], first: u64| {
                let slots = slots.iter().enumerate().skip(first as usize);
                let mut used = slots.filter(|(_, pointer)| pointer.addr.get() != HOLE);
                used.next().map(|(slot, _)| slot as u64)
            };
            if inode.head.height == 0 {
                let found = used(&inode.slots, at).map_or(dirty, |slot| slot.min(dirty));
                return Ok(if found == u64::MAX { Sought::None } else { Sought::Found(found) });
            }
            let Some((block, leaf)) = self.leaf_from(ino, at)? else {
                return Ok(if dirty == u64::MAX { Sought::None } else { Sought::Found(dirty) });
            };
            let base = Shape::REAL.leaf_base(block);
            // The slots of a leaf are adjacent: count one unit of work for each line of the
            // processor's cache.
            self.cache.look((LEAF_POINTERS / 8) as u64);
            let page = self.node(leaf)?;
            if crate::tree::node::header(page).level != 0 {
                return Err(self.corrupt(format!("node {leaf}: not a leaf of inode {ino}")));
            }
            if let Some(slot) = used(&as_leaf(page).slots, block - base) {
                return Ok(Sought::Found((base + slot).min(dirty)));
            }
            at = base + LEAF_POINTERS as u64;
        }
        Ok(if at >= dirty { Sought::Found(dirty) } else { Sought::More(at) })
    }

    /// The first block from `from` on that has a slot in a leaf or in the inode.
    fn slotted(&mut self, ino: Ino, from: u64) -> Result<Option<u64>, NotApplied> {
        let height = self.inode(ino)?.head.height;
        if height == 0 {
            return Ok((from < INODE_POINTERS as u64).then_some(from));
        }
        Ok(self.leaf_from(ino, from)?.map(|(block, _)| block))
    }

    /// In a file with leaves, the first block from `from` on that has a slot in a leaf, and that
    /// leaf.
    fn leaf_from(&mut self, ino: Ino, from: u64) -> Result<Option<(u64, u32)>, NotApplied> {
        let height = self.inode(ino)?.head.height;
        let slots: Vec<u32> = children(self.inode(ino)?).iter().map(|child| child.get()).collect();
        self.slotted_below(height - 1, 0, &slots, from)
    }

    fn slotted_below(
        &mut self,
        level: u8,
        base: u64,
        slots: &[u32],
        from: u64,
    ) -> Result<Option<(u64, u32)>, NotApplied> {
        self.cache.look((slots.len() / 16) as u64);
        let span = Shape::REAL.span(level);
        let first = from.saturating_sub(base) / span;
        for (slot, nid) in slots.iter().enumerate().skip(first as usize) {
            let start = base + slot as u64 * span;
            if *nid == NO_NODE {
                continue;
            }
            if level == 0 {
                return Ok(Some((from.max(start), *nid)));
            }
            let page = self.node(*nid)?;
            if crate::tree::node::header(page).level != level {
                let found = crate::tree::node::header(page).level;
                return Err(self.corrupt(format!("node {nid}: level {found}, expected {level}")));
            }
            let below: Vec<u32> = as_index(page).slots.iter().map(|child| child.get()).collect();
            if let Some(found) = self.slotted_below(level - 1, start, &below, from.max(start))? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// True if `block` of `ino` is not a hole.
    pub(crate) fn has_block(&mut self, ino: Ino, block: u32) -> Result<bool, NotApplied> {
        if self.cache.peek(&Key::Data(ino.0, block)).is_some_and(Entry::is_dirty) {
            return Ok(true);
        }
        Ok(self.pointer(ino, block)?.addr.get() != HOLE)
    }

    /// The size of the regular file `ino`, after the checks that precede a change.
    fn size_to_change(&mut self, ino: Ino) -> Result<u64, NotApplied> {
        self.writable()?;
        let attr = self.getattr(ino)?;
        crate::tree::file::check_regular(&attr)?;
        self.throttle()?;
        Ok(attr.size)
    }

    fn touch_content(&mut self, ino: Ino) {
        let now = stamp(self.now());
        let head = &mut self.inode_mut(ino).head;
        (head.mtime, head.ctime) = (now, now);
    }

    /// Applies one step of punching `range`, in bytes. Returns the start of the next step, or the
    /// end of `range` after the last step.
    pub(crate) fn punch(&mut self, ino: Ino, range: Range<u64>) -> Result<u64, NotApplied> {
        let size = self.size_to_change(ino)?;
        let end = range.end.min(size.next_multiple_of(PAGE));
        if range.start >= end {
            return Ok(range.end);
        }
        // Zero a part of a block: the front of the range, or what is left after its whole blocks.
        let (block, within) = (range.start / PAGE, range.start % PAGE);
        if within != 0 || end - range.start < PAGE {
            let stop = end.min((block + 1) * PAGE);
            self.zero_part(ino, block as u32, within as usize..(stop - block * PAGE) as usize)?;
            return Ok(if stop == end { range.end } else { stop });
        }
        let last = end / PAGE;
        let Some(first) = self.slotted(ino, block)?.filter(|first| *first < last) else {
            self.inode(ino)?;
            self.reserve(0, 1, Claim::Removal)?;
            self.touch_content(ino);
            return Ok(if last * PAGE == end { range.end } else { last * PAGE });
        };
        let stop = last.min(first.saturating_add(PUNCH_BLOCKS));
        self.drop_blocks(ino, first..stop)?;
        Ok(if stop * PAGE == end { range.end } else { stop * PAGE })
    }

    fn zero_part(&mut self, ino: Ino, block: u32, part: Range<usize>) -> Result<(), NotApplied> {
        let present = self.data(ino, block)?.is_some();
        if present {
            self.prepare_path(ino, block)?;
        }
        self.reserve(1, 4, Claim::Removal)?;
        // Apply the change.
        if present {
            self.data_mut(ino, block)[part].fill(0);
        }
        self.touch_content(ino);
        Ok(())
    }

    /// Turns whole blocks into holes.
    fn drop_blocks(&mut self, ino: Ino, blocks: Range<u64>) -> Result<(), NotApplied> {
        let mut doomed = Vec::new();
        let mut at = blocks.start;
        while let Some(first) = self.slotted(ino, at)?.filter(|first| *first < blocks.end) {
            let leaf = Shape::REAL.leaf_base(first) + LEAF_POINTERS as u64;
            let height = self.inode(ino)?.head.height;
            let end = if height == 0 { INODE_POINTERS as u64 } else { leaf }.min(blocks.end);
            for block in first..end {
                let block = block as u32;
                let Some(holder) = self.holder(ino, block)? else { continue };
                let dirty = |entry: &Entry| entry.is_dirty();
                if self.slot(holder).addr.get() != HOLE
                    || self.cache.peek(&Key::Data(ino.0, block)).is_some_and(dirty)
                {
                    doomed.push((block, holder));
                }
            }
            at = end;
            if end >= blocks.end || height == 0 {
                break;
            }
        }
        // Reserve for each node that loses a pointer, and for the inode: in a sparse file each
        // block may have a node of its own.
        let mut holders: Vec<u32> = doomed.iter().map(|(_, holder)| holder.nid).collect();
        holders.dedup();
        self.reserve(0, holders.len() as u32 + 1, Claim::Removal)?;
        // Apply the change.
        for (block, holder) in &doomed {
            self.cache.remove(&Key::Data(ino.0, *block));
            let addr = self.slot(*holder).addr.get();
            if addr != HOLE {
                self.invalidate(addr);
                self.set_slot(*holder, Pointer::HOLE);
            }
        }
        self.uncount_blocks(ino, doomed.len() as u64);
        self.touch_content(ino);
        Ok(())
    }

    /// Applies one step of filling the holes of `range`, in bytes; with `extend`, the step
    /// also extends the file. Returns the start of the next step, or the end of `range` after
    /// the last step.
    pub(crate) fn fill(
        &mut self,
        ino: Ino,
        range: Range<u64>,
        extend: bool,
    ) -> Result<u64, NotApplied> {
        let size = self.size_to_change(ino)?;
        self.check_size(range.end)?;
        let limit = if extend { range.end } else { range.end.min(size) };
        if range.start >= limit {
            return Ok(range.end);
        }
        let last = limit.div_ceil(PAGE);
        let first = range.start / PAGE;
        let stop = last.min(first + STEP_BLOCKS);
        let (mut holes, mut nodes) = (Vec::new(), 0);
        for block in first..stop {
            if !self.has_block(ino, block as u32)? {
                nodes += self.prepare_path(ino, block as u32)?;
                holes.push(block as u32);
            }
        }
        let leaves = holes.len() as u32 / LEAF_POINTERS as u32 + 2;
        let nodes = nodes.min(leaves + 6);
        let added = holes.len() as u64 + u64::from(nodes);
        self.reserve(holes.len() as u32, nodes + 1, Claim::User(added))?;
        // Apply the change.
        let (zero, crc) = (self.tree.zero.clone(), crc32c(self.tree.zero.bytes()));
        for block in &holes {
            self.replace_data(ino, *block, zero.clone(), Some(crc));
        }
        let end = limit.min(stop * PAGE);
        let now = stamp(self.now());
        let head = &mut self.inode_mut(ino).head;
        head.ctime = now;
        if end > size {
            head.size = end.into();
            head.mtime = now;
        }
        Ok(if stop == last { range.end } else { end })
    }

    /// Refuses to fill `bytes` bytes of `ino` if the drive certainly lacks the space.
    pub(crate) fn check_fill(&mut self, ino: Ino, bytes: u64) -> Result<(), NotApplied> {
        let has = self.getattr(ino)?.blocks;
        if bytes / PAGE > self.statfs().blocks_available.saturating_add(has) {
            if self.cache.dirty_pages() > 0 {
                // Retry once dirty blocks are written: until then they are counted in addition to
                // the blocks that they replace.
                return Err(Blocked::Space(Lack::Blocks).into());
            }
            let message = format!("no space left on the drive for {bytes} bytes");
            return Err(NotApplied::Failed(Error::new(ErrorKind::NoSpace, message)));
        }
        Ok(())
    }

    /// Applies one step of searching for data or a hole at or after `offset`; blocks before `from`
    /// were searched already.
    pub(crate) fn seek(
        &mut self,
        ino: Ino,
        offset: u64,
        from: u64,
        what: Seek,
    ) -> Result<Sought, NotApplied> {
        let attr = self.getattr(ino)?;
        crate::tree::file::check_regular(&attr)?;
        if offset >= attr.size {
            return Ok(Sought::None);
        }
        let end = attr.size.div_ceil(PAGE);
        let mut block = from.max(offset / PAGE);
        let stop = end.min(block.saturating_add(STEP_BLOCKS));
        if what == Seek::Data {
            return Ok(match self.next_block(ino, block)? {
                Sought::Found(first) if first < end => Sought::Found(offset.max(first * PAGE)),
                Sought::More(first) if first < end => Sought::More(first),
                _ => Sought::None,
            });
        }
        while block < stop {
            if !self.has_block(ino, block as u32)? {
                return Ok(Sought::Found(offset.max(block * PAGE)));
            }
            block += 1;
        }
        Ok(if block < end { Sought::More(block) } else { Sought::Found(attr.size) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod tests {
    use super::*;
    use crate::{Fs, MkfsOptions, MountOptions, NewNode, WriteData};
    use furrow_emu::{Emulator, Medium, Options};
    use furrow_rt::{Config, Rt};
    use furrow_zone::Result;
    use std::rc::Rc;

    /// In a sparse file, each block may have a leaf of its own: punching must reserve space for all
    /// of these leaves.
    #[test]
    fn punching_a_sparse_file_asks_for_every_node_it_changes() {
        let rt = Rt::new(Config::simulated(1));
        let spec = "zones=64,zone-size=1MiB,max-active=14,channels=1";
        let geometry = furrow_zone::spec::parse_geometry(spec).unwrap();
        let medium = Medium::memory(&geometry);
        let drive = Rc::new(Emulator::new(&rt, geometry, medium, Options::fast()).unwrap());
        let on = rt.clone();
        let done: Result<()> = rt.block_on(async move {
            Fs::format(&on, drive.clone(), &MkfsOptions::default()).await?;
            let fs = Fs::mount(&on, drive.clone(), MountOptions::default()).await?;
            let ino = fs.create(Ino::ROOT, b"sparse", &NewNode::file()).await?.ino;
            for leaf in 0..32 {
                let at = leaf * LEAF_POINTERS as u64 * PAGE;
                fs.write(ino, WriteData::copy(fs.pool(), at, b"x")).await?;
            }
            fs.sync().await?;
            let core = &mut *fs.0.core.borrow_mut();
            assert_eq!(core.cache.dirty_pages(), 0);
            // First leave spare space that suffices only for the leaves, then space for the
            // inode too.
            let beyond = (core.alloc.space_left() - core.recovery_needs()) as u32;
            core.alloc.keep_for_cleaning(beyond - 32);
            let blocks = 32 * LEAF_POINTERS as u64;
            let refused = core.drop_blocks(ino, 0..blocks);
            assert!(matches!(refused, Err(NotApplied::Blocked(Blocked::Space(_)))), "{refused:?}");
            core.alloc.keep_for_cleaning(beyond - 33);
            assert!(core.drop_blocks(ino, 0..blocks).is_ok());
            assert_eq!(core.cache.dirty_pages(), 33, "32 leaves and the inode");
            Ok(())
        });
        done.unwrap();
        rt.clear();
    }
}
