//! What commands cost in time: a discrete-event model of a zoned drive.
//!
//! The drive has carried a command out, or refused it, when it comes here ([`Engine::start`]); the
//! engine says when it would have been answered. It knows neither the state machine, nor the
//! medium, nor the executor: it is told what a command was ([`Work`]) and what time it is.
//!
//! Stations, first come first served unless said otherwise; every duration is in whole nanoseconds
//! and every random one a hash of seed, zone and command number:
//!
//! ```text
//! writes, appends   command stage (one, random) → write buffer (policies) → programs of a group
//!                   answered when all bytes are in the buffer, and not before the measured latency
//! reads             command stage (one) → dies, page by page, readers in turn → channel (die held)
//!                   → link → answered with the last page
//! management        measured costs; resets and finishes take a share of their group's programs
//! ```
//!
//! The parameters, with the source of each: [`model`]. How the model was found and how far it is
//! from measurements: `docs/calibration.md`.
//!
//! Deliberately not here: wear, a die that fails, data that is read from the write buffer (it
//! costs what a read of the die costs), channels shared by reads and programs.

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

/// How an emulated drive takes time.
#[derive(Clone, Debug)]
pub struct Pace {
    /// The parameters.
    pub model: std::rc::Rc<Model>,
    /// Nanoseconds of the executor's clock for 1,000 of the model: 1,000 = as fast as the drive
    /// it models, 10,000 = ten times slower, which makes a slow host look fast.
    pub scale: u64,
}

/// What a zone was before a write opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// Open already.
    No,
    FromEmpty,
    FromClosed,
}

/// What a command did, as far as time is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// It was refused, or had nothing to do.
    Nothing,
    Write {
        zone: ZoneId,
        /// Bytes from the start of the drive.
        position: u64,
        bytes: u64,
        append: bool,
        opened: Opened,
        /// In a conventional zone: it may be random.
        conventional: bool,
        /// Answered only when programmed.
        durable: bool,
    },
    Read {
        zone: ZoneId,
        /// Bytes from the zone's start.
        offset: u64,
        bytes: u64,
    },
    /// Everything in the buffer is programmed before, if the cache is volatile.
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
    /// Reset of zones that held `bytes`; `active` of them were active and held more than a little.
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
