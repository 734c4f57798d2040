//! The behaviour that programs expect of a file system, tested on a mount through the kernel.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a server")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::place::{Place, SMALL, errno, names, pattern};
use furrow_fuse::report;
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
pub fn files_are_written_read_and_truncated() {
    let Some(mut place) = Place::new("files") else { return };
    let path = place.at("file");
    for (length, seed) in [(0, 1), (1, 2), (4095, 3), (4096, 4), (4097, 5), (3 << 20, 6)] {
        let bytes = pattern(length, seed);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
        assert!(fs::read(&path).unwrap() == bytes, "{length} bytes");
    }
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // Overwrites across blocks, unaligned; leaves a hole past the end; appends.
    let mut expected = pattern(3 << 20, 6);
    let patch = pattern(10_000, 7);
    file.write_all_at(&patch, 5_001).unwrap();
    expected[5_001..15_001].copy_from_slice(&patch);
    file.write_all_at(b"end", 5 << 20).unwrap();
    expected.resize(5 << 20, 0);
    expected.extend_from_slice(b"end");
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut found = Vec::new();
    file.read_to_end(&mut found).unwrap();
    assert!(found == expected, "overwritten");
    let metadata = file.metadata().unwrap();
    assert!(metadata.blocks() * 512 < metadata.len(), "the hole takes no space");
    assert_eq!(metadata.blksize(), 4096);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"!").unwrap();
    expected.push(b'!');
    for length in [4 << 20, 6_000, 4_096, 1, 0, 70_000] {
        file.set_len(length).unwrap();
        expected.resize(length as usize, 0);
        assert!(fs::read(&path).unwrap() == expected, "truncated to {length}");
    }
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    drop(file);
    place.remount();
    assert!(fs::read(&path).unwrap() == expected, "after a remount");
}

#[test]
pub fn names_come_and_go() {
    let Some(mut place) = Place::new("names") else { return };
    let (a, b, sub) = (place.at("a"), place.at("b"), place.at("sub"));
    fs::create_dir(&sub).unwrap();
    fs::write(&a, "a").unwrap();
    assert_eq!(errno(fs::create_dir(&sub)), Errno::EXIST);
    assert_eq!(errno(fs::read(place.at("none"))), Errno::NOENT);
    assert_eq!(errno(fs::read(a.join("x"))), Errno::NOTDIR);
    assert_eq!(errno(File::create_new(&a)), Errno::EXIST);
    assert_eq!(errno(fs::write(place.at(&"n".repeat(256)), "")), Errno::NAMETOOLONG);
    fs::write(place.at(&"n".repeat(255)), "").unwrap();

    // Hard links.
    fs::hard_link(&a, &b).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
    assert_eq!(errno(fs::hard_link(&a, &b)), Errno::EXIST);
    assert_eq!(errno(fs::hard_link(&sub, place.at("x"))), Errno::PERM);
    fs::rename(&a, &b).unwrap();
    assert!(a.exists(), "two names of one file: rename does nothing");
    fs::remove_file(&a).unwrap();
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);

    // Checks link counts of directories, removal of a non-empty one, and a rename into itself.
    assert_eq!(fs::metadata(&sub).unwrap().nlink(), 2);
    fs::create_dir(sub.join("deep")).unwrap();
    assert_eq!(fs::metadata(&sub).unwrap().nlink(), 3);
    assert_eq!(errno(fs::remove_dir(&sub)), Errno::NOTEMPTY);
    assert_eq!(errno(fs::remove_dir(&b)), Errno::NOTDIR);
    assert_eq!(errno(fs::remove_file(&sub)), Errno::ISDIR);
    assert_eq!(errno(fs::rename(&sub, sub.join("deep/sub"))), Errno::INVAL);
    assert_eq!(errno(fs::rename(&b, &sub)), Errno::ISDIR);
    assert_eq!(errno(fs::rename(&sub, &b)), Errno::NOTDIR);
    fs::create_dir(place.at("empty")).unwrap();
    fs::rename(&sub, place.at("empty")).unwrap();
    assert!(place.at("empty/deep").is_dir());

    // Rename with flags.
    fs::write(&a, "new").unwrap();
    let flagged = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(flagged(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    flagged(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"a".into(), b"new".into()));
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"a");
    assert_eq!(errno(fs::read(&a)), Errno::NOENT);
    place.remount();
    assert_eq!(names(&place.at("")), ["b", "empty", &"n".repeat(255)]);
    assert_eq!(names(&place.at("empty")), ["deep"]);
}

