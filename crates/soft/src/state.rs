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
    /// With the blocks that were written.
    Finish(ZoneId, u32, Ticket),
    /// With the blocks that were written; `None` if the zone was empty.
    Reset(ZoneId, Option<u32>, Ticket),
}

impl Later {
    pub(crate) fn into_ticket(self) -> Ticket {
        match self {
            Later::Write(write) => write.ticket,
            Later::Finish(_, _, ticket) | Later::Reset(_, _, ticket) => ticket,
        }
    }
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

/// A zone's failed write: the zone ends at its first block that failed, read-only.
pub(crate) struct Failure {
    pointer: u32,
    /// A record says so.
    named: bool,
}

/// See the [module](self).
///
/// Invariants
/// - `machine` has the effect of every command that was accepted.
/// - The blocks of an accepted write are in `pending`, in `taking`, in the record that is being
///   written, or below the zone's pointer in `lasting`; or the write waits in `gates`; or the write
///   or one before it failed.
/// - Records name what happens to a zone in the order in which it happens: a failure comes behind
///   the blocks before it, a reset behind everything of the life that the reset ends. So what
///   recovery finds of a zone is a state that the zone was in.
/// - Writes that the plain drive has, and failures, are of a zone's present life in `lasting`.
pub(crate) struct State {
    pub machine: Machine,
    /// What the journal's durable records say.
    pub lasting: Vec<Lasting>,
    pub pending: Pending,
    /// What was in `pending` when the round that is under way began, and is in no record yet.
    pub taking: Pending,
    /// Zones that failed a write in the present life.
    pub failures: BTreeMap<ZoneId, Failure>,
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
            failures: BTreeMap::new(),
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
        if self.pending.is_empty() && self.failures.values().all(|failure| failure.named) {
            // All of it is in a record, at latest in one of the round that is under way.
            return self.begun;
        }
        self.asked = self.begun + 1;
        self.asked
    }

    /// Notes that a write to `zone` failed at block `from`: the zone ends there, read-only. If the
    /// zone is being reset, it does so until the reset is done.
    pub(crate) fn fail(&mut self, zone: ZoneId, from: u32) {
        if !self.holds(zone, from) {
            return;
        }
        self.failures.insert(zone, Failure { pointer: from, named: false });
        self.pending.fail(zone, from);
        self.taking.fail(zone, from);
        self.streams.done(zone);
        // The machine has a zone that is being reset in its next life.
        if !self.gates.contains_key(&zone)
            && let Some(before) = self.machine.zone(zone)
        {
            let write_pointer = BlockCount(u64::from(from));
            let to = Zone { state: ZoneState::ReadOnly, write_pointer, ..before };
            // A read-only zone takes no limit, and the pointer is within the zone.
            let _ = self.machine.restore(zone, to);
        }
    }

    /// Whether commands wait for the reset of their zone.
    pub(crate) fn holds_back(&self) -> bool {
        self.gates.values().any(|waiting| !waiting.is_empty())
    }

    /// Whether block `from` of `zone` is below what a failed write left of the zone.
    pub(crate) fn holds(&self, zone: ZoneId, from: u32) -> bool {
        self.failures.get(&zone).is_none_or(|failure| from < failure.pointer)
    }

    /// Whether a failure of `zone` is in no record.
    pub(crate) fn has_unnamed_failure(&self, zone: ZoneId) -> bool {
        self.failures.get(&zone).is_some_and(|failure| !failure.named)
    }

    /// The entries for zones that failed, to be in a record before the next flush. A zone with
    /// blocks that are in no record yet waits for the record of those: they come before.
    pub(crate) fn take_failures(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (zone, failure) in &mut self.failures {
            if failure.named || self.pending.has_blocks(*zone) || self.taking.has_blocks(*zone) {
                continue;
            }
            failure.named = true;
            let generation = self.lasting[zone.0 as usize].generation;
            let state = LastingState::ReadOnly;
            entries
                .push(Entry::State(*zone, Lasting { generation, pointer: failure.pointer, state }));
        }
        entries
    }
}
