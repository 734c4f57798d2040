//! The zone allocator: which zones are open and for what, and which blocks are valid in each.
//!
//! Invariants
//! - A zone is open for what the policy puts together, as long as there are zones and permits;
//!   otherwise files share what is open. Nobody waits for a zone that an open file holds.
//! - The last free zones are for cleaning; those before them are for what makes room by being
//!   written: compactions, flushes, and what a database is made of. Who has no claim to a zone that
//!   was opened out of these does not share it either, unless as many are free again.
//! - As much as the logs hold is kept for flushes, which write that to other files: for what a log
//!   took `DB::Open` finds room.
//! - Those who wait for room get it in the order in which they came, each claim in a line of its
//!   own.
//! - A zone is reset when nothing in it counts by a durable round, nobody writes to it, and no read
//!   pins it.

mod audit;
mod policy;

pub use policy::Policy;
pub(crate) use policy::Use;

use crate::dead_ranges::Age;
use crate::file::{FileId, Lifetime};
use crate::file_kind::{Claim, Family, Role};
use furrow_log::address::blocks_per_zone;
use furrow_log::audit::broken;
use furrow_log::budget::{Acquire, Budget, Class, Permit};
use furrow_log::pool::{DurableSnapshot, SuperzoneId, SuperzoneState, ZonePool};
use furrow_log::victim::{self, Candidate, Worth, choose};
use furrow_log::writer::Writer;
use furrow_rt::Notify;
use furrow_zone::{Error, Result, ZoneId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Free zones that only cleaning takes.
pub(crate) const RESERVE: u32 = 2;
/// A store with fewer zones for content keeps none for claims.
const ZONES_FOR_CLAIMS: u32 = 16;
/// One in so many zones is kept for compactions.
const COMPACTION_SHARE: u32 = 32;

/// A flush may write more than its log holds, by one part in so many.
const FLUSH_SURPLUS: u64 = 8;
/// No more than one in so many zones is kept for flushes.
const FLUSH_SHARE: u32 = 8;

/// Zones that are kept for flushes of logs with so many blocks.
pub(crate) fn kept_for_flushes(log_blocks: u64, zones: u32, zone_blocks: u32) -> u32 {
    if zones < ZONES_FOR_CLAIMS {
        return 0;
    }
    let blocks = log_blocks + log_blocks.div_ceil(FLUSH_SURPLUS);
    blocks.div_ceil(u64::from(zone_blocks)).min(u64::from(zones / FLUSH_SHARE)) as u32
}

/// How many of a store's zones for content are kept from files with this claim while there are no
/// logs: with claims, the one that cleaning writes to is one of them, open or not.
pub(crate) fn kept_from(claim: Claim, zones: u32) -> u32 {
    if zones < ZONES_FOR_CLAIMS {
        return RESERVE;
    }
    let (cleaning, catalog, compaction) = (RESERVE + 1, 1, (zones / COMPACTION_SHARE).max(1));
    match claim {
        Claim::Catalog => cleaning,
        Claim::Flush | Claim::Compaction => cleaning + catalog,
        Claim::Others => cleaning + catalog + compaction,
    }
}

/// Who wants a zone, and what for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) usage: Use,
    /// The file that is written, if it is not cleaning that writes.
    pub(crate) file: Option<FileId>,
    pub(crate) claim: Claim,
}

impl Want {
    /// What cleaning moves to a zone that is open for that.
    pub(crate) fn moved(usage: Use) -> Want {
        Want { usage, file: None, claim: Claim::Catalog }
    }

    fn class(self) -> Class {
        if self.usage.is_moved() { Class::Cleaning } else { Class::User }
    }
}

/// A place in the line of those who wait for room. Dropping it leaves the line.
pub(crate) struct SpaceTicket<'a> {
    zones: &'a ZoneAllocator,
    claim: Claim,
    number: u64,
}

impl Drop for SpaceTicket<'_> {
    fn drop(&mut self) {
        self.zones.space_queues.borrow_mut()[self.claim as usize].remove(&self.number);
        // The next is first now.
        self.zones.freed.notify_all();
    }
}

