//! Workloads: streams of operations, drawn from a seed.
//!
//! A [`Stream`] decides *what* a client does next, one operation at a time; it knows neither time
//! nor target. Each client (thread) has a stream of its own, seeded from the run's seed and the
//! client's number, so that an additional client does not change what the others do.
//!
//! Offsets are multiples of the request size in a *space* whose meaning depends on the target: the
//! bytes of a file, or of zones laid end to end.

use crate::flow::Flow;
use crate::recorded::Replayed;
use crate::trace::Name;
use crate::zipf::Zipf;
use furrow_emu::timing::quantity::{Bytes, Time};
use furrow_rt::Rng;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes to an address that the writer chooses.
    #[default]
    Write,
    /// Writes to an address that the drive chooses (Zone Append). For files this is the same as
    /// a write.
    Append,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Append => "append",
        })
    }
}

/// The order of offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// One after the other, then again from the start.
    #[default]
    Sequential,
    /// Each as likely as any other.
    Random,
    /// By Zipf's law with exponent `theta`; the most frequent offsets are scattered.
    Zipf,
}

/// How writes reach a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A write ends when the engine has the data.
    #[default]
    Buffered,
    /// A write ends when the drive has the data, as with O_DIRECT; its metadata is still in memory.
    Direct,
}

/// The way files are written before measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fill {
    /// Files are not written, unless they are read: then all are written at once.
    #[default]
    None,
    /// All files at once, piece by piece, taking turns.
    AtOnce,
    /// One file after the other.
    InTurn,
}

impl Fill {
    fn is_none(&self) -> bool {
        *self == Fill::None
    }
}

/// The zone that a command to the drive itself goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pick {
    /// All clients draw offsets from one range over all zones; the offset determines the zone.
    #[default]
    Shared,
    /// Each client has its own zone, by the client's number.
    Own,
}

/// An event in an array while clients run, or instead of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    /// Nothing.
    #[default]
    None,
    /// A drive fails before measuring, and clients read blocks that were on it.
    Degrade,
    /// The host loses its memory without notice. The time until the array is in service again is
    /// measured, as one operation.
    Recover,
    /// A drive fails and is replaced. The time until the new drive has the content of the old one
    /// is measured, as one operation.
    Rebuild,
}

impl Act {
    fn is_none(&self) -> bool {
        *self == Act::None
    }
}

/// The pace of a trace's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Replay {
    /// There is no trace.
    #[default]
    None,
    /// As fast as `depth` outstanding requests allow.
    Fast,
}

impl Replay {
    /// True if there is no trace.
    pub fn is_none(&self) -> bool {
        *self == Replay::None
    }
}

/// A workload, as in the data files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// The operation.
    pub op: Kind,
    /// Percentage of operations that are reads instead of `op`.
    #[serde(default)]
    pub read_percent: u8,
    /// The order of offsets.
    #[serde(default)]
    pub order: Order,
    /// Exponent of [`Order::Zipf`].
    #[serde(default)]
    pub theta: f64,
    /// Bytes of a request.
    pub size: Bytes,
    /// Size of the larger requests in bytes; 0: there are none.
    #[serde(default, skip_serializing_if = "no_bytes")]
    pub larger: Bytes,
    /// Percentage of larger requests.
    #[serde(default, skip_serializing_if = "no_percent")]
    pub larger_percent: u8,
    /// The event in an array.
    #[serde(default, skip_serializing_if = "Act::is_none")]
    pub act: Act,
    /// Number of clients; 0: one for each zone.
    #[serde(default)]
    pub threads: u32,
    /// For an array: replays the requests of a trace; the fields that describe operations
    /// are ignored.
    #[serde(default, skip_serializing_if = "Replay::is_none")]
    pub replay: Replay,
    /// The trace. Data files do not set it: the command line names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Name>,
    /// For files or an array: replays a recorded run of an engine; other fields are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Replayed>,
    /// Number of requests that each client keeps outstanding.
    pub depth: u32,
    /// How writes reach a file system.
    #[serde(default)]
    pub mode: Mode,
    /// Number of writes of a client between two fsyncs; 0: no fsync.
    #[serde(default)]
    pub fsync: u32,
    /// Bytes of each client's file; for a drive, the bytes of each zone that are read. Writers of
    /// zones do not need it.
    #[serde(default)]
    pub span: Bytes,
    /// The way files are written before measuring; files that are read are written in any case.
    #[serde(default, skip_serializing_if = "Fill::is_none")]
    pub fill: Fill,
    /// For a file system: a mix of operations on many files, instead of `op`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<Flow>,
    /// For a file system: parts of equal length of the measured time, each with a list of file name
    /// endings, since a file system may treat a file by its name. Each client has a file with each
    /// ending. In a part, client n uses the n-th ending of the list, which starts over at its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Vec<String>>,
    /// For a drive: number of zones in use at once.
    #[serde(default = "one")]
    pub zones: u32,
    /// For a drive: distance between the zones, in zones; 0: anywhere, drawn from the seed.
    #[serde(default = "one")]
    pub stride: u32,
    /// For a drive: spreads the zones over the first `channels` channels instead, with no two zones
    /// on one die; 0: no spreading.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub channels: u32,
    /// For a drive: the zone that a command goes to.
    #[serde(default)]
    pub pick: Pick,
    /// Maximum number of bytes that a client transfers; 0: no limit.
    #[serde(default)]
    pub bytes: Bytes,
    /// Warm-up time before measuring.
    #[serde(default)]
    pub warm: Time,
    /// Time to measure; the run is shorter if the clients have no bytes left to transfer.
    pub run: Time,
}

