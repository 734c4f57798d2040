//! The deterministic runtime under every Furrow engine.
//!
//! Time, randomness, threads and I/O reach the core through here and nowhere else.

pub mod buf;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the real clock")]
mod clock;
pub mod completion;
pub mod exec;
pub mod gate;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "where threads meet")]
pub mod port;
pub mod rng;

pub use buf::{PAGE_SIZE, Page, Pages, Pool};
pub use completion::{Completion, CompletionTable, Ticket};
pub use exec::{Clock, Config, JoinHandle, Nanos, Rt, Source};
pub use gate::{Notify, Permit, Semaphore};
pub use port::{Port, Stopped};
pub use rng::Rng;
