//! The end of a recovery: what is torn is written anew, a checkpoint says what was found, and what
//! belongs to nothing is reset. Where there is no room for it, it waits until there is.

use crate::format::block;
use crate::meta::Identity;
use crate::stream::Origin;
use crate::volume::{Canary, Volume};
use furrow_log::pool::ReleaseProof;
use furrow_rt::Page;
use furrow_zone::{Result, ZoneId, ZoneReport, ZoneState};
use std::collections::{BTreeMap, BTreeSet};

/// A block that is written at another place, and where it was.
type Moved = (Identity, Page, Origin);

/// What a recovery met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Zones that were closed but active.
    pub closed: u64,
    /// Zones that could only be read.
    pub read_only: u64,
    /// Zones that were gone with what they held.
    pub offline: u64,
    /// Footers of which only a part had been written.
    pub torn_footers: u64,
    /// Blocks of stripes that counted and lacked a chunk.
    pub torn_blocks: u64,
    /// Zones that a rebuild had not come to the end of.
    pub unbuilt: u64,
    /// Zones that members had at the checkpoint's cut, and do not have any more.
    pub lacking: u64,
    /// Open segments that it went on with though a member that is being rebuilt has no zone there.
    pub narrow: u64,
    /// Stripes that may have counted and cannot be had, whose loss was accepted.
    pub undecided: u64,
    /// Segments, and zones of none, that were reset before its checkpoint, to have room for what it
    /// writes.
    pub early: u64,
}

/// How far a recovery has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The map is being changed: what counts in segments is not known.
    Applying,
    /// Stripes that lack a chunk are being written anew.
    Healing,
    /// They are, and a checkpoint is next.
    Healed,
}

/// What recovery found, and does before anything is reset.
pub(crate) struct Unsettled {
    /// Blocks of stripes that count but lack a chunk.
    pub(crate) torn: Vec<u32>,
    /// Zones that hold something and belong to nothing.
    pub(crate) strays: Vec<(u32, ZoneId)>,
    /// Slots of older blocks, by the number of the block that lacks a chunk and took their place.
    older: BTreeMap<u32, Vec<u32>>,
    /// Slots of blocks that were taken away by trims whose records alone lack a chunk.
    trimmed: Vec<u32>,
    pub(crate) stage: Stage,
    /// What is left to do lacks room: what is empty may be reset for it, as at any other time.
    pub(crate) starved: bool,
}

impl Unsettled {
    /// At the start.
    pub(crate) fn new(torn: Vec<u32>, strays: Vec<(u32, ZoneId)>) -> Unsettled {
        let (older, trimmed) = Default::default();
        Unsettled { torn, strays, older, trimmed, stage: Stage::Applying, starved: false }
    }
}

impl Volume {
    /// What the recovery met when this volume was put together.
    pub fn recovered(&self) -> Recovered {
        self.0.recovered.get()
    }

    pub(crate) fn note_recovered(&self, change: impl FnOnce(&mut Recovered)) {
        let mut recovered = self.0.recovered.get();
        change(&mut recovered);
        self.0.recovered.set(recovered);
    }

    pub(crate) fn note_zones(&self, zones: &[Vec<ZoneReport>]) {
        let of = |state: ZoneState| {
            zones.iter().flatten().filter(|report| report.state == state).count() as u64
        };
        self.note_recovered(|recovered| {
            recovered.closed = of(ZoneState::Closed);
            recovered.read_only = of(ZoneState::ReadOnly);
            recovered.offline = of(ZoneState::Offline);
        });
    }

    /// Steps 6 and 7: after them zones may be reset.
    ///
    /// # Errors
    /// `NoSpace` if there is no room for it: it is to be tried again.
    pub(crate) async fn settle(&self) -> Result<()> {
        self.checkpoint(false).await?;
        // Once more: from now on every member is known to have a record of this run, so that no
        // image of it from before is taken for it again.
        self.write_state(false).await;
        self.failed().map_or(Ok(()), Err)?;
        let settled = self.0.room.unsettled.take();
        let strays = settled.map(|unsettled| unsettled.strays).unwrap_or_default();
        self.release_strays(&strays).await;
        self.leave_unfit();
        self.room_changed();
        Ok(())
    }

    /// Active zones that nobody writes to hold resources no permit accounts for: they are ended.
    pub(crate) async fn finish_strays(&self, strays: &[(u32, ZoneId)], zones: &[Vec<ZoneReport>]) {
        for (index, zone) in strays {
            let Some(drive) = self.0.members[*index as usize].drive() else { continue };
            let report = &zones[*index as usize][zone.0 as usize];
            if report.state.is_active() {
                drive.writer.open_reported(report);
                // A zone that cannot be finished stays; what is in it is of no use.
                let _ = drive.writer.finish(*zone).await;
            }
            if let Some(owner) = drive.zones.owner(*zone)
                && drive.zones.state(owner) == furrow_log::SuperzoneState::Free
            {
                drive.zones.mark_full(owner);
            }
        }
    }

    async fn release_strays(&self, strays: &[(u32, ZoneId)]) {
        for (index, zone) in strays {
            let Some(drive) = self.0.members[*index as usize].drive() else { continue };
            if let Some(owner) = drive.zones.owner(*zone) {
                let proof = ReleaseProof::by(drive.zones.durable_checkpoint());
                // One that cannot be emptied is out of use.
                let _ = drive.zones.release(owner, proof).await;
            }
        }
    }

