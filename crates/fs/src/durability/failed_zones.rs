//! Relocation: the blocks that a failed zone lost are written elsewhere.
//!
//! A write may fail for good (an error, a torn write, a zone that the drive made full, read-only or
//! offline). From then on, operations that wait for later writes stay unanswered. The task that
//! sees the failure does the following, in order:
//!
//! 1. *Close.* Nothing more is written to the superzone: its head continues in another one. When
//!    all writes in flight to the superzone have ended, its zones are finished, so that they hold
//!    no resources of the drive. Only then is the head's next superzone opened.
//! 2. *Take back.* A page stays in the cache until the page and everything dispatched before it are
//!    on the drive. So the cache has every block that the zone lost. The lost pages are those in
//!    flight whose pointer, or NAT entry, leads to a block that the zone did not take. The lost
//!    pages become dirty again.
//! 3. *Checkpoint.* Its snapshot writes these pages, and the nodes that point to them, to new
//!    places. A checkpoint that was in progress when the zone failed is undone and repeated as
//!    this checkpoint.
//! 4. *Answer.* The checkpoint is durable, and so is everything that operations waited for.
//!
//! A crash before step 4 finds the previous checkpoint, and the sync records from before the
//! failure. A record states which write pointers must be reached or, where the zone is finished,
//! which blocks must be in it. Records count in order, so a record that lost a block ends the log.
//! No record behind that record was acknowledged.
//!
//! Cleaning empties the superzone as soon as possible, and the superzone is then released like
//! any other.
//!
//! A half of the sync log with a failed zone is closed in the same way; records continue in the
//! other half. The engine cannot survive other failures, and becomes read-only: a failed zone of
//! the checkpoint ring, a delta log or the tables, a sync log zone that became read-only, a failed
//! flush, a lost drive.

use crate::blocked::NotApplied;
use crate::core::{Core, Inner};
use crate::durability::Lost;
use crate::tree::cache::Key;
use furrow_log::SequencePoint;
use furrow_log::address::BlockAddr;
use furrow_log::budget::Permit;
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_log::writer::Failure;
use furrow_policy::FsDefect;
use furrow_rt::Boxed;
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneState};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The zones to close after the failure of a zone.
struct Closing {
    failed: ZoneId,
    zones: Vec<ZoneId>,
    /// The permits of the zones, given back after the close.
    permit: Option<Permit>,
}

impl Core {
    /// True if the engine survives a failed write to `zone`: the zone holds files or sync records.
    pub(crate) fn is_replaceable(&self, zone: ZoneId) -> bool {
        let halves = [0, 1].map(|half| self.env.layout.sync_half(half));
        match self.env.layout.superzone_of(zone) {
            Some(id) => self.alloc.zones().state(SuperzoneId(id)) != SuperzoneState::Tables,
            None => halves.iter().flatten().any(|other| *other == zone),
        }
    }

    /// Stops all writes to the superzones and log halves of zones that failed since
    /// the last call. `states` holds the states that the drive reports for the zones
    /// in [`Core::failed_in_sync_log`].
    fn leave_failed(&mut self, states: &BTreeMap<ZoneId, ZoneState>) -> Result<Vec<Closing>> {
        if let Some(error) = self.env.writer.flush_failed() {
            return Err(error);
        }
        let mut closings = Vec::new();
        for failure in self.env.writer.failures() {
            let zone = failure.zone;
            if self.durability.relocation.lost.contains_key(&zone) {
                continue;
            }
            let able = self.durability.relocation.able && failure.of_zone;
            if !able || !self.is_replaceable(zone) {
                return Err(failure.error);
            }
            let Some(closing) = self.leave(zone, states.get(&zone)) else {
                return Err(failure.error);
            };
            self.durability.relocation.any = true;
            self.durability
                .relocation
                .lost
                .insert(zone, Lost { from: failure.from, closed: false });
            closings.push(closing);
        }
        Ok(closings)
    }

    /// Failed zones of the sync log in those halves that the engine has not left yet.
    fn failed_in_sync_log(&self) -> Vec<ZoneId> {
        let left = &self.durability.relocation.lost;
        let failures = self.env.writer.failures().into_iter().map(|failure| failure.zone);
        let files = |zone: &ZoneId| self.env.layout.superzone_of(*zone).is_some();
        failures.filter(|zone| !left.contains_key(zone) && !files(zone)).collect()
    }

