//! Replaying sync records through the code that made them.

use super::read::corrupt;
use super::roll::Record;
use crate::core::{Core, Inner};
use crate::format::{HOLE, NatEntry, SummaryEntry};
use crate::names::NameOp;
use crate::node;
use crate::place::NODE_SLOT;
use crate::types::Ino;
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::record::{self};
use furrow_rt::Page;
use furrow_zone::{Error, ErrorKind, QueueId, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use zerocopy::FromZeros;

/// Replays records. `owners` collects who owns the blocks they bring in.
pub(crate) async fn replay(
    inner: &Rc<Inner>,
    records: Vec<Record>,
    owners: &mut BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    let read_only = begin(inner, &records);
    for record in records {
        for (number, op) in &record.names {
            let next = inner.core.borrow().names.next();
            if *number < next {
                continue;
            }
            if *number > next {
                let device = inner.core.borrow().device.clone();
                let what = format!("name change {next} is in no record, {number} is");
                return Err(corrupt(&*device, format!("sync log: {what}: run furrow fsck")));
            }
            replay_name(inner, op).await?;
        }
        replay_nodes(inner, &record, owners).await?;
        replay_attributes(inner, &record).await?;
    }
    end(inner, read_only);
    Ok(())
}

/// Before a replay: whether the mount is read-only, for [`end`].
pub(crate) fn begin(inner: &Inner, records: &[Record]) -> bool {
    let core = &mut *inner.core.borrow_mut();
    core.replaying = true;
    // What replay allocates itself must not take an id that a record names.
    let created = records.iter().flat_map(|r| &r.names).filter_map(|(_, op)| match op {
        NameOp::Create { ino, .. } => Some(*ino),
        _ => None,
    });
    let moved = records.iter().flat_map(|r| &r.nodes).map(|(nid, _)| *nid);
    // Freed ones too: a later record would take it away again.
    let freed = records.iter().flat_map(|r| &r.freed).copied();
    core.ids.hold(created.chain(moved).chain(freed));
    std::mem::replace(&mut core.options.read_only, false)
}

/// After a replay.
pub(crate) fn end(inner: &Inner, read_only: bool) {
    let core = &mut *inner.core.borrow_mut();
    core.options.read_only = read_only;
    core.replaying = false;
    core.ids.unhold();
}

/// Replays what a record says of attributes.
pub(crate) async fn replay_attributes(inner: &Rc<Inner>, record: &Record) -> Result<()> {
    for (ino, packed) in &record.xattrs {
        match inner.run(|core| core.replay_xattrs(*ino, packed)).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
    }
    for (ino, changes, ctime) in &record.attributes {
        let set = inner
            .run(|core| {
                core.setattr(*ino, changes)?;
                core.inode_mut(*ino).head.ctime = node::stamp(*ctime);
                Ok(())
            })
            .await;
        match set {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

pub(crate) async fn replay_name(inner: &Rc<Inner>, op: &NameOp) -> Result<()> {
    let what = || format!("sync log: replay of {op}");
    inner
        .run(|core| match op {
            NameOp::Create { .. } => core.create(op).map(|_| ()),
            NameOp::Link { ino, parent, time, name } => {
                core.link(Ino(*ino), Ino(*parent), name, *time).map(|_| ())
            }
            NameOp::Remove { parent, time, name } => {
                core.remove(Ino(*parent), name, None, *time).map(|_| ())
            }
            NameOp::Rename { from, to, mode, time, old, new } => {
                core.rename((Ino(*from), old), (Ino(*to), new), *mode, *time).map(|_| ())
            }
        })
        .await
        .map_err(|error| match error.kind() {
            ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Corrupt => error.at(what()),
            // It succeeded when it was logged: what it is replayed on is not what it was.
            _ => Error::new(ErrorKind::Corrupt, error.at(what()).to_string()),
        })
}

/// Reads a node block and checks it.
pub(crate) async fn read_node(inner: &Rc<Inner>, nid: u32, entry: NatEntry) -> Result<Page> {
    let (device, pages) = {
        let core = inner.core.borrow();
        (core.device.clone(), core.pages.clone())
    };
    let addr = BlockAddr(entry.addr.get());
    let mut block = read_blocks(&*device, QueueId(0), addr, 1, &pages).await?;
    let page = block.pop().ok_or_else(|| corrupt(&*device, "empty read"))?;
    let (expected, found) = (entry.crc.get(), record::crc32c(page.bytes()));
    let checked = node::check(&page, nid, entry.ino.get());
    if expected != found || checked.is_err() {
        let why = checked.err().unwrap_or_else(|| format!("CRC {found:08x}"));
        let message = format!("node {nid} at block {addr}: expected CRC {expected:08x}, {why}");
        return Err(corrupt(&*device, message));
    }
    Ok(page)
}

/// Frees nodes that replay itself made for `ino`, as a creation with extended attributes does: the
/// inode that takes the place of the replayed one refers to those of the record.
fn drop_replayed(core: &mut Core, ino: u32, named: &BTreeSet<u32>) {
    let made: Vec<u32> = core.cache.dirty_nodes_of(ino).collect();
    for nid in made {
        if nid != ino && !named.contains(&nid) && core.nat.get(nid).addr.get() == HOLE {
            core.drop_node(nid);
        }
    }
}

/// Puts the nodes of a record in their new places, and derives the SIT from the difference.
pub(crate) async fn replay_nodes(
    inner: &Rc<Inner>,
    record: &Record,
    owners: &mut BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    let mut gone: BTreeSet<u32> = BTreeSet::new();
    let changed = record.nodes.iter().map(|(nid, _)| *nid).chain(record.freed.iter().copied());
    for nid in changed {
        let old = inner.core.borrow().nat.get(nid);
        if old.ino.get() != 0 && old.addr.get() != HOLE {
            let page = read_node(inner, nid, old).await?;
            gone.insert(old.addr.get());
            gone.extend(node::pointers(&page).iter().map(|(_, p)| p.addr.get()));
        }
    }
    let mut fresh = Vec::new();
    for (nid, entry) in &record.nodes {
        fresh.push((*nid, *entry, read_node(inner, *nid, *entry).await?));
    }
    let core = &mut *inner.core.borrow_mut();
    // All that went before all that came: a block may have moved from one node to another.
    for addr in gone {
        core.invalidate(addr);
    }
    for nid in &record.freed {
        if core.nat.get(*nid).ino.get() != 0 {
            core.cache.remove(&crate::cache::Key::Node(*nid));
            core.nat.update(*nid, |entry| *entry = FromZeros::new_zeroed());
            core.ids.put(*nid);
        }
    }
    let named: BTreeSet<u32> = record.nodes.iter().map(|(nid, _)| *nid).collect();
    for (nid, entry, page) in fresh {
        let ino = entry.ino.get();
        if nid == ino {
            core.cache.remove_from(ino, 0..);
            drop_replayed(core, ino, &named);
        }
        core.cache.remove(&crate::cache::Key::Node(nid));
        core.ids.claim(nid);
        core.nat.update(nid, |e| *e = entry);
        let stream = |core: &Core, addr| core.stream_at(addr);
        let mut own = |core: &mut Core, addr: u32, slot: u16| {
            let stream = stream(core, addr);
            core.set_valid(addr, true, stream);
            let owner = SummaryEntry { node: nid.into(), slot: slot.into() };
            owners.insert(addr, owner);
        };
        own(core, entry.addr.get(), NODE_SLOT);
        for (slot, pointer) in node::pointers(&page) {
            own(core, pointer.addr.get(), slot);
        }
    }
    Ok(())
}
