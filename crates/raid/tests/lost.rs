//! Blocks known to be lost, and when they stop counting as lost.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{Array, pages};
use furrow_emu::{Fault, FaultKind, When};
use furrow_raid::{Event, Level, MemberState};
use furrow_zone::{BlockCount, ErrorKind, Lba, ZoneId, ZoneState, ZonedDevice};

/// Two drives of three cannot be read for a while. Blocks that were read then are known to be lost,
/// until a full scrub can read them after all.
#[test]
fn what_a_scrub_can_read_is_not_lost() {
    Array::new(Level::Raid5, 3).zones(40, 64).run(async move |_, drives, volume| {
        volume.write(0, pages(0, 40, 1), true).await.unwrap();
        for drive in &drives[..2] {
            drive.inject(Fault::new(FaultKind::ReadError).when(When::Always)).unwrap();
        }
        let mut asked = Vec::new();
        for block in 0..40 {
            if volume.read(block, 1).await.is_err() {
                asked.push(block);
            }
        }
        assert!(!asked.is_empty());
        let (count, ranges) = volume.lost();
        let known: Vec<u64> = ranges.into_iter().flatten().collect();
        assert_eq!((count, &known), (asked.len() as u64, &asked));
        drives.iter().for_each(|drive| drive.clear_faults(None).unwrap());
        let scrubbed = volume.scrub(false, |_, _| {}).await.unwrap();
        assert_eq!((scrubbed.lost, volume.lost().0), (0, 0));
        volume.read(0, 40).await.unwrap();
    });
}

/// A drive is replaced while another one cannot read some blocks. The rebuild names the blocks of
/// the volume that are lost, and only those. The other blocks of their rows are redundant again.
#[test]
fn what_a_rebuild_cannot_restore_is_told_and_the_rest_has_its_redundancy() {
    Array::new(Level::Raid5, 3).others(1).zones(40, 64).run(async move |rt, drives, volume| {
        let geometry = drives[0].geometry();
        volume.write(0, pages(0, 400, 1), true).await.unwrap();
        volume.fail(0).await.unwrap();
        let zones = drives[1].report_now(ZoneId(2), geometry.zones - 2).unwrap();
        let full = zones.iter().find(|zone| zone.state == ZoneState::Full).unwrap();
        let bad = Fault::new(FaultKind::ReadError).when(When::Always);
        let first = Lba(geometry.start(full.zone).0 + 9);
        drives[1].inject(bad.at_blocks(first, BlockCount(4))).unwrap();
        volume.replace(0, drives[3].clone(), false).await.unwrap();
        let progress = volume.rebuilt().unwrap();
        assert!(progress.done < progress.total, "{progress:?}");
        while volume.rebuilding().is_some() {
            rt.sleep(1_000_000).await;
        }
        assert_eq!(volume.rebuilt(), None);
        let (count, ranges) = volume.lost();
        let told = volume.last_rebuild();
        assert_eq!(told, Some(Event::RebuildIncomplete { blocks: count, ranges: ranges.clone() }));
        let lost: Vec<u64> = ranges.into_iter().flatten().collect();
        let mut refused = Vec::new();
        for block in 0..400 {
            if volume.read(block, 1).await.is_err() {
                refused.push(block);
            }
        }
        assert!(!refused.is_empty());
        assert_eq!((count, &lost), (refused.len() as u64, &refused));
        // Any other drive may vanish now.
        let away = Fault::new(FaultKind::Disappear { commands: None }).when(When::Always);
        drives[2].inject(away).unwrap();
        for block in (0..400).filter(|block| !refused.contains(block)) {
            volume.read(block, 1).await.unwrap();
        }
    });
}

/// While missing drives may come back, no block counts as lost because of them.
#[test]
fn what_missing_drives_have_is_not_lost() {
    Array::new(Level::Raid5, 3).zones(40, 64).run(async move |_, drives, volume| {
        volume.write(0, pages(0, 40, 1), true).await.unwrap();
        for drive in &drives[..2] {
            let away = FaultKind::Disappear { commands: None };
            drive.inject(Fault::new(away).when(When::Always)).unwrap();
        }
        let mut refused = 0;
        for block in 0..40 {
            refused += u32::from(volume.read(block, 1).await.is_err());
        }
        assert!(refused > 0);
        assert_eq!(volume.lost(), (0, Vec::new()));
    });
}

/// A drive that has died since its last command is not counted on when another is taken out.
#[test]
fn a_member_stays_in_service_if_another_has_died_unnoticed() {
    Array::new(Level::Raid5, 3).zones(40, 64).run(async move |_, drives, volume| {
        volume.write(0, pages(0, 40, 1), true).await.unwrap();
        let away = FaultKind::Disappear { commands: None };
        drives[2].inject(Fault::new(away).when(When::Always)).unwrap();
        let refused = volume.fail(0).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        let states: Vec<MemberState> = volume.members().iter().map(|member| member.1).collect();
        use MemberState::{Active, Failed};
        assert_eq!(states, [Active, Active, Failed]);
        for block in 0..40 {
            volume.read(block, 1).await.unwrap();
        }
    });
}

/// Each damaged block counts once as an error of its member: in a scrub that reads it again to
/// repair it or to find losses, and in a read that fails.
#[test]
fn a_block_that_is_met_once_counts_once() {
    for (broken, repair) in [(1, false), (1, true), (2, false), (2, true)] {
        Array::new(Level::Raid5, 3).zones(40, 64).run(async move |_, drives, volume| {
            let geometry = drives[0].geometry().clone();
            volume.write(0, pages(0, 400, 1), true).await.unwrap();
            let zones = drives[1].report_now(ZoneId(2), geometry.zones - 2).unwrap();
            let full = zones.iter().find(|zone| zone.state == ZoneState::Full).unwrap();
            let bad = Fault::new(FaultKind::ReadError).when(When::Always);
            let first = Lba(geometry.start(full.zone).0 + 9);
            for drive in &drives[1..=broken] {
                drive.inject(bad.at_blocks(first, BlockCount(6))).unwrap();
            }
            let errors = || -> Vec<u64> {
                volume.members().iter().map(|(.., errors)| errors.read + errors.checksum).collect()
            };
            let scrubbed = volume.scrub(repair, |_, _| {}).await.unwrap();
            let reported = |member: u32| {
                scrubbed.findings.iter().filter(|found| found.member == member).count() as u64
            };
            let what = format!("{broken} drives, repair: {repair}: {scrubbed:?}");
            assert_eq!(reported(1), 6, "{what}");
            assert_eq!(errors(), [reported(0), reported(1), reported(2)], "{what}");
            // Lose one block: damage it on its own drive, and on the one that could reconstruct it.
            let (_, lost) = volume.lost();
            assert_eq!(lost.is_empty(), broken == 1, "{what}");
            if let Some(block) = lost.first().map(|range| range.start) {
                let before: u64 = errors().iter().sum();
                volume.read(block, 1).await.unwrap_err();
                assert_eq!(errors().iter().sum::<u64>(), before + 2, "{what}");
            }
        });
    }
}
