//! Renames: replacing another name, exchanging two names, and leaving a whiteout behind.
//!
//! As in [`super::namespace`], one function prepares and then applies. A rename that leaves a
//! whiteout is two operations in the namespace log: the rename, followed directly by the creation
//! of the whiteout. So every record and every checkpoint has both operations or neither.

use crate::alloc::space::Claim;
use crate::blocked::NotApplied;
use crate::core::Core;
use crate::durability::namespace_log::NameOp;
use crate::tree::namespace::{Found, check_name, fail, show};
use crate::tree::open_files::LastName;
use crate::tree::rename_cycle::{Below, CycleCheck, Renamed};
use crate::types::{Ino, Kind, NewNode, RenameMode, Time};
use furrow_policy::FsDefect;
use furrow_zone::ErrorKind;

fn below_itself<T>() -> Result<T, NotApplied> {
    fail(ErrorKind::Invalid, "a directory cannot move below itself")
}

impl Core {
    /// Applies a rename. [`Renamed::NotYet`] if it is not yet known whether a directory would move
    /// below itself.
    pub(crate) fn rename(
        &mut self,
        (from, old): (Ino, &[u8]),
        (to, new): (Ino, &[u8]),
        mode: RenameMode,
        (time, last): (Time, LastName),
        check: &mut CycleCheck,
    ) -> Result<Renamed, NotApplied> {
        self.writable()?;
        check_name(old)?;
        check_name(new)?;
        self.throttle()?;
        let source = self.find_existing(from, old)?;
        if self.inode(to)?.head.links.get() == 0 {
            return fail(ErrorKind::NotFound, format!("directory {to} was removed"));
        }
        let target = self.find(to, new)?;
        let is_directory = source.kind == Kind::Directory;
        self.inode(source.ino)?;
        if is_directory && from != to {
            match self.is_below(check, to, source.ino)? {
                Below::Yes => return below_itself(),
                Below::No => {}
                Below::NotYet => return Ok(Renamed::NotYet),
            }
        }
        if is_directory && to == source.ino {
            return below_itself();
        }
        self.prepare_entry(from, source, old)?;
        match (mode, target) {
            (RenameMode::Exchange, None) => {
                fail(ErrorKind::NotFound, format!("no entry `{}`", show(new)))
            }
            (RenameMode::Exchange, Some(target)) => {
                self.exchange((from, old, source), (to, new, target), time, check)
            }
            (RenameMode::NoReplace, Some(_)) => {
                fail(ErrorKind::Exists, format!("`{}` exists", show(new)))
            }
            (_, Some(target)) if target.ino == source.ino => Ok(Renamed::Done(None)),
            (_, target) => {
                self.move_entry((from, old, source), (to, new, target), mode, (time, last))
            }
        }
    }

    fn exchange(
        &mut self,
        (from, old, source): (Ino, &[u8], Found),
        (to, new, target): (Ino, &[u8], Found),
        time: Time,
        check: &mut CycleCheck,
    ) -> Result<Renamed, NotApplied> {
        self.inode(target.ino)?;
        let (a, b) = (source.kind == Kind::Directory, target.kind == Kind::Directory);
        if b && from != to {
            match self.is_below(check, from, target.ino)? {
                Below::Yes => return below_itself(),
                Below::No => {}
                Below::NotYet => return Ok(Renamed::NotYet),
            }
        }
        self.prepare_entry(to, target, new)?;
        self.reserve(2, 6, Claim::Removal)?;
        // Apply the change.
        self.replace_entry(from, source.block, old, target.ino, target.kind);
        self.replace_entry(to, target.block, new, source.ino, source.kind);
        if from != to {
            self.tree.moves.count(a || b);
            let moved = i32::from(a) - i32::from(b);
            self.add_links(to, moved);
            self.add_links(from, -moved);
            if a {
                self.inode_mut(source.ino).head.parent = to.0.into();
            }
            if b {
                self.inode_mut(target.ino).head.parent = from.0.into();
            }
        }
        for ino in [source.ino, target.ino] {
            self.touch(ino, time, false);
        }
        self.note_rename((from, old), (to, new), RenameMode::Exchange, time);
        self.carry(source);
        self.carry(target);
        Ok(Renamed::Done(None))
    }

    /// Moves an entry, possibly replacing another one.
    fn move_entry(
        &mut self,
        (from, old, source): (Ino, &[u8], Found),
        (to, new, target): (Ino, &[u8], Option<Found>),
        mode: RenameMode,
        (time, last): (Time, LastName),
    ) -> Result<Renamed, NotApplied> {
        let is_directory = source.kind == Kind::Directory;
        let whiteout = match mode {
            RenameMode::Whiteout { uid, gid } => {
                let kind = Kind::CharDevice;
                let node = NewNode { kind, mode: 0, uid, gid, ..NewNode::file() };
                Some(self.plan_create(from, old, &node))
            }
            _ => None,
        };
        let mut room = None;
        let mut nodes = 0;
        match target {
            Some(target) => {
                self.check_removal(target, is_directory, last)?;
                nodes += self.prepare_entry(to, target, new)?;
            }
            None => {
                let found = self.find_space(to, new)?;
                nodes += found.nodes;
                room = Some(found);
            }
        }
        let claim = match target {
            _ if whiteout.is_some() => Claim::User(u64::from(nodes) + 2),
            Some(_) => Claim::Removal,
            None => Claim::Upkeep(u64::from(nodes) + 1),
        };
        self.reserve(2, nodes + 4 + u32::from(whiteout.is_some()), claim)?;
        // Apply the change.
        let mut gone = None;
        match (target, room) {
            (Some(target), _) => {
                self.replace_entry(to, target.block, new, source.ino, source.kind);
                if self.drop_link(to, target, time, last) {
                    gone = Some(target.ino);
                }
            }
            (None, Some(room)) => self.insert_entry(to, room, new, source.ino, source.kind),
            (None, None) => unreachable!("one of the two was prepared"),
        }
        let left = match &whiteout {
            Some(op) => {
                let ino = self.take_ino(0)?;
                self.insert_inode(ino, op, 0);
                self.tree.take_generation(self.tree.generation);
                self.tree.inodes += 1;
                self.replace_entry(from, source.block, old, ino, Kind::CharDevice);
                Some((op, ino))
            }
            None => {
                self.remove_entry(from, source.block, old);
                None
            }
        };
        if is_directory {
            self.tree.moves.count(from != to);
            self.add_links(from, -1);
            self.add_links(to, 1);
            self.inode_mut(source.ino).head.parent = to.0.into();
        }
        self.touch(source.ino, time, false);
        self.note_rename((from, old), (to, new), mode, time);
        if target.is_some() {
            self.carry(source);
        }
        if let Some((op, ino)) = left {
            self.log_create(op, ino);
        }
        Ok(Renamed::Done(gone))
    }

    /// Notes that `moved` has replaced another entry: a recovery that shows the rename must also
    /// show the content of `moved`.
    fn carry(&mut self, moved: Found) {
        let wanted =
            moved.kind == Kind::File && !self.env.options.variant.has(FsDefect::BareRename);
        if wanted && !self.health.replaying() {
            self.durability.carry(moved.ino);
        }
    }

    fn note_rename(
        &mut self,
        (from, old): (Ino, &[u8]),
        (to, new): (Ino, &[u8]),
        mode: RenameMode,
        time: Time,
    ) {
        self.touch(from, time, true);
        self.touch(to, time, true);
        self.durability.log_name(&NameOp::Rename {
            from: from.0,
            to: to.0,
            mode,
            time,
            old: old.to_vec(),
            new: new.to_vec(),
        });
    }
}
