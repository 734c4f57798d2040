//! `furrow-lab calibrate`: compares the timing models with measurements of real drives.

use anyhow::{Context, bail};
use furrow_console::fit::{Column, Table};
use furrow_console::show::{self, print_table};
use furrow_lab::calibrate::{self, Golden, Row, Summary, Verdict, figures, interference, markdown};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

const AFTER_HELP: &str = "\
Each row drives the emulated drive as that measurement was taken, in virtual time: the same build \
and seeds give the same figures on every machine. Exit status 1 if a row that has to be within its \
tolerance is not; a row marked 'miss' is known not to be, and says why.

Examples:
  furrow-lab calibrate
  furrow-lab calibrate pm1731a --seeds 10
  furrow-lab calibrate --docs docs/research     write its plots and tables again";

/// Compare the timing models with published measurements
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Compare only these drives
    #[arg(value_name = "PRESET")]
    presets: Vec<String>,
    /// Number of runs of each row
    #[arg(long, value_name = "N", default_value_t = markdown::SEEDS as u16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: u16,
    /// Write plots to DIR/calibration/ and the tables into DIR/calibration.md, with three seeds
    #[arg(long, value_name = "DIR", conflicts_with_all = ["presets", "seeds"])]
    docs: Option<PathBuf>,
}

/// Runs the command. The status is 1 if a gate exceeds its tolerance.
///
/// # Errors
/// If a preset has no rows, the model cannot run one, or output cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let golden = chosen(&args.presets)?;
    let began = Instant::now();
    let rows = told("row", |told| calibrate::calibrate_all(&golden, u64::from(args.seeds), told))?;
    let seconds = began.elapsed().as_secs_f64();
    let sums = calibrate::summaries(&rows);
    table(out, &rows)?;
    summary(out, args.seeds, seconds, &rows, &sums)?;
    if let Some(folder) = &args.docs {
        write_docs(folder, &rows, &sums)?;
    }
    Ok(u8::from(rows.iter().any(|row| row.verdict == Verdict::Over)))
}

fn chosen(presets: &[String]) -> anyhow::Result<Vec<Golden>> {
    let golden = calibrate::golden()?;
    let mut known: Vec<&str> = golden.iter().map(|row| row.preset.as_str()).collect();
    known.dedup();
    if let Some(other) = presets.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("nothing was measured on `{other}`; there are measurements of {}", known.join(", "));
    }
    let wanted = |row: &Golden| presets.is_empty() || presets.contains(&row.preset);
    Ok(golden.iter().filter(|row| wanted(row)).cloned().collect())
}

/// Runs `work`, and shows on a terminal the progress that it reports.
fn told<T>(
    what: &str,
    work: impl FnOnce(calibrate::cores::Told<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let watched = std::io::stderr().is_terminal();
    let result = work(&|over, of| {
        if watched {
            show::say(&format!("\r{what} {over} of {of}"));
        }
    });
    if watched {
        show::say("\r\x1b[K");
    }
    result
}

fn table(out: &mut dyn Write, rows: &[Row]) -> anyhow::Result<()> {
    let columns = markdown::HEAD.iter().enumerate().map(|(at, head)| match at {
        0 | 1 | 2 | 7 => Column::word(head, 0),
        _ => Column::amount(head, 0),
    });
    let mut table = Table::new(&columns.collect::<Vec<_>>());
    for row in rows {
        table.add_row(markdown::cells(row));
    }
    Ok(print_table(out, &table)?)
}

/// Writes plots to `folder`/calibration, and tables into `folder`/calibration.md.
fn write_docs(folder: &Path, rows: &[Row], sums: &[Summary]) -> anyhow::Result<()> {
    let document = folder.join("calibration.md");
    let name = document.display().to_string();
    let mut text = std::fs::read_to_string(&document).with_context(|| name.clone())?;
    let beside = told("interference", |told| interference::interference(1, told))?;
    for (part, new) in [
        ("summary", markdown::summary(sums, rows)),
        ("rows", markdown::rows(rows)),
        ("interference", markdown::interference(&beside)),
    ] {
        text = markdown::with_part(&text, part, &new).with_context(|| name.clone())?;
    }
    let pictures = folder.join("calibration");
    std::fs::create_dir_all(&pictures).with_context(|| pictures.display().to_string())?;
    for figure in told("plot", |told| figures::figures(rows, told))? {
        let path = pictures.join(figure.file);
        let svg = figure.plot.svg();
        std::fs::write(&path, svg).with_context(|| path.display().to_string())?;
    }
    std::fs::write(&document, text).with_context(|| name)
}

fn summary(
    out: &mut dyn Write,
    seeds: u16,
    seconds: f64,
    rows: &[Row],
    sums: &[Summary],
) -> anyhow::Result<()> {
    writeln!(out)?;
    for sum in sums {
        let Summary { preset, gates, over, misses, mean_error, worst_error, worst, .. } = sum;
        let held = gates - over;
        writeln!(
            out,
            "{preset}: {held} of {gates} rows within tolerance, {misses} known misses; mean error \
             {mean_error:.1} %, largest {} ({worst})",
            markdown::percent(*worst_error)
        )?;
    }
    let total: usize = sums.iter().map(|sum| sum.gates).sum();
    let mean = sums.iter().map(|sum| sum.mean_error * sum.gates as f64).sum::<f64>();
    let over: usize = sums.iter().map(|sum| sum.over).sum();
    writeln!(
        out,
        "all: {} of {total} rows within tolerance, mean error {:.1} %, in {seconds:.1} s",
        total - over,
        mean / total.max(1) as f64
    )?;
    if seeds > 1 {
        let widest = rows.iter().max_by(|a, b| a.spread().total_cmp(&b.spread()));
        let mean = rows.iter().map(Row::spread).sum::<f64>() / rows.len().max(1) as f64;
        let widest = widest.context("no rows")?;
        writeln!(
            out,
            "seeds: {seeds} seeds of a row lie {mean:.2} % apart on average, at most {:.2} % \
             ({} {})",
            widest.spread(),
            widest.golden.preset,
            widest.golden.what()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_without_measurements_are_refused() {
        let error = chosen(&["zn541".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("`zn541`") && error.contains("pm1731a"), "{error}");
        assert!(chosen(&["pm1731a".to_owned()]).unwrap().iter().all(|row| row.preset == "pm1731a"));
        assert!(chosen(&[]).unwrap().len() > 90);
    }
}
