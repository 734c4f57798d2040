//! What every engine on a zoned drive shares: zone pool, active-zone budget, ordered writer,
//! delta log, records.
//!
//! Invariants
//! - Only [`Writer`] writes to zones; only [`ZonePool`] resets them.
//! - No clock, no random numbers, no system calls: everything comes from `furrow_rt` and the
//!   device, so a run is a function of its seed.
//! - Everything this crate defines on media is in [`format`]; a block is 4 KiB throughout.
//!
//! The crate does not know files, stripes or tables, and does not decide what to write where.

pub mod address;
pub mod audit;
pub mod budget;
pub mod delta;
pub mod format;
mod in_flight;
pub mod kept;
pub mod layout;
pub mod pool;
mod queues;
pub mod record;
pub mod ring;
pub mod scrub;
pub mod survey;
#[cfg(test)]
mod toy;
pub mod victim;
pub mod writer;
mod zone_queue;

pub use address::{BlockAddr, read_blocks};
pub use budget::{Budget, Class, Permit};
pub use delta::{Appended, DeltaLayout, DeltaLog, Extent};
pub use format::BLOCK_SIZE;
pub use in_flight::SequencePoint;
pub use kept::Kept;
pub use pool::{
    DurableSnapshot, ReadPin, Snapshot, Superzone, SuperzoneId, SuperzoneState, ZonePool,
};
pub use record::{Expect, RecordHeader, RecordId, Uuid, crc32c, crc32c_append};
pub use ring::RecordRing;
pub use writer::{
    Counters, Durability, Kind, Order, Payload, Placement, WriteHandle, WriteObserver, Writer,
    WriterOptions, ZoneWrite,
};
