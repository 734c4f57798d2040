//! The zones of the tables: which zones are empty or written, and how many more are needed.
//!
//! Each log fills one zone after the other with pages of its tables. Checkpoints list the address
//! of each table page; older copies of a page are garbage. A zone is reset, through the pool's one
//! release path, when a durable checkpoint shows no table page in it. Merges rewrite the pages of
//! zones with few table pages elsewhere, so that these zones become empty.
//!
//! mkfs sets aside only a few zones. When half of the node ids that these zones have space for are
//! in use, the tables take a superzone from the main area. They use its zones one by one, and give
//! the superzone back when they no longer need it.
//!
//! Invariants
//! - Enough zones are empty to write every table page once more, including pages for node ids not
//!   yet used. So a checkpoint can always write all stale pages, and never has to wait for space.
//! - So node ids are taken only as far as the zones suffice ([`NodeIds::limit`]), and a superzone
//!   counts only once a durable checkpoint lists it. mkfs provides the space for the table pages of
//!   the SIT.
//! - After a crash, zones that hold none of a durable checkpoint's table pages are reset before
//!   anything is written.
//!
//! [`NodeIds::limit`]: crate::tables::node_ids::NodeIds::limit

use crate::alloc::space::RESERVE;
use crate::core::Core;
use crate::format::{HOLE, UnitRef};
use crate::tables::{TABLES, TablePages, TableZones, Use};
use furrow_log::BlockAddr;
use furrow_log::pool::{SuperzoneId, SuperzoneState, ZonePool};
use furrow_zone::{Geometry, ZoneId, ZoneReport, ZoneState};
use std::collections::{BTreeMap, BTreeSet};

/// For each zone, the table pages in it: (table, table page).
pub(crate) type Residents = BTreeMap<ZoneId, Vec<(usize, u32)>>;

impl TableZones {
    /// The table zones, in the states that the drive reports.
    pub(crate) fn recover(
        layout: &crate::layout::Layout,
        pool: &ZonePool,
        reports: &[ZoneReport],
    ) -> TableZones {
        let mut zones = TableZones::default();
        let mut add = |zone: ZoneId| {
            let state = match reports[zone.0 as usize].state {
                ZoneState::Empty => Use::Empty,
                ZoneState::ReadOnly | ZoneState::Offline => Use::Dead,
                _ => Use::Written,
            };
            zones.zones.insert(zone, state);
        };
        layout.table_area().for_each(&mut add);
        for id in (0..pool.total()).map(SuperzoneId) {
            if pool.state(id) == SuperzoneState::Tables {
                pool.get(id).zones.into_iter().for_each(&mut add);
                zones.superzones.insert(id.0);
            }
        }
        zones
    }

    /// Number of zones that can be written.
    pub(crate) fn total(&self) -> u32 {
        self.zones.values().filter(|state| **state != Use::Dead).count() as u32
    }

    /// Number of empty zones.
    pub(crate) fn empty(&self) -> u32 {
        self.zones.values().filter(|state| **state == Use::Empty).count() as u32
    }

