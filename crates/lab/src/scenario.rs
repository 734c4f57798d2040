//! Running one scenario with one seed: an executor, a drive or several, a target, clients.

mod array;

use crate::catalogue::{Engine, Point};
use crate::host::{Host, Staged};
use crate::measure::Measures;
use crate::recorded::{Recorded, Recordings, Replayed};
use crate::target::{
    Files, Flows, FsKeeper, Spread, SpreadFiles, StoreKeeper, Watch, Zones, drive, replay_recorded,
};
use crate::trace::Trace;
use crate::workload::Workload;
use anyhow::{Context as _, Result, bail};
use furrow_rt::{Config, Rt};
use furrow_zone::{Access, DeviceSpec, ZonedDevice};
use std::rc::Rc;
use std::sync::Arc;

/// Runs `point` with `seed` in virtual time. The same point and seed give the same measures.
///
/// # Errors
/// If the point is inconsistent or the drive refuses a command.
pub fn run(point: &Point, seed: u64, watch: &Arc<Watch>) -> Result<Measures> {
    replay(point, seed, watch, &Traces::default())
}

/// The recordings that points may replay.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    /// The requests of a volume.
    pub volume: Option<Arc<Trace>>,
    /// Recorded runs of an engine, by name.
    pub recorded: Recordings,
}

impl Traces {
    /// The recorded run that `workload` replays, if it replays one.
    ///
    /// # Errors
    /// If the recorded run is not given, or a different one is given.
    fn of(&self, workload: &Workload) -> Result<Option<Arc<Recorded>>> {
        let Some(wanted) = &workload.recorded else { return Ok(None) };
        let found = self.recorded.get(&wanted.run);
        let found = found.filter(|found| Some(&found.name) == wanted.name.as_ref());
        let missing = || format!("the recorded run {} is needed, but not given", wanted.run);
        Ok(Some(found.with_context(missing)?.clone()))
    }
}

/// Like [`run`], for a point that may replay a recording of `traces`.
///
/// # Errors
/// The errors of [`run`], or an error if the point needs a recording that is not given.
pub fn replay(point: &Point, seed: u64, watch: &Arc<Watch>, traces: &Traces) -> Result<Measures> {
    let spec: DeviceSpec = point.device.parse()?;
    crate::catalogue::check_device(&point.device)?;
    let recorded = traces.of(&point.workload)?;
    let rt = Rt::new(Config::simulated(seed));
    if point.profile.engine == Engine::Raid {
        let (on, point, watch) = (rt.clone(), point.clone(), watch.clone());
        let traces = traces.clone();
        let measured =
            rt.block_on(async move { array::run(&on, &point, seed, &watch, &traces).await });
        rt.clear();
        return measured;
    }
    let device: Rc<dyn ZonedDevice> = furrow_emu::open(&rt, &spec, Access::ReadWrite)?;
    let stage = point.profile.policy.stage.unwrap_or(point.host.stage);
    let device = Staged::before(&rt, device, stage.0);
    let (on, point, watch) = (rt.clone(), point.clone(), watch.clone());
    let measured = rt.block_on(async move {
        let (workload, host) = (&point.workload, &point.host);
        if let (Some(run), Some(replayed)) = (&recorded, &workload.recorded) {
            return on_files(&on, device, &point, run, replayed, seed, &watch).await;
        }
        match point.profile.engine {
            Engine::Store => bail!("a store replays recorded runs, and nothing else"),
            Engine::Raid => unreachable!("invariant: it has been run above"),
            Engine::None => on_zones(&on, device, workload, host, seed, &watch).await,
            Engine::Spread => {
                let policy = &point.profile.policy;
                let files = Spread::new(&on, device, policy, workload, host, seed).await?;
                drive(&on, Rc::new(SpreadFiles(files)), workload, host, seed, &watch).await
            }
            Engine::Fs => {
                if let Some(flow) = &workload.flow {
                    let flows = Flows::new(&on, device, &point, flow, seed).await;
                    let flows = Rc::new(flows.context("before measuring")?);
                    return drive(&on, flows, workload, host, seed, &watch).await;
                }
                let files = Files::new(&on, device, &point.profile, workload, host).await;
                let files = Rc::new(files.context("before measuring")?);
                drive(&on, files, workload, host, seed, &watch).await
            }
        }
    });
    // Executor, tasks and drive refer to each other; clearing the executor breaks the cycle.
    rt.clear();
    measured
}

