//! Tests of the engine on an emulated drive, through its public interface.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, SMALL};
use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::{
    Fs, Ino, Kind, MkfsOptions, MountOptions, NewNode, RenameMode, SetAttr, WriteData,
};
use furrow_rt::{Config, Nanos, Rt};
use furrow_zone::{Error, ErrorKind, Result, ZonedDevice};
use std::future::Future;
use std::rc::Rc;

/// Runs `test` on a fresh file system on a drive of `spec`.
fn on_drive<F: Future<Output = Result<()>> + 'static>(
    spec: &str,
    test: impl FnOnce(Rt, Rc<dyn ZonedDevice>) -> F,
) {
    let (rt, made) = (Rt::new(Config::shuffled(7)), (Options::simulated(), MkfsOptions::default()));
    common::on_drive(rt, spec, made, |rt, drive| test(rt, Rc::new(drive)));
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = furrow_rt::Rng::new(seed);
    (0..len).map(|_| rng.next() as u8).collect()
}

async fn write(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
    fs.write(ino, WriteData::copy(fs.pool(), offset, bytes)).await
}

async fn mount(rt: &Rt, drive: &Rc<dyn ZonedDevice>) -> Result<Fs> {
    Fs::mount(rt, drive.clone(), MountOptions::default()).await
}

#[test]
fn content_and_names_survive_a_clean_remount() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let dir = fs.create(Ino::ROOT, b"dir", &NewNode::directory()).await?;
        let bytes = pattern(1, 3_000_000);
        let file = fs.create(dir.ino, b"file", &NewNode::file()).await?;
        write(&fs, file.ino, 5, &bytes).await?;
        let link = fs.create(dir.ino, b"link", &NewNode::symlink(b"../target")).await?;
        fs.link(file.ino, Ino::ROOT, b"other").await?;
        fs.unmount().await?;

        let fs = mount(&rt, &drive).await?;
        let found = fs.lookup(Ino::ROOT, b"other").await?;
        assert_eq!((found.ino, found.links, found.size), (file.ino, 2, 3_000_005));
        let read = fs.read(found.ino, 0, 4_000_000).await?.to_vec();
        assert_eq!(&read[..5], &[0; 5]);
        assert!(read[5..] == bytes);
        assert_eq!(fs.readlink(link.ino).await?, b"../target");
        let names = fs.readdir(dir.ino, 0, 100).await?;
        assert_eq!(names.len(), 2);
        assert_eq!(fs.parent(dir.ino).await?, Ino::ROOT);
        fs.unmount().await
    });
}

#[test]
fn what_was_fsynced_survives_without_a_checkpoint() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let mut files = Vec::new();
        for i in 0..40u64 {
            let name = format!("file{i}");
            let file = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?;
            let bytes = pattern(i, 10_000 + 700 * i as usize);
            write(&fs, file.ino, 0, &bytes).await?;
            fs.fsync(file.ino, false).await?;
            files.push((name, bytes));
        }
        assert!(fs.counters().checkpoints <= 2, "{:?}", fs.counters());
        // Drop the engine without an unmount, so that the next mount must recover.
        drop(fs);
        let fs = mount(&rt, &drive).await?;
        for (name, bytes) in files {
            let file = fs.lookup(Ino::ROOT, name.as_bytes()).await?;
            let read = fs.read(file.ino, 0, 1 << 20).await?.to_vec();
            assert!(read == bytes, "{name}");
        }
        fs.unmount().await
    });
}

#[test]
fn a_full_drive_says_so_stays_readable_and_gives_space_back() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let free = fs.statfs();
        let bytes = pattern(3, 1 << 20);
        let mut files = Vec::new();
        let error: Error = loop {
            let name = format!("f{}", files.len());
            let file = match fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await {
                Ok(file) => file,
                Err(error) => break error,
            };
            if let Err(error) = write(&fs, file.ino, 0, &bytes).await {
                break error;
            }
            fs.fsync(file.ino, false).await?;
            files.push((name, file.ino));
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(files.len() > 30, "{} files of 1 MiB", files.len());
        for (_, ino) in &files {
            assert!(fs.read(*ino, 0, 1 << 20).await?.to_vec() == bytes);
        }
        for (name, _) in &files {
            fs.unlink(Ino::ROOT, name.as_bytes()).await?;
        }
        fs.sync().await?;
        let after = fs.statfs();
        assert!(after.blocks_free * 10 > free.blocks_free * 8, "{free:?} {after:?}");
        let file = fs.create(Ino::ROOT, b"again", &NewNode::file()).await?;
        for i in 0..20 {
            write(&fs, file.ino, i << 20, &bytes).await?;
        }
        fs.unmount().await
    });
}

