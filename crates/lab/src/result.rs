//! Turns the measures of runs into the figures of a claim, seed by seed.

use crate::catalogue::{Claim, Figure, Series, Take, Verdict};
use crate::inside::{Array, Inside, Space, Written};
use crate::measure::Measures;
use crate::text::quantity;
use crate::workload::PHASES_MAX;
use serde::{Deserialize, Serialize};

/// A measure and the unit in which it is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    of: Of,
    /// Number of the measure's own units in one unit of the figure.
    scale: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    Bytes,
    Operations,
    Mean,
    Quantile(u16),
    Amplification,
    Overhead,
    /// Throughput of a part of the measured time.
    Phase(usize),
    /// Space for logs and tables, in percent of all.
    Metadata,
    /// Space for logs, tables and summaries of segments, in percent of all.
    WithSummaries,
    /// Peak memory.
    Memory,
    /// Peak memory without cached content of files.
    OwnMemory,
    /// Throughput of the users' writes, from mount to end.
    Written,
    /// For an array: how long a block waited before it was sent.
    Wait,
    /// For an array: memory of stripe tables for each GiB written.
    Tables,
    /// For an array: maximum memory of the stripe tables.
    TablesMost,
}

impl Metric {
    /// The measure called `name` in `unit`. Units of derived figures (`%`, `x`, `zones`, …) take a
    /// measure in its own unit.
    pub fn named(name: &str, unit: &str) -> Option<Metric> {
        let of = match name {
            "throughput" => Of::Bytes,
            "operations" => Of::Operations,
            "mean" => Of::Mean,
            "p50" => Of::Quantile(500),
            "p95" => Of::Quantile(950),
            "p99" => Of::Quantile(990),
            "p99.9" => Of::Quantile(999),
            "amplification" => Of::Amplification,
            "overhead" => Of::Overhead,
            "metadata" => Of::Metadata,
            "metadata-with-summaries" => Of::WithSummaries,
            "memory" => Of::Memory,
            "own-memory" => Of::OwnMemory,
            "written" => Of::Written,
            "wait" => Of::Wait,
            "tables" => Of::Tables,
            "tables-most" => Of::TablesMost,
            _ => {
                let number: usize = name.strip_prefix("phase-")?.parse().ok()?;
                (1..=PHASES_MAX).contains(&number).then_some(Of::Phase(number - 1))?
            }
        };
        let scale = match (of, unit) {
            (_, "%" | "x" | "zones" | "bytes" | "requests") => 1.0,
            (Of::Bytes | Of::Phase(_) | Of::Written, "GB/s") => 1e9,
            (Of::Bytes | Of::Phase(_) | Of::Written, "MB/s") => 1e6,
            (Of::Bytes | Of::Phase(_), "MiB/s") => 1_048_576.0,
            (Of::Memory | Of::OwnMemory, "MiB") => 1_048_576.0,
            (Of::Operations, "1/s") => 1.0,
            (Of::Operations, "k/s") => 1e3,
            (Of::Tables, "KiB") => 1_024.0,
            (Of::TablesMost, "GiB") => 1_073_741_824.0,
            (Of::Mean | Of::Quantile(_) | Of::Wait, "us") => 1e3,
            (Of::Mean | Of::Quantile(_), "ms") => 1e6,
            (Of::Mean, "s") => 1e9,
            _ => return None,
        };
        Some(Metric { of, scale })
    }

    /// The measure's value.
    pub fn of(self, measures: &Measures) -> f64 {
        let inside = |of: &dyn Fn(&Inside) -> f64| measures.inside.as_ref().map_or(0.0, of);
        let array = |of: &dyn Fn(&Array) -> f64| measures.array.as_ref().map_or(0.0, of);
        let written = |of: &dyn Fn(&Written) -> f64| inside(&|inside| of(&inside.written));
        let space = |of: &dyn Fn(&Space) -> f64| inside(&|inside| of(&inside.space));
        let value = match self.of {
            Of::Bytes => measures.bytes_per_second,
            Of::Operations => measures.ops_per_second,
            Of::Mean => measures.mean_ns,
            Of::Quantile(500) => measures.p50_ns as f64,
            Of::Quantile(950) => measures.p95_ns as f64,
            Of::Quantile(990) => measures.p99_ns as f64,
            Of::Quantile(_) => measures.p999_ns as f64,
            Of::Amplification => match &measures.array {
                Some(array) => array.amplification(),
                None => written(&Written::amplification),
            },
            Of::Wait => array(&|array| array.wait_ns),
            Of::Tables => array(&Array::tables_share) * 1_073_741_824.0,
            Of::TablesMost => array(&|array| array.tables_most as f64),

            Of::Overhead => written(&Written::overhead_percent),
            Of::Phase(at) => measures.phases.get(at).copied().unwrap_or(0.0),
            Of::Metadata => space(&Space::metadata_percent),
            Of::WithSummaries => space(&Space::with_summaries_percent),
            Of::Memory => inside(&|inside| inside.memory() as f64),
            Of::OwnMemory => inside(&|inside| inside.own_memory() as f64),
            Of::Written => inside(&Inside::user_bytes_per_second),
        };
        value / self.scale
    }
}

