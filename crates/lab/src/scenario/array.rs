//! Scenarios on an array of drives: the volume, made, filled, degraded, rebuilt or recovered.

use crate::array::Way;
use crate::catalogue::Point;
use crate::measure::{Measures, Meter};
use crate::scenario::Traces;
use crate::target::{Blocks, Layout, Partial, Watch, drive, processor, replay, replay_recorded};
use crate::workload::{Act, Fill};
use anyhow::{Context as _, Result, anyhow, ensure};
use furrow_emu::{Emulator, Fates};
use furrow_raid::{MemberState, Options, Volume, assemble, create};
use furrow_rt::{Nanos, Rt};
use furrow_zone::{Access, DeviceSpec, ZonedDevice};
use std::rc::Rc;
use std::sync::Arc;

/// Time for the host's operations in flight to end after the drives are gone, in nanoseconds.
const AFTERMATH: u64 = 10 * Nanos::MILLI;

/// Interval between two checks of a rebuild's progress, in nanoseconds.
const GLANCE: u64 = 100_000;

struct Drives(Vec<Rc<Emulator>>);

impl Drives {
    fn open(rt: &Rt, spec: &DeviceSpec, count: u32) -> Result<Drives> {
        let one = |_| Ok(furrow_emu::open(rt, spec, Access::ReadWrite)?);
        Ok(Drives((0..count).map(one).collect::<Result<_>>()?))
    }

    fn devices(&self) -> Vec<Rc<dyn ZonedDevice>> {
        self.0.iter().map(|drive| drive.clone() as Rc<dyn ZonedDevice>).collect()
    }
}

/// Runs `point`, whose profile has an array, with `seed`.
///
/// # Errors
/// If the array cannot be made, or an operation fails.
pub async fn run(
    rt: &Rt,
    point: &Point,
    seed: u64,
    watch: &Arc<Watch>,
    traces: &Traces,
) -> Result<Measures> {
    let (workload, host) = (&point.workload, &point.host);
    let array = point.profile.array.as_ref().context("the profile has no array")?;
    let spec: DeviceSpec = point.device.parse()?;
    // A recorded run uses files, and the model of files has a cache.
    let caches = workload.recorded.is_some();
    ensure!(
        host.memory.0 == 0
            && !host.zone_lock
            && (caches || host.dirty.0 == 0 && host.readahead.0 == 0),
        "a volume caches nothing and knows no zone lock: only `cpu` and `page_cpu` of a host count"
    );
    let drives = Drives::open(rt, &spec, array.drives)?;
    if array.way == Way::PartialParity {
        ensure!(workload.only_writes(), "partial parity is modelled for writes");
        let target = Rc::new(Partial::new(rt, drives.devices(), array, workload)?);
        return drive(rt, target, workload, host, seed, watch).await;
    }
    let first = drives.0.first().context("an array of no drives")?;
    let config = array.config(first.geometry()).map_err(|what| anyhow!(what))?;
    let options = array.options();
    let volume = create(rt, drives.devices(), &config, &options, false).await.context("create")?;
    let mut blocks = Blocks::new(volume, workload)?;
    if let (Some(run), Some(replayed)) = (traces.of(workload)?, &workload.recorded) {
        let layout = Layout::new(rt, blocks, host);
        return replay_recorded(rt, layout, &run, replayed, host, seed, watch).await;
    }
    if !workload.replay.is_none() {
        let trace =
            traces.volume.as_ref().filter(|trace| Some(&trace.name) == workload.trace.as_ref());
        let trace = trace.context("a trace is needed, but none is given")?;
        ensure!(trace.span() <= blocks.span(), "the trace's requests are past the volume's end");
        return replay(rt, blocks, trace, workload, watch).await;
    }
    if !workload.only_writes() || workload.fill != Fill::None || workload.act != Act::None {
        blocks.fill(rt).await?;
    }
    match workload.act {
        Act::None => {}
        Act::Degrade => {
            blocks.degrade(seed).await?;
            blocks.search(rt, array);
        }
        Act::Recover => return recover(rt, blocks, &drives, &options).await,
        Act::Rebuild => return rebuild(rt, blocks, &spec).await,
    }
    drive(rt, Rc::new(blocks), workload, host, seed, watch).await
}

/// The measures of a single operation that took from `began` until now.
fn one(rt: &Rt, began: Nanos, bytes: u64, processor_ns: u128) -> Measures {
    let mut meter = Meter::new(began, Nanos(u64::MAX));
    meter.count(began, rt.now(), bytes);
    Measures { processor_ns: Some(processor_ns as f64), ..meter.measures(Some(rt.now())) }
}

