//! `furrow kv trace`: shows a recorded run.

use crate::show;
use anyhow::Context as _;
use furrow_kv::trace::{Op, Record, Recording};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;

/// Show a recorded run
///
/// 'furrow run --record FILE' makes a recording, and so does the option record=FILE of a URI. Shows
/// for each kind of call the number of calls and of failures, the bytes written or read, and the
/// time taken.
#[derive(clap::Args)]
pub struct Args {
    /// The recording
    file: PathBuf,
    /// List every call: number, begin, thread, time since the thread's previous call, and duration
    #[arg(long, short_alias = 'l')]
    list: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "list")]
    json: bool,
}

/// Number, errors, bytes and times of the calls of one kind.
#[derive(Clone, Copy, Default)]
struct Calls {
    count: u64,
    failed: u64,
    bytes: u64,
    took: u64,
}

impl Calls {
    fn add(&mut self, record: &Record) {
        self.count += 1;
        self.failed += u64::from(record.answer != 0);
        self.bytes = self.bytes.saturating_add(record.op.bytes());
        self.took = self.took.saturating_add(record.took);
    }
}

/// Runs the command.
///
/// # Errors
/// An error if there is no recording, or it is invalid.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let name = args.file.display().to_string();
    let bytes = std::fs::read(&args.file).with_context(|| name.clone())?;
    let recording = Recording::decode(&bytes).with_context(|| name.clone())?;
    if args.list {
        list(out, &recording)?;
        return Ok(0);
    }
    let (mut kinds, mut threads) = (BTreeMap::<&str, Calls>::new(), BTreeSet::new());
    let (mut files, mut gap) = (BTreeSet::new(), 0u64);
    for record in &recording.records {
        kinds.entry(record.op.name()).or_default().add(record);
        threads.insert(record.thread);
        gap = gap.saturating_add(record.gap);
        if let Op::Create { file, .. } | Op::Found { file, .. } = &record.op {
            files.insert(*file);
        }
    }
    let lasted = recording.records.iter().map(Record::end).max().unwrap_or(0);
    if args.json {
        let kinds = kinds.iter().map(|(kind, calls)| {
            json!({
                "kind": kind,
                "calls": calls.count,
                "failed": calls.failed,
                "bytes": calls.bytes,
                "took_ns": calls.took,
            })
        });
        let document = json!({
            "version": super::VERSION,
            "recording": name,
            "whole": recording.whole,
            "calls": recording.records.len(),
            "threads": threads.len(),
            "files": files.len(),
            "lasted_ns": lasted,
            "gap_ns": gap,
            "kinds": kinds.collect::<Vec<_>>(),
        });
        show::json(out, &document)?;
        return Ok(0);
    }
    let rows = kinds.iter().map(|(kind, calls)| {
        let (count, failed) = (calls.count.to_string(), calls.failed.to_string());
        let times = [calls.took, calls.took / calls.count].map(show::time);
        let front = [(*kind).to_owned(), count, failed, show::bytes(calls.bytes)];
        front.into_iter().chain(times)
    });
    writeln!(
        out,
        "{name}: {} calls of {} threads on {} files in {}; {} between calls",
        recording.records.len(),
        threads.len(),
        files.len(),
        show::time(lasted),
        show::time(gap)
    )?;
    if !recording.whole {
        writeln!(out, "{name}: cut off: the program was killed, or is still running")?;
    }
    writeln!(out)?;
    show::plain(out, &["call", "calls", "failed", "bytes", "took", "mean"], rows)?;
    Ok(0)
}

/// The arguments of a call, in a few words.
fn about(op: &Op) -> String {
    match op {
        Op::Found { file, size, path } => format!("file {file} {} +{size}", show::printable(path)),
        Op::Create { file, path, .. } | Op::Open { file, path } => {
            format!("file {file} {}", show::printable(path))
        }
        Op::Close { file } | Op::Sync { file } | Op::Flush { file } => format!("file {file}"),
        Op::Append { file, offset, len, .. }
        | Op::AppendAt { file, offset, len, .. }
        | Op::RangeSync { file, offset, len }
        | Op::Read { file, offset, len, .. } => format!("file {file} at {offset} +{len}"),
        Op::Truncate { file, size } => format!("file {file} at {size}"),
        Op::SetLifetime { file, lifetime } => format!("file {file} {lifetime:?}"),
        Op::ReadBegin { read, file, offset, len } => {
            format!("read {read} file {file} at {offset} +{len}")
        }
        Op::ReadWait { read, got } => format!("read {read} +{got}"),
        Op::SyncNames | Op::SyncAll => String::new(),
        Op::Rename { from, to } | Op::Link { from, to } => {
            format!("{} {}", show::printable(from), show::printable(to))
        }
        Op::FoundDirectory { path }
        | Op::Remove { path }
        | Op::MakeDirectory { path }
        | Op::RemoveDirectory { path }
        | Op::Stat { path }
        | Op::List { path } => show::printable(path),
        Op::SetFamily { path, family } => {
            format!("{} {}", show::printable(path), show::printable(family))
        }
    }
}

fn list(out: &mut dyn Write, recording: &Recording) -> io::Result<()> {
    for record in &recording.records {
        let Record { order, thread, begin, took, gap, answer, op } = record;
        let failed = if *answer == 0 { String::new() } else { format!("  failed ({answer})") };
        writeln!(
            out,
            "{order:>8} {:>12} thread {thread:<3} {:>10} {:>10}  {} {}{failed}",
            show::time(*begin),
            show::time(*gap),
            show::time(*took),
            op.name(),
            about(op)
        )?;
    }
    Ok(())
}
