//! The write buffer and the programs that empty it.
//!
//! The buffer is counted in units; a die programs one unit at a time. A group collects the writes
//! of its zones in one open unit. A full unit is programmed as soon as a die of the group is free.
//! A command waits while its group has no open unit and the buffer no space for one.
//!
//! Invariants: each byte enters the buffer exactly once, in the order of the policy; a group never
//! has more programs than dies; if nothing is being programmed and a command waits for space, the
//! fullest open unit is programmed partly filled, so that no write waits forever.

use super::agenda::{Event, Kind, Shared};
use super::model::{BufferPolicy, Model, Release};
use std::collections::{BTreeMap, VecDeque};

/// Number of sequential streams that a conventional drive recognises, each by its end.
const STREAMS: usize = 64;

/// Length of a window in nanoseconds. The load of a group is measured over the present and the
/// previous window.
const WINDOW: u64 = 8_000_000;

/// A unit to be programmed, full or partly filled.
#[derive(Clone, Copy, Debug)]
struct Unit {
    zone: u32,
    epoch: u32,
}

#[derive(Debug, Default)]
struct Group {
    /// Number of bytes in the open unit; 0 if none is open.
    open: u64,
    /// The zone that opened the unit.
    owner: u32,
    ready: VecDeque<Unit>,
    programming: u32,
    /// Number of slots in use, if each group has its own buffer.
    slots: u64,
    resets: u32,
    finishes: u32,
    /// The finishes of the group, which run one after the other: the command, and the nanoseconds
    /// that the finish still takes if there are no writes.
    finishing: VecDeque<(u32, u64)>,
    /// The length of the first finish's present step, and the rate of that step in thousandths.
    pace: (u64, u64),
    load: Load,
}

/// The load of a group's dies: their busy time in this window and in the previous one.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    window: u64,
    current: u64,
    previous: u64,
}

impl Load {
    fn turn(&mut self, now: u64) {
        let window = now / WINDOW;
        if window != self.window {
            self.previous = if window == self.window + 1 { self.current } else { 0 };
            self.current = 0;
            self.window = window;
        }
    }
}

/// The part of a command that entered the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Blocked,
    /// A part of the command has entered; the rest is still to come.
    Part,
    Whole,
}

/// The parts of a drive through which writes pass: the buffer, and the programs of each group.
#[derive(Debug)]
pub(super) struct Writes {
    groups: Vec<Group>,
    /// Number of slots in use, if all groups share one buffer.
    slots: u64,
    /// Number of slots in use by each zone, if a zone's share is limited.
    by_zone: BTreeMap<u32, u64>,
    /// Waiting commands, by line: one line for all, or one for each group, queue or zone.
    waiting: BTreeMap<u32, VecDeque<u32>>,
    /// The line that was served last.
    turn: u32,
    /// Number of programs in progress, in all groups.
    programming: u32,
    /// Without a buffer: the time at which each die completes its programs.
    dies: Vec<u64>,
    streams: VecDeque<u64>,
    /// Waiting flushes: the command, the epoch that the flush ends, and the earliest time of the
    /// answer.
    flushes: VecDeque<(u32, u32, u64)>,
    epoch: u32,
    /// Number of units that are not programmed yet, by epoch; the first entry is the oldest epoch
    /// with such units.
    outstanding: VecDeque<(u32, u64)>,
}

impl Writes {
    pub fn new(model: &Model) -> Writes {
        let groups = model.groups.0;
        let dies = if model.is_through() { groups * model.group_dies.0 } else { 0 };
        Writes {
            groups: (0..groups).map(|_| Group::default()).collect(),
            slots: 0,
            by_zone: BTreeMap::new(),
            waiting: BTreeMap::new(),
            turn: 0,
            programming: 0,
            dies: vec![0; dies as usize],
            streams: VecDeque::new(),
            flushes: VecDeque::new(),
            epoch: 0,
            outstanding: VecDeque::new(),
        }
    }

    /// Whether a write at `position` continues none of the recent sequential streams.
    pub fn is_random(&mut self, position: u64, bytes: u64) -> bool {
        let known = self.streams.iter().position(|end| *end == position);
        match known {
            Some(index) => self.streams[index] = position + bytes,
            None => {
                if self.streams.len() == STREAMS {
                    self.streams.pop_front();
                }
                self.streams.push_back(position + bytes);
            }
        }
        known.is_none()
    }

