//! The content of a drive, and what commands report about it.
//!
//! This module is the only place that recognises content: a file system, a member of an array or a
//! spare, a file store, data of another program, or bytes of an unknown kind. A command that makes
//! something refuses a drive that is not empty and says what would be lost. A command that reads a
//! file system (or a file store) and finds none says what the drive holds instead. No advice
//! destroys data without saying so.

use crate::soft;
use anyhow::Result as Anyhow;
use furrow_emu::{Emulator, OpenMode};
use furrow_linux::{Access, Drive};
use furrow_log::address::blocks_per_zone;
use furrow_log::record::{Uuid, peek};
use furrow_log::{BlockAddr, read_blocks};
use furrow_raid::{Examined, examine};
use furrow_rt::{Pool, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Error, ErrorKind, QueueId, ZoneId, ZoneState, ZonedDevice};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::rc::Rc;

/// Bytes at the front in which signatures of other programs are searched.
pub const FRONT: u64 = 68 << 10;
const BLOCK: usize = 4096;
/// Number of zones, after the conventional ones, in which file systems and members begin.
const RING_ZONES: u32 = 2;
/// Kinds of records that file systems write.
const OF_FILE_SYSTEMS: std::ops::Range<u16> = 0x10..0x20;

/// The content of a drive.
pub enum Holds {
    /// All zones are empty.
    Nothing,
    /// A file system of Furrow with this UUID; it may be damaged.
    FileSystem(Uuid),
    /// A file store with this UUID, and its label if a superblock is whole; it may be damaged.
    Store(Uuid, String),
    /// A member of an array, or a spare.
    Member(Box<Examined>),
    /// Records of Furrow that this program cannot read, and why.
    Unreadable(Error),
    /// Data of another program.
    Foreign(&'static str),
    /// Unknown data; this is the first zone that is not empty.
    Data(ZoneId),
}

impl Holds {
    /// Recognises the content of `device`. Nothing is written.
    ///
    /// # Errors
    /// `Io` if the drive does not report its zones.
    pub async fn of(device: &dyn ZonedDevice) -> Result<Holds, Error> {
        let geometry = device.geometry();
        let zones = device.report(ZoneId(0), geometry.zones).await;
        let zones = zones.map_err(|status| Error::device(&device.name(), "zone report", status))?;
        let broken = |state| matches!(state, ZoneState::Offline | ZoneState::ReadOnly);
        let used = zones.iter().find(|zone| {
            zone.state != ZoneState::Empty
                && !broken(zone.state)
                && !geometry.is_conventional(zone.zone)
        });
        let first = geometry.conventional_zones;
        let mut unreadable = None;
        for zone in (first..geometry.zones).take(RING_ZONES as usize).map(ZoneId) {
            let Some(block) = block(device, zone, 0).await else { continue };
            let Some(header) = peek(&block) else { continue };
            if OF_FILE_SYSTEMS.contains(&header.kind.get()) {
                return Ok(Holds::FileSystem(header.object));
            }
            if header.kind.get() == furrow_kv::format::kind::SUPERBLOCK {
                let label = furrow_kv::label_of(&block).unwrap_or_default();
                return Ok(Holds::Store(header.object, label));
            }
            unreadable = Some(Error::new(ErrorKind::Corrupt, "its records are damaged"));
        }
        match examine(device).await {
            Ok(examined) => return Ok(Holds::Member(Box::new(examined))),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => unreadable = Some(error),
        }
        // The newest half of the store's record ring may be the second half, or its front may
        // be damaged.
        if let Some(store) = furrow_kv::identify(device).await? {
            return Ok(Holds::Store(store, String::new()));
        }
        if let Some(error) = unreadable {
            return Ok(Holds::Unreadable(error));
        }
        let mut front = Vec::new();
        for number in 0..blocks_per_zone(geometry).min((FRONT / BLOCK as u64) as u32) {
            match block(device, ZoneId(0), number).await {
                Some(bytes) => front.extend_from_slice(&bytes),
                None => break,
            }
        }
        Ok(match (signature(&front), used) {
            (Some(name), _) => Holds::Foreign(name),
            (None, Some(zone)) => Holds::Data(zone.zone),
            (None, None) => Holds::Nothing,
        })
    }

