//! Arrays: which drives belong together, and the state of each.
//!
//! An array has an identity, members and events. Each member's drive records them in a ring of
//! state records at its beginning, with a *payload* that only the user of the array understands.
//! All other zones belong to that user. The RAID volume is such a user.
//!
//! Invariants
//! - The array reads only the state rings of its members. If a ring is damaged, it also reads the
//!   headers of zones, which name their array and member.
//! - A state record is durable on a member before any acknowledgement that relies on it.
//! - No clock, no random numbers, no system calls: everything comes from `furrow_rt` and the
//!   devices.

pub mod admission;
pub mod assemble;
pub mod drive;
pub mod event;
pub mod examine;
pub mod format;
pub mod level;
pub mod member;
pub mod parity;
pub mod placement;
pub mod record;
pub mod service;
pub mod spare;
pub mod split_brain;
mod stale;

pub mod state_ring;
pub mod watchdog;
