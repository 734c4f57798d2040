//! An image, a directory to mount it on, and the command.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// True if mounts cannot be tested and the environment allows skipping.
pub fn skip(test: &str) -> bool {
    let usable = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !usable && std::env::var("FURROW_WITHOUT_FUSE").is_ok_and(|v| v == "1") {
        eprintln!("SKIPPED {test}: no /dev/fuse or not root, and FURROW_WITHOUT_FUSE=1");
        return true;
    }
    assert!(usable, "{test} needs /dev/fuse and root; FURROW_WITHOUT_FUSE=1 skips it");
    false
}

/// An image with a file system on it, and a directory to mount it on.
pub struct Place(pub PathBuf);

impl Place {
    pub fn empty(name: &str) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("furrow-cli-{name}-{}-{next}", std::process::id()));
        fs::create_dir_all(path.join("mnt")).unwrap();
        Place(path)
    }

    pub fn new(name: &str) -> Place {
        let place = Place::empty(name);
        // The drive is made by the command, because processes that other tests start would inherit
        // a lock taken in this process.
        let drive = ["device", "create", &place.image(), "-o", "capacity=256MiB,zone-size=4MiB"];
        assert!(furrow(&drive).status.success());
        let made = furrow(&["mkfs", "-L", "test", &place.image()]);
        assert!(made.status.success(), "{}", said(&made));
        place
    }

    pub fn image(&self) -> String {
        self.0.join("disk.zns").to_str().unwrap().to_owned()
    }

    pub fn dir(&self) -> String {
        self.0.join("mnt").to_str().unwrap().to_owned()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join("mnt").join(name)
    }

    pub fn log(&self) -> String {
        self.0.join("log").to_str().unwrap().to_owned()
    }

    pub fn mount(&self) {
        self.mount_with("rw");
    }

    pub fn mount_with(&self, options: &str) {
        let (image, dir, log) = (self.image(), self.dir(), self.log());
        let out = furrow(&["mount", &image, &dir, "--log", &log, "-o", options]);
        assert!(out.status.success(), "{}", said(&out));
    }

    /// Simulates a crash: kills the daemon, and removes the dead mount.
    pub fn kill(&self) {
        kill(self.pid(), rustix::process::Signal::KILL);
        wait_until("the mount dies", || said(&furrow(&["df", &self.dir()])).contains("dead"));
        assert!(furrow(&["umount", &self.dir()]).status.success());
    }

    pub fn pid(&self) -> u32 {
        let out = furrow(&["df", "--json", &self.dir()]);
        assert!(out.status.success(), "{}", said(&out));
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(json["version"], 2);
        json["pid"].as_u64().unwrap() as u32
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = furrow(&["umount", "-l", &self.dir()]);
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn furrow(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_furrow")).args(arguments).output().unwrap()
}

pub fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Runs the command, which must fail with `status` and one line that contains `text`.
pub fn refused(arguments: &[&str], status: i32, text: &str) {
    let out = furrow(arguments);
    let said = said(&out);
    assert_eq!(out.status.code(), Some(status), "{arguments:?}: {said}");
    assert!(said.contains(text), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    assert!(said.starts_with("furrow: "), "{said}");
}

pub fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn is_mounted(directory: &str) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {directory} "))
}
