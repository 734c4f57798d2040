//! Background cleaning: when it runs, and how fast.
//!
//! It is looked at whenever something was written. Below [`GcOptions::start`] it cleans one victim
//! after the other, in a task of its own that ends when enough is free again or nothing is worth
//! moving; then it rests until a superzone's worth has been written. The less is free, the less
//! garbage a victim need have and the shorter the pauses between batches; below
//! [`GcOptions::urgent`], and while somebody waits for room, there are none. A pause is a multiple
//! of the time the batch before it took, so the share of the drive that cleaning takes is bounded
//! on any drive.
//!
//! [`GcOptions::start`]: super::GcOptions::start
//! [`GcOptions::urgent`]: super::GcOptions::urgent

use super::{CleanReport, Outcome, Urgency};
use crate::core::{Core, Inner};
use furrow_rt::Nanos;
use std::rc::Rc;

/// Least garbage of a victim when cleaning starts, when it is urgent, and below, in thousandths.
const GARBAGE: [u64; 3] = [400, 100, 50];
/// Pauses are at most that many times as long as the batch before.
const PAUSE_MAX: u64 = 8;

impl Core {
    /// What users can still write at once, as a share of the main area, in thousandths.
    fn free_permille(&self) -> u64 {
        let per = u64::from(self.alloc.superzone_blocks());
        let total = u64::from(self.alloc.zones().total()) * per;
        self.spare().saturating_sub(self.alloc.kept_from_users()) * 1000 / total.max(1)
    }

    /// How far free space is from urgent (0) to where cleaning starts (1000 and more).
    fn ease(&self) -> u64 {
        let gc = &self.env.options.gc;
        let (start, urgent) = (u64::from(gc.start) * 10, u64::from(gc.urgent) * 10);
        let free = self.free_permille();
        free.saturating_sub(urgent) * 1000 / start.saturating_sub(urgent).max(1)
    }

    fn is_urgent(&self) -> bool {
        self.free_permille() < u64::from(self.env.options.gc.urgent) * 10
    }

    /// What background cleaning should look for now; `None` while enough is free.
    fn background_urgency(&self) -> Option<Urgency> {
        let gc = &self.env.options.gc;
        let per = u64::from(self.alloc.superzone_blocks());
        let start = u64::from(self.alloc.zones().total()) * per * u64::from(gc.start) / 100;
        if self.has_spare(start + self.alloc.kept_from_users()) {
            return None;
        }
        let [start, urgent, below] = GARBAGE;
        let garbage = match self.is_urgent() {
            true => below,
            false => urgent + (start - urgent) * self.ease().min(1000) / 1000,
        };
        Some(Urgency::Background(gc.policy, garbage as u32))
    }

    /// Whether the background should look for a victim.
    fn wants_cleaning(&self) -> bool {
        let able = !self.env.options.read_only
            && !self.health.replaying()
            && self.health.failed().is_none();
        let room = self.env.options.gc.background
            && self.alloc.stamp() >= self.clean.rest_until
            && self.background_urgency().is_some();
        // Of closed zones nobody can say how long they can be read: not a matter of room.
        able && (room || !self.clean.closed.is_empty())
    }
}

impl Inner {
    /// Starts cleaning in the background, if there is need and nobody does.
    pub(crate) fn start_cleaning(self: &Rc<Self>) {
        let idle = !self.closing.get() && !self.cleaner_running.get() && !self.ended.get();
        if !idle || !self.core.borrow().wants_cleaning() {
            return;
        }
        self.cleaner_running.set(true);
        let inner = self.clone();
        self.rt.spawn_detached(async move {
            inner.clean_in_background().await;
            let mut core = inner.core.borrow_mut();
            core.clean.rest_until = core.alloc.stamp() + u64::from(core.alloc.superzone_blocks());
            drop(core);
            inner.cleaner_running.set(false);
        });
    }

    async fn clean_in_background(self: &Rc<Self>) {
        {
            let _one = self.clean_lock.acquire(1).await;
            // A failure is remembered by the engine and told to the next caller.
            let _ = self.evacuate().await;
        }
        while !self.closing.get()
            && !self.ended.get()
            && self.core.borrow().health.failed().is_none()
        {
            let _one = self.clean_lock.acquire(1).await;
            // What others cleaned or freed may do.
            let urgency = self.core.borrow().background_urgency();
            let Some(urgency) = urgency.filter(|_| self.core.borrow().env.options.gc.background)
            else {
                return;
            };
            let mut report = CleanReport::default();
            // A failure is remembered by the engine and told to the next caller.
            let Ok(Outcome::Gained) =
                self.clean_durably(urgency, super::ROUND_MAX, &mut report).await
            else {
                return;
            };
        }
    }

    /// Pauses between two batches, the last of which began at `began`.
    pub(super) async fn pace(&self, urgency: Urgency, began: Nanos) {
        let pause = {
            let core = self.core.borrow();
            let hurry = !matches!(urgency, Urgency::Background(..))
                || core.space.line.available() == 0
                || core.is_urgent();
            let took = self.rt.now().0.saturating_sub(began.0);
            if hurry { 0 } else { took * PAUSE_MAX * core.ease().min(1000) / 1000 }
        };
        if pause > 0 {
            self.rt.sleep(pause).await;
        } else {
            self.rt.yield_now().await;
        }
    }
}
