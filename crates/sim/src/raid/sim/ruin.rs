//! Damage to the array's own blocks: mapping blocks, and other blocks in segments that are not
//! users' data. The drives' content tells which block is which.

use super::World;
use crate::raid::part::Part;
use crate::simulation::{Summary, on_executor};
use furrow_emu::{Fault, FaultKind};
use furrow_log::record::peek;
use furrow_raid::format::{
    BlockMeta, NONE, RING_ZONES, SegmentBody, WINDOW, WindowBody, block, kind,
};
use furrow_raid::is_bare;
use furrow_rt::{Page, Pages, Rng};
use furrow_zone::{BlockCount, Command, Lba, QueueId, Request, ZoneId, ZonedDevice};
use std::collections::BTreeSet;
use std::rc::Rc;
use zerocopy::FromBytes;

/// The kind of block to damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// Only mapping blocks.
    Mapping,
    /// All blocks of stripes that hold mapping blocks.
    Stripes,
    /// The first block of segments' zones.
    Headers,
    /// The last blocks of segments' zones.
    Footers,
    /// The blocks that list the blocks of a window.
    Windows,
    /// State records.
    Records,
}

/// A block in a segment that holds something other than users' data.
#[derive(Clone, Copy, Debug)]
struct Seen {
    part: u32,
    /// Address of the block on its drive, in logical blocks.
    lba: u64,
    what: What,
    /// The block's segment, and its stripe in the segment; [`NONE`] if it belongs to no stripe.
    stripe: (u64, u32),
}

/// Reads one block of 4 KiB of a zone, with its out-of-band bytes.
async fn read(part: &Part, zone: u32, offset: u32) -> Option<(Page, Vec<u8>)> {
    let geometry = part.geometry();
    let sectors = 4096 / geometry.block_size.0;
    let lba = Lba(u64::from(zone) * geometry.zone_size.0 + u64::from(offset) * sectors);
    let data: Pages = [Page::zeroed()].into_iter().collect();
    let command = Command::Read { lba, blocks: BlockCount(sectors) };
    let request = Request { command, data, ..Request::bare(command) };
    let outcome = part.submit(QueueId(0), request).await;
    outcome.status.is_ok().then(|| (outcome.data[0].clone(), outcome.oob))
}

/// Collects the blocks of a drive that hold something other than users' data.
async fn look(part: &Part, index: u32, seen: &mut Vec<Seen>) {
    let geometry = part.geometry().clone();
    let sectors = 4096 / geometry.block_size.0;
    let capacity = (geometry.zone_capacity.0 / sectors) as u32;
    let Ok(reports) = part.report(ZoneId(0), geometry.zones).await else { return };
    for report in &reports {
        let zone = report.zone.0;
        let at = |offset: u32| u64::from(zone) * geometry.zone_size.0 + u64::from(offset) * sectors;
        if report.write_pointer.0 == 0 {
            continue;
        }
        if zone < RING_ZONES {
            let end = report.write_pointer.0.min(geometry.zone_capacity.0);
            let what = What::Records;
            let record =
                |sector| Seen { part: index, lba: at(0) + sector, what, stripe: (0, NONE) };
            seen.extend((0..end).map(record));
            continue;
        }
        let Some((first, _)) = read(part, zone, 0).await else { continue };
        let Some(header) = peek(first.bytes()).filter(|h| h.kind.get() == kind::SEGMENT) else {
            continue;
        };
        let at_header = size_of_val(&header);
        let Ok((body, _)) = SegmentBody::read_from_prefix(&first.bytes()[at_header..]) else {
            continue;
        };
        let (segment, rows, chunk) =
            (header.sequence.get(), body.rows.get(), body.chunk.get().max(1));
        let found = |offset: u32, what, stripe| Seen {
            part: index,
            lba: at(offset),
            what,
            stripe: (segment, stripe),
        };
        seen.push(found(0, What::Headers, NONE));
        for offset in 1..capacity {
            let Some((page, beside)) = read(part, zone, offset).await else { break };
            if offset > rows {
                seen.push(found(offset, What::Footers, NONE));
                continue;
            }
            if !is_bare(&geometry) {
                let Ok((meta, _)) = BlockMeta::read_from_prefix(&beside) else { continue };
                if meta.segment.get() == segment && meta.stripe.get() != NONE {
                    let mapping = meta.kind.get() == u32::from(block::MAPPING);
                    let what = if mapping { What::Mapping } else { What::Stripes };
                    seen.push(found(offset, what, meta.stripe.get()));
                }
                continue;
            }
            let stripe = (offset - 1) / chunk;
            seen.push(found(offset, What::Stripes, stripe));
            let Some(header) = peek(page.bytes()).filter(|h| h.kind.get() == kind::WINDOW) else {
                continue;
            };
            seen.push(found(offset, What::Windows, stripe));
            let listed = &page.bytes()[size_of_val(&header)..];
            let Ok((body, metas)) = WindowBody::read_from_prefix(listed) else { continue };
            let (start, row) = (stripe - stripe % WINDOW, body.row.get());
            let metas = metas.chunks_exact(BlockMeta::SIZE).take((stripe - start) as usize);
            for (stripe, meta) in (start..).zip(metas) {
                let Ok(meta) = BlockMeta::read_from_bytes(meta) else { continue };
                if meta.kind.get() == u32::from(block::MAPPING) && meta.segment.get() == segment {
                    seen.push(found(1 + stripe * chunk + row, What::Mapping, stripe));
                }
            }
        }
    }
}

impl World {
    /// Damages blocks on the drives of members; returns how many.
    pub(super) fn ruin(
        &mut self,
        members: &[u32],
        what: What,
        rng: &mut Rng,
        summary: &mut Summary,
    ) -> Result<usize, String> {
        let struck: Vec<u32> = members.iter().filter_map(|m| self.seats[*m as usize]).collect();
        let all: Vec<u32> = self.seats.iter().flatten().copied().collect();
        // Damages all of these blocks, or a third of them.
        let most = if rng.one_in(2) { 1 } else { 3 };
        let mut draw = Rng::new(rng.next());
        let (drive, count) = on_executor(rng.next(), summary, |rt| {
            let emulator = self.emulator(rt)?;
            let device: Rc<dyn ZonedDevice> = Rc::new(emulator.clone());
            let parts = Part::split(rt, &device, self.array.parts());
            let seen = rt.block_on(async move {
                let mut seen = Vec::new();
                for part in all {
                    look(&parts[part as usize], part, &mut seen).await;
                }
                seen
            });
            let mapping = seen.iter().filter(|seen| seen.what == What::Mapping);
            let stripes: BTreeSet<(u64, u32)> = mapping.map(|seen| seen.stripe).collect();
            let size = self.array.geometry.zone_size.0 * u64::from(self.array.geometry.zones);
            let mut count = 0usize;
            for seen in seen.iter().filter(|seen| struck.contains(&seen.part)) {
                let meant = match what {
                    What::Stripes => stripes.contains(&seen.stripe),
                    what => seen.what == what,
                };
                if !meant || !draw.below(most).is_multiple_of(3) {
                    continue;
                }
                let at = Lba(u64::from(seen.part) * size + seen.lba);
                let flip = Fault::new(FaultKind::BitFlip).at_blocks(at, BlockCount(1));
                // A zone that was finished early has blocks that were never written.
                count += usize::from(emulator.inject(flip).is_ok());
            }
            Ok((emulator.snapshot(), count))
        })?;
        self.drive = drive;
        Ok(count)
    }
}
