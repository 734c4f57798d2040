//! A zoned drive for this crate's tests. It obeys the zone rules and answers in an order drawn from
//! a seed. Tests can make it slow, let commands overtake each other, and make it fail.

use furrow_rt::buf::concat;
use furrow_rt::{Completion, CompletionTable, Pages, Rng, Rt, Source, Ticket};
use furrow_zone::machine::{Effect, Machine};
use furrow_zone::{
    Action, BlockCount, Command, Geometry, Lba, Outcome, QueueId, Reports, Request, Status, Target,
    ZoneId, ZoneReport, ZonedDevice, reported,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

pub(crate) fn geometry(zones: u32, capacity: u64) -> Geometry {
    Geometry {
        max_transfer: Some(BlockCount(8)),
        unwritten_reads_fail: true,
        ..Geometry::unlimited(zones, capacity.next_power_of_two(), capacity)
    }
}

#[derive(Default)]
pub(crate) struct Wishes {
    /// Maximum number of places by which a command may start early in its queue.
    pub overtake: usize,
    /// If set, commands for other zones do not start.
    pub only: Option<BTreeSet<ZoneId>>,
    /// Writes that cover this block fail.
    pub fail: BTreeMap<Lba, Status>,
    /// Resets of these zones are refused.
    pub no_reset: BTreeSet<ZoneId>,
    /// Whether all flushes fail.
    pub fail_flush: bool,
    /// Whether a flush also covers writes that are in flight when it is submitted.
    pub covers: bool,
    /// Whether reports fail: the drive is gone.
    pub gone: bool,
    /// Every report lists these zones, regardless of the request.
    pub listed: Option<Vec<ZoneId>>,
}

struct State {
    machine: Machine,
    data: BTreeMap<u64, Vec<u8>>,
    oob: BTreeMap<u64, Vec<u8>>,
    queues: Vec<VecDeque<(Request, Ticket)>>,
    answers: Vec<(Outcome, Ticket, Option<ZoneId>)>,
    in_flight: BTreeMap<ZoneId, u32>,
    rng: Rng,
    wishes: Wishes,
    log: Vec<Command>,
    most_in_flight: u32,
    answered: BTreeSet<u64>,
    forced: BTreeSet<u64>,
}

pub(crate) struct Toy {
    geometry: Geometry,
    table: CompletionTable<Outcome>,
    state: RefCell<State>,
}

impl Toy {
    pub(crate) fn report_now(&self, first: ZoneId, count: u32) -> Result<Vec<ZoneReport>, Status> {
        let state = self.state.borrow();
        if state.wishes.gone {
            return Err(Status::InternalError);
        }
        if let Some(listed) = &state.wishes.listed {
            return Ok(listed.iter().flat_map(|zone| state.machine.report(*zone, 1)).collect());
        }
        Ok(state.machine.report(first, count))
    }

    pub(crate) fn new(geometry: Geometry, seed: u64) -> Rc<Toy> {
        let state = State {
            machine: Machine::new(geometry.clone()).unwrap(),
            data: BTreeMap::new(),
            oob: BTreeMap::new(),
            queues: (0..4).map(|_| VecDeque::new()).collect(),
            answers: Vec::new(),
            in_flight: BTreeMap::new(),
            rng: Rng::new(seed),
            wishes: Wishes::default(),
            log: Vec::new(),
            most_in_flight: 0,
            answered: BTreeSet::new(),
            forced: BTreeSet::new(),
        };
        Rc::new(Toy { geometry, table: CompletionTable::new(), state: RefCell::new(state) })
    }

    /// Makes a drive and adds it to `rt`, which polls it.
    pub(crate) fn on(rt: &Rt, geometry: Geometry, seed: u64) -> Rc<Toy> {
        let toy = Toy::new(geometry, seed);
        rt.add_source(toy.clone());
        toy
    }

    pub(crate) fn wish(&self, change: impl FnOnce(&mut Wishes)) {
        change(&mut self.state.borrow_mut().wishes);
    }

    /// Cuts power: commands that have not started never start.
    pub(crate) fn cut(&self) {
        let mut state = self.state.borrow_mut();
        state.queues.iter_mut().for_each(VecDeque::clear);
        state.answers.clear();
        state.in_flight.clear();
        state.machine.power_cycle(|_, zone| zone.write_pointer);
    }

    pub(crate) fn machine<T>(&self, ask: impl FnOnce(&mut Machine) -> T) -> T {
        ask(&mut self.state.borrow_mut().machine)
    }

    /// Returns the commands in the order in which they started.
    pub(crate) fn log(&self) -> Vec<Command> {
        self.state.borrow().log.clone()
    }

    /// Whether a zone management command was submitted and has not started.
    pub(crate) fn owes_a_change(&self) -> bool {
        let is_change =
            |(request, _): &(Request, _)| matches!(request.command, Command::Manage { .. });
        self.state.borrow().queues.iter().flatten().any(is_change)
    }

    /// Peak number of write commands of one zone in flight.
    pub(crate) fn most_in_flight(&self) -> u32 {
        self.state.borrow().most_in_flight
    }

    /// Returns the content of a logical block; `None` if it was never written.
    pub(crate) fn sector(&self, zone: ZoneId, offset: u64) -> Option<Vec<u8>> {
        self.state.borrow().data.get(&(self.geometry.start(zone).0 + offset)).cloned()
    }

    /// Returns the out-of-band bytes of the logical block; `None` if it was written without any.
    pub(crate) fn oob(&self, zone: ZoneId, offset: u64) -> Option<Vec<u8>> {
        self.state.borrow().oob.get(&(self.geometry.start(zone).0 + offset)).cloned()
    }

    /// Whether a write of the logical block has succeeded. Its answer may not have been
    /// delivered yet.
    pub(crate) fn is_answered(&self, zone: ZoneId, offset: u64) -> bool {
        self.state.borrow().answered.contains(&(self.geometry.start(zone).0 + offset))
    }

    /// Whether the logical block was written with FUA.
    pub(crate) fn is_forced(&self, zone: ZoneId, offset: u64) -> bool {
        self.state.borrow().forced.contains(&(self.geometry.start(zone).0 + offset))
    }

    /// Exchanges two logical blocks.
    pub(crate) fn swap(&self, a: (ZoneId, u64), b: (ZoneId, u64)) {
        let lba = |(zone, offset)| self.geometry.start(zone).0 + offset;
        let mut state = self.state.borrow_mut();
        let (first, second) = (state.data[&lba(a)].clone(), state.data[&lba(b)].clone());
        state.data.extend([(lba(a), second), (lba(b), first)]);
    }

    pub(crate) fn flip(&self, zone: ZoneId, offset: u64, byte: usize, bit: u32) {
        let lba = self.geometry.start(zone).0 + offset;
        let mut state = self.state.borrow_mut();
        state.data.get_mut(&lba).unwrap()[byte] ^= 1 << bit;
    }

    fn zone_of(&self, command: &Command) -> Option<ZoneId> {
        match command {
            Command::Read { lba, .. }
            | Command::Write { lba, .. }
            | Command::Append { zone_start: lba, .. }
            | Command::Manage { target: Target::Zone(lba), .. } => {
                self.geometry.locate(*lba).map(|place| place.0)
            }
            _ => None,
        }
    }

    fn carry_out(&self, state: &mut State, request: Request) -> Outcome {
        let Request { command, data, oob, .. } = request;
        let answer = |status, lba, data| Outcome { status, lba, data, oob: Vec::new() };
        let refuse = |status| answer(status, Lba(0), Pages::new());
        state.log.push(command);
        match command {
            Command::Write { lba, blocks } => {
                let range = lba.0..lba.0 + blocks.0;
                let hit = state.wishes.fail.iter().find(|(at, _)| range.contains(&at.0));
                if let Some((_, status)) = hit {
                    return refuse(*status);
                }
            }
            Command::Manage { target: Target::Zone(lba), action: Action::Reset } => {
                let zone = self.geometry.locate(lba).unwrap().0;
                if state.wishes.no_reset.contains(&zone) {
                    return refuse(Status::InvalidTransition);
                }
            }
            Command::Flush if state.wishes.fail_flush => return refuse(Status::WriteFault),
            _ => {}
        }
        let effect = match state.machine.apply(&command) {
            Ok(effect) => effect,
            Err(status) => return refuse(status),
        };
        let size = self.geometry.block_size.0 as usize;
        match (effect, command) {
            (
                Effect::Written { lba, .. },
                Command::Write { blocks, .. } | Command::Append { blocks, .. },
            ) => {
                let flat = concat(&data);
                assert_eq!(flat.len().div_ceil(4096), (blocks.0 as usize * size).div_ceil(4096));
                for (index, bytes) in flat.chunks(size).take(blocks.0 as usize).enumerate() {
                    state.data.insert(lba.0 + index as u64, bytes.to_vec());
                }
                let per_sector = usize::from(self.geometry.oob_bytes);
                assert!(
                    oob.is_empty() || oob.len() == blocks.0 as usize * per_sector,
                    "{command:?} {}",
                    oob.len()
                );
                for (index, bytes) in oob.chunks(per_sector.max(1)).enumerate() {
                    state.oob.insert(lba.0 + index as u64, bytes.to_vec());
                }
                answer(Status::Success, lba, Pages::new())
            }
            (Effect::Read { .. }, Command::Read { lba, blocks }) => {
                let mut flat = vec![0; blocks.0 as usize * size];
                for (index, bytes) in flat.chunks_mut(size).enumerate() {
                    if let Some(stored) = state.data.get(&(lba.0 + index as u64)) {
                        bytes.copy_from_slice(stored);
                    }
                }
                let mut pages = data;
                for (page, bytes) in pages.iter_mut().zip(flat.chunks(4096)) {
                    page.make_mut()[..bytes.len()].copy_from_slice(bytes);
                }
                answer(Status::Success, lba, pages)
            }
            (Effect::Managed { zone, .. }, Command::Manage { action: Action::Reset, .. }) => {
                let start = self.geometry.start(zone).0;
                let range = start..start + self.geometry.zone_size.0;
                state.data.retain(|lba, _| !range.contains(lba));
                state.answered.retain(|lba| !range.contains(lba));
                answer(Status::Success, Lba(start), Pages::new())
            }
            _ => answer(Status::Success, Lba(0), Pages::new()),
        }
    }
}

impl Source for Toy {
    fn poll(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let allowed = |command: &Command| match (&state.wishes.only, self.zone_of(command)) {
            (Some(only), Some(zone)) => only.contains(&zone),
            _ => true,
        };
        let mut choices = Vec::new();
        for (queue, commands) in state.queues.iter().enumerate() {
            let window = commands.iter().take(state.wishes.overtake + 1).enumerate();
            let window = window.filter(|(_, (request, _))| allowed(&request.command));
            choices.extend(window.map(|(place, _)| (queue, place)));
        }
        let total = choices.len() + state.answers.len();
        if total == 0 {
            return false;
        }
        let choice = state.rng.below(total as u64) as usize;
        if let Some((queue, place)) = choices.get(choice) {
            let (request, ticket) = state.queues[*queue].remove(*place).unwrap();
            let blocks = match request.command {
                Command::Write { blocks, .. } | Command::Append { blocks, .. } => blocks.0,
                _ => 0,
            };
            let zone = self.zone_of(&request.command).filter(|_| blocks > 0);
            let fua = request.fua;
            let outcome = self.carry_out(state, request);
            let range = outcome.lba.0..outcome.lba.0 + blocks;
            if outcome.status.is_ok() {
                state.forced.extend(range.clone().filter(|_| fua));
                state.answered.extend(range);
            }
            state.answers.push((outcome, ticket, zone));
        } else {
            let (outcome, ticket, zone) = state.answers.remove(choice - choices.len());
            if let Some(count) = zone.and_then(|zone| state.in_flight.get_mut(&zone)) {
                *count -= 1;
            }
            self.table.complete(ticket, outcome);
        }
        true
    }
}

impl ZonedDevice for Toy {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome> {
        let (ticket, completion) = self.table.open();
        let state = &mut *self.state.borrow_mut();
        if let (Command::Write { .. } | Command::Append { .. }, Some(zone)) =
            (request.command, self.zone_of(&request.command))
        {
            let count = state.in_flight.entry(zone).or_default();
            *count += 1;
            state.most_in_flight = state.most_in_flight.max(*count);
        }
        let queue = usize::from(queue.0) % state.queues.len();
        state.queues[queue].push_back((request, ticket));
        completion
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        reported(self.report_now(first, count))
    }

    fn answers(&self) -> bool {
        !self.state.borrow().wishes.gone
    }

    fn flush_covers_submitted(&self) -> bool {
        self.state.borrow().wishes.covers
    }

    fn name(&self) -> String {
        "toy".into()
    }
}
