//! `furrow device` for a user: its output, exit statuses, and one-line errors.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]

use std::path::{Path, PathBuf};
use std::process::Command;

struct Ran {
    status: i32,
    out: String,
    error: String,
}

fn furrow(args: &[&str]) -> Ran {
    let directory = env!("CARGO_TARGET_TMPDIR");
    let output = Command::new(env!("CARGO_BIN_EXE_furrow"))
        .args(args)
        .current_dir(directory)
        .output()
        .expect("the command runs");
    Ran {
        status: output.status.code().expect("it exits"),
        out: String::from_utf8(output.stdout).expect("text"),
        error: String::from_utf8(output.stderr).expect("text"),
    }
}

fn done(args: &[&str]) -> String {
    let ran = furrow(args);
    assert_eq!((ran.status, ran.error.as_str()), (0, ""), "{args:?}");
    ran.out
}

/// Checks that the command fails with `status`, in one line that contains all of `says`.
fn refused(args: &[&str], status: i32, says: &[&str]) {
    let ran = furrow(args);
    assert_eq!((ran.status, ran.out.as_str()), (status, ""), "{args:?}: {}", ran.error);
    assert_eq!(ran.error.lines().count(), 1, "{}", ran.error);
    for part in says {
        assert!(ran.error.contains(part), "{args:?}: {}", ran.error);
    }
}

