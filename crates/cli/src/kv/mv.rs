//! `furrow kv mv` and `ln`: gives files other names, or further ones.

use super::drive::{Changed, UNFINISHED, plain};
use crate::show;
use anyhow::{Result, bail};
use furrow_kv::Node;
use std::collections::BTreeMap;
use std::io::Write;

/// Rename files and directories, or move them into a directory
///
/// All names are checked first: if one rename is impossible, nothing is renamed. When this ends,
/// the new names are durable; content is not copied. The store must not be in use.
#[derive(clap::Args)]
pub struct MoveArgs {
    #[command(flatten)]
    names: Names,
}

/// Give files a further name (a hard link)
///
/// All names of a file are equal, and the file is removed with the last of them. All names are
/// checked first: if one cannot be made, none is made. When this ends, the names are durable.
/// Directories have one name only. The store must not be in use.
#[derive(clap::Args)]
pub struct LinkArgs {
    #[command(flatten)]
    names: Names,
}

// A documentation comment here would replace the help of the commands.
#[derive(clap::Args)]
struct Names {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Paths in the store; the last one is the new name, or a directory for all others
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "NEW"])]
    paths: Vec<String>,
    /// Replace existing files
    #[arg(short, long)]
    force: bool,
    /// Print each name that is made
    #[arg(short, long)]
    verbose: bool,
}

/// Runs `furrow kv mv`.
///
/// # Errors
/// An error if a path cannot be renamed; then none is renamed.
pub fn rename(args: &MoveArgs, out: &mut dyn Write) -> Result<u8> {
    let changed = Changed::open(&args.names.device)?;
    let pairs = pairs(&changed, &args.names)?;
    for (from, to) in &pairs {
        let node = changed.node(from)?;
        let name = show::printable(to);
        if node == Some(Node::Directory) {
            if from.is_empty() || format!("{to}/").starts_with(&format!("{from}/")) {
                let from = if from.is_empty() { "the root" } else { from };
                bail!("{}: cannot become {name}, which is inside of it", show::printable(from));
            }
            if changed.node(to)?.is_some() {
                bail!("{name}: is there already, and a directory replaces nothing");
            }
        }
        // A path inside a directory that another argument moves may no longer exist when the path
        // itself is to be moved.
        let inside = |of: &str| from.starts_with(&format!("{of}/"));
        if let Some((of, _)) = pairs.iter().find(|(other, _)| inside(other)) {
            bail!("{}: moves with {} already", show::printable(from), show::printable(of));
        }
    }
    // A file that is to be replaced keeps another name until all are renamed.
    let mut replaced: Vec<(String, &String)> = Vec::new();
    let mut renamed = 0;
    let done = pairs.iter().try_for_each(|(from, to)| {
        // One file is replaced at once.
        if pairs.len() > 1 && changed.node(to)?.is_some() {
            let given: Vec<&str> = replaced.iter().map(|(kept, _)| kept.as_str()).collect();
            let kept = free_name(&changed, to, &pairs, &given)?;
            changed.store().link(to, &kept)?;
            replaced.push((kept, to));
        }
        changed.store().rename(from, to)?;
        renamed += 1;
        anyhow::Ok(())
    });
    if let Err(error) = done {
        for (from, to) in pairs[..renamed].iter().rev() {
            changed.store().rename(to, from)?;
        }
        for (kept, to) in &replaced {
            changed.store().rename(kept, to)?;
        }
        return Err(error);
    }
    for (kept, _) in &replaced {
        changed.store().remove(kept)?;
    }
    end(&changed, &args.names, &pairs, "->", out)
}

