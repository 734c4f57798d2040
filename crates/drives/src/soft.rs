//! Soft zones: recognising, opening and making them, on a block device without zones or in a file.

use crate::{FRONT, signature};
use furrow_emu::Identity;
use furrow_emu::format::MAGIC;
use furrow_linux::{PlainFile, allocate};
use furrow_log::Uuid;
use furrow_rt::buf::is_zero;
use furrow_rt::{Config, Rng, Rt};
use furrow_soft::{Layout, MakeOptions, SoftDrive, Superblock, is_superblock, make, recover};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, ByteLen, Error, ErrorKind};
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;

/// Whether `spec` names a block device or a file with soft zones, damaged or not.
pub fn is_soft(spec: &DeviceSpec) -> bool {
    spec.path().is_some_and(|path| is_superblock(&PlainFile::first_block(path)))
}

/// The message for soft zones that have lost the superblock, their first block, but not the
/// superblock's copy in the last block.
pub const WITHOUT_FRONT: &str = "soft zones whose first block is damaged or overwritten; its copy, \
                                 the last block, is there";

/// Whether the last block of the file or block device at `path` is the copy of a superblock, while
/// the first block is not a superblock.
pub fn has_lost_front(path: &Path) -> bool {
    let last = || {
        let mut file = File::open(path)?;
        let blocks = file.seek(SeekFrom::End(0))? / 4096;
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, blocks.saturating_sub(1) * 4096)?;
        std::io::Result::Ok(bytes)
    };
    let first = path.to_str().map(PlainFile::first_block).unwrap_or_default();
    !first.is_empty() && !is_superblock(&first) && last().is_ok_and(|last| is_superblock(&last))
}

/// Restores the first block of the soft zones at `path` from its copy.
///
/// # Errors
/// `Exists` if another program's data is there now; the errors of [`PlainFile::open`],
/// [`PlainFile::start`] and [`furrow_soft::restore_front`].
pub fn restore_front(path: &str) -> Result<(), Error> {
    let file = PlainFile::open(path, Access::ReadWrite)?;
    if let Some(found) = signature(&file.front(FRONT as usize)?) {
        let what = format!("{path}: {WITHOUT_FRONT}, and it holds {found}: nothing was changed");
        return Err(Error::new(ErrorKind::Exists, what));
    }
    let rt = Rt::new(Config::real());
    let plain = file.start(&rt)?;
    let restored = rt.block_on(async move { furrow_soft::restore_front(&plain).await });
    rt.clear();
    restored
}

