//! Completion tables: how a device answers commands without allocating memory for each.
//!
//! The submitter gets a [`Completion`], a future that names a slot of the table; the device
//! fills the slot with [`CompletionTable::complete`]. Buffers in flight belong to the device or the
//! table, never to the waiting task: a dropped `Completion` loses only the answer.

use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

enum Slot<T> {
    /// Waits for the device's answer; holds the number of the command.
    Waiting(u64, Option<Waker>),
    Done(T),
    /// Answered by [`CompletionTable::give_up`]; the device may still answer.
    GivenUp(T),
    /// The completion was dropped before the device answered.
    Abandoned,
}

/// The slots of a device's commands in flight.
pub struct CompletionTable<T> {
    slots: Rc<RefCell<Slab<Slot<T>>>>,
    /// Number of commands so far; tables made by [`CompletionTable::numbered_together`] share it.
    opened: Rc<Cell<u64>>,
}

impl<T> Clone for CompletionTable<T> {
    fn clone(&self) -> Self {
        CompletionTable { slots: self.slots.clone(), opened: self.opened.clone() }
    }
}

impl<T> Default for CompletionTable<T> {
    fn default() -> Self {
        CompletionTable { slots: Rc::new(RefCell::new(Slab::new())), opened: Rc::default() }
    }
}

impl<T> CompletionTable<T> {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty table for another type of answer. Both tables number their commands from
    /// the same count.
    pub fn numbered_together<U>(&self) -> CompletionTable<U> {
        CompletionTable { slots: Rc::default(), opened: self.opened.clone() }
    }

    /// Opens a slot for a command. The ticket is the device's end, the completion the submitter's.
    pub fn open(&self) -> (Ticket, Completion<T>) {
        let number = self.opened.get();
        self.opened.set(number + 1);
        let key = self.slots.borrow_mut().insert(Slot::Waiting(number, None));
        (Ticket(key), Completion { slots: self.slots.clone(), key })
    }

    /// Answers the command of `ticket` and wakes the task that waits for it.
    pub fn complete(&self, ticket: Ticket, value: T) {
        let waker = {
            let mut slots = self.slots.borrow_mut();
            match std::mem::replace(&mut slots[ticket.0], Slot::Abandoned) {
                Slot::Waiting(_, waker) => {
                    slots[ticket.0] = Slot::Done(value);
                    waker
                }
                // The device answers too late: the submitter gets the answer that `give_up` set.
                Slot::GivenUp(instead) => {
                    slots[ticket.0] = Slot::Done(instead);
                    None
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

    /// Number of the oldest command without an answer; the first command has number 0. `None` if
    /// all commands are answered.
    pub fn oldest(&self) -> Option<u64> {
        let number = |slot: &Slot<T>| match slot {
            Slot::Waiting(number, _) => Some(*number),
            _ => None,
        };
        self.slots.borrow().iter().filter_map(|(_, slot)| number(slot)).min()
    }

    /// Answers every pending command with the result of `instead`, and wakes the tasks that wait.
    /// Later answers of the device to these commands are dropped; their slots are kept until then.
    pub fn give_up(&self, instead: impl Fn() -> T) {
        let mut wakers = Vec::new();
        for (_, slot) in self.slots.borrow_mut().iter_mut() {
            if let Slot::Waiting(_, waker) = slot {
                wakers.extend(waker.take());
                *slot = Slot::GivenUp(instead());
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Number of commands that are not answered yet, or whose answers were not picked up yet.
    pub fn len(&self) -> usize {
        self.slots.borrow().len()
    }

    /// True if no command is in flight and no answer waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The device's end of a slot. Not `Clone`, because a command is answered once.
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
            Slot::Waiting(_, waker) => {
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
            Slot::GivenUp(_) => match std::mem::replace(&mut slots[this.key], Slot::Abandoned) {
                Slot::GivenUp(value) => {
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
        // The answer is dropped after the borrow, because dropping it may complete other commands.
        drop(unwanted);
    }
}
