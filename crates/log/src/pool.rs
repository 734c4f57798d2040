//! The zone pool: superzones, and the only path by which zones become empty again.
//!
//! Invariants
//! - Only this module sends a reset. Before a reset, a durable state of the engine shows that
//!   nothing in the zones counts ([`DurableSnapshot`]), no read pins them, and no write to them is
//!   in flight.
//! - A superzone is handed out only in state free, with all its zones empty.
//! - A zone that cannot be reset is removed from its superzone: each bad zone shortens the
//!   superzone, and the last bad zone retires it.
//! - A superzone's generation counts its releases: a reference made before a release never matches
//!   after it.
//!
//! The pool does not know which blocks are valid, and does not decide what to clean.

use crate::address::blocks_per_zone;
use crate::format::Descriptor;
use crate::writer::Writer;
use furrow_zone::{
    Command, Error, ErrorKind, Geometry, Request, Result, Status, ZoneId, ZoneReport, ZoneState,
};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Maximum number of zones in a superzone.
pub const WIDTH_MAX: u8 = 32;
/// One more than the largest value of a [`SuperzoneState`].
const STATES: usize = 6;
/// Number of attempts at a reset before the zone counts as bad.
const RESET_TRIES: u32 = 2;

/// Index of a superzone in its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SuperzoneId(pub u32);

impl fmt::Display for SuperzoneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The use of a superzone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SuperzoneState {
    /// Empty and ready to be handed out.
    Free = 0,
    /// A stream writes to the superzone.
    Active = 1,
    /// The superzone is written to its end.
    Full = 3,
    /// Out of use; the superzone has no zones.
    Retired = 4,
    /// Zones of the superzone are used one by one, by the tables of an engine.
    Tables = 5,
}

impl SuperzoneState {
    fn from_byte(byte: u8) -> Option<SuperzoneState> {
        use SuperzoneState::{Active, Free, Full, Retired, Tables};
        // The format never stored the value 2.
        [Free, Active, Full, Retired, Tables].into_iter().find(|state| *state as u8 == byte)
    }
}

/// A group of zones used as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superzone {
    /// Index of the superzone.
    pub id: SuperzoneId,
    /// Usable zones, ascending.
    pub zones: Vec<ZoneId>,
    /// Number of times that the superzone was released.
    pub generation: u32,
    /// Use of the superzone.
    pub state: SuperzoneState,
    first: u32,
    width: u8,
    releasing: bool,
    /// Number of the first snapshot that shows the superzone empty, since it was last in use.
    empty_since: Option<u64>,
}

/// The open superzones of an interference group, from the point of view of a stream that needs a
/// superzone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupLoad {
    /// Number of open superzones to which the stream itself writes: another superzone in this group
    /// would delay the stream's own writes.
    pub own: u32,
    /// The amount that all streams are expected to write to the group's open superzones, in a unit
    /// that all groups share.
    pub load: u64,
    /// Number of open superzones of the stream's class (data or nodes): these are written at the
    /// same times as the stream's own superzones.
    pub class: u32,
}

/// Invariants
/// - `counts[state]` is the number of superzones in that state.
/// - `owners` names the superzone of every zone that belongs to a superzone.
/// - Nothing is placed in the zones of a free superzone. A retired superzone has no zones; any
///   other has at least one.
/// - A superzone is not handed out between the loss of a zone and the next checkpoint: recovery
///   takes the superzone's zones, and with them the order of its blocks, from the checkpoint.
/// - `narrow` is set if a superzone lacks a zone.
struct Inner {
    writer: Writer,
    groups: u32,
    superzones: RefCell<Vec<Superzone>>,
    /// Number of superzones in each state, kept up to date because every operation reads
    /// these numbers.
    counts: [Cell<u32>; STATES],
    /// The superzone that owns each zone, by zone number; `None` outside the pool.
    owners: Vec<Option<SuperzoneId>>,
    /// Number of snapshots taken so far; `durable` is the number of the newest durable one.
    snapshots: Cell<u64>,
    durable: Cell<u64>,
    pins: RefCell<Pins>,
    /// Whether a superzone lacks a zone.
    narrow: Cell<bool>,
}

struct Pins {
    count: Vec<u32>,
    waiters: Vec<Waker>,
}

/// A handle to a drive's zone pool. Cloning shares it.
#[derive(Clone)]
pub struct ZonePool(Rc<Inner>);

/// Keeps a zone from being reset while a read of it is in flight.
#[must_use = "the zone is pinned only as long as this lives"]
pub struct ReadPin {
    pool: ZonePool,
    zone: ZoneId,
}

