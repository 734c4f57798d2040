//! Reads a mounted file system through its interface, and passes the findings to the oracle.

use crate::fs::history::Expected;
use crate::fs::model::{BLOCK, Model, Times};
use crate::fs::op::{Ino, Kind, Object, SECTOR};
use crate::fs::oracle::{Found, Names, Observed};
use furrow_fs::Fs;
use furrow_zone::{Error, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};

/// A name in the root that the harness uses to check that an engine works after a recovery.
pub const PROBE: &[u8] = b"probe";
/// Number of entries per request: few, so that listings continue in the middle of directories.
const LISTING: usize = 7;

fn kind(kind: furrow_fs::Kind) -> Kind {
    match kind {
        furrow_fs::Kind::File => Kind::File,
        furrow_fs::Kind::Directory => Kind::Directory,
        furrow_fs::Kind::Symlink => Kind::Symlink,
        furrow_fs::Kind::Fifo => Kind::Fifo,
        _ => Kind::Other,
    }
}

/// The reason why a check of a file system failed.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// The engine refused an operation: the message and the kind of its error.
    Refused(String, ErrorKind),
    /// The engine answered, and the answer is wrong.
    Wrong(String),
}

impl Trouble {
    /// Returns the same trouble with `place` in front of the message.
    #[must_use]
    pub fn at(self, place: &str) -> Trouble {
        match self {
            Trouble::Refused(why, kind) => Trouble::Refused(format!("{place}: {why}"), kind),
            Trouble::Wrong(why) => Trouble::Wrong(format!("{place}: {why}")),
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Refused(why, _) | Trouble::Wrong(why) => f.write_str(why),
        }
    }
}

impl From<String> for Trouble {
    fn from(why: String) -> Trouble {
        Trouble::Wrong(why)
    }
}

impl From<Trouble> for String {
    fn from(trouble: Trouble) -> String {
        trouble.to_string()
    }
}

/// Wraps an engine's error, with the operation in front.
pub fn told(what: impl std::fmt::Display) -> impl FnOnce(Error) -> Trouble {
    move |error| Trouble::Refused(format!("{what}: {error}"), error.kind())
}

/// Wraps the error of an audit, with the text `when` in front. Faults of the drive never excuse
/// such an error.
pub fn wrong(when: &str) -> impl FnOnce(Error) -> Trouble {
    move |error| Trouble::Wrong(format!("{when}: {error}"))
}

/// All entries of a directory.
///
/// # Errors
/// If the engine fails, lists a name twice, or the listing does not advance.
pub async fn list(fs: &Fs, ino: Ino) -> Result<BTreeMap<Vec<u8>, (Ino, Kind)>, Trouble> {
    let mut entries = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let listed = fs
            .readdir(furrow_fs::Ino(ino.0), cookie, LISTING)
            .await
            .map_err(told(format_args!("readdir of inode {ino}")))?;
        let Some(last) = listed.last() else { return Ok(entries) };
        if last.cookie == cookie {
            let why = format!("the listing stays at cookie {cookie}");
            return Err(Trouble::Wrong(format!("readdir of inode {ino}: {why}")));
        }
        cookie = last.cookie;
        for entry in listed {
            let found = (Ino(entry.ino.0), kind(entry.kind));
            if entries.insert(entry.name.clone(), found).is_some() {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                return Err(format!("readdir of inode {ino} lists {name:?} twice").into());
            }
        }
    }
}

