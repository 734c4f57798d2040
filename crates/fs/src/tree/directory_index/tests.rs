//! Tests of the index of directories.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use proptest::prelude::*;

fn entry(ino: u32, hash: u32, name: &[u8]) -> dirent::Entry<'_> {
    dirent::Entry { ino, hash, kind: Kind::File, name, offset: 0 }
}

/// Computes the bytes that `indexes` should have counted.
fn counted(indexes: &DirectoryIndexes) -> usize {
    indexes.of.values().map(Index::bytes).sum()
}

#[test]
fn too_much_is_forgotten_whole_and_what_is_gone_alone() {
    let mut indexes = DirectoryIndexes::new(1);
    indexes.learn(7, 0, None);
    assert!(indexes.knows(7, 0) && !indexes.knows(7, 1) && !indexes.knows(8, 0));
    assert_eq!(indexes.block_with_space(7, 0..1, 255), Some(0));
    let mut page = [0; BLOCK];
    for n in 0..200_000u32 {
        let name = format!("{n}");
        let mut entry = entry(2, n.wrapping_mul(0x9e37_79b9), name.as_bytes());
        dirent::init(&mut page);
        entry.offset = dirent::insert(&mut page, &entry).unwrap();
        indexes.added(7, 0, &entry, &page);
    }
    assert_eq!(indexes.bytes, counted(&indexes));
    let each = indexes.bytes as f64 / 200_000.0;
    assert!((40.0..64.0).contains(&each), "{each} bytes for each name of six");
    assert!(indexes.bytes > BYTES_MIN);
    indexes.tidy();
    assert!(!indexes.knows(7, 0) && indexes.bytes() == 0);
    indexes.learn(7, 0, Some(&page));
    indexes.learn(9, 3, Some(&page));
    indexes.forget(7);
    assert!(!indexes.knows(7, 0) && indexes.knows(9, 3));
    assert_eq!((indexes.of[&9].names.count(), indexes.bytes), (1, counted(&indexes)));
}

#[test]
fn names_of_one_hash_are_told_apart() {
    let mut indexes = DirectoryIndexes::new(1);
    indexes.learn(5, 0, None);
    let mut page = [0; BLOCK];
    dirent::init(&mut page);
    for n in 0..100u32 {
        let name = n.to_string();
        let mut entry = entry(100 + n, 77, name.as_bytes());
        entry.offset = dirent::insert(&mut page, &entry).unwrap();
        indexes.added(5, 0, &entry, &page);
    }
    for n in 0..100u32 {
        let known = indexes.find(5, 77, n.to_string().as_bytes()).unwrap();
        assert_eq!((known.block, known.ino), (0, 100 + n));
    }
    assert_eq!(indexes.find(5, 77, b"100"), None);
    assert_eq!(indexes.find(5, 78, b"1"), None);
}

fn check(indexes: &DirectoryIndexes, pages: &[[u8; BLOCK]; 2], names: &[(u32, Vec<u8>)]) {
    for (hash, name) in names {
        let there = (0..2u32).filter(|block| indexes.knows(5, *block)).find_map(|block| {
            let entry = dirent::find(&pages[block as usize], *hash, name)?;
            Some(Known { block, ino: entry.ino, kind: entry.kind })
        });
        assert_eq!(indexes.find(5, *hash, name), there);
    }
    let known = (0..2u32).filter(|block| indexes.knows(5, *block));
    let count: usize = known.map(|block| dirent::iter(&pages[block as usize]).count()).sum();
    assert_eq!(indexes.of.get(&5).map_or(0, |index| index.names.count()), count);
    assert_eq!(indexes.bytes, counted(indexes));
}

proptest! {
    /// After any sequence of additions, replacements and removals, the names in the index are the
    /// names in the pages.
    #[test]
    fn what_is_known_is_what_is_there(
        ops in prop::collection::vec((0u8..10, 0u32..2, 0u8..120), 1..400),
    ) {
        let mut indexes = DirectoryIndexes::new(1);
        let mut pages = [[0; BLOCK]; 2];
        pages.iter_mut().for_each(dirent::init);
        indexes.learn(5, 0, None);
        // More names than a page holds share a few hashes; no name is in both blocks.
        let names: Vec<(u32, Vec<u8>)> = (0..120u32)
            .map(|n| {
                let hash = if n < 60 { n % 7 } else { n.wrapping_mul(0x9e37_79b9) };
                (hash, format!("{n}{}", "x".repeat(n as usize % 60 * 4)).into_bytes())
            })
            .collect();
        for (op, block, n) in ops {
            let (hash, name) = &names[usize::from(n)];
            let (hash, block) = (*hash, if op == 9 { block } else { u32::from(n) % 2 });
            let page = &mut pages[block as usize];
            let there = dirent::find(page, hash, name).map(|entry| entry.offset);
            match (op, there) {
                (0..5, None) => {
                    let mut entry = entry(3, hash, name);
                    if indexes.knows(5, block) {
                        let room = indexes.block_with_space(5, block..block + 1, name.len());
                        let fits = dirent::probe(page, hash, name) == dirent::Probe::Fits;
                        prop_assert_eq!(room.is_some(), fits);
                    }
                    if let Some(offset) = dirent::insert(page, &entry) {
                        entry.offset = offset;
                        indexes.added(5, block, &entry, page);
                    }
                }
                (0..7, Some(offset)) => {
                    dirent::remove(page, hash, name);
                    indexes.removed(5, (block, offset), hash, page);
                }
                (7..9, Some(offset)) => {
                    let ino = 100 + u32::from(n);
                    dirent::replace(page, hash, name, ino, Kind::Fifo);
                    let same = entry(ino, hash, name);
                    let replaced = dirent::Entry { kind: Kind::Fifo, offset, ..same };
                    indexes.replaced(5, block, &replaced);
                }
                (9, _) => indexes.learn(5, block, Some(page)),
                _ => {}
            }
            check(&indexes, &pages, &names);
        }
    }
}
