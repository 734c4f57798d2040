//! The command stages, management commands, and the order in which stations act.

use super::agenda::{Due, Event, Flight, Kind, Shared, TimingCounters};
use super::chance::exponential;
use super::model::{Model, Spread};
use super::read::Reads;
use super::work::{Opened, Work};
use super::write::Writes;
use furrow_zone::{QueueId, ZoneId};
use std::rc::Rc;

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
        let shared = Shared::new(model, seed);
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
        self.shared.agenda.next()
    }

    /// Starts a command that did `work` at `now`. [`Engine::advance`] returns `token` when the
    /// command is answered.
    pub fn start(&mut self, now: u64, token: usize, queue: QueueId, work: &Work) {
        self.shared.begin_command();
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
                self.shared.agenda.read_leaves(start + model.read_latency.0, flight);
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
        shared.agenda.write_leaves(leaves, flight);
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
