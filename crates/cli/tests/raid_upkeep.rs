//! `furrow raid` with the real binary: stopped scrubs, a small map, spares, drives of a
//! newer version.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{DRIVE, Place, block, check, fill, said, states};
use furrow_log::format::RECORD_MAGIC;
use furrow_log::record::{RecordHeader, crc32c};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_scrub_is_stopped_and_the_next_one_runs_to_its_end() {
    let place = Place::new("scrub", 4);
    place.create("5", &[0, 1, 2, 3]);
    place.assemble(&[0, 1, 2, 3], &[]);
    fill(&place, 0, 400, 2);
    let stop = ["raid", "scrub", "a", "--stop"];
    place.refused(&stop, &["no scrub is running"]);
    place.refused(&["raid", "scrub", "a", "--stop", "--repair"], &["cannot be used with"]);
    // The drives are so slow that the scrub takes minutes.
    place.ok(&["raid", "fault", "a", "all", "add", "slow", "--delay-us", "300000"]);
    place.ok(&["raid", "scrub", "a"]);
    place.until("scrubbing", |status| status["scrub"]["running"] == true);
    place.refused(&["raid", "scrub", "a"], &["running already"]);
    // This scrub does not mend.
    place.refused(&["raid", "scrub", "a", "--repair", "--wait"], &["running already", "--stop"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_furrow"));
    command.args(["raid", "scrub", "a", "--wait"]).env("FURROW_RUN", place.at("run"));
    let mut waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Enough for the command to find the scrub, which it would begin otherwise.
    std::thread::sleep(Duration::from_millis(500));
    let text = place.ok(&stop);
    assert!(text.contains("the scrub stops"), "{text}");
    while waiting.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(50));
        place.furrow(&stop);
    }
    let waited = waiting.wait_with_output().unwrap();
    let text = said(&waited);
    assert!(waited.status.code() == Some(1) && text.contains("stopped"), "{text}");
    let status = place.until("stopped", |status| status["scrub"]["running"] == false);
    let scrub = &status["scrub"];
    assert_eq!((&scrub["stopped"], &scrub["error"]), (&true.into(), &Value::Null), "{scrub:#}");
    assert!(place.ok(&["raid", "status", "a"]).contains("scrub: stopped: "));
    place.refused(&stop, &["no scrub is running"]);
    place.ok(&["raid", "fault", "a", "all", "clear"]);
    let text = place.ok(&["raid", "scrub", "a", "--wait"]);
    assert!(text.contains("nothing damaged") && !text.contains("stopped"), "{text}");
    let whole = place.status()["scrub"].clone();
    assert_eq!((&whole["stopped"], &whole["percent"]), (&false.into(), &100.0.into()));
    assert!(whole["blocks"].as_u64() > scrub["blocks"].as_u64(), "{whole:#} {scrub:#}");
    check(&place, 0, 400, 2);
    place.ok(&["raid", "stop", "a"]);
}

#[test]
fn a_map_with_little_memory_serves_what_was_written() {
    const BOUND: u64 = 32 << 10;
    let place = Place::new("map", 4);
    place.create("5", &[0, 1, 2, 3]);
    place.refused(&["raid", "assemble", "--map-memory", "8KiB", "d"], &["at least 24KiB"]);
    place.assemble(&[3, 1, 0, 2], &["--map-memory", "32KiB"]);
    let size = place.status()["size_bytes"].as_u64().unwrap() / 4096;
    assert!(size * 4 > 2 * BOUND, "all of the map would fit");
    // Writes a few blocks of each block of the map.
    let firsts = || (0..size - 8).step_by(1024);
    firsts().for_each(|first| fill(&place, first, 8, 1));
    fill(&place, 1024, 8, 2);
    let held = |status: &Value| {
        assert_eq!(status["map_memory_limit_bytes"], BOUND, "{status:#}");
        // Resident mapping blocks take half of the bound, and each mapping block takes a few
        // more bytes.
        let bytes = status["map_memory_bytes"].as_u64().unwrap();
        assert!(bytes <= BOUND / 2 + 2048, "{bytes}");
    };
    held(&place.status());
    let shown = place.ok(&["raid", "status", "a"]);
    assert!(shown.contains("of 32.0 KiB at most, stripe tables"), "{shown}");
    // The array is assembled after a crash, with another limit, and without a limit.
    place.kill();
    place.assemble(&[0, 1, 2, 3], &["--map-memory", "32KiB"]);
    firsts().for_each(|first| check(&place, first, 8, 1 + u64::from(first == 1024)));
    held(&place.status());
    place.ok(&["raid", "stop", "a"]);
    place.assemble(&[0, 1, 2, 3], &[]);
    assert_eq!(place.status()["map_memory_limit_bytes"], Value::Null);
    firsts().for_each(|first| check(&place, first, 8, 1 + u64::from(first == 1024)));
    place.ok(&["raid", "stop", "a"]);
}

