//! Directories: what a name costs among a thousand and among a million.
//!
//! The library runs in place on one executor, with the drive in memory and untimed, and everything
//! in the cache, so the benchmark measures the library's processor time. The directories are filled
//! with links to a few files: the number of inodes is then the same for every directory, and the
//! cost of inodes does not hide the cost of the directory.

use crate::{Contestant, Effort, Row, compare};
use anyhow::Result;
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{Access, Error};
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

const DEVICE: &str = "mem:capacity=4GiB,zone-size=32MiB";
/// Names in the directories that are compared.
pub(crate) const SIZES: [(u32, &str); 2] = [(1_000, "1,000 names"), (1_000_000, "1,000,000 names")];
/// Links of one file: fewer than the limit.
const LINKS: u32 = 60_000;
/// Number of names that are looked up, over and over.
const ASKED: u32 = 10_000;
/// Operations between looks at the clock.
const BATCH: u32 = 200;
/// Pages of cache: 1 GiB, more than the directories need.
const CACHE: usize = 262_144;

/// Runs the benchmark.
pub fn run(effort: Effort) -> Result<Vec<Row>> {
    let fs = Library::new()?;
    let directories = SIZES
        .into_iter()
        .map(|(size, label)| Ok((fs.directory(size)?, size, label)))
        .collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for (what, unit) in [("lookup", "lookup"), ("miss", "failing lookup"), ("create", "create")] {
        let mut contestants: Vec<Contestant<'_>> = directories
            .iter()
            .map(|&(directory, size, label)| {
                let fs = &fs;
                Contestant::new(format!("{unit}: among {label}"), move |slice| match what {
                    "lookup" => fs.lookup(directory, size, slice),
                    "miss" => fs.miss(directory, slice),
                    _ => fs.create(directory, slice),
                })
            })
            .collect();
        rows.extend(compare(effort, unit, &mut contestants)?);
    }
    fs.end()?;
    Ok(rows)
}

pub(crate) fn name(n: u32) -> Vec<u8> {
    format!("file-number-{n}").into_bytes()
}

/// Makes the names for a batch, and measures the time that this takes. A program that looks up a
/// name has just written it, so the name is in the processor's cache.
fn just_written(number: impl Fn(u32) -> u32) -> (Vec<Vec<u8>>, Duration) {
    let start = Instant::now();
    let names = (0..BATCH).map(|at| name(number(at))).collect();
    (names, start.elapsed())
}

/// Makes a directory in the root with `size` names, named after its size.
pub(crate) async fn fill(fs: &Fs, size: u32) -> Result<Ino, Error> {
    let at = format!("of-{size}").into_bytes();
    let directory = fs.create(Ino::ROOT, &at, &NewNode::directory()).await?.ino;
    let mut file = directory;
    for n in 0..size {
        if n.is_multiple_of(LINKS) {
            file = fs.create(directory, &name(n), &NewNode::file()).await?.ino;
        } else {
            fs.link(file, directory, &name(n)).await?;
        }
    }
    fs.sync().await?;
    Ok(directory)
}

struct Library {
    rt: Rt,
    fs: Fs,
}

impl Library {
    fn new() -> Result<Library> {
        let rt = Rt::new(Config::real());
        let device = furrow_emu::open(&rt, &DEVICE.parse()?, Access::ReadWrite)?;
        let engine = rt.clone();
        let fs = rt.block_on(async move {
            Fs::format(&engine, device.clone(), &MkfsOptions::default()).await?;
            let options = MountOptions { cache_pages: CACHE, ..MountOptions::default() };
            Fs::mount(&engine, device, options).await
        })?;
        Ok(Library { rt, fs })
    }

    /// A directory with `size` names.
    fn directory(&self, size: u32) -> Result<Ino> {
        let fs = self.fs.clone();
        Ok(self.rt.block_on(async move { fill(&fs, size).await })?)
    }

    fn lookup(&self, directory: Ino, size: u32, slice: Duration) -> Result<f64> {
        let fs = self.fs.clone();
        let mut rng = Rng::new(5);
        let numbers: Rc<[u32]> = (0..ASKED).map(|_| rng.below(u64::from(size)) as u32).collect();
        self.timed(slice, async move |turn: u32| {
            let (names, apart) = just_written(|at| numbers[((turn * BATCH + at) % ASKED) as usize]);
            for name in &names {
                black_box(fs.lookup(directory, name).await?);
            }
            Ok(apart)
        })
    }

    fn miss(&self, directory: Ino, slice: Duration) -> Result<f64> {
        let fs = self.fs.clone();
        self.timed(slice, async move |turn: u32| {
            let (names, apart) = just_written(|at| (1 << 30) + (turn * BATCH + at) % ASKED);
            for name in &names {
                let _ = black_box(fs.lookup(directory, name).await);
            }
            Ok(apart)
        })
    }

    /// Creates files and removes them again. The removal does not count.
    fn create(&self, directory: Ino, slice: Duration) -> Result<f64> {
        let fs = self.fs.clone();
        self.timed(slice, async move |turn: u32| {
            let names: Vec<Vec<u8>> = (0..BATCH).map(|at| name((1 << 30) + turn + at)).collect();
            for name in &names {
                fs.create(directory, name, &NewNode::file()).await?;
            }
            let start = Instant::now();
            for name in &names {
                fs.unlink(directory, name).await?;
            }
            if turn % 16 == 15 {
                fs.sync().await?;
            }
            Ok(start.elapsed())
        })
    }

    /// Runs batches for `slice`. The time that each batch returns is not counted.
    fn timed(
        &self,
        slice: Duration,
        mut batch: impl AsyncFnMut(u32) -> Result<Duration, Error> + 'static,
    ) -> Result<f64> {
        Ok(self.rt.block_on(async move {
            let start = Instant::now();
            let (mut turn, mut apart) = (0, Duration::ZERO);
            while start.elapsed() < slice {
                apart += batch(turn).await?;
                turn += 1;
            }
            let counted = start.elapsed().saturating_sub(apart).as_secs_f64();
            Ok::<f64, Error>(f64::from(turn * BATCH) / counted)
        })?)
    }

    fn end(self) -> Result<()> {
        let fs = self.fs.clone();
        let ended = self.rt.block_on(async move { fs.unmount().await });
        drop(self.fs);
        self.rt.clear();
        Ok(ended?)
    }
}
