//! Walks every inode, its tree of nodes, and the blocks that these nodes point to.

use super::names::{Directory, Ref};
use super::tables::Tables;
use super::xattrs;
use super::{Fsck, Volume};
use crate::format::{
    BLOCK, FILE_MAX, HEIGHT_MAX, HOLE, INODE_CHILDREN, IndexBlock, InodeBlock, InodeHead,
    LEVEL_INODE, LINKS_MAX, LeafBlock, NO_NODE, NODE_MAGIC, NatEntry, NodeHeader, Pointer,
    TARGET_MAX, class,
};
use crate::tree::dirent;
use crate::tree::shape::{NodePos, Shape};
use crate::types::Kind;
use furrow_log::record::crc32c;
use furrow_rt::Page;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

pub(super) const NODE: &str = "node";
pub(super) const INODE: &str = "inode";
const POINTER: &str = "pointer";
const DATA: &str = "data";

/// Value of [`Owner::slot`] for a block that is the node itself.
pub(super) const NODE_SLOT: u16 = u16::MAX;
/// Largest number of blocks in one read.
const RUN_MAX: usize = 256;

/// The owner of block `addr`: the node, and the slot of the node that points to the block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) addr: u32,
    pub(super) node: u32,
    pub(super) slot: u16,
}

/// The fields of an inode that the check of names needs.
pub(super) struct Inode {
    pub(super) ino: u32,
    pub(super) kind: Kind,
    pub(super) links: u32,
    pub(super) parent: u32,
}

/// Results of the walk.
#[derive(Default)]
pub(super) struct Walk {
    /// All inodes, in ascending order.
    pub(super) inodes: Vec<Inode>,
    pub(super) owners: Vec<Owner>,
    pub(super) refs: Vec<Ref>,
    /// Inodes that are partly unreadable. Faults that follow from the unreadable parts are not
    /// reported again.
    pub(super) damaged: BTreeSet<u32>,
    /// Leaves that cover block 0 of a file, each with its inode.
    pub(super) first_leaves: BTreeMap<u32, u32>,
    /// The names found, each with its inode; `None` if no names are wanted.
    named: Option<Vec<(u32, Box<[u8]>)>>,
    /// One bit for each node id, set when the node was seen.
    seen: Vec<u64>,
}

/// The inode being walked.
struct File {
    ino: u32,
    class: u8,
    kind: Kind,
    /// Number of blocks that the file's size covers.
    end: u64,
    /// Number of pointers to blocks found so far.
    blocks: u64,
    directory: Option<Directory>,
}

/// A block pointer, and its place in the tree.
#[derive(Clone, Copy)]
struct Slot {
    block: u64,
    node: u32,
    slot: u16,
    pointer: Pointer,
}

/// Views a page as an inode. The view cannot fail: a page is 4 KiB, and all fields are unaligned.
pub(super) fn inode_of(page: &Page) -> &InodeBlock {
    InodeBlock::ref_from_bytes(page.bytes()).expect("invariant: a page is an inode's size")
}
pub(super) fn leaf_of(page: &Page) -> &LeafBlock {
    LeafBlock::ref_from_bytes(page.bytes()).expect("invariant: a page is a leaf's size")
}
pub(super) fn index_of(page: &Page) -> &IndexBlock {
    IndexBlock::ref_from_bytes(page.bytes()).expect("invariant: a page is an index node's size")
}
pub(super) fn head_of(page: &Page) -> &NodeHeader {
    NodeHeader::ref_from_prefix(page.bytes()).expect("invariant: a page holds a header").0
}
pub(super) fn children_of(inode: &InodeBlock) -> &[U32; INODE_CHILDREN] {
    FromBytes::ref_from_bytes(inode.slots.as_bytes()).expect("invariant: 448 × 8 = 896 × 4 bytes")
}

