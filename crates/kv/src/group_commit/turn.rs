//! The turn of the record ring: when a group commit no longer fits into the present half, another
//! half begins with a snapshot of all names and files.

use super::{all_written, blocks_of};
use crate::entries::Bodies;
use crate::extent::FileId;
use crate::file::Synced;
use crate::format::{flag, kind};
use crate::store::Store;
use furrow_log::address::{blocks_begun, blocks_per_zone, blocks_written};
use furrow_log::budget::Class;
use furrow_log::pool::DurableSnapshot;
use furrow_log::record;
use furrow_log::ring::empty_zone;
use furrow_log::writer::{Failure, Kind, ZoneWrite};
use furrow_policy::StoreDefect;
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneReport};
use std::collections::BTreeSet;

/// Divisor: the ring turns when a group commit would leave less than 1/16 of a half. What is left
/// then holds the records of the group commit that turns the ring.
const LEFT_SHARE: u32 = 16;
/// Minimum number of blocks that a group commit leaves in a half, for a short record and the record
/// that announces the turn.
const LEFT_MIN: u32 = 3;
impl Store {
    /// Whether the records fit into the half of the ring and leave space for another group commit.
    /// Returns false too if the ring has to turn for another reason.
    pub(super) fn fits(&self, bodies: &[Vec<u8>]) -> bool {
        let forgotten = self.0.forgotten.borrow();
        if forgotten.wanted && !forgotten.told {
            // The superblock must announce the holes, so the ring turns.
            return false;
        }
        if self.0.commits.take_turn_wanted() {
            return false;
        }
        let left = self.0.ring.borrow().half_blocks() / LEFT_SHARE;
        self.has_room(bodies, left.max(LEFT_MIN))
    }

    /// Whether the half of the ring has space for the records and for one more of `more` blocks.
    fn has_room(&self, bodies: &[Vec<u8>], more: u32) -> bool {
        self.0.ring.borrow().has_space(blocks_of(bodies), more)
    }

    /// Ends the half of the ring because a zone of it failed. `counts` says whether this half holds
    /// the durable state.
    ///
    /// # Errors
    /// The error of the write, unless a zone of the ring failed and the drive still answers; the
    /// drive's error if it cannot finish the zone.
    pub(super) async fn end_half(&self, error: &Error, counts: bool) -> Result<()> {
        let writer = &self.0.zones.writer;
        let failed = |failure: Failure| failure.of_zone && self.0.ring_zones.has(failure.zone);
        if error.is_gone() || !writer.failures().into_iter().any(failed) {
            return Err(error.clone());
        }
        let begun = self.0.ring.borrow().begun();
        for zone in &begun {
            writer.close(*zone).await?;
        }
        begun.into_iter().for_each(|zone| writer.forget(zone));
        self.0.ring.borrow_mut().end_half(counts);
        self.count(|counters| counters.ring_failures += 1);
        Ok(())
    }

    /// Continues in another half of the ring, which begins with a snapshot. If the group commit's
    /// records fit, they also go to the present half. Unless an extent moves meanwhile, the present
    /// half then adds up to the same state as the snapshot.
    pub(super) async fn turn(
        &self,
        number: u64,
        wanted: &mut BTreeSet<FileId>,
        views: Vec<(FileId, Synced)>,
        records: Vec<Vec<u8>>,
    ) -> Result<Vec<(FileId, Synced)>> {
        let inner = &*self.0;
        let fits = !records.is_empty() && self.has_room(&records, 1);
        let recorded = if fits { self.dispatch(kind::ENTRIES, &records)? } else { Vec::new() };
        let moved = inner.commits.moves();
        let (bodies, views) = loop {
            let (moves, mark) = (inner.commits.moves(), inner.flights.next());
            // A file that was truncated since its sync no longer has the synced content, so its
            // present state is recorded.
            wanted.append(&mut inner.commits.take_included());
            let mut recorded = Bodies::new(inner.record_bytes());
            let views = self.view(wanted, &mut recorded, views.clone());
            inner.names.borrow_mut().changes.clear();
            inner.zones.take_untold();
            let bodies = inner.snapshot(&views, number);
            self.answered(mark, None).await?;
            if inner.commits.moves() == moves {
                break (bodies, views);
            }
        };
        let same = fits && inner.commits.moves() == moved;
        let mark = match all_written(recorded).await {
            Ok(()) => self.mark_turn(same).await,
            failed => failed,
        };
        let marked = match mark {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NoSpace => false,
            Err(error) => {
                self.end_half(&error, true).await?;
                false
            }
        };
        self.flush_content().await?;
        self.begin_half(bodies, marked).await?;
        self.debug_audit()?;
        Ok(views)
    }

