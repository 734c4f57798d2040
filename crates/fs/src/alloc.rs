//! The allocator: where blocks go in the main area, which of them are valid, and how much space
//! is left.
//!
//! [`Allocator`] is a plain structure: it decides, and never writes. Its commands for the drive are
//! an ordered list of [`ZoneAction`]s, which the engine carries out at once
//! (`durability/dispatch`). So a property test can run it without a drive (`tests`).
//!
//! **Invariants**, between calls:
//! - The valid blocks of a superzone are the sum over its segments in the SIT, and those of the
//!   main area are the sum over its superzones.
//! - [`Allocator::write`] returns only blocks that hold no valid data, in the superzone's striping
//!   order.
//! - A superzone that a head writes to is active in the pool; no two heads share one.
//! - The number of blocks that can be written ([`Allocator::space_left`]) falls by one with each
//!   block written, and rises only when a superzone is released.

pub(crate) mod group_load;
pub(crate) mod heads;
pub(crate) mod parked;
pub(crate) mod place;
mod segments;
mod since_checkpoint;
pub(crate) mod space;
pub mod stripe;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod tests;

pub(crate) mod zone_quota;

use crate::format::{SitEntry, SummaryEntry};
use crate::layout::Layout;
use crate::tables::table::Table;
use furrow_log::audit::{Broken, Count};
use furrow_log::budget::Permit;
use furrow_log::pool::ZonePool;
use furrow_log::writer::Kind as WriteKind;
use furrow_policy::FsVariant;
use furrow_rt::{Nanos, Page, Pool, Rt};
use furrow_zone::{Geometry, Result, ZoneId};
use heads::{Cursor, Streams};
use since_checkpoint::SinceCheckpoint;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A decision of the allocator. The engine carries decisions out in the order in which they
/// were made.
pub(crate) enum ZoneAction {
    /// Opens an empty zone. If zone `after` is still open, the writes wait until it is written to
    /// its end.
    Open { zone: ZoneId, after: Option<ZoneId> },
    /// Writes a page at `offset`, the zone's next block.
    Write { zone: ZoneId, offset: u32, page: Page, kind: WriteKind },
    /// Reserves `offset`, the zone's next block, for a summary that is written later.
    Reserve { zone: ZoneId, offset: u32 },
    /// Writes the summary to a reserved block.
    Fill { zone: ZoneId, offset: u32, page: Page },
    /// Gives `permit` back once the writes that fill these zones have completed.
    Return { zones: Vec<ZoneId>, permit: Permit },
}

/// The head that took a superzone, the superzone, and its generation.
pub(crate) type Allocation = (u8, u32, u32);

/// A segment with blocks that were set aside for appends. Some of these blocks have no known owner
/// yet.
#[derive(Default)]
struct OpenSegment {
    /// Number of blocks without a known owner.
    blocks: u32,
    /// The segment's unwritten summary, once all of its blocks are taken.
    closed: Option<ClosedSegment>,
}

/// A summary that waits for the owners of blocks.
struct ClosedSegment {
    zone: ZoneId,
    offset: u32,
    stream: u8,
    generation: u32,
    /// Owners of the blocks of the segment, as far as they are known.
    entries: Vec<SummaryEntry>,
}

/// Counts the writes handed to the writer so far.
///
/// Invariant: no stamp of `unstable` is above `stamp`.
#[derive(Default)]
struct Dispatches {
    /// The number of the last dispatch; dispatches that the engine makes without the allocator
    /// count too.
    stamp: u64,
    /// Zones with writes that no flush has covered: for each, the end of its last write, and the
    /// stamp of that write.
    unstable: BTreeMap<ZoneId, (u32, u64)>,
}

/// The allocator of the main area: see the module.
pub(crate) struct Allocator {
    /// Needed only for the clock.
    rt: Rt,
    geometry: Geometry,
    layout: Rc<Layout>,
    /// The pool that provides pages for summaries.
    pages: Pool,
    variant: FsVariant,
    zones: ZonePool,
    sit: Table<SitEntry>,
    /// Number of valid blocks of each superzone: the sum over its segments.
    superzone_valid: Vec<u32>,
    /// Number of valid blocks of the main area: the sum over its superzones.
    valid: u64,
    cursors: Vec<Cursor>,
    streams: Streams,
    /// The segments that have blocks without a known owner, by segment number.
    open_segments: BTreeMap<u32, OpenSegment>,
    since_checkpoint: SinceCheckpoint,
    dispatches: Dispatches,
    /// The time of day in seconds, as of the engine's last reading of the clock: exact enough for
    /// the age of a segment.
    seconds: Cell<u32>,
    /// Number of blocks of space that the cleaning under way will still need.
    cleaning: u32,
    /// True while cleaning writes: it may open the superzones that are kept for cleaning.
    for_cleaning: bool,
    actions: Vec<ZoneAction>,
    /// Records the first account that went below zero.
    broken: Broken,
}

