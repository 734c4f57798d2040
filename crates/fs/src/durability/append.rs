//! Data written by Zone Append: blocks get their addresses from the drive's answers.
//!
//! With `Order::Append`, data blocks go to the drive before any metadata refers to them. For each
//! batch, the engine sets aside the blocks that ordinary writes would take from the heads of the
//! streams, and then sends appends. When the drive answers an append, its blocks get their
//! pointers, their places in the segment's summary and their bits in the SIT. Only then are nodes
//! and records written, by ordinary writes: the price of not knowing addresses beforehand is one
//! wait. A page stays dirty until its block is placed, that is, has its pointer. So code that reads
//! dirty pages in the meantime need not know about appends. At worst, such code writes a page that
//! is in flight, and the block appended for the page becomes garbage.
//!
//! Invariants
//! - Together, the appends in flight fill exactly the blocks set aside for them; only the order is
//!   open. So a head's `next`, the space and the drive's limits are the same as with writes.
//! - A pointer to a block is set only when the block is on the drive.
//! - A segment's summary is written when all appends to the segment are placed; no later block of
//!   its zone is written before it (`Payload::Later`).
//! - At the snapshot of a checkpoint no append is in flight: all summaries in the snapshot
//!   are complete.
//! - This file completes every append. If the drive or the engine fails, the blocks of the append
//!   belong to no file.
//!
//! Not here: nodes, directories' records, tables and logs, which never use appends.

use crate::alloc::place::{Block, data_stream};
use crate::blocked::NotApplied;
use crate::core::{Core, Inner};
use crate::durability::Appends;
use crate::format::{HOLE, Pointer, SummaryEntry};
use crate::tree::cache::Key;
use crate::tree::node::{Holder, header};
use crate::types::Ino;
use furrow_log::address::BlockAddr;
use furrow_log::audit::equal;
use furrow_log::record::crc32c;
use furrow_log::writer::{Kind as WriteKind, Placement, WriteHandle, ZoneWrite};
use furrow_rt::{Page, Pages};
use furrow_zone::{Result, ZoneId};
use std::ops::Range;
use std::rc::Rc;
use zerocopy::FromZeros;

/// Largest number of blocks in one batch of appends.
const BATCH: usize = 256;

/// One block to be appended.
struct Item {
    ino: Ino,
    block: u32,
    page: Page,
    crc: u32,
}

/// One append in flight.
struct Flight {
    zone: ZoneId,
    stream: u8,
    items: Vec<Item>,
    written: WriteHandle,
}

/// Adjacent blocks that are sent as one append.
struct Run {
    zone: ZoneId,
    end: u32,
    stream: u8,
    items: Vec<Item>,
}

impl Appends {
    pub(crate) fn is_idle(&self) -> bool {
        self.flights == 0
    }

    /// Number of blocks whose appends are in flight.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn has(&self, ino: Ino, block: u32) -> bool {
        self.blocks.contains(&(ino, block))
    }

    fn has_file(&self, ino: Ino) -> bool {
        self.has_range(ino, &(0..u32::MAX))
    }

    fn has_range(&self, ino: Ino, range: &Range<u32>) -> bool {
        self.blocks.range((ino, range.start)..(ino, range.end)).next().is_some()
    }

    /// Checks the accounts of appends.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit(&self) -> Result<()> {
        let idle = self.flights == 0;
        let account = format_args!("Appends::blocks without an append in flight");
        equal(account, 0, if idle { self.blocks.len() } else { 0 })
    }
}

