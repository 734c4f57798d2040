//! The core has no access to the outside. Three tests check that: the exact dependency tree of each
//! core crate; its sources, which must not use the parts of `std` that reach outside; and the lints
//! that report such uses early.
//!
//! Core crates make no system call, read no clock, draw no random number and start no thread; they
//! get all four from `furrow-rt`. So a run is a function of its seed.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "runs cargo and clippy")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Dependencies of the runtime: queues, slabs, and system calls, which only the runtime makes.
const RT: &[&str] = &[
    "bitflags",
    "crossbeam-queue",
    "crossbeam-utils",
    "linux-raw-sys",
    "rustix",
    "slab",
    "smallvec",
];
const ZONE: &[&str] = &["furrow-rt", "furrow-zone", "thiserror"];
/// Rules that only experiments change: values, without dependencies.
const POLICY: &[&str] = &["furrow-policy"];
/// Checksums (with the hash traits they implement) and layouts on media.
const LOG: &[&str] = &[
    "crc-fast",
    "crypto-common",
    "digest",
    "furrow-log",
    "generic-array",
    "spin",
    "typenum",
    "zerocopy",
];
const FS: &[&str] = &["furrow-fs"];
const SOFT: &[&str] = &["furrow-soft"];
const ARRAY: &[&str] = &["furrow-array"];
const RAID: &[&str] = &["furrow-raid"];
const KV: &[&str] = &["furrow-kv"];

