//! A claim: who says what, the figures, the scenarios that try it, what was expected.

use super::{Point, Verdict};
use crate::result::Metric;
use anyhow::{Context as _, Result, ensure};
use furrow_emu::timing::quantity::Bytes;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// Most words of a cause.
const CAUSE_WORDS: usize = 15;

/// A claim, as the data file says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What it is called by.
    pub id: String,
    /// Where it comes from: a name of the sources.
    pub source: String,
    /// What it says, in a line.
    pub what: String,
    /// Its figures.
    pub figures: Vec<Figure>,
    /// What must be built before it can be run; nothing if it can.
    #[serde(default)]
    pub needs: Option<String>,
    /// Its runs replay a trace, which the command line has to name.
    #[serde(default)]
    pub replays: bool,
    /// Its runs replay these recorded runs, which must be in the directory that the command line
    /// names.
    #[serde(default)]
    pub recorded: Vec<String>,
    /// What its runs have in common.
    #[serde(default)]
    pub setup: Option<Setup>,
    /// What was expected before the first run, and why.
    #[serde(default)]
    pub forecast: Option<String>,
    /// Where it misses: why, and what showed it.
    #[serde(default)]
    pub explanation: Option<String>,
    /// Where it is not reproduced: the cause in a line, 15 words at most.
    #[serde(default)]
    pub cause: Option<String>,
    /// The figures that moved when the cause was changed; none if no experiment was found.
    #[serde(default)]
    pub moved: Vec<String>,
    /// Why it cannot be compared with what was published, if it was tried with something else.
    #[serde(default)]
    pub incomparable: Option<String>,
    /// By how many percent its figures may differ from the stored ones; nothing if that is not
    /// checked with each change.
    #[serde(default)]
    pub gate: Option<f64>,
    /// What is run.
    #[serde(default)]
    pub runs: Vec<Trial>,
}

/// What the runs of a claim have in common, by name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// The drive.
    pub device: String,
    /// The engine.
    pub profile: String,
    /// The host.
    pub host: String,
    /// The workload.
    pub workload: String,
}

/// One run, or one for each value of something.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// What figures call it by; the legend of a plot.
    pub name: String,
    /// Fields of the workload that differ.
    #[serde(default)]
    pub with: Table,
    /// Fields of the array that differ.
    #[serde(default)]
    pub array: Table,
    /// The field of the workload, or with `array.` before it of the array, that takes the `values`
    /// in turn.
    #[serde(default)]
    pub over: Option<String>,
    /// See `over`.
    #[serde(default)]
    pub values: Vec<Value>,
    /// Another drive than the claim's.
    #[serde(default)]
    pub device: Option<String>,
    /// Options to add to the drive's spec.
    #[serde(default)]
    pub device_with: Option<String>,
    /// Another profile than the claim's.
    #[serde(default)]
    pub profile: Option<String>,
    /// Another host than the claim's.
    #[serde(default)]
    pub host: Option<String>,
    /// Another workload than the claim's.
    #[serde(default)]
    pub workload: Option<String>,
}

/// A trial with nothing left to look up.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is called by.
    pub name: String,
    /// The field that changes from point to point, if one does.
    pub over: Option<String>,
    /// Its points, one if nothing changes.
    pub points: Vec<SeriesPoint>,
}

/// A point of a series.
#[derive(Clone, Debug)]
pub struct SeriesPoint {
    /// The changing field's value, as a number.
    pub x: f64,
    /// And as it was written.
    pub label: String,
    /// The scenario.
    pub point: Point,
}

/// How a published number is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// It is this, more or less.
    #[default]
    About,
    /// It is this or more.
    AtLeast,
    /// It is this or less.
    AtMost,
}

/// What was published: a number, or the ends of a range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paper {
    /// A number.
    One(f64),
    /// From, to.
    Range(f64, f64),
}

