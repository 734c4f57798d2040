//! `furrow-lab` from outside: what it prints, what it keeps, how it ends.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "runs the command")]

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("furrow-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        Folder(folder)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lab(arguments: &[&str], cache: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_furrow-lab"));
    command.args(arguments).env("XDG_CACHE_HOME", cache).env("COLUMNS", "100");
    command.output().expect("furrow-lab runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_list_has_every_claim_and_its_state() {
    let cache = Folder::new("lab-list");
    let output = lab(&["list"], cache.path());
    let shown = text(&output.stdout);
    let line = |id: &str| {
        let found = shown.lines().find(|line| line.starts_with(&format!("  {id} ")));
        found.unwrap_or_else(|| panic!("{id} is not in\n{shown}")).to_owned()
    };
    assert!(line("Z-raw-peak").ends_with("[figure 1, section 3.1]"), "{}", line("Z-raw-peak"));
    assert!(line("R25").contains("needs"), "{}", line("R25"));
    let list = json(&lab(&["list", "--json"], cache.path()));
    assert_eq!(list["version"], 1);
    let catalogue = furrow_lab::catalogue::Catalogue::built_in().expect("it is sound");
    let listed = list["claims"].as_array().expect("a list");
    assert!(listed.iter().map(|claim| &claim["id"]).eq(catalogue.claims.iter().map(|c| &c.id)));
    // The output has each paper, a line for each claim, whatever COLUMNS is, and the sum.
    let papers = catalogue.claims.iter().map(|claim| &claim.source);
    let papers = papers.collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!(shown.lines().count(), papers + (papers - 1) + listed.len() + 2, "{shown}");
    for claim in listed {
        let (id, what) = (claim["id"].as_str().unwrap(), claim["what"].as_str().unwrap());
        assert!(line(id).contains(what), "{}", line(id));
    }
    let runnable = json(&lab(&["list", "--json", "--runnable"], cache.path()));
    let ids: Vec<&str> =
        runnable["claims"].as_array().unwrap().iter().filter_map(|c| c["id"].as_str()).collect();
    assert!(ids.contains(&"R-raw") && ids.contains(&"R1"), "{ids:?}");
    // The program contains no trace.
    assert!(!ids.contains(&"R24") && !ids.contains(&"R25"), "{ids:?}");
}

#[test]
fn a_run_is_the_same_twice_and_says_what_it_compared() {
    let cache = Folder::new("lab-run");
    let arguments = ["run", "z-die", "--seeds", "1", "--json"];
    let first = lab(&arguments, cache.path());
    let document = json(&first);
    // The results come from the cache if this build keeps results; otherwise they are
    // computed again.
    let again = lab(&arguments, cache.path());
    let uncached = lab(&[&arguments[..], &["--no-cache"]].concat(), cache.path());
    for other in [again, uncached] {
        for (one, two) in text(&first.stdout).lines().zip(text(&other.stdout).lines()) {
            assert_eq!(one, two);
        }
        assert_eq!(first.stdout.len(), other.stdout.len());
    }
    assert_eq!((&document["version"], &document["seeds"][0]), (&Value::from(3), &Value::from(1)));
    let claim = &document["claims"][0];
    assert_eq!(claim["id"], "Z-die");
    let figure = &claim["figures"][0];
    assert_eq!((&figure["paper"], &figure["unit"]), (&Value::from(50.0), &Value::from("%")));
    let ours = figure["ours"]["mean"].as_f64().unwrap();
    assert!((50.0..60.0).contains(&ours), "two readers of a die lose {ours} %");
    let scenario = &claim["runs"][0]["points"][0]["scenario"];
    assert_eq!(scenario["workload"]["size"], "4KiB");
    assert_eq!(scenario["device"], "mem:pm1731a,timing=virtual,medium=discard");

    let shown = text(&lab(&["run", "Z-die", "--seeds", "1"], cache.path()).stdout);
    assert!(shown.contains("loss at distance 128") && shown.contains("calibrated"), "{shown}");
    assert!(shown.contains("scaled size, 1 seed, "), "{shown}");
    let kept = cache.path().join("furrow").join("lab").exists();
    assert_eq!(kept, !shown.contains("nothing was taken from the cache"), "{shown}");
}

#[test]
fn a_report_is_one_file_that_needs_no_other() {
    let cache = Folder::new("lab-report");
    let file = cache.path().join("report.html");
    let file = file.to_str().expect("a path in UTF-8");
    let output = lab(&["report", "Z-die", "-o", file, "--seeds", "1", "--no-cache"], cache.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).ends_with(&format!("written: {file}\n")));
    let html = std::fs::read_to_string(file).expect("the report was written");
    for part in ["<!doctype html>", "id=\"z-die\"", "<svg", "furrow-lab run Z-die --scaled"] {
        assert!(html.contains(part), "{part} is missing");
    }
    assert!(!html.contains("<script") && !html.contains(" src="), "something is loaded");
    let nowhere = lab(&["report", "Z-die", "-o", "/dev/null/x", "--seeds", "1"], cache.path());
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(text(&nowhere.stderr).contains("cannot write /dev/null/x"));
}

