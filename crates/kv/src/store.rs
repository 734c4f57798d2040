//! The store: its names, and what it is made of.
//!
//! Invariants
//! - Names change in memory at once, and on the drive in the order in which they changed: after a
//!   crash they are as they were at some moment since the last round that was awaited.
//! - What a round has not made durable is in memory; what it took the place of stays on the drive
//!   until it has.

use crate::clean::garbage_left;
use crate::content::{SUMS_INLINE, SYNCED_EXTENT};
use crate::entries::Entry;
use crate::file::{Extent, File, FileId, Lifetime, Sums};
use crate::format::PATH_MAX;
use crate::holes::Forgotten;
use crate::inspect::places;
use crate::place::{Claim, Family, FileKind, Policy, Role};
use crate::rounds::Round;
use crate::zones::{Zones, kept_from};
use furrow_log::pool::SuperzoneState;
use furrow_log::record::Uuid;
use furrow_log::ring::{RecordRing, RingZones};
use furrow_log::{BLOCK_SIZE, BlockAddr};
use furrow_rt::{Notify, Pool, Rt};
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Files of which somebody said the family before they were made, at most.
const AWAITED_MAX: usize = 1024;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Zone cleaning begins when less than this share of the zones is free, in percent.
    pub clean_below: u32,
    /// Names that changed, and files that were removed, are durable at the latest after so many
    /// nanoseconds.
    pub commit_interval: u64,
    /// Pages of content that may be on their way to the drive.
    pub pages_in_flight: usize,
    /// Which files share zones.
    pub policy: Policy,
    /// The defect built in, if any.
    #[cfg(feature = "canary")]
    pub canary: Option<Canary>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            clean_below: 20,
            commit_interval: 1_000_000_000,
            pages_in_flight: 8192,
            policy: Policy::default(),
            #[cfg(feature = "canary")]
            canary: None,
        }
    }
}

/// A defect built in on purpose, which the crash sweep or the simulation must catch. Without the
/// feature `canary` nothing has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A sync does not flush the drive's cache.
    SkippedFlush,
    /// A sync does not wait for the file's content.
    EarlySync,
    /// Zones are reset before the round is durable by which nothing in them counts.
    EarlyReset,
    /// Recovery believes the last round also where its content is not on the drive.
    TrustedRound,
    /// A sync of names does not wait until they are durable.
    EarlyNames,
    /// A round has the bytes behind a file's last whole block only when the file is new to it.
    StaleTail,
    /// The ring's older half is emptied before the newer one is durable.
    EarlyEmpty,
    /// What a zone that failed has lost is not written again.
    UnmovedExtent,
    /// What is on the drive is shown, though a zone that may have held newer records is offline.
    OlderHalf,
}

impl Canary {
    /// All of them.
    pub const ALL: [Canary; 9] = [
        Canary::SkippedFlush,
        Canary::EarlySync,
        Canary::EarlyReset,
        Canary::TrustedRound,
        Canary::EarlyNames,
        Canary::StaleTail,
        Canary::EarlyEmpty,
        Canary::UnmovedExtent,
        Canary::OlderHalf,
    ];
    /// Those that power cuts alone show.
    pub const CRASH: [Canary; 7] = [
        Canary::SkippedFlush,
        Canary::EarlySync,
        Canary::EarlyReset,
        Canary::TrustedRound,
        Canary::EarlyNames,
        Canary::StaleTail,
        Canary::EarlyEmpty,
    ];
}

impl Options {
    /// Builds in a defect by its name, where that is possible.
    ///
    /// # Errors
    /// `Invalid` if there is none of that name; `Unsupported` without the feature `canary`, as in
    /// every release.
    pub fn set_canary(&mut self, name: &str) -> Result<()> {
        let named = Canary::ALL.into_iter().find(|canary| format!("{canary:?}") == name);
        let Some(canary) = named else {
            let message = format!("no defect {name}: there are {:?}", Canary::ALL);
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        #[cfg(feature = "canary")]
        {
            self.canary = Some(canary);
            Ok(())
        }
        #[cfg(not(feature = "canary"))]
        {
            let message = format!("{canary:?}: this build has no defects that can be chosen");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }

    #[allow(unused_variables, reason = "without the feature none has one")]
    pub(crate) fn has(&self, canary: Canary) -> bool {
        #[cfg(feature = "canary")]
        return self.canary == Some(canary);
        #[cfg(not(feature = "canary"))]
        false
    }
}

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A file.
    File(FileId),
}

/// What is known of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it names.
    pub node: Node,
    /// Bytes; 0 of a directory.
    pub size: u64,
    /// When it was written last, seconds since 1970; 0 of a directory.
    pub modified: i64,
}