impl Paper {
    /// The number, or the end of the range that is nearest to `value`.
    pub fn nearest(self, value: f64) -> f64 {
        match self {
            Paper::One(number) => number,
            Paper::Range(low, high) => value.max(low).min(high),
        }
    }
}

/// What a figure is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Take {
    /// The measure of `run`.
    #[default]
    Value,
    /// That of `run` in percent of that of `per`.
    Share,
    /// That of `run` over that of `per`.
    Ratio,
    /// By how many percent that of `run` is below that of `per`.
    Loss,
    /// By how many percent that of `run` is above that of `per`.
    More,
    /// The first value of series `run` at which `reach` percent of its best is reached.
    Knee,
    /// By how many percent the lowest of series `run` is below the highest.
    Spread,
    /// The highest of series `run`.
    Best,
    /// Where the line through two points of series `run`, `at` and `per_at`, is at `each`.
    Line,
}

/// One number of a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// Its unit: `GB/s`, `MiB/s`, `us`, `%`, `x`, `zones`, …
    pub unit: String,
    /// What was published; nothing for a figure of our own, which shows what moves it.
    #[serde(default)]
    pub paper: Option<Paper>,
    /// How that is meant.
    #[serde(default)]
    pub relation: Relation,
    /// By how many percent ours may be off and still be the same.
    #[serde(default = "ten")]
    pub tolerance: f64,
    /// The drive's model was fitted to it, so that it shows nothing.
    #[serde(default)]
    pub fitted: bool,
    /// What was expected before the first run.
    #[serde(default)]
    pub forecast: Option<f64>,
    /// Part of the published statement that has no number of its own, or how it was read.
    #[serde(default)]
    pub note: Option<String>,
    /// How it is made of the runs.
    #[serde(default)]
    pub take: Take,
    /// Which measure: `throughput`, `operations`, `mean`, `p50`, `p95`, `p99`, `p99.9`,
    /// `amplification`, `overhead`.
    #[serde(default = "throughput")]
    pub metric: String,
    /// Of which run or series.
    #[serde(default)]
    pub run: Option<String>,
    /// Of that series, at which value.
    #[serde(default)]
    pub at: Option<String>,
    /// Compared with which run or series.
    #[serde(default)]
    pub per: Option<String>,
    /// Of that series, at which value.
    #[serde(default)]
    pub per_at: Option<String>,
    /// For [`Take::Line`]: where on the axis.
    #[serde(default)]
    pub each: Option<Bytes>,
    /// Show beside it what this machine's processor took for each operation.
    #[serde(default)]
    pub processor: bool,
    /// For [`Take::Knee`]: percent of the best.
    #[serde(default = "ninety_five")]
    pub reach: f64,
}

fn ten() -> f64 {
    10.0
}

fn ninety_five() -> f64 {
    95.0
}

fn throughput() -> String {
    "throughput".to_owned()
}

impl Figure {
    /// True if it shows what moves the others: nothing was published of it, or expected.
    pub fn is_trial(&self) -> bool {
        self.paper.is_none() && self.forecast.is_none()
    }
}

impl Claim {
    /// True if it can be run.
    pub fn is_runnable(&self) -> bool {
        !self.runs.is_empty()
    }

