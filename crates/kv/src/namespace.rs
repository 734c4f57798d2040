//! The namespace: directories, names of files, and the file properties that follow from names.
//!
//! Invariants
//! - Names change in memory at once, and on the drive in the same order. A crash leaves them in
//!   some state since the last group commit that a caller waited for.
//! - The parent of every path is a directory.

pub(crate) mod paths;

use crate::entries::Entry;
use crate::extent::{FileId, Lifetime};
use crate::file::File;
use crate::file_kind::{Claim, FileKind, Role};
use crate::format::PATH_MAX;
use crate::ring_load::{file_bytes, name_bytes};
use crate::store::Store;
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use paths::{Node, below, clean, rename};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of paths for which a family is remembered before the file exists.
const AWAITED_MAX: usize = 1024;

/// Attributes of the file or directory at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The file or directory that the path names.
    pub node: Node,
    /// Size in bytes; 0 for a directory.
    pub size: u64,
    /// Time of the last write, seconds since 1970; 0 for a directory.
    pub modified: i64,
}

impl Store {
    fn changed(&self, entry: Entry) {
        self.0.names.borrow_mut().changes.push(entry);
        self.plan_commit();
    }

    /// Returns the attributes of the file or directory that a path names.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the path leads out of the store or is too long. All functions that
    /// take a path return `Invalid` then.
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

    /// Lists the names in a directory, ascending.
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
    /// `Exists`; `NotFound` or `NotDirectory` if the parent is missing or is a file; `NoSpace` if
    /// the record ring has no space for more names.
    pub fn make_directory(&self, path: &str) -> Result<()> {
        self.check_alive()?;
        let path = clean(path)?;
        let mut names = self.0.names.borrow_mut();
        names.check_parent(&path)?;
        if names.nodes.contains_key(&path) {
            return Err(Error::new(ErrorKind::Exists, format!("{path}: is there already")));
        }
        self.admit(Claim::Others, name_bytes(&path))?;
        self.0.load.add(name_bytes(&path));
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
        self.0.load.remove(name_bytes(&path));
        self.changed(Entry::Remove { path });
        Ok(())
    }

    /// Makes an empty file and opens it. A file that the path already named is removed.
    ///
    /// # Errors
    /// `IsDirectory`; `Exists` for the root; `NotFound` or `NotDirectory` if the parent is missing
    /// or is a file; `NoSpace` if the record ring has no space for more names.
    pub fn create(&self, path: &str, lifetime: Lifetime) -> Result<FileId> {
        self.check_alive()?;
        let path = clean(path)?;
        let mut names = self.0.names.borrow_mut();
        names.check_parent(&path)?;
        let before = names.nodes.get(&path).copied();
        if before == Some(Node::Directory) {
            return Err(Error::new(ErrorKind::IsDirectory, format!("{path}: a directory")));
        }
        let known = if before.is_some() { 0 } else { name_bytes(&path) };
        self.admit_name(&path, known + file_bytes(&[]))?;
        self.0.load.add(known);
        let id = FileId(names.next_file);
        names.next_file += 1;
        names.nodes.insert(path.clone(), Node::File(id));
        let awaited = names.awaited.remove(&path);
        drop(names);
        let mut file = File::new(lifetime, self.0.rt.wall().0);
        (file.names, file.opens) = (1, 1);
        file.role = Role::of(&path);
        if let Some(name) = awaited {
            file.role.family.name = name;
        }
        self.0.zones.set_log(id, file.role.kind == FileKind::Wal);
        self.weigh(&mut file);
        self.0.files.borrow_mut().insert(id, file);
        self.changed(Entry::Name { path, file: Some(id) });
        if let Some(Node::File(before)) = before {
            self.lose_name(before);
        }
        Ok(id)
    }