#[test]
pub fn links_and_special_files_survive_a_remount() {
    let Some(mut place) = Place::new("special") else { return };
    for target in ["x", &"long/".repeat(800), "../up"] {
        let _ = fs::remove_file(place.at("link"));
        symlink(target, place.at("link")).unwrap();
        assert_eq!(fs::read_link(place.at("link")).unwrap(), Path::new(target));
    }
    let link = fs::symlink_metadata(place.at("link")).unwrap();
    assert_eq!((link.len(), link.mode() & 0o7777), (5, 0o777));
    let make = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, place.at(name), kind, Mode::from_raw_mode(0o600), device).unwrap();
    };
    make("fifo", rustix::fs::FileType::Fifo, 0);
    make("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    make("disk", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(259, 300));
    make("plain", rustix::fs::FileType::RegularFile, 0);
    let socket = std::os::unix::net::UnixListener::bind(place.at("socket")).unwrap();
    drop(socket);
    place.remount();
    let kind = |name: &str| fs::symlink_metadata(place.at(name)).unwrap();
    assert_eq!(fs::read_link(place.at("link")).unwrap(), Path::new("../up"));
    assert!(kind("fifo").file_type().is_fifo());
    assert!(kind("socket").file_type().is_socket());
    assert!(kind("plain").is_file());
    assert!(kind("null").file_type().is_char_device());
    assert_eq!(kind("null").rdev(), rustix::fs::makedev(1, 3));
    assert!(kind("disk").file_type().is_block_device());
    assert_eq!(kind("disk").rdev(), rustix::fs::makedev(259, 300));
    // A device node leads to the device.
    fs::write(place.at("null"), "gone").unwrap();
    assert!(fs::read(place.at("null")).unwrap().is_empty());
}

#[test]
pub fn attributes_are_kept() {
    let Some(mut place) = Place::new("attributes") else { return };
    let path = place.at("file");
    fs::write(&path, "x").unwrap();
    let before = fs::metadata(&path).unwrap();
    // A kernel that caches writes sets times by its tick, which is coarser.
    std::thread::sleep(Duration::from_millis(20));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(2_000_000_000)).unwrap();
    let now = fs::metadata(&path).unwrap();
    assert_eq!((now.uid(), now.gid()), (1000, 2_000_000_000));
    assert_eq!(now.mode() & 0o7777, 0o711, "a change of owner clears set-user-id");
    assert_eq!((now.mtime(), now.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
    assert!((now.ctime(), now.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));

    // Times before 1970 and past 2038, with nanoseconds; one is left alone, one is set to now.
    let times = |atime: Timespec, mtime: Timespec| {
        let times = Timestamps { last_access: atime, last_modification: mtime };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let m = fs::metadata(&path).unwrap();
        ((m.atime(), m.atime_nsec()), (m.mtime(), m.mtime_nsec()))
    };
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let (early, late) = (at(-2, 800_000_000), at(20_000_000_000, 999_999_999));
    assert_eq!(times(early, late), ((-2, 800_000_000), (20_000_000_000, 999_999_999)));
    let omit = at(0, rustix::fs::UTIME_OMIT as _);
    assert_eq!(times(omit, early), ((-2, 800_000_000), (-2, 800_000_000)));
    let (atime, mtime) = times(at(0, rustix::fs::UTIME_NOW as _), omit);
    assert!(atime.0 >= before.mtime() && mtime == (-2, 800_000_000));
    // The kernel's smallest time must not break the mount.
    times(at(i64::MIN, 0), at(i64::MIN, 999_999_999));
    times(atime_of(atime), early);
    place.remount();
    let after = fs::metadata(&path).unwrap();
    assert_eq!((after.atime(), after.atime_nsec()), atime);
    assert_eq!((after.mtime(), after.mtime_nsec()), (-2, 800_000_000));
    assert_eq!((after.uid(), after.gid(), after.mode() & 0o7777), (1000, 2_000_000_000, 0o711));
}

fn atime_of((tv_sec, tv_nsec): (i64, i64)) -> Timespec {
    Timespec { tv_sec, tv_nsec: tv_nsec as _ }
}

#[test]
pub fn set_group_id_directories_pass_on_their_group() {
    let Some(place) = Place::new("setgid") else { return };
    let directory = place.at("d");
    fs::DirBuilder::new().mode(0o755).create(&directory).unwrap();
    std::os::unix::fs::chown(&directory, None, Some(4321)).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o2775)).unwrap();
    fs::create_dir(directory.join("sub")).unwrap();
    fs::write(directory.join("file"), "").unwrap();
    symlink("x", directory.join("link")).unwrap();
    let of = |name: &str| fs::symlink_metadata(directory.join(name)).unwrap();
    assert_eq!((of("sub").gid(), of("sub").mode() & 0o7000), (4321, 0o2000));
    assert_eq!((of("file").gid(), of("file").mode() & 0o7000), (4321, 0));
    assert_eq!(of("link").gid(), 4321);
    assert_eq!(fs::metadata(place.at("")).unwrap().gid(), 0);
}