    /// The load of `group`, in thousandths.
    pub fn load(&mut self, model: &Model, group: u32, now: u64) -> u64 {
        let load = &mut self.groups[group as usize].load;
        load.turn(now);
        let span = WINDOW + now % WINDOW;
        let busy = load.previous + load.current;
        (busy * 1_000 / (span * u64::from(model.group_dies.0))).min(1_000)
    }

    /// The share of the group's dies that are programming, in thousandths: the probability that a
    /// read finds its die busy.
    pub fn disturbs_reads(&self, model: &Model, group: u32) -> u64 {
        let group = &self.groups[group as usize];
        match group.finishes {
            0 => u64::from(group.programming * 1_000 / model.group_dies.0),
            _ => 1_000,
        }
    }

    /// Starts a finish that takes `time` on an idle drive. A finish programs the rest of the zone
    /// as writes do. It runs after earlier finishes of the group, with the part of the group's rate
    /// that writes leave, but at least with its own share. If finishes have no share, each takes
    /// `time` regardless of other commands.
    pub fn finish(&mut self, shared: &mut Shared, now: u64, flight: u32, time: u64) {
        let number = shared.flights[flight as usize].group;
        self.interfere(number, Kind::Finish, true);
        if shared.model.finish_share.0 == 0 {
            shared.counters.finish += time;
            return shared.answer_at(now + time, flight);
        }
        let waiting = &mut self.groups[number as usize].finishing;
        waiting.push_back((flight, time));
        if waiting.len() == 1 {
            self.go_on(shared, now, number);
        }
    }

    /// Starts a step of the first finish of group `number`, which lasts for a window or to the end
    /// of the finish.
    fn go_on(&mut self, shared: &mut Shared, now: u64, number: u32) {
        let load = self.load(&shared.model, number, now);
        let rate = (1_000 - load).max(u64::from(shared.model.finish_share.0));
        let group = &mut self.groups[number as usize];
        let Some((_, left)) = group.finishing.front() else { return };
        let span = (left * 1_000).div_ceil(rate).min(WINDOW);
        group.pace = (span, rate);
        shared.agenda.at(now + span, Event::Finishing { group: number });
    }

    /// Handles the end of a step of the first finish of group `number`.
    pub fn finishing(&mut self, shared: &mut Shared, now: u64, number: u32) {
        let group = &mut self.groups[number as usize];
        let (span, rate) = group.pace;
        shared.counters.finish += span;
        if let Some((flight, left)) = group.finishing.front_mut() {
            *left = left.saturating_sub(span * rate / 1_000);
            if *left == 0 {
                shared.answer_at(now, *flight);
                group.finishing.pop_front();
            }
        }
        self.go_on(shared, now, number);
    }

    /// Without a buffer, the time at which `die` of `group` completes its programs; otherwise 0.
    pub fn programmed_at(&self, model: &Model, group: u32, die: u32) -> u64 {
        if !model.is_through() {
            return 0;
        }
        self.dies[(group * model.group_dies.0 + die) as usize]
    }

    /// Records that a reset or finish of a zone of `group` begins or ends.
    pub fn interfere(&mut self, group: u32, kind: Kind, begins: bool) {
        let group = &mut self.groups[group as usize];
        let count = match kind {
            Kind::Reset => &mut group.resets,
            _ => &mut group.finishes,
        };
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
    }

    /// Handles a command that leaves the command stage.
    pub fn arrive(&mut self, shared: &mut Shared, now: u64, flight: u32) {
        if shared.model.is_through() {
            return self.program_through(shared, now, flight);
        }
        let line = self.line(shared, flight);
        if let Some(queue) = self.waiting.get_mut(&line) {
            shared.counters.buffer_waits += 1;
            queue.push_back(flight);
            return;
        }
        loop {
            match self.take(shared, now, flight) {
                Progress::Part => {}
                Progress::Blocked => break,
                Progress::Whole => return,
            }
        }
        shared.counters.buffer_waits += 1;
        self.waiting.insert(line, VecDeque::from([flight]));
        self.unblock(shared, now);
    }

    /// The line in which a command waits.
    fn line(&self, shared: &Shared, flight: u32) -> u32 {
        let flight = &shared.flights[flight as usize];
        match shared.model.buffer_policy {
            BufferPolicy::Group => flight.group,
            BufferPolicy::PerQueue => u32::from(flight.queue),
            BufferPolicy::PerZone => flight.zone,
            BufferPolicy::SharedFifo | BufferPolicy::Through => 0,
        }
    }

