//! The kernel's interface as `include/uapi/linux/ublk_cmd.h` and `blkzoned.h` define it.
//!
//! The module has only what this crate uses. All numbers have this machine's byte order.

use rustix::ioctl::{Opcode, opcode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the kernel's sectors, whatever the device's blocks are.
pub(crate) const SECTOR: u64 = 512;

/// Features of a device (`UBLK_F_*`).
pub(crate) mod feature {
    /// The server copies payload by reads and writes of the character device.
    pub const USER_COPY: u64 = 1 << 7;
    /// The device is a zoned block device; this needs `USER_COPY`.
    pub const ZONED: u64 = 1 << 8;
    /// The device outlives its server: requests wait for the next server.
    pub const RECOVERY: u64 = 1 << 3;
    /// The next server gets the requests that the last one had not answered.
    pub const REISSUE: u64 = 1 << 4;
    /// Commands are numbered as ioctls are.
    pub const IOCTL_NUMBERS: u64 = 1 << 6;
}

/// State of a device whose server has gone (`UBLK_S_DEV_DEAD`).
pub(crate) const STATE_DEAD: u16 = 0;

/// State of a device that waits for its next server (`UBLK_S_DEV_QUIESCED`).
pub(crate) const STATE_WAITING: u16 = 2;

/// `struct ublksrv_ctrl_cmd`: the content of a control command.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
pub(crate) struct ControlCommand {
    /// The device's number; all ones for a new device whose number the kernel chooses.
    pub device: u32,
    /// The queue that the command is for; all ones for none.
    pub queue: u16,
    /// Bytes of the buffer at `address`.
    pub length: u16,
    pub address: u64,
    pub data: u64,
    pub path_length: u16,
    pub padding: u16,
    pub reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub(crate) struct DeviceInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub padding: u16,
    /// Largest transfer in bytes.
    pub largest: u32,
    pub device: u32,
    pub pid: i32,
    pub padding_too: u32,
    /// Features of the device, see [`feature`].
    pub features: u64,
    /// A number that the kernel keeps for the server.
    pub mark: u64,
    pub owner: [u32; 2],
    pub reserved: [u64; 2],
}

/// `struct ublksrv_io_desc`: a request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub(crate) struct Descriptor {
    /// The operation in the low byte (see [`op`]), flags above (see [`flag`]).
    pub op_flags: u32,
    /// Number of sectors; for a report, number of zones.
    pub sectors: u32,
    /// The first sector.
    pub sector: u64,
    pub address: u64,
}

/// Operations (`UBLK_IO_OP_*`).
pub(crate) mod op {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const FLUSH: u32 = 2;
    pub const DISCARD: u32 = 3;
    pub const WRITE_ZEROES: u32 = 5;
    pub const ZONE_OPEN: u32 = 10;
    pub const ZONE_CLOSE: u32 = 11;
    pub const ZONE_FINISH: u32 = 12;
    pub const ZONE_APPEND: u32 = 13;
    pub const ZONE_RESET_ALL: u32 = 14;
    pub const ZONE_RESET: u32 = 15;
    pub const REPORT_ZONES: u32 = 18;
}

/// Flags of a request (`UBLK_IO_F_*`).
pub(crate) mod flag {
    pub const FUA: u32 = 1 << 13;
    /// The space of the zeroes must stay allocated.
    pub const NO_UNMAP: u32 = 1 << 15;
}

/// `struct ublksrv_io_cmd`: fetches a request, or answers one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
pub(crate) struct QueueCommand {
    pub queue: u16,
    pub tag: u16,
    /// Number of bytes done, or a negative errno.
    pub result: i32,
    /// The first sector that an append has written.
    pub appended: u64,
}

/// `struct ublk_param_basic`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, IntoBytes, Immutable)]
pub(crate) struct Basic {
    /// Attributes of the device, see [`attribute`].
    pub attributes: u32,
    pub logical_shift: u8,
    pub physical_shift: u8,
    pub optimal_shift: u8,
    pub minimal_shift: u8,
    /// Largest transfer in sectors.
    pub largest: u32,
    /// Sectors of a zone: no transfer crosses a multiple of this number.
    pub chunk: u32,
    pub sectors: u64,
    pub boundary_mask: u64,
}

/// Attributes (`UBLK_ATTR_*`).
pub(crate) mod attribute {
    pub const READ_ONLY: u32 = 1;
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    pub const FUA: u32 = 1 << 3;
}

/// `struct ublk_param_discard`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, IntoBytes, Immutable)]
pub(crate) struct Discard {
    pub alignment: u32,
    pub granularity: u32,
    pub largest: u32,
    pub largest_zeroes: u32,
    pub segments: u16,
    pub reserved: u16,
}

/// `struct ublk_param_zoned`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
pub(crate) struct ZonedLimits {
    /// Maximum number of open zones; 0 for no limit.
    pub max_open: u32,
    /// Maximum number of active zones; 0 for no limit.
    pub max_active: u32,
    /// Largest append in sectors, never 0.
    pub max_append: u32,
    pub reserved: [u8; 20],
}

