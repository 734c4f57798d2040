//! How a mounted file system cleans, what a cleaning is asked for and reports, and what is known of
//! earlier ones.

use furrow_log::pool::SuperzoneId;
use furrow_log::victim::Policy;
use std::collections::BTreeMap;

/// How a mounted file system cleans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcOptions {
    /// Clean in the background. Without it cleaning happens only when an operation lacks space.
    pub background: bool,
    /// How background cleaning chooses victims.
    pub policy: Policy,
    /// Background cleaning starts when less than this share of the space that is not in use can be
    /// written at once, in percent.
    pub start: u8,
    /// Below this share cleaning takes no pauses, in percent.
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
    /// How victims are chosen.
    pub policy: Policy,
    /// Most superzones to clean.
    pub superzones: u32,
    /// Least share of a victim that must be garbage, in percent.
    pub garbage_percent: u8,
}

impl Default for CleanOptions {
    /// All superzones of which at least a twentieth is garbage, the cheapest first.
    fn default() -> CleanOptions {
        CleanOptions { policy: Policy::Greedy, superzones: u32::MAX, garbage_percent: 5 }
    }
}

/// Result of a cleaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Superzones made empty.
    pub superzones: u32,
    /// Blocks of file data moved.
    pub data_blocks: u64,
    /// Nodes moved.
    pub node_blocks: u64,
    /// Blocks that could not be read, or whose content is not what was written.
    pub failed_blocks: u64,
    /// Place, owner and reason of those blocks; the first few.
    pub failures: Vec<String>,
}

/// Results of earlier cleanings.
#[derive(Default)]
pub(crate) struct CleanState {
    /// Superzones that could not be emptied, with their generation.
    pub(super) stuck: BTreeMap<u32, u32>,
    /// Superzones with zones that the drive has closed, with their generation: to be emptied.
    pub(super) closed: BTreeMap<u32, u32>,
    /// The background looks for no victim before the number of dispatches reaches this.
    pub(super) rest_until: u64,
    /// See [`crate::Fs::damaged_blocks`]; the newest are kept.
    pub(super) failures: Vec<String>,
}

impl CleanState {
    /// Notes that a superzone is to be emptied, as a zone of it cannot be relied on.
    pub(crate) fn close(&mut self, id: SuperzoneId, generation: u32) {
        self.closed.insert(id.0, generation);
    }
}
