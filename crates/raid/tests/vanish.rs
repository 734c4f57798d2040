//! Drives that are gone for a moment while an array is assembled, scrubbed or read, or while
//! another drive is taken out, and drives that vanish before a scrub or during reads.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{
    Array, check, check_runs, churn, devices, geometry, power_cycle, reopened, without_stale,
};
use furrow_emu::{Fault, FaultKind, When};
use furrow_raid::{Level, MemberState, Options, assemble, examine};
use furrow_rt::Rng;
use furrow_zone::{ErrorKind, Geometry, ZonedDevice};
use std::collections::BTreeMap;

/// The drives of `gone` vanish at their command `at` and are back `commands` commands later.
/// Returns whether the array was assembled all the same.
fn live(seed: u64, gone: &[usize], at: u64, commands: u64) -> bool {
    let gone = gone.to_vec();
    Array::new(Level::Raid5, 3).shuffled(seed).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(seed));
        churn(&volume, &mut model, &mut rng, 60).await;
        power_cycle(&rt, &all, volume).await;
        for index in &gone {
            let kind = FaultKind::Disappear { commands: Some(commands) };
            all[*index].inject(Fault::new(kind).when(When::Nth(at)).times(1)).unwrap();
        }
        let opened = assemble(&rt, devices(&all), &Options::default()).await;
        let told = format!("seed {seed}, {gone:?} gone at {at} for {commands}");
        if let (Ok(volume), [one], 1) = (&opened, &gone[..], commands) {
            assert_eq!(volume.members()[*one].1, MemberState::Active, "{told}");
        }
        // If all drives go, they may still be gone when the volume is read.
        if let Some(volume) = opened.as_ref().ok().filter(|_| gone.len() == 1) {
            check(volume, &model).await;
            churn(volume, &mut model, &mut rng, 10).await;
            check(volume, &model).await;
        }
        let done = opened.is_ok();
        drop(opened);
        rt.sleep(1_000_000_000).await;
        all.iter().for_each(|drive| {
            drive.clear_faults(None).unwrap();
            drive.power_on();
        });
        let volume = without_stale(&rt, &all).await.unwrap_or_else(|why| panic!("{told}: {why}"));
        check(&volume, &model).await;
        done
    })
}

#[test]
fn drives_that_are_gone_for_a_moment_cost_nothing() {
    let (mut opened, mut refused) = (0, 0);
    for at in (1..120).step_by(3) {
        for commands in [1, 5, 20, 100] {
            assert!(live(at, &[1], at, commands), "it can do without one");
            for gone in [&[0, 2][..], &[0, 1, 2]] {
                match live(at, gone, at, commands) {
                    true => opened += 1,
                    false => refused += 1,
                }
            }
        }
    }
    assert!(opened > 20 && refused > 5, "{opened} {refused}");
}

/// Of four drives, drive 2 is taken out, then drive 0; of the remaining drives 1 and 3, only drive
/// 3 records the failure of drive 0. Drives 0 and 1 are then assembled without drive 3, but vanish
/// at their command `at`. If drives 0 and 1 continued, drive 3 is stale. Returns whether drives 0
/// and 1 continued.
fn told_alone(at: u64) -> bool {
    Array::new(Level::Raid6, 4).shuffled(at).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(at));
        churn(&volume, &mut model, &mut rng, 20).await;
        volume.fail(2).await.unwrap();
        // Drive 1 takes the first record, written before drive 0 is taken out, but not the record
        // of that failure.
        let away = Fault::new(FaultKind::Disappear { commands: None });
        all[1].inject(away.when(When::Nth(2))).unwrap();
        let failed = volume.fail(0).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
        all[1].clear_faults(None).unwrap();
        power_cycle(&rt, &all, volume).await;
        let mut told = Vec::new();
        for drive in [&all[1], &all[3]] {
            told.push(examine(&**drive).await.unwrap().members[0].1 == MemberState::Failed);
        }
        assert_eq!(told, [false, true]);
        let kind = FaultKind::Disappear { commands: None };
        for drive in &all[..2] {
            drive.inject(Fault::new(kind).when(When::Nth(at)).times(1)).unwrap();
        }
        let opened = assemble(&rt, devices(&all[..2]), &Options::default()).await;
        drop(opened);
        rt.sleep(1_000_000_000).await;
        for drive in &all {
            drive.clear_faults(None).unwrap();
            drive.power_on();
        }
        let opened = without_stale(&rt, &all).await;
        let volume = opened.unwrap_or_else(|why| panic!("gone at {at}: {why}"));
        check(&volume, &model).await;
        volume.members()[0].1 == MemberState::Active
    })
}

#[test]
fn who_was_told_of_a_failure_alone_does_not_stand_in_the_way() {
    let went_on = (1..80).filter(|at| told_alone(*at)).count();
    assert!((10..79).contains(&went_on), "{went_on}");
}

