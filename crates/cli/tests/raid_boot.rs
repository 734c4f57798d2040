//! `furrow raid assemble --wait`, as at boot: drives that appear late, drives that are gone, and
//! drives without which the array continued.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{Place, check, fill, states};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The arguments that assemble all drives of `place` by name.
fn words(place: &Place, count: usize, more: &[&str]) -> Vec<String> {
    place.assembly(&(0..count).collect::<Vec<_>>(), more)
}

fn refused(place: &Place, words: &[String], why: &[&str]) {
    place.refused(&words.iter().map(String::as_str).collect::<Vec<_>>(), why);
}

fn ok(place: &Place, words: &[String]) -> String {
    place.ok(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn an_array_starts_without_a_named_drive_that_is_gone_and_skips_it_when_it_is_back() {
    let place = Place::new("boot", 4);
    place.create("5", &[0, 1, 2, 3]);
    fs::create_dir(place.at("away")).unwrap();
    fs::rename(place.at("d3.zns"), place.at("away/d3.zns")).unwrap();
    // Without --wait, a missing drive is an error, because its name may be mistyped.
    refused(&place, &words(&place, 4, &[]), &["d3.zns", "leave it out", "--wait"]);
    let events = place.at("events");
    let said = ok(&place, &words(&place, 4, &["--wait", "1", "--events", &events]));
    assert!(said.contains("runs without member 3") && said.contains("d3.zns"), "{said}");
    let status = place.status();
    assert_eq!(states(&status), ["online", "online", "online", "missing"]);
    // The event and the status give the reason, and the status does so as long as the member
    // is missing.
    let why = "its drive was found nowhere in 1 s";
    let event = format!(" a degraded 3 runs without member 3: {why}\n");
    assert!(place.read("events").contains(&event), "{}", place.read("events"));
    assert!(place.read("events").contains(" a left-out - "), "{}", place.read("events"));
    assert_eq!(status["members"][3]["absent"], why);
    assert_eq!(status["members"][0]["absent"], serde_json::Value::Null);
    let shown = place.furrow(&["raid", "status", "a"]).stdout;
    let shown = String::from_utf8(shown).unwrap();
    let line = format!(" absent: member 3: when the array was assembled, {why}\n");
    assert!(shown.contains(&line), "{shown}");
    fill(&place, 0, 10, 4);
    place.ok(&["raid", "stop", "a", "--force"]);

    fs::rename(place.at("away/d3.zns"), place.at("d3.zns")).unwrap();
    refused(&place, &words(&place, 4, &[]), &["d3.zns", "stale"]);
    let began = Instant::now();
    let said = ok(&place, &words(&place, 4, &["--wait", "60"]));
    assert!(said.contains("d3.zns is stale: left out"), "{said}");
    assert!(said.contains("without member 3, which failed earlier\n"), "{said}");
    assert_eq!(place.status()["members"][3]["absent"], serde_json::Value::Null);
    assert!(began.elapsed() < Duration::from_secs(30), "a member that had failed was waited for");
    check(&place, 0, 10, 4);
    place.ok(&["raid", "stop", "a", "--force"]);
}

/// After replacements, the list of drives in the boot configuration is outdated; the new members
/// are used nevertheless, wherever they are.
#[test]
fn members_that_no_list_names_are_found_at_boot() {
    let place = Place::new("boot-list", 6);
    place.create("6", &[0, 1, 2, 3]);
    let spare = place.at("d4.zns");
    place.assemble(&[0, 1, 2, 3], &["--spare", &spare]);
    fill(&place, 0, 10, 4);
    place.ok(&["raid", "fail", "a", "1"]);
    place.until("the spare's rebuild", |status| states(status) == ["online"; 4]);
    place.ok(&["raid", "fail", "a", "2"]);
    place.ok(&["raid", "replace", "a", "2", &place.at("d5.zns"), "--wait"]);
    place.ok(&["raid", "stop", "a"]);

    let said = ok(&place, &words(&place, 4, &["--wait", "60"]));
    assert!(said.contains("member 1 is") && said.contains("d4.zns, which was not named"), "{said}");
    assert!(said.contains("member 2 is") && said.contains("d5.zns, which was not named"), "{said}");
    assert_eq!(states(&place.status()), ["online"; 4], "{said}");
    check(&place, 0, 10, 4);
    place.ok(&["raid", "stop", "a"]);

    // Without --wait, naming an old drive is refused: the user may mean that drive.
    refused(&place, &words(&place, 4, &[]), &["d1.zns"]);
    // One of two copies may be older, so neither is used.
    fs::copy(place.at("d5.zns"), place.at("copy")).unwrap();
    let said = ok(&place, &words(&place, 4, &["--wait", "1"]));
    assert!(said.contains("runs without member 2"), "{said}");
    check(&place, 0, 10, 4);
    place.ok(&["raid", "stop", "a"]);
}

#[test]
fn a_drive_that_comes_late_is_waited_for() {
    for pattern in [false, true] {
        let place = Place::new(if pattern { "late-pattern" } else { "late" }, 4);
        place.create("5", &[0, 1, 2, 3]);
        fs::create_dir(place.at("away")).unwrap();
        fs::rename(place.at("d2.zns"), place.at("away/d2.zns")).unwrap();
        let (from, to) = (place.at("away/d2.zns"), place.at("d2.zns"));
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1500));
            fs::rename(from, to).unwrap();
        });
        let mut words = words(&place, if pattern { 0 } else { 4 }, &["--wait", "60"]);
        if pattern {
            words.push(place.at("d?.zns"));
        }
        let said = ok(&place, &words);
        late.join().unwrap();
        assert!(!said.contains("without"), "{said}");
        assert_eq!(place.status()["state"], "online");
        place.ok(&["raid", "stop", "a"]);
    }
}

