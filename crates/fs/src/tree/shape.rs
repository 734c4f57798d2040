//! Index arithmetic of the block-pointer tree, which is as high as the file needs.
//!
//! The inode has an area of slots. At *height* 0 they are direct pointers to data
//! (`{address, crc}`, [`Shape::inode_ptrs`] of them); at height h ≥ 1 they are node ids
//! ([`Shape::inode_nids`]) of nodes of *level* h − 1. A level-0 node is a *leaf* with
//! [`Shape::leaf_ptrs`] pointers; a node of level l ≥ 1 is an *index* node with
//! [`Shape::index_nids`] ids of nodes of level l − 1. A node is named by its level and its *base*,
//! the first file block it covers.
//!
//! Growth keeps every node in its place. From height 0 to 1, the inode's pointers become the first
//! entries of leaf 0. From height h ≥ 1 to h + 1, the inode's ids become the first entries of one
//! new index node of level h. Hence `inode_ptrs ≤ leaf_ptrs` and `inode_nids ≤ index_nids`.
//!
//! Not here: nodes themselves and their bytes. No function here can panic or loop endlessly for any
//! `height`, `level` or block number; arithmetic saturates.

use smallvec::SmallVec;
use std::ops::Range;

/// Largest file, in blocks: 2^32 blocks of 4 KiB are 16 TiB. Block numbers fit in 32 bits.
pub const MAX_BLOCKS: u64 = 1 << 32;
/// Height at which [`Shape::REAL`] covers [`MAX_BLOCKS`].
pub const MAX_HEIGHT: u8 = 3;

/// Slot numbers on the way from the inode downwards.
pub type Path = SmallVec<[u32; 5]>;

/// The four fan-outs of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of direct pointers in an inode of height 0.
    pub inode_ptrs: u32,
    /// Number of node ids in an inode of height ≥ 1.
    pub inode_nids: u32,
    /// Number of pointers in a leaf.
    pub leaf_ptrs: u32,
    /// Number of node ids in an index node.
    pub index_nids: u32,
}

/// Identifies a node by its place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePos {
    /// Level of the node: 0 for a leaf.
    pub level: u8,
    /// First file block that the node covers.
    pub base: u64,
}

/// One step of a truncation: `node` loses its slots from `keep` on, with everything below them. If
/// the subtree at slot `keep − 1` must be trimmed too, the next [`Trim`] does that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trim {
    /// The node that loses slots, or `None` for the inode.
    pub node: Option<NodePos>,
    /// Number of slots that stay.
    pub keep: u32,
}

impl Shape {
    /// The shape of format version 1.
    pub const REAL: Shape =
        Shape { inode_ptrs: 448, inode_nids: 896, leaf_ptrs: 504, index_nids: 1008 };

    /// Number of blocks below one node of `level`.
    pub fn span(&self, level: u8) -> u64 {
        let fan = u64::from(self.index_nids);
        fan.saturating_pow(u32::from(level)).saturating_mul(u64::from(self.leaf_ptrs))
    }

    /// Largest number of blocks in a file of `height` (may exceed [`MAX_BLOCKS`]).
    pub fn capacity(&self, height: u8) -> u64 {
        match height {
            0 => u64::from(self.inode_ptrs),
            h => self.span(h - 1).saturating_mul(u64::from(self.inode_nids)),
        }
    }

    /// The smallest height whose tree covers `block`.
    pub fn height_for(&self, block: u64) -> u8 {
        (0..u8::MAX)
            .find(|&h| block < self.capacity(h) || self.capacity(h) == u64::MAX)
            .unwrap_or(u8::MAX)
    }

    /// Number of slots in the inode at `height`.
    pub fn inode_slots(&self, height: u8) -> u32 {
        if height == 0 { self.inode_ptrs } else { self.inode_nids }
    }

    /// Number of slots in a node of `level`.
    pub fn node_slots(&self, level: u8) -> u32 {
        if level == 0 { self.leaf_ptrs } else { self.index_nids }
    }

    /// The `height + 1` slot numbers on the way to `block`, from the inode's slot to the
    /// slot of the pointer in the leaf (at height 0, in the inode). `block` must be
    /// below `capacity(height)`.
    pub fn path(&self, height: u8, block: u64) -> Path {
        let mut path = Path::new();
        let mut rest = block;
        for level in (0..height).rev() {
            let span = self.span(level);
            path.push((rest / span).min(u64::from(u32::MAX)) as u32);
            rest %= span;
        }
        path.push(rest as u32);
        path
    }

    /// First block of the leaf that covers `block` (at height ≥ 1).
    pub fn leaf_base(&self, block: u64) -> u64 {
        block - block % u64::from(self.leaf_ptrs)
    }

