//! What the stations share: commands in flight, events in order, counters, random numbers.

use super::chance::hash;
use super::model::Model;
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

/// Counters of the stations since the drive was opened. Times are in nanoseconds of the
/// model's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingCounters {
    /// Number of commands answered.
    pub commands: u64,
    /// Time the command stage of writes and appends was held.
    pub write_stage: u64,
    /// Time the command stage of reads was held.
    pub read_stage: u64,
    /// Number of writes and appends that had to wait for space in the buffer.
    pub buffer_waits: u64,
    /// Maximum number of bytes in the buffer at once; each unit in use counts in full.
    pub buffer_peak: u64,
    /// Number of programs of units.
    pub programs: u64,
    /// Number of programs of units that were not full.
    pub partial_programs: u64,
    /// Time of programs, summed over dies.
    pub program: u64,
    /// Number of pages sensed.
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
    pub token: usize,
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
    /// A die of `group` has programmed a unit of `zone`; the unit was opened in `epoch`. Each flush
    /// that has to wait ends an epoch.
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

/// An event that is due.
pub(super) enum Due {
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

    /// Enters the time at which a write leaves the command stage.
    pub fn write_leaves(&mut self, time: u64, flight: u32) {
        Agenda::in_lane(&mut self.writes, &mut self.order, time, flight);
    }

    /// Enters the time at which a read leaves its command stage.
    pub fn read_leaves(&mut self, time: u64, flight: u32) {
        Agenda::in_lane(&mut self.reads, &mut self.order, time, flight);
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

    /// The time of the next event; `None` if there is none.
    #[inline]
    pub fn next(&self) -> Option<u64> {
        match self.front().0 {
            u64::MAX => None,
            time => Some(time),
        }
    }

    /// The next event, if it happens at `until` or before.
    pub fn pop(&mut self, until: u64) -> Option<(u64, Due)> {
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
    /// Number of commands and of calls of [`Shared::random_next`] so far; each random number
    /// depends on this count.
    draws: u64,
}

impl Shared {
    pub fn new(model: Rc<Model>, seed: u64) -> Shared {
        Shared {
            model,
            flights: Slab::new(),
            agenda: Agenda::default(),
            counters: TimingCounters::default(),
            seed,
            draws: 0,
        }
    }

    /// Gives the next command its own pseudorandom numbers.
    pub fn begin_command(&mut self) {
        self.draws += 1;
    }

    /// A pseudorandom number for this zone and the present command; `draw` distinguishes several
    /// numbers of one command.
    pub fn random(&self, zone: u32, draw: u32) -> u64 {
        hash(self.seed, zone, self.draws, draw)
    }

    /// Like [`Shared::random`], but with a new number in each call.
    pub fn random_next(&mut self, zone: u32, draw: u32) -> u64 {
        self.draws += 1;
        self.random(zone, draw)
    }

    pub fn answer_at(&mut self, time: u64, flight: u32) {
        self.agenda.at(time, Event::Answer { flight });
    }
}
