//! Reads and writes alongside resets and finishes: the measurements, and the model's results.
//!
//! No row here is a gate: the measurements are few, and the model has only the three parameters
//! `reset-share`, `finish-share` and `reset-stretch` for them. `docs/research/calibration.md` has
//! the sources, and how each measurement was driven.
//!
//! A management command is *paced*: commands begin at fixed intervals, so long that on an idle
//! drive the commands would take `duty` percent of the time. If a command ends after the next one
//! is due, the next one begins at once. A rate limit works like that, so commands that are slowed
//! take a larger share of the time than `duty`.

use super::{cores, direct, drive, expect};
use crate::catalogue::Point;
use crate::scenario::on_zones;
use crate::target::Watch;
use crate::workload::Kind;
use anyhow::{Context, Result};
use furrow_emu::timing::quantity::Time;
use furrow_rt::{Nanos, PAGE_SIZE, Page, Pages, Rt};
use furrow_zone::{
    Action, BlockCount, Command, Lba, QueueId, Request, Target, ZoneId, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The drive of all of these measurements.
pub const PRESET: &str = "zn540-1t";

/// First zone that is reset or finished; the I/O stays below.
const FIRST: u32 = 640;

/// The management commands that run at the same time as the I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Resets of full zones; on an idle drive they take this percentage of the time.
    Resets(u32),
    /// Finishes of zones with one block; on an idle drive they take this percentage of the time.
    Finishes(u32),
}

/// The measure that a comparison uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// MiB/s of the I/O.
    Throughput,
    /// Median of the management commands, in ms.
    Management,
}

/// A situation that was measured.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The I/O.
    pub op: Kind,
    /// KiB of a request.
    pub kib: u64,
    /// Number of zones in use.
    pub zones: u32,
    /// Number of requests outstanding for each zone.
    pub depth: u32,
    /// The management commands at the same time.
    pub beside: Neighbour,
    /// The measure that is compared.
    pub judged: Judged,
    /// The figure measured without other commands.
    pub alone: f64,
    /// The same figure, measured while the other kind of command ran.
    pub together: f64,
}

/// The measured situations.
pub const SITUATIONS: &[Situation] = {
    use Judged::{Management, Throughput};
    use Kind::{Append, Read, Write};
    use Neighbour::{Finishes, Resets};
    &[
        situation((Write, 8, 4, 1), Resets(50), Throughput, (1170.0, 760.0)),
        situation((Write, 4, 8, 1), Resets(50), Throughput, (726.0, 584.0)),
        situation((Write, 8, 4, 1), Finishes(25), Throughput, (1172.0, 949.0)),
        situation((Read, 8, 1, 32), Resets(50), Throughput, (1640.0, 1594.0)),
        situation((Read, 8, 1, 1), Finishes(50), Throughput, (88.0, 61.0)),
        situation((Read, 8, 1, 16), Finishes(50), Throughput, (1058.0, 695.0)),
        situation((Read, 8, 1, 32), Finishes(10), Throughput, (1694.0, 1538.0)),
        situation((Read, 8, 1, 32), Finishes(50), Throughput, (1682.0, 945.0)),
        situation((Write, 8, 4, 1), Finishes(25), Management, (909.0, 4776.0)),
        situation((Write, 4, 8, 1), Resets(50), Management, (16.6, 22.0)),
        situation((Read, 4, 1, 1), Resets(100), Management, (15.5, 15.1)),
        situation((Append, 4, 1, 1), Resets(100), Management, (15.5, 17.2)),
        situation((Write, 4, 1, 1), Resets(100), Management, (15.5, 32.0)),
    ]
};

const fn situation(
    (op, kib, zones, depth): (Kind, u64, u32, u32),
    beside: Neighbour,
    judged: Judged,
    (alone, together): (f64, f64),
) -> Situation {
    Situation { op, kib, zones, depth, beside, judged, alone, together }
}

/// A situation, and the model's figures for it: means over the seeds.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The measurement.
    pub situation: Situation,
    /// The model's figure without other commands.
    pub model_alone: f64,
    /// The same figure of the model, while the other kind of command runs.
    pub model_together: f64,
}

impl Compared {
    /// The change from alone to together, in percent: measured, and in the model.
    pub fn changes(&self) -> (f64, f64) {
        let change = |alone: f64, together: f64| (together / alone - 1.0) * 100.0;
        let Situation { alone, together, .. } = self.situation;
        (change(alone, together), change(self.model_alone, self.model_together))
    }
}