/// Walks every inode of the NAT.
pub(super) async fn walk(fsck: &mut Fsck, volume: &Volume, tables: &Tables) -> Walk {
    let mut walk = Walk::new(volume);
    for (nid, entry) in tables.nat.iter() {
        if nid != NO_NODE && nid < volume.plan.nodes && entry.ino.get() == nid {
            fsck.inode = Some(nid);
            walk_inode(fsck, volume, tables, &mut walk, nid).await;
        }
    }
    fsck.inode = None;
    for (nid, entry) in tables.nat.iter() {
        let ino = entry.ino.get();
        let used = nid != NO_NODE && nid < volume.plan.nodes && ino != 0;
        if used && !walk.is_seen(nid) && !walk.damaged.contains(&ino) {
            let expected = format!("a node that inode {ino} leads to");
            fsck.add("NAT entry", nid.to_string(), expected, "one that nothing leads to");
        }
    }
    walk
}

/// The names in the directory `ino`, each with its inode, as far as the directory can be read.
/// Damage is reported as in [`walk`].
pub(super) async fn names_in(
    fsck: &mut Fsck,
    volume: &Volume,
    tables: &Tables,
    ino: u32,
) -> Vec<(u32, Box<[u8]>)> {
    let mut walk = Walk { named: Some(Vec::new()), ..Walk::new(volume) };
    walk_inode(fsck, volume, tables, &mut walk, ino).await;
    walk.named.unwrap_or_default()
}

impl Walk {
    fn new(volume: &Volume) -> Walk {
        let words = (volume.plan.nodes as usize).div_ceil(64);
        Walk { seen: vec![0; words], ..Walk::default() }
    }

    fn is_seen(&self, nid: u32) -> bool {
        self.seen[(nid / 64) as usize] >> (nid % 64) & 1 == 1
    }

    /// Marks `nid` as seen; false if it was already seen.
    pub(super) fn see(&mut self, nid: u32) -> bool {
        let new = !self.is_seen(nid);
        self.seen[(nid / 64) as usize] |= 1 << (nid % 64);
        new
    }
}

async fn walk_inode(fsck: &mut Fsck, volume: &Volume, tables: &Tables, walk: &mut Walk, ino: u32) {
    fsck.report.statistics.inodes += 1;
    walk.see(ino);
    let Some(page) = read_node(fsck, volume, tables.nat.get(ino), ino, ino).await else {
        walk.damaged.insert(ino);
        return;
    };
    walk.owners.push(Owner { addr: tables.nat.get(ino).addr.get(), node: ino, slot: NODE_SLOT });
    let inode = inode_of(&page);
    let Some(mut file) = check_inode(fsck, volume, inode, ino) else {
        walk.damaged.insert(ino);
        return;
    };
    walk.inodes.push(Inode {
        ino,
        kind: file.kind,
        links: inode.head.links.get(),
        parent: inode.head.parent.get(),
    });
    xattrs::check(fsck, volume, tables, walk, &inode.head).await;
    let height = inode.head.height;
    if height == 0 {
        let slots = slots(ino, 0, &inode.slots);
        check_slots(fsck, volume, walk, &mut file, &slots).await;
    } else {
        let children = children_of(inode).iter().enumerate();
        let nodes: Vec<(u32, NodePos)> = children
            .filter(|(_, nid)| nid.get() != NO_NODE)
            .filter_map(|(slot, nid)| {
                Some((nid.get(), Shape::REAL.inode_child(height, slot as u32)?))
            })
            .collect();
        walk_nodes(fsck, volume, tables, walk, &mut file, nodes).await;
    }
    if walk.damaged.contains(&ino) {
        return;
    }
    let place = |field: &str| format!("{ino}: {field}");
    let head = &inode.head;
    fsck.expect(INODE, || place("blocks"), file.blocks, head.blocks.get());
    if let Some(directory) = &mut file.directory {
        fsck.expect(INODE, || place("entries"), directory.entries(), head.entries.get());
        directory.check_unique(fsck, ino);
    }
}

