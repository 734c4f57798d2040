//! Tests of the limits that the format promises: links, names, times, directories.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, sound};
use furrow_emu::Options;
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, RenameMode, SetAttr, Time};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{ErrorKind, Result, ZonedDevice};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

const SPEC: &str = "capacity=1GiB,zone-size=8MiB,max-active=14,channels=1";

fn on_drive<F: Future<Output = Result<()>> + 'static>(
    test: impl FnOnce(Rt, Rc<dyn ZonedDevice>) -> F,
) {
    let (rt, made) = (Rt::new(Config::simulated(5)), (Options::fast(), MkfsOptions::default()));
    common::on_drive(rt, SPEC, made, |rt, drive| test(rt, Rc::new(drive)));
}

async fn mount(rt: &Rt, drive: &Rc<dyn ZonedDevice>) -> Result<Fs> {
    Fs::mount(rt, drive.clone(), MountOptions::default()).await
}

#[test]
fn a_file_has_65_535_links_and_no_more() {
    on_drive(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let first = fs.create(Ino::ROOT, b"0", &NewNode::file()).await?.ino;
        for n in 1..65_535 {
            fs.link(first, Ino::ROOT, n.to_string().as_bytes()).await?;
        }
        let many = fs.link(first, Ino::ROOT, b"more").await;
        assert_eq!(many.unwrap_err().kind(), ErrorKind::TooManyLinks);
        assert_eq!(fs.getattr(first).await?.links, 65_535);
        fs.unmount().await?;
        sound(drive.clone()).await?;
        let fs = mount(&rt, &drive).await?;
        fs.unlink(Ino::ROOT, b"40000").await?;
        assert_eq!(fs.link(first, Ino::ROOT, b"more").await?.links, 65_535);
        fs.unmount().await
    });
}

#[test]
fn a_directory_with_70_000_directories_says_that_it_does_not_count_them() {
    on_drive(|rt, drive| async move {
        let mut fs = mount(&rt, &drive).await?;
        let parent = fs.create(Ino::ROOT, b"d", &NewNode::directory()).await?.ino;
        let other = fs.create(Ino::ROOT, b"other", &NewNode::directory()).await?.ino;
        fs.create(other, b"x", &NewNode::directory()).await?;
        for n in 0..70_000 {
            fs.create(parent, n.to_string().as_bytes(), &NewNode::directory()).await?;
            // A new directory has two links: its name and its own entry.
            match n {
                65_532 => assert_eq!(fs.getattr(parent).await?.links, 65_535),
                65_533 => assert_eq!(fs.getattr(parent).await?.links, 1),
                _ => {}
            }
        }
        fs.rename((other, b"x"), (parent, b"x"), RenameMode::Replace).await?;
        fs.create(other, b"y", &NewNode::directory()).await?;
        fs.create(other, b"file", &NewNode::file()).await?;
        fs.rename((other, b"file"), (parent, b"7"), RenameMode::Exchange).await?;
        fs.rename((other, b"file"), (parent, b"7"), RenameMode::Exchange).await?;
        assert_eq!(fs.getattr(other).await?.links, 3);
        // The link count survives a mount, and counts down again.
        fs.unmount().await?;
        sound(drive.clone()).await?;
        fs = mount(&rt, &drive).await?;
        assert_eq!(fs.getattr(parent).await?.links, 1);
        let busy = fs.rmdir(Ino::ROOT, b"d").await;
        assert_eq!(busy.unwrap_err().kind(), ErrorKind::NotEmpty);
        for n in 65_533..70_000 {
            assert_eq!(fs.getattr(parent).await?.links, 1, "before {n}");
            fs.rmdir(parent, n.to_string().as_bytes()).await?;
        }
        assert_eq!(fs.getattr(parent).await?.links, 1, "with `x` there are 65,534");
        fs.rename((parent, b"x"), (other, b"x"), RenameMode::NoReplace).await?;
        assert_eq!(fs.getattr(parent).await?.links, 65_535);
        fs.rename((parent, b"0"), (other, b"y"), RenameMode::Replace).await?;
        assert_eq!(fs.getattr(parent).await?.links, 65_534);
        fs.unmount().await?;
        sound(drive).await
    });
}

/// The index of a large directory must match the directory's real content, even if its blocks do
/// not stay in the cache.
#[test]
fn a_large_directory_is_what_was_done_to_it() {
    on_drive(|rt, drive| async move {
        let small = MountOptions { cache_pages: 64, ..MountOptions::default() };
        let fs = Fs::mount(&rt, drive.clone(), small.clone()).await?;
        let dir = fs.create(Ino::ROOT, b"d", &NewNode::directory()).await?.ino;
        let file = fs.create(dir, b"file", &NewNode::file()).await?.ino;
        let mut expected = BTreeSet::from([b"file".to_vec()]);
        let mut rng = Rng::new(9);
        let name = |n: u64| format!("{n}-{}", "long".repeat((n % 40) as usize)).into_bytes();
        for _ in 0..40_000 {
            let (one, two) = (name(rng.below(6000)), name(rng.below(6000)));
            match rng.below(8) {
                0..4 => {
                    let made = fs.link(file, dir, &one).await.map(|_| ());
                    assert_eq!(made.is_ok(), expected.insert(one), "{made:?}");
                }
                4..6 => {
                    let removed = fs.unlink(dir, &one).await;
                    assert_eq!(removed.is_ok(), expected.remove(&one), "{removed:?}");
                }
                6 => {
                    let moved = fs.rename((dir, &one), (dir, &two), RenameMode::NoReplace).await;
                    let fits = expected.contains(&one) && !expected.contains(&two);
                    assert_eq!(moved.is_ok(), fits, "{moved:?}");
                    if fits {
                        expected.remove(&one);
                        expected.insert(two);
                    }
                }
                _ => assert_eq!(fs.lookup(dir, &one).await.is_ok(), expected.contains(&one)),
            }
        }
        fs.unmount().await?;
        sound(drive.clone()).await?;
        let fs = Fs::mount(&rt, drive.clone(), small).await?;
        for n in 0..6000 {
            let name = name(n);
            assert_eq!(fs.lookup(dir, &name).await.is_ok(), expected.contains(&name));
        }
        assert_eq!(fs.getattr(file).await?.links as usize, expected.len());
        fs.unmount().await
    });
}

#[test]
fn names_and_times_reach_as_far_as_they_should() {
    on_drive(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let name = [b'n'; 255];
        let ino = fs.create(Ino::ROOT, &name, &NewNode::file()).await?.ino;
        let long = fs.create(Ino::ROOT, &[b'n'; 256], &NewNode::file()).await;
        assert_eq!(long.unwrap_err().kind(), ErrorKind::NameTooLong);
        let every: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        fs.create(Ino::ROOT, &every, &NewNode::symlink(&[b't'; 4095])).await?;
        let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
        let (old, new) = (time(-62_135_596_800, 1), time(253_402_300_799, 999_999_999));
        let changes = SetAttr { atime: Some(old), mtime: Some(new), ..SetAttr::default() };
        fs.setattr(ino, changes).await?;
        fs.fsync(ino, false).await?;
        drop(fs);
        let fs = mount(&rt, &drive).await?;
        let attr = fs.lookup(Ino::ROOT, &name).await?;
        assert_eq!((attr.atime, attr.mtime), (old, new));
        assert!(attr.btime.seconds > 0 && attr.btime <= attr.ctime);
        let link = fs.lookup(Ino::ROOT, &every).await?;
        assert_eq!(fs.readlink(link.ino).await?, [b't'; 4095]);
        fs.unmount().await?;
        sound(drive.clone()).await
    });
}
