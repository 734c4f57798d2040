//! Labels and UUIDs of the content of drives, as udev and fstab(5) use them: `LABEL=data`,
//! `UUID=…`; and names of volumes, `/dev/furrow/NAME`.
//!
//! libblkid does not know Furrow, and its list of file systems cannot be extended from outside. So
//! a rule of udev asks this program ([`properties`]), and `furrow mount` finds such names itself.

use crate::holds::{self, Holds};
use crate::raid::client;
use crate::raid::status::{Member, Status};
use crate::target::tagged;
use anyhow::{Result, bail};
use furrow_drives::block_devices;
use furrow_log::Uuid;
use furrow_rt::Rt;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::words::count;
use furrow_zone::{Access, ErrorKind, ZonedDevice};
use std::path::{Path, PathBuf};

/// The type of a member of an array.
const MEMBER: &str = "furrow_raid_member";

/// The content of a drive, as properties of udev: `ID_FS_TYPE=furrow` and so on, in the forms that
/// blkid(8) uses for other file systems. Empty if the content is not Furrow's.
///
/// # Errors
/// An error if the drive does not answer.
pub async fn properties(device: &dyn ZonedDevice) -> Result<Vec<(&'static str, String)>> {
    let holds = Holds::of(device).await?;
    let Some((uuid, label)) = holds.identity(device).await? else { return Ok(Vec::new()) };
    let (usage, kind) = match &holds {
        Holds::FileSystem(_) => ("filesystem", "furrow"),
        Holds::Member(_) => ("raid", MEMBER),
        _ => ("other", "furrow_store"),
    };
    let mut all = names(usage, kind, &uuid.to_string(), &label);
    if let Holds::Member(examined) = &holds {
        all.extend(of_drive(&examined.device.to_string()));
    }
    Ok(all)
}

/// Properties of content with this usage, type, UUID and label; the label may be empty.
fn names(usage: &str, kind: &str, uuid: &str, label: &str) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("ID_FS_USAGE", usage.to_owned()),
        ("ID_FS_TYPE", kind.to_owned()),
        ("ID_FS_VERSION", furrow_fs::format::VERSION.to_string()),
        ("ID_FS_UUID", uuid.to_owned()),
        ("ID_FS_UUID_ENC", encode(uuid)),
    ];
    if !label.is_empty() {
        all.push(("ID_FS_LABEL", safe(label)));
        all.push(("ID_FS_LABEL_ENC", encode(label)));
    }
    all
}

/// Properties of a drive of an array.
fn of_drive(uuid: &str) -> [(&'static str, String); 2] {
    ["ID_FS_UUID_SUB", "ID_FS_UUID_SUB_ENC"].map(|name| (name, uuid.to_owned()))
}

/// Properties of a drive that a running array has open; empty if no array has it open.
pub fn of_member(device: &str) -> Vec<(&'static str, String)> {
    let is = |place: &String| {
        Path::new(place).canonicalize().ok() == Path::new(device).canonicalize().ok()
    };
    for array in client::running() {
        let Status { array: name, uuid, members, .. } = &array.status;
        let mine = |member: &&Member| member.device.as_ref().is_some_and(is);
        if let Some(member) = members.iter().find(mine) {
            let mut all = names("raid", MEMBER, uuid, name);
            all.extend(of_drive(&member.uuid));
            return all;
        }
    }
    Vec::new()
}

/// The folder in which udev makes links, by name, to the volumes of arrays.
const VOLUMES: &str = "/dev/furrow/";

/// Properties of the array whose volume is the block device `device`; empty if no running array has
/// that volume.
pub fn of_volume(device: &str) -> Vec<(&'static str, String)> {
    let serves = |status: &Status| status.listening.iter().any(|place| place == device);
    let running = client::running();
    let Some(array) = running.iter().find(|array| serves(&array.status)) else {
        return Vec::new();
    };
    let Status { array: name, uuid, .. } = &array.status;
    vec![("FURROW_ARRAY_UUID", uuid.clone()), ("FURROW_ARRAY_ENC", encode(name))]
}

/// The block device of the volume that `path` names. Used for a path that does not exist because
/// there is no udev to make the link.
///
/// # Errors
/// An error if no such array runs, or it has no block device.
fn volume(path: &str, name: &str) -> Result<String> {
    let running = client::running();
    let Some(array) = running.iter().find(|array| encode(&array.status.array) == name) else {
        bail!("{path}: no array of this name runs: furrow raid assemble --name {name} --ublk")
    };
    match array.status.listening.iter().find(|place| place.starts_with("/dev/")) {
        Some(device) => Ok(device.clone()),
        None => bail!(
            "{path}: the array has no block device: stop it and assemble it with --ublk (in \
             /etc/furrow/raid/{name}.conf: OPTIONS=--ublk)"
        ),
    }
}

/// Whether udev leaves a character unchanged: letters, digits, `#+-.:=@_`, and characters
/// outside ASCII.
fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || !character.is_ascii() || "#+-.:=@_".contains(character)
}

