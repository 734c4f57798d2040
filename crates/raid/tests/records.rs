//! State records that are damaged, or that drives refuse: the array still finds its members.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{Array, check, churn, devices, geometry};
use furrow_emu::{Emulator, Fault, FaultKind};
use furrow_raid::{Level, MemberState, Options, Volume, assemble, damaged_member, examine};
use furrow_rt::{Rng, Rt};
use furrow_zone::{BlockCount, ErrorKind, Lba, ZoneId, ZonedDevice};
use std::collections::BTreeMap;
use std::rc::Rc;

async fn again(rt: &Rt, drives: &[Rc<Emulator>]) -> furrow_zone::Result<Volume> {
    assemble(rt, devices(drives), &Options::default()).await
}

/// Number of blocks in a drive's zone that hold data.
fn written(drive: &Emulator, zone: u32) -> u64 {
    let report = drive.report_now(ZoneId(zone), 1).unwrap()[0];
    report.write_pointer.0
}

/// Flips a bit of a block.
fn flip(drive: &Emulator, zone: u32, block: u64) {
    let start = drive.geometry_of().zone_size.0 * u64::from(zone);
    let fault = Fault::new(FaultKind::BitFlip).at_blocks(Lba(start + block), BlockCount(1));
    drive.inject(fault).unwrap();
}

/// Flips a bit of every block of the ring.
fn flip_ring(drive: &Emulator) {
    for zone in 0..2 {
        (0..written(drive, zone)).for_each(|block| flip(drive, zone, block));
    }
}

/// The zone and block of the ring's last record, which has one block.
fn last_record(drive: &Emulator) -> (u32, u64) {
    let zone = (0..2).max_by_key(|zone| written(drive, *zone)).unwrap();
    (zone, written(drive, zone) - 1)
}

trait GeometryOf {
    fn geometry_of(&self) -> furrow_zone::Geometry;
}

impl GeometryOf for Emulator {
    fn geometry_of(&self) -> furrow_zone::Geometry {
        use furrow_zone::ZonedDevice as _;
        self.geometry().clone()
    }
}

/// Members refuse every write for a while: one, some or all of them. When they take writes again,
/// the array can be assembled, with every acknowledged block.
#[test]
fn drives_that_refuse_every_write_for_a_while_keep_their_records() {
    let mut failed = 0;
    for (level, count) in [
        (Level::Raid5, 4),
        (Level::Raid5, 2),
        (Level::Raid6, 4),
        (Level::Raid01, 4),
        (Level::Raid0, 2),
    ] {
        for refusing in 1..=count {
            for times in [1, 2, 3, 12, 1000] {
                let told = format!("{level} of {count}, {refusing} refuse {times}");
                let array = Array::new(level, count).shuffled(times);
                failed += u32::from(array.run(async move |rt, all, volume| {
                    let (mut model, mut rng) = (BTreeMap::new(), Rng::new(times));
                    churn(&volume, &mut model, &mut rng, 40).await;
                    for drive in &all[..refusing] {
                        let fault = Fault::new(FaultKind::WriteError).times(times);
                        drive.inject(fault).unwrap();
                    }
                    // Whatever else the array writes, this makes it write state records.
                    for _ in 0..4 {
                        let _ = volume.checkpoint(false).await;
                    }
                    let failed = volume.failed().is_some();
                    let _ = volume.stop().await;
                    drop(volume);
                    rt.sleep(1_000_000_000).await;
                    for drive in &all {
                        drive.clear_faults(None).unwrap();
                        assert!(examine(&**drive).await.is_ok(), "{told}: its record is gone");
                    }
                    let opened = crate::common::without_stale(&rt, &all).await;
                    let volume = opened.unwrap_or_else(|why| panic!("{told}: {why}"));
                    check(&volume, &model).await;
                    churn(&volume, &mut model, &mut rng, 20).await;
                    check(&volume, &model).await;
                    volume.stop().await.unwrap();
                    failed
                }));
            }
        }
    }
    assert!(failed > 5, "{failed} arrays failed");
}

