//! The timing engine seen from outside: no command is lost, none is answered too early, policies
//! have the documented effect, and a seed gives the same nanoseconds on every machine.

use crate::common::{self, append, manage, pages, read, write};
use furrow_emu::timing::Preset;
use furrow_emu::{Emulator, Medium, Model, Options, Pace};
use furrow_rt::{Config, Nanos, Rng, Rt};
use furrow_zone::{
    Access, Action, BlockCount, ByteLen, Command, Geometry, QueueId, Request, Status, Target,
    ZoneId, ZonedDevice,
};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A drive whose groups program 32 KiB in 1 ms (32.8 MB/s), in two programs of 16 KiB, and whose
/// commands cost almost nothing. `changes` are parameters with other values.
fn model(changes: &[(&str, &str)]) -> Rc<Model> {
    let common = [
        ("write-service", "4KiB:100ns"),
        ("append-service", "4KiB:100ns"),
        ("service-spread", "fixed"),
        ("write-latency", "4KiB:1us"),
        ("append-latency", "4KiB:1us"),
        ("buffer", "256KiB"),
        ("zone-quota", "32KiB"),
        ("groups", "4"),
        ("group-dies", "2"),
        ("read-dies", "2"),
        ("unit", "16KiB"),
        ("group-rate", "32768000B/s"),
    ];
    let mut all: Vec<(String, String)> = Vec::new();
    for (key, value) in common.iter().chain(changes) {
        all.retain(|(known, _)| known != key);
        all.push(((*key).to_owned(), (*value).to_owned()));
    }
    Preset::named("plain").and_then(|plain| plain.with(&all)).expect("a model")
}

/// Nanoseconds of one program of [`model`].
const PROGRAM: u64 = Nanos::MILLI;

/// 16 zones of 16 MiB.
fn geometry() -> Geometry {
    Geometry {
        zones: 16,
        zone_size: BlockCount(4096),
        zone_capacity: BlockCount(4096),
        block_size: ByteLen(4096),
        max_open: None,
        max_active: None,
        max_append: None,
        ..common::geometry()
    }
}

fn drive_of(model: Rc<Model>, geometry: Geometry, config: Config, scale: u64) -> (Rt, Emulator) {
    let rt = Rt::new(config);
    let medium = Medium::discard(&geometry);
    let options = Options { seed: Some(1), ..Options::timed(Pace { model, scale }) };
    let drive = Emulator::new(&rt, geometry, medium, options).expect("a drive");
    (rt, drive)
}

fn drive(changes: &[(&str, &str)]) -> (Rt, Emulator) {
    drive_of(model(changes), geometry(), Config::simulated(1), 1_000)
}

fn submit(drive: &Emulator, queue: u16, command: Command) -> impl Future<Output = Status> + use<> {
    let blocks = match command {
        Command::Write { blocks, .. } | Command::Append { blocks, .. } => blocks.0,
        Command::Read { blocks, .. } => blocks.0,
        _ => 0,
    };
    let data = pages(drive.geometry(), blocks);
    let answer = drive.submit(QueueId(queue), Request::with_data(command, data));
    async move { answer.await.status }
}

/// The nanoseconds that `command` takes on an idle drive.
fn takes(rt: &Rt, drive: &Emulator, command: Command) -> u64 {
    let began = rt.now();
    let status = rt.block_on(submit(drive, 0, command));
    assert!(status.is_ok(), "{command:?}: {status}");
    rt.now().since(began)
}