    /// Moves bytes of a command into its group's open unit, as many as fit. Opens a unit if none is
    /// open.
    fn take(&mut self, shared: &mut Shared, now: u64, index: u32) -> Progress {
        let unit = shared.model.unit.0;
        let (zone, number) = {
            let flight = &shared.flights[index as usize];
            (flight.zone, flight.group)
        };
        let open = self.groups[number as usize].open;
        if open == 0 && shared.flights[index as usize].left > 0 {
            if !self.take_slot(shared, number, zone) {
                return Progress::Blocked;
            }
            self.groups[number as usize].owner = zone;
            self.open_unit();
        }
        let flight = &mut shared.flights[index as usize];
        let fits = flight.left.min(unit - open);
        flight.left -= fits;
        let (left, at, kind) = (flight.left, flight.at.max(now), flight.kind);
        self.groups[number as usize].open += fits;
        if open + fits == unit {
            self.close(shared, now, number);
        }
        if left > 0 {
            return Progress::Part;
        }
        let waits = kind == Kind::Write { durable: true } && !self.flush(shared, now, index, at);
        if !waits {
            shared.answer_at(at, index);
        }
        Progress::Whole
    }

    /// Takes a slot for a unit of `zone`. Returns false if there is no space.
    fn take_slot(&mut self, shared: &mut Shared, group: u32, zone: u32) -> bool {
        let model = &shared.model;
        let slots = match model.buffer_policy {
            BufferPolicy::Group => &mut self.groups[group as usize].slots,
            _ => &mut self.slots,
        };
        if *slots >= model.slots() {
            return false;
        }
        if model.buffer_policy == BufferPolicy::PerZone {
            let own = self.by_zone.entry(zone).or_default();
            if *own >= model.zone_quota.0 / model.unit.0 {
                return false;
            }
            *own += 1;
        }
        *slots += 1;
        shared.counters.buffer_peak = shared.counters.buffer_peak.max(*slots * model.unit.0);
        true
    }

    /// Counts a new unit in the present epoch.
    fn open_unit(&mut self) {
        match self.outstanding.back_mut() {
            Some((epoch, units)) if *epoch == self.epoch => *units += 1,
            _ => self.outstanding.push_back((self.epoch, 1)),
        }
    }

    /// Closes the open unit of group `number`, so that it is programmed.
    fn close(&mut self, shared: &mut Shared, now: u64, number: u32) {
        let epoch = self.epoch;
        let group = &mut self.groups[number as usize];
        if group.open < shared.model.unit.0 {
            shared.counters.partial_programs += 1;
        }
        group.open = 0;
        group.ready.push_back(Unit { zone: group.owner, epoch });
        self.program(shared, now, number);
    }

    /// Starts as many programs as possible in group `number`.
    fn program(&mut self, shared: &mut Shared, now: u64, number: u32) {
        loop {
            let model = &shared.model;
            let group = &mut self.groups[number as usize];
            if group.programming == model.group_dies.0 {
                return;
            }
            let Some(unit) = group.ready.pop_front() else { return };
            let mut time = model.program_time();
            let mut taken = 0;
            if group.resets > 0 {
                taken += model.reset_share.0;
            }
            if group.finishes > 0 {
                taken += model.finish_share.0;
            }
            // Resets and finishes together leave at least a tenth of the rate.
            time = time * 1_000 / u64::from(1_000 - taken.min(900));
            group.programming += 1;
            group.load.turn(now);
            group.load.current += time;
            self.programming += 1;
            shared.counters.programs += 1;
            shared.counters.program += time;
            let Unit { zone, epoch } = unit;
            shared.agenda.at(now + time, Event::Programmed { group: number, zone, epoch });
            if shared.model.buffer_release == Release::Start {
                self.release(shared, number, zone);
            }
        }
    }

    fn release(&mut self, shared: &Shared, group: u32, zone: u32) {
        match shared.model.buffer_policy {
            BufferPolicy::Group => self.groups[group as usize].slots -= 1,
            BufferPolicy::PerZone => {
                self.slots -= 1;
                if let Some(own) = self.by_zone.get_mut(&zone) {
                    *own -= 1;
                    if *own == 0 {
                        self.by_zone.remove(&zone);
                    }
                }
            }
            _ => self.slots -= 1,
        }
    }

