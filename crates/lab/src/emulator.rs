//! Commands per second of the emulated drive without its timing, on one core: what every simulation
//! pays for each command.
//!
//! One task keeps 64 commands of 4 KiB in flight, as an engine would: it submits them, then waits
//! for each. Zones are written to their end and then reset; the reset counts as a command, too.
//!
//! The benchmark also measures forks of a drive of 64 fully written zones of 64 blocks. A crash
//! sweep pays for one such fork at each cut, before it mounts an engine there.

use crate::bench::{Bench, Contestant, Effort, Row, compare};
use crate::noise;
use crate::work::{Own, Work};
use anyhow::{Result, ensure};
use furrow_emu::{Emulator, Fates, Medium, Options};
use furrow_rt::{Completion, Config, PAGE_SIZE, Page, Pages, Rt};
use furrow_zone::{
    BlockCount, Command, Geometry, Lba, Outcome, QueueId, Request, ZoneId, ZonedDevice, presets,
};
use std::time::{Duration, Instant};

/// Commands in flight.
const DEPTH: u64 = 64;

/// Number of zones that are written in rotation.
const ROUND: u32 = 8;

pub(crate) const EMULATOR: Bench = Bench {
    name: "emulator",
    about: "commands of 4 KiB of the untimed emulated drive on one core, by medium",
    run,
};

/// A drive with its executor.
struct Rig {
    rt: Own,
    drive: Emulator,
    geometry: Geometry,
    /// Incompressible pages, each different.
    pages: Vec<Page>,
    /// The next zone to write.
    zone: u32,
}

/// Runs the benchmark.
fn run(effort: Effort) -> Result<Vec<Row>> {
    let geometry = presets::plain();
    // The plain preset has a volatile cache; usual drives do not.
    let geometry = Geometry { volatile_cache: false, ..geometry };
    let mut rigs = Vec::new();
    for discard in [true, false] {
        for work in Work::ALL {
            let (medium, where_to) = match discard {
                true => (Medium::discard(&geometry), "discard"),
                false => (Medium::memory(&geometry), "memory"),
            };
            rigs.push((format!("{}, {where_to}", work.name()), work, Rig::new(&geometry, medium)?));
        }
    }
    let mut contestants: Vec<Contestant<'_>> = rigs
        .iter_mut()
        .map(|(name, work, rig)| {
            Contestant::new(name.clone(), move |slice| rig.measure(*work, slice))
        })
        .collect();
    let mut rows = compare(effort, "commands", &mut contestants)?;
    rows.extend(forks(effort)?);
    Ok(rows)
}

/// Measures how often per second a drive can be forked: a snapshot, a power cut in it, and a write
/// on the drive that continues from there.
fn forks(effort: Effort) -> Result<Vec<Row>> {
    let geometry = Geometry {
        zones: 64,
        zone_size: BlockCount(64),
        zone_capacity: BlockCount(64),
        volatile_cache: false,
        ..presets::plain()
    };
    let mut rig = Rig::new(&geometry, Medium::memory(&geometry))?;
    for zone in 1..geometry.zones {
        rig.zone = zone;
        rig.write_zone(Work::Write)?;
    }
    let drive = &rig.drive;
    let page = &rig.pages[0];
    let snapshot = |seed| drive.snapshot().power_cut(&Fates::seeded(seed));
    let cut = Contestant::new("snapshot and power cut", |slice| {
        timed(slice, |seed| {
            ensure!(snapshot(seed).report().len() == 64, "a drive of 64 zones");
            Ok(())
        })
    });
    let again = Contestant::new("that, a new drive, one write", |slice| {
        timed(slice, |seed| {
            let rt = Rt::new(Config::simulated(seed));
            let drive = Emulator::from_snapshot(&rt, &snapshot(seed), Options::simulated());
            let command = Command::Write { lba: Lba(0), blocks: BlockCount(1) };
            let request = Request::with_data(command, Pages::from_iter([page.clone()]));
            let outcome = rt.block_on(drive.submit(QueueId(0), request));
            rt.clear();
            ensure!(outcome.status.is_ok(), "the write failed: {}", outcome.status);
            Ok(())
        })
    });
    compare(effort, "forks", &mut [cut, again])
}

