//! Communication of commands with running arrays and stores and, through another carrier,
//! with mounts.
//!
//! A client connects to a control socket ([`place`] says where it lies) and sends requests, each a
//! line of JSON; the answer to each is a line of JSON, which bytes may follow ([`envelope`]). A
//! server is a [`Handler`] of one type of requests, served by tasks of an executor ([`Server`]).
//! Only the user that runs the server, and root, are answered.
//!
//! Whatever arrives, the worst outcome is an error and the end of that connection: requests have a
//! maximum length and a time limit, the number of connections is limited, and nothing here blocks
//! the server's thread.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "sockets, and the environment that says where they lie"
)]

pub mod client;
pub mod envelope;
pub mod mount;
pub mod place;
pub mod scrub;
mod server;
pub mod socket;
pub mod store;

pub use client::{Connection, Error};
pub use envelope::{Answer, VERSION};
pub use server::{Handler, Open, Reply, Server};