/// A client that writes `zone` until `until` in pieces of `blocks` blocks, with `depth` of them in
/// flight. Returns the number of blocks answered so far.
fn writer(
    rt: &Rt,
    drive: &Emulator,
    zone: u32,
    blocks: u64,
    depth: u32,
    until: Nanos,
) -> Rc<Cell<u64>> {
    let (next, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for _ in 0..depth {
        let (rt, drive) = (rt.clone(), drive.clone());
        let (next, done) = (next.clone(), done.clone());
        rt.clone().spawn_detached(async move {
            while rt.now() < until && next.get() + blocks <= 4096 {
                let at = next.replace(next.get() + blocks);
                let command = write(u64::from(zone) * 4096 + at, blocks);
                assert!(submit(&drive, zone as u16, command).await.is_ok());
                done.set(done.get() + blocks);
            }
        });
    }
    done
}

const POLICIES: [&str; 5] = ["group", "shared-fifo", "per-queue", "per-zone", "through"];

/// As long as a group has units to program, all its dies are programming.
#[test]
fn every_policy_keeps_the_dies_at_work_and_loses_nothing() {
    for policy in POLICIES {
        for release in ["start", "end"] {
            let changes = [("buffer-policy", policy), ("buffer-release", release)];
            let (rt, drive) = drive(&changes);
            let began = rt.now();
            // Two zones of each group get 64 writes of one unit each: 128 programs, two at a time.
            let zones: Vec<_> = (0..8).map(|zone| (zone, Cell::new(0))).collect();
            let mut answers = Vec::new();
            for _ in 0..64 {
                for (zone, next) in &zones {
                    let at = next.replace(next.get() + 4);
                    let command = write(zone * 4096 + at, 4);
                    answers.push(rt.spawn(submit(&drive, *zone as u16, command)));
                }
            }
            let statuses = rt.block_on(async move {
                let mut statuses = Vec::new();
                for answer in answers {
                    statuses.push(answer.await);
                }
                statuses
            });
            assert!(statuses.len() == 512 && statuses.iter().all(|status| status.is_ok()));
            let taken = rt.now().since(began);
            // The last writes are answered when they are in the buffer but not programmed yet. The
            // buffer holds 4 units of each group, or 16 if each group has its own buffer.
            let buffered = match policy {
                "through" => 0,
                "group" => 16,
                _ => 4,
            };
            let least = (64 - buffered / 2 - 1) * PROGRAM;
            assert!(taken >= least, "{policy}, {release}: {taken} below {least}");
            assert!(taken <= 66 * PROGRAM, "{policy}, {release}: {taken}");
            let counters = drive.timing_counters().unwrap();
            assert_eq!(counters.commands, 512, "{policy}");
            if policy != "through" {
                assert!(counters.buffer_peak <= 256 << 10, "{policy}");
                assert!(counters.buffer_waits > 0, "{policy}");
            }
            // The rest of the buffer is programmed too.
            rt.block_on(rt.sleep(100 * PROGRAM));
            assert_eq!(drive.timing_counters().unwrap().programs, 512, "{policy}, {release}");
        }
    }
}

/// A policy that shares the buffer by queue or zone must not let a slow client delay the others.
#[test]
fn a_slow_writer_holds_up_others_only_in_a_common_line() {
    let until = 300 * Nanos::MILLI;
    let others_get = |policy: &str, slow: bool| {
        let (rt, drive) = drive(&[("buffer-policy", policy), ("buffer-release", "start")]);
        // Three writers with one block in flight each, on separate dies.
        let light: Vec<_> =
            (1..4).map(|zone| writer(&rt, &drive, zone, 1, 1, Nanos(until))).collect();
        // A writer with far more data than its group can program.
        let heavy = slow.then(|| writer(&rt, &drive, 0, 64, 32, Nanos(until)));
        rt.run_until(Nanos(until));
        let blocks = light.iter().map(|done| done.get()).min().unwrap();
        let heavy = heavy.map_or(0, |done| done.get());
        rt.clear();
        (blocks, heavy)
    };
    for policy in ["group", "shared-fifo", "per-queue", "per-zone"] {
        let ((alone, _), (beside, heavy)) = (others_get(policy, false), others_get(policy, true));
        let share = beside as f64 / alone as f64;
        // The group of the heavy writer programs 8 blocks per ms.
        let rate = heavy as f64 / 300.0;
        assert!(rate > 7.0, "{policy}: the heavy writer has {rate} blocks per ms");
        match policy {
            "shared-fifo" => assert!(share < 0.5, "{policy}: others keep {share}"),
            "group" | "per-zone" => assert!(share > 0.95, "{policy}: others keep {share}"),
            // The light writers get turns, but the heavy one may use the whole buffer.
            _ => assert!(share > 0.1, "{policy}: others keep {share}"),
        }
    }
}

#[test]
fn a_flush_waits_for_programs_if_a_power_cut_loses_the_buffer() {
    for (volatile, least, most) in [(true, PROGRAM, 3 * PROGRAM), (false, 0, 11_000)] {
        let geometry = Geometry { volatile_cache: volatile, ..geometry() };
        let (rt, drive) = drive_of(model(&[]), geometry, Config::simulated(1), 1_000);
        assert!(takes(&rt, &drive, Command::Flush) <= 11_000, "nothing to program");
        // The write fills one unit and a part of another: a flush has to program both.
        let written = takes(&rt, &drive, write(0, 6));
        assert!(written <= 3_100, "{written}");
        let flushed = takes(&rt, &drive, Command::Flush);
        assert!((least..=most).contains(&flushed), "volatile {volatile}: {flushed}");
        assert!(takes(&rt, &drive, Command::Flush) <= 11_000, "again nothing");
        // A write that must be durable waits for its own program.
        let request =
            Request { fua: true, ..Request::with_data(write(6, 1), pages(&common::geometry(), 1)) };
        let began = rt.now();
        assert!(rt.block_on(drive.submit(QueueId(0), request)).status.is_ok());
        let taken = rt.now().since(began);
        assert_eq!(taken >= PROGRAM, volatile, "{taken}");
    }
}

/// Resets and finishes compete with writes that keep their group busy; another group is
/// not affected.
#[test]
fn load_stretches_management_of_its_group_only() {
    let changes = [
        ("reset-fixed", "10ms"),
        ("reset-active", "0"),
        ("reset-stretch", "100%"),
        ("finish-fixed", "10ms"),
        ("finish-share", "25%"),
    ];
    for (action, alone, under_load) in
        [(Action::Reset, 10.0, 20.0), (Action::Finish, 10.0 + 5.24, 4.0 * (10.0 + 5.24))]
    {
        for (group, expected) in [(0, under_load), (1, alone)] {
            let (rt, drive) = drive(&changes);
            // Zones 8 and 9 belong to groups 0 and 1.
            assert!(takes(&rt, &drive, write((8 + group) * 4096, 1)) <= 3_100);
            rt.block_on(rt.sleep(50 * Nanos::MILLI));
            let until = rt.now().after(Nanos::SECOND);
            // The writer writes 33 MB/s for half a second, into a zone of 16 MiB.
            let done = writer(&rt, &drive, 0, 4, 32, until);
            rt.block_on(rt.sleep(50 * Nanos::MILLI));
            let taken = takes(&rt, &drive, manage(8 + group as u32, action, drive.geometry()));
            let milliseconds = taken as f64 / 1e6;
            assert!(
                (milliseconds / expected - 1.0).abs() < 0.06,
                "{action:?} in group {group}: {milliseconds} ms, expected {expected}"
            );
            assert!(done.get() > 0);
            rt.clear();
        }
    }
}

/// Two finishes of a group program the rest of their zones one after the other; writes get the
/// remaining rate.
#[test]
fn finishes_take_their_share_and_follow_each_other() {
    let changes = [("finish-fixed", "100ms"), ("finish-share", "25%")];
    let (rt, drive) = drive(&changes);
    for zone in [4, 8] {
        assert!(takes(&rt, &drive, write(zone * 4096, 1)) <= 3_100);
    }
    rt.block_on(rt.sleep(100 * Nanos::MILLI));
    let began = rt.now();
    let finishes = [4, 8].map(|zone| {
        let command = manage(zone, Action::Finish, drive.geometry());
        let (rt, answer) = (rt.clone(), submit(&drive, zone as u16, command));
        rt.clone().spawn(async move {
            assert!(answer.await.is_ok());
            rt.now().since(began) as f64 / 1e6
        })
    });
    let [first, second] = finishes;
    let (first, second) = rt.block_on(async move { (first.await, second.await) });
    assert!((first - 105.2).abs() < 1.0 && (second - 210.4).abs() < 2.0, "{first}, {second}");
    // Earlier writes slow only the beginning of a finish. A finish takes 105 ms alone, and 421 ms
    // next to writes.
    let began = rt.now();
    let done = writer(&rt, &drive, 1, 4, 32, began.after(50 * Nanos::MILLI));
    rt.block_on(rt.sleep(60 * Nanos::MILLI));
    assert!(done.get() >= 400, "{}", done.get());
    let finished = takes(&rt, &drive, manage(1, Action::Finish, drive.geometry())) as f64 / 1e6;
    assert!((104.0..130.0).contains(&finished), "{finished} ms");
    // Writes next to a finish get three quarters of 8 blocks per ms.
    assert!(takes(&rt, &drive, write(12 * 4096, 1)) <= 3_100);
    let finish = submit(&drive, 12, manage(12, Action::Finish, drive.geometry()));
    rt.spawn_detached(async move { assert!(finish.await.is_ok()) });
    rt.block_on(rt.sleep(Nanos::MILLI));
    let began = rt.now();
    let done = writer(&rt, &drive, 0, 4, 32, began.after(100 * Nanos::MILLI));
    rt.block_on(rt.sleep(20 * Nanos::MILLI));
    let before = done.get();
    rt.block_on(rt.sleep(60 * Nanos::MILLI));
    let rate = (done.get() - before) as f64 / 60.0;
    assert!((rate - 6.0).abs() < 0.4, "{rate} blocks per ms");
}

#[test]
fn real_time_is_scaled() {
    for scale in [1, 3] {
        let changes = [("write-latency", "4KiB:20ms")];
        let (rt, drive) = drive_of(model(&changes), geometry(), Config::real(), scale * 1_000);
        let began = rt.now();
        assert!(rt.block_on(submit(&drive, 0, write(0, 1))).is_ok());
        let taken = rt.now().since(began);
        let least = scale * 20 * Nanos::MILLI - 100;
        // The answer comes later only by the wake-up time of a busy host.
        assert!((least..least + 2 * Nanos::SECOND).contains(&taken), "{scale}: {taken}");
        rt.clear();
    }
}

/// The FNV-1a hash.
fn fold(hash: u64, value: u64) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    value.to_le_bytes().into_iter().fold(hash, step)
}

