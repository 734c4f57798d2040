//! If the disk below an image is full, programs get an I/O error, and the mount says why.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::place::{Place, furrow, said, skip};
use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

/// A small file system on the host, removed at the end.
struct Host(String);

impl Host {
    fn mount(&self, options: &str) {
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "none", &self.0]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn a_full_disk_under_an_image_is_an_error_of_io_and_said() {
    if skip("a_full_disk_under_an_image_is_an_error_of_io_and_said") {
        return;
    }
    let place = Place::empty("full-host");
    let host = Host(place.0.join("host").to_str().unwrap().to_owned());
    fs::create_dir(&host.0).unwrap();
    host.mount("size=24m");
    let image = format!("{}/disk.zns", host.0);
    let (dir, log) = (place.dir(), place.log());
    let drive = ["device", "create", &image, "-o", "capacity=256MiB,zone-size=4MiB"];
    assert!(furrow(&drive).status.success());
    assert!(furrow(&["mkfs", &image]).status.success());
    let mount = || furrow(&["mount", &image, &dir, "--log", &log]);
    assert!(mount().status.success());
    fs::write(place.file("kept"), "kept").unwrap();
    assert!(furrow(&["sync", &dir]).status.success());
    let mut file = File::create(place.file("large")).unwrap();
    let block = vec![7; 1 << 20];
    let write = |file: &mut File| file.write_all(&block).and_then(|()| file.sync_data());
    let error = (0..64).find_map(|_| write(&mut file).err()).expect("the disk is full");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    // Changes that were not durable keep failing, and new changes are refused.
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(5));
    let refused = fs::write(place.file("new"), "new").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "{refused}");
    assert_eq!(fs::read(place.file("kept")).unwrap(), b"kept");

    let out = furrow(&["stat", "--json", &dir]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["read_only"], true);
    let why = json["failure"].as_str().unwrap();
    assert!(why.contains("disk.zns") && why.contains("is full: free space there"), "{why}");
    let metrics = String::from_utf8(furrow(&["stat", "--prometheus", &dir]).stdout).unwrap();
    for sample in ["furrow_read_only{", "furrow_failed{"] {
        let line = metrics.lines().find(|line| line.starts_with(sample)).unwrap();
        assert!(line.ends_with(" 1"), "{line}");
    }
    let text = String::from_utf8(furrow(&["df", &dir]).stdout).unwrap();
    assert!(text.contains("FAILED") && text.contains("is full"), "{text}");
    let told = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = told.lines().filter(|line| line.contains("is full")).collect();
    assert_eq!(lines.len(), 1, "one line says it: {told}");
    assert!(lines[0].contains("writing has stopped"), "{told}");

    drop(file);
    let out = furrow(&["umount", &dir]);
    assert_eq!(out.status.code(), Some(1));
    assert!(said(&out).contains("is full") && said(&out).contains("umount -l"), "{}", said(&out));
    assert!(furrow(&["umount", "-l", &dir]).status.code() == Some(1), "what is lost is said");
    host.mount("remount,size=512m");
    assert!(mount().status.success(), "{}", fs::read_to_string(&log).unwrap());
    assert_eq!(fs::read(place.file("kept")).unwrap(), b"kept");
    fs::write(place.file("new"), "new").unwrap();
    assert!(furrow(&["umount", &dir]).status.success());
    assert_eq!(furrow(&["fsck", &image]).status.code(), Some(0));
}