impl Drop for ReadPin {
    fn drop(&mut self) {
        let mut pins = self.pool.0.pins.borrow_mut();
        let count = &mut pins.count[self.zone.0 as usize];
        *count -= 1;
        if *count == 0 && !pins.waiters.is_empty() {
            std::mem::take(&mut pins.waiters).into_iter().for_each(Waker::wake);
        }
    }
}

/// Builds descriptors for the zones from `first` to the end of the drive: superzones of
/// `width` consecutive zones, without the zones in `bad`. Remaining zones at the end form a
/// shorter superzone.
///
/// # Errors
/// `Invalid` if `width` is 0 or above [`WIDTH_MAX`].
pub fn describe(
    geometry: &Geometry,
    first: ZoneId,
    width: u8,
    bad: &[ZoneId],
) -> Result<Vec<Descriptor>> {
    if width == 0 || width > WIDTH_MAX {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("superzone width {width}: must be 1 to {WIDTH_MAX}"),
        ));
    }
    let starts = (first.0..geometry.zones).step_by(usize::from(width));
    Ok(starts
        .map(|start| {
            let width = u32::from(width).min(geometry.zones - start);
            let gone = |i: &u32| bad.contains(&ZoneId(start + i));
            let missing = (0..width).filter(gone).fold(0u32, |mask, i| mask | 1 << i);
            let all = missing.count_ones() == width;
            let state = if all { SuperzoneState::Retired } else { SuperzoneState::Free };
            Descriptor {
                first: start.into(),
                generation: 0.into(),
                width: width as u8,
                state: state as u8,
                reserved: [0; 2],
                missing: missing.into(),
            }
        })
        .collect())
}

fn parse(index: usize, descriptor: &Descriptor, geometry: &Geometry) -> Result<Superzone> {
    let (first, width) = (descriptor.first.get(), descriptor.width);
    let corrupt = |what: String| {
        Err(Error::new(ErrorKind::Corrupt, format!("descriptor of superzone {index}: {what}")))
    };
    if width == 0 || width > WIDTH_MAX {
        return corrupt(format!("width {width}, expected 1 to {WIDTH_MAX}"));
    }
    if first >= geometry.zones || geometry.zones - first < u32::from(width) {
        return corrupt(format!("zones {first} + {width}, but the drive has {}", geometry.zones));
    }
    let Some(state) = SuperzoneState::from_byte(descriptor.state) else {
        return corrupt(format!("state {}, expected 0, 1 or 3 to 5", descriptor.state));
    };
    let missing = u64::from(descriptor.missing.get());
    if missing >> width != 0 || descriptor.reserved != [0; 2] {
        return corrupt("unknown bits set".into());
    }
    let present = (0..u32::from(width)).filter(|i| missing >> i & 1 == 0);
    let zones: Vec<ZoneId> = present.map(|i| ZoneId(first + i)).collect();
    if zones.is_empty() != (state == SuperzoneState::Retired) {
        return corrupt(format!("{} zones in state {state:?}", zones.len()));
    }
    let (id, generation) = (SuperzoneId(index as u32), descriptor.generation.get());
    Ok(Superzone {
        id,
        zones,
        generation,
        state,
        first,
        width,
        releasing: false,
        empty_since: None,
    })
}

impl Superzone {
    /// The stored form of the superzone.
    fn descriptor(&self) -> Descriptor {
        let present = self.zones.iter().fold(0u64, |mask, zone| mask | 1 << (zone.0 - self.first));
        let all = (1u64 << self.width) - 1;
        Descriptor {
            first: self.first.into(),
            generation: self.generation.into(),
            width: self.width,
            state: self.state as u8,
            reserved: [0; 2],
            missing: ((all & !present) as u32).into(),
        }
    }
}

