//! Axes: where a value lies, which ticks are shown and how they are written.

use std::fmt::Write as _;

/// The scale of an axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// Places values evenly.
    Linear,
    /// Multiplies by this factor at each step: 2 or 10.
    Log(f64),
    /// Places values by name: a value is the index of its name, from 0.
    Names(Vec<String>),
}

/// The format of an axis's tick labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// Labels are numbers.
    #[default]
    Numbers,
    /// Labels are amounts of bytes: `64K`, `2M`.
    Bytes,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Name of the quantity, with its unit.
    pub label: String,
    /// The scale.
    pub scale: Scale,
    /// The format of the tick labels.
    pub labels: Labels,
    /// Lowest and highest value shown; `None` takes the value from the data.
    pub range: (Option<f64>, Option<f64>),
}

impl Axis {
    fn new(label: impl Into<String>, scale: Scale) -> Axis {
        Axis { label: label.into(), scale, labels: Labels::Numbers, range: (None, None) }
    }

    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis::new(label, Scale::Linear)
    }

    /// A logarithmic axis of powers of ten.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis::new(label, Scale::Log(10.0))
    }

    /// A logarithmic axis of powers of two.
    pub fn log2(label: impl Into<String>) -> Axis {
        Axis::new(label, Scale::Log(2.0))
    }

    /// An axis of `names`.
    pub fn names<S: Into<String>>(
        label: impl Into<String>,
        names: impl IntoIterator<Item = S>,
    ) -> Axis {
        Axis::new(label, Scale::Names(names.into_iter().map(Into::into).collect()))
    }

    /// Writes ticks as amounts of bytes.
    #[must_use]
    pub fn bytes(mut self) -> Axis {
        self.labels = Labels::Bytes;
        self
    }

    /// Begins the axis at 0 for any data. A logarithmic axis has no 0 and ignores this.
    #[must_use]
    pub fn from_zero(mut self) -> Axis {
        if self.scale == Scale::Linear {
            self.range.0 = Some(0.0);
        }
        self
    }

    /// Sets the axis's ends to `low` and `high`.
    #[must_use]
    pub fn between(mut self, low: f64, high: f64) -> Axis {
        self.range = (Some(low), Some(high));
        self
    }

    /// True if the axis can show `value`.
    pub(super) fn takes(&self, value: f64) -> bool {
        value.is_finite() && (!matches!(self.scale, Scale::Log(_)) || value > 0.0)
    }

    /// Fits the axis to `values`, so that it begins and ends at ticks.
    pub(super) fn fit(&self, values: impl Iterator<Item = f64>) -> Fitted<'_> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        let fixed = [self.range.0, self.range.1].into_iter().flatten();
        for value in values.chain(fixed).filter(|value| self.takes(*value)) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) =
                if matches!(self.scale, Scale::Log(_)) { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        match &self.scale {
            Scale::Linear => self.fit_linear(low, high),
            Scale::Log(base) => self.fit_log(low, high, *base),
            Scale::Names(names) => {
                let ticks = (0..names.len()).map(|at| at as f64).collect();
                Fitted { axis: self, low: -0.5, high: names.len().max(1) as f64 - 0.5, ticks }
            }
        }
    }

    fn fit_linear(&self, low: f64, high: f64) -> Fitted<'_> {
        let high = if high - low <= low.abs().max(high.abs()) * 1e-9 {
            low + if low == 0.0 { 1.0 } else { low.abs() }
        } else {
            high
        };
        let step = nice_step((high - low) / 6.0);
        let fixed = |bound: Option<f64>| bound.filter(|value| self.takes(*value));
        let low = fixed(self.range.0).unwrap_or((low / step).floor() * step);
        let high = match fixed(self.range.1) {
            Some(high) => high,
            // Leave space above the highest point, unless there is some already.
            None => ((high + (high - low) * 0.02) / step).ceil() * step,
        };
        let (first, last) =
            ((low / step - 1e-6).ceil() as i64, (high / step + 1e-6).floor() as i64);
        let ticks = (first..=last.min(first + 100)).map(|at| at as f64 * step).collect();
        Fitted { axis: self, low, high, ticks }
    }

    fn fit_log(&self, low: f64, high: f64, base: f64) -> Fitted<'_> {
        if base > 3.0 && high / low < CLOSE {
            return self.fit_close(low, high);
        }
        let power = |value: f64| value.ln() / base.ln();
        let (mut first, mut last) =
            ((power(low) + 1e-9).floor() as i32, (power(high) - 1e-9).ceil() as i32);
        if first >= last {
            (first, last) = (first - i32::from(base < 3.0), first + 1);
        }
        let every = ((last - first + 9) / 10).max(1);
        // Powers alone would give too few ticks for one or two decades.
        let within: &[f64] =
            if base > 3.0 && last - first <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let ends = (base.powi(first), base.powi(last));
        let ticks = (first..=last)
            .step_by(every as usize)
            .flat_map(|power| within.iter().map(move |part| part * base.powi(power)))
            .filter(|tick| *tick <= ends.1 * 1.000_001)
            .collect();
        Fitted { axis: self, low: ends.0, high: ends.1, ticks }
    }

    /// Fits a logarithmic axis with evenly spaced ticks.
    fn fit_close(&self, low: f64, high: f64) -> Fitted<'_> {
        let (low, high) = (low.min(high * 0.95), high.max(low * 1.05));
        let step = nice_step((high - low) / 6.0);
        let first = ((low / step + 1e-6).floor() as i64).max(1);
        let last = (high / step - 1e-6).ceil() as i64;
        let ticks: Vec<f64> = (first..=last).map(|at| at as f64 * step).collect();
        // A value below the first tick must still lie on the axis.
        let ends = (low.min(first as f64 * step), last as f64 * step);
        Fitted { axis: self, low: ends.0, high: ends.1, ticks }
    }
}

