//! The messages of `furrow raid`: they claim only what is known, their commands can be pasted, and
//! they fit the screen.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{Place, fill, said, states};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// Makes blocks of a member unreadable.
fn spoil(place: &Place, member: &str, first: u64, blocks: u64) {
    let lba = format!("{first}+{blocks}");
    place.ok(&["raid", "fault", "a", member, "add", "read-error", "--lba", &lba]);
}

/// The command that a message recommends after the text `before`, as words without `furrow`.
fn told<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no '{before}' in: {text}"));
    let command = rest.strip_prefix("furrow ").unwrap_or_else(|| panic!("no command: {rest}"));
    let end = command.find([')', ';', '`', '\n']).unwrap_or(command.len());
    command[..end].split_whitespace().collect()
}

fn read_errors(status: &Value) -> Vec<u64> {
    let members = status["members"].as_array().unwrap().iter();
    members.map(|member| member["read_errors"].as_u64().unwrap()).collect()
}

/// The hint after a scrub is a command that works, and its number counts only blocks that can be
/// repaired. The drives do not record lost blocks: `raid stop` names the losses, and after the next
/// start `raid status` does not claim that all blocks are there.
#[test]
fn what_a_scrub_hints_at_can_be_done_and_what_a_start_forgets_is_said() {
    let place = Place::new("hints", 3);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &[]);
    let status = place.status();
    assert_eq!(status["started"], status["known_since"]);
    assert!(place.ok(&["raid", "status"]).contains("scrub: none since the start ("));
    fill(&place, 0, 600, 1);
    // Three rows lack two of their blocks each; more rows than a list shows lack one.
    spoil(&place, "0", 2 * 512 + 9, 3);
    spoil(&place, "1", 2 * 512 + 9, 3);
    spoil(&place, "1", 2 * 512 + 40, 30);
    let output = place.furrow(&["raid", "scrub", "a", "--wait"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let gone = text.matches("lost: too little of its stripe is left").count();
    let (damaged, mend) = (gone + 30, "(to mend 30 of them: ");
    assert!(gone > 0 && text.contains(&format!("{damaged} damaged {mend}")), "{text}");
    assert!(text.contains("blocks of the volume LOST"), "{text}");
    let status = place.status();
    let scrub = &status["scrub"];
    assert_eq!((&scrub["damaged"], &scrub["mendable"]), (&damaged.into(), &30.into()));
    // A scrub reads a block several times, but counts its error once.
    let once = read_errors(&status);
    assert_eq!((once[0] + once[1], once[2]), (damaged as u64, 0), "{once:?}");

    let shown = said(&place.furrow(&["raid", "status", "a"]));
    assert_eq!(shown.matches("damaged or unreadable").count(), 20, "{shown}");
    let more = format!("and {} more (all: ", damaged - 20);
    assert_eq!(told(&shown, &more), ["raid", "status", "a", "--json"]);
    assert_eq!(scrub["findings"].as_array().unwrap().len(), damaged);
    assert_eq!(told(&shown, "mend the others: "), ["raid", "scrub", "a", "--repair"]);

    let mend = told(&shown, mend);
    let text = said(&place.furrow(&[&mend[..], &["--wait"]].concat()));
    assert!(text.contains(&format!("{damaged} damaged, 30 of them mended, ")), "{text}");
    assert!(!text.contains("to mend"), "what is lost cannot be mended: {text}");
    let status = place.status();
    let twice: Vec<u64> = once.iter().map(|errors| 2 * errors).collect();
    assert_eq!(read_errors(&status), twice, "one for each scrub that met it");
    let lost = status["lost_blocks"].as_u64().unwrap();
    assert!(lost > 0, "{status:#}");

    let text = place.ok(&["raid", "stop", "a"]);
    assert!(text.contains(&format!("{lost} blocks of the volume LOST; the array keeps no record")));
    assert!(place.read("log").contains("stopped cleanly; "), "{}", place.read("log"));
    place.assemble(&[0, 1, 2], &[]);
    let text = place.ok(&["raid", "status"]);
    let find = told(&text, "losses from before that are not remembered (to find them: ");
    assert_eq!(find, ["raid", "scrub", "a"]);
    // Times in a status are whole seconds, so wait for the next one.
    std::thread::sleep(Duration::from_millis(1100));
    place.ok(&["raid", "clear", "a"]);
    assert!(place.ok(&["raid", "status"]).contains("none since the errors were cleared ("));
    place.ok(&["raid", "stop", "a"]);
}

/// A member that was found but not named is stale as soon as the array has started without it. The
/// answer, the event and the status name its drive, and the command that takes the drive back.
#[test]
fn a_member_that_nobody_named_is_told_by_name() {
    let place = Place::new("unnamed", 3);
    place.create("5", &[0, 1, 2]);
    let d2 = place.at("d2.zns");
    let words = place.assembly(&[0, 1], &["--events", &place.at("events")]);
    let text = place.ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let why = format!("runs without member 2: its drive {d2} was not named: it is stale from now");
    assert!(text.contains(&why), "{text}");
    let status = place.status();
    assert_eq!(
        (&states(&status)[2][..], &status["members"][2]["unnamed"]),
        ("missing", &d2.into())
    );
    let text = said(&place.furrow(&["raid", "status"]));
    assert!(text.contains("absent: member 2: "), "{text}");
    let back = told(&text, "action: replace it: ");
    place.ok(&[&back[..], &["--wait"]].concat());
    let status = place.status();
    assert_eq!(
        (&states(&status)[2][..], &status["members"][2]["unnamed"]),
        ("online", &Value::Null)
    );
    place.ok(&["raid", "stop", "a"]);
    // By the time the stop has returned, the file contains everything.
    assert!(place.read("events").contains(&why), "{}", place.read("events"));
}

/// A drive that the array continued without is left out by a pattern, and `status` names the drive
/// and the command that takes it back. A refused assembly names the members beside those given.
#[test]
fn a_stale_drive_and_members_that_were_not_named_are_told_by_name() {
    let place = Place::new("stale-word", 3);
    place.create("5", &[0, 1, 2]);
    place.ok(&["raid", "assemble", &place.at("d*.zns")]);
    place.ok(&["raid", "fail", "a", "1"]);
    place.ok(&["raid", "stop", "a"]);
    let alone = said(&place.furrow(&["raid", "assemble", &place.at("d0.zns")]));
    let beside = format!("; members that were not named: {}", place.at("d2.zns"));
    assert!(alone.contains(&beside), "{alone}");
    let other = said(&place.furrow(&["raid", "assemble", "--name", "b", &place.at("d*.zns")]));
    assert!(other.contains("the drives are of other arrays: a ("), "{other}");
    place.ok(&["raid", "assemble", &place.at("d*.zns")]);
    let d1 = place.at("d1.zns");
    assert_eq!(place.status()["members"][1]["stale"], d1.as_str());
    let text = said(&place.furrow(&["raid", "status"]));
    assert!(
        text.contains(&format!("; to take its old drive back, erased: {d1} --force")),
        "{text}"
    );
    place.ok(&["raid", "replace", "a", "1", &d1, "--force", "--wait"]);
    assert_eq!(place.status()["members"][1]["stale"], Value::Null);
    place.ok(&["raid", "stop", "a"]);
}

/// The record of a replaced drive says that the drive is a member. While the array runs, `raid
/// examine` says what the drive is now.
#[test]
fn a_drive_is_examined_by_what_the_running_array_says() {
    let place = Place::new("beside", 4);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &[]);
    place.ok(&["raid", "fail", "a", "1"]);
    let [d1, d3] = ["d1.zns", "d3.zns"].map(|drive| place.at(drive));
    place.ok(&["raid", "replace", "a", "1", &d3, "--wait"]);
    let examined = |drive: &str| -> Value {
        let text = place.ok(&["raid", "examine", "--json", drive]);
        serde_json::from_str::<Value>(&text).unwrap()["arrays"][0].clone()
    };
    let array = examined(&d1);
    assert_eq!(array["running"], true);
    let members = array["members"].as_array().unwrap();
    let state = |device: &str| {
        let of_it = members.iter().find(|member| member["device"] == device);
        of_it.map(|member| member["state"].as_str().unwrap().to_owned())
    };
    assert_eq!((state(&d1), state(&d3)), (Some("replaced".into()), Some("active".into())));
    let text = place.ok(&["raid", "examine", &d1]);
    assert!(text.contains("is replaced: the array runs, and says: "), "{text}");
    place.ok(&["raid", "stop", "a"]);
    // A member that was left out is stale, even though its record says otherwise.
    place.assemble(&[0, 3], &[]);
    let array = examined(&place.at("d2.zns"));
    assert_eq!((&array["members"][2]["state"], members.len()), (&"stale".into(), 4));
    assert_eq!(array["members"].as_array().unwrap().len(), 3, "{array:#}");
    place.ok(&["raid", "stop", "a"]);
}

