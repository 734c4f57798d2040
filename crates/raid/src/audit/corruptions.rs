//! Corruptions R1 to R12 of docs/inside/structure/corruptions.md: single mutations of a running
//! volume's memory, such as a defect could leave. The audit names the account at once.

use crate::assemble::steps::unfinished;
use crate::map::Map;
use crate::rig::{Rig, drive, given, pages, rigged, still};
use crate::segment::{Segment, SegmentState};
use crate::{Options, assemble};
use furrow_array::member::MemberState;
use furrow_emu::{Fate, Fates};
use furrow_log::budget::Class;
use std::cell::Cell;
use std::rc::Rc;

fn sealed(segment: &Segment) -> bool {
    segment.state == SegmentState::Sealed
}

/// A long run with cleaning, a rebuild and a restart passes the audit after every operation.
#[test]
fn a_run_passes_after_every_operation() {
    for map_memory in [0, 1] {
        let options = Options { checkpoint_blocks: 200, map_memory, ..Options::default() };
        rigged(&options, async |mut rig: Rig| {
            rig.churn(800).await;
            rig.volume.fail(1).await.unwrap();
            rig.churn(50).await;
            let fresh = drive(&rig.rt);
            rig.volume.replace(1, fresh.clone(), false).await.unwrap();
            while rig.volume.rebuilding().is_some() {
                rig.churn(1).await;
            }
            rig.churn(100).await;
            let counters = rig.volume.counters();
            assert!(counters.cleaned > 0 && counters.rebuilt > 0, "{counters:?}");
            rig.volume.stop().await.unwrap();
            rig.volume.audit().unwrap();
            rig.drives[1] = fresh;
            let devices = given(&rig.drives);
            rig.volume = assemble(&rig.rt, devices, &Options::default()).await.unwrap();
            rig.volume.audit().unwrap();
            rig.churn(50).await;
        });
    }
}

/// R1: the account of a sealed segment says that no block in it is valid.
#[test]
fn r1_valid_is_lost() {
    rigged(&still(), async |mut rig: Rig| {
        rig.churn(60).await;
        let slot = rig.slot(|s| sealed(s) && s.valid > 0 && s.leaves == 0 && s.needed == 0);
        rig.change(slot, |segment| segment.valid = 0);
        rig.refuses(&format!("valid blocks of segment slot {slot}"));
    });
}

/// R2: the state of a sealed segment says that it is free.
#[test]
fn r2_a_segment_is_free_too_early() {
    rigged(&still(), async |mut rig: Rig| {
        rig.churn(60).await;
        let slot = rig.slot(|s| sealed(s) && s.valid > 0);
        rig.change(slot, |segment| segment.state = SegmentState::Free);
        rig.refuses(&format!("free segment slot {slot}"));
    });
}

/// R3: the map gives an address the place from before its last overwrite.
#[test]
fn r3_the_map_goes_back() {
    rigged(&still(), async |mut rig: Rig| {
        rig.write(3, 1).await;
        let old = rig.volume.0.paging.map().get(3);
        let of = rig.volume.0.shape.slot(old) as usize;
        let sequence = rig.volume.0.segments.borrow()[of].sequence;
        rig.slot_to_come(|s| s.sequence == sequence && sealed(s)).await;
        rig.write(3, 1).await;
        let (was, now) = (rig.volume.0.shape.slot(old), rig.volume.0.paging.map().get(3));
        let now = rig.volume.0.shape.slot(now);
        assert!(was != now && sealed(&rig.volume.0.segments.borrow()[was as usize]));
        rig.volume.0.paging.map_mut().set(3, old);
        rig.refuses("valid blocks of segment slot");
    });
}

/// R4: a mapping block that changed is missing from the set that the next checkpoint writes.
#[test]
fn r4_a_mapping_block_is_not_dirty() {
    rigged(&still(), async |mut rig: Rig| {
        rig.volume.checkpoint(false).await.unwrap();
        rig.write(3, 1).await;
        assert!(rig.volume.0.paging.map_mut().lose_dirty(Map::leaf(3)));
        rig.refuses(
            "mapping block 0: expected not so, found changed, and not among the dirty ones",
        );
    });
}

/// R5: the count of stripes in flight is 1 too high.
#[test]
fn r5_a_stripe_stays_in_flight() {
    rigged(&still(), async |mut rig: Rig| {
        rig.churn(10).await;
        assert_eq!(rig.volume.0.segments.in_flight(), 0);
        rig.volume.0.segments.begin_flight();
        rig.refuses("stripes in flight");
    });
}

/// R6: a permit that no zone holds is never given back.
#[test]
fn r6_a_permit_leaks() {
    rigged(&still(), async |mut rig: Rig| {
        rig.churn(10).await;
        let drive = rig.volume.0.array.member(1).drive().unwrap();
        std::mem::forget(drive.budget().try_acquire(Class::User, 1).unwrap());
        rig.refuses("permits held of member 1");
    });
}

