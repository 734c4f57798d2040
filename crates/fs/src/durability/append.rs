//! Data by Zone Append: placed when the drive says where.
//!
//! With `Order::Append` blocks of data go to the drive before anything tells of them. A batch sets
//! blocks of its stream's head aside, as a write would take them, and appends; when an append is
//! answered, its blocks get their pointers, their places in the segment's summary and their bits
//! in the SIT. Nodes and records are written as ever, by write, after that: the price of not
//! knowing addresses beforehand is one wait. A page stays dirty until it is placed. So what looks
//! at dirty pages meanwhile is right without knowing of appends: at worst it writes a page that is
//! on its way, and the block appended for it is garbage.
//!
//! Invariants
//! - The blocks that appends in flight together fill are those set aside for them: only which one
//!   is whose is open. So `next` of a head, room and the drive's limits are as with writes.
//! - A pointer to a block is set only when the block is on the drive.
//! - A segment's summary is written when all appends to it are placed; nothing that comes behind
//!   it in its zone is before it (`Payload::Later`).
//! - At the snapshot of a checkpoint no append is in flight: it sees summaries that are whole.
//! - Every append ends here, also where the drive or the engine fails: its blocks belong to nobody
//!   then.
//!
//! Not here: nodes, directories' records, tables and logs, which are always written.

use crate::accounts::same;
use crate::alloc::place::{Block, data_stream};
use crate::blocked::NotApplied;
use crate::core::{Core, Inner};
use crate::durability::Appends;
use crate::format::{HOLE, Pointer, SummaryEntry};
use crate::tree::cache::Key;
use crate::tree::node::{Holder, header};
use crate::types::Ino;
use furrow_log::address::BlockAddr;
use furrow_log::record::crc32c;
use furrow_log::writer::{Kind as WriteKind, Placement, WriteHandle, ZoneWrite};
use furrow_rt::{Page, Pages};
use furrow_zone::{Result, ZoneId};
use std::ops::Range;
use std::rc::Rc;
use zerocopy::FromZeros;

/// Blocks of one batch at most.
const BATCH: usize = 256;

/// One block to be appended.
struct Item {
    ino: Ino,
    block: u32,
    page: Page,
    crc: u32,
}

/// One append under way.
struct Flight {
    zone: ZoneId,
    stream: u8,
    items: Vec<Item>,
    written: WriteHandle,
}

/// Neighbours that become one append.
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

    /// Blocks on their way.
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

    /// Compares what is known of appends.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit(&self) -> Result<()> {
        let idle = self.flights == 0;
        let account = format_args!("Appends::blocks without an append in flight");
        same(account, 0, if idle { self.blocks.len() } else { 0 })
    }
}

impl Core {
    /// Begins to append those of `keys` that are dirty and not on their way. None, if data is
    /// written, somebody waits for appends to end, or room is short: then they are written.
    fn begin_appends(&mut self, keys: &[(Ino, u32)]) -> Result<Vec<Flight>, NotApplied> {
        self.writable()?;
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
                // What is under way must be finished; the engine has stopped writing.
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

    /// Sets a block of `stream` aside for `item`, which joins `run` if it is its neighbour.
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

    /// Dispatches what was gathered.
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

    /// Whether the page appended for `item` is what its block still has to get.
    fn is_wanted(&self, item: &Item) -> bool {
        let entry = self.cache.peek(&Key::Data(item.ino.0, item.block));
        entry.is_some_and(|entry| {
            // A change would have copied the page, which this still holds.
            entry.is_dirty() && std::ptr::eq(entry.page().bytes(), item.page.bytes())
        })
    }

    /// Places `items`, which landed from block `at` of `zone` on.
    fn place_appended(
        &mut self,
        zone: ZoneId,
        at: u32,
        stream: u8,
        items: &[Item],
    ) -> Result<(), NotApplied> {
        let mut holders = Vec::with_capacity(items.len());
        for item in items {
            // Removed, changed or written otherwise meanwhile: the block is nobody's.
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

    /// An append to `zone` failed: where others landed is no longer sure. Segments of its superzone
    /// with appends under way get no summary; the superzone is not written any further.
    fn appends_failed(&mut self, zone: ZoneId, items: &[Item]) {
        self.alloc.abandon_segments(zone);
        self.carry_out();
        self.end_flight(items);
    }

    /// The blocks of an append, which are from `at` of `zone` on, could not be placed: they are
    /// nobody's.
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
        let flights = self.durability.appends.flights as u64;
        self.durability.appends.flights = self.less("Appends::flights", flights, 1) as usize;
    }

    /// Dirty blocks of `ino` that are not on their way; of any file without one.
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
    /// Begins to append a batch of what is dirty; how many blocks. 0: they are to be written.
    pub(crate) async fn append_some(self: &Rc<Self>) -> Result<usize> {
        if self.core.borrow().env.writer.append_limit() == 0 {
            return Ok(0);
        }
        let keys: Vec<_> = self.core.borrow().to_append(None).into_iter().take(BATCH).collect();
        self.append(&keys).await
    }

    /// Appends the dirty blocks of `inos`, of all files if there are none, and waits until they
    /// are placed. What could not be appended stays dirty.
    ///
    /// # Errors
    /// If the drive fails, or what leads to a block cannot be read.
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

    /// The same for the dirty blocks of `ino` in `range`.
    ///
    /// # Errors
    /// As [`Inner::append_files`].
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

    /// Appends `keys`; how many. They are placed as their appends are answered.
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

    /// Lets no append begin, and waits until none is under way; ends when dropped.
    pub(crate) async fn hold_appends(self: &Rc<Self>) -> AppendsHeld {
        self.core.borrow_mut().durability.appends.held += 1;
        let held = AppendsHeld(self.clone());
        while !self.core.borrow().durability.appends.is_idle() {
            self.progress.wait().await;
        }
        held
    }
}

/// While it lives, no append begins.
pub(crate) struct AppendsHeld(Rc<Inner>);

impl Drop for AppendsHeld {
    fn drop(&mut self) {
        if let Ok(mut core) = self.0.core.try_borrow_mut() {
            core.durability.appends.held -= 1;
        }
    }
}