    fn leave(&mut self, failed: ZoneId, state: Option<&ZoneState>) -> Option<Closing> {
        if let Some(index) = self.env.layout.superzone_of(failed) {
            let id = SuperzoneId(index);
            let permit = self.alloc.leave_superzone(id);
            self.clean.close(id, self.alloc.zones().generation(id));
            return Some(Closing { failed, zones: self.alloc.zones().get(id).zones, permit });
        }
        // A read-only or offline zone could not be reset once its records are no longer needed.
        if matches!(state?, ZoneState::ReadOnly | ZoneState::Offline) {
            return None;
        }
        let half = (0..2).find(|half| self.env.layout.sync_half(*half).contains(&failed))?;
        if half == self.durability.sync.half() {
            // Skip to the end of the half: the next record goes to the other half, or waits for
            // a checkpoint.
            self.durability.sync.go_on_at(self.env.layout.sync_stripe().blocks());
        }
        Some(Closing { failed, zones: self.env.layout.sync_half(half), permit: None })
    }

    fn is_lost(&self, addr: u32) -> bool {
        let place = BlockAddr(addr).locate(&self.env.geometry);
        place.is_some_and(|(zone, offset)| {
            self.durability.relocation.lost.get(&zone).is_some_and(|lost| offset >= lost.from)
        })
    }

    /// Marks as dirty again the blocks that failed zones lost. Returns those failed zones that are
    /// already closed.
    pub(crate) fn take_back(&mut self) -> Result<Vec<ZoneId>, NotApplied> {
        if self.durability.relocation.lost.is_empty() {
            return Ok(Vec::new());
        }
        let mut again = Vec::new();
        for key in self.cache.in_flight() {
            let addr = match key {
                Key::Node(nid) => self.tables.nat().get(nid).addr,
                Key::Data(ino, block) => match self.pointer(crate::types::Ino(ino), block) {
                    Ok(pointer) => pointer.addr,
                    // The file was removed, so its blocks are not needed.
                    Err(NotApplied::Failed(error)) if error.kind() == ErrorKind::NotFound => {
                        continue;
                    }
                    Err(stop) => return Err(stop),
                },
            };
            if self.is_lost(addr.get()) {
                again.push(key);
            }
        }
        for key in again.iter().filter(|_| !self.env.options.variant.has(FsDefect::ForgottenBlocks))
        {
            self.cache.mark_dirty(key);
        }
        let lost = self.durability.relocation.lost.iter();
        Ok(lost.filter(|(_, lost)| lost.closed).map(|(zone, _)| *zone).collect())
    }

    /// Forgets the failure of `zones`, whose lost blocks are now durable elsewhere.
    pub(crate) fn relocated(&mut self, zones: &[ZoneId]) {
        for zone in zones {
            self.durability.relocation.lost.remove(zone);
            self.env.writer.forgive(*zone);
            self.stats.counters.zone_failures += 1;
        }
    }
}

impl Inner {
    /// Makes the engine survive failures of zones from now on, by a task that watches for them.
    /// Without the task a failure could go unnoticed: all operations may wait for writes held back
    /// behind the failed zone, and no operation for the failed write itself.
    pub(crate) fn survive_failures(self: &Rc<Self>) {
        self.core.borrow_mut().durability.relocation.able = true;
        let writer = self.core.borrow().env.writer.clone();
        writer.relocates();
        let notice = self.core.borrow().env.options.notice;
        let inner = Rc::downgrade(self);
        self.rt.spawn_detached(async move {
            let mut seen = 0;
            loop {
                let now = writer.more_failures(seen).await;
                let Some(inner) = inner.upgrade() else { return };
                let failures = writer.failures();
                let new = failures.iter().rev().take((now - seen) as usize);
                for Failure { zone, error, .. } in new.filter(|failure| failure.of_zone) {
                    notice(&format!("zone {zone} failed: {error}"));
                }
                seen = now;
                let Some(failure) = failures.into_iter().next_back() else { continue };
                // Do not await: the checkpoint for one failure may have to wait until the next
                // zone is closed. Ignore the result: the engine remembers a failure that it
                // cannot survive.
                let (rt, inner) = (inner.rt.clone(), inner.clone());
                rt.spawn_detached(async move {
                    let _ = inner.relocate(failure.error).await;
                });
            }
        });
    }

