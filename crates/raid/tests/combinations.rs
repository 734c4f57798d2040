//! Every combination of lost drives of every small shape.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{Array, check_runs, churn, geometry, pages, version};
use furrow_emu::{Emulator, Fault, FaultKind};
use furrow_raid::{Level, MemberState, Options, Placement, Volume, assemble};
use furrow_rt::{Rng, Rt};
use furrow_zone::{Geometry, ZonedDevice};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Drives of the largest shape.
const DRIVES: u32 = 6;

type Model = BTreeMap<u64, u64>;

/// Sets of `count` out of `drives` drives, as bits.
fn sets(drives: u32, count: u32) -> Vec<u32> {
    (0..1u32 << drives).filter(|set| set.count_ones() == count).collect()
}

fn binomial(n: u64, k: u64) -> u64 {
    (0..k).fold(1, |product, i| product * (n - i) / (i + 1))
}

/// Shapes: levels, drives, stripes of a group; with and without an out-of-band area.
fn shapes() -> Vec<(Placement, Geometry, u32)> {
    let mut shapes = Vec::new();
    for level in Level::ALL {
        for drives in 2..=DRIVES {
            let Ok(placement) = Placement::new(level, drives) else { continue };
            let with = geometry(14, 40);
            let bare = Geometry { oob_bytes: 0, ..geometry(14, 120) };
            shapes.push((placement, with.clone(), 1));
            shapes.push((placement, with, 8));
            shapes.push((placement, bare, 1));
        }
    }
    shapes
}

/// Runs `work` on an array with data and a checkpoint half-way.
fn on_array<F: Future<Output = ()> + 'static>(
    (placement, geometry, group): &(Placement, Geometry, u32),
    work: impl FnOnce(Rt, Vec<Rc<Emulator>>, Volume, Model) -> F + 'static,
) {
    let (n, level) = (placement.n, placement.level);
    let mut array = Array::of(geometry.clone(), level, n as usize).group(*group);
    array.config.large = 1;
    array.simulated(u64::from(n)).run(async move |rt, all, volume| {
        let (mut model, mut rng) = (Model::new(), Rng::new(7));
        // Enough blocks at once that every drive gets a chunk.
        let all_drives = 8 * u64::from(n);
        volume.write(0, pages(0, all_drives, 1), false).await.unwrap();
        model.extend((0..all_drives).map(|block| (block, 1)));
        churn_behind(&volume, &mut model, &mut rng, all_drives, 15).await;
        volume.checkpoint(false).await.unwrap();
        churn_behind(&volume, &mut model, &mut rng, all_drives, 10).await;
        work(rt, all, volume, model).await;
    });
}

/// Writes up to six blocks at a random place from `first` on, `steps` times.
async fn churn_behind(volume: &Volume, model: &mut Model, rng: &mut Rng, first: u64, steps: u64) {
    for step in 0..steps {
        let count = 1 + rng.below(6);
        let block = first + rng.below(volume.blocks() - first - count);
        volume.write(block, pages(block, count, 2 + step), false).await.unwrap();
        model.extend((block..block + count).map(|block| (block, 2 + step)));
    }
}

fn pull(all: &[Rc<Emulator>], set: u32) {
    for (_, drive) in all.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1) {
        drive.inject(Fault::new(FaultKind::Disappear { commands: None })).unwrap();
    }
}

fn left(all: &[Rc<Emulator>], set: u32) -> Vec<Rc<dyn ZonedDevice>> {
    let left = all.iter().enumerate().filter(|(at, _)| set >> at & 1 == 0);
    left.map(|(_, drive)| drive.clone() as Rc<dyn ZonedDevice>).collect()
}

/// Checks that each block reads right or its read fails. Returns the number of failed reads.
async fn check_or_error(volume: &Volume, model: &Model) -> u64 {
    let mut lost = 0;
    for block in 0..volume.blocks() {
        match volume.read(block, 1).await {
            Ok(pages) => assert_eq!(version(block, &pages[0]), model.get(&block).copied()),
            Err(_) => lost += 1,
        }
    }
    lost
}

