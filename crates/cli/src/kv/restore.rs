//! `furrow kv restore`: copies a directory of this machine into a store.

use super::drive::{Changed, plain};
use crate::progress::Progress;
use crate::show;
use crate::target::source_name;
use anyhow::{Context as _, Result, bail};
use furrow_kv::{Lifetime, Node};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Copy a directory of this machine into the store
///
/// Each file is durable before the next one begins, and appears under its name only when it is
/// complete. A file with several names keeps them. Files get the time at which they are written,
/// and no lifetime. Nothing is removed.
#[derive(clap::Args)]
pub struct Args {
    /// Directory
    directory: PathBuf,
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Directory in the store, created if it is missing (default: the root)
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    /// Replace existing files
    #[arg(short, long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A file or directory to be copied.
struct Item {
    from: PathBuf,
    to: String,
    kind: What,
}

enum What {
    Directory,
    File { size: u64, number: (u64, u64) },
}

/// Runs the command.
///
/// # Errors
/// An error if an entry of the directory is neither file nor directory, would replace a file, or
/// does not fit; then nothing was copied. An error if an entry cannot be read or written; files
/// copied before stay.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let mut items = Vec::new();
    gather(&args.directory, &plain(&args.path), &mut items)?;
    let store = Changed::open(&args.device)?;
    // A path that leads out of the store is refused here.
    if let Some(Node::File(_)) = store.node(&args.path)? {
        bail!("{}: a file, not a directory", args.path);
    }
    let (blocks, bytes) = check(&store, args, &items)?;
    let space = store.store().space();
    if blocks * 4096 > space.available {
        bail!(
            "{}: {} are needed, {} are available: nothing was copied",
            args.device,
            show::bytes(blocks * 4096),
            show::bytes(space.available)
        );
    }
    let progress = Progress::new("copied", args.json);
    let copied = copy(&store, args, &items, (bytes, &progress));
    progress.end();
    let (files, directories) = copied?;
    if args.json {
        let document = json!({
            "version": super::VERSION,
            "directory": args.directory.display().to_string(),
            "device": source_name(&args.device),
            "path": plain(&args.path),
            "files": files,
            "directories": directories,
            "bytes": bytes,
        });
        show::json(out, &document)?;
    } else {
        let device = source_name(&args.device);
        let bytes = show::bytes(bytes);
        let (files, directories) =
            (show::count(files, "file"), show::count(directories, "directory"));
        writeln!(out, "{device}: {files}, {directories}, {bytes}")?;
    }
    Ok(0)
}

/// Adds everything below `directory` to `items`, each directory before its content. `to` is the
/// path of `directory` in the store.
fn gather(directory: &Path, to: &str, items: &mut Vec<Item>) -> Result<()> {
    let what = || directory.display().to_string();
    let entries = fs::read_dir(directory).with_context(what)?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().with_context(what)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let from = entry.path();
        let what = || from.display().to_string();
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            bail!("{}: a name that is not UTF-8; the store accepts only UTF-8", from.display());
        };
        let to = if to.is_empty() { name.to_owned() } else { format!("{to}/{name}") };
        // Symbolic links are not followed.
        let meta = fs::symlink_metadata(&from).with_context(what)?;
        if meta.is_dir() {
            items.push(Item { from: from.clone(), to: to.clone(), kind: What::Directory });
            gather(&from, &to, items)?;
        } else if meta.is_file() {
            let kind = What::File { size: meta.len(), number: (meta.dev(), meta.ino()) };
            items.push(Item { from: from.clone(), to, kind });
        } else {
            bail!("{}: a store holds files and directories only: remove it", what());
        }
    }
    Ok(())
}

/// Checks that nothing is in the way of `items`. Returns the number of blocks that the files need,
/// and the total size of the files in bytes.
fn check(store: &Changed, args: &Args, items: &[Item]) -> Result<(u64, u64)> {
    let mut sizes = BTreeMap::new();
    for item in items {
        let there = store.node(&item.to)?;
        match (&item.kind, there) {
            (What::Directory, Some(Node::File(_))) => bail!("{}: a file is there", item.to),
            (What::File { .. }, Some(Node::Directory)) => {
                bail!("{}: a directory is there", item.to);
            }
            (What::File { .. }, Some(Node::File(_))) if !args.force => {
                bail!("{}: is there already: --force replaces it; nothing was copied", item.to);
            }
            _ => {}
        }
        if let What::File { size, number } = item.kind {
            sizes.insert(number, size);
        }
    }
    // A file has at most one block of checksums for every 998 blocks of content.
    let blocks = sizes.values().map(|size| size.div_ceil(4096) + size.div_ceil(998 * 4096));
    Ok((blocks.sum(), sizes.values().sum()))
}

fn copy(
    store: &Changed,
    args: &Args,
    items: &[Item],
    (of, progress): (u64, &Progress),
) -> Result<(u64, u64)> {
    store.make_directories(&args.path)?;
    let (mut files, mut directories, mut done) = (0, 0, 0);
    let mut first: BTreeMap<(u64, u64), &str> = BTreeMap::new();
    for item in items {
        let number = match item.kind {
            What::Directory => {
                store.make_directories(&item.to)?;
                directories += 1;
                continue;
            }
            What::File { number, .. } => number,
        };
        files += 1;
        if let Some(first) = first.get(&number) {
            if store.node(&item.to)?.is_some() {
                store.store().remove(&item.to)?;
            }
            store.store().link(first, &item.to)?;
            continue;
        }
        let what = || item.from.display().to_string();
        let mut from = File::open(&item.from).with_context(what)?;
        let written = store.write(&item.to, Lifetime::NotSet, &mut from, &mut |bytes| {
            done += bytes;
            progress.at(done, of);
        });
        written.with_context(|| item.to.clone())?;
        first.insert(number, &item.to);
    }
    store.sync_names()?;
    Ok((files, directories))
}
