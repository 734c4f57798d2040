//! Mounts that must succeed although a zone is offline, because they can do without the zone.
//!
//! On a copy of a life's drive, the file system is mounted, compared and unmounted, so that nothing
//! has to be recovered. Then one zone goes offline that holds nothing a mount needs: a zone of
//! files, an unused zone of the tables or logs, or one of the sync log, which is empty by now. The
//! mount must work. So must creating a file, unless that needs the offline zone. If the zone held
//! nothing valid, everything must still be there. The copy is discarded afterwards.

use crate::fs::crash::Setup;
use crate::fs::history::History;
use crate::fs::observe::{Trouble, check, told};
use furrow_emu::{Emulator, Fault, FaultKind};
use furrow_fs::{Fs, Ino, NewNode, WriteData, ZoneInfo, ZoneUse};
use furrow_rt::{Rng, Rt};
use furrow_zone::{ErrorKind, ZoneId};
use std::rc::Rc;

/// Whether a mount after an unmount can do without a zone.
fn is_dispensable(zone: &ZoneInfo) -> bool {
    match zone.usage {
        ZoneUse::Data(_) | ZoneUse::Node(_) | ZoneUse::Free | ZoneUse::SyncLog => true,
        ZoneUse::DeltaLog | ZoneUse::Tables => zone.written == 0,
        ZoneUse::Checkpoint | ZoneUse::Unused | ZoneUse::Retired => false,
    }
}

/// Whether the engine may continue to write records or table pages in a zone. It stops if such a
/// zone is offline.
fn is_of_logs(zone: &ZoneInfo) -> bool {
    matches!(zone.usage, ZoneUse::SyncLog | ZoneUse::DeltaLog | ZoneUse::Tables)
}

/// Mounts `drive`, which is a copy, without one of its zones. Returns a text for the figures: the
/// kind of zone, or why the test was not made.
///
/// # Errors
/// If the mount is refused, or something is lost that was not in the zone.
pub async fn mount_without(
    rt: Rt,
    drive: Emulator,
    setup: Setup,
    history: History,
    seed: u64,
) -> std::result::Result<&'static str, Trouble> {
    let mut rng = Rng::new(seed ^ 0x0ff_11e);
    let mount = async || Fs::mount(&rt, Rc::new(drive.clone()), setup.mount.clone()).await;
    let fs = mount().await.map_err(told("mount"))?;
    check(&fs, &history.cut(history.mark())).await?;
    match fs.unmount().await {
        Err(error) if error.kind() == ErrorKind::NoSpace => return Ok("no space to unmount"),
        ended => ended.map_err(told("unmount"))?,
    }
    let fs = mount().await.map_err(told("mount after an unmount"))?;
    let zones = fs.zone_map().await.map_err(told("zone map"))?;
    let count = zones.len() as u32;
    let report = || drive.report_now(ZoneId(0), count).map_err(|status| status.to_string());
    let before = report()?;
    fs.unmount().await.map_err(told("unmount"))?;
    // The zone map is older than the writes of the unmount, so zones that the unmount changed are
    // left out.
    let after = report()?;
    let able = (0..zones.len()).filter(|zone| is_dispensable(&zones[*zone]));
    let able: Vec<usize> = able.filter(|zone| before[*zone] == after[*zone]).collect();
    let Some(gone) = able.get(rng.below(able.len().max(1) as u64) as usize).copied() else {
        return Ok("no zone to do without");
    };
    let what = format!("zone {gone} ({:?}) is offline", zones[gone]);
    let fault = Fault::new(FaultKind::ZoneOffline).at_zone(ZoneId(gone as u32));
    drive.inject(fault).map_err(told("a fault"))?;
    let fs = mount().await.map_err(|error| told("mount")(error).at(&what))?;
    if zones[gone].valid == 0 {
        let kept = check(&fs, &history.cut(history.mark())).await;
        kept.map_err(|trouble| trouble.at(&what))?;
    }
    let work = async {
        let ino = fs.create(Ino::ROOT, b"a new file", &NewNode::file()).await?.ino;
        fs.write(ino, WriteData::copy(fs.pool(), 0, &[7; 9000])).await?;
        fs.fsync(ino, false).await?;
        fs.unmount().await
    };
    match work.await {
        // The zone may hold blocks of directories, or be the one in which a log or the tables
        // continue; a small drive may also be full. The engine stops if it cannot read a node that
        // it changes.
        Err(error)
            if error.kind() == ErrorKind::NoSpace
                || (zones[gone].valid > 0 || is_of_logs(&zones[gone]))
                    && matches!(
                        error.kind(),
                        ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::ReadOnly
                    ) => {}
        done => done.map_err(|error| told("a new file")(error).at(&what))?,
    }
    Ok(match zones[gone].usage {
        ZoneUse::SyncLog => "a mount without a zone of the sync log",
        _ if zones[gone].valid > 0 => "a mount without a zone of files",
        _ => "a mount without an empty zone",
    })
}
