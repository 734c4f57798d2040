//! Tests: damage in one file must not affect other files.

use crate::types::{OnDamage, XattrMode};
use crate::{Fs, Ino, MkfsOptions, MountOptions, NewNode, WriteData};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options};
use furrow_log::BlockAddr;
use furrow_rt::{Config, Nanos, Rt};
use furrow_zone::{BlockCount, ErrorKind, Result, ZonedDevice};
use std::future::Future;
use std::rc::Rc;

const SPEC: &str = "zones=64,zone-size=1MiB,max-active=14,channels=1";

fn quiet() -> MountOptions {
    MountOptions { commit_interval: 100_000 * Nanos::SECOND, ..MountOptions::default() }
}

fn on_drive<F: Future<Output = Result<()>> + 'static>(test: impl FnOnce(Rt, Rc<Emulator>) -> F) {
    let rt = Rt::new(Config::simulated(3));
    let geometry = furrow_zone::spec::parse_geometry(SPEC).unwrap();
    let medium = Medium::memory(&geometry);
    let drive = Rc::new(Emulator::new(&rt, geometry, medium, Options::fast()).unwrap());
    let (on, device) = (rt.clone(), drive.clone());
    rt.block_on(async move { Fs::format(&on, device, &MkfsOptions::default()).await }).unwrap();
    let test = test(rt.clone(), drive);
    rt.block_on(test).unwrap();
    rt.clear();
}

async fn write(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
    fs.write(ino, WriteData::copy(fs.pool(), offset, bytes)).await
}

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    Ok(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino)
}

/// The drive after a power cut, with node `nid` damaged.
fn cut_and_damage(rt: &Rt, drive: &Emulator, fs: &Fs, nid: u32) -> Rc<Emulator> {
    cut_and_damage_at(rt, drive, BlockAddr(fs.0.core.borrow().tables.nat().get(nid).addr.get()))
}

/// The drive after a power cut, with the block at `addr` damaged.
fn cut_and_damage_at(rt: &Rt, drive: &Emulator, addr: BlockAddr) -> Rc<Emulator> {
    let left = drive.snapshot().power_cut(&Fates::nothing(1));
    let drive = Emulator::from_snapshot(rt, &left, Options::fast());
    let flip = Fault::new(FaultKind::BitFlip);
    drive.inject(flip.at_blocks(addr.lba(drive.geometry()), BlockCount(1))).unwrap();
    Rc::new(drive)
}

/// A removed file that was open and has a damaged node cannot be freed. Freeing it was not a user's
/// request, so with `errors=remount-ro` the mount stays writable.
#[test]
fn a_damaged_removed_file_is_no_reason_to_mount_read_only() {
    on_drive(|rt, drive| async move {
        let fs = Fs::mount(&rt, drive.clone(), quiet()).await?;
        let doomed = file(&fs, "doomed").await?;
        write(&fs, doomed, 600 * 4096, b"in a leaf").await?;
        fs.open(doomed).await?;
        fs.unlink(Ino::ROOT, b"doomed").await?;
        fs.sync().await?;
        let leaf = fs.0.run(|core| core.holder(doomed, 600)).await?.unwrap().nid;
        assert_ne!(leaf, doomed.0);
        let left = cut_and_damage(&rt, &drive, &fs, leaf);
        drop(fs);
        let options = MountOptions { on_damage: OnDamage::ReadOnly, ..quiet() };
        let fs = Fs::mount(&rt, left.clone(), options).await?;
        let new = file(&fs, "new").await?;
        write(&fs, new, 0, b"new").await?;
        fs.fsync(new, false).await?;
        assert!(fs.0.core.borrow().tree.files().is_orphan(doomed), "a later mount tries again");
        fs.unmount().await
    });
}

/// Fsyncs that share a record: the fsync of a damaged directory fails, the others succeed.
#[test]
fn an_fsync_fails_for_the_damage_of_its_own_file_only() {
    on_drive(|rt, drive| async move {
        let fs = Fs::mount(&rt, drive.clone(), quiet()).await?;
        let damaged = fs.create(Ino::ROOT, b"damaged", &NewNode::directory()).await?.ino;
        fs.setxattr(damaged, b"user.long", &[5; 9000], XattrMode::Set).await?;
        let mut all = Vec::new();
        for n in 0..16 {
            all.push(file(&fs, &n.to_string()).await?);
        }
        fs.sync().await?;
        let (nids, _) = fs.0.run(|core| core.xattr_nids(damaged)).await?;
        let left = cut_and_damage(&rt, &drive, &fs, nids[0]);
        drop(fs);
        let fs = Fs::mount(&rt, left.clone(), quiet()).await?;
        for ino in &all {
            write(&fs, *ino, 0, b"new").await?;
        }
        all.insert(12, damaged);
        let asked: Vec<_> = all
            .iter()
            .map(|ino| {
                let (fs, ino) = (fs.clone(), *ino);
                rt.spawn(async move { fs.fsync(ino, false).await })
            })
            .collect();
        for (ino, answer) in all.iter().zip(asked) {
            let kind = answer.await.map_err(|error| error.kind());
            let expected = if *ino == damaged { Err(ErrorKind::Corrupt) } else { Ok(()) };
            assert_eq!(kind, expected, "inode {ino}");
        }
        // The successful fsyncs are durable.
        let after = left.snapshot().power_cut(&Fates::nothing(2));
        drop(fs);
        let after = Rc::new(Emulator::from_snapshot(&rt, &after, Options::fast()));
        let fs = Fs::mount(&rt, after, quiet()).await?;
        for ino in all.iter().filter(|ino| **ino != damaged) {
            assert_eq!(fs.read(*ino, 0, 8).await?.to_vec(), b"new", "inode {ino}");
        }
        Ok(())
    });
}

