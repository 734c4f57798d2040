//! Runs claims: works out which runs are needed, does them on all cores at once, and collects
//! the results.
//!
//! A run is one scenario with one seed. Claims share runs, and each run is done once. Every run has
//! an executor of its own, so runs are independent and their order does not matter.

use crate::cache::Cache;
use crate::catalogue::{Catalogue, Claim, Engine, Point, Series, Size};
use crate::measure::Measures;
use crate::result::{ClaimResult, SeriesResult};
use crate::scenario;
use crate::scenario::Traces;
use crate::target::Watch;
use anyhow::{Result, anyhow};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The runs to do.
#[derive(Clone, Debug)]
pub struct Order {
    /// The size of the scenarios.
    pub size: Size,
    /// The seeds of the runs.
    pub seeds: Vec<u64>,
    /// Number of runs at the same time.
    pub threads: usize,
    /// The recordings that runs may replay.
    pub traces: Traces,
}

impl Order {
    /// An order for seeds 1 to `seeds`, on every processor of this machine.
    pub fn new(size: Size, seeds: u64) -> Order {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Order { size, seeds: (1..=seeds).collect(), threads, traces: Traces::default() }
    }
}

/// The progress of an order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Number of runs done, without those taken from the cache.
    pub done: usize,
    /// Number of runs to do.
    pub of: usize,
    /// Time since the order began.
    pub elapsed: Duration,
    /// Time that the order will still take at this pace; `None` while that is unknown.
    pub left: Option<Duration>,
}

/// A claim and its result.
#[derive(Debug)]
pub struct Finished<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The claim's figures, or why there are none.
    pub result: Result<ClaimResult, String>,
}

/// The results of an order.
#[derive(Debug)]
pub struct Outcome<'a> {
    /// The claims in the order in which they were requested.
    pub claims: Vec<Finished<'a>>,
    /// Number of runs taken from the cache.
    pub cached: usize,
    /// Number of runs done.
    pub run: usize,
    /// The reason why results were not kept, if they should have been.
    pub not_kept: Option<String>,
}

struct Job {
    point: Point,
    seed: u64,
    traces: Traces,
    /// Expected run time, relative to the other jobs.
    weight: f64,
    watch: Arc<Watch>,
    result: Mutex<Option<Result<Measures, String>>>,
}

/// True if every run of `claim` is in the cache.
pub fn is_cached(catalogue: &Catalogue, claim: &Claim, order: &Order, cache: &Cache) -> bool {
    let Ok(trials) = catalogue.trials(claim, order.size) else { return false };
    let mut points = trials.iter().flat_map(|series| &series.points).peekable();
    let has = |point: &Point| order.seeds.iter().all(|seed| cache.get(point, *seed).is_some());
    points.peek().is_some() && points.all(|point| has(&point.point))
}

/// The amount of work that running claims takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Number of runs.
    pub runs: usize,
    /// Number of runs that are in the cache.
    pub cached: usize,
    /// Approximate time that the other runs take.
    pub takes: Duration,
}

/// Estimates the work that running `claims` takes, as far as they can be run, without running them.
///
/// # Errors
/// If the data of a claim are wrong.
pub fn plan(
    catalogue: &Catalogue,
    claims: &[&Claim],
    order: &Order,
    cache: &Cache,
) -> Result<Plan> {
    let Work { measures, jobs, .. } = Work::of(catalogue, claims, order, cache)?;
    // A run's weight is roughly the processor time that it takes, in microseconds.
    let weights = || jobs.values().map(|job| job.weight);
    let longest = weights().fold(0.0, f64::max);
    let all = weights().sum::<f64>() / order.threads.max(1) as f64;
    let takes = Duration::from_secs_f64(all.max(longest) / 1e6);
    Ok(Plan { runs: measures.len() + jobs.len(), cached: measures.len(), takes })
}

/// The runs of some claims: the results in the cache, and the jobs to do.
struct Work<'a> {
    trials: Vec<(&'a Claim, Vec<Series>)>,
    measures: BTreeMap<(String, u64), Result<Measures, String>>,
    jobs: BTreeMap<(String, u64), Job>,
}

impl<'a> Work<'a> {
    fn of(
        catalogue: &Catalogue,
        claims: &[&'a Claim],
        order: &Order,
        cache: &Cache,
    ) -> Result<Work<'a>> {
        let mut work =
            Work { trials: Vec::new(), measures: BTreeMap::default(), jobs: BTreeMap::default() };
        for claim in claims.iter().copied().filter(|claim| claim.is_runnable()) {
            let series = catalogue.trials(claim, order.size)?;
            for point in series.iter().flat_map(|series| &series.points) {
                for seed in &order.seeds {
                    let key = (point.point.canonical(), *seed);
                    if work.measures.contains_key(&key) || work.jobs.contains_key(&key) {
                        continue;
                    }
                    match cache.get(&point.point, *seed) {
                        Some(found) => drop(work.measures.insert(key, Ok(found))),
                        None => drop(work.jobs.insert(key, Job::new(&point.point, *seed, order))),
                    }
                }
            }
            work.trials.push((claim, series));
        }
        Ok(work)
    }
}

