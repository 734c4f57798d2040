//! Arrays of the largest permitted number of drives.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{self, Array, check_runs, config, devices, drives, geometry, pages, reopened};
use furrow_emu::{Emulator, Fates};
use furrow_raid::{Level, MemberState, Options, Volume, create};
use furrow_rt::{Config as RtConfig, Rng, Rt};
use furrow_zone::ErrorKind;
use std::collections::BTreeMap;
use std::rc::Rc;

const MOST: usize = 32;

type Model = BTreeMap<u64, u64>;

/// Writes the first `blocks` blocks, in pieces smaller than a stripe, and some blocks anywhere.
async fn fill(volume: &Volume, blocks: u64, model: &mut Model) {
    for first in (0..blocks).step_by(7) {
        let count = 7.min(blocks - first);
        volume.write(first, pages(first, count, 1), false).await.unwrap();
        model.extend((first..first + count).map(|block| (block, 1)));
    }
    common::churn(volume, model, &mut Rng::new(5), 200).await;
}

/// Replaces every failed member by a new drive, and waits for the end of the rebuild.
async fn replaced(rt: &Rt, volume: &Volume, all: &mut [Rc<Emulator>], lost: &[usize]) {
    let geometry = geometry(16, 40);
    for (index, fresh) in lost.iter().zip(drives(rt, &geometry, lost.len())) {
        volume.replace(*index as u32, fresh.clone(), false).await.unwrap();
        all[*index] = fresh;
    }
    while volume.rebuilding().is_some() {
        rt.sleep(1_000_000).await;
    }
    assert!(volume.members().iter().all(|(_, state, _)| *state == MemberState::Active));
    let scrubbed = volume.scrub(false, |_, _| {}).await.unwrap();
    assert!(scrubbed.findings.is_empty() && scrubbed.lost == 0, "{scrubbed:?}");
    assert!(scrubbed.blocks > volume.used(), "{scrubbed:?}");
}

fn failed(volume: &Volume) -> Vec<usize> {
    let members = volume.members();
    let failed = members.iter().enumerate().filter(|(_, m)| m.1 == MemberState::Failed);
    failed.map(|(index, _)| index).collect()
}

#[test]
fn of_32_drives_of_raid_6_any_two_may_fail_and_be_replaced() {
    let array = Array::new(Level::Raid6, MOST).zones(16, 40).shuffled(2);
    array.run(async move |rt, mut all, volume| {
        let mut model = Model::new();
        // For that, cleaning has to fill stripes of 120 blocks.
        fill(&volume, volume.blocks(), &mut model).await;
        // One drive loses power, one is taken out. The last drive, whose factor in Q is the
        // largest, is among them.
        all[MOST - 1].power_cut(&Fates::nothing(1));
        volume.fail(3).await.unwrap();
        check_runs(&volume, &model, 61).await;
        common::churn(&volume, &mut model, &mut Rng::new(6), 100).await;
        check_runs(&volume, &model, 61).await;
        assert_eq!(failed(&volume), [3, MOST - 1]);
        assert!(volume.counters().reconstructed > 0);
        let third = volume.fail(9).await.unwrap_err();
        assert_eq!(third.kind(), ErrorKind::Invalid, "{third}");
        replaced(&rt, &volume, &mut all, &[3, MOST - 1]).await;
        // The new drives provide chunks in place of other drives, which are lost now.
        volume.fail(0).await.unwrap();
        volume.fail(17).await.unwrap();
        check_runs(&volume, &model, 61).await;
        replaced(&rt, &volume, &mut all, &[0, 17]).await;
        let volume = reopened(&rt, &all, volume).await;
        check_runs(&volume, &model, 61).await;
    });
}

#[test]
fn of_32_drives_of_raid_01_one_of_each_pair_may_fail_and_be_replaced() {
    let array = Array::new(Level::Raid01, MOST).zones(16, 40).shuffled(3);
    array.run(async move |rt, mut all, volume| {
        let mut model = Model::new();
        fill(&volume, volume.blocks(), &mut model).await;
        // The first half of some pairs, the second half of others: in the end one drive of every
        // pair.
        let lost: Vec<usize> = (0..MOST / 2).map(|pair| 2 * pair + pair / 3 % 2).collect();
        for (done, index) in lost.iter().enumerate() {
            volume.fail(*index as u32).await.unwrap();
            let partner = volume.fail((index ^ 1) as u32).await.unwrap_err();
            assert_eq!(partner.kind(), ErrorKind::Invalid, "{partner}");
            if done == 4 {
                check_runs(&volume, &model, 61).await;
                common::churn(&volume, &mut model, &mut Rng::new(6), 50).await;
            }
        }
        assert_eq!(failed(&volume), lost);
        check_runs(&volume, &model, 61).await;
        common::churn(&volume, &mut model, &mut Rng::new(7), 100).await;
        replaced(&rt, &volume, &mut all, &lost).await;
        // The partners of the new drives fail now, so every chunk comes from a new drive.
        for index in &lost {
            volume.fail((index ^ 1) as u32).await.unwrap();
        }
        check_runs(&volume, &model, 61).await;
        let partners: Vec<usize> = lost.iter().map(|index| index ^ 1).collect();
        replaced(&rt, &volume, &mut all, &partners).await;
        let volume = reopened(&rt, &all, volume).await;
        check_runs(&volume, &model, 61).await;
    });
}

#[test]
fn more_drives_are_refused_with_what_would_do() {
    let rt = Rt::new(RtConfig::simulated(1));
    let geometry = geometry(16, 40);
    let all = drives(&rt, &geometry, MOST + 2);
    let rt2 = rt.clone();
    rt.block_on(async move {
        for level in Level::ALL {
            let (config, options) = (config(level, &geometry), Options::default());
            for given in [MOST + 1, MOST + 2] {
                let devices = devices(&all[..given]);
                let error = create(&rt2, devices, &config, &options, false).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                let least = level.drives_min();
                let said = format!("{level} needs {least} to 32 drives, not {given}");
                assert!(error.to_string().contains(&said), "{error}");
            }
        }
        // The refused attempt wrote nothing: an array can be made of the largest permitted number
        // of drives.
        let (config, options) = (config(Level::Raid5, &geometry), Options::default());
        create(&rt2, devices(&all[2..]), &config, &options, false).await.unwrap();
    });
    rt.clear();
}
