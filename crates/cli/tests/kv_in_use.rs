//! `furrow kv` for a store that a program uses: the command reads through that program, and no
//! other program can change the store.
//!
//! The program is this test program, started again: it opens the store by the library for C, and
//! carries out orders from its input.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unsafe_code, reason = "an interface for C takes pointers")]

use crate::store::Place;
use furrow::file::{
    furrow_file, furrow_file_append, furrow_file_close, furrow_file_sync, furrow_file_truncate,
};
use furrow::store::{furrow_create, furrow_remove, furrow_store_close, furrow_store_open};
use serde_json::{Value, json};
use std::ffi::CString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::{null, null_mut};

/// The environment variable that names the drive to the program.
const DRIVE: &str = "FURROW_TEST_STORE";

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    next.take(len).collect()
}

/// A program that uses a store. Without a drive in the environment, this test starts itself again
/// as that program. The program reads orders, and answers each: `append PATH SEED BYTES`, which
/// makes a new file and leaves it open, `sync PATH`, `cut PATH BYTES`, `remove PATH`. It ends when
/// its input ends.
#[test]
fn a_program_that_uses_a_store() {
    let Some(drive) = std::env::var_os(DRIVE) else {
        let place = Place::with_store("in-use-program");
        let mut program = Program::start(&place);
        program.does("append a 1 5000");
        program.does("sync a");
        program.ends();
        let out = place.furrow(&["kv", "get", &place.drive(), "a", "-"]);
        assert!(out.status.success() && out.stdout == bytes(1, 5000));
        return;
    };
    let drive = CString::new(drive.into_encoded_bytes()).unwrap();
    let (mut store, mut files) = (null_mut(), Vec::<(String, *mut furrow_file)>::new());
    // SAFETY: strings end with zeros, there is a place for the answer, and handles are not used
    // after they are closed.
    unsafe {
        assert_eq!(furrow_store_open(drive.as_ptr(), null(), &raw mut store, null_mut()), 0);
        println!("open");
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            let path = CString::new(words[1]).unwrap();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            let known = files.iter().find(|(name, _)| name == words[1]).map(|(_, file)| *file);
            let mut file = known.unwrap_or(null_mut());
            let done = match words[0] {
                "append" => {
                    if known.is_none() {
                        let error = null_mut();
                        assert_eq!(furrow_create(store, path.as_ptr(), 3, &raw mut file, error), 0);
                        files.push((words[1].to_owned(), file));
                    }
                    let bytes = bytes(number(2), number(3) as usize);
                    furrow_file_append(file, bytes.as_ptr().cast(), bytes.len(), null_mut())
                }
                "sync" => furrow_file_sync(file, null_mut()),
                "cut" => furrow_file_truncate(file, number(2), null_mut()),
                "remove" => {
                    files.retain(|(name, _)| name != words[1]);
                    assert_eq!(furrow_file_close(file, null_mut()), 0);
                    furrow_remove(store, path.as_ptr(), null_mut())
                }
                other => panic!("{other}"),
            };
            assert_eq!(done, 0, "{line}");
            println!("done");
        }
        for (_, file) in files {
            assert_eq!(furrow_file_close(file, null_mut()), 0);
        }
        assert_eq!(furrow_store_close(store, null_mut()), 0);
    }
}

/// A running program that uses the store of a place.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(place: &Place) -> Program {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("kv_in_use::a_program_that_uses_a_store")
            .env("FURROW_RUN", place.0.join("run"))
            .env(DRIVE, place.drive())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { input: child.stdin.take(), child, output };
        program.answers("open");
        program
    }

    fn answers(&mut self, word: &str) {
        let mut line = String::new();
        // The test harness also prints lines, and may print on the line of the first answer.
        while !line.trim_end().ends_with(word) {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it has ended");
        }
    }

    fn does(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        self.answers("done");
    }

    fn id(&self) -> String {
        self.child.id().to_string()
    }

    fn ends(mut self) {
        drop(self.input.take());
        let _ = self.output.read_to_end(&mut Vec::new());
        assert!(self.child.wait().unwrap().success());
    }
}

fn socket(place: &Place) -> PathBuf {
    let mut found = fs::read_dir(place.0.join("run")).unwrap();
    found.next().unwrap().unwrap().path()
}

