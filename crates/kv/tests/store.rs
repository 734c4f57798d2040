//! A store on small emulated drives: names, contents, damage, failing zones, a full drive.

#![allow(clippy::unwrap_used, reason = "a test")]

use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options as DriveOptions, When};
use furrow_kv::{FileId, FormatOptions, Lifetime, Node, Options, Store, is_store};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{ErrorKind, Geometry, ZoneId};
use std::collections::BTreeMap;
use std::rc::Rc;

fn geometry(zones: u32, blocks: u64) -> Geometry {
    Geometry {
        max_open: Some(6),
        max_active: Some(6),
        unwritten_reads_fail: true,
        ..Geometry::unlimited(zones, blocks.next_power_of_two(), blocks)
    }
}

fn drive(rt: &Rt, geometry: &Geometry) -> Rc<Emulator> {
    let medium = Medium::memory(geometry);
    Rc::new(Emulator::new(rt, geometry.clone(), medium, DriveOptions::simulated()).unwrap())
}

/// Makes a drive with a new store and opens the store.
fn made(rt: &Rt, geometry: &Geometry) -> (Rc<Emulator>, Store) {
    let device = drive(rt, geometry);
    let (rt2, device2) = (rt.clone(), device.clone());
    let store = rt.block_on(async move {
        let options = FormatOptions { label: "test".into(), ..FormatOptions::default() };
        Store::format(&rt2, device2.clone(), &options).await.unwrap();
        Store::open(&rt2, device2, Options::default()).await.unwrap()
    });
    (device, store)
}

/// Cuts power while the store works, and restores it: no command in flight was carried out.
async fn power_cycle(rt: &Rt, device: &Emulator) {
    device.power_cut(&Fates::nothing(1));
    rt.sleep(1_000_000_000).await;
    device.power_on();
}

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..bytes.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(bytes).collect()
}

async fn written(store: &Store, path: &str, bytes: &[u8]) -> FileId {
    let id = store.create(path, Lifetime::Medium).unwrap();
    for piece in bytes.chunks(10_000) {
        store.append(id, piece).await.unwrap();
    }
    store.sync(id).await.unwrap();
    store.close(id).await.unwrap();
    id
}

async fn found(store: &Store, path: &str) -> Vec<u8> {
    let id = store.open_file(path).unwrap();
    let all = store.read(id, 0, usize::MAX).await.unwrap().to_vec();
    store.close(id).await.unwrap();
    all
}

