//! A [`Stat`] in the text format of Prometheus, version 0.0.4.
//!
//! Every sample has the labels `device`, `mountpoint` and, if the file system has one, `label`.

use super::Scrub;
use super::stat::{Memory, Operation, Stat};
use furrow_metrics::{Page, seconds};

/// `stat` in the text format of Prometheus.
pub fn text(stat: &Stat) -> String {
    let status = &stat.status;
    let labels = [
        ("device", &*status.info.device),
        ("mountpoint", &*status.info.directory),
        ("label", &*status.label),
    ];
    let labels: Vec<(&str, &str)> =
        labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let mut page = Page::new("furrow", &labels);
    all(&mut page, stat);
    page.finish()
}

fn all(page: &mut Page, stat: &Stat) {
    let status = &stat.status;
    page.family("info", "gauge", "Always 1; its labels tell what is mounted");
    page.sample("info", &[("uuid", &status.uuid), ("version", env!("CARGO_PKG_VERSION"))], 1);
    page.one("up_seconds", "gauge", "Time since the mount", stat.seconds);
    let read_only = u8::from(status.info.read_only);
    page.one("read_only", "gauge", "1 if changes are refused", read_only);
    let failed = u8::from(status.failure.is_some());
    page.one("failed", "gauge", "1 if writing has stopped after an error", failed);
    for (name, what, value) in status.counters.each() {
        page.counted(name, what, value);
    }
    let (space, block) = (&status.space, u64::from(status.space.block_size));
    page.family("space_bytes", "gauge", "Space for files");
    for (state, blocks) in [
        ("size", space.blocks),
        ("free", space.blocks_free),
        ("available", space.blocks_available),
        ("stale", space.blocks_stale),
        ("logs", space.blocks_logs),
        ("logs_used", space.blocks_logs_used),
        ("summaries", space.blocks_summaries),
    ] {
        page.sample("space_bytes", &[("state", state)], blocks * block);
    }
    page.family("inodes", "gauge", "Inodes");
    page.sample("inodes", &[("state", "size")], space.inodes);
    page.sample("inodes", &[("state", "free")], space.inodes_free);
    page.family("active_zones", "gauge", "Permits for active zones of the drive");
    page.sample("active_zones", &[("state", "limit")], stat.permits.limit);
    page.sample("active_zones", &[("state", "held")], stat.permits.held);
    memory(page, stat);
    streams(page, stat);
    scrub(page, stat.scrub.as_ref());
    operations(page, &stat.operations);
}

fn memory(page: &mut Page, stat: &Stat) {
    let (now, peak) = (&stat.memory.now, &stat.memory.peak);
    page.family("memory_bytes", "gauge", "Memory that the engine holds, by use");
    for (part, _) in Memory::parts() {
        page.sample("memory_bytes", &[("part", part)], now.bytes(part));
    }
    page.one(
        "memory_dirty_bytes",
        "gauge",
        "Memory of the engine not yet handed to the drive",
        now.bytes("dirty"),
    );
    let help = "Peak memory of the engine";
    page.one("memory_peak_bytes", "gauge", help, peak.bytes("total"));
}

fn streams(page: &mut Page, stat: &Stat) {
    let help = "Superzones of a log stream; open ones include those lent to it";
    page.family("stream_superzones", "gauge", help);
    for stream in &stat.streams {
        let states = [
            ("quota", stream.quota),
            ("open", stream.open),
            ("lent", stream.lent),
            ("parked", stream.parked),
        ];
        for (state, count) in states {
            let labels = [("stream", stream.name.as_str()), ("state", state)];
            page.sample("stream_superzones", &labels, count);
        }
    }
    page.family("stream_bytes_total", "counter", "Bytes written to a log stream");
    for stream in &stat.streams {
        page.sample("stream_bytes_total", &[("stream", &stream.name)], stream.bytes);
    }
}

