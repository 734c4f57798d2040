//! Converts between the file system's types and the kernel's: attributes, kinds, errors.

use crate::wire::{self, Node};
use furrow_fs::{Attr, Ino, Kind};
use rustix::io::Errno;

/// The number that the kernel uses for an inode.
pub fn node(ino: Ino) -> Node {
    Node(u64::from(ino.0))
}

/// The inode for the kernel's number `node`; `None` for a number that the server never gave out.
pub fn ino(node: Node) -> Option<Ino> {
    u32::try_from(node.0).ok().map(Ino)
}

/// The generation by which the kernel distinguishes uses of the same inode number.
pub fn generation(attr: &Attr) -> u64 {
    u64::from(attr.generation)
}

/// The kernel's error number for a file system error.
pub fn errno(error: &furrow_zone::Error) -> Errno {
    Errno::from_raw_os_error(error.kind().errno())
}

/// The type bits of a mode, for an inode of this kind.
pub fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::Fifo => 0o010_000,
        Kind::CharDevice => 0o020_000,
        Kind::Directory => 0o040_000,
        Kind::BlockDevice => 0o060_000,
        Kind::File => 0o100_000,
        Kind::Symlink => 0o120_000,
        Kind::Socket => 0o140_000,
    }
}

/// The kind for the type bits of a mode in mknod(2); without type bits, a regular file.
pub fn kind_of_mode(mode: u32) -> Option<Kind> {
    Some(match mode & 0o170_000 {
        0 | 0o100_000 => Kind::File,
        0o010_000 => Kind::Fifo,
        0o020_000 => Kind::CharDevice,
        0o040_000 => Kind::Directory,
        0o060_000 => Kind::BlockDevice,
        0o120_000 => Kind::Symlink,
        0o140_000 => Kind::Socket,
        _ => return None,
    })
}

/// The attributes in the kernel's form.
pub fn attributes(attr: &Attr) -> wire::Attr {
    wire::Attr {
        ino: node(attr.ino).0,
        size: attr.size,
        // The kernel counts in units of 512 bytes.
        blocks: attr.blocks * 8,
        atime: attr.atime.seconds,
        mtime: attr.mtime.seconds,
        ctime: attr.ctime.seconds,
        atime_nanos: attr.atime.nanoseconds,
        mtime_nanos: attr.mtime.nanoseconds,
        ctime_nanos: attr.ctime.nanoseconds,
        mode: type_bits(attr.kind) | u32::from(attr.mode & 0o7777),
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        device: attr.rdev,
        block_size: 4096,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_stat() {
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(0o100_644), Some(Kind::File));
        assert_eq!(kind_of_mode(0o010_644), Some(Kind::Fifo));
        assert_eq!(kind_of_mode(0o020_644), Some(Kind::CharDevice));
        assert_eq!(kind_of_mode(0o060_644), Some(Kind::BlockDevice));
        assert_eq!(kind_of_mode(0o140_644), Some(Kind::Socket));
        assert_eq!(kind_of_mode(0o170_644), None);
        for bits in [0o010_000, 0o020_000, 0o040_000, 0o060_000, 0o100_000, 0o120_000, 0o140_000] {
            assert_eq!(kind_of_mode(bits).map(type_bits), Some(bits));
        }
    }

    #[test]
    fn inode_numbers_we_never_gave_are_none() {
        assert_eq!(ino(Node(1)), Some(Ino::ROOT));
        assert_eq!(ino(Node(1 << 32)), None);
    }
}