/// Walks the nodes below an inode.
async fn walk_nodes(
    fsck: &mut Fsck,
    volume: &Volume,
    tables: &Tables,
    walk: &mut Walk,
    file: &mut File,
    mut todo: Vec<(u32, NodePos)>,
) {
    todo.reverse();
    while let Some((nid, at)) = todo.pop() {
        let place = format!("{nid}, level {} block {} of inode {}", at.level, at.base, file.ino);
        let entry = tables.nat.get(nid);
        if nid >= volume.plan.nodes || entry.ino.get() != file.ino {
            let found = format!("one of inode {}", entry.ino);
            fsck.add(NODE, place, format!("a node of inode {} in the NAT", file.ino), found);
            walk.damaged.insert(file.ino);
            continue;
        }
        if !walk.see(nid) {
            fsck.add(NODE, place, "a node in one place", "one in two");
            continue;
        }
        let Some(page) = read_node(fsck, volume, entry, nid, file.ino).await else {
            walk.damaged.insert(file.ino);
            continue;
        };
        walk.owners.push(Owner { addr: entry.addr.get(), node: nid, slot: NODE_SLOT });
        let head = head_of(&page);
        if !class::agree(file.class, head.class) {
            fsck.expect(NODE, || format!("{place}: class"), file.class, head.class);
        }
        fsck.expect(NODE, || format!("{place}: base"), at.base, u64::from(head.base.get()));
        fsck.expect_zero(NODE, || format!("{place}: reserved"), &leaf_of(&page).reserved);
        if !fsck.expect(NODE, || format!("{place}: level"), at.level, head.level) {
            walk.damaged.insert(file.ino);
            continue;
        }
        if at.level == 0 {
            if at.base == 0 {
                walk.first_leaves.insert(nid, file.ino);
            }
            let slots = slots(nid, at.base, &leaf_of(&page).slots);
            check_slots(fsck, volume, walk, file, &slots).await;
            continue;
        }
        for (slot, child) in index_of(&page).slots.iter().enumerate().rev() {
            if child.get() != NO_NODE
                && let Some(below) = Shape::REAL.child(at, slot as u32)
            {
                todo.push((child.get(), below));
            }
        }
    }
}

/// Reads a node by its NAT entry and checks the fields that every node has. `None` if the node
/// is damaged.
pub(super) async fn read_node(
    fsck: &mut Fsck,
    volume: &Volume,
    entry: NatEntry,
    nid: u32,
    ino: u32,
) -> Option<Page> {
    let addr = entry.addr.get();
    let place = format!("{nid} of inode {ino} at {}", fsck.at(addr));
    if volume.locate(addr).is_none() || !fsck.is_written(addr) {
        fsck.add(NODE, place, "a written block of a segment", format!("block {addr}"));
        return None;
    }
    let page = match fsck.read_one(addr).await {
        Ok(page) => page,
        Err(error) => {
            fsck.add(NODE, place, "a block that can be read", error);
            return None;
        }
    };
    fsck.report.statistics.nodes += 1;
    let (expected, found) = (entry.crc.get(), crc32c(page.bytes()));
    if expected != found {
        let expected = format!("checksum {expected:08x} by the NAT");
        fsck.add(NODE, place, expected, format!("{found:08x}"));
        return None;
    }
    let head = head_of(&page);
    let expected = (NODE_MAGIC, nid, ino);
    let found = (head.magic.get(), head.nid.get(), head.ino.get());
    if expected != found {
        let show = |(magic, nid, ino)| format!("magic {magic:08x}, node {nid}, inode {ino}");
        fsck.add(NODE, place, show(expected), show(found));
        return None;
    }
    fsck.expect_zero(NODE, || format!("{place}: header, reserved"), &head.reserved);
    if head.checkpoint > volume.header.checkpoint {
        let expected = format!("at most {}", volume.header.checkpoint);
        fsck.add(NODE, format!("{place}: checkpoint"), expected, head.checkpoint);
    }
    Some(page)
}

