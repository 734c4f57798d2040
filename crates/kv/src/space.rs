//! Space of a store: its capacity, what is used, and what can still be written.

use crate::extent::{Extent, FileId, SUMS_INLINE, SYNCED_EXTENT, Sums};
use crate::file::File;
use crate::file_kind::{Claim, FileKind};
use crate::ring_budget::blocks_with_entries;
use crate::store::Store;
use crate::zone_allocator::{garbage_left, kept_from};
use furrow_log::BLOCK_SIZE;
use furrow_log::pool::SuperzoneState;
use furrow_zone::{Error, ErrorKind};
use std::collections::BTreeMap;

/// While more blocks than this may be placed, [`Store::space_for`] does not count the blocks that
/// the next group commit retires: counting takes time.
const LEFT_UNCOUNTED: u64 = 4096;

/// Space of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Number of bytes that files can hold.
    pub capacity: u64,
    /// Number of bytes that files hold.
    pub used: u64,
    /// Number of bytes that files can hold in addition, by cleaning alone, as long as the record
    /// ring has space for their places. Excludes the reserves for compactions, for flushes of the
    /// present logs, and for the database's own state.
    pub available: u64,
    /// Number of zones for content.
    pub zones: u32,
    /// Number of zones for content that hold nothing.
    pub free_zones: u32,
    /// Maximum number of zones for content that were in use at once since the store was opened.
    pub peak_zones: u32,
}

/// The files of one kind, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindSum {
    /// Number of files.
    pub files: u64,
    /// Sum of the files' sizes in bytes.
    pub bytes: u64,
    /// Number of blocks that the files take on the drive, including blocks of checksums.
    pub blocks: u64,
    /// Number of the files' extents.
    pub extents: u64,
}

/// Counts the extents that get a block for their checksums when they are moved.
pub(crate) fn sums_to_come(extents: &[Extent]) -> u64 {
    let inline = |e: &&Extent| matches!(e.sums, Sums::Here(_)) && !e.is_hole();
    let one = |e: &&Extent| e.blocks > SUMS_INLINE && inline(e);
    extents.iter().filter(one).count() as u64
}

/// Number of `blocks` that can hold content; the others hold checksums. Assumes extents of
/// [`SYNCED_EXTENT`] blocks, the shortest usual ones: files that are written at the same time break
/// up each other's extents.
pub(crate) fn without_sums(blocks: u64, zone_blocks: u32) -> u64 {
    let extent = u64::from(SYNCED_EXTENT.min(zone_blocks.saturating_sub(1)));
    blocks - blocks.div_ceil(extent + 1)
}

impl Store {
    /// Returns how many blocks of files with this claim may still be placed. The space in open
    /// zones is not a safe limit: cleaning writes to a reserved zone, so content that fits the open
    /// zones could leave cleaning without space once that zone is full.
    pub(crate) fn space_for(&self, claim: Claim) -> u64 {
        let (valid, most) = (self.0.zones.valid_total(), self.0.zones.valid_max(claim));
        if valid + LEFT_UNCOUNTED <= most {
            return most - valid;
        }
        // The leaving blocks count as valid until the next group commit, but belong to no file, or
        // are a second copy of a file's blocks.
        (most + self.0.leaving.total()).saturating_sub(valid)
    }

    /// The error of a write that finds no space.
    pub(crate) fn no_space_left(&self) -> Error {
        let space = self.space();
        let message = format!(
            "no space: files hold {} of {} MiB, and cleaning can free nothing more: remove files",
            space.used >> 20,
            space.capacity >> 20,
        );
        Error::new(ErrorKind::NoSpace, message)
    }

    /// Computes the store's space.
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
        let left = left.min(blocks_with_entries(self.ring_load(), self.ring_capacity()));
        let block = BLOCK_SIZE as u64;
        Space {
            capacity: capacity * block,
            used: used * block,
            available: without_sums(left, zones.capacity()) * block,
            zones: zones.pool.total(),
            free_zones: zones.pool.free_count(),
            peak_zones: zones.pool.total() - zones.least_free(),
        }
    }

    /// Returns the kind of each file.
    pub fn kind_of(&self) -> BTreeMap<FileId, FileKind> {
        self.0.files.borrow().iter().map(|(id, file)| (*id, file.role.kind)).collect()
    }

    /// Adds up the files of each kind, in the order of [`crate::FileKind::ALL`].
    pub fn kinds(&self) -> [KindSum; 5] {
        let mut kinds = [KindSum::default(); 5];
        for file in self.0.files.borrow().values() {
            let sum = &mut kinds[file.role.kind as usize];
            sum.files += 1;
            sum.bytes += file.size;
            let blocks =
                file.extents.iter().flat_map(Extent::places).map(|(_, blocks)| u64::from(blocks));
            sum.blocks += blocks.sum::<u64>();
            sum.extents += file.extents.len() as u64;
        }
        kinds
    }
}
