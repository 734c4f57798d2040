//! Nodes in the cache: inodes, leaves and index nodes, and the walk from a file block to
//! its pointer.
//!
//! Everything here is synchronous. An operation requests missing blocks with [`Blocked::Load`]
//! *before* it changes anything, and is then retried.

use crate::blocked::{Blocked, Fetch, NotApplied};
use crate::core::Core;
use crate::format::{
    BLOCK, HEIGHT_MAX, HOLE, INODE_CHILDREN, INODE_POINTERS, IndexBlock, InodeBlock, InodeHead,
    LEVEL_INODE, LEVEL_XATTR, LINKS_MAX, LeafBlock, NO_NODE, NODE_HEAD, NODE_MAGIC, NodeHeader,
    Pointer,
};
use crate::tree::cache::{Entry, Key};
use crate::tree::shape::Shape;
use crate::types::{Attr, Ino, Kind, Time};
use furrow_rt::buf::is_zero;
use furrow_rt::{Page, Pool};
use furrow_zone::{Error, ErrorKind};
use smallvec::SmallVec;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The place of the pointer to a file's block: the node (at height 0, the inode itself) and
/// the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) nid: u32,
    pub(crate) slot: u16,
}

/// Views a node's page as an inode. The view cannot fail, because the page is 4 KiB and every field
/// is unaligned little-endian.
pub(crate) fn as_inode(page: &Page) -> &InodeBlock {
    InodeBlock::ref_from_bytes(page.bytes()).expect("invariant: a page is an inode's size")
}
pub(crate) fn as_inode_mut(bytes: &mut [u8; 4096]) -> &mut InodeBlock {
    InodeBlock::mut_from_bytes(bytes).expect("invariant: a page is an inode's size")
}
pub(crate) fn as_leaf(page: &Page) -> &LeafBlock {
    LeafBlock::ref_from_bytes(page.bytes()).expect("invariant: a page is a leaf's size")
}
pub(crate) fn as_leaf_mut(bytes: &mut [u8; 4096]) -> &mut LeafBlock {
    LeafBlock::mut_from_bytes(bytes).expect("invariant: a page is a leaf's size")
}
pub(crate) fn as_index(page: &Page) -> &IndexBlock {
    IndexBlock::ref_from_bytes(page.bytes()).expect("invariant: a page is an index node's size")
}
pub(crate) fn as_index_mut(bytes: &mut [u8; 4096]) -> &mut IndexBlock {
    IndexBlock::mut_from_bytes(bytes).expect("invariant: a page is an index node's size")
}
pub(crate) fn header(page: &Page) -> &NodeHeader {
    NodeHeader::ref_from_prefix(page.bytes()).expect("invariant: a page holds a header").0
}

/// Child ids of an inode of height 1 or more: its slots, read as node ids.
pub(crate) fn children(inode: &InodeBlock) -> &[zerocopy::little_endian::U32; INODE_CHILDREN] {
    FromBytes::ref_from_bytes(inode.slots.as_bytes()).expect("invariant: 448 × 8 = 896 × 4 bytes")
}
pub(crate) fn children_mut(
    inode: &mut InodeBlock,
) -> &mut [zerocopy::little_endian::U32; INODE_CHILDREN] {
    FromBytes::mut_from_bytes(inode.slots.as_mut_bytes())
        .expect("invariant: 448 × 8 = 896 × 4 bytes")
}

/// The block pointers in a node, without holes, each with its slot. An index node has none.
pub(crate) fn pointers(page: &Page) -> SmallVec<[(u16, Pointer); 8]> {
    let slots: &[Pointer] = match header(page).level {
        LEVEL_INODE if as_inode(page).head.height == 0 => &as_inode(page).slots,
        0 => &as_leaf(page).slots,
        _ => &[],
    };
    let used = slots.iter().enumerate().filter(|(_, p)| p.addr.get() != HOLE);
    used.map(|(slot, p)| (slot as u16, *p)).collect()
}

/// Offset in a node at which the block pointers begin; the node's length if it has none.
pub(crate) fn first_pointer(page: &Page) -> u16 {
    let first = match header(page).level {
        LEVEL_INODE if as_inode(page).head.height == 0 => size_of::<InodeHead>(),
        0 => NODE_HEAD,
        _ => BLOCK,
    };
    first as u16
}

