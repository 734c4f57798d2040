//! Tests of replays: their times match times computed by hand, and are the same each time with
//! every keeper.

use super::*;
use crate::catalogue::{Engine, Point, Profile};
use crate::policy::{Policy, StorePolicy};
use crate::recorded::tests::{append, create, read, run};
use crate::scenario::Traces;
use crate::workload::Workload;
use furrow_emu::timing::quantity::{Bytes, Time};
use furrow_rt::Config;

/// An append takes 10 µs, a read 3 µs, every other call no time.
struct Fixed {
    rt: Rt,
    begun: Rc<RefCell<Vec<(u64, &'static str)>>>,
}

impl Keeper for Fixed {
    async fn make_directory(&self, _path: &str) -> Result<()> {
        Ok(())
    }

    async fn make_file(&self, _id: Id, _path: &str, _size: u64) -> Result<()> {
        Ok(())
    }

    async fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    async fn perform(&self, _copy: u32, op: &Op) -> Result<u64> {
        self.begun.borrow_mut().push((self.rt.now().0, op.name()));
        match op {
            Op::Append { .. } => self.rt.sleep(10_000).await,
            Op::Read { .. } => self.rt.sleep(3_000).await,
            _ => {}
        }
        Ok(op.bytes())
    }
}

fn replayed(text: &str) -> Replayed {
    toml::from_str(&format!("run = 'tiny'\n{text}")).unwrap()
}

/// Returns the nanoseconds of the whole replay, and the time at which each call reached the keeper.
fn times(text: &str) -> (u64, Vec<(u64, &'static str)>) {
    let run = Arc::new(run(&[
        (0, 0, 100, create(1, "a")),
        (0, 1_100, 200, append(1, 0, 4096)),
        (1, 1_500, 100, Op::Open { file: 1, path: "a".into() }),
        (0, 2_300, 200, append(1, 4096, 4096)),
        (2, 2_550, 10, Op::Stat { path: "a".into() }),
        (1, 2_600, 100, read(1, 0, 4096)),
        (0, 2_800, 100, Op::Close { file: 1 }),
    ]));
    let rt = Rt::new(Config::simulated(1));
    let begun = Rc::new(RefCell::default());
    let keeper = Fixed { rt: rt.clone(), begun: begun.clone() };
    let host = Host { cpu: Time(100), page_cpu: Time(50), ..Host::default() };
    let (on, text) = (rt.clone(), replayed(text));
    let measures = rt.block_on(async move {
        replay(&on, keeper, &run, &text, &host, 1, &Arc::default()).await.unwrap()
    });
    rt.clear();
    assert_eq!((measures.ops, measures.bytes), (7, 12_288));
    (measures.nanoseconds, begun.take())
}

/// Computes the times by hand, in nanoseconds. Thread 0 creates at 100. Its append takes a gap of
/// 1,000, 100 of the processor, 10,000 and 50 for the page, so it ends at 11,250; the second
/// append ends at 22,400. Thread 1 would open at 1,500, but waits for the first append, and opens
/// at 11,350. It would read at 12,350, but waits for the second append: 22,400 plus 100, 3,000 and
/// 50 is 25,550. Thread 0 would close at 22,700, but waits for the read. Thread 2 waits for no
/// other thread.
#[test]
fn a_tiny_run_takes_what_it_takes_by_hand() {
    let (took, begun) = times("");
    let expected = [
        (100, "create"),
        (1_200, "append"),
        (2_650, "stat"),
        (11_350, "open"),
        (12_350, "append"),
        (22_500, "read"),
        (25_650, "close"),
    ];
    assert_eq!((took, &begun[..]), (25_650, &expected[..]));
}

/// With half the gaps, the calls end at 100, 10,750 (begun at 600), 21,400 (begun at 11,250),
/// 24,550 and 24,650.
#[test]
fn gaps_may_be_shorter() {
    let (took, begun) = times("gaps = 50");
    assert_eq!(took, 24_650);
    assert!(begun.contains(&(700, "append")) && begun.contains(&(11_350, "append")), "{begun:?}");
}

/// Makes a run of two writers, of a log and of a table that replaces a file, and a reader.
fn engine_run() -> Recorded {
    let mut calls = vec![
        (0, 0, 0, Op::Found { file: 1, size: 1 << 20, path: "db/old.sst".into() }),
        (0, 0, 0, Op::FoundDirectory { path: "db".into() }),
        (0, 10, 10, create(2, "db/1.log")),
        (1, 20, 10, create(3, "db/2.sst")),
    ];
    calls.swap(0, 1);
    for number in 0..40 {
        let at = 1_000 + number * 1_000;
        calls.push((0, at, 100, append(2, number * 5_000, 5_000)));
        calls.push((1, at + 200, 100, append(3, number << 18, 1 << 18)));
        calls.push((2, at + 400, 100, read(1, number * 16_384, 16_384)));
    }
    let path = |name: &str| format!("db/{name}");
    let ends = [
        (0, Op::Sync { file: 2 }),
        (1, Op::Truncate { file: 3, size: 9 << 20 }),
        (1, Op::Sync { file: 3 }),
        (1, Op::Close { file: 3 }),
        (1, Op::Rename { from: path("2.sst"), to: path("3.sst") }),
        (1, Op::SyncNames),
        (2, Op::Open { file: 3, path: path("3.sst") }),
        (2, Op::ReadBegin { read: 9, file: 3, offset: 4096, len: 100 }),
        (2, Op::ReadWait { read: 9, got: 100 }),
        (2, Op::Remove { path: path("old.sst") }),
        (0, Op::Close { file: 2 }),
    ];
    for (number, (thread, op)) in (0..).zip(ends) {
        calls.push((thread, 100_000 + number * 100, 50, op));
    }
    run(&calls)
}

fn point(engine: Engine) -> Point {
    let store = StorePolicy { policy: "liza-zenfs".to_owned(), clean_below: 20 };
    let array = toml::from_str("way = 'grouped'").unwrap();
    let (raid, files) = (engine == Engine::Raid, engine == Engine::Store);
    let profile = Profile {
        engine,
        about: String::new(),
        policy: Policy::default(),
        array: raid.then_some(array),
        store: files.then_some(store),
    };
    let text = "op = 'write'\nsize = '4KiB'\ndepth = 1\nrun = '1s'\n\
                recorded = { run = 'tiny', copies = 2 }";
    let workload: Workload = toml::from_str(text).unwrap();
    workload.check().unwrap();
    let (dirty, readahead) = (Bytes(16 << 20), Bytes(128 << 10));
    let host = Host { dirty, readahead, cpu: Time(2_000), ..Host::default() };
    let device = match raid {
        true => "mem:zn540-4t,timing=virtual,zones=60,zone-size=16MiB",
        false => "mem:pm1731a,timing=virtual,zones=256,zone-size=4MiB",
    };
    Point { device: device.to_owned(), profile, host, workload }
}

#[test]
fn a_run_is_the_same_each_time_on_every_engine() {
    let recorded = Arc::new(engine_run());
    let mut traces = Traces::default();
    traces.recorded.insert("tiny".to_owned(), recorded.clone());
    for engine in [Engine::Fs, Engine::Store, Engine::Raid] {
        let mut point = point(engine);
        point.workload.recorded.as_mut().unwrap().name = Some(recorded.name.clone());
        let of = |seed| {
            let done = crate::scenario::replay(&point, seed, &Arc::default(), &traces);
            let measures = done.unwrap_or_else(|error| panic!("{engine:?}: {error:#}"));
            Measures { processor_ns: None, ..measures }
        };
        let first = of(1);
        assert_eq!(first, of(1), "{engine:?}");
        assert_eq!(first.ops, 2 * recorded.calls.len() as u64);
        let written = 2 * 40 * (5_000 + (1 << 18));
        assert_eq!(first.bytes, written + 2 * (40 * 16_384 + 100), "{engine:?}");
        // The replay takes at least the time of the gaps, and about what a drive takes for 21 MB.
        assert!((1_000_000..1_000_000_000).contains(&first.nanoseconds), "{engine:?} {first:?}");
        assert_ne!(first.nanoseconds, of(2).nanoseconds, "{engine:?}: copies go in step");
        let missing = crate::scenario::run(&point, 1, &Arc::default()).unwrap_err();
        assert!(format!("{missing:#}").contains("not given"), "{missing:#}");
    }
    let none = point(Engine::None);
    let mut point = none;
    point.workload.recorded.as_mut().unwrap().name = Some(recorded.name.clone());
    let error = crate::scenario::replay(&point, 1, &Arc::default(), &traces).unwrap_err();
    assert!(format!("{error:#}").contains("needs files"), "{error:#}");
}

#[test]
fn who_reads_on_gets_windows_and_others_what_they_ask_for() {
    let rt = Rt::new(Config::simulated(1));
    let asked = Rc::new(RefCell::new(Vec::new()));
    let (on, seen) = (rt.clone(), asked.clone());
    rt.block_on(async move {
        let ahead = Ahead::default();
        for (offset, len) in [(50, 10), (0, 10), (10, 25), (35, 10), (90, 20)] {
            let seen = seen.clone();
            let fetch = move |at, bytes| {
                seen.borrow_mut().push((at, bytes));
                async { Ok(()) }
            };
            ahead.read(&on, (offset, len, 100), 32, fetch).await.unwrap();
        }
    });
    rt.clear();
    assert_eq!(asked.take(), [(50, 10), (0, 32), (32, 32), (64, 32), (90, 10)]);
}