/// All extended attributes of an inode.
///
/// # Errors
/// If the engine fails.
pub async fn xattrs(fs: &Fs, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Trouble> {
    let engine_ino = furrow_fs::Ino(ino.0);
    let mut found = BTreeMap::new();
    let listed = fs.listxattr(engine_ino).await;
    for name in listed.map_err(told(format_args!("listxattr of {ino}")))? {
        let value = fs.getxattr(engine_ino, &name).await;
        let value = value.map_err(told(format_args!("getxattr of {ino}")))?;
        found.insert(name, value);
    }
    Ok(found)
}

async fn look_at(fs: &Fs, ino: Ino, expected: Kind) -> Result<Found, Trouble> {
    let engine_ino = furrow_fs::Ino(ino.0);
    let attr = fs.getattr(engine_ino).await.map_err(told(format_args!("getattr of {ino}")))?;
    let kind = kind(attr.kind);
    if kind != expected || attr.ino.0 != ino.0 {
        return Err(format!(
            "inode {ino} says it is inode {}, a {kind:?}; its name says {expected:?}",
            attr.ino
        )
        .into());
    }
    let target = match kind {
        Kind::Symlink => {
            fs.readlink(engine_ino).await.map_err(told(format_args!("readlink of {ino}")))?
        }
        _ => Vec::new(),
    };
    let entries = BTreeMap::new();
    let xattrs = xattrs(fs, ino).await?;
    let (mode, links, size) = (attr.mode, attr.links, attr.size);
    let moment = |time: furrow_fs::Time| (time.seconds, time.nanoseconds);
    let (atime, mtime, ctime) = (moment(attr.atime), moment(attr.mtime), moment(attr.ctime));
    let (owners, times) = ((attr.uid, attr.gid), Times { atime, mtime, ctime });
    Ok(Found { kind, mode, owners, times, links, size, target, entries, xattrs })
}

/// The whole tree, without [`PROBE`].
///
/// # Errors
/// If the engine fails or contradicts itself.
pub async fn observe(fs: &Fs) -> Result<Observed, Trouble> {
    let mut observed = Observed::default();
    let mut unseen = vec![(Ino::ROOT, Kind::Directory)];
    while let Some((ino, kind)) = unseen.pop() {
        if observed.nodes.contains_key(&ino) {
            continue;
        }
        let mut found = look_at(fs, ino, kind).await?;
        if kind == Kind::Directory {
            for (name, (child, kind)) in list(fs, ino).await? {
                if ino == Ino::ROOT && name == PROBE {
                    continue;
                }
                let attr = fs
                    .lookup(furrow_fs::Ino(ino.0), &name)
                    .await
                    .map_err(told(format_args!("lookup of a listed name in {ino}")))?;
                if attr.ino.0 != child.0 {
                    let why = format!("in {ino}, readdir says {child}, lookup {}", attr.ino);
                    return Err(why.into());
                }
                found.entries.insert(name, child);
                unseen.push((child, kind));
            }
        }
        observed.nodes.insert(ino, found);
    }
    Ok(observed)
}

/// Reads one block of a file, cut off at its size.
async fn read_block(fs: &Fs, ino: Ino, block: u64, size: u64) -> Result<Vec<u8>, Trouble> {
    let offset = block * BLOCK;
    let length = size.saturating_sub(offset).min(BLOCK) as usize;
    let data = fs
        .read(furrow_fs::Ino(ino.0), offset, length)
        .await
        .map_err(told(format_args!("read of inode {ino} block {block}")))?;
    let bytes = data.to_vec();
    if bytes.len() != length {
        let why = format!("inode {ino} block {block}: {} bytes of {length}", bytes.len());
        return Err(why.into());
    }
    Ok(bytes)
}

/// The state that a recovery found, in terms of the clients' models.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// Each client's names and contents.
    pub models: BTreeMap<u8, Model>,
    /// The inode that was found for each object.
    pub inos: BTreeMap<Object, Ino>,
}

