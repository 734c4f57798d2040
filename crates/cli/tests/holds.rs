//! Every command recognises the content of a drive, and no advice destroys it.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{Place, said};
use std::fs;
use std::os::unix::fs::FileExt as _;

/// Runs a command that must be refused, and returns its only line of output.
fn refusal(place: &Place, arguments: &[&str]) -> String {
    let output = place.furrow(arguments);
    assert!(!output.status.success(), "{arguments:?} was not refused: {}", said(&output));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    error
}

/// Checks that no command that only reads advises to overwrite existing data.
fn advises_nothing_that_destroys(text: &str) {
    for word in ["mkfs", "--force", "-f ", "device create", "raid create"] {
        assert!(!text.contains(word), "'{word}' in: {text}");
    }
}

#[test]
fn members_and_spares_are_called_what_they_are_by_every_command() {
    let place = Place::new("holds", 6);
    let d: Vec<String> = place.drives(&[0, 1, 2, 3, 4, 5]);
    let create = ["raid", "create", "-l", "5", "-n", "a", "--spare", &d[3], &d[0], &d[1], &d[2]];
    place.ok(&create);
    for (drive, role) in [(&d[1], "member 1 of the array a"), (&d[3], "a spare of the array a")] {
        let before = fs::read(drive).unwrap();
        let dir = place.at("");
        for arguments in [
            &["fsck", drive][..],
            &["fsck", "-y", drive],
            &["mount", drive, &dir],
            &["dump", "superblock", drive],
            &["df", drive],
            &["map", drive],
            &["stat", drive],
            &["gc", drive],
        ] {
            let text = refusal(&place, arguments);
            assert!(text.contains(role) && text.contains("furrow raid"), "{arguments:?}: {text}");
            advises_nothing_that_destroys(&text);
        }
        for arguments in [
            &["mkfs", drive][..],
            &["raid", "create", "-l", "0", "-n", "b", drive, &d[4]],
            &["raid", "create", "-l", "0", "-n", "b", "--spare", drive, &d[4], &d[5]],
        ] {
            let text = refusal(&place, arguments);
            assert!(text.contains(role), "{arguments:?}: {text}");
            assert!(text.contains(" destroys what it holds"), "{arguments:?}: {text}");
            assert!(!text.contains("file system"), "{arguments:?}: {text}");
        }
        assert!(fs::read(drive).unwrap() == before, "{drive} was written to");
    }
    place.ok(&["mkfs", "-f", &d[1]]);
}

#[test]
fn a_file_system_is_no_member_and_no_empty_drive() {
    let place = Place::new("holds-fs", 5);
    let d: Vec<String> = place.drives(&[0, 1, 2, 3, 4]);
    let uuid = "11111111-2222-4333-8444-555555555555";
    place.ok(&["mkfs", "-U", uuid, &d[0]]);
    let it = format!("a Furrow file system (UUID {uuid})");
    for arguments in [
        &["mkfs", &d[0]][..],
        &["raid", "create", "-l", "0", "-n", "b", &d[0], &d[1]],
        &["raid", "assemble", &d[0]],
    ] {
        let text = refusal(&place, arguments);
        assert!(text.contains(&it) && text.contains("furrow mount"), "{arguments:?}: {text}");
    }
    let output = place.furrow(&["raid", "examine", "--json", &d[0], &d[1]]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["others"][0]["holds"], "file-system", "{found}");
    assert_eq!(found["others"][1]["holds"], "nothing", "{found}");
    // The daemon of an array gives the same answer if such a drive is offered to it.
    place.ok(&["raid", "create", "-l", "5", "-n", "a", &d[1], &d[2], &d[3]]);
    place.assemble(&[1, 2, 3], &[]);
    let text = refusal(&place, &["raid", "add-spare", "a", &d[0]]);
    assert!(text.contains(&it) && text.contains("--force destroys"), "{text}");
    place.ok(&["raid", "fail", "a", "1"]);
    let text = refusal(&place, &["raid", "replace", "a", "1", &d[0]]);
    assert!(text.contains(&it) && text.contains("--force destroys"), "{text}");
    // Advice to use an empty drive is fine: nothing is lost.
    let text = refusal(&place, &["fsck", &d[4]]);
    assert!(text.contains("the drive is empty") && text.contains("furrow mkfs"), "{text}");
}