    /// Handles a die that has programmed a unit.
    pub fn programmed(&mut self, shared: &mut Shared, now: u64, group: u32, zone: u32, epoch: u32) {
        self.groups[group as usize].programming -= 1;
        self.programming -= 1;
        if shared.model.buffer_release == Release::End {
            self.release(shared, group, zone);
        }
        self.program(shared, now, group);
        if !self.waiting.is_empty() {
            self.unblock(shared, now);
        }
        if let Some((_, units)) = self.outstanding.iter_mut().find(|(number, _)| *number == epoch) {
            *units -= 1;
        }
        self.end_flushes(shared, now);
    }

    /// Gives space to the waiting commands, which take turns, until there is no more space.
    fn unblock(&mut self, shared: &mut Shared, now: u64) {
        loop {
            let mut moved = false;
            let lines: Vec<u32> = self
                .waiting
                .range(self.turn.saturating_add(1)..)
                .chain(self.waiting.range(..=self.turn))
                .map(|(line, _)| *line)
                .collect();
            for line in lines {
                let Some(first) = self.waiting.get(&line).and_then(|queue| queue.front().copied())
                else {
                    continue;
                };
                match self.take(shared, now, first) {
                    Progress::Blocked => continue,
                    Progress::Part => {}
                    Progress::Whole => {
                        if let Some(queue) = self.waiting.get_mut(&line) {
                            queue.pop_front();
                            if queue.is_empty() {
                                self.waiting.remove(&line);
                            }
                        }
                    }
                }
                self.turn = line;
                moved = true;
            }
            if self.waiting.is_empty() {
                return;
            }
            if !moved && !self.force(shared, now) {
                return;
            }
        }
    }

    /// If no program in progress will free space, programs the fullest open unit partly filled.
    /// Returns false if there is no need, or no open unit.
    fn force(&mut self, shared: &mut Shared, now: u64) -> bool {
        if self.programming > 0 {
            return false;
        }
        let fullest = (0..self.groups.len()).max_by_key(|index| self.groups[*index].open);
        let Some(fullest) = fullest.filter(|index| self.groups[*index].open > 0) else {
            return false;
        };
        self.close(shared, now, fullest as u32);
        true
    }

    /// Sends everything in the buffer to be programmed. Answers `flight` when that is done, but not
    /// before `at`. Returns true if there is nothing to program; then the caller answers `flight`.
    pub fn flush(&mut self, shared: &mut Shared, now: u64, flight: u32, at: u64) -> bool {
        if shared.model.is_through() {
            // Without a buffer, answered writes are programmed already.
            return true;
        }
        for group in 0..self.groups.len() {
            if self.groups[group].open > 0 {
                self.close(shared, now, group as u32);
            }
        }
        if self.outstanding.iter().all(|(_, units)| *units == 0) {
            return true;
        }
        self.flushes.push_back((flight, self.epoch, at));
        self.epoch += 1;
        false
    }

    fn end_flushes(&mut self, shared: &mut Shared, now: u64) {
        while self.outstanding.front().is_some_and(|(epoch, units)| {
            *units == 0 && (*epoch != self.epoch || self.flushes.is_empty())
        }) {
            self.outstanding.pop_front();
        }
        let oldest = self.outstanding.front().map_or(u32::MAX, |(epoch, _)| *epoch);
        while let Some((flight, epoch, at)) = self.flushes.front().copied()
            && epoch < oldest
        {
            self.flushes.pop_front();
            shared.answer_at(at.max(now), flight);
        }
    }

    /// Carries out a write without a buffer: each page goes to its die at once, and the command is
    /// answered with the last page.
    fn program_through(&mut self, shared: &mut Shared, now: u64, index: u32) {
        let model = shared.model.clone();
        let (group, left, mut done) = {
            let flight = &shared.flights[index as usize];
            (flight.group, flight.left, flight.at)
        };
        let dies = model.group_dies.0;
        let time = model.program_time();
        let pages = left.div_ceil(model.unit.0).max(1);
        for _ in 0..pages {
            let state = &mut self.groups[group as usize];
            // The pages of a group go to its dies in turn, even across commands.
            let die = (state.open % u64::from(dies)) as u32;
            state.open += 1;
            state.load.turn(now);
            state.load.current += time;
            let free = &mut self.dies[(group * dies + die) as usize];
            *free = (*free).max(now + model.transfer.0) + time;
            done = done.max(*free);
            shared.counters.programs += 1;
            shared.counters.program += time;
        }
        shared.answer_at(done, index);
    }
}
