//! The plain model: what a file system must hold after a sequence of operations.
//!
//! Maps in memory, no blocks, no log, nothing asynchronous. It predicts the result of every
//! operation, so a run is checked as it goes; the crash oracle replays prefixes of a run on it.
//!
//! Each client has a model of its own: it owns its objects, and its own names in the shared
//! directories. What clients may not do to each other is therefore outside this model.

use crate::op::{Make, Name, Object, Op, SECTOR, SECTORS_PER_BLOCK, Value, fill};
use furrow_zone::ErrorKind;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes per block: durability is per block.
pub const BLOCK: u64 = SECTOR as u64 * SECTORS_PER_BLOCK;

/// An object as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub make: Make,
    /// Of a directory: its names.
    pub entries: BTreeMap<Name, Object>,
    /// Names it has. Directories: 1, or 0 when removed.
    pub names: u32,
    /// Of a directory: the one it is in.
    pub parent: Object,
    /// How often it is open.
    pub opens: u32,
}

/// Names and objects of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    nodes: BTreeMap<Object, Node>,
}

impl Default for Namespace {
    fn default() -> Self {
        Namespace::new()
    }
}

impl Namespace {
    /// The shared directories, empty.
    pub fn new() -> Namespace {
        let node = |_| Node {
            make: Make::Directory,
            entries: BTreeMap::new(),
            names: 1,
            parent: Object::ROOT,
            opens: 0,
        };
        Namespace { nodes: Object::SHARED.iter().map(|&o| (o, node(o))).collect() }
    }

    /// The node of `object`, if it exists (it may have no name, when open).
    pub fn node(&self, object: Object) -> Option<&Node> {
        self.nodes.get(&object)
    }

    /// All objects, shared directories first.
    pub fn objects(&self) -> impl Iterator<Item = (Object, &Node)> {
        self.nodes.iter().map(|(&object, node)| (object, node))
    }

