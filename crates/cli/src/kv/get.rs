//! `furrow kv get`: copies a file out of a store.

use super::drive::plain;
use super::view::View;
use crate::progress::Progress;
use crate::show;
use crate::target::source_name;
use anyhow::{Context as _, Result, bail};
use furrow_console::program::misused;
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// Copy a file out of the store
///
/// Every block is checked against its checksum. If a program uses the store, that program reads the
/// file as it is when the copy begins, including content that is not synced yet.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// File in the store
    path: String,
    /// Target file, - for standard output (default: the same name in this directory)
    file: Option<PathBuf>,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
    /// Read a store whose record ring is damaged: list what was lost, and leave it out
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// An error if the file does not exist, is damaged, or cannot be written: then no file was made
/// or replaced.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let to_output = args.file.as_deref() == Some(Path::new("-"));
    if to_output && args.json {
        let why = "--json and standard output for the file: name a file, or leave --json out";
        return Err(misused(why));
    }
    let looked = View::open(&args.device, args.accept_loss)?;
    let file = looked.file(&args.path)?;
    let progress = Progress::new("read", args.json);
    let mut done = 0;
    let mut copy = |to: &mut dyn Write| {
        looked.read(&file, |bytes| {
            to.write_all(bytes)?;
            done += bytes.len() as u64;
            progress.at(done, file.size);
            Ok(())
        })
    };
    if to_output {
        let copied = copy(out);
        progress.end();
        copied?;
        return Ok(0);
    }
    let to = destination(args);
    let full = |path: &Path| path.canonicalize().ok();
    if full(&to).is_some_and(|to| full(Path::new(&args.device)) == Some(to)) {
        bail!("{}: is the store itself: name another file", to.display());
    }
    let copied = create(&to, args.force, &mut copy);
    progress.end();
    copied?;
    if args.json {
        let document = json!({
            "version": super::VERSION,
            "device": source_name(&args.device),
            "path": plain(&args.path),
            "file": to.display().to_string(),
            "bytes": file.size,
        });
        show::json(out, &document)?;
    } else {
        writeln!(out, "{}: {}", to.display(), show::bytes(file.size))?;
    }
    Ok(0)
}

/// The path of the file to make; in a directory, the file keeps its name from the store.
fn destination(args: &Args) -> PathBuf {
    let path = plain(&args.path);
    let name = path.rsplit('/').next().unwrap_or_default();
    match &args.file {
        None => PathBuf::from(name),
        Some(file) if file.is_dir() => file.join(name),
        Some(file) => file.clone(),
    }
}

/// Makes a file that `copy` writes. The file appears under its name only when it is complete.
fn create(
    to: &Path,
    force: bool,
    copy: &mut dyn FnMut(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let what = || to.display().to_string();
    match fs::metadata(to) {
        Ok(meta) if meta.file_type().is_block_device() => {
            bail!("{}: a block device: name a file", to.display())
        }
        // The target is a pipe or similar, which cannot be replaced by a rename.
        Ok(meta) if !meta.is_file() => {
            let mut file = OpenOptions::new().write(true).open(to).with_context(what)?;
            return copy(&mut file);
        }
        Ok(_) if !force => bail!("{}: is there already: --force replaces it", to.display()),
        _ => {}
    }
    let Some(name) = to.file_name() else { bail!("{}: not a name of a file", to.display()) };
    let mut unfinished = name.to_owned();
    unfinished.push(".furrow-get");
    let unfinished = to.with_file_name(unfinished);
    let mut file = File::create(&unfinished).with_context(what)?;
    let copied = copy(&mut file)
        .and_then(|()| Ok(file.sync_all()?))
        .and_then(|()| fs::rename(&unfinished, to).with_context(what));
    if copied.is_err() {
        // An incomplete copy must not be mistaken for the file.
        let _ = fs::remove_file(&unfinished);
    }
    copied
}
