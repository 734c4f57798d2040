//! A bit flipped after a power cut, judged by what was acknowledged: for a few seconds what
//! `furrow-sim crash --subject flip` searches for hours.

use furrow_sim::crash::{Case, Effort, Figures, Subject, sweep_case};
use furrow_sim::fs::flip::FlipSubject;

#[test]
fn a_flipped_bit_costs_what_depends_on_it_and_is_named() {
    let effort = Effort { cuts_max: 12, samples: 2, nested_one_in: 0, ..Effort::default() };
    let mut figures = Figures::default();
    for seed in 0..24 {
        let case = Case { seed, volatile: seed % 2 == 1 };
        figures.add(sweep_case(&FlipSubject, case, &effort, &|_| false));
    }
    println!("{figures}");
    for line in FlipSubject.coverage(&figures.reached) {
        println!("{line}");
    }
    assert!(figures.failures.is_empty(), "{}", figures.failures[0]);
    // Each structure was hit, and the mount was refused if it cannot do without the structure.
    for kind in ["checkpoint", "delta log", "table page", "node", "content", "summary"] {
        assert!(figures.reached.keys().any(|met| met.starts_with(kind)), "{kind} was never hit");
    }
    for refused in ["sync record: refused", "delta log: refused", "node: refused"] {
        assert!(figures.reached.contains_key(refused), "{refused}: never");
    }
}