/// Checks names, attributes, times and contents of the whole file system.
///
/// # Errors
/// Describes the first finding that the contract does not allow.
pub async fn check(fs: &Fs, expected: &Expected) -> Result<Recovered, Trouble> {
    fs.audit_changed().map_err(wrong("before it was looked at"))?;
    let observed = observe(fs).await?;
    fs.audit().map_err(wrong("after it was looked at"))?;
    let Names { matching, prefixes } = expected.check_names(&observed)?;
    let expected = &*expected.carried(&prefixes);
    let mut models: BTreeMap<u8, Model> = prefixes
        .iter()
        .map(|(&client, &count)| {
            let mut names = expected.names_after(client, count);
            names.close_all();
            (client, Model { names, ..Model::default() })
        })
        .collect();
    for (&object, &ino) in &matching {
        let Some(found) = observed.nodes.get(&ino) else { continue };
        let mut blocks = BTreeMap::new();
        if found.kind == Kind::File {
            for block in expected.blocks_of_interest(object, found.size) {
                blocks.insert(block, read_block(fs, ino, block, found.size).await?);
            }
        }
        let content = expected
            .check_content(object, found, &blocks)
            .map_err(|why| format!("{why} (inode {ino})"))?;
        let attributes = expected
            .check_attributes(object, found)
            .and_then(|attributes| expected.check_times(object, found).map(|()| attributes))
            .map_err(|why| format!("{why} (inode {ino})"))?;
        if let Some(model) = object.client().and_then(|client| models.get_mut(&client)) {
            model.attributes.insert(object, attributes);
            model.times.insert(object, found.times);
            model.contents.insert(object, content);
        }
    }
    Ok(Recovered { models, inos: matching })
}

/// True if the engine reported that it cannot read something.
fn unreadable(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Refused(_, ErrorKind::Io))
}

/// Checks a file system on a drive that has lost zones: each readable block of a file has the
/// file's content, and no file shows content of another. If everything was readable, everything is
/// checked as by [`check`].
///
/// # Errors
/// Says what is wrong.
pub async fn check_damaged(fs: &Fs, expected: &Expected) -> Result<(), Trouble> {
    match check(fs, expected).await {
        Err(trouble) if unreadable(&trouble) => {}
        other => return other.map(|_| ()),
    }
    let mut seen = BTreeSet::new();
    let mut unseen = vec![(Ino::ROOT, Kind::Directory)];
    while let Some((ino, kind)) = unseen.pop() {
        if !seen.insert(ino) {
            continue;
        }
        let looked = match kind {
            Kind::Directory => list(fs, ino).await.map(|entries| {
                unseen.extend(entries.into_values());
            }),
            Kind::File => check_readable(fs, ino, expected).await,
            _ => look_at(fs, ino, kind).await.map(|_| ()),
        };
        match looked {
            Err(trouble) if unreadable(&trouble) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Checks the blocks of a file that can be read.
async fn check_readable(fs: &Fs, ino: Ino, expected: &Expected) -> Result<(), Trouble> {
    let found = look_at(fs, ino, Kind::File).await?;
    let mut blocks = BTreeMap::new();
    let mut owners = BTreeSet::new();
    for block in (0..found.size.div_ceil(BLOCK).min(128)).chain([found.size / BLOCK]) {
        match read_block(fs, ino, block, found.size).await {
            Err(trouble) if unreadable(&trouble) => {}
            Err(trouble) => return Err(trouble),
            Ok(bytes) => {
                let sectors = (block * BLOCK / SECTOR as u64..).zip(bytes.chunks(SECTOR));
                owners.extend(sectors.filter_map(|(at, sector)| crate::fs::op::owner(sector, at)));
                blocks.insert(block, bytes);
            }
        }
    }
    // A file without readable payload cannot be identified.
    let Some(&owner) = owners.first() else { return Ok(()) };
    // `owner` need not be this file, because content can be copied. So the file may be any object
    // that ever had this inode number.
    let known = expected.inos.iter().filter(|(_, known)| **known == ino);
    let mut wrong = None;
    for object in known.map(|(&object, _)| object) {
        let checked = expected
            .check_content(object, &found, &blocks)
            .and_then(|_| expected.check_attributes(object, &found))
            .and_then(|_| expected.check_times(object, &found));
        match checked {
            Ok(()) => return Ok(()),
            Err(why) if owners.contains(&object) || wrong.is_none() => wrong = Some(why),
            Err(_) => {}
        }
    }
    let why = wrong.unwrap_or_else(|| format!("blocks of {owner}"));
    Err(format!("inode {ino} shows {why}").into())
}