#[test]
pub fn a_file_without_a_name_lives_while_it_is_known() {
    let Some(mut place) = Place::new("orphan") else { return };
    let path = place.at("file");
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(b"before").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b" and after").unwrap();
    file.sync_all().unwrap();
    file.set_len(12).unwrap();
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before and a");

    // The file is replaced, and then only an O_PATH descriptor refers to it.
    fs::write(&path, "old").unwrap();
    fs::write(place.at("new"), "new").unwrap();
    let known = rustix::fs::open(&path, rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
    fs::rename(place.at("new"), &path).unwrap();
    std::thread::sleep(Duration::from_millis(1100)); // Past the attribute TTL.
    let stat = rustix::fs::fstat(&known).unwrap();
    assert_eq!((stat.st_nlink, stat.st_size), (0, 3));
    assert_eq!(fs::read(&path).unwrap(), b"new");

    // A removed directory that is still in use is empty, and nothing can be made in it.
    fs::create_dir(place.at("d")).unwrap();
    let directory = File::open(place.at("d")).unwrap();
    fs::remove_dir(place.at("d")).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(directory.metadata().unwrap().nlink(), 0);
    let listed = rustix::fs::Dir::read_from(&directory).unwrap().count();
    assert!(listed <= 2, "only . and ..");
    let made = rustix::fs::mkdirat(&directory, "x", Mode::RWXU);
    assert_eq!(made, Err(Errno::NOENT));
    drop((file, known, directory));
    place.remount();
    assert_eq!(names(&place.at("")), ["file"]);
}

#[test]
pub fn large_directories_are_listed_whole() {
    let Some(mut place) = Place::new("listing") else { return };
    let directory = place.at("d");
    fs::create_dir(&directory).unwrap();
    let name = |n: usize| format!("entry-{n:05}-{}", "x".repeat(n % 90));
    for n in 0..2_500 {
        File::create(directory.join(name(n))).unwrap();
    }
    let expected: Vec<String> = {
        let mut all: Vec<String> = (0..2_500).map(name).collect();
        all.sort();
        all
    };
    assert_eq!(names(&directory), expected);
    // Names are removed during the listing: every name is seen once.
    let mut seen = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        seen += 1;
    }
    assert_eq!(seen, 2_500);
    assert_eq!(names(&directory), Vec::<String>::new());
    File::create(directory.join("left")).unwrap();
    place.remount();
    assert_eq!(names(&directory), ["left"]);
    let all: Vec<Vec<u8>> = rustix::fs::Dir::read_from(File::open(&directory).unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_bytes().to_vec())
        .collect();
    assert!(all.contains(&b".".to_vec()) && all.contains(&b"..".to_vec()));
}

