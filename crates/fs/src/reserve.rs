//! Reserving space before a change, and waiting for it.
//!
//! The rules are in [`space`](crate::alloc::space). Requests that lack space wait in a FIFO queue;
//! the first request cleans until there is enough ([`Inner::gain_space`]).

pub(crate) mod queue;

use crate::alloc::space::{Claim, RECOVERY_MIN, UPKEEP};
use crate::blocked::{Blocked, Lack, NotApplied};
use crate::clean::{Outcome, Urgency};
use crate::core::{Core, Inner};
use furrow_rt::{Boxed, Permit};
use furrow_zone::Result;
use queue::Tried;
use std::rc::Rc;

/// Maximum number of checkpoints made for an operation that would exceed the number of blocks that
/// users may have; after these checkpoints the operation fails with NoSpace. Also the maximum
/// number of checkpoints made because cleaning found no victim.
const CHECKPOINTS_MAX: u32 = 4;
/// An operation that lacks space fails with NoSpace after this number of steps plus two for each
/// superzone. Counting restarts when the spare space reaches a new maximum.
const STEPS_MIN: u32 = 32;

impl Core {
    fn dirty(&self) -> u64 {
        self.cache.dirty_pages() as u64
    }

    /// Number of blocks in use: valid or dirty. A dirty block may replace a valid one; both then
    /// count until the dirty block is written.
    pub(crate) fn in_use(&self) -> u64 {
        self.alloc.valid() + self.dirty()
    }

    /// True if `added` more blocks may be in use.
    pub(crate) fn has_blocks(&self, added: u64) -> bool {
        self.in_use() + added <= self.alloc.capacity()
    }

    /// Space left after subtracting the blocks promised to dirty pages. A debug build stops here if
    /// a promise cannot be kept.
    pub(crate) fn spare(&self) -> u64 {
        let (left, dirty) = (self.alloc.space_left(), self.dirty());
        match self.promises_space() {
            true => self.less("space promised to dirty pages", left, dirty),
            false => self.alloc.spare(dirty),
        }
    }

    /// True if every dirty page has a promise of space. Blocks that a failed zone lost become
    /// dirty again without a promise, and the amount that a mount must replay on a damaged medium
    /// is unknown.
    pub(crate) fn promises_space(&self) -> bool {
        let writes = self.health.failed().is_none() && !self.health.replaying();
        self.health.is_sound() && writes && !self.durability.any_zone_failed()
    }

    /// True if at least `wanted` blocks of space are spare.
    pub(crate) fn has_spare(&self, wanted: u64) -> bool {
        self.alloc.has_space(wanted + self.dirty())
    }

    /// Number of blocks that an operation (a `removal`, or another operation) must leave spare.
    pub(crate) fn kept(&self, removal: bool) -> u64 {
        self.alloc.kept(removal, self.cache.changed_pages() as u64)
    }

    /// Number of blocks that recovery may need after a crash now.
    pub(crate) fn recovery_needs(&self) -> u64 {
        self.alloc.recovery_needs(self.cache.changed_pages() as u64)
    }

    /// Refuses a change that would dirty `data` more blocks and `nodes` more nodes if there is no
    /// space for them, if it adds more blocks than users may have, if there are too few node ids,
    /// or if other requests are in the queue.
    pub(crate) fn reserve(
        &mut self,
        data: u32,
        nodes: u32,
        claim: Claim,
    ) -> Result<(), NotApplied> {
        if self.health.replaying() {
            return Ok(());
        }
        let removal = claim == Claim::Removal;
        let (added, beyond) = match claim {
            Claim::User(added) => (added, 0),
            Claim::Upkeep(added) => (added, UPKEEP),
            Claim::Removal => (0, 0),
        };
        if added > 0 && self.in_use() + added > self.alloc.capacity() + beyond {
            return Err(Blocked::Space(Lack::Blocks).into());
        }
        if nodes + 8 > self.tables.ids().free_count() && !removal {
            return Err(Blocked::Space(Lack::Nodes).into());
        }
        let others_first = !removal && !self.space.first && self.space.has_requests();
        let wanted = u64::from(data) + u64::from(nodes);
        if others_first || !self.has_spare(self.kept(removal) + wanted) {
            return Err(Blocked::Space(Lack::Space).into());
        }
        Ok(())
    }

    /// True if a checkpoint would give back the resource that is lacking.
    fn checkpoint_gains(&self, lack: Lack) -> bool {
        match lack {
            Lack::Space => self.alloc.empty_superzones().next().is_some(),
            Lack::Nodes => self.tables.ids().waiting_count() > 0,
            // A dirty block is counted in addition to the block it replaces, until it is written.
            Lack::Blocks => self.cache.dirty_pages() > 0,
        }
    }

    /// Counts a step of gaining space; false once the limit of steps without gain is reached.
    fn may_try(&mut self, lack: Lack, tried: &mut Tried) -> bool {
        let spare = self.spare();
        match lack {
            Lack::Blocks => {
                tried.checkpoints += 1;
                return tried.checkpoints <= CHECKPOINTS_MAX;
            }
            Lack::Space => self.stats.counters.space_waits += 1,
            Lack::Nodes => {}
        }
        if spare > tried.most {
            *tried = Tried { most: spare, ..Tried::default() };
        }
        tried.steps += 1;
        tried.steps <= STEPS_MIN + 2 * self.alloc.zones().total()
    }
}

impl Inner {
    /// Waits in the queue for space. The caller is first in the queue while it holds the
    /// returned permit.
    pub(crate) async fn wait_in_line(&self) -> Permit {
        let line = self.core.borrow().space.line.clone();
        line.acquire(1).await
    }

    /// Takes one step to gain space for the first request in the queue; false if nothing can be
    /// reclaimed, or if the limit of steps is reached.
    #[inline(never)]
    pub(crate) fn gain_space<'a>(
        self: &'a Rc<Self>,
        lack: Lack,
        tried: &'a mut Tried,
    ) -> Boxed<'a, Result<bool>> {
        Box::pin(async move {
            if !self.core.borrow_mut().may_try(lack, tried) {
                return Ok(false);
            }
            if self.core.borrow().checkpoint_gains(lack) {
                self.checkpoint(false).await?;
                return Ok(true);
            }
            if lack == Lack::Blocks {
                return Ok(false);
            }
            if lack == Lack::Nodes {
                if self.core.borrow_mut().grow_tables() {
                    self.checkpoint(false).await?;
                    return Ok(true);
                }
                // With another superzone the tables could hold more nodes, so make space for one.
                if !self.core.borrow().tables_can_grow() {
                    return Ok(false);
                }
            }
            // Recovery may have to write again the blocks written since the last checkpoint, so
            // space for them is kept from every request. Only a checkpoint gives this space back.
            let unsafe_most = |core: &Core| core.recovery_needs() > core.alloc.kept_from_users();
            if unsafe_most(&self.core.borrow()) {
                self.checkpoint(false).await?;
                return Ok(true);
            }
            // Cleaning is cheap if there is much garbage. Otherwise write dirty pages first,
            // because the blocks they replace become garbage only then. As the last resort, clean
            // any victim.
            for urgency in [Urgency::Waiting, Urgency::Last] {
                match self.clean_some(urgency).await? {
                    Outcome::Gained | Outcome::Moved => return Ok(true),
                    Outcome::Nothing => {}
                }
                let unsafe_yet = self.core.borrow().recovery_needs() > RECOVERY_MIN;
                if unsafe_yet && tried.checkpoints < CHECKPOINTS_MAX {
                    tried.checkpoints += 1;
                    self.checkpoint(false).await?;
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}
