//! The interface of a plain drive: bytes anywhere, no zones. Soft zones stand on one.

use crate::{ByteLen, Outcome};
use furrow_rt::{Completion, Pages};

/// A drive without zones: a block device, a file, or an emulated one.
///
/// Offsets and lengths are bytes and multiples of 4 KiB. Commands start in any order. Nothing is
/// durable before a flush is answered that was sent after the write's answer; until then any part
/// of a write, in units that may be as small as 512 bytes, may survive a power cut without the
/// rest. `Outcome::lba` has no meaning.
pub trait PlainDevice {
    /// Bytes of the drive.
    fn size(&self) -> ByteLen;

    /// Largest read or write, at least 4 KiB.
    fn max_transfer(&self) -> ByteLen;

    /// Reads `data.len()` pages from `offset` into `data`.
    fn read(&self, offset: u64, data: Pages) -> Completion<Outcome>;

    /// Write streams, which a write names by numbers from 1 to this one; 0 if it has none. The
    /// drive may keep the data of different streams in different places, such as erase blocks.
    fn streams(&self) -> u8 {
        0
    }

    /// Writes `data` at `offset`. `stream` is one of [`PlainDevice::streams`], or 0 for none: a
    /// hint, on which neither the answer nor what is read later depends.
    fn write(&self, offset: u64, data: Pages, stream: u8) -> Completion<Outcome>;

    /// Makes all answered writes durable.
    fn flush(&self) -> Completion<Outcome>;

    /// Says that nobody will read `length` bytes from `offset` before they are written again. What
    /// they read as until then is undefined, and may change from one read to the next.
    fn discard(&self, offset: u64, length: u64) -> Completion<Outcome>;

    /// The oldest command that the drive has not answered, as
    /// [`ZonedDevice::oldest`](crate::ZonedDevice::oldest) numbers it.
    fn oldest(&self) -> Option<u64> {
        None
    }

    /// Gives the drive up, as [`ZonedDevice::give_up`](crate::ZonedDevice::give_up) does.
    fn give_up(&self) {}

    /// What the drive's user should know, a line each.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// The name of the drive in messages.
    fn name(&self) -> String;
}
