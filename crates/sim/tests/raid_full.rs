//! Recovery of a volume without space: a crash left stripes that lack a chunk, and no segment can
//! be begun until one is reset.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "seeds share nothing, and two processors do two")]

use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options as DriveOptions, When};
use furrow_raid::format::RING_ZONES;
use furrow_raid::{Config, Level, Options, Recovered, assemble, create};
use furrow_rt::{Config as RtConfig, Pages, Rng, Rt};
use furrow_sim::raid::array::devices;
use furrow_sim::raid::oracle::{Blocks, TRIM, page};
use furrow_sim::raid::part::Part;
use furrow_zone::{ErrorKind, Geometry, ZoneId, ZoneState, ZonedDevice};
use std::cell::RefCell;
use std::rc::Rc;

const DRIVES: u32 = 3;
const ZONES: u32 = 13;

/// Makes open zones full and empty zones read-only, so that recovery must free all the space
/// it needs.
fn wear(drive: &Emulator) {
    let reports = drive.report_now(ZoneId(0), DRIVES * ZONES).unwrap();
    for report in reports.iter().filter(|report| report.zone.0 % ZONES >= RING_ZONES) {
        let kind = match report.state {
            state if state.is_active() => FaultKind::ZoneFull,
            ZoneState::Empty => FaultKind::ZoneReadOnly,
            _ => continue,
        };
        drive.inject(Fault::new(kind).at_zone(report.zone)).unwrap();
    }
}

/// Fills a volume, with or without a checkpoint at the end. The power is cut while many blocks are
/// overwritten and trimmed, and after that no zone can be begun. The power is cut again before
/// command `again` of the recovery, and the next assembly lacks one of the drives. Returns the
/// report of the recovery if it was not to be cut, and whether it was cut.
fn live(seed: u64, again: Option<u64>) -> (Option<Recovered>, bool) {
    let rt = Rt::new(RtConfig::shuffled(seed));
    let mut rng = Rng::new(seed);
    let part = Geometry {
        oob_bytes: 64,
        max_open: Some(8),
        max_active: Some(8),
        ..Geometry::unlimited(ZONES, 32, 24)
    };
    let whole = Geometry {
        zones: DRIVES * ZONES,
        max_open: Some(DRIVES * 8),
        max_active: Some(DRIVES * 8),
        ..part.clone()
    };
    let group = [1, 4][rng.below(2) as usize];
    let config = Config { group, reserve: 40, ..Config::new(Level::Raid5, &part) };
    let medium = Medium::memory(&whole);
    let drive = Emulator::new(&rt, whole, medium, DriveOptions::simulated()).unwrap();
    let rt2 = rt.clone();
    let met = rt.block_on(async move {
        let (rt, options) = (rt2, Options::default());
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        let parts = Part::split(&rt, &device, DRIVES);
        // If the drive has no power by now, commands submitted since then have not started.
        let power_cut = || match drive.report_now(ZoneId(0), 1) {
            Ok(_) => drive.power_cut(&Fates::seeded(seed ^ again.unwrap_or(0))),
            Err(_) => drive.power_cut(&Fates::nothing(0)),
        };
        let on_again = async || {
            rt.sleep(1_000_000_000).await;
            drive.clear_faults(None).unwrap();
            drive.power_on();
        };
        let volume = create(&rt, devices(&parts, &[]), &config, &options, false).await.unwrap();
        let blocks = Rc::new(RefCell::new(Blocks::default()));
        let all = volume.blocks();
        for first in (0..all).step_by(4) {
            let data: Pages = (first..all.min(first + 4)).map(|block| page(block, 1)).collect();
            volume.write(first, data, false).await.unwrap();
        }
        (0..all).for_each(|block| blocks.borrow_mut().set(block, 1));
        if rng.one_in(2) {
            volume.checkpoint(false).await.unwrap();
        }
        let power = Fault::new(FaultKind::PowerCut).when(When::Nth(1 + rng.below(300))).times(1);
        drive.inject(power).unwrap();
        let (first, trims) = (rng.below(all.min(20)), [20, 2][rng.below(2) as usize]);
        for block in first..all.min(first + 30 + rng.below(60)) {
            let (volume, blocks, trim) = (volume.clone(), blocks.clone(), rng.one_in(trims));
            let version = if trim { TRIM + 2 } else { 2 };
            rt.spawn_detached(async move {
                blocks.borrow_mut().began(block, (block, 1, version));
                let done = match trim {
                    true => volume.trim(block, 1, false).await,
                    false => volume.write(block, vec![page(block, 2)].into(), false).await,
                };
                if done.is_ok() {
                    blocks.borrow_mut().acknowledged(block);
                }
            });
        }
        rt.sleep(1_000_000_000).await;
        power_cut();
        drop(volume);
        on_again().await;
        wear(&drive);
        let blocks = blocks.take();

        if let Some(again) = again {
            let power = Fault::new(FaultKind::PowerCut).when(When::Nth(again)).times(1);
            drive.inject(power).unwrap();
        }
        let told = |why| format!("seed {seed}, again {again:?}: {why}");
        let volume = assemble(&rt, devices(&parts, &[]), &options).await;
        let was_cut = drive.report_now(ZoneId(0), 1).is_err();
        let mut met = None;
        if again.is_none() {
            let volume = volume.as_ref().unwrap();
            blocks.compare(volume).await.unwrap_or_else(|why| panic!("{}", told(why)));
            met = Some(volume.recovered());
        }
        power_cut();
        drop(volume);
        on_again().await;
        let lost = rng.below(DRIVES.into()) as u32;
        let told = |why| format!("seed {seed}, again {again:?}, without {lost}: {why}");
        let mut volume = assemble(&rt, devices(&parts, &[lost]), &options).await;
        // Recovery may have removed a drive that prevented any space from being freed. Then no
        // other drive may be missing.
        let stale = |part: &u32| {
            let error = volume.as_ref().err().map(ToString::to_string).unwrap_or_default();
            error.starts_with(&format!("part {part} is stale"))
        };
        if let Some(stale) = (0..DRIVES).find(stale) {
            volume = assemble(&rt, devices(&parts, &[stale]), &options).await;
        }
        let volume = volume.unwrap_or_else(|why| panic!("{}", told(why.to_string())));
        blocks.compare(&volume).await.unwrap_or_else(|why| panic!("{}", told(why)));
        let written = volume.write(0, vec![page(0, 3)].into(), false).await;
        assert!(written.is_ok() || written.is_err_and(|e| e.kind() == ErrorKind::NoSpace));
        (met, was_cut)
    });
    rt.clear();
    met
}

