//! The visible effect of a volatile write cache at a power cut: how much of each zone is durable.
//!
//! Invariants: `durable` of a zone never exceeds its write pointer; a zone is listed as dirty if it
//! may have blocks that are not durable. A flush covers blocks written before the flush was
//! *submitted*, not those of commands that happened to be executed before it. So an engine that
//! relies on the latter is caught.
//!
//! Simplification: resets, finishes and writes to conventional zones are durable at once.

use furrow_zone::{BlockCount, Machine, Zone, ZoneId};

/// The blocks that a flush will make durable: (zone, its resets so far, blocks written).
pub(crate) type Barrier = Box<[(ZoneId, u32, u64)]>;

#[derive(Clone, Debug, Default)]
struct Durability {
    durable: u64,
    resets: u32,
    listed: bool,
}

/// The cache of a drive whose `Geometry::volatile_cache` is set.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    zones: Vec<Durability>,
    dirty: Vec<ZoneId>,
}

impl Cache {
    pub fn new(zones: u32) -> Cache {
        Cache { zones: vec![Durability::default(); zones as usize], dirty: Vec::new() }
    }

    pub fn durable(&self, zone: ZoneId) -> u64 {
        self.zones[zone.0 as usize].durable
    }

    /// Sets the durable blocks of a zone from an image's record.
    pub fn restore(&mut self, zone: ZoneId, durable: u64, written: BlockCount) {
        self.zones[zone.0 as usize].durable = durable.min(written.0);
        if durable < written.0 {
            self.wrote(zone);
        }
    }

    pub fn wrote(&mut self, zone: ZoneId) {
        let entry = &mut self.zones[zone.0 as usize];
        if !entry.listed {
            entry.listed = true;
            self.dirty.push(zone);
        }
    }

    /// Everything in `zone` up to `written` is durable, by a write with FUA.
    pub fn force(&mut self, zone: ZoneId, written: u64) {
        self.zones[zone.0 as usize].durable = written;
    }

    pub fn reset(&mut self, zone: ZoneId) {
        let entry = &mut self.zones[zone.0 as usize];
        entry.durable = 0;
        entry.resets = entry.resets.wrapping_add(1);
    }

    /// The blocks that a flush submitted now covers.
    pub fn barrier(&self, machine: &Machine) -> Barrier {
        let written = |zone| machine.zone(zone).map_or(0, |z: Zone| z.write_pointer.0);
        self.dirty
            .iter()
            .map(|&zone| (zone, self.zones[zone.0 as usize].resets, written(zone)))
            .collect()
    }

    /// Applies a completed flush. Returns the zones of which more blocks are durable now.
    pub fn flushed(&mut self, barrier: &Barrier, machine: &Machine) -> Vec<ZoneId> {
        let mut advanced = Vec::new();
        for &(zone, resets, written) in barrier {
            let entry = &mut self.zones[zone.0 as usize];
            if entry.resets == resets && entry.durable < written {
                entry.durable = written;
                advanced.push(zone);
            }
        }
        let zones = &mut self.zones;
        self.dirty.retain(|&zone| {
            let written = machine.zone(zone).map_or(0, |z| z.write_pointer.0);
            let entry = &mut zones[zone.0 as usize];
            entry.listed = entry.durable < written;
            entry.listed
        });
        advanced
    }

    /// After a power cycle: everything up to the write pointers is durable.
    pub fn settle(&mut self, machine: &Machine) {
        for (index, entry) in self.zones.iter_mut().enumerate() {
            let zone = machine.zone(ZoneId(index as u32));
            entry.durable = zone.map_or(0, |zone| zone.write_pointer.0);
            entry.listed = false;
        }
        self.dirty.clear();
    }
}
