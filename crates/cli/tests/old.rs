//! Old drives of arrays are recognised, with their kind, and the space of drives is accounted for.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{DRIVE, Place};
use serde_json::Value;
use std::fs;

/// The state and the reason that `raid examine` shows for the drive of this name.
fn examined(place: &Place, name: &str) -> (String, String) {
    let output = place.furrow(&["raid", "examine", "--json", &place.at("set")]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let members = found["arrays"][0]["members"].as_array().unwrap();
    let is_it = |member: &&Value| {
        member["device"].as_str().is_some_and(|device| device.ends_with(&format!("/{name}")))
    };
    let member = members.iter().find(is_it).unwrap_or_else(|| panic!("{name}: {found:#}"));
    let text = |field: &str| member[field].as_str().unwrap_or_default().to_owned();
    (text("state"), text("why"))
}

#[test]
fn a_rejected_member_is_named_for_what_it_is() {
    let place = Place::empty("old");
    fs::create_dir(place.at("set")).unwrap();
    for name in ["set/d0.zns", "set/d1.zns", "set/d2.zns", "d3.zns"] {
        place.drive(name, DRIVE);
    }
    let at = |name: &str| place.at(&format!("set/{name}"));
    let [d0, d1, d2] = ["d0.zns", "d1.zns", "d2.zns"].map(at);
    place.ok(&["raid", "create", "-l", "5", "-n", "a", &d0, &d1, &d2]);
    let before = place.at("before");
    fs::copy(&d0, &before).unwrap();
    let (log, set) = (place.at("log"), place.at("set"));
    let assemble = ["raid", "assemble", "--log", &log, &set];
    assert!(!place.ok(&assemble).contains("left out"));
    place.ok(&["raid", "fail", "a", "1"]);
    place.ok(&["raid", "stop", "a"]);
    // The drive was taken out of service.
    let (state, why) = examined(&place, "d1.zns");
    assert_eq!(state, "stale");
    assert!(why.contains("it was member 1, and the array continued without it"), "{why}");
    let said = place.ok(&assemble);
    assert!(said.contains("d1.zns is stale: left out: it was member 1, and the"), "{said}");
    // Another drive replaces the old one.
    place.ok(&["raid", "replace", "a", "1", &place.at("d3.zns")]);
    place.ok(&["raid", "rebuild", "a", "--wait"]);
    place.ok(&["raid", "stop", "a"]);
    fs::rename(place.at("d3.zns"), at("d3.zns")).unwrap();
    let (state, why) = examined(&place, "d1.zns");
    assert_eq!(state, "replaced");
    assert!(why.contains("member 1 until another drive took its place"), "{why}");
    let said = place.ok(&assemble);
    assert!(said.contains("d1.zns is replaced: left out"), "{said}");
    place.ok(&["raid", "stop", "a"]);
    place.refused(&["raid", "assemble", &d0, &d1, &d2], &["d1.zns", "has been replaced"]);
    // An older image of a drive is present first next to the drive, then instead of it.
    fs::rename(&before, at("a-before.zns")).unwrap();
    let (state, why) = examined(&place, "a-before.zns");
    assert_eq!(state, "old");
    assert!(why.contains("older image of member 0, or"), "{why}");
    assert_eq!(examined(&place, "d0.zns"), ("active".to_owned(), String::new()));
    let said = place.ok(&assemble);
    assert!(said.contains("a-before.zns is old: left out: an older image of member 0"), "{said}");
    place.ok(&["raid", "stop", "a"]);
    fs::rename(at("a-before.zns"), &d0).unwrap();
    assert_eq!(examined(&place, "d0.zns").0, "old");
    // The output as text names the old drive too.
    let output = place.furrow(&["raid", "examine", &place.at("set")]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("d0.zns is old: an older image of member 0"), "{text}");
}

#[test]
fn create_says_where_the_room_goes_and_every_byte_is_somewhere() {
    for (level, drives) in [("5", 2), ("0", 3), ("01", 4), ("6", 4)] {
        let place = Place::new("space", drives);
        let numbers: Vec<usize> = (0..drives).collect();
        let all = place.drives(&numbers);
        let mut words = vec!["raid", "create", "-l", level, "-n", "a", "--force"];
        words.extend(all.iter().map(String::as_str));
        let text = place.ok(&words);
        words.push("--json");
        let made: Value = serde_json::from_str(&place.ok(&words)).unwrap();
        let bytes = |value: &Value| value.as_u64().unwrap();
        let space = made["space"].as_array().unwrap();
        let sum: u64 = space.iter().map(|part| bytes(&part["bytes"])).sum();
        assert_eq!(sum, bytes(&made["raw_bytes"]), "{space:#?}");
        assert_eq!(bytes(&space[0]["bytes"]), bytes(&made["size_bytes"]));
        let redundant = bytes(&space[1]["bytes"]);
        match level {
            "0" => assert_eq!(redundant, 0),
            // Two drives are a mirror, pairs are copies, and RAID-6 of four drives has two
            // parities: half of the space is redundancy.
            _ => assert!(redundant * 100 / sum > 35 && redundant * 2 <= sum, "{space:#?}"),
        }
        assert_eq!(text.contains("of two drives it is a mirror"), drives == 2, "{text}");
        for what in ["the volume", "reserve, 25 %", "parity", "map", "state"] {
            assert!(text.contains(what) || what == "parity" && level.starts_with('0'), "{text}");
        }
    }
}