/// Runs `furrow kv ln`.
///
/// # Errors
/// An error if a name cannot be made; then none is made.
pub fn link(args: &LinkArgs, out: &mut dyn Write) -> Result<u8> {
    let changed = Changed::open(&args.names.device)?;
    let pairs = pairs(&changed, &args.names)?;
    for (from, _) in &pairs {
        if changed.node(from)? == Some(Node::Directory) {
            bail!("{}: a directory: it has one name only", show::printable(from));
        }
    }
    // If a name exists, the link is made under another name and then renamed, so that the existing
    // name is never missing.
    let (mut made, mut replacing) = (Vec::new(), Vec::new());
    for (from, to) in &pairs {
        let is_new = changed.node(to)?.is_none();
        let named = match is_new {
            true => Ok(to.clone()),
            false => {
                let given: Vec<&str> = made.iter().map(String::as_str).collect();
                free_name(&changed, to, &pairs, &given)
            }
        };
        let linked = named.and_then(|name| {
            changed.store().link(from, &name)?;
            Ok(name)
        });
        let name = match linked {
            Ok(name) => name,
            Err(error) => {
                made.iter().try_for_each(|name: &String| changed.store().remove(name))?;
                return Err(error);
            }
        };
        replacing.extend((!is_new).then(|| (name.clone(), to)));
        made.push(name);
    }
    for (new, to) in &replacing {
        changed.store().rename(new, to)?;
    }
    end(&changed, &args.names, &pairs, "=>", out)
}

/// Pairs of an old name and its new name.
///
/// # Errors
/// An error if an old name does not exist, or a new one is taken, or given twice.
fn pairs(changed: &Changed, names: &Names) -> Result<Vec<(String, String)>> {
    let Some((last, sources)) = names.paths.split_last() else { bail!("no paths") };
    let target = plain(last);
    let into = changed.node(last)? == Some(Node::Directory);
    let of_target = show::printable(&target);
    if !into && (sources.len() > 1 || last.ends_with('/')) {
        bail!("{of_target}: no such directory: furrow kv mkdir makes it");
    }
    let mut pairs = Vec::new();
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    for source in sources {
        let from = plain(source);
        let shown = show::printable(&from);
        let Some(node) = changed.node(source)? else { bail!("{shown}: no such file") };
        if node != Node::Directory && source.ends_with('/') {
            bail!("{shown}: a file, not a directory");
        }
        let last = from.rsplit('/').next().unwrap_or_default();
        let to = match (into, target.as_str()) {
            (true, "") => last.to_owned(),
            (true, directory) => format!("{directory}/{last}"),
            (false, name) => name.to_owned(),
        };
        let name = show::printable(&to);
        if from == to {
            bail!("{shown}: has this name already");
        }
        if let Some(other) = taken.insert(to.clone(), from.clone()) {
            bail!("{name}: would be both {} and {shown}", show::printable(&other));
        }
        let parent = to.rsplit_once('/').map_or("", |(parent, _)| parent);
        match changed.node(parent)? {
            Some(Node::Directory) => {}
            Some(Node::File(_)) => bail!("{}: a file, not a directory", show::printable(parent)),
            None => {
                bail!("{}: no such directory: furrow kv mkdir makes it", show::printable(parent))
            }
        }
        match changed.node(&to)? {
            Some(Node::Directory) => bail!("{name}: a directory is there already"),
            Some(Node::File(_)) if node == Node::Directory => {
                bail!("{name}: is there already, and a directory replaces nothing");
            }
            Some(Node::File(_)) if !names.force => {
                bail!("{name}: is there already: --force replaces it");
            }
            _ => {}
        }
        pairs.push((from, to));
    }
    Ok(pairs)
}

/// A name beside `to`, for a file until all names are made, that neither `pairs` nor `given` have.
/// It is the name of an unfinished copy of `to`, if there is one: that is removed.
fn free_name(
    changed: &Changed,
    to: &str,
    pairs: &[(String, String)],
    given: &[&str],
) -> Result<String> {
    let is_taken = |name: &str| {
        given.contains(&name) || pairs.iter().any(|(from, to)| from == name || to == name)
    };
    let mut name = format!("{to}{UNFINISHED}");
    if !is_taken(&name) && matches!(changed.node(&name)?, Some(Node::File(_))) {
        changed.store().remove(&name)?;
    }
    while is_taken(&name) || changed.node(&name)?.is_some() {
        name.push_str(UNFINISHED);
    }
    Ok(name)
}

/// Makes the names durable, and prints them if asked.
fn end(
    changed: &Changed,
    names: &Names,
    pairs: &[(String, String)],
    arrow: &str,
    out: &mut dyn Write,
) -> Result<u8> {
    changed.sync_names()?;
    if names.verbose {
        for (from, to) in pairs {
            writeln!(out, "{} {arrow} {}", show::printable(from), show::printable(to))?;
        }
    }
    Ok(0)
}
