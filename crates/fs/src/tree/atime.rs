//! Access times.
//!
//! Reading changes access times according to the mount options; no operation waits for such a
//! change or fails because of it. A new time goes into the inode, which is then dirty as after any
//! other change. With `lazytime` the time stays in [`Tree`](crate::tree::Tree) until the inode is
//! written anyway, the inode is synced, or the whole file system is synced.

use crate::alloc::space::Claim;
use crate::blocked::NotApplied;
use crate::core::Core;
use crate::tree::node::{attr, stamp, time};
use crate::types::{AccessTime, Attr, Ino, Kind, Time};

/// Age in seconds after which a relative access time is always updated.
const DAY: i64 = 24 * 60 * 60;
/// Largest number of access times kept in memory. If there are more, all of them go into
/// their inodes.
const LAZY_MAX: usize = 4096;

impl Core {
    /// The attributes of `ino`, including the newest access time. The inode must be in the cache.
    pub(crate) fn attr(&mut self, ino: Ino) -> Result<Attr, NotApplied> {
        let mut attr = attr(&self.inode(ino)?.head);
        if let Some(time) = self.tree.accessed.get(&ino) {
            attr.atime = *time;
        }
        Ok(attr)
    }

    /// Notes that `ino` was read. The inode must be in the cache.
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
        // A difference of a day needs no exact time: take the last reading of the clock instead of
        // a new one.
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
        // If the drive lacks space or the cache is full of changes, the time is dropped.
        if self.throttle().is_err() || self.reserve(0, 1, Claim::SAME).is_err() {
            return;
        }
        if self.env.options.lazy_time {
            // Times of inodes that are no longer in the cache are lost: an access time is not worth
            // a read.
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

    /// Moves the access time of `ino` into its inode, if the inode is in the cache. The inode is
    /// then dirty.
    pub(crate) fn take_access(&mut self, ino: Ino) {
        if self.inode(ino).is_ok()
            && let Some(time) = self.tree.accessed.remove(&ino)
        {
            self.set_access(ino, time);
        }
    }

    /// Moves one access time into its inode, for a sync of the whole file system. False if no
    /// access time is left in memory.
    pub(crate) fn take_one_access(&mut self) -> Result<bool, NotApplied> {
        let Some((ino, time)) = self.tree.accessed.first_key_value().map(|(i, t)| (*i, *t)) else {
            return Ok(false);
        };
        self.may_write()?;
        self.throttle()?;
        match self.inode(ino) {
            Ok(_) => {
                self.reserve(0, 1, Claim::SAME)?;
                self.set_access(ino, time);
            }
            // The inode was removed in the meantime.
            Err(NotApplied::Failed(_)) => {}
            Err(stop) => return Err(stop),
        }
        self.tree.accessed.remove(&ino);
        Ok(true)
    }
}
