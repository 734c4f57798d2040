//! Counters from inside a file system or an array, for a run that clients measure from outside.

use furrow_fs::{Counters, StatFs};
use serde::{Deserialize, Serialize};

/// Maximum number of moments kept of a run; if there are more, every second one is dropped.
const MOMENTS: usize = 120;

/// The bytes that a file system wrote between mount and unmount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// Bytes that clients wrote.
    pub user: u64,
    /// File data.
    pub data: u64,
    /// Nodes: inodes and pointer blocks.
    pub nodes: u64,
    /// Segment summaries.
    pub summaries: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Changed table entries, and tables.
    pub tables: u64,
    /// Records of fsyncs.
    pub records: u64,
    /// Padding.
    pub padding: u64,
    /// Data and nodes that cleaning moved.
    pub moved: u64,
}

impl From<&Counters> for Written {
    fn from(counters: &Counters) -> Written {
        let block = furrow_rt::PAGE_SIZE as u64;
        Written {
            user: counters.user_bytes,
            data: counters.data_bytes,
            nodes: counters.node_bytes,
            summaries: counters.summary_bytes,
            checkpoints: counters.checkpoint_bytes,
            tables: counters.delta_bytes + counters.table_bytes,
            records: counters.sync_bytes,
            padding: counters.padding_bytes,
            moved: (counters.clean_data_blocks + counters.clean_node_blocks) * block,
        }
    }
}

impl Written {
    /// All bytes that were written to the drive.
    pub fn total(&self) -> u64 {
        self.data
            + self.nodes
            + self.summaries
            + self.checkpoints
            + self.tables
            + self.records
            + self.padding
    }

    /// Bytes written for each byte that clients wrote; 0 if clients wrote nothing.
    pub fn amplification(&self) -> f64 {
        if self.user == 0 { 0.0 } else { self.total() as f64 / self.user as f64 }
    }

    /// Bytes that are neither data nor nodes, in percent of all bytes.
    pub fn overhead_percent(&self) -> f64 {
        let rest = self.total() - self.data - self.nodes;
        if self.total() == 0 { 0.0 } else { rest as f64 / self.total() as f64 * 100.0 }
    }

    /// The kinds of bytes and their numbers, without empty kinds.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("data", self.data),
            ("nodes", self.nodes),
            ("summaries", self.summaries),
            ("checkpoints", self.checkpoints),
            ("tables", self.tables),
            ("fsync records", self.records),
            ("padding", self.padding),
        ];
        all.into_iter().filter(|(_, bytes)| *bytes > 0)
    }
}

/// The uses of a drive's space by a file system, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Space {
    /// Bytes of data and nodes.
    pub main: u64,
    /// Checkpoint ring, delta log, tables and sync log.
    pub logs: u64,
    /// Summaries, one block in each segment.
    pub summaries: u64,
}

impl From<&StatFs> for Space {
    fn from(space: &StatFs) -> Space {
        let bytes = |blocks: u64| blocks * u64::from(space.block_size);
        Space {
            main: bytes(space.blocks),
            logs: bytes(space.blocks_logs),
            summaries: bytes(space.blocks_summaries),
        }
    }
}

impl Space {
    fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / (self.main + self.logs + self.summaries).max(1) as f64 * 100.0
    }

    /// Logs and tables, in percent of the whole space.
    pub fn metadata_percent(&self) -> f64 {
        self.share(self.logs)
    }

    /// Logs, tables and summaries, in percent of the whole space.
    pub fn with_summaries_percent(&self) -> f64 {
        self.share(self.logs + self.summaries)
    }
}

/// Active zones at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Time of the moment, in nanoseconds of the executor's time.
    pub at_ns: u64,
    /// Maximum number of active zones that the file system may hold.
    pub permits: u32,
    /// Number of active zones for which the file system holds permits.
    pub active: u32,
    /// Number of zones of each stream's superzones, parked ones included.
    pub streams: Vec<u32>,
    /// Number of zones to which each stream writes at the same time.
    pub busy: Vec<u32>,
    /// Names of the streams.
    pub names: Vec<String>,
}

/// Internal measures of a file system over a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inside {
    /// The bytes that were written.
    pub written: Written,
    /// The uses of space.
    pub space: Space,
    /// Peak memory in bytes, by use.
    pub memory: Vec<(String, u64)>,
    /// Names of the streams.
    pub streams: Vec<String>,
    /// Moments, in order, at even intervals.
    pub moments: Vec<Moment>,
}

impl Inside {
    /// Peak memory in bytes; 0 if unknown.
    pub fn memory(&self) -> u64 {
        self.memory.iter().map(|part| part.1).sum()
    }

    /// Peak memory without cached content of files, which takes as much as the host allows.
    pub fn own_memory(&self) -> u64 {
        self.memory.iter().filter(|part| part.0 != "data").map(|part| part.1).sum()
    }

    /// Bytes per second that clients wrote, from the first moment to the last.
    pub fn user_bytes_per_second(&self) -> f64 {
        let ends = self.moments.last().map_or(0, |moment| moment.at_ns);
        if ends == 0 { 0.0 } else { self.written.user as f64 / ends as f64 * 1e9 }
    }
}

