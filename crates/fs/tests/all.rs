//! The tests of the file system, as one program.
//!
//! Each file here is a module: a single program links its dependencies only once.

mod append;
mod cleaning;
mod common;
mod damage;
mod dump;
mod engine;
mod failing_zones;
mod format_doc;
mod fsck;
mod fsck_fields;
mod fsync;
mod full;
mod heads;
mod holes;
#[path = "../../log/tests/common/layouts.rs"]
mod layouts;
mod lifetimes;
mod limits;
mod memory;
mod merge;
mod node_changes;
mod profiles;
mod recovery;
mod regressions;
mod relocation;
mod replace;
mod scrub;
mod stretches;
mod tables;
mod whiteout;
mod xattrs;
