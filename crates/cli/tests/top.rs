//! The live views: `furrow top`, `furrow raid status --every`, `furrow df` of all mounts, and
//! messages of long commands.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/array.rs"]
mod array;
#[path = "common/place.rs"]
mod place;

use array::{block, fill};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Held by tests that look at all mounts and kill the daemons of some.
static MOUNTS: Mutex<()> = Mutex::new(());

/// A command that runs until the test drops it.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str], run: &str) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_furrow"));
        command.args(arguments).env("FURROW_RUN", run);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().unwrap())
    }

    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        BufReader::new(self.0.stdout.take().unwrap()).lines().map(Result::unwrap)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A thread that repeats an action until it is stopped.
struct Busy(Arc<AtomicBool>, Option<thread::JoinHandle<()>>);

impl Busy {
    fn start(mut work: impl FnMut(u64) + Send + 'static) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = thread::spawn(move || {
            for round in 0.. {
                if told.load(Ordering::Relaxed) {
                    return;
                }
                work(round);
            }
        });
        Busy(stop, Some(thread))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().unwrap().join();
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn top_shows_what_an_array_does_while_it_does_it() {
    let place = array::Place::new("top", 4);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &[]);
    let mut nbd = place.nbd();
    let busy = Busy::start(move |round| {
        for number in 0..64 {
            nbd.write(number * 4096, &block(number, round + 1)).unwrap();
            nbd.read(number * 4096, 4096).unwrap();
        }
    });
    let once = ["top", "--once", "--every", "0.5", "a"];
    let text = place.ok(&once);
    for word in ["array", "ONLINE", "/s", "member", "d2.zns", "sealed", "stripe wait"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json: Value = serde_json::from_str(&place.ok(&[&once[..], &["--json"]].concat())).unwrap();
    assert_eq!(json["version"], 2);
    let seconds = number(&json["seconds"]);
    assert!((0.4..30.0).contains(&seconds), "{seconds}");
    let of_array = &json["arrays"][0];
    assert!(number(&of_array["written_bytes_per_second"]) > 4096.0, "{of_array:#}");
    assert!(number(&of_array["read_bytes_per_second"]) > 4096.0, "{of_array:#}");
    for kind in ["read", "write"] {
        let requests = &of_array["requests"][kind];
        assert!(number(&requests["per_second"]) > 1.0, "{of_array:#}");
        assert!(number(&requests["mean_ns"]) > 0.0, "{of_array:#}");
    }
    let segments = of_array["segments"].as_object().unwrap();
    // A segment is one zone of each drive; two zones of 24 hold the array's state.
    assert_eq!(segments.values().map(number).sum::<f64>(), 22.0, "{segments:#?}");
    assert_eq!(of_array["members"].as_array().unwrap().len(), 3);
    assert_eq!(json["mounts"].as_array().unwrap().len(), 0, "only the array was named");
    drop(busy);
    // Without activity, the rates are 0: they cover the interval, not the whole time since the
    // start.
    let json: Value = serde_json::from_str(&place.ok(&[&once[..], &["--json"]].concat())).unwrap();
    assert_eq!(number(&json["arrays"][0]["written_bytes_per_second"]), 0.0, "{json:#}");
    // Frames follow each other while a member fails and returns.
    let run = place.at("run");
    let mut top = Running::start(&["top", "--json", "-i", "0.1"], &run);
    let mut frames = top.lines();
    let state = |line: String| -> String {
        let json: Value = serde_json::from_str(&line).unwrap();
        json["arrays"][0]["members"][1]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state(frames.next().unwrap()), "online");
    place.ok(&["raid", "fail", "a", "1"]);
    assert!(frames.take(100).any(|line| state(line) == "failed"));
    place.refused(&["top", "--once", "nosuch"], &["nosuch"]);
    place.refused(&["top", "--every", "0"], &["0.1", "furrow top --help"]);
    // A directory that is not a mount causes an error, and no other message.
    let run = place.at("run");
    place.refused(&["top", "--once", &run], &["not the root of a mounted Furrow file system"]);
}

#[test]
fn status_is_watched() {
    let place = array::Place::new("watch", 3);
    place.create("5", &[0, 1, 2]);
    place.assemble(&[0, 1, 2], &[]);
    fill(&place, 0, 16, 1);
    let run = place.at("run");
    let watch = ["raid", "status", "a", "--every", "0.1"];
    let mut watched = Running::start(&watch, &run);
    let mut lines = watched.lines();
    assert!(lines.by_ref().take(100).any(|line| line.ends_with("state: ONLINE")));
    place.ok(&["raid", "fail", "a", "2"]);
    assert!(lines.take(10_000).any(|line| line.ends_with("state: DEGRADED")));
    let mut watched = Running::start(&[&watch[..], &["--json"]].concat(), &run);
    for line in watched.lines().take(2) {
        let document: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(document["arrays"][0]["array"], "a");
    }
    // Earlier versions wrote the options this way.
    let mut watched = Running::start(&["raid", "status", "-w", "-i", "0.1", "--json"], &run);
    assert_eq!(watched.lines().take(2).count(), 2);
    place.refused(&["raid", "status", "--every", "0"], &["0.1"]);
}

