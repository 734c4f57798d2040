//! Tests that the work a hostile user can cause before other tasks run is bounded.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, SMALL, sound};
use furrow_emu::{Emulator, Options};
use furrow_fs::dump::{Part, Value, dump};
use furrow_fs::tree::dirent;
use furrow_fs::{
    Allocate, DirEntry, Fs, Ino, MkfsOptions, MountOptions, NewNode, RenameMode, Seek, SetAttr,
    WriteData,
};
use furrow_rt::{Config, Nanos, PAGE_SIZE, Rt};
use furrow_zone::{ErrorKind, Result};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

/// Maximum number of blocks, nodes and names looked at in one stretch, whatever a user does.
const MOST: u64 = 40_000;
/// The same limit for listing, looking up, searching and copying.
const MOST_LOOKING: u64 = 16_000;

fn on_drive<F: Future<Output = Result<()>> + 'static>(
    spec: &str,
    test: impl FnOnce(Rt, Emulator) -> F,
) {
    let (rt, made) =
        (Rt::new(Config::simulated(5)), (Options::simulated(), MkfsOptions::default()));
    common::on_drive(rt, spec, made, test);
}

async fn mount(rt: &Rt, drive: &Emulator, cache_pages: usize) -> Result<Fs> {
    let options = MountOptions { cache_pages, ..common::quiet() };
    Fs::mount(rt, Rc::new(drive.clone()), options).await
}

/// Checks that the longest stretch so far is at most `most`.
fn bounded(fs: &Fs, what: &str, most: u64) {
    let counters = fs.counters();
    println!("{what}: {} units in one stretch", counters.longest_stretch_units);
    assert!(
        counters.longest_stretch_units <= most,
        "{what}: {} units",
        counters.longest_stretch_units
    );
}

async fn seed_of(drive: &Emulator) -> u64 {
    let dumped = dump(Rc::new(drive.clone()), &Part::Superblock).await.unwrap();
    seed_in(&dumped.value).expect("a superblock has a seed")
}

fn seed_in(value: &Value) -> Option<u64> {
    match value {
        Value::Fields(fields) => fields.iter().find_map(|(name, value)| match value {
            Value::Text(text) if *name == "hash_seed" => {
                u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
            }
            other => seed_in(other),
        }),
        Value::List(values) => values.iter().find_map(seed_in),
        _ => None,
    }
}

/// Makes names of 248 bytes, 15 to a block, whose hashes have the same last 16 bits: all of them
/// are in the same bucket on each level.
fn colliding(seed: u64, count: usize) -> Vec<Vec<u8>> {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let step = |state: u64, chunk: u64| fold(state ^ chunk, K) ^ K.rotate_left(23);
    let last = |state: u64| (fold(state ^ (state >> 32), 0xD6E8_FEB8_6659_FD93) >> 32) as u32;
    // All names have the same front, so only their ends need hashing here.
    let front = vec![b'n'; 240];
    let begun = seed ^ 248u64.wrapping_mul(K);
    let front_state = (0..30).fold(begun, |state, _| step(state, u64::from_le_bytes([b'n'; 8])));
    let tail = |n: u64| {
        [0, 1, 2, 3, 4, 5, 6, 7]
            .map(|i| b"abcdefghijklmnopqrstuvwxyz234567"[(n >> (5 * i) & 31) as usize])
    };
    let mut names = Vec::new();
    for n in 0.. {
        let end = tail(n);
        if last(step(front_state, u64::from_le_bytes(end))) & 0xffff == 0x1234 {
            let name = [front.as_slice(), &end].concat();
            assert_eq!(dirent::hash(seed, &name) & 0xffff, 0x1234);
            names.push(name);
            if names.len() == count {
                break;
            }
        }
    }
    names
}

async fn listed(fs: &Fs, dir: Ino) -> Result<Vec<DirEntry>> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let some = fs.readdir(dir, cookie, 100).await?;
        let Some(last) = some.last() else { return Ok(all) };
        cookie = last.cookie;
        all.extend(some);
    }
}

