//! Drives without an out-of-band area: metadata stripes list the blocks in the rows.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{
    Array, check, churn, devices, drives, geometry, page, pages, power_cycle, reopened,
};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, When};
use furrow_log::{BlockAddr, read_blocks, record};
use furrow_raid::{
    Config, Level, MemberState, MetaPlace, Options, Volume, assemble, create, format,
};
use furrow_rt::{Config as RtConfig, JoinHandle, Pool, Rng, Rt};
use furrow_zone::{BlockCount, Geometry, QueueId, Result, ZoneId, ZoneState, ZonedDevice};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

fn bare(zones: u32, capacity: u64) -> Geometry {
    Geometry { oob_bytes: 0, ..geometry(zones, capacity) }
}

fn config(level: Level, geometry: &Geometry) -> Config {
    Config { large: 2, ..Config::new(level, geometry) }
}

fn array(level: Level, count: usize) -> Array {
    Array::of(bare(20, 190), level, count).group(1)
}

#[test]
fn what_is_written_is_read_after_a_crash_without_a_drive_and_from_a_replacement() {
    for (level, count) in
        [(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid01, 4), (Level::Raid4, 3)]
    {
        array(level, count).others(1).shuffled(3).run(async move |rt, all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
            churn(&volume, &mut model, &mut rng, 600).await;
            check(&volume, &model).await;
            let scrubbed = volume.scrub(false, |_, _| {}).await.unwrap();
            assert!(scrubbed.findings.is_empty() && scrubbed.lost == 0, "{scrubbed:?}");
            power_cycle(&rt, &all[..count], volume).await;
            let volume = assemble(&rt, devices(&all[..count]), &Options::default()).await.unwrap();
            check(&volume, &model).await;
            churn(&volume, &mut model, &mut rng, 200).await;
            volume.fail(1).await.unwrap();
            churn(&volume, &mut model, &mut rng, 200).await;
            check(&volume, &model).await;
            volume.replace(1, all[count].clone(), false).await.unwrap();
            while volume.rebuilding().is_some() {
                churn(&volume, &mut model, &mut rng, 5).await;
                rt.sleep(100_000).await;
            }
            assert!(volume.members().iter().all(|(_, state, _)| *state == MemberState::Active));
            assert!(volume.members().iter().all(|(.., errors)| errors.checksum == 0));
            // The new drive provides chunks in place of this drive, which is lost now.
            all[2].power_cut(&Fates::nothing(1));
            check(&volume, &model).await;
            churn(&volume, &mut model, &mut rng, 50).await;
            check(&volume, &model).await;
            assert!(volume.counters().cleaned > 0, "{:?}", volume.counters());
        });
    }
}

/// A drive answers a request only after another drive has taken its place: its answer must not
/// count as a listing by the new drive.
#[test]
fn a_late_answer_of_a_drive_says_nothing_of_the_one_after_it() {
    array(Level::Raid5, 3).others(1).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 600).await;
        let volume = reopened(&rt, &all[..3], volume).await;
        let slow = FaultKind::Slow { polls: 0, nanoseconds: 10_000_000_000 };
        all[1].inject(Fault::new(slow)).unwrap();
        let late = all_read_at_once(&rt, &volume);
        rt.sleep(1_000_000).await;
        volume.fail(1).await.unwrap();
        volume.replace(1, all[3].clone(), false).await.unwrap();
        while volume.rebuilding().is_some() {
            rt.sleep(1_000_000).await;
        }
        assert!(rt.now().0 < 10_000_000_000, "nothing was answered before");
        for read in late {
            read.await.unwrap();
        }
        volume.fail(0).await.unwrap();
        check(&volume, &model).await;
    });
}

