//! How other threads reach an engine.
//!
//! An engine is an [`Rt`] and a graph of state `E` that belongs to one thread at a time. A
//! [`Port`] is the handle every other thread uses: it sends a request and, with [`Port::call`],
//! waits for the answer.

use crate::exec::{Clock, Config, Rt};
use std::future::Future;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

type Request<E> = Box<dyn FnOnce(&Rt, &E) + Send>;

enum Message<E> {
    Request(Request<E>),
    Nudge,
    Stop(Request<E>),
}

/// A handle to an engine. Cloning shares it.
pub struct Port<E: 'static> {
    sender: Sender<Message<E>>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl<E> Clone for Port<E> {
    fn clone(&self) -> Self {
        Port { sender: self.sender.clone(), thread: self.thread.clone() }
    }
}

/// The engine has stopped or has died of a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the engine has stopped")
    }
}

impl std::error::Error for Stopped {}

impl<E: 'static> Port<E> {
    /// Builds the engine and starts its thread. `build` runs inside the engine's ownership.
    ///
    /// # Errors
    /// What `build` returns.
    pub fn start<Err: Send + 'static>(
        config: Config,
        build: impl FnOnce(&Rt) -> Result<E, Err> + Send + 'static,
    ) -> Result<Port<E>, Err> {
        let (sender, receiver) = channel();
        let (result, built) = channel();
        let nudge = Mutex::new(sender.clone());
        let thread = std::thread::spawn(move || {
            let rt = Rt::with_bell(
                config,
                Box::new(move || {
                    let _ =
                        nudge.lock().unwrap_or_else(PoisonError::into_inner).send(Message::Nudge);
                }),
            );
            match build(&rt) {
                Ok(engine) => {
                    let _ = result.send(Ok(()));
                    serve(&rt, engine, &receiver);
                }
                Err(error) => drop(result.send(Err(error))),
            }
            rt.clear();
        });
        built.recv().expect("invariant: the thread answers unless `build` panicked")?;
        Ok(Port { sender, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Runs `request` on the engine. If the engine has stopped, `request` is dropped.
    pub fn submit(&self, request: impl FnOnce(&Rt, &E) + Send + 'static) {
        let _ = self.sender.send(Message::Request(Box::new(request)));
    }

    /// Runs what `f` returns on the engine and waits for its result.
    ///
    /// # Panics
    /// If the engine has stopped; see [`Port::try_call`].
    pub fn call<T, F>(&self, f: impl FnOnce(&Rt, &E) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.try_call(f).expect("the engine has stopped")
    }

    /// As [`Port::call`], with an error instead of a panic.
    ///
    /// # Errors
    /// [`Stopped`] if the engine has stopped, or stops before it answers.
    pub fn try_call<T, F>(
        &self,
        f: impl FnOnce(&Rt, &E) -> F + Send + 'static,
    ) -> Result<T, Stopped>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, receiver) = channel();
        self.submit(move |rt, engine| {
            let future = f(rt, engine);
            rt.run_now(async move { drop(sender.send(future.await)) });
        });
        receiver.recv().map_err(|_| Stopped)
    }

    /// Runs a last request, then ends the engine. Requests that arrive later are dropped.
    ///
    /// # Panics
    /// If the engine has stopped before.
    pub fn stop<T, F>(self, last: impl FnOnce(&Rt, &E) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let value = self.call(last);
        let _ = self.sender.send(Message::Stop(Box::new(|_, _| {})));
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        value
    }
}

fn serve<E>(rt: &Rt, engine: E, receiver: &Receiver<Message<E>>) {
    loop {
        rt.run_ready();
        let message = match rt.next_timer() {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) if rt.config().clock == Clock::Virtual => {
                rt.advance();
                receiver.try_recv().or(Ok(Message::Nudge))
            }
            Some(at) => receiver.recv_timeout(Duration::from_nanos(at.since(rt.now()))),
        };
        match message {
            Ok(Message::Request(request)) => request(rt, &engine),
            Ok(Message::Nudge) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Message::Stop(request)) => {
                request(rt, &engine);
                return;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nanos;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn calls_from_many_threads_are_served_and_stop_joins() {
        let port: Port<Rc<Cell<u64>>> =
            Port::start(Config::real(), |_| Ok::<_, ()>(Rc::new(Cell::new(0)))).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let port = port.clone();
                std::thread::spawn(move || {
                    for _ in 0..100 {
                        port.call(|_, engine| {
                            engine.set(engine.get() + 1);
                            async {}
                        });
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let late = port.call(|rt, engine| {
            let (rt, engine) = (rt.clone(), engine.clone());
            async move {
                rt.sleep(Nanos::MILLI).await;
                engine.get()
            }
        });
        assert_eq!(late, 400);
        let other = port.clone();
        assert_eq!(port.stop(|_, engine| std::future::ready(engine.get())), 400);
        assert_eq!(other.try_call(|_, _| async {}), Err(Stopped));
    }
}
