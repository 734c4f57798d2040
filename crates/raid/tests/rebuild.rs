//! A drive is replaced under load, and another is lost after the rebuild; damage is repaired.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{Array, check, churn, devices, pages, power_cycle, reopened};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, When};
use furrow_raid::{Level, MemberState, Options, Volume, assemble};
use furrow_rt::{Rng, Rt};
use furrow_zone::{BlockCount, ErrorKind, Lba, ZoneId, ZoneState, ZonedDevice};
use std::collections::BTreeMap;
use std::rc::Rc;

async fn rebuilt(rt: &Rt, volume: &Volume, model: &mut BTreeMap<u64, u64>, rng: &mut Rng) {
    let mut seen = 0;
    while let Some(progress) = volume.rebuilding() {
        seen = seen.max(progress.total);
        churn(volume, model, rng, 5).await;
        rt.sleep(100_000).await;
    }
    assert!(seen > 0);
}

#[test]
fn a_replacement_is_rebuilt_under_load_and_another_drive_may_fail_then() {
    for (level, count) in
        [(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid01, 4), (Level::Raid4, 3)]
    {
        Array::new(level, count).others(1).shuffled(3).run(async move |rt, all, volume| {
            let spare = &all[count];
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
            churn(&volume, &mut model, &mut rng, 200).await;
            let busy = volume.replace(1, spare.clone(), false).await.unwrap_err();
            assert!(busy.to_string().contains("in service"), "{busy}");
            volume.fail(1).await.unwrap();
            churn(&volume, &mut model, &mut rng, 50).await;
            assert_eq!(volume.fail(0).await.is_err(), level != Level::Raid6, "{level}");
            check(&volume, &model).await;
            let old = volume.replace(1, all[2].clone(), false).await.unwrap_err();
            assert_eq!(old.kind(), ErrorKind::Exists);
            volume.replace(1, spare.clone(), false).await.unwrap();
            rebuilt(&rt, &volume, &mut model, &mut rng).await;
            if level == Level::Raid6 {
                volume.replace(0, all[0].clone(), true).await.unwrap();
                rebuilt(&rt, &volume, &mut model, &mut rng).await;
            }
            assert!(volume.members().iter().all(|(_, state, _)| *state == MemberState::Active));
            check(&volume, &model).await;
            // The new drive provides chunks in place of this drive, which is lost now.
            all[2].power_cut(&Fates::nothing(1));
            check(&volume, &model).await;
            churn(&volume, &mut model, &mut rng, 20).await;
            check(&volume, &model).await;
        });
    }
}

#[test]
fn what_happens_is_told_in_order_and_a_failed_drive_is_let_go() {
    Array::new(Level::Raid5, 3).others(1).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 100).await;
        assert!(volume.used() > 0 && volume.used() <= volume.blocks());
        volume.fail(2).await.unwrap();
        churn(&volume, &mut model, &mut rng, 10).await;
        assert_eq!(Rc::strong_count(&all[2]), 1, "nobody writes to it any more");
        // The rebuild is so slow that it does not end until the pause is shortened.
        volume.set_rebuild_pause(1 << 40);
        volume.replace(2, all[3].clone(), false).await.unwrap();
        rt.sleep(1 << 38).await;
        assert!(volume.rebuilding().is_some());
        all[0].power_cut(&Fates::nothing(1));
        assert!(volume.write(0, pages(0, 1, 1), false).await.is_err());
        let mut told = Vec::new();
        for _ in 0..5 {
            let event = volume.next_event().await;
            told.push((event.name(), event.member()));
        }
        assert_eq!(
            told,
            [
                ("member-failed", Some(2)),
                ("replaced", Some(2)),
                ("rebuild-started", None),
                ("member-failed", Some(0)),
                ("array-failed", None)
            ]
        );
    });
}

#[test]
fn the_throttle_of_a_rebuild_can_be_changed_while_it_runs() {
    Array::new(Level::Raid5, 3).others(1).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 200).await;
        volume.fail(1).await.unwrap();
        const SECOND: u64 = 1_000_000_000;
        volume.set_rebuild_pause(SECOND);
        volume.replace(1, all[3].clone(), false).await.unwrap();
        rt.sleep(5 * SECOND / 2).await;
        let done = volume.rebuilding().expect("it takes seconds").done;
        volume.set_rebuild_pause(0);
        rt.sleep(3 * SECOND / 2).await;
        assert_eq!(volume.rebuilding(), None, "{done} segments were done before");
        let mut last = volume.next_event().await;
        while last != furrow_raid::Event::RebuildFinished {
            last = volume.next_event().await;
        }
        check(&volume, &model).await;
    });
}

