//! The tests of the NBD server as one program.
//!
//! Each file here is a module: one program links once what a program per file would link each time.

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
