//! A FUSE server that does nothing, to measure what FUSE itself costs.
//!
//! A file of 4 KiB, [`FILE`], one of 256 MiB, [`BIG`], and a directory in which all names can be
//! made and removed. Every request is answered at once from constants, and what is written is
//! dropped. It goes through the same endpoint, session and options as a mounted file system, so a
//! ratio of the two is the engine's share.

use crate::endpoint::MAX_WRITE;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Name of the small file.
pub const FILE: &str = "file";
/// Name of the big file.
pub const BIG: &str = "big";
const INODE: INodeNo = INodeNo(2);
const BIG_INODE: INodeNo = INodeNo(3);
const BYTES: usize = 4096;
const BIG_BYTES: u64 = 256 << 20;

/// The server.
pub struct Null {
    ttl: Duration,
    writeback_cache: bool,
    content: Vec<u8>,
    /// The next file's inode number.
    next: AtomicU64,
}

impl Null {
    /// A server whose attributes and names the kernel may cache for `ttl`.
    pub fn new(ttl: Duration) -> Null {
        let content = vec![0x5a; MAX_WRITE as usize];
        Null { ttl, writeback_cache: false, content, next: AtomicU64::new(BIG_INODE.0 + 1) }
    }

    /// Lets the kernel collect writes in its page cache.
    #[must_use]
    pub fn with_writeback_cache(self, wanted: bool) -> Null {
        Null { writeback_cache: wanted, ..self }
    }
}

fn size_of(ino: INodeNo) -> u64 {
    match ino {
        INODE | INodeNo::ROOT => BYTES as u64,
        BIG_INODE => BIG_BYTES,
        _ => 0,
    }
}

fn attributes(ino: INodeNo) -> FileAttr {
    let directory = ino == INodeNo::ROOT;
    FileAttr {
        ino,
        size: size_of(ino),
        blocks: size_of(ino) / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if directory { FileType::Directory } else { FileType::RegularFile },
        perm: if directory { 0o755 } else { 0o644 },
        nlink: if directory { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BYTES as u32,
        flags: 0,
    }
}

impl Filesystem for Null {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_READ);
        let _ = config.add_capabilities(InitFlags::FUSE_BIG_WRITES);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        if self.writeback_cache {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        let _ = config.set_max_write(MAX_WRITE);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let known = [(FILE, INODE), (BIG, BIG_INODE)];
        match known.into_iter().find(|(known, _)| parent == INodeNo::ROOT && name == *known) {
            Some((_, ino)) => reply.entry(&self.ttl, &attributes(ino), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let ino = INodeNo(self.next.fetch_add(1, Ordering::Relaxed));
        let (fh, flags) = (FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        reply.created(&self.ttl, &attributes(ino), Generation(0), fh, flags);
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.ok();
    }

    #[allow(clippy::too_many_arguments)]
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&self.ttl, &attributes(ino));
    }

    #[allow(clippy::too_many_arguments)]
    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&self.ttl, &attributes(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    #[allow(clippy::too_many_arguments)]
    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = size_of(ino).saturating_sub(offset).min(u64::from(size));
        reply.data(&self.content[..(left as usize).min(self.content.len())]);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1, 0, 0, 2, 0, BYTES as u32, 255, BYTES as u32);
    }
}
