//! A drive's zone reports when an engine starts, and the zones that a power cut left active.
//!
//! Reports are checked here once, so that an engine may index them by zone. [`blocks_written`] and
//! [`blocks_begun`] say how far a zone is written. An active zone that no owner claims holds
//! resources without a permit. The engine finishes such a zone, which keeps its blocks, and resets
//! it only when a durable state shows that nothing in it counts.
//!
//! [`blocks_written`]: crate::address::blocks_written
//! [`blocks_begun`]: crate::address::blocks_begun

use crate::writer::Writer;
use furrow_rt::Rt;
use furrow_zone::words::count;
use furrow_zone::{Error, ErrorKind, Geometry, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};

/// Returns the report of every zone, zone z at index z.
///
/// # Errors
/// `Io` if the drive does not answer, or does not report each zone exactly once.
pub async fn reports(device: &dyn ZonedDevice) -> Result<Vec<ZoneReport>> {
    let zones = device.geometry().zones;
    let mut reports = device
        .report(ZoneId(0), zones)
        .await
        .map_err(|status| Error::device(&device.name(), "report of zones", status))?;
    reports.sort_by_key(|report| report.zone);
    let wrong = |what: String| Err(Error::new(ErrorKind::Io, format!("{}: {what}", device.name())));
    let expected = (0..zones).map(ZoneId);
    if let Some((zone, report)) = expected.zip(&reports).find(|(zone, r)| *zone != r.zone) {
        let found = report.zone;
        return wrong(format!("report of zone {found}, expected that of zone {zone}"));
    }
    match reports.len() == zones as usize {
        true => Ok(reports),
        false => wrong(format!("{} zones reported, expected {zones}", reports.len())),
    }
}

/// Whether `error` is that of a drive that is gone. If the drive answers, it concerns a command
/// only: the drive was gone for a moment, or gives no other answer for some block.
pub fn has_vanished(device: &dyn ZonedDevice, error: &Error) -> bool {
    error.is_gone() && !device.answers()
}

/// Pauses, in nanoseconds, before what could not be read while a drive was gone is read again.
pub const PAUSES: [u64; 2] = [100_000_000, 400_000_000];

/// Reads, and reads again if that failed while the drive did not answer some command, unless the
/// drive is gone altogether. The pauses outlast a short absence; what then still cannot be read is
/// taken for unreadable.
///
/// # Errors
/// The error of the last reading.
pub async fn patiently<T, E>(
    rt: &Rt,
    device: &dyn ZonedDevice,
    read: impl AsyncFn() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    for pause in PAUSES {
        let misses = device.misses();
        let done = read().await;
        if done.is_ok() || device.misses() == misses || !device.answers() {
            return done;
        }
        rt.sleep(pause).await;
    }
    read().await
}

/// Refuses the result of a check of the drive if the drive no longer answers, or was gone for a
/// moment: what could not be read is not damaged then. `misses` is its number of misses
/// ([`ZonedDevice::misses`]) before the check.
///
/// # Errors
/// `Io` if the drive did not answer a command.
pub fn check_answers(device: &dyn ZonedDevice, misses: u64) -> Result<()> {
    let what = match device.misses().saturating_sub(misses) {
        _ if !device.answers() => "it stopped answering during the check".to_owned(),
        0 => return Ok(()),
        missed => format!(
            "it did not answer {} of the check, so what could not be read may be whole: run this \
             again",
            count(missed, "command")
        ),
    };
    Err(Error::new(ErrorKind::Io, format!("{}: {what}", device.name())))
}

/// Refuses a drive whose zones differ in capacity, before an engine is made on it. Conventional
/// zones and zones that cannot be used may differ.
///
/// # Errors
/// `Unsupported`, with the first zone that differs.
pub fn check_capacities(device: &dyn ZonedDevice, reports: &[ZoneReport]) -> Result<()> {
    let geometry = device.geometry();
    let differs = |report: &&ZoneReport| {
        report.capacity != geometry.zone_capacity
            && !matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline)
            && !geometry.is_conventional(report.zone)
    };
    let Some(report) = reports.iter().find(differs) else { return Ok(()) };
    let (name, zone, capacity) = (device.name(), report.zone, report.capacity);
    let expected = geometry.zone_capacity;
    let what = format!(
        "{name}: zone {zone} has a capacity of {capacity} blocks, but others have {expected}; \
         zones of equal capacity are needed: format the drive so, or use another"
    );
    Err(Error::new(ErrorKind::Unsupported, what))
}

