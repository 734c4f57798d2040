//! The emulator against a model, on every medium at once.
//!
//! The model is the state machine for the answers, and a map of blocks for the contents. Random
//! commands go to the model and to drives in memory, in an image and on a discarding medium, one
//! command at a time and all at once. All must agree on every status, every block and every zone;
//! the image must also agree after it is closed and opened again.
#![allow(clippy::disallowed_methods, reason = "images are files")]

use crate::common::*;
use furrow_emu::{Emulator, Medium, Options, create_image, open};
use furrow_rt::{Config, PAGE_SIZE, Page, Pages, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{
    Access, Action, BlockCount, ByteLen, Command, Effect, Geometry, Lba, Machine, QueueId, Request,
    Status, Target, ZoneId, ZonedDevice,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Debug)]
enum Op {
    /// A write to `zone` at its write pointer plus `off`.
    Write {
        zone: u32,
        off: u64,
        blocks: u64,
        tag: u64,
    },
    Append {
        zone: u32,
        off: u64,
        blocks: u64,
        tag: u64,
    },
    Read {
        lba: u64,
        blocks: u64,
    },
    Manage {
        zone: Option<u32>,
        action: Action,
    },
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    // Most writes are at the write pointer, and most have few blocks.
    let off = prop_oneof![8 => Just(0u64), 1 => 1u64..3];
    let blocks = prop_oneof![6 => 1u64..8, 1 => 8u64..60, 1 => Just(0u64)];
    let action = prop_oneof![
        4 => Just(Action::Reset),
        2 => Just(Action::Finish),
        2 => Just(Action::Open),
        2 => Just(Action::Close),
        1 => Just(Action::Offline),
    ];
    prop_oneof![
        8 => (0u32..9, off.clone(), blocks.clone(), any::<u64>())
            .prop_map(|(zone, off, blocks, tag)| Op::Write { zone, off, blocks, tag }),
        4 => (0u32..9, off, blocks.clone(), any::<u64>())
            .prop_map(|(zone, off, blocks, tag)| Op::Append { zone, off, blocks, tag }),
        4 => (0u64..520, blocks).prop_map(|(lba, blocks)| Op::Read { lba, blocks }),
        3 => (prop_oneof![9 => (0u32..9).prop_map(Some), 1 => Just(None)], action)
            .prop_map(|(zone, action)| Op::Manage { zone, action }),
        1 => Just(Op::Flush),
    ]
}

fn geometries() -> impl Strategy<Value = Geometry> {
    let sizes = prop_oneof![Just((64, 50)), Just((48, 48)), Just((37, 31))];
    (sizes, any::<bool>(), prop_oneof![Just(0u16), Just(8), Just(64)], 0u32..3, any::<[bool; 3]>())
        .prop_map(|((size, capacity), small, oob_bytes, conventional_zones, flags)| Geometry {
            zone_size: BlockCount(size),
            zone_capacity: BlockCount(capacity),
            block_size: ByteLen(if small { 512 } else { 4096 }),
            oob_bytes,
            conventional_zones,
            read_across_zones: flags[0],
            unwritten_reads_fail: flags[1],
            volatile_cache: flags[2],
            max_append: flags[0].then_some(BlockCount(9)),
            ..geometry()
        })
}

/// The expected content of the drive: payload and out-of-band bytes by zone and offset.
struct Model {
    machine: Machine,
    blocks: BTreeMap<(u32, u64), (Vec<u8>, Vec<u8>)>,
}

impl Model {
    fn block(&self, zone: u32, offset: u64) -> (Vec<u8>, Vec<u8>) {
        let geometry = self.machine.geometry();
        self.blocks.get(&(zone, offset)).cloned().unwrap_or_else(|| {
            let zeros = |length: u64| vec![0; length as usize];
            (zeros(geometry.block_size.0), zeros(u64::from(geometry.oob_bytes)))
        })
    }

