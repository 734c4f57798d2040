//! The interface of the project's programs to their users: answers to command lines, and the
//! printing of amounts and tables.
//!
//! Invariant: this crate does not depend on the purpose of a program.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]
// These macros panic if standard error or output is closed or full; `show::say` and `out` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod fit;
pub mod folding;
pub mod program;
pub mod show;