/// Replays a recorded run on a file system or a store on `device`.
async fn on_files(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    point: &Point,
    run: &Arc<Recorded>,
    replayed: &Replayed,
    seed: u64,
    watch: &Arc<Watch>,
) -> Result<Measures> {
    let (profile, host) = (&point.profile, &point.host);
    match (profile.engine, &profile.store) {
        (Engine::Fs, _) => {
            let keeper = FsKeeper::new(rt, device, profile, host).await?;
            replay_recorded(rt, keeper, run, replayed, host, seed, watch).await
        }
        (Engine::Store, Some(policy)) => {
            let keeper = StoreKeeper::new(rt, device, policy, host).await?;
            replay_recorded(rt, keeper, run, replayed, host, seed, watch).await
        }
        (engine, _) => bail!("a recorded run needs files, which {engine:?} does not have"),
    }
}

/// Runs `workload` on the zones of `device` itself.
///
/// # Errors
/// If the workload does not fit the drive, or the drive refuses a command.
pub async fn on_zones(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    workload: &Workload,
    host: &Host,
    seed: u64,
    watch: &Watch,
) -> Result<Measures> {
    let zones = Rc::new(Zones::new(device, workload, host, seed)?);
    zones.prepare(rt).await.context("before measuring")?;
    drive(rt, zones, workload, host, seed, watch).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Profile;
    use crate::flow::Flow;
    use crate::workload::{Kind, Mode, Order};
    use furrow_emu::timing::quantity::{Bytes, Time};
    use furrow_rt::Nanos;

    const PM1731A: &str = "mem:pm1731a,timing=virtual,medium=discard";

    fn profile(engine: Engine) -> Profile {
        Profile {
            engine,
            about: String::new(),
            policy: Default::default(),
            array: None,
            store: None,
        }
    }

    fn point(device: &str, workload: Workload) -> Point {
        let host = Host { zone_lock: true, ..Host::default() };
        Point { device: device.to_owned(), profile: profile(Engine::None), host, workload }
    }

    fn writes() -> Workload {
        Workload {
            order: Order::Random,
            size: Bytes(128 << 10),
            threads: 4,
            depth: 8,
            zones: 8,
            stride: 1,
            warm: Time(20 * Nanos::MILLI),
            run: Time(100 * Nanos::MILLI),
            ..Workload::default()
        }
    }

    fn run(point: &Point, seed: u64) -> Measures {
        super::run(point, seed, &Arc::default()).unwrap_or_else(|error| panic!("{error:#}"))
    }

    #[test]
    fn a_seed_twice_is_the_same_to_the_last_digit_and_another_is_not() {
        for order in [Order::Random, Order::Zipf] {
            let theta = if order == Order::Zipf { 0.9 } else { 0.0 };
            let point = point(PM1731A, Workload { order, theta, ..writes() });
            let text = |seed| serde_json::to_string(&run(&point, seed)).unwrap();
            assert_eq!(text(1), text(1));
            assert_ne!(text(1), text(2));
        }
    }

    /// Eight busy dies together give eight times 45 MB/s.
    #[test]
    fn a_zone_is_as_fast_as_its_die() {
        let measures = run(&point(PM1731A, writes()), 1);
        let each = measures.bytes_per_second / 8.0 / 1e6;
        assert!((44.0..46.0).contains(&each), "{each} MB/s");
        assert_eq!(measures.seconds(), 0.1);
        // Latency of 32 outstanding requests at 8 × 45 MB/s.
        let mean = measures.mean_ns / 1e6;
        assert!((11.0..12.5).contains(&mean), "{mean} ms");
    }

    /// The distance between zones does not change throughput: the zone after a full one is on the
    /// same die.
    #[test]
    fn a_writer_stays_on_its_die() {
        let device = "mem:pm1731a,zone-size=16MiB,timing=virtual,medium=discard";
        let run_time = Time(4 * Nanos::SECOND);
        let warm = Time(Nanos::SECOND);
        let workload = Workload { zones: 1, stride: 1, warm, run: run_time, ..writes() };
        let rate = run(&point(device, workload), 1).bytes_per_second / 1e6;
        assert!((44.0..46.0).contains(&rate), "{rate} MB/s over eleven zones");
    }

    /// Writers of a full zone continue in the next one, and zones are reset when all have been
    /// full.
    #[test]
    fn writers_go_round_a_small_drive_again_and_again() {
        let device = "mem:pm1731a,zones=24,zone-size=1MiB,timing=virtual,medium=discard";
        for (zone_lock, op) in [(true, Kind::Write), (false, Kind::Write), (false, Kind::Append)] {
            // 768 KiB do not divide a zone evenly: the end of each zone cuts a request short.
            let size = Bytes(768 << 10);
            let host = Host { zone_lock, ..Host::default() };
            let run_time = Time(Nanos::SECOND);
            let workload = Workload { op, size, run: run_time, ..writes() };
            let measures = run(&Point { host, ..point(device, workload) }, 1);
            assert!(measures.bytes > 5 * (24 << 20), "{op} {zone_lock}: {}", measures.bytes);
            assert!(measures.bytes < measures.ops * (700 << 10), "{op} {zone_lock}: none was cut");
        }
    }

    /// 64 zones drawn at random fall on about 50 of 128 dies; the seed decides which.
    #[test]
    fn scattered_zones_share_dies_by_chance() {
        let base = Workload { zones: 64, threads: 16, depth: 32, ..writes() };
        let even = run(&point(PM1731A, base.clone()), 1);
        let scattered = point(PM1731A, Workload { stride: 0, ..base });
        let (one, two) = (run(&scattered, 1), run(&scattered, 2));
        assert!(one.bytes_per_second < even.bytes_per_second * 0.9, "{one:?} {even:?}");
        assert_ne!(one.bytes, two.bytes);
    }

    #[test]
    fn a_request_cap_cuts_and_a_processor_takes_its_time() {
        // The clients write no more bytes than fit the drive's buffer.
        let (bytes, warm) = (Bytes(8 << 20), Time(0));
        let base = Workload { threads: 1, depth: 1, bytes, warm, ..writes() };
        let with = |host: Host, size: u64| {
            let workload = Workload { size: Bytes(size), ..base.clone() };
            run(&Point { host, ..point(PM1731A, workload) }, 1)
        };
        // Commands cost at least 8.35 µs each, so 64 small ones cost more than a large one.
        let whole = with(Host::default(), 256 << 10);
        let cut = with(Host { request_cap: Bytes(4 << 10), ..Host::default() }, 256 << 10);
        assert!(cut.mean_ns > whole.mean_ns * 3.0, "{} {}", cut.mean_ns, whole.mean_ns);
        let small = with(Host::default(), 4096);
        let slow = with(Host { cpu: Time(50_000), ..Host::default() }, 4096);
        assert!(slow.p50_ns >= small.p50_ns + 49_000, "{} {}", slow.p50_ns, small.p50_ns);
    }

    #[test]
    fn readers_of_more_zones_than_may_be_active_find_them_written() {
        let device = "mem:zn540-1t,zones=32,zone-size=8MiB,timing=virtual,medium=discard";
        let reads = Workload {
            op: Kind::Read,
            size: Bytes(4096),
            span: Bytes(64 << 10),
            zones: 32,
            threads: 2,
            ..writes()
        };
        let measures = run(&point(device, reads), 1);
        // A read that is answered without a die would take far less.
        assert!(measures.p50_ns > 40_000, "{}", measures.p50_ns);
    }

    #[test]
    fn a_bound_of_bytes_ends_a_run_early() {
        let workload = Workload {
            bytes: Bytes(1 << 20),
            warm: Time(0),
            run: Time(1_000 * Nanos::SECOND),
            ..writes()
        };
        let measures = run(&point(PM1731A, workload), 1);
        assert_eq!(measures.bytes, 4 << 20);
        assert!(measures.seconds() < 1.0, "{}", measures.seconds());
    }

    #[test]
    fn files_are_written_and_read_through_the_library() {
        let device = "mem:pm1731a,zones=256,timing=virtual";
        let files = |workload: Workload| Point {
            device: device.to_owned(),
            profile: profile(Engine::Fs),
            host: Host { memory: Bytes(8 << 20), cpu: Time(1_000), ..Host::default() },
            workload: Workload {
                zones: 1,
                span: Bytes(16 << 20),
                threads: 2,
                depth: 1,
                ..workload
            },
        };
        let size = Bytes(16 << 10);
        // A single client is compared. The median of several clients is that of their waits for
        // space in the drive's buffer, and the seed decides which of two runs waits less often.
        let alone = |workload: Workload, seed: u64| {
            let mut point = files(Workload { size, ..workload });
            point.workload.threads = 1;
            run(&point, seed)
        };
        for seed in 1..4 {
            let buffered = alone(writes(), seed);
            let synced = alone(Workload { fsync: 1, ..writes() }, seed);
            let direct = alone(Workload { mode: Mode::Direct, ..writes() }, seed);
            // A direct write waits for its data only. The metadata that refers to the data stays in
            // memory, so the write waits for no record.
            assert!(buffered.p50_ns < direct.p50_ns, "{buffered:?} {direct:?}");
            assert!(direct.p50_ns < synced.p50_ns, "{direct:?} {synced:?}");
        }
        let synced = run(&files(Workload { size, fsync: 1, ..writes() }), 1);
        let direct = run(&files(Workload { size, mode: Mode::Direct, ..writes() }), 1);
        assert!(direct.mean_ns < synced.mean_ns, "{direct:?} {synced:?}");
        let records = |measures: &Measures| measures.inside.as_ref().unwrap().written.records;
        assert!(records(&direct) == 0 && records(&synced) > 0, "{direct:?}");
        let read = files(Workload { op: Kind::Read, size, ..writes() });
        // Most of the data is not in a cache of 8 MiB, so reads go to the drive.
        assert!(run(&read, 1).mean_ns > 30_000.0);
        assert_eq!(run(&read, 1), run(&read, 1));
    }

    fn flow() -> Flow {
        let steps = "file = '64KiB'\nfiles = 3\nappend = '8KiB'\nsteps = ['delete', 'create', \
                     'write', 'append', 'fsync', 'pick', 'read', 'append', 'stat', 'log']\n\
                     first = ['pick', 'read']";
        let flow: Flow = toml::from_str(steps).unwrap();
        flow.check().unwrap();
        flow
    }

    #[test]
    fn a_flow_goes_through_its_steps_and_tells_what_went_on_inside() {
        let flow = flow();
        let host = Host { memory: Bytes(8 << 20), cpu: Time(1_000), ..Host::default() };
        let workload = Workload { threads: 3, depth: 1, flow: Some(flow), ..writes() };
        let device = "mem:pm1731a,zones=256,timing=virtual";
        let profile = profile(Engine::Fs);
        let point = Point { device: device.to_owned(), profile, host, workload };
        let measures = run(&point, 1);
        assert_eq!(measures, run(&point, 1));
        // All clients read 64 KiB, and two of three write as much.
        assert!(measures.ops > 1_000 && measures.bytes > measures.ops * 8192, "{measures:?}");
        let inside = measures.inside.as_ref().unwrap();
        assert!(inside.written.user > 16 << 20 && inside.written.records > 0, "{inside:?}");
        assert!((1.0..10.0).contains(&inside.written.amplification()), "{inside:?}");
        let most = inside.moments.iter().map(|moment| moment.streams.iter().sum::<u32>()).max();
        assert!(most > Some(0) && inside.moments.len() > 5 && inside.streams.len() == 6);
        let slow = Point { host: Host { page_cpu: Time(100_000), ..point.host.clone() }, ..point };
        assert!(run(&slow, 1).ops * 2 < measures.ops);
    }

    /// Each stream writes to one zone, or to several at once: 45 MB/s per zone.
    #[test]
    fn policies_are_carried_out() {
        let with = |policy: &str| {
            let mut profile = profile(Engine::Fs);
            profile.policy = toml::from_str(policy).unwrap();
            let device = "mem:pm1731a,zones=2048,timing=virtual,model.buffer=2MiB".to_owned();
            let host = Host {
                memory: Bytes(8 << 20),
                dirty: Bytes(2 << 20),
                stage: Time(8_350),
                cpu: Time(1_000),
                ..Host::default()
            };
            let (order, size, span) = (Order::Sequential, Bytes(64 << 10), Bytes(64 << 20));
            let workload = Workload { order, size, span, depth: 1, ..writes() };
            let measures = run(&Point { device, profile, host, workload }, 1);
            let inside = measures.inside.unwrap();
            let zones = inside.moments.iter().map(|m| m.streams[1]).max().unwrap();
            (measures.bytes_per_second / 1e6, zones)
        };
        let (one, zones) = with("placement = { fixed = 1 }\nwidth = 1\norder = 'blocking'");
        assert_eq!(zones, 1);
        assert!((35.0..60.0).contains(&one), "{one} MB/s");
        let (two, zones) = with("placement = { fixed = 2 }\nwidth = 1");
        assert_eq!(zones, 2);
        assert!((1.7..2.3).contains(&(two / one)), "{two} over {one} MB/s");
        let (many, zones) = with("placement = { fixed = 4 }\nwidth = 16");
        assert_eq!(zones, 64);
        let (small, _) = with("placement = { fixed = 4 }\nwidth = 16\nrequest = '4KiB'");
        assert!(many > 10.0 * one && small < 500.0, "{many} and {small} over {one} MB/s");
    }

    /// The second part uses only cold files, and is measured separately.
    #[test]
    fn parts_of_a_run_have_files_and_figures_of_their_own() {
        let device = "mem:pm1731a,zones=2048,timing=virtual,model.buffer=2MiB".to_owned();
        let host = Host { memory: Bytes(8 << 20), cpu: Time(1_000), ..Host::default() };
        let text = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let phases = vec![text(&["", "", "", ".mp4"]), text(&[".mp4"])];
        let (size, span) = (Bytes(64 << 10), Bytes(64 << 20));
        let workload = Workload { phases, size, span, depth: 1, ..writes() };
        let mut profile = profile(Engine::Fs);
        let split = "placement = { split = [1, 4, 1, 1, 1, 1] }";
        profile.policy = toml::from_str(split).unwrap();
        let measures = run(&Point { device, profile, host, workload }, 1);
        let [warm, cold] = measures.phases[..] else { panic!("{:?}", measures.phases) };
        assert!((warm + cold) / 2.0 - measures.bytes_per_second < 1.0, "{measures:?}");
        assert!(warm > cold * 1.3, "four superzones against one: {warm} {cold}");
    }

    #[test]
    fn what_cannot_be_is_said_before_anything_runs() {
        let fs = |mut point: Point| {
            point.profile = profile(Engine::Fs);
            point.workload.span = Bytes(1 << 20);
            point
        };
        for (point, word) in [
            (point(PM1731A, Workload { zones: 385, ..writes() }), "384"),
            (point(PM1731A, Workload { zones: 300, stride: 200, ..writes() }), "40704"),
            (point(PM1731A, Workload { op: Kind::Read, ..writes() }), "span"),
            (point(PM1731A, Workload { read_percent: 50, ..writes() }), "mixed"),
            (point(PM1731A, Workload { fsync: 1, ..writes() }), "fsync"),
            (point("mem:pm1731a,timing=off", writes()), "time"),
            (fs(point(PM1731A, Workload { flow: Some(flow()), ..writes() })), "`cpu`"),
        ] {
            let error = super::run(&point, 1, &Arc::default()).unwrap_err();
            assert!(format!("{error:#}").contains(word), "{word}: {error:#}");
        }
    }
}
