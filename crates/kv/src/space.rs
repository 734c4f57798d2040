//! Space of a store: what it has, what is used, and what files can still be given.

use crate::cleaning::garbage_left;
use crate::file::{Extent, File, Sums};
use crate::file_io::{SUMS_INLINE, SYNCED_EXTENT};
use crate::file_kind::Claim;
use crate::inspect::places;
use crate::store::Store;
use crate::zone_allocator::kept_from;
use furrow_log::BLOCK_SIZE;
use furrow_log::pool::SuperzoneState;

/// Space of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What files can hold.
    pub capacity: u64,
    /// What they hold.
    pub used: u64,
    /// What files can hold besides, by cleaning alone: without what is kept for the output of
    /// compactions, for flushes of the logs there are, and for what a database is made of.
    pub available: u64,
    /// Zones for content.
    pub zones: u32,
    /// Those of them that hold nothing.
    pub free_zones: u32,
    /// The most of them that were in use at once since the store was opened.
    pub peak_zones: u32,
}

/// What the files of a kind are together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindSum {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that they have on the drive, those of checksums included.
    pub blocks: u64,
    /// Runs of blocks.
    pub extents: u64,
}

/// Extents whose checksums get a block when they are moved.
pub(crate) fn sums_to_come(extents: &[Extent]) -> u64 {
    let inline = |e: &&Extent| matches!(e.sums, Sums::Here(_)) && !e.is_hole();
    let one = |e: &&Extent| e.blocks > SUMS_INLINE && inline(e);
    extents.iter().filter(one).count() as u64
}

/// How many of so many blocks can be content where extents are as short as files that are written
/// side by side make them: each has a block of checksums.
pub(crate) fn without_sums(blocks: u64, zone_blocks: u32) -> u64 {
    let extent = u64::from(SYNCED_EXTENT.min(zone_blocks.saturating_sub(1)));
    blocks - blocks.div_ceil(extent + 1)
}

impl Store {
    /// Its space.
    pub fn space(&self) -> Space {
        let zones = &self.0.zones;
        let failed = zones.pool.count(SuperzoneState::Retired);
        let total = zones.pool.total() - failed;
        let usable = u64::from(total.saturating_sub(kept_from(Claim::Others, total)));
        let capacity = usable * u64::from(zones.capacity());
        let used = zones.valid_total();
        let waiting = |file: &File| file.waiting.len() as u64 + sums_to_come(&file.extents);
        let waiting = self.0.files.borrow().values().map(waiting).sum();
        let flushes = u64::from(zones.kept_for_flushes()) * u64::from(zones.capacity());
        let gone = [used, waiting, flushes, zones.out_of_reach(garbage_left(zones.capacity()))];
        let left = gone.into_iter().fold(capacity, u64::saturating_sub);
        let block = BLOCK_SIZE as u64;
        Space {
            capacity: capacity * block,
            used: used * block,
            available: without_sums(left, zones.capacity()) * block,
            zones: zones.pool.total(),
            free_zones: zones.pool.free_count(),
            peak_zones: zones.pool.total() - zones.least_free.get(),
        }
    }

    /// What the files of each kind are together, as [`crate::FileKind::ALL`] has them.
    pub fn kinds(&self) -> [KindSum; 5] {
        let mut kinds = [KindSum::default(); 5];
        for file in self.0.files.borrow().values() {
            let sum = &mut kinds[file.role.kind as usize];
            sum.files += 1;
            sum.bytes += file.size;
            let blocks = file.extents.iter().flat_map(places).map(|(_, blocks)| u64::from(blocks));
            sum.blocks += blocks.sum::<u64>();
            sum.extents += file.extents.len() as u64;
        }
        kinds
    }
}
