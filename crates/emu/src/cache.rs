//! The visible effect of a volatile write cache at a power cut: how much of each zone is durable.
//!
//! Invariants: `durable` of a zone never exceeds its write pointer; a zone is listed as dirty if it
//! may have blocks that are not durable. A flush covers blocks written before the flush was
//! *submitted*. It does not cover commands executed between its submission and its execution, so
//! the emulator exposes engines that rely on more.
//!
//! Blocks of conventional zones may be overwritten: the cache keeps the earlier content of each
//! block ([`Overwrite`]). Any of the overwritten blocks may survive a power cut, regardless of the
//! other blocks and of the order of the writes. This holds for a medium in memory; on an image,
//! writes to conventional zones are durable at once.
//!
//! A drive can stand for several drives ([`Parts`]), each with its own cache: a flush covers one
//! cache, and a power cut draws the fate of each.
//!
//! Simplification: resets and finishes are durable at once.

use crate::memory::Entry;
use furrow_rt::Rng;
use furrow_zone::{BlockCount, Machine, QueueId, Zone, ZoneId};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Parts of a drive with separate caches. Each part has the same number of zones, and the same
/// number of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Number of zones of each part.
    pub zones: u32,
    /// Number of queues of each part: with 16, the commands of the second part use queues 16 to 31.
    pub queues: u16,
}

/// The fate of blocks that were written but are not durable, on a drive with a volatile cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unflushed {
    /// Drawn from the seed for each zone: all lost, all kept, or kept up to some block between.
    Seeded,
    /// All blocks are lost.
    Lost,
    /// All blocks are kept.
    Kept,
    /// The drive has kept its power: the blocks are in its cache as before, and no zone was closed.
    /// Only the program that used the drive was killed.
    Cached,
}

/// The blocks that a flush will make durable.
#[derive(Clone, Debug)]
pub(crate) struct Barrier {
    /// The zones of the cache that the flush covers.
    of: Range<u32>,
    /// For each dirty zone: its number, how often it was reset so far, and its number of
    /// written blocks.
    zones: Box<[(ZoneId, u32, u64)]>,
    /// Number of the first write to conventional zones that the flush does not cover.
    overwrites: u64,
}

/// Blocks of conventional zones to reset to their earlier content: zone, offset, earlier entry.
pub(crate) type TakenBack = Vec<(ZoneId, u64, Entry)>;

/// A write to a conventional zone that no flush has covered yet.
#[derive(Clone, Debug)]
struct Overwrite {
    number: u64,
    /// True if the write was made with FUA: then all of it survives.
    durable: bool,
    zone: ZoneId,
    /// The first block of the write.
    offset: u64,
    /// The content of the blocks before the write.
    before: Arc<[Entry]>,
}

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
    /// Overwrites in order of execution.
    overwrites: Vec<Overwrite>,
    /// Number of the next overwrite.
    next: u64,
    parts: Option<Parts>,
}

impl Cache {
    pub fn new(zones: u32) -> Cache {
        let zones = vec![Durability::default(); zones as usize];
        Cache { zones, dirty: Vec::new(), overwrites: Vec::new(), next: 0, parts: None }
    }

    /// Makes the drive stand for several drives, each with its own cache.
    pub fn split(&mut self, parts: Parts) {
        self.parts = Some(parts);
    }

    /// The zones of the cache that a flush in `queue` covers.
    fn of_queue(&self, queue: QueueId) -> Range<u32> {
        let all = self.zones.len() as u32;
        match self.parts {
            None => 0..all,
            Some(Parts { zones, queues }) => {
                let first = u32::from(queue.0 / queues) * zones;
                first.min(all)..first.saturating_add(zones).min(all)
            }
        }
    }

    /// Draws the fate of each cache in a power cut that has the fate `fate` for the drive. Returns
    /// the number of zones per cache, and the fates of all caches in order.
    pub fn fates(&self, fate: Unflushed, rng: &mut Rng) -> (u32, Vec<Unflushed>) {
        let Some(Parts { zones, .. }) = self.parts else {
            return (self.zones.len() as u32, vec![fate]);
        };
        let drawn = |rng: &mut Rng| match fate {
            Unflushed::Seeded => {
                [Unflushed::Seeded, Unflushed::Lost, Unflushed::Kept][rng.below(3) as usize]
            }
            fate => fate,
        };
        let caches = (self.zones.len() as u32).div_ceil(zones);
        (zones, (0..caches).map(|_| drawn(rng)).collect())
    }

