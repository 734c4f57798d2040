//! `furrow kv backup`: copies the files of a store to this machine.

use super::drive::plain;
use super::view::View;
use crate::progress::Progress;
use crate::show;
use crate::target::source_name;
use anyhow::{Context as _, Result, bail};
use furrow_kv::{FileId, FileInfo, Node};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Copy all files, or those below a path, to a directory of this machine
///
/// Everything is on disk when this ends, with the times of the store; a file with several names
/// becomes one file with several names. Lifetimes are not kept. Every block is checked against its
/// checksum. A damaged file ends the copy, unless --keep-going is given.
///
/// A program that uses the store keeps running and reads it for the copy. The copy holds all
/// files as they are when it begins, including content that is not synced yet, but not the bytes
/// in the program's own buffers. Files that the program removes meanwhile keep their space until
/// the copy ends.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Directory, which is created or must be empty
    directory: PathBuf,
    /// Directory or file in the store (default: everything)
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    /// Leave damaged files out and list them; the exit status is 1 then
    #[arg(short, long)]
    keep_going: bool,
    /// Read a store whose record ring is damaged: list what was lost, and leave it out
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Amounts that were copied, and the files that were left out because they are damaged.
#[derive(Default)]
struct Copied {
    files: u64,
    directories: u64,
    bytes: u64,
    left_out: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// An error if the directory is not empty or not writable, or a file is damaged. Files copied
/// before the error stay.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let looked = View::open(&args.device, args.accept_loss)?;
    let all = looked.below(&args.path)?;
    // Bad names are refused before anything is made.
    for (name, _) in &all {
        check_name(name)?;
    }
    make_empty(&args.directory)?;
    let progress = Progress::new("copied", args.json);
    let copied = copy(&looked, args, &all, &progress);
    progress.end();
    let copied = copied?;
    if args.json {
        let document = json!({
            "version": super::VERSION,
            "device": source_name(&args.device),
            "uuid": looked.uuid(),
            "path": plain(&args.path),
            "directory": args.directory.display().to_string(),
            "process": looked.process(),
            "files": copied.files,
            "directories": copied.directories,
            "bytes": copied.bytes,
            "left_out": copied.left_out,
        });
        show::json(out, &document)?;
    } else {
        for why in &copied.left_out {
            writeln!(out, "left out: {why}")?;
        }
        let bytes = show::bytes(copied.bytes);
        let files = show::count(copied.files, "file");
        let directories = show::count(copied.directories, "directory");
        let to = args.directory.display();
        match looked.process() {
            None => writeln!(out, "{to}: {files}, {directories}, {bytes}")?,
            Some(process) => writeln!(
                out,
                "{to}: {files}, {directories}, {bytes}, as process {process}, which uses the \
                 store, had them when the copy began"
            )?,
        }
    }
    Ok(u8::from(!copied.left_out.is_empty()))
}

/// Refuses a name in the store that would lead out of the target directory.
fn check_name(name: &str) -> Result<()> {
    let wrong = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
    if !name.is_empty() && name.split('/').any(wrong) {
        bail!("{name:?}: not a path of a store: furrow kv fsck says what else is damaged");
    }
    Ok(())
}

fn make_empty(directory: &Path) -> Result<()> {
    let what = || directory.display().to_string();
    match fs::read_dir(directory) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => bail!("{}: not empty: name an empty directory, or a new one", what()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir_all(directory).with_context(what)?;
            match directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                Some(parent) => sync(parent),
                None => Ok(()),
            }
        }
        Err(error) => Err(error).with_context(what),
    }
}

fn copy(looked: &View, args: &Args, all: &[(String, Node)], progress: &Progress) -> Result<Copied> {
    let mut sizes: BTreeMap<FileId, u64> = BTreeMap::new();
    for (_, node) in all {
        if let Node::File(id) = node {
            sizes.insert(*id, looked.info(*id).map_or(0, |file| file.size));
        }
    }
    let of: u64 = sizes.values().sum();
    let mut copied = Copied::default();
    let mut done = 0;
    // The first copy of each file; `None` if the file was left out.
    let mut there: BTreeMap<FileId, Option<PathBuf>> = BTreeMap::new();
    let mut directories = vec![args.directory.clone()];
    for (name, node) in all {
        let to = match name.as_str() {
            "" => args.directory.clone(),
            name => args.directory.join(name),
        };
        let what = || to.display().to_string();
        let id = match node {
            Node::Directory if name.is_empty() => continue,
            Node::Directory => {
                fs::create_dir(&to).with_context(what)?;
                copied.directories += 1;
                directories.push(to);
                continue;
            }
            Node::File(id) => id,
        };
        match there.get(id) {
            Some(Some(first)) => {
                fs::hard_link(first, &to).with_context(what)?;
                copied.files += 1;
                continue;
            }
            // The file was left out.
            Some(None) => continue,
            None => {}
        }
        let Some(file) = looked.info(*id) else { continue };
        let before = done;
        let written = write(looked, &file, &to, &mut |bytes| {
            done += bytes;
            progress.at(done, of);
        });
        match written {
            Ok(()) => {
                copied.files += 1;
                copied.bytes += file.size;
                there.insert(*id, Some(to));
            }
            Err(error) if args.keep_going && is_damage(&error) => {
                copied.left_out.push(format!("{error:#}"));
                done = before + file.size;
                let _ = fs::remove_file(&to);
                there.insert(*id, None);
            }
            Err(error) => {
                // A partial copy is removed: whatever the backup leaves under a file's name
                // is whole.
                let _ = fs::remove_file(&to);
                return Err(error);
            }
        }
    }
    for directory in directories.iter().rev() {
        sync(directory)?;
    }
    Ok(copied)
}

/// Whether the error means that the file in the store is damaged.
fn is_damage(error: &anyhow::Error) -> bool {
    error.downcast_ref::<furrow_zone::Error>().is_some()
}

fn write(looked: &View, file: &FileInfo, to: &Path, done: &mut dyn FnMut(u64)) -> Result<()> {
    let what = || to.display().to_string();
    let mut host = File::create_new(to).with_context(what)?;
    looked.read(file, |bytes| {
        host.write_all(bytes).with_context(what)?;
        done(bytes.len() as u64);
        Ok(())
    })?;
    let since = Duration::from_secs(file.modified.unsigned_abs());
    let modified = match file.modified {
        0.. => UNIX_EPOCH.checked_add(since),
        _ => UNIX_EPOCH.checked_sub(since),
    };
    let modified = modified.filter(|time| *time <= SystemTime::now());
    if let Some(time) = modified {
        host.set_modified(time).with_context(what)?;
    }
    host.sync_all().with_context(what)
}

fn sync(directory: &Path) -> Result<()> {
    let what = || directory.display().to_string();
    File::open(directory).and_then(|directory| directory.sync_all()).with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", "db", "db/a.sst", "..a/b.."] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["..", "a/../../b", "/etc", "a//b", "a/.", "a\0b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
