//! Tests: claims data that are accepted, and data that are refused.

use super::*;
use crate::fixture;

fn setup() -> String {
    format!("{}scaled = {{ run = \"1ms\", depth = 1 }}\n", fixture::SETUP)
}

fn claims() -> String {
    let rest = r#"
figures = [{ name = "f", unit = "GB/s", paper = 1, run = "a" }]
[[claim.runs]]
name = "a"
[[claim.runs]]
name = "b"
over = "size"
values = ["4KiB", "2MiB"]
with = { depth = 7 }
"#;
    fixture::claims(&[fixture::claim("C1", "something", "this", rest)])
}

#[test]
fn the_data_of_this_program_are_sound() {
    let catalogue = Catalogue::built_in().unwrap_or_else(|error| panic!("{error:#}"));
    let runnable: Vec<&str> = catalogue
        .claims
        .iter()
        .filter(|claim| claim.is_runnable())
        .map(|claim| claim.id.as_str())
        .collect();
    let first = ["Z-raw-peak", "Z-raw-4k", "Z-raw-2m", "Z-raw-read", "Z-chan", "Z-die", "R-raw"];
    for id in first.into_iter().chain(["R1", "R9", "R20"]) {
        assert!(runnable.contains(&id), "{id} cannot be run");
    }
    let replays = catalogue.claim("R24").unwrap();
    assert!(replays.replays && replays.is_runnable() && !catalogue.has_all(replays));
    // Every claim of the four sources is listed, runnable or not.
    let ids: BTreeSet<String> = catalogue.claims.iter().map(|claim| claim.id.clone()).collect();
    let numbered = [("Z", 23), ("H", 10), ("R", 27), ("V", 9)];
    for (letter, count) in numbered {
        for number in 1..=count {
            assert!(ids.contains(&format!("{letter}{number}")), "{letter}{number} is missing");
        }
    }
    // Four claims have no published result.
    assert!(["H-read", "H-buffered", "R-bare", "R-join"].iter().all(|id| ids.contains(*id)));
    assert_eq!(ids.len(), first.len() + 69 + 4);
    assert_eq!(catalogue.claim("z-RAW-peak").map(|claim| claim.id.as_str()), Some("Z-raw-peak"));
    assert!(catalogue.claim("Z99").is_none());
}

/// A variant changes one thing in the runs behind a claim's published figures, and leaves out all
/// other runs.
#[test]
fn a_variant_changes_hosts_or_drives_and_keeps_published_figures() {
    let variant = |text: &str| format!("[[variant]]\nname = \"v\"\n{text}\n");
    let varied = |text: &str| {
        let setup = format!("{}{}", setup(), variant(text));
        let catalogue = Catalogue::parse(&setup, &claims()).unwrap();
        let varied = catalogue.variants[0].applied(&catalogue);
        let concerned = catalogue.variants[0].concerns(&varied, &varied.claims[0], Size::Scaled);
        let claim = &varied.claims[0];
        let trials = varied.trials(claim, Size::Scaled).unwrap();
        assert_eq!(trials.len(), 1, "run `b` is of no published figure");
        (trials[0].points[0].point.clone(), concerned)
    };
    let (plain, concerned) = varied("");
    assert!(concerned && plain.host.cpu.0 == 0);
    let (slow, concerned) = varied("cpu = \"5us\"");
    assert!(concerned && slow.host.cpu.0 == 5_000 && slow.device == plain.device);
    // Commands to the raw drive leave no dirty data.
    assert!(!varied("dirty = \"1MiB\"").1);
    let (drive, concerned) = varied("model.pm1731a = \"model.buffer=1MiB\"");
    assert!(concerned && drive.device.ends_with(",model.buffer=1MiB"), "{}", drive.device);
    let (other, concerned) = varied("model.j5100 = \"model.buffer=1MiB\"");
    assert!(!concerned && other == plain);
    let wrong = format!("{}{}", setup(), variant("model.pm1731a = \"bufer=1MiB\""));
    let error = Catalogue::parse(&wrong, &claims()).unwrap_err();
    assert!(format!("{error:#}").contains("variant v"), "{error:#}");
}

/// Nothing tests an unused entry, so every entry must be used by a claim or be named here.
#[test]
fn every_device_and_workload_has_a_use() {
    let catalogue = Catalogue::built_in().unwrap();
    let mut specs = BTreeSet::new();
    for claim in &catalogue.claims {
        for series in catalogue.trials(claim, Size::Full).unwrap() {
            specs.extend(series.points.into_iter().map(|point| point.point.device));
        }
    }
    for (name, device) in &catalogue.devices {
        assert!(specs.iter().any(|spec| spec.starts_with(&device.spec)), "{name} is not used");
    }
}

