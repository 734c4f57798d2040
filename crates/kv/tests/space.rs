//! Space of a store: the reserves, the queues for space, and what is reported as available.

#![allow(clippy::unwrap_used, reason = "a test")]

use furrow_emu::{Emulator, Fates, Medium, Options as DriveOptions};
use furrow_kv::{Claim, FileId, FormatOptions, Lifetime, Options, Policy, Snapshot, Store};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{ErrorKind, Geometry};
use std::cell::RefCell;
use std::rc::Rc;

const ZONE: usize = 64 * 4096;

/// Makes a drive of 74 zones of 64 blocks with a new store; ten zones belong to the ring.
fn made(rt: &Rt, policy: Policy) -> (Rc<Emulator>, Store) {
    let geometry = Geometry {
        max_open: Some(8),
        max_active: Some(8),
        unwritten_reads_fail: true,
        ..Geometry::unlimited(74, 64, 64)
    };
    let medium = Medium::memory(&geometry);
    let device = Emulator::new(rt, geometry, medium, DriveOptions::simulated()).unwrap();
    let device = Rc::new(device);
    let (rt2, device2) = (rt.clone(), device.clone());
    let store = rt.block_on(async move {
        Store::format(&rt2, device2.clone(), &FormatOptions::default()).await.unwrap();
        Store::open(&rt2, device2, Options { policy, ..Options::default() }).await.unwrap()
    });
    (device, store)
}

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..bytes.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(bytes).collect()
}

/// Appends and syncs pieces until there is no space. Returns the final size of the file.
async fn fill(store: &Store, id: FileId, seed: u64, piece: usize) -> u64 {
    loop {
        let at = store.size(id).unwrap();
        let bytes = content(seed ^ at, piece);
        let appended = store.append(id, &bytes).await;
        if let Err(error) = &appended {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            assert_eq!(store.size(id).unwrap(), at, "nothing of what was refused is there");
            return at;
        }
        if let Err(error) = store.sync(id).await {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            store.truncate(id, at).await.unwrap();
            return at;
        }
    }
}

async fn check(store: &Store, path: &str, seed: u64, piece: usize) {
    let id = store.open_file(path).unwrap();
    let size = store.size(id).unwrap();
    for at in (0..size).step_by(piece) {
        let found = store.read(id, at, piece).await.unwrap().to_vec();
        assert_eq!(found, content(seed ^ at, piece), "{path} at {at}");
    }
    store.close(id).await.unwrap();
}

/// A store that is full for flushes has space for compactions, and one that is full for compactions
/// has space for manifests. Then removals can be recorded, and all writers continue.
#[test]
fn compactions_and_manifests_have_room_of_their_own() {
    for policy in Policy::NAMES.map(|(_, policy)| policy) {
        let rt = Rt::new(Config::simulated(3));
        let (device, store) = made(&rt, policy);
        let rt2 = rt.clone();
        rt.block_on(async move {
            let flush = store.create("000010.sst", Lifetime::Medium).unwrap();
            fill(&store, flush, 1, 30_000).await;
            assert!(store.space().available < 100_000, "{policy:?}: {:?}", store.space());
            let other = store.create("000011.log", Lifetime::Short).unwrap();
            assert!(fill(&store, other, 2, 30_000).await < ZONE as u64, "{policy:?}");
            // All files have one lifetime, so that they could share zones.
            let compacted = store.create("000012.sst", Lifetime::Medium).unwrap();
            store.set_claim(compacted, Claim::Compaction).unwrap();
            let output = fill(&store, compacted, 3, 30_000).await;
            let space = store.space();
            assert!(output >= 2 * ZONE as u64 - 60_000, "{policy:?}: {output} bytes, {space:?}");
            let manifest = store.create("MANIFEST-000004", Lifetime::Medium).unwrap();
            let records = fill(&store, manifest, 4, 10_000).await;
            assert!(records >= ZONE as u64 - 60_000, "{policy:?}: {records} bytes");
            // Weaker claims may not use a reserve, even in an open zone with space.
            assert!(store.append(other, &content(2, ZONE)).await.is_err());
            assert_eq!(store.space().available, 0, "{policy:?}");

            store.remove("000010.sst").unwrap();
            store.close(flush).await.unwrap();
            store.sync_names().await.unwrap();
            let more = store.create("000013.sst", Lifetime::Medium).unwrap();
            assert!(fill(&store, more, 5, 30_000).await > 50 * ZONE as u64, "{policy:?}");
            for id in [other, compacted, manifest, more] {
                // Closing tries to place the rest of the file and is refused again.
                let _ = store.close(id).await;
            }
            device.power_cut(&Fates::nothing(1));
            rt2.sleep(1_000_000_000).await;
            device.power_on();
            let store = Store::open(&rt2, device.clone(), Options::default()).await.unwrap();
            check(&store, "000012.sst", 3, 30_000).await;
            check(&store, "MANIFEST-000004", 4, 10_000).await;
            store.stop().await.unwrap();
            let said = Snapshot::open(device.clone()).await.unwrap().space();
            assert_eq!(said.capacity, store.space().capacity);
        });
        rt.clear();
    }
}

