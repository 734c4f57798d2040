//! Decodes requests of the kernel and passes them to the server, for every transport.
//!
//! Invariant: nothing panics, whatever the kernel sends. The answer to a malformed request is
//! EINVAL, to an unknown request ENOSYS.

use crate::operations::{Asker, Changes, NewName, Operations, When};
use crate::reply::To;
use crate::wire::{self, Handle, Node, RequestHeader, op, valid};
use furrow_fs::Time;
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Longest target of a symbolic link, in bytes.
const TARGET: usize = 4095;
/// Size in bytes of the buffer for a request's structure; the longest structure fits.
pub(crate) const ARGUMENT: usize = 128;

/// A request without its names and data.
pub(crate) struct Request {
    pub header: RequestHeader,
    /// The request's structure, such as `struct fuse_open_in`, followed by zeros.
    pub argument: [u8; ARGUMENT],
}

impl Request {
    /// Maximum number of bytes of payload that the request allows in its answer.
    pub(crate) fn limit(&self) -> usize {
        match self.header.op {
            op::READ | op::READDIR | op::READDIRPLUS => {
                self.known::<wire::Transfer>().size as usize
            }
            op::GETXATTR | op::LISTXATTR => self.known::<wire::Xattr>().size as usize,
            op::READLINK => TARGET,
            _ => 0,
        }
    }

    /// The request's structure, as type `T`.
    fn known<T: FromBytes + KnownLayout + Immutable>(&self) -> T {
        const { assert!(size_of::<T>() <= ARGUMENT) };
        T::read_from_prefix(&self.argument).expect("invariant: there is room for any of them").0
    }

    fn asker(&self) -> Asker {
        let header = &self.header;
        Asker { uid: header.uid, gid: header.gid, thread: header.thread }
    }

    /// Passes a WRITE of `data` to `server`.
    pub(crate) fn write(&self, server: &impl Operations, data: &[u8], to: To) {
        let write = self.known::<wire::Transfer>();
        if write.size as usize != data.len() {
            return to.error(Errno::INVAL);
        }
        let (node, flags) = (Node(self.header.node), flags(write.file_flags));
        server.write(self.asker(), node, write.offset, data, write.flags, flags, to.into());
    }

    /// The name and mode of the inode that a request makes.
    fn new_name(&self, name: Vec<u8>, mode: u32, umask: u32) -> NewName {
        NewName { parent: Node(self.header.node), name, mode, umask }
    }
}

/// The flags of an open file, as Linux defines them.
fn flags(of_file: i32) -> OFlags {
    OFlags::from_bits_retain(of_file as u32)
}

/// A request's names, each ending with a zero byte, and then its value, if it has one.
struct Names(Vec<u8>);

impl Names {
    /// Takes the next name; `None` if the name is empty or does not end with a zero byte.
    fn next(&mut self) -> Option<Vec<u8>> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let rest = self.0.split_off(end + 1);
        let mut name = std::mem::replace(&mut self.0, rest);
        name.pop();
        (!name.is_empty()).then_some(name)
    }
}

fn time(seconds: i64, nanoseconds: u32) -> Time {
    Time { seconds, nanoseconds }
}

fn changes(set: &wire::SetAttributes) -> Changes {
    let has = |bit: u32| set.valid & bit != 0;
    let when = |bit, now, seconds, nanos| {
        has(bit).then(|| if has(now) { When::Now } else { When::At(time(seconds, nanos)) })
    };
    Changes {
        mode: has(valid::MODE).then_some(set.mode),
        uid: has(valid::UID).then_some(set.uid),
        gid: has(valid::GID).then_some(set.gid),
        size: has(valid::SIZE).then_some(set.size),
        atime: when(valid::ATIME, valid::ATIME_NOW, set.atime, set.atime_nanos),
        mtime: when(valid::MTIME, valid::MTIME_NOW, set.mtime, set.mtime_nanos),
        ctime: has(valid::CTIME).then(|| time(set.ctime, set.ctime_nanos)),
    }
}

/// Takes the next name of the request, or answers EINVAL.
macro_rules! name {
    ($names:expr, $to:expr) => {
        match $names.next() {
            Some(name) => name,
            None => return $to.error(Errno::INVAL),
        }
    };
}