#[test]
fn many_checkpoints_merge_the_delta_log_and_turn_every_ring() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?;
        for round in 0..1200u64 {
            write(&fs, file.ino, (round % 50) * 4096, &pattern(round, 4096)).await?;
            fs.sync().await?;
            if round % 300 == 299 {
                drop(fs.clone());
            }
        }
        let resets = fs.counters().zone_resets;
        assert!(resets > 10, "{resets}");
        fs.unmount().await?;
        let fs = mount(&rt, &drive).await?;
        for round in 1150..1200u64 {
            let read = fs.read(file.ino, (round % 50) * 4096, 4096).await?.to_vec();
            assert!(read == pattern(round, 4096), "{round}");
        }
        fs.unmount().await
    });
}

#[test]
fn a_file_grows_through_every_height_and_shrinks_again() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let before = fs.statfs();
        let file = fs.create(Ino::ROOT, b"sparse", &NewNode::file()).await?;
        // These offsets need trees of height 0 to 3.
        let places = [0u64, 1 << 20, 1 << 30, 1 << 41, (1 << 44) - 8192];
        for (i, at) in places.iter().enumerate() {
            write(&fs, file.ino, *at, &pattern(i as u64, 4096)).await?;
        }
        fs.fsync(file.ino, false).await?;
        drop(fs);
        let fs = mount(&rt, &drive).await?;
        let attr = fs.lookup(Ino::ROOT, b"sparse").await?;
        assert_eq!((attr.size, attr.blocks), ((1 << 44) - 4096, 5));
        for (i, at) in places.iter().enumerate() {
            let read = fs.read(file.ino, *at, 4096).await?.to_vec();
            assert!(read == pattern(i as u64, 4096), "{at}");
        }
        assert_eq!(fs.read(file.ino, 1 << 35, 10).await?.to_vec(), [0; 10]);
        let cut = SetAttr { size: Some(5000), ..SetAttr::default() };
        let attr = fs.setattr(file.ino, cut).await?;
        assert_eq!((attr.size, attr.blocks), (5000, 1));
        let grow = SetAttr { size: Some(9000), ..SetAttr::default() };
        fs.setattr(file.ino, grow).await?;
        let read = fs.read(file.ino, 0, 9000).await?.to_vec();
        assert!(read[..4096] == pattern(0, 4096) && read[4096..] == [0; 4904]);
        fs.unlink(Ino::ROOT, b"sparse").await?;
        fs.sync().await?;
        assert_eq!(fs.statfs().inodes_free, before.inodes_free);
        fs.unmount().await
    });
}