    /// Writes the record that announces the turn. `same` says whether the records up to this one
    /// add up to the snapshot at the beginning of the next half. The flush that makes the next
    /// half count also makes this record durable. So the record tells recovery that a newer half
    /// may count.
    async fn mark_turn(&self, same: bool) -> Result<()> {
        if self.0.ring.borrow().half().is_empty() {
            return Err(Error::new(ErrorKind::NoSpace, "no half is written"));
        }
        self.send(kind::ENTRIES, self.mark(same)).await
    }

    fn mark(&self, same: bool) -> Vec<Vec<u8>> {
        let flags = if same { flag::TURNS | flag::SAME } else { flag::TURNS };
        let next_file = self.0.names.borrow().next_file;
        Bodies::new(self.0.record_bytes()).finish((0, flags), self.0.commits.round(), next_file)
    }

    /// Does what [`Store::mark_turn`] does, but at the end of the half that was found when the
    /// store was opened; `last` is the zone of that half that was written last. False if no record
    /// can follow there.
    pub(crate) async fn mark_found(&self, last: &ZoneReport, same: bool) -> Result<bool> {
        let writer = &self.0.zones.writer;
        let geometry = writer.geometry();
        let end = blocks_written(last, geometry);
        let even = end == blocks_begun(last, geometry);
        if !last.state.is_active() || !even || end == blocks_per_zone(geometry) {
            return Ok(false);
        }
        writer.open_reported(last);
        for body in self.mark(same) {
            let id = self.record_id(kind::ENTRIES);
            let pages = record::seal_after(&id, self.0.commits.durable(), &body, &self.0.pages);
            let write = ZoneWrite::pages(last.zone, Kind::Checkpoint, pages);
            if let Err(error) = writer.submit(write).await {
                if error.is_gone() {
                    return Err(error);
                }
                writer.close(last.zone).await?;
                writer.forget(last.zone);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes superblock and snapshot to a new half of the ring. Once they are durable, empties the
    /// old halves. If a zone fails, tries another half. `marked`: the present half ends with the
    /// record that announces the turn, so the half is kept until the next turn.
    pub(crate) async fn begin_half(
        &self,
        bodies: Vec<Vec<u8>>,
        marked: bool,
    ) -> Result<DurableSnapshot> {
        let zones = &self.0.zones;
        if let Some(before) = zones.pool.durable() {
            let kept = self.0.ring.borrow().kept();
            self.empty(kept, &before).await?;
        }
        let mut present = self.0.ring.borrow().old();
        present.extend(self.0.ring.borrow().begun());
        let snapshot = zones.pool.snapshot();
        let empty = zones.full_zones().into_iter().filter(|zone| zones.valid(*zone) == 0);
        empty.filter_map(|zone| zones.pool.owner(zone)).for_each(|id| snapshot.note_empty(id));
        let holes = loop {
            match self.write_half(&bodies).await {
                Ok(holes) => break holes,
                Err(error) => self.end_half(&error, false).await?,
            }
        };
        let durable = self.flush(snapshot).await?;
        if marked {
            self.0.ring.borrow_mut().keep(present);
        }
        self.empty_old(&durable).await?;
        self.0.forgotten.borrow_mut().told = holes;
        Ok(durable)
    }

    /// Empties the zones of earlier halves of the ring, except those that are kept.
    async fn empty_old(&self, durable: &DurableSnapshot) -> Result<()> {
        let old = self.0.ring.borrow().old();
        self.empty(old, durable).await
    }

    async fn empty(&self, old: Vec<ZoneId>, durable: &DurableSnapshot) -> Result<()> {
        let inner = &*self.0;
        let zones = &inner.zones;
        for zone in old {
            let empty = empty_zone(&zones.pool, &**zones.writer.device(), zone, durable).await?;
            inner.ring.borrow_mut().emptied(zone, empty);
        }
        Ok(())
    }

    /// Writes superblock and snapshot to the next half. Returns whether the superblock
    /// announces holes.
    async fn write_half(&self, bodies: &[Vec<u8>]) -> Result<bool> {
        let inner = &*self.0;
        let permit = inner.zones.budget.acquire(Class::Metadata, 1).await;
        let (total, longest) = blocks_of(bodies);
        inner.ring.borrow_mut().turn(Some(permit), (total + 1, longest))?;
        if self.has(StoreDefect::EarlyRingReset) {
            let before = inner.zones.pool.snapshot().flushed().await?;
            self.empty_old(&before).await?;
        }
        inner.commits.begin_turn();
        self.count(|counters| counters.turns += 1);
        let holes = inner.forgotten.borrow().wanted;
        self.send(kind::SUPERBLOCK, vec![inner.superblock()]).await?;
        self.send(kind::ENTRIES, bodies.to_vec()).await?;
        Ok(holes)
    }
}