/// `struct ublk_params` up to the zones; the kernel accepts a shorter structure as that of an
/// older version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
pub(crate) struct Parameters {
    pub length: u32,
    /// The groups of parameters that are set, see [`group`].
    pub groups: u32,
    pub basic: Basic,
    pub discard: Discard,
    /// `struct ublk_param_devt`, which the kernel fills.
    pub numbers: [u32; 4],
    pub zoned: ZonedLimits,
    pub padding: u32,
}

/// Groups of parameters (`UBLK_PARAM_TYPE_*`).
pub(crate) mod group {
    pub const BASIC: u32 = 1;
    pub const DISCARD: u32 = 1 << 1;
    pub const ZONED: u32 = 1 << 3;
}

/// `struct blk_zone`: one zone's descriptor in a report; positions and lengths are in sectors.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub(crate) struct ZoneDescriptor {
    pub start: u64,
    pub length: u64,
    pub write_pointer: u64,
    /// 1 for a conventional zone, 2 for a sequential one.
    pub kind: u8,
    /// The zone's condition (`enum blk_zone_cond`).
    pub condition: u8,
    pub padding: [u8; 6],
    pub capacity: u64,
    pub reserved: [u8; 24],
}

/// Numbers of control commands (`UBLK_U_CMD_*`).
pub(crate) mod control {
    use super::{ControlCommand, Opcode, opcode};

    pub const GET_INFO: Opcode = opcode::read::<ControlCommand>(b'u', 0x02);
    pub const ADD: Opcode = opcode::read_write::<ControlCommand>(b'u', 0x04);
    pub const DELETE: Opcode = opcode::read_write::<ControlCommand>(b'u', 0x05);
    pub const START: Opcode = opcode::read_write::<ControlCommand>(b'u', 0x06);
    pub const STOP: Opcode = opcode::read_write::<ControlCommand>(b'u', 0x07);
    pub const SET_PARAMETERS: Opcode = opcode::read_write::<ControlCommand>(b'u', 0x08);
    pub const GET_PARAMETERS: Opcode = opcode::read::<ControlCommand>(b'u', 0x09);
    pub const START_RECOVERY: Opcode = opcode::read_write::<ControlCommand>(b'u', 0x10);
    pub const END_RECOVERY: Opcode = opcode::read_write::<ControlCommand>(b'u', 0x11);
    pub const GET_FEATURES: Opcode = opcode::read::<ControlCommand>(b'u', 0x13);
}

/// Numbers of a queue's commands (`UBLK_U_IO_*`).
pub(crate) mod queue {
    use super::{Opcode, QueueCommand, opcode};

    pub const FETCH: Opcode = opcode::read_write::<QueueCommand>(b'u', 0x20);
    pub const COMMIT_AND_FETCH: Opcode = opcode::read_write::<QueueCommand>(b'u', 0x21);
}

/// Offset of the payload of the request `tag` of queue 0 in the character device.
pub(crate) fn payload_offset(tag: u16) -> u64 {
    0x8000_0000 + (u64::from(tag) << 25)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!(size_of::<ControlCommand>(), 32);
        assert_eq!(offset_of!(ControlCommand, data), 16);
        assert_eq!(size_of::<DeviceInfo>(), 64);
        assert_eq!(offset_of!(DeviceInfo, features), 24);
        assert_eq!((size_of::<Descriptor>(), size_of::<QueueCommand>()), (24, 16));
        assert_eq!((size_of::<Basic>(), size_of::<Discard>()), (32, 20));
        assert_eq!((size_of::<ZonedLimits>(), size_of::<ZoneDescriptor>()), (32, 64));
        assert_eq!(offset_of!(ZoneDescriptor, capacity), 32);
        let offsets = [
            offset_of!(Parameters, basic),
            offset_of!(Parameters, discard),
            offset_of!(Parameters, numbers),
            offset_of!(Parameters, zoned),
        ];
        assert_eq!(offsets, [8, 40, 60, 76]);
        assert_eq!(offset_of!(Parameters, padding), 108);
    }

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!([control::GET_INFO, control::GET_FEATURES], [0x8020_7502, 0x8020_7513]);
        assert_eq!([control::ADD, control::DELETE], [0xc020_7504, 0xc020_7505]);
        assert_eq!([control::START, control::STOP], [0xc020_7506, 0xc020_7507]);
        assert_eq!(control::SET_PARAMETERS, 0xc020_7508);
        assert_eq!(control::GET_PARAMETERS, 0x8020_7509);
        let recovery = [control::START_RECOVERY, control::END_RECOVERY];
        assert_eq!(recovery, [0xc020_7510, 0xc020_7511]);
        assert_eq!([queue::FETCH, queue::COMMIT_AND_FETCH], [0xc010_7520, 0xc010_7521]);
        assert_eq!(payload_offset(0), 0x8000_0000);
        assert_eq!(payload_offset(3) - payload_offset(0), 3 * (32 << 20));
    }
}