    fn apply(&mut self, command: &Command, payload: &[u8], oob: &[u8]) -> (Status, Lba) {
        let mut emptied = Vec::new();
        let effect = self.machine.apply_observed(command, |zone, _, after| {
            if after.write_pointer.0 == 0 {
                emptied.push(zone.0);
            }
        });
        self.blocks.retain(|(zone, _), _| !emptied.contains(zone));
        match effect {
            Ok(Effect::Written { lba, zone, offset, .. }) => {
                let geometry = self.machine.geometry();
                let size = geometry.block_size.0 as usize;
                let beside = usize::from(geometry.oob_bytes);
                for (index, block) in payload.chunks(size).enumerate() {
                    let oob = oob[index * beside..(index + 1) * beside].to_vec();
                    let key = (zone.0, offset.0 + index as u64);
                    self.blocks.insert(key, (block.to_vec(), oob));
                }
                (Status::Success, lba)
            }
            Ok(_) => (Status::Success, Lba(0)),
            Err(status) => (status, Lba(0)),
        }
    }

    fn command(&self, op: &Op) -> Command {
        let geometry = self.machine.geometry();
        let wp = |zone: u32| {
            self.machine.zone(ZoneId(zone)).map_or(0, |z| {
                if geometry.is_conventional(ZoneId(zone)) { 3 } else { z.write_pointer.0 }
            })
        };
        match *op {
            Op::Write { zone, off, blocks, .. } => {
                write(geometry.start(ZoneId(zone)).0 + wp(zone) + off, blocks)
            }
            Op::Append { zone, off, blocks, .. } => {
                append(geometry.start(ZoneId(zone)).0 + off, blocks)
            }
            Op::Read { lba, blocks } => read(lba, blocks),
            Op::Manage { zone: Some(zone), action } => manage(zone, action, geometry),
            Op::Manage { zone: None, action } => Command::Manage { target: Target::All, action },
            Op::Flush => Command::Flush,
        }
    }
}

/// Payload and out-of-band bytes for `op`: sparse, dense or zero blocks, depending on the tag.
fn contents(geometry: &Geometry, op: &Op) -> (Vec<u8>, Vec<u8>) {
    let (Op::Write { blocks, tag, .. } | Op::Append { blocks, tag, .. }) = *op else {
        return (Vec::new(), Vec::new());
    };
    let size = geometry.block_size.0 as usize;
    let mut rng = furrow_rt::Rng::new(tag);
    let mut data = vec![0; blocks as usize * size];
    for sub in data.chunks_mut(512) {
        if rng.below(3) > 0 || tag % 4 == 0 {
            let value = (rng.next() as u8).max(1);
            let from = if tag % 3 == 0 { 500 } else { 0 };
            sub[from..].fill(value);
        }
    }
    let mut oob = vec![0; blocks as usize * usize::from(geometry.oob_bytes)];
    for beside in oob.chunks_mut(usize::from(geometry.oob_bytes).max(1)) {
        if tag % 2 == 0 {
            beside[..4].copy_from_slice(&(rng.next() as u32).to_le_bytes());
        }
    }
    (data, oob)
}

fn to_pages(bytes: &[u8]) -> Pages {
    bytes.chunks(PAGE_SIZE).map(Page::from_slice).collect()
}

struct Rig {
    rt: Rt,
    drive: Emulator,
    keeps_payload: bool,
}

impl Rig {
    fn execute(&self, model: &Model, command: Command, data: &[u8], oob: &[u8]) -> (Status, Lba) {
        let geometry = model.machine.geometry();
        let mut request = Request::with_data(command, to_pages(data));
        request.oob = oob.to_vec();
        if let Command::Read { blocks, .. } = command {
            request.data = pages(geometry, blocks.0);
            // A read must replace the old content of the caller's buffers.
            request.oob = vec![0xee; blocks.0.min(64) as usize * usize::from(geometry.oob_bytes)];
        }
        let outcome = run(&self.rt, &self.drive, request);
        if let (Command::Read { lba, blocks }, Status::Success) = (command, outcome.status) {
            self.compare(model, lba, blocks.0, &bytes(geometry, &outcome, blocks.0), &outcome.oob);
        }
        (outcome.status, outcome.lba)
    }

