//! `furrow stat`: figures of a mounted file system.

use crate::df;
use crate::live::Live;
use crate::scrub;
use crate::show::{self, time};
use crate::target::Target;
use anyhow::Result;
use furrow_fuse::report::{self, Memory, MemoryUse, Operation, Stat, Stream, prometheus};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Show figures of a mounted file system
///
/// Shows streams and their quotas, active zones, bytes written by purpose, cleaning, and latencies
/// of the kernel's requests. All counters begin at the mount. For a collector, mount with -o
/// metrics=ADDRESS:PORT or -o metrics=/FILE.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point, or the device of a mount
    #[arg(value_name = "DIR|DEVICE")]
    target: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Repeat after this many seconds, until q or Ctrl-C; with --json one document per line
    #[arg(long, value_name = "SECONDS", value_parser = show::interval)]
    every: Option<Duration>,
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let directory = Target::mounted(&args.target, "nothing runs (furrow df shows its space)")?;
    let mut live = Live::begin(!args.json && !args.prometheus && args.every.is_some())?;
    loop {
        let stat = report::ask_stat(&directory)?;
        match (args.json, args.prometheus) {
            (true, _) if args.every.is_some() => show::json_line(out, &stat)?,
            (true, _) => show::json(out, &stat)?,
            (_, true) => out.write_all(prometheus::text(&stat).as_bytes())?,
            _ if args.every.is_none() => print(out, &stat, &directory)?,
            _ => {
                let mut text = Vec::new();
                print(&mut text, &stat, &directory)?;
                live.show_text(out, &text)?;
            }
        }
        let Some(every) = args.every else { return Ok(0) };
        out.flush()?;
        if !live.wait(every)? {
            return Ok(0);
        }
        if args.prometheus {
            writeln!(out)?;
        }
    }
}

fn print(out: &mut dyn Write, stat: &Stat, directory: &Path) -> io::Result<()> {
    let status = &stat.status;
    let changes = if status.info.read_only { ", read-only" } else { "" };
    let (device, place, up) = (&status.info.device, directory.display(), duration(stat.seconds));
    writeln!(out, "{device} on {place}, mounted for {up}{changes}")?;
    let label = if status.label.is_empty() { "(none)" } else { &status.label };
    writeln!(out, "label {}, UUID {}", show::printable(label), status.uuid)?;
    df::print_failure(out, status)?;
    for (at, line) in stat.not_shown.iter().enumerate() {
        if at == 0 {
            writeln!(out, "DAMAGED: what is shown may be older or incomplete:")?;
        }
        writeln!(out, "  {}", show::printable(line))?;
    }
    let permits = stat.permits;
    writeln!(out, "active zones: {} of {} permits", permits.held, permits.limit)?;
    if let Some(scrub) = &stat.scrub {
        writeln!(out, "scrub: {}", scrub::describe(scrub))?;
        let mut findings = scrub.findings.clone();
        if !findings.is_empty() {
            scrub::name_files(directory, &mut findings);
        }
        scrub::print_damage(out, "  ", &findings)?;
    }
    writeln!(out)?;
    print_streams(out, &stat.streams)?;
    writeln!(out)?;
    print_memory(out, &stat.memory)?;
    writeln!(out)?;
    df::print_traffic(out, &status.counters)?;
    writeln!(out)?;
    print_operations(out, &stat.operations)?;
    writeln!(out)?;
    for (name, what, value) in status.counters.each() {
        // The table above shows these counters already.
        if name.ends_with("_bytes") {
            continue;
        }
        match name.ends_with("_ns") {
            true => writeln!(out, "{:>12}  {what}", time(value))?,
            false => writeln!(out, "{value:>12}  {what}")?,
        }
    }
    for (at, damage) in stat.damage.iter().enumerate() {
        if at == 0 {
            writeln!(
                out,
                "\ndamaged blocks that requests or cleaning found, which stay in place (find DIR \
                 -inum N shows the file):"
            )?;
        }
        writeln!(out, "  {damage}")?;
    }
    Ok(())
}

fn print_memory(out: &mut dyn Write, memory: &MemoryUse) -> io::Result<()> {
    let more = [("total", "all"), ("dirty", "of all, not yet written")];
    let rows = Memory::parts().chain(more).map(|(name, what)| {
        let [now, peak] = [&memory.now, &memory.peak].map(|held| show::bytes(held.bytes(name)));
        [what.to_owned(), now, peak]
    });
    show::plain(out, &["memory", "now", "at the peak"], rows)
}

fn print_streams(out: &mut dyn Write, streams: &[Stream]) -> io::Result<()> {
    let rows = streams.iter().map(|stream| {
        let counts = [stream.quota, stream.open, stream.lent, stream.parked];
        let counts = counts.map(|count| count.to_string());
        [std::slice::from_ref(&stream.name), &counts[..], &[show::bytes(stream.bytes)]].concat()
    });
    show::plain(out, &["stream", "quota", "open", "lent", "parked", "written"], rows)
}

fn print_operations(out: &mut dyn Write, operations: &[Operation]) -> io::Result<()> {
    let head = ["requests", "count", "errors", "mean", "50 %", "90 %", "99 %", "99.9 %", "max"];
    let rows = operations.iter().map(|o| {
        let mean = o.total_ns.checked_div(o.count).unwrap_or(0);
        let times = [mean, o.p50_ns, o.p90_ns, o.p99_ns, o.p999_ns, o.max_ns].map(time);
        let front = [o.name.clone(), o.count.to_string(), o.errors.to_string()];
        front.into_iter().chain(times)
    });
    show::plain(out, &head, rows)
}

/// A duration as text.
fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds:.1} s"),
        (0, 0, _) => format!("{minutes} min {} s", whole % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_three_digits_and_a_unit() {
        for (nanoseconds, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.50 us"),
            (99_949, "99.9 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (12_345_678, "12.3 ms"),
            (61_000_000_000, "61.0 s"),
        ] {
            assert_eq!(time(nanoseconds), text);
        }
        for (seconds, text) in
            [(0.25, "0.2 s"), (61.0, "1 min 1 s"), (7_260.0, "2 h 1 min"), (90_000.0, "1 d 1 h")]
        {
            assert_eq!(duration(seconds), text);
        }
    }
}