impl Core {
    /// Begins to append the blocks `keys` that are dirty and not in flight. Returns no flights if
    /// the engine uses writes, if an operation waits for appends to end, or if space is short: the
    /// caller then writes the blocks.
    fn begin_appends(&mut self, keys: &[(Ino, u32)]) -> Result<Vec<Flight>, NotApplied> {
        self.may_write()?;
        let wanted = self.alloc.kept_from_users() + 2 * keys.len() as u64;
        if self.env.writer.append_limit() == 0
            || self.durability.appends.held > 0
            || !self.has_spare(wanted)
        {
            return Ok(Vec::new());
        }
        let mut items = Vec::with_capacity(keys.len());
        for (ino, block) in keys {
            let key = Key::Data(ino.0, *block);
            let Some(entry) = self.cache.peek(&key).filter(|entry| entry.is_dirty()) else {
                continue;
            };
            if self.durability.appends.has(*ino, *block) {
                continue;
            }
            let (page, crc) = (entry.page().clone(), entry.crc());
            let crc = crc.unwrap_or_else(|| crc32c(page.bytes()));
            let holder = self.holder_of(*ino, *block)?;
            let stream = data_stream(header(self.node(holder.nid)?).class);
            items.push((stream, Item { ino: *ino, block: *block, page, crc }));
        }
        let mut flights = Vec::new();
        let mut run: Option<Run> = None;
        for (stream, item) in items {
            self.cache.set_crc(&Key::Data(item.ino.0, item.block), item.crc);
            if let Err(stop) = self.set_aside(stream, item, &mut run, &mut flights) {
                // The engine has stopped writing, but the appends in flight must still
                // be completed.
                self.health.fail(crate::blocked::error_of(stop));
                break;
            }
        }
        self.append_run(&mut run, &mut flights);
        Ok(flights)
    }

    fn holder_of(&mut self, ino: Ino, block: u32) -> Result<Holder, NotApplied> {
        match self.holder(ino, block)? {
            Some(holder) => Ok(holder),
            None => Err(self.corrupt(format!("inode {ino} block {block} has no holder"))),
        }
    }

    /// Sets a block of `stream` aside for `item`, which joins `run` if its block follows the run.
    fn set_aside(
        &mut self,
        stream: u8,
        item: Item,
        run: &mut Option<Run>,
        flights: &mut Vec<Flight>,
    ) -> Result<(), NotApplied> {
        let dirty = self.cache.dirty_pages() as u64;
        let place = self.alloc.next_place(stream, dirty);
        self.carry_out();
        let (head, zone, offset) = place.map_err(|error| self.out_of_places(error))?;
        let stream = self.alloc.stream_of_head(head) as u8;
        let limit = self.env.writer.append_limit() as usize;
        let joins = |run: &Run| {
            run.zone == zone && run.end == offset && run.items.len() < limit && run.stream == stream
        };
        if !run.as_ref().is_some_and(joins) {
            self.append_run(run, flights);
        }
        self.durability.appends.blocks.insert((item.ino, item.block));
        let run_ = run.get_or_insert_with(|| Run { zone, end: offset, stream, items: Vec::new() });
        run_.items.push(item);
        run_.end = offset + 1;
        if self.alloc.set_aside(head) {
            self.append_run(run, flights);
            self.alloc.finish_segment(head);
            self.carry_out();
        }
        Ok(())
    }

    /// Dispatches the gathered run as one append.
    fn append_run(&mut self, run: &mut Option<Run>, flights: &mut Vec<Flight>) {
        let Some(Run { zone, end, stream, items }) = run.take() else { return };
        self.alloc.next_stamp();
        let pages: Pages = items.iter().map(|item| item.page.clone()).collect();
        let write = ZoneWrite::pages(zone, WriteKind::Data, pages);
        let placement = Placement::Append;
        let written = self.env.writer.submit(ZoneWrite { placement, ..write });
        debug_assert_eq!(written.at() + items.len() as u32, end);
        self.alloc.note_unstable(zone, end);
        self.durability.appends.flights += 1;
        flights.push(Flight { zone, stream, items, written });
    }

    /// True if the page appended for `item` is still the current content of its block.
    fn is_wanted(&self, item: &Item) -> bool {
        let entry = self.cache.peek(&Key::Data(item.ino.0, item.block));
        entry.is_some_and(|entry| {
            // A change would have copied the page, because `item` still holds a reference to it.
            entry.is_dirty() && std::ptr::eq(entry.page().bytes(), item.page.bytes())
        })
    }

