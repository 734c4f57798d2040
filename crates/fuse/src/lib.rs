//! The FUSE server: a mounted Furrow file system.
//!
//! [`FuseServer`] serves an engine behind a [`furrow_rt::Port`]; [`Session`] mounts it and runs
//! until it is unmounted; [`report`] is how tools ask a running mount. The `fuser` crate is
//! wrapped here and named nowhere else. Works as root with nothing but `/dev/fuse`.
//!
//! Deliberately not here: opening devices, mount options, processes (the command does that), and
//! caching of writes (the engine's).

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a server")]

mod convert;
pub mod endpoint;
mod latency;
pub mod null;
mod ops;
pub mod report;
mod serve;
mod server;
mod session;

pub use endpoint::{Endpoint, Mounted, Unmount};
pub use report::Info;
pub use serve::{FuseServer, Reporter};
pub use session::{Background, Session, Signals};