/// R7: the stripe table gives two chunks of a group the same place on a drive.
#[test]
fn r7_two_chunks_have_one_place() {
    for open in [false, true] {
        rigged(&still(), async move |mut rig: Rig| {
            let state = if open { SegmentState::Open } else { SegmentState::Sealed };
            let group = |s: &Segment| {
                let table = s.table.as_ref().is_some_and(|t| t.borrow().get(7, 2).is_some());
                s.state == state && table
            };
            let slot = rig.slot_to_come(group).await;
            let table = rig.volume.0.segments.borrow()[slot].table.clone().unwrap();
            let place = table.borrow().get(1, 2).unwrap();
            table.borrow_mut().set(0, 2, place);
            rig.refuses("place in its group of stripe 1 on member 2");
        });
    }
}

/// R8: a segment names a zone of another segment.
#[test]
fn r8_two_segments_have_one_zone() {
    rigged(&still(), async |mut rig: Rig| {
        rig.churn(120).await;
        let first = rig.slot(sealed);
        let second = rig.slot(|s| sealed(s) && s.sequence > 2);
        assert_ne!(first, second);
        let zone = rig.volume.0.segments.borrow()[second].zones[0];
        rig.change(first, |segment| segment.zones[0] = zone);
        rig.refuses(&format!("owner of zone {} of member 0", zone.unwrap()));
    });
}

/// R9: the state of a member under rebuild says that it is whole.
#[test]
fn r9_a_rebuild_is_taken_for_done() {
    let options = Options { rebuild_pause: 1_000_000_000, ..still() };
    rigged(&options, async |mut rig: Rig| {
        rig.churn(60).await;
        rig.volume.fail(1).await.unwrap();
        rig.write(0, 1).await;
        let fresh = drive(&rig.rt);
        rig.volume.replace(1, fresh, false).await.unwrap();
        rig.churn(2).await;
        assert!(rig.volume.rebuilding().is_some_and(|p| p.done < p.total));
        rig.slot(|s| sealed(s) && s.zones[1].is_none());
        rig.volume.0.array.member(1).set_state(MemberState::Active);
        rig.refuses("whether member 1, which is Active, is to be rebuilt");
    });
}

/// R10: a segment with a trim's record is not kept until a checkpoint holds the trim.
#[test]
fn r10_a_trim_is_not_needed() {
    rigged(&still(), async |mut rig: Rig| {
        rig.write(3, 1).await;
        rig.volume.trim(3, 1, false).await.unwrap();
        rig.volume.audit().unwrap();
        let slot = rig.slot(|s| s.state == SegmentState::Open && s.needed > 0);
        rig.change(slot, |segment| segment.needed = 0);
        rig.refuses(&format!("checkpoint that segment slot {slot} waits for with its trims"));
    });
}

/// R11: replacing a mapping block lowers its segment's count twice.
#[test]
fn r11_a_mapping_block_is_let_go_twice() {
    rigged(&still(), async |mut rig: Rig| {
        rig.churn(60).await;
        rig.volume.checkpoint(false).await.unwrap();
        rig.volume.audit().unwrap();
        let slot = rig.slot(|s| s.leaves > 0);
        rig.change(slot, |segment| segment.leaves -= 1);
        rig.refuses(&format!("mapping blocks of segment slot {slot}"));
    });
}

/// R12: a segment is not kept, though a torn stripe replaced blocks of it.
#[test]
fn r12_a_fallback_is_given_up() {
    let found = Rc::new(Cell::new(0));
    // Cut the power at several points: `turns` turns of the executor after the write began.
    for turns in 0..8 {
        let found = found.clone();
        rigged(&still(), async move |mut rig: Rig| {
            rig.write(0, 4).await;
            rig.churn(20).await;
            rig.write(0, 4).await;
            let volume = rig.volume.clone();
            let torn = rig.rt.spawn(async move { volume.write(0, pages(4, 77), false).await });
            for _ in 0..turns {
                rig.rt.yield_now().await;
            }
            // The power cut loses the writes in flight to one drive, and completes those to the
            // other drives.
            rig.drives[0].power_cut(&Fates::nothing(1));
            let done = Fates::of(vec![Fate::Done; 64], 1);
            rig.drives[1..].iter().for_each(|drive| drive.power_cut(&done));
            drop(torn);
            rig.rt.sleep(2_000_000_000).await;
            rig.drives.iter().for_each(|drive| drive.power_on());
            rig.volume = unfinished(&rig.rt, given(&rig.drives), &still()).await.unwrap();
            rig.volume.audit().unwrap();
            if rig.volume.0.segments.borrow().iter().any(|segment| segment.fallback > 0) {
                found.set(found.get() + 1);
                let slot = rig.slot(|segment| segment.fallback > 0);
                rig.change(slot, |segment| segment.fallback = 0);
                rig.refuses(&format!("older blocks kept in segment slot {slot}"));
            }
        });
    }
    assert!(found.get() > 0, "no stripe was torn");
}

/// Lowering an account below 0 fails with an error that names the account. A debug build
/// panics instead.
#[test]
#[should_panic(expected = "the account of valid blocks of segment slot 0 falls below 0")]
fn an_account_does_not_fall_below_zero() {
    rigged(&still(), async |rig: Rig| {
        rig.volume.debit(0);
        // Reached only without debug assertions.
        let why = rig.volume.failed().expect("it is not written any more").to_string();
        panic!("{why}");
    });
}
