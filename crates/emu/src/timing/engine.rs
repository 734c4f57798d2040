//! Events in order, the command stages, management commands, and counters.

use super::chance::{exponential, hash};
use super::model::{BufferPolicy, Model, Spread};
use super::read::Reads;
use super::write::Writes;
use super::{Opened, Work};
use furrow_zone::{QueueId, ZoneId};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

/// Counters of the stations since the drive was opened. Times are in nanoseconds of the
/// model's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingCounters {
    /// Commands answered.
    pub commands: u64,
    /// Time the command stage of writes and appends was held.
    pub write_stage: u64,
    /// Time the command stage of reads was held.
    pub read_stage: u64,
    /// Writes and appends that had to wait for space in the buffer.
    pub buffer_waits: u64,
    /// Highest number of bytes in the buffer at once, in whole units.
    pub buffer_peak: u64,
    /// Programs of units.
    pub programs: u64,
    /// Programs of units that were not full.
    pub partial_programs: u64,
    /// Time of programs, summed over dies.
    pub program: u64,
    /// Pages sensed.
    pub pages: u64,
    /// Time of sensing, summed over dies.
    pub sense: u64,
    /// Time of transfers, summed over channels.
    pub channel: u64,
    /// Time the link to the host was held by reads.
    pub link: u64,
    /// Time of resets.
    pub reset: u64,
    /// Time of finishes.
    pub finish: u64,
}

/// A command in flight.
#[derive(Debug)]
pub(super) struct Flight {
    token: usize,
    pub zone: u32,
    pub group: u32,
    pub queue: u16,
    /// For a write, bytes that are not in the buffer yet. For a read, bytes that are not passed to
    /// their dies yet.
    pub left: u64,
    /// For a read, the offset of its next byte. For a write, the earliest time of its answer.
    pub at: u64,
    /// For a read, pages that have not reached the host.
    pub parts: u32,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A write or append; if `durable`, it is answered only when it is programmed.
    Write {
        durable: bool,
    },
    Read,
    Other,
    Reset,
    Finish,
}

/// An event that may happen before events that were entered earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Answer {
        flight: u32,
    },
    /// A group's die has programmed a unit of this zone, which was opened in this epoch of flushes.
    Programmed {
        group: u32,
        zone: u32,
        epoch: u32,
    },
    Sensed {
        die: u32,
    },
    Transferred {
        channel: u32,
        die: u32,
    },
    /// The current finish of a group has completed a step.
    Finishing {
        group: u32,
    },
}

/// A queue of events that are entered in the order of their times, and so need no heap.
type Lane = VecDeque<(u64, u64, u32)>;

/// Future events, by time; events at the same time are in the order in which they were entered.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// The times at which writes leave the command stage.
    writes: Lane,
    /// The times at which reads leave their command stage.
    reads: Lane,
    /// The times at which pages arrive at the host.
    links: Lane,
    order: u64,
}

enum Due {
    Write(u32),
    Read(u32),
    Link(u32),
    Event(Event),
}

impl Agenda {
    pub fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.heap.push(Reverse((time, self.order, event)));
    }

    fn in_lane(lane: &mut Lane, order: &mut u64, time: u64, flight: u32) {
        debug_assert!(lane.back().is_none_or(|last| last.0 <= time), "a lane's times never fall");
        *order += 1;
        lane.push_back((time, *order, flight));
    }

    pub fn page_arrives(&mut self, time: u64, flight: u32) {
        Agenda::in_lane(&mut self.links, &mut self.order, time, flight);
    }

    fn front(&self) -> (u64, u64, usize) {
        let mut first = (u64::MAX, u64::MAX, 0);
        if let Some(Reverse((time, order, _))) = self.heap.peek() {
            first = (*time, *order, 0);
        }
        for (index, lane) in [&self.writes, &self.reads, &self.links].into_iter().enumerate() {
            if let Some((time, order, _)) = lane.front()
                && (*time, *order) < (first.0, first.1)
            {
                first = (*time, *order, index + 1);
            }
        }
        first
    }

    /// The next event, if it happens at `until` or before.
    fn pop(&mut self, until: u64) -> Option<(u64, Due)> {
        let (time, _, which) = self.front();
        if time > until || time == u64::MAX {
            return None;
        }
        let due = match which {
            0 => Due::Event(self.heap.pop()?.0.2),
            1 => Due::Write(self.writes.pop_front()?.2),
            2 => Due::Read(self.reads.pop_front()?.2),
            _ => Due::Link(self.links.pop_front()?.2),
        };
        Some((time, due))
    }
}

