//! One batch of a cleaning: confirm the owners of blocks, read the blocks, verify them, move them.

use super::owners::{Item, Owner};
use crate::alloc::place::{Block, NODE_SLOT, node_stream};
use crate::blocked::{Blocked, Fetch, NotApplied};
use crate::core::{Core, Inner};
use crate::format::{Pointer, class};
use crate::tree::cache::{Entry, Key};
use crate::tree::node::{self, header};
use crate::types::Ino;
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::pool::ReadPin;
use furrow_log::record::crc32c;
use furrow_log::survey::{has_vanished, patiently};
use furrow_policy::FsDefect;
use furrow_rt::Page;
use furrow_zone::{Error, ErrorKind, QueueId, Result};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Stream for data that cleaning moves: the cold one, as in F2FS.
const MOVED_DATA: u8 = 2;
/// Maximum number of blocks in a batch: one segment.
const BATCH_MAX: usize = 512;
/// Maximum number of blocks in one read. If a read fails, its blocks are read again one by one.
const RUN_MAX: usize = 64;

/// The result of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(super) data: u64,
    pub(super) nodes: u64,
    pub(super) failed: u64,
    /// Number of nodes that were clean and became dirty by the moves.
    pub(super) parents: u32,
    /// There was not enough space, so the batch was not begun.
    pub(super) no_room: bool,
}

impl Moved {
    pub(super) fn add(&mut self, other: &Moved) {
        self.data += other.data;
        self.nodes += other.nodes;
        self.failed += other.failed;
    }
}

/// Blocks of a batch whose owners are confirmed, and the pins of the zones that hold them.
pub(crate) struct Confirmed {
    pub(crate) owned: Vec<(Item, Owner)>,
    unowned: Vec<Item>,
    pub(crate) pins: Vec<ReadPin>,
}

impl Core {
    /// Maximum number of blocks in a batch: at most a segment, and no more than a small cache
    /// can hold.
    pub(super) fn clean_batch(&self) -> usize {
        (self.env.dirty_limit() / 4).clamp(16, BATCH_MAX)
    }

    /// Confirms the owners of `items`. All missing nodes are requested at once.
    pub(crate) fn confirm(&mut self, items: &[Item]) -> Result<Confirmed, NotApplied> {
        let mut missing: SmallVec<[Fetch; 4]> = SmallVec::new();
        let (mut owned, mut unowned) = (Vec::with_capacity(items.len()), Vec::new());
        for item in items {
            if !self.alloc.is_valid(item.addr) {
                continue;
            }
            match self.owner_of(item) {
                Ok(Some(owner)) => owned.push((*item, owner)),
                Ok(None) => unowned.push(*item),
                Err(NotApplied::Blocked(Blocked::Load(fetches))) => missing.extend(fetches),
                Err(stop) => return Err(stop),
            }
        }
        if !missing.is_empty() {
            return Err(Blocked::Load(missing).into());
        }
        let zones =
            owned.iter().filter_map(|(item, _)| BlockAddr(item.addr).locate(&self.env.geometry));
        let mut zones: Vec<_> = zones.map(|(zone, _)| zone).collect();
        zones.dedup();
        let pins = zones.into_iter().map(|zone| self.alloc.zones().pin(zone)).collect();
        Ok(Confirmed { owned, unowned, pins })
    }

    /// Moves the blocks of `items` whose content was read and whose owners still point to them.
    pub(crate) fn move_items(
        &mut self,
        items: &[Item],
        pages: &BTreeMap<u32, Page>,
    ) -> Result<Moved, NotApplied> {
        self.may_write()?;
        let confirmed = self.confirm(items)?;
        for (_, owner) in &confirmed.owned {
            if let (Key::Data(ino, block), true) = (owner.key(), self.is_dirty(owner.key())) {
                self.holder(Ino(ino), block)?;
            }
        }
        let nodes = self.unchanged_parents(&confirmed.owned);
        let clean = |nid: &&u32| !self.is_dirty(Key::Node(**nid));
        let parents = nodes.iter().filter(clean).count() as u32;
        if self.spare() < confirmed.owned.len() as u64 + u64::from(parents) {
            return Ok(Moved { no_room: true, ..Moved::default() });
        }
        // Apply the moves in file order, not in the order in which the blocks were written.
        let mut owned = confirmed.owned;
        owned.sort_by_key(|(_, owner)| owner.key());
        self.alloc.write_for_cleaning(true);
        let moved = self.move_owned(owned, pages);
        self.alloc.write_for_cleaning(false);
        self.cache.note_moved_below(nodes);
        moved.map(|moved| Moved { parents, ..moved })
    }

