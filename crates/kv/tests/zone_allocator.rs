//! Where files go under each policy, and what the store remembers about the zones they fill.

#![allow(clippy::unwrap_used, reason = "a test")]

use furrow_emu::{Emulator, Medium, Options as DriveOptions};
use furrow_kv::{Family, FileId, FormatOptions, Lifetime, Options, Policy, Store};
use furrow_rt::{Config, Rt};
use furrow_zone::Geometry;
use std::rc::Rc;

/// Blocks of a zone.
const ZONE: usize = 256;

fn geometry(active: u32) -> Geometry {
    let zone = ZONE as u64;
    let limits = Some(active);
    Geometry { max_open: limits, max_active: limits, ..Geometry::unlimited(40, zone, zone) }
}

fn made(rt: &Rt, policy: Policy, active: u32) -> (Rc<Emulator>, Store) {
    let geometry = geometry(active);
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(rt, geometry, medium, DriveOptions::simulated()).unwrap();
    let drive = Rc::new(drive);
    let store = opened(rt, &drive, policy, true);
    (drive, store)
}

fn opened(rt: &Rt, drive: &Rc<Emulator>, policy: Policy, format: bool) -> Store {
    let (inner, theirs) = (rt.clone(), drive.clone());
    rt.block_on(async move {
        if format {
            Store::format(&inner, theirs.clone(), &FormatOptions::default()).await.unwrap();
        }
        let options = Options { policy, ..Options::default() };
        Store::open(&inner, theirs, options).await.unwrap()
    })
}

async fn append(store: &Store, file: FileId, blocks: usize) {
    store.append(file, &vec![7; blocks * 4096]).await.unwrap();
}

#[test]
fn a_writer_of_a_blob_holds_its_zone_and_the_next_goes_back_to_the_earlier() {
    let rt = Rt::new(Config::simulated(1));
    let (_drive, store) = made(&rt, Policy::Baza, 14);
    let writing = store.clone();
    rt.block_on(async move {
        let store = writing;
        let create = |number: u32, hint| store.create(&format!("{number:06}.blob"), hint).unwrap();
        // Two files are written concurrently, and a third after both ended. Their lifetimes differ,
        // which must not matter.
        let (one, two) = (create(1, Lifetime::Medium), create(2, Lifetime::Long));
        append(&store, one, 64).await;
        append(&store, two, 64).await;
        append(&store, one, 64).await;
        store.close(one).await.unwrap();
        store.close(two).await.unwrap();
        let three = create(3, Lifetime::Short);
        append(&store, three, 64).await;
        store.close(three).await.unwrap();
        // A table goes to another zone.
        let table = store.create("000004.sst", Lifetime::Medium).unwrap();
        append(&store, table, 64).await;
        store.close(table).await.unwrap();
        let zones = |path: &str| store.zones_of(path).unwrap();
        let (one, two) = (zones("000001.blob"), zones("000002.blob"));
        assert_eq!((one.len(), two.len()), (1, 1));
        assert_ne!(one, two, "each writer has a zone");
        assert_eq!(zones("000003.blob"), one, "the next file goes back to the earlier zone");
        let table = zones("000004.sst");
        assert!(!one.contains(&table[0]) && !two.contains(&table[0]));
        store.stop().await.unwrap();
    });
    rt.clear();
}

#[test]
fn equal_hints_share_a_zone_as_the_paper_says_and_have_one_each_as_zenfs_does() {
    for (policy, shared) in [(Policy::LizaPaper, true), (Policy::LizaZenfs, false)] {
        let rt = Rt::new(Config::simulated(2));
        let (_drive, store) = made(&rt, policy, 14);
        rt.block_on(async move {
            for number in 1..=2 {
                let path = format!("00000{number}.blob");
                let file = store.create(&path, Lifetime::Medium).unwrap();
                append(&store, file, 64).await;
                store.close(file).await.unwrap();
            }
            let zones = |path: &str| store.zones_of(path).unwrap();
            let (one, two) = (zones("000001.blob"), zones("000002.blob"));
            assert_eq!(one == two, shared, "{policy:?}: {one:?} {two:?}");
            store.stop().await.unwrap();
        });
        rt.clear();
    }
}