#[test]
fn renames_links_and_open_files_behave_as_posix_says() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let a = fs.create(Ino::ROOT, b"a", &NewNode::directory()).await?;
        let b = fs.create(Ino::ROOT, b"b", &NewNode::directory()).await?;
        let x = fs.create(a.ino, b"x", &NewNode::file()).await?;
        let y = fs.create(b.ino, b"y", &NewNode::file()).await?;
        write(&fs, y.ino, 0, b"why").await?;
        fs.open(y.ino).await?;
        fs.rename((a.ino, b"x"), (b.ino, b"y"), RenameMode::Replace).await?;
        assert_eq!(fs.read(y.ino, 0, 9).await?.to_vec(), b"why");
        fs.release(y.ino).await?;
        assert_eq!(fs.getattr(y.ino).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs.lookup(b.ino, b"y").await?.ino, x.ino);
        let below = fs.rename((Ino::ROOT, b"a"), (a.ino, b"a"), RenameMode::Replace).await;
        assert_eq!(below.unwrap_err().kind(), ErrorKind::Invalid);
        let taken = fs.rename((Ino::ROOT, b"a"), (Ino::ROOT, b"b"), RenameMode::Replace).await;
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::NotEmpty);
        fs.rename((Ino::ROOT, b"a"), (b.ino, b"a"), RenameMode::NoReplace).await?;
        assert_eq!(fs.parent(a.ino).await?, b.ino);
        assert_eq!(fs.getattr(Ino::ROOT).await?.links, 3);
        assert_eq!(fs.getattr(b.ino).await?.links, 3);
        fs.rename((b.ino, b"a"), (b.ino, b"y"), RenameMode::Exchange).await?;
        assert_eq!(fs.lookup(b.ino, b"y").await?.kind, Kind::Directory);
        let error = fs.rmdir(Ino::ROOT, b"b").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotEmpty);
        fs.unlink(b.ino, b"a").await?;
        fs.rmdir(b.ino, b"y").await?;
        fs.rmdir(Ino::ROOT, b"b").await?;
        assert_eq!(fs.getattr(Ino::ROOT).await?.links, 2);
        fs.fsync(Ino::ROOT, false).await?;
        drop(fs);
        let fs = mount(&rt, &drive).await?;
        assert!(fs.readdir(Ino::ROOT, 0, 10).await?.is_empty());
        fs.unmount().await
    });
}

#[test]
fn a_directory_with_the_set_group_id_bit_gives_its_group() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let shared = NewNode { mode: 0o2775, gid: 50, ..NewNode::directory() };
        let shared = fs.create(Ino::ROOT, b"shared", &shared).await?.ino;
        let others = [NewNode::file(), NewNode::directory(), NewNode::symlink(b"to")];
        for (n, node) in others.into_iter().enumerate() {
            let node = NewNode { gid: 7, ..node };
            let made = fs.create(shared, &[b'a' + n as u8], &node).await?;
            let bit = if node.kind == Kind::Directory { 0o2000 } else { 0 };
            assert_eq!((made.gid, made.mode), (50, node.mode | bit));
            let beside = fs.create(Ino::ROOT, &[b'a' + n as u8], &node).await?;
            assert_eq!((beside.gid, beside.mode), (7, node.mode));
        }
        let unnamed = fs.create_unnamed(shared, &NewNode { gid: 7, ..NewNode::file() }).await?;
        assert_eq!(unnamed.gid, 50);
        fs.release(unnamed.ino).await?;
        fs.sync().await?;
        drop(fs);
        let fs = mount(&rt, &drive).await?;
        assert_eq!(fs.lookup(shared, b"a").await?.gid, 50);
        fs.unmount().await
    });
}

/// An inode that is opened by the removal of its last name can be used until it is released; after
/// a crash, a mount frees it.
#[test]
fn the_last_name_may_leave_an_inode_open() {
    on_drive(SMALL, |rt, drive| async move {
        let (root, replace) = (Ino::ROOT, RenameMode::Replace);
        let fs = mount(&rt, &drive).await?;
        let before = fs.statfs().inodes_free;
        let file = fs.create(root, b"file", &NewNode::file()).await?.ino;
        write(&fs, file, 0, b"text").await?;
        fs.link(file, root, b"second").await?;
        assert_eq!(fs.remove_open(root, b"second", false).await?, None, "it has a name");
        assert_eq!(fs.release(file).await.unwrap_err().kind(), ErrorKind::Invalid, "not open");
        let wrong = fs.remove_open(root, b"file", true).await.unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::NotDirectory);
        assert_eq!(fs.remove_open(root, b"file", false).await?, Some(file));
        assert_eq!(fs.lookup(root, b"file").await.unwrap_err().kind(), ErrorKind::NotFound);
        write(&fs, file, 4, b"more").await?;
        assert_eq!(fs.read(file, 0, 9).await?.to_vec(), b"textmore");
        fs.release(file).await?;
        assert_eq!(fs.getattr(file).await.unwrap_err().kind(), ErrorKind::NotFound);
        // The same with a directory.
        let directory = fs.create(root, b"directory", &NewNode::directory()).await?.ino;
        assert_eq!(fs.remove_open(root, b"directory", true).await?, Some(directory));
        assert!(fs.readdir(directory, 0, 9).await?.is_empty());
        fs.release(directory).await?;
        // Renames over a file that is already open, over a name of the same inode, and to an
        // unused name.
        let file = fs.create(root, b"file", &NewNode::file()).await?.ino;
        fs.open(file).await?;
        let new = fs.create(root, b"new", &NewNode::file()).await?.ino;
        assert_eq!(fs.rename_open((root, b"new"), (root, b"file"), replace).await?, Some(file));
        fs.release(file).await?;
        assert_eq!(fs.getattr(file).await?.links, 0, "open twice");
        fs.release(file).await?;
        assert_eq!(fs.getattr(file).await.unwrap_err().kind(), ErrorKind::NotFound);
        fs.link(new, root, b"new").await?;
        assert_eq!(fs.rename_open((root, b"new"), (root, b"file"), replace).await?, None);
        assert_eq!(fs.rename_open((root, b"new"), (root, b"newer"), replace).await?, None);
        fs.unlink(root, b"newer").await?;
        assert_eq!(fs.remove_open(root, b"file", false).await?, Some(new));
        fs.sync().await?;
        drop(fs);
        let fs = mount(&rt, &drive).await?;
        assert_eq!(fs.getattr(new).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs.statfs().inodes_free, before);
        fs.unmount().await
    });
}

