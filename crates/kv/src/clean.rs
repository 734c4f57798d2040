//! Zone cleaning, and relocation of extents: by cleaning, or because a zone failed.
//!
//! Only space that cleaning alone can free counts as reclaimable: a writer does not wait for a
//! program to remove files.

mod failed_zone;

use crate::dead_ranges::join_holes;
use crate::extent::{Extent, FileId, SUMS_INLINE, Sums};
use crate::file::Block;
use crate::file_kind::Claim;
use crate::format::EXTENT_MAX;
use crate::store::Store;
use crate::zone_allocator::{Policy, RESERVE, SpaceToClean, Want, garbage_left};
use furrow_log::survey::{has_vanished, patiently};
use furrow_rt::Pages;
use furrow_zone::{ErrorKind, Result, ZoneId};
use std::collections::BTreeSet;

/// Maximum number of blocks that are read and checked for moving before other tasks run.
const MOVED_AT_ONCE: u32 = 64;

/// Blocks `first..end` of an extent.
struct Run {
    first: u32,
    end: u32,
    /// The blocks' content; `None` if the user declared them dead.
    pages: Option<Pages>,
}

impl Store {
    /// Starts the background task that cleans.
    pub(crate) fn start_cleaning(&self) {
        let store = self.clone();
        self.0.rt.spawn_detached(async move {
            loop {
                let wanted = store.0.zones.wanted.wait();
                if store.is_stopping() || store.check_alive().is_err() {
                    return;
                }
                match store.make_space().await {
                    Ok(true) => store.0.zones.freed.notify_all(),
                    Ok(false) => {
                        // Waiting writers learn here that nothing can be freed. While a reset
                        // is under way, its end wakes them instead: before that they would
                        // only ask again.
                        if !store.0.zones.is_releasing() {
                            store.0.zones.freed.notify_all();
                        }
                        wanted.await;
                    }
                    Err(error) => drop(store.die(&error)),
                }
            }
        });
    }

    /// Makes space if some is wanted; false if there was nothing to do.
    async fn make_space(&self) -> Result<bool> {
        let zones = &self.0.zones;
        let empty: Vec<ZoneId> = zones.emptied();
        if !empty.is_empty() {
            let shown = |zone: &ZoneId| zones.is_shown_empty(*zone);
            if !empty.iter().all(shown) {
                zones.look_at(empty.iter().copied().filter(|zone| !shown(zone)));
                self.join_group_commit(None).await?;
            }
            let Some(durable) = zones.pool.durable() else { return Ok(false) };
            for zone in empty {
                zones.release(zone, &durable).await?;
            }
            return Ok(true);
        }
        let waited_for = zones.freed.waiting() > 0;
        if !waited_for && !self.is_low() {
            return Ok(false);
        }
        // Cleaning takes a zone before it gives one back. If no zone beyond the reserve is free, a
        // group commit first frees the zones that it empties. A store without reserves for claims
        // is in that state whenever it is full: there a commit for each removal would cost more
        // than it gains.
        let none_to_spare = zones.has_claims() && zones.pool.free_count() <= RESERVE;
        if none_to_spare && self.0.leaving.has_retired() {
            self.join_group_commit(None).await?;
            return Ok(true);
        }
        if let Some(victim) = self.victim() {
            self.clean_zone(victim).await?;
            return Ok(true);
        }
        // The end of a group commit may leave zones empty, or zones worth cleaning.
        if waited_for && (self.0.leaving.has_retired() || self.0.commits.is_running()) {
            self.join_group_commit(None).await?;
            return Ok(true);
        }
        Ok(false)
    }

    fn is_low(&self) -> bool {
        let pool = &self.0.zones.pool;
        let share = u64::from(pool.free_count()) * 100;
        share < u64::from(self.0.options.clean_below) * u64::from(pool.total())
            || pool.free_count() <= self.0.zones.kept(Claim::Others)
    }

    /// Returns the zone most worth cleaning, if cleaning it frees more space than it takes.
    fn victim(&self) -> Option<ZoneId> {
        let zones = &self.0.zones;
        if self.ring_is_full() {
            return None;
        }
        let mut unfit = BTreeSet::new();
        loop {
            let (victim, moved) = match zones.policy() {
                Policy::Generations => self.victim_by_benefit(&unfit)?,
                _ => zones.victim(&unfit).map(|zone| (zone, zones.valid(zone)))?,
            };
            let garbage = zones.less("garbage of a zone", zones.capacity(), moved);
            if garbage <= garbage_left(zones.capacity()) {
                return None;
            }
            if zones.may_be_cleaned(victim, self.space_to_clean(victim)) {
                return Some(victim);
            }
            unfit.insert(victim);
        }
    }

