//! Tests of scrubbing a mounted file system: damage is found, reported and, if memory has the
//! content, repaired. Intact structures are never reported, whatever is written during the scrub.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{SMALL, on_drive, quiet, sound};
use furrow_emu::{Emulator, Fault, FaultKind, Options, When};
use furrow_fs::{
    Fs, Ino, MkfsOptions, NewNode, ScrubOrder, ScrubReport, ScrubState, WriteData, ZoneUse,
};
use furrow_log::record::peek;
use furrow_log::{BlockAddr, read_blocks};
use furrow_rt::{Config, Nanos, Pool, Rng, Rt};
use furrow_zone::{BlockCount, ErrorKind, QueueId, Result, ZoneId, ZonedDevice};
use std::cell::Cell;
use std::rc::Rc;

async fn write(fs: &Fs, name: &str, seed: u64, blocks: usize) -> Result<Ino> {
    let ino = match fs.lookup(Ino::ROOT, name.as_bytes()).await {
        Ok(found) => found.ino,
        Err(_) => fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino,
    };
    let mut rng = Rng::new(seed);
    for block in 0..blocks as u64 {
        let bytes: Vec<u8> = (0..4096).map(|_| rng.next() as u8).collect();
        fs.write(ino, WriteData::copy(fs.pool(), block * 4096, &bytes)).await?;
    }
    Ok(ino)
}

/// Runs a scrub to its end.
async fn scrub(fs: &Fs, repair: bool) -> Result<ScrubReport> {
    fs.scrub(ScrubOrder::Start { repair })?;
    loop {
        fs.rt().yield_now().await;
        let report = fs.scrub_report().unwrap();
        if !report.state.is_under_way() {
            return Ok(report);
        }
    }
}

/// Flips a bit in a block of the medium.
fn flip(drive: &Emulator, zone: u32, offset: u32) {
    let at = BlockAddr::new(drive.geometry(), ZoneId(zone), offset).lba(drive.geometry());
    drive.inject(Fault::new(FaultKind::BitFlip).at_blocks(at, BlockCount(1))).unwrap();
}

/// The written blocks of the drive that begin a record of `kind`: zone and offset of each.
async fn records(fs: &Fs, drive: &Emulator, kind: u16) -> Result<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    for (zone, info) in (0..).zip(fs.zone_map().await?) {
        for offset in 0..info.written {
            let at = BlockAddr::new(drive.geometry(), ZoneId(zone), offset);
            let pages = read_blocks(drive, QueueId(0), at, 1, &Pool::new(4)).await?;
            let header = peek(pages[0].bytes());
            if header.is_some_and(|header| header.kind.get() == kind) {
                found.push((zone, offset));
            }
        }
    }
    Ok(found)
}

fn run<F: Future<Output = Result<()>> + 'static>(test: impl FnOnce(Rt, Emulator) -> F) {
    let options = (Options::simulated(), MkfsOptions::default());
    on_drive(Rt::new(Config::shuffled(3)), SMALL, options, test);
}

