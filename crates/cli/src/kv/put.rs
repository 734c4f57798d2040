//! `furrow kv put`: copies a file into a store.

use super::drive::{Changed, plain};
use super::ls::Life;
use crate::progress::Progress;
use crate::show;
use crate::target::source_name;
use anyhow::{Context as _, Result, bail};
use furrow_kv::Node;
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Copy a file into the store
///
/// The file is durable when this ends. A file that is replaced stays unchanged until the new one is
/// complete and durable. Missing directories are made.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// File, - for standard input
    file: PathBuf,
    /// Name of the file in the store
    path: String,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
    /// Expected lifetime: files of the same lifetime share zones
    #[arg(long, value_name = "LIFETIME", value_enum, default_value = "not-set")]
    lifetime: Life,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// An error if the file cannot be read or written; then no file was made or replaced, but
/// directories may have been made.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let path = plain(&args.path);
    if path.is_empty() || args.path.ends_with('/') {
        bail!("'{}': expected the path of a file, as in db/CURRENT", args.path);
    }
    let (mut from, size): (Box<dyn Read>, u64) = match args.file == Path::new("-") {
        true => (Box::new(std::io::stdin().lock()), 0),
        false => {
            let what = || args.file.display().to_string();
            let file = File::open(&args.file).with_context(what)?;
            let meta = file.metadata().with_context(what)?;
            if meta.is_dir() {
                bail!("{}: a directory: furrow kv restore copies directories", what());
            }
            (Box::new(file), meta.len())
        }
    };
    let store = Changed::open(&args.device)?;
    match store.node(&path)? {
        Some(Node::Directory) => bail!("{path}: a directory"),
        Some(Node::File(_)) if !args.force => {
            bail!("{path}: is there already: --force replaces it");
        }
        _ => {}
    }
    let capacity = store.store().space().capacity;
    if size > capacity {
        bail!("{path}: {size} bytes do not fit: the store holds {capacity} in all");
    }
    if let Some((parent, _)) = path.rsplit_once('/') {
        store.make_directories(parent)?;
    }
    let progress = Progress::new("written", args.json);
    let mut done = 0;
    let written = store.write(&path, args.lifetime.lifetime(), &mut from, &mut |bytes| {
        done += bytes;
        progress.at(done, size);
    });
    progress.end();
    let bytes = written.with_context(|| path.clone())?;
    store.sync_names()?;
    if args.json {
        let document = json!({
            "version": super::VERSION,
            "device": source_name(&args.device),
            "path": path,
            "bytes": bytes,
        });
        show::json(out, &document)?;
    } else {
        writeln!(out, "{}: {}", show::printable(&path), show::bytes(bytes))?;
    }
    Ok(0)
}
