//! The plain model: the state that a file system must have after a sequence of operations.
//!
//! Maps in memory, no blocks, no log, nothing asynchronous. It predicts the result of every
//! operation, so every answer in a run is checked; the crash oracle replays prefixes of a run on
//! the model.
//!
//! Each client has a model of its own: it owns its objects, and its own names in the shared
//! directories. So effects of one client on another are outside this model.

pub use crate::fs::attributes::{Attributes, Times, Xattrs};
pub use crate::fs::content::{BLOCK, Change, Content, Copied};
use crate::fs::op::{How, Make, Name, Object, Op};
use furrow_zone::ErrorKind;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// An object as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Kind of the object.
    pub make: Make,
    /// Names in a directory.
    pub entries: BTreeMap<Name, Object>,
    /// Number of the object's names. A directory has 1, or 0 once it is removed.
    pub names: u32,
    /// The parent, if the object is a directory.
    pub parent: Object,
    /// Number of opens that were not released.
    pub opens: u32,
    /// True if the object never had a name: then a link may give it one.
    pub nameless: bool,
}

impl Node {
    fn new(make: Make, parent: Object) -> Node {
        let entries = BTreeMap::new();
        Node { make, entries, names: 0, parent, opens: 0, nameless: false }
    }
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
    /// A namespace with only the shared directories, which are empty.
    pub fn new() -> Namespace {
        let node = |_| Node { names: 1, ..Node::new(Make::Directory, Object::ROOT) };
        Namespace { nodes: Object::SHARED.iter().map(|&o| (o, node(o))).collect() }
    }

    /// The node of `object`, if the object exists. An open object may have no name.
    pub fn node(&self, object: Object) -> Option<&Node> {
        self.nodes.get(&object)
    }

    /// All objects, shared directories first.
    pub fn objects(&self) -> impl Iterator<Item = (Object, &Node)> {
        self.nodes.iter().map(|(&object, node)| (object, node))
    }

