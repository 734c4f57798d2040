//! The generated parts of `docs/research/calibration.md`.
//!
//! A part lies between two comments with its name, `<!-- begin: rows -->` and `<!-- end: rows -->`.
//! Text between them is replaced; all other text stays.

use super::interference::{Compared, Judged};
use super::{Row, Summary, Verdict};
use anyhow::{Context, Result};
use std::fmt::Write as _;

/// Seeds of the runs in the document.
pub const SEEDS: u64 = 3;

/// A figure with at least three digits.
pub fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v if v >= 0.09995 => 3,
        0.0 => 0,
        _ => 4,
    };
    format!("{value:.places$}")
}

/// A signed difference in percent. Zero is not negative.
pub fn percent(value: f64) -> String {
    let value = if value.abs() < 0.05 { 0.0 } else { value };
    format!("{value:+.1} %")
}

/// The text for a row's verdict.
pub fn verdict(row: &Row) -> String {
    match row.verdict {
        Verdict::Ok => "ok".to_owned(),
        Verdict::Over => "OVER".to_owned(),
        Verdict::Miss => format!("miss: {}", row.golden.note),
    }
}

/// The cells of a row: drive, what, unit, model, measured, error, tolerance, verdict.
pub fn cells(row: &Row) -> [String; 8] {
    let golden = &row.golden;
    let none = || "-".to_owned();
    [
        golden.preset.clone(),
        golden.what(),
        golden.unit.clone(),
        digits(row.model),
        if golden.measured > 0.0 { digits(golden.measured) } else { none() },
        row.error.map_or_else(none, percent),
        if golden.status == "gate" { format!("{} %", golden.tolerance) } else { none() },
        verdict(row),
    ]
}

/// The names of [`cells`].
pub const HEAD: [&str; 8] =
    ["drive", "what", "unit", "model", "measured", "error", "tolerance", "verdict"];

/// A line of a table.
fn line<S: AsRef<str>>(cells: impl IntoIterator<Item = S>) -> String {
    let mut line = "|".to_owned();
    for cell in cells {
        let _ = write!(line, " {} |", cell.as_ref().replace('|', "\\|"));
    }
    line.push('\n');
    line
}

/// The line of `row`, with its number.
pub fn row_line(number: usize, row: &Row) -> String {
    line(std::iter::once(number.to_string()).chain(cells(row)))
}

/// The table of all rows.
pub fn rows(rows: &[Row]) -> String {
    let mut text = line(std::iter::once("").chain(HEAD));
    text.push_str("|--:|---|---|---|--:|--:|--:|--:|---|\n");
    for (row, number) in rows.iter().zip(1..) {
        text.push_str(&row_line(number, row));
    }
    text
}

/// A line for each drive, and one for the differences between seeds.
pub fn summary(sums: &[Summary], rows: &[Row]) -> String {
    let mut text = line([
        "drive",
        "rows within tolerance",
        "known misses",
        "mean error",
        "largest error",
        "of",
        "seeds differ by up to",
    ]);
    text.push_str("|---|--:|--:|--:|--:|---|--:|\n");
    for sum in sums {
        text.push_str(&line([
            sum.preset.clone(),
            format!("{} of {}", sum.gates - sum.over, sum.gates),
            sum.misses.to_string(),
            format!("{:.1} %", sum.mean_error),
            percent(sum.worst_error),
            sum.worst.clone(),
            format!("{:.1} %", sum.largest_spread),
        ]));
    }
    let mean = rows.iter().map(Row::spread).sum::<f64>() / rows.len().max(1) as f64;
    let _ = write!(
        text,
        "\nThe figures of seeds 1 to {SEEDS} of a row lie {mean:.2} % of their mean apart on \
         average.\n"
    );
    text
}

