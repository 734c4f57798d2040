//! Heads: which superzone a block goes to.
//!
//! A *stream* collects blocks that are expected to die together: hot, warm and cold, data and
//! nodes. It writes through *heads*, each of which fills one superzone after the other. Head h
//! serves stream h mod streams, so the first heads, one for each stream, always exist. A busy
//! stream has more, up to its quota (`zone_quota`), and alternates between them, segment by
//! segment: the next one is the head whose interference group has received the fewest blocks lately
//! (`group_load`). The choice of the superzone to open, to park or to take back depends on the
//! writes expected of the other superzones on its group, as the last window predicts them. A
//! superzone beyond the quota is *parked*: it stays partly written and active on the drive, and is
//! the first to be taken back. A stream that lacks permits is *lent* parked superzones of other
//! streams of its class (`lend`). Where there is none to lend, a parked superzone is *closed* (its
//! zones finished) for its permits. Finishing a nearly empty zone can take a second, and the
//! unwritten rest of the zone is lost space. So while no stream lacks permits, the background
//! closes a parked superzone only if closing pays. Closing pays if no permits are left for another
//! superzone, the parked superzone has been parked for a whole window, and at most an eighth of it
//! (half while the drive is idle) is unwritten.
//!
//! Invariants
//! - The permits of the first heads are never given away, so every stream can always write.
//! - Any other head that has a superzone holds a permit for each of its zones, from the rest of the
//!   drive's one budget. It gives them back when the writes of that superzone have completed.
//! - A head within a segment is the current head of a stream. So the number of open summaries is at
//!   most the number of streams.
//! - While free superzones are scarce, open superzones are filled before any is opened, those of
//!   parked heads included. Where the free ones are kept for cleaning, a stream fills superzones
//!   that *another* stream has open, preferably a stream of the same class. So space is one number,
//!   no matter which streams the promised blocks go to: see `space`.

mod adopt;
mod audit;
mod lend;

use crate::alloc::group_load::Load;
use crate::alloc::space::RESERVE;
use crate::alloc::zone_quota::{self, WINDOW};
use crate::alloc::{Allocator, ZoneAction};
use crate::format::SummaryEntry;
use crate::layout::Layout;
use crate::types::StreamInfo;
use furrow_log::budget::{Budget, Class, Permit};
use furrow_log::pool::{GroupLoad, SuperzoneId};
use furrow_log::writer::Kind as WriteKind;
use furrow_policy::{StreamHeads, SuperzoneTurn};
use furrow_rt::{Nanos, Page};
use furrow_zone::{Error, ErrorKind, Geometry, Result, ZoneId};
use std::collections::BTreeSet;
use zerocopy::FromZeros;

pub(crate) use crate::format::HEADS_PER_STREAM;

/// The superzone that a head writes to, and the place in it.
///
/// Invariants:
/// - Without a superzone `next` is 0 and `summary` empty.
/// - With a superzone, `next` is a block that takes data, and `summary` has an entry for each block
///   of the segment before `next`. A summary or padding that is due is written at once.
#[derive(Default, Clone)]
pub(crate) struct Head {
    /// The head's superzone, if it has one.
    pub(crate) superzone: Option<u32>,
    /// Next block of the superzone, in striping order.
    pub(crate) next: u32,
    /// Owners of the blocks of the open segment.
    pub(crate) summary: Vec<SummaryEntry>,
    /// The head's previous superzone and its generation: zones of the new superzone take over the
    /// permits of the old zones. By the time the next superzone is opened, the previous one may
    /// have been released and belong to another head.
    pub(crate) previous: Option<(u32, u32)>,
}

