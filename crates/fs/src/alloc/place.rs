//! Placement: segments, validity.
//!
//! Every block of file data and every node is written through a stream, by a head of it (`heads`)
//! that fills one superzone after the other in striping order. The last block of each segment is
//! its summary. Writing a block
//! marks it valid in the SIT and the block it replaces invalid.

use crate::blocked::NotApplied;
use crate::core::Core;
use crate::durability::append::Closed;
use crate::format::{SUMMARY_MAGIC, SummaryEntry, SummaryHeader, class};
use crate::tree::cache::Key;
use crate::tree::node::{Holder, header};
use crate::types::Ino;
use furrow_log::address::BlockAddr;
use furrow_log::pool::SuperzoneId;
use furrow_log::record::crc32c;
use furrow_log::writer::{Durability, Kind as WriteKind};
use furrow_rt::{Page, Pages};
use furrow_zone::ZoneId;
use zerocopy::{FromZeros, IntoBytes};

/// Slot number that says "the block is the node itself".
pub(crate) const NODE_SLOT: u16 = u16::MAX;

/// What a block is to be written as.
pub(crate) struct Block {
    /// Stream, 0–2 data hot to cold, 3–5 nodes hot to cold.
    pub(crate) stream: u8,
    /// Node that owns it.
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

/// Stream for a node: directory nodes are hot, index nodes cold.
pub(crate) fn node_stream(class_: u8, level: u8) -> u8 {
    match (class_, level) {
        (class::DIRECTORY, _) => 3,
        (_, 0 | crate::format::LEVEL_INODE) => 4,
        _ => 5,
    }
}

impl Core {
    /// The stripe of `superzone`: narrower if zones of it are bad.
    pub(crate) fn stripe(&self, superzone: u32) -> crate::alloc::stripe::Stripe {
        let width = self.zones.width(SuperzoneId(superzone));
        self.layout.stripe(width.max(1))
    }

    /// Stream that writes, or wrote, the superzone of `addr`.
    pub(crate) fn stream_at(&self, addr: u32) -> u8 {
        let Some((superzone, segment, _)) = self.segment_of(addr) else { return 0 };
        let open = self.heads.iter().position(|head| head.superzone == Some(superzone));
        open.map_or(self.sit.get(segment).stream, |head| self.stream_of_head(head) as u8)
    }

    /// Segment of the SIT and block in it of a main-area address; `None` elsewhere.
    pub(crate) fn segment_of(&self, addr: u32) -> Option<(u32, u32, u32)> {
        let (zone, offset) = BlockAddr(addr).locate(&self.geometry)?;
        let superzone = self.layout.superzone_of(zone)?;
        let column = self.zones.column(SuperzoneId(superzone), zone)?;
        let stripe = self.stripe(superzone);
        let v = stripe.index(column, offset);
        let segment = stripe.segment_of(v)?;
        Some((superzone, superzone * self.layout.segments + segment, v % stripe.segment))
    }

    /// The block at `addr` holds nothing of use any more.
    pub(crate) fn invalidate(&mut self, addr: u32) {
        self.set_valid(addr, false, 0);
    }

    /// Marks the block at `addr` valid or not; no effect if it is so already.
    pub(crate) fn set_valid(&mut self, addr: u32, valid: bool, stream: u8) {
        self.cache.look(1);
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
        let in_all = count("space.valid", self.space.valid);
        self.sit.update(segment, |entry| {
            entry.map[byte] ^= bit;
            entry.valid = in_segment.into();
            entry.changed = changed.into();
            if valid {
                entry.stream = stream;
            }
        });
        self.superzone_valid[superzone as usize] = in_superzone;
        self.space.valid = in_all;
    }

    /// Writes one block through its stream: its address. The page is frozen by this.
    pub(crate) fn write_block(&mut self, block: Block, page: Page) -> Result<u32, NotApplied> {
        let head = self.head_for(self.folded(block.stream))?;
        // Where room is scarce it may be another stream's.
        let stream = self.stream_of_head(head);
        let superzone = self.heads[head].superzone.expect("invariant: a head with a superzone");
        let kind = if block.slot == NODE_SLOT { WriteKind::Node } else { WriteKind::Data };
        let addr = self.write_at(superzone, self.heads[head].next, page, kind);
        let owner = SummaryEntry { node: block.node.into(), slot: block.slot.into() };
        self.heads[head].summary.push(owner);
        self.heads[head].next += 1;
        self.count_block(head, superzone);
        self.space.at_risk += u64::from(!self.space.for_cleaning);
        self.set_valid(addr, true, stream as u8);
        self.finish_segment(head);
        Ok(addr)
    }

