//! The requests of the kernel's FUSE driver, in the form that every transport gives them.
//!
//! A server implements [`Operations`]; a transport (`channel.rs`, `ring.rs`) reads requests, calls
//! it, and carries the answer that the server gives to the [`Reply`]. Requests that the kernel
//! answers itself under the options that are used here, such as locks, are missing.

use crate::reply::Reply;
use furrow_fs::Time;
use fuser::{
    Errno, FileHandle, FopenFlags, INodeNo, KernelConfig, Notifier, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, WriteFlags,
};
use std::sync::Arc;

/// The process behind a request.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub uid: u32,
    pub gid: u32,
    /// Its thread, by the number in this process's namespace; 0 if it has none.
    pub thread: u32,
}

/// A time that a request sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Now,
    At(Time),
}

/// The attributes that a request sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// In bytes.
    pub size: Option<u64>,
    pub atime: Option<When>,
    pub mtime: Option<When>,
    /// Only a kernel that caches writes keeps this time itself.
    pub ctime: Option<Time>,
}

/// A name to be made.
#[derive(Clone, Debug)]
pub struct NewName {
    pub parent: INodeNo,
    pub name: Vec<u8>,
    /// Type and permissions.
    pub mode: u32,
    pub umask: u32,
}

/// A server of the kernel's requests. Several threads may call it at once.
///
/// A method returns once the request is on its way; the reply may be given later, by any thread. A
/// reply that is dropped answers EIO. A request that a server does not have is answered as the
/// kernel expects of a server without the feature.
#[allow(unused_variables, reason = "what a server does not have")]
pub trait Operations: Send + Sync + 'static {
    /// Negotiates: `config` has the features that the kernel offers, and takes those wanted.
    ///
    /// # Errors
    /// If the kernel lacks a feature that the server needs. The mount then ends.
    fn init(&self, config: &mut KernelConfig) -> std::io::Result<()>;

    /// The kernel has agreed; by `kernel` it is told what to do without a request.
    fn connected(self: &Arc<Self>, kernel: Notifier) {}

    /// Has the kernel pass on what it has collected, and waits for that; called by none of the
    /// threads that answer.
    fn pass_on(&self) {}

    /// The mount has ended.
    fn destroy(&self) {}

    /// The operator should read this line.
    fn report(&self, line: &str) {}

    /// An attribute of an inode that does not exist means: there is no such name, which may be
    /// cached.
    fn lookup(&self, parent: INodeNo, name: Vec<u8>, reply: Reply<ReplyEntry>);

    /// The kernel forgets `answers` answers that named the inode.
    fn forget(&self, ino: INodeNo, answers: u64) {}

    fn getattr(&self, ino: INodeNo, reply: Reply<ReplyAttr>);

    fn setattr(&self, asker: Asker, ino: INodeNo, changes: Changes, reply: Reply<ReplyAttr>) {
        reply.error(Errno::ENOSYS);
    }

    fn readlink(&self, ino: INodeNo, reply: Reply<ReplyData>) {
        reply.error(Errno::ENOSYS);
    }

    fn mknod(&self, asker: Asker, new: NewName, rdev: u32, reply: Reply<ReplyEntry>) {
        reply.error(Errno::ENOSYS);
    }

    fn mkdir(&self, asker: Asker, new: NewName, reply: Reply<ReplyEntry>) {
        reply.error(Errno::ENOSYS);
    }

    fn unlink(&self, parent: INodeNo, name: Vec<u8>, reply: Reply<ReplyEmpty>) {
        reply.error(Errno::ENOSYS);
    }

    fn rmdir(&self, parent: INodeNo, name: Vec<u8>, reply: Reply<ReplyEmpty>) {
        reply.error(Errno::ENOSYS);
    }

    fn symlink(
        &self,
        asker: Asker,
        parent: INodeNo,
        name: Vec<u8>,
        target: Vec<u8>,
        reply: Reply<ReplyEntry>,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn rename(
        &self,
        from: (INodeNo, Vec<u8>),
        to: (INodeNo, Vec<u8>),
        flags: RenameFlags,
        reply: Reply<ReplyEmpty>,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn link(&self, ino: INodeNo, parent: INodeNo, name: Vec<u8>, reply: Reply<ReplyEntry>) {
        reply.error(Errno::ENOSYS);
    }

    /// "Not implemented" makes a kernel with `FUSE_NO_OPEN_SUPPORT` send no opens and closes, and
    /// keep what it has cached of a file when a program opens the file.
    fn open(&self, ino: INodeNo, reply: Reply<ReplyOpen>) {
        reply.error(Errno::ENOSYS);
    }

    /// Makes a file and opens it. "Not implemented" makes the kernel ask for the file by
    /// [`Operations::mknod`], and then for the opening.
    fn create(&self, asker: Asker, new: NewName, reply: Reply<ReplyCreate>) {
        reply.error(Errno::ENOSYS);
    }

    /// `flags`: of the open file.
    fn read(&self, ino: INodeNo, offset: u64, size: u32, flags: OpenFlags, reply: Reply<ReplyData>);

    #[allow(clippy::too_many_arguments)]
    fn write(
        &self,
        asker: Asker,
        ino: INodeNo,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        reply: Reply<ReplyWrite>,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, ino: INodeNo, reply: Reply<ReplyEmpty>) {
        // "Not implemented" makes the kernel stop sending this.
        reply.error(Errno::ENOSYS);
    }

    fn release(&self, ino: INodeNo, reply: Reply<ReplyEmpty>) {
        reply.ok();
    }

    fn fsync(&self, ino: INodeNo, datasync: bool, reply: Reply<ReplyEmpty>) {
        reply.error(Errno::ENOSYS);
    }

    /// The handle of the answer comes with each listing.
    fn opendir(&self, ino: INodeNo, flags: OpenFlags, reply: Reply<ReplyOpen>) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(&self, ino: INodeNo, handle: FileHandle, offset: u64, reply: Reply<ReplyDirectory>) {
        reply.error(Errno::ENOSYS);
    }

    fn readdirplus(
        &self,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: Reply<ReplyDirectoryPlus>,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsyncdir(&self, ino: INodeNo, datasync: bool, reply: Reply<ReplyEmpty>) {
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, reply: Reply<ReplyStatfs>);

    fn setxattr(
        &self,
        asker: Asker,
        ino: INodeNo,
        name: Vec<u8>,
        value: Vec<u8>,
        flags: i32,
        reply: Reply<ReplyEmpty>,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(
        &self,
        asker: Asker,
        ino: INodeNo,
        name: Vec<u8>,
        size: u32,
        reply: Reply<ReplyXattr>,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, asker: Asker, ino: INodeNo, size: u32, reply: Reply<ReplyXattr>) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, ino: INodeNo, name: Vec<u8>, reply: Reply<ReplyEmpty>) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        asker: Asker,
        ino: INodeNo,
        offset: u64,
        length: u64,
        mode: i32,
        reply: Reply<ReplyEmpty>,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, ino: INodeNo, offset: i64, whence: i32, reply: Reply<ReplyLseek>) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        asker: Asker,
        from: (INodeNo, u64),
        to: (INodeNo, u64),
        length: u64,
        reply: Reply<ReplyWrite>,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
