//! The FUSE face: a mounted Furrow file system.
//!
//! [`Session`] mounts a FUSE server and runs it until it is unmounted; [`endpoint`] is the kernel's
//! side of it. The `fuser` crate is wrapped here and named nowhere else. Works as root with nothing
//! but `/dev/fuse`.
//!
//! Deliberately not here: opening devices, mount options, processes (the command does that), and
//! caching of writes (the engine's).

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a face")]

pub mod endpoint;
pub mod null;
mod session;

pub use endpoint::{Endpoint, Mounted, Unmount};
pub use session::{Background, Session, Signals};
