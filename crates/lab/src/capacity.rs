//! A full-size drive in this machine's memory: 160 GB from 16 clients onto a `pm1731a` of 40,704
//! zones with its timing model, as zeros into memory and as data onto the discarding medium.

use crate::bench::{Bench, Effort, Row};
use crate::noise;
use anyhow::{Context as _, Result, ensure};
use furrow_rt::{Config, Nanos, PAGE_SIZE, Page, Pages, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, BlockCount, Command, Lba, QueueId, Request, ZoneId, ZonedDevice};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub(crate) const CAPACITY: Bench = Bench {
    name: "capacity",
    about: "160 GB from 16 clients onto an emulated pm1731a of full size, timed, in memory; once",
    run,
};

const BYTES: u64 = 160_000_000_000;
const CLIENTS: u64 = 16;
/// Zones that each client writes round-robin.
const ZONES: u64 = 8;
/// Blocks of a request: 128 KiB.
const BLOCKS: u64 = 32;

fn run(effort: Effort) -> Result<Vec<Row>> {
    // A short slice is for tests: a hundredth of the bytes.
    let bytes = if effort.slice < Duration::from_millis(100) { BYTES / 100 } else { BYTES };
    [("zeros, into memory", "memory", true), ("data, discarded", "discard", false)]
        .into_iter()
        .map(|(name, medium, zeros)| fill(name, medium, zeros, bytes))
        .collect()
}

fn fill(name: &str, medium: &str, zeros: bool, bytes: u64) -> Result<Row> {
    forget_peak();
    let start = Instant::now();
    let rt = Rt::new(Config::simulated(1));
    let spec: DeviceSpec = format!("mem:pm1731a,medium={medium},timing=virtual,seed=1").parse()?;
    let drive: Rc<dyn ZonedDevice> = furrow_emu::open(&rt, &spec, Access::ReadWrite)?;
    let failed = Rc::new(Cell::new(0));
    let page = match zeros {
        true => Page::zeroed(),
        false => Page::from_slice(&noise(PAGE_SIZE, 1)),
    };
    let requests = bytes / CLIENTS / (BLOCKS * PAGE_SIZE as u64);
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (drive, failed, page) = (drive.clone(), failed.clone(), page.clone());
            rt.spawn(async move {
                for request in 0..requests {
                    let (lba, blocks) = place(&*drive, client, request);
                    let data = Pages::from_iter((0..BLOCKS).map(|_| page.clone()));
                    let request = Request::with_data(Command::Write { lba, blocks }, data);
                    let outcome = drive.submit(QueueId(client as u16), request).await;
                    failed.set(failed.get() + u64::from(!outcome.status.is_ok()));
                }
            })
        })
        .collect();
    rt.block_on(async move {
        for task in tasks {
            task.await;
        }
    });
    let virtual_time = rt.now().0 as f64 / Nanos::SECOND as f64;
    let seconds = start.elapsed().as_secs_f64();
    let peak = peak().context("reading this process's peak memory")?;
    rt.clear();
    ensure!(failed.get() == 0, "{} writes failed", failed.get());
    let written = requests * CLIENTS * BLOCKS * PAGE_SIZE as u64;
    let rate = written as f64 / seconds;
    Ok(Row {
        name: format!(
            "{:.0} GB of {name}: {seconds:.1} s, {virtual_time:.1} s of the drive's time, peak \
             memory {:.0} MiB",
            written as f64 / 1e9,
            peak as f64 / f64::from(1 << 20)
        ),
        rate,
        range: (rate, rate),
        unit: "bytes".to_owned(),
        against: None,
        ratio: None,
    })
}

/// The place of a client's request: requests go round-robin over the client's zones, and over its
/// next zones when those are full.
fn place(drive: &dyn ZonedDevice, client: u64, request: u64) -> (Lba, BlockCount) {
    let geometry = drive.geometry();
    let rows = geometry.zone_capacity.0 / BLOCKS;
    let (round, rest) = (request / (rows * ZONES), request % (rows * ZONES));
    let zone = (round * CLIENTS + client) * ZONES + rest % ZONES;
    let start = geometry.start(ZoneId(zone as u32));
    (Lba(start.0 + rest / ZONES * BLOCKS), BlockCount(BLOCKS))
}

/// Resets the peak memory to the current use; without the reset, it is the peak since the
/// process began.
fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The process's peak memory in bytes since the reset.
fn peak() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.split_whitespace().nth(1).context("no VmHWM")?.parse()?;
    Ok(kib << 10)
}
