//! The tables: where each node is (NAT), which blocks of each segment are valid (SIT), which node
//! ids are free; their zones, and how their delta logs are merged into them.

pub(crate) mod delta_merge;
pub(crate) mod table;
pub(crate) mod table_zones;

use crate::accounts::{Broken, same};
use crate::format::{HOLE, NatEntry, UnitRef, table as number};
use crate::memory::set_bytes;
use furrow_log::delta::{DeltaLog, Extent};
use furrow_zone::ZoneId;
use std::collections::{BTreeMap, BTreeSet};
use table::{NodeIds, Table};
use zerocopy::FromZeros;

/// The NAT, its delta logs and those of the SIT, and where table pages are. The SIT itself is the
/// allocator's.
pub(crate) struct Tables {
    nat: Table<NatEntry>,
    ids: NodeIds,
    /// Delta logs: one, or NAT's and SIT's.
    logs: Vec<Log>,
    /// Zones of the tables.
    zones: TableZones,
    /// Where each table page is.
    pages: TablePages,
    changed_nodes: ChangedNodes,
    /// The next checkpoint writes all table pages.
    write_all: bool,
}

impl Tables {
    /// The tables of `nodes` node ids as a checkpoint has them: no node has changed since.
    pub(crate) fn new(
        nodes: u32,
        nat: Table<NatEntry>,
        logs: Vec<Log>,
        zones: TableZones,
        pages: TablePages,
    ) -> Tables {
        let used = nat.iter().filter(|(_, entry)| entry.ino.get() != 0);
        let ids = NodeIds::new(nodes, used.map(|(nid, _)| nid));
        Tables {
            nat,
            ids,
            logs,
            zones,
            pages,
            changed_nodes: ChangedNodes::default(),
            write_all: false,
        }
    }

    /// Accounts that go below zero are noted in `broken` from now on.
    pub(crate) fn note_broken_in(&mut self, broken: &Broken) {
        self.ids.note_broken_in(broken);
        self.changed_nodes.broken = broken.clone();
    }

    /// Where each node is.
    pub(crate) fn nat(&self) -> &Table<NatEntry> {
        &self.nat
    }

    /// Which node ids are free.
    pub(crate) fn ids(&self) -> &NodeIds {
        &self.ids
    }

    /// Changed nodes that no sync record covers yet.
    pub(crate) fn changed_nodes(&self) -> &ChangedNodes {
        &self.changed_nodes
    }

    /// Delta logs: one, or NAT's and SIT's.
    pub(crate) fn logs(&self) -> &[Log] {
        &self.logs
    }

    /// Zones of the tables.
    pub(crate) fn zones(&self) -> &TableZones {
        &self.zones
    }

    /// Where each table page is.
    pub(crate) fn pages(&self) -> &TablePages {
        &self.pages
    }

    /// Takes the lowest free node id.
    pub(crate) fn take_id(&mut self) -> Option<u32> {
        self.ids.take()
    }

    /// Takes exactly `nid` (replay). True if it was free.
    pub(crate) fn claim_id(&mut self, nid: u32) -> bool {
        self.ids.claim(nid)
    }

    /// Keeps `ids` for [`Tables::claim_id`] alone, until [`Tables::unhold_ids`].
    pub(crate) fn hold_ids(&mut self, ids: impl Iterator<Item = u32>) {
        self.ids.hold(ids);
    }

    /// Ends [`Tables::hold_ids`].
    pub(crate) fn unhold_ids(&mut self) {
        self.ids.unhold();
    }

    /// A new node of `ino`, whose id is taken already and which has no address yet.
    pub(crate) fn add_node(&mut self, nid: u32, ino: u32) {
        self.nat.update(nid, |entry| {
            entry.ino = ino.into();
            entry.addr = HOLE.into();
            entry.crc = 0.into();
        });
    }

    /// Node `nid` was written to `addr`. Returns its entry before the write.
    pub(crate) fn wrote_node(&mut self, nid: u32, addr: u32, crc: u32) -> NatEntry {
        let old = self.nat.get(nid);
        self.nat.update(nid, |entry| {
            entry.addr = addr.into();
            entry.crc = crc.into();
        });
        self.changed_nodes.wrote(old.ino.get(), nid);
        old
    }

    /// Node `nid` is freed. Its id can be taken after the next checkpoint.
    pub(crate) fn free_node(&mut self, nid: u32) {
        self.changed_nodes.freed(self.nat.get(nid).ino.get(), nid);
        self.replay_freed(nid);
    }

