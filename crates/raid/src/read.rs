//! Reads: the map gives the block's place, and the drive is read there. Every block is checked
//! against its metadata; if it is damaged or its drive is gone, it is reconstructed from the other
//! blocks of its row.

pub(crate) mod place;

use crate::format::{NONE, block};
use crate::map::Map;
use crate::meta::place::MetaPlace;
use crate::meta::{BlockMetas, Lookup};
use crate::read::place::{Loud, Place, Wanted};
use crate::segment::SegmentState;
use crate::table::Groups;
use crate::volume::Volume;
use furrow_array::drive::Drive;
use furrow_log::BlockAddr;
use furrow_log::address::sectors_per_block;
use furrow_log::pool::ReadPin;
use furrow_log::record::crc32c;
use furrow_rt::{Completion, Page, Pages};
use furrow_zone::{BlockCount, Command, Error, ErrorKind, Outcome, Request, Result};
use std::rc::Rc;

/// Maximum number of blocks of a read command.
const COMMAND: u32 = 256;

/// A read command in flight.
pub(crate) struct Reading {
    answer: Completion<Outcome>,
    /// The blocks that the command reads, as positions in the request.
    of: Vec<usize>,
    pub(crate) index: u32,
    /// Value of [`Volume::asked`] when the command was sent.
    pub(crate) since: u64,
    /// Value of [`Drive::misses`] when the command was sent.
    misses: u64,
    lookup: Lookup,
}

impl Reading {
    /// Waits for the read. Returns its outcome, the positions of its blocks in the request, and
    /// their metadata.
    pub(crate) async fn over(self) -> (Outcome, Vec<usize>, BlockMetas) {
        let outcome = self.answer.await;
        (outcome, self.of, self.lookup.done().await)
    }
}

impl Volume {
    /// Reads blocks; blocks that were never written or are trimmed read as zeros.
    ///
    /// # Errors
    /// `Invalid` past the end of the volume; `Corrupt` or `Io`, naming the place, if neither the
    /// block nor enough others of its stripe can be read; the volume's error if too many members
    /// are missing.
    pub async fn read(&self, block: u64, count: u32) -> Result<Pages> {
        self.check_range(block, count.into())?;
        if let Some(error) = self.failed().filter(|_| !self.survives()) {
            return Err(error);
        }
        self.count(|counters| counters.read += u64::from(count));
        let (mut at, end) = (block, block + u64::from(count));
        let mut pages = Pages::new();
        while at < end {
            let leaf = Map::leaf(at);
            if let Err(error) = self.fetch(leaf, false).await
                && self.note_lost_leaf(leaf).await.is_some()
            {
                return Err(error);
            }
            // The blocks found so far are read before the next mapping block is loaded. Loading may
            // have to wait for space, and segments that are being read cannot be reset.
            let mut wanted: smallvec::SmallVec<[(u32, Wanted); 16]> = Default::default();
            {
                let map = self.0.paging.map();
                while at < end && Map::leaf(at) == leaf {
                    wanted.push((map.get(at), (block::DATA, at)));
                    at += 1;
                }
            }
            let read = match self.read_numbers(&wanted, Loud::Yes).await {
                Ok(read) => read,
                Err(error) => {
                    let again = async || self.read_numbers(&wanted, Loud::No).await;
                    match self.patiently(again).await {
                        Ok(read) => read,
                        Err(_) => {
                            self.note_lost(&wanted).await;
                            return Err(error);
                        }
                    }
                }
            };
            if at == end && pages.is_empty() {
                return Ok(read);
            }
            pages.extend(read);
        }
        Ok(pages)
    }

