//! The audit of a store compares each account in memory with the objects that it counts.
//!
//! An audit changes nothing and waits for nothing. A sound store passes it between any two steps of
//! the engine, also while commits, cleaning and writes are under way. Simulation calls it after
//! every operation; debug builds call it when the record ring turns.
//!
//! Its cost is proportional to the number of extents and zones.

use crate::extent::{Extent, FileId, Sums};
use crate::file::File;
use crate::file_kind::FileKind;
use crate::format::EXTENT_MAX;
use crate::namespace::paths::Node;
use crate::ring_load::{file_bytes, name_bytes, zone_bytes};
use crate::store::Store;
use furrow_log::BlockAddr;
use furrow_log::audit::{equal, holds};
use furrow_rt::PAGE_SIZE;
use furrow_zone::{Result, ZoneId};
use std::collections::BTreeMap;

/// Number of valid blocks by zone and file; zones and files without any are absent.
pub(crate) type Residents = BTreeMap<ZoneId, BTreeMap<FileId, u32>>;

impl Store {
    /// Compares every account in memory with the objects that it counts. A store that failed or was
    /// stopped is not audited.
    ///
    /// # Errors
    /// `Internal`: names the account, the expected value and the value found. The cause is a defect
    /// of this program, never of a drive.
    pub fn audit(&self) -> Result<()> {
        let inner = &*self.0;
        if self.check_alive().is_err() || inner.zones.has_ended() {
            return Ok(());
        }
        let zones = &inner.zones;
        zones.budget.audit()?;
        zones.pool.audit()?;
        zones.writer.audit()?;
        inner.ring.borrow().audit()?;
        self.audit_names()?;
        for (id, file) in inner.files.borrow().iter() {
            self.audit_file(*id, file)?;
        }
        self.audit_places()?;
        self.audit_flights()?;
        self.audit_load()?;
        let is_log = |file: &File| file.names > 0 && file.role.kind == FileKind::Wal;
        let files = inner.files.borrow();
        let logs = files.iter().filter(|(_, file)| is_log(file)).map(|(id, _)| *id);
        zones.audit(&self.counted_residents(), logs.collect(), |id| files.contains_key(&id))
    }

    /// Counts the valid blocks from everything that refers to blocks: files, the present and the
    /// next group commit, and cleaning.
    fn counted_residents(&self) -> Residents {
        let inner = &*self.0;
        let mut residents = Residents::new();
        let mut count = |zone: ZoneId, file: FileId, blocks: u32| {
            *residents.entry(zone).or_default().entry(file).or_default() += blocks;
        };
        for (id, file) in inner.files.borrow().iter() {
            let each = file.extents.iter().flat_map(Extent::places);
            each.for_each(|(at, blocks)| count(self.zone_of(at), *id, blocks));
        }
        inner.leaving.for_each(|(zone, file, blocks)| count(zone, file, blocks));
        residents
    }

    /// Compares `File::names` with the namespace.
    fn audit_names(&self) -> Result<()> {
        let (names, files) = (self.0.names.borrow(), self.0.files.borrow());
        let mut counted = BTreeMap::<FileId, u32>::new();
        for node in names.nodes.values() {
            if let Node::File(id) = node {
                *counted.entry(*id).or_default() += 1;
            }
        }
        for (id, names) in &counted {
            let found = files.get(id).map(|file| file.names);
            equal(format_args!("names of file {}", id.0), Some(*names), found)?;
        }
        for (id, file) in files.iter() {
            let counted = counted.get(id).copied().unwrap_or(0);
            equal(format_args!("names of file {}", id.0), counted, file.names)?;
            let used = file.names > 0 || file.opens > 0 || !file.views.is_empty();
            holds("files", used, || format!("file {} has neither a name nor a handle", id.0))?;
            holds("number of the next file", id.0 < names.next_file, || {
                format!("expected above {}, found {}", id.0, names.next_file)
            })?;
        }
        Ok(())
    }

    /// Compares the counted size of a snapshot with the names, files and zones it would hold.
    fn audit_load(&self) -> Result<()> {
        let (names, files) = (self.0.names.borrow(), self.0.files.borrow());
        let mut entries: u64 = names.nodes.keys().map(|path| name_bytes(path)).sum();
        let mut tails = 0;
        for (id, file) in files.iter().filter(|(_, file)| file.names > 0) {
            entries += file_bytes(&file.extents);
            tails += file.load.tail;
            let durable = file.synced.as_ref().map_or(0, |synced| synced.tail.len()) as u64;
            let tail = file.load.tail;
            holds(format_args!("tail of file {} in the ring", id.0), tail >= durable, || {
                format!("expected at least {durable} bytes, found {tail}")
            })?;
        }
        equal("bytes of a snapshot, and of tails", (entries, tails), self.0.load.counts())?;
        let zones = &self.0.zones;
        let each = zones.with_blobs().into_iter().map(|zone| zone_bytes(&zones.youngest_in(zone)));
        equal("bytes of entries of zones", each.sum(), zones.youngest_bytes())
    }

