//! The NBD face: block volumes served to any NBD client, as tasks of the engine's own executor.
//!
//! A [`Volume`] is what is served; [`Memory`] is one in memory, for tests and benchmarks.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a face")]

mod memory;
mod volume;

pub use memory::Memory;
pub use volume::{BLOCK, Extent, Volume};
