//! Soft zones in a file, by the commands: made, shown, checked, used, damaged.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{Place, check, fill};
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

const SIZE: u64 = 96 << 20;

/// The output of a command, whatever its exit status.
fn said(place: &Place, arguments: &[&str]) -> String {
    String::from_utf8(place.furrow(arguments).stdout).unwrap()
}

fn create<'a>(drive: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let arguments = ["device", "create", "--soft", drive, "--zone-size", "1MiB"];
    [&arguments, more].concat()
}

#[test]
fn soft_zones_in_a_file_are_a_drive_for_every_command() {
    let place = Place::empty("soft");
    let drive = place.at("d.soft");
    place.refused(&create(&drive, &[]), &["no such file", "--size"]);
    let said = place.ok(&create(&drive, &["--size", "96MiB"]));
    assert!(said.contains("soft zones") && said.contains("zones of 1 MiB"), "{said}");
    let meta = fs::metadata(&drive).unwrap();
    assert!(meta.len() == SIZE && meta.blocks() * 512 >= SIZE, "all blocks are allocated");
    let said = place.ok(&["device", "check", &drive]);
    assert!(said.contains("it has soft zones") && said.contains("file system: fits"), "{said}");
    let said = place.ok(&["device", "show", &drive]);
    assert!(said.contains("soft zones on a plain drive"), "{said}");
    let streams = said.lines().find_map(|line| line.trim().strip_prefix("write streams"));
    assert_eq!(streams.map(str::trim), Some("none"), "a file has none: {said}");
    let said = place.ok(&["device", "show", &drive, "--json"]);
    assert!(said.contains("\"write_streams\": 0"), "{said}");
    place.ok(&["mkfs", "-L", "soft", &drive]);
    place.ok(&["fsck", &drive]);
    let said = place.ok(&["device", "report", &drive]);
    assert!(said.contains("closed") || said.contains("full"), "{said}");
    let said = place.ok(&["dump", "superblock", &drive]);
    assert!(said.contains("soft"), "{said}");
    place.refused(&["mkfs", &drive], &["not empty", "a Furrow file system"]);
    place.refused(
        &["device", "fault", &drive, "list"],
        &["a real drive: faults are injected into emulated ones"],
    );
    place.refused(&["fsck", &format!("{drive},timing=realtime")], &["no options"]);
    place.ok(&["kv", "mkfs", "-f", &drive]);
    let file = place.at("some");
    fs::write(&file, [7; 10_000]).unwrap();
    place.ok(&["kv", "put", &drive, &file, "some"]);
    place.ok(&["kv", "get", &drive, "some", &place.at("back")]);
    assert_eq!(fs::read(place.at("back")).unwrap(), [7; 10_000]);
    place.ok(&["kv", "fsck", &drive]);
    // Making soft zones again destroys their content, so that needs --force.
    place.refused(&create(&drive, &[]), &["not empty", "soft zones", "--force"]);
    place.refused(&create(&drive, &["--force", "--size", "1GiB"]), &["not 1073741824"]);
    place.ok(&create(&drive, &["--force"]));
    let said = place.ok(&["device", "report", &drive]);
    assert!(!said.contains("closed") && said.contains("empty"), "{said}");
}

#[test]
fn soft_zones_are_not_made_over_what_others_wrote_and_damage_is_told() {
    let place = Place::empty("soft-damage");
    let drive = place.at("d.soft");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&drive).unwrap();
    file.set_len(SIZE).unwrap();
    file.write_at(b"\x53\xef", 1080).unwrap();
    place.refused(&create(&drive, &[]), &["an ext2, ext3 or ext4 file system", "--force"]);
    file.write_at(b"\x11\x11", 1080).unwrap();
    place.refused(&create(&drive, &[]), &["data of an unknown kind"]);
    let allocated = || file.metadata().unwrap().blocks() * 512;
    assert!(allocated() < SIZE, "it has holes");
    place.ok(&create(&drive, &["--force"]));
    assert!(allocated() >= SIZE, "{} of {SIZE} bytes are allocated", allocated());
    place.ok(&["mkfs", &drive]);
    // Another program holds the file.
    file.try_lock().unwrap();
    place.refused(&["mkfs", "-f", &drive], &["in use"]);
    file.unlock().unwrap();
    let mut block = [0; 4096];
    file.read_at(&mut block, 0).unwrap();
    file.write_at(&[block[100] ^ 1], 100).unwrap();
    let told = said(&place, &["device", "check", &drive]);
    assert!(told.contains("superblock is damaged") && told.contains("copy is used"), "{told}");
    // Without a first block, only the copy at the end shows the soft zones; nothing is made
    // over them.
    file.write_at(&[0; 4096], 0).unwrap();
    place.refused(&create(&drive, &[]), &["first block is damaged", "--force"]);
    place.refused(&["fsck", &drive], &["first block is damaged", "device check --repair"]);
    let told = said(&place, &["device", "check", &drive]);
    assert!(told.contains("device check --repair") && !told.contains("--soft"), "{told}");
    // A repair refuses a drive whose first block another program has overwritten meanwhile.
    file.write_at(b"\x53\xef", 1080).unwrap();
    place.refused(&["device", "check", "--repair", &drive], &["no soft zones"]);
    file.write_at(&[0; 2], 1080).unwrap();
    place.ok(&["device", "check", "--repair", &drive]);
    let front = &mut [0; 4096];
    file.read_at(front, 0).unwrap();
    assert!(*front == block, "the first block is as it was");
    place.ok(&["fsck", &drive]);
    // Damages every block of the journal.
    for at in 256..2048 {
        file.write_at(&[1], at * 4096 + 8).unwrap();
    }
    place.refused(&["fsck", &drive], &["the table of each half", "damaged"]);
    file.set_len(SIZE / 2).unwrap();
    place.refused(&["fsck", &drive], &["it was cut short"]);
    file.set_len(4096).unwrap();
    place.refused(&["fsck", &drive], &["d.soft"]);
}