/// Values of the same quantity, by seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// A value for each seed, or a single value computed from all seeds together.
    pub values: Vec<f64>,
    /// Mean of the values.
    pub mean: f64,
    /// The lowest value of a seed.
    pub low: f64,
    /// The highest value of a seed.
    pub high: f64,
}

impl Sample {
    /// A sample of `values`; `None` if there are none.
    pub fn of(values: Vec<f64>) -> Option<Sample> {
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Sample { values, mean, low, high })
    }

    /// A sample of the value `together`, which was computed from all seeds at once, with the range
    /// of the seeds' own values. The range is infinite if a seed has no value.
    pub fn pooled(together: f64, by_seed: &[Option<f64>]) -> Sample {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in by_seed {
            low = low.min(value.unwrap_or(f64::NEG_INFINITY));
            high = high.max(value.unwrap_or(f64::INFINITY));
        }
        Sample { values: vec![together], mean: together, low, high }
    }

    /// Half the distance from the lowest to the highest, in percent of the mean.
    pub fn spread_percent(&self) -> f64 {
        if self.mean == 0.0 { 0.0 } else { (self.high - self.low) / 2.0 / self.mean.abs() * 100.0 }
    }
}

/// Measures of a series, by point and seed.
#[derive(Clone, Debug)]
pub struct SeriesResult {
    /// The series that was run.
    pub series: Series,
    /// Measures, first by point, then by seed.
    pub measures: Vec<Vec<Measures>>,
}

impl SeriesResult {
    /// A measure of point `index`, by seed.
    pub fn sample(&self, index: usize, metric: Metric) -> Option<Sample> {
        let measures = self.measures.get(index)?;
        Sample::of(measures.iter().map(|m| metric.of(m)).collect())
    }
}

/// A figure with its values.
#[derive(Clone, Debug)]
pub struct FigureResult {
    /// The figure.
    pub figure: Figure,
    /// Our values of the figure.
    pub ours: Sample,
    /// Our value divided by the published one, if the published one is a number above 0.
    pub ratio: Option<f64>,
    /// How our values compare with the published one.
    pub verdict: Verdict,
    /// Processor time, if the figure shows it.
    pub processor: Option<Processor>,
}

/// A claim that was run.
#[derive(Clone, Debug)]
pub struct ClaimResult {
    /// The claim's figures, in order.
    pub figures: Vec<FigureResult>,
    /// The claim's runs, in order.
    pub series: Vec<SeriesResult>,
}

impl ClaimResult {
    /// The figures of `claim`, from its runs.
    ///
    /// # Errors
    /// If a figure cannot be made: which one, and why.
    pub fn new(claim: &Claim, series: Vec<SeriesResult>) -> Result<ClaimResult, String> {
        let samples: Vec<Option<Sample>> =
            claim.figures.iter().map(|figure| compute(figure, &series)).collect();
        let verdicts = claim.verdicts(&samples);
        let figures = claim.figures.iter().zip(samples).zip(verdicts);
        let figures = figures.map(|((figure, ours), verdict)| {
            let ours = ours.ok_or_else(|| format!("figure `{}` has no value", figure.name))?;
            let near = figure.paper.map(|paper| paper.nearest(ours.mean));
            Ok(FigureResult {
                ratio: near.filter(|near| *near > 0.0).map(|near| ours.mean / near),
                verdict,
                processor: figure.processor.then(|| Processor::of(figure, &series)).flatten(),
                figure: figure.clone(),
                ours,
            })
        });
        Ok(ClaimResult { figures: figures.collect::<Result<_, String>>()?, series })
    }

    /// The figures that were published or expected.
    pub fn main(&self) -> impl Iterator<Item = &FigureResult> {
        self.figures.iter().filter(|figure| !figure.figure.is_trial())
    }

    /// The worst verdict of its figures.
    pub fn verdict(&self) -> Verdict {
        let all = self.figures.iter().map(|figure| figure.verdict);
        all.max().unwrap_or(Verdict::None)
    }
}

/// The series called `name`.
fn find<'a>(all: &'a [SeriesResult], name: Option<&String>) -> Option<&'a SeriesResult> {
    let name = name?;
    all.iter().find(|result| result.series.name == *name)
}