    /// As [`Tables::free_node`], at replay: a record says so, and no later record has to.
    pub(crate) fn replay_freed(&mut self, nid: u32) {
        self.forget_node(nid);
        self.ids.put(nid);
    }

    /// Empties the entry of node `nid`, whose id stays taken.
    pub(crate) fn forget_node(&mut self, nid: u32) {
        self.nat.update(nid, |entry| *entry = NatEntry::new_zeroed());
    }

    /// Sets the entry of node `nid`, whose id is taken already.
    pub(crate) fn set_node(&mut self, nid: u32, entry: NatEntry) {
        self.nat.update(nid, |at| *at = entry);
    }

    /// At replay and repair: node `nid` exists, and its id is taken.
    pub(crate) fn adopt_node(&mut self, nid: u32, entry: NatEntry) {
        self.ids.claim(nid);
        self.set_node(nid, entry);
    }

    /// A sync record covers the changed nodes of `ino`, which are returned in order.
    pub(crate) fn logged(&mut self, ino: u32) -> BTreeSet<u32> {
        self.changed_nodes.logged(ino)
    }

    /// Takes the entries that changed since the last snapshot.
    pub(crate) fn take_changed_nodes(&mut self) -> Vec<(u32, NatEntry)> {
        self.nat.take_dirty()
    }

    /// Undoes the taking of entries `changed` and table pages `stale` for a checkpoint that will
    /// not be made.
    pub(crate) fn untake_nodes(
        &mut self,
        changed: &[(u32, NatEntry)],
        stale: impl Iterator<Item = u32>,
    ) {
        self.nat.untake(changed, stale);
    }

    /// A checkpoint takes its snapshot.
    pub(crate) fn snapshot(&mut self) {
        self.changed_nodes.snapshot();
        self.ids.snapshot();
    }

    /// That checkpoint is durable.
    pub(crate) fn checkpoint_durable(&mut self) {
        self.changed_nodes.durable();
        self.ids.durable();
    }

    /// `zone` was reset, or could not be.
    pub(crate) fn zone_was_reset(&mut self, zone: ZoneId, done: bool) {
        self.zones.was_reset(zone, done);
    }

    /// The next checkpoint writes all table pages to empty zones, and needs no delta log.
    pub(crate) fn write_all(&mut self) {
        self.write_all = true;
    }

    /// Notes that the delta log halves not in use were reset, for logs without an extent in them.
    pub(crate) fn delta_released(&mut self) {
        for log in self.logs.iter_mut().filter(|log| log.is_in_one_half()) {
            let other = 1 - log.delta.position().0;
            log.delta.half_released(other);
        }
    }
}

#[cfg(test)]
impl Tables {
    /// Changes an entry without making it dirty.
    pub(crate) fn corrupt_node(&mut self, nid: u32, change: impl FnOnce(&mut NatEntry)) {
        self.nat.corrupt(nid, change);
    }

    /// Frees an id that is in use.
    pub(crate) fn corrupt_freed_id(&mut self, nid: u32) {
        self.ids.put(nid);
    }

    /// Forgets that an entry is dirty.
    pub(crate) fn corrupt_dirty_node(&mut self, nid: u32) -> bool {
        self.nat.corrupt_dirty(nid)
    }
}

/// NAT and SIT.
pub(crate) const TABLES: [usize; 2] = [number::NAT as usize, number::SIT as usize];

/// Where each table page of NAT and SIT is, up to the last that was written.
pub(crate) type TablePages = [Vec<UnitRef>; 2];

/// A delta log, and the zone that the pages of its tables are written to.
pub(crate) struct Log {
    pub(crate) delta: DeltaLog,
    /// Extents of the log that complete the table pages.
    pub(crate) extents: Vec<Extent>,
    /// A merge is under way: the tables know which table pages are still to be written.
    pub(crate) merging: bool,
    /// Table pages that the merge writes though they are not stale.
    moved: BTreeSet<(usize, u32)>,
    /// The zone written to now.
    pub(crate) open: Option<ZoneId>,
}

/// A table page to be written: its table, its number there, its bytes.
pub(crate) type TablePageBytes = (usize, u32, Vec<u8>);

impl Log {
    /// A log without a merge.
    pub(crate) fn new(delta: DeltaLog, extents: Vec<Extent>) -> Log {
        Log { delta, extents, merging: false, moved: BTreeSet::new(), open: None }
    }