impl Allocator {
    /// Builds the allocator of a main area whose SIT is `sit` and whose superzones are in `zones`.
    /// No head has a superzone yet.
    ///
    /// # Errors
    /// `Invalid` if the drive has fewer active zones than the file system was made for.
    pub(crate) fn new(
        rt: &Rt,
        (geometry, layout): (&Geometry, Rc<Layout>),
        variant: FsVariant,
        zones: ZonePool,
        sit: Table<SitEntry>,
        pages: Pool,
    ) -> Result<Allocator> {
        let now: Nanos = rt.now();
        let groups = zones.groups();
        let (streams, cursors) = Streams::new(geometry, variant.heads, &layout, groups, now)?;
        let mut this = Allocator {
            rt: rt.clone(),
            geometry: geometry.clone(),
            superzone_valid: vec![0; layout.superzones as usize],
            layout,
            pages,
            variant,
            zones,
            sit,
            valid: 0,
            cursors,
            streams,
            open_segments: BTreeMap::new(),
            since_checkpoint: SinceCheckpoint::default(),
            dispatches: Dispatches::default(),
            seconds: Cell::new(rt.wall().0 as u32),
            cleaning: 0,
            for_cleaning: false,
            actions: Vec::new(),
            broken: Broken::default(),
        };
        this.count_valid();
        Ok(this)
    }

    /// Computes the counts of valid blocks from the entries of the SIT.
    pub(crate) fn count_valid(&mut self) {
        self.superzone_valid.fill(0);
        for segment in 0..self.sit.len() {
            let valid = u32::from(self.sit.get(segment).valid.get());
            if let Some(count) =
                self.superzone_valid.get_mut((segment / self.layout.segments) as usize)
            {
                *count += valid;
            }
        }
        self.valid = self.superzone_valid.iter().map(|valid| u64::from(*valid)).sum();
    }

    /// Subtracts from an account: see [`Broken::less`].
    fn less<T: Count>(&self, account: &str, from: T, by: T) -> T {
        self.broken.less(account, from, by)
    }

    /// Returns the record of accounts that went below zero.
    pub(crate) fn broken(&self) -> Broken {
        self.broken.clone()
    }

    /// Takes the actions decided since the last call, to be carried out in order.
    pub(crate) fn take_actions(&mut self) -> Vec<ZoneAction> {
        std::mem::take(&mut self.actions)
    }

    /// Number of valid blocks in the main area.
    pub(crate) fn valid(&self) -> u64 {
        self.valid
    }

    /// Number of valid blocks in `superzone`.
    pub(crate) fn valid_in(&self, superzone: u32) -> u32 {
        self.superzone_valid[superzone as usize]
    }

    /// Each superzone with its number of valid blocks.
    pub(crate) fn valid_by_superzone(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..).zip(self.superzone_valid.iter().copied())
    }

    /// The pool of superzones. The pool guards its own state, because the code that releases
    /// superzones shares the pool.
    pub(crate) fn zones(&self) -> &ZonePool {
        &self.zones
    }

    /// The time of day in seconds, as of the engine's last reading of the clock.
    pub(crate) fn seconds(&self) -> u32 {
        self.seconds.get()
    }

    /// Notes the time of day, in seconds.
    pub(crate) fn set_seconds(&self, seconds: u32) {
        self.seconds.set(seconds);
    }

    /// Superzones that heads took since the last durable checkpoint.
    pub(crate) fn allocated(&self) -> &[Allocation] {
        self.since_checkpoint.allocated()
    }

    /// Zones with writes that no flush has covered, each with the end of its last write.
    pub(crate) fn unstable(&self) -> impl ExactSizeIterator<Item = (ZoneId, u32)> + '_ {
        self.dispatches.unstable.iter().map(|(zone, (end, _))| (*zone, *end))
    }

    /// The number of the last dispatch.
    pub(crate) fn stamp(&self) -> u64 {
        self.dispatches.stamp
    }

    /// Counts a dispatch, and returns its number.
    pub(crate) fn next_stamp(&mut self) -> u64 {
        self.dispatches.stamp += 1;
        self.dispatches.stamp
    }

    /// Notes that the last dispatch was a write to a zone of the main area, up to block `end`.
    pub(crate) fn note_unstable(&mut self, zone: ZoneId, end: u32) {
        self.dispatches.unstable.insert(zone, (end, self.dispatches.stamp));
    }

    /// Notes that a flush covers every dispatch up to `stamp`.
    pub(crate) fn flushed(&mut self, stamp: u64) {
        self.dispatches.unstable.retain(|_, (_, last)| *last > stamp);
    }

    /// Keeps `blocks` blocks of space for the cleaning under way; 0 when the cleaning ends.
    pub(crate) fn keep_for_cleaning(&mut self, blocks: u32) {
        self.cleaning = blocks;
    }

    /// Says whether the following writes are those of cleaning (`on`) or of users.
    pub(crate) fn write_for_cleaning(&mut self, on: bool) {
        self.for_cleaning = on;
    }

    /// Counts a block that cleaning is about to write, but that changed for another reason:
    /// recovery may have to write it again.
    pub(crate) fn note_at_risk(&mut self) {
        self.since_checkpoint.wrote();
    }

    /// Takes the snapshot of a checkpoint, which covers all blocks written and superzones taken
    /// so far.
    pub(crate) fn snapshot(&mut self) {
        self.since_checkpoint.snapshot();
    }

    /// Notes that the checkpoint of the last snapshot is durable.
    pub(crate) fn checkpoint_durable(&mut self) {
        debug_assert_eq!(
            self.valid,
            self.superzone_valid.iter().map(|valid| u64::from(*valid)).sum::<u64>(),
            "valid blocks of the main area"
        );
        self.since_checkpoint.durable(&self.broken);
    }
}
