//! Tests of a full drive: space reported as available can be written, and existing files can
//! be changed.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{on_drive, sound};
use furrow_emu::{Emulator, Options, Pace};
use furrow_fs::{
    Allocate, Fs, Ino, MkfsOptions, MountOptions, NewNode, RenameMode, SetAttr, WriteData,
};
use furrow_rt::{Config, Nanos, Rng, Rt};
use furrow_zone::{ErrorKind, Result};
use std::future::Future;
use std::rc::Rc;

/// A drive of 64 zones, each of which is a superzone.
const FEW: &str = "zones=64,zone-size=2MiB,zone-capacity=2MiB,max-active=14,channels=1";
/// A drive of many small zones.
const MANY: &str = "zones=323,zone-size=512KiB,zone-capacity=512KiB,max-active=14,channels=1";

/// Runs `test` on a drive with the timing of a large-zone drive, so that printed times
/// are realistic.
fn run<F: Future<Output = Result<()>> + 'static>(spec: &str, test: impl FnOnce(Rt, Emulator) -> F) {
    let model = furrow_emu::timing::Preset::named("zn540-1t").unwrap().with(&[]).unwrap();
    let drive = Options { seed: Some(1), ..Options::timed(Pace { model, scale: 1_000 }) };
    on_drive(Rt::new(Config::simulated(1)), spec, (drive, MkfsOptions::default()), test);
}

fn options() -> MountOptions {
    MountOptions { cache_pages: 2048, commit_interval: 5 * Nanos::SECOND, ..Default::default() }
}

async fn mount(rt: &Rt, drive: &Emulator) -> Result<Fs> {
    Fs::mount(rt, Rc::new(drive.clone()), options()).await
}

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    Ok(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino)
}

async fn write(fs: &Fs, ino: Ino, block: u64, blocks: usize, seed: u8) -> Result<()> {
    let bytes = vec![seed; blocks * 4096];
    fs.write(ino, WriteData::copy(fs.pool(), block * 4096, &bytes)).await
}

/// True on success, false if space is lacking.
fn took(done: Result<()>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
        Err(error) => Err(error),
    }
}

/// How a drive is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    /// One file, written one mebibyte at a time.
    Large,
    /// Files of one block.
    Small,
    /// Files of 16 blocks, each of which is synced.
    Synced,
}

/// Fills the drive; returns the names of the files made, and the number of data blocks written.
async fn fill(fs: &Fs, round: u64, how: Fill) -> Result<(Vec<String>, u64)> {
    let (mut names, mut written) = (Vec::new(), 0);
    let blocks = match how {
        Fill::Large => 256,
        Fill::Small => 1,
        Fill::Synced => 16,
    };
    let mut large = None;
    loop {
        // In addition to the data, a file needs an inode, and every 40 files or so need a
        // directory block.
        let enough = fs.statfs().blocks_available >= blocks as u64 + 2;
        let name = format!("{round}-{}", names.len());
        let ino = match large {
            Some(ino) => Ok(ino),
            None => file(fs, &name).await,
        };
        let ino = match ino {
            Ok(ino) => ino,
            Err(error) => {
                assert!(!enough, "{how:?} round {round}: {error}, {:?}", fs.statfs());
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return Ok((names, written));
            }
        };
        if large.is_none() {
            names.push(name);
        }
        let at = if how == Fill::Large { written } else { 0 };
        large = large.or((how == Fill::Large).then_some(ino));
        if !took(write(fs, ino, at, blocks, round as u8).await)? {
            assert!(!enough, "{how:?} round {round}: {written} blocks, {:?}", fs.statfs());
            return Ok((names, written));
        }
        written += blocks as u64;
        if how == Fill::Synced {
            fs.fsync(ino, false).await?;
        }
    }
}

async fn refill(rt: Rt, drive: Emulator, how: Fill) -> Result<()> {
    let fs = mount(&rt, &drive).await?;
    let mut first = 0;
    for round in 0..20 {
        let (names, written) = fill(&fs, round, how).await?;
        first = if round == 0 { written } else { first };
        assert!(written * 100 >= first * 98, "{how:?} round {round}: {written} of {first}");
        let mut rng = Rng::new(round);
        let mut names = names;
        while !names.is_empty() {
            let name = names.swap_remove(rng.below(names.len() as u64) as usize);
            let before = fs.statfs().blocks_available;
            fs.unlink(Ino::ROOT, name.as_bytes()).await?;
            // The directory block and the directory's inode may have become dirty.
            assert!(fs.statfs().blocks_available + 3 > before, "{how:?} round {round}");
        }
    }
    fs.unmount().await?;
    sound(Rc::new(drive)).await
}

