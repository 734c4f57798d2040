//! The FUSE server: a mounted Furrow file system.
//!
//! [`FuseServer`] serves an engine behind a [`furrow_rt::Port`]; [`Session`] mounts it and runs
//! until it is unmounted; tools query a running mount through [`report`]. A mount needs only root
//! and `/dev/fuse`.
//!
//! Not part of this crate: opening devices, mount options and processes (the command does these),
//! and caching of writes (the engine does).

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a server")]

mod capabilities;
mod channel;
mod convert;
mod decode;
mod dispatch;
pub mod endpoint;
mod known;
mod latency;
pub mod null;
mod operations;
mod page_cache;
mod pass_on;
mod posix;
mod reply;
pub mod report;
mod requests;
mod ring;
mod session;
mod wire;

pub use dispatch::{FuseServer, Reporter, USUAL_TTL};
pub use endpoint::{Endpoint, Holder, Mounted, Transport, Unmount};
pub use report::Info;
pub use ring::is_allowed as rings_are_allowed;
pub use session::{Background, Ending, Session, Signals};
