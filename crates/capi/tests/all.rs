//! The tests of the C interface as one program; `running` is a program of its own, as it sets an
//! environment variable.
//!
//! Each file here is a module: a single program links its dependencies only once.

mod header;
mod record;
