//! Tests of directory blocks, and of whole directories kept in memory.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SEED: u64 = 0x0123_4567_89ab_cdef;

fn entry(name: &[u8], ino: u32) -> Entry<'_> {
    Entry { ino, hash: hash(SEED, name), kind: Kind::File, name, offset: 0 }
}

fn empty() -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    init(&mut block);
    block
}

#[test]
fn the_hash_is_the_documented_one() {
    // The expected hashes were computed from the module's header with big integers, outside
    // this code.
    assert_eq!(hash(0, b"a"), 0xae92_3956);
    assert_eq!(hash(SEED, b"Makefile"), 0x8b71_2309);
    assert_eq!(hash(SEED, b"furrow-file-system"), 0x5b78_aafa);
}

#[test]
fn the_hash_mixes_well() {
    // Names that differ in one digit: check the distribution of the low bits, which choose buckets,
    // and that hashes rarely collide.
    let n = 1 << 16;
    let mut buckets = vec![0u32; 256];
    let mut all: Vec<u32> = (0..n).map(|i| hash(SEED, format!("f{i}").as_bytes())).collect();
    all.iter().for_each(|h| buckets[(h % 256) as usize] += 1);
    let expected = f64::from(n) / 256.0;
    let chi: f64 = buckets.iter().map(|&b| (f64::from(b) - expected).powi(2) / expected).sum();
    assert!((160.0..360.0).contains(&chi), "chi-square of 255 degrees of freedom: {chi}");
    all.sort_unstable();
    let collisions = all.windows(2).filter(|w| w[0] == w[1]).count();
    assert!(collisions <= 4, "{collisions} of 65,536 collide (0.5 expected)");
    let flipped = (0..64)
        .map(|bit| (hash(SEED, b"some name") ^ hash(SEED ^ 1 << bit, b"some name")).count_ones());
    assert!((12.0..20.0).contains(&(f64::from(flipped.sum::<u32>()) / 64.0)));
}

#[test]
fn names_are_validated() {
    assert_eq!(validate_name(b""), Err(NameError::Empty));
    assert_eq!(validate_name(b".."), Err(NameError::Reserved));
    assert_eq!(validate_name(&[b'x'; 256]), Err(NameError::TooLong(256)));
    assert_eq!(validate_name(b"a/b"), Err(NameError::Forbidden { byte: b'/', at: 1 }));
    assert_eq!(validate_name(b"ab\0"), Err(NameError::Forbidden { byte: 0, at: 2 }));
    assert_eq!(validate_name(&[0xff; 255]), Ok(()));
    assert_eq!(validate_name(b"..."), Ok(()));
}

#[test]
fn levels_tile_the_file() {
    let mut next = 0;
    for level in 0..MAX_LEVELS {
        assert_eq!(blocks(level), next, "level {level}");
        assert_eq!(bucket_block(level, 0), next);
        assert_eq!(bucket_block(level, buckets(level) - 1), next + 2 * buckets(level) - 2);
        assert_eq!(levels_of(next + 1), level + 1);
        next += 2 * buckets(level);
        assert_eq!(levels_of(next), level + 1);
    }
    assert_eq!((levels_of(0), levels_of(u32::MAX)), (0, MAX_LEVELS));
    for h in [0, 1, 0x1234_5678, u32::MAX] {
        let all: Vec<u32> = candidates(6, h).collect();
        assert_eq!(all.len(), 12);
        assert!(all.iter().all(|&b| belongs(b, h)));
        assert!((0..blocks(6)).filter(|b| !all.contains(b)).all(|b| !belongs(b, h)));
    }
    assert!(!belongs(u32::MAX, 7));
}

#[test]
fn cookies_go_on_where_they_stopped() {
    let mut block = empty();
    for i in 0..100u32 {
        insert(&mut block, &entry(format!("name{i}").as_bytes(), i + 1)).unwrap();
    }
    for stop in 0..100 {
        let all: Vec<_> = iter(&block).collect();
        let (b, offset) = decode_cookie(cookie_after(77, all[stop].offset)).unwrap();
        assert_eq!(b, 77);
        let rest: Vec<_> = iter_from(&block, offset).collect();
        assert_eq!(rest, all[stop + 1..]);
        assert_eq!(decode_cookie(cookie(77, all[stop].offset)), Some((77, all[stop].offset)));
    }
    assert_eq!(decode_cookie(3), None);
    assert_eq!(decode_cookie(u64::MAX), None);
}