/// A drive vanishes while it is read, so the listings of its blocks cannot be read any more. The
/// blocks that were read must not count as damaged.
#[test]
fn a_drive_that_goes_is_not_counted_as_damaged() {
    array(Level::Raid5, 4).shuffled(3).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 600).await;
        // After an assembly, no listing is in memory.
        let volume = reopened(&rt, &all, volume).await;
        let disappear = FaultKind::Disappear { commands: None };
        all[1].inject(Fault::new(disappear).when(When::Nth(60))).unwrap();
        let reads = all_read_at_once(&rt, &volume);
        for read in reads {
            read.await.unwrap();
        }
        check(&volume, &model).await;
        let members = volume.members();
        assert_eq!(members[1].1, MemberState::Failed);
        assert!(members[1].2.read > 0 && members.iter().all(|m| m.2.checksum == 0), "{members:?}");
    });
}

/// The second parity of two trims has out-of-band bytes like those of a metadata block, except for
/// the address.
#[test]
fn parity_is_not_taken_for_a_metadata_block() {
    array(Level::Raid6, 4).run(async move |rt, all, volume| {
        for version in 1..9 {
            volume.write(0, pages(0, 2, version), false).await.unwrap();
            // Both trims are in one stripe.
            let trims = [0, 1].map(|block| {
                let volume = volume.clone();
                rt.spawn(async move { volume.trim(block, 1, false).await })
            });
            for trim in trims {
                trim.await.unwrap();
            }
        }
        let scrubbed = volume.scrub(false, |_, _| {}).await.unwrap();
        assert!(scrubbed.findings.is_empty(), "{scrubbed:?}");
        power_cycle(&rt, &all, volume).await;
        for lost in [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]] {
            let left: Vec<_> = (0..4).filter(|drive| !lost.contains(drive)).collect();
            let left: Vec<_> = left.into_iter().map(|drive| fork(&rt, &all[drive])).collect();
            let volume = assemble(&rt, devices(&left), &Options::default()).await.unwrap();
            check(&volume, &BTreeMap::new()).await;
        }
    });
}

/// Reads of each block, all in flight at once.
fn all_read_at_once(rt: &Rt, volume: &Volume) -> Vec<JoinHandle<Result<()>>> {
    let read = |block| {
        let volume = volume.clone();
        rt.spawn(async move { volume.read(block, 1).await.map(drop) })
    };
    (0..volume.blocks()).map(read).collect()
}

/// A copy of a drive with its content.
fn fork(rt: &Rt, drive: &Emulator) -> Rc<Emulator> {
    let options = furrow_emu::Options::simulated();
    Rc::new(Emulator::from_snapshot(rt, &drive.snapshot(), options))
}

/// Writing one block at a time is the worst case: each block takes a stripe, and another one that
/// lists it.
#[test]
fn a_volume_is_filled_and_overwritten_block_by_block() {
    for (reserve, seed) in [(7, 1), (25, 2)] {
        let array = Array::of(bare(24, 190), Level::Raid5, 4).group(1).reserve(reserve);
        array.simulated(seed).run(async move |_, _all, volume| {
            let mut rng = Rng::new(seed);
            let mut model = BTreeMap::new();
            for block in 0..volume.blocks() {
                volume.write(block, [page(block, 1)].into_iter().collect(), false).await.unwrap();
                model.insert(block, 1);
            }
            for version in 2..2 * volume.blocks() {
                let block = rng.below(volume.blocks());
                let data = [page(block, version)].into_iter().collect();
                volume.write(block, data, false).await.unwrap();
                model.insert(block, version);
            }
            check(&volume, &model).await;
            let counters = volume.counters();
            assert!(
                counters.windows > 2 * counters.written,
                "each waits for its own: {counters:?}"
            );
            volume.stop().await.unwrap();
        });
    }
}

