//! Tests of allocation, holes, copies, files without a name and access times, through the library.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{checked, mount, on_small, quiet};
use furrow_fs::{
    AccessTime, Allocate, Fs, Ino, MountOptions, NewNode, Seek, SetAttr, Time, WriteData,
};
use furrow_rt::Nanos;
use furrow_zone::{ErrorKind, Result};

const KB4: u64 = 4096;

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    Ok(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino)
}

async fn write(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
    for (at, part) in (offset..).step_by(1 << 20).zip(bytes.chunks(1 << 20)) {
        fs.write(ino, WriteData::copy(fs.pool(), at, part)).await?;
    }
    Ok(())
}

async fn truncate(fs: &Fs, ino: Ino, size: u64) -> Result<()> {
    fs.setattr(ino, SetAttr { size: Some(size), ..SetAttr::default() }).await.map(|_| ())
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8 | 1).collect()
}

async fn content(fs: &Fs, ino: Ino) -> Result<Vec<u8>> {
    let size = fs.getattr(ino).await?.size;
    Ok(fs.read(ino, 0, size as usize).await?.to_vec())
}

#[test]
fn punching_gives_whole_blocks_back_and_zeroes_the_rest() {
    on_small(|rt, drive| async move {
        let mut fs = mount(&rt, &drive).await?;
        // Use a file of height 0, and one of height 1 with several leaves.
        for (name, blocks) in [("flat", 100), ("tall", 2000)] {
            let ino = file(&fs, name).await?;
            let mut expected = pattern((blocks * KB4 + 100) as usize);
            write(&fs, ino, 0, &expected).await?;
            if name == "tall" {
                fs.sync().await?;
                // Leave some blocks only in memory.
                write(&fs, ino, 700 * KB4, &expected[..(3 * KB4) as usize]).await?;
                expected.copy_within(..(3 * KB4) as usize, (700 * KB4) as usize);
            }
            let end = expected.len() as u64;
            let holes = [
                (10 * KB4 + 7, 5),
                (20 * KB4, KB4),
                (30 * KB4 + 1, 3 * KB4),
                (40 * KB4 - 1, 2),
                (end - 50, 5000),
                (50 * KB4, if blocks == 100 { 10 * KB4 } else { 1800 * KB4 + 9 }),
            ];
            let mut full = 0;
            for (offset, len) in holes {
                fs.fallocate(ino, Allocate::Punch, offset, len).await?;
                let to = (offset + len).min(end);
                expected[offset as usize..to as usize].fill(0);
                full += (to / KB4).saturating_sub(offset.div_ceil(KB4));
                assert!(content(&fs, ino).await? == expected, "{name} {offset}+{len}");
            }
            let attr = fs.getattr(ino).await?;
            assert_eq!((attr.size, attr.blocks), (end, blocks + 1 - full), "{name}");
            fs.fsync(ino, false).await?;
            fs = checked(fs, &rt, &drive).await?;
            assert!(content(&fs, ino).await? == expected, "{name} again");
            assert_eq!(fs.getattr(ino).await?.blocks, blocks + 1 - full);
        }
        fs.unmount().await
    });
}

#[test]
fn filling_takes_blocks_and_zeroing_keeps_them() {
    on_small(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let ino = file(&fs, "file").await?;
        write(&fs, ino, 2 * KB4, b"data").await?;
        fs.fallocate(ino, Allocate::KeepSize, 0, 100 * KB4).await?;
        let attr = fs.getattr(ino).await?;
        assert_eq!((attr.size, attr.blocks), (2 * KB4 + 4, 3), "nothing past the end");
        fs.fallocate(ino, Allocate::Extend, KB4, 700 * KB4 + 1).await?;
        let attr = fs.getattr(ino).await?;
        assert_eq!((attr.size, attr.blocks), (701 * KB4 + 1, 702));
        fs.fallocate(ino, Allocate::Zero, 2 * KB4 + 2, 800 * KB4).await?;
        let mut expected = vec![0; (802 * KB4 + 2) as usize];
        expected[(2 * KB4) as usize..(2 * KB4 + 2) as usize].copy_from_slice(b"da");
        assert!(content(&fs, ino).await? == expected);
        assert_eq!(fs.getattr(ino).await?.blocks, 803);
        fs.fallocate(ino, Allocate::ZeroKeepSize, 0, 900 * KB4).await?;
        assert_eq!(fs.getattr(ino).await?.size, 802 * KB4 + 2);
        let free = fs.statfs().blocks_available * KB4;
        let much = fs.fallocate(ino, Allocate::Extend, 0, 2 * free + 4000 * KB4).await;
        assert_eq!(much.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(fs.getattr(ino).await?.size, 802 * KB4 + 2, "refused before anything");
        let none = fs.fallocate(ino, Allocate::Punch, 5, 0).await;
        assert_eq!(none.unwrap_err().kind(), ErrorKind::Invalid);
        let far = fs.fallocate(ino, Allocate::Extend, u64::MAX - 5, 10).await;
        assert_eq!(far.unwrap_err().kind(), ErrorKind::Invalid);
        let far = fs.fallocate(ino, Allocate::Extend, 1 << 50, 10).await;
        assert_eq!(far.unwrap_err().kind(), ErrorKind::TooLarge);
        let dir = fs.fallocate(Ino::ROOT, Allocate::Punch, 0, 10).await;
        assert_eq!(dir.unwrap_err().kind(), ErrorKind::IsDirectory);
        checked(fs, &rt, &drive).await?.unmount().await
    });
}

