//! Windows: in-band metadata, for drives that have no out-of-band area.
//!
//! A segment's stripes are divided into windows. The last stripe of each window, and of the
//! segment, is a *metadata stripe*. On every drive, the chunk of a metadata stripe lists the blocks
//! that the window's earlier stripes have in that drive's zone: row i of the chunk lists row i of
//! each earlier stripe's chunk. A further metadata stripe is written as the next stripe when
//! stripes wait to be listed and no metadata stripe is in flight: so under load one metadata stripe
//! lists many stripes. A metadata stripe has a chunk at the same place in every zone; therefore
//! each row is at its own place (Zone Write only).
//!
//! Invariants
//! - A stripe counts on a drive when its chunk and the chunk of a later metadata stripe are there:
//!   a block that no metadata block lists belongs to no stripe.
//! - A metadata block lists everything before it in its window, so a reader needs only the last
//!   whole metadata block of a window.

pub(crate) mod cache;
mod footers;
mod lookup;

use crate::format::{BlockMeta, kind};
use crate::meta::identity::{filler, seal};
use crate::meta::open::{OpenMeta, RebuiltMeta};
use crate::meta::scan::Rows;
use crate::meta::window::{ends, start};
use crate::meta::windows::{Cover, Listing, Windows};
use crate::volume::Volume;
use furrow_log::record::RecordId;
use furrow_log::writer::{Kind, WriteHandle, ZoneWrite};
use furrow_rt::{Pages, Pool};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// A metadata stripe on its way to the drives.
pub(crate) struct Sent {
    cover: Rc<Cover>,
    /// Value of [`Volume::asked`] when the metadata stripe was sent.
    since: u64,
    flights: Vec<(u32, WriteHandle)>,
}

impl Sent {
    /// Waits for the chunks of the metadata stripe. Returns the drives that have their chunk, as
    /// bits, and whether a zone failed on a drive that still answers. `segment` is the segment's
    /// sequence number.
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
            let drive = volume.0.array.member(index).drive();
            let (Some(zone), Some(drive)) = (zone, drive) else { continue };
            let written = drive.writer().submit(ZoneWrite::pages(zone, Kind::Summary, pages));
            flights.push((index, written));
        }
        (state.waiting, state.writing) = (0, state.writing + 1);
        Sent { cover: std::mem::take(&mut state.next), since: volume.asked(), flights }
    }

    /// Notes that a metadata stripe was written as stripe `number` of `stripes`, and wakes the
    /// stripes that it lists.
    fn on_complete(
        &self,
        sent: &Sent,
        (number, stripes): (u32, u32),
        (there, broken): (u32, bool),
    ) {
        let mut state = self.state.borrow_mut();
        state.writing -= 1;
        if ends(number, stripes) && !broken {
            // From now on, readers take the window's list from the drives.
            state.listings.remove(&start(number));
        }
        drop(state);
        sent.cover.told.set(Some((there, broken)));
        sent.cover.over.notify_all();
    }
}

impl OpenMeta {
    /// Sends a metadata stripe as stripe `number` of a segment; `None` if metadata is out of band.
    pub(crate) fn send(&self, volume: &Volume, slot: u32, number: u32) -> Option<Sent> {
        self.0.as_ref().map(|windows| windows.send(volume, slot, number))
    }

    /// See [`Windows::on_complete`].
    pub(crate) fn on_complete(&self, sent: &Sent, at: (u32, u32), told: (u32, bool)) {
        if let Some(windows) = &self.0 {
            windows.on_complete(sent, at, told);
        }
    }

    /// Continues the window that a crash left unfinished in a segment before stripe `next`. `rows`
    /// has, for each drive, the rows that were read from its zone.
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
                    Some(row) => seal(&row.code, segment, stripe, row.crc),
                    None => filler(segment, zero_crc),
                };
                let metas = (stripe * chunk..(stripe + 1) * chunk).map(meta);
                windows.note(stripe, drive, metas.collect::<Vec<_>>().as_bytes());
            }
        }
    }
}

impl RebuiltMeta {
    /// Fills in the metadata stripes `own` in `pages`, the rebuilt rows from stripe `first` of a
    /// segment on. Must be called in row order. On entry `oob` holds the metadata of these rows;
    /// with in-band metadata it is moved into the metadata stripes, and `oob` is left empty.
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
