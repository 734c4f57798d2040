//! Tests of cleaning: a drive that is full of garbage is not full.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use furrow_emu::{Emulator, Fault, FaultKind, Medium, Options};
use furrow_fs::{
    CleanOptions, Fs, FsckOptions, GcOptions, Ino, MkfsOptions, MountOptions, NewNode, WriteData,
    ZoneUse,
};
use furrow_rt::{Config, Nanos, Rng, Rt};
use furrow_zone::{BlockCount, ErrorKind, Lba, Result, ZoneId, ZonedDevice};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

const SMALL: &str = "zones=64,zone-size=256KiB,zone-capacity=200KiB,max-active=14,channels=1";

/// Runs `test` on a fresh file system on a drive of `spec`, then runs fsck. Returns the hash of all
/// events.
fn on_drive<F: Future<Output = Result<()>> + 'static>(
    spec: &str,
    width: Option<u32>,
    seed: u64,
    test: impl FnOnce(Rt, Emulator) -> F,
) -> (u64, u64) {
    let rt = Rt::new(Config::shuffled(seed));
    let geometry = furrow_zone::spec::parse_geometry(spec).unwrap();
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap();
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let (on, dev) = (rt.clone(), device.clone());
    let options = MkfsOptions { width, ..MkfsOptions::default() };
    rt.block_on(async move { Fs::format(&on, dev, &options).await }).unwrap();
    let test = test(rt.clone(), drive);
    if let Err(error) = rt.block_on(test) {
        panic!("{spec}: {error}");
    }
    let report =
        rt.block_on(async move { furrow_fs::fsck(device, &FsckOptions::default()).await }).unwrap();
    assert!(report.findings.is_empty(), "{spec}: {:?}", report.findings);
    let hash = rt.event_hash();
    rt.clear();
    hash
}

fn options() -> MountOptions {
    MountOptions { cache_pages: 256, commit_interval: 5 * Nanos::SECOND, ..Default::default() }
}

/// Mount options without periodic checkpoints and without background cleaning.
fn quiet() -> MountOptions {
    MountOptions {
        commit_interval: 100_000 * Nanos::SECOND,
        gc: GcOptions { background: false, ..Default::default() },
        ..options()
    }
}

async fn mount(rt: &Rt, drive: &Emulator, options: MountOptions) -> Result<Fs> {
    Fs::mount(rt, Rc::new(drive.clone()), options).await
}

/// A block whose content identifies file, number and version.
fn block(file: u64, number: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng::new(file << 40 ^ number << 16 ^ version);
    (0..512).flat_map(|_| rng.next().to_le_bytes()).collect()
}

async fn write(fs: &Fs, ino: Ino, number: u64, bytes: &[u8]) -> Result<()> {
    fs.write(ino, WriteData::copy(fs.pool(), number * 4096, bytes)).await
}

async fn holds(fs: &Fs, ino: Ino, file: u64, versions: &[u64]) -> Result<()> {
    for (number, version) in versions.iter().enumerate() {
        let found = fs.read(ino, number as u64 * 4096, 4096).await?.to_vec();
        let expected = block(file, number as u64, *version);
        assert!(found == expected, "inode {ino} block {number} version {version}");
    }
    Ok(())
}

/// Makes a file of as many blocks as `fs` accepts, up to `most`; returns the number of blocks.
async fn fill(fs: &Fs, name: &str, file: u64, most: u64) -> Result<(Ino, u64)> {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino;
    for number in 0..most {
        match write(fs, ino, number, &block(file, number, 0)).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok((ino, number)),
            Err(error) => return Err(error),
        }
    }
    Ok((ino, most))
}

