//! Chooses the plots of a result: curves where something was varied, bars where there are many
//! figures of one unit, and one that compares all figures with the published ones.

use crate::catalogue::{Claim, Figure, Paper, Take};
use crate::plot::{Axis, Form, Mark, Plot, Point, Series};
use crate::result::{ClaimResult, FigureResult, Metric, SeriesResult};
use crate::runner::Outcome;
use crate::text;

/// Figures of one unit are drawn as bars if there are at least this many.
const BARS: usize = 5;

/// Maximum number of figures in one plot of ratios.
const SIDE_BY_SIDE: usize = 24;

/// Plots our figures over the published ones, for all figures published as a number above 0, on as
/// many plots as needed to keep them readable.
pub fn ratios(outcome: &Outcome<'_>) -> Vec<Plot> {
    let mut all = Vec::new();
    for finished in &outcome.claims {
        for figure in finished.result.iter().flat_map(|result| &result.figures) {
            let Some(paper) = figure.figure.paper else { continue };
            // The axis is logarithmic, so that equal factors above and below 1 are equally far from
            // it. Values that are not above 0 have no place on it.
            if figure.ratio.is_none_or(|ratio| ratio <= 0.0) {
                continue;
            }
            let over = |value: f64| value / paper.nearest(value).max(f64::MIN_POSITIVE);
            let ours = &figure.ours;
            let name = format!("{}: {}", finished.claim.id, short(&figure.figure.name));
            all.push((name, over(ours.mean), over(ours.low), over(ours.high)));
        }
    }
    let plot = |(at, some): (usize, &[(String, f64, f64, f64)])| {
        let names = some.iter().map(|figure| figure.0.clone());
        let points = some.iter().enumerate().map(|(place, (_, mean, low, high))| {
            Point::new(place as f64, *mean).range(*low, *high)
        });
        let title = if at == 0 { "Ours over published" } else { "Ours over published, more" };
        Plot::new(title, Axis::names("", names), Axis::log("ours / published"))
            .sized(1040, 600)
            .scatter("figures, with the range of the seeds", points)
            .level("as published", 1.0)
    };
    all.chunks(SIDE_BY_SIDE).enumerate().map(plot).collect()
}

/// Maximum number of characters of a figure's name: together with the claim before it, such a name
/// fits below an axis at an angle.
const NAME: usize = 40;

/// A name of at most [`NAME`] characters.
fn short(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let cut: String = name.chars().take(NAME - 1).collect();
    format!("{}…", cut.trim_end_matches([' ', ',']))
}

/// The plots of a claim, without trials.
pub fn of_claim(claim: &Claim, result: &ClaimResult) -> Vec<Plot> {
    let main = |series: &&SeriesResult| !is_trial(claim, series);
    let series: Vec<&SeriesResult> = result.series.iter().filter(main).collect();
    let mut plots = by_field(claim, &series, "");
    plots.extend(bars(claim, result));
    plots
}

/// The plots of trials, each together with the claim's own first series.
pub fn of_trials(claim: &Claim, result: &ClaimResult) -> Vec<Plot> {
    let trials: Vec<&SeriesResult> =
        result.series.iter().filter(|series| is_trial(claim, series)).collect();
    let field = |series: &SeriesResult| series.series.over.clone();
    let mut shown: Vec<&SeriesResult> = Vec::new();
    for trial in &trials {
        let own = result.series.iter().find(|own| {
            !is_trial(claim, own) && own.series.over.is_some() && field(own) == field(trial)
        });
        if let Some(own) = own
            && !shown.iter().any(|known| known.series.name == own.series.name)
        {
            shown.push(own);
        }
    }
    shown.extend(trials);
    by_field(claim, &shown, ", what was tried")
}

/// True if `series` is used only by trials: figures that show what the others depend on.
pub(super) fn is_trial(claim: &Claim, series: &SeriesResult) -> bool {
    let name = Some(&series.series.name);
    let uses = |figure: &&Figure| figure.run.as_ref() == name || figure.per.as_ref() == name;
    let mut users = claim.figures.iter().filter(uses).peekable();
    users.peek().is_some() && users.all(Figure::is_trial)
}

