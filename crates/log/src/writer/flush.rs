//! Flushes: callers that ask while one is in flight share the next one.
//!
//! On some drives a flush covers writes that were submitted before it and are not answered yet.
//! There a flush need not wait for the answers ([`Writer::flush_early`]): writes and flush are sent
//! together, and the caller waits once instead of twice.

use super::{Shared, Writer};
use furrow_policy::LogDefect;
use furrow_zone::{Command, Error, QueueId, Request, Result};
use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// One flush command, and the callers that share it.
#[derive(Default)]
pub(super) struct Round {
    result: RefCell<Option<Result<()>>>,
    waiters: RefCell<Vec<Waker>>,
}

impl Round {
    async fn done(&self) -> Result<()> {
        std::future::poll_fn(|cx| {
            if let Some(result) = &*self.result.borrow() {
                return Poll::Ready(result.clone());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// A flush of writes that were in flight when it was requested: see [`Writer::flush_early`].
#[must_use = "what it covers is durable after `Writer::flush_after`"]
pub struct EarlyFlush {
    round: Rc<Round>,
    /// Failures and retries when the flush was requested: see [`Writer::mishaps`].
    mishaps: (u64, u64),
}

impl Writer {
    /// Makes all writes durable that were answered before the call. Returns at once on a drive
    /// without a volatile cache. Calls made while a flush is in flight share the next flush. The
    /// flush continues if the future is dropped.
    ///
    /// # Errors
    /// The drive's error if it fails a flush. Every later call fails too, because nobody knows how
    /// much was lost.
    pub async fn flush(&self) -> Result<()> {
        if self.has(LogDefect::SkippedFlush) {
            return Ok(());
        }
        if let Some(error) = self.0.flush_failed.borrow().clone() {
            return Err(error);
        }
        if !self.geometry().volatile_cache {
            return Ok(());
        }
        self.ask_flush().done().await
    }

    /// Requests a flush of the writes dispatched before the call, without waiting for their
    /// answers. `None` if the drive's flushes do not cover writes in flight, if not all writes are
    /// with the drive yet, or if a flush is in flight. [`Writer::flush_after`] takes the result in
    /// either case.
    pub async fn flush_early(&self) -> Option<EarlyFlush> {
        let covers = self.geometry().volatile_cache && self.0.device.flush_covers_submitted();
        if !covers || self.has(LogDefect::SkippedFlush) || self.flush_failed().is_some() {
            return None;
        }
        if self.0.flushing.get() {
            return None;
        }
        // First let the tasks run that send the writes just dispatched.
        self.0.rt.yield_now().await;
        let all_sent = self.0.in_flight.borrow().unsent() == 0;
        all_sent.then(|| EarlyFlush { round: self.ask_flush(), mishaps: self.mishaps() })
    }

    /// Completes an early flush: on return, every write that was dispatched before
    /// [`Writer::flush_early`] and has been answered is durable. Flushes again if a zone has
    /// failed or a write was retried meanwhile, because blocks may then have been written after
    /// the early flush.
    ///
    /// # Errors
    /// As [`Writer::flush`].
    pub async fn flush_after(&self, early: Option<EarlyFlush>) -> Result<()> {
        match early {
            Some(EarlyFlush { round, mishaps }) if mishaps == self.mishaps() => round.done().await,
            _ => self.flush().await,
        }
    }

    /// Counts the noted failures of zones, and the retried writes, since the writer was made.
    fn mishaps(&self) -> (u64, u64) {
        (self.0.noted.get(), self.0.counters.borrow().retries)
    }

    /// Joins the next flush that is sent.
    fn ask_flush(&self) -> Rc<Round> {
        let round = self.0.next_flush.borrow_mut().get_or_insert_default().clone();
        if !self.0.flushing.replace(true) {
            self.0.rt.spawn_detached(run_flushes(self.0.clone()));
        }
        round
    }
}

/// Sends flushes, one at a time, until no caller waits for a flush that has not started.
async fn run_flushes(shared: Rc<Shared>) {
    loop {
        let Some(round) = shared.next_flush.borrow_mut().take() else { break };
        shared.counters.borrow_mut().flushes += 1;
        let status = shared.device.submit(QueueId(0), Request::bare(Command::Flush)).await.status;
        let result = if status.is_ok() {
            Ok(())
        } else {
            let error = Error::device(&shared.device.name(), "flush", status);
            shared.flush_failed.borrow_mut().get_or_insert(error.clone());
            Err(error)
        };
        *round.result.borrow_mut() = Some(result);
        let waiters = std::mem::take(&mut *round.waiters.borrow_mut());
        waiters.into_iter().for_each(Waker::wake);
    }
    shared.flushing.set(false);
}
