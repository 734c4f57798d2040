//! Carrying out one command: the state machine decides, the medium stores.
//!
//! Queues, faults and time are outside this module. A clone ([`Core::fork`]) is a snapshot.
//!
//! Invariants: blocks at or above a zone's write pointer read as zeros, regardless of the medium's
//! content. On a medium that survives the process, blocks are stored before the machine's state
//! changes, and the zone's record is stored before the command is answered.

use crate::cache::{Barrier, Cache};
use crate::medium::Medium;
use crate::timing::work::{Opened, Work};
use crate::transfer::{MediumError, Shape, Span, ZoneRecord};
use furrow_rt::Pages;
use furrow_zone::{
    Action, BlockCount, Command, Effect, Error, ErrorKind, Lba, Machine, Outcome, QueueId, Request,
    Status, Zone, ZoneId, ZoneState,
};
use smallvec::SmallVec;
use std::ops::Range;

/// Numbers of commands and blocks since the drive was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of appends.
    pub appends: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of management commands.
    pub management: u64,
    /// Number of zones reset, without resets of empty zones.
    pub zone_resets: u64,
    /// Number of commands answered with an error.
    pub failed: u64,
    /// Number of blocks read.
    pub blocks_read: u64,
    /// Number of blocks written or appended.
    pub blocks_written: u64,
}

/// The zones and the stored blocks of a drive, without queues, faults and time.
#[derive(Debug)]
pub(crate) struct Core {
    pub machine: Machine,
    pub medium: Medium,
    pub shape: Shape,
    pub cache: Option<Cache>,
    pub counters: Counters,
    /// The work of the last command, for the timing engine; kept only if `watched`.
    pub work: Work,
    pub watched: bool,
}

type Changes = SmallVec<[(ZoneId, Zone, Zone); 2]>;

pub(crate) fn answer(status: Status, lba: Lba) -> Outcome {
    Outcome { status, lba, data: Pages::new(), oob: Vec::new() }
}

impl Core {
    pub fn new(machine: Machine, medium: Medium) -> Core {
        let geometry = machine.geometry();
        let shape = Shape::of(geometry);
        let cache = geometry.volatile_cache.then(|| Cache::new(geometry.zones));
        let counters = Counters::default();
        Core { machine, medium, shape, cache, counters, work: Work::Nothing, watched: false }
    }

    /// A copy that shares the stored blocks.
    pub fn fork(&self) -> Core {
        let written = |zone| self.written(zone);
        Core {
            machine: self.machine.clone(),
            medium: self.medium.snapshot(self.machine.geometry(), &written),
            shape: self.shape,
            cache: self.cache.clone(),
            counters: self.counters,
            work: Work::Nothing,
            watched: false,
        }
    }

    /// Sets some zones to their state and content in `image`, durably.
    pub fn put_back(&mut self, image: &Core, zones: Range<u32>) -> Result<(), Error> {
        let (Medium::Memory(now), Medium::Memory(then)) = (&mut self.medium, &image.medium) else {
            return Err(Error::new(ErrorKind::Invalid, "only drives in memory can be put back"));
        };
        let zones = zones.map(ZoneId).filter_map(|zone| Some((zone, image.machine.zone(zone)?)));
        for (zone, to) in zones.clone() {
            let empty = Zone { state: ZoneState::Empty, write_pointer: BlockCount(0), ..to };
            self.machine.restore(zone, empty)?;
        }
        for (zone, to) in zones {
            self.machine.restore(zone, to)?;
            now.put_back(zone.0 as usize, then);
        }
        if let Some(cache) = &mut self.cache {
            cache.settle(&self.machine);
        }
        Ok(())
    }

    /// Number of blocks below the write pointer of `zone`: only these are read from the medium.
    fn written(&self, zone: ZoneId) -> u64 {
        self.machine.zone(zone).map_or(0, |zone| zone.write_pointer.0)
    }

    /// Carries out a command. `barrier` lists the blocks that a flush covers; `None` means all
    /// blocks written so far.
    #[inline]
    pub fn execute(&mut self, request: &mut Request, barrier: Option<&Barrier>) -> Outcome {
        if self.watched {
            self.work = self.foresee(request);
        }
        let outcome = match request.command {
            Command::Write { blocks, .. } => {
                self.counters.writes += 1;
                self.write(request, blocks)
            }
            Command::Append { blocks, .. } => {
                self.counters.appends += 1;
                self.write(request, blocks)
            }
            Command::Read { lba, blocks } => {
                self.counters.reads += 1;
                self.read(request, lba, blocks)
            }
            Command::Flush => {
                self.counters.flushes += 1;
                answer(self.flush(barrier), Lba(0))
            }
            Command::Manage { .. } => {
                self.counters.management += 1;
                answer(self.manage(&request.command), Lba(0))
            }
        };
        if !outcome.status.is_ok() {
            self.counters.failed += 1;
            self.work = Work::Nothing;
        }
        outcome
    }

