//! A FUSE server that does nothing, to measure what FUSE itself costs.
//!
//! A file of 4 KiB, [`FILE`], one of 256 MiB, [`BIG`], and a directory in which all names can be
//! made and removed. Every request is answered at once from constants, and what is written is
//! dropped. It goes through the same endpoint, session and options as a mounted file system, so a
//! ratio of the two is the engine's share.

use crate::endpoint::MAX_WRITE;
use crate::operations::{Asker, Changes, NewName, Operations};
use crate::reply::{Reply, Space};
use fuser::{
    Errno, FileAttr, FileType, Generation, INodeNo, InitFlags, KernelConfig, OpenFlags, ReplyAttr,
    ReplyData, ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyWrite, WriteFlags,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

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

impl Operations for Null {
    fn init(&self, config: &mut KernelConfig) -> std::io::Result<()> {
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

    fn lookup(&self, parent: INodeNo, name: Vec<u8>, reply: Reply<ReplyEntry>) {
        let known = [(FILE, INODE), (BIG, BIG_INODE)];
        let is = |known: &str| parent == INodeNo::ROOT && name == known.as_bytes();
        match known.into_iter().find(|(known, _)| is(known)) {
            Some((_, ino)) => reply.entry(&self.ttl, &attributes(ino), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn mknod(&self, _: Asker, _: NewName, _: u32, reply: Reply<ReplyEntry>) {
        let ino = INodeNo(self.next.fetch_add(1, Ordering::Relaxed));
        reply.entry(&self.ttl, &attributes(ino), Generation(0));
    }

    fn unlink(&self, _: INodeNo, _: Vec<u8>, reply: Reply<ReplyEmpty>) {
        reply.ok();
    }

    fn setattr(&self, _: Asker, ino: INodeNo, _: Changes, reply: Reply<ReplyAttr>) {
        reply.attr(&self.ttl, &attributes(ino));
    }

    fn write(
        &self,
        _: Asker,
        _: INodeNo,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        reply: Reply<ReplyWrite>,
    ) {
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: INodeNo, _: bool, reply: Reply<ReplyEmpty>) {
        reply.ok();
    }

    fn getattr(&self, ino: INodeNo, reply: Reply<ReplyAttr>) {
        reply.attr(&self.ttl, &attributes(ino));
    }

    fn read(&self, ino: INodeNo, offset: u64, size: u32, _: OpenFlags, reply: Reply<ReplyData>) {
        let left = size_of(ino).saturating_sub(offset).min(u64::from(size));
        let content = &self.content[..(left as usize).min(self.content.len())];
        reply.data(content.len(), std::iter::once(content));
    }

    fn statfs(&self, reply: Reply<ReplyStatfs>) {
        let (block_size, name_max) = (BYTES as u32, 255);
        reply.statfs(&Space { blocks: 1, inodes: 2, block_size, name_max, ..Space::default() });
    }
}