    /// Checks the order of a file's extents, their checksums, and the file's durable part.
    fn audit_file(&self, id: FileId, file: &File) -> Result<()> {
        let account = |what: &str| format!("{what} of file {}", id.0);
        let wanted = self.0.forgotten.borrow().wanted;
        let mut end = 0;
        for extent in &file.extents {
            equal(account("extents, first block"), end, extent.first)?;
            let fits = (1..=EXTENT_MAX).contains(&extent.blocks);
            holds(account("extents, blocks"), fits, || {
                format!("expected 1 to {EXTENT_MAX}, found {}", extent.blocks)
            })?;
            end = extent.end();
            let sums = match &extent.sums {
                Sums::Here(sums) => Some(sums.len() as u32),
                Sums::At(_) => None,
            };
            if extent.is_hole() {
                equal(account("checksums of a hole"), Some(0), sums)?;
                holds(account("holes"), wanted, || {
                    format!("block {} is a hole, but no dead range was stated", extent.first)
                })?;
            } else {
                let expected = sums.map(|_| extent.blocks);
                equal(account("checksums of an extent"), expected, sums)?;
            }
        }
        let placed = file.placed();
        holds(account("journaled blocks"), file.journaled <= placed, || {
            format!("expected at most the {placed} placed ones, found {}", file.journaled)
        })?;
        // `journaled` already includes the blocks that a commit under way will make durable. A file
        // without a name is no longer in any commit.
        if !self.0.commits.is_running() && file.names > 0 {
            let durable = file.synced.as_ref().map_or(0, |synced| synced.blocks);
            holds(account("journaled blocks"), file.journaled <= durable, || {
                format!("expected at most the {durable} synced ones, found {}", file.journaled)
            })?;
        }
        // Only the last block of a closed file is padded.
        let (bytes, blocks) = (file.size, u64::from(file.blocks()));
        let page = PAGE_SIZE as u64;
        let fits = bytes + page > blocks * page && bytes < (blocks + 1) * page;
        holds(account("size"), fits, || {
            format!("expected {blocks} blocks and a tail, found {bytes} bytes")
        })
    }

    /// Checks that extents lie in the written part of zones and do not overlap.
    fn audit_places(&self) -> Result<()> {
        let zones = &self.0.zones;
        let mut taken: BTreeMap<BlockAddr, (u32, FileId)> = BTreeMap::new();
        for (id, file) in self.0.files.borrow().iter() {
            for (at, blocks) in file.extents.iter().flat_map(Extent::places) {
                let account = format!("place of blocks of file {}", id.0);
                let geometry = zones.writer.geometry();
                let located = at.locate(geometry);
                holds(&account, located.is_some(), || format!("found {at}, beyond the drive"))?;
                let Some((zone, offset)) = located else { continue };
                let written = zones.written(zone);
                holds(&account, offset + blocks <= written, || {
                    format!(
                        "expected in the {written} written blocks of zone {zone}, found {blocks} \
                         from {offset} on"
                    )
                })?;
                let last = at.plus(blocks - 1);
                let before = taken.range(..=last).next_back();
                if let Some((start, (count, other))) = before {
                    holds(&account, start.plus(*count) <= at, || {
                        format!("found {blocks} at {at}, where file {} has {count}", other.0)
                    })?;
                }
                taken.insert(at, (blocks, *id));
            }
        }
        Ok(())
    }

    /// Compares the writes under way with the numbers of writes begun and ended, and with the pages
    /// kept for reading.
    fn audit_flights(&self) -> Result<()> {
        let inner = &*self.0;
        let flying = inner.flights.audit()?;
        for (id, file) in inner.files.borrow().iter() {
            let account = format!("pages in flight of file {}", id.0);
            let is_written = file.flying.is_empty() || flying.binary_search(id).is_ok();
            holds(&account, is_written, || {
                format!("found {}, but no write is under way", file.flying.len())
            })?;
            let placed = |block: &u32| file.extent_of(*block).is_some_and(|e| !e.is_hole());
            let lost = file.flying.keys().find(|block| !placed(block));
            equal(&account, None, lost)?;
        }
        Ok(())
    }

    /// Runs the audit, in debug builds only.
    ///
    /// # Errors
    /// The errors of [`Store::audit`].
    pub(crate) fn debug_audit(&self) -> Result<()> {
        if cfg!(debug_assertions) { self.audit() } else { Ok(()) }
    }
}

#[cfg(test)]
pub(crate) mod tests;