/// A head, whether its stream uses it, and its permits.
///
/// Invariants:
/// - A head beyond the first heads that has a superzone and is not closing holds a permit for each
///   of its zones. The first heads hold no permits of their own.
/// - Only a head with a superzone has `closing` or `unasked` set. Such a head is parked, or
///   cleaning will empty its superzone.
/// - `lent` is set only while the head is parked, has a superzone and is not closing.
#[derive(Default)]
pub(crate) struct Cursor {
    pub(super) head: Head,
    /// The head is beyond its stream's quota, so its stream does not write through it.
    parked: bool,
    /// The stream that the head's superzone is lent to; it is of the same class as the head's
    /// own stream.
    lent: Option<usize>,
    /// Time at which the head was parked.
    since: Nanos,
    /// The zones of the head's superzone are being finished.
    closing: bool,
    /// The superzone is closed because that pays, not because a stream waits for permits.
    unasked: bool,
    /// Permits for the zones of the superzone. The permits of the first heads are
    /// in [`Streams::reserved`].
    permit: Option<Permit>,
}

/// A stream's state in memory.
#[derive(Clone, Default)]
struct Stream {
    /// The head that the stream writes through, or wrote through last.
    current: usize,
    quota: u32,
    /// Number of blocks written in the current window.
    window: u64,
    /// Number of blocks written since the last sample of the stream's class.
    sampled: u64,
    /// Blocks per second, from the last window or from a later sample that changed quotas.
    rate: u64,
    /// Number of blocks written since the mount.
    blocks: u64,
}

/// Streams and the permits of their heads.
pub(crate) struct Streams {
    streams: Vec<Stream>,
    began: Nanos,
    /// Start times of the present samples of data and of nodes.
    sampling: [Nanos; 2],
    budget: Budget,
    /// Number of superzones that saturate the drive; 0 if unknown.
    peak: u32,
    /// Number of superzones that the drive's active zones allow.
    available: u32,
    placement: StreamHeads,
    load: Load,
    /// Whether a stream lacked the permits for a superzone, and found no superzone to borrow, since
    /// the last call of [`Allocator::head_to_close`].
    starved: bool,
    /// Permits of the logs and the first heads, held as long as the engine lives.
    reserved: [Permit; 2],
}