struct Open {
    zone: ZoneId,
    id: SuperzoneId,
    usage: Use,
    /// The file that is written to it, where the policy gives a zone to one at a time.
    holder: Option<FileId>,
    /// The least that could have it opened when it was.
    claim: Claim,
}

/// What can be had for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This zone has room for it.
    Zone(ZoneId),
    /// This zone is to be ended for an empty one.
    End(ZoneId),
    /// Nothing has room.
    Nothing,
}

/// The state of the zone allocator.
///
/// Invariants, held by its audit
/// - `residents` are the valid blocks that the store counts by what refers to them; a free zone has
///   none, and neither has a zone that is being reset.
/// - `logs` are the files that are logs and have a name, each with its valid blocks; `log_blocks`
///   is their sum.
/// - `open` has the zones that the pool has active, each once. Each of them that is not full holds
///   a permit, and its holder is a file that is there.
/// - No zone in `youngest` is free.
pub(crate) struct ZoneAllocator {
    pub(crate) pool: ZonePool,
    pub(crate) budget: Budget,
    pub(crate) writer: Writer,
    policy: Policy,
    /// In the order in which they were opened.
    open: RefCell<Vec<Open>>,
    /// The youngest blob file of each family that was written to a zone since its reset, whether
    /// it is there or not.
    youngest: RefCell<BTreeMap<ZoneId, BTreeMap<Family, u64>>>,
    /// Zones of which the youngest are to be told to the next round.
    untold: RefCell<BTreeSet<ZoneId>>,
    /// Blocks that count, by zone and file.
    residents: RefCell<BTreeMap<ZoneId, BTreeMap<FileId, u32>>>,
    /// Of files that are logs: blocks that count.
    logs: RefCell<BTreeMap<FileId, u64>>,
    /// All of these.
    log_blocks: Cell<u64>,
    /// Blocks that were written so far.
    clock: Cell<u64>,
    /// Zones that were opened since the store was.
    ages: RefCell<BTreeMap<ZoneId, Age>>,
    /// The writer has let its zones go: nothing is written or reset any more.
    pub(crate) ended: Cell<bool>,
    /// The fewest zones that were free at once.
    pub(crate) least_free: Cell<u32>,
    /// An account went below zero: a defect of this program. The store ends.
    broken: RefCell<Option<Error>>,
    /// Zones that are being reset.
    releasing: RefCell<BTreeSet<ZoneId>>,
    /// Who waits for room, by claim.
    space_queues: RefCell<[BTreeSet<u64>; Claim::COUNT]>,
    next_ticket: Cell<u64>,
    /// Zones with something that cannot be read: cleaning leaves them.
    uncleanable: RefCell<BTreeSet<ZoneId>>,
    /// A zone was released, or room came otherwise.
    pub(crate) freed: Notify,
    /// Room is wanted.
    pub(crate) wanted: Notify,
}