#[test]
fn nobody_waits_for_a_zone_that_an_open_file_holds() {
    for (_, policy) in Policy::NAMES {
        let rt = Rt::new(Config::simulated(3));
        // The two halves of the ring and cleaning have a permit each: two permits are
        // left for files.
        let (_drive, store) = made(&rt, policy, 5);
        rt.block_on(async move {
            let mut files = Vec::new();
            for number in 0..20 {
                let kind = if number % 2 == 0 { "blob" } else { "sst" };
                let hint = Lifetime::from_byte(number % 6).unwrap();
                files.push(store.create(&format!("{number:06}.{kind}"), hint).unwrap());
            }
            for round in 0..6 {
                for file in &files {
                    append(&store, *file, 16 + round).await;
                }
            }
            for file in files {
                store.sync(file).await.unwrap();
                assert_eq!(store.size(file).unwrap(), (16 * 6 + 15) * 4096);
                store.close(file).await.unwrap();
            }
            store.stop().await.unwrap();
        });
        rt.clear();
    }
}

#[test]
fn the_youngest_blob_of_a_full_zone_is_known_until_its_reset_across_restarts() {
    let rt = Rt::new(Config::simulated(4));
    let (drive, store) = made(&rt, Policy::Baza, 14);
    let family = Family { directory: "db".to_owned(), name: "default".to_owned() };
    let other = Family { name: "other".to_owned(), ..family.clone() };
    let writing = store.clone();
    rt.block_on({
        let (family, other) = (family.clone(), other.clone());
        async move {
            let store = writing;
            store.make_directory("db").unwrap();
            // Four files fill a zone: three belong to one family, one to another.
            for number in 1..=4 {
                let path = format!("db/{number:06}.blob");
                // The family may be set before or after the file is made.
                let name = if number == 4 { "other" } else { "default" };
                if number % 2 == 0 {
                    store.set_family(&path, name).unwrap();
                }
                let file = store.create(&path, Lifetime::Medium).unwrap();
                if number % 2 == 1 {
                    store.set_family(&path, name).unwrap();
                }
                assert_eq!(store.youngest_in_full_zones(&family).unwrap(), []);
                append(&store, file, 64).await;
                store.sync(file).await.unwrap();
                store.close(file).await.unwrap();
            }
            let full = store.youngest_in_full_zones(&family).unwrap();
            assert_eq!(full.iter().map(|(_, number)| *number).collect::<Vec<_>>(), [3]);
            let of_other = store.youngest_in_full_zones(&other).unwrap();
            assert_eq!(of_other, [(full[0].0, 4)]);
            // The youngest file may be gone: its number stays.
            store.remove("db/000003.blob").unwrap();
            assert_eq!(store.youngest_in_full_zones(&family).unwrap(), full);
            store.stop().await.unwrap();
        }
    });
    let store = opened(&rt, &drive, Policy::Baza, false);
    let rt2 = rt.clone();
    rt.block_on(async move {
        // After opening, the user states each file's family again. For removed files, the zone's
        // record keeps the family.
        for number in [1, 2, 4] {
            let name = if number == 4 { "other" } else { "default" };
            store.set_family(&format!("db/{number:06}.blob"), name).unwrap();
        }
        let full = store.youngest_in_full_zones(&family).unwrap();
        assert_eq!(full.iter().map(|(_, number)| *number).collect::<Vec<_>>(), [3]);
        for number in [1, 2, 4] {
            store.remove(&format!("db/{number:06}.blob")).unwrap();
        }
        store.sync_names().await.unwrap();
        // The zone is reset once nothing in it is valid.
        while !store.youngest_in_full_zones(&family).unwrap().is_empty() {
            rt2.sleep(1_000_000).await;
        }
        assert_eq!(store.youngest_in_full_zones(&other).unwrap(), []);
        store.stop().await.unwrap();
    });
    rt.clear();
}
