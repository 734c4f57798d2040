//! The faults of a drive, and their effects on commands.

use super::Emulator;
use super::verdict::Verdict;
use crate::medium::Medium;
use crate::power::{Fates, Power, zone_of};
use crate::queue::Position;
use furrow_zone::fault::{Fault, FaultInjection, FaultKind, MAX_FAULTS, Place, Touch};
use furrow_zone::{BlockCount, Command, Error, ErrorKind, Lba, Result, Status, ZoneId};

impl FaultInjection for Emulator {
    fn faults(&self) -> Vec<Fault> {
        Emulator::faults(self)
    }

    fn inject(&self, fault: Fault) -> Result<()> {
        Emulator::inject(self, fault)
    }

    fn clear_faults(&self, index: Option<usize>) -> Result<()> {
        Emulator::clear_faults(self, index)
    }

    fn power_cut(&self, seed: u64) {
        Emulator::power_cut(self, &Fates::seeded(seed));
    }

    fn is_on(&self) -> bool {
        matches!(self.0.power.get(), Power::On)
    }

    fn power_on(&self) {
        Emulator::power_on(self);
    }
}

impl Emulator {
    /// The faults that the drive still has.
    pub fn faults(&self) -> Vec<Fault> {
        self.0.faults.borrow().clone()
    }

    /// Gives the drive a fault. On an image, the fault stays when the drive is closed. A fault that
    /// needs no command ([`fault`](furrow_zone::fault)) happens now.
    ///
    /// # Errors
    /// If the fault names a zone or blocks that the drive does not have, or cannot happen to that
    /// zone, or the drive has too many faults already, or the fault cannot be stored.
    pub fn inject(&self, fault: Fault) -> Result<()> {
        self.check_place(&fault)?;
        if fault.is_immediate() {
            return self.strike_now(&fault);
        }
        if self.0.faults.borrow().len() >= MAX_FAULTS {
            return Err(self.refusal(
                ErrorKind::NoSpace,
                format!("has {MAX_FAULTS} faults already: clear some first"),
            ));
        }
        self.0.faults.borrow_mut().push(fault);
        self.faults_changed()
    }

    /// Removes the fault with the number `index` in [`Emulator::faults`]; `None` removes
    /// all faults.
    ///
    /// # Errors
    /// If there is no such fault, or the change cannot be stored.
    pub fn clear_faults(&self, index: Option<usize>) -> Result<()> {
        let mut faults = self.0.faults.borrow_mut();
        match index {
            None => faults.clear(),
            Some(index) if index < faults.len() => {
                faults.remove(index);
            }
            Some(index) => {
                let message =
                    format!("no fault {index}: there are {}, counted from 0", faults.len());
                return Err(self.refusal(ErrorKind::NotFound, message));
            }
        }
        drop(faults);
        self.faults_changed()
    }

    fn refusal(&self, kind: ErrorKind, message: String) -> Error {
        Error::new(kind, message).at(&self.0.options.name)
    }

    fn faults_changed(&self) -> Result<()> {
        self.look_again();
        let stored = match &mut self.0.core.borrow_mut().medium {
            Medium::Image(image) => image.store_faults(&self.0.faults.borrow()),
            _ => Ok(()),
        };
        stored
            .map_err(|_| self.refusal(ErrorKind::Io, "the fault list cannot be written".to_owned()))
    }

    fn check_place(&self, fault: &Fault) -> Result<()> {
        let geometry = &self.0.geometry;
        let outside = match fault.place {
            Place::Zone(zone) if zone.0 >= geometry.zones => Some(format!("no zone {zone}")),
            Place::Blocks { first, blocks } => match geometry.check_range(first, blocks) {
                Ok(_) => None,
                Err(_) => Some(format!("no blocks {first}+{blocks}")),
            },
            _ => None,
        };
        match outside {
            None => Ok(()),
            Some(what) => Err(self.refusal(
                ErrorKind::Invalid,
                format!(
                    "{what}: the drive has {} zones, {} blocks",
                    geometry.zones,
                    geometry.blocks()
                ),
            )),
        }
    }

