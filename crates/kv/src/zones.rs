//! The zones that hold content: which are open and for what, what counts in each.
//!
//! Invariants
//! - A zone is open for files of one lifetime, as long as there are zones and permits; otherwise
//!   files share what is open. Nobody waits for a zone that an open file holds.
//! - The last free zones are for cleaning.
//! - A zone is reset when nothing in it counts by a durable round, nobody writes to it, and no read
//!   pins it.

use crate::file::{FileId, Lifetime};
use furrow_log::address::blocks_per_zone;
use furrow_log::budget::{Acquire, Budget, Class, Permit};
use furrow_log::pool::{ReleaseProof, SuperzoneId, SuperzoneState, ZonePool};
use furrow_log::writer::Writer;
use furrow_rt::Notify;
use furrow_zone::{Result, ZoneId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Free zones that only cleaning takes.
pub(crate) const RESERVE: u32 = 2;

/// What a zone is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Files of a lifetime.
    Files(Lifetime),
    /// What cleaning moves.
    Moved,
}

impl Use {
    /// Whose permit a zone for it needs, and how many free zones are not for it.
    fn claim(self) -> (Class, u32) {
        match self {
            Use::Files(_) => (Class::User, RESERVE),
            Use::Moved => (Class::Cleaning, 0),
        }
    }
}

struct Open {
    zone: ZoneId,
    id: SuperzoneId,
    usage: Use,
}

pub(crate) struct Zones {
    pub(crate) pool: ZonePool,
    pub(crate) budget: Budget,
    pub(crate) writer: Writer,
    open: RefCell<Vec<Open>>,
    /// Blocks that count, by zone and file.
    residents: RefCell<BTreeMap<ZoneId, BTreeMap<FileId, u32>>>,
    /// Zones that are being reset.
    releasing: RefCell<BTreeSet<ZoneId>>,
    /// A zone was released, or room came otherwise.
    pub(crate) freed: Notify,
    /// Room is wanted.
    pub(crate) wanted: Notify,
}

