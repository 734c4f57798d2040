//! Cleaning: valid blocks are moved out of segments, and empty segments are reset.
//!
//! A victim is an ended segment with few valid blocks, or an old one (cost-benefit), so that cold
//! blocks gather in segments of their own. Its valid blocks are read, checked and written through
//! the internal stream with their sequence numbers; the map is changed for each block that was not
//! overwritten in the meantime. A segment without valid blocks is reset after a flush, which makes
//! durable the blocks that replaced the segment's own.

use crate::format::{NONE, block};
use crate::map::Map;
use crate::meta::identity::Identity;
use crate::read::place::Loud;
use crate::read::place::Wanted;
use crate::segment::{Segment, SegmentState};
use crate::shape::internal_chunk;
use crate::space::Lane;
use crate::volume::Volume;
use furrow_array::drive::Drive;
use furrow_array::event::Event;
use furrow_array::member::MemberState;
use furrow_log::pool::{DurableSnapshot, Snapshot};
use furrow_log::victim::{Candidate, Policy, Worth, choose};
use furrow_rt::Boxed;
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneState};
use std::rc::Rc;

impl Volume {
    /// Starts the volume's background tasks.
    pub(crate) fn serve(&self) {
        self.0.life.serves.set(true);
        self.start_rebuild();
        self.serve_space(Lane::Clean);
    }

    /// An ended segment in which a member in service has lost its zone. The segment has less
    /// redundancy than it should, so its valid blocks have to be moved.
    pub(crate) fn unprotected(&self) -> Option<u32> {
        let lost = |segment: &Segment| {
            let mut zones = segment.zones.iter().zip(self.0.array.members());
            zones.any(|(zone, member)| zone.is_none() && member.state() == MemberState::Active)
        };
        let segments = self.0.segments.borrow();
        let counts =
            |s: &Segment| is_ended(s) && !self.is_stuck(s) && s.valid + s.leaves > 0 && lost(s);
        // The segment with the fewest valid blocks comes first, since little space may be left to
        // move them.
        let those = (0u32..).zip(&*segments).filter(|(_, segment)| counts(segment));
        those.min_by_key(|(_, s)| s.valid + s.leaves).map(|(slot, _)| slot)
    }

    /// After a failed read: asks the drive, in the background, for the state of the zone. If the
    /// zone is offline, its segment continues without it.
    pub(crate) fn note_lost_zone(&self, index: u32, zone: ZoneId) {
        let Some(drive) = self.0.array.member(index).drive() else { return };
        let volume = self.clone();
        self.0.rt.spawn_detached(async move {
            let reports = drive.device().report(zone, 1).await.unwrap_or_default();
            if reports.first().is_some_and(|report| report.state == ZoneState::Offline) {
                volume.zone_lost(index, zone, &drive);
            }
        });
    }

    /// Takes `zone` of `drive`, which is member `index`, out of its segment: the zone is offline.
    fn zone_lost(&self, index: u32, zone: ZoneId, drive: &Rc<Drive>) {
        let mut segments = self.0.segments.borrow_mut();
        let holds = |s: &&mut Segment| is_ended(s) && s.zones[index as usize] == Some(zone);
        let Some(segment) = segments.iter_mut().find(holds) else { return };
        segment.zones[index as usize] = None;
        drop(segments);
        self.tell(Event::ZoneLost { member: index, zone: zone.0 });
        drive.note_loose(zone);
        // An offline zone cannot be reset, so this takes it out of the pool.
        let drive = drive.clone();
        self.0.rt.spawn_detached(async move { drop(drive.empty(zone).await) });
        self.0.wanted.notify_all();
    }

    pub(crate) async fn clean_victim(&self, slot: u32) -> bool {
        self.0.segments.borrow_mut()[slot as usize].pinned = true;
        let result = self.clean(slot).await;
        self.0.segments.borrow_mut()[slot as usize].pinned = false;
        self.0.wanted.notify_all();
        match result {
            Ok(()) => self.space_gained(),
            Err(error) if error.kind() == ErrorKind::NoSpace => return false,
            // If a drive vanished during cleaning, the segment itself may be fine.
            Err(_) if self.notice_gone() => {}
            Err(_) => {
                let now = self.0.space.changes();
                self.0.segments.borrow_mut()[slot as usize].stuck = now;
            }
        }
        self.failed().is_none()
    }