#[test]
fn twenty_times_full_and_empty_again() {
    on_drive(SMALL, None, 1, |rt, drive| async move {
        let fs = mount(&rt, &drive, options()).await?;
        let capacity = fs.statfs().blocks_available;
        for round in 0..20u64 {
            let mut files = Vec::new();
            // Make files of all sizes, down to a single block.
            let mut rng = Rng::new(round);
            loop {
                let name = format!("{round}-{}", files.len());
                let number = files.len() as u64;
                let most = 1 << rng.below(9);
                let made = fill(&fs, &name, number, 1 + rng.below(most)).await;
                match made {
                    Ok((ino, blocks)) => files.push((name, ino, blocks)),
                    Err(error) if error.kind() == ErrorKind::NoSpace => break,
                    Err(error) => return Err(error),
                }
            }
            let blocks: u64 = files.iter().map(|file| file.2).sum();
            let used = blocks + files.len() as u64;
            assert!(used * 100 > capacity * 95, "round {round}: {used} of {capacity} blocks");
            for (number, (_, ino, blocks)) in files.iter().enumerate() {
                holds(&fs, *ino, number as u64, &vec![0; *blocks as usize]).await?;
            }
            for (name, ..) in &files {
                fs.unlink(Ino::ROOT, name.as_bytes()).await?;
            }
            let space = fs.statfs();
            assert!(space.blocks_available * 100 > capacity * 95, "round {round}: {space:?}");
        }
        fs.unmount().await
    });
}

/// Overwrites random blocks of a drive that is 95 % full. In all, writes `times` the
/// drive's capacity.
async fn overwrite(rt: Rt, drive: Emulator, times: u64, files: u64) -> Result<()> {
    let fs = mount(&rt, &drive, options()).await?;
    let capacity = fs.statfs().blocks_available;
    let each = capacity * 95 / 100 / files - 2;
    let mut content = BTreeMap::new();
    for file in 0..files {
        let (ino, blocks) = fill(&fs, &format!("{file}"), file, each).await?;
        assert_eq!(blocks, each, "file {file}: {:?}", fs.statfs());
        content.insert(file, (ino, vec![0u64; each as usize]));
    }
    let mut rng = Rng::new(7);
    for count in 0..capacity * times {
        let (file, number) = (rng.below(files), rng.below(each));
        let (ino, versions) = content.get_mut(&file).unwrap();
        versions[number as usize] += 1;
        let bytes = block(file, number, versions[number as usize]);
        if let Err(error) = write(&fs, *ino, number, &bytes).await {
            panic!("overwrite {count}: {error}; {:?} {:?}", fs.statfs(), fs.counters());
        }
        if rng.one_in(500) {
            fs.fsync(*ino, false).await?;
        }
    }
    let counters = fs.counters();
    assert!(counters.clean_victims > 0 && counters.clean_failed_blocks == 0, "{counters:?}");
    println!("{:?}\n{counters:?}", fs.statfs());
    fs.unmount().await?;
    let fs = mount(&rt, &drive, options()).await?;
    for (file, (ino, versions)) in &content {
        holds(&fs, *ino, *file, versions).await?;
    }
    fs.unmount().await
}

#[test]
fn ten_capacities_of_overwrites_at_95_percent() {
    on_drive(SMALL, None, 2, |rt, drive| overwrite(rt, drive, 10, 3));
}

/// Each block has a node of its own: cleaning a block of data also rewrites a node.
#[test]
fn overwrites_of_files_of_one_block() {
    on_drive(SMALL, None, 4, |rt, drive| async move {
        let fs = mount(&rt, &drive, options()).await?;
        let capacity = fs.statfs().blocks_available;
        let files = capacity * 90 / 100 / 2 - 20;
        let mut content = Vec::new();
        for file in 0..files {
            let (ino, blocks) = fill(&fs, &format!("{file}"), file, 1).await?;
            assert_eq!(blocks, 1, "file {file}: {:?}", fs.statfs());
            content.push((ino, 0));
        }
        let mut rng = Rng::new(7);
        for count in 0..capacity * 4 {
            let file = rng.below(files);
            let (ino, version) = &mut content[file as usize];
            *version += 1;
            if let Err(error) = write(&fs, *ino, 0, &block(file, 0, *version)).await {
                panic!("overwrite {count}: {error}; {:?} {:?}", fs.statfs(), fs.counters());
            }
        }
        println!("{:?}\n{:?}", fs.statfs(), fs.counters());
        for (file, (ino, version)) in content.iter().enumerate() {
            holds(&fs, *ino, file as u64, &[*version]).await?;
        }
        fs.unmount().await
    });
}

