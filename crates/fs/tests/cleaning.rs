//! Cleaning: a drive that is full of garbage is not full.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::{
    CleanOptions, Fs, FsckOptions, GcOptions, Ino, MkfsOptions, MountOptions, NewNode, WriteData,
};
use furrow_rt::{Config, Nanos, Rng, Rt};
use furrow_zone::{ErrorKind, Result, ZonedDevice};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

const SMALL: &str = "zones=64,zone-size=256KiB,zone-capacity=200KiB,max-active=14,channels=1";

/// Runs `test` on a fresh file system on a drive of `spec`, then has fsck look at it. Answers the
/// hash of everything that happened.
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

/// The same without cleaning in the background.
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

/// A block that says what it is.
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

/// A file of as many blocks as `fs` takes; how many.
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
            // Files of all sizes, down to a single block.
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

/// Overwrites blocks of a drive that is 95 % full at random, for `times` its capacity.
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

#[test]
fn cleaning_on_request_moves_what_is_valid_and_nothing_else() {
    on_drive(SMALL, None, 3, |rt, drive| async move {
        let fs = mount(&rt, &drive, quiet()).await?;
        let (ino, _) = fill(&fs, "f", 0, 600).await?;
        fs.sync().await?;
        let mut versions = vec![0; 600];
        for number in (0..600).step_by(3) {
            versions[number] = 1;
            write(&fs, ino, number as u64, &block(0, number as u64, 1)).await?;
        }
        fs.sync().await?;
        let before = fs.statfs();
        let report = fs.clean(CleanOptions::default()).await?;
        let after = fs.statfs();
        println!("{report:?}\n{before:?}\n{after:?}");
        assert!(report.superzones > 5 && report.data_blocks >= 300, "{report:?}");
        assert_eq!((report.failed_blocks, after.blocks_free), (0, before.blocks_free));
        assert!(after.blocks_now > before.blocks_now && after.blocks_stale < before.blocks_stale);
        holds(&fs, ino, 0, &versions).await?;
        fs.unmount().await?;
        let fs = mount(&rt, &drive, quiet()).await?;
        holds(&fs, ino, 0, &versions).await?;
        fs.unmount().await
    });
}