#[test]
fn what_is_whole_is_not_called_damaged_while_everything_changes() {
    run(|rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        for file in 0..6 {
            write(&fs, &format!("f{file}"), file, 300).await?;
        }
        fs.sync().await?;
        let over = Rc::new(Cell::new(false));
        let (writer, ended) = (fs.clone(), over.clone());
        let busy = rt.spawn(async move {
            for round in 0u64.. {
                if ended.get() {
                    return Ok(());
                }
                let name = format!("f{}", round % 6);
                let ino = write(&writer, &name, round, 40 + (round as usize * 37) % 260).await?;
                match round % 3 {
                    0 => writer.fsync(ino, false).await?,
                    1 => writer.sync().await?,
                    _ => writer.unlink(Ino::ROOT, name.as_bytes()).await?,
                }
            }
            Ok(())
        });
        for round in 0..40 {
            let report = scrub(&fs, round % 2 == 0).await?;
            assert_eq!(report.state, ScrubState::Finished, "{report:?}");
            assert_eq!((report.damaged, &report.findings[..]), (0, &[][..]), "round {round}");
            assert!(report.done > 100 && report.records > 0, "{report:?}");
        }
        over.set(true);
        let written: Result<()> = busy.await;
        written?;
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

/// A drive that was gone for a moment is read again: the scrub goes on, and nothing is damaged.
#[test]
fn a_drive_that_was_gone_for_a_moment_is_not_damaged() {
    for at in 1..60 {
        run(move |rt, drive| async move {
            let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
            write(&fs, "file", 1, 300).await?;
            fs.sync().await?;
            let whole = scrub(&fs, false).await?.done;
            assert!(whole > 300, "{whole}");
            fs.unmount().await?;
            let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
            let leave = Fault::new(FaultKind::Disappear { commands: Some(1) });
            drive.inject(leave.when(When::Nth(at)).times(1)).unwrap();
            fs.scrub(ScrubOrder::Start { repair: false })?;
            // Time must pass: the scrub may wait for the drive.
            rt.sleep(10_000_000_000).await;
            let report = fs.scrub_report().unwrap();
            assert!(!report.state.is_under_way(), "{at}: {report:?}");
            assert_eq!((report.damaged, &report.findings[..]), (0, &[][..]), "{at}: {report:?}");
            let done = report.state == ScrubState::Finished;
            assert!(!done || report.done >= whole, "{at}: {report:?} of {whole}");
            Ok(())
        });
    }
}

/// A drive that vanishes at any command of a scrub ends the scrub, and nothing counts as damaged.
#[test]
fn a_drive_that_vanishes_is_not_damaged() {
    let reached = Rc::new(Cell::new(0));
    for at in 1..80 {
        let reached = reached.clone();
        run(move |rt, drive| async move {
            let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
            write(&fs, "file", 1, 300).await?;
            fs.unmount().await?;
            let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
            let vanish = Fault::new(FaultKind::Disappear { commands: None });
            drive.inject(vanish.when(When::Nth(at)).times(1)).unwrap();
            let report = scrub(&fs, false).await?;
            assert_eq!((report.damaged, &report.findings[..]), (0, &[][..]), "{at}: {report:?}");
            let failed = report.state == ScrubState::Failed;
            assert!(failed || report.state == ScrubState::Finished, "{at}: {report:?}");
            reached.set(reached.get() + u32::from(failed && report.records > 0));
            Ok(())
        });
    }
    assert!(reached.get() > 5, "{} scrubs failed in blocks of files", reached.get());
}

#[test]
fn damaged_content_is_named_and_written_again_where_the_cache_has_it() {
    run(|rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        let file = write(&fs, "file", 1, 200).await?;
        fs.sync().await?;
        let zones = fs.zone_map().await?;
        let zone = zones.iter().position(|zone| zone.usage == ZoneUse::Data(1)).unwrap() as u32;
        (3..8).for_each(|offset| flip(&drive, zone, offset));
        let report = scrub(&fs, false).await?;
        assert_eq!((report.damaged, report.repaired, report.findings.len()), (5, 0, 1));
        let finding = &report.findings[0];
        assert_eq!((finding.structure, finding.inode, finding.blocks), ("data", Some(file.0), 5));
        assert_eq!(finding.place, format!("zone {zone} offset 3"));
        assert!(finding.what.contains("expected CRC"), "{finding:?}");
        // The cache still has the damaged blocks, so a repair succeeds.
        let report = scrub(&fs, true).await?;
        assert_eq!((report.damaged, report.repaired), (5, 5), "{report:?}");
        let report = scrub(&fs, true).await?;
        assert_eq!(report.damaged, 0, "{report:?}");
        fs.unmount().await?;
        sound(Rc::new(drive.clone())).await?;
        // A new mount has an empty cache, so no copy of this content is left.
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        flip(&drive, zone, 20);
        let report = scrub(&fs, true).await?;
        assert_eq!((report.damaged, report.repaired), (1, 0), "{report:?}");
        let first = report.findings[0].block.unwrap();
        let read = fs.read(file, u64::from(first) * 4096, 4096).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt);
        let whole = fs.read(file, u64::from(first + 1) * 4096, 4096).await?;
        assert_eq!(whole.to_vec().len(), 4096);
        fs.unmount().await
    });
}

