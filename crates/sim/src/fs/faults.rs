//! A file system on a drive that fails: which faults strike in a case of the crash sweep, and what
//! must hold when the drive is opened again.
//!
//! The requirements are documented with the fault model (`furrow_zone::fault`) and in
//! docs/inside/design/file-system.md: everything acknowledged must survive any fault, with two
//! exceptions. The blocks of an offline zone are gone. A drive whose *metadata* zones cannot be
//! written any more may refuse to be mounted for writing, but must then show everything when
//! mounted for reading.

use crate::crash::Case;
use crate::fs::crash::{Setup, fsck, probe};
use crate::fs::history::Expected;
use crate::fs::observe::{Trouble, check, check_damaged, told};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, When};
use furrow_fs::{Fs, MountOptions, ZoneUse};
use furrow_rt::{Nanos, Rng, Rt};
use furrow_zone::{BlockCount, Error, ErrorKind, Lba, ZoneId, ZoneState, ZonedDevice};
use std::collections::BTreeSet;
use std::rc::Rc;

/// True if the drive of this case has faults other than power cuts: for half of the seeds.
pub fn strikes(case: Case) -> bool {
    case.seed % 4 >= 2
}

/// Whether a fault of the drive explains an error of this kind.
pub fn explains(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Io | ErrorKind::ReadOnly)
}

/// The zones that hold metadata only. A file system cannot do without them.
pub async fn metadata_zones(fs: &Fs) -> BTreeSet<ZoneId> {
    let is_metadata = |usage| {
        use ZoneUse::{Checkpoint, DeltaLog, SyncLog, Tables};
        matches!(usage, Checkpoint | DeltaLog | Tables | SyncLog)
    };
    let zones = fs.zone_map().await.unwrap_or_default();
    // Metadata zones come first. A failed metadata zone is among them, and is shown as retired.
    let last = zones.iter().rposition(|info| is_metadata(info.usage));
    let mut count = last.map_or(0, |last| last + 1);
    count += zones[count..].iter().take_while(|info| info.usage == ZoneUse::Retired).count();
    (0..count as u32).map(ZoneId).collect()
}

fn draw(kind: u64, nth: When, rng: &mut Rng) -> Fault {
    let fault = match kind {
        0 => Fault::new(FaultKind::WriteError).times(1),
        1 => Fault::new(FaultKind::WriteTorn).times(1),
        2 => Fault::new(FaultKind::ReadError).times(1),
        3 => Fault::new(FaultKind::Disappear { commands: Some(1 + rng.below(30)) }),
        4 => Fault::new(FaultKind::ZoneReadOnly),
        5 => Fault::new(FaultKind::ZoneOffline),
        6 => Fault::new(FaultKind::ZoneFull),
        _ => {
            let nanoseconds = rng.below(3) * Nanos::MILLI;
            let polls = 1 + rng.below(20) as u32;
            let every = When::OneIn(1 + rng.below(10));
            return Fault::new(FaultKind::Slow { polls, nanoseconds }).when(every);
        }
    };
    fault.when(nth)
}

/// Faults that strike while the clients work.
pub fn in_run(case: Case) -> Vec<Fault> {
    let mut rng = Rng::new(case.seed ^ 0xfa_017);
    (0..1 + rng.below(2))
        .map(|_| {
            let within = [50, 200, 600][rng.below(3) as usize];
            let (kind, nth) = (rng.below(8), When::Nth(1 + rng.below(within)));
            draw(kind, nth, &mut rng)
        })
        .collect()
}