/// A hash of the times at which the commands of a mixed workload are answered, in the order of the
/// answers, and the time of the last answer.
fn answers(preset: &str, seed: u64) -> (u64, u64) {
    let rt = Rt::new(Config::simulated(seed));
    let spec = format!("mem:{preset},zones=64,medium=discard,timing=virtual,seed={seed}");
    let drive = spec.parse().map(|spec| furrow_emu::open(&rt, &spec, Access::ReadWrite));
    let drive = drive.expect("a spec").expect("a drive");
    let hash = Rc::new(Cell::new(0xcbf2_9ce4_8422_2325));
    let mut clients = Vec::new();
    for client in 0..7u32 {
        let (rt, drive, hash) = (rt.clone(), drive.clone(), hash.clone());
        clients.push(rt.clone().spawn(async move {
            // Zones whose numbers differ by 32 share a channel, if there are channels.
            let mut rng = Rng::new(0x5eed + u64::from(client));
            let mut next = [0u64; 2];
            for number in 0..400u64 {
                let which = rng.below(2) as usize;
                let zone = ZoneId(client + 32 * which as u32);
                let start = drive.geometry().start(zone).0;
                let blocks = 1 + rng.below(32);
                let command = match rng.below(100) {
                    0 => manage(zone.0, Action::Reset, drive.geometry()),
                    1 => manage(zone.0, Action::Finish, drive.geometry()),
                    2..=39 => write(start + next[which], blocks),
                    40..=69 => append(start, blocks),
                    70..=97 => read(start + rng.below(next[which] + 1), blocks),
                    _ => Command::Flush,
                };
                let status = submit(&drive, client as u16, command).await;
                match command {
                    Command::Write { .. } | Command::Append { .. } if status.is_ok() => {
                        next[which] += blocks;
                    }
                    Command::Manage { action: Action::Reset, .. } => next[which] = 0,
                    Command::Manage { action: Action::Finish, .. } => {
                        // The zone is reset, so that it can be written again.
                        let reset = manage(zone.0, Action::Reset, drive.geometry());
                        assert!(submit(&drive, client as u16, reset).await.is_ok());
                        next[which] = 0;
                    }
                    _ => {}
                }
                let line = [u64::from(client), number, rt.now().0];
                hash.set(line.into_iter().fold(hash.get(), fold));
            }
        }));
    }
    rt.block_on(async move {
        for client in clients {
            client.await;
        }
    });
    let end = rt.now().0;
    rt.clear();
    (hash.get(), end)
}

