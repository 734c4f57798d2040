//! Figures as text.

use crate::catalogue::{Figure, Paper, Relation};
use crate::plot::number;
use crate::result::Sample;

/// Writes a line to a `String`, which never fails.
macro_rules! put {
    ($out:expr $(, $argument:expr)* $(,)?) => {{
        let _ = writeln!($out $(, $argument)*);
    }};
}
pub(crate) use put;

/// A value with four significant digits.
pub fn quantity(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return number(value);
    }
    let unit = 10f64.powf(value.abs().log10().floor() - 3.0);
    number((value / unit).round() * unit)
}

/// The distance between seeds: half the range, in percent of the mean. For a value of all seeds
/// together, which need not lie between the seeds' own values, it is the range itself.
pub fn spread(sample: &Sample) -> String {
    let Sample { low, high, .. } = *sample;
    match sample.values.len() {
        1 if low.is_infinite() => "not in all seeds".to_owned(),
        1 if low < high => format!("{} to {}", quantity(low), quantity(high)),
        0 | 1 => "–".to_owned(),
        _ => format!("{:.1} %", sample.spread_percent()),
    }
}

/// A ratio with three decimals.
pub fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"))
}

/// The expected value, or a dash.
pub fn forecast(figure: &Figure) -> String {
    figure.forecast.map_or_else(|| "–".to_owned(), number)
}

/// The published value, or a dash.
pub fn published(figure: &Figure) -> String {
    match figure.paper {
        None => "–".to_owned(),
        Some(Paper::Range(low, high)) => format!("{} to {}", number(low), number(high)),
        Some(Paper::One(value)) => match figure.relation {
            Relation::About => number(value),
            Relation::AtLeast => format!("≥ {}", number(value)),
            Relation::AtMost => format!("≤ {}", number(value)),
        },
    }
}

/// `text` for a cell of a table in Markdown.
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Quotes `text` as one word for a shell.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+:=@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A unit in its usual spelling.
pub fn unit(unit: &str) -> &str {
    match unit {
        "x" => "×",
        "us" => "µs",
        unit => unit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_they_deserve() {
        assert_eq!(quantity(2.438_912), "2.439");
        assert_eq!(quantity(337.62), "337.6");
        assert_eq!(quantity(0.0), "0");
        assert_eq!(quantity(64.0), "64");
        assert_eq!(ratio(Some(1.0161)), "1.016");
        assert_eq!(ratio(None), "–");
        assert_eq!(spread(&Sample::of(vec![99.0, 101.0]).unwrap()), "1.0 %");
        assert_eq!(spread(&Sample::of(vec![99.0]).unwrap()), "–");
        assert_eq!(spread(&Sample::pooled(1.2, &[Some(0.98), Some(3.35)])), "0.98 to 3.35");
        assert_eq!(spread(&Sample::pooled(1.2, &[Some(0.98), None])), "not in all seeds");
        let figure = |text: &str| -> Figure {
            toml::from_str(&format!("name = 'f'\nunit = '%'\n{text}")).unwrap()
        };
        assert_eq!(published(&figure("paper = 50\nrelation = 'at-least'")), "≥ 50");
        assert_eq!(published(&figure("paper = [128, 256]")), "128 to 256");
        assert_eq!(published(&figure("")), "–");
        assert_eq!(forecast(&figure("forecast = 2.44")), "2.44");
    }
}