    /// The node of `level` that covers `block`.
    pub fn node_at(&self, level: u8, block: u64) -> NodePos {
        NodePos { level, base: block - block % self.span(level) }
    }

    /// The slot that leads to `block`, in the node of `level` that covers `block`.
    pub fn slot_in(&self, level: u8, block: u64) -> u32 {
        let below = if level == 0 { 1 } else { self.span(level - 1) };
        (block % self.span(level) / below) as u32
    }

    /// The slot that leads to `block`, in the inode at `height`.
    pub fn slot_in_inode(&self, height: u8, block: u64) -> u32 {
        let below = if height == 0 { 1 } else { self.span(height - 1) };
        (block / below).min(u64::from(u32::MAX)) as u32
    }

    /// The file blocks that `node` covers.
    pub fn covered(&self, node: NodePos) -> Range<u64> {
        node.base..node.base.saturating_add(self.span(node.level))
    }

    /// The node in inode slot `slot` at `height`; `None` at height 0, where slots are pointers.
    pub fn inode_child(&self, height: u8, slot: u32) -> Option<NodePos> {
        let level = height.checked_sub(1)?;
        Some(NodePos { level, base: self.span(level).saturating_mul(u64::from(slot)) })
    }

    /// The node in slot `slot` of index node `node`; `None` if `node` is a leaf.
    pub fn child(&self, node: NodePos, slot: u32) -> Option<NodePos> {
        let level = node.level.checked_sub(1)?;
        let below = self.span(level).saturating_mul(u64::from(slot));
        Some(NodePos { level, base: node.base.saturating_add(below) })
    }

    /// The parent of `node` in a file of `height` (`None` for the inode), and the slot of the
    /// parent that leads to `node`.
    pub fn parent(&self, height: u8, node: NodePos) -> (Option<NodePos>, u32) {
        if u32::from(node.level) + 1 >= u32::from(height) {
            (None, self.slot_in_inode(height, node.base))
        } else {
            let level = node.level + 1;
            (Some(self.node_at(level, node.base)), self.slot_in(level, node.base))
        }
    }

    /// True if `node` can exist in a file of `height`: its base is valid, and the file covers it.
    pub fn is_valid(&self, height: u8, node: NodePos) -> bool {
        node.level < height
            && node.base.is_multiple_of(self.span(node.level))
            && node.base < self.capacity(height)
    }

