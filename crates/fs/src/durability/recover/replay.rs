//! Replays sync records. Name changes and attributes run through the code that made
//! them originally.

use super::read::corrupt;
use super::reap;
use super::sync_scan::Record;
use crate::alloc::place::NODE_SLOT;
use crate::core::{Core, Inner};
use crate::durability::namespace_log::NameOp;
use crate::durability::node_change::NodeChange;
use crate::format::{HOLE, NO_NODE, NatEntry, Pointer, SummaryEntry};
use crate::tree::cache::{Entry, Key};
use crate::tree::node;
use crate::tree::open_files::LastName;
use crate::types::{Attr, Ino, SetAttr};
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::record::{self};
use furrow_rt::Page;
use furrow_zone::{Error, ErrorKind, QueueId, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use zerocopy::FromZeros;

/// Largest number of nodes read in advance, before the records that name them are replayed.
const AHEAD: usize = 512;
/// Largest number of node reads in flight.
const READS: usize = 64;

/// Blocks of nodes read in advance, by address.
pub(crate) type Ahead = BTreeMap<u32, Page>;

/// Replays records. `owners` collects the owners of the blocks that the records add.
///
/// The files that a record removes are freed at once, as in the original run. If the files were
/// kept to the end, all their nodes would be dirty at the same time, and the cache has no space for
/// that. A file that was created without a name and never gets one is freed at once too.
pub(crate) async fn replay(
    inner: &Rc<Inner>,
    mut records: Vec<Record>,
    owners: &mut BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    begin(inner, &records);
    let linked: BTreeSet<u32> = records.iter().flat_map(|record| &record.names).fold(
        BTreeSet::new(),
        |mut linked, (_, op)| {
            linked.extend(match op {
                NameOp::Link { ino, .. } => Some(*ino),
                _ => None,
            });
            linked
        },
    );
    let (mut ahead, mut upto) = (Ahead::new(), 0);
    let mut nameless = BTreeSet::new();
    for at in 0..records.len() {
        if at == upto {
            (ahead, upto) = read_ahead(inner, &records, at).await;
        }
        let record = &mut records[at];
        for (number, op) in &record.names {
            let next = inner.core.borrow().durability.namespace_log.next();
            if *number < next {
                continue;
            }
            if *number > next {
                let device = inner.core.borrow().env.device.clone();
                let what = format!("name change {next} is in no record, but the later {number} is");
                return Err(corrupt(&*device, format!("sync log: {what}")));
            }
            replay_name(inner, op).await?;
            match op {
                NameOp::Create { parent: NO_NODE, ino, .. } if !linked.contains(ino) => {
                    nameless.insert(*ino);
                    reap(inner, Ino(*ino)).await?;
                }
                _ => reap_removed(inner).await?,
            }
        }
        record.nodes.retain(|(_, entry)| !nameless.contains(&entry.ino.get()));
        record.changes.retain(|change| !nameless.contains(&change.ino));
        replay_nodes(inner, record, &ahead, owners).await?;
        replay_attributes(inner, record).await?;
    }
    end(inner);
    Ok(())
}

/// Frees the inodes that the replay of name changes has removed.
async fn reap_removed(inner: &Rc<Inner>) -> Result<()> {
    loop {
        let Some(ino) = inner.core.borrow_mut().tree.files_mut().take_removed() else {
            return Ok(());
        };
        reap(inner, ino).await?;
    }
}

/// Reads many nodes at once: the nodes that the records from `at` on name, replace or change. Nodes
/// that cannot be read are left out; the replay that needs such a node gets the same error. Also
/// returns the index of the first record whose nodes were not read.
async fn read_ahead(inner: &Rc<Inner>, records: &[Record], at: usize) -> (Ahead, usize) {
    let (mut wanted, mut upto) = (BTreeSet::new(), at);
    {
        let core = inner.core.borrow();
        for record in &records[at..] {
            for nid in record.touched() {
                let old = core.tables.nat().get(nid);
                wanted.extend((old.ino.get() != 0).then_some(old.addr.get()));
            }
            wanted.extend(record.nodes.iter().map(|(_, entry)| entry.addr.get()));
            upto += 1;
            if wanted.len() >= AHEAD {
                break;
            }
        }
    }
    wanted.remove(&HOLE);
    let mut ahead = Ahead::new();
    let wanted: Vec<u32> = wanted.into_iter().take(2 * AHEAD).collect();
    for some in wanted.chunks(READS) {
        let read = |addr: &u32| {
            let (inner, addr) = (inner.clone(), *addr);
            inner.rt.clone().spawn(async move { read_block(&inner, addr).await })
        };
        let flights: Vec<_> = some.iter().map(read).collect();
        for (addr, flight) in some.iter().zip(flights) {
            ahead.extend(flight.await.ok().map(|page| (*addr, page)));
        }
    }
    (ahead, upto)
}

/// Prepares the engine for a replay.
pub(crate) fn begin(inner: &Inner, records: &[Record]) {
    let core = &mut *inner.core.borrow_mut();
    core.health.set_replaying(true);
    // Replay must not allocate ids that a record names.
    let created = records.iter().flat_map(|r| &r.names).filter_map(|(_, op)| match op {
        NameOp::Create { ino, .. } => Some(*ino),
        _ => None,
    });
    let moved = records.iter().flat_map(|r| &r.nodes).map(|(nid, _)| *nid);
    // Ids that a record frees must not be allocated either: the record would free the id again.
    let freed = records.iter().flat_map(|r| &r.freed).copied();
    let changed = records.iter().flat_map(|r| &r.changes).map(|change| change.nid);
    core.tables.hold_ids(created.chain(moved).chain(changed).chain(freed));
}

/// Returns the engine from replay to normal operation.
pub(crate) fn end(inner: &Inner) {
    let core = &mut *inner.core.borrow_mut();
    core.health.set_replaying(false);
    core.tree.files_mut().forget_removed();
    core.tables.unhold_ids();
}

/// Replays the attribute changes of a record.
pub(crate) async fn replay_attributes(inner: &Rc<Inner>, record: &Record) -> Result<()> {
    for (ino, packed) in &record.xattrs {
        match inner.run(|core| core.replay_xattrs(*ino, packed)).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
    }
    for (ino, changes) in &record.attributes {
        let set = inner.run(|core| match is_set(&core.attr(*ino)?, changes) {
            // If the checkpoint already has these attributes, the inode stays clean: no space is
            // reserved for writing it again.
            true => Ok(()),
            false => core.setattr(*ino, changes).map(drop),
        });
        match set.await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

/// Whether `attr` already has the values in `changes`. A record contains no size.
fn is_set(attr: &Attr, changes: &SetAttr) -> bool {
    let Attr { mode, uid, gid, atime, mtime, ctime, .. } = *attr;
    let [atime, mtime, ctime] = [atime, mtime, ctime].map(Some);
    let (mode, uid, gid) = (Some(mode), Some(uid), Some(gid));
    *changes == SetAttr { mode, uid, gid, size: None, atime, mtime, ctime }
}

pub(crate) async fn replay_name(inner: &Rc<Inner>, op: &NameOp) -> Result<()> {
    let what = || format!("sync log: replay of {op}");
    if let NameOp::Rename { from, to, mode, time, old, new } = op {
        let renamed =
            inner.rename((Ino(*from), old), (Ino(*to), new), *mode, (*time, LastName::Frees)).await;
        return renamed.map(drop).map_err(|error| unexpected(error, what()));
    }
    inner
        .run(|core| match op {
            NameOp::Create { .. } => core.create(op).map(|_| ()),
            NameOp::Link { ino, parent, time, name } => {
                core.link(Ino(*ino), Ino(*parent), name, *time).map(|_| ())
            }
            NameOp::Remove { parent, time, name } => {
                core.remove(Ino(*parent), name, None, (*time, LastName::Frees)).map(|_| ())
            }
            NameOp::Rename { .. } => Ok(()),
        })
        .await
        .map_err(|error| unexpected(error, what()))
}

/// The error for a name change that could not be replayed. The change succeeded when it was logged,
/// so a failure other than that of the drive or of space means that the medium is damaged.
fn unexpected(error: Error, what: String) -> Error {
    match error.kind() {
        ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Corrupt => error.at(what),
        _ => Error::new(ErrorKind::Corrupt, error.at(what).to_string()),
    }
}

async fn read_block(inner: &Inner, addr: u32) -> Result<Page> {
    let (device, pages) = {
        let core = inner.core.borrow();
        (core.env.device.clone(), core.env.pages.clone())
    };
    let mut block = read_blocks(&*device, QueueId(0), BlockAddr(addr), 1, &pages).await?;
    block.pop().ok_or_else(|| corrupt(&*device, "empty read"))
}

/// Reads a node block and checks it.
pub(crate) async fn read_node(inner: &Rc<Inner>, nid: u32, entry: NatEntry) -> Result<Page> {
    read_node_ahead(inner, nid, entry, &Ahead::new()).await
}

/// Reads a node block and checks it. If the block is in `ahead`, it is only checked.
async fn read_node_ahead(
    inner: &Rc<Inner>,
    nid: u32,
    entry: NatEntry,
    ahead: &Ahead,
) -> Result<Page> {
    let addr = entry.addr.get();
    let page = match ahead.get(&addr) {
        Some(page) => page.clone(),
        None => read_block(inner, addr).await?,
    };
    let (expected, found) = (entry.crc.get(), record::crc32c(page.bytes()));
    let checked = node::check(&page, nid, entry.ino.get());
    if expected != found || checked.is_err() {
        let why = checked.err().unwrap_or_else(|| format!("CRC {found:08x}"));
        let message = format!("node {nid} at block {addr}: expected CRC {expected:08x}, {why}");
        let device = inner.core.borrow().env.device.clone();
        return Err(corrupt(&*device, message));
    }
    Ok(page)
}

/// Frees the nodes that replay itself made for `ino`, such as nodes of a new file's extended
/// attributes. The inode in the record replaces the replayed inode, and refers to the nodes of
/// the record.
fn drop_replayed(core: &mut Core, ino: u32, named: &BTreeSet<u32>) {
    let made: Vec<u32> = core.cache.dirty_nodes_of(ino).collect();
    for nid in made {
        let cached = core.cache.peek(&Key::Node(nid));
        let of_a_record = cached.is_some_and(|entry| entry.logged().is_some());
        let new = core.tables.nat().get(nid).addr.get() == HOLE && !of_a_record;
        if nid != ino && !named.contains(&nid) && new {
            core.drop_node(nid);
        }
    }
}

/// The slot and the content of a pointer, for comparison.
fn key((slot, pointer): &(u16, Pointer)) -> (u16, u32, u32) {
    (*slot, pointer.addr.get(), pointer.crc.get())
}

/// The content of node `nid` as replay has left it; `None` if there is no such node, or if it has
/// no block on the drive.
async fn present(inner: &Rc<Inner>, nid: u32, ahead: &Ahead) -> Result<Option<Page>> {
    let entry = {
        let core = inner.core.borrow();
        if let Some(cached) = core.cache.peek(&Key::Node(nid)) {
            return Ok(Some(cached.page().clone()));
        }
        core.tables.nat().get(nid)
    };
    if entry.ino.get() == 0 || entry.addr.get() == HOLE {
        return Ok(None);
    }
    read_node_ahead(inner, nid, entry, ahead).await.map(Some)
}

/// Applies `change` to the content it was made against: `named`, the node in the same record, or
/// otherwise the content that earlier records left.
pub(crate) async fn changed_node(
    inner: &Rc<Inner>,
    change: &NodeChange,
    named: Option<&Page>,
    ahead: &Ahead,
) -> Result<Page> {
    let kept = |page: &Entry| match page.is_dirty() {
        true => page.logged().cloned(),
        false => Some(page.page().clone()),
    };
    let cached = inner.core.borrow().cache.peek(&Key::Node(change.nid)).map(kept);
    let logged = match (named, cached) {
        (Some(named), _) => Some(named.clone()),
        (None, Some(kept)) => kept,
        (None, None) if change.new => None,
        (None, None) => present(inner, change.nid, ahead).await?,
    };
    let of = logged.as_ref().map(|page| node::header(page).ino.get());
    let at = inner.core.borrow().tables.nat().get(change.nid);
    let used = logged.is_some() || at.ino.get() != 0 && at.addr.get() != HOLE;
    let changed = match of {
        // A freed id is used again only after a checkpoint whose table shows it as free.
        _ if change.new && used => Err("it is new, but its id is in use".to_owned()),
        Some(other) if other != change.ino => Err(format!("it belongs to inode {other}")),
        _ => change.applied(logged.as_ref()),
    };
    let changed = changed.and_then(|page| {
        node::check(&page, change.nid, change.ino)?;
        change.check_pointers(node::first_pointer(&page))?;
        Ok(page)
    });
    changed.map_err(|why| {
        let (nid, ino) = (change.nid, change.ino);
        let message = format!("sync log: change of node {nid} of inode {ino}: {why}");
        let device = inner.core.borrow().env.device.clone();
        corrupt(&*device, message)
    })
}

/// Puts the nodes of a record in their new places, applies the record's node changes, and derives
/// the changes of the SIT. `ahead` has nodes that were read in advance.
pub(crate) async fn replay_nodes(
    inner: &Rc<Inner>,
    record: &Record,
    ahead: &Ahead,
    owners: &mut BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    let mut gone: BTreeSet<u32> = BTreeSet::new();
    let moved = record.nodes.iter().map(|(nid, _)| *nid).chain(record.freed.iter().copied());
    for nid in moved {
        let addr = inner.core.borrow().tables.nat().get(nid).addr.get();
        if let Some(page) = present(inner, nid, ahead).await? {
            gone.extend(Some(addr).filter(|addr| *addr != HOLE));
            gone.extend(node::pointers(&page).iter().map(|(_, p)| p.addr.get()));
        }
    }
    let mut nodes = BTreeMap::new();
    for (nid, entry) in &record.nodes {
        nodes.insert(*nid, (*entry, read_node_ahead(inner, *nid, *entry, ahead).await?));
    }
    let mut changed = BTreeMap::new();
    for change in &record.changes {
        let named = nodes.get(&change.nid).map(|(_, page)| page);
        let page = changed_node(inner, change, named, ahead).await?;
        changed.insert(change.nid, (change.ino, page, change.new));
    }
    let mut set: Vec<(u32, u16, u32)> = Vec::new();
    for (nid, (entry, page)) in &nodes {
        set.push((*nid, NODE_SLOT, entry.addr.get()));
        let page = changed.get(nid).map_or(page, |(_, page, _)| page);
        set.extend(node::pointers(page).iter().map(|(slot, p)| (*nid, *slot, p.addr.get())));
    }
    for (nid, (_, page, _)) in changed.iter().filter(|(nid, _)| !nodes.contains_key(nid)) {
        let before = present(inner, *nid, ahead).await?;
        let before = before.map(|page| node::pointers(&page)).unwrap_or_default();
        let now = node::pointers(page);
        let other = |all: &[(u16, Pointer)], one| all.binary_search_by_key(&one, key).is_err();
        gone.extend(before.iter().filter(|p| other(&now, key(p))).map(|(_, p)| p.addr.get()));
        let new = now.iter().filter(|p| other(&before, key(p)));
        set.extend(new.map(|(slot, p)| (*nid, *slot, p.addr.get())));
    }
    let core = &mut *inner.core.borrow_mut();
    // Invalidate all old blocks before marking new blocks valid: a block may have moved from one
    // node to another.
    for addr in gone {
        core.invalidate(addr);
    }
    for nid in &record.freed {
        if core.tables.nat().get(*nid).ino.get() != 0 {
            core.cache.remove(&Key::Node(*nid));
            core.tables.replay_freed(*nid);
        }
    }
    let named: BTreeSet<u32> = nodes.keys().chain(changed.keys()).copied().collect();
    let places = nodes.into_iter().map(|(nid, (entry, _))| (nid, entry));
    let new = changed.iter().filter(|(_, (.., new))| *new).map(|(nid, (ino, ..))| {
        let entry = NatEntry { ino: (*ino).into(), addr: HOLE.into(), ..NatEntry::new_zeroed() };
        (*nid, entry)
    });
    for (nid, entry) in places.chain(new) {
        let ino = entry.ino.get();
        if nid == ino {
            core.cache.remove_from(ino, 0..);
            drop_replayed(core, ino, &named);
        }
        core.cache.remove(&Key::Node(nid));
        core.tables.adopt_node(nid, entry);
    }
    for (nid, (ino, page, _)) in changed {
        // The next checkpoint writes the node. Until then, later changes are made against
        // this content.
        core.cache.insert(Key::Node(nid), Entry::dirty(page).owned_by(ino));
        core.cache.note_logged(nid);
    }
    for (nid, slot, addr) in set {
        let stream = core.alloc.stream_at(addr);
        core.set_valid(addr, true, stream);
        owners.insert(addr, SummaryEntry { node: nid.into(), slot: slot.into() });
    }
    Ok(())
}
