//! The oracle: decides whether the durability contract allows the state found after a crash.
//!
//! The contract (DESIGN §4.1, docs/inside/design/file-system.md): an fsynced file holds, block by
//! block, the fsynced version or a later written one, and likewise for its size; a name is there if
//! its file or directory was fsynced after the change; a rename shows the old or the new state; no
//! file shows blocks of another file or stale data. The engine promises more, and the oracle checks
//! this too. *Every* acknowledged fsync or sync covers all name changes answered before it was
//! submitted. The names found are those after a prefix of the name changes, in the order in which
//! they were applied (see [`crate::fs::history`] for the order among clients).
//!
//! The oracle knows nothing of the engine: it compares an [`Observed`] tree with an [`Expected`].
//! Times are compared with the interval between submission and answer, in which the engine took
//! them. Access times are not promised: after a read any time of the clock is allowed.

use crate::fs::attributes::{Allowed, Attributes, Moment, Times};
use crate::fs::history::{Expected, ObjectSteps};
use crate::fs::model::{BLOCK, Content, Namespace};
use crate::fs::op::{
    Ino, Kind, Make, Name, Object, SECTOR, describe, symlink_target, value_bytes, xattr_name,
};
use std::collections::{BTreeMap, BTreeSet};

/// Number of bytes that a truncation cuts off in one step. A longer truncation is done in several
/// steps, and a crash may leave it between two steps (docs/inside/design/file-system.md).
const CUT_MAX: u64 = 126 << 20;

/// One inode as the engine shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Kind of the inode.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Owner and group.
    pub owners: (u32, u32),
    /// Times of access, of change of the content, and of change of the inode.
    pub times: Times,
    /// Link count.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// The names in a directory.
    pub entries: BTreeMap<Vec<u8>, Ino>,
    /// Extended attributes: values by name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The whole tree as the engine shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every inode reached from the root.
    pub nodes: BTreeMap<Ino, Found>,
}

impl Observed {
    fn subdirectories(&self, found: &Found) -> u32 {
        let is_directory =
            |ino: &&Ino| self.nodes.get(ino).is_some_and(|child| child.kind == Kind::Directory);
        found.entries.values().filter(is_directory).count() as u32
    }

    /// Checks the invariants of every tree: link counts, one name per directory.
    ///
    /// # Errors
    /// Says which inode is wrong.
    pub fn check_links(&self) -> Result<(), String> {
        let mut names: BTreeMap<Ino, u32> = BTreeMap::from([(Ino::ROOT, 1)]);
        for found in self.nodes.values() {
            for &ino in found.entries.values() {
                *names.entry(ino).or_default() += 1;
            }
        }
        for (ino, found) in &self.nodes {
            let names = names.get(ino).copied().unwrap_or(0);
            let links = match found.kind {
                Kind::Directory if names > 1 => {
                    return Err(format!("directory {ino} has {names} names"));
                }
                Kind::Directory => 2 + self.subdirectories(found),
                _ => names,
            };
            if links != found.links {
                return Err(format!(
                    "inode {ino} says {} links, the tree shows {links}",
                    found.links
                ));
            }
        }
        Ok(())
    }
}

/// Whether permission bits and owners of `found` match.
fn inode_fits(attributes: &Attributes, found: &Found) -> bool {
    // Permission bits of a symbolic link do not matter.
    let mode = found.kind == Kind::Symlink || attributes.mode == found.mode;
    mode && (attributes.uid, attributes.gid) == found.owners
}

fn kind_of(make: Make) -> Kind {
    match make {
        Make::File => Kind::File,
        Make::Directory => Kind::Directory,
        Make::Fifo => Kind::Fifo,
        Make::Symlink(_) => Kind::Symlink,
    }
}

/// The inode of each object of the model.
pub type Matching = BTreeMap<Object, Ino>;

/// The state of names that was found, one of the allowed states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The inode that was found for each object.
    pub matching: Matching,
    /// The number of name changes of each client that survived.
    pub prefixes: BTreeMap<u8, usize>,
}

