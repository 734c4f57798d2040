//! Known losses: blocks of the volume that the drives cannot provide any more.
//!
//! Reads, scrubs, rebuilds and recovery add blocks to the set. A block is removed when it is
//! written or trimmed, when a complete scrub can read it after all, or when an operator clears the
//! set. The set is in memory only: after a restart the next read or scrub finds the same blocks.
//!
//! A block counts as lost only if the drives in service cannot provide it. While too many members
//! are missing to read all data, no block is added: the missing drives may return.

pub(crate) mod set;

use crate::format::{MAPPED, NONE, block};
use crate::lost_blocks::set::LostBlocks;
use crate::map::Map;
use crate::read::place::Loud;
use crate::read::place::Wanted;
use crate::volume::Volume;
use furrow_zone::Result;
use std::collections::BTreeSet;
use std::ops::Range;

/// The verdict on suspected blocks: which of them are lost.
#[derive(Default)]
pub(crate) struct Judged {
    /// Block numbers whose content is lost.
    pub(crate) lost: BTreeSet<u32>,
    /// Block numbers of mapping blocks whose copy on the drives is lost, but which are in memory.
    pub(crate) kept: BTreeSet<u32>,
    /// Block numbers that the map names and the drives can provide.
    pub(crate) there: BTreeSet<u32>,
    /// The blocks of the volume that are lost.
    pub(crate) blocks: LostBlocks,
}

impl Volume {
    /// Blocks of the volume that are known to be lost: their number, and the first ranges of them.
    pub fn lost(&self) -> (u64, Vec<Range<u64>>) {
        self.0.lost_blocks.report()
    }

    /// Clears the known losses and the members' error counts. The next read or scrub finds the
    /// remaining losses.
    pub fn clear(&self) {
        self.0.lost_blocks.clear();
        self.0.array.members().iter().for_each(|member| member.clear_errors());
    }

    /// After a failed read of blocks that one mapping block maps: adds those that are lost to
    /// the set.
    pub(crate) async fn note_lost(&self, wanted: &[(u32, Wanted)]) {
        for (number, wanted) in wanted {
            if wanted.0 == block::DATA && self.cannot_be_had(*number, *wanted).await {
                self.0.lost_blocks.add(wanted.1..wanted.1 + 1);
            }
        }
    }

    /// Decides which of the suspected block numbers are lost: those that the map still names and
    /// the drives cannot provide now. Adds the volume's blocks that these numbers hold to the set.
    /// With `renew`, makes the next checkpoint rewrite mapping blocks whose only copy is in memory.
    ///
    /// # Errors
    /// An error if the volume cannot be written any more, or is being stopped.
    pub(crate) async fn judge_lost(
        &self,
        suspected: &BTreeSet<u32>,
        renew: bool,
    ) -> Result<Judged> {
        let (mut judged, mut named) = (Judged::default(), Vec::new());
        let leaves = if suspected.is_empty() { 0 } else { self.0.shape.mappings };
        for leaf in 0..leaves {
            let there = self.fetch_as(leaf, false, Loud::No).await;
            let lost = match there {
                Ok(()) => None,
                Err(_) => self.note_lost_leaf(leaf).await,
            };
            self.check_alive()?;
            let (map, first) = (self.0.paging.map(), u64::from(leaf) * u64::from(MAPPED));
            let root = map.root_of(leaf);
            if let Some(lost) = lost {
                judged.lost.insert(root);
                judged.blocks.add(lost);
                continue;
            }
            let end = self.blocks().min(first + u64::from(MAPPED));
            let mapped = (first..end).map(|lba| (map.get(lba), (block::DATA, lba)));
            let all = mapped.chain([(root, (block::MAPPING, u64::from(leaf)))]);
            named.extend(all.filter(|(number, _)| suspected.contains(number)));
        }
        for (number, wanted) in named {
            if !self.cannot_be_had(number, wanted).await {
                if self.names(number, wanted).await {
                    judged.there.insert(number);
                }
                continue;
            }
            if wanted.0 == block::DATA {
                judged.lost.insert(number);
                judged.blocks.add(wanted.1..wanted.1 + 1);
                self.0.lost_blocks.add(wanted.1..wanted.1 + 1);
                continue;
            }
            // The mapping block is in memory: only its copy on the drives is damaged, so nothing
            // is lost.
            judged.kept.insert(number);
            if renew && self.fetch_as(wanted.1 as u32, false, Loud::No).await.is_ok() {
                self.0.paging.map_mut().mark_dirty(wanted.1 as u32);
            }
        }
        Ok(judged)
    }

