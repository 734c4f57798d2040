//! Tests that the reports of `furrow raid` are true: rebuilds that fail, drives that die in them,
//! clients that are refused.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{Nbd, Place, fill, said};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

/// If another drive has unreadable blocks, a rebuild ends as a failure that names the lost blocks,
/// in every report.
#[test]
fn a_rebuild_that_lost_blocks_is_a_failure_everywhere() {
    let place = Place::new("lossy", 4);
    place.create("5", &[0, 1, 2]);
    let events = place.at("events");
    place.assemble(&[0, 1, 2], &["--events", &events]);
    fill(&place, 0, 1500, 1);
    place.ok(&["raid", "fail", "a", "1"]);
    for zone in 2..8 {
        let blocks = format!("{}+10", zone * 512 + 50);
        place.ok(&["raid", "fault", "a", "2", "add", "read-error", "--lba", &blocks]);
    }
    place.ok(&["raid", "replace", "a", "1", &place.at("d3.zns")]);
    place.refused(&["raid", "rebuild", "a", "--wait"], &["could not restore", "LOST: "]);
    let status = place.status();
    let lost = status["lost_blocks"].as_u64().unwrap();
    assert!(lost > 0 && status["state"] == "damaged", "{status:#}");
    assert_eq!(status["last_rebuild"]["ok"], false);
    assert!(status["problem"].as_str().unwrap().contains("LOST"), "{status:#}");
    let first = status["lost"][0]["first"].as_u64().unwrap();
    let told = place.read("events");
    let last = told.lines().last().unwrap();
    assert!(last.contains("rebuild-incomplete") && last.contains(&format!("{lost} blocks")));
    assert!(last.contains(&format!("LOST: {first}")), "{last}");
    let output = place.furrow(&["raid", "status", "a"]);
    let text = said(&output);
    assert!(!output.status.success() && !text.contains("no data is known to be lost"), "{text}");
    assert!(place.nbd().read(first * 4096, 4096).is_err());
    // The blocks are written again, so a rebuild has nothing left to do.
    for range in status["lost"].as_array().unwrap() {
        let first = range["first"].as_u64().unwrap();
        fill(&place, first, range["blocks"].as_u64().unwrap(), 2);
    }
    assert_eq!(place.status()["lost_blocks"], 0);
    place.ok(&["raid", "rebuild", "a", "--wait"]);
    place.ok(&["raid", "stop", "a", "--force"]);
}

/// The new drive fails during its rebuild. A command that waits for the rebuild says so, even if it
/// begins to wait later. A spare takes the drive's place and starts without the drive's errors; a
/// command that waited for the drive reports this, too.
#[test]
fn whoever_waits_for_a_drive_that_dies_is_told() {
    let place = Place::new("dies", 6);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &["--rebuild-pause", "30000"]);
    fill(&place, 0, 2500, 1);
    place.ok(&["raid", "fail", "a", "1"]);
    let replaced = |drive: &str| {
        place.ok(&["raid", "replace", "a", "1", &place.at(drive)]);
        let status = place.status();
        let rebuild = &status["rebuild"];
        assert!(rebuild["percent"].as_f64().unwrap() < 100.0, "{rebuild}");
        place.ok(&["raid", "fault", "a", "1", "add", "disappear"]);
        place.until("failed", |status| status["rebuild"].is_null());
    };
    replaced("d3.zns");
    for _ in 0..2 {
        let why = ["member 1 is failed", "not rebuilt"];
        place.refused(&["raid", "rebuild", "a", "--wait"], &why);
    }
    let status = place.status();
    assert_eq!(status["last_rebuild"]["ok"], false, "{status:#}");
    assert!(status["members"][1]["write_errors"].as_u64().unwrap() > 0);
    place.ok(&["raid", "rebuild", "a", "--pause", "0"]);
    place.ok(&["raid", "add-spare", "a", &place.at("d4.zns")]);
    place.ok(&["raid", "rebuild", "a", "--wait"]);
    let status = place.status();
    let member = &status["members"][1];
    assert_eq!((&member["state"], &member["write_errors"]), (&"online".into(), &0.into()));
    let of_old = |event: &Value| {
        event["event"] == "replaced" && event["text"].as_str().unwrap().contains("write")
    };
    assert!(status["events"].as_array().unwrap().iter().any(of_old), "{status:#}");
    place.ok(&["raid", "stop", "a", "--force"]);
}

/// Clients that are refused leave an event, a line in the log and a count, each with the reason; a
/// flood of them leaves only a few lines.
#[test]
fn clients_that_are_refused_are_reported() {
    let place = Place::new("refused", 2);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(place.at("server-cert.pem"), made.cert.pem()).unwrap();
    fs::write(place.at("server-key.pem"), made.signing_key.serialize_pem()).unwrap();
    place.create("5", &[0, 1]);
    let (certificates, metrics) = (place.at(""), place.at("page.prom"));
    let tls = ["--tls", "require", "--tls-certs", &certificates, "--metrics", &metrics];
    place.assemble(&[0, 1], &tls);
    for _ in 0..50 {
        assert!(Nbd::connect(UnixStream::connect(place.socket()).unwrap(), "a").is_err());
    }
    let is_told = |event: &&Value| event["event"] == "client-refused";
    let status = place.until("reported", |status| {
        let events = status["events"].as_array().unwrap();
        events.iter().filter(is_told).count() == 4
    });
    let events = status["events"].as_array().unwrap();
    let text = events.iter().find(is_told).unwrap()["text"].as_str().unwrap();
    assert!(text.contains("does not speak TLS"), "{text}");
    let lines = place.read("log").lines().filter(|line| line.contains("was refused")).count();
    assert_eq!(lines, 5);
    let counted = "furrow_nbd_refused_clients_total{array=\"a\",reason=\"plain-text\"} 50";
    let mut page = String::new();
    for _ in 0..600 {
        page = place.read("page.prom");
        if page.contains(counted) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(page.contains(counted), "{page}");
    place.ok(&["raid", "stop", "a", "--force"]);
}

/// A daemon that was started before an upgrade speaks an older protocol: every command says that
/// the daemon has to be restarted, and how.
#[test]
fn a_daemon_of_an_older_version_is_to_be_restarted() {
    let place = Place::new("older", 1);
    fs::create_dir_all(place.at("run")).unwrap();
    let uuid = "0f0f0f0f-1111-2222-3333-444444444444";
    fs::write(place.at(&format!("run/{uuid}.name")), "tank").unwrap();
    let listener = UnixListener::bind(place.at(&format!("run/{uuid}.control"))).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = BufReader::new(&stream).read_line(&mut String::new());
            let error = "not a request: unknown field `version`";
            let line = format!("{{\"version\":1,\"error\":\"{error}\",\"last\":false}}\n");
            let _ = stream.write_all(line.as_bytes());
        }
    });
    let process = std::process::id();
    let advice = format!("(kill {process}), then furrow raid assemble");
    let words = ["tank", "speaks version 1 of the control protocol", "restart it", &advice];
    place.refused(&["raid", "stop", "tank"], &words);
    place.refused(&["raid", "fail", &uuid[..8], "0"], &words);
    let output = place.furrow(&["raid", "status"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("OTHER VERSION") && words.iter().all(|it| text.contains(it)), "{text}");
}
