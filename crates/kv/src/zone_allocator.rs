//! The zone allocator: which zones are open and for what, and which blocks are valid in each.
//!
//! Invariants
//! - Each zone takes only files that the policy puts together, as long as there are zones
//!   and permits; otherwise files share open zones. No file waits for a zone that another
//!   open file holds.
//! - The last free zones are for cleaning. The free zones before them are for files that free space
//!   by being written: compactions, flushes, and the database's own state. A zone opened out of
//!   such a reserve is shared with a weaker claim only while that claim could open a zone too.
//! - The reserve for flushes is as large as all logs, because flushes write the logs' content to
//!   other files. So `DB::Open` finds the space to write the logs' content.
//! - Writers that wait for space are served in the order of their arrival, in one queue
//!   for each claim.
//! - A zone is reset when a durable snapshot shows it empty, no write to it is in flight, and no
//!   read pins it.

mod audit;
mod sharing;

pub use sharing::Policy;
pub(crate) use sharing::Use;

use crate::extent::{FileId, Lifetime};
use crate::file_kind::{Claim, Family, Role};
use crate::ring_load::zone_bytes;
use furrow_log::address::blocks_per_zone;
use furrow_log::audit::{Broken, Count};
use furrow_log::budget::{Acquire, Budget, Class, Permit};
use furrow_log::pool::{DurableSnapshot, SuperzoneId, SuperzoneState, ZonePool};
use furrow_log::victim::{self, Candidate, Worth, choose};
use furrow_log::writer::Writer;
use furrow_rt::Notify;
use furrow_zone::{Error, Result, ZoneId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// Number of free zones that only cleaning may use.
pub(crate) const RESERVE: u32 = 2;
/// A store with fewer zones for content has no reserves for claims.
const ZONES_FOR_CLAIMS: u32 = 16;
/// Divisor: 1/32 of the zones is reserved for compactions.
const COMPACTION_SHARE: u32 = 32;

/// Divisor: a flush may write 1/8 more than its log holds.
const FLUSH_SURPLUS: u64 = 8;
/// Divisor: at most 1/8 of the zones is reserved for flushes.
const FLUSH_SHARE: u32 = 8;

/// Number of zones reserved for flushes when the logs hold `log_blocks` blocks.
pub(crate) fn kept_for_flushes(log_blocks: u64, zones: u32, zone_blocks: u32) -> u32 {
    if zones < ZONES_FOR_CLAIMS {
        return 0;
    }
    let blocks = log_blocks + log_blocks.div_ceil(FLUSH_SURPLUS);
    blocks.div_ceil(u64::from(zone_blocks)).min(u64::from(zones / FLUSH_SHARE)) as u32
}

/// Age of a zone, for choosing a victim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Age {
    /// Maximum number of moves that a block of the zone has had.
    pub(crate) generation: u8,
    /// Number of blocks that the store had written when the zone was opened.
    pub(crate) opened: u64,
}

/// The space that cleaning a zone needs, and the space that there is, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceToClean {
    /// Number of blocks that cleaning the zone moves.
    pub(crate) to_move: u64,
    /// Number of blocks that cleaning can write before it gives a zone back.
    pub(crate) space: u64,
}

/// A zone of `zone_blocks` blocks is not cleaned if it has at most this many blocks of garbage.
pub(crate) fn garbage_left(zone_blocks: u32) -> u32 {
    2.max(zone_blocks / 64)
}

/// Number of zones for content that files with this claim may not take while there are no logs. In
/// a store with reserves for claims, this number includes the zone that cleaning writes to, even
/// while that zone is open.
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

/// A request for a zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) usage: Use,
    /// The file to be written; `None` for cleaning.
    pub(crate) file: Option<FileId>,
    pub(crate) claim: Claim,
    /// Whether the zone is for content of the file, which may take at most `Store::space_for`.
    pub(crate) content: bool,
}

impl Want {
    /// The request by which cleaning asks for a zone of this use.
    pub(crate) fn moved(usage: Use) -> Want {
        Want { usage, file: None, claim: Claim::Catalog, content: false }
    }

    fn class(self) -> Class {
        if self.usage.is_moved() { Class::Cleaning } else { Class::User }
    }
}

