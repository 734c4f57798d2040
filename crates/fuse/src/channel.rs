//! Requests by `/dev/fuse`, read and answered by `fuser`.

use crate::convert::time_in;
use crate::operations::{Asker, Changes, NewName, Operations, When};
use crate::ring;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long forgets gather where requests come by rings. The blocks of a removed file become free
/// so much later; see `Call::with_space`.
pub(crate) const GATHER: Duration = Duration::from_millis(2);

/// Most time between two forgets that were read at once; a read takes longer.
const AT_ONCE: Duration = Duration::from_micros(2);

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// By rings where the owner of the machine has allowed them, else by `/dev/fuse`.
    #[default]
    Offered,
    /// By `/dev/fuse`.
    Channel,
    /// By rings; without them there is no mount.
    Rings,
}

/// The requests that are read from `/dev/fuse`.
pub(crate) struct Channel<S> {
    server: Arc<S>,
    /// All requests but forgets and interrupts come by rings.
    rings: bool,
    /// When the last forget was done with.
    forgot: Mutex<Instant>,
}

impl<S> Channel<S> {
    /// For `server`. `rings`: all requests but forgets and interrupts come by rings.
    pub(crate) fn new(server: Arc<S>, rings: bool) -> Channel<S> {
        Channel { server, rings, forgot: Mutex::new(Instant::now()) }
    }

    fn forgot(&self) -> MutexGuard<'_, Instant> {
        // A time is whole even if a thread panicked while it held the lock.
        self.forgot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits before the first forget of those that were read at once, so that the kernel gathers
    /// more of them. A thread that waits in a read instead is woken for each forget, and then holds
    /// the engine just when the next request comes by a ring.
    fn gather(&self) {
        // fuser passes a list on one by one, and its type of a list cannot be named: the time
        // between two forgets tells whether they were read at once.
        if self.forgot().elapsed() > AT_ONCE {
            std::thread::sleep(GATHER);
        }
    }
}

fn asker(req: &Request) -> Asker {
    Asker { uid: req.uid(), gid: req.gid(), thread: req.pid() }
}

fn new(parent: INodeNo, name: &OsStr, mode: u32, umask: u32) -> NewName {
    NewName { parent, name: owned(name), mode, umask }
}

fn owned(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn when(time: TimeOrNow) -> When {
    match time {
        TimeOrNow::SpecificTime(at) => When::At(time_in(at)),
        TimeOrNow::Now => When::Now,
    }
}

impl<S: Operations> Filesystem for Channel<S> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.server.init(config)?;
        if self.rings {
            let agreed = config.add_capabilities(InitFlags::FUSE_OVER_IO_URING);
            agreed.map_err(|_| std::io::Error::other(ring::help()))?;
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.server.destroy();
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.server.lookup(parent, owned(name), reply.into());
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        if self.rings {
            self.gather();
        }
        self.server.forget(ino, nlookup);
        *self.forgot() = Instant::now();
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.server.getattr(ino, reply.into());
    }

    #[allow(clippy::too_many_arguments)]
    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (atime, mtime, ctime) = (atime.map(when), mtime.map(when), ctime.map(time_in));
        let changes = Changes { mode, uid, gid, size, atime, mtime, ctime };
        self.server.setattr(asker(req), ino, changes, reply.into());
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.server.readlink(ino, reply.into());
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.server.mknod(asker(req), new(parent, name, mode, umask), rdev, reply.into());
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.server.mkdir(asker(req), new(parent, name, mode, umask), reply.into());
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.server.unlink(parent, owned(name), reply.into());
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.server.rmdir(parent, owned(name), reply.into());
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = owned(target.as_os_str());
        self.server.symlink(asker(req), parent, owned(name), target, reply.into());
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent, owned(name)), (newparent, owned(newname)));
        self.server.rename(from, to, flags, reply.into());
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.server.link(ino, newparent, owned(newname), reply.into());
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.server.open(ino, reply.into());
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        self.server.create(asker(req), new(parent, name, mode, umask), reply.into());
    }

    #[allow(clippy::too_many_arguments)]
    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.server.read(ino, offset, size, flags, reply.into());
    }

    #[allow(clippy::too_many_arguments)]
    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.server.write(asker(req), ino, offset, data, write_flags, flags, reply.into());
    }

    fn flush(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.server.flush(ino, reply.into());
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.server.release(ino, reply.into());
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.server.fsync(ino, datasync, reply.into());
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.server.opendir(ino, flags, reply.into());
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.server.readdir(ino, fh, offset, reply.into());
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.server.readdirplus(ino, fh, offset, reply.into());
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.server.fsyncdir(ino, datasync, reply.into());
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.server.statfs(reply.into());
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (owned(name), value.to_vec());
        self.server.setxattr(asker(req), ino, name, value, flags, reply.into());
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.server.getxattr(asker(req), ino, owned(name), size, reply.into());
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.server.listxattr(asker(req), ino, size, reply.into());
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.server.removexattr(ino, owned(name), reply.into());
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.server.fallocate(asker(req), ino, offset, length, mode, reply.into());
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.server.lseek(ino, offset, whence, reply.into());
    }

    #[allow(clippy::too_many_arguments)]
    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((ino_in, offset_in), (ino_out, offset_out));
        self.server.copy_file_range(asker(req), from, to, len, reply.into());
    }
}