#[test]
fn data_and_holes_are_found_in_files_of_any_size() {
    on_small(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let ino = file(&fs, "file").await?;
        let last = furrow_fs::format::FILE_MAX;
        let data = async |from| fs.seek(ino, from, Seek::Data).await;
        let hole = async |from| fs.seek(ino, from, Seek::Hole).await;
        assert_eq!((data(0).await?, hole(0).await?), (None, None), "empty");
        // Make a file of 16 TiB with blocks far apart, some on the drive and some in memory.
        let islands = [(3, 2), (447, 3), (600_000, 1), (1 << 31, 600), (last / KB4 - 1, 1)];
        for (block, count) in islands {
            write(&fs, ino, block * KB4, &pattern((count * KB4) as usize)).await?;
            if block < 1000 {
                fs.sync().await?;
            }
        }
        assert_eq!(fs.getattr(ino).await?.size, last);
        let past = fs.write(ino, WriteData::copy(fs.pool(), last, b"x")).await;
        assert_eq!(past.unwrap_err().kind(), ErrorKind::TooLarge);
        for round in 0..2 {
            let mut at = 0;
            for (block, count) in islands {
                assert_eq!(data(at).await?, Some(block * KB4), "{round}");
                assert_eq!(hole(at).await?, Some(at));
                assert_eq!(data(block * KB4 + 5).await?, Some(block * KB4 + 5));
                at = (block + count) * KB4;
                assert_eq!(hole(block * KB4 + 5).await?, Some(at));
            }
            assert_eq!((data(last).await?, hole(last).await?), (None, None));
            fs.sync().await?;
        }
        assert_eq!(fs.read(ino, last - 10, 100).await?.to_vec(), pattern(4096)[4086..]);
        // Holes of terabytes are punched in few steps, and truncated in few steps.
        fs.fallocate(ino, Allocate::Punch, KB4, last - 2 * KB4).await?;
        assert_eq!(data(0).await?, Some(last - KB4));
        assert_eq!(fs.getattr(ino).await?.blocks, 1);
        truncate(&fs, ino, 1 << 42).await?;
        assert_eq!(data(0).await?, None);
        assert_eq!(hole(5).await?, Some(5));
        truncate(&fs, ino, last).await?;
        let over = truncate(&fs, ino, last + 1).await;
        assert_eq!(over.unwrap_err().kind(), ErrorKind::TooLarge);
        fs.unlink(Ino::ROOT, b"file").await?;
        checked(fs, &rt, &drive).await?.unmount().await
    });
}

#[test]
fn copies_are_the_same_and_keep_holes() {
    on_small(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let from = file(&fs, "from").await?;
        let bytes = pattern((5 << 20) + 77);
        write(&fs, from, 0, &bytes).await?;
        fs.fallocate(from, Allocate::Punch, 1 << 20, 2 << 20).await?;
        let source = content(&fs, from).await?;
        for (shift, to_shift) in [(0, 0), (100, 100), (0, 13), (4097, 1)] {
            let to = file(&fs, &format!("to{shift}-{to_shift}")).await?;
            write(&fs, to, 0, &[9; 50_000]).await?;
            let copied = fs.copy_range((from, shift), (to, to_shift), u64::MAX - 5).await?;
            assert_eq!(copied, source.len() as u64 - shift);
            let mut expected = vec![9; to_shift as usize];
            expected.extend_from_slice(&source[shift as usize..]);
            assert!(content(&fs, to).await? == expected, "{shift} {to_shift}");
            let blocks = fs.getattr(to).await?.blocks;
            assert!(blocks < expected.len() as u64 / KB4 - 500, "{blocks}: holes stay holes");
        }
        let within = fs.copy_range((from, 0), (from, 3 << 20), 1 << 20).await?;
        assert_eq!(within, 1 << 20);
        let again = content(&fs, from).await?;
        assert!(again[3 << 20..4 << 20] == source[..1 << 20]);
        let overlap = fs.copy_range((from, 0), (from, 4096), 4097).await;
        assert_eq!(overlap.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(fs.copy_range((from, 1 << 40), (from, 0), 10).await?, 0);
        fs.sync_range(from, 0, 1 << 20).await?;
        checked(fs, &rt, &drive).await?.unmount().await
    });
}

