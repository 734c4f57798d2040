//! What the layer knows about its zones in memory. Pure.

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
    /// A finish, with the number of blocks that were written.
    Finish(ZoneId, u32, Ticket),
    /// A reset, with the number of blocks that were written; `None` if the zone was empty.
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
    /// First block of the write in the zone.
    pub from: u32,
    pub lba: Lba,
    pub ticket: Ticket,
}

/// A failed write to a zone, which ends the zone at the first failed block, read-only.
pub(crate) struct Failure {
    pointer: u32,
    /// Whether a record names the failure.
    named: bool,
}

/// State of the zones: see the [module](self).
///
/// Invariants
/// - `machine` has the effect of every command that was accepted.
/// - The blocks of an accepted write are in `pending`, in `taking`, in the record that is being
///   written, or below the zone's pointer in `lasting`; or the write waits in `gates`; or this
///   write or an earlier one failed.
/// - Records name the events of a zone in the order in which they happened: a failure comes after
///   the blocks before it, a reset after everything in the life that it ends. So recovery finds
///   each zone in a state that the zone was in.
/// - Writes that the plain drive has, and failures, belong to the zone's present life in `lasting`.
pub(crate) struct State {
    pub machine: Machine,
    /// The state that the journal's durable records add up to.
    pub lasting: Vec<Lasting>,
    pub pending: Pending,
    /// Changes that were in `pending` when the round under way began, and that no record has yet.
    pub taking: Pending,
    /// Zones in which a write of the present life failed.
    pub failures: BTreeMap<ZoneId, Failure>,
    /// The writes that the plain drive has, by number, with the zone of each.
    pub in_flight: BTreeMap<u64, ZoneId>,
    /// Number of the next write.
    pub next: u64,
    /// Commands that wait for the reset of their zone.
    pub gates: BTreeMap<ZoneId, VecDeque<Later>>,
    pub journal: Journal,
    pub streams: Streams,
    /// Number of rounds requested, begun and done. A round is a record and a flush.
    pub asked: u64,
    pub begun: u64,
    pub done: u64,
    pub running: bool,
    /// Status of the failure after which nothing is written any more.
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

    /// Returns the generation of `zone` in its present life.
    pub(crate) fn generation(&self, zone: ZoneId) -> u32 {
        self.lasting[zone.0 as usize].generation
    }

    /// True if the plain drive has a write to `zone`.
    pub(crate) fn is_written(&self, zone: ZoneId) -> bool {
        self.in_flight.values().any(|other| *other == zone)
    }

    /// Returns the write stream for `blocks` blocks of `zone` from block `from` on. A write that
    /// fills the zone releases the zone's stream.
    pub(crate) fn stream(&mut self, zone: ZoneId, from: u32, blocks: usize) -> u8 {
        let stream = self.streams.of(zone);
        let end = u64::from(from) + blocks as u64;
        if self.machine.zone(zone).is_some_and(|zone| end >= zone.capacity.0) {
            self.streams.done(zone);
        }
        stream
    }

    /// Requests a round that covers everything accepted so far. Returns its number, to be
    /// waited for.
    pub(crate) fn ask(&mut self) -> u64 {
        if self.pending.is_empty() && self.failures.values().all(|failure| failure.named) {
            // All changes are in records, at the latest in one of the round under way.
            return self.begun;
        }
        self.asked = self.begun + 1;
        self.asked
    }

    /// Notes that a write to `zone` failed at block `from`: the zone ends there, read-only. If the
    /// zone is being reset, that holds until the reset is done.
    pub(crate) fn fail(&mut self, zone: ZoneId, from: u32) {
        if !self.holds(zone, from) {
            return;
        }
        self.failures.insert(zone, Failure { pointer: from, named: false });
        self.pending.fail(zone, from);
        self.taking.fail(zone, from);
        self.streams.done(zone);
        // For a zone that is being reset, the machine already has the next life.
        if !self.gates.contains_key(&zone)
            && let Some(before) = self.machine.zone(zone)
        {
            let write_pointer = BlockCount(u64::from(from));
            let to = Zone { state: ZoneState::ReadOnly, write_pointer, ..before };
            // The restore cannot fail: a read-only zone counts for no limit, and the pointer is
            // within the zone.
            let _ = self.machine.restore(zone, to);
        }
    }

    /// Whether commands wait for the reset of their zone.
    pub(crate) fn holds_back(&self) -> bool {
        self.gates.values().any(|waiting| !waiting.is_empty())
    }

    /// Whether block `from` of `zone` lies before the zone's first failed write.
    pub(crate) fn holds(&self, zone: ZoneId, from: u32) -> bool {
        self.failures.get(&zone).is_none_or(|failure| from < failure.pointer)
    }

    /// Whether no record names a failure of `zone`.
    pub(crate) fn has_unnamed_failure(&self, zone: ZoneId) -> bool {
        self.failures.get(&zone).is_some_and(|failure| !failure.named)
    }

    /// Takes the entries for failed zones, which a record must name before the next flush. A zone
    /// whose blocks are not all in records yet stays: its blocks must be named first.
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
