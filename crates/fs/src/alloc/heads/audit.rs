//! The audit of heads' permits, and what other audits need to know of a head.

use super::Streams;
use crate::audit::at_most;
use furrow_log::budget::Permit;
use furrow_zone::Result;

/// What a head may do: see [`Streams::turn`].
pub(crate) struct TurnState {
    pub(crate) closing: bool,
    pub(crate) permits: Option<u32>,
}

impl Streams {
    /// What a head may do.
    pub(crate) fn turn(&self, head: usize) -> TurnState {
        let turn = &self.turns[head];
        TurnState { closing: turn.closing, permits: turn.permit.as_ref().map(Permit::count) }
    }

    /// The budget against the permits that logs and heads hold.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit(&self) -> Result<()> {
        let heads = self.turns.iter().filter_map(|turn| turn.permit.as_ref());
        let held: u32 = heads.chain(&self.reserved).map(Permit::count).sum();
        let taken = self.budget.total() - self.budget.available();
        // Others are held until the writes of a superzone that was left are over.
        at_most(format_args!("permits of heads and logs, by the budget"), taken, held)?;
        self.budget.audit()
    }
}

#[cfg(test)]
impl Streams {
    /// Loses the permits of a head.
    pub(crate) fn corrupt_permit(&mut self, head: usize) {
        drop(self.turns[head].permit.take());
    }
}