#[test]
fn waiting_starts_no_array_that_could_lose_data() {
    let place = Place::new("boot-few", 4);
    place.create("5", &[0, 1, 2, 3]);
    for number in [2, 3] {
        fs::remove_file(place.at(&format!("d{number}.zns"))).unwrap();
    }
    let began = Instant::now();
    let why = ["cannot do without members 2", "d3.zns"];
    refused(&place, &words(&place, 4, &["--wait", "2"]), &why);
    assert!(began.elapsed() >= Duration::from_secs(2), "nothing was waited for");

    let place = Place::new("boot-two", 2);
    place.create("5", &[0, 1]);
    fs::remove_file(place.at("d1.zns")).unwrap();
    let why = ["member 1 is missing", "newer data", "--degraded", "d1.zns"];
    refused(&place, &words(&place, 2, &["--wait", "0"]), &why);
}

#[test]
fn a_drive_that_is_busy_is_waited_for() {
    let place = Place::new("boot-read", 4);
    place.create("5", &[0, 1, 2, 3]);
    // udev holds such a lock while it looks at a drive: the array can be found, but not started.
    let file = fs::File::open(place.at("d3.zns")).unwrap();
    flock(&file, FlockOperation::LockShared).unwrap();
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(11));
        drop(file);
    });
    let said = ok(&place, &words(&place, 4, &["--wait", "60"]));
    reader.join().unwrap();
    assert_eq!(states(&place.status()), ["online"; 4], "{said}");
    place.ok(&["raid", "stop", "a"]);
}

#[test]
fn a_drive_that_stays_busy_is_left_out_at_the_end_of_the_time() {
    for lock in [FlockOperation::LockShared, FlockOperation::LockExclusive] {
        let place = Place::new("boot-busy", 4);
        place.create("5", &[0, 1, 2, 3]);
        let file = fs::File::open(place.at("d3.zns")).unwrap();
        flock(&file, lock).unwrap();
        let began = Instant::now();
        let said = ok(&place, &words(&place, 4, &["--wait", "2"]));
        let took = began.elapsed();
        assert!(said.contains("runs without member 3") && said.contains("in use"), "{said}");
        let absent = place.status()["members"][3]["absent"].to_string();
        assert!(absent.contains("cannot be used"), "{absent}");
        assert!(took >= Duration::from_secs(2), "{took:?}");
        assert!(took < Duration::from_secs(9), "{took:?}");
        place.ok(&["raid", "stop", "a", "--force"]);
    }
}

