//! The tests of the emulated drive as one program; `kill` is a program of its own, since its child
//! processes would hold the locks of other tests' images for a moment.
//!
//! Each file here is a module: one program links once what a program per file would link each time.

mod bad_image;
mod common;
mod cut_anywhere;
mod faults;
mod model;
mod overlay;
mod power;
mod timing;