    /// Whether an ended segment is kept only because the newest checkpoint names mapping blocks in
    /// the segment, or lacks the segment's trims: the next checkpoint frees such a segment.
    pub(crate) fn held_by_checkpoint(&self) -> bool {
        let mut replaced = std::collections::BTreeMap::new();
        for (_, number) in self.0.checkpoint.replaced().iter() {
            *replaced.entry(self.0.shape.slot(*number)).or_insert(0) += 1;
        }
        (0..).zip(&*self.0.segments.borrow()).any(|(slot, segment)| {
            let leaves = replaced.get(&slot).copied().unwrap_or(0) == segment.leaves;
            let held = segment.leaves > 0 || segment.needed > 0;
            is_ended(segment) && segment.valid == 0 && held && leaves
        })
    }

    /// The ended segment that is cleaned next; see [`choose_victim`].
    pub(crate) fn victim(&self) -> Option<u32> {
        let (whole, next) = (self.0.shape.held, self.0.segments.next());
        let segments = self.0.segments.borrow();
        let ended = (0..).zip(&*segments).filter(|(_, s)| is_ended(s) && !self.is_stuck(s));
        let candidates = ended.map(|(slot, segment)| Candidate {
            id: slot,
            valid: segment.valid + segment.leaves,
            capacity: whole,
            // The age is the number of segments begun since: that needs no clock, and survives
            // a restart.
            age: next.saturating_sub(segment.sequence),
            ..Candidate::default()
        });
        choose_victim(&candidates.collect::<Vec<_>>(), whole, self.0.space.is_wanted())
    }