/// Returns the active zones that no owner claims.
pub fn strays<'a>(
    reports: &'a [ZoneReport],
    owned: impl Fn(ZoneId) -> bool + 'a,
) -> impl Iterator<Item = &'a ZoneReport> {
    reports.iter().filter(move |report| report.state.is_active() && !owned(report.zone))
}

/// Number of active zones that have to be finished or reset before another zone can become active.
pub fn surplus(geometry: &Geometry, reports: &[ZoneReport]) -> usize {
    let active = reports.iter().filter(|report| report.state.is_active()).count();
    let most = geometry.max_active.map_or(usize::MAX, |most| most as usize);
    (active + 1).max(most) - most
}

/// Finishes a zone that is active and not open in the writer. Its written blocks stay.
///
/// # Errors
/// The errors of [`Writer::finish`].
pub async fn finish(writer: &Writer, report: &ZoneReport) -> Result<()> {
    writer.open_reported(report);
    writer.finish(report.zone).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{Toy, geometry};
    use crate::writer::{Order, ZoneWrite};
    use furrow_rt::{Config, Rt};
    use std::rc::Rc;

    fn reported_by(rt: &Rt, toy: &Rc<Toy>) -> Result<Vec<ZoneReport>> {
        let toy = toy.clone();
        rt.block_on(async move { reports(&*toy).await })
    }

    #[test]
    fn a_report_that_is_not_complete_is_refused() {
        let rt = Rt::new(Config::simulated(1));
        let toy = Toy::new(geometry(5, 16), 1);
        assert_eq!(reported_by(&rt, &toy).unwrap().len(), 5);
        for (listed, what) in [
            (vec![0, 1, 2, 3], "4 zones reported, expected 5"),
            (vec![0, 1, 1, 3, 4], "report of zone 1, expected that of zone 2"),
            (vec![0, 1, 2, 3, 4, 4], "6 zones reported, expected 5"),
        ] {
            toy.wish(|wishes| wishes.listed = Some(listed.into_iter().map(ZoneId).collect()));
            let error = reported_by(&rt, &toy).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        // A drive may report its zones in any order.
        toy.wish(|wishes| wishes.listed = Some([4, 2, 0, 1, 3].map(ZoneId).into()));
        let zones: Vec<u32> = reported_by(&rt, &toy).unwrap().iter().map(|r| r.zone.0).collect();
        assert_eq!(zones, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn active_zones_without_an_owner_are_finished() {
        let rt = Rt::new(Config::simulated(1));
        let mut shape = geometry(5, 16);
        (shape.max_open, shape.max_active) = (Some(3), Some(3));
        let toy = Toy::on(&rt, shape, 1);
        let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
        for zone in [1, 3] {
            writer.open_empty(ZoneId(zone));
            drop(writer.submit(ZoneWrite::zeros_to(ZoneId(zone), 4)));
        }
        rt.run_ready();
        let found = reported_by(&rt, &toy).unwrap();
        assert_eq!(surplus(writer.geometry(), &found), 0);
        writer.open_empty(ZoneId(4));
        drop(writer.submit(ZoneWrite::zeros_to(ZoneId(4), 1)));
        rt.run_ready();
        let found = reported_by(&rt, &toy).unwrap();
        assert_eq!(surplus(writer.geometry(), &found), 1);
        let again = Writer::new(&rt, toy.clone(), Order::Queued, 1);
        let left: Vec<ZoneReport> = strays(&found, |zone| zone == ZoneId(3)).copied().collect();
        assert_eq!(left.iter().map(|r| r.zone.0).collect::<Vec<_>>(), [1, 4]);
        rt.block_on(async move {
            for report in left {
                finish(&again, &report).await.unwrap();
            }
        });
        let states: Vec<ZoneState> =
            reported_by(&rt, &toy).unwrap().iter().map(|r| r.state).collect();
        assert_eq!(states[1], ZoneState::Full);
        assert!(states[3].is_active());
        rt.clear();
    }
}
