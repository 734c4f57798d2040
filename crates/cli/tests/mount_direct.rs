//! Concurrent direct requests of one program on a mount, made by fio: writes acknowledged as
//! durable are durable, and reads through the page cache see them.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::place::{Place, furrow, said, skip};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;
/// Blocks of the file that is written.
const BLOCKS: usize = 512;

fn fio(engine: &str, file: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("fio");
    command
        .args(["--name=t", "--direct=1", "--bs=4k", "--size=2m", "--iodepth=32", "--minimal"])
        .args(["--allow_file_create=0", "--allow_mounted_write=1"])
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--filename={}", file.display()))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn done(out: &Output) {
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text} {}", said(out));
}

/// fio's engines that work with this kernel.
fn engines() -> Vec<&'static str> {
    let off = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    match off.is_ok_and(|off| off.trim() == "0") {
        true => vec!["libaio", "io_uring"],
        false => vec!["libaio"],
    }
}

#[test]
fn acknowledged_durable_direct_writes_survive_a_kill() {
    if skip("acknowledged_durable_direct_writes_survive_a_kill") {
        return;
    }
    let place = Place::new("dsync");
    let mut version = 0;
    for engine in engines() {
        for (options, sync) in
            [("commit=600,noasync_dio", "dsync"), ("commit=600", "dsync"), ("commit=600", "sync")]
        {
            version += 1;
            place.mount_with(options);
            let file = place.file("file");
            fs::write(&file, vec![0; BLOCK * BLOCKS]).unwrap();
            assert!(furrow(&["sync", &place.dir()]).status.success());
            let (pattern, sync) =
                (format!("--buffer_pattern=0x{version:02x}"), "--sync=".to_owned() + sync);
            done(&fio(engine, &file, &["--rw=write", &pattern, &sync]).output().unwrap());
            place.kill();
            place.mount();
            let found = fs::read(&file).unwrap();
            assert_eq!(found.len(), BLOCK * BLOCKS);
            let lost = found.chunks(BLOCK).filter(|block| **block != [version; BLOCK]).count();
            assert_eq!(lost, 0, "{engine} {options} {sync}: blocks that are old");
            assert!(furrow(&["umount", &place.dir()]).status.success());
        }
    }
}

/// The content of `file` by a direct read.
fn direct(file: &Path) -> Vec<u8> {
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(file).unwrap();
    let mut room = vec![0; BLOCK * (BLOCKS + 1)];
    let at = room.as_ptr().align_offset(BLOCK);
    file.read_exact_at(&mut room[at..at + BLOCK * BLOCKS], 0).unwrap();
    room[at..at + BLOCK * BLOCKS].to_vec()
}

/// A read that overtakes a direct write in flight leaves old content in the page cache. To make
/// that likely, another writer delays the writes on a slow drive.
#[test]
fn the_page_cache_agrees_with_direct_writes_beside_it() {
    if skip("the_page_cache_agrees_with_direct_writes_beside_it") {
        return;
    }
    let place = Place::new("beside");
    let (slow, dir) = (format!("{},timing=realtime,time-scale=40", place.image()), place.dir());
    for engine in engines() {
        let out = furrow(&["mount", &slow, &dir, "-o", "cache=16MiB"]);
        assert!(out.status.success(), "{}", said(&out));
        let (path, load) = (place.file("file"), place.file("load"));
        fs::write(&path, vec![0; BLOCK * BLOCKS]).unwrap();
        let (over, begun) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (file, piece) = (File::create(&load).unwrap(), vec![1; 1 << 20]);
                for at in (0..48).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                    file.write_all_at(&piece, at << 20).unwrap();
                    begun.fetch_or(at == 24, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(fs::read(&path).unwrap().len(), BLOCK * BLOCKS);
                }
            });
            // The loop has a limit, so that the other threads end whatever fails.
            let busy = (0..2000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                begun.load(Ordering::Relaxed)
            });
            let out = fio(engine, &path, &["--rw=write", "--refill_buffers"]).output();
            over.store(true, Ordering::Relaxed);
            assert!(busy, "the drive has nothing to do");
            done(&out.unwrap());
        });
        let (cached, written) = (fs::read(&path).unwrap(), direct(&path));
        let stale = cached.chunks(BLOCK).zip(written.chunks(BLOCK)).filter(|(a, b)| a != b).count();
        assert_eq!(stale, 0, "{engine}: blocks that are old in the page cache");
        assert!(furrow(&["umount", &dir]).status.success());
    }
}
