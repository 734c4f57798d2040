//! Product and laboratory are separate: installed programs and libraries do not depend on crates of
//! experiments and simulation, no engine re-exports their names, and the command contains no names
//! of defects.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "runs cargo, reads sources"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Installed packages that are not engines.
const PRODUCT: [&str; 6] =
    ["furrow-cli", "furrow-drives", "furrow-fuse", "furrow-nbd", "furrow-ublk", "furrow-capi"];
/// Crates that only experiments and tests may name.
const LABORATORY: [&str; 4] = ["furrow-policy", "furrow-sim", "furrow-lab", "furrow-court"];
/// Engines, which take a variant and must not re-export its name.
const ENGINES: [&str; 4] = ["log", "fs", "raid", "kv"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Crates that the code of `package` can name.
fn direct_dependencies(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", package, "--edges", "normal,build", "--depth", "1"])
        .args(["--prefix", "none", "--format", "{p}", "--all-features", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("names are UTF-8");
    let names = tree.lines().filter_map(|line| line.split(' ').next()).skip(1);
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_product_cannot_name_what_is_for_experiments() {
    for package in PRODUCT {
        let names = direct_dependencies(package);
        assert!(names.contains("furrow-zone"), "{package}: {names:?}");
        for laboratory in LABORATORY {
            assert!(!names.contains(laboratory), "{package} depends on {laboratory}");
        }
    }
    // The same query finds a dependency that exists, so the check above is not blind.
    assert!(direct_dependencies("furrow-fs").contains("furrow-policy"));
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("sources can be listed") {
        let path = entry.expect("sources can be listed").path();
        match path.is_dir() {
            true => sources(&path, files),
            false if path.extension().is_some_and(|end| end == "rs") => files.push(path),
            false => {}
        }
    }
}

/// Statements of a source that re-export names of the policy crate, under any name.
fn handed_on(source: &str) -> Vec<String> {
    let code: Vec<&str> = source.lines().map(|l| l.split("//").next().unwrap_or("")).collect();
    let code = code.join(" ");
    let statements = code.split([';', '{', '}']).map(str::trim);
    let public = |statement: &str| {
        let words: Vec<&str> = statement.split_whitespace().collect();
        let at = words.iter().position(|word| word.starts_with("pub"));
        at.is_some_and(|at| matches!(words.get(at + 1), Some(&("use" | "type" | "extern"))))
    };
    let names = |statement: &str| statement.contains("furrow_policy");
    statements.filter(|s| public(s) && names(s)).map(str::to_owned).collect()
}

#[test]
fn no_engine_hands_names_of_policies_on() {
    let mut looked_at = 0;
    for engine in ENGINES {
        let mut files = Vec::new();
        sources(&root().join("crates").join(engine).join("src"), &mut files);
        for file in files {
            looked_at += 1;
            let source = fs::read_to_string(&file).expect("sources are UTF-8");
            let found = handed_on(&source);
            assert!(found.is_empty(), "{}: {found:?}", file.display());
        }
    }
    assert!(looked_at > 100, "{looked_at} files");
}

#[test]
fn every_way_to_hand_a_name_on_is_found() {
    for source in [
        "pub use furrow_policy::FsDefect;",
        "use a;\npub(crate) use furrow_policy::{\n    FsDefect,\n};",
        "pub type Defect = furrow_policy::FsDefect;",
        "pub extern crate furrow_policy;",
    ] {
        assert_eq!(handed_on(source).len(), 1, "{source}");
    }
    for source in [
        "use furrow_policy::FsDefect;",
        "// pub use furrow_policy::FsDefect;",
        "pub struct Options { pub variant: furrow_policy::FsVariant, }",
    ] {
        assert!(handed_on(source).is_empty(), "{source}");
    }
}

/// Names of defects in the sources of the policy crate.
fn defects() -> BTreeSet<String> {
    let source = fs::read_to_string(root().join("crates/policy/src/defect.rs")).expect("is there");
    let enums = source.split("pub enum ").skip(1).filter_map(|rest| rest.split('}').next());
    let lines = enums.flat_map(|body| body.lines().skip(1)).map(str::trim);
    let names = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    names.map(|line| line.trim_end_matches(',').to_owned()).collect()
}

#[test]
fn the_command_holds_no_name_of_a_defect() {
    let defects = defects();
    assert!(defects.len() > 20 && defects.contains("TornStripe"), "{defects:?}");
    // The search also looks for a text that the program contains, to show that the search works.
    let there = "A storage stack for zoned flash";
    // grep(1) takes a hundredth of the time of a search in an unoptimised test.
    let mut grep = Command::new("grep");
    grep.args(["-aoF", "-e", there]);
    grep.args(defects.iter().flat_map(|name| ["-e", name]));
    let output = grep.arg(env!("CARGO_BIN_EXE_furrow")).output().expect("grep(1) runs");
    let found = String::from_utf8(output.stdout).expect("they are names");
    let found: BTreeSet<&str> = found.lines().collect();
    assert_eq!(found, BTreeSet::from([there]), "the command knows names of defects");
}