#[test]
fn a_drive_that_hangs_is_taken_out_and_a_stop_does_not_wait_for_one() {
    let place = Place::new("hang", 4);
    place.create("5", &[0, 1, 2, 3]);
    place.assemble(
        &[0, 1, 2, 3],
        &["--drive-timeout", "2", "--events", &place.at("e"), "--idle-limit", "60"],
    );
    fill(&place, 0, 64, 1);
    place.ok(&["raid", "fault", "a", "2", "add", "hang"]);
    let began = Instant::now();
    fill(&place, 0, 64, 2);
    assert!(began.elapsed() > Duration::from_millis(1500), "nobody waited");
    let status = place.until("without it", |status| states(status)[2] == "failed");
    assert_eq!(status["state"], "degraded", "{status:#}");
    check(&place, 0, 64, 2);
    let events = fs::read_to_string(place.at("e")).unwrap();
    assert!(events.contains("member-failed") && events.contains("no answer for 2 s"), "{events}");
    // One failure more than the array survives ends the daemon, with an error.
    place.ok(&["raid", "fault", "a", "1", "add", "hang"]);
    place.refused(&["raid", "stop", "--force", "a"], &["stopped, but not cleanly", "member 1"]);
    place.refused(&["raid", "status", "a"], &["no array"]);
}

/// Changes the newest state record in an image, and makes its checksum valid again.
fn forge(image: &str, change: impl FnOnce(&mut [u8])) {
    const STATE: u8 = 0x20;
    let mut bytes = fs::read(image).unwrap();
    let number = |bytes: &[u8], at: usize| {
        u64::from_le_bytes([&bytes[at..at + 4], &[0; 4]].concat().try_into().unwrap())
    };
    let is_state =
        |at: &usize| number(&bytes, *at) == u64::from(RECORD_MAGIC) && bytes[at + 4] == STATE;
    let found = (0..bytes.len()).step_by(4096).filter(is_state);
    let newest = found.max_by_key(|at| number(&bytes, at + 32)).expect("a state record");
    let length = number(&bytes, newest + 8) as usize;
    let record = &mut bytes[newest..newest + length];
    change(record);
    record[12..16].fill(0);
    let crc = crc32c(record);
    record[12..16].copy_from_slice(&crc.to_le_bytes());
    fs::write(image, bytes).unwrap();
}