impl Request {
    /// Passes a request other than WRITE to `server`, with its names and values.
    pub(crate) fn pass(&self, server: &impl Operations, payload: Vec<u8>, to: To) {
        let (node, asker) = (Node(self.header.node), self.asker());
        let mut names = Names(payload);
        match self.header.op {
            op::LOOKUP => server.lookup(node, name!(names, to), to.into()),
            op::GETATTR => server.getattr(node, to.into()),
            op::SETATTR => {
                let set = self.known::<wire::SetAttributes>();
                server.setattr(asker, node, changes(&set), to.into());
            }
            op::READLINK => server.readlink(node, to.into()),
            op::SYMLINK => {
                let (name, target) = (name!(names, to), name!(names, to));
                server.symlink(asker, node, name, target, to.into());
            }
            op::MKNOD => {
                let new = self.known::<wire::NewDevice>();
                let name = name!(names, to);
                let made = self.new_name(name, new.mode, new.umask);
                server.mknod(asker, made, new.device, to.into());
            }
            op::MKDIR => {
                let new = self.known::<wire::NewDirectory>();
                let name = name!(names, to);
                let new = self.new_name(name, new.mode, new.umask);
                server.mkdir(asker, new, to.into());
            }
            op::CREATE => {
                let new = self.known::<wire::NewFile>();
                let name = name!(names, to);
                let new = self.new_name(name, new.mode, new.umask);
                server.create(asker, new, to.into());
            }
            op::TMPFILE => {
                let new = self.known::<wire::NewFile>();
                // The kernel sends `/` as the name of an unnamed file.
                let new = self.new_name(Vec::new(), new.mode, new.umask);
                server.create_unnamed(asker, new, to.into());
            }
            op::UNLINK => server.unlink(node, name!(names, to), to.into()),
            op::RMDIR => server.rmdir(node, name!(names, to), to.into()),
            op::RENAME | op::RENAME2 => {
                let rename = self.known::<wire::Rename>();
                let flags = if self.header.op == op::RENAME { 0 } else { rename.flags };
                let (old, new) = (name!(names, to), name!(names, to));
                let flags = RenameFlags::from_bits_retain(flags);
                server.rename(asker, (node, old), (Node(rename.parent), new), flags, to.into());
            }
            op::LINK => {
                let ino = self.known::<u64>();
                server.link(Node(ino), node, name!(names, to), to.into());
            }
            op::OPEN => server.open(node, to.into()),
            op::OPENDIR => {
                let flags = OFlags::from_bits_retain(self.known::<wire::Open>().flags);
                server.opendir(node, flags, to.into());
            }
            op::READ => {
                let read = self.known::<wire::Transfer>();
                server.read(node, read.offset, read.size, flags(read.file_flags), to.into());
            }
            op::READDIR => {
                let read = self.known::<wire::Transfer>();
                let handle = Handle(read.handle);
                server.readdir(node, handle, read.offset, to.into());
            }
            op::READDIRPLUS => {
                let read = self.known::<wire::Transfer>();
                let handle = Handle(read.handle);
                server.readdirplus(node, handle, read.offset, to.into());
            }
            op::STATFS => server.statfs(to.into()),
            op::SYNCFS => server.syncfs(to.into()),
            op::DESTROY => server.leave(to.into()),
            op::FLUSH => server.flush(node, to.into()),
            op::RELEASE => server.release(node, to.into()),
            op::RELEASEDIR => to.send(&()),
            op::FSYNC | op::FSYNCDIR => {
                let data_only = self.known::<wire::Fsync>().flags & wire::DATA_ONLY != 0;
                match self.header.op {
                    op::FSYNC => server.fsync(node, data_only, to.into()),
                    _ => server.fsyncdir(node, data_only, to.into()),
                }
            }
            op::SETXATTR => {
                let set = self.known::<wire::Xattr>();
                let (name, value) = (name!(names, to), names.0);
                if value.len() != set.size as usize {
                    return to.error(Errno::INVAL);
                }
                server.setxattr(asker, node, name, value, set.flags, to.into());
            }
            op::GETXATTR => {
                let get = self.known::<wire::Xattr>();
                let name = name!(names, to);
                server.getxattr(asker, node, name, get.size, to.into());
            }
            op::LISTXATTR => {
                let list = self.known::<wire::Xattr>();
                server.listxattr(asker, node, list.size, to.into());
            }
            op::REMOVEXATTR => server.removexattr(node, name!(names, to), to.into()),
            op::FALLOCATE => {
                let range = self.known::<wire::Allocate>();
                let (offset, length, mode) = (range.offset, range.length, range.mode);
                server.fallocate(asker, node, offset, length, mode, to.into());
            }
            op::LSEEK => {
                let seek = self.known::<wire::Lseek>();
                server.lseek(node, seek.offset, seek.whence, to.into());
            }
            op::COPY_FILE_RANGE => {
                let copy = self.known::<wire::Copy>();
                let (source, target) = ((node, copy.offset), (Node(copy.to), copy.to_offset));
                server.copy_file_range(asker, source, target, copy.length, to.into());
            }
            op::IOCTL => to.error(Errno::NOTTY),
            _ => to.error(Errno::NOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel;
    use crate::null::Null;
    use crate::wire::AnswerHeader;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::Duration;
    use zerocopy::IntoBytes as _;

    /// A message as the kernel sends it by `/dev/fuse`.
    fn message(op: u32, argument: &[u8], payload: &[u8]) -> Vec<u8> {
        let (node, unique) = (1, 99);
        let length = (size_of::<RequestHeader>() + argument.len() + payload.len()) as u32;
        let (uid, gid, thread, padding) = (0, 0, 0, 0);
        let header = RequestHeader { length, op, unique, node, uid, gid, thread, padding };
        [header.as_bytes(), argument, payload].concat()
    }

    /// The errno with which the [`Null`] server answers a message by `/dev/fuse`; `None` if there
    /// is no answer.
    fn answered(message: &[u8]) -> Option<i32> {
        let (reader, writer) = std::io::pipe().unwrap();
        let device = Arc::new(OwnedFd::from(writer));
        let passed = channel::pass(&Null::new(Duration::ZERO), &device, message);
        drop(device);
        let mut answer = Vec::new();
        (&reader).read_to_end(&mut answer).unwrap();
        if answer.is_empty() {
            return None;
        }
        passed.unwrap();
        let (header, rest) = AnswerHeader::read_from_prefix(&answer).unwrap();
        assert_eq!((header.unique, header.length as usize), (99, answer.len()), "answered once");
        assert!(header.error == 0 || rest.is_empty());
        Some(-header.error)
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let errno = |op, argument: &[u8], payload: &[u8]| answered(&message(op, argument, payload));
        let invalid = Some(Errno::INVAL.raw_os_error());
        assert_eq!(errno(op::UNLINK, b"", b"name\0"), Some(0));
        assert_eq!(errno(op::UNLINK, b"", b"name"), invalid, "a name without an end");
        assert_eq!(errno(op::UNLINK, b"", b"\0"), invalid, "no name");
        assert_eq!(errno(op::RENAME2, &[0; 16], b"name\0"), invalid, "one name of two");
        assert_eq!(errno(op::RENAME2, &[0; 15], b""), invalid, "its structure is cut off");
        assert_eq!(errno(op::WRITE, &[0; 40], b"bytes"), invalid, "0 bytes announced");
        assert_eq!(errno(1000, b"", b""), Some(Errno::NOSYS.raw_os_error()));
        assert_eq!(errno(op::FORGET, &[0; 8], b""), None);
        assert_eq!(errno(op::BATCH_FORGET, &[255; 8], &[1; 40]), None, "more than there are");
        let mut wrong = message(op::GETATTR, &[0; 16], b"");
        wrong[0] += 1;
        assert_eq!(answered(&wrong), None, "it says that it is longer");
    }

    #[test]
    fn whatever_the_kernel_sends_is_answered_once() {
        let mut state = 7u64;
        let mut noise = |into: &mut [u8]| {
            for byte in into {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
        };
        for round in 0..200 {
            for op in 0..64 {
                let mut rest = [0; 192];
                noise(&mut rest);
                let rest = &rest[..[0, 7, 40, 64, 192][round % 5]];
                let errno = answered(&message(op, rest, b""));
                let silent = [op::FORGET, op::BATCH_FORGET].contains(&op);
                assert_eq!(errno.is_none(), silent, "{op} {rest:?}");
            }
        }
    }
}
