//! The kernel's interface as `include/uapi/linux/fuse.h` defines it, protocol 7.42: the requests
//! that this server supports, by `/dev/fuse` and by rings.
//!
//! All numbers are in this machine's byte order.

use crate::reply::Space;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol's major version, the minor version that this file implements, and the oldest minor
/// version that is served (Linux 5.4).
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 42;
pub(crate) const MINOR_LEAST: u32 = 31;

/// An inode, by the number that the kernel uses for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node(pub u64);

impl Node {
    /// The root directory.
    pub const ROOT: Node = Node(1);
}

/// The number that the server gave to an open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub u64);

/// Features on which kernel and server agree at the beginning (`FUSE_*` in both words of flags in
/// `struct fuse_init_in`).
pub(crate) mod feature {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags of a write (`FUSE_WRITE_*`).
pub(crate) mod write {
    /// The write comes from the page cache.
    pub const CACHE: u32 = 1 << 0;
    /// The server must clear set-id bits.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Flag: the kernel keeps its cached pages of a file when the file is opened (`FOPEN_KEEP_CACHE`).
pub(crate) const KEEP_CACHE: u32 = 1 << 1;

/// A message to the kernel that is not an answer: drop the cached pages of an inode
/// (`FUSE_NOTIFY_INVAL_INODE`).
pub(crate) const DROP_INODE: i32 = 2;

/// Commands of a ring (`enum fuse_uring_cmd`).
pub(crate) mod command {
    pub const REGISTER: u32 = 1;
    pub const COMMIT_AND_FETCH: u32 = 2;
}

/// Requests (`enum fuse_opcode`).
pub(crate) mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
}

/// Size in bytes of the structure between a request's header and its names or data.
pub(crate) fn argument(request: u32) -> usize {
    match request {
        op::FORGET => size_of::<Forget>(),
        op::BATCH_FORGET => size_of::<Forgets>(),
        op::GETATTR => size_of::<GetAttributes>(),
        op::SETATTR => size_of::<SetAttributes>(),
        op::MKNOD => size_of::<NewDevice>(),
        op::MKDIR => size_of::<NewDirectory>(),
        op::CREATE | op::TMPFILE => size_of::<NewFile>(),
        op::RENAME | op::LINK => size_of::<u64>(),
        op::RENAME2 => size_of::<Rename>(),
        op::OPEN | op::OPENDIR => size_of::<Open>(),
        op::READ | op::WRITE | op::READDIR | op::READDIRPLUS => size_of::<Transfer>(),
        op::RELEASE | op::RELEASEDIR | op::FLUSH => size_of::<Release>(),
        op::FSYNC | op::FSYNCDIR => size_of::<Fsync>(),
        op::SETXATTR | op::GETXATTR | op::LISTXATTR => size_of::<Xattr>(),
        op::FALLOCATE => size_of::<Allocate>(),
        op::LSEEK => size_of::<Lseek>(),
        op::COPY_FILE_RANGE => size_of::<Copy>(),
        _ => 0,
    }
}

/// The attributes that a SETATTR changes (`FATTR_*`).
pub(crate) mod valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
}

/// Flag: sync only the data of the file (`FUSE_FSYNC_FDATASYNC`).
pub(crate) const DATA_ONLY: u32 = 1;

/// `struct fuse_uring_cmd_req`: the content of a ring's command.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
pub(crate) struct RingCommand {
    pub flags: u64,
    /// The number of the request that is answered.
    pub unique: u64,
    pub queue: u16,
    pub padding: [u8; 6],
}

/// `struct fuse_uring_req_header`: holds a request, and then its answer.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Header {
    /// `struct fuse_in_header` or `fuse_out_header`.
    pub in_out: [u8; 128],
    /// The structure of the request, such as `struct fuse_open_in`.
    pub op: [u8; 128],
    pub flags: u64,
    pub commit: u64,
    /// Number of bytes of payload.
    pub payload: u32,
    pub padding: u32,
    pub reserved: u64,
}

/// `struct fuse_in_header`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RequestHeader {
    pub length: u32,
    pub op: u32,
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    pub thread: u32,
    pub padding: u32,
}

/// `struct fuse_out_header`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct AnswerHeader {
    pub length: u32,
    /// 0, or a negative errno.
    pub error: i32,
    pub unique: u64,
}

