//! Every benchmark runs to its end and says something, however briefly it measures.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "measures real time")]

use furrow_lab::{BENCHES, Bench, Effort};
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn every_benchmark_runs() {
    // A benchmark mostly waits, for its clients or until it has measured long enough, so several
    // run at once.
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(bench) = BENCHES.get(next.fetch_add(1, Relaxed)) {
                    run(bench);
                }
            });
        }
    });
}

fn run(bench: &Bench) {
    let mounts = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    let told = std::env::var("FURROW_WITHOUT_FUSE").is_ok_and(|value| value == "1");
    if bench.name == "mount" && !mounts {
        assert!(told, "it needs /dev/fuse and root; FURROW_WITHOUT_FUSE=1 skips it");
        eprintln!("SKIPPED {}: no /dev/fuse or not root, and FURROW_WITHOUT_FUSE=1", bench.name);
        return;
    }
    if bench.name == "nbd" && std::env::var_os("FURROW_WITHOUT_NBD_CLIENTS").is_some() {
        eprintln!("SKIPPED nbd: FURROW_WITHOUT_NBD_CLIENTS is set");
        return;
    }
    let rows = (bench.run)(Effort::glance());
    let rows = rows.unwrap_or_else(|error| panic!("{}: {error:#}", bench.name));
    match bench.name {
        "nbd" => {
            assert_eq!(rows.len(), 12, "{rows:?}");
            assert!(rows[0].name.starts_with("4 KiB read, furrow"), "{}", rows[0].name);
        }
        name => assert!(!rows.is_empty(), "{name}"),
    }
    for row in rows {
        assert!(row.rate.is_finite() && row.rate > 0.0, "{row:?}");
        assert!(row.range.0 <= row.rate && row.rate <= row.range.1, "{row:?}");
        assert_eq!(row.ratio.is_some(), row.against.is_some(), "{row:?}");
    }
}
