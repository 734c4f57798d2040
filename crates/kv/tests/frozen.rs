//! Views of an open store: they keep showing the same content, whatever changes in the store.

#![allow(clippy::unwrap_used, reason = "tests")]

use furrow_emu::{Emulator, Medium, Options as DriveOptions};
use furrow_kv::{FileId, FormatOptions, Frozen, Lifetime, Node, Options, Store};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{ErrorKind, Geometry};
use std::collections::BTreeMap;
use std::rc::Rc;

async fn store(rt: &Rt) -> Store {
    let geometry =
        Geometry { max_open: Some(8), max_active: Some(8), ..Geometry::unlimited(48, 64, 64) };
    let medium = Medium::memory(&geometry);
    let drive = Rc::new(Emulator::new(rt, geometry, medium, DriveOptions::simulated()).unwrap());
    Store::format(rt, drive.clone(), &FormatOptions::default()).await.unwrap();
    Store::open(rt, drive, Options::default()).await.unwrap()
}

fn bytes(rng: &mut Rng, len: u64) -> Vec<u8> {
    (0..len).map(|_| rng.next() as u8).collect()
}

/// Reads the content of a view, by name.
async fn content(frozen: &Frozen) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for (path, node) in frozen.names() {
        let Node::File(id) = node else { continue };
        let (size, mut found) = (frozen.file(id).unwrap().size, Vec::new());
        while (found.len() as u64) < size {
            // Read sizes that are not whole blocks, at offsets off block boundaries.
            let data = frozen.read(id, found.len() as u64, 70_001).await.unwrap();
            assert!(!data.is_empty(), "{path}: {} of {size}", found.len());
            found.extend(data.to_vec());
        }
        assert!(frozen.read(id, size, 1).await.unwrap().is_empty());
        all.insert(path.to_owned(), found);
    }
    all
}

/// Files are appended to, truncated, renamed, replaced and removed at random while several views
/// are open; in all, more is written than the drive holds.
#[test]
fn a_view_shows_what_was_there_at_its_instant() {
    for seed in 0..4 {
        let rt = Rt::new(Config::simulated(seed));
        let engine = rt.clone();
        rt.block_on(async move {
            let store = store(&engine).await;
            let mut rng = Rng::new(seed);
            let mut files: BTreeMap<String, (FileId, Vec<u8>)> = BTreeMap::new();
            let mut views: Vec<(Frozen, BTreeMap<String, Vec<u8>>)> = Vec::new();
            let (mut compared, mut cut) = (0, 0);
            for step in 0..400 {
                let path = format!("f{}", rng.below(6));
                match (rng.below(12), files.get_mut(&path)) {
                    (0, Some(_)) => {
                        let (id, _) = files.remove(&path).unwrap();
                        store.remove(&path).unwrap();
                        store.close(id).await.unwrap();
                    }
                    (1, Some(_)) => {
                        let (id, content) = files.remove(&path).unwrap();
                        let to = format!("f{}", rng.below(6));
                        store.rename(&path, &to).unwrap();
                        if let Some((gone, _)) = files.insert(to, (id, content)) {
                            store.close(gone).await.unwrap();
                        }
                    }
                    (2..4, Some((id, content))) => {
                        // Truncates by at most what a view keeps of a file.
                        let less = rng.below(content.len().min(500_000) as u64 + 1) as usize;
                        content.truncate(content.len() - less);
                        store.truncate(*id, content.len() as u64).await.unwrap();
                        cut += usize::from(!views.is_empty() && less > 0);
                    }
                    (4, Some((id, _))) => store.sync(*id).await.unwrap(),
                    (5, _) if views.len() < 3 => {
                        let now = files.iter().map(|(path, (_, c))| (path.clone(), c.clone()));
                        views.push((store.freeze().unwrap(), now.collect()));
                    }
                    (6, _) if !views.is_empty() => {
                        let (frozen, expected) =
                            views.remove(rng.below(views.len() as u64) as usize);
                        assert!(content(&frozen).await == expected, "seed {seed}, step {step}");
                        compared += 1;
                        drop(frozen);
                        store.audit().unwrap();
                    }
                    (_, Some((id, content))) if content.len() < 1_500_000 => {
                        let len = 1 + rng.below(120_000);
                        let more = bytes(&mut rng, len);
                        store.append(*id, &more).await.unwrap();
                        content.extend(more);
                    }
                    (_, Some(_)) => {}
                    (_, None) => {
                        let id = store.create(&path, Lifetime::Medium).unwrap();
                        files.insert(path, (id, Vec::new()));
                    }
                }
            }
            assert!(compared >= 5 && cut >= 5, "{compared} compared, {cut} cut");
            assert!(store.counters().resets > 0, "no zone was used again");
            views.clear();
            store.audit().unwrap();
            // The blocks that the views kept are released.
            let used = store.space().used;
            let held: u64 = files.values().map(|(_, content)| content.len() as u64).sum();
            store.sync_all().await.unwrap();
            assert!(store.space().used <= held + held / 8 + (1 << 20), "{used} for {held}");
            store.stop().await.unwrap();
        });
    }
}

/// If more is truncated than a view keeps, the view reports an error and returns no other bytes.
#[test]
fn a_view_that_has_lost_bytes_says_so() {
    let rt = Rt::new(Config::simulated(1));
    let engine = rt.clone();
    rt.block_on(async move {
        let store = store(&engine).await;
        let mut rng = Rng::new(9);
        let content = bytes(&mut rng, 2_000_000);
        let id = store.create("f", Lifetime::Medium).unwrap();
        store.append(id, &content).await.unwrap();
        let frozen = store.freeze().unwrap();
        store.truncate(id, 10_000).await.unwrap();
        let other = bytes(&mut rng, 2_000_000);
        store.append(id, &other).await.unwrap();
        let front = frozen.read(id, 0, 8192).await.unwrap().to_vec();
        assert!(front == content[..8192]);
        for at in [8192, 10_000, 1_000_000, 1_999_999] {
            let error = frozen.read(id, at, 5000).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert!(error.to_string().contains("f: the program has cut it from 2000000 to 10000"));
        }
        let unknown = frozen.read(FileId(77), 0, 1).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        drop(frozen);
        store.stop().await.unwrap();
    });
}
