//! Tests of the source tree: rules that reviewers would otherwise check in every change.
//!
//! Each check is a function from a file (or the tree) to problems, run over every file that is part
//! of the project; each has a self-test with a sample that it must refuse, which exposes a check
//! that has stopped working. Checks that clippy can make (`unwrap`, `todo!`, `dbg!`, undocumented
//! items) are left to clippy.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "reads the tree")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest line of Rust, in characters. Other text may have longer lines.
const LINE_LENGTH_MAX: usize = 100;
/// Longest Rust file, in lines. A longer file probably has more than one subject.
const FILE_LINES_MAX: usize = 800;
/// Largest import circle of crates, in files; 1: there is none.
const CIRCLE_MAX: [(&str, u32); 7] =
    [("array", 2), ("capi", 4), ("emu", 1), ("fs", 8), ("kv", 1), ("log", 2), ("raid", 4)];

/// One text file of the project.
struct File {
    /// Path from the root of the tree, with `/`.
    path: String,
    text: String,
}

impl File {
    fn sample(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
    fn problem(&self, line: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path, line + 1)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every text file of the tree, ordered by path; without build output and images.
fn tree() -> Vec<File> {
    let mut files = Vec::new();
    walk(&root(), "", &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn walk(folder: &Path, prefix: &str, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("the tree can be listed") {
        let entry = entry.expect("the tree can be listed");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().expect("an entry has a type");
        if kind.is_dir() {
            if !matches!(name.as_str(), ".git" | "target") {
                walk(&entry.path(), &format!("{path}/"), files);
            }
        } else if kind.is_file() && is_text(&name) {
            let text = fs::read_to_string(entry.path()).expect("text files hold UTF-8");
            files.push(File { path, text });
        }
    }
}

/// True for file types that people write here.
fn is_text(name: &str) -> bool {
    const SUFFIXES: [&str; 8] = [".rs", ".toml", ".md", ".sh", ".csv", ".c", ".h", ".yml"];
    const NAMES: [&str; 5] = ["Makefile", "run", ".gitignore", "LICENSE-MIT", "LICENSE-APACHE"];
    NAMES.contains(&name) || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

// Checks of one file follow.

fn long_lines(file: &File) -> Vec<String> {
    // A table row in a comment cannot be broken.
    let is_row =
        |line: &str| ["//! |", "/// |"].iter().any(|row| line.trim_start().starts_with(row));
    let too_long = |line: &&str| line.chars().count() > LINE_LENGTH_MAX && !is_row(line);
    let lines = file.text.lines().enumerate().filter(|(_, line)| file.is_rust() && too_long(line));
    lines.map(|(i, _)| file.problem(i, "line longer than 100 characters")).collect()
}

fn long_files(file: &File) -> Vec<String> {
    let count = file.text.lines().count();
    let too_long = file.is_rust() && count > FILE_LINES_MAX;
    too_long.then(|| file.problem(0, &format!("{count} lines, at most 800"))).into_iter().collect()
}

fn stray_space(file: &File) -> Vec<String> {
    let mut problems = Vec::new();
    let tabs_allowed = file.path.ends_with("Makefile");
    for (i, line) in file.text.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            problems.push(file.problem(i, "space at the end of the line"));
        }
        if line.contains('\t') && !tabs_allowed {
            problems.push(file.problem(i, "tab"));
        }
    }
    if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
        let last = file.text.lines().count().saturating_sub(1);
        problems.push(file.problem(last, "a file ends with exactly one line break"));
    }
    problems
}

fn leftover_markers(file: &File) -> Vec<String> {
    // The markers are written in two halves, so that this file passes its own check.
    const MARKERS: [&str; 5] = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("HA", "CK:"),
        concat!("Under ", "construction"),
    ];
    find_words(file, &MARKERS, "left-over marker")
}

fn machine_paths(file: &File) -> Vec<String> {
    const PATHS: [&str; 5] = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/tm", "p/"),
        concat!("/Us", "ers/"),
    ];
    find_words(file, &PATHS, "path of some machine")
}

fn find_words(file: &File, words: &[&str], what: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        for word in words.iter().filter(|word| line.contains(**word)) {
            problems.push(file.problem(i, &format!("{what}: {word}")));
        }
    }
    problems
}

/// Finds Rust files that do not begin with a description.
fn missing_headers(file: &File) -> Vec<String> {
    let opens_well = file.text.starts_with("//! ") || !file.is_rust();
    (!opens_well).then(|| file.problem(0, "no `//!` header")).into_iter().collect()
}