/// One plot for each field that was varied.
fn by_field(claim: &Claim, all: &[&SeriesResult], more: &str) -> Vec<Plot> {
    let mut fields: Vec<&str> = Vec::new();
    for over in all.iter().filter_map(|result| result.series.over.as_deref()) {
        if !fields.contains(&over) {
            fields.push(over);
        }
    }
    fields.into_iter().filter_map(|field| curves(claim, all, field, more)).collect()
}

/// The measure that is drawn, and its unit.
fn measure(claim: &Claim) -> Option<(Metric, String)> {
    let figures = &claim.figures;
    let name = figures.first().map_or("throughput", |figure| figure.metric.as_str());
    let plain = |figure: &&Figure| figure.take == Take::Value && figure.metric == name;
    let own = figures.iter().find(plain).map(|figure| figure.unit.as_str());
    let unit = own.unwrap_or(match name {
        "throughput" => "MB/s",
        "operations" => "k/s",
        _ => "us",
    });
    Some((Metric::named(name, unit)?, unit.to_owned()))
}

fn curves(claim: &Claim, all: &[&SeriesResult], field: &str, more: &str) -> Option<Plot> {
    let (metric, unit) = measure(claim)?;
    let drawn = |result: &&SeriesResult| result.series.over.as_deref() == Some(field);
    let series: Vec<&SeriesResult> = all.iter().copied().filter(drawn).collect();
    let all = || series.iter().flat_map(|result| result.series.points.iter().map(|point| point.x));
    let (low, high) =
        all().fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
    let label = match field {
        "size" => "request",
        "zones" => "zones in use",
        "stride" => "distance of the zones",
        field => field,
    };
    let x = if low > 0.0 && high / low > 8.0 { Axis::log2(label) } else { Axis::linear(label) };
    let x = if field == "size" { x.bytes() } else { x };
    let y = Axis::linear(text::unit(&unit)).from_zero();
    let mut plot = Plot::new(format!("{}: by {label}{more}", claim.id), x, y).sized(820, 430);
    for result in &series {
        let points = result.series.points.iter().enumerate().filter_map(|(at, point)| {
            let sample = result.sample(at, metric)?;
            Some(Point::new(point.x, sample.mean).range(sample.low, sample.high))
        });
        plot = plot.line(result.series.name.clone(), points);
    }
    let (mut crosses, mut uprights) = (Vec::new(), Vec::new());
    for mark in claim.figures.iter().flat_map(|figure| marks(figure, &series, metric)) {
        match mark {
            Mark::Crosses(_, points) => crosses.extend(points),
            Mark::Upright(_, at) if uprights.contains(&at) => {}
            Mark::Upright(_, at) => uprights.push(at),
            mark => plot = plot.mark(mark),
        }
    }
    for (index, at) in uprights.into_iter().enumerate() {
        // All vertical lines share one entry in the legend.
        let name = if index == 0 { "published: saturates" } else { "" };
        plot = plot.mark(Mark::Upright(name.to_owned(), at));
    }
    if !crosses.is_empty() {
        plot = plot.mark(Mark::Crosses("published".to_owned(), crosses));
    }
    Some(plot)
}