    /// All names of all directories, as (directory, name, object).
    pub fn names(&self) -> impl Iterator<Item = (Object, Name, Object)> + '_ {
        self.nodes.iter().flat_map(|(&dir, node)| {
            node.entries.iter().map(move |(&name, &object)| (dir, name, object))
        })
    }

    fn directory(&self, object: Object) -> Result<&Node, ErrorKind> {
        let node = self.nodes.get(&object).ok_or(ErrorKind::NotFound)?;
        if node.make == Make::Directory { Ok(node) } else { Err(ErrorKind::NotDirectory) }
    }

    /// True if `object` is a directory.
    pub fn is_directory(&self, object: Object) -> bool {
        self.nodes.get(&object).is_some_and(|node| node.make == Make::Directory)
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
        node.nameless = false;
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

    /// Ends all opens. Objects without a name are removed.
    pub fn close_all(&mut self) {
        self.nodes.retain(|_, node| {
            node.opens = 0;
            node.names > 0
        });
    }

    fn can_hold(&self, dir: Object) -> Result<(), ErrorKind> {
        // A removed directory that is still open takes no new names.
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

    /// Applies an operation on names or opens; other operations change nothing here.
    ///
    /// # Errors
    /// The error that a file system must return; then nothing has changed.
    pub fn apply(&mut self, op: &Op) -> Result<(), ErrorKind> {
        match *op {
            Op::Create { make, object, dir, name, .. } => {
                self.vacant(dir, name)?;
                self.nodes.insert(object, Node::new(make, dir));
                self.set(dir, name, object);
                Ok(())
            }
            Op::Nameless { object, dir, .. } => {
                self.directory(dir)?;
                let node = Node { opens: 1, nameless: true, ..Node::new(Make::File, dir) };
                self.nodes.insert(object, node);
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

    /// The objects whose names an operation changes, if it makes no new object.
    fn renamed(&self, op: &Op) -> Vec<Object> {
        match *op {
            Op::Link { object, .. } => vec![object],
            Op::Unlink { dir, name } | Op::Rmdir { dir, name } => {
                self.entry(dir, name).into_iter().collect()
            }
            Op::Rename { from, to, exchange } => {
                let (one, two) = (self.entry(from.0, from.1), self.entry(to.0, to.1));
                // A rename between two names of one file changes nothing, unless it is an exchange.
                if one == two && !exchange {
                    return Vec::new();
                }
                one.into_iter().chain(two.ok().filter(|two| Ok(*two) != one)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn link(&mut self, object: Object, dir: Object, name: Name) -> Result<(), ErrorKind> {
        let node = self.nodes.get(&object).ok_or(ErrorKind::NotFound)?;
        if node.make == Make::Directory {
            return Err(ErrorKind::Denied);
        }
        if node.names == 0 && !node.nameless {
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

    /// The files that a rename would put in the place of another object.
    pub fn replacing(&self, op: &Op) -> Vec<Object> {
        let Op::Rename { from, to, exchange } = *op else { return Vec::new() };
        let (Ok(one), Ok(two)) = (self.entry(from.0, from.1), self.entry(to.0, to.1)) else {
            return Vec::new();
        };
        let moved = if exchange { vec![one, two] } else { vec![one] };
        let file = |object: &Object| self.nodes[object].make == Make::File;
        moved.into_iter().filter(|object| one != two && file(object)).collect()
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

/// Everything one client has made: names, contents, modes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// Names and objects of the client.
    pub names: Namespace,
    /// Contents of the client's files.
    pub contents: BTreeMap<Object, Content>,
    /// Permission bits, owners and extended attributes of the client's objects.
    pub attributes: BTreeMap<Object, Attributes>,
    /// Times as a recovery found them. They are not kept up to date, because they are not known
    /// exactly.
    pub times: BTreeMap<Object, Times>,
    /// Files with a change that may be done in part; which part is not known.
    pub unknown: BTreeSet<Object>,
}

/// Effects of an operation that its arguments do not show, as known when it is submitted.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    /// The content that a copy writes; `None` for other operations.
    pub copied: Option<Rc<Copied>>,
    /// The new attributes of an object, if the operation changes them.
    pub attributes: Option<Rc<Attributes>>,
    /// Objects whose names the operation changes.
    pub renamed: Vec<Object>,
}

impl Model {
    /// Applies an operation.
    ///
    /// # Errors
    /// The error that a file system must return; then nothing has changed.
    pub fn apply(&mut self, op: &Op) -> Result<(), ErrorKind> {
        match *op {
            Op::Write { object, .. }
            | Op::Truncate { object, .. }
            | Op::Fallocate { object, .. } => {
                self.regular(object)?;
                self.contents.entry(object).or_default().apply(op);
            }
            Op::Copy { from, to, length } => {
                self.regular(from.0)?;
                self.regular(to.0)?;
                let length = length.min(self.content(from.0).size.saturating_sub(from.1));
                if from.0 == to.0 && from.1 < to.1 + length && to.1 < from.1 + length {
                    return Err(ErrorKind::Invalid);
                }
                if let Some(copied) = self.copied(op) {
                    self.contents.entry(to.0).or_default().paste(&copied, |_| {});
                }
            }
            Op::Chmod { object, mode } => {
                self.names.node(object).ok_or(ErrorKind::NotFound)?;
                self.attributes.entry(object).or_default().chmod(mode);
            }
            Op::Chown { object, uid, gid } => {
                self.names.node(object).ok_or(ErrorKind::NotFound)?;
                let attributes = self.attributes.entry(object).or_default();
                attributes.uid = uid.unwrap_or(attributes.uid);
                attributes.gid = gid.unwrap_or(attributes.gid);
            }
            Op::SetXattr { object, slot, value } => {
                let make = self.names.node(object).ok_or(ErrorKind::NotFound)?.make;
                self.attributes.entry(object).or_default().set(slot, value, make)?;
            }
            Op::Utimens { object, .. } | Op::Fsync { object, .. } => {
                self.names.node(object).ok_or(ErrorKind::NotFound)?;
            }
            Op::Create { object, mode, dir, make, .. } => {
                self.names.apply(op)?;
                let made = Attributes::made(object, make, mode, self.attributes.get(&dir));
                self.attributes.insert(object, made);
            }
            Op::Nameless { object, mode, dir } => {
                self.names.apply(op)?;
                let made = Attributes::made(object, Make::File, mode, self.attributes.get(&dir));
                self.attributes.insert(object, made);
            }
            _ => self.names.apply(op)?,
        }
        Ok(())
    }

    fn regular(&self, object: Object) -> Result<(), ErrorKind> {
        match self.names.node(object).ok_or(ErrorKind::NotFound)?.make {
            Make::File => Ok(()),
            Make::Directory => Err(ErrorKind::IsDirectory),
            _ => Err(ErrorKind::Invalid),
        }
    }

    /// The content that a copy would write now; `None` for other operations.
    pub fn copied(&self, op: &Op) -> Option<Rc<Copied>> {
        let Op::Copy { from, to, length } = *op else { return None };
        Some(Rc::new(self.contents.get(&from.0)?.copy(from.1, to.1, length)))
    }

    /// The answer of an operation, the state after it, and its [`Effect`].
    pub fn foresee(&self, op: &Op) -> (Result<(), ErrorKind>, Model, Effect) {
        let mut after = self.clone();
        let expected = after.apply(op);
        let attributes = match *op {
            Op::Create { object, .. }
            | Op::Nameless { object, .. }
            | Op::Chmod { object, .. }
            | Op::Chown { object, .. }
            | Op::SetXattr { object, .. } => after.attributes.get(&object).cloned().map(Rc::new),
            _ => None,
        };
        let renamed = if expected.is_ok() { self.names.renamed(op) } else { Vec::new() };
        (expected, after, Effect { copied: self.copied(op), attributes, renamed })
    }

    /// The objects that `op` reads or changes, except directories in which it only changes names.
    pub fn touched(&self, op: &Op) -> Vec<Object> {
        let at = |(dir, name): (Object, Name)| self.names.entry(dir, name).ok();
        match *op {
            Op::Link { object, .. }
            | Op::Open(object)
            | Op::Release(object)
            | Op::Write { object, .. }
            | Op::Truncate { object, .. }
            | Op::Fallocate { object, .. }
            | Op::SetXattr { object, .. }
            | Op::Chmod { object, .. }
            | Op::Chown { object, .. }
            | Op::Utimens { object, .. }
            | Op::Read { object, .. }
            | Op::Fsync { object, .. } => vec![object],
            Op::Copy { from, to, .. } => vec![from.0, to.0],
            Op::Unlink { dir, name } | Op::Rmdir { dir, name } => {
                at((dir, name)).into_iter().collect()
            }
            Op::Rename { from, to, .. } => at(from).into_iter().chain(at(to)).collect(),
            Op::List(dir) => {
                let entries = self.names.directory(dir).map(|node| node.entries.values());
                entries.into_iter().flatten().copied().collect()
            }
            Op::Create { .. } | Op::Nameless { .. } | Op::Sync | Op::Sleep(_) => Vec::new(),
        }
    }

    /// True if `op` certainly adds no block to the file system: it removes something, or replaces
    /// existing blocks.
    pub fn replaces(&self, op: &Op) -> bool {
        match *op {
            Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Open(_)
            | Op::Release(_)
            | Op::Truncate { .. }
            | Op::Fallocate { how: How::Punch, .. }
            | Op::Chown { .. }
            | Op::Utimens { .. }
            | Op::Fsync { .. }
            | Op::Sync => true,
            Op::Rename { exchange, .. } => exchange || !self.names.replacing(op).is_empty(),
            Op::Write { object, offset, length, .. } if !self.unknown.contains(&object) => {
                let has = self.content(object).blocks();
                let last = offset + u64::from(length.max(1)) - 1;
                (offset / BLOCK..=last / BLOCK).all(|block| has.contains(&block))
            }
            _ => false,
        }
    }

    /// Ends all opens, as an unmount or a crash does. Objects without a name are removed.
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
        // An open file whose names were removed cannot get a new name.
        assert_eq!(model.apply(&link), Err(ErrorKind::NotFound));
        model.apply(&Op::Release(object(0))).unwrap();
        assert!(model.names.node(object(0)).is_none());
    }

    #[test]
    fn a_file_without_a_name_can_be_given_one_until_it_is_let_go() {
        let mut model = Model::default();
        let made = |index| Op::Nameless { object: object(index), dir: Object(1), mode: 0o600 };
        model.apply(&made(0)).unwrap();
        model.apply(&made(1)).unwrap();
        let link = |index| {
            let name = name(index as u16);
            Op::Link { object: object(index), dir: Object(1), name }
        };
        model.apply(&link(0)).unwrap();
        model.apply(&Op::Unlink { dir: Object(1), name: name(0) }).unwrap();
        // The file is still open, but had a name.
        assert_eq!(model.apply(&link(0)), Err(ErrorKind::NotFound));
        model.apply(&Op::Release(object(1))).unwrap();
        assert_eq!(model.apply(&link(1)), Err(ErrorKind::NotFound));
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
