//! The deterministic runtime under every Furrow engine.
//!
//! The core gets time, randomness, threads and I/O from here only. An engine is a set of tasks
//! of one [`Rt`], which is all that a simulation needs. Other threads reach an engine through
//! a [`Port`].

// Only `caller.rs` needs this exception, but Clippy accepts it only in the crate's root.
#![allow(clippy::disallowed_macros, reason = "the callers' side of the port has thread-locals")]

#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "where threads meet")]
mod answer;
#[allow(clippy::disallowed_types, reason = "threads share pools; nobody waits for the lock")]
pub mod buf;
mod caller;
mod cell;
pub mod completion;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the real clock")]
mod driver;
pub mod exec;
#[cfg_attr(test, allow(clippy::disallowed_methods, reason = "its tests start threads"))]
mod flusher;
#[allow(clippy::disallowed_types, reason = "where threads meet")]
mod hub;
#[cfg(all(test, loom))]
mod loom_tests;
pub mod notify;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "where threads meet")]
pub mod port;
pub mod ranges;
#[allow(clippy::disallowed_types, reason = "where threads meet")]
mod ring;
pub mod rng;
mod sleeper;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "where threads meet")]
mod sync;
#[allow(clippy::disallowed_types, reason = "where threads meet")]
mod tasks;
pub mod wait;

/// A boxed future of unknown type. A function that returns one is compiled only where it is
/// defined, while an async function, with all that it awaits, is compiled again in every crate that
/// awaits it. Worth an allocation where calls are rare: mounts, checks, repairs, cleaning.
pub type Boxed<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + 'a>>;

pub use buf::{OwnedPage, PAGE_SIZE, Page, Pages, Pool, SLAB_SIZE};
pub use completion::{Completion, CompletionTable, Ticket};
pub use exec::{Clock, Config, JoinHandle, Nanos, Rt, Source};
pub use flusher::become_io_flusher;
pub use notify::{Notified, Notify, Permit, Semaphore};
pub use port::{Port, Stopped};
pub use ranges::{Held, Ranges};
pub use rng::Rng;
pub use wait::{either, within};
