//! Sets the limits of the kernel's page cache that FUSE does not negotiate with a mount.
//!
//! The kernel assumes that each FUSE server is slow: it reads 128 KiB ahead, and throttles writers
//! once the dirty pages of a mount take a hundredth of memory. Furrow's drives are as fast as those
//! of local file systems, so a mount gets the limits of a local file system. The owner of the
//! machine can change them in `/sys/class/bdi/MAJOR:MINOR` while the file system is mounted.

use crate::endpoint::{MAX_WRITE, number_of};
use anyhow::{Context as _, Result, ensure};
use std::path::Path;

/// Number of bytes that the kernel reads ahead of a sequential reader: one request that is answered
/// already, and one that is in flight.
const READ_AHEAD: u32 = 2 * MAX_WRITE;

/// Raises the limits of the mount at `directory`.
///
/// # Errors
/// An error if the mount is not in the mount table, or the kernel refuses.
pub(crate) fn raise_limits(directory: &Path) -> Result<()> {
    let number = number_of(directory).context("it is not in the mount table")?;
    // A mount of a block device has its own limits, which are not those of the device.
    let all = Path::new("/sys/class/bdi");
    let of_block = all.join(format!("{number}-fuseblk"));
    let limits = if of_block.exists() { of_block } else { all.join(number) };
    ensure!(limits.exists(), "{} does not exist: is sysfs mounted?", limits.display());
    for (limit, value) in [
        ("read_ahead_kb", READ_AHEAD / 1024),
        // Share that this mount may have of the dirty pages of all file systems, in percent.
        ("max_ratio", 100),
        // With 0, the ratio counts only once all file systems together have too many dirty pages.
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
