//! Windows: in-band metadata, for drives that have no out-of-band area.
//!
//! A segment's stripes are divided into windows. The last stripe of each window, and of the
//! segment, is a *metadata stripe*: on every drive its chunk lists the blocks of that drive's zone
//! in the stripes of the window before it. Row i of the chunk lists the rows i. Further metadata
//! stripes come early, as the next stripe, when stripes wait to be listed and no metadata stripe is
//! in flight: under load many stripes wait for one. All chunks of a metadata stripe are written, so
//! it has the same place in every zone: rows are at their own places (Zone Write only).
//!
//! Invariants
//! - A stripe counts on a drive when its chunk and the chunk of a later metadata stripe are there:
//!   blocks that no metadata block lists belong to no stripe.
//! - A metadata block lists all of its window before it, so the last whole one has everything.

mod footers;
pub(crate) mod lookup;

use crate::format::{BlockMeta, NONE, WINDOW, WindowBody, block, kind};
use crate::meta::scan::Rows;
use crate::meta::{self, Identity, OpenMeta, RebuiltMeta};
use crate::volume::Volume;
use furrow_log::Uuid;
use furrow_log::record::{self, Expect, RecordId, crc32c};
use furrow_log::writer::{Kind, WriteHandle, ZoneWrite};
use furrow_rt::{Notify, Page, Pages, Pool};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Data blocks that cleaning moves together, at most, if a stripe is no larger.
const BATCH: u32 = 8192;

/// First stripe of the window of `stripe`.
pub(crate) fn start(stripe: u32) -> u32 {
    stripe - stripe % WINDOW
}

/// Whether a row of a segment of chunks of `chunk` blocks is the first of its window.
pub(crate) fn begins(row: u32, chunk: u32) -> bool {
    row.is_multiple_of(WINDOW * chunk)
}

/// Whether `stripe` is the last of its window, in a segment of `stripes`.
pub(crate) fn ends(stripe: u32, stripes: u32) -> bool {
    stripe % WINDOW == WINDOW - 1 || stripe + 1 == stripes
}

/// The last stripe of the window of `stripe`, in a segment of `stripes`.
pub(crate) fn end(stripe: u32, stripes: u32) -> u32 {
    (start(stripe) + WINDOW - 1).min(stripes.saturating_sub(1))
}

/// Stripes of `data` blocks that cleaning writes together: those of a window, within a limit.
pub(crate) fn batch(data: u32) -> u32 {
    (BATCH / data).clamp(1, WINDOW - 1)
}

/// Stripes of `data` blocks that cleaning fills in a segment of `stripes`, at least. Not counted
/// are stripes that end windows, the early metadata stripe of each batch, the padding of the last
/// batch, and the mapping blocks of the checkpoint that follows, with their metadata stripes.
pub(crate) fn capacity(stripes: u32, data: u32) -> u32 {
    let taken = stripes.div_ceil(WINDOW) + stripes.div_ceil(batch(data) + 1) + 4;
    stripes.saturating_sub(taken)
}

/// The metadata of a zone's rows in a window: by row in the chunk, then by stripe.
#[derive(Clone, Default)]
pub(crate) struct Listing(Vec<Vec<BlockMeta>>);

impl Listing {
    pub(crate) fn new(chunk: u32) -> Listing {
        Listing(vec![Vec::new(); chunk as usize])
    }

    /// Adds the next stripe: the metadata of the rows of its chunk, one after the other.
    pub(crate) fn push(&mut self, metas: &[u8]) {
        for (rows, bytes) in self.0.iter_mut().zip(metas.chunks(BlockMeta::SIZE)) {
            let meta = BlockMeta::read_from_bytes(bytes);
            rows.push(meta.expect("invariant: metadata are one behind the other"));
        }
    }

    /// Adds a stripe of metadata blocks: the blocks themselves.
    pub(crate) fn push_own(&mut self, segment: u64, stripe: u32, pages: &[Page]) {
        for (rows, page) in self.0.iter_mut().zip(pages) {
            rows.push(own(segment, stripe, page));
        }
    }

    fn get(&self, stripe: u32, row: u32) -> Option<BlockMeta> {
        self.0[row as usize].get((stripe % WINDOW) as usize).copied()
    }

