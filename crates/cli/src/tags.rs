//! Labels and UUIDs of what drives hold, as udev and fstab(5) use them: `LABEL=data`, `UUID=…`.
//!
//! libblkid does not know Furrow, and its list cannot be extended from outside. So a rule of udev
//! asks this program ([`properties`]), and `furrow mount` finds such names itself.

use crate::block_devices;
use crate::holds::{self, Holds};
use anyhow::{Result, bail};
use furrow_emu::OpenMode;
use furrow_log::Uuid;
use furrow_rt::Rt;
use furrow_zone::ZonedDevice;
use furrow_zone::spec::DeviceSpec;
use std::path::{Path, PathBuf};

/// What a drive holds, as properties of udev: `ID_FS_TYPE=furrow` and so on, in the forms that
/// blkid(8) gives other file systems. None if it holds nothing of Furrow.
///
/// # Errors
/// If the drive does not answer.
pub async fn properties(device: &dyn ZonedDevice) -> Result<Vec<(&'static str, String)>> {
    let holds = Holds::of(device).await?;
    let (usage, kind, uuid, label) = match &holds {
        Holds::FileSystem(uuid) => {
            let label = furrow_fs::identify(device).await?.map(|(_, label)| label);
            ("filesystem", "furrow", uuid.to_string(), label.unwrap_or_default())
        }
        Holds::Store(uuid) => ("other", "furrow_store", uuid.to_string(), String::new()),
        Holds::Member(examined) => {
            ("raid", "furrow_raid_member", examined.array.to_string(), examined.label.clone())
        }
        _ => return Ok(Vec::new()),
    };
    let mut all = vec![("ID_FS_USAGE", usage.to_owned()), ("ID_FS_TYPE", kind.to_owned())];
    all.push(("ID_FS_VERSION", furrow_fs::format::VERSION.to_string()));
    all.push(("ID_FS_UUID", uuid.clone()));
    all.push(("ID_FS_UUID_ENC", encode(&uuid)));
    if let Holds::Member(examined) = &holds {
        all.push(("ID_FS_UUID_SUB", examined.device.to_string()));
        all.push(("ID_FS_UUID_SUB_ENC", examined.device.to_string()));
    }
    if !label.is_empty() {
        all.push(("ID_FS_LABEL", safe(&label)));
        all.push(("ID_FS_LABEL_ENC", encode(&label)));
    }
    Ok(all)
}

/// Whether udev takes a character as it is: letters, digits, `#+-.:=@_`, and what is not ASCII.
fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || !character.is_ascii() || "#+-.:=@_".contains(character)
}

/// As udev encodes names of links: other characters become `\xNN`.
fn encode(text: &str) -> String {
    let one = |c: char| if is_plain(c) { c.into() } else { format!("\\x{:02x}", u32::from(c)) };
    text.chars().map(one).collect()
}

/// As udev keeps a label for people: other characters become underscores.
fn safe(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) || c == '/' { c } else { '_' }).collect()
}

/// A name by which a file system is wanted.
enum Tag<'a> {
    Label(&'a str),
    Uuid(&'a str),
}

impl Tag<'_> {
    /// The link that udev makes for it.
    fn link(&self) -> PathBuf {
        match self {
            Tag::Label(label) => Path::new("/dev/disk/by-label").join(encode(label)),
            Tag::Uuid(uuid) => Path::new("/dev/disk/by-uuid").join(encode(&uuid.to_lowercase())),
        }
    }

    fn is_of(&self, (uuid, label): &(Uuid, String)) -> bool {
        match self {
            Tag::Label(wanted) => wanted == label,
            Tag::Uuid(wanted) => wanted.eq_ignore_ascii_case(&uuid.to_string()),
        }
    }
}

/// The device that `name` stands for: of `LABEL=NAME` and `UUID=UUID` the block device with that
/// file system, of any other name the name itself.
///
/// # Errors
/// If no block device has it, or several have.
pub fn device_of(name: &str) -> Result<String> {
    let value = |text: &'static str| {
        let value = name.strip_prefix(text)?;
        Some(value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value))
    };
    let tag = match (value("LABEL="), value("UUID=")) {
        (Some(label), _) => Tag::Label(label),
        (_, Some(uuid)) => Tag::Uuid(uuid),
        _ => return Ok(name.to_owned()),
    };
    if let Some(path) = tag.link().canonicalize().ok().as_deref().and_then(Path::to_str) {
        return Ok(path.to_owned());
    }
    let rt = Rt::new(crate::daemon::config()?);
    let mut found: Vec<DeviceSpec> = Vec::new();
    for spec in block_devices::all() {
        let Ok(drive) = holds::open(&rt, &spec, OpenMode::ReadOnly) else { continue };
        let identity = rt.block_on(async move { furrow_fs::identify(&*drive).await });
        if identity.ok().flatten().is_some_and(|identity| tag.is_of(&identity)) {
            found.push(spec);
        }
    }
    rt.clear();
    match &found[..] {
        [one] => Ok(one.to_string()),
        [] => bail!(
            "{name}: no block device of this machine has such a file system, or it is in use: \
             furrow device show DEV says what a device holds"
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