/// Checks that a page read from the drive is node `nid` of inode `ino`, and that the node's level
/// is possible. In an inode, also checks kind, height, directory levels, extended attributes and
/// size. Pointers and ids of children are not checked.
pub(crate) fn check(page: &Page, nid: u32, ino: u32) -> Result<(), String> {
    let head = header(page);
    let found = (head.magic.get(), head.nid.get(), head.ino.get());
    if found != (NODE_MAGIC, nid, ino) {
        return Err(format!(
            "expected node {nid} of inode {ino}, found magic {:08x} node {} of inode {}",
            found.0, found.1, found.2
        ));
    }
    match head.level {
        LEVEL_INODE => {
            let inode = as_inode(page);
            if nid != ino {
                return Err(format!("node {nid} is an inode but belongs to {ino}"));
            }
            if Kind::from_code(inode.head.kind).is_none() {
                return Err(format!("inode {nid}: unknown kind {}", inode.head.kind));
            }
            if inode.head.height > HEIGHT_MAX {
                return Err(format!("inode {nid}: height {} above 3", inode.head.height));
            }
            if inode.head.levels > crate::tree::dirent::MAX_LEVELS {
                return Err(format!("inode {nid}: {} directory levels", inode.head.levels));
            }
            crate::tree::xattr::check_inode(page)?;
            if inode.head.size.get() > crate::format::FILE_MAX {
                return Err(format!("inode {nid}: size {} too large", inode.head.size.get()));
            }
        }
        LEVEL_XATTR => {}
        level if level >= HEIGHT_MAX => return Err(format!("node {nid}: level {level}")),
        _ => {}
    }
    Ok(())
}

pub(crate) fn stamp(time: Time) -> crate::format::TimeStamp {
    crate::format::TimeStamp {
        seconds: time.seconds.into(),
        nanoseconds: time.nanoseconds.min(999_999_999).into(),
    }
}

pub(crate) fn time(stamp: &crate::format::TimeStamp) -> Time {
    Time { seconds: stamp.seconds.get(), nanoseconds: stamp.nanoseconds.get().min(999_999_999) }
}

/// The attributes stored in an inode.
pub(crate) fn attr(head: &InodeHead) -> Attr {
    // A directory with too many links shows a link count of 1: as in other file systems, 1 means
    // that the subdirectories are not counted.
    let many = head.kind == Kind::Directory.code() && head.links.get() > LINKS_MAX;
    Attr {
        ino: Ino(head.node.nid.get()),
        generation: head.generation.get(),
        kind: Kind::from_code(head.kind).unwrap_or(Kind::File),
        mode: head.mode.get() & 0o7777,
        links: if many { 1 } else { head.links.get() },
        uid: head.uid.get(),
        gid: head.gid.get(),
        rdev: head.rdev.get(),
        size: head.size.get(),
        blocks: head.blocks.get(),
        atime: time(&head.atime),
        mtime: time(&head.mtime),
        ctime: time(&head.ctime),
        btime: time(&head.btime),
    }
}

/// Makes the page of a new node, from `pool`, with its header.
pub(crate) fn new_node(
    pool: &Pool,
    (nid, ino): (u32, u32),
    base: u32,
    level: u8,
    class: u8,
) -> Page {
    let mut page = pool.take();
    let bytes = page.make_mut();
    match level {
        0 => as_leaf_mut(bytes).slots.fill(Pointer::HOLE),
        LEVEL_INODE => as_inode_mut(bytes).slots.fill(Pointer::HOLE),
        _ => {}
    }
    let head = NodeHeader {
        magic: NODE_MAGIC.into(),
        nid: nid.into(),
        ino: ino.into(),
        base: base.into(),
        level,
        class,
        ..NodeHeader::new_zeroed()
    };
    bytes[..size_of::<NodeHeader>()].copy_from_slice(head.as_bytes());
    page
}

impl Core {
    /// Node `nid`, from the cache.
    pub(crate) fn node(&mut self, nid: u32) -> Result<&Page, NotApplied> {
        match self.cache.find(&Key::Node(nid)) {
            Some(place) => Ok(self.cache.at(place).page()),
            None => Err(self.fetch_node(nid)),
        }
    }

    fn fetch_node(&self, nid: u32) -> NotApplied {
        let entry = self.tables.nat().get(nid);
        if entry.ino.get() == 0 {
            let name = self.env.device.name();
            let message = format!("{name}: node {nid} is referred to but not in use");
            return NotApplied::Failed(Error::new(ErrorKind::Corrupt, message));
        }
        let pointer = Pointer { addr: entry.addr, crc: entry.crc };
        NotApplied::Blocked(Blocked::Load(smallvec::smallvec![Fetch {
            key: Key::Node(nid),
            pointer
        }]))
    }