    fn compare(&self, model: &Model, lba: Lba, blocks: u64, data: &[u8], oob: &[u8]) {
        let geometry = model.machine.geometry();
        let size = geometry.block_size.0 as usize;
        let beside = usize::from(geometry.oob_bytes);
        assert_eq!(oob.len(), blocks as usize * beside);
        for index in 0..blocks as usize {
            let at = Lba(lba.0 + index as u64);
            let (zone, offset) = geometry.locate(at).expect("the read was accepted");
            let expected = model.block(zone.0, offset.0);
            let found = &data[index * size..(index + 1) * size];
            if self.keeps_payload {
                assert!(found == expected.0, "{}: zone {zone} {offset}", self.drive.name());
            } else {
                assert!(found.iter().all(|byte| *byte == 0));
            }
            assert_eq!(&oob[index * beside..(index + 1) * beside], expected.1);
        }
    }

    fn compare_all(&self, model: &Model) {
        let geometry = model.machine.geometry();
        let all = geometry.zones;
        assert_eq!(self.drive.report_now(ZoneId(0), all), Ok(model.machine.report(ZoneId(0), all)));
        for zone in 0..geometry.zones {
            for offset in 0..geometry.zone_size.0 {
                let lba = geometry.start(ZoneId(zone)).0 + offset;
                let command = read(lba, 1);
                let status = self.execute(model, command, &[], &[]).0;
                assert_eq!(status, model.machine.check(&command));
            }
        }
    }
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn image_rig(path: &std::path::Path, mode: Access) -> Rig {
    let rt = Rt::new(Config::simulated(3));
    let spec: DeviceSpec = path.display().to_string().parse().expect("a plain path");
    let drive = open(&rt, &spec, mode).expect("an image");
    Rig { rt, drive: (*drive).clone(), keeps_payload: true }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 160,
        failure_persistence: None,
        ..Default::default()
    })]
    #[test]
    fn every_medium_agrees_with_the_model(
        geometry in geometries(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let path = scratch("model.zns");
        create_image(&path, &geometry, true).expect("an image");
        let mut rigs = vec![image_rig(&path, Access::ReadWrite)];
        let memory = || Medium::memory(&geometry);
        let media = [
            (memory(), Options::simulated()),
            (memory(), Options::fast()),
            (Medium::discard(&geometry), Options::fast()),
        ];
        for (medium, options) in media {
            let keeps_payload = matches!(medium, Medium::Memory(_));
            let rt = Rt::new(Config::simulated(3));
            let drive = Emulator::new(&rt, geometry.clone(), medium, options).unwrap();
            rigs.push(Rig { rt, drive, keeps_payload });
        }
        let machine = Machine::new(geometry.clone()).unwrap();
        let mut model = Model { machine, blocks: BTreeMap::new() };
        for op in &ops {
            let command = model.command(op);
            let (data, oob) = contents(&geometry, op);
            let expected: Vec<_> = rigs
                .iter()
                .map(|rig| (rig, matches!(command, Command::Read { .. })))
                .map(|(rig, reads)| reads.then(|| rig.execute(&model, command, &data, &oob)))
                .collect();
            let (status, lba) = model.apply(&command, &data, &oob);
            for (rig, read) in rigs.iter().zip(expected) {
                let found = read.unwrap_or_else(|| rig.execute(&model, command, &data, &oob));
                prop_assert_eq!(found.0, status, "{:?} on {}", op, rig.drive.name());
                if status.is_ok() && !matches!(command, Command::Read { .. }) {
                    prop_assert_eq!(found.1, lba);
                }
            }
        }
        for rig in &rigs {
            rig.compare_all(&model);
        }
        rigs.iter().for_each(|rig| rig.rt.clear());
        drop(rigs);
        // The image is opened again, as another process would do it.
        let again = image_rig(&path, Access::ReadOnly);
        again.compare_all(&model);
        prop_assert!(again.drive.warnings().is_empty());
        again.rt.clear();
    }
}

