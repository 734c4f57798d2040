//! Independent runs, spread over the cores: each run has an executor and a drive of its own, so
//! runs share nothing and their results do not depend on how many run at once.

use anyhow::{Result, anyhow};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A callback that gets the number of finished runs and the number of all runs, from any thread.
pub type Told<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Calls `work` for each number below `count`. The results are in the order of the numbers.
///
/// # Errors
/// The error of the lowest number whose work failed; work that had not begun by then is skipped.
pub fn spread<T: Send>(
    count: usize,
    work: &(dyn Fn(usize) -> Result<T> + Sync),
    told: Told<'_>,
) -> Result<Vec<T>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(count.max(1));
    let (next, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = AtomicBool::new(false);
    let results: Mutex<Vec<(usize, Result<T>)>> = Mutex::new(Vec::with_capacity(count));
    let worker = || {
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let result = work(number);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            if let Ok(mut results) = results.lock() {
                results.push((number, result));
            }
            told(over.fetch_add(1, Ordering::Relaxed) + 1, count);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(worker);
        }
    });
    let mut results = results.into_inner().map_err(|_| anyhow!("a run has panicked"))?;
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_everybody_is_told() {
        let told = AtomicUsize::new(0);
        let count = |_, _| {
            told.fetch_add(1, Ordering::Relaxed);
        };
        let squares = spread(100, &|n| Ok(n * n), &count).unwrap();
        assert_eq!(squares, (0..100).map(|n| n * n).collect::<Vec<_>>());
        assert_eq!(told.into_inner(), 100);
        assert!(spread(0, &|n| Ok(n), &|_, _| {}).unwrap().is_empty());
    }

    #[test]
    fn the_first_failure_is_reported() {
        let fails = |n| if n >= 7 { Err(anyhow!("number {n}")) } else { Ok(n) };
        assert_eq!(spread(1_000, &fails, &|_, _| {}).unwrap_err().to_string(), "number 7");
    }
}