impl Streams {
    /// The stream state for `layout` on a drive of `geometry`, whose superzones are in `groups`
    /// interference groups.
    ///
    /// # Errors
    /// `Invalid` if the drive has fewer active zones than the file system was made for.
    pub(crate) fn new(
        geometry: &Geometry,
        placement: StreamHeads,
        layout: &Layout,
        groups: u32,
        now: Nanos,
    ) -> Result<(Streams, Vec<Cursor>)> {
        let (streams, width, logs) = (layout.streams, layout.width, layout.log_permits());
        let first = streams * width;
        let permits = geometry.max_active.unwrap_or(u32::MAX).min(geometry.zones);
        // The unwritten rest of an open superzone is unusable space. So the superzones of all heads
        // beyond the first heads may make up at most a sixteenth of the drive.
        let by_space = layout.superzones / 16;
        let extra = permits.saturating_sub(logs + first) / width;
        let extra = extra.min(by_space).min(streams * (HEADS_PER_STREAM - 1));
        let total = logs + first + extra * width;
        if total > permits {
            let message = format!(
                "the drive has {permits} active zones, but the file system was made for {total}"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let budget = Budget::new(total, &[]);
        let take = |class, count| budget.try_acquire(class, count).expect("invariant: the sum");
        let reserved = [take(Class::Metadata, logs), take(Class::User, first)];
        let most = match placement {
            _ if extra == 0 => 1,
            StreamHeads::Fixed(count) => count.clamp(1, HEADS_PER_STREAM),
            StreamHeads::Split(counts) => counts
                .iter()
                .fold(1, |most, count| most.max(u32::from(*count)))
                .min(HEADS_PER_STREAM),
            StreamHeads::Quota => HEADS_PER_STREAM,
        };
        let cursor = |head: u32| Cursor { parked: head >= streams, ..Cursor::default() };
        let mut cursors: Vec<Cursor> = (0..streams * most).map(cursor).collect();
        let mut this = Streams {
            streams: (0..streams as usize)
                .map(|current| Stream { current, quota: 1, ..Stream::default() })
                .collect(),
            began: now,
            sampling: [now; 2],
            budget,
            peak: if groups > 1 { groups } else { 0 },
            available: streams + extra,
            placement,
            load: Load::new(groups, layout.segment_blocks),
            starved: false,
            reserved,
        };
        this.fix(&mut cursors, streams, most);
        Ok((this, cursors))
    }

    /// Gives each stream the quota that `placement` fixes; each stream has `most` heads.
    fn fix(&mut self, cursors: &mut [Cursor], streams: u32, most: u32) {
        for index in 0..streams {
            let quota = match self.placement {
                StreamHeads::Quota => return,
                StreamHeads::Fixed(_) => most,
                StreamHeads::Split(counts) => u32::from(counts[index as usize]).clamp(1, most),
            };
            self.streams[index as usize].quota = quota;
            let heads = (0..quota).map(|round| (round * streams + index) as usize);
            heads.for_each(|head| cursors[head].parked = false);
        }
    }
}

/// Converts `blocks` written in `elapsed` nanoseconds to blocks per second.
fn per_second(blocks: u64, elapsed: u64) -> u64 {
    blocks.saturating_mul(1000) / (elapsed / Nanos::MILLI).max(1)
}

impl Allocator {
    /// The stream that takes the blocks of `stream`: another stream if the drive's permits allow
    /// fewer than six streams.
    pub(crate) fn folded(&self, stream: u8) -> usize {
        usize::from(match self.layout.streams {
            6 => stream,
            4 => [0, 1, 1, 2, 3, 3][usize::from(stream)],
            _ => stream / 3,
        })
    }

    /// Stream that `head` serves.
    pub(crate) fn stream_of_head(&self, head: usize) -> usize {
        head % self.layout.streams as usize
    }

    /// Heads of a stream, the first head (which always exists) at the front.
    fn heads_of(&self, stream: usize) -> impl Iterator<Item = usize> + use<> {
        (stream..self.cursors.len()).step_by(self.layout.streams as usize)
    }

    /// Payload blocks left in the superzones that a stream has open.
    pub(crate) fn space_in(&self, stream: usize) -> u32 {
        let open = |head: &usize| !self.cursors[*head].closing;
        self.heads_of(stream).filter(open).map(|head| self.room_of(head)).sum()
    }

    /// Superzones that heads write to, and the payload blocks left in each.
    pub(crate) fn open_superzones(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let open = (0..self.cursors.len()).filter(|head| !self.cursors[*head].closing);
        open.filter_map(|head| Some((self.cursors[head].head.superzone?, self.room_of(head))))
    }

    fn room_of(&self, head: usize) -> u32 {
        let head = &self.cursors[head].head;
        let Some(superzone) = head.superzone else { return 0 };
        let stripe = self.stripe(superzone);
        // Each earlier segment used one block for its summary.
        let used = head.next - head.next / stripe.segment;
        self.less("payload of an open superzone", stripe.payload_blocks(), used)
    }

    /// Chooses the head that the next block of `stream` goes to; this head has a superzone.
    pub(super) fn head_for(&mut self, stream: usize, dirty: u64) -> Result<usize> {
        if let Some(current) = self.head_in_segment(stream) {
            return Ok(current);
        }
        self.end_window();
        let chosen = match self.choose_head(stream, dirty)? {
            Some(chosen) => chosen,
            None => match self.borrow_head(stream) {
                Some(borrowed) => return Ok(borrowed),
                // A closing first head has no permits to spare for another superzone.
                None if self.cursors[stream].closing => {
                    let streams = self.layout.streams as usize;
                    return self.head_for((stream + 1) % streams, dirty);
                }
                None => {
                    self.open_superzone(stream)?;
                    stream
                }
            },
        };
        self.streams.streams[stream].current = chosen;
        Ok(chosen)
    }

    /// The current head of `stream`, if it is within a segment.
    fn head_in_segment(&self, stream: usize) -> Option<usize> {
        let current = self.streams.streams[stream].current;
        let Cursor { head, lent, .. } = &self.cursors[current];
        let within = !head.next.is_multiple_of(self.layout.segment_blocks);
        // The current head may have been lent, or handed back, since the stream ended a segment.
        let writes = lent.unwrap_or_else(|| self.stream_of_head(current)) == stream;
        (head.superzone.is_some() && within && writes).then_some(current)
    }

    /// Finds a head of another stream that has space, if the last free superzones are kept
    /// for cleaning.
    fn borrow_head(&mut self, stream: usize) -> Option<usize> {
        if self.may_open() {
            return None;
        }
        let streams = self.layout.streams as usize;
        let class = |other: usize| (other < streams / 2) != (stream < streams / 2);
        let mut others: Vec<usize> = (0..streams).filter(|other| *other != stream).collect();
        others.sort_by_key(|other| (class(*other), *other));
        for other in others {
            let head = self.head_in_segment(other).or_else(|| self.take_begun_head(other));
            if let Some(head) = head {
                self.streams.streams[other].current = head;
                return Some(head);
            }
        }
        None
    }

    /// Takes the next head of `stream`, by rotation, that has a superzone. If that head is lent and
    /// between segments, the loan ends, so that the segment that begins there is the stream's own.
    fn take_begun_head(&mut self, stream: usize) -> Option<usize> {
        let heads: Vec<usize> = self.heads_of(stream).collect();
        let current = self.streams.streams[stream].current;
        let at = heads.iter().position(|head| *head == current).unwrap_or(0);
        let mut in_turn = (0..heads.len()).map(|i| heads[(at + 1 + i) % heads.len()]);
        let head = in_turn.find(|head| {
            self.cursors[*head].head.superzone.is_some() && !self.cursors[*head].closing
        })?;
        if self.is_between(head) && self.cursors[head].lent.take().is_some() {
            self.cursors[head].since = self.rt.now();
        }
        Some(head)
    }

    /// Chooses the head to continue with. An unparked head without a superzone is given a superzone
    /// if possible; if not, another stream's superzone is lent. Otherwise the head whose group has
    /// the least load is chosen, and heads with equal loads take turns. While free superzones are
    /// scarce, only heads that have a superzone are considered.
    fn choose_head(&mut self, stream: usize, dirty: u64) -> Result<Option<usize>> {
        let heads: Vec<usize> = self.heads_of(stream).chain(self.lent_to(stream)).collect();
        let mut permitless = None;
        let current = self.streams.streams[stream].current;
        let at = heads.iter().position(|head| *head == current).unwrap_or(0);
        let in_turn = |i: usize| heads[(at + 1 + i) % heads.len()];
        let mut plenty = None;
        let mut least: Option<(u64, usize)> = None;
        for head in (0..heads.len()).map(in_turn) {
            if self.writer_of(head) != Some(stream) || self.cursors[head].closing {
                continue;
            }
            if let Some(superzone) = self.cursors[head].head.superzone {
                let group = self.zones.group(SuperzoneId(superzone));
                let weighed = self.variant.weighed_turns.holds();
                let load = if weighed { self.streams.load.of(group) } else { 0 };
                if least.is_none_or(|(least, _)| load < least) {
                    least = Some((load, head));
                }
                continue;
            }
            let plenty = *plenty.get_or_insert_with(|| self.free_superzones_are_plenty(dirty));
            if self.is_permitless(head) {
                permitless = permitless.or(plenty.then_some(head));
            } else if plenty && self.open_superzone(head)? {
                return Ok(Some(head));
            }
        }
        if let Some(head) = permitless.filter(|_| self.lacks_superzones(stream)) {
            if self.open_superzone(head)? {
                return Ok(Some(head));
            }
            if let Some(lent) = self.lend(stream) {
                return Ok(Some(lent));
            }
            self.streams.starved = true;
        }
        Ok(least.map(|(_, head)| head).or_else(|| self.take_begun_head(stream)))
    }

    /// True if a superzone can be opened before it is needed, with space left for every
    /// promised block.
    fn free_superzones_are_plenty(&self, dirty: u64) -> bool {
        let kept = RESERVE + 2;
        let blocks = u64::from(kept) * u64::from(self.superzone_blocks());
        kept < self.zones.free_count() && blocks < self.spare(dirty)
    }

    /// Gives `head` a new superzone; false if there are no permits for it.
    fn open_superzone(&mut self, head: usize) -> Result<bool> {
        if self.is_permitless(head) {
            let permit = self.streams.budget.try_acquire(Class::User, self.layout.width);
            if permit.is_none() {
                return Ok(false);
            }
            self.cursors[head].permit = permit;
        }
        let Some(id) = self.zones.allocate(&self.group_loads(self.stream_of_head(head))) else {
            // Reservations ensure that a superzone is free here. If no superzone is free, stopping
            // is better than losing data.
            let message = "no free superzone for a write already promised";
            return Err(Error::new(ErrorKind::NoSpace, message));
        };
        let previous = self.cursors[head]
            .head
            .previous
            .map(|(superzone, generation)| (SuperzoneId(superzone), generation))
            .filter(|(id, generation)| self.zones.generation(*id) == *generation)
            .map(|(id, _)| self.zones.get(id).zones);
        for (column, zone) in self.zones.get(id).zones.into_iter().enumerate() {
            let after = previous.as_ref().and_then(|zones| zones.get(column));
            let after = after.copied().filter(|_| self.variant.superzones == SuperzoneTurn::After);
            self.actions.push(ZoneAction::Open { zone, after });
        }
        let generation = self.zones.generation(id);
        self.since_checkpoint.took((head as u8, id.0, generation));
        self.cursors[head].head = Head { superzone: Some(id.0), ..Head::default() };
        self.level(head);
        Ok(true)
    }

    /// Raises the load count of the group of `head` to the least count among the other heads that
    /// its stream writes to: `head` has just joined them.
    fn level(&mut self, head: usize) {
        let Some(own) = self.cursors[head].head.superzone else { return };
        let group = |superzone| self.zones.group(SuperzoneId(superzone));
        let writer = self.writer_of(head);
        let others: Vec<u32> = (0..self.cursors.len())
            .filter(|other| *other != head && self.writer_of(*other) == writer)
            .filter_map(|other| self.cursors[other].head.superzone.map(group))
            .collect();
        self.streams.load.level(group(own), others.into_iter());
    }

    /// Predicts the load on each interference group for `stream`: each stream writes equally to
    /// each superzone it has open, and nothing to parked ones.
    fn group_loads(&self, stream: usize) -> Vec<GroupLoad> {
        let mut groups = vec![GroupLoad::default(); self.zones.groups() as usize];
        let class = self.class_of(stream);
        let begun = |head: &usize| self.cursors[*head].head.superzone.is_some();
        let mut busy = vec![0; self.layout.streams as usize];
        for head in (0..self.cursors.len()).filter(begun) {
            self.writer_of(head).into_iter().for_each(|writer| busy[writer] += 1);
        }
        for head in 0..self.cursors.len() {
            let Some(superzone) = self.cursors[head].head.superzone else { continue };
            let group = &mut groups[self.zones.group(SuperzoneId(superzone)) as usize];
            // Count the superzones of the class separately: data and nodes are written in
            // separate bursts.
            group.class += u32::from(class.contains(&self.stream_of_head(head)));
            let writer = self.writer_of(head).filter(|_| self.variant.open_by_load.holds());
            if let Some(writer) = writer {
                group.own += u32::from(writer == stream);
                group.load += self.streams.streams[writer].rate / busy[writer];
            }
        }
        groups
    }

    /// Counts a block of file data, or a node, written by `head`.
    pub(crate) fn count_block(&mut self, head: usize, superzone: u32) {
        let stream = self.writer_of(head).unwrap_or_else(|| self.stream_of_head(head));
        let stream = &mut self.streams.streams[stream];
        stream.window += 1;
        stream.sampled += 1;
        stream.blocks += 1;
        self.streams.load.count(self.zones.group(SuperzoneId(superzone)));
    }

    /// Notes that the superzone of `head` is full. If the head is parked, its permits are given
    /// back, or go to the stream that the head was lent to.
    pub(crate) fn head_is_full(&mut self, head: usize, superzone: u32) {
        let id = SuperzoneId(superzone);
        self.zones.mark_full(id);
        let previous = Some((superzone, self.zones.generation(id)));
        self.cursors[head].head = Head { previous, ..Head::default() };
        let lent = self.cursors[head].lent.take();
        if let Some(heir) = lent.and_then(|stream| self.permitless(stream).next()) {
            self.cursors[heir].permit = self.cursors[head].permit.take();
            self.cursors[heir].head.previous = self.cursors[head].head.previous.take();
        } else if self.cursors[head].parked {
            self.give_permit_back(head);
        }
    }

    /// A zone of superzone `id` failed: the head that writes to the superzone continues in another.
    /// If the head is parked, returns its permits, to be given back when the zones are closed.
    pub(crate) fn leave_superzone(&mut self, id: SuperzoneId) -> Option<Permit> {
        let head = self.head_of(id.0)?;
        let parked = self.cursors[head].parked;
        if self.cursors[head].closing {
            return None;
        }
        self.zones.mark_full(id);
        let previous = (!parked).then(|| (id.0, self.zones.generation(id)));
        self.cursors[head].head = Head { previous, ..Head::default() };
        self.cursors[head].lent = None;
        self.cursors[head].permit.take_if(|_| parked)
    }

    /// Gives back the permits of a head without a superzone, once the writes to its previous
    /// superzone have completed.
    fn give_permit_back(&mut self, head: usize) {
        let Some(permit) = self.cursors[head].permit.take() else { return };
        let Some((superzone, generation)) = self.cursors[head].head.previous.take() else { return };
        if self.zones.generation(SuperzoneId(superzone)) != generation {
            return;
        }
        let zones = self.zones.get(SuperzoneId(superzone)).zones;
        self.actions.push(ZoneAction::Return { zones, permit });
    }

    /// Streams of the class of `stream`.
    fn class_of(&self, stream: usize) -> std::ops::Range<usize> {
        self.class(stream >= self.layout.streams as usize / 2)
    }

    /// Streams of data, or of nodes.
    fn class(&self, nodes: bool) -> std::ops::Range<usize> {
        let streams = self.layout.streams as usize;
        if nodes { streams / 2..streams } else { 0..streams / 2 }
    }

    /// At the end of a window, sets quotas. Before the end, only raises the quotas of streams that
    /// write much.
    fn end_window(&mut self) {
        let (now, elapsed) = (self.rt.now(), self.rt.now().since(self.streams.began));
        let over = elapsed >= WINDOW;
        if over {
            self.streams.began = now;
            self.streams.sampling = [now; 2];
            for stream in &mut self.streams.streams {
                stream.rate = per_second(stream.window, elapsed);
                stream.sampled = 0;
            }
        }
        let mut changed = Vec::new();
        for nodes in [false, true] {
            changed.extend(match over {
                true => self.quotas_by_window(nodes),
                false => self.quotas_by_sample(nodes),
            });
        }
        if self.streams.placement != StreamHeads::Quota {
            return;
        }
        // Superzones that one stream gives up are taken by another, so reductions come first.
        changed.sort_by_key(|(stream, quota)| *quota >= self.streams.streams[*stream].quota);
        for (stream, quota) in changed {
            self.set_quota(stream, quota);
        }
    }

    /// Number of superzones that a class may have open, and payload blocks of a segment.
    fn share(&self) -> (u32, u64) {
        let share = zone_quota::share(self.streams.peak, self.streams.available);
        (share, u64::from(self.layout.segment_blocks - 1))
    }

    /// Computes the quotas of a class at the end of a window.
    fn quotas_by_window(&mut self, nodes: bool) -> Vec<(usize, u32)> {
        let (share, segment) = self.share();
        let class = self.class(nodes);
        let of = self.streams.streams[class.clone()].iter_mut();
        let written: Vec<u64> = of.map(|stream| std::mem::take(&mut stream.window)).collect();
        let quotas = zone_quota::quotas(&written, segment, share, HEADS_PER_STREAM);
        class.zip(quotas.into_iter().flatten()).collect()
    }

    /// Computes which streams of a class get a larger quota before the window ends. A raised quota
    /// never exceeds the superzones within the stream's reach.
    fn quotas_by_sample(&mut self, nodes: bool) -> Vec<(usize, u32)> {
        let (share, segment) = self.share();
        let class = self.class(nodes);
        let of = &self.streams.streams[class.clone()];
        let sampled: Vec<u64> = of.iter().map(|stream| stream.sampled).collect();
        if !self.variant.early_quota.holds() || !zone_quota::is_sample(&sampled, segment, share) {
            return Vec::new();
        }
        let now = self.rt.now();
        let since = std::mem::replace(&mut self.streams.sampling[usize::from(nodes)], now);
        let current: Vec<u32> = of.iter().map(|stream| stream.quota).collect();
        let raised = zone_quota::raised(&sampled, &current, segment, share, HEADS_PER_STREAM);
        let load_changed = raised.iter().any(Option::is_some);
        for stream in &mut self.streams.streams[class.clone()] {
            let blocks = std::mem::take(&mut stream.sampled);
            if load_changed {
                stream.rate = per_second(blocks, now.since(since));
            }
        }
        let within = class.zip(raised).filter_map(|(stream, quota)| {
            let quota = quota?.min(self.within_reach(stream));
            (quota > self.streams.streams[stream].quota).then_some((stream, quota))
        });
        within.collect()
    }

    /// Number of superzones that a stream can use without taking permits from other streams: those
    /// it has, parked ones included, those it can be lent, and those it can open.
    fn within_reach(&self, stream: usize) -> u32 {
        let has = |head: &usize| {
            let turn = &self.cursors[*head];
            let parked = turn.head.superzone.is_some() && turn.lent.is_none();
            !turn.closing && (!turn.parked || parked)
        };
        let has = self.heads_of(stream).filter(has).count() as u32;
        let groups: BTreeSet<usize> = self.lendable(stream).map(|(group, _)| group).collect();
        has + groups.len() as u32 + self.streams.budget.available() / self.layout.width
    }

    /// Whether `head` has no superzone yet; if it has one, also the load on that superzone's group.
    fn open_group_load(&self, head: usize) -> (bool, GroupLoad) {
        let Some(superzone) = self.cursors[head].head.superzone else {
            return (true, GroupLoad::default());
        };
        let groups = self.group_loads(self.stream_of_head(head));
        (false, groups[self.zones.group(SuperzoneId(superzone)) as usize])
    }

    pub(super) fn set_quota(&mut self, stream: usize, quota: u32) {
        self.streams.streams[stream].quota = quota;
        let heads: Vec<usize> = self.heads_of(stream).collect();
        let active = heads.iter().filter(|head| !self.cursors[**head].parked).count();
        for _ in active..quota as usize {
            // Parked superzones are taken back before any is opened, those on the least loaded
            // groups first. Lent ones are taken back last, and never within a segment.
            let turn = |head: &&usize| &self.cursors[**head];
            let parked = heads.iter().filter(|head| turn(head).parked && !turn(head).closing);
            let free = parked.filter(|head| turn(head).lent.is_none() || self.is_between(**head));
            let next = free.min_by_key(|head| {
                let (none, load) = self.open_group_load(**head);
                (turn(head).lent.is_some(), none, load, **head)
            });
            let Some(next) = next.copied() else { break };
            self.cursors[next].parked = false;
            self.cursors[next].lent = None;
            self.level(next);
        }
        for _ in quota as usize..active {
            let busy = heads.iter().skip(1).filter(|head| !self.cursors[**head].parked);
            let next = busy.max_by_key(|head| (self.open_group_load(**head), **head));
            let Some(next) = next.copied() else { break };
            self.cursors[next].parked = true;
            self.cursors[next].since = self.rt.now();
            if self.cursors[next].head.superzone.is_none() {
                self.give_permit_back(next);
            }
        }
        self.hand_back(stream);
    }

    /// Chooses the parked head to close, if permits are lacking or closing pays: the fullest head,
    /// which is cheapest to finish. `idle` says that the drive is idle.
    pub(super) fn head_to_close(&mut self, idle: bool, dirty: u64) -> Option<usize> {
        let starved = std::mem::take(&mut self.streams.starved);
        let scarce = self.streams.budget.available() < self.layout.width;
        // Closing loses the unwritten rest of the superzone: nothing is closed while that space may
        // be needed.
        let closing = self.is_closing();
        if closing || !(starved || scarce) || !self.free_superzones_are_plenty(dirty) {
            return None;
        }
        let parked = (0..self.cursors.len())
            .filter(|head| self.cursors[*head].parked && self.cursors[*head].lent.is_none())
            .filter(|head| self.cursors[*head].head.superzone.is_some());
        let head = parked.max_by_key(|head| (self.cursors[*head].head.next, *head))?;
        self.cursors[head].unasked = !starved;
        (starved || self.pays(head, idle)).then_some(head)
    }

    /// Whether it pays to finish the zones of the parked `head` while no stream waits for
    /// its permits.
    fn pays(&self, head: usize, idle: bool) -> bool {
        let (turn, superzone) = (&self.cursors[head], self.cursors[head].head.superzone);
        let blocks = superzone.map_or(0, |superzone| self.stripe(superzone).blocks());
        let (next, segment) = (self.cursors[head].head.next, self.layout.segment_blocks);
        let left = blocks - next.min(blocks);
        next.is_multiple_of(segment)
            && self.rt.now().since(turn.since) >= WINDOW
            && left <= blocks / if idle { 2 } else { 8 }
    }

    /// Fills the rest of the open segment of `head` with zeros, and writes its summary.
    pub(crate) fn pad_segment(&mut self, head: usize) {
        while let Some(superzone) = self.cursors[head].head.superzone {
            let next = self.cursors[head].head.next;
            if next.is_multiple_of(self.layout.segment_blocks) {
                return;
            }
            self.write_at(superzone, next, Page::zeroed(), WriteKind::Padding);
            self.cursors[head].head.summary.push(SummaryEntry::new_zeroed());
            self.cursors[head].head.next += 1;
            self.finish_segment(head);
        }
    }

    /// Begins to close the superzone of `head`, after padding its open segment. Returns the zones
    /// that the caller must finish.
    pub(super) fn begin_closing(&mut self, head: usize) -> Vec<ZoneId> {
        self.pad_segment(head);
        let Some(superzone) = self.cursors[head].head.superzone else { return Vec::new() };
        self.cursors[head].closing = true;
        self.cursors[head].lent = None;
        self.zones.get(SuperzoneId(superzone)).zones
    }

    /// Notes that the zones of a closed superzone are finished. Returns whether it was closed
    /// because that pays, not because a stream waited.
    pub(super) fn end_closing(&mut self, head: usize) -> bool {
        if let Some(superzone) = self.cursors[head].head.superzone {
            self.zones.mark_full(SuperzoneId(superzone));
            self.cursors[head].head = Head::default();
        }
        let cursor = &mut self.cursors[head];
        cursor.closing = false;
        cursor.permit = None;
        std::mem::take(&mut cursor.unasked)
    }

    /// Whether a superzone is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.cursors.iter().any(|cursor| cursor.closing)
    }

    /// The head that writes to `superzone`, if any.
    pub(crate) fn head_of(&self, superzone: u32) -> Option<usize> {
        self.cursors.iter().position(|cursor| cursor.head.superzone == Some(superzone))
    }

    /// Number of heads.
    pub(crate) fn heads_count(&self) -> usize {
        self.cursors.len()
    }

    /// All heads, in the order of their numbers.
    pub(crate) fn heads(&self) -> impl Iterator<Item = &Head> {
        self.cursors.iter().map(|cursor| &cursor.head)
    }

    /// See [`crate::Fs::streams`].
    pub(crate) fn stream_infos(&self) -> Vec<StreamInfo> {
        let names = crate::format::stream_names(self.layout.streams);
        let info = |(index, name): (usize, &&'static str)| {
            let stream = &self.streams.streams[index];
            let begun = |head: &usize| self.cursors[*head].head.superzone.is_some();
            let idle = |head: &usize| self.writer_of(*head).is_none();
            StreamInfo {
                name,
                quota: stream.quota,
                open: self.written_by(index).filter(begun).count() as u32,
                lent: self.lent_to(index).count() as u32,
                parked: self.heads_of(index).filter(begun).filter(idle).count() as u32,
                blocks: stream.blocks,
            }
        };
        names.iter().enumerate().map(info).collect()
    }

    /// The number of active zones that heads and logs may hold, and how many of them are held.
    pub(crate) fn permits(&self) -> (u32, u32) {
        let budget = &self.streams.budget;
        (budget.total(), budget.total() - budget.available())
    }
}