/// Each refusal of a drive recommends only what can be done.
#[test]
fn a_refused_replacement_is_told_what_to_do() {
    let place = Place::new("advice", 6);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &[]);
    let d = place.drives(&[0, 1, 2, 3, 4, 5]);
    let replace = |member: &str, drive: &str, why: &[&str]| {
        place.refused(&["raid", "replace", "a", member, drive], why);
    };
    replace("0", &d[3], &["is in service", "furrow raid fail a 0"]);
    place.ok(&["raid", "fail", "a", "1"]);
    let first = "replace member 1 first: furrow raid replace a 1 DEV";
    replace("0", &d[3], &["is in service", first]);
    place.refused(&["raid", "fail", "a", "0"], &["cannot do without member 0", first]);
    replace("1", &d[1], &["not empty", "was member 1 of this array", "--force"]);
    replace("1", &d[2], &["in service", "choose an empty drive"]);
    replace("1", &place.at("none.zns"), &["no such drive", "check the name"]);
    let options = "zones=24,zone-size=2MiB,oob=64,max-active=3,max-open=3";
    place.drive("few.zns", options);
    replace("1", &place.at("few.zns"), &["choose a drive with more active zones"]);
    place.drive("small.zns", "zones=9,zone-size=2MiB,oob=64,max-active=14,max-open=14");
    replace("1", &place.at("small.zns"), &["the array needs 24 zones", "choose another drive"]);
    place.ok(&["raid", "create", "--level", "0", "--name", "b", &d[4], &d[5]]);
    replace("1", &d[4], &["not empty", "member 0 of the array b", "choose another drive"]);
    place.ok(&["raid", "assemble", &d[4], &d[5]]);
    let in_use = ["a drive of the running array b", "choose another drive", "raid stop b"];
    replace("1", &d[4], &in_use);
    place.refused(&["raid", "add-spare", "a", &d[4]], &in_use);
    let none = "its level has no redundancy";
    place.refused(&["raid", "replace", "b", "0", &d[3]], &["is in service", none]);
    place.refused(&["raid", "fail", "b", "0"], &[none]);
    place.ok(&["raid", "stop", "b"]);
    place.ok(&["raid", "stop", "a"]);
    // Once the array runs, the command in the refusal takes the stale drive back.
    let output = place.furrow(&["raid", "assemble", &d[0], &d[1], &d[2]]);
    let text = said(&output);
    let back = told(&text, "give it back with `");
    place.assemble(&[0, 2], &[]);
    place.ok(&[&back[..], &["--wait"]].concat());
    place.ok(&["raid", "stop", "a"]);
}

