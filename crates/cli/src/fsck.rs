//! `furrow fsck`: checks a file system and repairs it.

pub mod consent;
pub mod repair;

use crate::findings::{Drive, Findings, Violation};
use crate::holds::{self, Needs};
use crate::progress::Progress;
use crate::show;
use crate::target::{self, source_name};
use anyhow::anyhow;
use furrow_console::program::misused;
use furrow_fs::{Finding, FsckOptions, FsckReport, fsck};
use furrow_rt::{Completion, Config, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Command, Geometry, Outcome, QueueId, Reports, Request, ZoneId};
use furrow_zone::{Error, ZonedDevice};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;

/// Check a file system, and repair it
///
/// The file system must not be mounted. Without --repair, -y, -p or -a it is only read. A repair is
/// first made on a copy-on-write view in memory and checked there. The repair is written to the
/// device only if that check finds no errors or, if you agree, fewer than before. Lost files and
/// names are listed by path. Damaged content stays as it is: reading it fails.
///
/// Exit status as of fsck(8), added up: 0 no errors, 1 errors corrected, 4 errors left, 8 the check
/// could not be made, 16 wrong usage, 32 cancelled by you.
#[derive(Clone, clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Print every finding, and the counts of what was checked
    #[arg(short, long)]
    verbose: bool,
    /// Do not read the content of files
    #[arg(long)]
    metadata_only: bool,
    /// Repair what can be repaired; ask before any data is given up
    #[arg(long)]
    repair: bool,
    /// Change nothing; with --repair, show what the repair would do
    #[arg(short, long = "dry-run", conflicts_with_all = ["yes", "preen"])]
    n: bool,
    /// Check even after a clean unmount: this is always done
    #[arg(short = 'f', long = "force")]
    _force: bool,
    /// Repair what can be repaired without asking
    #[arg(short, long, conflicts_with = "preen")]
    yes: bool,
    /// Repair, but change nothing if data would be given up or an error would stay (also -a)
    #[arg(short, long, short_alias = 'a')]
    preen: bool,
    /// If the newest checkpoint is damaged, use the checkpoint before it; later changes are lost
    #[arg(long)]
    older_checkpoint: bool,
    /// Turn damaged blocks of content into holes, which read as zeros instead of errors
    #[arg(long)]
    zero_bad_data: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let repairs = args.repair || args.yes || args.preen;
    for (given, option) in
        [(args.zero_bad_data, "--zero-bad-data"), (args.older_checkpoint, "--older-checkpoint")]
    {
        if given && !repairs {
            let why = format!("{option} is for repairs: add --repair (and -n to see what it does)");
            return Err(misused(&why));
        }
    }
    let args = &Args { device: target::unmounted(args.device.as_ref())?, ..args.clone() };
    if repairs {
        return repair::run(args, out);
    }
    let report = check(args)?;
    if args.json {
        show::json(out, &document(&source_name(&args.device), &report))?;
    } else {
        print(out, &source_name(&args.device), &report, args.verbose)?;
    }
    Ok(report.exit_code())
}

fn check(args: &Args) -> anyhow::Result<FsckReport> {
    let rt = Rt::new(Config::real());
    let watched = open(args, &rt, Access::ReadOnly)?;
    let device = watched.clone();
    let options = args.check();
    let report = rt.block_on(async move {
        match fsck(device.clone(), &options).await {
            Err(error) => Err(holds::explain(&*device, Needs::FileSystem, error).await),
            report => report,
        }
    });
    watched.progress.end();
    rt.clear();
    report.map_err(|error: Error| anyhow!(error))
}

fn open(args: &Args, rt: &Rt, access: Access) -> anyhow::Result<Rc<Watched>> {
    let spec: DeviceSpec = args.device.parse()?;
    let drive: Rc<dyn ZonedDevice> = crate::in_use::open_now(rt, &spec, access)?;
    let geometry = drive.geometry().clone();
    let (drive, read) = (RefCell::new(Some(drive)), Cell::new(0));
    let progress = Progress::new("", args.json);
    Ok(Rc::new(Watched { geometry, drive, progress, read }))
}

impl Args {
    fn check(&self) -> FsckOptions {
        FsckOptions { verify_data: !self.metadata_only }
    }
}

/// A drive that counts its reads.
struct Watched {
    geometry: Geometry,
    /// `None` only while the drive is being reopened.
    drive: RefCell<Option<Rc<dyn ZonedDevice>>>,
    progress: Progress,
    /// Number of bytes that were read.
    read: Cell<u64>,
}

impl Watched {
    /// Reopens the drive for writing. Nothing may be in flight.
    fn open_to_write(&self, args: &Args, rt: &Rt) -> anyhow::Result<()> {
        let spec: DeviceSpec = args.device.parse()?;
        // The executor holds the drive too, and a drive can be open only once.
        rt.clear();
        self.drive.replace(None);
        self.drive.replace(Some(crate::in_use::open_now(rt, &spec, Access::ReadWrite)?));
        Ok(())
    }

    fn drive(&self) -> Rc<dyn ZonedDevice> {
        self.drive.borrow().clone().expect("invariant: nobody uses it while it is opened again")
    }
}

impl ZonedDevice for Watched {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome> {
        if let Command::Read { blocks, .. } = request.command {
            self.read.update(|read| read + blocks.0 * self.geometry.block_size.0);
            let told = || format!("checking: {} read", show::bytes(self.read.get()));
            self.progress.tell(told);
        }
        self.drive().submit(queue, request)
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        Box::pin(async move { self.drive().report(first, count).await })
    }

