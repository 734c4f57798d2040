//! Whole-stack simulation: crash sweeps, models, built-in defects.
//!
//! Folders are subjects (`fs`, `raid`, `kv`, `log`, `soft`), and files are kinds of tests: `crash`
//! cuts the power at every command of a run, `sim` leads a subject through several lives, `damage`
//! flips bits of its image. The other files are the harness that subjects share.

pub mod crash;
pub mod fates;
pub mod fs;
pub mod image;
pub mod kv;
pub mod limits;
pub mod log;
pub mod raid;
pub mod simulation;
pub mod soft;
pub mod sweep;
