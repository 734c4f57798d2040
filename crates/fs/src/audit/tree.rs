//! Audits of the tree: the pages in the cache against the tables, and open or removed files.

use super::alloc::is_set;
use crate::core::Core;
use crate::format::{HOLE, LEAF_POINTERS, LEVEL_INODE, NO_NODE, Pointer};
use crate::tree::cache::Key;
use crate::tree::node::{as_index, as_inode, as_leaf, children, header};
use crate::tree::shape::Shape;
use crate::types::Ino;
use furrow_log::audit::{broken, equal, expect};
use furrow_rt::Page;
use furrow_zone::Result;

/// The pointers to blocks in a node; none in an index node or an attribute node.
fn slots(page: &Page) -> &[Pointer] {
    match header(page).level {
        LEVEL_INODE if as_inode(page).head.height == 0 => &as_inode(page).slots,
        0 => &as_leaf(page).slots,
        _ => &[],
    }
}

impl Core {
    /// Checks pages in the cache against NAT and SIT, and orphans and open files against inodes.
    pub(super) fn audit_tree(&self) -> Result<()> {
        let (mut nodes, mut valid) = (0, 0);
        for (key, entry) in self.cache.all() {
            match key {
                Key::Data(ino, block) => {
                    let account = format_args!("owner of the page of block {block}");
                    equal(account, self.tables.nat().get(ino).ino.get(), ino)?;
                }
                Key::Node(nid) => {
                    let ino = self.tables.nat().get(nid).ino.get();
                    equal(format_args!("owner of the page of node {nid}"), ino, entry.owner())?;
                    nodes += 1;
                    valid += self.audit_page(nid, entry.page())?;
                }
            }
        }
        let files = self.tree.files();
        for ino in files.orphans() {
            let account = format_args!("orphans, inode {ino}");
            equal(account, ino.0, self.tables.nat().get(ino.0).ino.get())?;
        }
        for ino in files.open() {
            let account = format_args!("open, inode {ino}");
            equal(account, ino.0, self.tables.nat().get(ino.0).ino.get())?;
        }
        // Only if all nodes are in memory are the pointers to all valid blocks known.
        let all = self.tables.nat().iter().filter(|(_, entry)| entry.ino.get() != 0).count();
        if nodes == all {
            let placed = self
                .tables
                .nat()
                .iter()
                .filter(|(_, entry)| entry.ino.get() != 0 && entry.addr.get() != HOLE);
            let named = placed.count() as u64 + valid;
            equal("space.valid, by all nodes", named, self.alloc.valid())?;
        }
        Ok(())
    }

    /// Checks a node in memory: an inode must be an orphan exactly if it has no links, and the
    /// blocks that the node points to must be valid. Returns the number of these blocks.
    fn audit_page(&self, nid: u32, page: &Page) -> Result<u64> {
        let head = header(page);
        equal(format_args!("number of the page of node {nid}"), nid, head.nid.get())?;
        if head.level == LEVEL_INODE {
            let (ino, links) = (Ino(nid), as_inode(page).head.links.get());
            let account = format_args!("orphans, inode {ino} of {links} links");
            match self.tree.files().is_orphan(ino) {
                true => expect(account, links == 0, "one without links"),
                false => expect(account, links > 0, "that it is among them"),
            }?;
        }
        let mut count = 0;
        for pointer in slots(page).iter().filter(|pointer| pointer.addr.get() != HOLE) {
            let addr = pointer.addr.get();
            let account =
                format_args!("SitEntry::map of the block at {addr}, a block of node {nid}");
            let Some((_, segment, block)) = self.alloc.segment_of(addr) else {
                return Err(broken(account, "expected an address of the main area"));
            };
            expect(account, is_set(&self.alloc.sit().get(segment), block), "a set bit")?;
            count += 1;
        }
        Ok(count)
    }

    /// Whether node `node` still names the block at `addr` in the slot that a summary calls `slot`,
    /// as `owner_of` decides. `None` if the answer needs a node that is not in memory.
    pub(super) fn names_block(&self, node: u32, slot: u16, addr: u32) -> Option<bool> {
        let page = self.cache.audited(&Key::Node(node))?.page();
        let head = header(page);
        let at = match head.level {
            0 if usize::from(slot) < LEAF_POINTERS => as_leaf(page).slots[usize::from(slot)],
            LEVEL_INODE => return self.first_leaf_names(page, slot, addr),
            _ => return Some(false),
        };
        Some(at.addr.get() == addr)
    }

    /// Whether the file of `inode` still names the block at `addr` as its block `slot`. The first
    /// pointers of a file start in its inode and move to leaves when the file grows.
    fn first_leaf_names(&self, inode: &Page, slot: u16, addr: u32) -> Option<bool> {
        let inode = as_inode(inode);
        let height = inode.head.height;
        let path = Shape::REAL.path(height, u64::from(slot));
        if height == 0 {
            return Some(inode.slots.get(path[0] as usize)?.addr.get() == addr);
        }
        let mut nid = children(inode)[path[0] as usize].get();
        for (depth, slot) in path[1..].iter().enumerate() {
            if nid == NO_NODE {
                return Some(false);
            }
            let page = self.cache.audited(&Key::Node(nid))?.page();
            if usize::from(height) == depth + 1 {
                return Some(as_leaf(page).slots[*slot as usize].addr.get() == addr);
            }
            nid = as_index(page).slots[*slot as usize].get();
        }
        Some(false)
    }
}
