//! The interface of a zoned drive. Crates `emu`, `linux` and `soft` implement it, and so do
//! wrappers around other drives.

use crate::fault::FaultInjection;
use crate::{BlockCount, Command, Geometry, Lba, QueueId, Status, ZoneId, ZoneState};
use furrow_rt::{Completion, Pages};
use std::future::{Future, ready};
use std::pin::Pin;

/// How a drive is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading and writing; no other process may have the drive open.
    ReadWrite,
    /// For reading; other processes may read too. Nothing is written, and writes and changes of
    /// zones are refused.
    ReadOnly,
    /// Like [`Access::ReadWrite`], but also opens a drive whose own records are damaged, and
    /// accepts the loss of the data that they described. Only soft zones have such records.
    AcceptLoss,
}

impl Access {
    /// Whether the drive may be written to.
    pub fn writes(self) -> bool {
        self != Access::ReadOnly
    }
}

/// A command with its payload.
#[derive(Debug)]
pub struct Request {
    /// The command to execute.
    pub command: Command,
    /// Write and append: the payload, exactly `blocks × block_size` bytes in pages that are full
    /// except for the last. Read: pages to fill, as many as the blocks need.
    pub data: Pages,
    /// Write and append: out-of-band bytes, `blocks × oob_bytes`, or empty for zeros.
    pub oob: Vec<u8>,
    /// Write and append: whether the data must be durable when the command is answered (FUA).
    pub fua: bool,
}

impl Request {
    /// Builds a request without payload.
    pub fn bare(command: Command) -> Request {
        Request { command, data: Pages::new(), oob: Vec::new(), fua: false }
    }

    /// Builds a read into `data`, or a write or append of `data`.
    pub fn with_data(command: Command, data: Pages) -> Request {
        Request { command, data, oob: Vec::new(), fua: false }
    }
}

/// The drive's answer to a command.
#[derive(Debug)]
pub struct Outcome {
    /// The status. Data of a failed command is unspecified.
    pub status: Status,
    /// Write: the first block. Append: the assigned address (ALBA).
    pub lba: Lba,
    /// Read: the given pages, filled. Otherwise empty.
    pub data: Pages,
    /// Read: `blocks × oob_bytes`, if the drive has out-of-band bytes. Otherwise empty.
    pub oob: Vec<u8>,
}

/// The drive's report of one zone (a zone descriptor of Report Zones).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneReport {
    /// Number of the zone.
    pub zone: ZoneId,
    /// State of the zone.
    pub state: ZoneState,
    /// Number of blocks of the zone that can be written at present; may be less than the geometry's
    /// capacity (VZC).
    pub capacity: BlockCount,
    /// The write pointer as an offset in the zone; meaningful for empty, open and closed zones. For
    /// a full zone it is `capacity`, for a read-only or offline zone 0. Conventional zones are
    /// reported full unless they have failed.
    pub write_pointer: BlockCount,
}

/// The future that resolves to a drive's zone reports.
pub type Reports<'a> = Pin<Box<dyn Future<Output = Result<Vec<ZoneReport>, Status>> + 'a>>;

/// Wraps zone reports that need no waiting, such as those of an emulated drive.
pub fn reported<'a>(reports: Result<Vec<ZoneReport>, Status>) -> Reports<'a> {
    Box::pin(ready(reports))
}

/// A zoned drive.
///
/// Commands of one queue start in the order submitted; commands of different queues start in any
/// order. A command's effect may be visible before its completion. Nothing is durable before a
/// flush is answered (or a write with `fua`), unless `Geometry::volatile_cache` is false.
pub trait ZonedDevice {
    /// The geometry of the drive.
    fn geometry(&self) -> &Geometry;

    /// Sends a command. The future resolves to the drive's answer; dropping it does not stop
    /// the command.
    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome>;

    /// Reports `count` zones from `first` on, or fewer at the end of the drive. Each state is one
    /// that the zone had between the call and the answer.
    ///
    /// # Errors
    /// The status with which the drive refuses the report.
    fn report(&self, first: ZoneId, count: u32) -> Reports<'_>;

    /// False if the drive is known to be gone: removed, or without power.
    fn answers(&self) -> bool {
        true
    }

    /// Number of commands, since the drive was opened, that it answered with
    /// [`InternalError`](Status::InternalError), as a drive does that is gone. It may be back since
    /// then: what a read did not return may be whole.
    fn misses(&self) -> u64 {
        0
    }

    /// True if a flush also covers writes that were submitted before it and are not answered yet.
    /// Such a write is durable once both the flush and the write are answered with success.
    fn flush_covers_submitted(&self) -> bool {
        false
    }

    /// Number of the oldest command that the drive has not answered, counted from 0; `None` if all
    /// are answered, or if the drive does not know.
    fn oldest(&self) -> Option<u64> {
        None
    }

    /// Gives the drive up: answers every pending command with
    /// [`InternalError`](Status::InternalError) at once, and every later command too. The pending
    /// commands may still take effect, or not. A drive that cannot be given up ignores the call.
    fn give_up(&self) {}

    /// The interface for fault injection; `None` for a drive that cannot inject faults, such as
    /// every real drive.
    fn fault_injection(&self) -> Option<&dyn FaultInjection> {
        None
    }

    /// Damage that was repaired or tolerated when the drive was opened, one line each.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// The name of the drive in messages.
    fn name(&self) -> String;
}