#[test]
fn a_drive_of_a_newer_version_is_refused_and_stays_as_it_is() {
    let place = Place::new("newer", 4);
    place.drive("empty.zns", DRIVE);
    let [d0, d1, d2, d3]: [String; 4] = place.drives(&[0, 1, 2, 3]).try_into().unwrap();
    type Change = fn(&mut [u8]);
    let version: Change = |record| record[6] += 1;
    let features: Change = |record| record[RecordHeader::SIZE + 16 + 7] |= 0x80;
    for (change, why) in [(version, "format version 2"), (features, "0x8000000000000000")] {
        let drives = [&d0, &d1, &d2, &d3].map(String::as_str);
        let create = ["raid", "create", "--force", "-l", "5", "-n", "a"];
        place.ok(&[&create[..], &drives[..]].concat());
        place.assemble(&[0, 1, 2, 3], &[]);
        fill(&place, 0, 50, 1);
        place.ok(&["raid", "stop", "a"]);
        forge(&d1, change);
        let before = fs::read(&d1).unwrap();
        let refusal = ["d1.zns", why, "use a newer"];
        place.refused(&[&["raid", "assemble"][..], &drives[..]].concat(), &refusal);
        place.refused(&["raid", "assemble", &d1], &refusal);
        let output = place.furrow(&["raid", "examine", &d0, &d1]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let line = text.lines().find(|line| line.contains("d1.zns") && line.contains(why));
        assert!(line.is_some_and(|line| line.contains("use a newer")), "{text}");
        let other = ["raid", "create", "-l", "0", "-n", "b", &d1, &place.at("empty.zns")];
        place.refused(&other, &["not empty", "--force"]);
        // Among other drives, the drive of a newer version is skipped with a message: the array can
        // do without it.
        place.ok(&["raid", "assemble", &place.at("d?.zns")]);
        let status = place.status();
        assert_eq!(states(&status), ["online", "missing", "online", "online"]);
        let told = status["events"].as_array().unwrap().iter().find(|e| e["event"] == "unusable");
        let told = told.unwrap()["text"].as_str().unwrap();
        assert!(refusal.iter().all(|word| told.contains(word)), "{told}");
        check(&place, 0, 50, 1);
        place.refused(&["raid", "replace", "a", "1", &d1], &["not empty"]);
        place.refused(&["raid", "add-spare", "a", &d1], &["not empty"]);
        place.ok(&["raid", "stop", "a"]);
        assert!(fs::read(&d1).unwrap() == before, "the drive was written to");
    }
}

fn assembly<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["raid", "assemble"][..], more].concat()
}

#[test]
fn spares_say_that_they_are_and_are_there_after_every_assembly() {
    let place = Place::new("spares", 7);
    let d = place.drives(&[0, 1, 2, 3, 4, 5, 6]);
    let create = ["raid", "create", "-l", "5", "-n", "a", "--spare", &d[3], &d[0], &d[1], &d[2]];
    let bad = [&create[..], &["--spare", &d[0]]].concat();
    place.refused(&bad, &["d0.zns", "named twice"]);
    place.drive("small.zns", &DRIVE.replace("zones=24", "zones=9"));
    let small = place.at("small.zns");
    let small = [&create[..], &["--spare", &small]].concat();
    place.refused(&small, &["small.zns: 9 zones", "the array needs 24 zones"]);
    let made = place.ok(&create);
    assert!(made.contains(&format!("spares    {}", d[3])), "{made}");

    let examined = place.ok(&["raid", "examine", "--json", &d[3], &d[2], &d[0], &d[1]]);
    let examined: Value = serde_json::from_str(&examined).unwrap();
    let array = &examined["arrays"][0];
    assert_eq!(array["spares"][0]["device"], d[3].as_str(), "{examined:#}");
    assert_eq!(array["members"].as_array().unwrap().len(), 3);
    let text = place.ok(&["raid", "examine", &d[3]]);
    assert!(text.contains("a: RAID-5 of 3 drives") && text.contains("spare"), "{text}");
    place.refused(&["raid", "assemble", &d[3]], &["only spares are given"]);

    place.assemble(&[3, 1, 0, 2], &[]);
    assert_eq!(place.status()["spares"], serde_json::json!([d[3]]));
    fill(&place, 0, 200, 1);
    place.refused(&["raid", "add-spare", "a", &d[3]], &["is a spare of this array already"]);
    place.ok(&["raid", "add-spare", "a", &d[4]]);
    place.ok(&["raid", "stop", "a"]);
    // Another array refuses the spare, in whichever way it is given.
    place.ok(&["raid", "create", "-l", "5", "-n", "b", &d[5], &d[6]]);
    let of_a = "a spare of the array a (";
    place.refused(&assembly(&[&d[5], &d[4], &d[6]]), &["d4.zns", of_a, "not of b", "leave it out"]);
    place.refused(&assembly(&["--spare", &d[4], &d[5], &d[6]]), &["d4.zns", of_a, "--force"]);
    place.refused(&["raid", "create", "-l", "4", "-n", "c", &d[4], &d[3]], &["d4.zns", of_a]);
    place.ok(&assembly(&[&d[5], &d[6]]));
    place.refused(&["raid", "add-spare", "b", &d[4]], &["d4.zns", of_a, "--force"]);
    place.ok(&["raid", "add-spare", "b", &d[4], "--force"]);
    place.ok(&["raid", "stop", "b"]);
    let [a, of_b] = [&d[0], &d[5]].map(|drive| {
        let said = place.ok(&["raid", "examine", "--json", drive, &d[4]]);
        serde_json::from_str::<Value>(&said).unwrap()["arrays"].as_array().unwrap().len()
    });
    assert_eq!((a, of_b), (2, 1), "it is of b now");

    // From a directory with the drives of two arrays, each array gets its own spares.
    place.ok(&["raid", "assemble", "--name", "a", &place.at("d?.zns")]);
    assert_eq!(place.status()["spares"], serde_json::json!([d[3]]));
    place.kill();
    // A missing member is replaced at once, even after a crash.
    place.assemble(&[3, 2, 0], &[]);
    let status = place.until("rebuilt", |s| states(s).iter().all(|state| state == "online"));
    assert_eq!(status["members"][1]["device"], d[3].as_str());
    assert!(status["spares"].as_array().unwrap().is_empty());
    check(&place, 0, 200, 1);
    place.ok(&["raid", "stop", "a"]);
    place.assemble(&[2, 3, 0], &[]);
    place.ok(&["raid", "fail", "a", "0"]);
    check(&place, 0, 200, 1);
    place.ok(&["raid", "stop", "a"]);
}