/// A full store that refused a write refuses it again. It counts as free neither the space that a
/// refused file took and gave back, nor the zone that cleaning writes to, nor zones that were open
/// at a restart.
#[test]
fn a_full_store_stays_full_when_it_is_asked_again() {
    for policy in Policy::NAMES.map(|(_, policy)| policy) {
        let rt = Rt::new(Config::simulated(11));
        let (device, mut store) = made(&rt, policy);
        let rt2 = rt.clone();
        rt.block_on(async move {
            let mut refused = 0;
            for file in 0_u64..80 {
                let name = format!("{file:06}.sst");
                let id = store.create(&name, Lifetime::Medium).unwrap();
                let mut put = store.append(id, &content(file, 3 * ZONE + 5000)).await;
                if put.is_ok() {
                    put = store.close(id).await;
                } else {
                    let _ = store.close(id).await;
                }
                if put.is_err() {
                    refused += 1;
                    store.remove(&name).unwrap();
                }
                store.sync_names().await.unwrap();
                let space = store.space();
                assert!(space.used <= space.capacity, "{policy:?}, file {file}: {space:?}");
                if file % 3 == 0 {
                    store.stop().await.unwrap();
                    let options = Options { policy, ..Options::default() };
                    store = Store::open(&rt2, device.clone(), options).await.unwrap();
                }
            }
            let space = store.space();
            assert!(refused > 55 && space.available < 4 * ZONE as u64, "{policy:?}: {space:?}");
            store.stop().await.unwrap();
        });
        rt.clear();
    }
}

/// In a full store, bytes that a program declared dead count as free space: a writer waits until
/// cleaning has left them out.
#[test]
fn a_full_store_takes_more_once_bytes_are_forgotten() {
    let rt = Rt::new(Config::simulated(13));
    let (_device, store) = made(&rt, Policy::Generations);
    rt.block_on(async move {
        let full = store.create("000010.blob", Lifetime::Medium).unwrap();
        let size = fill(&store, full, 1, 30_000).await;
        let other = store.create("000011.sst", Lifetime::Medium).unwrap();
        fill(&store, other, 2, 3_000).await;
        // Declare a third of the file dead, zone after zone.
        for at in (0..size - 90_000).step_by(90_000) {
            store.forget(full, at, 30_000).unwrap();
        }
        let more = store.create("000012.log", Lifetime::Short).unwrap();
        // A group commit records first that the store may have holes.
        store.sync_names().await.unwrap();
        let found = fill(&store, more, 3, 30_000).await;
        let space = store.space();
        // The ring has no space for the places of more pieces.
        assert!(found > size / 8, "{found} of {size} bytes: {space:?}");
        assert!(space.used <= space.capacity, "{space:?}");
        for id in [full, other, more] {
            let _ = store.close(id).await;
        }
        store.stop().await.unwrap();
    });
    rt.clear();
}

