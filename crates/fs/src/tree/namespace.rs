//! Name operations: create, link, remove, look up. Renames are in [`super::rename`], listing is in
//! [`super::readdir`].
//!
//! Each change is one function that prepares and then applies, and notes the applied operation in
//! the [`crate::durability::namespace_log::NamespaceLog`]. Replay after a crash calls the same
//! functions with the operations of the log, so its result cannot differ from the original.

use crate::alloc::space::Claim;
use crate::blocked::{Blocked, NotApplied};
use crate::core::Core;
use crate::durability::namespace_log::NameOp;
use crate::format::{BLOCK, INCOMPAT_XATTRS, LEVEL_INODE, LINKS_MAX, NO_NODE, TARGET_MAX, class};
use crate::tree::cache::Key;
use crate::tree::dirent;
use crate::tree::node::{as_inode_mut, attr, new_node, stamp};
use crate::tree::open_files::LastName;
use crate::types::{Attr, Ino, Kind, NewNode, Time};
use furrow_zone::{Error, ErrorKind};

/// Directories with at least this many levels have an index of their names in memory. Smaller
/// directories have at most two blocks.
const INDEXED_LEVELS: u8 = 2;

/// The set-group-id bit of a directory's mode: new inodes in the directory get the directory's
/// group, and new directories also get this bit (inode(7)).
const SET_GID: u16 = 0o2000;

/// A directory entry that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub block: u32,
    pub ino: Ino,
    pub kind: Kind,
}

/// The place for a new entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeSlot {
    block: u32,
    levels: u8,
    pub nodes: u32,
}

pub(super) fn fail<T>(kind: ErrorKind, message: impl Into<String>) -> Result<T, NotApplied> {
    Err(NotApplied::Failed(Error::new(kind, message)))
}

pub(super) fn show(name: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(name)
}

fn exists<T>(name: &[u8]) -> Result<T, NotApplied> {
    fail(ErrorKind::Exists, format!("`{}` exists", show(name)))
}

pub(super) fn check_name(name: &[u8]) -> Result<(), NotApplied> {
    match dirent::validate_name(name) {
        Ok(()) => Ok(()),
        Err(error @ dirent::NameError::TooLong(_)) => {
            fail(ErrorKind::NameTooLong, error.to_string())
        }
        Err(error) => fail(ErrorKind::Invalid, error.to_string()),
    }
}

impl Core {
    pub(crate) fn directory(&mut self, ino: Ino) -> Result<u8, NotApplied> {
        let head = &self.inode(ino)?.head;
        if Kind::from_code(head.kind) != Some(Kind::Directory) {
            return fail(ErrorKind::NotDirectory, format!("inode {ino} is not a directory"));
        }
        Ok(head.levels)
    }