/// Runs those of `claims` that can be run, and calls `show` regularly meanwhile.
///
/// # Errors
/// If the data of a claim are wrong. A failed run fails its own claims only.
pub fn run<'a>(
    catalogue: &Catalogue,
    claims: &[&'a Claim],
    order: &Order,
    cache: &Cache,
    show: &(dyn Fn(Progress) + Sync),
) -> Result<Outcome<'a>> {
    let Work { trials, mut measures, jobs } = Work::of(catalogue, claims, order, cache)?;
    let (cached, run) = (measures.len(), jobs.len());
    let not_kept = work(&jobs, order.threads, cache, show);
    for (key, job) in jobs {
        let lost = || Err("the run did not end".to_owned());
        let result = job.result.into_inner().ok().flatten().unwrap_or_else(lost);
        measures.insert(key, result);
    }
    let claims = trials
        .into_iter()
        .map(|(claim, series)| Finished { claim, result: collect(claim, series, order, &measures) })
        .collect();
    Ok(Outcome { claims, cached, run, not_kept })
}

impl Job {
    fn new(point: &Point, seed: u64, order: &Order) -> Job {
        let workload = &point.workload;
        let seconds = (workload.warm.0 + workload.run.0) as f64 / 1e9;
        // Every operation costs the host about a microsecond, and about 100 ns for each page.
        let rate = (2.5e9 / workload.size.0.max(1) as f64).min(150_000.0);
        let pages = workload.size.0 as f64 / 4096.0;
        // The layers between client and drive do several operations for each operation of the
        // client.
        let engine = match point.profile.engine {
            Engine::None => 1.0,
            Engine::Spread => 2.0,
            Engine::Fs => 6.0,
            Engine::Raid => 8.0,
            Engine::Store => 4.0,
        };
        let requests = match &workload.recorded {
            None => seconds * rate * (1.0 + 0.1 * pages),
            Some(run) => {
                run.name.as_ref().map_or(0, |name| name.requests) as f64 * f64::from(run.copies)
            }
        };
        let weight = engine * requests + 1_000.0;
        let watch = Arc::default();
        let traces = order.traces.clone();
        Job { point: point.clone(), seed, traces, weight, watch, result: Mutex::new(None) }
    }

    fn run(&self, cache: &Cache) -> Result<(), String> {
        let began = Instant::now();
        let run = || scenario::replay(&self.point, self.seed, &self.watch, &self.traces);
        let measured = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(anyhow!("the run ended in a panic: {}", text.unwrap_or_default()))
        });
        let kept = match &measured {
            Ok(measures) => {
                let seconds = began.elapsed().as_secs_f64();
                cache.put(&self.point, self.seed, seconds, measures)
            }
            Err(_) => Ok(()),
        };
        if let Ok(mut result) = self.result.lock() {
            *result = Some(measured.map_err(|error| format!("seed {}: {error:#}", self.seed)));
        }
        kept.map_err(|error| format!("{error:#}"))
    }

    fn is_done(&self) -> bool {
        self.result.lock().is_ok_and(|result| result.is_some())
    }
}

/// Does the jobs. Returns why results were not kept, if one was not.
fn work(
    jobs: &BTreeMap<(String, u64), Job>,
    threads: usize,
    cache: &Cache,
    show: &(dyn Fn(Progress) + Sync),
) -> Option<String> {
    if jobs.is_empty() {
        return None;
    }
    let mut queue: Vec<&Job> = jobs.values().collect();
    // Workers take jobs from the back of the queue, so the longest jobs start first, and no long
    // job runs alone at the end.
    queue.sort_by(|a, b| a.weight.total_cmp(&b.weight).then(b.seed.cmp(&a.seed)));
    let queue = Mutex::new(queue);
    let (not_kept, over) = (Mutex::new(None), AtomicBool::new(false));
    let began = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.clamp(1, jobs.len()))
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let job = queue.lock().ok().and_then(|mut queue| queue.pop());
                        let Some(job) = job else { return };
                        if let Err(why) = job.run(cache)
                            && let Ok(mut not_kept) = not_kept.lock()
                        {
                            not_kept.get_or_insert(why);
                        }
                    }
                })
            })
            .collect();
        let shower = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                show(progress(jobs, began));
                std::thread::park_timeout(Duration::from_millis(200));
            }
        });
        for worker in workers {
            // A panic outside a run leaves its job without a result, which the report shows.
            let _ = worker.join();
        }
        over.store(true, Ordering::Release);
        shower.thread().unpark();
    });
    show(progress(jobs, began));
    not_kept.into_inner().ok().flatten()
}

fn progress(jobs: &BTreeMap<(String, u64), Job>, began: Instant) -> Progress {
    let elapsed = began.elapsed();
    let (mut done, mut whole, mut part) = (0, 0.0, 0.0);
    for job in jobs.values() {
        let share = if job.is_done() { 1.0 } else { job.watch.done() as f64 / 1_000.0 };
        done += usize::from(job.is_done());
        whole += job.weight;
        part += job.weight * share;
    }
    let share = part / whole;
    let left = (share > 0.01).then(|| elapsed.as_secs_f64() * (1.0 - share) / share);
    let left = left.map(Duration::from_secs_f64);
    Progress { done, of: jobs.len(), elapsed, left }
}

