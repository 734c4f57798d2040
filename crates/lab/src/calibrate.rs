//! Compares the timing model with published measurements.
//!
//! Each row of `data/golden.csv` is a measurement. This module drives the emulated drive of the
//! row's preset as in the measurement, over several seeds, and compares the results. There are two
//! kinds of rows: a *gate* has to be within its tolerance; a *miss* is known to be outside it, and
//! gives a reason.
//!
//! ZN540 rows come from SPDK: one submitter for each zone with a fixed number of requests
//! outstanding. Small-zone writes come from fio through the kernel: 16 submitters share the
//! outstanding requests, each request goes to a random zone, and one write is in flight per zone.

use crate::catalogue::{Engine, Point, Profile};
use crate::host::Host;
use crate::scenario;
use crate::workload::{Kind, Mode, Order, Pick, Workload};
use anyhow::{Context, Result, anyhow, bail};
use furrow_emu::timing::quantity::{Bytes, Time};
use furrow_rt::{Config, Nanos, PAGE_SIZE, Page, Pages, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{
    Access, Action, BlockCount, Command, Lba, QueueId, Request, Status, Target, ZoneId, ZonedDevice,
};
use serde::Deserialize;
use std::rc::Rc;
use std::sync::Arc;

pub mod cores;
pub mod figures;
pub mod interference;
pub mod markdown;

/// The measurements.
const GOLDEN: &str = include_str!("../data/golden.csv");

/// Number of submitters of the small-zone write measurements.
const SUBMITTERS: u32 = 16;

/// Nanoseconds that a kernel takes for each write command, one command after the other: through the
/// kernel, 4 KiB writes reach 20 % of the peak (Z-LFS, section 3). The drive does not cause this:
/// with eZNS, which has its own stack, 16 clients see 89.4 us per write (Z-LFS, table 1), that is,
/// one command every 5.6 us.
const KERNEL_STAGE: u64 = 8_350;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Golden {
    /// The drive's preset.
    pub preset: String,
    /// The operation.
    pub op: String,
    /// KiB of a request, or the condition of a management command.
    #[serde(rename = "request_kib_or_condition")]
    pub condition: String,
    /// Number of zones in use.
    pub zones: u32,
    /// Requests outstanding for each zone.
    #[serde(rename = "queue_depth_per_zone")]
    pub depth: u32,
    /// The measure.
    pub metric: String,
    /// The unit of the figure.
    pub unit: String,
    /// The figure; 0 if only a relation was published.
    pub measured: f64,
    /// Largest permitted deviation of the model, in percent.
    #[serde(rename = "tolerance_percent")]
    pub tolerance: f64,
    /// `gate`, or `miss`: known to be outside the tolerance.
    pub status: String,
    /// The publication.
    pub source: String,
    /// Other remarks; for a miss, its reason.
    pub note: String,
}

/// The result of the model on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within the tolerance.
    Ok,
    /// A gate outside its tolerance.
    Over,
    /// Known to be outside its tolerance.
    Miss,
}

/// A measurement and the model's figure for it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The measurement.
    pub golden: Golden,
    /// Mean of the model's figures over the seeds.
    pub model: f64,
    /// The model's smallest and largest figure.
    pub range: (f64, f64),
    /// Model over measurement, minus one, in percent; `None` if there is no figure to compare.
    pub error: Option<f64>,
    /// The result of the comparison.
    pub verdict: Verdict,
}

/// The measurements, in the order of the file.
///
/// # Errors
/// If the file is damaged, which a test excludes.
pub fn golden() -> Result<Vec<Golden>> {
    let mut reader = csv::Reader::from_reader(GOLDEN.as_bytes());
    reader.deserialize().map(|row| row.context("golden.csv")).collect()
}

/// Runs one row with the seeds from 1 to `seeds`.
///
/// # Errors
/// If this module does not know the kind of measurement of the row, or the drive fails.
pub fn calibrate(golden: &Golden, seeds: u64) -> Result<Row> {
    let figures: Vec<f64> =
        (1..=seeds.max(1)).map(|seed| figure(golden, seed)).collect::<Result<_>>()?;
    Ok(Row::new(golden, &figures))
}

/// Runs `rows` with the seeds from 1 to `seeds`, spread over the cores.
///
/// # Errors
/// The errors of [`calibrate`].
pub fn calibrate_all(rows: &[Golden], seeds: u64, told: cores::Told<'_>) -> Result<Vec<Row>> {
    let seeds = seeds.max(1) as usize;
    let work = |number: usize| figure(&rows[number / seeds], (number % seeds) as u64 + 1);
    let figures = cores::spread(rows.len() * seeds, &work, told)?;
    Ok(rows
        .iter()
        .zip(figures.chunks(seeds))
        .map(|(row, figures)| Row::new(row, figures))
        .collect())
}

