//! Torn stripes, which count but lack a chunk because of a crash. Recovery writes their blocks
//! again, elsewhere: otherwise the next failure of a drive could take these blocks back.
//!
//! A stripe is not torn if every member has its chunk, however many blocks of the stripe were
//! damaged later: it counts in every later recovery, so the blocks that it replaced need not be
//! kept. Its damaged blocks are rewritten, too, but only while there is space: damage may affect
//! almost every stripe.

use crate::format::block;
use crate::meta::identity::Identity;
use crate::recover::unfinished::{Stage, UnfinishedRecovery};
use crate::volume::Volume;
use crate::write::item::Origin;
use furrow_policy::RaidDefect;
use furrow_rt::Page;
use furrow_zone::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};

/// A block that is to be written at another place, with its old place.
type Moved = (Identity, Page, Origin);

impl Volume {
    /// Keeps the segment of an older block, because a later recovery would use that block if it
    /// found less of the torn stripe than this recovery did. `newest` is the number of the torn
    /// stripe's block; `None` if a trim record in the stripe discarded the older block.
    pub(crate) fn fall_back_on(&self, number: u32, newest: Option<u32>) {
        let slot = self.0.shape.slot(number);
        let mut recovery = self.0.space.recovery.borrow_mut();
        let Some(recovery) = &mut *recovery else { return };
        match newest {
            Some(newest) => recovery.older.entry(newest).or_default().push(slot),
            None => recovery.trimmed.push(slot),
        }
        self.0.segments.borrow_mut()[slot as usize].fallback += 1;
    }

    /// Releases the segments of older blocks whose replacement is now in a complete stripe, so that
    /// no recovery uses these blocks.
    fn release_fallbacks(&self, healed: impl FnOnce(&mut UnfinishedRecovery) -> Vec<u32>) {
        let slots = self.0.space.recovery.borrow_mut().as_mut().map(healed).unwrap_or_default();
        for slot in slots {
            if self.less_in(slot, "older blocks kept", |segment| &mut segment.fallback) == 0 {
                self.0.wanted.notify_all();
            }
        }
    }

    /// Writes the blocks of torn stripes again, in batches: if there is no space for all, each
    /// batch releases older blocks, which makes space for the next.
    pub(crate) async fn repair_torn_stripes(&self) -> Result<()> {
        let torn = match &*self.0.space.recovery.borrow() {
            Some(recovery) if recovery.stage < Stage::Repaired => recovery.torn.clone(),
            _ => return Ok(()),
        };
        if self.has(RaidDefect::TornStripe) {
            return Ok(());
        }
        let (mut trims, mut blocks, mut outdated) = (Vec::new(), Vec::new(), Vec::new());
        for number in &torn {
            let Some((identity, page, from)) = self.written_at(*number).await? else { continue };
            // Until a checkpoint, only the trim record says what was discarded, so it is rewritten.
            if identity.kind == block::TRIM {
                trims.push((identity, page, from));
            } else if self.counts(*number, &identity).await? {
                blocks.push((identity, page, from));
            } else {
                outdated.push(*number);
            }
        }
        self.move_blocks(trims).await?;
        // An outdated block was replaced by a newer block in a complete stripe, or by a trim whose
        // record has just been rewritten.
        self.release_fallbacks(|recovery| {
            let older = outdated.iter().filter_map(|number| recovery.older.remove(number));
            let older: Vec<u32> = older.flatten().collect();
            recovery.trimmed.drain(..).chain(older).collect()
        });
        for batch in self.in_turn(blocks) {
            let numbers: Vec<u32> = batch.iter().map(|(.., from)| from.number).collect();
            self.move_blocks(batch).await?;
            self.release_fallbacks(|recovery| {
                let older = numbers.iter().filter_map(|number| recovery.older.remove(number));
                older.flatten().collect()
            });
        }
        self.enter(Stage::Repaired);
        self.0.segments.borrow_mut().iter_mut().for_each(|segment| segment.fallback = 0);
        self.repair_damaged_stripes().await
    }

    /// Writes the blocks of damaged stripes again while there is more space than cleaning needs.
    /// Reads and scrubs repair the rest.
    async fn repair_damaged_stripes(&self) -> Result<()> {
        let damaged = match &mut *self.0.space.recovery.borrow_mut() {
            Some(recovery) => std::mem::take(&mut recovery.damaged),
            None => return Ok(()),
        };
        for numbers in damaged.chunks(self.batch()) {
            if self.free_segments() <= self.0.shape.kept {
                break;
            }
            let mut blocks = Vec::new();
            for number in numbers {
                if let Some(block) = self.written_at(*number).await?
                    && self.counts(*number, &block.0).await?
                {
                    blocks.push(block);
                }
            }
            self.move_blocks(blocks).await?;
        }
        Ok(())
    }

    /// The block `number`, which recovery found; `None` if it can no longer be read.
    ///
    /// # Errors
    /// An error if drives are gone: they may come back, so the caller tries the step again.
    async fn written_at(&self, number: u32) -> Result<Option<Moved>> {
        let place = self.0.shape.locate(number);
        let (slot, row, chunk) = place.expect("invariant: it was found there");
        let from = self.origin(number);
        let missed = self.missed();
        match self.block_or_reconstructed(slot, row, chunk).await {
            Ok((Some(identity), page)) => Ok(Some((identity, page, from))),
            _ if self.missed() != missed => {
                let what = "a block of a torn stripe could not be read, as a drive did not answer: \
                            try again";
                Err(Error::new(ErrorKind::Io, what))
            }
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Splits the blocks to be rewritten into batches: a single batch if there is space for all
    /// blocks. Otherwise each batch serves to release one segment: it has the blocks in that
    /// segment, and those that replaced older blocks there. Segments with the fewest such blocks
    /// come first.
    fn in_turn(&self, blocks: Vec<Moved>) -> Vec<Vec<Moved>> {
        if self.free_segments() > blocks.len() as u32 / self.0.shape.held.max(1) + 1 {
            return vec![blocks];
        }
        let recovery = self.0.space.recovery.borrow();
        let older = recovery.as_ref().map(|recovery| &recovery.older);
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
        // Segments that only a checkpoint can free come last.
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
}