/// A drive that a pattern finds and another program uses may be a member: the array does not start
/// without it, because it would become stale.
#[test]
fn a_busy_drive_that_a_pattern_finds_is_waited_for_and_then_refused() {
    let place = Place::new("pattern-busy", 4);
    place.create("5", &[0, 1, 2, 3]);
    let mut words = words(&place, 0, &[]);
    words.push(place.at("d?.zns"));
    let lock = |numbers: &[usize]| -> Vec<fs::File> {
        let files =
            numbers.iter().map(|number| fs::File::open(place.at(&format!("d{number}.zns"))));
        let files: Vec<fs::File> = files.map(Result::unwrap).collect();
        files.iter().for_each(|file| flock(file, FlockOperation::LockExclusive).unwrap());
        files
    };
    let free_after = |files: Vec<fs::File>, seconds| {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds));
            drop(files);
        })
    };
    // Also if all are in use, as while the daemon of a failed assembly ends.
    for busy in [&[1][..], &[0, 1, 2, 3]] {
        let other = free_after(lock(busy), 2);
        let said = ok(&place, &words);
        other.join().unwrap();
        assert_eq!(states(&place.status()), ["online"; 4], "{said}");
        let why = ["no free drive", "d0.zns", "d3.zns", "the running array a: furrow raid status"];
        refused(&place, &words, &why);
        place.ok(&["raid", "stop", "a"]);
    }
    let held = lock(&[1]);
    refused(&place, &words, &["member 1 is missing", "d1.zns", "in use", "name the other drives"]);
    drop(held);
    let held = lock(&[0, 1, 2, 3]);
    refused(&place, &words, &["no free drive", "d0.zns", "in use", "wait until"]);
    drop(held);
    // A drive of another array is not missed.
    fs::rename(place.at("d1.zns"), place.at("other.zns")).unwrap();
    let said = ok(&place, &words);
    assert!(said.contains("runs without member 1"), "{said}");
    place.ok(&["raid", "stop", "a", "--force"]);
    // Member 1 is recorded as failed now. Even so, found drives that cannot be used are named.
    fs::rename(place.at("other.zns"), place.at("d1.zns")).unwrap();
    let held = lock(&[1]);
    fs::write(place.at("d5.zns"), &fs::read(place.at("d0.zns")).unwrap()[..8192]).unwrap();
    let said = ok(&place, &words);
    assert!(said.contains("d1.zns: in use") && said.contains("d5.zns"), "{said}");
    drop(held);
    place.ok(&["raid", "stop", "a", "--force"]);
}