/// The state that all stations share.
#[derive(Debug)]
pub(super) struct Shared {
    pub model: Rc<Model>,
    pub flights: Slab<Flight>,
    pub agenda: Agenda,
    pub counters: TimingCounters,
    seed: u64,
    commands: u64,
}

impl Shared {
    /// A pseudorandom number for this zone and the present command.
    pub fn random(&self, zone: u32, draw: u32) -> u64 {
        hash(self.seed, zone, self.commands, draw)
    }

    /// As [`Shared::random`], but with a new number in each call.
    pub fn random_next(&mut self, zone: u32, draw: u32) -> u64 {
        self.commands += 1;
        self.random(zone, draw)
    }

    pub fn answer_at(&mut self, time: u64, flight: u32) {
        self.agenda.at(time, Event::Answer { flight });
    }
}

/// The timing engine of one drive. Times are nanoseconds of the model's clock.
#[derive(Debug)]
pub(crate) struct Engine {
    shared: Shared,
    writes: Writes,
    reads: Reads,
    /// The times at which the command stages become free.
    write_stage: u64,
    read_stage: u64,
}

impl Engine {
    pub fn new(model: Rc<Model>, seed: u64) -> Engine {
        let writes = Writes::new(&model);
        let reads = Reads::new(&model);
        let shared = Shared {
            model,
            flights: Slab::new(),
            agenda: Agenda::default(),
            counters: TimingCounters::default(),
            seed,
            commands: 0,
        };
        Engine { shared, writes, reads, write_stage: 0, read_stage: 0 }
    }

    pub fn counters(&self) -> TimingCounters {
        self.shared.counters
    }

    /// Continues counting from `counters`.
    pub fn restore(&mut self, counters: TimingCounters) {
        self.shared.counters = counters;
    }

    /// The time of the next event; `None` if there is none.
    #[inline]
    pub fn next(&self) -> Option<u64> {
        match self.shared.agenda.front().0 {
            u64::MAX => None,
            time => Some(time),
        }
    }

    /// Starts a command that did `work` at `now`. `token` is returned when the command is answered.
    pub fn start(&mut self, now: u64, token: usize, queue: QueueId, work: &Work) {
        self.shared.commands += 1;
        let model = self.shared.model.clone();
        let other = |engine: &mut Engine, zone: ZoneId, kind: Kind, time: u64| {
            let flight = engine.flight(token, queue, zone, kind);
            engine.shared.answer_at(now + time, flight);
        };
        match *work {
            Work::Write { zone, position, bytes, append, opened, conventional, durable } => {
                let flight = self.flight(token, queue, zone, Kind::Write { durable });
                let weight = match conventional && self.writes.is_random(position, bytes) {
                    true => model.random_cost.of(bytes),
                    false => bytes,
                };
                self.start_write(now, flight, bytes, append, opened, weight);
            }
            Work::Read { zone, offset, bytes } => {
                let flight = self.flight(token, queue, zone, Kind::Read);
                let start = now.max(self.read_stage);
                self.read_stage = start + model.read_service.0;
                self.shared.counters.read_stage += model.read_service.0;
                self.shared.flights[flight as usize].left = bytes;
                self.shared.flights[flight as usize].at = offset;
                let agenda = &mut self.shared.agenda;
                let arrives = start + model.read_latency.0;
                Agenda::in_lane(&mut agenda.reads, &mut agenda.order, arrives, flight);
            }
            Work::Flush { volatile } => {
                let flight = self.flight(token, queue, ZoneId(0), Kind::Other);
                let time = now + model.flush.0;
                if !volatile || self.writes.flush(&mut self.shared, now, flight, time) {
                    self.shared.answer_at(time, flight);
                }
            }
            Work::Nothing => other(self, ZoneId(0), Kind::Other, model.refusal.0),
            Work::Open { zone, zones } => {
                other(self, zone, Kind::Other, model.open.0 * u64::from(zones));
            }
            Work::Close { zone, zones } => {
                other(self, zone, Kind::Other, model.close.0 * u64::from(zones));
            }
            Work::Reset { zone, empty, zones, bytes, active } => {
                let mut time =
                    model.reset_fixed.0 * u64::from(zones) + model.reset_rate.time(bytes);
                if bytes > model.reset_active_above.0 * u64::from(zones) {
                    time += model.reset_active.0 * u64::from(active);
                }
                let group = zone.0 % model.groups.0;
                let load = self.writes.load(&model, group, now);
                time += model.reset_stretch.of(time) * load / 1_000;
                let empty = model.reset_empty.0 * u64::from(empty);
                if zones == 0 {
                    return other(self, zone, Kind::Other, empty.max(1));
                }
                self.shared.counters.reset += time;
                self.writes.interfere(group, Kind::Reset, true);
                other(self, zone, Kind::Reset, time + empty);
            }
            Work::Finish { zone, empty, zones, bytes } => {
                let time = model.finish_fixed.0 * u64::from(zones) + model.finish_rate.time(bytes);
                let empty = model.finish_empty.0 * u64::from(empty);
                if zones == 0 {
                    return other(self, zone, Kind::Other, empty.max(1));
                }
                let flight = self.flight(token, queue, zone, Kind::Finish);
                self.writes.finish(&mut self.shared, now, flight, time + empty);
            }
        }
    }