impl ZonePool {
    /// Creates a pool from descriptors. `groups` is the number of interference groups: superzone i
    /// shares dies with the superzones of its group, i mod `groups`.
    ///
    /// # Errors
    /// `Corrupt` if a descriptor does not fit the drive, or two share a zone.
    pub fn new(writer: &Writer, descriptors: &[Descriptor], groups: u32) -> Result<ZonePool> {
        let geometry = writer.geometry();
        let mut owners: Vec<Option<SuperzoneId>> = vec![None; geometry.zones as usize];
        let mut superzones = Vec::with_capacity(descriptors.len());
        for (index, descriptor) in descriptors.iter().enumerate() {
            let superzone = parse(index, descriptor, geometry)?;
            for zone in superzone.first..superzone.first + u32::from(superzone.width) {
                if let Some(other) = owners[zone as usize].replace(superzone.id) {
                    return Err(Error::new(
                        ErrorKind::Corrupt,
                        format!("superzones {other} and {index} both claim zone {zone}"),
                    ));
                }
            }
            superzones.push(superzone);
        }
        let pins = Pins { count: vec![0; geometry.zones as usize], waiters: Vec::new() };
        let counts: [Cell<u32>; STATES] = Default::default();
        let narrow = superzones.iter().any(|s| s.zones.len() != usize::from(s.width));
        for superzone in &superzones {
            let count = &counts[superzone.state as usize];
            count.set(count.get() + 1);
        }
        Ok(ZonePool(Rc::new(Inner {
            writer: writer.clone(),
            groups: groups.max(1),
            counts,
            superzones: RefCell::new(superzones),
            owners,
            snapshots: Cell::new(0),
            durable: Cell::new(0),
            pins: RefCell::new(pins),
            narrow: Cell::new(narrow),
        })))
    }

    /// Returns the descriptors that the next checkpoint stores, in the order of the superzones.
    pub fn descriptors(&self) -> Vec<Descriptor> {
        self.0.superzones.borrow().iter().map(Superzone::descriptor).collect()
    }

    /// Number of superzones.
    pub fn total(&self) -> u32 {
        self.0.superzones.borrow().len() as u32
    }

    /// Number of superzones in `state`.
    pub fn count(&self, state: SuperzoneState) -> u32 {
        self.0.counts[state as usize].get()
    }

    /// Changes the state of a superzone. Only this function changes states.
    fn turn(&self, superzone: &mut Superzone, state: SuperzoneState) {
        let (from, to) = (superzone.state as usize, state as usize);
        self.0.counts[from].set(self.0.counts[from].get() - 1);
        self.0.counts[to].set(self.0.counts[to].get() + 1);
        superzone.state = state;
        if state != SuperzoneState::Full {
            superzone.empty_since = None;
        }
    }

    /// Number of free superzones, including those that are being released and cannot be handed out.
    pub fn free_count(&self) -> u32 {
        self.count(SuperzoneState::Free)
    }

    /// True if a superzone lacks a zone: then superzones differ in capacity.
    pub fn is_narrow(&self) -> bool {
        self.0.narrow.get()
    }

    /// Number of blocks that the superzones in `state` can hold.
    pub fn blocks(&self, state: SuperzoneState) -> u64 {
        let capacity = u64::from(blocks_per_zone(self.0.writer.geometry()));
        let superzones = self.0.superzones.borrow();
        let matching = superzones.iter().filter(|superzone| superzone.state == state);
        matching.map(|superzone| superzone.zones.len() as u64 * capacity).sum()
    }

    /// Returns a copy of the superzone in its present state.
    ///
    /// # Panics
    /// If the pool has no such superzone.
    pub fn get(&self, id: SuperzoneId) -> Superzone {
        self.0.superzones.borrow()[id.0 as usize].clone()
    }

    /// Returns the state of a superzone.
    ///
    /// # Panics
    /// If the pool has no such superzone.
    pub fn state(&self, id: SuperzoneId) -> SuperzoneState {
        self.0.superzones.borrow()[id.0 as usize].state
    }

    /// Returns the generation of a superzone.
    ///
    /// # Panics
    /// If the pool has no such superzone.
    pub fn generation(&self, id: SuperzoneId) -> u32 {
        self.0.superzones.borrow()[id.0 as usize].generation
    }

    /// Returns the superzone to which `zone` was assigned; `None` if the pool does not
    /// manage `zone`.
    pub fn owner(&self, zone: ZoneId) -> Option<SuperzoneId> {
        self.0.owners.get(zone.0 as usize).copied().flatten()
    }

    /// Number of usable zones of a superzone.
    ///
    /// # Panics
    /// If the pool has no such superzone. [`ZonePool::zone`] and [`ZonePool::column`]
    /// panic likewise.
    pub fn width(&self, id: SuperzoneId) -> u32 {
        self.0.superzones.borrow()[id.0 as usize].zones.len() as u32
    }

    /// Returns usable zone number `column` of a superzone.
    pub fn zone(&self, id: SuperzoneId, column: u32) -> ZoneId {
        self.0.superzones.borrow()[id.0 as usize].zones[column as usize]
    }

