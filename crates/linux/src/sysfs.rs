//! The limits of a block device that the kernel shows as files in sysfs
//! (`Documentation/ABI/stable/sysfs-block`).

use std::path::Path;
use std::str::FromStr;

/// How a drive handles writes to its zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// The drive does not have zones.
    None,
    /// The drive takes writes anywhere, and is fast where they are sequential.
    HostAware,
    /// The drive takes only sequential writes.
    HostManaged,
}

/// The limits of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub model: Model,
    /// Size of a zone in sectors of 512 bytes.
    pub zone_sectors: u64,
    /// Maximum number of open zones; 0: no limit.
    pub max_open: u32,
    /// Maximum number of active zones; 0: no limit.
    pub max_active: u32,
    /// Size of a logical block in bytes.
    pub logical_block: u64,
    /// Writes to sequential zones must be multiples of this number of bytes.
    pub write_granularity: u64,
    /// Size of the largest request in KiB.
    pub max_kib: u64,
    /// Maximum number of pieces of memory in one request.
    pub max_segments: u64,
    /// Whether completed writes may be lost until a flush.
    pub write_back: bool,
    /// Whether the device refuses writes.
    pub read_only: bool,
    /// Number of write streams, numbered from 1; 0 if the device has none. A device's partitions do
    /// not have its streams.
    pub streams: u8,
}

impl Limits {
    /// Reads the limits below `folder`, the device's folder in sysfs. A value that the kernel does
    /// not show gets a default: no limit, blocks of 512 bytes, no streams.
    ///
    /// # Errors
    /// A sentence that says why, if the kernel does not show a known model of zones for the device.
    pub(crate) fn read(folder: &Path) -> Result<Limits, String> {
        let model = match text(folder, "queue/zoned").as_deref() {
            Some("none") => Model::None,
            Some("host-aware") => Model::HostAware,
            Some("host-managed") => Model::HostManaged,
            Some(other) => return Err(format!("the kernel calls its zones {other:?}")),
            None => return Err("the kernel shows no queue/zoned in sysfs for it".to_owned()),
        };
        let logical_block = number(folder, "queue/logical_block_size").unwrap_or(512);
        Ok(Limits {
            model,
            zone_sectors: number(folder, "queue/chunk_sectors").unwrap_or(0),
            max_open: number(folder, "queue/max_open_zones").unwrap_or(0),
            max_active: number(folder, "queue/max_active_zones").unwrap_or(0),
            logical_block,
            write_granularity: number(folder, "queue/zone_write_granularity")
                .filter(|bytes| *bytes > 0)
                .unwrap_or(logical_block),
            max_kib: number(folder, "queue/max_sectors_kb").unwrap_or(u64::MAX),
            max_segments: number(folder, "queue/max_segments").unwrap_or(u64::MAX),
            write_back: text(folder, "queue/write_cache").as_deref() == Some("write back"),
            read_only: number(folder, "ro") == Some(1),
            // The kernel shows this since Linux 6.16. An entry of io_uring has 8 bits for the
            // number of a stream.
            streams: number::<u64>(folder, "queue/max_write_streams")
                .map_or(0, |streams| streams.min(u8::MAX.into()) as u8),
        })
    }
}

fn text(folder: &Path, name: &str) -> Option<String> {
    Some(std::fs::read_to_string(folder.join(name)).ok()?.trim().to_owned())
}

fn number<T: FromStr>(folder: &Path, name: &str) -> Option<T> {
    text(folder, name)?.parse().ok()
}

#[cfg(test)]
impl Limits {
    /// Returns the limits of an NVMe drive, for tests.
    pub(crate) fn example() -> Limits {
        Limits {
            model: Model::HostManaged,
            zone_sectors: 262_144,
            max_open: 16,
            max_active: 32,
            logical_block: 512,
            write_granularity: 4096,
            max_kib: 512,
            max_segments: 127,
            write_back: true,
            read_only: false,
            streams: 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn folder(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let folder =
            std::env::temp_dir().join(format!("furrow-sysfs-{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("queue")).expect("a folder");
        for (file, text) in files {
            fs::write(folder.join(file), format!("{text}\n")).expect("a file");
        }
        folder
    }

    #[test]
    fn a_zns_drive_of_a_current_kernel() {
        let folder = folder(
            "zns",
            &[
                ("queue/zoned", "host-managed"),
                ("queue/chunk_sectors", "262144"),
                ("queue/max_open_zones", "16"),
                ("queue/max_active_zones", "32"),
                ("queue/logical_block_size", "512"),
                ("queue/zone_write_granularity", "4096"),
                ("queue/max_sectors_kb", "512"),
                ("queue/max_segments", "127"),
                ("queue/write_cache", "write back"),
                ("queue/max_write_streams", "8"),
                ("ro", "0"),
            ],
        );
        assert_eq!(Limits::read(&folder), Ok(Limits::example()));
        fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn an_older_kernel_shows_less_and_a_folder_without_queue_nothing() {
        let folder = folder("old", &[("queue/zoned", "host-aware"), ("queue/chunk_sectors", "8")]);
        let limits = Limits::read(&folder).expect("it has zones");
        assert_eq!((limits.model, limits.zone_sectors), (Model::HostAware, 8));
        assert_eq!((limits.logical_block, limits.write_granularity), (512, 512));
        assert_eq!((limits.max_open, limits.write_back, limits.streams), (0, false, 0));
        for (text, streams) in [("0", 0), ("1", 1), ("255", 255), ("65535", 255), ("x", 0)] {
            fs::write(folder.join("queue/max_write_streams"), text).expect("a file");
            assert_eq!(Limits::read(&folder).expect("it has zones").streams, streams);
        }
        fs::remove_dir_all(&folder).expect("ours");
        assert!(Limits::read(&folder).unwrap_err().contains("queue/zoned"));
    }
}
