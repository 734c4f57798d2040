//! Merging: writes the changes in delta logs to the tables, in the background.
//!
//! A delta log has two halves. When the current half has no space for another checkpoint's
//! deltas, the checkpoint continues in the other half. The *stale* table pages are then
//! written from memory, a few at a time, while operations continue. The first checkpoint
//! after the last stale page was written lists no extent of the old half, which is then
//! reset. Table pages that did not change are written only if few pages are left in their
//! zone (see [`crate::tables::table_zones`]).
//!
//! NAT and SIT share a log, or have one each and write to separate zones, as mkfs decided.
//!
//! Invariants
//! - A table page holds the content that memory had when the page was written, so it may be newer
//!   than the tables of the previous checkpoint. Checkpoints list addresses as of their snapshot:
//!   the checkpoint that first lists the page has every such newer entry among its deltas.
//! - A checkpoint never depends on space in the log: if it finds the other half full before the
//!   merge has ended, it writes the stale pages itself and needs no deltas. Such a checkpoint takes
//!   longer, which slows writers down, but they never fail. If writing the stale pages would leave
//!   too few zones empty, the checkpoint writes all table pages to empty zones, and all other zones
//!   of the tables can then be reset.

use crate::core::{Core, Inner};
use crate::format::{HOLE, NatEntry, SitEntry, UnitRef, kind, table};
use crate::tables::table::Table;
use crate::tables::{TABLES, TablePageBytes, TablePages, Tables};
use furrow_log::BlockAddr;
use furrow_log::record::{RecordHeader, RecordId, seal};
use furrow_log::writer::{Durability, Kind as WriteKind, ZoneWrite};
use furrow_policy::{FsDefect, Metadata};
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use std::collections::BTreeSet;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// Number of blocks of table pages that a merge writes before other tasks can run: 1 MiB.
const BATCH: u32 = 256;
/// How a checkpoint stores the changes of a table, depending on the space in the delta log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The log has space for the deltas.
    Append,
    /// The checkpoint continues in the other half, and a merge begins.
    Switch,
    /// The checkpoint writes the stale table pages itself.
    Write,
}

/// The table pages of a log's tables that a checkpoint writes itself.
#[derive(Default)]
pub(crate) struct Write {
    table_pages: Vec<TablePageBytes>,
    /// True if all table pages of the log are written, to empty zones.
    whole: bool,
}

impl Write {
    /// The numbers of the table pages to write that belong to `table`.
    pub(crate) fn table_pages_of(&self, table: usize) -> impl Iterator<Item = u32> + '_ {
        self.table_pages
            .iter()
            .filter(move |(of, ..)| *of == table)
            .map(|(_, table_page, _)| *table_page)
    }
}

impl Tables {
    /// The log that holds the deltas of `table`.
    pub(super) fn log_of(&self, table: usize) -> usize {
        table.min(self.logs.len() - 1)
    }

    /// The tables whose deltas `log` holds.
    fn tables_of(&self, log: usize) -> impl Iterator<Item = usize> + use<> {
        let logs = self.logs.len();
        TABLES.into_iter().filter(move |table| (*table).min(logs - 1) == log)
    }

    /// Continues `log` in its other half.
    ///
    /// # Errors
    /// If the other half is not empty.
    pub(crate) fn switch_half(&mut self, log: usize) -> Result<()> {
        self.logs[log].delta.fill_and_switch_half()
    }

    /// Appends the changed entries of the tables of `log`, as `record`. The checkpoint then waits
    /// for all writes; the wait ([`Inner::drain`]) reports failed writes.
    ///
    /// # Errors
    /// If there is no space for the entries, which the plan excludes.
    pub(crate) fn append_deltas(
        &mut self,
        log: usize,
        record: &RecordId,
        nat: &[(u32, NatEntry)],
        sit: &[(u32, SitEntry)],
    ) -> Result<()> {
        let of = |which: u8| self.log_of(usize::from(which)) == log;
        let (of_nat, of_sit) = (of(table::NAT), of(table::SIT));
        let nat = nat.iter().filter(|_| of_nat);
        let nat = nat.map(|(i, entry)| (table::NAT, *i, entry.as_bytes()));
        let sit = sit.iter().filter(|_| of_sit);
        let sit = sit.map(|(i, entry)| (table::SIT, *i, entry.as_bytes()));
        let log = &mut self.logs[log];
        drop(log.delta.append(record, nat.chain(sit), &mut log.extents)?);
        Ok(())
    }