    fn move_owned(
        &mut self,
        owned: Vec<(Item, Owner)>,
        pages: &BTreeMap<u32, Page>,
    ) -> Result<Moved, NotApplied> {
        let mut moved = Moved::default();
        for (item, owner) in owned {
            let key = owner.key();
            let dirty = self.is_dirty(key);
            let page = match self.cache.peek(&key) {
                Some(cached) => Some(cached.page().clone()),
                None => pages.get(&item.addr).cloned(),
            };
            match (owner, page) {
                // A dirty node needs no move: the next checkpoint writes it with its changes.
                (Owner::Node { .. }, _) if dirty => {}
                (Owner::Data { .. }, _) if dirty => {
                    let Key::Data(ino, block) = key else { continue };
                    self.write_data(Ino(ino), block)?;
                    moved.data += 1;
                }
                (_, None) => {}
                (owner, Some(page)) => {
                    self.move_block(item.addr, &owner, page)?;
                    match owner {
                        Owner::Data { .. } => moved.data += 1,
                        Owner::Node { .. } => moved.nodes += 1,
                    }
                }
            }
        }
        self.stats.counters.clean_data_blocks += moved.data;
        self.stats.counters.clean_node_blocks += moved.nodes;
        Ok(moved)
    }

    pub(super) fn is_dirty(&self, key: Key) -> bool {
        self.cache.peek(&key).is_some_and(Entry::is_dirty)
    }

    /// The nodes that point to the blocks `owned` and that are clean, or dirty only because blocks
    /// below them were moved.
    fn unchanged_parents(&self, owned: &[(Item, Owner)]) -> Vec<u32> {
        let mut nodes: Vec<u32> = Vec::new();
        for (_, owner) in owned {
            if let Owner::Data { holder, .. } = owner {
                nodes.push(holder.nid);
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|nid| !self.is_dirty(Key::Node(*nid)) || self.cache.is_moved_below(*nid));
        nodes
    }

    /// Writes a clean block to a new place with its content and CRC unchanged.
    fn move_block(&mut self, from: u32, owner: &Owner, page: Page) -> Result<(), NotApplied> {
        let key = owner.key();
        let recomputed = self.env.options.variant.has(FsDefect::RecomputedCrc);
        let crc = if recomputed { crc32c(page.bytes()) } else { owner.crc() };
        let (stream, node, slot, ino) = match owner {
            Owner::Data { holder, key: Key::Data(ino, _), .. } => {
                (MOVED_DATA, holder.nid, holder.slot, *ino)
            }
            Owner::Data { holder, .. } => (MOVED_DATA, holder.nid, holder.slot, 0),
            Owner::Node { nid, entry } => {
                let head = header(&page);
                (node_stream(head.class, head.level), *nid, NODE_SLOT, entry.ino.get())
            }
        };
        // Until the block is on the drive, readers must find it in the cache.
        self.cache.insert(key, Entry::clean(page, Some(crc)).owned_by(ino));
        let (page, ticket) = self.cache.begin_write(&key, crc).expect("invariant: inserted");
        let addr = self.write_block(Block { stream, node, slot }, page)?;
        self.durability.note_write(ticket);
        match owner {
            Owner::Data { holder, .. } => self.set_slot(*holder, Pointer::new(addr, crc)),
            Owner::Node { nid, .. } => {
                self.tables.wrote_node(*nid, addr, crc);
            }
        }
        self.invalidate(from);
        Ok(())
    }

    /// Checks that `page` has the content that `owner` names; the error says what differs.
    fn check_moved(&self, owner: &Owner, page: &Page) -> Result<(), String> {
        let (expected, found) = (owner.crc(), crc32c(page.bytes()));
        if expected != found && !self.env.options.variant.has(FsDefect::RecomputedCrc) {
            return Err(format!("expected CRC {expected:08x}, found {found:08x}"));
        }
        match owner {
            Owner::Node { nid, entry } => node::check(page, *nid, entry.ino.get()),
            Owner::Data { class: class::DIRECTORY, .. } => crate::tree::dirent::check(page.bytes())
                .map_err(|error| format!("not a block of a directory: {error}")),
            Owner::Data { .. } => Ok(()),
        }
    }

    /// Notes that the block at `addr` stays where it is, and why.
    fn stays(&mut self, addr: u32, owner: Option<&Owner>, why: &str, failures: &mut Vec<String>) {
        let place = match BlockAddr(addr).locate(&self.env.geometry) {
            Some((zone, offset)) => format!("zone {zone} offset {offset}"),
            None => format!("block {addr}"),
        };
        let whose = owner.map_or_else(|| "no owner".to_owned(), |owner| owner.key().owner());
        let what = format!("{}: {place}: {whose}: {why}", self.env.device.name());
        failures.push(what.clone());
        self.stats.counters.clean_failed_blocks += 1;
        self.note_damaged_block(what);
    }
}

impl Inner {
    /// Cleans one batch. Blocks that cannot be moved are listed in `failures`.
    pub(super) async fn clean_step(
        self: &Rc<Self>,
        items: &[Item],
        failures: &mut Vec<String>,
    ) -> Result<Moved> {
        let (confirmed, mut failed) = self.confirm_all(items, failures).await?;
        let wanted: Vec<(Item, Owner)> = {
            let core = self.core.borrow();
            let absent = |owner: &Owner| !core.cache.contains(&owner.key());
            confirmed.owned.iter().filter(|(_, owner)| absent(owner)).copied().collect()
        };
        let (pages, damaged) = self.read_patiently(&wanted).await?;
        for (item, owner, error) in &damaged {
            self.core.borrow_mut().stays(item.addr, Some(owner), &error.to_string(), failures);
        }
        failed += damaged.len() as u64;
        let movable: Vec<Item> = {
            let core = self.core.borrow();
            let here = |item: &Item, owner: &Owner| {
                pages.contains_key(&item.addr) || core.cache.contains(&owner.key())
            };
            let owned = confirmed.owned.iter();
            owned.filter(|(item, owner)| here(item, owner)).map(|(item, _)| *item).collect()
        };
        let moved = self.run(|core| core.move_items(&movable, &pages)).await;
        self.after_dispatch();
        drop(confirmed.pins);
        let mut moved = moved?;
        moved.failed += failed;
        self.settle_writes().await?;
        Ok(moved)
    }

