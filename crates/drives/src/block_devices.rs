//! The block devices of this machine.

use furrow_zone::spec::{DeviceSpec, Node};
use std::path::{Path, PathBuf};

/// Prefixes of the names of block devices that a program serves, or that hold nothing lasting:
/// memory and removable media.
const SERVED: [&str; 5] = ["nbd", "ublk", "zram", "sr", "fd"];

/// All block devices of the machine that have a size, except for those that other block devices are
/// built on, and those whose names begin with a prefix in `SERVED`.
pub fn all() -> Vec<DeviceSpec> {
    in_class(Path::new("/sys/class/block"))
}

/// Asks udev to look at a block device again, because its use has changed. Without root the request
/// fails silently, and nothing depends on it.
pub fn tell_udev(spec: &DeviceSpec) {
    let DeviceSpec::Node(node) = spec else { return };
    let Ok(path) = std::fs::canonicalize(&node.path) else { return };
    if let Some(name) = path.strip_prefix("/dev").ok().and_then(Path::to_str) {
        let name = name.replace('/', "!");
        let _ = std::fs::write(format!("/sys/class/block/{name}/uevent"), "change");
    }
}

fn in_class(class: &Path) -> Vec<DeviceSpec> {
    let Ok(entries) = std::fs::read_dir(class) else { return Vec::new() };
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let is_served = SERVED.iter().any(|it| name.starts_with(it));
        let is_empty = matches!(read(path.join("size")).trim(), "" | "0");
        let holders = std::fs::read_dir(path.join("holders"));
        let is_part = holders.is_ok_and(|mut holders| holders.next().is_some());
        if !is_served && !is_empty && !is_part {
            names.push(name);
        }
    }
    names.sort();
    // In /sys, the kernel writes a slash in a device's name as an exclamation mark.
    let node = |name: String| Node::new(format!("/dev/{}", name.replace('!', "/")));
    names.into_iter().map(|name| DeviceSpec::Node(node(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_devices_are_those_that_hold_something_of_their_own() {
        let class = std::env::temp_dir().join(format!("furrow-class-{}", std::process::id()));
        for (name, size, holder) in [
            ("nvme0n2", "1000", None),
            ("nvme0n1", "1000", None),
            ("sda", "1000", Some("dm-0")),
            ("dm-0", "1000", None),
            ("loop3", "0", None),
            ("nbd0", "1000", None),
            ("cciss!c0d0", "8", None),
        ] {
            let at = class.join(name);
            std::fs::create_dir_all(at.join("holders")).unwrap();
            std::fs::write(at.join("size"), format!("{size}\n")).unwrap();
            if let Some(holder) = holder {
                std::fs::write(at.join("holders").join(holder), "").unwrap();
            }
        }
        let found: Vec<String> = in_class(&class).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["/dev/cciss/c0d0", "/dev/dm-0", "/dev/nvme0n1", "/dev/nvme0n2"]);
        assert!(in_class(&class.join("none")).is_empty());
        std::fs::remove_dir_all(class).unwrap();
    }
}
