//! Closes superzones before they are full: those of parked heads, and an open one that cleaning
//! will empty.

use crate::core::Inner;
use furrow_log::pool::SuperzoneId;
use furrow_zone::{Result, ZoneId};
use std::rc::Rc;

impl Inner {
    /// Closes a parked superzone if a stream lacks permits, or if closing pays. `idle` says that
    /// the drive is idle.
    pub(crate) fn close_parked(self: &Rc<Self>, idle: bool) {
        if self.closing.get() {
            return;
        }
        let (head, zones) = {
            let core = &mut *self.core.borrow_mut();
            let dirty = core.cache.dirty_pages() as u64;
            let Some(head) = core.alloc.head_to_close(idle, dirty) else { return };
            let zones = core.alloc.begin_closing(head);
            core.carry_out();
            (head, zones)
        };
        if zones.is_empty() {
            return;
        }
        let inner = self.clone();
        self.rt.spawn_detached(async move {
            if let Err(error) = inner.close(head, zones).await {
                inner.fail(&error);
            }
        });
    }

    /// See [`Allocator::adopt_head`](crate::alloc::Allocator).
    pub(crate) async fn adopt_head(self: &Rc<Self>, head: usize) -> Result<()> {
        let zones = {
            let core = &mut *self.core.borrow_mut();
            let zones = core.alloc.adopt_head(head);
            core.carry_out();
            zones
        };
        if zones.is_empty() { Ok(()) } else { self.close(head, zones).await }
    }

    /// If a head writes to `superzone`, closes the superzone; the head continues in another one.
    pub(crate) async fn leave_head(self: &Rc<Self>, superzone: SuperzoneId) -> Result<()> {
        let (head, zones) = {
            let core = &mut *self.core.borrow_mut();
            let Some(head) = core.alloc.head_of(superzone.0) else { return Ok(()) };
            core.alloc.pad_segment(head);
            // If padding filled the superzone, it needs no closing.
            if core.alloc.head_of(superzone.0) != Some(head) {
                core.carry_out();
                return Ok(());
            }
            let zones = core.alloc.begin_closing(head);
            core.carry_out();
            (head, zones)
        };
        let point = self.core.borrow().env.writer.sequence_point();
        self.wait_durable_or_relocated(point).await?;
        self.close(head, zones).await
    }

    async fn close(self: &Rc<Self>, head: usize, zones: Vec<ZoneId>) -> Result<()> {
        let writer = self.core.borrow().env.writer.clone();
        for zone in zones {
            writer.close(zone).await?;
        }
        {
            let core = &mut *self.core.borrow_mut();
            match core.alloc.end_closing(head) {
                true => core.stats.counters.superzones_finished += 1,
                false => core.stats.counters.superzones_closed += 1,
            }
        }
        self.progress.notify_all();
        Ok(())
    }

    /// Waits until no superzone is being closed, because the next mount must find the zones in
    /// their final state.
    pub(crate) async fn closed(&self) {
        let closing = || {
            let core = self.core.borrow();
            core.health.failed().is_none() && core.alloc.is_closing()
        };
        while closing() {
            self.progress.wait().await;
        }
    }
}
