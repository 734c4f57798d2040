//! Conversion between the file system's types and the kernel's: attributes, times, kinds, errors.
//!
//! `fuser` passes times as `SystemTime`. It converts a time before 1970 with nanoseconds
//! wrongly on the way in: it subtracts both parts from 1970, while nanoseconds count forward.
//! [`time_in`] corrects that.

use furrow_fs::{Attr, Ino, Kind, Time};
use fuser::{Errno, FileAttr, FileType, Generation, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel's number of an inode.
pub fn node(ino: Ino) -> INodeNo {
    INodeNo(u64::from(ino.0))
}

/// The inode behind the kernel's number; `None` for a number that was never handed out.
pub fn ino(node: INodeNo) -> Option<Ino> {
    u32::try_from(node.0).ok().map(Ino)
}

/// The generation, by which the kernel distinguishes uses of the same inode number.
pub fn generation(attr: &Attr) -> Generation {
    Generation(u64::from(attr.generation))
}

/// A file system error as the kernel's error number.
pub fn errno(error: &furrow_zone::Error) -> Errno {
    Errno::from_i32(error.kind().errno())
}

/// The kind as the kernel's file type.
pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind in the type bits of a mode as mknod(2) takes it; no type bits mean a regular file.
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

/// Attributes in the kernel's form.
pub fn attributes(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: node(attr.ino),
        size: attr.size,
        // The kernel counts units of 512 bytes.
        blocks: attr.blocks * 8,
        atime: time_out(attr.atime),
        mtime: time_out(attr.mtime),
        ctime: time_out(attr.ctime),
        crtime: time_out(attr.btime),
        kind: file_type(attr.kind),
        perm: attr.mode & 0o7777,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// A time for the kernel; one out of range becomes 1970.
fn time_out(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole
        .and_then(|w| w.checked_add(Duration::from_nanos(u64::from(time.nanoseconds))))
        .unwrap_or(UNIX_EPOCH)
}

/// A time from the kernel (see the top of this file).
pub fn time_in(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Time {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Time {
                seconds: 0i64.checked_sub_unsigned(before.as_secs()).unwrap_or(i64::MIN),
                nanoseconds: before.subsec_nanos(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_after_2038_survive() {
        for (seconds, nanoseconds) in
            [(0, 0), (1, 999_999_999), (5_000_000_000, 7), (-1, 0), (-2, 0), (i64::MAX, 0)]
        {
            let time = Time { seconds, nanoseconds };
            assert_eq!(time_in(time_out(time)), time);
        }
        // The time that fuser makes of (-2 s, 800 ms), and the time that must be sent.
        let wrong = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let time = Time { seconds: -2, nanoseconds: 800_000_000 };
        assert_eq!(time_in(wrong), time);
        assert_eq!(time_out(time), UNIX_EPOCH - Duration::new(1, 200_000_000));
    }

    #[test]
    fn kinds_are_those_of_stat() {
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(0o100_644), Some(Kind::File));
        assert_eq!(kind_of_mode(0o010_644), Some(Kind::Fifo));
        assert_eq!(kind_of_mode(0o020_644), Some(Kind::CharDevice));
        assert_eq!(kind_of_mode(0o060_644), Some(Kind::BlockDevice));
        assert_eq!(kind_of_mode(0o140_644), Some(Kind::Socket));
        assert_eq!(kind_of_mode(0o170_644), None);
    }

    #[test]
    fn inode_numbers_we_never_gave_are_none() {
        assert_eq!(ino(INodeNo(1)), Some(Ino::ROOT));
        assert_eq!(ino(INodeNo(1 << 32)), None);
    }
}
