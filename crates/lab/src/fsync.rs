//! fsync: what a durable append of 4 KiB costs.
//!
//! One, two and eight threads at once, each with a file of its own, reach the engine through its
//! port. The callers copy and checksum the blocks. The drive is in memory and untimed, so the
//! benchmark measures processor time, and more callers than processors gain only by sharing records
//! and flushes. The least that the drive must do for one fsync is to write two blocks, data and
//! record, and to flush.

use crate::library::Drive;
use crate::{Bench, Contestant, Effort, Row, compare, noise};
use anyhow::{Context as _, Result};
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, SetAttr, WriteData};
use furrow_rt::{Config, Pool, Port};
use furrow_zone::{Access, Error};
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The benchmark.
pub const FSYNC: Bench = Bench {
    name: "fsync",
    about: "an append of 4 KiB and its fsync, from 1, 2 and 8 threads, against the least their \
            drive must do",
    run,
};

const DEVICE: &str = "mem:capacity=2GiB,zone-size=16MiB";
const BLOCK: usize = 4096;
/// Numbers of simultaneous callers.
const CALLERS: [usize; 3] = [1, 2, 8];
/// Length in blocks at which a file is truncated to zero and grows again.
const LONGEST: u64 = 4096;
/// Number of appends between looks at the clock.
const BATCH: u64 = 32;

fn run(effort: Effort) -> Result<Vec<Row>> {
    let bytes: Rc<[u8]> = noise(BLOCK * 1024, 7).into();
    let (drive, engine) = (Drive::new()?, Engine::start()?);
    let mut contestants = vec![Contestant::new("drive alone, two blocks and a flush", |slice| {
        drive.write_and_flush(&bytes, slice)
    })];
    for callers in CALLERS {
        let plural = if callers == 1 { "thread" } else { "threads" };
        let name = format!("library, {callers} {plural}");
        let engine = &engine;
        contestants.push(Contestant::new(name, move |slice| engine.rate(slice, callers)));
    }
    let rows = compare(effort, &mut contestants);
    drop(contestants);
    drive.end();
    engine.end()?;
    rows
}

/// A file system, and a file in it for each caller.
struct Engine {
    port: Port<Fs>,
    pool: Pool,
    files: Vec<Ino>,
}

impl Engine {
    fn start() -> Result<Engine> {
        let (sender, receiver) = channel();
        let port = Port::start(Config::real(), move |rt| {
            let device = furrow_emu::open(rt, &DEVICE.parse()?, Access::ReadWrite)?;
            let engine = rt.clone();
            rt.block_on(async move {
                Fs::format(&engine, device.clone(), &MkfsOptions::default()).await?;
                let fs = Fs::mount(&engine, device, MountOptions::default()).await?;
                let mut files = Vec::new();
                for number in 0..CALLERS[2] {
                    let name = format!("file-{number}").into_bytes();
                    files.push(fs.create(Ino::ROOT, &name, &NewNode::file()).await?.ino);
                }
                // Sending cannot fail, because the receiver waits below.
                let _ = sender.send((fs.pool().clone(), files));
                Ok::<Fs, Error>(fs)
            })
        })?;
        let (pool, files) = receiver.recv().context("the engine did not start")?;
        Ok(Engine { port, pool, files })
    }

    /// Appends per second of `callers` threads together, over about `slice`.
    fn rate(&self, slice: Duration, callers: usize) -> Result<f64> {
        let start = Instant::now();
        let done: Result<Vec<u64>, Error> = std::thread::scope(|scope| {
            let threads: Vec<_> = self.files[..callers]
                .iter()
                .map(|file| scope.spawn(move || self.appends(*file, start, slice)))
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        Ok(done?.into_iter().sum::<u64>() as f64 / start.elapsed().as_secs_f64())
    }

    /// The appends of one caller in the `slice` since `start`.
    fn appends(&self, file: Ino, start: Instant, slice: Duration) -> Result<u64, Error> {
        let content = noise(BLOCK, u64::from(file.0));
        let mut done = 0;
        while start.elapsed() < slice {
            for at in done..done + BATCH {
                let data = WriteData::copy(&self.pool, at % LONGEST * BLOCK as u64, &content);
                self.port.call(move |_, fs| {
                    let fs = fs.clone();
                    async move {
                        fs.write(file, data).await?;
                        fs.fsync(file, false).await
                    }
                })?;
            }
            done += BATCH;
            if done % LONGEST == 0 {
                self.truncate(file)?;
            }
        }
        self.truncate(file)?;
        Ok(done)
    }

    fn truncate(&self, file: Ino) -> Result<(), Error> {
        self.port.call(move |_, fs| {
            let fs = fs.clone();
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            async move { fs.setattr(file, empty).await.map(drop) }
        })
    }

    fn end(self) -> Result<()> {
        Ok(self.port.stop(|_, fs| {
            let fs = fs.clone();
            async move { fs.unmount().await }
        })?)
    }
}