/// Segments of few stripes are never full of data: cleaning must not choose them again and again.
/// (Seed 1035 of the simulation found this.)
#[test]
fn cleaning_comes_to_an_end() {
    let mut array = Array::of(bare(12, 22), Level::Raid4, 4).group(1);
    array.config = Config { small: 2, large: 1, chunk_large: 2, ..array.config };
    array.run(async move |rt, _all, volume| {
        let mut rng = Rng::new(5);
        for round in 1..60 {
            for _ in 0..rng.below(volume.blocks()) {
                // Two writes at once, so that every stream has a segment.
                let writes: Vec<_> = (0..2)
                    .map(|_| {
                        let (volume, count) = (volume.clone(), 1 + rng.below(4));
                        let block = rng.below(volume.blocks() - count);
                        rt.spawn(async move {
                            volume.write(block, pages(block, count, round), false).await.unwrap();
                        })
                    })
                    .collect();
                for write in writes {
                    write.await;
                }
            }
            if rng.one_in(8) {
                let block = rng.below(volume.blocks());
                volume.trim(block, volume.blocks() - block, false).await.unwrap();
            }
            rt.sleep(1_000_000_000).await;
            let before = volume.counters();
            rt.sleep(1_000_000_000).await;
            assert_eq!(volume.counters(), before);
        }
        assert!(volume.counters().cleaned > 0);
    });
}

#[test]
fn under_load_many_stripes_share_a_metadata_stripe() {
    Array::of(bare(24, 400), Level::Raid5, 4).group(1).run(async move |rt, _all, volume| {
        let writers: Vec<_> = (0..64)
            .map(|writer| {
                let volume = volume.clone();
                rt.spawn(async move {
                    for block in (writer..1024).step_by(64) {
                        let data = [page(block, 1)].into_iter().collect();
                        volume.write(block, data, false).await.unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await;
        }
        let counters = volume.counters();
        assert!(counters.windows * 4 < counters.stripes * 3, "{counters:?}");
        check(&volume, &(0..1024).map(|block| (block, 1)).collect()).await;
    });
}

#[test]
fn a_damaged_metadata_block_costs_nothing_and_a_scrub_mends_it() {
    array(Level::Raid5, 4).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 150).await;
        let volume = reopened(&rt, &all, volume).await;
        let clean = volume.scrub(false, |_, _| {}).await.unwrap();
        assert!(clean.findings.is_empty() && clean.blocks > 300, "{clean:?}");
        drop(volume);
        // Assembling drops the listings in memory.
        let volume = assemble(&rt, devices(&all), &Options::default()).await.unwrap();
        for zone in all[2].report_now(ZoneId(2), 18).unwrap() {
            let decay = Fault { when: When::Every(3), ..Fault::new(FaultKind::BitFlip) };
            all[2].inject(decay.at_zone(zone.zone)).unwrap();
        }
        let scrubbed = volume.scrub(true, |_, _| {}).await.unwrap();
        assert!(!scrubbed.findings.is_empty() && scrubbed.lost == 0, "{scrubbed:?}");
        for finding in &scrubbed.findings {
            assert_eq!((finding.member, finding.repaired), (2, true));
        }
        all[2].clear_faults(None).unwrap();
        check(&volume, &model).await;
    });
}

/// The metadata blocks of a drive, by zone and block, in zones that are full, or in the others.
async fn metadata_blocks(drive: &Emulator, pages: &Pool, full: bool) -> BTreeSet<(ZoneId, u32)> {
    let mut found = BTreeSet::new();
    let zones = drive.report_now(ZoneId(2), drive.geometry().zones - 2).unwrap();
    for zone in zones.iter().filter(|zone| (zone.state == ZoneState::Full) == full) {
        for block in 0..furrow_log::address::blocks_per_zone(drive.geometry()) {
            let at = BlockAddr::new(drive.geometry(), zone.zone, block);
            let read = read_blocks(drive, QueueId(0), at, 1, pages).await.unwrap();
            let header = record::peek(read[0].bytes());
            if header.is_some_and(|header| header.kind.get() == format::kind::WINDOW) {
                found.insert((zone.zone, block));
            }
        }
    }
    found
}

/// Makes every second block unreadable, up to `unreadable` blocks (a drive has at most 256 faults),
/// and flips a bit of each other block.
fn damage(drive: &Emulator, blocks: &BTreeSet<(ZoneId, u32)>, unreadable: usize) {
    for (n, (zone, block)) in blocks.iter().enumerate() {
        let lba = BlockAddr::new(drive.geometry(), *zone, *block).lba(drive.geometry());
        let kind = if n % 2 == 0 && n / 2 < unreadable {
            FaultKind::ReadError
        } else {
            FaultKind::BitFlip
        };
        drive.inject(Fault::new(kind).at_blocks(lba, BlockCount(1))).unwrap();
    }
}

/// All metadata blocks of a drive are damaged while as many drives are missing as the level
/// tolerates: footers are enough, for reads and for a recovery that has to look at every row.
#[test]
fn footers_stand_in_for_metadata_blocks_while_drives_are_missing() {
    for (level, count, gone, victim, crash) in [
        (Level::Raid5, 4, &[1][..], 2, false),
        (Level::Raid5, 4, &[1], 2, true),
        (Level::Raid6, 5, &[0, 3], 2, false),
        (Level::Raid6, 5, &[0, 3], 2, true),
        (Level::Raid01, 4, &[0], 1, false),
        (Level::Raid01, 4, &[2], 3, true),
        (Level::Raid4, 3, &[1], 0, false),
        (Level::Raid4, 3, &[0], 2, true),
    ] {
        let what = format!("{level} of {count} without {gone:?}, crash: {crash}");
        array(level, count).shuffled(3).run(async move |rt, all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
            churn(&volume, &mut model, &mut rng, 250).await;
            if crash {
                let checkpoints = volume.counters().checkpoints;
                assert!(checkpoints <= 1, "{what}: nothing but the first: {checkpoints}");
            } else {
                volume.stop().await.unwrap();
            }
            power_cycle(&rt, &all, volume).await;
            let victim = &all[victim];
            let blocks = metadata_blocks(victim, &Pool::new(4), true).await;
            assert!(blocks.len() > 20, "{what}: {}", blocks.len());
            damage(victim, &blocks, 200);
            let given: Vec<_> =
                (0..count).filter(|i| !gone.contains(i)).map(|i| all[i].clone()).collect();
            let volume = assemble(&rt, devices(&given), &Options::default()).await.unwrap();
            check(&volume, &model).await;
            churn(&volume, &mut model, &mut rng, 50).await;
            check(&volume, &model).await;
            assert!(volume.counters().reconstructed > 0, "{what}: {:?}", volume.counters());
            volume.stop().await.unwrap();
        });
    }
}

