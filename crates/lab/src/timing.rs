//! Commands per second of host time that the timed drive takes, on one core: what every figure in
//! virtual time costs. 16 submitters keep 32 commands of 4 KiB outstanding each, on random zones of
//! 128; the drive has the full model of a `pm1731a`, counters on, and drops payload.

use crate::bench::{Bench, Contestant, Effort, Row, compare};
use crate::work::{Own, Work};
use anyhow::{Result, ensure};
use furrow_emu::{Emulator, Medium, Options};
use furrow_rt::{Config, Page, Pages, Rng, Rt};
use furrow_zone::spec::{self, DeviceSpec};
use furrow_zone::{Access, Command, Geometry, QueueId, Request, ZoneId, ZonedDevice};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub(crate) const TIMING: Bench = Bench {
    name: "timing",
    about: "commands of 4 KiB that the emulated drive takes per second of host time, with its \
            timing model in virtual time, on one core",
    run,
};

const SUBMITTERS: u32 = 16;
const OUTSTANDING: u32 = 32;
const ZONES: u32 = 128;

struct Rig {
    rt: Own,
    done: Rc<Cell<u64>>,
    failed: Rc<Cell<u64>>,
}

fn run(effort: Effort) -> Result<Vec<Row>> {
    let untimed = Rig::new(false, Work::Write)?;
    let mut rigs = vec![("write, untimed".to_owned(), untimed)];
    for work in Work::ALL {
        rigs.push((work.name().to_owned(), Rig::new(true, work)?));
    }
    let mut contestants: Vec<Contestant<'_>> = rigs
        .iter_mut()
        .map(|(name, rig)| Contestant::new(name.clone(), |slice| rig.measure(slice)))
        .collect();
    compare(effort, "commands", &mut contestants)
}

impl Rig {
    fn new(timed: bool, work: Work) -> Result<Rig> {
        let rt = Own(Rt::new(Config::simulated(1)));
        let drive: Rc<dyn ZonedDevice> = if timed {
            let spec = "mem:pm1731a,zones=256,medium=discard,timing=virtual";
            furrow_emu::open(&rt, &spec.parse::<DeviceSpec>()?, Access::ReadWrite)?
        } else {
            let geometry = spec::parse_geometry("pm1731a,zones=256")?;
            let medium = Medium::discard(&geometry);
            Rc::new(Emulator::new(&rt, geometry, medium, Options::fast())?)
        };
        let (done, failed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let zones: Rc<Vec<Cell<u64>>> = Rc::new((0..ZONES).map(|_| Cell::new(0)).collect());
        for submitter in 0..SUBMITTERS {
            for slot in 0..OUTSTANDING {
                let client = Client {
                    drive: drive.clone(),
                    queue: QueueId(submitter as u16),
                    rng: Rng::new(u64::from(submitter * OUTSTANDING + slot)),
                    zones: zones.clone(),
                    work,
                    done: done.clone(),
                    failed: failed.clone(),
                };
                rt.spawn_detached(client.run());
            }
        }
        Ok(Rig { rt, done, failed })
    }

    fn measure(&mut self, slice: Duration) -> Result<f64> {
        let (before, start) = (self.done.get(), Instant::now());
        let elapsed = loop {
            for _ in 0..1_000 {
                // An untimed drive never runs out of ready commands, so each call runs only some
                // of them.
                self.rt.run_some(64);
                self.rt.advance();
            }
            let elapsed = start.elapsed();
            if elapsed >= slice {
                break elapsed;
            }
        };
        ensure!(self.failed.get() == 0, "{} commands failed", self.failed.get());
        Ok((self.done.get() - before) as f64 / elapsed.as_secs_f64())
    }
}

/// A client that has one command outstanding at any time.
struct Client {
    drive: Rc<dyn ZonedDevice>,
    queue: QueueId,
    rng: Rng,
    /// Number of blocks written to each zone.
    zones: Rc<Vec<Cell<u64>>>,
    work: Work,
    done: Rc<Cell<u64>>,
    failed: Rc<Cell<u64>>,
}

impl Client {
    async fn run(mut self) {
        let geometry: Geometry = self.drive.geometry().clone();
        let mut pages = Pages::from_iter([Page::zeroed()]);
        loop {
            let zone = self.rng.below(ZONES.into()) as u32;
            let next = &self.zones[zone as usize];
            let id = ZoneId(zone);
            let (command, data) = match self.work {
                Work::Read => {
                    let at = self.rng.below(geometry.zone_capacity.0);
                    (self.work.command(&geometry, id, at), std::mem::take(&mut pages))
                }
                _ if next.get() == geometry.zone_capacity.0 => {
                    next.set(0);
                    (Command::reset(&geometry, id), Pages::new())
                }
                work => {
                    let at = next.replace(next.get() + 1);
                    (work.command(&geometry, id, at), pages.clone())
                }
            };
            let outcome = self.drive.submit(self.queue, Request::with_data(command, data)).await;
            if self.work == Work::Read {
                pages = outcome.data;
            }
            self.failed.set(self.failed.get() + u64::from(!outcome.status.is_ok()));
            self.done.set(self.done.get() + 1);
        }
    }
}
