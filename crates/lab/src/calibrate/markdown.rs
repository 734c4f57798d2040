//! The generated parts of `docs/research/calibration.md`.
//!
//! A part lies between two comments with its name, `<!-- begin: rows -->` and `<!-- end: rows -->`.
//! Text between them is replaced; all other text stays.

use super::interference::{Compared, Judged};
use super::{Golden, Row, Summary, Verdict};
use anyhow::{Context, Result};
use std::fmt::Write as _;

/// Number of seeds of the runs in the document.
pub const SEEDS: u64 = 3;

/// A figure with at least three significant digits; below 0.1, with four decimals.
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

/// The properties that rows of one line share: drive, measurement, unit.
fn group(golden: &Golden) -> [String; 3] {
    let what = golden.what();
    let what = match golden.condition.parse::<u64>() {
        Err(_) => golden.op.clone(),
        Ok(_) => {
            let size = what.split(", ").next().unwrap_or_default();
            match golden.metric.as_str() {
                "throughput" | "latency" => size.to_owned(),
                metric => format!("{size}: {metric}"),
            }
        }
    };
    [golden.preset.clone(), what, golden.unit.clone()]
}

/// The properties that distinguish rows of one line: zones and depth, or how full the zone was.
fn label(golden: &Golden) -> String {
    match (golden.condition.parse::<u64>(), &*golden.condition) {
        (Ok(_), _) => format!("{}×{}: ", golden.zones, golden.depth),
        (Err(_), "") => String::new(),
        (Err(_), condition) => format!("{}: ", condition.trim_start_matches("occupancy ")),
    }
}

/// The measured figure, or a dash.
fn measured(golden: &Golden) -> String {
    if golden.measured > 0.0 { digits(golden.measured) } else { "–".to_owned() }
}

/// The text of a row within a line of the table: the model's figure and the measured one.
pub fn entry(row: &Row) -> String {
    let golden = &row.golden;
    let verdict = match row.verdict {
        Verdict::Ok => "",
        Verdict::Over => " OVER",
        Verdict::Miss => " miss",
    };
    format!("{}{} ({}){verdict}", label(golden), digits(row.model), measured(golden))
}

/// The table of all rows. Rows with the same drive, measurement and unit share a line.
pub fn rows(rows: &[Row]) -> String {
    let mut lines: Vec<([String; 3], Vec<String>)> = Vec::new();
    for row in rows {
        let key = group(&row.golden);
        match lines.iter_mut().find(|(known, _)| *known == key) {
            Some((_, entries)) => entries.push(entry(row)),
            None => lines.push((key, vec![entry(row)])),
        }
    }
    let mut text = line(["drive", "what", "unit", "model (measured)"]);
    text.push_str("|---|---|---|---|\n");
    for (key, entries) in lines {
        text.push_str(&line(key.into_iter().chain([entries.join(", ")])));
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
    let mut text = line(["what", "unit", "measured", "change", "model", "change"]);
    text.push_str("|---|---|--:|--:|--:|--:|\n");
    for row in rows {
        let (measured, model) = row.changes();
        let change = |value: f64| match row.situation.judged {
            Judged::Throughput => format!("{value:+.0} %"),
            Judged::Management => format!("× {:.2}", 1.0 + value / 100.0),
        };
        let both = |alone, together| format!("{} → {}", digits(alone), digits(together));
        text.push_str(&line([
            row.situation.what(),
            row.situation.unit().to_owned(),
            both(row.situation.alone, row.situation.together),
            change(measured),
            both(row.model_alone, row.model_together),
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
        let stale = "run 'furrow-lab calibrate --docs docs/research'";
        let lines: Vec<Vec<&str>> = table
            .lines()
            .filter(|line| !line.is_empty())
            .skip(2)
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let golden = golden().unwrap();
        let entries = lines.iter().map(|line| line[3].split(", ").count()).sum::<usize>();
        assert_eq!(entries, golden.len(), "{stale}");
        for (row, number) in golden.iter().zip(1..) {
            let line = lines.iter().find(|line| line[..3] == group(row));
            let line = line.unwrap_or_else(|| panic!("no line for {}: {stale}", row.what()));
            let own = line[3].split(", ").find(|entry| entry.starts_with(&label(row)));
            let own = own.unwrap_or_else(|| panic!("no entry for {}: {stale}", row.what()));
            let shown = format!("({})", measured(row));
            assert!(own.contains(&shown), "{own} is not {shown}: {stale}");
            assert_eq!(own.ends_with(" miss"), row.status == "miss", "{own}: {stale}");
            if number % 9 == 1 {
                assert_eq!(own, entry(&calibrate(row, SEEDS).unwrap()), "{stale}");
            }
        }
        for figure in crate::calibrate::figures::files() {
            assert!(document.contains(&format!("(calibration/{figure})")), "{figure} is not shown");
        }
    }
}
