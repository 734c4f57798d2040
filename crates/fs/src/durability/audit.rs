//! Audits of durability: writes in flight, checkpoints, the sync log.

use crate::core::Core;
use crate::durability::sync::RECORDS_IN_FLIGHT;
use furrow_log::audit::{at_most, equal, expect};
use furrow_zone::Result;

impl Core {
    /// Checks writes in flight, the checkpoint and the sync log against the cache and the
    /// writer's positions.
    pub(crate) fn audit_logs(&self) -> Result<()> {
        let out = self.cache.writes_out();
        let account = format_args!("Dispatched::in_flight, by the pages that the cache handed out");
        equal(
            account,
            out,
            self.durability.writes.in_flight + self.durability.writes.tickets.len(),
        )?;
        let ring = usize::from(self.durability.checkpoint.ring);
        let account = format_args!("checkpoint.ring_used of zone {ring} of the ring");
        expect(account, self.durability.checkpoint.ring_used[ring], "used: it is written now")?;
        self.alloc.audit_snapshot()?;
        for half in [0, 1] {
            self.audit_sync_half(half)?;
        }
        let (waiting, records) = (self.durability.sync.waiters(), self.durability.sync.in_flight());
        at_most("SyncLog::in_flight", RECORDS_IN_FLIGHT, records)?;
        let account = format_args!("SyncLog::in_flight while {waiting} wait");
        expect(account, waiting == 0 || records > 0, "a record in flight that they wait for")
    }

    /// Checks one half of the sync log: whether it is used, and its next block.
    fn audit_sync_half(&self, half: u8) -> Result<()> {
        let stripe = self.env.layout.sync_stripe();
        for (column, zone) in (0..).zip(self.env.layout.sync_half(half)) {
            if !self.env.writer.is_open(zone) {
                continue;
            }
            let position = self.env.writer.position(zone);
            let account = format_args!("SyncLog::used of half {half}");
            let used = self.durability.sync.is_used(half);
            expect(account, used || position == 0, "used, by the writer's position in its zones")?;
            // When the log leaves a half before it is full, `next` is set to the end of the half
            // at once.
            if half == self.durability.sync.half() && self.durability.sync.next() < stripe.blocks()
            {
                let account = format_args!("SyncLog::next, by the position in zone {zone}");
                equal(account, position, stripe.fill(column, self.durability.sync.next()))?;
            }
        }
        Ok(())
    }
}
