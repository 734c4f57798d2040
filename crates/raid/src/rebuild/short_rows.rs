//! Rows that a rebuild could not restore, because too few of their blocks can be read.
//!
//! Such a row stays without its block on the new drive. At the end of the rebuild, its readable
//! blocks are written elsewhere, with full redundancy. The other blocks are lost if the map
//! names them. The footers that an earlier run of the rebuild wrote show the rows that it could
//! not restore.

use crate::format::NONE;
use crate::lost_blocks::set::LostBlocks;
use crate::meta::footer::seal_entry;
use crate::meta::scan::read_footers;
use crate::rebuild::state::ShortRows;
use crate::segment::{Segment, SegmentState};
use crate::volume::Volume;
use furrow_array::member::MemberState;
use furrow_zone::Result;
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
        for (slot, index) in self.built() {
            let segment = self.0.segments.borrow()[slot as usize].clone();
            let Some(zone) = segment.zones[index as usize] else { continue };
            let footers = read_footers(self, index, zone, segment.sequence).await;
            let own = footers.and_then(|footers| footers.into_iter().next()).unwrap_or_default();
            let absent = seal_entry(None, 0, NONE);
            let short = (0..).zip(own).filter(|(_, entry)| entry.as_bytes() == absent.as_bytes());
            let mut rows = self.0.rebuild.short.borrow_mut();
            short.for_each(|(row, _)| rows.add((slot, segment.sequence), row));
        }
    }

    /// Rewrites the readable blocks of the short rows. Returns the blocks of the volume that are
    /// lost because the other blocks cannot be read.
    ///
    /// # Errors
    /// An error if the volume cannot be written any more, or is being stopped; the short rows are
    /// kept then.
    pub(super) async fn settle_short_rows(&self) -> Result<LostBlocks> {
        let rows = std::mem::take(&mut *self.0.rebuild.short.borrow_mut());
        let settled = self.settle(&rows).await;
        if settled.is_err() {
            self.0.rebuild.short.borrow_mut().0.extend(rows.0);
        }
        settled
    }

    async fn settle(&self, rows: &ShortRows) -> Result<LostBlocks> {
        let mut suspected = BTreeSet::new();
        for (segment, rows) in &rows.0 {
            for row in rows.clone() {
                self.check_alive()?;
                if !self.stays(*segment) {
                    // The segment was released: its valid blocks are elsewhere.
                    break;
                }
                // If there is no space, the row's blocks stay where they are.
                let _ = self.renew(*segment, row).await;
                let chunks = 0..self.0.shape.placement.k;
                suspected.extend(chunks.map(|chunk| self.0.shape.number(segment.0, row, chunk)));
            }
        }
        Ok(self.judge_lost(&suspected, true).await?.blocks)
    }
}