/// The internal measures that are known only at the end of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    /// The value of [`Inside::written`].
    pub written: Written,
    /// The value of [`Inside::space`].
    pub space: Space,
    /// The value of [`Inside::memory`].
    pub memory: Vec<(String, u64)>,
}

/// Internal measures of an array since it was filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Array {
    /// Bytes that clients wrote.
    pub written: u64,
    /// Bytes that clients wrote, including those that filled the array.
    pub ever: u64,
    /// Bytes that cleaning moved.
    pub moved: u64,
    /// Bytes of padding in stripes.
    pub padded: u64,
    /// Bytes of metadata stripes in places where data could be: the listings that replace an
    /// out-of-band area.
    pub listed: u64,
    /// Number of stripes dispatched.
    pub stripes: u64,
    /// Number of checkpoints written.
    pub checkpoints: u64,
    /// Number of blocks reconstructed for reads.
    pub reconstructed: u64,
    /// Mean time that a block waited before it was sent, in nanoseconds.
    pub wait_ns: f64,
    /// Bytes of memory of the stripe tables.
    pub tables: u64,
    /// Bytes of memory of the map.
    pub map: u64,
    /// Bytes of memory that stripe tables would take if every segment were written.
    pub tables_most: u64,
}

impl Array {
    /// Bytes of stripe tables for each byte written.
    pub fn tables_share(&self) -> f64 {
        self.tables as f64 / self.ever.max(1) as f64
    }

    /// Bytes of data written for each byte that clients wrote; 0 if they wrote nothing.
    pub fn amplification(&self) -> f64 {
        if self.written == 0 {
            return 0.0;
        }
        (self.written + self.moved + self.padded + self.listed) as f64 / self.written as f64
    }
}

/// Collects moments at even intervals, for runs of any length.
#[derive(Debug)]
pub struct Sampler {
    moments: Vec<Moment>,
    names: Vec<String>,
    apart: u64,
}

impl Sampler {
    /// A sampler whose moments are initially `apart` nanoseconds apart.
    pub fn new(apart: u64) -> Sampler {
        Sampler { moments: Vec::new(), names: Vec::new(), apart: apart.max(1) }
    }

    /// Nanoseconds until the next moment.
    pub fn apart(&self) -> u64 {
        self.apart
    }

    /// Adds a moment.
    pub fn push(&mut self, mut moment: Moment) {
        self.names = std::mem::take(&mut moment.names);
        self.moments.push(moment);
        // The number of moments is odd here, so the first and the last one stay.
        if self.moments.len() > 2 * MOMENTS {
            let mut odd = false;
            self.moments.retain(|_| {
                odd = !odd;
                odd
            });
            self.apart *= 2;
        }
    }

    /// Takes the collected moments; their times count from `begin`.
    pub fn take(&mut self, begin: u64) -> Inside {
        let mut moments = std::mem::take(&mut self.moments);
        moments.iter_mut().for_each(|moment| moment.at_ns = moment.at_ns.saturating_sub(begin));
        Inside { streams: std::mem::take(&mut self.names), moments, ..Inside::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amplification_counts_everything_written() {
        let written = Written { user: 100, data: 110, nodes: 60, tables: 30, ..Written::default() };
        assert_eq!(written.amplification(), 2.0);
        assert_eq!(written.overhead_percent(), 15.0);
        assert_eq!(written.kinds().count(), 3);
        assert_eq!(Written::default().amplification(), 0.0);
    }

    #[test]
    fn memory_and_space_are_summed_up() {
        let memory = vec![("data".to_owned(), 70), ("tables".to_owned(), 20), ("x".to_owned(), 1)];
        let moments = vec![Moment { at_ns: 2_000_000_000, ..Moment::default() }];
        let written = Written { user: 100, ..Written::default() };
        let inside = Inside { memory, moments, written, ..Inside::default() };
        assert_eq!((inside.memory(), inside.own_memory()), (91, 21));
        assert_eq!(inside.user_bytes_per_second(), 50.0);
        assert_eq!(Inside::default().user_bytes_per_second(), 0.0);
        let space = Space { main: 90, logs: 2, summaries: 8 };
        assert_eq!((space.metadata_percent(), space.with_summaries_percent()), (2.0, 10.0));
    }

    #[test]
    fn a_long_run_keeps_few_moments_evenly_apart() {
        let mut sampler = Sampler::new(10);
        let mut at = 5;
        for _ in 0..1_000 {
            sampler.push(Moment { at_ns: at, ..Moment::default() });
            at += sampler.apart();
        }
        let moments = sampler.take(5).moments;
        assert!((MOMENTS..=2 * MOMENTS).contains(&moments.len()), "{}", moments.len());
        assert_eq!(moments[0].at_ns, 0);
        let apart = moments[1].at_ns;
        assert!(moments.windows(2).all(|pair| pair[1].at_ns - pair[0].at_ns == apart));
    }
}