/// An image opened for reading refuses changes, and does not change.
#[test]
fn a_read_only_image_stays_as_it_is() {
    let geometry = geometry();
    let path = scratch("read-only.zns");
    create_image(&path, &geometry, true).unwrap();
    let rig = image_rig(&path, Access::ReadWrite);
    assert!(put(&rig.rt, &rig.drive, 0, 4, 10).is_ok());
    rig.rt.clear();
    drop(rig);
    let before = std::fs::read(&path).unwrap();
    let rig = image_rig(&path, Access::ReadOnly);
    assert_eq!(put(&rig.rt, &rig.drive, 4, 1, 10), Status::WriteFault);
    let reset = manage(0, Action::Reset, &geometry);
    assert_eq!(run(&rig.rt, &rig.drive, Request::bare(reset)).status, Status::WriteFault);
    assert_eq!(get(&rig.rt, &rig.drive, 0, 4), Ok(image_of(&geometry, 10, 4)));
    rig.rt.clear();
    drop(rig);
    assert!(before == std::fs::read(&path).unwrap());
}

/// With `sync=on`, flushes and writes with FUA reach the file's disk and succeed.
#[test]
fn a_synced_image_takes_flushes_and_forced_writes() {
    let geometry = Geometry { volatile_cache: true, ..geometry() };
    let path = scratch("synced.zns");
    create_image(&path, &geometry, true).unwrap();
    let rt = Rt::new(Config::simulated(3));
    let spec: DeviceSpec = format!("{},sync=on", path.display()).parse().unwrap();
    let drive = open(&rt, &spec, Access::ReadWrite).unwrap();
    assert!(put(&rt, &drive, 0, 2, 10).is_ok());
    assert!(run(&rt, &drive, Request::bare(Command::Flush)).status.is_ok());
    let mut forced = Request::with_data(write(2, 2), payload(&geometry, 20, 2));
    forced.fua = true;
    assert!(run(&rt, &drive, forced).status.is_ok());
    assert!(put(&rt, &drive, 4, 2, 30).is_ok());
    drop(drive);
    // Four blocks are durable, and are still durable when the image is opened again.
    let rig = image_rig(&path, Access::ReadWrite);
    let lost =
        furrow_emu::Fates { commands: None, unflushed: furrow_emu::Unflushed::Lost, seed: 0 };
    assert_eq!(rig.drive.snapshot().power_cut(&lost).report()[0].write_pointer.0, 4);
    assert_eq!(pointer(&rig.drive, 0), 6);
}

/// A snapshot of an image has the content of the image.
#[test]
fn a_snapshot_of_an_image_goes_on_in_memory() {
    let geometry = Geometry { oob_bytes: 8, ..geometry() };
    let path = scratch("snapshot.zns");
    create_image(&path, &geometry, true).unwrap();
    let rig = image_rig(&path, Access::ReadWrite);
    assert!(put(&rig.rt, &rig.drive, 0, 4, 10).is_ok());
    let snapshot = rig.drive.snapshot();
    let rt = Rt::new(Config::simulated(1));
    let copy = Emulator::from_snapshot(&rt, &snapshot, Options::simulated());
    assert!(put(&rt, &copy, 4, 2, 31).is_ok());
    assert_eq!(get(&rt, &copy, 0, 4), Ok(image_of(&geometry, 10, 4)));
    assert_eq!((pointer(&rig.drive, 0), pointer(&copy, 0)), (4, 6));
    rig.rt.clear();
}

/// Requests whose payload does not match their command are refused, not carried out.
#[test]
fn a_payload_of_the_wrong_length_is_refused() {
    let geometry = Geometry { oob_bytes: 8, ..geometry() };
    let (rt, drive) = drive(&geometry);
    let mut requests = vec![
        Request::with_data(write(0, 4), payload(&geometry, 10, 3)),
        Request::with_data(write(0, 4), payload(&geometry, 10, 5)),
        Request::with_data(append(0, 4), Pages::new()),
        Request::with_data(read(0, 4), pages(&geometry, 3)),
        Request::with_data(write(0, u64::MAX), payload(&geometry, 10, 3)),
    ];
    let mut odd = Request::with_data(write(0, 4), payload(&geometry, 10, 4));
    odd.oob = vec![1; 31];
    requests.push(odd);
    for request in requests {
        let command = request.command;
        let queued = drive.submit(QueueId(3), request);
        assert_eq!(rt.block_on(queued).status, Status::InvalidField, "{command:?}");
    }
    assert_eq!(pointer(&drive, 0), 0);
}