/// A crate must be called `furrow-<folder>` and use the lints of the workspace; without them the
/// list in `clippy.toml` would not apply to it.
fn crate_manifests(file: &File) -> Vec<String> {
    let folder = file.path.strip_prefix("crates/").and_then(|p| p.strip_suffix("/Cargo.toml"));
    let Some(folder) = folder else { return Vec::new() };
    let mut problems = Vec::new();
    if !file.text.contains(&format!("name = \"furrow-{folder}\"\n")) {
        problems.push(file.problem(0, "a crate's name is furrow-<folder>"));
    }
    if !file.text.contains("[lints]\nworkspace = true\n") {
        problems.push(file.problem(0, "a crate takes the lints of the workspace"));
    }
    problems
}

/// Finds links of a document to files that are not in the tree.
fn dead_links(file: &File, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut problems = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', '#', ' ']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let from_root = if folder.is_empty() { "." } else { folder };
            if !exists(&format!("{from_root}/{target}")) {
                problems.push(file.problem(i, &format!("link to {target}, which is not there")));
            }
        }
    }
    problems
}

/// Finds `make x` and `furrow x` in a document's code that do not exist.
fn unknown_commands(file: &File, targets: &[&str], subcommands: &[&str]) -> Vec<String> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let mut in_block = false;
    for (i, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        let spans: Vec<&str> = if in_block {
            vec![line.trim_start().trim_start_matches("$ ").trim_start_matches("# ")]
        } else {
            line.split('`').skip(1).step_by(2).collect()
        };
        for span in spans {
            let mut words = span.split_whitespace().skip_while(|word| word.contains('='));
            let (command, word) = (words.next(), words.next().unwrap_or_default());
            let plain =
                !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            let known = match command {
                Some("make") => targets.contains(&word),
                Some("furrow") => word.starts_with('-') || subcommands.contains(&word),
                _ => true,
            };
            if plain && !known {
                problems.push(file.problem(i, &format!("no such command: {span}")));
            }
        }
    }
    problems
}

/// Dependencies of the workspace without a reason in docs/HACKING.md, and reasons without a
/// dependency.
fn unexplained_dependencies(manifest: &str, reasons: &str) -> Vec<String> {
    let section = |text: &str, from: &str, to: &str| {
        let rest = text.split_once(from).map_or("", |(_, rest)| rest);
        rest.split(to).next().unwrap_or_default().to_owned()
    };
    let dependencies = section(manifest, "[workspace.dependencies]\n", "\n[");
    let used: BTreeSet<String> = dependencies
        .lines()
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name.to_owned()))
        .filter(|name| !name.starts_with("furrow-"))
        .collect();
    let explained: BTreeSet<String> = section(reasons, "## Dependencies\n", "\n## ")
        .lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(|line| line.split(" | ").next().map(str::to_owned))
        .flat_map(|names| {
            names.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let missing = used.difference(&explained).map(|name| format!("{name}: no reason given"));
    let stale = explained.difference(&used).map(|name| format!("{name}: a reason, but not used"));
    missing.chain(stale).collect()
}

/// Crates that the code map of docs/ARCHITECTURE.md lacks, and names there that are not crates.
fn unmapped_crates(folders: &BTreeSet<&str>, architecture: &str) -> Vec<String> {
    let map = architecture.split_once("## Code map\n").map_or("", |(_, rest)| rest);
    let map = map.split("\n## ").next().unwrap_or_default();
    let paths = map.split('`').skip(1).step_by(2);
    let named: BTreeSet<&str> = paths
        .filter_map(|path| path.strip_prefix("crates/"))
        .map(|path| path.split('/').next().unwrap_or_default())
        .collect();
    let missing = folders.difference(&named).map(|name| format!("{name}: not in the code map"));
    let stale = named.difference(folders).map(|name| format!("{name}: mapped, but no crate"));
    missing.chain(stale).collect()
}

/// Targets of a makefile.
fn makefile_targets(makefile: &str) -> Vec<&str> {
    let names = makefile.lines().filter_map(|line| line.split_once(": ").map(|(name, _)| name));
    names.filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '-')).collect()
}

