//! The map's memory: which mapping blocks are in it, and how others get in.
//!
//! With a bound, half of it is for mapping blocks and half for the copies that a checkpoint makes
//! of those that changed. A part may be pinned by users' requests, which change entries when their
//! stripes are durable, a smaller one by what the volume moves itself; the rest is always free to
//! be taken, so that whoever waits for space can be helped by cleaning, and cleaning never waits
//! for users. What changed is written before it leaves, a stripe's worth at once.
//!
//! Invariant: a mapping block is pinned while it is being written, and a checkpoint's snapshot
//! waits for such writes: so the root that it names holds everything that came before it.

use crate::format::{MAPPED, block};
use crate::map::{Map, Victim};
use crate::volume::Volume;
use furrow_rt::{Notify, Page, Pages, Permit, Semaphore};
use furrow_zone::{ErrorKind, Result};
use std::cell::Cell;
use std::ops::Range;

/// Mapping blocks in memory at least: one for users, one for the volume, one to come and go.
const LEAST: usize = 3;

/// Who pins mapping blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinner {
    User,
    Internal,
}

/// The memory of the map.
///
/// Invariants, where there is a limit
/// - Users' requests pin at most half of `limit` mapping blocks, the volume's own work a quarter;
///   each at least one.
/// - `loading` is the number of mapping blocks that are being read.
pub(crate) struct Paging {
    /// Mapping blocks that may be in memory; `None`: all.
    limit: Option<usize>,
    users: Semaphore,
    internal: Semaphore,
    /// Mapping blocks a user's request may pin at once.
    most: u64,
    /// One at a time writes mapping blocks.
    pub(crate) writes: Semaphore,
    /// Being read.
    loading: Cell<usize>,
    /// Something may leave that could not before.
    changed: Notify,
}

impl Paging {
    /// For `bytes` of memory; 0: no bound.
    pub(crate) fn new(bytes: u64) -> Paging {
        let limit = (bytes > 0).then(|| LEAST.max((bytes / 2 / (u64::from(MAPPED) * 4)) as usize));
        let users = limit.map_or(u64::MAX / 2, |limit| (limit as u64 / 2).max(1));
        let internal = limit.map_or(u64::MAX / 2, |limit| (limit as u64 / 4).max(1));
        Paging {
            limit,
            users: Semaphore::new(users),
            internal: Semaphore::new(internal),
            most: if limit.is_some() { users.div_ceil(4) } else { u64::MAX / 2 },
            writes: Semaphore::new(1),
            loading: Cell::new(0),
            changed: Notify::new(),
        }
    }
}

/// Mapping blocks that stay in memory as long as this lives.
pub(crate) struct Pins {
    volume: Volume,
    leaves: Range<u32>,
    _permit: Permit,
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut map = self.volume.0.map.borrow_mut();
        self.leaves.clone().for_each(|leaf| map.unpin(leaf));
        drop(map);
        self.volume.0.paging.changed.notify_all();
    }
}

/// The mapping blocks of blocks of the volume.
fn leaves(lba: u64, count: u64) -> Range<u32> {
    Map::leaf(lba)..Map::leaf(lba + count - 1) + 1
}

impl Volume {
    /// Of `count` blocks from `lba` on those that a request may take in hand at once.
    pub(crate) fn piece(&self, lba: u64, count: u64) -> u64 {
        let first = u64::from(Map::leaf(lba));
        let end = first.saturating_add(self.0.paging.most).saturating_mul(u64::from(MAPPED));
        count.min(end - lba)
    }

