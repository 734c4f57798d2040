//! What cleaning costs when the drive is nearly full: bytes written to the drive for each byte that
//! a user overwrites, and the share of the drive that files can have.
//!
//! A file takes a share of the whole drive and is overwritten at random, block by block, until
//! writing and cleaning are in balance. The drive is untimed; the clients' own pace moves the
//! virtual clock, so that a run is a function of its seed. Written content is zeros, which the
//! drive keeps in little memory. The yardstick is a simulated cleaner without nodes, checkpoints
//! and reserves ([`Pool`]). This cleaner has as many zones as the file system has without its logs.
//! One of these zones is spare. The cleaner always cleans the emptiest zone.

use crate::bench::{Bench, Effort, Row};
use crate::zipf::Zipf;
use anyhow::{Result, ensure};
use furrow_emu::Emulator;
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, WriteData};
use furrow_rt::{Config, Nanos, Rng, Rt};
use furrow_zone::spec::DeviceSpec;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub(crate) const NEARLY_FULL: Bench = Bench {
    name: "nearly-full",
    about: "bytes written for each byte overwritten with 60 to 90 % of the drive live, against a \
            greedy cleaner of one pool (the ratio); once",
    run,
};

const BLOCK: usize = 4096;
/// Number of blocks that are overwritten between two pauses of the client.
const BURST: u64 = 256;
/// The client's pace, in blocks for each second of virtual time: 200 MiB/s.
const PACE: u64 = 51_200;
const THETA: f64 = 0.99;

/// A run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Number of zones of the drive.
    pub(crate) zones: u64,
    /// Number of blocks of a zone.
    pub(crate) zone: u64,
    /// Size of the file, in percent of all blocks of the drive.
    pub(crate) live: u64,
    /// Whether blocks are drawn by Zipf's law; otherwise all are equally likely.
    pub(crate) zipf: bool,
    /// Number of blocks overwritten before measuring and while measuring, as multiples of
    /// the drive.
    pub(crate) rounds: (u64, u64),
}

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// Number of blocks overwritten while measuring.
    pub(crate) asked: u64,
    /// Number of blocks that the drive wrote in that time.
    pub(crate) written: u64,
    /// Number of blocks that the drive read in that time.
    pub(crate) read: u64,
    /// Number of blocks of nodes among the blocks written.
    pub(crate) nodes: u64,
    /// Share of the drive that an empty file system gives to files.
    pub(crate) own: f64,
    /// Number of blocks that the simulated cleaner writes for each block overwritten.
    pub(crate) greedy: f64,
    /// Real time that the overwriting took.
    pub(crate) took: Duration,
}

impl Figures {
    /// Bytes written to the drive for each byte overwritten.
    pub(crate) fn per_byte(&self) -> f64 {
        self.written as f64 / self.asked as f64
    }
}

/// Draws the blocks to overwrite.
struct Draw {
    rng: Rng,
    blocks: u64,
    zipf: Option<Zipf>,
}

impl Draw {
    fn new(blocks: u64, zipf: bool) -> Draw {
        let zipf = zipf.then(|| Zipf::new(blocks, THETA, &mut Rng::new(5)));
        Draw { rng: Rng::new(11), blocks, zipf }
    }

    fn next(&mut self) -> u64 {
        match &self.zipf {
            Some(zipf) => zipf.draw(&mut self.rng),
            None => self.rng.below(self.blocks),
        }
    }
}

/// A pool of zones with a greedy cleaner. Blocks of users and moved blocks go to one open zone; the
/// zone with the fewest valid blocks is emptied when no zone is free except the spare.
pub(crate) struct Pool {
    /// Where each block is: zone, and place in the zone.
    places: Vec<(u32, u32)>,
    /// The block at each place of each zone.
    zones: Vec<Vec<u32>>,
    valid: Vec<u32>,
    free: Vec<u32>,
    open: u32,
    /// Number of blocks of a zone.
    zone: usize,
    written: u64,
}

impl Pool {
    fn new(zones: u64, zone: u64, blocks: u64) -> Pool {
        let mut pool = Pool {
            places: vec![(u32::MAX, 0); blocks as usize],
            zones: vec![Vec::new(); zones as usize],
            valid: vec![0; zones as usize],
            free: (1..zones as u32).collect(),
            open: 0,
            zone: zone as usize,
            written: 0,
        };
        for block in 0..blocks as u32 {
            pool.write(block);
        }
        pool
    }

    fn append(&mut self, block: u32) {
        let (zone, _) = self.places[block as usize];
        if zone != u32::MAX {
            self.valid[zone as usize] -= 1;
        }
        let open = &mut self.zones[self.open as usize];
        self.places[block as usize] = (self.open, open.len() as u32);
        open.push(block);
        self.valid[self.open as usize] += 1;
        self.written += 1;
    }

    fn write(&mut self, block: u32) {
        self.append(block);
        while self.zones[self.open as usize].len() == self.zone {
            if self.free.len() > 1 {
                self.open = self.free.pop().unwrap_or(self.open);
                return;
            }
            self.clean();
        }
    }

    /// Empties the zone with the fewest valid blocks into the spare one.
    fn clean(&mut self) {
        let full = |zone: &u32| self.zones[*zone as usize].len() == self.zone;
        let all = (0..self.zones.len() as u32).filter(full);
        let Some(victim) = all.min_by_key(|zone| self.valid[*zone as usize]) else { return };
        let Some(spare) = self.free.pop() else { return };
        self.open = spare;
        for (at, block) in std::mem::take(&mut self.zones[victim as usize]).into_iter().enumerate()
        {
            if self.places[block as usize] == (victim, at as u32) {
                self.append(block);
            }
        }
        self.free.push(victim);
    }
}