/// Room of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What files can hold.
    pub capacity: u64,
    /// What they hold.
    pub used: u64,
    /// What files can hold besides, by cleaning alone: without what is kept for the output of
    /// compactions, for flushes of the logs there are, and for what a database is made of.
    pub available: u64,
    /// Zones for content.
    pub zones: u32,
    /// Those of them that hold nothing.
    pub free_zones: u32,
    /// The most of them that were in use at once since the store was opened.
    pub peak_zones: u32,
}

/// What a store did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that were appended.
    pub appended: u64,
    /// Bytes that were read.
    pub read: u64,
    /// Syncs of files that were asked for.
    pub syncs: u64,
    /// Rounds that made them, and names, durable.
    pub rounds: u64,
    /// Times the record ring turned.
    pub turns: u64,
    /// Zones that cleaning emptied.
    pub cleaned: u64,
    /// Blocks that cleaning copied.
    pub copied: u64,
    /// Those of them of each kind of file, as [`crate::FileKind::ALL`] has them.
    pub copied_of: [u64; 5],
    /// Zones that were reset.
    pub resets: u64,
    /// Extents that were written again because their zone failed.
    pub relocated: u64,
    /// Times a writer waited for cleaning to make room.
    pub waits: u64,
    /// Nanoseconds of these.
    pub waited: u64,
    /// Times there was no room.
    pub refused: u64,
    /// Zones that cleaning left because something in them cannot be read.
    pub unreadable: u64,
    /// Halves of the record ring that ended because a zone failed.
    pub ring_failures: u64,
}

/// What the files of a kind are together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindSum {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that they have on the drive, those of checksums included.
    pub blocks: u64,
    /// Runs of blocks.
    pub extents: u64,
}

pub(crate) struct Names {
    pub(crate) nodes: BTreeMap<String, Node>,
    /// What changed since the last round, in order.
    pub(crate) changes: Vec<Entry>,
    pub(crate) next_file: u64,
}

/// Blocks that are to count no more once a round is durable: zone, file, how many.
pub(crate) type Retired = (ZoneId, FileId, u32);

pub(crate) struct Inner {
    pub(crate) rt: Rt,
    pub(crate) pages: Pool,
    pub(crate) options: Options,
    pub(crate) label: String,
    pub(crate) created: i64,
    pub(crate) uuid: Uuid,
    pub(crate) device: Uuid,
    pub(crate) ring_zones: RingZones,
    pub(crate) ring: RefCell<RecordRing>,
    pub(crate) zones: Zones,
    pub(crate) names: RefCell<Names>,
    pub(crate) files: RefCell<BTreeMap<FileId, File>>,
    pub(crate) retired: RefCell<Vec<Retired>>,
    /// Files that the next round must have, though nobody asked.
    pub(crate) must: RefCell<BTreeSet<FileId>>,
    /// Writes under way: of which file.
    pub(crate) flights: RefCell<BTreeMap<u64, FileId>>,
    pub(crate) next_flight: Cell<u64>,
    pub(crate) landed: Notify,
    /// Extents that got another place, so far.
    pub(crate) moves: Cell<u64>,
    pub(crate) next_round: RefCell<Option<Rc<Round>>>,
    pub(crate) committing: Cell<bool>,
    pub(crate) round: Cell<u64>,
    pub(crate) record: Cell<u64>,
    pub(crate) turn: Cell<u64>,
    pub(crate) commit_planned: Cell<bool>,
    pub(crate) sums: RefCell<BTreeMap<BlockAddr, Rc<Vec<u32>>>>,
    /// Families of files that are to be made.
    pub(crate) awaited: RefCell<BTreeMap<String, String>>,
    pub(crate) forgotten: RefCell<Forgotten>,
    pub(crate) counters: RefCell<Counters>,
    pub(crate) dead: RefCell<Option<Error>>,
    pub(crate) stopping: Cell<bool>,
}

/// A store. Cloning shares it.
#[derive(Clone)]
pub struct Store(pub(crate) Rc<Inner>);

