//! The tests of the RAID volume as one program.
//!
//! Each file here is a module: a single program links its dependencies only once.

mod bare;
mod combinations;
mod common;
mod format_doc;
mod hung;
#[path = "../../log/tests/common/layouts.rs"]
mod layouts;
mod lost;
mod many;
mod map;
mod moved;
mod older;
mod rebuild;
mod records;
mod spare;
mod split;
mod vanish;
mod volume;