#[test]
pub fn listings_follow_each_change() {
    let Some(mut place) = Place::new("listings") else { return };
    let directory = place.at("d");
    fs::create_dir(&directory).unwrap();
    // There are so many names that a listing takes several steps.
    let stay: Vec<String> = (0..600).map(|n| format!("stay-{n:03}-{}", "x".repeat(60))).collect();
    for name in &stay {
        File::create(directory.join(name)).unwrap();
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let found = names(&directory);
                    let found: Vec<_> = found.iter().filter(|n| n.starts_with("stay")).collect();
                    assert!(found.iter().copied().eq(&stay), "{found:?}");
                }
            });
        }
        // A program that changes a name sees the change in a listing that begins afterwards.
        let changes = scope.spawn(|| {
            let _ends = Ends(&ended);
            for n in 0..400 {
                let name = format!("goes-{}", n % 7);
                let made = File::create_new(directory.join(&name)).is_ok();
                if !made {
                    fs::remove_file(directory.join(&name)).unwrap();
                }
                assert_eq!(names(&directory).contains(&name), made, "{name}, change {n}");
            }
        });
        changes.join().unwrap();
    });
    // A directory that has moved leads to its new parent.
    fs::create_dir(place.at("other")).unwrap();
    fs::rename(&directory, place.at("other/d")).unwrap();
    for _ in 0..2 {
        let other = fs::metadata(place.at("other")).unwrap().ino();
        assert_eq!(parent(&File::open(place.at("other/d")).unwrap()), other);
        place.remount();
    }
}

#[test]
pub fn who_rewinds_sees_what_has_changed() {
    let Some(place) = Place::new("rewound") else { return };
    let directory = place.at("d");
    fs::create_dir(&directory).unwrap();
    for n in 0..3000 {
        File::create(directory.join(format!("n{n:04}"))).unwrap();
    }
    let mut held = File::open(&directory).unwrap();
    let first = entries(&held, 1024, false);
    let gone = first[first.len() / 2].0.clone();
    fs::remove_file(directory.join(&gone)).unwrap();
    held.rewind().unwrap();
    let begun = entries(&held, 100, false);
    let rest = entries(&held, 32 << 10, true);
    assert_eq!(begun.len() + rest.len(), 2 + 2999);
    assert!(begun.iter().chain(&rest).all(|(name, ..)| *name != gone), "{gone}");
    // Seeks to an offset of this listing.
    held.seek(SeekFrom::Start(begun.last().unwrap().2)).unwrap();
    assert!(entries(&held, 32 << 10, true) == rest, "another listing than before, {gone} is gone");
    // The directory moves to another parent while it is open.
    fs::create_dir(place.at("other")).unwrap();
    fs::rename(&directory, place.at("other/d")).unwrap();
    held.rewind().unwrap();
    assert_eq!(parent(&held), fs::metadata(place.at("other")).unwrap().ino());
}

/// The inode of `..` in the listing of `directory`, read from its present position on.
fn parent(directory: &File) -> u64 {
    let listed = entries(directory, 32 << 10, true);
    listed.into_iter().find(|(name, ..)| name == "..").unwrap().1
}

/// The entries of `directory` from its present position on: name, inode number, and the offset
/// behind the entry. Reads to the end if `all`, otherwise once with a buffer of `room` bytes.
fn entries(directory: &File, room: usize, all: bool) -> Vec<(String, u64, u64)> {
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); room];
    let mut listed = rustix::fs::RawDir::new(directory, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = listed.next() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        found.push((name, entry.ino(), entry.next_entry_cookie()));
        if !all && listed.is_buffer_empty() {
            break;
        }
    }
    found
}

/// Sets a flag when it is dropped, however the thread ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
pub fn clients_at_the_same_time_do_not_disturb_each_other() {
    let Some(mut place) = Place::new("clients") else { return };
    let root = place.at("");
    std::thread::scope(|scope| {
        for client in 0..6u64 {
            let directory = root.join(format!("client-{client}"));
            scope.spawn(move || {
                fs::create_dir(&directory).unwrap();
                for round in 0..20u64 {
                    let path = directory.join(format!("f{}", round % 7));
                    let bytes =
                        pattern(1 + (client * 7919 + round * 104_729) as usize % 300_000, round);
                    let mut file = File::create(&path).unwrap();
                    file.write_all(&bytes).unwrap();
                    if round % 3 == 0 {
                        file.sync_all().unwrap();
                    }
                    assert!(fs::read(&path).unwrap() == bytes);
                    fs::rename(&path, directory.join(format!("g{round}"))).unwrap();
                }
            });
        }
    });
    let check = |root: &Path| {
        for client in 0..6u64 {
            let directory = root.join(format!("client-{client}"));
            assert_eq!(names(&directory).len(), 20);
            for round in 0..20u64 {
                let length = 1 + (client * 7919 + round * 104_729) as usize % 300_000;
                let found = fs::read(directory.join(format!("g{round}"))).unwrap();
                assert!(found == pattern(length, round), "client {client} round {round}");
            }
        }
    };
    check(&root);
    place.remount();
    check(&root);
}

