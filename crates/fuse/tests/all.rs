//! The tests of mounts as one program.
//!
//! Each file here is a module: one program links once what a program per file would link each time.

#![allow(clippy::disallowed_methods, reason = "tests mount, and look at files")]

mod common;
mod extended;
mod handles;
mod null;
mod posix;
mod ranges;
