//! `furrow kv df`: shows the space of a store, and the kinds of files that use it.

use super::drive::Looked;
use super::kind::{self, Kind};
use crate::show;
use crate::target::source_name;
use furrow_console::fit::Column;
use furrow_kv::{Snapshot, Space};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;

/// Show space, and the share of each kind of files
///
/// "Used" counts valid blocks on the drive, including blocks of checksums. "Available" can still be
/// written without removing files; it excludes the reserves for compactions and manifests. If a
/// program uses the store, that program answers. Kinds follow from the names that RocksDB gives.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The sum over the files of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of files.
    pub files: u64,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// Bytes that the files take on the drive.
    pub disk: u64,
    /// Number of extents.
    pub extents: u64,
}

/// The sums by kind.
pub fn sums(store: &Snapshot) -> BTreeMap<Kind, Sum> {
    let mut sums: BTreeMap<Kind, Sum> = Kind::ALL.map(|kind| (kind, Sum::default())).into();
    for (id, kind) in kind::files(store) {
        let Some(file) = store.file(id) else { continue };
        let sum = sums.entry(kind).or_default();
        sum.files += 1;
        sum.bytes += file.size;
        sum.disk += file.blocks * 4096;
        sum.extents += u64::from(file.extents);
    }
    sums
}

/// Runs the command.
///
/// # Errors
/// An error if there is no store.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let device = source_name(&args.device);
    let (uuid, label, space, sums) = match Looked::open(&args.device) {
        Ok(looked) => {
            let store = looked.store();
            (store.uuid().to_string(), store.label().to_owned(), store.space(), sums(store))
        }
        Err(error) => {
            let running = super::running::instead(&args.device, error)?;
            let (uuid, label) = running.names();
            (uuid.to_owned(), label.to_owned(), running.space(), running.sums())
        }
    };
    if args.json {
        let kinds = sums.iter().map(|(kind, sum)| {
            json!({
                "kind": kind.name(),
                "files": sum.files,
                "bytes": sum.bytes,
                "disk_bytes": sum.disk,
            })
        });
        let document = json!({
            "version": super::VERSION,
            "device": device,
            "uuid": uuid,
            "label": label,
            "size_bytes": space.capacity,
            "used_bytes": space.used,
            "available_bytes": space.available,
            "kinds": kinds.collect::<Vec<_>>(),
        });
        show::json(out, &document)?;
        return Ok(0);
    }
    print_space(out, &device, &space)?;
    writeln!(out)?;
    let disk: Vec<u64> = sums.values().map(|sum| sum.disk).collect();
    let rows = sums.iter().zip(show::shares(&disk, space.used)).map(|((kind, sum), share)| {
        [
            kind.name().to_owned(),
            kind.pattern().to_owned(),
            sum.files.to_string(),
            show::bytes(sum.bytes),
            show::bytes(sum.disk),
            share,
        ]
    });
    show::rows(out, &KINDS, rows)?;
    Ok(0)
}

const KINDS: [Column<'_>; 6] = [
    Column::word("kind", 0),
    Column::amount("names", 2),
    Column::amount("files", 1),
    Column::amount("bytes", 3),
    Column::amount("on the drive", 0),
    Column::amount("share", 1),
];
const SPACE: [Column<'_>; 5] = [
    Column::name("device", 0),
    Column::amount("size", 1),
    Column::amount("used", 0),
    Column::amount("use", 2),
    Column::amount("available", 0),
];

/// Prints the space of the store on `device`.
///
/// # Errors
/// The error of writing.
pub fn print_space(out: &mut dyn Write, device: &str, space: &Space) -> std::io::Result<()> {
    let row = [
        device.to_owned(),
        show::bytes(space.capacity),
        show::bytes(space.used),
        show::percent(space.used, space.capacity),
        show::bytes(space.available),
    ];
    show::rows(out, &SPACE, [row])
}
