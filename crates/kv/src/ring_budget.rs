//! Admission of requests that add entries to the record ring.
//!
//! A turn writes all names and places of files to one half of the ring. If they did not fit, no
//! turn would be possible, and nothing could be recorded any more, not even a removal. So the bytes
//! of the next snapshot are counted, and requests that would add too many are refused in time.
//!
//! Invariants
//! - Requests that add entries are admitted until the snapshot takes a share of the half that
//!   depends on their claim. Removals, and the moves of cleaning, are always admitted.
//! - Bytes after the last whole block of files take at most an eighth of the half: beyond that,
//!   these bytes get a block of their own when their file is synced or closed.

use crate::extent::{FileId, SUMS_INLINE, Sums};
use crate::file::File;
use crate::file_kind::{Claim, FileKind, Role};
use crate::format::{EXTENT_MAX, EntryHead, ExtentEntry, NameEntry, PATH_MAX};
use crate::ring_load::{FILE_ENTRY, FileLoad, file_bytes};
use crate::store::Store;
use furrow_log::BLOCK_SIZE;
use furrow_zone::{Error, ErrorKind, Result};

/// Shares of a half, in sixteenths. Each of these may fill the half up to its share: files without
/// a claim, flushes and compactions, the database's own state, and cleaning.
const OTHERS: u64 = 10;
const FLUSHES: u64 = 11;
const CATALOG: u64 = 12;
const CLEANING: u64 = 14;
/// Share of a half that tails may take, in sixteenths. Once the ring is fuller than that, closed
/// files also move everything they can out of it.
const CROWDED: u64 = 2;
/// Maximum number of bytes that one name with its file adds to a snapshot.
const ONE_MORE: u64 = (EntryHead::SIZE + NameEntry::SIZE + PATH_MAX) as u64 + FILE_ENTRY;

/// Number of blocks of content that can get a place when a snapshot has `load` bytes and a half
/// holds `room`: each extent needs an entry.
pub(crate) fn blocks_with_entries(load: u64, room: u64) -> u64 {
    let left = (room * OTHERS / 16).saturating_sub(load + ONE_MORE);
    left / ExtentEntry::SIZE as u64 * u64::from(EXTENT_MAX)
}

impl Store {
    /// Size in bytes of a half of the ring.
    pub(crate) fn ring_capacity(&self) -> u64 {
        u64::from(self.0.ring.borrow().half_blocks()) * BLOCK_SIZE as u64
    }

    fn exceeds(&self, bytes: u64, sixteenths: u64) -> bool {
        bytes > self.ring_capacity() * sixteenths / 16
    }

    /// Number of bytes of a snapshot of the present state.
    pub(crate) fn ring_load(&self) -> u64 {
        self.0.load.total() + self.0.zones.youngest_bytes()
    }

    /// Admits a request that adds `bytes` of entries to snapshots.
    ///
    /// # Errors
    /// `NoSpace` if the claim's share of the half is used up.
    pub(crate) fn admit(&self, claim: Claim, bytes: u64) -> Result<()> {
        let share = match claim {
            Claim::Others => OTHERS,
            Claim::Compaction | Claim::Flush => FLUSHES,
            Claim::Catalog => CATALOG,
        };
        let load = self.ring_load();
        if !self.exceeds(load + bytes, share) {
            return Ok(());
        }
        self.count(|counters| counters.refused += 1);
        let message = format!(
            "no space: names and places of files take {load} of the {} bytes of a half of the \
             record ring: remove files",
            self.ring_capacity()
        );
        Err(Error::new(ErrorKind::NoSpace, message))
    }

    /// Admits a name. The claim follows from the name: this may be the name of a new file, whose
    /// claim is not stated yet.
    pub(crate) fn admit_name(&self, path: &str, bytes: u64) -> Result<()> {
        let role = Role::of(path);
        let claim = match role.kind {
            FileKind::Blob | FileKind::Table | FileKind::Wal => Claim::Flush,
            FileKind::Manifest | FileKind::Other => Claim::Others,
        };
        self.admit(claim.max(role.claim), bytes)
    }

    /// Whether the ring is so full that cleaning, which may split extents, has to wait
    /// for removals.
    pub(crate) fn ring_is_full(&self) -> bool {
        self.exceeds(self.ring_load(), CLEANING)
    }

    /// Whether the ring is so full that tails and checksums have to be stored elsewhere
    /// where possible.
    pub(crate) fn ring_is_crowded(&self) -> bool {
        self.exceeds(self.ring_load(), CROWDED)
    }

    /// Whether the tail of a file would crowd the ring if it was recorded there.
    pub(crate) fn tail_crowds(&self, file: &File) -> bool {
        let others = self.0.load.tails().saturating_sub(file.load.tail);
        file.tail_len() > 0 && self.exceeds(others + file.tail_len() as u64, CROWDED)
    }

    /// Updates the count of the bytes that a file adds to a snapshot, after a change of its names,
    /// its extents or its durable state.
    pub(crate) fn weigh(&self, file: &mut File) {
        let now = match file.names {
            0 => FileLoad::default(),
            _ => FileLoad { entries: file_bytes(&file.extents), tail: file.tail_recorded() },
        };
        self.0.load.change(file.load, now);
        file.load = now;
    }

    /// Counts the tail of a file that a group commit is about to record.
    pub(crate) fn weigh_tail(&self, file: &mut File) {
        let tail = if file.names > 0 { file.tail_len() as u64 } else { 0 };
        let now = FileLoad { tail: tail.max(file.load.tail), ..file.load };
        self.0.load.change(file.load, now);
        file.load = now;
    }

    /// Moves tails and checksums out of the ring if a snapshot takes more than half the share of
    /// files without a claim. An earlier version may have left such a ring.
    pub(crate) async fn relieve_ring(&self) -> Result<()> {
        let mut load = self.ring_load();
        if !self.exceeds(load, OTHERS / 2) {
            return Ok(());
        }
        let mut files: Vec<(u64, FileId)> = {
            let files = self.0.files.borrow();
            files.iter().map(|(id, file)| (can_leave(file), *id)).collect()
        };
        files.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (bytes, id) in files.into_iter().take_while(|(bytes, _)| *bytes > 0) {
            if !self.exceeds(load, CROWDED) {
                break;
            }
            let Ok(lock) = self.with(id, |file| file.lock.clone()) else { continue };
            let _one = lock.acquire(1).await;
            self.leave_ring(id).await?;
            load = load.saturating_sub(bytes);
        }
        self.join_group_commit(None).await
    }
}

/// Number of bytes of a file's entry that can be stored in blocks instead.
fn can_leave(file: &File) -> u64 {
    let sums = file.extents.last().map_or(0, |last| match &last.sums {
        Sums::Here(sums) if sums.len() > SUMS_INLINE as usize => 4 * sums.len() as u64,
        _ => 0,
    });
    file.load.tail + sums
}
