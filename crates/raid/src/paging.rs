//! The map's memory: which mapping blocks are in it, and how others are loaded and evicted.
//!
//! With a bound, half of the memory is for mapping blocks and half for the copies that a checkpoint
//! makes of changed ones. Users' requests change map entries when their stripes are durable; until
//! then they pin a part of the mapping blocks. Internal work may pin a smaller part. The remaining
//! mapping blocks can always be evicted, so cleaning never waits for users, and can help requests
//! that wait for space. A changed mapping block is written before it is evicted, together with a
//! stripe's worth of other changed ones.
//!
//! Invariant: a mapping block is pinned while it is being written, and a checkpoint's snapshot
//! waits for such writes. So the mapping blocks that the checkpoint names hold every change from
//! before the snapshot.

pub(crate) mod state;

use crate::format::{MAPPED, block};
use crate::map::{Map, Victim};
use crate::paging::state::{Pinner, Pins};
use crate::read::place::Loud;
use crate::volume::Volume;
use furrow_rt::{Page, Pages, Permit};
use furrow_zone::{ErrorKind, Result};
use std::ops::Range;

/// The mapping blocks that map `count` blocks of the volume from `lba` on.
fn leaves(lba: u64, count: u64) -> Range<u32> {
    Map::leaf(lba)..Map::leaf(lba + count - 1) + 1
}

impl Volume {
    /// Number of blocks, from `lba` on and at most `count`, whose mapping blocks a request may pin
    /// at once.
    pub(crate) fn piece(&self, lba: u64, count: u64) -> u64 {
        let first = u64::from(Map::leaf(lba));
        let end = first.saturating_add(self.0.paging.most).saturating_mul(u64::from(MAPPED));
        count.min(end - lba)
    }

    /// Loads the mapping blocks of a range and pins them; returns `None` if mapping blocks are
    /// never evicted. With `create`, mapping blocks without an entry get memory too, because the
    /// caller is going to make entries. The range is at most a [`Volume::piece`].
    pub(crate) async fn pin(
        &self,
        who: Pinner,
        (lba, count): (u64, u64),
        create: bool,
    ) -> Result<Option<Pins>> {
        let (range, paging) = (leaves(lba, count), &self.0.paging);
        if paging.limit.is_none() {
            for leaf in range {
                if self.0.paging.map().is_here(leaf) {
                    self.count(|counters| counters.map_hits += 1);
                } else {
                    self.fetch(leaf, create).await?;
                }
            }
            return Ok(None);
        }
        let permits = if who == Pinner::User { &paging.users } else { &paging.internal };
        let permit = permits.acquire(u64::from(range.end - range.start)).await;
        self.pin_with(permit, range, create).await.map(Some)
    }

    /// Maximum number of bytes of memory for mapping blocks and the copies that checkpoints make of
    /// them; `None`: no limit.
    pub fn map_memory_limit(&self) -> Option<u64> {
        self.0.paging.limit.map(|limit| limit as u64 * 2 * u64::from(MAPPED) * 4)
    }

    /// Whether mapping blocks may be evicted.
    pub(crate) fn is_bounded(&self) -> bool {
        self.0.paging.limit.is_some()
    }

    /// Like [`Volume::pin`], for internal work on one mapping block and a caller that has pins
    /// already. `None` if the caller would have to wait until other pins are dropped.
    pub(crate) async fn pin_more(&self, lba: u64) -> Result<Option<Pins>> {
        let Some(permit) = self.0.paging.internal.try_acquire(1) else { return Ok(None) };
        self.pin_with(permit, leaves(lba, 1), false).await.map(Some)
    }

    async fn pin_with(&self, permit: Permit, range: Range<u32>, create: bool) -> Result<Pins> {
        let mut pins = self.0.paging.pins(range.start, permit);
        for leaf in range {
            self.fetch(leaf, create).await?;
            self.0.paging.map_mut().pin(leaf);
            pins.leaves.end = leaf + 1;
        }
        Ok(pins)
    }

    /// Loads a mapping block, which is then in memory at least until the caller's next await.
    pub(crate) async fn fetch(&self, leaf: u32, create: bool) -> Result<()> {
        self.fetch_as(leaf, create, Loud::Yes).await
    }

