//! The RAID volume: what 4 KiB random writes cost beyond the minimum work, which is one copy and
//! one checksum for each block, and the parity of each stripe with its checksum.
//!
//! The volume runs in place on one executor, with client and drives on the same core. The drives
//! are untimed and keep only out-of-band bytes (a discarding medium), so the benchmark measures
//! processor time. The client has 64 writes in flight; it first copies every block that it writes
//! into a page, as a server does. It writes every block of a gibibyte once, in a scrambled order,
//! then again in another order. So segments become free, and every zone is in use before anything
//! is measured.
//!
//! The content is either in a buffer for each write in flight, as in benchmark programs (fio), or
//! in more memory than the processor's caches hold. In the second case copying is most of the
//! minimum work, and it displaces data from the caches, which slows down everything else. Each case
//! is a benchmark of its own.

use crate::{Bench, Contestant, Effort, Row, compare, noise};
use anyhow::{Result, anyhow};
use crc_fast::CrcAlgorithm;
use furrow_emu::{Emulator, Medium, Options as DriveOptions};
use furrow_raid::{Config, Level, Options, Placement, Volume, create, parity};
use furrow_rt::{Config as RtConfig, Page, Pages, Pool, Rt};
use furrow_zone::{
    Action, BlockCount, Command, Error, Geometry, Lba, QueueId, Request, Target, ZonedDevice,
};
use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The benchmark in which the client writes from a buffer for each write in flight.
pub const VOLUME: Bench = Bench {
    name: "raid",
    about: "4 KiB random writes to a RAID-5 of 3 + 1 untimed drives, 64 in flight, each from a \
            buffer of its own, drives and client on one core, against copying, parity and \
            checksums alone",
    run: |effort| run(effort, &Content::buffers()),
};

/// The benchmark in which the client writes content that no cache holds.
pub const VOLUME_COLD: Bench = Bench {
    name: "raid-cold",
    about: "the same, of content that lies in memory and in no cache",
    run: |effort| run(effort, &Content::memory()),
};

const BLOCK: usize = 4096;
const DRIVES: u32 = 4;
/// Number of data chunks in a stripe.
const DATA: usize = 3;
/// Number of writes in flight.
const DEPTH: u32 = 64;
/// Number of blocks of the volume that are written to: a gibibyte.
const USED: u64 = 1 << 18;
/// Number of zones of a drive.
const ZONES: u32 = 64;
/// Number of blocks in a zone.
const ZONE: u64 = 8192;
/// Number of blocks with different content: more than the processor's caches hold.
const NOISE: usize = 16_384;
/// Number of blocks in a large write.
const LARGE: u64 = 16;
/// Number of blocks between two looks at the clock.
const BATCH: u64 = 240;