fn json(args: &[&str]) -> serde_json::Value {
    let value: serde_json::Value = serde_json::from_str(&done(args)).expect("JSON");
    assert_eq!(value["version"], 1);
    value
}

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn an_image_is_made_shown_and_given_faults() {
    scratch("device.zns");
    let options = "zones=9,zone-size=1MiB,zone-capacity=768KiB,conventional=1,max-open=4";
    let made = done(&["device", "create", "device.zns", "-o", options, "-o", "max-active=6"]);
    assert!(made.starts_with("device.zns: 6.8 MiB in 9 zones of 768 KiB, UUID "), "{made}");
    let show = json(&["device", "show", "device.zns", "--json"]);
    assert_eq!(show["zones"], 9);
    assert_eq!(show["zone_capacity_blocks"], 192);
    assert_eq!((&show["max_open"], &show["max_active"]), (&4.into(), &6.into()));
    assert_eq!(show["zone_states"]["empty"], 8);
    let text = done(&["device", "show", "device.zns"]);
    assert!(text.contains("zone states         8 empty, 1 conventional\n"), "{text}");

    let at_once = done(&["device", "fault", "device.zns", "add", "zone-offline", "--zone", "3"]);
    assert_eq!(at_once, "device.zns: zone-offline, zone 3: done\n");
    let fault = ["add", "read-error", "--lba", "256+8", "--nth", "5", "--times", "2"];
    let added = done(&[&["device", "fault", "device.zns"][..], &fault[..]].concat());
    assert_eq!(added, "device.zns: fault 0: read-error, blocks 256+8, command 5\n");
    done(&["device", "fault", "device.zns", "add", "slow", "--delay-us", "1500"]);
    let faults = json(&["device", "fault", "device.zns", "list", "--json"]);
    assert_eq!(faults["faults"][0]["kind"], "read-error");
    assert_eq!(faults["faults"][0]["place"]["blocks"], 8);
    assert_eq!(faults["faults"][0]["when"]["nth"], 5);
    assert_eq!(faults["faults"][1]["delay_ns"], 1_500_000);
    let list = done(&["device", "fault", "device.zns", "list"]);
    assert!(list.contains("slow by 1500 us  anywhere"), "{list}");
    assert_eq!(
        done(&["device", "fault", "device.zns", "clear"]),
        "device.zns: 2 cleared, 0 left\n"
    );
    assert_eq!(done(&["device", "fault", "device.zns", "list"]), "device.zns: no faults\n");

    let report = done(&["device", "report", "device.zns"]);
    let lines: Vec<Vec<&str>> =
        report.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["0", "0", "conventional", "192", "192"]);
    assert_eq!(lines[2], ["1-2", "256", "empty", "0", "192"]);
    assert_eq!(lines[3], ["3", "768", "offline", "0", "192"]);
    assert_eq!(lines[4], ["4-8", "1024", "empty", "0", "192"]);
    assert_eq!(done(&["device", "report", "device.zns", "--all"]).lines().count(), 10);
    let report = json(&["device", "report", "device.zns", "--json", "--first", "3"]);
    assert_eq!(report["zones"][0]["state"], "offline");
    assert_eq!(report["zones"].as_array().expect("zones").len(), 6);
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let image = scratch("refused.zns");
    done(&["device", "create", "refused.zns", "-o", "capacity=64MiB"]);
    refused(&["device", "create", "refused.zns"], 1, &["refused.zns: exists already", "--force"]);
    done(&["device", "create", "refused.zns", "--force", "-o", "capacity=32MiB"]);
    refused(&["device", "create", "x.zns", "--preset", "zn541"], 2, &["did you mean 'zn540-"]);
    refused(&["device", "create", "x.zns", "-o", "size=1"], 2, &["unknown key `size`", "--help"]);
    refused(
        &["device", "create", "x.zns", "--soft", "--size", "1foot"],
        2,
        &["--size 1foot: the value", "--help"],
    );
    let zones = ["device", "create", "x.zns", "--soft", "--size", "64MiB", "--zone-size", "3"];
    refused(&zones, 2, &["zones of 3 bytes", "a multiple of 4096", "--help"]);
    assert!(!Path::new(env!("CARGO_TARGET_TMPDIR")).join("x.zns").exists(), "nothing is made");
    refused(&["device", "show", "missing.zns"], 1, &["missing.zns: no such file", "create"]);
    refused(&["device", "show", "/dev/nvme0n2"], 1, &["/dev/nvme0n2: No such file"]);
    for words in [&["device", "show"][..], &["mkfs"], &["kv", "ls"], &["raid", "assemble"]] {
        refused(&[words, &["mem:zn541"]].concat(), 2, &["unknown preset", "--help"]);
    }
    refused(&["fsck", "mem:zn541"], 16, &["unknown preset", "--help"]);
    refused(&["device", "report", "refused.zns", "--first", "99"], 1, &["no zone 99: it has 2"]);
    refused(&["device", "fault", "refused.zns", "clear", "4"], 1, &["no fault 4"]);
    refused(&["device", "fault", "mem:", "list"], 1, &["a drive in memory keeps no faults"]);
    refused(
        &["device", "fault", "refused.zns", "add", "read-error", "--zone", "77"],
        1,
        &["no zone 77: the drive has 2 zones"],
    );
    refused(
        &["device", "fault", "refused.zns", "add", "slow", "--commands", "3"],
        2,
        &["--commands applies to disappear only"],
    );
    refused(&["device", "zone", "refused.zns", "reset", "1", "--bytes", "4KiB"], 2, &["'write'"]);
    refused(&["device", "fault", "refused.zns", "add", "explode"], 2, &["explode", "--help"]);
    refused(
        &["device", "fault", "refused.zns", "add", "slow", "--lba", "3+"],
        2,
        &["'3+'", "expected FIRST+COUNT"],
    );
    refused(&["device", "show"], 2, &["<DEVICE>"]);

    let held = std::fs::File::open(&image).expect("the image");
    held.lock().expect("a lock");
    let busy = format!("refused.zns: in use by process {} (", std::process::id());
    refused(&["device", "show", "refused.zns"], 1, &[&busy]);
    refused(&["device", "create", "refused.zns", "--force"], 1, &[&busy]);
    drop(held);
    std::fs::write(&image, "no image at all").expect("a file");
    refused(&["device", "show", "refused.zns"], 1, &["not an emulated drive's image"]);
}

#[test]
fn presets_are_listed_with_their_sources_and_read_back() {
    let list = done(&["device", "presets"]);
    for name in ["pm1731a", "zn540-1t", "zn540-4t", "j5100", "confzns", "femu-zapraid", "cns"] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name}: {list}");
    }
    let one = done(&["device", "presets", "pm1731a"]);
    assert!(one.contains("zones               40704"), "{one}");
    let line = one.lines().find(|line| line.starts_with("group-rate")).expect("a parameter");
    assert!(line.contains("45MB/s") && line.contains("measured"), "{line}");
    let json = json(&["device", "presets", "pm1731a", "--json"]);
    let parameters = json["parameters"].as_array().expect("parameters");
    let buffer = parameters.iter().find(|one| one["key"] == "buffer").expect("a parameter");
    assert_eq!((&buffer["value"], &buffer["source"]), (&"24MiB".into(), &"inferred".into()));

    let file = done(&["device", "presets", "pm1731a", "--toml"]);
    std::fs::write(scratch("drive.toml"), file.replace("24MiB", "28MiB")).expect("a file");
    let spec = "mem:pm1731a,zones=8,timing=realtime,time-scale=10,model=drive.toml";
    let shown = done(&["device", "show", spec]);
    assert!(shown.contains("realtime, as drive.toml, 10 times slower\n"), "{shown}");
    let spec = "mem:pm1731a,zones=8,timing=virtual,model.buffer=28MiB";
    let timing = &self::json(&["device", "show", spec, "--json"])["timing"];
    assert_eq!((&timing["mode"], &timing["model"]), (&"virtual".into(), &"pm1731a".into()));
    assert_eq!(timing["changed"]["buffer"], "28MiB");
    assert!(self::json(&["device", "show", "mem:", "--json"])["timing"].is_null());
    refused(&["device", "presets", "zn541"], 2, &["'zn541'", "did you mean 'zn540-"]);
    std::fs::write(scratch("wrong.toml"), "bufer = \"1MiB\"\n").expect("a file");
    let spec = "mem:zones=8,timing=realtime,model=wrong.toml";
    refused(&["device", "show", spec], 1, &["wrong.toml", "unknown model parameter `bufer`"]);
}

