//! The requests of the kernel's FUSE driver, in a form that does not depend on the transport.
//!
//! A server implements [`Operations`]. A transport (`channel.rs`, `ring.rs`) reads requests, calls
//! the server, and sends the answer that the server gives to the [`Reply`]. The trait lacks
//! requests that the kernel answers itself with the options used here, such as locks.

use crate::capabilities::Agreement;
use crate::channel::Notifier;
use crate::reply::{Reply, kind};
use crate::wire::{Handle, Node};
use furrow_fs::Time;
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;
use std::sync::Arc;

/// The process behind a request.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub uid: u32,
    pub gid: u32,
    /// Number of the thread in this process's PID namespace; 0 if it has none there.
    pub thread: u32,
}

/// The new value of a time of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Now,
    At(Time),
}

/// The attributes that a request changes; `None` for those that stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// New size in bytes.
    pub size: Option<u64>,
    pub atime: Option<When>,
    pub mtime: Option<When>,
    /// New change time; sent only by a kernel that caches writes and so keeps this time itself.
    pub ctime: Option<Time>,
}

/// A name that a request makes.
#[derive(Clone, Debug)]
pub struct NewName {
    pub parent: Node,
    pub name: Vec<u8>,
    /// Type and permission bits.
    pub mode: u32,
    pub umask: u32,
}

