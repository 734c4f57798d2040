//! `furrow scrub` for a user: of a mount, and of a store.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::place::{Place, furrow, refused, said, skip};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

/// Exit status and output.
fn scrub(arguments: &[&str]) -> (Option<i32>, String) {
    let out = furrow(&[&["scrub"], arguments].concat());
    let text = String::from_utf8(out.stdout.clone()).unwrap() + &said(&out);
    (out.status.code(), text)
}

/// Flips a bit in one block of the image that is full of `byte`.
fn damage(image: &str, byte: u8) {
    let content = fs::read(image).unwrap();
    let blocks = content.chunks_exact(4096);
    let at = blocks.into_iter().position(|block| block == [byte; 4096]).unwrap() as u64;
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(&[byte ^ 4], at * 4096 + 17).unwrap();
}

#[test]
fn a_mount_is_scrubbed_while_it_is_used() {
    if skip("a_mount_is_scrubbed_while_it_is_used") {
        return;
    }
    let place = Place::new("scrub");
    refused(&["scrub", &place.image()], 1, "furrow");
    place.mount();
    let dir = place.dir();
    fs::create_dir(place.file("deep")).unwrap();
    fs::write(place.file("deep/file"), vec![0xa5; 30_000]).unwrap();
    fs::write(place.file("other"), vec![0x5a; 300_000]).unwrap();
    assert!(furrow(&["sync", &dir]).status.success());
    refused(&["scrub", "--pause", &dir], 1, "no scrub is running");
    let deep = place.file("deep").display().to_string();
    refused(&["df", &deep], 1, &format!("mounted on {dir}: name that"));
    let (status, text) = scrub(&["--status", &dir]);
    assert!(status == Some(0) && text.contains("no scrub was begun"), "{text}");
    // Other users may see the scrub, but not give orders.
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "12345", "--clear-groups", env!("CARGO_BIN_EXE_furrow")]);
        let out = command.args(arguments).output().unwrap();
        (out.status.code(), said(&out))
    };
    // Other users may be unable to reach the program in the developer's directory.
    let reach_it = as_user(&["--version"]).0 == Some(0);
    for (arguments, status, words) in [
        (&["stat", &dir][..], 0, ""),
        (&["df", &dir], 0, ""),
        (&["sync", &dir], 0, ""),
        (&["scrub", "--status", &dir], 0, ""),
        (&["scrub", "--background", &dir], 1, "a scrub needs root"),
        (&["gc", &dir], 1, "needs root"),
    ] {
        let (found, text) = as_user(arguments);
        assert!(
            !reach_it || found == Some(status) && text.contains(words),
            "{arguments:?}: {text}"
        );
    }
    // A value that is not a request gets an error, and the mount keeps running.
    for request in ["", "{}", "[[[[", "{\"request\":\"gc\"}", "{\"version\":9}", "\\\"\n\u{1}"] {
        let mut value = [0; 1000];
        let name = format!("furrow.ask.{request}");
        let length = rustix::fs::getxattr(&*dir, &*name, value.as_mut_slice()).unwrap();
        let answer: Value = serde_json::from_slice(&value[..length]).unwrap();
        assert!(answer["error"].as_str().unwrap().contains("not a request"), "{answer}");
    }
    let (status, text) = scrub(&[&dir]);
    assert!(status == Some(0) && text.contains("nothing damaged"), "{text}");

    // One bit is flipped on the drive; the engine still has the block in memory.
    damage(&place.image(), 0xa5);
    let (status, text) = scrub(&["--wait", &dir]);
    assert_eq!(status, Some(1), "{text}");
    let path = place.file("deep/file").display().to_string();
    assert!(
        text.contains(&path) && text.contains("bytes ") && text.contains("1 DAMAGED"),
        "{text}"
    );
    let (status, text) = scrub(&["--status", &dir, "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &json["version"]), (Some(1), &1.into()));
    assert_eq!(
        (&json["scrub"]["state"], &json["scrub"]["damaged"]),
        (&"finished".into(), &1.into())
    );
    let stat = String::from_utf8(furrow(&["stat", &dir]).stdout).unwrap();
    assert!(stat.contains("scrub: ") && stat.contains("1 DAMAGED"), "{stat}");
    let metrics = String::from_utf8(furrow(&["stat", "--prometheus", &dir]).stdout).unwrap();
    assert_eq!(furrow_metrics::problems(&metrics), Vec::<String>::new());
    let damaged = metrics.lines().find(|line| line.starts_with("furrow_scrub_damaged_blocks{"));
    let damaged = damaged.unwrap();
    assert!(damaged.ends_with(" 1") && damaged.contains(&dir), "{damaged}");
    let (status, text) = scrub(&["--repair", &dir]);
    assert!(status == Some(0) && text.contains("1 damaged and mended"), "{text}");
    let (status, text) = scrub(&[&dir, "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &json["scrub"]["damaged"]), (Some(0), &0.into()), "{json}");
    assert!(furrow(&["umount", &dir]).status.success());
    assert!(furrow(&["fsck", &place.image()]).status.success());

    // Now only the drive has the block: the scrub names the damage, and does not change the block.
    place.mount();
    damage(&place.image(), 0x5a);
    let (status, text) = scrub(&["--repair", &place.image()]);
    assert!(status == Some(1) && text.contains("other: bytes "), "{text}");
    assert!(fs::read(place.file("other")).is_err());
    assert_eq!(fs::read(place.file("deep/file")).unwrap(), vec![0xa5; 30_000]);
    // The scrub runs in the background.
    let (status, text) = scrub(&["--background", &dir]);
    assert!(status == Some(0) && text.contains("a scrub begins"), "{text}");
    crate::place::wait_until("its end", || {
        let json: Value = serde_json::from_str(&scrub(&["--status", &dir, "--json"]).1).unwrap();
        json["scrub"]["state"] == "finished"
    });
}

#[test]
fn a_store_is_scrubbed_on_its_drive() {
    let place = Place::empty("scrub-store");
    let image = place.image();
    let drive = ["device", "create", &image, "-o", "zones=40,zone-size=1MiB,max-active=14"];
    assert!(furrow(&drive).status.success());
    assert!(furrow(&["kv", "mkfs", &image]).status.success());
    let file = place.0.join("file");
    fs::write(&file, vec![0xa5; 50_000]).unwrap();
    let put = furrow(&["kv", "put", &image, file.to_str().unwrap(), "db/1.sst"]);
    assert!(put.status.success(), "{}", said(&put));
    let (status, text) = scrub(&[&image]);
    assert!(status == Some(0) && text.contains("nothing damaged"), "{text}");
    refused(&["scrub", "--pause", &image], 1, "no scrub runs");
    let (status, text) = scrub(&[&image, "--repair"]);
    assert!(status == Some(0) && text.contains("nothing damaged"), "{text}");
    damage(&image, 0xa5);
    for arguments in [&[&*image][..], &[&image, "--repair"]] {
        let (status, text) = scrub(arguments);
        assert!(status == Some(1) && text.contains("db/1.sst: bytes "), "{arguments:?}: {text}");
    }
}