    /// The metadata blocks with this list, as stripe `stripe`.
    pub(crate) fn blocks(&self, pool: &Pool, id: &RecordId, stripe: u32) -> Pages {
        let seal = |(row, metas): (u32, &Vec<BlockMeta>)| {
            debug_assert_eq!(metas.len() as u32, stripe % WINDOW);
            let mut body = WindowBody::new_zeroed();
            body.stripe = stripe.into();
            body.row = row.into();
            let bytes = [body.as_bytes(), metas.as_bytes()].concat();
            record::seal(id, &bytes, pool).remove(0)
        };
        (0..).zip(&self.0).map(seal).collect()
    }
}

/// The address of every metadata block. A parity block has the parity of addresses, which all have
/// zeros in the first byte: it is never all ones, while the parity of kinds may have any value.
const NOWHERE: u64 = u64::MAX;

/// The metadata of a metadata block itself.
fn own(segment: u64, stripe: u32, page: &Page) -> BlockMeta {
    let crc = crc32c(page.bytes());
    let identity = Identity { lba: NOWHERE, sequence: 0, crc, kind: block::WINDOW };
    meta::seal(&identity.bytes(), segment, stripe, crc)
}

/// Whether this is the metadata of a metadata block.
pub(crate) fn is_own(meta: &BlockMeta) -> bool {
    meta.kind.get() == u32::from(block::WINDOW)
        && meta.lba.get() == NOWHERE
        && meta.stripe.get() != NONE
}

/// The place where a metadata block must have been written.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) array: Uuid,
    pub(crate) device: Uuid,
    pub(crate) segment: u64,
    pub(crate) stripe: u32,
    pub(crate) row: u32,
}

/// The list in a metadata block, by stripe, with the block itself as the last one; `None` if the
/// block is no metadata block.
///
/// A user's data may look like a metadata block, of a place that it was read from. No place is
/// written twice with one segment sequence number, so it is not the metadata block of its present
/// place.
pub(crate) fn open(page: &Page, at: At) -> Option<Vec<BlockMeta>> {
    let expect = Expect { kind: kind::WINDOW, device: Some(at.device), object: Some(at.array) };
    let (header, body) = record::open(page.bytes(), &expect).ok()?;
    let (body, rest) = WindowBody::read_from_prefix(body).ok()?;
    let count = (at.stripe % WINDOW) as usize;
    let here = header.sequence.get() == at.segment
        && (body.stripe.get(), body.row.get()) == (at.stripe, at.row)
        && rest.len() == count * BlockMeta::SIZE;
    let metas = rest.chunks(BlockMeta::SIZE).map(|bytes| meta::open(bytes, at.segment));
    let mut metas: Vec<BlockMeta> = here.then(|| metas.collect::<Option<_>>())??;
    metas.push(own(at.segment, at.stripe, page));
    Some(metas)
}

/// A metadata stripe that others wait for.
#[derive(Default)]
pub(crate) struct Cover {
    /// Drives that have the stripe, as bits, and whether a zone failed it.
    told: Cell<Option<(u32, bool)>>,
    over: Notify,
}

impl Cover {
    /// The drives that have the stripe, as bits, and whether a zone failed it on a drive that still
    /// answers.
    pub(crate) async fn wait(&self) -> (u32, bool) {
        loop {
            match self.told.get() {
                Some(told) => return told,
                None => self.over.wait().await,
            }
        }
    }
}

#[derive(Default)]
struct State {
    /// Lists of windows whose last stripe is not written yet, by first stripe, for each drive.
    listings: BTreeMap<u32, Vec<Listing>>,
    /// The next metadata stripe.
    next: Rc<Cover>,
    /// Number of stripes that wait for the next metadata stripe.
    waiting: u32,
    /// Metadata stripes in flight.
    writing: u32,
    /// A caller is going to check whether the next metadata stripe is due.
    asked: bool,
}

/// The windows of an open segment that are being written.
pub(crate) struct Windows {
    chunk: u32,
    drives: u32,
    state: RefCell<State>,
}

impl Windows {
    pub(crate) fn new(chunk: u32, drives: u32) -> Windows {
        Windows { chunk, drives, state: RefCell::default() }
    }

    /// Notes the metadata of a stripe's chunk on a drive; stripes come in order.
    pub(crate) fn note(&self, stripe: u32, drive: u32, metas: &[u8]) {
        let mut state = self.state.borrow_mut();
        self.listing(&mut state, stripe, drive).push(metas);
    }

    fn listing<'a>(&self, state: &'a mut State, stripe: u32, drive: u32) -> &'a mut Listing {
        let (chunk, drives) = (self.chunk, self.drives as usize);
        let empty = || vec![Listing::new(chunk); drives];
        &mut state.listings.entry(start(stripe)).or_insert_with(empty)[drive as usize]
    }

    /// The metadata of row `row` of a stripe's chunk; `None` if its window is not kept here.
    pub(crate) fn get(&self, stripe: u32, drive: u32, row: u32) -> Option<Option<BlockMeta>> {
        let state = self.state.borrow();
        state.listings.get(&start(stripe)).map(|all| all[drive as usize].get(stripe, row))
    }
}