/// As many drives as the level tolerates are lost while the array runs, in each combination:
/// everything is read back, also after an assembly without them and further writes.
#[test]
fn each_combination_of_lost_drives_is_read_back() {
    let mut tally: BTreeMap<(u8, u32), (Placement, u64)> = BTreeMap::new();
    for shape in shapes() {
        let placement = shape.0;
        for lost in (1..=placement.tolerates()).flat_map(|count| sets(placement.n, count)) {
            on_array(&shape, move |rt, all, volume, mut model| async move {
                pull(&all, lost);
                check_runs(&volume, &model, 16).await;
                churn(&volume, &mut model, &mut Rng::new(3), 5).await;
                check_runs(&volume, &model, 16).await;
                volume.stop().await.unwrap();
                drop(volume);
                let volume = assemble(&rt, left(&all, lost), &Options::default()).await.unwrap();
                for (at, (_, state, _)) in volume.members().into_iter().enumerate() {
                    assert_eq!(state == MemberState::Failed, lost >> at & 1 == 1, "{at}");
                }
                check_runs(&volume, &model, 16).await;
                churn(&volume, &mut model, &mut Rng::new(5), 5).await;
                check_runs(&volume, &model, 16).await;
            });
            let at = (placement.level as u8, placement.n);
            tally.entry(at).or_insert((placement, 0)).1 += 1;
        }
    }
    let expected = |placement: Placement| -> u64 {
        (1..=placement.tolerates()).map(|lost| binomial(placement.n.into(), lost.into())).sum()
    };
    for (placement, count) in tally.values() {
        println!("{} of {}: {count} combinations", placement.level, placement.n);
        assert_eq!(*count, 3 * expected(*placement));
    }
    // RAID-4 and -5: 2 to 6 each; RAID-6: 3 to 6 and 3 + 6 + 10 + 15; RAID-01: 4 + 6.
    assert_eq!(tally.values().map(|(_, count)| count).sum::<u64>(), 3 * (20 + 20 + 18 + 34 + 10));
}

/// One more drive is lost than the level tolerates, in each combination: each read gives the right
/// block or an error, and the array does not start, unless the remaining drives have everything
/// (halves of different mirrors).
#[test]
fn one_drive_more_than_is_tolerated_gives_errors() {
    let (mut tried, mut had) = (0, 0);
    for shape in shapes() {
        let placement = shape.0;
        for lost in sets(placement.n, placement.tolerates() + 1) {
            let enough = placement.recoverable(|chunk| lost >> placement.drive(0, chunk) & 1 == 0);
            on_array(&shape, move |rt, all, volume, model| async move {
                pull(&all, lost);
                let gone = check_or_error(&volume, &model).await;
                assert_eq!(gone == 0, enough, "{placement:?} without {lost:b}: {gone} lost");
                let _ = volume.stop().await;
                drop(volume);
                rt.sleep(1_000_000_000).await;
                match assemble(&rt, left(&all, lost), &Options::default()).await {
                    Ok(volume) => {
                        assert!(enough, "{placement:?} starts without {lost:b}");
                        check_runs(&volume, &model, 16).await;
                    }
                    Err(error) => {
                        let text = error.to_string();
                        assert!(!enough, "{placement:?} without {lost:b}: {text}");
                        let none = placement.n == lost.count_ones();
                        assert!(none || text.contains("cannot do without member"), "{text}");
                    }
                }
            });
            (tried, had) = (tried + 1, had + u64::from(enough));
        }
    }
    // RAID-0: 2 to 6; RAID-4 and -5: pairs; RAID-6: triples; RAID-01: pairs, of which 4 of 6 and
    // 12 of 15 are of different mirrors.
    assert_eq!((tried, had), (3 * (20 + 35 + 35 + 35 + 21), 3 * (4 + 12)));
}
