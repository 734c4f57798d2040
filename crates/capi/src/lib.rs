//! The file store for programs in C and C++: the functions that `include/furrow.h` declares.
//!
//! Any thread may call any function at any time. The calling thread copies and computes checksums,
//! then takes the engine and runs it in place; [`furrow_counters`](crate::store::furrow_counters)
//! says how often another thread ran it. A thread with a lower priority than the thread that opened
//! the store leaves its calls to other threads and never runs the engine itself, so it cannot keep
//! them waiting. Nothing unwinds into the caller: a defect becomes an error.
//!
//! Rules for all functions:
//! - They return 0 or another [`furrow_kind`](crate::error::furrow_kind), and describe the error in
//!   the `furrow_error` if one is given.
//! - Strings end with a zero and are UTF-8. Buffers belong to the caller: none is kept or used
//!   after the function has returned.
//! - A handle is closed once, by the function for it, and not used after that.
//! - In the child of a fork every function, including open and close, fails with `FURROW_FORKED`
//!   and does nothing: threads and locks belong to the parent. After exec(3), the child is a
//!   process like any other.
//! - Appended and unsynced bytes are lost when the process ends, in whatever way. Only
//!   `furrow_file_sync` and `furrow_store_sync` make them durable.
//!
//! This crate is a front end, not part of the core: it runs on its callers' threads, and has one
//! executor per store.

#![allow(unsafe_code, reason = "an interface for C takes pointers")]
#![allow(non_camel_case_types, reason = "names are C's")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]

mod argument;
mod call;
mod control;
mod engine;
pub mod error;
pub mod file;
mod options;
mod process;
mod reader;
mod record;
mod shared;
pub mod store;
mod tally;
mod view;

pub use shared::change_options;
