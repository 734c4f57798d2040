//! A FUSE server that does nothing, to measure what FUSE itself costs.
//!
//! One file of 4 KiB, [`FILE`], never cached by the kernel: every getattr and read is a request,
//! answered at once from constants. It goes through the same endpoint, session and options as a
//! mounted file system, so a ratio of the two is the engine's share.

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, Request,
};
use std::ffi::OsStr;
use std::time::{Duration, UNIX_EPOCH};

/// Name of the file.
pub const FILE: &str = "file";
const INODE: INodeNo = INodeNo(2);
const BYTES: usize = 4096;

/// The server.
pub struct Null {
    ttl: Duration,
    content: [u8; BYTES],
}

impl Null {
    /// A server whose attributes and names the kernel may cache for `ttl`.
    pub fn new(ttl: Duration) -> Null {
        Null { ttl, content: [0x5a; BYTES] }
    }
}

fn attributes(ino: INodeNo) -> FileAttr {
    let directory = ino != INODE;
    FileAttr {
        ino,
        size: BYTES as u64,
        blocks: 8,
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
        let _ = config.set_max_write(crate::endpoint::MAX_WRITE);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE {
            reply.entry(&self.ttl, &attributes(INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
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
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let from = usize::try_from(offset).unwrap_or(BYTES).min(BYTES);
        let to = from.saturating_add(size as usize).min(BYTES);
        reply.data(&self.content[from..to]);
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
