//! An image survives kill -9 of the process that writes it, zone states and all.
//!
//! The test runs itself as a child process that writes, resets and finishes zones. The child
//! prints a line before each command, and one for each acknowledgement. The test kills the child
//! at some instant and compares the image with the lines. The one command in flight may be done
//! or not done, or only its first step may be done, which closes another zone; no other
//! difference is allowed.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of processes")]

mod common;
use common::*;
use furrow_emu::{Emulator, create_image, open};
use furrow_rt::{Config, Page, Pages, Rng, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{
    Access, Action, Command, Geometry, Machine, Request, ZoneId, ZoneState, ZonedDevice,
};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

const IMAGE: &str = "FURROW_TEST_KILL_IMAGE";
const SEED: &str = "FURROW_TEST_KILL_SEED";

fn drive_geometry() -> Geometry {
    Geometry { zones: 12, max_open: Some(4), max_active: Some(6), oob_bytes: 16, ..geometry() }
}

fn open_image(path: &Path) -> (Rt, Emulator) {
    let rt = Rt::new(Config::simulated(3));
    let spec: DeviceSpec = path.display().to_string().parse().expect("a plain path");
    let drive = open(&rt, &spec, Access::ReadWrite).expect("an image that survived");
    (rt, (*drive).clone())
}

/// Block `at` of command `number`: no two blocks of the test are equal.
fn block(number: u64, at: u64) -> Page {
    let mut rng = Rng::new(number * 1000 + at);
    let mut page = Page::zeroed();
    page.make_mut().chunks_mut(8).for_each(|c| c.copy_from_slice(&rng.next().to_le_bytes()));
    page
}

fn beside(number: u64, at: u64) -> [u8; 16] {
    (u128::from(number) << 64 | u128::from(at)).to_le_bytes()
}

/// Command `number` of the run with `seed`, given the present state of the zones.
fn choose(seed: u64, number: u64, machine: &Machine) -> Command {
    let mut rng = Rng::new(seed.wrapping_mul(0x1_0000_0001) ^ number);
    let geometry = machine.geometry();
    for _ in 0..100 {
        let zone = ZoneId(rng.below(u64::from(geometry.zones)) as u32);
        let start = geometry.start(zone).0;
        let command = match rng.below(12) {
            0 => manage(zone.0, Action::Reset, geometry),
            1 => manage(zone.0, Action::Finish, geometry),
            2 => manage(zone.0, Action::Close, geometry),
            3 => manage(zone.0, Action::Open, geometry),
            4..7 => append(start, 1 + rng.below(16)),
            _ => {
                let pointer = machine.zone(zone).expect("a zone").write_pointer.0;
                write(start + pointer, 1 + rng.below(16))
            }
        };
        if machine.check(&command).is_ok() {
            return command;
        }
    }
    Command::Flush
}

/// The child's part of the test: runs until it is killed.
fn write_until_killed(path: &Path) {
    let seed: u64 = std::env::var(SEED).expect("a seed").parse().expect("a number");
    let (rt, drive) = open_image(path);
    let mut machine = restored(&drive);
    let mut out = std::io::stdout().lock();
    for number in 0.. {
        let command = choose(seed, number, &machine);
        let blocks = match command {
            Command::Write { blocks, .. } | Command::Append { blocks, .. } => blocks.0,
            _ => 0,
        };
        let data: Pages = (0..blocks).map(|at| block(seed << 32 | number, at)).collect();
        let mut request = Request::with_data(command, data);
        request.oob = (0..blocks).flat_map(|at| beside(number, at)).collect();
        writeln!(out, "begin {number}").and_then(|()| out.flush()).expect("a parent that reads");
        let outcome = run(&rt, &drive, request);
        assert!(outcome.status.is_ok(), "{command:?}: {}", outcome.status);
        machine.apply(&command).expect("the drive accepted it");
        writeln!(out, "done {number}").and_then(|()| out.flush()).expect("a parent that reads");
    }
}

/// A state machine in the state of the drive's zones. The written length of a finished zone does
/// not matter, because the zone is not written before a reset.
fn restored(drive: &Emulator) -> Machine {
    let mut machine = Machine::new(drive.geometry().clone()).expect("a valid geometry");
    let report = drive.report_now(ZoneId(0), drive.geometry().zones).expect("a drive that answers");
    for zone in report {
        let to = furrow_zone::Zone {
            state: zone.state,
            write_pointer: zone.write_pointer,
            capacity: zone.capacity,
        };
        machine.restore(zone.zone, to).expect("a state that can be");
    }
    machine
}

/// The expected content of the drive.
#[derive(Clone)]
struct Expected {
    machine: Machine,
    /// For each zone and each of its blocks: the command that wrote it, and the number of the block
    /// in that command.
    zones: Vec<Vec<(u64, u64)>>,
}

impl Expected {
    fn apply(&mut self, seed: u64, number: u64) {
        let command = choose(seed, number, &self.machine);
        let zones = &mut self.zones;
        let effect = self.machine.apply_observed(&command, |zone, _, after| {
            if after.state == ZoneState::Empty {
                zones[zone.0 as usize].clear();
            }
        });
        if let Ok(furrow_zone::Effect::Written { zone, .. }) = effect {
            let (Command::Write { blocks, .. } | Command::Append { blocks, .. }) = command else {
                panic!("only writes write");
            };
            let run = (0..blocks.0).map(|at| (seed << 32 | number, at));
            self.zones[zone.0 as usize].extend(run);
        }
    }

    /// The expected content after only the first step of command `number`, which closes a zone so
    /// that another can open.
    fn room_made(&self, seed: u64, number: u64) -> Expected {
        let command = choose(seed, number, &self.machine);
        let mut closed = None;
        let _ = self.machine.clone().apply_observed(&command, |zone, _, after| {
            if after.state == ZoneState::Closed {
                closed = Some(zone);
            }
        });
        let mut made = self.clone();
        if let Some(zone) = closed {
            let close = manage(zone.0, Action::Close, made.machine.geometry());
            made.machine.apply(&close).expect("it was open");
        }
        made
    }

    fn matches(&self, rt: &Rt, drive: &Emulator) -> Result<u64, String> {
        let geometry = drive.geometry();
        let report = drive.report_now(ZoneId(0), geometry.zones).expect("a drive that answers");
        if report != self.machine.report(ZoneId(0), geometry.zones) {
            return Err(format!("zones are {report:?}"));
        }
        let mut compared = 0;
        for (zone, blocks) in (0..).map(ZoneId).zip(&self.zones) {
            for (offset, (number, at)) in (0..).zip(blocks) {
                let lba = geometry.start(zone).0 + offset;
                let request = Request::with_data(read(lba, 1), pages(geometry, 1));
                let outcome = run(rt, drive, request);
                let number_in_run = number & u64::from(u32::MAX);
                if outcome.data[0].bytes() != block(*number, *at).bytes()
                    || outcome.oob != beside(number_in_run, *at)
                {
                    return Err(format!("zone {zone} block {offset} is not what was written"));
                }
                compared += 1;
            }
        }
        Ok(compared)
    }
}

#[test]
fn an_image_survives_kill_9() {
    if let Ok(path) = std::env::var(IMAGE) {
        return write_until_killed(Path::new(&path));
    }
    let geometry = drive_geometry();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kill.zns");
    create_image(&path, &geometry, true).expect("an image");
    let mut expected = Expected {
        machine: Machine::new(geometry.clone()).expect("a valid geometry"),
        zones: vec![Vec::new(); geometry.zones as usize],
    };
    let (mut commands, mut compared, mut open_at_kill, mut ends) = (0, 0, 0, [0; 3]);
    for seed in 0..12 {
        let (acknowledged, in_flight) = run_child(&path, seed);
        assert!(acknowledged > 0, "the child was killed before it did anything");
        (0..acknowledged).for_each(|number| expected.apply(seed, number));
        let (rt, drive) = open_image(&path);
        let mut after = vec![expected.clone()];
        if in_flight {
            after.push(expected.room_made(seed, acknowledged));
            expected.apply(seed, acknowledged);
            after.push(expected.clone());
        }
        let found: Vec<_> = after.iter().map(|state| state.matches(&rt, &drive)).collect();
        let which = found.iter().position(Result::is_ok);
        let which = which.unwrap_or_else(|| panic!("seed {seed}: {found:?}"));
        expected = after.swap_remove(which);
        ends[which] += 1;
        assert!(drive.warnings().is_empty(), "{:?}", drive.warnings());
        commands += acknowledged;
        compared += found[which].clone().expect("found to be so");
        open_at_kill += expected.machine.open_zones();
        // The order in which zones were opened is not stored: continue from the image's state.
        expected.machine = restored(&drive);
    }
    assert!(open_at_kill > 0, "zones were open when the process died");
    println!(
        "12 kills, {commands} commands acknowledged, {compared} blocks compared; last command not \
         done, room made, done: {ends:?}"
    );
}

/// Runs the child and kills it; returns the number of acknowledged commands, and whether one more
/// had begun.
fn run_child(path: &Path, seed: u64) -> (u64, bool) {
    let me = std::env::current_exe().expect("this test has a path");
    let mut child = Process::new(me)
        .args(["--exact", "an_image_survives_kill_9", "--nocapture"])
        .env(IMAGE, path)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test can run itself");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let (mut acknowledged, mut begun) = (0, 0);
    // The child must be killed at any instant of its work, not just after a line; the rest of the
    // pipe is read afterwards.
    let enough = 20 + Rng::new(seed).below(400);
    let mut killed = false;
    while let Some(Ok(line)) = lines.next() {
        // The test harness of the child prints its own lines first.
        match line.rsplit_once(' ') {
            Some((before, number)) if before.ends_with("begin") => {
                begun = number.parse::<u64>().expect("a number") + 1;
            }
            Some(("done", number)) => acknowledged = number.parse::<u64>().expect("a number") + 1,
            _ => {}
        }
        if !killed && acknowledged >= enough {
            std::thread::sleep(std::time::Duration::from_micros(seed * 37));
            child.kill().expect("a child that runs");
            killed = true;
        }
    }
    child.wait().expect("a child that ends");
    assert!(killed, "the child ended before it was killed");
    (acknowledged, begun > acknowledged)
}