#[test]
fn cleaning_on_request_moves_what_is_valid_and_nothing_else() {
    on_drive(SMALL, None, 3, |rt, drive| async move {
        let fs = mount(&rt, &drive, quiet()).await?;
        let (ino, _) = fill(&fs, "f", 0, 1500).await?;
        fs.sync().await?;
        let mut versions = vec![0; 1500];
        for number in (0..1500).step_by(3) {
            versions[number] = 1;
            write(&fs, ino, number as u64, &block(0, number as u64, 1)).await?;
        }
        fs.sync().await?;
        let before = fs.statfs();
        let report = fs.clean(CleanOptions::default()).await?;
        let after = fs.statfs();
        println!("{report:?}\n{before:?}\n{after:?}");
        assert!(report.superzones > 5 && report.data_blocks >= 750, "{report:?}");
        assert_eq!((report.failed_blocks, after.blocks_free), (0, before.blocks_free));
        assert!(after.blocks_now > before.blocks_now && after.blocks_stale < before.blocks_stale);
        holds(&fs, ino, 0, &versions).await?;
        fs.unmount().await?;
        let fs = mount(&rt, &drive, quiet()).await?;
        holds(&fs, ino, 0, &versions).await?;
        fs.unmount().await
    });
}

/// The address of block `offset` of `zone`, for injecting a fault.
fn at(drive: &Emulator, zone: usize, offset: u64) -> Lba {
    Lba(drive.geometry().start(ZoneId(zone as u32)).0 + offset)
}

/// Makes a file of `blocks` blocks, each written alternately with a block of another file, which is
/// then removed: half of each superzone is garbage.
async fn half_garbage(fs: &Fs, blocks: u64) -> Result<Ino> {
    let kept = fs.create(Ino::ROOT, b"kept", &NewNode::file()).await?.ino;
    let gone = fs.create(Ino::ROOT, b"gone", &NewNode::file()).await?.ino;
    for number in 0..blocks {
        write(fs, kept, number, &block(0, number, 0)).await?;
        fs.fsync(kept, false).await?;
        write(fs, gone, number, &block(1, number, 0)).await?;
        fs.fsync(gone, false).await?;
    }
    fs.sync().await?;
    fs.unlink(Ino::ROOT, b"gone").await?;
    fs.sync().await?;
    Ok(kept)
}

/// Zones that hold data and are fully written.
async fn full_data_zones(fs: &Fs) -> Result<Vec<usize>> {
    let zones = fs.zone_map().await?.into_iter().enumerate();
    let full = zones
        .filter(|(_, zone)| matches!(zone.usage, ZoneUse::Data(_)) && !zone.open && zone.valid > 0);
    Ok(full.map(|(index, _)| index).collect())
}