/// A segment that is still being written has no footers on the drives: their future content is in
/// memory.
#[test]
fn footers_that_are_not_written_yet_stand_in_as_well() {
    array(Level::Raid5, 4).run(async move |_, all, volume| {
        let mut model = BTreeMap::new();
        // Each block takes a stripe and another one that lists it: in all more than a window, less
        // than a segment.
        for block in 0..45 {
            volume.write(block, [page(block, 1)].into_iter().collect(), false).await.unwrap();
            model.insert(block, 1);
        }
        let blocks = metadata_blocks(&all[2], &Pool::new(4), false).await;
        assert!(blocks.len() > 40, "{blocks:?}");
        damage(&all[2], &blocks, 20);
        volume.fail(0).await.unwrap();
        check(&volume, &model).await;
        assert!(volume.counters().reconstructed > 0, "{:?}", volume.counters());
        let scrubbed = volume.scrub(true, |_, _| {}).await.unwrap();
        assert_eq!((scrubbed.findings.len(), scrubbed.lost), (1, 0), "{scrubbed:?}");
        let found = &scrubbed.findings[0];
        assert!(blocks.contains(&(found.zone, found.block)) && found.repaired, "{found:?}");
        check(&volume, &model).await;
    });
}

/// A scrub names the damaged metadata blocks that are needed, and no others. Once the blocks that
/// they list are rewritten, they are no longer needed.
#[test]
fn a_scrub_names_damaged_metadata_blocks_and_moves_what_they_list() {
    for missing in [None, Some(3)] {
        array(Level::Raid5, 4).run(async move |rt, all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
            churn(&volume, &mut model, &mut rng, 250).await;
            let clean = volume.scrub(false, |_, _| {}).await.unwrap();
            assert!(clean.findings.is_empty(), "{clean:?}");
            // The listings are in memory now; a scrub reads them from the drives nevertheless.
            let blocks = metadata_blocks(&all[2], &Pool::new(4), true).await;
            // No block is made unreadable: the address would stay unreadable even after a rewrite.
            damage(&all[2], &blocks, 0);
            if let Some(index) = missing {
                volume.fail(index).await.unwrap();
            }
            let errors = || volume.members()[2].2.checksum;
            assert_eq!(errors(), 0);
            let scrubbed = volume.scrub(false, |_, _| {}).await.unwrap();
            assert_eq!(errors(), scrubbed.findings.len() as u64, "each counts once");
            let named: Vec<(ZoneId, u32)> =
                scrubbed.findings.iter().map(|f| (f.zone, f.block)).collect();
            let once: BTreeSet<(ZoneId, u32)> = named.iter().copied().collect();
            assert!(once.len() > 3 && once.len() == named.len(), "each once: {named:?}");
            assert!(once.is_subset(&blocks), "{named:?}");
            for finding in &scrubbed.findings {
                let what = (finding.member, finding.what, finding.repaired);
                assert_eq!(what, (2, "metadata block damaged or unreadable", false));
            }
            assert_eq!(scrubbed.lost, 0);
            // The last metadata block of each row of a chunk, of each window.
            let sealed: BTreeSet<ZoneId> = once.iter().map(|(zone, _)| *zone).collect();
            assert!(sealed.len() > 1, "{sealed:?}");
            let cleaned = volume.counters().cleaned;
            let mended = volume.scrub(true, |_, _| {}).await.unwrap();
            assert!(mended.findings.iter().all(|finding| finding.repaired), "{mended:?}");
            // Cleaning may move what a damaged block lists before the scrub comes to it.
            let fewer = mended.findings.len() < named.len() && volume.counters().cleaned > cleaned;
            assert!(mended.findings.len() == named.len() || fewer, "{mended:?} {named:?}");
            assert_eq!(mended.lost, 0);
            let told = errors();
            let again = volume.scrub(false, |_, _| {}).await.unwrap();
            assert!(again.findings.is_empty() && again.lost == 0, "{again:?}");
            assert_eq!(errors(), told, "what nobody needs is no error");
            check(&volume, &model).await;
            volume.stop().await.unwrap();
            drop(volume);
            let given: Vec<_> = [0, 1, 2].map(|index| all[index].clone()).into();
            let volume = assemble(&rt, devices(&given), &Options::default()).await.unwrap();
            check(&volume, &model).await;
        });
    }
}