/// A metadata stripe on its way to the drives.
pub(crate) struct Sent {
    cover: Rc<Cover>,
    /// When it was sent ([`Volume::asked`]).
    since: u64,
    flights: Vec<(u32, WriteHandle)>,
}

impl Sent {
    /// Waits for the stripe's chunks. Returns the drives that have the stripe, as bits, and whether
    /// a zone failed it on a drive that still answers. `segment` is the segment's sequence number.
    pub(crate) async fn wait(&mut self, volume: &Volume, segment: u64) -> (u32, bool) {
        let (mut there, mut broken) = (0, false);
        for (index, done) in self.flights.drain(..) {
            match done.await {
                Ok(_) => {
                    there |= 1 << index;
                    volume.note_written(index);
                }
                Err(error) => {
                    let of = (index, self.since);
                    broken |= !volume.note_write_error(of, Some(segment), &error);
                }
            }
        }
        (there, broken)
    }
}

impl Windows {
    /// See [`OpenMeta::join`].
    pub(crate) fn join(&self) -> (Rc<Cover>, bool) {
        let mut state = self.state.borrow_mut();
        state.waiting += 1;
        // The check comes later: stripes that are dispatched later in this turn wait for the same
        // metadata stripe.
        let ask = state.writing == 0 && !std::mem::replace(&mut state.asked, true);
        (state.next.clone(), ask)
    }

    /// See [`OpenMeta::is_due`].
    pub(crate) fn is_due(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.asked = false;
        state.waiting > 0 && state.writing == 0
    }

    /// See [`OpenMeta::send`].
    pub(crate) fn send(&self, volume: &Volume, slot: u32, number: u32) -> Sent {
        let (sequence, zones) = {
            let segment = &volume.0.segments.borrow()[slot as usize];
            (segment.sequence, segment.zones.clone())
        };
        let (mut flights, mut state) = (Vec::new(), self.state.borrow_mut());
        for (index, zone) in (0u32..).zip(zones) {
            let id = volume.record_id(kind::WINDOW, index, sequence);
            let listing = self.listing(&mut state, number, index);
            let pages = listing.blocks(&volume.0.pages, &id, number);
            listing.push_own(sequence, number, &pages);
            let drive = volume.0.members[index as usize].drive();
            let (Some(zone), Some(drive)) = (zone, drive) else { continue };
            let written = drive.writer.submit(ZoneWrite::pages(zone, Kind::Summary, pages));
            flights.push((index, written));
        }
        (state.waiting, state.writing) = (0, state.writing + 1);
        Sent { cover: std::mem::take(&mut state.next), since: volume.asked(), flights }
    }

    /// A metadata stripe was written as stripe `number` of `stripes`: notifies the stripes that
    /// wait.
    fn on_complete(
        &self,
        sent: &Sent,
        (number, stripes): (u32, u32),
        (there, broken): (u32, bool),
    ) {
        let mut state = self.state.borrow_mut();
        state.writing -= 1;
        if ends(number, stripes) && !broken {
            // From now on the window is read from the drives.
            state.listings.remove(&start(number));
        }
        drop(state);
        sent.cover.told.set(Some((there, broken)));
        sent.cover.over.notify_all();
    }
}

impl OpenMeta {
    /// See [`Windows::on_complete`].
    pub(crate) fn on_complete(&self, sent: &Sent, at: (u32, u32), told: (u32, bool)) {
        if let Some(windows) = &self.0 {
            windows.on_complete(sent, at, told);
        }
    }

    /// Continues the window that a crash left in a segment before stripe `next`; `rows` has the
    /// part of it that each zone holds.
    pub(crate) fn resume(
        &self,
        (segment, next): (u64, u32),
        chunk: u32,
        rows: &[Rows],
        zero_crc: u32,
    ) {
        let Some(windows) = &self.0 else { return };
        for stripe in start(next)..next {
            for (drive, rows) in (0..).zip(rows) {
                let meta = |row: u32| match rows.get(row as usize).copied().flatten() {
                    Some(row) => meta::seal(&row.code, segment, stripe, row.crc),
                    None => meta::filler(segment, zero_crc),
                };
                let metas = (stripe * chunk..(stripe + 1) * chunk).map(meta);
                windows.note(stripe, drive, metas.collect::<Vec<_>>().as_bytes());
            }
        }
    }
}

