//! Flushes on their way: the one in flight, and the callers that wait for the next one.

use crate::zone_queue::shared::Shared;
use furrow_zone::{Command, Error, QueueId, Request, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// One flush command, and the callers that share it.
#[derive(Default)]
pub(super) struct Round {
    result: RefCell<Option<Result<()>>>,
    waiters: RefCell<Vec<Waker>>,
}

impl Round {
    /// Waits until the flush is answered.
    pub(super) async fn done(&self) -> Result<()> {
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

/// A flush of writes that were in flight when it was requested: see
/// [`Writer::flush_early`](super::Writer::flush_early).
#[must_use = "what it covers is durable after `Writer::flush_after`"]
pub struct EarlyFlush {
    pub(super) round: Rc<Round>,
    /// Numbers of failed zones and of retried writes when the flush was requested. If either grows,
    /// the flush may have missed blocks.
    pub(super) mishaps: (u64, u64),
}

/// The flushes of a drive.
#[derive(Default)]
pub(super) struct Flushes {
    /// The flush that starts next; `None` while no caller has asked for one.
    next: RefCell<Option<Rc<Round>>>,
    running: Cell<bool>,
    failed: RefCell<Option<Error>>,
}

impl Flushes {
    /// Joins the next flush that is sent.
    pub(super) fn join(self: &Rc<Flushes>, shared: &Rc<Shared>) -> Rc<Round> {
        let round = self.next.borrow_mut().get_or_insert_default().clone();
        if !self.running.replace(true) {
            shared.rt.spawn_detached(run(self.clone(), shared.clone()));
        }
        round
    }

    /// Whether flushes are being sent.
    pub(super) fn are_running(&self) -> bool {
        self.running.get()
    }

    /// Returns the failure of a flush, if one failed.
    pub(super) fn failed(&self) -> Option<Error> {
        self.failed.borrow().clone()
    }
}

/// Sends flushes, one at a time, as long as callers wait for the next one.
async fn run(flushes: Rc<Flushes>, shared: Rc<Shared>) {
    loop {
        let Some(round) = flushes.next.borrow_mut().take() else { break };
        shared.counters.borrow_mut().flushes += 1;
        let status = shared.device.submit(QueueId(0), Request::bare(Command::Flush)).await.status;
        let result = if status.is_ok() {
            Ok(())
        } else {
            let error = Error::device(&shared.device.name(), "flush", status);
            flushes.failed.borrow_mut().get_or_insert(error.clone());
            Err(error)
        };
        *round.result.borrow_mut() = Some(result);
        let waiters = std::mem::take(&mut *round.waiters.borrow_mut());
        waiters.into_iter().for_each(Waker::wake);
    }
    flushes.running.set(false);
}