/// Draws the state of the drive after a power cut: no fault in half of the cases, otherwise one
/// fault. A zone is read-only, offline or full, or a block is unreadable, or one of the next
/// commands fails.
pub fn at_rest(emulator: &Emulator, seed: u64) {
    // Remaining faults of the run are removed.
    let _ = emulator.clear_faults(None);
    emulator.power_on();
    let mut rng = Rng::new(seed ^ 0xa7_4e57);
    let geometry = emulator.geometry().clone();
    let Ok(report) = emulator.report_now(ZoneId(0), geometry.zones) else { return };
    let used: Vec<_> = report.iter().filter(|zone| zone.write_pointer.0 > 0).collect();
    let kind = rng.below(16);
    let fault = match kind {
        4..=6 => {
            let zone = used[rng.below(used.len() as u64) as usize].zone;
            let kinds = [FaultKind::ZoneReadOnly, FaultKind::ZoneOffline, FaultKind::ZoneFull];
            Fault::new(kinds[kind as usize - 4]).at_zone(zone)
        }
        // The fault makes a block unreadable until it is cleared.
        7 => {
            let zone = used[rng.below(used.len() as u64) as usize];
            let at = geometry.start(zone.zone).0 + rng.below(zone.write_pointer.0);
            Fault::new(FaultKind::ReadError).at_blocks(Lba(at), BlockCount(1))
        }
        0..=3 => draw(kind, When::Nth(1 + rng.below(30)), &mut rng),
        _ => return,
    };
    // The drive refuses to fill a zone that is already full.
    let _ = emulator.inject(fault);
}

/// The damage to a drive's zones when the drive is opened.
struct Damage {
    /// Whether some zones are gone with their blocks.
    offline: bool,
    /// Whether some zones cannot be written any more, so space is missing.
    closed: bool,
    /// Whether some zones that are offline or read-only hold metadata, which a writable
    /// mount needs.
    metadata: bool,
}

fn damage(emulator: &Emulator, expected: &Expected) -> Result<Damage, String> {
    let zones = emulator.geometry().zones;
    let report = emulator.report_now(ZoneId(0), zones).map_err(|status| status.to_string())?;
    let mut damage = Damage { offline: false, closed: false, metadata: false };
    for zone in &report {
        let dead = matches!(zone.state, ZoneState::Offline | ZoneState::ReadOnly);
        damage.closed |= dead;
        damage.offline |= zone.state == ZoneState::Offline;
        // The metadata zones are unknown if the run never mounted.
        let known = !expected.metadata.is_empty();
        damage.metadata |= dead && (expected.metadata.contains(&zone.zone) || !known);
    }
    Ok(damage)
}

/// Reopens a drive with faults: once with the pending faults, when the engine may refuse, and once
/// without them, when all promises must hold.
///
/// # Errors
/// Describes what does not hold.
pub async fn reopen(
    rt: Rt,
    emulator: Emulator,
    case: Case,
    setup: Setup,
    expected: Expected,
) -> Result<(), Trouble> {
    let choice = rt.random();
    if !emulator.faults().is_empty() {
        let looked = look(&rt, &emulator, &setup.mount, &expected).await;
        match looked {
            Ok(()) => {}
            Err(Trouble::Refused(_, kind)) if explains(kind) => {}
            // An unreadable block may be the reason for the lack of space.
            Err(Trouble::Refused(_, ErrorKind::NoSpace)) => {}
            Err(trouble) => return Err(trouble.at("with faults")),
        }
        // The drive loses power before the next reopening.
        emulator.power_cut(&Fates::seeded(choice));
        rt.sleep(Nanos::MILLI).await;
        let _ = emulator.clear_faults(None);
        emulator.power_on();
    }
    let damage = damage(&emulator, &expected)?;
    if damage.offline {
        return after_loss(&rt, &emulator, &setup, &expected).await;
    }
    let device: Rc<dyn ZonedDevice> = Rc::new(emulator.clone());
    if choice.is_multiple_of(3) {
        fsck(&device, "after the crash").await?;
    }
    let fs = match Fs::mount(&rt, device.clone(), setup.mount.clone()).await {
        Err(error) if damage.metadata && explains(error.kind()) => {
            return look_only(&rt, device, &setup, &expected).await;
        }
        // On a full drive that loses zones, there is no space for the writes of recovery.
        Err(error) if damage.closed && error.kind() == ErrorKind::NoSpace => {
            return look_only(&rt, device, &setup, &expected).await;
        }
        other => other.map_err(told("mount"))?,
    };
    check(&fs, &expected).await?;
    let used = async {
        probe(&fs, choice ^ case.seed).await?;
        match fs.unmount().await {
            Err(error) if error.kind() != ErrorKind::NoSpace => Err(told("unmount")(error)),
            _ => Ok(()),
        }
    };
    match used.await {
        Err(Trouble::Refused(_, kind)) if damage.metadata && explains(kind) => return Ok(()),
        other => other.map_err(|trouble| trouble.at("after recovery"))?,
    }
    drop(fs);
    fsck(&device, "after recovery").await
}

