//! Helpers for many tests: a new file system on a drive in memory, mount options, and a check.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "no test uses all of it")]

use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::{Fs, FsckOptions, MkfsOptions, MountOptions, fsck};
use furrow_rt::{Config, Nanos, Rt};
use furrow_zone::{Result, ZonedDevice};
use std::future::Future;
use std::rc::Rc;

/// A drive of 96 small zones, each of which is a superzone.
pub const SMALL: &str = "zones=96,zone-size=1MiB,zone-capacity=772KiB,max-active=14,channels=1";

/// Runs `test` on a new file system on a drive of `spec`; returns the hash of all events.
pub fn on_drive<F: Future<Output = Result<()>> + 'static>(
    rt: Rt,
    spec: &str,
    (drive, format): (Options, MkfsOptions),
    test: impl FnOnce(Rt, Emulator) -> F,
) -> (u64, u64) {
    let geometry = furrow_zone::spec::parse_geometry(spec).unwrap();
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, drive).unwrap();
    let (on, device) = (rt.clone(), Rc::new(drive.clone()));
    rt.block_on(async move { Fs::format(&on, device, &format).await }).unwrap();
    let test = test(rt.clone(), drive);
    if let Err(error) = rt.block_on(test) {
        panic!("{spec}: {error}");
    }
    let hash = rt.event_hash();
    rt.clear();
    hash
}

/// Options under which only the test's own operations write.
pub fn quiet() -> MountOptions {
    MountOptions { commit_interval: 100_000 * Nanos::SECOND, ..MountOptions::default() }
}

/// Runs `test` on a new file system on a drive of [`SMALL`], with tasks in any order.
pub fn on_small<F: Future<Output = Result<()>> + 'static>(
    test: impl FnOnce(Rt, Rc<dyn ZonedDevice>) -> F,
) {
    let made = (Options::simulated(), MkfsOptions::default());
    on_drive(Rt::new(Config::shuffled(5)), SMALL, made, |rt, drive| test(rt, Rc::new(drive)));
}

/// Mounts with [`quiet`] options.
pub async fn mount(rt: &Rt, drive: &Rc<dyn ZonedDevice>) -> Result<Fs> {
    Fs::mount(rt, drive.clone(), quiet()).await
}

/// Unmounts, checks, and mounts again.
pub async fn checked(fs: Fs, rt: &Rt, drive: &Rc<dyn ZonedDevice>) -> Result<Fs> {
    fs.unmount().await?;
    sound(drive.clone()).await?;
    mount(rt, drive).await
}

/// Checks that fsck finds nothing.
pub async fn sound(drive: Rc<dyn ZonedDevice>) -> Result<()> {
    let report = fsck(drive, &FsckOptions::default()).await?;
    let findings: Vec<String> = report.findings.iter().map(|f| f.to_string()).collect();
    assert!(findings.is_empty(), "{findings:?}");
    Ok(())
}
