//! The drives named by arguments, and the arrays they belong to.

use crate::holds::{self, Holds};
use crate::in_use;
use anyhow::{Context as _, Result, bail};
use furrow_drives::{block_devices, of_no_member};
use furrow_linux::Obstacle;
use furrow_raid::{Damaged, Examined, damaged_member, examine};
use furrow_rt::{Nanos, Rt, within};
use furrow_zone::spec::{DeviceSpec, Image, Node, Run};
use furrow_zone::{Access, Error, ErrorKind, ZonedDevice};
use glob::Pattern;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// A drive named by an argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// The drive's spec; the path of an image is absolute.
    pub spec: DeviceSpec,
    /// True if the drive itself was named, not found through a directory or pattern.
    pub by_name: bool,
}

/// The result of inspecting a drive.
pub enum Says {
    /// The drive is a member of an array.
    Member(Box<Examined>),
    /// The drive is a member or spare, but none of its records is whole; the error says so.
    Damaged(Damaged, Error),
    /// The drive is not a member, or cannot be read: the reason, and in one word what the drive
    /// holds, if known.
    Nothing(Error, Option<&'static str>),
}

/// The drives that `arguments` name: device specs, directories of images, and patterns (`*`, `?`,
/// `[0-9]`) of images or devices in a directory.
///
/// # Errors
/// An error if an argument is invalid, or a drive is named twice.
pub fn named(arguments: &[String]) -> Result<Vec<Named>> {
    let mut all: Vec<Named> = Vec::new();
    for argument in arguments {
        let (found, by_name) = match several(argument)? {
            Some(paths) => (paths.into_iter().map(found_at).collect::<Result<Vec<_>>>()?, false),
            None => (vec![one(argument)?], true),
        };
        for spec in found {
            let named = Named { spec, by_name };
            match all.iter_mut().find(|other| same(&other.spec, &named.spec)) {
                Some(other) if other.by_name && by_name => bail!("{argument} is named twice"),
                Some(other) => other.by_name |= by_name,
                None => all.push(named),
            }
        }
    }
    Ok(all)
}

/// The drives of this machine that may belong to an array.
pub fn of_machine() -> Vec<Named> {
    block_devices::all().into_iter().map(|spec| Named { spec, by_name: false }).collect()
}

/// Drives that are not in `named`: those of the machine, and the files next to the files that
/// were named.
pub fn not_named(named: &[Named]) -> Vec<Named> {
    let folder = |named: &Named| match &named.spec {
        DeviceSpec::Image(image) => Path::new(&image.path).parent().map(Path::to_owned),
        _ => None,
    };
    let mut folders: Vec<PathBuf> = named.iter().filter_map(folder).collect();
    folders.sort();
    folders.dedup();
    let files = folders.iter().filter_map(|folder| several(folder.to_str()?).ok().flatten());
    let files = files.flatten().filter_map(|path| found_at(path).ok());
    let files = files.map(|spec| Named { spec, by_name: false });
    let mut found: Vec<Named> = of_machine().into_iter().chain(files).collect();
    found.retain(|one| !named.iter().any(|other| same(&one.spec, &other.spec)));
    found
}

/// Like [`named`], for devices that must be named individually.
///
/// # Errors
/// The errors of [`named`].
pub fn listed(arguments: &[String]) -> Result<Vec<DeviceSpec>> {
    let mut all: Vec<DeviceSpec> = Vec::new();
    for argument in arguments {
        let spec = one(argument)?;
        if all.iter().any(|other| same(other, &spec)) {
            bail!("{argument} is named twice");
        }
        all.push(spec);
    }
    Ok(all)
}

/// Parses one device, and makes the path of an image absolute.
///
/// # Errors
/// An error if the argument is invalid, or names a drive in memory.
pub fn one(argument: &str) -> Result<DeviceSpec> {
    let spec: DeviceSpec = argument.parse()?;
    check_lasting(&spec)?;
    absolute(spec)
}

/// Refuses a drive in memory, because the drive disappears with the process that made it, and so
/// does the drive's part of the array.
///
/// # Errors
/// `Invalid` for such a drive.
pub fn check_lasting(spec: &DeviceSpec) -> Result<(), Error> {
    match spec {
        DeviceSpec::Memory(_) => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{spec}: a drive in memory is gone when its process ends, and cannot be part of an \
                 array: furrow device create makes drives that last"
            ),
        )),
        DeviceSpec::Node(_) | DeviceSpec::Image(_) => Ok(()),
    }
}

