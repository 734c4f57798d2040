//! Repair of trees: every inode, the nodes below it, and the blocks they point to.
//!
//! A reference that cannot be followed is removed from its node, so the file has a hole there. An
//! inode that cannot be read is given up, and so are nodes that nothing leads to. Content is read
//! only where directories and repairs need it, or if damaged blocks are to become holes.

use super::{Log, RepairOptions};
use crate::alloc::place::NODE_SLOT;
use crate::alloc::space::Claim;
use crate::core::{Core, Inner};
use crate::durability::recover::{report, written};
use crate::format::{
    BLOCK, FILE_MAX, HOLE, InodeHead, LEVEL_INODE, LINKS_MAX, NO_NODE, Pointer, ROOT_NODE, class,
};
use crate::tree::cache::Key;
use crate::tree::dirent;
use crate::tree::node::{
    Holder, as_index, as_index_mut, as_inode, as_inode_mut, as_leaf, as_leaf_mut, children,
    children_mut, header,
};
use crate::tree::shape::{NodePos, Shape};
use crate::tree::xattr::{Xattrs, nodes_for};
use crate::types::{Ino, Kind};
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::record::crc32c;
use furrow_rt::buf::is_zero;
use furrow_rt::{Page, Pool};
use furrow_zone::{Error, ErrorKind, QueueId, Result, ZoneReport};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The action for an inode that cannot be read.
pub(super) const GIVEN_UP: &str = "given up, with all that is in it";

/// The fields of an inode that the repair of names needs.
pub(super) struct Found {
    pub(super) kind: Kind,
    pub(super) links: u32,
    pub(super) parent: u32,
}

/// Results of the walk.
pub(super) struct Walk {
    pub(super) inodes: BTreeMap<u32, Found>,
    /// Block pointers of each directory, with the block numbers in the directory.
    pub(super) directories: BTreeMap<u32, Vec<(u32, Pointer)>>,
}

struct Walker<'a> {
    inner: &'a Rc<Inner>,
    options: &'a RepairOptions,
    log: &'a mut Log,
    reports: Vec<ZoneReport>,
    seen: BTreeSet<u32>,
    owners: BTreeMap<u32, (u32, u16)>,
    lost: BTreeSet<u32>,
    walk: Walk,
}

/// A file being walked.
struct File {
    ino: u32,
    kind: Kind,
    class: u8,
    /// Number of blocks that the file's size covers.
    end: u64,
    /// Number of blocks with content found so far.
    blocks: u64,
}

/// Walks every inode of the NAT and repairs its tree.
pub(super) async fn walk(
    inner: &Rc<Inner>,
    options: &RepairOptions,
    log: &mut Log,
) -> Result<Walk> {
    let (device, nodes) = {
        let core = inner.core.borrow();
        (core.env.device.clone(), core.tables.nat().len())
    };
    let used = |core: &Core| -> Vec<(u32, u32, u32)> {
        let entries = (1..nodes).map(|nid| (nid, core.tables.nat().get(nid)));
        let used = entries.filter(|(_, entry)| entry.ino.get() != 0);
        used.map(|(nid, entry)| (nid, entry.ino.get(), entry.addr.get())).collect()
    };
    let all = used(&inner.core.borrow());
    let mut walker = Walker {
        inner,
        options,
        log,
        reports: report(&*device).await?,
        seen: BTreeSet::new(),
        owners: all.iter().map(|(nid, _, addr)| (*addr, (*nid, NODE_SLOT))).collect(),
        lost: BTreeSet::new(),
        walk: Walk { inodes: BTreeMap::new(), directories: BTreeMap::new() },
    };
    for (nid, ino, _) in &all {
        if nid == ino {
            walker.inode(*ino).await?;
        }
    }
    let again = used(&inner.core.borrow());
    for (nid, ino, _) in again {
        if walker.seen.contains(&nid) {
            continue;
        }
        if nid != ino && !walker.lost.contains(&ino) {
            let problem = format!("of inode {ino}, and nothing leads to it");
            walker.log.mended("NAT entry", (ino, nid.to_string()), problem, "freed");
        }
        let core = &mut *inner.core.borrow_mut();
        if nid == ROOT_NODE {
            // The root directory is rebuilt soon, with this id.
            core.cache.remove(&Key::Node(nid));
            core.tables.forget_node(nid);
        } else {
            core.drop_node(nid);
        }
    }
    Ok(walker.walk)
}