/// A directory in memory that uses these functions as the engine does.
#[derive(Default)]
struct Directory {
    blocks: BTreeMap<u32, Box<[u8; BLOCK]>>,
    levels: u8,
    probes: u64,
}

impl Directory {
    fn find(&mut self, name: &[u8]) -> Option<u32> {
        let h = hash(SEED, name);
        for index in candidates(self.levels, h) {
            let Some(block) = self.blocks.get(&index) else { continue };
            self.probes += 1;
            if let Some(e) = find(block, h, name) {
                return Some(e.ino);
            }
        }
        None
    }

    fn insert(&mut self, name: &[u8], ino: u32) {
        let entry = entry(name, ino);
        loop {
            for index in candidates(self.levels, entry.hash) {
                let block = self.blocks.entry(index).or_insert_with(|| Box::new([0; BLOCK]));
                if insert(block, &entry).is_some() {
                    return;
                }
            }
            self.levels += 1;
            assert!(self.levels <= MAX_LEVELS);
        }
    }

    fn remove(&mut self, name: &[u8]) -> Option<u32> {
        let h = hash(SEED, name);
        candidates(self.levels, h)
            .find_map(|index| remove(self.blocks.get_mut(&index)?, h, name))
            .map(|(ino, _)| ino)
    }

    fn check(&self) {
        for (&index, block) in &self.blocks {
            check(block).unwrap();
            check_names(block, SEED, index).unwrap();
        }
    }
}

#[test]
fn a_million_names() {
    let names = |i: u32| format!("IMG_2026-{i:07}.jpeg");
    let n = 1_000_000;
    let mut dir = Directory::default();
    for i in 0..n {
        dir.insert(names(i).as_bytes(), i + 1);
    }
    dir.check();
    let sample = || (0..n).step_by(8);
    let sampled = sample().count() as f64;
    for i in sample() {
        assert_eq!(dir.find(names(i).as_bytes()), Some(i + 1));
    }
    let hits = dir.probes as f64 / sampled;
    dir.probes = 0;
    for i in sample() {
        assert_eq!(dir.find(format!("absent{i}").as_bytes()), None);
    }
    let misses = dir.probes as f64 / sampled;
    let used = dir.blocks.len();
    let fill = f64::from(n) * space(names(0).len()) as f64 / (used * BLOCK) as f64;
    // A large directory must keep look-ups cheap and its blocks well filled.
    assert_eq!(dir.levels, 8);
    assert!((12.0..13.0).contains(&hits), "{hits} probes per hit");
    assert!((14.0..14.1).contains(&misses), "{misses} probes per miss");
    assert!(fill > 0.75, "{used} blocks are {fill} full");
    for i in sample() {
        assert_eq!(dir.remove(names(i).as_bytes()), Some(i + 1));
        assert_eq!(dir.find(names(i).as_bytes()), None);
    }
    dir.check();
    let left: usize = dir.blocks.values().map(|block| iter(block).count()).sum();
    assert_eq!(left, n as usize - sample().count());
}

#[test]
fn checks_name_what_is_wrong() {
    let mut good = empty();
    let first = insert(&mut good, &entry(b"one", 1)).unwrap();
    let second = usize::from(insert(&mut good, &entry(b"two", 2)).unwrap());
    assert_eq!((first, check(&good)), (0, Ok(())));
    let broken = |at: usize, value: u8| {
        let mut block = good;
        block[at] = value;
        check(&block).unwrap_err()
    };
    assert!(matches!(broken(second + 9, 0xff), Error::Length { .. }));
    assert!(matches!(broken(second + 8, 0), Error::Length { .. }));
    assert!(matches!(broken(second, 0), Error::Free { offset: 16 }));
    assert!(matches!(broken(11, 8), Error::Kind { offset: 0, found: 8 }));
    assert!(matches!(broken(10, 0), Error::Name { error: NameError::Empty, .. }));
    assert!(matches!(broken(12, b'/'), Error::Name { .. }));
    assert!(matches!(broken(4000, 1), Error::Slack { .. }));
    assert!(check(&[0; BLOCK]).is_err());
    let mut block = good;
    block[4] ^= 1;
    assert!(matches!(check_names(&block, SEED, 0), Err(Error::Hash { offset: 0, .. })));
    assert!(matches!(check_names(&good, SEED, u32::MAX), Err(Error::Bucket { .. })));
    let mut block = good;
    insert(&mut block, &entry(b"one", 3)).unwrap();
    assert!(matches!(check_names(&block, SEED, 0), Err(Error::Duplicate { .. })));
}