impl Row {
    /// `golden` with the model's `figures`, one for each seed.
    fn new(golden: &Golden, figures: &[f64]) -> Row {
        let model = figures.iter().sum::<f64>() / figures.len() as f64;
        let range = figures
            .iter()
            .fold((f64::MAX, f64::MIN), |(low, high), one| (low.min(*one), high.max(*one)));
        let error = (golden.measured > 0.0).then(|| (model / golden.measured - 1.0) * 100.0);
        let within = error.is_some_and(|error| error.abs() <= golden.tolerance);
        let verdict = match golden.status.as_str() {
            "gate" if within => Verdict::Ok,
            "gate" => Verdict::Over,
            _ => Verdict::Miss,
        };
        Row { golden: golden.clone(), model, range, error, verdict }
    }

    /// Distance between the lowest and the highest figure of a seed, in percent of the
    /// model's mean.
    pub fn spread(&self) -> f64 {
        if self.model == 0.0 { 0.0 } else { (self.range.1 - self.range.0) / self.model * 100.0 }
    }
}

/// The results of the model on one drive.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The drive's preset.
    pub preset: String,
    /// Number of gates.
    pub gates: usize,
    /// Number of gates outside their tolerance.
    pub over: usize,
    /// Number of rows known to be outside their tolerance.
    pub misses: usize,
    /// Mean of the absolute errors of the gates, in percent.
    pub mean_error: f64,
    /// The gates' largest error, in percent.
    pub worst_error: f64,
    /// The gate with the largest error, in words.
    pub worst: String,
    /// Largest [`Row::spread`] of the drive's rows.
    pub largest_spread: f64,
}

/// Sums `rows` up, drive by drive in the order of the rows.
pub fn summaries(rows: &[Row]) -> Vec<Summary> {
    let mut summaries: Vec<Summary> = Vec::new();
    for group in rows.chunk_by(|a, b| a.golden.preset == b.golden.preset) {
        let errors = || group.iter().filter(|row| row.verdict != Verdict::Miss);
        let size = |row: &&Row| row.error.unwrap_or(f64::INFINITY).abs();
        let worst = errors().max_by(|a, b| size(a).total_cmp(&size(b)));
        let gates = errors().count();
        summaries.push(Summary {
            preset: group[0].golden.preset.clone(),
            gates,
            over: group.iter().filter(|row| row.verdict == Verdict::Over).count(),
            misses: group.len() - gates,
            mean_error: errors().map(|row| size(&row)).sum::<f64>() / gates.max(1) as f64,
            worst_error: worst.and_then(|row| row.error).unwrap_or(0.0),
            worst: worst.map(|row| row.golden.what()).unwrap_or_default(),
            largest_spread: group.iter().map(Row::spread).fold(0.0, f64::max),
        });
    }
    summaries
}

impl Golden {
    /// The measurement, in words: `write 4 KiB, 6 zones, depth 1`.
    pub fn what(&self) -> String {
        let mut what = match self.condition.parse::<u64>() {
            Ok(kib) if kib >= 1024 && kib.is_multiple_of(1024) => {
                format!("{} {} MiB", self.op, kib / 1024)
            }
            Ok(kib) => format!("{} {kib} KiB", self.op),
            Err(_) if self.condition.is_empty() => return self.op.clone(),
            Err(_) => {
                let share = self.condition.trim_start_matches("occupancy ");
                return match share {
                    "block" => format!("{} of a zone with one block", self.op),
                    "empty" => format!("{} of an empty zone", self.op),
                    "full" => format!("{} of a zone full but for one block", self.op),
                    "1" => format!("{} of a full zone", self.op),
                    share => format!("{} of a zone {share} full", self.op),
                };
            }
        };
        let plural = if self.zones == 1 { "" } else { "s" };
        what.push_str(&format!(", {} zone{plural}, depth {}", self.zones, self.depth));
        if !matches!(self.metric.as_str(), "throughput" | "latency") {
            what.push_str(&format!(": {}", self.metric));
        }
        what
    }
}

/// The model's figure for a row, in the row's unit.
fn figure(golden: &Golden, seed: u64) -> Result<f64> {
    figure_of(golden, seed)
        .with_context(|| format!("{}: {}, seed {seed}", golden.preset, golden.what()))
}

