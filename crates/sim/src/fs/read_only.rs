//! File systems that must not write: mounted for reading, or read-only after damage.

use crate::fs::history::Expected;
use crate::fs::observe::{PROBE, Recovered, Trouble, check, told};
use furrow_emu::Emulator;
use furrow_fs::{Fs, Ino, MountOptions, NewNode, SetAttr, XattrMode};
use furrow_rt::{Nanos, Rt};
use furrow_zone::{ErrorKind, Result, ZoneId, ZoneReport, ZonedDevice};
use std::rc::Rc;

/// Number of commands that the drive has executed, except reads.
fn done(emulator: &Emulator) -> u64 {
    let counters = emulator.counters();
    counters.writes + counters.appends + counters.flushes + counters.management
}

fn zones(emulator: &Emulator) -> Option<Vec<ZoneReport>> {
    emulator.report_now(ZoneId(0), emulator.geometry().zones).ok()
}

/// Mounts for reading: everything promised must be there, changes must be refused, and the drive
/// must not change.
///
/// # Errors
/// Describes what does not hold.
pub async fn look(
    rt: &Rt,
    emulator: &Emulator,
    mount: &MountOptions,
    expected: &Expected,
) -> std::result::Result<Recovered, Trouble> {
    let at = |trouble: Trouble| trouble.at("mounted for reading");
    let (before, as_it_was) = (done(emulator), zones(emulator));
    let mount = MountOptions { read_only: true, ..mount.clone() };
    let fs = Fs::mount(rt, Rc::new(emulator.clone()), mount).await.map_err(told("mount"))?;
    let found = check(&fs, expected).await.map_err(at)?;
    refuses(&fs, false).await.map_err(at)?;
    rt.sleep(10 * Nanos::SECOND).await;
    fs.unmount().await.map_err(told("unmount of a mount for reading"))?;
    let after = done(emulator);
    if after != before || zones(emulator) != as_it_was {
        let why = format!("{} commands that are not reads", after - before);
        return Err(at(why.into()));
    }
    Ok(found)
}

/// Requests several kinds of changes, which must be refused. On a drive that is `failing`, an I/O
/// error may come first.
async fn refuses(fs: &Fs, failing: bool) -> std::result::Result<(), Trouble> {
    let refused = |what: &str, result: Result<()>| match result {
        Err(error) if error.kind() == ErrorKind::ReadOnly => Ok(()),
        Err(error) if failing && error.kind() == ErrorKind::Io => Ok(()),
        Err(error) => Err(Trouble::Wrong(format!("{what}: {error}"))),
        Ok(()) => Err(Trouble::Wrong(format!("{what} was done"))),
    };
    let root = Ino::ROOT;
    let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    refused("create", fs.create(root, PROBE, &NewNode::file()).await.map(drop))?;
    refused("setattr", fs.setattr(root, mode).await.map(drop))?;
    refused("setxattr", fs.setxattr(root, b"user.x", b"x", XattrMode::Set).await)
}

/// Checks that a file system that is read-only after an error writes nothing more. False if it is
/// not read-only.
///
/// # Errors
/// Gives the number of commands other than reads, or names a change that was not refused.
pub async fn stays_silent(
    rt: &Rt,
    fs: &Fs,
    emulator: &Emulator,
) -> std::result::Result<bool, Trouble> {
    match fs.sync().await {
        Err(error) if error.kind() == ErrorKind::ReadOnly => {}
        _ => return Ok(false),
    }
    // Commands in flight complete during this wait.
    rt.sleep(Nanos::SECOND).await;
    let before = done(emulator);
    let at = |trouble: Trouble| trouble.at("read-only after an error");
    refuses(fs, true).await.map_err(at)?;
    rt.sleep(20 * Nanos::SECOND).await;
    let after = done(emulator);
    if after != before {
        let why = format!("{} commands that are not reads", after - before);
        return Err(at(why.into()));
    }
    Ok(true)
}