/// `struct fuse_init_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Offer {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    /// The lower half of the flags in [`feature`].
    pub flags: u32,
    /// The upper half of the flags, if `INIT_EXT` is in the lower half.
    pub flags2: u32,
    pub unused: [u32; 11],
}

/// `struct fuse_init_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Accepted {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    /// Granularity of times in nanoseconds.
    pub granularity: u32,
    /// Maximum number of pages of a request.
    pub max_pages: u16,
    pub map_alignment: u16,
    pub flags2: u32,
    pub max_stack_depth: u32,
    pub unused: [u32; 6],
}

/// `struct fuse_forget_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Forget {
    pub answers: u64,
}

/// `struct fuse_batch_forget_in`, which precedes the [`ForgetOne`] structures that it counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Forgets {
    pub count: u32,
    pub padding: u32,
}

/// `struct fuse_forget_one`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct ForgetOne {
    pub node: u64,
    pub answers: u64,
}

/// `struct fuse_notify_inval_inode_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct DropInode {
    pub node: u64,
    pub offset: i64,
    pub length: i64,
}

/// `struct fuse_getattr_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct GetAttributes {
    pub flags: u32,
    pub padding: u32,
    pub handle: u64,
}

/// `struct fuse_setattr_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct SetAttributes {
    /// The attributes to change, see [`valid`].
    pub valid: u32,
    pub padding: u32,
    pub handle: u64,
    pub size: u64,
    pub owner: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub atime_nanos: u32,
    pub mtime_nanos: u32,
    pub ctime_nanos: u32,
    pub mode: u32,
    pub unused: u32,
    pub uid: u32,
    pub gid: u32,
    pub unused_too: u32,
}

/// `struct fuse_mknod_in`. The structures of MKDIR ([`NewDirectory`]) and CREATE have their fields
/// in another order.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct NewDevice {
    pub mode: u32,
    pub device: u32,
    pub umask: u32,
    pub padding: u32,
}

/// `struct fuse_mkdir_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct NewDirectory {
    pub mode: u32,
    pub umask: u32,
}

/// `struct fuse_create_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct NewFile {
    pub flags: u32,
    pub mode: u32,
    pub umask: u32,
    pub open_flags: u32,
}

/// `struct fuse_rename2_in`. The structure of RENAME ends before `flags`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Rename {
    pub parent: u64,
    pub flags: u32,
    pub padding: u32,
}

/// `struct fuse_read_in`, which listings use as well, and `struct fuse_write_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Transfer {
    pub handle: u64,
    pub offset: u64,
    pub size: u32,
    /// Flags of the request.
    pub flags: u32,
    pub owner: u64,
    /// Flags of the open file.
    pub file_flags: i32,
    pub padding: u32,
}

/// `struct fuse_open_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Open {
    /// Flags of open(2).
    pub flags: u32,
    pub open_flags: u32,
}

/// `struct fuse_release_in`, and `struct fuse_flush_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Release {
    pub handle: u64,
    pub flags: [u32; 2],
    pub owner: u64,
}

/// `struct fuse_fsync_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Fsync {
    pub handle: u64,
    pub flags: u32,
    pub padding: u32,
}

/// `struct fuse_setxattr_in` without `FUSE_SETXATTR_EXT`. In GETXATTR and LISTXATTR, the flags are
/// padding.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Xattr {
    pub size: u32,
    pub flags: i32,
}

/// `struct fuse_fallocate_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Allocate {
    pub handle: u64,
    pub offset: u64,
    pub length: u64,
    pub mode: i32,
    pub padding: u32,
}

/// `struct fuse_lseek_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Lseek {
    pub handle: u64,
    pub offset: i64,
    pub whence: i32,
    pub padding: u32,
}

/// `struct fuse_copy_file_range_in`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Copy {
    pub handle: u64,
    pub offset: u64,
    pub to: u64,
    pub to_handle: u64,
    pub to_offset: u64,
    pub length: u64,
    pub flags: u64,
}

/// `struct fuse_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub atime_nanos: u32,
    pub mtime_nanos: u32,
    pub ctime_nanos: u32,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
    pub block_size: u32,
    pub flags: u32,
}

/// `struct fuse_attr_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Attributes {
    pub valid: u64,
    pub valid_nanos: u32,
    pub padding: u32,
    pub attr: Attr,
}

