//! Submission rings: one per thread and engine, written by the thread, read by the holder of
//! the engine.
//!
//! A ring is bounded. A full ring spills into a locked queue instead of blocking, because its
//! writer may be the holder itself, in the middle of a request. Entries leave a ring in the order
//! in which they entered it.
//!
//! Invariants, which make the two `unsafe` blocks sound:
//! - `head <= tail <= head + SLOTS`; slots in `head..tail` are full, the others empty.
//! - Only the [`Producer`] writes `tail`, and only to slots outside `head..tail`; only the
//!   [`Consumer`] writes `head`, and only reads slots inside. Neither can be cloned, and both work
//!   by `&mut self`, so each side is one thread at a time.
//! - While spilled entries exist, new ones are spilled too, so the order is kept.

#![allow(unsafe_code)]

use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, UnsafeCell};
use std::collections::VecDeque;
use std::sync::PoisonError;

/// Number of entries in a ring: more than a caller that waits for its answers has in flight, and
/// enough for a session thread that submits without waiting.
#[cfg(not(loom))]
const SLOTS: usize = 64;
/// Small enough that the checker reaches a full ring.
#[cfg(loom)]
const SLOTS: usize = 2;

/// A value in a cache line of its own, so that the producer and the consumer do not slow each
/// other down.
#[repr(align(64))]
struct Line<T>(T);

struct Ring<T> {
    head: Line<AtomicUsize>,
    tail: Line<AtomicUsize>,
    slots: Box<[UnsafeCell<Option<T>>]>,
    /// Number of entries in `spill`; written under the lock of `spill`.
    spilled: AtomicUsize,
    spill: Mutex<VecDeque<T>>,
    /// Whether the producer was dropped.
    closed: AtomicBool,
    /// Whether the consumer was dropped.
    orphaned: AtomicBool,
}

// SAFETY: entries are handed from one thread to the other through slots that only one side may
// touch at a time (module header), ordered by the release and acquire of `head` and `tail`.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the ring owns its entries, which are `Send`.
unsafe impl<T: Send> Send for Ring<T> {}

/// The writing end of a ring.
pub(crate) struct Producer<T>(Arc<Ring<T>>);

/// The reading end of a ring.
pub(crate) struct Consumer<T>(Arc<Ring<T>>);

/// Creates a ring and returns its two ends.
pub(crate) fn ring<T: Send>() -> (Producer<T>, Consumer<T>) {
    let ring = Arc::new(Ring {
        head: Line(AtomicUsize::new(0)),
        tail: Line(AtomicUsize::new(0)),
        slots: (0..SLOTS).map(|_| UnsafeCell::new(None)).collect(),
        spilled: AtomicUsize::new(0),
        spill: Mutex::new(VecDeque::new()),
        closed: AtomicBool::new(false),
        orphaned: AtomicBool::new(false),
    });
    (Producer(ring.clone()), Consumer(ring))
}

impl<T> Producer<T> {
    /// Adds an entry, without waiting for the consumer.
    pub(crate) fn push(&mut self, entry: T) {
        let ring = &*self.0;
        let tail = ring.tail.0.load(Ordering::Relaxed);
        // Acquire: the consumer has finished with the slots before `head`. A stale `spilled` can
        // only be too large, because only this thread increases it; then the entry is spilled, too.
        let head = ring.head.0.load(Ordering::Acquire);
        if tail.wrapping_sub(head) == SLOTS || ring.spilled.load(Ordering::Acquire) > 0 {
            let mut spill = ring.spill.lock().unwrap_or_else(PoisonError::into_inner);
            spill.push_back(entry);
            ring.spilled.store(spill.len(), Ordering::Release);
            return;
        }
        ring.slots[tail % SLOTS].with_mut(|slot| {
            // SAFETY: the slot at `tail` is outside `head..tail`, so the consumer does not touch
            // it until the store below; no other producer exists.
            unsafe { *slot = Some(entry) }
        });
        ring.tail.0.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Whether no consumer will read this ring any more.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.0.orphaned.load(Ordering::Acquire)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest entry if it is `wanted`.
    pub(crate) fn pop_if(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let ring = &*self.0;
        let head = ring.head.0.load(Ordering::Relaxed);
        if head == ring.tail.0.load(Ordering::Acquire) {
            return self.pop_spilled(wanted);
        }
        let slot = &ring.slots[head % SLOTS];
        let taken = slot.with_mut(|slot| {
            // SAFETY: the slot at `head` is inside `head..tail`, so the producer does not touch
            // it until the store below; no other consumer exists.
            let slot = unsafe { &mut *slot };
            slot.take_if(|entry| wanted(entry))
        });
        if taken.is_some() {
            ring.head.0.store(head.wrapping_add(1), Ordering::Release);
        }
        taken
    }

    fn pop_spilled(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let ring = &*self.0;
        if ring.spilled.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut spill = ring.spill.lock().unwrap_or_else(PoisonError::into_inner);
        // Entries in the slots are older than the first spilled one. They may have become visible
        // only when this thread took the lock.
        if ring.head.0.load(Ordering::Relaxed) != ring.tail.0.load(Ordering::Acquire) {
            drop(spill);
            return self.pop_if(wanted);
        }
        if !wanted(spill.front()?) {
            return None;
        }
        let entry = spill.pop_front();
        ring.spilled.store(spill.len(), Ordering::Release);
        entry
    }

    /// Whether the producer is gone and the ring is empty, so that the consumer can drop it.
    pub(crate) fn is_over(&self) -> bool {
        let ring = &*self.0;
        // The order of these checks matters: after `closed` no entry is added.
        ring.closed.load(Ordering::Acquire)
            && ring.head.0.load(Ordering::Relaxed) == ring.tail.0.load(Ordering::Acquire)
            && ring.spilled.load(Ordering::Acquire) == 0
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.0.orphaned.store(true, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::disallowed_methods, reason = "the two ends on two threads")]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_through_a_spill_and_back() {
        let (mut producer, mut consumer) = ring();
        let mut next = 0;
        for count in [1, SLOTS, 3 * SLOTS, 5, SLOTS - 1, 2] {
            (0..count).for_each(|i| producer.push(next + i));
            for i in 0..count {
                assert_eq!(consumer.pop_if(|entry| *entry > next + i), None);
                assert_eq!(consumer.pop_if(|_| true), Some(next + i));
            }
            assert_eq!(consumer.pop_if(|_| true), None);
            next += count;
        }
        producer.push(1);
        drop(producer);
        assert!(!consumer.is_over());
        assert_eq!(consumer.pop_if(|_| true), Some(1));
        assert!(consumer.is_over());
    }

    #[test]
    fn entries_arrive_once_and_in_order_between_threads() {
        let (mut producer, mut consumer) = ring();
        let writer = std::thread::spawn(move || (0..20_000u32).for_each(|i| producer.push(i)));
        let mut next = 0;
        while next < 20_000 {
            match consumer.pop_if(|_| true) {
                Some(entry) => {
                    assert_eq!(entry, next);
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        writer.join().unwrap();
        assert!(consumer.is_over());
    }
}
