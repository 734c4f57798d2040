//! The crash harness, held against a toy log: the honest client never fails, each canary always
//! does.

use furrow_sim::crash::{Case, Effort, Figures, replay, sweep_case};
use furrow_sim::toy::{Canary, Toy};

fn sweep(toy: Toy, seeds: std::ops::Range<u64>, volatile: bool, cuts_max: usize) -> Figures {
    let mut figures = Figures::default();
    for seed in seeds {
        let effort = Effort { cuts_max, ..Effort::default() };
        figures.add(sweep_case(&toy, Case { seed, volatile }, &effort, &|_| false));
    }
    figures
}

#[test]
fn the_honest_log_keeps_every_promise() {
    for volatile in [false, true] {
        let figures = sweep(Toy::default(), 0..6, volatile, 24);
        for failure in &figures.failures {
            println!("{failure}");
        }
        println!("{figures}");
        assert_eq!(figures.failures.len(), 0, "{}", figures.failures[0]);
        assert!(figures.reopens > 500 && figures.nested > 20, "{figures}");
        assert!(figures.in_flight.len() > 3, "{figures}");
    }
}

/// Each canary fails, and its failing line reproduces.
#[test]
fn every_canary_is_caught() {
    for canary in Canary::ALL {
        let toy = Toy { canary: Some(canary) };
        let figures = sweep(toy, 0..8, true, 40);
        let failure = figures.failures.first().unwrap_or_else(|| panic!("{canary:?} not caught"));
        println!("{canary:?}: {failure}");
        let cuts = furrow_sim::fates::print_case(&failure.cuts);
        let cuts = if cuts.is_empty() { "run" } else { &cuts };
        let again = replay(&toy, failure.case, cuts, None);
        assert_eq!(again, Err(failure.why.clone()));
    }
}

/// What needs no volatile cache to show shows without one.
#[test]
fn canaries_are_caught_on_drives_with_power_loss_protection() {
    for canary in [Canary::EarlyAck, Canary::DroppedCrc, Canary::ReuseBeforeRelease] {
        let figures = sweep(Toy { canary: Some(canary) }, 0..8, false, 40);
        assert!(!figures.failures.is_empty(), "{canary:?} not caught");
    }
    // A cache that is not volatile needs no flush: this one is no defect there.
    let toy = Toy { canary: Some(Canary::SkippedFlush) };
    assert_eq!(sweep(toy, 0..4, false, 24).failures.len(), 0);
}

#[test]
fn one_seed_gives_one_hash_and_the_same_figures() {
    let run = |seed| sweep(Toy::default(), seed..seed + 1, true, 10);
    let (one, two, other) = (run(4), run(4), run(5));
    assert_eq!((one.hash, one.reopens, one.fates), (two.hash, two.reopens, two.fates));
    assert_ne!(one.hash, other.hash);
}
