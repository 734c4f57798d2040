//! Zones of the record ring fail: which failures the store survives, and what it reports
//! for others.

#![allow(clippy::unwrap_used, reason = "a test")]

use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options as DriveOptions, When};
use furrow_kv::{CheckOptions, FormatOptions, Lifetime, Options, Snapshot, Store, check};
use furrow_rt::{Config, Rt};
use furrow_zone::{ErrorKind, Geometry, ZoneId};
use std::rc::Rc;

/// Zones of 16 blocks. The ring has `2 × half + 1` zones, or `2 × half + 2` if the drive has
/// 64 zones or more.
fn geometry(zones: u32) -> Geometry {
    Geometry {
        max_open: Some(6),
        max_active: Some(6),
        unwritten_reads_fail: true,
        ..Geometry::unlimited(zones, 16, 16)
    }
}

async fn made(rt: &Rt, zones: u32, half_bytes: u64) -> (Rc<Emulator>, Store) {
    let shape = geometry(zones);
    let device =
        Emulator::new(rt, shape.clone(), Medium::memory(&shape), DriveOptions::simulated());
    let device = Rc::new(device.unwrap());
    let options = FormatOptions { half_bytes: Some(half_bytes), ..FormatOptions::default() };
    Store::format(rt, device.clone(), &options).await.unwrap();
    let store = Store::open(rt, device.clone(), Options::default()).await.unwrap();
    (device, store)
}

async fn add(store: &Store, name: &str) {
    let id = store.create(name, Lifetime::Short).unwrap();
    store.append(id, name.repeat(100).as_bytes()).await.unwrap();
    store.sync(id).await.unwrap();
    store.close(id).await.unwrap();
}

/// Cuts power and returns the drive afterwards; its previous users have lost access.
fn cut(rt: &Rt, device: &Emulator) -> Rc<Emulator> {
    let left = device.snapshot().power_cut(&Fates::nothing(1));
    device.power_cut(&Fates::nothing(1));
    Rc::new(Emulator::from_snapshot(rt, &left, DriveOptions::simulated()))
}

async fn holds(store: &Store, names: u32) {
    assert_eq!(store.list("").unwrap().len(), names as usize);
    for number in 0..names {
        let name = format!("{number}");
        let id = store.open_file(&name).unwrap();
        let found = store.read(id, 0, usize::MAX).await.unwrap().to_vec();
        assert_eq!(found, name.repeat(100).as_bytes(), "{name}");
        store.close(id).await.unwrap();
    }
}

/// Zones of the ring fail one after the other while the store is in use. Nothing is lost as long as
/// a usable zone is left. Then the store reports the problem and can still be read.
#[test]
fn a_zone_of_the_ring_that_fails_is_replaced() {
    use FaultKind::{WriteError, WriteTorn, ZoneFull, ZoneOffline, ZoneReadOnly};
    for kind in [ZoneReadOnly, ZoneOffline, WriteError, WriteTorn, ZoneFull] {
        let rt = Rt::new(Config::shuffled(5));
        let on = rt.clone();
        rt.block_on(async move {
            // The ring has halves of one zone, and two spares.
            let (mut device, mut store) = made(&on, 64, 1).await;
            let lasting = matches!(kind, ZoneReadOnly | ZoneOffline);
            let mut names = 0;
            for round in 0..3 {
                let snapshot = Snapshot::open(device.clone()).await.unwrap();
                let current = snapshot.ring_zones().1[0];
                let fault = Fault::new(kind).when(When::Nth(2)).times(1);
                device.inject(fault.at_zone(current)).unwrap();
                for _ in 0..6 {
                    add(&store, &format!("{names}")).await;
                    names += 1;
                }
                assert!(store.counters().ring_failures > 0, "{kind:?}");
                holds(&store, names).await;
                device = cut(&on, &device);
                let report = check(&*device, &CheckOptions::default()).await.unwrap();
                assert!(report.is_ok(), "{kind:?}: {:?}", report.problems);
                let looked = Snapshot::open(device.clone()).await.unwrap();
                assert_eq!(looked.names().count(), names as usize);
                let opened = Store::open(&on, device.clone(), Options::default()).await;
                if lasting && round == 2 {
                    // Three of four zones have failed: the store can still be inspected.
                    let text = opened.err().unwrap().to_string();
                    assert!(text.contains("no zone of the record ring"), "{text}");
                    assert!(text.contains("3 failed"), "{text}");
                    return;
                }
                store = opened.unwrap();
                holds(&store, names).await;
            }
        });
        rt.clear();
    }
}

/// State that only an offline zone held is never replaced by older state.
#[test]
fn a_zone_of_the_ring_that_is_offline_is_named() {
    for nth in 0..3 {
        let rt = Rt::new(Config::shuffled(5));
        let on = rt.clone();
        rt.block_on(async move {
            // The ring has halves of three zones.
            let (device, store) = made(&on, 64, 3 * 16 * 4096).await;
            // Fill two or more zones with records.
            for number in 0..24 {
                add(&store, &format!("{number}")).await;
            }
            let snapshot = Snapshot::open(device.clone()).await.unwrap();
            let (ring, half) = snapshot.ring_zones();
            assert_eq!((ring.half, half.len()), (3, 3));
            let zone = match nth {
                2 => ring.zones().find(|zone| !half.contains(zone)).unwrap(),
                nth => half[nth],
            };
            let device = cut(&on, &device);
            device.inject(Fault::new(FaultKind::ZoneOffline).at_zone(zone)).unwrap();
            let opened = Store::open(&on, device.clone(), Options::default()).await;
            if nth == 2 {
                // The offline zone held nothing.
                holds(&opened.unwrap(), 24).await;
                return;
            }
            let error = opened.err().unwrap_or_else(|| panic!("{nth}: {half:?} {zone}"));
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains(&format!("zone {zone} is offline")), "{error}");
            let error = Snapshot::open(device.clone()).await.err().unwrap();
            assert!(error.to_string().contains(&format!("zone {zone} is offline")), "{error}");
            let report = check(&*device, &CheckOptions::default()).await;
            assert!(report.is_ok_and(|r| !r.is_ok()) || nth == 0, "zone {zone}");
        });
        rt.clear();
    }
}

/// A half in zones that cannot be written cannot be emptied, so its presence does not show that it
/// is the newest.
#[test]
fn an_older_half_that_cannot_be_emptied_is_not_taken_for_the_newest() {
    let rt = Rt::new(Config::shuffled(5));
    let on = rt.clone();
    rt.block_on(async move {
        let (device, store) = made(&on, 64, 1).await;
        add(&store, "0").await;
        let current = |snapshot: &Snapshot| snapshot.ring_zones().1[0];
        let first = current(&Snapshot::open(device.clone()).await.unwrap());
        device.inject(Fault::new(FaultKind::ZoneReadOnly).at_zone(first)).unwrap();
        add(&store, "1").await;
        let second = current(&Snapshot::open(device.clone()).await.unwrap());
        assert_ne!(first, second);
        let device = cut(&on, &device);
        device.inject(Fault::new(FaultKind::ZoneOffline).at_zone(second)).unwrap();
        let error = Store::open(&on, device.clone(), Options::default()).await.err().unwrap();
        assert!(error.to_string().contains(&format!("zone {} is offline", ZoneId(second.0))));
    });
    rt.clear();
}
