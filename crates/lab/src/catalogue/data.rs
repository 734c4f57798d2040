//! The files that a catalogue is read from: built-in files, files of a directory that replace them,
//! and the differences between the two.
//!
//! A file of the directory replaces the built-in file of the same name; a file with another name is
//! read in addition. So a changed parameter takes one file, and so does a user's own claim.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// Maximum number of characters of a value in a difference.
const SHOWN: usize = 60;

/// The files built in, the common ones first.
const BUILT_IN: [(&str, &str); 9] = [
    ("setup.toml", include_str!("../../data/setup.toml")),
    ("setup-hzfs.toml", include_str!("../../data/setup-hzfs.toml")),
    ("setup-zapraid.toml", include_str!("../../data/setup-zapraid.toml")),
    ("setup-recorded.toml", include_str!("../../data/setup-recorded.toml")),
    ("claims.toml", include_str!("../../data/claims.toml")),
    ("claims-hzfs.toml", include_str!("../../data/claims-hzfs.toml")),
    ("claims-zapraid.toml", include_str!("../../data/claims-zapraid.toml")),
    ("claims-recorded.toml", include_str!("../../data/claims-recorded.toml")),
    ("claims-headlines.toml", include_str!("../../data/claims-headlines.toml")),
];

/// A file of the catalogue's data.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// The file's name, with its path if it is from a directory.
    pub name: String,
    text: Cow<'static, str>,
}

impl File {
    pub fn new(name: &str, text: impl Into<Cow<'static, str>>) -> File {
        File { name: name.to_owned(), text: text.into() }
    }

    /// Parses the content.
    ///
    /// # Errors
    /// If the content is wrong: the error names the file and the line.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        toml::from_str(&self.text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(self.text.len()));
            let line = 1 + self.text.as_bytes()[..start].iter().filter(|b| **b == b'\n').count();
            anyhow!("{}:{line}: {}", self.name, error.message())
        })
    }
}

/// The files of a catalogue.
#[derive(Clone, Debug)]
pub(super) struct Data {
    /// Files with sources, drives, profiles, hosts, workloads and variants.
    pub setup: Vec<File>,
    /// Files with claims.
    pub claims: Vec<File>,
}

impl Data {
    /// The files that this program was built with.
    pub fn built_in() -> Data {
        let all = BUILT_IN.iter().map(|(name, text)| File::new(name, *text));
        let (setup, claims) = all.partition(|file| file.name.starts_with("setup"));
        Data { setup, claims }
    }

    /// The built-in files, except those that files of `directory` replace, and the further files
    /// of `directory`.
    ///
    /// # Errors
    /// If the directory cannot be read, has no TOML file, or has one whose name is neither for
    /// setup nor for claims.
    pub fn of(directory: &Path) -> Result<Data> {
        let cannot = || format!("cannot read {}", directory.display());
        let mut data = Data::built_in();
        let mut names = Vec::new();
        for entry in fs::read_dir(directory).with_context(cannot)? {
            let name = entry.with_context(cannot)?.file_name();
            names.extend(name.into_string().ok().filter(|name| name.ends_with(".toml")));
        }
        names.sort();
        ensure!(
            !names.is_empty(),
            "{}: no data in it: files are called setup.toml, claims.toml, setup-NAME.toml, \
             claims-NAME.toml",
            directory.display()
        );
        for name in names {
            let path = directory.join(&name);
            let stem = name.trim_end_matches(".toml");
            let files = match stem.split_once('-').map_or(stem, |(kind, _)| kind) {
                "setup" => &mut data.setup,
                "claims" => &mut data.claims,
                _ => bail!(
                    "{}: neither setup.toml, claims.toml, setup-NAME.toml nor claims-NAME.toml",
                    path.display()
                ),
            };
            let text = fs::read_to_string(&path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            let file = File::new(&path.display().to_string(), text);
            match files.iter_mut().find(|built_in| built_in.name == name) {
                Some(built_in) => *built_in = file,
                None => files.push(file),
            }
        }
        Ok(data)
    }

    /// All entries of all files as one tree.
    fn tree(&self) -> Result<Table> {
        let mut tree = Table::new();
        for file in self.setup.iter().chain(&self.claims) {
            for (kind, value) in file.read::<Table>()? {
                let Value::Table(of_kind) = named(value) else { continue };
                match tree.entry(kind).or_insert_with(|| Value::Table(Table::new())) {
                    Value::Table(all) => all.extend(of_kind),
                    other => *other = Value::Table(of_kind),
                }
            }
        }
        Ok(tree)
    }

    /// The differences from the built-in data, one line each.
    ///
    /// # Errors
    /// If a file cannot be parsed.
    pub fn differences(&self) -> Result<Vec<String>> {
        let (own, built_in) = (self.tree()?, Data::built_in().tree()?);
        let mut all = Vec::new();
        let none = Table::new();
        let kinds: BTreeMap<&String, ()> =
            own.keys().chain(built_in.keys()).map(|k| (k, ())).collect();
        for kind in kinds.into_keys() {
            let of = |tree: &Table| tree.get(kind).and_then(Value::as_table).cloned();
            let (own, built_in) = (of(&own), of(&built_in));
            let (own, built_in) =
                (own.as_ref().unwrap_or(&none), built_in.as_ref().unwrap_or(&none));
            for (name, value) in own {
                match built_in.get(name) {
                    None => all.push(format!("{kind} {name}: not built in")),
                    Some(other) => differ(&format!("{kind} {name}:"), value, other, &mut all),
                }
            }
            let gone = built_in.keys().filter(|name| !own.contains_key(*name));
            all.extend(gone.map(|name| format!("{kind} {name}: only built in")));
        }
        Ok(all)
    }
}

/// Turns a list of tables that all have different names into a table by name; leaves other values
/// as they are.
fn named(value: Value) -> Value {
    let Value::Array(list) = value else { return value };
    let name = |entry: &Value| {
        let name = ["id", "name", "says"].iter().find_map(|field| entry.get(field))?;
        name.as_str().map(str::to_owned)
    };
    let table: Table = list.iter().filter_map(|e| Some((name(e)?, e.clone()))).collect();
    if !list.is_empty() && table.len() == list.len() {
        Value::Table(table)
    } else {
        Value::Array(list)
    }
}

/// Adds the differences between two values to `all`.
fn differ(place: &str, own: &Value, built_in: &Value, all: &mut Vec<String>) {
    let (own, built_in) = (named(own.clone()), named(built_in.clone()));
    let (Value::Table(one), Value::Table(other)) = (&own, &built_in) else {
        if own != built_in {
            all.push(format!("{place} {} instead of {}", short(&own), short(&built_in)));
        }
        return;
    };
    for (key, value) in one {
        let place = format!("{place} {key}");
        match other.get(key) {
            Some(built_in) => differ(&place, value, built_in, all),
            None => all.push(format!("{place} {}, which is not built in", short(value))),
        }
    }
    for (key, value) in other.iter().filter(|(key, _)| !one.contains_key(*key)) {
        all.push(format!("{place} {key} left out, built in as {}", short(value)));
    }
}

fn short(value: &Value) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
