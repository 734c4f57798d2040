//! The blocks of a volume on an array as a target.
//!
//! The engine runs on the executor of the clients, so its work takes no time except that of the
//! drives. All data are zeros: the emulated drives store zeros in no space, and their parity is
//! zeros too. In virtual time, content makes no difference. Out-of-band metadata are real.
//!
//! Not here: the making of drives, and events that take a volume out of service (`scenario`).

use super::Target;
use crate::array::Array;
use crate::inside::Array as Inside;
use crate::workload::{Kind, Op, Workload};
use anyhow::{Context as _, Result, ensure};
use furrow_raid::table::StripeTable;
use furrow_raid::{Counters, Volume};
use furrow_rt::{PAGE_SIZE, Page, Pages, Rng, Rt};
use std::rc::Rc;

/// Number of outstanding requests while the volume is filled.
const FILLERS: u64 = 64;

/// Number of requests to a degraded volume that are tried, to find some that need reconstruction.
const PROBES: u64 = 4_096;

/// The blocks of a volume as a target of operations.
pub struct Blocks {
    volume: Volume,
    page: Page,
    /// Number of bytes that clients use.
    span: u64,
    /// If not empty: the offsets of the requests that clients use.
    places: Vec<u64>,
    size: u64,
    before: Counters,
    /// The executor in which a degraded read waits for its search, and the nanoseconds of
    /// that search.
    search: Option<(Rt, u64)>,
}

impl Blocks {
    /// Uses the first `span` bytes of `volume`; the whole volume if `span` is 0.
    ///
    /// # Errors
    /// If the volume is smaller.
    pub fn new(volume: Volume, workload: &Workload) -> Result<Blocks> {
        let whole = volume.blocks() * PAGE_SIZE as u64;
        let span = if workload.span.0 == 0 { whole } else { workload.span.0 };
        ensure!(span <= whole, "a span of {span} bytes, the volume has {whole}");
        let (before, page) = (volume.counters(), Page::zeroed());
        let (places, search) = (Vec::new(), None);
        Ok(Blocks { volume, page, span, places, size: workload.size.0, before, search })
    }

    /// Makes a degraded read take additional time for the search that `array` describes: over the
    /// entries of a group, or of the whole segment, for each chunk that is read instead of the
    /// lost one.
    pub fn search(&mut self, rt: &Rt, array: &Array) {
        let (shape, config) = (self.volume.shape(), self.volume.config());
        let stripes = shape.stripes(config.chunk_small);
        let group = if config.group == 0 { stripes } else { config.group.min(stripes) };
        let entries = u64::from(group) * u64::from(shape.placement.k);
        let takes = entries * array.search_time.0 / 1_000;
        self.search = (takes > 0).then(|| (rt.clone(), takes));
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Number of bytes that clients use.
    pub fn span(&self) -> u64 {
        self.span
    }

    /// The content of writes.
    pub(super) fn page(&self) -> &Page {
        &self.page
    }

    /// Restarts the counters.
    pub(super) fn begin(&mut self) {
        self.before = self.volume.counters();
    }

    /// Writes the whole span of the clients, in requests of their size, in the order of offsets.
    ///
    /// # Errors
    /// Errors of the volume.
    pub async fn fill(&mut self, rt: &Rt) -> Result<()> {
        let count = self.span / self.size;
        let next = Rc::new(std::cell::Cell::new(0));
        let mut fillers = Vec::new();
        for _ in 0..FILLERS.min(count) {
            let (volume, next, size, page) =
                (self.volume.clone(), next.clone(), self.size, self.page.clone());
            fillers.push(rt.spawn(async move {
                while next.get() < count {
                    let at = next.replace(next.get() + 1) * size;
                    write(&volume, at, size, &page).await?;
                }
                anyhow::Ok(())
            }));
        }
        for filler in fillers {
            filler.await.context("filling the volume")?;
        }
        self.volume.flush().await?;
        self.begin();
        Ok(())
    }

    /// Takes a drive out of service, and finds requests for blocks that were on it.
    ///
    /// # Errors
    /// Errors of the volume; or if no block that clients use was on the drive.
    pub async fn degrade(&mut self, seed: u64) -> Result<()> {
        self.volume.fail(0).await?;
        let (mut rng, slots) = (Rng::new(seed), self.span / self.size);
        for _ in 0..PROBES.min(4 * slots) {
            let at = rng.below(slots) * self.size;
            let before = self.volume.counters().reconstructed;
            read(&self.volume, at, self.size).await?;
            if self.volume.counters().reconstructed > before {
                self.places.push(at);
            }
        }
        ensure!(!self.places.is_empty(), "nothing that clients use is on the drive that failed");
        Ok(())
    }
}

pub(super) async fn write(volume: &Volume, at: u64, bytes: u64, page: &Page) -> Result<()> {
    let pages: Pages = (0..bytes / PAGE_SIZE as u64).map(|_| page.clone()).collect();
    Ok(volume.write(at / PAGE_SIZE as u64, pages, false).await?)
}

async fn read(volume: &Volume, at: u64, bytes: u64) -> Result<()> {
    let pages = volume.read(at / PAGE_SIZE as u64, (bytes / PAGE_SIZE as u64) as u32).await?;
    ensure!(pages.len() as u64 == bytes / PAGE_SIZE as u64, "a read of {bytes} bytes at {at}");
    Ok(())
}

impl Target for Blocks {
    fn space(&self, _thread: u32) -> (u64, bool) {
        if self.places.is_empty() {
            (self.span, true)
        } else {
            (self.places.len() as u64 * self.size, true)
        }
    }

    async fn perform(&self, _thread: u32, op: Op) -> Result<u64> {
        let degraded = !self.places.is_empty();
        let at = match degraded {
            false => op.at,
            true => self.places[(op.at / self.size) as usize],
        };
        match op.kind {
            Kind::Read => {
                if let Some((rt, search)) = self.search.as_ref().filter(|_| degraded) {
                    rt.sleep(*search).await;
                }
                read(&self.volume, at, op.bytes).await?;
            }
            Kind::Write | Kind::Append => write(&self.volume, at, op.bytes, &self.page).await?,
        }
        if op.sync {
            self.volume.flush().await?;
        }
        Ok(op.bytes)
    }

    fn array(&self) -> Option<Inside> {
        let now = self.volume.counters();
        let (shape, config) = (self.volume.shape(), self.volume.config());
        let (map, tables) = self.volume.memory();
        let bytes = |now: u64, before: u64| (now - before) * PAGE_SIZE as u64;
        let stripes = shape.stripes(config.chunk_small);
        let each = StripeTable::new(stripes, shape.placement.n, config.group).bytes();
        let blocks = (now.written - self.before.written).max(1);
        Some(Inside {
            written: bytes(now.written, self.before.written),
            ever: bytes(now.written, 0),
            moved: bytes(now.moved, self.before.moved),
            padded: bytes(now.padded, self.before.padded),
            listed: bytes(now.windows, self.before.windows),
            stripes: now.stripes - self.before.stripes,
            checkpoints: now.checkpoints - self.before.checkpoints,
            reconstructed: now.reconstructed - self.before.reconstructed,
            wait_ns: (now.waited - self.before.waited) as f64 / blocks as f64,
            tables: tables as u64,
            map: map as u64,
            tables_most: u64::from(shape.slots) * each as u64,
        })
    }
}