    fn answers(&self) -> bool {
        self.drive().answers()
    }

    fn misses(&self) -> u64 {
        self.drive().misses()
    }

    fn name(&self) -> String {
        self.drive().name()
    }
}

impl Violation for Finding {
    type Counts = FsckReport;

    fn block_of(&self) -> Option<(String, &str)> {
        let of_blocks = matches!(self.structure, "data" | "pointer" | "node");
        let inode = self.inode.filter(|_| of_blocks)?;
        Some((inode.to_string(), self.structure))
    }

    fn counted(&self, report: &FsckReport) -> u64 {
        report.kept.more(&self.about())
    }
}

fn print(
    out: &mut dyn Write,
    device: &str,
    report: &FsckReport,
    verbose: bool,
) -> std::io::Result<()> {
    let findings = Findings {
        device,
        found: &report.findings,
        more: report.more_findings,
        counts: report,
        notes: &report.notes,
        noun: "findings",
        drive: Drive::Unchanged,
    };
    findings.print(out, verbose)?;
    let s = &report.statistics;
    if verbose {
        writeln!(
            out,
            "{device}: label '{}', UUID {}, checkpoint {}; {}, {} of {} read and compared, \
             {}, {}, {}",
            report.label,
            report.uuid,
            report.checkpoint,
            show::count(s.nodes, "node"),
            s.verified_blocks,
            show::count(s.data_blocks, "data block"),
            show::count(s.summaries, "summary"),
            show::count(s.table_blocks, "table block"),
            show::count(s.sync_records, "sync record"),
        )?;
    }
    let state = findings.errors().unwrap_or_else(|| match report.clean {
        true => "clean".to_owned(),
        false => "no errors; not unmounted, the next mount recovers it".to_owned(),
    });
    writeln!(
        out,
        "{device}: {state}: {}, {}, {}, {} of content",
        show::count(s.inodes.saturating_sub(s.directories), "file"),
        show::count(s.directories, "directory"),
        show::count(s.entries, "name"),
        show::bytes(s.data_blocks * 4096),
    )
}

/// A finding as JSON.
pub fn finding(finding: &Finding) -> serde_json::Value {
    serde_json::json!({
        "structure": finding.structure,
        "inode": finding.inode,
        "path": finding.path,
        "place": finding.place,
        "expected": finding.expected,
        "found": finding.found,
    })
}

fn document(device: &str, report: &FsckReport) -> serde_json::Value {
    let s = &report.statistics;
    let paths: BTreeMap<_, _> = report.findings.iter().map(|f| (f.inode, &f.path)).collect();
    serde_json::json!({
        "version": 2,
        "device": device,
        "label": report.label,
        "uuid": report.uuid,
        "checkpoint": report.checkpoint,
        "ok": report.is_ok(),
        "unmounted": report.clean,
        "clean": report.is_ok() && report.clean,
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "more_findings": report.more_findings,
        "not_listed": report.kept.counted().map(|((inode, structure), count)| json!({
            "structure": structure,
            "inode": inode,
            "path": paths.get(inode).filter(|_| inode.is_some()),
            "count": count,
        })).collect::<Vec<_>>(),
        "notes": report.notes,
        "statistics": {
            "inodes": s.inodes,
            "directories": s.directories,
            "entries": s.entries,
            "nodes": s.nodes,
            "data_blocks": s.data_blocks,
            "verified_blocks": s.verified_blocks,
            "summaries": s.summaries,
            "table_blocks": s.table_blocks,
            "sync_records": s.sync_records,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(report: &FsckReport) -> String {
        let mut out = Vec::new();
        print(&mut out, "d.zns", report, false).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn findings_say_what_was_expected() {
        let finding = Finding {
            structure: "inode",
            inode: Some(1),
            path: Some("/".into()),
            place: "inode 1, links".into(),
            expected: "2".into(),
            found: "3".into(),
        };
        let report = FsckReport { findings: vec![finding], ..FsckReport::default() };
        let text = printed(&report);
        let first = "d.zns: /: inode: inode 1, links: expected 2, found 3\n\
                     d.zns: 1 ERROR, nothing was changed: 0 files";
        assert!(text.starts_with(first), "{text}");
        let json = document("d.zns", &report);
        assert_eq!((&json["ok"], &json["more_findings"]), (&false.into(), &0.into()));
        assert_eq!(json["findings"][0]["place"], "inode 1, links");
        // In JSON as in the text, "clean" means that there are no errors, not just a clean unmount.
        let unmounted = FsckReport { clean: true, ..report };
        assert!(!printed(&unmounted).contains("clean"));
        let json = document("d.zns", &unmounted);
        assert_eq!((&json["clean"], &json["unmounted"]), (&false.into(), &true.into()));
        let sound = FsckReport { clean: true, ..FsckReport::default() };
        assert_eq!(document("d.zns", &sound)["clean"], true);
        assert!(printed(&sound).contains("clean"));
    }

    #[test]
    fn an_unclean_end_is_no_error() {
        let mut report = FsckReport::default();
        assert!(printed(&report).contains("the next mount recovers it"));
        report.clean = true;
        assert!(printed(&report).starts_with("d.zns: clean: 0 files"));
    }
}
