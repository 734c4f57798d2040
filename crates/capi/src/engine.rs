//! The values that the engine's thread owns, and calls of the engine that do not block the
//! calling thread.

use crate::error::{Failure, furrow_kind};
use crate::process::lock;
use crate::tally::Tally;
use furrow_kv::{Frozen, Store};
use furrow_rt::{Port, Stopped};
use furrow_zone::ZonedDevice;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

/// The values that the engine's thread owns.
pub(crate) struct Engine {
    pub(crate) store: Store,
    /// Views that clients of the control socket read, by the views' numbers.
    pub(crate) views: RefCell<BTreeMap<u64, Rc<Frozen>>>,
    /// The drive, which lives as long as the store.
    pub(crate) _device: Rc<dyn ZonedDevice>,
}

/// The store about which the control socket answers.
pub(crate) struct Source {
    pub(crate) port: Port<Engine>,
    pub(crate) tally: Arc<Tally>,
    /// The name of the store's drive.
    pub(crate) device: String,
    pub(crate) uuid: String,
    pub(crate) label: String,
}

pub(crate) fn stopped(why: Stopped) -> Failure {
    Failure::new(furrow_kind::FURROW_IO, why.to_string())
}

/// The result of a call, on its way to the task that waits for it.
enum Slot<T> {
    Empty(Option<Waker>),
    Full(T),
    /// The engine has dropped the call.
    Closed,
}

/// The engine's end of a call.
struct Sender<T>(Arc<Mutex<Slot<T>>>);

impl<T> Sender<T> {
    fn set(&self, slot: Slot<T>) {
        let before = std::mem::replace(&mut *lock(&self.0), slot);
        if let Slot::Empty(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if matches!(&*lock(&self.0), Slot::Empty(_)) {
            self.set(Slot::Closed);
        }
    }
}

/// Runs `f` on the engine. The task waits for the result; its thread does not.
pub(crate) async fn ask<T, F>(
    port: &Port<Engine>,
    f: impl FnOnce(&Engine) -> F + Send + 'static,
) -> Result<T, Stopped>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let slot = Arc::new(Mutex::new(Slot::Empty(None)));
    let sender = Sender(slot.clone());
    port.submit(move |rt, engine| {
        let future = f(engine);
        rt.run_now(async move { sender.set(Slot::Full(future.await)) });
    });
    let value = poll_fn(|context| {
        let mut slot = lock(&slot);
        match std::mem::replace(&mut *slot, Slot::Closed) {
            Slot::Full(value) => Poll::Ready(Some(value)),
            Slot::Closed => Poll::Ready(None),
            Slot::Empty(_) => {
                *slot = Slot::Empty(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    });
    value.await.ok_or_else(|| port.stopped().unwrap_or_default())
}
