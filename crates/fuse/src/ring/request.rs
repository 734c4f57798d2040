//! From a request in an entry of a ring to the server.
//!
//! Invariant: whatever is in the entry, nothing panics; a request that makes no sense is answered
//! EINVAL, one that is not known ENOSYS.

#![allow(unsafe_code, reason = "the payload is memory that the kernel shares")]

use super::answer::{Answer, Outbox};
use super::wire::{self, Header, RequestHeader, op, valid};
use crate::operations::{Asker, Changes, NewName, Operations, When};
use crate::reply::Reply;
use furrow_fs::Time;
use fuser::{Errno, FileHandle, INodeNo, OpenFlags, RenameFlags, WriteFlags};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Longest target of a symbolic link, in bytes.
const TARGET: usize = 4095;

/// Passes the request that has come to `entry` to `server`. Returns its number.
pub(crate) fn serve(server: &impl Operations, outbox: &Arc<Outbox>, entry: u16) -> u64 {
    let header = outbox.header(entry);
    let request = known::<RequestHeader>(&header.in_out);
    // An answer has as many bytes of payload as the request says.
    let limit = match request.op {
        op::READ | op::READDIR | op::READDIRPLUS => known::<wire::Transfer>(&header.op).size,
        op::GETXATTR | op::LISTXATTR => known::<wire::Xattr>(&header.op).size,
        op::READLINK => TARGET as u32,
        _ => 0,
    };
    let answer = Answer::new(outbox, entry, limit as usize);
    let length = header.payload as usize;
    if request.op == op::WRITE {
        // SAFETY: the request has come, and its answer has no payload.
        let data = unsafe { outbox.payload(entry, length) };
        write(server, &request, &header, data, answer);
    } else {
        // SAFETY: the request has come, and the answer is not passed on yet.
        let payload = unsafe { outbox.payload(entry, length) }.to_vec();
        pass(server, &request, &header, payload, answer);
    }
    request.unique
}

/// The structure at the beginning of `bytes`, which are always enough.
fn known<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8; 128]) -> T {
    const { assert!(size_of::<T>() <= 128) };
    T::read_from_prefix(bytes).expect("invariant: 128 bytes hold any of them").0
}

fn asker(request: &RequestHeader) -> Asker {
    Asker { uid: request.uid, gid: request.gid, thread: request.thread }
}

fn write(
    server: &impl Operations,
    request: &RequestHeader,
    header: &Header,
    data: &[u8],
    answer: Answer,
) {
    let write = known::<wire::Transfer>(&header.op);
    if write.size as usize != data.len() {
        return answer.error(Errno::EINVAL);
    }
    server.write(
        asker(request),
        INodeNo(request.node),
        write.offset,
        data,
        WriteFlags::from_bits_retain(write.flags),
        OpenFlags(write.file_flags),
        Reply::Ring(answer),
    );
}

/// Names and values of a request, one after the other, each name ended by a zero.
struct Names(Vec<u8>);

impl Names {
    /// The next name; `None` if it has no end, or is empty.
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
    ($names:expr, $answer:expr) => {
        match $names.next() {
            Some(name) => name,
            None => return $answer.error(Errno::EINVAL),
        }
    };
}

