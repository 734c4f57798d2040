//! All zones of a drive under the zone rules: counts open and active zones, and closes zones to
//! open others.
//!
//! [`Machine`] holds the state that is necessary to apply [`rules`] to [`Command`]s: all zones, the
//! numbers of open and active ones, and the order in which zones were implicitly opened. It has no
//! clock, no data and no durability; the emulator adds those.
//!
//! - **Open and active zones never exceed the geometry's limits**, whichever function is called.
//! - **A refused command has changed nothing.**
//! - A read, write, append or single-zone management is O(1) and does not allocate.
//! - Checks come in this order: transfer size, range, state, alignment, write pointer, boundary,
//!   resources. `tests/table.csv` has every answer.
//! - To open a zone at the limit of open zones, the machine closes the zone that was implicitly
//!   opened longest ago, never an explicitly opened one (ZNS Command Set Specification 1.1, "Zone
//!   Resources", allows that).
//!
//! Conventional zones (`Geometry::conventional_zones`), which the ZNS Command Set does not know,
//! can be written anywhere below their capacity, again and again; a write must stay in its zone.
//! They have no state to manage: management and append are answered with Invalid Field, and Select
//! All skips them. They are reported full, and may become read-only or offline like any zone.
//!
//! Not covered: ZRWA, descriptor extensions, zone attributes, the change log.

use crate::rules::{self, Headroom, Op, Step, Zone};
use crate::{
    Action, BlockCount, Command, Error, ErrorKind, Geometry, Lba, Status, Target, ZoneId,
    ZoneReport, ZoneState,
};

/// End of the list of implicitly opened zones.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    zone: Zone,
    /// Neighbours in the list of implicitly opened zones, by age; meaningless for other zones.
    older: u32,
    newer: u32,
}

/// The effect of an accepted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read: nothing changed. The range starts at `offset` of `zone` and may continue into the
    /// next zone.
    Read {
        /// Zone of the first block.
        zone: ZoneId,
        /// First block, as an offset in the zone.
        offset: BlockCount,
    },
    /// Write or append: the data belongs at `offset` of `zone`.
    Written {
        /// The first block: for an append, the address assigned (ALBA).
        lba: Lba,
        /// The zone, which contains the whole write.
        zone: ZoneId,
        /// First block, as an offset in the zone.
        offset: BlockCount,
        /// The zone's state afterwards.
        state: ZoneState,
    },
    /// Flush: the machine changes nothing.
    Flushed,
    /// Management of one zone: its state may have changed.
    Managed {
        /// The zone that was managed.
        zone: ZoneId,
        /// The zone before the command.
        before: Zone,
    },
    /// Management of every zone to which the action applies; the observer of
    /// [`Machine::apply_observed`] is called for each.
    ManagedAll,
}

/// The effect that a command would have now.
enum Plan {
    Read { zone: ZoneId, offset: BlockCount },
    Conventional { lba: Lba, zone: ZoneId, offset: BlockCount },
    Flush,
    Write { zone: ZoneId, step: Step },
    Manage { zone: ZoneId, step: Step },
    All(Action),
}

/// The zones of a drive. See the [module](self).
#[derive(Clone, Debug)]
pub struct Machine {
    geometry: Geometry,
    slots: Vec<Slot>,
    open: u32,
    active: u32,
    implicit: u32,
    /// The oldest implicitly opened zone: one end of their list.
    oldest: u32,
    /// The newest implicitly opened zone: the other end of the list.
    newest: u32,
}

impl Machine {
    /// Creates a drive with empty zones.
    ///
    /// # Errors
    /// The errors of [`Geometry::validate`].
    pub fn new(geometry: Geometry) -> Result<Machine, Error> {
        geometry.validate()?;
        let fresh = |state, write_pointer| Slot {
            zone: Zone { state, write_pointer, capacity: geometry.zone_capacity },
            older: NONE,
            newer: NONE,
        };
        let mut slots = vec![fresh(ZoneState::Empty, BlockCount(0)); geometry.zones as usize];
        slots[..geometry.conventional_zones as usize]
            .fill(fresh(ZoneState::Full, geometry.zone_capacity));
        Ok(Machine { geometry, slots, open: 0, active: 0, implicit: 0, oldest: NONE, newest: NONE })
    }

    /// The geometry of the drive.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns one zone; `None` past the last.
    pub fn zone(&self, zone: ZoneId) -> Option<Zone> {
        self.slots.get(zone.0 as usize).map(|slot| slot.zone)
    }

