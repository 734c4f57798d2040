//! A log-structured RAID volume over zoned drives (ZapRAID, with what its prototype lacks).
//!
//! Writes gather in stripes. A stripe's chunks go to the drives at once, by Zone Append within
//! groups of stripes, or by Zone Write, and are acknowledged when all are durable. The map has the
//! place of each block; metadata stored with each block says what the block is. Any drives, as many
//! as the level tolerates, may fail at any time; writes continue.
//!
//! Invariants
//! - No clock, no random numbers, no system calls: everything comes from `furrow_rt` and the
//!   devices, so a run is a function of its seed.
//! - Zones are written by `furrow_log`'s writer and reset by its pool, nothing else.
//! - Everything on the drives is defined in [`format`](mod@format).
//!
//! The crate does not know which programs use the volume, nor how.

mod array;
mod assemble;
mod audit;
mod checkpoint;
mod clean;
mod counters;
mod drive;
mod event;
pub mod format;
mod hot_spare;
pub mod level;
mod lifetime;
mod lost_blocks;
mod map;
mod member;
mod meta;
mod options;
mod paging;
pub mod parity;
mod read;
mod rebuild;
mod reconstruct;
mod recover;
#[cfg(test)]
mod rig;
mod scrub;
mod segment;
pub mod shape;
mod space;
mod split_brain;
mod stale_members;
mod standing;
mod state_ring;
mod steps;
pub mod table;
mod volume;
mod watchdog;
mod write;

pub use array::member::{Errors, MemberState};
pub use assemble::{
    Damaged, Examined, assemble, assembly_steps, check_empty, create, damaged_member, examine,
};
pub use counters::{Counted, Counters};
pub use drive::APPEND_PIECES;
pub use event::{Event, show_ranges};
pub use level::{Level, Placement};
pub use meta::place::{MetaPlace, is_bare};
pub use options::{DriveOptions, Options};
pub use rebuild::Progress;
pub use recover::unfinished::Recovered;
pub use scrub::{Finding, Scrubbed};
pub use segment::Segments;
pub use shape::{Config, Shape};
pub use split_brain::split_brain;
pub use standing::{Judgement, Standing, judge, newest, split_refusal};
pub use volume::Volume;
