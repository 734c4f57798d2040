//! Truncation, in steps that need no more pages than the cache can hold.

use crate::blocked::{Blocked, Fetch, NotApplied};
use crate::core::Core;
use crate::format::{HOLE, INODE_CHILDREN, INODE_POINTERS, LEAF_POINTERS, NO_NODE, Pointer};
use crate::tree::cache::Key;
use crate::tree::node::{
    as_index, as_index_mut, as_leaf, as_leaf_mut, children, children_mut, header,
};
use crate::tree::shape::Shape;
use crate::types::Ino;
use furrow_rt::PAGE_SIZE;
use smallvec::SmallVec;
use zerocopy::little_endian::U32;

/// Largest number of leaves in one step of a truncation, so that a step never needs more pages than
/// the cache can hold. A crash between two steps of a longer truncation leaves a size between the
/// old and the new one.
const LEAVES_PER_STEP: u64 = 64;

impl Core {
    /// The size of `ino` after one step of truncating it from `current` to `size`.
    fn step_size(current: u64, size: u64) -> u64 {
        let leaf = (LEAF_POINTERS * PAGE_SIZE) as u64;
        let step = LEAVES_PER_STEP * leaf;
        if current - size <= step {
            return size;
        }
        // End the step at the edge of a leaf, so that the next step finds whole leaves.
        (size.max(current - step)).next_multiple_of(leaf)
    }

    /// Makes `ino` shorter by one step. True once the file has at most `size` bytes; the caller
    /// repeats the step until then. No block after the new size remains in the cache or the tree.
    pub(crate) fn shrink(&mut self, ino: Ino, size: u64) -> Result<bool, NotApplied> {
        let inode = self.inode(ino)?;
        let (current, height) = (inode.head.size.get(), inode.head.height);
        if current <= size {
            return Ok(true);
        }
        // Blocks that no node reaches are holes, so a sparse file drops them in one step.
        let reached = self.reach(ino, height)?.saturating_mul(PAGE_SIZE as u64);
        let target = Core::step_size(current.min(reached.max(size)), size);
        let from = target.div_ceil(PAGE_SIZE as u64);
        let tail = (target % PAGE_SIZE as u64) as usize;
        // Prepare the change.
        if tail != 0 {
            let block = (target / PAGE_SIZE as u64) as u32;
            if self.data(ino, block)?.is_some() {
                self.prepare_path(ino, block)?;
            }
        }
        let doomed = self.doomed_nodes(ino, height, from)?;
        // Apply the change.
        if tail != 0 {
            let block = (target / PAGE_SIZE as u64) as u32;
            if self.data(ino, block)?.is_some() {
                self.data_mut(ino, block)[tail..].fill(0);
            }
        }
        self.cut_blocks(ino, height, from..current.div_ceil(PAGE_SIZE as u64), &doomed);
        let inode = self.inode_mut(ino);
        inode.head.size = target.into();
        if target == 0 {
            inode.head.height = 0;
            inode.head.blocks = 0.into();
            inode.slots.fill(Pointer::HOLE);
        }
        Ok(target == size)
    }

    /// The block after the last one that a node of `ino` covers.
    fn reach(&mut self, ino: Ino, height: u8) -> Result<u64, NotApplied> {
        fn last(slots: &[U32]) -> Option<(u64, u32)> {
            let slot = slots.iter().rposition(|child| child.get() != NO_NODE)?;
            Some((slot as u64, slots[slot].get()))
        }
        if height == 0 {
            return Ok(INODE_POINTERS as u64);
        }
        let mut level = height - 1;
        let Some((slot, mut nid)) = last(children(self.inode(ino)?)) else { return Ok(0) };
        let mut base = slot.saturating_mul(Shape::REAL.span(level));
        while level > 0 {
            // An earlier step may have left an index node without children.
            let Some((slot, child)) = last(&as_index(self.node(nid)?).slots) else {
                return Ok(base);
            };
            level -= 1;
            nid = child;
            base = base.saturating_add(slot.saturating_mul(Shape::REAL.span(level)));
        }
        Ok(base.saturating_add(Shape::REAL.span(level)))
    }

