//! `furrow kv rm`: removes files, and directories with all that is in them.

use super::drive::{Changed, plain};
use crate::show;
use anyhow::{Result, bail};
use furrow_kv::Node;
use std::collections::BTreeMap;
use std::io::Write;

/// Remove files, and with -r directories with all that is in them
///
/// All paths are checked first: if one of them is missing, or is a directory and -r is not given,
/// nothing is removed. When this ends, the removal is durable. A file with several names is removed
/// with the last of them. The store must not be in use.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Files in the store
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Remove directories, and everything below them
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Say nothing of paths that do not exist
    #[arg(short, long)]
    force: bool,
    /// Print each name that is removed
    #[arg(short, long)]
    verbose: bool,
}

/// Runs the command.
///
/// # Errors
/// An error if a path cannot be removed; nothing is removed then.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let changed = Changed::open(&args.device)?;
    let mut doomed = BTreeMap::new();
    for path in &args.paths {
        let node = match changed.node(path)? {
            Some(node) => node,
            None if args.force => continue,
            None => bail!("{}: no such file", show::printable(path)),
        };
        let path = plain(path);
        if path.is_empty() {
            bail!("the root cannot be removed: name its content, or make a new store: mkfs -f");
        }
        if node == Node::Directory {
            if !args.recursive {
                let path = show::printable(&path);
                bail!("{path}: a directory: -r removes it with all that is in it");
            }
            doomed.extend(changed.below(&path)?);
        }
        doomed.insert(path, node);
    }
    // In the order of names, a directory comes before its content, so names are removed backwards.
    for (path, node) in doomed.iter().rev() {
        match node {
            Node::File(_) => changed.store().remove(path)?,
            Node::Directory => changed.store().remove_directory(path)?,
        }
    }
    changed.sync_names()?;
    if args.verbose {
        for (path, node) in &doomed {
            let slash = if *node == Node::Directory { "/" } else { "" };
            writeln!(out, "removed {}{slash}", show::printable(path))?;
        }
    }
    Ok(0)
}
