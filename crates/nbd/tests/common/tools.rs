//! Stock NBD clients and their input.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::path::Path;
use std::process::Command;

/// Runs a tool, which must succeed. `None` if tools are skipped.
pub fn run(tool: &str, arguments: &[&str]) -> Option<String> {
    let (success, said) = attempt(tool, arguments)?;
    assert!(success, "{tool} {arguments:?}:\n{said}");
    Some(said)
}

/// Runs a tool; returns whether it succeeded, and its output.
pub fn attempt(tool: &str, arguments: &[&str]) -> Option<(bool, String)> {
    if std::env::var_os("FURROW_WITHOUT_NBD_CLIENTS").is_some() {
        println!("{tool}: skipped, FURROW_WITHOUT_NBD_CLIENTS is set");
        return None;
    }
    // nbdsh needs the system's Python, whatever comes first in PATH.
    let path = format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("timeout");
    command.arg("60").arg(tool).args(arguments).env("PATH", path);
    let output = command.output().expect("timeout is part of every system");
    assert_ne!(
        output.status.code(),
        Some(127),
        "{tool} is missing: run 'scripts/setup.sh test', or set FURROW_WITHOUT_NBD_CLIENTS=1"
    );
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// Bytes that neither compression nor hole detection can shrink, with holes between them.
pub fn image(path: &Path, length: usize) -> Vec<u8> {
    let mut rng = furrow_rt::Rng::new(length as u64);
    let mut data: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
    for hole in data.chunks_mut(3 << 20).skip(1).step_by(2) {
        hole.fill(0);
    }
    std::fs::write(path, &data).unwrap();
    data
}
