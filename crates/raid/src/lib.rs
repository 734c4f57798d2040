//! A log-structured RAID volume over zoned drives: ZapRAID, with the functions that its
//! prototype lacks.
//!
//! Writes gather in stripes. A stripe's chunks go to the drives at once, by Zone Append within
//! groups of stripes, or by Zone Write, and are acknowledged when all are durable. The map has the
//! place of each block; metadata stored with each block says what the block is. As many drives as
//! the level tolerates may fail at any time, and writes continue.
//!
//! Invariants
//! - No clock, no random numbers, no system calls: everything comes from `furrow_rt` and the
//!   devices, so a run is a function of its seed.
//! - Only `furrow_log`'s writer writes zones, and only its pool resets them.
//! - Everything on the drives is defined in [`format`](mod@format).
//!
//! The crate does not know which programs use the volume, nor how.

mod assemble;
mod audit;
mod checkpoint;
mod clean;
mod counters;
pub mod format;
mod hot_spare;
mod lifetime;
mod lost_blocks;
mod map;
mod member;
mod meta;
mod options;
mod paging;
mod payload;
mod read;
mod rebuild;
mod reconstruct;
mod recover;
mod replace;
#[cfg(test)]
mod rig;
mod scrub;
mod segment;
pub mod shape;
mod space;
mod stale_members;
mod steps;
pub mod table;
mod volume;
mod write;

pub use assemble::{assemble, assemble_if_spares_fit, assembly_steps, create, examine};
pub use counters::{Counted, Counters};
pub use furrow_array::admission::{Judgement, Standing, judge, newest, split_refusal};
pub use furrow_array::event::{Event, show_ranges};
pub use furrow_array::examine::{Damaged, Examined, check_empty, damaged_member};
pub use furrow_array::level::Level;
pub use furrow_array::member::{Errors, MemberState};
pub use furrow_array::placement::Placement;
pub use furrow_array::split_brain::split_brain;
pub use furrow_array::{level, parity};
pub use meta::place::{MetaPlace, is_bare};
pub use options::{APPEND_PIECES, DriveOptions, Options};
pub use rebuild::Progress;
pub use recover::unfinished::Recovered;
pub use scrub::{Finding, Scrubbed};
pub use segment::Segments;
pub use shape::{Config, Shape};
pub use volume::Volume;
