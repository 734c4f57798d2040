//! The tests of mounts as one program.
//!
//! Each file here is a module: a single program links its dependencies only once.

#![allow(clippy::disallowed_methods, reason = "tests mount, and look at files")]
#![allow(clippy::disallowed_macros, reason = "each test has a thread, which says how it mounts")]

#[macro_use]
mod common;
mod extended;
mod handles;
mod maps;
mod null;
mod posix;
mod ranges;
mod rings;
mod writeback;
