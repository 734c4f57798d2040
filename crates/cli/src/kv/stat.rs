//! `furrow kv stat`: shows figures of a store.

use super::df::{self, Sum};
use super::drive::Looked;
use super::kind::Kind;
use crate::daemon::utc;
use crate::show;
use crate::target::source_name;
use furrow_kv::{Node, Snapshot, Space, ZoneUse};
use furrow_metrics::Page;
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Show figures of a store
///
/// Shows files, zones by use, the record ring, and garbage that cleaning could free, as found on
/// the drive. While a program uses the store, also the store's work since the program opened it:
/// calls, calls that another thread carried out, bytes copied by kind, and waits for space.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// The numbers that the command shows.
struct Figures {
    device: String,
    uuid: String,
    label: String,
    created: i64,
    turn: u64,
    round: u64,
    record: u64,
    ring: (u64, u64),
    names: u64,
    directories: u64,
    space: Space,
    kinds: BTreeMap<Kind, Sum>,
    zones: Vec<(&'static str, u64)>,
    active: u64,
    written: u64,
    valid: u64,
}

impl Figures {
    fn of(device: String, store: &Snapshot) -> Figures {
        let (mut names, mut directories) = (0, 0);
        for (_, node) in store.names() {
            match node {
                Node::Directory => directories += 1,
                Node::File(_) => names += 1,
            }
        }
        let zones = store.zones();
        let count = |usage| zones.iter().filter(|zone| zone.usage == usage).count() as u64;
        let content =
            zones.iter().filter(|zone| matches!(zone.usage, ZoneUse::Open | ZoneUse::Full));
        let bytes = |blocks: u32| u64::from(blocks) * 4096;
        Figures {
            device,
            uuid: store.uuid().to_string(),
            label: store.label().to_owned(),
            created: store.created(),
            turn: store.turn(),
            round: store.round(),
            record: store.record(),
            ring: store.ring(),
            names,
            directories,
            space: store.space(),
            kinds: df::sums(store),
            zones: ZoneUse::ALL.map(|usage| (usage.name(), count(usage))).into(),
            active: zones.iter().filter(|zone| zone.active).count() as u64,
            written: content.clone().map(|zone| bytes(zone.written)).sum(),
            valid: content.map(|zone| bytes(zone.valid)).sum(),
        }
    }

    fn all(&self, of: impl Fn(&Sum) -> u64) -> u64 {
        self.kinds.values().map(of).sum()
    }

    fn garbage(&self) -> u64 {
        self.written.saturating_sub(self.valid)
    }
}

/// Runs the command.
///
/// # Errors
/// An error if there is no store.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let looked = match Looked::open(&args.device) {
        Ok(looked) => looked,
        Err(error) => return running(args, error, out),
    };
    let figures = Figures::of(source_name(&args.device), looked.store());
    match (args.json, args.prometheus) {
        (true, _) => show::json(out, &document(&figures))?,
        (_, true) => out.write_all(prometheus(&figures).as_bytes())?,
        _ => print(out, &figures)?,
    }
    Ok(0)
}

/// Prints the numbers of the program that uses the store.
fn running(args: &Args, error: anyhow::Error, out: &mut dyn Write) -> anyhow::Result<u8> {
    let running = super::running::instead(&args.device, error)?;
    let device = source_name(&args.device);
    match (args.json, args.prometheus) {
        (true, _) => show::json(out, &running.document(&device))?,
        (_, true) => out.write_all(running.prometheus(&device).as_bytes())?,
        _ => running.print(out, &device)?,
    }
    Ok(0)
}

fn document(f: &Figures) -> serde_json::Value {
    let kinds = f.kinds.iter().map(|(kind, sum)| {
        json!({
            "kind": kind.name(),
            "files": sum.files,
            "bytes": sum.bytes,
            "disk_bytes": sum.disk,
            "extents": sum.extents,
        })
    });
    let zones = f.zones.iter().map(|(name, count)| ((*name).to_owned(), json!(count)));
    json!({
        "version": super::VERSION,
        "device": f.device,
        "uuid": f.uuid,
        "label": f.label,
        "created": f.created,
        "round": f.round,
        "ring": {
            "turn": f.turn,
            "record": f.record,
            "half_bytes": f.ring.0,
            "written_bytes": f.ring.1,
        },
        "names": f.names,
        "directories": f.directories,
        "files": f.all(|sum| sum.files),
        "file_bytes": f.all(|sum| sum.bytes),
        "extents": f.all(|sum| sum.extents),
        "size_bytes": f.space.capacity,
        "used_bytes": f.space.used,
        "available_bytes": f.space.available,
        "written_bytes": f.written,
        "garbage_bytes": f.garbage(),
        "active_zones": f.active,
        "zones": zones.collect::<Map<_, _>>(),
        "kinds": kinds.collect::<Vec<_>>(),
    })
}

