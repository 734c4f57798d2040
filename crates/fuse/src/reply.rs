//! Answers to requests, each sent by the transport through which its request came.

use crate::channel;
use crate::ring::answer::Answer;
use crate::wire::{self, Handle, Node};
use furrow_fs::ReadData;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;
use zerocopy::{FromZeros as _, Immutable, IntoBytes};

/// The kinds of content of an answer without error.
pub mod kind {
    /// Attributes of an inode.
    pub enum Attr {}
    /// A file that was made and opened.
    pub enum Create {}
    /// Bytes of a file or a link.
    pub enum Data {}
    /// No content: the request was carried out.
    pub enum Empty {}
    /// The inode of a name.
    pub enum Entry {}
    /// Names in a directory.
    pub enum List {}
    /// Names in a directory, with attributes.
    pub enum ListPlus {}
    /// The handle of an open file or directory.
    pub enum Open {}
    /// An offset in a file.
    pub enum Seek {}
    /// Space of the file system.
    pub enum Statfs {}
    /// The number of bytes written.
    pub enum Write {}
    /// The value of an attribute, names of attributes, or their length.
    pub enum Xattr {}
}

/// The right to answer one request, which came by one of the transports.
pub(crate) enum To {
    /// The request was read from `/dev/fuse`.
    Channel(channel::Answer),
    /// The request came by a ring.
    Ring(Answer),
}

/// Calls the method of the transport by which the request came.
macro_rules! by {
    ($to:expr, $answer:ident => $call:expr) => {
        match $to {
            To::Channel($answer) => $call,
            To::Ring($answer) => $call,
        }
    };
}

impl To {
    pub(crate) fn error(self, errno: Errno) {
        by!(self, answer => answer.error(errno));
    }

    /// Answers with the bytes of `value`, a structure of the protocol.
    pub(crate) fn send<T: IntoBytes + Immutable>(self, value: &T) {
        by!(self, answer => answer.send(value));
    }

    /// Adds `bytes` to the payload. If they do not fit, adds nothing and returns false.
    fn add(&mut self, bytes: &[u8]) -> bool {
        by!(self, answer => answer.add(bytes))
    }

    /// Adds a record of a listing to the payload, padded to a multiple of 8 bytes. If it does not
    /// fit, adds nothing and returns false.
    fn add_record(&mut self, parts: &[&[u8]]) -> bool {
        by!(self, answer => answer.add_record(parts))
    }

    /// Answers with the payload added so far.
    fn finish(self) {
        by!(self, answer => answer.finish());
    }
}

/// The right to answer one request, with content of kind `K`. A reply that is dropped without an
/// answer answers EIO.
pub struct Reply<K> {
    to: To,
    kind: PhantomData<fn(K)>,
}

/// A reply of any kind; each kind can answer with an error.
pub(crate) trait Fail: Send + 'static {
    fn fail(self, errno: Errno);
}

/// A reply that lists a directory.
pub(crate) trait Listing: Fail {
    /// Answers with the entries that were added. An answer without entries ends the listing.
    fn ok(self);
}

impl<K> From<To> for Reply<K> {
    fn from(to: To) -> Reply<K> {
        Reply { to, kind: PhantomData }
    }
}

impl<K> Reply<K> {
    /// Answers with an error.
    pub fn error(self, errno: Errno) {
        self.to.error(errno);
    }
}

impl<K: 'static> Fail for Reply<K> {
    fn fail(self, errno: Errno) {
        self.error(errno);
    }
}

impl Reply<kind::Empty> {
    /// Answers that the request was carried out.
    pub fn ok(self) {
        self.to.send(&());
    }
}

impl Reply<kind::Entry> {
    /// Answers with the inode of a name; the kernel may cache name and attributes for `ttl`.
    pub fn entry(self, ttl: &Duration, attr: &wire::Attr, generation: u64) {
        self.to.send(&wire::Entry::of(ttl, attr, generation));
    }
}

impl Reply<kind::Attr> {
    /// Answers with attributes, which the kernel may cache for `ttl`.
    pub fn attr(self, ttl: &Duration, attr: &wire::Attr) {
        self.to.send(&wire::Attributes::of(ttl, attr));
    }
}

