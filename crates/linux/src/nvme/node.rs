//! Opens a generic NVMe device: claims it, and reads identify data and zone reports by ioctl.
//!
//! A character device has no exclusive open. So its node is locked (`flock`), which keeps
//! other programs of Furrow away. If the kernel shows the block device of the same namespace,
//! this process holds that open exclusively, which keeps away file systems and all other
//! exclusive users.

#![allow(unsafe_code, reason = "an ioctl's argument is typed by its number only")]

use super::identify::{BYTES, Identified, Identity, read};
use super::{DESCRIPTOR, Namespace, NvmeCommand, REPORT_BYTES, descriptors, reporting};
use crate::drive::{Opened, open_node, refuse_obstacles};
use crate::ioctl::{Descriptor, SECTOR};
use crate::layout;
use crate::names::{self, Obstacle};
use crate::plain::lock;
use furrow_zone::{Access, BlockCount, Error, ErrorKind};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `struct nvme_passthru_cmd64`, for its size only.
type Passthrough = [u64; 10];

/// `NVME_IOCTL_ID`, which returns the namespace's number.
const ID: Opcode = opcode::none(b'N', 0x40);
/// `NVME_IOCTL_ADMIN64_CMD`.
const ADMIN: Opcode = opcode::read_write::<Passthrough>(b'N', 0x47);
/// `NVME_IOCTL_IO64_CMD`.
const IO: Opcode = opcode::read_write::<Passthrough>(b'N', 0x48);

/// The operation code of Identify.
const IDENTIFY: u8 = 0x06;
/// The zoned command set (CSI), shifted to its place in dword 11 of Identify.
const ZONED: u32 = 2 << 24;

/// Size in KiB, and number of memory pieces, that every request queue accepts in one command
/// (`BLK_SAFE_MAX_SECTORS`, `BLK_MAX_SEGMENTS` in the kernel's `include/linux/blkdev.h`).
const ANY_QUEUE: (u64, u64) = (127, 128);

/// Maximum number of out-of-band bytes per block: the kernel keeps the number in one byte
/// (`metadata_size` of `struct blk_integrity`).
const MOST_OOB: u64 = 255;

/// An ioctl that returns a number.
struct Call<'a> {
    opcode: Opcode,
    argument: Option<&'a mut Passthrough>,
}

// SAFETY: the argument has the size that the calls read and write; a call without an argument
// uses none.
unsafe impl Ioctl for Call<'_> {
    type Output = u32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut().map_or(std::ptr::null_mut(), |argument| argument.as_mut_ptr().cast())
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        Ok(out.cast_unsigned())
    }
}

/// The reason why a command sent by ioctl failed.
#[derive(Clone, Copy, Debug)]
enum Why {
    Errno(Errno),
    Status(u32),
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::Errno(errno) => errno.fmt(f),
            Why::Status(status) => write!(f, "NVMe status {:03X}h", status & 0x7ff),
        }
    }
}

/// Executes `command`, which fills `memory`.
fn carry_out(
    file: &File,
    opcode: Opcode,
    mut command: NvmeCommand,
    memory: &mut [u8],
) -> Result<(), Why> {
    command.data = (memory.as_mut_ptr() as u64, memory.len() as u32);
    let mut argument = Passthrough::default();
    for (word, bytes) in argument.iter_mut().zip(command.bytes().chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    }
    // SAFETY: the command reads into `memory`, whose length it names.
    match unsafe { ioctl(file, Call { opcode, argument: Some(&mut argument) }) } {
        Ok(0) => Ok(()),
        Ok(status) => Err(Why::Status(status)),
        Err(errno) => Err(Why::Errno(errno)),
    }
}

/// Reads identify data of kind `kind` (CNS) of the namespace `id`, or of the controller if `id` is
/// 0. `set` is dword 11, which names the command set.
fn identify(file: &File, id: u32, kind: u32, set: u32) -> Result<Box<[u8; BYTES]>, Why> {
    let mut data = Box::new([0; BYTES]);
    let mut command = NvmeCommand { opcode: IDENTIFY, namespace: id, ..NvmeCommand::default() };
    (command.dwords[0], command.dwords[1]) = (kind, set);
    carry_out(file, ADMIN, command, &mut data[..])?;
    Ok(data)
}

