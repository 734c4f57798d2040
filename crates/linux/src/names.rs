//! Block devices by name: the permanent names of a device, and obstacles to using the device.

use crate::sysfs::{Limits, Model};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The reason why a drive cannot be used, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// A word for programs to recognize the obstacle.
    pub code: &'static str,
    /// A sentence for the user.
    pub what: String,
}

impl Obstacle {
    fn new(code: &'static str, what: impl Into<String>) -> Obstacle {
        Obstacle { code, what: what.into() }
    }

    /// Whether the obstacle is that the kernel uses the device.
    pub fn is_use(&self) -> bool {
        matches!(self.code, "mounted" | "partitioned" | "held")
    }
}

/// The name of the block device at `path` below `/dev/disk/by-id`, which does not change when
/// drives are added. Of several names the alphabetically first; `None` if there is none.
pub fn by_id(path: &Path) -> Option<PathBuf> {
    let node = path.canonicalize().ok()?;
    let mut names: Vec<PathBuf> = fs::read_dir("/dev/disk/by-id")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|name| name.canonicalize().is_ok_and(|target| target == node))
        .collect();
    names.sort();
    names.into_iter().next()
}

/// The folder in sysfs of the block device at `path`.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, Obstacle> {
    let name = path.display();
    let meta = fs::metadata(path)
        .map_err(|error| Obstacle::new("not-found", format!("{name}: {error}")))?;
    if !meta.file_type().is_block_device() {
        let what = format!(
            "{name}: not a block device: give a zoned one, a generic NVMe device (/dev/ng0n1), or \
             an image ('furrow device create')"
        );
        return Err(Obstacle::new("no-block-device", what));
    }
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    Ok(PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
}

/// The obstacles to using the block device at `path`, most important first; the device is not
/// opened. If there are none, it can be opened unless another program has it.
pub fn obstacles(path: &Path) -> Vec<Obstacle> {
    if crate::nvme::is_generic(path) {
        return crate::nvme::obstacles(path);
    }
    match folder(path) {
        Ok(folder) => in_folder(&folder, &mounts_of(&folder), Model::HostManaged),
        Err(obstacle) => vec![obstacle],
    }
}

/// Like [`obstacles`], for a block device without zones that is to hold soft zones. A partition is
/// not an obstacle.
pub fn plain_obstacles(path: &Path) -> Vec<Obstacle> {
    match folder(path) {
        Ok(folder) => in_folder(&folder, &mounts_of(&folder), Model::None),
        Err(obstacle) => vec![obstacle],
    }
}

/// Whether the device with this folder in sysfs is a partition.
pub(crate) fn is_partition(folder: &Path) -> bool {
    folder.join("partition").exists()
}

/// The folder in sysfs that has the limits of a device; for a partition, the folder of its drive.
pub(crate) fn with_limits(folder: &Path) -> PathBuf {
    match is_partition(folder) {
        true => folder.join(".."),
        false => folder.to_owned(),
    }
}

/// The mount points of the device with this folder in sysfs.
fn mounts_of(folder: &Path) -> Vec<String> {
    let Some(number) = folder.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let of_device = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        (fields.next() == Some(number)).then(|| fields.nth(1).unwrap_or("?").to_owned())
    };
    mounts.lines().filter_map(of_device).collect()
}

