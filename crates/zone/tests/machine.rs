//! Tests the state machine against mistakes that other emulators have made, and against impossible
//! geometries and images.

// Helpers may unwrap too: a scene that cannot be set up is a failed test.
#![allow(clippy::unwrap_used)]

use furrow_zone::{
    Action, BlockCount, ByteLen, Command, Effect, Geometry, Lba, Machine, Status, Target, Zone,
    ZoneId, ZoneState, presets,
};

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

fn append(zone: u32, blocks: u64) -> Command {
    Command::Append { zone_start: Lba(u64::from(zone) * 12), blocks: BlockCount(blocks) }
}

fn write(lba: u64, blocks: u64) -> Command {
    Command::Write { lba: Lba(lba), blocks: BlockCount(blocks) }
}

fn manage(zone: u32, action: Action) -> Command {
    Command::Manage { target: Target::Zone(Lba(u64::from(zone) * 12)), action }
}

fn all(action: Action) -> Command {
    Command::Manage { target: Target::All, action }
}

fn states(machine: &Machine) -> Vec<ZoneState> {
    let zones = machine.geometry().zones;
    machine.report(ZoneId(0), zones).iter().map(|report| report.state).collect()
}

/// Block devices of the Linux kernel take no append.
#[test]
fn a_drive_without_appends_takes_writes() {
    let none = Geometry { max_append: Some(BlockCount(0)), ..geometry() };
    let mut machine = Machine::new(none).unwrap();
    assert_eq!(machine.apply(&append(0, 1)), Err(Status::InvalidField));
    assert!(machine.apply(&write(0, 1)).is_ok());
}

// ---- Mistakes seen in other emulators --------------------------------------------------------

