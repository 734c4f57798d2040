//! `furrow raid` with the real binary: halves of an array that continued without each other, and
//! members with damaged state records.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{Place, check, fill, said};
use serde_json::Value;

/// Flips a bit of every record in the ring of a drive; with `last`, only of the last record.
fn damage(place: &Place, drive: usize, last: bool) {
    let path = place.at(&format!("d{drive}.zns"));
    let report = place.ok(&["device", "report", &path, "--json"]);
    let zones: Value = serde_json::from_str(&report).unwrap();
    for zone in &zones["zones"].as_array().unwrap()[..2] {
        let of = |name: &str| zone[name].as_u64().unwrap();
        let written = of("write_pointer");
        let first = if last { written.saturating_sub(1) } else { 0 };
        for block in first..written {
            let lba = format!("{}+1", of("start_lba") + block);
            place.ok(&["device", "fault", &path, "add", "bit-flip", "--lba", &lba]);
        }
    }
}

/// Whether drives are given by name, directory or pattern, with --wait or --degraded, no assembly
/// starts one half as if the other did not exist. Only --choose does.
#[test]
fn halves_that_went_on_alone_are_refused_by_every_way_to_assemble() {
    for (level, one, other) in [
        ("5", &[0][..], &[1][..]),
        ("4", &[1], &[0]),
        ("01", &[0, 2], &[1, 3]),
        ("6", &[0, 1], &[2, 3]),
    ] {
        let count = one.len() + other.len();
        let place = Place::new("split", count);
        let all: Vec<usize> = (0..count).collect();
        place.create(level, &all);
        place.assemble(&all, &[]);
        fill(&place, 0, 20, 1);
        place.ok(&["raid", "stop", "a"]);
        for (half, version) in [(one, 2), (other, 3)] {
            place.assemble(half, &["--degraded"]);
            fill(&place, 0, 10, version);
            place.ok(&["raid", "stop", "a"]);
        }
        let (names, folder, pattern) = (place.drives(&all), place.at(""), place.at("d?.zns"));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let log = place.at("log");
        for (given, more) in [
            (&names[..], &[][..]),
            (&names[..], &["--degraded"]),
            (&names[..], &["--wait", "1"]),
            (&[&folder], &[]),
            (&[&pattern], &["--degraded"]),
            (&[&folder], &["--wait", "1"]),
        ] {
            let words = [&["raid", "assemble", "--log", &log], more, given].concat();
            let output = place.furrow(&words);
            let text = said(&output);
            assert!(!output.status.success(), "RAID-{level} {more:?}: {text}");
            for word in ["each gone on without the other", "--choose", "state record"] {
                assert!(text.contains(word), "RAID-{level} {more:?}: no '{word}' in: {text}");
            }
            assert!(!text.contains("raid replace"), "RAID-{level} {more:?}: {text}");
        }
        let examined = place.furrow(&["raid", "examine", &folder]);
        let text = said(&examined);
        assert!(text.contains("each gone on without the other"), "{text}");
        assert!(!text.contains("raid replace") && text.contains("is split"), "{text}");
        for (half, version) in [(one, 2), (other, 3)] {
            let chosen = place.at(&format!("d{}.zns", half[0]));
            let words = ["raid", "assemble", "--log", &log, "--choose", &chosen, &folder];
            let text = place.ok(&words);
            assert!(text.contains("left out"), "{text}");
            check(&place, 0, 10, version);
            check(&place, 10, 10, 1);
            place.ok(&["raid", "stop", "a"]);
        }
        let foreign = place.at("log");
        place.refused(&["raid", "assemble", "--choose", &foreign, &folder], &["is not among"]);
    }
}

/// The records of two members of a RAID-5 are damaged, in a stopped array and in a running one.
#[test]
fn members_with_damaged_records_are_known_by_the_others() {
    let place = Place::new("damaged", 4);
    place.create("5", &[0, 1, 2, 3]);
    place.assemble(&[0, 1, 2, 3], &[]);
    fill(&place, 0, 60, 1);
    place.ok(&["raid", "stop", "a"]);
    for last in [true, false] {
        [1, 3].iter().for_each(|drive| damage(&place, *drive, last));
        let alone = place.furrow(&["raid", "examine", &place.at("d1.zns")]);
        let text = said(&alone);
        assert!(text.contains("damaged record of a Furrow array member"), "{text}");
        assert!(!text.contains("raid create"), "{text}");
        let folder = place.at("");
        let text = said(&place.furrow(&["raid", "examine", &folder]));
        assert!(text.contains("damaged record of a Furrow array member"), "{text}");
        assert!(text.contains("d1.zns is damaged") && text.contains("d3.zns is damaged"), "{text}");
        place.assemble(&[0, 1, 2, 3], &[]);
        let status = place.status();
        let members = status["members"].as_array().unwrap();
        assert!(members.iter().all(|member| member["state"] == "online"), "{status:#}");
        check(&place, 0, 60, 1);
        // A scrub finds no damage, because the assembly has rewritten the records.
        let text = place.ok(&["raid", "scrub", "a", "--wait"]);
        assert!(text.contains("nothing damaged"), "{text}");
        for member in ["1", "2"] {
            let ring = ["raid", "fault", "a", member, "add", "bit-flip", "--lba", "0+2"];
            let other = place.furrow(&ring);
            let again = ["raid", "fault", "a", member, "add", "bit-flip", "--lba", "512+2"];
            let again = place.furrow(&again);
            assert!(other.status.success() || again.status.success(), "{}", said(&again));
        }
        let text = place.ok(&["raid", "scrub", "a", "--wait"]);
        assert!(text.contains("damaged state record, mended"), "{text}");
        let text = place.ok(&["raid", "scrub", "a", "--wait"]);
        assert!(text.contains("nothing damaged"), "{text}");
        place.ok(&["raid", "stop", "a"]);
        let text = place.ok(&["raid", "examine", &place.at("d?.zns")]);
        assert!(!text.contains("damaged record"), "{text}");
    }
    // None of the members has a whole record: the array is not started, and no advice would
    // overwrite the members.
    (0..4).for_each(|drive| damage(&place, drive, false));
    let drives = place.drives(&[0, 1, 2, 3]);
    let mut words = vec!["raid", "assemble"];
    words.extend(drives.iter().map(String::as_str));
    let output = place.furrow(&words);
    let text = said(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("damaged record of a Furrow array member"), "{text}");
    assert!(!text.contains("raid create"), "{text}");
}
