//! Carries out the requests of the kernel's FUSE driver.
//!
//! Each method copies its arguments (payload into pages, with checksums) and submits one task to
//! the engine. A task without device I/O is answered before `submit` returns, on the same thread;
//! any other task is answered when its I/O completes.
//!
//! Invariant: no method panics, whatever the kernel sends. See [`crate::decode`].
//!
//! The kernel does permission checks, the sticky bit (`default_permissions`) and access lists,
//! advisory locks, the page cache, `O_APPEND`, `O_SYNC` and `O_DSYNC` (it sends an fsync after the
//! write, except after an asynchronous direct one). `docs/use/mounting.md` says what a mount cannot
//! do, and what to use instead.

use crate::capabilities::{Agreement, choose};
use crate::channel::Notifier;
use crate::convert::{generation, ino, kind_of_mode, node, type_bits};
use crate::dispatch::{FuseServer, Shared, sized};
use crate::latency::Op;
use crate::operations::{Asker, Changes, NewName, Operations, When};
use crate::pass_on::Search;
use crate::posix::{Caller, Listed};
use crate::reply::{Reply, Space, kind};
use crate::report;
use crate::wire::{self, Handle, Node};
use furrow_fs::{
    Allocate, Attr, Fs, Ino, Kind, NewNode, RenameMode, Seek, SetAttr, WriteData, XattrMode,
};
use furrow_zone::ErrorKind;
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::FromZeros as _;

/// Number of entries that a listing fetches at a time, without and with attributes.
const LISTING: usize = 128;
const LISTING_PLUS: usize = 32;
/// Number of offsets for `.` and `..`: offset 1 follows `.`, and 2 follows `..`. The offset after
/// any other entry is its cookie plus this number.
pub(crate) const DOTS: u64 = 2;

/// The inode that a request of `asker` makes.
fn new(asker: Asker, kind: Kind, mode: u32, umask: u32) -> NewNode {
    let (mode, umask) = ((mode & 0o7777) as u16, (umask & 0o777) as u16);
    NewNode { kind, mode, umask, uid: asker.uid, gid: asker.gid, ..NewNode::file() }
}

/// The handle given out for directories that were opened with `O_NOATIME`.
const LISTS_NOATIME: Handle = Handle(1);

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

/// Whether a write is direct and must be durable when answered. `flags` are those of the open file,
/// or of the request (`RWF_DSYNC`). After an asynchronous direct write, the kernel does not send an
/// fsync, so the server syncs.
fn is_durable_direct(flags: OFlags) -> bool {
    flags.contains(OFlags::DIRECT) && flags.intersects(OFlags::DSYNC | OFlags::SYNC)
}

/// Takes the inode for the kernel's number, or answers ESTALE.
macro_rules! known {
    ($node:expr, $reply:expr) => {
        match ino($node) {
            Some(ino) => ino,
            None => return $reply.error(Errno::STALE),
        }
    };
}

/// Answers that the file with `attr` was made and opened. The caller has counted the answer
/// (`Known::told`) before.
fn made_and_opened(reply: Reply<kind::Create>, attr: &Attr, shared: &Shared) {
    let (fh, flags) = (Handle(0), wire::KEEP_CACHE);
    reply.created(&shared.ttl, &shared.attributes(attr), generation(attr), fh, flags);
}

/// Releases inodes that have lost their names: at the end of a mount the kernel sends no forgets.
async fn release(fs: Fs, shared: Arc<Shared>, pins: Vec<Ino>) {
    for ino in pins {
        if let Err(error) = fs.release(ino).await {
            (shared.log)(&error.at(format!("inode {ino}")).to_string());
        }
    }
}