    /// Number of open zones.
    pub fn open_zones(&self) -> u32 {
        self.open
    }

    /// Number of active (open or closed) zones.
    pub fn active_zones(&self) -> u32 {
        self.active
    }

    /// The implicitly opened zones, longest ago first: the order in which they would be closed.
    pub fn implicitly_open(&self) -> impl Iterator<Item = ZoneId> + '_ {
        let next = |at: u32| (at != NONE).then_some(at);
        std::iter::successors(next(self.oldest), move |&at| next(self.slots[at as usize].newer))
            .map(ZoneId)
    }

    /// Returns the zone descriptors of `count` zones from `first` on, fewer at the end of
    /// the drive.
    pub fn report(&self, first: ZoneId, count: u32) -> Vec<ZoneReport> {
        let slots = self.slots.get(first.0 as usize..).unwrap_or_default();
        let describe = |(zone, slot): (u32, &Slot)| ZoneReport {
            zone: ZoneId(zone),
            state: slot.zone.state,
            capacity: slot.zone.capacity,
            write_pointer: slot.zone.reported_pointer(),
        };
        (first.0..).zip(slots).take(count as usize).map(describe).collect()
    }

    /// Returns the status that `command` would get now. Changes nothing.
    pub fn check(&self, command: &Command) -> Status {
        self.plan(command).err().unwrap_or(Status::Success)
    }

    /// Executes `command`, unless the rules refuse it.
    ///
    /// # Errors
    /// The status that the drive must answer; nothing has changed then.
    #[inline]
    pub fn apply(&mut self, command: &Command) -> Result<Effect, Status> {
        self.apply_observed(command, |_, _, _| {})
    }

    /// Executes a command like [`apply`](Machine::apply). `changed` is called with (zone,
    /// before, after) for every zone that changed in any way, including zones closed to open
    /// others, in order.
    ///
    /// # Errors
    /// The status that the drive must answer; nothing has changed then.
    #[inline]
    pub fn apply_observed(
        &mut self,
        command: &Command,
        mut changed: impl FnMut(ZoneId, &Zone, &Zone),
    ) -> Result<Effect, Status> {
        Ok(match self.plan(command)? {
            Plan::Read { zone, offset } => Effect::Read { zone, offset },
            Plan::Conventional { lba, zone, offset } => {
                Effect::Written { lba, zone, offset, state: ZoneState::Full }
            }
            Plan::Flush => Effect::Flushed,
            Plan::Write { zone, step } => {
                let lba = Lba(self.geometry.start(zone).0 + step.offset.0);
                self.commit(zone, step, &mut changed);
                Effect::Written { lba, zone, offset: step.offset, state: step.zone.state }
            }
            Plan::Manage { zone, step } => {
                let before = self.slots[zone.0 as usize].zone;
                self.commit(zone, step, &mut changed);
                Effect::Managed { zone, before }
            }
            Plan::All(action) => {
                self.manage_all(action, &mut changed);
                Effect::ManagedAll
            }
        })
    }

    #[inline]
    fn plan(&self, command: &Command) -> Result<Plan, Status> {
        match *command {
            Command::Write { lba, blocks } => {
                within(blocks, self.geometry.max_transfer)?;
                let (zone, offset) = self.geometry.check_range(lba, blocks)?;
                if self.geometry.is_conventional(zone) {
                    self.check_conventional(zone, offset, blocks)?;
                    return Ok(Plan::Conventional { lba, zone, offset });
                }
                let step = self.step(zone, Op::Write { offset, blocks })?;
                Ok(Plan::Write { zone, step })
            }
            Command::Append { zone_start, blocks } => {
                within(blocks, self.geometry.append_limit())?;
                // Only the start address is checked here; the zone's rules check the end of
                // the data.
                let (zone, offset) = self.geometry.check_range(zone_start, BlockCount(1))?;
                if self.geometry.is_conventional(zone) {
                    return Err(Status::InvalidField);
                }
                let step = self.step(zone, Op::Append { offset, blocks })?;
                Ok(Plan::Write { zone, step })
            }
            Command::Read { lba, blocks } => {
                within(blocks, self.geometry.max_transfer)?;
                let (zone, offset) = self.geometry.check_range(lba, blocks)?;
                self.check_read(zone, offset, blocks)?;
                Ok(Plan::Read { zone, offset })
            }
            Command::Flush => Ok(Plan::Flush),
            Command::Manage { target: Target::Zone(lba), action } => {
                let (zone, offset) = self.geometry.locate(lba).ok_or(Status::LbaOutOfRange)?;
                if offset.0 != 0 || self.geometry.is_conventional(zone) {
                    return Err(Status::InvalidField);
                }
                Ok(Plan::Manage { zone, step: self.step(zone, Op::Manage(action))? })
            }
            Command::Manage { target: Target::All, action } => {
                if action == Action::Open {
                    self.check_open_all()?;
                }
                Ok(Plan::All(action))
            }
        }
    }

    #[inline]
    fn step(&self, zone: ZoneId, op: Op) -> Result<Step, Status> {
        rules::step(self.slots[zone.0 as usize].zone, op, self.headroom())
    }

    /// The resources left to open another zone.
    #[inline]
    fn headroom(&self) -> Headroom {
        let Geometry { max_open, max_active, .. } = self.geometry;
        Headroom {
            active: max_active.is_none_or(|limit| self.active < limit),
            open: max_open.is_none_or(|limit| self.open < limit) || self.implicit > 0,
        }
    }

    fn check_conventional(
        &self,
        zone: ZoneId,
        offset: BlockCount,
        blocks: BlockCount,
    ) -> Result<(), Status> {
        let Zone { state, capacity, .. } = self.slots[zone.0 as usize].zone;
        if state != ZoneState::Full {
            rules::writable(state)?;
        }
        // The sum cannot overflow: `check_range` has checked it.
        if offset.0 + blocks.0 > capacity.0 { Err(Status::ZoneBoundary) } else { Ok(()) }
    }

    fn check_read(
        &self,
        first: ZoneId,
        offset: BlockCount,
        blocks: BlockCount,
    ) -> Result<(), Status> {
        let size = self.geometry.zone_size.0;
        let end = offset.0 + blocks.0;
        if end > size && !self.geometry.read_across_zones {
            let state = self.slots[first.0 as usize].zone.state;
            let offline = state == ZoneState::Offline;
            return Err(if offline { Status::ZoneOffline } else { Status::ZoneBoundary });
        }
        let mut left = end;
        let mut unwritten = Ok(());
        for index in first.0.. {
            let fails =
                self.geometry.unwritten_reads_fail && !self.geometry.is_conventional(ZoneId(index));
            match rules::read(self.slots[index as usize].zone, BlockCount(left.min(size)), fails) {
                Status::Success => {}
                // An offline zone later in the range takes precedence, because states are
                // checked first.
                Status::Unwritten => unwritten = Err(Status::Unwritten),
                status => return Err(status),
            }
            if left <= size {
                break;
            }
            left -= size;
        }
        unwritten
    }

    /// Fails unless the limit of open zones covers all closed zones together with the explicitly
    /// opened ones.
    fn check_open_all(&self) -> Result<(), Status> {
        let closed = self.active - self.open;
        let explicit = self.open - self.implicit;
        match self.geometry.max_open {
            Some(limit) if closed > 0 && explicit + closed > limit => Err(Status::TooManyOpen),
            _ => Ok(()),
        }
    }

    fn manage_all(&mut self, action: Action, changed: &mut impl FnMut(ZoneId, &Zone, &Zone)) {
        // The zones are chosen before any of them changes, so that a zone closed to open another is
        // not opened again.
        let first = self.geometry.conventional_zones;
        let chosen: Vec<u32> = (first..self.geometry.zones)
            .filter(|&zone| rules::selected(action, self.slots[zone as usize].zone.state))
            .collect();
        for zone in chosen {
            let step = self
                .step(ZoneId(zone), Op::Manage(action))
                .expect("invariant: selected zones accept the action, and there is headroom");
            self.commit(ZoneId(zone), step, changed);
        }
    }

    /// Applies `step` to the zone; if the limit of open zones requires it, closes another
    /// zone first.
    #[inline]
    fn commit(&mut self, zone: ZoneId, step: Step, changed: &mut impl FnMut(ZoneId, &Zone, &Zone)) {
        if step.opens && self.geometry.max_open == Some(self.open) {
            let victim = ZoneId(self.oldest);
            let closed = Zone { state: ZoneState::Closed, ..self.slots[victim.0 as usize].zone };
            self.replace(victim, closed, changed);
        }
        self.replace(zone, step.zone, changed);
    }

    /// Sets a zone and updates the counts and the list of implicitly opened zones.
    #[inline]
    fn replace(
        &mut self,
        zone: ZoneId,
        after: Zone,
        changed: &mut impl FnMut(ZoneId, &Zone, &Zone),
    ) {
        let before = std::mem::replace(&mut self.slots[zone.0 as usize].zone, after);
        if before.state != after.state {
            self.account(zone.0, before.state, after.state);
        }
        if before != after {
            changed(zone, &before, &after);
        }
    }

    fn account(&mut self, zone: u32, before: ZoneState, after: ZoneState) {
        self.open = self.open + u32::from(after.is_open()) - u32::from(before.is_open());
        self.active = self.active + u32::from(after.is_active()) - u32::from(before.is_active());
        if before == ZoneState::ImplicitlyOpen {
            self.unlink(zone);
        }
        if after == ZoneState::ImplicitlyOpen {
            self.link(zone);
        }
    }

    fn link(&mut self, zone: u32) {
        let older = std::mem::replace(&mut self.newest, zone);
        let slot = &mut self.slots[zone as usize];
        (slot.older, slot.newer) = (older, NONE);
        match older {
            NONE => self.oldest = zone,
            older => self.slots[older as usize].newer = zone,
        }
        self.implicit += 1;
    }

    fn unlink(&mut self, zone: u32) {
        let Slot { older, newer, .. } = self.slots[zone as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.implicit -= 1;
    }
}

