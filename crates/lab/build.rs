//! Tells the laboratory which commit it was built from: the cache keeps results by commit.
//!
//! `FURROW_COMMIT` is empty where there is no repository (a source archive); `FURROW_CHANGED` is
//! `1` if the source differs from the commit.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "runs while building")]

use std::process::Command;

/// Sources on which a result depends, relative to the root of the tree.
const SOURCES: [&str; 3] = ["crates", "Cargo.toml", "Cargo.lock"];

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir("../..").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let changes = git(&[&status[..], &SOURCES[..]].concat());
    let changed = changes.is_none_or(|changes| !changes.is_empty());
    println!("cargo::rustc-env=FURROW_COMMIT={commit}");
    println!("cargo::rustc-env=FURROW_CHANGED={}", u8::from(changed));
    for source in SOURCES {
        println!("cargo::rerun-if-changed=../../{source}");
    }
    // Git logs every commit and checkout in this file.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
}