#[test]
fn zones_are_commanded_by_hand() {
    done(&["device", "create", "hand.zns", "--force", "-o", "zones=8,zone-size=1MiB"]);
    let out = done(&["device", "zone", "hand.zns", "write", "3", "--bytes", "256KiB"]);
    assert!(out.contains("empty") && out.contains("implicitly open"), "{out}");
    let out = done(&["device", "zone", "hand.zns", "finish", "3"]);
    assert!(out.contains("full"), "{out}");
    let json = done(&["device", "zone", "hand.zns", "reset", "3", "4", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["version"], 1);
    assert_eq!(value["zones"][0]["state"], "empty");
    // On a drive with realistic timing, a finish writes the rest of the zone, and a reset
    // takes milliseconds.
    let timed = "hand.zns,timing=realtime,model=zn540-1t";
    done(&["device", "zone", timed, "write", "3", "--bytes", "4KiB"]);
    let json = done(&["device", "zone", timed, "reset", "3", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(value["zones"][0]["nanoseconds"].as_u64().unwrap() >= 1_630_000, "{json}");
    refused(&["device", "zone", "hand.zns", "reset", "8"], 1, &["no zone 8", "the last is 7"]);
    refused(
        &["device", "zone", "hand.zns", "write", "1", "--bytes", "2MiB"],
        1,
        &["zone 1 has 1 MiB left, 2 MiB are to be written"],
    );
    refused(&["device", "zone", "hand.zns", "close", "1"], 1, &["Close of zone 1"]);
    let fast = "hand.zns,timing=realtime,model.bufer=1MiB";
    refused(&["device", "show", fast], 1, &["unknown model parameter `bufer`", "device presets"]);
    // In virtual time the command does not wait, and the time shown is that of the model.
    let simulated = "hand.zns,timing=virtual,model=zn540-1t";
    let out = done(&["device", "zone", simulated, "reset", "1"]);
    assert!(out.contains("0.002 ms"), "{out}");
}

#[test]
fn a_check_names_what_is_in_the_way_and_writes_nothing() {
    scratch("fits.zns");
    done(&["device", "create", "fits.zns"]);
    let before = done(&["device", "report", "fits.zns", "--json"]);
    let text = done(&["device", "check", "fits.zns"]);
    let drive = ["file system", "volume (RAID-5 of four such drives)", "store"];
    for front_end in drive.into_iter().chain(["volume over NBD"]) {
        assert!(text.contains(&format!("  {front_end}: fits\n")), "{front_end}: {text}");
    }
    for (front_end, node) in [("mount (FUSE)", "fuse"), ("block device (ublk)", "ublk-control")] {
        if !Path::new("/dev").join(node).exists() {
            assert!(text.contains(&format!("{front_end}: /dev/{node}: No such file")), "{text}");
        }
    }
    // The kernel supports no zones of this size; the drive suits every other front end.
    scratch("odd.zns");
    done(&["device", "create", "odd.zns", "-o", "zone-size=3MiB"]);
    assert!(done(&["device", "check", "odd.zns"]).contains("(ublk): odd.zns: its zones have 314"));
    assert_eq!(done(&["device", "report", "fits.zns", "--json"]), before);
    let document = json(&["device", "check", "fits.zns", "--json"]);
    assert_eq!(document["front_ends"].as_array().map(Vec::len), Some(7));
    done(&["mkfs", "fits.zns"]);
    let used = furrow(&["device", "check", "fits.zns"]);
    assert_eq!(used.status, 0, "{}", used.out);
    assert!(used.out.contains("it holds a Furrow file system"), "{}", used.out);
    scratch("few.zns");
    done(&["device", "create", "few.zns", "-o", "max-active=2,max-open=2"]);
    let few = furrow(&["device", "check", "few.zns"]);
    assert_eq!(few.status, 1);
    for front_end in ["file system: ", "volume (RAID-5 of four such drives): ", "store: "] {
        let line = few.out.lines().find(|line| line.trim().starts_with(front_end));
        assert!(line.is_some_and(|line| line.contains("active zones")), "{}", few.out);
    }
    scratch("conventional.zns");
    done(&["device", "create", "conventional.zns", "--preset", "cns", "-o", "capacity=1GiB"]);
    let conventional = furrow(&["device", "check", "conventional.zns"]);
    assert_eq!(conventional.status, 1);
    assert!(conventional.out.contains("none is for sequential writes"), "{}", conventional.out);
    assert!(!conventional.out.contains("active zones"), "{}", conventional.out);
    let missing = furrow(&["device", "check", "/dev/no-such-drive"]);
    assert_eq!(missing.status, 1);
    assert!(missing.out.contains("/dev/no-such-drive: No such file"), "{}", missing.out);
    // Even for a drive that does not exist, the command names the missing parts of the machine.
    assert_eq!(missing.out.matches("(ublk): ").count(), 2, "{}", missing.out);
    assert!(missing.out.contains("file system: not tried"), "{}", missing.out);
}

#[test]
fn a_drive_that_the_kernel_cannot_have_is_refused_with_what_to_do() {
    refused(
        &["device", "serve", "mem:zones=8,zone-size=768KiB"],
        1,
        &["mem:zones=8", "786432 bytes", "power of two", "zone-size"],
    );
    let virtual_time = "mem:zones=8,timing=virtual";
    refused(&["device", "serve", virtual_time, "--ublk"], 1, &["timing=realtime"]);
    if !Path::new("/dev/ublk-control").exists() {
        let says = ["/dev/ublk-control", "modprobe ublk_drv", "6.6"];
        refused(&["device", "serve", "mem:zones=8,zone-size=1MiB", "--ublk"], 1, &says);
    }
}

#[test]
fn what_a_drive_holds_is_told_to_udev() {
    let make = |name: &str| {
        scratch(name);
        done(&["device", "create", name, "-o", "zones=24,zone-size=2MiB,oob=64,max-active=14"]);
    };
    let udev = |name: &str| done(&["device", "show", "--udev", name]);
    for name in ["udev.zns", "udev0.zns", "udev1.zns"] {
        make(name);
        assert_eq!(udev(name), "", "an empty drive");
    }
    done(&["mkfs", "-L", "my data", "-U", "6b1a4d2e-0a3c-4f7e-9b0a-1c2d3e4f5a6b", "udev.zns"]);
    let expected = "ID_FS_USAGE=filesystem\nID_FS_TYPE=furrow\nID_FS_VERSION=1\n\
                    ID_FS_UUID=6b1a4d2e-0a3c-4f7e-9b0a-1c2d3e4f5a6b\n\
                    ID_FS_UUID_ENC=6b1a4d2e-0a3c-4f7e-9b0a-1c2d3e4f5a6b\n\
                    ID_FS_LABEL=my_data\nID_FS_LABEL_ENC=my\\x20data\n";
    assert_eq!(udev("udev.zns"), expected);
    done(&["kv", "mkfs", "-f", "udev.zns"]);
    let store = udev("udev.zns");
    assert!(store.contains("ID_FS_TYPE=furrow_store\n") && !store.contains("LABEL"), "{store}");
    done(&["raid", "create", "-l", "5", "-n", "tank", "udev0.zns", "udev1.zns"]);
    let (one, other) = (udev("udev0.zns"), udev("udev1.zns"));
    let line = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {text}")).to_owned()
    };
    assert_eq!(line(&one, "ID_FS_TYPE="), "ID_FS_TYPE=furrow_raid_member");
    assert_eq!(line(&one, "ID_FS_LABEL="), "ID_FS_LABEL=tank");
    assert_eq!(line(&one, "ID_FS_UUID="), line(&other, "ID_FS_UUID="));
    assert_ne!(line(&one, "ID_FS_UUID_SUB="), line(&other, "ID_FS_UUID_SUB="));
    let missing = "LABEL=no such label";
    refused(&["mount", missing, "."], 32, &["no block device", missing]);
}
