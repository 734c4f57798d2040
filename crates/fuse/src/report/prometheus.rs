//! A [`Stat`] in the text format of Prometheus, version 0.0.4.
//!
//! Every sample has the label `device`.

use super::stat::{Memory, Operation, Stat};
use furrow_metrics::Page;

/// `stat` as text.
pub fn text(stat: &Stat) -> String {
    let mut page = Page::new("furrow", &[("device", &stat.status.info.device)]);
    all(&mut page, stat);
    page.finish()
}

fn all(page: &mut Page, stat: &Stat) {
    let status = &stat.status;
    page.one("up_seconds", "gauge", "Time since the mount", stat.seconds);
    let read_only = u8::from(status.info.read_only);
    page.one("read_only", "gauge", "1 if changes are refused", read_only);
    let failed = u8::from(status.failure.is_some());
    page.one("failed", "gauge", "1 if writing has stopped after an error", failed);
    for (name, what, value) in status.counters.each() {
        page.one(&format!("{name}_total"), "counter", what, value);
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
    operations(page, &stat.operations);
}

fn memory(page: &mut Page, stat: &Stat) {
    let (now, peak) = (&stat.memory.now, &stat.memory.peak);
    page.family("memory_bytes", "gauge", "Memory the engine holds, by use");
    for (part, _) in Memory::parts() {
        page.sample("memory_bytes", &[("part", part)], now.bytes(part));
    }
    page.one(
        "memory_dirty_bytes",
        "gauge",
        "Memory of the engine not yet handed to the drive",
        now.bytes("dirty"),
    );
    let help = "The most memory it held at once";
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

fn operations(page: &mut Page, operations: &[Operation]) {
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
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
                failure: None,
                version: VERSION,
                info: Info { device: "a\"b\\c".into(), ..Info::default() },
                label: String::new(),
                uuid: "u".into(),
                space: Space { block_size: 4096, blocks: 3, ..Space::default() },
                counters: Counters { fsyncs: 7, ..Counters::default() }.into(),
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
        let mut families: Vec<&str> = Vec::new();
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                families.push(family.split(' ').next().unwrap());
            } else if !line.starts_with("# HELP ") {
                let family = families.last().unwrap();
                assert!(line.starts_with(family), "{line} in {family}");
                assert!(line.contains("{device=\"a\\\"b\\\\c\""), "{line}");
                let value = line.rsplit(' ').next().unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        let unique: std::collections::BTreeSet<&str> = families.iter().copied().collect();
        assert_eq!(unique.len(), families.len(), "a family twice");
        for (name, value) in [
            ("furrow_fsyncs_total{device=\"a\\\"b\\\\c\"}", "7"),
            ("furrow_space_bytes{device=\"a\\\"b\\\\c\",state=\"size\"}", "12288"),
            ("furrow_stream_bytes_total{device=\"a\\\"b\\\\c\",stream=\"hot data\"}", "8192"),
            ("furrow_memory_bytes{device=\"a\\\"b\\\\c\",part=\"nodes\"}", "5"),
            ("furrow_memory_peak_bytes{device=\"a\\\"b\\\\c\"}", "6"),
            ("furrow_operation_seconds_sum{device=\"a\\\"b\\\\c\",op=\"read\"}", "2.5"),
        ] {
            assert!(text.contains(&format!("{name} {value}\n")), "{name}: {text}");
        }
    }

    #[test]
    fn a_stat_survives_its_own_json() {
        let text = serde_json::to_string(&stat()).unwrap();
        assert_eq!(serde_json::from_str::<Stat>(&text).unwrap(), stat());
    }
}
