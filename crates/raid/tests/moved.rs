//! A block that cleaning moved takes effect only if no user wrote its address meanwhile.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{Array, check, pages, reopened};
use furrow_emu::{Fault, FaultKind};
use furrow_raid::Level;
use furrow_zone::{BlockCount, Lba, ZoneId, ZonedDevice};
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;

/// A repair, by a read or by a scrub, takes so long that the segment of the block is released, its
/// slot is used again, and the same block is mapped to the same place in the slot.
#[test]
fn what_is_mended_late_does_not_take_the_place_of_what_is_newer() {
    for scrubbed in [false, true] {
        let mut array = Array::new(Level::Raid5, 3).zones(16, 40).group(1).simulated(5);
        array.config.large = 0;
        array.run(async move |rt, all, volume| {
            let geometry = all[0].geometry();
            volume.write(0, pages(0, 1, 1), false).await.unwrap();
            // Zone 2 belongs to the first segment, which begins with a header.
            let first = Lba(2 * geometry.zone_size.0 + 1);
            let flip = Fault::new(FaultKind::BitFlip).at_blocks(first, BlockCount(1));
            all[0].inject(flip).unwrap();
            // Zone 3 belongs to the next segment, to which the repaired block is written.
            let slow = FaultKind::Slow { polls: 0, nanoseconds: 10 * SECOND };
            all.iter().for_each(|drive| {
                drive.inject(Fault::new(slow).at_zone(ZoneId(3))).unwrap();
            });
            let noticed = volume.clone();
            let noticed = rt.spawn(async move {
                if scrubbed {
                    noticed.scrub(true, |_, _| {}).await.unwrap();
                } else {
                    noticed.read(0, 1).await.unwrap();
                }
            });
            rt.sleep(SECOND).await;
            // Two segments' worth of writes; after them the block is the first block of the first
            // slot again.
            let last = 2 + 2 * u64::from(volume.shape().rows);
            for version in 2..last {
                volume.write(0, pages(0, 1, version), false).await.unwrap();
            }
            assert!(rt.now().0 < 5 * SECOND, "what is mended is under way");
            rt.sleep(60 * SECOND).await;
            assert!(volume.counters().repaired > 0);
            noticed.await;
            check(&volume, &BTreeMap::from([(0, last - 1)])).await;
            let again = reopened(&rt, &all, volume).await;
            check(&again, &BTreeMap::from([(0, last - 1)])).await;
        });
    }
}
