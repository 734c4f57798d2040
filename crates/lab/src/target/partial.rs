//! A model of an array that logs partial parity: what ZapRAID calls its simplified RAIZN.
//!
//! Each open segment has one zone on each drive, like the volume's segments. The blocks of a
//! request go to the drives at once, each to its place in the stripe (Zone Write). If the request
//! fills the stripe, the stripe's parity is written too. Otherwise the parity of the blocks so far
//! is written to a log, a zone on the drive that will get the parity. The request is answered when
//! both blocks and parity are on the drives. No request waits for a stripe to fill. But a segment
//! has only one request in flight, as published: the parity of the next request needs the blocks of
//! this one.
//!
//! This is a model because the volume's format has no partial stripes, and would have to be changed
//! for a baseline. The model shares zones, writer, placement and routing by size with the volume.
//! Its omissions favour it: it has no headers, footers, map or records of the log, and logs are
//! never emptied.

use super::Target;
use crate::array::Array;
use crate::inside::Array as Inside;
use crate::workload::{Op, Workload};
use anyhow::{Result, anyhow, ensure};
use furrow_log::address::blocks_per_zone;
use furrow_log::writer::{Kind, Order, WriteHandle, Writer, WriterOptions, ZoneWrite};
use furrow_raid::{Level, Placement};
use furrow_rt::{PAGE_SIZE, Page, Pages, Rt, Semaphore};
use furrow_zone::{ZoneId, ZonedDevice};
use std::cell::Cell;
use std::rc::Rc;

/// A drive, and its zone for logged parity.
struct Drive {
    writer: Writer,
    /// Held during a write to the log.
    turn: Semaphore,
    log: Cell<Option<ZoneId>>,
    /// The next empty zone.
    next: Cell<u32>,
    zones: u32,
}

impl Drive {
    /// Opens an empty zone.
    fn open(&self) -> Result<ZoneId> {
        let zone = ZoneId(self.next.replace(self.next.get() + 1));
        ensure!(zone.0 < self.zones, "the drives are full: write less");
        self.writer.open_empty(zone);
        Ok(zone)
    }
}

/// An open segment.
struct Segment {
    large: bool,
    /// Number of blocks in a chunk.
    chunk: u32,
    /// Held by the request in flight.
    turn: Semaphore,
    zones: Vec<Cell<ZoneId>>,
    stripe: Cell<u32>,
    /// Number of blocks of the stripe that are written.
    filled: Cell<u32>,
    written: Cell<u64>,
}

/// An array that logs partial parity, as a target.
pub struct Partial {
    rt: Rt,
    placement: Placement,
    drives: Vec<Drive>,
    segments: Vec<Segment>,
    /// Number of blocks in a zone.
    capacity: u32,
    /// Minimum number of blocks of a request that counts as large.
    large: u32,
    span: u64,
    /// Whether parity waits for the data.
    after: bool,
    page: Page,
    written: Cell<u64>,
    stripes: Cell<u64>,
    waited: Cell<u64>,
    pieces: Cell<u64>,
}

impl Partial {
    /// The array described by `array`, on `devices`.
    ///
    /// # Errors
    /// If no such array is possible.
    pub fn new(
        rt: &Rt,
        devices: Vec<Rc<dyn ZonedDevice>>,
        array: &Array,
        workload: &Workload,
    ) -> Result<Partial> {
        ensure!(workload.span.0 > 0, "how much of the volume is written? `span` is not set");
        let placement = Placement::new(Level::Raid5, devices.len() as u32)?;
        let capacity = devices.first().map_or(0, |device| blocks_per_zone(device.geometry()));
        let drive = |device: Rc<dyn ZonedDevice>| Drive {
            zones: device.geometry().zones,
            writer: Writer::with_options(
                rt,
                device,
                WriterOptions { order: Order::Blocking, queues: 4, ..WriterOptions::default() },
            ),
            turn: Semaphore::new(1),
            log: Cell::new(None),
            next: Cell::new(0),
        };
        let drives: Vec<Drive> = devices.into_iter().map(drive).collect();
        let (small, large) = array.open().map_err(|what| anyhow!(what))?;
        let mut segments = Vec::new();
        for number in 0..small + large {
            let is_large = number >= small;
            let chunk = if is_large { array.large } else { array.small };
            let zones = drives.iter().map(|drive| Ok(Cell::new(drive.open()?)));
            segments.push(Segment {
                large: is_large,
                chunk: (chunk.0 / PAGE_SIZE as u64) as u32,
                turn: Semaphore::new(1),
                zones: zones.collect::<Result<_>>()?,
                stripe: Cell::new(0),
                filled: Cell::new(0),
                written: Cell::new(0),
            });
        }
        Ok(Partial {
            rt: rt.clone(),
            placement,
            drives,
            segments,
            capacity,
            large: (array.large.0 / PAGE_SIZE as u64) as u32,
            span: workload.span.0,
            after: array.after,
            page: Page::zeroed(),
            written: Cell::new(0),
            stripes: Cell::new(0),
            waited: Cell::new(0),
            pieces: Cell::new(0),
        })
    }

