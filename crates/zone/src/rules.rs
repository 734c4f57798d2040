//! The rules of one zone, as pure functions: (zone, operation, headroom) → new zone or a status.
//!
//! This is the zone state machine of the ZNS Command Set Specification 1.1 ("Zone State Machine",
//! "Zone Resources", the Write, Read and Zone Append commands and Zone Management Send).
//! `tests/table.csv` lists its answer in every state, clause by clause.
//!
//! The specification leaves part of the order of checks open. The order here: state, alignment,
//! write pointer, boundary, resources. An append's boundary is checked from the write pointer at
//! which it is placed, never from the address in the command.
//!
//! Not here: sizes and ranges that do not depend on the zone's state (checked before), and the
//! counts of open and active zones: both are in [`machine`](crate::machine). Nor ZRWA, descriptor
//! extensions, time, data.

use crate::{Action, BlockCount, Status, ZoneState};

/// One zone of a drive: everything on which the rules depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// State of the zone. A conventional zone is always full, read-only or offline.
    pub state: ZoneState,
    /// Number of blocks written, from the start of the zone. This is the write pointer while the
    /// zone has one (empty, open, closed). In the other states it still says where data ends: a
    /// finished zone keeps it below the capacity. [`Zone::reported_pointer`] is the pointer that a
    /// drive *reports*.
    pub write_pointer: BlockCount,
    /// Number of blocks that can be written; at most the geometry's zone capacity.
    pub capacity: BlockCount,
}

impl Zone {
    /// The write pointer in a zone report: `capacity` if full, 0 if read-only or offline.
    pub fn reported_pointer(&self) -> BlockCount {
        match self.state {
            ZoneState::Full => self.capacity,
            ZoneState::ReadOnly | ZoneState::Offline => BlockCount(0),
            _ => self.write_pointer,
        }
    }

    /// Number of blocks that can still be written; 0 if full, read-only or offline.
    pub fn remaining(&self) -> BlockCount {
        match self.state {
            ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline => BlockCount(0),
            _ => BlockCount(self.capacity.0 - self.write_pointer.0),
        }
    }
}

/// An operation on a zone. Offsets count blocks from the zone's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Write `blocks` at `offset`.
    Write {
        /// First block, as an offset in the zone.
        offset: BlockCount,
        /// Number of blocks, at least 1.
        blocks: BlockCount,
    },
    /// Append `blocks`; the command's address was at `offset` in the zone, which must be 0.
    Append {
        /// Offset of the command's address in the zone.
        offset: BlockCount,
        /// Number of blocks, at least 1.
        blocks: BlockCount,
    },
    /// A management action.
    Manage(Action),
}

/// Whether the drive has the resources to open the zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Whether one more zone may become active.
    pub active: bool,
    /// Whether one more zone may be open, if necessary after closing an implicitly opened zone.
    pub open: bool,
}

impl Headroom {
    /// Headroom on a drive without limits.
    pub const UNLIMITED: Headroom = Headroom { active: true, open: true };
}

/// The effect of an accepted operation on its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The zone after the operation.
    pub zone: Zone,
    /// Offset in the zone at which data is placed; 0 for management.
    pub offset: BlockCount,
    /// Whether the zone passes from not open through an open state, so that it needs an open
    /// resource, if only for a moment.
    pub opens: bool,
}

/// Carries out `op` on `zone`.
///
/// # Errors
/// The status that the drive must answer; the zone is then unchanged.
#[inline]
pub fn step(zone: Zone, op: Op, headroom: Headroom) -> Result<Step, Status> {
    match op {
        Op::Write { offset, blocks } => {
            writable(zone.state)?;
            if offset != zone.write_pointer {
                return Err(Status::ZoneInvalidWrite);
            }
            advance(zone, blocks, headroom)
        }
        Op::Append { offset, blocks } => {
            writable(zone.state)?;
            if offset.0 != 0 {
                return Err(Status::InvalidField);
            }
            advance(zone, blocks, headroom)
        }
        Op::Manage(action) => manage(zone, action, headroom),
    }
}

/// Applies a write of `blocks` at the write pointer of a zone that takes writes. With 0 blocks it
/// opens the zone and writes nothing, as a failed write may do.
#[inline]
pub(crate) fn advance(zone: Zone, blocks: BlockCount, headroom: Headroom) -> Result<Step, Status> {
    if blocks.0 > zone.capacity.0 - zone.write_pointer.0 {
        return Err(Status::ZoneBoundary);
    }
    let opens = !zone.state.is_open();
    if opens {
        opening(zone.state, headroom)?;
    }
    let write_pointer = BlockCount(zone.write_pointer.0 + blocks.0);
    let state = if write_pointer == zone.capacity {
        ZoneState::Full
    } else if opens {
        ZoneState::ImplicitlyOpen
    } else {
        zone.state
    };
    Ok(Step { zone: Zone { state, write_pointer, ..zone }, offset: zone.write_pointer, opens })
}