/// Number of times per second that `once` completes.
fn timed(slice: Duration, once: impl Fn(u64) -> Result<()>) -> Result<f64> {
    let (mut count, start) = (0, Instant::now());
    while start.elapsed() < slice {
        once(count)?;
        count += 1;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

impl Rig {
    fn new(geometry: &Geometry, medium: Medium) -> Result<Rig> {
        let rt = Own(Rt::new(Config::real()));
        let drive = Emulator::new(&rt, geometry.clone(), medium, Options::fast())?;
        let pages = (0..DEPTH).map(|seed| Page::from_slice(&noise(PAGE_SIZE, seed))).collect();
        Ok(Rig { rt, drive, geometry: geometry.clone(), pages, zone: 0 })
    }

    fn measure(&mut self, work: Work, slice: Duration) -> Result<f64> {
        let (mut commands, start) = (0, Instant::now());
        let elapsed = loop {
            commands += match work {
                Work::Read => self.read_zone()?,
                work => self.write_zone(work)?,
            };
            let elapsed = start.elapsed();
            if elapsed >= slice {
                break elapsed;
            }
        };
        Ok(commands as f64 / elapsed.as_secs_f64())
    }

    /// Fills the next zone, after resetting it. Returns the number of commands.
    fn write_zone(&mut self, work: Work) -> Result<u64> {
        let zone = ZoneId(self.zone);
        self.zone = (self.zone + 1) % self.geometry.zones.min(ROUND);
        let (drive, pages) = (self.drive.clone(), self.pages.clone());
        let (geometry, blocks) = (self.geometry.clone(), self.geometry.zone_capacity.0);
        let reset = Command::reset(&geometry, zone);
        let failed = self.rt.block_on(async move {
            let status = drive.submit(QueueId(0), Request::bare(reset)).await.status;
            let mut failed = u64::from(!status.is_ok());
            let mut waiting: Vec<Completion<Outcome>> = Vec::with_capacity(DEPTH as usize);
            for batch in (0..blocks).step_by(DEPTH as usize) {
                for (offset, page) in (batch..blocks).zip(&pages) {
                    let command = work.command(&geometry, zone, offset);
                    let data = Pages::from_iter([page.clone()]);
                    let request = Request::with_data(command, data);
                    waiting.push(drive.submit(QueueId(0), request));
                }
                for completion in waiting.drain(..) {
                    failed += u64::from(!completion.await.status.is_ok());
                }
            }
            failed
        });
        ensure!(failed == 0, "{failed} commands failed");
        Ok(blocks + 1)
    }

    /// Reads a zone that was written. Returns the number of commands.
    fn read_zone(&mut self) -> Result<u64> {
        let zone = ZoneId(0);
        let report =
            self.drive.report_now(zone, 1).map_err(|status| anyhow::anyhow!("{status}"))?;
        if report[0].write_pointer.0 == 0 {
            self.zone = 0;
            self.write_zone(Work::Write)?;
        }
        let drive = self.drive.clone();
        let (geometry, blocks) = (self.geometry.clone(), self.geometry.zone_capacity.0);
        let failed = self.rt.block_on(async move {
            let mut failed = 0;
            let mut buffers: Vec<Pages> =
                (0..DEPTH).map(|_| Pages::from_iter([Page::zeroed()])).collect();
            let mut waiting: Vec<Completion<Outcome>> = Vec::with_capacity(DEPTH as usize);
            for batch in (0..blocks).step_by(DEPTH as usize) {
                for offset in batch..blocks.min(batch + DEPTH) {
                    let command = Work::Read.command(&geometry, zone, offset);
                    let data = buffers.pop().unwrap_or_default();
                    waiting.push(drive.submit(QueueId(0), Request::with_data(command, data)));
                }
                for completion in waiting.drain(..) {
                    let outcome = completion.await;
                    failed += u64::from(!outcome.status.is_ok());
                    buffers.push(outcome.data);
                }
            }
            failed
        });
        ensure!(failed == 0, "{failed} commands failed");
        Ok(blocks)
    }
}
