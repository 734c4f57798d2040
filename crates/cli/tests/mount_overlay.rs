//! What an overlay file system requires of a mount that holds its upper and its work directory.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::place::{Place, said, skip};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether `path` is a whiteout.
fn is_whiteout(path: &Path) -> bool {
    let there = fs::symlink_metadata(path).unwrap();
    there.file_type().is_char_device() && there.rdev() == 0
}

fn inodes_used(place: &Place) -> u64 {
    let all = rustix::fs::statvfs(place.dir()).unwrap();
    all.f_files - all.f_ffree
}

#[test]
fn a_file_without_a_name_is_named_or_gone() {
    if skip("a_file_without_a_name_is_named_or_gone") {
        return;
    }
    let place = Place::new("tmpfile");
    place.mount();
    let unnamed = |flags| {
        let mode = Mode::from_raw_mode(0o640);
        rustix::fs::open(place.dir(), OFlags::TMPFILE | OFlags::RDWR | flags, mode).map(File::from)
    };
    let used = inodes_used(&place);
    let mut file = match unnamed(OFlags::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::OPNOTSUPP) => {
            return eprintln!("SKIPPED: this kernel has no O_TMPFILE for FUSE");
        }
        Err(error) => panic!("{error}"),
    };
    file.write_all(b"content").unwrap();
    let there = file.metadata().unwrap();
    assert_eq!((there.nlink(), there.len(), there.mode() & 0o7777), (0, 7, 0o640));
    assert_eq!(fs::read_dir(place.dir()).unwrap().count(), 0);
    // With a name, the file outlives its descriptor and a crash.
    let of_process = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::linkat(CWD, of_process, CWD, place.file("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    file.sync_all().unwrap();
    drop(file);
    // Without a name, the file ends with its last descriptor, which may be a duplicate.
    for flags in [OFlags::empty(), OFlags::EXCL] {
        let mut file = unnamed(flags).unwrap();
        file.write_all(&[1; 100_000]).unwrap();
        let second = file.try_clone().unwrap();
        drop(file);
        assert_eq!(second.metadata().unwrap().len(), 100_000);
    }
    crate::place::wait_until("their inodes are free", || inodes_used(&place) == used + 1);
    let left = unnamed(OFlags::empty()).unwrap();
    place.kill();
    drop(left);
    place.mount();
    assert_eq!(fs::read(place.file("named")).unwrap(), b"content");
    assert_eq!(inodes_used(&place), used + 1, "what had no name is gone after a crash");
    fs::remove_file(place.file("named")).unwrap();
    crate::place::wait_until("its inode is free", || inodes_used(&place) == used);
}

#[test]
fn a_rename_leaves_a_whiteout() {
    if skip("a_rename_leaves_a_whiteout") {
        return;
    }
    let place = Place::new("whiteout");
    place.mount();
    let rename = |from, to, flags| {
        rustix::fs::renameat_with(CWD, place.file(from), CWD, place.file(to), flags)
    };
    fs::write(place.file("a"), "a").unwrap();
    fs::write(place.file("b"), "b").unwrap();
    rename("a", "b", RenameFlags::WHITEOUT).unwrap();
    assert!(is_whiteout(&place.file("a")));
    assert_eq!(fs::read(place.file("b")).unwrap(), b"a");
    let careful = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    assert_eq!(rename("b", "a", careful), Err(rustix::io::Errno::EXIST));
    rename("b", "c", careful).unwrap();
    assert!(is_whiteout(&place.file("b")));
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(rename("c", "a", both), Err(rustix::io::Errno::INVAL));
    File::open(place.file("c")).unwrap().sync_all().unwrap();
    place.kill();
    place.mount();
    assert!(is_whiteout(&place.file("a")) && is_whiteout(&place.file("b")));
    assert_eq!(fs::read(place.file("c")).unwrap(), b"a");
}

/// An overlay whose layers are directories of the mount.
struct Overlay<'a> {
    place: &'a Place,
    merged: PathBuf,
}