/// Changes node `nid`, which must be readable.
pub(super) async fn edit(
    inner: &Rc<Inner>,
    nid: u32,
    change: impl Fn(&mut [u8; BLOCK]),
) -> Result<()> {
    let edit = |core: &mut Core| {
        core.node(nid)?;
        core.throttle()?;
        core.reserve(0, 1, Claim::Removal)?;
        change(core.node_mut(nid));
        Ok(())
    };
    inner.run(edit).await
}

/// Reads node `nid`.
async fn node(inner: &Rc<Inner>, nid: u32) -> Result<Page> {
    inner.run(|core| core.node(nid).cloned()).await
}

/// Reads the block a pointer leads to, and checks its checksum.
pub(super) async fn content(inner: &Rc<Inner>, pointer: Pointer) -> Result<Page> {
    let device = inner.core.borrow().env.device.clone();
    let (addr, expected) = (BlockAddr(pointer.addr.get()), pointer.crc.get());
    let mut block = read_blocks(&*device, QueueId(0), addr, 1, &Pool::new(4)).await?;
    let page =
        block.pop().ok_or_else(|| Error::new(ErrorKind::Io, "the drive answered no data"))?;
    let found = crc32c(page.bytes());
    if found == expected {
        return Ok(page);
    }
    let what = format!("checksum {found:08x}, expected {expected:08x}");
    Err(Error::new(ErrorKind::Corrupt, what))
}

/// The node ids in the slots of an inode or an index node.
fn ids_of(page: &Page) -> Vec<u32> {
    let ids = |slots: &[zerocopy::little_endian::U32]| slots.iter().map(|id| id.get()).collect();
    match header(page).level {
        LEVEL_INODE => ids(children(as_inode(page))),
        _ => ids(&as_index(page).slots),
    }
}

fn pointers_mut(bytes: &mut [u8; BLOCK]) -> &mut [Pointer] {
    if bytes[size_of::<[u32; 4]>()] == LEVEL_INODE {
        &mut as_inode_mut(bytes).slots
    } else {
        &mut as_leaf_mut(bytes).slots
    }
}

