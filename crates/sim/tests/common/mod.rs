//! Sweeps and seeds of any subject.

use furrow_sim::crash::{Case, Effort, Figures, Subject, sweep_case};
use furrow_sim::simulation::{Sink, Summary};

/// Sweeps each seed with a volatile cache and without, up to the failures that `effort` allows.
pub fn sweep(
    subject: &impl Subject,
    seeds: impl IntoIterator<Item = u64>,
    effort: &Effort,
) -> Figures {
    let mut figures = Figures::default();
    for seed in seeds {
        for volatile in [false, true] {
            figures.add(sweep_case(subject, Case { seed, volatile }, effort, &|_| false));
            if figures.failures.len() >= effort.failures_max {
                return figures;
            }
        }
    }
    figures
}

/// Sweeps one case, which may not fail.
pub fn holds(subject: &impl Subject, case: Case, effort: &Effort) -> Figures {
    let figures = sweep_case(subject, case, effort, &|_| false);
    no_failure(&figures);
    figures
}

pub fn no_failure(figures: &Figures) {
    println!("{figures}");
    figures.failures.iter().for_each(|failure| println!("{failure}"));
    assert!(figures.failures.is_empty(), "{}", figures.failures[0]);
}

/// Simulates each seed, none of which may fail.
pub fn lived(
    seeds: impl IntoIterator<Item = u64>,
    simulate: impl Fn(u64, Sink<'_>) -> Result<Summary, String>,
) -> Summary {
    let mut all = Summary::default();
    for seed in seeds {
        match simulate(seed, &mut |_| {}) {
            Ok(summary) => all.add(&summary),
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    all
}
