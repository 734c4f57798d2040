//! Shared by the tests: a small drive, and one-line commands.
#![allow(dead_code, reason = "each test uses its part")]

use furrow_emu::{Emulator, Medium, Options};
use furrow_rt::buf::concat;
use furrow_rt::{Config, Page, Pages, Rt};
use furrow_zone::{
    Action, BlockCount, Command, Geometry, Lba, Outcome, QueueId, Request, Status, Target, ZoneId,
    ZonedDevice,
};

/// 8 zones of 64 blocks, of which 50 can be written; at most 3 zones open and 5 active.
pub fn geometry() -> Geometry {
    Geometry {
        max_open: Some(3),
        max_active: Some(5),
        max_append: Some(BlockCount(16)),
        read_across_zones: true,
        ..Geometry::unlimited(8, 64, 50)
    }
}

pub fn drive(geometry: &Geometry) -> (Rt, Emulator) {
    let rt = Rt::new(Config::simulated(1));
    let medium = Medium::memory(geometry);
    let drive = Emulator::new(&rt, geometry.clone(), medium, Options::simulated());
    (rt, drive.expect("a geometry that can be"))
}

/// Pages for `blocks`, block i filled with `tag + i`. If the tag is odd, the second half of each
/// block is zeros.
pub fn payload(geometry: &Geometry, tag: u64, blocks: u64) -> Pages {
    let size = geometry.block_size.0 as usize;
    let mut bytes = Vec::new();
    for index in 0..blocks {
        let number = (tag + index).to_le_bytes();
        let full = if tag % 2 == 1 { size / 2 } else { size };
        let mut block: Vec<u8> = number.iter().copied().cycle().take(full).collect();
        block.resize(size, 0);
        bytes.extend(block);
    }
    bytes.chunks(4096).map(Page::from_slice).collect()
}

pub fn pages(geometry: &Geometry, blocks: u64) -> Pages {
    let bytes = blocks * geometry.block_size.0;
    (0..bytes.div_ceil(4096)).map(|_| Page::from_slice(&[0xaa; 4096])).collect()
}

pub fn bytes(geometry: &Geometry, outcome: &Outcome, blocks: u64) -> Vec<u8> {
    let all = concat(&outcome.data);
    all[..(blocks * geometry.block_size.0) as usize].to_vec()
}

pub fn write(lba: u64, blocks: u64) -> Command {
    Command::Write { lba: Lba(lba), blocks: BlockCount(blocks) }
}

pub fn read(lba: u64, blocks: u64) -> Command {
    Command::Read { lba: Lba(lba), blocks: BlockCount(blocks) }
}

pub fn append(zone_start: u64, blocks: u64) -> Command {
    Command::Append { zone_start: Lba(zone_start), blocks: BlockCount(blocks) }
}

pub fn manage(zone: u32, action: Action, geometry: &Geometry) -> Command {
    Command::Manage { target: Target::Zone(geometry.start(ZoneId(zone))), action }
}

/// Submits `request` to queue 0 and waits for its outcome.
pub fn run(rt: &Rt, drive: &Emulator, request: Request) -> Outcome {
    rt.block_on(drive.submit(QueueId(0), request))
}

/// Writes `payload(tag)` and returns the status.
pub fn put(rt: &Rt, drive: &Emulator, lba: u64, blocks: u64, tag: u64) -> Status {
    let data = payload(drive.geometry(), tag, blocks);
    run(rt, drive, Request::with_data(write(lba, blocks), data)).status
}

/// Reads `blocks` from `lba`.
pub fn get(rt: &Rt, drive: &Emulator, lba: u64, blocks: u64) -> Result<Vec<u8>, Status> {
    let data = pages(drive.geometry(), blocks);
    let outcome = run(rt, drive, Request::with_data(read(lba, blocks), data));
    if outcome.status.is_ok() {
        Ok(bytes(drive.geometry(), &outcome, blocks))
    } else {
        Err(outcome.status)
    }
}

/// The bytes of `payload(tag)`.
pub fn image_of(geometry: &Geometry, tag: u64, blocks: u64) -> Vec<u8> {
    let data = payload(geometry, tag, blocks);
    let all = concat(&data);
    all[..(blocks * geometry.block_size.0) as usize].to_vec()
}

pub fn pointer(drive: &Emulator, zone: u32) -> u64 {
    drive.report_now(ZoneId(zone), 1).expect("a drive that answers")[0].write_pointer.0
}