    /// The work of `request` for the timing engine, if the drive does not refuse the request.
    fn foresee(&self, request: &Request) -> Work {
        let geometry = self.machine.geometry();
        let bytes = |blocks: BlockCount| geometry.bytes(blocks).0;
        match request.command {
            Command::Write { blocks, .. } | Command::Append { blocks, .. } => {
                let Some((zone, offset)) = self.target(&request.command) else {
                    return Work::Nothing;
                };
                Work::Write {
                    zone,
                    position: bytes(BlockCount(geometry.start(zone).0 + offset)),
                    bytes: bytes(blocks),
                    append: matches!(request.command, Command::Append { .. }),
                    opened: match self.machine.zone(zone).map(|zone| zone.state) {
                        Some(ZoneState::Empty) => Opened::FromEmpty,
                        Some(ZoneState::Closed) => Opened::FromClosed,
                        _ => Opened::No,
                    },
                    conventional: geometry.is_conventional(zone),
                    durable: request.fua && geometry.volatile_cache,
                }
            }
            Command::Read { lba, blocks } => match geometry.locate(lba) {
                Some((zone, offset)) => {
                    Work::Read { zone, offset: bytes(offset), bytes: bytes(blocks) }
                }
                None => Work::Nothing,
            },
            Command::Flush => Work::Flush { volatile: geometry.volatile_cache },
            // The zones of a management command are known only after it was carried out.
            Command::Manage { .. } => Work::Nothing,
        }
    }

    /// The work of a management command that has made `changes`.
    fn managed(&self, action: Action, changes: &Changes) -> Work {
        let geometry = self.machine.geometry();
        let bytes = |blocks: u64| geometry.bytes(BlockCount(blocks)).0;
        let Some((zone, ..)) = changes.first().copied() else {
            // Nothing changed, because an empty zone was reset or a zone was already in the
            // requested state.
            let reset = Work::Reset { zone: ZoneId(0), empty: 1, zones: 0, bytes: 0, active: 0 };
            return if action == Action::Reset { reset } else { Work::Nothing };
        };
        let zones = changes.len() as u32;
        let empty =
            changes.iter().filter(|(_, before, _)| before.state == ZoneState::Empty).count() as u32;
        match action {
            // Zones that were closed to let others open are part of this command, and are
            // not counted.
            Action::Open | Action::Close => {
                let state = match action {
                    Action::Open => ZoneState::ExplicitlyOpen,
                    _ => ZoneState::Closed,
                };
                let zones = changes.iter().filter(|(.., after)| after.state == state).count();
                let zones = zones as u32;
                match action {
                    Action::Open => Work::Open { zone, zones },
                    _ => Work::Close { zone, zones },
                }
            }
            Action::Reset => {
                let held = changes.iter().map(|(_, before, _)| bytes(before.write_pointer.0));
                let active = changes.iter().filter(|(_, before, _)| before.state.is_active());
                let active = active.count() as u32;
                Work::Reset { zone, empty, zones: zones - empty, bytes: held.sum(), active }
            }
            Action::Finish => {
                let lacks = changes
                    .iter()
                    .filter(|(_, before, _)| before.state != ZoneState::Empty)
                    .map(|(_, before, _)| bytes(before.capacity.0 - before.write_pointer.0));
                Work::Finish { zone, empty, zones: zones - empty, bytes: lacks.sum() }
            }
            _ => Work::Nothing,
        }
    }

    /// True if the payload of a write has as many bytes as its blocks.
    fn fits(&self, request: &Request, blocks: BlockCount) -> bool {
        let oob = request.oob.len() as u64;
        request.data.len() as u64 == self.shape.pages(blocks.0)
            && (oob == 0 || Some(oob) == blocks.0.checked_mul(self.shape.oob_bytes as u64))
    }