/// If the daemon of an array has died or does not answer, the array's name is still known.
#[test]
fn an_array_without_a_daemon_keeps_its_name() {
    let place = Place::new("named", 2);
    place.create("5", &[0, 1]);
    place.assemble(&[0, 1], &[]);
    let control = place.control();
    place.kill();
    let begun = Instant::now();
    let dead = loop {
        let output = place.furrow(&["raid", "status"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains("DEAD") {
            break text;
        }
        assert!(begun.elapsed().as_secs() < 60, "{text}");
    };
    assert!(dead.contains("array: a, UUID ") && dead.contains("the array a (UUID "), "{dead}");
    let document = place.furrow(&["raid", "status", "--json"]);
    let document: Value = serde_json::from_slice(&document.stdout).unwrap();
    assert_eq!(document["silent"][0]["array"], "a", "{document:#}");
    place.refused(&["raid", "stop", "a"], &["the array a (UUID ", "has died"]);
    place.assemble(&[0, 1], &[]);
    place.ok(&["raid", "stop", "a"]);
    assert!(!control.exists() && !control.with_extension("name").exists());
}

/// Neither tables nor texts are wider than a terminal; without one, nothing is broken or left out.
#[test]
fn a_status_fits_the_screen() {
    let place = Place::new("narrow", 3);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &[]);
    let (d0, run) = (place.at("d0.zns"), place.at("run"));
    for (columns, errors) in [(40, false), (80, true), (200, true)] {
        for command in [&["raid", "status"][..], &["raid", "examine", &d0]] {
            let line = format!("{} {}", env!("CARGO_BIN_EXE_furrow"), command.join(" "));
            // script(1) gives the command a terminal, whose lines end with a carriage return.
            let output = Command::new("script")
                .args(["-qec", &line, "/dev/null"])
                .env("FURROW_RUN", &run)
                .env("COLUMNS", columns.to_string())
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap().replace('\r', "");
            assert!(text.contains("d0.zns"), "{text}");
            assert!(text.is_ascii(), "{text}");
            // Lines with a command may be longer, since a broken command could not be pasted.
            let lines = text.lines().filter(|line| !line.contains("furrow raid"));
            let widest = lines.map(str::len).max().unwrap_or_default();
            assert!(widest <= columns, "{command:?} at {columns}: {widest}:\n{text}");
            if command[1] == "status" {
                assert!(text.contains("d2.zns"), "the end of a name tells it: {text}");
                assert_eq!(text.contains("checksum"), errors, "{columns}: {text}");
            }
        }
    }
    let piped = Command::new(env!("CARGO_BIN_EXE_furrow"))
        .args(["raid", "status"])
        .env("FURROW_RUN", &run)
        .env("COLUMNS", "40")
        .output()
        .unwrap();
    let text = String::from_utf8(piped.stdout).unwrap();
    assert!(text.contains("checksum") && text.contains(&d0), "{text}");
    place.ok(&["raid", "stop", "a"]);
}

/// Options that would open the volume to everyone cause a warning; contradictory options
/// are refused.
#[test]
fn dangerous_options_are_told() {
    let place = Place::new("open", 2);
    place.create("5", &[0, 1]);
    let assembled = |more: &[&str]| {
        let words = place.assembly(&[0, 1], more);
        let text = place.ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
        place.ok(&["raid", "stop", "a"]);
        text
    };
    let text = assembled(&["--listen", "tcp:0.0.0.0:0", "--events", &place.at("events")]);
    assert!(text.contains("WARNING: anyone who reaches tcp:0.0.0.0:"), "{text}");
    assert!(text.contains("can read and write") && text.contains("--tls require"), "{text}");
    assert!(place.read("events").contains(" a unprotected - "), "{}", place.read("events"));
    let text = assembled(&["--listen", "tcp:[::]:0", "--read-only"]);
    assert!(text.contains("can read the volume"), "{text}");
    for harmless in ["tcp:127.0.0.1:0", "tcp:[::1]:0"] {
        let text = assembled(&["--listen", harmless]);
        assert!(!text.contains("WARNING"), "{text}");
    }
    let memory = ["more than the memory of this machine"];
    place.refused(&["raid", "assemble", "--map-memory", "99TiB", "d"], &memory);
    place.refused(&["mount", "-o", "cache=99TiB", "d", "m"], &memory);
}

/// A log file among images is recognised as text, and no message advises the user to make a drive
/// of it.
#[test]
fn a_log_is_no_drive() {
    let place = Place::new("log", 2);
    place.create("5", &[0, 1]);
    let log = place.at("array.log");
    fs::write(&log, "2026-11-29T06:44:35Z furrow[1]: served\n").unwrap();
    for command in [["raid", "examine", &log], ["raid", "assemble", &log]] {
        let text = said(&place.furrow(&command));
        assert!(text.contains("a text file") && text.contains("not a member"), "{text}");
        assert!(!text.contains("device create"), "{text}");
    }
}
