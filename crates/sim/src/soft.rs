//! Soft zones on an emulated plain drive: crash sweeps of the zones themselves, and of a file
//! system on them.

pub mod crash;
mod zones;
