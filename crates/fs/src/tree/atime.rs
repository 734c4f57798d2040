//! Times of the last access.
//!
//! Reading changes them as the mount options say; nothing waits for that and nothing fails by it.
//! A new time goes into the inode, which is then dirty as after any other change; with `lazytime`
//! it is kept in [`Tree`](crate::tree::Tree) until the inode is written anyway, is synced, or all
//! is.

use crate::alloc::space::Claim;
use crate::blocked::NotApplied;
use crate::core::Core;
use crate::tree::node::{attr, stamp, time};
use crate::types::{AccessTime, Attr, Ino, Kind, Time};

/// Seconds after which a relative time of access is renewed in any case.
const DAY: i64 = 24 * 60 * 60;
/// Times kept in memory; above, all are taken over.
const LAZY_MAX: usize = 4096;

impl Core {
    /// The attributes of `ino`, whose inode is in the cache, with the newest time of access.
    pub(crate) fn attr(&mut self, ino: Ino) -> Result<Attr, NotApplied> {
        let mut attr = attr(&self.inode(ino)?.head);
        if let Some(time) = self.tree.accessed.get(&ino) {
            attr.atime = *time;
        }
        Ok(attr)
    }

    /// Notes that `ino`, which is in the cache, was read.
    pub(crate) fn note_access(&mut self, ino: Ino) {
        let mode = self.env.options.access_time;
        if mode == AccessTime::Never || self.writable().is_err() || self.health.replaying() {
            return;
        }
        let known = self.tree.accessed.get(&ino).copied();
        let Ok(inode) = self.inode(ino) else { return };
        let head = &inode.head;
        let atime = known.unwrap_or_else(|| time(&head.atime));
        let changed = time(&head.mtime).max(time(&head.ctime));
        let directory = head.kind == Kind::Directory.code();
        let unlinked = head.links.get() == 0;
        if unlinked || directory && !self.env.options.directory_access_time {
            return;
        }
        // Near enough for a day, and spares asking for the time.
        let now = i64::from(self.alloc.seconds());
        if mode == AccessTime::Relative && atime > changed && atime.seconds + DAY > now {
            return;
        }
        let now = self.now();
        if now == atime {
            return;
        }
        if self.env.options.lazy_time {
            self.tree.accessed.insert(ino, now);
            if self.tree.accessed.len() <= LAZY_MAX {
                return;
            }
        }
        // A drive without room, or a cache full of changes, goes without.
        if self.throttle().is_err() || self.reserve(0, 1, Claim::SAME).is_err() {
            return;
        }
        if self.env.options.lazy_time {
            // Those whose inodes are not in the cache any more are lost: a time of access is not
            // worth a read.
            for ino in self.tree.accessed.keys().copied().collect::<Vec<_>>() {
                self.take_access(ino);
            }
            self.tree.accessed.clear();
        } else {
            self.set_access(ino, now);
        }
    }

    fn set_access(&mut self, ino: Ino, time: Time) {
        self.inode_mut(ino).head.atime = stamp(time);
    }

    /// The time of access of `ino` goes into its inode if that is in the cache: it is about to be
    /// written.
    pub(crate) fn take_access(&mut self, ino: Ino) {
        if self.inode(ino).is_ok()
            && let Some(time) = self.tree.accessed.remove(&ino)
        {
            self.set_access(ino, time);
        }
    }

    /// One inode's time of access goes into it, for a checkpoint of everything. False if there is
    /// no more.
    pub(crate) fn take_one_access(&mut self) -> Result<bool, NotApplied> {
        let Some((ino, time)) = self.tree.accessed.first_key_value().map(|(i, t)| (*i, *t)) else {
            return Ok(false);
        };
        self.writable()?;
        self.throttle()?;
        match self.inode(ino) {
            Ok(_) => {
                self.reserve(0, 1, Claim::SAME)?;
                self.set_access(ino, time);
            }
            // Gone meanwhile.
            Err(NotApplied::Failed(_)) => {}
            Err(stop) => return Err(stop),
        }
        self.tree.accessed.remove(&ino);
        Ok(true)
    }
}
