//! Answers to requests, by the transport that the request came by.

use crate::ring::answer::Answer;
use crate::ring::wire;
use furrow_fs::ReadData;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;
use zerocopy::IntoBytes as _;

/// The answer to one request, of the kind that `C` gives on `/dev/fuse`. Given once; dropped
/// without one, it answers EIO.
pub enum Reply<C> {
    /// The request was read from `/dev/fuse`.
    Channel(C),
    /// The request came by a ring.
    Ring(Answer),
}

/// A reply that can be an error.
pub(crate) trait Fail: Send + 'static {
    fn fail(self, errno: Errno);
}

/// A reply that lists a directory.
pub(crate) trait Listing: Fail {
    /// Answers with the entries that were added; none means the end.
    fn ok(self);
}

macro_rules! fail {
    ($($channel:ty),*) => {
        $(
            impl Reply<$channel> {
                /// Answers with an error.
                pub fn error(self, errno: Errno) {
                    match self {
                        Reply::Channel(reply) => reply.error(errno),
                        Reply::Ring(answer) => answer.error(errno),
                    }
                }
            }

            impl Fail for Reply<$channel> {
                fn fail(self, errno: Errno) {
                    self.error(errno);
                }
            }

            impl From<$channel> for Reply<$channel> {
                fn from(reply: $channel) -> Self {
                    Reply::Channel(reply)
                }
            }
        )*
    };
}

fail!(ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty);
fail!(ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr);

impl Reply<ReplyEmpty> {
    /// Done.
    pub fn ok(self) {
        match self {
            Reply::Channel(reply) => reply.ok(),
            Reply::Ring(answer) => answer.send(&()),
        }
    }
}

impl Reply<ReplyEntry> {
    /// The inode of a name; the kernel may cache both for `ttl`.
    pub fn entry(self, ttl: &Duration, attr: &FileAttr, generation: Generation) {
        match self {
            Reply::Channel(reply) => reply.entry(ttl, attr, generation),
            Reply::Ring(answer) => answer.send(&wire::Entry::of(ttl, attr, generation)),
        }
    }
}

impl Reply<ReplyAttr> {
    /// Attributes, which the kernel may cache for `ttl`.
    pub fn attr(self, ttl: &Duration, attr: &FileAttr) {
        match self {
            Reply::Channel(reply) => reply.attr(ttl, attr),
            Reply::Ring(answer) => answer.send(&wire::Attributes::of(ttl, attr)),
        }
    }
}

impl Reply<ReplyOpen> {
    /// The file is open.
    pub fn opened(self, handle: FileHandle, flags: FopenFlags) {
        match self {
            Reply::Channel(reply) => reply.opened(handle, flags),
            Reply::Ring(answer) => answer.send(&wire::Opened::of(handle, flags)),
        }
    }
}

impl Reply<ReplyCreate> {
    /// The file was made, and is open.
    pub fn created(
        self,
        ttl: &Duration,
        attr: &FileAttr,
        generation: Generation,
        handle: FileHandle,
        flags: FopenFlags,
    ) {
        match self {
            Reply::Channel(reply) => reply.created(ttl, attr, generation, handle, flags),
            Reply::Ring(answer) => answer.send(&wire::Created {
                entry: wire::Entry::of(ttl, attr, generation),
                opened: wire::Opened::of(handle, flags),
            }),
        }
    }
}

impl Reply<ReplyData> {
    /// The bytes of `pieces`, one after the other: `length` altogether.
    pub fn data<'a>(self, length: usize, mut pieces: impl Iterator<Item = &'a [u8]>) {
        match self {
            Reply::Channel(reply) => {
                match (pieces.next(), pieces.next()) {
                    (None, _) => reply.data(&[]),
                    (Some(only), None) => reply.data(only),
                    // fuser takes a single slice.
                    (Some(first), Some(second)) => {
                        let mut whole = Vec::with_capacity(length);
                        let all = [first, second].into_iter().chain(pieces);
                        all.for_each(|piece| whole.extend_from_slice(piece));
                        reply.data(&whole);
                    }
                }
            }
            Reply::Ring(mut answer) => {
                for piece in pieces {
                    if !answer.add(piece) {
                        return answer.error(Errno::EIO);
                    }
                }
                answer.finish();
            }
        }
    }

    /// What was read from a file.
    pub fn pages(self, data: ReadData) {
        match self {
            Reply::Channel(_) => self.data(data.len(), data.chunks()),
            Reply::Ring(answer) => answer.pages(data),
        }
    }
}

