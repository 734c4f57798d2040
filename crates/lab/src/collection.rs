//! Garbage collection of blob files: how much each scheme copied within how much space, compared
//! with the least that any scheme must copy.
//!
//! The plugin's workload driver makes the runs, one line of JSON each. A trace of the same writes
//! gives the bound ([`bound`]). `scripts/collection.sh` makes both, and
//! `docs/research/collection.md` shows them.

pub mod bound;
mod page;

use anyhow::{Context, Result, bail, ensure};
use bound::{Life, Zones};
pub use page::{Picture, comparison, pictures, runs_table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A write of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: u64,
    /// Bytes of the record; 0: the key is deleted.
    pub size: u64,
}

/// Reads a trace: a line `key,size`, then one such line for each write.
///
/// # Errors
/// If a line is not of this form; the message has its number.
pub fn trace(text: &str) -> Result<Vec<Write>> {
    let mut lines = text.lines().enumerate();
    let head = lines.next().map(|(_, line)| line);
    ensure!(
        head == Some("key,size"),
        "line 1: expected `key,size`, found `{}`",
        head.unwrap_or("")
    );
    lines
        .map(|(number, line)| {
            let write = line.split_once(',').and_then(|(key, size)| {
                Some(Write { key: key.parse().ok()?, size: size.parse().ok()? })
            });
            write.with_context(|| {
                format!("line {}: expected `key,size` in numbers, found `{line}`", number + 1)
            })
        })
        .collect()
}

/// Parameters for turning a trace into zones.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of a zone.
    pub zone: u64,
    /// Bytes of a memtable.
    pub memtable: u64,
    /// Bytes written between two points at which the bound counts used space.
    pub step: u64,
}

/// The zones of a trace: one writer flushes memtables, keys ascending, into one zone after the
/// other. Time is the number of bytes written by the user; a byte is live until its key is written
/// again or deleted.
///
/// # Errors
/// If nothing is written, or `step` divides the trace into too many moments.
pub fn zones(trace: &[Write], shape: &Shape) -> Result<Zones> {
    ensure!(
        shape.zone > 0 && shape.memtable > 0 && shape.step > 0,
        "a zone of {} bytes, a memtable of {} and a step of {}: all must be above 0",
        shape.zone,
        shape.memtable,
        shape.step
    );
    let total: u64 = trace.iter().map(|write| write.size).sum();
    let moments = usize::try_from(total / shape.step)? + 1;
    let count = usize::try_from(total / shape.zone)? + 1;
    if total == 0 || moments.saturating_mul(count) > 1 << 28 {
        bail!("{total} bytes are written, {moments} moments: take a longer step");
    }
    // The time at which each write is overwritten or deleted.
    let mut deaths = vec![u64::MAX; trace.len()];
    let mut newest: BTreeMap<u64, usize> = BTreeMap::new();
    let mut time = 0;
    for (at, write) in trace.iter().enumerate() {
        time += write.size;
        if let Some(before) = newest.insert(write.key, at) {
            deaths[before] = time;
        }
    }
    let mut filling = Filling { shape: *shape, moments, zones: Vec::new(), last: 0, ends: vec![] };
    let mut memtable: BTreeMap<u64, usize> = BTreeMap::new();
    let (mut time, mut inside) = (0, 0);
    for (at, write) in trace.iter().enumerate() {
        if inside + write.size > shape.memtable {
            filling.flush(time, &std::mem::take(&mut memtable), trace, &deaths);
            inside = 0;
        }
        time += write.size;
        inside += write.size;
        memtable.insert(write.key, at);
    }
    Ok(filling.finish())
}

/// The zones made so far, the last of which is being filled.
struct Filling {
    shape: Shape,
    moments: usize,
    zones: Vec<Life>,
    /// Bytes in the last zone.
    last: u64,
    /// Bytes of the last zone that die, by moment.
    ends: Vec<u64>,
}

impl Filling {
    fn moment(&self, time: u64) -> usize {
        usize::try_from(time.div_ceil(self.shape.step)).unwrap_or(usize::MAX).min(self.moments)
    }

    fn flush(
        &mut self,
        now: u64,
        memtable: &BTreeMap<u64, usize>,
        trace: &[Write],
        deaths: &[u64],
    ) {
        for at in memtable.values() {
            let mut left = trace[*at].size;
            while left > 0 {
                if self.zones.is_empty() || self.last == self.shape.zone {
                    self.end();
                    let (taken, full) = (self.moment(now), self.moments);
                    self.zones.push(Life { taken, full, live: Vec::new() });
                    (self.last, self.ends) = (0, vec![0; self.moments + 1]);
                }
                let part = left.min(self.shape.zone - self.last);
                let death = self.moment(deaths[*at]);
                self.ends[death] += part;
                self.last += part;
                left -= part;
                if self.last == self.shape.zone {
                    let full = self.moment(now);
                    self.zones.last_mut().expect("invariant: one was just taken").full = full;
                }
            }
        }
    }

    /// Ends the last zone: computes its live bytes at each moment.
    fn end(&mut self) {
        let Some(zone) = self.zones.last_mut() else { return };
        let mut live = self.last;
        let each = self.ends.iter().take(self.moments).map(|ends| {
            live -= ends;
            live
        });
        zone.live = each.collect();
    }

    fn finish(mut self) -> Zones {
        self.end();
        Zones { size: self.shape.zone, moments: self.moments, zones: self.zones }
    }
}