/// A drive vanishes at any command of a scrub, of a volume that was in use or is fresh from its
/// assembly: its member is taken out of service, and none of its blocks counts as damaged.
#[test]
fn a_scrub_takes_a_vanished_drive_out_and_finds_no_damage() {
    for oob_bytes in [64, 0] {
        let mut noticed = 0;
        for at in (1..200).step_by(5) {
            let bare = Geometry { oob_bytes, ..geometry(16, 80) };
            let array = Array::of(bare, Level::Raid5, 3);
            let array = if oob_bytes == 0 { array.group(1) } else { array };
            noticed += array.shuffled(at).run(async move |rt, all, volume| {
                let (mut model, mut rng) = (BTreeMap::new(), Rng::new(at));
                churn(&volume, &mut model, &mut rng, 120).await;
                let volume = match at % 2 {
                    0 => reopened(&rt, &all, volume).await,
                    _ => volume,
                };
                let vanish = Fault::new(FaultKind::Disappear { commands: None });
                all[1].inject(vanish.when(When::Nth(at)).times(1)).unwrap();
                let scrubbed = volume.scrub(at % 3 == 0, |_, _| {}).await.unwrap();
                assert_eq!((&scrubbed.findings[..], scrubbed.lost), (&[][..], 0), "{at}");
                assert_eq!(volume.lost().0, 0, "{at}");
                let failed = volume.members()[1].1 == MemberState::Failed;
                assert_eq!(scrubbed.unchecked.contains(&1), failed, "{at}");
                check(&volume, &model).await;
                u32::from(failed)
            });
        }
        assert!(noticed > 10, "{noticed} with {oob_bytes} bytes");
    }
}

/// A drive is gone for a moment, at some commands of a scrub: none of its blocks counts as damaged,
/// and the scrub says that it may not have checked all of them.
#[test]
fn a_scrub_finds_no_damage_on_a_drive_that_is_gone_for_a_moment() {
    for (oob_bytes, commands) in [(64, 1), (64, 4), (0, 1), (0, 4)] {
        let (mut struck, mut kept) = (0, 0);
        for at in (1..200).step_by(9) {
            let bare = Geometry { oob_bytes, ..geometry(16, 80) };
            let array = Array::of(bare, Level::Raid5, 3);
            let array = if oob_bytes == 0 { array.group(1) } else { array };
            let (missed, active) = array.shuffled(at).run(async move |rt, all, volume| {
                let (mut model, mut rng) = (BTreeMap::new(), Rng::new(at));
                churn(&volume, &mut model, &mut rng, 120).await;
                let volume = match at % 2 {
                    0 => reopened(&rt, &all, volume).await,
                    _ => volume,
                };
                let (kind, before) =
                    (FaultKind::Disappear { commands: Some(commands) }, all[1].misses());
                for more in [0, 1, 30] {
                    all[1].inject(Fault::new(kind).when(When::Nth(at + more)).times(1)).unwrap();
                }
                let scrubbed = volume.scrub(at % 3 == 0, |_, _| {}).await.unwrap();
                let what = format!("{at}, {commands} commands: {scrubbed:?}");
                assert_eq!((scrubbed.findings.len(), scrubbed.lost), (0, 0), "{what}");
                assert_eq!(volume.lost().0, 0, "{what}");
                let missed = all[1].misses() > before;
                assert_eq!(scrubbed.unchecked.contains(&1), missed, "{what}");
                let active = volume.members()[1].1 == MemberState::Active;
                check(&volume, &model).await;
                (missed, active)
            });
            struck += u32::from(missed);
            kept += u32::from(missed && active);
        }
        let what = format!("{struck} struck, {kept} kept, {oob_bytes} bytes, {commands} commands");
        assert!(struck > 5 && (kept > 5 || commands > 1), "{what}");
    }
}

/// A drive is gone for a moment, or for good, while several reads of a call are in flight: all
/// blocks are read, and none of them is rewritten as if it were damaged.
#[test]
fn blocks_of_a_drive_that_is_gone_are_read_and_not_repaired() {
    for (oob_bytes, commands) in [(64, Some(1)), (64, None), (0, Some(1)), (0, None)] {
        let mut struck = 0;
        for at in (1..60).step_by(4) {
            let bare = Geometry { oob_bytes, ..geometry(16, 80) };
            let array = Array::of(bare, Level::Raid5, 3);
            let array = if oob_bytes == 0 { array.group(1) } else { array };
            struck += array.shuffled(at).run(async move |rt, all, volume| {
                let (mut model, mut rng) = (BTreeMap::new(), Rng::new(at));
                churn(&volume, &mut model, &mut rng, 120).await;
                let volume = match at % 3 {
                    0 => reopened(&rt, &all, volume).await,
                    _ => volume,
                };
                let before = all[1].misses();
                for more in 0..3 {
                    let gone = Fault::new(FaultKind::Disappear { commands });
                    all[1].inject(gone.when(When::Nth(at + more)).times(1)).unwrap();
                }
                check_runs(&volume, &model, 64).await;
                // Repairs run in the background.
                rt.sleep(1_000_000_000).await;
                let (repaired, checksum) =
                    (volume.counters().repaired, volume.members()[1].2.checksum);
                assert_eq!((repaired, checksum), (0, 0), "{at}, {commands:?} commands");
                check(&volume, &model).await;
                u32::from(all[1].misses() > before)
            });
        }
        assert!(struck > 5, "{struck} with {oob_bytes} bytes, {commands:?} commands");
    }
}

/// A scrub of an array that does without a drive it needs fails: it does not say that all is well.
#[test]
fn a_scrub_without_a_drive_that_is_needed_fails() {
    for at in (1..60).step_by(2) {
        Array::new(Level::Raid0, 2).run(async move |rt, all, volume| {
            churn(&volume, &mut BTreeMap::new(), &mut Rng::new(2), 120).await;
            let volume = reopened(&rt, &all, volume).await;
            let vanish = Fault::new(FaultKind::Disappear { commands: None });
            all[1].inject(vanish.when(When::Nth(at)).times(1)).unwrap();
            match volume.scrub(true, |_, _| {}).await {
                Ok(scrubbed) => {
                    assert!(volume.failed().is_none(), "{at}");
                    assert_eq!((scrubbed.findings.len(), scrubbed.lost), (0, 0), "{at}");
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{at}: {error}"),
            }
            assert_eq!(volume.lost().0, 0, "{at}");
        });
    }
}
