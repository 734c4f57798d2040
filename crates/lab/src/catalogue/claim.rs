//! A claim: its source and text, its figures, the scenarios that try it, the forecast.

use super::Point;
use crate::result::Metric;
use anyhow::{Context as _, Result, ensure};
use furrow_emu::timing::quantity::Bytes;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// Maximum number of words in a cause.
const CAUSE_WORDS: usize = 15;
/// Maximum number of words in a finding.
const FOUND_WORDS: usize = 75;

/// A claim, as in the data file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim's name.
    pub id: String,
    /// Name of the claim's source.
    pub source: String,
    /// The statement, in a line.
    pub what: String,
    /// Places at which the source shows or states the claim: `figure 10`, `table 2`, `section
    /// 5.2`, `abstract`.
    #[serde(default)]
    pub at: Vec<String>,
    /// The claim's figures.
    pub figures: Vec<Figure>,
    /// What must be built before the claim can be run; `None` if it can be run.
    #[serde(default)]
    pub needs: Option<String>,
    /// Whether the claim's runs replay a trace, which the command line has to name.
    #[serde(default)]
    pub replays: bool,
    /// The recorded runs that the claim's runs replay; they must be in the directory that the
    /// command line names.
    #[serde(default)]
    pub recorded: Vec<String>,
    /// The setup that the claim's runs share.
    #[serde(default)]
    pub setup: Option<Setup>,
    /// The expectation before the first run, with reasons.
    #[serde(default)]
    pub forecast: Option<String>,
    /// For a claim that misses: the reason, and the evidence for it.
    #[serde(default)]
    pub explanation: Option<String>,
    /// The present finding about the claim, in at most 75 words, for the pages.
    #[serde(default)]
    pub found: Option<String>,
    /// For a claim that is not reproduced: the cause in a line, in at most 15 words.
    #[serde(default)]
    pub cause: Option<String>,
    /// The figures that moved when the cause was changed; a figure of another claim is written as
    /// `ID: name`, one of this claim in a variant as `VARIANT: name`. Empty if no experiment was
    /// found.
    #[serde(default)]
    pub moved: Vec<String>,
    /// For a claim that was tried with something else than was published: why the results cannot
    /// be compared.
    #[serde(default)]
    pub incomparable: Option<String>,
    /// Percentage by which the claim's figures may differ from the kept ones in `furrow-lab gate`;
    /// `None` if that command leaves the claim out.
    #[serde(default)]
    pub gate: Option<f64>,
    /// The runs.
    #[serde(default)]
    pub runs: Vec<Trial>,
}

/// The setup that the runs of a claim share, by name.
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

/// One run, or one run for each value of a field.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// The name by which figures refer to the trial; also the legend of a plot.
    pub name: String,
    /// Fields of the workload that differ.
    #[serde(default)]
    pub with: Table,
    /// Fields of the array that differ.
    #[serde(default)]
    pub array: Table,
    /// The field that takes the `values` in turn: a field of the workload, or, prefixed with
    /// `array.`, of the array.
    #[serde(default)]
    pub over: Option<String>,
    /// The values of the field `over`.
    #[serde(default)]
    pub values: Vec<Value>,
    /// A drive that replaces the claim's.
    #[serde(default)]
    pub device: Option<String>,
    /// Options to add to the drive's spec.
    #[serde(default)]
    pub device_with: Option<String>,
    /// A profile that replaces the claim's.
    #[serde(default)]
    pub profile: Option<String>,
    /// A host that replaces the claim's.
    #[serde(default)]
    pub host: Option<String>,
    /// A workload that replaces the claim's.
    #[serde(default)]
    pub workload: Option<String>,
}

/// A trial whose names are all resolved.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name of the trial.
    pub name: String,
    /// The field that changes from point to point, if any.
    pub over: Option<String>,
    /// The points: one if no field changes.
    pub points: Vec<SeriesPoint>,
}

/// A point of a series.
#[derive(Clone, Debug)]
pub struct SeriesPoint {
    /// The changing field's value, as a number.
    pub x: f64,
    /// The value as it was written.
    pub label: String,
    /// The scenario.
    pub point: Point,
}

/// The meaning of a published number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// Approximately this number.
    #[default]
    About,
    /// This number or more.
    AtLeast,
    /// This number or less.
    AtMost,
}

/// Which direction a paper calls good, for a count or time of the system itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Good {
    /// The smaller, the better.
    Less,
}

/// A published figure: a number, or the ends of a range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paper {
    /// A number.
    One(f64),
    /// From the first number to the second.
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

/// How a figure is computed from measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Take {
    /// The measure of `run`.
    #[default]
    Value,
    /// The measure of `run` in percent of the measure of `per`.
    Share,
    /// The measure of `run` over the measure of `per`.
    Ratio,
    /// Percentage by which the measure of `run` is below that of `per`.
    Loss,
    /// Percentage by which the measure of `run` is above that of `per`.
    More,
    /// The highest ratio of a point of series `run` to the point of series `per` at the same value.
    Most,
    /// The first value of series `run` at which `reach` percent of the series' best is reached.
    Knee,
    /// Percentage by which the lowest measure of series `run` is below the highest.
    Spread,
    /// The highest measure of series `run`.
    Best,
    /// The value at `each` on the straight line through the points `at` and `per_at` of
    /// series `run`.
    Line,
}