/// A path without slashes at its ends or twice.
pub(crate) fn clean(path: &str) -> Result<String> {
    let parts: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(Error::new(ErrorKind::Invalid, format!("{path}: '..' leads out of the store")));
    }
    let path = parts.join("/");
    if path.len() > PATH_MAX {
        let message = format!("a path of {} bytes: at most {PATH_MAX} are taken", path.len());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(path)
}

/// Extents whose checksums get a block when they are moved.
pub(crate) fn sums_to_come(extents: &[Extent]) -> u64 {
    let inline = |e: &&Extent| matches!(e.sums, Sums::Here(_)) && !e.is_hole();
    let one = |e: &&Extent| e.blocks > SUMS_INLINE && inline(e);
    extents.iter().filter(one).count() as u64
}

/// How many of so many blocks can be content where extents are as short as files that are written
/// side by side make them: each has a block of checksums.
pub(crate) fn without_sums(blocks: u64, zone_blocks: u32) -> u64 {
    let extent = u64::from(SYNCED_EXTENT.min(zone_blocks.saturating_sub(1)));
    blocks - blocks.div_ceil(extent + 1)
}

/// What lies below a directory, from `directory/` on.
fn below(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("{directory}/") }
}

impl Names {
    fn get(&self, path: &str) -> Result<Node> {
        if path.is_empty() {
            return Ok(Node::Directory);
        }
        let missing = || Error::new(ErrorKind::NotFound, format!("{path}: no such file"));
        self.nodes.get(path).copied().ok_or_else(missing)
    }

    /// The directory a path is to be in must be there.
    fn check_parent(&self, path: &str) -> Result<()> {
        if path.is_empty() {
            return Err(Error::new(ErrorKind::Exists, "the root is there already"));
        }
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        match self.get(parent)? {
            Node::Directory => Ok(()),
            Node::File(_) => {
                Err(Error::new(ErrorKind::NotDirectory, format!("{parent}: not a directory")))
            }
        }
    }

    fn children<'a>(&'a self, directory: &str) -> impl Iterator<Item = (&'a str, Node)> {
        let prefix = below(directory);
        let from = self.nodes.range(prefix.clone()..);
        let inside = from.map_while(move |(path, node)| Some((path.strip_prefix(&prefix)?, *node)));
        inside.filter(|(name, _)| !name.contains('/'))
    }
}

