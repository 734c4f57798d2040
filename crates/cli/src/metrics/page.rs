//! The page of all metrics is made from the exporters' output; alert rules and dashboard name only
//! metrics on it.

use crate::kv;
use crate::raid;
use furrow_fuse::report::{Memory, Operation, Scrub, Stat, Stream, prometheus};
use furrow_metrics::{Family, families, problems};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The generated part of the page begins with this line.
const BEGINS: &str = "## Mounts";

fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The metrics of a mount that has at least one sample of every metric.
fn mount() -> String {
    let mut stat = Stat {
        memory: furrow_fuse::report::MemoryUse { now: Memory::default(), peak: Memory::default() },
        streams: vec![Stream {
            name: "s".to_owned(),
            quota: 1,
            open: 1,
            lent: 0,
            parked: 0,
            bytes: 1,
        }],
        operations: vec![Operation { name: "read".to_owned(), ..Operation::default() }],
        scrub: Some(Scrub::default()),
        ..Stat::default()
    };
    let status = &mut stat.status;
    for text in [&mut status.info.device, &mut status.info.directory, &mut status.label] {
        *text = "x".to_owned();
    }
    prometheus::text(&stat)
}

/// The metrics of an array, and of its NBD server.
fn array() -> (String, String) {
    let status = json!({
        "version": 2, "array": "a", "uuid": "u", "pid": 1, "level": "5", "state": "online",
        "size_bytes": 1, "used_bytes": 1, "map_memory_bytes": 1, "table_memory_bytes": 1,
        "may_fail": 1, "read_only": false, "listening": [], "clients": 0, "spares": [],
        "members": [{
            "member": 0, "uuid": "u", "device": "d", "state": "online", "read_errors": 0,
            "write_errors": 0, "checksum_errors": 0,
        }],
        "segments": { "free": 1, "open": 1, "sealed": 1, "truncated": 1, "releasing": 1 },
        "requests": { "read": { "count": 1, "total_ns": 1 } },
        "counters": {}, "events": [],
    });
    let status = serde_json::from_value(status).unwrap();
    let server = furrow_nbd::Status {
        listening: Vec::new(),
        stopping: false,
        accepted: 0,
        refused: 0,
        failed_handshakes: 0,
        refusals: furrow_nbd::Reason::ALL.iter().map(|reason| (*reason, 0)).collect(),
        evicted: 0,
        idle: 0,
        dropped: 0,
        exports: vec![furrow_nbd::ExportStatus {
            name: "a".to_owned(),
            size: 1,
            read_only: false,
            connections: 0,
            counts: furrow_nbd::Counts::default(),
        }],
        connections: Vec::new(),
    };
    let text = raid::metrics::text(&status, &furrow_raid::Counters::default());
    (text, server.prometheus(&[("array", "a")]))
}

/// Labels with a small, fixed set of values.
const NAMED: [&str; 7] = ["state", "part", "use", "command", "direction", "reason", "quantile"];

/// The generated part of the page for the metric families of one exporter.
fn part(families: &[Family]) -> String {
    let has = |family: &Family, label: &str| family.labels.iter().any(|(name, _)| name == label);
    let of_first = families[0].labels.iter().map(|(name, _)| name.as_str());
    let of_all: Vec<&str> =
        of_first.filter(|label| families.iter().all(|family| has(family, label))).collect();
    let mut text = format!("All samples have the labels `{}`.\n\n", of_all.join("`, `"));
    text.push_str("| metric | meaning |\n|---|---|\n");
    for family in families {
        // The page promises that the name of a metric implies its type and unit.
        let implied = match family.name.ends_with("_total") {
            true => "counter",
            false if has(family, "quantile") => "summary",
            false => "gauge",
        };
        assert_eq!(family.kind, implied, "{}", family.name);
        let own = family.labels.iter().filter(|(label, _)| !of_all.contains(&label.as_str()));
        let own: Vec<String> = own
            .map(|(label, values)| match NAMED.contains(&label.as_str()) {
                true => format!("`{label}`: {}", values.join(", ")),
                false => format!("`{label}`"),
            })
            .collect();
        let labels = match own.is_empty() {
            true => String::new(),
            false => format!(" ({})", own.join("; ")),
        };
        let help = family.help.trim_end_matches('.');
        text.push_str(&format!("| `{}` | {help}{labels} |\n", family.name));
    }
    text
}

/// All exporters: for each its heading on the page, and the text that it prints.
fn exporters() -> Vec<(&'static str, String)> {
    let (array, server) = array();
    vec![
        (BEGINS, mount()),
        ("## Arrays", array),
        ("## The NBD server of an array", server),
        ("## Stores that a program uses", kv::running::sample()),
        ("## Stores that no program uses", kv::stat::sample()),
    ]
}

#[test]
fn the_page_has_every_metric() {
    let mut made = String::new();
    for (heading, page) in exporters() {
        assert_eq!(problems(&page), Vec::<String>::new(), "{heading}");
        let families = families(&page);
        assert!(families.len() > 10, "{heading}: {families:?}");
        made.push_str(&format!("{heading}\n\n{}\n", part(&families)));
    }
    let made = made.trim_end().to_owned() + "\n";
    let path = tree("docs/use/metrics.md");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let (text, old) = found.split_at(found.find(BEGINS).expect("the page has a part of metrics"));
    if std::env::var_os("FURROW_WRITE_METRICS_PAGE").is_some() {
        std::fs::write(&path, format!("{text}{made}")).unwrap();
        return;
    }
    let lacks: Vec<&str> = made.lines().filter(|line| !old.contains(line)).collect();
    assert!(
        old == made,
        "docs/use/metrics.md is old; it lacks:\n{}\nto write it: FURROW_WRITE_METRICS_PAGE=1 cargo \
         test -p furrow-cli the_page_has_every_metric",
        lacks.join("\n"),
    );
}

/// Words in alert rules that look like names of metrics.
fn named(rules: &str) -> BTreeSet<String> {
    let lines = rules.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = lines.flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || c == '_')));
    words.filter(|word| word.starts_with("furrow_")).map(str::to_owned).collect()
}

#[test]
fn alert_rules_and_dashboard_name_metrics_and_labels_that_are_there() {
    let of = |name| std::fs::read_to_string(tree("scripts/prometheus").join(name)).unwrap();
    let (rules, dashboard) = (of("furrow.rules.yml"), of("furrow-dashboard.json"));
    let all: Vec<Family> = exporters().iter().flat_map(|(_, page)| families(page)).collect();
    for text in [&rules, &dashboard] {
        let named = named(text);
        assert!(named.len() > 12, "{named:?}");
        for name in named {
            // A summary also has the number and the sum of its samples.
            let has = |f: &Family| {
                f.name == name || ["_count", "_sum"].map(|end| f.name.clone() + end).contains(&name)
            };
            assert!(all.iter().any(has), "no exporter has {name}");
        }
    }
    // Labels that alert rules may use: those of metrics, and `instance`, which Prometheus adds.
    let known = |label: &str| {
        let has = |family: &Family| family.labels.iter().any(|(name, _)| name == label);
        label == "instance" || all.iter().any(has)
    };
    for part in rules.split("$labels.").skip(1) {
        let label: String =
            part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
        assert!(known(&label), "no metric has the label {label}");
    }
    // Legends of the dashboard: `{{label}}`.
    for part in dashboard.split("{{").skip(1) {
        let label = part.split("}}").next().unwrap();
        assert!(known(label), "no metric has the label {label}");
    }
}
