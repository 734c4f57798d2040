//! The audit notices each seeded corruption of the store (K1 to K8 of
//! `docs/inside/structure/corruptions.md`) at once and names the account that is wrong; a sound
//! store passes after every operation.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::extent::Extent;
use crate::{Claim, FileId, FormatOptions, Lifetime, Node, Options, Policy, Store};
use furrow_emu::{Emulator, Medium, Options as DriveOptions};
use furrow_log::BlockAddr;
use furrow_log::pool::SuperzoneState;
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{Geometry, ZonedDevice};
use std::rc::Rc;

const ZONE: usize = 64 * 4096;

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..bytes.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(bytes).collect()
}

/// Runs `work` with a new store on a drive of 40 zones of 64 blocks; each half of the record ring
/// takes two zones.
pub(crate) fn with_store<F: Future<Output = ()> + 'static>(
    policy: Policy,
    work: impl FnOnce(Rt, Store) -> F,
) {
    let rt = Rt::new(Config::simulated(3));
    let limits =
        Geometry { max_open: Some(8), max_active: Some(8), ..Geometry::unlimited(40, 64, 64) };
    let medium = Medium::memory(&limits);
    let drive = Emulator::new(&rt, limits, medium, DriveOptions::simulated()).unwrap();
    let device: Rc<dyn ZonedDevice> = Rc::new(drive);
    let rt2 = rt.clone();
    let store = rt.block_on(async move {
        Store::format(&rt2, device.clone(), &FormatOptions::default()).await.unwrap();
        Store::open(&rt2, device, Options { policy, clean_below: 60, ..Options::default() })
            .await
            .unwrap()
    });
    store.audit().unwrap();
    rt.block_on(work(rt.clone(), store));
    rt.clear();
}

/// Writes a table of three zones, a table of two zones and a log, and makes them durable.
/// Afterwards no write or commit is under way.
async fn fill(store: &Store) {
    let files = [("000010.sst", 3 * ZONE), ("000011.sst", 2 * ZONE), ("000012.log", ZONE / 2)];
    for (seed, (name, bytes)) in files.into_iter().enumerate() {
        let id = store.create(name, Lifetime::Medium).unwrap();
        store.append(id, &content(seed as u64, bytes)).await.unwrap();
        store.audit().unwrap();
        store.sync(id).await.unwrap();
        store.audit().unwrap();
        store.close(id).await.unwrap();
        store.audit().unwrap();
    }
    store.sync_all().await.unwrap();
    store.0.zones.writer.completed().await;
    store.audit().unwrap();
}

fn file(store: &Store, path: &str) -> FileId {
    let Node::File(id) = store.stat(path).unwrap().node else { panic!("{path}: a directory") };
    id
}

fn extents(store: &Store, id: FileId, change: impl FnOnce(&mut Vec<Extent>)) {
    store.with(id, |file| change(&mut file.extents)).unwrap();
}

/// Applies a corruption between two operations. The audit must fail, with all of `words`
/// in its message.
fn corrupted(words: &[&str], corrupt: impl FnOnce(&Store) + 'static) {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    with_store(Policy::Shared, |_, store| async move {
        fill(&store).await;
        corrupt(&store);
        let error = store.audit().expect_err("the corruption is noticed").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}: no {words:?}");
    });
}

#[test]
fn k1_residents_of_a_zone_without_a_file() {
    corrupted(&["valid blocks by file in zone", "found None"], |store| {
        let zones = &store.0.zones;
        let full = zones.full_zones().into_iter().find(|zone| zones.files_in(*zone).len() == 1);
        let zone = full.unwrap();
        let id = zones.files_in(zone)[0];
        zones.corrupt_residents(|residents| drop(residents.remove(&zone)));
        assert!(!store.with(id, |file| file.extents.is_empty()).unwrap());
    });
}

#[test]
fn k2_an_extent_at_the_place_of_another_files() {
    corrupted(&["place of blocks of file", "where file"], |store| {
        let (mine, other) = (file(store, "000011.sst"), file(store, "000010.sst"));
        let at = store.with(other, |file| file.extents[0].at).unwrap();
        extents(store, mine, |extents| extents[0].at = at);
    });
}