    /// After a failed read of a mapping block: reads it again, and if that fails too, adds all
    /// blocks of the volume that it maps to the set, and returns their range. The range is empty if
    /// too many members are missing to judge losses. `None` if the mapping block can be read after
    /// all: it is in memory then, at least until the caller's next await.
    pub(crate) async fn note_lost_leaf(&self, leaf: u32) -> Option<Range<u64>> {
        self.notice_gone();
        // So many blocks are not called lost before a second read: a drive may have been gone for
        // a moment only.
        if self.patiently(async || self.fetch_as(leaf, false, Loud::No).await).await.is_ok() {
            return None;
        }
        self.notice_gone();
        if self.failed().is_some() || !self.survives() {
            return Some(0..0);
        }
        let first = u64::from(leaf) * u64::from(MAPPED);
        let end = self.blocks().min(first + u64::from(MAPPED));
        self.0.lost_blocks.add(first..end);
        Some(first..end)
    }

    /// Whether block `number` is mapped with the identity `wanted`, and the drives in service
    /// cannot provide it. The caller has already counted the damage as an error.
    pub(crate) async fn cannot_be_had(&self, number: u32, wanted: Wanted) -> bool {
        let at = [(number, wanted)];
        let read = async || self.read_numbers(&at, Loud::No).await;
        let read = number == NONE || self.patiently(read).await.is_ok();
        if !read {
            self.notice_gone();
        }
        !read && self.failed().is_none() && self.survives() && self.names(number, wanted).await
    }

    /// Whether the map names block `number` for the identity `wanted`.
    async fn names(&self, number: u32, wanted: Wanted) -> bool {
        match wanted.0 {
            block::DATA => {
                let fetch = async || self.fetch_as(Map::leaf(wanted.1), false, Loud::No).await;
                self.patiently(fetch).await.is_ok() && self.0.paging.map().get(wanted.1) == number
            }
            _ => self.0.paging.map().root_of(wanted.1 as u32) == number,
        }
    }

    /// Removes the blocks that can be read after all. Called at the end of a complete scrub, which
    /// has found and added again the losses that the set only counted, without their addresses.
    pub(crate) async fn check_lost(&self) {
        for range in self.0.lost_blocks.ranges() {
            for lba in range {
                if self.fetch_as(Map::leaf(lba), false, Loud::No).await.is_err() {
                    continue;
                }
                let number = self.0.paging.map().get(lba);
                let wanted = [(number, (block::DATA, lba))];
                if number == NONE || self.read_numbers(&wanted, Loud::No).await.is_ok() {
                    self.0.lost_blocks.remove(lba..lba + 1);
                }
            }
        }
    }

    /// Forgets the losses that the set only counted, without their addresses. Called when a
    /// complete scrub has read all blocks, before it adds the losses that it found. Returns the
    /// forgotten count, as a set to join again if the scrub fails after all.
    pub(crate) fn recount_lost(&self) -> LostBlocks {
        let counted = LostBlocks::default();
        counted.join(&self.0.lost_blocks);
        // A block that the set names by its address may be written or trimmed before the join.
        counted.remove(0..u64::MAX);
        self.0.lost_blocks.forget_beyond();
        counted
    }
}