/// Makes a drive with the file `victim`, whose block 600 has a leaf of its own, and the file
/// `other`. If `leaf`, damages that leaf, otherwise the block.
async fn with_a_victim(rt: &Rt, drive: &Rc<Emulator>, leaf: bool) -> Result<Rc<Emulator>> {
    let fs = Fs::mount(rt, drive.clone(), quiet()).await?;
    let victim = file(&fs, "victim").await?;
    write(&fs, victim, 600 * 4096, b"in a leaf").await?;
    write(&fs, file(&fs, "other").await?, 0, b"old").await?;
    fs.sync().await?;
    let holder = fs.0.run(|core| core.holder(victim, 600)).await?.unwrap().nid;
    if leaf {
        return Ok(cut_and_damage(rt, drive, &fs, holder));
    }
    let pointer = fs.0.run(|core| core.pointer(victim, 600)).await?;
    Ok(cut_and_damage_at(rt, drive, BlockAddr(pointer.addr.get())))
}

fn stops_at_damage() -> MountOptions {
    MountOptions { on_damage: OnDamage::ReadOnly, ..quiet() }
}

/// With `errors=remount-ro`, data that was written but not synced becomes durable before
/// writing stops.
#[test]
fn what_was_not_synced_is_durable_when_damage_stops_writing() {
    on_drive(|rt, drive| async move {
        let left = with_a_victim(&rt, &drive, false).await?;
        let fs = Fs::mount(&rt, left.clone(), stops_at_damage()).await?;
        let (other, victim) =
            (fs.lookup(Ino::ROOT, b"other").await?, fs.lookup(Ino::ROOT, b"victim").await?);
        write(&fs, other.ino, 0, b"new").await?;
        let made = file(&fs, "made").await?;
        write(&fs, made, 0, b"made").await?;
        let error = fs.read(victim.ino, 600 * 4096, 8).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(fs.is_stopping());
        // After the first damage is reported, no change is accepted.
        let refused = write(&fs, made, 4, b"more").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
        fs.settled().await;
        let failure = fs.failure().expect("writing has stopped").to_string();
        assert!(failure.ends_with("; everything written before is durable"), "{failure}");
        assert!(fs.failed_without_loss());
        // After the stop, fsync and sync have nothing left to do.
        fs.fsync(made, false).await?;
        fs.sync().await?;
        assert_eq!(file(&fs, "late").await.unwrap_err().kind(), ErrorKind::ReadOnly);
        let after = left.snapshot().power_cut(&Fates::nothing(2));
        fs.unmount().await?;
        drop(fs);
        let after = Rc::new(Emulator::from_snapshot(&rt, &after, Options::fast()));
        let fs = Fs::mount(&rt, after, quiet()).await?;
        assert_eq!(fs.read(other.ino, 0, 8).await?.to_vec(), b"new");
        assert_eq!(fs.read(made, 0, 8).await?.to_vec(), b"made");
        fs.unmount().await
    });
}

/// If damage prevents the engine from writing one file's changes, these changes are lost and
/// reported, and the changes of other files are not lost.
#[test]
fn what_damage_keeps_from_being_written_is_named() {
    on_drive(|rt, drive| async move {
        let left = with_a_victim(&rt, &drive, true).await?;
        let fs = Fs::mount(&rt, left.clone(), stops_at_damage()).await?;
        let (other, victim) =
            (fs.lookup(Ino::ROOT, b"other").await?, fs.lookup(Ino::ROOT, b"victim").await?);
        write(&fs, other.ino, 0, b"new").await?;
        write(&fs, victim.ino, 0, b"begin").await?;
        fs.read(victim.ino, 600 * 4096, 8).await.unwrap_err();
        fs.settled().await;
        assert!(fs.failure().is_some());
        let after = left.snapshot().power_cut(&Fates::nothing(2));
        drop(fs);
        let after = Rc::new(Emulator::from_snapshot(&rt, &after, Options::fast()));
        let fs = Fs::mount(&rt, after, quiet()).await?;
        assert_eq!(fs.read(other.ino, 0, 8).await?.to_vec(), b"new");
        fs.unmount().await
    });
    let files: Vec<Ino> = (1..12).map(Ino).collect();
    let shown = |count: usize| crate::durability::checkpoint::show_files(files[..count].iter());
    assert_eq!((shown(1), shown(2)), ("inode 1".to_owned(), "inodes 1, 2".to_owned()));
    assert_eq!(shown(11), "inodes 1, 2, 3, 4, 5, 6, 7, 8 and others");
}

/// If damage stops writing and the drive then accepts no writes, the message says that data
/// is lost.
#[test]
fn a_drive_that_takes_no_writes_loses_what_was_not_synced() {
    on_drive(|rt, drive| async move {
        let left = with_a_victim(&rt, &drive, false).await?;
        let fs = Fs::mount(&rt, left.clone(), stops_at_damage()).await?;
        let victim = fs.lookup(Ino::ROOT, b"victim").await?.ino;
        write(&fs, file(&fs, "made").await?, 0, b"made").await?;
        left.inject(Fault::new(FaultKind::WriteError)).unwrap();
        fs.read(victim, 600 * 4096, 8).await.unwrap_err();
        fs.settled().await;
        let failure = fs.failure().expect("writing has stopped").to_string();
        assert!(!fs.failed_without_loss());
        assert!(failure.contains("is lost") || !failure.contains("durable"), "{failure}");
        fs.sync().await.unwrap_err();
        Ok(())
    });
}
