//! Scans a segment's zones for their metadata, in out-of-band bytes or in footers.

use crate::format::{BlockMeta, CODED, FooterEntry, NONE, kind};
use crate::meta::footer::open_entry;
use crate::meta::identity::{self, Identity};
use crate::meta::place::MetaPlace;
use crate::read::place::Loud;
use crate::segment::{Segment, SegmentState};
use crate::shape::Shape;
use crate::table::{Groups, StripeTable};
use crate::volume::Volume;
use furrow_array::drive::Drive;
use furrow_log::BlockAddr;
use furrow_log::address::{oob_per_block, sectors_per_block};
use furrow_log::record::{self, Expect, crc32c};
use furrow_rt::buf::{concat, is_zero};
use furrow_rt::{Completion, Page, Pages, Pool};
use furrow_zone::{BlockCount, Command, Error, ErrorKind, Outcome, Request, Result, ZoneId};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use zerocopy::FromBytes;

/// Maximum number of blocks of a read command.
const COMMAND: u32 = 128;

/// Maximum number of read commands of a scan in flight at once.
const AHEAD: usize = 4;

/// The known metadata of a data row of one zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) stripe: u32,
    /// CRC32C of the block.
    pub(crate) crc: u32,
    /// The coded part of a data block's metadata; for a parity block, the code stored with it.
    pub(crate) code: [u8; CODED],
    /// Whether the block is as it was written. If not, it was damaged later: a crash leaves neither
    /// a block with the metadata of other content, nor a torn block between whole ones.
    pub(crate) whole: bool,
}

impl Row {
    /// A whole row with the metadata `meta`.
    pub(crate) fn listed(meta: &BlockMeta) -> Row {
        let (stripe, crc) = (meta.stripe.get(), meta.own_crc.get());
        Row { stripe, crc, code: identity::coded(meta), whole: true }
    }

    /// A row that was written, and whose content and metadata are both damaged.
    pub(crate) const UNKNOWN: Row = Row { stripe: NONE, crc: 0, code: [0; CODED], whole: false };
}

/// Rows of a zone; `None` where no block was written, or only the torn end of a write.
pub(crate) type Rows = Vec<Option<Row>>;

/// Drops the rows that are not whole.
fn whole_only(rows: Rows) -> Rows {
    rows.into_iter().map(|row| row.filter(|row| row.whole)).collect()
}

/// Reads the first `rows` data rows of a zone with their out-of-band metadata.
async fn scan_zone(
    drive: &Drive,
    shape: &Shape,
    (zone, sequence): (ZoneId, u64),
    rows: u32,
    pages: &Pool,
) -> Rows {
    let mut found: Rows = Vec::with_capacity(rows as usize);
    let sector = furrow_log::format::BLOCK_SIZE / sectors_per_block(drive.geometry()) as usize;
    read_zone(drive, shape, zone, rows, pages, |read| {
        let row = read.and_then(|(page, oob)| {
            let meta = identity::open(oob, sequence);
            if let Some(meta) = meta.filter(|m| m.own_crc.get() == crc32c(page.bytes())) {
                return Some(Row::listed(&meta));
            }
            // A torn block lacks its last sectors; a block that was never written is zeros.
            let bytes = page.bytes();
            let torn = match &meta {
                Some(meta) => record::may_be_torn(bytes, meta.own_crc.get(), sector),
                None => record::is_torn(bytes, bytes.len(), sector),
            };
            let empty = || is_zero(bytes) && is_zero(oob);
            let damaged = !torn && !empty();
            let known = meta.map_or(Row::UNKNOWN, |m| Row { whole: false, ..Row::listed(&m) });
            damaged.then_some(known)
        });
        found.push(row);
    })
    .await;
    found
}

/// A block with its out-of-band bytes; `None` if the block cannot be read.
type Block<'a> = Option<(&'a Page, &'a [u8])>;

