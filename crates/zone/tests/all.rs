//! The tests of the drive's state machine and of device specs as one program.
//!
//! Each file here is a module: a single program links its dependencies only once.

mod machine;
mod model;
mod spec;
mod table;
