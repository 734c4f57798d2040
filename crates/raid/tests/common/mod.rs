//! Arrays of small emulated drives for the tests of this crate.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "no test uses all of it")]

use furrow_emu::{Emulator, Fates, Medium, Options as DriveOptions};
use furrow_raid::{Config, Level, Options, Volume, assemble, create};
use furrow_rt::buf::is_zero;
use furrow_rt::{Config as Executor, Page, Pages, Rng, Rt};
use furrow_zone::{Geometry, ZonedDevice};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A drive of `zones` zones of `capacity` blocks, with 64 out-of-band bytes.
pub fn geometry(zones: u32, capacity: u64) -> Geometry {
    Geometry {
        oob_bytes: 64,
        max_open: Some(8),
        max_active: Some(8),
        ..Geometry::unlimited(zones, capacity.next_power_of_two(), capacity)
    }
}

pub fn drives(rt: &Rt, geometry: &Geometry, count: usize) -> Vec<Rc<Emulator>> {
    (0..count)
        .map(|index| {
            let options =
                DriveOptions { name: format!("drive{index}"), ..DriveOptions::simulated() };
            let medium = Medium::memory(geometry);
            Rc::new(Emulator::new(rt, geometry.clone(), medium, options).unwrap())
        })
        .collect()
}

pub fn devices(drives: &[Rc<Emulator>]) -> Vec<Rc<dyn ZonedDevice>> {
    drives.iter().map(|drive| drive.clone() as Rc<dyn ZonedDevice>).collect()
}

pub fn config(level: Level, geometry: &Geometry) -> Config {
    Config { group: 8, large: 2, ..Config::new(level, geometry) }
}

pub fn made(rt: &Rt, drives: &[Rc<Emulator>], config: &Config) -> Volume {
    let (devices, config, options) = (devices(drives), config.clone(), Options::default());
    let rt2 = rt.clone();
    rt.block_on(async move { create(&rt2, devices, &config, &options, false).await.unwrap() })
}

/// An array to make for a test, with zones of the size that most tests use.
pub struct Array {
    executor: Executor,
    geometry: Geometry,
    pub config: Config,
    members: usize,
    others: usize,
}

impl Array {
    pub fn new(level: Level, members: usize) -> Array {
        Array::of(geometry(16, 80), level, members)
    }

    pub fn of(geometry: Geometry, level: Level, members: usize) -> Array {
        let config = config(level, &geometry);
        Array { executor: Executor::simulated(3), geometry, config, members, others: 0 }
    }

    pub fn zones(self, zones: u32, capacity: u64) -> Array {
        Array { geometry: geometry(zones, capacity), ..self }
    }

    /// Adds drives beyond those of the array.
    pub fn others(self, others: usize) -> Array {
        Array { others, ..self }
    }

    pub fn group(mut self, group: u32) -> Array {
        self.config.group = group;
        self
    }

    pub fn reserve(mut self, reserve: u32) -> Array {
        self.config.reserve = reserve;
        self
    }

    pub fn simulated(self, seed: u64) -> Array {
        Array { executor: Executor::simulated(seed), ..self }
    }

    pub fn shuffled(self, seed: u64) -> Array {
        Array { executor: Executor::shuffled(seed), ..self }
    }

    /// Makes the array. `test` gets the executor, all drives and the volume.
    pub fn run<T: 'static>(
        self,
        test: impl AsyncFnOnce(Rt, Vec<Rc<Emulator>>, Volume) -> T + 'static,
    ) -> T {
        let rt = Rt::new(self.executor);
        let all = drives(&rt, &self.geometry, self.members + self.others);
        let volume = made(&rt, &all[..self.members], &self.config);
        let on = rt.clone();
        let done = rt.block_on(async move { test(on, all, volume).await });
        rt.clear();
        done
    }
}

/// A page that tells its block and version.
pub fn page(block: u64, version: u64) -> Page {
    let mut page = Page::zeroed();
    let mut rng = Rng::new(block << 20 ^ version);
    for (at, bytes) in page.make_mut().chunks_exact_mut(8).enumerate() {
        let word = match at {
            0 => block,
            1 => version,
            _ => rng.next(),
        };
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    page
}

pub fn pages(block: u64, count: u64, version: u64) -> Pages {
    (block..block + count).map(|block| page(block, version)).collect()
}

/// The version of a page; `None` for zeros.
pub fn version(block: u64, found: &Page) -> Option<u64> {
    let word = |at: usize| u64::from_le_bytes(found.bytes()[at..at + 8].try_into().unwrap());
    let version = word(8);
    if is_zero(found.bytes()) {
        return None;
    }
    assert_eq!(word(0), block, "block {block} holds another's content");
    assert_eq!(found.bytes(), page(block, version).bytes(), "block {block} is damaged");
    Some(version)
}

/// Cuts the power, whatever the volume was doing, and restores it: no command in flight was done.
pub async fn power_cycle(rt: &Rt, drives: &[Rc<Emulator>], volume: Volume) {
    drives.iter().for_each(|drive| drive.power_cut(&Fates::nothing(1)));
    drop(volume);
    rt.sleep(1_000_000_000).await;
    drives.iter().for_each(|drive| drive.power_on());
}

/// The volume after it was stopped and assembled again.
pub async fn reopened(rt: &Rt, drives: &[Rc<Emulator>], volume: Volume) -> Volume {
    volume.stop().await.unwrap();
    drop(volume);
    assemble(rt, devices(drives), &Options::default()).await.unwrap()
}

/// The volume assembled from all of its drives except those that are refused as stale.
pub async fn without_stale(rt: &Rt, drives: &[Rc<Emulator>]) -> Result<Volume, String> {
    let mut given = devices(drives);
    loop {
        let error = match assemble(rt, given.clone(), &Options::default()).await {
            Ok(volume) => return Ok(volume),
            Err(error) => error.to_string(),
        };
        let is_stale =
            |d: &Rc<dyn ZonedDevice>| error.starts_with(&format!("{} is stale", d.name()));
        let Some(stale) = given.iter().position(is_stale) else { return Err(error) };
        given.remove(stale);
    }
}

/// Reads every block, one at a time: each holds the version of `model`.
pub async fn check(volume: &Volume, model: &BTreeMap<u64, u64>) {
    check_runs(volume, model, 1).await;
}

/// Like [`check`], reading `run` blocks at once.
pub async fn check_runs(volume: &Volume, model: &BTreeMap<u64, u64>, run: u64) {
    for first in (0..volume.blocks()).step_by(run as usize) {
        let count = run.min(volume.blocks() - first);
        let read = volume.read(first, count as u32).await.unwrap();
        assert_eq!(read.len() as u64, count);
        for (block, page) in (first..).zip(&read) {
            assert_eq!(version(block, page), model.get(&block).copied(), "block {block}");
        }
    }
}

/// Writes up to six blocks at a random place, `steps` times.
pub async fn churn(volume: &Volume, model: &mut BTreeMap<u64, u64>, rng: &mut Rng, steps: u64) {
    for _ in 0..steps {
        let count = 1 + rng.below(6);
        let block = rng.below(volume.blocks() - count);
        let next = rng.next();
        volume.write(block, pages(block, count, next), false).await.unwrap();
        model.extend((block..block + count).map(|block| (block, next)));
    }
}
