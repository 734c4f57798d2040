//! A volume for tests that look into its memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::segment::Segment;
use crate::volume::Volume;
use crate::{Config, Level, Options, create};
use furrow_emu::{Emulator, Medium, Options as DriveOptions};
use furrow_rt::{Config as RtConfig, Page, Pages, Rng, Rt};
use furrow_zone::{Geometry, ZonedDevice};
use std::rc::Rc;

/// A volume on small drives in memory, audited after every operation.
pub(crate) struct Rig {
    pub(crate) rt: Rt,
    pub(crate) volume: Volume,
    pub(crate) drives: Vec<Rc<Emulator>>,
    pub(crate) rng: Rng,
}

/// Number of zones of a drive, unless a test asks for more.
const ZONES: u32 = 20;

/// The geometry of a drive with `zones` zones.
fn geometry(zones: u32) -> Geometry {
    Geometry {
        oob_bytes: 64,
        max_open: Some(8),
        max_active: Some(8),
        ..Geometry::unlimited(zones, 64, 48)
    }
}

fn config(geometry: &Geometry) -> Config {
    Config { group: 8, large: 1, chunk_large: 2, ..Config::new(Level::Raid5, geometry) }
}

fn drive_of(rt: &Rt, geometry: &Geometry) -> Rc<Emulator> {
    let medium = Medium::memory(geometry);
    Rc::new(Emulator::new(rt, geometry.clone(), medium, DriveOptions::simulated()).unwrap())
}

pub(crate) fn drive(rt: &Rt) -> Rc<Emulator> {
    drive_of(rt, &geometry(ZONES))
}

pub(crate) fn given(drives: &[Rc<Emulator>]) -> Vec<Rc<dyn ZonedDevice>> {
    drives.iter().map(|drive| drive.clone() as Rc<dyn ZonedDevice>).collect()
}

/// Runs a test on a volume of three drives.
pub(crate) fn rigged(options: &Options, test: impl AsyncFnOnce(Rig) + 'static) {
    rigged_on(ZONES, options, test);
}

/// Runs a test on a volume of three drives with `zones` zones each.
pub(crate) fn rigged_on(zones: u32, options: &Options, test: impl AsyncFnOnce(Rig) + 'static) {
    let rt = Rt::new(RtConfig::simulated(5));
    let (rt2, options) = (rt.clone(), options.clone());
    rt.block_on(async move {
        let geometry = geometry(zones);
        let drives: Vec<_> = (0..3).map(|_| drive_of(&rt2, &geometry)).collect();
        let made = create(&rt2, given(&drives), &config(&geometry), &options, false).await;
        test(Rig { rt: rt2, volume: made.unwrap(), drives, rng: Rng::new(7) }).await;
    });
    rt.clear();
}

/// Options without cleaning, and with only those checkpoints that a test asks for.
pub(crate) fn still() -> Options {
    Options { checkpoint_blocks: 1 << 30, clean: false, ..Options::default() }
}

pub(crate) fn pages(count: u64, version: u64) -> Pages {
    (0..count).map(|_| Page::from_slice(&version.to_le_bytes())).collect()
}

impl Rig {
    pub(crate) async fn write(&mut self, block: u64, count: u64) {
        let data = pages(count, self.rng.next());
        self.volume.write(block, data, false).await.unwrap();
        self.volume.audit().unwrap();
    }

    /// Writes blocks all over the volume, and trims some.
    pub(crate) async fn churn(&mut self, steps: u64) {
        for _ in 0..steps {
            let count = 1 + self.rng.below(5);
            let block = self.rng.below(self.volume.blocks() - count);
            if self.rng.one_in(8) {
                self.volume.trim(block, count, false).await.unwrap();
                self.volume.audit().unwrap();
            } else {
                self.write(block, count).await;
            }
        }
        // Leaves time to begin or end segments in the background.
        self.rt.sleep(10_000_000).await;
        self.volume.audit().unwrap();
    }

    /// The slot of the first segment for which `is` holds.
    pub(crate) fn slot(&self, is: impl Fn(&Segment) -> bool) -> usize {
        self.volume.0.segments.borrow().iter().position(is).expect("no such segment")
    }

    /// Like [`Rig::slot`]; writes blocks until there is such a segment.
    pub(crate) async fn slot_to_come(&mut self, is: impl Fn(&Segment) -> bool) -> usize {
        for _ in 0..50 {
            if self.volume.0.segments.borrow().iter().any(&is) {
                break;
            }
            self.churn(6).await;
        }
        self.slot(is)
    }

    pub(crate) fn change(&self, slot: usize, change: impl FnOnce(&mut Segment)) {
        change(&mut self.volume.0.segments.borrow_mut()[slot]);
    }

    /// Expects that the audit fails and names the account.
    pub(crate) fn refuses(&self, account: &str) {
        let why = self.volume.audit().expect_err("not noticed").to_string();
        assert!(why.contains(account), "{why}");
    }
}