/// Events that happen to a drive without a command: faults, power cuts, restored images.
impl Machine {
    /// Looks up a sequential or conventional zone by number.
    fn lookup(&self, zone: ZoneId) -> Result<Zone, Status> {
        self.zone(zone).ok_or(Status::LbaOutOfRange)
    }

    /// Makes `zone` read-only, as the controller may: it can be read, but not written any more.
    ///
    /// # Errors
    /// [`Status::InvalidTransition`] if the zone is offline, [`Status::LbaOutOfRange`] past the
    /// last zone.
    pub fn set_read_only(&mut self, zone: ZoneId) -> Result<(), Status> {
        let before = self.lookup(zone)?;
        if before.state == ZoneState::Offline {
            return Err(Status::InvalidTransition);
        }
        self.replace(zone, Zone { state: ZoneState::ReadOnly, ..before }, &mut |_, _, _| {});
        Ok(())
    }

    /// Takes `zone` offline, as the controller does when it has failed.
    ///
    /// # Errors
    /// [`Status::LbaOutOfRange`] past the last zone.
    pub fn set_offline(&mut self, zone: ZoneId) -> Result<(), Status> {
        let before = self.lookup(zone)?;
        self.replace(zone, Zone { state: ZoneState::Offline, ..before }, &mut |_, _, _| {});
        Ok(())
    }