#[test]
fn a_report_from_changed_data_says_so_and_how_to_repeat_it() {
    let folder = Folder::new("lab-data");
    let own = folder.path().join("my data");
    std::fs::create_dir_all(&own).expect("a directory can be made");
    let own = own.to_str().expect("a path in UTF-8");
    // The directory has a copy of one of the built-in data files, with one parameter changed.
    let setup = include_str!("../data/setup.toml");
    let (from, to) = (
        "[device.pm1731a]\nspec = \"mem:pm1731a,",
        "[device.pm1731a]\nspec = \"mem:pm1731a,zones=20000,",
    );
    assert!(setup.contains(from), "the drive of the test is another one now");
    std::fs::write(format!("{own}/setup.toml"), setup.replacen(from, to, 1)).expect("written");
    let file = folder.path().join("report.html");
    let file = file.to_str().expect("a path in UTF-8");
    let arguments = ["Z-die", "--seeds", "1", "--no-cache", "--data", own];
    let report = lab(&[&["report", "-o", file], &arguments[..]].concat(), folder.path());
    assert!(report.status.success(), "{}", text(&report.stderr));
    let html = std::fs::read_to_string(file).expect("the report was written");
    let drive =
        |zones: &str| format!("&quot;mem:pm1731a,{zones}timing=virtual,medium=discard&quot;");
    let changed =
        format!("device pm1731a: spec {} instead of {}", drive("zones=20000,"), drive(""));
    let repeat = format!("furrow-lab run Z-die --scaled --seeds 1 --data &#39;{own}&#39;");
    for part in [&changed, &repeat, "The data are not those of the commit"] {
        assert!(html.contains(part), "{part} is missing in {html}");
    }
    // Everything else that shows what was run also names the change.
    let shown = text(&lab(&[&["run"], &arguments[..]].concat(), folder.path()).stdout);
    assert!(shown.contains("device pm1731a: spec") && shown.contains(own), "{shown}");
    let document = json(&lab(&[&["run", "--json"], &arguments[..]].concat(), folder.path()));
    assert_eq!(document["changed_data"]["directory"], own);
    assert_eq!(document["changed_data"]["differences"].as_array().map(Vec::len), Some(1));
    // The figures are not those of the commit, so they are not kept.
    let docs = folder.path().to_str().expect("a path in UTF-8");
    let keep = lab(&[&["keep", "--docs", docs], &arguments[..]].concat(), folder.path());
    assert_eq!(keep.status.code(), Some(1));
    assert!(text(&keep.stderr).contains("only figures of the commit"), "{}", text(&keep.stderr));
    // Unchanged data in another directory count as the same data.
    std::fs::write(format!("{own}/setup.toml"), setup).expect("written");
    let same = json(&lab(&[&["run", "--json"], &arguments[..]].concat(), folder.path()));
    assert_eq!(same["changed_data"], Value::Null);
}

#[test]
fn what_cannot_be_run_is_one_line_and_a_status() {
    let cache = Folder::new("lab-wrong");
    for (arguments, status, words) in [
        (
            &["run", "Z99"][..],
            1,
            "no claim is called 'Z99' (did you mean 'Z9' or 'Z19'?): see 'furrow-lab list'",
        ),
        (&["run", "R25"], 1, "R25 cannot be run yet, it needs"),
        (&["run", "R24"], 1, "R24 replays a trace: name one with '--trace FILE'"),
        (&["run", "Z20"], 1, "Z20 replays recorded runs: name their directory"),
        (&["run", "Z20", "--recorded", "/nowhere"], 1, "cannot read /nowhere"),
        (&["run", "R24", "--trace", "/nowhere/t"], 1, "cannot read trace /nowhere/t"),
        (&["run", "Z20", "--data", "/nowhere"], 1, "cannot read /nowhere"),
        (&["run"], 2, "required"),
        (&["pages", "--seeds", "1"], 2, "unexpected argument"),
        (&["pages", "--trace", "t"], 2, "unexpected argument"),
        (&["list", "--jobs", "1"], 2, "unexpected argument"),
        (&["run", "Z-die", "--all"], 2, "cannot be used with"),
        (&["run", "Z-die", "--full", "--scaled"], 2, "cannot be used with"),
        (&["run", "Z-die", "--seeds", "0"], 2, "not in 1..=1000"),
    ] {
        let output = lab(arguments, cache.path());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        assert!(error.contains(words) && error.lines().count() == 1, "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_drive_is_held_against_its_measurements() {
    let cache = Folder::new("lab-calibrate");
    let table = text(&lab(&["calibrate", "zn540-4t", "--seeds", "2"], cache.path()).stdout);
    assert!(table.contains("zn540-4t: 13 of 13 rows within tolerance"), "{table}");
    assert_eq!(table.lines().filter(|line| line.starts_with("zn540-4t ")).count(), 13, "{table}");
    assert!(table.contains("seeds: 2 seeds of a row lie"), "{table}");
    for (arguments, status, words) in [
        (&["calibrate", "zn541"][..], 1, "nothing was measured on `zn541`"),
        (&["calibrate", "--seeds", "0"], 2, "see 'furrow-lab calibrate --help'"),
    ] {
        let output = lab(arguments, cache.path());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
}

#[test]
fn a_report_of_everything_says_what_it_is_about_to_do() {
    let cache = Folder::new("lab-report-all");
    let mut command = Command::new(env!("CARGO_BIN_EXE_furrow-lab"));
    let file = cache.path().join("report.html");
    command.args(["report", "--cache"]).arg(cache.path()).arg("-o").arg(file);
    let mut running = command.stderr(Stdio::piped()).spawn().expect("furrow-lab runs");
    let mut line = String::new();
    let stderr = running.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    running.kill().expect("it can be ended");
    running.wait().expect("it ends");
    for words in
        [" claims of size scaled, ", " runs, 0 of them in the cache: about ", " processors"]
    {
        assert!(line.contains(words), "no '{words}': {line}");
    }
}

#[test]
fn nobody_left_to_read_the_list_is_no_failure() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_furrow-lab"));
    let output = command.arg("list").stdout(writer).stderr(Stdio::piped()).output();
    let output = output.expect("furrow-lab runs");
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}
