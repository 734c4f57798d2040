//! `furrow kv ls`: lists the files of a store.

use super::drive::plain;
use super::view::View;
use crate::daemon::utc;
use crate::show;
use crate::target::source_name;
use clap::ValueEnum;
use furrow_console::fit::{Column, Table};
use furrow_kv::{FileInfo, Lifetime, Node};
use serde_json::{Value, json};
use std::io::Write;

/// List files
///
/// Directories have a slash after their names. With -l: bytes, time of the last write (UTC),
/// expected lifetime, number of extents, and name. If a program uses the store, that program gives
/// the present names and sizes, including content that is not synced yet.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Directory or file (default: the root)
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    /// Show more than the name
    #[arg(short, long)]
    long: bool,
    /// Include everything in directories below
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Read a store whose record ring is damaged: list what was lost, and leave it out
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How long a file is expected to live, in RocksDB's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Life {
    /// No hint was given
    NotSet,
    /// The hint is not to be used
    None,
    /// Shortest
    Short,
    /// Longer
    Medium,
    /// Longer still
    Long,
    /// Longest
    Extreme,
}

impl Life {
    /// The lifetime of a file.
    pub fn of(lifetime: Lifetime) -> Life {
        match lifetime {
            Lifetime::NotSet => Life::NotSet,
            Lifetime::None => Life::None,
            Lifetime::Short => Life::Short,
            Lifetime::Medium => Life::Medium,
            Lifetime::Long => Life::Long,
            Lifetime::Extreme => Life::Extreme,
        }
    }

    /// The lifetime in the store's own type.
    pub fn lifetime(self) -> Lifetime {
        match self {
            Life::NotSet => Lifetime::NotSet,
            Life::None => Lifetime::None,
            Life::Short => Lifetime::Short,
            Life::Medium => Lifetime::Medium,
            Life::Long => Lifetime::Long,
            Life::Extreme => Lifetime::Extreme,
        }
    }

    /// The name of the lifetime, in options and in output.
    pub fn name(self) -> &'static str {
        match self {
            Life::NotSet => "not-set",
            Life::None => "none",
            Life::Short => "short",
            Life::Medium => "medium",
            Life::Long => "long",
            Life::Extreme => "extreme",
        }
    }
}

/// A name and its file; `None` for a directory.
struct Line {
    path: String,
    file: Option<FileInfo>,
}

/// Runs the command.
///
/// # Errors
/// An error if there is no store, or no such path.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let looked = View::open(&args.device, args.accept_loss)?;
    let lines = lines(&looked, args)?;
    if args.json {
        let document = json!({
            "version": super::VERSION,
            "device": source_name(&args.device),
            "uuid": looked.uuid(),
            "path": plain(&args.path),
            "entries": lines.iter().map(entry).collect::<Vec<_>>(),
        });
        show::json(out, &document)?;
        return Ok(0);
    }
    if !args.long {
        for line in &lines {
            let slash = if line.file.is_none() { "/" } else { "" };
            writeln!(out, "{}{slash}", show::printable(&line.path))?;
        }
        return Ok(0);
    }
    let amounts = ["bytes", "modified", "lifetime", "extents"].map(|head| Column::amount(head, 0));
    let mut table = Table::new(&[&amounts[..], &[Column::word("name", 0)]].concat());
    for line in &lines {
        let name = show::printable(&line.path);
        table.add_row(match &line.file {
            Some(file) => [
                file.size.to_string(),
                utc(u64::try_from(file.modified).unwrap_or(0)),
                Life::of(file.lifetime).name().to_owned(),
                file.extents.to_string(),
                name,
            ],
            None => {
                let none = || "-".to_owned();
                [none(), none(), none(), none(), format!("{name}/")]
            }
        });
    }
    show::print_table(out, &table)?;
    Ok(0)
}

fn lines(looked: &View, args: &Args) -> anyhow::Result<Vec<Line>> {
    let all = looked.below(&args.path)?;
    let wanted = all
        .into_iter()
        .filter(|(name, _)| !name.is_empty() && (args.recursive || !name.contains('/')));
    let line = |(path, node)| Line {
        path,
        file: match node {
            Node::Directory => None,
            Node::File(id) => looked.info(id),
        },
    };
    Ok(wanted.map(line).collect())
}

fn entry(line: &Line) -> Value {
    match &line.file {
        None => json!({ "name": line.path, "kind": "directory" }),
        Some(file) => json!({
            "name": line.path,
            "kind": "file",
            "file": file.id.0,
            "bytes": file.size,
            "modified": file.modified,
            "lifetime": Life::of(file.lifetime).name(),
            "extents": file.extents,
            "disk_bytes": file.blocks * 4096,
            "names": file.names,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_named_as_they_are_given() {
        for life in Life::value_variants() {
            assert_eq!(Life::of(life.lifetime()), *life);
            let value = life.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), life.name());
        }
    }
}
