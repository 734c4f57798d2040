//! Heads at recovery: which go on within the segment they were left in.
//!
//! A power cut finds at most one head within a segment for each stream, as the checkpoint has place
//! for so many open summaries. The cut may take the last blocks of others, which then are within a
//! segment, too. Those of a class that have the most room left go on, as many as it has streams.
//! The others are padded to the next segment. So padding takes no more room than the cut gave back,
//! and there is space for everything that recovery writes again (`space`).

use super::Cursor;
use crate::alloc::Allocator;
use furrow_log::budget::Class;
use furrow_zone::ZoneId;

impl Allocator {
    /// Adds heads up to the number that the checkpoint or a record knows.
    pub(crate) fn adopt_heads(&mut self, heads: usize) {
        let missing = heads.saturating_sub(self.cursors.len());
        let parked = || Cursor { parked: true, ..Cursor::default() };
        self.cursors.extend(std::iter::repeat_with(parked).take(missing));
    }

    /// Decides which heads go on within their segments.
    pub(crate) fn adopt_segments(&mut self) {
        for nodes in [false, true] {
            let class = self.class(nodes);
            let within = |head: &usize| {
                class.contains(&self.stream_of_head(*head))
                    && self.cursors[*head].head.superzone.is_some()
                    && !self.is_between(*head)
            };
            let mut within: Vec<usize> = (0..self.cursors.len()).filter(within).collect();
            let written = |head: usize| self.cursors[head].head.next % self.layout.segment_blocks;
            within.sort_by_key(|head| (written(*head), *head));
            within.truncate(class.len());
            // First heads cannot be lent.
            within.sort_unstable();
            let (mut free, mut others): (Vec<usize>, Vec<usize>) = (class.collect(), Vec::new());
            for head in within {
                let stream = self.stream_of_head(head);
                match free.iter().position(|other| *other == stream) {
                    Some(at) => self.streams.streams[free.remove(at)].current = head,
                    None => others.push(head),
                }
            }
            others.retain(|head| self.cursors[*head].parked);
            for (head, stream) in others.into_iter().zip(free) {
                self.cursors[head].lent = Some(stream);
                self.streams.streams[stream].current = head;
            }
        }
    }

    /// For a head that may have been left in a superzone: takes its permits, and brings it to the
    /// start of a segment if it does not go on within one. If there are no permits, returns the
    /// zones to finish.
    pub(in crate::alloc) fn adopt_head(&mut self, head: usize) -> Vec<ZoneId> {
        if self.cursors[head].head.superzone.is_none() {
            return Vec::new();
        }
        let lacks = self.is_permitless(head);
        if lacks {
            let permit = self.streams.budget.try_acquire(Class::User, self.layout.width);
            self.cursors[head].permit = permit;
        }
        // If padding fills the superzone, its zones stay active until that write is done: the
        // permits are kept until then.
        if !(0..self.streams.streams.len()).any(|stream| self.head_in_segment(stream) == Some(head))
        {
            self.pad_segment(head);
        }
        let ended = self.cursors[head].head.superzone.is_none();
        if ended || !self.is_permitless(head) {
            return Vec::new();
        }
        self.begin_closing(head)
    }
}
