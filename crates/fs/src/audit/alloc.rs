//! Audits of space: valid blocks, superzones, and heads with their permits.

use crate::alloc::heads::Head;
use crate::alloc::place::NODE_SLOT;
use crate::core::Core;
use crate::format::{HOLE, SitEntry};
use furrow_log::address::BlockAddr;
use furrow_log::audit::{at_most, broken, equal, expect};
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_zone::Result;

/// Number of bits set in the map of a segment.
pub(super) fn bits(entry: &SitEntry) -> u32 {
    let words = entry.map.chunks_exact(8);
    words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()).count_ones()).sum()
}

/// Whether block `block` of a segment is valid.
pub(super) fn is_set(entry: &SitEntry, block: u32) -> bool {
    entry.map.get((block / 8) as usize).is_some_and(|byte| byte >> (block % 8) & 1 == 1)
}

impl Core {
    /// Checks the counts of valid blocks: the maps of segments, their counts, and the sums over
    /// each superzone and over the main area.
    pub(super) fn audit_valid(&self) -> Result<()> {
        let mut sums = vec![0u32; self.env.layout.superzones as usize];
        for (segment, entry) in self.alloc.sit().iter() {
            let bits = bits(entry);
            let account = format_args!("SitEntry::valid of segment {segment}");
            equal(account, bits, u32::from(entry.valid.get()))?;
            sums[(segment / self.env.layout.segments) as usize] += bits;
        }
        let (mut total, mut free) = (0, 0);
        for (index, (sum, said)) in
            self.alloc.valid_by_superzone().map(|(i, said)| (i, (&sums[i as usize], said)))
        {
            equal(format_args!("superzone_valid of superzone {index}"), *sum, said)?;
            total += u64::from(*sum);
            let id = SuperzoneId(index);
            match self.alloc.zones().state(id) {
                SuperzoneState::Free => free += u64::from(self.alloc.payload_of(id)),
                SuperzoneState::Tables | SuperzoneState::Retired => {}
                // A superzone with more valid blocks than fit into it would never be cleaned.
                _ => {
                    let account = format_args!("valid blocks of superzone {index}");
                    at_most(account, self.alloc.payload_of(id), *sum)?;
                    continue;
                }
            }
            equal(format_args!("valid blocks of superzone {index}, which has no data"), 0, *sum)?;
        }
        equal("space.valid", total, self.alloc.valid())?;
        if self.alloc.zones().is_narrow() {
            return Ok(());
        }
        let by_count =
            u64::from(self.alloc.zones().free_count()) * u64::from(self.alloc.superzone_blocks());
        equal("space in free superzones", free, by_count)
    }

    /// Checks the heads: their positions in their superzones, and their permits.
    pub(crate) fn audit_heads(&self) -> Result<()> {
        let heads: Vec<&Head> = self.alloc.heads().collect();
        let mut writers: Vec<Option<usize>> = vec![None; self.env.layout.superzones as usize];
        for (index, head) in heads.iter().enumerate() {
            let Some(superzone) = head.superzone else { continue };
            if let Some(other) = writers[superzone as usize].replace(index) {
                let account = format_args!("Head::superzone of head {index}");
                let why =
                    format_args!("expected one of its own, found {superzone}, head {other}'s");
                return Err(broken(account, why));
            }
        }
        for (index, head) in heads.into_iter().enumerate() {
            self.audit_turn(index, head)?;
            let Some(superzone) = head.superzone else { continue };
            self.audit_head((index, head), superzone, self.alloc.turn(index).closing)?;
        }
        self.alloc.audit_permits()
    }

    /// Checks open superzones against the SIT and the pool; with `owners`, also the owners of
    /// blocks in open segments.
    pub(super) fn audit_open_superzones(&self, owners: bool) -> Result<()> {
        let mut open = vec![false; self.env.layout.superzones as usize];
        for (index, head) in self.alloc.heads().enumerate() {
            let Some(superzone) = head.superzone else { continue };
            open[superzone as usize] = true;
            self.audit_segments((index, head), superzone)?;
            if owners {
                self.audit_open_segment(head, superzone)?;
            }
        }
        for (index, open) in (0..).zip(open) {
            let active = self.alloc.zones().state(SuperzoneId(index)) == SuperzoneState::Active;
            let account = format_args!("Head::superzone of active superzone {index}");
            expect(account, !active || open, "one head that names it")?;
        }
        Ok(())
    }