    /// Chooses the segment for the `left` blocks of a request: the one with the fewest waiting
    /// requests. If several have the fewest, prefers an idle one, and then the one that has
    /// written least.
    fn route(&self, left: u32) -> &Segment {
        let wants = left >= self.large;
        let fits = |segment: &&Segment| segment.large == wants;
        let any = self.segments.iter().any(|segment| fits(&segment));
        let of = self.segments.iter().filter(|segment| !any || fits(segment));
        let busy = |segment: &Segment| segment.turn.available() == 0;
        let best = of.min_by_key(|s| (s.turn.waiting(), busy(s), s.written.get()));
        best.expect("invariant: an array has an open segment")
    }

    fn pages(&self, blocks: u32) -> Pages {
        (0..blocks).map(|_| self.page.clone()).collect()
    }

    /// Writes up to `left` blocks, but not beyond the end of the segment's stripe. Returns the
    /// number of blocks.
    async fn piece(&self, left: u32) -> Result<u32> {
        let began = self.rt.now();
        let segment = self.route(left);
        let _turn = segment.turn.acquire(1).await;
        self.waited.set(self.waited.get() + self.rt.now().since(began));
        self.pieces.set(self.pieces.get() + 1);
        let (k, chunk) = (self.placement.k, segment.chunk);
        if (segment.stripe.get() + 1) * chunk > self.capacity {
            for (zone, drive) in segment.zones.iter().zip(&self.drives) {
                if drive.writer.is_open(zone.get()) {
                    drive.writer.finish(zone.get()).await?;
                }
                zone.set(drive.open()?);
            }
            segment.stripe.set(0);
        }
        let (stripe, filled) = (segment.stripe.get(), segment.filled.get());
        let end = (filled + left).min(k * chunk);
        let mut flights: Vec<WriteHandle> = Vec::new();
        let mut at = filled;
        while at < end {
            let upto = end.min((at / chunk + 1) * chunk);
            let data = self.pages(upto - at);
            flights.push(self.write(segment, self.placement.drive(stripe, at / chunk), data));
            at = upto;
        }
        if self.after {
            for flight in flights.drain(..) {
                flight.await?;
            }
        }
        let parity = self.placement.drive(stripe, k);
        let whole = end == k * chunk;
        if whole {
            flights.push(self.write(segment, parity, self.pages(chunk)));
            segment.stripe.set(stripe + 1);
            segment.filled.set(0);
            self.stripes.set(self.stripes.get() + 1);
        } else {
            segment.filled.set(end);
            // The number of changed parity rows: all rows, if more than one chunk changed.
            let one = (end - 1) / chunk == filled / chunk;
            self.log(parity, if one { end - filled } else { chunk }).await?;
        }
        for flight in flights {
            flight.await?;
        }
        segment.written.set(segment.written.get() + u64::from(end - filled));
        Ok(end - filled)
    }

    fn write(&self, segment: &Segment, drive: u32, pages: Pages) -> WriteHandle {
        let zone = segment.zones[drive as usize].get();
        let writer = &self.drives[drive as usize].writer;
        writer.submit(ZoneWrite::pages(zone, Kind::Data, pages))
    }

    /// Writes `rows` rows of parity to the log of a drive.
    async fn log(&self, drive: u32, rows: u32) -> Result<()> {
        let drive = &self.drives[drive as usize];
        let _turn = drive.turn.acquire(1).await;
        let zone = match drive.log.get() {
            Some(zone) if drive.writer.space_left(zone) >= rows => zone,
            full => {
                if let Some(full) = full.filter(|full| drive.writer.is_open(*full)) {
                    drive.writer.finish(full).await?;
                }
                let zone = drive.open()?;
                drive.log.set(Some(zone));
                zone
            }
        };
        drive.writer.submit(ZoneWrite::pages(zone, Kind::Sync, self.pages(rows))).await?;
        Ok(())
    }
}

impl Target for Partial {
    fn space(&self, _thread: u32) -> (u64, bool) {
        (self.span, true)
    }

    async fn perform(&self, _thread: u32, op: Op) -> Result<u64> {
        let mut left = (op.bytes / PAGE_SIZE as u64) as u32;
        while left > 0 {
            left -= self.piece(left).await?;
        }
        self.written.set(self.written.get() + op.bytes);
        Ok(op.bytes)
    }

    fn array(&self) -> Option<Inside> {
        Some(Inside {
            written: self.written.get(),
            ever: self.written.get(),
            stripes: self.stripes.get(),
            wait_ns: self.waited.get() as f64 / self.pieces.get().max(1) as f64,
            ..Inside::default()
        })
    }
}