    /// Reads blocks by number; each must have the identity in `wanted`. [`NONE`] reads as zeros.
    pub(crate) async fn read_numbers(&self, wanted: &[(u32, Wanted)], loud: Loud) -> Result<Pages> {
        let mut pages: Vec<Option<Page>> = vec![None; wanted.len()];
        let mut places: Vec<Option<Place>> = Vec::with_capacity(wanted.len());
        // All segments are pinned before the first wait, so that none is reset during the read.
        let pins = self.pin_slots(wanted.iter().map(|(number, _)| *number));
        for (number, _) in wanted {
            places.push(match *number {
                NONE => None,
                number => self.place(number).await?,
            });
        }
        let mut readings = self.start(&places);
        let mut lost = Vec::new();
        for reading in readings.drain(..) {
            self.finish(reading, &places, (wanted, loud), &mut pages, &mut lost).await;
        }
        let mut missing = Vec::new();
        for (i, (number, wanted)) in wanted.iter().enumerate() {
            if *number == NONE {
                pages[i] = Some(self.0.zero.clone());
            } else if pages[i].is_none() {
                missing.push((i, *number, *wanted, lost.contains(&i)));
            }
        }
        if !missing.is_empty() {
            for (i, page) in self.recover_blocks(missing, loud).await? {
                pages[i] = Some(page);
            }
        }
        drop(pins);
        Ok(pages.into_iter().flatten().collect())
    }

    /// Pins the zones of the segments that hold these blocks.
    fn pin_slots(&self, numbers: impl Iterator<Item = u32>) -> Vec<ReadPin> {
        let mut slots: smallvec::SmallVec<[u32; 8]> =
            numbers.filter(|number| *number != NONE).map(|n| self.0.shape.slot(n)).collect();
        slots.sort_unstable();
        slots.dedup();
        let segments = self.0.segments.borrow();
        let mut pins = Vec::new();
        for slot in slots {
            for (zone, member) in segments[slot as usize].zones.iter().zip(self.0.array.members()) {
                if let (Some(zone), Some(drive)) = (zone, member.drive()) {
                    pins.push(drive.zones().pin(*zone));
                }
            }
        }
        pins
    }

