//! Lending: a stream that lacks permits writes to parked superzones of other streams.
//!
//! Where writes turn from one stream to another, the superzones that the first no longer fills hold
//! the permits that the second lacks. Z-LFS finishes them in the background (section 4.5). A finish
//! programs the rest of each zone, on dies that the second stream writes to; it took twelve seconds
//! for a superzone in trials with slow dies, and the rest is lost space. So a parked superzone is
//! lent as it is: the second stream writes the rest of it, segment by segment, in place of one that
//! it may not open. Blocks of two lifetimes then share a
//! superzone.
//!
//! A head that is lent still belongs to its stream: on the drive nothing says that it is lent, and
//! after a crash it is parked. It is lent until its superzone is full, until its stream takes it
//! back, or until the quota of the stream that it is lent to falls.

use crate::alloc::Allocator;
use furrow_log::pool::SuperzoneId;

impl Allocator {
    /// The stream that writes to the superzone of `head`; `None` if it is parked.
    pub(super) fn writer_of(&self, head: usize) -> Option<usize> {
        let cursor = &self.cursors[head];
        if cursor.parked { cursor.lent } else { Some(self.stream_of_head(head)) }
    }

    /// Heads that `stream` writes to.
    pub(in crate::alloc) fn written_by(&self, stream: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.cursors.len()).filter(move |head| self.writer_of(*head) == Some(stream))
    }

    /// Heads that are lent to `stream`.
    pub(in crate::alloc) fn lent_to(&self, stream: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.cursors.len()).filter(move |head| self.cursors[*head].lent == Some(stream))
    }

    /// Heads that can be lent to `stream`: parked ones of the other streams of its class.
    pub(super) fn to_lend(&self, stream: usize) -> impl Iterator<Item = usize> + '_ {
        let class = self.class(stream >= self.layout.streams as usize / 2);
        let holds = self.variant.lent_superzones.holds();
        (0..self.cursors.len()).filter(move |head| {
            let (cursor, owner) = (&self.cursors[*head], self.stream_of_head(*head));
            let idle = cursor.parked && cursor.lent.is_none() && !cursor.closing;
            // One that was taken out of turn within a segment is written to the segment's end.
            let between = cursor.head.next.is_multiple_of(self.layout.segment_blocks);
            let others = owner != stream && class.contains(&owner);
            holds && idle && between && others && cursor.head.superzone.is_some()
        })
    }

    /// Whether more heads of `stream` are without a superzone than are lent to it.
    pub(super) fn lacks_superzones(&self, stream: usize) -> bool {
        self.without_superzone(stream) > self.lent_to(stream).count()
    }

    /// Heads in turn of `stream` that have no superzone.
    fn without_superzone(&self, stream: usize) -> usize {
        let none = |head: &usize| {
            let cursor = &self.cursors[*head];
            !cursor.parked && !cursor.closing && cursor.head.superzone.is_none()
        };
        self.heads_of(stream).filter(none).count()
    }

    /// Lends `stream` a parked superzone, the one on the dies with the least load. None where the
    /// stream writes to its even share of superzones already: one more on the same dies is no
    /// faster.
    pub(super) fn lend(&mut self, stream: usize) -> Option<usize> {
        let (groups, mut own) = (self.group_loads(stream), vec![0; self.zones.groups() as usize]);
        let group = |head: usize| {
            let superzone = self.cursors[head].head.superzone.map(SuperzoneId);
            superzone.map(|superzone| self.zones.group(superzone) as usize)
        };
        let written = self.written_by(stream).filter_map(group);
        written.for_each(|group| own[group] += 1);
        let even = own.iter().sum::<usize>() / own.len();
        let lendable = self.to_lend(stream).filter_map(|head| Some((group(head)?, head)));
        let lendable = lendable.filter(|(group, _)| own[*group] <= even);
        let (_, head) = lendable.min_by_key(|(group, head)| (groups[*group], *head))?;
        self.cursors[head].lent = Some(stream);
        self.level(head);
        Some(head)
    }

    /// Hands back what is lent to `stream` beyond its quota, the superzones on the dies with the
    /// most load first.
    pub(super) fn hand_back(&mut self, stream: usize) {
        while self.lent_to(stream).count() > self.without_superzone(stream) {
            let lent = self.lent_to(stream);
            let most = lent.max_by_key(|head| (self.open_group_load(*head), *head));
            let Some(head) = most else { return };
            self.cursors[head].lent = None;
            self.cursors[head].since = self.rt.now();
        }
    }
}
