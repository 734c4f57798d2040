//! The queue of requests that lack space, and the attempts made for the first request.

use furrow_rt::Semaphore;

/// Numbers of attempts to gain space for one operation. They restart at zero when the spare space
/// exceeds `most`, its maximum so far.
#[derive(Default)]
pub(crate) struct Tried {
    pub(super) most: u64,
    pub(super) checkpoints: u32,
    pub(super) steps: u32,
}

/// The queue of requests that lack space, first in, first out.
///
/// Invariants:
/// - The permit of `line` is taken while any request waits: then only the permit's holder, and
///   removals, are granted space.
/// - `first` is set only while the operation of that holder runs.
pub(crate) struct SpaceQueue {
    /// A single permit, held by the first request in the queue.
    pub(super) line: Semaphore,
    /// The operation that runs now is the first in the queue.
    pub(super) first: bool,
}

impl Default for SpaceQueue {
    fn default() -> SpaceQueue {
        SpaceQueue { line: Semaphore::new(1), first: false }
    }
}

impl SpaceQueue {
    /// True if a request waits for space.
    pub(crate) fn has_requests(&self) -> bool {
        self.line.available() == 0
    }

    /// Sets whether the operation that runs now is the first in the queue.
    pub(crate) fn set_first(&mut self, first: bool) {
        self.first = first;
    }
}
