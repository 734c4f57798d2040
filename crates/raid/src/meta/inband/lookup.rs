//! Looks up the lists of windows on drives without an out-of-band area. Reads, recovery and
//! cleaning need them.
//!
//! An open segment keeps in memory the list of the window that is being written. The lists of other
//! windows are read from their last stripes. If the last stripe of a window is damaged, the
//! segment's footers, written or to be written, have the same content. For a window that a crash
//! left incomplete, the last whole metadata block counts.

use crate::format::{BlockMeta, CODED, NONE, WINDOW};
use crate::meta::identity::{self, Identity};
use crate::meta::inband::cache::{Key, Metas};
use crate::meta::inband::footers::Footers;
use crate::meta::place::MetaPlace;
use crate::meta::scan::{Row, Rows, read_zone};
use crate::meta::window;
use crate::meta::windows::{self, At, is_own};
use crate::read::place::Place;
use crate::segment::{Segment, SegmentState};
use crate::volume::Volume;
use furrow_array::drive::Drive;
use furrow_array::parity::reconstruct;
use furrow_log::record::{self, crc32c};
use furrow_log::{BLOCK_SIZE, BlockAddr, read_blocks};
use furrow_rt::{Page, Pages};
use furrow_zone::{Error, ErrorKind, QueueId, Result, ZoneId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// A zone of a segment, with the data for looking up its windows.
#[derive(Clone)]
struct Listed {
    slot: u32,
    sequence: u64,
    index: u32,
    zone: ZoneId,
    chunk: u32,
    /// Maximum number of stripes that the zone may have.
    stripes: u32,
    /// Whether the segment was truncated; then its last window may lack its last stripe.
    truncated: bool,
}

impl Volume {
    fn listed_zone(&self, slot: u32, index: u32, segment: &Segment) -> Option<Listed> {
        let zone = segment.zones[index as usize]?;
        let stripes = match segment.state {
            SegmentState::Truncated => segment.rows.div_ceil(segment.chunk),
            _ => self.0.shape.stripes(segment.chunk),
        };
        let (sequence, chunk) = (segment.sequence, segment.chunk);
        let truncated = segment.state == SegmentState::Truncated;
        Some(Listed { slot, sequence, index, zone, chunk, stripes, truncated })
    }

    /// The metadata of `count` blocks from `first` on. A block that is not listed has the metadata
    /// of a block of no stripe.
    pub(in crate::meta) async fn listed(self, first: Place, count: u32) -> Vec<Option<BlockMeta>> {
        let segment = self.0.segments.borrow()[first.slot as usize].clone();
        let known = self.listed_zone(first.slot, first.index, &segment);
        let here = |known: &Listed| known.sequence == first.sequence && known.zone == first.zone;
        let Some(known) = known.filter(here) else {
            return vec![None; count as usize];
        };
        let (from, mut all) = (first.offset - self.0.shape.offset(0), Vec::new());
        for row in from..from + count {
            let (stripe, i) = (row / known.chunk, row % known.chunk);
            let rest = (from + count - row).min(known.chunk - i);
            all.push(Some(self.meta_at(&known, stripe, i..i + rest).await));
        }
        all
    }

    /// The listed metadata of row `rows.start` of a stripe's chunk. The caller looks up the other
    /// `rows` next, so their lists are read with it.
    async fn meta_at(&self, zone: &Listed, stripe: u32, rows: Range<u32>) -> BlockMeta {
        let filler = identity::filler(zone.sequence, self.0.zero_crc);
        let open = self.0.segments.borrow()[zone.slot as usize].meta.clone();
        if let Some(kept) = open.kept(stripe, zone.index, rows.start) {
            return kept.unwrap_or(filler);
        }
        let metas = self.metas(zone, stripe, rows).await;
        metas.get((stripe % WINDOW) as usize).copied().unwrap_or(filler)
    }

    /// The list of the window of `stripe` for row `rows.start` of the chunks; reads the other
    /// `rows` with it.
    async fn metas(&self, zone: &Listed, stripe: u32, rows: Range<u32>) -> Metas {
        let key = |row| (zone.sequence, zone.index, window::start(stripe), row);
        let i = rows.start;
        if let Some(known) = self.0.meta.listings.borrow().found.get(&key(i)) {
            return known.metas.clone();
        }
        let Some(drive) = self.0.array.member(zone.index).drive() else {
            return Rc::default();
        };
        let last = window::end(stripe, zone.stripes);
        let (mut asked, since) = (None, self.asked());
        let pages = self.window_blocks(&drive, zone, last, rows.clone()).await.unwrap_or_default();
        for (row, page) in rows.zip(pages) {
            if let Some(metas) = windows::open(&page, self.window_at(zone, last, row)) {
                let metas = Rc::new(metas);
                self.keep_listing(&drive, key(row), &metas, false);
                asked = asked.or((row == i).then_some(metas));
            }
        }
        if let Some(metas) = asked {
            return metas;
        }
        // The list is cached only if every later metadata block could be read: an unreadable one,
        // or one of a drive that was gone for a moment, may be readable next time. The same is true
        // of the footers.
        let (mut found, mut certain, mut lost) = (Metas::default(), true, false);
        let missed = self.missed();
        for stripe in (window::start(stripe)..=last).rev() {
            let read = self.window_blocks(&drive, zone, stripe, i..i + 1).await;
            if let Ok(pages) = &read
                && let Some(page) = pages.first()
                && let Some(metas) = windows::open(page, self.window_at(zone, stripe, i))
            {
                found = Rc::new(metas);
                break;
            }
            certain &= !read.as_ref().is_err_and(|error| error.kind() != ErrorKind::Corrupt);
            if stripe == last && self.is_lost(zone, &read) {
                lost = true;
                if let Some(told) = self.listed_by_footers(zone, last, i).await {
                    (found, certain) = told;
                    break;
                }
            }
        }
        if certain && self.missed() == missed {
            let window = (zone.sequence, window::start(stripe));
            if lost && !self.0.meta.listings.borrow().scrubbed.contains(&window) {
                self.note_mismatch((zone.index, since));
            }
            self.keep_listing(&drive, key(i), &found, lost);
        }
        found
    }

    /// Whether `read`, the result of reading the place of a window's last stripe, shows a damaged
    /// metadata block. If a crash came before the metadata stripe, the place holds zeros, a torn
    /// block, or nothing: then nothing is lost.
    fn is_lost(&self, zone: &Listed, read: &Result<Pages>) -> bool {
        let drive = self.0.array.member(zone.index).drive();
        let sector = drive.map_or(BLOCK_SIZE, |drive| drive.geometry().block_size.0 as usize);
        let torn = |page: &Page| record::may_be_cut_off(page.bytes(), sector);
        let was = |page: &Page| crc32c(page.bytes()) != self.0.zero_crc && !torn(page);
        let damaged = match read {
            Ok(pages) => pages.iter().any(was),
            Err(error) => error.kind() != ErrorKind::Corrupt,
        };
        damaged && !zone.truncated
    }

    /// The list that the segment's footers give for row `i` of the chunks of the window that ends
    /// with stripe `last`, and whether the list is final; `None` if no footer that describes this
    /// zone can be read.
    async fn listed_by_footers(&self, zone: &Listed, last: u32, i: u32) -> Option<(Metas, bool)> {
        let first = window::start(last);
        let filler = identity::filler(zone.sequence, self.0.zero_crc);
        let listed = |footers: &Footers| {
            let meta = |stripe: u32| footers.meta(zone.index, stripe * zone.chunk + i);
            Rc::new((first..=last).map(|stripe| meta(stripe).unwrap_or(filler)).collect())
        };
        let open = self.0.streams.iter().find_map(|stream| {
            let open = stream.writer.open.borrow();
            open.as_ref().filter(|open| open.sequence == zone.sequence).cloned()
        });
        if let Some(open) = open {
            let rows = (first * zone.chunk) as usize..((last + 1) * zone.chunk) as usize;
            // Not final: chunks of the open segment may still be in flight.
            return Some((listed(&Footers::coming(self, &open, rows)), false));
        }
        let _one = self.0.meta.footer_reads.acquire(1).await;
        let key = (zone.sequence, zone.index, first, i);
        if let Some(known) = self.0.meta.listings.borrow().found.get(&key) {
            return Some((known.metas.clone(), true));
        }
        let segment = self.0.segments.borrow()[zone.slot as usize].clone();
        if segment.sequence != zone.sequence || segment.state != SegmentState::Sealed {
            return None;
        }
        let footers = Footers::read(self, &segment).await;
        footers.describe(zone.index).then(|| (listed(&footers), true))
    }

    /// The place of the metadata block that should list the block at `place`, if that metadata
    /// block is damaged.
    pub(crate) async fn lost_listing(&self, place: Place) -> Option<Place> {
        if self.0.shape.meta == MetaPlace::OutOfBand {
            return None;
        }
        let segment = self.0.segments.borrow()[place.slot as usize].clone();
        let zone = self.listed_zone(place.slot, place.index, &segment)?;
        let row = place.offset - self.0.shape.offset(0);
        let (stripe, i) = (row / zone.chunk, row % zone.chunk);
        let kept = segment.meta.kept(stripe, zone.index, i);
        if zone.truncated || zone.sequence != place.sequence || kept.is_some() {
            return None;
        }
        let key = (zone.sequence, zone.index, window::start(stripe), i);
        let known = self.0.meta.listings.borrow().found.get(&key).map(|known| known.lost);
        let last = window::end(stripe, zone.stripes);
        let lost = match (known, self.0.array.member(zone.index).drive()) {
            (Some(lost), _) => lost,
            (None, None) => false,
            (None, Some(drive)) => {
                let read = self.window_blocks(&drive, &zone, last, i..i + 1).await;
                let at = self.window_at(&zone, last, i);
                let pages = read.as_ref().ok();
                let whole = pages.is_some_and(|p| p.iter().any(|p| windows::open(p, at).is_some()));
                let gone = read.as_ref().is_err_and(Error::is_gone);
                !whole && !gone && self.is_lost(&zone, &read)
            }
        };
        let offset = self.0.shape.offset(last * zone.chunk + i);
        lost.then_some(Place { stripe: last, offset, ..place })
    }

    /// Notes that a scrub comes to a row of a segment. If a window begins with the row, drops the
    /// cached list of that window, so that the scrub reads the metadata block from the drives.
    /// Until [`Self::scrub_left`], only the scrub counts damage of that block.
    pub(crate) fn scrub_enters(&self, slot: u32, row: u32) {
        let segments = self.0.segments.borrow();
        let segment = &segments[slot as usize];
        let in_band = self.0.shape.meta == MetaPlace::InBand;
        if !in_band || !window::begins(row, segment.chunk) {
            return;
        }
        let first = window::start(row / segment.chunk);
        let mut listings = self.0.meta.listings.borrow_mut();
        listings.scrubbed.insert((segment.sequence, first));
        for index in 0..self.0.shape.placement.n {
            for i in 0..segment.chunk {
                listings.found.remove(&(segment.sequence, index, first, i));
            }
        }
    }

    /// Notes that a scrub is done with a segment: from now on, damage of the segment's metadata
    /// blocks is counted by the task that finds it.
    pub(crate) fn scrub_left(&self, sequence: u64) {
        self.0.meta.listings.borrow_mut().scrubbed.retain(|window| window.0 != sequence);
    }

    /// Caches a list that was read from a drive, unless the drive was replaced in the meantime.
    fn keep_listing(&self, drive: &Rc<Drive>, key: Key, metas: &Metas, lost: bool) {
        let now = self.0.array.member(key.1).drive();
        if now.is_some_and(|now| Rc::ptr_eq(&now, drive)) {
            self.0.meta.listings.borrow_mut().put(key, metas.clone(), lost);
        }
    }

    fn window_at(&self, zone: &Listed, stripe: u32, row: u32) -> At {
        let (array, device) = (self.0.array.uuid(), self.0.array.member(zone.index).uuid());
        At { array, device, segment: zone.sequence, stripe, row }
    }

    async fn window_blocks(
        &self,
        drive: &Drive,
        zone: &Listed,
        stripe: u32,
        rows: Range<u32>,
    ) -> Result<Pages> {
        let offset = self.0.shape.offset(stripe * zone.chunk + rows.start);
        let at = BlockAddr::new(drive.geometry(), zone.zone, offset);
        let count = rows.end - rows.start;
        let _pin = drive.zones().pin(zone.zone);
        read_blocks(&**drive.device(), QueueId(0), at, count, &self.0.pages).await
    }

    /// Whether a metadata block or a footer lists the block at a place.
    pub(crate) async fn is_listed(&self, place: Place) -> bool {
        let listed = self.clone().listed(place, 1).await;
        listed.first().is_some_and(|meta| meta.is_some_and(|meta| meta.stripe.get() != NONE))
    }

    /// Whether any zone of an ended segment says that a stripe is a metadata stripe.
    pub(crate) async fn is_metadata(&self, slot: u32, segment: &Segment, stripe: u32) -> bool {
        if self.0.shape.meta == MetaPlace::OutOfBand {
            return false;
        }
        if window::ends(stripe, self.0.shape.stripes(segment.chunk)) {
            return true;
        }
        for index in 0..self.0.shape.placement.n {
            if let Some(zone) = self.listed_zone(slot, index, segment)
                && is_own(&self.meta_at(&zone, stripe, 0..1).await)
            {
                return true;
            }
        }
        false
    }

    /// The number and identity of each data block of an ended segment; reads only the lists
    /// of windows.
    pub(crate) async fn listed_identities(&self, slot: u32) -> Vec<(u32, Identity)> {
        let segment = self.0.segments.borrow()[slot as usize].clone();
        let placement = self.0.shape.placement;
        let zones: Vec<Option<Listed>> =
            (0..placement.n).map(|index| self.listed_zone(slot, index, &segment)).collect();
        let stripes = zones.iter().flatten().map(|zone| zone.stripes).max().unwrap_or(0);
        let mut found = Vec::new();
        for first in (0..stripes).step_by(WINDOW as usize) {
            for row in 0..segment.chunk {
                let mut listed = Vec::new();
                for zone in &zones {
                    listed.push(match zone {
                        Some(zone) => self.metas(zone, first, row..segment.chunk).await,
                        None => Rc::default(),
                    });
                }
                for stripe in first..=window::end(first, stripes) {
                    let at = stripe * segment.chunk + row;
                    for (chunk, identity) in self.identities_in(&listed, stripe) {
                        found.push((self.0.shape.number(slot, at, chunk), identity));
                    }
                }
            }
        }
        found
    }

    /// For each data block of a row, the number of its chunk and its identity, from the lists of
    /// each drive.
    fn identities_in(&self, listed: &[Metas], stripe: u32) -> Vec<(u32, Identity)> {
        let placement = self.0.shape.placement;
        let of = |chunk: u32| {
            let metas = &listed[placement.drive(stripe, chunk) as usize];
            metas.get((stripe % WINDOW) as usize).filter(|meta| meta.stripe.get() == stripe)
        };
        if (0..placement.n).any(|chunk| of(chunk).is_some_and(is_own)) {
            return Vec::new();
        }
        let codes: Vec<Option<[u8; CODED]>> =
            (0..placement.n).map(|chunk| of(chunk).map(identity::coded)).collect();
        let codes: Vec<Option<&[u8]>> =
            codes.iter().map(|code| code.as_ref().map(|code| &code[..])).collect();
        let identity = |chunk: u32| {
            let code = reconstruct(&placement, &codes, chunk as usize)?;
            Some((chunk, Identity::from_bytes(&code)?))
        };
        (0..placement.k).filter_map(identity).collect()
    }

    /// The first `rows` data rows of a member's zone of a segment, as metadata blocks and footers
    /// list them. A block whose checksum differs from the listed one is damaged (`whole` is false).
    /// `full`: the zone was written to its end.
    pub(crate) async fn scan_windows(
        &self,
        drive: &Drive,
        (slot, index): (u32, u32),
        rows: u32,
        full: bool,
    ) -> Rows {
        let segment = self.0.segments.borrow()[slot as usize].clone();
        let Some(known) = self.listed_zone(slot, index, &segment) else { return Rows::new() };
        let (chunk, zone) = (known.chunk, known.zone);
        let (mut crcs, mut lists) = (Vec::new(), BTreeMap::new());
        read_zone(drive, &self.0.shape, zone, rows, &self.0.pages, |read| {
            let (stripe, row) = (crcs.len() as u32 / chunk, crcs.len() as u32 % chunk);
            crcs.push(read.map(|(page, _)| crc32c(page.bytes())));
            let at = self.window_at(&known, stripe, row);
            if let Some(metas) = read.and_then(|(page, _)| windows::open(page, at)) {
                // The last metadata block of a window overrides earlier ones, since it
                // lists everything.
                lists.insert((window::start(stripe), row), metas);
            }
        })
        .await;
        let row = |(at, crc): (u32, &Option<u32>)| {
            let (stripe, row) = (at / chunk, at % chunk);
            let metas = lists.get(&(window::start(stripe), row))?;
            let meta = metas.get((stripe % WINDOW) as usize)?;
            // A listed block has been written, so content that differs from the listed checksum
            // is damage.
            let whole = Some(meta.own_crc.get()) == *crc;
            let (listed, own) = (meta.stripe.get() == stripe, is_own(meta));
            let stripe = if own { NONE } else { stripe };
            (listed && (whole || !own)).then(|| Row { stripe, whole, ..Row::listed(meta) })
        };
        let mut found: Rows = (0..).zip(&crcs).map(row).collect();
        if full && found.iter().any(Option::is_none) {
            let footers = Footers::read(self, &segment).await;
            for (at, (row, crc)) in (0..).zip(found.iter_mut().zip(crcs)) {
                let meta = || footers.meta(index, at).filter(|m| Some(m.own_crc.get()) == crc);
                *row = row.or_else(|| Some(Row::listed(&meta()?)));
            }
        }
        found
    }
}
