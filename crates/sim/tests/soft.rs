//! Soft zones on a plain drive that loses any sectors in any order: no promise is broken, and each
//! defect is caught.

use furrow_policy::SoftDefect;
use furrow_sim::crash::{Case, Effort, Figures, Subject, replay, sweep_case};
use furrow_sim::soft::crash::{SoftFsSubject, SoftSubject};

fn sweep<S: Subject>(subject: &S, seeds: std::ops::Range<u64>, cuts_max: usize) -> Figures {
    let mut figures = Figures::default();
    for seed in seeds {
        for volatile in [false, true] {
            let effort = Effort { cuts_max, ..Effort::default() };
            figures.add(sweep_case(subject, Case { seed, volatile }, &effort, &|_| false));
        }
    }
    figures
}

#[test]
fn soft_zones_keep_the_contract_of_a_zoned_drive() {
    let figures = sweep(&SoftSubject::default(), 1..12, 20);
    assert_eq!(figures.failures.len(), 0, "{}", figures.failures[0]);
    assert!(figures.reopens > 2000 && figures.nested > 100, "{figures}");
    assert!(figures.in_flight.len() > 3, "{figures}");
}

#[test]
fn a_file_system_on_soft_zones_keeps_its_promises() {
    let figures = sweep(&SoftFsSubject::default(), 1..4, 8);
    assert_eq!(figures.failures.len(), 0, "{}", figures.failures[0]);
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
        let found = (1..60).find_map(|seed| {
            [false, true].into_iter().find_map(|volatile| {
                let effort = Effort { cuts_max: 60, failures_max: 1, ..Effort::default() };
                let case = Case { seed, volatile };
                sweep_case(&subject, case, &effort, &|_| false).failures.into_iter().next()
            })
        });
        let failure = found.unwrap_or_else(|| panic!("{defect:?} not caught"));
        println!("{defect:?}: {failure}");
        let cuts = furrow_sim::fates::print_case(&failure.cuts);
        let cuts = if cuts.is_empty() { "run" } else { &cuts };
        let again = replay(&subject, failure.case, cuts, None);
        assert_eq!(again, Err(failure.why.clone()));
    }
}