/// Computes the figures of a claim from the measures of its runs.
fn collect(
    claim: &Claim,
    trials: Vec<Series>,
    order: &Order,
    measures: &BTreeMap<(String, u64), Result<Measures, String>>,
) -> Result<ClaimResult, String> {
    let mut all = Vec::new();
    for series in trials {
        let mut by_point = Vec::new();
        for point in &series.points {
            let key = point.point.canonical();
            let by_seed =
                order.seeds.iter().map(|seed| match measures.get(&(key.clone(), *seed)) {
                    Some(Ok(measures)) => Ok(measures.clone()),
                    Some(Err(why)) => Err(format!("run `{}`, {}: {why}", series.name, point.label)),
                    None => Err(format!("run `{}`, {}: was not run", series.name, point.label)),
                });
            by_point.push(by_seed.collect::<Result<Vec<_>, String>>()?);
        }
        all.push(SeriesResult { series, measures: by_point });
    }
    ClaimResult::new(claim, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Build;
    use crate::fixture;

    fn catalogue() -> Catalogue {
        let sweep = r#"
figures = [{ name = "best", unit = "MB/s", paper = 180, take = "best", run = "all" }]
[[claim.runs]]
name = "all"
over = "zones"
values = [1, 2, 4]
"#;
        let shares = r#"
figures = [{ name = "four", unit = "MB/s", paper = 180, run = "four" }]
[[claim.runs]]
name = "four"
"#;
        let claims = fixture::claims(&[
            fixture::claim("A", "a sweep", "it grows", sweep),
            fixture::claim("B", "shares its run with A", "the same", shares),
            fixture::failing("C"),
            fixture::needing("D", "cannot be run", "more"),
        ]);
        Catalogue::parse(fixture::SETUP, &claims).unwrap()
    }

    fn order(threads: usize) -> Order {
        Order { size: Size::Scaled, seeds: vec![1, 2], threads, traces: Default::default() }
    }

    fn figures(outcome: &Outcome<'_>) -> Vec<(String, Vec<f64>)> {
        let result = |finished: &Finished<'_>| {
            let values = finished.result.as_ref().map(|r| r.figures[0].ours.values.clone());
            (finished.claim.id.clone(), values.unwrap_or_default())
        };
        outcome.claims.iter().map(result).collect()
    }

    #[test]
    fn claims_share_runs_and_one_that_fails_fails_alone() {
        let catalogue = catalogue();
        let claims: Vec<&Claim> = catalogue.claims.iter().collect();
        let cache = Cache::none(Build::this());
        let shown = Mutex::new(Vec::new());
        let show = |progress: Progress| shown.lock().unwrap().push(progress);
        let outcome = run(&catalogue, &claims, &order(2), &cache, &show).unwrap();
        // Three points of A, one of which B shares, and the point of C make four points with two
        // seeds each.
        assert_eq!((outcome.run, outcome.cached, outcome.claims.len()), (8, 0, 3));
        let figures = figures(&outcome);
        assert_eq!(figures[0].1, figures[1].1);
        assert_eq!(figures[0].1.len(), 2, "one value for each seed");
        let error = outcome.claims[2].result.as_ref().unwrap_err();
        assert!(error.contains("run `r`") && error.contains("5000 zones"), "{error}");
        let last = *shown.lock().unwrap().last().unwrap();
        assert_eq!((last.done, last.of), (8, 8));
        assert!(last.left.is_some_and(|left| left.is_zero()), "{last:?}");
    }

    #[test]
    fn how_many_run_at_once_does_not_matter_and_the_cache_gives_the_same() {
        let catalogue = catalogue();
        let claims: Vec<&Claim> = catalogue.claims.iter().take(2).collect();
        let folder = std::env::temp_dir().join(format!("furrow-runner-{}", std::process::id()));
        let build = |commit: &str| Build { commit: commit.to_owned(), changed: false };
        let cache = Cache::new(&folder, build("one"));
        let go = |threads, cache: &Cache| {
            run(&catalogue, &claims, &order(threads), cache, &|_| {}).unwrap()
        };
        let first = go(1, &cache);
        assert_eq!((first.run, first.cached), (6, 0));
        assert!(is_cached(&catalogue, claims[0], &order(1), &cache));
        let again = go(3, &cache);
        assert_eq!((again.run, again.cached), (0, 6));
        let other = Cache::new(&folder, build("two"));
        assert!(!is_cached(&catalogue, claims[0], &order(1), &other));
        let fresh = go(3, &other);
        assert_eq!((fresh.run, fresh.cached), (6, 0));
        assert_eq!(figures(&first), figures(&again));
        assert_eq!(figures(&first), figures(&fresh));
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn what_has_no_runs_is_not_cached() {
        let catalogue = catalogue();
        let cache = Cache::none(Build::this());
        assert!(!is_cached(&catalogue, &catalogue.claims[3], &order(1), &cache));
    }
}
