//! The volume against a plain model: writes, reads, trims, restarts, drives that fail.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{self, Array, check_runs, devices, pages, power_cycle, reopened};
use furrow_emu::{Emulator, Fault, FaultKind, When};
use furrow_raid::{Level, MemberState, Options, Volume, assemble};
use furrow_rt::Rng;
use furrow_zone::{BlockCount, ErrorKind, ZoneId, ZonedDevice};
use std::collections::BTreeMap;

type Model = BTreeMap<u64, u64>;

/// `steps` random writes and trims.
async fn churn(volume: &Volume, model: &mut Model, rng: &mut Rng, steps: u64, next: &mut u64) {
    for _ in 0..steps {
        let count = [1, 1, 1, 2, 3, 4, 8, 13][rng.below(8) as usize].min(volume.blocks());
        let block = rng.below(volume.blocks() - count + 1);
        *next += 1;
        if rng.below(10) == 0 {
            volume.trim(block, count, false).await.unwrap();
            model.retain(|at, _| !(block..block + count).contains(at));
        } else {
            volume.write(block, pages(block, count, *next), rng.below(4) == 0).await.unwrap();
            model.extend((block..block + count).map(|block| (block, *next)));
        }
    }
}

#[test]
fn what_was_written_is_read_also_after_a_restart() {
    for (level, count) in [
        (Level::Raid0, 2),
        (Level::Raid01, 4),
        (Level::Raid4, 3),
        (Level::Raid5, 4),
        (Level::Raid6, 5),
    ] {
        Array::new(level, count).zones(14, 80).shuffled(7).run(async move |rt, drives, volume| {
            let (mut volume, mut model, mut rng, mut next) = (volume, Model::new(), Rng::new(3), 0);
            for round in 0..3 {
                churn(&volume, &mut model, &mut rng, 150, &mut next).await;
                check_runs(&volume, &model, 61).await;
                if round == 1 {
                    volume.stop().await.unwrap();
                }
                drop(volume);
                volume = assemble(&rt, devices(&drives), &Options::default()).await.unwrap();
                check_runs(&volume, &model, 61).await;
            }
            assert!(volume.counters().checkpoints > 0);
        });
    }
}

/// The smallest reserve, the usual one and the largest: the smaller the reserve, the more cleaning
/// has to move.
#[test]
fn a_full_volume_is_overwritten_many_times() {
    let (mut sizes, mut moved) = (Vec::new(), Vec::new());
    for reserve in [7, 25, 100] {
        let array = Array::new(Level::Raid5, 4).zones(24, 80).reserve(reserve).simulated(1);
        let (blocks, counters) = array.run(async move |rt, drives, volume| {
            let (mut model, mut rng, mut next) = (Model::new(), Rng::new(3), 0);
            let blocks = volume.blocks();
            for block in 0..blocks {
                volume.write(block, pages(block, 1, 0), false).await.unwrap();
                model.insert(block, 0);
            }
            churn(&volume, &mut model, &mut rng, 4 * blocks, &mut next).await;
            check_runs(&volume, &model, 61).await;
            let counters = volume.counters();
            let volume = reopened(&rt, &drives, volume).await;
            assert_eq!((volume.config().reserve, volume.blocks()), (reserve, blocks));
            check_runs(&volume, &model, 61).await;
            (blocks, counters)
        });
        assert!(counters.cleaned > 10, "{reserve} %: {counters:?}");
        sizes.push(blocks * u64::from(100 + reserve) / 100);
        moved.push(counters.moved as f64 / counters.written as f64);
    }
    // Together with its reserve, each volume takes the same space.
    assert!(sizes.iter().all(|size| size.abs_diff(sizes[0]) < 20), "{sizes:?}");
    assert!(moved.is_sorted_by(|more, less| more > less), "{moved:?}");
}

