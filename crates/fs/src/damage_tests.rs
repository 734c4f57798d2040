//! Tests: damage in one file, and what it must not do to others.

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
    let addr = BlockAddr(fs.0.core.borrow().tables.nat().get(nid).addr.get());
    let left = drive.snapshot().power_cut(&Fates::nothing(1));
    let drive = Emulator::from_snapshot(rt, &left, Options::fast());
    let flip = Fault::new(FaultKind::BitFlip);
    drive.inject(flip.at_blocks(addr.lba(drive.geometry()), BlockCount(1))).unwrap();
    Rc::new(drive)
}

/// A removed file that was open and has a damaged node cannot be freed. No user asked to free it:
/// with `errors=remount-ro` the mount still allows writing.
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

/// Fsyncs that share a record: the one of a damaged directory fails, the others do not.
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
        // And they are durable.
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
