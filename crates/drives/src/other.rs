//! Explains why a path is not a drive: it is a plain file, holds another program's data, or holds
//! soft zones whose superblock in the first block is overwritten.

use crate::soft;
use furrow_emu::format::MAGIC;
use furrow_zone::{Error, ErrorKind};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

/// Number of bytes at the beginning of a file or device in which signatures of other programs
/// are searched.
pub const FRONT: u64 = 68 << 10;

/// Advice for a file or device without zones: how to make a drive.
const NEEDS: &str = "Furrow needs zones: furrow device create FILE makes an emulated drive in a \
                     new file, and with --soft soft zones, also on a block device";

/// Replaces the advice `NEEDS` in the `error` of opening a drive that should already be a member of
/// an array: making a drive would not help.
pub fn of_no_member(error: Error) -> Error {
    match error.to_string().strip_suffix(&format!(": {NEEDS}")) {
        Some(why) => Error::new(error.kind(), format!("{why}, and not a member of a Furrow array")),
        None => error,
    }
}

/// Whether a file that begins with `front` is text.
fn is_text(front: &[u8]) -> bool {
    let text = match std::str::from_utf8(front) {
        Ok(text) => text,
        // The end of the front may be in the middle of a character.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&front[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    // A log in colours counts as text.
    let fits = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\x0c' | '\x1b');
    !text.is_empty() && text.chars().all(fits)
}

/// The error that says why `path` is not a drive of Furrow; `None` if it is an image after all, or
/// has zones.
pub(crate) fn without_zones(path: &Path) -> Option<Error> {
    let name = path.display();
    let meta = std::fs::metadata(path).ok()?;
    let kind = meta.file_type();
    // access(2) checks the permission without opening the file: opening a pipe would wait for a
    // writer, and opening a tape would move it.
    if let Err(error) = rustix::fs::access(path, rustix::fs::Access::READ_OK) {
        let error = std::io::Error::from(error);
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            return Some(Error::new(ErrorKind::Denied, format!("{name}: {error}")));
        }
    }
    let what = if kind.is_block_device() {
        match zoned(meta.rdev()) {
            Some(model) if model != "none" => return None,
            _ => match lost_front(path) {
                Some(lost) => return Some(lost),
                None => "a block device without zones".to_owned(),
            },
        }
    } else if kind.is_file() {
        let front = front(path).unwrap_or_default();
        if furrow_soft::is_superblock(&front) {
            let what = "it holds soft zones, and this command needs an emulated drive";
            return Some(Error::new(ErrorKind::Unsupported, format!("{name}: {what}")));
        }
        // The error of opening an image of a newer format already explains the problem.
        if front.starts_with(&MAGIC) {
            return None;
        }
        if let Some(lost) = lost_front(path) {
            return Some(lost);
        }
        match (meta.len(), signature(&front)) {
            (0, _) => "an empty file, not an emulated drive's image".to_owned(),
            (_, Some(found)) => {
                format!(
                    "a plain file without zones, not an emulated drive's image: it holds {found}"
                )
            }
            (_, None) if is_text(&front) => "a text file, not an emulated drive's image".to_owned(),
            (_, None) => "a plain file without zones, not an emulated drive's image".to_owned(),
        }
    } else if kind.is_dir() {
        "a directory".to_owned()
    } else if kind.is_fifo() {
        "a pipe".to_owned()
    } else {
        "no drive".to_owned()
    };
    Some(Error::new(ErrorKind::WrongFormat, format!("{name}: {what}: {NEEDS}")))
}

/// The error for soft zones at `path` that have lost the superblock, their first block, but not the
/// superblock's copy in the last block.
fn without_front(path: &Path) -> Error {
    let (name, what) = (path.display(), soft::WITHOUT_FRONT);
    let what = format!(
        "{name}: {what}: unless the drive was made into something else since, furrow device check \
         --repair {name} restores the first block from the copy"
    );
    Error::new(ErrorKind::Corrupt, what)
}

/// The error for soft zones at `path` that have lost the superblock, but not its copy in the last
/// block. `None` if there are no such soft zones, or if `path` begins with data of a known kind.
pub fn lost_front(path: &Path) -> Option<Error> {
    let other = || front(path).is_ok_and(|front| signature(&front).is_some());
    (soft::has_lost_front(path) && !other()).then(|| without_front(path))
}

/// The kernel's zone model of a block device: none, host-aware, host-managed.
fn zoned(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let folder = format!("/sys/dev/block/{major}:{minor}");
    // The queue of a partition is one level up.
    let read = |queue: &str| std::fs::read_to_string(format!("{folder}/{queue}/zoned")).ok();
    Some(read("queue").or_else(|| read("../queue"))?.trim().to_owned())
}

/// Whether the file at `path` begins as an emulated drive or soft zones do.
pub fn is_image(path: &Path) -> bool {
    let front = front(path).unwrap_or_default();
    front.starts_with(&MAGIC) || furrow_soft::is_superblock(&front)
}

fn front(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FRONT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The format whose signature is in `front`, the first bytes of a drive; `None` if no known
/// signature is there.
pub fn signature(front: &[u8]) -> Option<&'static str> {
    const KNOWN: [(usize, &[u8], &str); 20] = [
        (0, b"XFSB", "an XFS file system"),
        (0, b"LUKS\xba\xbe", "a LUKS volume"),
        (0, b"hsqs", "a SquashFS file system"),
        (0, b"BITMAP", "a bitmap of md"),
        (0, b"QFI\xfb", "a qcow2 disk image"),
        (3, b"NTFS    ", "an NTFS file system"),
        (82, b"FAT32   ", "a FAT file system"),
        (54, b"FAT16   ", "a FAT file system"),
        (0, b"SFZB", "a zonefs file system"),
        (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
        (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
        (512, b"LABELONE", "an LVM physical volume"),
        (512, b"EFI PART", "a GPT partition table"),
        (4096, b"EFI PART", "a GPT partition table"),
        (4096, b"\xfc\x4e\x2b\xa9", "a member of an md array"),
        (0, b"\xfc\x4e\x2b\xa9", "a member of an md array"),
        (4086, b"SWAPSPACE2", "swap space"),
        (32_769, b"CD001", "an ISO 9660 file system"),
        (65_600, b"_BHRfS_M", "a Btrfs file system"),
        (510, b"\x55\xaa", "a boot sector or an MBR partition table"),
    ];
    let at = |(offset, magic, _): &&(usize, &[u8], &str)| {
        front.get(*offset..).is_some_and(|rest| rest.starts_with(magic))
    };
    KNOWN.iter().find(at).map(|(_, _, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_known_from_other_bytes() {
        assert!(is_text(b"2026-11-29T06:34:08Z started\n\x1b[1mbold\x1b[0m\n"));
        assert!(is_text(&"täglich".as_bytes()[..2]), "cut in the middle of a character");
        for other in [&b""[..], b"\0\0", b"\xff\xfe", b"text\0"] {
            assert!(!is_text(other), "{other:?}");
        }
    }

    #[test]
    fn signatures_are_known_where_they_are() {
        let mut front = vec![0; FRONT as usize];
        assert_eq!(signature(&front), None);
        front[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(signature(&front), Some("a boot sector or an MBR partition table"));
        front[512..520].copy_from_slice(b"EFI PART");
        assert_eq!(signature(&front), Some("a GPT partition table"));
        let mut front = vec![0; FRONT as usize];
        front[65_600..65_608].copy_from_slice(b"_BHRfS_M");
        assert_eq!(signature(&front), Some("a Btrfs file system"));
        assert_eq!(signature(b"XFS"), None);
    }
}
