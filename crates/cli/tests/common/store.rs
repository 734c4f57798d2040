//! A folder with the drive of a file store, for tests of `furrow kv`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const DRIVE: &str = "zones=40,zone-size=1MiB,max-active=14";

/// A folder of a test, with a drive.
pub struct Place(pub PathBuf);

impl Place {
    pub fn new(name: &str) -> Place {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kv-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let place = Place(path);
        place.ok(&["device", "create", &place.at("d.zns"), "-o", DRIVE]);
        place
    }

    /// A place with a store on its drive.
    pub fn with_store(name: &str) -> Place {
        let place = Place::new(name);
        place.ok(&["kv", "mkfs", &place.drive(), "--label", "db"]);
        place
    }

    pub fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub fn drive(&self) -> String {
        self.at("d.zns")
    }

    pub fn furrow(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_furrow"));
        command.args(arguments).env("FURROW_RUN", self.0.join("run")).output().unwrap()
    }

    pub fn ok(&self, arguments: &[&str]) -> String {
        let out = self.furrow(arguments);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{arguments:?}: {said}");
        String::from_utf8(out.stdout).unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ok(&[arguments, &["--json"]].concat());
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["version"], 1, "{arguments:?}");
        json
    }

    /// Runs a command that must fail with `status`, in one line that contains these words.
    pub fn refused(&self, arguments: &[&str], status: i32, words: &[&str]) -> String {
        let out = self.furrow(arguments);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(status), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{arguments:?}: no '{word}' in: {said}");
        }
        said
    }

    /// Makes a file of `bytes` pseudo-random bytes, and returns them.
    pub fn file(&self, name: &str, bytes: usize) -> Vec<u8> {
        let mut state = 88_172_645_463_325_252u64.wrapping_add(bytes as u64);
        let next = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        let content: Vec<u8> = next.take(bytes).collect();
        fs::create_dir_all(self.0.join(name).parent().unwrap()).unwrap();
        fs::write(self.0.join(name), &content).unwrap();
        content
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
