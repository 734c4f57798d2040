//! Every benchmark runs to its end and says something, however briefly it measures.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "measures real time")]

use furrow_lab::{BENCHES, Effort};
use std::path::Path;

#[test]
fn every_benchmark_runs() {
    let mounts = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    let told = std::env::var("FURROW_WITHOUT_FUSE").is_ok_and(|value| value == "1");
    for bench in BENCHES {
        if ["fuse", "mount"].contains(&bench.name) && !mounts {
            assert!(told, "it needs /dev/fuse and root; FURROW_WITHOUT_FUSE=1 skips it");
            eprintln!(
                "SKIPPED {}: no /dev/fuse or not root, and FURROW_WITHOUT_FUSE=1",
                bench.name
            );
            continue;
        }
        if bench.name == "nbd" && std::env::var_os("FURROW_WITHOUT_NBD_CLIENTS").is_some() {
            eprintln!("SKIPPED nbd: FURROW_WITHOUT_NBD_CLIENTS is set");
            continue;
        }
        let rows = (bench.run)(Effort::glance())
            .unwrap_or_else(|error| panic!("{}: {error:#}", bench.name));
        match expected(bench.name) {
            None => assert!(!rows.is_empty(), "{}", bench.name),
            Some((count, first)) => {
                assert_eq!(rows.len(), count, "{rows:?}");
                assert!(rows[0].name.starts_with(first), "{}", rows[0].name);
                assert!(rows.iter().all(|row| row.rate > 100.0), "{rows:?}");
            }
        }
        for row in rows {
            assert!(row.rate.is_finite() && row.rate > 0.0, "{row:?}");
            assert!(row.range.0 <= row.rate && row.rate <= row.range.1, "{row:?}");
            assert_eq!(row.ratio.is_some(), row.against.is_some(), "{row:?}");
        }
    }
}

/// How many rows a benchmark of the emulated drive has, and how the first begins.
fn expected(bench: &str) -> Option<(usize, &'static str)> {
    Some(match bench {
        "emulator" => (8, "write, discard"),
        "timing" => (4, "write, untimed"),
        "capacity" => (2, "2 GB of zeros"),
        "nbd" => (12, "4 KiB read, furrow"),
        _ => return None,
    })
}
