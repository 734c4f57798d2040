//! The limits that the kernel's page cache has for a mount, beyond what FUSE negotiates.
//!
//! The kernel takes each FUSE server for slow: it reads 128 KiB ahead, and lets the dirty pages of
//! a mount take a hundredth of memory before it holds writers up. Furrow's drives are as fast as
//! those of other local file systems, so a mount gets the limits that these have. The owner of the
//! machine can change the limits of a mount in `/sys/class/bdi/MAJOR:MINOR` while it is mounted.

use crate::endpoint::{MAX_WRITE, number_of};
use anyhow::{Context as _, Result, ensure};
use std::path::Path;

/// Bytes that the kernel reads ahead of a sequential reader: a request that is answered, and one
/// that is under way.
const READ_AHEAD: u32 = 2 * MAX_WRITE;

/// Raises the limits of the mount at `directory`.
///
/// # Errors
/// If the mount is not in the mount table, or the kernel refuses.
pub(crate) fn raise_limits(directory: &Path) -> Result<()> {
    let number = number_of(directory).context("it is not in the mount table")?;
    // A mount of a block device has limits of its own beside those of the device.
    let all = Path::new("/sys/class/bdi");
    let of_block = all.join(format!("{number}-fuseblk"));
    let limits = if of_block.exists() { of_block } else { all.join(number) };
    ensure!(limits.exists(), "{} does not exist: is sysfs mounted?", limits.display());
    for (limit, value) in [
        ("read_ahead_kb", READ_AHEAD / 1024),
        // In percent of what all file systems together may keep dirty.
        ("max_ratio", 100),
        // 0: the ratio counts only when that much is dirty.
        ("strict_limit", 0),
    ] {
        let file = limits.join(limit);
        match std::fs::write(&file, value.to_string()) {
            // Kernels before 6.2 have no `strict_limit`.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            written => written.with_context(|| file.display().to_string())?,
        }
    }
    Ok(())
}