    /// Ends a merge that has written its last table page: the next checkpoint needs only the
    /// extents of the log's current half.
    fn end_merge(&mut self, log: usize, sit: &Table<SitEntry>) {
        if !self.logs[log].merging || self.merging(log, sit) > 0 {
            return;
        }
        let log = &mut self.logs[log];
        log.merging = false;
        let half = log.delta.position().0;
        log.extents.retain(|extent| extent.half == half);
    }

    /// The stale table pages of the tables of `log`.
    fn stale(&self, log: usize, sit: &Table<SitEntry>) -> BTreeSet<(usize, u32)> {
        let stale = [self.nat.stale(), sit.stale()];
        let table_pages =
            |table: usize| stale[table].iter().map(move |table_page| (table, *table_page));
        self.tables_of(log).flat_map(table_pages).collect()
    }

    /// Number of table pages that a merge of `log` still has to write.
    pub(super) fn merging(&self, log: usize, sit: &Table<SitEntry>) -> u32 {
        let merging = [self.nat.merging().len() as u32, sit.merging().len() as u32];
        self.tables_of(log).map(|table| merging[table]).sum()
    }

    /// Number of table pages of the tables of `log`.
    fn unit_count(&self, log: usize, sit: &Table<SitEntry>) -> u32 {
        let existing = [self.nat.existing(), sit.existing()];
        self.tables_of(log).map(|table| existing[table]).sum()
    }
}

impl Core {
    /// Decides, for each log, how the checkpoint stores the changes. Called at a snapshot, before
    /// dirty entries are taken; `dirty` is the number of dirty entries of NAT and SIT.
    pub(crate) fn plan_logs(&mut self, dirty: [u32; 2]) -> Vec<Plan> {
        (0..self.tables.logs.len()).map(|log| self.plan_log(log, dirty)).collect()
    }

    fn plan_log(&mut self, log: usize, dirty: [u32; 2]) -> Plan {
        self.tables.end_merge(log, self.alloc.sit());
        let mut counts = [0; 2];
        self.tables.tables_of(log).for_each(|table| counts[table] = dirty[table]);
        if self.env.options.variant.metadata == Metadata::Pair || self.tables.write_all {
            return Plan::Write;
        }
        let delta = &self.tables.logs[log].delta;
        let needed = delta.worst_case_blocks(&counts);
        if needed <= delta.space_left() {
            return Plan::Append;
        }
        let other = 1 - delta.position().0;
        let free = !self.tables.logs[log].merging && delta.is_clean(other);
        if free && needed <= delta.layout().half_blocks(other) && self.begin_merge(log) {
            return Plan::Switch;
        }
        self.stats.counters.merge_throttles += 1;
        Plan::Write
    }

    /// Begins to write the stale table pages of `log`; false if too few zones are empty.
    fn begin_merge(&mut self, log: usize) -> bool {
        let stale = self.tables.stale(log, self.alloc.sit());
        let begun = self.zones_begun(log, stale.len() as u32) + self.zones_promised(&[log]);
        if self.tables.zones.empty() < self.table_zones_kept() + begun {
            return false;
        }
        let moved = self.table_pages_to_move(log, stale);
        let of = |table: usize| {
            moved.iter().filter(move |(of, _)| *of == table).map(|(_, table_page)| *table_page)
        };
        for table in self.tables.tables_of(log) {
            match table {
                0 => self.tables.nat.begin_merge(of(0)),
                _ => self.alloc.begin_segment_merge(of(1)),
            }
        }
        self.stats.counters.merges += 1;
        (self.tables.logs[log].merging, self.tables.logs[log].moved) = (true, moved);
        true
    }

