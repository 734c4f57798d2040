//! The tests of the file store as one program.
//!
//! Each file here is a module: a single program links its dependencies only once.

mod damage;
mod dead_ranges;
mod format_doc;
mod frozen;
mod inspect;
#[path = "../../log/tests/common/layouts.rs"]
mod layouts;
mod ring_budget;
mod ring_zones;
mod scrub;
mod space;
mod store;
mod trace;
mod zone_allocator;