    /// Confirms the owners of `items`. If a node cannot be read, only the blocks of that node stay
    /// where they are. Also returns the number of blocks that stay.
    async fn confirm_all(
        self: &Rc<Self>,
        items: &[Item],
        failures: &mut Vec<String>,
    ) -> Result<(Confirmed, u64)> {
        let mut all = match self.run(|core| core.confirm(items)).await {
            Err(error) if self.is_damage(&error) => {
                let mut all = Confirmed { owned: vec![], unowned: vec![], pins: vec![] };
                let mut failed = 0;
                for item in items {
                    match self.run(|core| core.confirm(std::slice::from_ref(item))).await {
                        Ok(mut one) => {
                            all.owned.append(&mut one.owned);
                            all.unowned.append(&mut one.unowned);
                            all.pins.append(&mut one.pins);
                        }
                        Err(error) if self.is_damage(&error) => {
                            let why = format!("its node cannot be read: {error}");
                            self.core.borrow_mut().stays(item.addr, None, &why, failures);
                            failed += 1;
                        }
                        Err(error) => return Err(error),
                    }
                }
                (all, failed)
            }
            confirmed => (confirmed?, 0),
        };
        for item in &all.0.unowned {
            let why = "marked valid, but no node points to it: run furrow fsck";
            self.core.borrow_mut().stays(item.addr, None, why, failures);
            all.1 += 1;
        }
        Ok(all)
    }

    /// Whether an error means that a block on the drive cannot be read or has wrong content.
    fn is_damage(&self, error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt)
            && !self.ended.get()
            && !has_vanished(&*self.core.borrow().env.device, error)
    }

    /// Like [`read_all`](Self::read_all). If the drive was gone for a moment, reads
    /// again.
    ///
    /// # Errors
    /// An error if the drive is gone: it has no damage then.
    pub(crate) async fn read_patiently(
        self: &Rc<Self>,
        wanted: &[(Item, Owner)],
    ) -> Result<(BTreeMap<u32, Page>, Vec<(Item, Owner, Error)>)> {
        let device = self.core.borrow().env.device.clone();
        let read = patiently(&self.rt, &*device, async || {
            let read = self.read_all(wanted).await;
            let gone = read.1.iter().any(|(.., error)| error.is_gone());
            if gone { Err(read) } else { Ok(read) }
        });
        let (Ok(read) | Err(read)) = read.await;
        match read.1.iter().find(|(.., error)| has_vanished(&*device, error)) {
            Some((.., error)) => Err(error.clone()),
            None => Ok(read),
        }
    }

