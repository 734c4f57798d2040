//! The tests of the runtime as one program.
//!
//! Each file here is a module: a single program links its dependencies only once.

mod determinism;
mod port;
mod real_clock;
