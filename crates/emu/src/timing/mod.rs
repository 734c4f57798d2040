//! The time that commands take: a discrete-event model of a zoned drive.
//!
//! The drive carries a command out, or refuses it, before the command is passed to the engine
//! ([`Engine::start`]). The engine determines when a real drive would have answered. The engine
//! knows neither the state machine, nor the medium, nor the executor: its input is the work of a
//! command ([`Work`]) and the time.
//!
//! These are the stations. They serve in the order of arrival unless noted. Every duration is in
//! whole nanoseconds, and every random duration comes from a hash of seed, zone and command number:
//!
//! ```text
//! writes, appends   command stage (one, random) → write buffer (policies) → programs of a group
//!                   answered when all bytes are in the buffer, and not before the measured latency
//! reads             command stage (one) → dies, page by page, readers in turn → channel (die held)
//!                   → link → answered with the last page
//! management        measured costs; resets and finishes take a share of their group's programs
//! ```
//!
//! The parameters, with the source of each: [`model`]. The derivation of the model, and its
//! deviation from measurements: `docs/research/calibration.md`.
//!
//! Deliberately not modelled: wear, a failing die, reads of data in the write buffer (they cost as
//! much as a read of the die), channels shared by reads and programs.

mod chance;
mod engine;
pub mod model;
pub mod quantity;
mod read;
mod write;

pub(crate) use engine::Engine;
pub use engine::TimingCounters;
pub use model::{Model, Preset, Provenance, Source};

use furrow_zone::ZoneId;

/// The timing of an emulated drive.
#[derive(Clone, Debug)]
pub struct Pace {
    /// The parameters.
    pub model: std::rc::Rc<Model>,
    /// Nanoseconds of the executor's clock for 1,000 ns of the model's: 1,000 is the speed of the
    /// modelled drive; 10,000 is ten times slower, so that the host is fast in comparison.
    pub scale: u64,
}

/// Whether a write opened its zone, and from which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// The zone was open already.
    No,
    FromEmpty,
    FromClosed,
}

/// The work of a command, as far as it affects time.
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
    /// Reset of zones that held `bytes`; `active` of them were active.
    Reset {
        zone: ZoneId,
        empty: u32,
        zones: u32,
        bytes: u64,
        active: u32,
    },
    /// Finish of zones that lacked `bytes`.
    Finish {
        zone: ZoneId,
        empty: u32,
        zones: u32,
        bytes: u64,
    },
}
