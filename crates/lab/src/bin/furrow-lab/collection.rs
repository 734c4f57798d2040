//! `furrow-lab bound` and `furrow-lab collection`: the cost of garbage collection of blob files.

use anyhow::Context as _;
use furrow_console::show;
use furrow_lab::calibrate::markdown;
use furrow_lab::collection::{self, Limit, Run, Shape};
use furrow_zone::{ByteLen, size};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Spaces at which schemes are compared, as shares of the nominal drive.
const SPACES: [f64; 5] = [0.9, 1.0, 1.25, 1.5, 2.0];

#[derive(clap::Args)]
pub struct Bound {
    /// The trace: a line `key,size`, then a line for each write; size 0 deletes the key
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Size of a zone
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "16MiB")]
    zone_size: ByteLen,
    /// Size of a memtable, which flushes each of its keys once, in ascending order
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "1MiB")]
    memtable: ByteLen,
    /// Bytes written between two points at which the bound counts used space
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "4MiB")]
    step: ByteLen,
    /// Number of spaces, from the least that cleaning can keep to up to the one in which nothing
    /// is copied
    #[arg(long, value_name = "N", default_value_t = 12)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    points: u64,
    /// Number of subgradient steps for each space
    #[arg(long, value_name = "N", default_value_t = 600)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Live share of the nominal drive, for the lines of JSON
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    live: f64,
    /// Size of the nominal drive, for the lines of JSON
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    nominal: u64,
    /// Print a line of JSON for each space
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub struct Collection {
    /// Holds collection.md, and collection/ with runs.jsonl and bound.jsonl
    #[arg(value_name = "DIR", default_value = "docs/research")]
    folder: PathBuf,
}

/// Runs `furrow-lab bound`.
pub fn bound(args: &Bound, out: &mut dyn Write) -> anyhow::Result<u8> {
    let writes = collection::trace(&read(&args.trace)?);
    let writes = writes.with_context(|| args.trace.display().to_string())?;
    let shape = Shape { zone: args.zone_size.0, memtable: args.memtable.0, step: args.step.0 };
    let zones =
        collection::zones(&writes, &shape).with_context(|| args.trace.display().to_string())?;
    let what = (args.live, args.nominal, writes.iter().map(|write| write.size).sum());
    let limits = collection::limits(&zones, what, args.points, args.rounds as usize);
    if args.json {
        for limit in limits {
            show::json_line(out, &limit)?;
        }
        return Ok(0);
    }
    writeln!(
        out,
        "{} zones of {}; space from {} (each zone cleaned when it is full) to {} (nothing copied)",
        zones.zones.len(),
        show::bytes(zones.size),
        show::bytes(zones.least_space()),
        show::bytes(zones.free_space()),
    )?;
    let row = |limit: Limit| [limit.space, limit.lower.ceil() as u64, limit.upper];
    let rows = limits.into_iter().map(|limit| row(limit).map(show::bytes));
    show::plain(out, &["space", "copied at least", "clairvoyant"], rows)?;
    Ok(0)
}

fn parse_bytes(text: &str) -> Result<ByteLen, String> {
    size::parse(text).map_err(|what| format!("`{text}` {what}"))
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Runs `furrow-lab collection`: pictures and tables of the measurements.
pub fn collection(args: &Collection, out: &mut dyn Write) -> anyhow::Result<u8> {
    let pictures = args.folder.join("collection");
    let (runs, limits) = (pictures.join("runs.jsonl"), pictures.join("bound.jsonl"));
    let runs: Vec<Run> =
        collection::lines(&read(&runs)?).with_context(|| runs.display().to_string())?;
    let limits: Vec<Limit> =
        collection::lines(&read(&limits)?).with_context(|| limits.display().to_string())?;
    let document = args.folder.join("collection.md");
    let mut text = read(&document)?;
    for (part, new) in [
        ("comparison", collection::comparison(&runs, &limits, &SPACES)),
        ("runs", collection::runs_table(&runs)),
    ] {
        text = markdown::with_part(&text, part, &new)
            .with_context(|| document.display().to_string())?;
    }
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    for picture in collection::pictures(&runs, &limits) {
        write(&pictures.join(&picture.file), &picture.plot.svg())?;
    }
    write(&document, &text)?;
    writeln!(out, "written: {}, {} runs", document.display(), runs.len())?;
    Ok(0)
}
