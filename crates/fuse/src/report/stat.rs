//! What a mounted file system does: counters, streams, permits, latencies.

use super::{Info, Status, status};
pub use crate::latency::Operation;
use furrow_fs::{Fs, StreamInfo};
use serde::{Deserialize, Serialize};

/// Everything there is to know of a mount, live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    /// Space, inodes and counters.
    #[serde(flatten)]
    pub status: Status,
    /// Seconds since the mount.
    pub seconds: f64,
    /// Permits for active zones.
    pub permits: Permits,
    /// Memory the engine holds.
    #[serde(default)]
    pub memory: MemoryUse,
    /// Log streams.
    pub streams: Vec<Stream>,
    /// Requests of the kernel, by what they asked for.
    pub operations: Vec<Operation>,
    /// Blocks that cleaning found unreadable or not as written: place, owner, reason; the newest.
    #[serde(default)]
    pub damage: Vec<String>,
}

/// Zones of the drive that may be, and are, active for this file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permits {
    /// At most.
    pub limit: u32,
    /// Now.
    pub held: u32,
}

/// Memory that the engine holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryUse {
    /// Now.
    pub now: Memory,
    /// When it was most since the mount.
    pub peak: Memory,
}

/// [`furrow_fs::Memory`] as JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of furrow_fs::Memory")]
pub struct Memory {
    pub total: u64,
    pub data: u64,
    pub nodes: u64,
    pub dirty: u64,
    pub cache_index: u64,
    pub writes: u64,
    pub tables: u64,
    pub deltas: u64,
    pub directories: u64,
    pub changes: u64,
}

impl From<furrow_fs::Memory> for Memory {
    fn from(m: furrow_fs::Memory) -> Memory {
        Memory {
            total: m.total(),
            data: m.data,
            nodes: m.nodes,
            dirty: m.dirty,
            cache_index: m.cache_index,
            writes: m.writes,
            tables: m.tables,
            deltas: m.deltas,
            directories: m.directories,
            changes: m.changes,
        }
    }
}

impl Memory {
    /// The parts that make up the total: name, what it is, bytes.
    pub fn parts(&self) -> [(&'static str, &'static str, u64); 8] {
        [
            ("data", "cached blocks of files and directories", self.data),
            ("nodes", "cached inodes and pointer blocks", self.nodes),
            ("cache_index", "finding cached pages", self.cache_index),
            ("writes", "on their way to the drive, not cached", self.writes),
            ("tables", "places of nodes, valid blocks", self.tables),
            ("deltas", "changes of the tables", self.deltas),
            ("directories", "places of names in large directories", self.directories),
            ("changes", "changes that fsyncs log", self.changes),
        ]
    }
}

/// [`StreamInfo`] as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// What goes to it.
    pub name: String,
    /// Superzones it may write to at once.
    pub quota: u32,
    /// Superzones it writes to.
    pub open: u32,
    /// Superzones left partly written, still active.
    pub parked: u32,
    /// Bytes written since the mount.
    pub bytes: u64,
}

impl From<StreamInfo> for Stream {
    fn from(s: StreamInfo) -> Stream {
        let (name, bytes) = (s.name.to_owned(), s.blocks * 4096);
        Stream { name, quota: s.quota, open: s.open, parked: s.parked, bytes }
    }
}

/// What `fs` does, mounted since `seconds`.
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
        damage: fs.clean_failures(),
    }
}