    /// Objects with a name, all names of all directories: (directory, name, object).
    pub fn names(&self) -> impl Iterator<Item = (Object, Name, Object)> + '_ {
        self.nodes.iter().flat_map(|(&dir, node)| {
            node.entries.iter().map(move |(&name, &object)| (dir, name, object))
        })
    }

    fn directory(&self, object: Object) -> Result<&Node, ErrorKind> {
        let node = self.nodes.get(&object).ok_or(ErrorKind::NotFound)?;
        if node.make == Make::Directory { Ok(node) } else { Err(ErrorKind::NotDirectory) }
    }

    fn entry(&self, dir: Object, name: Name) -> Result<Object, ErrorKind> {
        self.directory(dir)?.entries.get(&name).copied().ok_or(ErrorKind::NotFound)
    }

    fn node_mut(&mut self, object: Object) -> &mut Node {
        self.nodes.get_mut(&object).expect("invariant: names lead to objects")
    }

    fn set(&mut self, dir: Object, name: Name, object: Object) {
        self.node_mut(dir).entries.insert(name, object);
        let node = self.node_mut(object);
        node.names += 1;
        node.parent = dir;
    }

    fn drop_name(&mut self, dir: Object, name: Name) {
        let removed = self.node_mut(dir).entries.remove(&name);
        if let Some(object) = removed {
            self.node_mut(object).names -= 1;
            self.collect(object);
        }
    }

    fn collect(&mut self, object: Object) {
        let node = &self.nodes[&object];
        if node.names == 0 && node.opens == 0 {
            self.nodes.remove(&object);
        }
    }

    fn close_all(&mut self) {
        self.nodes.retain(|_, node| {
            node.opens = 0;
            node.names > 0
        });
    }

    fn can_hold(&self, dir: Object) -> Result<(), ErrorKind> {
        // A removed directory that is still open holds no new names.
        if self.directory(dir)?.names == 0 { Err(ErrorKind::NotFound) } else { Ok(()) }
    }

    fn vacant(&self, dir: Object, name: Name) -> Result<(), ErrorKind> {
        self.can_hold(dir)?;
        match self.entry(dir, name) {
            Ok(_) => Err(ErrorKind::Exists),
            Err(ErrorKind::NotFound) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// True if `inner` is `outer` or below it.
    pub fn is_below(&self, inner: Object, outer: Object) -> bool {
        let mut at = inner;
        loop {
            if at == outer {
                return true;
            }
            match self.nodes.get(&at) {
                Some(node) if node.parent != at && at != Object::ROOT => at = node.parent,
                _ => return false,
            }
        }
    }

    /// Applies an operation on names or opens; others do nothing here.
    ///
    /// # Errors
    /// With what a file system answers; nothing has changed then.
    pub fn apply(&mut self, op: &Op) -> Result<(), ErrorKind> {
        match *op {
            Op::Create { make, object, dir, name, .. } => {
                self.vacant(dir, name)?;
                let entries = BTreeMap::new();
                let node = Node { make, entries, names: 0, parent: dir, opens: 0 };
                self.nodes.insert(object, node);
                self.set(dir, name, object);
                Ok(())
            }
            Op::Link { object, dir, name } => self.link(object, dir, name),
            Op::Unlink { dir, name } => {
                let object = self.entry(dir, name)?;
                if self.nodes[&object].make == Make::Directory {
                    return Err(ErrorKind::IsDirectory);
                }
                self.drop_name(dir, name);
                Ok(())
            }
            Op::Rmdir { dir, name } => {
                let object = self.entry(dir, name)?;
                if !self.directory(object)?.entries.is_empty() {
                    return Err(ErrorKind::NotEmpty);
                }
                self.drop_name(dir, name);
                Ok(())
            }
            Op::Rename { from, to, exchange: false } => self.rename(from, to),
            Op::Rename { from, to, exchange: true } => self.exchange(from, to),
            Op::Open(object) => {
                self.nodes.get_mut(&object).ok_or(ErrorKind::NotFound)?.opens += 1;
                Ok(())
            }
            Op::Release(object) => {
                self.nodes.get_mut(&object).ok_or(ErrorKind::NotFound)?.opens -= 1;
                self.collect(object);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn link(&mut self, object: Object, dir: Object, name: Name) -> Result<(), ErrorKind> {
        let node = self.nodes.get(&object).ok_or(ErrorKind::NotFound)?;
        if node.make == Make::Directory {
            return Err(ErrorKind::Denied);
        }
        if node.names == 0 {
            return Err(ErrorKind::NotFound);
        }
        self.vacant(dir, name)?;
        self.set(dir, name, object);
        Ok(())
    }

    fn rename(&mut self, from: (Object, Name), to: (Object, Name)) -> Result<(), ErrorKind> {
        let object = self.entry(from.0, from.1)?;
        self.can_hold(to.0)?;
        let is_directory = self.nodes[&object].make == Make::Directory;
        if is_directory && self.is_below(to.0, object) {
            return Err(ErrorKind::Invalid);
        }
        if let Ok(victim) = self.entry(to.0, to.1) {
            if victim == object {
                return Ok(());
            }
            let node = &self.nodes[&victim];
            match (is_directory, node.make == Make::Directory) {
                (true, false) => return Err(ErrorKind::NotDirectory),
                (false, true) => return Err(ErrorKind::IsDirectory),
                (true, true) if !node.entries.is_empty() => return Err(ErrorKind::NotEmpty),
                _ => {}
            }
            self.drop_name(to.0, to.1);
        }
        self.set(to.0, to.1, object);
        self.drop_name(from.0, from.1);
        Ok(())
    }

    fn exchange(&mut self, from: (Object, Name), to: (Object, Name)) -> Result<(), ErrorKind> {
        let (one, two) = (self.entry(from.0, from.1)?, self.entry(to.0, to.1)?);
        let directory = |o: Object| self.nodes[&o].make == Make::Directory;
        if (directory(one) && self.is_below(to.0, one))
            || (directory(two) && self.is_below(from.0, two))
        {
            return Err(ErrorKind::Invalid);
        }
        self.node_mut(from.0).entries.insert(from.1, two);
        self.node_mut(two).parent = from.0;
        self.node_mut(to.0).entries.insert(to.1, one);
        self.node_mut(one).parent = to.0;
        Ok(())
    }
}

/// What a sector holds: the first `keep` bytes of a version's payload, then zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sector {
    /// Version of the payload.
    pub version: u32,
    /// Bytes left of it by truncation.
    pub keep: u16,
}

/// Content of a file: its size and the sectors that are no holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Bytes.
    pub size: u64,
    sectors: BTreeMap<u64, Sector>,
}

impl Content {
    /// No content yet, and no end of it.
    pub(crate) fn endless() -> Content {
        Content { size: u64::MAX, sectors: BTreeMap::new() }
    }

    /// Writes `count` sectors.
    pub fn write(&mut self, first: u64, count: u32, version: u32) {
        for sector in first..first + u64::from(count) {
            self.sectors.insert(sector, Sector { version, keep: SECTOR as u16 });
        }
        self.size = self.size.max((first + u64::from(count)) * SECTOR as u64);
    }

    /// Sets the size; what is cut off reads as zeros if the file grows again.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            let cut = size / SECTOR as u64;
            let keep = (size % SECTOR as u64) as u16;
            let mut gone = self.sectors.split_off(&cut);
            if let (Some(first), true) = (gone.remove(&cut), keep > 0) {
                self.sectors.insert(cut, Sector { keep: first.keep.min(keep), ..first });
            }
        }
        self.size = size;
    }

    /// Applies the operation if it changes content.
    pub fn apply(&mut self, op: &Op) {
        match *op {
            Op::Write { sector, sectors, version, .. } => self.write(sector, sectors, version),
            Op::Truncate { size, .. } => self.truncate(size),
            Op::Punch { sector, sectors, .. } => {
                for at in sector..sector + u64::from(sectors) {
                    self.sectors.remove(&at);
                }
            }
            Op::Allocate { sector, sectors, .. } => {
                self.size = self.size.max((sector + u64::from(sectors)) * SECTOR as u64);
            }
            _ => {}
        }
    }

    /// Fills `out` with what the file `object` holds from `offset` (a multiple of 512); past the
    /// end of the file, zeros.
    pub fn read(&self, object: Object, offset: u64, out: &mut [u8]) {
        for (index, bytes) in out.chunks_mut(SECTOR).enumerate() {
            let sector = offset / SECTOR as u64 + index as u64;
            bytes.fill(0);
            if let Some(at) = self.sectors.get(&sector) {
                let keep = bytes.len().min(usize::from(at.keep));
                fill(&mut bytes[..keep], object, sector, at.version);
            }
        }
    }

    /// The sectors of block `block`.
    pub fn block(&self, block: u64) -> [Option<Sector>; SECTORS_PER_BLOCK as usize] {
        let first = block * SECTORS_PER_BLOCK;
        std::array::from_fn(|index| self.sectors.get(&(first + index as u64)).copied())
    }

    /// Takes block `block` over from `other`.
    pub fn adopt_block(&mut self, other: &Content, block: u64) {
        for (sector, held) in (block * SECTORS_PER_BLOCK..).zip(other.block(block)) {
            match held {
                Some(held) => drop(self.sectors.insert(sector, held)),
                None => drop(self.sectors.remove(&sector)),
            }
        }
    }

    /// The blocks that are no holes.
    pub fn blocks(&self) -> BTreeSet<u64> {
        self.sectors.keys().map(|sector| sector / SECTORS_PER_BLOCK).collect()
    }
}

