//! POSIX rules that the engine's operations leave out: set-id bits that changes clear, inodes that
//! outlive their last name, `.` and `..`.

use crate::channel::GATHER;
use crate::dispatch::Shared;
use crate::operations::Asker;
use crate::requests::DOTS;
use furrow_fs::{
    Allocate, Attr, DirEntry, Fs, Ino, Kind, NewNode, RenameMode, SetAttr, Time, XattrMode,
};
use furrow_rt::PAGE_SIZE;
use furrow_rt::Rt;
use furrow_zone::{Error, ErrorKind, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o0010;
/// Bit of `CAP_SYS_ADMIN` in a set of capabilities.
const SYS_ADMIN: u64 = 1 << 21;
/// Prefix of extended attributes that only callers with `CAP_SYS_ADMIN` see.
const TRUSTED: &[u8] = b"trusted.";
/// The extended attribute that holds the access list.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// A request that the engine carries out.
pub(crate) struct Call {
    pub rt: Rt,
    pub fs: Fs,
    pub shared: Arc<Shared>,
}

/// A directory entry for the kernel.
pub(crate) struct Listed<'a> {
    pub ino: Ino,
    pub kind: Kind,
    pub name: &'a OsStr,
    /// Offset at which the listing continues after this entry.
    pub offset: u64,
}

/// The caller of a request for a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// Group of the caller; only /proc shows the caller's other groups.
    pub gid: u32,
    /// Number of the caller's thread in this process's PID namespace; 0 if it has none there.
    pub thread: u32,
    /// Whether the caller may keep set-id bits (`CAP_FSETID`).
    pub privileged: bool,
}

impl Caller {
    pub fn of(asker: Asker) -> Caller {
        Caller { gid: asker.gid, thread: asker.thread, privileged: asker.uid == 0 }
    }

    /// The rest of the line that begins with `name` in the thread's status in /proc.
    fn says(&self, name: &str) -> Option<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.thread)).ok()?;
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
    }

    /// Whether the caller belongs to `group`. A caller that /proc does not show has only the group
    /// of the request.
    fn is_of(&self, group: u32) -> bool {
        let of = |groups: String| groups.split_whitespace().any(|of| of.parse() == Ok(group));
        self.gid == group || self.says("Groups:").is_some_and(of)
    }

    /// Whether the caller has `CAP_SYS_ADMIN` in the user namespace of this process. If /proc does
    /// not show the caller, the user id decides.
    fn administers(&self) -> bool {
        let user_namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user")).ok();
        let Some(capabilities) = self.says("CapEff:") else { return self.privileged };
        let capabilities = u64::from_str_radix(capabilities.trim(), 16).unwrap_or(0);
        let own = user_namespace("self");
        capabilities & SYS_ADMIN != 0 && user_namespace(&self.thread.to_string()) == own
    }

    /// The mode bits to clear in a file with `attr` after this caller has written to it, or after
    /// its owner has changed. As on ext4, a set-group-id bit without group execution does not
    /// affect execution, so it stays for callers that could set it: privileged ones and members of
    /// the file's group.
    fn strips(&self, attr: &Attr) -> u16 {
        let alone = attr.mode & (SET_GID | GROUP_EXEC) == SET_GID;
        let keeps = alone && (self.privileged || self.is_of(attr.gid));
        attr.mode & !if keeps { SET_UID } else { SET_UID | SET_GID }
    }
}

/// Maximum number of pauses of [`GATHER`] during which a writer without space waits for the kernel
/// to forget removed files; enough even on a busy machine.
const FORGOTTEN: u32 = 50;

impl Call {
    /// The time of day.
    pub fn now(&self) -> Time {
        let (seconds, nanoseconds) = self.rt.wall();
        Time { seconds, nanoseconds }
    }

    /// Calls `attempt`, which makes a change, with `argument`. If there is no space but removed
    /// files still hold some, waits and calls `attempt` once more. The wait ends when the kernel
    /// has forgotten these files, or after [`FORGOTTEN`] pauses, since one of the files may be
    /// open. So a program that removes a file and then writes another gets the space, although the
    /// forget comes some time after the removal.
    pub async fn with_space<A: Clone, T>(
        &self,
        argument: A,
        attempt: impl AsyncFn(A) -> Result<T>,
    ) -> Result<T> {
        let known = &self.shared.known;
        if !known.has_kept() {
            return attempt(argument).await;
        }
        match attempt(argument.clone()).await {
            Err(error) if error.kind() == ErrorKind::NoSpace => {}
            done => return done,
        }
        for _ in 0..FORGOTTEN {
            self.rt.sleep(GATHER.as_nanos() as u64).await;
            if !known.has_kept() {
                break;
            }
        }
        attempt(argument).await
    }

    /// Makes an inode. Waits for space like [`Call::with_space`].
    pub async fn create(&self, parent: Ino, name: &[u8], node: NewNode) -> Result<Attr> {
        self.with_space(&node, async |node| self.fs.create(parent, name, node).await).await
    }

