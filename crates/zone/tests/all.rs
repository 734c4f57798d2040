//! The tests of the drive's state machine and of specifications as one program.
//!
//! Each file here is a module: one program links once what a program per file would link each time.

mod machine;
mod model;
mod spec;
mod table;
