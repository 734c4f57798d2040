//! The store: its options, counters and state.
//!
//! Invariants
//! - State that no group commit has made durable yet is in memory; the state it replaces stays on
//!   the drive until then.

use crate::commits::Commits;
use crate::dead_ranges::ranges::Forgotten;
use crate::extent::FileId;
use crate::file::File;
use crate::file_kind::Family;
use crate::flights::Flights;
use crate::leaving::Leaving;
use crate::namespace::paths::{Namespace, clean};
use crate::ring_load::{FileLoad, RingLoad};
use crate::sums_cache::SumsCache;
use crate::zone_allocator::{Policy, ZoneAllocator};
use furrow_log::record::Uuid;
use furrow_log::ring::{RecordRing, RingZones};
use furrow_log::scrub::Scrub;
use furrow_policy::{StoreDefect, StoreVariant};
use furrow_rt::{Pool, Rt};
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Cleaning begins when less than this share of the zones is free, in percent.
    pub clean_below: u32,
    /// Maximum number of nanoseconds after which changed names and removals of files are durable.
    pub commit_interval: u64,
    /// Maximum number of pages of content in flight to the drive.
    pub pages_in_flight: usize,
    /// Which files share zones.
    pub policy: Policy,
    /// Whether to open a store whose record ring is damaged, without the records lost there.
    pub accept_loss: bool,
    /// Rules other than the product's, for tests of the tests.
    pub variant: StoreVariant,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            clean_below: 20,
            commit_interval: 1_000_000_000,
            pages_in_flight: 8192,
            policy: Policy::default(),
            accept_loss: false,
            variant: StoreVariant::default(),
        }
    }
}

/// Counts of the work that a store has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of bytes appended.
    pub appended: u64,
    /// Number of bytes read.
    pub read: u64,
    /// Number of syncs of files.
    pub syncs: u64,
    /// Number of group commits.
    pub rounds: u64,
    /// Number of times that the record ring turned.
    pub turns: u64,
    /// Number of zones that cleaning emptied.
    pub cleaned: u64,
    /// Number of blocks that cleaning copied.
    pub copied: u64,
    /// Number of blocks that cleaning copied, by kind of file, as in [`crate::FileKind::ALL`].
    pub copied_of: [u64; 5],
    /// Number of zones that were reset.
    pub resets: u64,
    /// Number of extents that were written elsewhere because their zone failed.
    pub relocated: u64,
    /// Number of times that a writer waited for cleaning to free space.
    pub waits: u64,
    /// Nanoseconds that writers waited for cleaning to free space.
    pub waited: u64,
    /// Number of requests that were refused because there was no space.
    pub refused: u64,
    /// Number of zones that cleaning skipped because a block in them cannot be read.
    pub unreadable: u64,
    /// Number of halves of the record ring that ended because a zone failed.
    pub ring_failures: u64,
}

/// The identity of a store.
pub(crate) struct Identity {
    pub(crate) label: String,
    pub(crate) created: i64,
    pub(crate) uuid: Uuid,
    pub(crate) device: Uuid,
}

/// Whether the store works, is stopping, or has failed.
#[derive(Default)]
pub(crate) struct Life {
    dead: RefCell<Option<Error>>,
    stopping: Cell<bool>,
}

/// The state of a store: its parts. Each part keeps its own state to itself, but all parts use the
/// table of files.
///
/// Invariants, checked by [`Store::audit`]
/// - The valid blocks of each zone and file in the zone allocator are the extents of `files` with
///   their blocks of checksums, and the blocks that are `leaving`.
/// - No two extents overlap, and each lies in the written part of its zone.
/// - A file has as many `names` as paths lead to it. It is dropped when it has no name, no
///   handle and no view.
pub(crate) struct Inner {
    pub(crate) rt: Rt,
    pub(crate) pages: Pool,
    pub(crate) options: Options,
    pub(crate) identity: Identity,
    pub(crate) ring_zones: RingZones,
    pub(crate) ring: RefCell<RecordRing>,
    pub(crate) zones: ZoneAllocator,
    pub(crate) names: RefCell<Namespace>,
    pub(crate) files: RefCell<BTreeMap<FileId, File>>,
    pub(crate) leaving: Leaving,
    pub(crate) flights: Flights,
    pub(crate) commits: Commits,
    pub(crate) sums: SumsCache,
    pub(crate) forgotten: RefCell<Forgotten>,
    /// Bytes of a snapshot, without the entries of zones.
    pub(crate) load: RingLoad,
    pub(crate) counters: RefCell<Counters>,
    pub(crate) life: Life,
    pub(crate) scrub: Scrub,
}

