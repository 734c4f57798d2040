//! Resolves DIR or DEVICE: a mounted file system, or a drive that is opened here.

use crate::holds::Needs;
use crate::tags;
use crate::visit::visit;
use anyhow::{Result, anyhow, bail};
use furrow_fs::{Fs, MountOptions};
use furrow_fuse::report::{self, Info, MapPage, Status};
use furrow_fuse::{Mounted, endpoint};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Help text: the devices that commands accept.
pub const DEVICE: &str = "Zoned drive (/dev/nvme0n2), any drive or file with soft zones, or image \
                          of an emulated drive (disk.zns)";

/// The place of the file system that a command queries.
pub enum Target {
    /// The file system is mounted at this directory.
    Mounted(PathBuf),
    /// The file system is on this device and not mounted.
    Device(String),
}

impl Target {
    /// The directory of the mount that `name` names; `otherwise` is what an unmounted file system
    /// means for the command.
    ///
    /// # Errors
    /// The errors of [`Target::find`]; an error that says what `name` is if it is not mounted.
    pub fn mounted(name: &OsStr, otherwise: &str) -> Result<PathBuf> {
        let device = match Target::find(name)? {
            Target::Mounted(directory) => return Ok(directory),
            Target::Device(device) => device,
        };
        match crate::holds::of_unmounted(&device) {
            Some(what) => bail!("{device}: no Furrow file system is mounted from it: {what}"),
            None if is_missing(&device) => bail!(
                "{device}: no such file or directory: name the directory of a mount, or its drive \
                 (furrow df lists both)"
            ),
            None => bail!("{device}: not mounted: {otherwise}"),
        }
    }

    /// Resolves `name`: a directory, a device, mounted or not, or `LABEL=` or `UUID=` of a file
    /// system that is mounted or on a block device.
    ///
    /// # Errors
    /// An error if the mount table cannot be read, or the mount is dead. Also an error if `name` is
    /// a directory inside a mount, the name of a running array, or a label or UUID that no or
    /// several file systems have.
    pub fn find(name: &OsStr) -> Result<Target> {
        let path = Path::new(name);
        let mounted = endpoint::mounted()?;
        if let Some(tag) = name.to_str().and_then(tags::Tag::parse) {
            return match tagged(&mounted, &tag)[..] {
                [] => Ok(Target::Device(tags::device_of(&text(name)?)?)),
                [mount] => Ok(Target::Mounted(mount.directory.clone())),
                _ => Err(anyhow!("{}: several mounts have it: name one", name.display())),
            };
        }
        if let Some(mount) = mount_at(&mounted, path) {
            if endpoint::is_dead(&mount.directory) {
                return Err(anyhow!(endpoint::dead_mount(&mount.directory)));
            }
            return Ok(Target::Mounted(mount.directory.clone()));
        }
        if path.is_dir() {
            let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            let above = mounted.iter().rfind(|mount| full.starts_with(&mount.directory));
            return match above {
                Some(Mounted { directory: at, .. }) if full != *at => Err(anyhow!(
                    "{}: a directory of the file system mounted on {at}: name that mount point",
                    path.display(),
                    at = at.display()
                )),
                _ => Ok(Target::Mounted(path.to_owned())),
            };
        }
        let source = source_name(&text(name)?);
        Ok(match mounted.into_iter().rfind(|mount| mount.source == source) {
            Some(mount) => Target::Mounted(mount.directory),
            None => {
                refuse_array(path)?;
                Target::Device(text(name)?)
            }
        })
    }

    /// The status of the file system.
    ///
    /// # Errors
    /// An error if this is not a file system of Furrow, or if it cannot be read.
    pub fn status(&self) -> Result<Status> {
        match self {
            Target::Mounted(directory) => report::ask_status(directory),
            Target::Device(device) => {
                inspect(device, async |fs, info| Ok(report::status(fs, info)))
            }
        }
    }

    /// The zones of the file system's drive.
    ///
    /// # Errors
    /// The errors of [`Target::status`].
    pub fn map(&self) -> Result<MapPage> {
        match self {
            Target::Mounted(directory) => report::ask_map(directory),
            Target::Device(device) => {
                inspect(device, async |fs, info| report::map(fs, info, 0, usize::MAX).await)
            }
        }
    }
}