/// A new drive is itself replaced while one of its zones is being filled: that zone is not taken
/// for a zone of the next drive.
#[test]
fn a_new_drive_may_be_replaced_in_the_middle_of_its_rebuild() {
    Array::new(Level::Raid5, 3).others(2).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 200).await;
        volume.fail(1).await.unwrap();
        volume.set_rebuild_pause(1_000_000_000);
        volume.replace(1, all[3].clone(), false).await.unwrap();
        rt.sleep(500_000_000).await;
        assert!(volume.rebuilding().is_some());
        volume.fail(1).await.unwrap();
        volume.replace(1, all[4].clone(), false).await.unwrap();
        volume.set_rebuild_pause(0);
        while volume.rebuilding().is_some() {
            rt.sleep(100_000).await;
        }
        assert_eq!(volume.members()[1].1, MemberState::Active);
        volume.fail(0).await.unwrap();
        check(&volume, &model).await;
    });
}

/// A drive that a rebuild reads from vanishes: nothing counts as lost, and the new drive not as
/// whole. Once the drive is back, everything is restored.
#[test]
fn a_rebuild_whose_source_vanishes_restores_everything_later() {
    let interrupted = Rc::new(std::cell::Cell::new(0));
    for at in (1..160).step_by(7) {
        let interrupted = interrupted.clone();
        Array::new(Level::Raid5, 3).others(1).shuffled(at).run(async move |rt, all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(at));
            churn(&volume, &mut model, &mut rng, 200).await;
            volume.fail(1).await.unwrap();
            volume.replace(1, all[3].clone(), false).await.unwrap();
            let vanish = Fault::new(FaultKind::Disappear { commands: None });
            all[0].inject(vanish.when(When::Nth(at)).times(1)).unwrap();
            while volume.rebuilding().is_some() {
                rt.sleep(100_000).await;
            }
            if volume.failed().is_some() {
                interrupted.set(interrupted.get() + 1);
                assert_eq!(volume.members()[1].1, MemberState::Rebuilding, "{at}");
                assert_eq!(volume.lost().0, 0, "{at}");
            }
            all[0].clear_faults(None).unwrap();
            all[0].power_on();
            let now = [all[0].clone(), all[3].clone(), all[2].clone()];
            power_cycle(&rt, &now, volume).await;
            let volume = assemble(&rt, devices(&now), &Options::default()).await.unwrap();
            while volume.rebuilding().is_some() {
                rt.sleep(100_000).await;
            }
            assert_eq!(volume.members()[1].1, MemberState::Active, "{at}");
            all[2].power_cut(&Fates::nothing(1));
            check(&volume, &model).await;
        });
    }
    assert!(interrupted.get() > 5, "{}", interrupted.get());
}

/// A drive that a rebuild reads from is gone for a moment, several times: nothing counts as lost,
/// and the new drive is in full service only when it can stand in for another one.
#[test]
fn a_rebuild_whose_source_is_gone_for_a_moment_leaves_no_block_without_redundancy() {
    let missed = Rc::new(std::cell::Cell::new(0));
    for at in (1..40).step_by(3) {
        let missed = missed.clone();
        Array::new(Level::Raid5, 3).others(1).shuffled(at).run(async move |rt, all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(at));
            churn(&volume, &mut model, &mut rng, 200).await;
            volume.fail(1).await.unwrap();
            let moment = Fault::new(FaultKind::Disappear { commands: Some(1) });
            let (geometry, before) = (all[0].geometry(), all[0].misses());
            // Full zones are only read: the array cannot do without a drive that refuses writes.
            let mut zones = all[0].report_now(ZoneId(2), geometry.zones - 2).unwrap();
            zones.retain(|zone| zone.state == ZoneState::Full);
            for (zone, more) in zones.iter().flat_map(|zone| [(zone, 0), (zone, 1), (zone, 9)]) {
                let moment = moment.at_blocks(geometry.start(zone.zone), geometry.zone_size);
                all[0].inject(moment.when(When::Nth(at + more)).times(1)).unwrap();
            }
            volume.replace(1, all[3].clone(), false).await.unwrap();
            for _ in 0..20 {
                while volume.rebuilding().is_some() {
                    rt.sleep(100_000).await;
                }
                volume.start_rebuild();
            }
            missed.set(missed.get() + all[0].misses() - before);
            let told = volume.last_rebuild();
            assert_eq!(volume.members()[1].1, MemberState::Active, "{at}: {told:?}");
            assert_eq!(volume.lost().0, 0, "{at}");
            all[0].clear_faults(None).unwrap();
            all[2].power_cut(&Fates::nothing(1));
            check(&volume, &model).await;
        });
    }
    assert!(missed.get() > 20, "{}", missed.get());
}

