//! Background cleaning: when it runs, and how fast.
//!
//! The engine checks after every write whether cleaning is needed. Below [`GcOptions::start`] it
//! cleans one victim after the other, in a task of its own that ends when enough is free again or
//! no victim is worth moving. Background cleaning then rests until about one superzone of blocks
//! has been written. The less space is free, the less garbage a victim needs, and the shorter the
//! pauses between batches are. Below [`GcOptions::urgent`], and while a request waits for space,
//! there are no pauses. A pause is a multiple of the time that the previous batch took, so the
//! share of the drive that cleaning takes is bounded on any drive.
//!
//! Both levels are shares of the space that is not in use (free or garbage), so cleaning always has
//! garbage to choose from. As shares of the main area, the levels could not be reached on a full
//! drive: with 85 % of the main area in use, cleaning took every victim with at least 5 % garbage,
//! without pauses, and wrote twice as much as cleaning on demand.
//!
//! [`GcOptions::start`]: super::GcOptions::start
//! [`GcOptions::urgent`]: super::GcOptions::urgent

use super::{CleanReport, Outcome, Urgency};
use crate::core::{Core, Inner};
use furrow_rt::Nanos;
use std::rc::Rc;

/// Minimum garbage of a victim, in thousandths: at the level where cleaning starts, just above the
/// urgent level, and below the urgent level.
const GARBAGE: [u64; 3] = [400, 100, 50];
/// Longest pause, as a multiple of the time that the batch before it took.
const PAUSE_MAX: u64 = 8;
/// Lower bounds, in superzones, of the two levels of free space at which cleaning starts and
/// becomes urgent. The bounds are capped at a half and a quarter of the space not in use. The
/// bounds should leave time to clean a victim, and to write a checkpoint, before any request waits.
const LEAST: [u64; 2] = [2, 1];

impl Core {
    /// Number of blocks that users can still write without cleaning.
    fn free(&self) -> u64 {
        self.spare().saturating_sub(self.alloc.kept_from_users())
    }

    /// Number of free blocks below which cleaning starts, and number of free blocks below which
    /// cleaning is urgent.
    fn levels(&self) -> [u64; 2] {
        let gc = &self.env.options.gc;
        let not_kept = self.alloc.main_blocks().saturating_sub(self.alloc.kept_from_users());
        let unused = not_kept.saturating_sub(self.in_use());
        let per = u64::from(self.alloc.superzone_blocks());
        let level = |percent: u8, least: u64, part: u64| match u64::from(percent) {
            0 => 0,
            percent => (unused * percent / 100).max((least * per).min(unused / part)),
        };
        [level(gc.start, LEAST[0], 2), level(gc.urgent, LEAST[1], 4)]
    }

    /// Position of the free space on a scale from the urgent level (0) to the level at which
    /// cleaning starts (1000); above that level it exceeds 1000.
    fn ease(&self) -> u64 {
        let [start, urgent] = self.levels();
        self.free().saturating_sub(urgent) * 1000 / start.saturating_sub(urgent).max(1)
    }

    fn is_urgent(&self) -> bool {
        self.free() < self.levels()[1]
    }

    /// The urgency of background cleaning now; `None` while enough is free.
    fn background_urgency(&self) -> Option<Urgency> {
        let [start, _] = self.levels();
        if self.has_spare(start + self.alloc.kept_from_users()) {
            return None;
        }
        let [start, urgent, below] = GARBAGE;
        let garbage = match self.is_urgent() {
            true => below,
            false => urgent + (start - urgent) * self.ease().min(1000) / 1000,
        };
        Some(Urgency::Background(self.env.options.gc.policy, garbage as u32))
    }

    /// Whether background cleaning should look for a victim.
    fn wants_cleaning(&self) -> bool {
        let able = !self.env.options.read_only
            && !self.health.replaying()
            && self.health.failed().is_none();
        let room = self.env.options.gc.background
            && self.alloc.stamp() >= self.clean.rest_until
            && self.background_urgency().is_some();
        // Zones that the drive has closed may soon be unreadable, so they are emptied no matter how
        // much space is free.
        able && (room || !self.clean.closed.is_empty() && self.env.device.answers())
    }
}

impl Inner {
    /// Starts background cleaning if it is needed and not running.
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
            // A failed write makes the engine fail; after a failed read the superzone stays listed.
            let _ = self.evacuate().await;
        }
        while !self.closing.get()
            && !self.ended.get()
            && self.core.borrow().health.failed().is_none()
        {
            let _one = self.clean_lock.acquire(1).await;
            // Other tasks may have cleaned or freed enough space meanwhile.
            let urgency = self.core.borrow().background_urgency();
            let Some(urgency) = urgency.filter(|_| self.core.borrow().env.options.gc.background)
            else {
                return;
            };
            let mut report = CleanReport::default();
            // The engine remembers a failure and reports it to the next caller.
            let Ok(Outcome::Gained) =
                self.clean_durably(urgency, super::ROUND_MAX, &mut report).await
            else {
                return;
            };
        }
    }

    /// Pauses before the next batch; the last one began at `began`.
    pub(super) async fn pace(&self, urgency: Urgency, began: Nanos) {
        let pause = {
            let core = self.core.borrow();
            let hurry = !matches!(urgency, Urgency::Background(..))
                || core.space.has_requests()
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