    /// The bytes of node `nid`, for changing them. The node must be in the cache.
    pub(crate) fn node_mut(&mut self, nid: u32) -> &mut [u8; 4096] {
        self.cache.get_mut(&Key::Node(nid)).expect("invariant: prepared before")
    }

    /// Inode `ino`, from the cache. `NotFound` if no such inode exists.
    pub(crate) fn inode(&mut self, ino: Ino) -> Result<&InodeBlock, NotApplied> {
        let place = self.cache.find(&Key::Node(ino.0)).filter(|_| ino.0 != NO_NODE);
        let Some(place) = place else {
            let known = ino.0 != NO_NODE && self.tables.nat().get(ino.0).ino.get() == ino.0;
            return Err(if known { self.fetch_node(ino.0) } else { self.no_inode(ino) });
        };
        if header(self.cache.at(place).page()).level != LEVEL_INODE {
            return Err(self.no_inode(ino));
        }
        Ok(as_inode(self.cache.at(place).page()))
    }

    fn no_inode(&self, ino: Ino) -> NotApplied {
        NotApplied::Failed(Error::new(ErrorKind::NotFound, format!("no inode {ino}")))
    }

    /// Inode `ino`, for changing it. The inode must be in the cache.
    pub(crate) fn inode_mut(&mut self, ino: Ino) -> &mut InodeBlock {
        as_inode_mut(self.node_mut(ino.0))
    }

    /// Subtracts `blocks` freed blocks from the count of inode `ino`. The inode must be in the
    /// cache. The count comes from the medium and may be wrong until `fsck` checks it, so a count
    /// that is too low becomes zero.
    pub(crate) fn uncount_blocks(&mut self, ino: Ino, blocks: u64) {
        let count = &mut self.inode_mut(ino).head.blocks;
        *count = count.get().saturating_sub(blocks).into();
    }

    /// The place of the pointer to `block`; `None` if no node covers the block.
    pub(crate) fn holder(&mut self, ino: Ino, block: u32) -> Result<Option<Holder>, NotApplied> {
        let inode = self.inode(ino)?;
        let height = inode.head.height;
        if u64::from(block) >= Shape::REAL.capacity(height) {
            return Ok(None);
        }
        let path = Shape::REAL.path(height, u64::from(block));
        if height == 0 {
            return Ok(Some(Holder { nid: ino.0, slot: path[0] as u16 }));
        }
        let mut nid = children(inode)[path[0] as usize].get();
        for (depth, slot) in path[1..].iter().enumerate() {
            if nid == NO_NODE {
                return Ok(None);
            }
            let level = height - 1 - depth as u8;
            let page = self.node(nid)?;
            let head = header(page);
            if head.level != level || head.ino.get() != ino.0 {
                let found = format!("level {} of inode {}", head.level, head.ino.get());
                return Err(self.corrupt(format!(
                    "node {nid}: expected level {level} of inode {ino}, found {found}"
                )));
            }
            if level == 0 {
                return Ok(Some(Holder { nid, slot: *slot as u16 }));
            }
            nid = as_index(page).slots[*slot as usize].get();
        }
        Ok(None)
    }

    /// The pointer in `holder`. The holder's node must be in the cache.
    pub(crate) fn slot(&mut self, holder: Holder) -> Pointer {
        let entry = self.cache.peek(&Key::Node(holder.nid)).expect("invariant: prepared");
        let page = entry.page();
        match header(page).level {
            LEVEL_INODE => as_inode(page).slots[usize::from(holder.slot) % INODE_POINTERS],
            _ => as_leaf(page).slots[usize::from(holder.slot)],
        }
    }

    /// Sets the pointer in `holder`. The holder's node must be in the cache.
    pub(crate) fn set_slot(&mut self, holder: Holder, pointer: Pointer) {
        let bytes = self.node_mut(holder.nid);
        if bytes[size_of::<[u32; 4]>()] == LEVEL_INODE {
            as_inode_mut(bytes).slots[usize::from(holder.slot)] = pointer;
        } else {
            as_leaf_mut(bytes).slots[usize::from(holder.slot)] = pointer;
        }
    }

    /// The pointer to `block` of `ino`; a hole if no node covers the block.
    pub(crate) fn pointer(&mut self, ino: Ino, block: u32) -> Result<Pointer, NotApplied> {
        Ok(match self.holder(ino, block)? {
            Some(holder) => self.slot(holder),
            None => Pointer::HOLE,
        })
    }