fn figure_of(golden: &Golden, seed: u64) -> Result<f64> {
    let unit = golden.unit.as_str();
    if matches!(golden.op.as_str(), "reset" | "finish" | "open" | "close") {
        let nanoseconds = management(golden, seed)? as f64;
        return match unit {
            "ms" => Ok(nanoseconds / 1e6),
            "us" => Ok(nanoseconds / 1e3),
            _ => bail!("unknown unit {unit}"),
        };
    }
    let kib: u64 = golden.condition.parse().context("size of the requests")?;
    let point = point(golden, kib)?;
    let run = |point: &Point| scenario::run(point, seed, &Arc::default());
    let rate = |point: &Point| run(point).map(|measures| measures.bytes_per_second);
    let over_channels = |channels| rate(&changed(&point, |w| w.channels = channels));
    // Neighbouring zones share neither channel nor die; zones 16 apart share only the channel,
    // zones 128 apart share both.
    let loss = |stride| {
        let together = rate(&changed(&point, |w| w.stride = stride))?;
        anyhow::Ok((1.0 - together / rate(&point)?) * 100.0)
    };
    match golden.metric.as_str() {
        "throughput" => {
            let rate = rate(&point)?;
            match unit {
                "MiB/s" => Ok(rate / f64::from(1 << 20)),
                "MB/s" => Ok(rate / 1e6),
                "GB/s" => Ok(rate / 1e9),
                _ => bail!("unknown unit {unit}"),
            }
        }
        "latency" => Ok(run(&point)?.mean_ns / 1e3),
        "share of 128 KiB peak" => {
            let peak = rate(&changed(&point, |w| w.size = Bytes(128 << 10)))?;
            Ok(rate(&point)? / peak * 100.0)
        }
        "share of peak" => {
            let peak = rate(&changed(&point, |w| {
                w.zones = 256;
                if w.pick == Pick::Own {
                    w.threads = w.zones;
                }
            }))?;
            Ok(rate(&point)? / peak * 100.0)
        }
        "loss when the zones share a channel" => loss(16),
        "loss when the zones share a die" => loss(128),
        "ratio of 8 channels to 4 channels" => Ok(over_channels(8)? / over_channels(4)?),
        "ratio of 8 channels to 2 channels" => Ok(over_channels(8)? / over_channels(2)?),
        other => bail!("unknown metric {other:?}"),
    }
}

/// The host and workload of the measurement `golden`, on a drive of its preset.
fn point(golden: &Golden, kib: u64) -> Result<Point> {
    let op = match golden.op.as_str() {
        "write" => Kind::Write,
        "append" => Kind::Append,
        "read" => Kind::Read,
        other => bail!("unknown operation {other:?}"),
    };
    let Golden { preset, zones, depth, .. } = golden;
    let several = zones * depth > 1;
    Ok(match op == Kind::Write && preset == "pm1731a" && several {
        true => kernel(preset, kib, *zones, zones * depth),
        false => direct(preset, op, kib, *zones, *depth),
    })
}

/// One submitter for each zone, `depth` requests outstanding each: SPDK.
fn direct(preset: &str, op: Kind, kib: u64, zones: u32, depth: u32) -> Point {
    let size = Bytes(kib << 10);
    let workload = Workload {
        op,
        order: if op == Kind::Read { Order::Random } else { Order::Sequential },
        size,
        threads: zones,
        depth,
        mode: Mode::Direct,
        span: Bytes((32 << 20).max(size.0)),
        zones,
        stride: 1,
        pick: Pick::Own,
        warm: Time(30 * Nanos::MILLI),
        run: Time(150 * Nanos::MILLI),
        ..Workload::default()
    };
    let about = "the drive itself".to_owned();
    Point {
        device: format!("mem:{preset},medium=discard,timing=virtual"),
        profile: Profile {
            engine: Engine::None,
            about,
            policy: Default::default(),
            array: None,
            store: None,
        },
        host: Host::default(),
        workload,
    }
}

/// fio through the kernel: 16 submitters, `outstanding` requests in all, a random zone for each
/// request, one write in flight per zone.
fn kernel(preset: &str, kib: u64, zones: u32, outstanding: u32) -> Point {
    let mut point = direct(preset, Kind::Write, kib, zones, outstanding.div_ceil(SUBMITTERS));
    point.workload.threads = SUBMITTERS;
    point.workload.pick = Pick::Shared;
    point.workload.order = Order::Random;
    // The warm-up lasts longer than the buffer takes to fill, and longer than requests of 2 MiB
    // take to pass through the buffer.
    point.workload.warm = Time(250 * Nanos::MILLI);
    point.workload.run = Time(500 * Nanos::MILLI);
    point.host.zone_lock = true;
    point.host.stage = Time(KERNEL_STAGE);
    point
}

/// Returns `point` with its workload changed.
fn changed(point: &Point, change: impl FnOnce(&mut Workload)) -> Point {
    let mut point = point.clone();
    change(&mut point.workload);
    point
}

/// A drive of `preset` with timing and without payload.
fn drive(preset: &str, seed: u64) -> Result<(Rt, Rc<dyn ZonedDevice>)> {
    let rt = Rt::new(Config::simulated(seed));
    let spec: DeviceSpec =
        format!("mem:{preset},medium=discard,timing=virtual,seed={seed}").parse()?;
    let device = furrow_emu::open(&rt, &spec, Access::ReadWrite)?;
    Ok((rt, device))
}