#[test]
fn top_and_df_show_all_mounts() {
    if place::skip("top_and_df_show_all_mounts") {
        return;
    }
    let _alone = MOUNTS.lock();
    let (one, other) = (place::Place::new("top-one"), place::Place::new("top-other"));
    one.mount();
    other.mount();
    let run = one.0.join("run").to_str().unwrap().to_owned();
    let document = |arguments: &[&str]| -> Value {
        let mut furrow = Running::start(arguments, &run);
        let mut text = String::new();
        furrow.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let (here, there) = (one.dir(), other.dir());
    let of = |document: &Value, directory: &str| -> Value {
        let mounts = document["mounts"].as_array().unwrap();
        let found = mounts.iter().find(|mount| mount["directory"] == directory);
        found.unwrap_or_else(|| panic!("{directory}: {document:#}")).clone()
    };
    let all = document(&["df", "--json"]);
    assert_eq!(all["version"], 2);
    assert_eq!(of(&all, &here)["label"], "test");
    assert_eq!(of(&all, &there)["device"], other.image());
    let out = place::furrow(&["df"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.starts_with("device") && text.contains(&here) && text.contains(&there), "{text}");
    // One of the mounts is busy.
    let file: PathBuf = one.file("busy");
    let busy = Busy::start(move |_| {
        let content = fs::File::create(&file).unwrap();
        std::io::Write::write_all(&mut &content, &[7; 256 << 10]).unwrap();
        content.sync_all().unwrap();
    });
    let frame = document(&["top", "--once", "--json", "--every", "0.5"]);
    drop(busy);
    let (mine, theirs) = (of(&frame, &here), of(&frame, &there));
    assert!(number(&mine["user_bytes_per_second"]) > 4096.0, "{mine:#}");
    assert!(number(&mine["requests"]["fsync"]["per_second"]) > 0.0, "{mine:#}");
    assert!(number(&mine["requests"]["fsync"]["mean_ns"]) > 0.0, "{mine:#}");
    assert_eq!(number(&theirs["user_bytes_per_second"]), 0.0, "{theirs:#}");
    let states = ["empty", "open", "partial", "full", "retired"];
    let zones: f64 = states.iter().map(|state| number(&mine["zones"][state])).sum();
    assert_eq!(zones, 64.0, "every zone is in one state: {mine:#}");
    let text = place::furrow(&["top", "--once", "--every", "0.1", &here]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("zones active") && text.contains("write time"), "{text}");
    assert!(!text.contains(&there), "only one was named: {text}");
    // A mount whose daemon died is reported, and the others are shown.
    place::kill(other.pid(), rustix::process::Signal::KILL);
    place::wait_until("the mount dies", || place::said(&place::furrow(&["df"])).contains("dead"));
    let out = place::furrow(&["df"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stdout).contains(&here));
}

/// One command scrubs all running arrays and mounts and names their damage. If it cannot scrub one
/// of them, it continues with the others.
#[test]
fn a_scrub_of_all_reads_arrays_and_mounts() {
    if place::skip("a_scrub_of_all_reads_arrays_and_mounts") {
        return;
    }
    let _alone = MOUNTS.lock();
    let arrays = array::Place::new("all", 3);
    arrays.create("5", &[0, 1, 2]);
    arrays.assemble(&[0, 1, 2], &[]);
    fill(&arrays, 0, 64, 1);
    let mount = place::Place::new("all");
    mount.mount();
    fs::write(mount.file("file"), vec![0xa5; 30_000]).unwrap();
    assert!(place::furrow(&["sync", &mount.dir()]).status.success());
    let all = || {
        let out = arrays.furrow(&["scrub", "--all"]);
        let text = String::from_utf8(out.stdout.clone()).unwrap();
        let of_mount = format!("{}: ", mount.dir());
        let line = text.lines().rfind(|line| line.starts_with(&of_mount)).unwrap_or_default();
        (out.status.code(), text.clone(), line.to_owned(), place::said(&out))
    };
    let (status, text, line, said) = all();
    let array = text.lines().next().unwrap();
    assert!(array.starts_with("a: ") && array.ends_with("nothing damaged"), "{text}{said}");
    assert!(line.ends_with("nothing damaged"), "{text}{said}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().filter(|mount| mount.contains(" fuse.furrow")).count();
    // Mounts of other tests may be damaged, or disappear in the meantime.
    assert!(mounts > 1 || status == Some(0), "{text}{said}");
    // Flips one bit in the image.
    let content = fs::read(mount.image()).unwrap();
    let at = content.chunks_exact(4096).position(|block| block == [0xa5; 4096]).unwrap();
    let file = fs::OpenOptions::new().write(true).open(mount.image()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa4], at as u64 * 4096 + 7).unwrap();
    arrays.kill();
    let (status, text, line, said) = all();
    assert_eq!(status, Some(1), "{text}{said}");
    assert!(line.ends_with("1 DAMAGED") && text.contains("/mnt/file: "), "{text}{said}");
    assert!(said.contains("its daemon has died without a stop"), "{said}");
    arrays.refused(&["scrub", "--all", &mount.dir()], &["cannot be used with"]);
    // On a read-only mount, the scrub still finds damage.
    assert!(place::furrow(&["umount", &mount.dir()]).status.success());
    mount.mount_with("ro");
    let out = arrays.furrow(&["scrub", "--all", "--repair"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("/mnt/file: ") && out.status.code() == Some(1), "{text}");
}
