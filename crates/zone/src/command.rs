//! Commands, zone states and statuses by their NVMe names and codes.

use crate::{BlockCount, Lba, ZoneId};

/// State of a zone (ZNS Command Set 1.1, Zone State Machine).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZoneState {
    /// No block is written; the zone is not active.
    Empty,
    /// Opened by a write or append; the drive may close it to open another zone.
    ImplicitlyOpen,
    /// Opened by command.
    ExplicitlyOpen,
    /// Active but not open: it must be opened again, by a write or by command, before it
    /// takes data.
    Closed,
    /// Written to its end, or finished.
    Full,
    /// Can be read, but not written any more.
    ReadOnly,
    /// Failed: neither readable nor writable.
    Offline,
}

/// A zone management action (Zone Management Send).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Close Zone.
    Close,
    /// Finish Zone.
    Finish,
    /// Open Zone.
    Open,
    /// Reset Zone.
    Reset,
    /// Offline Zone.
    Offline,
}

/// The zones that a management action applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The zone that starts at this address.
    Zone(Lba),
    /// Every zone to which the action applies (Select All).
    All,
}

/// A command, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read `blocks` from `lba`.
    Read {
        /// First block.
        lba: Lba,
        /// Number of blocks.
        blocks: BlockCount,
    },
    /// Write `blocks` at `lba`, which must be the zone's write pointer.
    Write {
        /// First block.
        lba: Lba,
        /// Number of blocks.
        blocks: BlockCount,
    },
    /// Append `blocks` to the zone that starts at `zone_start`.
    Append {
        /// First block of the zone.
        zone_start: Lba,
        /// Number of blocks.
        blocks: BlockCount,
    },
    /// Make all completed writes durable.
    Flush,
    /// Change the state of one zone or of all zones.
    Manage {
        /// The zones to change.
        target: Target,
        /// The action to apply.
        action: Action,
    },
}

/// Status of a completed command: NVMe status code type and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// 000h Successful Completion.
    Success,
    /// 002h Invalid Field in Command.
    InvalidField,
    /// 006h Internal Error; also the answer of a drive that has disappeared.
    InternalError,
    /// 080h LBA Out of Range.
    LbaOutOfRange,
    /// 081h Capacity Exceeded: the storage behind the drive is full, although the drive is not.
    CapacityExceeded,
    /// 1B8h Zone Boundary Error.
    ZoneBoundary,
    /// 1B9h Zone Is Full.
    ZoneFull,
    /// 1BAh Zone Is Read Only.
    ZoneReadOnly,
    /// 1BBh Zone Is Offline.
    ZoneOffline,
    /// 1BCh Zone Invalid Write.
    ZoneInvalidWrite,
    /// 1BDh Too Many Active Zones.
    TooManyActive,
    /// 1BEh Too Many Open Zones.
    TooManyOpen,
    /// 1BFh Invalid Zone State Transition.
    InvalidTransition,
    /// 280h Write Fault.
    WriteFault,
    /// 281h Unrecovered Read Error.
    UnrecoveredRead,
    /// 287h Deallocated or Unwritten Logical Block.
    Unwritten,
}

impl Status {
    /// True for [`Status::Success`].
    pub fn is_ok(self) -> bool {
        self == Status::Success
    }

    /// Status code type in the high byte (0 generic, 1 command specific, 2 media), code in the low
    /// byte.
    pub fn code(self) -> u16 {
        match self {
            Status::Success => 0x000,
            Status::InvalidField => 0x002,
            Status::InternalError => 0x006,
            Status::LbaOutOfRange => 0x080,
            Status::CapacityExceeded => 0x081,
            Status::ZoneBoundary => 0x1b8,
            Status::ZoneFull => 0x1b9,
            Status::ZoneReadOnly => 0x1ba,
            Status::ZoneOffline => 0x1bb,
            Status::ZoneInvalidWrite => 0x1bc,
            Status::TooManyActive => 0x1bd,
            Status::TooManyOpen => 0x1be,
            Status::InvalidTransition => 0x1bf,
            Status::WriteFault => 0x280,
            Status::UnrecoveredRead => 0x281,
            Status::Unwritten => 0x287,
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Status::Success => "Successful Completion",
            Status::InvalidField => "Invalid Field in Command",
            Status::InternalError => "Internal Error",
            Status::LbaOutOfRange => "LBA Out of Range",
            Status::CapacityExceeded => "Capacity Exceeded",
            Status::ZoneBoundary => "Zone Boundary Error",
            Status::ZoneFull => "Zone Is Full",
            Status::ZoneReadOnly => "Zone Is Read Only",
            Status::ZoneOffline => "Zone Is Offline",
            Status::ZoneInvalidWrite => "Zone Invalid Write",
            Status::TooManyActive => "Too Many Active Zones",
            Status::TooManyOpen => "Too Many Open Zones",
            Status::InvalidTransition => "Invalid Zone State Transition",
            Status::WriteFault => "Write Fault",
            Status::UnrecoveredRead => "Unrecovered Read Error",
            Status::Unwritten => "Deallocated or Unwritten Logical Block",
        };
        write!(f, "{name} ({:03X}h)", self.code())
    }
}

impl ZoneState {
    /// True if the zone holds an active resource.
    pub fn is_active(self) -> bool {
        matches!(self, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen | ZoneState::Closed)
    }

    /// True if the zone holds an open resource.
    pub fn is_open(self) -> bool {
        matches!(self, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen)
    }
}

impl Command {
    /// Builds the reset of `zone` on a drive of `geometry`.
    pub fn reset(geometry: &crate::Geometry, zone: ZoneId) -> Command {
        Command::Manage { target: Target::Zone(geometry.start(zone)), action: Action::Reset }
    }
}