    /// Takes the table pages that a checkpoint writes itself according to `plans`, as of its
    /// snapshot. Ends the merges of the logs whose pages are taken. If too few zones would stay
    /// empty, all table pages of all logs are written to empty zones instead.
    pub(crate) fn take_unmerged(&mut self, plans: &mut [Plan]) -> Vec<Write> {
        let mut writing: Vec<usize> =
            (0..plans.len()).filter(|log| plans[*log] == Plan::Write).collect();
        let mut writes: Vec<Write> = plans.iter().map(|_| Write::default()).collect();
        if writing.is_empty() {
            return writes;
        }
        writing.iter().for_each(|log| self.unmerge(*log));
        let all = std::mem::take(&mut self.tables.write_all);
        let mut whole: Vec<usize> =
            writing.iter().copied().filter(|log| all || self.pair_is_full(*log)).collect();
        if !self.leaves_enough(&writing, &whole) {
            writing = (0..plans.len()).collect();
            whole.clone_from(&writing);
            plans.fill(Plan::Write);
            writing.iter().for_each(|log| self.unmerge(*log));
        }
        for log in writing {
            let whole = whole.contains(&log);
            writes[log] = Write { table_pages: self.take_table_pages(log, whole), whole };
        }
        writes
    }

    /// Ends a merge: the pages it has not written are stale again.
    fn unmerge(&mut self, log: usize) {
        for table in self.tables.tables_of(log) {
            match table {
                0 => self.tables.nat.unmerge(),
                _ => self.alloc.end_segment_merge(),
            }
        }
        self.tables.logs[log].merging = false;
    }

    /// Whether enough zones stay empty if the stale table pages of the logs `writing` are written,
    /// and all table pages of the logs in both `writing` and `whole`.
    fn leaves_enough(&self, writing: &[usize], whole: &[usize]) -> bool {
        let residents =
            crate::tables::table_zones::residents(&self.tables.pages, &self.env.geometry);
        let mut work = BTreeSet::new();
        let mut begun = self.zones_promised(writing);
        for log in writing {
            let table_pages = residents.values().flatten();
            if whole.contains(log) {
                work.extend(
                    table_pages.filter(|(table, _)| self.tables.log_of(*table) == *log).copied(),
                );
                begun += self
                    .tables
                    .unit_count(*log, self.alloc.sit())
                    .div_ceil(self.env.layout.units_per_zone());
            } else {
                let stale = self.tables.stale(*log, self.alloc.sit());
                begun += self.zones_begun(*log, stale.len() as u32);
                work.extend(stale);
            }
        }
        let empty = self.tables.zones.empty();
        let after = empty + self.zones_vacated(&residents, &work);
        begun <= empty && after >= begun + self.table_zones_kept()
    }

    /// True if, with pairs of zones (`Metadata::Pair`), writing the stale table pages would take
    /// more zones than one half of the pair has. All table pages are then copied to the other half,
    /// because a half has just enough zones for all of them.
    fn pair_is_full(&self, log: usize) -> bool {
        if self.env.options.variant.metadata != Metadata::Pair {
            return false;
        }
        let residents =
            crate::tables::table_zones::residents(&self.tables.pages, &self.env.geometry);
        let own = |table_pages: &&Vec<(usize, u32)>| self.tables.log_of(table_pages[0].0) == log;
        let zones = residents.values().filter(own).count() as u32;
        let stale = self.tables.stale(log, self.alloc.sit()).len() as u32;
        let half =
            self.tables.unit_count(log, self.alloc.sit()) / self.env.layout.units_per_zone() + 1;
        stale > 0 && zones + self.zones_begun(log, stale) > half
    }

