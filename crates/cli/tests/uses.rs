//! Tests how commands behave in use: other users, closed pipes, full outputs, programs that read
//! JSON, and the first example of the manual.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{DRIVE, Place, said};
use serde_json::Value;
use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const FURROW: &str = env!("CARGO_BIN_EXE_furrow");
/// The user id of `nobody` on every system.
const NOBODY: u32 = 65_534;

/// The output of the command when another user runs it, from a folder that this user may enter.
fn as_nobody(place: &Place, run: &str, arguments: &[&str]) -> Output {
    let copy = place.at("furrow");
    if !Path::new(&copy).exists() {
        // Another process makes the copy: children of this process might still have a copy that it
        // wrote open for writing, and the kernel would not run such a file.
        let install = Command::new("install").args(["-m", "755", FURROW, &copy]).status();
        assert!(install.unwrap().success());
    }
    let mut command = Command::new(&copy);
    command.args(arguments).env("FURROW_RUN", run).env_remove("XDG_RUNTIME_DIR");
    command.uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap()
}

#[test]
fn another_user_is_denied_and_not_told_that_no_arrays_run() {
    assert!(rustix::process::geteuid().is_root(), "this test runs the command as another user");
    let place = Place::new("denied", 3);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &[]);
    let run = place.at("run");
    for arguments in [&["raid", "status"][..], &["raid", "status", "a"], &["raid", "stop", "a"]] {
        let output = as_nobody(&place, &run, arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("permission denied") && text.contains("user 0"), "{text}");
        assert!(!text.contains("no arrays run") && !text.contains("no array a runs"), "{text}");
    }
    // The message is the same if the user may list the folder but not use the socket.
    fs::set_permissions(&run, Permissions::from_mode(0o755)).unwrap();
    let text = said(&as_nobody(&place, &run, &["raid", "status"]));
    assert!(text.contains("permission denied") && text.contains(".control"), "{text}");
    // In a folder without sockets, no array runs.
    let none = as_nobody(&place, &place.at("nothing"), &["raid", "status"]);
    assert!(none.status.success() && said(&none).contains("no arrays run"), "{}", said(&none));
    assert_eq!(place.status()["state"], "online");
}