/// A store. Cloning shares it.
#[derive(Clone)]
pub struct Store(pub(crate) Rc<Inner>);

impl Store {
    pub(crate) fn check_alive(&self) -> Result<()> {
        let broken = || self.0.zones.broken();
        self.0.life.dead.borrow().clone().or_else(broken).map_or(Ok(()), Err)
    }

    /// Makes the store fail: nothing can be made durable from now on.
    pub(crate) fn die(&self, error: &Error) -> Error {
        self.0.life.dead.borrow_mut().get_or_insert_with(|| error.clone());
        self.0.zones.freed.notify_all();
        self.0.flights.wake();
        error.clone()
    }

    /// The error that made the store fail, if any.
    pub fn failed(&self) -> Option<Error> {
        self.0.life.dead.borrow().clone()
    }

    /// Makes background tasks end.
    pub(crate) fn begin_stop(&self) {
        self.0.life.stopping.set(true);
    }

    /// Whether background tasks have to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.0.life.stopping.get()
    }

    pub(crate) fn has(&self, defect: StoreDefect) -> bool {
        self.0.options.variant.has(defect)
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.0.counters.borrow_mut());
    }

    /// Returns the counts of the store's work.
    pub fn counters(&self) -> Counters {
        let resets = self.0.zones.writer.counters().resets;
        Counters { resets, ..*self.0.counters.borrow() }
    }

    /// UUID of the store.
    pub fn uuid(&self) -> Uuid {
        self.0.identity.uuid
    }

    /// Label of the store.
    pub fn label(&self) -> &str {
        &self.0.identity.label
    }

    /// When the store was made, in seconds since 1970.
    pub fn created(&self) -> i64 {
        self.0.identity.created
    }

    /// Number of blocks that a zone holds.
    pub fn zone_blocks(&self) -> u32 {
        self.0.zones.capacity()
    }

    /// Returns the number of the youngest blob file in each full zone with blob files of the family
    /// (YBIZ, §IV-C of the Same-Victim GC paper). The youngest file itself may be gone: its number
    /// stays as long as another file of the family keeps the zone.
    ///
    /// # Errors
    /// `Invalid` if the directory leads out of the store.
    pub fn youngest_in_full_zones(&self, family: &Family) -> Result<Vec<(ZoneId, u64)>> {
        let family = Family { directory: clean(&family.directory)?, name: family.name.clone() };
        let (zones, files) = (&self.0.zones, self.0.files.borrow());
        let live = |zone: ZoneId| {
            let roles =
                zones.files_in(zone).into_iter().filter_map(|id| Some(&files.get(&id)?.role));
            roles.filter(|role| role.family == family).filter_map(|role| role.number).max()
        };
        let of_zone = |zone: ZoneId| {
            let live = live(zone)?;
            let recorded = zones.youngest_in(zone).get(&family).copied();
            Some((zone, recorded.map_or(live, |recorded| recorded.max(live))))
        };
        zones.close_full();
        Ok(zones.full_zones().into_iter().filter_map(of_zone).collect())
    }

    /// Drops a file if it has no name, no handle and no view.
    pub(crate) fn drop_unused(&self, id: FileId) {
        let mut files = self.0.files.borrow_mut();
        let unused = |file: &&mut File| file.names == 0 && file.opens == 0 && file.views.is_empty();
        if files.get_mut(&id).filter(unused).is_none() {
            return;
        }
        let file = files.remove(&id).expect("invariant: it was just there");
        drop(files);
        debug_assert_eq!(file.load, FileLoad::default(), "a file without a name");
        self.0.zones.release_hold(id);
        self.0.commits.leave_out(id);
        for extent in &file.extents {
            self.retire(id, extent);
        }
        self.plan_commit();
    }

    /// Runs `action` with a file.
    pub(crate) fn with<T>(&self, id: FileId, action: impl FnOnce(&mut File) -> T) -> Result<T> {
        let mut files = self.0.files.borrow_mut();
        let missing = || Error::new(ErrorKind::NotFound, format!("file {} is gone", id.0));
        Ok(action(files.get_mut(&id).ok_or_else(missing)?))
    }
}
