//! Repair of directories: removes names without an inode, gives inodes without a name one in
//! `lost+found`, corrects links and parents.
//!
//! A damaged block of a directory is taken out as a whole. Its good names are entered again like
//! any name, in the places that their hashes determine.

use super::trees::{Found, GIVEN_UP, Walk, content, drop_block, edit};
use super::{Action, Log};
use crate::core::Inner;
use crate::durability::namespace_log::NameOp;
use crate::durability::recover::reap_orphans;
use crate::format::{NAME_MAX, ROOT_NODE};
use crate::tree::dirent;
use crate::tree::node::as_inode_mut;
use crate::types::{Ino, Kind, NewNode};
use furrow_zone::{ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const ENTRY: &str = "directory entry";
const DIRECTORY: &str = "directory";
const LOST_FOUND: &[u8] = b"lost+found";

/// A name in a directory.
struct Name {
    directory: u32,
    block: u32,
    name: Vec<u8>,
    ino: u32,
    kind: u8,
    /// True if the name is in the wrong place for its hash, or is stored with another hash.
    misplaced: bool,
    /// The reason why the name is removed, if it is.
    gone: Option<&'static str>,
}

/// All names, and the blocks to be taken out.
#[derive(Default)]
struct Names {
    all: Vec<Name>,
    /// Blocks that must be taken out: (directory, block).
    blocks: BTreeSet<(u32, u32)>,
}

/// Repairs names and links.
pub(super) async fn mend(inner: &Rc<Inner>, walk: &mut Walk, log: &mut Log) -> Result<()> {
    let mut names = collect(inner, walk, log).await?;
    decide(&mut names, walk);
    break_cycles(&mut names, walk);
    say(&names, walk, log);
    tell_directories(&names, &mut log.actions);
    let root_is_new = !walk.inodes.get(&ROOT_NODE).is_some_and(|r| r.kind == Kind::Directory);
    if root_is_new {
        make_root(inner, walk, log);
    }
    rebuild(inner, walk, &names).await?;
    mend_orphans(inner, walk, &names, log);
    find_homes(inner, walk, &mut names, log).await?;
    count_links(inner, walk, &names, log).await?;
    name_actions(&names, &mut log.actions);
    inner.core.borrow_mut().tree.set_inodes(walk.inodes.len() as u64);
    reap_orphans(inner).await
}

/// Reads every block of every directory.
async fn collect(inner: &Rc<Inner>, walk: &Walk, log: &mut Log) -> Result<Names> {
    let seed = inner.core.borrow().env.layout.hash_seed;
    let mut names = Names::default();
    for (directory, blocks) in &walk.directories {
        for (block, pointer) in blocks {
            let page = match content(inner, *pointer).await {
                Ok(page) => page,
                Err(error) => {
                    let place = (*directory, format!("{directory} block {block}"));
                    let action = "emptied: the inodes that its names led to are in lost+found";
                    log.lost(DIRECTORY, place, error, action);
                    names.blocks.insert((*directory, *block));
                    continue;
                }
            };
            if let Err(error) = dirent::check(page.bytes()) {
                let place = (*directory, format!("{directory} block {block}"));
                log.mended(DIRECTORY, place, error, "rebuilt from the names that can be read");
                names.blocks.insert((*directory, *block));
            }
            for entry in dirent::iter(page.bytes()) {
                let right = dirent::hash(seed, entry.name);
                names.all.push(Name {
                    directory: *directory,
                    block: *block,
                    name: entry.name.to_vec(),
                    ino: entry.ino,
                    kind: entry.kind.code(),
                    misplaced: entry.hash != right || !dirent::belongs(*block, right),
                    gone: None,
                });
            }
        }
    }
    Ok(names)
}

/// Decides which names are removed.
fn decide(names: &mut Names, walk: &Walk) {
    let mut taken: BTreeSet<(u32, Vec<u8>)> = BTreeSet::new();
    // A directory has only one name: preferably the one in the parent that the directory's
    // inode states.
    let mut home: BTreeMap<u32, u32> = BTreeMap::new();
    for name in &names.all {
        let child = walk.inodes.get(&name.ino).filter(|child| child.kind == Kind::Directory);
        if child.is_some_and(|child| child.parent == name.directory) {
            home.insert(name.ino, name.directory);
        }
    }
    let mut named = BTreeSet::new();
    for name in &mut names.all {
        let Some(child) = walk.inodes.get(&name.ino) else {
            name.gone = Some("it leads to no inode");
            continue;
        };
        let key = (name.directory, name.name.clone());
        name.gone = if dirent::validate_name(&name.name).is_err() {
            Some("it is not a valid name")
        } else if name.ino == ROOT_NODE || name.ino == name.directory {
            Some("it leads to a directory above")
        } else if taken.contains(&key) {
            Some("it is there twice")
        } else if child.kind == Kind::Directory
            && (home.get(&name.ino).is_some_and(|home| *home != name.directory)
                || named.contains(&name.ino))
        {
            Some("it is a second name of a directory")
        } else {
            None
        };
        if name.gone.is_none() {
            taken.insert(key);
            named.insert(name.ino);
        }
    }
}

/// Removes one name from each cycle of directories.
fn break_cycles(names: &mut Names, walk: &Walk) {
    let is_directory = |ino: u32| walk.inodes.get(&ino).is_some_and(|f| f.kind == Kind::Directory);
    let mut above: BTreeMap<u32, (u32, usize)> = BTreeMap::new();
    for (at, name) in names.all.iter().enumerate() {
        if name.gone.is_none() && is_directory(name.ino) {
            above.insert(name.ino, (name.directory, at));
        }
    }
    let mut good: BTreeSet<u32> = BTreeSet::new();
    let all: Vec<u32> = above.keys().copied().collect();
    for start in all {
        let (mut path, mut on_path) = (Vec::new(), BTreeSet::new());
        let mut at = start;
        while !good.contains(&at) {
            if !on_path.insert(at) {
                // The path has returned to one of its directories: remove the name that closes
                // the cycle.
                if let Some((_, index)) = above.remove(&at) {
                    names.all[index].gone = Some("it is in a circle of directories");
                }
                break;
            }
            path.push(at);
            match above.get(&at) {
                Some((parent, _)) => at = *parent,
                None => break,
            }
        }
        good.extend(path);
    }
}

/// Logs the repairs of names.
fn say(names: &Names, walk: &Walk, log: &mut Log) {
    for name in &names.all {
        let Name { directory, ino, .. } = *name;
        let place = format!("`{}` in directory {directory}", show(&name.name));
        if let Some(why) = name.gone {
            match walk.inodes.contains_key(&ino) {
                true => log.mended(ENTRY, (directory, place), why, "removed"),
                // The loss of the inode was counted already.
                false if log.has_lost(ino) => log.mended(ENTRY, (ino, place), why, "removed"),
                false => log.lost(ENTRY, (ino, place), why, "removed"),
            }
            continue;
        }
        if name.misplaced {
            log.mended(ENTRY, (ino, place), "its hash or its block is wrong", "entered again");
        } else if walk.inodes.get(&ino).is_some_and(|found| found.kind.code() != name.kind) {
            log.mended(ENTRY, (ino, place), "its kind is not the inode's", "corrected");
        }
    }
}

/// Notes, in the action for each directory that is given up, that its content is in `lost+found`.
fn tell_directories(names: &Names, actions: &mut [Action]) {
    let is_directory = |name: &&Name| name.kind == Kind::Directory.code();
    let directories = names.all.iter().filter(is_directory).map(|name| name.ino);
    let directories: BTreeSet<u32> = directories.chain([ROOT_NODE]).collect();
    for action in actions.iter_mut().filter(|action| action.action == GIVEN_UP) {
        if directories.contains(&action.ino) {
            action.action = "given up; what its names led to is in lost+found".to_owned();
        }
    }
}

fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Makes a new root directory in place of a lost one.
fn make_root(inner: &Rc<Inner>, walk: &mut Walk, log: &mut Log) {
    let place = (ROOT_NODE, ROOT_NODE.to_string());
    let (problem, action) = ("there is no root directory", "a new, empty one was made");
    match log.has_lost(ROOT_NODE) {
        true => log.mended("inode", place, problem, action),
        false => log.lost("inode", place, problem, action),
    }
    let core = &mut *inner.core.borrow_mut();
    let root = Ino(ROOT_NODE);
    let mut op = core.plan_create(root, b"", &NewNode::directory());
    if let NameOp::Create { mode, .. } = &mut op {
        *mode = 0o755;
    }
    core.insert_inode(root, &op, ROOT_NODE);
    core.tree.take_generation(0);
    let found = Found { kind: Kind::Directory, links: 2, parent: ROOT_NODE };
    walk.inodes.insert(ROOT_NODE, found);
}

/// Takes out the blocks that contain a faulty name, and enters their good names again.
async fn rebuild(inner: &Rc<Inner>, walk: &Walk, names: &Names) -> Result<()> {
    let wrong = |name: &Name| {
        name.gone.is_some()
            || name.misplaced
            || walk.inodes.get(&name.ino).is_none_or(|found| found.kind.code() != name.kind)
    };
    let mut blocks = names.blocks.clone();
    let spoilt = names.all.iter().filter(|name| wrong(name));
    blocks.extend(spoilt.map(|name| (name.directory, name.block)));
    for (directory, block) in &blocks {
        drop_block(inner, *directory, *block).await?;
        inner.core.borrow_mut().tree.forget_directory(Ino(*directory));
    }
    let mut entries: BTreeMap<u32, u64> = BTreeMap::new();
    for name in names.all.iter().filter(|n| !blocks.contains(&(n.directory, n.block))) {
        *entries.entry(name.directory).or_default() += 1;
    }
    for (ino, found) in &walk.inodes {
        if found.kind == Kind::Directory {
            let count = entries.get(ino).copied().unwrap_or(0);
            let now = inner.run(|core| Ok(core.inode(Ino(*ino))?.head.entries.get())).await?;
            if now != count {
                let set = |bytes: &mut [u8; 4096]| as_inode_mut(bytes).head.entries = count.into();
                edit(inner, *ino, set).await?;
            }
        }
    }
    for name in &names.all {
        if name.gone.is_none() && blocks.contains(&(name.directory, name.block)) {
            let Some(found) = walk.inodes.get(&name.ino) else { continue };
            let (directory, ino, kind) = (Ino(name.directory), Ino(name.ino), found.kind);
            inner.run(|core| core.relink(directory, &name.name, ino, kind)).await?;
        }
    }
    Ok(())
}

/// Corrects the list of orphans, which are inodes in use without links and names.
fn mend_orphans(inner: &Rc<Inner>, walk: &mut Walk, names: &Names, log: &mut Log) {
    let named: BTreeSet<u32> =
        names.all.iter().filter(|n| n.gone.is_none()).map(|n| n.ino).collect();
    let core = &mut *inner.core.borrow_mut();
    let stale: Vec<Ino> = core
        .tree
        .files()
        .orphans()
        .iter()
        .copied()
        .filter(|ino| !walk.inodes.contains_key(&ino.0) || named.contains(&ino.0))
        .collect();
    for ino in stale {
        let problem = "listed as removed, but missing or with a name";
        log.mended("checkpoint", (ino.0, format!("orphan {ino}")), problem, "taken off the list");
        core.tree.files_mut().remove_orphan(ino);
    }
    for (ino, found) in &walk.inodes {
        let removed = found.links == 0 && !named.contains(ino) && *ino != ROOT_NODE;
        if removed && !core.tree.files().is_orphan(Ino(*ino)) {
            core.tree.files_mut().lost_last_name(Ino(*ino), false);
            let problem = "removed, but not listed as removed";
            log.mended("inode", (*ino, ino.to_string()), problem, "freed");
        }
    }
}

/// Gives names in `lost+found` to inodes that have none.
async fn find_homes(
    inner: &Rc<Inner>,
    walk: &mut Walk,
    names: &mut Names,
    log: &mut Log,
) -> Result<()> {
    let named: BTreeSet<u32> =
        names.all.iter().filter(|n| n.gone.is_none()).map(|n| n.ino).collect();
    let orphans = inner.core.borrow().tree.files().orphans().clone();
    let homeless: Vec<(u32, Kind)> = walk
        .inodes
        .iter()
        .filter(|(ino, _)| {
            **ino != ROOT_NODE && !named.contains(ino) && !orphans.contains(&Ino(**ino))
        })
        .map(|(ino, found)| (*ino, found.kind))
        .collect();
    if homeless.is_empty() {
        return Ok(());
    }
    let home = lost_found(inner, walk, names).await?;
    for (ino, kind) in homeless {
        let mut name = format!("#{ino}");
        let mut tries = 0;
        loop {
            let entered =
                inner.run(|core| core.relink(Ino(home), name.as_bytes(), Ino(ino), kind)).await;
            match entered {
                Err(error) if error.kind() == ErrorKind::Exists && name.len() < NAME_MAX => {
                    tries += 1;
                    name = format!("#{ino}.{tries}");
                }
                other => break other?,
            }
        }
        let action = format!("entered in lost+found as {name}");
        log.mended("inode", (ino, ino.to_string()), "it has no name", action);
        names.all.push(Name {
            directory: home,
            block: 0,
            name: name.into_bytes(),
            ino,
            kind: kind.code(),
            misplaced: false,
            gone: None,
        });
    }
    Ok(())
}

/// Finds the directory `lost+found`, or makes it.
async fn lost_found(inner: &Rc<Inner>, walk: &mut Walk, names: &mut Names) -> Result<u32> {
    let mut name = LOST_FOUND.to_vec();
    let mut tries = 0;
    loop {
        let there = names
            .all
            .iter()
            .find(|n| n.gone.is_none() && n.directory == ROOT_NODE && n.name == name);
        match there {
            None => break,
            Some(there) => {
                let ino = there.ino;
                if walk.inodes.get(&ino).is_some_and(|found| found.kind == Kind::Directory) {
                    return Ok(ino);
                }
            }
        }
        tries += 1;
        name = format!("lost+found.{tries}").into_bytes();
    }
    let new = NewNode { mode: 0o700, ..NewNode::directory() };
    let op = inner.core.borrow_mut().plan_create(Ino(ROOT_NODE), &name, &new);
    let made = inner.run(|core| core.create(&op)).await?;
    let ino = made.ino.0;
    let kind = Kind::Directory;
    walk.inodes.insert(ino, Found { kind, links: 2, parent: ROOT_NODE });
    let (directory, kind) = (ROOT_NODE, kind.code());
    names.all.push(Name { directory, block: 0, name, ino, kind, misplaced: false, gone: None });
    Ok(ino)
}

/// Corrects link counts and parents.
async fn count_links(inner: &Rc<Inner>, walk: &Walk, names: &Names, log: &mut Log) -> Result<()> {
    let (mut links, mut parents, mut below) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for name in names.all.iter().filter(|name| name.gone.is_none()) {
        *links.entry(name.ino).or_insert(0u32) += 1;
        parents.insert(name.ino, name.directory);
        let directory = walk.inodes.get(&name.ino).is_some_and(|f| f.kind == Kind::Directory);
        *below.entry(name.directory).or_insert(0u32) += u32::from(directory);
    }
    let orphans = inner.core.borrow().tree.files().orphans().clone();
    for (ino, found) in &walk.inodes {
        let directory = found.kind == Kind::Directory;
        let (mut count, mut parent) = match directory {
            true => (2 + below.get(ino).copied().unwrap_or(0), ROOT_NODE),
            false => (links.get(ino).copied().unwrap_or(0), 0),
        };
        if directory {
            parent = parents.get(ino).copied().unwrap_or(parent);
        }
        if orphans.contains(&Ino(*ino)) {
            (count, parent) = (0, found.parent);
        }
        // Creating lost+found may have changed counts, so compare with the present counts.
        let now = inner.run(|core| {
            let head = &core.inode(Ino(*ino))?.head;
            Ok((head.links.get(), head.parent.get()))
        });
        let now = now.await?;
        if now == (count, parent) {
            continue;
        }
        if found.links != count {
            let problem = format!("{} links by its count", found.links);
            let place = (*ino, format!("{ino}: links"));
            log.mended("inode", place, problem, format!("set to {count}"));
        }
        if found.parent != parent {
            let problem = format!("its parent is directory {}", found.parent);
            let place = (*ino, format!("{ino}: parent"));
            log.mended("inode", place, problem, format!("set to {parent}"));
        }
        edit(inner, *ino, |bytes| {
            let head = &mut as_inode_mut(bytes).head;
            (head.links, head.parent) = (count.into(), parent.into());
        })
        .await?;
    }
    Ok(())
}

/// Adds to each action the path of its inode.
fn name_actions(names: &Names, actions: &mut [Action]) {
    let mut above: BTreeMap<u32, (u32, &[u8])> = BTreeMap::new();
    // Insert removed names first, so that a name that stays takes precedence.
    for name in names.all.iter().filter(|n| n.gone.is_some()) {
        above.insert(name.ino, (name.directory, &name.name));
    }
    for name in names.all.iter().filter(|n| n.gone.is_none()) {
        above.insert(name.ino, (name.directory, &name.name));
    }
    for action in actions.iter_mut().filter(|action| action.ino != 0) {
        action.path = crate::fsck::path(action.ino, |inode| above.get(&inode).copied());
    }
}
