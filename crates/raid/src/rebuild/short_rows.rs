//! Rows that a rebuild could not restore, because too few of their blocks can be read.
//!
//! Such a row stays without its block on the new drive. At the end of the rebuild, its readable
//! blocks are written elsewhere, with full redundancy. The other blocks are lost if the map
//! names them. The new drive is not in full service before that is done, as the readable blocks
//! lack redundancy until then. The footers that an earlier run of the rebuild wrote show the rows
//! that it could not restore.

use crate::format::NONE;
use crate::lost_blocks::set::LostBlocks;
use crate::meta::footer::seal_entry;
use crate::meta::scan::read_footers;
use crate::rebuild::state::ShortRows;
use crate::segment::{Segment, SegmentState};
use crate::volume::Volume;
use furrow_array::member::MemberState;
use furrow_zone::{Error, ErrorKind, Result};
use std::collections::BTreeSet;
use zerocopy::IntoBytes as _;

impl Volume {
    /// For each zone that a rebuild has restored to a member that is still rebuilding: the
    /// segment's slot, and the member.
    pub(super) fn built(&self) -> Vec<(u32, u32)> {
        let segments = self.0.segments.borrow();
        let mut built = Vec::new();
        for (index, member) in (0u32..).zip(self.0.array.members()) {
            let is_built = |segment: &Segment| {
                let ended = matches!(segment.state, SegmentState::Sealed | SegmentState::Truncated);
                ended
                    && segment.rebuilt >> index & 1 == 1
                    && segment.zones[index as usize].is_some()
            };
            if member.state() == MemberState::Rebuilding {
                let slots = (0u32..).zip(&*segments).filter(|(_, segment)| is_built(segment));
                built.extend(slots.map(|(slot, _)| (slot, index)));
            }
        }
        built
    }

    /// Finds the rows that earlier runs of the rebuild could not restore.
    pub(super) async fn find_short_rows(&self) {
        // The footers also show the rows that the last run could not settle.
        self.0.rebuild.short.take();
        for (slot, index) in self.built() {
            let segment = self.0.segments.borrow()[slot as usize].clone();
            let Some(zone) = segment.zones[index as usize] else { continue };
            let segment_id = (slot, segment.sequence);
            let read = async || read_footers(self, index, zone, segment.sequence).await.ok_or(());
            let footers = self.patiently(read).await.ok();
            self.notice_gone();
            if self.0.array.member(index).drive().is_none() {
                continue;
            }
            let own = footers.and_then(|footers| footers.into_iter().next());
            let mut rows = self.0.rebuild.short.borrow_mut();
            let Some(own) = own else {
                // Nothing tells which rows are short, so all are treated as such: that costs
                // space, but leaves no block without redundancy.
                rows.0.push((segment_id, 0..self.ended_rows(&segment)));
                continue;
            };
            let absent = seal_entry(None, 0, NONE);
            let short = (0..).zip(own).filter(|(_, entry)| entry.as_bytes() == absent.as_bytes());
            short.for_each(|(row, _)| rows.add(segment_id, row));
        }
    }

    /// Rewrites the readable blocks of the short rows. Returns the blocks of the volume that are
    /// lost because the other blocks cannot be read.
    ///
    /// # Errors
    /// An error if the volume cannot be written any more, or is being stopped, or if readable
    /// blocks could not be written elsewhere; the short rows are kept then.
    pub(super) async fn settle_short_rows(&self) -> Result<LostBlocks> {
        let rows = std::mem::take(&mut *self.0.rebuild.short.borrow_mut());
        let settled = self.settle(&rows).await;
        if settled.is_err() {
            self.0.rebuild.short.borrow_mut().0.extend(rows.0);
        }
        settled
    }

    async fn settle(&self, rows: &ShortRows) -> Result<LostBlocks> {
        let (mut suspected, mut refused) = (BTreeSet::new(), None);
        for (segment, rows) in &rows.0 {
            for row in rows.clone() {
                self.check_alive()?;
                if !self.stays(*segment) {
                    // The segment was released: its valid blocks are elsewhere.
                    break;
                }
                if let Err(error) = self.renew(*segment, row).await {
                    refused = Some(error);
                }
                let chunks = 0..self.0.shape.placement.k;
                suspected.extend(chunks.map(|chunk| self.0.shape.number(segment.0, row, chunk)));
            }
        }
        let judged = self.judge_lost(&suspected, true).await?;
        self.check_alive()?;
        // A block that the map still names was not written elsewhere: there was no space, or it
        // could not be read for a moment. A released segment's slot may hold other blocks by now.
        let here = rows.0.iter().filter(|(segment, _)| self.stays(*segment));
        let here: BTreeSet<u32> = here.map(|(segment, _)| segment.0).collect();
        let left = judged.there.iter().filter(|number| here.contains(&self.0.shape.slot(**number)));
        let left = left.count();
        if left == 0 {
            return Ok(judged.blocks);
        }
        let what = format!("{left} blocks that the new drive lacks were not written elsewhere");
        Err(match refused {
            Some(error) => error.at(what),
            None => Error::new(ErrorKind::Io, what),
        })
    }
}