    /// Makes a file without a name, which counts as opened once. Waits for space
    /// like [`Call::with_space`].
    pub async fn create_unnamed(&self, directory: Ino, node: NewNode) -> Result<Attr> {
        self.with_space(&node, async |node| self.fs.create_unnamed(directory, node).await).await
    }

    /// Changes attributes. Unless the mode is among them, a change of owner clears set-id bits, and
    /// so does a change of size by a caller without privileges. Directories keep these bits.
    pub async fn setattr(&self, ino: Ino, mut changes: SetAttr, who: Caller) -> Result<Attr> {
        // An empty change is a chown(-1, -1): the kernel sends no other empty change.
        let owner = changes.uid.is_some() || changes.gid.is_some() || changes == SetAttr::default();
        if changes.mode.is_none() && (owner || (changes.size.is_some() && !who.privileged)) {
            let attr = self.fs.getattr(ino).await?;
            if attr.kind != Kind::Directory {
                changes.mode = Some(who.strips(&attr)).filter(|mode| *mode != attr.mode);
            }
        }
        self.fs.setattr(ino, changes).await
    }

    /// The names of the extended attributes of `ino` that `who` may see.
    pub async fn list_xattrs(&self, ino: Ino, who: Caller) -> Result<Vec<Vec<u8>>> {
        let mut names = self.fs.listxattr(ino).await?;
        let is_trusted = |name: &Vec<u8>| name.starts_with(TRUSTED);
        // `administers` reads /proc, so it is asked last: few files have trusted attributes.
        if names.iter().any(is_trusted) && !who.administers() {
            names.retain(|name| !is_trusted(name));
        }
        Ok(names)
    }

    /// Carries out fallocate(2). The file system does not keep blocks beyond the end of a file, so
    /// a request for such blocks is refused before anything is changed.
    pub async fn fallocate(
        &self,
        ino: Ino,
        what: Allocate,
        (offset, len): (u64, u64),
        who: Caller,
    ) -> Result<()> {
        if matches!(what, Allocate::KeepSize | Allocate::ZeroKeepSize) {
            let size = self.fs.getattr(ino).await?.size;
            if offset.saturating_add(len) > size.next_multiple_of(PAGE_SIZE as u64) {
                let refused = "no blocks are kept beyond the end of a file";
                return Err(Error::new(ErrorKind::Unsupported, refused));
            }
        }
        if !who.privileged {
            self.strip_set_id(ino, who).await?;
        }
        self.with_space((), async |()| self.fs.fallocate(ino, what, offset, len).await).await
    }

