//! Cleaning leaves out dead ranges: files become sparse, and all tools handle them.

#![allow(clippy::unwrap_used, reason = "a test")]

use furrow_emu::{Emulator, Fates, Medium, Options as DriveOptions};
use furrow_kv::{
    CheckOptions, FileId, FormatOptions, Lifetime, Node, Options, Policy, Snapshot, Store, check,
};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{ErrorKind, Geometry};
use std::collections::BTreeMap;
use std::rc::Rc;

const PAGE: u64 = 4096;

fn drive(rt: &Rt) -> Rc<Emulator> {
    let geometry = Geometry {
        max_open: Some(8),
        max_active: Some(8),
        unwritten_reads_fail: true,
        ..Geometry::unlimited(48, 64, 64)
    };
    let medium = Medium::memory(&geometry);
    Rc::new(Emulator::new(rt, geometry, medium, DriveOptions::simulated()).unwrap())
}

fn options(policy: Policy) -> Options {
    Options { clean_below: 60, policy, ..Options::default() }
}

/// The expected state of a file: its bytes, and which of them are dead.
struct Known {
    id: FileId,
    bytes: Vec<u8>,
    forgotten: Vec<bool>,
}

/// Compares the found bytes with the known ones: live bytes are as written, dead ones may be zeros.
/// Returns how many bytes are zeros now.
fn compare(found: &[u8], known: &Known, name: &str) -> u64 {
    assert_eq!(found.len(), known.bytes.len(), "{name}");
    let mut gone = 0;
    for (at, (found, byte)) in found.iter().zip(&known.bytes).enumerate() {
        match known.forgotten[at] {
            false => assert_eq!(found, byte, "{name}: byte {at}"),
            true => {
                assert!(found == byte || *found == 0, "{name}: byte {at}");
                gone += u64::from(found != byte);
            }
        }
    }
    gone
}

async fn compare_all(store: &Store, files: &BTreeMap<String, Known>) -> u64 {
    let mut gone = 0;
    for (name, known) in files {
        let id = store.open_file(name).unwrap();
        assert_eq!(id, known.id);
        let found = store.read(id, 0, usize::MAX).await.unwrap().to_vec();
        gone += compare(&found, known, name);
        store.close(id).await.unwrap();
    }
    gone
}

/// Checks the drive by inspection and fsck.
async fn look(device: &Rc<Emulator>, files: &BTreeMap<String, Known>) -> u64 {
    let snapshot = Snapshot::open(device.clone()).await.unwrap();
    let mut gone = 0;
    for (name, known) in files {
        let found = snapshot.read(known.id, 0, usize::MAX).await.unwrap();
        gone += compare(&found, known, name);
        let info = snapshot.file(known.id).unwrap();
        assert!(info.blocks <= info.size.div_ceil(PAGE) + u64::from(info.extents), "{name}");
    }
    let zones = snapshot.zones();
    assert!(zones.iter().all(|zone| zone.valid <= zone.written), "{zones:?}");
    let report = check(&**device, &CheckOptions::default()).await.unwrap();
    assert!(report.is_ok(), "{:?}", report.problems);
    gone
}

async fn written(store: &Store, rng: &mut Rng, name: &str, bytes: u64) -> Known {
    let id = store.create(name, Lifetime::Medium).unwrap();
    let all: Vec<u8> = (0..bytes).map(|_| rng.next() as u8 | 1).collect();
    for piece in all.chunks(50_000) {
        store.append(id, piece).await.unwrap();
    }
    store.sync(id).await.unwrap();
    store.close(id).await.unwrap();
    Known { id, forgotten: vec![false; all.len()], bytes: all }
}

fn forget(store: &Store, known: &mut Known, offset: u64, len: u64) {
    store.forget(known.id, offset, len).unwrap();
    known.forgotten[offset as usize..(offset + len) as usize].fill(true);
}

