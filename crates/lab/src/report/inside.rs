//! Plots of the internal measures of a file system's runs: runs side by side, latency curves,
//! active zones over time.

use super::plots::is_trial;
use crate::catalogue::Claim;
use crate::measure::{CURVE, Measures};
use crate::plot::{Axis, Plot, Point};
use crate::result::{ClaimResult, Metric, SeriesResult};

/// Plots single runs side by side; `None` if there are too few. Series are left out.
pub fn by_run(claim: &Claim, result: &ClaimResult) -> Option<Plot> {
    let single: Vec<&SeriesResult> =
        result.series.iter().filter(|series| series.series.over.is_none()).collect();
    let inside = single.iter().any(|series| first(series).is_some_and(|m| m.inside.is_some()));
    if single.len() < 2 || !inside {
        return None;
    }
    let metric = Metric::named("throughput", "MB/s")?;
    let points = single.iter().enumerate().filter_map(|(at, series)| {
        let sample = series.sample(0, metric)?;
        Some(Point::new(at as f64, sample.mean).range(sample.low, sample.high))
    });
    let names = single.iter().map(|series| series.series.name.clone());
    let y = Axis::linear("MB/s").from_zero();
    let plot = Plot::new(format!("{}: throughput by run", claim.id), Axis::names("", names), y);
    Some(plot.sized(1040, 430).bars("mean of the seeds", points))
}

fn first(series: &SeriesResult) -> Option<&Measures> {
    series.measures.first()?.first()
}

/// The runs of a file system behind the claim's figures, without trials, with the measures of their
/// first seed.
fn main_runs<'a>(
    claim: &'a Claim,
    result: &'a ClaimResult,
) -> impl Iterator<Item = (&'a str, &'a Measures)> {
    let tried = |name: &str| {
        let series = result.series.iter().find(|series| series.series.name == name);
        series.is_some_and(|series| is_trial(claim, series))
    };
    runs(result).filter(move |(name, _)| !tried(name))
}

/// The runs of a file system, with the measures of their first seed.
fn runs(result: &ClaimResult) -> impl Iterator<Item = (&str, &Measures)> {
    let single = result.series.iter().filter(|series| series.series.over.is_none());
    single.filter_map(|series| {
        let measures = first(series).filter(|measures| measures.inside.is_some())?;
        Some((series.series.name.as_str(), measures))
    })
}

/// Latency by percentile.
pub fn latencies(claim: &Claim, result: &ClaimResult) -> Option<Plot> {
    let names = CURVE.iter().map(|percent| format!("{percent}"));
    let x = Axis::names("percentile", names);
    let mut plot = Plot::new(format!("{}: latency", claim.id), x, Axis::log("µs"));
    for (name, measures) in main_runs(claim, result) {
        let points = measures.curve_ns.iter().enumerate();
        plot = plot.line(name, points.map(|(at, ns)| (at as f64, *ns as f64 / 1e3)));
    }
    (!plot.series.is_empty()).then(|| plot.sized(1040, 470))
}

/// Active zones over time, by run; for the first run also by stream.
pub fn zones(claim: &Claim, result: &ClaimResult) -> Vec<Plot> {
    let axes = || (Axis::linear("s"), Axis::linear("zones").from_zero());
    let (x, y) = axes();
    let mut by_run = Plot::new(format!("{}: active zones over time", claim.id), x, y);
    let seconds = |ns: u64| ns as f64 / 1e9;
    for (name, measures) in main_runs(claim, result) {
        let Some(inside) = &measures.inside else { continue };
        let points = inside.moments.iter().map(|moment| {
            let all: u32 = moment.streams.iter().sum();
            (seconds(moment.at_ns), f64::from(all))
        });
        by_run = by_run.line(name, points);
    }
    let Some((name, measures)) = runs(result).next() else { return Vec::new() };
    let (x, y) = axes();
    let title = format!("{}: zones written in turn, by stream, {name}", claim.id);
    let mut by_stream = Plot::new(title, x, y);
    for (stream, name) in measures.inside.iter().flat_map(|i| i.streams.iter().enumerate()) {
        let Some(inside) = &measures.inside else { continue };
        let busy = |at: &crate::inside::Moment| at.busy.get(stream).copied().unwrap_or(0);
        let points = inside.moments.iter().map(|at| (seconds(at.at_ns), f64::from(busy(at))));
        by_stream = by_stream.line(name.clone(), points);
    }
    vec![by_run.sized(1040, 430), by_stream.sized(1040, 430)]
}

/// The bytes that runs wrote, by kind: name, amplification and shares in percent.
pub fn written(result: &ClaimResult) -> Vec<(String, f64, String)> {
    let line = |(name, measures): (&str, &Measures)| {
        let written = &measures.inside.as_ref()?.written;
        let share = |bytes: u64| bytes as f64 / written.total().max(1) as f64 * 100.0;
        let kinds = written.kinds().map(|(kind, bytes)| format!("{kind} {:.2} %", share(bytes)));
        let text = kinds.collect::<Vec<_>>().join(", ");
        Some((name.to_owned(), written.amplification(), text))
    };
    runs(result).filter_map(line).collect()
}