    /// Takes the stale table pages of `log`, or all of them; they are no longer stale.
    fn take_table_pages(&mut self, log: usize, all: bool) -> Vec<TablePageBytes> {
        let mut table_pages = Vec::new();
        for table in self.tables.tables_of(log) {
            if table == TABLES[0] {
                let taken =
                    if all { self.tables.nat.take_all() } else { self.tables.nat.take_stale() };
                table_pages
                    .extend(taken.into_iter().map(|(u, e)| (table, u, e.as_bytes().to_vec())));
            } else {
                let taken = self.alloc.take_segment_pages(all);
                table_pages
                    .extend(taken.into_iter().map(|(u, e)| (table, u, e.as_bytes().to_vec())));
            }
        }
        table_pages
    }

    /// Writes the table pages `write` of the tables of `log` for checkpoint `id`. Notes their
    /// addresses in `places`, for the checkpoint to list. The extents of the log are then no
    /// longer needed.
    ///
    /// # Errors
    /// `NoSpace` if no zone is empty, which the plan excludes.
    pub(crate) fn write_table_pages(
        &mut self,
        id: u64,
        log: usize,
        write: Write,
        places: &mut TablePages,
    ) -> Result<()> {
        if write.whole && !write.table_pages.is_empty() {
            self.next_table_zone(log)?;
        }
        for (table, table_page, bytes) in write.table_pages {
            let place = self.write_table_page(id, (table, table_page), &bytes)?;
            set_place(&mut places[table], table_page, place);
        }
        let log = &mut self.tables.logs[log];
        log.extents.clear();
        let (half, next) = log.delta.position();
        if next > 0 && log.delta.is_clean(1 - half) {
            log.delta.switch_half()?;
        }
        Ok(())
    }

    /// Writes the next few table pages of the merge of `log`; false if none is left.
    fn merge_some(&mut self, log: usize) -> Result<bool> {
        if !self.tables.logs[log].merging {
            return Ok(false);
        }
        let count = (BATCH / self.env.layout.unit_blocks).max(1) as usize;
        let mut batch = Vec::new();
        for table in self.tables.tables_of(log) {
            let left = if table == TABLES[0] {
                self.tables.nat.merging()
            } else {
                self.alloc.sit().merging()
            };
            let room = count - batch.len();
            batch.extend(left.iter().take(room).map(|table_page| (table, *table_page)));
        }
        let checkpoint = self.durability.checkpoint_id() + 1;
        for (table, table_page) in batch {
            let Some(bytes) = self.table_page_bytes(table, table_page) else { continue };
            if self.tables.merging(log, self.alloc.sit()) == 0
                && self.env.options.variant.has(FsDefect::SkippedUnit)
            {
                continue;
            }
            self.stats.counters.merge_bytes += bytes.len() as u64;
            if self.tables.logs[log].moved.contains(&(table, table_page)) {
                self.stats.counters.merge_moved_bytes += bytes.len() as u64;
            }
            self.write_table_page(checkpoint, (table, table_page), &bytes)?;
        }
        let more = self.tables.merging(log, self.alloc.sit()) > 0;
        if !more {
            self.durability.require_checkpoint();
        }
        Ok(more)
    }

    /// Takes the bytes of a table page of a merge; the page is no longer stale. `None` if the merge
    /// need not write the page any more.
    fn table_page_bytes(&mut self, table: usize, table_page: u32) -> Option<Vec<u8>> {
        if table == TABLES[0] {
            self.tables.nat.merged(table_page).map(|entries| entries.as_bytes().to_vec())
        } else {
            self.alloc.merged_segments(table_page).map(|entries| entries.as_bytes().to_vec())
        }
    }

