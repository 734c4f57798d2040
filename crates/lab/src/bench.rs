//! Benchmarks: contestants take turns; the results are medians and ratios.

use anyhow::{Context as _, Result};
use std::time::{Duration, Instant};

/// A benchmark.
#[derive(Debug)]
pub struct Bench {
    /// Name of the benchmark.
    pub name: &'static str,
    /// The comparison that it makes.
    pub about: &'static str,
    /// Runs the benchmark.
    pub run: fn(Effort) -> Result<Vec<Row>>,
}

/// How long a benchmark measures.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of rounds; the result is the median of their results.
    pub rounds: usize,
    /// Duration of each contestant's turn in a round.
    pub slice: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        Effort { rounds: 7, slice: Duration::from_millis(400) }
    }
}

impl Effort {
    /// The minimum effort that shows whether a benchmark works.
    pub fn glance() -> Effort {
        Effort { rounds: 1, slice: Duration::from_millis(20) }
    }
}

/// One line of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The contestant.
    pub name: String,
    /// Rate per second: the median over the rounds.
    pub rate: f64,
    /// The lowest and the highest rate of a round.
    pub range: (f64, f64),
    /// The contestant to compare with, if any.
    pub against: Option<String>,
    /// Rate divided by the rate of the contestant in `against`: the median of the rounds' ratios.
    pub ratio: Option<f64>,
}

impl Row {
    /// Time of one unit, in nanoseconds.
    pub fn nanoseconds(&self) -> f64 {
        1e9 / self.rate
    }
}

/// A contestant: runs for about the given time and returns its rate per second.
pub struct Contestant<'a> {
    /// Its name in the result.
    pub name: String,
    /// Measures the rate once.
    pub measure: Box<dyn FnMut(Duration) -> Result<f64> + 'a>,
    /// Index of the contestant to compare with; a contestant compared with itself has no ratio.
    against: usize,
}

impl<'a> Contestant<'a> {
    /// A contestant that is compared with the one at index 0.
    pub fn new(
        name: impl Into<String>,
        measure: impl FnMut(Duration) -> Result<f64> + 'a,
    ) -> Contestant<'a> {
        Contestant { name: name.into(), measure: Box::new(measure), against: 0 }
    }

    /// Compares the contestant with the one at index `place`.
    #[must_use]
    pub fn against(self, place: usize) -> Contestant<'a> {
        Contestant { against: place, ..self }
    }
}

/// Lets `contestants` take turns. Returns a row for each.
///
/// # Errors
/// The first error of a contestant.
pub fn compare(effort: Effort, contestants: &mut [Contestant<'_>]) -> Result<Vec<Row>> {
    let mut rates = vec![Vec::new(); contestants.len()];
    for round in 0..effort.rounds.max(1) {
        // The contestants rotate, so that the same one does not always go first.
        for turn in 0..contestants.len() {
            let index = (turn + round) % contestants.len();
            let contestant = &mut contestants[index];
            let rate =
                (contestant.measure)(effort.slice).with_context(|| contestant.name.clone())?;
            rates[index].push(rate);
        }
    }
    let row = |(index, contestant): (usize, &Contestant<'_>)| {
        let (own, other) = (&rates[index], &rates[contestant.against]);
        let ratios = || own.iter().zip(other).map(|(own, other)| own / other).collect();
        let compared = index != contestant.against;
        Row {
            name: contestant.name.clone(),
            rate: median(own.clone()),
            range: (
                own.iter().copied().fold(f64::INFINITY, f64::min),
                own.iter().copied().fold(0.0, f64::max),
            ),
            against: compared.then(|| contestants[contestant.against].name.clone()),
            ratio: compared.then(|| median(ratios())),
        }
    };
    Ok(contestants.iter().enumerate().map(row).collect())
}

/// Repeats `one` for about `slice`, and looks at the clock after every `batch` repetitions. Returns
/// the number of repetitions per second.
pub(crate) fn repeat(
    slice: Duration,
    batch: u32,
    mut one: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let start = Instant::now();
    let mut done = 0u64;
    loop {
        for _ in 0..batch {
            one()?;
        }
        done += u64::from(batch);
        let elapsed = start.elapsed();
        if elapsed >= slice {
            return Ok(done as f64 / elapsed.as_secs_f64());
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        // The machine slows down from round to round; the ratio does not change.
        let speeds = [1000.0, 500.0, 100.0];
        let (mut a, mut b) = (speeds.iter(), speeds.iter());
        let mut contestants = [
            Contestant::new("a", |_| a.next().copied().context("a fourth round")),
            Contestant::new("b", |_| b.next().map(|s| s * 2.0).context("a fourth round")),
        ];
        let effort = Effort { rounds: 3, slice: Duration::ZERO };
        let rows = compare(effort, &mut contestants).unwrap();
        assert_eq!((rows[0].rate, rows[0].range), (500.0, (100.0, 1000.0)));
        assert_eq!((rows[0].ratio, rows[1].ratio), (None, Some(2.0)));
        assert_eq!(rows[1].against.as_deref(), Some("a"));
        assert_eq!(rows[1].nanoseconds(), 1e6);
    }

    #[test]
    fn an_error_names_its_contestant() {
        let mut contestants = [Contestant::new("broken", |_| anyhow::bail!("no drive"))];
        let error = compare(Effort::glance(), &mut contestants).unwrap_err();
        assert_eq!(format!("{error:#}"), "broken: no drive");
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