/// Refuses `path` if it is the name of a running array and no file has this name.
fn refuse_array(path: &Path) -> Result<()> {
    let alone = path.components().count() == 1 && !path.exists();
    let Some(name) = path.to_str().filter(|_| alone) else { return Ok(()) };
    if crate::raid::client::running().iter().any(|array| array.status.array == name) {
        bail!(
            "{name}: an array, not a file system or a store: it has commands of its own, such as \
             furrow raid status {name} and furrow raid scrub {name}"
        );
    }
    Ok(())
}

/// The mounts with this label or UUID.
pub fn tagged<'a>(mounted: &'a [Mounted], tag: &tags::Tag<'_>) -> Vec<&'a Mounted> {
    let has = |mount: &&Mounted| {
        report::ask_status(&mount.directory)
            .is_ok_and(|status| tag.is_of(&status.uuid, &status.label))
    };
    mounted.iter().filter(has).collect()
}

/// The device that `name` stands for, for commands whose file system must not be mounted.
///
/// # Errors
/// The errors of [`Target::find`]; also an error if `name` is mounted, or only a directory.
pub fn unmounted(name: &OsStr) -> Result<String> {
    match Target::find(name)? {
        Target::Device(device) => Ok(device),
        Target::Mounted(directory) => Err(not_a_device(name, &directory)),
    }
}

/// The error if a command for devices refuses `name` because [`Target::find`] has found
/// `directory`: the device is mounted there, or `name` is only a directory.
pub fn not_a_device(name: &OsStr, directory: &Path) -> anyhow::Error {
    let path = Path::new(name);
    let (name, at) = (name.display(), directory.display());
    match endpoint::mounted() {
        Ok(mounted) if mount_at(&mounted, directory).is_none() => {
            anyhow!("{name}: a directory where nothing of Furrow is mounted: name the device")
        }
        Ok(mounted) if mount_at(&mounted, path).is_some() => {
            anyhow!("{name}: a mounted file system: unmount it first (furrow umount {at})")
        }
        _ => anyhow!("{name}: mounted on {at}: unmount it first (furrow umount {at})"),
    }
}

/// The mount at `directory`, the newest if there are several. Does not access the mount itself,
/// since it may be dead.
pub fn mount_at<'a>(mounted: &'a [Mounted], directory: &Path) -> Option<&'a Mounted> {
    let full = without_touching(directory);
    mounted.iter().rfind(|mount| mount.directory == full)
}

/// Makes `path` absolute and resolves links, without accessing its last part.
fn without_touching(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            parent.canonicalize().unwrap_or_else(|_| parent.to_owned()).join(name)
        }
        _ => absolute,
    }
}

/// The name of `device` in the mount table: the full path of its file, with links resolved; the
/// given name if `device` has no file.
pub fn source_name(device: &str) -> String {
    let spec: Option<DeviceSpec> = device.parse().ok();
    let Some(path) = spec.as_ref().and_then(DeviceSpec::path) else { return device.to_owned() };
    match Path::new(path).canonicalize() {
        Ok(path) => path.to_str().map_or_else(|| device.to_owned(), str::to_owned),
        Err(_) => device.to_owned(),
    }
}

/// Whether `device` is the path of a file that does not exist.
fn is_missing(device: &str) -> bool {
    let spec: Option<DeviceSpec> = device.parse().ok();
    spec.is_some_and(|spec| spec.path().is_some_and(|path| !Path::new(path).exists()))
}

/// `name` as text.
///
/// # Errors
/// An error if the name is not UTF-8.
pub fn text(name: &OsStr) -> Result<String> {
    name.to_str()
        .map(str::to_owned)
        .ok_or_else(|| anyhow!("{}: a device's name must be UTF-8", name.display()))
}

/// Opens `device` read-only in this thread, inspects its file system, and closes it.
fn inspect<T: 'static>(
    device: &str,
    look: impl AsyncFnOnce(&Fs, &Info) -> Result<T, Error> + 'static,
) -> Result<T> {
    let name = device.to_owned();
    visit(device, Access::ReadOnly, Needs::FileSystem, async move |rt, drive| {
        let info = Info {
            device: name,
            directory: String::new(),
            pid: std::process::id(),
            read_only: true,
            zone_blocks: drive.geometry().zone_capacity.0,
        };
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fs = Fs::mount(rt, drive, options).await?;
        let found = look(&fs, &info).await;
        fs.unmount().await?;
        found
    })
}