/// Maximum number of parts into which the measured time is divided.
pub const PHASES_MAX: usize = 9;

fn no_bytes(bytes: &Bytes) -> bool {
    bytes.0 == 0
}

fn no_percent(percent: &u8) -> bool {
    *percent == 0
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn one() -> u32 {
    1
}

impl Workload {
    /// Checks the workload.
    ///
    /// # Errors
    /// If the workload is invalid: the reason, in one clause.
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("size", self.size.0),
            ("depth", self.depth.into()),
            ("zones", self.zones.into()),
            ("run", self.run.0),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("`{name}` is 0"));
        }
        let page = furrow_rt::PAGE_SIZE as u64;
        if !self.size.0.is_multiple_of(page) {
            return Err(format!("`size` of {} is not a multiple of 4KiB", self.size));
        }
        let larger = self.larger.0 > 0 && self.larger_percent > 0;
        if larger != (self.larger.0 > 0 || self.larger_percent > 0)
            || larger && (self.larger <= self.size || !self.larger.0.is_multiple_of(page))
            || self.larger_percent > 100
        {
            return Err(format!(
                "`larger` of {} for `larger_percent` of {}: requests above `size`",
                self.larger, self.larger_percent
            ));
        }
        if self.span.0 > 0 && self.span < self.size {
            return Err(format!("`span` of {} is below `size` of {}", self.span, self.size));
        }
        if self.read_percent > 100 {
            return Err(format!("`read_percent` of {} is above 100", self.read_percent));
        }
        if (self.order == Order::Zipf) != (self.theta != 0.0) {
            return Err("`theta` and the order `zipf` go together".into());
        }
        if !(0.0..=10.0).contains(&self.theta) {
            return Err(format!("`theta` of {} is not between 0 and 10", self.theta));
        }
        let most = u64::from(self.clients()) * u64::from(self.depth);
        if most > 1 << 20 {
            return Err(format!("{most} requests outstanding are above 1048576"));
        }
        if self.phases.len() > PHASES_MAX || self.phases.iter().any(Vec::is_empty) {
            return Err(format!("`phases`: up to {PHASES_MAX}, each with an ending or more"));
        }
        let files = self.op != Kind::Read && self.read_percent == 0 && self.fill == Fill::None;
        if !self.phases.is_empty() && (!files || self.flow.is_some()) {
            return Err("`phases` are of files that are written, and nothing else".into());
        }
        if let Some(recorded) = &self.recorded {
            recorded.check()?;
            if !self.replay.is_none() || self.flow.is_some() || self.act != Act::None {
                return Err("`recorded` with `replay`, `flow` or `act`: one of them".into());
            }
        }
        if let Some(flow) = &self.flow {
            flow.check()?;
            if self.depth != 1 {
                return Err(format!(
                    "`depth` of {} in a flow: a client does one thing",
                    self.depth
                ));
            }
        }
        Ok(())
    }

    /// Number of clients.
    pub fn clients(&self) -> u32 {
        if self.threads == 0 { self.zones } else { self.threads }
    }

    /// True if the workload reads nothing.
    pub fn only_writes(&self) -> bool {
        self.op != Kind::Read && self.read_percent == 0
    }

    /// True if the workload writes nothing.
    pub fn only_reads(&self) -> bool {
        self.op == Kind::Read || self.read_percent == 100
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The kind of operation.
    pub kind: Kind,
    /// Bytes from the start of the space; a multiple of the workload's size.
    pub at: u64,
    /// Bytes of the operation.
    pub bytes: u64,
    /// Whether an fsync follows.
    pub sync: bool,
}

/// The operations of one client, without end.
#[derive(Clone, Debug)]
pub struct Stream {
    rng: Rng,
    kind: Kind,
    read_percent: u64,
    size: u64,
    larger: u64,
    larger_percent: u64,
    space: u64,
    fsync: u32,
    unsynced: u32,
    offsets: Offsets,
}

