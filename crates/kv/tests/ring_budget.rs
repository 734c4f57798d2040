//! The record ring and what fills it: small files, long names, directories, links, extents. The
//! store refuses in time what it could not record, and it can always be opened and remove files.

#![allow(clippy::unwrap_used, reason = "a test")]

use furrow_emu::{Emulator, Medium, Options as DriveOptions};
use furrow_kv::{CheckOptions, FormatOptions, Lifetime, Options, Snapshot, Store};
use furrow_rt::{Config, Rt};
use furrow_zone::{Error, ErrorKind, Geometry};
use std::rc::Rc;

/// Makes a drive with a new store and opens the store. The halves of its ring have `half` bytes,
/// at least a zone.
fn made(rt: &Rt, zones: u32, blocks: u64, half: u64) -> (Rc<Emulator>, Store) {
    let geometry = Geometry {
        max_open: Some(8),
        max_active: Some(8),
        unwritten_reads_fail: true,
        ..Geometry::unlimited(zones, blocks, blocks)
    };
    let medium = Medium::memory(&geometry);
    let device = Emulator::new(rt, geometry, medium, DriveOptions::simulated()).unwrap();
    let device = Rc::new(device);
    let (rt2, device2) = (rt.clone(), device.clone());
    let store = rt.block_on(async move {
        let options = FormatOptions { half_bytes: Some(half), ..FormatOptions::default() };
        Store::format(&rt2, device2.clone(), &options).await.unwrap();
        Store::open(&rt2, device2, Options::default()).await.unwrap()
    });
    (device, store)
}

/// What fills the ring.
#[derive(Clone, Copy, Debug)]
enum Mix {
    /// Files smaller than a block.
    Tails,
    /// Empty files with long names.
    Names,
    Directories,
    /// Links to one file.
    Links,
    /// Files that are appended to alternately, one block each.
    Extents,
    /// Files of several blocks, whose checksums are in their entries until they are closed.
    Checksums,
}

const MIXES: [Mix; 6] =
    [Mix::Tails, Mix::Names, Mix::Directories, Mix::Links, Mix::Extents, Mix::Checksums];

fn path(mix: Mix, number: usize) -> String {
    match mix {
        Mix::Names => format!("{number:06}{}", "n".repeat(900)),
        Mix::Directories => format!("{number:06}{}", "d".repeat(200)),
        Mix::Extents => format!("{}.log", number % 7),
        _ => format!("{number:06}.sst"),
    }
}

async fn written(store: &Store, path: &str, bytes: &[u8]) -> Result<(), Error> {
    let id = match store.open_file(path) {
        Ok(id) => id,
        Err(_) => store.create(path, Lifetime::Medium)?,
    };
    let before = store.size(id)?;
    let done = async {
        store.append(id, bytes).await?;
        store.sync(id).await
    };
    let done = done.await;
    if done.is_err() {
        // Take the unplaced bytes back: stopping the store would try to place them again.
        store.truncate(id, before).await?;
    }
    store.close(id).await?;
    done
}

/// Adds one more item. A refused item leaves everything as it was.
async fn add(store: &Store, mix: Mix, number: usize) -> Result<(), Error> {
    let path = path(mix, number);
    let bytes = [number as u8; 3500];
    match mix {
        Mix::Tails => {
            let done = written(store, &path, &bytes).await;
            if done.is_err() {
                let _ = store.remove(&path);
            }
            done
        }
        Mix::Names => {
            let id = store.create(&path, Lifetime::Short)?;
            store.close(id).await?;
            store.sync_names().await
        }
        Mix::Directories => {
            store.make_directory(&path)?;
            store.sync_names().await
        }
        Mix::Links if number == 0 => written(store, &path, &bytes).await,
        Mix::Links => {
            store.link(&self::path(mix, 0), &path)?;
            store.sync_names().await
        }
        Mix::Extents => written(store, &path, &[number as u8; 4096]).await,
        Mix::Checksums => written(store, &path, &[number as u8; 40 * 4096]).await,
    }
}

async fn names(store: &Store) -> usize {
    store.list("").unwrap().len()
}

async fn removed(store: &Store, mix: Mix, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let path = path(mix, number);
        let done = match mix {
            Mix::Directories => store.remove_directory(&path),
            _ => store.remove(&path),
        };
        let gone = |error: &Error| error.kind() == ErrorKind::NotFound;
        assert!(done.as_ref().err().is_none_or(gone), "{mix:?} {path}: {done:?}");
    }
    store.sync_names().await.unwrap();
}