impl Zones {
    pub(crate) fn new(pool: ZonePool, budget: Budget, writer: Writer) -> Zones {
        Zones {
            pool,
            budget,
            writer,
            open: RefCell::default(),
            residents: RefCell::default(),
            releasing: RefCell::default(),
            freed: Notify::new(),
            wanted: Notify::new(),
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        blocks_per_zone(self.writer.geometry())
    }

    /// Takes up a zone that was written in part before, at its writer's position.
    pub(crate) fn adopt(&self, zone: ZoneId, id: SuperzoneId) {
        self.open.borrow_mut().push(Open { zone, id, usage: Use::Files(Lifetime::NotSet) });
    }

    /// A zone with room for `usage`: one that is open for it, a free one, or one that is open for
    /// what lives about as long. `None` if there is none.
    pub(crate) fn choose(&self, usage: Use) -> Option<ZoneId> {
        self.find(usage, true).or_else(|| self.begin(usage)).or_else(|| self.find(usage, false))
    }

    /// An open zone with room: one that is open for just that, or one that can be shared.
    pub(crate) fn find(&self, usage: Use, exact: bool) -> Option<ZoneId> {
        self.close_full();
        let open = self.open.borrow();
        let fits = |open: &&Open| match exact {
            true => open.usage == usage,
            // Cleaning keeps a zone of its own for as long as it can.
            false => open.usage != Use::Moved || usage == Use::Moved,
        };
        let far = |open: &&Open| match (open.usage, usage) {
            (Use::Files(a), Use::Files(b)) => (a as i32 - b as i32).abs(),
            _ => 9,
        };
        open.iter().filter(fits).min_by_key(far).map(|open| open.zone)
    }

    /// A permit to wait for, if that is all that is missing: full zones give theirs back when the
    /// last write is answered. `None` if there is no free zone to be had.
    pub(crate) fn next_permit(&self, usage: Use) -> Option<Acquire> {
        let (class, kept) = usage.claim();
        (self.pool.free_count() > kept).then(|| self.budget.acquire(class, 1))
    }

    fn begin(&self, usage: Use) -> Option<ZoneId> {
        let (class, kept) = usage.claim();
        if self.pool.free_count() <= kept {
            return None;
        }
        let permit = self.budget.try_acquire(class, 1)?;
        self.open(usage, permit)
    }

    /// Opens a free zone. `None` if there is none any more.
    pub(crate) fn open(&self, usage: Use, permit: Permit) -> Option<ZoneId> {
        if self.pool.free_count() <= usage.claim().1 {
            return None;
        }
        let id = self.pool.allocate(&[])?;
        let zone = self.pool.zone(id, 0);
        self.writer.open_empty(zone);
        self.writer.attach(zone, permit);
        self.open.borrow_mut().push(Open { zone, id, usage });
        // Others may share it.
        self.freed.notify_all();
        Some(zone)
    }

    /// Zones that are written to their ends are open no more.
    fn close_full(&self) {
        let mut open = self.open.borrow_mut();
        let full = |open: &Open| self.writer.room(open.zone) == 0;
        for over in open.iter().filter(|open| full(open)) {
            self.pool.mark_full(over.id);
        }
        open.retain(|open| !full(open));
    }

    /// A write to the zone failed: nothing more is written to it.
    pub(crate) fn fail(&self, zone: ZoneId) {
        let mut open = self.open.borrow_mut();
        if let Some(at) = open.iter().position(|open| open.zone == zone) {
            self.pool.mark_full(open.remove(at).id);
        }
    }

    pub(crate) fn is_open(&self, zone: ZoneId) -> bool {
        self.close_full();
        self.open.borrow().iter().any(|open| open.zone == zone)
    }

    pub(crate) fn add(&self, zone: ZoneId, file: FileId, blocks: u32) {
        let mut residents = self.residents.borrow_mut();
        *residents.entry(zone).or_default().entry(file).or_default() += blocks;
    }

    /// Blocks of a file in a zone count no more, by a durable round.
    pub(crate) fn remove(&self, zone: ZoneId, file: FileId, blocks: u32) {
        let mut residents = self.residents.borrow_mut();
        let files = residents.get_mut(&zone).expect("invariant: the zone holds blocks that count");
        let count = files.get_mut(&file).expect("invariant: the file has blocks in the zone");
        *count = count.checked_sub(blocks).expect("invariant: so many blocks count");
        if *count == 0 {
            files.remove(&file);
        }
        if files.is_empty() {
            residents.remove(&zone);
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

    /// The full zone in which the fewest blocks count, if there is garbage in any.
    pub(crate) fn victim(&self) -> Option<ZoneId> {
        self.close_full();
        let valid = self.full_zones().into_iter().map(|zone| (self.valid(zone), zone));
        let some = valid.filter(|(valid, _)| (1..self.capacity()).contains(valid));
        some.min().map(|(_, zone)| zone)
    }

    /// Full zones in which nothing counts.
    pub(crate) fn emptied(&self) -> Vec<ZoneId> {
        self.close_full();
        let releasing = self.releasing.borrow();
        let empty = |zone: &ZoneId| self.valid(*zone) == 0 && !releasing.contains(zone);
        self.full_zones().into_iter().filter(empty).collect()
    }

    /// Resets the zone if nothing in it counts by the durable `round`, and nobody writes to it.
    ///
    /// # Errors
    /// `Io` if the drive does not answer.
    pub(crate) async fn release(&self, zone: ZoneId, round: u64) -> Result<()> {
        let Some(id) = self.pool.owner(zone) else { return Ok(()) };
        if self.valid(zone) > 0 || self.is_open(zone) {
            return Ok(());
        }
        if self.pool.state(id) != SuperzoneState::Full || !self.releasing.borrow_mut().insert(zone)
        {
            return Ok(());
        }
        let released = self.pool.release(id, ReleaseProof::by(round)).await;
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
