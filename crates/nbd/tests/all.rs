//! The tests of the NBD server as one program.
//!
//! Each file here is a module: a single program links its dependencies only once.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::duplicate_mod,
    reason = "tests run servers and clients, and two programs share the bytes of the protocol"
)]

#[path = "common/bytes.rs"]
mod bytes;
#[path = "common/certificates.rs"]
mod certificates;
mod clients;
mod commands;
mod common;
mod fuzz;
#[path = "common/fuzzer.rs"]
mod fuzzer;
mod handshake;
mod hostile;
mod raid;
mod shutdown;
mod tls;
#[path = "common/tools.rs"]
mod tools;
