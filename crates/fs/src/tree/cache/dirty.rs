//! The dirty pages of the cache: their index, and the nodes that only cleaning made dirty.

use super::{Cache, Entry, Key};
use std::ops::RangeFrom;

impl Cache {
    /// Number of dirty pages, nodes included.
    pub fn dirty_pages(&self) -> usize {
        self.dirty_data.len() + self.dirty_nodes.len()
    }

    /// Number of dirty nodes.
    pub fn dirty_node_pages(&self) -> usize {
        self.dirty_nodes.len()
    }

    /// Notes that only cleaning made the nodes `nids` dirty, by moving blocks that they point to.
    /// Any other change of a node removes the note about the node, and so does writing the node.
    pub(crate) fn note_moved_below(&mut self, nids: impl IntoIterator<Item = u32>) {
        for nid in nids {
            if self.peek(&Key::Node(nid)).is_some_and(Entry::is_dirty) {
                self.moved_below.insert(nid);
            }
        }
    }

    /// True if only cleaning made node `nid` dirty.
    pub(crate) fn is_moved_below(&self, nid: u32) -> bool {
        self.moved_below.contains(&nid)
    }

    /// Number of dirty pages, without nodes that only cleaning made dirty.
    pub(crate) fn changed_pages(&self) -> usize {
        self.dirty_pages() - self.moved_below.len()
    }

    /// Dirty blocks of `ino`, in ascending order.
    pub fn dirty_of(&self, ino: u32) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.dirty_data.range((ino, 0)..=(ino, u32::MAX)).map(|&(_, block)| block)
    }

    /// Dirty data blocks of `ino` in `blocks`, in ascending order.
    pub(crate) fn dirty_in(&self, ino: u32, blocks: RangeFrom<u32>) -> impl Iterator<Item = u32> {
        self.dirty_data.range((ino, blocks.start)..=(ino, u32::MAX)).map(|&(_, block)| block)
    }

    /// Dirty nodes of `ino`, ascending by node id.
    pub fn dirty_nodes_of(&self, ino: u32) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.dirty_nodes.range((ino, 0)..=(ino, u32::MAX)).map(|&(_, nid)| nid)
    }

    /// Files that have dirty data, in ascending order.
    pub fn dirty_files(&self) -> impl Iterator<Item = u32> + '_ {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let &(ino, _) = self.dirty_data.range((next?, 0)..).next()?;
            next = ino.checked_add(1);
            Some(ino)
        })
    }

    /// All dirty pages: data by file and block, then nodes by file and id.
    pub fn all_dirty(&self) -> impl Iterator<Item = Key> + '_ {
        let data = self.dirty_data.iter().map(|&(ino, block)| Key::Data(ino, block));
        data.chain(self.dirty_nodes.iter().map(|&(_, nid)| Key::Node(nid)))
    }

    pub(super) fn set_dirty(&mut self, at: u32, dirty: bool) {
        if let (false, Key::Node(nid)) = (self.moved_below.is_empty(), self.slot(at).key) {
            self.moved_below.remove(&nid);
        }
        let slot = self.slot_mut(at);
        if slot.entry.dirty != dirty {
            slot.entry.dirty = dirty;
            let (key, owner) = (slot.key, slot.entry.owner);
            let (set, item) = match key {
                Key::Data(ino, block) => (&mut self.dirty_data, (ino, block)),
                Key::Node(nid) => (&mut self.dirty_nodes, (owner, nid)),
            };
            if dirty {
                set.insert(item);
            } else {
                set.remove(&item);
                self.set_logged(at, None);
            }
        }
        self.relist(at);
    }
}
