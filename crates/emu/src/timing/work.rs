//! The part of a command's work that takes time.

use furrow_zone::ZoneId;

/// Whether a write opened its zone, and from which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// The zone was open already.
    No,
    FromEmpty,
    FromClosed,
}

/// The part of a command's work that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The command was refused, or had nothing to do.
    Nothing,
    Write {
        zone: ZoneId,
        /// The first byte, counted from the start of the drive.
        position: u64,
        bytes: u64,
        append: bool,
        opened: Opened,
        /// True if the write is in a conventional zone, where it may be random.
        conventional: bool,
        /// True if the write is answered only when it is programmed.
        durable: bool,
    },
    Read {
        zone: ZoneId,
        /// The first byte, counted from the zone's start.
        offset: u64,
        bytes: u64,
    },
    /// A flush; if the cache is volatile, the whole buffer is programmed before the answer.
    Flush {
        volatile: bool,
    },
    Open {
        zone: ZoneId,
        zones: u32,
    },
    Close {
        zone: ZoneId,
        zones: u32,
    },
    /// Reset of `zones` zones that held `bytes` together, and of `empty` empty zones; `zone` is the
    /// first of all these zones. Before the reset, `active` of the zones were active.
    Reset {
        zone: ZoneId,
        empty: u32,
        zones: u32,
        bytes: u64,
        active: u32,
    },
    /// Finish of `zones` zones that lacked `bytes`, and of `empty` empty zones; `zone` is the first
    /// of all these zones.
    Finish {
        zone: ZoneId,
        empty: u32,
        zones: u32,
        bytes: u64,
    },
}