    /// Applies a fault that needs no command.
    fn strike_now(&self, fault: &Fault) -> Result<()> {
        let status = match fault.place {
            Place::Zone(zone) => self.change_zone(fault.kind, zone),
            Place::Blocks { first, blocks } => {
                let random = self.0.rng.borrow_mut().next();
                let at = Lba(first.0 + random % blocks.0);
                self.flip(at, random >> 32)
            }
            Place::Anywhere => Status::InvalidField,
        };
        if status.is_ok() {
            return Ok(());
        }
        let message = format!("{} cannot happen at {}: {status}", fault.kind, fault.place);
        Err(self.refusal(ErrorKind::Invalid, message))
    }

    fn change_zone(&self, kind: FaultKind, zone: ZoneId) -> Status {
        let (result, kept) = self.0.core.borrow_mut().disturb(|machine| match kind {
            FaultKind::ZoneReadOnly => machine.set_read_only(zone),
            FaultKind::ZoneOffline => machine.set_offline(zone),
            _ => machine.force_full(zone),
        });
        result.err().unwrap_or(kept)
    }

    /// Flips a bit of a block, if the block was written.
    fn flip(&self, lba: Lba, bit: u64) -> Status {
        let core = &mut *self.0.core.borrow_mut();
        let Some((zone, offset)) = self.0.geometry.locate(lba) else {
            return Status::LbaOutOfRange;
        };
        let written = core.machine.zone(zone).map_or(0, |zone| zone.write_pointer.0);
        if offset.0 >= written {
            return Status::Unwritten;
        }
        let bits = self.0.geometry.block_size.0 * 8;
        match core.medium.flip(zone, offset.0, bit % bits) {
            Ok(()) => Status::Success,
            Err(_) => Status::UnrecoveredRead,
        }
    }

    /// The answer of a drive that is off or has disappeared; `None` if the drive answers.
    pub(super) fn refuse(&self) -> Option<Status> {
        let power = &self.0.power;
        match power.get() {
            Power::On => return None,
            Power::Off => {}
            Power::Gone(left) if left <= 1 => {
                power.set(Power::On);
                self.look_again();
            }
            Power::Gone(left) => power.set(Power::Gone(left - 1)),
        }
        Some(Status::InternalError)
    }

    /// The position of the command to carry out next: `position` or, if a fault reorders the append
    /// there, the position of another append.
    pub(super) fn reorder(&self, position: Position) -> Position {
        let inner = &*self.0;
        let mut faults = inner.faults.borrow_mut();
        if !faults.iter().any(|fault| fault.kind == FaultKind::ReorderAppends) {
            return position;
        }
        let queues = inner.queues.borrow();
        let candidates = queues.appends(position);
        let touch = queues.get(position).and_then(|waiting| self.touch(&waiting.request.command));
        let rng = &mut *inner.rng.borrow_mut();
        let reorders = faults
            .iter_mut()
            .filter(|fault| fault.kind == FaultKind::ReorderAppends && candidates.len() > 1)
            .map(|fault| fault.strikes(touch, rng))
            .filter(|strikes| *strikes)
            .count();
        if reorders > 0 {
            candidates[rng.below(candidates.len() as u64) as usize]
        } else {
            position
        }
    }

    fn touch(&self, command: &Command) -> Option<Touch> {
        let zone = zone_of(command, &self.0.geometry)?;
        let start = self.0.geometry.start(zone);
        let (first, blocks) = match *command {
            Command::Read { lba, blocks } | Command::Write { lba, blocks } => (lba, blocks.0),
            Command::Append { blocks, .. } => {
                let pointer = self.0.core.borrow().machine.zone(zone)?.write_pointer;
                (Lba(start.0 + pointer.0), blocks.0)
            }
            _ => (start, self.0.geometry.zone_size.0),
        };
        Some(Touch { zone, first, blocks })
    }

