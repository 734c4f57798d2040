//! The soft zones' state in memory. Pure.

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
    /// A reset, with the number of blocks that were written before; `None` if the zone was empty.
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

/// A failed write in a zone's present life: the zone ends at the first failed block, read-only.
pub(crate) struct Failure {
    pointer: u32,
    /// Whether a record already names the failure.
    named: bool,
}

/// State of the zones: see the [module](self).
///
/// Invariants
/// - `machine` shows the effect of every accepted command.
/// - The blocks of an accepted write are in `pending`, in `taking`, in the record that is being
///   written, or below the zone's pointer in `lasting`. The exceptions: the write waits in `gates`,
///   or it or an earlier write to the zone failed.
/// - Records name the events of a zone in the order in which they happened: a failure after the
///   blocks before it, a reset after everything in the life that it ends. So recovery finds each
///   zone in a state that it once had.
/// - Writes in flight, and failures, belong to the life of the zone that `lasting` shows.
pub(crate) struct State {
    pub machine: Machine,
    /// For each zone, the state after all changes in the journal's durable records.
    pub lasting: Vec<Lasting>,
    pub pending: Pending,
    /// Changes of the round under way that no record names yet.
    pub taking: Pending,
    /// Zones in which a write of the present life failed.
    pub failures: BTreeMap<ZoneId, Failure>,
    /// The writes in flight to the plain drive, by number, with the zone of each.
    pub in_flight: BTreeMap<u64, ZoneId>,
    /// Number of the next write to the plain drive.
    pub next: u64,
    /// Commands that wait for the reset of their zone.
    pub gates: BTreeMap<ZoneId, VecDeque<Later>>,
    pub journal: Journal,
    pub streams: Streams,
    /// Number of rounds requested.
    pub asked: u64,
    /// Number of rounds begun.
    pub begun: u64,
    /// Number of rounds done.
    pub done: u64,
    pub running: bool,
    /// Status of the failure after which nothing is written any more; `None` before it.
    pub broken: Option<Status>,
}

impl State {
    /// The state after recovery, on a plain drive with `streams` write streams.
    ///
    /// # Errors
    /// The errors of [`Machine::restore`].
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

    /// The generation of the present life of `zone`.
    pub(crate) fn generation(&self, zone: ZoneId) -> u32 {
        self.lasting[zone.0 as usize].generation
    }

    /// Whether a write to `zone` is in flight to the plain drive.
    pub(crate) fn is_written(&self, zone: ZoneId) -> bool {
        self.in_flight.values().any(|other| *other == zone)
    }

    /// The write stream for `blocks` blocks of `zone` from block `from` on. A write that fills the
    /// zone frees the zone's stream for others.
    pub(crate) fn stream(&mut self, zone: ZoneId, from: u32, blocks: usize) -> u8 {
        let stream = self.streams.of(zone);
        let end = u64::from(from) + blocks as u64;
        if self.machine.zone(zone).is_some_and(|zone| end >= zone.capacity.0) {
            self.streams.done(zone);
        }
        stream
    }

    /// Requests a round that covers everything accepted so far. Returns the round's number.
    pub(crate) fn ask(&mut self) -> u64 {
        if self.pending.is_empty() && self.failures.values().all(|failure| failure.named) {
            // Every change is in a record already, or in the round under way.
            return self.begun;
        }
        self.asked = self.begun + 1;
        self.asked
    }

    /// Notes that a write to `zone` failed at block `from`: the zone ends there, read-only. In a
    /// zone that is being reset, this state ends with the reset.
    pub(crate) fn fail(&mut self, zone: ZoneId, from: u32) {
        if !self.holds(zone, from) {
            return;
        }
        self.failures.insert(zone, Failure { pointer: from, named: false });
        self.pending.fail(zone, from);
        self.taking.fail(zone, from);
        self.streams.done(zone);
        // While the zone is being reset, the machine already shows its next life.
        if !self.gates.contains_key(&zone)
            && let Some(before) = self.machine.zone(zone)
        {
            let write_pointer = BlockCount(u64::from(from));
            let to = Zone { state: ZoneState::ReadOnly, write_pointer, ..before };
            // `restore` cannot fail: a read-only zone is not active, and the pointer is within
            // the zone.
            let _ = self.machine.restore(zone, to);
        }
    }

    /// Whether a command waits for the reset of its zone.
    pub(crate) fn holds_back(&self) -> bool {
        self.gates.values().any(|waiting| !waiting.is_empty())
    }

    /// Whether block `from` of `zone` is before the zone's first failed block.
    pub(crate) fn holds(&self, zone: ZoneId, from: u32) -> bool {
        self.failures.get(&zone).is_none_or(|failure| from < failure.pointer)
    }

    /// Whether `zone` has a failure that no record names.
    pub(crate) fn has_unnamed_failure(&self, zone: ZoneId) -> bool {
        self.failures.get(&zone).is_some_and(|failure| !failure.named)
    }

    /// Returns an entry for each failed zone, and marks it as named; a record must hold the entries
    /// before the next flush. Skips a zone while blocks before its failed block are in no record:
    /// those come first.
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
