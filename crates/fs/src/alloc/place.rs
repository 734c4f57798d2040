//! Placement: which block of a segment a write gets, and which blocks are valid.
//!
//! Every block of file data and every node is written through a stream, by one of its heads
//! (`heads`), which fills one superzone after the other in striping order. The last block of each
//! segment is its summary. Writing a block marks it valid in the SIT, and marks the block it
//! replaces invalid.

use crate::alloc::heads::Head;
use crate::alloc::stripe::Stripe;
use crate::alloc::{Allocator, ClosedSegment, ZoneAction};
use crate::format::{SUMMARY_MAGIC, SummaryEntry, SummaryHeader, class};
use furrow_log::address::BlockAddr;
use furrow_log::pool::SuperzoneId;
use furrow_log::record::crc32c;
use furrow_log::writer::Kind as WriteKind;
use furrow_rt::Page;
use furrow_zone::{Result, ZoneId};
use zerocopy::{FromZeros, IntoBytes};

/// Slot number that marks the block as the node itself.
pub(crate) const NODE_SLOT: u16 = u16::MAX;

/// The stream that a block is written through, and its owner.
pub(crate) struct Block {
    /// The stream: 0 to 2 are data, hot to cold; 3 to 5 are nodes, hot to cold.
    pub(crate) stream: u8,
    /// The node that owns the block.
    pub(crate) node: u32,
    /// Slot in that node, or [`NODE_SLOT`].
    pub(crate) slot: u16,
}

/// Stream for the data of a directory or of a file of `class`.
pub(crate) fn data_stream(class_: u8) -> u8 {
    match class_ {
        class::DIRECTORY | class::HOT => 0,
        class::COLD => 2,
        _ => 1,
    }
}

/// Stream for a node. Nodes of directories are hot, index nodes are cold.
pub(crate) fn node_stream(class_: u8, level: u8) -> u8 {
    match (class_, level) {
        (class::DIRECTORY, _) => 3,
        (_, 0 | crate::format::LEVEL_INODE) => 4,
        _ => 5,
    }
}

impl Allocator {
    /// The stripe of `superzone`, which is narrower if some of its zones are bad.
    pub(crate) fn stripe(&self, superzone: u32) -> Stripe {
        let width = self.zones.width(SuperzoneId(superzone));
        self.layout.stripe(width.max(1))
    }

    /// Stream that writes, or wrote, the superzone of `addr`.
    pub(crate) fn stream_at(&self, addr: u32) -> u8 {
        let Some((superzone, segment, _)) = self.segment_of(addr) else { return 0 };
        let open = self.head_of(superzone);
        open.map_or(self.sit.get(segment).stream, |head| self.stream_of_head(head) as u8)
    }

    /// The superzone, the segment's number in the SIT and the block in the segment of an address in
    /// the main area; `None` elsewhere.
    pub(crate) fn segment_of(&self, addr: u32) -> Option<(u32, u32, u32)> {
        let (zone, offset) = BlockAddr(addr).locate(&self.geometry)?;
        let superzone = self.layout.superzone_of(zone)?;
        let column = self.zones.column(SuperzoneId(superzone), zone)?;
        let stripe = self.stripe(superzone);
        let v = stripe.index(column, offset);
        let segment = stripe.segment_of(v)?;
        Some((superzone, superzone * self.layout.segments + segment, v % stripe.segment))
    }

    /// Marks the block at `addr` invalid.
    pub(crate) fn invalidate(&mut self, addr: u32) {
        self.set_valid(addr, false, 0);
    }

    /// Whether the block at `addr` is valid in the SIT.
    pub(crate) fn is_valid(&self, addr: u32) -> bool {
        let Some((_, segment, block)) = self.segment_of(addr) else { return false };
        self.sit.get(segment).map[(block / 8) as usize] >> (block % 8) & 1 == 1
    }

    /// True if a block of `superzone` at or after `next`, in striping order, is valid in the SIT.
    pub(crate) fn has_valid_from(&self, superzone: u32, next: u32) -> bool {
        let stripe = self.stripe(superzone);
        let first = superzone * self.layout.segments;
        (next / stripe.segment..stripe.segments()).any(|segment| {
            let entry = self.sit.get(first + segment);
            let from = next.saturating_sub(segment * stripe.segment);
            let bit = |block: u32| entry.map[(block / 8) as usize] >> (block % 8) & 1 == 1;
            entry.valid.get() > 0 && (from..stripe.segment).any(bit)
        })
    }

