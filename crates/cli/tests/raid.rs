//! `furrow raid` with the real binary: an array's whole life, and all refusals.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{DRIVE, Nbd, Place, block, check, fill, said, states, version};
use crate::place::wait_until;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that writes until it is told to stop or the daemon is gone. It returns the last
/// acknowledged version of each block.
struct Load {
    stop: Arc<AtomicBool>,
    /// Number of writes that were acknowledged.
    done: Arc<AtomicU64>,
    thread: JoinHandle<Vec<u64>>,
}

impl Load {
    fn start(place: &Place, first: u64, count: u64) -> Load {
        let (stop, mut nbd) = (Arc::new(AtomicBool::new(false)), place.nbd());
        let done = Arc::new(AtomicU64::new(0));
        let (told, written) = (stop.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            let mut acknowledged = vec![0; count as usize];
            for round in 1.. {
                for number in 0..count {
                    if told.load(Ordering::Relaxed) {
                        return acknowledged;
                    }
                    let at = first + number;
                    if nbd.write(at * 4096, &block(at, round)).is_err() {
                        return acknowledged;
                    }
                    acknowledged[number as usize] = round;
                    written.fetch_add(1, Ordering::Relaxed);
                }
            }
            acknowledged
        });
        Load { stop, done, thread }
    }

    /// Waits until `count` writes were acknowledged.
    fn reach(&self, count: u64) {
        wait_until("writes are acknowledged", || self.done.load(Ordering::Relaxed) >= count);
    }

    fn end(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    /// The result of a load whose daemon was killed.
    fn ended(self) -> Vec<u64> {
        self.thread.join().unwrap()
    }
}

/// Checks that every block holds the acknowledged version or the next one.
fn check_load(place: &Place, first: u64, acknowledged: &[u64]) {
    let mut nbd = place.nbd();
    for (number, round) in (first..).zip(acknowledged) {
        let bytes = nbd.read(number * 4096, 4096).unwrap();
        let found = version(number, &bytes);
        assert!(found == *round || found == round + 1, "block {number}: {found}, told {round}");
    }
}