#[test]
fn a_damaged_block_stays_and_is_named_while_cleaning_goes_on() {
    on_drive(SMALL, None, 5, |rt, drive| async move {
        let fs = mount(&rt, &drive, quiet()).await?;
        let kept = half_garbage(&fs, 300).await?;
        fs.unmount().await?;
        let fs = mount(&rt, &drive, quiet()).await?;
        let zones = full_data_zones(&fs).await?;
        assert!(zones.len() > 5, "{zones:?}");
        // Flip a bit in each block of one zone, and inject a read error in another.
        let (rotten, unread) = (zones[1], zones[3]);
        let valid = fs.zone_map().await?[rotten].valid;
        for offset in 0..48 {
            let fault = Fault::new(FaultKind::BitFlip);
            drive.inject(fault.at_blocks(at(&drive, rotten, offset), BlockCount(1))).unwrap();
        }
        let fault =
            Fault::new(FaultKind::ReadError).at_blocks(at(&drive, unread, 2), BlockCount(3));
        drive.inject(fault).unwrap();
        let before = fs.statfs();
        let report = fs.clean(CleanOptions { garbage_percent: 0, ..Default::default() }).await?;
        println!("{report:?} {:?}", fs.damaged_blocks());
        assert!(report.failed_blocks > u64::from(valid), "{report:?}");
        assert!(report.superzones as usize >= zones.len() - 2, "{report:?}");
        assert_eq!(fs.counters().clean_failed_blocks, report.failed_blocks);
        let named = |what: &str| report.failures.iter().any(|failure| failure.contains(what));
        let zone = format!("zone {rotten} offset");
        assert!(named(&zone) && named("expected CRC") && named("inode"), "{:?}", report.failures);
        // Blocks that could not be moved stay in their old places, and are not tried again.
        let map = fs.zone_map().await?;
        assert_eq!((map[rotten].valid, map[unread].usage), (valid, ZoneUse::Data(1)));
        let again = fs.clean(CleanOptions { garbage_percent: 0, ..Default::default() }).await?;
        assert_eq!(again.failed_blocks, 0, "{again:?}");
        assert!(fs.statfs().blocks_now > before.blocks_now);
        drive.clear_faults(None).unwrap();
        let mut refused = 0;
        for number in 0..300 {
            match fs.read(kept, number * 4096, 4096).await {
                Ok(found) => assert!(found.to_vec() == block(0, number, 0), "block {number}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    refused += 1;
                }
            }
        }
        assert_eq!(refused, valid);
        // Only overwriting or removing the file frees its space.
        fs.unlink(Ino::ROOT, b"kept").await?;
        fs.sync().await?;
        assert_eq!(fs.zone_map().await?[rotten].usage, ZoneUse::Free);
        fs.unmount().await
    });
}

/// A zone is not reset while cleaning reads it, even if all of its blocks become garbage during
/// the read.
#[test]
fn a_zone_that_cleaning_reads_is_not_reset() {
    on_drive(SMALL, None, 5, |rt, drive| async move {
        let fs = mount(&rt, &drive, quiet()).await?;
        half_garbage(&fs, 300).await?;
        fs.unmount().await?;
        let fs = mount(&rt, &drive, quiet()).await?;
        let zones = full_data_zones(&fs).await?;
        let slow = Fault::new(FaultKind::Slow { polls: 0, nanoseconds: Nanos::SECOND });
        for zone in &zones {
            // One of the two blocks is valid.
            let valid = slow.at_blocks(at(&drive, *zone, 0), BlockCount(2));
            drive.inject(valid.times(1)).unwrap();
        }
        let cleaner = fs.clone();
        let cleaning = rt.spawn(async move {
            cleaner.clean(CleanOptions { garbage_percent: 0, ..Default::default() }).await
        });
        rt.sleep(Nanos::SECOND / 2).await;
        fs.unlink(Ino::ROOT, b"kept").await?;
        for _ in 0..2 {
            fs.sync().await?;
        }
        let report = cleaning.await?;
        assert_eq!((report.failed_blocks, fs.damaged_blocks()), (0, vec![]), "{report:?}");
        fs.unmount().await
    });
}

