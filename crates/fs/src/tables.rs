//! The tables: addresses of nodes (NAT), valid blocks of segments (SIT), free node ids. Also their
//! zones, and the merging of delta logs into the tables.

pub(crate) mod delta_merge;
pub(crate) mod node_ids;
pub(crate) mod table;
pub(crate) mod table_zones;

use crate::format::{HOLE, NatEntry, UnitRef, table as number};
use crate::memory_use::set_bytes;
use furrow_log::audit::{Broken, equal};
use furrow_log::delta::{DeltaLog, Extent};
use furrow_zone::ZoneId;
use node_ids::NodeIds;
use std::collections::{BTreeMap, BTreeSet};
use table::Table;
use zerocopy::FromZeros;

/// The NAT, the delta logs of NAT and SIT, and the addresses of table pages. The SIT itself belongs
/// to the allocator.
pub(crate) struct Tables {
    nat: Table<NatEntry>,
    ids: NodeIds,
    /// Delta logs: one that NAT and SIT share, or one for each.
    logs: Vec<Log>,
    /// Zones of the tables.
    zones: TableZones,
    /// Addresses of all table pages.
    pages: TablePages,
    changed_nodes: ChangedNodes,
    /// True if the next checkpoint must write all table pages.
    write_all: bool,
}

impl Tables {
    /// Builds the tables of `nodes` node ids from a checkpoint: no node has changed since.
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

    /// From now on, the tables report to `broken` each account that would go below zero.
    pub(crate) fn note_broken_in(&mut self, broken: &Broken) {
        self.ids.note_broken_in(broken);
        self.changed_nodes.broken = broken.clone();
    }

    /// The NAT: the address of each node.
    pub(crate) fn nat(&self) -> &Table<NatEntry> {
        &self.nat
    }

    /// The node ids, used and free.
    pub(crate) fn ids(&self) -> &NodeIds {
        &self.ids
    }

    /// Changed nodes that no sync record covers yet.
    pub(crate) fn changed_nodes(&self) -> &ChangedNodes {
        &self.changed_nodes
    }

    /// Delta logs: one that NAT and SIT share, or one for each.
    pub(crate) fn logs(&self) -> &[Log] {
        &self.logs
    }

    /// Zones of the tables.
    pub(crate) fn zones(&self) -> &TableZones {
        &self.zones
    }

    /// Addresses of all table pages.
    pub(crate) fn pages(&self) -> &TablePages {
        &self.pages
    }

    /// Takes the lowest free node id.
    pub(crate) fn take_id(&mut self) -> Option<u32> {
        self.ids.take()
    }

    /// Takes the particular id `nid`, for replay. True if it was free.
    pub(crate) fn claim_id(&mut self, nid: u32) -> bool {
        self.ids.claim(nid)
    }

    /// Reserves `ids` for [`Tables::claim_id`], until [`Tables::unhold_ids`].
    pub(crate) fn hold_ids(&mut self, ids: impl Iterator<Item = u32>) {
        self.ids.hold(ids);
    }

    /// Ends [`Tables::hold_ids`].
    pub(crate) fn unhold_ids(&mut self) {
        self.ids.unhold();
    }

    /// Adds a new node of `ino`, whose id is already taken and which has no address yet.
    pub(crate) fn add_node(&mut self, nid: u32, ino: u32) {
        self.nat.update(nid, |entry| {
            entry.ino = ino.into();
            entry.addr = HOLE.into();
            entry.crc = 0.into();
        });
    }

    /// Notes that node `nid` was written to `addr`. Returns its entry before the write.
    pub(crate) fn wrote_node(&mut self, nid: u32, addr: u32, crc: u32) -> NatEntry {
        let old = self.nat.get(nid);
        self.nat.update(nid, |entry| {
            entry.addr = addr.into();
            entry.crc = crc.into();
        });
        self.changed_nodes.wrote(old.ino.get(), nid);
        old
    }

    /// Frees node `nid`. Its id can be taken again after the next checkpoint.
    pub(crate) fn free_node(&mut self, nid: u32) {
        self.changed_nodes.freed(self.nat.get(nid).ino.get(), nid);
        self.replay_freed(nid);
    }

    /// Like [`Tables::free_node`], at replay: the replayed record says that the node is freed, so
    /// later records need not say it.
    pub(crate) fn replay_freed(&mut self, nid: u32) {
        self.forget_node(nid);
        self.ids.put(nid);
    }

    /// Empties the entry of node `nid`, whose id stays taken.
    pub(crate) fn forget_node(&mut self, nid: u32) {
        self.nat.update(nid, |entry| *entry = NatEntry::new_zeroed());
    }

    /// Sets the entry of node `nid`, whose id is already taken.
    pub(crate) fn set_node(&mut self, nid: u32, entry: NatEntry) {
        self.nat.update(nid, |at| *at = entry);
    }

    /// At replay and repair, adds node `nid` and takes its id.
    pub(crate) fn adopt_node(&mut self, nid: u32, entry: NatEntry) {
        self.ids.claim(nid);
        self.set_node(nid, entry);
    }

    /// Takes the changed nodes of `ino`, in ascending order, because a sync record now covers them.
    pub(crate) fn logged(&mut self, ino: u32) -> BTreeSet<u32> {
        self.changed_nodes.logged(ino)
    }

    /// Takes the entries that changed since the last snapshot.
    pub(crate) fn take_changed_nodes(&mut self) -> Vec<(u32, NatEntry)> {
        self.nat.take_dirty()
    }