    /// Moves the valid blocks out of a segment.
    ///
    /// # Errors
    /// The error of a valid block that cannot be read, or of a failed write; `Corrupt` if valid
    /// blocks of the segment were not found.
    pub(crate) async fn clean(&self, slot: u32) -> Result<()> {
        let sequence = self.0.segments.borrow()[slot as usize].sequence;
        let mut identities = self.identities(slot).await;
        // Sorted by address, all blocks that one mapping block maps come together, so each mapping
        // block is fetched once.
        identities.sort_by_key(|(_, identity)| identity.lba);
        let (mut batch, most, mut unread) = (Vec::new(), self.batch(), None);
        for (number, identity) in identities {
            if identity.kind == block::DATA && identity.lba < self.blocks() {
                self.fetch(Map::leaf(identity.lba), false).await?;
                if self.0.paging.map().get(identity.lba) == number {
                    batch.push((number, (block::DATA, identity.lba), identity));
                }
            }
            if batch.len() == most {
                unread = self.move_batch(std::mem::take(&mut batch)).await?.or(unread);
            }
        }
        unread = self.move_batch(batch).await?.or(unread);
        // Mapping blocks are taken from the root, which names them even if their metadata
        // is damaged.
        for leaf in self.leaves_in(slot, sequence) {
            self.fetch(leaf, false).await?;
            // The next checkpoint writes the mapping block elsewhere.
            self.0.paging.map_mut().mark_dirty(leaf);
        }
        let left = || {
            let segment = &self.0.segments.borrow()[slot as usize];
            if segment.sequence == sequence { (segment.valid, segment.leaves) } else { (0, 0) }
        };
        if left().0 == 0 && left().1 > 0 {
            self.checkpoint(false).await?;
        }
        // Cleaning the segment again would not empty it: its unreadable block stays.
        if let Some(error) = unread {
            return Err(error);
        }
        if let (blocks @ 1.., _) | (0, blocks @ 1..) = left() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("segment {slot}: {blocks} valid blocks were not found in it"),
            ));
        }
        self.count(|counters| counters.cleaned += 1);
        Ok(())
    }

    /// The mapping blocks whose newest written version is in segment `sequence`; none if the slot
    /// holds another segment by now.
    fn leaves_in(&self, slot: u32, sequence: u64) -> Vec<u32> {
        let segment = &self.0.segments.borrow()[slot as usize];
        if segment.leaves == 0 || segment.sequence != sequence {
            return Vec::new();
        }
        let map = self.0.paging.map();
        let named = (0u32..).zip(map.root()).filter(|(_, number)| **number != NONE);
        named.filter(|(_, n)| self.0.shape.slot(**n) == slot).map(|(leaf, _)| leaf).collect()
    }

    /// Number of blocks that cleaning moves together: a whole number of stripes, since zeros fill
    /// up the last stripe of a batch.
    pub(crate) fn batch(&self) -> usize {
        let data = internal_chunk(&self.0.config) * self.0.shape.placement.k;
        let stripes = self.0.shape.meta.batch(data);
        (stripes * data) as usize
    }

    /// Moves the blocks that can be read. Returns the error of the reads that failed, if any.
    async fn move_batch(&self, batch: Vec<(u32, Wanted, Identity)>) -> Result<Option<Error>> {
        let wanted: Vec<_> = batch.iter().map(|(number, wanted, _)| (*number, *wanted)).collect();
        let (mut moves, mut unread) = (Vec::new(), None);
        match self.read_numbers(&wanted, Loud::Yes).await {
            Ok(pages) => {
                let whole = batch.into_iter().zip(pages);
                moves.extend(whole.map(|((number, _, identity), page)| (identity, page, number)));
            }
            // A block that cannot be read stays in its segment; the others are read and moved one
            // by one.
            Err(_) => {
                for (number, wanted, identity) in batch {
                    match self.read_numbers(&[(number, wanted)], Loud::No).await {
                        Ok(pages) => {
                            moves.extend(pages.into_iter().map(|page| (identity, page, number)));
                        }
                        Err(error) => unread = Some(error),
                    }
                }
            }
        }
        let moves = moves.into_iter().map(|(identity, page, n)| (identity, page, self.origin(n)));
        let moves: Vec<_> = moves.collect();
        let count = moves.len() as u64;
        self.move_blocks(moves).await?;
        self.count(|counters| counters.moved += count);
        Ok(unread)
    }

    /// Resets the segments without valid blocks. False if the drives could not be flushed.
    pub(crate) async fn release_empty(&self) -> bool {
        let empty: Vec<u32> = {
            let segments = self.0.segments.borrow();
            let of = segments.iter().enumerate().filter(|(_, segment)| is_empty(segment));
            of.map(|(slot, _)| slot as u32).collect()
        };
        let snapshots = self.snapshots();
        empty.iter().for_each(|slot| self.note_empty(*slot, &snapshots));
        let Ok(durable) = self.make_durable(snapshots).await else { return false };
        let durable = Rc::new(durable);
        // Each segment is reset by a task of its own, because a reader's pin may delay the reset of
        // one zone.
        let mut flights = Vec::new();
        let early = u64::from(self.0.space.recovery.borrow().is_some());
        for slot in empty {
            // Another task may have pinned the segment in the meantime.
            if is_empty(&self.0.segments.borrow()[slot as usize]) {
                self.note_recovered(|recovered| recovered.early += early);
                self.0.segments.borrow_mut()[slot as usize].state = SegmentState::Releasing;
                let (volume, durable) = (self.clone(), durable.clone());
                flights.push(self.0.rt.spawn(async move { volume.release(slot, &durable).await }));
            }
        }
        for flight in flights {
            flight.await;
        }
        true
    }

    /// Notes in the snapshots that the zones of a segment hold nothing valid.
    fn note_empty(&self, slot: u32, snapshots: &[Option<Snapshot>]) {
        let segment = &self.0.segments.borrow()[slot as usize];
        for ((zone, member), snapshot) in
            segment.zones.iter().zip(self.0.array.members()).zip(snapshots)
        {
            let (Some(zone), Some(drive), Some(snapshot)) = (zone, member.drive(), snapshot) else {
                continue;
            };
            drive.zones().owner(*zone).into_iter().for_each(|owner| snapshot.note_empty(owner));
        }
    }

    /// Resets the zones of a segment. `durable` has, for each member, the snapshot that shows the
    /// segment's zone on that member empty.
    async fn release(&self, slot: u32, durable: &[Option<DurableSnapshot>]) {
        let zones = self.0.segments.borrow()[slot as usize].zones.clone();
        let mut flights = Vec::new();
        for (index, zone) in zones.iter().enumerate() {
            let drive = self.0.array.members()[index].drive();
            let (Some(zone), Some(drive), volume) = (*zone, drive, self.clone()) else { continue };
            let Some(durable) = durable[index].clone() else { continue };
            drive.note_loose(zone);
            flights.push(self.0.rt.spawn(async move {
                // The zone belongs to the segment until no read uses the zone. Then the zone leaves
                // the segment, even if the zone cannot be reset.
                drive.zones().unpinned(&[zone]).await;
                let emptied = drive.empty_by(zone, &durable).await;
                // Another segment may begin in this zone while other zones of this segment are
                // being reset.
                volume.0.segments.borrow_mut()[slot as usize].zones[index] = None;
                emptied
            }));
        }
        let mut gone = false;
        for flight in flights {
            gone |= flight.await.is_err();
        }
        let drives = self.0.shape.placement.n;
        self.0.segments.borrow_mut()[slot as usize] = Segment::free(drives);
        if gone {
            self.notice_gone();
        }
        self.space_made();
    }

    /// Stops the volume cleanly: waits for pending writes, and writes a checkpoint whose record
    /// says that the stop was clean.
    ///
    /// # Errors
    /// The errors of [`Volume::checkpoint`].
    #[inline(never)]
    pub fn stop(&self) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.begin_stop();
            for stream in &self.0.streams {
                self.close_stripe(stream);
            }
            self.0.wanted.notify_all();
            self.checkpoint(true).await?;
            // The second record says that each member has the first, so an image of a member from
            // before the stop is recognized as stale.
            self.write_state(true).await;
            while !self.0.segments.ending().is_empty() {
                self.0.segments.idle().await;
            }
            self.end_stop();
            self.0.wanted.notify_all();
            Ok(())
        })
    }
}

