//! The kernel's calls for zoned block devices, as `include/uapi/linux/blkzoned.h` defines them.

#![allow(unsafe_code, reason = "an ioctl's argument is typed by its number only")]

use furrow_zone::Action;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use std::fs::File;

/// Bytes in one of the kernel's sectors, regardless of the drive's block size.
pub(crate) const SECTOR: u64 = 512;

/// Maximum number of zones that one call reports.
const BATCH: usize = 128;

/// `struct blk_zone`: one zone's descriptor. Addresses and lengths are in sectors.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub start: u64,
    pub length: u64,
    pub write_pointer: u64,
    /// Type of the zone; see [`CONVENTIONAL`].
    pub kind: u8,
    /// Condition of the zone, by `enum blk_zone_cond`.
    pub condition: u8,
    pub non_sequential: u8,
    pub reset_recommended: u8,
    pub reserved: [u8; 4],
    /// Capacity in sectors; 0 if the kernel does not report it.
    pub capacity: u64,
    pub reserved_too: [u8; 24],
}

/// Type of a zone without a write pointer (`BLK_ZONE_TYPE_CONVENTIONAL`).
pub(crate) const CONVENTIONAL: u8 = 1;

/// `struct blk_zone_report` with space for its descriptors.
#[repr(C)]
struct Report {
    sector: u64,
    zones: u32,
    flags: u32,
    descriptors: [Descriptor; BATCH],
}

/// `struct blk_zone_report` without descriptors, the size of which is part of the call's number.
#[repr(C)]
struct ReportHead {
    _sector: u64,
    _zones: u32,
    _flags: u32,
}

/// `struct blk_zone_range`.
#[repr(C)]
struct Range {
    sector: u64,
    sectors: u64,
}

const REPORT: Opcode = opcode::read_write::<ReportHead>(0x12, 130);
const RESET: Opcode = opcode::write::<Range>(0x12, 131);
const OPEN: Opcode = opcode::write::<Range>(0x12, 134);
const CLOSE: Opcode = opcode::write::<Range>(0x12, 135);
const FINISH: Opcode = opcode::write::<Range>(0x12, 136);
/// `BLKDISCARD`; its number does not encode its argument.
const DISCARD: Opcode = opcode::none(0x12, 119);
/// `BLKPG`; its number does not encode its argument.
const PARTITIONS: Opcode = opcode::none(0x12, 105);
/// `BLKPG_DEL_PARTITION`.
const DELETE_PARTITION: i32 = 2;

/// `struct blkpg_ioctl_arg`.
#[repr(C)]
struct PartitionCall {
    what: i32,
    flags: i32,
    length: i32,
    partition: *mut Partition,
}

/// `struct blkpg_partition`.
#[repr(C)]
struct Partition {
    start: i64,
    length: i64,
    number: i32,
    device: [u8; 64],
    volume: [u8; 64],
}

/// The descriptors of up to `count` zones, from the zone at `sector` on; fewer at the end of
/// the drive.
///
/// # Errors
/// The errno of the call.
pub(crate) fn report(file: &File, sector: u64, count: u32) -> Result<Vec<Descriptor>, Errno> {
    let mut found = Vec::new();
    let mut next = sector;
    while found.len() < count as usize {
        let wanted = (count as usize - found.len()).min(BATCH);
        let descriptors = [Descriptor::default(); BATCH];
        let mut report = Report { sector: next, zones: wanted as u32, flags: 0, descriptors };
        // SAFETY: the kernel reads a head that asks for at most `BATCH` zones. It writes the head
        // and at most that many descriptors, for which `Report` has space.
        unsafe { ioctl(file, Updater::<REPORT, Report>::new(&mut report)) }?;
        let got = (report.zones as usize).min(wanted);
        found.extend_from_slice(&report.descriptors[..got]);
        match found.last() {
            Some(last) if got == wanted => next = last.start + last.length,
            _ => break,
        }
    }
    Ok(found)
}

/// Changes the state of the zones within the `sectors` sectors from `sector` on.
///
/// # Errors
/// The errno of the call; `INVAL` for [`Action::Offline`], which the kernel does not offer.
pub(crate) fn manage(file: &File, action: Action, sector: u64, sectors: u64) -> Result<(), Errno> {
    let range = Range { sector, sectors };
    // SAFETY: each of these calls reads a `struct blk_zone_range` and writes nothing.
    unsafe {
        match action {
            Action::Reset => ioctl(file, Setter::<RESET, Range>::new(range)),
            Action::Open => ioctl(file, Setter::<OPEN, Range>::new(range)),
            Action::Close => ioctl(file, Setter::<CLOSE, Range>::new(range)),
            Action::Finish => ioctl(file, Setter::<FINISH, Range>::new(range)),
            Action::Offline => Err(Errno::INVAL),
        }
    }
}

/// Discards `length` bytes of a block device from `offset` on (BLKDISCARD). Does nothing for a
/// file, so that its blocks stay allocated.
///
/// # Errors
/// The errno of the call; `OPNOTSUPP` from a device that refuses discards.
pub(crate) fn discard(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    let is_file = rustix::fs::fstat(file)
        .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file());
    if is_file? {
        return Ok(());
    }
    // SAFETY: the call reads two numbers and writes nothing.
    unsafe { ioctl(file, Setter::<DISCARD, [u64; 2]>::new([offset, length])) }
}

/// Makes the kernel forget partition `number` of a block device. The partition table on the device
/// is not changed.
///
/// # Errors
/// The errno of the call; `BUSY` if a program has the partition open.
pub(crate) fn forget_partition(file: &File, number: i32) -> Result<(), Errno> {
    let mut partition = Partition { start: 0, length: 0, number, device: [0; 64], volume: [0; 64] };
    let length = size_of::<Partition>() as i32;
    let call =
        PartitionCall { what: DELETE_PARTITION, flags: 0, length, partition: &mut partition };
    // SAFETY: the call reads the two structures, which live until it returns.
    unsafe { ioctl(file, Setter::<PARTITIONS, PartitionCall>::new(call)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_and_numbers_are_the_kernels() {
        assert_eq!((size_of::<Descriptor>(), size_of::<ReportHead>()), (64, 16));
        assert_eq!(size_of::<Report>(), 16 + 64 * BATCH);
        assert_eq!(std::mem::offset_of!(Descriptor, capacity), 32);
        // These are the numbers that strace(1) and the header give on x86 and ARM.
        assert_eq!([REPORT, RESET, OPEN], [0xc010_1282, 0x4010_1283, 0x4010_1286]);
        assert_eq!([CLOSE, FINISH, DISCARD], [0x4010_1287, 0x4010_1288, 0x1277]);
        assert_eq!((size_of::<PartitionCall>(), size_of::<Partition>()), (24, 152));
        assert_eq!(PARTITIONS, 0x1269);
    }

    #[test]
    fn a_file_is_no_zoned_device() {
        let file = File::open("/dev/null").expect("a system with /dev/null");
        assert_eq!(report(&file, 0, 1), Err(Errno::NOTTY));
        assert_eq!(manage(&file, Action::Offline, 0, 8), Err(Errno::INVAL));
        assert!(forget_partition(&file, 1).is_err());
    }
}