/// Only an array that starts may leave a member behind.
#[test]
fn an_assembly_that_is_refused_makes_no_member_stale() {
    let place = Place::new("refused-early", 5);
    place.create("5", &[0, 1, 2, 3]);
    let (spare, away, few) = (place.at("d4.zns"), place.at("away"), place.at("few.zns"));
    place.ok(&["mkfs", &spare]);
    place.drive("few.zns", "zones=24,zone-size=2MiB,oob=64,max-active=3,max-open=3");
    fs::rename(place.at("d3.zns"), &away).unwrap();
    let mut pattern = words(&place, 0, &[]);
    pattern.push(place.at("d?.zns"));
    for (more, why) in [
        (["--listen", "unix:/nonexistent/a.nbd"], "cannot listen"),
        (["--spare", &spare], "holds a Furrow file system"),
        (["--spare", &away], "away"),
        (["--spare", &few], "few.zns has 3 active zones"),
        (["--client-connections", "0"], "0"),
    ] {
        let mut given = words(&place, 3, &more);
        refused(&place, &given, &[why]);
        given.extend(["--wait".to_owned(), "1".to_owned()]);
        refused(&place, &given, &[why]);
    }
    fs::rename(&away, place.at("d3.zns")).unwrap();
    fs::remove_file(&spare).unwrap();
    let member = words(&place, 4, &["--spare", &place.at("d3.zns")]);
    refused(&place, &member, &["d3.zns: member 3 of the array a, not a spare"]);
    // A truncated image may be the missing member, and can be restored.
    fs::copy(place.at("d3.zns"), &away).unwrap();
    let image = fs::OpenOptions::new().write(true).open(place.at("d3.zns")).unwrap();
    image.set_len(10 << 20).unwrap();
    refused(&place, &pattern, &["member 3 is missing", "d3.zns: truncated", "name the other"]);
    fs::rename(&away, place.at("d3.zns")).unwrap();
    *pattern.last_mut().unwrap() = place.at("d[0-3].zns");
    ok(&place, &pattern);
    assert_eq!(states(&place.status()), ["online"; 4]);
    place.ok(&["raid", "stop", "a"]);
    // A copy of a drive is not told from the drive.
    fs::rename(place.at("d3.zns"), &away).unwrap();
    fs::copy(&away, place.at("again")).unwrap();
    refused(&place, &pattern, &["away", "again", "each of them says that it is member 3"]);
    fs::rename(&away, place.at("d3.zns")).unwrap();
    for wait in [&[][..], &["--wait", "1"]] {
        let mut folder = words(&place, 0, wait);
        folder.push(place.at("").trim_end_matches('/').to_owned());
        refused(&place, &folder, &["again", "d3.zns", "each of them says that it is member 3"]);
    }
    fs::remove_file(place.at("again")).unwrap();
    // A reader is waited for.
    let read = fs::File::open(place.at("d1.zns")).unwrap();
    read.lock_shared().unwrap();
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1500));
        drop(read);
    });
    ok(&place, &pattern);
    reader.join().unwrap();
    assert_eq!(states(&place.status()), ["online"; 4]);
    place.ok(&["raid", "stop", "a"]);
    // If a member is missing, a file that may be what is left of its drive is named.
    fs::write(place.at("d3.zns"), b"").unwrap();
    let said = ok(&place, &pattern);
    assert!(said.contains("d3.zns: an empty file"), "{said}");
    place.ok(&["raid", "stop", "a", "--force"]);
}

/// The command that assembles the array of `place`, whose member 3 is missing, and waits for
/// that member.
fn waiting(place: &Place, more: &[&str]) -> Command {
    fs::remove_file(place.at("d3.zns")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_furrow"));
    command.args(["raid", "assemble", "--wait", "60"]).args(more);
    command.args(place.drives(&[0, 1, 2, 3])).env("FURROW_RUN", place.at("run"));
    command
}

#[test]
fn a_signal_ends_the_wait_for_drives() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new("boot-signal", 4);
        place.create("5", &[0, 1, 2, 3]);
        let began = Instant::now();
        let mut command = waiting(&place, &["--foreground"]);
        let mut daemon = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(daemon.stderr.take().unwrap());
        let mut said = String::new();
        errors.read_line(&mut said).unwrap();
        assert!(said.contains("waiting 60 s at most"), "{said}");
        kill_process(Pid::from_child(&daemon), signal).unwrap();
        errors.read_to_string(&mut said).unwrap();
        assert_eq!(daemon.wait().unwrap().code(), Some(1), "{said}");
        assert!(said.contains("ended by a signal"), "{said}");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
}

#[test]
fn the_wait_for_drives_ends_with_the_command() {
    let place = Place::new("boot-gone", 4);
    place.create("5", &[0, 1, 2, 3]);
    let began = Instant::now();
    let log = place.at("log");
    let mut command = waiting(&place, &["--log", &log]).spawn().unwrap();
    for what in ["waiting 60 s at most", "that started this daemon is gone"] {
        while !fs::read_to_string(&log).unwrap_or_default().contains(what) {
            assert!(began.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = command.kill();
    }
    command.wait().unwrap();
}

#[test]
fn a_drive_that_hangs_before_the_assembly_does_not_hold_it_up() {
    let place = Place::new("boot-hang", 4);
    place.create("5", &[0, 1, 2, 3]);
    place.ok(&["device", "fault", &place.at("d3.zns"), "add", "hang"]);
    let limit = ["--drive-timeout", "2"];
    refused(&place, &words(&place, 4, &limit), &["d3.zns", "no answer for 2 s"]);
    let said = ok(&place, &words(&place, 4, &[&limit[..], &["--wait", "1"]].concat()));
    assert!(said.contains("without member 3") && said.contains("no answer for 2 s"), "{said}");
    place.ok(&["raid", "stop", "a", "--force"]);
}
