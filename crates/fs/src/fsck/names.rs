//! Checks directories: their blocks, the tree that their names form, and the paths of
//! damaged inodes.

use super::tables::Tables;
use super::tree::{self, Inode, Walk};
use super::{Fsck, Volume};
use crate::format::ROOT_NODE;
use crate::tree::dirent;
use crate::types::Kind;
use furrow_rt::Page;
use std::collections::{BTreeMap, BTreeSet};

const DIRECTORY: &str = "directory";
const ENTRY: &str = "directory entry";
const INODE: &str = "inode";

/// Largest number of directories that are followed upwards from an inode. Deeper inodes, and those
/// in a cycle, get no path.
const DEPTH_MAX: usize = 256;

/// The link that a name makes from a directory to an inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ref {
    pub(super) child: u32,
    pub(super) parent: u32,
    /// The kind that the directory entry states.
    kind: u8,
}

/// The names of one directory.
#[derive(Default)]
pub(super) struct Directory {
    names: Vec<(u32, Box<[u8]>)>,
}

impl Directory {
    /// Number of names so far.
    pub(super) fn entries(&self) -> u64 {
        self.names.len() as u64
    }

    /// Checks a block of the directory and collects its entries.
    pub(super) fn add_block(
        &mut self,
        fsck: &mut Fsck,
        seed: u64,
        ino: u32,
        block: u64,
        page: &Page,
        refs: &mut Vec<Ref>,
    ) {
        let place = || format!("{ino} block {block}");
        let index = u32::try_from(block).unwrap_or(u32::MAX);
        if let Err(error) = dirent::check(page.bytes()) {
            fsck.add(DIRECTORY, place(), "records of names", error);
        } else if let Err(error) = dirent::check_names(page.bytes(), seed, index) {
            fsck.add(DIRECTORY, place(), "names where their hashes put them", error);
        }
        for entry in dirent::iter(page.bytes()) {
            fsck.report.statistics.entries += 1;
            self.names.push((entry.hash, entry.name.into()));
            refs.push(Ref { child: entry.ino, parent: ino, kind: entry.kind.code() });
        }
    }

    /// Checks that no name occurs twice.
    pub(super) fn check_unique(&mut self, fsck: &mut Fsck, ino: u32) {
        self.names.sort_unstable();
        for pair in self.names.windows(2) {
            if pair[0] == pair[1] {
                let name = String::from_utf8_lossy(&pair[0].1).into_owned();
                fsck.add(DIRECTORY, format!("{ino}: name `{name}`"), "once", "twice");
            }
        }
        self.names = Vec::new();
    }
}

/// Checks the inodes that names lead to, their link counts and parents, and that every directory
/// with a name is below the root.
pub(super) fn check(fsck: &mut Fsck, volume: &Volume, walk: &mut Walk) {
    walk.refs.sort_unstable();
    let walk = &*walk;
    if walk.inodes.binary_search_by_key(&ROOT_NODE, |inode| inode.ino).is_err()
        && !walk.damaged.contains(&ROOT_NODE)
    {
        fsck.add(INODE, ROOT_NODE.to_string(), "the root directory", "no inode");
    }
    let mut subdirectories: BTreeMap<u32, u32> = BTreeMap::new();
    for reference in &walk.refs {
        fsck.inode = Some(reference.child);
        check_ref(fsck, walk, reference);
        if reference.kind == Kind::Directory.code() {
            *subdirectories.entry(reference.parent).or_default() += 1;
        }
    }
    fsck.inode = None;
    let orphans: BTreeSet<u32> = volume.orphans.iter().copied().collect();
    for orphan in &orphans {
        let found = walk.inodes.binary_search_by_key(orphan, |inode| inode.ino);
        if found.is_err() && !walk.damaged.contains(orphan) {
            fsck.add("checkpoint", format!("orphan {orphan}"), "an inode in use", "none");
        }
    }
    for inode in &walk.inodes {
        fsck.inode = Some(inode.ino);
        let names = refs_of(&walk.refs, inode.ino);
        let below = subdirectories.get(&inode.ino).copied().unwrap_or(0);
        check_links(fsck, walk, inode, names, below, orphans.contains(&inode.ino));
    }
    fsck.inode = None;
    check_reachable(fsck, walk);
}

/// The names that lead to `child`.
fn refs_of(refs: &[Ref], child: u32) -> &[Ref] {
    let start = refs.partition_point(|r| r.child < child);
    let end = refs.partition_point(|r| r.child <= child);
    &refs[start..end]
}