/// Everything one client has made: names, contents, modes.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Names and objects.
    pub names: Namespace,
    /// Contents of files.
    pub contents: BTreeMap<Object, Content>,
    /// Permission bits.
    pub modes: BTreeMap<Object, u16>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Object, Xattrs>,
}

/// Extended attributes of an object: by slot.
pub type Xattrs = BTreeMap<u8, Value>;

impl Model {
    /// Applies an operation.
    ///
    /// # Errors
    /// With what a file system answers; nothing has changed then.
    pub fn apply(&mut self, op: &Op) -> Result<(), ErrorKind> {
        match *op {
            Op::Write { object, .. }
            | Op::Truncate { object, .. }
            | Op::Punch { object, .. }
            | Op::Allocate { object, .. } => {
                let node = self.names.node(object).ok_or(ErrorKind::NotFound)?;
                match node.make {
                    Make::File => self.contents.entry(object).or_default().apply(op),
                    Make::Directory => return Err(ErrorKind::IsDirectory),
                    _ => return Err(ErrorKind::Invalid),
                }
            }
            Op::Chmod { object, mode } => {
                self.names.node(object).ok_or(ErrorKind::NotFound)?;
                self.modes.insert(object, mode);
            }
            Op::SetXattr { object, slot, value } => {
                self.names.node(object).ok_or(ErrorKind::NotFound)?;
                let xattrs = self.xattrs.entry(object).or_default();
                match value {
                    Some(value) => drop(xattrs.insert(slot, value)),
                    None => drop(xattrs.remove(&slot).ok_or(ErrorKind::NoAttribute)?),
                }
            }
            Op::Utimens { object, .. } | Op::Fsync { object, .. } => {
                self.names.node(object).ok_or(ErrorKind::NotFound)?;
            }
            Op::Create { object, mode, .. } => {
                self.names.apply(op)?;
                self.modes.insert(object, mode);
            }
            _ => self.names.apply(op)?,
        }
        Ok(())
    }