#[test]
fn zones_are_small_enough_for_a_file_system_or_it_is_said() {
    let place = Place::empty("soft-small");
    let drive = place.at("d.soft");
    let make = ["device", "create", "--soft", &drive, "--force", "--size", "96MiB"];
    let told = place.furrow(&[&make[..], &["--zone-size", "8MiB"]].concat()).stderr;
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("17 sequential zones are needed"), "{told}");
    assert!(told.contains("--force --zone-size 2MiB"), "{told}");
    place.ok(&make);
    place.ok(&["mkfs", &drive]);
}

/// Blocks of whole records of changes in the newest half of the journal, in order of
/// sequence numbers.
fn records(file: &fs::File) -> Vec<u64> {
    let mut found = Vec::new();
    for block in 256..450u64 {
        let mut header = [0; 40];
        file.read_exact_at(&mut header, block * 4096).unwrap();
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
        if header.starts_with(b"FRW1") && header[4] == 0x62 {
            found.push((number(16), number(32), block));
        }
    }
    found.sort_unstable();
    let newest = found.last().map_or(0, |(epoch, ..)| *epoch);
    found.retain(|(epoch, ..)| *epoch == newest);
    found.into_iter().map(|(.., block)| block).collect()
}

fn flip(file: &fs::File, block: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, block * 4096 + 120).unwrap();
    file.write_all_at(&[byte[0] ^ 4], block * 4096 + 120).unwrap();
}

/// A damaged record of the journal has a copy in the next record. Two damaged records are refused
/// until the user accepts the loss, and nothing is written before that.
#[test]
fn damage_of_the_journal_is_mended_or_refused_and_named() {
    let place = Place::empty("soft-journal");
    let drive = place.at("d.soft");
    place.ok(&create(&drive, &["--size", "96MiB"]));
    place.ok(&["kv", "mkfs", &drive]);
    let file = place.at("some");
    fs::write(&file, [7; 300_000]).unwrap();
    place.ok(&["kv", "put", &drive, &file, "one"]);
    let image = fs::File::options().read(true).write(true).open(&drive).unwrap();
    let records = records(&image);
    assert!(records.len() >= 4, "{records:?}");
    let listed = place.ok(&["kv", "ls", &drive]);
    assert!(listed.contains("one"), "{listed}");
    flip(&image, records[0]);
    assert_eq!(place.ok(&["kv", "ls", &drive]), listed);
    let told = said(&place, &["device", "check", &drive]);
    assert!(told.contains("of the journal is damaged: the next record has a copy"), "{told}");
    flip(&image, records[1]);
    let put = ["kv", "put", &drive, &file, "two"];
    place.refused(&put, &["damaged, with whole records", "--repair"]);
    let told = said(&place, &["device", "check", &drive]);
    assert!(told.contains("damaged, with whole records behind"), "{told}");
    assert!(told.contains("accept the loss with --repair"), "{told}");
    // With the bits flipped back everything is as before, since nothing was written.
    flip(&image, records[0]);
    flip(&image, records[1]);
    assert_eq!(place.ok(&["kv", "ls", &drive]), listed);
    flip(&image, records[0]);
    flip(&image, records[1]);
    said(&place, &["device", "check", &drive, "--repair"]);
    let told = said(&place, &["device", "check", &drive]);
    assert!(!told.contains("of the journal"), "{told}");
}

/// A volume whose members are soft zones keeps flushed data when its daemon is killed.
#[test]
fn a_volume_on_soft_zones_outlives_its_daemon() {
    let place = Place::empty("soft-raid");
    let drives: Vec<String> = (0..3).map(|n| place.at(&format!("d{n}.soft"))).collect();
    for drive in &drives {
        place.ok(&create(drive, &["--size", "64MiB"]));
    }
    let [a, b, c] = [&drives[0], &drives[1], &drives[2]];
    place.ok(&["raid", "create", "-l", "5", "-n", "a", a, b, c]);
    let said = place.ok(&["raid", "examine", a]);
    assert!(said.contains("member"), "{said}");
    let log = place.at("log");
    let assemble = ["raid", "assemble", "--log", &log, a, b, c];
    place.ok(&assemble);
    fill(&place, 0, 64, 1);
    place.refused(&["device", "show", a], &["in use"]);
    place.kill();
    place.ok(&assemble);
    check(&place, 0, 64, 1);
}

/// A pipe in place of a drive is refused: opening a pipe would wait for a writer forever.
#[test]
fn a_pipe_is_no_drive() {
    let place = Place::empty("soft-pipe");
    let pipe = place.at("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    place.refused(&["device", "show", &pipe], &["pipe"]);
    place.refused(&["mkfs", &pipe], &["pipe"]);
}