fn check_ref(fsck: &mut Fsck, walk: &Walk, reference: &Ref) {
    let Ref { child, parent, kind } = *reference;
    let place = || format!("inode {child} in directory {parent}");
    match walk.inodes.binary_search_by_key(&child, |inode| inode.ino) {
        Ok(index) => {
            let expected = walk.inodes[index].kind.code();
            fsck.expect(ENTRY, || format!("{}: kind", place()), expected, kind);
        }
        Err(_) if walk.damaged.contains(&child) => {}
        Err(_) => fsck.add(ENTRY, place(), "an inode in use", "none"),
    }
}

fn check_links(
    fsck: &mut Fsck,
    walk: &Walk,
    inode: &Inode,
    names: &[Ref],
    subdirectories: u32,
    orphan: bool,
) {
    let Inode { ino, kind, links, parent } = *inode;
    let place = |field: &str| format!("{ino}: {field}");
    let root = ino == ROOT_NODE;
    // Some names may be in unreadable directories, so link counts cannot be judged.
    let unknown = !walk.damaged.is_empty();
    if orphan {
        fsck.expect(INODE, || place("links of an orphan"), 0, links);
        fsck.expect(INODE, || place("names of an orphan"), 0, names.len());
        return;
    }
    if names.is_empty() && !root {
        if !unknown {
            fsck.add(INODE, ino.to_string(), "a name, or to be an orphan", "neither");
        }
        return;
    }
    if kind != Kind::Directory {
        if !unknown {
            fsck.expect(INODE, || place("links"), names.len() as u64, u64::from(links));
        }
        return;
    }
    if !unknown {
        fsck.expect(INODE, || place("links"), 2 + subdirectories, links);
    }
    let expected = if root { 0 } else { 1 };
    fsck.expect(INODE, || place("names of a directory"), expected, names.len());
    let above = names.first().map_or(ROOT_NODE, |name| name.parent);
    fsck.expect(INODE, || place("parent"), above, parent);
}

/// Checks that every directory with a name is below the root, and not in a cycle.
fn check_reachable(fsck: &mut Fsck, walk: &Walk) {
    let directories: BTreeMap<u32, u32> = walk
        .refs
        .iter()
        .filter(|r| r.kind == Kind::Directory.code())
        .map(|r| (r.child, r.parent))
        .collect();
    let mut reached: BTreeSet<u32> = BTreeSet::from([ROOT_NODE]);
    for start in directories.keys() {
        let mut path = Vec::new();
        let mut at = *start;
        let good = loop {
            if reached.contains(&at) {
                break true;
            }
            path.push(at);
            match directories.get(&at) {
                Some(above) if path.len() <= directories.len() => at = *above,
                Some(_) => break false,
                // A directory above has no name, which is reported elsewhere.
                None => break true,
            }
        };
        if !good {
            fsck.add(DIRECTORY, start.to_string(), "a place below the root", "a cycle");
        }
        // Directories in a cycle count as reached too, so that each of them is reported only once.
        reached.extend(path);
    }
}

/// Gives each finding about an inode a path, if names lead to the inode. The walk has recorded in
/// the sorted list `refs` which directory leads to which inode, but no names. So this function
/// reads the directories above the inode again.
pub(super) async fn find_paths(fsck: &mut Fsck, volume: &Volume, tables: &Tables, refs: &[Ref]) {
    let concerned: BTreeSet<u32> = fsck.report.findings.iter().filter_map(|f| f.inode).collect();
    if concerned.is_empty() {
        return;
    }
    let mut parents: BTreeMap<u32, u32> = BTreeMap::new();
    for mut at in concerned {
        while at != ROOT_NODE && !parents.contains_key(&at) {
            let Some(found) = refs_of(refs, at).first() else { break };
            parents.insert(at, found.parent);
            at = found.parent;
        }
    }
    let mut above: BTreeMap<u32, (u32, Box<[u8]>)> = BTreeMap::new();
    // The walk has already reported and counted the damage in these directories.
    let report = std::mem::take(&mut fsck.report);
    for directory in parents.values().copied().collect::<BTreeSet<u32>>() {
        for (child, name) in tree::names_in(fsck, volume, tables, directory).await {
            if parents.get(&child) == Some(&directory) {
                above.entry(child).or_insert((directory, name));
            }
        }
    }
    fsck.report = report;
    let name = |inode| above.get(&inode).map(|(parent, name)| (*parent, &**name));
    for finding in &mut fsck.report.findings {
        finding.path = finding.inode.and_then(|inode| path(inode, name));
    }
}

/// Builds the path of `inode`. `above` returns the directory that contains an inode, and the
/// inode's name there.
pub(crate) fn path<'a>(
    inode: u32,
    above: impl Fn(u32) -> Option<(u32, &'a [u8])>,
) -> Option<String> {
    let (mut parts, mut at) = (Vec::new(), inode);
    while at != ROOT_NODE {
        let (parent, name) = above(at).filter(|_| parts.len() < DEPTH_MAX)?;
        parts.push(String::from_utf8_lossy(name));
        at = parent;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}
