//! Lending: a stream that lacks permits writes to parked superzones of other streams.
//!
//! When the load moves from one stream to another, superzones that the first stream no longer fills
//! hold the permits that the second stream lacks. Z-LFS finishes these superzones in the background
//! (section 4.5). A finish programs the rest of each zone, on dies that the second stream writes
//! to: with slow dies the finish of a superzone took twelve seconds, and the blocks that a finish
//! writes are lost space. So a parked superzone is lent as it is: the second stream writes the rest
//! of the superzone, segment by segment, instead of opening a superzone for which this stream lacks
//! the permits. Blocks of two lifetimes then share a superzone.
//!
//! A lent head still belongs to its own stream: nothing on the drive says that the head is lent,
//! and after a crash it is parked. The loan ends when the superzone is full, when the owner takes
//! it back or has no other superzone, or when the borrower's quota falls. When a superzone becomes
//! full, its permits go to the stream that filled it.
//!
//! Invariant: a stream takes or hands back a lent head between segments only, so no segment has
//! blocks of two streams. (Where free superzones are scarce, a stream writes wherever there is
//! space.)

use crate::alloc::Allocator;
use furrow_log::pool::SuperzoneId;

impl Allocator {
    /// The stream that writes to the superzone of `head`; `None` if the head is parked and
    /// not lent.
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

    /// Whether a head is between two segments.
    pub(super) fn is_between(&self, head: usize) -> bool {
        self.cursors[head].head.next.is_multiple_of(self.layout.segment_blocks)
    }

    /// Interference group of a head's superzone.
    fn group_of(&self, head: usize) -> Option<usize> {
        let superzone = self.cursors[head].head.superzone.map(SuperzoneId);
        superzone.map(|superzone| self.zones.group(superzone) as usize)
    }

    /// Heads that can be lent to `stream`, with their groups. Groups where the stream already
    /// writes to its even share of superzones are left out: another superzone there would not make
    /// it faster.
    pub(super) fn lendable(&self, stream: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut own = vec![0; self.zones.groups() as usize];
        let written = self.written_by(stream).filter_map(|head| self.group_of(head));
        written.for_each(|group| own[group] += 1);
        let even = own.iter().sum::<usize>() / own.len();
        let all = self.to_lend(stream).filter_map(|head| Some((self.group_of(head)?, head)));
        all.filter(move |(group, _)| own[*group] <= even)
    }

    /// Whether `head` has no permits for a superzone and is not a first head, which needs none.
    pub(super) fn is_permitless(&self, head: usize) -> bool {
        head >= self.layout.streams as usize && self.cursors[head].permit.is_none()
    }

    /// Heads of `stream` that are not parked and have neither a superzone nor permits for one.
    pub(super) fn permitless(&self, stream: usize) -> impl Iterator<Item = usize> + '_ {
        let none = |head: &usize| {
            let cursor = &self.cursors[*head];
            let none = cursor.head.superzone.is_none() && self.is_permitless(*head);
            none && !cursor.parked && !cursor.closing
        };
        self.heads_of(stream).filter(none)
    }

    /// Whether `stream` has more heads without permits than heads lent to it.
    pub(super) fn lacks_superzones(&self, stream: usize) -> bool {
        self.permitless(stream).count() > self.lent_to(stream).count()
    }

    /// Lends `stream` a parked superzone, the one on the group with the least load.
    pub(super) fn lend(&mut self, stream: usize) -> Option<usize> {
        let loads = self.group_loads(stream);
        let (_, head) = self.lendable(stream).min_by_key(|(group, head)| (loads[*group], *head))?;
        self.cursors[head].lent = Some(stream);
        self.level(head);
        Some(head)
    }

    /// Hands back the superzones lent to `stream` beyond its quota, those on the most loaded
    /// groups first.
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
