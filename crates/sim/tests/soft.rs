//! Soft zones on a plain drive that loses any sectors in any order: no promise is broken, and each
//! defect is caught.

use crate::common::{no_failure, sweep};
use furrow_policy::SoftDefect;
use furrow_sim::crash::{Case, Effort, replay};
use furrow_sim::soft::crash::{SoftFsSubject, SoftSubject};

#[test]
fn soft_zones_keep_the_contract_of_a_zoned_drive() {
    let effort = Effort { cuts_max: 20, ..Effort::default() };
    let figures = sweep(&SoftSubject::default(), 1..12, &effort);
    no_failure(&figures);
    assert!(figures.reopens > 2000 && figures.nested > 100, "{figures}");
    assert!(figures.in_flight.len() > 3, "{figures}");
}

#[test]
fn a_file_system_on_soft_zones_keeps_its_promises() {
    let effort = Effort { cuts_max: 8, ..Effort::default() };
    let figures = sweep(&SoftFsSubject::default(), 1..4, &effort);
    no_failure(&figures);
    assert!(figures.reopens > 100, "{figures}");
}

/// A drive opened for reading read discarded sectors twice, checked the first answer and returned
/// the second. It cannot write these sectors again, so it must keep them in memory.
#[test]
fn a_drive_opened_for_reading_shows_what_it_believed() {
    for (seed, volatile, cut) in [
        (1, false, "113:T25T1N@L3814541418"),
        (1, true, "135:NND@S152499873"),
        (5, false, "12:T15D@L1322365103"),
    ] {
        let again = replay(&SoftSubject::default(), Case { seed, volatile }, cut, None);
        assert_eq!(again, Ok(()), "{seed} {cut}");
    }
}

/// The harness catches each defect, and the reported case reproduces the failure.
#[test]
fn every_defect_is_caught() {
    for defect in SoftDefect::ALL {
        let subject = SoftSubject { defect: Some(defect) };
        let effort = Effort { cuts_max: 60, failures_max: 1, ..Effort::default() };
        let found = sweep(&subject, 1..60, &effort).failures.into_iter().next();
        let failure = found.unwrap_or_else(|| panic!("{defect:?} not caught"));
        println!("{defect:?}: {failure}");
        let cuts = furrow_sim::fates::print_case(&failure.cuts);
        let cuts = if cuts.is_empty() { "run" } else { &cuts };
        let again = replay(&subject, failure.case, cuts, None);
        assert_eq!(again, Err(failure.why.clone()));
    }
}