    /// UUID and label of what `device` holds; for a member of an array, the array's name is the
    /// label. `None` if the content has no UUID.
    ///
    /// # Errors
    /// If the drive does not answer, or the file system is of another format.
    pub async fn identity(
        &self,
        device: &dyn ZonedDevice,
    ) -> Result<Option<(Uuid, String)>, Error> {
        Ok(match self {
            Holds::FileSystem(uuid) => {
                let label = furrow_fs::identify(device).await?.map(|(_, label)| label);
                Some((*uuid, label.unwrap_or_default()))
            }
            Holds::Store(uuid, label) => Some((*uuid, label.clone())),
            Holds::Member(examined) => Some((examined.array, examined.label.clone())),
            _ => None,
        })
    }

    /// The kind of content as one word, for JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Holds::Nothing => "nothing",
            Holds::FileSystem(_) => "file-system",
            Holds::Store(..) => "file-store",
            Holds::Member(examined) if examined.member.is_none() => "spare",
            Holds::Member(_) => "member",
            Holds::Unreadable(_) => "unreadable",
            Holds::Foreign(_) => "foreign",
            Holds::Data(_) => "data",
        }
    }

    /// A description that follows "it holds".
    pub fn describe(&self) -> String {
        match self {
            Holds::Nothing => "nothing".to_owned(),
            Holds::FileSystem(uuid) => format!("a Furrow file system (UUID {uuid})"),
            Holds::Store(uuid, _) => format!("a Furrow file store (UUID {uuid})"),
            Holds::Member(examined) => describe_member(examined),
            Holds::Unreadable(error) => {
                format!("records of Furrow that this program cannot read ({error})")
            }
            Holds::Foreign(name) => (*name).to_owned(),
            Holds::Data(zone) => format!("data of an unknown kind (zone {zone} is not empty)"),
        }
    }

    /// Advice on what the user can do with the content without destroying it.
    fn advice(&self, name: &str) -> String {
        match self {
            Holds::FileSystem(_) => format!("mount it with furrow mount {name} DIR"),
            Holds::Store(..) => format!("furrow kv ls {name} shows its files"),
            Holds::Member(examined) if examined.member.is_some() => {
                format!(
                    "furrow raid examine {name} shows it, furrow raid assemble starts the array"
                )
            }
            Holds::Member(_) => {
                "give it to furrow raid assemble with the array's drives".to_owned()
            }
            Holds::Unreadable(_) => "try a newer furrow, or restore it from a copy".to_owned(),
            Holds::Foreign(_) | Holds::Data(_) => "check that it is the drive you mean".to_owned(),
            Holds::Nothing if name.starts_with("mem:") => {
                "a drive in memory is empty whenever a command opens it: make an image with furrow \
                 device create"
                    .to_owned()
            }
            Holds::Nothing => format!("make a file system on it with furrow mkfs {name}"),
        }
    }

    /// Refuses to make something on a drive with this content, and names the option `force` that
    /// overrides the refusal; `Ok` if the drive is empty.
    ///
    /// # Errors
    /// `Exists` if the drive holds something.
    pub fn refuse_used(&self, name: &str, force: &str) -> Result<(), Error> {
        if matches!(self, Holds::Nothing) {
            return Ok(());
        }
        let what = format!(
            "{name}: not empty, it holds {}: {}, or choose another drive; {force} destroys what it \
             holds",
            self.describe(),
            self.advice(name),
        );
        Err(Error::new(ErrorKind::Exists, what))
    }

    /// The error that there is no usable file system; `None` if there may be one.
    fn instead_of_file_system(&self, name: &str) -> Option<Error> {
        let what = match self {
            Holds::FileSystem(_) => return None,
            Holds::Nothing => {
                format!("{name}: no Furrow file system, the drive is empty: {}", self.advice(name))
            }
            _ => format!(
                "{name}: no Furrow file system: it holds {}: {}",
                self.describe(),
                self.advice(name)
            ),
        };
        Some(Error::new(ErrorKind::WrongFormat, what))
    }

    /// The error that there is no usable file store; `None` if there may be one.
    fn instead_of_store(&self, name: &str) -> Option<Error> {
        let what = match self {
            Holds::Store(..) => return None,
            Holds::Nothing => format!(
                "{name}: no Furrow file store, the drive is empty: make one on it with furrow kv \
                 mkfs {name}"
            ),
            _ => format!(
                "{name}: no Furrow file store: it holds {}: {}",
                self.describe(),
                self.advice(name)
            ),
        };
        Some(Error::new(ErrorKind::WrongFormat, what))
    }
}