    /// Sets an extended attribute for `who`. A new access list clears the set-group-id bit unless
    /// `who` is privileged or belongs to the file's group.
    pub async fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        who: Caller,
    ) -> Result<()> {
        self.fs.setxattr(ino, name, value, mode).await?;
        if name == ACCESS_LIST && !who.privileged {
            let attr = self.fs.getattr(ino).await?;
            if attr.mode & SET_GID != 0 && !who.is_of(attr.gid) {
                let changes = SetAttr { mode: Some(attr.mode & !SET_GID), ..SetAttr::default() };
                self.fs.setattr(ino, changes).await?;
            }
        }
        Ok(())
    }

    /// Clears the set-id bits of `ino` before `who`, who is not privileged, writes to the file.
    pub async fn strip_set_id(&self, ino: Ino, who: Caller) -> Result<()> {
        let attr = self.fs.getattr(ino).await?;
        // Few files have set-id bits; for all other files /proc need not be read.
        if attr.mode & (SET_UID | SET_GID) == 0 {
            return Ok(());
        }
        let mode = who.strips(&attr);
        if mode != attr.mode {
            self.fs.setattr(ino, SetAttr { mode: Some(mode), ..SetAttr::default() }).await?;
        }
        Ok(())
    }

    /// Carries out fsync(2).
    pub async fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.synced(self.fs.fsync(ino, data_only).await)
    }

    /// Carries out syncfs(2), and the part of sync(2) that concerns this file system.
    pub async fn sync(&self) -> Result<()> {
        self.synced(self.fs.sync().await)
    }

    /// Turns the read-only error of a failed engine into an I/O error, because changes that were
    /// not synced are lost. A program may ignore EROFS as if there were nothing to sync.
    fn synced(&self, done: Result<()>) -> Result<()> {
        match (done, self.fs.failure()) {
            (Err(error), Some(_)) if error.kind() == ErrorKind::ReadOnly => {
                Err(Error::new(ErrorKind::Io, error.to_string()))
            }
            (done, _) => done,
        }
    }

    /// The inode of `name` in directory `parent`. Callers with only a file handle look up `.` and
    /// `..`; they look up `.` in inodes of every kind.
    pub async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        match name {
            b"." => self.fs.getattr(parent).await,
            b".." => self.fs.getattr(self.parent(parent).await?).await,
            _ => self.fs.lookup(parent, name).await,
        }
    }

    /// Keeps an inode that has lost its last name until the kernel forgets the inode, because the
    /// kernel may still use the inode's number. The caller has opened the inode for this purpose.
    /// If the kernel does not refer to the inode, releases it at once.
    async fn keep(&self, ino: Option<Ino>) -> Result<()> {
        match ino {
            Some(ino) if !self.shared.known.keep(ino) => self.fs.release(ino).await,
            _ => Ok(()),
        }
    }

    /// Carries out unlink(2).
    pub async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.keep(self.fs.remove_open(parent, name, false).await?).await
    }

    /// Carries out rmdir(2).
    pub async fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.keep(self.fs.remove_open(parent, name, true).await?).await
    }

    /// Carries out renameat2(2).
    pub async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.keep(self.fs.rename_open(from, to, mode).await?).await
    }

    /// The parent of directory `ino`; `ino` itself if the directory was removed.
    async fn parent(&self, ino: Ino) -> Result<Ino> {
        match self.fs.parent(ino).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(ino),
            parent => parent,
        }
    }

    async fn entries(
        &self,
        ino: Ino,
        access: bool,
        cookie: u64,
        batch: usize,
    ) -> Result<Vec<DirEntry>> {
        match access {
            true => self.fs.readdir(ino, cookie, batch).await,
            false => self.fs.readdir_noatime(ino, cookie, batch).await,
        }
    }

    /// Lists directory `ino` from `offset` on. Fetches `batch` entries at a time until `add`
    /// returns true, which says that its buffer is full. `access`: whether the listing updates the
    /// directory's access time.
    pub async fn list(
        &self,
        (ino, access): (Ino, bool),
        offset: u64,
        batch: usize,
        mut add: impl FnMut(Listed<'_>) -> bool,
    ) -> Result<()> {
        if offset < 1 && add(dot(ino, ".", 1)) {
            return Ok(());
        }
        if offset < DOTS && add(dot(self.parent(ino).await?, "..", DOTS)) {
            return Ok(());
        }
        let mut cookie = offset.saturating_sub(DOTS);
        loop {
            let entries = self.entries(ino, access, cookie, batch).await?;
            for entry in &entries {
                cookie = entry.cookie;
                if add(listed(entry)) {
                    return Ok(());
                }
            }
            if entries.len() < batch {
                return Ok(());
            }
        }
    }

    /// Like [`Call::list`], with the attributes of each entry. Leaves out entries that were removed
    /// meanwhile. If an inode cannot be read, its entry is listed without attributes: a damaged
    /// inode must not hide the other names of its directory, and a program that asks for its
    /// attributes gets the error.
    pub async fn list_plus(
        &self,
        (ino, access): (Ino, bool),
        offset: u64,
        batch: usize,
        mut add: impl FnMut(Listed<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        if offset < 1 && add(dot(ino, ".", 1), self.fs.getattr(ino).await.ok().as_ref()) {
            return Ok(());
        }
        if offset < DOTS {
            let parent = self.parent(ino).await?;
            if add(dot(parent, "..", DOTS), self.fs.getattr(parent).await.ok().as_ref()) {
                return Ok(());
            }
        }
        let mut cookie = offset.saturating_sub(DOTS);
        loop {
            let entries = self.entries(ino, access, cookie, batch).await?;
            for entry in &entries {
                cookie = entry.cookie;
                let attr = match self.fs.getattr(entry.ino).await {
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    attr => attr.ok(),
                };
                if add(listed(entry), attr.as_ref()) {
                    return Ok(());
                }
            }
            if entries.len() < batch {
                return Ok(());
            }
        }
    }
}

fn listed(entry: &DirEntry) -> Listed<'_> {
    let (ino, kind, name) = (entry.ino, entry.kind, OsStr::from_bytes(&entry.name));
    Listed { ino, kind, name, offset: entry.cookie.saturating_add(DOTS) }
}

fn dot(ino: Ino, name: &'static str, offset: u64) -> Listed<'static> {
    Listed { ino, kind: Kind::Directory, name: OsStr::new(name), offset }
}

#[cfg(test)]
mod tests {
    use super::Caller;
    use furrow_fs::{Attr, Time};

    fn stripped(mode: u16, gid: u32, privileged: bool) -> u16 {
        // No thread has this number, so the caller belongs to this group only.
        let who = Caller { gid: 7, thread: u32::MAX, privileged };
        let time = Time { seconds: 0, nanoseconds: 0 };
        let kind = furrow_fs::Kind::File;
        let attr = Attr {
            ino: furrow_fs::Ino(3),
            generation: 0,
            kind,
            mode,
            links: 1,
            uid: 1,
            gid,
            size: 0,
            blocks: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        who.strips(&attr)
    }

    #[test]
    fn set_id_bits_go_but_set_group_id_alone_stays_for_those_of_the_group() {
        for (group, privileged) in [(7, false), (8, false), (8, true)] {
            assert_eq!(stripped(0o6755, group, privileged), 0o755);
            assert_eq!(stripped(0o4711, group, privileged), 0o711);
            assert_eq!(stripped(0o1777, group, privileged), 0o1777);
            let kept = if group == 7 || privileged { 0o2000 } else { 0 };
            assert_eq!(stripped(0o2644, group, privileged), kept | 0o644);
            assert_eq!(stripped(0o6644, group, privileged), kept | 0o644);
        }
    }
}