/// Compares `client`'s names with the found names. On success, adds the client's objects to
/// `matching`.
fn compare_names(
    names: &Namespace,
    client: u8,
    expected: &Expected,
    observed: &Observed,
    matching: &mut Matching,
) -> Result<(), String> {
    for (dir, node) in names.objects().filter(|(_, n)| n.make == Make::Directory) {
        // Without a crash, the model may hold a removed directory that is still open. The tree does
        // not show it.
        if node.names == 0 {
            continue;
        }
        let ino = expected.inos.get(&dir).ok_or_else(|| format!("{dir} has no inode number"))?;
        let found = observed.nodes.get(ino).ok_or_else(|| format!("{dir} is not there"))?;
        let mine: BTreeMap<Name, Ino> = found
            .entries
            .iter()
            .filter_map(|(bytes, &ino)| Name::parse(bytes).map(|name| (name, ino)))
            .filter(|(name, _)| name.client == client || !dir.is_shared())
            .collect();
        for (name, object) in &node.entries {
            let Some(&ino) = mine.get(name) else {
                return Err(format!("{dir}/{name} ({object}) is missing"));
            };
            if let Some(&known) = expected.inos.get(object)
                && known != ino
            {
                return Err(format!("{dir}/{name} is inode {ino}, {object} was {known}"));
            }
            matching.insert(*object, ino);
        }
        if let Some((name, ino)) = mine.iter().find(|(name, _)| !node.entries.contains_key(name)) {
            return Err(format!("{dir}/{name} (inode {ino}) should not be there"));
        }
    }
    Ok(())
}

fn compare_kinds(
    names: &Namespace,
    observed: &Observed,
    matching: &Matching,
) -> Result<(), String> {
    let mut seen: BTreeMap<Ino, Object> = BTreeMap::new();
    for (object, node) in names.objects() {
        let Some(ino) = matching.get(&object) else { continue };
        if let Some(other) = seen.insert(*ino, object) {
            return Err(format!("{object} and {other} are both inode {ino}"));
        }
        let Some(found) = observed.nodes.get(ino) else {
            return Err(format!("inode {ino} ({object}) is not there"));
        };
        if found.kind != kind_of(node.make) {
            return Err(format!("{object} is a {:?}, found {:?}", node.make, found.kind));
        }
        if let Make::Symlink(length) = node.make
            && found.target != symlink_target(object, length)
        {
            let target =
                String::from_utf8_lossy(&found.target).chars().take(40).collect::<String>();
            return Err(format!("{object} points to {target:?}"));
        }
    }
    Ok(())
}

/// The prefixes of one client's name changes that match the found names, and the inodes of its
/// objects for each.
struct Candidates {
    client: u8,
    matches: Vec<(usize, Matching)>,
    /// The mismatches of the shortest and of the longest prefix.
    differences: Vec<String>,
}

impl Expected {
    fn candidates(&self, client: u8, observed: &Observed) -> Candidates {
        let steps = &self.clients[&client];
        let mut names = self.names_after(client, steps.durable);
        let mut matches = Vec::new();
        let mut differences = Vec::new();
        for count in steps.durable..=steps.steps.len() {
            if count > steps.durable {
                let applied = names.apply(&steps.steps[count - 1].op);
                debug_assert!(applied.is_ok(), "a successful step replays");
            }
            let mut matching = Matching::new();
            let compared = compare_names(&names, client, self, observed, &mut matching)
                .and_then(|()| compare_kinds(&names, observed, &matching));
            match compared {
                Ok(()) => matches.push((count, matching)),
                Err(why) if count == steps.durable || count == steps.steps.len() => {
                    differences.push(format!("after {count} name changes: {why}"));
                }
                Err(_) => {}
            }
        }
        // A name may be used again, with the same inode number. Then mode and times tell which
        // object it is.
        if matches.iter().any(|(_, matching)| self.inodes_fit(observed, matching)) {
            matches.retain(|(_, matching)| self.inodes_fit(observed, matching));
        }
        Candidates { client, matches, differences }
    }

    /// Whether permission bits, owners and times of each object are allowed.
    fn inodes_fit(&self, observed: &Observed, matching: &Matching) -> bool {
        matching.iter().all(|(object, ino)| {
            let Some(steps) = self.objects.get(object) else { return true };
            let Some(found) = observed.nodes.get(ino) else { return true };
            let mut attributes = steps.attributes.iter();
            let fits = attributes.any(|attributes| inode_fits(attributes, found));
            (fits || steps.attributes.is_empty()) && self.check_times(*object, found).is_ok()
        })
    }

