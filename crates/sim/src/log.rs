//! The log crate alone, without an engine: crash sweeps.

pub mod crash;
