//! Drives and volumes as block devices of the Linux kernel, by its driver ublk.
//!
//! ```text
//! program ── /dev/ublkbN ── kernel ── /dev/ublkcN ── Queue ── Server ── Backend
//! ```
//!
//! [`Server::start`] makes `/dev/ublkbN` and answers its requests as tasks of the engine's
//! executor. A [`Backend`] carries them out: a [`Drive`], which is any
//! [`ZonedDevice`](furrow_zone::ZonedDevice) as a zoned block device, or an [`Exported`]
//! `furrow_raid::Volume` as an ordinary one. Payload is copied between the kernel's request and
//! pages (user copy, which zones need). There is one queue, because an engine has one thread.
//!
//! Invariants: every request from the kernel is answered once; a request that breaks the rules
//! is answered with an errno; a backend gets only requests for whole blocks within the device. A
//! server that ends without [`Server::stop`], even by SIGKILL, leaves no device that hangs: the
//! kernel then fails the requests in flight and removes the block device. The device's number
//! stays taken until the next server is started. A device that is kept ([`Options::kept_for`])
//! waits for its next server instead: until then, no program may change the volume that it
//! serves ([`waiting`]).
//!
//! The code that makes decisions is pure and needs no driver: the kernel's layouts, requests,
//! drives and volumes.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a front end: device nodes, threads for calls that block"
)]

mod abi;
mod backend;
mod control;
mod drive;
mod kept;
mod queue;
pub mod recording;
mod request;
mod server;
mod volume;

pub use backend::{Backend, Done, Properties, ZoneLimits};
pub use control::available;
pub use drive::Drive;
pub use kept::{discard, waiting};
pub use request::{Operation, Request};
pub use server::{Device, Options, Server};
pub use volume::Exported;
