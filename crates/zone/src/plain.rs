//! The interface of a plain drive, which takes bytes anywhere and has no zones. Soft zones use one.

use crate::{ByteLen, Outcome};
use furrow_rt::{Completion, Pages};

/// A drive without zones: a block device, a file, or an emulated one.
///
/// Offsets and lengths are in bytes and multiples of 4 KiB. Commands start in any order. A write is
/// durable only after a flush: the flush is sent after the write's answer, and is answered. Until
/// then, any parts of a write may survive a power cut without the rest, in units of 512 bytes or
/// more. `Outcome::lba` has no meaning.
pub trait PlainDevice {
    /// Size of the drive in bytes.
    fn size(&self) -> ByteLen;

    /// Largest read or write in bytes, at least 4 KiB.
    fn max_transfer(&self) -> ByteLen;

    /// Reads `data.len()` pages from `offset` into `data`.
    fn read(&self, offset: u64, data: Pages) -> Completion<Outcome>;

    /// Number of write streams; writes name them by numbers from 1 to this number. 0: the drive
    /// has none. The drive may keep data of different streams apart, for example in different
    /// erase blocks.
    fn streams(&self) -> u8 {
        0
    }

    /// Writes `data` at `offset`. `stream` is a number up to [`PlainDevice::streams`], or 0 for
    /// none. It is only a hint: neither the answer nor later reads depend on it.
    fn write(&self, offset: u64, data: Pages, stream: u8) -> Completion<Outcome>;

    /// Makes all answered writes durable.
    fn flush(&self) -> Completion<Outcome>;

    /// Announces that `length` bytes from `offset` on will not be read before they are written
    /// again. Until then, reads of these bytes are undefined, and may differ from one read to the
    /// next.
    fn discard(&self, offset: u64, length: u64) -> Completion<Outcome>;

    /// The oldest command that the drive has not answered, as
    /// [`ZonedDevice::oldest`](crate::ZonedDevice::oldest) numbers it.
    fn oldest(&self) -> Option<u64> {
        None
    }

    /// Number of commands answered as by a drive that is gone, as
    /// [`ZonedDevice::misses`](crate::ZonedDevice::misses) counts them.
    fn misses(&self) -> u64 {
        0
    }

    /// Gives the drive up, as [`ZonedDevice::give_up`](crate::ZonedDevice::give_up) does.
    fn give_up(&self) {}

    /// Warnings for the drive's user, one line each.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// The name of the drive in messages.
    fn name(&self) -> String;
}