/// The place of a published figure among the curves. A share or loss applies to our own value, as
/// the published share applied to the publisher's.
fn marks(figure: &Figure, series: &[&SeriesResult], metric: Metric) -> Vec<Mark> {
    let find = |name: &Option<String>| {
        series.iter().find(|result| Some(&result.series.name) == name.as_ref())
    };
    let place = |result: &SeriesResult, at: &Option<String>| {
        result.series.points.iter().position(|point| Some(&point.label) == at.as_ref())
    };
    let own = || -> Option<f64> {
        let result = find(&figure.per)?;
        Some(result.sample(place(result, &figure.per_at)?, metric)?.mean)
    };
    let (Some(paper), Some(result)) = (figure.paper, find(&figure.run)) else { return Vec::new() };
    let name = format!("published: {}", short(&figure.name));
    let numbers = match paper {
        Paper::One(number) => vec![number],
        Paper::Range(low, high) => vec![low, high],
    };
    let height = |number: f64| match figure.take {
        Take::Value => Some(number),
        Take::Share => Some(own()? * number / 100.0),
        Take::Ratio => Some(own()? * number),
        Take::Loss => Some(own()? * (1.0 - number / 100.0)),
        Take::More => Some(own()? * (1.0 + number / 100.0)),
        Take::Knee | Take::Spread | Take::Best | Take::Line | Take::Most => None,
    };
    match figure.take {
        Take::Knee => {
            numbers.into_iter().map(|number| Mark::Upright(String::new(), number)).collect()
        }
        Take::Best => numbers.into_iter().map(|number| Mark::Level(name.clone(), number)).collect(),
        _ => {
            let Some(at) = place(result, &figure.at) else { return Vec::new() };
            let x = result.series.points[at].x;
            let points = numbers.into_iter().filter_map(|number| {
                Some(Point::new(x, height(number)?).note(figure.name.clone()))
            });
            vec![Mark::Crosses(name, points.collect())]
        }
    }
}

fn bars(claim: &Claim, result: &ClaimResult) -> Option<Plot> {
    let unit = result.figures.first()?.figure.unit.clone();
    let alike =
        |figure: &&FigureResult| figure.figure.unit == unit && figure.figure.paper.is_some();
    let alike: Vec<&FigureResult> = result.figures.iter().filter(alike).collect();
    if alike.len() < BARS {
        return None;
    }
    let names = alike.iter().map(|figure| short(&figure.figure.name));
    let y = Axis::linear(text::unit(&unit)).from_zero();
    let mut plot = Plot::new(format!("{}: figures", claim.id), Axis::names("", names), y);
    plot = plot.sized(1040, 560);
    let ours = alike.iter().enumerate().map(|(at, figure)| {
        Point::new(at as f64, figure.ours.mean).range(figure.ours.low, figure.ours.high)
    });
    let published =
        alike.iter().enumerate().filter_map(|(at, figure)| match figure.figure.paper? {
            Paper::One(number) => Some(Point::new(at as f64, number)),
            Paper::Range(low, high) => {
                Some(Point::new(at as f64, (low + high) / 2.0).range(low, high))
            }
        });
    let series = |name: &str, points| Series { name: name.to_owned(), form: Form::Bars, points };
    plot.series.push(series("ours", ours.collect()));
    plot.series.push(series("published", published.collect()));
    Some(plot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    /// Maximum number of characters that fit below an axis at an angle.
    const LONGEST: usize = 52;

    #[test]
    fn the_longest_oblique_name_is_within_its_plot() {
        let ids = Catalogue::built_in().unwrap().claims.into_iter().map(|claim| claim.id);
        let longest = ids.map(|id| id.chars().count()).max().unwrap();
        assert!(longest + 2 + NAME <= LONGEST, "an ID of {longest} characters");
        let names: Vec<String> = (0..SIDE_BY_SIDE).map(|at| format!("{at:0>LONGEST$}")).collect();
        let svg = Plot::new("t", Axis::names("", names), Axis::log("y"))
            .sized(1040, 600)
            .scatter("s", [(0.0, 1.0)])
            .svg();
        let text = svg.lines().find(|line| line.contains("rotate(-35")).unwrap();
        let place = |name: &str| -> f64 {
            let rest = text.split_once(&format!(" {name}=\"")).unwrap().1;
            rest.split('"').next().unwrap().parse().unwrap()
        };
        // The text runs to the left and down, at 6.5 pixels per character.
        let (wide, angle) = (LONGEST as f64 * 6.5, 35f64.to_radians());
        assert!(place("x") - wide * angle.cos() >= 0.0, "{text}");
        assert!(place("y") + wide * angle.sin() <= 600.0, "{text}");
    }
}
