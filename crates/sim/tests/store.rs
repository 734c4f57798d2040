//! The file store under the crash harness: no failure, and every defect built into it caught.

use furrow_kv::Canary;
use furrow_sim::crash::{Case, Effort, Figures, sweep_case};
use furrow_sim::store::StoreSubject;

fn sweep(subject: StoreSubject, seeds: impl IntoIterator<Item = u64>, effort: Effort) -> Figures {
    let mut figures = Figures::default();
    for seed in seeds {
        for volatile in [false, true] {
            figures.add(sweep_case(&subject, Case { seed, volatile }, &effort, &|_| false));
        }
        if figures.failures.len() >= effort.failures_max {
            break;
        }
    }
    figures
}

#[test]
fn the_store_keeps_what_was_synced() {
    let effort = Effort { cuts_max: 20, samples: 3, nested_one_in: 4, ..Effort::default() };
    let figures = sweep(StoreSubject::default(), 0..20, effort);
    println!("{figures}");
    assert!(figures.failures.is_empty(), "{}", figures.failures[0]);
    assert!(figures.reopens > 1000 && figures.nested > 100, "{figures}");
}

#[test]
fn every_defect_built_in_is_caught() {
    for canary in Canary::ALL {
        let effort = Effort { cuts_max: 100, failures_max: 1, ..Effort::default() };
        let figures = sweep(StoreSubject { canary: Some(canary) }, 1..20, effort);
        assert!(!figures.failures.is_empty(), "{canary:?}: {figures}");
    }
}