    /// True if no extent is in the log's other half.
    pub(crate) fn is_in_one_half(&self) -> bool {
        let half = self.delta.position().0;
        self.extents.iter().all(|extent| extent.half == half)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Empty,
    Written,
    /// The zone cannot be written any more.
    Dead,
}

/// The zones of the tables.
///
/// Invariants:
/// - A zone that holds a table page, or that a log writes, is not empty; an empty zone has not been
///   written since its reset.
/// - The pool has `superzones` in use for tables.
#[derive(Default)]
pub(crate) struct TableZones {
    zones: BTreeMap<ZoneId, Use>,
    /// Superzones of the main area that belong to the tables.
    superzones: BTreeSet<u32>,
    /// Superzones taken that no durable checkpoint lists yet.
    pending: Vec<u32>,
    /// The zone taken last.
    last: ZoneId,
    /// The tables have more zones than they need: the zones set aside by mkfs are taken first.
    shrinks: bool,
}

/// Nodes whose place changed since the last durable checkpoint and that no sync record covers. The
/// nodes that had changed at a checkpoint's snapshot are kept apart until that checkpoint is
/// durable.
///
/// Invariants:
/// - `count` is the number of nodes in `now` and `in_snapshot` together; one in both counts twice.
/// - A node in `now` has changed since the last snapshot, so that its NAT entry is dirty.
#[derive(Default)]
pub(crate) struct ChangedNodes {
    now: BTreeMap<u32, BTreeSet<u32>>,
    in_snapshot: BTreeMap<u32, BTreeSet<u32>>,
    /// Nodes in both together.
    count: usize,
    broken: Broken,
}

impl ChangedNodes {
    pub(crate) fn wrote(&mut self, ino: u32, nid: u32) {
        self.count += usize::from(self.now.entry(ino).or_default().insert(nid));
    }

    pub(crate) fn freed(&mut self, ino: u32, nid: u32) {
        self.wrote(ino, nid);
    }

    /// Nodes that changed since the last snapshot and that no record covers.
    pub(crate) fn since_snapshot(&self) -> impl Iterator<Item = u32> + '_ {
        self.now.values().flatten().copied()
    }

    /// Compares the count with the sets.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit(&self) -> furrow_zone::Result<()> {
        let sets = self.now.values().chain(self.in_snapshot.values());
        let count = sets.map(BTreeSet::len).sum();
        same(format_args!("ChangedNodes::count"), count, self.count)
    }

    /// Bytes of memory: files of few nodes have a set of their own each.
    pub(crate) fn bytes(&self) -> u64 {
        let sets = self.now.len() + self.in_snapshot.len();
        set_bytes(sets, 32) + set_bytes(self.count, 4).max(sets as u64 * 64)
    }

    /// True if nodes of `ino` changed.
    pub(crate) fn has(&self, ino: u32) -> bool {
        self.now.contains_key(&ino) || self.in_snapshot.contains_key(&ino)
    }

    /// Changed nodes of `ino`, at most: one that changed again after the snapshot counts twice.
    pub(crate) fn most_of(&self, ino: u32) -> usize {
        let sets = [&self.now, &self.in_snapshot];
        sets.iter().filter_map(|sets| sets.get(&ino)).map(BTreeSet::len).sum()
    }

    /// A sync record covers the changed nodes of `ino`, which are returned in order.
    pub(crate) fn logged(&mut self, ino: u32) -> BTreeSet<u32> {
        let mut all = self.now.remove(&ino).unwrap_or_default();
        let older = self.in_snapshot.remove(&ino).unwrap_or_default();
        self.forget(all.len() + older.len());
        all.extend(older);
        all
    }

    pub(crate) fn snapshot(&mut self) {
        for (ino, nids) in std::mem::take(&mut self.now) {
            let snapshot = self.in_snapshot.entry(ino).or_default();
            let before = snapshot.len() + nids.len();
            snapshot.extend(nids);
            let twice = before - snapshot.len();
            self.forget(twice);
        }
    }

    pub(crate) fn durable(&mut self) {
        let covered = std::mem::take(&mut self.in_snapshot);
        self.forget(covered.values().map(BTreeSet::len).sum());
    }

    fn forget(&mut self, nodes: usize) {
        self.count = self.broken.less("ChangedNodes::count", self.count, nodes);
    }
}