/// The nanoseconds must be exactly the same in every run, on every machine and in every build. A
/// change of the model changes them: commit the new values together with such a change.
#[test]
fn a_seed_gives_these_nanoseconds() {
    for (preset, expected) in [("pm1731a", PM1731A), ("zn540-1t", ZN540_1T)] {
        let first = answers(preset, 7);
        assert_eq!(first, answers(preset, 7), "{preset}: two runs of one seed differ");
        assert_eq!(first, expected, "{preset}");
        assert_ne!(first.0, answers(preset, 8).0, "{preset}: the seed has no effect");
    }
}

const PM1731A: (u64, u64) = (9_999_309_184_522_273_979, 11_242_704_743);
const ZN540_1T: (u64, u64) = (17_945_736_254_328_486_111, 22_866_544_395);

/// A command of the property test, and the time at which it is submitted.
#[derive(Clone, Debug)]
struct Step {
    queue: u16,
    zone: u32,
    kind: u8,
    blocks: u64,
    pause: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..4u16, 0..6u32, 0..12u8, 1..40u64, 0..200_000u64);
    let step = step.prop_map(|(queue, zone, kind, blocks, pause)| {
        let pause = if pause < 100_000 { 0 } else { pause * 3 };
        Step { queue, zone, kind, blocks, pause }
    });
    prop::collection::vec(step, 1..120)
}