/// The inode at `from`, if it is a regular file and a rename would replace something at `to`.
async fn replacing(fs: &Fs, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Option<Ino> {
    fs.lookup(to.0, to.1).await.ok()?;
    let new = fs.lookup(from.0, from.1).await.ok()?;
    (new.kind == Kind::File).then_some(new.ino)
}

impl Operations for FuseServer {
    fn init(&self, agreement: &mut Agreement) -> anyhow::Result<()> {
        choose(&self.shared, agreement)
    }

    fn connected(self: &Arc<Self>, kernel: Notifier) {
        self.connect(kernel);
    }

    fn pass_on(&self) {
        self.pass_on_all();
    }

    fn destroy(&self) {
        self.shared.kernel.end();
        let pins = self.shared.known.end();
        let shared = self.shared.clone();
        let done = self.port.try_call(move |_, fs| release(fs.clone(), shared, pins));
        if done.is_err() {
            (self.shared.log)("the engine stopped before the mount ended");
        }
    }

    fn leave(&self, reply: Reply<kind::Empty>) {
        let pins = self.shared.known.end();
        let shared = self.shared.clone();
        self.submit(move |rt, fs| {
            let fs = fs.clone();
            rt.run_now(async move {
                release(fs.clone(), shared.clone(), pins).await;
                let ended = fs.unmount().await;
                *shared.left() = Some(ended);
                reply.ok();
            });
        });
    }

    fn syncfs(&self, reply: Reply<kind::Empty>) {
        self.empty(Op::Fsync, reply, move |call| async move { call.sync().await });
    }

    fn report(&self, line: &str) {
        (self.shared.log)(line);
    }

    fn lookup(&self, parent: Node, name: Vec<u8>, reply: Reply<kind::Entry>) {
        let parent = known!(parent, reply);
        self.run(
            Op::Lookup,
            reply,
            move |call| async move {
                match call.lookup(parent, &name).await {
                    Ok(attr) => Ok(Some(attr)),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error),
                }
            },
            |reply, found, shared| match found {
                Some(attr) => {
                    shared.known.told(attr.ino);
                    reply.entry(&shared.ttl, &shared.attributes(&attr), generation(&attr));
                }
                // An answer with inode 0 says that there is no such name; the kernel may
                // cache that.
                None => reply.entry(&shared.ttl, &wire::Attr::new_zeroed(), 0),
            },
        );
    }

    fn forget(&self, ino: Node, answers: u64) {
        self.forgotten(ino, answers);
    }

    fn getattr(&self, ino: Node, reply: Reply<kind::Attr>) {
        let ino = known!(ino, reply);
        self.run(
            Op::Getattr,
            reply,
            move |call| async move { call.fs.getattr(ino).await },
            |reply, attr, shared| {
                shared.known.shown(attr.ino);
                reply.attr(&shared.ttl, &shared.attributes(&attr));
            },
        );
    }

    fn setattr(&self, asker: Asker, ino: Node, changes: Changes, reply: Reply<kind::Attr>) {
        let ino = known!(ino, reply);
        let who = Caller::of(asker);
        self.run(
            Op::Setattr,
            reply,
            move |call| async move {
                let time = |time: When| match time {
                    When::At(at) => at,
                    When::Now => call.now(),
                };
                let changes = SetAttr {
                    mode: changes.mode.map(|mode| (mode & 0o7777) as u16),
                    uid: changes.uid,
                    gid: changes.gid,
                    size: changes.size,
                    atime: changes.atime.map(time),
                    mtime: changes.mtime.map(time),
                    ctime: changes.ctime,
                };
                call.setattr(ino, changes, who).await
            },
            |reply, attr, shared| {
                shared.known.shown(attr.ino);
                reply.attr(&shared.ttl, &shared.attributes(&attr));
            },
        );
    }

    fn readlink(&self, ino: Node, reply: Reply<kind::Data>) {
        let ino = known!(ino, reply);
        self.run(
            Op::Readlink,
            reply,
            move |call| async move { call.fs.readlink(ino).await },
            |reply, target, _| reply.data(&target),
        );
    }

    fn mknod(&self, asker: Asker, made: NewName, rdev: u32, reply: Reply<kind::Entry>) {
        let parent = known!(made.parent, reply);
        let Some(kind) = kind_of_mode(made.mode) else { return reply.error(Errno::INVAL) };
        let new = NewNode { rdev, ..new(asker, kind, made.mode, made.umask) };
        self.entry(Op::Create, reply, move |call| async move {
            call.create(parent, &made.name, new).await
        });
    }

    fn mkdir(&self, asker: Asker, made: NewName, reply: Reply<kind::Entry>) {
        let parent = known!(made.parent, reply);
        let new = new(asker, Kind::Directory, made.mode, made.umask);
        self.entry(Op::Mkdir, reply, move |call| async move {
            call.create(parent, &made.name, new).await
        });
    }

    fn unlink(&self, parent: Node, name: Vec<u8>, reply: Reply<kind::Empty>) {
        let parent = known!(parent, reply);
        self.empty(Op::Unlink, reply, move |call| async move { call.unlink(parent, &name).await });
    }

    fn rmdir(&self, parent: Node, name: Vec<u8>, reply: Reply<kind::Empty>) {
        let parent = known!(parent, reply);
        self.empty(Op::Rmdir, reply, move |call| async move { call.rmdir(parent, &name).await });
    }

    fn symlink(
        &self,
        asker: Asker,
        parent: Node,
        name: Vec<u8>,
        target: Vec<u8>,
        reply: Reply<kind::Entry>,
    ) {
        let parent = known!(parent, reply);
        let new = NewNode { target, ..new(asker, Kind::Symlink, 0o777, 0) };
        self.entry(
            Op::Symlink,
            reply,
            move |call| async move { call.create(parent, &name, new).await },
        );
    }

    fn rename(
        &self,
        asker: Asker,
        (parent, name): (Node, Vec<u8>),
        (new_parent, new_name): (Node, Vec<u8>),
        flags: RenameFlags,
        reply: Reply<kind::Empty>,
    ) {
        let (from, to) = (known!(parent, reply), known!(new_parent, reply));
        let mode = if flags.is_empty() {
            RenameMode::Replace
        } else if flags == RenameFlags::NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::EXCHANGE {
            RenameMode::Exchange
        } else if flags - RenameFlags::NOREPLACE == RenameFlags::WHITEOUT {
            // The kernel has already checked that a rename with NOREPLACE replaces nothing.
            RenameMode::Whiteout { uid: asker.uid, gid: asker.gid }
        } else {
            return reply.error(Errno::INVAL);
        };
        let replaces = matches!(mode, RenameMode::Replace | RenameMode::Whiteout { .. });
        let server = self.clone();
        let rename = move |name: Vec<u8>, new_name: Vec<u8>| {
            server.empty(Op::Rename, reply, move |call| async move {
                call.rename((from, &name), (to, &new_name), mode).await
            });
        };
        if !(self.shared.writeback_cache && replaces) {
            return rename(name, new_name);
        }
        // The kernel's cache may hold content of the new file that is not written yet.
        let server = self.clone();
        self.submit(move |rt, fs| {
            let fs = fs.clone();
            rt.run_now(async move {
                match replacing(&fs, (from, &name), (to, &new_name)).await {
                    Some(ino) => server.after_passing_on(ino, move || rename(name, new_name)),
                    None => rename(name, new_name),
                }
            });
        });
    }

    fn link(&self, ino: Node, parent: Node, name: Vec<u8>, reply: Reply<kind::Entry>) {
        let (ino, parent) = (known!(ino, reply), known!(parent, reply));
        self.entry(
            Op::Link,
            reply,
            move |call| async move { call.fs.link(ino, parent, &name).await },
        );
    }

    // The engine does not count opens: a file without a name lives as long as the kernel refers to
    // it ([`Known`]).

    fn open(&self, ino: Node, reply: Reply<kind::Open>) {
        if self.shared.no_open.load(Ordering::Relaxed) {
            return reply.error(Errno::NOSYS);
        }
        let ino = known!(ino, reply);
        self.run(
            Op::Open,
            reply,
            move |call| async move { call.fs.open(ino).await },
            // The kernel keeps its cached pages: every change goes through this kernel, so they
            // stay correct.
            |reply, _, _| reply.opened(Handle(0), wire::KEEP_CACHE),
        );
    }

    fn create(&self, asker: Asker, made: NewName, reply: Reply<kind::Create>) {
        if self.shared.no_open.load(Ordering::Relaxed) {
            return reply.error(Errno::NOSYS);
        }
        let parent = known!(made.parent, reply);
        let new = new(asker, Kind::File, made.mode, made.umask);
        self.run(
            Op::Create,
            reply,
            move |call| async move {
                let attr = call.create(parent, &made.name, new).await?;
                call.fs.open(attr.ino).await
            },
            |reply, attr, shared| {
                shared.known.told(attr.ino);
                made_and_opened(reply, &attr, shared);
            },
        );
    }

    // The kernel sends a close for a file of `create_unnamed`, even with `FUSE_NO_OPEN_SUPPORT`.

    fn create_unnamed(&self, asker: Asker, made: NewName, reply: Reply<kind::Create>) {
        let directory = known!(made.parent, reply);
        let new = new(asker, Kind::File, made.mode, made.umask);
        self.run(
            Op::Create,
            reply,
            move |call| async move {
                let attr = call.create_unnamed(directory, new).await?;
                call.fs.open(attr.ino).await
            },
            |reply, attr, shared| {
                shared.known.told(attr.ino);
                // A file without a name lives until the kernel forgets it.
                shared.known.keep(attr.ino);
                made_and_opened(reply, &attr, shared);
            },
        );
    }

    fn read(&self, ino: Node, offset: u64, size: u32, flags: OFlags, reply: Reply<kind::Data>) {
        let ino = known!(ino, reply);
        let (size, noatime) = (size as usize, flags.contains(OFlags::NOATIME));
        if self.shared.async_dio && !flags.contains(OFlags::DIRECT) {
            self.shared.known.cached(ino);
        }
        self.run(
            Op::Read,
            reply,
            move |call| async move {
                match noatime {
                    true => call.fs.read_noatime(ino, offset, size).await,
                    false => call.fs.read(ino, offset, size).await,
                }
            },
            |reply, data, _| reply.pages(data),
        );
    }

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
        let ino = known!(ino, reply);
        let sync = self.shared.async_dio && is_durable_direct(flags);
        let who = Caller { privileged: false, ..Caller::of(asker) };
        let strip = write_flags & wire::write::KILL_SUIDGID != 0;
        let size = data.len() as u32;
        // The kernel keeps and sends the times itself for writes from its cache.
        let cached = write_flags & wire::write::CACHE != 0;
        let direct = self.shared.async_dio && flags.contains(OFlags::DIRECT) && !cached;
        if self.shared.async_dio && !direct {
            self.shared.known.cached(ino);
        }
        let data = WriteData::copy(&self.pool, offset, data)
            .keeping_times(self.shared.writeback_cache && cached);
        self.run(
            Op::Write,
            reply,
            move |call| async move {
                if strip {
                    call.strip_set_id(ino, who).await?;
                }
                let done = call.with_space(data, async |data| call.fs.write(ino, data).await).await;
                if cached && done.is_err() {
                    call.shared.not_written(ino, offset, size);
                }
                done?;
                if sync { call.fsync(ino, true).await } else { Ok(()) }
            },
            move |reply, (), shared| {
                if direct {
                    return shared.written_directly((ino, offset), size, reply);
                }
                if cached {
                    shared.written_back(ino);
                }
                reply.written(size);
            },
        );
    }

    // `flush` is not implemented: the write itself or an fsync reports errors of a write.

    fn release(&self, ino: Node, reply: Reply<kind::Empty>) {
        let ino = known!(ino, reply);
        self.empty(Op::Release, reply, move |call| async move { call.fs.release(ino).await });
    }

    fn fsync(&self, ino: Node, datasync: bool, reply: Reply<kind::Empty>) {
        let ino = known!(ino, reply);
        self.empty(Op::Fsync, reply, move |call| async move { call.fsync(ino, datasync).await });
    }

    // `opendir` remembers only `O_NOATIME`: a listing needs no other state, cookies stay valid, and
    // a removed directory lives while the kernel refers to it. If `opendir` were not implemented,
    // the kernel would keep listings. A program that lists a directory in several steps would then
    // get the end of an older listing if another program listed the directory meanwhile (seen with
    // Linux 6.18). Allowing the kernel to keep one listing for each open does not help: the kernel
    // completes a listing that was begun before a change, and shows it to a program that rewinds
    // and then seeks.

    fn opendir(&self, _: Node, flags: OFlags, reply: Reply<kind::Open>) {
        let handle = if flags.contains(OFlags::NOATIME) { LISTS_NOATIME } else { Handle(0) };
        reply.opened(handle, 0);
    }

    fn readdir(&self, ino: Node, handle: Handle, offset: u64, reply: Reply<kind::List>) {
        let ino = known!(ino, reply);
        let access = handle != LISTS_NOATIME;
        self.listing(reply, move |call, mut reply| async move {
            let add = |entry: Listed<'_>| {
                reply.add(node(entry.ino), entry.offset, type_bits(entry.kind), entry.name)
            };
            let listed = call.list((ino, access), offset, LISTING, add).await;
            (reply, listed)
        });
    }

    fn readdirplus(&self, ino: Node, handle: Handle, offset: u64, reply: Reply<kind::ListPlus>) {
        let ino = known!(ino, reply);
        let access = handle != LISTS_NOATIME;
        self.listing(reply, move |call, mut reply| async move {
            let ttl = call.shared.ttl;
            let add = |entry: Listed<'_>, attr: Option<&Attr>| {
                let (ino, kind) = (node(entry.ino), type_bits(entry.kind));
                let Some(attr) = attr else {
                    return reply.add_name(ino, entry.offset, kind, entry.name);
                };
                let (found, generation) = (call.shared.attributes(attr), generation(attr));
                let full = reply.add(entry.offset, entry.name, &ttl, &found, generation);
                // The kernel does not count an answer for `.` and `..`.
                if !full && entry.name != "." && entry.name != ".." {
                    call.shared.known.told(attr.ino);
                }
                full
            };
            let listed = call.list_plus((ino, access), offset, LISTING_PLUS, add).await;
            (reply, listed)
        });
    }

    fn fsyncdir(&self, ino: Node, datasync: bool, reply: Reply<kind::Empty>) {
        self.fsync(ino, datasync, reply);
    }

    fn statfs(&self, reply: Reply<kind::Statfs>) {
        self.run(
            Op::Statfs,
            reply,
            move |call| async move { Ok(call.fs.statfs()) },
            |reply, s, _| {
                reply.statfs(&Space {
                    blocks: s.blocks,
                    blocks_free: s.blocks_free,
                    blocks_available: s.blocks_available,
                    inodes: s.inodes,
                    inodes_free: s.inodes_free,
                    block_size: s.block_size,
                    name_max: s.name_max,
                });
            },
        );
    }

    fn setxattr(
        &self,
        asker: Asker,
        ino: Node,
        name: Vec<u8>,
        value: Vec<u8>,
        flags: i32,
        reply: Reply<kind::Empty>,
    ) {
        let ino = known!(ino, reply);
        let mode = match flags {
            0 => XattrMode::Set,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::INVAL),
        };
        let who = Caller::of(asker);
        self.empty(Op::Xattr, reply, move |call| async move {
            call.set_xattr(ino, &name, &value, mode, who).await
        });
    }

    fn getxattr(
        &self,
        asker: Asker,
        node: Node,
        name: Vec<u8>,
        size: u32,
        reply: Reply<kind::Xattr>,
    ) {
        let ino = known!(node, reply);
        if name.starts_with(report::PREFIX) {
            return self.question(ino, &name, size, asker.uid, reply);
        }
        self.run(
            Op::Xattr,
            reply,
            move |call| async move { call.fs.getxattr(ino, &name).await },
            move |reply, value: Vec<u8>, _| sized(reply, &value, size),
        );
    }

    fn listxattr(&self, asker: Asker, ino: Node, size: u32, reply: Reply<kind::Xattr>) {
        let ino = known!(ino, reply);
        let who = Caller::of(asker);
        // Control attributes are left out of the list, so that copying tools ignore them.
        self.run(
            Op::Xattr,
            reply,
            move |call| async move { call.list_xattrs(ino, who).await },
            move |reply, names: Vec<Vec<u8>>, _| {
                let ended = names.into_iter().flat_map(|name| name.into_iter().chain([0]));
                sized(reply, &ended.collect::<Vec<u8>>(), size);
            },
        );
    }

    fn removexattr(&self, ino: Node, name: Vec<u8>, reply: Reply<kind::Empty>) {
        let ino = known!(ino, reply);
        self.empty(
            Op::Xattr,
            reply,
            move |call| async move { call.fs.removexattr(ino, &name).await },
        );
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
        let ino = known!(ino, reply);
        let what = match mode {
            0 => Allocate::Extend,
            FALLOC_KEEP_SIZE => Allocate::KeepSize,
            FALLOC_PUNCH => Allocate::Punch,
            FALLOC_ZERO => Allocate::Zero,
            FALLOC_ZERO_KEEP_SIZE => Allocate::ZeroKeepSize,
            // These modes collapse or insert ranges, or are newer than this program.
            _ => return reply.error(Errno::OPNOTSUPP),
        };
        let who = Caller::of(asker);
        self.empty(Op::Allocate, reply, move |call| async move {
            call.fallocate(ino, what, (offset, length), who).await
        });
    }

    fn lseek(&self, ino: Node, offset: i64, whence: i32, reply: Reply<kind::Seek>) {
        let ino = known!(ino, reply);
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::INVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::NXIO) };
        self.seek(Search { ino, offset, what }, 0..0, reply);
    }

    fn copy_file_range(
        &self,
        asker: Asker,
        (from, offset): (Node, u64),
        (to, to_offset): (Node, u64),
        length: u64,
        reply: Reply<kind::Write>,
    ) {
        let (from, to) = (known!(from, reply), known!(to, reply));
        let who = Caller::of(asker);
        self.run(
            Op::Copy,
            reply,
            move |call| async move {
                if !who.privileged {
                    call.strip_set_id(to, who).await?;
                }
                let (from, to) = ((from, offset), (to, to_offset));
                call.with_space((), async |()| call.fs.copy_range(from, to, length).await).await
            },
            |reply, copied, _| reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
        );
    }
}
