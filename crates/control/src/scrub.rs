//! The scrub of a mounted file system, or of a store in use, in reports.

use furrow_log::scrub::{ScrubFinding, ScrubReport};
use serde::{Deserialize, Serialize};

/// The running scrub, or the last one since the mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scrub {
    /// State: running, paused, finished, stopped (before it had read everything), or failed.
    pub state: String,
    /// Whether the scrub rewrites damaged blocks of which another copy exists.
    pub repair: bool,
    /// When the scrub began, in seconds since 1970.
    pub begun: i64,
    /// Seconds that the scrub took so far, pauses included.
    pub seconds: f64,
    /// Percent of the blocks read.
    pub percent: f64,
    /// Blocks of 4 KiB that files had when the scrub began.
    pub blocks: u64,
    /// Blocks read and compared with their checksums.
    pub blocks_done: u64,
    /// Blocks of tables and of the delta log, and sync records, read and compared.
    pub records: u64,
    /// Damaged blocks and records found.
    pub damaged: u64,
    /// Damaged blocks and records that were rewritten from an intact copy.
    pub repaired: u64,
    /// The first findings, with at least one for each damaged file while the list has space.
    pub findings: Vec<ScrubDamage>,
    /// Number of findings that the list lacks.
    pub more_findings: u64,
    /// Number of damaged files that no finding names.
    #[serde(default)]
    pub more_files: u64,
    /// The reason why the scrub ended early.
    pub error: Option<String>,
}

/// Something damaged that a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubDamage {
    /// The kind of the damaged structure: `data` for content of a file, `node`, or the structure's
    /// name in the format.
    pub structure: String,
    /// The inode number of the damaged file.
    pub inode: Option<u32>,
    /// A path of the damaged file, if one was found.
    pub path: Option<String>,
    /// The first damaged byte of the file.
    pub offset: Option<u64>,
    /// Number of damaged bytes from there on.
    pub bytes: Option<u64>,
    /// Place of the damage on the drive. If several blocks are damaged, the place of the first.
    pub place: String,
    /// Description of the damage.
    pub what: String,
    /// Whether the damage was repaired.
    pub repaired: bool,
}

impl Scrub {
    /// True while the scrub has not ended.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state.as_str(), "running" | "paused")
    }

    /// Seconds that the scrub will still take at the pace so far; `None` before the first block.
    pub fn seconds_left(&self) -> Option<f64> {
        let left = self.blocks.checked_sub(self.blocks_done)?;
        (self.blocks_done > 0).then(|| self.seconds * left as f64 / self.blocks_done as f64)
    }
}

impl From<ScrubReport> for Scrub {
    fn from(report: ScrubReport) -> Scrub {
        let finding = |found: ScrubFinding| ScrubDamage {
            structure: found.structure.to_owned(),
            inode: found.inode,
            path: found.path,
            offset: found.block.map(|block| u64::from(block) * 4096),
            bytes: found.block.map(|_| found.blocks * 4096),
            place: found.place,
            what: found.what,
            repaired: found.repaired,
        };
        let more_files = report.more_files();
        Scrub {
            state: report.state.name().to_owned(),
            repair: report.repair,
            begun: report.begun,
            seconds: report.took as f64 / 1e9,
            percent: report.percent(),
            blocks: report.total,
            blocks_done: report.done,
            records: report.records,
            damaged: report.damaged,
            repaired: report.repaired,
            findings: report.findings.into_iter().map(finding).collect(),
            more_findings: report.more_findings,
            more_files,
            error: report.error,
        }
    }
}
