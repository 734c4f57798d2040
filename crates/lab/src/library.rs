//! The library: what the file system costs beyond the drive, and beyond the least work on every
//! block: one copy and one checksum.
//!
//! The library runs in place on one executor, with no thread in between. The drive is in memory and
//! untimed, so the benchmark measures processor time. Writes include getting the blocks to the
//! drive: each turn ends with an fsync.

use crate::{Contestant, Effort, Row, compare, noise};
use anyhow::{Result, anyhow};
use furrow_emu::Emulator;
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, WriteData};
use furrow_rt::{Config, Pages, Pool, Rt};
use furrow_zone::{
    Access, Action, BlockCount, Command, Error, Lba, QueueId, Request, Status, Target, ZonedDevice,
};
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const DEVICE: &str = "mem:capacity=2GiB,zone-size=16MiB";
/// Number of blocks of the file written: 32 MiB, half the amount at which write-back begins. With a
/// larger file, the benchmark would measure the first use of the drive's memory.
const FILE_BLOCKS: u64 = 8_192;
/// Number of blocks of different content to write: more than the processor caches hold.
const NOISE_BLOCKS: usize = 16_384;
/// Number of operations between two looks at the clock.
const BATCH: u64 = 256;
/// Number of blocks of a large command to the drive alone: the size to which an engine merges
/// its writes.
const LARGE: u64 = 32;

/// Runs the benchmark.
pub fn run(effort: Effort) -> Result<Vec<Row>> {
    let bytes: Rc<[u8]> = noise(NOISE_BLOCKS * BLOCK, 7).into();
    let fs = Library::new()?;
    let drive = Drive::new()?;
    let pool = Pool::new(1024);
    let rows = compare(
        effort,
        &mut [
            Contestant::new("write: copy and checksum only", |slice| {
                Ok(copy(&pool, &bytes, slice))
            }),
            Contestant::new("write: drive alone, 4 KiB commands", |slice| {
                drive.write(&bytes, 1, slice)
            }),
            Contestant::new("write: drive alone, 128 KiB commands", |slice| {
                drive.write(&bytes, LARGE, slice)
            }),
            Contestant::new("write: library", |slice| fs.write(&bytes, slice)),
        ],
    );
    drive.end();
    fs.end()?;
    rows
}

fn block(bytes: &[u8], index: u64) -> &[u8] {
    let at = (index as usize % (bytes.len() / BLOCK)) * BLOCK;
    &bytes[at..at + BLOCK]
}

/// Does the least work of a write: copies each block into a page once and checksums it.
fn copy(pool: &Pool, bytes: &[u8], slice: Duration) -> f64 {
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < slice {
        for index in done..done + BATCH {
            black_box(WriteData::copy(pool, index * BLOCK as u64, block(bytes, index)));
        }
        done += BATCH;
    }
    done as f64 / start.elapsed().as_secs_f64()
}

/// A file system on a drive in memory, with one file.
struct Library {
    rt: Rt,
    fs: Fs,
    file: Ino,
}

impl Library {
    fn new() -> Result<Library> {
        let rt = Rt::new(Config::real());
        let device = furrow_emu::open(&rt, &DEVICE.parse()?, Access::ReadWrite)?;
        let engine = rt.clone();
        let (fs, file) = rt.block_on(async move {
            Fs::format(&engine, device.clone(), &MkfsOptions::default()).await?;
            let fs = Fs::mount(&engine, device, MountOptions::default()).await?;
            let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
            Ok::<_, Error>((fs, file))
        })?;
        Ok(Library { rt, fs, file })
    }

