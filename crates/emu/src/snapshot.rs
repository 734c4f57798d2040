//! A drive at one instant, cheap to take and to copy. Crash sweeps fork from it. The owner of a
//! snapshot can also continue it without an executor, and then decides when each command is
//! carried out.

use crate::core::Core;
use crate::medium::Medium;
use crate::power::{Fates, Parcel, Power, cut};
use crate::queue::CommandInfo;
use furrow_zone::fault::Fault;
use furrow_zone::{
    Command, Geometry, Machine, QueueId, Request, Result, Status, ZoneId, ZoneReport,
};
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
    /// An empty drive of `geometry` in memory.
    ///
    /// # Errors
    /// If the geometry is impossible.
    pub fn empty(geometry: &Geometry) -> Result<Snapshot> {
        let machine = Machine::new(geometry.clone())?;
        let core = Core::new(machine, Medium::memory(geometry));
        Ok(Snapshot { core, parcels: Vec::new(), faults: Vec::new(), power: Power::On })
    }

    /// Puts a command in flight. A flush will cover the commands carried out before this call.
    pub fn submit(&mut self, sequence: u64, queue: QueueId, request: Request) {
        let (command, fua) = (request.command, request.fua);
        let cache = self.core.cache.as_ref().filter(|_| matches!(command, Command::Flush));
        let barrier = cache.map(|cache| cache.barrier(&self.core.machine, queue));
        let info = CommandInfo { sequence, queue, command, fua };
        self.parcels.push(Parcel { info, request, barrier });
    }

    /// Removes the command with this number from those in flight. If `command` is given, carries it
    /// out with the payload of the removed command. `None` if no such command is in flight.
    pub fn take(&mut self, sequence: u64, command: Option<Command>) -> Option<Status> {
        let at = self.parcels.iter().position(|parcel| parcel.info.sequence == sequence)?;
        let mut parcel = self.parcels.remove(at);
        let Some(command) = command else { return Some(Status::Success) };
        parcel.request.command = command;
        Some(self.core.execute(&mut parcel.request, parcel.barrier.as_ref()).status)
    }

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