    /// Waits until every write before `point` is on the drive: at the place it was dispatched to
    /// or, if a zone failed, elsewhere.
    pub(crate) async fn wait_durable_or_relocated(
        self: &Rc<Self>,
        point: SequencePoint,
    ) -> Result<()> {
        let writer = self.core.borrow().env.writer.clone();
        while let Err(error) = writer.wait(point).await {
            self.relocate(error).await?;
        }
        Ok(())
    }

    /// Makes sure that the blocks lost by failed zones are durable elsewhere.
    #[inline(never)]
    pub(crate) fn relocate(self: &Rc<Self>, why: Error) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.close_failed().await?;
            let inner = self.clone();
            // Run in a separate task, so that a relocation that has begun completes even if its
            // caller is dropped.
            let task = self.rt.spawn(async move {
                inner.core.borrow_mut().durability.relocation.waiting += 1;
                let _one = inner.checkpoint_lock.acquire(1).await;
                let failed = inner.core.borrow().env.writer.has_failures();
                let result = match failed {
                    false => Ok(()),
                    true if inner.ended.get() => Err(why),
                    true => inner.checkpoint_surely(false).await,
                };
                let core = &mut *inner.core.borrow_mut();
                let waiting = core.durability.relocation.waiting;
                core.durability.relocation.waiting = core.less("Relocation::waiting", waiting, 1);
                result
            });
            task.await
        })
    }

    /// Closes the superzones and log halves of zones that failed.
    #[inline(never)]
    pub(crate) fn close_failed(self: &Rc<Self>) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let states = self.states_in_sync_log().await;
            let left = self.core.borrow_mut().leave_failed(&states);
            let closings = left.inspect_err(|error| self.fail(error))?;
            for closing in closings {
                let inner = self.clone();
                self.rt.spawn_detached(async move {
                    let failed = closing.failed;
                    match inner.close_zones(closing).await {
                        Ok(()) => {
                            let mut core = inner.core.borrow_mut();
                            let lost = core.durability.relocation.lost.get_mut(&failed);
                            lost.expect("invariant: only a durable relocation forgets").closed =
                                true;
                        }
                        Err(error) => inner.fail(&error),
                    }
                    inner.progress.notify_all();
                });
            }
            loop {
                {
                    let core = self.core.borrow();
                    if let Some(error) = core.health.failed() {
                        return Err(error.clone());
                    }
                    if core.durability.relocation.lost.values().all(|lost| lost.closed) {
                        return Ok(());
                    }
                }
                self.progress.wait().await;
            }
        })
    }

    /// The states that the drive reports for the zones in [`Core::failed_in_sync_log`]. A zone that
    /// the drive does not report is missing from the map.
    async fn states_in_sync_log(&self) -> BTreeMap<ZoneId, ZoneState> {
        let mut states = BTreeMap::new();
        let mut asked = BTreeSet::new();
        loop {
            // Repeat, because another zone may fail while the drive reports.
            let failed = self.core.borrow().failed_in_sync_log();
            let Some(zone) = failed.into_iter().find(|zone| asked.insert(*zone)) else {
                return states;
            };
            let device = self.core.borrow().env.device.clone();
            let reports = device.report(zone, 1).await.unwrap_or_default();
            states.extend(reports.first().map(|report| (zone, report.state)));
        }
    }

    /// Closes all zones in parallel, because the close of one zone may wait for that of another.
    async fn close_zones(self: &Rc<Self>, closing: Closing) -> Result<()> {
        let writer = self.core.borrow().env.writer.clone();
        let close = |zone: ZoneId| {
            let writer = writer.clone();
            self.rt.spawn(async move { writer.close(zone).await })
        };
        let closes: Vec<_> = closing.zones.into_iter().map(close).collect();
        for close in closes {
            close.await?;
        }
        drop(closing.permit);
        Ok(())
    }
}
