//! Arrays: drives that belong together, and what becomes of each.
//!
//! An array has an identity, members and events. Each member's drive has them in a ring of state
//! records at its beginning, with a *payload* that only the user of the array understands: what is
//! in all the other zones is not the array's. The RAID volume is such a user.
//!
//! Invariants
//! - The array does not look into its members' zones, but for their rings and, where a ring is
//!   damaged, for the header of a record that says whose zone it is.
//! - A state record is durable on a member before anything is acknowledged that relies on it.
//! - No clock, no random numbers, no system calls: everything comes from `furrow_rt` and the
//!   devices.

pub mod assemble;
pub mod drive;
pub mod event;
pub mod examine;
pub mod format;
pub mod level;
pub mod member;
pub mod parity;
pub mod record;
pub mod service;
pub mod spare;
pub mod split_brain;
mod stale;
pub mod standing;
pub mod state_ring;
pub mod watchdog;