/// The table of reads and writes together with management commands.
pub fn interference(rows: &[Compared]) -> String {
    let mut text = line([
        "what",
        "unit",
        "measured alone",
        "measured together",
        "change",
        "model alone",
        "model together",
        "change",
    ]);
    text.push_str("|---|---|--:|--:|--:|--:|--:|--:|\n");
    for row in rows {
        let (measured, model) = row.changes();
        let change = |value: f64| match row.situation.judged {
            Judged::Throughput => format!("{value:+.0} %"),
            Judged::Management => format!("× {:.2}", 1.0 + value / 100.0),
        };
        text.push_str(&line([
            row.situation.what(),
            row.situation.unit().to_owned(),
            digits(row.situation.alone),
            digits(row.situation.together),
            change(measured),
            digits(row.model_alone),
            digits(row.model_together),
            change(model),
        ]));
    }
    text
}

/// The range of the part called `name` in `document`.
fn place(document: &str, name: &str) -> Result<std::ops::Range<usize>> {
    let (begin, end) = (format!("<!-- begin: {name} -->\n"), format!("<!-- end: {name} -->\n"));
    let missing = |mark: &str| format!("no line `{}`", mark.trim_end());
    let from = document.find(&begin).with_context(|| missing(&begin))? + begin.len();
    let length = document[from..].find(&end).with_context(|| missing(&end))?;
    Ok(from..from + length)
}

/// The part of `document` called `name`.
///
/// # Errors
/// If there is no such part.
pub fn part<'a>(document: &'a str, name: &str) -> Result<&'a str> {
    Ok(&document[place(document, name)?])
}

/// `document` with its part called `name` replaced by `text`.
///
/// # Errors
/// If there is no such part.
pub fn with_part(document: &str, name: &str, text: &str) -> Result<String> {
    let place = place(document, name)?;
    let (before, after) = (&document[..place.start], &document[place.end..]);
    // The blank lines keep the comments out of the tables.
    Ok(format!("{before}\n{}\n\n{after}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::{calibrate, golden};

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0, 0.014, 0.5, 1.0, 2.613, 14.96, 99.96, 100.4, 2011.2].map(digits);
        assert_eq!(shown, ["0", "0.0140", "0.500", "1.00", "2.61", "15.0", "100", "100", "2011"]);
        assert_eq!([-0.01, -0.06, 3.12].map(percent), ["+0.0 %", "-0.1 %", "+3.1 %"]);
    }

    #[test]
    fn only_the_part_is_replaced() {
        let document = "a\n<!-- begin: x -->\nold\n<!-- end: x -->\nb\n";
        let new = with_part(document, "x", "| 1 |\n").unwrap();
        assert_eq!(new, "a\n<!-- begin: x -->\n\n| 1 |\n\n<!-- end: x -->\nb\n");
        assert_eq!(part(&new, "x").unwrap().trim(), "| 1 |");
        assert_eq!(with_part(&new, "x", "| 1 |").unwrap(), new);
        assert!(part(document, "y").unwrap_err().to_string().contains("begin: y"));
        assert!(part("<!-- begin: x -->\n", "x").is_err());
    }

    /// Checks that the document has the measurement of every row, and the model's current figure of
    /// every ninth row.
    #[test]
    fn the_document_is_not_stale() {
        let document = include_str!("../../../../docs/research/calibration.md");
        let table = part(document, "rows").unwrap();
        let stale = "run 'furrow-lab calibrate --docs docs'";
        let lines: Vec<&str> = table.lines().filter(|line| !line.is_empty()).skip(2).collect();
        let golden = golden().unwrap();
        assert_eq!(lines.len(), golden.len(), "{stale}");
        for ((row, line), number) in golden.iter().zip(lines).zip(1..) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let head = [number.to_string(), row.preset.clone(), row.what(), row.unit.clone()];
            assert_eq!(cells[1..5], head, "{stale}");
            let measured = if row.measured > 0.0 { digits(row.measured) } else { "-".to_owned() };
            assert_eq!(cells[6], measured, "{line}: {stale}");
            if number % 9 == 1 {
                let now = row_line(number, &calibrate(row, SEEDS).unwrap());
                assert_eq!(now.trim_end(), line, "{stale}");
            }
        }
        for figure in crate::calibrate::figures::files() {
            assert!(document.contains(&format!("(calibration/{figure})")), "{figure} is not shown");
        }
    }
}