/// The error that a drive with this content belongs to no array.
pub fn instead_of_member(name: &str, holds: &Holds) -> Error {
    let what = match holds {
        Holds::Nothing => format!(
            "{name}: no member of a Furrow array, the drive is empty: furrow raid create makes an \
             array, furrow raid replace and add-spare take such a drive"
        ),
        _ => format!(
            "{name}: no member of a Furrow array: it holds {}: {}",
            holds.describe(),
            holds.advice(name)
        ),
    };
    Error::new(ErrorKind::NotFound, what)
}

/// Names the member and its array.
fn describe_member(examined: &Examined) -> String {
    let (label, array) = (&examined.label, examined.array);
    match examined.member {
        Some(member) => format!("member {member} of the array {label} (UUID {array})"),
        None => format!("a spare of the array {label} (UUID {array})"),
    }
}

/// Adds the content of `device` to the `error` of a command that needs a file system, if the
/// content is the reason.
pub async fn explain(device: &dyn ZonedDevice, error: Error) -> Error {
    if error.kind() != ErrorKind::WrongFormat {
        return error;
    }
    let holds = Holds::of(device).await.ok();
    holds.and_then(|holds| holds.instead_of_file_system(&device.name())).unwrap_or(error)
}

/// Adds the content of `device` to the `error` of a command that needs a file store, if the content
/// is the reason.
pub async fn explain_store(device: &dyn ZonedDevice, error: Error) -> Error {
    if error.kind() != ErrorKind::WrongFormat {
        return error;
    }
    let holds = Holds::of(device).await.ok();
    holds.and_then(|holds| holds.instead_of_store(&device.name())).unwrap_or(error)
}

/// Adds the content of `device` to the `error` of a command that needs an empty drive.
pub async fn explain_used(device: &dyn ZonedDevice, error: Error) -> Error {
    if error.kind() != ErrorKind::Exists {
        return error;
    }
    match Holds::of(device).await {
        Ok(holds) => holds.refuse_used(&device.name(), "--force").err().unwrap_or(error),
        Err(_) => error,
    }
}

/// The content of the drive `device` as "it holds ...", for a command that only works on mounts.
/// `None` if it is unknown.
pub fn of_unmounted(device: &str) -> Option<String> {
    let rt = Rt::new(crate::daemon::config().ok()?);
    let drive = open(&rt, &device.parse().ok()?, OpenMode::ReadOnly).ok()?;
    let holds = rt.block_on(async move { Holds::of(&*drive).await });
    rt.clear();
    match holds.ok()? {
        Holds::FileSystem(_) => None,
        holds => Some(format!("it holds {}: {}", holds.describe(), holds.advice(device))),
    }
}

/// Opens a drive. If `spec` is not a zoned drive, the error says what it is.
///
/// # Errors
/// Those of [`furrow_emu::open`], [`Drive::open`] and [`soft::open`].
pub fn open(rt: &Rt, spec: &DeviceSpec, mode: OpenMode) -> Result<Rc<dyn ZonedDevice>, Error> {
    crate::limits::check(spec, mode)?;
    if soft::is_soft(spec) {
        return soft::open(rt, spec, mode).map(|drive| drive as Rc<dyn ZonedDevice>);
    }
    let DeviceSpec::Node(node) = spec else {
        return emulated(rt, spec, mode).map(|drive| drive as Rc<dyn ZonedDevice>);
    };
    let access = match mode {
        OpenMode::ReadWrite => Access::ReadWrite,
        OpenMode::ReadOnly => Access::ReadOnly,
    };
    let drive = Drive::open(rt, node, access);
    drive.map(|drive| Rc::new(drive) as Rc<dyn ZonedDevice>).map_err(|error| match error.kind() {
        ErrorKind::WrongFormat => without_zones(Path::new(&node.path)).unwrap_or(error),
        _ => error,
    })
}