    /// Loads the mapping blocks of a range and keeps them in memory; `None` where nothing ever
    /// leaves it. With `create` those without an entry too: entries are going to be made. At most
    /// a [`Volume::piece`].
    pub(crate) async fn pin(
        &self,
        who: Pinner,
        (lba, count): (u64, u64),
        create: bool,
    ) -> Result<Option<Pins>> {
        let (range, paging) = (leaves(lba, count), &self.0.paging);
        if paging.limit.is_none() {
            for leaf in range {
                if self.0.map.borrow().is_here(leaf) {
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

    /// Bytes of memory for mapping blocks and the copies that checkpoints make of them, at most;
    /// `None`: as many as there are.
    pub fn map_memory_limit(&self) -> Option<u64> {
        self.0.paging.limit.map(|limit| limit as u64 * 2 * u64::from(MAPPED) * 4)
    }

    /// Whether mapping blocks may leave the memory.
    pub(crate) fn is_bounded(&self) -> bool {
        self.0.paging.limit.is_some()
    }

    /// As [`Volume::pin`] of the volume's own, of one mapping block, for one who has pins already:
    /// `None` if it would have to wait for others to give theirs back.
    pub(crate) async fn pin_more(&self, lba: u64) -> Result<Option<Pins>> {
        let Some(permit) = self.0.paging.internal.try_acquire(1) else { return Ok(None) };
        self.pin_with(permit, leaves(lba, 1), false).await.map(Some)
    }

    async fn pin_with(&self, permit: Permit, range: Range<u32>, create: bool) -> Result<Pins> {
        let mut pins =
            Pins { volume: self.clone(), leaves: range.start..range.start, _permit: permit };
        for leaf in range {
            self.fetch(leaf, create).await?;
            self.0.map.borrow_mut().pin(leaf);
            pins.leaves.end = leaf + 1;
        }
        Ok(pins)
    }

    /// Loads a mapping block; it is there until the caller waits for anything.
    pub(crate) async fn fetch(&self, leaf: u32, create: bool) -> Result<()> {
        let paging = &self.0.paging;
        let mut missed = false;
        loop {
            let empty = {
                let map = self.0.map.borrow();
                if map.is_here(leaf) || (map.is_empty(leaf) && !create) {
                    self.count(|counters| {
                        counters.map_misses += u64::from(missed);
                        counters.map_hits += u64::from(!missed);
                    });
                    return Ok(());
                }
                map.is_empty(leaf)
            };
            let taken = self.0.map.borrow().resident() + paging.loading.get();
            if paging.limit.is_some_and(|limit| taken >= limit) {
                match self.make_space().await {
                    Ok(()) => continue,
                    // What changed cannot be written, and stays; what is asked for is read.
                    Err(error) if error.kind() == ErrorKind::NoSpace => {}
                    Err(error) => return Err(error),
                }
            }
            self.count(|counters| {
                counters.map_peak = counters.map_peak.max(taken as u64 + 1);
            });
            if empty {
                self.0.map.borrow_mut().create(leaf);
                continue;
            }
            missed = true;
            paging.loading.set(paging.loading.get() + 1);
            let loaded = self.load_leaf(leaf).await;
            paging.loading.set(paging.loading.get() - 1);
            paging.changed.notify_all();
            loaded?;
        }
    }

    async fn load_leaf(&self, leaf: u32) -> Result<()> {
        let number = self.0.map.borrow().root_of(leaf);
        let identity = (block::MAPPING, u64::from(leaf));
        let pages: Pages = self.read_numbers(&[(number, identity)]).await?;
        let mut map = self.0.map.borrow_mut();
        // It may have been loaded, or moved, meanwhile.
        if map.root_of(leaf) == number {
            map.load(leaf, &pages[0]);
        }
        Ok(())
    }

    /// Lets a mapping block leave the memory, or waits until one can.
    async fn make_space(&self) -> Result<()> {
        let changed = self.0.paging.changed.wait();
        let victim = self.0.map.borrow_mut().victim();
        match victim {
            Some(Victim::Clean(leaf)) => {
                self.0.map.borrow_mut().evict(leaf);
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

    /// Writes a mapping block that changed, so that it may leave, and others with it.
    async fn write_some(&self, leaf: u32) -> Result<()> {
        let _one = self.0.paging.writes.acquire(1).await;
        let (placement, config) = (self.0.shape.placement, &self.0.config);
        let chunk = if config.large > 0 { config.chunk_large } else { config.chunk_small };
        let pages = &self.0.pages;
        let most = (placement.k * chunk) as usize;
        let dirty = self.0.map.borrow_mut().take_dirty(leaf, most, || pages.take_dirty());
        self.write_leaves(&dirty).await.map(drop)
    }

    /// Writes mapping blocks that were taken from the map; where they are now.
    pub(crate) async fn write_leaves(&self, dirty: &[(u32, Page)]) -> Result<Vec<(u64, u32)>> {
        let mut placed = Vec::new();
        for (done, batch) in dirty.chunks(BATCH).enumerate() {
            let blocks =
                batch.iter().map(|(leaf, page)| (block::MAPPING, u64::from(*leaf), page.clone()));
            let written = self.write_internal(blocks.collect()).await;
            let mut map = self.0.map.borrow_mut();
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

    /// Wakes whoever waits for memory: nothing will come any more.
    pub(crate) fn give_up_paging(&self) {
        self.0.paging.changed.notify_all();
    }
}

/// Mapping blocks written together.
const BATCH: usize = 64;