/// Whether both specs name the same drive. Drives in memory are always different.
pub fn same(one: &DeviceSpec, other: &DeviceSpec) -> bool {
    // A device has several names: names in /dev/disk are links.
    let full = |path: &str| Path::new(path).canonicalize().unwrap_or_else(|_| path.into());
    match (one, other) {
        (DeviceSpec::Image(one), DeviceSpec::Image(other)) => one.path == other.path,
        (DeviceSpec::Node(one), DeviceSpec::Node(other)) => {
            one.path == other.path || full(&one.path) == full(&other.path)
        }
        _ => false,
    }
}

fn absolute(spec: DeviceSpec) -> Result<DeviceSpec> {
    let DeviceSpec::Image(image) = spec else { return Ok(spec) };
    let path = Path::new(&image.path);
    let full = path.canonicalize().or_else(|_| std::path::absolute(path)).context("the path")?;
    let path = full.to_str().context("a device's name must be UTF-8")?.to_owned();
    Ok(DeviceSpec::Image(Image { path, ..image }))
}

/// The spec of a file or device that was found through a directory or pattern.
fn found_at(path: PathBuf) -> Result<DeviceSpec> {
    let full = path.canonicalize().with_context(|| path.display().to_string())?;
    let is_file = full.is_file();
    let path = full.to_str().context("a device's name must be UTF-8")?.to_owned();
    Ok(match is_file {
        true => DeviceSpec::Image(Image { path, run: Run::default(), sync: false }),
        false => DeviceSpec::Node(Node::new(path)),
    })
}

/// The files in a directory, or the files and devices that match a pattern, sorted; `None` if
/// `argument` is neither. A directory stands only for its files, because many devices in a
/// directory such as /dev are not drives.
fn several(argument: &str) -> Result<Option<Vec<PathBuf>>> {
    let path = Path::new(argument);
    let is_folder = path.is_dir();
    let (folder, pattern) = if is_folder {
        (path, "*")
    } else {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.contains(['*', '?', '[']) || path.exists() {
            return Ok(None);
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        (parent.unwrap_or(Path::new(".")), name)
    };
    let pattern = Pattern::new(pattern).with_context(|| argument.to_owned())?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Ok(kind) = std::fs::metadata(&path).map(|meta| meta.file_type()) else { continue };
        let is_device = !is_folder && (kind.is_block_device() || kind.is_char_device());
        let fits = !name.starts_with('.') && pattern.matches(name);
        if fits && (kind.is_file() || is_device) {
            found.push(path);
        }
    }
    if found.is_empty() {
        bail!("{argument}: no drive there: name drives, or a directory of their images");
    }
    found.sort();
    Ok(Some(found))
}

/// Opens a drive for writing. If its image is in use, waits up to `patience` for it.
///
/// # Errors
/// The errors of [`in_use::open`].
pub fn open(rt: &Rt, spec: &DeviceSpec, patience: Duration) -> Result<Rc<dyn ZonedDevice>, Error> {
    let drive = in_use::open(rt, spec, Access::ReadWrite, patience, crate::complain)?;
    in_use::warn(&*drive);
    Ok(drive)
}

/// Time limits for one inspection of a drive.
#[derive(Clone, Copy)]
pub struct Patience {
    /// Longest time to wait for a drive that was named and whose image is in use.
    pub busy: Duration,
    /// Nanoseconds that the drive may take to answer; 0: no limit.
    pub silent: u64,
}

