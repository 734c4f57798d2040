//! Members that come back in an older state, and mapping blocks that cannot be read.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{Array, check, churn, devices, power_cycle, without_stale};
use furrow_emu::{Emulator, Fault, FaultKind, Options as DriveOptions, Snapshot};
use furrow_raid::{Level, MemberState, Options, Standing, assemble, examine, judge};
use furrow_rt::{Rng, Rt};
use furrow_zone::{ErrorKind, ZoneId, ZonedDevice};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The drive in the state of an image.
fn restored(rt: &Rt, index: usize, image: &Snapshot) -> Rc<Emulator> {
    let options = DriveOptions { name: format!("drive{index}"), ..DriveOptions::simulated() };
    Rc::new(Emulator::from_snapshot(rt, image, options))
}

/// Backups of members, taken while the array was stopped, are restored after the array ran once
/// more, until a stop or a power cut. Either no acknowledged block is lost, or the array does not
/// start and names the drives to blame.
#[test]
fn backups_of_members_are_refused_by_name() {
    for (level, count, back) in [
        (Level::Raid5, 4, &[1][..]),
        (Level::Raid5, 4, &[1, 2]),
        (Level::Raid6, 5, &[0, 3]),
        (Level::Raid6, 5, &[0, 2, 3]),
        (Level::Raid01, 4, &[0, 2]),
        (Level::Raid01, 4, &[2, 3]),
        (Level::Raid0, 2, &[1]),
    ] {
        for (cut, writes) in [(false, 40), (true, 40), (true, 1)] {
            let array = Array::new(level, count).shuffled(count as u64);
            array.run(async move |rt, mut all, volume| {
                let (mut model, mut rng) = (BTreeMap::new(), Rng::new(3));
                churn(&volume, &mut model, &mut rng, 30).await;
                volume.stop().await.unwrap();
                drop(volume);
                let images: Vec<_> = back.iter().map(|at| (*at, all[*at].snapshot())).collect();
                let volume = assemble(&rt, devices(&all), &Options::default()).await.unwrap();
                churn(&volume, &mut model, &mut rng, writes).await;
                if cut {
                    power_cycle(&rt, &all, volume).await;
                } else {
                    volume.stop().await.unwrap();
                }
                images.iter().for_each(|(at, image)| all[*at] = restored(&rt, *at, image));
                let told = format!("{level} of {count}, {back:?}, {cut} {writes}");
                let error = assemble(&rt, devices(&all), &Options::default()).await.unwrap_err();
                let text = error.to_string();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{told}: {text}");
                assert!(text.starts_with(&format!("drive{} is stale", back[0])), "{told}: {text}");
                let named = back.iter().all(|at| text.contains(&format!("drive{at}")));
                assert!(named, "{told}: {text}");
                let mut says = Vec::new();
                for drive in &all {
                    says.push(examine(&**drive).await.unwrap());
                }
                let standings = judge(&says).unwrap().standings;
                let is_stale = |at: &usize| !matches!(standings[*at], Standing::Member(_));
                let stale: Vec<usize> = (0..count).filter(is_stale).collect();
                assert_eq!(stale, back, "{told}");
                // The array starts without these drives, if it can do without them; they come back
                // as new drives.
                match without_stale(&rt, &all).await {
                    Ok(volume) => {
                        assert!(text.contains("furrow raid replace"), "{told}: {text}");
                        check(&volume, &model).await;
                        for at in back {
                            assert_eq!(volume.members()[*at].1, MemberState::Failed, "{told}");
                            let device = all[*at].clone();
                            volume.replace(*at as u32, device, true).await.unwrap();
                        }
                        while volume.rebuilding().is_some() {
                            rt.sleep(100_000).await;
                        }
                        check(&volume, &model).await;
                    }
                    Err(why) => {
                        assert!(text.contains("cannot do without"), "{told}: {text}");
                        assert!(why.contains("cannot do without"), "{told}: {why}");
                    }
                }
            });
        }
    }
}