/// A server of the kernel's requests. Several threads may call it concurrently.
///
/// A method may return before the request is answered; any thread may give the reply later. A reply
/// that is dropped answers EIO. The default method for a request gives the answer that the kernel
/// expects from a server without that feature.
#[allow(unused_variables, reason = "what a server does not have")]
pub trait Operations: Send + Sync + 'static {
    /// Chooses the features that the server wants.
    ///
    /// # Errors
    /// An error if the kernel lacks a feature that the server needs; the mount then ends.
    fn init(&self, agreement: &mut Agreement) -> anyhow::Result<()>;

    /// Called when the kernel has agreed to the features. The server sends messages to the kernel
    /// through `kernel`.
    fn connected(self: &Arc<Self>, kernel: Notifier) {}

    /// Makes the kernel pass on the writes that it has collected, and waits until it has. A thread
    /// that answers requests must not call this.
    fn pass_on(&self) {}

    /// Called when the mount has ended.
    fn destroy(&self) {}

    /// Called when the kernel unmounts a block device. It frees the device once the server has
    /// answered, so the server must not write to the device afterwards. The kernel sends this
    /// request only for block devices; other mounts just end.
    fn leave(&self, reply: Reply<kind::Empty>) {
        reply.ok();
    }

    /// Makes all changes in the file system durable. After the answer "not implemented" the kernel
    /// does not send this request again.
    fn syncfs(&self, reply: Reply<kind::Empty>) {
        reply.error(Errno::NOSYS);
    }

    /// Writes `line` to the operator's log.
    fn report(&self, line: &str) {}

    /// Looks up a name. An answer with the attributes of inode 0 means that there is no such name;
    /// the kernel may cache that answer.
    fn lookup(&self, parent: Node, name: Vec<u8>, reply: Reply<kind::Entry>);

    /// Called when the kernel forgets `answers` answers that named the inode.
    fn forget(&self, ino: Node, answers: u64) {}

    fn getattr(&self, ino: Node, reply: Reply<kind::Attr>);

    fn setattr(&self, asker: Asker, ino: Node, changes: Changes, reply: Reply<kind::Attr>) {
        reply.error(Errno::NOSYS);
    }

    fn readlink(&self, ino: Node, reply: Reply<kind::Data>) {
        reply.error(Errno::NOSYS);
    }

    fn mknod(&self, asker: Asker, new: NewName, rdev: u32, reply: Reply<kind::Entry>) {
        reply.error(Errno::NOSYS);
    }

    fn mkdir(&self, asker: Asker, new: NewName, reply: Reply<kind::Entry>) {
        reply.error(Errno::NOSYS);
    }

    fn unlink(&self, parent: Node, name: Vec<u8>, reply: Reply<kind::Empty>) {
        reply.error(Errno::NOSYS);
    }

    fn rmdir(&self, parent: Node, name: Vec<u8>, reply: Reply<kind::Empty>) {
        reply.error(Errno::NOSYS);
    }

    fn symlink(
        &self,
        asker: Asker,
        parent: Node,
        name: Vec<u8>,
        target: Vec<u8>,
        reply: Reply<kind::Entry>,
    ) {
        reply.error(Errno::NOSYS);
    }

    fn rename(
        &self,
        asker: Asker,
        from: (Node, Vec<u8>),
        to: (Node, Vec<u8>),
        flags: RenameFlags,
        reply: Reply<kind::Empty>,
    ) {
        reply.error(Errno::NOSYS);
    }

    fn link(&self, ino: Node, parent: Node, name: Vec<u8>, reply: Reply<kind::Entry>) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a file. After the answer "not implemented" a kernel with `FUSE_NO_OPEN_SUPPORT` sends
    /// no opens and closes, and keeps its cached pages of a file when a program opens the file.
    fn open(&self, ino: Node, reply: Reply<kind::Open>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file and opens it. After the answer "not implemented", the kernel sends
    /// [`Operations::mknod`] and then an open instead.
    fn create(&self, asker: Asker, new: NewName, reply: Reply<kind::Create>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file without a name in the directory, and opens it (`O_TMPFILE`); the name in `new`
    /// is ignored. Linux 6.2 and later send this.
    fn create_unnamed(&self, asker: Asker, new: NewName, reply: Reply<kind::Create>) {
        reply.error(Errno::NOSYS);
    }

    /// Reads from a file. `flags` are the flags of the open file.
    fn read(&self, ino: Node, offset: u64, size: u32, flags: OFlags, reply: Reply<kind::Data>);

    #[allow(clippy::too_many_arguments)]
    fn write(
        &self,
        asker: Asker,
        ino: Node,
        offset: u64,
        data: &[u8],
        write_flags: u32,
        flags: OFlags,
        reply: Reply<kind::Write>,
    ) {
        reply.error(Errno::NOSYS);
    }

    fn flush(&self, ino: Node, reply: Reply<kind::Empty>) {
        // After the answer "not implemented" the kernel does not send this request again.
        reply.error(Errno::NOSYS);
    }

    fn release(&self, ino: Node, reply: Reply<kind::Empty>) {
        reply.ok();
    }

    fn fsync(&self, ino: Node, datasync: bool, reply: Reply<kind::Empty>) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a directory. The answer has a handle, which the kernel repeats in each request to list
    /// this directory.
    fn opendir(&self, ino: Node, flags: OFlags, reply: Reply<kind::Open>) {
        reply.opened(Handle(0), 0);
    }

    fn readdir(&self, ino: Node, handle: Handle, offset: u64, reply: Reply<kind::List>) {
        reply.error(Errno::NOSYS);
    }

    fn readdirplus(&self, ino: Node, handle: Handle, offset: u64, reply: Reply<kind::ListPlus>) {
        reply.error(Errno::NOSYS);
    }

    fn fsyncdir(&self, ino: Node, datasync: bool, reply: Reply<kind::Empty>) {
        reply.error(Errno::NOSYS);
    }

    fn statfs(&self, reply: Reply<kind::Statfs>);

    fn setxattr(
        &self,
        asker: Asker,
        ino: Node,
        name: Vec<u8>,
        value: Vec<u8>,
        flags: i32,
        reply: Reply<kind::Empty>,
    ) {
        reply.error(Errno::NOSYS);
    }

    fn getxattr(
        &self,
        asker: Asker,
        ino: Node,
        name: Vec<u8>,
        size: u32,
        reply: Reply<kind::Xattr>,
    ) {
        reply.error(Errno::NOSYS);
    }

    fn listxattr(&self, asker: Asker, ino: Node, size: u32, reply: Reply<kind::Xattr>) {
        reply.error(Errno::NOSYS);
    }

    fn removexattr(&self, ino: Node, name: Vec<u8>, reply: Reply<kind::Empty>) {
        reply.error(Errno::NOSYS);
    }

    fn fallocate(
        &self,
        asker: Asker,
        ino: Node,
        offset: u64,
        length: u64,
        mode: i32,
        reply: Reply<kind::Empty>,
    ) {
        reply.error(Errno::NOSYS);
    }

    fn lseek(&self, ino: Node, offset: i64, whence: i32, reply: Reply<kind::Seek>) {
        reply.error(Errno::NOSYS);
    }

    fn copy_file_range(
        &self,
        asker: Asker,
        from: (Node, u64),
        to: (Node, u64),
        length: u64,
        reply: Reply<kind::Write>,
    ) {
        reply.error(Errno::NOSYS);
    }
}