/// Opens the soft zones that `spec` names. A separate executor recovers them, so `rt` may
/// be running.
///
/// # Errors
/// `Invalid` for options, which soft zones do not take; the errors of [`PlainFile::open`],
/// [`PlainFile::start`], [`recover`] and [`SoftDrive::start`].
pub fn open(rt: &Rt, spec: &DeviceSpec, access: Access) -> Result<Rc<SoftDrive>, Error> {
    let path = spec.path().unwrap_or_default();
    let options = match spec {
        DeviceSpec::Image(image) => image.sync || image.run != Default::default(),
        DeviceSpec::Node(node) => node.queued,
        DeviceSpec::Memory(_) => false,
    };
    if options {
        let what = format!("{path}: soft zones take no options: they are not an emulated drive");
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    let file = PlainFile::open(path, access)?;
    let own = Rt::new(Config { ..*rt.config() });
    let plain = file.start(&own)?;
    let mut rng = Rng::new(rt.random());
    let recovered =
        own.block_on(async move { recover(&plain, access, &mut rng, Default::default()).await });
    own.clear();
    SoftDrive::start(rt, Rc::new(file.start(rt)?), recovered?).map(Rc::new)
}

/// The number of write streams of `drive` and their use, as text.
pub fn streams(drive: &SoftDrive) -> String {
    match drive.streams() {
        0 => "none".to_owned(),
        1 => "1, for all zones".to_owned(),
        streams => format!("{streams}: 1 for the journal, {} for zones", streams - 1),
    }
}

/// Default size of a zone in bytes.
const ZONE: u64 = 64 << 20;
/// Minimum size to which zones are reduced in order to get more of them.
const ZONE_MIN: u64 = 1 << 20;
/// Number of zones that a file system should have; the minimum is 17.
const ZONES_ENOUGH: u32 = 32;

/// Default size in bytes of the zones of a drive of `size`.
pub fn usual_zone(size: ByteLen) -> ByteLen {
    let mut zone = ZONE;
    let enough = |zone| {
        Layout::plan(size, ByteLen(zone), None).is_ok_and(|layout| layout.zones >= ZONES_ENOUGH)
    };
    while zone > ZONE_MIN && !enough(zone) {
        zone /= 2;
    }
    ByteLen(zone)
}

/// Makes soft zones of `zone` bytes on the block device or file at `path`. A file that does not
/// exist is made, with `size` bytes.
///
/// # Errors
/// `NotFound` if the device does not exist; `Exists` if the device or file holds data, unless
/// `force` is set; `Invalid` if the size is missing, or is not that of the file; the errors of
/// [`allocate`], [`PlainFile::open`], [`PlainFile::take_all`], [`PlainFile::start`] and [`make`].
pub fn create(
    path: &Path,
    zone: Option<ByteLen>,
    size: Option<ByteLen>,
    force: bool,
) -> Result<Superblock, Error> {
    let name = path.display().to_string();
    let invalid = |what: String| Error::new(ErrorKind::Invalid, format!("{name}: {what}"));
    let fresh = !path.exists();
    if fresh && matches!(name.parse(), Ok(DeviceSpec::Node(_))) {
        // Creating the missing file would put it into /dev, in memory, where it would prevent the
        // device from appearing later.
        return Err(Error::new(ErrorKind::NotFound, format!("{name}: no such device")));
    }
    if fresh {
        let size =
            size.ok_or_else(|| invalid("no such file: give --size to create it".to_owned()))?;
        allocate(path, size)?;
    }
    let made = on_existing(&name, zone, size, force || fresh);
    if fresh && made.is_err() {
        // Remove the file, because this call has made it.
        let _ = std::fs::remove_file(path);
    }
    made
}

fn on_existing(
    name: &str,
    zone: Option<ByteLen>,
    size: Option<ByteLen>,
    force: bool,
) -> Result<Superblock, Error> {
    let file = match force {
        true => PlainFile::open_to_destroy(name)?,
        false => PlainFile::open(name, Access::ReadWrite)?,
    };
    let front = file.front(FRONT as usize)?;
    let held = match signature(&front) {
        _ if is_superblock(&front) => Some("soft zones"),
        _ if front.starts_with(&MAGIC) => Some("an emulated drive"),
        Some(other) => Some(other),
        None if has_lost_front(Path::new(name)) => Some(WITHOUT_FRONT),
        None if !is_zero(&front) => Some("data of an unknown kind"),
        None => None,
    };
    if let Some(held) = held.filter(|_| !force) {
        let what = format!(
            "{name}: not empty, it holds {held}: choose another drive; --force destroys what it \
             holds"
        );
        return Err(Error::new(ErrorKind::Exists, what));
    }
    let rt = Rt::new(Config::real());
    let plain = file.start(&rt)?;
    let found = furrow_zone::PlainDevice::size(&plain);
    if let Some(size) = size.filter(|size| size.0 / 4096 != found.0 / 4096) {
        let what = format!("{name}: {found} bytes, not {size}: leave out --size");
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    let uuid = Uuid(Identity::fresh("")?.uuid);
    let zone = zone.unwrap_or_else(|| usual_zone(found));
    // A size that does not fit must not cost the device its partitions.
    Layout::plan(found, zone, None).map_err(|error| error.at(name))?;
    file.take_all()?;
    let options = MakeOptions { zone, records: None, uuid };
    let made = rt.block_on(async move { make(&plain, &options).await });
    rt.clear();
    made
}