/// The index of the point labelled `at`, or of the first point.
fn place(result: &SeriesResult, at: Option<&String>) -> Option<usize> {
    match at {
        None => Some(0),
        Some(at) => result.series.points.iter().position(|point| point.label == *at),
    }
}

/// Computes the figure for each seed.
fn compute(figure: &Figure, all: &[SeriesResult]) -> Option<Sample> {
    let metric = Metric::named(&figure.metric, &figure.unit)?;
    let run = find(all, figure.run.as_ref())?;
    let seeds = run.measures.first()?.len();
    let of = |result: &SeriesResult, seed: usize| -> Option<Vec<f64>> {
        result.measures.iter().map(|by_seed| Some(metric.of(by_seed.get(seed)?))).collect()
    };
    let value = |seed: usize| -> Option<f64> {
        let own = of(run, seed)?;
        let best = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let first = *own.get(place(run, figure.at.as_ref())?)?;
        let other = || -> Option<f64> {
            let per = find(all, figure.per.as_ref())?;
            let of_per = match &figure.per_metric {
                Some(name) => Metric::named(name, &figure.unit)?,
                None => metric,
            };
            let point = per.measures.get(place(per, figure.per_at.as_ref())?)?;
            let other = of_per.of(point.get(seed)?);
            (other > 0.0).then_some(other)
        };
        Some(match figure.take {
            Take::Value => first,
            Take::Share | Take::Ratio | Take::Loss | Take::More => {
                compared(figure.take, first, other()?)
            }
            Take::Best => best,
            Take::Most => {
                let per = find(all, figure.per.as_ref())?;
                let others = of(per, seed)?;
                let points = run.series.points.iter().zip(&own);
                let ratios = points.filter_map(|(point, value)| {
                    let other = *others.get(place(per, Some(&point.label))?)?;
                    (other > 0.0).then_some(value / other)
                });
                Some(ratios.fold(f64::NEG_INFINITY, f64::max)).filter(|most| most.is_finite())?
            }
            Take::Spread => {
                let least = own.iter().copied().fold(f64::INFINITY, f64::min);
                if best > 0.0 { (1.0 - least / best) * 100.0 } else { 0.0 }
            }
            Take::Knee => {
                let reached = own.iter().position(|value| *value >= best * figure.reach / 100.0)?;
                run.series.points.get(reached)?.x
            }
            Take::Line => {
                let (from, to) =
                    (place(run, figure.at.as_ref())?, place(run, figure.per_at.as_ref())?);
                let x = |at: usize| Some(run.series.points.get(at)?.x);
                let slope = (own.get(to)? - first) / (x(to)? - x(from)?);
                first + slope * (figure.each?.0 as f64 - x(from)?)
            }
        })
    };
    Sample::of((0..seeds).map(value).collect::<Option<Vec<f64>>>()?)
}

/// Combines the values of two runs.
fn compared(take: Take, first: f64, other: f64) -> f64 {
    match take {
        Take::Share => first / other * 100.0,
        Take::Loss => (1.0 - first / other) * 100.0,
        Take::More => (first / other - 1.0) * 100.0,
        _ => first / other,
    }
}

/// Processor time of this machine, shown next to a figure of times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Processor {
    /// Nanoseconds for each operation of the run, as the mean over the seeds.
    pub own: f64,
    /// Nanoseconds for each operation of the run with which the figure is compared.
    pub per: Option<f64>,
    /// The figure with processor time added to its times.
    pub together: Option<f64>,
}

impl Processor {
    fn of(figure: &Figure, all: &[SeriesResult]) -> Option<Processor> {
        let metric = Metric::named(&figure.metric, "%")?;
        let pair = |name: &Option<String>, at: &Option<String>| {
            let run = find(all, name.as_ref())?;
            let measures = run.measures.get(place(run, at.as_ref())?)?;
            let taken: Option<Vec<f64>> = measures.iter().map(|m| m.processor_ns).collect();
            let times = Sample::of(measures.iter().map(|m| metric.of(m)).collect())?;
            Some((Sample::of(taken?)?.mean, times.mean))
        };
        let own = pair(&figure.run, &figure.at)?;
        let per = pair(&figure.per, &figure.per_at);
        let together = match (per, figure.take) {
            (Some(per), Take::Share | Take::Ratio | Take::Loss | Take::More) => {
                Some(compared(figure.take, own.0 + own.1, per.0 + per.1))
            }
            _ => None,
        };
        Some(Processor { own: own.0, per: per.map(|per| per.0), together })
    }