    /// Reads the blocks `wanted`, adjacent blocks in one command, all commands in flight at once.
    /// Returns the correct blocks by address, and the other blocks, each with the reason.
    pub(crate) async fn read_all(
        self: &Rc<Self>,
        wanted: &[(Item, Owner)],
    ) -> (BTreeMap<u32, Page>, Vec<(Item, Owner, Error)>) {
        let mut sorted = wanted.to_vec();
        sorted.sort_by_key(|(item, _)| item.addr);
        let (device, geometry) = {
            let core = self.core.borrow();
            (core.env.device.clone(), core.env.geometry.clone())
        };
        let mut flights = Vec::new();
        let zone_of = |addr: u32| BlockAddr(addr).locate(&geometry).map(|(zone, _)| zone);
        let neighbours = |a: &(Item, Owner), b: &(Item, Owner)| {
            a.0.addr.checked_add(1) == Some(b.0.addr) && zone_of(a.0.addr) == zone_of(b.0.addr)
        };
        for run in sorted.chunk_by(neighbours).flat_map(|run| run.chunks(RUN_MAX)) {
            let run = run.to_vec();
            let (device, pool) = (device.clone(), self.pages.clone());
            flights.push(self.rt.spawn(async move {
                let from = BlockAddr(run[0].0.addr);
                let read = read_blocks(&*device, QueueId(0), from, run.len() as u32, &pool).await;
                let mut found = Vec::with_capacity(run.len());
                match read {
                    Ok(pages) => found.extend(run.into_iter().zip(pages.into_iter().map(Ok))),
                    Err(_) => {
                        // The run failed: read its blocks one by one to find out which of
                        // them failed.
                        for (item, owner) in run {
                            let addr = BlockAddr(item.addr);
                            let read = read_blocks(&*device, QueueId(0), addr, 1, &pool).await;
                            let page = read.map(|mut pages| pages.swap_remove(0));
                            found.push(((item, owner), page));
                        }
                    }
                }
                found
            }));
        }
        let (mut pages, mut failed) = (BTreeMap::new(), Vec::new());
        for flight in flights {
            for ((item, owner), page) in flight.await {
                let core = self.core.borrow();
                let checked = page.and_then(|page| match core.check_moved(&owner, &page) {
                    Ok(()) => Ok(page),
                    Err(why) => Err(Error::new(ErrorKind::Corrupt, why)),
                });
                match checked {
                    Ok(page) => drop(pages.insert(item.addr, page)),
                    Err(error) => failed.push((item, owner, error)),
                }
            }
        }
        (pages, failed)
    }

    /// Writes the nodes that moving `items` changed. Nodes of files with dirty data are left out,
    /// because they are written together with that data.
    pub(super) async fn flush_nodes(self: &Rc<Self>, items: &[Item]) -> Result<()> {
        let result = self
            .run(|core| {
                core.may_write()?;
                let mut nodes: Vec<(u32, u32)> = Vec::new();
                for item in items {
                    // If a file grew, its first pointers are in a leaf with another id than the
                    // summary says. That leaf waits for the checkpoint.
                    let Some(nid) = item.parent() else { continue };
                    let Some(entry) = core.cache.peek(&Key::Node(nid)) else { continue };
                    if entry.is_dirty() && core.cache.dirty_of(entry.owner()).next().is_none() {
                        nodes.push((entry.owner(), nid));
                    }
                }
                nodes.sort_unstable();
                nodes.dedup();
                core.alloc.write_for_cleaning(true);
                let written = nodes.into_iter().try_for_each(|(_, nid)| {
                    if !core.cache.is_moved_below(nid) {
                        core.alloc.note_at_risk();
                    }
                    core.write_node(nid)
                });
                core.alloc.write_for_cleaning(false);
                written
            })
            .await;
        self.after_dispatch();
        result
    }

    /// Waits until the number of writes in flight is low enough for the next batch.
    async fn settle_writes(self: &Rc<Self>) -> Result<()> {
        let (in_flight, batch, point) = {
            let core = self.core.borrow();
            (core.durability.in_flight(), core.clean_batch(), core.env.writer.sequence_point())
        };
        if in_flight > 2 * batch {
            self.wait_durable_or_relocated(point).await?;
        }
        Ok(())
    }
}