#[test]
fn names_are_what_they_were_made_and_errors_say_why_not() {
    let rt = Rt::new(Config::simulated(1));
    let (device, store) = made(&rt, &geometry(40, 64));
    let rt2 = rt.clone();
    rt.block_on(async move {
        assert_eq!(store.label(), "test");
        store.make_directory("db").unwrap();
        store.make_directory("/db//a/").unwrap();
        written(&store, "db/a/1", b"one").await;
        written(&store, "db/a/2", b"two").await;
        written(&store, "db/CURRENT.tmp", b"MANIFEST-1\n").await;
        store.rename("db/CURRENT.tmp", "db/CURRENT").unwrap();
        store.link("db/a/1", "db/linked").unwrap();
        store.rename("db/a", "db/b").unwrap();
        let kind = |error: furrow_zone::Error| error.kind();
        assert_eq!(kind(store.make_directory("db").unwrap_err()), ErrorKind::Exists);
        assert_eq!(kind(store.make_directory("no/d").unwrap_err()), ErrorKind::NotFound);
        assert_eq!(kind(store.remove("db/a/1").unwrap_err()), ErrorKind::NotFound);
        assert_eq!(kind(store.remove("db").unwrap_err()), ErrorKind::IsDirectory);
        assert_eq!(kind(store.remove_directory("db").unwrap_err()), ErrorKind::NotEmpty);
        assert_eq!(kind(store.open_file("db").unwrap_err()), ErrorKind::IsDirectory);
        assert_eq!(kind(store.stat("db/../../x").unwrap_err()), ErrorKind::Invalid);
        assert_eq!(kind(store.stat("..").unwrap_err()), ErrorKind::Invalid);
        let around = store.stat("gone/../db/./b/../CURRENT").unwrap();
        assert_eq!(around.node, store.stat("db/CURRENT").unwrap().node);
        assert_eq!(store.stat("db/..").unwrap().node, Node::Directory);
        assert_eq!(kind(store.rename("db", "db/b/x").unwrap_err()), ErrorKind::Invalid);
        assert_eq!(kind(store.list("db/CURRENT").unwrap_err()), ErrorKind::NotDirectory);
        let long = "x".repeat(1025);
        assert_eq!(kind(store.create(&long, Lifetime::None).unwrap_err()), ErrorKind::Invalid);
        store.sync_names().await.unwrap();
        for round in 0..2 {
            // First in the store as it is, then after a power cut.
            let store = match round {
                0 => store.clone(),
                _ => {
                    power_cycle(&rt2, &device).await;
                    Store::open(&rt2, device.clone(), Options::default()).await.unwrap()
                }
            };
            let names: Vec<String> =
                store.list("db").unwrap().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["CURRENT", "b", "linked"]);
            assert_eq!(found(&store, "db/b/2").await, b"two");
            assert_eq!(found(&store, "db/linked").await, b"one");
            assert_eq!(store.stat("db/b/1").unwrap().node, store.stat("db/linked").unwrap().node);
            assert_eq!(store.stat("db/CURRENT").unwrap().size, 11);
        }
    });
    rt.clear();
}

#[test]
fn what_is_not_synced_can_be_read_and_a_file_that_is_open_keeps_its_content() {
    let rt = Rt::new(Config::shuffled(3));
    let (_, store) = made(&rt, &geometry(40, 64));
    rt.block_on(async move {
        let all = content(1, 700_000);
        let id = store.create("file", Lifetime::Long).unwrap();
        let other = store.open_file("file").unwrap();
        for piece in all.chunks(33_333) {
            store.append(id, piece).await.unwrap();
            let size = store.size(other).unwrap() as usize;
            let from = size.saturating_sub(50_000);
            assert_eq!(
                store.read(other, from as u64, size).await.unwrap().to_vec(),
                all[from..size]
            );
        }
        store.remove("file").unwrap();
        store.sync_names().await.unwrap();
        store.close(id).await.unwrap();
        assert_eq!(store.read(other, 0, usize::MAX).await.unwrap().to_vec(), all);
        let used = store.space().used;
        store.close(other).await.unwrap();
        assert_eq!(store.read(other, 0, 1).await.unwrap_err().kind(), ErrorKind::NotFound);
        store.sync_names().await.unwrap();
        assert!(store.space().used < used && store.space().used == 0, "{:?}", store.space());
    });
    rt.clear();
}

#[test]
fn a_file_is_cut_and_goes_on_behind_the_cut() {
    let rt = Rt::new(Config::simulated(3));
    let (device, store) = made(&rt, &geometry(40, 64));
    let rt2 = rt.clone();
    rt.block_on(async move {
        let mut model = content(1, 300_000);
        let id = store.create("file", Lifetime::Short).unwrap();
        store.append(id, &model).await.unwrap();
        let mut rng = Rng::new(8);
        for round in 0..40u64 {
            let size = rng.below(model.len() as u64 + 1);
            store.truncate(id, size).await.unwrap();
            model.truncate(size as usize);
            let more = content(round, rng.below(40_000) as usize);
            store.append(id, &more).await.unwrap();
            model.extend(more);
            if rng.one_in(3) {
                store.sync(id).await.unwrap();
            }
            assert_eq!(store.read(id, 0, usize::MAX).await.unwrap().to_vec(), model, "{round}");
        }
        assert_eq!(store.truncate(id, 1 << 40).await.unwrap_err().kind(), ErrorKind::Invalid);
        store.sync(id).await.unwrap();
        store.close(id).await.unwrap();
        power_cycle(&rt2, &device).await;
        let store = Store::open(&rt2, device, Options::default()).await.unwrap();
        assert_eq!(found(&store, "file").await, model);
        // The append continues the last block, which was padded.
        let id = store.open_file("file").unwrap();
        store.append(id, b"more").await.unwrap();
        model.extend(b"more");
        assert_eq!(store.read(id, 0, usize::MAX).await.unwrap().to_vec(), model);
    });
    rt.clear();
}

