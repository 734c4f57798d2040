//! The kernel's write-back cache: the other tests again, and tests of the differences.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test on a mount")]

use crate::common::engine::WRITEBACK;
use crate::common::place::{Place, pattern};
use furrow_fuse::report;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

again!(WRITEBACK.set(true));

fn place(name: &str) -> Option<Place> {
    WRITEBACK.set(true);
    Place::new(name)
}

/// Number of writes that the server has received.
fn writes(place: &Place) -> u64 {
    let stat = report::ask_stat(&place.at("")).unwrap();
    stat.operations.iter().find(|op| op.name == "write").map_or(0, |op| op.count)
}

#[test]
fn small_writes_arrive_joined_and_late() {
    let Some(place) = place("joined") else { return };
    let before = writes(&place);
    let mut file = File::create(place.at("file")).unwrap();
    let content = pattern(1 << 20, 3);
    for piece in content.chunks(4096) {
        file.write_all(piece).unwrap();
    }
    file.sync_all().unwrap();
    let requests = writes(&place) - before;
    assert!((1..=16).contains(&requests), "256 writes of 4 KiB became {requests}");
    assert!(fs::read(place.at("file")).unwrap() == content);
}

#[test]
fn what_is_closed_is_passed_on() {
    let Some(place) = place("closed") else { return };
    let before = writes(&place);
    // The server gets the data before the rename that follows.
    fs::write(place.at("new"), pattern(9000, 5)).unwrap();
    assert!(writes(&place) > before);
}

#[test]
fn what_replaces_a_file_is_passed_on_before() {
    let Some(place) = place("replaces") else { return };
    fs::write(place.at("old"), "old").unwrap();
    let before = writes(&place);
    let mut new = File::create(place.at("new")).unwrap();
    new.write_all(&pattern(9000, 5)).unwrap();
    fs::rename(place.at("new"), place.at("other")).unwrap();
    assert_eq!(writes(&place), before, "it replaces nothing");
    fs::rename(place.at("other"), place.at("old")).unwrap();
    assert!(writes(&place) > before);
    assert!(fs::read(place.at("old")).unwrap() == pattern(9000, 5));
}

#[test]
fn the_kernel_keeps_as_much_dirty_and_reads_as_far_ahead_as_for_a_local_file_system() {
    let Some(place) = place("limits") else { return };
    let device = fs::metadata(place.at("")).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    for (limit, value) in [("read_ahead_kb", "2048"), ("max_ratio", "100"), ("strict_limit", "0")] {
        match fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/{limit}")) {
            Ok(found) => assert_eq!(found.trim(), value, "{limit}"),
            // Kernels before 6.2 do not have this file.
            Err(_) => assert_eq!(limit, "strict_limit"),
        }
    }
}

#[test]
fn what_nobody_syncs_is_passed_on_in_time() {
    let Some(place) = place("in-time") else { return };
    let before = writes(&place);
    let mut file = File::create(place.at("file")).unwrap();
    file.write_all(b"nobody syncs this").unwrap();
    let started = Instant::now();
    while writes(&place) == before {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(15), "the kernel alone would take half a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn times_and_sizes_are_those_of_the_writes() {
    let Some(mut place) = place("times") else { return };
    let path = place.at("file");
    let mut file = File::create(&path).unwrap();
    file.write_all(&pattern(5000, 1)).unwrap();
    let written = fs::metadata(&path).unwrap();
    assert_eq!(written.len(), 5000, "before the server knows");
    std::thread::sleep(Duration::from_millis(1200));
    file.sync_all().unwrap();
    drop(file);
    place.remount();
    let kept = fs::metadata(place.at("file")).unwrap();
    assert_eq!(kept.len(), 5000);
    let times = |meta: &fs::Metadata| {
        ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()))
    };
    assert_eq!(times(&kept), times(&written), "of the write, not of the write-back");
}

#[test]
fn direct_writes_and_cached_ones_see_each_other() {
    let Some(place) = place("direct") else { return };
    let path = place.at("file");
    let cached = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    cached.write_all_at(&[1; 8192], 0).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::DIRECT;
    let direct = File::from(rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap());
    let mut back = furrow_rt::Page::zeroed();
    assert_eq!(direct.read_at(&mut back.make_mut()[..], 4096).unwrap(), 4096);
    assert_eq!(back[..], [1; 4096], "a direct read sees what waits in the cache");
    let before = fs::metadata(&path).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    back.make_mut().fill(2);
    direct.write_all_at(&back[..], 4096).unwrap();
    let mut all = [0; 8192];
    cached.read_exact_at(&mut all, 0).unwrap();
    assert_eq!((all[4095], all[4096]), (1, 2));
    let after = fs::metadata(&path).unwrap();
    assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
}

#[test]
fn holes_are_not_where_data_waits() {
    let Some(place) = place("waits") else { return };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(place.at("sparse"))
        .unwrap();
    file.set_len(1 << 20).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"data", 512 << 10).unwrap();
    let seek = |from| rustix::fs::seek(&file, from).unwrap();
    let found = seek(rustix::fs::SeekFrom::Data(0));
    assert_eq!(found, 512 << 10, "data that waits in the cache was taken for a hole");
    // The server does not know the new end of the file.
    file.write_all_at(b"end", 3 << 20).unwrap();
    assert_eq!(seek(rustix::fs::SeekFrom::Data(516 << 10)), 3 << 20);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(3 << 20)), (3 << 20) + 3);
    file.seek(SeekFrom::Start(512 << 10)).unwrap();
    let mut four = [0; 4];
    file.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"data");
}

#[test]
fn two_programs_append_and_truncate() {
    let Some(mut place) = place("append") else { return };
    let path = place.at("log");
    let line = |writer: u8, number: u32| format!("{writer} {number:08}\n");
    std::thread::scope(|scope| {
        for writer in 0..2u8 {
            let path = path.clone();
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for number in 0..2000 {
                    log.write_all(line(writer, number).as_bytes()).unwrap();
                }
            });
        }
    });
    let check = |text: &str| {
        let mut next = [0; 2];
        for found in text.lines() {
            let writer = found.as_bytes()[0] - b'0';
            assert_eq!(format!("{found}\n"), line(writer, next[usize::from(writer)]));
            next[usize::from(writer)] += 1;
        }
        next
    };
    assert_eq!(check(&fs::read_to_string(&path).unwrap()), [2000, 2000]);
    // Truncates within a dirty page and extends the file again: the truncated part must be zeros.
    let log = OpenOptions::new().write(true).open(&path).unwrap();
    log.set_len(11 * 1000).unwrap();
    log.set_len(11 * 1001).unwrap();
    log.write_all_at(b"end\n", 11 * 1001).unwrap();
    drop(log);
    place.remount();
    let bytes = fs::read(place.at("log")).unwrap();
    assert_eq!(bytes.len(), 11 * 1001 + 4);
    assert_eq!(check(std::str::from_utf8(&bytes[..11_000]).unwrap()).iter().sum::<u32>(), 1000);
    assert_eq!(bytes[11_000..11_011], [0; 11]);
    assert_eq!(&bytes[11_011..], b"end\n");
}