#[test]
pub fn memory_maps_read_and_write() {
    // Programs of the system map the files, since this code must not use `unsafe`.
    let Some(mut place) = Place::new("programs") else { return };
    let copy = place.at("sh");
    fs::copy("/bin/sh", &copy).unwrap();
    let run = |path: &Path| {
        std::process::Command::new(path).args(["-c", "echo works"]).output().unwrap().stdout
    };
    assert_eq!(run(&copy), b"works\n");
    place.remount();
    assert_eq!(run(&copy), b"works\n");
}

#[test]
pub fn a_full_drive_says_so_and_keeps_what_it_has() {
    let Some(mut place) = Place::on("full", SMALL) else { return };
    let name = |n: u64| format!("f{n:03}");
    let size = 1_000_000;
    let fill = |place: &Place| {
        let mut n = 0;
        loop {
            let path = place.at(&name(n));
            // With a write-back cache, the error of a write is reported by a sync.
            let synced = || File::open(&path).and_then(|file| file.sync_all());
            match fs::write(&path, pattern(size, n)).and_then(|()| synced()) {
                Ok(()) => n += 1,
                Err(error) => {
                    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC), "{error}");
                    return n;
                }
            }
        }
    };
    let first = fill(&place);
    assert!(first > 40, "{first} files of {size} bytes on 96 MiB");
    let check = |place: &Place| {
        for n in 0..first {
            assert!(fs::read(place.at(&name(n))).unwrap() == pattern(size, n), "file {n}");
        }
    };
    check(&place);
    place.remount();
    check(&place);
    // Whole zones become free when their content is removed.
    for n in 0..=first {
        let _ = fs::remove_file(place.at(&name(n)));
    }
    report::ask_sync(&place.at("")).unwrap();
    let second = fill(&place);
    assert!(second * 10 >= first * 9, "{second} files after {first}");
}

#[test]
pub fn the_mount_reports_on_itself() {
    let Some(place) = Place::new("report") else { return };
    let root = place.at("");
    let before = report::ask_status(&root).unwrap();
    assert_eq!(before.info.device, place.image);
    assert_eq!(before.info.pid, std::process::id());
    let mut file = File::create(place.at("file")).unwrap();
    file.write_all(&pattern(1 << 20, 9)).unwrap();
    file.sync_all().unwrap();
    report::ask_sync(&root).unwrap();
    let after = report::ask_status(&root).unwrap();
    assert!(after.counters.user_bytes >= before.counters.user_bytes + (1 << 20));
    assert!(after.counters.host_bytes > after.counters.user_bytes);
    assert_eq!(after.counters.fsyncs, before.counters.fsyncs + 1);
    assert!(after.counters.checkpoints > before.counters.checkpoints);
    assert!(after.space.blocks_free + 256 <= before.space.blocks_free);
    assert_eq!(after.space.inodes_free + 1, before.space.inodes_free);
    let map = report::ask_map(&root).unwrap();
    assert_eq!(map.zones.len() as u64, map.total);
    assert!(map.zones.iter().map(|zone| zone.valid).sum::<u64>() >= 256);
    assert!(map.zones.iter().all(|zone| zone.written <= map.zone_blocks));
    // Only the root directory answers queries, and a listing does not show their attributes.
    assert!(report::ask_status(&place.at("file")).is_err());
    assert_eq!(rustix::fs::listxattr(&root, &mut [0u8; 64][..]), Ok(0));
    let statfs = rustix::fs::statvfs(&root).unwrap();
    assert_eq!((statfs.f_bsize, statfs.f_namemax), (4096, 255));
    assert_eq!(statfs.f_blocks, after.space.blocks);
}