#[test]
fn k2_an_extent_at_the_place_before_it_was_moved() {
    with_store(Policy::Shared, |_, store| async move {
        fill(&store).await;
        let id = file(&store, "000010.sst");
        let before = store.with(id, |file| file.extents[0].at).unwrap();
        let zone = store.zone_of(before);
        store.clean_zone(zone).await.unwrap();
        store.audit().unwrap();
        assert_ne!(store.with(id, |file| file.extents[0].at).unwrap(), before);
        extents(&store, id, |extents| extents[0].at = before);
        let error = store.audit().unwrap_err().to_string();
        let account = format!("valid blocks by file in zone {zone}");
        assert!(error.contains(&account) && error.contains("found None"), "{error}");
    });
}

#[test]
fn k3_an_extent_with_content_that_is_a_hole() {
    corrupted(&["checksums of a hole of file"], |store| {
        let id = file(store, "000010.sst");
        extents(store, id, |extents| extents[0].at = BlockAddr::HOLE);
    });
}

#[test]
fn k4_no_blocks_of_logs() {
    corrupted(&["valid blocks of logs", "found 0"], |store| {
        assert!(store.0.zones.kept(Claim::Others) > store.0.zones.kept(Claim::Flush));
        store.0.zones.corrupt_log_blocks(0);
    });
}

#[test]
fn k5_a_zone_that_is_open_no_more() {
    corrupted(&["open zones"], |store| {
        let zones = &store.0.zones;
        assert!(zones.pool.count(SuperzoneState::Active) > 0);
        zones.corrupt_open(|zone| zones.writer.space_left(zone) > 0);
    });
}

#[test]
fn k6_blocks_journaled_that_no_commit_has() {
    with_store(Policy::Shared, |_, store| async move {
        fill(&store).await;
        let id = store.create("000013.sst", Lifetime::Medium).unwrap();
        store.append(id, &content(9, ZONE + 4096)).await.unwrap();
        store.audit().unwrap();
        assert!(!store.0.commits.is_running());
        store
            .with(id, |file| {
                assert!(file.placed() > 0 && file.synced.is_none());
                file.journaled = file.blocks();
            })
            .unwrap();
        let error = store.audit().unwrap_err().to_string();
        assert!(error.contains("journaled blocks of file"), "{error}");
    });
}

#[test]
fn k7_a_zone_twice_in_the_half_of_the_ring() {
    corrupted(&["zones of the record ring", "twice"], |store| {
        assert!(store.0.ring.borrow_mut().corrupt_next_zone());
    });
}

#[test]
fn k8_a_write_that_ended_and_is_under_way() {
    corrupted(&["writes under way", "found Some(1)"], |store| {
        assert_eq!(store.0.zones.writer.in_flight(), 0);
        store.0.flights.corrupt_last(file(store, "000010.sst"));
    });
}

/// The audit passes after operations of every kind, and while others are under way: on a nearly
/// full store, during cleaning, with holes, after reopening.
#[test]
fn a_sound_store_passes_after_every_operation() {
    for policy in Policy::NAMES.map(|(_, policy)| policy) {
        with_store(policy, |rt, store| async move {
            let (mut rng, mut open) = (Rng::new(7), Vec::new());
            for step in 0..600u64 {
                let name = format!(
                    "{:06}.{}",
                    rng.below(12),
                    ["sst", "blob", "log"][rng.below(3) as usize]
                );
                let pick = rng.below(open.len().max(1) as u64) as usize;
                let id = open.get(pick).copied();
                match (rng.below(10), id) {
                    (0 | 1, _) => open.push(store.create(&name, Lifetime::Medium).unwrap()),
                    (2..=4, Some(id)) => {
                        let bytes = content(step, 1 + rng.below(300_000) as usize);
                        let _ = store.append(id, &bytes).await;
                    }
                    (5, Some(id)) => drop(store.sync(id).await),
                    (6, Some(id)) => {
                        let size = store.size(id).unwrap();
                        store.truncate(id, rng.below(size + 1)).await.unwrap();
                    }
                    (7, Some(id)) => {
                        open.swap_remove(pick);
                        let _ = store.close(id).await;
                    }
                    (8, Some(id)) => {
                        let size = store.size(id).unwrap();
                        store.forget(id, size / 4, size / 2).unwrap();
                    }
                    _ => drop(store.remove(&name)),
                }
                let audited = store.audit();
                audited.unwrap_or_else(|error| panic!("{policy:?}, step {step}: {error}"));
                if rng.one_in(8) {
                    rt.sleep(500_000_000).await;
                    store.audit().unwrap();
                }
            }
            let counters = store.counters();
            assert!(counters.cleaned > 0 && counters.resets > 10, "{policy:?}: {counters:?}");
            assert!(counters.turns > 1 && store.failed().is_none(), "{policy:?}: {counters:?}");
        });
    }
}
