//! Shared by tests of the command.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the command with `args` until it ends.
pub fn furrow(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_furrow")).args(args).output().unwrap()
}

/// An empty file system on an image called `name`, with a label.
pub fn image(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    let at = path.to_str().unwrap();
    let drive = ["device", "create", at, "-o", "zones=32,zone-size=1MiB,max-active=14"];
    assert!(furrow(&drive).status.success());
    assert!(furrow(&["mkfs", "-L", "shown", at]).status.success());
    path
}
