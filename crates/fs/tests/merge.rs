//! Tests of the delta log and its merges: progress in the background, and slowness instead
//! of failure.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{quiet, sound};
use furrow_emu::{Emulator, Options};
use furrow_fs::{Counters, Fs, Ino, MkfsOptions, MountOptions, NewNode, SetAttr, WriteData};
use furrow_policy::{FsVariant, Metadata};
use furrow_rt::{Config, Rt};
use furrow_zone::{Access, DeviceSpec, Result};
use std::future::Future;
use std::rc::Rc;

/// A drive on which each half of the delta log has one zone.
const DRIVE: &str = "mem:zones=390,zone-size=256KiB,zone-capacity=192KiB,max-active=14,channels=1";

fn on<T: 'static, F: Future<Output = Result<T>> + 'static>(rt: &Rt, test: F) -> T {
    let result = rt.block_on(test);
    rt.clear();
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Changes one block in `many` of the files and makes a checkpoint, `rounds` times. Returns the
/// last version of each file.
async fn work(fs: &Fs, rounds: u64, many: u64) -> Result<Vec<(Ino, u8)>> {
    let mut files = Vec::new();
    for n in 0..4000 {
        let name = format!("f{n}");
        let ino = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino;
        files.push((ino, 0));
    }
    for round in 0..rounds {
        for n in 0..many {
            let (ino, version) = &mut files[((round * many + n) * 7919 % 4000) as usize];
            *version = (round % 250) as u8 + 1;
            fs.write(*ino, WriteData::copy(fs.pool(), 0, &[*version; 4096])).await?;
        }
        fs.sync().await?;
    }
    Ok(files)
}

async fn holds(fs: &Fs, files: &[(Ino, u8)]) -> Result<()> {
    for (ino, version) in files.iter().filter(|(_, version)| *version > 0) {
        let page = fs.read(*ino, 0, 4096).await?.to_vec();
        assert!(page.iter().all(|byte| byte == version), "{ino}");
    }
    Ok(())
}

/// Runs `work`, cuts the power at any point of the merge, and checks the result.
fn run(rounds: u64, many: u64, metadata: Metadata, unit_blocks: Option<u32>) -> Counters {
    let make = MkfsOptions { unit_blocks, ..MkfsOptions::default() };
    let variant = FsVariant { metadata, ..FsVariant::default() };
    let options = MountOptions { variant, ..quiet() };
    let spec: DeviceSpec = DRIVE.parse().unwrap();
    let rt = Rt::new(Config::shuffled(5));
    let drive = furrow_emu::open(&rt, &spec, Access::ReadWrite).unwrap();
    let host = rt.clone();
    let (files, counters, left) = on(&rt, async move {
        Fs::format(&host, drive.clone(), &make).await?;
        let fs = Fs::mount(&host, drive.clone(), options).await?;
        let files = work(&fs, rounds, many).await?;
        holds(&fs, &files).await?;
        Ok((files, fs.counters(), drive.snapshot()))
    });
    let rt = Rt::new(Config::shuffled(6));
    let drive = Rc::new(Emulator::from_snapshot(&rt, &left, Options::simulated()));
    let host = rt.clone();
    on(&rt, async move {
        sound(drive.clone()).await?;
        // Each kind of metadata continues from tables that either kind wrote.
        for metadata in [metadata, Metadata::Log, Metadata::Pair, Metadata::Log] {
            let variant = FsVariant { metadata, ..FsVariant::default() };
            let options = MountOptions { variant, ..quiet() };
            let fs = Fs::mount(&host, drive.clone(), options).await?;
            holds(&fs, &files).await?;
            fs.unmount().await?;
            sound(drive.clone()).await?;
        }
        Ok(())
    });
    counters
}

#[test]
fn merges_go_on_beside_operations_and_write_what_changed() {
    let counters = run(100, 40, Metadata::Log, None);
    assert!(counters.merges > 1 && counters.merge_bytes > 0, "{counters:?}");
    assert_eq!(counters.merge_throttles, 0);
}

/// Each checkpoint takes more than half of a log half, and there is no pause between checkpoints.
#[test]
fn a_log_that_fills_before_the_merge_is_over_makes_writers_slow() {
    let spec: DeviceSpec = format!("{DRIVE},timing=virtual,model=zn540-1t").parse().unwrap();
    let rt = Rt::new(Config::shuffled(5));
    let drive = furrow_emu::open(&rt, &spec, Access::ReadWrite).unwrap();
    let host = rt.clone();
    let counters = on(&rt, async move {
        Fs::format(&host, drive.clone(), &MkfsOptions::default()).await?;
        let fs = Fs::mount(&host, drive.clone(), quiet()).await?;
        let mut files = Vec::new();
        for n in 0..4900 {
            let name = format!("f{n}");
            files.push(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino);
        }
        for round in 0..6 {
            for ino in &files {
                fs.setattr(*ino, SetAttr { mode: Some(round), ..SetAttr::default() }).await?;
            }
            fs.sync().await?;
        }
        let counters = fs.counters();
        fs.unmount().await?;
        sound(drive).await?;
        Ok(counters)
    });
    let (throttles, stall) = (counters.merge_throttles, counters.longest_merge_stall_ns);
    assert!(throttles > 0 && stall > 0, "{counters:?}");
}

#[test]
fn plain_pairs_of_zones_need_no_log() {
    // A table page has one block, or fills a zone of 48 blocks.
    for blocks in [1, 48] {
        let counters = run(100, 40, Metadata::Pair, Some(blocks));
        assert_eq!((counters.merges, counters.merge_throttles), (0, 0));
    }
}

#[test]
fn a_table_page_larger_than_a_zone_is_refused() {
    let spec: DeviceSpec = DRIVE.parse().unwrap();
    let rt = Rt::new(Config::simulated(1));
    let drive = furrow_emu::open(&rt, &spec, Access::ReadWrite).unwrap();
    let make = MkfsOptions { unit_blocks: Some(49), ..MkfsOptions::default() };
    let host = rt.clone();
    let refused = rt.block_on(async move { Fs::format(&host, drive, &make).await.map(drop) });
    rt.clear();
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("table pages of 49 blocks: 1 to 48 fit"), "{message}");
}
