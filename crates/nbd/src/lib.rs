//! The NBD server: block volumes served to any NBD client, as tasks of the engine's own executor.
//!
//! ```text
//! client ── socket ── Input ── Session ── Volume      reading task: many requests for one call
//!             └────── Outbox ────┘                    sending task: many replies for one call
//! ```
//!
//! [`Server::bind`] listens and serves [`Export`]s of any [`Volume`]: `furrow_raid::Volume`, or
//! [`Memory`] for tests and benchmarks. No thread is between socket and volume: payload goes from
//! the socket to the pages that the volume gets, and from the volume's pages to the socket.
//!
//! The protocol is fixed newstyle with structured replies.
//!
//! *Several connections* to one export are safe (`NBD_FLAG_CAN_MULTI_CONN`): one engine on one
//! thread serves all, so a write that was answered on one connection is visible on all, and a flush
//! on any of them makes it durable.
//!
//! *Any size* of a request works: the server reports the volume's preferred size, and 1 byte as the
//! minimum. It carries out requests with edges within a block by read, modify, write, in turns with
//! the writes that overlap them. If it refused such requests, or reported 4 KiB as the minimum,
//! some clients could not copy images of odd sizes. Others would read, modify and write whole
//! blocks themselves; they do not take turns, so two clients would undo each other's writes.
//!
//! Invariants:
//! - No input makes the server panic, and no client takes more memory or time than [`Limits`]
//!   allows.
//! - A client waits for another only where their requests take turns, and for memory beyond
//!   its reserve.
//!
//! Not part of this crate: durability (the volume provides it), opening devices and signals (the
//! command does these), and extended headers of 64 bits.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]

mod budget;
mod connection;
mod export;
mod handshake;
mod listen;
mod memory;
mod raid;
mod refusal;
mod reply;
mod request;
mod server;
mod session;
mod status;
mod stream;
mod tls;
mod volume;
mod wire;

pub use export::Export;
pub use listen::{Listen, Listener, Peer};
pub use memory::Memory;
pub use refusal::{Reason, Refusal};
pub use server::{Limits, Options, Server};
pub use status::{ConnectionStatus, Counts, ExportStatus, Status};
pub use tls::{Identity, Tls};
pub use volume::{BLOCK, Extent, Volume};
