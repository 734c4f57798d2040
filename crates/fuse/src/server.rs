//! The callbacks of the kernel's FUSE driver.
//!
//! One thread reads requests. Each callback copies its arguments (payload into pages, checksummed)
//! and submits one task to the engine. A task without device I/O is answered before `submit`
//! returns, on the same thread; any other is answered by the code that completes it.
//!
//! Invariant: no callback panics, whatever the kernel sends. See [`crate::serve`].
//!
//! The kernel, not this file, does permission checks, the sticky bit (`default_permissions`) and
//! access lists, advisory locks, page cache, `O_APPEND`, `O_SYNC` and `O_DSYNC` (it sends an fsync
//! after the write, except with `async_dio`). What a mount cannot do, and what to use instead, is
//! in `docs/mounting.md`.

use crate::convert::{attributes, errno, file_type, generation, ino, kind_of_mode, node, time_in};
use crate::endpoint::MAX_WRITE;
use crate::latency::Op;
use crate::ops::{Call, Caller};
use crate::report;
use crate::serve::{FuseServer, sized};
use furrow_fs::{Allocate, Kind, NewNode, RenameMode, Seek, SetAttr, WriteData, XattrMode};
use furrow_zone::ErrorKind;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

/// Most background requests of the kernel, such as read-ahead.
const MAX_BACKGROUND: u16 = 64;
/// Entries fetched at a time.
const LISTING: usize = 128;
const LISTING_PLUS: usize = 32;
/// Offset 1 follows `.`, 2 follows `..`; an entry's cookie is shifted by this.
pub(crate) const DOTS: u64 = 2;

/// The inode that `req` asks to make.
fn new(req: &Request, kind: Kind, mode: u32, umask: u32) -> NewNode {
    let (mode, umask) = ((mode & 0o7777) as u16, (umask & 0o777) as u16);
    NewNode { kind, mode, umask, uid: req.uid(), gid: req.gid(), ..NewNode::file() }
}

/// Modes of fallocate(2).
const FALLOC_KEEP_SIZE: i32 = 1;
const FALLOC_PUNCH: i32 = 2 | FALLOC_KEEP_SIZE;
const FALLOC_ZERO: i32 = 16;
const FALLOC_ZERO_KEEP_SIZE: i32 = FALLOC_ZERO | FALLOC_KEEP_SIZE;
/// Modes of lseek(2) that reach a file system.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// Flags of setxattr(2).
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

/// Whether a write with these `flags` of its file (or request: `RWF_DSYNC`) is direct and must be
/// durable when it is answered. After an asynchronous write the kernel sends no fsync.
fn is_durable_direct(flags: OpenFlags) -> bool {
    let flags = OFlags::from_bits_retain(flags.0 as u32);
    flags.contains(OFlags::DIRECT) && flags.intersects(OFlags::DSYNC | OFlags::SYNC)
}

/// Converts the kernel's inode number, or answers ESTALE.
macro_rules! known {
    ($node:expr, $reply:expr) => {
        match ino($node) {
            Some(ino) => ino,
            None => return $reply.error(Errno::ESTALE),
        }
    };
}