    /// The number of name changes of `client` that must have survived if the first `count` of
    /// client `of` survived.
    fn implied(&self, client: u8, of: u8, count: usize) -> usize {
        let Some(last) = count.checked_sub(1).map(|at| &self.clients[&of].steps[at]) else {
            return 0;
        };
        let before = |end: Option<usize>| end.is_some_and(|end| end < last.begin);
        self.clients[&client].steps.iter().take_while(|step| before(step.end)).count()
    }

    /// Checks the found names, and returns the inode of each object.
    ///
    /// # Errors
    /// Describes names that no allowed prefix explains.
    pub fn check_names(&self, observed: &Observed) -> Result<Names, String> {
        for found in observed.nodes.values() {
            for (bytes, ino) in &found.entries {
                let shared = Object::SHARED.iter().any(|o| o.shared_name() == Some(bytes));
                if !shared
                    && Name::parse(bytes).is_none_or(|n| !self.clients.contains_key(&n.client))
                {
                    let name = String::from_utf8_lossy(bytes).into_owned();
                    return Err(format!("nobody made the name {name:?} (inode {ino})"));
                }
            }
        }
        observed.check_links()?;
        let mut all: Vec<Candidates> = Vec::new();
        for &client in self.clients.keys() {
            let candidates = self.candidates(client, observed);
            if candidates.matches.is_empty() {
                let steps = &self.clients[&client];
                return Err(format!(
                    "no prefix of {} to {} name changes of client {client} gives these names: {}",
                    steps.durable,
                    steps.steps.len(),
                    candidates.differences.join("; ")
                ));
            }
            all.push(candidates);
        }
        self.choose_prefixes(&all)
    }