    /// Returns the column of `zone` in a superzone.
    pub fn column(&self, id: SuperzoneId, zone: ZoneId) -> Option<u32> {
        let superzones = self.0.superzones.borrow();
        let zones = &superzones[id.0 as usize].zones;
        zones.iter().position(|z| *z == zone).map(|column| column as u32)
    }

    /// Returns the interference group of a superzone.
    pub fn group(&self, id: SuperzoneId) -> u32 {
        id.0 % self.0.groups
    }

    /// Number of interference groups.
    pub fn groups(&self) -> u32 {
        self.0.groups
    }

    /// Takes a free superzone into use. `loads` describes the open superzones of each group; it may
    /// be empty. These criteria choose the group, in this order: fewest superzones of the stream
    /// itself; least load, in steps of an eighth of an even share; fewest superzones of the class;
    /// fewest active superzones; most free superzones (Z-LFS, section 4.3). In the group, the
    /// superzone released least often is taken. If a group has no free superzone, the next best
    /// group is used. `None` if no superzone is free.
    pub fn allocate(&self, loads: &[GroupLoad]) -> Option<SuperzoneId> {
        let mut superzones = self.0.superzones.borrow_mut();
        let count = self.0.groups as usize;
        let total: u64 = loads.iter().map(|group| group.load).sum();
        let eighth = (total / (8 * count as u64)).max(1);
        // The numbers of active and of free superzones of each group.
        let mut groups = vec![(0u32, 0u32); count];
        for superzone in superzones.iter() {
            let group = &mut groups[self.group(superzone.id) as usize];
            match superzone.state {
                SuperzoneState::Active => group.0 += 1,
                SuperzoneState::Free if !superzone.releasing => group.1 += 1,
                _ => {}
            }
        }
        let best = superzones
            .iter()
            .filter(|s| s.state == SuperzoneState::Free && !s.releasing)
            .min_by_key(|s| {
                let group = self.group(s.id) as usize;
                let GroupLoad { own, load, class } = loads.get(group).copied().unwrap_or_default();
                let (active, free) = groups[group];
                let beside = (own, load / eighth, class);
                (beside, active, std::cmp::Reverse(free), s.generation, s.id)
            })?
            .id;
        self.turn(&mut superzones[best.0 as usize], SuperzoneState::Active);
        Some(best)
    }

    /// Takes the highest-numbered free superzone for tables: its zones are used one by one until
    /// the whole superzone is released. `None` if no superzone is free.
    pub fn allocate_for_tables(&self) -> Option<SuperzoneId> {
        let mut superzones = self.0.superzones.borrow_mut();
        let free = |s: &&mut Superzone| s.state == SuperzoneState::Free && !s.releasing;
        let last = superzones.iter_mut().rev().find(free)?;
        self.turn(last, SuperzoneState::Tables);
        Some(last.id)
    }

    fn set(&self, id: SuperzoneId, state: SuperzoneState) {
        let mut superzones = self.0.superzones.borrow_mut();
        let superzone = &mut superzones[id.0 as usize];
        assert!(
            !matches!(superzone.state, SuperzoneState::Retired) && !superzone.releasing,
            "superzone {id} is {:?} or being released, cannot become {state:?}",
            superzone.state
        );
        self.turn(superzone, state);
    }

    /// Marks a superzone as written to its end.
    ///
    /// # Panics
    /// If the superzone is retired or being released.
    pub fn mark_full(&self, id: SuperzoneId) {
        self.set(id, SuperzoneState::Full);
    }

    /// Marks a superzone as active, because a stream writes to it again or, at recovery,
    /// still does.
    ///
    /// # Panics
    /// If the superzone is retired or being released.
    pub fn activate(&self, id: SuperzoneId) {
        self.set(id, SuperzoneState::Active);
    }

    /// Takes a superzone out of use for good. Blocks written in it remain readable.
    ///
    /// # Panics
    /// If the superzone is being released.
    pub fn retire(&self, id: SuperzoneId) {
        let superzone = &mut self.0.superzones.borrow_mut()[id.0 as usize];
        assert!(!superzone.releasing, "superzone {id} is being released");
        self.turn(superzone, SuperzoneState::Retired);
        superzone.zones.clear();
    }

    /// Removes a bad zone from its superzone. Removing the last zone retires the superzone.
    fn drop_zone(&self, zone: ZoneId) {
        let Some(owner) = self.owner(zone) else { return };
        let superzone = &mut self.0.superzones.borrow_mut()[owner.0 as usize];
        self.0.narrow.set(true);
        superzone.zones.retain(|other| *other != zone);
        if superzone.zones.is_empty() {
            self.turn(superzone, SuperzoneState::Retired);
        }
    }