/// A second member is replaced while the rebuild of the first writes its checkpoint.
#[test]
fn what_is_replaced_at_the_end_of_a_rebuild_is_rebuilt_too() {
    Array::new(Level::Raid6, 5).others(2).run(async move |rt, all, volume| {
        let geometry = all[0].geometry();
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 200).await;
        volume.fail(0).await.unwrap();
        volume.fail(1).await.unwrap();
        volume.replace(1, all[5].clone(), false).await.unwrap();
        // The segments' zones are slow, not the ring in which members are recorded.
        let (first, zones) = (2 * geometry.zone_size.0, u64::from(geometry.zones) - 2);
        let slow = FaultKind::Slow { polls: 0, nanoseconds: 10_000_000 };
        let zones = BlockCount(zones * geometry.zone_size.0);
        for drive in &all[..5] {
            drive.inject(Fault::new(slow).at_blocks(Lba(first), zones)).unwrap();
        }
        while volume.members()[1].1 != MemberState::Active {
            rt.sleep(100_000).await;
        }
        assert!(volume.rebuilding().is_some(), "its checkpoint is under way");
        volume.replace(0, all[6].clone(), false).await.unwrap();
        assert!(volume.rebuilding().is_some(), "its checkpoint is under way");
        while volume.rebuilding().is_some() {
            rt.sleep(1_000_000).await;
        }
        let states = volume.members().into_iter().map(|(_, state, _)| state);
        assert_eq!(states.collect::<Vec<_>>(), [MemberState::Active; 5]);
        volume.fail(2).await.unwrap();
        volume.fail(3).await.unwrap();
        check(&volume, &model).await;
    });
}

#[test]
fn a_scrub_finds_damage_names_it_and_mends_it() {
    Array::new(Level::Raid5, 4).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 100).await;
        let clean = volume.scrub(false, |_, _| {}).await.unwrap();
        assert!(clean.findings.is_empty() && clean.blocks > 300, "{clean:?}");
        let decay =
            Fault { when: When::Every(7), times: Some(5), ..Fault::new(FaultKind::BitFlip) };
        all[2].inject(decay.at_zone(ZoneId(3))).unwrap();
        let mut steps = 0;
        let scrubbed = volume.scrub(true, |_, _| steps += 1).await.unwrap();
        assert!(!scrubbed.findings.is_empty() && steps > 1, "{scrubbed:?}");
        assert_eq!(scrubbed.lost, 0);
        for finding in &scrubbed.findings {
            assert_eq!((finding.member, finding.zone.0, finding.repaired), (2, 3, true));
        }
        all[2].clear_faults(None).unwrap();
        check(&volume, &model).await;
        let mended = volume.scrub(false, |_, _| {}).await.unwrap();
        assert!(mended.findings.is_empty(), "what was damaged is not needed: {mended:?}");
        let again = reopened(&rt, &all, volume).await;
        check(&again, &model).await;
    });
}

/// The zone of a drive that holds the most blocks.
fn fullest(drive: &Emulator) -> ZoneId {
    let zones = drive.report_now(ZoneId(2), drive.geometry().zones - 2).unwrap();
    zones.iter().filter(|zone| zone.state == ZoneState::Full).map(|zone| zone.zone).next().unwrap()
}

/// Two zones on different drives go offline. Each loss costs redundancy until the blocks are
/// elsewhere. A read or the next assembly notices the loss.
#[test]
fn what_a_lost_zone_held_is_redundant_again_before_the_next_failure() {
    for noticed in ["by a read", "at the assembly"] {
        Array::new(Level::Raid5, 4).shuffled(4).run(async move |rt, all, volume| {
            let (mut model, mut rng, mut volume) = (BTreeMap::new(), Rng::new(8), volume);
            churn(&volume, &mut model, &mut rng, 300).await;
            if noticed == "at the assembly" {
                volume.stop().await.unwrap();
                drop(volume);
                let fault = Fault::new(FaultKind::ZoneOffline).at_zone(fullest(&all[1]));
                all[1].inject(fault).unwrap();
                volume = assemble(&rt, devices(&all), &Options::default()).await.unwrap();
            } else {
                let fault = Fault::new(FaultKind::ZoneOffline).at_zone(fullest(&all[1]));
                all[1].inject(fault).unwrap();
                check(&volume, &model).await;
            }
            rt.sleep(50_000_000).await;
            let counters = volume.counters();
            assert!(counters.moved > 0 && counters.cleaned > 0, "{noticed}: {counters:?}");
            assert_eq!(volume.members()[1].1, MemberState::Active);
            volume.fail(3).await.unwrap();
            check(&volume, &model).await;
        });
    }
}

#[test]
fn a_scrub_can_be_stopped() {
    Array::new(Level::Raid5, 4).simulated(4).run(async move |_, _all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 300).await;
        let whole = volume.scrub(false, |_, _| {}).await.unwrap();
        assert!(!whole.stopped && whole.findings.is_empty(), "{whole:?}");
        let stopper = volume.clone();
        let stop = move |done, _| {
            if done == 1 {
                stopper.stop_scrub();
            }
        };
        let some = volume.scrub(false, stop).await.unwrap();
        assert!(some.stopped && some.blocks > 0 && some.blocks < whole.blocks, "{some:?}");
        let again = volume.scrub(false, |_, _| {}).await.unwrap();
        assert!(!again.stopped && again.blocks >= whole.blocks, "{again:?}");
    });
}