    /// Chooses for each client the shortest matching prefix, such that no change survives without
    /// the changes of other clients that were answered before it began.
    fn choose_prefixes(&self, all: &[Candidates]) -> Result<Names, String> {
        let mut chosen = vec![0; all.len()];
        loop {
            let mut changed = false;
            for (at, candidates) in all.iter().enumerate() {
                let needed = (0..all.len())
                    .filter(|&other| other != at)
                    .map(|other| {
                        let count = all[other].matches[chosen[other]].0;
                        self.implied(candidates.client, all[other].client, count)
                    })
                    .max()
                    .unwrap_or(0);
                while candidates.matches[chosen[at]].0 < needed {
                    changed = true;
                    chosen[at] += 1;
                    if chosen[at] == candidates.matches.len() {
                        return Err(format!(
                            "names of client {} end before its change {needed}, but a later \
                             change of another client is there",
                            candidates.client
                        ));
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let mut matching: Matching = self
            .inos
            .iter()
            .filter(|(object, _)| object.is_shared())
            .map(|(&object, &ino)| (object, ino))
            .collect();
        let mut prefixes = BTreeMap::new();
        for (candidates, &at) in all.iter().zip(&chosen) {
            let (count, objects) = &candidates.matches[at];
            prefixes.insert(candidates.client, *count);
            matching.extend(objects.iter().map(|(&object, &ino)| (object, ino)));
        }
        Ok(Names { matching, prefixes })
    }

    /// The blocks of `object` to check: all blocks ever written, and some that never were.
    pub fn blocks_of_interest(&self, object: Object, size: u64) -> BTreeSet<u64> {
        let Some(steps) = self.objects.get(&object) else { return BTreeSet::new() };
        let mut content = steps.base.clone();
        let mut blocks = content.blocks();
        blocks.extend(&steps.punched);
        for change in &steps.later {
            change.apply(&mut content, |content| blocks.extend(content.blocks()));
        }
        let end = size.div_ceil(BLOCK);
        blocks.extend([0, 1, end / 2, end.saturating_sub(1)]);
        blocks.retain(|&block| block < end);
        blocks
    }

    /// Checks a file's size and the blocks of
    /// [`blocks_of_interest`](Expected::blocks_of_interest) (each cut off at the size). Returns
    /// the content found, in terms of the model.
    ///
    /// # Errors
    /// Names the block, its content and the allowed contents.
    pub fn check_content(
        &self,
        object: Object,
        found: &Found,
        blocks: &BTreeMap<u64, Vec<u8>>,
    ) -> Result<Content, String> {
        let mut adopted = Content::endless();
        let Some(steps) = self.objects.get(&object) else { return Ok(Content::default()) };
        if found.kind != Kind::File {
            return Ok(Content::default());
        }
        let mut content = steps.base.clone();
        let mut sizes = BTreeSet::from([content.size]);
        let mut wrong: BTreeMap<u64, &Vec<u8>> = blocks.iter().map(|(&b, v)| (b, v)).collect();
        let mut want = [0; BLOCK as usize];
        let mut strike = |content: &Content, wrong: &mut BTreeMap<u64, &Vec<u8>>| {
            wrong.retain(|&block, bytes| {
                let want = &mut want[..bytes.len()];
                content.read(block * BLOCK, want);
                let differs = want != bytes.as_slice();
                if !differs {
                    adopted.adopt_block(content, block);
                }
                differs
            });
        };
        strike(&content, &mut wrong);
        let mut between = false;
        for change in &steps.later {
            let before = content.size;
            change.apply(&mut content, |content| {
                sizes.insert(content.size);
                strike(content, &mut wrong);
            });
            between |= before.saturating_sub(content.size) > CUT_MAX
                && (content.size..before).contains(&found.size);
        }
        if !sizes.contains(&found.size) && !between {
            return Err(format!("{object} has {} bytes, not one of {sizes:?}", found.size));
        }
        match wrong.first_key_value() {
            None => {
                // Bytes beyond the found size are gone for good.
                adopted.truncate(found.size);
                Ok(adopted)
            }
            Some((&block, bytes)) => Err(self.explain(object, block, bytes)),
        }
    }

    /// Checks permission bits, owners and extended attributes, which change together, and returns
    /// them in terms of the model.
    ///
    /// # Errors
    /// Lists the found and the allowed attributes.
    pub fn check_attributes(&self, object: Object, found: &Found) -> Result<Attributes, String> {
        let Some(steps) = self.objects.get(&object) else { return Ok(Attributes::default()) };
        if steps.attributes.is_empty() {
            return Ok(Attributes::default());
        }
        let bytes = |state: &Attributes| -> BTreeMap<Vec<u8>, Vec<u8>> {
            let pairs = state.xattrs.iter();
            pairs.map(|(&s, &value)| (xattr_name(s), value_bytes(object, s, value))).collect()
        };
        let mut states = steps.attributes.iter().rev();
        if let Some(state) = states.find(|s| inode_fits(s, found) && bytes(s) == found.xattrs) {
            return Ok(state.clone());
        }
        let show = |(name, value): (&Vec<u8>, &Vec<u8>)| {
            let name = String::from_utf8_lossy(name).into_owned();
            format!("{name}: {} bytes, {}", value.len(), describe(value))
        };
        let there: Vec<String> = found.xattrs.iter().map(show).collect();
        let (mode, owners, may) = (found.mode, found.owners, &steps.attributes);
        Err(format!(
            "{object} has mode {mode} (0o{mode:o}), owners {owners:?}, attributes {there:?}, not \
             one of {may:?}"
        ))
    }

    /// Checks the times of an object.
    ///
    /// # Errors
    /// Names the found time and the allowed times.
    pub fn check_times(&self, object: Object, found: &Found) -> Result<(), String> {
        let Some(ObjectSteps { times, .. }) = self.objects.get(&object) else { return Ok(()) };
        let Times { atime, mtime, ctime } = found.times;
        let wrong = |sort: &str, is: Moment, may: &Allowed| {
            Err(format!("{object} has {sort} {is:?}, not {may}"))
        };
        match () {
            () if !times.mtime.allows(mtime) => wrong("mtime", mtime, &times.mtime),
            () if !times.ctime.allows(ctime) => wrong("ctime", ctime, &times.ctime),
            () if !times.atime.allows_access(atime) => wrong("atime", atime, &times.atime),
            () => Ok(()),
        }
    }

    fn explain(&self, object: Object, block: u64, bytes: &[u8]) -> String {
        let steps = &self.objects[&object];
        let mut content = steps.base.clone();
        let mut want = vec![0; bytes.len()];
        content.read(block * BLOCK, &mut want);
        let at = want.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0) / SECTOR;
        let sector = |bytes: &[u8]| describe(bytes.chunks(SECTOR).nth(at).unwrap_or_default());
        let mut allowed = vec![sector(&want)];
        for change in &steps.later {
            change.apply(&mut content, |content| {
                content.read(block * BLOCK, &mut want);
                allowed.push(sector(&want));
            });
        }
        allowed.dedup();
        format!(
            "{object} block {block}, sector {at} of it: found {}; durable or later: {}",
            sector(bytes),
            allowed.join(", ")
        )
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