    /// All zones of the tables.
    pub(crate) fn zones(&self) -> impl Iterator<Item = ZoneId> + '_ {
        self.zones.keys().copied()
    }

    /// Zones of the tables that are written, except those in `but`.
    fn written<'a>(&'a self, but: &'a [ZoneId]) -> impl Iterator<Item = ZoneId> + 'a {
        let written = self.zones.iter().filter(|(_, state)| **state == Use::Written);
        written.map(|(zone, _)| *zone).filter(|zone| !but.contains(zone))
    }

    /// Takes an empty zone into use.
    pub(crate) fn take(&mut self) -> Option<ZoneId> {
        let empty = || self.zones.iter().filter(|(_, state)| **state == Use::Empty);
        let next = empty().find(|(zone, _)| **zone > self.last && !self.shrinks);
        let zone = *next.or_else(|| empty().next())?.0;
        self.zones.insert(zone, Use::Written);
        self.last = zone;
        Some(zone)
    }

    /// Notes that `zone` was reset (`done`) or could not be reset.
    pub(crate) fn was_reset(&mut self, zone: ZoneId, done: bool) {
        if let Some(state) = self.zones.get_mut(&zone) {
            *state = if done { Use::Empty } else { Use::Dead };
        }
    }

    /// True if `zone` is a zone of the tables.
    pub(crate) fn contains(&self, zone: ZoneId) -> bool {
        self.zones.contains_key(&zone)
    }

    fn is_dead(&self, zone: ZoneId) -> bool {
        self.zones.get(&zone) == Some(&Use::Dead)
    }

    /// True if `zone` is a zone of the tables and not empty, so that table pages may be in it.
    pub(crate) fn holds_pages(&self, zone: ZoneId) -> bool {
        self.zones.get(&zone).is_some_and(|state| *state != Use::Empty)
    }

    /// Empty zones, in ascending order.
    pub(crate) fn empty_zones(&self) -> impl Iterator<Item = ZoneId> + '_ {
        let empty = self.zones.iter().filter(|(_, state)| **state == Use::Empty);
        empty.map(|(zone, _)| *zone)
    }

    /// Superzones of the main area that belong to the tables, in ascending order.
    pub(crate) fn superzones(&self) -> impl Iterator<Item = u32> + '_ {
        self.superzones.iter().copied()
    }

    /// Superzones taken that no durable checkpoint lists yet. A checkpoint lists those that were
    /// taken before its snapshot.
    pub(crate) fn pending(&self) -> Vec<u32> {
        self.pending.clone()
    }
}

/// Groups the table pages of `table_pages` by the zones they are in.
pub(crate) fn residents(table_pages: &TablePages, geometry: &Geometry) -> Residents {
    let mut residents = Residents::new();
    for (table, table_pages) in table_pages.iter().enumerate() {
        for (table_page, place) in (0..).zip(table_pages) {
            if let Some(zone) = zone_of(place, geometry) {
                residents.entry(zone).or_default().push((table, table_page));
            }
        }
    }
    residents
}

pub(crate) fn zone_of(table_page: &UnitRef, geometry: &Geometry) -> Option<ZoneId> {
    let addr = Some(table_page.addr.get()).filter(|addr| *addr != HOLE)?;
    Some(BlockAddr(addr).locate(geometry)?.0)
}

impl Core {
    /// Number of zones that must be empty when a checkpoint begins.
    pub(crate) fn table_zones_kept(&self) -> u32 {
        let nat = self
            .tables
            .ids
            .limit()
            .div_ceil(self.env.layout.nat_per_unit())
            .max(self.tables.nat.touched());
        self.env.layout.table_zones_for(nat, self.env.layout.sit_units())
    }

    /// Number of zones that `log` begins when it writes `table_pages` table pages.
    pub(crate) fn zones_begun(&self, log: usize, table_pages: u32) -> u32 {
        let open = self.tables.logs[log].open.filter(|zone| self.env.writer.is_open(*zone));
        let room =
            open.map_or(0, |zone| self.env.writer.space_left(zone) / self.env.layout.unit_blocks);
        table_pages.saturating_sub(room).div_ceil(self.env.layout.units_per_zone())
    }

    /// Number of zones that merges under way will still begin, except those of the logs in `but`.
    pub(crate) fn zones_promised(&self, but: &[usize]) -> u32 {
        let logs = (0..self.tables.logs.len()).filter(|log| !but.contains(log));
        logs.map(|log| self.zones_begun(log, self.tables.merging(log, self.alloc.sit()))).sum()
    }

    /// For each log, the table zone that the log's pages are being written to, if there is one.
    pub(crate) fn open_table_zones(&self) -> Vec<ZoneId> {
        self.tables.logs.iter().filter_map(|log| log.open).collect()
    }

    /// Number of zones that hold no table page after the table pages `work` are written elsewhere.
    pub(crate) fn zones_vacated(
        &self,
        residents: &Residents,
        work: &BTreeSet<(usize, u32)>,
    ) -> u32 {
        let open = self.open_table_zones();
        let vacated = |zone: &ZoneId| {
            residents.get(zone).is_none_or(|table_pages| {
                table_pages.iter().all(|table_page| work.contains(table_page))
            })
        };
        self.tables.zones.written(&open).filter(vacated).count() as u32
    }