/// Reads the first `rows` data rows of a zone, and calls `each` with one row after the other.
pub(crate) async fn read_zone(
    drive: &Drive,
    shape: &Shape,
    zone: ZoneId,
    rows: u32,
    pages: &Pool,
    mut each: impl FnMut(Block<'_>),
) {
    let beside = oob_per_block(drive.geometry());
    let all = |outcome: &Outcome, each: &mut dyn FnMut(Block<'_>)| {
        for (n, page) in outcome.data.iter().enumerate() {
            each(Some((page, outcome.oob.get(n * beside..).unwrap_or_default())));
        }
    };
    let (mut flights, mut next) = (VecDeque::new(), 0);
    while next < rows || !flights.is_empty() {
        while next < rows && flights.len() < AHEAD {
            let count = COMMAND.min(rows - next);
            let start = shape.offset(next);
            flights.push_back((start, count, ask_beside(drive, zone, start, count, pages)));
            next += count;
        }
        let Some((start, count, answer)) = flights.pop_front() else { break };
        let outcome = answer.await;
        if outcome.status.is_ok() {
            all(&outcome, &mut each);
            continue;
        }
        // A block of the command cannot be read, so the blocks are read one by one.
        for offset in start..start + count {
            let outcome = ask_beside(drive, zone, offset, 1, pages).await;
            if outcome.status.is_ok() {
                all(&outcome, &mut each);
            } else {
                each(None);
            }
        }
    }
}

fn ask_beside(
    drive: &Drive,
    zone: ZoneId,
    offset: u32,
    count: u32,
    pages: &Pool,
) -> Completion<Outcome> {
    let geometry = drive.geometry();
    let lba = BlockAddr::new(geometry, zone, offset).lba(geometry);
    let blocks = BlockCount(u64::from(count) * sectors_per_block(geometry));
    let data: Pages = (0..count).map(|_| pages.take_dirty()).collect();
    let request = Request::with_data(Command::Read { lba, blocks }, data);
    drive.device().submit(drive.writer().queue(zone), request)
}

/// The footer of a zone: entries of the zone's own drive and of the drives after it. `None` if the
/// footer is not whole.
pub(crate) async fn read_footers(
    volume: &Volume,
    index: u32,
    zone: ZoneId,
    sequence: u64,
) -> Option<Vec<Vec<FooterEntry>>> {
    let (segment, entries) = read_any_footer(volume, index, zone).await?;
    (segment == sequence).then_some(entries)
}

/// The footer of a zone of any segment, and the sequence number of the segment that the
/// footer names.
pub(crate) async fn read_any_footer(
    volume: &Volume,
    index: u32,
    zone: ZoneId,
) -> Option<(u64, Vec<Vec<FooterEntry>>)> {
    let shape = volume.shape();
    let member = volume.0.array.member(index);
    let drive = member.drive()?;
    let at = BlockAddr::new(drive.geometry(), zone, shape.footer_start());
    let blocks = shape.footer_blocks();
    let _pin = drive.zones().pin(zone);
    let read = drive.read(at, blocks, &volume.0.pages).await.ok()?;
    let bytes = concat(&read);
    let expect =
        Expect { kind: kind::FOOTER, device: Some(member.uuid()), object: Some(volume.uuid()) };
    let (header, body) = record::open(&bytes, &expect).ok()?;
    let copies = shape.footer_copies() as usize;
    let length = shape.rows as usize * FooterEntry::SIZE;
    if body.len() != copies * length {
        return None;
    }
    let entries = |bytes: &[u8]| {
        bytes
            .chunks_exact(FooterEntry::SIZE)
            .filter_map(|entry| FooterEntry::read_from_bytes(entry).ok())
            .collect()
    };
    Some((header.sequence.get(), body.chunks_exact(length).map(entries).collect()))
}

/// For each drive, the entries for its zone from any footer of the segment; `None` if no footer
/// has them.
pub(crate) async fn footers_of(
    volume: &Volume,
    segment: &Segment,
) -> Vec<Option<Vec<FooterEntry>>> {
    let shape = volume.shape();
    let drives = shape.placement.n;
    let mut all = Vec::new();
    for (index, zone) in (0..drives).zip(&segment.zones) {
        let Some(zone) = *zone else { continue };
        if let Some(copies) = read_footers(volume, index, zone, segment.sequence).await {
            all.push((index, copies.into_iter().map(Some).collect::<Vec<_>>()));
        }
    }
    // A zone's own footer is preferred: after a rebuild the zone's chunks are in another order than
    // the footers of other zones record.
    let mut found: Vec<Option<Vec<FooterEntry>>> = vec![None; drives as usize];
    for copy in 0..volume.shape().footer_copies() {
        for (index, copies) in &mut all {
            let entries = copies.get_mut(copy as usize).and_then(Option::take);
            let of = &mut found[((*index + copy) % drives) as usize];
            *of = of.take().or(entries);
        }
    }
    found
}

/// Records in `table` the places of the chunks in one zone.
pub(crate) fn note_places(
    table: &mut StripeTable,
    groups: Groups,
    drive: u32,
    stripes: impl Iterator<Item = Option<u32>>,
) {
    let mut run = (NONE, 0);
    for (row, stripe) in (0u32..).zip(stripes) {
        let stripe = stripe.unwrap_or(NONE);
        if row.is_multiple_of(groups.chunk) {
            run = (stripe, 0);
        }
        if stripe == NONE || stripe != run.0 {
            run = (NONE, 0);
            continue;
        }
        run.1 += 1;
        if run.1 == groups.chunk {
            let place = groups.place(stripe, row);
            if place != NONE {
                table.set(stripe, drive, place);
            }
        }
    }
}

impl Volume {
    /// The first `rows` data rows of a member's zone of a segment, as their metadata describes
    /// them. A block that does not match its metadata is damaged (`whole` is false). `full`: the
    /// zone was written to its end.
    pub(crate) async fn scan_rows(
        &self,
        drive: &Drive,
        (slot, index): (u32, u32),
        (zone, sequence): (ZoneId, u64),
        (rows, full): (u32, bool),
    ) -> Rows {
        match self.0.shape.meta {
            MetaPlace::OutOfBand => {
                scan_zone(drive, &self.0.shape, (zone, sequence), rows, &self.0.pages).await
            }
            MetaPlace::InBand => self.scan_windows(drive, (slot, index), rows, full).await,
        }
    }

    /// Reads the stripe table of a segment that ended before this assembly.
    pub(crate) async fn load_table(&self, slot: u32) -> Result<()> {
        let segment = self.0.segments.borrow()[slot as usize].clone();
        // A table lacks the chunks of a drive that did not answer, and they would seem lost as long
        // as the volume runs. If the drive is back, it is read again; if not, its member is taken
        // out of service, unless the volume has failed: then the other drives have to do.
        let table = self.patiently(async || {
            let missed = self.missed();
            let table = self.read_table(&segment).await;
            if self.missed() == missed { Ok(table) } else { Err(table) }
        });
        let table = match table.await {
            Ok(table) => table,
            Err(table) if self.failed().is_some() => table,
            Err(_) => {
                let what = "the stripes of a segment could not be read, as a drive did not answer: \
                            try again";
                return Err(Error::new(ErrorKind::Io, what));
            }
        };
        let now = &mut self.0.segments.borrow_mut()[slot as usize];
        if now.sequence == segment.sequence && now.table.is_none() {
            now.table = Some(Rc::new(RefCell::new(table)));
        }
        Ok(())
    }

    /// The stripe table of a segment, from its footers or else its rows.
    async fn read_table(&self, segment: &Segment) -> StripeTable {
        let stripes = self.0.shape.stripes(segment.chunk);
        let groups = Groups { chunk: segment.chunk, group: segment.group, stripes };
        let drives = self.0.shape.placement.n;
        let mut table = self.new_table(stripes, segment.group);
        let footers = match segment.state {
            SegmentState::Truncated => vec![None; drives as usize],
            _ => footers_of(self, segment).await,
        };
        for (index, entries) in (0..drives).zip(footers) {
            let Some(zone) = segment.zones[index as usize] else { continue };
            if let Some(entries) = entries {
                let stripes = entries.iter().map(|e| open_entry(e).map(|(_, stripe)| stripe));
                note_places(&mut table, groups, index, stripes);
            } else if let Some(drive) = self.0.array.member(index).drive() {
                let rows = if segment.state == SegmentState::Truncated {
                    segment.rows
                } else {
                    self.0.shape.rows
                };
                let at = (zone, segment.sequence);
                let found = scan_zone(&drive, &self.0.shape, at, rows, &self.0.pages).await;
                let found = whole_only(found);
                let stripes = found.iter().map(|row| row.map(|row| row.stripe));
                note_places(&mut table, groups, index, stripes);
            }
        }
        table
    }

    /// Finds chunks whose places are unknown, in the first `rows` rows of a segment: a block of
    /// such a chunk was damaged when the zones were scanned, but its out-of-band bytes still name
    /// the stripe.
    pub(crate) async fn find_damaged(&self, slot: u32, rows: u32) -> Result<()> {
        self.ready(slot).await?;
        let segment = self.0.segments.borrow()[slot as usize].clone();
        let Some(table) = segment.table.filter(|_| segment.group > 1) else { return Ok(()) };
        let stripes = self.0.shape.stripes(segment.chunk);
        let groups = Groups { chunk: segment.chunk, group: segment.group, stripes };
        for (index, zone) in (0..self.0.shape.placement.n).zip(segment.zones) {
            let drive = self.0.array.member(index).drive();
            let (Some(zone), Some(drive)) = (zone, drive) else { continue };
            let unplaced = |stripe: u32| table.borrow().get(stripe, index).is_none();
            if !(0..rows / segment.chunk).any(unplaced) {
                continue;
            }
            let _pin = drive.zones().pin(zone);
            let mut found = Vec::new();
            read_zone(&drive, &self.0.shape, zone, rows, &self.0.pages, |read| {
                let meta = read.and_then(|(_, oob)| identity::open(oob, segment.sequence));
                let stripe = meta.map(|meta| meta.stripe.get());
                found.push(stripe.filter(|stripe| *stripe < stripes && unplaced(*stripe)));
            })
            .await;
            note_places(&mut table.borrow_mut(), groups, index, found.into_iter());
        }
        Ok(())
    }

    /// The number and identity of each data block of an ended segment.
    pub(crate) async fn identities(&self, slot: u32) -> Vec<(u32, Identity)> {
        if self.0.shape.meta == MetaPlace::InBand {
            return self.listed_identities(slot).await;
        }
        let segment = self.0.segments.borrow()[slot as usize].clone();
        let (shape, drives) = (&self.0.shape, self.0.shape.placement.n);
        let mut found = std::collections::BTreeMap::new();
        let mut add = |drive: u32, row: u32, stripe: u32, identity: Identity| {
            let chunk = shape.placement.chunk(stripe, drive);
            let row = stripe * segment.chunk + row % segment.chunk;
            if chunk < shape.placement.k && row < shape.rows {
                found.insert(shape.number(slot, row, chunk), identity);
            }
        };
        let footers = match segment.state {
            SegmentState::Sealed => footers_of(self, &segment).await,
            _ => vec![None; drives as usize],
        };
        let mut lost = false;
        for (index, entries) in (0..drives).zip(footers) {
            if let Some(entries) = entries {
                for (row, entry) in (0..).zip(&entries) {
                    if let Some((Some(identity), stripe)) = open_entry(entry) {
                        add(index, row, stripe, identity);
                    }
                }
                continue;
            }
            let zone = segment.zones[index as usize];
            let drive = self.0.array.member(index).drive();
            let (Some(zone), Some(drive)) = (zone, drive) else {
                lost = true;
                continue;
            };
            let rows =
                if segment.state == SegmentState::Truncated { segment.rows } else { shape.rows };
            let at = (zone, segment.sequence);
            let scanned = whole_only(scan_zone(&drive, shape, at, rows, &self.0.pages).await);
            for (row, found) in (0..).zip(scanned) {
                let Some(found) = found.filter(|found| found.stripe != NONE) else {
                    lost = true;
                    continue;
                };
                let data = shape.placement.chunk(found.stripe, index) < shape.placement.k;
                if let Some(identity) = Identity::from_bytes(&found.code).filter(|_| data) {
                    add(index, row, found.stripe, identity);
                }
            }
        }
        // No footer describes the chunk of a member that failed while its stripe was written.
        let rows = if segment.state == SegmentState::Truncated { segment.rows } else { shape.rows };
        lost |= found.len() < (rows * shape.placement.k) as usize;
        if lost {
            self.identities_from_parity(slot, &segment, &mut found).await;
        }
        found.into_iter().collect()
    }

    /// Adds the identities of blocks whose own drive does not describe them, from the
    /// parity's metadata.
    async fn identities_from_parity(
        &self,
        slot: u32,
        segment: &Segment,
        found: &mut std::collections::BTreeMap<u32, Identity>,
    ) {
        let shape = &self.0.shape;
        let rows = if segment.state == SegmentState::Truncated { segment.rows } else { shape.rows };
        for row in 0..rows {
            for chunk in 0..shape.placement.k {
                let number = shape.number(slot, row, chunk);
                if found.contains_key(&number) {
                    continue;
                }
                if let Ok((Some(identity), _)) = self.make(slot, row, chunk, Loud::Yes).await {
                    found.insert(number, identity);
                }
            }
        }
    }
}
