//! Lending: a stream that lacks permits writes to parked superzones of other streams.
//!
//! Where writes turn from one stream to another, superzones that the first stream no longer fills
//! hold the permits that the second stream lacks. Z-LFS finishes these superzones in the background
//! (section 4.5). A finish programs the rest of each zone, on dies that the second stream writes
//! to: with slow dies the finish of a superzone took twelve seconds, and what a finish writes is
//! lost space. So a parked superzone is lent as it is: the second stream writes the rest of it,
//! segment by segment, in place of one that it may not open. Blocks of two lifetimes then share a
//! superzone.
//!
//! A head that is lent still belongs to its stream: on the drive nothing says that it is lent, and
//! after a crash it is parked. It is lent until its superzone ends, until its stream takes it back,
//! or until the quota of the stream that it is lent to falls. The permits of a superzone that was
//! filled go to the stream that filled it.
//!
//! Invariant: a stream takes or hands back a lent head between segments only, so no segment has
//! blocks of two streams. (Where free superzones are scarce, a stream writes wherever there is
//! space.)

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
    fn to_lend(&self, stream: usize) -> impl Iterator<Item = usize> + '_ {
        let class = self.class_of(stream);
        let holds = self.variant.lent_superzones.holds();
        (0..self.cursors.len()).filter(move |head| {
            let (cursor, owner) = (&self.cursors[*head], self.stream_of_head(*head));
            let idle = cursor.parked && cursor.lent.is_none() && !cursor.closing;
            let others = owner != stream && class.contains(&owner);
            holds && idle && self.is_between(*head) && others && cursor.head.superzone.is_some()
        })
    }

    /// Whether a head stands between two segments.
    pub(super) fn is_between(&self, head: usize) -> bool {
        self.cursors[head].head.next.is_multiple_of(self.layout.segment_blocks)
    }

    /// Interference group of a head's superzone.
    fn group_of(&self, head: usize) -> Option<usize> {
        let superzone = self.cursors[head].head.superzone.map(SuperzoneId);
        superzone.map(|superzone| self.zones.group(superzone) as usize)
    }

    /// Heads that are lent to `stream` if it asks, and their groups. Not on dies where the stream
    /// writes to its even share of superzones already: one more there is no faster.
    pub(super) fn lendable(&self, stream: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut own = vec![0; self.zones.groups() as usize];
        let written = self.written_by(stream).filter_map(|head| self.group_of(head));
        written.for_each(|group| own[group] += 1);
        let even = own.iter().sum::<usize>() / own.len();
        let all = self.to_lend(stream).filter_map(|head| Some((self.group_of(head)?, head)));
        all.filter(move |(group, _)| own[*group] <= even)
    }

    /// Whether a head that is not a first one has no permits for a superzone.
    pub(super) fn is_permitless(&self, head: usize) -> bool {
        head >= self.layout.streams as usize && self.cursors[head].permit.is_none()
    }

    /// Heads in turn of `stream` that have neither a superzone nor permits for one.
    pub(super) fn permitless(&self, stream: usize) -> impl Iterator<Item = usize> + '_ {
        let none = |head: &usize| {
            let cursor = &self.cursors[*head];
            let none = cursor.head.superzone.is_none() && self.is_permitless(*head);
            none && !cursor.parked && !cursor.closing
        };
        self.heads_of(stream).filter(none)
    }

    /// Whether more heads of `stream` lack permits than are lent to it.
    pub(super) fn lacks_superzones(&self, stream: usize) -> bool {
        self.permitless(stream).count() > self.lent_to(stream).count()
    }

    /// Lends `stream` a parked superzone, the one on the dies with the least load.
    pub(super) fn lend(&mut self, stream: usize) -> Option<usize> {
        let loads = self.group_loads(stream);
        let (_, head) = self.lendable(stream).min_by_key(|(group, head)| (loads[*group], *head))?;
        self.cursors[head].lent = Some(stream);
        self.level(head);
        Some(head)
    }

    /// Hands back what is lent to `stream` beyond its quota, the superzones on the dies with the
    /// most load first.
    pub(super) fn hand_back(&mut self, stream: usize) {
        while self.lent_to(stream).count() > self.permitless(stream).count() {
            let loads = self.group_loads(stream);
            let load = |head: usize| self.group_of(head).map(|group| loads[group]);
            let between = self.lent_to(stream).filter(|head| self.is_between(*head));
            let Some(head) = between.max_by_key(|head| (load(*head), *head)) else { return };
            self.cursors[head].lent = None;
            self.cursors[head].since = self.rt.now();
        }
    }
}
