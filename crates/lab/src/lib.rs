//! Measurements: every layer against what limits it.
//!
//! A [`Bench`] compares contestants in one run. They take turns, round by round, so that other load
//! on the machine affects all of them, and a ratio is the median of the rounds' ratios. Payload is
//! incompressible. Numbers mean nothing without the machine on which they were measured; ratios
//! mean a little more.
//!
//! Deliberately not here: timed devices (their results come from virtual time), profiling.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "measures real time")]

pub mod array;
mod bench;
pub mod cache;
pub mod calibrate;
pub mod catalogue;
pub mod collection;
pub mod document;
#[cfg(test)]
mod fixture;
pub mod flow;
mod fsync;
pub mod host;
pub mod inside;
mod library;
pub mod measure;
mod mount;
mod nbd;
mod nearly_full;
pub mod page;
pub mod plot;
pub mod policy;
pub mod recorded;
pub mod report;
pub mod result;
pub mod runner;
pub mod scenario;
pub mod stored;
pub mod target;
pub mod text;
pub mod trace;
mod volume;
pub mod workload;
mod zipf;

pub use bench::{Bench, Contestant, Effort, Row, compare};

/// All benchmarks, in the order they run.
pub const BENCHES: &[Bench] = &[
    Bench {
        name: "library",
        about: "4 KiB writes through the library, against the untimed drive alone and copying with \
                a checksum",
        run: library::run,
    },
    fsync::FSYNC,
    nearly_full::NEARLY_FULL,
    volume::VOLUME,
    volume::VOLUME_COLD,
    nbd::NBD,
    mount::MOUNT,
];

/// The benchmarks called `names`; all of them if no name is given.
///
/// # Errors
/// The first name that no benchmark has.
pub fn select(names: &[String]) -> Result<Vec<&'static Bench>, String> {
    if names.is_empty() {
        return Ok(BENCHES.iter().collect());
    }
    names
        .iter()
        .map(|name| BENCHES.iter().find(|bench| bench.name == name).ok_or_else(|| name.clone()))
        .collect()
}

/// Bytes that do not compress and differ from block to block.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut rng = furrow_rt::Rng::new(seed);
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        out.extend_from_slice(&rng.next().to_le_bytes());
    }
    out.truncate(length);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_are_found_by_name() {
        assert_eq!(select(&[]).unwrap().len(), BENCHES.len());
        assert_eq!(select(&["library".into()]).unwrap()[0].name, "library");
        assert_eq!(select(&["mount".into(), "none".into()]).unwrap_err(), "none");
    }
}
