//! Measured results of a run: throughput and latencies within a window of the executor's time.
//!
//! A [`Meter`] counts operations that *complete* within its window. Operations that began before
//! the window opened count as well: any tool that observes a device from outside counts them.
//! Latencies are recorded with three significant digits.

use crate::inside::{Array, Inside};
use furrow_rt::Nanos;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Largest latency recorded exactly, in nanoseconds: 1,000 s. Longer ones are clamped to it.
const LONGEST: u64 = 1_000 * Nanos::SECOND;

/// Percentiles at which a latency curve is drawn.
pub const CURVE: [f64; 12] =
    [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99, 99.999];

/// Counts operations.
#[derive(Clone, Debug)]
pub struct Meter {
    latencies: Histogram<u64>,
    bytes: u64,
    /// Bytes in each part of the window, if it has parts.
    parts: Vec<u64>,
    open: Nanos,
    close: Nanos,
    last: Nanos,
}

/// The index of the part that contains `now`, if the time from `open` to `close` is divided into
/// `parts` parts of equal length.
pub fn part(open: Nanos, close: Nanos, now: Nanos, parts: usize) -> usize {
    let length = (close.since(open) / parts.max(1) as u64).max(1);
    // An operation that ends exactly at a part's end belongs to the part.
    let at = now.since(open).saturating_sub(1) / length;
    (at as usize).min(parts.saturating_sub(1))
}

impl Meter {
    /// A meter for operations that complete after `open`, and at `close` at the latest.
    pub fn new(open: Nanos, close: Nanos) -> Meter {
        let latencies = Histogram::new_with_bounds(1, LONGEST, 3)
            .expect("invariant: three digits from 1 ns are a valid histogram");
        Meter { latencies, bytes: 0, parts: Vec::new(), open, close, last: open }
    }

    /// The same meter, but it also counts the bytes in each of `parts` parts of its window.
    pub fn in_parts(self, parts: usize) -> Meter {
        Meter { parts: vec![0; parts], ..self }
    }

    /// Counts an operation of `bytes` that took from `began` to `now`.
    pub fn count(&mut self, began: Nanos, now: Nanos, bytes: u64) {
        if now <= self.open || now > self.close {
            return;
        }
        self.latencies.saturating_record(now.since(began).max(1));
        self.bytes += bytes;
        let at = part(self.open, self.close, now, self.parts.len());
        self.parts.get_mut(at).into_iter().for_each(|part| *part += bytes);
        self.last = self.last.max(now);
    }

    /// True if `now` is at or past the end of the window.
    pub fn is_over(&self, now: Nanos) -> bool {
        now >= self.close
    }

    /// The measures. `ended` is the time at which the work ran out, if that was before the
    /// window closed.
    pub fn measures(&self, ended: Option<Nanos>) -> Measures {
        let end = ended.map_or(self.close, |ended| ended.min(self.close)).max(self.last);
        let nanoseconds = end.since(self.open);
        let seconds = nanoseconds as f64 / Nanos::SECOND as f64;
        let per_second = |count: u64| if nanoseconds == 0 { 0.0 } else { count as f64 / seconds };
        let of_part = self.close.since(self.open) as f64 / self.parts.len().max(1) as f64 / 1e9;
        let ops = self.latencies.len();
        let quantile = |share| self.latencies.value_at_quantile(share);
        Measures {
            ops,
            bytes: self.bytes,
            nanoseconds,
            bytes_per_second: per_second(self.bytes),
            ops_per_second: per_second(ops),
            mean_ns: self.latencies.mean(),
            p50_ns: quantile(0.5),
            p95_ns: quantile(0.95),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: self.latencies.max(),
            curve_ns: CURVE.iter().map(|percent| quantile(percent / 100.0)).collect(),
            phases: self.parts.iter().map(|bytes| *bytes as f64 / of_part).collect(),
            inside: None,
            array: None,
            processor_ns: None,
        }
    }
}