impl Store {
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.0.dead.borrow().clone().map_or(Ok(()), Err)
    }

    /// Nothing can be made durable any more.
    pub(crate) fn die(&self, error: &Error) -> Error {
        self.0.dead.borrow_mut().get_or_insert_with(|| error.clone());
        self.0.zones.freed.notify_all();
        self.0.landed.notify_all();
        error.clone()
    }

    /// Why nothing can be made durable any more, if so.
    pub fn failed(&self) -> Option<Error> {
        self.0.dead.borrow().clone()
    }

    pub(crate) fn has(&self, canary: Canary) -> bool {
        self.0.options.has(canary)
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.0.counters.borrow_mut());
    }

    /// What it did.
    pub fn counters(&self) -> Counters {
        let resets = self.0.zones.writer.counters().resets;
        Counters { resets, ..*self.0.counters.borrow() }
    }

    /// Its UUID.
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// Its label.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// When it was made, in seconds since 1970.
    pub fn created(&self) -> i64 {
        self.0.created
    }

    /// Blocks that a zone holds.
    pub fn zone_blocks(&self) -> u32 {
        self.0.zones.capacity()
    }

    /// Its room.
    pub fn space(&self) -> Space {
        let zones = &self.0.zones;
        let failed = zones.pool.count(SuperzoneState::Retired);
        let total = zones.pool.total() - failed;
        let usable = u64::from(total.saturating_sub(kept_from(Claim::Others, total)));
        let capacity = usable * u64::from(zones.capacity());
        let used = zones.valid_total();
        let waiting = |file: &File| file.waiting.len() as u64 + sums_to_come(&file.extents);
        let waiting = self.0.files.borrow().values().map(waiting).sum();
        let flushes = u64::from(zones.kept_for_flushes()) * u64::from(zones.capacity());
        let gone = [used, waiting, flushes, zones.out_of_reach(garbage_left(zones.capacity()))];
        let left = gone.into_iter().fold(capacity, u64::saturating_sub);
        let block = BLOCK_SIZE as u64;
        Space {
            capacity: capacity * block,
            used: used * block,
            available: without_sums(left, zones.capacity()) * block,
            zones: zones.pool.total(),
            free_zones: zones.pool.free_count(),
            peak_zones: zones.pool.total() - zones.least_free.get(),
        }
    }

    /// What the files of each kind are together, as [`crate::FileKind::ALL`] has them.
    pub fn kinds(&self) -> [KindSum; 5] {
        let mut kinds = [KindSum::default(); 5];
        for file in self.0.files.borrow().values() {
            let sum = &mut kinds[file.role.kind as usize];
            sum.files += 1;
            sum.bytes += file.size;
            let blocks = file.extents.iter().flat_map(places).map(|(_, blocks)| u64::from(blocks));
            sum.blocks += blocks.sum::<u64>();
            sum.extents += file.extents.len() as u64;
        }
        kinds
    }

    fn changed(&self, entry: Entry) {
        self.0.names.borrow_mut().changes.push(entry);
        self.plan_commit();
    }

    /// What a path names.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if it leads out of the store (also of the others).
    pub fn stat(&self, path: &str) -> Result<Stat> {
        let node = self.0.names.borrow().get(&clean(path)?)?;
        let files = self.0.files.borrow();
        let file = match node {
            Node::File(id) => files.get(&id),
            Node::Directory => None,
        };
        let (size, modified) = file.map_or((0, 0), |file| (file.size, file.modified));
        Ok(Stat { node, size, modified })
    }

    /// The names in a directory, ascending.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub fn list(&self, path: &str) -> Result<Vec<(String, Node)>> {
        let path = clean(path)?;
        let names = self.0.names.borrow();
        if let Node::File(_) = names.get(&path)? {
            return Err(Error::new(ErrorKind::NotDirectory, format!("{path}: not a directory")));
        }
        Ok(names.children(&path).map(|(name, node)| (name.to_owned(), node)).collect())
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`; `NotFound` or `NotDirectory` of what it is to be in.
    pub fn make_directory(&self, path: &str) -> Result<()> {
        self.check_alive()?;
        let path = clean(path)?;
        let mut names = self.0.names.borrow_mut();
        names.check_parent(&path)?;
        if names.nodes.contains_key(&path) {
            return Err(Error::new(ErrorKind::Exists, format!("{path}: is there already")));
        }
        names.nodes.insert(path.clone(), Node::Directory);
        drop(names);
        self.changed(Entry::Name { path, file: None });
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`.
    pub fn remove_directory(&self, path: &str) -> Result<()> {
        self.check_alive()?;
        let path = clean(path)?;
        let mut names = self.0.names.borrow_mut();
        match names.get(&path)? {
            Node::File(_) => {
                return Err(Error::new(ErrorKind::NotDirectory, format!("{path}: a file")));
            }
            Node::Directory if path.is_empty() || names.children(&path).next().is_some() => {
                return Err(Error::new(ErrorKind::NotEmpty, format!("{path}: not empty")));
            }
            Node::Directory => {}
        }
        names.nodes.remove(&path);
        drop(names);
        self.changed(Entry::Remove { path });
        Ok(())
    }

    /// Makes an empty file and opens it. A file that the path named is removed.
    ///
    /// # Errors
    /// `IsDirectory`; `NotFound` or `NotDirectory` of what it is to be in.
    pub fn create(&self, path: &str, lifetime: Lifetime) -> Result<FileId> {
        self.check_alive()?;
        let path = clean(path)?;
        let mut names = self.0.names.borrow_mut();
        names.check_parent(&path)?;
        let before = names.nodes.get(&path).copied();
        if before == Some(Node::Directory) {
            return Err(Error::new(ErrorKind::IsDirectory, format!("{path}: a directory")));
        }
        let id = FileId(names.next_file);
        names.next_file += 1;
        names.nodes.insert(path.clone(), Node::File(id));
        drop(names);
        let mut file = File::new(lifetime, self.0.rt.wall().0);
        (file.names, file.opens) = (1, 1);
        file.role = Role::of(&path);
        if let Some(name) = self.0.awaited.borrow_mut().remove(&path) {
            file.role.family.name = name;
        }
        self.0.zones.set_log(id, file.role.kind == FileKind::Wal);
        self.0.files.borrow_mut().insert(id, file);
        self.changed(Entry::Name { path, file: Some(id) });
        if let Some(Node::File(before)) = before {
            self.lose_name(before);
        }
        Ok(id)
    }

    /// Says how long a file is expected to live. What was placed already stays where it is.
    ///
    /// # Errors
    /// `NotFound` if it is neither open nor named.
    pub fn set_lifetime(&self, id: FileId, lifetime: Lifetime) -> Result<()> {
        self.with(id, |file| file.lifetime = lifetime)
    }

    /// Says who writes a file: it may have room that is kept for that.
    ///
    /// # Errors
    /// `NotFound` if it is neither open nor named.
    pub fn set_claim(&self, id: FileId, claim: Claim) -> Result<()> {
        self.with(id, |file| file.claim = claim)
    }

    /// Opens a file, to be closed again. Its content stays until then, also without a name.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    pub fn open_file(&self, path: &str) -> Result<FileId> {
        let path = clean(path)?;
        let Node::File(id) = self.0.names.borrow().get(&path)? else {
            return Err(Error::new(ErrorKind::IsDirectory, format!("{path}: a directory")));
        };
        self.with(id, |file| file.opens += 1)?;
        Ok(id)
    }

    /// Removes a file's name, and the file once nobody has it open.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.check_alive()?;
        let path = clean(path)?;
        let mut names = self.0.names.borrow_mut();
        let Node::File(id) = names.get(&path)? else {
            return Err(Error::new(ErrorKind::IsDirectory, format!("{path}: a directory")));
        };
        names.nodes.remove(&path);
        drop(names);
        self.changed(Entry::Remove { path });
        self.lose_name(id);
        Ok(())
    }

    /// Gives a file another name besides.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `Exists`.
    pub fn link(&self, from: &str, to: &str) -> Result<()> {
        self.check_alive()?;
        let (from, to) = (clean(from)?, clean(to)?);
        let mut names = self.0.names.borrow_mut();
        names.check_parent(&to)?;
        let Node::File(id) = names.get(&from)? else {
            return Err(Error::new(ErrorKind::IsDirectory, format!("{from}: a directory")));
        };
        if names.nodes.contains_key(&to) {
            return Err(Error::new(ErrorKind::Exists, format!("{to}: is there already")));
        }
        names.nodes.insert(to.clone(), Node::File(id));
        drop(names);
        self.with(id, |file| file.names += 1)?;
        self.changed(Entry::Name { path: to, file: Some(id) });
        Ok(())
    }

    /// Renames a file or a directory. A file that the new path named is removed.
    ///
    /// # Errors
    /// `NotFound`; `Exists` if the new path names a directory, or a directory is to be renamed over
    /// something; `Invalid` for a directory into itself.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.check_alive()?;
        let (from, to) = (clean(from)?, clean(to)?);
        let mut names = self.0.names.borrow_mut();
        let node = names.get(&from)?;
        if from.is_empty() || to.starts_with(&below(&from)) {
            return Err(Error::new(ErrorKind::Invalid, format!("{from}: cannot become {to}")));
        }
        if from == to {
            return Ok(());
        }
        names.check_parent(&to)?;
        let over = names.nodes.get(&to).copied();
        let replaced = match (node, over) {
            (Node::File(_), Some(Node::File(over))) => Some(over),
            (_, Some(_)) => {
                return Err(Error::new(ErrorKind::Exists, format!("{to}: is there already")));
            }
            (_, None) => None,
        };
        rename(&mut names.nodes, &from, &to);
        self.rename_roles(&names.nodes, &to);
        drop(names);
        self.changed(Entry::Rename { from, to });
        if let Some(over) = replaced {
            self.lose_name(over);
        }
        Ok(())
    }

    /// What files are follows from their names; which family a file belongs to stays.
    fn rename_roles(&self, nodes: &BTreeMap<String, Node>, to: &str) {
        let prefix = below(to);
        let inside =
            nodes.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        let mut files = self.0.files.borrow_mut();
        for (path, node) in nodes.get_key_value(to).into_iter().chain(inside) {
            let Node::File(id) = node else { continue };
            let Some(file) = files.get_mut(id) else { continue };
            let name = std::mem::take(&mut file.role.family.name);
            file.role = Role::of(path);
            file.role.family.name = name;
            self.0.zones.set_log(*id, file.role.kind == FileKind::Wal);
        }
    }

    /// The zones in which a file has content, ascending.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    pub fn zones_of(&self, path: &str) -> Result<Vec<ZoneId>> {
        let path = clean(path)?;
        let Node::File(id) = self.0.names.borrow().get(&path)? else {
            return Err(Error::new(ErrorKind::IsDirectory, format!("{path}: a directory")));
        };
        let zones = self.with(id, |file| {
            let placed = file.extents.iter().filter(|extent| !extent.is_hole());
            placed.map(|extent| self.zone_of(extent.at)).collect::<BTreeSet<_>>()
        })?;
        Ok(zones.into_iter().collect())
    }

    /// Says to which column family a blob file belongs. If there is no such file yet, this is for
    /// the one that is made by that name next: RocksDB says it before it makes the file.
    ///
    /// # Errors
    /// `IsDirectory`; `Invalid` for a name longer than paths may be.
    pub fn set_family(&self, path: &str, name: &str) -> Result<()> {
        let path = clean(path)?;
        if name.len() > PATH_MAX {
            return Err(Error::new(ErrorKind::Invalid, "the name of a family is too long"));
        }
        let node = self.0.names.borrow().nodes.get(&path).copied();
        match node {
            Some(Node::File(id)) => {
                self.with(id, |file| name.clone_into(&mut file.role.family.name))
            }
            Some(Node::Directory) => {
                Err(Error::new(ErrorKind::IsDirectory, format!("{path}: a directory")))
            }
            None => {
                let mut awaited = self.0.awaited.borrow_mut();
                if awaited.len() >= AWAITED_MAX {
                    awaited.pop_first();
                }
                awaited.insert(path, name.to_owned());
                Ok(())
            }
        }
    }

    /// The numbers of the youngest blob files of a family, of each full zone that has blob files of
    /// it (YBIZ, §IV-C of the paper). The youngest itself may be gone: it counts as long as another
    /// one is there, which keeps the zone.
    ///
    /// # Errors
    /// `Invalid` if the directory leads out of the store.
    pub fn youngest_in_full_zones(&self, family: &Family) -> Result<Vec<(ZoneId, u64)>> {
        let family = Family { directory: clean(&family.directory)?, name: family.name.clone() };
        let (zones, files) = (&self.0.zones, self.0.files.borrow());
        let live = |zone: ZoneId| {
            let roles =
                zones.files_in(zone).into_iter().filter_map(|id| Some(&files.get(&id)?.role));
            roles.filter(|role| role.family == family).filter_map(|role| role.number).max()
        };
        let of_zone = |zone: ZoneId| {
            let live = live(zone)?;
            let recorded = zones.youngest_in(zone).get(&family).copied();
            Some((zone, recorded.map_or(live, |recorded| recorded.max(live))))
        };
        zones.close_full();
        Ok(zones.full_zones().into_iter().filter_map(of_zone).collect())
    }

    fn lose_name(&self, id: FileId) {
        let mut files = self.0.files.borrow_mut();
        let file = files.get_mut(&id).expect("invariant: what has a name is there");
        file.names -= 1;
        if file.names == 0 {
            self.0.zones.set_log(id, false);
        }
        drop(files);
        self.drop_unused(id);
    }

    /// Forgets a file that has neither a name nor a handle.
    pub(crate) fn drop_unused(&self, id: FileId) {
        let mut files = self.0.files.borrow_mut();
        let unused = |file: &&mut File| file.names == 0 && file.opens == 0;
        if files.get_mut(&id).filter(unused).is_none() {
            return;
        }
        let file = files.remove(&id).expect("invariant: it was just there");
        drop(files);
        self.0.zones.let_go(id);
        self.0.must.borrow_mut().remove(&id);
        for extent in &file.extents {
            self.retire(id, extent);
        }
        self.plan_commit();
    }

    /// Does something with a file.
    pub(crate) fn with<T>(&self, id: FileId, action: impl FnOnce(&mut File) -> T) -> Result<T> {
        let mut files = self.0.files.borrow_mut();
        let missing = || Error::new(ErrorKind::NotFound, format!("file {} is gone", id.0));
        Ok(action(files.get_mut(&id).ok_or_else(missing)?))
    }

    /// A name of a file, for messages.
    pub(crate) fn name_of(&self, id: FileId) -> String {
        let names = self.0.names.borrow();
        let named = names.nodes.iter().find(|(_, node)| **node == Node::File(id));
        named.map_or_else(|| format!("file {} without a name", id.0), |(path, _)| path.clone())
    }
}

/// Calls a path, and all below it, otherwise.
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
