//! How the project's programs speak to people: what a command line is answered with, and how
//! amounts and tables are printed.
//!
//! Invariant: nothing of what a program does is known here.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]
// They panic where standard error or output is closed or full: `show::say` and `out` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod program;
pub mod show;