    /// Places `items`, which the drive put into `zone` from block `at` on.
    fn place_appended(
        &mut self,
        zone: ZoneId,
        at: u32,
        stream: u8,
        items: &[Item],
    ) -> Result<(), NotApplied> {
        let mut holders = Vec::with_capacity(items.len());
        for item in items {
            // If the file's block was removed, changed or otherwise written in the meantime, the
            // appended block belongs to no file.
            holders.push(match self.is_wanted(item) {
                true => Some(self.holder_of(item.ino, item.block)?),
                false => None,
            });
        }
        for holder in holders.iter().flatten() {
            self.node(holder.nid)?;
        }
        for ((item, holder), offset) in items.iter().zip(holders).zip(at..) {
            let addr = BlockAddr::new(&self.env.geometry, zone, offset).0;
            let mut owner = SummaryEntry::new_zeroed();
            if let Some(holder) = holder {
                let old = self.slot(holder);
                self.set_slot(holder, Pointer::new(addr, item.crc));
                if old.addr.get() != HOLE {
                    self.invalidate(old.addr.get());
                }
                self.set_valid(addr, true, stream);
                self.cache.mark_clean(&Key::Data(item.ino.0, item.block));
                let block = Block { stream, node: holder.nid, slot: holder.slot };
                owner = SummaryEntry { node: block.node.into(), slot: block.slot.into() };
            }
            self.alloc.told(addr, owner);
            self.carry_out();
        }
        self.end_flight(items);
        Ok(())
    }

    /// Handles the failure of an append to `zone`. The places of other appends to the zone are then
    /// no longer certain. Segments of the zone's superzone with appends in flight get no summary,
    /// and the superzone is no longer written.
    fn appends_failed(&mut self, zone: ZoneId, items: &[Item]) {
        self.alloc.abandon_segments(zone);
        self.carry_out();
        self.end_flight(items);
    }

    /// Gives up the blocks of an append that could not be placed, from block `at` of `zone` on:
    /// they belong to no file.
    fn abandon_appended(&mut self, zone: ZoneId, at: u32, items: &[Item]) {
        for offset in at..at + items.len() as u32 {
            let addr = BlockAddr::new(&self.env.geometry, zone, offset).0;
            self.alloc.told(addr, SummaryEntry::new_zeroed());
        }
        self.carry_out();
        self.end_flight(items);
    }

    fn end_flight(&mut self, items: &[Item]) {
        for item in items {
            self.durability.appends.blocks.remove(&(item.ino, item.block));
        }
        let flights = self.durability.appends.flights;
        self.durability.appends.flights = self.less("Appends::flights", flights, 1);
    }

    /// Dirty blocks that are not in flight: those of `ino`, or of all files for `None`.
    fn to_append(&self, ino: Option<Ino>) -> Vec<(Ino, u32)> {
        let new = |key: &(Ino, u32)| !self.durability.appends.has(key.0, key.1);
        match ino {
            Some(ino) => self.cache.dirty_of(ino.0).map(|b| (ino, b)).filter(new).collect(),
            None => {
                let data = self.cache.all_dirty().map_while(|key| match key {
                    Key::Data(ino, block) => Some((Ino(ino), block)),
                    Key::Node(_) => None,
                });
                data.filter(new).collect()
            }
        }
    }
}

impl Inner {
    /// Begins to append a batch of dirty blocks and returns their number. If it is 0, the caller
    /// writes the blocks instead.
    pub(crate) async fn append_some(self: &Rc<Self>) -> Result<usize> {
        if self.core.borrow().env.writer.append_limit() == 0 {
            return Ok(0);
        }
        let keys: Vec<_> = self.core.borrow().to_append(None).into_iter().take(BATCH).collect();
        self.append(&keys).await
    }