    /// Marks the entries `changed` and the table pages `stale` as unwritten again, because the
    /// checkpoint that took them will not be made.
    pub(crate) fn untake_nodes(
        &mut self,
        changed: &[(u32, NatEntry)],
        stale: impl Iterator<Item = u32>,
    ) {
        self.nat.untake(changed, stale);
    }

    /// Takes a checkpoint's snapshot.
    pub(crate) fn snapshot(&mut self) {
        self.changed_nodes.snapshot();
        self.ids.snapshot();
    }

    /// Notes that the checkpoint of the last snapshot is durable.
    pub(crate) fn checkpoint_durable(&mut self) {
        self.changed_nodes.durable();
        self.ids.durable();
    }

    /// Notes that `zone` was reset (`done`) or could not be reset.
    pub(crate) fn zone_was_reset(&mut self, zone: ZoneId, done: bool) {
        self.zones.was_reset(zone, done);
    }

    /// Makes the next checkpoint write all table pages to empty zones, without using the
    /// delta logs.
    pub(crate) fn write_all(&mut self) {
        self.write_all = true;
    }

    /// Notes, for each delta log whose extents are all in the current half, that the other half
    /// was reset.
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

/// Indexes of the two tables, NAT and SIT.
pub(crate) const TABLES: [usize; 2] = [number::NAT as usize, number::SIT as usize];

/// Addresses of the table pages of NAT and SIT, up to the last page that was written.
pub(crate) type TablePages = [Vec<UnitRef>; 2];

/// A delta log, and the zone to which the pages of its tables are written.
pub(crate) struct Log {
    pub(crate) delta: DeltaLog,
    /// Extents of the log with changes that the table pages on the drive lack.
    pub(crate) extents: Vec<Extent>,
    /// True while a merge is under way: the tables know which table pages it still has to write.
    pub(crate) merging: bool,
    /// Table pages that the merge writes although they are not stale.
    moved: BTreeSet<(usize, u32)>,
    /// The table zone to which this log's table pages are being written, if there is one.
    pub(crate) open: Option<ZoneId>,
}

/// A table page to be written: the table, the page's number in it, and its bytes.
pub(crate) type TablePageBytes = (usize, u32, Vec<u8>);

impl Log {
    /// Builds a log that is not being merged.
    pub(crate) fn new(delta: DeltaLog, extents: Vec<Extent>) -> Log {
        Log { delta, extents, merging: false, moved: BTreeSet::new(), open: None }
    }

    /// True if all extents are in the current half of the log.
    pub(crate) fn is_in_one_half(&self) -> bool {
        let half = self.delta.position().0;
        self.extents.iter().all(|extent| extent.half == half)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Empty,
    Written,
    /// The zone can no longer be written.
    Dead,
}

/// The zones of the tables.
///
/// Invariants:
/// - A zone that holds a table page, or to which a log writes table pages, is not marked empty. A
///   zone marked empty was reset and has not been written since.
/// - The pool counts the superzones in `superzones` as used for tables.
#[derive(Default)]
pub(crate) struct TableZones {
    zones: BTreeMap<ZoneId, Use>,
    /// Superzones of the main area that belong to the tables.
    superzones: BTreeSet<u32>,
    /// Superzones taken from the main area that no durable checkpoint lists yet.
    pending: Vec<u32>,
    /// The table zone that was last taken into use.
    last: ZoneId,
    /// True if the tables have more zones than they need. Zones set aside by mkfs are then
    /// taken first.
    shrinks: bool,
}

/// Nodes whose address has changed since the last durable checkpoint and that no sync record
/// covers. Nodes that had changed at a checkpoint's snapshot are kept separately until that
/// checkpoint is durable.
///
/// Invariants:
/// - `count` is the number of nodes in `now` and `in_snapshot` together; a node in both
///   counts twice.
/// - A node in `now` has changed since the last snapshot, so its NAT entry is dirty.
#[derive(Default)]
pub(crate) struct ChangedNodes {
    now: BTreeMap<u32, BTreeSet<u32>>,
    in_snapshot: BTreeMap<u32, BTreeSet<u32>>,
    /// Number of nodes in `now` and `in_snapshot`.
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

    /// Nodes that changed since the last snapshot and that no sync record covers.
    pub(crate) fn since_snapshot(&self) -> impl Iterator<Item = u32> + '_ {
        self.now.values().flatten().copied()
    }

    /// Compares the count with the sets.
    ///
    /// # Errors
    /// `Internal`, naming the account that is wrong.
    pub(crate) fn audit(&self) -> furrow_zone::Result<()> {
        let sets = self.now.values().chain(self.in_snapshot.values());
        let count = sets.map(BTreeSet::len).sum();
        equal("ChangedNodes::count", count, self.count)
    }

    /// Estimated bytes of memory. Each file has a set of its own, even for a few nodes.
    pub(crate) fn bytes(&self) -> u64 {
        let sets = self.now.len() + self.in_snapshot.len();
        set_bytes(sets, 32) + set_bytes(self.count, 4).max(sets as u64 * 64)
    }

    /// True if nodes of `ino` have changed.
    pub(crate) fn has(&self, ino: u32) -> bool {
        self.now.contains_key(&ino) || self.in_snapshot.contains_key(&ino)
    }

    /// Upper limit for the number of changed nodes of `ino`: a node that changed again after the
    /// snapshot counts twice.
    pub(crate) fn most_of(&self, ino: u32) -> usize {
        let sets = [&self.now, &self.in_snapshot];
        sets.iter().filter_map(|sets| sets.get(&ino)).map(BTreeSet::len).sum()
    }

    /// Takes the changed nodes of `ino`, in ascending order, because a sync record now covers them.
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