impl Situation {
    /// The situation, in words: `writes of 8 KiB, 4 zones, depth 1, beside resets (50 %)`.
    pub fn what(&self) -> String {
        let plural = if self.zones == 1 { "" } else { "s" };
        let io = format!(
            "{}s of {} KiB, {} zone{plural}, depth {}",
            self.op, self.kib, self.zones, self.depth
        );
        let name = match self.beside {
            Neighbour::Resets(duty) => format!("resets ({duty} %)"),
            Neighbour::Finishes(duty) => format!("finishes ({duty} %)"),
        };
        match self.judged {
            Judged::Throughput => format!("{io}, beside {name}"),
            Judged::Management => format!("{name} beside {io}"),
        }
    }

    /// The unit of the measure: MiB/s, or ms.
    pub fn unit(&self) -> &'static str {
        match self.judged {
            Judged::Throughput => "MiB/s",
            Judged::Management => "ms",
        }
    }

    /// The model's figure, alone or together.
    fn figure(&self, together: bool, seed: u64) -> Result<f64> {
        // Resetting a full zone takes 15.4 ms, finishing a zone with one block 911 ms.
        let (takes, duty, least) = match self.beside {
            Neighbour::Resets(duty) => (15_400 * Nanos::MICRO, duty, Nanos::SECOND),
            Neighbour::Finishes(duty) => (911 * Nanos::MILLI, duty, 3 * Nanos::SECOND),
        };
        // Finishes that are slowed several times over need more time to end.
        let least = match (self.judged, self.beside) {
            (Judged::Management, Neighbour::Finishes(_)) => 3 * least,
            _ => least,
        };
        let period = takes * 100 / u64::from(duty);
        let (rt, device) = drive(PRESET, seed)?;
        let mut point = direct(PRESET, self.op, self.kib, self.zones, self.depth);
        // Only whole periods give the right share of time.
        let periods = least.div_ceil(period);
        point.workload.warm = Time(period);
        point.workload.run = Time(periods * period);
        // Zones to be read are first written and finished, which takes a second.
        let whole = (periods + 2) * period + Nanos::SECOND + Nanos::SECOND / 5;
        let zones = whole.div_ceil(period) as u32;
        let paced = Rc::new(Paced {
            rt: rt.clone(),
            device: device.clone(),
            beside: self.beside,
            period,
            first: Cell::new(Nanos(u64::MAX)),
            zones,
            over: Cell::new(false),
            taken: RefCell::new(Vec::new()),
            failure: RefCell::new(None),
        });
        let alone = self.judged == Judged::Management && !together;
        if together || alone {
            paced.prepare()?;
        }
        let measures = if alone {
            paced.clone().start();
            rt.block_on(rt.sleep((periods + 1) * period));
            None
        } else {
            if together {
                paced.clone().start();
            }
            let on = rt.clone();
            Some(rt.block_on(async move {
                let Point { workload, host, .. } = &point;
                on_zones(&on, device, workload, host, seed, &Watch::default()).await
            })?)
        };
        paced.over.set(true);
        rt.clear();
        if let Some(failure) = paced.failure.borrow_mut().take() {
            return Err(failure);
        }
        match (self.judged, measures) {
            (Judged::Throughput, Some(measures)) => {
                Ok(measures.bytes_per_second / f64::from(1 << 20))
            }
            _ => paced.median().map(|median| median as f64 / 1e6),
        }
    }
}

/// Management commands that are issued one after the other at intervals.
struct Paced {
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    beside: Neighbour,
    period: u64,
    /// Earliest start of a command that is measured; the drive is loaded by then.
    first: Cell<Nanos>,
    /// Number of zones for the commands.
    zones: u32,
    over: Cell<bool>,
    /// Nanoseconds that each command took.
    taken: RefCell<Vec<u64>>,
    failure: RefCell<Option<anyhow::Error>>,
}

impl Paced {
    async fn submit(&self, command: Command, pages: u64) -> Result<()> {
        let page = Page::zeroed();
        let data = Pages::from_iter((0..pages).map(|_| page.clone()));
        // The management commands use a queue of their own.
        let request = Request::with_data(command, data);
        expect(self.device.submit(QueueId(1_000), request).await.status)
    }