#[test]
fn a_file_without_a_name_gets_one_or_vanishes() {
    on_small(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let inodes = fs.statfs().inodes_free;
        let unnamed = async |fs: &Fs| fs.create_unnamed(Ino::ROOT, &NewNode::file()).await;
        // A file without a name must be removed when it is released.
        let gone = unnamed(&fs).await?;
        assert_eq!(gone.links, 0);
        write(&fs, gone.ino, 0, &pattern(50_000)).await?;
        fs.fsync(gone.ino, false).await?;
        fs.release(gone.ino).await?;
        assert_eq!(fs.getattr(gone.ino).await.unwrap_err().kind(), ErrorKind::NotFound);
        // Make files before a checkpoint, between two, and after both. Each file is synced, then
        // named; then the drive crashes.
        let mut made = Vec::new();
        for round in 0..3 {
            let attr = unnamed(&fs).await?;
            write(&fs, attr.ino, 0, &pattern(9000 + round)).await?;
            fs.fsync(attr.ino, false).await?;
            made.push(attr.ino);
            if round < 2 {
                fs.sync().await?;
            }
        }
        let lost = unnamed(&fs).await?;
        fs.fsync(lost.ino, false).await?;
        for (round, ino) in made.iter().enumerate() {
            let linked = fs.link(*ino, Ino::ROOT, format!("name{round}").as_bytes()).await?;
            assert_eq!(linked.links, 1);
        }
        fs.fsync(Ino::ROOT, false).await?;
        drop(fs);
        let mut fs = mount(&rt, &drive).await?;
        for _ in 0..2 {
            for round in 0..3 {
                let name = format!("name{round}");
                let attr = fs.lookup(Ino::ROOT, name.as_bytes()).await?;
                assert_eq!((attr.links, attr.size), (1, 9000 + round));
                assert!(content(&fs, attr.ino).await? == pattern(9000 + round as usize));
            }
            assert_eq!(fs.getattr(lost.ino).await.unwrap_err().kind(), ErrorKind::NotFound);
            fs = checked(fs, &rt, &drive).await?;
        }
        assert_eq!(fs.statfs().inodes_free, inodes - 3);
        // A file that lost its name cannot get another one.
        let open = fs.open(made[0]).await?.ino;
        fs.unlink(Ino::ROOT, b"name0").await?;
        let late = fs.link(open, Ino::ROOT, b"late").await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::NotFound);
        fs.release(open).await?;
        checked(fs, &rt, &drive).await?.unmount().await
    });
}

#[test]
fn reading_changes_the_time_of_access_as_asked() {
    on_small(|rt, drive| async move {
        let modes = [
            (AccessTime::Never, false),
            (AccessTime::Relative, false),
            (AccessTime::Relative, true),
            (AccessTime::Always, false),
            (AccessTime::Always, true),
        ];
        for (turn, (access_time, lazy_time)) in modes.into_iter().enumerate() {
            let options = MountOptions { access_time, lazy_time, ..quiet() };
            let fs = Fs::mount(&rt, drive.clone(), options).await?;
            let ino = file(&fs, &format!("file{turn}")).await?;
            write(&fs, ino, 0, b"x").await?;
            let wait = async || rt.sleep(10 * Nanos::SECOND).await;
            let read = async || {
                wait().await;
                fs.read(ino, 0, 1).await?;
                Ok::<Time, furrow_zone::Error>(fs.getattr(ino).await?.atime)
            };
            let before = fs.getattr(ino).await?;
            let first = read().await?;
            assert_eq!(first > before.atime, access_time != AccessTime::Never, "{turn}");
            let second = read().await?;
            assert_eq!(second > first, access_time == AccessTime::Always, "{turn}");
            let now = fs.lookup(Ino::ROOT, format!("file{turn}").as_bytes()).await?;
            assert_eq!((now.atime, now.mtime, now.ctime), (second, before.mtime, before.ctime));
            // A relative access time is updated after a day, or after a change.
            rt.sleep(25 * 3600 * Nanos::SECOND).await;
            fs.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await?;
            let third = read().await?;
            assert_eq!(third > second, access_time != AccessTime::Never, "{turn}");
            rt.sleep(25 * 3600 * Nanos::SECOND).await;
            fs.create(Ino::ROOT, format!("other{turn}").as_bytes(), &NewNode::file()).await?;
            let fourth = read().await?;
            assert_eq!(fourth > third, access_time != AccessTime::Never, "{turn}: a day");
            // Listing a directory counts as an access too.
            wait().await;
            let listed = fs.getattr(Ino::ROOT).await?.atime;
            fs.readdir(Ino::ROOT, 0, 10).await?;
            let relisted = fs.getattr(Ino::ROOT).await?.atime;
            assert_eq!(relisted > listed, access_time != AccessTime::Never, "{turn}: directory");
            let fs = checked(fs, &rt, &drive).await?;
            assert_eq!(fs.getattr(ino).await?.atime, fourth, "{turn}: kept");
            fs.unmount().await?;
        }
        let options = MountOptions { directory_access_time: false, ..quiet() };
        let fs = Fs::mount(&rt, drive.clone(), options).await?;
        file(&fs, "last").await?;
        rt.sleep(Nanos::SECOND).await;
        let listed = fs.getattr(Ino::ROOT).await?.atime;
        fs.readdir(Ino::ROOT, 0, 10).await?;
        assert_eq!(fs.getattr(Ino::ROOT).await?.atime, listed);
        fs.unmount().await
    });
}