/// Chooses the segment with the most gain for its cost, weighed by age, among those with more than
/// a quarter of garbage. Segments with less garbage are left as they are, since their blocks may
/// still be overwritten. If all segments have less garbage and a writer waits for space, chooses
/// the segment with the fewest valid blocks.
fn choose_victim(candidates: &[Candidate], whole: u32, wanted: bool) -> Option<u32> {
    let best = |policy, most: u32| {
        let worth = Worth { garbage_permille: 0, valid_max: most.checked_sub(1)? };
        choose(candidates, &[], policy, worth).map(|best| candidates[best].id)
    };
    let worthy = best(Policy::CostBenefit, whole - whole / 4);
    worthy.or_else(|| if wanted { best(Policy::Greedy, whole) } else { None })
}

/// Whether an ended segment has no valid blocks, and no durable state needs a block in it.
pub(crate) fn is_empty(segment: &Segment) -> bool {
    let held = segment.leaves > 0 || segment.needed > 0 || segment.fallback > 0;
    is_ended(segment) && segment.valid == 0 && !held
}

/// Whether a segment has ended and no task has pinned it.
fn is_ended(segment: &Segment) -> bool {
    matches!(segment.state, SegmentState::Sealed | SegmentState::Truncated) && !segment.pinned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, rigged_on, still};

    fn segment(id: u32, valid: u32, age: u64) -> Candidate {
        Candidate { id, valid, capacity: 100, age, ..Candidate::default() }
    }

    /// The garbage of a young segment may still grow, the garbage of an old segment does not. So
    /// the old segment is cleaned first, even if it has somewhat less garbage.
    #[test]
    fn an_old_segment_is_cleaned_before_a_young_one_with_somewhat_more_garbage() {
        let all = [segment(1, 50, 2), segment(2, 60, 20)];
        assert_eq!(choose_victim(&all, 100, true), Some(2));
        assert_eq!(choose_victim(&all[..1], 100, false), Some(1));
    }

    /// A segment with at most a quarter of garbage is cleaned only for a waiting writer, however
    /// old the segment is. Of such segments, the one with the most garbage is cleaned.
    #[test]
    fn a_small_gain_is_taken_only_while_a_writer_waits() {
        let all = [segment(1, 99, 1_000_000), segment(2, 80, 1), segment(3, 100, 5)];
        assert_eq!(choose_victim(&all, 100, false), None);
        assert_eq!(choose_victim(&all, 100, true), Some(2));
        assert_eq!(choose_victim(&all[2..], 100, true), None);
        let all = [segment(1, 99, 1_000_000), segment(2, 70, 1)];
        assert_eq!(choose_victim(&all, 100, true), Some(2));
    }

    /// Cleaning writes a mapping block elsewhere even if none of its entries has changed.
    #[test]
    fn a_segment_is_cleaned_of_a_mapping_block_that_has_not_changed() {
        rigged_on(40, &still(), async move |mut rig: Rig| {
            let volume = rig.volume.clone();
            let slot = |number: u32| volume.0.shape.slot(number);
            let first = u64::from(crate::format::MAPPED);
            rig.write(first, 1).await;
            let data = slot(volume.0.paging.map().get(first));
            // The mapping block, then other blocks, go to segments after the one of the data.
            for block in 0..100 {
                rig.write(block, 1).await;
            }
            volume.checkpoint(false).await.unwrap();
            let leaf = Map::leaf(first);
            let victim = slot(volume.0.paging.map().root_of(leaf));
            assert_ne!(victim, data);
            let ended = || is_ended(&volume.0.segments.borrow()[victim as usize]);
            for block in 0..100 {
                rig.write(block, 1).await;
                volume.checkpoint(false).await.unwrap();
            }
            rig.rt.sleep(10_000_000).await;
            assert!(ended());
            volume.clean(victim).await.unwrap();
            assert_ne!(slot(volume.0.paging.map().root_of(leaf)), victim);
            volume.audit().unwrap();
        });
    }
}
