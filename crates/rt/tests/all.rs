//! The tests of the runtime as one program.
//!
//! Each file here is a module: one program links once what a program per file would link each time.

mod determinism;
mod port;
mod real_clock;
