//! `furrow-lab bench`: every layer against what limits it.

use anyhow::{Context as _, anyhow};
use furrow_console::show;
use furrow_lab::{BENCHES, Effort, Row, select};
use std::io::Write;
use std::time::Duration;

/// Measure every layer against what limits it
///
/// Contestants take turns; rates are medians of the rounds, a ratio is the median of the rounds'
/// ratios. Without NAME all benchmarks run. Those through FUSE need root.
#[derive(clap::Args)]
pub struct Args {
    /// Benchmarks to run
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// List the benchmarks
    #[arg(long)]
    list: bool,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Duration of each contestant's turn in a round, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 400)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=60_000))]
    slice: u32,
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    if args.list {
        for bench in BENCHES {
            writeln!(out, "{:<10} {}", bench.name, bench.about)?;
        }
        return Ok(0);
    }
    let benches = select(&args.names).map_err(|name| {
        anyhow!("no benchmark is called '{name}': see 'furrow-lab bench --list'")
    })?;
    let effort = Effort {
        rounds: usize::from(args.rounds),
        slice: Duration::from_millis(u64::from(args.slice)),
    };
    writeln!(out, "{}", machine())?;
    if cfg!(debug_assertions) {
        writeln!(out, "a build with assertions: for figures that count use 'make bench'")?;
    }
    for bench in benches {
        let rows = (bench.run)(effort).with_context(|| format!("benchmark {}", bench.name))?;
        writeln!(out, "\n{}: {}", bench.name, bench.about)?;
        print(out, &rows)?;
        out.flush()?;
    }
    Ok(0)
}

fn print(out: &mut dyn Write, rows: &[Row]) -> std::io::Result<()> {
    let rows = rows.iter().map(|row| {
        let (low, high) = row.range;
        [
            row.name.clone(),
            thousands(row.rate),
            duration(row.nanoseconds()),
            format!("{} to {}", thousands(low), thousands(high)),
            row.ratio.map_or_else(|| "1".to_owned(), |ratio| format!("{ratio:.3}")),
        ]
    });
    show::plain(out, &["", "per second", "one takes", "rounds", "ratio"], rows)
}

/// A rate with three significant digits: `812`, `45.1 k`, `7.20 M`.
fn thousands(rate: f64) -> String {
    let (value, unit) = match rate {
        r if r >= 999_500.0 => (r / 1e6, " M"),
        r if r >= 999.5 => (r / 1e3, " k"),
        r => (r, ""),
    };
    let digits = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{unit}")
}

fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n >= 1e6 => format!("{:.2} ms", n / 1e6),
        n if n >= 1e3 => format!("{:.2} µs", n / 1e3),
        n => format!("{n:.0} ns"),
    }
}

/// The machine, in one line.
fn machine() -> String {
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}, {cores} processors, Linux {}",
        model.as_deref().unwrap_or("unknown processor"),
        kernel.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_have_three_digits() {
        for (rate, text) in [
            (0.5, "0.50"),
            (812.4, "812"),
            (999.7, "1.00 k"),
            (45_123.0, "45.1 k"),
            (7.2e6, "7.20 M"),
        ] {
            assert_eq!(thousands(rate), text);
        }
        assert_eq!(duration(87.4), "87 ns");
        assert_eq!(duration(8_712.0), "8.71 µs");
        assert_eq!(duration(2.5e6), "2.50 ms");
    }

    #[test]
    fn a_name_that_is_none_says_where_to_look() {
        let args = Args { names: vec!["x".into()], list: false, rounds: 1, slice: 1 };
        let error = run(&args, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("'x'") && error.contains("--list"), "{error}");
    }

    #[test]
    fn rows_are_printed_with_their_ratio() {
        let row = |name: &str, ratio: Option<f64>| Row {
            name: name.into(),
            rate: 1e6,
            range: (9e5, 1.1e6),
            against: None,
            ratio,
        };
        let mut out = Vec::new();
        print(&mut out, &[row("base", None), row("other", Some(0.25))]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().any(|l| l.starts_with("other") && l.ends_with("0.250")), "{text}");
    }
}
