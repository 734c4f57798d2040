//! `furrow kv fsck`: checks a file store.

mod in_use;

use super::drive;
use crate::findings::{Drive, Findings, Violation};
use crate::fsck::consent::{AS_N_SAYS, Answer, CANCELLED, NOBODY_AGREED, ask, consent};
use crate::show;
use crate::target::source_name;
use furrow_kv::{CheckReport, Options, Problem};
use serde_json::json;
use std::io::Write;

/// Exit status of fsck(8): errors were corrected.
const CORRECTED: u8 = 1;
/// Exit status of fsck(8): errors are left.
const ERRORS_LEFT: u8 = 4;

/// Check a file store
///
/// Checks the record ring; that the directories of all names exist; that files lie in the written
/// part of zones and share no block; and every block of content and of checksums. Each problem is
/// reported with its file, block, zone and offset. Nothing is written: the next opening repairs the
/// traces of a crash, and a damaged file has to be replaced.
///
/// If a program uses the store, that program reads the ring, the blocks of checksums and all
/// content, as for furrow scrub: names and places are then not compared.
///
/// A store whose record ring is damaged is not opened, since files may be lost. --repair accepts
/// that loss, after the check has listed it and you have agreed; the store can then be opened.
///
/// Exit status as of fsck(8), added up: 0 no errors, 1 errors corrected, 4 errors left, 8 the check
/// could not be made, 16 wrong usage, 32 cancelled by you.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Print every problem, and the counts of what was checked
    #[arg(short, long)]
    verbose: bool,
    /// Accept the losses of a damaged record ring, and rewrite the ring without them; ask before
    #[arg(long)]
    repair: bool,
    /// Change nothing; with --repair, show what would be accepted
    #[arg(short, long = "dry-run", conflicts_with = "yes")]
    n: bool,
    /// Repair without asking
    #[arg(short, long)]
    yes: bool,
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
/// An error if the check cannot be made.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let check = || drive::check(&args.device, !args.metadata_only, "checked", args.json);
    let found = match check() {
        Err(error) => {
            return in_use::run(args, &super::running::instead(&args.device, error)?, out);
        }
        Ok(found) => found,
    };
    let of_ring = found.problems.iter().any(|problem| problem.structure == "ring");
    let repairs = (args.repair || args.yes) && of_ring;
    if !repairs {
        tell(args, Drive::Unchanged, &found, out)?;
        return Ok(if found.is_ok() { 0 } else { ERRORS_LEFT });
    }
    if !args.json {
        tell(args, Drive::ToRepair, &found, out)?;
    }
    let question = "The records that the ring has lost would be given up. Make the repair?";
    let asked = |question: &str| if args.json { None } else { ask(question) };
    let answer = match (args.n, args.yes) {
        (true, _) => Answer::Keep(AS_N_SAYS),
        (_, true) => Answer::Apply,
        _ => consent(question, NOBODY_AGREED, asked),
    };
    let (why, status) = match answer {
        Answer::Apply => ("", 0),
        Answer::Keep(why) => (why, ERRORS_LEFT),
        Answer::Cancel => ("nothing was changed", ERRORS_LEFT | CANCELLED),
    };
    if answer != Answer::Apply {
        match args.json {
            true => tell(args, Drive::Unchanged, &found, out)?,
            false => {
                let device = source_name(&args.device);
                writeln!(out, "{device}: the record ring can be repaired: {why}")?;
            }
        }
        return Ok(status);
    }
    // Opening the store writes the surviving records to another half of the ring.
    let options = Options { accept_loss: true, ..Options::default() };
    drop(drive::Changed::open_with(&args.device, options)?);
    let left = check()?;
    if !args.json {
        let device = source_name(&args.device);
        let lost = found.problems.iter().filter(|problem| problem.structure == "ring").count();
        let lost = show::count(lost as u64, "LOSS");
        writeln!(out, "{device}: MENDED: the record ring was rewritten; {lost}, listed above")?;
    }
    tell(args, Drive::Repaired, &left, out)?;
    Ok(if left.is_ok() { CORRECTED } else { CORRECTED | ERRORS_LEFT })
}

fn tell(
    args: &Args,
    drive: Drive,
    report: &CheckReport,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let device = source_name(&args.device);
    match args.json {
        true => show::json(out, &document(&device, report)),
        false => Ok(print(out, &device, report, (args, drive))?),
    }
}

impl Violation for Problem {
    type Counts = CheckReport;

    fn block_of(&self) -> Option<(String, &str)> {
        let file = self.file.clone().filter(|_| self.structure == "content")?;
        Some((file, self.structure))
    }

    fn counted(&self, report: &CheckReport) -> u64 {
        report.kept.more(&self.about())
    }
}

fn print(
    out: &mut dyn Write,
    device: &str,
    report: &CheckReport,
    (args, drive): (&Args, Drive),
) -> std::io::Result<()> {
    let findings = Findings {
        device,
        found: &report.problems,
        more: report.more,
        counts: report,
        notes: &report.notes,
        noun: "problems",
        drive,
    };
    findings.print(out, args.verbose)?;
    let c = &report.checked;
    if args.verbose {
        writeln!(
            out,
            "{device}: label '{}', UUID {}; {}, {}, {} of {} of content read and compared, {} of \
             checksums",
            show::printable(&report.label),
            report.uuid,
            show::count(c.records, "record"),
            show::count(c.extents, "extent"),
            c.verified,
            show::count(c.blocks, "block"),
            show::count(c.sums, "block")
        )?;
    }
    let state = findings.errors().unwrap_or_else(|| "clean".to_owned());
    let not_read = if args.metadata_only { ", which was not read" } else { "" };
    writeln!(
        out,
        "{device}: {state}: {}, {}, {}, {} of content{not_read}",
        show::count(c.files, "file"),
        show::count(c.directories, "directory"),
        show::count(c.names, "name"),
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
        "clean": report.is_ok(),
        "problems": report.problems.iter().map(of).collect::<Vec<_>>(),
        "more_problems": report.more,
        "not_listed": report.kept.counted().map(|((file, structure), count)| json!({
            "structure": structure,
            "file": file,
            "count": count,
        })).collect::<Vec<_>>(),
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

    #[test]
    fn problems_say_where_they_are() {
        let problem = Problem {
            structure: "content",
            file: Some("db/1.sst".to_owned()),
            block: Some(7),
            place: Some((9, 3)),
            what: "it has another checksum".to_owned(),
        };
        let report = CheckReport { problems: vec![problem], ..CheckReport::default() };
        let (verbose, repair, metadata_only, json, n, yes) = Default::default();
        let args = Args { device: "d".into(), verbose, repair, n, yes, metadata_only, json };
        let mut out = Vec::new();
        print(&mut out, "d.zns", &report, (&args, Drive::Unchanged)).unwrap();
        let text = String::from_utf8(out).unwrap();
        let first = "d.zns: content: db/1.sst: block 7 (zone 9 offset 3): it has another checksum\n\
                     d.zns: 1 ERROR, nothing was changed: 0 files";
        assert!(text.starts_with(first), "{text}");
        let json = document("d.zns", &report);
        assert_eq!((&json["ok"], &json["more_problems"]), (&false.into(), &0.into()));
        assert_eq!((&json["problems"][0]["zone"], &json["version"]), (&9.into(), &1.into()));
    }
}
