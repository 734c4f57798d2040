//! `furrow kv` for a user: files in and out, output, refusals.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::store::{DRIVE, Place};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_file_that_is_put_is_listed_and_comes_back_as_it_was() {
    let place = Place::with_store("files");
    let d = place.drive();
    let content = place.file("big", 3_000_001);
    place.file("small", 100);
    place.file("nothing", 0);
    for (name, path) in [("big", "db/000001.sst"), ("small", "db/CURRENT"), ("nothing", "/e")] {
        place.ok(&["kv", "put", &d, &place.at(name), path, "--lifetime", "medium"]);
    }
    assert_eq!(place.ok(&["kv", "ls", &d]), "db/\ne\n");
    assert_eq!(place.ok(&["kv", "ls", &d, "/db/"]), "000001.sst\nCURRENT\n");
    assert_eq!(place.ok(&["kv", "ls", "-R", &d]), "db/\ndb/000001.sst\ndb/CURRENT\ne\n");
    let long = place.ok(&["kv", "ls", "-lR", &d]);
    let line = long.lines().find(|line| line.ends_with("db/000001.sst")).unwrap();
    assert!(line.contains("3000001") && line.contains("medium"), "{long}");
    let json = place.json(&["kv", "ls", &d, "db"]);
    assert_eq!(json["entries"][0]["name"], "000001.sst");
    assert_eq!(json["entries"][0]["bytes"], 3_000_001);
    assert!(json["entries"][0]["extents"].as_u64().unwrap() >= 3, "{json}");
    let to = place.at("back");
    place.ok(&["kv", "get", &d, "db/000001.sst", &to]);
    assert!(fs::read(&to).unwrap() == content);
    place.refused(&["kv", "get", &d, "db/CURRENT", &to], 1, &["--force"]);
    place.ok(&["kv", "get", "-f", &d, "e", &to]);
    assert_eq!(fs::read(&to).unwrap(), b"");
    let out = place.furrow(&["kv", "get", &d, "db/000001.sst", "-"]);
    assert!(out.status.success() && out.stdout == content);
    // `put` works a second time with --force, from standard input.
    place.refused(&["kv", "put", &d, &place.at("small"), "e"], 1, &["--force replaces"]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_furrow"))
        .args(["kv", "put", "--force", &d, "-", "e"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(place.ok(&["kv", "get", &d, "e", "-"]), "hello");
    assert_eq!(place.ok(&["kv", "ls", &d]), "db/\ne\n", "nothing unfinished is left");
    assert!(place.ok(&["kv", "fsck", &d]).contains("clean: 3 files, 1 directory, 3 names"));
}

#[test]
fn space_zones_and_figures_are_told_by_kind() {
    let place = Place::with_store("told");
    let d = place.drive();
    place.file("big", 2_500_000);
    for path in ["db/1.sst", "db/2.blob", "db/3.log", "db/MANIFEST-4", "db/LOG"] {
        place.ok(&["kv", "put", &d, &place.at("big"), path]);
    }
    let before = fs::read(&d).unwrap();
    let df = place.json(&["kv", "df", &d]);
    let kinds: Vec<&str> =
        df["kinds"].as_array().unwrap().iter().map(|k| k["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["blob", "sst", "wal", "manifest", "other"]);
    let mut used = 0;
    for kind in df["kinds"].as_array().unwrap() {
        assert_eq!((&kind["files"], &kind["bytes"]), (&1.into(), &2_500_000.into()), "{df}");
        used += kind["disk_bytes"].as_u64().unwrap();
    }
    assert_eq!(df["used_bytes"], used);
    assert_eq!(df["label"], "db");
    let text = place.ok(&["kv", "df", &d]);
    assert!(text.contains("MANIFEST*"), "{text}");
    // The percentages add up to 100.
    let share = |line: &str| line.rsplit(' ').next()?.strip_suffix('%')?.parse::<f64>().ok();
    let shares: Vec<f64> = text.lines().skip(3).filter_map(share).collect();
    let sum = shares.iter().map(|share| (share * 10.0).round() as u64).sum::<u64>();
    assert_eq!((shares.len(), sum), (5, 1000), "{text}");
    let map = place.json(&["kv", "map", &d]);
    assert_eq!((&map["total"], &map["zone_blocks"]), (&40.into(), &256.into()));
    let zones = map["zones"].as_array().unwrap();
    let uses = |usage: &str| zones.iter().filter(|zone| zone["use"] == usage).count();
    // The record ring has two halves and a spare zone.
    assert_eq!(uses("ring"), 5);
    assert!(uses("full") >= 11 && uses("free") >= 20 && uses("open") >= 1, "{map}");
    let valid: u64 = zones
        .iter()
        .filter(|zone| zone["use"] != "ring")
        .map(|zone| zone["valid"].as_u64().unwrap())
        .sum();
    assert_eq!(valid * 4096, used);
    let sst: u64 = zones.iter().filter_map(|zone| zone["kinds"]["sst"].as_u64()).sum();
    assert_eq!(sst * 4096, df["kinds"][1]["disk_bytes"].as_u64().unwrap());
    let text = place.ok(&["kv", "map", &d]);
    assert!(text.starts_with(" 0 ") && text.contains("kind      in zones  alone in"), "{text}");
    // `kv map` has the same forms as `furrow map`.
    let summary = place.ok(&["kv", "map", "--summary", &d]);
    assert!(summary.starts_with("use ") && summary.contains("alone in"), "{summary}");
    let picture = place.ok(&["kv", "map", "--svg", "-", &d]);
    assert!(picture.starts_with("<svg") && picture.contains(">ring "), "{picture}");
    let stat = place.json(&["kv", "stat", &d]);
    assert_eq!((&stat["files"], &stat["file_bytes"]), (&5.into(), &12_500_000.into()));
    assert_eq!(stat["zones"]["ring"], 5);
    let text = place.ok(&["kv", "stat", "--prometheus", &d]);
    assert!(text.contains("# TYPE furrow_kv_space_bytes gauge"), "{text}");
    let line = text.lines().find(|line| line.contains("state=\"used\"")).unwrap();
    assert!(line.starts_with("furrow_kv_space_bytes{device=") && line.contains("store="), "{line}");
    assert!(line.ends_with(&format!(" {used}")), "{line}");
    assert!(place.ok(&["kv", "stat", &d]).contains("5 with 5 names in 1 directory,"));
    place.ok(&["kv", "fsck", &d]);
    assert!(fs::read(&d).unwrap() == before, "looking has written");
}

#[test]
fn a_backup_is_restored_with_every_byte_and_name() {
    let place = Place::with_store("backup");
    let d = place.drive();
    place.file("tree/a/one.sst", 1_200_000);
    place.file("tree/a/two", 4097);
    place.file("tree/b/c/three", 0);
    fs::create_dir(place.0.join("tree/empty")).unwrap();
    fs::hard_link(place.0.join("tree/a/two"), place.0.join("tree/b/again")).unwrap();
    let said = place.ok(&["kv", "restore", &place.at("tree"), &d, "deep/db"]);
    assert!(said.contains("4 files, 4 directories"), "{said}");
    let entries = place.json(&["kv", "ls", "-R", &d]);
    let again = entries["entries"].as_array().unwrap().iter();
    let again: Vec<&Value> = again.filter(|entry| entry["names"] == 2).collect();
    assert_eq!(again.len(), 2, "{entries}");
    assert_eq!(again[0]["file"], again[1]["file"]);
    let words = &["is there already", "--force", "nothing was copied"];
    place.refused(&["kv", "restore", &place.at("tree"), &d, "deep/db"], 1, words);
    place.ok(&["kv", "restore", "--force", &place.at("tree"), &d, "deep/db"]);
    let to = place.at("copy");
    let json = place.json(&["kv", "backup", &d, &to, "deep/db"]);
    assert_eq!((&json["files"], &json["left_out"]), (&4.into(), &serde_json::json!([])));
    let status = Command::new("diff").args(["-r", &place.at("tree"), &to]).status().unwrap();
    assert!(status.success());
    let number = |path: &str| {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(place.0.join(path)).unwrap().ino()
    };
    assert_eq!(number("copy/a/two"), number("copy/b/again"));
    place.refused(&["kv", "backup", &d, &to], 1, &["not empty"]);
    // Copies the whole store, and then a single file.
    place.ok(&["kv", "backup", &d, &place.at("all")]);
    assert!(place.0.join("all/deep/db/empty").is_dir());
    place.ok(&["kv", "backup", &d, &place.at("single"), "deep/db/a/two"]);
    assert_eq!(fs::read(place.0.join("single/two")).unwrap().len(), 4097);
    assert!(place.ok(&["kv", "fsck", &d]).contains("clean: 3 files, 6 directories, 4 names"));
    // The directory contains things that a store does not hold, and files that do not fit.
    std::os::unix::fs::symlink("a", place.0.join("tree/link")).unwrap();
    let words = &["link", "files and directories only"];
    place.refused(&["kv", "restore", &place.at("tree"), &d, "x"], 1, words);
    place.file("large/f", 60 << 20);
    let words = &["are needed", "available", "nothing was copied"];
    place.refused(&["kv", "restore", &place.at("large"), &d], 1, words);
    assert_eq!(place.ok(&["kv", "ls", &d]), "deep/\n");
}

/// Flips a bit of the image's block that holds these bytes.
fn rot(image: &str, wanted: &[u8]) {
    let mut bytes = fs::read(image).unwrap();
    let block = bytes.chunks_exact_mut(4096).find(|block| *block == wanted).unwrap();
    block[1234] ^= 8;
    fs::write(image, &bytes).unwrap();
}

#[test]
fn a_damaged_block_is_found_with_its_file_and_the_others_can_be_saved() {
    let place = Place::with_store("damage");
    let d = place.drive();
    let content = place.file("big", 1_000_000);
    place.file("other", 50_000);
    place.ok(&["kv", "put", &d, &place.at("big"), "db/000007.sst"]);
    place.ok(&["kv", "put", &d, &place.at("other"), "db/000008.sst"]);
    rot(&d, &content[4096 * 30..4096 * 31]);
    let out = place.furrow(&["kv", "fsck", &d]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(4), "{text}");
    assert!(text.contains("content: db/000007.sst: block 30 (zone "), "{text}");
    assert!(text.contains("1 ERROR, nothing was changed"), "{text}");
    let out = place.furrow(&["kv", "fsck", "--json", &d]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((out.status.code(), &json["ok"]), (Some(4), &false.into()));
    let problem = &json["problems"][0];
    assert_eq!((&problem["file"], &problem["block"]), (&"db/000007.sst".into(), &30.into()));
    assert!(problem["zone"].is_u64() && problem["offset"].is_u64(), "{problem}");
    // The metadata is intact.
    assert!(place.ok(&["kv", "fsck", "--metadata-only", &d]).contains("which was not read"));
    let to = place.at("got");
    place.refused(&["kv", "get", &d, "db/000007.sst", &to], 1, &["db/000007.sst: block 30 "]);
    assert!(!Path::new(&to).exists() && !Path::new(&format!("{to}.furrow-get")).exists());
    place.refused(&["kv", "backup", &d, &place.at("b1")], 1, &["db/000007.sst: block 30 "]);
    let out = place.furrow(&["kv", "backup", "-k", &d, &place.at("b2")]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("left out: db/000007.sst: block 30 "), "{text}");
    assert!(
        fs::read(place.at("b2/db/000008.sst")).unwrap() == fs::read(place.at("other")).unwrap()
    );
    assert!(!Path::new(&place.at("b2/db/000007.sst")).exists());
}

/// Whatever is damaged in the image, no command panics or hangs.
#[test]
fn a_damaged_image_is_no_panic() {
    let place = Place::with_store("rot");
    let d = place.drive();
    let content = place.file("big", 1_500_000);
    for path in ["a", "db/b"] {
        place.ok(&["kv", "put", &d, &place.at("big"), path]);
    }
    let whole = fs::read(&d).unwrap();
    // Damages the records of the ring and the blocks of checksums, one after the other.
    let records: Vec<usize> = whole
        .chunks_exact(4096)
        .enumerate()
        .filter(|(_, block)| block.starts_with(b"FRW1") && (0x30..0x33).contains(&block[4]))
        .map(|(index, _)| index * 4096)
        .collect();
    assert!(records.len() > 5, "{}", records.len());
    let damaged = place.at("damaged.zns");
    let (mut told, mut refused) = (0, 0);
    for record in records {
        for at in [0, 9, 300] {
            let mut bytes = whole.clone();
            bytes[record + at] ^= 0x41;
            fs::write(&damaged, &bytes).unwrap();
            for command in ["fsck", "map"] {
                let out = place.furrow(&["kv", command, &damaged]);
                let said = String::from_utf8_lossy(&out.stderr).into_owned();
                let status = out.status.code().unwrap();
                assert!([0, 1, 4, 8].contains(&status), "{command} {record}+{at}: {said}");
                assert!(!said.contains("panicked"), "{command} {record}+{at}: {said}");
                told += u32::from(command == "fsck" && status == 4);
            }
            let out = place.furrow(&["kv", "get", &damaged, "db/b", "-"]);
            if out.status.success() {
                assert!(out.stdout == content, "{record}+{at}");
                continue;
            }
            // The store is refused unless the user accepts the loss; then the remaining content can
            // be used.
            refused += 1;
            place.ok(&["kv", "ls", "--accept-loss", &damaged]);
            // There is no terminal to ask, and no user has agreed to the loss.
            let before = fs::read(&damaged).unwrap();
            for (args, why) in [(&["--repair"][..], "-y agrees"), (&["-n", "--repair"], "as -n")] {
                let out = place.furrow(&[&["kv", "fsck", &damaged], args].concat());
                let said = String::from_utf8_lossy(&out.stdout).into_owned();
                assert_eq!(out.status.code(), Some(4), "{record}+{at}: {said}");
                // A damaged block of checksums alone leaves nothing to repair.
                assert!(said.contains(why) || !said.contains(": ring: "), "{record}+{at}: {said}");
                assert!(fs::read(&damaged).unwrap() == before, "{record}+{at}: {said}");
            }
            let out = place.furrow(&["kv", "fsck", "--repair", "-y", &damaged]);
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            if out.status.code() == Some(4) && said.contains(": checksums: ") {
                // Content has no second copy.
                continue;
            }
            assert_eq!(out.status.code(), Some(1), "{record}+{at}: {said}");
            place.ok(&["kv", "ls", &damaged]);
            place.ok(&["kv", "put", &damaged, &place.at("big"), "c"]);
            place.ok(&["kv", "fsck", &damaged]);
        }
    }
    assert!(told > 0 && refused > 0, "{told} told, {refused} refused");
}

#[test]
fn what_is_there_instead_is_said_and_nothing_is_overwritten() {
    let place = Place::new("wrong");
    let d = place.drive();
    let reads = |device: &str| {
        let device = device.to_owned();
        let (a, b) = (place.at("a"), place.at("b"));
        vec![
            vec!["ls".to_owned(), device.clone()],
            vec!["df".to_owned(), device.clone()],
            vec!["map".to_owned(), device.clone()],
            vec!["stat".to_owned(), device.clone()],
            vec!["get".to_owned(), device.clone(), "x".to_owned(), a.clone()],
            vec!["put".to_owned(), device.clone(), a.clone(), "x".to_owned()],
            vec!["backup".to_owned(), device.clone(), b.clone()],
            vec!["restore".to_owned(), place.at("tree"), device.clone()],
            vec!["fsck".to_owned(), device],
        ]
    };
    place.file("a", 10);
    place.file("tree/x", 10);
    let all_say = |device: &str, words: &[&str]| {
        for arguments in reads(device) {
            let arguments: Vec<&str> =
                std::iter::once("kv").chain(arguments.iter().map(String::as_str)).collect();
            let status = if arguments[1] == "fsck" { 8 } else { 1 };
            let said = place.refused(&arguments, status, words);
            assert!(!said.contains("-f ") && !said.contains("--force"), "{said}");
        }
        assert!(!Path::new(&place.at("b")).exists());
    };
    all_say(&d, &["no Furrow file store; the drive is empty", "furrow kv mkfs"]);
    place.ok(&["mkfs", &d]);
    all_say(&d, &["no Furrow file store: it holds a Furrow file system (UUID", "furrow mount"]);
    let words = &["not empty, it holds a Furrow file system", "-f destroys"];
    place.refused(&["kv", "mkfs", &d], 1, words);
    let plain = place.at("a");
    all_say(&plain, &["a plain file without zones"]);
    let none = place.at("none");
    place.refused(&["kv", "ls", &none], 1, &["none"]);
    for i in 0..3 {
        let options = format!("{DRIVE},oob=64");
        place.ok(&["device", "create", &place.at(&format!("r{i}.zns")), "-o", &options]);
    }
    let r: Vec<String> = (0..3).map(|i| place.at(&format!("r{i}.zns"))).collect();
    place.ok(&["raid", "create", "-l", "5", "-n", "a", &r[0], &r[1], &r[2]]);
    all_say(&r[1], &["it holds member 1 of the array a", "furrow raid"]);
    // Conversely, every other command recognises a store.
    let made = place.ok(&["kv", "mkfs", "-f", &d, "-L", "db"]);
    let uuid = made.lines().find_map(|line| line.trim().strip_prefix("UUID")).unwrap().trim();
    let it = format!("a Furrow file store (UUID {uuid})");
    let before = fs::read(&d).unwrap();
    for (arguments, status) in [
        (&["fsck", &d][..], 8),
        (&["fsck", "-y", &d], 8),
        (&["mount", &d, &place.at("")], 32),
        (&["dump", "superblock", &d], 1),
        (&["df", &d], 1),
        (&["map", &d], 1),
        (&["stat", &d], 1),
        (&["raid", "assemble", &d], 1),
    ] {
        let said = place.refused(arguments, status, &[&it, "furrow kv ls"]);
        for word in ["mkfs", "--force", "-f ", "create"] {
            assert!(!said.contains(word), "'{word}' in: {said}");
        }
    }
    let other = place.at("other.zns");
    place.ok(&["device", "create", &other, "-o", DRIVE]);
    for arguments in [
        &["mkfs", &d][..],
        &["kv", "mkfs", &d],
        &["raid", "create", "-l", "0", "-n", "b", &d, &other],
    ] {
        place.refused(arguments, 1, &[&it, "furrow kv ls", "destroys what it holds"]);
    }
    assert!(fs::read(&d).unwrap() == before, "it was written to");
}

#[test]
fn wrong_arguments_and_paths_are_refused() {
    let place = Place::with_store("arguments");
    let d = place.drive();
    place.file("a", 10);
    place.file("tree/x", 10);
    let a = place.at("a");
    place.ok(&["kv", "put", &d, &a, "db/x"]);
    for (arguments, status) in [
        (&["kv", "fsck"][..], 16),
        (&["kv", "ls", "--nosuch", &d], 2),
        (&["kv", "stat", "--json", "--prometheus", &d], 2),
        (&["kv", "put", &d, &a, "x", "--lifetime", "forever"], 2),
        (&["kv", "plough"], 2),
    ] {
        place.refused(arguments, status, &["--help"]);
    }
    for arguments in [
        &["kv", "ls", &d, "../etc"][..],
        &["kv", "get", &d, "db/../../x", "-"],
        &["kv", "put", &d, &a, "../x"],
        &["kv", "backup", &d, &place.at("b"), ".."],
        &["kv", "restore", &place.at("tree"), &d, "../.."],
    ] {
        place.refused(arguments, 1, &["leads out of the store"]);
    }
    place.refused(&["kv", "ls", &d, "nosuch"], 1, &["nosuch: no such file"]);
    place.refused(&["kv", "get", &d, "db", "-"], 1, &["db: a directory"]);
    place.refused(&["kv", "put", &d, &a, "db"], 1, &["db: a directory"]);
    place.refused(&["kv", "put", &d, &a, "db/x/y"], 1, &["db/x: a file, not a directory"]);
    place.refused(&["kv", "put", &d, &a, "new/"], 1, &["the path of a file"]);
    place.refused(&["kv", "put", &d, &place.at("tree"), "t"], 1, &["furrow kv restore"]);
    place.refused(&["kv", "put", &d, &place.at("gone"), "t"], 1, &["gone"]);
    place.refused(&["kv", "mkfs", &d, "-f", "-L", &"x".repeat(64)], 2, &["at most 63 bytes"]);
    assert_eq!(place.ok(&["kv", "ls", "-R", &d]), "db/\ndb/x\n");
}

/// Only one program at a time can use a store.
#[test]
fn a_store_in_use_is_refused_and_who_uses_it_is_said() {
    let place = Place::with_store("busy");
    let d = place.drive();
    // The command waits for input with the store open.
    let start = || {
        let mut child = Command::new(env!("CARGO_BIN_EXE_furrow"))
            .args(["kv", "put", &d, "-", "x"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        // If the process was refused, it does not read its input.
        let _ = input.write_all(b"some");
        (child, input)
    };
    let (mut child, mut input) = start();
    let begun = std::time::Instant::now();
    let said = loop {
        std::thread::sleep(std::time::Duration::from_millis(200));
        // The process was refused itself, because a check of this loop had the store open when
        // it began.
        if child.try_wait().unwrap().is_some() {
            (child, input) = start();
            continue;
        }
        let out = place.furrow(&["kv", "ls", &d]);
        if !out.status.success() {
            break String::from_utf8(out.stderr).unwrap();
        }
        assert!(begun.elapsed().as_secs() < 60, "never refused");
    };
    assert!(said.contains("another program uses the store (in use by process "), "{said}");
    assert!(said.contains(&child.id().to_string()) && said.lines().count() == 1, "{said}");
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(place.ok(&["kv", "get", &d, "x", "-"]), "some");
}

#[test]
fn a_recorded_run_is_summed_up_and_listed() {
    let place = Place::new("trace");
    let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/traces/db_bench.trace");
    let shown = place.json(&["kv", "trace", run]);
    assert_eq!(shown["whole"], true);
    let kinds = shown["kinds"].as_array().unwrap();
    let calls = |kind: &str| {
        let found = kinds.iter().find(|found| found["kind"] == kind);
        found.map_or(0, |found| found["calls"].as_u64().unwrap())
    };
    let all: u64 = kinds.iter().map(|kind| kind["calls"].as_u64().unwrap()).sum();
    assert_eq!(shown["calls"].as_u64().unwrap(), all);
    // Every append was synced, by itself or together with others.
    assert!(calls("append") > 500 && calls("sync") > 300 && calls("rename") > 0, "{shown}");
    let table = place.ok(&["kv", "trace", run]);
    assert!(table.contains("threads") && !table.contains("cut off"), "{table}");
    let listed = place.ok(&["kv", "trace", "--list", run]);
    assert_eq!(listed.lines().count() as u64, all);

    // A truncated recording counts up to the truncation.
    let bytes = fs::read(run).unwrap();
    let half = place.at("half.trace");
    fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    assert!(place.ok(&["kv", "trace", &half]).contains("cut off"));
    place.refused(&["kv", "trace", &place.drive()], 1, &["not a recorded run"]);
    place.refused(&["kv", "trace", &place.at("none")], 1, &["No such file"]);
}