/// The obstacles to using a device as a drive of the kind `wanted`.
fn in_folder(folder: &Path, mounts: &[String], wanted: Model) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if wanted == Model::HostManaged && folder.join("partition").exists() {
        let what = "it is a partition: give the whole drive";
        found.push(Obstacle::new("partition", what));
        return found;
    }
    let limits = match Limits::read(&with_limits(folder)) {
        Ok(limits) => limits,
        Err(what) => return vec![Obstacle::new("no-zones", what)],
    };
    let partitions: Vec<_> = partitions(folder).into_iter().map(|(name, _)| name).collect();
    let (is_partitioned, partitions) = (!partitions.is_empty(), partitions.join(", "));
    let mut no_zones = None;
    match limits.model {
        model if model == wanted => {}
        Model::HostManaged => found.push(Obstacle::new(
            "zoned",
            "it has zones of its own, which are better than soft ones: use it without --soft",
        )),
        Model::None if is_partitioned => {
            no_zones = Some(format!(
                "it has no zones, and is partitioned ({partitions}): 'furrow device create --soft' \
                 makes soft zones on a partition or a whole drive that holds nothing"
            ));
        }
        Model::None => {
            let what = "it has no zones: 'furrow device create --soft' makes soft zones on it";
            no_zones = Some(what.to_owned());
        }
        Model::HostAware => found.push(Obstacle::new(
            "host-aware",
            "it is host-aware: such a drive moves data by its own rules and promises no write \
             pointer to rely on; use a host-managed one",
        )),
    }
    for mount in mounts {
        let what = format!("it is mounted on {mount}: unmount it");
        found.push(Obstacle::new("mounted", what));
    }
    let holders = entries(&folder.join("holders"));
    if !holders.is_empty() {
        let what = format!("it is part of {}: take it out there", holders.join(", "));
        found.push(Obstacle::new("held", what));
    }
    // After the uses, because a drive in use must not get the advice to put zones on it.
    found.extend(no_zones.map(|what| Obstacle::new("no-zones", what)));
    if is_partitioned {
        let how = match wanted {
            Model::None => ", or let 'furrow device create --soft --force' do it",
            _ => "",
        };
        let what = format!("it is partitioned ({partitions}): delete the partitions{how}");
        found.push(Obstacle::new("partitioned", what));
    }
    if limits.read_only {
        let what = "the kernel has it read-only: blockdev --setrw, or a switch on the drive";
        found.push(Obstacle::new("read-only", what));
    }
    found
}

/// Names and numbers of the partitions of the device with this folder in sysfs.
pub(crate) fn partitions(folder: &Path) -> Vec<(String, i32)> {
    let number = |name: &String| {
        let text = fs::read_to_string(folder.join(name).join("partition")).ok()?;
        text.trim().parse().ok()
    };
    let names = entries(folder).into_iter();
    names.filter_map(|name| number(&name).map(|number| (name, number))).collect()
}

fn entries(folder: &Path) -> Vec<String> {
    let list = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = list.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, zoned: &str, more: &[&str]) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("furrow-names-{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("queue")).expect("a folder");
        fs::write(folder.join("queue/zoned"), zoned).expect("a file");
        for path in more {
            let path = folder.join(path);
            let above = path.parent().expect("it is below the folder");
            fs::create_dir_all(above).expect("a folder");
            match path.ends_with("partition") {
                true => fs::write(path, "1\n").expect("a file"),
                false => fs::create_dir_all(path).expect("a folder"),
            }
        }
        folder
    }

    fn codes(folder: &Path, mounts: &[String]) -> Vec<&'static str> {
        let found = in_folder(folder, mounts, Model::HostManaged);
        fs::remove_dir_all(folder).expect("ours");
        found.iter().map(|obstacle| obstacle.code).collect()
    }

    #[test]
    fn each_obstacle_is_named() {
        assert!(codes(&device("free", "host-managed", &["holders"]), &[]).is_empty());
        assert_eq!(codes(&device("aware", "host-aware", &[]), &[]), ["host-aware"]);
        assert_eq!(codes(&device("plain", "none", &[]), &[]), ["no-zones"]);
        let used = device("used", "host-managed", &["sda1/partition", "holders/dm-0"]);
        assert_eq!(codes(&used, &["/mnt".to_owned()]), ["mounted", "held", "partitioned"]);
        let plain = device("plain-used", "none", &["sda1/partition", "holders/dm-0"]);
        let all = ["mounted", "held", "no-zones", "partitioned"];
        assert_eq!(codes(&plain, &["/".to_owned()]), all);
        assert_eq!(codes(&device("part", "host-managed", &["partition"]), &[]), ["partition"]);
        let plain = |name, zoned, more: &[&str]| {
            let folder = device(name, zoned, more);
            let found = in_folder(&folder, &[], Model::None);
            fs::remove_dir_all(folder).expect("ours");
            found.iter().map(|obstacle| obstacle.code).collect::<Vec<_>>()
        };
        assert!(plain("for-soft", "none", &[]).is_empty());
        assert_eq!(plain("with-zones", "host-managed", &[]), ["zoned"]);
        let part = device("disk", "none", &["disk1/partition"]);
        assert!(in_folder(&part.join("disk1"), &[], Model::None).is_empty(), "a partition");
        assert_eq!(in_folder(&part, &[], Model::None)[0].code, "partitioned");
        assert_eq!(partitions(&part), [("disk1".to_owned(), 1)]);
        fs::remove_dir_all(part).expect("ours");
        let missing = obstacles(Path::new("/dev/no-such-drive"));
        assert_eq!(missing[0].code, "not-found");
        assert_eq!(obstacles(Path::new("/dev/null"))[0].code, "no-block-device");
    }
}