#[test]
fn a_point_is_the_workload_with_size_trial_and_value_laid_over() {
    let catalogue = Catalogue::parse(&setup(), &claims()).unwrap();
    let claim = &catalogue.claims[0];
    let scaled = catalogue.trials(claim, Size::Scaled).unwrap();
    let full = catalogue.trials(claim, Size::Full).unwrap();
    let of = |series: &Series, at: usize| series.points[at].point.workload.clone();
    assert_eq!((of(&scaled[0], 0).depth, of(&scaled[0], 0).run.0), (1, 1_000_000));
    assert_eq!((of(&full[0], 0).depth, of(&full[0], 0).run.0), (4, 20_000_000));
    assert_eq!((of(&scaled[1], 1).depth, of(&scaled[1], 1).size.0), (7, 2 << 20));
    assert_eq!(scaled[1].points[0].x, 4096.0);
    assert_eq!(scaled[1].points[1].label, "2MiB");
    assert_ne!(scaled[1].points[0].point.canonical(), scaled[1].points[1].point.canonical());
    let point = &scaled[1].points[1].point;
    assert_eq!(serde_json::from_str::<Point>(&point.canonical()).unwrap(), *point);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (from, to, words) in [
        ("source = \"s\"", "source = \"t\"", ["C1", "no source is called `t`"]),
        ("device = \"d\"", "device = \"e\"", ["C1", "no device is called `e`"]),
        ("workload = \"w\"", "workload = \"v\"", ["C1", "no workload is called `v`"]),
        ("depth = 7", "dept = 7", ["run `b`", "dept"]),
        ("depth = 7", "depth = 0", ["run `b`", "`depth` is 0"]),
        ("with = {", "array = { depth = 3 }\nwith = {", ["run `b`", "has none"]),
        ("over = \"size\"", "over = \"array.size\"", ["run `b`", "has none"]),
        ("what =", "replays = true\nwhat =", ["C1", "`replays`"]),
        ("over = \"size\"", "over = \"sizes\"", ["run `b`", "sizes"]),
        ("\"2MiB\"", "\"2MiBi\"", ["run `b`", "2MiBi"]),
        ("run = \"a\"", "run = \"z\"", ["figure `f`", "no run is called `z`"]),
        ("run = \"a\"", "run = \"b\"", ["figure `f`", "without `at`"]),
        ("run = \"a\"", "run = \"b\", at = \"8KiB\"", ["figure `f`", "no value `8KiB`"]),
        ("unit = \"GB/s\"", "unit = \"us\"", ["figure `f`", "no metric"]),
        ("paper = 1", "paper = [2, 1]", ["figure `f`", "a range from 2 to 1"]),
        ("paper = 1", "paper = nan", ["figure `f`", "not a number"]),
        ("forecast = \"this\"", "", ["C1", "forecast"]),
        ("what =", "needs = \"x\"\nwhat =", ["C1", "either"]),
        ("version = 1", "version = 2", ["claims.toml", "version 2"]),
        ("version = 1", "", ["claims.toml", "no version"]),
        ("version = 1", "version 1", ["claims.toml:1: ", "expected"]),
        ("what =", "wat =", ["claims.toml", "wat"]),
        ("paper = 1", "paper = 1, same_as = \"C2: f\"", ["C1", "no claim `C2`"]),
        ("paper = 1", "paper = 1, same_as = \"g\"", ["C1", "`same_as`: no figure"]),
        ("run = \"a\"", "run = \"a\", take = \"most\"", ["figure `f`", "no `per`"]),
        (
            "run = \"a\"",
            "run = \"a\", per = \"a\", take = \"ratio\", good = \"less\"",
            ["figure `f`", "`good` of a gain"],
        ),
    ] {
        let broken = claims().replacen(from, to, 1);
        assert_ne!(broken, claims());
        let error = format!("{:#}", Catalogue::parse(&setup(), &broken).unwrap_err());
        assert!(words.iter().all(|word| error.contains(word)), "{from} -> {to}: {error}");
    }
    for (from, to, words) in [
        (",timing=virtual", "", ["device d", "not timed"]),
        (
            "mem:pm1731a,timing=virtual,medium=discard",
            "disk.zns",
            ["device d", "not a drive in memory"],
        ),
        ("mem:pm1731a", "mem:pm1731b", ["device d", "pm1731b"]),
        ("engine = \"none\"", "engine = \"raid\"", ["profile raw", "needs one"]),
        (
            "engine = \"none\"",
            "engine = \"raid\"\narray = { depth = 0 }",
            ["profile raw", "`depth` is 0"],
        ),
        (
            "about = \"no <engine>\"",
            "about = \"\"\npolicy = { order = \"blocking\" }",
            ["profile raw", "policies"],
        ),
        ("size = \"64KiB\"", "size = \"5000\"", ["workload w", "multiple"]),
    ] {
        let broken = setup().replacen(from, to, 1);
        assert_ne!(broken, setup());
        let error = format!("{:#}", Catalogue::parse(&broken, &claims()).unwrap_err());
        assert!(words.iter().all(|word| error.contains(word)), "{from} -> {to}: {error}");
    }
}

