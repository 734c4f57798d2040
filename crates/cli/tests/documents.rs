//! Documents that must agree with the code: the floors and the code map of the architecture, the
//! glossary.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "reads the tree")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text_of(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names of the folders in crates/, in order.
fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().join("Cargo.toml").exists());
    let mut names: Vec<_> =
        folders.map(|folder| folder.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Rust files below a folder, as paths from that folder, in order.
fn sources(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let path = entry.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Crates by floor, from the ground up, as the picture in the architecture shows them.
fn floors(architecture: &str) -> Vec<Vec<String>> {
    let (_, picture) = architecture.split_once(" floor         crates\n").expect("a picture");
    let (picture, _) = picture.split_once("```").expect("an end of the picture");
    let row = |line: &str| {
        let names = line.get(15..).unwrap_or_default().split('·');
        names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    };
    let mut floors: Vec<Vec<String>> = picture.lines().map(row).collect();
    floors.reverse();
    floors
}

/// Crates of the project that a manifest names, those for tests left out.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut within = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            within = line == "[dependencies]";
        } else if let (true, Some(rest)) = (within, line.strip_prefix("furrow-")) {
            names.insert(rest.split(['.', ' ']).next().unwrap_or_default().to_owned());
        }
    }
    names
}

/// What is wrong with a picture: crates that it lacks or invents, and arrows that point up.
fn wrong_floors(floors: &[Vec<String>], uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut at = BTreeMap::new();
    for (height, floor) in floors.iter().enumerate() {
        for name in floor {
            if at.insert(name.clone(), height).is_some() {
                problems.push(format!("{name} is on two floors"));
            }
            if !uses.contains_key(name) {
                problems.push(format!("{name} is in the picture, but no crate"));
            }
        }
    }
    for (name, used) in uses {
        let Some(height) = at.get(name) else {
            problems.push(format!("{name} is not in the picture"));
            continue;
        };
        for lower in used.iter().filter(|lower| at.get(*lower).is_none_or(|at| at >= height)) {
            problems.push(format!("{name} uses {lower}, which is not on a lower floor"));
        }
    }
    problems
}

#[test]
fn the_picture_of_the_floors_is_true() {
    let uses: BTreeMap<String, BTreeSet<String>> = crates()
        .into_iter()
        .map(|name| {
            let manifest = text_of(&format!("crates/{name}/Cargo.toml"));
            (name, dependencies(&manifest))
        })
        .collect();
    assert!(uses.len() > 10 && uses["fs"].contains("log"), "{uses:?}");
    let problems = wrong_floors(&floors(&text_of("docs/ARCHITECTURE.md")), &uses);
    assert!(problems.is_empty(), "docs/ARCHITECTURE.md:\n{}", problems.join("\n"));
}

#[test]
fn a_picture_that_is_not_true_is_refused() {
    let floor = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let uses = |of: &[(&str, &[&str])]| {
        let of = of.iter().map(|(name, used)| ((*name).to_owned(), floor(used)));
        of.map(|(name, used)| (name, used.into_iter().collect())).collect::<BTreeMap<_, _>>()
    };
    let code = uses(&[("fs", &["log"]), ("log", &[])]);
    assert!(wrong_floors(&[floor(&["log"]), floor(&["fs"])], &code).is_empty());
    assert_eq!(wrong_floors(&[floor(&["fs", "log"])], &code).len(), 1);
    assert_eq!(wrong_floors(&[floor(&["fs"]), floor(&["log"])], &code).len(), 1);
    assert_eq!(wrong_floors(&[floor(&["log"]), floor(&["fs", "kv"])], &code).len(), 1);
    assert_eq!(wrong_floors(&[floor(&["log"])], &code).len(), 1);
}

/// The first sentence of a file's own description.
fn first_sentence(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |end| end + 1);
    let sentence = paragraph[..end].trim_end_matches('.');
    // Links of the source lead nowhere from a document.
    sentence.replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}

/// The code map: every module with the first sentence that its file says of itself.
fn code_map() -> String {
    let mut page = String::from(
        "# Code map\n\nEvery module in one line, the first line of its file. The page is made from the \
         code by a test; when the\ntest says that the page is old:\n\
         `FURROW_WRITE_CODE_MAP=1 cargo test -p furrow-cli the_code_map_is_true`. \
         The tour is [ARCHITECTURE.md](ARCHITECTURE.md).\n",
    );
    for name in crates() {
        let folder = root().join("crates").join(&name).join("src");
        page.push_str(&format!("\n## crates/{name}\n\n| module | what it is |\n|---|---|\n"));
        for path in sources(&folder) {
            let source = fs::read_to_string(folder.join(&path)).unwrap();
            let module = path.trim_end_matches(".rs");
            page.push_str(&format!("| `{module}` | {} |\n", first_sentence(&source)));
        }
    }
    page
}

#[test]
fn the_code_map_is_true() {
    let (path, map) = (root().join("docs/code-map.md"), code_map());
    if std::env::var_os("FURROW_WRITE_CODE_MAP").is_some() {
        fs::write(&path, &map).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let missing: Vec<&str> = map.lines().filter(|line| !found.contains(line)).collect();
    let stale: Vec<&str> = found.lines().filter(|line| !map.contains(line)).collect();
    assert!(
        found == map,
        "docs/code-map.md is old; missing:\n{}\nno longer true:\n{}\nto write it: \
         FURROW_WRITE_CODE_MAP=1 cargo test -p furrow-cli the_code_map_is_true",
        missing.join("\n"),
        stale.join("\n"),
    );
}

#[test]
fn a_first_sentence_is_found() {
    let source = "//! One [`Thing`] | two\n//! more. Then others.\n//!\n//! Invariants\nuse x;\n";
    assert_eq!(first_sentence(source), "One `Thing` \\| two more");
    assert_eq!(first_sentence("//! Short.\n"), "Short");
}