/// Writes files and declares ranges dead, with restarts and power cuts in between; only dead
/// bytes may be lost.
fn churn(seed: u64, policy: Policy) -> (u64, u64) {
    let rt = Rt::new(Config::shuffled(seed));
    let device = drive(&rt);
    let rt2 = rt.clone();
    let found = rt.block_on(async move {
        let mut rng = Rng::new(seed);
        Store::format(&rt2, device.clone(), &FormatOptions::default()).await.unwrap();
        let mut store = Store::open(&rt2, device.clone(), options(policy)).await.unwrap();
        let mut files: BTreeMap<String, Known> = BTreeMap::new();
        let (mut copied, mut gone) = (0, 0);
        for round in 0..150u64 {
            while store.space().available < 4 << 20 || rng.below(6) == 0 {
                // Removes the oldest file.
                let Some((name, _)) = files.pop_first() else { break };
                store.remove(&name).unwrap();
                store.sync_names().await.unwrap();
            }
            let name = format!("{round:06}.blob");
            let size = 1 + rng.below(300_000);
            files.insert(name.clone(), written(&store, &mut rng, &name, size).await);
            for _ in 0..12 {
                let at = rng.below(files.len() as u64) as usize;
                let known = files.values_mut().nth(at).unwrap();
                let offset = rng.below(known.bytes.len() as u64);
                let len = rng.below(40_000).min(known.bytes.len() as u64 - offset);
                forget(&store, known, offset, len);
            }
            match rng.below(20) {
                0 => {
                    store.stop().await.unwrap();
                    copied += store.counters().copied;
                    store = Store::open(&rt2, device.clone(), options(policy)).await.unwrap();
                }
                1 => {
                    copied += store.counters().copied;
                    store.sync_names().await.unwrap();
                    device.power_cut(&Fates::nothing(1));
                    rt2.sleep(1_000_000_000).await;
                    device.power_on();
                    store = Store::open(&rt2, device.clone(), options(policy)).await.unwrap();
                }
                2 => gone = gone.max(compare_all(&store, &files).await),
                _ => {}
            }
        }
        store.sync_names().await.unwrap();
        gone = gone.max(compare_all(&store, &files).await);
        copied += store.counters().copied;
        store.stop().await.unwrap();
        gone = gone.max(look(&device, &files).await);
        (copied, gone)
    });
    rt.clear();
    found
}

#[test]
fn what_is_not_forgotten_survives_cleaning_and_restarts() {
    let mut all = (0, 0);
    for seed in 1..=12 {
        let policy = [Policy::Generations, Policy::Baza, Policy::Shared][seed as usize % 3];
        let (copied, gone) = churn(seed, policy);
        all = (all.0 + copied, all.1 + gone);
    }
    assert!(all.0 > 1000 && all.1 > 100_000, "{all:?}: nothing was cleaned, nothing left out");
}

#[test]
fn a_file_of_two_names_is_not_forgotten_and_a_truncated_range_is_written_again() {
    let rt = Rt::new(Config::simulated(5));
    let device = drive(&rt);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let mut rng = Rng::new(5);
        Store::format(&rt2, device.clone(), &FormatOptions::default()).await.unwrap();
        let store = Store::open(&rt2, device.clone(), options(Policy::Generations)).await.unwrap();
        let mut known = written(&store, &mut rng, "1.blob", 200_000).await;
        assert_eq!(store.forget(known.id, 199_000, 2_000).unwrap_err().kind(), ErrorKind::Invalid);
        store.link("1.blob", "2.blob").unwrap();
        store.forget(known.id, 0, 200_000).unwrap();
        // A dead range is truncated away and other bytes are written at its offsets: the
        // new bytes stay.
        let mut cut = written(&store, &mut rng, "3.blob", 200_000).await;
        forget(&store, &mut cut, 50_000, 150_000);
        let id = store.open_file("3.blob").unwrap();
        store.truncate(id, 60_000).await.unwrap();
        let more: Vec<u8> = (0..140_000).map(|_| rng.next() as u8 | 1).collect();
        store.append(id, &more).await.unwrap();
        store.sync(id).await.unwrap();
        store.close(id).await.unwrap();
        cut.bytes.splice(60_000.., more);
        cut.forgotten[60_000..].fill(false);
        let mut files = BTreeMap::new();
        known.forgotten.fill(false);
        files.insert("1.blob".to_owned(), known);
        files.insert("3.blob".to_owned(), cut);
        for round in 0..40 {
            let name = format!("x{}.blob", round % 8);
            drop(written(&store, &mut rng, &name, 400_000).await);
        }
        assert!(store.counters().cleaned > 0);
        compare_all(&store, &files).await;
        assert!(matches!(store.stat("2.blob").unwrap().node, Node::File(_)));
        store.stop().await.unwrap();
        look(&device, &files).await;
    });
    rt.clear();
}
