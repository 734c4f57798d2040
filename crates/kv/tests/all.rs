//! The tests of the file store as one program.
//!
//! Each file here is a module: one program links once what a program per file would link each time.

mod dead_ranges;
mod format_doc;
mod inspect;
mod ring_zones;
mod space;
mod store;
mod trace;
mod zone_allocator;
