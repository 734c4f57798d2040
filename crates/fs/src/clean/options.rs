//! Options and results of cleaning, and notes about earlier cleanings.

use furrow_log::pool::SuperzoneId;
use furrow_log::victim::Policy;
use std::collections::BTreeMap;

/// Options for cleaning a mounted file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcOptions {
    /// Clean in the background. Without background cleaning, the engine cleans only when an
    /// operation lacks space.
    pub background: bool,
    /// The policy by which background cleaning chooses victims.
    pub policy: Policy,
    /// Background cleaning starts when the space that can be written without cleaning falls below
    /// this share of the space not in use, in percent.
    pub start: u8,
    /// Below this share, in percent, cleaning does not pause.
    pub urgent: u8,
}

impl Default for GcOptions {
    fn default() -> GcOptions {
        GcOptions { background: true, policy: Policy::CostBenefit, start: 20, urgent: 8 }
    }
}

/// Options of [`crate::Fs::clean`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanOptions {
    /// The policy by which victims are chosen.
    pub policy: Policy,
    /// Largest number of superzones to clean.
    pub superzones: u32,
    /// Minimum share of a victim that must be garbage, in percent.
    pub garbage_percent: u8,
}

impl Default for CleanOptions {
    /// Cleans all superzones with at least 5 % garbage, the cheapest first.
    fn default() -> CleanOptions {
        CleanOptions { policy: Policy::Greedy, superzones: u32::MAX, garbage_percent: 5 }
    }
}

/// The result of a cleaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Number of superzones that are empty now.
    pub superzones: u32,
    /// Number of blocks of file data that were moved.
    pub data_blocks: u64,
    /// Number of nodes that were moved.
    pub node_blocks: u64,
    /// Number of blocks that could not be read, or whose content is not the content that
    /// was written.
    pub failed_blocks: u64,
    /// Place, owner and reason of the first failed blocks, at most 32.
    pub failures: Vec<String>,
}

/// Notes that later cleanings use.
#[derive(Default)]
pub(crate) struct CleanState {
    /// Superzones that could not be emptied, each with its generation.
    pub(super) stuck: BTreeMap<u32, u32>,
    /// Superzones to be emptied because one of their zones cannot be relied on, each with
    /// its generation.
    pub(super) closed: BTreeMap<u32, u32>,
    /// Background cleaning looks for no victim until the number of dispatches reaches this number.
    pub(super) rest_until: u64,
    /// Messages for [`crate::Fs::damaged_blocks`]; only the newest are kept.
    pub(super) failures: Vec<String>,
}

impl CleanState {
    /// Notes that a superzone must be emptied, because one of its zones cannot be relied on.
    pub(crate) fn close(&mut self, id: SuperzoneId, generation: u32) {
        self.closed.insert(id.0, generation);
    }
}