/// The newest record of members is damaged, or all of their records are: the records of the
/// others replace them. A scrub of the running array repairs them at once, and then other members
/// may be damaged.
#[test]
fn damaged_records_are_replaced_by_those_of_other_members() {
    for (level, count, hit) in [
        (Level::Raid5, 4, &[1][..]),
        (Level::Raid5, 4, &[0, 2]),
        (Level::Raid5, 4, &[0, 1, 2]),
        (Level::Raid5, 2, &[0]),
        (Level::Raid6, 4, &[1, 3]),
        (Level::Raid01, 4, &[0, 1]),
        (Level::Raid0, 2, &[1]),
    ] {
        for whole_ring in [false, true] {
            let told = format!("{level} of {count}, {hit:?}, {whole_ring}");
            let damage = move |drive: &Emulator| match whole_ring {
                true => flip_ring(drive),
                false => {
                    let (zone, block) = last_record(drive);
                    flip(drive, zone, block);
                }
            };
            Array::new(level, count).simulated(7).run(async move |rt, all, volume| {
                let (mut model, mut rng) = (BTreeMap::new(), Rng::new(9));
                churn(&volume, &mut model, &mut rng, 60).await;
                volume.stop().await.unwrap();
                drop(volume);
                hit.iter().for_each(|at| damage(&all[*at]));
                for at in hit {
                    let said = examine(&*all[*at]).await;
                    let found = damaged_member(&*all[*at]).await.unwrap();
                    match whole_ring {
                        true => {
                            let error = said.unwrap_err();
                            assert_eq!(error.kind(), ErrorKind::Corrupt, "{told}: {error}");
                            let text = error.to_string();
                            assert!(text.contains("of a Furrow array member"), "{told}: {text}");
                            assert!(!text.contains("create"), "{told}: {text}");
                            assert!(!found.unwrap().signs.is_empty(), "{told}");
                        }
                        false => {
                            assert!(said.unwrap().damaged.is_some(), "{told}");
                            assert!(found.is_none(), "{told}");
                        }
                    }
                }
                let volume = again(&rt, &all).await.unwrap_or_else(|e| panic!("{told}: {e}"));
                let active = |v: &Volume| v.members().iter().all(|m| m.1 == MemberState::Active);
                assert!(active(&volume), "{told}");
                check(&volume, &model).await;
                churn(&volume, &mut model, &mut rng, 20).await;
                let clean = volume.scrub(false, |_, _| {}).await.unwrap();
                assert!(clean.findings.is_empty(), "{told}: {clean:?}");
                // Now damage them while the array runs: a scrub repairs them, on all members.
                all.iter().for_each(|drive| damage(drive));
                let scrubbed = volume.scrub(false, |_, _| {}).await.unwrap();
                assert!(scrubbed.findings.len() >= count, "{told}: {scrubbed:?}");
                assert!(scrubbed.findings.iter().all(|f| f.repaired), "{told}: {scrubbed:?}");
                assert_eq!(scrubbed.lost, 0, "{told}");
                let clean = volume.scrub(false, |_, _| {}).await.unwrap();
                assert!(clean.findings.is_empty(), "{told}: {clean:?}");
                volume.stop().await.unwrap();
                drop(volume);
                hit.iter().for_each(|at| damage(&all[*at]));
                let volume = again(&rt, &all).await.unwrap_or_else(|e| panic!("{told}: {e}"));
                assert!(active(&volume), "{told}");
                check(&volume, &model).await;
                volume.stop().await.unwrap();
            });
        }
    }
}

/// If no member has a whole record, no array is assembled and nothing is written. Members are still
/// distinguished from a drive that never was one.
#[test]
fn without_any_whole_record_the_members_are_still_told_from_empty_drives() {
    Array::new(Level::Raid5, 3).others(1).simulated(11).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(9));
        churn(&volume, &mut model, &mut rng, 60).await;
        volume.stop().await.unwrap();
        drop(volume);
        all[..3].iter().for_each(|drive| flip_ring(drive));
        let before: Vec<_> = all.iter().map(|d| (written(d, 0), written(d, 1))).collect();
        let error = again(&rt, &all[..3]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("of a Furrow array member"), "{error}");
        let after: Vec<_> = all.iter().map(|d| (written(d, 0), written(d, 1))).collect();
        assert_eq!(before, after);
        let empty = examine(&*all[3]).await.unwrap_err();
        assert_eq!(empty.kind(), ErrorKind::NotFound, "{empty}");
        assert!(damaged_member(&*all[3]).await.unwrap().is_none());
    });
}