    /// Appends the dirty blocks of `inos`, or of all files if the list is empty, and waits until
    /// they are placed. Blocks that could not be appended stay dirty.
    ///
    /// # Errors
    /// If the drive fails, or if the path to a block cannot be read.
    pub(crate) async fn append_files(self: &Rc<Self>, inos: &[Ino]) -> Result<()> {
        if self.core.borrow().env.writer.append_limit() == 0 {
            return Ok(());
        }
        let files: Vec<Option<Ino>> = match inos {
            [] => vec![None],
            inos => inos.iter().copied().map(Some).collect(),
        };
        for file in files {
            let keys = self.core.borrow().to_append(file);
            for batch in keys.chunks(BATCH) {
                if self.append(batch).await? == 0 {
                    break;
                }
            }
        }
        let under_way = || {
            let core = self.core.borrow();
            let mut files = inos.iter();
            files.any(|ino| core.durability.appends.has_file(*ino))
                || inos.is_empty() && !core.durability.appends.is_idle()
        };
        while under_way() {
            self.progress.wait().await;
        }
        Ok(())
    }

    /// Appends the dirty blocks of `ino` in `range`, and waits until they are placed.
    ///
    /// # Errors
    /// The errors of [`Inner::append_files`].
    pub(crate) async fn append_range(self: &Rc<Self>, ino: Ino, range: Range<u32>) -> Result<()> {
        if self.core.borrow().env.writer.append_limit() == 0 {
            return Ok(());
        }
        let mut keys = self.core.borrow().to_append(Some(ino));
        keys.retain(|(_, block)| range.contains(block));
        for batch in keys.chunks(BATCH) {
            if self.append(batch).await? == 0 {
                break;
            }
        }
        while self.core.borrow().durability.appends.has_range(ino, &range) {
            self.progress.wait().await;
        }
        Ok(())
    }

    /// Appends the blocks `keys` and returns their number. Blocks are placed as their appends
    /// are answered.
    async fn append(self: &Rc<Self>, keys: &[(Ino, u32)]) -> Result<usize> {
        let flights = self.run(|core| core.begin_appends(keys)).await?;
        self.after_dispatch();
        let count = flights.iter().map(|flight| flight.items.len()).sum();
        for flight in flights {
            let inner = self.clone();
            self.rt.spawn_detached(async move {
                let finished = inner.finish_append(flight).await;
                inner.progress.notify_all();
                if let Err(error) = finished {
                    inner.fail(&error);
                }
            });
        }
        Ok(count)
    }

    async fn finish_append(self: &Rc<Self>, flight: Flight) -> Result<()> {
        let Flight { zone, stream, items, written } = flight;
        let at = match written.await {
            Ok(at) => at,
            Err(error) => {
                self.core.borrow_mut().appends_failed(zone, &items);
                self.progress.notify_all();
                return self.relocate(error).await;
            }
        };
        let result = self.run(|core| core.place_appended(zone, at, stream, &items)).await;
        if result.is_err() {
            self.core.borrow_mut().abandon_appended(zone, at, &items);
        }
        result
    }

    /// Stops new appends, and waits until none is in flight. Appends may begin again when the
    /// returned value is dropped.
    pub(crate) async fn hold_appends(self: &Rc<Self>) -> AppendsHeld {
        self.core.borrow_mut().durability.appends.held += 1;
        let held = AppendsHeld(self.clone());
        while !self.core.borrow().durability.appends.is_idle() {
            self.progress.wait().await;
        }
        held
    }
}

/// No append begins while a value of this type exists.
pub(crate) struct AppendsHeld(Rc<Inner>);

impl Drop for AppendsHeld {
    fn drop(&mut self) {
        if let Ok(mut core) = self.0.core.try_borrow_mut() {
            let held = core.durability.appends.held;
            core.durability.appends.held = core.less("Appends::held", held, 1);
        }
    }
}