impl Stream {
    /// The operations of client `thread` in a space of `space` bytes (at least one request). If
    /// sequential clients `share` the space, they start at evenly spaced offsets, otherwise all at
    /// its start.
    pub fn new(workload: &Workload, seed: u64, thread: u32, space: u64, share: bool) -> Stream {
        let mut rng = Rng::new(seed ^ u64::from(thread + 1).wrapping_mul(0x9fb2_1c65_1e98_df25));
        // One draw decorrelates the streams of neighbouring seeds.
        rng = Rng::new(rng.next());
        let slots = (space / workload.size.0).max(1);
        let start = if share {
            (u128::from(slots) * u128::from(thread) / u128::from(workload.clients())) as u64
        } else {
            0
        };
        let offsets = match workload.order {
            Order::Sequential => Offsets::Sequential { next: start % slots, slots },
            Order::Random => Offsets::Random { slots },
            Order::Zipf => Offsets::Zipf(Zipf::new(slots, workload.theta, &mut Rng::new(seed))),
        };
        Stream {
            rng,
            kind: workload.op,
            read_percent: workload.read_percent.into(),
            size: workload.size.0,
            larger: workload.larger.0,
            larger_percent: workload.larger_percent.into(),
            space,
            fsync: workload.fsync,
            unsynced: 0,
            offsets,
        }
    }

    /// The next operation.
    pub fn draw(&mut self) -> Op {
        let reads = self.read_percent > 0 && self.rng.below(100) < self.read_percent;
        let kind = if reads { Kind::Read } else { self.kind };
        let slot = self.offsets.draw(&mut self.rng);
        self.unsynced += u32::from(kind != Kind::Read);
        let sync = self.fsync > 0 && self.unsynced >= self.fsync;
        if sync {
            self.unsynced = 0;
        }
        let larger = self.larger_percent > 0 && self.rng.below(100) < self.larger_percent;
        let bytes = if larger { self.larger } else { self.size };
        // A larger request that would cross the end of the space starts earlier.
        let last = self.space.saturating_sub(bytes) / self.size * self.size;
        let at = if larger { (slot * self.size).min(last) } else { slot * self.size };
        Op { kind, at, bytes, sync }
    }
}

#[derive(Clone, Debug)]
enum Offsets {
    Sequential { next: u64, slots: u64 },
    Random { slots: u64 },
    Zipf(Zipf),
}

