//! Exclusive use of a block device, by this process alone or, through it, by a mount of the kernel.
//!
//! An exclusive open (`O_EXCL`) excludes other exclusive opens: mounts, arrays, mkfs programs,
//! other commands of Furrow. A mount of type fuseblk is an exclusive user too, so the process that
//! serves it must first give up its own claim ([`hand_over`]).
//!
//! Invariant: in addition to the claim, which may be the kernel's, every writer to the device holds
//! a record lock on the node. After a mount is gone its server may still write its last blocks, and
//! the next server waits for the lock. The lock is one of fcntl(2) that belongs to the open file
//! (`F_OFD_SETLK`), not one of flock(2), which udev uses on block devices for its own purposes.

#![allow(unsafe_code, reason = "a lock of an open file, which only fcntl(2) has")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The claims of this process, by device number; each is the exclusively opened file.
static HELD: Mutex<BTreeMap<u64, File>> = Mutex::new(BTreeMap::new());

fn held() -> MutexGuard<'static, BTreeMap<u64, File>> {
    // The map is consistent even if a thread panicked while it held the lock.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exclusive use of a block device by this process, until dropped.
#[derive(Debug)]
pub(crate) struct Claim(u64);

impl Claim {
    /// Makes a claim of `file`, which is open exclusively.
    pub(crate) fn by(file: File) -> std::io::Result<Claim> {
        let number = file.metadata()?.rdev();
        held().insert(number, file);
        Ok(Claim(number))
    }
}

/// Whether this process has a claim on the device with this number.
#[cfg(test)]
pub(crate) fn is_held(number: u64) -> bool {
    held().contains_key(&number)
}

impl Drop for Claim {
    fn drop(&mut self) {
        held().remove(&self.0);
    }
}

/// Locks `node` for writing, or for reading, against other open files, until it is closed.
pub(crate) fn lock(node: &File, write: bool) -> std::io::Result<()> {
    // SAFETY: the structure has only numbers, for which zero is valid.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = if write { libc::F_WRLCK } else { libc::F_RDLCK } as libc::c_short;
    whole.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the kernel reads the structure, which lives until the call has returned.
    match unsafe { libc::fcntl(node.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A claim on a block device that this process gave up for a mount. Dropping this value does not
/// take the claim back.
#[derive(Debug)]
pub struct HandedOver {
    path: PathBuf,
    number: u64,
}

/// Gives up the claim of this process on the block device at `path`, so that the kernel can mount
/// it. `None` if this process has no claim there.
pub fn hand_over(path: &Path) -> Option<HandedOver> {
    let number = std::fs::metadata(path).ok()?.rdev();
    held().remove(&number)?;
    Some(HandedOver { path: path.to_owned(), number })
}

impl HandedOver {
    /// Claims the device again, after the kernel has stopped using it or failed to mount it.
    ///
    /// # Errors
    /// If another program uses the device.
    pub fn take_back(self) -> std::io::Result<()> {
        let file = crate::drive::open_exclusively(&self.path)?;
        held().insert(self.number, file);
        Ok(())
    }
}