/// Reads the reports of all zones.
fn report(file: &File, namespace: Namespace) -> Result<Vec<Descriptor>, Why> {
    let mut found: Vec<Descriptor> = Vec::new();
    let mut memory = vec![0; REPORT_BYTES];
    let most = REPORT_BYTES / DESCRIPTOR - 1;
    loop {
        let next = found.last().map_or(0, |last| last.start + last.length);
        let lba = next * SECTOR / namespace.block;
        let command = reporting(namespace, lba, (0, REPORT_BYTES));
        match carry_out(file, IO, command, &mut memory) {
            Ok(()) => {}
            // The address is that of the first block after the last zone.
            Err(Why::Status(status)) if status & 0x7ff == 0x80 && !found.is_empty() => break,
            Err(why) => return Err(why),
        }
        let zones = descriptors(namespace, &memory);
        let full = zones.len() == most && zones[0].start == next;
        found.extend(zones);
        if !full {
            break;
        }
    }
    Ok(found)
}

/// Whether `path` is a generic NVMe device.
pub(crate) fn is_generic(path: &Path) -> bool {
    folder(path).is_ok_and(|folder| {
        let class = fs::read_link(folder.join("subsystem"));
        class.is_ok_and(|class| class.file_name().is_some_and(|name| name == "nvme-generic"))
    })
}

/// The folder in sysfs of the character device at `path`.
pub(crate) fn folder(path: &Path) -> std::io::Result<PathBuf> {
    let meta = fs::metadata(path)?;
    if !meta.file_type().is_char_device() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    Ok(PathBuf::from(format!("/sys/dev/char/{major}:{minor}")))
}

/// The folder in sysfs of the block device of the same namespace; the device may be hidden.
fn block_folder(folder: &Path) -> Option<PathBuf> {
    let generic = fs::canonicalize(folder).ok()?;
    let numbers = generic.file_name()?.to_str()?.strip_prefix("ng")?;
    let block = Path::new("/sys/class/block").join(format!("nvme{numbers}"));
    block.exists().then_some(block)
}

/// The node of the block device of the same namespace; `None` if the kernel hides it, as it does if
/// the size of zones is not a power of two.
fn block_node(folder: &Path) -> Option<PathBuf> {
    let block = block_folder(folder)?;
    let hidden = fs::read_to_string(block.join("hidden"));
    let shown = hidden.is_ok_and(|hidden| hidden.trim() == "0");
    shown.then(|| Path::new("/dev").join(block.file_name().unwrap_or_default()))
}

/// Size in KiB, and number of memory pieces, of the largest command that the kernel accepts for the
/// namespace. If the kernel does not show them, those that every request queue accepts.
fn largest(folder: &Path) -> (u64, u64) {
    let block = block_folder(folder);
    let limit = |name: &str, otherwise| {
        let text = fs::read_to_string(block.as_ref()?.join("queue").join(name)).ok()?;
        Some(text.trim().parse().unwrap_or(otherwise))
    };
    let (kib, pieces) = (ANY_QUEUE.0, ANY_QUEUE.1);
    let kib = limit("max_hw_sectors_kb", kib).unwrap_or(kib);
    (kib, limit("max_segments", pieces).unwrap_or(pieces))
}

/// The obstacles to using the generic device at `path`, most important first.
pub(crate) fn obstacles(path: &Path) -> Vec<Obstacle> {
    let Some(block) = folder(path).ok().and_then(|folder| block_node(&folder)) else {
        return Vec::new();
    };
    let mut found = names::obstacles(&block);
    // A block device without a node is not an obstacle: no program can open it by name. `open` adds
    // a warning.
    found.retain(|obstacle| obstacle.code != "not-found");
    found
}

