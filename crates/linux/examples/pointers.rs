//! Shows where the kernel's block layer and a zoned drive disagree about a write pointer, and that
//! this crate's drive can write nevertheless: `pointers DEVICE [GENERIC]`. DEVICE is a block device
//! (`/dev/nvme0n1`), GENERIC the generic NVMe device of the same namespace (`/dev/ng0n1`). The
//! content of the first sequential zone is lost.
//!
//! Prints a line for each step. Writes of "the kernel" are single system calls; those without
//! waiting are what an io_uring sends first. The kernel's own write pointers (zone write plugs) are
//! shown if debugfs is mounted. The program fails if a correct write of the drive fails.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a command has arguments, and this one writes past the drive"
)]

use furrow_linux::Drive;
use furrow_rt::{Config, PAGE_SIZE, Page, Pages, Rt};
use furrow_zone::spec::{DeviceSpec, SpecError};
use furrow_zone::{
    Access, BlockCount, Command, Lba, QueueId, Request, Status, ZoneId, ZonedDevice,
};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;

/// Opens `name` and runs `work` on it and its first sequential zone.
fn on<T: 'static>(
    name: &str,
    work: impl AsyncFnOnce(Drive, ZoneId) -> Result<T, String> + 'static,
) -> Result<T, String> {
    let spec = name.parse().map_err(|error: SpecError| error.to_string())?;
    let DeviceSpec::Node(node) = spec else { return Err(format!("{name}: no device")) };
    let rt = Rt::new(Config::real());
    let drive = Drive::open(&rt, &node, Access::ReadWrite).map_err(|error| error.to_string())?;
    let zone = ZoneId(drive.geometry().conventional_zones);
    let done = rt.block_on(async move { work(drive, zone).await });
    rt.clear();
    done
}

async fn reset(drive: &Drive, zone: ZoneId) -> Result<(), String> {
    let request = Request::bare(Command::reset(drive.geometry(), zone));
    match drive.submit(QueueId(0), request).await.status {
        Status::Success => Ok(()),
        status => Err(format!("the zone cannot be reset: {status}")),
    }
}

/// Writes a page at the zone's write pointer.
async fn write(drive: &Drive, zone: ZoneId, what: &str) -> Result<(), String> {
    let geometry = drive.geometry();
    let at = report(drive, zone, what).await?;
    let blocks = BlockCount(PAGE_SIZE as u64 / geometry.block_size.0);
    let command = Command::Write { lba: Lba(geometry.start(zone).0 + at), blocks };
    let request = Request::with_data(command, Pages::from_iter([Page::zeroed()]));
    let status = drive.submit(QueueId(0), request).await.status;
    println!("the drive: {what}: a write at block {at}: {status}");
    if status.is_ok() { Ok(()) } else { Err(format!("a right write failed: {status}")) }
}

/// Asks the drive for the zone's write pointer.
async fn report(drive: &Drive, zone: ZoneId, what: &str) -> Result<u64, String> {
    let reports = drive.report(zone, 1).await.map_err(|status| format!("{what}: {status}"))?;
    Ok(reports.first().ok_or("an empty report")?.write_pointer.0)
}

/// Makes the kernel write a page at byte `offset` of the device, and shows the plug of `zone`.
/// `device` is the device's path, and the open device.
fn raw(device: (&str, &File), zone: ZoneId, what: &str, offset: u64, flags: ReadWriteFlags) {
    let page = Page::zeroed();
    let answer = rustix::io::pwritev2(device.1, &[IoSlice::new(&page[..])], offset, flags);
    let answer = answer.map_or_else(|errno| format!("refused, {errno}"), |_| "done".to_owned());
    println!("the kernel: {what}: {answer}");
    let name = device.0.trim_start_matches("/dev/");
    let plugs = std::fs::read_to_string(format!("/sys/kernel/debug/block/{name}/zone_wplugs"));
    let own = format!("Zone no: {zone},");
    let plugs = plugs.unwrap_or_default();
    plugs.lines().filter(|line| line.starts_with(&own)).for_each(|line| println!("    {line}"));
}

fn run() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let block = arguments.next().ok_or("name a zoned block device")?;
    let direct = OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(direct).open(&block);
    let file = file.map_err(|error| format!("{block}: {error}"))?;
    let (now, wait) = (ReadWriteFlags::NOWAIT, ReadWriteFlags::empty());
    let name = block.clone();
    on(&block, async move |drive, zone| {
        let geometry = drive.geometry();
        let at = |block: u64| (geometry.start(zone).0 + block) * geometry.block_size.0;
        let capacity = report_capacity(&drive, zone).await?;
        if capacity == geometry.zone_size.0 {
            println!("zones end at their capacity: the kernel sees no write beyond it");
            return Ok(());
        }
        reset(&drive, zone).await?;
        raw((&name, &file), zone, "beyond the capacity of an empty zone", at(capacity), now);
        for times in 1..=2 {
            let pointer = report(&drive, zone, "after it").await?;
            println!("the drive: report {times}: the write pointer is {pointer}");
            raw((&name, &file), zone, "at the zone's start, without waiting", at(0), now);
        }
        raw((&name, &file), zone, "at the zone's start", at(0), wait);
        report(&drive, zone, "after it").await?;
        raw((&name, &file), zone, "at the zone's start, after a report", at(0), now);
        reset(&drive, zone).await?;
        raw((&name, &file), zone, "beyond the capacity of an empty zone", at(capacity), now);
        write(&drive, zone, "after that").await
    })?;
    let Some(generic) = arguments.next() else { return Ok(()) };
    on(&block, async |drive, zone| {
        reset(&drive, zone).await?;
        write(&drive, zone, "by the block device").await
    })?;
    on(&generic, async |drive, zone| reset(&drive, zone).await)?;
    on(&block, async |drive, zone| write(&drive, zone, "after a reset by commands").await)?;
    on(&generic, async |drive, zone| write(&drive, zone, "by commands").await)?;
    on(&block, async |drive, zone| write(&drive, zone, "after a write by commands").await)
}

async fn report_capacity(drive: &Drive, zone: ZoneId) -> Result<u64, String> {
    let reports = drive.report(zone, 1).await.map_err(|status| format!("report: {status}"))?;
    Ok(reports.first().ok_or("an empty report")?.capacity.0)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("pointers: {what}");
            ExitCode::FAILURE
        }
    }
}