/// A directory for data that is removed at the end of the test.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("furrow-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_of_a_directory_replace_those_of_their_name_and_others_are_added() {
    let own = Directory::new("lab-own-data");
    let name = |file: &str| own.0.join(file).display().to_string();
    let refused = || format!("{:#}", Catalogue::with(&own.0).unwrap_err());
    assert!(refused().contains("no data in it"), "{}", refused());
    own.write(
        "setup-mine.toml",
        "[device.mine]\nspec = \"mem:pm1731a,timing=virtual\"\nabout = \"a\"\n",
    );
    let claim = r#"
figures = [{ name = "f", unit = "GB/s", paper = 1, run = "r" }]
[[claim.runs]]
name = "r"
"#;
    let claim = fixture::claim("Mine", "mine", "this", claim);
    let claim = claim.replacen("\"s\"", "\"z-lfs\"", 1).replacen("\"d\"", "\"mine\"", 1);
    let claim = claim.replacen("\"h\"", "\"kernel\"", 1).replacen("\"w\"", "\"zone-write\"", 1);
    own.write("claims-mine.toml", &claim);
    let all = Catalogue::with(&own.0).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(all.claims.len(), Catalogue::built_in().unwrap().claims.len() + 1);
    let differences = &all.changed.as_ref().unwrap().differences;
    assert_eq!(differences[..], ["claim Mine: not built in", "device mine: not built in"]);
    assert_eq!(all.options_of(all.claim("Mine").unwrap()), format!(" --data {}", own.0.display()));

    // An error names the file that is wrong, and the line.
    own.write("claims-mine.toml", &claim.replacen("zone-write", "zone-right", 1));
    let error = refused();
    assert!(
        error.starts_with(&name("claims-mine.toml")) && error.contains("zone-right"),
        "{error}"
    );
    own.write("claims-mine.toml", &claim.replacen("forecast", "forcast", 1));
    let (error, line) =
        (refused(), claim.lines().position(|l| l.contains("forecast")).unwrap() + 1);
    assert!(error.starts_with(&format!("{}:{line}: ", name("claims-mine.toml"))), "{error}");
    assert!(error.contains("forcast"), "{error}");
    own.write("claims-mine.toml", &claim.replacen("Mine", "R1", 1));
    let error = refused();
    let twice = format!("{}: claim R1: claims-zapraid.toml has it, too", name("claims-mine.toml"));
    assert_eq!(error, twice);
    own.write("claim.toml", "");
    assert!(refused().starts_with(&name("claim.toml")), "{}", refused());
}

#[test]
fn a_changed_file_is_all_that_is_needed_and_only_what_differs_is_listed() {
    let own = Directory::new("lab-changed-data");
    let text = include_str!("../../data/setup-zapraid.toml");
    own.write("setup-zapraid.toml", text);
    assert_eq!(Catalogue::with(&own.0).unwrap().changed, None);
    let deeper = "way = \"zone-write\", depth = 3";
    assert!(text.contains(deeper));
    own.write("setup-zapraid.toml", &text.replacen(deeper, "way = \"zone-write\", depth = 4", 1));
    let changed = Catalogue::with(&own.0).unwrap().changed.unwrap();
    assert_eq!(changed.differences, ["profile array-write: array depth 4 instead of 3"]);
    let many =
        Changed { directory: String::new(), differences: (0..25).map(|n| n.to_string()).collect() };
    assert_eq!((many.lines().len(), many.lines().last().unwrap().as_str()), (21, "and 5 more"));
}