#[test]
fn drives_that_do_not_fit_are_refused_with_the_sum() {
    let rt = Rt::new(Config::simulated(1));
    for (spec, what) in [
        ("zones=96,zone-size=1MiB,max-active=5,max-open=5", "6 are needed"),
        ("zones=10,zone-size=1MiB,max-active=14", "too small"),
        ("zones=96,zone-size=8KiB,max-active=14", "too small"),
    ] {
        let geometry = furrow_zone::spec::parse_geometry(spec).unwrap();
        let medium = Medium::memory(&geometry);
        let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap();
        let on = rt.clone();
        let made =
            rt.block_on(
                async move { Fs::format(&on, Rc::new(drive), &MkfsOptions::default()).await },
            );
        let error = made.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{spec}: {error}");
        assert!(error.to_string().contains(what), "{spec}: {error}");
    }
}

/// A refused mkfs must leave what is on the drive, also with `force`.
#[test]
fn options_that_do_not_fit_are_refused_before_anything_is_written() {
    on_drive("zones=6000,zone-size=64KiB,max-active=32,channels=8", |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?;
        fs.fsync(file.ino, false).await?;
        fs.unmount().await?;
        let narrow = MkfsOptions { width: Some(1), force: true, ..Default::default() };
        let made = Fs::format(&rt, drive.clone(), &narrow).await;
        let error = made.expect_err("a checkpoint does not fit a zone");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("too small for checkpoints"), "{error}");
        let fs = mount(&rt, &drive).await?;
        assert_eq!(fs.lookup(Ino::ROOT, b"file").await?.ino, file.ino);
        fs.unmount().await
    });
}

/// Uses sizes that the small drives never reach: whole segments of 512 blocks, eight zones wide.
#[test]
fn full_size_segments_striped_over_zones_survive_a_crash() {
    let spec = "zones=320,zone-size=4MiB,max-active=128,channels=8";
    on_drive(spec, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?;
        for part in 0..40u64 {
            write(&fs, file.ino, part << 20, &pattern(part, 1 << 20)).await?;
        }
        fs.fsync(file.ino, false).await?;
        drop(fs);
        let fs = mount(&rt, &drive).await?;
        for part in 0..40u64 {
            let read = fs.read(file.ino, part << 20, 1 << 20).await?.to_vec();
            assert!(read == pattern(part, 1 << 20), "{part}");
        }
        fs.unmount().await
    });
}

/// Writes, syncs and fsyncs until an operation fails; returns the last acknowledged round.
async fn insist(fs: Fs, name: String) -> u8 {
    let Ok(file) = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await else { return 0 };
    let file = file.ino;
    let mut kept = 0;
    for round in 1..=u8::MAX {
        let written = write(&fs, file, 0, &[round; 5_000]).await;
        let synced = match round % 2 {
            0 => fs.sync().await,
            _ => fs.fsync(file, false).await,
        };
        if written.is_err() || synced.is_err() {
            break;
        }
        kept = round;
    }
    kept
}