/// Fills a store until it refuses. Then it reports almost no available space; it can be opened,
/// inspected and checked; all acknowledged content is there; and after removals it takes as
/// much again.
#[test]
fn a_full_ring_refuses_in_time_and_always_opens_and_removes() {
    for (zones, blocks) in [(120, 16), (200, 64)] {
        for mix in MIXES {
            let rt = Rt::new(Config::simulated(5));
            let (device, store) = made(&rt, zones, blocks, 1);
            let rt2 = rt.clone();
            rt.block_on(async move {
                let mut count = 0;
                let error = loop {
                    match add(&store, mix, count).await {
                        Ok(()) => count += 1,
                        Err(error) => break error,
                    }
                    store.audit().unwrap();
                    assert!(count < 100_000, "{mix:?}");
                };
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{mix:?}: {error}");
                assert_eq!(store.failed().map(|e| e.to_string()), None, "{mix:?}");
                // What is left is less than one more item needs.
                let left = store.space().available;
                assert!(left < 50 * 4096, "{mix:?}: {count} and {left} bytes left: {error}");
                let found = names(&store).await;
                store.stop().await.unwrap();
                let report = furrow_kv::check(&*device, &CheckOptions::default()).await.unwrap();
                assert!(report.is_ok(), "{mix:?}: {:?}", report.problems);
                let looked = Snapshot::open(device.clone()).await.unwrap();
                assert!(looked.space().available < 50 * 4096, "{mix:?}: {:?}", looked.space());
                // The ring turns each time the store is opened and stopped.
                for _ in 0..4 {
                    let store =
                        Store::open(&rt2, device.clone(), Options::default()).await.unwrap();
                    assert_eq!(names(&store).await, found, "{mix:?}");
                    let before = if matches!(mix, Mix::Directories) { None } else { Some(()) };
                    // The database's own state still has space.
                    if before.is_some() && (count > 40 || blocks > 16) {
                        written(&store, "MANIFEST-000001", &[1; 100]).await.unwrap();
                        store.remove("MANIFEST-000001").unwrap();
                    }
                    store.stop().await.unwrap();
                }
                let store = Store::open(&rt2, device.clone(), Options::default()).await.unwrap();
                if matches!(mix, Mix::Tails) {
                    for number in [0, count / 2, count - 1] {
                        let id = store.open_file(&path(mix, number)).unwrap();
                        let data = store.read(id, 0, 9999).await.unwrap().to_vec();
                        assert_eq!(data, [number as u8; 3500]);
                        store.close(id).await.unwrap();
                    }
                }
                removed(&store, mix, (count / 2..count).rev()).await;
                if !matches!(mix, Mix::Links | Mix::Extents) {
                    for number in count / 2..count * 3 / 4 {
                        add(&store, mix, number).await.unwrap_or_else(|error| {
                            panic!("{mix:?}: {number} of {count} after a removal: {error}")
                        });
                    }
                }
                removed(&store, mix, 0..count).await;
                add(&store, mix, 0).await.unwrap();
                store.audit().unwrap();
                store.stop().await.unwrap();
            });
            rt.clear();
        }
    }
}

/// Small files get blocks before their tails fill the ring: most of the drive can be used.
#[test]
fn tails_leave_the_ring_when_they_would_crowd_it() {
    let rt = Rt::new(Config::simulated(6));
    let (_, store) = made(&rt, 40, 256, 2 << 20);
    rt.block_on(async move {
        let room = store.space().available / 4096;
        let mut count = 0;
        while add(&store, Mix::Tails, count).await.is_ok() {
            count += 1;
        }
        assert!(count as u64 > room * 8 / 10, "{count} files in {room} blocks");
        // Open files whose tails are synced again and again do not fill the ring either.
        removed(&store, Mix::Tails, 0..count).await;
        let mut open = Vec::new();
        for number in 0..600 {
            let id = store.create(&format!("{number}.log"), Lifetime::Short).unwrap();
            store.append(id, &[7; 3000]).await.unwrap();
            store.sync(id).await.unwrap();
            open.push(id);
        }
        for id in open {
            store.append(id, &[8; 3000]).await.unwrap();
            store.sync(id).await.unwrap();
            assert_eq!(store.read(id, 2999, 2).await.unwrap().to_vec(), [7, 8]);
            store.close(id).await.unwrap();
        }
        store.audit().unwrap();
        store.stop().await.unwrap();
    });
    rt.clear();
}

#[test]
fn a_directory_is_not_renamed_to_where_paths_become_too_long() {
    let rt = Rt::new(Config::simulated(7));
    let (device, store) = made(&rt, 40, 64, 1);
    let rt2 = rt.clone();
    rt.block_on(async move {
        store.make_directory("a").unwrap();
        let id = store.create(&format!("a/{}", "x".repeat(1000)), Lifetime::Short).unwrap();
        store.close(id).await.unwrap();
        let error = store.rename("a", &"b".repeat(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        store.rename("a", "bb").unwrap();
        store.stop().await.unwrap();
        let store = Store::open(&rt2, device, Options::default()).await.unwrap();
        assert_eq!(names(&store).await, 1);
    });
    rt.clear();
}
