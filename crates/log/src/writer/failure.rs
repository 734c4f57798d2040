//! How zones that failed are closed, and who learns of their failures.

use super::Writer;
use super::failed_zones::Failure;
use crate::zone_queue::ZoneQueue;
use furrow_zone::{Action, Command, Error, Request, Result, Target, ZoneId, ZoneState};
use std::rc::Rc;

impl Writer {
    /// Takes every zone out of use: submitted writes complete, and no more writes can be submitted.
    pub fn let_go(&self) {
        for zone_queue in self.0.zone_queues.borrow_mut().iter_mut().filter_map(Option::take) {
            drop(zone_queue.retire());
        }
    }

    /// Closes `zone` to further writes, because a write to it may have failed. Waits until none of
    /// its writes is in flight, and finishes the zone if that is possible. Then the writes to the
    /// zone opened after it are sent.
    ///
    /// # Errors
    /// `Io` if the drive does not answer, or keeps the zone active.
    pub async fn close(&self, zone: ZoneId) -> Result<()> {
        let Some(zone_queue) = self.zone_queue(zone) else { return Ok(()) };
        zone_queue.seal();
        let this = self.clone();
        // The close runs in a separate task, so it runs to completion even if the caller drops
        // its future.
        let task = self.0.shared.rt.spawn(async move {
            std::future::poll_fn(|cx| zone_queue.poll_idle(cx)).await;
            match this.finish_if_any(zone).await {
                Ok(()) => zone_queue.is_over(),
                // The zone opened after this one fails too.
                Err(error) => {
                    zone_queue.cannot_end(&error);
                    return Err(error);
                }
            }
            Ok(())
        });
        task.await
    }

    /// Waits until the drive holds no resources for `zone`, if the zone is open in this writer.
    pub async fn freed(&self, zone: ZoneId) {
        if let Some(zone_queue) = self.zone_queue(zone) {
            // The result is ignored: an error means that the zone failed and that nothing will
            // close it any more.
            let _ = std::future::poll_fn(|cx| zone_queue.poll_free(&self.0.shared, cx)).await;
        }
    }

    async fn finish_if_any(&self, zone: ZoneId) -> Result<()> {
        let state = self.state(zone).await?;
        if !state.is_some_and(|state| state.is_active() || state == ZoneState::Empty) {
            return Ok(());
        }
        let target = Target::Zone(self.geometry().start(zone));
        let command = Command::Manage { target, action: Action::Finish };
        let answer = self.0.shared.device.submit(self.queue(zone), Request::bare(command)).await;
        if answer.status.is_ok() {
            self.0.shared.counters.borrow_mut().finishes += 1;
        } else if self.state(zone).await?.is_some_and(ZoneState::is_active) {
            let what = format!("finish of zone {zone}");
            return Err(Error::device(&self.0.shared.device.name(), what, answer.status));
        }
        Ok(())
    }

    /// Asks the drive for the state of `zone`.
    async fn state(&self, zone: ZoneId) -> Result<Option<ZoneState>> {
        let reports = self.0.shared.device.report(zone, 1).await;
        let refused =
            |s| Error::device(&self.0.shared.device.name(), format!("report zone {zone}"), s);
        Ok(reports.map_err(refused)?.first().map(|report| report.state))
    }

    /// Announces that from now on the engine writes the lost blocks of a failed zone elsewhere and
    /// closes the zone, until [`Writer::give_up`].
    pub fn relocates(&self) {
        self.0.shared.failed.set_relocated(true);
    }

    /// Announces that nothing will be relocated any more: writes held back by failed zones
    /// fail too.
    pub fn give_up(&self) {
        self.0.shared.failed.set_relocated(false);
        let zone_queues: Vec<Rc<ZoneQueue>> =
            self.0.zone_queues.borrow().iter().flatten().cloned().collect();
        zone_queues.iter().for_each(|zone_queue| zone_queue.wake_if_failed());
    }

    /// Notes that the lost blocks of `zone` are elsewhere now: waits no longer return its failure.
    pub fn forgive(&self, zone: ZoneId) {
        self.0.shared.failed.drop_of(zone);
    }

    /// Returns the first write failure that was neither forgotten nor forgiven; if there is none,
    /// the failure of a flush.
    pub fn failed(&self) -> Option<Error> {
        self.0.shared.failed.first().or_else(|| self.flush_failed())
    }

    /// Returns the first failure of each zone, in order, except failures that were forgotten
    /// or forgiven.
    pub fn failures(&self) -> Vec<Failure> {
        self.0.shared.failed.all()
    }

    /// Waits until more than `seen` failures were noted since the writer was made, and returns the
    /// number of failures.
    pub async fn more_failures(&self, seen: u64) -> u64 {
        self.0.shared.failed.more_than(seen).await
    }

    /// True if some write failure was neither forgotten nor forgiven.
    pub fn has_failures(&self) -> bool {
        self.0.shared.failed.first().is_some()
    }

    /// Returns the failure of a flush, if one failed.
    pub fn flush_failed(&self) -> Option<Error> {
        self.0.flushes.failed()
    }
}