    fn flight(&mut self, token: usize, queue: QueueId, zone: ZoneId, kind: Kind) -> u32 {
        let group = zone.0 % self.shared.model.groups.0;
        let queue = queue.0;
        let flight = Flight { token, zone: zone.0, group, queue, left: 0, at: 0, parts: 0, kind };
        self.shared.flights.insert(flight) as u32
    }

    fn start_write(
        &mut self,
        now: u64,
        flight: u32,
        bytes: u64,
        append: bool,
        opened: Opened,
        weight: u64,
    ) {
        let shared = &mut self.shared;
        let model = &shared.model;
        let (service, latency) = match append {
            true => (model.append_service.at(bytes), model.append_latency.at(bytes)),
            false => (model.write_service.at(bytes), model.write_latency.at(bytes)),
        };
        let zone = shared.flights[flight as usize].zone;
        let held = match model.service_spread {
            Spread::Fixed => service,
            Spread::Exponential => exponential(service, shared.random(zone, 0)),
        };
        let opening = match (opened, append) {
            (Opened::No, _) => 0,
            (Opened::FromEmpty, false) => model.open_write.0,
            (Opened::FromEmpty, true) => model.open_append.0,
            (Opened::FromClosed, _) => model.reopen.0,
        };
        let leaves = now.max(self.write_stage) + held;
        self.write_stage = leaves;
        shared.counters.write_stage += held;
        let flight_of = &mut shared.flights[flight as usize];
        flight_of.left = weight;
        flight_of.at = leaves + latency.saturating_sub(service) + opening;
        let agenda = &mut shared.agenda;
        Agenda::in_lane(&mut agenda.writes, &mut agenda.order, leaves, flight);
    }

    /// Processes all events up to `now`, and appends the tokens of answered commands to `answered`,
    /// in the order of their answers.
    pub fn advance(&mut self, now: u64, answered: &mut Vec<usize>) {
        while let Some((time, due)) = self.shared.agenda.pop(now) {
            match due {
                Due::Write(flight) => self.writes.arrive(&mut self.shared, time, flight),
                Due::Read(flight) => {
                    self.reads.arrive(&mut self.shared, &self.writes, time, flight)
                }
                Due::Link(flight) => {
                    let parts = &mut self.shared.flights[flight as usize].parts;
                    *parts -= 1;
                    if *parts == 0 {
                        self.answer(flight, answered);
                    }
                }
                Due::Event(Event::Answer { flight }) => self.answer(flight, answered),
                Due::Event(Event::Programmed { group, zone, epoch }) => {
                    self.writes.programmed(&mut self.shared, time, group, zone, epoch);
                }
                Due::Event(Event::Finishing { group }) => {
                    self.writes.finishing(&mut self.shared, time, group);
                }
                Due::Event(Event::Sensed { die }) => self.reads.sensed(&mut self.shared, time, die),
                Due::Event(Event::Transferred { channel, die }) => {
                    self.reads.transferred(&mut self.shared, &self.writes, time, channel, die);
                }
            }
        }
    }

    fn answer(&mut self, flight: u32, answered: &mut Vec<usize>) {
        let flight = self.shared.flights.remove(flight as usize);
        if matches!(flight.kind, Kind::Reset | Kind::Finish) {
            self.writes.interfere(flight.group, flight.kind, false);
        }
        self.shared.counters.commands += 1;
        answered.push(flight.token);
    }
}

impl Model {
    /// True if writes are answered only when they are programmed.
    pub(super) fn is_through(&self) -> bool {
        self.buffer_policy == BufferPolicy::Through
    }
}