#[test]
fn nothing_is_written_after_an_unmount_and_nothing_acknowledged_in_it_is_lost() {
    for seed in 0..40 {
        let rt = Rt::new(Config::shuffled(seed));
        let made = (Options::simulated(), MkfsOptions::default());
        common::on_drive(rt, SMALL, made, |rt, drive| async move {
            let drive: Rc<dyn ZonedDevice> = Rc::new(drive);
            let fs = mount(&rt, &drive).await?;
            let names = (0..4).map(|number| format!("file-{number}"));
            let all: Vec<_> =
                names.map(|name| (name.clone(), rt.spawn(insist(fs.clone(), name)))).collect();
            for _ in 0..50 {
                rt.yield_now().await;
            }
            fs.unmount().await?;
            let zones = drive.geometry().zones;
            let left = drive.report(furrow_zone::ZoneId(0), zones).await.unwrap();
            common::sound(drive.clone()).await?;
            let mut kept = Vec::new();
            for (name, task) in all {
                kept.push((name, task.await));
            }
            rt.sleep(60 * furrow_rt::Nanos::SECOND).await;
            let later = drive.report(furrow_zone::ZoneId(0), zones).await.unwrap();
            assert!(left == later, "seed {seed}: written after the unmount");
            let fs = mount(&rt, &drive).await?;
            for (name, kept) in kept.into_iter().filter(|(_, kept)| *kept > 0) {
                let file = fs.lookup(Ino::ROOT, name.as_bytes()).await?.ino;
                let found = fs.read(file, 0, 5_000).await?.to_vec();
                assert!(found[0] >= kept, "seed {seed}: {name}: {} of {kept}", found[0]);
            }
            fs.unmount().await
        });
    }
}

/// Write-back starts at half of the dirty limit, so that a writer slower than the drive is never
/// held up.
#[test]
fn writing_back_begins_before_anybody_is_held_up() {
    on_drive(SMALL, |rt, drive| async move {
        for (background, begins) in [(None, true), (Some(512), false)] {
            let options = MountOptions {
                cache_pages: 1024,
                dirty_pages: Some(512),
                background_pages: background,
                commit_interval: 1000 * Nanos::SECOND,
                ..MountOptions::default()
            };
            let fs = Fs::mount(&rt, drive.clone(), options).await?;
            let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?;
            let before = fs.counters().data_bytes;
            for block in 0..300 {
                write(&fs, file.ino, block * 4096, &[1; 4096]).await?;
            }
            rt.sleep(Nanos::SECOND).await;
            let written = (fs.counters().data_bytes - before) / 4096;
            // Write-back stops at a quarter of the limit.
            assert_eq!(written > 100, begins, "{written} blocks, {background:?}");
            assert!(written < 300, "{written}");
            fs.unlink(Ino::ROOT, b"file").await?;
            fs.unmount().await?;
        }
        Ok(())
    });
}

#[test]
fn what_is_being_read_is_not_read_again() {
    let made = (Options::simulated(), MkfsOptions::default());
    common::on_drive(Rt::new(Config::shuffled(7)), SMALL, made, |rt, drive| async move {
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        let fs = mount(&rt, &device).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
        let content = pattern(3, 2 << 20);
        write(&fs, file, 0, &content[..1 << 20]).await?;
        write(&fs, file, 1 << 20, &content[1 << 20..]).await?;
        fs.unmount().await?;
        let fs = mount(&rt, &device).await?;
        fs.getattr(file).await?;
        // Readers of adjacent blocks lack the same leaf, and each reader also reads a block of the
        // previous one.
        let before = drive.counters().blocks_read;
        let mut readers = Vec::new();
        for reader in 0..20 {
            let fs = fs.clone();
            let from = 8192 * reader;
            readers.push(rt.spawn(async move { fs.read(file, from as u64, 12_288).await }));
        }
        for (reader, task) in readers.into_iter().enumerate() {
            let from = 8192 * reader;
            assert_eq!(task.await?.to_vec(), &content[from..from + 12_288]);
        }
        let read = drive.counters().blocks_read - before;
        assert!((42..=44).contains(&read), "{read} blocks for 41 and what leads to them");
        Ok(())
    });
}
