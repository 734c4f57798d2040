//! Documents that must agree with the code: the floors and the code map of the architecture,
//! and the glossary. Also tests what readers see first: the README is short, and every page can
//! be reached.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "reads the tree"
)]

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

/// Crates by floor, from the ground up, as in the architecture's picture.
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

/// Crates of the project that a manifest names, without dependencies of tests.
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

/// Errors of a picture: crates that are missing or invented, and arrows that point up.
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

/// Paths from the root of the tree that a page names as code.
fn paths(page: &str) -> BTreeSet<&str> {
    const FOLDERS: [&str; 5] = ["crates/", "docs/", "include/", "plugins/", "scripts/"];
    let spans = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.filter(|span| FOLDERS.iter().any(|folder| span.starts_with(folder))).collect()
}

/// Errors of a code map: paths that do not exist, and crates that it never names.
fn wrong_map(page: &str, crates: &[String], exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let named = paths(page);
    let dead =
        named.iter().filter(|path| !exists(path)).map(|path| format!("no such path: {path}"));
    let in_crates = named.iter().filter_map(|path| path.strip_prefix("crates/"));
    let mapped: BTreeSet<&str> = in_crates.filter_map(|path| path.split('/').next()).collect();
    let left_out = crates.iter().filter(|name| !mapped.contains(name.as_str()));
    dead.chain(left_out.map(|name| format!("crates/{name} is not named"))).collect()
}

#[test]
fn the_code_map_is_true() {
    let page = text_of("docs/inside/code-map.md");
    let problems = wrong_map(&page, &crates(), &|path| root().join(path).exists());
    assert!(paths(&page).len() > 80, "{:?}", paths(&page));
    assert!(problems.is_empty(), "docs/inside/code-map.md:\n{}", problems.join("\n"));
}

#[test]
fn a_code_map_that_is_not_true_is_refused() {
    let crates = ["fs".to_owned(), "kv".to_owned()];
    let exists = |path: &str| ["crates/fs/src/a.rs", "crates/kv"].contains(&path);
    let good = "| a `Thing` | `crates/fs/src/a.rs` -> `crates/kv`, `make x` |\n";
    assert!(wrong_map(good, &crates, &exists).is_empty());
    let bad = "| a thing | `crates/fs/src/a.rs` -> `crates/fs/src/gone.rs` |\n";
    let expected = ["no such path: crates/fs/src/gone.rs", "crates/kv is not named"];
    assert_eq!(wrong_map(bad, &crates, &exists), expected);
}