    /// Removes read-only and offline zones from *free* superzones, at mount, after recovery's
    /// roll-forward. A superzone that lost zones becomes full, as after a release. In other
    /// superzones, read-only and offline zones hold data; the release of the superzone
    /// removes them.
    pub fn adopt_reports(&self, reports: &[ZoneReport]) {
        let dead =
            |report: &&ZoneReport| matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline);
        let free = |id: &SuperzoneId| self.state(*id) == SuperzoneState::Free;
        let owned = reports.iter().filter(dead).map(|report| report.zone);
        let owned = owned.filter_map(|zone| Some((zone, self.owner(zone).filter(free)?)));
        // Collect all such zones first: a superzone that has become full would no longer count
        // as free.
        let narrowed: Vec<(ZoneId, SuperzoneId)> = owned.collect();
        for (zone, id) in narrowed {
            self.drop_zone(zone);
            if self.state(id) == SuperzoneState::Free {
                self.mark_full(id);
            }
        }
    }

    /// Pins `zone` against being reset. The caller must not await between looking up the address
    /// and taking the pin.
    pub fn pin(&self, zone: ZoneId) -> ReadPin {
        self.0.pins.borrow_mut().count[zone.0 as usize] += 1;
        ReadPin { pool: self.clone(), zone }
    }

    #[cfg(test)]
    fn is_pinned(&self, zone: ZoneId) -> bool {
        self.0.pins.borrow().count[zone.0 as usize] > 0
    }

    /// True if the defect that resets zones without conditions is built into the writer.
    fn resets_early(&self) -> bool {
        self.0.writer.has(furrow_policy::LogDefect::EarlyRelease)
    }

    /// Releases a superzone: waits until no read pins it and no write to it is in flight, resets
    /// its zones, removes the zones that cannot be reset, and makes the superzone free. A superzone
    /// that lost zones stays full: the next checkpoint records which zones it lost, and the next
    /// release makes it free. Dropping the future does not stop the release. A free superzone can
    /// be released too: that empties zones in which a crash left blocks.
    ///
    /// # Errors
    /// `Invalid` if `proof` does not show the superzone empty, `Busy` if the superzone is active,
    /// retired or being released; nothing was done in either case. `Io` if the drive does not
    /// answer: then the superzone keeps its state.
    pub async fn release(&self, id: SuperzoneId, proof: &DurableSnapshot) -> Result<()> {
        let zones = {
            let superzones = self.0.superzones.borrow();
            let superzone = &superzones[id.0 as usize];
            let refused =
                matches!(superzone.state, SuperzoneState::Active | SuperzoneState::Retired);
            if (refused && !self.resets_early()) || superzone.releasing {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "release of superzone {id} refused: it is {:?}{}",
                        superzone.state,
                        if superzone.releasing { " and being released" } else { "" }
                    ),
                ));
            }
            superzone.zones.clone()
        };
        self.verify(format_args!("superzone {id}"), Some(id), proof)?;
        self.0.superzones.borrow_mut()[id.0 as usize].releasing = true;
        let pool = self.clone();
        // The release runs in a separate task, so it runs to completion even if the caller drops
        // its future.
        let task = self.0.writer.rt().spawn(async move {
            let result = pool.reset_all(&zones).await;
            let superzone = &mut pool.0.superzones.borrow_mut()[id.0 as usize];
            superzone.releasing = false;
            let bad = result?;
            pool.0.narrow.set(pool.0.narrow.get() || !bad.is_empty());
            superzone.zones.retain(|zone| !bad.contains(zone));
            superzone.generation = superzone.generation.wrapping_add(1);
            let state = match (superzone.zones.is_empty(), bad.is_empty()) {
                (true, _) => SuperzoneState::Retired,
                (false, false) => SuperzoneState::Full,
                (false, true) => SuperzoneState::Free,
            };
            pool.turn(superzone, state);
            // A full superzone must be released again, with the proof of a snapshot that records
            // which zones it lacks.
            superzone.empty_since = None;
            Ok(())
        });
        task.await
    }

    /// Releases one zone that is in no superzone (a zone of the checkpoint ring, the delta log or a
    /// table), or a zone of a superzone for tables. Waits as [`ZonePool::release`] does.
    ///
    /// # Errors
    /// `Invalid` if `proof` belongs to another drive, or the zone belongs to a superzone that is
    /// not for tables; `Io` if the zone cannot be reset.
    pub async fn release_zone(&self, zone: ZoneId, proof: &DurableSnapshot) -> Result<()> {
        if self.try_release_zone(zone, proof).await? {
            return Ok(());
        }
        Err(self.cannot_reset(zone))
    }

    fn cannot_reset(&self, zone: ZoneId) -> Error {
        let name = self.0.writer.device().name();
        let message =
            format!("{name}: zone {zone} holds metadata and cannot be reset: replace the drive");
        Error::new(ErrorKind::Io, message)
    }

    /// Releases a zone like [`ZonePool::release_zone`], for an engine that can do without the zone:
    /// returns false if the zone cannot be reset.
    ///
    /// # Errors
    /// The errors of [`ZonePool::release_zone`], but `Io` only if the drive does not answer.
    pub async fn try_release_zone(&self, zone: ZoneId, proof: &DurableSnapshot) -> Result<bool> {
        self.verify(format_args!("zone {zone}"), None, proof)?;
        let owner = self.owner(zone);
        if let Some(owner) = owner.filter(|id| self.state(*id) != SuperzoneState::Tables) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("zone {zone} belongs to superzone {owner}: release that"),
            ));
        }
        let pool = self.clone();
        let task = self.0.writer.rt().spawn(async move { pool.reset_all(&[zone]).await });
        Ok(task.await?.is_empty())
    }

    /// Resets `zones`, which destroys their content, before an engine formats the drive. No zone
    /// may be open for writing.
    ///
    /// # Errors
    /// `Busy` if a zone is open in the writer; `Io` if a zone cannot be reset.
    pub async fn wipe(writer: &Writer, zones: impl Iterator<Item = ZoneId>) -> Result<()> {
        if writer.has_open_zones() {
            let message = "zones are open for writing: the drive is in use";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let pool = ZonePool::new(writer, &[], 1)?;
        for zone in zones {
            if !pool.reset_all(&[zone]).await?.is_empty() {
                return Err(pool.cannot_reset(zone));
            }
        }
        Ok(())
    }

    /// Resets `zones`, all at once. Returns the zones that cannot be reset.
    async fn reset_all(&self, zones: &[ZoneId]) -> Result<Vec<ZoneId>> {
        if !self.resets_early() {
            // Wait for the writes first: once they are answered, no other write to these zones can
            // begin, but a new read can pin a zone until the reset.
            for zone in zones {
                self.0.writer.drained(*zone).await;
            }
            self.unpinned(zones).await;
        }
        let mut left = zones.to_vec();
        let mut status = Status::Success;
        for _ in 0..RESET_TRIES {
            let flights: Vec<_> = left.iter().map(|zone| (*zone, self.send_reset(*zone))).collect();
            left.clear();
            for (zone, flight) in flights {
                let answer = flight.await.status;
                if answer.is_ok() {
                    self.0.writer.count_reset();
                    self.0.writer.forget_reset(zone);
                } else {
                    status = answer;
                    left.push(zone);
                }
            }
            if left.is_empty() {
                return Ok(left);
            }
        }
        // Either the drive refuses the reset for good, or it is gone. Zones count as bad only if
        // the drive still answers.
        let device = self.0.writer.device();
        for zone in &left {
            let gone = |_| Error::device(&device.name(), format!("reset of zone {zone}"), status);
            let reports = device.report(*zone, 1).await.map_err(gone)?;
            if reports.is_empty() {
                return Err(gone(status));
            }
        }
        left.iter().for_each(|zone| self.0.writer.forget_reset(*zone));
        Ok(left)
    }

    fn send_reset(&self, zone: ZoneId) -> furrow_rt::Completion<furrow_zone::Outcome> {
        let writer = &self.0.writer;
        let command = Command::reset(writer.geometry(), zone);
        writer.device().submit(writer.queue(zone), Request::bare(command))
    }

    /// Waits until no read pins any of `zones`. Afterwards a new read may pin them.
    pub async fn unpinned(&self, zones: &[ZoneId]) {
        std::future::poll_fn(|cx| {
            let mut pins = self.0.pins.borrow_mut();
            if zones.iter().all(|zone| pins.count[zone.0 as usize] == 0) {
                return Poll::Ready(());
            }
            if !pins.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                pins.waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

mod audit;
mod snapshot;
#[cfg(test)]
mod tests;

pub use snapshot::{DurableSnapshot, Snapshot};