    /// Checks a head: it must be lent only as `TurnState::lent_rightly` says, its superzone must be
    /// active, and it must hold the right permits. If no stream writes through the head, it must be
    /// at the start of a segment.
    fn audit_turn(&self, index: usize, head: &Head) -> Result<()> {
        let turn = self.alloc.turn(index);
        let account = format_args!("Cursor::lent of head {index}");
        expect(account, turn.lent_rightly, "a parked head's, to a stream of its class")?;
        let between = head.next.is_multiple_of(self.env.layout.segment_blocks);
        let account = format_args!("Head::next of head {index}, out of turn");
        expect(account, between || turn.current, "the start of a segment")?;
        let Some(superzone) = head.superzone else {
            equal(format_args!("Head::next of head {index}, which is nowhere"), 0, head.next)?;
            let owners = head.summary.len();
            return equal(
                format_args!("Head::summary of head {index}, which is nowhere"),
                0,
                owners,
            );
        };
        let state = self.alloc.zones().state(SuperzoneId(superzone));
        let account = format_args!("state of superzone {superzone}, head {index}'s");
        expect(account, state == SuperzoneState::Active, "active")?;
        // The permits of the first heads are counted together, not head by head.
        if index < self.env.layout.streams as usize || turn.closing {
            return Ok(());
        }
        let account = format_args!("Turn::permit of head {index}");
        equal(account, self.env.layout.width, turn.permits.unwrap_or(0))
    }

    /// Checks the position of a head against its segment and against the writer's zones.
    fn audit_head(
        &self,
        (index, head): (usize, &Head),
        superzone: u32,
        closing: bool,
    ) -> Result<()> {
        let stripe = self.alloc.stripe(superzone);
        let account = format_args!("Head::next of head {index}");
        let room = head.next < stripe.blocks()
            && !stripe.is_summary(head.next)
            && !stripe.is_padding(head.next);
        expect(account, room, "a block that takes data")?;
        let block = head.next % stripe.segment;
        let account = format_args!("Head::next of head {index}, by its summary");
        equal(account, head.summary.len() as u32, block)?;
        for column in (0..stripe.width).filter(|_| !closing) {
            let zone = self.alloc.zones().zone(SuperzoneId(superzone), column);
            let expected = match self.env.writer.is_open(zone) {
                true => self.env.writer.position(zone),
                // The writer does not have the zone open: recovery found it written to its end.
                false => stripe.capacity,
            };
            let account =
                format_args!("Head::next of head {index}, by the position in zone {zone}");
            equal(account, expected, stripe.fill(column, head.next))?;
        }
        Ok(())
    }

    /// Checks that each block of the head's superzone that the SIT marks valid is before the head's
    /// next block.
    fn audit_segments(&self, (_, head): (usize, &Head), superzone: u32) -> Result<()> {
        let (stripe, segments) = (self.alloc.stripe(superzone), self.env.layout.segments);
        let first = superzone * segments;
        for segment in head.next / stripe.segment + 1..segments {
            let valid = u32::from(self.alloc.sit().get(first + segment).valid.get());
            let account = format_args!("SitEntry::valid of segment {}", first + segment);
            equal(account, 0, valid)?;
        }
        let open = first + head.next / stripe.segment;
        let entry = self.alloc.sit().get(open);
        let next = head.next % stripe.segment;
        for block in (next..stripe.segment).filter(|block| is_set(&entry, *block)) {
            let account = format_args!("SitEntry::map of segment {open}, block {block}");
            expect(account, false, "a clear bit of a block not written yet")?;
        }
        Ok(())
    }

    /// Checks that the owner of each valid block of an open segment names the block. All owners are
    /// in the head's summary, in memory.
    fn audit_open_segment(&self, head: &Head, superzone: u32) -> Result<()> {
        let segment = self.env.layout.segment_blocks;
        let entry =
            &self.alloc.sit().get(superzone * self.env.layout.segments + head.next / segment);
        let start = head.next - head.summary.len() as u32;
        for (block, owner) in (0..).zip(&head.summary) {
            if !is_set(entry, block) {
                continue;
            }
            let (zone, offset) = self.alloc.place_in(superzone, start + block);
            let addr = BlockAddr::new(&self.env.geometry, zone, offset).0;
            let node = owner.node.get();
            let said = self.tables.nat().get(node);
            let owned = match owner.slot.get() {
                NODE_SLOT => said.addr.get() == addr,
                slot => self.names_block(node, slot, addr).unwrap_or(said.addr.get() != HOLE),
            };
            if node == 0 || said.ino.get() == 0 || !owned {
                let account = format_args!("SitEntry::map of the block at {addr}");
                let place = said.addr.get();
                return Err(broken(
                    account,
                    format_args!(
                        "expected a clear bit, as its owner, node {node} at {place}, is elsewhere"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Checks that there is a block of space for each dirty page, as promised.
    pub(super) fn audit_promised_space(&self) -> Result<()> {
        if !self.promises_space() {
            return Ok(());
        }
        let (left, dirty) = (self.alloc.space_left(), self.cache.dirty_pages() as u64);
        at_most("dirty pages, by the space left for them", left, dirty)
    }

    /// Checks that no segment has blocks set aside for appends while no append is in flight.
    pub(super) fn audit_open_segments(&self) -> Result<()> {
        let account = format_args!("Allocator::open_segments without an append in flight");
        equal(
            account,
            0,
            if self.durability.appends_are_idle() { self.alloc.open_segments() } else { 0 },
        )
    }
}