    /// The effects of the faults on the command at `position`; `None` for a power cut.
    pub(super) fn judge(&self, position: Position) -> Option<Verdict> {
        let inner = &*self.0;
        let mut verdict = Verdict::default();
        if inner.faults.borrow().is_empty() && inner.writable {
            return Some(verdict);
        }
        let command = inner.queues.borrow().get(position).map(|w| w.request.command);
        let Some(command) = command else { return Some(verdict) };
        if !inner.writable && !matches!(command, Command::Read { .. } | Command::Flush) {
            verdict.fail = Some(Status::WriteFault);
            return Some(verdict);
        }
        let touch = self.touch(&command);
        let mut struck = Vec::new();
        {
            let rng = &mut *inner.rng.borrow_mut();
            for fault in inner.faults.borrow_mut().iter_mut() {
                if applies(fault.kind, &command) && fault.strikes(touch, rng) {
                    struck.push(fault.kind);
                }
            }
        }
        if struck.is_empty() {
            return Some(verdict);
        }
        inner.faults.borrow_mut().retain(|fault| !fault.is_over());
        // A command does not fail just because an image cannot store its fault list.
        let _ = self.faults_changed();
        for kind in struck {
            match kind {
                FaultKind::PowerCut => return None,
                _ => self.strike(kind, touch, &mut verdict),
            }
        }
        Some(verdict)
    }

    fn strike(&self, kind: FaultKind, touch: Option<Touch>, verdict: &mut Verdict) {
        let blocks = touch.map_or(0, |touch| touch.blocks);
        match kind {
            FaultKind::ReadError => verdict.fail = Some(Status::UnrecoveredRead),
            FaultKind::WriteError => verdict.fail = Some(Status::WriteFault),
            FaultKind::WriteTorn => {
                verdict.torn = Some(self.0.rng.borrow_mut().below(blocks.saturating_add(1)));
            }
            FaultKind::ZoneReadOnly | FaultKind::ZoneOffline | FaultKind::ZoneFull => {
                if let Some(touch) = touch {
                    self.change_zone(kind, touch.zone);
                }
            }
            FaultKind::Disappear { commands } => {
                verdict.fail = Some(Status::InternalError);
                self.0.power.set(match commands {
                    Some(0 | 1) => Power::On,
                    Some(commands) => Power::Gone(commands - 1),
                    None => Power::Off,
                });
                self.look_again();
            }
            FaultKind::Slow { polls, nanoseconds } => {
                verdict.polls = verdict.polls.max(polls);
                verdict.nanoseconds = verdict.nanoseconds.max(nanoseconds);
            }
            FaultKind::BitFlip => verdict.flip = Some(self.0.rng.borrow_mut().next()),
            FaultKind::PowerCut | FaultKind::ReorderAppends => {}
        }
    }

    /// Flips a bit of one of `blocks` blocks from `lba`; does nothing if that block was never
    /// written.
    pub(super) fn flip_one(&self, lba: Lba, blocks: BlockCount, random: u64) {
        if blocks.0 > 0 {
            self.flip(Lba(lba.0.saturating_add(random % blocks.0)), random >> 32);
        }
    }
}

/// Whether a fault of this kind applies to `command`.
fn applies(kind: FaultKind, command: &Command) -> bool {
    let writes = matches!(command, Command::Write { .. } | Command::Append { .. });
    let reads = matches!(command, Command::Read { .. });
    match kind {
        FaultKind::ReadError => reads,
        FaultKind::WriteError | FaultKind::WriteTorn => writes,
        FaultKind::BitFlip => reads || writes,
        FaultKind::ReorderAppends => false,
        FaultKind::PowerCut
        | FaultKind::ZoneReadOnly
        | FaultKind::ZoneOffline
        | FaultKind::ZoneFull
        | FaultKind::Disappear { .. }
        | FaultKind::Slow { .. } => true,
    }
}