/// Whether a zone in `state` takes writes.
///
/// # Errors
/// The status that the drive answers if the zone does not take writes.
#[inline]
pub(crate) fn writable(state: ZoneState) -> Result<(), Status> {
    match state {
        ZoneState::Full => Err(Status::ZoneFull),
        ZoneState::ReadOnly => Err(Status::ZoneReadOnly),
        ZoneState::Offline => Err(Status::ZoneOffline),
        _ => Ok(()),
    }
}

/// Whether an empty or closed zone may be opened. The limit of active zones is checked first,
/// because closing an implicitly opened zone does not reduce their number. So a drive with equal
/// limits (MAR = MOR) always answers Too Many Active Zones, as the specification wants: at the
/// limit of open zones, all active zones are open, so a zone to be opened is empty and would be one
/// active zone too many.
fn opening(state: ZoneState, headroom: Headroom) -> Result<(), Status> {
    if !state.is_active() && !headroom.active {
        return Err(Status::TooManyActive);
    }
    if !headroom.open {
        return Err(Status::TooManyOpen);
    }
    Ok(())
}

fn manage(zone: Zone, action: Action, headroom: Headroom) -> Result<Step, Status> {
    use ZoneState::{Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen, Offline, ReadOnly};
    let mut opens = false;
    let mut write_pointer = zone.write_pointer;
    let state = match (action, zone.state) {
        (Action::Open, Empty | Closed) => {
            opening(zone.state, headroom)?;
            opens = true;
            ExplicitlyOpen
        }
        (Action::Open, ImplicitlyOpen | ExplicitlyOpen) => ExplicitlyOpen,
        (Action::Close, ImplicitlyOpen | ExplicitlyOpen | Closed) => Closed,
        (Action::Finish, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed | Full) => Full,
        (Action::Reset, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed | Full) => {
            write_pointer = BlockCount(0);
            Empty
        }
        (Action::Offline, ReadOnly | Offline) => Offline,
        (Action::Open | Action::Close, Full | ReadOnly | Offline)
        | (Action::Close | Action::Offline, Empty)
        | (Action::Finish | Action::Reset, ReadOnly | Offline)
        | (Action::Offline, ImplicitlyOpen | ExplicitlyOpen | Closed | Full) => {
            return Err(Status::InvalidTransition);
        }
    };
    Ok(Step { zone: Zone { state, write_pointer, ..zone }, offset: BlockCount(0), opens })
}

/// Whether a Select All of `action` applies to a zone in `state`.
pub fn selected(action: Action, state: ZoneState) -> bool {
    match action {
        Action::Open => state == ZoneState::Closed,
        Action::Close => state.is_open(),
        Action::Finish => state.is_active(),
        Action::Reset => state.is_active() || state == ZoneState::Full,
        Action::Offline => state == ZoneState::ReadOnly,
    }
}

/// The status of a read in a zone up to block `end` (exclusive), which is at most the zone size.
/// Blocks that were never written are an error with `unwritten_fails` (DULBE), and read as zeros
/// without it. The blocks of a read-only zone can always be read.
#[inline]
pub fn read(zone: Zone, end: BlockCount, unwritten_fails: bool) -> Status {
    match zone.state {
        ZoneState::Offline => Status::ZoneOffline,
        ZoneState::ReadOnly => Status::Success,
        _ if unwritten_fails && end > zone.write_pointer => Status::Unwritten,
        _ => Status::Success,
    }
}

/// The zone after a power cycle (an NVM subsystem reset, a shutdown, a loss of power), if `durable`
/// of its blocks survived.
///
/// A zone that was filled by a write and lost part of it was not durably full: it is closed or
/// empty again. A zone that was finished, or that the controller made full, stays full, and its
/// data ends earlier.
pub fn power_cycle(zone: Zone, durable: BlockCount) -> Zone {
    let write_pointer = zone.write_pointer.min(durable);
    let filled_by_write = zone.state == ZoneState::Full && zone.write_pointer == zone.capacity;
    let lost = write_pointer < zone.write_pointer;
    let state = if zone.state.is_active() || (filled_by_write && lost) {
        if write_pointer.0 > 0 { ZoneState::Closed } else { ZoneState::Empty }
    } else {
        zone.state
    };
    Zone { state, write_pointer, ..zone }
}
