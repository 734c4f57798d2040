//! Counts what the allocator did since the last durable checkpoint. A crash undoes this work, and
//! recovery may have to repeat it.

use crate::alloc::Allocation;
use furrow_log::audit::{Broken, at_most};
use furrow_zone::Result;

/// Superzones taken and blocks written since the last durable checkpoint.
///
/// Invariant: the counts that the checkpoint under way covers are at most the totals.
#[derive(Default)]
pub(super) struct SinceCheckpoint {
    /// Superzones that heads took.
    allocated: Vec<Allocation>,
    /// Number of superzones of `allocated` that the checkpoint under way covers.
    allocated_in_snapshot: usize,
    /// Number of blocks that a crash now would turn into garbage: the blocks written since the last
    /// durable checkpoint, except for blocks that cleaning alone changed.
    at_risk: u64,
    /// Number of blocks of `at_risk` that the checkpoint under way covers.
    at_risk_in_snapshot: u64,
}

impl SinceCheckpoint {
    /// Notes that a head took a superzone.
    pub(super) fn took(&mut self, superzone: Allocation) {
        self.allocated.push(superzone);
    }

    /// Counts a written block that has changed for a reason other than cleaning.
    pub(super) fn wrote(&mut self) {
        self.at_risk += 1;
    }

    /// Superzones that heads took since the last durable checkpoint.
    pub(super) fn allocated(&self) -> &[Allocation] {
        &self.allocated
    }

    /// Number of blocks that recovery may write again after a crash now: the blocks written, and
    /// the `changed` blocks, which are dirty for a reason other than cleaning moving blocks
    /// below them.
    pub(super) fn to_write_again(&self, changed: u64) -> u64 {
        self.at_risk + changed
    }

    /// Takes the counts of a checkpoint's snapshot, which covers everything up to now.
    pub(super) fn snapshot(&mut self) {
        self.allocated_in_snapshot = self.allocated.len();
        self.at_risk_in_snapshot = self.at_risk;
    }

    /// Notes that the checkpoint under way is durable: removes the superzones and blocks that this
    /// checkpoint covers.
    pub(super) fn durable(&mut self, broken: &Broken) {
        self.allocated.drain(..self.allocated_in_snapshot);
        self.allocated_in_snapshot = 0;
        let covered = std::mem::take(&mut self.at_risk_in_snapshot);
        self.at_risk = broken.less("space.at_risk", self.at_risk, covered);
    }

    /// Checks the accounts of the checkpoint under way against the totals since the last
    /// durable checkpoint.
    ///
    /// # Errors
    /// `Internal`, naming the account that is wrong.
    pub(super) fn audit(&self) -> Result<()> {
        let (all, covered) = (self.allocated.len(), self.allocated_in_snapshot);
        at_most("allocated_in_snapshot", all, covered)?;
        let (all, covered) = (self.at_risk, self.at_risk_in_snapshot);
        at_most("at_risk_in_snapshot", all, covered)
    }
}
