//! Recorded runs of RocksDB under the crash harness: no failure, and every defect built into the
//! store caught. `scripts/record.sh` made the recordings.

use crate::common::no_failure;
use furrow_policy::StoreDefect;
use furrow_sim::crash::{Case, Effort, Figures, sweep_case};
use furrow_sim::kv::recorded::RecordedSubject;

/// Recordings of stock db_bench, and of the plugin's driver.
const RUNS: [(&str, &[u8]); 2] = [
    ("crates/sim/traces/db_bench.trace", include_bytes!("../traces/db_bench.trace")),
    ("crates/sim/traces/workload.trace", include_bytes!("../traces/workload.trace")),
];

fn sweep(
    defect: Option<StoreDefect>,
    seeds: impl IntoIterator<Item = u64>,
    effort: Effort,
) -> Figures {
    let mut figures = Figures::default();
    for seed in seeds {
        for (name, bytes) in RUNS {
            let replay = RecordedSubject::new(name, bytes, defect).expect("it can be replayed");
            assert!(replay.calls() > 500, "{name}: {} calls", replay.calls());
            for volatile in [false, true] {
                figures.add(sweep_case(&replay, Case { seed, volatile }, &effort, &|_| false));
                if figures.failures.len() >= effort.failures_max {
                    return figures;
                }
            }
        }
    }
    figures
}

#[test]
fn what_rocksdb_was_promised_is_kept() {
    let effort = Effort { cuts_max: 12, samples: 2, nested_one_in: 4, ..Effort::default() };
    let figures = sweep(None, 0..3, effort);
    no_failure(&figures);
    assert!(figures.reopens > 200 && figures.nested > 20, "{figures}");
}

#[test]
fn every_defect_that_crashes_show_is_caught() {
    for defect in StoreDefect::CRASH {
        let effort = Effort { cuts_max: 40, failures_max: 1, ..Effort::default() };
        let figures = sweep(Some(defect), 1..20, effort);
        assert!(!figures.failures.is_empty(), "{defect:?}: {figures}");
        println!("{defect:?}: {} reopens", figures.reopens);
    }
}