/// Opens an emulated drive, for the commands that make and show emulated drives.
///
/// # Errors
/// As [`open`].
pub fn emulated(rt: &Rt, spec: &DeviceSpec, mode: OpenMode) -> Result<Rc<Emulator>, Error> {
    crate::limits::check(spec, mode)?;
    furrow_emu::open(rt, spec, mode).map_err(|error| match (spec, error.kind()) {
        (DeviceSpec::Image(image), ErrorKind::WrongFormat) => {
            without_zones(Path::new(&image.path)).unwrap_or(error)
        }
        _ => error,
    })
}

/// Advice for a file or device without zones: how to make a drive.
const NEEDS: &str = "Furrow needs zones: furrow device create FILE makes an emulated drive in a \
                     new file, and with --soft soft zones, also on a block device";

/// Replaces the advice `NEEDS` in the `error` of opening a drive that should already be a member of
/// an array: making a drive does not help there.
pub fn of_no_member(error: Error) -> Error {
    match error.to_string().strip_suffix(&format!(": {NEEDS}")) {
        Some(why) => Error::new(error.kind(), format!("{why}, and no member of a Furrow array")),
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
    // Logs may have colours.
    let fits = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\x0c' | '\x1b');
    !text.is_empty() && text.chars().all(fits)
}

/// Why `path` is not a drive of Furrow; `None` if it is an image after all, or has zones.
fn without_zones(path: &Path) -> Option<Error> {
    let name = path.display();
    let meta = std::fs::metadata(path).ok()?;
    let kind = meta.file_type();
    // access(2) checks the permission without opening the file: opening a pipe would wait for a
    // writer, and opening a tape would move it.
    if let Err(error) = rustix::fs::access(path, rustix::fs::Access::READ_OK) {
        let error = std::io::Error::from(error);
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            return Some(Error::new(ErrorKind::Io, format!("{name}: {error}")));
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
            let what = "soft zones, and this needs an emulated drive";
            return Some(Error::new(ErrorKind::Unsupported, format!("{name}: {what}")));
        }
        // The error of opening an image of a newer format already explains the problem.
        if front.starts_with(b"FURROWZN") {
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

/// The error for soft zones at `path` whose superblock is left only as the copy at their end.
fn without_front(path: &Path) -> Error {
    let (name, what) = (path.display(), soft::WITHOUT_FRONT);
    let what = format!(
        "{name}: {what}: if nothing else was made there since, furrow device check --repair {name} \
         writes it again from the copy"
    );
    Error::new(ErrorKind::Corrupt, what)
}

/// The error for soft zones at `path` of which only the copy of the superblock at the end is left,
/// if the front holds no known data.
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

fn front(path: &Path) -> Anyhow<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FRONT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

async fn block(device: &dyn ZonedDevice, zone: ZoneId, number: u32) -> Option<Vec<u8>> {
    let addr = BlockAddr::new(device.geometry(), zone, number);
    let pages = read_blocks(device, QueueId(0), addr, 1, &Pool::new(4)).await.ok()?;
    Some(pages.first()?.bytes().to_vec())
}

/// The owner of a known signature at the front of a drive, if there is one.
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

    #[test]
    fn what_refuses_says_what_is_lost_and_an_empty_drive_is_not_refused() {
        assert!(Holds::Nothing.refuse_used("d", "-f").is_ok());
        let text = Holds::Data(ZoneId(3)).refuse_used("d", "-f").unwrap_err().to_string();
        assert!(text.contains("zone 3") && text.contains("-f destroys"), "{text}");
        let text = Holds::Foreign("swap space").instead_of_file_system("d").unwrap().to_string();
        assert!(text.contains("swap space") && !text.contains("mkfs"), "{text}");
        assert!(Holds::FileSystem(Uuid::NIL).instead_of_file_system("d").is_none());
    }
}
