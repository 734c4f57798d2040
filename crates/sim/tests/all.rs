//! The crash sweeps and simulations of the short tier as one program.
//!
//! Each file here is a module: one program links once what a program per file would link each time.

mod damage;
mod fs;
mod ledger;
mod raid;
mod recorded;
mod simulate;
mod starved;
mod store;
mod toy;
