//! Compares soft zones with a model of each zone's lives, after random commands, writes that fail
//! or come late, and power cuts.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::rounds::{Watched, watched_of};
use crate::zones::opened;
use furrow_emu::{Emulator, Fates, Medium, Options, Plain, Snapshot, Unflushed};
use furrow_rt::{Config, Nanos, Page, Pages, Rng, Rt};
use furrow_soft::SoftDrive;
use furrow_zone::{
    Access, Action, BlockCount, Command, Fault, FaultKind, Lba, QueueId, Request, Status, Target,
    ZoneId, ZoneState, ZonedDevice,
};
use std::cell::RefCell;
use std::rc::Rc;

/// Number of blocks in a zone.
const BLOCKS: u32 = 12;

/// The time of a zone from one reset to the next.
#[derive(Clone, Debug, Default)]
struct Life {
    /// Number of blocks for which writes were sent.
    sent: u32,
    /// End of the writes that were answered.
    answered: u32,
    /// End of the writes that were answered before an answered flush was sent.
    durable: u32,
    /// Block at which the first write failed.
    failed: Option<u32>,
    /// Whether a finish was sent.
    finish: bool,
    /// Whether the finish was answered.
    finished: bool,
}

#[derive(Clone, Debug, Default)]
struct Model {
    zones: Vec<Vec<Life>>,
    /// The oldest life of each zone that may be found: the one that began with the last
    /// answered reset.
    first: Vec<usize>,
}

impl Model {
    fn life(&self, zone: usize) -> (usize, &Life) {
        let number = self.zones[zone].len() - 1;
        (number, &self.zones[zone][number])
    }
}

fn content(zone: usize, life: usize, block: u32) -> Page {
    let mut page = Page::zeroed();
    let mut rng = Rng::new((zone as u64) << 40 | (life as u64) << 20 | u64::from(block));
    for bytes in page.make_mut().chunks_mut(8) {
        bytes.copy_from_slice(&rng.next().to_le_bytes());
    }
    page
}

struct Client {
    rt: Rt,
    drive: Emulator,
    soft: SoftDrive,
    plain: Rc<Watched>,
    rng: Rng,
    model: Rc<RefCell<Model>>,
}

impl Client {
    /// Sends `command`; `then` gets its status once it is answered.
    fn send(&self, request: Request, then: impl FnOnce(&mut Model, Status) + 'static) {
        let answer = self.soft.submit(QueueId(0), request);
        let model = self.model.clone();
        self.rt.spawn_detached(async move {
            let status = answer.await.status;
            then(&mut model.borrow_mut(), status);
        });
    }

    fn manage(zone: usize, action: Action) -> Request {
        let target = Target::Zone(Lba(zone as u64 * u64::from(BLOCKS)));
        Request::bare(Command::Manage { target, action })
    }

    /// Sends a write, which may fail or come late.
    fn write(&mut self, zone: usize) {
        let (number, life) = {
            let model = self.model.borrow();
            let (number, life) = model.life(zone);
            (number, life.clone())
        };
        let (from, wanted) = (life.sent, 1 + self.rng.below(4) as u32);
        let end = BLOCKS.min(from + wanted);
        if end == from || life.finish {
            return;
        }
        let at = u64::from(BLOCKS) * zone as u64 + u64::from(from);
        let byte = (self.soft.superblock().layout.first + at) * 4096;
        if self.rng.one_in(12) {
            let fault = Fault::new(FaultKind::WriteError);
            let fault = fault.at_blocks(Lba(byte / 512), BlockCount(8)).times(1);
            self.drive.inject(fault).unwrap();
        }
        if self.rng.one_in(4) {
            self.plain.hold(byte, 1 + self.rng.below(2 * Nanos::MILLI));
        }
        let fua = self.rng.one_in(8);
        let data: Pages = (from..end).map(|block| content(zone, number, block)).collect();
        let blocks = BlockCount(u64::from(end - from));
        let request = Request::with_data(Command::Write { lba: Lba(at), blocks }, data);
        self.model.borrow_mut().zones[zone][number].sent = end;
        self.send(Request { fua, ..request }, move |model, status| {
            let life = &mut model.zones[zone][number];
            if status.is_ok() {
                life.answered = life.answered.max(end);
                life.durable = if fua { life.durable.max(end) } else { life.durable };
            } else {
                life.failed = Some(life.failed.map_or(from, |earlier| earlier.min(from)));
            }
        });
    }

    fn flush(&self) {
        let covered: Vec<(usize, u32)> = {
            let model = self.model.borrow();
            let lives = (0..model.zones.len()).map(|zone| model.life(zone));
            lives.map(|(number, life)| (number, life.answered)).collect()
        };
        self.send(Request::bare(Command::Flush), |model, status| {
            assert!(status.is_ok(), "{status}");
            for (lives, (number, end)) in model.zones.iter_mut().zip(covered) {
                lives[number].durable = lives[number].durable.max(end);
            }
        });
    }

    async fn reset(&self, zone: usize) {
        if report(&self.soft, zone).await == ZoneState::ReadOnly {
            return;
        }
        let next = self.model.borrow().zones[zone].len();
        self.model.borrow_mut().zones[zone].push(Life::default());
        self.send(Self::manage(zone, Action::Reset), move |model, status| {
            assert!(status.is_ok(), "{status}");
            model.first[zone] = model.first[zone].max(next);
        });
    }

    fn finish(&self, zone: usize) {
        let number = {
            let model = self.model.borrow();
            let (number, life) = model.life(zone);
            if life.finish || life.sent == BLOCKS || life.failed.is_some() {
                return;
            }
            number
        };
        self.model.borrow_mut().zones[zone][number].finish = true;
        self.send(Self::manage(zone, Action::Finish), move |model, status| {
            model.zones[zone][number].finished = status.is_ok();
        });
    }