#[test]
fn a_full_drive_has_no_more_inodes_in_use_than_were_made() {
    run(FEW, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let in_use = |space: furrow_fs::StatFs| space.inodes - space.inodes_free;
        let before = in_use(fs.statfs());
        fill(&fs, 0, Fill::Large).await?;
        // The nodes of the file with hundreds of pointers each do not count.
        assert_eq!(in_use(fs.statfs()) - before, 1);
        assert!(fs.statfs().inodes_free < 256, "{:?}", fs.statfs());
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

#[test]
fn a_large_file_can_be_written_as_often_as_it_is_removed() {
    run(FEW, |rt, drive| refill(rt, drive, Fill::Large));
}

#[test]
fn small_files_can_be_written_as_often_as_they_are_removed() {
    run(FEW, |rt, drive| refill(rt, drive, Fill::Small));
}

#[test]
fn synced_files_can_be_written_as_often_as_they_are_removed() {
    run(FEW, |rt, drive| refill(rt, drive, Fill::Synced));
}

#[test]
fn what_is_freed_in_steps_can_be_written_at_once() {
    run(MANY, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let (mut names, _) = fill(&fs, 0, Fill::Synced).await?;
        let mut rng = Rng::new(7);
        let mut refused = 0;
        for step in 0..200 {
            let name = names.swap_remove(rng.below(names.len() as u64) as usize);
            fs.unlink(Ino::ROOT, name.as_bytes()).await?;
            let enough = fs.statfs().blocks_available >= 34;
            let ino = match file(&fs, &format!("step {step}")).await {
                Ok(ino) => ino,
                Err(error) if error.kind() == ErrorKind::NoSpace && !enough => continue,
                Err(error) => return Err(error),
            };
            if took(write(&fs, ino, 0, 32, 1).await)? {
                names.push(format!("step {step}"));
            } else {
                assert!(!enough, "step {step}: {:?}", fs.statfs());
                fs.unlink(Ino::ROOT, format!("step {step}").as_bytes()).await?;
                refused += 1;
            }
        }
        assert!(refused > 50, "32 blocks do not fit where 17 were: {refused}");
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

/// Makes files of up to 2^(`sizes` - 1) blocks until not even one block fits.
async fn fill_up(fs: &Fs, kind: &str, sizes: u64) -> Result<Vec<(String, Ino, u64)>> {
    let mut files = Vec::new();
    let mut rng = Rng::new(3);
    loop {
        let name = format!("{kind} {}", files.len());
        let ino = match file(fs, &name).await {
            Ok(ino) => ino,
            Err(error) if error.kind() == ErrorKind::NoSpace => break,
            Err(error) => return Err(error),
        };
        let most = 1 << rng.below(sizes);
        let mut blocks = 0;
        while blocks < most && took(write(fs, ino, blocks, 1, 1).await)? {
            blocks += 1;
        }
        files.push((name, ino, blocks));
    }
    Ok(files)
}

/// Checks that every operation except adding blocks still works, until `times` times the content of
/// the drive was written.
async fn change(rt: Rt, drive: Emulator, sizes: u64, times: u64) -> Result<()> {
    let fs = mount(&rt, &drive).await?;
    // Preallocate a file, to be written only when no other space is left.
    let promised = file(&fs, "promised").await?;
    fs.fallocate(promised, Allocate::Extend, 0, 600 * 4096).await?;
    let mut files = fill_up(&fs, "file", sizes).await?;
    fs.sync().await?;
    files.extend(fill_up(&fs, "late file", sizes).await?);
    for block in 0..600 {
        write(&fs, promised, block, 1, 2).await?;
        if block % 7 == 0 {
            fs.fsync(promised, true).await?;
        }
    }
    files.push(("promised".to_owned(), promised, 600));
    let total: u64 = files.iter().map(|file| file.2).sum();
    let before = fs.counters();
    let mut rng = Rng::new(5);
    let (mut done, mut worst) = (0, 0);
    while done < times * total {
        let chosen = rng.below(files.len() as u64) as usize;
        let (name, ino, blocks) = &mut files[chosen];
        let began = rt.now();
        match rng.below(40) {
            0 => {
                let new = format!("{} again", name.trim_end_matches(" again"));
                let new = if *name == new { name.trim_end_matches(" again").into() } else { new };
                let (old, to) = (name.as_bytes(), new.as_bytes());
                fs.rename((Ino::ROOT, old), (Ino::ROOT, to), RenameMode::Replace).await?;
                *name = new;
            }
            1 => {
                let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                fs.setattr(*ino, mode).await?;
            }
            2 => fs.fsync(*ino, false).await?,
            _ if *blocks == 0 => {}
            _ => {
                let at = rng.below(*blocks);
                let count = (1 << rng.below(9)).min(*blocks - at);
                write(&fs, *ino, at, count as usize, rng.below(255) as u8).await?;
                done += count;
            }
        }
        worst = worst.max(rt.now().since(began));
    }
    fs.sync().await?;
    let after = fs.counters();
    let moved = |c: &furrow_fs::Counters| c.clean_data_blocks + c.clean_node_blocks;
    let user = (after.user_bytes - before.user_bytes) / 4096;
    println!(
        "{total} blocks at 100 %: {user} blocks written, {} moved by cleaning, data and nodes \
         {:.2} times; longest operation {:.1} ms of virtual time",
        moved(&after) - moved(&before),
        (after.data_bytes + after.node_bytes - before.data_bytes - before.node_bytes) as f64
            / 4096.0
            / user as f64,
        worst as f64 / 1e6
    );
    fs.unmount().await?;
    sound(Rc::new(drive)).await
}

#[test]
fn a_full_drive_of_few_zones_takes_every_change() {
    run(FEW, |rt, drive| change(rt, drive, 11, 3));
}

#[test]
fn a_full_drive_of_many_zones_takes_every_change() {
    run(MANY, |rt, drive| change(rt, drive, 11, 3));
}

/// Each block has a node of its own, which changes together with the block.
#[test]
fn a_full_drive_of_small_files_takes_every_change() {
    run(FEW, |rt, drive| change(rt, drive, 1, 1));
}