#[test]
fn a_mix_of_drives_and_groups_are_refused() {
    let rt = Rt::new(RtConfig::simulated(3));
    let geometry = bare(20, 190);
    let with = Geometry { oob_bytes: 64, ..geometry.clone() };
    let all = drives(&rt, &geometry, 3);
    let other: Rc<dyn ZonedDevice> = drives(&rt, &with, 1).remove(0);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let (config, options) = (config(Level::Raid5, &geometry), Options::default());
        let groups = Config { group: 8, ..config.clone() };
        let error = create(&rt2, devices(&all), &groups, &options, false).await.unwrap_err();
        assert!(error.to_string().contains("groups of 1"), "{error}");
        let mut mixed = devices(&all);
        mixed.push(other.clone());
        let error = create(&rt2, mixed, &config, &options, false).await.unwrap_err();
        assert!(error.to_string().contains("out-of-band"), "{error}");
        let volume = create(&rt2, devices(&all), &config, &options, false).await.unwrap();
        assert_eq!(volume.shape().meta, MetaPlace::InBand);
        volume.fail(0).await.unwrap();
        let error = volume.replace(0, other, true).await.unwrap_err();
        assert!(error.to_string().contains("fewer than 48"), "{error}");
        volume.stop().await.unwrap();
    });
    rt.clear();
}