/// If a summary is damaged, all nodes are searched for the owners of the segment's blocks.
#[test]
fn a_damaged_summary_costs_a_search_but_no_block() {
    on_drive(SMALL, None, 6, |rt, drive| async move {
        let fs = mount(&rt, &drive, quiet()).await?;
        let kept = half_garbage(&fs, 200).await?;
        fs.unmount().await?;
        let fs = mount(&rt, &drive, quiet()).await?;
        let zones = full_data_zones(&fs).await?;
        // Segments have 25 blocks here, and a zone has two segments.
        for (zone, offset) in [(zones[0], 24), (zones[0], 49), (zones[2], 24)] {
            let place = at(&drive, zone, offset);
            let fault = Fault::new(FaultKind::BitFlip).at_blocks(place, BlockCount(1));
            drive.inject(fault).unwrap();
        }
        let report = fs.clean(CleanOptions { garbage_percent: 0, ..Default::default() }).await?;
        assert_eq!(report.failed_blocks, 0, "{:?}", report.failures);
        assert!(report.superzones as usize >= zones.len(), "{report:?}");
        holds(&fs, kept, 0, &[0; 200]).await?;
        fs.unmount().await
    });
}

/// The first pointers of a file that grew are in a leaf, while older summaries name the inode.
#[test]
fn blocks_of_a_file_that_grew_since_find_their_owner() {
    on_drive(SMALL, None, 7, |rt, drive| async move {
        let fs = mount(&rt, &drive, quiet()).await?;
        let kept = half_garbage(&fs, 200).await?;
        for (index, far) in [500u64, 500_000].into_iter().enumerate() {
            write(&fs, kept, far, &block(0, far, 9)).await?;
            fs.sync().await?;
            // Overwrite other blocks each time, so that a different part of the garbage remains.
            for number in (index as u64..200).step_by(7) {
                write(&fs, kept, number, &block(0, number, 0)).await?;
            }
            let options = CleanOptions { garbage_percent: 0, ..Default::default() };
            let report = fs.clean(options).await?;
            assert!(report.superzones > 1 && report.failed_blocks == 0, "{report:?}");
        }
        fs.unmount().await?;
        let fs = mount(&rt, &drive, quiet()).await?;
        holds(&fs, kept, 0, &[0; 200]).await?;
        fs.unmount().await
    });
}

/// Drives with two, four and six streams, and one to four zones in a superzone.
#[test]
fn small_drives_of_every_shape_are_cleaned() {
    for (active, width) in [(6, 1), (8, 1), (10, 1), (16, 2), (22, 3), (28, 4)] {
        let zones = 20 + 26 * width;
        let spec = format!(
            "zones={zones},zone-size=256KiB,zone-capacity={}KiB,max-active={active},max-open=\
             {active},channels=1",
            4 * (29 + width)
        );
        on_drive(&spec, Some(width), 8, |rt, drive| overwrite(rt, drive, 2, 5));
    }
}

#[test]
fn one_seed_cleans_alike_twice() {
    let run = |seed| on_drive(SMALL, None, seed, |rt, drive| overwrite(rt, drive, 1, 4));
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// Many small writers wait for space at the same time: each gets its turn, and none is refused.
#[test]
fn those_who_wait_for_room_are_all_served() {
    on_drive(SMALL, None, 9, |rt, drive| async move {
        let fs = mount(&rt, &drive, options()).await?;
        let each = fs.statfs().blocks_available * 90 / 100 / 8 - 2;
        let mut writers = Vec::new();
        for file in 0..8u64 {
            let (fs, name) = (fs.clone(), format!("{file}"));
            writers.push(rt.spawn(async move {
                let (ino, blocks) = fill(&fs, &name, file, each).await?;
                assert_eq!(blocks, each, "file {file}");
                let mut versions = vec![0; each as usize];
                let mut rng = Rng::new(file);
                for _ in 0..each * 3 {
                    let number = rng.below(each);
                    versions[number as usize] += 1;
                    let bytes = block(file, number, versions[number as usize]);
                    write(&fs, ino, number, &bytes).await?;
                }
                holds(&fs, ino, file, &versions).await
            }));
        }
        for writer in writers {
            writer.await?;
        }
        assert!(fs.counters().space_waits > 0);
        fs.unmount().await
    });
}