#[test]
fn a_damaged_block_is_an_error_that_names_the_file() {
    let rt = Rt::new(Config::simulated(3));
    let (device, store) = made(&rt, &geometry(40, 64));
    rt.block_on(async move {
        let all = content(5, 400_000);
        written(&store, "whole", &all).await;
        store.stop().await.unwrap();
        let decay = Fault { when: When::OneIn(20), ..Fault::new(FaultKind::BitFlip) };
        device.inject(decay).unwrap();
        let mut wrong = 0;
        let id = store.open_file("whole").unwrap();
        for at in (0..all.len()).step_by(4096) {
            match store.read(id, at as u64, 4096).await {
                Ok(data) => assert_eq!(data.to_vec(), all[at..(at + 4096).min(all.len())]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    assert!(error.to_string().contains("whole"), "{error}");
                    wrong += 1;
                }
            }
        }
        assert!(wrong > 0, "nothing was damaged");
    });
    rt.clear();
}

#[test]
fn zones_that_fail_cost_nothing() {
    for kind in [FaultKind::WriteError, FaultKind::ZoneReadOnly, FaultKind::ZoneFull] {
        let rt = Rt::new(Config::shuffled(3));
        let (device, store) = made(&rt, &geometry(60, 64));
        let rt2 = rt.clone();
        rt.block_on(async move {
            // The first six zones belong to the ring, whose halves have three zones here.
            for (nth, zone) in (6..60).step_by(7).enumerate() {
                let fault = Fault::new(kind).when(When::Nth(1 + nth as u64 % 3)).times(1);
                device.inject(fault.at_zone(ZoneId(zone))).unwrap();
            }
            let mut model = BTreeMap::new();
            for file in 0..30u64 {
                let all = content(file, 60_000 + 5000 * file as usize);
                written(&store, &format!("{file}"), &all).await;
                model.insert(format!("{file}"), all);
            }
            assert!(store.counters().relocated > 0, "{kind:?}: {:?}", store.counters());
            for (path, all) in &model {
                assert_eq!(&found(&store, path).await, all, "{kind:?}");
            }
            power_cycle(&rt2, &device).await;
            device.clear_faults(None).unwrap();
            let store = Store::open(&rt2, device, Options::default()).await.unwrap();
            for (path, all) in &model {
                assert_eq!(&found(&store, path).await, all, "{kind:?} after a crash");
            }
        });
        rt.clear();
    }
}

/// Overwrites ten times the capacity while 85 % of it is in use; excess data is refused cleanly.
#[test]
fn a_drive_nearly_full_is_overwritten_ten_times() {
    let rt = Rt::new(Config::simulated(3));
    let (device, store) = made(&rt, &geometry(60, 64));
    let rt2 = rt.clone();
    rt.block_on(async move {
        let capacity = store.space().capacity;
        let (size, mut model) = (37_000, BTreeMap::new());
        let count = capacity * 85 / 100 / 40_960;
        let mut rng = Rng::new(5);
        for version in 0..11 * count {
            let file = if version < count { version } else { rng.below(count) };
            let all = content(version, size);
            written(&store, &format!("{file}"), &all).await;
            model.insert(file, all);
        }
        let counters = store.counters();
        assert!(counters.cleaned > 0 && counters.appended > 10 * capacity * 80 / 100);
        let blocks = counters.appended / 4096;
        println!(
            "{} zones cleaned, {} blocks copied for {blocks} appended: {:.2} times",
            counters.cleaned,
            counters.copied,
            1.0 + counters.copied as f64 / blocks as f64
        );
        // Writes until the store is full: it refuses the write, and all files stay intact.
        let id = store.create("too much", Lifetime::Short).unwrap();
        let mut refused = None;
        for _ in 0..2 * capacity / 100_000 {
            if let Err(error) = store.append(id, &content(7, 100_000)).await {
                refused = Some(error);
                break;
            }
        }
        assert_eq!(refused.unwrap().kind(), ErrorKind::NoSpace);
        store.remove("too much").unwrap();
        store.close(id).await.unwrap();
        for (file, all) in &model {
            assert_eq!(&found(&store, &format!("{file}")).await, all);
        }
        store.stop().await.unwrap();
        let store = Store::open(&rt2, device, Options::default()).await.unwrap();
        written(&store, "0", b"again").await;
        assert_eq!(found(&store, "0").await, b"again");
    });
    rt.clear();
}