    /// Keeps a block that a later recovery would take if it found less of a stripe that lacks a
    /// chunk than this one did; `newest`: the block of that stripe, if it is not a trim's record.
    pub(crate) fn fall_back_on(&self, number: u32, newest: Option<u32>) {
        let slot = self.0.shape.slot(number);
        let mut unsettled = self.0.room.unsettled.borrow_mut();
        let Some(unsettled) = &mut *unsettled else { return };
        match newest {
            Some(newest) => unsettled.older.entry(newest).or_default().push(slot),
            None => unsettled.trimmed.push(slot),
        }
        self.0.segments.borrow_mut()[slot as usize].fallback += 1;
    }

    /// What took the place of older blocks lacks nothing any more: nobody falls back on these.
    fn let_go(&self, healed: impl FnOnce(&mut Unsettled) -> Vec<u32>) {
        let slots = self.0.room.unsettled.borrow_mut().as_mut().map(healed).unwrap_or_default();
        let mut segments = self.0.segments.borrow_mut();
        for slot in slots {
            let segment = &mut segments[slot as usize];
            segment.fallback = segment.fallback.saturating_sub(1);
            if segment.fallback == 0 {
                self.0.wanted.notify_all();
            }
        }
    }

    /// Writes anew what is in stripes that recovery found to lack a chunk: some blocks at a time,
    /// so that where there is no room what they took the place of makes some.
    pub(crate) async fn heal(&self) -> Result<()> {
        let torn = match &*self.0.room.unsettled.borrow() {
            Some(unsettled) if unsettled.stage < Stage::Healed => unsettled.torn.clone(),
            _ => return Ok(()),
        };
        if self.has(Canary::TornStripe) {
            return Ok(());
        }
        let (mut trims, mut blocks, mut outdated) = (Vec::new(), Vec::new(), Vec::new());
        for number in &torn {
            let (slot, row, chunk) =
                self.0.shape.locate(*number).expect("invariant: it was found there");
            let from = self.origin(*number);
            let (identity, page) = match self.block_or_made(slot, row, chunk).await {
                Ok((Some(identity), page)) => (identity, page),
                // The drives are there again perhaps: it is to be tried anew then.
                Err(error) if error.is_gone() => return Err(error),
                Ok(_) | Err(_) => continue,
            };
            // What a trim took away is shown by its record alone until there is a checkpoint.
            if identity.kind == block::TRIM {
                trims.push((identity, page, from));
            } else if self.counts(*number, &identity).await? {
                blocks.push((identity, page, from));
            } else {
                outdated.push(*number);
            }
        }
        self.move_blocks(trims).await?;
        // What outdates a block is newer, and is there: a trim's record by now.
        self.let_go(|unsettled| {
            let older = outdated.iter().filter_map(|number| unsettled.older.remove(number));
            let older: Vec<u32> = older.flatten().collect();
            unsettled.trimmed.drain(..).chain(older).collect()
        });
        for batch in self.in_turn(blocks) {
            let numbers: Vec<u32> = batch.iter().map(|(.., from)| from.number).collect();
            self.move_blocks(batch).await?;
            self.let_go(|unsettled| {
                let older = numbers.iter().filter_map(|number| unsettled.older.remove(number));
                older.flatten().collect()
            });
        }
        self.enter(Stage::Healed);
        self.0.segments.borrow_mut().iter_mut().for_each(|segment| segment.fallback = 0);
        Ok(())
    }

    /// The blocks that are to be written anew, all at once if there is room for all of them. Else
    /// those go first after which a segment is empty: it holds none of them, nor what they took
    /// the place of.
    fn in_turn(&self, blocks: Vec<Moved>) -> Vec<Vec<Moved>> {
        if self.free_segments() > blocks.len() as u32 / self.0.shape.held.max(1) + 1 {
            return vec![blocks];
        }
        let unsettled = self.0.room.unsettled.borrow();
        let older = unsettled.as_ref().map(|unsettled| &unsettled.older);
        let slots = |number: u32| {
            let older = older.and_then(|older| older.get(&number)).into_iter().flatten();
            let slots = older.copied().chain([self.0.shape.slot(number)]);
            slots.collect::<BTreeSet<u32>>()
        };
        let mut held: BTreeMap<u32, u32> = BTreeMap::new();
        for (.., from) in &blocks {
            slots(from.number).into_iter().for_each(|slot| *held.entry(slot).or_default() += 1);
        }
        let segments = self.0.segments.borrow();
        // What a checkpoint alone makes free comes last.
        let frees = |slot: &u32| {
            let segment = &segments[*slot as usize];
            segment.leaves == 0 && segment.needed == 0
        };
        let mut turns: BTreeMap<Option<(u32, u32)>, Vec<Moved>> = BTreeMap::new();
        for block in blocks {
            let of = slots(block.2.number).into_iter().filter(frees);
            let first = of.map(|slot| (held[&slot], slot)).min();
            turns.entry(first).or_default().push(block);
        }
        let last = turns.remove(&None);
        turns.into_values().chain(last).collect()
    }

    /// Empties zones that belong to nothing before the recovery is over, if what it has still to
    /// write finds no room and no segment is empty. True if there were any. A later recovery would
    /// go by them as little as this one did.
    pub(crate) async fn release_strays_early(&self) -> bool {
        let waits = self.0.room.waits_inside() && self.free_segments() == 0;
        let strays = match &mut *self.0.room.unsettled.borrow_mut() {
            Some(unsettled) if unsettled.starved && waits => std::mem::take(&mut unsettled.strays),
            _ => return false,
        };
        if strays.is_empty() {
            return false;
        }
        self.release_strays(&strays).await;
        self.note_recovered(|recovered| recovered.early += strays.len() as u64);
        self.room_made();
        true
    }

    /// Notes how far the recovery has come.
    pub(crate) fn enter(&self, stage: Stage) {
        if let Some(unsettled) = &mut *self.0.room.unsettled.borrow_mut() {
            unsettled.stage = stage;
        }
    }
}