/// The folder of each core crate and its exact dependency tree. Procedural macros are left out:
/// they run in the compiler.
const CORE: [(&str, &[&[&str]]); 8] = [
    ("policy", &[POLICY]),
    ("zone", &[RT, ZONE]),
    ("log", &[RT, ZONE, POLICY, LOG]),
    ("soft", &[RT, ZONE, POLICY, LOG, SOFT]),
    ("fs", &[RT, ZONE, POLICY, LOG, FS]),
    ("array", &[RT, ZONE, POLICY, LOG, ARRAY]),
    ("raid", &[RT, ZONE, POLICY, LOG, ARRAY, RAID]),
    ("kv", &[RT, ZONE, POLICY, LOG, KV]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

// The dependency tree.

/// Names in the normal dependency tree of a package, without the package itself.
fn dependencies(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", package, "--edges", "normal,no-proc-macro"])
        .args(["--prefix", "none", "--format", "{p}", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("names are UTF-8");
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != package).map(str::to_owned).collect()
}

/// Dependencies that exist but are not allowed, and allowed ones that do not exist any more.
fn differences(package: &str, found: &BTreeSet<String>, allowed: &[&str]) -> Vec<String> {
    let listed: BTreeSet<String> = allowed.iter().map(|&name| name.to_owned()).collect();
    let unlisted = found.difference(&listed).map(|n| format!("{package} pulls in {n}, unlisted"));
    let unused = listed.difference(found).map(|n| format!("{package} no longer pulls in {n}"));
    unlisted.chain(unused).collect()
}

#[test]
fn core_crates_depend_on_nothing_unlisted() {
    let mut problems = Vec::new();
    for (name, allowed) in CORE {
        let package = format!("furrow-{name}");
        let mut allowed = allowed.concat();
        allowed.retain(|dependency| *dependency != package);
        problems.extend(differences(&package, &dependencies(&package), &allowed));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_new_and_a_lost_dependency_are_found() {
    let found: BTreeSet<String> = ["slab", "tokio"].map(str::to_owned).into();
    assert_eq!(
        differences("furrow-x", &found, &["slab", "smallvec"]),
        ["furrow-x pulls in tokio, unlisted", "furrow-x no longer pulls in smallvec"]
    );
    assert!(differences("furrow-x", &found, &["slab", "tokio"]).is_empty());
}

// The sources.

/// Modules of `std` that reach outside.
const OUTSIDE: [&str; 7] = ["fs", "net", "thread", "time", "process", "os", "env"];
/// Macros that print or keep state outside the engine.
const OUTSIDE_MACROS: [&str; 5] = ["println", "eprintln", "print", "eprint", "thread_local"];

/// Names and punctuation in Rust source, without comments, strings and character literals; each
/// with its line number, from 1.
fn tokens(source: &str) -> Vec<(usize, String)> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut i, mut line, mut found) = (0, 1, Vec::new());
    while i < chars.len() {
        let start = i;
        match at(i) {
            '/' if at(i + 1) == '/' => i += chars[i..].iter().take_while(|c| **c != '\n').count(),
            '/' if at(i + 1) == '*' => i = skip_block_comment(&chars, i),
            '"' => i = skip_text(&chars, i),
            'r' | 'b' | 'c' if literal_prefix(&chars, i) > 0 => {
                i = skip_literal(&chars, i + literal_prefix(&chars, i));
            }
            // This is a character literal, unless it is a lifetime.
            '\'' if at(i + 1) == '\\' => {
                i += 3;
                while i < chars.len() && at(i - 1) != '\'' {
                    i += 1;
                }
            }
            '\'' if at(i + 2) == '\'' => i += 3,
            c if c.is_alphanumeric() || c == '_' => {
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
                found.push((line, chars[start..i].iter().collect()));
            }
            ':' if at(i + 1) == ':' => {
                i += 2;
                found.push((line, "::".to_owned()));
            }
            c => {
                i += 1;
                if !c.is_whitespace() {
                    found.push((line, c.to_string()));
                }
            }
        }
        line += chars[start..i.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    found
}

/// The number of letters before a string literal (`r`, `b`, `br`, `c`, ...); 0 if the letters begin
/// a name instead.
fn literal_prefix(chars: &[char], i: usize) -> usize {
    let letters = chars[i..].iter().take(2).take_while(|c| "rbc".contains(**c)).count();
    let after = i + letters;
    let hashes = chars[after..].iter().take_while(|c| **c == '#').count();
    if chars.get(after + hashes) == Some(&'"') { letters } else { 0 }
}

/// The position after the string literal at `i`, which may be raw and have `#`s.
fn skip_literal(chars: &[char], i: usize) -> usize {
    let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
    let raw = hashes > 0 || chars[i - 1] == 'r';
    if !raw {
        return skip_text(chars, i);
    }
    let mut end = i + hashes + 1;
    while end < chars.len() {
        let closing = chars[end + 1..].iter().take(hashes).filter(|c| **c == '#').count();
        if chars[end] == '"' && closing == hashes {
            return end + 1 + hashes;
        }
        end += 1;
    }
    end
}

fn skip_text(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

fn skip_block_comment(chars: &[char], start: usize) -> usize {
    let (mut i, mut depth) = (start, 0);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (i, depth) = (i + 2, depth + 1),
            ('*', Some('/')) => (i, depth) = (i + 2, depth - 1),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

/// Uses of the outside in a source: `std::fs`, `use std::{io, fs}`, `use std as s`, `println!`.
fn outside_uses(path: &str, source: &str) -> Vec<String> {
    let tokens = tokens(source);
    let word = |i: usize| tokens.get(i).map_or("", |(_, word)| word.as_str());
    let mut uses = Vec::new();
    for (i, (line, name)) in tokens.iter().enumerate() {
        let mut found = |what: String| uses.push(format!("{path}:{line}: {what}"));
        if OUTSIDE_MACROS.contains(&name.as_str()) && word(i + 1) == "!" {
            found(format!("{name}!"));
        }
        if name != "std" {
            continue;
        }
        match (word(i + 1), word(i + 2)) {
            ("as", _) => found("another name for std".to_owned()),
            ("::", "*") => found("everything of std".to_owned()),
            ("::", module) if OUTSIDE.contains(&module) => found(format!("std::{module}")),
            ("::", "{") => {
                for module in group(&tokens[i + 3..]).filter(|m| OUTSIDE.contains(m)) {
                    found(format!("std::{module}"));
                }
            }
            _ => {}
        }
    }
    uses
}

/// The first names of a `{a::b, c::{d, e}}` group whose brace is already open.
fn group(tokens: &[(usize, String)]) -> impl Iterator<Item = &str> {
    let mut depth = 1;
    let mut first = true;
    tokens.iter().map_while(move |(_, word)| {
        let starts = first && depth == 1;
        first = false;
        match word.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," => first = true,
            _ => {}
        }
        (depth > 0).then_some(if starts { word.as_str() } else { "" })
    })
}

/// Adds the Rust files below a folder, except for files that hold only tests, which may measure
/// and print.
fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("sources can be listed") {
        let path = entry.expect("sources can be listed").path();
        let name = path.to_string_lossy();
        if path.is_dir() {
            rust_files(&path, files);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            files.push(path);
        }
    }
}

#[test]
fn core_sources_do_not_name_the_outside() {
    let (mut looked_at, mut uses) = (0, Vec::new());
    for (name, _) in CORE {
        let mut files = Vec::new();
        rust_files(&root().join("crates").join(name).join("src"), &mut files);
        assert!(!files.is_empty(), "no sources of {name}");
        for file in files {
            looked_at += 1;
            let source = fs::read_to_string(&file).expect("sources are UTF-8");
            uses.extend(outside_uses(&file.display().to_string(), &source));
        }
    }
    assert!(looked_at > CORE.len(), "only {looked_at} files looked at");
    assert!(uses.is_empty(), "{}", uses.join("\n"));
}

#[test]
fn every_way_to_name_the_outside_is_found() {
    for (source, expected) in [
        ("fn f() { std::fs::read(p); }", "a.rs:1: std::fs"),
        ("\nuse ::std::time::Instant;", "a.rs:2: std::time"),
        ("use std::{io, thread::{self, Builder}};", "a.rs:1: std::thread"),
        ("use std::{fmt::{self, Write},\n net};", "a.rs:1: std::net"),
        ("use std::{os};", "a.rs:1: std::os"),
        ("use std as s;", "a.rs:1: another name for std"),
        ("use std::*;", "a.rs:1: everything of std"),
        ("fn f() { println!(\"x\") }", "a.rs:1: println!"),
        ("let q = '\"'; std::env::args()", "a.rs:1: std::env"),
        ("let r = r#\"a\"b\"#; std::process::id()", "a.rs:1: std::process"),
        ("fn f<'a>(a: &'a str) { std::fs::read(a) }", "a.rs:1: std::fs"),
        ("let q = '\\''; std::fs::read(a)", "a.rs:1: std::fs"),
    ] {
        assert_eq!(outside_uses("a.rs", source), [expected], "{source}");
    }
    for source in [
        "// std::fs\n/* std::net /* std::os */ std::os */",
        "let s = \"std::fs \\\" std::net\"; let r = r\"std::os\\\"; let b = br#\"std::fs\"#;",
        "use std::collections::BTreeMap; use std::{fmt, io::{self, time}};",
        "use crate::fs; self::thread::spawn(); bar.time();",
    ] {
        assert!(outside_uses("a.rs", source).is_empty(), "{source}");
    }
}

// The lints.

/// The lints that clippy reports for `source`, with the list and levels of this tree.
fn clippy(name: &str, source: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("{name}.rs"));
    fs::write(&file, source).expect("the target folder can be written");
    let output = Command::new("clippy-driver")
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata"])
        .args(["-D", "clippy::disallowed_types", "-D", "clippy::disallowed_methods"])
        .args(["-D", "clippy::unwrap_used", "--out-dir"])
        .arg(folder)
        .arg(&file)
        .env("CLIPPY_CONF_DIR", root())
        .output()
        .expect("clippy-driver runs (rustup component add clippy)");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_list_of_disallowed_things_fires() {
    for (i, (code, expected)) in [
        ("pub fn f() { let _ = std::time::Instant::now(); }", "std::time::Instant"),
        ("pub fn f() { std::thread::sleep(core::time::Duration::ZERO); }", "std::thread::sleep"),
        ("pub fn f() { let _ = std::thread::spawn(|| ()); }", "std::thread::spawn"),
        ("pub fn f() { let _ = std::fs::read(\"x\"); }", "std::fs::read"),
        ("pub fn f() { let _ = std::env::var(\"X\"); }", "std::env::var"),
        ("pub struct S(pub std::collections::HashMap<u8, u8>);", "std::collections::HashMap"),
        ("pub fn f(a: Option<u8>) -> u8 { a.unwrap() }", "unwrap"),
    ]
    .into_iter()
    .enumerate()
    {
        let said = clippy(&format!("canary_{i}"), code);
        assert!(said.contains("error: use") && said.contains(expected), "{code}:\n{said}");
    }
    let said = clippy("canary_clean", "//! Clean.\npub fn f() -> u8 { 1 }");
    assert!(!said.contains("error"), "{said}");
    assert!(!said.contains("clippy.toml"), "an entry of clippy.toml is wrong:\n{said}");
}