/// Encodes text as udev does in names of links: characters that are not plain become `\xNN`.
fn encode(text: &str) -> String {
    let one = |c: char| if is_plain(c) { c.into() } else { format!("\\x{:02x}", u32::from(c)) };
    text.chars().map(one).collect()
}

/// Makes a label readable as udev does: characters other than plain ones and `/`
/// become underscores.
fn safe(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) || c == '/' { c } else { '_' }).collect()
}

/// A name by which the user asks for a file system.
pub enum Tag<'a> {
    /// The file system's label.
    Label(&'a str),
    /// The file system's UUID, as text.
    Uuid(&'a str),
}

impl<'a> Tag<'a> {
    /// Parses `LABEL=data` or `UUID="…"`; `None` for any other name.
    pub fn parse(name: &'a str) -> Option<Tag<'a>> {
        let value = |text: &str| {
            let value = name.strip_prefix(text)?;
            Some(value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value))
        };
        value("LABEL=").map(Tag::Label).or_else(|| value("UUID=").map(Tag::Uuid))
    }

    /// The link that udev makes for a device with this label or UUID.
    fn link(&self) -> PathBuf {
        match self {
            Tag::Label(label) => Path::new("/dev/disk/by-label").join(encode(label)),
            Tag::Uuid(uuid) => Path::new("/dev/disk/by-uuid").join(encode(&uuid.to_lowercase())),
        }
    }

    /// Whether a file system with this UUID and label is the one asked for.
    pub fn is_of(&self, uuid: &str, label: &str) -> bool {
        match self {
            Tag::Label(wanted) => *wanted == label,
            Tag::Uuid(wanted) => wanted.eq_ignore_ascii_case(uuid),
        }
    }
}

/// The device that `name` stands for: for `LABEL=NAME` and `UUID=UUID` the block device with
/// that file system, for `/dev/furrow/NAME` the volume of that array, for any other name the
/// name itself.
///
/// # Errors
/// An error if no or several block devices have the label or UUID, if the file system is mounted,
/// or if the array does not run or has no block device.
pub fn device_of(name: &str) -> Result<String> {
    if let Some(volume_name) = name.strip_prefix(VOLUMES).filter(|_| !Path::new(name).exists()) {
        return volume(name, volume_name);
    }
    let Some(tag) = Tag::parse(name) else { return Ok(name.to_owned()) };
    if let Some(path) = tag.link().canonicalize().ok().as_deref().and_then(Path::to_str) {
        return Ok(path.to_owned());
    }
    let mounted = furrow_fuse::endpoint::mounted().unwrap_or_default();
    if let Some(mount) = tagged(&mounted, &tag).first() {
        let at = mount.directory.display();
        bail!("{name}: in use: mounted on {at}: run: furrow umount {at}");
    }
    let rt = Rt::new(crate::daemon::config()?);
    let (mut found, mut denied): (Vec<DeviceSpec>, u64) = (Vec::new(), 0);
    let arrays = client::running();
    let volumes = arrays.iter().flat_map(|array| &array.status.listening);
    let volumes = volumes.filter(|place| place.starts_with("/dev/"));
    let volumes = volumes.filter_map(|place| place.parse().ok());
    for spec in block_devices::all().into_iter().chain(volumes) {
        let drive = match holds::open(&rt, &spec, Access::ReadOnly) {
            Ok(drive) => drive,
            Err(error) => {
                denied += u64::from(error.kind() == ErrorKind::Denied);
                continue;
            }
        };
        let identity = rt.block_on(async move { furrow_fs::identify(&*drive).await });
        let has = |(uuid, label): (Uuid, String)| tag.is_of(&uuid.to_string(), &label);
        if identity.ok().flatten().is_some_and(has) {
            found.push(spec);
        }
    }
    rt.clear();
    match &found[..] {
        [one] => Ok(one.to_string()),
        [] if denied > 0 => bail!(
            "{name}: not found, and {} could not be read: run this as root",
            count(denied, "block device")
        ),
        [] => bail!(
            "{name}: no block device of this machine has such a file system, or it is in use: \
             furrow device show DEV says what a device holds; images are mounted by path"
        ),
        several => {
            let list: Vec<String> = several.iter().map(ToString::to_string).collect();
            bail!("{name}: {} have it: name the device", list.join(" and "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_as_udev_does() {
        assert_eq!(encode("my data/1"), "my\\x20data\\x2f1");
        assert_eq!(encode("größe-1.2:a@b=c#d+e_f"), "größe-1.2:a@b=c#d+e_f");
        assert_eq!(safe("my data\n"), "my_data_");
        assert_eq!(Tag::Label("my data").link(), Path::new("/dev/disk/by-label/my\\x20data"));
    }

    #[test]
    fn only_tags_are_searched() {
        for name in ["disk.zns", "/dev/nvme0n1", "mem:zones=9", "label=x"] {
            assert_eq!(device_of(name).unwrap(), name);
        }
        let why = device_of("LABEL=\"no such label\"").unwrap_err().to_string();
        assert!(why.contains("no such label") && why.contains("no block device"), "{why}");
    }
}
