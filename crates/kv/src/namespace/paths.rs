//! Paths in memory: what each names, and the changes since the last group commit.

use crate::entries::Entry;
use crate::extent::FileId;
use crate::format::PATH_MAX;
use furrow_zone::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

/// The file or directory that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A file.
    File(FileId),
}

pub(crate) struct Namespace {
    pub(crate) nodes: BTreeMap<String, Node>,
    /// Changes since the last group commit, in order.
    pub(crate) changes: Vec<Entry>,
    pub(crate) next_file: u64,
    /// Families stated for files that do not exist yet, by path.
    pub(crate) awaited: BTreeMap<String, String>,
}

/// Normalizes a path to the form that stores use: without empty parts, `.` and `..`.
///
/// # Errors
/// `Invalid` if the path leads out of the store, or is too long.
pub fn clean(path: &str) -> Result<String> {
    let mut parts = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part != ".." {
            parts.push(part);
        } else if parts.pop().is_none() {
            let message = format!("{path}: '..' leads out of the store");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
    }
    let path = parts.join("/");
    if path.len() > PATH_MAX {
        let message = format!("a path of {} bytes: at most {PATH_MAX} are taken", path.len());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(path)
}

/// Returns the prefix of all paths below a directory.
pub(super) fn below(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("{directory}/") }
}

impl Namespace {
    pub(super) fn get(&self, path: &str) -> Result<Node> {
        if path.is_empty() {
            return Ok(Node::Directory);
        }
        let missing = || Error::new(ErrorKind::NotFound, format!("{path}: no such file"));
        self.nodes.get(path).copied().ok_or_else(missing)
    }

    /// Checks that the parent of the path is a directory.
    pub(super) fn check_parent(&self, path: &str) -> Result<()> {
        if path.is_empty() {
            return Err(Error::new(ErrorKind::Exists, "the root exists already"));
        }
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        match self.get(parent)? {
            Node::Directory => Ok(()),
            Node::File(_) => {
                Err(Error::new(ErrorKind::NotDirectory, format!("{parent}: not a directory")))
            }
        }
    }

    /// Returns the number of paths that change if `path` is renamed, and the length of the longest
    /// of these paths.
    pub(super) fn below(&self, path: &str) -> (usize, usize) {
        let prefix = below(path);
        let inside = self.nodes.range(prefix.clone()..).map(|(path, _)| path);
        let inside = inside.take_while(|path| path.starts_with(&prefix));
        inside.fold((1, path.len()), |(count, longest), path| (count + 1, longest.max(path.len())))
    }

    pub(super) fn children<'a>(&'a self, directory: &str) -> impl Iterator<Item = (&'a str, Node)> {
        let prefix = below(directory);
        let from = self.nodes.range(prefix.clone()..);
        let inside = from.map_while(move |(path, node)| Some((path.strip_prefix(&prefix)?, *node)));
        inside.filter(|(name, _)| !name.contains('/'))
    }
}

/// Renames a path and all paths below it.
pub(crate) fn rename(nodes: &mut BTreeMap<String, Node>, from: &str, to: &str) {
    let prefix = below(from);
    let inside = nodes.range(prefix.clone()..).map(|(path, _)| path);
    let inside = inside.take_while(|path| path.starts_with(&prefix)).cloned();
    let mut all: Vec<String> = inside.collect();
    all.push(from.to_owned());
    for path in all {
        if let Some(node) = nodes.remove(&path) {
            nodes.insert(format!("{to}{}", &path[from.len()..]), node);
        }
    }
}
