//! The audit of the permits of heads, and the state of a head that other audits check.

use crate::alloc::Allocator;
use furrow_log::audit::at_most;
use furrow_log::budget::Permit;
use furrow_zone::Result;

/// State of a head, from [`Allocator::turn`].
pub(crate) struct TurnState {
    pub(crate) closing: bool,
    /// A stream has this head as its current head.
    pub(crate) current: bool,
    /// The head is not lent; or it is parked, has a superzone, and is lent to a stream of its
    /// own class.
    pub(crate) lent_rightly: bool,
    pub(crate) permits: Option<u32>,
}

impl Allocator {
    /// Returns the state of a head.
    pub(crate) fn turn(&self, head: usize) -> TurnState {
        let turn = &self.cursors[head];
        let owner = self.stream_of_head(head);
        let lent_rightly = turn.lent.is_none_or(|to| {
            let free = turn.parked && !turn.closing && turn.head.superzone.is_some();
            free && to != owner && self.class_of(owner).contains(&to)
        });
        TurnState {
            closing: turn.closing,
            current: self.streams.streams.iter().any(|stream| stream.current == head),
            lent_rightly,
            permits: turn.permit.as_ref().map(Permit::count),
        }
    }

    /// Checks the counts that the checkpoint under way covers against the totals since the last
    /// durable checkpoint.
    pub(crate) fn audit_snapshot(&self) -> Result<()> {
        self.since_checkpoint.audit()
    }

    /// Number of permits that logs and heads hold.
    pub(in crate::alloc) fn permits_of_heads(&self) -> u32 {
        let heads = self.cursors.iter().filter_map(|turn| turn.permit.as_ref());
        heads.chain(&self.streams.reserved).map(Permit::count).sum()
    }

    /// Checks the budget against the permits that logs and heads hold.
    pub(crate) fn audit_permits(&self) -> Result<()> {
        // The budget may have more permits taken: those of a superzone that a head has left stay
        // taken until its writes have completed.
        let (taken, held) = (self.permits().1, self.permits_of_heads());
        at_most("permits of heads and logs, by the budget", taken, held)?;
        self.streams.budget.audit()
    }
}

#[cfg(test)]
impl Allocator {
    /// Drops the permits of a head.
    pub(crate) fn corrupt_permit(&mut self, head: usize) {
        drop(self.cursors[head].permit.take());
    }

    /// Forgets the valid blocks of a superzone.
    pub(crate) fn corrupt_valid(&mut self, superzone: u32) {
        self.superzone_valid[superzone as usize] = 0;
    }

    /// Gives access to a head, to corrupt it.
    pub(crate) fn corrupt_head(&mut self, head: usize) -> &mut super::Head {
        &mut self.cursors[head].head
    }
}
