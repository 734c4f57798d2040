//! Sweeps over many seeds on several threads. Each case has an executor of its own, so threads
//! share only the figures.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a front end: it runs sweeps"
)]

use crate::crash::{Case, Effort, Figures, Subject, sweep_case};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When a sweep ends: at the first of these limits, or after [`Effort::failures_max`] failures.
#[derive(Clone, Copy, Debug, Default)]
pub struct Goal {
    /// Ends after this much time.
    pub time: Option<Duration>,
    /// Ends after this many reopened states.
    pub reopens: Option<u64>,
    /// Ends after this many seeds. Each seed makes two cases: a drive with and one without a
    /// volatile cache.
    pub seeds: Option<u64>,
}

impl Goal {
    fn is_met(&self, started: Instant, reopens: u64) -> bool {
        self.time.is_some_and(|time| started.elapsed() >= time)
            || self.reopens.is_some_and(|wanted| reopens >= wanted)
    }
}

/// Sweeps cases from `first_seed` on until `goal` is met. `progress` is called after each case.
pub fn sweep<S: Subject>(
    subject: &S,
    first_seed: u64,
    goal: Goal,
    effort: &Effort,
    threads: usize,
    progress: &(dyn Fn(&Figures, Duration) + Sync),
) -> Figures {
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let figures = Mutex::new(Figures::default());
    let lock = || figures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let work = || loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if goal.seeds.is_some_and(|seeds| index / 2 >= seeds) {
            return;
        }
        let case = Case { seed: first_seed + index / 2, volatile: index % 2 == 1 };
        let before = lock().reopens;
        let enough = |case: &Figures| goal.is_met(started, before + case.reopens);
        let found = sweep_case(subject, case, effort, &enough);
        let mut figures = lock();
        figures.add(found);
        progress(&figures, started.elapsed());
        if goal.is_met(started, figures.reopens) || figures.failures.len() >= effort.failures_max {
            return;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    figures.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