    /// Returns the number of blocks that cleaning the zone moves, and the space in the free zones
    /// and in the zones open for cleaning. Cleaning moves a whole extent even if only the extent's
    /// checksums lie in the zone. So the extents to move may together be larger than the zone. This
    /// happens under policies that keep a zone for each open file.
    fn space_to_clean(&self, victim: ZoneId) -> SpaceToClean {
        let zones = &self.0.zones;
        let files = self.0.files.borrow();
        let of_files = zones.files_in(victim).into_iter().filter_map(|id| files.get(&id));
        let moved = of_files.flat_map(|file| &file.extents).filter(|e| self.is_in(victim, e));
        // Only the blocks of the extents count, because checksums can stay in the file's entry.
        let to_move = moved.map(|extent| u64::from(extent.blocks)).sum();
        SpaceToClean { to_move, space: zones.space_for_cleaning() }
    }

    pub(crate) fn may_clean(&self) -> bool {
        // Zones that are being reset, or will be after the next group commit, are space as well.
        self.victim().is_some()
            || self.0.leaving.has_retired()
            || !self.0.zones.emptied().is_empty()
            || self.0.zones.is_releasing()
            || self.0.commits.is_running()
    }

    /// Starts cleaning before space runs short.
    pub(crate) fn clean_if_low(&self) {
        if self.is_low() {
            self.0.zones.wanted.notify_all();
        }
    }

    /// Empties a zone, unless a block in it cannot be read, or space runs out.
    pub(crate) async fn clean_zone(&self, victim: ZoneId) -> Result<()> {
        let space = self.space_to_clean(victim);
        for id in self.0.zones.files_in(victim) {
            while let Some(extent) = self.extent_in(victim, id) {
                let read = async || self.runs_with_pages(id, &extent).await;
                match patiently(&self.0.rt, &**self.0.zones.writer.device(), read).await {
                    Ok(runs) => match self.move_runs(id, &extent, runs).await {
                        // Writers took the space meanwhile.
                        Err(error) if error.kind() == ErrorKind::NoSpace => {
                            self.0.zones.set_unfinished(victim, space);
                            return self.join_group_commit(None).await;
                        }
                        moved => moved?,
                    },
                    Err(error) if has_vanished(&**self.0.zones.writer.device(), &error) => {
                        return Err(error);
                    }
                    // Blocks that cannot be read stay where they are; reads of the file report
                    // them.
                    Err(_) => {
                        self.0.zones.set_uncleanable(victim);
                        self.count(|counters| counters.unreadable += 1);
                        return Ok(());
                    }
                }
            }
        }
        self.join_group_commit(None).await?;
        self.count(|counters| counters.cleaned += 1);
        let durable = self.0.zones.pool.durable();
        match durable {
            Some(durable) => self.0.zones.release(victim, &durable).await,
            None => Ok(()),
        }
    }

    /// Begins to count blocks that cleaning has written and no file refers to yet.
    fn begin_move(&self, id: FileId, extent: &Extent) {
        self.0.leaving.begin_move((self.zone_of(extent.at), id, extent.blocks));
    }

    /// Ends the count of blocks that cleaning has written: a file refers to them now, or they
    /// are retired.
    fn end_move(&self, id: FileId, extent: &Extent) {
        if !extent.is_hole() {
            self.0.leaving.end_move((self.zone_of(extent.at), id, extent.blocks));
        }
    }

    /// Finds an extent of the file that has its blocks or its checksums in the zone.
    fn extent_in(&self, zone: ZoneId, id: FileId) -> Option<Extent> {
        let files = self.0.files.borrow();
        files.get(&id)?.extents.iter().find(|extent| self.is_in(zone, extent)).cloned()
    }

    /// Whether an extent has its blocks or its checksums in the zone.
    fn is_in(&self, zone: ZoneId, extent: &Extent) -> bool {
        let sums = matches!(extent.sums, Sums::At(at) if self.zone_of(at) == zone);
        !extent.is_hole() && (self.zone_of(extent.at) == zone || sums)
    }