/// Mounts the drive, compares the file system with `expected`, and unmounts.
async fn look(
    rt: &Rt,
    emulator: &Emulator,
    mount: &MountOptions,
    expected: &Expected,
) -> Result<(), Trouble> {
    let device: Rc<dyn ZonedDevice> = Rc::new(emulator.clone());
    let fs = Fs::mount(rt, device, mount.clone()).await.map_err(told("mount"))?;
    let compared = check(&fs, expected).await.map(|_| ());
    let ended = fs.unmount().await.map_err(told("unmount"));
    compared.and(ended)
}

/// A drive that cannot be written any more must still show everything.
async fn look_only(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    setup: &Setup,
    expected: &Expected,
) -> Result<(), Trouble> {
    let mount = MountOptions { read_only: true, ..setup.mount.clone() };
    let fs = Fs::mount(rt, device, mount).await.map_err(told("mount for reading"))?;
    check(&fs, expected).await.map_err(|trouble| trouble.at("mounted for reading"))?;
    fs.unmount().await.map_err(told("unmount"))
}

/// Checks that a mount refused with `error` needed a lost zone: a metadata zone, or the zone of a
/// block that the error names.
fn needed(emulator: &Emulator, expected: &Expected, error: &Error) -> Result<(), Trouble> {
    let zones = emulator.geometry().zones;
    let report = emulator.report_now(ZoneId(0), zones).map_err(|status| status.to_string())?;
    let lost = |zone: &&furrow_zone::ZoneReport| {
        matches!(zone.state, ZoneState::Offline | ZoneState::ReadOnly)
    };
    let mut lost = report.iter().filter(lost);
    let text = error.to_string();
    let names = |zone: ZoneId| {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.clone().zip(words.skip(1)).any(|(a, b)| a == "zone" && b == zone.to_string())
    };
    let needs = |zone: ZoneId| expected.metadata.contains(&zone) || names(zone);
    if expected.metadata.is_empty() || lost.any(|zone| needs(zone.zone)) {
        return Ok(());
    }
    Err(format!("refused for a zone that no recovery needs: {text}").into())
}

/// Checks a drive that lost zones: all readable data must be right, and all data outside these
/// zones must be readable.
async fn after_loss(
    rt: &Rt,
    emulator: &Emulator,
    setup: &Setup,
    expected: &Expected,
) -> Result<(), Trouble> {
    let device: Rc<dyn ZonedDevice> = Rc::new(emulator.clone());
    let fs = match Fs::mount(rt, device.clone(), setup.mount.clone()).await {
        // Recovery needs something that is lost: it must report that and change nothing.
        Err(error) if explains(error.kind()) => return needed(emulator, expected, &error),
        // Recovery may lack space for its writes, but a mount for reading must show
        // everything else.
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            let mount = MountOptions { read_only: true, ..setup.mount.clone() };
            Fs::mount(rt, device, mount).await.map_err(told("mount for reading, a zone gone"))?
        }
        other => other.map_err(told("mount with a zone gone"))?,
    };
    check_damaged(&fs, expected).await.map_err(|trouble| trouble.at("with a zone gone"))?;
    let _ = fs.unmount().await;
    Ok(())
}
