//! Shared by tests of arrays: a place with drives and daemons, and an NBD client.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "no test uses all of it")]

use serde_json::Value;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Options of the drives: small, and quick to rebuild.
pub const DRIVE: &str = "zones=24,zone-size=2MiB,oob=64,max-active=14,max-open=14";
const PATIENCE: Duration = Duration::from_secs(60);

/// Drives and daemons of a test. At its end, daemons that still run are killed.
pub struct Place(PathBuf);

impl Place {
    /// A folder with `count` drives, called d0.zns and so on.
    pub fn new(name: &str, count: usize) -> Place {
        let place = Place::empty(name);
        for index in 0..count {
            place.drive(&format!("d{index}.zns"), DRIVE);
        }
        place
    }

    pub fn empty(name: &str) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("furrow-raid-{name}-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(path);
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    /// Makes a drive.
    pub fn drive(&self, name: &str, options: &str) {
        self.ok(&["device", "create", &self.at(name), "-o", options]);
    }

    pub fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// The paths of the drives with these numbers.
    pub fn drives(&self, numbers: &[usize]) -> Vec<String> {
        numbers.iter().map(|number| self.at(&format!("d{number}.zns"))).collect()
    }

    pub fn furrow(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_furrow"))
            .args(arguments)
            .env("FURROW_RUN", self.0.join("run"))
            .output()
            .unwrap()
    }

    /// Runs a command that must succeed, and returns what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.furrow(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must be refused with one line, which contains all `words`.
    pub fn refused(&self, arguments: &[&str], words: &[&str]) {
        let output = self.furrow(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?} was not refused: {}", said(&output));
        // Commands that wait print their progress before the error.
        let lines = error.lines().filter(|line| !line.starts_with('[')).count();
        assert_eq!(lines, 1, "one line: {error}");
        for word in words {
            assert!(error.contains(word), "{arguments:?}: no '{word}' in: {error}");
        }
    }

    /// Makes an array called `a` from the drives with these numbers.
    pub fn create(&self, level: &str, numbers: &[usize]) {
        let drives = self.drives(numbers);
        let mut words = vec!["raid", "create", "--level", level, "--name", "a"];
        words.extend(drives.iter().map(String::as_str));
        self.ok(&words);
    }

    /// The arguments that assemble these drives.
    pub fn assembly(&self, numbers: &[usize], more: &[&str]) -> Vec<String> {
        let log = self.at("log");
        let mut words: Vec<String> = ["raid", "assemble", "--log", &log].map(str::to_owned).into();
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words.extend(self.drives(numbers));
        words
    }

    /// Assembles the array from the drives with these numbers.
    pub fn assemble(&self, numbers: &[usize], more: &[&str]) {
        let words = self.assembly(numbers, more);
        self.ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// The output of `furrow raid status --json` for the array `a`.
    pub fn status(&self) -> Value {
        let output = self.furrow(&["raid", "status", "a", "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
        assert_eq!(document["version"], 2);
        document["arrays"][0].clone()
    }

    /// Waits until the status satisfies `wanted`.
    pub fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "still not {what}: {status:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("run/a.nbd")
    }

    pub fn control(&self) -> PathBuf {
        let uuid = self.status()["uuid"].as_str().unwrap().to_owned();
        self.0.join(format!("run/{uuid}.control"))
    }

    pub fn nbd(&self) -> Nbd {
        Nbd::connect(UnixStream::connect(self.socket()).unwrap(), "a").unwrap()
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&self) {
        kill(self.status()["pid"].as_u64().unwrap());
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let output = self.furrow(&["raid", "status", "--json"]);
        if let Ok(document) = serde_json::from_slice::<Value>(&output.stdout) {
            for array in document["arrays"].as_array().into_iter().flatten() {
                kill(array["pid"].as_u64().unwrap_or(0));
            }
        }
        if std::thread::panicking() {
            eprintln!("the daemon said:\n{}", self.read("log"));
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

fn kill(pid: u64) {
    let Some(pid) = rustix::process::Pid::from_raw(pid as i32) else { return };
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    // The killed process may hold its locks for a moment longer; opening its drives waits for
    // these locks.
}

pub fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    format!("{}: {}", output.status, String::from_utf8_lossy(&text))
}

/// An NBD client with simple replies, over a Unix socket by default.
pub struct Nbd<S = UnixStream> {
    stream: S,
    pub size: u64,
    cookie: u64,
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

impl<S: Read + Write> Nbd<S> {
    pub fn connect(mut stream: S, export: &str) -> io::Result<Nbd<S>> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut hello = vec![0, 0, 0, 3];
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1u32.to_be_bytes());
        hello.extend_from_slice(&(export.len() as u32).to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        stream.write_all(&hello)?;
        let mut about = [0; 10];
        stream.read_exact(&mut about)?;
        let size = u64::from_be_bytes(about[..8].try_into().unwrap());
        Ok(Nbd { stream, size, cookie: 0 })
    }

    /// Sends a request; returns its cookie.
    pub fn send(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<u64> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend_from_slice(&0x2560_9513_u32.to_be_bytes());
        request.extend_from_slice(&0u16.to_be_bytes());
        request.extend_from_slice(&kind.to_be_bytes());
        request.extend_from_slice(&self.cookie.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request)?;
        Ok(self.cookie)
    }

    /// The next reply: error and cookie.
    pub fn reply(&mut self) -> io::Result<(u32, u64)> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
        Ok((error, u64::from_be_bytes(reply[8..].try_into().unwrap())))
    }

    fn done(&mut self) -> io::Result<()> {
        match self.reply()?.0 {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }

    pub fn send_write(&mut self, offset: u64, data: &[u8]) -> io::Result<u64> {
        self.send(WRITE, offset, data.len() as u32, data)
    }

    pub fn send_flush(&mut self) -> io::Result<u64> {
        self.send(FLUSH, 0, 0, &[])
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.send_write(offset, data)?;
        self.done()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.send_flush()?;
        self.done()
    }

    pub fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.send(READ, offset, length as u32, &[])?;
        self.done()?;
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }
}

/// Bytes that are unique to this block and version.
pub fn block(number: u64, version: u64) -> Vec<u8> {
    let mut state = (number << 32 ^ version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(4096);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&version.to_le_bytes());
    while bytes.len() < 4096 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// The version of a block, 0 if it was never written.
pub fn version(number: u64, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(word(0), number, "block {number} holds another's content");
    assert_eq!(bytes, &block(number, word(8))[..], "block {number} is damaged");
    word(8)
}

/// Writes blocks `first..first + count` in version `version`.
pub fn fill(place: &Place, first: u64, count: u64, version: u64) {
    let mut nbd = place.nbd();
    for number in first..first + count {
        nbd.write(number * 4096, &block(number, version)).unwrap();
    }
    nbd.flush().unwrap();
}

/// Checks that blocks `first..first + count` hold version `expected`.
pub fn check(place: &Place, first: u64, count: u64, expected: u64) {
    let mut nbd = place.nbd();
    for number in first..first + count {
        let bytes = nbd.read(number * 4096, 4096).unwrap();
        assert_eq!(version(number, &bytes), expected, "block {number}");
    }
}

/// The members' states, in order.
pub fn states(status: &Value) -> Vec<String> {
    let members = status["members"].as_array().unwrap();
    members.iter().map(|member| member["state"].as_str().unwrap().to_owned()).collect()
}
