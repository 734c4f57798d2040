//! `furrow df`: space, inodes and write counters.

use crate::show;
use crate::target::Target;
use furrow_console::fit::Column;
use furrow_fuse::endpoint;
use furrow_fuse::report::{self, Silence, Status, Traffic};
use std::ffi::OsString;
use std::io::Write;

/// Show space, inodes and write counters
///
/// The file system is mounted (give its directory or device) or on a device that is not mounted.
/// "Free now" is the space that can be written before anything is cleaned; the other available
/// space is garbage that cleaning frees when it is needed. Counters begin at the mount.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point, or device (default: a line for each mount)
    #[arg(value_name = "DIR|DEVICE")]
    target: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let Some(target) = &args.target else { return all(args, out) };
    let target = Target::find(target)?;
    let status = target.status()?;
    if args.json {
        show::json(out, &status)?;
        return Ok(0);
    }
    match &target {
        Target::Mounted(directory) => print(out, &status, &directory.display().to_string())?,
        Target::Device(_) => print_space(out, &status, "(not mounted)")?,
    }
    Ok(0)
}

/// The JSON document for all mounts.
#[derive(serde::Serialize)]
struct Document<'a> {
    version: u32,
    mounts: Vec<Mount<'a>>,
    /// The mounts that do not answer, each with the reason.
    dead: Vec<String>,
}

#[derive(serde::Serialize)]
struct Mount<'a> {
    directory: String,
    #[serde(flatten)]
    status: &'a Status,
}

/// Prints a line for each mount. Returns exit status 1 if a mount does not answer.
fn all(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let (mut found, mut dead) = (Vec::new(), Vec::new());
    for directory in endpoint::mounted()?.into_iter().map(|mount| mount.directory) {
        match report::ask_status(&directory) {
            Ok(status) => found.push((directory.display().to_string(), status)),
            Err(error) => dead.push(format!("{error:#}")),
        }
    }
    let well = dead.is_empty();
    if args.json {
        let mounts =
            found.iter().map(|(directory, status)| Mount { directory: directory.clone(), status });
        let document = Document { version: report::VERSION, mounts: mounts.collect(), dead };
        show::json(out, &document)?;
        return Ok(u8::from(!well));
    }
    if found.is_empty() && well {
        writeln!(out, "no Furrow file system is mounted")?;
    } else if !found.is_empty() {
        show::rows(out, &HEAD, found.iter().map(|(at, status)| row(status, at)))?;
        for (_, status) in &found {
            print_failure(out, status)?;
        }
    }
    out.flush()?;
    dead.iter().for_each(|why| crate::complain(why));
    Ok(u8::from(!well))
}

/// Prints space, traffic and cleaning of the file system used at `place`.
pub fn print(out: &mut dyn Write, status: &Status, place: &str) -> std::io::Result<()> {
    print_space(out, status, place)?;
    writeln!(out)?;
    print_traffic(out, &status.counters)?;
    print_summary(out, &status.counters)
}

const HEAD: [Column<'_>; 10] = [
    Column::name("device", 0),
    Column::amount("size", 2),
    Column::amount("used", 1),
    Column::amount("use", 0),
    Column::amount("free now", 3),
    Column::amount("after cleaning", 2),
    Column::amount("inodes", 4),
    Column::amount("iused", 4),
    Column::amount("iuse", 3),
    Column::name("on", 0),
];

/// A line of the table: the file system used at `place`.
fn row(status: &Status, place: &str) -> [String; 10] {
    let space = &status.space;
    let block = u64::from(space.block_size);
    let used = space.blocks.saturating_sub(space.blocks_free);
    let inodes = space.inodes.saturating_sub(space.inodes_free);
    [
        status.info.device.clone(),
        show::bytes(space.blocks * block),
        show::bytes(used * block),
        show::percent(used, used + space.blocks_available),
        show::bytes(space.blocks_now * block),
        show::bytes(space.blocks_available * block),
        space.inodes.to_string(),
        inodes.to_string(),
        show::percent(inodes, space.inodes),
        place.to_owned(),
    ]
}

fn print_space(out: &mut dyn Write, status: &Status, place: &str) -> std::io::Result<()> {
    let space = &status.space;
    let block = u64::from(space.block_size);
    let label = if status.label.is_empty() { "(none)" } else { &status.label };
    let identity = format!("label {}, UUID {}", show::printable(label), status.uuid);
    writeln!(out, "{identity}")?;
    show::rows(out, &HEAD, [row(status, place)])?;
    print_failure(out, status)?;
    let (logs, summaries) = (space.blocks_logs, space.blocks_summaries);
    let whole = logs + summaries + space.blocks;
    let used = space.blocks - space.blocks_free.min(space.blocks);
    let kept = space.blocks.saturating_sub(used + space.blocks_available);
    writeln!(
        out,
        "\nmetadata without nodes: logs and tables {} ({} of the drive), {} of it in use; \
         summaries {} ({}). Of the size, {} is kept free for cleaning",
        show::bytes(logs * block),
        show::percent(logs, whole),
        show::bytes(space.blocks_logs_used * block),
        show::bytes(summaries * block),
        show::percent(summaries, whole),
        show::bytes(kept * block),
    )
}

/// Prints the reason if the file system takes no writes, and a line if its drive does not answer.
pub fn print_failure(out: &mut dyn Write, status: &Status) -> std::io::Result<()> {
    if let Some(Silence { seconds, waiting }) = &status.silence {
        let device = &status.info.device;
        writeln!(out, "{device}: THE DRIVE HAS NOT ANSWERED for {seconds} s: {waiting}")?;
    }
    match &status.failure {
        Some(why) => writeln!(out, "FAILED, writing has stopped: {why}"),
        None => Ok(()),
    }
}

/// Prints the bytes written since the mount, by purpose.
pub fn print_traffic(out: &mut dyn Write, t: &Traffic) -> std::io::Result<()> {
    let head = ["written since the mount", "bytes", "share", "per user byte"];
    let mut table = show::table(&head);
    let per_user_byte = |bytes: u64| match t.user_bytes {
        0 => "-".to_owned(),
        user => format!("{:.3}", bytes as f64 / user as f64),
    };
    let mut shares = show::shares(&t.kinds().map(|kind| kind.1), t.host_bytes);
    shares.push(show::percent(t.host_bytes, t.host_bytes));
    for ((what, bytes), share) in
        t.kinds().into_iter().chain([("to the drive", t.host_bytes)]).zip(shares)
    {
        table.add_row([what.to_owned(), show::bytes(bytes), share, per_user_byte(bytes)]);
    }
    table.add_row(["by users".to_owned(), show::bytes(t.user_bytes)]);
    show::print_table(out, &table)
}

fn print_summary(out: &mut dyn Write, t: &Traffic) -> std::io::Result<()> {
    let amplification =
        t.write_amplification.map_or_else(|| "-".to_owned(), |factor| format!("{factor:.2}"));
    writeln!(
        out,
        "\nwrite amplification {amplification}, write commands {}, zone resets {}, checkpoints {}, \
         fsyncs {}, cache hits {} of {} pages",
        t.write_commands,
        t.zone_resets,
        t.checkpoints,
        t.fsyncs,
        t.cache_hits,
        t.cache_hits + t.cache_misses,
    )?;
    writeln!(
        out,
        "superzones cleaned {}, which moved {} blocks of data and {} nodes, {} could not be \
         moved; waits for space {}",
        t.clean_victims,
        t.clean_data_blocks,
        t.clean_node_blocks,
        t.clean_failed_blocks,
        t.space_waits,
    )
}
