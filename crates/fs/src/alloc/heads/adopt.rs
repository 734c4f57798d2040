//! Heads at recovery: which heads continue within a segment, and which begin at the next one.
//!
//! A checkpoint can hold one open summary for each stream. So before a power cut at most one head
//! per stream is within a segment. The power cut may take the last blocks of further heads, and
//! these further heads are then within a segment as well. As many heads of each class continue as
//! the class has streams: the heads with the most unwritten blocks in their segments. Recovery pads
//! the segments of the other heads. Padding therefore takes no more space than the power cut gave
//! back, and the space kept for recovery suffices (`space`).

use super::Cursor;
use crate::alloc::Allocator;
use furrow_log::budget::Class;
use furrow_zone::ZoneId;

impl Allocator {
    /// Adds heads up to the number that the checkpoint or a sync record names.
    pub(crate) fn adopt_heads(&mut self, heads: usize) {
        let missing = heads.saturating_sub(self.cursors.len());
        let parked = || Cursor { parked: true, ..Cursor::default() };
        self.cursors.extend(std::iter::repeat_with(parked).take(missing));
    }

    /// Makes the heads that continue within their segments the current heads of streams.
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
            // First heads cannot be lent, so they get their own streams before others do.
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

    /// Completes the recovery of a head that may have a superzone: takes permits for it, and pads
    /// its open segment unless a stream continues there. If there are no permits, closes the
    /// superzone and returns the zones to finish.
    pub(in crate::alloc) fn adopt_head(&mut self, head: usize) -> Vec<ZoneId> {
        if self.cursors[head].head.superzone.is_none() {
            return Vec::new();
        }
        if self.is_permitless(head) {
            let permit = self.streams.budget.try_acquire(Class::User, self.layout.width);
            self.cursors[head].permit = permit;
        }
        // If padding fills the superzone, its zones stay active until the padding is written, so
        // the permits are kept until then.
        let mut streams = 0..self.streams.streams.len();
        if !streams.any(|stream| self.head_in_segment(stream) == Some(head)) {
            self.pad_segment(head);
        }
        let ended = self.cursors[head].head.superzone.is_none();
        if ended || !self.is_permitless(head) {
            return Vec::new();
        }
        self.begin_closing(head)
    }
}
