//! Tests of renames that leave a whiteout: overlay file systems rely on never seeing one without
//! the other after a crash.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, SMALL, quiet, sound};
use furrow_emu::{Emulator, Fates, Options, Snapshot};
use furrow_fs::{Fs, Ino, Kind, MkfsOptions, NewNode, RenameMode, WriteData};
use furrow_rt::{Config, Rt};
use furrow_zone::{Command, ErrorKind, Result};
use std::cell::RefCell;
use std::rc::Rc;

const WHITEOUT: RenameMode = RenameMode::Whiteout { uid: 3, gid: 4 };
const FILES: u64 = 24;

fn old(n: u64) -> Vec<u8> {
    format!("old {n}").into_bytes()
}

fn new(n: u64) -> Vec<u8> {
    format!("new {n}").into_bytes()
}

/// Whether the rename of file `n`, inode `ino`, to `to` was made; panics if only half of it
/// was made.
async fn was_made(fs: &Fs, n: u64, ino: Ino, to: Ino) -> Result<bool> {
    let before = fs.lookup(Ino::ROOT, &old(n)).await?;
    let after = match fs.lookup(to, &new(n)).await {
        Ok(after) => Some(after.ino),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if before.kind == Kind::CharDevice {
        assert_eq!((before.rdev, before.mode, before.links), (0, 0, 1), "file {n}");
        assert_eq!((before.uid, before.gid), (3, 4), "file {n}");
        assert_eq!(after, Some(ino), "file {n}: a whiteout without the rename");
    } else {
        assert_eq!(before.ino, ino, "file {n}");
        assert_ne!(after, Some(ino), "file {n}: a rename without the whiteout");
    }
    Ok(before.kind == Kind::CharDevice)
}

/// Cuts the power after every write while files are renamed with whiteouts: within a directory and
/// to another one, over a file and to an unused name, with fsyncs and with checkpoints.
#[test]
fn no_crash_shows_a_whiteout_without_its_rename() {
    let rt = Rt::new(Config::simulated(7));
    let made = (Options::fast(), MkfsOptions::default());
    common::on_drive(rt, SMALL, made, |rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        let other = fs.create(Ino::ROOT, b"other", &NewNode::directory()).await?.ino;
        let to = |n: u64| if n.is_multiple_of(2) { other } else { Ino::ROOT };
        let mut files = Vec::new();
        for n in 0..FILES {
            let ino = fs.create(Ino::ROOT, &old(n), &NewNode::file()).await?.ino;
            fs.write(ino, WriteData::copy(fs.pool(), 0, &[n as u8; 5000])).await?;
            if n.is_multiple_of(3) {
                fs.create(to(n), &new(n), &NewNode::file()).await?;
            }
            files.push(ino);
        }
        fs.sync().await?;
        // Snapshots of the drive, each with the number of renames that were durable before it.
        let shots: Rc<RefCell<Vec<(u64, Snapshot)>>> = Rc::default();
        let durable = Rc::new(std::cell::Cell::new(0));
        let (put, done) = (shots.clone(), durable.clone());
        drive.set_observer(Rc::new(move |drive, info| {
            if matches!(info.command, Command::Write { .. } | Command::Flush) {
                put.borrow_mut().push((done.get(), drive.snapshot()));
            }
        }));
        for n in 0..FILES {
            fs.rename((Ino::ROOT, &old(n)), (to(n), &new(n)), WHITEOUT).await?;
            match n % 4 {
                1 => fs.fsync(files[n as usize], false).await?,
                3 => fs.sync().await?,
                _ => continue,
            }
            durable.set(n + 1);
        }
        drive.clear_observer();
        fs.unmount().await?;
        sound(Rc::new(drive)).await?;
        let shots = std::mem::take(&mut *shots.borrow_mut());
        assert!(shots.len() > 20, "{} cuts", shots.len());
        for (seed, (durable, shot)) in (0..).zip(&shots) {
            for fates in [Fates::nothing(seed), Fates::seeded(seed)] {
                let left = shot.power_cut(&fates);
                let left = Rc::new(Emulator::from_snapshot(&rt, &left, Options::fast()));
                let fs = Fs::mount(&rt, left.clone(), quiet()).await.map_err(|e| e.at(seed))?;
                let mut last = true;
                for n in 0..FILES {
                    let made = was_made(&fs, n, files[n as usize], to(n)).await?;
                    assert!(last || !made, "cut {seed}: {n} is there, an earlier one is not");
                    assert!(made || n >= *durable, "cut {seed}: {n} was durable");
                    last = made;
                }
                fs.unmount().await?;
                sound(left).await?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_whiteout_needs_space_and_a_directory_may_leave_one() {
    let rt = Rt::new(Config::simulated(7));
    let made = (Options::fast(), MkfsOptions::default());
    common::on_drive(rt, SMALL, made, |rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        let root = Ino::ROOT;
        let free = fs.statfs().inodes_free;
        let moved = fs.create(root, b"moved", &NewNode::directory()).await?.ino;
        let links = fs.getattr(root).await?.links;
        fs.rename((root, b"moved"), (root, b"there"), WHITEOUT).await?;
        assert_eq!(fs.lookup(root, b"there").await?.ino, moved);
        assert_eq!(fs.lookup(root, b"moved").await?.kind, Kind::CharDevice);
        assert_eq!(fs.getattr(root).await?.links, links, "as many directories as before");
        let missing = fs.rename((root, b"none"), (root, b"some"), WHITEOUT).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        fs.unlink(root, b"moved").await?;
        fs.rmdir(root, b"there").await?;
        assert_eq!(fs.statfs().inodes_free, free);
        let filler = fs.create(root, b"filler", &NewNode::file()).await?.ino;
        let mut at = 0;
        while fs.write(filler, WriteData::copy(fs.pool(), at, &[7; 4096])).await.is_ok() {
            at += 4096;
        }
        let full = fs.rename((root, b"filler"), (root, b"new"), WHITEOUT).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
        assert_eq!(fs.lookup(root, b"filler").await?.ino, filler, "nothing was done");
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}