/// The places of blocks in the images of stopped drives, by block number and version, found only
/// by content.
fn copies(images: &[String]) -> BTreeMap<(u64, u64), Vec<(usize, usize)>> {
    let mut found: BTreeMap<(u64, u64), Vec<(usize, usize)>> = BTreeMap::new();
    for (drive, image) in images.iter().enumerate() {
        for (at, bytes) in (0..).step_by(4096).zip(fs::read(image).unwrap().chunks(4096)) {
            let word = |at: usize| {
                let word = bytes.get(at..at + 8).unwrap_or(&[0xff; 8]);
                u64::from_le_bytes(word.try_into().unwrap())
            };
            let (number, version) = (word(0), word(8));
            if number < 1000 && (1..10).contains(&version) && bytes == block(number, version) {
                found.entry((number, version)).or_default().push((drive, at));
            }
        }
    }
    found
}

fn spoil(image: &str, at: usize) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::File::options().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64 + 100).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at as u64 + 100).unwrap();
}

/// The blocks that a status lists as lost.
fn lost(status: &Value) -> BTreeSet<u64> {
    let ranges = status["lost"].as_array().unwrap().iter();
    let number = |range: &Value, name: &str| range[name].as_u64().unwrap();
    let all = ranges.flat_map(|range| {
        let first = number(range, "first");
        first..first + number(range, "blocks")
    });
    let all: BTreeSet<u64> = all.collect();
    assert_eq!(status["lost_blocks"], all.len(), "{status:#}");
    all
}

