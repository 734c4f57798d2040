//! The options of a drive: how it processes commands.

use crate::timing::Pace;

/// Number of commands that are carried out each time the executor polls the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One command at a time, so that many stay in flight.
    One,
    /// All waiting commands.
    All,
}

/// How a drive processes commands.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of commands that are carried out each time the executor polls the drive.
    pub step: Step,
    /// True to draw the order across queues from the seed, instead of taking commands in the order
    /// of arrival.
    pub shuffle: bool,
    /// Seed for the order of commands and for random faults; with `None` the executor draws one.
    pub seed: Option<u64>,
    /// The drive's name in messages.
    pub name: String,
    /// The timing of commands; with `None`, commands take no time.
    pub pace: Option<Pace>,
}

impl Options {
    /// Carries out one command at a time, with the order across queues shuffled.
    pub fn simulated() -> Options {
        let name = "mem:".to_owned();
        Options { step: Step::One, shuffle: true, seed: None, name, pace: None }
    }

    /// Carries out all waiting commands at once, in the order of arrival.
    pub fn fast() -> Options {
        let name = "mem:".to_owned();
        Options { step: Step::All, shuffle: false, seed: None, name, pace: None }
    }

    /// Starts commands when they are submitted; they take as long as `pace` says.
    pub fn timed(pace: Pace) -> Options {
        Options { pace: Some(pace), ..Options::fast() }
    }
}
