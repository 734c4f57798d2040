//! The handle of a submitted write.

use crate::zone_queue::ZoneQueue;
use furrow_zone::Result;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Resolves to the block at which a write begins, once the write is durable as requested. A handle
/// can be dropped: the write continues.
#[must_use = "a write's fate is told here; drop it only where something else learns of it"]
pub struct WriteHandle {
    pub(super) zone_queue: Option<Rc<ZoneQueue>>,
    pub(super) at: u32,
    pub(super) end: u32,
    /// The write's number in the order of dispatch; `None` if the write has no blocks.
    pub(super) sequence: Option<u64>,
    pub(super) fua: bool,
    /// The block at which an append begins, once it has completed.
    pub(super) landed: Option<Rc<Cell<u32>>>,
}

impl WriteHandle {
    /// The first block that was set aside for the write: where the write begins, unless it is
    /// an append.
    pub fn at(&self) -> u32 {
        self.at
    }

    pub(crate) fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    pub(crate) fn is_fua(&self) -> bool {
        self.fua
    }
}

impl Future for WriteHandle {
    type Output = Result<u32>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<u32>> {
        let reached = match &self.zone_queue {
            None => Poll::Ready(Ok(())),
            Some(zone_queue) => zone_queue.poll_reached(self.end, cx),
        };
        reached.map_ok(|()| self.landed.as_ref().map_or(self.at, |at| at.get()))
    }
}
