//! The core that all engines share under the crash harness: no failure, and each of its defects
//! caught.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "drives sweeps")]

use crate::common::{no_failure, sweep};
use furrow_policy::LogDefect;
use furrow_sim::crash::{Case, Effort, Figures, sweep_case};
use furrow_sim::log::crash::LogSubject;

#[test]
fn the_ledger_survives_power_cuts() {
    let effort = Effort { cuts_max: 60, samples: 4, ..Effort::default() };
    let figures = sweep(&LogSubject { defect: None }, 100..106, &effort);
    no_failure(&figures);
    assert!(figures.reopens > 1000 && figures.nested > 50, "{figures}");
}

#[test]
fn every_defect_is_caught() {
    for defect in LogDefect::ALL {
        let effort = Effort { failures_max: 1, ..Effort::default() };
        let figures = sweep(&LogSubject { defect: Some(defect) }, 1..40, &effort);
        assert!(!figures.failures.is_empty(), "{defect:?} was not caught:\n{figures}");
        println!("{defect:?}: {}", figures.failures[0]);
    }
}

/// A cache that is not volatile needs no flush.
#[test]
fn a_skipped_flush_is_no_defect_on_drives_with_power_loss_protection() {
    let subject = LogSubject { defect: Some(LogDefect::SkippedFlush) };
    let effort = Effort { cuts_max: 24, ..Effort::default() };
    let mut figures = Figures::default();
    for seed in 0..4 {
        figures.add(sweep_case(&subject, Case { seed, volatile: false }, &effort, &|_| false));
    }
    no_failure(&figures);
    assert!(figures.reopens > 100, "{figures}");
}
