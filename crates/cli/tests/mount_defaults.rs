//! What the kernel's write-back cache (`writeback_cache`) and concurrent direct requests, which
//! mounts have by default, would change without the daemon's help, also when the daemon is killed.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::place::{Place, furrow, said, skip, wait_until};
use rustix::fs::SeekFrom;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A program replaces a file, but neither syncs nor closes the new one before the rename. The
/// directory is synced: so after a kill the name leads to the new file, which must be whole.
#[test]
fn a_file_renamed_over_another_while_it_is_open_is_whole_after_a_kill() {
    if skip("a_file_renamed_over_another_while_it_is_open_is_whole_after_a_kill") {
        return;
    }
    let place = Place::new("replace");
    let content = |version: u8| vec![version; 300_000 + usize::from(version)];
    place.mount();
    fs::write(place.file("name"), content(0)).unwrap();
    assert!(furrow(&["umount", &place.dir()]).status.success());
    for (synced, versions) in [(true, 1..4), (false, 4..8u8)] {
        for version in versions {
            place.mount_with("writeback_cache,commit=600");
            let (name, new) = (place.file("name"), place.file("new"));
            let old = fs::read(&name).unwrap();
            let mut file = File::create(&new).unwrap();
            file.write_all(&content(version)).unwrap();
            fs::rename(&new, &name).unwrap();
            if synced {
                File::open(place.dir()).unwrap().sync_all().unwrap();
            }
            if version % 2 == 0 {
                assert!(furrow(&["sync", &place.dir()]).status.success());
            }
            place.kill();
            place.mount();
            let found = fs::read(&name).unwrap();
            let kept = found == content(version) || (!synced && found == old);
            assert!(kept, "version {version}: {} bytes", found.len());
            assert!(furrow(&["umount", &place.dir()]).status.success());
            drop(file);
        }
    }
}

#[test]
fn a_copy_of_a_sparse_file_is_sparse() {
    if skip("a_copy_of_a_sparse_file_is_sparse") {
        return;
    }
    let place = Place::new("sparse");
    place.mount_with("writeback_cache");
    let file = File::create(place.file("a")).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(b"data", 32 << 20).unwrap();
    // The kernel has the data and the end of the file, the daemon does not.
    file.write_all_at(b"end", 80 << 20).unwrap();
    let seek = |from| rustix::fs::seek(&file, from).unwrap();
    assert_eq!(seek(SeekFrom::Data(0)), 32 << 20);
    assert_eq!(seek(SeekFrom::Hole(32 << 20)), (32 << 20) + 4096);
    assert_eq!(seek(SeekFrom::Data((32 << 20) + 4096)), 80 << 20);
    assert_eq!(seek(SeekFrom::Hole(80 << 20)), (80 << 20) + 3);
    let copied = Command::new("cp").args([place.file("a"), place.file("b")]).status().unwrap();
    assert!(copied.success());
    let blocks = |name: &str| fs::metadata(place.file(name)).unwrap().blocks();
    assert!(blocks("b") <= 64, "{} blocks", blocks("b"));
    assert!(fs::read(place.file("a")).unwrap() == fs::read(place.file("b")).unwrap());
    // While a file stays open, its blocks are right some time after it was written back.
    assert!(blocks("a") < 2048);
    file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    assert!(furrow(&["sync", &place.dir()]).status.success());
    wait_until("the blocks are counted", || blocks("a") >= 2048);
}

/// Nobody syncs or closes a file that is truncated and rewritten: it is whole after a kill once the
/// kernel's interval and the daemon's have passed.
#[test]
fn a_rewritten_file_that_stays_open_is_whole_after_two_commits() {
    if skip("a_rewritten_file_that_stays_open_is_whole_after_two_commits") {
        return;
    }
    let place = Place::new("rewrite");
    place.mount_with("writeback_cache,commit=1");
    let path = place.file("f");
    fs::write(&path, vec![1; 200_000]).unwrap();
    assert!(furrow(&["sync", &place.dir()]).status.success());
    let mut file = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    file.write_all(&vec![2; 100_000]).unwrap();
    std::thread::sleep(Duration::from_secs(4));
    place.kill();
    place.mount();
    assert!(fs::read(&path).unwrap() == vec![2; 100_000]);
}

/// The kernel keeps attributes that it gets during an asynchronous direct write.
#[test]
fn times_of_direct_writes_are_not_those_that_were_asked_for_meanwhile() {
    if skip("times_of_direct_writes_are_not_those_that_were_asked_for_meanwhile") {
        return;
    }
    let place = Place::new("meanwhile");
    for options in ["rw", "writeback_cache"] {
        let slow = format!("{},timing=realtime,time-scale=10", place.image());
        let out = furrow(&["mount", &slow, &place.dir(), "-o", options]);
        assert!(out.status.success(), "{}", said(&out));
        let path = place.file("f");
        fs::write(&path, vec![0; 4 << 20]).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    fs::metadata(&path).unwrap();
                }
            });
            let out = Command::new("fio")
                .args(["--name=t", "--direct=1", "--bs=64k", "--size=4m", "--iodepth=16"])
                .args(["--ioengine=libaio", "--rw=write", "--loops=8", "--minimal"])
                .args(["--allow_file_create=0", &format!("--filename={}", path.display())])
                .stdout(Stdio::null())
                .status();
            over.store(true, Ordering::Relaxed);
            assert!(out.unwrap().success());
        });
        let now = || {
            let meta = fs::metadata(&path).unwrap();
            (Duration::new(meta.mtime() as u64, meta.mtime_nsec() as u32), meta.blocks())
        };
        let (shown, blocks) = now();
        assert!(furrow(&["umount", &place.dir()]).status.success());
        place.mount();
        let (kept, kept_blocks) = now();
        assert_eq!(blocks, kept_blocks, "{options}");
        // With `writeback_cache`, the kernel sets the time when it sends a write. If it writes the
        // inode back before the daemon has the write, the daemon's time stays: it is one tick of
        // the kernel's clock later.
        let later = Duration::from_millis(if options == "rw" { 0 } else { 4 });
        assert!((shown..=shown + later).contains(&kept), "{options}: {shown:?}, then {kept:?}");
        assert!(furrow(&["umount", &place.dir()]).status.success());
    }
}

#[test]
fn the_faster_option_is_named_once_unless_it_was_chosen() {
    if skip("the_faster_option_is_named_once_unless_it_was_chosen") {
        return;
    }
    let place = Place::new("note");
    for (options, named) in [("rw", true), ("nowriteback_cache", false), ("writeback_cache", false)]
    {
        let out = furrow(&["mount", &place.image(), &place.dir(), "-o", options]);
        assert!(out.status.success(), "{}", said(&out));
        assert_eq!(said(&out).contains("with -o writeback_cache"), named, "{}", said(&out));
        assert!(furrow(&["umount", &place.dir()]).status.success());
    }
}
