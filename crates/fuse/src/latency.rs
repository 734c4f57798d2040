//! Latencies of the kernel's requests by kind, from the read of a request to the write of
//! its answer.
//!
//! They include neither the kernel's own time nor requests that the kernel answers itself.
//! Measuring takes about 0.1 µs per request.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Largest latency recorded exactly, in nanoseconds: 1,000 s. Longer ones are clamped to it.
const LONGEST: u64 = 1_000_000_000_000;

macro_rules! ops {
    ($($op:ident $name:literal)+) => {
        /// The kind of a request, as reports name it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op {
            $($op,)+
        }

        impl Op {
            const ALL: &[Op] = &[$(Op::$op,)+];

            fn name(self) -> &'static str {
                match self {
                    $(Op::$op => $name,)+
                }
            }
        }
    };
}

ops! {
    Other "other"
    Lookup "lookup"
    Getattr "getattr"
    Setattr "setattr"
    Readlink "readlink"
    Create "create"
    Mkdir "mkdir"
    Unlink "unlink"
    Rmdir "rmdir"
    Symlink "symlink"
    Rename "rename"
    Link "link"
    Open "open"
    Release "release"
    Read "read"
    Write "write"
    Fsync "fsync"
    Readdir "readdir"
    Statfs "statfs"
    Xattr "xattr"
    Allocate "fallocate"
    Copy "copy_file_range"
    Seek "lseek"
}

/// Requests of one kind since the mount. Latencies are in nanoseconds; percentiles are exact within
/// 1 %.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// The kind of the requests.
    pub name: String,
    /// Number of requests.
    pub count: u64,
    /// Number of requests that failed. A missing name or attribute is not a failure.
    pub errors: u64,
    /// Sum of the latencies of all requests.
    pub total_ns: u64,
    /// Median latency.
    pub p50_ns: u64,
    /// 90th percentile of the latency.
    pub p90_ns: u64,
    /// 99th percentile of the latency.
    pub p99_ns: u64,
    /// 99.9th percentile of the latency.
    pub p999_ns: u64,
    /// Latency of the slowest request.
    pub max_ns: u64,
}

struct Record {
    times: Histogram<u64>,
    total: u64,
    errors: u64,
}

/// Latencies of all requests since the mount.
#[derive(Default)]
pub(crate) struct Latencies {
    /// Records by [`Op`]; `None` until the first request of the kind.
    records: Mutex<Vec<Option<Record>>>,
}

/// A request in flight, whose latency is being measured.
pub(crate) struct Started {
    op: Op,
    at: Instant,
}

impl Latencies {
    fn records(&self) -> MutexGuard<'_, Vec<Option<Record>>> {
        // The counts are intact even if a thread panicked while it held the lock.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to measure a request of kind `op`, which is about to be passed to the engine.
    pub fn start(&self, op: Op) -> Started {
        Started { op, at: Instant::now() }
    }

    /// Records the latency of an answered request. `failed`: whether the answer was an error.
    pub fn end(&self, started: Started, failed: bool) {
        let time = u64::try_from(started.at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut records = self.records();
        let index = started.op as usize;
        if records.len() <= index {
            records.resize_with(index + 1, || None);
        }
        let record = records[index].get_or_insert_with(|| Record {
            times: Histogram::new_with_bounds(1, LONGEST, 2)
                .expect("invariant: two digits from 1 ns are a valid histogram"),
            total: 0,
            errors: 0,
        });
        record.times.saturating_record(time.max(1));
        record.total += time;
        record.errors += u64::from(failed);
    }

    /// The latencies of each kind of request that occurred.
    pub fn operations(&self) -> Vec<Operation> {
        let records = self.records();
        let seen = Op::ALL.iter().zip(records.iter());
        let operation = |(op, record): (&Op, &Option<Record>)| {
            let record = record.as_ref()?;
            let quantile = |share| record.times.value_at_quantile(share);
            Some(Operation {
                name: op.name().to_owned(),
                count: record.times.len(),
                errors: record.errors,
                total_ns: record.total,
                p50_ns: quantile(0.5),
                p90_ns: quantile(0.9),
                p99_ns: quantile(0.99),
                p999_ns: quantile(0.999),
                max_ns: record.times.max(),
            })
        };
        seen.filter_map(operation).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn requests_are_counted_by_what_they_ask_for() {
        let latencies = Latencies::default();
        for _ in 0..99 {
            latencies.end(latencies.start(Op::Read), false);
        }
        let mut slow = latencies.start(Op::Read);
        slow.at -= Duration::from_secs(1);
        latencies.end(slow, true);
        latencies.end(latencies.start(Op::Other), false);

        let found = latencies.operations();
        let names: Vec<&str> = found.iter().map(|operation| operation.name.as_str()).collect();
        assert_eq!(names, ["other", "read"]);
        let read = &found[1];
        assert_eq!((read.count, read.errors), (100, 1));
        assert!(read.p50_ns < 100_000_000 && read.max_ns >= 990_000_000, "{read:?}");
        assert!(read.p999_ns >= 990_000_000 && read.total_ns >= 1_000_000_000, "{read:?}");
    }
}