#[test]
fn an_array_lives_loses_a_drive_takes_a_spare_and_is_assembled_in_any_order() {
    let place = Place::new("life", 6);
    place.create("5", &[0, 1, 2, 3]);
    let examined =
        place.ok(&["raid", "examine", "--json", &place.at("d3.zns"), &place.at("d1.zns")]);
    let examined: Value = serde_json::from_str(&examined).unwrap();
    assert_eq!(examined["version"], 2);
    let array = &examined["arrays"][0];
    assert_eq!((&array["array"], &array["level"]), (&"a".into(), &"5".into()));
    let there: Vec<&str> =
        array["members"].as_array().unwrap().iter().map(|m| m["state"].as_str().unwrap()).collect();
    assert_eq!(there, ["missing", "active", "missing", "active"]);

    let hook = place.at("hook");
    fs::write(
        &hook,
        "#!/bin/sh\necho \"$1 $2 $3 $FURROW_EVENT\" >>\"${0%/*}/hooked\"\nsleep 0.1\n",
    )
    .unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let (events, metrics, spare) =
        (place.at("events"), place.at("metrics.prom"), place.at("d4.zns"));
    let more = ["--events", &events, "--hook", &hook, "--metrics", &metrics, "--spare", &spare];
    place.assemble(&[2, 0, 3, 1], &more);
    let status = place.status();
    assert_eq!((&status["state"], &status["version"]), (&"online".into(), &2.into()));
    assert_eq!(status["may_fail"], 1);
    fill(&place, 0, 300, 7);

    let load = Load::start(&place, 1000, 64);
    place.ok(&["raid", "fail", "a", &place.at("d2.zns")]);
    let status = place.until("rebuilt", |s| states(s).iter().all(|state| state == "online"));
    assert_eq!(status["members"][2]["device"], spare.as_str());
    assert!(status["spares"].as_array().unwrap().is_empty());
    let acknowledged = load.end();
    assert!(acknowledged[0] > 0, "nothing was written beside the rebuild");
    check(&place, 0, 300, 7);
    check_load(&place, 1000, &acknowledged);

    let scrubbed = place.ok(&["raid", "scrub", "a", "--wait"]);
    assert!(scrubbed.contains("nothing damaged"), "{scrubbed}");
    let shown = place.ok(&["raid", "status"]);
    for word in ["array: a", "state: ONLINE", "RAID-5 of 4 drives", "scrub:", "member", "d4.zns"] {
        assert!(shown.contains(word), "no '{word}' in:\n{shown}");
    }
    let client = place.nbd();
    place.refused(&["raid", "stop", "a"], &["in use by 1 client", "--force"]);
    place.refused(&["raid", "scrub", "b"], &["no array b runs"]);
    drop(client);
    place.until("left", |status| status["clients"] == 0);
    place.ok(&["raid", "stop", "a"]);
    assert!(!place.socket().exists() && !std::path::Path::new(&metrics).exists());
    // By the time the stop returns, the log and the hook have received everything.
    let (told, hooked) = (place.read("events"), place.read("hooked"));
    for event in
        ["started", "member-failed 2", "spare-taken 2", "rebuild-finished", "scrub-fin", "stopped"]
    {
        assert!(told.contains(&format!(" a {event}")), "no '{event}' in:\n{told}");
    }
    assert!(hooked.contains("member-failed a 2 member-failed"), "{hooked}");
    assert!(hooked.contains("stopped a  stopped"), "{hooked}");

    // In a directory, the failed drive is skipped, and an empty drive is ignored.
    let said = place.ok(&["raid", "assemble", &place.at("d?.zns")]);
    for part in ["a: served at unix:", "/a.nbd\n", "d2.zns is replaced: left out"] {
        assert!(said.contains(part), "no '{part}' in: {said}");
    }
    assert_eq!(said.lines().count(), 2, "{said}");
    assert_eq!(place.status()["state"], "online");
    check(&place, 0, 300, 7);
    check_load(&place, 1000, &acknowledged);
    place.ok(&["raid", "stop", "a"]);
    // A failed drive that is named is refused.
    let words = place.assembly(&[0, 1, 2, 3, 4], &[]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    place.refused(&words, &["d2.zns", "has been replaced", "leave it out"]);
}

#[test]
fn a_drive_that_is_pulled_under_load_is_survived_and_can_come_back() {
    let place = Place::new("pull", 5);
    place.create("5", &[0, 1, 2, 3]);
    place.assemble(&[0, 1, 2, 3], &[]);
    fill(&place, 0, 200, 3);
    let load = Load::start(&place, 600, 50);
    place.ok(&["raid", "fault", "a", "1", "add", "disappear"]);
    let status = place.until("degraded", |status| status["state"] == "degraded");
    assert_eq!(states(&status), ["online", "failed", "online", "online"]);
    assert!(status["action"].as_str().unwrap().contains("furrow raid replace a 1 DEV"));
    std::thread::sleep(Duration::from_millis(200));
    let acknowledged = load.end();
    check_load(&place, 600, &acknowledged);
    check(&place, 0, 200, 3);
    assert_eq!(place.furrow(&["raid", "status", "a"]).status.code(), Some(1));
    place.refused(&["raid", "fail", "a", "0"], &["cannot do without member 0"]);
    let d1 = place.at("d1.zns");
    place.refused(&["raid", "replace", "a", "0", &place.at("d4.zns")], &["is in service"]);
    place.refused(&["raid", "replace", "a", "1", &place.at("d3.zns")], &["member of this array"]);
    place.refused(&["raid", "replace", "a", "1", &place.at("none.zns")], &["none.zns"]);
    place.refused(&["raid", "replace", "a", "9", &d1], &["members are 0 to 3"]);
    place.drive("few.zns", "zones=24,zone-size=2MiB,oob=64,max-active=3,max-open=3");
    let few = place.at("few.zns");
    place.refused(&["raid", "replace", "a", "1", &few], &["few.zns has 3 active zones"]);
    place.refused(&["raid", "add-spare", "a", &few], &["few.zns has 3 active zones"]);
    // When drive 1 returns, its content is stale: it can come back only as a new drive.
    place.ok(&["raid", "fault", "a", "1", "clear"]);
    place.refused(&["raid", "replace", "a", "1", &d1], &["not empty", "--force"]);
    let waited = place.ok(&["raid", "replace", "a", "1", &d1, "--force", "--wait"]);
    assert!(waited.ends_with("a: member 1 is rebuilt\n"), "{waited}");
    assert!(place.ok(&["raid", "rebuild", "a"]).contains("nothing is left to rebuild"));
    let status = place.status();
    assert_eq!(status["state"], "online");
    check_load(&place, 600, &acknowledged);
    // The array is whole again, so another drive may fail.
    place.ok(&["raid", "fail", "a", "3"]);
    check(&place, 0, 200, 3);
    check_load(&place, 600, &acknowledged);
    place.ok(&["raid", "add-spare", "a", &place.at("d4.zns")]);
    place.until("rebuilt", |status| status["state"] == "online");
    place.ok(&["raid", "stop", "a"]);
}

#[test]
fn damage_is_found_named_and_mended() {
    let place = Place::new("damage", 4);
    place.create("6", &[0, 1, 2, 3]);
    place.assemble(&[0, 1, 2, 3], &[]);
    fill(&place, 0, 400, 2);
    // The bit flip hits the first zone of a segment, in which data begins at the second block.
    place.ok(&[
        "raid",
        "fault",
        "a",
        "2",
        "add",
        "bit-flip",
        "--lba",
        &format!("{}+1", 2 * 512 + 9),
    ]);
    let output = place.furrow(&["raid", "scrub", "a", "--wait"]);
    assert_eq!(output.status.code(), Some(1), "damage is left: {}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let named = format!("member 2 ({}), zone 2, block 9", place.at("d2.zns"));
    assert!(text.contains(&named) && text.contains("1 damaged"), "{text}");
    let status = place.status();
    assert!(status["action"].as_str().unwrap().contains("scrub a --repair"), "{status:#}");
    assert_eq!(status["scrub"]["findings"][0]["zone"], 2);
    let text = place.ok(&["raid", "scrub", "a", "--repair", "--wait"]);
    assert!(text.contains("damaged and mended"), "{text}");
    let text = place.ok(&["raid", "scrub", "a", "--wait"]);
    assert!(text.contains("nothing damaged"), "{text}");
    check(&place, 0, 400, 2);
    place.ok(&["raid", "stop", "a"]);
}

#[test]
fn a_killed_daemon_loses_nothing_it_acknowledged() {
    let place = Place::new("kill", 4);
    place.create("5", &[0, 1, 2, 3]);
    let mut order = vec![0, 1, 2, 3];
    for round in 0..3 {
        order.rotate_left(1);
        place.assemble(&order, &[]);
        let load = Load::start(&place, 0, 200);
        load.reach(30 + 100 * round);
        place.kill();
        let acknowledged = load.ended();
        let examined = place.ok(&["raid", "examine", &place.at("d0.zns")]);
        assert!(examined.contains("not cleanly"), "{examined}");
        place.assemble(&order, &[]);
        check_load(&place, 0, &acknowledged);
        let wiped = [0; 4096];
        let mut nbd = place.nbd();
        (0..200).for_each(|number| nbd.write(number * 4096, &wiped).unwrap());
        drop(nbd);
        place.ok(&["raid", "stop", "a", "--force"]);
    }
}

#[test]
fn of_two_drives_one_alone_is_started_only_on_request() {
    let place = Place::new("two", 2);
    place.create("5", &[0, 1]);
    let words = |numbers: &[usize], more: &[&str]| place.assembly(numbers, more);
    let refused = |numbers: &[usize], more: &[&str], why: &[&str]| {
        let words = words(numbers, more);
        place.refused(&words.iter().map(String::as_str).collect::<Vec<_>>(), why);
    };
    refused(&[1], &[], &["member 0 is missing", "newer data", "--degraded"]);
    let examined = place.ok(&["raid", "examine", "--json", &place.at("d1.zns")]);
    let examined: Value = serde_json::from_str(&examined).unwrap();
    let why = examined["arrays"][0]["split_brain"].as_str().unwrap();
    assert!(why.contains("member 0 is missing"), "{why}");
    place.assemble(&[1], &["--degraded"]);
    let status = place.status();
    assert_eq!(states(&status), ["missing", "online"]);
    fill(&place, 0, 10, 4);
    place.ok(&["raid", "stop", "a", "--force"]);
    // This drive now has a record that the other one is stale, so no split brain is possible.
    place.assemble(&[1], &[]);
    place.ok(&["raid", "stop", "a"]);
    refused(&[0, 1], &[], &["d0.zns", "stale"]);
    place.assemble(&[0], &["--degraded"]);
    place.ok(&["raid", "stop", "a"]);
    refused(&[0, 1], &[], &["each gone on without the other", "--choose"]);
}

#[test]
fn drives_without_an_out_of_band_area_make_an_array_that_survives_its_daemon() {
    let place = Place::empty("plain");
    for index in 0..3 {
        let options = "zones=24,zone-size=2MiB,max-active=14,max-open=14";
        place.drive(&format!("d{index}.zns"), options);
    }
    let d = place.drives(&[0, 1, 2]);
    let made = place.ok(&["raid", "create", "--level", "5", "--name", "a", &d[0], &d[1], &d[2]]);
    assert!(made.contains("in stripes of its own") && made.contains("Zone Write only"), "{made}");
    place.assemble(&[0, 1, 2], &[]);
    fill(&place, 0, 100, 1);
    place.kill();
    place.assemble(&[0, 1, 2], &[]);
    check(&place, 0, 100, 1);
    place.ok(&["raid", "fail", "a", "0"]);
    fill(&place, 50, 100, 2);
    check(&place, 0, 50, 1);
    check(&place, 50, 100, 2);
    place.ok(&["raid", "stop", "a"]);
}

#[test]
fn what_cannot_be_an_array_is_refused_and_nothing_is_written() {
    let place = Place::new("bad", 6);
    place.drive("other.zns", "zones=24,zone-size=4MiB,oob=64,max-active=14,max-open=14");
    place.drive("bare.zns", "zones=24,zone-size=2MiB,max-active=14,max-open=14");
    place.drive("few.zns", "zones=24,zone-size=2MiB,oob=64,max-active=3,max-open=3");
    let d = place.drives(&[0, 1, 2, 3, 4, 5]);
    let create = |level: &str, more: &[&str], drives: &[&str], why: &[&str]| {
        let mut words = vec!["raid", "create", "--level", level, "--name", "a"];
        words.extend(more);
        words.extend(drives);
        place.refused(&words, why);
    };
    let (other, bare, few) = (place.at("other.zns"), place.at("bare.zns"), place.at("few.zns"));
    create("7", &[], &[&d[0], &d[1]], &["\"7\" is no RAID level", "0, 01, 4, 5 or 6"]);
    create("5", &[], &[&d[0]], &["needs 2 to 32 drives, not 1"]);
    create("6", &[], &[&d[0], &d[1]], &["needs 3 to 32"]);
    let many: Vec<String> = (0..33).map(|index| place.at(&format!("m{index}.zns"))).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    create("6", &[], &many, &["needs 3 to 32 drives, not 33"]);
    create("01", &[], &many, &["needs 4 to 32 drives, not 33"]);
    let memory = format!("mem:{DRIVE}");
    create("5", &[], &[&d[0], &d[1], &memory], &["mem:", "a drive in memory is gone"]);
    create("5", &["--spare", &memory], &[&d[0], &d[1]], &["a drive in memory is gone"]);
    create("01", &[], &[&d[0], &d[1], &d[2], &d[3], &d[4]], &["pairs", "use 4 or 6"]);
    create("5", &[], &[&d[0], &d[1], &d[0]], &["d0.zns is named twice"]);
    create(
        "5",
        &[],
        &[&d[0], &d[1], &other],
        &["other.zns has zones that hold 4", "need the same"],
    );
    create("5", &[], &[&bare, &bare.replace("bare", "./bare")], &["twice"]);
    create("5", &[], &[&d[0], &bare], &["out-of-band bytes"]);
    place.drive("plain.zns", "zones=24,zone-size=2MiB,max-active=14,max-open=14");
    let plain = place.at("plain.zns");
    create("5", &["--group", "8"], &[&bare, &plain], &["groups of 1 (Zone Write only)"]);
    for drives in [[&few, &d[0]], [&d[0], &few]] {
        create(
            "5",
            &[],
            &drives.map(|drive| &drive[..]),
            &["few.zns has 3 active", "fewer segments"],
        );
    }
    create("5", &["--spare", &few], &[&d[0], &d[1]], &["few.zns has 3 active"]);
    create("5", &["--reserve", "3"], &[&d[0], &d[1]], &["7 to 100"]);
    create("5", &["--chunk-large", "6KiB"], &[&d[0], &d[1]], &["multiple of 4KiB"]);
    create("5", &[], &[&d[0], &place.at("none.zns")], &["none.zns"]);
    create("5", &[], &[&d[0], "/dev/null"], &["/dev/null"]);
    for name in ["", "a/b", "a b"] {
        let words = ["raid", "create", "--level", "5", "--name", name, &d[0], &d[1]];
        place.refused(&words, &["letters"]);
    }
    for drive in &d {
        let report = place.ok(&["device", "report", drive]);
        assert!(report.contains("empty") && !report.contains("open"), "untouched: {report}");
    }

    place.create("5", &[0, 1, 2]);
    create("5", &[], &[&d[3], &d[1]], &["d1.zns", "member 1 of the array a", "--force"]);
    let junk = place.at("junk");
    fs::write(&junk, "no drive").unwrap();
    create("5", &[], &[&d[3], &junk], &["not an emulated drive's image"]);
    place.ok(&["raid", "create", "--level", "5", "--name", "b", &d[3], &d[4]]);
    let assemble = |drives: &[&str], why: &[&str]| {
        let mut words = vec!["raid", "assemble"];
        words.extend(drives);
        place.refused(&words, why);
    };
    assemble(&[&d[0], &d[1], &d[3], &d[4]], &["several arrays: ", "a (", "b (", "--uuid"]);
    assemble(&[&d[0], &d[5], &d[1]], &["d5.zns", "not a member of a Furrow array"]);
    assemble(&[&d[0]], &["cannot do without members 1", "2 (", "): give 1 of them too"]);
    assemble(&[&d[0], &d[1], &junk], &["not an emulated drive's image"]);
    assemble(&["--name", "c", &d[0], &d[1]], &["no drive is a member of an array c"]);
    assemble(&["--listen", "nowhere", &d[0], &d[1]], &["tcp:ADDRESS:PORT"]);
    assemble(&["--tls", "require", &d[0], &d[1]], &["--tls-certs"]);
    let certificates = ["--tls-certs", "/none", &d[0], &d[1]];
    assemble(&certificates, &["--tls-certs without --tls", "in the clear"]);
    for (tls, why) in [(&[][..], "--tls-verify without --tls"), (&["--tls", "on"], "--tls require")]
    {
        assemble(&[tls, &["--tls-verify"], &certificates].concat(), &[why, "certificate"]);
    }
    assemble(&[&d[0], &d[1], &memory], &["a drive in memory is gone"]);
    for hook in [place.at("none"), place.at(""), d[0].clone(), "no-such-program".to_owned()] {
        assemble(&["--hook", &hook, &d[0], &d[1], &d[2]], &["hook "]);
    }
    let output = place.furrow(&["raid", "assemble", &d[0], &d[1], &place.at("gone.zns")]);
    let error = said(&output);
    assert!(!output.status.success() && error.contains("leave it out"), "{error}");
    assert!(!error.contains("create"), "a member that is gone must not be made: {error}");
    assemble(&["--tls", "on", "--tls-certs", "/none", &d[0], &d[1]], &["server-cert.pem"]);
    assemble(&["--spare", &d[3], &d[0], &d[1], &d[2]], &["d3.zns", "not empty"]);
    assemble(&["--spare", &other, &d[0], &d[1], &d[2]], &["the array needs"]);
    assemble(&["--events", "/none/e", &d[0], &d[1], &d[2]], &["/none/e"]);

    // Selects one array by name among the drives of several.
    place.ok(&["raid", "assemble", "--name", "a", &d[0], &d[3], &d[1], &d[4], &d[2]]);
    create("5", &[], &[&d[5], &d[2]], &["runs already"]);
    place.refused(
        &["raid", "create", "--level", "5", "--name", "c", &d[5], &d[2]],
        &["d2.zns: in use: a drive of the running array a", "furrow raid stop a"],
    );
    place.refused(&["mkfs", &d[1]], &["use"]);
    assemble(&[&d[0], &d[1], &d[2]], &["in use", "running array a"]);
    let output = place.furrow(&["raid", "examine", &d[0], &d[3]]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("in use by the running array a") && text.contains("b: RAID-5"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    place.refused(&["raid", "fault", "a", "1", "add", "melt"], &["melt"]);
    place.refused(&["raid", "add-spare", "a", &d[4]], &["not empty"]);
    let mut nbd = place.nbd();
    let past = nbd.size;
    assert!(nbd.read(past - 4096, 4096).is_ok());
    assert!(nbd.write(past, &[0; 4096]).is_err() && nbd.read(past - 4096, 8192).is_err());
    drop(nbd);
    place.ok(&["raid", "stop", "a", "--force"]);
}

#[test]
fn whatever_comes_over_the_control_socket_the_array_goes_on() {
    let place = Place::new("control", 3);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &[]);
    fill(&place, 0, 50, 9);
    let socket = place.control();
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ask = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // The daemon may close the connection before everything is sent.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    };
    for bytes in [
        &b"\n"[..],
        b"hello\n",
        b"{}\n",
        b"[[[[[[[[\n",
        b"\xff\xfe\x00\n",
        b"{\"request\":\"status\"}\n",
        b"{\"version\":1,\"request\":\"status\"}\n",
        b"{\"version\":2,\"request\":\"melt\"}\n",
        b"{\"version\":2,\"request\":\"fail\",\"member\":-1}\n",
        b"{\"version\":2,\"request\":\"stop\"}\n",
    ] {
        let answer: Value = serde_json::from_str(&ask(bytes)).unwrap();
        assert!(answer["error"].as_str().unwrap().contains("not a request"), "{answer}");
        assert_eq!(answer["version"], 2);
    }
    for (bytes, why) in [
        (&br#"{"version":2,"request":"fail","member":"9"}"#[..], "members are 0 to 2"),
        (br#"{"version":2,"request":"fail","member":"mem:"}"#, "has no member"),
        (
            br#"{"version":2,"request":"replace","member":"0","device":"","force":true}"#,
            "no device",
        ),
        (br#"{"version":2,"request":"add-spare","device":"mem:zones=2"}"#, "spare"),
        (br#"{"version":2,"request":"fault","member":"0","words":["add"]}"#, "required"),
        (br#"{"version":2,"request":"rebuild","pause_us":null}"#, "there is nothing to rebuild"),
    ] {
        let answer = ask(&[bytes, b"\n"].concat());
        let error = serde_json::from_str::<Value>(&answer).unwrap()["error"].to_string();
        assert!(error.contains(why) || why == "spare" && error.len() > 6, "{answer}");
    }
    let long = [vec![b'x'; 1 << 20], b"\n".to_vec()].concat();
    let answer = ask(&long);
    assert!(answer.is_empty() || answer.contains("longer than"), "{answer}");
    assert_eq!(
        ask(b"{\"version\":2,\"request\":\"status\""),
        "",
        "a line that does not end is no request"
    );
    // Silent connections do not occupy all slots.
    let silent: Vec<UnixStream> = (0..60).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    // One connection carries several requests.
    let mut stream = UnixStream::connect(&socket).unwrap();
    for request in ["status", "metrics"] {
        let line = format!("{{\"version\":2,\"request\":\"{request}\"}}\n");
        stream.write_all(line.as_bytes()).unwrap();
    }
    let mut lines = BufReader::new(&stream).lines();
    let status: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(status["ok"]["array"], "a");
    let text: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(text["ok"].as_str().unwrap().contains("furrow_raid_size_bytes"));
    drop((silent, lines));
    check(&place, 0, 50, 9);
    assert_eq!(place.status()["state"], "online");
    place.ok(&["raid", "stop", "a", "--force"]);
}

/// The samples of a page of metrics. Fails if a line does not parse, or a sample does not follow
/// the type of its family.
fn samples(text: &str) -> BTreeMap<String, f64> {
    assert_eq!(furrow_metrics::problems(text), Vec::<String>::new());
    let mut families = BTreeSet::new();
    let mut samples = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.split(' ');
            let (what, name) = (words.next().unwrap(), words.next().unwrap());
            assert!(matches!(what, "HELP" | "TYPE"), "{line}");
            assert!(what == "HELP" || families.insert(name.to_owned()), "twice: {line}");
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        let family = name.split('{').next().unwrap();
        assert!(families.contains(family), "{family} has no type");
        let value = value.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(samples.insert(name.to_owned(), value), None, "twice: {line}");
    }
    samples
}

/// Checks that the page has the metrics of an array to which `written` blocks were written.
fn check_metrics(text: &str, written: u64) {
    let found = samples(text);
    assert!(found.len() > 40, "{}: {text}", found.len());
    let wanted = |start: &str| {
        let sample = found.iter().find(|(name, _)| name.starts_with(start));
        *sample.unwrap_or_else(|| panic!("no {start} in:\n{text}")).1
    };
    assert_eq!(wanted("furrow_raid_state{array=\"a\",state=\"online\"}"), 1.0);
    assert_eq!(wanted("furrow_raid_member_online{array=\"a\",member=\"2\""), 1.0);
    let bytes = wanted("furrow_raid_written_bytes_total{array=\"a\"}");
    assert_eq!(bytes, (written * 4096) as f64);
    assert!(wanted("furrow_raid_stripes_total{array=\"a\"}") > 0.0, "{text}");
    assert!(wanted("furrow_nbd_accepted_total") > 0.0, "{text}");
}

/// The TCP ports of 127.0.0.1 at which a process listens, as `ss -ltnp` finds them.
fn ports(pid: u64) -> Vec<u16> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links: BTreeSet<String> = files
        .filter_map(|file| Some(fs::read_link(file.ok()?.path()).ok()?.to_str()?.to_owned()))
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let port = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (address, listens) = (words[1].strip_prefix("0100007F:")?, words[3] == "0A");
        let its = listens && links.contains(&format!("socket:[{}]", words[9]));
        its.then(|| u16::from_str_radix(address, 16).unwrap())
    };
    table.lines().skip(1).filter_map(port).collect()
}

#[test]
fn metrics_are_given_over_http_and_every_line_parses() {
    let place = Place::new("metrics", 3);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &["--metrics", "127.0.0.1:0", "--listen", "tcp:127.0.0.1:0"]);
    let status = place.status();
    let listening = status["listening"][0].as_str().unwrap();
    let nbd: u16 = listening.strip_prefix("tcp:127.0.0.1:").unwrap().parse().unwrap();
    assert_ne!(nbd, 0, "the port is the system's choice");
    let mut client = Nbd::connect(TcpStream::connect(("127.0.0.1", nbd)).unwrap(), "a").unwrap();
    (0..30).for_each(|number| client.write(number * 4096, &block(number, 1)).unwrap());

    let all = ports(status["pid"].as_u64().unwrap());
    let other: Vec<u16> = all.iter().copied().filter(|port| *port != nbd).collect();
    assert_eq!((all.len(), other.len()), (2, 1), "{all:?}");
    let mut http = TcpStream::connect(("127.0.0.1", other[0])).unwrap();
    http.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    http.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", text.len())), "{head}");
    check_metrics(text, 30);

    // The control socket returns the same metrics.
    let mut stream = UnixStream::connect(place.control()).unwrap();
    stream.write_all(b"{\"version\":2,\"request\":\"metrics\"}\n").unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let asked = serde_json::from_str::<Value>(&line).unwrap()["ok"].as_str().unwrap().to_owned();
    check_metrics(&asked, 30);
    assert!(samples(text).keys().eq(samples(&asked).keys()), "{text}\n{asked}");
    drop(client);
    place.ok(&["raid", "stop", "a", "--force"]);
}

#[test]
fn a_file_of_metrics_is_there_while_the_array_is() {
    let place = Place::new("collected", 3);
    place.create("5", &[0, 1, 2]);
    let file = place.at("a.prom");
    place.assemble(&[0, 1, 2], &["--metrics", &file]);
    // The file is empty until there are metrics; it is created at the start to check that it is
    // writable.
    place.until("written", |_| !fs::read_to_string(&file).unwrap().is_empty());
    assert_eq!(samples(&place.read("a.prom"))["furrow_raid_written_bytes_total{array=\"a\"}"], 0.0);
    fill(&place, 0, 20, 1);
    let told = "furrow_raid_written_bytes_total{array=\"a\"} 81920\n";
    place.until("its blocks are rewritten", |_| fs::read_to_string(&file).unwrap().contains(told));
    check_metrics(&place.read("a.prom"), 20);
    place.ok(&["raid", "stop", "a", "--force"]);
    assert!(!fs::exists(&file).unwrap(), "it says what is no more");
}

#[test]
fn where_tls_is_required_nothing_else_is_spoken() {
    let place = Place::new("tls", 2);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(place.at("server-cert.pem"), made.cert.pem()).unwrap();
    fs::write(place.at("server-key.pem"), made.signing_key.serialize_pem()).unwrap();
    place.create("5", &[0, 1]);
    let connect = || Nbd::connect(UnixStream::connect(place.socket()).unwrap(), "a");
    for (mode, plain) in [("require", false), ("on", true)] {
        place.assemble(&[0, 1], &["--tls", mode, "--tls-certs", &place.at("")]);
        assert_eq!(connect().is_ok(), plain, "{mode}");
        place.ok(&["raid", "stop", "a", "--force"]);
    }
}

#[test]
fn a_signal_stops_an_array_in_order() {
    let place = Place::new("signal", 2);
    place.create("4", &[0, 1]);
    place.assemble(&[0, 1], &["--read-only"]);
    assert_eq!(place.status()["read_only"], true);
    assert!(place.nbd().write(0, &[1; 4096]).is_err());
    let pid = place.status()["pid"].as_u64().unwrap() as i32;
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    // A daemon has no terminal that could hang up.
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // The daemon's drives are free when it has ended; opening them waits for that.
    let mut examined = String::new();
    for _ in 0..200 {
        let output = place.furrow(&["raid", "examine", &place.at("d0.zns")]);
        examined = String::from_utf8(output.stdout).unwrap();
        if examined.contains("stopped") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(examined.contains("stopped  cleanly"), "{examined}");
    let log = place.read("log");
    assert!(log.contains("SIGTERM: stopping") && !log.contains("SIGHUP"), "{log}");
    assert!(place.ok(&["raid", "status"]).contains("no arrays run"));
}

#[test]
fn drives_that_fit_only_in_part_are_told_apart() {
    let place = Place::new("sizes", 0);
    // One drive has more zones than the others; these zones are not used.
    place.drive("d0.zns", DRIVE);
    place.drive("d1.zns", &DRIVE.replace("zones=24", "zones=30"));
    place.drive("d2.zns", &DRIVE.replace("zones=24", "zones=20"));
    let d = place.drives(&[0, 1, 2]);
    let json = place.ok(&["raid", "create", "--json", "-l", "5", "-n", "a", &d[0], &d[1]]);
    let made: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&made["version"], &made["tolerates"]), (&2.into(), &1.into()));
    assert_eq!(made["segments"], 22);
    place.assemble(&[1, 0], &[]);
    place.refused(&["raid", "add-spare", "a", &d[2]], &["20 zones", "needs 24 zones"]);
    place.ok(&["raid", "stop", "a"]);
}