    /// Chooses table pages of `log` that a merge should write in addition to `stale`, so that zones
    /// become empty. Pages in zones that the tables should leave come first, then pages in the
    /// zones with the fewest pages to move. The number of empty zones stays sufficient throughout.
    pub(crate) fn table_pages_to_move(
        &self,
        log: usize,
        stale: BTreeSet<(usize, u32)>,
    ) -> BTreeSet<(usize, u32)> {
        let residents = residents(&self.tables.pages, &self.env.geometry);
        let open = self.open_table_zones();
        let (kept, promised) = (self.table_zones_kept(), self.zones_promised(&[log]));
        let empty = self.tables.zones.empty();
        let begun = self.zones_begun(log, stale.len() as u32);
        let goal = kept + begun + 2;
        let per_zone = self.env.layout.units_per_zone() as usize;
        let leave = |zone: &ZoneId| {
            self.tables.zones.is_dead(*zone)
                || self.tables.zones.shrinks && self.env.layout.superzone_of(*zone).is_some()
        };
        let mut work = stale.clone();
        loop {
            let rest = |zone: &ZoneId| {
                let table_pages = residents.get(zone).into_iter().flatten();
                table_pages.filter(|table_page| !work.contains(table_page)).count()
            };
            let own = |zone: &ZoneId| {
                let mut table_pages = residents.get(zone).into_iter().flatten();
                table_pages.all(|(table, _)| self.tables.log_of(*table) == log)
            };
            let candidates = self.tables.zones.zones().filter(|zone| !open.contains(zone));
            let best = candidates
                .filter(|zone| rest(zone) > 0 && own(zone))
                .min_by_key(|zone| (!leave(zone), rest(zone)));
            let Some(zone) = best else { break };
            let after = empty + self.zones_vacated(&residents, &work);
            let enough = after >= goal + promised + self.zones_begun(log, work.len() as u32);
            if !leave(&zone) && (enough || rest(&zone) * 4 > per_zone * 3) {
                break;
            }
            let begun = self.zones_begun(log, (work.len() + rest(&zone)) as u32);
            if empty < kept + promised + begun {
                break;
            }
            work.extend(residents[&zone].iter().copied());
        }
        work.retain(|table_page| !stale.contains(table_page));
        work
    }

    /// At recovery, continues each log in the zone with the most space that holds pages of its
    /// tables. Other such zones that a power cut left unfinished are filled.
    pub(crate) fn open_table_area(&mut self, reports: &[ZoneReport]) {
        let residents = residents(&self.tables.pages, &self.env.geometry);
        let active =
            self.tables.zones.zones().filter(|zone| reports[zone.0 as usize].state.is_active());
        let mut short: Vec<ZoneId> = active.filter(|zone| residents.contains_key(zone)).collect();
        short.sort_by_key(|zone| reports[zone.0 as usize].write_pointer.0);
        for zone in short {
            let at = self.env.writer.open_reported(&reports[zone.0 as usize]);
            let log = self.tables.log_of(residents[&zone][0].0);
            if self.tables.logs[log].open.is_none() && at < self.env.layout.capacity {
                self.tables.logs[log].open = Some(zone);
            } else {
                self.fill_zone(zone);
            }
        }
    }

    /// Written zones that hold no table page of a durable checkpoint (`listed`) or of the next one.
    pub(crate) fn stale_table_zones(&self, listed: &TablePages) -> Vec<ZoneId> {
        let open = self.open_table_zones();
        let mut live = BTreeSet::new();
        for table_pages in listed.iter().chain(&self.tables.pages) {
            live.extend(
                table_pages.iter().filter_map(|table_page| zone_of(table_page, &self.env.geometry)),
            );
        }
        self.tables.zones.written(&open).filter(|zone| !live.contains(zone)).collect()
    }

    /// Limits node ids to those that the tables have space for. The limit is never below an id
    /// in use.
    pub(crate) fn limit_nodes(&mut self) {
        let room = self.env.layout.nodes_in(self.tables.zones.total());
        let limit = room.max(self.tables.ids.highest() + 1);
        self.tables.ids.set_limit(limit);
    }

    /// True if more zones would let the tables take node ids beyond the present limit.
    pub(crate) fn tables_can_grow(&self) -> bool {
        self.tables.ids.limit() < self.env.layout.nodes
    }