/// The words of a name in lower case: `ZoneQueue` and `zone_queue` both give `zone`, `queue`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut small = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && small) {
            words.push(String::new());
        }
        small = c.is_lowercase() || c.is_ascii_digit();
        if c != '_' {
            words.last_mut().expect("there is one").extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Public names that a source defines, and the modules that it has.
fn public_names(source: &str) -> BTreeSet<String> {
    const KINDS: [&str; 8] = ["fn", "struct", "enum", "trait", "mod", "const", "type", "static"];
    let mut names = BTreeSet::new();
    for line in source.lines().map(str::trim_start) {
        let is_public = line.starts_with("pub ") || line.starts_with("pub(crate) ");
        if !is_public && !line.starts_with("mod ") {
            continue;
        }
        let mut tokens = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        while let Some(token) = tokens.next() {
            if KINDS.contains(&token) {
                let name = tokens.find(|name| !["fn", "unsafe", "async", "mut"].contains(name));
                names.extend(name.filter(|name| !name.is_empty()).map(str::to_owned));
                break;
            }
        }
    }
    names
}

/// Rows of the glossary: its words, and the words that they replace.
fn glossary(page: &str) -> Vec<(Vec<String>, Vec<String>)> {
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = rows.map(|row| row.trim_matches('|').split(" | ").collect::<Vec<_>>());
    let list = |cell: &str| {
        let parts = cell.split(',').map(|part| part.trim().trim_matches(['*', '`', '|', ' ']));
        parts.filter(|part| !part.is_empty()).map(str::to_lowercase).collect::<Vec<_>>()
    };
    cells.map(|row| (list(row[0]), row.get(2).map_or(Vec::new(), |cell| list(cell)))).collect()
}

/// Whether the words of a name contain those of a term in sequence; plurals match too.
fn contains(name: &[String], term: &[String]) -> bool {
    let same = |(word, term): (&String, &String)| {
        let stem = |word: &str| word.trim_end_matches('s').to_owned();
        stem(word) == stem(term)
    };
    name.windows(term.len().max(1)).any(|window| window.iter().zip(term).all(same))
}

fn term(term: &str) -> Vec<String> {
    term.split([' ', '-', '_']).map(str::to_owned).collect()
}

#[test]
fn the_glossary_is_the_codes() {
    let mut names = BTreeMap::new();
    for name in crates() {
        let folder = root().join("crates").join(&name).join("src");
        for path in sources(&folder) {
            let source = fs::read_to_string(folder.join(&path)).unwrap();
            for public in public_names(&source) {
                names.insert(words(&public), format!("{public} in crates/{name}/src/{path}"));
            }
            let module = path.trim_end_matches(".rs").rsplit('/').next().unwrap_or_default();
            names.insert(words(module), format!("crates/{name}/src/{path}"));
        }
    }
    assert!(names.len() > 2000, "{} names", names.len());
    let rows = glossary(&text_of("docs/inside/glossary.md"));
    assert!(rows.len() > 30, "{} rows", rows.len());
    let mut problems = Vec::new();
    for (defined, replaced) in &rows {
        if !defined.iter().any(|word| names.keys().any(|name| contains(name, &term(word)))) {
            problems.push(format!("{defined:?}: no name in the code has it"));
        }
        for word in replaced {
            let found = names.iter().filter(|(name, _)| contains(name, &term(word)));
            problems.extend(found.map(|(_, place)| format!("{word:?} is in use: {place}")));
        }
    }
    let lines = text_of("docs/inside/glossary.md").lines().count();
    assert!(lines <= 60, "the glossary has {lines} lines: at most a page");
    assert!(problems.is_empty(), "docs/inside/glossary.md:\n{}", problems.join("\n"));
}

/// Maximum number of words of pages that are read before a decision.
const SHORT: [(&str, usize); 2] = [("README.md", 700), ("docs/use/comparison.md", 500)];

#[test]
fn the_first_pages_are_short_and_readme_says_what_it_must() {
    for (path, most) in SHORT {
        let words = text_of(path).split_whitespace().count();
        assert!(words <= most, "{path} has {words} words: at most {most}");
    }
    let readme = text_of("README.md");
    for needed in [
        "SMR",
        "any other SSD",
        "not yet run on real zoned hardware",
        "Do not keep your only copy",
        "docs/use/limits.md",
        "](docs/map.svg)",
        "`make demo`",
        "`make test`",
        "scripts/court.sh",
        "LICENSE-MIT",
        "docs/README.md",
    ] {
        assert!(readme.contains(needed), "README.md does not have {needed}");
    }
    // The first screen of the README leads from nothing to a mount.
    let screen: Vec<&str> = readme.lines().take(30).collect();
    let commands = screen.iter().skip_while(|line| **line != "```").skip(1);
    let commands: Vec<&&str> = commands.take_while(|line| **line != "```").collect();
    assert_eq!(commands.len(), 5, "{commands:?}");
    assert!(commands[0].starts_with("make build") && commands[3].contains("furrow mount"));
    let picture = text_of("docs/map.svg");
    assert!(picture.starts_with("<svg") && picture.contains("prefers-color-scheme:dark"));
}

/// Pages below docs/ to which `page` of that folder has a link.
fn links(page: &str) -> BTreeSet<String> {
    let text = text_of(&format!("docs/{page}"));
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| target.ends_with(".md")).map(str::to_owned).collect()
}

#[test]
fn every_page_is_in_the_index() {
    let linked = links("README.md");
    let mut missing = Vec::new();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let page = path.strip_prefix(root().join("docs")).unwrap().to_str().unwrap();
            if page.ends_with(".md") && page != "README.md" && !linked.contains(page) {
                missing.push(page.to_owned());
            }
        }
    }
    assert!(linked.len() > 30, "{linked:?}");
    assert!(missing.is_empty(), "docs/README.md has no link to {missing:?}");
}

#[test]
fn names_are_read_as_words() {
    assert_eq!(words("ZoneQueue2_of"), ["zone", "queue2", "of"]);
    let source = "pub(crate) async fn go_on() {}\nmod lane;\npub const fn x() {}\nfn not() {}\n";
    let names: Vec<String> = public_names(source).into_iter().collect();
    assert_eq!(names, ["go_on", "lane", "x"]);
    assert!(contains(&words("zone_queues"), &term("zone queue")));
    assert!(!contains(&words("queue_zone"), &term("zone queue")));
    let page =
        "| word | meaning | not |\n|---|---|---|\n| **a b**, `c` | d | e, f |\n| g | h | |\n";
    let of = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let rows = vec![(of(&["a b", "c"]), of(&["e", "f"])), (of(&["g"]), of(&[]))];
    assert_eq!(glossary(page), rows);
}
