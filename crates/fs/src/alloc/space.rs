//! Space on the drive: the blocks left, the blocks promised, and which requests may have the rest.
//!
//! *Space* is the number of blocks that can be written to the main area before a zone is reset: the
//! rest of each stream's superzones, and the free superzones. Every dirty page is *promised* one
//! block of space. Space that is not promised is *spare*. A stream that has no superzone may write
//! into the superzone of another stream ([`Allocator::write`]). So space is one number: it suffices
//! for every distribution of dirty pages over streams, and the check costs the same for any number
//! of dirty pages.
//!
//! Operations check for space *before* they change anything. Operations of users leave a little
//! more than [`RESERVE`] superzones spare, removals leave one. With this reserve, cleaning can
//! always move the valid blocks of a victim and write the nodes that this changes. A cleaning under
//! way has its own reservation, which no operation may use. So a checkpoint, which writes the
//! promised blocks, and a cleaning, once begun, never run out of space. Neither does recovery: the
//! blocks written since the last durable checkpoint may be garbage after a crash and have to be
//! written again, so the same number of blocks stays free in addition.
//!
//! A separate *count* decides whether users may have another block at all: the blocks *in use* are
//! the valid blocks and the dirty ones. Users may have up to the *capacity* in use: the main area
//! without the blocks that cleaning needs ([`Allocator::capacity`]). Only an operation that adds to
//! the blocks in use is ever refused for good, and the refusal does not depend on where garbage
//! lies. Overwriting, renaming and removing add no blocks: they wait until cleaning has made space.
//!
//! Requests that lack space wait in a FIFO queue. The first request in the queue cleans until there
//! is enough ([`Inner::gain_space`]).

use crate::alloc::Allocator;
use crate::types::WRITE_BLOCKS_MAX;
use furrow_log::pool::{SuperzoneId, SuperzoneState};

/// Space, in superzones, that users leave for cleaning: for the valid blocks of a victim, and as
/// many nodes that point to them.
pub(crate) const RESERVE: u32 = 2;
/// Number of blocks that recovery may write in addition to those it replays, to free files that
/// were removed while open.
pub(crate) const RECOVERY_MIN: u64 = 8;
/// Blocks beyond the capacity that names and attributes of existing files may take.
pub(crate) const UPKEEP: u64 = 64;
/// The main area is divided by this number to get the blocks that users cannot have, so that
/// cleaning finds garbage.
const SLACK: u64 = 32;

/// The effect of an operation on the number of blocks in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Adds at most this number of blocks.
    User(u64),
    /// Like `User`, for names and attributes of existing files, which may use [`UPKEEP`] blocks
    /// beyond the capacity. Operations that only replace blocks claim 0.
    Upkeep(u64),
    /// Frees space, at once or in a later step. The operation may use part of the reserve, and does
    /// not queue.
    Removal,
}

impl Claim {
    /// The claim of an operation that only replaces blocks.
    pub(crate) const SAME: Claim = Claim::Upkeep(0);
}

impl Allocator {
    /// Payload blocks of a whole superzone.
    pub(crate) fn superzone_blocks(&self) -> u32 {
        self.layout.stripe(self.layout.width).payload_blocks().max(1)
    }

    /// Number of payload blocks of superzone `id`, which may lack zones.
    pub(crate) fn payload_of(&self, id: SuperzoneId) -> u32 {
        match self.zones.width(id) {
            0 => 0,
            width => self.layout.stripe(width).payload_blocks(),
        }
    }

    /// Number of blocks that can be written to the main area before a zone is reset.
    pub(crate) fn space_left(&self) -> u64 {
        let open: u64 =
            (0..self.layout.streams as usize).map(|s| u64::from(self.space_in(s))).sum();
        let free = if self.zones.is_narrow() {
            let all = (0..self.zones.total()).map(SuperzoneId);
            let free = all.filter(|id| self.zones.state(*id) == SuperzoneState::Free);
            free.map(|id| u64::from(self.payload_of(id))).sum()
        } else {
            u64::from(self.zones.free_count()) * u64::from(self.superzone_blocks())
        };
        open + free
    }

    /// Payload blocks of the main area.
    pub(crate) fn main_blocks(&self) -> u64 {
        let tables = SuperzoneState::Tables;
        if self.zones.is_narrow() {
            let all = (0..self.zones.total()).map(SuperzoneId);
            let all = all.filter(|id| self.zones.state(*id) != tables);
            return all.map(|id| u64::from(self.payload_of(id))).sum();
        }
        let superzones = self.zones.total() - self.zones.count(tables);
        u64::from(superzones) * u64::from(self.superzone_blocks())
    }

    /// Number of blocks that users may have in use. The other blocks are garbage or free: the
    /// blocks that cleaning needs at once, and a slack that keeps victims worth cleaning. The slack
    /// is at least the size of the largest write, as far as a small drive allows.
    pub(crate) fn capacity(&self) -> u64 {
        let blocks = self.main_blocks();
        let write = (WRITE_BLOCKS_MAX as u64 + 8).min(blocks / 16);
        let slack = (blocks / SLACK).max(u64::from(self.superzone_blocks())).max(write);
        blocks.saturating_sub(self.kept_from_users() + UPKEEP + slack)
    }

    /// Space left after subtracting the `dirty` blocks, which have their promise.
    pub(crate) fn spare(&self, dirty: u64) -> u64 {
        self.space_left().saturating_sub(dirty)
    }

    /// True if `wanted` blocks of space are left. Every change asks this, so the free superzones
    /// are counted first: they alone usually suffice.
    pub(crate) fn has_space(&self, wanted: u64) -> bool {
        let whole = !self.zones.is_narrow();
        let free = u64::from(self.zones.free_count()) * u64::from(self.superzone_blocks());
        whole && free >= wanted || self.space_left() >= wanted
    }

    /// Space that users leave: two superzones for cleaning, and a quarter of a superzone for nodes
    /// that several victims share.
    pub(crate) fn kept_from_users(&self) -> u64 {
        let per = u64::from(self.superzone_blocks());
        u64::from(RESERVE) * per + per / 4 + RECOVERY_MIN
    }

    /// Space that recovery may need after a crash now: it writes again the `changed` blocks, and
    /// the blocks written since the last durable checkpoint. Nodes that only cleaning made dirty do
    /// not count: after a crash they still have their old content.
    pub(crate) fn recovery_needs(&self, changed: u64) -> u64 {
        RECOVERY_MIN + self.since_checkpoint.to_write_again(changed)
    }

    /// Number of blocks that an operation (a `removal`, or another operation) must leave spare, if
    /// recovery may have to write the `changed` blocks.
    pub(crate) fn kept(&self, removal: bool, changed: u64) -> u64 {
        let per = u64::from(self.superzone_blocks());
        let kept = if removal { per + RECOVERY_MIN } else { self.kept_from_users() };
        kept.max(u64::from(self.cleaning) + self.recovery_needs(changed))
    }

    /// Whether a stream may take a free superzone. The last ones are kept for cleaning.
    pub(super) fn may_open(&self) -> bool {
        let keep = if self.for_cleaning { 0 } else { RESERVE };
        self.zones.free_count() > keep
    }

    /// Superzones written to their end that have no valid blocks.
    pub(crate) fn empty_superzones(&self) -> impl Iterator<Item = SuperzoneId> + '_ {
        let empty = self.superzone_valid.iter().enumerate().filter(|(_, valid)| **valid == 0);
        empty
            .map(|(index, _)| SuperzoneId(index as u32))
            .filter(|id| self.zones.state(*id) == SuperzoneState::Full)
    }
}