impl RebuiltMeta {
    /// Inserts the metadata stripes `own` among rebuilt rows of `pages`, which begin with stripe
    /// `first` of a segment; calls come in the order of rows. `oob` has the out-of-band bytes of
    /// the rows, and is left empty where metadata is in-band.
    pub(crate) fn weave(
        &mut self,
        (pool, id): (&Pool, &RecordId),
        (first, chunk): (u32, u32),
        own: &[u32],
        pages: &mut Pages,
        oob: &mut Vec<u8>,
    ) {
        let Some(listing) = &mut self.0 else { return };
        let oob = std::mem::take(oob);
        let stripes = oob.chunks(chunk as usize * BlockMeta::SIZE).enumerate();
        for (stripe, (at, metas)) in (first..).zip(stripes) {
            if start(stripe) == stripe {
                *listing = Listing::new(chunk);
            }
            if !own.contains(&stripe) {
                listing.push(metas);
                continue;
            }
            let made = listing.blocks(pool, id, stripe);
            listing.push_own(id.sequence, stripe, &made);
            for (into, page) in pages[at * chunk as usize..].iter_mut().zip(made) {
                *into = page;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn windows_end_where_the_segment_does(stripes in 1..400u32, pick in any::<u32>()) {
            let stripe = pick % stripes;
            let last = end(stripe, stripes);
            prop_assert!(ends(last, stripes) && start(last) == start(stripe));
            prop_assert!((stripe..last).all(|other| !ends(other, stripes)));
            prop_assert!(last - start(stripe) < WINDOW && last < stripes);
        }

        /// A metadata block opens at its place, and lists the noted blocks.
        #[test]
        fn what_is_listed_is_found_where_it_was_written(
            chunk in 1..4u32, stripe in 0..200u32, segment in 1..9u64, bit in 0..4096 * 8usize,
        ) {
            let id = RecordId {
                kind: kind::WINDOW,
                sequence: segment,
                device: Uuid([1; 16]),
                object: Uuid([2; 16]),
                ..RecordId::default()
            };
            let mut listing = Listing::new(chunk);
            let meta = |stripe: u32, row: u32| {
                let lba = u64::from(stripe * chunk + row);
                let identity = Identity { lba, ..Identity::default() };
                meta::seal(&identity.bytes(), segment, stripe, row)
            };
            for stripe in start(stripe)..stripe {
                let metas: Vec<BlockMeta> = (0..chunk).map(|row| meta(stripe, row)).collect();
                listing.push(metas.as_bytes());
            }
            let pages = listing.blocks(&Pool::new(4), &id, stripe);
            prop_assert_eq!(pages.len() as u32, chunk);
            for (row, page) in (0..).zip(&pages) {
                let at = At { array: id.object, device: id.device, segment, stripe, row };
                let metas = open(page, at).unwrap();
                prop_assert_eq!(metas.len() as u32, stripe % WINDOW + 1);
                for (stripe, found) in (start(stripe)..stripe).zip(&metas) {
                    let noted = meta(stripe, row);
                    prop_assert_eq!(found.as_bytes(), noted.as_bytes());
                }
                prop_assert!(metas.last().is_some_and(is_own));
                for other in [
                    At { array: id.device, ..at },
                    At { device: id.object, ..at },
                    At { segment: segment + 1, ..at },
                    At { stripe: stripe + 1, ..at },
                    At { row: row + 1, ..at },
                ] {
                    prop_assert!(open(page, other).is_none());
                }
                let mut flipped = page.clone();
                flipped.make_mut()[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(open(&flipped, at).is_none());
            }
        }

        /// For batches of any size, the capacity of a segment is not overstated: batches begin
        /// anywhere in a window, and end with an early metadata stripe.
        #[test]
        fn what_cleaning_writes_fits(stripes in 5..2000u32, data in 1..9000u32) {
            let (mut left, mut at) = (capacity(stripes, data), 0);
            // Padding, once at the end, counts as a stripe.
            while left > 0 {
                let mut now = left.min(batch(data));
                left -= now;
                let mut listed = true;
                while now > 0 {
                    prop_assert!(at < stripes, "{left} stripes are left over");
                    listed = ends(at, stripes);
                    now -= u32::from(!listed);
                    at += 1;
                }
                at += u32::from(!listed);
            }
            prop_assert!(at + 2 < stripes || capacity(stripes, data) == 0);
        }
    }
}