    async fn work(&mut self, crowd: bool) {
        let zones = self.model.borrow().zones.len();
        for _ in 0..20 + self.rng.below(120) {
            let first = self.rng.below(zones as u64) as usize;
            let most = if crowd { 1 + self.rng.below(200) as usize } else { 1 };
            let some = first..(first + most).min(zones);
            match self.rng.below(24) {
                0..=11 => some.for_each(|zone| self.write(zone)),
                12..=15 => self.flush(),
                16 | 17 => {
                    for zone in some {
                        self.reset(zone).await;
                    }
                }
                18 => self.finish(first),
                19..=21 => self.rt.sleep(self.rng.below(Nanos::MILLI)).await,
                _ => self.yields(20).await,
            }
        }
        self.yields(60).await;
        if self.rng.one_in(3) {
            self.rt.sleep(10 * Nanos::SECOND).await;
            assert_eq!(self.soft.oldest(), None, "all are answered");
        }
    }

    async fn yields(&mut self, most: u64) {
        for _ in 0..self.rng.below(most) {
            self.rt.yield_now().await;
        }
    }
}

async fn report(soft: &SoftDrive, zone: usize) -> ZoneState {
    soft.report(ZoneId(zone as u32), 1).await.unwrap()[0].state
}

/// Checks that `model` allows what `soft` holds; the error says why it does not.
async fn judge(soft: &SoftDrive, model: &Model) -> Result<(), String> {
    for (zone, lives) in model.zones.iter().enumerate() {
        let state = report(soft, zone).await;
        let mut pages = Vec::new();
        for block in 0..u64::from(BLOCKS) {
            let lba = Lba(zone as u64 * u64::from(BLOCKS) + block);
            let command = Command::Read { lba, blocks: BlockCount(1) };
            let request = Request::with_data(command, Pages::from_iter([Page::zeroed()]));
            let outcome = soft.submit(QueueId(0), request).await;
            match outcome.status {
                Status::Success => pages.push(outcome.data[0].clone()),
                Status::Unwritten => break,
                status => return Err(format!("zone {zone} block {block}: {status}")),
            }
        }
        // In a read-only zone every block can be read, written or not.
        let read_only = state == ZoneState::ReadOnly;
        let end = pages.len() as u32;
        let fits = (model.first[zone]..lives.len()).any(|number| {
            let life = &lives[number];
            let durable = life.durable.min(life.failed.unwrap_or(u32::MAX));
            let same =
                |block: u32| pages[block as usize].bytes() == content(zone, number, block).bytes();
            let kept = match read_only {
                true => end >= durable && (0..durable).all(same),
                false => (durable..=life.sent).contains(&end) && (0..end).all(same),
            };
            kept && (read_only || state == ZoneState::Full || !life.finished)
        });
        if !fits {
            let lives = &lives[model.first[zone]..];
            return Err(format!("zone {zone}: {state:?}, {end} blocks, lives: {lives:?}"));
        }
    }
    Ok(())
}

/// Runs the commands of `seed`. Returns the drive, and the model of what was done to it.
fn used(seed: u64) -> (Snapshot, Model) {
    let rt = Rt::new(Config::shuffled(seed));
    let geometry = Plain::geometry(14 << 20, true);
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap();
    let engine = rt.clone();
    let done = rt.block_on(async move {
        let mut rng = Rng::new(seed);
        // Use either many zones in a small journal, or a few zones.
        let crowd = seed.is_multiple_of(3);
        let (zones, records) = match crowd {
            true => (230, 3),
            false => (3 + rng.below(5) as usize, 3 + rng.below(14) as u32),
        };
        let (soft, plain) = watched_of(&engine, &drive, u64::from(BLOCKS) * 4096, records).await;
        let zones = zones.min(soft.superblock().layout.zones as usize);
        let model = Model { zones: vec![vec![Life::default()]; zones], first: vec![0; zones] };
        let model = Rc::new(RefCell::new(model));
        let (drive, rt) = (drive.clone(), engine.clone());
        let mut client = Client { rt, drive, soft, plain, rng, model };
        client.work(crowd).await;
        client.drive.clear_faults(None).unwrap();
        let model = client.model.borrow().clone();
        (client.drive.snapshot(), model)
    });
    rt.clear();
    done
}

/// After a power cut each zone is in a life that had begun, no older than the last answered reset.
/// It has all the data that a flush covered, and no block that was not written.
#[test]
fn zones_outlive_the_power_amid_failures_resets_and_turns() {
    for seed in 0..60 {
        let (snapshot, model) = used(seed);
        for fate in 0..6 {
            let fates = match fate {
                0 => Fates { commands: Some(vec![]), unflushed: Unflushed::Kept, seed: fate },
                1 => Fates { commands: Some(vec![]), unflushed: Unflushed::Lost, seed: fate },
                _ => Fates { commands: None, unflushed: Unflushed::Seeded, seed: fate },
            };
            let (rt, cut) = (Rt::new(Config::simulated(2)), snapshot.power_cut(&fates));
            let drive = Emulator::from_snapshot(&rt, &cut, Options::simulated());
            let (engine, model) = (rt.clone(), model.clone());
            let found = rt.block_on(async move {
                for access in [Access::ReadOnly, Access::ReadWrite, Access::ReadWrite] {
                    let soft = opened(&engine, &drive, access).await;
                    judge(&soft.map_err(|error| format!("open: {error}"))?, &model).await?;
                }
                Ok::<(), String>(())
            });
            rt.clear();
            found.unwrap_or_else(|why| panic!("seed {seed}, fate {fate}: {why}"));
        }
    }
}