fn small_models() -> impl Strategy<Value = Rc<Model>> {
    let shape = (1..5u32, 1..4u32, 1..4u32, 0..3u32, 1..9u64);
    let ways = (0..5usize, any::<bool>(), any::<bool>(), 0..3u32, any::<bool>());
    (shape, ways).prop_map(|((groups, dies, reads, unit, slots), ways)| {
        let (policy, start, fixed, quota, waits) = ways;
        let unit = 4u64 << (2 * unit);
        let reads = if POLICIES[policy] == "through" { dies } else { reads };
        let text = |value: u64, unit: &str| format!("{value}{unit}");
        let changes = [
            ("groups", groups.to_string()),
            ("group-dies", dies.to_string()),
            ("read-dies", reads.to_string()),
            ("channels", groups.to_string()),
            ("unit", text(unit, "KiB")),
            ("buffer", text(unit * slots, "KiB")),
            ("zone-quota", text(unit * u64::from(1 + quota), "KiB")),
            ("buffer-policy", POLICIES[policy].to_owned()),
            ("buffer-release", if start { "start" } else { "end" }.to_owned()),
            ("service-spread", if fixed { "fixed" } else { "exponential" }.to_owned()),
            ("reads-wait", if waits { "on" } else { "off" }.to_owned()),
            ("sense-switch", "5us".to_owned()),
            ("channel-switch", "3us".to_owned()),
            ("sense-spread", "60%".to_owned()),
            ("finish-share", text(u64::from(quota) * 20, "%")),
            ("reset-share", text(u64::from(quota) * 25, "%")),
        ];
        let given: Vec<(&str, &str)> = changes.iter().map(|(k, v)| (*k, v.as_str())).collect();
        model(&given)
    })
}