#[test]
fn a_store_in_use_is_read_through_its_program_and_changed_by_nobody_else() {
    let place = Place::with_store("in-use");
    let d = place.drive();
    place.ok(&["kv", "mkdir", &d, "db/old", "-p"]);
    let mut program = Program::start(&place);
    program.does("append db/1.sst 1 2000000");
    program.does("sync db/1.sst");
    // These bytes are not synced, and the file is not closed.
    program.does("append db/2.log 2 70001");
    assert_eq!(place.ok(&["kv", "ls", "-R", &d]), "db/\ndb/1.sst\ndb/2.log\ndb/old/\n");
    let long = place.ok(&["kv", "ls", "-l", &d, "/db"]);
    let line = long.lines().find(|line| line.ends_with("2.log")).unwrap();
    assert!(line.contains("70001") && line.contains("medium"), "{long}");
    let entries = place.json(&["kv", "ls", &d, "db/1.sst"]);
    assert_eq!(
        (&entries["entries"][0]["bytes"], &entries["entries"][0]["names"]),
        (&2_000_000.into(), &1.into())
    );
    let out = place.furrow(&["kv", "get", &d, "db/2.log", "-"]);
    assert!(out.status.success() && out.stdout == bytes(2, 70_001));
    place.refused(&["kv", "get", &d, "db", "-"], 1, &["db: a directory"]);
    place.refused(&["kv", "ls", &d, "nosuch"], 1, &["nosuch: no such file"]);
    place.refused(&["kv", "ls", &d, "../x"], 1, &["leads out of the store"]);
    let said = place.ok(&["kv", "backup", &d, &place.at("copy")]);
    let words = format!("2 files, 2 directories, 1.97 MiB, as process {}", program.id());
    assert!(said.contains(&words), "{said}");
    assert!(fs::read(place.at("copy/db/1.sst")).unwrap() == bytes(1, 2_000_000));
    assert!(fs::read(place.at("copy/db/2.log")).unwrap() == bytes(2, 70_001));
    let json = place.json(&["kv", "backup", &d, &place.at("copy2"), "db/1.sst"]);
    assert_eq!((&json["process"], &json["files"]), (&program.child.id().into(), &1.into()));

    let df = place.json(&["kv", "df", &d]);
    assert_eq!(df["kinds"][1]["bytes"], 2_000_000);
    let map = place.json(&["kv", "map", &d]);
    let of = |kind: &str| {
        let zones = map["zones"].as_array().unwrap().iter();
        zones.filter_map(|zone| zone["kinds"][kind].as_u64()).sum::<u64>()
    };
    assert_eq!(
        (of("sst") * 4096, &map["total"]),
        (df["kinds"][1]["disk_bytes"].as_u64().unwrap(), &40.into())
    );
    assert!(place.ok(&["kv", "map", &d]).contains("in zones  alone in"));

    let said = place.ok(&["kv", "fsck", &d]);
    assert!(
        said.contains("clean: ") && said.contains(&format!("in use by process {}", program.id())),
        "{said}"
    );
    assert_eq!(place.json(&["kv", "fsck", &d])["process"], program.child.id());
    place.refused(&["kv", "fsck", "--repair", &d], 8, &["--repair", &program.id(), "end it first"]);
    place.refused(&["kv", "fsck", "--metadata-only", &d], 8, &["end it first"]);

    // No command that would change the store succeeds.
    place.file("a", 10);
    let id = program.id();
    for change in [
        &["put", &d, &place.at("a"), "a"][..],
        &["restore", &place.at("copy"), &d],
        &["rm", &d, "db/1.sst"],
        &["mv", &d, "db/1.sst", "x"],
        &["ln", &d, "db/1.sst", "x"],
        &["mkdir", &d, "x"],
        &["rmdir", &d, "db/old"],
        &["mkfs", "-f", &d],
    ] {
        place.refused(&[&["kv"], change].concat(), 1, &["another program uses the store", &id]);
    }

    // The check finds a damaged block, and the other files can be backed up.
    let image = fs::read(&d).unwrap();
    let block = &bytes(1, 2_000_000)[4096 * 30..4096 * 31];
    let at = image.chunks_exact(4096).position(|found| found == block).unwrap() as u64;
    let file = fs::OpenOptions::new().write(true).open(&d).unwrap();
    file.write_all_at(&[block[9] ^ 1], at * 4096 + 9).unwrap();
    let out = place.furrow(&["kv", "fsck", &d]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(4), "{text}");
    assert!(
        text.contains("db/1.sst: bytes 122880 to 126975") && text.contains("1 ERROR"),
        "{text}"
    );
    place.refused(&["kv", "get", &d, "db/1.sst", &place.at("bad")], 1, &["db/1.sst: block 30 "]);
    let out = place.furrow(&["kv", "backup", "-k", &d, &place.at("copy3")]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("left out: db/1.sst: block 30 "), "{text}");
    assert!(place.0.join("copy3/db/2.log").exists() && !place.0.join("copy3/db/1.sst").exists());
    program.ends();
    assert_eq!(place.ok(&["kv", "ls", &d, "db"]), "1.sst\n2.log\nold/\n");
}

/// A connection that reads a frozen view of a store.
struct Client(BufReader<UnixStream>);

