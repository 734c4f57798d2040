//! Live figures of a mounted file system: counters, streams, permits, latencies.

use super::{Info, Scrub, Status, status};
pub use crate::latency::Operation;
use furrow_fs::{Fs, StreamInfo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All figures of a mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    /// Space, inodes and counters.
    #[serde(flatten)]
    pub status: Status,
    /// Seconds since the mount.
    pub seconds: f64,
    /// Permits for active zones.
    pub permits: Permits,
    /// Memory that the engine holds.
    #[serde(default)]
    pub memory: MemoryUse,
    /// Log streams.
    pub streams: Vec<Stream>,
    /// Requests of the kernel by kind.
    pub operations: Vec<Operation>,
    /// The last blocks that requests or cleaning found unreadable or with wrong content: place,
    /// owner, reason.
    #[serde(default)]
    pub damage: Vec<String>,
    /// Losses that a read-only mount hides because they are damaged or unreadable, one line each.
    /// The first line is the damage that prevents a mount for writing.
    #[serde(default)]
    pub not_shown: Vec<String>,
    /// The running scrub, or the last one since the mount.
    #[serde(default)]
    pub scrub: Option<Scrub>,
}

/// Active zones of the drive: how many this file system may have, and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permits {
    /// Maximum number of active zones.
    pub limit: u32,
    /// Number of zones that are active now.
    pub held: u32,
}

/// Memory that the engine holds, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryUse {
    /// Memory held now.
    pub now: Memory,
    /// Memory held when its sum was largest since the mount.
    pub peak: Memory,
}

/// [`furrow_fs::Memory`] as JSON: bytes by the names of its fields, and the `total`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Memory(BTreeMap<String, u64>);

impl From<furrow_fs::Memory> for Memory {
    fn from(memory: furrow_fs::Memory) -> Memory {
        let parts = memory.parts().map(|(name, _, bytes)| (name, bytes));
        let more = [("total", memory.total()), ("dirty", memory.dirty)];
        Memory(
            parts.into_iter().chain(more).map(|(name, bytes)| (name.to_owned(), bytes)).collect(),
        )
    }
}

impl Memory {
    /// Bytes of the part `name`; 0 if the reporting daemon does not know that part.
    pub fn bytes(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The parts of the total: name and meaning.
    pub fn parts() -> impl Iterator<Item = (&'static str, &'static str)> {
        furrow_fs::Memory::default().parts().into_iter().map(|(name, what, _)| (name, what))
    }
}

/// [`StreamInfo`] as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Kind of blocks written to the stream.
    pub name: String,
    /// Maximum number of superzones that the stream may have open at a time.
    pub quota: u32,
    /// Number of superzones that the stream has open.
    pub open: u32,
    /// Open superzones lent by other streams; 0 if the reporting daemon does not know.
    #[serde(default)]
    pub lent: u32,
    /// Number of superzones that are partly written and set aside, and still active.
    pub parked: u32,
    /// Bytes written to the stream since the mount.
    pub bytes: u64,
}

impl From<StreamInfo> for Stream {
    fn from(s: StreamInfo) -> Stream {
        let (name, bytes) = (s.name.to_owned(), s.blocks * 4096);
        Stream { name, quota: s.quota, open: s.open, lent: s.lent, parked: s.parked, bytes }
    }
}

/// Maximum number of lines about damage that is not shown: a report has to fit into an
/// extended attribute.
const NOT_SHOWN_MAX: usize = 50;

/// Lines about damaged content that a read-only mount does not show.
fn not_shown(fs: &Fs) -> Vec<String> {
    let mut lines = fs.losses();
    let more = lines.len().saturating_sub(NOT_SHOWN_MAX);
    if more > 0 {
        lines.truncate(NOT_SHOWN_MAX);
        lines.push(format!("and {more} more, which the log of the mount has"));
    }
    lines
}

/// The figures of `fs`, which was mounted `seconds` ago.
pub(crate) fn stat(fs: &Fs, info: &Info, seconds: f64, operations: Vec<Operation>) -> Stat {
    let (limit, held) = fs.permits();
    let (now, peak) = fs.memory();
    Stat {
        status: status(fs, info),
        seconds,
        permits: Permits { limit, held },
        memory: MemoryUse { now: now.into(), peak: peak.into() },
        streams: fs.streams().into_iter().map(Stream::from).collect(),
        operations,
        damage: fs.damaged_blocks(),
        not_shown: not_shown(fs),
        scrub: fs.scrub_report().map(Scrub::from),
    }
}