/// A logarithmic axis gets evenly spaced ticks if its highest value is less than this many times
/// the lowest: with whole decades, most of the plot would be empty.
const CLOSE: f64 = 4.0;

/// An axis with its ends and ticks.
pub(super) struct Fitted<'a> {
    axis: &'a Axis,
    low: f64,
    high: f64,
    pub ticks: Vec<f64>,
}

impl Fitted<'_> {
    /// The place of `value`: 0 is the lower end, 1 the upper. Values beyond an end are clamped
    /// close to it.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.axis.scale {
            Scale::Log(_) => (value / self.low).ln() / (self.high / self.low).ln(),
            _ => (value - self.low) / (self.high - self.low),
        };
        share.clamp(-0.05, 1.05)
    }

    /// The value at which bars start.
    pub fn foot(&self) -> f64 {
        if matches!(self.axis.scale, Scale::Log(_)) { self.low } else { self.low.max(0.0) }
    }

    /// The label of `tick`.
    pub fn label(&self, tick: f64) -> String {
        match (&self.axis.scale, self.axis.labels) {
            (Scale::Names(names), _) => names.get(tick as usize).cloned().unwrap_or_default(),
            (_, Labels::Bytes) => amount(tick),
            (..) => number(tick),
        }
    }

    /// The text of `value` for tooltips, more precise than the tick labels.
    pub fn exact(&self, value: f64) -> String {
        match (&self.axis.scale, self.axis.labels) {
            (Scale::Names(_), _) => self.label(value.round()),
            (_, Labels::Bytes) => amount(value),
            (..) => number(four_digits(value)),
        }
    }
}

/// The next round number above `rough`: 1, 2, 2.5 or 5 times a power of ten.
fn nice_step(rough: f64) -> f64 {
    let magnitude = 10f64.powf(rough.log10().floor());
    let part = rough / magnitude;
    let nice = [1.0, 2.0, 2.5, 5.0].into_iter().find(|step| part <= step * 1.001).unwrap_or(10.0);
    nice * magnitude
}

fn four_digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10f64.powf(value.abs().log10().floor() - 3.0);
    (value / unit).round() * unit
}

/// Formats a number: no more digits than needed, and thousands separated.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return format!("{value:.3e}");
    }
    // Show at most six digits, and none that only come from rounding.
    let digits = (5 - size.max(1e-4).log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{size:.digits$}");
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let mut out = String::from(if value < 0.0 { "−" } else { "" });
    for (at, digit) in whole.chars().enumerate() {
        // Separate thousands as the documents do: 40,704.
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    let part = part.trim_end_matches('0');
    if !part.is_empty() {
        let _ = write!(out, ".{part}");
    }
    out
}

/// Bytes in short: `512`, `4K`, `2M`.
fn amount(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{}{}", number((value * 10.0).round() / 10.0), UNITS[unit])
}