    #[inline]
    fn write(&mut self, request: &Request, blocks: BlockCount) -> Outcome {
        if !self.fits(request, blocks) {
            return answer(Status::InvalidField, Lba(0));
        }
        if self.medium.keeps_records() {
            return self.write_kept(request, blocks);
        }
        match self.machine.apply(&request.command) {
            Ok(Effect::Written { lba, zone, offset, .. }) => {
                let span = Span { zone, offset: offset.0, blocks: blocks.0 };
                self.overwrite(span, request.fua);
                if let Err(error) = self.medium.write(span, &request.data, &request.oob) {
                    return answer(error.of_write(), lba);
                }
                self.wrote(zone, offset.0 + blocks.0, request.fua);
                self.counters.blocks_written += blocks.0;
                answer(Status::Success, lba)
            }
            Ok(_) => answer(Status::InternalError, Lba(0)),
            Err(status) => answer(status, Lba(0)),
        }
    }

    /// Keeps the content of blocks of a conventional zone before they are overwritten.
    #[inline]
    fn overwrite(&mut self, span: Span, fua: bool) {
        if !self.machine.geometry().is_conventional(span.zone) {
            return;
        }
        if let (Some(cache), Medium::Memory(memory)) = (&mut self.cache, &self.medium) {
            cache.overwrote(span.zone, span.offset, memory.stored(span), fua);
        }
    }

    #[inline]
    fn wrote(&mut self, zone: ZoneId, end: u64, fua: bool) {
        let Some(cache) = &mut self.cache else { return };
        if self.machine.geometry().is_conventional(zone) {
            return;
        }
        cache.wrote(zone);
        if fua {
            cache.force(zone, end);
        }
    }

    /// Carries out a write on a medium whose blocks must be stored before the zone's state changes.
    fn write_kept(&mut self, request: &Request, blocks: BlockCount) -> Outcome {
        let status = self.machine.check(&request.command);
        let Some((zone, offset)) = self.target(&request.command).filter(|_| status.is_ok()) else {
            return answer(status, Lba(0));
        };
        let span = Span { zone, offset, blocks: blocks.0 };
        let lba = Lba(self.machine.geometry().start(zone).0 + offset);
        if let Err(error) = self.medium.write(span, &request.data, &request.oob) {
            return answer(error.of_write(), lba);
        }
        let mut changes = Changes::new();
        let applied = self.machine.apply_observed(&request.command, |zone, before, after| {
            changes.push((zone, *before, *after));
        });
        if let Err(status) = applied {
            return answer(status, lba);
        }
        self.wrote(zone, offset + blocks.0, request.fua);
        let kept = self.record(changes.iter().map(|(zone, ..)| *zone));
        let synced = if request.fua { self.medium.flush() } else { Ok(()) };
        self.counters.blocks_written += blocks.0;
        match kept.and(synced) {
            Ok(()) => answer(Status::Success, lba),
            Err(error) => answer(error.of_write(), lba),
        }
    }

    /// The zone and offset at which a write or an append would store its blocks.
    pub fn target(&self, command: &Command) -> Option<(ZoneId, u64)> {
        let geometry = self.machine.geometry();
        match *command {
            Command::Write { lba, .. } => {
                geometry.locate(lba).map(|(zone, offset)| (zone, offset.0))
            }
            Command::Append { zone_start, .. } => {
                let (zone, _) = geometry.locate(zone_start)?;
                Some((zone, self.machine.zone(zone)?.write_pointer.0))
            }
            _ => None,
        }
    }

    /// Stores the records of `zones`, so that their state survives the process.
    fn record(&mut self, zones: impl Iterator<Item = ZoneId>) -> Result<(), MediumError> {
        for id in zones {
            let Some(zone) = self.machine.zone(id) else { continue };
            let durable = match &self.cache {
                Some(cache) => cache.durable(id),
                None => zone.write_pointer.0,
            };
            self.medium.record(id, &ZoneRecord { zone, durable })?;
        }
        Ok(())
    }

    #[inline]
    fn read(&mut self, request: &mut Request, lba: Lba, blocks: BlockCount) -> Outcome {
        let mut outcome = answer(Status::Success, lba);
        outcome.data = std::mem::take(&mut request.data);
        outcome.oob = std::mem::take(&mut request.oob);
        outcome.status = match self.machine.apply(&request.command) {
            _ if outcome.data.len() as u64 != self.shape.pages(blocks.0) => Status::InvalidField,
            Ok(Effect::Read { zone, offset }) => {
                if self.shape.oob_bytes > 0 {
                    outcome.oob.resize(blocks.0 as usize * self.shape.oob_bytes, 0);
                }
                match self.fetch(zone, offset.0, blocks.0, &mut outcome) {
                    Ok(()) => Status::Success,
                    Err(_) => Status::UnrecoveredRead,
                }
            }
            Ok(_) => Status::InternalError,
            Err(status) => status,
        };
        self.counters.blocks_read += blocks.0 * u64::from(outcome.status.is_ok());
        outcome
    }