impl Overlay<'_> {
    /// Mounts the overlay; returns the error of `mount -t overlay`.
    fn mount(&self) -> Result<(), String> {
        let dir = self.place.dir();
        let layers = format!("lowerdir={dir}/lower,upperdir={dir}/upper,workdir={dir}/work");
        let out = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &layers])
            .arg(&self.merged)
            .output()
            .unwrap();
        if out.status.success() { Ok(()) } else { Err(said(&out)) }
    }

    fn umount(&self) {
        let _ = Command::new("umount").arg("-l").arg(&self.merged).output();
    }
}

impl Drop for Overlay<'_> {
    fn drop(&mut self) {
        self.umount();
    }
}

#[test]
fn an_overlay_has_its_upper_directory_on_a_mount() {
    if skip("an_overlay_has_its_upper_directory_on_a_mount") {
        return;
    }
    let systems = fs::read_to_string("/proc/filesystems").unwrap();
    if !systems.lines().any(|line| line.ends_with("\toverlay")) {
        return eprintln!("SKIPPED: this kernel has no overlay file system");
    }
    let place = Place::new("overlay");
    place.mount();
    for dir in ["lower", "lower/dir", "lower/gone", "upper", "work"] {
        fs::create_dir(place.file(dir)).unwrap();
    }
    for file in ["changed", "removed", "renamed", "dir/inside", "gone/inside"] {
        fs::write(place.file("lower").join(file), format!("lower {file}")).unwrap();
    }
    fs::create_dir(place.0.join("merged")).unwrap();
    let overlay = Overlay { place: &place, merged: place.0.join("merged") };
    overlay.mount().unwrap();
    let at = |name: &str| overlay.merged.join(name);
    fs::OpenOptions::new().append(true).open(at("changed")).unwrap().write_all(b"!").unwrap();
    fs::remove_file(at("removed")).unwrap();
    fs::rename(at("renamed"), at("new name")).unwrap();
    fs::remove_dir_all(at("gone")).unwrap();
    fs::create_dir(at("gone")).unwrap();
    fs::write(at("gone/new"), "new").unwrap();
    fs::write(at("dir/second"), "second").unwrap();
    File::open(at("gone/new")).unwrap().sync_all().unwrap();
    let seen = || {
        let text = |name| {
            let mut text = String::new();
            File::open(at(name)).unwrap().read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!(text("changed"), "lower changed!");
        assert_eq!(text("new name"), "lower renamed");
        assert_eq!(text("dir/inside"), "lower dir/inside");
        assert!(!at("removed").exists() && !at("renamed").exists());
        assert_eq!(fs::read_dir(at("gone")).unwrap().count(), 1, "the lower content is hidden");
        assert_eq!(fs::read_dir(at("dir")).unwrap().count(), 2);
    };
    seen();
    assert!(is_whiteout(&place.file("upper/removed")));
    assert!(is_whiteout(&place.file("upper/renamed")));
    let mut opaque = [0; 8];
    let attribute = "trusted.overlay.opaque";
    let length = rustix::fs::getxattr(place.file("upper/gone"), attribute, &mut opaque[..]);
    assert_eq!(&opaque[..length.unwrap()], b"y");
    // Everything is durable: after a sync of the mount and a crash, the overlay shows the same.
    let synced = crate::place::furrow(&["sync", &place.dir()]);
    assert!(synced.status.success(), "{}", said(&synced));
    overlay.umount();
    place.kill();
    place.mount();
    overlay.mount().unwrap();
    seen();
    // The overlay finds the lower file of a copied-up file by a file handle.
    fs::OpenOptions::new().append(true).open(at("changed")).unwrap().write_all(b"!").unwrap();
    fs::rename(at("new name"), at("renamed")).unwrap();
    assert_eq!(fs::read(at("changed")).unwrap(), b"lower changed!!");
    assert_eq!(fs::read(at("renamed")).unwrap(), b"lower renamed");
}