    /// Moves an extent, given as its runs. A run of dead blocks gets no new place and becomes
    /// a hole.
    ///
    /// # Errors
    /// `NoSpace`; `Io` if the store died.
    async fn move_runs(&self, id: FileId, extent: &Extent, runs: Vec<Run>) -> Result<()> {
        let want = Want::moved(self.moving_out_of(self.zone_of(extent.at)));
        let mut moved = Vec::new();
        for run in runs {
            match run.pages {
                Some(pages) => {
                    let done = self.move_pages(id, run.first, &pages, want, &mut moved).await;
                    if let Err(error) = done {
                        // The file keeps the extent where it is.
                        moved.iter().for_each(|piece| self.end_move(id, piece));
                        moved.iter().for_each(|piece| self.retire(id, piece));
                        return Err(error);
                    }
                }
                None => moved.push(Extent::hole(run.first, run.end - run.first)),
            }
        }
        let placed = || moved.iter().filter(|piece| !piece.is_hole());
        let copied: u64 = placed().map(|piece| u64::from(piece.blocks)).sum();
        let kind = self.with(id, |file| {
            placed().for_each(|e| self.0.zones.note_blob(self.zone_of(e.at), &file.role));
            file.role.kind
        });
        let kind = kind.unwrap_or_default();
        self.count(|counters| {
            counters.copied += copied;
            counters.copied_of[kind as usize] += copied;
        });
        let replaced = self.replace(id, extent, &moved);
        moved.iter().for_each(|piece| self.end_move(id, piece));
        let Some(before) = replaced else {
            // The file was removed, truncated or linked meanwhile: the moved blocks are not needed.
            moved.iter().for_each(|extent| self.retire(id, extent));
            return Ok(());
        };
        self.retire(id, &before);
        for extent in placed().filter(|extent| extent.blocks > SUMS_INLINE) {
            match self.store_sums(id, extent.first, want).await {
                // Without space, the checksums stay in the file's entry.
                Err(error) if error.kind() == ErrorKind::NoSpace => break,
                stored => stored?,
            }
        }
        Ok(())
    }

    /// Writes blocks of a file, from `first` on, to another zone.
    async fn move_pages(
        &self,
        id: FileId,
        mut first: u32,
        pages: &Pages,
        want: Want,
        moved: &mut Vec<Extent>,
    ) -> Result<()> {
        let mut rest = pages.as_slice();
        while !rest.is_empty() {
            let zone = self.zone_for(want).await?;
            let room = self.0.zones.writer.space_left(zone).min(EXTENT_MAX) as usize;
            let (now, later) = rest.split_at(rest.len().min(room));
            let (piece, written) =
                self.write(id, first, zone, now.iter().cloned().map(Block::of).collect());
            self.begin_move(id, &piece);
            if let Err(error) = written.await {
                self.end_move(id, &piece);
                self.retire(id, &piece);
                self.give_up_zone(zone, &error)?;
                continue;
            }
            moved.push(piece);
            first += now.len() as u32;
            rest = later;
        }
        Ok(())
    }

    /// Replaces an extent by its moved parts, once all of them are written. Returns the old extent
    /// as it is now: its checksums may have been written meanwhile.
    fn replace(&self, id: FileId, extent: &Extent, moved: &[Extent]) -> Option<Extent> {
        let mut files = self.0.files.borrow_mut();
        let file = files.get_mut(&id)?;
        let same = |now: &Extent| now.at == extent.at && now.blocks == extent.blocks;
        let at = file.extents.iter().position(same)?;
        if file.names > 1 && moved.iter().any(Extent::is_hole) {
            return None;
        }
        let before = file.extents.splice(at..=at, moved.iter().cloned()).next();
        file.flying.retain(|block, _| *block < extent.first || *block >= extent.end());
        file.changed_from(extent.first);
        if let Some(first) = join_holes(file) {
            file.changed_from(first);
        }
        self.weigh(file);
        self.0.commits.include(id);
        before
    }

    /// Splits an extent into runs, each with its pages if they may still be read.
    async fn runs_with_pages(&self, id: FileId, extent: &Extent) -> Result<Vec<Run>> {
        // The pins are held to the end: between two reads the file may be removed and
        // its zones reset.
        let pin = |(at, _)| self.0.zones.pool.pin(self.zone_of(at));
        let _pins: Vec<_> = extent.places().map(pin).collect();
        let mut runs = Vec::new();
        for (first, end, live) in self.runs_of(id, extent) {
            let pages = match live {
                true => Some(self.pages_of(id, extent, (first, end)).await?),
                false => None,
            };
            runs.push(Run { first, end, pages });
        }
        Ok(runs)
    }

    /// Returns blocks `first..end` of an extent. Blocks that are still in memory come from there.
    /// The caller pins the extent's zones.
    async fn pages_of(
        &self,
        id: FileId,
        extent: &Extent,
        (first, end): (u32, u32),
    ) -> Result<Pages> {
        let mut pages = Pages::new();
        let mut block = first;
        while block < end {
            let in_memory = |block: u32| {
                let files = self.0.files.borrow();
                files.get(&id).and_then(|file| file.flying.get(&block).cloned())
            };
            if let Some(page) = in_memory(block) {
                pages.push(page);
                block += 1;
                continue;
            }
            let until = end.min(block + MOVED_AT_ONCE);
            let run = (block..until).take_while(|block| in_memory(*block).is_none());
            let count = run.count() as u32;
            let read = self.read_checked(id, extent, block - extent.first, count).await;
            pages.extend(read.map_err(|error| error.at(self.name_of(id)))?);
            block += count;
            // Moving may run on a caller's thread while other callers wait for the engine.
            self.0.rt.give_way().await;
        }
        Ok(pages)
    }
}

#[cfg(test)]
mod tests;