/// Subcommands as `furrow --help` lists them.
fn subcommands(help: &str) -> Vec<&str> {
    let list = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    list.take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// Test files that no test program includes as a module or root, so that their tests do not run.
fn tests_left_out(files: &[File]) -> Vec<String> {
    let text_of = |path: String| files.iter().find(|file| file.path == path).map(|f| &*f.text);
    let mut problems = Vec::new();
    for file in files {
        let Some((folder, name)) = file.path.rsplit_once('/') else { continue };
        let Some(package) = folder.strip_suffix("/tests") else { continue };
        let Some(name) = name.strip_suffix(".rs").filter(|_| package.starts_with("crates/")) else {
            continue;
        };
        let modules = text_of(format!("{folder}/all.rs")).unwrap_or_default();
        let manifest = text_of(format!("{package}/Cargo.toml")).unwrap_or_default();
        let is_module = modules.lines().any(|line| line == format!("mod {name};"));
        let is_root = manifest.contains(&format!("path = \"tests/{name}.rs\""))
            || !manifest.contains("autotests = false");
        if !is_module && !is_root {
            problems.push(file.problem(0, "its tests do not run: add it to all.rs"));
        }
    }
    problems
}

#[test]
fn the_tree_is_tidy() {
    let files = tree();
    let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    for expected in [".ci/run", "README.md", "crates/cli/tests/tidy.rs"] {
        assert!(paths.contains(expected), "{expected} was not looked at");
    }
    let text_of = |path: &str| &files.iter().find(|f| f.path == path).expect("it is there").text;
    let targets = makefile_targets(text_of("Makefile"));
    let furrow = env!("CARGO_BIN_EXE_furrow");
    let help = std::process::Command::new(furrow).arg("--help").output().expect("furrow runs");
    let help = String::from_utf8(help.stdout).expect("help is UTF-8");
    let commands = subcommands(&help);

    let mut problems = unexplained_dependencies(text_of("Cargo.toml"), text_of("docs/HACKING.md"));
    let manifests = paths.iter().filter_map(|path| path.strip_suffix("/Cargo.toml"));
    let folders = manifests.filter_map(|path| path.strip_prefix("crates/")).collect();
    problems.extend(unmapped_crates(&folders, text_of("docs/ARCHITECTURE.md")));
    problems.extend(tests_left_out(&files));
    for file in &files {
        problems.extend(long_lines(file));
        problems.extend(long_files(file));
        problems.extend(stray_space(file));
        problems.extend(leftover_markers(file));
        problems.extend(machine_paths(file));
        problems.extend(missing_headers(file));
        problems.extend(crate_manifests(file));
        problems.extend(dead_links(file, &|path| root().join(path).exists()));
        problems.extend(unknown_commands(file, &targets, &commands));
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

// In the tests below, each check refuses its sample and accepts the corrected sample.

/// Whether the largest import circle of a crate has at most `most` files; if not, its files.
fn circles_of(name: &str, most: u32) -> (bool, String) {
    let script = root().join("scripts/structure.py");
    let mut python = std::process::Command::new("python3");
    python.arg(script).args([name, "--max-circle", &most.to_string()]);
    let output = python.output().expect("python3 runs scripts/structure.py");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn few_files_of_a_crate_import_each_other() {
    for (name, most) in CIRCLE_MAX {
        let (few, which) = circles_of(name, most);
        assert!(few, "{which}");
    }
    let (few, which) = circles_of("fs", 1);
    assert!(!few && which.contains("files import each other"), "{which}");
}

#[test]
fn long_lines_are_found() {
    let line = "é".repeat(100);
    assert!(long_lines(&File::sample("a.rs", &line)).is_empty());
    assert_eq!(
        long_lines(&File::sample("a.rs", &format!("//! a\n{line}e\n"))),
        ["a.rs:2: line longer than 100 characters"]
    );
    assert!(long_lines(&File::sample("a.md", &format!("{line}e"))).is_empty());
    assert!(long_lines(&File::sample("a.rs", &format!("//! | {line} |"))).is_empty());
}

#[test]
fn long_files_are_found() {
    assert!(long_files(&File::sample("a.rs", &"\n".repeat(800))).is_empty());
    assert_eq!(long_files(&File::sample("a.rs", &"\n".repeat(801))).len(), 1);
}

#[test]
fn stray_space_is_found() {
    assert!(stray_space(&File::sample("a.rs", "a\nb\n")).is_empty());
    for bad in ["a \n", "a\r\n", "\ta\n", "a", "a\n\n"] {
        assert_eq!(stray_space(&File::sample("a.rs", bad)).len(), 1, "{bad:?}");
    }
    assert!(stray_space(&File::sample("Makefile", "a:\n\tb\n")).is_empty());
}

#[test]
fn leftover_markers_are_found() {
    assert!(leftover_markers(&File::sample("a.rs", "// to do the work\n")).is_empty());
    let bad = concat!("// FIX", "ME later\n");
    assert_eq!(leftover_markers(&File::sample("a.rs", bad)).len(), 1);
}

#[test]
fn machine_paths_are_found() {
    assert!(machine_paths(&File::sample("a.md", "mount it on /mnt\n")).is_empty());
    assert_eq!(machine_paths(&File::sample("a.md", concat!("/ho", "me/me/a\n"))).len(), 1);
}

#[test]
fn missing_headers_are_found() {
    assert!(missing_headers(&File::sample("a.rs", "//! What it is.\n")).is_empty());
    assert_eq!(missing_headers(&File::sample("a.rs", "fn main() {}\n")).len(), 1);
    assert!(missing_headers(&File::sample("a.md", "# A\n")).is_empty());
}

#[test]
fn odd_manifests_are_found() {
    let good = "[package]\nname = \"furrow-x\"\n\n[lints]\nworkspace = true\n";
    assert!(crate_manifests(&File::sample("crates/x/Cargo.toml", good)).is_empty());
    assert_eq!(crate_manifests(&File::sample("crates/y/Cargo.toml", good)).len(), 1);
    let unlinted = "[package]\nname = \"furrow-x\"\n";
    assert_eq!(crate_manifests(&File::sample("crates/x/Cargo.toml", unlinted)).len(), 1);
}

#[test]
fn dead_links_are_found() {
    let exists = |path: &str| path == "docs/../README.md" || path == "./docs/HACKING.md";
    let text = "[a](../README.md#top) and [b](gone.md), [c](https://example.org/x)\n";
    assert_eq!(
        dead_links(&File::sample("docs/a.md", text), &exists),
        ["docs/a.md:1: link to gone.md, which is not there"]
    );
    assert!(dead_links(&File::sample("a.md", "[a](docs/HACKING.md)\n"), &exists).is_empty());
}

#[test]
fn unknown_commands_are_found() {
    let (targets, commands) = (["test"], ["mkfs"]);
    let good = "`make test`, `furrow --version`, make sure\n```\n$ A=b furrow mkfs x\n```\n";
    assert!(unknown_commands(&File::sample("a.md", good), &targets, &commands).is_empty());
    let bad = "`make tea`\n```\nfurrow plough x\n```\n";
    assert_eq!(
        unknown_commands(&File::sample("a.md", bad), &targets, &commands),
        ["a.md:1: no such command: make tea", "a.md:3: no such command: furrow plough x"]
    );
}

#[test]
fn unexplained_dependencies_are_found() {
    let manifest = "[workspace.dependencies]\nfurrow-rt = { path = \"a\" }\nslab = \"1\"\n\
                    bob = \"2\"\n\n[x]\ny = 1\n";
    let reasons = "# A\n## Dependencies\n\n| crate | why |\n|---|---|\n| `slab`, `old` | `k` |\n\n\
                   ## B\n| `z` | |\n";
    let problems = unexplained_dependencies(manifest, reasons);
    assert_eq!(problems, ["bob: no reason given", "old: a reason, but not used"]);
}

#[test]
fn tests_left_out_are_found() {
    let manifest = "autotests = false\n[[test]]\nname = \"all\"\npath = \"tests/all.rs\"\n";
    let tree = [
        File::sample("crates/x/Cargo.toml", manifest),
        File::sample("crates/x/tests/all.rs", "mod old;\n"),
        File::sample("crates/x/tests/old.rs", "//! A\n"),
        File::sample("crates/x/tests/common/mod.rs", "//! A\n"),
        File::sample("crates/x/tests/new.rs", "//! A\n"),
        File::sample("crates/y/Cargo.toml", ""),
        File::sample("crates/y/tests/new.rs", "//! A\n"),
    ];
    let expected = "crates/x/tests/new.rs:1: its tests do not run: add it to all.rs";
    assert_eq!(tests_left_out(&tree), [expected]);
}

#[test]
fn unmapped_crates_are_found() {
    let map = "# A\n## Code map\n- `crates/rt`: x\n- `crates/old/src`: y\n\n## B\n`crates/z`\n";
    let problems = unmapped_crates(&["rt", "new"].into(), map);
    assert_eq!(problems, ["new: not in the code map", "old: mapped, but no crate"]);
}

#[test]
fn targets_and_subcommands_are_read() {
    let makefile = ".PHONY: a b\ntest: ## all\n\t@x: y\ncrash-full: ## b\n";
    assert_eq!(makefile_targets(makefile), ["test", "crash-full"]);
    let help =
        "Usage: furrow\n\nCommands:\n  mkfs  make\n          more\n  df    free\n\nOptions:\n";
    assert_eq!(subcommands(help), ["mkfs", "df"]);
}
