//! Background work: completion of writes, write-back, the commit interval.

use crate::blocked::NotApplied;
use crate::core::{Core, Inner};
use crate::tree::cache::Key;
use crate::types::Ino;
use furrow_rt::either;
use furrow_zone::Result;
use std::rc::Rc;

/// Number of blocks that write-back dispatches before it yields.
const BATCH: usize = 256;

/// The next checkpoint is due when the name changes since the last checkpoint take more than this
/// number of bytes. Renaming a file back and forth makes no page dirty, so the dirty limit alone
/// would not bound the log.
const NAMES_MAX: u64 = 8 << 20;

impl Core {
    /// True if dirty pages should be written back, even though no writer is throttled yet.
    pub(crate) fn write_back_is_due(&self) -> bool {
        let limit = self.env.dirty_limit();
        let begin = self.env.options.background_pages.unwrap_or(limit / 2).min(limit);
        let due = self.cache.dirty_pages() > begin
            || self.durability.names_bytes() > NAMES_MAX
            || self.many_are_recorded();
        due && !self.health.replaying() && self.may_write().is_ok()
    }

    /// Dispatches up to [`BATCH`] dirty blocks of data and returns their number.
    fn write_some(&mut self) -> Result<usize, NotApplied> {
        self.may_write()?;
        let keys: Vec<(Ino, u32)> = self
            .cache
            .all_dirty()
            .map_while(|key| match key {
                Key::Data(ino, block) => Some((Ino(ino), block)),
                Key::Node(_) => None,
            })
            .filter(|(ino, block)| !self.durability.appends.has(*ino, *block))
            .take(BATCH)
            .collect();
        for (ino, block) in &keys {
            self.holder(*ino, *block)?;
        }
        for (ino, block) in &keys {
            self.write_data(*ino, *block)?;
        }
        Ok(keys.len())
    }
}

impl Inner {
    /// Waits in the background for the writes dispatched since the last call. Then their pages may
    /// be evicted.
    pub(crate) fn after_dispatch(self: &Rc<Self>) {
        self.close_parked(false);
        self.start_cleaning();
        let (tickets, point) = {
            let core = &mut *self.core.borrow_mut();
            if core.durability.writes.tickets.is_empty() {
                return;
            }
            let tickets = std::mem::take(&mut core.durability.writes.tickets);
            core.durability.writes.in_flight += tickets.len();
            (tickets, core.env.writer.sequence_point())
        };
        let inner = self.clone();
        self.rt.spawn_detached(async move {
            let result = inner.wait_durable_or_relocated(point).await;
            {
                let mut core = inner.core.borrow_mut();
                let out = core.durability.writes.in_flight;
                core.durability.writes.in_flight =
                    core.less("Dispatched::in_flight", out, tickets.len());
                // After a failure the pages must stay in the cache, because they are the only copy.
                if result.is_ok() {
                    for ticket in tickets {
                        core.cache.end_write(ticket);
                    }
                }
            }
            if let Err(error) = result {
                inner.fail(&error);
            }
            inner.progress.notify_all();
        });
    }

    /// Starts write-back unless it is running already. By default write-back begins at half of the
    /// dirty limit, so that writers slower than the drive are never throttled.
    pub(crate) fn start_write_back(self: &Rc<Self>) {
        if self.write_back_running.replace(true) {
            return;
        }
        let inner = self.clone();
        self.rt.spawn_detached(async move {
            // If an unmount interrupts write-back, the unmount writes the dirty data itself.
            if let Err(error) = inner.write_back().await
                && !inner.ended.get()
            {
                inner.fail(&error);
            }
            inner.write_back_running.set(false);
            inner.progress.notify_all();
        });
    }

    /// Writes dirty data until it is at most a quarter of the dirty limit. Makes a checkpoint if
    /// too many nodes are dirty, too many node changes are in records, or the namespace log is
    /// too long.
    async fn write_back(self: &Rc<Self>) -> Result<()> {
        loop {
            let (dirty, nodes, limit, many) = {
                let core = self.core.borrow();
                let nodes = core.cache.dirty_node_pages();
                let data = core.cache.dirty_pages() - nodes;
                // Some of the blocks in flight may be clean already, so the difference may
                // be negative.
                (
                    data.saturating_sub(core.durability.appends.blocks()),
                    nodes,
                    core.env.dirty_limit(),
                    core.many_are_recorded() || core.durability.namespace_log.bytes() > NAMES_MAX,
                )
            };
            if self.ended.get() {
                return Ok(());
            }
            if dirty > limit / 4 {
                if self.append_some().await? == 0 {
                    let written = self.run(Core::write_some).await;
                    self.after_dispatch();
                    written?;
                }
                self.rt.yield_now().await;
                continue;
            }
            if nodes > limit / 4 || many {
                return self.checkpoint(false).await;
            }
            // The writes in flight must end before any waiting operation can continue.
            let point = self.core.borrow().env.writer.sequence_point();
            self.wait_durable_or_relocated(point).await?;
            // Wait behind the tasks that wait for a relocation: they are queued for this lock, and
            // their writes are still in flight.
            if self.core.borrow().durability.relocation.waiting > 0 {
                drop(self.checkpoint_lock.acquire(1).await);
            }
            while !self.core.borrow().durability.appends.is_idle() {
                self.progress.wait().await;
            }
            return Ok(());
        }
    }

    /// Dispatches most of the dirty data before a checkpoint's snapshot, so that other operations
    /// can run in between: the snapshot dispatches the rest in one stretch. Errors are ignored
    /// here, because they occur again at the snapshot.
    pub(crate) async fn write_before_snapshot(self: &Rc<Self>) {
        let data = |core: &Core| core.cache.dirty_pages() - core.cache.dirty_node_pages();
        // Write only as many blocks as are dirty now, so that a continuous writer does not delay
        // the checkpoint.
        let mut left = data(&self.core.borrow());
        while left > BATCH {
            let written = self.run(Core::write_some).await;
            self.after_dispatch();
            match written {
                Ok(count) if count > 0 => left = left.saturating_sub(count),
                _ => return,
            }
        }
    }

    /// Starts the task that makes everything durable once per commit interval. If the interval is
    /// changed, the new one begins at once.
    pub(crate) fn start_commits(self: &Rc<Self>) {
        let inner = Rc::downgrade(self);
        let (rt, reconfigured) = (self.rt.clone(), self.reconfigured.clone());
        let mut interval = self.core.borrow().env.options.commit_interval;
        self.rt.spawn_detached(async move {
            let mut last = None;
            loop {
                let slept = either(rt.sleep(interval), reconfigured.wait()).await.is_ok();
                let Some(inner) = inner.upgrade() else { return };
                interval = inner.core.borrow().env.options.commit_interval;
                if !slept {
                    continue;
                }
                if inner.ended.get() || inner.core.borrow().health.failed().is_some() {
                    return;
                }
                // The engine remembers a failure and reports it to the next caller.
                let _ = inner.checkpoint(false).await;
                // If nothing was written for a whole interval, the drive counts as idle.
                let now = Some(inner.core.borrow().alloc.stamp());
                let idle = std::mem::replace(&mut last, now) == now;
                if idle && inner.core.borrow().health.failed().is_none() {
                    inner.close_parked(true);
                }
            }
        });
    }
}