/// Cuts the power at every fourth command of the recovery from a crash. Returns the report of the
/// recovery without a cut.
fn live_and_again(seed: u64) -> Recovered {
    let met = live(seed, None).0.expect("it came to its end");
    if met.early > 0 {
        // After the last command of the recovery, there is nothing more to cut.
        (1..200).step_by(4).find(|again| !live(seed, Some(*again)).1);
    }
    met
}

/// The older copy of a block stays while the newer one is in a stripe that lacks a chunk, until
/// that stripe is rewritten. Otherwise the next failing drive would lose both.
#[test]
fn what_is_reset_for_room_is_not_missed() {
    let met: Vec<Recovered> = std::thread::scope(|scope| {
        let part = |first: u64| move || (first..300).step_by(4).map(live_and_again).collect();
        let parts = [0, 1, 2, 3].map(|first| scope.spawn(part(first)));
        let joined = parts.map(|part| -> Vec<Recovered> { part.join().unwrap() });
        joined.into_iter().flatten().collect()
    });
    let early = || met.iter().filter(|met| met.early > 0);
    let torn = early().filter(|met| met.torn_blocks > 0).count();
    assert!(early().count() > 10 && torn > 3, "{} {torn}", early().count());
}

/// A trim whose record was in a stripe that lacks a chunk was not rewritten, and the trimmed blocks
/// were reset. When the record was lost, the map named blocks that were gone.
#[test]
fn what_a_torn_trim_takes_away_stays() {
    live_and_again(2384);
}