    /// Like [`Volume::fetch`]; damage that is found while reading counts as an error only
    /// if `loud`.
    pub(crate) async fn fetch_as(&self, leaf: u32, create: bool, loud: Loud) -> Result<()> {
        let paging = &self.0.paging;
        let mut missed = false;
        loop {
            let empty = {
                let map = self.0.paging.map();
                if map.is_here(leaf) || (map.is_empty(leaf) && !create) {
                    self.count(|counters| {
                        counters.map_misses += u64::from(missed);
                        counters.map_hits += u64::from(!missed);
                    });
                    return Ok(());
                }
                map.is_empty(leaf)
            };
            let taken = self.0.paging.map().resident() + paging.loading.get();
            if paging.limit.is_some_and(|limit| taken >= limit) {
                match self.make_space().await {
                    Ok(()) => continue,
                    // There is no space to write changed mapping blocks, so they stay in memory;
                    // the wanted one is read nevertheless, beyond the limit.
                    Err(error) if error.kind() == ErrorKind::NoSpace => {}
                    Err(error) => return Err(error),
                }
            }
            self.count(|counters| {
                counters.map_peak = counters.map_peak.max(taken as u64 + 1);
            });
            if empty {
                self.0.paging.map_mut().create(leaf);
                continue;
            }
            missed = true;
            paging.loading.set(paging.loading.get() + 1);
            let loaded = self.load_leaf(leaf, loud).await;
            paging.loading.set(paging.loading.get() - 1);
            paging.changed.notify_all();
            loaded?;
        }
    }

    async fn load_leaf(&self, leaf: u32, loud: Loud) -> Result<()> {
        let number = self.0.paging.map().root_of(leaf);
        let identity = (block::MAPPING, u64::from(leaf));
        let pages: Pages = self.read_numbers(&[(number, identity)], loud).await?;
        let mut map = self.0.paging.map_mut();
        // The mapping block may have been loaded, or written elsewhere, during the read.
        if map.root_of(leaf) == number {
            map.load(leaf, &pages[0]);
        }
        Ok(())
    }

    /// Evicts a mapping block, writes a changed one so that it can be evicted, or waits until one
    /// can be evicted.
    async fn make_space(&self) -> Result<()> {
        let changed = self.0.paging.changed.wait();
        let victim = self.0.paging.map_mut().victim();
        match victim {
            Some(Victim::Clean(leaf)) => {
                self.0.paging.map_mut().evict(leaf);
                self.count(|counters| counters.map_evictions += 1);
                Ok(())
            }
            Some(Victim::Dirty(leaf)) => self.write_some(leaf).await,
            None => {
                self.failed().map_or(Ok(()), Err)?;
                changed.await;
                Ok(())
            }
        }
    }

    /// Writes a changed mapping block, so that it can be evicted, and other changed ones with it.
    async fn write_some(&self, leaf: u32) -> Result<()> {
        let _one = self.0.paging.writes.acquire(1).await;
        let (placement, config) = (self.0.shape.placement, &self.0.config);
        let chunk = if config.large > 0 { config.chunk_large } else { config.chunk_small };
        let pages = &self.0.pages;
        let most = (placement.k * chunk) as usize;
        let dirty = self.0.paging.map_mut().take_dirty(leaf, most, || pages.take_dirty());
        self.write_leaves(&dirty).await.map(drop)
    }

    /// Writes the copies of mapping blocks that the caller took from the map. Returns each mapping
    /// block with the number of its new copy.
    pub(crate) async fn write_leaves(&self, dirty: &[(u32, Page)]) -> Result<Vec<(u64, u32)>> {
        let mut placed = Vec::new();
        for (done, batch) in dirty.chunks(BATCH).enumerate() {
            let blocks =
                batch.iter().map(|(leaf, page)| (block::MAPPING, u64::from(*leaf), page.clone()));
            let written = self.write_internal(blocks.collect()).await;
            let mut map = self.0.paging.map_mut();
            if let Err(error) = written {
                for (leaf, _) in &dirty[done * BATCH..] {
                    map.mark_dirty(*leaf);
                    map.unpin(*leaf);
                }
                drop(map);
                self.0.paging.changed.notify_all();
                return Err(error);
            }
            batch.iter().for_each(|(leaf, _)| map.unpin(*leaf));
            drop(map);
            placed.extend(written?);
            self.count(|counters| counters.map_writes += batch.len() as u64);
            self.0.paging.changed.notify_all();
        }
        Ok(placed)
    }

    /// Wakes the tasks that wait for memory, because the volume has failed.
    pub(crate) fn give_up_paging(&self) {
        self.0.paging.changed.notify_all();
    }
}

/// Maximum number of mapping blocks written together.
const BATCH: usize = 64;