/// Number of blocks that the simulated cleaner writes for each block overwritten.
pub(crate) fn greedy(case: &Case, zones: u64) -> f64 {
    let drive = case.zones * case.zone;
    let live = drive * case.live / 100;
    let mut pool = Pool::new(zones, case.zone, live);
    let mut draw = Draw::new(live, case.zipf);
    for _ in 0..case.rounds.0 * drive {
        pool.write(draw.next() as u32);
    }
    let before = pool.written;
    let asked = case.rounds.1 * drive;
    for _ in 0..asked {
        pool.write(draw.next() as u32);
    }
    (pool.written - before) as f64 / asked as f64
}

/// Runs a case.
pub(crate) fn measure(case: &Case, format: MkfsOptions, mount: MountOptions) -> Result<Figures> {
    let rt = Rt::new(Config::simulated(1));
    let size = case.zone * BLOCK as u64;
    let spec: DeviceSpec = format!("mem:zones={},zone-size={size}B,seed=1", case.zones).parse()?;
    let drive = furrow_emu::open(&rt, &spec, furrow_zone::Access::ReadWrite)?;
    let (engine, this) = (rt.clone(), *case);
    let figures =
        rt.block_on(async move { overwrite(&engine, &drive, &this, format, mount).await });
    rt.clear();
    figures
}

async fn overwrite(
    rt: &Rt,
    drive: &Rc<Emulator>,
    case: &Case,
    format: MkfsOptions,
    mount: MountOptions,
) -> Result<Figures> {
    let made = Fs::format(rt, drive.clone(), &format).await?;
    let fs = Fs::mount(rt, drive.clone(), mount).await?;
    let blocks = case.zones * case.zone;
    let own = fs.statfs().blocks_available as f64 / blocks as f64;
    let left = case.zones - u64::from(made.log_zones);
    let live = blocks * case.live / 100;
    let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
    let zeros = vec![0; BLOCK * BURST as usize];
    let write = async |first: u64, count: u64| {
        let bytes = &zeros[..BLOCK * count as usize];
        fs.write(file, WriteData::copy(fs.pool(), first * BLOCK as u64, bytes)).await
    };
    let pause = async || rt.sleep(BURST * Nanos::SECOND / PACE).await;
    for first in (0..live).step_by(BURST as usize) {
        write(first, BURST.min(live - first)).await?;
        pause().await;
    }
    fs.sync().await?;
    let mut draw = Draw::new(live, case.zipf);
    for _ in 0..case.rounds.0 * blocks / BURST {
        for _ in 0..BURST {
            write(draw.next(), 1).await?;
        }
        pause().await;
    }
    let (began, before, nodes) = (Instant::now(), drive.counters(), fs.counters().node_bytes);
    for _ in 0..case.rounds.1 * blocks / BURST {
        for _ in 0..BURST {
            write(draw.next(), 1).await?;
        }
        pause().await;
    }
    let (took, after) = (began.elapsed(), drive.counters());
    let figures = Figures {
        asked: case.rounds.1 * blocks / BURST * BURST,
        written: after.blocks_written - before.blocks_written,
        read: after.blocks_read - before.blocks_read,
        nodes: (fs.counters().node_bytes - nodes) / BLOCK as u64,
        own,
        greedy: greedy(case, left),
        took,
    };
    fs.unmount().await?;
    Ok(figures)
}

fn run(effort: Effort) -> Result<Vec<Row>> {
    // Tests pass a short slice: then only the small drive is measured, without a warm-up.
    let glance = effort.slice < Duration::from_millis(100);
    let mut rows = Vec::new();
    let sizes: &[u64] = if glance { &[64] } else { &[512, 64] };
    for zones in sizes {
        for (live, zipf) in [(60, false), (75, false), (85, false), (90, false), (85, true)] {
            let rounds = if glance { (0, 1) } else { (2, 1) };
            let case = Case { zones: *zones, zone: 1024, live, zipf, rounds };
            match measure(&case, MkfsOptions::default(), MountOptions::default()) {
                Ok(figures) => rows.push(row(&case, &figures)),
                // The file can be larger than the space that the file system gives to files.
                Err(error) => {
                    let full = format!("{error:#}");
                    ensure!(full.contains("space"), "{full}");
                }
            }
        }
    }
    Ok(rows)
}

fn row(case: &Case, figures: &Figures) -> Row {
    let order = if case.zipf { "zipf 0.99" } else { "uniform" };
    let rate = figures.asked as f64 / figures.took.as_secs_f64();
    Row {
        name: format!(
            "{} zones, {} % live, {order}: {:.2} written ({:.2} of nodes), {:.2} read, greedy \
             {:.2}; {:.1} % of the drive for files",
            case.zones,
            case.live,
            figures.per_byte(),
            figures.nodes as f64 / figures.asked as f64,
            figures.read as f64 / figures.asked as f64,
            figures.greedy,
            figures.own * 100.0,
        ),
        rate,
        range: (rate, rate),
        against: Some("greedy".to_owned()),
        ratio: Some(figures.per_byte() / figures.greedy),
    }
}
