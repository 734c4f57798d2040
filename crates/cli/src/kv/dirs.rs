//! `furrow kv mkdir` and `rmdir`: makes and removes directories.

use super::drive::{Changed, plain};
use crate::show;
use anyhow::{Result, bail};
use furrow_kv::Node;
use std::io::Write;

/// Make directories
///
/// They are durable when this ends. If one of them cannot be made, none is made. The store must not
/// be in use.
#[derive(clap::Args)]
pub struct MakeArgs {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Directories in the store
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Make missing parents, and accept directories that exist
    #[arg(short, long)]
    parents: bool,
    /// Name each directory that is made
    #[arg(short, long)]
    verbose: bool,
}

/// Remove empty directories
///
/// Their removal is durable when this ends. If one of them cannot be removed, none is removed; a
/// directory may be named after its own subdirectories. The store must not be in use.
#[derive(clap::Args)]
pub struct RemoveArgs {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Directories in the store
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Name each directory that is removed
    #[arg(short, long)]
    verbose: bool,
}

/// Makes directories.
///
/// # Errors
/// An error if one of them cannot be made; then none is made.
pub fn make(args: &MakeArgs, out: &mut dyn Write) -> Result<u8> {
    let changed = Changed::open(&args.device)?;
    let mut made = Vec::new();
    let done: Result<()> = args.paths.iter().try_for_each(|path| {
        if args.parents {
            made.extend(changed.make_directories(path)?);
        } else {
            changed.store().make_directory(path)?;
            made.push(plain(path));
        }
        Ok(())
    });
    if done.is_err() {
        // The new directories can be removed, because none of them is durable or has content yet.
        for path in made.iter().rev() {
            changed.store().remove_directory(path)?;
        }
    }
    changed.sync_names()?;
    done?;
    for path in made.iter().filter(|_| args.verbose) {
        writeln!(out, "made {}/", show::printable(path))?;
    }
    Ok(0)
}

/// Removes directories.
///
/// # Errors
/// An error if one of them cannot be removed; then none is removed.
pub fn remove(args: &RemoveArgs, out: &mut dyn Write) -> Result<u8> {
    let changed = Changed::open(&args.device)?;
    let mut gone: Vec<String> = Vec::new();
    for path in &args.paths {
        let name = show::printable(path);
        match changed.node(path)? {
            None => bail!("{name}: no such directory"),
            Some(Node::File(_)) => bail!("{name}: a file, not a directory"),
            Some(Node::Directory) if plain(path).is_empty() => {
                bail!("the root cannot be removed");
            }
            Some(Node::Directory) => {}
        }
        let path = plain(path);
        if gone.contains(&path) {
            bail!("{name}: given twice");
        }
        if changed.below(&path)?.iter().any(|(inside, _)| !gone.contains(inside)) {
            bail!("{name}: not empty: furrow kv rm -r removes it with all that is in it");
        }
        gone.push(path);
    }
    gone.iter().try_for_each(|path| changed.store().remove_directory(path))?;
    changed.sync_names()?;
    for path in gone.iter().filter(|_| args.verbose) {
        writeln!(out, "removed {}/", show::printable(path))?;
    }
    Ok(0)
}