    /// Marks the block at `addr` valid (written by `stream`) or invalid. Does nothing if the block
    /// is in that state already.
    pub(crate) fn set_valid(&mut self, addr: u32, valid: bool, stream: u8) {
        let Some((superzone, segment, block)) = self.segment_of(addr) else { return };
        let (byte, bit) = ((block / 8) as usize, 1u8 << (block % 8));
        let entry = self.sit.get(segment);
        if (entry.map[byte] & bit != 0) == valid {
            return;
        }
        let changed = self.seconds.get();
        let count = |account: &str, count: u64| match valid {
            true => count + 1,
            false => self.less(account, count, 1),
        };
        let in_segment = count("SitEntry::valid", entry.valid.get().into()) as u16;
        let in_superzone = self.superzone_valid[superzone as usize];
        let in_superzone = count("superzone_valid", in_superzone.into()) as u32;
        let in_all = count("space.valid", self.valid);
        self.sit.update(segment, |entry| {
            entry.map[byte] ^= bit;
            entry.valid = in_segment.into();
            entry.changed = changed.into();
            if valid {
                entry.stream = stream;
            }
        });
        self.superzone_valid[superzone as usize] = in_superzone;
        self.valid = in_all;
    }

    /// Writes `page`, the content of `block`, to the next place of the block's stream, and returns
    /// the address. `dirty` is the number of blocks that were promised space.
    ///
    /// # Errors
    /// `NoSpace` if no head can be given a superzone, which reservations make impossible.
    pub(crate) fn write(&mut self, block: Block, page: Page, dirty: u64) -> Result<u32> {
        let head = self.head_for(self.folded(block.stream), dirty)?;
        // Where space is scarce, the head may belong to another stream.
        let stream = self.stream_of_head(head);
        let at = &self.cursors[head].head;
        let superzone = at.superzone.expect("invariant: a head with a superzone");
        let kind = if block.slot == NODE_SLOT { WriteKind::Node } else { WriteKind::Data };
        let addr = self.write_at(superzone, at.next, page, kind);
        let owner = SummaryEntry { node: block.node.into(), slot: block.slot.into() };
        self.cursors[head].head.summary.push(owner);
        self.cursors[head].head.next += 1;
        self.count_block(head, superzone);
        if !self.for_cleaning {
            self.since_checkpoint.wrote();
        }
        self.set_valid(addr, true, stream as u8);
        self.finish_segment(head);
        Ok(addr)
    }

    /// The place where an append puts the next block of `stream`: head, zone, block in the zone.
    ///
    /// # Errors
    /// The errors of [`Allocator::write`].
    pub(crate) fn next_place(&mut self, stream: u8, dirty: u64) -> Result<(usize, ZoneId, u32)> {
        let head = self.head_for(self.folded(stream), dirty)?;
        let at = &self.cursors[head].head;
        let superzone = at.superzone.expect("invariant: a head with a superzone");
        let (zone, offset) = self.place_in(superzone, at.next);
        Ok((head, zone, offset))
    }

    /// Sets the next block of `head` aside for an append; [`Allocator::told`] names its owner once
    /// the drive has placed the append. Returns true if the segment or the superzone has no further
    /// block for data.
    pub(crate) fn set_aside(&mut self, head: usize) -> bool {
        let at = &self.cursors[head].head;
        let superzone = at.superzone.expect("invariant: a head with a superzone");
        let stripe = self.stripe(superzone);
        let segment = superzone * self.layout.segments + at.next / stripe.segment;
        self.open_segments.entry(segment).or_default().blocks += 1;
        let at = &mut self.cursors[head].head;
        at.summary.push(SummaryEntry::new_zeroed());
        at.next += 1;
        let next = at.next;
        self.count_block(head, superzone);
        self.since_checkpoint.wrote();
        next == stripe.blocks() || stripe.is_summary(next) || stripe.is_padding(next)
    }

