//! Tests of node changes in sync records: what an fsync writes, and what a crash leaves.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, quiet, sound};
use furrow_emu::{Emulator, Fates, Options};
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, SetAttr, WriteData, XattrMode};
use furrow_policy::{FsVariant, SyncRecord};
use furrow_rt::{Config, PAGE_SIZE, Rng, Rt};
use furrow_zone::Result;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

const SPEC: &str = "zones=64,zone-size=1MiB,max-active=14,channels=1,volatile-cache=on";

fn on_drive<F: Future<Output = Result<()>> + 'static>(test: impl FnOnce(Rt, Emulator) -> F) {
    let (rt, made) = (Rt::new(Config::simulated(7)), (Options::fast(), MkfsOptions::default()));
    common::on_drive(rt, SPEC, made, test);
}

async fn write(fs: &Fs, ino: Ino, block: u64, tag: u8) -> Result<()> {
    let data = WriteData::copy(fs.pool(), block * PAGE_SIZE as u64, &[tag; PAGE_SIZE]);
    fs.write(ino, data).await
}

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    Ok(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino)
}

/// The drive after a power cut now; `seed` decides which unflushed writes are lost.
fn cut(rt: &Rt, drive: &Emulator, seed: u64) -> Rc<Emulator> {
    let left = drive.snapshot().power_cut(&Fates::seeded(seed));
    Rc::new(Emulator::from_snapshot(rt, &left, Options::fast()))
}

/// Counts the blocks that 10 fsyncs write, each after one block of a file of `blocks` blocks
/// was overwritten.
async fn blocks_written(rt: &Rt, drive: &Emulator, record: SyncRecord, blocks: u64) -> Result<u64> {
    let variant = FsVariant { record, ..FsVariant::default() };
    let fs = Fs::mount(rt, Rc::new(drive.clone()), MountOptions { variant, ..quiet() }).await?;
    let ino = file(&fs, &format!("{record:?} {blocks}")).await?;
    for block in 0..blocks {
        write(&fs, ino, block, 1).await?;
    }
    fs.sync().await?;
    let before = drive.counters().blocks_written;
    for n in 0..10 {
        write(&fs, ino, n * 7 % blocks, 2).await?;
        fs.fsync(ino, false).await?;
    }
    let written = drive.counters().blocks_written - before;
    fs.unmount().await?;
    Ok(written)
}

/// An fsync of one block writes the block and a record. In the variant with whole nodes it also
/// writes the inode and, if the file has more blocks than an inode points to, a leaf.
#[test]
fn an_fsync_of_a_block_writes_no_node() {
    on_drive(|rt, drive| async move {
        for (record, small, large) in [(SyncRecord::Changes, 20, 20), (SyncRecord::AtOnce, 30, 40)]
        {
            assert_eq!(blocks_written(&rt, &drive, record, 9).await?, small, "{record:?}");
            assert_eq!(blocks_written(&rt, &drive, record, 900).await?, large, "{record:?}");
        }
        sound(Rc::new(drive)).await
    });
}

/// An fsync of a new file writes its blocks and a record, and in the variant with whole nodes also
/// the inode.
#[test]
fn an_fsync_of_a_new_file_writes_no_node() {
    on_drive(|rt, drive| async move {
        for (record, expected) in [(SyncRecord::Changes, 50), (SyncRecord::AtOnce, 60)] {
            let variant = FsVariant { record, ..FsVariant::default() };
            let options = MountOptions { variant, ..quiet() };
            let fs = Fs::mount(&rt, Rc::new(drive.clone()), options).await?;
            let before = drive.counters().blocks_written;
            for n in 0..10 {
                let ino = file(&fs, &format!("{record:?} {n}")).await?;
                for block in 0..4 {
                    write(&fs, ino, block, 1).await?;
                }
                fs.fsync(ino, false).await?;
            }
            assert_eq!(drive.counters().blocks_written - before, expected, "{record:?}");
            let left = cut(&rt, &drive, 1);
            sound(left.clone()).await?;
            let again = Fs::mount(&rt, left, quiet()).await?;
            for n in 0..10 {
                let name = format!("{record:?} {n}");
                let ino = again.lookup(Ino::ROOT, name.as_bytes()).await?.ino;
                assert_eq!(state(&again, ino).await?, (4 * PAGE_SIZE as u64, vec![1; 4]));
            }
            again.unmount().await?;
            fs.unmount().await?;
        }
        sound(Rc::new(drive)).await
    });
}

