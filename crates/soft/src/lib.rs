//! Soft zones: a zoned drive on a drive that has no zones, such as an SSD or a file.
//!
//! The plain drive is divided into a journal and zones of equal size. A write goes to its zone at
//! once; its checksums are kept in memory. A *flush* writes one record to the journal along with
//! the data: the ranges written since the last record, and a checksum for each of their blocks.
//! Then it flushes the plain drive once, which covers both. So after a power cut only the ranges of
//! the last records are in doubt: recovery reads them, and a zone ends at its first block that
//! differs from the record's checksum.
//!
//! Invariants
//! - One flush of the plain drive is under way at a time. A record states up to which record
//!   everything is durable; in ranges of later records, each block counts only if its
//!   checksum matches.
//! - Blocks that recovery accepted by their checksum are written again, then the table of zones,
//!   before anything else is written: until then a discarded block may read as any content.
//! - A zone is reset in this order: its next generation becomes durable, its blocks are discarded,
//!   its first block is written.
//! - The journal has two halves that take turns. Each begins with a table of all zones, and is
//!   begun only when the table of the half before is durable.
//! - If a later record says that a missing one was complete, the gap is damage and not the end of
//!   the journal. The missing record's copy in the next record counts. Without a copy the drive is
//!   not written, unless the caller accepts the loss.
//! - After a write or flush of the journal has failed, nothing is written any more.
//!
//! The layer does not interpret the content of its zones, and reads it only to check checksums.

mod drive;
pub mod format;
mod halves;
mod journal;
mod make;
mod recover;
mod state;
mod streams;
mod superblock;

pub use drive::{Recovered, SoftDrive, recover};
pub use format::{Layout, Superblock};
pub use make::{MakeOptions, make};
pub use superblock::{identify, is_superblock, restore_front};