    /// Prepares [`Core::grow`]: makes sure that the existing nodes on the path to `block` are in
    /// the cache. Returns the largest number of nodes that `grow` may add.
    pub(crate) fn prepare_path(&mut self, ino: Ino, block: u32) -> Result<u32, NotApplied> {
        let height = self.inode(ino)?.head.height;
        let needed = Shape::REAL.height_for(u64::from(block));
        if needed > height {
            return Ok(u32::from(needed - height) + u32::from(needed) + 1);
        }
        Ok(if self.holder(ino, block)?.is_some() { 0 } else { u32::from(height) })
    }

    /// Makes the missing nodes on the path to `block`, and marks the node that holds the block's
    /// pointer dirty, because the pointer is about to change. The path must be prepared, and enough
    /// node ids reserved.
    pub(crate) fn grow(&mut self, ino: Ino, block: u32) -> Holder {
        let needed = Shape::REAL.height_for(u64::from(block));
        // The inode is about to change too, at least its times.
        let mut height = self.inode_mut(ino).head.height;
        while height < needed {
            self.raise(ino);
            height += 1;
        }
        let path = Shape::REAL.path(height, u64::from(block));
        let mut holder = Holder { nid: ino.0, slot: path[0] as u16 };
        for (depth, slot) in path[1..].iter().enumerate() {
            let level = height - 1 - depth as u8;
            let at = usize::from(holder.slot);
            let parent = self.cache.peek(&Key::Node(holder.nid)).expect("invariant: prepared");
            let child = if holder.nid == ino.0 {
                children(as_inode(parent.page()))[at].get()
            } else {
                as_index(parent.page()).slots[at].get()
            };
            let child = if child != NO_NODE {
                child
            } else {
                let base = Shape::REAL.node_at(level, u64::from(block)).base as u32;
                let new = self.add_node(ino, base, level);
                if holder.nid == ino.0 {
                    children_mut(self.inode_mut(ino))[at] = new.into();
                } else {
                    as_index_mut(self.node_mut(holder.nid)).slots[at] = new.into();
                }
                new
            };
            holder = Holder { nid: child, slot: *slot as u16 };
        }
        if height > 0 {
            // The leaf takes over the file's present class.
            let class = self.inode_mut(ino).head.node.class;
            as_leaf_mut(self.node_mut(holder.nid)).head.class = class;
        }
        holder
    }

    /// Adds one level: the slots of the inode move into a new node, which becomes its first child.
    fn raise(&mut self, ino: Ino) {
        let height = self.inode_mut(ino).head.height;
        let old = self.inode_mut(ino).slots;
        let empty = match height {
            // Blocks that wait to be written have no address yet, but the inode counts them.
            0 => self.inode_mut(ino).head.blocks.get() == 0,
            _ => is_zero(old.as_bytes()),
        };
        let child = if empty { NO_NODE } else { self.add_node(ino, 0, height) };
        if !empty {
            let bytes = self.node_mut(child);
            if height == 0 {
                as_leaf_mut(bytes).slots[..INODE_POINTERS].copy_from_slice(&old);
            } else {
                let old: &[zerocopy::little_endian::U32; INODE_CHILDREN] =
                    FromBytes::ref_from_bytes(old.as_bytes()).expect("invariant: same size");
                as_index_mut(bytes).slots[..INODE_CHILDREN].copy_from_slice(old);
            }
        }
        let inode = self.inode_mut(ino);
        inode.head.height += 1;
        inode.slots.as_mut_bytes().fill(0);
        children_mut(inode)[0] = child.into();
    }

    /// Adds a new dirty node to the cache.
    fn add_node(&mut self, ino: Ino, base: u32, level: u8) -> u32 {
        let nid = self.tables.take_id().expect("invariant: ids were counted before");
        let class = self.inode_mut(ino).head.node.class;
        let page = new_node(&self.env.pages, (nid, ino.0), base, level, class);
        self.insert_node(nid, ino.0, page);
        nid
    }

    /// Adds a new dirty node to the cache; its id is already taken.
    pub(crate) fn insert_node(&mut self, nid: u32, ino: u32, page: Page) {
        self.tables.add_node(nid, ino);
        self.cache.insert(Key::Node(nid), Entry::dirty(page).owned_by(ino));
    }

    /// Frees the block and the id of node `nid`. The node must be in the cache, and nothing may
    /// refer to it. The caller has already released the blocks that the node points to.
    pub(crate) fn drop_node(&mut self, nid: u32) {
        let entry = self.tables.nat().get(nid);
        self.cache.remove(&Key::Node(nid));
        if entry.addr.get() != HOLE {
            self.invalidate(entry.addr.get());
        }
        self.tables.free_node(nid);
    }
}
