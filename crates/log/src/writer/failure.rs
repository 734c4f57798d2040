//! Zones that failed: what they have lost, and how they end.

use super::{Shared, Writer};
use crate::zone_queue::ZoneQueue;
use furrow_zone::{Action, Command, Error, Request, Result, Target, ZoneId, ZoneState};
use std::rc::Rc;

/// What a zone has lost: see [`Writer::failures`].
#[derive(Clone, Debug)]
pub struct Failure {
    /// The zone.
    pub zone: ZoneId,
    /// Blocks from here on were not written, as far as anybody knows.
    pub from: u32,
    /// True if the drive says that it was this zone: others can be written.
    pub of_zone: bool,
    /// What the drive said.
    pub error: Error,
    /// The first write that failed.
    pub(crate) sequence: u64,
}

impl Shared {
    /// Keeps the first failure of a zone until it is forgotten.
    pub(crate) fn note_failure(&self, failure: Failure) {
        let mut failures = self.failures.borrow_mut();
        if failures.iter().any(|known| known.zone == failure.zone) {
            return;
        }
        failures.push(failure);
        drop(failures);
        self.noted.set(self.noted.get() + 1);
        self.failing.notify_all();
        if self.relocates.get() {
            self.in_flight.borrow_mut().wake_all();
        }
    }
}

impl Writer {
    /// Lets go of the drive: what is under way is finished, nothing else is written.
    pub fn let_go(&self) {
        for zone_queue in self.0.zone_queues.borrow_mut().iter_mut().filter_map(Option::take) {
            drop(zone_queue.retire());
        }
    }

    /// Ends `zone`, of which a write may have failed: nothing more is written to it. Waits until
    /// none of its writes is in flight and finishes it, if that can be. What was opened behind it
    /// then goes on.
    ///
    /// # Errors
    /// `Io` if the drive does not answer, or keeps the zone active.
    pub async fn close(&self, zone: ZoneId) -> Result<()> {
        let Some(zone_queue) = self.zone_queue(zone) else { return Ok(()) };
        zone_queue.seal();
        let this = self.clone();
        // A task of its own: half a close must not be left behind by a dropped caller.
        let task = self.0.rt.spawn(async move {
            std::future::poll_fn(|cx| zone_queue.poll_idle(cx)).await;
            match this.finish_if_any(zone).await {
                Ok(()) => zone_queue.is_over(),
                // Nor will what waits behind it go on.
                Err(error) => {
                    zone_queue.cannot_end(&error);
                    return Err(error);
                }
            }
            Ok(())
        });
        task.await
    }

    /// Waits until the drive holds no resources for `zone`, as far as it was written here.
    pub async fn freed(&self, zone: ZoneId) {
        if let Some(zone_queue) = self.zone_queue(zone) {
            // Where nobody will close a failed zone any more there is nothing to wait for.
            let _ = std::future::poll_fn(|cx| zone_queue.poll_free(&self.0, cx)).await;
        }
    }

    async fn finish_if_any(&self, zone: ZoneId) -> Result<()> {
        let state = self.state(zone)?;
        if !state.is_some_and(|state| state.is_active() || state == ZoneState::Empty) {
            return Ok(());
        }
        let target = Target::Zone(self.geometry().start(zone));
        let command = Command::Manage { target, action: Action::Finish };
        let answer = self.0.device.submit(self.queue(zone), Request::bare(command)).await;
        if answer.status.is_ok() {
            self.0.counters.borrow_mut().finishes += 1;
        } else if self.state(zone)?.is_some_and(ZoneState::is_active) {
            let what = format!("finish of zone {zone}");
            return Err(Error::device(&self.0.device.name(), what, answer.status));
        }
        Ok(())
    }

    /// What the drive says of `zone`.
    fn state(&self, zone: ZoneId) -> Result<Option<ZoneState>> {
        let reports = self.0.device.report(zone, 1);
        let refused = |s| Error::device(&self.0.device.name(), format!("report zone {zone}"), s);
        Ok(reports.map_err(refused)?.first().map(|report| report.state))
    }

    /// From now on the engine writes elsewhere what a failed zone has lost, and closes that; until
    /// it gives up.
    pub fn relocates(&self) {
        self.0.relocates.set(true);
    }

    /// Nothing will be relocated any more: what is held back behind failed zones fails as well.
    pub fn give_up(&self) {
        self.0.relocates.set(false);
        let zone_queues: Vec<Rc<ZoneQueue>> =
            self.0.zone_queues.borrow().iter().flatten().cloned().collect();
        zone_queues.iter().for_each(|zone_queue| zone_queue.wake_if_failed());
    }

    /// What `zone` has lost is elsewhere: waits tell of its failure no more.
    pub fn forgive(&self, zone: ZoneId) {
        self.0.failures.borrow_mut().retain(|failure| failure.zone != zone);
    }

    /// The first failure that was not forgotten: of a write, else of a flush.
    pub fn failed(&self) -> Option<Error> {
        let first = self.0.failures.borrow().first().map(|failure| failure.error.clone());
        first.or_else(|| self.0.flush_failed.borrow().clone())
    }

    /// What failed and was neither forgotten nor forgiven, in order; the first of each zone.
    pub fn failures(&self) -> Vec<Failure> {
        self.0.failures.borrow().clone()
    }

    /// Waits until more zones have failed than `seen`, since the writer was made: how many.
    pub async fn more_failures(&self, seen: u64) -> u64 {
        while self.0.noted.get() <= seen {
            self.0.failing.wait().await;
        }
        self.0.noted.get()
    }

    /// True if a write failed, and that was neither forgotten nor forgiven.
    pub fn has_failures(&self) -> bool {
        !self.0.failures.borrow().is_empty()
    }

    /// The failure of a flush.
    pub fn flush_failed(&self) -> Option<Error> {
        self.0.flush_failed.borrow().clone()
    }
}