#[test]
fn what_is_no_store_is_refused_and_what_holds_something_is_not_overwritten() {
    let rt = Rt::new(Config::simulated(3));
    let rt2 = rt.clone();
    let (device, store) = made(&rt, &geometry(40, 64));
    rt.block_on(async move {
        let options = FormatOptions::default();
        let empty = drive(&rt2, &geometry(40, 64));
        assert!(!is_store(&*empty).await.unwrap() && is_store(&*device).await.unwrap());
        let opened = Store::open(&rt2, empty.clone(), Options::default()).await;
        assert_eq!(opened.err().unwrap().kind(), ErrorKind::WrongFormat);
        store.stop().await.unwrap();
        let again = Store::format(&rt2, device.clone(), &options).await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Exists);
        Store::open(&rt2, device.clone(), Options::default()).await.unwrap().stop().await.unwrap();
        let forced = FormatOptions { force: true, ..options.clone() };
        Store::format(&rt2, device.clone(), &forced).await.unwrap();
        let store = Store::open(&rt2, device, Options::default()).await.unwrap();
        assert_eq!(store.list("").unwrap(), Vec::<(String, Node)>::new());
        for (small, why) in [
            (geometry(5, 64), "of which the record ring takes"),
            (
                Geometry { max_open: Some(3), max_active: Some(3), ..geometry(40, 64) },
                "active zones",
            ),
        ] {
            let made = Store::format(&rt2, drive(&rt2, &small), &options).await;
            let error = made.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(why), "{error}");
        }
        let long = FormatOptions { label: "x".repeat(64), ..options };
        let made = Store::format(&rt2, empty, &long).await;
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Invalid);
    });
    rt.clear();
}

/// Whatever part of the ring is damaged, opening ends and yields only content that was written.
#[test]
fn a_damaged_ring_is_an_error_or_an_older_half_and_no_panic() {
    for seed in 0..150 {
        let rt = Rt::new(Config::simulated(seed));
        let (device, store) = made(&rt, &geometry(40, 64));
        let rt2 = rt.clone();
        rt.block_on(async move {
            let all = content(seed, 90_000);
            written(&store, "a", &all).await;
            written(&store, "b", &all).await;
            store.stop().await.unwrap();
            let zone = ZoneId((seed % 4) as u32);
            let damage =
                Fault::new(if seed % 3 == 0 { FaultKind::ReadError } else { FaultKind::BitFlip });
            let when = When::Nth(1 + seed / 4 % 12);
            device.inject(damage.when(when).times(1 + seed % 2).at_zone(zone)).unwrap();
            if let Ok(store) = Store::open(&rt2, device, Options::default()).await {
                for (name, _) in store.list("").unwrap() {
                    let id = store.open_file(&name).unwrap();
                    if let Ok(data) = store.read(id, 0, usize::MAX).await {
                        let data = data.to_vec();
                        assert_eq!(data, all[..data.len()], "{name}");
                    }
                }
            }
        });
        rt.clear();
    }
}