    pub(super) fn find(
        &mut self,
        directory: Ino,
        name: &[u8],
    ) -> Result<Option<Found>, NotApplied> {
        let levels = self.directory(directory)?;
        let hash = dirent::hash(self.env.layout.hash_seed, name);
        if levels < INDEXED_LEVELS {
            for block in dirent::candidates(levels, hash) {
                let Some(page) = self.data(directory, block)? else { continue };
                if let Some(entry) = dirent::find(page.bytes(), hash, name) {
                    let (ino, kind) = (Ino(entry.ino), entry.kind);
                    return Ok(Some(Found { block, ino, kind }));
                }
            }
            return Ok(None);
        }
        self.tree.directories.tidy();
        if let Some(found) = self.find_known(directory, hash, name) {
            return Ok(Some(found));
        }
        // Most names are on the last level, because it has three times the space of all levels
        // before it.
        let mut blocks = dirent::candidates(levels, hash).rev();
        while let Some(block) = self.tree.directories.unknown(directory.0, &mut blocks) {
            self.learn(directory, block)?;
            if let Some(found) = self.find_known(directory, hash, name) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The entry of `name`, if it is in a block whose content is known.
    fn find_known(&self, directory: Ino, hash: u32, name: &[u8]) -> Option<Found> {
        let known = self.tree.directories.find(directory.0, hash, name)?;
        Some(Found { block: known.block, ino: Ino(known.ino), kind: known.kind })
    }

    /// Prepares a change of the entry of `name`: loads its block and the path to the block. Returns
    /// the number of nodes that the change adds.
    pub(super) fn prepare_entry(
        &mut self,
        directory: Ino,
        found: Found,
        name: &[u8],
    ) -> Result<u32, NotApplied> {
        let hash = dirent::hash(self.env.layout.hash_seed, name);
        let page = self.data(directory, found.block)?;
        let entry = page.and_then(|page| dirent::find(page.bytes(), hash, name));
        if entry.is_none_or(|entry| entry.ino != found.ino.0) {
            let (name, block) = (show(name), found.block);
            let message = format!("directory {directory} block {block}: `{name}` is not there");
            return Err(self.corrupt(message));
        }
        self.prepare_path(directory, found.block)
    }

    /// Adds the content of `block` of `directory` to the index.
    fn learn(&mut self, directory: Ino, block: u32) -> Result<(), NotApplied> {
        let page = self.data(directory, block)?.cloned();
        self.tree.directories.learn(directory.0, block, page.as_ref().map(|page| page.bytes()));
        Ok(())
    }

    pub(super) fn find_existing(
        &mut self,
        directory: Ino,
        name: &[u8],
    ) -> Result<Found, NotApplied> {
        match self.find(directory, name)? {
            Some(found) => Ok(found),
            None => fail(ErrorKind::NotFound, format!("no entry `{}`", show(name))),
        }
    }

    /// Prepares a new entry for `name`, which must not exist yet: finds its place, and the number
    /// of nodes that the entry adds.
    pub(super) fn find_space(
        &mut self,
        directory: Ino,
        name: &[u8],
    ) -> Result<FreeSlot, NotApplied> {
        let levels = self.directory(directory)?;
        let hash = dirent::hash(self.env.layout.hash_seed, name);
        let free = match levels {
            0..INDEXED_LEVELS => self.room_in_small(directory, levels, hash, name)?,
            _ => self.room_in_large(directory, levels, hash, name)?,
        };
        if let Some(block) = free {
            let nodes = self.prepare_path(directory, block)?;
            return Ok(FreeSlot { block, levels, nodes });
        }
        if levels >= dirent::MAX_LEVELS {
            return fail(ErrorKind::NoSpace, format!("directory {directory} is full"));
        }
        let block = dirent::bucket_block(levels, hash);
        let nodes = self.prepare_path(directory, block)?;
        Ok(FreeSlot { block, levels: levels + 1, nodes })
    }

    fn room_in_small(
        &mut self,
        directory: Ino,
        levels: u8,
        hash: u32,
        name: &[u8],
    ) -> Result<Option<u32>, NotApplied> {
        let mut free = None;
        for block in dirent::candidates(levels, hash) {
            let probed = match self.data(directory, block)? {
                Some(page) => dirent::probe(page.bytes(), hash, name),
                None => dirent::Probe::Fits,
            };
            match probed {
                dirent::Probe::Found(_) => return exists(name),
                dirent::Probe::Fits => free = free.or(Some(block)),
                dirent::Probe::Full => {}
            }
        }
        Ok(free)
    }

    fn room_in_large(
        &mut self,
        directory: Ino,
        levels: u8,
        hash: u32,
        name: &[u8],
    ) -> Result<Option<u32>, NotApplied> {
        self.tree.directories.tidy();
        let mut missing = smallvec::SmallVec::new();
        let mut blocks = dirent::candidates(levels, hash).rev();
        while let Some(block) = self.tree.directories.unknown(directory.0, &mut blocks) {
            match self.learn(directory, block) {
                Ok(()) => {}
                // The search needs every candidate block, so request all of them at once.
                Err(NotApplied::Blocked(Blocked::Load(fetches))) => missing.extend(fetches),
                Err(stop) => return Err(stop),
            }
        }
        if !missing.is_empty() {
            return Err(Blocked::Load(missing).into());
        }
        if self.find_known(directory, hash, name).is_some() {
            return exists(name);
        }
        let blocks = dirent::candidates(levels, hash);
        let Some(block) = self.tree.directories.block_with_space(directory.0, blocks, name.len())
        else {
            return Ok(None);
        };
        // Load the block, because it is about to be changed.
        self.data(directory, block)?;
        Ok(Some(block))
    }

    pub(super) fn insert_entry(
        &mut self,
        directory: Ino,
        room: FreeSlot,
        name: &[u8],
        ino: Ino,
        kind: Kind,
    ) {
        let hash = dirent::hash(self.env.layout.hash_seed, name);
        let inode = self.inode_mut(directory);
        if inode.head.levels < room.levels {
            inode.head.levels = room.levels;
            let size = u64::from(dirent::blocks(room.levels)) * BLOCK as u64;
            inode.head.size = size.into();
        }
        inode.head.entries = (inode.head.entries.get() + 1).into();
        let fresh = !self.cache.contains(&Key::Data(directory.0, room.block));
        let block = self.data_mut(directory, room.block);
        if fresh {
            dirent::init(block);
        }
        let entry = dirent::Entry { ino: ino.0, hash, kind, name, offset: 0 };
        let placed = dirent::insert(block, &entry);
        let offset = placed.expect("invariant: the block was found to have room");
        let page = self.cache.peek(&Key::Data(directory.0, room.block)).map(|entry| entry.page());
        let page = page.expect("invariant: changed just now").bytes();
        let entry = dirent::Entry { offset, ..entry };
        self.tree.directories.added(directory.0, room.block, &entry, page);
    }

    pub(super) fn remove_entry(&mut self, directory: Ino, block: u32, name: &[u8]) {
        let hash = dirent::hash(self.env.layout.hash_seed, name);
        let page = self.data_mut(directory, block);
        let offset = dirent::find(page, hash, name).map(|entry| entry.offset);
        let offset = offset.expect("invariant: the entry was found in this block");
        dirent::remove(page, hash, name);
        let page = self.cache.peek(&Key::Data(directory.0, block)).map(|entry| entry.page());
        let page = page.expect("invariant: changed just now").bytes();
        self.tree.directories.removed(directory.0, (block, offset), hash, page);
        let entries = &mut self.inode_mut(directory).head.entries;
        *entries = entries.get().saturating_sub(1).into();
    }

    pub(super) fn replace_entry(
        &mut self,
        directory: Ino,
        block: u32,
        name: &[u8],
        ino: Ino,
        kind: Kind,
    ) {
        let hash = dirent::hash(self.env.layout.hash_seed, name);
        let bytes = self.data_mut(directory, block);
        let replaced = dirent::replace(bytes, hash, name, ino.0, kind);
        assert!(replaced.is_some(), "invariant: the entry was found in this block");
        let page = self.cache.peek(&Key::Data(directory.0, block)).map(|entry| entry.page());
        let page = page.expect("invariant: changed just now").bytes();
        let entry = dirent::find(page, hash, name).expect("invariant: replaced just now");
        self.tree.directories.replaced(directory.0, block, &entry);
    }

    pub(super) fn touch(&mut self, ino: Ino, time: Time, content: bool) {
        let head = &mut self.inode_mut(ino).head;
        head.ctime = stamp(time);
        if content {
            head.mtime = stamp(time);
        }
    }

    pub(super) fn add_links(&mut self, ino: Ino, change: i32) -> u32 {
        let links = &mut self.inode_mut(ino).head.links;
        let count = links.get().saturating_add_signed(change);
        *links = count.into();
        count
    }

    /// See [`crate::Fs::lookup`].
    pub(crate) fn lookup(&mut self, parent: Ino, name: &[u8]) -> Result<Attr, NotApplied> {
        if name.len() > crate::format::NAME_MAX {
            return check_name(name).map(|()| unreachable!("too long"));
        }
        let found = self.find_existing(parent, name)?;
        self.attr(found.ino)
    }

    /// The operation that would create `node` as `name`, to be passed to [`Core::create`].
    pub(crate) fn plan_create(&mut self, parent: Ino, name: &[u8], node: &NewNode) -> NameOp {
        NameOp::Create {
            parent: parent.0,
            ino: 0,
            generation: self.tree.generation,
            kind: node.kind,
            mode: node.mode & 0o7777,
            uid: node.uid,
            gid: node.gid,
            rdev: node.rdev,
            time: self.now(),
            name: name.to_vec(),
            target: node.target.clone(),
            xattrs: Vec::new(),
        }
    }

    /// Creates the inode of `op` with the permissions, the attributes and the group that it
    /// inherits from `directory`.
    pub(crate) fn create_inheriting(
        &mut self,
        directory: Ino,
        op: &NameOp,
        umask: u16,
    ) -> Result<Attr, NotApplied> {
        let mut op = op.clone();
        if let NameOp::Create { kind, mode, gid, xattrs, .. } = &mut op {
            self.directory(directory)?;
            (*mode, *xattrs) = self.inherit(directory, *kind, *mode, umask)?;
            let head = &self.inode(directory)?.head;
            if head.mode.get() & SET_GID != 0 {
                *gid = head.gid.get();
                if *kind == Kind::Directory {
                    *mode |= SET_GID;
                }
            }
        }
        self.create(&op)
    }

    /// Creates the inode of `op`. If the number in `op` is 0, the inode gets a free number.
    pub(crate) fn create(&mut self, op: &NameOp) -> Result<Attr, NotApplied> {
        let NameOp::Create { parent, ino, generation, kind, time, name, target, xattrs, .. } = op
        else {
            return fail(ErrorKind::Invalid, "not a create");
        };
        let (parent, kind, time) = (Ino(*parent), *kind, *time);
        self.writable()?;
        if parent.0 == NO_NODE && name.is_empty() && kind == Kind::File {
            return self.create_unnamed(op);
        }
        check_name(name)?;
        self.throttle()?;
        if kind == Kind::Symlink && (target.is_empty() || target.len() > TARGET_MAX) {
            let kind = if target.is_empty() { ErrorKind::NotFound } else { ErrorKind::NameTooLong };
            return fail(kind, format!("link target of {} bytes", target.len()));
        }
        if self.inode(parent)?.head.links.get() == 0 {
            return fail(ErrorKind::NotFound, format!("directory {parent} was removed"));
        }
        let room = self.find_space(parent, name)?;
        let nodes = room.nodes + 3 + crate::tree::xattr::nodes_for(xattrs.len()) as u32;
        let added = u64::from(nodes) + u64::from(!target.is_empty());
        self.reserve(2, nodes, Claim::User(added))?;
        // Apply the change.
        let ino = self.take_ino(*ino)?;
        self.insert_inode(ino, op, if kind == Kind::Directory { parent.0 } else { 0 });
        self.store_first_xattrs(ino, xattrs)?;
        self.tree.take_generation(*generation);
        self.insert_entry(parent, room, name, ino, kind);
        self.touch(parent, time, true);
        if kind == Kind::Directory {
            self.add_links(parent, 1);
        }
        if !target.is_empty() {
            self.data_mut(ino, 0)[..target.len()].copy_from_slice(target);
            self.inode_mut(ino).head.size = (target.len() as u64).into();
        }
        self.tree.inodes += 1;
        self.log_create(op, ino);
        Ok(attr(&self.inode_mut(ino).head))
    }

    /// Takes a free inode number if `ino` is 0, otherwise `ino` itself.
    pub(super) fn take_ino(&mut self, ino: u32) -> Result<Ino, NotApplied> {
        match ino {
            0 => Ok(Ino(self.tables.take_id().expect("invariant: ids were reserved"))),
            ino if self.tables.claim_id(ino) => Ok(Ino(ino)),
            ino => Err(self.corrupt(format!("sync log creates inode {ino}, which is in use"))),
        }
    }

    pub(super) fn log_create(&mut self, op: &NameOp, made: Ino) {
        let mut op = op.clone();
        if let NameOp::Create { ino, .. } = &mut op {
            *ino = made.0;
        }
        self.durability.log_name(&op);
    }

    /// Creates a file without a name, which is an orphan until a link gives it a name. The file
    /// counts as opened once, except in replay.
    fn create_unnamed(&mut self, op: &NameOp) -> Result<Attr, NotApplied> {
        let NameOp::Create { ino, generation, xattrs, .. } = op else {
            return fail(ErrorKind::Invalid, "not a create");
        };
        if self.env.layout.incompat & INCOMPAT_XATTRS == 0 {
            let message = "this file system cannot hold files without names: make a new one with \
                           furrow mkfs";
            return fail(ErrorKind::Unsupported, message);
        }
        self.throttle()?;
        self.check_open()?;
        let nodes = 1 + crate::tree::xattr::nodes_for(xattrs.len()) as u32;
        self.reserve(0, nodes + 1, Claim::User(u64::from(nodes)))?;
        // Apply the change.
        let ino = self.take_ino(*ino)?;
        self.insert_inode(ino, op, 0);
        self.inode_mut(ino).head.links = 0.into();
        self.store_first_xattrs(ino, xattrs)?;
        self.tree.take_generation(*generation);
        self.tree.inodes += 1;
        self.tree.files.add_unnamed(ino);
        if !self.health.replaying() {
            self.tree.files.open_once_more(ino);
        }
        self.log_create(op, ino);
        Ok(attr(&self.inode_mut(ino).head))
    }

    /// Puts a new inode into the cache.
    pub(crate) fn insert_inode(&mut self, ino: Ino, op: &NameOp, parent: u32) {
        let NameOp::Create { generation, kind, mode, uid, gid, rdev, time, name, .. } = op else {
            return;
        };
        let class_ = match kind {
            Kind::Directory => class::DIRECTORY,
            Kind::File => self.env.options.extensions.class(name),
            _ => class::FILE,
        };
        let mut page = new_node(&self.env.pages, (ino.0, ino.0), 0, LEVEL_INODE, class_);
        let head = &mut as_inode_mut(page.make_mut()).head;
        head.generation = (*generation).into();
        head.kind = kind.code();
        head.mode = (*mode).into();
        head.links = if *kind == Kind::Directory { 2 } else { 1 }.into();
        head.uid = (*uid).into();
        head.gid = (*gid).into();
        head.rdev = (*rdev).into();
        head.parent = parent.into();
        let time = stamp(*time);
        (head.atime, head.mtime, head.ctime, head.btime) = (time, time, time, time);
        self.insert_node(ino.0, ino.0, page);
    }

    /// See [`crate::Fs::link`].
    pub(crate) fn link(
        &mut self,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        time: Time,
    ) -> Result<Attr, NotApplied> {
        self.writable()?;
        check_name(name)?;
        self.throttle()?;
        let head = &self.inode(ino)?.head;
        let (kind, links) = (Kind::from_code(head.kind), head.links.get());
        if kind == Some(Kind::Directory) {
            return fail(ErrorKind::IsDirectory, format!("inode {ino} is a directory"));
        }
        // A removed inode cannot get a name again. Replay skips the check, because the log links
        // only those orphans that never had a name.
        if links == 0 && !self.tree.files().is_unnamed(ino) && !self.health.replaying() {
            return fail(ErrorKind::NotFound, format!("inode {ino} was removed"));
        }
        if links >= LINKS_MAX {
            return fail(ErrorKind::TooManyLinks, format!("inode {ino} has 65,535 links"));
        }
        if self.inode(parent)?.head.links.get() == 0 {
            return fail(ErrorKind::NotFound, format!("directory {parent} was removed"));
        }
        let room = self.find_space(parent, name)?;
        self.reserve(1, room.nodes + 2, Claim::User(u64::from(room.nodes) + 1))?;
        // Apply the change.
        self.insert_entry(parent, room, name, ino, kind.unwrap_or(Kind::File));
        self.touch(parent, time, true);
        if links == 0 {
            self.tree.files.remove_orphan(ino);
        }
        self.add_links(ino, 1);
        self.touch(ino, time, false);
        self.durability.log_name(&NameOp::Link {
            ino: ino.0,
            parent: parent.0,
            time,
            name: name.to_vec(),
        });
        Ok(attr(&self.inode_mut(ino).head))
    }

    /// Prepares the removal of a name of `victim`: loads the inode, and checks that the inode is a
    /// directory exactly if `directory` says so, and that a directory is empty. If the removal
    /// takes the last name and `last` opens the inode, also checks that one more file may be open.
    pub(super) fn check_removal(
        &mut self,
        victim: Found,
        directory: bool,
        last: LastName,
    ) -> Result<(), NotApplied> {
        let is_directory = victim.kind == Kind::Directory;
        if directory && !is_directory {
            return fail(
                ErrorKind::NotDirectory,
                format!("inode {} is not a directory", victim.ino),
            );
        }
        if !directory && is_directory {
            return fail(ErrorKind::IsDirectory, format!("inode {} is a directory", victim.ino));
        }
        let head = &self.inode(victim.ino)?.head;
        let (entries, links) = (head.entries.get(), head.links.get());
        if is_directory && entries > 0 {
            let message = format!("directory {} has {entries} entries", victim.ino);
            return fail(ErrorKind::NotEmpty, message);
        }
        let opens = last == LastName::Opens && (is_directory || links <= 1);
        if opens && !self.tree.files.is_open(victim.ino) {
            self.check_open()?;
        }
        Ok(())
    }

    /// Removes one link of `victim`, and applies `last` if it was the last link. Returns true in
    /// that case.
    pub(super) fn drop_link(
        &mut self,
        parent: Ino,
        victim: Found,
        time: Time,
        last: LastName,
    ) -> bool {
        if victim.kind == Kind::Directory {
            self.inode_mut(victim.ino).head.links = 0.into();
            self.add_links(parent, -1);
        } else {
            self.add_links(victim.ino, -1);
        }
        self.touch(victim.ino, time, false);
        let gone = self.inode_mut(victim.ino).head.links.get() == 0;
        if gone {
            self.tree.files.lost_last_name(victim.ino, self.health.replaying());
            if last == LastName::Opens {
                self.tree.files.open_once_more(victim.ino);
            }
        }
        gone
    }

    /// Removes `name`; returns the inode if it lost its last name. `directory` says whether the
    /// caller expects a directory; `None` (replay) accepts every kind.
    pub(crate) fn remove(
        &mut self,
        parent: Ino,
        name: &[u8],
        directory: Option<bool>,
        (time, last): (Time, LastName),
    ) -> Result<Option<Ino>, NotApplied> {
        self.writable()?;
        check_name(name)?;
        let found = self.find_existing(parent, name)?;
        self.check_removal(found, directory.unwrap_or(found.kind == Kind::Directory), last)?;
        let nodes = self.prepare_entry(parent, found, name)?;
        self.reserve(1, nodes + 2, Claim::Removal)?;
        // Apply the change.
        self.remove_entry(parent, found.block, name);
        self.touch(parent, time, true);
        let gone = self.drop_link(parent, found, time, last);
        self.durability.log_name(&NameOp::Remove { parent: parent.0, time, name: name.to_vec() });
        Ok(gone.then_some(found.ino))
    }

    /// For repair, adds `name` for an existing inode, but leaves the inode's link count as it is.
    pub(crate) fn relink(
        &mut self,
        directory: Ino,
        name: &[u8],
        ino: Ino,
        kind: Kind,
    ) -> Result<(), NotApplied> {
        self.writable()?;
        check_name(name)?;
        self.throttle()?;
        let room = self.find_space(directory, name)?;
        self.reserve(1, room.nodes + 1, Claim::Upkeep(u64::from(room.nodes) + 1))?;
        self.insert_entry(directory, room, name, ino, kind);
        Ok(())
    }

    /// For repair, takes `name` out of a directory, but leaves the inode's link count as it is.
    /// Returns the inode.
    pub(crate) fn unlist(
        &mut self,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<(Ino, Kind)>, NotApplied> {
        self.writable()?;
        let Some(found) = self.find(parent, name)? else { return Ok(None) };
        let nodes = self.prepare_entry(parent, found, name)?;
        self.reserve(1, nodes + 2, Claim::Removal)?;
        self.remove_entry(parent, found.block, name);
        Ok(Some((found.ino, found.kind)))
    }

    /// Applies one step of freeing `ino`. True if no step is left: the inode is freed, is open or
    /// has a name.
    pub(crate) fn reap(&mut self, ino: Ino) -> Result<bool, NotApplied> {
        if self.tree.files().is_open(ino) || !self.tree.files().is_orphan(ino) {
            return Ok(true);
        }
        let size = self.inode(ino)?.head.size.get();
        if size > 0 {
            // Reaping frees blocks, so it is not throttled or refused for lack of space.
            self.writable()?;
            if !self.shrink(ino, 0)? {
                return Ok(false);
            }
        }
        let (nids, _) = self.xattr_nids(ino)?;
        self.cache.remove_from(ino.0, 0..);
        nids.iter().for_each(|nid| self.drop_node(*nid));
        self.drop_node(ino.0);
        self.tree.files.remove_orphan(ino);
        self.tree.accessed.remove(&ino);
        self.tree.directories.forget(ino.0);
        self.tree.inodes = self.less("inodes", self.tree.inodes, 1);
        Ok(true)
    }
}