/// The state of a file: its size, and the tag of each block.
type State = (u64, Vec<u8>);

async fn state(fs: &Fs, ino: Ino) -> Result<State> {
    let size = fs.getattr(ino).await?.size;
    let data = fs.read(ino, 0, size as usize).await?.to_vec();
    Ok((size, data.chunks(PAGE_SIZE).map(|block| block[0]).collect()))
}

/// Writes, truncations, attributes, links and renames of a few files, each followed by an fsync,
/// while checkpoints are under way. After any power cut, everything synced last is there.
#[test]
fn what_was_synced_survives_power_cuts_during_checkpoints() {
    on_drive(|rt, mut drive| async move {
        let mut rng = Rng::new(5);
        let mut fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        let mut files: BTreeMap<Ino, State> = BTreeMap::new();
        for n in 0..4 {
            let ino = file(&fs, &format!("f{n}")).await?;
            for block in [0, 3, 600] {
                write(&fs, ino, block, 1).await?;
            }
            fs.fsync(ino, false).await?;
            files.insert(ino, state(&fs, ino).await?);
        }
        for round in 0..60u64 {
            let checkpoint = (rng.below(2) == 0).then(|| {
                let fs = fs.clone();
                rt.spawn(async move { fs.sync().await })
            });
            for _ in 0..rng.below(4) {
                rt.yield_now().await;
            }
            for _ in 0..1 + rng.below(6) {
                let ino = *files.keys().nth(rng.below(4) as usize).unwrap();
                for _ in 0..rng.below(3) {
                    write(&fs, ino, rng.below(700), rng.next() as u8 | 1).await?;
                }
                match rng.below(8) {
                    0 => {
                        let size = Some(rng.below(700) * PAGE_SIZE as u64);
                        fs.setattr(ino, SetAttr { size, ..SetAttr::default() }).await?;
                    }
                    1 => {
                        let value = vec![7; rng.below(200) as usize];
                        fs.setxattr(ino, b"user.x", &value, XattrMode::Set).await?;
                    }
                    2 => {
                        let name = format!("link {round} {}", rng.next());
                        fs.link(ino, Ino::ROOT, name.as_bytes()).await?;
                    }
                    3 => fs
                        .setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() })
                        .await
                        .map(drop)?,
                    _ => {}
                }
                fs.fsync(ino, false).await?;
                files.insert(ino, state(&fs, ino).await?);
            }
            // Make a file that is new since the last mount, with a separate node for a
            // distant block.
            let ino = file(&fs, &format!("new {round}")).await?;
            write(&fs, ino, if round % 2 == 0 { 0 } else { 500 }, 9).await?;
            fs.fsync(ino, false).await?;
            if round % 3 == 0 {
                fs.unlink(Ino::ROOT, format!("new {round}").as_bytes()).await?;
                fs.fsync(*files.keys().next().unwrap(), false).await?;
            } else {
                files.insert(ino, state(&fs, ino).await?);
            }
            let left = cut(&rt, &drive, round);
            // The power cut came while the checkpoint was under way.
            drop((checkpoint, fs));
            sound(left.clone()).await?;
            drive = (*left).clone();
            fs = Fs::mount(&rt, left, quiet()).await?;
            for (ino, synced) in &files {
                assert_eq!(state(&fs, *ino).await?, *synced, "round {round}, inode {ino}");
            }
        }
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}