/// Inspects a drive and closes it.
///
/// # Errors
/// The errors of [`holds::open`], and `Io` if the drive does not answer in time. Unexpected content
/// is not an error.
pub fn look(rt: &Rt, named: &Named, patience: Patience) -> Result<Says, Error> {
    let Patience { busy, silent } = patience;
    let opened = match named.by_name {
        true => in_use::open(rt, &named.spec, Access::ReadOnly, busy, crate::complain),
        false => holds::open(rt, &named.spec, Access::ReadOnly),
    };
    let drive = opened.map_err(|error| match error.kind() {
        // This drops the advice to create the missing image: a new drive would not be a member.
        ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, format!("{}: there is no such drive", named.spec))
        }
        _ => of_no_member(error),
    })?;
    let engine = rt.clone();
    rt.block_on(async move {
        if silent == 0 {
            return Ok(says(&*drive).await);
        }
        within(&engine, silent, says(&*drive)).await.ok_or_else(|| {
            drive.give_up();
            let seconds = silent as f64 / Nanos::SECOND as f64;
            Error::new(ErrorKind::Io, format!("{}: no answer for {seconds} s", drive.name()))
        })
    })
}

/// Whether a drive that cannot be inspected may be a member. A file may be one if it begins as a
/// drive does or cannot be read; what the kernel uses is not a member.
pub fn is_possible_member(spec: &DeviceSpec) -> bool {
    let Some(path) = spec.path().map(Path::new) else { return false };
    match spec {
        DeviceSpec::Node(_) => {
            let obstacles = [furrow_linux::obstacles(path), furrow_linux::plain_obstacles(path)];
            !obstacles.iter().flatten().any(Obstacle::is_use)
        }
        _ => is_image(spec) || std::fs::File::open(path).is_err(),
    }
}

/// Whether the drive is a file that begins as the image of a drive does.
pub fn is_image(spec: &DeviceSpec) -> bool {
    let path = spec.path().map(Path::new);
    !matches!(spec, DeviceSpec::Node(_)) && path.is_some_and(furrow_drives::is_image)
}

/// Inspects an open drive.
async fn says(drive: &dyn ZonedDevice) -> Says {
    let error = match examine(drive).await {
        Ok(examined) => return Says::Member(Box::new(examined)),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::Corrupt
        && let Ok(Some(damaged)) = damaged_member(drive).await
    {
        return Says::Damaged(damaged, error);
    }
    match (error.kind(), Holds::of(drive).await) {
        (ErrorKind::NotFound, Ok(holds)) => {
            let error = holds::instead_of_member(&drive.name(), &holds);
            Says::Nothing(error, Some(holds.word()))
        }
        _ => Says::Nothing(error, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_patterns_are_several_drives_and_names_count_more() {
        let folder = std::env::temp_dir().join(format!("furrow-devices-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["a.zns", "b.zns", "c.txt", ".hidden"] {
            std::fs::write(folder.join(name), b"").unwrap();
        }
        let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        assert_eq!(named(&[at("")]).unwrap().len(), 3);
        let some = named(&[at("*.zns"), at("b.zns,seed=3")]).unwrap();
        assert_eq!(some.iter().map(|n| n.by_name).collect::<Vec<_>>(), [false, true]);
        let error = named(&[at("a.zns"), at("./a.zns")]).unwrap_err().to_string();
        assert!(error.contains("named twice"), "{error}");
        assert!(listed(&[at("a.zns"), at("a.zns")]).is_err());
        assert!(named(&[at("*.img")]).unwrap_err().to_string().contains("no drive there"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn patterns_find_devices_and_directories_do_not() {
        let found = named(&["/dev/nul?".to_owned()]).unwrap();
        assert_eq!(found, [Named { spec: "/dev/null".parse().unwrap(), by_name: false }]);
        let folder = std::env::temp_dir().join(format!("furrow-nodes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        // In real use udev also makes two links to one device.
        for name in ["serial", "wwn"] {
            std::os::unix::fs::symlink("/dev/null", folder.join(name)).unwrap();
        }
        let path = folder.to_str().unwrap().to_owned();
        assert_eq!(named(&[format!("{path}/*")]).unwrap().len(), 1, "one drive, found twice");
        assert!(named(&[path]).is_err());
        std::fs::remove_dir_all(folder).unwrap();
        let nodes = ["/dev/null", "/dev/../dev/null"].map(|path| path.parse().unwrap());
        assert!(same(&nodes[0], &nodes[1]));
    }
}
