//! The page of JSON fields is made from the types, and lacks no field.
//!
//! The fields of types get their meanings from the documentation comments. Documents that a
//! function puts together have only names there; each name has the same meaning in all of them,
//! which [`WORDS`] gives.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "reads the tree")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "json_page/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use words::WORDS;

/// The generated part of the page begins with this line.
const BEGINS: &str = "## Fields";
/// Sources of documents, below `crates`.
const SOURCES: [&str; 3] = ["cli/src", "fuse/src", "capi/src"];

/// A command, and the parts of its document: files below `crates`, and types or functions in them.
type Document = (&'static str, &'static [(&'static str, &'static [&'static str])]);

const DOCUMENTS: &[Document] = &[
    (
        "furrow df",
        &[
            ("cli/src/df.rs", &["Document", "Mount"]),
            ("fuse/src/report.rs", &["Status", "Silence", "Info", "Space"]),
            ("fuse/src/report/counters.rs", &["Traffic", "Counters"]),
        ],
    ),
    ("furrow map", &[("fuse/src/report.rs", &["MapPage", "Zone"])]),
    (
        "furrow stat",
        &[
            ("fuse/src/report/stat.rs", &["Stat", "Permits", "MemoryUse", "Memory", "Stream"]),
            ("fuse/src/latency.rs", &["Operation"]),
        ],
    ),
    ("furrow gc", &[("fuse/src/report.rs", &["Cleaned"])]),
    (
        "furrow scrub",
        &[("cli/src/scrub.rs", &["answer"]), ("control/src/scrub.rs", &["Scrub", "ScrubDamage"])],
    ),
    ("furrow top", &[("cli/src/top.rs", &["Frame", "Mount", "Requests", "Zones", "Array"])]),
    ("furrow mkfs", &[("cli/src/mkfs.rs", &["Document", "Line"])]),
    (
        "furrow fsck",
        &[
            ("cli/src/fsck.rs", &["document", "finding"]),
            ("cli/src/fsck/repair.rs", &["described"]),
        ],
    ),
    ("furrow device create", &[("cli/src/device.rs", &["tell"])]),
    ("furrow device show", &[("cli/src/device.rs", &["show", "show_json", "timing_json"])]),
    ("furrow device report", &[("cli/src/device.rs", &["report"])]),
    ("furrow device presets", &[("cli/src/device/presets.rs", &["run", "overview", "whole"])]),
    ("furrow device check", &[("cli/src/device/check.rs", &["run"])]),
    ("furrow device zone", &[("cli/src/device/zone.rs", &["show"])]),
    ("furrow device fault", &[("cli/src/device/fault.rs", &["list_json", "as_json"])]),
    ("furrow raid create", &[("cli/src/raid/create.rs", &["print"])]),
    (
        "furrow raid examine",
        &[("cli/src/raid/examine.rs", &["Document", "Array", "Member", "Spare", "Other"])],
    ),
    (
        "furrow raid status",
        &[
            (
                "cli/src/raid/status.rs",
                &[
                    "Document",
                    "Status",
                    "Member",
                    "Rebuild",
                    "LastRebuild",
                    "Scrub",
                    "Damage",
                    "LostRange",
                    "Requests",
                ],
            ),
            ("cli/src/raid/client.rs", &["Silent"]),
            ("cli/src/raid/notice.rs", &["Notice"]),
        ],
    ),
    ("other furrow raid commands", &[("cli/src/raid.rs", &["Answer"])]),
    ("furrow kv mkfs", &[("cli/src/kv/mkfs.rs", &["run"])]),
    ("furrow kv ls", &[("cli/src/kv/ls.rs", &["run", "entry"])]),
    ("furrow kv df", &[("cli/src/kv/df.rs", &["run"])]),
    ("furrow kv map", &[("cli/src/kv/map.rs", &["run"])]),
    ("furrow kv stat", &[("cli/src/kv/stat.rs", &["document"])]),
    (
        "furrow kv stat of a store in use",
        &[("capi/src/control.rs", &["stat"]), ("cli/src/kv/running.rs", &["document"])],
    ),
    ("furrow kv fsck", &[("cli/src/kv/fsck.rs", &["document", "of"])]),
    ("furrow kv fsck of a store in use", &[("cli/src/kv/fsck/in_use.rs", &["document", "of"])]),
    ("furrow kv get", &[("cli/src/kv/get.rs", &["run"])]),
    ("furrow kv put", &[("cli/src/kv/put.rs", &["run"])]),
    ("furrow kv backup", &[("cli/src/kv/backup.rs", &["run"])]),
    ("furrow kv restore", &[("cli/src/kv/restore.rs", &["run"])]),
    ("furrow kv trace", &[("cli/src/kv/trace.rs", &["run"])]),
    ("furrow demo", &[("cli/src/demo/mod.rs", &["Verified"])]),
];

/// Types and functions that are not documents of a command: requests and answers of sockets, and
/// parts that another entry of [`DOCUMENTS`] shows.
const OTHERS: &[(&str, &str)] = &[
    ("fuse/src/report.rs", "carry_out"),
    ("cli/src/raid/host/members.rs", "replace"),
    ("capi/src/control.rs", "answer"),
    ("capi/src/control.rs", "scrub"),
    ("capi/src/control.rs", "zones"),
    ("cli/src/kv/running.rs", "sample"),
    ("cli/src/metrics/page.rs", "array"),
];

/// A map in a type that is written as JSON: file, type, field (0: the type itself is the map), the
/// name that its keys follow on the page, and the keys with their meanings. Without keys, the
/// meaning of the field lists them.
type Map = (&'static str, &'static str, &'static str, &'static str, fn() -> Vec<(String, String)>);

const MAPS: &[Map] = &[
    ("cli/src/raid/status.rs", "Status", "counters", "counters", counted),
    ("cli/src/raid/status.rs", "Status", "segments", "", Vec::new),
    ("cli/src/raid/status.rs", "Status", "requests", "", Vec::new),
    ("cli/src/top.rs", "Zones", "uses", "", Vec::new),
    ("cli/src/top.rs", "Array", "requests", "", Vec::new),
    ("cli/src/top.rs", "Array", "segments", "", Vec::new),
    ("fuse/src/report/stat.rs", "Memory", "0", "memory.now", remembered),
];

fn counted() -> Vec<(String, String)> {
    let all = furrow_raid::Counters::default().each();
    all.into_iter().map(|(name, what, _)| (name.to_owned(), what.to_owned())).collect()
}

fn remembered() -> Vec<(String, String)> {
    let parts = furrow_fuse::report::Memory::parts();
    let mut all: Vec<_> =
        parts.map(|(name, what)| (name.to_owned(), format!("Bytes: {what}"))).collect();
    all.push(("total".to_owned(), "Bytes: the sum of these".to_owned()));
    all.push(("dirty".to_owned(), "Bytes of cached blocks that are not written yet".to_owned()));
    let sent = furrow_fuse::report::Memory::from(furrow_fs::Memory::default());
    let sent = serde_json::to_value(sent).unwrap();
    let names: BTreeSet<&String> = sent.as_object().unwrap().keys().collect();
    assert_eq!(names, all.iter().map(|(name, _)| name).collect(), "every name has a meaning");
    all
}

/// A type or function, and the fields of its JSON: each with its name and, if documented there,
/// its meaning.
#[derive(Debug, Default, PartialEq)]
struct Item {
    name: String,
    fields: Vec<(String, Option<String>)>,
}

/// The text of a line that is a documentation comment.
fn doc(line: &str) -> Option<&str> {
    line.trim().strip_prefix("///").map(str::trim)
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// The keys that a line gives to a JSON object: `"key": value` and `["key"] = value`.
fn keys(line: &str) -> Vec<String> {
    let parts: Vec<&str> = line.split('"').collect();
    let mut keys = Vec::new();
    for at in (1..parts.len()).step_by(2) {
        let (word, after) = (parts[at], parts.get(at + 1).copied().unwrap_or_default());
        let before = parts[at - 1];
        let assigned = before.ends_with('[') && after.starts_with("] = ");
        if is_word(word) && ((after.starts_with(':') && !after.starts_with("::")) || assigned) {
            keys.push(word.to_owned());
        }
    }
    keys
}

/// The types that are written as JSON, and the functions that put JSON together.
fn items(source: &str) -> Vec<Item> {
    // Tests in the file itself stand at its end; those in a file of their own are named anywhere.
    let source = source.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
    let mut items: Vec<Item> = Vec::new();
    let (mut attributes, mut docs) = (String::new(), Vec::new());
    let (mut inside, mut counters, mut pending) = (false, false, None::<String>);
    for line in source.lines() {
        let text = line.trim();
        if let Some(doc) = doc(line) {
            docs.push(doc.to_owned());
            continue;
        }
        if text.starts_with("#[") {
            attributes.push_str(text);
            continue;
        }
        if text.starts_with("//") {
            continue;
        }
        // A macro makes the counters of a mount from names and meanings.
        if line == "counters! {" {
            items.push(Item { name: "Counters".to_owned(), fields: Vec::new() });
            counters = true;
            continue;
        }
        if counters {
            let ended = line == "}";
            let all = format!("{}{text}", pending.take().map(|p| p + " ").unwrap_or_default());
            match all.split_once(": \"") {
                Some((name, meaning)) if meaning.ends_with("\",") => {
                    let meaning = meaning.trim_end_matches("\",").replace("\\ ", "");
                    let field = (name.to_owned(), Some(meaning));
                    items.last_mut().unwrap().fields.push(field);
                }
                _ if !ended => pending = Some(all),
                _ => counters = false,
            }
            continue;
        }
        if inside {
            if line.trim_end() == "}" {
                inside = false;
            } else if let Some((name, _)) = text.trim_start_matches("pub ").split_once(':')
                && !attributes.contains("serde(skip)")
                && is_word(name)
            {
                let renamed = attributes.split("rename = \"").nth(1);
                let name = renamed.and_then(|rest| rest.split('"').next()).unwrap_or(name);
                let flat = attributes.contains("serde(flatten)");
                let meaning = (!docs.is_empty()).then(|| docs.join(" "));
                if !flat {
                    items.last_mut().unwrap().fields.push((name.to_owned(), meaning));
                }
            }
        } else if let Some(name) = text.split("struct ").nth(1).filter(|_| text.ends_with('{')) {
            if attributes.contains("Serialize") && !line.contains("$") {
                let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
                items.push(Item { name, fields: Vec::new() });
                inside = true;
            }
        } else if let Some(name) = text.split("fn ").nth(1).filter(|_| text.contains("fn ")) {
            let name: String =
                name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            items.push(Item { name, fields: Vec::new() });
        }
        if !inside && let Some(item) = items.last_mut() {
            item.fields.extend(keys(line).into_iter().map(|key| (key, None)));
        }
        (attributes, docs) = (String::new(), Vec::new());
    }
    items.retain(|item| !item.fields.is_empty());
    items
}

/// The types written as JSON that have a map, with the fields.
fn maps(source: &str) -> Vec<(String, String)> {
    let (mut maps, mut serialized, mut item) = (Vec::new(), false, None::<String>);
    for line in source.lines() {
        let text = line.trim();
        let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric()).collect();
        if text.starts_with("#[") {
            serialized |= text.contains("Serialize");
        } else if let Some(rest) = text.split("struct ").nth(1).filter(|_| !text.starts_with("//"))
        {
            let found: String = name(rest);
            if serialized && rest.contains("(BTreeMap<String") {
                maps.push((found.clone(), "0".to_owned()));
            }
            item = (serialized && text.ends_with('{')).then_some(found);
            serialized = false;
        } else if line == "}" {
            (item, serialized) = (None, false);
        } else if let (Some(item), Some((field, kind))) =
            (&item, text.trim_start_matches("pub ").split_once(": "))
            && kind.contains("BTreeMap<String")
        {
            maps.push((item.clone(), field.to_owned()));
        }
    }
    maps
}

/// A map whose keys are not in the sources of its type is on the page as well.
#[test]
fn no_map_is_left_out() {
    let mut found = BTreeSet::new();
    for path in all_sources() {
        let source = fs::read_to_string(crates().join(&path)).unwrap();
        found.extend(maps(&source).into_iter().map(|(item, field)| (path.clone(), item, field)));
    }
    let listed = MAPS.iter().map(|(path, item, field, ..)| {
        ((*path).to_owned(), (*item).to_owned(), (*field).to_owned())
    });
    assert_eq!(found, listed.collect());
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn all_sources() -> Vec<String> {
    fn walk(folder: &Path, name: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{name}/{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => walk(&entry.path(), &path, found),
                false if path.ends_with(".rs") => found.push(path),
                false => {}
            }
        }
    }
    let mut found = Vec::new();
    SOURCES.iter().for_each(|folder| walk(&crates().join(folder), folder, &mut found));
    found.sort();
    found
}

fn items_of(path: &str) -> Vec<Item> {
    items(&fs::read_to_string(crates().join(path)).unwrap())
}

/// A field of a document, and its meaning.
type Row = (String, String);

/// The counters of a mount, which the page of metrics explains.
const COUNTERS: (&str, &str) = ("fuse/src/report/counters.rs", "Counters");
/// Where the page of metrics explains the counters of a mount.
const OF_MOUNTS: &str = "Fields of `counters`, explained in [metrics.md](metrics.md#mounts)";
/// The same for those of an array, which have other units there.
const OF_ARRAYS: &str = "Fields of `counters`, explained in [metrics.md](metrics.md#arrays), which \
                         has bytes for blocks, and seconds for nanoseconds";

/// Names of fields, and the text before them on the page.
type Names = (&'static str, Vec<String>);

/// The rows of a document, its counters that are metrics, and its fields without a meaning.
fn document(parts: &[(&str, &[&str])]) -> (Vec<Row>, Names, Vec<String>) {
    let words: BTreeMap<&str, &str> = WORDS.iter().copied().collect();
    let (mut rows, mut counters, mut missing) = (Vec::new(), ("", Vec::new()), Vec::new());
    for (path, names) in parts {
        let found = items_of(path);
        for name in *names {
            // A function may put together several objects.
            let of_name: Vec<&Item> = found.iter().filter(|item| item.name == *name).collect();
            let maps: Vec<_> = MAPS.iter().filter(|map| (map.0, map.1) == (*path, *name)).collect();
            assert!(!of_name.is_empty() || !maps.is_empty(), "{path}: {name} has no fields");
            for (field, meaning) in of_name.iter().flat_map(|item| &item.fields) {
                let known = meaning.as_deref().or_else(|| words.get(&**field).copied());
                let Some(meaning) = known else {
                    missing.push(format!("{path}: {name}: {field}"));
                    continue;
                };
                if (*path, *name) == COUNTERS {
                    counters.0 = OF_MOUNTS;
                    counters.1.push(field.clone());
                    continue;
                }
                let meaning = meaning.replace(['[', ']'], "");
                let row = (field.clone(), meaning.trim_end_matches('.').to_owned());
                // A separate part of the page says that each document has a version.
                if field != "version" && !rows.contains(&row) {
                    rows.push(row);
                }
            }
            for (_, _, _, of, names) in maps {
                let names = names().into_iter();
                if *of == "counters" {
                    counters = (OF_ARRAYS, names.map(|(field, _)| field).collect());
                } else {
                    rows.extend(names.map(|(field, meaning)| (format!("{of}.{field}"), meaning)));
                }
            }
        }
    }
    (rows, counters, missing)
}

fn listed(rows: &[Row]) -> String {
    rows.iter().map(|(field, meaning)| format!("- `{field}`: {meaning}\n")).collect()
}

/// The part of the page that is made here, and the fields without a meaning. A field that means
/// the same in several documents is explained once, before them.
fn fields() -> (String, Vec<String>) {
    let documents: Vec<_> = DOCUMENTS.iter().map(|(_, parts)| document(parts)).collect();
    let shared = WORDS.iter().map(|(field, meaning)| ((*field).to_owned(), (*meaning).to_owned()));
    let shared: Vec<Row> = shared
        .filter(|row| documents.iter().filter(|(rows, ..)| rows.contains(row)).count() > 1)
        .collect();
    let mut page = format!("{BEGINS}\n\n### Several commands\n\n{}", listed(&shared));
    let mut all_missing = Vec::new();
    for ((command, _), (rows, counters, missing)) in DOCUMENTS.iter().zip(documents) {
        page.push_str(&format!("\n### {command}\n"));
        let (known, own): (Vec<Row>, Vec<Row>) =
            rows.into_iter().partition(|row| shared.contains(row));
        let mut names = |intro: &str, names: Vec<String>| {
            if !names.is_empty() {
                page.push_str(&format!("\n{intro}: `{}`.\n", names.join("`, `")));
            }
        };
        names("Shared", known.into_iter().map(|(field, _)| field).collect());
        names(counters.0, counters.1);
        if !own.is_empty() {
            page.push_str(&format!("\n{}", listed(&own)));
        }
        all_missing.extend(missing);
    }
    (page, all_missing)
}

#[test]
fn the_page_has_every_field_of_every_document() {
    let (made, missing) = fields();
    assert!(missing.is_empty(), "without a meaning:\n{}", missing.join("\n"));
    let path = crates().join("../docs/use/json.md");
    let found = fs::read_to_string(&path).unwrap();
    let (text, old) = found.split_at(found.find(BEGINS).expect("the page has a part of fields"));
    if std::env::var_os("FURROW_WRITE_JSON_PAGE").is_some() {
        fs::write(&path, format!("{text}{made}")).unwrap();
        return;
    }
    let lacks: Vec<&str> = made.lines().filter(|line| !old.contains(line)).collect();
    let stale: Vec<&str> = old.lines().filter(|line| !made.contains(line)).collect();
    assert!(
        old == made,
        "docs/use/json.md is old; it lacks:\n{}\nno longer true:\n{}\nto write it: \
         FURROW_WRITE_JSON_PAGE=1 cargo test -p furrow-cli --test all the_page_has_every_field",
        lacks.join("\n"),
        stale.join("\n"),
    );
}

#[test]
fn no_document_is_left_out() {
    let listed: BTreeSet<(&str, &str)> = DOCUMENTS
        .iter()
        .flat_map(|(_, parts)| parts.iter())
        .flat_map(|(path, names)| names.iter().map(move |name| (*path, *name)))
        .chain(OTHERS.iter().copied())
        .collect();
    let mut left_out = Vec::new();
    for path in all_sources() {
        for item in items_of(&path) {
            if !listed.contains(&(&*path, &*item.name)) {
                left_out.push(format!("{path}: {}: {:?}", item.name, item.fields));
            }
        }
    }
    assert!(left_out.is_empty(), "on no page:\n{}", left_out.join("\n"));
}

#[test]
fn every_word_is_used_and_has_one_meaning() {
    let (mut used, mut words) = (BTreeSet::new(), BTreeSet::new());
    for (_, parts) in DOCUMENTS {
        for (path, names) in *parts {
            for item in items_of(path).into_iter().filter(|item| names.contains(&&*item.name)) {
                let undocumented = item.fields.into_iter().filter(|(_, meaning)| meaning.is_none());
                used.extend(undocumented.map(|(field, _)| field));
            }
        }
    }
    for (word, _) in WORDS {
        assert!(words.insert(*word), "{word} twice");
        assert!(used.contains(*word), "no document has {word}");
    }
}

#[test]
fn fields_are_found_in_types_and_functions() {
    let source = concat!(
        "#[cfg(test)]\nmod tests;\n\n",
        "/// A.\n#[derive(Clone, Serialize)]\npub struct A<'a> {\n    /// First\n",
        "    /// one.\n    pub one: u32,\n    #[serde(rename = \"use\")]\n    usage: &'a str,\n",
        "    #[serde(skip)]\n    not: u8,\n}\n\nstruct B {\n    no: u8,\n}\n\n",
        "fn c() -> Value {\n    json!({\n        \"x\": 1, \"y_2\": json!({ \"z\": 2 }),\n",
        "    })\n    value[\"w\"] = 3; f(\"not: this\", \"t\");\n}\n\n#[cfg(test)]\n",
        "mod tests {\n    fn d() { json!({ \"q\": 1 }) }\n}\n",
    );
    let field = |name: &str, meaning: Option<&str>| (name.to_owned(), meaning.map(str::to_owned));
    let types = vec![field("one", Some("First one.")), field("use", None)];
    let function = ["x", "y_2", "z", "w"].map(|name| field(name, None)).to_vec();
    let expected = [
        Item { name: "A".to_owned(), fields: types },
        Item { name: "c".to_owned(), fields: function },
    ];
    assert_eq!(items(source), expected);
}
