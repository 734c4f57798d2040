//! A FUSE server that does nothing, to measure the cost of FUSE itself.
//!
//! The mount has a file of 4 KiB, [`FILE`], a file of 256 MiB, [`BIG`], and a directory in which
//! any name can be made and removed. Every request is answered at once from constants, and written
//! data is dropped. Requests pass through the same endpoint and session as those of a mounted file
//! system, so a comparison of the times shows the engine's share.

use crate::capabilities::Agreement;
use crate::endpoint::MAX_WRITE;
use crate::operations::{Asker, Changes, NewName, Operations};
use crate::reply::{Reply, Space, kind};
use crate::wire::{self, Node, feature};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::FromZeros as _;

/// Name of the small file.
pub const FILE: &str = "file";
/// Name of the big file.
pub const BIG: &str = "big";
const INODE: Node = Node(2);
const BIG_INODE: Node = Node(3);
const BYTES: usize = 4096;
const BIG_BYTES: u64 = 256 << 20;

/// The server that does nothing: it answers every request from constants.
pub struct Null {
    ttl: Duration,
    writeback_cache: bool,
    content: Vec<u8>,
    /// Inode number of the next file that is made.
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

fn size_of(ino: Node) -> u64 {
    match ino {
        INODE | Node::ROOT => BYTES as u64,
        BIG_INODE => BIG_BYTES,
        _ => 0,
    }
}

fn attributes(ino: Node) -> wire::Attr {
    let directory = ino == Node::ROOT;
    wire::Attr {
        ino: ino.0,
        size: size_of(ino),
        blocks: size_of(ino) / 512,
        mode: if directory { 0o040_755 } else { 0o100_644 },
        links: if directory { 2 } else { 1 },
        block_size: BYTES as u32,
        ..wire::Attr::new_zeroed()
    }
}

impl Operations for Null {
    fn init(&self, agreement: &mut Agreement) -> anyhow::Result<()> {
        agreement.want(feature::PARALLEL_DIROPS);
        agreement.want(feature::HANDLE_KILLPRIV_V2);
        if self.writeback_cache {
            agreement.want(feature::WRITEBACK_CACHE);
        }
        Ok(())
    }

    fn lookup(&self, parent: Node, name: Vec<u8>, reply: Reply<kind::Entry>) {
        let known = [(FILE, INODE), (BIG, BIG_INODE)];
        let is = |known: &str| parent == Node::ROOT && name == known.as_bytes();
        match known.into_iter().find(|(known, _)| is(known)) {
            Some((_, ino)) => reply.entry(&self.ttl, &attributes(ino), 0),
            None => reply.error(Errno::NOENT),
        }
    }

    fn mknod(&self, _: Asker, _: NewName, _: u32, reply: Reply<kind::Entry>) {
        let ino = Node(self.next.fetch_add(1, Ordering::Relaxed));
        reply.entry(&self.ttl, &attributes(ino), 0);
    }

    fn unlink(&self, _: Node, _: Vec<u8>, reply: Reply<kind::Empty>) {
        reply.ok();
    }

    fn setattr(&self, _: Asker, ino: Node, _: Changes, reply: Reply<kind::Attr>) {
        reply.attr(&self.ttl, &attributes(ino));
    }

    fn write(
        &self,
        _: Asker,
        _: Node,
        _: u64,
        data: &[u8],
        _: u32,
        _: OFlags,
        reply: Reply<kind::Write>,
    ) {
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: Node, _: bool, reply: Reply<kind::Empty>) {
        reply.ok();
    }

    fn getattr(&self, ino: Node, reply: Reply<kind::Attr>) {
        reply.attr(&self.ttl, &attributes(ino));
    }

    fn read(&self, ino: Node, offset: u64, size: u32, _: OFlags, reply: Reply<kind::Data>) {
        let left = size_of(ino).saturating_sub(offset).min(u64::from(size));
        let content = &self.content[..(left as usize).min(self.content.len())];
        reply.data(content);
    }

    fn statfs(&self, reply: Reply<kind::Statfs>) {
        let (block_size, name_max) = (BYTES as u32, 255);
        reply.statfs(&Space { blocks: 1, inodes: 2, block_size, name_max, ..Space::default() });
    }
}