fn scrub(page: &mut Page, scrub: Option<&Scrub>) {
    let running = u8::from(scrub.is_some_and(Scrub::is_under_way));
    page.one("scrub_running", "gauge", "1 while a scrub runs or rests", running);
    let Some(scrub) = scrub else { return };
    let help = "Share of the blocks that the last scrub has read";
    page.one("scrub_ratio", "gauge", help, scrub.percent / 100.0);
    let help = "When the last scrub began, in seconds since 1970";
    page.one("scrub_begun_time_seconds", "gauge", help, scrub.begun);
    let help = "Blocks and records that the last scrub found damaged";
    page.one("scrub_damaged_blocks", "gauge", help, scrub.damaged);
    let help = "Damaged blocks and records that the last scrub rewrote";
    page.one("scrub_repaired_blocks", "gauge", help, scrub.repaired);
}

fn operations(page: &mut Page, operations: &[Operation]) {
    page.family("operation_seconds", "summary", "Time of the kernel's requests");
    for o in operations {
        for (quantile, time) in
            [("0.5", o.p50_ns), ("0.9", o.p90_ns), ("0.99", o.p99_ns), ("0.999", o.p999_ns)]
        {
            let labels = [("op", o.name.as_str()), ("quantile", quantile)];
            page.sample("operation_seconds", &labels, seconds(time));
        }
        let labels = [("op", o.name.as_str())];
        page.sample("operation_seconds_sum", &labels, seconds(o.total_ns));
        page.sample("operation_seconds_count", &labels, o.count);
    }
    page.family("operation_errors_total", "counter", "Requests answered with an error");
    for o in operations {
        page.sample("operation_errors_total", &[("op", &o.name)], o.errors);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stat::{MemoryUse, Permits, Stream};
    use super::super::{Info, Space, Status, VERSION};
    use super::*;
    use furrow_fs::Counters;

    fn stat() -> Stat {
        Stat {
            status: Status {
                silence: None,
                failure: None,
                version: VERSION,
                info: Info {
                    device: "a\"b\\c".into(),
                    directory: "/mnt".into(),
                    ..Info::default()
                },
                label: String::new(),
                uuid: "u".into(),
                space: Space { block_size: 4096, blocks: 3, ..Space::default() },
                counters: Counters {
                    fsyncs: 7,
                    longest_stretch_ns: 1_500_000_000,
                    ..Counters::default()
                }
                .into(),
            },
            seconds: 1.5,
            permits: Permits { limit: 9, held: 4 },
            memory: MemoryUse {
                now: furrow_fs::Memory { nodes: 5, ..Default::default() }.into(),
                peak: furrow_fs::Memory { data: 6, ..Default::default() }.into(),
            },
            streams: vec![Stream {
                name: "hot data".into(),
                quota: 2,
                open: 1,
                lent: 0,
                parked: 0,
                bytes: 8192,
            }],
            damage: Vec::new(),
            not_shown: Vec::new(),
            scrub: Some(Scrub { state: "finished".into(), damaged: 3, ..Scrub::default() }),
            operations: vec![Operation {
                name: "read".into(),
                count: 5,
                total_ns: 2_500_000_000,
                p50_ns: 1_000,
                ..Operation::default()
            }],
        }
    }

    #[test]
    fn every_sample_has_a_family_and_the_values_are_there() {
        let text = text(&stat());
        assert_eq!(furrow_metrics::problems(&text), Vec::<String>::new());
        let labels = "device=\"a\\\"b\\\\c\",mountpoint=\"/mnt\"";
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.contains(&format!("{{{labels}")), "{line}");
        }
        for (name, more, value) in [
            ("info", ",uuid=\"u\",version=\"0.1.0\"", "1"),
            ("fsyncs_total", "", "7"),
            ("longest_stretch_seconds", "", "1.5"),
            ("space_bytes", ",state=\"size\"", "12288"),
            ("stream_bytes_total", ",stream=\"hot data\"", "8192"),
            ("memory_bytes", ",part=\"nodes\"", "5"),
            ("memory_peak_bytes", "", "6"),
            ("scrub_damaged_blocks", "", "3"),
            ("operation_seconds_sum", ",op=\"read\"", "2.5"),
        ] {
            let line = format!("furrow_{name}{{{labels}{more}}} {value}\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
    }

    #[test]
    fn a_stat_survives_its_own_json() {
        let text = serde_json::to_string(&stat()).unwrap();
        assert_eq!(serde_json::from_str::<Stat>(&text).unwrap(), stat());
    }
}