fn pass(
    server: &impl Operations,
    request: &RequestHeader,
    header: &Header,
    payload: Vec<u8>,
    answer: Answer,
) {
    let (node, asker) = (INodeNo(request.node), asker(request));
    let mut names = Names(payload);
    match request.op {
        op::LOOKUP => server.lookup(node, name!(names, answer), Reply::Ring(answer)),
        op::GETATTR => server.getattr(node, Reply::Ring(answer)),
        op::SETATTR => {
            let set = known::<wire::SetAttributes>(&header.op);
            server.setattr(asker, node, changes(&set), Reply::Ring(answer));
        }
        op::READLINK => server.readlink(node, Reply::Ring(answer)),
        op::SYMLINK => {
            let (name, target) = (name!(names, answer), name!(names, answer));
            server.symlink(asker, node, name, target, Reply::Ring(answer));
        }
        op::MKNOD => {
            let new = known::<wire::NewDevice>(&header.op);
            let name = name!(names, answer);
            let new_name = NewName { parent: node, name, mode: new.mode, umask: new.umask };
            server.mknod(asker, new_name, new.device, Reply::Ring(answer));
        }
        op::MKDIR => {
            let new = known::<wire::NewDirectory>(&header.op);
            let name = name!(names, answer);
            let new = NewName { parent: node, name, mode: new.mode, umask: new.umask };
            server.mkdir(asker, new, Reply::Ring(answer));
        }
        op::CREATE => {
            let new = known::<wire::NewFile>(&header.op);
            let name = name!(names, answer);
            let new = NewName { parent: node, name, mode: new.mode, umask: new.umask };
            server.create(asker, new, Reply::Ring(answer));
        }
        op::UNLINK => server.unlink(node, name!(names, answer), Reply::Ring(answer)),
        op::RMDIR => server.rmdir(node, name!(names, answer), Reply::Ring(answer)),
        op::RENAME | op::RENAME2 => {
            let rename = known::<wire::Rename>(&header.op);
            let flags = if request.op == op::RENAME { 0 } else { rename.flags };
            let (from, to) = (name!(names, answer), name!(names, answer));
            let to = (INodeNo(rename.parent), to);
            let flags = RenameFlags::from_bits_retain(flags);
            server.rename((node, from), to, flags, Reply::Ring(answer));
        }
        op::LINK => {
            let ino = known::<u64>(&header.op);
            server.link(INodeNo(ino), node, name!(names, answer), Reply::Ring(answer));
        }
        op::OPEN => server.open(node, Reply::Ring(answer)),
        op::OPENDIR => {
            let flags = OpenFlags(known::<wire::Open>(&header.op).flags as i32);
            server.opendir(node, flags, Reply::Ring(answer));
        }
        op::READ => {
            let read = known::<wire::Transfer>(&header.op);
            let flags = OpenFlags(read.file_flags);
            server.read(node, read.offset, read.size, flags, Reply::Ring(answer));
        }
        op::READDIR => {
            let read = known::<wire::Transfer>(&header.op);
            let handle = FileHandle(read.handle);
            server.readdir(node, handle, read.offset, Reply::Ring(answer));
        }
        op::READDIRPLUS => {
            let read = known::<wire::Transfer>(&header.op);
            let handle = FileHandle(read.handle);
            server.readdirplus(node, handle, read.offset, Reply::Ring(answer));
        }
        op::STATFS => server.statfs(Reply::Ring(answer)),
        op::FLUSH => server.flush(node, Reply::Ring(answer)),
        op::RELEASE => server.release(node, Reply::Ring(answer)),
        op::RELEASEDIR => answer.send(&()),
        op::FSYNC | op::FSYNCDIR => {
            let data_only = known::<wire::Fsync>(&header.op).flags & wire::DATA_ONLY != 0;
            match request.op {
                op::FSYNC => server.fsync(node, data_only, Reply::Ring(answer)),
                _ => server.fsyncdir(node, data_only, Reply::Ring(answer)),
            }
        }
        op::SETXATTR => {
            let set = known::<wire::Xattr>(&header.op);
            let (name, value) = (name!(names, answer), names.0);
            if value.len() != set.size as usize {
                return answer.error(Errno::EINVAL);
            }
            server.setxattr(asker, node, name, value, set.flags, Reply::Ring(answer));
        }
        op::GETXATTR => {
            let get = known::<wire::Xattr>(&header.op);
            let name = name!(names, answer);
            server.getxattr(asker, node, name, get.size, Reply::Ring(answer));
        }
        op::LISTXATTR => {
            let list = known::<wire::Xattr>(&header.op);
            server.listxattr(asker, node, list.size, Reply::Ring(answer));
        }
        op::REMOVEXATTR => server.removexattr(node, name!(names, answer), Reply::Ring(answer)),
        op::FALLOCATE => {
            let range = known::<wire::Allocate>(&header.op);
            let (offset, length, mode) = (range.offset, range.length, range.mode);
            server.fallocate(asker, node, offset, length, mode, Reply::Ring(answer));
        }
        op::LSEEK => {
            let seek = known::<wire::Lseek>(&header.op);
            server.lseek(node, seek.offset, seek.whence, Reply::Ring(answer));
        }
        op::COPY_FILE_RANGE => {
            let copy = known::<wire::Copy>(&header.op);
            let (from, to) = ((node, copy.offset), (INodeNo(copy.to), copy.to_offset));
            server.copy_file_range(asker, from, to, copy.length, Reply::Ring(answer));
        }
        op::IOCTL => answer.error(Errno::ENOTTY),
        _ => answer.error(Errno::ENOSYS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::Null;
    use std::time::Duration;
    use zerocopy::{FromZeros as _, IntoBytes as _};

    const PAYLOAD: usize = 8192;

    fn header(op: u32, payload: usize) -> Header {
        let mut header = Header::new_zeroed();
        let (node, unique) = (1, 99);
        let (length, uid, gid, thread, padding) = (40, 0, 0, 0, 0);
        let request = RequestHeader { length, op, unique, node, uid, gid, thread, padding };
        header.in_out[..40].copy_from_slice(request.as_bytes());
        header.payload = payload as u32;
        header
    }

    /// The errno with which the server that does nothing answers.
    fn answered(header: &Header, payload: &[u8]) -> i32 {
        let outbox = Arc::new(Outbox::new(1, PAYLOAD).unwrap());
        outbox.put(0, header, payload);
        assert_eq!(serve(&Null::new(Duration::ZERO), &outbox, 0), 99);
        let mut given = Vec::new();
        outbox.take(&mut given);
        assert_eq!(given.len(), 1, "answered once");
        outbox.write(&given[0], 99);
        given[0].errno
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let (invalid, unknown) = (Errno::EINVAL.code(), Errno::ENOSYS.code());
        assert_eq!(answered(&header(op::UNLINK, 5), b"name\0"), 0);
        assert_eq!(answered(&header(op::UNLINK, 4), b"name"), invalid, "a name without an end");
        assert_eq!(answered(&header(op::UNLINK, 1), b"\0"), invalid, "no name");
        assert_eq!(answered(&header(op::RENAME2, 5), b"name\0"), invalid, "one name of two");
        assert_eq!(answered(&header(op::WRITE, 5), b"bytes"), invalid, "0 bytes announced");
        assert_eq!(answered(&header(1000, 0), b""), unknown);
    }

    #[test]
    fn whatever_is_in_an_entry_is_answered_once() {
        let mut state = 7u64;
        let mut noise = |into: &mut [u8]| {
            for byte in into {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
        };
        for round in 0..200 {
            for op in 0..64 {
                let mut payload = [0; 64];
                noise(&mut payload);
                let mut header = header(op, [0, 7, 64, PAYLOAD, usize::MAX][round % 5]);
                noise(&mut header.op);
                answered(&header, &payload);
            }
        }
    }
}
