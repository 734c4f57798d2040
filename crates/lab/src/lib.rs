//! Measurements: every layer against what limits it.
//!
//! A [`Bench`] compares contestants in one run: they take turns, round by round, so that whatever
//! else the machine does hits all of them, and a ratio is the median of the rounds' ratios.
//! Payload is incompressible. Numbers without the machine they were taken on mean nothing; ratios
//! mean a little more.
//!
//! Deliberately not here: timed devices (their results come from virtual time), profiling.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "measures real time")]

mod bench;
mod reach;

pub use bench::{Bench, Contestant, Effort, Row, compare};

/// All benchmarks, in the order they run.
pub const BENCHES: &[Bench] = &[reach::REACH];

/// The benchmarks called `names`, all if there are none.
///
/// # Errors
/// The first name that is none.
pub fn select(names: &[String]) -> Result<Vec<&'static Bench>, String> {
    if names.is_empty() {
        return Ok(BENCHES.iter().collect());
    }
    names
        .iter()
        .map(|name| BENCHES.iter().find(|bench| bench.name == name).ok_or_else(|| name.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_are_found_by_name() {
        assert_eq!(select(&[]).unwrap().len(), BENCHES.len());
        assert_eq!(select(&["none".into()]).unwrap_err(), "none");
    }
}
