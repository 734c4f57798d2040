//! `furrow dump` for a user, on an intact image and on a damaged one.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{furrow, image};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn each_part_is_shown_as_text_and_as_json() {
    let path = image("dump.zns");
    let at = path.to_str().unwrap();
    for (args, holds) in [
        (vec!["superblock", at], "shown"),
        (vec!["checkpoint", at], "superzones"),
        (vec!["nat", at], "zone "),
        (vec!["sit", at, "0-9"], "valid"),
        (vec!["node", at, "1"], "directory"),
        (vec!["directory", at], "entries"),
        (vec!["segment", at, "0"], "blocks"),
    ] {
        let args = [vec!["dump"], args].concat();
        let shown = furrow(&args);
        assert_eq!((shown.status.code(), text(&shown.stderr)), (Some(0), ""), "{args:?}");
        assert!(text(&shown.stdout).contains(holds), "{args:?}: {}", text(&shown.stdout));
        let json = furrow(&[args.clone(), vec!["--json"]].concat());
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!((&json["version"], &json["part"]), (&1.into(), &args[1].into()));
        assert_eq!(json["findings"], serde_json::json!([]));
        assert!(json["value"].is_object());
    }
}

#[test]
fn damage_is_said_and_does_not_stop_it() {
    let path = image("dump-damaged.zns");
    let at = path.to_str().unwrap();
    let whole = furrow(&["dump", "superblock", at, "--json"]);
    let whole: serde_json::Value = serde_json::from_slice(&whole.stdout).unwrap();
    // Finds the label in the image's file and changes it without updating the checksum.
    let bytes = std::fs::read(&path).unwrap();
    let label = bytes.windows(6).position(|bytes| bytes == b"shown\0").unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"shOwn", label as u64).unwrap();
    let shown = furrow(&["dump", "superblock", at]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(text(&shown.stdout).contains("shOwn"), "{}", text(&shown.stdout));
    assert!(text(&shown.stderr).contains("superblock: copy in zone"), "{}", text(&shown.stderr));
    let json = furrow(&["dump", "superblock", at, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_ne!(json["value"], whole["value"]);
    assert!(json["findings"][0]["structure"] == "superblock", "{json}");
}

#[test]
fn what_cannot_be_is_refused_in_a_line() {
    let path = image("dump-refused.zns");
    let at = path.to_str().unwrap();
    for (args, status, words) in [
        (vec!["node", at, "x"], 2, "a path that begins with /"),
        (vec!["nat", at, "9-1"], 2, "as in 10-20"),
        (vec!["node", at, "/nothing"], 1, "no name `nothing`"),
        (vec!["segment", at, "4000000000"], 1, "no segment 4000000000"),
    ] {
        let refused = furrow(&[vec!["dump"], args].concat());
        assert_eq!(refused.status.code(), Some(status));
        let said = text(&refused.stderr);
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    }
}
