//! The tables: where each node is (NAT), which blocks of each segment are valid (SIT), which node
//! ids are free; their zones, and how their delta logs are merged into them.

pub(crate) mod delta_merge;
pub(crate) mod table;
pub(crate) mod table_zones;

use crate::accounts::same;
use crate::format::{NatEntry, UnitRef, table as number};
use crate::memory::set_bytes;
use furrow_log::delta::{DeltaLog, Extent};
use furrow_zone::ZoneId;
use std::collections::{BTreeMap, BTreeSet};
use table::{NodeIds, Table};

/// The NAT, its delta logs and those of the SIT, and where table pages are. The SIT itself is the
/// allocator's.
pub(crate) struct Tables {
    pub(crate) nat: Table<NatEntry>,
    pub(crate) ids: NodeIds,
    /// Delta logs: one, or NAT's and SIT's.
    pub(crate) logs: Vec<Log>,
    /// Zones of the tables.
    pub(crate) zones: TableZones,
    /// Where each table page is.
    pub(crate) pages: TablePages,
    pub(crate) changed_nodes: ChangedNodes,
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
        Tables { nat, ids, logs, zones, pages, changed_nodes: ChangedNodes::default() }
    }
}

/// NAT and SIT.
pub(crate) const TABLES: [usize; 2] = [number::NAT as usize, number::SIT as usize];

/// Where each table page of NAT and SIT is, up to the last that was written.
pub(crate) type TablePages = [Vec<UnitRef>; 2];

/// A delta log, and the zone that the tables it completes are written to.
pub(crate) struct Log {
    pub(crate) delta: DeltaLog,
    /// Its extents that complete the table pages.
    pub(crate) extents: Vec<Extent>,
    /// A merge is under way: the tables know which table pages it has still to write.
    pub(crate) merging: bool,
    /// Table pages it writes though they are not stale.
    moved: BTreeSet<(usize, u32)>,
    /// The zone written now.
    pub(crate) open: Option<ZoneId>,
}

/// A table page to be written: its table, its number there, its bytes.
pub(crate) type TablePageBytes = (usize, u32, Vec<u8>);

impl Log {
    /// A log without a merge.
    pub(crate) fn new(delta: DeltaLog, extents: Vec<Extent>) -> Log {
        Log { delta, extents, merging: false, moved: BTreeSet::new(), open: None }
    }

    /// True if no extent is in its other half.
    pub(crate) fn is_in_one_half(&self) -> bool {
        let half = self.delta.position().0;
        self.extents.iter().all(|extent| extent.half == half)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Empty,
    Written,
    /// It cannot be written any more.
    Dead,
}

/// The zones of the tables.
///
/// Invariants:
/// - A zone that a table page lies in, or that a log writes, is not empty; an empty one has nothing
///   written since its reset.
/// - `superzones` are in use for tables in the pool.
#[derive(Default)]
pub(crate) struct TableZones {
    zones: BTreeMap<ZoneId, Use>,
    /// Superzones of the main area that belong to it.
    superzones: BTreeSet<u32>,
    /// Superzones taken that no durable checkpoint lists yet.
    pending: Vec<u32>,
    /// The zone taken last.
    last: ZoneId,
    /// It holds more than is needed: the zones set aside by mkfs are taken first.
    shrinks: bool,
}

/// Nodes whose place changed since the last durable checkpoint and of which no sync record tells.
/// What was there at a checkpoint's snapshot is kept apart until that checkpoint is durable.
#[derive(Default)]
pub(crate) struct ChangedNodes {
    now: BTreeMap<u32, BTreeSet<u32>>,
    in_snapshot: BTreeMap<u32, BTreeSet<u32>>,
    /// Nodes in both.
    count: usize,
}

impl ChangedNodes {
    pub(crate) fn wrote(&mut self, ino: u32, nid: u32) {
        self.count += usize::from(self.now.entry(ino).or_default().insert(nid));
    }

    pub(crate) fn freed(&mut self, ino: u32, nid: u32) {
        self.wrote(ino, nid);
    }

    /// Nodes that changed since the last snapshot and of which no record tells.
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

    /// Changed nodes of `ino`, in order.
    pub(crate) fn of(&self, ino: u32) -> BTreeSet<u32> {
        let mut all = self.now.get(&ino).cloned().unwrap_or_default();
        all.extend(self.in_snapshot.get(&ino).into_iter().flatten());
        all
    }

    /// A sync record tells of those of `ino`.
    pub(crate) fn logged(&mut self, ino: u32) {
        for gone in [self.now.remove(&ino), self.in_snapshot.remove(&ino)] {
            self.count -= gone.map_or(0, |nids| nids.len());
        }
    }

    pub(crate) fn snapshot(&mut self) {
        for (ino, nids) in std::mem::take(&mut self.now) {
            let snapshot = self.in_snapshot.entry(ino).or_default();
            let before = snapshot.len() + nids.len();
            snapshot.extend(nids);
            self.count -= before - snapshot.len();
        }
    }

    pub(crate) fn durable(&mut self) {
        self.count -= self.in_snapshot.values().map(BTreeSet::len).sum::<usize>();
        self.in_snapshot.clear();
    }
}