/// Flushes of all logs find space when everything else is full, also after a crash; without logs
/// that space is available to others.
#[test]
fn what_logs_hold_can_be_flushed() {
    for policy in Policy::NAMES.map(|(_, policy)| policy) {
        for logs_first in [true, false] {
            let rt = Rt::new(Config::simulated(5));
            let (device, store) = made(&rt, policy);
            let rt2 = rt.clone();
            rt.block_on(async move {
                let table = store.create("000010.sst", Lifetime::Medium).unwrap();
                let compacted = store.create("000014.blob", Lifetime::Medium).unwrap();
                store.set_claim(compacted, Claim::Compaction).unwrap();
                let log = async |name: &str, seed| {
                    let id = store.create(name, Lifetime::Short).unwrap();
                    for at in (0..2 * ZONE as u64).step_by(20_000) {
                        store.append(id, &content(seed ^ at, 20_000)).await.unwrap();
                        store.sync(id).await.unwrap();
                    }
                    store.close(id).await.unwrap();
                };
                if logs_first {
                    log("000011.log", 7).await;
                    log("000012.log", 8).await;
                    fill(&store, table, 1, 30_000).await;
                } else {
                    // Fill all space but that of two logs and the reserve for their flushes.
                    let mut at = 0;
                    while store.space().available > 10 * ZONE as u64 {
                        store.append(table, &content(1 ^ at, 30_000)).await.unwrap();
                        store.sync(table).await.unwrap();
                        at = store.size(table).unwrap();
                    }
                    log("000011.log", 7).await;
                    log("000012.log", 8).await;
                    fill(&store, table, 1, 30_000).await;
                }
                // Compactions do not get the reserve.
                fill(&store, compacted, 2, 30_000).await;
                // Closing tries to place the rest of the file and is refused again.
                let _ = (store.close(table).await, store.close(compacted).await);
                assert!(store.space().available < ZONE as u64, "{policy:?}: {:?}", store.space());
                let said = Snapshot::open(device.clone()).await.unwrap().space();
                assert!(said.available < 2 * ZONE as u64, "{policy:?}: {said:?}");
                device.power_cut(&Fates::nothing(1));
                rt2.sleep(1_000_000_000).await;
                device.power_on();
                let options = Options { policy, ..Options::default() };
                let store = Store::open(&rt2, device.clone(), options).await.unwrap();
                for (name, of) in [("000021.blob", 7), ("000022.sst", 8)] {
                    let output = store.create(name, Lifetime::Medium).unwrap();
                    store.set_claim(output, Claim::Flush).unwrap();
                    for at in (0..2 * ZONE as u64).step_by(20_000) {
                        let appended = store.append(output, &content(of ^ at, 20_000)).await;
                        appended.unwrap_or_else(|e| panic!("{policy:?}, {logs_first}: {e}"));
                    }
                    store.sync(output).await.unwrap();
                    store.close(output).await.unwrap();
                }
                for name in ["000011.log", "000012.log"] {
                    store.remove(name).unwrap();
                }
                store.sync_names().await.unwrap();
                let other = store.create("000023.sst", Lifetime::Medium).unwrap();
                let more = fill(&store, other, 3, 30_000).await;
                assert!(more > 2 * ZONE as u64, "{policy:?}, {logs_first}: {more} bytes");
                let _ = store.close(other).await;
                let _ = store.stop().await;
            });
            rt.clear();
        }
    }
}