proptest! {
    #[test]
    fn any_bytes_are_safe(
        mut bytes in proptest::collection::vec(any::<u8>(), BLOCK),
        lens in proptest::collection::vec((0usize..BLOCK / 4, 0u16..80), 0..60),
        name in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        // Random bytes rarely form records, so plant plausible lengths.
        for (at, len) in lens {
            if at * 4 + 10 <= BLOCK {
                bytes[at * 4 + 8..at * 4 + 10].copy_from_slice(&(len * 4).to_le_bytes());
            }
        }
        let mut block: [u8; BLOCK] = bytes.try_into().unwrap();
        let _ = check(&block);
        let _ = check_names(&block, SEED, 3);
        let listed: Vec<(u32, Vec<u8>)> =
            iter(&block).map(|e| (e.hash, e.name.to_vec())).collect();
        for (h, name) in listed {
            find(&block, h, &name);
            replace(&mut block, h, &name, 9, Kind::Fifo);
            remove(&mut block, h, &name);
            let _ = check(&block);
        }
        if validate_name(&name).is_ok() {
            insert(&mut block, &entry(&name, 5));
        }
        is_empty(&block);
        has_space(&block, 255);
        probe(&block, hash(SEED, b"x"), b"x");
    }

    #[test]
    fn block_agrees_with_a_map(
        ops in proptest::collection::vec((0u8..10, 0u8..60, 1u32..1000), 1..400),
        long in 1usize..250,
    ) {
        let name = |n: u8| {
            let mut name = format!("{n}-").into_bytes();
            name.resize(name.len() + usize::from(n) * long / 60, b'x');
            name
        };
        let mut block = [0; BLOCK];
        let mut map = BTreeMap::<Vec<u8>, u32>::new();
        let mut offsets = BTreeMap::<Vec<u8>, u16>::new();
        for (op, n, ino) in ops {
            let name = name(n);
            let h = hash(SEED, &name);
            if op < 5 && !map.contains_key(&name) {
                let room = has_space(&block, name.len());
                let probed = if room { Probe::Fits } else { Probe::Full };
                prop_assert_eq!(probe(&block, h, &name), probed);
                let before = block;
                let placed = insert(&mut block, &entry(&name, ino));
                prop_assert_eq!(room, placed.is_some());
                if let Some(offset) = placed {
                    map.insert(name.clone(), ino);
                    offsets.insert(name.clone(), offset);
                } else {
                    prop_assert_eq!(before, block);
                    let used: usize = map.keys().map(|n| space(n.len())).sum();
                    prop_assert!(used + space(name.len()) > BLOCK / 2, "refused at {} bytes", used);
                }
                if let Some(found) = find(&block, h, &name) {
                    prop_assert_eq!(probe(&block, h, &name), Probe::Found(found));
                }
            } else if op < 8 {
                let removed = remove(&mut block, h, &name).map(|(ino, _)| ino);
                prop_assert_eq!(removed, map.remove(&name));
                offsets.remove(&name);
            } else {
                let old = replace(&mut block, h, &name, ino, Kind::Directory);
                prop_assert_eq!(old.map(|(ino, _)| ino), map.get(&name).copied());
                map.entry(name.clone()).and_modify(|i| *i = ino);
            }
            prop_assert_eq!(find(&block, h, &name).map(|e| e.ino), map.get(&name).copied());
            if block != [0; BLOCK] {
                check(&block).unwrap();
                check_names(&block, SEED, 0).unwrap();
            }
            let listed: BTreeMap<Vec<u8>, u32> =
                iter(&block).map(|e| (e.name.to_vec(), e.ino)).collect();
            prop_assert_eq!(&listed, &map);
            // Check that no record ever moves.
            for e in iter(&block) {
                prop_assert_eq!(offsets[e.name], e.offset);
            }
        }
    }
}