/// Opens the generic device at `path`.
///
/// # Errors
/// `NotFound`, `Denied`, `Busy` (in use), `WrongFormat` (no zones, or a format that cannot be
/// used), `ReadOnly`, `Io`. Nothing has been written.
pub(crate) fn open(path: &str, access: Access) -> Result<(Opened, Namespace), Error> {
    let at = Path::new(path);
    let refusal = |kind, what: String| Error::new(kind, format!("{path}: {what}"));
    let wrong = |what: String| refusal(ErrorKind::WrongFormat, what);
    let folder = folder(at).map_err(|error| refusal(ErrorKind::NotFound, error.to_string()))?;
    refuse_obstacles(path, obstacles(at), access)?;
    let file = OpenOptions::new().read(true).write(access.writes()).open(at);
    let file = file.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            refusal(ErrorKind::Denied, format!("{error}: run this as root"))
        }
        std::io::ErrorKind::NotFound => refusal(ErrorKind::NotFound, error.to_string()),
        _ => refusal(ErrorKind::Io, error.to_string()),
    })?;
    lock(path, &file, access)?;
    let mut warnings = Vec::new();
    let mut claims = Vec::new();
    let block = block_node(&folder);
    if let Some(block) = &block {
        match open_node(block, access) {
            Ok(held) => claims.push(Arc::new(held.claim)),
            Err(error) if error.kind() == ErrorKind::NotFound => warnings.push(format!(
                "{path}: {} is not here and cannot be held: nothing keeps other programs from \
                 using it",
                block.display()
            )),
            Err(error) => return Err(error),
        }
    }
    // SAFETY: the call takes no argument.
    let id = unsafe { ioctl(&file, Call { opcode: ID, argument: None }) };
    let id = id.map_err(|errno| wrong(format!("no NVMe namespace: {errno}")))?;
    let ask = |what: &str, id, kind, set| {
        identify(&file, id, kind, set)
            .map_err(|why| refusal(ErrorKind::Io, format!("identify {what}: {why}")))
    };
    let controller = ask("the controller", 0, 0x01, 0)?;
    let namespace = ask("the namespace", id, 0x00, 0)?;
    let zoned = |why: Why| match why {
        Why::Status(_) => wrong(format!(
            "it has no zones ({why}): use its block device, on which 'furrow device create --soft' \
             makes soft zones"
        )),
        Why::Errno(_) => refusal(ErrorKind::Io, format!("identify the zones: {why}")),
    };
    let zoned_namespace = identify(&file, id, 0x05, ZONED).map_err(zoned)?;
    let zoned_controller = identify(&file, 0, 0x06, ZONED).map_err(zoned)?;
    let identity = Identity {
        controller: &controller,
        namespace: &namespace,
        zoned_controller: &zoned_controller,
        zoned_namespace: &zoned_namespace,
    };
    let identified = read(id, &identity, largest(&folder)).map_err(wrong)?;
    let Identified { namespace, limits, append, read_across } = identified;
    if namespace.oob > MOST_OOB {
        return Err(wrong(format!(
            "it has {} out-of-band bytes per block, but the kernel takes at most {MOST_OOB}: \
             format it with fewer (nvme format)",
            namespace.oob
        )));
    }
    if namespace.oob > 0 && block.is_none() {
        return Err(wrong(format!(
            "it has {} out-of-band bytes per block, but the kernel takes none for a namespace \
             without a block device: format it without (nvme format)",
            namespace.oob
        )));
    }
    if limits.read_only && access.writes() {
        let what =
            "the namespace is write protected: nvme get-feature -f 0x84 shows how".to_owned();
        return Err(refusal(ErrorKind::ReadOnly, what));
    }
    let zones = report(&file, namespace)
        .map_err(|why| refusal(ErrorKind::Io, format!("zone report: {why}")))?;
    let mut geometry = layout::geometry(&limits, &zones).map_err(wrong)?;
    geometry.oob_bytes = u16::try_from(namespace.oob).unwrap_or(u16::MAX);
    geometry.read_across_zones = read_across;
    geometry.max_append =
        geometry.max_transfer.map(|most| BlockCount(most.0.min(append / namespace.block)));
    geometry.validate().map_err(|error| wrong(error.to_string()))?;
    let (name, file) = (path.to_owned(), Arc::new(file));
    Ok((Opened { name, folder, geometry, access, file, claims, warnings }, namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_the_kernels() {
        assert_eq!([ID, ADMIN, IO], [0x4e40, 0xc050_4e47, 0xc050_4e48]);
    }

    #[test]
    fn other_devices_are_not_generic_ones() {
        assert!(!is_generic(Path::new("/dev/null")) && !is_generic(Path::new("/dev/ng99n9")));
        assert!(obstacles(Path::new("/dev/null")).is_empty());
        let file = File::open("/dev/null").expect("a system with /dev/null");
        assert!(matches!(identify(&file, 0, 1, 0), Err(Why::Errno(Errno::NOTTY))));
    }
}
