//! The time that commands take: a discrete-event model of a zoned drive.
//!
//! The drive carries a command out, or refuses it, before the command is passed to the engine
//! ([`Engine::start`]). The engine determines when a real drive would have answered. The engine
//! knows neither the state machine, nor the medium, nor the executor: its input is the work of a
//! command (`Work`) and the time.
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

mod agenda;
mod chance;
mod engine;
pub mod model;
pub mod quantity;
mod read;
pub(crate) mod work;
mod write;

pub use agenda::TimingCounters;
pub(crate) use engine::Engine;
pub use model::{Model, Preset, Provenance, Source};

/// The timing of an emulated drive.
#[derive(Clone, Debug)]
pub struct Pace {
    /// The parameters of the timing model.
    pub model: std::rc::Rc<Model>,
    /// Nanoseconds of the executor's clock for 1,000 ns of the model's: 1,000 is the speed of the
    /// modelled drive; 10,000 is ten times slower, so that the host is fast in comparison.
    pub scale: u64,
}