/// A bug of FEMU, and formerly of QEMU: the boundary of an append was checked at the address in the
/// command, which is always the zone's start, so a loop of appends to zone 0 filled the drive.
#[test]
fn a_loop_of_appends_ends_at_the_capacity() {
    let mut machine = Machine::new(geometry()).unwrap();
    let mut placed = Vec::new();
    let status = loop {
        match machine.apply(&append(0, 3)) {
            Ok(Effect::Written { lba, .. }) => placed.push(lba.0),
            Ok(other) => panic!("an append did {other:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!((placed.as_slice(), status), (&[0, 3, 6][..], Status::ZoneBoundary));
    assert!(machine.apply(&append(0, 1)).is_ok());
    assert_eq!(machine.zone(ZoneId(0)).unwrap().state, ZoneState::Full);
    assert_eq!(machine.apply(&append(0, 1)), Err(Status::ZoneFull));
    assert_eq!(machine.zone(ZoneId(1)).unwrap().write_pointer, BlockCount(0));
}

/// A bug of FEMU: a plain write never checked the limits of open and active zones.
#[test]
fn writes_obey_the_limits_as_appends_do() {
    let mut machine = Machine::new(geometry()).unwrap();
    for zone in 0..4 {
        assert!(machine.apply(&write(zone * 12, 1)).is_ok());
    }
    // The fourth zone closed the first to stay within three open zones; a fifth active zone
    // is refused.
    assert_eq!((machine.open_zones(), machine.active_zones()), (3, 4));
    assert_eq!(machine.zone(ZoneId(0)).unwrap().state, ZoneState::Closed);
    assert_eq!(machine.apply(&write(48, 1)), Err(Status::TooManyActive));
    // A write to the first zone reopens it: now the second is the oldest open one and is closed.
    assert!(machine.apply(&write(1, 1)).is_ok());
    assert_eq!(machine.implicitly_open().collect::<Vec<_>>(), [2, 3, 0].map(ZoneId));
}

/// A bug of FEMU: an explicit open did not close implicitly opened zones to make headroom.
#[test]
fn an_explicit_open_closes_the_oldest_implicit_zone() {
    let mut machine = Machine::new(geometry()).unwrap();
    for zone in 0..3 {
        machine.apply(&append(zone, 1)).unwrap();
    }
    let mut changes = Vec::new();
    machine
        .apply_observed(&manage(3, Action::Open), |zone, before, after| {
            changes.push((zone.0, before.state, after.state));
        })
        .unwrap();
    let expected = [
        (0, ZoneState::ImplicitlyOpen, ZoneState::Closed),
        (3, ZoneState::Empty, ZoneState::ExplicitlyOpen),
    ];
    assert_eq!(changes, expected);
    // An explicitly opened zone is never closed for another.
    machine.apply(&manage(1, Action::Open)).unwrap();
    machine.apply(&manage(2, Action::Open)).unwrap();
    assert_eq!(machine.apply(&manage(0, Action::Open)), Err(Status::TooManyOpen));
}

/// A bug of NVMeVirt: Select All took every zone, whatever its state, and dropped errors.
#[test]
fn select_all_leaves_other_states_alone_and_reports_errors() {
    let mut machine = Machine::new(geometry()).unwrap();
    machine.apply(&append(0, 1)).unwrap();
    machine.apply(&manage(1, Action::Finish)).unwrap();
    machine.set_read_only(ZoneId(2)).unwrap();
    machine.set_offline(ZoneId(3)).unwrap();
    machine.apply(&all(Action::Finish)).unwrap();
    use ZoneState::{Closed, Empty, ExplicitlyOpen, Full, Offline, ReadOnly};
    assert_eq!(states(&machine), [Full, Full, ReadOnly, Offline, Empty, Empty, Empty, Empty]);
    machine.apply(&all(Action::Reset)).unwrap();
    assert_eq!(states(&machine)[..4], [Empty, Empty, ReadOnly, Offline]);
    for zone in 4..8 {
        machine.apply(&manage(zone, Action::Open)).unwrap();
        machine.apply(&manage(zone, Action::Close)).unwrap();
    }
    let before = states(&machine);
    assert_eq!(machine.apply(&all(Action::Open)), Err(Status::TooManyOpen), "4 closed, 3 fit");
    assert_eq!(states(&machine), before);
    machine.apply(&manage(4, Action::Reset)).unwrap();
    machine.apply(&all(Action::Open)).unwrap();
    assert_eq!(states(&machine)[4..], [Empty, ExplicitlyOpen, ExplicitlyOpen, ExplicitlyOpen]);
    machine.apply(&all(Action::Close)).unwrap();
    assert_eq!(states(&machine)[5..], [Closed; 3]);
}

/// A bug of NVMeVirt: Finish left the write pointer unchanged, and the limits were never enforced.
#[test]
fn finish_frees_resources_and_reports_a_full_zone() {
    let mut machine = Machine::new(geometry()).unwrap();
    machine.apply(&append(0, 3)).unwrap();
    machine.apply(&manage(0, Action::Finish)).unwrap();
    let report = machine.report(ZoneId(0), 1)[0];
    assert_eq!((report.state, report.write_pointer), (ZoneState::Full, BlockCount(10)));
    assert_eq!((machine.open_zones(), machine.active_zones()), (0, 0));
    assert_eq!(machine.check(&write(3, 1)), Status::ZoneFull);
    // The write pointer still follows the blocks that were written.
    assert_eq!(machine.zone(ZoneId(0)).unwrap().write_pointer, BlockCount(3));
}

/// A bug of scsi_debug: old data remained readable after a reset.
#[test]
fn after_a_reset_every_block_is_unwritten() {
    let mut machine = Machine::new(Geometry { unwritten_reads_fail: true, ..geometry() }).unwrap();
    machine.apply(&append(2, 3)).unwrap();
    let read = Command::Read { lba: Lba(24), blocks: BlockCount(1) };
    assert_eq!(machine.check(&read), Status::Success);
    machine.apply(&manage(2, Action::Reset)).unwrap();
    assert_eq!(machine.check(&read), Status::Unwritten);
}

/// Appends return addresses beyond 4 GiB (and beyond 2^32 blocks), on zones of odd size.
#[test]
fn appends_far_out_return_their_address() {
    let geometry = Geometry {
        zones: 100_000,
        zone_size: BlockCount(524_287),
        zone_capacity: BlockCount(275_712),
        ..geometry()
    };
    let mut machine = Machine::new(geometry).unwrap();
    for zone in [3u64, 9_000, 99_999] {
        let start = zone * 524_287;
        for at in [0, 4] {
            let command = Command::Append { zone_start: Lba(start), blocks: BlockCount(4) };
            match machine.apply(&command).unwrap() {
                Effect::Written { lba, zone: z, offset, .. } => {
                    assert_eq!((lba.0, u64::from(z.0), offset.0), (start + at, zone, at));
                }
                other => panic!("an append did {other:?}"),
            }
        }
    }
    assert!(99_999 * 524_287 > u64::from(u32::MAX));
    let end = 100_000 * 524_287;
    assert_eq!(machine.check(&write(end, 1)), Status::LbaOutOfRange);
    assert_eq!(machine.check(&write(u64::MAX, 2)), Status::LbaOutOfRange);
    let command = Command::Append { zone_start: Lba(end), blocks: BlockCount(1) };
    assert_eq!(machine.check(&command), Status::LbaOutOfRange);
}

// ---- Geometry and images ---------------------------------------------------------------------

type Change = fn(&mut Geometry);

#[test]
fn impossible_geometries_are_refused_by_field() {
    let cases: [(&str, Change); 16] = [
        ("zones is 0", |g| g.zones = 0),
        ("zone_size is 0", |g| g.zone_size.0 = 0),
        ("zone_capacity is 0", |g| g.zone_capacity.0 = 0),
        ("zone_capacity is 13 blocks, above", |g| g.zone_capacity.0 = 13),
        ("block_size is 1000 bytes", |g| g.block_size.0 = 1000),
        ("block_size is 0 bytes", |g| g.block_size.0 = 0),
        ("zones are too many", |g| g.zone_size.0 = u64::MAX),
        ("zones are too many", |g| g.zone_size.0 = 1 << 49),
        ("conventional_zones is 9, above", |g| g.conventional_zones = 9),
        ("max_open is 0", |g| g.max_open = Some(0)),
        ("max_active is 0", |g| g.max_active = Some(0)),
        ("max_open is 5, above max_active of 4", |g| g.max_open = Some(5)),
        ("max_open has no limit", |g| g.max_open = None),
        ("max_append is 17 blocks, above", |g| g.max_append = Some(BlockCount(17))),
        ("channels is 0", |g| g.channels = Some(0)),
        ("dies is 0", |g| g.dies = Some(0)),
    ];
    geometry().validate().unwrap();
    for (part, change) in cases {
        let mut geometry = geometry();
        change(&mut geometry);
        let message = Machine::new(geometry).unwrap_err().to_string();
        assert!(message.starts_with("geometry: ") && message.contains(part), "{part}: {message}");
    }
}

#[test]
fn an_image_restores_only_what_can_be() {
    use ZoneState::{Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen, Offline, ReadOnly};
    let geometry = Geometry { conventional_zones: 1, ..geometry() };
    let mut machine = Machine::new(geometry).unwrap();
    let zone = |state, pointer, capacity| Zone {
        state,
        write_pointer: BlockCount(pointer),
        capacity: BlockCount(capacity),
    };
    let wrong = [
        (0, zone(Empty, 0, 10), "conventional, yet its state is Empty"),
        (1, zone(Empty, 1, 10), "empty, yet its write pointer is 1"),
        (1, zone(Closed, 10, 10), "Closed, yet written to its end"),
        (1, zone(Full, 11, 10), "write pointer 11 past its capacity of 10"),
        (1, zone(Full, 4, 11), "capacity of 11 blocks, expected 1 to 10"),
        (1, zone(Empty, 0, 0), "capacity of 0 blocks"),
        (8, zone(Empty, 0, 10), "the drive has only 8 zones"),
    ];
    for (id, to, part) in wrong {
        let message = machine.restore(ZoneId(id), to).unwrap_err().to_string();
        let named = message.starts_with(&format!("zone {id}: "));
        assert!(named && message.contains(part), "{part}: {message}");
    }
    for id in [3, 1, 2] {
        machine.restore(ZoneId(id), zone(ImplicitlyOpen, 2, 9)).unwrap();
    }
    assert_eq!(machine.implicitly_open().collect::<Vec<_>>(), [3, 1, 2].map(ZoneId));
    let message = machine.restore(ZoneId(4), zone(ExplicitlyOpen, 2, 9)).unwrap_err().to_string();
    assert!(message.contains("open, as are 3 others"), "{message}");
    machine.restore(ZoneId(4), zone(Closed, 0, 10)).unwrap();
    let message = machine.restore(ZoneId(5), zone(Closed, 2, 9)).unwrap_err().to_string();
    assert!(message.contains("active, as are 4 others"), "{message}");
    for (id, state) in [(0, ReadOnly), (5, Full), (6, Offline), (7, ReadOnly)] {
        machine.restore(ZoneId(id), zone(state, 3, 10)).unwrap();
    }
    // Restoring zones that are open already must not count them twice.
    machine.restore(ZoneId(3), zone(ExplicitlyOpen, 5, 10)).unwrap();
    assert_eq!((machine.open_zones(), machine.active_zones()), (3, 4));
}

#[test]
fn a_variable_capacity_takes_effect_and_stays_within_the_geometry() {
    let mut machine = Machine::new(geometry()).unwrap();
    machine.set_capacity(ZoneId(0), BlockCount(2)).unwrap();
    assert_eq!(machine.apply(&append(0, 3)), Err(Status::ZoneBoundary));
    machine.apply(&append(0, 2)).unwrap();
    let report = machine.report(ZoneId(0), 1)[0];
    assert_eq!((report.state, report.capacity.0, report.write_pointer.0), (ZoneState::Full, 2, 2));
    machine.apply(&manage(0, Action::Reset)).unwrap();
    for capacity in [0, 11] {
        let result = machine.set_capacity(ZoneId(0), BlockCount(capacity));
        assert_eq!(result, Err(Status::InvalidField));
    }
    assert_eq!(machine.set_capacity(ZoneId(8), BlockCount(1)), Err(Status::LbaOutOfRange));
}
