//! The tests of the C interface as one program; `running` is a program of its own, as it sets an
//! environment variable.
//!
//! Each file here is a module: one program links once what a program per file would link each time.

mod header;
mod record;