/// The lower bound of copied bytes within a space, and the bytes that a clairvoyant
/// schedule copies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Live share of the nominal drive.
    pub live: f64,
    /// Bytes of the nominal drive.
    pub nominal: u64,
    /// Bytes that the user writes, including the initial load.
    pub written: u64,
    /// Limit of used bytes.
    pub space: u64,
    /// Lower bound of the bytes that any schedule copies.
    pub lower: f64,
    /// Bytes copied by the best schedule that was found.
    pub upper: u64,
}

/// Computes limits for `count` spaces (at least 1), from the least space within which cleaning is
/// possible up to the space in which nothing is copied.
pub fn limits(
    zones: &Zones,
    (live, nominal, written): (f64, u64, u64),
    count: u64,
    rounds: usize,
) -> Vec<Limit> {
    let (least, most) = (zones.least_space(), zones.free_space());
    // Small spaces are chosen closer together, because the curve is steep there.
    let last = count.saturating_sub(1).max(1);
    let each = (0..count).map(|at| least + (most - least) * at * at / (last * last));
    let limit = |space: u64| {
        let upper = zones.copied(&bound::upper(zones, space)?);
        let lower = bound::lower(zones, space, Some(upper), rounds)?;
        Some(Limit { live, nominal, written, space, lower, upper })
    };
    each.filter_map(limit).collect()
}

/// The driver's output for a run, limited to the fields that are shown. The driver's source
/// describes the fields where it prints them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[allow(missing_docs, reason = "the names are the driver's")]
pub struct Run {
    /// Name of the scheme: which collectors copied.
    pub scheme: String,
    /// The setting that was varied along the curve.
    pub setting: String,
    pub live: f64,
    pub nominal: u64,
    pub live_bytes: u64,
    pub user_bytes: u64,
    pub zone_bytes: u64,
    pub peak_zones: u64,
    pub relocated: u64,
    pub relocated_load: u64,
    pub copied_blobs: u64,
    pub copied_blobs_load: u64,
    pub stopped: String,
}

impl Run {
    /// Bytes of blobs that RocksDB copied.
    pub fn by_rocksdb(&self) -> u64 {
        self.relocated + self.relocated_load
    }

    /// Bytes of blobs that zone cleaning copied.
    pub fn by_zones(&self) -> u64 {
        self.copied_blobs + self.copied_blobs_load
    }

    /// Bytes of blobs copied for each byte that the user wrote, including the initial load.
    pub fn copied_share(&self) -> f64 {
        (self.by_rocksdb() + self.by_zones()) as f64 / self.written() as f64
    }

    /// Bytes that the user wrote, including the initial load.
    pub fn written(&self) -> u64 {
        (self.live_bytes + self.user_bytes).max(1)
    }

    /// Peak of the space in use, as a share of the nominal drive.
    pub fn peak(&self) -> f64 {
        (self.peak_zones * self.zone_bytes) as f64 / self.nominal as f64
    }
}

/// Parses lines of JSON.
///
/// # Errors
/// If a line is not of this form; the message has its number.
pub fn lines<T: for<'a> Deserialize<'a>>(text: &str) -> Result<Vec<T>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            serde_json::from_str(line).with_context(|| format!("line {}: not as expected", at + 1))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read() {
        let writes = trace("key,size\n7,10\n7,0\n").unwrap();
        assert_eq!(writes, [Write { key: 7, size: 10 }, Write { key: 7, size: 0 }]);
        assert!(trace("7,10\n").unwrap_err().to_string().contains("line 1"));
        assert!(trace("key,size\n7;10\n").unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn zones_fill_in_the_order_of_flushes() {
        // Two records fill a memtable, two memtables a zone. Key 9 is overwritten in the memtable.
        let keys = [9, 9, 5, 1, 2, 3, 5, 8, 9, 4, 5, 6];
        let writes: Vec<Write> = keys.map(|key| Write { key, size: 10 }).to_vec();
        let shape = Shape { zone: 30, memtable: 20, step: 10 };
        let zones = zones(&writes, &shape).unwrap();
        assert_eq!(zones.moments, 13);
        // The memtables flush keys 9 at 20, 1 and 5 at 40, 2 and 3 at 60, 5 and 8 at 80, 4 and 9 at
        // 100. The last memtable is not flushed.
        let times: Vec<(usize, usize)> = zones.zones.iter().map(|z| (z.taken, z.full)).collect();
        assert_eq!(times, [(2, 4), (6, 8), (8, 10)]);
        // Key 9 dies at 90, key 5 at 70, key 1 never.
        assert_eq!(zones.zones[0].live[4..], [30, 30, 30, 20, 20, 10, 10, 10, 10]);
        // Keys 2 and 3 never die, key 5 dies at 110.
        assert_eq!(zones.zones[1].live[8..], [30, 30, 30, 20, 20]);
        assert_eq!(zones.free_space(), 90);
        // The third zone is taken when 20 bytes of the first are live.
        assert_eq!(zones.least_space(), 80);
        let limits = limits(&zones, (0.5, 100, 120), 3, 10);
        let all: Vec<(u64, u64)> = limits.iter().map(|limit| (limit.space, limit.upper)).collect();
        assert_eq!(all, [(80, 20), (82, 20), (90, 0)]);
        assert!(limits.iter().all(|limit| limit.lower <= limit.upper as f64));
    }

    #[test]
    fn records_go_over_the_end_of_a_zone() {
        let writes: Vec<Write> = (0..4).map(|key| Write { key, size: 10 }).collect();
        let zones = zones(&writes, &Shape { zone: 15, memtable: 10, step: 10 }).unwrap();
        // Three memtables were flushed.
        let live: Vec<u64> = zones.zones.iter().map(|zone| zone.live[0]).collect();
        assert_eq!(live, [15, 15]);
        assert_eq!(zones.zones[1].full, 3);
    }
}