/// Measures the time from the loss of the host until a new host has the volume in service.
async fn recover(rt: &Rt, blocks: Blocks, drives: &Drives, options: &Options) -> Result<Measures> {
    let array = crate::target::Target::array(&blocks);
    let size = blocks.volume().blocks();
    for drive in &drives.0 {
        drive.power_cut(&Fates::nothing(0));
    }
    drop(blocks);
    rt.sleep(AFTERMATH).await;
    drives.0.iter().for_each(|drive| drive.power_on());
    let (began, taken) = (rt.now(), processor());
    let volume = assemble(rt, drives.devices(), options).await.context("assemble")?;
    let taken = (processor() - taken).as_nanos();
    ensure!(volume.blocks() == size, "the volume came back with another size");
    Ok(Measures { array, ..one(rt, began, 0, taken) })
}

/// Measures the time from the replacement of a drive until the new drive is a full member.
async fn rebuild(rt: &Rt, blocks: Blocks, spec: &DeviceSpec) -> Result<Measures> {
    let volume: &Volume = blocks.volume();
    volume.fail(0).await?;
    let fresh = furrow_emu::open(rt, spec, Access::ReadWrite)?;
    let (began, taken) = (rt.now(), processor());
    volume.replace(0, fresh, false).await.context("replace")?;
    loop {
        let state = volume.members()[0].1;
        if state == MemberState::Active {
            break;
        }
        let under_way = state == MemberState::Rebuilding && volume.rebuilding().is_some();
        ensure!(under_way, "the rebuild ended early");
        rt.sleep(GLANCE).await;
    }
    let array = crate::target::Target::array(&blocks);
    let taken = (processor() - taken).as_nanos();
    let bytes = array.as_ref().map_or(0, |array| array.ever);
    Ok(Measures { array, ..one(rt, began, bytes, taken) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Array;
    use crate::catalogue::{Engine, Profile};
    use crate::host::Host;
    use crate::policy::Policy;
    use crate::trace::Trace;
    use crate::workload::{Replay, Workload};

    fn point(array: &str, workload: &str) -> Point {
        let array: Array = toml::from_str(array).unwrap();
        array.check().unwrap();
        let common = "op = 'write'\norder = 'random'\nsize = '4KiB'\nthreads = 1\ndepth = 64\n\
                      span = '64MiB'\nwarm = '5ms'\nrun = '50ms'\n";
        let mut table: toml::Table = toml::from_str(common).unwrap();
        table.extend(toml::from_str::<toml::Table>(workload).unwrap());
        let workload: Workload = table.try_into().unwrap();
        workload.check().unwrap();
        let (about, policy) = (String::new(), Policy::default());
        let profile =
            Profile { engine: Engine::Raid, about, policy, array: Some(array), store: None };
        let device = "mem:zn540-4t,timing=virtual,zones=60,zone-size=16MiB".to_owned();
        Point { device, profile, host: Host::default(), workload }
    }

    fn run(array: &str, workload: &str) -> Measures {
        let point = point(array, workload);
        crate::scenario::run(&point, 1, &Arc::default()).unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn replay(point: &Point, trace: &Arc<Trace>) -> Result<Measures> {
        let traces = Traces { volume: Some(trace.clone()), ..Traces::default() };
        crate::scenario::replay(point, 1, &Arc::default(), &traces)
    }

    fn rate(measures: &Measures) -> f64 {
        measures.bytes_per_second / 1_048_576.0
    }

    #[test]
    fn a_seed_twice_is_the_same_but_for_the_processor() {
        for workload in ["", "act = 'degrade'\nop = 'read'\ndepth = 1\nspan = '8MiB'"] {
            let plain = |measures| Measures { processor_ns: None, ..measures };
            let first = run("segments = '1+1'", workload);
            assert!(first.processor_ns.is_some_and(|taken| taken > 100.0), "{first:?}");
            assert_eq!(plain(first), plain(run("segments = '1+1'", workload)));
        }
    }

    /// Compares the ways of R1 and R5: one chunk in flight per zone, appends in groups, and many
    /// writes in flight.
    #[test]
    fn ways_differ_as_the_drive_has_it() {
        let grouped = run("", "");
        let one = run("way = 'zone-write'\ndepth = 3", "");
        // Three data zones of 337 MiB/s each, less the cost of waiting for the slowest.
        assert!((850.0..1012.0).contains(&rate(&one)), "{} MiB/s", rate(&one));
        assert!(rate(&grouped) > rate(&one) * 1.5, "{} {}", rate(&grouped), rate(&one));
        let all = run("way = 'zone-append'\nsegments = '2+0'", "");
        assert!(rate(&all) > rate(&one) * 1.5, "{}", rate(&all));
        let inside = grouped.array.unwrap();
        assert!(inside.written > 60 << 20 && inside.tables > 0 && inside.wait_ns > 0.0);
        assert_eq!(one.array.unwrap().tables, 0);
    }

    #[test]
    fn partial_parity_waits_for_nothing_but_its_turn() {
        let array = "way = 'partial-parity'\nsegments = '2+0'\ndepth = 1";
        let alone = run(array, "depth = 1");
        let plain = run("way = 'zone-write'\nsegments = '2+0'", "depth = 1");
        // A lone block waits 100 us for its stripe; with partial parity it waits only for
        // its parity.
        assert!(
            alone.p50_ns < 40_000 && plain.p50_ns > 100_000,
            "{} {}",
            alone.p50_ns,
            plain.p50_ns
        );
        let many = run(array, "");
        assert!(many.array.unwrap().wait_ns > 100_000.0, "{many:?}");
        let more = run("way = 'partial-parity'\nsegments = '6+0'\ndepth = 1", "");
        assert!(rate(&more) > rate(&many) * 1.5, "{} {}", rate(&more), rate(&many));
    }

    /// All chunks needed to reconstruct a lost block are read at once, and so are those of all lost
    /// blocks of a request.
    #[test]
    fn a_degraded_read_takes_hardly_longer_than_a_read() {
        let read = "op = 'read'\ndepth = 1\nspan = '8MiB'\n";
        for (array, level) in [("", "5"), ("drives = 5", "6")] {
            for size in ["4KiB", "64KiB"] {
                let array = format!("level = '{level}'\n{array}");
                let more = format!("{read}size = '{size}'");
                let whole = run(&array, &more);
                let degraded = run(&array, &format!("{more}\nact = 'degrade'"));
                let (own, other) = (degraded.mean_ns, whole.mean_ns);
                assert!(degraded.array.unwrap().reconstructed > 100, "{degraded:?}");
                // Lost blocks are reconstructed after the other blocks of the request are read.
                // That makes two rounds of reads, not one for each block.
                assert!(own < other * 2.2, "{level}, {size}: {own} {other}");
            }
        }
    }

    #[test]
    fn tables_that_are_searched_give_the_same_reads() {
        let read = "op = 'read'\ndepth = 1\nspan = '32MiB'\nact = 'degrade'";
        let kept = run("way = 'zone-append'\ngroup = 0", read);
        let searched = run("way = 'zone-append'\ngroup = 0\nsearch = true", read);
        assert_eq!(kept.p50_ns, searched.p50_ns);
        // A bench measures what the search costs: the processor's time depends on the machine.
        let measured = |of: &Measures| of.processor_ns.is_some_and(|ns| ns > 0.0);
        assert!(measured(&kept) && measured(&searched));
    }

    #[test]
    fn a_rebuild_is_as_fast_as_a_zone_takes_it() {
        let seconds = |chunk: &str| {
            let array = format!("small = '{chunk}'");
            let measures = run(&array, "act = 'rebuild'\nsize = '64KiB'\norder = 'sequential'");
            assert!(measures.array.unwrap().ever == 64 << 20, "{measures:?}");
            measures.mean_ns / 1e9
        };
        // The bound is a third of 64 MiB at 250 MiB/s, plus the beginning and the end of a rebuild.
        for chunk in ["4KiB", "16KiB"] {
            let took = seconds(chunk);
            assert!(took < 0.085 + 0.02, "{chunk}: {took} s");
        }
    }

    #[test]
    fn a_volume_recovers_with_all_it_held() {
        let work = "act = 'recover'\nsize = '64KiB'\norder = 'sequential'";
        let with = run("checkpoint = '16MiB'", work);
        let without = run("checkpoint = '0'", work);
        assert!(with.mean_ns > 0.0 && with.mean_ns < without.mean_ns, "{with:?} {without:?}");
    }

    #[test]
    fn a_trace_is_replayed_in_its_order() {
        let mut text = String::new();
        for number in 0..400u64 {
            let write = if number % 4 == 0 { "R" } else { "W" };
            text.push_str(&format!("1,{write},{},8192,{}\n", number * 4096, number * 500));
        }
        let trace = Arc::new(Trace::parse("t.csv".to_owned(), text.as_bytes()).unwrap());
        let of = |how: &str, trace: &Arc<Trace>| {
            let mut point = point("segments = '1+1'", &format!("replay = '{how}'\ndepth = 8"));
            assert_ne!(point.workload.replay, Replay::None);
            point.workload.trace = Some(trace.name.clone());
            replay(&point, trace)
        };
        let fast = of("fast", &trace).unwrap();
        assert_eq!((fast.ops, fast.bytes), (400, 400 * 8192));
        assert!(fast.nanoseconds < 50_000_000, "{fast:?}");
        let other = Trace::parse("u.csv".to_owned(), b"1,W,0,4096,0\n").unwrap();
        let mut point = point("", "replay = 'fast'");
        point.workload.trace = Some(trace.name.clone());
        let wrong = replay(&point, &Arc::new(other));
        assert!(format!("{:#}", wrong.unwrap_err()).contains("none is given"));
    }
}
