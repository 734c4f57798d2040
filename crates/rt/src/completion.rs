//! Completion tables: how a device answers a command without allocating for each.
//!
//! The submitter gets a [`Completion`], a future that names a slot of the table; the device
//! fills the slot with [`CompletionTable::complete`]. Buffers in flight belong to the device or the
//! table, never to the waiting task: a dropped `Completion` loses only the answer.

use slab::Slab;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

enum Slot<T> {
    Waiting(Option<Waker>),
    Done(T),
    Abandoned,
}

/// The slots of one device's commands in flight.
pub struct CompletionTable<T> {
    slots: Rc<RefCell<Slab<Slot<T>>>>,
}

impl<T> Clone for CompletionTable<T> {
    fn clone(&self) -> Self {
        CompletionTable { slots: self.slots.clone() }
    }
}

impl<T> Default for CompletionTable<T> {
    fn default() -> Self {
        CompletionTable { slots: Rc::new(RefCell::new(Slab::new())) }
    }
}

impl<T> CompletionTable<T> {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new slot: the ticket is the device's end, the completion the submitter's.
    pub fn open(&self) -> (Ticket, Completion<T>) {
        let key = self.slots.borrow_mut().insert(Slot::Waiting(None));
        (Ticket(key), Completion { slots: self.slots.clone(), key })
    }

    /// Answers the command of `ticket` and wakes who waits for it.
    pub fn complete(&self, ticket: Ticket, value: T) {
        let waker = {
            let mut slots = self.slots.borrow_mut();
            match std::mem::replace(&mut slots[ticket.0], Slot::Abandoned) {
                Slot::Waiting(waker) => {
                    slots[ticket.0] = Slot::Done(value);
                    waker
                }
                Slot::Abandoned => {
                    slots.remove(ticket.0);
                    None
                }
                Slot::Done(_) => unreachable!("invariant: a ticket is used once"),
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Commands not yet answered, or answered and not yet picked up.
    pub fn len(&self) -> usize {
        self.slots.borrow().len()
    }

    /// True if nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The device's end of a slot. Not `Clone`: it is answered once.
#[derive(Debug)]
pub struct Ticket(usize);

/// The submitter's end of a slot: resolves to the device's answer.
#[must_use = "a command is answered here"]
pub struct Completion<T> {
    slots: Rc<RefCell<Slab<Slot<T>>>>,
    key: usize,
}

impl<T> Future for Completion<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        let mut slots = this.slots.borrow_mut();
        match &mut slots[this.key] {
            Slot::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Slot::Done(_) => match slots.remove(this.key) {
                Slot::Done(value) => {
                    this.key = usize::MAX;
                    Poll::Ready(value)
                }
                _ => unreachable!("matched above"),
            },
            Slot::Abandoned => unreachable!("invariant: only drop abandons a slot"),
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        if self.key == usize::MAX {
            return;
        }
        let unwanted = {
            let mut slots = self.slots.borrow_mut();
            match slots[self.key] {
                Slot::Done(_) => slots.remove(self.key),
                _ => std::mem::replace(&mut slots[self.key], Slot::Abandoned),
            }
        };
        // After the borrow: the answer's own drop may complete other commands.
        drop(unwanted);
    }
}
