//! The tests of the emulated drive as one program; `kill` is a separate program, since its child
//! processes would hold the locks of other tests' images for a moment.
//!
//! Each file here is a module: a single program links its dependencies only once.

mod bad_image;
mod common;
mod cut_anywhere;
mod faults;
mod model;
mod overlay;
mod power;
mod timing;
