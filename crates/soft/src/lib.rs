//! Soft zones: a zoned drive on a drive that has no zones, such as an SSD or a file.
//!
//! The plain drive is divided into a journal and zones of equal size. A write goes to its zone at
//! once; its checksums are kept in memory. A *flush* writes one record to the journal along with
//! the data: the ranges written since the last record, and a checksum for each of their blocks.
//! Then it flushes the plain drive once, which covers both. So after a power cut only the ranges of
//! the last records are in doubt: recovery reads them, and a zone ends at its first block that is
//! not what the record says.
//!
//! Invariants
//! - One flush of the plain drive is under way at a time. A record states up to which record
//!   everything is durable; ranges of later records are believed block by block, by checksum.
//! - Blocks that recovery believed by checksum are written again, and the table of zones is
//!   written, before anything else is written: until then a block that was discarded may read
//!   as anything.
//! - A zone is reset in this order: its next generation becomes durable, its blocks are discarded,
//!   its first block is written.
//! - The journal has two halves that take turns. A half begins with the table of all zones, and is
//!   begun only when the table of the half before it is durable.
//! - A record that a later one calls complete was durable: if it is missing, the journal is damaged
//!   and has not ended. The record's copy in the record after it counts. Without a copy the drive
//!   is not written, unless the caller accepts the loss.
//! - After a write or flush of the journal has failed, nothing is written any more.
//!
//! The layer does not know what is in its zones, and never looks at it except for checksums.

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