/// `struct fuse_entry_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Entry {
    pub node: u64,
    pub generation: u64,
    pub name_valid: u64,
    pub attr_valid: u64,
    pub name_valid_nanos: u32,
    pub attr_valid_nanos: u32,
    pub attr: Attr,
}

/// `struct fuse_open_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Opened {
    pub handle: u64,
    pub flags: u32,
    pub backing: i32,
}

/// The structures of the answer to CREATE.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Created {
    pub entry: Entry,
    pub opened: Opened,
}

/// `struct fuse_write_out`, and `struct fuse_getxattr_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Written {
    pub bytes: u32,
    pub padding: u32,
}

/// `struct fuse_statfs_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Statfs {
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub block_size: u32,
    pub name_max: u32,
    pub fragment_size: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}

/// `struct fuse_dirent` without the name. With attributes ([`Entry`]) before it, both together are
/// a `struct fuse_direntplus`. The next entry begins at a multiple of 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Listed {
    pub ino: u64,
    pub offset: u64,
    pub name_length: u32,
    pub kind: u32,
}

const _: () = {
    assert!(size_of::<RingCommand>() == 24 && size_of::<Header>() == 288);
    assert!(size_of::<RequestHeader>() == 40 && size_of::<AnswerHeader>() == 16);
    assert!(size_of::<SetAttributes>() == 88 && size_of::<NewDevice>() == 16);
    assert!(size_of::<NewDirectory>() == 8 && size_of::<NewFile>() == 16);
    assert!(size_of::<Rename>() == 16 && size_of::<Transfer>() == 40);
    assert!(size_of::<Offer>() == 64 && size_of::<Accepted>() == 64 && size_of::<Release>() == 24);
    assert!(size_of::<Forget>() == 8 && size_of::<Forgets>() == 8 && size_of::<ForgetOne>() == 16);
    assert!(size_of::<DropInode>() == 24 && size_of::<GetAttributes>() == 16);
    assert!(size_of::<Open>() == 8 && size_of::<Fsync>() == 16 && size_of::<Xattr>() == 8);
    assert!(size_of::<Allocate>() == 32 && size_of::<Lseek>() == 24 && size_of::<Copy>() == 56);
    assert!(size_of::<Attr>() == 88 && size_of::<Attributes>() == 104);
    assert!(size_of::<Entry>() == 128 && size_of::<Opened>() == 16);
    assert!(size_of::<Written>() == 8 && size_of::<Statfs>() == 80 && size_of::<Listed>() == 24);
};

impl Attributes {
    pub fn of(ttl: &Duration, attr: &Attr) -> Attributes {
        let (valid, valid_nanos) = (ttl.as_secs(), ttl.subsec_nanos());
        Attributes { valid, valid_nanos, padding: 0, attr: *attr }
    }
}

impl Entry {
    pub fn of(ttl: &Duration, attr: &Attr, generation: u64) -> Entry {
        Entry {
            node: attr.ino,
            generation,
            name_valid: ttl.as_secs(),
            attr_valid: ttl.as_secs(),
            name_valid_nanos: ttl.subsec_nanos(),
            attr_valid_nanos: ttl.subsec_nanos(),
            attr: *attr,
        }
    }
}

impl Opened {
    pub fn of(handle: Handle, flags: u32) -> Opened {
        Opened { handle: handle.0, flags, backing: 0 }
    }
}

impl Statfs {
    pub fn of(space: &Space) -> Statfs {
        Statfs {
            blocks: space.blocks,
            blocks_free: space.blocks_free,
            blocks_available: space.blocks_available,
            inodes: space.inodes,
            inodes_free: space.inodes_free,
            block_size: space.block_size,
            name_max: space.name_max,
            fragment_size: space.block_size,
            padding: 0,
            spare: [0; 6],
        }
    }
}

impl Listed {
    /// An entry of a listing; `mode` has the type of the inode.
    pub fn of(ino: u64, offset: u64, mode: u32, name: &[u8]) -> Listed {
        Listed { ino, offset, name_length: name.len() as u32, kind: mode >> 12 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_a_listing_is_typed_as_by_readdir() {
        let listed = Listed::of(7, 3, 0o120_777, b"name");
        assert_eq!((listed.ino, listed.offset, listed.name_length, listed.kind), (7, 3, 4, 10));
    }
}