/// Exit status and output of `furrow raid status a`.
fn shown(place: &Place) -> (Option<i32>, String) {
    let output = place.furrow(&["raid", "status", "a"]);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// The value of a metric of the array.
fn metric(place: &Place, name: &str) -> String {
    let mut socket = UnixStream::connect(place.control()).unwrap();
    socket.write_all(b"{\"version\":2,\"request\":\"metrics\"}\n").unwrap();
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap();
    let text = answer["ok"].as_str().unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    line.rsplit(' ').next().unwrap().to_owned()
}

fn checksum_errors(status: &Value) -> Vec<u64> {
    let members = status["members"].as_array().unwrap().iter();
    members.map(|member| member["checksum_errors"].as_u64().unwrap()).collect()
}

#[test]
fn lost_data_is_a_problem_until_it_is_written_again_or_cleared() {
    let place = Place::new("lost", 4);
    place.create("01", &[0, 1, 2, 3]);
    place.assemble(&[0, 1, 2, 3], &[]);
    fill(&place, 0, 300, 1);
    fill(&place, 0, 10, 2);
    assert_eq!((shown(&place).0, &place.status()["state"]), (Some(0), &"online".into()));
    place.ok(&["raid", "stop", "a"]);
    // Both copies of some blocks are damaged, one copy of others, and both copies of blocks that
    // have been overwritten since.
    let (both, one, outdated) = ([17, 18, 90, 200], [40, 41], (5, 1));
    let (images, wanted) = (place.drives(&[0, 1, 2, 3]), BTreeSet::from(both));
    let copies = copies(&images);
    for number in both {
        assert_eq!(copies[&(number, 1)].len(), 2, "a mirror has two copies");
        copies[&(number, 1)].iter().for_each(|(drive, at)| spoil(&images[*drive], *at));
    }
    for number in one {
        let (drive, at) = copies[&(number, 1)][0];
        spoil(&images[drive], at);
    }
    copies[&outdated].iter().for_each(|(drive, at)| spoil(&images[*drive], *at));

    // Reads find the lost blocks.
    place.assemble(&[0, 1, 2, 3], &[]);
    assert_eq!(shown(&place).0, Some(0), "nobody has looked yet");
    let mut nbd = place.nbd();
    let unread = (0..300).filter(|number| nbd.read(number * 4096, 4096).is_err());
    assert_eq!(unread.collect::<BTreeSet<u64>>(), wanted);
    let status = place.status();
    assert_eq!((lost(&status), &status["state"]), (wanted.clone(), &"damaged".into()));
    assert_eq!(metric(&place, "furrow_raid_lost_blocks"), "4");
    assert_eq!(metric(&place, "furrow_raid_state{array=\"a\",state=\"damaged\"}"), "1");
    let (code, text) = shown(&place);
    assert_eq!(code, Some(1), "{text}");
    for words in ["state: DAMAGED", "4 blocks of the volume LOST", "17-18, 90, 200", "clear a"] {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
    place.ok(&["raid", "stop", "a", "--force"]);

    // After a restart, a scrub finds the same lost blocks.
    place.assemble(&[0, 1, 2, 3], &[]);
    assert_eq!(place.status()["state"], "online");
    let output = place.furrow(&["raid", "scrub", "a", "--wait", "--repair"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let text = said(&output);
    assert!(text.contains("4 blocks of the volume LOST"), "{text}");
    let status = place.status();
    assert_eq!((lost(&status), &status["state"]), (wanted, &"damaged".into()));

    // A block that is written again is not lost any more; cleared damage is found again.
    fill(&place, 18, 1, 3);
    assert_eq!(lost(&place.status()), BTreeSet::from([17, 90, 200]));
    place.ok(&["raid", "clear", "a"]);
    let status = place.status();
    assert_eq!((lost(&status).len(), &status["state"]), (0, &"online".into()));
    assert_eq!((shown(&place).0, checksum_errors(&status)), (Some(0), vec![0; 4]));
    let output = place.furrow(&["raid", "scrub", "a", "--wait"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert_eq!(lost(&place.status()), BTreeSet::from([17, 90, 200]));
    [17, 90, 200].iter().for_each(|number| fill(&place, *number, 1, 3));
    let status = place.status();
    assert_eq!((lost(&status).len(), &status["state"]), (0, &"online".into()), "{status:#}");
    assert_eq!(shown(&place).0, Some(0));

    // Damaged blocks that have been overwritten do not count as errors, however often they
    // are read.
    place.ok(&["raid", "clear", "a"]);
    for _ in 0..2 {
        let text = place.ok(&["raid", "scrub", "a", "--wait"]);
        assert!(text.contains("nothing damaged"), "{text}");
        let status = place.status();
        assert_eq!(checksum_errors(&status), [0; 4], "{status:#}");
        assert_eq!(status["problem"], Value::Null);
    }
    check(&place, 19, 71, 1);
    check(&place, 17, 2, 3);
    place.ok(&["raid", "stop", "a", "--force"]);
}

#[test]
fn damage_that_a_scrub_met_is_a_problem_until_it_is_mended() {
    let place = Place::new("met", 4);
    place.create("5", &[0, 1, 2, 3]);
    place.assemble(&[0, 1, 2, 3], &[]);
    fill(&place, 0, 300, 1);
    place.ok(&["raid", "stop", "a"]);
    let images = place.drives(&[0, 1, 2, 3]);
    let (drive, at) = copies(&images)[&(123, 1)][0];
    place.assemble(&[0, 1, 2, 3], &[]);
    // The damage is made only now, since an assembly rewrites damage that it finds in an
    // open segment.
    spoil(&images[drive], at);
    for _ in 0..2 {
        let output = place.furrow(&["raid", "scrub", "a", "--wait"]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let status = place.status();
        assert_eq!((lost(&status).len(), &status["state"]), (0, &"damaged".into()));
        assert_eq!((&status["damaged_blocks"], shown(&place).0), (&1.into(), Some(1)));
        assert_eq!(metric(&place, "furrow_raid_damaged_blocks"), "1");
    }
    let mut errors = vec![0; 4];
    errors[drive] = 2;
    assert_eq!(checksum_errors(&place.status()), errors, "one for each scrub that met it");
    place.ok(&["raid", "scrub", "a", "--wait", "--repair"]);
    let status = place.status();
    assert_eq!((&status["damaged_blocks"], &status["state"]), (&0.into(), &"online".into()));
    assert_eq!(shown(&place).0, Some(0));
    check(&place, 0, 300, 1);
    place.ok(&["raid", "stop", "a"]);
}

#[test]
fn a_stop_ends_a_scrub_at_once_and_in_order() {
    let place = Place::new("stopped", 4);
    place.create("5", &[0, 1, 2, 3]);
    place.assemble(&[0, 1, 2, 3], &[]);
    fill(&place, 0, 400, 2);
    // The drives are so slow that the scrub would take minutes.
    place.ok(&["raid", "fault", "a", "all", "add", "slow", "--delay-us", "300000"]);
    place.ok(&["raid", "scrub", "a"]);
    place.until("scrubbing", |status| status["scrub"]["running"] == true);
    let (begun, image) = (Instant::now(), place.at("d0.zns"));
    let free = ["device", "fault", &image, "list"];
    let stopped = std::thread::scope(|scope| {
        let stop = scope.spawn(|| place.ok(&["raid", "stop", "a"]));
        // The array stays visible until it has stopped.
        while !stop.is_finished() {
            let text = said(&place.furrow(&["raid", "status"]));
            // The drives are free shortly after the socket is gone.
            let free = |_| {
                std::thread::sleep(Duration::from_millis(50));
                place.furrow(&free).status.success()
            };
            assert!(text.contains("array: a") || (0..20).any(free), "{text}");
        }
        stop.join().unwrap()
    });
    assert!(stopped.contains("a: stopped"), "{stopped}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let log = place.read("log");
    assert!(log.contains("scrub: stopped: ") && log.contains("stopped cleanly"), "{log}");
    place
        .drives(&[0, 1, 2, 3])
        .iter()
        .for_each(|d| drop(place.ok(&["device", "fault", d, "clear"])));
    place.assemble(&[0, 1, 2, 3], &[]);
    check(&place, 0, 400, 2);
    place.ok(&["raid", "stop", "a"]);
}

/// A hook that hangs delays a stop by seconds; the array is visible as long as its daemon exists.
#[test]
fn a_daemon_is_seen_until_its_hooks_were_told() {
    let place = Place::new("hooked", 3);
    place.create("5", &[0, 1, 2]);
    let hook = place.at("hook");
    fs::write(&hook, "#!/bin/sh\nexec sleep 100000\n").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    place.assemble(&[0, 1, 2], &["--hook", &hook]);
    fill(&place, 0, 50, 2);
    let seen = std::thread::scope(|scope| {
        let stop = scope.spawn(|| place.ok(&["raid", "stop", "a"]));
        let mut seen = 0;
        while !stop.is_finished() {
            let text = said(&place.furrow(&["raid", "status"]));
            seen += u32::from(text.contains("state: STOPPING"));
        }
        assert!(stop.join().unwrap().contains("a: stopped"));
        seen
    });
    assert!(seen > 0, "nobody saw the array while it waited for its hook");
    let log = place.read("log");
    assert!(log.contains("killed, because it did not end") && log.contains("not told"), "{log}");
    place.assemble(&[0, 1, 2], &[]);
    check(&place, 0, 50, 2);
    place.ok(&["raid", "stop", "a"]);
}
