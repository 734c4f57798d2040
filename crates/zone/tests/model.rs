//! Compares the state machine with a slow, simple model of the same rules, over random commands,
//! faults and power cycles on random small drives.

// Helpers may unwrap too: a scene that cannot be set up is a failed test.
#![allow(clippy::unwrap_used)]

use furrow_zone::{
    Action, BlockCount, ByteLen, Command, Effect, Geometry, Lba, Machine, Status, Target, ZoneId,
    ZoneState, presets,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn geometry() -> Geometry {
    Geometry {
        zones: 8,
        zone_size: BlockCount(12),
        zone_capacity: BlockCount(10),
        max_open: Some(3),
        max_active: Some(4),
        max_append: Some(BlockCount(4)),
        max_transfer: Some(BlockCount(16)),
        block_size: ByteLen(4096),
        ..presets::plain()
    }
}

/// The same rules in the simplest form: a map of zones, and every number counted afresh.
#[derive(Clone, Debug)]
struct Model {
    geometry: Geometry,
    zones: BTreeMap<u32, (ZoneState, u64)>,
    /// The time at which each implicitly opened zone was opened.
    opened: BTreeMap<u32, u64>,
    time: u64,
}

impl Model {
    fn new(geometry: &Geometry) -> Model {
        let fresh = |zone| match zone < geometry.conventional_zones {
            true => (zone, (ZoneState::Full, geometry.zone_capacity.0)),
            false => (zone, (ZoneState::Empty, 0)),
        };
        let zones = (0..geometry.zones).map(fresh).collect();
        Model { geometry: geometry.clone(), zones, opened: BTreeMap::new(), time: 0 }
    }

    fn count(&self, wanted: fn(ZoneState) -> bool) -> u32 {
        self.zones.values().filter(|(state, _)| wanted(*state)).count() as u32
    }

    fn set(&mut self, zone: u32, state: ZoneState, pointer: u64) {
        self.time += 1;
        if state != ZoneState::ImplicitlyOpen {
            self.opened.remove(&zone);
        } else {
            let time = self.time;
            self.opened.entry(zone).or_insert(time);
        }
        self.zones.insert(zone, (state, pointer));
    }

    /// Makes headroom to open `zone`.
    fn make_room(&mut self, zone: u32) -> Status {
        let state = self.zones[&zone].0;
        let (open, active) = (self.geometry.max_open, self.geometry.max_active);
        if state.is_open() {
            return Status::Success;
        }
        if !state.is_active() && active == Some(self.count(ZoneState::is_active)) {
            return Status::TooManyActive;
        }
        if open == Some(self.count(ZoneState::is_open)) {
            let oldest = self.opened.iter().min_by_key(|(_, time)| **time).map(|(zone, _)| *zone);
            match oldest {
                Some(oldest) => self.set(oldest, ZoneState::Closed, self.zones[&oldest].1),
                None if open == active => return Status::TooManyActive,
                None => return Status::TooManyOpen,
            }
        }
        Status::Success
    }

    fn write(&mut self, zone: u32, blocks: u64) -> Status {
        let (state, pointer) = self.zones[&zone];
        let end = pointer + blocks;
        if end > self.geometry.zone_capacity.0 {
            return Status::ZoneBoundary;
        }
        let room = self.make_room(zone);
        if !room.is_ok() {
            return room;
        }
        let full = end == self.geometry.zone_capacity.0;
        let open = if state.is_open() { state } else { ZoneState::ImplicitlyOpen };
        self.set(zone, if full { ZoneState::Full } else { open }, end);
        Status::Success
    }

    fn apply(&mut self, command: &Command) -> Status {
        let size = self.geometry.zone_size.0;
        let drive = u64::from(self.geometry.zones) * size;
        let (lba, blocks, limit) = match *command {
            Command::Read { lba, blocks } | Command::Write { lba, blocks } => {
                (lba.0, blocks.0, self.geometry.max_transfer)
            }
            Command::Append { zone_start, blocks } => {
                (zone_start.0, blocks.0, self.geometry.max_append.or(self.geometry.max_transfer))
            }
            Command::Flush => return Status::Success,
            Command::Manage { target, action } => return self.manage(target, action),
        };
        if blocks == 0 || limit.is_some_and(|limit| blocks > limit.0) {
            return Status::InvalidField;
        }
        let reach = if matches!(command, Command::Append { .. }) { 1 } else { blocks };
        if lba + reach > drive {
            return Status::LbaOutOfRange;
        }
        let (zone, offset) = ((lba / size) as u32, lba % size);
        if let Command::Read { .. } = command {
            return self.read(lba, blocks);
        }
        let conventional = zone < self.geometry.conventional_zones;
        let append = matches!(command, Command::Append { .. });
        let (state, pointer) = self.zones[&zone];
        match state {
            _ if conventional && append => Status::InvalidField,
            ZoneState::ReadOnly => Status::ZoneReadOnly,
            ZoneState::Offline => Status::ZoneOffline,
            _ if conventional && offset + blocks > self.geometry.zone_capacity.0 => {
                Status::ZoneBoundary
            }
            _ if conventional => Status::Success,
            ZoneState::Full => Status::ZoneFull,
            _ if append && offset != 0 => Status::InvalidField,
            _ if !append && offset != pointer => Status::ZoneInvalidWrite,
            _ => self.write(zone, blocks),
        }
    }

    fn read(&self, lba: u64, blocks: u64) -> Status {
        let size = self.geometry.zone_size.0;
        let zone_of = |lba: u64| (lba / size) as u32;
        let first = zone_of(lba);
        let crosses = zone_of(lba + blocks - 1) != first;
        if self.zones[&first].0 == ZoneState::Offline {
            return Status::ZoneOffline;
        }
        if crosses && !self.geometry.read_across_zones {
            return Status::ZoneBoundary;
        }
        // Check block by block.
        let every = || (lba..lba + blocks).map(|lba| (zone_of(lba), lba % size));
        if every().any(|(zone, _)| self.zones[&zone].0 == ZoneState::Offline) {
            return Status::ZoneOffline;
        }
        let unwritten = |(zone, offset)| {
            let (state, pointer) = self.zones[&zone];
            zone >= self.geometry.conventional_zones
                && state != ZoneState::ReadOnly
                && offset >= pointer
        };
        if self.geometry.unwritten_reads_fail && every().any(unwritten) {
            return Status::Unwritten;
        }
        Status::Success
    }

    fn manage(&mut self, target: Target, action: Action) -> Status {
        let zone = match target {
            Target::All => return self.manage_all(action),
            Target::Zone(lba)
                if lba.0 >= u64::from(self.geometry.zones) * self.geometry.zone_size.0 =>
            {
                return Status::LbaOutOfRange;
            }
            Target::Zone(lba) if lba.0 % self.geometry.zone_size.0 != 0 => {
                return Status::InvalidField;
            }
            Target::Zone(lba) => (lba.0 / self.geometry.zone_size.0) as u32,
        };
        if zone < self.geometry.conventional_zones {
            return Status::InvalidField;
        }
        let (state, pointer) = self.zones[&zone];
        let dead = matches!(state, ZoneState::ReadOnly | ZoneState::Offline);
        let (to, pointer) = match action {
            Action::Open if dead || state == ZoneState::Full => return Status::InvalidTransition,
            Action::Open => {
                let room = self.make_room(zone);
                if !room.is_ok() {
                    return room;
                }
                (ZoneState::ExplicitlyOpen, pointer)
            }
            Action::Close if !state.is_active() => return Status::InvalidTransition,
            Action::Close => (ZoneState::Closed, pointer),
            Action::Finish | Action::Reset if dead => return Status::InvalidTransition,
            Action::Finish => (ZoneState::Full, pointer),
            Action::Reset => (ZoneState::Empty, 0),
            Action::Offline if !dead => return Status::InvalidTransition,
            Action::Offline => (ZoneState::Offline, pointer),
        };
        self.set(zone, to, pointer);
        Status::Success
    }

    fn manage_all(&mut self, action: Action) -> Status {
        let takes = |state: ZoneState| match action {
            Action::Open => state == ZoneState::Closed,
            Action::Close => state.is_open(),
            Action::Finish => state.is_active(),
            Action::Reset => state.is_active() || state == ZoneState::Full,
            Action::Offline => state == ZoneState::ReadOnly,
        };
        let first = self.geometry.conventional_zones;
        let chosen: Vec<u32> =
            self.zones.range(first..).filter(|(_, z)| takes(z.0)).map(|(zone, _)| *zone).collect();
        let before = self.clone();
        for zone in chosen {
            let start = Lba(u64::from(zone) * self.geometry.zone_size.0);
            let status = self.manage(Target::Zone(start), action);
            if !status.is_ok() {
                // Select All changes all zones or none.
                *self = before;
                return status;
            }
        }
        Status::Success
    }
}

#[derive(Clone, Debug)]
enum Event {
    Command(Command),
    /// A write or append at the correct place of a zone.
    Grow(u32, u64, bool),
    ReadOnly(u32),
    Offline(u32),
    ForceFull(u32),
    /// A failed write that still wrote this number of blocks.
    FailedWrite(u32, u64),
    /// Number of blocks that each zone loses.
    PowerCycle(Vec<u64>),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => Just(Action::Open),
        3 => Just(Action::Close),
        1 => Just(Action::Finish),
        3 => Just(Action::Reset),
        1 => Just(Action::Offline),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let lba = 0..8 * 12 + 3u64;
    let start = (0..9u64).prop_map(|zone| Lba(zone * 12));
    let place = prop_oneof![8 => start.clone(), 1 => lba.clone().prop_map(Lba)];
    let range = (lba, 0..18u64).prop_map(|(lba, blocks)| (Lba(lba), BlockCount(blocks)));
    prop_oneof![
        40 => (0..8u32, 1..5u64, any::<bool>())
            .prop_map(|(zone, blocks, append)| Event::Grow(zone, blocks, append)),
        8 => range.clone().prop_map(|(lba, blocks)| Event::Command(Command::Read { lba, blocks })),
        4 => range.prop_map(|(lba, blocks)| Event::Command(Command::Write { lba, blocks })),
        4 => (place.clone(), 0..6u64).prop_map(|(zone_start, blocks)| {
            Event::Command(Command::Append { zone_start, blocks: BlockCount(blocks) })
        }),
        20 => (place, action()).prop_map(|(lba, action)| {
            Event::Command(Command::Manage { target: Target::Zone(lba), action })
        }),
        4 => action().prop_map(|action| {
            Event::Command(Command::Manage { target: Target::All, action })
        }),
        1 => Just(Event::Command(Command::Flush)),
        1 => (0..8u32).prop_map(Event::ReadOnly),
        1 => (0..8u32).prop_map(Event::Offline),
        2 => (0..8u32).prop_map(Event::ForceFull),
        3 => (0..8u32, 0..4u64).prop_map(|(zone, blocks)| Event::FailedWrite(zone, blocks)),
        2 => prop::collection::vec(0..12u64, 8).prop_map(Event::PowerCycle),
    ]
}

fn any_geometry() -> impl Strategy<Value = Geometry> {
    let limits = prop_oneof![
        Just((None, None)),
        (1..5u32, 0..3u32).prop_map(|(open, more)| (Some(open), Some(open + more))),
        (1..5u32).prop_map(|open| (Some(open), None)),
    ];
    (limits, 0..3u32, 10..13u64, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |((max_open, max_active), conventional_zones, capacity, across, fails, zasl)| Geometry {
            zone_capacity: BlockCount(capacity),
            max_open,
            max_active,
            conventional_zones,
            read_across_zones: across,
            unwritten_reads_fail: fails,
            max_append: zasl.then_some(BlockCount(4)),
            ..geometry()
        },
    )
}

/// Applies `event` to the machine and the model; the statuses must agree. Returns true if write
/// pointers may go back.
fn happen(event: &Event, machine: &mut Machine, model: &mut Model) -> Result<bool, TestCaseError> {
    let (found, expected) = match event {
        Event::Command(command) => {
            let checked = machine.check(command);
            let before = machine.clone();
            let found = machine.apply(command).err().unwrap_or(Status::Success);
            prop_assert_eq!(checked, found, "check and apply of {:?}", command);
            if !found.is_ok() {
                let zones = machine.geometry().zones;
                for zone in (0..zones).map(ZoneId) {
                    prop_assert_eq!(before.zone(zone), machine.zone(zone), "refused, yet changed");
                }
            }
            (found, model.apply(command))
        }
        Event::Grow(zone, blocks, append) => {
            let start = u64::from(*zone) * 12;
            let at = start + machine.zone(ZoneId(*zone)).unwrap().write_pointer.0;
            let blocks = BlockCount(*blocks);
            let command = match append {
                true => Command::Append { zone_start: Lba(start), blocks },
                false => Command::Write { lba: Lba(at), blocks },
            };
            let effect = machine.apply(&command);
            if let Ok(Effect::Written { lba, zone: z, offset, state }) = effect
                // In a zone without a gap, the block after the last belongs to the next zone.
                && at < start + 12
                && !machine.geometry().is_conventional(ZoneId(*zone))
            {
                prop_assert_eq!((lba.0, z.0, start + offset.0), (at, *zone, at));
                prop_assert_eq!(state, machine.zone(z).unwrap().state);
            }
            (effect.err().unwrap_or(Status::Success), model.apply(&command))
        }
        Event::ReadOnly(zone) => {
            let (state, pointer) = model.zones[zone];
            let dead = state == ZoneState::Offline;
            if !dead {
                model.set(*zone, ZoneState::ReadOnly, pointer);
            }
            let expected = if dead { Status::InvalidTransition } else { Status::Success };
            (machine.set_read_only(ZoneId(*zone)).err().unwrap_or(Status::Success), expected)
        }
        Event::Offline(zone) => {
            let pointer = model.zones[zone].1;
            model.set(*zone, ZoneState::Offline, pointer);
            let status = machine.set_offline(ZoneId(*zone)).err().unwrap_or(Status::Success);
            (status, Status::Success)
        }
        Event::ForceFull(zone) => {
            let (state, pointer) = model.zones[zone];
            let active = state.is_active();
            if active {
                model.set(*zone, ZoneState::Full, pointer);
            }
            let expected = if active { Status::Success } else { Status::InvalidTransition };
            (machine.force_full(ZoneId(*zone)).err().unwrap_or(Status::Success), expected)
        }
        Event::FailedWrite(zone, blocks) => {
            let (state, pointer) = model.zones[zone];
            let left_at = BlockCount(pointer + blocks);
            let expected = match state {
                _ if *zone < model.geometry.conventional_zones => Status::InvalidField,
                ZoneState::Full => Status::ZoneFull,
                ZoneState::ReadOnly => Status::ZoneReadOnly,
                ZoneState::Offline => Status::ZoneOffline,
                _ => model.write(*zone, *blocks),
            };
            let found = machine.fail_write_at(ZoneId(*zone), left_at);
            (found.err().unwrap_or(Status::Success), expected)
        }
        Event::PowerCycle(lost) => {
            power_cycle(lost, machine, model)?;
            return Ok(true);
        }
    };
    prop_assert_eq!(found, expected, "{:?}", event);
    let resets = matches!(event, Event::Command(Command::Manage { action: Action::Reset, .. }));
    Ok(resets)
}

/// Carries out a power cycle of the machine, and checks its properties; the model then takes over
/// the outcome.
fn power_cycle(
    lost: &[u64],
    machine: &mut Machine,
    model: &mut Model,
) -> Result<(), TestCaseError> {
    machine.power_cycle(|zone, before| {
        BlockCount(before.write_pointer.0.saturating_sub(lost[zone.0 as usize]))
    });
    prop_assert_eq!(machine.open_zones(), 0);
    let limit = machine.geometry().max_active.unwrap_or(u32::MAX);
    for (zone, (state, pointer)) in model.zones.clone() {
        let after = machine.zone(ZoneId(zone)).unwrap();
        if zone < model.geometry.conventional_zones {
            prop_assert_eq!(after.state, state);
            continue;
        }
        let kept = pointer.saturating_sub(lost[zone as usize]);
        prop_assert_eq!(after.write_pointer.0, kept);
        let closed_or_empty = if kept > 0 { ZoneState::Closed } else { ZoneState::Empty };
        let torn = pointer == model.geometry.zone_capacity.0 && kept < pointer;
        let expected = match state {
            ZoneState::Full if torn => {
                // The limit of active zones leaves no headroom for this zone, so it stays full.
                let full = kept > 0 && machine.active_zones() == limit;
                if full && after.state == ZoneState::Full {
                    ZoneState::Full
                } else {
                    closed_or_empty
                }
            }
            ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline => state,
            _ => closed_or_empty,
        };
        prop_assert_eq!(after.state, expected, "zone {} was {:?}", zone, state);
        model.set(zone, after.state, after.write_pointer.0);
    }
    // A second power cycle that loses nothing changes nothing.
    let again = machine.report(ZoneId(0), 8);
    machine.power_cycle(|_, zone| zone.write_pointer);
    prop_assert_eq!(machine.report(ZoneId(0), 8), again);
    Ok(())
}

fn agree(machine: &Machine, model: &Model) -> Result<(), TestCaseError> {
    for (zone, (state, pointer)) in &model.zones {
        let found = machine.zone(ZoneId(*zone)).unwrap();
        prop_assert_eq!((found.state, found.write_pointer.0), (*state, *pointer), "zone {}", zone);
        let at_end = found.write_pointer == found.capacity;
        prop_assert!(!(found.state.is_active() && at_end), "zone {} is full", zone);
    }
    let (open, active) = (model.count(ZoneState::is_open), model.count(ZoneState::is_active));
    prop_assert_eq!((machine.open_zones(), machine.active_zones()), (open, active));
    prop_assert!(model.geometry.max_open.is_none_or(|limit| open <= limit));
    prop_assert!(model.geometry.max_active.is_none_or(|limit| active <= limit));
    let mut order: Vec<_> =
        model.opened.iter().map(|(zone, time)| (*time, ZoneId(*zone))).collect();
    order.sort();
    let order: Vec<_> = order.into_iter().map(|(_, zone)| zone).collect();
    prop_assert_eq!(machine.implicitly_open().collect::<Vec<_>>(), order);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_machine_is_the_slow_model(
        geometry in any_geometry(),
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut machine = Machine::new(geometry.clone()).unwrap();
        let mut model = Model::new(&geometry);
        for event in &events {
            let before: Vec<_> = (0..8).map(|zone| machine.zone(ZoneId(zone)).unwrap()).collect();
            let may_go_back = happen(event, &mut machine, &mut model)?;
            agree(&machine, &model)?;
            for (zone, before) in (0..).zip(before) {
                let after = machine.zone(ZoneId(zone)).unwrap();
                prop_assert!(may_go_back || after.write_pointer >= before.write_pointer);
            }
        }
    }

    /// The observer learns of every change, so that an image that follows it is never behind.
    #[test]
    fn an_observer_sees_every_change(
        geometry in any_geometry(),
        events in prop::collection::vec(event(), 1..80),
    ) {
        let mut machine = Machine::new(geometry).unwrap();
        let mut copy: Vec<_> = (0..8).map(|zone| machine.zone(ZoneId(zone)).unwrap()).collect();
        for event in events {
            let Event::Command(command) = event else { continue };
            let mut behind = None;
            let _ = machine.apply_observed(&command, |zone, before, after| {
                let known = std::mem::replace(&mut copy[zone.0 as usize], *after);
                behind = behind.or((known != *before || before == after).then_some(zone));
            });
            prop_assert_eq!(behind, None);
            for (zone, known) in (0..).zip(&copy) {
                prop_assert_eq!(machine.zone(ZoneId(zone)), Some(*known));
            }
        }
    }
}
