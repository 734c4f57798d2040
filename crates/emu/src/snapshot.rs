//! A drive at one instant, cheap to take and to copy. Crash sweeps fork from it.

use crate::core::Core;
use crate::power::{Fates, Parcel, Power, cut};
use crate::queue::CommandInfo;
use furrow_zone::fault::Fault;
use furrow_zone::{ZoneId, ZoneReport};
use std::collections::BTreeSet;

/// A drive at one instant, with the commands that were in flight. Payload is shared with the
/// original drive and with copies of the snapshot; later writes to one of them are not visible in
/// the others.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) core: Core,
    pub(crate) parcels: Vec<Parcel>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) power: Power,
}

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        Snapshot {
            core: self.core.fork(),
            parcels: self.parcels.iter().map(Parcel::share).collect(),
            faults: self.faults.clone(),
            power: self.power,
        }
    }
}

impl Snapshot {
    /// The commands that were in flight, in order of submission.
    pub fn in_flight(&self) -> Vec<CommandInfo> {
        self.parcels.iter().map(|parcel| parcel.info).collect()
    }

    /// The drive after a power cut at this instant, powered on again, without commands in flight.
    /// Faults stay, as faults of a drive's hardware do.
    #[must_use]
    pub fn power_cut(&self, fates: &Fates) -> Snapshot {
        let mut after = self.clone();
        let mut parcels = std::mem::take(&mut after.parcels);
        cut(&mut after.core, &mut parcels, fates);
        after.power = Power::On;
        after
    }

    /// Zones with written blocks that no flush covered.
    pub fn unflushed(&self) -> BTreeSet<ZoneId> {
        let cache = self.core.cache.as_ref();
        cache.map(|cache| cache.unflushed(&self.core.machine)).unwrap_or_default()
    }

    /// Makes everything durable that was answered, except for blocks in `zone`, as a drive with a
    /// volatile cache may do at any time.
    pub fn write_out_but(&mut self, zone: ZoneId) {
        if let Some(cache) = &mut self.core.cache {
            cache.write_out_but(zone, &self.core.machine);
        }
    }

    /// The drive's zones.
    pub fn report(&self) -> Vec<ZoneReport> {
        self.core.machine.report(ZoneId(0), self.core.machine.geometry().zones)
    }
}
