//! A view of a drive with offline metadata zones, for a mount for reading: these zones appear
//! empty. A repair then works on a copy-on-write view above this view, and rebuilds the content of
//! the offline zones, in memory, from the other zones.
//!
//! Zones of the main area stay offline, because their blocks are lost, not unwritten.

use crate::durability::recover::read::{superblock, superblock_of_checkpoints};
use crate::durability::recover::report;
use crate::layout::{Layout, RING_ZONES};
use furrow_rt::{Completion, Pool};
use furrow_zone::{Geometry, Outcome, QueueId, Reports, Request, Result};
use furrow_zone::{ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::rc::Rc;

/// A drive whose offline metadata zones appear empty.
struct Without {
    below: Rc<dyn ZonedDevice>,
    zones: Vec<ZoneId>,
}

impl ZonedDevice for Without {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome> {
        self.below.submit(queue, request)
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        Box::pin(async move {
            let mut reports = self.below.report(first, count).await?;
            for report in reports.iter_mut().filter(|report| self.zones.contains(&report.zone)) {
                (report.state, report.write_pointer) = (ZoneState::Empty, Default::default());
            }
            Ok(reports)
        })
    }

    fn answers(&self) -> bool {
        self.below.answers()
    }

    fn misses(&self) -> u64 {
        self.below.misses()
    }

    fn name(&self) -> String {
        self.below.name()
    }
}

/// Finds the layout of the file system on `device`, if any copy of its superblock can be read.
pub(super) async fn layout(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Option<Layout> {
    let first = device.geometry().conventional_zones;
    for zone in (first..device.geometry().zones).take(RING_ZONES as usize).map(ZoneId) {
        if let Ok(Some(layout)) = superblock(device, zone, pages).await {
            return Some(layout);
        }
    }
    superblock_of_checkpoints(device, reports, pages).await
}

/// The offline metadata zones of `device`, each with its purpose.
pub(super) async fn zones(device: &dyn ZonedDevice) -> Result<Vec<(ZoneId, &'static str)>> {
    let reports = report(device).await?;
    let is_offline = |report: &&ZoneReport| report.state == ZoneState::Offline;
    if !reports.iter().any(|report| is_offline(&report)) {
        return Ok(Vec::new());
    }
    let Some(layout) = layout(device, &reports, &Pool::new(64)).await else {
        return Ok(Vec::new());
    };
    let offline = reports.iter().filter(is_offline).map(|report| report.zone);
    let metadata = layout.ring_start..layout.main_start;
    let offline = offline.filter(|zone| metadata.contains(&zone.0));
    let what = |zone: ZoneId| match zone.0 {
        at if at < layout.ring_start + RING_ZONES => "checkpoints",
        at if at < layout.table_start => "the delta log",
        at if at < layout.sync_start => "tables",
        _ => "the sync log",
    };
    Ok(offline.map(|zone| (zone, what(zone))).collect())
}

/// `device` with these zones appearing empty.
pub(super) fn without(
    device: Rc<dyn ZonedDevice>,
    zones: &[(ZoneId, &'static str)],
) -> Rc<dyn ZonedDevice> {
    match zones {
        [] => device,
        _ => {
            Rc::new(Without { below: device, zones: zones.iter().map(|(zone, _)| *zone).collect() })
        }
    }
}

/// Describes what each offline zone loses, one line for each zone. `checkpoint` is the number of
/// the checkpoint that is used.
pub(super) fn losses(zones: &[(ZoneId, &'static str)], checkpoint: u64) -> Vec<String> {
    let line = |(zone, what): &(ZoneId, &'static str)| {
        let lost = match *what {
            "checkpoints" => format!("changes after checkpoint {checkpoint} may be missing"),
            "the sync log" => "what was synced last may be missing".to_owned(),
            _ => "the tables are rebuilt from the nodes that were found".to_owned(),
        };
        format!("zone {zone}, for {what}, is offline: {lost}")
    };
    zones.iter().map(line).collect()
}