/// Nanoseconds that a management command takes, on an idle drive.
fn management(golden: &Golden, seed: u64) -> Result<u64> {
    let (rt, device) = drive(&golden.preset, seed)?;
    let geometry = device.geometry().clone();
    let capacity = geometry.zone_capacity.0;
    let blocks = match golden.condition.as_str() {
        "occupancy block" => 1,
        "occupancy empty" => 0,
        // One block short of full: a completely written zone cannot be finished.
        "occupancy full" => capacity - 1,
        "" => 1,
        condition => {
            let share = condition.strip_prefix("occupancy ").unwrap_or(condition);
            let (part, whole) = share.split_once('/').unwrap_or((share, "1"));
            let (part, whole): (u64, u64) = (part.parse()?, whole.parse()?);
            capacity * part / whole
        }
    };
    let action = match golden.op.as_str() {
        "reset" => Action::Reset,
        "finish" => Action::Finish,
        "open" => Action::Open,
        _ => Action::Close,
    };
    let start = geometry.start(ZoneId(0)).0;
    let most = geometry.max_transfer.map_or(512, |most| most.0);
    let clock = rt.clone();
    let taken = rt.block_on(async move {
        let page = Page::zeroed();
        let submit = |command: Command, pages: u64| {
            let data = Pages::from_iter((0..pages).map(|_| page.clone()));
            device.submit(QueueId(0), Request::with_data(command, data))
        };
        let mut at = 0;
        while at < blocks && action != Action::Open {
            let count = (blocks - at).min(most);
            let command = Command::Write { lba: Lba(start + at), blocks: BlockCount(count) };
            let pages = count * geometry.block_size.0 / PAGE_SIZE as u64;
            expect(submit(command, pages).await.status)?;
            at += count;
        }
        // This wait lets the drive come to rest.
        clock.sleep(Nanos::SECOND).await;
        let began = clock.now();
        let command = Command::Manage { target: Target::Zone(Lba(start)), action };
        expect(submit(command, 0).await.status)?;
        anyhow::Ok(clock.now().since(began))
    });
    rt.clear();
    taken
}

fn expect(status: Status) -> Result<()> {
    match status.is_ok() {
        true => Ok(()),
        false => Err(anyhow!("the drive answers {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the gates, so that no change of parameters moves the model away from the
    /// measurements unnoticed.
    #[test]
    fn every_gate_is_met() {
        let rows = calibrate_all(&golden().unwrap(), 1, &|_, _| {}).unwrap();
        let over: Vec<String> = rows
            .iter()
            .filter(|row| row.verdict == Verdict::Over)
            .map(|row| {
                let Golden { preset, measured, unit, .. } = &row.golden;
                format!("{preset} {}: {:.2} for {measured} {unit}", row.golden.what(), row.model)
            })
            .collect();
        assert!(over.is_empty(), "{} of {} rows:\n{}", over.len(), rows.len(), over.join("\n"));
    }

    #[test]
    fn a_row_that_is_off_shows() {
        let golden = golden().unwrap();
        let row = |measured: f64, status: &str, figures: &[f64]| {
            let row = Golden { measured, status: status.into(), ..golden[0].clone() };
            Row::new(&row, figures)
        };
        let near = row(100.0, "gate", &[104.0, 105.0]);
        assert_eq!(
            (near.verdict, near.range, near.error),
            (Verdict::Ok, (104.0, 105.0), Some((104.5f64 / 100.0 - 1.0) * 100.0))
        );
        let far = row(100.0, "gate", &[94.0]);
        assert_eq!((far.verdict, far.spread()), (Verdict::Over, 0.0));
        let unknown = row(0.0, "miss", &[94.0]);
        assert_eq!((unknown.verdict, unknown.error), (Verdict::Miss, None));
        let sums = summaries(&[near, far, unknown]);
        assert_eq!((sums.len(), sums[0].gates), (1, 2));
        assert_eq!((sums[0].over, sums[0].misses), (1, 1));
        assert!((sums[0].mean_error - 5.25).abs() < 1e-9, "{}", sums[0].mean_error);
        assert!((sums[0].worst_error + 6.0).abs() < 1e-9 && !sums[0].worst.is_empty());
    }

    #[test]
    fn rows_have_names() {
        let names: Vec<String> = golden().unwrap().iter().map(Golden::what).collect();
        for name in [
            "write 4 KiB, 1 zone, depth 1",
            "write 2 MiB, 128 zones, depth 4: share of 128 KiB peak",
            "reset of a zone 1/16 full",
            "finish of a zone full but for one block",
            "open",
        ] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
    }
}