    /// Takes the superzones that the tables need for more node ids; they count from the next
    /// checkpoint on. False if there is no space for them.
    pub(crate) fn grow_tables(&mut self) -> bool {
        if !self.tables_can_grow() {
            return false;
        }
        let pending = self.tables.zones.pending.iter();
        let pending: u32 = pending.map(|id| self.alloc.zones().width(SuperzoneId(*id))).sum();
        let total = self.tables.zones.total() + pending;
        let enough = |more: &u32| {
            self.env.layout.nodes_in(total + more * self.env.layout.width) > self.tables.ids.limit()
        };
        let Some(more) = (0..self.alloc.zones().free_count()).find(enough) else { return false };
        let wanted = self.kept(false) + u64::from(more) * u64::from(self.alloc.superzone_blocks());
        if self.alloc.zones().free_count() < RESERVE + more || !self.has_spare(wanted) {
            return false;
        }
        for _ in 0..more {
            let Some(id) = self.alloc.zones().allocate_for_tables() else { return false };
            self.tables.zones.pending.push(id.0);
            self.stats.counters.table_superzones_taken += 1;
        }
        self.durability.require_checkpoint();
        true
    }

    /// Adds superzones to the tables, because a durable checkpoint lists them.
    pub(crate) fn adopt_table_superzones(&mut self, superzones: &[u32]) {
        for superzone in superzones {
            self.tables.zones.pending.retain(|pending| pending != superzone);
            self.tables.zones.superzones.insert(*superzone);
            for zone in self.alloc.zones().get(SuperzoneId(*superzone)).zones {
                self.tables.zones.zones.insert(zone, Use::Empty);
            }
        }
        if !superzones.is_empty() {
            self.limit_nodes();
        }
    }

    /// After a checkpoint, takes a superzone before node ids run out, or returns one that should be
    /// given back.
    pub(crate) fn resize_tables(&mut self) -> Option<SuperzoneId> {
        let limit = self.tables.ids.limit();
        let free = self.tables.ids.free_count();
        let used = self.less("NodeIds::free", limit, free);
        let plenty = 2 * self.kept(false) + u64::from(self.alloc.superzone_blocks());
        if used > limit / 2 && self.tables_can_grow() && self.has_spare(plenty) {
            self.grow_tables();
        }
        let total = self.tables.zones.total().saturating_sub(self.env.layout.width);
        let limit = self.env.layout.nodes_in(total);
        let some = !self.tables.zones.superzones.is_empty() && self.tables.zones.pending.is_empty();
        self.tables.zones.shrinks = some && self.tables.ids.highest() < limit / 4;
        if !self.tables.zones.shrinks {
            return None;
        }
        let empty = |zone: &ZoneId| self.tables.zones.zones.get(zone) == Some(&Use::Empty);
        let zones_of = |id: &SuperzoneId| self.alloc.zones().get(*id).zones;
        let mut superzones = self.tables.zones.superzones.iter().rev().map(|id| SuperzoneId(*id));
        let last = superzones.find(|id| zones_of(id).iter().all(empty))?;
        let zones = zones_of(&last);
        let nat = limit.div_ceil(self.env.layout.nat_per_unit()).max(self.tables.nat.touched());
        let kept = self.env.layout.table_zones_for(nat, self.env.layout.sit_units());
        let left = self.tables.zones.empty() - zones.len() as u32;
        if left < kept + self.zones_promised(&[]) {
            return None;
        }
        for zone in zones {
            self.tables.zones.zones.remove(&zone);
        }
        self.tables.zones.superzones.remove(&last.0);
        self.limit_nodes();
        self.stats.counters.table_superzones_returned += 1;
        Some(last)
    }

    /// Number of blocks in superzones that the tables have taken from the main area.
    pub(crate) fn table_superzone_blocks(&self) -> u64 {
        self.alloc.zones().blocks(SuperzoneState::Tables)
    }

    /// Number of blocks in use by table pages.
    pub(crate) fn table_blocks_used(&self) -> u64 {
        let table_pages = TABLES.iter().flat_map(|table| &self.tables.pages[*table]);
        let used = table_pages.filter(|table_page| table_page.addr.get() != HOLE).count() as u64;
        used * u64::from(self.env.layout.unit_blocks)
    }
}
