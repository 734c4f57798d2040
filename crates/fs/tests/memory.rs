//! Tests of the memory use that a file system reports.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, quiet};
use furrow_emu::{Emulator, Options};
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, RenameMode, WriteData};
use furrow_rt::{Config, Rt};
use furrow_zone::Result;
use std::future::Future;
use std::rc::Rc;

const PAGE: u64 = 4096;
const DRIVE: &str = "zones=96,zone-size=4MiB,max-active=14,channels=1";

fn on_drive<F: Future<Output = Result<()>> + 'static>(
    options: Options,
    test: impl FnOnce(Rt, Emulator) -> F,
) {
    common::on_drive(Rt::new(Config::simulated(3)), DRIVE, (options, MkfsOptions::default()), test);
}

async fn write(fs: &Fs, ino: Ino, blocks: std::ops::Range<u64>) -> Result<()> {
    for block in blocks {
        let bytes = [block as u8 | 1; PAGE as usize];
        fs.write(ino, WriteData::copy(fs.pool(), block * PAGE, &bytes)).await?;
    }
    Ok(())
}

#[test]
fn what_is_held_is_what_was_put_in_and_goes_with_it() {
    on_drive(Options::simulated(), |rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive), quiet()).await?;
        fs.getattr(Ino::ROOT).await?;
        let (before, _) = fs.memory();
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
        write(&fs, file, 0..600).await?;
        let (now, peak) = fs.memory();
        assert_eq!(now.data - before.data, 601 * PAGE, "600 blocks and one of the directory");
        // The file has an inode and two leaves, because one leaf has fewer than 600 pointers.
        assert_eq!(now.nodes - before.nodes, 3 * PAGE, "{before:?} {now:?}");
        assert_eq!(now.dirty, now.data + now.nodes, "nothing was written yet");
        assert!(now.changes > before.changes && now.deltas > before.deltas && now.tables > 0);
        assert!(now.cache_index > 600 * 16, "{now:?}");
        assert_eq!(peak.total(), now.total(), "it only grew");
        fs.sync().await?;
        let (now, _) = fs.memory();
        assert_eq!((now.dirty, now.writes, now.changes), (0, 0, 0), "{now:?}");
        fs.unlink(Ino::ROOT, b"file").await?;
        fs.sync().await?;
        let (now, peak) = fs.memory();
        assert_eq!((now.data - before.data, now.nodes), (PAGE, before.nodes));
        assert!(peak.data >= 601 * PAGE && peak.total() > now.total(), "{peak:?}");
        let parts: u64 = now.parts().iter().map(|part| part.2).sum();
        assert_eq!(parts, now.total());
        fs.unmount().await
    });
}

#[test]
fn the_cache_bounds_it() {
    on_drive(Options::simulated(), |rt, drive| async move {
        let options = MountOptions { cache_pages: 512, ..quiet() };
        let fs = Fs::mount(&rt, Rc::new(drive), options).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
        write(&fs, file, 0..5_000).await?;
        let (_, peak) = fs.memory();
        // Half of the cache may be dirty or in flight; other pages add a few more.
        assert!(peak.data + peak.nodes + peak.writes <= (512 + 256) * PAGE, "{peak:?}");
        assert!(peak.data + peak.nodes >= 400 * PAGE, "{peak:?}");
        fs.unmount().await
    });
}

#[test]
fn names_of_large_directories_take_their_share_of_the_cache() {
    on_drive(Options::simulated(), |rt, drive| async move {
        let options = MountOptions { cache_pages: 1024, ..quiet() };
        let fs = Fs::mount(&rt, Rc::new(drive), options).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
        for n in 0..20_000u32 {
            fs.link(file, Ino::ROOT, format!("name-{n}").as_bytes()).await?;
        }
        fs.sync().await?;
        write(&fs, file, 0..3_000).await?;
        fs.sync().await?;
        let (now, _) = fs.memory();
        assert!(now.directories > 20_000 * 24, "{now:?}");
        assert!(now.data + now.nodes + now.directories <= 1030 * PAGE, "{now:?}");
        // Looking up a name needs the file's node, and no block of the directory.
        fs.lookup(Ino::ROOT, b"name-1").await?;
        let reads = fs.counters().cache_misses;
        for n in (0..20_000u32).step_by(97) {
            fs.lookup(Ino::ROOT, format!("name-{n}").as_bytes()).await?;
        }
        assert_eq!(fs.counters().cache_misses, reads);
        // A change needs the block of the directory, and finds its content.
        for n in (0..20_000u32).step_by(1_000) {
            let (old, new) = (format!("name-{n}"), format!("other-{n}"));
            let (old, new) = (old.as_bytes(), new.as_bytes());
            fs.rename((Ino::ROOT, old), (Ino::ROOT, new), RenameMode::NoReplace).await?;
            assert_eq!(fs.lookup(Ino::ROOT, new).await?.ino, file);
            assert!(fs.lookup(Ino::ROOT, old).await.is_err());
            fs.unlink(Ino::ROOT, new).await?;
        }
        assert!(fs.counters().cache_misses > reads, "the file's blocks had taken their place");
        fs.unmount().await
    });
}

#[test]
fn a_cold_read_misses_and_a_warm_read_hits() {
    on_drive(Options::simulated(), |rt, drive| async move {
        let drive = Rc::new(drive);
        let fs = Fs::mount(&rt, drive.clone(), quiet()).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
        write(&fs, file, 0..700).await?;
        fs.unmount().await?;
        let fs = Fs::mount(&rt, drive, quiet()).await?;
        let counts = || (fs.counters().cache_hits, fs.counters().cache_misses);
        let (_, before) = counts();
        fs.read(file, 0, 40 * PAGE as usize).await?;
        let (hits, cold) = counts();
        // Its inode comes with the blocks.
        assert!((40..=42).contains(&(cold - before)), "{} misses", cold - before);
        fs.read(file, 0, 40 * PAGE as usize).await?;
        let (warm, misses) = counts();
        assert_eq!(misses, cold);
        assert!(warm - hits >= 40, "{} hits", warm - hits);
        // These blocks have a leaf of pointers, which each of them lacks.
        fs.read(file, 600 * PAGE, 40 * PAGE as usize).await?;
        let (_, more) = counts();
        assert!((41..=42).contains(&(more - misses)), "{} misses", more - misses);
        fs.unmount().await
    });
}

#[test]
fn a_block_changed_while_it_is_written_is_held_twice() {
    on_drive(Options::simulated(), |rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive), quiet()).await?;
        let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
        write(&fs, file, 0..300).await?;
        let syncing = rt.spawn({
            let fs = fs.clone();
            async move { fs.fsync(file, false).await }
        });
        while fs.memory().0.dirty == fs.memory().0.data + fs.memory().0.nodes {
            rt.yield_now().await;
        }
        let first = fs.memory().0;
        write(&fs, file, 0..300).await?;
        let second = fs.memory().0;
        assert_eq!(second.data, first.data);
        assert!(second.writes >= first.writes + 250 * PAGE, "{first:?} {second:?}");
        syncing.await?;
        assert_eq!(fs.memory().0.writes, 0);
        fs.unmount().await
    });
}