/// An entry that means: there is no such name, which may be cached for the TTL.
fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for FuseServer {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Features that this kernel lacks stay off. Only KILLPRIV_V2 matters for correctness:
        // without it the kernel clears set-id bits itself.
        for wish in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            // Avoids a getxattr(security.capability) per write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            // File handles: an inode that the kernel has forgotten is looked up by number.
            InitFlags::FUSE_EXPORT_SUPPORT,
            // Access lists: the kernel checks them, and leaves the umask to the server, which knows
            // whether a directory has a default list.
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ] {
            let _ = config.add_capabilities(wish);
        }
        if self.shared.async_dio {
            let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        }
        if self.shared.writeback_cache {
            config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).map_err(|_| {
                std::io::Error::other("this kernel has no write-back cache: leave the option out")
            })?;
        }
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        // The kernel sends no forgets at the end of a mount.
        let pins = self.shared.take_pins();
        let shared = self.shared.clone();
        let done = self.port.try_call(move |_, fs| {
            let fs = fs.clone();
            async move {
                for ino in pins {
                    if let Err(error) = fs.release(ino).await {
                        (shared.log)(&error.at(format!("inode {ino}")).to_string());
                    }
                }
            }
        });
        if done.is_err() {
            (self.shared.log)("the engine stopped before the mount ended");
        }
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.begin(Op::Lookup);
        let parent = known!(parent, reply);
        let name = name.as_bytes().to_vec();
        self.run(
            reply,
            move |call| async move {
                match call.lookup(parent, &name).await {
                    Ok(attr) => Ok(Some(attr)),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error),
                }
            },
            |reply, found, shared| match found {
                Some(attr) => reply.entry(&shared.ttl, &attributes(&attr), generation(&attr)),
                None => reply.entry(&shared.ttl, &absent(), Generation(0)),
            },
        );
    }

    fn forget(&self, _req: &Request, ino: INodeNo, _nlookup: u64) {
        self.forgotten(ino);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.begin(Op::Getattr);
        let ino = known!(ino, reply);
        self.run(
            reply,
            move |call| async move { call.fs.getattr(ino).await },
            |reply, attr, shared| reply.attr(&shared.ttl, &attributes(&attr)),
        );
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
        self.begin(Op::Setattr);
        let ino = known!(ino, reply);
        let who = Caller::of(req);
        self.run(
            reply,
            move |call| async move {
                let time = |time: TimeOrNow| match time {
                    TimeOrNow::SpecificTime(at) => time_in(at),
                    TimeOrNow::Now => call.now(),
                };
                let changes = SetAttr {
                    mode: mode.map(|mode| (mode & 0o7777) as u16),
                    uid,
                    gid,
                    size,
                    atime: atime.map(time),
                    mtime: mtime.map(time),
                    // Only a kernel that caches writes keeps this time itself.
                    ctime: ctime.map(time_in),
                };
                call.setattr(ino, changes, who).await
            },
            |reply, attr, shared| reply.attr(&shared.ttl, &attributes(&attr)),
        );
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.begin(Op::Readlink);
        let ino = known!(ino, reply);
        self.run(
            reply,
            move |call| async move { call.fs.readlink(ino).await },
            |reply, target, _| reply.data(&target),
        );
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
        self.begin(Op::Create);
        let parent = known!(parent, reply);
        let Some(kind) = kind_of_mode(mode) else { return reply.error(Errno::EINVAL) };
        let (name, new) =
            (name.as_bytes().to_vec(), NewNode { rdev, ..new(req, kind, mode, umask) });
        self.entry(reply, move |call| async move { call.create(parent, &name, new).await });
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
        self.begin(Op::Mkdir);
        let parent = known!(parent, reply);
        let (name, new) = (name.as_bytes().to_vec(), new(req, Kind::Directory, mode, umask));
        self.entry(reply, move |call| async move { call.create(parent, &name, new).await });
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.begin(Op::Unlink);
        let parent = known!(parent, reply);
        let name = name.as_bytes().to_vec();
        self.empty(reply, move |call| async move { call.unlink(parent, &name).await });
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.begin(Op::Rmdir);
        let parent = known!(parent, reply);
        let name = name.as_bytes().to_vec();
        self.empty(reply, move |call| async move { call.rmdir(parent, &name).await });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.begin(Op::Symlink);
        let parent = known!(parent, reply);
        let target = target.as_os_str().as_bytes().to_vec();
        let new = NewNode { target, ..new(req, Kind::Symlink, 0o777, 0) };
        let name = name.as_bytes().to_vec();
        self.entry(reply, move |call| async move { call.create(parent, &name, new).await });
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
        self.begin(Op::Rename);
        let (from, to) = (known!(parent, reply), known!(newparent, reply));
        let mode = if flags.is_empty() {
            RenameMode::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else {
            // RENAME_WHITEOUT serves overlay file systems.
            return reply.error(Errno::EINVAL);
        };
        let (name, newname) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec());
        self.empty(reply, move |call| async move {
            call.rename((from, &name), (to, &newname), mode).await
        });
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.begin(Op::Link);
        let (ino, parent) = (known!(ino, reply), known!(newparent, reply));
        let name = newname.as_bytes().to_vec();
        self.entry(reply, move |call| async move { call.fs.link(ino, parent, &name).await });
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.begin(Op::Open);
        let ino = known!(ino, reply);
        self.run(
            reply,
            move |call| async move { call.fs.open(ino).await },
            // Every change goes through this kernel, so its cache stays correct.
            |reply, _, _| reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
        );
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
        self.begin(Op::Create);
        let parent = known!(parent, reply);
        let (name, new) = (name.as_bytes().to_vec(), new(req, Kind::File, mode, umask));
        self.run(
            reply,
            move |call| async move {
                let attr = call.create(parent, &name, new).await?;
                call.fs.open(attr.ino).await
            },
            |reply, attr, shared| {
                let (fh, flags) = (FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
                reply.created(&shared.ttl, &attributes(&attr), generation(&attr), fh, flags);
            },
        );
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
        self.begin(Op::Read);
        let ino = known!(ino, reply);
        self.run(
            reply,
            move |call| async move { call.fs.read(ino, offset, size as usize).await },
            |reply, data, _| {
                let mut pieces = data.chunks();
                match (pieces.next(), pieces.next()) {
                    (None, _) => reply.data(&[]),
                    (Some(only), None) => reply.data(only),
                    // fuser takes a single slice.
                    (Some(_), Some(_)) => {
                        let mut whole = Vec::with_capacity(data.len());
                        data.chunks().for_each(|piece| whole.extend_from_slice(piece));
                        reply.data(&whole);
                    }
                }
            },
        );
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
        self.begin(Op::Write);
        let ino = known!(ino, reply);
        let sync = self.shared.async_dio && is_durable_direct(flags);
        let who = Caller { privileged: false, ..Caller::of(req) };
        let strip = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let size = data.len() as u32;
        // Of what it has cached the kernel knows the times, and sends them.
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let data = WriteData::copy(&self.pool, offset, data)
            .keeping_times(self.shared.writeback_cache && cached);
        self.run(
            reply,
            move |call| async move {
                if strip {
                    call.strip_set_id(ino, who).await?;
                }
                call.fs.write(ino, data).await?;
                if sync { call.fsync(ino, true).await } else { Ok(()) }
            },
            move |reply, (), _| reply.written(size),
        );
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // "Not implemented" makes the kernel stop sending this. Errors of a write are reported by
        // the write itself or by fsync.
        reply.error(Errno::ENOSYS);
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
        self.begin(Op::Release);
        let ino = known!(ino, reply);
        self.empty(reply, move |call| async move { call.fs.release(ino).await });
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.begin(Op::Fsync);
        let ino = known!(ino, reply);
        self.empty(reply, move |call| async move { call.fsync(ino, datasync).await });
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // A listing needs no state: cookies stay valid, and a removed directory lives while the
        // kernel refers to it.
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.begin(Op::Readdir);
        let ino = known!(ino, reply);
        let shared = self.shared.clone();
        self.submit(move |rt, fs| {
            let call = Call { rt: rt.clone(), fs: fs.clone(), shared };
            rt.run_now(async move {
                let listed = call
                    .list(ino, offset, LISTING, |entry| {
                        reply.add(node(entry.ino), entry.offset, file_type(entry.kind), entry.name)
                    })
                    .await;
                match listed {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(errno(&error)),
                }
            });
        });
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.begin(Op::Readdir);
        let ino = known!(ino, reply);
        let shared = self.shared.clone();
        self.submit(move |rt, fs| {
            let call = Call { rt: rt.clone(), fs: fs.clone(), shared };
            rt.run_now(async move {
                let ttl = call.shared.ttl;
                let listed = call
                    .list_plus(ino, offset, LISTING_PLUS, |name, offset, attr| {
                        let (ino, known) = (node(attr.ino), attributes(attr));
                        reply.add(
                            ino,
                            offset,
                            OsStr::from_bytes(name),
                            &ttl,
                            &known,
                            generation(attr),
                        )
                    })
                    .await;
                match listed {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(errno(&error)),
                }
            });
        });
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.begin(Op::Fsync);
        let ino = known!(ino, reply);
        self.empty(reply, move |call| async move { call.fsync(ino, datasync).await });
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.begin(Op::Statfs);
        self.run(
            reply,
            move |call| async move { Ok(call.fs.statfs()) },
            |reply, s, _| {
                reply.statfs(
                    s.blocks,
                    s.blocks_free,
                    s.blocks_available,
                    s.inodes,
                    s.inodes_free,
                    s.block_size,
                    s.name_max,
                    s.block_size,
                );
            },
        );
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
        self.begin(Op::Xattr);
        let ino = known!(ino, reply);
        let mode = match flags {
            0 => XattrMode::Set,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        let who = Caller::of(req);
        self.empty(reply, move |call| async move {
            call.set_xattr(ino, &name, &value, mode, who).await
        });
    }

    fn getxattr(&self, req: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.begin(Op::Xattr);
        let ino = known!(node, reply);
        if name.as_bytes().starts_with(report::PREFIX) {
            return self.question(ino, name, size, req.uid(), reply);
        }
        let name = name.as_bytes().to_vec();
        self.run(
            reply,
            move |call| async move { call.fs.getxattr(ino, &name).await },
            move |reply, value: Vec<u8>, _| sized(reply, &value, size),
        );
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.begin(Op::Xattr);
        let ino = known!(ino, reply);
        // Control attributes are not listed, so that copying tools ignore them.
        self.run(
            reply,
            move |call| async move { call.fs.listxattr(ino).await },
            move |reply, names: Vec<Vec<u8>>, _| {
                let ended = names.into_iter().flat_map(|name| name.into_iter().chain([0]));
                sized(reply, &ended.collect::<Vec<u8>>(), size);
            },
        );
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.begin(Op::Xattr);
        let ino = known!(ino, reply);
        let name = name.as_bytes().to_vec();
        self.empty(reply, move |call| async move { call.fs.removexattr(ino, &name).await });
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
        self.begin(Op::Allocate);
        let ino = known!(ino, reply);
        let what = match mode {
            0 => Allocate::Extend,
            FALLOC_KEEP_SIZE => Allocate::KeepSize,
            FALLOC_PUNCH => Allocate::Punch,
            FALLOC_ZERO => Allocate::Zero,
            FALLOC_ZERO_KEEP_SIZE => Allocate::ZeroKeepSize,
            // Collapsing and inserting ranges, and modes that this version does not know.
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let who = Caller::of(req);
        self.empty(reply, move |call| async move {
            if !who.privileged {
                call.strip_set_id(ino, who).await?;
            }
            call.fs.fallocate(ino, what, offset, length).await
        });
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
        // The kernel sends this request before the dirty pages of the file, so the engine would
        // report a hole where data waits in the kernel's cache. After the answer ENOSYS the kernel
        // no longer asks: it reports the whole file as data.
        if self.shared.writeback_cache {
            return reply.error(Errno::ENOSYS);
        }
        self.begin(Op::Seek);
        let ino = known!(ino, reply);
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.run(
            reply,
            move |call| async move { call.fs.seek(ino, offset, what).await },
            |reply, found, _| match found.and_then(|at| i64::try_from(at).ok()) {
                Some(at) => reply.offset(at),
                None => reply.error(Errno::ENXIO),
            },
        );
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
        self.begin(Op::Copy);
        let (from, to) = (known!(ino_in, reply), known!(ino_out, reply));
        let who = Caller::of(req);
        self.run(
            reply,
            move |call| async move {
                if !who.privileged {
                    call.strip_set_id(to, who).await?;
                }
                call.fs.copy_range((from, offset_in), (to, offset_out), len).await
            },
            |reply, copied, _| reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
        );
    }
}