/// A place in the queue for space. Dropping it gives up the place.
pub(crate) struct SpaceTicket<'a> {
    zones: &'a ZoneAllocator,
    claim: Claim,
    number: u64,
}

impl Drop for SpaceTicket<'_> {
    fn drop(&mut self) {
        self.zones.space_queues.borrow_mut()[self.claim as usize].remove(&self.number);
        // Wake the waiting requests: another request is first now.
        self.zones.freed.notify_all();
    }
}

struct Open {
    zone: ZoneId,
    id: SuperzoneId,
    usage: Use,
    /// The file that holds the zone, where the policy gives a zone to one writer at a time.
    holder: Option<FileId>,
    /// The weakest claim that could have opened the zone when it was opened.
    claim: Claim,
}

/// The allocator's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This zone has space for the request.
    Zone(ZoneId),
    /// Finish this zone and open an empty one.
    End(ZoneId),
    /// No zone has space.
    Nothing,
}

/// The state of the zone allocator.
///
/// Invariants, checked by its audit
/// - `residents` are the valid blocks of each zone and file, equal to the store's own count of its
///   references. Free zones and zones that are being reset have none.
/// - `logs` are the files that are logs and have a name, each with its valid blocks;
///   `log_blocks` is their sum.
/// - `open` has the zones that are active in the pool, each once. Zones in it that are not full
///   hold a permit, and their holder is a file that exists.
/// - No zone in `youngest` is free.
pub(crate) struct ZoneAllocator {
    pub(crate) pool: ZonePool,
    pub(crate) budget: Budget,
    pub(crate) writer: Writer,
    policy: Policy,
    /// The open zones, in the order in which they were opened.
    open: RefCell<Vec<Open>>,
    /// The youngest blob file of each family that was written to a zone since its reset, even if
    /// the file is gone.
    youngest: RefCell<BTreeMap<ZoneId, BTreeMap<Family, u64>>>,
    /// Bytes of the entries that record `youngest`.
    youngest_bytes: Cell<u64>,
    /// Zones whose youngest blob files the next group commit records.
    untold: RefCell<BTreeSet<ZoneId>>,
    /// Full zones that the next group commit checks: its snapshot records those without valid
    /// blocks as empty.
    unshown: RefCell<BTreeSet<ZoneId>>,
    /// Number of valid blocks, by zone and file.
    residents: RefCell<BTreeMap<ZoneId, BTreeMap<FileId, u32>>>,
    /// Number of valid blocks in all zones: the sum of `residents`.
    valid: Cell<u64>,
    /// Number of valid blocks of each log.
    logs: RefCell<BTreeMap<FileId, u64>>,
    /// Number of valid blocks of all logs: the sum of `logs`.
    log_blocks: Cell<u64>,
    /// Number of blocks written so far.
    clock: Cell<u64>,
    /// The ages of zones opened since the store was opened.
    ages: RefCell<BTreeMap<ZoneId, Age>>,
    /// Whether the writer has released its zones: nothing is written or reset from then on.
    ended: Cell<bool>,
    /// The lowest number of free zones since the store was opened.
    least_free: Cell<u32>,
    /// The first account that would have gone below zero, if any: then the store fails.
    broken: Broken,
    /// Zones that are being reset.
    releasing: RefCell<BTreeSet<ZoneId>>,
    /// Requests that wait for space, by claim.
    space_queues: RefCell<[BTreeSet<u64>; Claim::COUNT]>,
    next_ticket: Cell<u64>,
    /// Zones that cleaning skips until their reset, because a block in the zone cannot be read.
    uncleanable: RefCell<BTreeSet<ZoneId>>,
    /// Zones that cleaning did not empty because space ran out, each with the free space and the
    /// blocks to move at that time.
    unfinished: RefCell<BTreeMap<ZoneId, SpaceToClean>>,
    /// Notified when a zone is released, or space becomes free in another way.
    pub(crate) freed: Notify,
    /// Notified when a writer wants space.
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
            youngest_bytes: Cell::new(0),
            untold: RefCell::default(),
            unshown: RefCell::default(),
            residents: RefCell::default(),
            valid: Cell::new(0),
            logs: RefCell::default(),
            log_blocks: Cell::new(0),
            clock: Cell::new(0),
            ages: RefCell::default(),
            ended: Cell::new(false),
            least_free: Cell::new(least_free),
            broken: Broken::default(),
            releasing: RefCell::default(),
            space_queues: RefCell::default(),
            next_ticket: Cell::new(0),
            uncleanable: RefCell::default(),
            unfinished: RefCell::default(),
            freed: Notify::new(),
            wanted: Notify::new(),
        }
    }

    /// Notes that the writer has released its zones: nothing is written or reset from now on.
    pub(crate) fn end(&self) {
        self.ended.set(true);
    }

    /// Whether the writer has released its zones.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Bytes of the entries that record the youngest blob files of zones.
    pub(crate) fn youngest_bytes(&self) -> u64 {
        self.youngest_bytes.get()
    }

    /// The lowest number of free zones since the store was opened.
    pub(crate) fn least_free(&self) -> u32 {
        self.least_free.get()
    }

    pub(crate) fn capacity(&self) -> u32 {
        blocks_per_zone(self.writer.geometry())
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Adds a partly written zone to the open zones; the writer knows its position.
    pub(crate) fn adopt(&self, zone: ZoneId, id: SuperzoneId, usage: Use) {
        self.open.borrow_mut().push(Open { zone, id, usage, holder: None, claim: Claim::Others });
    }

    /// Whether there is a free zone that `want` may take.
    fn has_free(&self, want: Want) -> bool {
        let (free, total) = (self.pool.free_count(), self.pool.total());
        let is_cleanings = |open: &Open| open.usage.is_moved() && self.has_space(open);
        if want.usage.is_moved() {
            // One free zone stays reserved while an open zone of another use has space for moved
            // blocks: cleaning a zone may take all that space and one more zone.
            let other = |open: &Open| is_cleanings(open) && open.usage != want.usage;
            return free > u32::from(self.open.borrow().iter().any(other));
        }
        let counts = total >= ZONES_FOR_CLAIMS;
        let open = counts && self.open.borrow().iter().any(is_cleanings);
        free + u32::from(open) > self.kept(want.claim)
    }

    /// Number of reserved zones that files with this claim may not take.
    pub(crate) fn kept(&self, claim: Claim) -> u32 {
        let flushes = if claim < Claim::Flush { self.kept_for_flushes() } else { 0 };
        kept_from(claim, self.pool.total()) + flushes
    }

    /// Number of zones that are reserved for flushes of the present logs.
    pub(crate) fn kept_for_flushes(&self) -> u32 {
        kept_for_flushes(self.log_blocks.get(), self.pool.total(), self.capacity())
    }

    /// Records whether a file is a log, whose content a flush may have to write.
    pub(crate) fn set_log(&self, file: FileId, is_log: bool) {
        let mut logs = self.logs.borrow_mut();
        if logs.contains_key(&file) == is_log {
            return;
        }
        if let Some(blocks) = logs.remove(&file) {
            self.log_blocks.set(self.less("valid blocks of logs", self.log_blocks.get(), blocks));
            return;
        }
        let residents = self.residents.borrow();
        let of_file = residents.values().filter_map(|files| files.get(&file));
        let blocks = of_file.map(|blocks| u64::from(*blocks)).sum();
        logs.insert(file, blocks);
        self.log_blocks.set(self.log_blocks.get() + blocks);
    }

    /// Whether `want` may use space in an open zone.
    fn may_have(&self, want: Want, open: &Open) -> bool {
        let cleaning = want.usage.is_moved();
        // Cleaning may share any open zone, but other writers never share a zone of moved blocks.
        cleaning || !open.usage.is_moved() && (open.claim <= want.claim || self.has_free(want))
    }

    /// Takes a place at the end of the queue for space.
    pub(crate) fn queue(&self, claim: Claim) -> SpaceTicket<'_> {
        let number = self.next_ticket.get();
        self.next_ticket.set(number + 1);
        self.space_queues.borrow_mut()[claim as usize].insert(number);
        SpaceTicket { zones: self, claim, number }
    }

    /// Whether the request must wait because an earlier one waits for space. A file that holds a
    /// zone with space need not wait.
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

    /// Chooses a zone with space for the request.
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
            // Take the zone opened first among those that no file holds.
            _ => self.idle(want, |open| open.usage == want.usage).or_else(|| self.begin(want)),
        };
        let chosen = chosen.or_else(|| self.nearest_idle(want));
        if let Some(zone) = chosen {
            let mut open = self.open.borrow_mut();
            let held = open.iter_mut().find(|open| open.zone == zone);
            held.expect("invariant: what was chosen is open").holder = Some(file);
            return Choice::Zone(zone);
        }
        // No file waits for a zone that an open file holds.
        found(self.find(want, false))
    }

    fn is_idle(&self, want: Want, open: &Open) -> bool {
        open.holder.is_none() && self.may_have(want, open)
    }

    /// Returns the zone opened first among those that no file holds and that `fits` accepts.
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

    /// Chooses by ZenFS's rule.
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

    /// Ends a file's hold on a zone: the file is not written any more; others may use the zone.
    pub(crate) fn release_hold(&self, file: FileId) {
        let mut open = self.open.borrow_mut();
        open.iter_mut().filter(|open| open.holder == Some(file)).for_each(|o| o.holder = None);
    }

    /// Takes a partly written zone out of use; the rest of the zone stays unwritten.
    pub(crate) fn abandon(&self, zone: ZoneId) {
        let mut open = self.open.borrow_mut();
        if let Some(at) = open.iter().position(|open| open.zone == zone) {
            self.pool.mark_full(open.remove(at).id);
            self.untold.borrow_mut().insert(zone);
            self.look_at([zone]);
        }
    }

    /// Finds an open zone with space: with `exact` one of exactly this use, otherwise one that can
    /// be shared.
    pub(crate) fn find(&self, want: Want, exact: bool) -> Option<ZoneId> {
        self.close_full();
        let open = self.open.borrow();
        let fits = |open: &&Open| self.may_have(want, open) && (!exact || open.usage == want.usage);
        open.iter().filter(fits).min_by_key(|open| open.usage.far(want.usage)).map(|open| open.zone)
    }

    /// Returns a permit to wait for; `None` if there is no free zone that `want` may take. Full
    /// zones return their permits when their last write is answered.
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

    /// Opens a free zone; `None` if there is none.
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
        // Wake other waiting writers: they may share the zone.
        self.freed.notify_all();
        Some(zone)
    }

    /// Closes zones that are written to their ends.
    pub(crate) fn close_full(&self) {
        if self.ended.get() {
            return;
        }
        let mut open = self.open.borrow_mut();
        let full = |open: &Open| self.writer.space_left(open.zone) == 0;
        for over in open.iter().filter(|open| full(open)) {
            self.pool.mark_full(over.id);
            self.untold.borrow_mut().insert(over.zone);
            self.look_at([over.zone]);
        }
        open.retain(|open| !full(open));
    }

    /// Records that a blob file was written to a zone.
    pub(crate) fn note_blob(&self, zone: ZoneId, role: &Role) {
        let Some(number) = role.number else { return };
        let mut youngest = self.youngest.borrow_mut();
        let of_zone = youngest.entry(zone).or_default();
        if let Some(now) = of_zone.get_mut(&role.family) {
            *now = number.max(*now);
            return;
        }
        let before = if of_zone.is_empty() { 0 } else { zone_bytes(of_zone) };
        of_zone.insert(role.family.clone(), number);
        self.youngest_bytes.set(self.youngest_bytes.get() + zone_bytes(of_zone) - before);
    }

    /// Restores the youngest blob files that recovery found in a zone.
    pub(crate) fn restore_youngest(&self, zone: ZoneId, of_zone: BTreeMap<Family, u64>) {
        self.youngest_bytes.set(self.youngest_bytes.get() + zone_bytes(&of_zone));
        self.youngest.borrow_mut().insert(zone, of_zone);
    }

    /// Returns the youngest blob file of each family in a zone.
    pub(crate) fn youngest_in(&self, zone: ZoneId) -> BTreeMap<Family, u64> {
        self.youngest.borrow().get(&zone).cloned().unwrap_or_default()
    }

    /// Returns the zones to which blob files were written since their reset.
    pub(crate) fn with_blobs(&self) -> Vec<ZoneId> {
        self.youngest.borrow().keys().copied().collect()
    }

    /// Makes the next group commit check whether these full zones are empty.
    pub(crate) fn look_at(&self, zones: impl IntoIterator<Item = ZoneId>) {
        self.unshown.borrow_mut().extend(zones);
    }

    /// Takes the full zones that no durable snapshot shows empty yet.
    pub(crate) fn take_unshown(&self) -> BTreeSet<ZoneId> {
        std::mem::take(&mut *self.unshown.borrow_mut())
    }

    /// Takes the zones whose youngest blob files the next group commit records.
    pub(crate) fn take_untold(&self) -> BTreeSet<ZoneId> {
        std::mem::take(&mut *self.untold.borrow_mut())
    }

    pub(crate) fn is_open(&self, zone: ZoneId) -> bool {
        self.close_full();
        self.open.borrow().iter().any(|open| open.zone == zone)
    }

    /// Returns the age of a zone. A zone begun before the store was opened counts as oldest.
    pub(crate) fn age(&self, zone: ZoneId) -> Age {
        self.ages.borrow().get(&zone).copied().unwrap_or_default()
    }

    /// Number of blocks written so far.
    pub(crate) fn clock(&self) -> u64 {
        self.clock.get()
    }

    pub(crate) fn add(&self, zone: ZoneId, file: FileId, blocks: u32) {
        self.clock.set(self.clock.get() + u64::from(blocks));
        let mut residents = self.residents.borrow_mut();
        *residents.entry(zone).or_default().entry(file).or_default() += blocks;
        self.valid.set(self.valid.get() + u64::from(blocks));
        if let Some(of_log) = self.logs.borrow_mut().get_mut(&file) {
            *of_log += u64::from(blocks);
            self.log_blocks.set(self.log_blocks.get() + u64::from(blocks));
        }
    }

    /// Subtracts blocks of a file in a zone that a durable group commit retired.
    ///
    /// # Errors
    /// `Internal` if an account would go below zero; the error names the account.
    pub(crate) fn remove(&self, zone: ZoneId, file: FileId, blocks: u32) -> Result<()> {
        let mut residents = self.residents.borrow_mut();
        let files = residents.entry(zone).or_default();
        let count = files.get(&file).copied().unwrap_or(0);
        let account = format_args!("valid blocks of file {} in zone {zone}", file.0);
        match self.less(account, count, blocks) {
            0 => drop(files.remove(&file)),
            left => drop(files.insert(file, left)),
        }
        if files.is_empty() {
            residents.remove(&zone);
        }
        self.valid.set(self.less("valid blocks", self.valid.get(), u64::from(blocks)));
        if let Some(of_log) = self.logs.borrow_mut().get_mut(&file) {
            let blocks = u64::from(blocks);
            *of_log = self.less("valid blocks of a log", *of_log, blocks);
            self.log_blocks.set(self.less("valid blocks of logs", self.log_blocks.get(), blocks));
        }
        self.broken().map_or(Ok(()), Err)
    }

    /// Subtracts from an account, as [`Broken::less`] describes.
    pub(crate) fn less<T: Count>(&self, account: impl Display, from: T, by: T) -> T {
        self.broken.less(account, from, by)
    }

    /// The error of an account that went below zero, if any.
    pub(crate) fn broken(&self) -> Option<Error> {
        self.broken.first().cloned()
    }

    /// Counts the written blocks of a zone, or all its blocks if the zone was full when the store
    /// was opened.
    pub(crate) fn written(&self, zone: ZoneId) -> u32 {
        let free = |id| self.pool.state(id) == SuperzoneState::Free;
        match self.writer.is_open(zone) {
            true => self.writer.position(zone),
            false if self.pool.owner(zone).is_none_or(free) => 0,
            false => self.capacity(),
        }
    }

    /// Counts the valid blocks of a zone.
    pub(crate) fn valid(&self, zone: ZoneId) -> u32 {
        let residents = self.residents.borrow();
        residents.get(&zone).map_or(0, |files| files.values().sum())
    }

    /// Counts the valid blocks of all zones.
    pub(crate) fn valid_total(&self) -> u64 {
        self.valid.get()
    }

    /// Whether the store has enough zones for reserves by claim.
    pub(crate) fn has_claims(&self) -> bool {
        self.pool.total() >= ZONES_FOR_CLAIMS
    }

    /// Number of blocks that cleaning can write before it gives a zone back.
    pub(crate) fn space_for_cleaning(&self) -> u64 {
        let open = self.open.borrow();
        let theirs = open.iter().filter(|open| open.usage.is_moved() && self.has_space(open));
        let begun: u64 = theirs.map(|open| u64::from(self.writer.space_left(open.zone))).sum();
        begun + u64::from(self.pool.free_count()) * u64::from(self.capacity())
    }

    /// Maximum number of valid blocks that the store may hold when files with this claim are
    /// written: the capacity of all zones that work and are not reserved from the claim.
    pub(crate) fn valid_max(&self, claim: Claim) -> u64 {
        let zones = self.pool.total() - self.pool.count(SuperzoneState::Retired);
        let flushes = if claim < Claim::Flush { self.kept_for_flushes() } else { 0 };
        let kept = kept_from(claim, zones) + flushes;
        u64::from(zones.saturating_sub(kept)) * u64::from(self.capacity())
    }

    /// Returns the files with blocks in a zone.
    pub(crate) fn files_in(&self, zone: ZoneId) -> Vec<FileId> {
        let residents = self.residents.borrow();
        residents.get(&zone).map_or(Vec::new(), |files| files.keys().copied().collect())
    }

    /// Counts the free blocks that files without a claim cannot use: the space in zones open for
    /// other claims, the space in cleaning's zones beyond the first, and the garbage of zones with
    /// at most `least` blocks of it, which are not cleaned.
    pub(crate) fn out_of_reach(&self, least: u32) -> u64 {
        if self.ended.get() {
            return 0;
        }
        self.close_full();
        let usage = Use::Files(Lifetime::NotSet);
        let want = Want { usage, file: None, claim: Claim::Others, content: true };
        let open = self.open.borrow();
        let room = |open: &Open| u64::from(self.writer.space_left(open.zone));
        let cleanings = || open.iter().filter(|open| open.usage.is_moved()).map(room);
        // One zone for cleaning is reserved anyway, whether it is open or not, so its space
        // is not counted.
        let cleanings = cleanings().sum::<u64>() - cleanings().max().unwrap_or(0);
        let theirs = |open: &&Open| !open.usage.is_moved() && !self.may_have(want, open);
        let theirs = open.iter().filter(theirs).map(room).sum::<u64>();
        let written =
            |open: &Open| (open.zone, self.capacity() - self.writer.space_left(open.zone));
        let full = self.full_zones().into_iter().map(|zone| (zone, self.capacity()));
        let stuck = full.chain(open.iter().map(written)).map(|(zone, written)| {
            let garbage = self.less("garbage of a zone", written, self.valid(zone));
            if garbage <= least { u64::from(garbage) } else { 0 }
        });
        theirs + cleanings + stuck.sum::<u64>()
    }

    /// Returns the full zone with the fewest valid blocks, if any zone has garbage.
    pub(crate) fn victim(&self, except: &BTreeSet<ZoneId>) -> Option<ZoneId> {
        self.close_full();
        let (uncleanable, capacity) = (self.uncleanable.borrow(), self.capacity());
        let full = self.full_zones().into_iter();
        let full = full.filter(|zone| !uncleanable.contains(zone) && !except.contains(zone));
        let candidate = |zone: ZoneId| {
            let (id, valid) = (zone.0, self.valid(zone));
            Candidate { id, valid, capacity, ..Candidate::default() }
        };
        // A zone without valid blocks is reset, not cleaned.
        let used = full.map(candidate).filter(|candidate| candidate.valid > 0);
        let candidates: Vec<Candidate> = used.collect();
        let worth = Worth { garbage_permille: 0, valid_max: capacity };
        let best = choose(&candidates, &[], victim::Policy::Greedy, worth)?;
        Some(ZoneId(candidates[best].id))
    }

    /// Whether cleaning skips the zone until its reset.
    pub(crate) fn is_uncleanable(&self, zone: ZoneId) -> bool {
        self.uncleanable.borrow().contains(&zone)
    }

    /// Excludes a zone from cleaning until its reset: a block in it cannot be read.
    pub(crate) fn set_uncleanable(&self, zone: ZoneId) {
        self.uncleanable.borrow_mut().insert(zone);
    }

    /// Notes that space ran out while the zone was cleaned; `space` is what cleaning found at
    /// the beginning.
    pub(crate) fn set_unfinished(&self, zone: ZoneId, space: SpaceToClean) {
        self.unfinished.borrow_mut().insert(zone, space);
    }

    /// Whether a zone may be cleaned with the space that there is `now`: its blocks fit and, if
    /// space ran out the last time, there is more space or less to move. So each try has a better
    /// chance than the last one, and cleaning does not copy the same blocks again and again.
    pub(crate) fn may_be_cleaned(&self, zone: ZoneId, now: SpaceToClean) -> bool {
        let unfinished = self.unfinished.borrow();
        let better = |last: &SpaceToClean| now.space > last.space || now.to_move < last.to_move;
        now.to_move <= now.space && unfinished.get(&zone).is_none_or(better)
    }

    /// Returns the full zones without valid blocks.
    pub(crate) fn emptied(&self) -> Vec<ZoneId> {
        self.close_full();
        let releasing = self.releasing.borrow();
        let empty = |zone: &ZoneId| self.valid(*zone) == 0 && !releasing.contains(zone);
        self.full_zones().into_iter().filter(empty).collect()
    }

    /// Whether the newest durable snapshot, or an earlier one, shows the zone empty.
    pub(crate) fn is_shown_empty(&self, zone: ZoneId) -> bool {
        let (owner, durable) = (self.pool.owner(zone), self.pool.durable());
        owner.zip(durable).is_some_and(|(id, durable)| durable.shows_empty(id))
    }

    /// Resets the zone if a durable snapshot shows it empty, and no write to it is in flight.
    ///
    /// # Errors
    /// `Io` if the drive does not answer.
    pub(crate) async fn release(&self, zone: ZoneId, durable: &DurableSnapshot) -> Result<()> {
        let Some(id) = self.pool.owner(zone).filter(|_| !self.ended.get()) else { return Ok(()) };
        if self.valid(zone) > 0 || self.is_open(zone) {
            return Ok(());
        }
        if self.pool.state(id) != SuperzoneState::Full {
            return Ok(());
        }
        if !durable.shows_empty(id) {
            // The zone filled only after the snapshot of the commit that emptied it: the next
            // commit notes it as empty.
            self.look_at([zone]);
            return Ok(());
        }
        if !self.releasing.borrow_mut().insert(zone) {
            return Ok(());
        }
        // Remove the entry before the reset: another task may open a free zone at once.
        if let Some(of_zone) = self.youngest.borrow_mut().remove(&zone) {
            let (all, bytes) = (self.youngest_bytes.get(), zone_bytes(&of_zone));
            self.youngest_bytes.set(self.less("bytes of entries of zones", all, bytes));
            self.untold.borrow_mut().insert(zone);
        }
        self.uncleanable.borrow_mut().remove(&zone);
        self.unfinished.borrow_mut().remove(&zone);
        let released = self.pool.release(id, durable).await;
        self.releasing.borrow_mut().remove(&zone);
        self.freed.notify_all();
        released
    }

    /// Whether zones are being reset.
    pub(crate) fn is_releasing(&self) -> bool {
        !self.releasing.borrow().is_empty()
    }

    /// Zones that were written and are full, or are treated as full.
    pub(crate) fn full_zones(&self) -> Vec<ZoneId> {
        let all = (0..self.pool.total()).map(SuperzoneId);
        let full = all.filter(|id| self.pool.state(*id) == SuperzoneState::Full);
        full.map(|id| self.pool.zone(id, 0)).collect()
    }
}

#[cfg(test)]
mod tests;