    /// Notes the owner of the block at `addr`, which was set aside. If this was the last unknown
    /// owner of a segment without free blocks, the segment's summary is written.
    pub(crate) fn told(&mut self, addr: u32, owner: SummaryEntry) {
        let Some((superzone, number, block)) = self.segment_of(addr) else { return };
        let Some(segment) = self.open_segments.get(&number) else { return };
        let left = self.less("OpenSegment::blocks", segment.blocks, 1);
        let Some(segment) = self.open_segments.get_mut(&number) else { return };
        segment.blocks = left;
        let last = left == 0;
        let mut cursors = self.cursors.iter_mut();
        let cursor = cursors.find(|cursor| cursor.head.superzone == Some(superzone));
        let entries = match (&mut segment.closed, cursor) {
            (Some(closed), _) => Some(&mut closed.entries),
            (None, cursor) => cursor.map(|cursor| &mut cursor.head.summary),
        };
        if let Some(entry) = entries.and_then(|entries| entries.get_mut(block as usize)) {
            *entry = owner;
        }
        if last
            && let Some(segment) = self.open_segments.remove(&number)
            && let Some(closed) = segment.closed
        {
            let (superzone, within) =
                (number / self.layout.segments, number % self.layout.segments);
            let ClosedSegment { zone, offset, stream, generation, entries } = closed;
            let page = self.build_summary(stream, superzone, within, generation, &entries);
            self.actions.push(ZoneAction::Fill { zone, offset, page });
        }
    }

    /// Gives up the summaries of the open segments of a superzone after an append to its zone
    /// `zone` failed: the places of other appends to the zone are uncertain.
    pub(crate) fn abandon_segments(&mut self, zone: ZoneId) {
        let Some(superzone) = self.layout.superzone_of(zone) else { return };
        let first = superzone * self.layout.segments;
        for (number, segment) in self.open_segments.split_off(&first) {
            if number >= first + self.layout.segments {
                self.open_segments.insert(number, segment);
            } else if let Some(ClosedSegment { zone, offset, .. }) = segment.closed {
                // Appends in flight to other zones of the superzone may still be placed. An empty
                // summary makes cleaning ask all nodes, which is better than a summary without
                // these owners.
                self.actions.push(ZoneAction::Fill { zone, offset, page: Page::zeroed() });
            }
        }
    }

    /// Writes the blocks that are due before the head's next data block: the summary at the end of
    /// a segment, and the padding at the end of a superzone. A superzone written to its end is
    /// noted as full.
    pub(crate) fn finish_segment(&mut self, head: usize) {
        loop {
            let Some(superzone) = self.cursors[head].head.superzone else { return };
            let stripe = self.stripe(superzone);
            let next = self.cursors[head].head.next;
            if next == stripe.blocks() {
                return self.head_is_full(head, superzone);
            }
            let segment = superzone * self.layout.segments + next / stripe.segment;
            if stripe.is_summary(next) && self.open_segments.contains_key(&segment) {
                self.summary_later(head, superzone, segment);
                self.cursors[head].head.next += 1;
                continue;
            }
            let page = if stripe.is_summary(next) {
                self.summary_page(head, superzone, next / stripe.segment)
            } else if stripe.is_padding(next) {
                Page::zeroed()
            } else {
                return;
            };
            let kind =
                if stripe.is_padding(next) { WriteKind::Padding } else { WriteKind::Summary };
            self.write_at(superzone, next, page, kind);
            self.cursors[head].head.next += 1;
        }
    }

    /// Sets aside the block for the summary of a head's open `segment`. The summary is written when
    /// the appends to the segment are placed.
    fn summary_later(&mut self, head: usize, superzone: u32, segment: u32) {
        let entries = std::mem::take(&mut self.cursors[head].head.summary);
        let stream = self.stream_of_head(head);
        self.claim_segment(segment, stream);
        let generation = self.zones.generation(SuperzoneId(superzone));
        let (zone, offset) = self.place_in(superzone, self.cursors[head].head.next);
        self.next_stamp();
        self.actions.push(ZoneAction::Reserve { zone, offset });
        self.note_unstable(zone, offset + 1);
        let stream = stream as u8;
        let closed = ClosedSegment { zone, offset, stream, generation, entries };
        self.open_segments.entry(segment).or_default().closed = Some(closed);
    }