    /// Makes an active zone full, as the controller may (a Zone Active Excursion). Written
    /// blocks stay.
    ///
    /// # Errors
    /// [`Status::InvalidTransition`] if the zone is not active, [`Status::LbaOutOfRange`] past the
    /// last zone.
    pub fn force_full(&mut self, zone: ZoneId) -> Result<(), Status> {
        let before = self.lookup(zone)?;
        if !before.state.is_active() {
            return Err(Status::InvalidTransition);
        }
        self.replace(zone, Zone { state: ZoneState::Full, ..before }, &mut |_, _, _| {});
        Ok(())
    }

    /// Applies a failed write to `zone`, which left the write pointer at `pointer`, anywhere
    /// from its old position to the end of the write's range. The caller does not apply the
    /// write itself: this call opens the zone as the write would, and makes it full if `pointer`
    /// is its capacity.
    ///
    /// # Errors
    /// The status with which the zone refuses a write; [`Status::InvalidField`] for a conventional
    /// zone, [`Status::LbaOutOfRange`] past the last zone; [`Status::ZoneInvalidWrite`] if
    /// `pointer` lies before the zone's write pointer. Nothing has changed then.
    pub fn fail_write_at(&mut self, zone: ZoneId, pointer: BlockCount) -> Result<(), Status> {
        let before = self.lookup(zone)?;
        if self.geometry.is_conventional(zone) {
            return Err(Status::InvalidField);
        }
        rules::writable(before.state)?;
        let written = pointer.0.checked_sub(before.write_pointer.0);
        let written = BlockCount(written.ok_or(Status::ZoneInvalidWrite)?);
        let step = rules::advance(before, written, self.headroom())?;
        self.commit(zone, step, &mut |_, _, _| {});
        Ok(())
    }