#[test]
fn a_full_standard_error_changes_no_status_and_a_closed_pipe_ends_quietly() {
    let place = Place::new("pipes", 3);
    place.create("5", &[0, 1, 2]);
    let (d0, fresh) = (place.at("d0.zns"), place.at("fresh.zns"));
    place.drive("fresh.zns", DRIVE);
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    for (arguments, status) in [
        (&["mkfs", "nosuch.zns"][..], 1),
        (&["nosuch"], 2),
        (&["raid", "create", "--nosuch"], 2),
        (&["fsck", &d0], 8),
        (&["raid", "status", "nosuch"], 1),
    ] {
        let mut command = Command::new(FURROW);
        command.args(arguments).env("FURROW_RUN", place.at("run"));
        let ended = command.stdout(Stdio::null()).stderr(full()).status().unwrap();
        assert_eq!(ended.code(), Some(status), "{arguments:?}");
    }
    // A command that cannot write its answer fails with a message.
    let mut command = Command::new(FURROW);
    let output = command.args(["device", "show", &d0]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("No space left"), "{}", said(&output));
    for arguments in [
        &["--help"][..],
        &["raid", "--help"],
        &["device", "presets"],
        &["device", "presets", "--json"],
        &["device", "report", &d0, "--all", "--json"],
        &["raid", "examine", &d0, "--json"],
        &["raid", "status", "--json"],
        &["mkfs", "--json", &fresh],
        &["dump", "superblock", &fresh, "--json"],
        &["fsck", &fresh, "--json"],
        &["map", &fresh, "--json"],
        &["df", &fresh],
    ] {
        // The reading end of the pipe is closed from the start.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(FURROW);
        command.args(arguments).env("FURROW_RUN", place.at("run"));
        let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &*text), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn the_first_example_of_the_manual_works_for_root_without_a_runtime_directory() {
    if std::env::var("FURROW_WITHOUT_NBD_CLIENTS").is_ok_and(|set| set == "1") {
        eprintln!("SKIPPED: it runs nbdcopy, and FURROW_WITHOUT_NBD_CLIENTS=1");
        return;
    }
    assert!(rustix::process::geteuid().is_root(), "this test is for root");
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/use/volumes.md");
    let manual = fs::read_to_string(manual).unwrap();
    let (_, example) = manual.split_once("## A first array\n\n```\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    assert!(example.contains("raid assemble") && example.contains("raid stop"), "{example}");
    let place = Place::empty("example");
    let programs = Path::new(FURROW).parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-ec", example]).current_dir(place.at("")).env("PATH", path);
    let output = shell.env_remove("XDG_RUNTIME_DIR").env_remove("FURROW_RUN").output().unwrap();
    if !output.status.success() {
        let mut stop = Command::new(FURROW);
        stop.args(["raid", "stop", "--force", "a"]).env_remove("XDG_RUNTIME_DIR");
        let _ = stop.env_remove("FURROW_RUN").output();
    }
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("a: stopped"), "{}", said(&output));
}

#[test]
fn help_is_that_of_the_command_and_names_begin_with_no_dash() {
    let place = Place::empty("help");
    place.refused(&["raid", "create", "--nosuch"], &["see 'furrow raid create --help'"]);
    place.refused(&["device", "fault", "x", "add"], &["see 'furrow device fault add --help'"]);
    place.refused(&["raid", "nosuch"], &["see 'furrow raid --help'"]);
    place.refused(&["dump", "nat"], &["see 'furrow dump nat --help'"]);
    place.refused(&["nosuch"], &["see 'furrow --help'"]);
    for name in [&["--name=-a"][..], &["-n", "-a"], &["--name", "-a"]] {
        let arguments = [&["raid", "create", "-l", "0"], name, &["x", "y"]].concat();
        place.refused(&arguments, &["no '.' or '-' first"]);
    }
}

#[test]
fn every_command_that_answers_something_answers_programs() {
    let place = Place::new("json", 5);
    let d = place.drives(&[0, 1, 2, 3, 4]);
    let json = |arguments: &[&str]| -> Value {
        let document: Value = serde_json::from_str(&place.ok(arguments)).unwrap();
        let version = if arguments[0] == "raid" { 2 } else { 1 };
        assert_eq!(document["version"], version, "{arguments:?}: {document}");
        document
    };
    let more = place.at("more.zns");
    assert_eq!(json(&["device", "create", "--json", &more])["zones"], 256);
    let add = ["device", "fault", &more, "add", "read-error", "--lba", "8", "--json"];
    assert_eq!(json(&add)["faults"].as_array().unwrap().len(), 1);
    let clear = ["device", "fault", &more, "clear", "--json"];
    assert_eq!(json(&clear)["faults"].as_array().unwrap().len(), 0);
    place.create("5", &[0, 1, 2]);
    let log = place.at("log");
    let assemble = ["raid", "assemble", "--json", "--log", &log, &d[0], &d[1], &d[2]];
    assert_eq!(json(&assemble)["array"]["state"], "online");
    let faults = json(&["raid", "fault", "--json", "a", "0", "list"]);
    assert_eq!(faults["array"]["array"], "a");
    assert_eq!(json(&["raid", "scrub", "a", "--wait", "--json"])["array"]["scrub"]["damaged"], 0);
    assert_eq!(json(&["raid", "fail", "a", "1", "--json"])["array"]["state"], "degraded");
    let replaced = json(&["raid", "replace", "a", "1", &d[3], "--json"]);
    assert_eq!(replaced["array"]["members"][1]["device"], *d[3], "{replaced}");
    json(&["raid", "rebuild", "a", "--wait", "--json"]);
    assert_eq!(json(&["raid", "add-spare", "a", &d[4], "--json"])["array"]["spares"][0], *d[4]);
    let stopped = json(&["raid", "stop", "a", "--json"]);
    assert_eq!((&stopped["array"], &stopped["said"][0]), (&Value::Null, &"a: stopped".into()));
}

/// One outcome has one exit status, whichever command and option report it.
#[test]
fn one_outcome_has_one_status() {
    let place = Place::new("outcomes", 3);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &[]);
    // Having nothing to do is not a failure, with --wait and without.
    let nothing = "a: nothing is left to rebuild\n";
    assert_eq!(place.ok(&["raid", "rebuild", "a"]), nothing);
    assert_eq!(place.ok(&["raid", "rebuild", "a", "--wait"]), nothing);
    // An unknown kind of fault is wrong usage.
    for arguments in [
        &["raid", "fault", "a", "0", "add", "melt"][..],
        &["device", "fault", &place.at("d0.zns"), "add", "melt"],
    ] {
        let output = place.furrow(arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains("melt") && text.contains("device fault"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    // A named target must exist; if it does not, the error is a single reason, on standard
    // error only.
    let folder = place.at("folder");
    fs::create_dir(&folder).unwrap();
    for arguments in [&["top", &folder, "--once"][..], &["stat", &folder], &["df", &folder]] {
        let output = place.furrow(arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("not the root of a mounted Furrow file system"), "{text}");
        assert!(output.stdout.is_empty() && text.lines().count() == 1, "{text}");
    }
}