    /// Writes a table page after the page that its log wrote last. Returns its new address.
    fn write_table_page(
        &mut self,
        checkpoint: u64,
        (table, table_page): (usize, u32),
        bytes: &[u8],
    ) -> Result<UnitRef> {
        let log = self.tables.log_of(table);
        let room = |zone: &ZoneId| {
            self.env.writer.is_open(*zone)
                && self.env.writer.space_left(*zone) >= self.env.layout.unit_blocks
        };
        let zone = match self.tables.logs[log].open.filter(room) {
            Some(zone) => zone,
            None => self.next_table_zone(log)?,
        };
        let index =
            if table == TABLES[0] { table_page } else { self.env.layout.nat_units() + table_page };
        let id = self.record_id(kind::UNIT, checkpoint, u64::from(index));
        let pages = seal(&id, bytes, &self.env.pages);
        let header = RecordHeader::read_from_prefix(pages[0].bytes()).map(|(h, _)| h);
        let crc = header.expect("invariant: a record opens with its header").crc;
        let offset = self.dispatch(zone, pages, WriteKind::Table, Durability::Cached);
        let addr = BlockAddr::new(&self.env.geometry, zone, offset).0;
        let place = UnitRef { addr: addr.into(), crc };
        set_place(&mut self.tables.pages[table], table_page, place);
        Ok(place)
    }

    /// Fills the table zone that `log` writes to, and continues in an empty one, which takes over
    /// the permit.
    fn next_table_zone(&mut self, log: usize) -> Result<ZoneId> {
        let Some(zone) = self.tables.zones.take() else {
            let message = format!("{}: no zone of the tables is empty", self.env.device.name());
            return Err(Error::new(ErrorKind::NoSpace, message));
        };
        let previous = self.tables.logs[log].open.replace(zone);
        if let Some(previous) = previous {
            self.fill_zone(previous);
        }
        self.open_after(zone, previous);
        Ok(zone)
    }

    /// Pads a zone to its end, so that the zone gives its permit back.
    pub(crate) fn fill_zone(&mut self, zone: ZoneId) {
        if self.env.writer.is_open(zone) {
            let zeros = ZoneWrite::zeros_to(zone, self.env.layout.capacity);
            drop(self.env.writer.submit(zeros));
        }
    }

    pub(crate) fn open_after(&mut self, zone: ZoneId, previous: Option<ZoneId>) {
        match previous {
            Some(previous) if self.env.writer.is_open(previous) => {
                self.env.writer.open_zone_after(zone, previous);
            }
            _ => self.env.writer.open_empty(zone),
        }
    }
}

fn set_place(table_pages: &mut Vec<UnitRef>, table_page: u32, place: UnitRef) {
    let hole = UnitRef { addr: HOLE.into(), crc: 0.into() };
    let len = table_pages.len().max(table_page as usize + 1);
    table_pages.resize(len, hole);
    table_pages[table_page as usize] = place;
}

impl Inner {
    /// After recovery, continues the merges that a crash or an unmount interrupted.
    pub(crate) fn resume_merge(self: &Rc<Self>) {
        {
            let core = &mut *self.core.borrow_mut();
            if core.env.options.variant.metadata == Metadata::Pair {
                return;
            }
            for log in 0..core.tables.logs.len() {
                // The checkpoint that ended recovery may have begun a merge already.
                if !core.tables.logs[log].is_in_one_half() && !core.tables.logs[log].merging {
                    core.begin_merge(log);
                }
            }
        }
        self.start_merge();
    }

    /// Starts the task that writes the table pages of merges, if a merge has just begun.
    pub(crate) fn start_merge(self: &Rc<Self>) {
        let none = self.core.borrow().tables.logs.iter().all(|log| !log.merging);
        if none || self.merge_running.replace(true) {
            return;
        }
        let inner = self.clone();
        self.rt.spawn_detached(async move {
            if let Err(error) = inner.merge().await {
                inner.fail(&error);
            }
            inner.merge_running.set(false);
        });
    }

    async fn merge(self: &Rc<Self>) -> Result<()> {
        loop {
            let (more, point) = {
                let core = &mut *self.core.borrow_mut();
                if self.ended.get() || core.health.failed().is_some() {
                    return Ok(());
                }
                let mut more = false;
                for log in 0..core.tables.logs.len() {
                    more |= core.merge_some(log)?;
                }
                (more, core.env.writer.sequence_point())
            };
            if !more {
                return Ok(());
            }
            // Wait after each batch, so that merges do not delay the writes that users wait for.
            self.wait_durable_or_relocated(point).await?;
            self.rt.yield_now().await;
        }
    }
}