impl Walker<'_> {
    async fn inode(&mut self, ino: u32) -> Result<()> {
        let place = (ino, ino.to_string());
        let page = match node(self.inner, ino).await {
            Ok(page) if header(&page).level == LEVEL_INODE => page,
            other => {
                let problem = match other {
                    Ok(page) => format!("level {}", header(&page).level),
                    Err(error) => error.to_string(),
                };
                self.log.lost("inode", place, problem, GIVEN_UP);
                self.lost.insert(ino);
                return Ok(());
            }
        };
        self.seen.insert(ino);
        let mut head = as_inode(&page).head;
        let generation = head.generation.get();
        {
            let mut core = self.inner.core.borrow_mut();
            core.tree.pass_generation(generation.saturating_add(1));
        }
        let (Some(kind), wrong) = (Kind::from_code(head.kind), tidy(&mut head)) else {
            return Ok(());
        };
        if let Some(field) = wrong {
            self.log.mended(
                "inode",
                place,
                format!("impossible {field}"),
                "set to a possible value",
            );
            edit(self.inner, ino, |bytes| as_inode_mut(bytes).head = head).await?;
        }
        self.xattrs(ino).await?;
        let found = Found { kind, links: head.links.get(), parent: head.parent.get() };
        self.walk.inodes.insert(ino, found);
        let end = head.size.get().div_ceil(BLOCK as u64);
        let mut file = File { ino, kind, class: head.node.class, end, blocks: 0 };
        self.tree(&mut file, head.height).await?;
        let blocks = file.blocks;
        if head.blocks.get() != blocks {
            let problem = format!("{} blocks by its count, {blocks} are in its tree", head.blocks);
            self.log.mended("inode", (ino, format!("{ino}: blocks")), problem, "counted");
        }
        // The copy of a block that two pointers led to was counted twice in the inode.
        let now = self.inner.run(|core| Ok(core.inode(Ino(ino))?.head.blocks.get())).await?;
        if now != blocks {
            edit(self.inner, ino, |bytes| as_inode_mut(bytes).head.blocks = blocks.into()).await?;
        }
        Ok(())
    }

    /// Walks the nodes below an inode, and their pointers.
    async fn tree(&mut self, file: &mut File, height: u8) -> Result<()> {
        if height == 0 {
            return self.pointers(file, file.ino, 0).await;
        }
        let mut todo = vec![(file.ino, None::<NodePos>)];
        while let Some((holder, at)) = todo.pop() {
            let page = node(self.inner, holder).await?;
            let mut gone = Vec::new();
            for (slot, child) in ids_of(&page).into_iter().enumerate() {
                let below = match at {
                    None => Shape::REAL.inode_child(height, slot as u32),
                    Some(at) => Shape::REAL.child(at, slot as u32),
                };
                let Some(below) = below.filter(|_| child != NO_NODE) else { continue };
                match self.child(file, child, below).await? {
                    None if below.level == 0 => {
                        self.pointers(file, child, below.base).await?;
                    }
                    None => todo.push((child, Some(below))),
                    Some(problem) => {
                        let bytes = Shape::REAL.span(below.level).saturating_mul(BLOCK as u64);
                        let from = below.base.saturating_mul(BLOCK as u64);
                        let place = format!("{child} of inode {}", file.ino);
                        let action = format!("a hole of up to {bytes} bytes from byte {from}");
                        self.log.lost("node", (file.ino, place), problem, action);
                        gone.push(slot);
                    }
                }
            }
            if !gone.is_empty() {
                let clear = |bytes: &mut [u8; BLOCK]| {
                    for slot in &gone {
                        if bytes[size_of::<[u32; 4]>()] == LEVEL_INODE {
                            children_mut(as_inode_mut(bytes))[*slot] = NO_NODE.into();
                        } else {
                            as_index_mut(bytes).slots[*slot] = NO_NODE.into();
                        }
                    }
                };
                edit(self.inner, holder, clear).await?;
            }
        }
        Ok(())
    }

    /// Finds the fault of node `nid`, which should be at `at` in the file; `None` if there is none.
    async fn child(&mut self, file: &File, nid: u32, at: NodePos) -> Result<Option<String>> {
        let nodes = self.inner.core.borrow().tables.nat().len();
        let owner = self.inner.core.borrow().tables.nat().get(nid).ino.get();
        if nid >= nodes || owner != file.ino {
            return Ok(Some("it is not a node of this inode".into()));
        }
        if self.seen.contains(&nid) {
            return Ok(Some("it is in another place too".into()));
        }
        let page = match node(self.inner, nid).await {
            Ok(page) => page,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let head = header(&page);
        if (head.level, u64::from(head.base.get())) != (at.level, at.base) {
            let found = format!("level {} of block {}", head.level, head.base);
            return Ok(Some(format!("{found}, expected level {} of block {}", at.level, at.base)));
        }
        self.seen.insert(nid);
        if !class::agree(file.class, head.class) {
            const CLASS: usize = std::mem::offset_of!(crate::format::NodeHeader, class);
            let class = file.class;
            edit(self.inner, nid, |bytes| bytes[CLASS] = class).await?;
        }
        Ok(None)
    }

    /// Checks the pointers in `holder`; the first one is for block `base`.
    async fn pointers(&mut self, file: &mut File, holder: u32, base: u64) -> Result<()> {
        let page = node(self.inner, holder).await?;
        let slots: Vec<Pointer> = match header(&page).level {
            LEVEL_INODE => as_inode(&page).slots.to_vec(),
            _ => as_leaf(&page).slots.to_vec(),
        };
        let mut gone = Vec::new();
        for (slot, pointer) in slots.iter().enumerate() {
            if *pointer == Pointer::HOLE {
                continue;
            }
            let block = base + slot as u64;
            match self.pointer(file, (holder, slot as u16), block, *pointer).await? {
                None => {
                    file.blocks += 1;
                    if file.kind == Kind::Directory {
                        let blocks = self.walk.directories.entry(file.ino).or_default();
                        blocks.push((block.min(u64::from(u32::MAX)) as u32, *pointer));
                    }
                }
                Some(problem) => {
                    let place = format!("inode {} block {block}", file.ino);
                    let action = "a hole";
                    if pointer.addr.get() == HOLE || block >= file.end {
                        self.log.mended("pointer", (file.ino, place), problem, action);
                    } else {
                        self.log.lost("pointer", (file.ino, place), problem, action);
                    }
                    gone.push(slot);
                }
            }
        }
        if !gone.is_empty() {
            let clear = |bytes: &mut [u8; BLOCK]| {
                gone.iter().for_each(|slot| pointers_mut(bytes)[*slot] = Pointer::HOLE);
            };
            edit(self.inner, holder, clear).await?;
        }
        Ok(())
    }

    /// The reason why a pointer must become a hole, if it must.
    async fn pointer(
        &mut self,
        file: &mut File,
        (holder, slot): (u32, u16),
        block: u64,
        pointer: Pointer,
    ) -> Result<Option<String>> {
        let addr = pointer.addr.get();
        if addr == HOLE {
            return Ok(Some("a hole with a checksum".into()));
        }
        if block >= file.end {
            return Ok(Some("past the end by its size".into()));
        }
        if !self.is_written(addr) {
            return Ok(Some(format!("no block of content is at {addr}")));
        }
        let must_be_whole = self.options.zero_bad_data && file.kind == Kind::File;
        if must_be_whole && let Err(error) = content(self.inner, pointer).await {
            return Ok(Some(error.to_string()));
        }
        let Some(other) = self.owners.insert(addr, (holder, slot)) else { return Ok(None) };
        if other == (holder, slot) {
            return Ok(None);
        }
        self.owners.insert(addr, other);
        // The checksum decides whether the block belongs to this pointer; it may belong to
        // both pointers.
        let problem = format!("the block belongs to node {} slot {} too", other.0, other.1);
        let Ok(page) = content(self.inner, pointer).await else { return Ok(Some(problem)) };
        let at = block.min(u64::from(u32::MAX)) as u32;
        let ino = Ino(file.ino);
        self.inner
            .run(|core| {
                core.throttle()?;
                core.prepare_path(ino, at)?;
                core.node(holder)?;
                core.reserve(1, 2, Claim::Removal)?;
                // Clear the pointer first: replacing the data would invalidate the block, which the
                // other pointer needs.
                core.node_mut(holder);
                core.set_slot(Holder { nid: holder, slot }, Pointer::HOLE);
                core.replace_data(ino, at, page.clone(), Some(pointer.crc.get()));
                Ok(())
            })
            .await?;
        let place = (file.ino, format!("inode {ino} block {block}"));
        self.log.mended("pointer", place, problem, "a copy of its own");
        Ok(None)
    }

    /// True if `addr` is in a segment, and in the written part of its zone. All blocks of an
    /// offline zone count as written.
    fn is_written(&self, addr: u32) -> bool {
        let core = self.inner.core.borrow();
        let Some((zone, offset)) = BlockAddr(addr).locate(&core.env.geometry) else { return false };
        let there = self.reports.get(zone.0 as usize);
        core.alloc.segment_of(addr).is_some()
            && there.is_some_and(|report| {
                report.state == furrow_zone::ZoneState::Offline
                    || offset < written(report, &core.env.geometry)
            })
    }

    /// Checks the extended attributes of `ino`, and gives up those that cannot be read.
    async fn xattrs(&mut self, ino: u32) -> Result<()> {
        let packed = self.inner.run(|core| core.packed_xattrs(Ino(ino))).await;
        let whole = packed.as_ref().is_ok_and(|packed| Xattrs::parse(packed).is_some());
        let nids = self.inner.run(|core| core.xattr_nids(Ino(ino))).await;
        let nids = nids.map(|(nids, _)| nids).unwrap_or_default();
        if whole && nids.iter().all(|nid| !self.seen.contains(nid)) {
            self.seen.extend(nids);
            return Ok(());
        }
        let problem = match packed {
            Err(error) => error.to_string(),
            Ok(_) => "they are not names with values".into(),
        };
        let kept = self.attributes_left(ino).await;
        let place = (ino, ino.to_string());
        let action = format!("the first {} are kept, the others given up", kept.0.len());
        self.log.lost("extended attributes", place, problem, action);
        edit(self.inner, ino, |bytes| {
            let head = &mut as_inode_mut(bytes).head;
            head.xattr_bytes = 0.into();
            head.xattrs.fill(0);
        })
        .await?;
        let packed = kept.pack();
        let store = |core: &mut Core| {
            core.inode(Ino(ino))?;
            core.reserve(0, 1 + nodes_for(packed.len()) as u32, Claim::SAME)?;
            core.store_xattrs(Ino(ino), &packed)
        };
        self.inner.run(store).await?;
        let nids = self.inner.run(|core| core.xattr_nids(Ino(ino))).await?.0;
        self.seen.extend(nids);
        Ok(())
    }

    /// The attributes of `ino` that precede the first unreadable one.
    async fn attributes_left(&mut self, ino: u32) -> Xattrs {
        let Ok(page) = node(self.inner, ino).await else { return Xattrs::default() };
        let head = &as_inode(&page).head;
        let bytes = head.xattr_bytes.get() as usize;
        let mut packed = Vec::new();
        if nodes_for(bytes) == 0 {
            packed.extend(head.xattrs.iter().take(bytes));
        }
        for (at, id) in head.xattrs.chunks_exact(4).take(nodes_for(bytes)).enumerate() {
            let nid = u32::from_le_bytes([id[0], id[1], id[2], id[3]]);
            let owner = self.inner.core.borrow().tables.nat().get(nid).ino.get();
            if owner != ino || self.seen.contains(&nid) {
                break;
            }
            let Ok(page) = node(self.inner, nid).await else { break };
            let head = header(&page);
            if head.level != crate::format::LEVEL_XATTR || head.base.get() as usize != at {
                break;
            }
            packed.extend(&page.bytes()[BLOCK - crate::format::XATTR_NODE..]);
        }
        packed.truncate(bytes);
        (0..=packed.len())
            .rev()
            .find_map(|length| Xattrs::parse(&packed[..length]))
            .unwrap_or_default()
    }
}