    /// Records a write to a conventional zone before it happens: it starts at block `offset`, has
    /// FUA if `durable`, and replaces the blocks `before`.
    pub fn overwrote(&mut self, zone: ZoneId, offset: u64, before: Arc<[Entry]>, durable: bool) {
        self.overwrites.push(Overwrite { number: self.next, durable, zone, offset, before });
        self.next += 1;
    }

    /// The earlier content of the blocks that a power cut takes back, in the order in which to
    /// restore it. All blocks of a write survive, or none, or each by chance.
    pub fn taken_back(&self, fate: Unflushed, rng: &mut Rng) -> TakenBack {
        let mut survived = BTreeSet::new();
        let mut back = Vec::new();
        for write in self.overwrites.iter().rev() {
            let draw = match fate {
                _ if write.durable => 1,
                Unflushed::Lost => 0,
                Unflushed::Kept | Unflushed::Cached => 1,
                Unflushed::Seeded => rng.below(3),
            };
            for (block, before) in (write.offset..).zip(write.before.iter()) {
                let kept = draw == 1 || (draw == 2 && rng.one_in(2));
                if kept {
                    survived.insert((write.zone, block));
                } else if !survived.contains(&(write.zone, block)) {
                    back.push((write.zone, block, before.clone()));
                }
            }
        }
        back
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

    /// Makes everything in `zone` up to `written` durable, after a write with FUA.
    pub fn force(&mut self, zone: ZoneId, written: u64) {
        self.zones[zone.0 as usize].durable = written;
    }

    pub fn reset(&mut self, zone: ZoneId) {
        let entry = &mut self.zones[zone.0 as usize];
        entry.durable = 0;
        entry.resets = entry.resets.wrapping_add(1);
    }

    /// The blocks that a flush covers if it is submitted now in `queue`.
    pub fn barrier(&self, machine: &Machine, queue: QueueId) -> Barrier {
        let written = |zone| machine.zone(zone).map_or(0, |z: Zone| z.write_pointer.0);
        let of = self.of_queue(queue);
        let zones = self
            .dirty
            .iter()
            .filter(|zone| of.contains(&zone.0))
            .map(|&zone| (zone, self.zones[zone.0 as usize].resets, written(zone)))
            .collect();
        Barrier { of, zones, overwrites: self.next }
    }

    /// Applies a completed flush. Returns the zones that have more durable blocks now.
    pub fn flushed(&mut self, barrier: &Barrier, machine: &Machine) -> Vec<ZoneId> {
        let mut advanced = Vec::new();
        let covers = |write: &Overwrite| {
            write.number < barrier.overwrites && barrier.of.contains(&write.zone.0)
        };
        self.overwrites.retain(|write| !covers(write));
        for &(zone, resets, written) in &barrier.zones {
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

    /// Makes everything outside `zone` durable, as the drive may do of its own accord.
    pub fn write_out_but(&mut self, zone: ZoneId, machine: &Machine) {
        self.overwrites.retain(|write| write.zone == zone);
        let zones = &mut self.zones;
        self.dirty.retain(|&dirty| {
            let entry = &mut zones[dirty.0 as usize];
            if dirty != zone {
                entry.durable = machine.zone(dirty).map_or(0, |z| z.write_pointer.0);
                entry.listed = false;
            }
            entry.listed
        });
    }

    /// Zones with blocks that are not durable.
    pub fn unflushed(&self, machine: &Machine) -> BTreeSet<ZoneId> {
        let written = |zone| machine.zone(zone).map_or(0, |z: Zone| z.write_pointer.0);
        let sequential = self.dirty.iter().copied();
        let sequential = sequential.filter(|&zone| self.durable(zone) < written(zone));
        let overwritten = self.overwrites.iter().filter(|write| !write.durable);
        sequential.chain(overwritten.map(|write| write.zone)).collect()
    }

    /// Applies a power cycle: everything up to the write pointers is durable afterwards.
    pub fn settle(&mut self, machine: &Machine) {
        for (index, entry) in self.zones.iter_mut().enumerate() {
            let zone = machine.zone(ZoneId(index as u32));
            entry.durable = zone.map_or(0, |zone| zone.write_pointer.0);
            entry.listed = false;
        }
        self.dirty.clear();
        self.overwrites.clear();
    }
}