impl Client {
    fn asks(&mut self, request: &Value) -> Value {
        self.0.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn begins(socket: &Path) -> (Client, Value) {
        let mut client = Client(BufReader::new(UnixStream::connect(socket).unwrap()));
        let view = client.asks(&json!({ "version": 2, "request": "freeze" }));
        (client, view)
    }

    fn reads(&mut self, file: u64, offset: u64, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < len {
            let (at, left) = (offset + all.len() as u64, len - all.len());
            let request = json!({
                "version": 2, "request": "read", "file": file, "offset": at, "bytes": left,
            });
            let answer = self.asks(&request);
            let mut piece = vec![0; answer["ok"]["bytes"].as_u64().unwrap() as usize];
            assert!(!piece.is_empty());
            self.0.read_exact(&mut piece).unwrap();
            all.extend(piece);
        }
        all
    }
}

#[test]
fn a_view_of_a_store_in_use_is_of_one_moment() {
    let place = Place::with_store("view");
    place.ok(&["kv", "mkdir", &place.drive(), "db"]);
    let mut program = Program::start(&place);
    program.does("append db/1.sst 1 3000000");
    program.does("append db/2.log 2 50000");
    let socket = socket(&place);
    let (mut client, view) = Client::begins(&socket);
    let entries = view["ok"]["entries"].as_array().unwrap();
    let id = |path: &str| {
        let entry = entries.iter().find(|entry| entry["path"] == path).unwrap();
        entry["file"].as_u64().unwrap()
    };
    let (table, log) = (id("db/1.sst"), id("db/2.log"));
    let front = client.reads(table, 0, 1_000_000);
    // The program keeps changing its files.
    program.does("remove db/1.sst");
    program.does("cut db/2.log 100");
    program.does("append db/2.log 3 90000");
    program.does("append db/3.sst 4 3000000");
    program.does("sync db/3.sst");
    let rest = client.reads(table, 1_000_000, 2_000_000);
    assert!([front, rest].concat() == bytes(1, 3_000_000));
    assert!(client.reads(log, 0, 50_000) == bytes(2, 50_000));
    let read = |file: u64, offset: u64| {
        json!({
            "version": 2, "request": "read", "file": file, "offset": offset, "bytes": 1,
        })
    };
    assert_eq!(client.asks(&read(log, 50_000))["ok"]["bytes"], 0);
    assert!(client.asks(&read(999, 0))["error"].is_string());
    // A line that is not a request ends the connection, and so its view.
    for wrong in [
        json!({ "version": 2, "request": "read", "file": log }),
        json!({ "version": 2, "request": "write" }),
        json!({ "request": "stat" }),
    ] {
        let (mut other, _) = Client::begins(&socket);
        assert!(other.asks(&wrong)["error"].as_str().unwrap().contains("not a request"), "{wrong}");
    }
    // Meanwhile other clients are served, up to a limit, and see the present state of the store.
    assert_eq!(place.ok(&["kv", "ls", &place.drive(), "db"]), "2.log\n3.sst\n");
    // The program notices only later that the command above has ended.
    let begun = std::time::Instant::now();
    let begin = |_| loop {
        let client = Client::begins(&socket);
        if client.1["ok"].is_object() {
            break client;
        }
        assert!(begun.elapsed().as_secs() < 60, "{}", client.1);
    };
    let more: Vec<_> = (0..3).map(begin).collect();
    place.refused(&["kv", "ls", &place.drive()], 1, &["clients read the store already"]);
    assert_eq!(place.json(&["kv", "stat", &place.drive()])["running"], true);
    drop((client, more));
    // Space that only a view kept in use is free again.
    let begun = std::time::Instant::now();
    while place.json(&["kv", "df", &place.drive()])["kinds"][1]["bytes"] != 3_000_000 {
        assert!(begun.elapsed().as_secs() < 60, "the view keeps a file");
    }
    // A client that reads nothing does not keep the store from closing.
    let idle = Client::begins(&socket);
    program.ends();
    drop(idle);
    assert!(place.ok(&["kv", "fsck", &place.drive()]).contains("clean: 2 files"));
}

#[test]
fn a_program_of_an_older_version_is_to_be_restarted() {
    let place = Place::with_store("older");
    let program = Program::start(&place);
    let socket = socket(&place);
    fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = BufReader::new(&stream).read_line(&mut String::new());
            let _ = stream.write_all(b"{\"version\":1,\"error\":\"not a request\"}\n");
        }
    });
    for command in ["stat", "ls"] {
        let words = ["speaks version 1 of the control protocol", "restart it"];
        place.refused(&["kv", command, &place.drive()], 1, &words);
    }
    for order in ["--status", "--pause", "--stop"] {
        place.refused(&["scrub", order, &place.drive()], 1, &["could not be asked", "restart it"]);
    }
    program.ends();
}