impl Offsets {
    fn draw(&mut self, rng: &mut Rng) -> u64 {
        match self {
            Offsets::Sequential { next, slots } => {
                let slot = *next;
                *next = (slot + 1) % *slots;
                slot
            }
            Offsets::Random { slots } => rng.below(*slots),
            Offsets::Zipf(zipf) => zipf.draw(rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn workload(order: Order, theta: f64) -> Workload {
        Workload {
            order,
            theta,
            size: Bytes(4096),
            threads: 4,
            depth: 1,
            span: Bytes(4096 * 1000),
            zones: 1,
            stride: 1,
            run: Time(1),
            ..Workload::default()
        }
    }

    fn slots(workload: &Workload, seed: u64, thread: u32, count: usize) -> Vec<u64> {
        let mut stream = Stream::new(workload, seed, thread, 4096 * 1000, true);
        (0..count).map(|_| stream.draw().at / 4096).collect()
    }

    /// Returns the number of draws of each rank, the most frequent first.
    fn ranks(drawn: &[u64]) -> Vec<usize> {
        let mut counts = vec![0; 1000];
        drawn.iter().for_each(|slot| counts[*slot as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn sequential_clients_share_the_space_and_start_apart() {
        let sequential = workload(Order::Sequential, 0.0);
        assert_eq!(slots(&sequential, 1, 0, 3), [0, 1, 2]);
        assert_eq!(slots(&sequential, 1, 3, 252)[248..], [998, 999, 0, 1]);
        let mut alone = Stream::new(&sequential, 1, 3, 4096 * 2, false);
        assert_eq!([0; 3].map(|_| alone.draw().at), [0, 4096, 0]);
    }

    #[test]
    fn a_stream_is_a_function_of_seed_and_client() {
        for order in [workload(Order::Random, 0.0), workload(Order::Zipf, 0.99)] {
            let first = slots(&order, 7, 1, 100);
            assert_eq!(first, slots(&order, 7, 1, 100));
            assert_ne!(first, slots(&order, 8, 1, 100));
            assert_ne!(first, slots(&order, 7, 2, 100));
        }
    }

    #[test]
    fn random_offsets_are_even() {
        let drawn = slots(&workload(Order::Random, 0.0), 3, 0, 200_000);
        let counts = ranks(&drawn);
        // Each is expected 200 times, with a standard deviation of 14: the extremes of 1000 lie
        // within 5 deviations.
        assert!(counts[0] < 271 && counts[999] > 129, "{} to {}", counts[0], counts[999]);
    }

    /// Compares shares of the first ranks with the law, for exponents below, at and above 1.
    #[test]
    fn zipf_is_as_skewed_as_the_law() {
        for theta in [0.5, 0.99, 1.0, 1.2, 2.0] {
            let draws = 400_000;
            let counts = ranks(&slots(&workload(Order::Zipf, theta), 11, 0, draws));
            let sum: f64 = (1..=1000).map(|k| f64::from(k).powf(-theta)).sum();
            for (first, bound) in [(1, 0.02), (10, 0.02), (100, 0.02)] {
                let law = (1..=first).map(|k| f64::from(k).powf(-theta)).sum::<f64>() / sum;
                let got = counts[..first as usize].iter().sum::<usize>() as f64 / draws as f64;
                assert!((got / law - 1.0).abs() < bound + 0.03, "{theta}: {first}: {got}, {law}");
            }
        }
    }

    #[test]
    fn zipf_favourites_are_scattered_and_the_same_for_all_clients() {
        let favourites = |thread| {
            let drawn = slots(&workload(Order::Zipf, 1.2), 5, thread, 50_000);
            let mut counts = vec![0; 1000];
            drawn.iter().for_each(|slot| counts[*slot as usize] += 1);
            let mut order: Vec<usize> = (0..1000).collect();
            order.sort_unstable_by_key(|slot| std::cmp::Reverse(counts[*slot]));
            order[..5].to_vec()
        };
        let first = favourites(0);
        assert_eq!(first, favourites(1));
        assert!(first.windows(2).any(|pair| pair[0].abs_diff(pair[1]) > 10), "{first:?}");
        let mut tiny = Stream::new(&workload(Order::Zipf, 0.9), 1, 0, 4096, true);
        assert_eq!(tiny.draw().at, 0);
        let all: BTreeSet<u64> =
            slots(&workload(Order::Zipf, 0.1), 2, 0, 50_000).into_iter().collect();
        assert_eq!(all.len(), 1000, "a permutation reaches every item");
    }

    #[test]
    fn reads_and_syncs_come_as_often_as_asked() {
        let mixed = Workload { read_percent: 30, fsync: 4, ..workload(Order::Random, 0.0) };
        let mut stream = Stream::new(&mixed, 1, 0, 4096 * 1000, true);
        let ops: Vec<Op> = (0..100_000).map(|_| stream.draw()).collect();
        let reads = ops.iter().filter(|op| op.kind == Kind::Read).count();
        assert!((29_000..31_000).contains(&reads), "{reads}");
        let syncs = ops.iter().filter(|op| op.sync).count();
        assert_eq!(syncs, (100_000 - reads) / 4);
        assert!(ops.iter().all(|op| !op.sync || op.kind == Kind::Write));
    }

    #[test]
    fn some_requests_are_larger_and_end_within_the_space() {
        let mixed = Workload {
            larger: Bytes(16 << 10),
            larger_percent: 25,
            ..workload(Order::Random, 0.0)
        };
        mixed.check().unwrap();
        let mut stream = Stream::new(&mixed, 1, 0, 4096 * 1000, true);
        let ops: Vec<Op> = (0..100_000).map(|_| stream.draw()).collect();
        let larger = ops.iter().filter(|op| op.bytes == 16 << 10).count();
        assert!((24_000..26_000).contains(&larger), "{larger}");
        assert!(ops.iter().all(|op| op.at + op.bytes <= 4096 * 1000));
        assert!(ops.iter().any(|op| op.at == 4096 * 996 && op.bytes == 16 << 10));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let good = workload(Order::Random, 0.0);
        assert_eq!(good.check(), Ok(()));
        for (bad, word) in [
            (Workload { size: Bytes(0), ..good.clone() }, "size"),
            (Workload { size: Bytes(5000), ..good.clone() }, "multiple"),
            (Workload { span: Bytes(512), ..good.clone() }, "span"),
            (Workload { theta: 0.9, ..good.clone() }, "zipf"),
            (Workload { order: Order::Zipf, ..good.clone() }, "theta"),
            (Workload { read_percent: 101, ..good.clone() }, "100"),
            (Workload { larger: Bytes(8192), ..good.clone() }, "larger"),
            (Workload { larger_percent: 5, ..good.clone() }, "larger"),
            (Workload { larger: Bytes(4096), larger_percent: 5, ..good.clone() }, "larger"),
            (Workload { threads: 1 << 15, depth: 1 << 15, ..good.clone() }, "outstanding"),
        ] {
            assert!(bad.check().unwrap_err().contains(word), "{bad:?}");
        }
    }
}
