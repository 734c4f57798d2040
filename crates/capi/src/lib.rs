//! The file store for programs in C and C++: what `include/furrow.h` declares.
//!
//! Any thread may call anything at any time. The calling thread copies and computes checksums, then
//! takes the engine and runs it in place; [`furrow_counters`](crate::store::furrow_counters) says
//! how often another thread had it. A thread whose priority is lower than that of the thread that
//! opened the store leaves its calls to others, and so never keeps them waiting. Nothing unwinds
//! into the caller: a defect becomes an error.
//!
//! What holds for all functions:
//! - They answer 0, or a [`furrow_kind`](crate::error::furrow_kind) that is not 0, and say why in
//!   the `furrow_error` if one is given.
//! - Strings end with a zero and are UTF-8. Buffers are the caller's: none is kept or touched after
//!   the function has returned.
//! - A handle is closed once, by the function that is named for it, and not used after that.
//! - In the child of a fork every function fails with `FURROW_FORKED` and does nothing, opening and
//!   closing included: the threads, and locks they may have held, are the parent's. After exec(3)
//!   it is a process like any other.
//! - What was appended and not synced is gone when the process ends, however it ends. Only
//!   `furrow_file_sync` and `furrow_store_sync` make something durable.
//!
//! A front end, not the core: it has threads of its callers' and one executor per store.

#![allow(unsafe_code, reason = "an interface for C takes pointers")]
#![allow(non_camel_case_types, reason = "names are C's")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]

mod control;
pub mod error;
pub mod file;
mod record;
mod shared;
pub mod store;
mod tally;

pub use shared::change_options;
