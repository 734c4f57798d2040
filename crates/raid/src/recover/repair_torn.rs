//! Torn stripes: those that count and lack a chunk because a crash came in between. Recovery writes
//! their blocks again, elsewhere, so that the next failure of a drive takes nothing back.
//!
//! A stripe of which every member has its chunk is not torn, however many of its blocks were
//! damaged since: it counts, and older blocks never do again. So it does not hold their space. Its
//! blocks are written again, too, but only where there is space: damage may have hit almost every
//! stripe.

use crate::format::block;
use crate::meta::identity::Identity;
use crate::recover::unfinished::{Stage, UnfinishedRecovery};
use crate::volume::Volume;
use crate::write::item::Origin;
use furrow_policy::RaidDefect;
use furrow_rt::Page;
use furrow_zone::Result;
use std::collections::{BTreeMap, BTreeSet};

/// A block that is written at another place, with its old place.
type Moved = (Identity, Page, Origin);

impl Volume {
    /// Keeps an older block's segment: a later recovery would use the block if it found less of a
    /// torn stripe than this one did. `newest` is the number of the torn stripe's block; `None` if
    /// a trim's record in the stripe took the older block's place.
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

    /// Releases older blocks: whatever replaced them is complete now, so no recovery falls back on
    /// them.
    fn release_fallbacks(&self, healed: impl FnOnce(&mut UnfinishedRecovery) -> Vec<u32>) {
        let slots = self.0.space.recovery.borrow_mut().as_mut().map(healed).unwrap_or_default();
        for slot in slots {
            if self.less_in(slot, "older blocks kept", |segment| &mut segment.fallback) == 0 {
                self.0.wanted.notify_all();
            }
        }
    }

    /// Rewrites the blocks of stripes that recovery found to lack a chunk, some blocks at a time:
    /// where there is no space, the older blocks that they replaced make some.
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
            // Until there is a checkpoint, only a trim's record shows what the trim discarded.
            if identity.kind == block::TRIM {
                trims.push((identity, page, from));
            } else if self.counts(*number, &identity).await? {
                blocks.push((identity, page, from));
            } else {
                outdated.push(*number);
            }
        }
        self.move_blocks(trims).await?;
        // What replaced an outdated block is newer, and its stripe is complete: those of trims'
        // records have just been written again.
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

    /// Rewrites the blocks of damaged stripes while more space is left than cleaning needs. Reads
    /// and scrubs repair the others.
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

    /// The block of a number that recovery found; `None` if it cannot be had any more.
    ///
    /// # Errors
    /// If drives are gone. They may come back: the step is to be tried again then.
    async fn written_at(&self, number: u32) -> Result<Option<Moved>> {
        let place = self.0.shape.locate(number);
        let (slot, row, chunk) = place.expect("invariant: it was found there");
        let from = self.origin(number);
        match self.block_or_reconstructed(slot, row, chunk).await {
            Ok((Some(identity), page)) => Ok(Some((identity, page, from))),
            Err(error) if error.is_gone() => Err(error),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Splits the blocks to be rewritten into batches: one batch if there is space for all of them.
    /// Otherwise the first batches are those that empty a segment, of blocks to be rewritten and of
    /// older blocks that these replaced.
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
        // Segments that become free only by a checkpoint come last.
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