    /// Writes what must follow a block: the summary at the end of a segment, padding at the end
    /// of the superzone, which is full then.
    pub(crate) fn finish_segment(&mut self, head: usize) {
        loop {
            let Some(superzone) = self.heads[head].superzone else { return };
            let stripe = self.stripe(superzone);
            let next = self.heads[head].next;
            if next == stripe.blocks() {
                return self.head_is_full(head, superzone);
            }
            let segment = superzone * self.layout.segments + next / stripe.segment;
            if stripe.is_summary(next) && self.appends.is_open(segment) {
                self.summary_later(head, superzone, segment);
                self.heads[head].next += 1;
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
            self.heads[head].next += 1;
        }
    }

    /// Sets the place of the summary of a head's open `segment` aside; it is written when the
    /// appends to the segment are placed.
    fn summary_later(&mut self, head: usize, superzone: u32, segment: u32) {
        let entries = std::mem::take(&mut self.heads[head].summary);
        let stream = self.stream_of_head(head);
        self.claim_segment(segment, stream);
        let generation = self.zones.generation(SuperzoneId(superzone));
        let (zone, offset) = self.place_in(superzone, self.heads[head].next);
        self.stamp += 1;
        let placed = self.writer.reserve_block(zone, WriteKind::Summary);
        debug_assert_eq!(placed, offset, "zone {zone}");
        self.unstable.insert(zone, (offset + 1, self.stamp));
        let stream = stream as u8;
        self.appends.close(segment, Closed { zone, offset, stream, generation, entries });
    }

    /// Zone and block of it at place `v` of a superzone.
    pub(crate) fn place_in(&self, superzone: u32, v: u32) -> (ZoneId, u32) {
        let (column, offset) = self.stripe(superzone).place(v);
        (self.zones.zone(SuperzoneId(superzone), column), offset)
    }

    /// The summary of a head's open segment; the next one is empty.
    pub(crate) fn summary_page(&mut self, head: usize, superzone: u32, segment: u32) -> Page {
        let entries = std::mem::take(&mut self.heads[head].summary);
        let stream = self.stream_of_head(head);
        self.claim_segment(superzone * self.layout.segments + segment, stream);
        let generation = self.zones.generation(SuperzoneId(superzone));
        self.build_summary(stream as u8, superzone, segment, generation, &entries)
    }

    /// Notes which stream wrote a segment: replay marked blocks valid before it was known.
    fn claim_segment(&mut self, segment: u32, stream: usize) {
        let said = self.sit.get(segment);
        if said.valid.get() > 0 && usize::from(said.stream) != stream {
            self.sit.update(segment, |entry| entry.stream = stream as u8);
        }
    }

    /// The same for a whole superzone.
    pub(crate) fn claim_segments(&mut self, superzone: u32, stream: usize) {
        let first = superzone * self.layout.segments;
        for segment in first..first + self.layout.segments {
            self.claim_segment(segment, stream);
        }
    }

    pub(crate) fn build_summary(
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

    /// Writes a block at its place in a superzone.
    pub(crate) fn write_at(&mut self, superzone: u32, v: u32, page: Page, kind: WriteKind) -> u32 {
        let (zone, offset) = self.place_in(superzone, v);
        let placed = self.dispatch(zone, smallvec::smallvec![page], kind, Durability::Cached);
        debug_assert_eq!(placed, offset, "zone {zone}");
        self.unstable.insert(zone, (offset + 1, self.stamp));
        BlockAddr::new(&self.geometry, zone, offset).0
    }

    /// Hands pages to the writer and counts them.
    pub(crate) fn dispatch(
        &mut self,
        zone: ZoneId,
        pages: Pages,
        kind: WriteKind,
        durability: Durability,
    ) -> u32 {
        self.stamp += 1;
        let (offset, written) = self.writer.write(zone, kind, pages, durability);
        // Where nobody watches, failures are seen by the next wait for a mark.
        if let Some(watched) = &mut self.watched {
            watched.push(written);
        }
        offset
    }

    /// Writes dirty `block` of `ino`: new place, new pointer.
    pub(crate) fn write_data(&mut self, ino: Ino, block: u32) -> Result<(), NotApplied> {
        let holder: Holder = match self.holder(ino, block)? {
            Some(holder) => holder,
            None => return Err(self.corrupt(format!("inode {ino} block {block} has no holder"))),
        };
        let key = Key::Data(ino.0, block);
        let entry = self.cache.peek(&key).expect("invariant: dirty blocks are in the cache");
        let crc = entry.crc().unwrap_or_else(|| crc32c(entry.page().bytes()));
        let class = header(self.node(holder.nid)?).class;
        let (page, ticket) = self.cache.begin_write(&key, crc).expect("invariant: looked up");
        let stream = data_stream(class);
        let addr = self.write_block(Block { stream, node: holder.nid, slot: holder.slot }, page)?;
        self.tickets.push(ticket);
        let old = self.slot(holder);
        self.set_slot(holder, crate::format::Pointer::new(addr, crc));
        if old.addr.get() != crate::format::HOLE {
            self.invalidate(old.addr.get());
        }
        Ok(())
    }

    /// Writes dirty node `nid`: new place, new NAT entry.
    pub(crate) fn write_node(&mut self, nid: u32) -> Result<(), NotApplied> {
        let checkpoint = self.checkpoint.id;
        let bytes = self.node_mut(nid);
        bytes[24..32].copy_from_slice(&checkpoint.to_le_bytes());
        let crc = crc32c(bytes);
        let key = Key::Node(nid);
        let (page, ticket) = self.cache.begin_write(&key, crc).expect("invariant: just changed");
        let (class, level) = (header(&page).class, header(&page).level);
        let stream = node_stream(class, level);
        let addr = self.write_block(Block { stream, node: nid, slot: NODE_SLOT }, page)?;
        self.tickets.push(ticket);
        let old = self.nat.get(nid);
        self.nat.update(nid, |entry| {
            entry.addr = addr.into();
            entry.crc = crc.into();
        });
        if old.addr.get() != crate::format::HOLE {
            self.invalidate(old.addr.get());
        }
        self.changed_nodes.wrote(old.ino.get(), nid);
        Ok(())
    }

    /// Writes every dirty block of `ino`, then its dirty nodes.
    pub(crate) fn write_file(&mut self, ino: Ino) -> Result<(), NotApplied> {
        let blocks: Vec<u32> = self.cache.dirty_of(ino.0).collect();
        for block in blocks {
            self.write_data(ino, block)?;
        }
        let nodes: Vec<u32> = self.cache.dirty_nodes_of(ino.0).collect();
        for nid in nodes {
            self.write_node(nid)?;
        }
        Ok(())
    }
}