/// A metric family with a sample for each kind: name, help, and value.
type Family = (&'static str, &'static str, fn(&Sum) -> u64);

fn prometheus(f: &Figures) -> String {
    let mut page = Page::new("furrow_kv", &[("device", &f.device), ("store", &f.uuid)]);
    page.family("space_bytes", "gauge", "Space for files");
    for (state, bytes) in [
        ("size", f.space.capacity),
        ("used", f.space.used),
        ("available", f.space.available),
        ("garbage", f.garbage()),
    ] {
        page.sample("space_bytes", &[("state", state)], bytes);
    }
    page.family("zones", "gauge", "Zones, by use");
    for (name, count) in &f.zones {
        page.sample("zones", &[("use", *name)], count);
    }
    page.one("active_zones", "gauge", "Zones that the drive counts as active", f.active);
    page.one("names", "gauge", "Names of files", f.names);
    page.one("directories", "gauge", "Directories", f.directories);
    let families: [Family; 4] = [
        ("files", "Files, by kind", |sum| sum.files),
        ("file_bytes", "Bytes of files, by kind", |sum| sum.bytes),
        ("file_disk_bytes", "Bytes of the drive that files take, by kind", |sum| sum.disk),
        ("extents", "Runs of blocks of files, by kind", |sum| sum.extents),
    ];
    for (name, help, of) in families {
        page.family(name, "gauge", help);
        for (kind, sum) in &f.kinds {
            page.sample(name, &[("kind", kind.name())], of(sum));
        }
    }
    page.one("rounds_total", "counter", "Group commits that made names and files durable", f.round);
    page.one("ring_turns_total", "counter", "Number of times that the record ring turned", f.turn);
    page.one("ring_records_total", "counter", "Records written to the ring", f.record);
    page.one("ring_half_bytes", "gauge", "Size of each half of the ring", f.ring.0);
    page.one(
        "ring_written_bytes",
        "gauge",
        "Bytes written to the current half of the ring",
        f.ring.1,
    );
    page.finish()
}

/// The metrics of a store with a file.
#[cfg(test)]
pub fn sample() -> String {
    let space =
        Space { capacity: 1, used: 1, available: 0, zones: 1, free_zones: 0, peak_zones: 1 };
    prometheus(&Figures {
        device: "d".to_owned(),
        uuid: "u".to_owned(),
        label: String::new(),
        created: 0,
        turn: 0,
        round: 0,
        record: 0,
        ring: (1, 0),
        names: 1,
        directories: 0,
        space,
        kinds: BTreeMap::from([(Kind::Sst, Sum::default())]),
        zones: ["ring", "free", "open", "full", "conventional", "failed"]
            .map(|name| (name, 1))
            .into(),
        active: 0,
        written: 1,
        valid: 1,
    })
}

fn print(out: &mut dyn Write, f: &Figures) -> io::Result<()> {
    let label = if f.label.is_empty() { "(none)" } else { &f.label };
    writeln!(out, "{}: file store {}, label {label}", f.device, f.uuid)?;
    let made = utc(u64::try_from(f.created).unwrap_or(0));
    let (half, written) = (show::bytes(f.ring.0), show::bytes(f.ring.1));
    let files = format!(
        "{} with {} in {}, {} in {}",
        f.all(|sum| sum.files),
        show::count(f.names, "name"),
        show::count(f.directories, "directory"),
        show::bytes(f.all(|sum| sum.bytes)),
        show::count(f.all(|sum| sum.extents), "extent")
    );
    let garbage = format!(
        "{} of {} written ({})",
        show::bytes(f.garbage()),
        show::bytes(f.written),
        show::percent(f.garbage(), f.written)
    );
    let zones = f.zones.iter().filter(|(_, count)| *count > 0);
    let zones: Vec<String> = zones.map(|(name, count)| format!("{count} {name}")).collect();
    let facts = [
        ("made", made),
        ("round", f.round.to_string()),
        ("ring", format!("turn {}, record {}, {written} of {half}", f.turn, f.record)),
        ("files", files),
        ("garbage", garbage),
        ("zones", format!("{}; {} active", zones.join(", "), f.active)),
    ];
    show::facts(out, (2, 8), facts)?;
    writeln!(out)?;
    df::print_space(out, &f.device, &f.space)?;
    writeln!(out)?;
    let rows = f.kinds.iter().map(|(kind, sum)| {
        let mean = sum.bytes.checked_div(sum.extents).map_or_else(|| "-".to_owned(), show::bytes);
        let (files, extents) = (sum.files.to_string(), sum.extents.to_string());
        [kind.name().to_owned(), files, show::bytes(sum.bytes), extents, mean]
    });
    show::plain(out, &["kind", "files", "bytes", "extents", "bytes of an extent"], rows)
}