/// An image of a member, taken while the array ran, is put back after a clean stop. However little
/// it lacks, it is refused by name: every member is known to have a record of the stop.
#[test]
fn an_image_from_before_a_stop_is_refused_by_name() {
    for seed in 0..20 {
        Array::new(Level::Raid5, 4).shuffled(seed).run(async move |rt, mut all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(seed));
            churn(&volume, &mut model, &mut rng, 30 + seed).await;
            if seed % 2 == 0 {
                volume.checkpoint(false).await.unwrap();
            }
            let (at, image) = (seed as usize % 4, all[seed as usize % 4].snapshot());
            churn(&volume, &mut model, &mut rng, seed % 3).await;
            volume.stop().await.unwrap();
            drop(volume);
            all[at] = restored(&rt, at, &image);
            let error = assemble(&rt, devices(&all), &Options::default()).await.unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with(&format!("drive{at} is stale")), "{seed}: {text}");
            let volume = without_stale(&rt, &all).await.unwrap();
            check(&volume, &model).await;
        });
    }
}

/// An image of a member of a running array is put back after a power cut, so the drive lost its
/// last writes and acknowledged records. The member is refused, or the blocks it lacks are
/// reconstructed from the others, so that another member may fail.
#[test]
fn a_member_that_lost_its_last_writes_costs_nothing() {
    let (mut refused, mut taken, mut lacking) = (0, 0, 0);
    for seed in 0..60 {
        let array = Array::new(Level::Raid5, 4).shuffled(seed);
        let (stale, lacked) = array.run(async move |rt, mut all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(seed));
            churn(&volume, &mut model, &mut rng, 50 + seed).await;
            let (at, image) = (seed as usize % 4, all[seed as usize % 4].snapshot());
            let later = rng.below(120);
            churn(&volume, &mut model, &mut rng, later).await;
            // The drive loses its newest record and the one before, or only the newest.
            for _ in 0..seed % 3 {
                volume.checkpoint(false).await.unwrap();
                churn(&volume, &mut model, &mut rng, 20).await;
            }
            power_cycle(&rt, &all, volume).await;
            all[at] = restored(&rt, at, &image);
            let volume = without_stale(&rt, &all).await.unwrap();
            check(&volume, &model).await;
            let stale = volume.members()[at].1 == MemberState::Failed;
            let lacked = volume.recovered().lacking > 0;
            churn(&volume, &mut model, &mut rng, 20).await;
            rt.sleep(1_000_000_000).await;
            if !stale {
                volume.stop().await.unwrap();
                drop(volume);
                let mut left = devices(&all);
                left.remove((at + 1) % 4);
                let volume = assemble(&rt, left, &Options::default()).await.unwrap();
                check(&volume, &model).await;
            }
            (stale, lacked)
        });
        refused += u32::from(stale);
        taken += u32::from(!stale);
        lacking += u32::from(lacked);
    }
    println!("{refused} refused, {taken} taken, {lacking} lacked zones");
    assert!(refused > 5 && taken > 5 && lacking > 3, "{refused} {taken} {lacking}");
}

/// Two members lose the zones of segments with mapping blocks: some of these can neither be read
/// nor identified. Cleaning gives such a segment up, and no task waits for it.
#[test]
fn a_mapping_block_that_is_lost_keeps_nobody_waiting() {
    Array::new(Level::Raid5, 4).zones(24, 80).simulated(5).run(async move |rt, all, volume| {
        let geometry = all[0].geometry().clone();
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(5));
        for _ in 0..40 {
            churn(&volume, &mut model, &mut rng, 4).await;
            volume.checkpoint(false).await.unwrap();
        }
        volume.stop().await.unwrap();
        drop(volume);
        for drive in &all[1..3] {
            for zone in 2..geometry.zones {
                if drive.report_now(ZoneId(zone), 1).unwrap()[0].write_pointer.0 > 0 {
                    let gone = Fault::new(FaultKind::ZoneOffline).at_zone(ZoneId(zone));
                    drive.inject(gone).unwrap();
                }
            }
        }
        // An endless loop would show in the number of commands.
        let count = Rc::new(Cell::new(0u64));
        let told = count.clone();
        all[0].set_observer(Rc::new(move |_: &Emulator, _: &_| {
            told.set(told.get() + 1);
            assert!(told.get() < 20_000, "the volume tends itself, and comes to no end");
        }));
        let volume = assemble(&rt, devices(&all), &Options::default()).await.unwrap();
        rt.sleep(1_000_000_000).await;
        let checkpoints = volume.counters().checkpoints;
        let commands = count.get();
        rt.sleep(1_000_000_000).await;
        assert_eq!(count.get(), commands, "nothing is left that could be done");
        assert!(checkpoints < 20, "{checkpoints} checkpoints");
        let error = volume.read(0, volume.blocks() as u32).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt), "{error}");
        volume.stop().await.unwrap();
    });
}