    async fn write(&self, zone: u32, blocks: u64) -> Result<()> {
        let geometry = self.device.geometry();
        let start = geometry.start(ZoneId(zone)).0;
        let most = geometry.max_transfer.map_or(512, |most| most.0);
        let mut at = 0;
        while at < blocks {
            let count = (blocks - at).min(most);
            let command = Command::Write { lba: Lba(start + at), blocks: BlockCount(count) };
            self.submit(command, count * geometry.block_size.0 / PAGE_SIZE as u64).await?;
            at += count;
        }
        Ok(())
    }

    /// Fills the zones that will be reset, and lets the drive come to rest.
    fn prepare(self: &Rc<Self>) -> Result<()> {
        let paced = self.clone();
        self.rt.block_on(async move {
            if matches!(paced.beside, Neighbour::Resets(_)) {
                let capacity = paced.device.geometry().zone_capacity.0;
                for zone in FIRST..FIRST + paced.zones {
                    paced.write(zone, capacity).await?;
                }
            }
            paced.rt.sleep(Nanos::SECOND).await;
            Ok(())
        })
    }

    fn start(self: Rc<Self>) {
        let rt = self.rt.clone();
        rt.spawn_detached(async move {
            if let Err(error) = self.run().await {
                *self.failure.borrow_mut() = Some(error);
            }
        });
    }

    async fn run(&self) -> Result<()> {
        let mut next = self.rt.now();
        self.first.set(next.after(self.period));
        for zone in FIRST.. {
            if self.over.get() {
                return Ok(());
            }
            anyhow::ensure!(zone < FIRST + self.zones, "out of zones to reset or finish");
            let action = match self.beside {
                Neighbour::Resets(_) => Action::Reset,
                Neighbour::Finishes(_) => {
                    self.write(zone, 1).await?;
                    Action::Finish
                }
            };
            let target = Target::Zone(self.device.geometry().start(ZoneId(zone)));
            let began = self.rt.now();
            self.submit(Command::Manage { target, action }, 0).await?;
            if began >= self.first.get() {
                self.taken.borrow_mut().push(self.rt.now().since(began));
            }
            next = next.after(self.period);
            if next > self.rt.now() {
                self.rt.sleep_until(next).await;
            }
        }
        Ok(())
    }

    fn median(&self) -> Result<u64> {
        let mut taken = self.taken.borrow().clone();
        taken.sort_unstable();
        taken.get(taken.len() / 2).copied().context("no management command ended")
    }
}

/// Runs every situation with the seeds from 1 to `seeds`, spread over the cores.
///
/// # Errors
/// If the drive fails.
pub fn interference(seeds: u64, told: cores::Told<'_>) -> Result<Vec<Compared>> {
    let seeds = seeds.max(1) as usize;
    let work = |number: usize| {
        let (of_situation, seed) = (number / seeds, (number % seeds) as u64 + 1);
        let situation = &SITUATIONS[of_situation / 2];
        situation.figure(of_situation % 2 == 1, seed).with_context(|| situation.what())
    };
    let figures = cores::spread(SITUATIONS.len() * 2 * seeds, &work, told)?;
    let mean = |figures: &[f64]| figures.iter().sum::<f64>() / figures.len() as f64;
    let compared = SITUATIONS.iter().zip(figures.chunks(2 * seeds)).map(|(situation, figures)| {
        let (alone, together) = figures.split_at(seeds);
        Compared {
            situation: situation.clone(),
            model_alone: mean(alone),
            model_together: mean(together),
        }
    });
    Ok(compared.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the presets' parameters of interference have an effect in the
    /// measured direction.
    #[test]
    fn management_slows_reads_and_writes() {
        let change = |op, beside| {
            let key = (op, 8, 1, beside, Judged::Throughput);
            let wanted = |s: &&Situation| (s.op, s.kib, s.depth, s.beside, s.judged) == key;
            let found = SITUATIONS.iter().find(wanted).expect("a situation");
            found.figure(true, 1).unwrap() / found.figure(false, 1).unwrap() - 1.0
        };
        let writes = change(Kind::Write, Neighbour::Resets(50));
        assert!((-0.45..-0.25).contains(&writes), "{writes}");
        let reads = change(Kind::Read, Neighbour::Finishes(50));
        assert!((-0.40..-0.20).contains(&reads), "{reads}");
    }
}