/// Makes impossible fields of an inode possible; returns the name of the first field that
/// was wrong.
fn tidy(head: &mut InodeHead) -> Option<&'static str> {
    let kind = Kind::from_code(head.kind)?;
    let mut wrong = None;
    let mut set = |field: &'static str, differs: bool| {
        if differs && wrong.is_none() {
            wrong = Some(field);
        }
        differs
    };
    if set("flags", head.flags != 0 || head.reserved.get() != 0) {
        (head.flags, head.reserved) = (0, 0.into());
    }
    if set("base", head.node.base.get() != 0 || !is_zero(&head.node.reserved)) {
        head.node.base = 0.into();
        head.node.reserved.fill(0);
    }
    if set("mode", head.mode.get() & !0o7777 != 0) {
        head.mode = (head.mode.get() & 0o7777).into();
    }
    let directory = kind == Kind::Directory;
    let classes: &[u8] =
        if directory { &[class::DIRECTORY] } else { &[class::FILE, class::COLD, class::HOT] };
    if set("class", !classes.contains(&head.node.class)) {
        head.node.class = classes[0];
    }
    for time in [&mut head.atime, &mut head.mtime, &mut head.ctime, &mut head.btime] {
        if set("a time", time.nanoseconds.get() >= 1_000_000_000) {
            time.nanoseconds = 0.into();
        }
    }
    if set("links", kind != Kind::Directory && head.links.get() > LINKS_MAX) {
        head.links = 1.into();
    }
    let device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
    if set("rdev", !device && head.rdev.get() != 0) {
        head.rdev = 0.into();
    }
    let size = head.size.get();
    if directory {
        if set("levels", head.levels > dirent::MAX_LEVELS) {
            head.levels = dirent::MAX_LEVELS;
        }
        let by_levels = u64::from(dirent::blocks(head.levels)) * BLOCK as u64;
        if set("size", size != by_levels) {
            // Use the larger of the block counts by `size` and by `levels`: a surplus block is just
            // a hole.
            let blocks = size.div_ceil(BLOCK as u64).min(u64::from(u32::MAX)) as u32;
            head.levels = head.levels.max(dirent::levels_of(blocks));
            head.size = (u64::from(dirent::blocks(head.levels)) * BLOCK as u64).into();
        }
    } else {
        if set("levels", head.levels != 0) {
            head.levels = 0;
        }
        if set("parent", head.parent.get() != 0) {
            head.parent = 0.into();
        }
        if set("entries", head.entries.get() != 0) {
            head.entries = 0.into();
        }
        let most = if matches!(kind, Kind::File | Kind::Symlink) { FILE_MAX } else { 0 };
        if set("size", size > most) {
            head.size = most.into();
        }
    }
    wrong
}

/// Takes block `block` out of directory `ino`, whatever it contains. If the block is a copy made by
/// the repair, it has no address on the drive yet.
pub(super) async fn drop_block(inner: &Rc<Inner>, ino: u32, block: u32) -> Result<()> {
    let drop = |core: &mut Core| {
        let holder = core.holder(Ino(ino), block)?;
        core.inode(Ino(ino))?;
        core.throttle()?;
        core.reserve(0, 2, Claim::Removal)?;
        let Some(holder) = holder else { return Ok(()) };
        let (key, addr) = (Key::Data(ino, block), core.slot(holder).addr.get());
        if addr == HOLE && core.cache.peek(&key).is_none() {
            return Ok(());
        }
        core.cache.remove(&key);
        if addr != HOLE {
            core.set_slot(holder, Pointer::HOLE);
            core.invalidate(addr);
        }
        core.uncount_blocks(Ino(ino), 1);
        Ok(())
    };
    inner.run(drop).await
}
