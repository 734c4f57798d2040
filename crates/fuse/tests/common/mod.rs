//! Shared by tests on a mount.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

pub mod engine;
pub mod place;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// True if mounts cannot be tested and the environment allows skipping. Without `/dev/fuse` and
/// without FURROW_WITHOUT_FUSE=1 the tests fail instead of passing silently.
pub fn skip(test: &str) -> bool {
    let usable = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !usable && std::env::var("FURROW_WITHOUT_FUSE").is_ok_and(|v| v == "1") {
        eprintln!("SKIPPED {test}: no /dev/fuse or not root, and FURROW_WITHOUT_FUSE=1");
        return true;
    }
    assert!(usable, "{test} needs /dev/fuse and root; FURROW_WITHOUT_FUSE=1 skips it");
    false
}

/// A directory of its own, removed at the end. Never enters a mount that is left in it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!(
            "furrow-{name}-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(path.join("mnt")).unwrap();
        Scratch(path)
    }

    /// An empty directory to mount on.
    pub fn mount_point(&self) -> PathBuf {
        self.0.join("mnt")
    }

    /// A file in the same directory as the mount point.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failed test may leave its mount: detach it before its files would be removed.
        while furrow_fuse::endpoint::unmount(&self.mount_point(), furrow_fuse::Unmount::Force)
            .is_ok()
        {}
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
