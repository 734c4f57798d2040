//! The crash sweeps and simulations of the short tier as one program.
//!
//! Each file here is a module: a single program links its dependencies only once.

mod common;
mod fs_crash;
mod fs_damage;
mod fs_flip;
mod fs_sim;
mod kv;
mod kv_recorded;
mod limits;
mod log;
mod raid;
mod raid_full;
mod soft;