/// Each drive has its own key for hashing names, so that nobody can choose colliding names without
/// reading the drive.
#[test]
fn each_file_system_hashes_names_with_a_key_of_its_own() {
    let key = |seed| {
        let found = Rc::new(Cell::new(0));
        let (rt, made) =
            (Rt::new(Config::simulated(seed)), (Options::simulated(), MkfsOptions::default()));
        let put = found.clone();
        common::on_drive(rt, SMALL, made, |_, drive| async move {
            put.set(seed_of(&drive).await);
            Ok(())
        });
        found.get()
    };
    assert_ne!(key(1), key(2));
    assert_ne!(dirent::hash(key(1), b"name"), dirent::hash(key(2), b"name"));
}

/// Names chosen to be in the same bucket on each level make a directory of 32 levels: sixty of its
/// three million blocks exist.
#[test]
fn a_directory_of_chosen_names_holds_nobody_up() {
    on_drive(SMALL, |rt, drive| async move {
        let names = colliding(seed_of(&drive).await, 961);
        let fs = mount(&rt, &drive, 4_096).await?;
        let dir = fs.create(Ino::ROOT, b"dir", &NewNode::directory()).await?.ino;
        let one = fs.create(dir, &names[0], &NewNode::file()).await?.ino;
        for name in &names[1..960] {
            fs.link(one, dir, name).await?;
        }
        // The directory is full for such names, but not for others.
        let refused = fs.link(one, dir, &names[960]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        fs.link(one, dir, b"another").await?;
        assert_eq!(fs.lookup(dir, &names[960]).await.unwrap_err().kind(), ErrorKind::NotFound);
        let there: BTreeSet<Vec<u8>> =
            listed(&fs, dir).await?.into_iter().map(|entry| entry.name).collect();
        assert_eq!(there.len(), 961);
        assert!(names[..960].iter().all(|name| there.contains(name)));
        bounded(&fs, "960 chosen names", MOST_LOOKING);
        assert!(fs.memory().0.directories < 2 << 20, "{:?}", fs.memory().0);
        fs.unmount().await?;
        // Repeat with an empty cache of little capacity.
        let fs = mount(&rt, &drive, 64).await?;
        assert_eq!(listed(&fs, dir).await?.len(), 961);
        for name in &names[..960] {
            fs.lookup(dir, name).await?;
        }
        for name in &names[..960] {
            fs.unlink(dir, name).await?;
        }
        assert_eq!(listed(&fs, dir).await?.len(), 1);
        bounded(&fs, "the same from the drive", MOST_LOOKING);
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

/// A directory must not move below itself: the check takes as many steps as the tree is deep.
#[test]
fn a_move_far_down_a_deep_tree_holds_nobody_up() {
    const DEPTH: usize = 6_000;
    on_drive("zones=96,zone-size=4MiB,max-active=14,channels=1", |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let mut at = Ino::ROOT;
        for _ in 0..DEPTH {
            at = fs.create(at, b"d", &NewNode::directory()).await?.ino;
        }
        move_far_down(&fs, at, b"warm").await?;
        fs.unmount().await?;
        // Repeat with an empty cache of little capacity.
        let fs = mount(&rt, &drive, 64).await?;
        let reads = drive.counters().reads;
        move_far_down(&fs, at, b"cold").await?;
        let reads = drive.counters().reads - reads;
        assert!(reads < 8 * DEPTH as u64, "{reads} reads");
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

/// Moves a directory from the root to `at`, and checks that a directory above `at` cannot move
/// below it.
async fn move_far_down(fs: &Fs, at: Ino, name: &[u8]) -> Result<()> {
    let (root, replace) = (Ino::ROOT, RenameMode::Replace);
    fs.create(root, name, &NewNode::directory()).await?;
    let refused = fs.rename((root, b"d"), (at, b"top"), replace).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    fs.rename((root, name), (at, name), replace).await?;
    let moved = fs.lookup(at, name).await?.ino;
    assert_eq!(fs.parent(moved).await?, at);
    // When two names are exchanged, neither directory may be above the other.
    for (from, to) in [((root, &b"d"[..]), (at, name)), ((at, name), (root, &b"d"[..]))] {
        let wrong = fs.rename(from, to, RenameMode::Exchange).await.unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Invalid, "{wrong}");
    }
    bounded(fs, "moves far down a deep tree", MOST_LOOKING);
    Ok(())
}

/// Conflicting moves into deep directories complete one after the other, and no two of them form a
/// cycle of directories.
#[test]
fn two_moves_make_no_ring() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let mut ends = Vec::new();
        for name in [b"a", b"b"] {
            let mut at = fs.create(Ino::ROOT, name, &NewNode::directory()).await?.ino;
            for _ in 0..1_000 {
                at = fs.create(at, b"d", &NewNode::directory()).await?.ino;
            }
            ends.push(at);
        }
        let moves: Vec<_> = [(b"a", ends[1]), (b"b", ends[0])]
            .map(|(name, to)| {
                let fs = fs.clone();
                rt.spawn(async move {
                    fs.rename((Ino::ROOT, name), (to, name), RenameMode::Replace).await
                })
            })
            .into();
        let mut refused = 0;
        for done in moves {
            refused += usize::from(done.await.is_err_and(|e| e.kind() == ErrorKind::Invalid));
        }
        assert_eq!(refused, 1);
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

/// Offset of block `n` of a file with one block in each leaf: each of these blocks costs as much
/// work as 504 adjacent blocks.
fn far(n: u64) -> u64 {
    n * 504 * PAGE_SIZE as u64
}

#[test]
fn a_sparse_file_holds_nobody_up() {
    const LEAVES: u64 = 4_000;
    on_drive("zones=96,zone-size=4MiB,max-active=14,channels=1", |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
        let put = async |n: u64| {
            fs.write(file, WriteData::copy(fs.pool(), far(n), &[n as u8; 100])).await
        };
        for n in 0..LEAVES {
            put(n).await?;
        }
        bounded(&fs, "sparse writes", MOST_LOOKING);
        assert_eq!(fs.seek(file, far(7) + 4096, Seek::Data).await?, Some(far(8)));
        assert_eq!(fs.seek(file, far(7), Seek::Hole).await?, Some(far(7) + 4096));
        // Punch all blocks but the last: the leaves stay, and hold only holes.
        fs.fallocate(file, Allocate::Punch, 0, far(LEAVES - 1)).await?;
        assert_eq!(fs.seek(file, 0, Seek::Data).await?, Some(far(LEAVES - 1)));
        assert_eq!(fs.seek(file, 0, Seek::Hole).await?, Some(0));
        let copy = fs.create(Ino::ROOT, b"copy", &NewNode::file()).await?.ino;
        fs.copy_range((file, 0), (copy, 0), 64 << 20).await?;
        bounded(&fs, "a file of holes", MOST_LOOKING);
        for n in 0..LEAVES {
            put(n).await?;
        }
        fs.fsync(file, false).await?;
        let none = SetAttr { size: Some(0), ..SetAttr::default() };
        fs.setattr(file, none).await?;
        bounded(&fs, "a sparse file synced and truncated", 4 * MOST);
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

#[test]
fn large_files_hold_nobody_up() {
    const PART: usize = 1_000 * PAGE_SIZE;
    on_drive("zones=96,zone-size=8MiB,max-active=14,channels=1", |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
        let fill = async |file: Ino| {
            for part in 0..30 {
                let at = (part * PART) as u64;
                fs.write(file, WriteData::copy(fs.pool(), at, &vec![part as u8; PART])).await?;
            }
            Ok::<(), furrow_zone::Error>(())
        };
        fill(file).await?;
        bounded(&fs, "writes of a thousand blocks", MOST);
        fs.fsync(file, false).await?;
        bounded(&fs, "an fsync of 30,000 blocks", MOST);
        let other = fs.create(Ino::ROOT, b"other", &NewNode::file()).await?.ino;
        fill(other).await?;
        fs.sync().await?;
        bounded(&fs, "a checkpoint of 30,000 blocks", MOST);
        let copy = fs.create(Ino::ROOT, b"copy", &NewNode::file()).await?.ino;
        assert_eq!(fs.copy_range((file, 0), (copy, 0), 64 << 20).await?, 64 << 20);
        fs.fallocate(copy, Allocate::Extend, 64 << 20, 32 << 20).await?;
        fs.fallocate(copy, Allocate::Zero, 0, 96 << 20).await?;
        fs.fallocate(copy, Allocate::Punch, 0, 96 << 20).await?;
        bounded(&fs, "copying, allocating and punching", MOST);
        for name in ["file", "other", "copy"] {
            fs.unlink(Ino::ROOT, name.as_bytes()).await?;
        }
        bounded(&fs, "removing them", 3 * MOST);
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

/// Renaming a file back and forth makes no page dirty, but is logged each time.
#[test]
fn a_name_moved_to_and_fro_takes_no_memory_without_end() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 4_096).await?;
        let names = [vec![b'a'; 255], vec![b'b'; 255]];
        fs.create(Ino::ROOT, &names[0], &NewNode::file()).await?;
        let other = fs.create(Ino::ROOT, b"other", &NewNode::file()).await?.ino;
        for n in 0..40_000 {
            let (from, to) = (&names[n % 2], &names[1 - n % 2]);
            fs.rename((Ino::ROOT, from), (Ino::ROOT, to), RenameMode::Replace).await?;
            if n % 64 == 0 {
                rt.sleep(10 * Nanos::MICRO).await;
            }
        }
        let most = fs.memory().1.changes;
        assert!(most < 12 << 20, "{most} bytes of changes");
        fs.fsync(other, false).await?;
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

/// While one task takes long, other tasks can run after each of its stretches.
#[test]
fn others_have_turns_meanwhile() {
    on_drive("zones=96,zone-size=4MiB,max-active=14,channels=1", |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
        for part in 0..20u64 {
            let data = WriteData::copy(fs.pool(), part << 20, &vec![1; 1 << 20]);
            fs.write(file, data).await?;
        }
        let (turns, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let other = {
            let (turns, over, rt) = (turns.clone(), over.clone(), rt.clone());
            rt.clone().spawn(async move {
                while !over.get() {
                    turns.set(turns.get() + 1);
                    rt.yield_now().await;
                }
            })
        };
        let before = turns.get();
        assert_eq!(fs.seek(file, 0, Seek::Hole).await?, Some(20 << 20));
        let during = turns.get() - before;
        over.set(true);
        other.await;
        assert!(during >= 2, "{during} turns for a search through 5,120 blocks");
        fs.unmount().await
    });
}

/// A directory of chosen names is consistent. Real times are printed with `--nocapture`; no check
/// depends on them.
#[test]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real time")]
fn how_long_a_directory_of_chosen_names_takes() {
    use std::time::{Duration, Instant};
    let (rt, made) = (Rt::new(Config::real()), (Options::fast(), MkfsOptions::default()));
    common::on_drive(rt, SMALL, made, |rt, drive| async move {
        let names = colliding(seed_of(&drive).await, 960);
        let longest = |what: &str, times: Vec<Duration>| {
            let (sum, most) = (times.iter().sum::<Duration>(), times.iter().max().unwrap());
            println!("{what}: {} calls, {sum:.2?} in all, the longest {most:.2?}", times.len());
        };
        for cache_pages in [4_096, 64] {
            println!("cache of {cache_pages} pages");
            let fs = mount(&rt, &drive, cache_pages).await?;
            let name = format!("dir {cache_pages}");
            let dir = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::directory()).await?.ino;
            let mut times = Vec::new();
            for name in &names {
                let begun = Instant::now();
                fs.create(dir, name, &NewNode::file()).await?;
                times.push(begun.elapsed());
            }
            longest("create", times);
            let (mut cookie, mut times, mut count) = (0, Vec::new(), 0);
            loop {
                let begun = Instant::now();
                let some = fs.readdir(dir, cookie, 100).await?;
                times.push(begun.elapsed());
                let Some(last) = some.last() else { break };
                (cookie, count) = (last.cookie, count + some.len());
            }
            assert_eq!(count, names.len());
            longest("readdir", times);
            let mut times = Vec::new();
            for name in &names {
                let begun = Instant::now();
                fs.lookup(dir, name).await?;
                times.push(begun.elapsed());
            }
            longest("lookup", times);
            let counters = fs.counters();
            let took = Duration::from_nanos(counters.longest_stretch_ns);
            println!("longest stretch: {} units, {took:.2?}", counters.longest_stretch_units);
            fs.unmount().await?;
        }
        Ok(())
    });
}