impl ZoneAllocator {
    pub(crate) fn new(
        pool: ZonePool,
        budget: Budget,
        writer: Writer,
        policy: Policy,
    ) -> ZoneAllocator {
        let least_free = pool.free_count();
        ZoneAllocator {
            pool,
            budget,
            writer,
            policy,
            open: RefCell::default(),
            youngest: RefCell::default(),
            untold: RefCell::default(),
            residents: RefCell::default(),
            logs: RefCell::default(),
            log_blocks: Cell::new(0),
            clock: Cell::new(0),
            ages: RefCell::default(),
            ended: Cell::new(false),
            least_free: Cell::new(least_free),
            broken: RefCell::default(),
            releasing: RefCell::default(),
            space_queues: RefCell::default(),
            next_ticket: Cell::new(0),
            uncleanable: RefCell::default(),
            freed: Notify::new(),
            wanted: Notify::new(),
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        blocks_per_zone(self.writer.geometry())
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Takes up a zone that was written in part before, at its writer's position.
    pub(crate) fn adopt(&self, zone: ZoneId, id: SuperzoneId, usage: Use) {
        self.open.borrow_mut().push(Open { zone, id, usage, holder: None, claim: Claim::Others });
    }

    /// Whether as many zones are free as are kept from `want`, and more.
    fn has_free(&self, want: Want) -> bool {
        let (free, total) = (self.pool.free_count(), self.pool.total());
        let is_cleanings = |open: &Open| open.usage.is_moved() && self.has_space(open);
        if want.usage.is_moved() {
            // One is left while there is room for what is moved elsewhere: cleaning a zone may take
            // all of that, and one zone.
            let other = |open: &Open| is_cleanings(open) && open.usage != want.usage;
            return free > u32::from(self.open.borrow().iter().any(other));
        }
        let counts = total >= ZONES_FOR_CLAIMS;
        let open = counts && self.open.borrow().iter().any(is_cleanings);
        free + u32::from(open) > self.kept(want.claim)
    }

    /// How many zones are kept from files with this claim.
    pub(crate) fn kept(&self, claim: Claim) -> u32 {
        let flushes = if claim < Claim::Flush { self.kept_for_flushes() } else { 0 };
        kept_from(claim, self.pool.total()) + flushes
    }

    /// How many zones are kept for flushes of the logs there are.
    pub(crate) fn kept_for_flushes(&self) -> u32 {
        kept_for_flushes(self.log_blocks.get(), self.pool.total(), self.capacity())
    }

    /// Says whether a file is a log, of which a flush may have to be written.
    pub(crate) fn set_log(&self, file: FileId, is_log: bool) {
        let mut logs = self.logs.borrow_mut();
        if logs.contains_key(&file) == is_log {
            return;
        }
        if let Some(blocks) = logs.remove(&file) {
            let rest = self.log_blocks.get().checked_sub(blocks);
            self.log_blocks.set(self.account("valid blocks of logs", rest));
            return;
        }
        let residents = self.residents.borrow();
        let of_file = residents.values().filter_map(|files| files.get(&file));
        let blocks = of_file.map(|blocks| u64::from(*blocks)).sum();
        logs.insert(file, blocks);
        self.log_blocks.set(self.log_blocks.get() + blocks);
    }

    /// Whether `want` may have room in a zone that is open.
    fn may_have(&self, want: Want, open: &Open) -> bool {
        let cleaning = want.usage.is_moved();
        // Cleaning keeps zones of its own for as long as it can.
        cleaning || !open.usage.is_moved() && (open.claim <= want.claim || self.has_free(want))
    }

    /// A place in the line of those who wait for room, at its end.
    pub(crate) fn queue(&self, claim: Claim) -> SpaceTicket<'_> {
        let number = self.next_ticket.get();
        self.next_ticket.set(number + 1);
        self.space_queues.borrow_mut()[claim as usize].insert(number);
        SpaceTicket { zones: self, claim, number }
    }

    /// Whether somebody waits for room who came before, unless the file has a zone of its own.
    pub(crate) fn must_wait(&self, want: Want, place: Option<&SpaceTicket<'_>>) -> bool {
        if want.usage.is_moved() {
            return false;
        }
        let space_queues = self.space_queues.borrow();
        let first = space_queues[want.claim as usize].first();
        let before = first.is_some_and(|first| place.is_none_or(|place| *first < place.number));
        let held = |open: &Open| open.holder.is_some() && open.holder == want.file;
        before && !self.open.borrow().iter().any(|open| held(open) && self.has_space(open))
    }

    fn has_space(&self, open: &Open) -> bool {
        self.writer.space_left(open.zone) > 0
    }

    /// A zone with room for what is wanted.
    pub(crate) fn choose(&self, want: Want) -> Choice {
        let found = |zone: Option<ZoneId>| zone.map_or(Choice::Nothing, Choice::Zone);
        let Some(file) = want.file.filter(|_| self.policy.holds()) else {
            let exact = self.find(want, true).or_else(|| self.begin(want));
            return found(exact.or_else(|| self.find(want, false)));
        };
        self.close_full();
        if let Some(held) = self.open.borrow().iter().find(|open| open.holder == Some(file)) {
            return Choice::Zone(held.zone);
        }
        let chosen = match self.policy {
            Policy::LizaZenfs => match self.choose_as_zenfs(want) {
                Choice::Zone(zone) => Some(zone),
                choice @ Choice::End(_) => return choice,
                Choice::Nothing => None,
            },
            // The earliest: the next file goes back to it.
            _ => self.idle(want, |open| open.usage == want.usage).or_else(|| self.begin(want)),
        };
        let chosen = chosen.or_else(|| self.nearest_idle(want));
        if let Some(zone) = chosen {
            let mut open = self.open.borrow_mut();
            let held = open.iter_mut().find(|open| open.zone == zone);
            held.expect("invariant: what was chosen is open").holder = Some(file);
            return Choice::Zone(zone);
        }
        // Nobody waits for what an open file holds.
        found(self.find(want, false))
    }

    fn is_idle(&self, want: Want, open: &Open) -> bool {
        open.holder.is_none() && self.may_have(want, open)
    }

    /// The zone opened first of those nobody holds and `fits` takes.
    fn idle(&self, want: Want, fits: impl Fn(&Open) -> bool) -> Option<ZoneId> {
        let open = self.open.borrow();
        let idle = open.iter().find(|open| self.is_idle(want, open) && fits(open));
        idle.map(|open| open.zone)
    }

    fn nearest_idle(&self, want: Want) -> Option<ZoneId> {
        let open = self.open.borrow();
        let idle = open.iter().filter(|open| self.is_idle(want, open));
        idle.min_by_key(|open| open.usage.far(want.usage)).map(|open| open.zone)
    }

    /// By ZenFS's rule.
    fn choose_as_zenfs(&self, want: Want) -> Choice {
        let best = {
            let open = self.open.borrow();
            let idle = open.iter().filter(|open| self.is_idle(want, open));
            let with = idle.map(|open| (open.usage.zenfs_diff(want.usage), open.zone));
            with.min_by_key(|(diff, _)| *diff)
        };
        if let Some((_, zone)) = best.filter(|(diff, _)| *diff < 50) {
            return Choice::Zone(zone);
        }
        if let Some(zone) = self.begin(want) {
            return Choice::Zone(zone);
        }
        match best {
            Some((50, zone)) => Choice::Zone(zone),
            Some(_) if self.has_free(want) => {
                let open = self.open.borrow();
                let idle = open.iter().filter(|open| self.is_idle(want, open));
                let least = idle.min_by_key(|open| self.writer.space_left(open.zone));
                least.map_or(Choice::Nothing, |open| Choice::End(open.zone))
            }
            _ => Choice::Nothing,
        }
    }

    /// A file is written no more: others may have its zone.
    pub(crate) fn release_hold(&self, file: FileId) {
        let mut open = self.open.borrow_mut();
        open.iter_mut().filter(|open| open.holder == Some(file)).for_each(|o| o.holder = None);
    }

    /// Takes a zone that is not full out of use: what is left of it is not written.
    pub(crate) fn abandon(&self, zone: ZoneId) {
        let mut open = self.open.borrow_mut();
        if let Some(at) = open.iter().position(|open| open.zone == zone) {
            self.pool.mark_full(open.remove(at).id);
            self.untold.borrow_mut().insert(zone);
        }
    }

    /// An open zone with room: one that is open for just that, or one that can be shared.
    pub(crate) fn find(&self, want: Want, exact: bool) -> Option<ZoneId> {
        self.close_full();
        let open = self.open.borrow();
        let fits = |open: &&Open| self.may_have(want, open) && (!exact || open.usage == want.usage);
        open.iter().filter(fits).min_by_key(|open| open.usage.far(want.usage)).map(|open| open.zone)
    }

    /// A permit to wait for, if that is all that is missing: full zones give theirs back when the
    /// last write is answered. `None` if there is no free zone to be had.
    pub(crate) fn next_permit(&self, want: Want) -> Option<Acquire> {
        self.has_free(want).then(|| self.budget.acquire(want.class(), 1))
    }

    fn begin(&self, want: Want) -> Option<ZoneId> {
        if !self.has_free(want) {
            return None;
        }
        let permit = self.budget.try_acquire(want.class(), 1)?;
        self.open(want, permit)
    }

    /// Opens a free zone. `None` if there is none any more.
    pub(crate) fn open(&self, want: Want, permit: Permit) -> Option<ZoneId> {
        if !self.has_free(want) {
            return None;
        }
        let all = [Claim::Others, Claim::Compaction, Claim::Flush];
        let least = all.into_iter().find(|claim| self.has_free(Want { claim: *claim, ..want }));
        let claim = least.unwrap_or(Claim::Catalog).min(want.claim);
        let id = self.pool.allocate(&[])?;
        let zone = self.pool.zone(id, 0);
        self.least_free.set(self.least_free.get().min(self.pool.free_count()));
        self.writer.open_empty(zone);
        self.writer.attach(zone, permit);
        self.open.borrow_mut().push(Open { zone, id, usage: want.usage, holder: None, claim });
        let generation = if let Use::Moved(generation) = want.usage { generation } else { 0 };
        self.ages.borrow_mut().insert(zone, Age { generation, opened: self.clock.get() });
        // Others may share it.
        self.freed.notify_all();
        Some(zone)
    }

    /// Zones that are written to their ends are open no more.
    pub(crate) fn close_full(&self) {
        if self.ended.get() {
            return;
        }
        let mut open = self.open.borrow_mut();
        let full = |open: &Open| self.writer.space_left(open.zone) == 0;
        for over in open.iter().filter(|open| full(open)) {
            self.pool.mark_full(over.id);
            self.untold.borrow_mut().insert(over.zone);
        }
        open.retain(|open| !full(open));
    }

    /// A blob file was written to a zone.
    pub(crate) fn note_blob(&self, zone: ZoneId, role: &Role) {
        let Some(number) = role.number else { return };
        let mut youngest = self.youngest.borrow_mut();
        let of_zone = youngest.entry(zone).or_default();
        match of_zone.get_mut(&role.family) {
            Some(now) => *now = number.max(*now),
            None => drop(of_zone.insert(role.family.clone(), number)),
        }
    }

    /// What recovery found of a zone.
    pub(crate) fn restore_youngest(&self, zone: ZoneId, of_zone: BTreeMap<Family, u64>) {
        self.youngest.borrow_mut().insert(zone, of_zone);
    }

    /// The youngest blob files of a zone.
    pub(crate) fn youngest_in(&self, zone: ZoneId) -> BTreeMap<Family, u64> {
        self.youngest.borrow().get(&zone).cloned().unwrap_or_default()
    }

    /// Zones with a youngest blob file.
    pub(crate) fn with_blobs(&self) -> Vec<ZoneId> {
        self.youngest.borrow().keys().copied().collect()
    }

    /// Zones of which the next round is to tell the youngest blob files.
    pub(crate) fn take_untold(&self) -> BTreeSet<ZoneId> {
        std::mem::take(&mut *self.untold.borrow_mut())
    }

    pub(crate) fn is_open(&self, zone: ZoneId) -> bool {
        self.close_full();
        self.open.borrow().iter().any(|open| open.zone == zone)
    }

    /// How old a zone is; of one that was opened before the store was, the oldest.
    pub(crate) fn age(&self, zone: ZoneId) -> Age {
        self.ages.borrow().get(&zone).copied().unwrap_or_default()
    }

    /// Blocks that were written so far.
    pub(crate) fn clock(&self) -> u64 {
        self.clock.get()
    }

    pub(crate) fn add(&self, zone: ZoneId, file: FileId, blocks: u32) {
        self.clock.set(self.clock.get() + u64::from(blocks));
        let mut residents = self.residents.borrow_mut();
        *residents.entry(zone).or_default().entry(file).or_default() += blocks;
        if let Some(of_log) = self.logs.borrow_mut().get_mut(&file) {
            *of_log += u64::from(blocks);
            self.log_blocks.set(self.log_blocks.get() + u64::from(blocks));
        }
    }

    /// Blocks of a file in a zone are not valid any more, by a durable group commit.
    ///
    /// # Errors
    /// `Corrupt` if an account would go below zero: which, and what it is.
    pub(crate) fn remove(&self, zone: ZoneId, file: FileId, blocks: u32) -> Result<()> {
        let mut residents = self.residents.borrow_mut();
        let files = residents.entry(zone).or_default();
        let count = files.get(&file).copied().unwrap_or(0);
        let account = || format!("valid blocks of file {} in zone {zone}", file.0);
        match self.account(&account(), count.checked_sub(blocks)) {
            0 => drop(files.remove(&file)),
            left => drop(files.insert(file, left)),
        }
        if files.is_empty() {
            residents.remove(&zone);
        }
        if let Some(of_log) = self.logs.borrow_mut().get_mut(&file) {
            let blocks = u64::from(blocks);
            *of_log = self.account("valid blocks of a log", of_log.checked_sub(blocks));
            let rest = self.log_blocks.get().checked_sub(blocks);
            self.log_blocks.set(self.account("valid blocks of logs", rest));
        }
        self.broken().map_or(Ok(()), Err)
    }

    /// The new value of an account. `None`: it went below zero, which is a defect of this program.
    /// A debug build stops there; in a release the store ends with an error.
    pub(crate) fn account<T: Default>(&self, account: &str, value: Option<T>) -> T {
        value.unwrap_or_else(|| {
            debug_assert!(false, "{account} would go below zero");
            let error = broken(account, "it would go below zero".to_owned());
            self.broken.borrow_mut().get_or_insert(error);
            T::default()
        })
    }

    /// The error of an account that went below zero, if one did.
    pub(crate) fn broken(&self) -> Option<Error> {
        self.broken.borrow().clone()
    }

    /// Blocks of a zone that were written, as far as that is known: all of one that was full when
    /// the store was opened.
    pub(crate) fn written(&self, zone: ZoneId) -> u32 {
        let free = |id| self.pool.state(id) == SuperzoneState::Free;
        match self.writer.is_open(zone) {
            true => self.writer.position(zone),
            false if self.pool.owner(zone).is_none_or(free) => 0,
            false => self.capacity(),
        }
    }

    /// Blocks of a zone that count.
    pub(crate) fn valid(&self, zone: ZoneId) -> u32 {
        let residents = self.residents.borrow();
        residents.get(&zone).map_or(0, |files| files.values().sum())
    }

    /// Blocks that count, of all zones.
    pub(crate) fn valid_total(&self) -> u64 {
        let residents = self.residents.borrow();
        residents.values().flat_map(BTreeMap::values).map(|blocks| u64::from(*blocks)).sum()
    }

    /// The files with blocks in a zone.
    pub(crate) fn files_in(&self, zone: ZoneId) -> Vec<FileId> {
        let residents = self.residents.borrow();
        residents.get(&zone).map_or(Vec::new(), |files| files.keys().copied().collect())
    }

    /// Blocks that files with no claim cannot have though they hold nothing: of zones that are
    /// open for others, or for cleaning beyond one, and garbage of zones with `least` of it or
    /// less, which are not cleaned.
    pub(crate) fn out_of_reach(&self, least: u32) -> u64 {
        if self.ended.get() {
            return 0;
        }
        self.close_full();
        let want = Want { usage: Use::Files(Lifetime::NotSet), file: None, claim: Claim::Others };
        let open = self.open.borrow();
        let room = |open: &Open| u64::from(self.writer.space_left(open.zone));
        let cleanings = || open.iter().filter(|open| open.usage.is_moved()).map(room);
        // One of these is kept, whether it is open or not.
        let cleanings = cleanings().sum::<u64>() - cleanings().max().unwrap_or(0);
        let theirs = |open: &&Open| !open.usage.is_moved() && !self.may_have(want, open);
        let theirs = open.iter().filter(theirs).map(room).sum::<u64>();
        let written =
            |open: &Open| (open.zone, self.capacity() - self.writer.space_left(open.zone));
        let full = self.full_zones().into_iter().map(|zone| (zone, self.capacity()));
        let stuck = full.chain(open.iter().map(written)).map(|(zone, written)| {
            let garbage = self.account("garbage of a zone", written.checked_sub(self.valid(zone)));
            if garbage <= least { u64::from(garbage) } else { 0 }
        });
        theirs + cleanings + stuck.sum::<u64>()
    }

    /// The full zone in which the fewest blocks count, if there is garbage in any.
    pub(crate) fn victim(&self) -> Option<ZoneId> {
        self.close_full();
        let (uncleanable, capacity) = (self.uncleanable.borrow(), self.capacity());
        let full = self.full_zones().into_iter().filter(|zone| !uncleanable.contains(zone));
        let candidate = |zone: ZoneId| {
            let (id, valid) = (zone.0, self.valid(zone));
            Candidate { id, valid, capacity, ..Candidate::default() }
        };
        // One in which nothing counts is reset, not cleaned.
        let used = full.map(candidate).filter(|candidate| candidate.valid > 0);
        let candidates: Vec<Candidate> = used.collect();
        let worth = Worth { garbage_permille: 0, valid_max: capacity };
        let best = choose(&candidates, &[], victim::Policy::Greedy, worth)?;
        Some(ZoneId(candidates[best].id))
    }

    /// Whether something in a zone cannot be read.
    pub(crate) fn is_uncleanable(&self, zone: ZoneId) -> bool {
        self.uncleanable.borrow().contains(&zone)
    }

    /// Something in a zone cannot be read: it is not cleaned any more.
    pub(crate) fn set_uncleanable(&self, zone: ZoneId) {
        self.uncleanable.borrow_mut().insert(zone);
    }

    /// Full zones in which nothing counts.
    pub(crate) fn emptied(&self) -> Vec<ZoneId> {
        self.close_full();
        let releasing = self.releasing.borrow();
        let empty = |zone: &ZoneId| self.valid(*zone) == 0 && !releasing.contains(zone);
        self.full_zones().into_iter().filter(empty).collect()
    }

    /// Resets the zone if nothing in it counts by a durable round, and nobody writes to it.
    ///
    /// # Errors
    /// `Io` if the drive does not answer.
    pub(crate) async fn release(&self, zone: ZoneId, durable: &DurableSnapshot) -> Result<()> {
        let Some(id) = self.pool.owner(zone).filter(|_| !self.ended.get()) else { return Ok(()) };
        if self.valid(zone) > 0 || self.is_open(zone) {
            return Ok(());
        }
        if self.pool.state(id) != SuperzoneState::Full || !self.releasing.borrow_mut().insert(zone)
        {
            return Ok(());
        }
        // What is valid is taken off by durable rounds only: the newest shows it as well.
        durable.note_empty(id);
        // Before the reset: once the zone is free, somebody else may open it.
        if self.youngest.borrow_mut().remove(&zone).is_some() {
            self.untold.borrow_mut().insert(zone);
        }
        self.uncleanable.borrow_mut().remove(&zone);
        let released = self.pool.release(id, durable).await;
        self.releasing.borrow_mut().remove(&zone);
        self.freed.notify_all();
        released
    }

    /// Whether zones are being reset.
    pub(crate) fn is_releasing(&self) -> bool {
        !self.releasing.borrow().is_empty()
    }

    /// Zones that were written to and are full, or taken for it.
    pub(crate) fn full_zones(&self) -> Vec<ZoneId> {
        let all = (0..self.pool.total()).map(SuperzoneId);
        let full = all.filter(|id| self.pool.state(*id) == SuperzoneState::Full);
        full.map(|id| self.pool.zone(id, 0)).collect()
    }
}

#[cfg(test)]
mod tests;