/// Checks the fields of an inode. `None` if its tree cannot be walked.
fn check_inode(fsck: &mut Fsck, volume: &Volume, inode: &InodeBlock, ino: u32) -> Option<File> {
    let head = &inode.head;
    let place = |field: &'static str| move || format!("{ino}: {field}");
    fsck.expect(INODE, place("level"), LEVEL_INODE, head.node.level);
    fsck.expect(INODE, place("base"), 0, head.node.base.get());
    fsck.expect_zero(INODE, place("flags"), &[head.flags]);
    fsck.expect_zero(INODE, place("reserved"), &head.reserved.to_bytes());
    fsck.expect(INODE, place("mode"), head.mode.get() & 0o7777, head.mode.get());
    if head.generation >= volume.body.generation {
        let expected = format!("below {}, the checkpoint's next", volume.body.generation);
        fsck.add(INODE, place("generation")(), expected, head.generation);
    }
    for (field, time) in [
        ("atime", &head.atime),
        ("mtime", &head.mtime),
        ("ctime", &head.ctime),
        ("btime", &head.btime),
    ] {
        if time.nanoseconds.get() >= 1_000_000_000 {
            fsck.add(INODE, place(field)(), "nanoseconds below 10^9", time.nanoseconds);
        }
    }
    let Some(kind) = Kind::from_code(head.kind) else {
        fsck.add(INODE, place("kind")(), "1 to 7", head.kind);
        return None;
    };
    check_kind(fsck, head, kind, ino);
    let size = head.size.get();
    if size > FILE_MAX {
        fsck.add(INODE, place("size")(), format!("at most {FILE_MAX}"), size);
        return None;
    }
    if head.height > HEIGHT_MAX {
        fsck.add(INODE, place("height")(), format!("at most {HEIGHT_MAX}"), head.height);
        return None;
    }
    let directory = (kind == Kind::Directory).then(Directory::default);
    fsck.report.statistics.directories += u64::from(directory.is_some());
    let end = size.div_ceil(BLOCK as u64);
    Some(File { ino, class: head.node.class, kind, end, blocks: 0, directory })
}

/// Checks the fields whose meaning depends on the inode's kind.
fn check_kind(fsck: &mut Fsck, head: &InodeHead, kind: Kind, ino: u32) {
    let place = |field: &'static str| move || format!("{ino}: {field}");
    let directory = kind == Kind::Directory;
    let classes: &[u8] =
        if directory { &[class::DIRECTORY] } else { &[class::FILE, class::COLD, class::HOT] };
    if !classes.contains(&head.node.class) {
        fsck.add(INODE, place("class")(), format!("one of {classes:?}"), head.node.class);
    }
    if !directory && head.links.get() > LINKS_MAX {
        fsck.add(INODE, place("links")(), format!("at most {LINKS_MAX}"), head.links);
    }
    let size = head.size.get();
    match kind {
        Kind::Directory => {
            if head.levels > dirent::MAX_LEVELS {
                let expected = format!("at most {}", dirent::MAX_LEVELS);
                fsck.add(INODE, place("levels")(), expected, head.levels);
            }
            let expected = u64::from(dirent::blocks(head.levels)) * BLOCK as u64;
            fsck.expect(INODE, place("size, by its levels"), expected, size);
        }
        Kind::File => {}
        // A symbolic link that is being removed has already lost its target.
        Kind::Symlink if head.links.get() == 0 => {}
        Kind::Symlink => {
            if size == 0 || size > TARGET_MAX as u64 {
                fsck.add(INODE, place("size")(), format!("1 to {TARGET_MAX}"), size);
            }
            fsck.expect(INODE, place("blocks of a symbolic link"), 1, head.blocks.get());
        }
        _ => {
            fsck.expect(INODE, place("size of a special file"), 0, size);
        }
    }
    if !directory {
        fsck.expect(INODE, place("levels"), 0, head.levels);
        fsck.expect(INODE, place("parent"), 0, head.parent.get());
        fsck.expect(INODE, place("entries"), 0, head.entries.get());
    }
    if !matches!(kind, Kind::CharDevice | Kind::BlockDevice) && head.rdev.get() != 0 {
        fsck.add(INODE, place("rdev")(), "0, as the inode is not a device", head.rdev);
    }
}