fn run(effort: Effort, content: &Content) -> Result<Vec<Row>> {
    let drives = Drives::new()?;
    let arrays = [("grouped appends", 256), ("zone writes", 1)]
        .into_iter()
        .map(|(name, group)| Ok((name, Array::new(group)?.prepare(content)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut contestants = vec![
        Contestant::new("write: copy, parity, checksums", |slice| least(content, slice, true)),
        Contestant::new("write: copy and checksum only", |slice| least(content, slice, false)),
        Contestant::new("write: drives alone, a chunk a command", |slice| {
            drives.write(content, slice)
        }),
    ];
    for (name, array) in &arrays {
        contestants.push(Contestant::new(format!("write: volume, {name}"), |slice| {
            array.write(content, 1, slice)
        }));
    }
    let (_, array) = &arrays[0];
    contestants.push(Contestant::new("write: volume, 64 KiB requests", |slice| {
        array.write(content, LARGE, slice)
    }));
    let rows = compare(effort, &mut contestants);
    drop(contestants);
    for (_, array) in arrays {
        array.end()?;
    }
    rows
}

/// The content of the client's writes.
#[derive(Clone)]
struct Content {
    bytes: Rc<[u8]>,
    /// Whether each write in flight has a buffer of its own, as long as a write. Otherwise
    /// successive writes use successive blocks of the whole content.
    buffers: bool,
}

impl Content {
    /// Content with one buffer for each write in flight.
    fn buffers() -> Content {
        let bytes = noise(DEPTH as usize * LARGE as usize * BLOCK, 3).into();
        Content { bytes, buffers: true }
    }

    /// Content that is larger than the caches.
    fn memory() -> Content {
        Content { bytes: noise(NOISE * BLOCK, 3).into(), buffers: false }
    }

    /// A page with block `index` of the content, for writes of `blocks` blocks.
    fn page(&self, pool: &Pool, index: u64, blocks: u64) -> Page {
        let count = if self.buffers { u64::from(DEPTH) * blocks } else { NOISE as u64 };
        let at = (index % count) as usize * BLOCK;
        let mut page = pool.take_dirty();
        page.make_mut().copy_from_slice(&self.bytes[at..at + BLOCK]);
        page
    }
}

/// Does the minimum work: copies and checksums each block, and, with `parity`, computes and
/// checksums each stripe's parity.
fn least(content: &Content, slice: Duration, parity: bool) -> Result<f64> {
    let placement = Placement::new(Level::Raid5, DRIVES)?;
    let pool = Pool::new(64);
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < slice {
        for stripe in (done..done + BATCH).step_by(DATA) {
            let data = [0, 1, 2].map(|at| content.page(&pool, stripe + at, 1));
            for page in &data {
                black_box(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, page.bytes()));
            }
            if parity {
                let mut parity = pool.take_dirty();
                let blocks = [0, 1, 2].map(|at: usize| &data[at].bytes()[..]);
                parity::encode(&placement, &blocks, &mut [&mut parity.make_mut()[..]]);
                black_box(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, parity.bytes()));
            }
            black_box(&data);
        }
        done += BATCH;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Maps `i` to one of `count` (a power of two) places. Each place comes once before any comes
/// again, in an order that differs from round to round.
fn shuffled(i: u64, count: u64) -> u64 {
    let (mask, round) = (count - 1, i / count);
    let mut x = (i ^ round.wrapping_mul(0x9e37)) & mask;
    for _ in 0..3 {
        // Each step can be reversed, so no two values give the same place.
        x ^= x >> (count.ilog2() / 2);
        x = x.wrapping_mul(0x2_c1b3) & mask;
    }
    x
}

fn geometry() -> Geometry {
    Geometry {
        oob_bytes: 64,
        max_open: Some(14),
        max_active: Some(14),
        ..Geometry::unlimited(ZONES, ZONE, ZONE)
    }
}

fn drive(rt: &Rt, index: u32) -> Result<Rc<Emulator>> {
    let options = DriveOptions { name: format!("drive{index}"), ..DriveOptions::fast() };
    let medium = Medium::discard(&geometry());
    Ok(Rc::new(Emulator::new(rt, geometry(), medium, options)?))
}

/// Drives without a volume, for the cost of their commands alone.
struct Drives {
    rt: Rt,
    drives: Vec<Rc<Emulator>>,
    pool: Pool,
    /// Zone and row of the next write.
    next: Cell<(u64, u64)>,
}

impl Drives {
    fn new() -> Result<Drives> {
        let rt = Rt::new(RtConfig::real());
        let drives = (0..DRIVES).map(|index| drive(&rt, index)).collect::<Result<_>>()?;
        Ok(Drives { rt, drives, pool: Pool::new(256), next: Cell::default() })
    }

    /// Takes the next `count` rows of the current zone. If that zone is full, resets the next one
    /// and takes its first rows. Returns the address of the first row.
    fn rows(&self, count: u64) -> Lba {
        let geometry = geometry();
        let (mut zone, mut row) = self.next.get();
        if row + count > geometry.zone_capacity.0 {
            (zone, row) = ((zone + 1) % u64::from(geometry.zones), 0);
            let lba = Lba(zone * geometry.zone_size.0);
            for action in [Action::Finish, Action::Reset] {
                let old = Lba(self.next.get().0 * geometry.zone_size.0);
                let at = if action == Action::Finish { old } else { lba };
                let command = Command::Manage { target: Target::Zone(at), action };
                for drive in &self.drives {
                    self.rt.block_on(drive.submit(QueueId(0), Request::bare(command)));
                }
            }
        }
        self.next.set((zone, row + count));
        Lba(zone * geometry.zone_size.0 + row)
    }

    /// Blocks of data per second, if each stripe of three data blocks takes four commands.
    fn write(&self, content: &Content, slice: Duration) -> Result<f64> {
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < slice {
            let stripes = BATCH / DATA as u64;
            let base = self.rows(stripes);
            let mut flying = Vec::with_capacity((stripes * u64::from(DRIVES)) as usize);
            for stripe in 0..stripes {
                let lba = Lba(base.0 + stripe);
                for (drive, at) in self.drives.iter().zip(0..) {
                    let index = done + 3 * stripe + at;
                    let data = Pages::from_iter([content.page(&self.pool, index, 1)]);
                    let command = Command::Write { lba, blocks: BlockCount(1) };
                    let oob = vec![1; usize::from(geometry().oob_bytes)];
                    let request = Request { oob, ..Request::with_data(command, data) };
                    flying.push(drive.submit(QueueId(0), request));
                }
            }
            let answers = self.rt.block_on(async move {
                for answer in flying {
                    let status = answer.await.status;
                    if !status.is_ok() {
                        return Err(anyhow!("the drive refused a write: {status:?}"));
                    }
                }
                Ok(())
            });
            answers?;
            done += BATCH;
        }
        Ok(done as f64 / start.elapsed().as_secs_f64())
    }
}

/// A volume and the client's pages.
struct Array {
    rt: Rt,
    volume: Volume,
    pool: Pool,
    /// Number of blocks begun by all clients together; it selects the content of the next block.
    next: Rc<Cell<u64>>,
}

impl Array {
    fn new(group: u32) -> Result<Array> {
        let rt = Rt::new(RtConfig::real());
        let drives: Vec<_> = (0..DRIVES).map(|i| drive(&rt, i)).collect::<Result<_>>()?;
        let drives: Vec<Rc<dyn ZonedDevice>> =
            drives.into_iter().map(|drive| drive as Rc<dyn ZonedDevice>).collect();
        // The medium keeps no data, so cleaning could not move blocks. Segments that become free by
        // themselves must be enough.
        let options = Options { clean: false, ..Options::default() };
        let config = Config { group, large: 0, ..Config::new(Level::Raid5, &geometry()) };
        let engine = rt.clone();
        let made = async move { create(&engine, drives, &config, &options, false).await };
        let volume = rt.block_on(made)?;
        Ok(Array { rt, volume, pool: Pool::new(512), next: Rc::default() })
    }

    /// Writes random blocks until every zone has been written.
    fn prepare(self, content: &Content) -> Result<Array> {
        while self.next.get() < u64::from(ZONES) * ZONE * DATA as u64 {
            self.write(content, 1, Duration::from_millis(100))?;
        }
        Ok(self)
    }

    /// Random writes of `blocks` blocks each, [`DEPTH`] in flight. Returns blocks per second.
    fn write(&self, content: &Content, blocks: u64, slice: Duration) -> Result<f64> {
        let start = Instant::now();
        let end = start + slice;
        let clients: Vec<_> = (0..DEPTH)
            .map(|_| {
                let (volume, pool) = (self.volume.clone(), self.pool.clone());
                let (next, content) = (self.next.clone(), content.clone());
                self.rt.spawn(async move {
                    let mut done = 0;
                    while Instant::now() < end {
                        for _ in 0..16 {
                            let first = next.replace(next.get() + blocks);
                            let at = shuffled(first / blocks, USED / blocks) * blocks;
                            let data = (0..blocks).map(|i| content.page(&pool, first + i, blocks));
                            volume.write(at, data.collect(), false).await?;
                            done += blocks;
                        }
                    }
                    Ok::<u64, Error>(done)
                })
            })
            .collect();
        let done = self.rt.block_on(async move {
            let mut done = 0;
            for client in clients {
                done += client.await?;
            }
            Ok::<u64, Error>(done)
        })?;
        Ok(done as f64 / start.elapsed().as_secs_f64())
    }

    fn end(self) -> Result<()> {
        let volume = self.volume.clone();
        let ended = self.rt.block_on(async move { volume.stop().await });
        drop(self.volume);
        self.rt.clear();
        Ok(ended?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_comes_once_a_round() {
        let mut orders = Vec::new();
        for round in 0..3 {
            let order: Vec<u64> =
                (0..1 << 14).map(|i| shuffled((round << 14) + i, 1 << 14)).collect();
            let mut places = order.clone();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..1 << 14), "round {round}");
            let near = order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 16).count();
            assert!(near < 100, "round {round}: {near} neighbours follow each other");
            orders.push(order);
        }
        assert!(orders[0] != orders[1] && orders[1] != orders[2]);
    }
}