/// The minimum time of a successful command of this kind.
fn least(model: &Model, command: &Command) -> u64 {
    let bytes = |blocks: BlockCount| blocks.0 * 4096;
    match command {
        Command::Write { blocks, .. } => {
            let size = bytes(*blocks);
            model.write_latency.at(size).saturating_sub(model.write_service.at(size))
        }
        Command::Append { blocks, .. } => {
            let size = bytes(*blocks);
            model.append_latency.at(size).saturating_sub(model.append_service.at(size))
        }
        // At least one page is sensed, and bytes go over the link.
        Command::Read { blocks, .. } => {
            let fixed = model.sense.0 - model.sense_spread.of(model.sense.0);
            model.read_latency.0 + fixed + model.link_rate.time(bytes(*blocks).min(4096))
        }
        // The command may have nothing to do.
        Command::Manage { .. } => {
            model.reset_empty.0.min(model.finish_empty.0).min(model.refusal.0)
        }
        Command::Flush => model.flush.0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// For any drive and any commands, each command is answered once and not too early, and at the
    /// end the drive is idle with everything programmed.
    #[test]
    fn every_command_is_answered_in_its_time(
        model in small_models(),
        steps in steps(),
        volatile in any::<bool>(),
    ) {
        let geometry = Geometry { volatile_cache: volatile, ..geometry() };
        let (rt, drive) = drive_of(model.clone(), geometry.clone(), Config::simulated(3), 1_000);
        let answers = Rc::new(RefCell::new(Vec::new()));
        let count = steps.len();
        let mut next = [0u64; 6];
        for step in steps {
            let zone = step.zone as usize;
            let start = u64::from(step.zone) * 4096;
            let command = match step.kind {
                0..=3 => write(start + next[zone], step.blocks),
                4 | 5 => append(start, step.blocks),
                6..=8 => read(start, step.blocks),
                9 => manage(step.zone, Action::Reset, &geometry),
                10 => manage(step.zone, Action::Finish, &geometry),
                _ => Command::Flush,
            };
            match step.kind {
                0..=5 => next[zone] += step.blocks,
                9 => next[zone] = 0,
                10 => next[zone] = 4096,
                _ => {}
            }
            rt.block_on(rt.sleep(step.pause));
            let (answer, began) = (submit(&drive, step.queue, command), rt.now());
            let (clock, answers) = (rt.clone(), answers.clone());
            rt.spawn_detached(async move {
                let status = answer.await;
                answers.borrow_mut().push((command, status, clock.now().since(began)));
            });
        }
        // This is far more time than all commands would take one after the other.
        rt.block_on(rt.sleep(600 * Nanos::SECOND));
        let answers = answers.borrow();
        prop_assert_eq!(answers.len(), count);
        for (command, status, taken) in answers.iter() {
            let least = match status {
                Status::Success => least(&model, command),
                _ => model.refusal.0,
            };
            prop_assert!(*taken >= least, "{:?} ({}): {} below {}", command, status, taken, least);
        }
        let counters = drive.timing_counters().unwrap();
        prop_assert_eq!(counters.commands, count as u64);
        // The buffer holds at most units that are not full, and none if a flush has programmed
        // these too.
        let began = rt.now();
        prop_assert!(rt.block_on(submit(&drive, 0, Command::Flush)).is_ok());
        let most = model.flush.0 + 3 * model.program_time();
        prop_assert!(rt.now().since(began) <= most, "it was not at rest");
        rt.clear();
    }
}

/// A management command with Select All is one command for any number of zones.
#[test]
fn a_command_for_all_zones_takes_the_time_of_each() {
    let (rt, drive) = drive(&[("reset-fixed", "10ms"), ("reset-active", "0")]);
    for zone in 0..5 {
        assert!(takes(&rt, &drive, write(zone * 4096, 1)) <= 3_100);
    }
    rt.block_on(rt.sleep(Nanos::SECOND));
    let all = Command::Manage { target: Target::All, action: Action::Reset };
    let taken = takes(&rt, &drive, all) as f64 / 1e6;
    assert!((taken - 50.0).abs() < 0.1, "{taken} ms");
}