/// Blocks are overwritten, and power is cut before the next state record. Then blocks are damaged
/// on more members than the level tolerates. Each block reads as acknowledged, or its read fails,
/// or the array is refused; none reads as before the overwrite.
#[test]
fn damage_behind_the_newest_record_is_no_end_of_a_segment() {
    let (mut lost, mut opened) = (0, 0);
    for (level, count, hit) in [
        (Level::Raid0, 2, 1),
        (Level::Raid5, 4, 2),
        (Level::Raid5, 2, 2),
        (Level::Raid6, 5, 3),
        (Level::Raid01, 4, 2),
    ] {
        for (group, seed) in [(1, 1), (8, 2), (8, 3)] {
            let told = format!("{level} of {count}, group {group}, seed {seed}");
            let array = Array::new(level, count).zones(24, 80).group(group).shuffled(seed);
            let (met, whole): (u32, u32) = array.run(async move |rt, all, volume| {
                let geometry = all[0].geometry();
                let (mut model, mut rng) = (BTreeMap::new(), Rng::new(seed));
                churn(&volume, &mut model, &mut rng, 30).await;
                let volume = crate::common::reopened(&rt, &all, volume).await;
                let ends = |drive: &Rc<Emulator>| -> Vec<u64> {
                    (0..geometry.zones).map(|zone| written(drive, zone)).collect()
                };
                let before: Vec<_> = all.iter().map(ends).collect();
                churn(&volume, &mut model, &mut rng, 12).await;
                crate::common::power_cycle(&rt, &all, volume).await;
                for (drive, before) in all[..hit].iter().zip(&before) {
                    for zone in 2..geometry.zones {
                        let new = before[zone as usize].max(1)..written(drive, zone);
                        new.filter(|_| rng.one_in(2)).for_each(|at| flip(drive, zone, at));
                    }
                }
                let volume = match again(&rt, &all).await {
                    Ok(volume) => volume,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{told}: {error}");
                        return (0, 0);
                    }
                };
                let mut met = 0;
                for block in 0..volume.blocks() {
                    match volume.read(block, 1).await {
                        Err(_) => met += 1,
                        Ok(pages) => assert_eq!(
                            crate::common::version(block, &pages[0]),
                            model.get(&block).copied(),
                            "{told}: block {block}"
                        ),
                    }
                }
                (met, 1)
            });
            (lost, opened) = (lost + met, opened + whole);
        }
    }
    assert!(lost > 0 && opened > 5, "{lost} {opened}");
}

/// All headers of a segment's zones but one are damaged; all of them in segments that the newest
/// record knows. Footers and blocks still tell the segment of each zone.
#[test]
fn damaged_headers_cost_nothing() {
    for (level, count) in [(Level::Raid0, 2), (Level::Raid5, 4), (Level::Raid6, 4)] {
        for oob in [64, 0] {
            for all_of_them in [false, true] {
                let told = format!("{level} of {count}, {oob}, {all_of_them}");
                let geometry = furrow_zone::Geometry { oob_bytes: oob, ..geometry(24, 160) };
                let array = Array::of(geometry, level, count).simulated(5);
                let array = if oob == 0 { array.group(1) } else { array };
                array.run(async move |rt, all, volume| {
                    let geometry = all[0].geometry();
                    let (mut model, mut rng) = (BTreeMap::new(), Rng::new(5));
                    churn(&volume, &mut model, &mut rng, 120).await;
                    volume.stop().await.unwrap();
                    drop(volume);
                    for drive in &all[usize::from(!all_of_them)..] {
                        for zone in (2..geometry.zones).filter(|zone| written(drive, *zone) > 1) {
                            flip(drive, zone, 0);
                        }
                    }
                    let opened = again(&rt, &all).await;
                    let volume = match opened {
                        // The last checkpoint begins a segment that no record knows.
                        Err(error) if all_of_them => {
                            assert_eq!(error.kind(), ErrorKind::Corrupt, "{told}: {error}");
                            assert!(error.to_string().contains("headers"), "{told}: {error}");
                            return;
                        }
                        opened => opened.unwrap_or_else(|error| panic!("{told}: {error}")),
                    };
                    check(&volume, &model).await;
                    churn(&volume, &mut model, &mut rng, 40).await;
                    check(&volume, &model).await;
                    volume.stop().await.unwrap();
                });
            }
        }
    }
}