/// The measures of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// Number of operations completed.
    pub ops: u64,
    /// Bytes of the completed operations.
    pub bytes: u64,
    /// Length of the window, in the executor's time.
    pub nanoseconds: u64,
    /// Bytes per second of the executor's time.
    pub bytes_per_second: f64,
    /// Operations per second of the executor's time.
    pub ops_per_second: f64,
    /// Mean latency, in nanoseconds.
    pub mean_ns: f64,
    /// Median latency, in nanoseconds.
    pub p50_ns: u64,
    /// 95th percentile of latency, in nanoseconds.
    pub p95_ns: u64,
    /// 99th percentile of latency, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile of latency, in nanoseconds.
    pub p999_ns: u64,
    /// Longest latency, in nanoseconds.
    pub max_ns: u64,
    /// Latencies at the percentiles of [`CURVE`].
    pub curve_ns: Vec<u64>,
    /// Bytes per second in each part of the measured time, if it has parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<f64>,
    /// Internal measures of the file system, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
    /// Internal measures of the array, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<Array>,
    /// For an array: nanoseconds of this machine's processor for each operation, including all
    /// simulated parts. This is the only measure that differs from one run to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_ns: Option<f64>,
}

impl Measures {
    /// Length of the window in seconds of the executor's time.
    pub fn seconds(&self) -> f64 {
        self.nanoseconds as f64 / Nanos::SECOND as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_completes_in_the_window_counts() {
        let mut meter = Meter::new(Nanos(1_000), Nanos(1_000 + Nanos::SECOND));
        meter.count(Nanos(0), Nanos(1_000), 4096);
        meter.count(Nanos(500), Nanos(1_500), 4096);
        meter.count(Nanos(2_000), Nanos(1_000 + Nanos::SECOND), 4096);
        meter.count(Nanos(2_000), Nanos(1_001 + Nanos::SECOND), 4096);
        let measures = meter.measures(None);
        assert_eq!((measures.ops, measures.bytes), (2, 8192));
        assert_eq!(measures.nanoseconds, Nanos::SECOND);
        assert_eq!((measures.bytes_per_second, measures.ops_per_second), (8192.0, 2.0));
        assert_eq!(measures.p50_ns, 1_000);
        assert!(meter.is_over(Nanos(1_000 + Nanos::SECOND)) && !meter.is_over(Nanos(5)));
    }

    #[test]
    fn quantiles_have_three_digits_and_the_mean_is_the_mean() {
        let mut meter = Meter::new(Nanos(0), Nanos(u64::MAX));
        for latency in 1..=100_000u64 {
            meter.count(Nanos(1), Nanos(1 + latency * 100), 1);
        }
        let m = meter.measures(None);
        for (got, exact) in [
            (m.mean_ns, 5_000_050.0),
            (m.p50_ns as f64, 5e6),
            (m.p95_ns as f64, 9.5e6),
            (m.p99_ns as f64, 9.9e6),
            (m.p999_ns as f64, 9.99e6),
            (m.max_ns as f64, 1e7),
        ] {
            assert!((got / exact - 1.0).abs() < 0.002, "{got} for {exact}");
        }
    }

    #[test]
    fn a_run_that_ends_early_is_measured_to_its_end() {
        let mut meter = Meter::new(Nanos(0), Nanos(10 * Nanos::SECOND));
        meter.count(Nanos(0), Nanos(Nanos::SECOND), 100);
        let measures = meter.measures(Some(Nanos(2 * Nanos::SECOND)));
        assert_eq!((measures.seconds(), measures.bytes_per_second), (2.0, 50.0));
        let nothing = Meter::new(Nanos(5), Nanos(5)).measures(Some(Nanos(0)));
        assert_eq!((nothing.bytes_per_second, nothing.ops, nothing.mean_ns), (0.0, 0, 0.0));
    }
}
