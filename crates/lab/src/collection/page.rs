//! The pictures and tables of `docs/research/collection.md`.

use super::{Limit, Run};
use crate::plot::{Axis, Plot, Point};
use crate::result::Sample;
use std::fmt::Write as _;

/// A plot and the name of its file.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The name without a directory.
    pub file: String,
    /// The plot.
    pub plot: Plot,
}

/// Runs of one scheme with one setting.
struct Group<'a> {
    scheme: &'a str,
    setting: &'a str,
    runs: Vec<&'a Run>,
}

/// The mean, and the range if it shows with two decimals.
fn range(sample: &Sample) -> String {
    let one = |value: f64| format!("{value:.2}");
    match one(sample.low) == one(sample.high) {
        true => one(sample.mean),
        false => {
            format!("{} ({} to {})", one(sample.mean), one(sample.low), one(sample.high))
        }
    }
}

impl Group<'_> {
    fn sample(&self, value: impl Fn(&Run) -> f64) -> Sample {
        Sample::of(self.runs.iter().map(|run| value(run)).collect()).unwrap_or_default()
    }

    /// Number of runs that ran out of space.
    fn failed(&self) -> usize {
        self.runs.iter().filter(|run| !run.stopped.is_empty()).count()
    }
}

/// The live shares of all runs, ascending.
fn shares(runs: &[Run]) -> Vec<f64> {
    let mut shares: Vec<f64> = runs.iter().map(|run| run.live).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    shares
}

/// The runs of a live share in groups, in the order of their first runs.
fn groups(runs: &[Run], live: f64) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for run in runs.iter().filter(|run| run.live == live) {
        let of = groups.iter_mut().find(|g| g.scheme == run.scheme && g.setting == run.setting);
        match of {
            Some(group) => group.runs.push(run),
            None => {
                groups.push(Group { scheme: &run.scheme, setting: &run.setting, runs: vec![run] })
            }
        }
    }
    groups
}

/// Schemes, in the order of their first runs.
fn schemes(runs: &[Run]) -> Vec<&str> {
    let mut schemes: Vec<&str> = Vec::new();
    for run in runs {
        if !schemes.contains(&run.scheme.as_str()) {
            schemes.push(&run.scheme);
        }
    }
    schemes
}

/// The curve of a limit per byte that the user writes, over space as a share of the nominal drive.
fn curve(limits: &[Limit], of: impl Fn(&Limit) -> f64) -> Vec<(f64, f64)> {
    let each = limits
        .iter()
        .map(|limit| (limit.space as f64 / limit.nominal as f64, of(limit) / limit.written as f64));
    each.collect()
}

/// One picture for each live share: bytes copied over peak space.
pub fn pictures(runs: &[Run], limits: &[Limit]) -> Vec<Picture> {
    let picture = |live: f64| {
        let percent = (live * 100.0).round();
        let x = Axis::linear("peak space, share of the nominal drive");
        let y = Axis::linear("blob bytes copied for each byte written").from_zero();
        let title = format!("{percent:.0} % live");
        let mut plot = Plot::new(title, x, y).sized(860, 480);
        let all = groups(runs, live);
        for scheme in schemes(runs) {
            let whole = all.iter().filter(|group| group.scheme == scheme && group.failed() == 0);
            let mut points: Vec<Point> = whole
                .map(|group| {
                    let (x, y) = (group.sample(Run::peak), group.sample(Run::copied_share));
                    Point::new(x.mean, y.mean).range(y.low, y.high).note(group.setting)
                })
                .collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            if !points.is_empty() {
                plot = plot.line(scheme, points);
            }
        }
        // Runs use at most twice the nominal drive.
        let shown = |limit: &Limit| limit.live == live && limit.space <= 2 * limit.nominal;
        let of: Vec<Limit> = limits.iter().copied().filter(shown).collect();
        if !of.is_empty() {
            plot = plot.line("clairvoyant", curve(&of, |limit| limit.upper as f64));
            plot = plot.line("bound", curve(&of, |limit| limit.lower));
        }
        Picture { file: format!("live-{percent:.0}.svg"), plot }
    };
    shares(runs).into_iter().map(picture).collect()
}

/// The cell for runs of one scheme and setting: bytes copied by each collector and peak space, or
/// when the runs ran out of space.
fn cell(group: &Group<'_>) -> String {
    let over =
        |value: fn(&Run) -> u64| group.sample(|run| value(run) as f64 / run.written() as f64).mean;
    let count = group.runs.len();
    let of =
        |some: usize| if some == count { String::new() } else { format!(" in {some} of {count}") };
    match group.failed() {
        0 => {
            let peak = group.sample(Run::peak).mean;
            format!("{:.2}+{:.2} at {peak:.2}", over(Run::by_rocksdb), over(Run::by_zones))
        }
        some => {
            let turns = group.sample(|run| run.user_bytes as f64 / run.nominal as f64).mean;
            format!("full after {turns:.2}{}", of(some))
        }
    }
}