    /// Rewrites the file from its start, over and over; the content is durable at the end.
    fn write(&self, bytes: &Rc<[u8]>, slice: Duration) -> Result<f64> {
        let (fs, file, bytes) = (self.fs.clone(), self.file, bytes.clone());
        Ok(self.rt.block_on(async move {
            let start = Instant::now();
            let mut done = 0;
            while start.elapsed() < slice {
                for index in done..done + BATCH {
                    let offset = index % FILE_BLOCKS * BLOCK as u64;
                    let data = WriteData::copy(fs.pool(), offset, block(&bytes, index));
                    fs.write(file, data).await?;
                }
                done += BATCH;
            }
            fs.fsync(file, false).await?;
            Ok::<f64, Error>(done as f64 / start.elapsed().as_secs_f64())
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

/// The drive alone, without a file system: many commands in flight, over and over in zone 0.
pub(crate) struct Drive {
    rt: Rt,
    device: Rc<Emulator>,
    pool: Pool,
}

/// Zone 0 of the drive, written from its start.
#[derive(Clone)]
struct Zone {
    device: Rc<Emulator>,
    pool: Pool,
    bytes: Rc<[u8]>,
    /// Number of blocks in the zone.
    capacity: u64,
}

impl Zone {
    /// Writes `blocks` blocks at each of `places`, all in flight at once, and waits for them. The
    /// payload of these writes begins at its block `from`.
    async fn write(
        &self,
        places: impl Iterator<Item = u64>,
        blocks: u64,
        from: u64,
    ) -> Result<(), String> {
        let mut content = from;
        let flying: Vec<_> = places
            .map(|first| {
                let data: Pages = (content..content + blocks)
                    .map(|index| {
                        let mut page = self.pool.take_dirty();
                        page.make_mut().copy_from_slice(block(&self.bytes, index));
                        page
                    })
                    .collect();
                content += blocks;
                let write = Command::Write { lba: Lba(first), blocks: BlockCount(blocks) };
                self.device.submit(QueueId(0), Request::with_data(write, data))
            })
            .collect();
        for answer in flying {
            expect(answer.await.status)?;
        }
        Ok(())
    }
}

impl Drive {
    pub(crate) fn new() -> Result<Drive> {
        let rt = Rt::new(Config::real());
        let device = furrow_emu::open(&rt, &DEVICE.parse()?, Access::ReadWrite)?;
        Ok(Drive { rt, device, pool: Pool::new(1024) })
    }

    /// Writes zone 0 with commands of `blocks`, resetting it when full. Returns blocks per second.
    fn write(&self, bytes: &Rc<[u8]>, blocks: u64, slice: Duration) -> Result<f64> {
        self.rounds(bytes, slice, move |zone, done| async move {
            for at in (0..zone.capacity + 1 - LARGE).step_by(LARGE as usize) {
                let first = (at..at + LARGE).step_by(blocks as usize);
                zone.write(first, blocks, done + at).await?;
            }
            Ok(zone.capacity / LARGE * LARGE)
        })
    }

    /// Writes two blocks to zone 0 and flushes, over and over. Returns flushes per second.
    pub(crate) fn write_and_flush(&self, bytes: &Rc<[u8]>, slice: Duration) -> Result<f64> {
        self.rounds(bytes, slice, |zone, _| async move {
            for at in (0..zone.capacity - 1).step_by(2) {
                zone.write(at..at + 2, 1, at).await?;
                let flush = zone.device.submit(QueueId(0), Request::bare(Command::Flush));
                expect(flush.await.status)?;
            }
            Ok(zone.capacity / 2)
        })
    }

    /// Resets zone 0 and lets `fill` write to it, repeatedly for `slice`. `fill` gets the amount of
    /// work done so far and returns its own amount; the result is the total per second.
    fn rounds<F: Future<Output = Result<u64, String>>>(
        &self,
        bytes: &Rc<[u8]>,
        slice: Duration,
        fill: impl Fn(Zone, u64) -> F + 'static,
    ) -> Result<f64> {
        let zone = Zone {
            device: self.device.clone(),
            pool: self.pool.clone(),
            bytes: bytes.clone(),
            capacity: self.device.geometry().zone_capacity.0,
        };
        let rate = self.rt.block_on(async move {
            let start = Instant::now();
            let mut done = 0;
            while start.elapsed() < slice {
                let reset = Command::Manage { target: Target::Zone(Lba(0)), action: Action::Reset };
                let reset = zone.device.submit(QueueId(0), Request::bare(reset));
                expect(reset.await.status)?;
                done += fill(zone.clone(), done).await?;
            }
            Ok::<f64, String>(done as f64 / start.elapsed().as_secs_f64())
        });
        rate.map_err(|why| anyhow!(why))
    }

    pub(crate) fn end(self) {
        drop(self.device);
        self.rt.clear();
    }
}

fn expect(status: Status) -> Result<(), String> {
    if status.is_ok() { Ok(()) } else { Err(format!("the drive refused: {status}")) }
}