    /// The trims that remove block `from` and all later blocks, from the inode downwards. The nodes
    /// listed after the inode have blocks before and after `from`, so each of these nodes keeps at
    /// least one slot. A node whose blocks are all removed is not listed: it is below a slot that
    /// another trim removes.
    pub fn trims(&self, height: u8, from: u64) -> SmallVec<[Trim; 5]> {
        let mut trims = SmallVec::new();
        if from >= self.capacity(height) {
            return trims;
        }
        let mut node = None;
        let mut below = match height {
            0 => 1,
            h => self.span(h - 1),
        };
        let mut rest = from;
        for level in (0..=height).rev() {
            let (slot, inside) = (rest / below, rest % below);
            let keep = slot as u32 + u32::from(inside != 0);
            trims.push(Trim { node, keep });
            if inside == 0 || level == 0 {
                break;
            }
            node = Some(self.node_at(level - 1, from));
            rest = inside;
            below = if level == 1 { 1 } else { self.span(level - 2) };
        }
        trims
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn real_shape_covers_sixteen_tebibytes() {
        let s = Shape::REAL;
        assert!(s.inode_ptrs <= s.leaf_ptrs && s.inode_nids <= s.index_nids);
        assert_eq!([0, 447, 448, 451_583, 451_584].map(|b| s.height_for(b)), [0, 0, 1, 1, 2]);
        assert_eq!(s.height_for(MAX_BLOCKS - 1), MAX_HEIGHT);
        assert!(s.capacity(MAX_HEIGHT) >= MAX_BLOCKS && s.capacity(MAX_HEIGHT - 1) < MAX_BLOCKS);
        assert_eq!(s.path(0, 447).as_slice(), [447]);
        assert_eq!(s.path(1, 448).as_slice(), [0, 448]);
        assert_eq!(s.path(2, 504 * 1008 + 504 * 3 + 7).as_slice(), [1, 3, 7]);
    }

    #[test]
    fn absurd_numbers_neither_panic_nor_loop() {
        let s = Shape::REAL;
        for height in [0, 1, 3, 9, 200, 255] {
            for block in [0, 1, MAX_BLOCKS, u64::MAX] {
                s.path(height, block);
                s.trims(height, block);
                s.slot_in_inode(height, block);
                s.slot_in(height, block);
                let node = s.node_at(height, block);
                s.covered(node);
                s.child(node, u32::MAX);
                s.inode_child(height, u32::MAX);
                s.parent(height, NodePos { level: height, base: block });
                s.is_valid(height, NodePos { level: height, base: block });
            }
        }
        assert!(s.height_for(u64::MAX) < 10);
    }

    /// (holder, slot) pairs from the inode (`None`) downwards.
    type Trail = Vec<(Option<NodePos>, u32)>;

    /// Builds the trail and path of each block by walking the tree, without division.
    fn build(s: Shape, height: u8) -> BTreeMap<u64, (Trail, Path)> {
        fn fill(
            s: Shape,
            level: Option<u8>,
            holder: Option<NodePos>,
            next: &mut u64,
            trail: &mut Trail,
            out: &mut BTreeMap<u64, (Trail, Path)>,
            slots: u32,
        ) {
            for slot in 0..slots {
                trail.push((holder, slot));
                match level {
                    None => {
                        let path = trail.iter().map(|&(_, slot)| slot).collect();
                        out.insert(*next, (trail.clone(), path));
                        *next += 1;
                    }
                    Some(l) => {
                        let node = NodePos { level: l, base: *next };
                        let slots = if l == 0 { s.leaf_ptrs } else { s.index_nids };
                        fill(s, l.checked_sub(1), Some(node), next, trail, out, slots);
                    }
                }
                trail.pop();
            }
        }
        let mut out = BTreeMap::new();
        let slots = if height == 0 { s.inode_ptrs } else { s.inode_nids };
        fill(s, height.checked_sub(1), None, &mut 0, &mut Vec::new(), &mut out, slots);
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arithmetic_agrees_with_a_tree_built_by_hand(
            leaf in 2u32..5, ptrs in 1u32..5, index in 2u32..4, nids in 1u32..4, height in 0u8..4,
            cut in 0u64..400,
        ) {
            let s = Shape {
                inode_ptrs: ptrs.min(leaf), inode_nids: nids.min(index),
                leaf_ptrs: leaf, index_nids: index,
            };
            let tree = build(s, height);
            prop_assert_eq!(tree.len() as u64, s.capacity(height));
            for (&block, (trail, path)) in &tree {
                prop_assert_eq!(&s.path(height, block), path);
                let h = s.height_for(block);
                prop_assert!(h <= height && block < s.capacity(h));
                prop_assert!(h == 0 || block >= s.capacity(h - 1) || s.capacity(h - 1) > block);
                prop_assert_eq!(s.slot_in_inode(height, block), path[0]);
                let mut above = None;
                for (depth, &(holder, slot)) in trail.iter().enumerate() {
                    let child = match holder {
                        None => s.inode_child(height, slot),
                        Some(node) => {
                            prop_assert_eq!(s.node_at(node.level, block), node);
                            prop_assert_eq!(s.slot_in(node.level, block), slot);
                            prop_assert!(s.covered(node).contains(&block));
                            prop_assert!(s.is_valid(height, node));
                            prop_assert_eq!(s.parent(height, node), above.unwrap());
                            s.child(node, slot)
                        }
                    };
                    above = Some((holder, slot));
                    prop_assert_eq!(child, trail.get(depth + 1).and_then(|&(node, _)| node));
                }
                if height > 0 {
                    let leaf = trail.last().unwrap().0.unwrap();
                    prop_assert_eq!(s.leaf_base(block), leaf.base);
                }
            }
            // Truncation: a block must stay exactly if no trim drops a slot on its path.
            let trims = s.trims(height, cut);
            for (&block, (trail, _)) in &tree {
                let gone = trail.iter().any(|&(holder, slot)| {
                    trims.iter().any(|c| c.node == holder && slot >= c.keep)
                });
                prop_assert_eq!(gone, block >= cut, "block {} cut at {}: {:?}", block, cut, trims);
            }
            prop_assert!(trims.iter().skip(1).all(|c| c.keep > 0));
        }

        #[test]
        fn growth_keeps_every_node_in_place(
            leaf in 2u32..5, ptrs in 1u32..5, index in 2u32..4, nids in 1u32..4, height in 0u8..4,
        ) {
            let s = Shape {
                inode_ptrs: ptrs.min(leaf), inode_nids: nids.min(index),
                leaf_ptrs: leaf, index_nids: index,
            };
            for block in 0..s.capacity(height) {
                let (low, high) = (s.path(height, block), s.path(height + 1, block));
                // The path must gain one slot 0 at the front and be otherwise unchanged.
                prop_assert_eq!(high[0], 0);
                prop_assert_eq!(&high[1..], &low[..]);
            }
        }
    }
}
