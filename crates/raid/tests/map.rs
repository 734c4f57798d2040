//! A map that does not fit its memory: what was written is read, and the memory stays within its
//! bound, also in the recovery from a crash.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{check_runs, config, devices, drives, geometry, pages};
use furrow_raid::{Level, Options, Volume, assemble, create};
use furrow_rt::{Config as RtConfig, Rng, Rt};
use std::collections::BTreeMap;

/// Four mapping blocks, and the same amount for copies.
const BOUND: u64 = 32 << 10;

fn bounded() -> Options {
    Options { map_memory: BOUND, checkpoint_blocks: 500, ..Options::default() }
}

fn within(volume: &Volume) {
    let counters = volume.counters();
    assert!(counters.map_peak <= 4, "{counters:?}");
    // In addition to the mapping blocks, the map takes memory for the place of each of them.
    let beside = u64::from(volume.shape().mappings) * 32;
    assert!((volume.memory().0 as u64) <= BOUND / 2 + beside, "{:?}", volume.memory());
}

#[test]
fn memory_stays_within_its_bound() {
    let rt = Rt::new(RtConfig::shuffled(3));
    let geometry = geometry(40, 256);
    let all = drives(&rt, &geometry, 4);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let config = config(Level::Raid5, &geometry);
        let mut volume = create(&rt2, devices(&all), &config, &bounded(), false).await.unwrap();
        assert!(volume.shape().mappings > 12, "{}", volume.shape().mappings);
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        for round in 0..3 {
            for step in 0..400u64 {
                let count = 1 + rng.below(if step % 20 == 0 { 3000 } else { 6 });
                let block = rng.below(volume.blocks() - count);
                if rng.one_in(8) {
                    volume.trim(block, count, false).await.unwrap();
                    model.retain(|at, _| !(block..block + count).contains(at));
                } else {
                    volume.write(block, pages(block, count, step), false).await.unwrap();
                    model.extend((block..block + count).map(|block| (block, step)));
                }
            }
            within(&volume);
            check_runs(&volume, &model, 100).await;
            let extents = volume.extents(0, volume.blocks()).await.unwrap();
            let mapped: u64 = extents.iter().filter(|(_, hole)| !hole).map(|(n, _)| n).sum();
            assert_eq!(mapped, model.len() as u64);
            within(&volume);
            let counters = volume.counters();
            assert!(counters.map_evictions > 100 && counters.map_misses > 100, "{counters:?}");
            assert!(counters.map_writes > 20, "{counters:?}");
            assert!(round == 0 || counters.cleaned > 0, "{counters:?}");
            if round == 0 {
                volume.stop().await.unwrap();
            }
            drop(volume);
            volume = assemble(&rt2, devices(&all), &bounded()).await.unwrap();
            within(&volume);
            check_runs(&volume, &model, 100).await;
        }
    });
    rt.clear();
}
