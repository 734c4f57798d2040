//! Shared by tests on a mount.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

/// Runs the tests of mounts again; `$prepare` selects the kind of mounts for this thread.
macro_rules! again {
    ($prepare:expr) => {
        again! { @ $prepare,
            posix::files_are_written_read_and_truncated,
            posix::names_come_and_go,
            posix::links_and_special_files_survive_a_remount,
            posix::attributes_are_kept,
            posix::set_group_id_directories_pass_on_their_group,
            posix::a_file_without_a_name_lives_while_it_is_known,
            posix::large_directories_are_listed_whole,
            posix::listings_follow_each_change,
            posix::who_rewinds_sees_what_has_changed,
            posix::clients_at_the_same_time_do_not_disturb_each_other,
            posix::memory_maps_read_and_write,
            posix::a_full_drive_says_so_and_keeps_what_it_has,
            posix::the_mount_reports_on_itself,
            ranges::fallocate_and_seek_see_holes,
            ranges::ranges_are_copied,
            ranges::direct_io_and_maps_see_one_file,
            ranges::locks_exclude_each_other,
            ranges::reading_is_an_access,
            ranges::limits_are_those_promised,
            extended::attributes_of_all_prefixes_are_kept,
            extended::the_kernel_decides_by_access_lists,
            extended::without_a_list_the_umask_counts,
            extended::set_group_id_goes_when_somebody_of_another_group_changes_a_file,
            maps::stores_through_a_map_are_no_holes,
            handles::they_lead_to_their_files_after_a_remount_and_to_no_others,
        }
    };
    (@ $prepare:expr, $($module:ident::$name:ident,)*) => {
        $(#[test]
        fn $name() {
            $prepare;
            crate::$module::$name();
        })*
    };
}

pub mod engine;
pub mod place;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The name of the test that runs on this thread.
pub fn this_test() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// True if mounts cannot be tested and the environment allows skipping. Without `/dev/fuse` and
/// without FURROW_WITHOUT_FUSE=1, the tests fail instead of passing silently.
pub fn skip() -> bool {
    let test = this_test();
    let usable = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !usable && std::env::var("FURROW_WITHOUT_FUSE").is_ok_and(|v| v == "1") {
        eprintln!("SKIPPED {test}: no /dev/fuse or not root, and FURROW_WITHOUT_FUSE=1");
        return true;
    }
    assert!(usable, "{test} needs /dev/fuse and root; FURROW_WITHOUT_FUSE=1 skips it");
    false
}

/// A directory of the test, removed at the end. The removal never enters a mount that is left in
/// the directory.
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
        // A failed test may leave its mount: detach it before the files are removed.
        while furrow_fuse::endpoint::unmount(&self.mount_point(), furrow_fuse::Unmount::Force)
            .is_ok()
        {}
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