/// The table of all runs, a line for each scheme and setting, a column for each live share.
pub fn runs_table(runs: &[Run]) -> String {
    let shares = shares(runs);
    let mut text = String::from("| scheme | setting |");
    for live in &shares {
        let _ = write!(text, " {:.0} % live |", live * 100.0);
    }
    let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(shares.len()));
    let all: Vec<Vec<Group<'_>>> = shares.iter().map(|live| groups(runs, *live)).collect();
    let mut known: Vec<(&str, &str)> = Vec::new();
    for group in all.iter().flatten() {
        let key = (group.scheme, group.setting);
        if !known.contains(&key) {
            known.push(key);
        }
    }
    for scheme in schemes(runs) {
        for (_, setting) in known.iter().filter(|(of, _)| *of == scheme) {
            let _ = write!(text, "| {scheme} | {setting} |");
            for groups in &all {
                let own = groups.iter().find(|g| (g.scheme, g.setting) == (scheme, *setting));
                let _ = write!(text, " {} |", own.map_or("-".into(), cell));
            }
            text.push('\n');
        }
    }
    text
}

/// The comparison at equal peak space: the least that each scheme copied within that space, in any
/// setting, next to the bound and the clairvoyant schedule.
pub fn comparison(runs: &[Run], limits: &[Limit], spaces: &[f64]) -> String {
    // A scheme whose every setting ran out of space has no column.
    let mut names = schemes(runs);
    let through = |name: &&str| {
        let all = shares(runs).into_iter().flat_map(|live| groups(runs, live));
        all.into_iter().any(|group| group.scheme == *name && group.failed() == 0)
    };
    names.retain(through);
    let mut text = String::from("| live | peak space up to |");
    for name in &names {
        let _ = write!(text, " {name} |");
    }
    text.push_str(" clairvoyant | bound |\n|---|---|");
    text.push_str(&"---|".repeat(names.len() + 2));
    text.push('\n');
    for live in shares(runs) {
        let all = groups(runs, live);
        for space in spaces {
            let _ = write!(text, "| {:.0} % | {space:.2} |", live * 100.0);
            for name in &names {
                let fits = all.iter().filter(|group| {
                    group.scheme == *name
                        && group.failed() == 0
                        && group.sample(Run::peak).mean <= space + 0.005
                });
                let copied = fits.map(|group| group.sample(Run::copied_share));
                let least = copied.min_by(|a, b| a.mean.total_cmp(&b.mean));
                let _ = write!(text, " {} |", least.map_or("-".into(), |least| range(&least)));
            }
            let at = limits.iter().filter(|limit| {
                limit.live == live && limit.space as f64 <= space * limit.nominal as f64 + 1.0
            });
            // A schedule within less space is also possible within more, and a bound at more space
            // also holds for less.
            let upper = at.map(|limit| limit.upper as f64 / limit.written as f64);
            let upper = upper.reduce(f64::min);
            let at = limits.iter().filter(|limit| {
                limit.live == live && limit.space as f64 >= space * limit.nominal as f64 - 1.0
            });
            let lower = at.map(|limit| limit.lower / limit.written as f64).reduce(f64::max);
            for value in [upper, lower] {
                let value = value.map(|value| format!("{value:.2}"));
                let _ = write!(text, " {} |", value.unwrap_or("-".into()));
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(scheme: &str, setting: &str, peak: u64, copied: u64, stopped: &str) -> Run {
        Run {
            scheme: scheme.into(),
            setting: setting.into(),
            live: 0.5,
            nominal: 1000,
            live_bytes: 500,
            user_bytes: 500,
            zone_bytes: 10,
            peak_zones: peak,
            relocated: copied,
            relocated_load: 0,
            copied_blobs: 0,
            copied_blobs_load: 0,
            stopped: stopped.into(),
        }
    }

    #[test]
    fn the_least_within_a_space_is_compared() {
        let runs = [
            run("a", "0.5", 80, 3000, ""),
            run("a", "0.5", 80, 1000, ""),
            run("a", "0.25", 95, 500, ""),
            run("b", "", 90, 700, ""),
            run("b", "small", 60, 100, "no space"),
        ];
        let (live, nominal, written) = (0.5, 1000, 1000);
        let limit = |space, lower, upper| Limit { live, nominal, written, space, lower, upper };
        let limits = [limit(700, 300.0, 400), limit(900, 100.0, 200)];
        let table = comparison(&runs, &limits, &[0.8, 1.0]);
        assert!(
            table.contains("| 50 % | 0.80 | 2.00 (1.00 to 3.00) | - | 0.40 | 0.10 |"),
            "{table}"
        );
        assert!(table.contains("| 50 % | 1.00 | 0.50 | 0.70 | 0.20 | - |"), "{table}");
        let all = runs_table(&runs);
        assert!(all.contains("| a | 0.5 | 2.00+0.00 at 0.80 |"), "{all}");
        assert!(all.contains("| b | small | full after 0.50 |"), "{all}");
        let pictures = pictures(&runs, &limits);
        assert_eq!((pictures.len(), pictures[0].file.as_str()), (1, "live-50.svg"));
        let names: Vec<&str> = pictures[0].plot.series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "clairvoyant", "bound"]);
        assert_eq!(pictures[0].plot.series[1].points.len(), 1);
    }
}