/// One number of a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Name of the figure.
    pub name: String,
    /// Its unit: `GB/s`, `MiB/s`, `us`, `%`, `x`, `zones`, …
    pub unit: String,
    /// The published figure; `None` for a figure of our own, which shows what the others depend on.
    #[serde(default)]
    pub paper: Option<Paper>,
    /// The meaning of the published figure.
    #[serde(default)]
    pub relation: Relation,
    /// Percentage by which our figure may differ and still count as equal.
    #[serde(default = "ten")]
    pub tolerance: f64,
    /// Whether the drive's model was fitted to the figure, so that the figure proves nothing.
    #[serde(default)]
    pub fitted: bool,
    /// Whether a formula gives the figure from others, so that it says nothing of its own.
    #[serde(default)]
    pub derived: bool,
    /// The claim and the name of the figure whose experiment this one repeats, as `ID: name`.
    #[serde(default)]
    pub same_as: Option<String>,
    /// Name of the sweep to which the published number applies. All figures of the claim with the
    /// same sweep have one verdict.
    #[serde(default)]
    pub sweep: Option<String>,
    /// The direction that the paper calls good; not set for speeds of drives and hosts.
    #[serde(default)]
    pub good: Option<Good>,
    /// The value expected before the first run.
    #[serde(default)]
    pub forecast: Option<f64>,
    /// A part of the published statement without a number of its own, or how the statement was
    /// read.
    #[serde(default)]
    pub note: Option<String>,
    /// How the figure is computed from the runs.
    #[serde(default)]
    pub take: Take,
    /// The measure: a name that `Metric::named` knows, such as `throughput`, `p99` or `phase-1`.
    #[serde(default = "throughput")]
    pub metric: String,
    /// The run or series that is measured.
    #[serde(default)]
    pub run: Option<String>,
    /// For a series: the label of the measured point.
    #[serde(default)]
    pub at: Option<String>,
    /// The run or series to compare with.
    #[serde(default)]
    pub per: Option<String>,
    /// For a series to compare with: the label of its point.
    #[serde(default)]
    pub per_at: Option<String>,
    /// The measure of `per`, if it differs from `metric`.
    #[serde(default)]
    pub per_metric: Option<String>,
    /// For [`Take::Line`]: the place on the axis at which the line is evaluated.
    #[serde(default)]
    pub each: Option<Bytes>,
    /// Whether to show this machine's processor time for each operation next to the figure.
    #[serde(default)]
    pub processor: bool,
    /// For [`Take::Knee`]: the percentage of the best.
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
    /// True if the figure only shows what others depend on: no value of it was published
    /// or expected.
    pub fn is_trial(&self) -> bool {
        self.paper.is_none() && self.forecast.is_none()
    }
}

impl Claim {
    /// True if the claim can be run.
    pub fn is_runnable(&self) -> bool {
        !self.runs.is_empty()
    }

    /// The argument that the command line lacks for the claim to be run, and the option for it.
    pub fn lacks(&self) -> &'static str {
        match self.recorded.is_empty() {
            true => "a trace: name one with '--trace FILE'",
            false => "recorded runs: name their directory with '--recorded DIR'",
        }
    }

    /// Checks everything that needs no look-up.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.is_runnable() != self.needs.is_some(),
            "a claim has either `runs`, or `needs` that says what is missing"
        );
        ensure!(
            !self.is_runnable() || self.forecast.is_some(),
            "what can be run says beforehand what is expected: `forecast`"
        );
        self.at.iter().try_for_each(|place| super::published::check(place))?;
        let words = self.cause.as_deref().unwrap_or_default().split_whitespace().count();
        ensure!(words <= CAUSE_WORDS, "a `cause` of {words} words, {CAUSE_WORDS} at most");
        let words = self.found.as_deref().unwrap_or_default().split_whitespace().count();
        ensure!(words <= FOUND_WORDS, "`found` has {words} words, {FOUND_WORDS} at most");
        let said = self.cause.is_some() || self.incomparable.is_some();
        ensure!(said || self.moved.is_empty(), "`moved`, but no `cause`");
        for name in self.moved.iter().filter(|name| elsewhere(name).is_none()) {
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
        ensure!(numbers.iter().all(|number| number.is_finite()), "not a number");
        ensure!(low <= high, "a range from {low} to {high}");
        ensure!((0.0..=10.0).contains(&figure.tolerance), "a tolerance of 0 to 10 percent");
        let gain = figure.good.is_some() && figure.is_gain();
        ensure!(!gain, "`good` of a gain over another run, whose model may be what is bad");
        let of_sweep = |other: &&Figure| figure.sweep.is_some() && other.sweep == figure.sweep;
        ensure!(
            self.figures
                .iter()
                .filter(of_sweep)
                .all(|other| { (other.paper, other.relation) == (figure.paper, figure.relation) }),
            "another published number than the rest of its sweep"
        );
        for name in [&figure.metric].into_iter().chain(&figure.per_metric) {
            let metric = Metric::named(name, &figure.unit);
            ensure!(
                metric.is_some() || !self.is_runnable(),
                "no metric `{name}` in `{}`",
                figure.unit
            );
        }
        Ok(())
    }

    fn check_figure(&self, figure: &Figure) -> Result<()> {
        if !self.is_runnable() {
            ensure!(figure.run.is_none(), "has a run, but the claim has none");
            // The figure may have been measured by another program, as an experiment on the cause.
            let tried = self.moved.contains(&figure.name);
            ensure!(figure.paper.is_some() || tried, "nothing published, nothing run");
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
            Take::Most => {
                let other = self.find(figure.per.as_ref(), figure.per_at.as_ref(), "per")?;
                ensure!(own && other, "not of two whole series");
            }
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

    /// True if `name` and `at` refer to a whole series, false if they refer to one point.
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

/// Splits `ID: name`, as in [`Claim::moved`], into the ID and the figure's name.
pub fn elsewhere(name: &str) -> Option<(&str, &str)> {
    name.split_once(": ")
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