    /// Fills the outcome, zone by zone: with blocks of the medium below the write pointer, and with
    /// zeros above it.
    fn fetch(
        &self,
        mut zone: ZoneId,
        mut offset: u64,
        mut left: u64,
        outcome: &mut Outcome,
    ) -> Result<(), MediumError> {
        let geometry = self.machine.geometry();
        let mut into = 0;
        while left > 0 {
            let here = left.min(geometry.zone_size.0 - offset);
            let written = self.written(zone).saturating_sub(offset).min(here);
            if written > 0 {
                let span = Span { zone, offset, blocks: written };
                let (data, oob) = (&mut outcome.data, &mut outcome.oob);
                self.medium.read(span, data, into, oob, self.shape)?;
            }
            let (from, zeros) = (into + written as usize, (here - written) as usize);
            if zeros > 0 {
                self.shape.zero(&mut outcome.data, from, zeros, &mut outcome.oob);
            }
            into += here as usize;
            left -= here;
            (zone, offset) = (ZoneId(zone.0 + 1), 0);
        }
        Ok(())
    }

    fn flush(&mut self, barrier: Option<&Barrier>) -> Status {
        let mut kept = self.medium.flush();
        if let Some(cache) = &mut self.cache {
            let all;
            let barrier = match barrier {
                Some(barrier) => barrier,
                None => {
                    all = cache.barrier(&self.machine, QueueId(0));
                    &all
                }
            };
            let advanced = cache.flushed(barrier, &self.machine);
            if self.medium.keeps_records() {
                kept = kept.and(self.record(advanced.into_iter()));
            }
        }
        kept.map_or_else(MediumError::of_write, |()| Status::Success)
    }

    fn manage(&mut self, command: &Command) -> Status {
        let mut changes = Changes::new();
        let applied = self.machine.apply_observed(command, |zone, before, after| {
            changes.push((zone, *before, *after));
        });
        if let Err(status) = applied {
            return status;
        }
        if self.watched
            && let Command::Manage { action, .. } = *command
        {
            self.work = self.managed(action, &changes);
        }
        let resets = matches!(command, Command::Manage { action: Action::Reset, .. });
        if resets && let Some(cache) = &mut self.cache {
            changes.iter().for_each(|(zone, ..)| cache.reset(*zone));
        }
        let kept = self.record(changes.iter().map(|(zone, ..)| *zone));
        for (zone, _, after) in &changes {
            if resets && after.state == ZoneState::Empty {
                self.counters.zone_resets += 1;
                self.medium.truncate(*zone, 0);
            }
        }
        kept.map_or_else(MediumError::of_write, |()| Status::Success)
    }

    /// Carries out the first `done` blocks of a write or append, as a drive does that stops in the
    /// middle. Returns the drive's answer: Write Fault, or the status with which the drive refuses
    /// the command.
    pub fn tear(&mut self, request: &Request, done: u64) -> Status {
        let (Command::Write { blocks, .. } | Command::Append { blocks, .. }) = request.command
        else {
            return Status::InvalidField;
        };
        let status = self.machine.check(&request.command);
        let Some((zone, offset)) = self.target(&request.command).filter(|_| status.is_ok()) else {
            return status;
        };
        if !self.fits(request, blocks) {
            return Status::InvalidField;
        }
        let done = done.min(blocks.0);
        let span = Span { zone, offset, blocks: done };
        self.overwrite(span, false);
        let stored = self.medium.write(span, &request.data, &request.oob);
        if stored.is_ok() && !self.machine.geometry().is_conventional(zone) {
            self.wrote(zone, 0, false);
            let pointer = BlockCount(offset + done);
            let _ = self.disturb(|machine| {
                // The check above allowed the whole write, so its beginning is allowed too.
                let _ = machine.fail_write_at(zone, pointer);
            });
        }
        Status::WriteFault
    }

    /// Changes the machine without a command, and stores the records of the changed zones.
    pub fn disturb<T>(&mut self, what: impl FnOnce(&mut Machine) -> T) -> (T, Status) {
        if !self.medium.keeps_records() {
            return (what(&mut self.machine), Status::Success);
        }
        let before = self.machine.clone();
        let result = what(&mut self.machine);
        let zones = (0..before.geometry().zones).map(ZoneId);
        let changed: Vec<ZoneId> =
            zones.filter(|&zone| before.zone(zone) != self.machine.zone(zone)).collect();
        let kept = self.record(changed.into_iter());
        (result, kept.map_or_else(MediumError::of_write, |()| Status::Success))
    }
}
