//! Tests of replacing a file as programs do: a new file is written and renamed over the old one,
//! without an fsync.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, SMALL, sound};
use furrow_emu::{Emulator, Fates, Options};
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, Order, RenameMode, WriteData};
use furrow_rt::{Config, Rt};
use furrow_zone::{Result, ZonedDevice};
use std::rc::Rc;

const OLD: &[u8] = &[b'o'; 5_000];
/// Content with more blocks than the inode's own pointers reach.
const NEW: &[u8] = &[b'n'; 3_000_000];

async fn put(fs: &Fs, name: &str, bytes: &[u8]) -> Result<Ino> {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino;
    for (part, bytes) in bytes.chunks(1 << 20).enumerate() {
        fs.write(ino, WriteData::copy(fs.pool(), (part << 20) as u64, bytes)).await?;
    }
    Ok(ino)
}

async fn get(fs: &Fs, name: &[u8]) -> Result<Vec<u8>> {
    let attr = fs.lookup(Ino::ROOT, name).await?;
    Ok(fs.read(attr.ino, 0, attr.size as usize).await?.to_vec())
}

async fn rename(fs: &Fs, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
    fs.rename((Ino::ROOT, from), (Ino::ROOT, to), mode).await
}

/// Makes `f` with synced, old content and a file `other`, runs `replace`, fsyncs `other` and cuts
/// the power. `look` then inspects the result.
fn after_a_crash<F: Future<Output = Result<()>> + 'static>(
    order: Order,
    replace: impl FnOnce(Fs) -> F + 'static,
    look: impl AsyncFn(&Fs) -> Result<()> + 'static,
) {
    let rt = Rt::new(Config::shuffled(7));
    let mount = move || MountOptions { order, ..common::quiet() };
    let made = (Options::simulated(), MkfsOptions::default());
    common::on_drive(rt, SMALL, made, |rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), mount()).await?;
        let old = put(&fs, "f", OLD).await?;
        fs.fsync(old, false).await?;
        let other = put(&fs, "other", b"x").await?;
        replace(fs.clone()).await?;
        fs.fsync(other, false).await?;
        let after = drive.snapshot().power_cut(&Fates::nothing(1));
        // Mount on a separate executor.
        let on = Rt::new(Config::shuffled(3));
        let drive = Emulator::from_snapshot(&on, &after, Options::simulated());
        let drive: Rc<dyn ZonedDevice> = Rc::new(drive);
        let host = on.clone();
        let result = on.block_on(async move {
            let fs = Fs::mount(&host, drive.clone(), mount()).await?;
            look(&fs).await?;
            fs.unmount().await?;
            sound(drive).await
        });
        on.clear();
        result?;
        fs.unmount().await
    });
}

const ORDERS: [Order; 2] = [Order::Queued, Order::Append];

/// The rename is in the sync record of the other file, so the new file's content must be in it too.
#[test]
fn a_file_renamed_over_another_brings_its_content() {
    for order in ORDERS {
        let replace = |fs: Fs| async move {
            put(&fs, "tmp", NEW).await?;
            rename(&fs, b"tmp", b"f", RenameMode::Replace).await
        };
        after_a_crash(order, replace, async move |fs| {
            assert!(get(fs, b"f").await? == NEW, "{order:?}: not the new content");
            assert!(fs.lookup(Ino::ROOT, b"tmp").await.is_err());
            Ok(())
        });
    }
}

/// After two names are exchanged, each of them leads to complete content.
#[test]
fn files_that_change_places_bring_their_content() {
    for order in ORDERS {
        let replace = |fs: Fs| async move {
            put(&fs, "tmp", NEW).await?;
            rename(&fs, b"tmp", b"f", RenameMode::Exchange).await
        };
        after_a_crash(order, replace, async move |fs| {
            assert!(get(fs, b"f").await? == NEW && get(fs, b"tmp").await? == OLD, "{order:?}");
            Ok(())
        });
    }
}

/// Files that were replaced one after the other are gone and need nothing; the file that moved last
/// is found under its present name.
#[test]
fn the_last_of_many_replacements_counts() {
    for order in ORDERS {
        let replace = |fs: Fs| async move {
            for n in 0..5u8 {
                let tmp = put(&fs, "tmp", &[n; 10_000]).await?;
                fs.open(tmp).await?;
                rename(&fs, b"tmp", b"f", RenameMode::Replace).await?;
            }
            put(&fs, "g", b"old").await?;
            rename(&fs, b"f", b"g", RenameMode::Replace).await?;
            put(&fs, "f", b"unsynced").await?;
            Ok(())
        };
        after_a_crash(order, replace, async move |fs| {
            assert!(get(fs, b"g").await? == [4; 10_000], "{order:?}");
            Ok(())
        });
    }
}

/// A file that replaced another one and was then removed is not carried: recovery frees its blocks
/// when it finds that the file has no name.
#[test]
fn what_is_gone_again_is_not_carried() {
    for order in ORDERS {
        let replace = |fs: Fs| async move {
            put(&fs, "tmp", NEW).await?;
            rename(&fs, b"tmp", b"f", RenameMode::Replace).await?;
            fs.unlink(Ino::ROOT, b"f").await
        };
        after_a_crash(order, replace, async move |fs| {
            assert!(fs.lookup(Ino::ROOT, b"f").await.is_err(), "{order:?}");
            Ok(())
        });
    }
}

/// Truncating is not a name change: an fsync of another file does not log it, and the old content
/// is there after a crash.
#[test]
fn a_file_rewritten_in_place_is_old_until_it_is_synced() {
    for order in ORDERS {
        let replace = |fs: Fs| async move {
            let ino = fs.lookup(Ino::ROOT, b"f").await?.ino;
            let none = furrow_fs::SetAttr { size: Some(0), ..Default::default() };
            fs.setattr(ino, none).await?;
            fs.write(ino, WriteData::copy(fs.pool(), 0, b"new")).await
        };
        after_a_crash(order, replace, async move |fs| {
            assert!(get(fs, b"f").await? == OLD, "{order:?}");
            Ok(())
        });
    }
}

/// Carried content is written only once: a second fsync of the other file writes only that
/// file's blocks.
#[test]
fn content_is_carried_once() {
    let rt = Rt::new(Config::shuffled(7));
    let made = (Options::simulated(), MkfsOptions::default());
    common::on_drive(rt, SMALL, made, |rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), common::quiet()).await?;
        put(&fs, "f", OLD).await?;
        let other = put(&fs, "other", b"x").await?;
        put(&fs, "tmp", NEW).await?;
        rename(&fs, b"tmp", b"f", RenameMode::Replace).await?;
        let mut written = Vec::new();
        for _ in 0..2 {
            fs.write(other, WriteData::copy(fs.pool(), 0, b"y")).await?;
            let before = fs.counters().data_bytes;
            fs.fsync(other, false).await?;
            written.push((fs.counters().data_bytes - before) as usize);
        }
        assert_eq!(written, [NEW.len().next_multiple_of(4096) + 4096, 4096]);
        // A plain move replaces no file, so nothing is carried.
        put(&fs, "tmp", NEW).await?;
        rename(&fs, b"tmp", b"g", RenameMode::Replace).await?;
        let before = fs.counters().data_bytes;
        fs.fsync(other, false).await?;
        assert_eq!(fs.counters().data_bytes, before);
        fs.unmount().await
    });
}