/// Writers can use all the space reported as available, and little more.
#[test]
fn what_is_said_to_be_free_goes_in() {
    for seed in 0..6 {
        let rt = Rt::new(Config::simulated(seed));
        let (_, store) = made(&rt, Policy::Shared);
        rt.block_on(async move {
            let mut rng = Rng::new(seed);
            // Write files and remove some of them, so that there is garbage to be cleaned.
            for file in 0..100u64 {
                let id = store.create(&format!("{file}"), Lifetime::Medium).unwrap();
                store.append(id, &content(file, 100_000)).await.unwrap();
                store.sync(id).await.unwrap();
                store.close(id).await.unwrap();
            }
            for file in 0..100u64 {
                if rng.one_in(2) {
                    store.remove(&format!("{file}")).unwrap();
                }
            }
            store.sync_names().await.unwrap();
            let said = store.space().available;
            let id = store.create("full", Lifetime::Medium).unwrap();
            store.append(id, &content(7, said as usize / 4096 * 4096)).await.unwrap_or_else(
                |error| {
                    panic!(
                        "seed {seed}: {said} bytes were said to be free: {error}, {:?} {:?}",
                        store.space(),
                        store.counters()
                    )
                },
            );
            store.sync(id).await.unwrap();
            let more = fill(&store, id, 8, 4096).await - said;
            assert!(more < 4 * ZONE as u64, "seed {seed}: {more} more than {said} went in");
        });
        rt.clear();
    }
}

/// Writers that wait for cleaning finish in the order in which they began, even if
/// others arrive later.
#[test]
fn writers_beside_cleaning_end_in_order() {
    let rt = Rt::new(Config::simulated(3));
    let (_, store) = made(&rt, Policy::Shared);
    let rt2 = rt.clone();
    rt.block_on(async move {
        // Half of each zone is garbage.
        for file in 0..128u64 {
            let id = store.create(&format!("{file}"), Lifetime::Medium).unwrap();
            let done = store.append(id, &content(file, ZONE / 2)).await;
            let synced = store.sync(id).await;
            store.close(id).await.unwrap_or(());
            if done.is_err() || synced.is_err() {
                break;
            }
        }
        for file in (0..128u64).step_by(2) {
            store.remove(&format!("{file}")).unwrap_or(());
        }
        let order = Rc::new(RefCell::new(Vec::new()));
        let mut tasks = Vec::new();
        for writer in 0..24u64 {
            let (store, order) = (store.clone(), order.clone());
            tasks.push(rt2.spawn(async move {
                let id = store.create(&format!("w{writer}"), Lifetime::Medium).unwrap();
                store.append(id, &content(writer, ZONE)).await.unwrap();
                order.borrow_mut().push(writer);
            }));
            // Other writers arrive later, in the middle of cleaning.
            rt2.sleep(if writer < 12 { 0 } else { 300_000 }).await;
        }
        for task in tasks {
            task.await;
        }
        let order = order.borrow();
        assert!(order.is_sorted(), "{order:?}");
        assert!(store.counters().cleaned > 4, "{:?}", store.counters());
    });
    rt.clear();
}

/// The group commit that retires a file shows its zones empty: they are reset after it, without
/// waiting for the ring to turn.
#[test]
fn zones_are_reset_after_the_commit_that_retires_their_files() {
    let rt = Rt::new(Config::simulated(5));
    let (_drive, store) = made(&rt, Policy::default());
    let rt2 = rt.clone();
    rt.block_on(async move {
        let file = store.create("000001.blob", Lifetime::Short).unwrap();
        store.append(file, &content(1, 3 * ZONE)).await.unwrap();
        store.sync(file).await.unwrap();
        store.close(file).await.unwrap();
        let before = store.counters();
        store.remove("000001.blob").unwrap();
        store.sync_names().await.unwrap();
        rt2.sleep(100_000_000).await;
        let after = store.counters();
        assert_eq!((after.turns, after.rounds), (before.turns, before.rounds + 1));
        assert!(after.resets >= before.resets + 2, "{before:?} {after:?}");
    });
}
