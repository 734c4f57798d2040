//! What the layer knows of its zones in memory. Pure.

use crate::format::{Lasting, LastingState, Layout};
use crate::journal::{Entry, Journal, Pending};
use crate::streams::Streams;
use furrow_rt::Ticket;
use furrow_zone::{
    BlockCount, Error, Geometry, Lba, Machine, Request, Status, Zone, ZoneId, ZoneState,
};
use std::collections::{BTreeMap, VecDeque};

/// A command that waits until its zone's reset is done.
pub(crate) enum Later {
    Write(DataWrite),
    Finish(ZoneId, Ticket),
    /// With the blocks that were written; `None` if the zone was empty.
    Reset(ZoneId, Option<u32>, Ticket),
}

/// A write to a zone.
pub(crate) struct DataWrite {
    pub request: Request,
    pub zone: ZoneId,
    /// First block in the zone.
    pub from: u32,
    pub lba: Lba,
    pub ticket: Ticket,
}

/// See the [module](self).
///
/// Invariants
/// - `machine` has the effect of every command that was accepted.
/// - The blocks of an accepted write are in `pending`, in `taking`, in the record that is being
///   written, or below the zone's pointer in `lasting`; or the write waits in `gates`.
pub(crate) struct State {
    pub machine: Machine,
    /// What the journal's durable records say.
    pub lasting: Vec<Lasting>,
    pub pending: Pending,
    /// What was in `pending` when the round that is under way began, and is in no record yet.
    pub taking: Pending,
    /// Zones that failed a write since the last record.
    pub failures: Vec<(ZoneId, Lasting)>,
    /// Numbers of the writes that the plain drive has, and the zone of each.
    pub in_flight: BTreeMap<u64, ZoneId>,
    /// Of the next write.
    pub next: u64,
    /// What waits for the reset of a zone.
    pub gates: BTreeMap<ZoneId, VecDeque<Later>>,
    pub journal: Journal,
    pub streams: Streams,
    /// Rounds that were asked for, begun and done. A round is a record and a flush.
    pub asked: u64,
    pub begun: u64,
    pub done: u64,
    pub running: bool,
    /// Why nothing is written any more.
    pub broken: Option<Status>,
}

impl State {
    /// The state after recovery, on a plain drive with `streams` write streams.
    ///
    /// # Errors
    /// As [`Machine::restore`].
    pub(crate) fn new(
        geometry: Geometry,
        lasting: Vec<Lasting>,
        journal: Journal,
        layout: &Layout,
        streams: u8,
    ) -> Result<State, Error> {
        let capacity = geometry.zone_capacity;
        let mut machine = Machine::new(geometry)?;
        for (zone, lasting) in (0..).map(ZoneId).zip(&lasting) {
            let state = lasting.zone_state(layout.zone_blocks);
            let write_pointer = BlockCount(u64::from(lasting.pointer));
            machine.restore(zone, Zone { state, write_pointer, capacity })?;
        }
        Ok(State {
            machine,
            lasting,
            pending: Pending::default(),
            taking: Pending::default(),
            failures: Vec::new(),
            in_flight: BTreeMap::new(),
            next: 0,
            gates: BTreeMap::new(),
            journal,
            streams: Streams::new(streams),
            asked: 0,
            begun: 0,
            done: 0,
            running: false,
            broken: None,
        })
    }

    /// Blocks written to `zone`, by the commands accepted.
    pub(crate) fn written(&self, zone: ZoneId) -> u32 {
        self.machine.zone(zone).map_or(0, |zone| zone.write_pointer.0 as u32)
    }

    /// The generation of `zone` in its present life.
    pub(crate) fn generation(&self, zone: ZoneId) -> u32 {
        self.lasting[zone.0 as usize].generation
    }

    /// True if a write to `zone` is with the plain drive.
    pub(crate) fn is_written(&self, zone: ZoneId) -> bool {
        self.in_flight.values().any(|other| *other == zone)
    }

    /// The write stream of a write of `blocks` blocks to `zone` from block `from` on. The write
    /// that fills the zone is its last.
    pub(crate) fn stream(&mut self, zone: ZoneId, from: u32, blocks: usize) -> u8 {
        let stream = self.streams.of(zone);
        let end = u64::from(from) + blocks as u64;
        if self.machine.zone(zone).is_some_and(|zone| end >= zone.capacity.0) {
            self.streams.done(zone);
        }
        stream
    }

    /// The number of a round that covers everything accepted until now: the one to wait for.
    pub(crate) fn ask(&mut self) -> u64 {
        if self.pending.is_empty() && self.failures.is_empty() {
            // All of it is in a record, at latest in one of the round that is under way.
            return self.begun;
        }
        self.asked = self.begun + 1;
        self.asked
    }

    /// Notes that a write to `zone` failed at block `from`: the zone ends there, read-only.
    pub(crate) fn fail(&mut self, zone: ZoneId, from: u32) {
        if self.gates.contains_key(&zone) {
            // It is being reset: what the write was for is given up.
            return;
        }
        let Some(before) = self.machine.zone(zone) else { return };
        let pointer = match before.state {
            ZoneState::ReadOnly => from.min(before.write_pointer.0 as u32),
            _ => from,
        };
        let write_pointer = BlockCount(u64::from(pointer));
        let to = Zone { state: ZoneState::ReadOnly, write_pointer, ..before };
        // A read-only zone takes no limit, and the pointer is within the zone.
        let _ = self.machine.restore(zone, to);
        self.pending.fail(zone, pointer);
        self.taking.fail(zone, pointer);
        self.streams.done(zone);
        let generation = self.generation(zone);
        let lasting = Lasting { generation, pointer, state: LastingState::ReadOnly };
        self.failures.push((zone, lasting));
    }

    /// Whether block `from` of `zone` is below what a failed write left of the zone.
    pub(crate) fn holds(&self, zone: ZoneId, from: u32) -> bool {
        let zone = self.machine.zone(zone);
        zone.is_some_and(|zone| {
            zone.state != ZoneState::ReadOnly || u64::from(from) < zone.write_pointer.0
        })
    }

    /// The entries for zones that failed, to be in a record before the next flush.
    pub(crate) fn take_failures(&mut self) -> Vec<Entry> {
        let failures = std::mem::take(&mut self.failures);
        failures.into_iter().map(|(zone, to)| Entry::State(zone, to)).collect()
    }
}
