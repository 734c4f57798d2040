//! `furrow kv fsck`: is everything in a store as it must be?

use super::drive;
use super::progress::Progress;
use crate::daemon::config;
use crate::holds;
use crate::show;
use crate::target::source_name;
use furrow_emu::OpenMode;
use furrow_kv::{CheckOptions, CheckReport, Problem};
use furrow_rt::Rt;
use serde_json::json;
use std::io::Write;
use std::rc::Rc;

/// Problems printed without -v.
const SHOWN: usize = 20;

/// Exit status of fsck(8): errors are left.
const ERRORS_LEFT: u8 = 4;

/// Check a file store
///
/// Checks the record ring; that names are in directories that are there; that files lie in zones
/// that were written so far, and share no block; and every block of content and of checksums
/// against its checksum. Each problem is told with its file, block, zone and offset. Nothing is
/// written, and nothing is repaired: what a crash leaves is put in order when the store is opened
/// next, and a damaged file is to be had from a copy (furrow kv backup --keep-going saves the
/// others).
///
/// Exit status as of fsck(8): 0 no errors, 4 errors left, 8 the check could not be made, 16 wrong
/// usage.
#[derive(clap::Args)]
pub struct Args {
    /// Device
    device: String,
    /// Print every problem, and what was seen
    #[arg(short, long)]
    verbose: bool,
    /// Do not read the content of files
    #[arg(long)]
    metadata_only: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// If the check cannot be made.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let rt = Rt::new(config()?);
    let device = drive::open(&rt, &args.device, OpenMode::ReadOnly)?;
    let progress = Rc::new(Progress::new("checked", args.json));
    let line = progress.clone();
    let options = CheckOptions {
        content: !args.metadata_only,
        progress: Rc::new(move |done, of| line.at(done, of)),
    };
    let report = rt.block_on(async move {
        match furrow_kv::check(&*device, &options).await {
            Err(error) => Err(holds::explain_store(&*device, error).await),
            report => report,
        }
    });
    progress.end();
    rt.clear();
    let report = report?;
    let device = source_name(&args.device);
    if args.json {
        super::print_json(out, &document(&device, &report))?;
    } else {
        print(out, &device, &report, args)?;
    }
    Ok(if report.is_ok() { 0 } else { ERRORS_LEFT })
}

fn print(
    out: &mut dyn Write,
    device: &str,
    report: &CheckReport,
    args: &Args,
) -> std::io::Result<()> {
    let shown = if args.verbose { report.problems.len() } else { SHOWN };
    for problem in report.problems.iter().take(shown) {
        writeln!(out, "{device}: {}", show::printable(&problem.to_string()))?;
    }
    let hidden = report.problems.len().saturating_sub(shown) as u64 + report.more;
    if hidden > 0 {
        let hint = if args.verbose { "" } else { " (-v shows more)" };
        writeln!(out, "{device}: and {hidden} more problems{hint}")?;
    }
    for note in &report.notes {
        writeln!(out, "{device}: note: {note}")?;
    }
    let c = &report.checked;
    if args.verbose {
        writeln!(
            out,
            "{device}: label '{}', UUID {}; {} records, {} extents, {} of {} blocks of content \
             read and compared, {} blocks of checksums",
            show::printable(&report.label),
            report.uuid,
            c.records,
            c.extents,
            c.verified,
            c.blocks,
            c.sums
        )?;
    }
    let count = report.problems.len() as u64 + report.more;
    let state = match count {
        0 => "clean".to_owned(),
        1 => "1 ERROR, nothing was changed".to_owned(),
        count => format!("{count} ERRORS, nothing was changed"),
    };
    let not_read = if args.metadata_only { ", which was not read" } else { "" };
    writeln!(
        out,
        "{device}: {state}: {} files, {} directories, {} names, {} of content{not_read}",
        c.files,
        c.directories,
        c.names,
        show::bytes(c.blocks * 4096)
    )
}

fn of(problem: &Problem) -> serde_json::Value {
    json!({
        "structure": problem.structure,
        "file": problem.file,
        "block": problem.block,
        "zone": problem.place.map(|(zone, _)| zone),
        "offset": problem.place.map(|(_, offset)| offset),
        "problem": problem.what,
    })
}

fn document(device: &str, report: &CheckReport) -> serde_json::Value {
    let c = &report.checked;
    json!({
        "version": super::VERSION,
        "device": device,
        "uuid": report.uuid.to_string(),
        "label": report.label,
        "ok": report.is_ok(),
        "problems": report.problems.iter().map(of).collect::<Vec<_>>(),
        "more_problems": report.more,
        "notes": report.notes,
        "statistics": {
            "records": c.records,
            "names": c.names,
            "directories": c.directories,
            "files": c.files,
            "extents": c.extents,
            "content_blocks": c.blocks,
            "verified_blocks": c.verified,
            "checksum_blocks": c.sums,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damaged(count: usize) -> CheckReport {
        let problem = |index: usize| Problem {
            structure: "content",
            file: Some("db/1.sst".to_owned()),
            block: Some(index as u32),
            place: Some((9, 3)),
            what: "it has another checksum".to_owned(),
        };
        let problems = (0..count).map(problem).collect();
        CheckReport { problems, more: 5, ..CheckReport::default() }
    }

    fn printed(report: &CheckReport, verbose: bool) -> String {
        let args = Args { device: "d".into(), verbose, metadata_only: false, json: false };
        let mut out = Vec::new();
        print(&mut out, "d.zns", report, &args).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn problems_are_printed_up_to_a_limit_and_counted_beyond() {
        let text = printed(&damaged(30), false);
        let first = "d.zns: content: db/1.sst: block 0 (zone 9 offset 3): it has another checksum";
        assert!(text.starts_with(first), "{text}");
        assert!(text.contains("and 15 more problems (-v shows more)"), "{text}");
        assert!(text.contains("35 ERRORS"), "{text}");
        assert!(printed(&damaged(30), true).contains("block 29 "));
        let json = document("d.zns", &damaged(2));
        assert_eq!((&json["ok"], &json["more_problems"]), (&false.into(), &5.into()));
        assert_eq!((&json["problems"][1]["zone"], &json["version"]), (&9.into(), &1.into()));
    }
}