/// The pointers of a node, except ordinary holes. A hole with a checksum is kept, because it is
/// reported as a fault.
fn slots(node: u32, base: u64, pointers: &[Pointer]) -> Vec<Slot> {
    let all = pointers.iter().enumerate();
    all.filter(|(_, pointer)| **pointer != Pointer::HOLE)
        .map(|(slot, pointer)| Slot {
            block: base + slot as u64,
            node,
            slot: slot as u16,
            pointer: *pointer,
        })
        .collect()
}

/// Checks pointers and, if requested, the content of the blocks they lead to.
async fn check_slots(
    fsck: &mut Fsck,
    volume: &Volume,
    walk: &mut Walk,
    file: &mut File,
    slots: &[Slot],
) {
    let mut good: Vec<Slot> = Vec::with_capacity(slots.len());
    for slot in slots {
        let (addr, block) = (slot.pointer.addr.get(), slot.block);
        let place = || format!("inode {} block {block}", file.ino);
        if addr == HOLE {
            fsck.add(POINTER, place(), "checksum 0 of a hole", slot.pointer.crc);
            continue;
        }
        file.blocks += 1;
        if block >= file.end {
            let expected = format!("none after block {} by its size", file.end);
            fsck.add(POINTER, place(), expected, format!("block at {}", fsck.at(addr)));
        }
        if volume.locate(addr).is_none() || !fsck.is_written(addr) {
            fsck.add(POINTER, place(), "a written block of a segment", format!("block {addr}"));
            walk.damaged.insert(file.ino);
            continue;
        }
        walk.owners.push(Owner { addr, node: slot.node, slot: slot.slot });
        good.push(*slot);
    }
    fsck.report.statistics.data_blocks += good.len() as u64;
    if fsck.options.verify_data || matches!(file.kind, Kind::Directory | Kind::Symlink) {
        check_content(fsck, volume, walk, file, &good).await;
    }
}

/// Reads the blocks, adjacent ones together, and checks their content.
async fn check_content(
    fsck: &mut Fsck,
    volume: &Volume,
    walk: &mut Walk,
    file: &mut File,
    slots: &[Slot],
) {
    let addr = |slot: &Slot| slot.pointer.addr.get();
    let follows = |a: &Slot, b: &Slot| addr(a).checked_add(1) == Some(addr(b));
    for run in slots.chunk_by(follows).flat_map(|run| run.chunks(RUN_MAX)) {
        let first = addr(&run[0]);
        if let Ok(pages) = fsck.read(first, run.len() as u32).await {
            for (slot, page) in run.iter().zip(pages) {
                check_block(fsck, volume, walk, file, slot, &page);
            }
            continue;
        }
        // The run cannot be read: find out which of its blocks are unreadable.
        for slot in run {
            match fsck.read_one(addr(slot)).await {
                Ok(page) => check_block(fsck, volume, walk, file, slot, &page),
                Err(error) => {
                    let place = format!("inode {} block {}", file.ino, slot.block);
                    fsck.add(DATA, place, "a block that can be read", error);
                    walk.damaged.insert(file.ino);
                }
            }
        }
    }
}

fn check_block(
    fsck: &mut Fsck,
    volume: &Volume,
    walk: &mut Walk,
    file: &mut File,
    slot: &Slot,
    page: &Page,
) {
    fsck.report.statistics.verified_blocks += 1;
    let (expected, found) = (slot.pointer.crc.get(), crc32c(page.bytes()));
    if expected != found {
        let at = fsck.at(slot.pointer.addr.get());
        let place = format!("inode {} block {} at {at}", file.ino, slot.block);
        fsck.add(DATA, place, format!("checksum {expected:08x}"), format!("{found:08x}"));
        walk.damaged.insert(file.ino);
        return;
    }
    if let Some(directory) = &mut file.directory {
        let seed = volume.plan.hash_seed;
        directory.add_block(fsck, seed, file.ino, slot.block, page, &mut walk.refs);
        if let Some(named) = &mut walk.named {
            named.extend(dirent::iter(page.bytes()).map(|entry| (entry.ino, entry.name.into())));
        }
    }
}