    /// The times in words; `unit` is the figure's.
    pub fn describe(&self, unit: &str) -> String {
        let time = |nanoseconds: f64| match nanoseconds {
            ns if ns >= 1e7 => format!("{} ms", quantity(ns / 1e6)),
            ns => format!("{} µs", quantity(ns / 1e3)),
        };
        let per = self.per.map_or(String::new(), |per| format!(" against {}", time(per)));
        let together = self.together.map(|both| format!("; together {} {unit}", quantity(both)));
        format!("{}{per}{}", time(self.own), together.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Catalogue, Size};

    fn measures(bytes_per_second: f64) -> Measures {
        Measures {
            ops: 1,
            bytes: 1,
            nanoseconds: 1,
            bytes_per_second,
            ops_per_second: 1.0,
            mean_ns: 2_500.0,
            p50_ns: 1,
            p95_ns: 2,
            p99_ns: 3,
            p999_ns: 4_000,
            max_ns: 5,
            curve_ns: Vec::new(),
            phases: Vec::new(),
            inside: None,
            array: None,
            processor_ns: None,
        }
    }

    /// A series of the catalogue with as many points as `values`. Its made-up measures are for two
    /// seeds, and those of the second are twice those of the first.
    fn series(name: &str, values: &[f64]) -> SeriesResult {
        let catalogue = Catalogue::built_in().unwrap();
        let claim = catalogue.claim("Z-raw-peak").unwrap();
        let mut series = catalogue.trials(claim, Size::Scaled).unwrap().swap_remove(0);
        let template = series.points[0].clone();
        series.name = name.to_owned();
        series.points = (1..=values.len())
            .map(|at| crate::catalogue::SeriesPoint { x: at as f64 * 10.0, ..template.clone() })
            .collect();
        let by_seed = |value: &f64| vec![measures(*value), measures(*value * 2.0)];
        SeriesResult { series, measures: values.iter().map(by_seed).collect() }
    }

    fn figure(text: &str) -> Figure {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn figures_are_made_as_they_say() {
        let all = [series("a", &[3e9]), series("b", &[4e9]), series("s", &[1e9, 3e9, 3.9e9, 4e9])];
        let rest = "name = 'f'\nrun = 's'\n";
        for (text, first) in [
            ("name = 'f'\nunit = 'GB/s'\nrun = 'a'", 3.0),
            ("name = 'f'\nunit = '%'\nrun = 'a'\nper = 'b'\ntake = 'share'", 75.0),
            ("name = 'f'\nunit = 'x'\nrun = 'b'\nper = 'a'\ntake = 'ratio'", 4.0 / 3.0),
            ("name = 'f'\nunit = '%'\nrun = 'a'\nper = 'b'\ntake = 'loss'", 25.0),
            ("name = 'f'\nunit = '%'\nrun = 'b'\nper = 'a'\ntake = 'more'", 100.0 / 3.0),
            (&format!("{rest}unit = 'zones'\ntake = 'knee'"), 30.0),
            (&format!("{rest}unit = 'zones'\ntake = 'knee'\nreach = 70"), 20.0),
            (&format!("{rest}unit = '%'\ntake = 'spread'"), 75.0),
            (&format!("{rest}unit = 'MB/s'\ntake = 'best'"), 4000.0),
            (&format!("{rest}unit = 'x'\nper = 'a'\ntake = 'most'"), 4.0 / 3.0),
        ] {
            let sample = compute(&figure(text), &all).unwrap();
            assert!((sample.values[0] - first).abs() < 1e-9, "{text}: {sample:?}");
            assert_eq!(sample.values.len(), 2);
        }
        let late = "name = 'f'\nunit = 'us'\nrun = 'a'\nmetric = 'p99.9'";
        assert_eq!(compute(&figure(late), &all).unwrap().mean, 4.0);
        assert!(compute(&figure("name = 'f'\nunit = '%'\nrun = 'none'"), &all).is_none());
    }

    #[test]
    fn a_sample_knows_its_spread() {
        let sample = Sample::of(vec![90.0, 100.0, 110.0]).unwrap();
        assert_eq!((sample.mean, sample.low, sample.high), (100.0, 90.0, 110.0));
        assert_eq!(sample.spread_percent(), 10.0);
        assert!(Sample::of(Vec::new()).is_none());
    }

    #[test]
    fn metrics_go_with_their_units() {
        for (name, unit) in
            [("throughput", "GB/s"), ("p95", "ms"), ("operations", "k/s"), ("phase-3", "MB/s")]
        {
            assert!(Metric::named(name, unit).is_some(), "{name} {unit}");
        }
        for (name, unit) in
            [("throughput", "us"), ("mean", "GB/s"), ("speed", "GB/s"), ("phase-10", "GB/s")]
        {
            assert!(Metric::named(name, unit).is_none(), "{name} {unit}");
        }
    }
}
