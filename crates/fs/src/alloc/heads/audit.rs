//! The audit of heads' permits, and what other audits need to know of a head.

use crate::accounts::at_most;
use crate::alloc::Allocator;
use furrow_log::budget::Permit;
use furrow_zone::Result;

/// State of a head: see [`Allocator::turn`].
pub(crate) struct TurnState {
    pub(crate) closing: bool,
    /// A stream has this head as its current head.
    pub(crate) current: bool,
    /// The head is not lent; or the head is parked, has a superzone, and is lent to a stream of its
    /// class.
    pub(crate) lent_rightly: bool,
    pub(crate) permits: Option<u32>,
}

impl Allocator {
    /// State of a head.
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

    /// Checks the accounts of the checkpoint under way against the totals since the last one.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit_snapshot(&self) -> Result<()> {
        self.since_checkpoint.audit()
    }

    /// Permits that logs and heads hold.
    pub(in crate::alloc) fn permits_of_heads(&self) -> u32 {
        let heads = self.cursors.iter().filter_map(|turn| turn.permit.as_ref());
        heads.chain(&self.streams.reserved).map(Permit::count).sum()
    }

    /// The budget against the permits that logs and heads hold.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit_permits(&self) -> Result<()> {
        // Other permits are held until the writes to a superzone that was left have completed.
        let (taken, held) = (self.permits().1, self.permits_of_heads());
        at_most(format_args!("permits of heads and logs, by the budget"), taken, held)?;
        self.streams.budget.audit()
    }
}

#[cfg(test)]
impl Allocator {
    /// Loses the permits of a head.
    pub(crate) fn corrupt_permit(&mut self, head: usize) {
        drop(self.cursors[head].permit.take());
    }

    /// Forgets the valid blocks of a superzone.
    pub(crate) fn corrupt_valid(&mut self, superzone: u32) {
        self.superzone_valid[superzone as usize] = 0;
    }

    /// The head of that number.
    pub(crate) fn corrupt_head(&mut self, head: usize) -> &mut super::Head {
        &mut self.cursors[head].head
    }
}