#[test]
fn any_drives_may_fail_under_load_and_writes_go_on() {
    for (level, count, lose) in
        [(Level::Raid5, 4, vec![1]), (Level::Raid6, 5, vec![4, 0]), (Level::Raid01, 4, vec![2])]
    {
        Array::new(level, count).shuffled(11).run(async move |rt, drives, volume| {
            let (mut model, mut rng, mut next) = (Model::new(), Rng::new(5), 0);
            churn(&volume, &mut model, &mut rng, 100, &mut next).await;
            for lost in &lose {
                drives[*lost].power_cut(&furrow_emu::Fates::nothing(1));
                churn(&volume, &mut model, &mut rng, 60, &mut next).await;
                assert_eq!(volume.members()[*lost].1, MemberState::Failed);
                check_runs(&volume, &model, 61).await;
            }
            assert!(volume.counters().reconstructed > 0);
            // The remaining drives are enough; the lost ones are stale.
            let left: Vec<_> = (0..drives.len()).filter(|i| !lose.contains(i)).collect();
            let left: Vec<_> = left.into_iter().map(|i| drives[i].clone()).collect();
            // A volume that is only dropped may still be cleaning when the next one is assembled.
            power_cycle(&rt, &left, volume).await;
            drives[lose[0]].power_on();
            let all = assemble(&rt, devices(&drives), &Options::default()).await;
            let refused = all.unwrap_err();
            assert!(refused.to_string().contains("stale") || lose.len() > 1, "{refused}");
            if lose.len() > 1 {
                // A drive that does not answer may be among those given.
                drives[lose[0]].power_cut(&furrow_emu::Fates::nothing(1));
                let most = assemble(&rt, devices(&drives), &Options::default()).await.unwrap();
                check_runs(&most, &model, 61).await;
                power_cycle(&rt, &left, most).await;
            }
            let volume = assemble(&rt, devices(&left), &Options::default()).await.unwrap();
            check_runs(&volume, &model, 61).await;
            churn(&volume, &mut model, &mut rng, 60, &mut next).await;
            check_runs(&volume, &model, 61).await;
            drop(volume);
            if level == Level::Raid5 {
                let few = assemble(&rt, devices(&left[..2]), &Options::default()).await;
                let few = few.unwrap_err();
                assert_eq!(few.kind(), ErrorKind::Invalid);
                assert!(few.to_string().contains("cannot do without"), "{few}");
            }
        });
    }
}

/// Writes single blocks until a write is refused. Returns the error; `None` if no write was
/// refused. The model gets the acknowledged writes.
async fn wear_out(
    volume: &Volume,
    model: &mut Model,
    next: &mut u64,
) -> Option<furrow_zone::Error> {
    let mut rng = Rng::new(17);
    for _ in 0..40 * volume.blocks() {
        let block = rng.below(volume.blocks());
        *next += 1;
        match volume.write(block, pages(block, 1, *next), false).await {
            Ok(()) => model.insert(block, *next),
            Err(error) => return Some(error),
        };
    }
    None
}

/// Makes zones of a drive, from `first` on, read-only: every third write to them does so,
/// `times` times.
fn wear(drive: &Emulator, first: u32, times: u64) {
    let geometry = drive.geometry().clone();
    let (start, end) = (geometry.start(ZoneId(first)), geometry.zone_size.0 * 16);
    let fault = Fault::new(FaultKind::ZoneReadOnly).when(When::OneIn(3)).times(times);
    drive.inject(fault.at_blocks(start, BlockCount(end - start.0))).unwrap();
}

#[test]
fn a_drive_that_loses_its_zones_goes_if_that_makes_room() {
    Array::new(Level::Raid5, 4).zones(16, 40).shuffled(5).run(async move |_, drives, volume| {
        let (mut model, mut next) = (Model::new(), 0);
        wear(&drives[2], 2, 9);
        assert_eq!(wear_out(&volume, &mut model, &mut next).await.map(|e| e.to_string()), None);
        check_runs(&volume, &model, 61).await;
        assert_eq!(volume.members()[2].1, MemberState::Failed);
        assert!(volume.out_of_space().is_none() && volume.failed().is_none());
    });
}

#[test]
fn where_no_drive_can_go_only_reads_are_answered() {
    for (level, count) in [(Level::Raid0, 2), (Level::Raid5, 3)] {
        Array::new(level, count).zones(16, 40).shuffled(5).run(async move |rt, drives, volume| {
            let geometry = drives[0].geometry().clone();
            let (mut model, mut next) = (Model::new(), 0);
            if level == Level::Raid5 {
                volume.fail(0).await.unwrap();
            }
            wear(&drives[1], 2, 12);
            let error = wear_out(&volume, &mut model, &mut next).await.unwrap();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            assert!(error.to_string().contains("member 1 has lost"), "{error}");
            assert!(volume.lost_zones(1) >= 3, "{} zones lost", volume.lost_zones(1));
            check_runs(&volume, &model, 61).await;
            drop(volume);
            let left: Vec<_> = drives[usize::from(level == Level::Raid5)..].to_vec();
            let volume = assemble(&rt, devices(&left), &Options::default()).await.unwrap();
            check_runs(&volume, &model, 61).await;
            if level == Level::Raid5 {
                // A new drive is not enough: the rebuild needs the drive that lost its zones.
                let fresh = common::drives(&rt, &geometry, 2);
                volume.replace(0, fresh[0].clone(), false).await.unwrap();
                while volume.rebuilding().is_some() {
                    rt.sleep(1_000_000).await;
                }
                volume.fail(1).await.unwrap();
                volume.replace(1, fresh[1].clone(), false).await.unwrap();
                let none = wear_out(&volume, &mut model, &mut next).await;
                assert_eq!(none.map(|error| error.to_string()), None);
                check_runs(&volume, &model, 61).await;
            }
        });
    }
}
