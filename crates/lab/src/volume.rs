//! The RAID volume: what 4 KiB random writes cost above the least that must be done with each.
//!
//! In place on one executor, client and drives on the same core. The drives are untimed and keep
//! nothing but what lies beside blocks (a discarding medium), so all of this is processor time.
//! The client has 64 writes in flight; every block it writes it copies into a page first, as a
//! server does. It writes every block of a gibibyte once, in an order of no order, then again in
//! another: so segments become free, and every zone is in use before anything is measured.

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

/// The benchmark.
pub const VOLUME: Bench = Bench {
    name: "raid",
    about: "4 KiB random writes to a RAID-5 of 3 + 1 untimed drives, 64 in flight, drives and \
            client on one core, against copying, parity and checksums alone",
    run,
};

const BLOCK: usize = 4096;
const DRIVES: u32 = 4;
/// Data chunks of a stripe.
const DATA: usize = 3;
/// Writes in flight.
const DEPTH: u32 = 64;
/// Blocks of the volume that are written to: a gibibyte.
const USED: u64 = 1 << 18;
/// Zones of a drive.
const ZONES: u32 = 64;
/// Blocks of a zone.
const ZONE: u64 = 8192;
/// Blocks of different content: more than the processor's caches hold.
const NOISE: usize = 16_384;
/// Blocks between looks at the clock.
const BATCH: u64 = 240;

fn run(effort: Effort) -> Result<Vec<Row>> {
    let bytes: Rc<[u8]> = noise(NOISE * BLOCK, 3).into();
    let drives = Drives::new()?;
    let arrays = [("grouped appends", 256), ("zone writes", 1)]
        .into_iter()
        .map(|(name, group)| Ok((name, Array::new(group)?.prepare(&bytes)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut contestants = vec![
        Contestant::new("write: copy, parity, checksums", |slice| least(&bytes, slice, true)),
        Contestant::new("write: copy and checksum only", |slice| least(&bytes, slice, false)),
        Contestant::new("write: drives alone, a chunk a command", |slice| {
            drives.write(&bytes, slice)
        }),
    ];
    for (name, array) in &arrays {
        contestants.push(Contestant::new(format!("write: volume, {name}"), |slice| {
            array.write(&bytes, 1, slice)
        }));
    }
    let (_, array) = &arrays[0];
    contestants.push(Contestant::new("write: volume, 64 KiB requests", |slice| {
        array.write(&bytes, 16, slice)
    }));
    let rows = compare(effort, "4 KiB block", &mut contestants);
    drop(contestants);
    for (_, array) in arrays {
        array.end()?;
    }
    rows
}

fn block(bytes: &[u8], index: u64) -> &[u8] {
    let at = (index as usize % NOISE) * BLOCK;
    &bytes[at..at + BLOCK]
}

fn page(pool: &Pool, bytes: &[u8], index: u64) -> Page {
    let mut page = pool.take_dirty();
    page.make_mut().copy_from_slice(block(bytes, index));
    page
}

/// The least: each block copied and checksummed, and, with `parity`, each stripe's parity made and
/// checksummed.
fn least(bytes: &[u8], slice: Duration, parity: bool) -> Result<f64> {
    let placement = Placement::new(Level::Raid5, DRIVES)?;
    let pool = Pool::new(64);
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < slice {
        for stripe in (done..done + BATCH).step_by(DATA) {
            let data = [0, 1, 2].map(|at| page(&pool, bytes, stripe + at));
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

/// The `i`th of `count` (a power of two) places, each once before any comes again, in an order that
/// differs from round to round.
fn shuffled(i: u64, count: u64) -> u64 {
    let (mask, round) = (count - 1, i / count);
    let mut x = (i ^ round.wrapping_mul(0x9e37)) & mask;
    for _ in 0..3 {
        // Each step can be undone, so no two come to the same place.
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

/// Drives without a volume: what their commands alone take.
struct Drives {
    rt: Rt,
    drives: Vec<Rc<Emulator>>,
    pool: Pool,
    /// Zone and row that are written next.
    next: Cell<(u64, u64)>,
}

impl Drives {
    fn new() -> Result<Drives> {
        let rt = Rt::new(RtConfig::real());
        let drives = (0..DRIVES).map(|index| drive(&rt, index)).collect::<Result<_>>()?;
        Ok(Drives { rt, drives, pool: Pool::new(256), next: Cell::default() })
    }

    /// The next row of the zone that is written, in a zone that was reset if that one is full.
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

    /// Blocks of data a second, where each stripe of three is four commands.
    fn write(&self, bytes: &Rc<[u8]>, slice: Duration) -> Result<f64> {
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < slice {
            let stripes = BATCH / DATA as u64;
            let base = self.rows(stripes);
            let mut flying = Vec::with_capacity((stripes * u64::from(DRIVES)) as usize);
            for stripe in 0..stripes {
                let lba = Lba(base.0 + stripe);
                for (drive, at) in self.drives.iter().zip(0..) {
                    let data = Pages::from_iter([page(&self.pool, bytes, done + 3 * stripe + at)]);
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
    /// Blocks begun: everybody copies the content in its order.
    next: Rc<Cell<u64>>,
}

impl Array {
    fn new(group: u32) -> Result<Array> {
        let rt = Rt::new(RtConfig::real());
        let drives: Vec<_> = (0..DRIVES).map(|i| drive(&rt, i)).collect::<Result<_>>()?;
        let drives: Vec<Rc<dyn ZonedDevice>> =
            drives.into_iter().map(|drive| drive as Rc<dyn ZonedDevice>).collect();
        // What was written cannot be read again: so nothing is cleaned, and segments of which
        // nothing counts are enough.
        let options = Options { clean: false, ..Options::default() };
        let config = Config { group, large: 0, ..Config::new(Level::Raid5, &geometry()) };
        let engine = rt.clone();
        let made = async move { create(&engine, drives, &config, &options, false).await };
        let volume = rt.block_on(made)?;
        Ok(Array { rt, volume, pool: Pool::new(512), next: Rc::default() })
    }

    /// Writes until every zone has been written.
    fn prepare(self, bytes: &Rc<[u8]>) -> Result<Array> {
        while self.next.get() < u64::from(ZONES) * ZONE * DATA as u64 {
            self.write(bytes, 1, Duration::from_millis(100))?;
        }
        Ok(self)
    }

    /// Random writes of `blocks` each, [`DEPTH`] in flight: blocks a second.
    fn write(&self, bytes: &Rc<[u8]>, blocks: u64, slice: Duration) -> Result<f64> {
        let start = Instant::now();
        let end = start + slice;
        let clients: Vec<_> = (0..DEPTH)
            .map(|_| {
                let (volume, pool, bytes) = (self.volume.clone(), self.pool.clone(), bytes.clone());
                let next = self.next.clone();
                self.rt.spawn(async move {
                    let mut done = 0;
                    while Instant::now() < end {
                        for _ in 0..16 {
                            let content = next.replace(next.get() + blocks);
                            let at = shuffled(content / blocks, USED / blocks) * blocks;
                            let data = (0..blocks).map(|i| page(&pool, &bytes, content + i));
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