    /// Ends all opens, as an unmount or a crash does: what has no name is gone.
    pub fn close_all(&mut self) {
        self.names.close_all();
    }

    /// Content of `object`; empty if nothing was written.
    pub fn content(&self, object: Object) -> Content {
        self.contents.get(&object).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(index: u16) -> Name {
        Name { client: 0, index }
    }

    fn object(index: u32) -> Object {
        Object::made_by(0, index)
    }

    fn create(model: &mut Model, make: Make, index: u32, dir: Object) {
        let op =
            Op::Create { make, object: object(index), dir, name: name(index as u16), mode: 0o644 };
        model.apply(&op).unwrap();
    }

    #[test]
    fn truncation_leaves_zeros_when_the_file_grows_again() {
        let mut content = Content::default();
        content.write(0, 16, 1);
        content.truncate(700);
        content.truncate(8192);
        let mut bytes = vec![0xff; 8192];
        content.read(object(0), 0, &mut bytes);
        let mut payload = [0; SECTOR];
        fill(&mut payload, object(0), 1, 1);
        assert_eq!(bytes[512..700], payload[..188]);
        assert!(bytes[700..].iter().all(|&b| b == 0));
        assert_eq!(content.blocks().into_iter().collect::<Vec<_>>(), [0]);
        content.truncate(0);
        assert_eq!(content, Content::default());
    }

    #[test]
    fn a_directory_never_moves_below_itself() {
        let mut model = Model::default();
        create(&mut model, Make::Directory, 0, Object::ROOT);
        create(&mut model, Make::Directory, 1, object(0));
        let below =
            Op::Rename { from: (Object::ROOT, name(0)), to: (object(1), name(9)), exchange: false };
        assert_eq!(model.apply(&below), Err(ErrorKind::Invalid));
        let swap =
            Op::Rename { from: (Object::ROOT, name(0)), to: (object(0), name(1)), exchange: true };
        assert_eq!(model.apply(&swap), Err(ErrorKind::Invalid));
        assert_eq!(
            model.apply(&Op::Rmdir { dir: Object::ROOT, name: name(0) }),
            Err(ErrorKind::NotEmpty)
        );
    }

    #[test]
    fn links_and_opens_keep_an_object() {
        let mut model = Model::default();
        create(&mut model, Make::File, 0, Object::ROOT);
        let link = Op::Link { object: object(0), dir: Object(1), name: name(5) };
        model.apply(&link).unwrap();
        assert_eq!(model.names.node(object(0)).unwrap().names, 2);
        model.apply(&Op::Open(object(0))).unwrap();
        model.apply(&Op::Unlink { dir: Object::ROOT, name: name(0) }).unwrap();
        model.apply(&Op::Unlink { dir: Object(1), name: name(5) }).unwrap();
        assert_eq!(model.names.node(object(0)).unwrap().names, 0);
        // A name cannot be made from an open file alone.
        assert_eq!(model.apply(&link), Err(ErrorKind::NotFound));
        model.apply(&Op::Release(object(0))).unwrap();
        assert!(model.names.node(object(0)).is_none());
    }

    #[test]
    fn rename_onto_another_name_of_the_same_file_changes_nothing() {
        let mut model = Model::default();
        create(&mut model, Make::File, 0, Object::ROOT);
        model.apply(&Op::Link { object: object(0), dir: Object(1), name: name(5) }).unwrap();
        let before = model.names.clone();
        let rename =
            Op::Rename { from: (Object::ROOT, name(0)), to: (Object(1), name(5)), exchange: false };
        model.apply(&rename).unwrap();
        assert_eq!(model.names, before);
    }

    #[test]
    fn rename_over_frees_the_victim() {
        let mut model = Model::default();
        create(&mut model, Make::File, 0, Object::ROOT);
        create(&mut model, Make::File, 1, Object::ROOT);
        let to = (Object::ROOT, name(1));
        let rename = Op::Rename { from: (Object::ROOT, name(0)), to, exchange: false };
        model.apply(&rename).unwrap();
        assert!(model.names.node(object(1)).is_none());
        let names: Vec<_> = model.names.names().collect();
        assert_eq!(names, [(Object::ROOT, name(1), object(0))]);
    }
}
