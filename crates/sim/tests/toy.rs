//! The crash harness, tested with a toy log: the correct log never fails, and each defect always
//! does.

use furrow_sim::crash::{Case, Effort, Figures, replay, sweep_case};
use furrow_sim::toy::{Toy, ToyDefect};

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

/// Each defect fails, and its failing line reproduces.
#[test]
fn every_defect_is_caught() {
    for defect in ToyDefect::ALL {
        let toy = Toy { defect: Some(defect) };
        let figures = sweep(toy, 0..8, true, 40);
        let failure = figures.failures.first().unwrap_or_else(|| panic!("{defect:?} not caught"));
        println!("{defect:?}: {failure}");
        let cuts = furrow_sim::fates::print_case(&failure.cuts);
        let cuts = if cuts.is_empty() { "run" } else { &cuts };
        let again = replay(&toy, failure.case, cuts, None);
        assert_eq!(again, Err(failure.why.clone()));
    }
}

/// Defects that do not need a volatile cache show without one.
#[test]
fn canaries_are_caught_on_drives_with_power_loss_protection() {
    for defect in [ToyDefect::EarlyAck, ToyDefect::DroppedCrc, ToyDefect::ReuseBeforeRelease] {
        let figures = sweep(Toy { defect: Some(defect) }, 0..8, false, 40);
        assert!(!figures.failures.is_empty(), "{defect:?} not caught");
    }
    // A cache that is not volatile needs no flush: a skipped flush is no defect there.
    let toy = Toy { defect: Some(ToyDefect::SkippedFlush) };
    assert_eq!(sweep(toy, 0..4, false, 24).failures.len(), 0);
}

#[test]
fn one_seed_gives_one_hash_and_the_same_figures() {
    let run = |seed| sweep(Toy::default(), seed..seed + 1, true, 10);
    let (one, two, other) = (run(4), run(4), run(5));
    assert_eq!((one.hash, one.reopens, one.fates), (two.hash, two.reopens, two.fates));
    assert_ne!(one.hash, other.hash);
}