    /// What the command line must name before it can be run.
    pub fn lacks(&self) -> &'static str {
        match self.recorded.is_empty() {
            true => "a trace: name one with '--trace FILE'",
            false => "recorded runs: name their directory with '--recorded DIR'",
        }
    }

    /// Compares `ours`, a value of `figure`, with the published number.
    pub fn verdict(&self, figure: &Figure, ours: f64) -> Verdict {
        match (figure.verdict(ours), &self.incomparable) {
            (Verdict::None | Verdict::Calibrated, _) | (_, None) => figure.verdict(ours),
            (_, Some(_)) => Verdict::Incomparable,
        }
    }

    /// Checks what can be checked without looking anything up.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.is_runnable() != self.needs.is_some(),
            "a claim has either `runs`, or `needs` that says what is missing"
        );
        ensure!(
            !self.is_runnable() || self.forecast.is_some(),
            "what can be run says beforehand what is expected: `forecast`"
        );
        let words = self.cause.as_deref().unwrap_or_default().split_whitespace().count();
        ensure!(words <= CAUSE_WORDS, "a `cause` of {words} words, {CAUSE_WORDS} at most");
        ensure!(self.cause.is_some() || self.moved.is_empty(), "`moved`, but no `cause`");
        for name in &self.moved {
            let found = self.figures.iter().any(|figure| figure.name == *name && figure.is_trial());
            ensure!(found, "`moved`: no figure of a trial is called `{name}`");
        }
        ensure!(
            self.gate.is_none_or(|band| band > 0.0 && band <= 10.0 && self.is_runnable()),
            "a `gate` is a band up to 10 % of a claim that can be run"
        );
        for figure in &self.figures {
            let within = || format!("figure `{}`", figure.name);
            self.check_numbers(figure).with_context(within)?;
            self.check_figure(figure).with_context(within)?;
        }
        Ok(())
    }

    fn check_numbers(&self, figure: &Figure) -> Result<()> {
        let (low, high) = match figure.paper {
            None => (0.0, 0.0),
            Some(Paper::One(value)) => (value, value),
            Some(Paper::Range(low, high)) => (low, high),
        };
        let numbers = [low, high, figure.tolerance, figure.forecast.unwrap_or(0.0), figure.reach];
        ensure!(numbers.iter().all(|number| number.is_finite()), "a number that is none");
        ensure!(low <= high, "a range from {low} to {high}");
        ensure!((0.0..=10.0).contains(&figure.tolerance), "a tolerance of 0 to 10 percent");
        let metric = Metric::named(&figure.metric, &figure.unit);
        ensure!(
            metric.is_some() || !self.is_runnable(),
            "no metric `{}` in `{}`",
            figure.metric,
            figure.unit
        );
        Ok(())
    }

    fn check_figure(&self, figure: &Figure) -> Result<()> {
        if !self.is_runnable() {
            ensure!(figure.run.is_none(), "has a run, the claim has none");
            ensure!(figure.paper.is_some(), "nothing published, nothing run");
            return Ok(());
        }
        let own = self.find(figure.run.as_ref(), figure.at.as_ref(), "run")?;
        match figure.take {
            Take::Value => ensure!(!own, "of a series, without `at`"),
            Take::Share | Take::Ratio | Take::Loss | Take::More => {
                let other = self.find(figure.per.as_ref(), figure.per_at.as_ref(), "per")?;
                ensure!(!own && !other, "of a series, without `at` or `per_at`");
            }
            Take::Knee | Take::Spread | Take::Best => ensure!(own, "not of a whole series"),
            Take::Line => {
                let other = self.find(figure.run.as_ref(), figure.per_at.as_ref(), "run")?;
                ensure!(!own && !other, "of a series, without `at` or `per_at`");
                ensure!(
                    figure.each.is_some() && figure.at != figure.per_at,
                    "no line, or no `each`"
                );
            }
        }
        Ok(())
    }

    /// True if `name` and `at` mean a whole series, false if they mean one point.
    fn find(&self, name: Option<&String>, at: Option<&String>, field: &str) -> Result<bool> {
        let name = name.with_context(|| format!("no `{field}`"))?;
        let found = self.runs.iter().find(|trial| trial.name == *name);
        let found = found.with_context(|| format!("no run is called `{name}`"))?;
        let Some(at) = at else { return Ok(found.over.is_some()) };
        let known = found.values.iter().any(|value| label(value) == *at);
        ensure!(known, "run `{name}` has no value `{at}`");
        Ok(false)
    }
}

/// A value of a series as text.
pub(super) fn label(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        value => format!("{value:?}"),
    }
}
