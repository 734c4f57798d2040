//! Makes a store on an empty drive, and checks whether a drive is fit for a store.

use crate::recover::{Opened, Replay, is_bad};
use crate::store::{Options, Store};
use crate::zone_allocator::RESERVE;
use furrow_log::BlockAddr;
use furrow_log::address::sectors_per_block;
use furrow_log::pool::ZonePool;
use furrow_log::record::{Uuid, check_label};
use furrow_log::ring::{RingZones, half_for};
use furrow_log::survey;
use furrow_log::writer::{Order, Writer};
use furrow_rt::{Boxed, Pool, Rt};
use furrow_zone::{Error, ErrorKind, Geometry, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Minimum number of permits with which a store works.
const PERMITS_MIN: u32 = 4;
/// Minimum number of zones for content: those reserved for cleaning, one to be cleaned, and
/// two more.
const ZONES_MIN: u32 = RESERVE + 3;
/// Default size of a half, in bytes.
const HALF_BYTES: u64 = 16 << 20;
/// The ring gets one spare zone for this many zones of the drive.
const SPARE_OF: u32 = 32;
/// Maximum number of spare zones of the ring.
const SPARES: u32 = 4;

/// Options for making a store.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// Label of the store, at most 63 bytes.
    pub label: String,
    /// UUID of the store; random if absent.
    pub uuid: Option<Uuid>,
    /// Whether to make the store even if the drive holds data.
    pub force: bool,
    /// Bytes that each half of the record ring should hold; 16 MiB if absent.
    pub half_bytes: Option<u64>,
}

/// Checks whether a drive is fit for a store whose ring takes these zones.
pub(crate) fn check_drive(geometry: &Geometry, ring: RingZones) -> Result<()> {
    BlockAddr::check(geometry)?;
    let invalid = |what: String| Err(Error::new(ErrorKind::Unsupported, what));
    if let Some(permits) = geometry.max_active.filter(|permits| *permits < PERMITS_MIN) {
        return invalid(format!("{permits} active zones: a store needs {PERMITS_MIN}"));
    }
    // Sectors at the end of a zone that do not fill a block are written together with
    // the last block.
    let block = sectors_per_block(geometry);
    let least = block + geometry.zone_capacity.0 % block;
    if let Some(most) = geometry.max_transfer.filter(|most| most.0 < least) {
        return invalid(format!(
            "commands of at most {most} logical blocks: a store needs {least}"
        ));
    }
    let left = geometry.zones.saturating_sub(ring.end());
    if left < ZONES_MIN {
        return invalid(format!(
            "the drive has {} zones, of which the record ring takes {}: a store needs {ZONES_MIN} \
             more: take a larger drive, or make smaller zones (device create --zone-size, or -o \
             zone-size=)",
            geometry.zones,
            ring.count()
        ));
    }
    Ok(())
}

fn ring_of(geometry: &Geometry, half_bytes: Option<u64>) -> RingZones {
    let half = half_for(geometry, half_bytes.unwrap_or(HALF_BYTES));
    // On a small drive, both halves together take at most an eighth of the zones.
    let half = half.min((geometry.zones / 16).max(1));
    let spares = (geometry.zones / SPARE_OF).clamp(1, SPARES);
    RingZones { start: geometry.conventional_zones, half, spares }
}

impl Store {
    /// Makes a store on a drive.
    ///
    /// # Errors
    /// `Exists` if the drive is not empty and `force` is not set; `Unsupported` if the drive has
    /// too few zones or active zones, or zones or commands that a store cannot use; `Invalid` if
    /// the label is too long or contains a zero; `Io` if too many zones of the ring failed, or the
    /// drive fails a command.
    #[inline(never)]
    pub fn format<'a>(
        rt: &'a Rt,
        device: Rc<dyn ZonedDevice>,
        options: &'a FormatOptions,
    ) -> Boxed<'a, Result<Uuid>> {
        Box::pin(async move {
            let geometry = device.geometry().clone();
            let ring = ring_of(&geometry, options.half_bytes);
            check_drive(&geometry, ring).map_err(|error| error.at(device.name()))?;
            check_label(&options.label)?;
            let reports = survey::reports(&*device).await?;
            survey::check_capacities(&*device, &reports)?;
            let pages = Pool::new(256);
            refuse_used(&*device, &reports, options.force)?;
            let failed: BTreeSet<ZoneId> =
                ring.zones().filter(|zone| is_bad(&reports[zone.0 as usize])).collect();
            if ring.count() - (failed.len() as u32) < 2 {
                let what = format!(
                    "{}: {} of zones {} to {} failed, and the record ring needs two of them: \
                     this drive cannot be used",
                    device.name(),
                    failed.len(),
                    ring.start,
                    ring.end() - 1
                );
                return Err(Error::new(ErrorKind::Io, what));
            }
            let writer = Writer::new(rt, device.clone(), Order::Queued, 8);
            let used = reports.iter().filter(|r| !is_bad(r) && !geometry.is_conventional(r.zone));
            let used = used.filter(|report| report.state != ZoneState::Empty);
            ZonePool::wipe(&writer, used.map(|report| report.zone)).await?;
            let mut rng = rt.fork_rng();
            let (drawn, drive) = (Uuid::random(&mut rng), Uuid::random(&mut rng));
            let uuid = options.uuid.unwrap_or(drawn);
            let found = Opened {
                label: options.label.clone(),
                created: rt.wall().0,
                uuid,
                device: drive,
                ring,
                half: Vec::new(),
                failed,
                turn: 0,
                records: 0,
                sound: true,
                damage: Vec::new(),
                end: None,
                turns: false,
                superseded: false,
                rolled_back: 0,
                replay: Replay { next_file: 1, ..Replay::default() },
            };
            let store = found.store(
                rt,
                writer,
                &survey::reports(&*device).await?,
                pages,
                Options::default(),
            )?;
            let bodies = store.0.snapshot(&[], 0);
            store.begin_half(bodies, false).await?;
            store.0.zones.writer.completed().await;
            store.0.zones.writer.let_go();
            Ok(uuid)
        })
    }
}

/// Refuses a drive with content, unless forced.
fn refuse_used(device: &dyn ZonedDevice, reports: &[ZoneReport], force: bool) -> Result<()> {
    let conventional = |report: &ZoneReport| device.geometry().is_conventional(report.zone);
    let used =
        reports.iter().find(|r| r.state != ZoneState::Empty && !is_bad(r) && !conventional(r));
    match used.filter(|_| !force) {
        None => Ok(()),
        Some(used) => Err(Error::new(
            ErrorKind::Exists,
            format!("{}: the drive is not empty (zone {})", device.name(), used.zone),
        )),
    }
}