    /// The nodes that cover blocks from `from` on, parents first, each with its level and its first
    /// block. If some of these nodes are not in the cache, the error requests them.
    fn doomed_nodes(
        &mut self,
        ino: Ino,
        height: u8,
        from: u64,
    ) -> Result<Vec<(u32, u8, u64)>, NotApplied> {
        let mut found = Vec::new();
        if height == 0 {
            return Ok(found);
        }
        let span = Shape::REAL.span(height - 1);
        let mut queue: Vec<(u32, u8, u64)> = Vec::new();
        let first = (from / span).min(INODE_CHILDREN as u64) as usize;
        for (slot, child) in children(self.inode(ino)?).iter().enumerate().skip(first) {
            if child.get() != NO_NODE {
                queue.push((child.get(), height - 1, slot as u64 * span));
            }
        }
        let mut missing: SmallVec<[Fetch; 4]> = SmallVec::new();
        let mut seen = std::collections::BTreeSet::new();
        while let Some((nid, level, base)) = queue.pop() {
            if !seen.insert(nid) {
                return Err(self.corrupt(format!("node {nid} is twice in inode {ino}")));
            }
            match self.node(nid) {
                Ok(page) => {
                    let head = header(page);
                    if head.level != level || head.ino.get() != ino.0 {
                        let message = format!("node {nid}: not level {level} of inode {ino}");
                        return Err(self.corrupt(message));
                    }
                    if level > 0 {
                        let span = Shape::REAL.span(level - 1);
                        for (slot, child) in as_index(page).slots.iter().enumerate() {
                            let child_base = base + slot as u64 * span;
                            if child.get() != NO_NODE && child_base + span > from {
                                queue.push((child.get(), level - 1, child_base));
                            }
                        }
                    }
                    found.push((nid, level, base));
                }
                Err(NotApplied::Blocked(Blocked::Load(fetch))) => missing.extend(fetch),
                Err(stop) => return Err(stop),
            }
        }
        if missing.is_empty() { Ok(found) } else { Err(Blocked::Load(missing).into()) }
    }

    /// Removes `blocks` of `ino`, the last ones of the file, from the cache and the tree. `nodes`
    /// are the nodes that cover these blocks, from [`Core::doomed_nodes`].
    fn cut_blocks(
        &mut self,
        ino: Ino,
        height: u8,
        blocks: std::ops::Range<u64>,
        nodes: &[(u32, u8, u64)],
    ) {
        let from = blocks.start;
        let mut gone: Vec<u32> = Vec::new();
        // Dirty blocks that never got an address are known only to the cache.
        let block = |at: u64| at.min(u64::from(u32::MAX)) as u32;
        let first = block(from);
        let removed_dirty: Vec<u32> = self.cache.dirty_in(ino.0, first..).collect();
        self.cache.remove_range(ino.0, first..block(blocks.end));
        let mut blocks = 0;
        for block in removed_dirty {
            let holder = self.grow(ino, block);
            if self.slot(holder).addr.get() == HOLE {
                blocks += 1;
            }
        }
        if height == 0 {
            let inode = self.inode_mut(ino);
            for slot in inode.slots.iter_mut().skip(from.min(u64::from(u32::MAX)) as usize) {
                if slot.addr.get() != HOLE {
                    gone.push(slot.addr.get());
                    *slot = Pointer::HOLE;
                }
            }
        }
        for &(nid, level, base) in nodes {
            if level == 0 {
                let entry = self.cache.peek(&Key::Node(nid)).expect("invariant: prepared");
                let page = entry.page();
                let first = from.saturating_sub(base).min(LEAF_POINTERS as u64) as usize;
                let slots = as_leaf(page).slots[first..].iter();
                gone.extend(slots.map(|p| p.addr.get()).filter(|a| *a != HOLE));
                if base < from {
                    as_leaf_mut(self.node_mut(nid)).slots[first..].fill(Pointer::HOLE);
                }
            } else if base < from {
                let span = Shape::REAL.span(level - 1);
                let keep = (from - base).div_ceil(span) as usize;
                as_index_mut(self.node_mut(nid)).slots[keep..].fill(NO_NODE.into());
            }
        }
        if height > 0 {
            let span = Shape::REAL.span(height - 1);
            let keep = from.div_ceil(span).min(INODE_CHILDREN as u64) as usize;
            children_mut(self.inode_mut(ino))[keep..].fill(NO_NODE.into());
        }
        for addr in &gone {
            self.invalidate(*addr);
        }
        for &(nid, _, base) in nodes {
            if base >= from {
                self.drop_node(nid);
            }
        }
        self.uncount_blocks(ino, gone.len() as u64 + blocks);
    }
}