#[test]
fn a_damaged_node_is_found_and_written_again() {
    run(|rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        for file in 0..4 {
            write(&fs, &format!("f{file}"), file, 20).await?;
        }
        fs.sync().await?;
        let zones = fs.zone_map().await?;
        let node = |usage| matches!(usage, ZoneUse::Node(_));
        let zone = zones.iter().position(|zone| node(zone.usage) && zone.valid > 0).unwrap();
        (0..zones[zone].written).for_each(|offset| flip(&drive, zone as u32, offset));
        let report = scrub(&fs, true).await?;
        assert!(report.damaged > 0 && report.repaired == report.damaged, "{report:?}");
        assert!(report.findings.iter().all(|finding| finding.structure == "node"), "{report:?}");
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}

/// One bit of each kind of record is flipped, one kind after the other. The scrub finds the damage.
/// The repair leaves a file system without findings, which mounts with all files.
#[test]
fn damaged_records_are_found_and_written_again() {
    // The kinds are superblock, checkpoint, delta log, table page and sync record.
    for kind in [0x10, 0x11, 0x12, 0x13, 0x14] {
        run(move |rt, drive| async move {
            let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
            for file in 0..4 {
                write(&fs, &format!("f{file}"), file, 40).await?;
                fs.sync().await?;
            }
            fs.unmount().await?;
            let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
            let last = write(&fs, "last", 9, 5).await?;
            fs.fsync(last, false).await?;
            let more = write(&fs, "more", 10, 5).await?;
            fs.fsync(more, false).await?;
            if kind == 0x13 {
                // A repair writes all table pages, so that there are some.
                let (zone, offset) = *records(&fs, &drive, 0x12).await?.last().unwrap();
                flip(&drive, zone, offset);
                assert!(scrub(&fs, true).await?.repaired > 0);
            }
            let places = records(&fs, &drive, kind).await?;
            // Hit the first sync record, because later records prove that it existed; of the other
            // kinds, hit the last record.
            let hit = if kind == 0x14 { places.first() } else { places.last() };
            let (zone, offset) = *hit.unwrap();
            assert_eq!(scrub(&fs, false).await?.damaged, 0, "{kind:#x}");
            flip(&drive, zone, offset);
            let found = scrub(&fs, false).await?;
            assert!(found.damaged > 0 && found.repaired == 0, "{kind:#x}: {found:?}");
            let mended = scrub(&fs, true).await?;
            assert_eq!(mended.repaired, mended.damaged, "{kind:#x}: {mended:?}");
            assert_eq!(scrub(&fs, false).await?.damaged, 0, "{kind:#x}");
            drop(fs);
            let left = drive.snapshot().power_cut(&furrow_emu::Fates::nothing(1));
            let drive = Emulator::from_snapshot(&rt, &left, Options::simulated());
            let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
            for name in ["f0", "f3", "last", "more"] {
                fs.lookup(Ino::ROOT, name.as_bytes()).await?;
            }
            fs.unmount().await?;
            sound(Rc::new(drive)).await
        });
    }
}

#[test]
fn a_scrub_pauses_resumes_stops_and_ends_with_the_mount() {
    run(|rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        write(&fs, "file", 1, 2000).await?;
        fs.sync().await?;
        assert_eq!(fs.scrub(ScrubOrder::Pause).unwrap_err().kind(), ErrorKind::Busy);
        assert!(fs.scrub_report().is_none());
        fs.scrub(ScrubOrder::Start { repair: false })?;
        let twice = fs.scrub(ScrubOrder::Start { repair: false }).unwrap_err();
        assert!(twice.to_string().contains("running already"), "{twice}");
        while fs.scrub_report().unwrap().done == 0 {
            rt.yield_now().await;
        }
        fs.scrub(ScrubOrder::Pause)?;
        rt.sleep(Nanos::SECOND).await;
        let paused = fs.scrub_report().unwrap();
        rt.sleep(Nanos::SECOND).await;
        assert_eq!(fs.scrub_report().unwrap().done, paused.done);
        assert_eq!(paused.state, ScrubState::Paused);
        assert!(paused.done < paused.total, "{paused:?}");
        fs.scrub(ScrubOrder::Resume)?;
        rt.sleep(100 * Nanos::SECOND).await;
        let ended = fs.scrub_report().unwrap();
        assert_eq!(ended.state, ScrubState::Finished);
        assert!(ended.done >= ended.total, "{ended:?}");
        fs.scrub(ScrubOrder::Start { repair: false })?;
        fs.scrub(ScrubOrder::Pause)?;
        fs.scrub(ScrubOrder::Stop)?;
        rt.sleep(Nanos::SECOND).await;
        assert_eq!(fs.scrub_report().unwrap().state, ScrubState::Stopped);
        fs.scrub(ScrubOrder::Start { repair: true })?;
        fs.scrub(ScrubOrder::Pause)?;
        fs.unmount().await?;
        sound(Rc::new(drive)).await
    });
}