    /// States how long a file is expected to live. Blocks already placed stay where they are.
    ///
    /// # Errors
    /// `NotFound` if the file is neither open nor named.
    pub fn set_lifetime(&self, id: FileId, lifetime: Lifetime) -> Result<()> {
        self.with(id, |file| file.lifetime = lifetime)
    }

    /// States what kind of writer a file has, which decides the reserves it may use.
    ///
    /// # Errors
    /// `NotFound` if the file is neither open nor named.
    pub fn set_claim(&self, id: FileId, claim: Claim) -> Result<()> {
        self.with(id, |file| file.claim = claim)
    }

    /// Opens a file. Its content stays until it is closed, even without a name.
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

    /// Removes a file's name; the file itself is dropped once no handle or view holds it.
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
        self.0.load.remove(name_bytes(&path));
        self.changed(Entry::Remove { path });
        self.lose_name(id);
        Ok(())
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `Exists`; `NotDirectory` if the parent of the new path is a file;
    /// `NoSpace` if the record ring has no space for more names.
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
        let mut files = self.0.files.borrow_mut();
        let file = files.get_mut(&id).expect("invariant: what has a name is there");
        let first = if file.names > 0 { 0 } else { file_bytes(&file.extents) };
        self.admit_name(&to, name_bytes(&to) + first)?;
        self.0.load.add(name_bytes(&to));
        names.nodes.insert(to.clone(), Node::File(id));
        file.names += 1;
        self.weigh(file);
        drop((names, files));
        self.changed(Entry::Name { path: to, file: Some(id) });
        Ok(())
    }

    /// Renames a file or a directory. A file that the new path already named is removed.
    ///
    /// # Errors
    /// `NotFound`; `NotDirectory` if the parent of the new path is a file; `Exists` if the new path
    /// names a directory, or a directory would replace a file; `Invalid` if a directory would move
    /// into itself, or a path would become too long; `NoSpace` if the record ring has no space for
    /// longer names.
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
        let (paths, longest) = names.below(&from);
        if longest + to.len() > PATH_MAX + from.len() {
            let message = format!("{to}: a path below it would have over {PATH_MAX} bytes");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let longer = paths as u64 * to.len().saturating_sub(from.len()) as u64;
        if longer > 0 {
            self.admit_name(&to, longer)?;
        }
        self.0.load.add(longer);
        self.0.load.remove(paths as u64 * from.len().saturating_sub(to.len()) as u64);
        if over.is_some() {
            self.0.load.remove(name_bytes(&to));
        }
        rename(&mut names.nodes, &from, &to);
        self.rename_roles(&names.nodes, &to);
        drop(names);
        self.changed(Entry::Rename { from, to });
        if let Some(over) = replaced {
            self.lose_name(over);
        }
        Ok(())
    }

    /// Derives the roles of files from their new names; their families stay.
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

    /// Returns the zones that hold content of a file, ascending.
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

    /// States the column family of a blob file. RocksDB does so before it makes the file: then the
    /// family is kept for the next file of that name.
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
                let awaited = &mut self.0.names.borrow_mut().awaited;
                if awaited.len() >= AWAITED_MAX {
                    awaited.pop_first();
                }
                awaited.insert(path, name.to_owned());
                Ok(())
            }
        }
    }

    fn lose_name(&self, id: FileId) {
        let mut files = self.0.files.borrow_mut();
        let file = files.get_mut(&id).expect("invariant: what has a name is there");
        file.names = self.0.zones.less("names of a file", file.names, 1);
        if file.names == 0 {
            self.0.zones.set_log(id, false);
        }
        self.weigh(file);
        drop(files);
        self.drop_unused(id);
    }

    /// Returns a name of a file, for messages.
    pub(crate) fn name_of(&self, id: FileId) -> String {
        let names = self.0.names.borrow();
        let named = names.nodes.iter().find(|(_, node)| **node == Node::File(id));
        named.map_or_else(|| format!("file {} without a name", id.0), |(path, _)| path.clone())
    }
}