    /// Gives an empty zone another capacity (Variable Zone Capacity: part of a reset).
    ///
    /// # Errors
    /// [`Status::InvalidTransition`] if the zone is not empty, [`Status::InvalidField`] if
    /// `capacity` is 0 or above the geometry's, [`Status::LbaOutOfRange`] past the last zone.
    pub fn set_capacity(&mut self, zone: ZoneId, capacity: BlockCount) -> Result<(), Status> {
        let before = self.lookup(zone)?;
        if before.state != ZoneState::Empty {
            return Err(Status::InvalidTransition);
        }
        if capacity.0 == 0 || capacity > self.geometry.zone_capacity {
            return Err(Status::InvalidField);
        }
        self.slots[zone.0 as usize].zone.capacity = capacity;
        Ok(())
    }

    /// Carries out a power cycle. For each sequential zone in order, `durable` returns how many of
    /// its blocks survived; a number above the written blocks counts as all of them.
    ///
    /// [`rules::power_cycle`] decides the state of each zone, with one exception. A zone that lost
    /// part of the write which filled it would be closed again; if the limit of active zones is
    /// reached, it stays full (the controller may make zones full).
    pub fn power_cycle(&mut self, mut durable: impl FnMut(ZoneId, &Zone) -> BlockCount) {
        let mut reopened = Vec::new();
        for zone in (self.geometry.conventional_zones..self.geometry.zones).map(ZoneId) {
            let before = self.slots[zone.0 as usize].zone;
            let after = rules::power_cycle(before, durable(zone, &before));
            if before.state == ZoneState::Full && after.state == ZoneState::Closed {
                reopened.push((zone, after));
            } else {
                self.replace(zone, after, &mut |_, _, _| {});
            }
        }
        for (zone, mut after) in reopened {
            if !self.headroom().active {
                after.state = ZoneState::Full;
            }
            self.replace(zone, after, &mut |_, _, _| {});
        }
    }

    /// Sets a zone to the state in an image. Zones restored as implicitly open count as opened in
    /// the order of the calls.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the drive has no such zone, or if the state is impossible or
    /// exceeds a limit of the drive; nothing has changed then.
    pub fn restore(&mut self, zone: ZoneId, to: Zone) -> Result<(), Error> {
        let corrupt =
            |what: String| Err(Error::new(ErrorKind::Corrupt, format!("zone {zone}: {what}")));
        let Some(before) = self.zone(zone) else {
            return corrupt(format!("the drive has only {} zones", self.geometry.zones));
        };
        if let Err(what) = possible(&self.geometry, zone, &to) {
            return corrupt(what);
        }
        let gains = |is: fn(ZoneState) -> bool| is(to.state) && !is(before.state);
        if gains(ZoneState::is_open) && self.geometry.max_open == Some(self.open) {
            return corrupt(format!("open, as are {} others: the limit is reached", self.open));
        }
        if gains(ZoneState::is_active) && self.geometry.max_active == Some(self.active) {
            return corrupt(format!("active, as are {} others: the limit is reached", self.active));
        }
        self.replace(zone, to, &mut |_, _, _| {});
        Ok(())
    }
}

/// Whether a zone can have the state `to` on a drive of `geometry`.
fn possible(geometry: &Geometry, zone: ZoneId, to: &Zone) -> Result<(), String> {
    let Zone { state, write_pointer, capacity } = *to;
    if capacity.0 == 0 || capacity > geometry.zone_capacity {
        return Err(format!(
            "capacity of {capacity} blocks, expected 1 to {}",
            geometry.zone_capacity
        ));
    }
    if write_pointer > capacity {
        return Err(format!(
            "write pointer {write_pointer} past its capacity of {capacity} blocks"
        ));
    }
    if geometry.is_conventional(zone) {
        return match state {
            ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline => Ok(()),
            _ => Err(format!("conventional, yet its state is {state:?}")),
        };
    }
    match state {
        ZoneState::Empty if write_pointer.0 != 0 => {
            Err(format!("empty, yet its write pointer is {write_pointer}"))
        }
        _ if state.is_active() && write_pointer == capacity => {
            Err(format!("{state:?}, yet written to its end at {capacity}"))
        }
        _ => Ok(()),
    }
}

/// Whether a transfer has at least one block and at most `limit` blocks. The machine checks this
/// before the rules of the zone.
#[inline]
fn within(blocks: BlockCount, limit: Option<BlockCount>) -> Result<(), Status> {
    let fits = blocks.0 > 0 && limit.is_none_or(|limit| blocks <= limit);
    if fits { Ok(()) } else { Err(Status::InvalidField) }
}
