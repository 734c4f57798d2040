//! The one interface to a zoned drive. `emu` and `linux` implement it; wrappers compose.

use crate::fault::FaultInjection;
use crate::{BlockCount, Command, Geometry, Lba, QueueId, Status, ZoneId, ZoneState};
use furrow_rt::{Completion, Pages};

/// A command and what travels with it.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub command: Command,
    /// Write and append: the payload, exactly `blocks × block_size` bytes in pages that are full
    /// but for the last. Read: pages to fill, as many as the blocks need.
    pub data: Pages,
    /// Write and append: out-of-band bytes, `blocks × oob_bytes`, or empty for zeros.
    pub oob: Vec<u8>,
    /// Write and append: durable when answered (FUA).
    pub fua: bool,
}

impl Request {
    /// A request without payload.
    pub fn bare(command: Command) -> Request {
        Request { command, data: Pages::new(), oob: Vec::new(), fua: false }
    }

    /// A read into `data`, or a write or append of it.
    pub fn with_data(command: Command, data: Pages) -> Request {
        Request { command, data, oob: Vec::new(), fua: false }
    }
}

/// The drive's answer to a command.
#[derive(Debug)]
pub struct Outcome {
    /// How it went. Data of a failed command is unspecified.
    pub status: Status,
    /// Write: the first block. Append: where the data landed (ALBA).
    pub lba: Lba,
    /// Read: the pages handed in, filled. Otherwise empty.
    pub data: Pages,
    /// Read: `blocks × oob_bytes`, if the drive has out-of-band bytes. Otherwise empty.
    pub oob: Vec<u8>,
}

/// What a drive says of one zone (a zone descriptor of Report Zones).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneReport {
    /// Which zone.
    pub zone: ZoneId,
    /// Its state.
    pub state: ZoneState,
    /// Blocks that can be written in it now; may be below the geometry's (VZC).
    pub capacity: BlockCount,
    /// The write pointer as an offset in the zone; valid in Empty, open and Closed.
    /// The report of a Full zone says `capacity`, of a read-only or offline one 0. Conventional
    /// zones report Full unless they have failed.
    pub write_pointer: BlockCount,
}

/// A zoned drive.
///
/// Commands of one queue start in the order submitted; across queues the order is free. A
/// command's effect may be visible before its completion. Nothing is durable before a flush
/// answers (or the write said `fua`), unless `Geometry::volatile_cache` is false.
pub trait ZonedDevice {
    /// What the drive is like.
    fn geometry(&self) -> &Geometry;

    /// Sends a command. The future resolves to the drive's answer; dropping it does not stop
    /// the command.
    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome>;

    /// State of `count` zones from `first` (fewer at the end of the drive).
    ///
    /// # Errors
    /// With the drive's status if it does not answer.
    fn report(&self, first: ZoneId, count: u32) -> Result<Vec<ZoneReport>, Status>;

    /// Number of the oldest command that the drive has not answered, of those it got, from 0;
    /// `None` if it owes no answer, or cannot tell.
    fn oldest(&self) -> Option<u64> {
        None
    }

    /// Gives the drive up: every command it owes an answer for answers
    /// [`InternalError`](Status::InternalError) at once, and so does everything after. What of
    /// these commands has an effect is open. Without an own way to do that, nothing happens.
    fn give_up(&self) {}

    /// The way to tell the drive to fail; `None` of a drive without one, such as every real drive.
    fn fault_injection(&self) -> Option<&dyn FaultInjection> {
        None
    }

    /// Damage that was survived when the drive was opened, a line each.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// How messages name the drive.
    fn name(&self) -> String;
}