    /// The zone, and the block in the zone, of block `v` of a superzone in striping order.
    pub(crate) fn place_in(&self, superzone: u32, v: u32) -> (ZoneId, u32) {
        let (column, offset) = self.stripe(superzone).place(v);
        (self.zones.zone(SuperzoneId(superzone), column), offset)
    }

    /// Builds the summary of a head's open segment, and empties the summary in memory for the
    /// next segment.
    fn summary_page(&mut self, head: usize, superzone: u32, segment: u32) -> Page {
        let entries = std::mem::take(&mut self.cursors[head].head.summary);
        let stream = self.stream_of_head(head);
        self.claim_segment(superzone * self.layout.segments + segment, stream);
        let generation = self.zones.generation(SuperzoneId(superzone));
        self.build_summary(stream as u8, superzone, segment, generation, &entries)
    }

    /// Notes which stream wrote a segment, because replay may have marked the segment's blocks
    /// valid before the stream was known.
    fn claim_segment(&mut self, segment: u32, stream: usize) {
        let said = self.sit.get(segment);
        if said.valid.get() > 0 && usize::from(said.stream) != stream {
            self.sit.update(segment, |entry| entry.stream = stream as u8);
        }
    }

    /// Notes which stream wrote each segment of a superzone.
    pub(crate) fn claim_segments(&mut self, superzone: u32, stream: usize) {
        let first = superzone * self.layout.segments;
        for segment in first..first + self.layout.segments {
            self.claim_segment(segment, stream);
        }
    }

    fn build_summary(
        &self,
        stream: u8,
        superzone: u32,
        segment: u32,
        generation: u32,
        entries: &[SummaryEntry],
    ) -> Page {
        let object = self.layout.uuid.0;
        let mut head = SummaryHeader {
            magic: SUMMARY_MAGIC.into(),
            superzone: superzone.into(),
            segment: segment.into(),
            generation: generation.into(),
            count: (entries.len() as u16).into(),
            stream,
            object: u64::from_le_bytes(object[..8].try_into().expect("invariant: 16 bytes")).into(),
            ..SummaryHeader::new_zeroed()
        };
        let mut page = self.pages.take();
        let bytes = page.make_mut();
        let size = size_of::<SummaryHeader>();
        bytes[..size].copy_from_slice(head.as_bytes());
        let entries = entries.as_bytes();
        bytes[size..size + entries.len()].copy_from_slice(entries);
        head.crc = crc32c(bytes).into();
        bytes[..size].copy_from_slice(head.as_bytes());
        page
    }

    /// Writes `page` to block `v` of a superzone, in striping order. Returns the block's address.
    pub(crate) fn write_at(&mut self, superzone: u32, v: u32, page: Page, kind: WriteKind) -> u32 {
        let (zone, offset) = self.place_in(superzone, v);
        self.next_stamp();
        self.actions.push(ZoneAction::Write { zone, offset, page, kind });
        self.note_unstable(zone, offset + 1);
        BlockAddr::new(&self.geometry, zone, offset).0
    }

    /// Number of segments that contain blocks set aside whose owners are not all known.
    pub(crate) fn open_segments(&self) -> usize {
        self.open_segments.len()
    }

    /// At recovery, builds the summary of a segment from the known `entries`.
    pub(crate) fn rebuild_summary(
        &mut self,
        head: usize,
        superzone: u32,
        segment: u32,
        entries: Vec<SummaryEntry>,
    ) -> Page {
        self.cursors[head].head.summary = entries;
        self.summary_page(head, superzone, segment)
    }

    /// At recovery, lets `head` continue at `at`.
    pub(crate) fn reopen(&mut self, head: usize, at: Head) {
        self.cursors[head].head = at;
        self.finish_segment(head);
    }

    /// At recovery, closes a superzone to further writes. `last` says that it is the last superzone
    /// that `head` had, so the head's next superzone follows it.
    pub(crate) fn leave_full(&mut self, head: usize, superzone: u32, last: bool) {
        let id = SuperzoneId(superzone);
        self.zones.mark_full(id);
        if last {
            let previous = Some((superzone, self.zones.generation(id)));
            self.cursors[head].head = Head { previous, ..Head::default() };
        }
    }
}