#[test]
fn what_other_programs_made_is_named_and_so_is_a_drive_without_zones() {
    let place = Place::empty("holds-foreign");
    // Writes the image of another file system into the zones of an emulated drive.
    let drive = place.at("d.zns");
    place.drive("d.zns", "zones=24,zone-size=2MiB,max-active=14");
    place.ok(&["device", "zone", &drive, "write", "0", "--bytes", "8KiB"]);
    let image = fs::OpenOptions::new().write(true).open(&drive).unwrap();
    // The data of the zones is at the end of an image.
    let data = image.metadata().unwrap().len() - (48 << 20);
    image.write_at(b"\x53\xef", data + 1080).unwrap();
    for command in [&["mkfs", &drive][..], &["fsck", &drive], &["raid", "assemble", &drive]] {
        let text = refusal(&place, command);
        assert!(text.contains("an ext2, ext3 or ext4 file system"), "{command:?}: {text}");
    }
    advises_nothing_that_destroys(&refusal(&place, &["fsck", &drive]));
    // A plain file, with and without content.
    let plain = place.at("plain");
    let file = fs::File::create(&plain).unwrap();
    file.set_len(1 << 20).unwrap();
    for command in [&["mkfs", &plain][..], &["fsck", &plain], &["mount", &plain, &place.at("")]] {
        let text = refusal(&place, command);
        assert!(text.contains("plain file without zones"), "{command:?}: {text}");
    }
    file.write_at(b"EFI PART", 512).unwrap();
    let text = refusal(&place, &["mkfs", &plain]);
    assert!(text.contains("without zones") && text.contains("a GPT partition table"), "{text}");
    assert!(text.contains("in a new file"), "{text}");
    // A real drive without zones, if this machine has one.
    let disks = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let zoned = |name: &str| fs::read_to_string(format!("/sys/class/block/{name}/queue/zoned"));
    let names = disks.filter_map(|disk| disk.file_name().into_string().ok());
    let mut plain = names.filter(|name| zoned(name).is_ok_and(|model| model.trim() == "none"));
    let node = plain.find(|name| fs::metadata(format!("/dev/{name}")).is_ok());
    if let Some(name) = node {
        let text = refusal(&place, &["mkfs", &format!("/dev/{name}")]);
        assert!(text.contains("a block device without zones"), "{text}");
    }
    // An emulated drive whose zones are all conventional.
    place.drive("c.zns", "zones=24,zone-size=2MiB,conventional=24");
    let text = refusal(&place, &["mkfs", &place.at("c.zns")]);
    assert!(text.contains("all of its 24 zones are conventional"), "{text}");
}

/// `furrow label` shows and changes the label of a file system; for content without a label, it
/// says that there is none.
#[test]
fn a_label_is_shown_and_changed() {
    let place = Place::new("label", 3);
    let d: Vec<String> = place.drives(&[0, 1, 2]);
    place.ok(&["mkfs", "-L", "first", &d[0]]);
    assert_eq!(place.ok(&["label", &d[0]]), "first\n");
    assert_eq!(place.ok(&["label", &d[0], "second one"]), "");
    assert_eq!(place.ok(&["label", &d[0]]), "second one\n");
    let shown = place.ok(&["device", "show", &d[0]]);
    assert!(
        shown.contains("a Furrow file system (UUID") && shown.contains("second one"),
        "{shown}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&place.ok(&["device", "show", "--json", &d[0]])).unwrap();
    assert_eq!(json["content"]["kind"], "file-system");
    assert_eq!(json["content"]["label"], "second one");
    assert!(place.ok(&["device", "show", "--udev", &d[0]]).contains("ID_FS_LABEL=second_one\n"));
    assert!(place.ok(&["df", &d[0]]).starts_with("label second one, UUID "));
    assert!(place.ok(&["map", "--summary", &d[0]]).contains(", label second one:"));
    assert!(place.ok(&["fsck", "--json", &d[0]]).contains("\"label\": \"second one\""));
    let why = refusal(&place, &["label", &d[0], &"x".repeat(64)]);
    assert!(why.contains("at most 63 bytes"), "{why}");
    place.ok(&["label", &d[0], ""]);
    assert_eq!(place.ok(&["label", &d[0]]), "\n");

    let why = refusal(&place, &["label", &d[1]]);
    assert!(why.contains("holds nothing"), "{why}");
    place.refused(&["label", &d[1], "x"], &["the drive is empty"]);
    place.ok(&["kv", "mkfs", "--label", "db", &d[1]]);
    assert_eq!(place.ok(&["label", &d[1]]), "db\n");
    assert!(place.ok(&["device", "show", "--udev", &d[1]]).contains("ID_FS_LABEL=db\n"));
    place.refused(&["label", &d[1], "x"], &["a file store", "kv mkfs"]);
    place.ok(&["raid", "create", "-l", "5", "-n", "tank", &d[2], &d[1], "--force"]);
    assert_eq!(place.ok(&["label", &d[2]]), "tank\n");
    place.refused(&["label", &d[2], "x"], &["a drive of the array tank"]);
}