impl Reply<kind::Open> {
    /// Answers that the file is open. `flags` is [`wire::KEEP_CACHE`] or 0.
    pub fn opened(self, handle: Handle, flags: u32) {
        self.to.send(&wire::Opened::of(handle, flags));
    }
}

impl Reply<kind::Create> {
    /// Answers that the file was made and is open.
    pub fn created(
        self,
        ttl: &Duration,
        attr: &wire::Attr,
        generation: u64,
        handle: Handle,
        flags: u32,
    ) {
        self.to.send(&wire::Created {
            entry: wire::Entry::of(ttl, attr, generation),
            opened: wire::Opened::of(handle, flags),
        });
    }
}

impl Reply<kind::Data> {
    /// Answers with `bytes`, or with EIO if the request asked for fewer.
    pub fn data(mut self, bytes: &[u8]) {
        match self.to.add(bytes) {
            true => self.to.finish(),
            false => self.to.error(Errno::IO),
        }
    }

    /// Answers with bytes read from a file, or with EIO if the request asked for fewer.
    pub fn pages(self, data: ReadData) {
        by!(self.to, answer => answer.pages(data));
    }
}

impl Reply<kind::Write> {
    /// Answers that this number of bytes was written.
    pub fn written(self, bytes: u32) {
        self.to.send(&wire::Written { bytes, padding: 0 });
    }
}

/// Space and number of inodes of a file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    /// Total space in units of `block_size`.
    pub blocks: u64,
    pub blocks_free: u64,
    /// Space that is available to callers without privileges, in units of `block_size`.
    pub blocks_available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Longest name, in bytes.
    pub name_max: u32,
}

impl Reply<kind::Statfs> {
    /// Answers with the file system's space and numbers of inodes.
    pub fn statfs(self, space: &Space) {
        self.to.send(&wire::Statfs::of(space));
    }
}

impl Reply<kind::Xattr> {
    /// Answers with the size in bytes that the full answer would have.
    pub fn size(self, bytes: u32) {
        self.to.send(&wire::Written { bytes, padding: 0 });
    }

    /// Answers with a value or with names, or with ERANGE if the request asked for fewer bytes.
    pub fn data(mut self, bytes: &[u8]) {
        match self.to.add(bytes) {
            true => self.to.finish(),
            false => self.to.error(Errno::RANGE),
        }
    }
}

impl Reply<kind::Seek> {
    /// Answers with the offset that was found.
    pub fn offset(self, offset: i64) {
        self.to.send(&offset);
    }
}

impl Reply<kind::List> {
    /// Adds an entry; the listing continues after it at `offset`. `mode` has the type of the inode.
    /// True if the entry did not fit.
    pub fn add(&mut self, ino: Node, offset: u64, mode: u32, name: &OsStr) -> bool {
        let name = name.as_bytes();
        let entry = wire::Listed::of(ino.0, offset, mode, name);
        !self.to.add_record(&[entry.as_bytes(), name])
    }
}

impl Listing for Reply<kind::List> {
    fn ok(self) {
        self.to.finish();
    }
}

impl Reply<kind::ListPlus> {
    /// Adds an entry with its attributes; the kernel may cache name and attributes for `ttl`. True
    /// if the entry did not fit.
    pub fn add(
        &mut self,
        offset: u64,
        name: &OsStr,
        ttl: &Duration,
        attr: &wire::Attr,
        generation: u64,
    ) -> bool {
        let name = name.as_bytes();
        let entry = wire::Entry::of(ttl, attr, generation);
        let listed = wire::Listed::of(attr.ino, offset, attr.mode, name);
        !self.to.add_record(&[entry.as_bytes(), listed.as_bytes(), name])
    }

    /// Adds an entry without attributes (node 0 in `struct fuse_entry_out`): the kernel shows the
    /// name, and requests the attributes when a program needs them. True if the entry did not fit.
    pub fn add_name(&mut self, ino: Node, offset: u64, mode: u32, name: &OsStr) -> bool {
        let name = name.as_bytes();
        let listed = wire::Listed::of(ino.0, offset, mode, name);
        !self.to.add_record(&[wire::Entry::new_zeroed().as_bytes(), listed.as_bytes(), name])
    }
}

impl Listing for Reply<kind::ListPlus> {
    fn ok(self) {
        self.to.finish();
    }
}