impl Reply<ReplyWrite> {
    /// `bytes` bytes were written.
    pub fn written(self, bytes: u32) {
        match self {
            Reply::Channel(reply) => reply.written(bytes),
            Reply::Ring(answer) => answer.send(&wire::Written { bytes, padding: 0 }),
        }
    }
}

/// Space, and names, of a file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    /// In units of `block_size`.
    pub blocks: u64,
    pub blocks_free: u64,
    /// For callers without privileges.
    pub blocks_available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    /// In bytes.
    pub block_size: u32,
    /// Longest name, in bytes.
    pub name_max: u32,
}

impl Reply<ReplyStatfs> {
    /// Space, and names.
    pub fn statfs(self, space: &Space) {
        let &Space { blocks, blocks_free, blocks_available, inodes, inodes_free, .. } = space;
        let &Space { block_size, name_max, .. } = space;
        match self {
            Reply::Channel(reply) => reply.statfs(
                blocks,
                blocks_free,
                blocks_available,
                inodes,
                inodes_free,
                block_size,
                name_max,
                block_size,
            ),
            Reply::Ring(answer) => answer.send(&wire::Statfs::of(space)),
        }
    }
}

impl Reply<ReplyXattr> {
    /// Bytes that the answer would have.
    pub fn size(self, bytes: u32) {
        match self {
            Reply::Channel(reply) => reply.size(bytes),
            Reply::Ring(answer) => answer.send(&wire::Written { bytes, padding: 0 }),
        }
    }

    /// A value, or names.
    pub fn data(self, bytes: &[u8]) {
        match self {
            Reply::Channel(reply) => reply.data(bytes),
            Reply::Ring(mut answer) => match answer.add(bytes) {
                true => answer.finish(),
                false => answer.error(Errno::ERANGE),
            },
        }
    }
}

impl Reply<ReplyLseek> {
    /// The place that was found.
    pub fn offset(self, offset: i64) {
        match self {
            Reply::Channel(reply) => reply.offset(offset),
            Reply::Ring(answer) => answer.send(&offset),
        }
    }
}

impl Reply<ReplyDirectory> {
    /// Adds an entry, after which the listing goes on at `offset`. True if it has no room any more.
    pub fn add(&mut self, ino: INodeNo, offset: u64, kind: FileType, name: &OsStr) -> bool {
        match self {
            Reply::Channel(reply) => reply.add(ino, offset, kind, name),
            Reply::Ring(answer) => {
                let name = name.as_bytes();
                let entry = wire::Listed::of(ino, offset, kind, name);
                !answer.add_record(&[entry.as_bytes(), name])
            }
        }
    }
}

impl Listing for Reply<ReplyDirectory> {
    fn ok(self) {
        match self {
            Reply::Channel(reply) => reply.ok(),
            Reply::Ring(answer) => answer.finish(),
        }
    }
}

impl Reply<ReplyDirectoryPlus> {
    /// As in a listing without attributes. The kernel may cache the entry for `ttl`.
    pub fn add(
        &mut self,
        offset: u64,
        name: &OsStr,
        ttl: &Duration,
        attr: &FileAttr,
        generation: Generation,
    ) -> bool {
        match self {
            Reply::Channel(reply) => reply.add(attr.ino, offset, name, ttl, attr, generation),
            Reply::Ring(answer) => {
                let name = name.as_bytes();
                let entry = wire::Entry::of(ttl, attr, generation);
                let listed = wire::Listed::of(attr.ino, offset, attr.kind, name);
                !answer.add_record(&[entry.as_bytes(), listed.as_bytes(), name])
            }
        }
    }
}

impl Listing for Reply<ReplyDirectoryPlus> {
    fn ok(self) {
        match self {
            Reply::Channel(reply) => reply.ok(),
            Reply::Ring(answer) => answer.finish(),
        }
    }
}