    /// The place of the block `number`; `None` if its member has no zone in the segment.
    pub(crate) async fn place(&self, number: u32) -> Result<Option<Place>> {
        let Some((slot, row, chunk)) = self.0.shape.locate(number) else {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("the map names block number {number}, which does not exist"),
            ));
        };
        self.place_at(slot, row, chunk).await
    }

    /// Like [`Volume::place`], for the block in row `row` of `chunk`, which may be a parity chunk.
    pub(crate) async fn place_at(&self, slot: u32, row: u32, chunk: u32) -> Result<Option<Place>> {
        self.ready(slot).await?;
        Ok(self.place_now(slot, row, chunk))
    }

    /// Loads the stripe table of a segment if it is needed, so that places in the segment can
    /// be computed.
    pub(crate) async fn ready(&self, slot: u32) -> Result<()> {
        let (needs, free) = {
            let segment = &self.0.segments.borrow()[slot as usize];
            let needs = segment.group > 1 && segment.table.is_none();
            (needs, segment.state == SegmentState::Free)
        };
        if free {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("the map names a block in segment {slot}, which is free"),
            ));
        }
        if needs {
            self.load_table(slot).await?;
        }
        Ok(())
    }

    /// Like [`Volume::place_at`], for a segment that [`Volume::ready`] was called for.
    pub(crate) fn place_now(&self, slot: u32, row: u32, chunk: u32) -> Option<Place> {
        let segments = self.0.segments.borrow();
        let segment = &segments[slot as usize];
        let stripe = row / segment.chunk;
        let index = self.0.shape.placement.drive(stripe, chunk);
        let zone = segment.zones[index as usize]?;
        self.0.array.member(index).drive()?;
        let stripes = self.0.shape.stripes(segment.chunk);
        let groups = Groups { chunk: segment.chunk, group: segment.group, stripes };
        let place = match &segment.table {
            None => 0,
            Some(table) => table.borrow().get(stripe, index)?,
        };
        let row = groups.row(stripe, place) + row % segment.chunk;
        let offset = self.0.shape.offset(row);
        Some(Place { slot, sequence: segment.sequence, stripe, index, zone, offset })
    }

    /// Sends the reads of `places`, with neighbouring blocks in one command.
    pub(crate) fn start(&self, places: &[Option<Place>]) -> Vec<Reading> {
        let mut readings = Vec::new();
        let mut i = 0;
        while i < places.len() {
            let Some(first) = places[i] else {
                i += 1;
                continue;
            };
            let follows = |j: usize| {
                places[j].is_some_and(|p| {
                    (p.index, p.zone) == (first.index, first.zone)
                        && p.offset == first.offset + (j - i) as u32
                })
            };
            let mut end = i + 1;
            while end < places.len() && end - i < COMMAND as usize && follows(end) {
                end += 1;
            }
            if let Some(drive) = self.0.array.member(first.index).drive() {
                readings.push(self.read_at(&drive, first, (i..end).collect()));
            }
            i = end;
        }
        readings
    }

    pub(crate) fn read_at(&self, drive: &Rc<Drive>, first: Place, of: Vec<usize>) -> Reading {
        let geometry = drive.geometry();
        let lba = BlockAddr::new(geometry, first.zone, first.offset).lba(geometry);
        let blocks = BlockCount(of.len() as u64 * sectors_per_block(geometry));
        let data: Pages = of.iter().map(|_| self.0.pages.take_dirty()).collect();
        let (since, misses) = (self.asked(), drive.misses());
        let pin = drive.zones().pin(first.zone);
        let queue = drive.writer().queue(first.zone);
        let answer =
            drive.device().submit(queue, Request::with_data(Command::Read { lba, blocks }, data));
        let lookup = self.lookup(geometry, first, of.len() as u32, pin);
        Reading { answer, of, index: first.index, since, misses, lookup }
    }

    /// Takes the correct blocks from the answer to a read command, and adds damaged ones to `lost`.
    /// What a drive that was gone, even for a moment, did not provide is not damaged.
    async fn finish(
        &self,
        reading: Reading,
        places: &[Option<Place>],
        (wanted, loud): (&[(u32, Wanted)], Loud),
        pages: &mut [Option<Page>],
        lost: &mut Vec<usize>,
    ) {
        let member = self.0.array.member(reading.index);
        let (index, since, misses) = (reading.index, reading.since, reading.misses);
        let (outcome, of, metas) = reading.over().await;
        // Another answer may have taken the member out of service, or another drive its place.
        let drive = member.drive().filter(|_| !member.is_former(since));
        let was_gone = drive.as_ref().is_none_or(|d| !d.answers() || d.misses() != misses);
        if !outcome.status.is_ok() {
            if loud == Loud::Yes {
                member.count(since, |errors| errors.read += 1);
            }
            if let Some(drive) = drive.filter(|drive| !drive.answers()) {
                let error = Error::device(&drive.device().name(), "read", outcome.status);
                self.member_failed(index, error);
            } else if !was_gone {
                let zone = of.first().and_then(|i| places[*i]).map(|place| place.zone);
                zone.into_iter().for_each(|zone| self.note_lost_zone(index, zone));
                lost.extend(of);
            }
            return;
        }
        for (n, (i, page)) in of.into_iter().zip(outcome.data).enumerate() {
            let place = places[i].expect("invariant: what was read has a place");
            let meta = metas.of(&outcome.oob, n);
            let (kind, lba) = wanted[i].1;
            let right = meta.is_some_and(|meta| {
                meta.stripe.get() == place.stripe
                    && meta.kind.get() == u32::from(kind)
                    && meta.lba.get() == lba
                    && meta.own_crc.get() == crc32c(page.bytes())
            });
            if right {
                pages[i] = Some(page);
            } else {
                // In-band metadata is read by commands of its own, which may have failed.
                let unread = was_gone && self.0.shape.meta == MetaPlace::InBand;
                if loud == Loud::Yes && unread {
                    member.count(since, |errors| errors.read += 1);
                } else if loud == Loud::Yes {
                    self.note_mismatch((index, since));
                }
                lost.extend((!was_gone).then_some(i));
            }
        }
    }

    /// Counts a block that differs from its metadata as an error of its member; `since` is the time
    /// when the block's read was sent. With in-band metadata, the drive may have vanished before
    /// the block's metadata was read; then a failed read is counted instead.
    pub(crate) fn note_mismatch(&self, (index, since): (u32, u64)) {
        let member = self.0.array.member(index);
        let gone = self.metadata_went(index);
        member.count(since, |errors| match gone {
            true => errors.read += 1,
            false => errors.checksum += 1,
        });
    }
}
