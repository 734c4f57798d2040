//! Flushes: callers that ask while one is in flight share the next one.
//!
//! On some drives a flush covers writes that were submitted before it and are not answered yet.
//! There a flush need not wait for the answers ([`Writer::flush_early`]): writes and flush are sent
//! together, and the caller waits once instead of twice.

use super::Writer;
use super::flush_round::{EarlyFlush, Round};
use furrow_policy::LogDefect;
use furrow_zone::Result;
use std::rc::Rc;

impl Writer {
    /// Makes all writes durable that were answered before the call. Returns at once on a drive
    /// without a volatile cache. Calls made while a flush is in flight share the next flush.
    /// Dropping the future does not stop the flush.
    ///
    /// # Errors
    /// The drive's error if it fails a flush. Every later call fails too, because it is unknown how
    /// much was lost.
    pub async fn flush(&self) -> Result<()> {
        if self.has(LogDefect::SkippedFlush) {
            return Ok(());
        }
        if let Some(error) = self.flush_failed() {
            return Err(error);
        }
        if !self.geometry().volatile_cache {
            return Ok(());
        }
        self.ask_flush().done().await
    }

    /// Requests a flush of the writes dispatched before the call, without waiting for their
    /// answers. `None` if the drive's flushes do not cover writes in flight, if not all writes are
    /// with the drive yet, if a flush is in flight, or if one has failed. [`Writer::flush_after`]
    /// takes the result in either case.
    pub async fn flush_early(&self) -> Option<EarlyFlush> {
        let covers =
            self.geometry().volatile_cache && self.0.shared.device.flush_covers_submitted();
        if !covers || self.has(LogDefect::SkippedFlush) || self.flush_failed().is_some() {
            return None;
        }
        if self.0.flushes.are_running() {
            return None;
        }
        // First let the tasks run that send the writes just dispatched.
        self.0.shared.rt.yield_now().await;
        let all_sent = self.0.shared.in_flight.borrow().unsent() == 0;
        all_sent.then(|| EarlyFlush { round: self.ask_flush(), mishaps: self.mishaps() })
    }

    /// Completes an early flush: on return, every write that was dispatched before
    /// [`Writer::flush_early`] and has been answered is durable. Flushes again if a zone has
    /// failed or a write was retried meanwhile, because blocks may then have been written after
    /// the early flush.
    ///
    /// # Errors
    /// The errors of [`Writer::flush`].
    pub async fn flush_after(&self, early: Option<EarlyFlush>) -> Result<()> {
        match early {
            Some(EarlyFlush { round, mishaps }) if mishaps == self.mishaps() => round.done().await,
            _ => self.flush().await,
        }
    }

    /// Returns the numbers of failures of zones and of retried writes since the writer was made.
    fn mishaps(&self) -> (u64, u64) {
        (self.0.shared.failed.noted(), self.0.shared.counters.borrow().retries)
    }

    /// Joins the next flush that is sent.
    fn ask_flush(&self) -> Rc<Round> {
        self.0.flushes.join(&self.0.shared)
    }
}
