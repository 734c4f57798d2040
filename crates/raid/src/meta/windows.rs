//! The lists of windows: their form in metadata blocks, and those of windows that are being
//! written, in memory.

use crate::format::{BlockMeta, NONE, WINDOW, WindowBody, block, kind};
use crate::meta::identity::{self, Identity, seal};
use crate::meta::window::start;
use furrow_log::Uuid;
use furrow_log::record::{self, Expect, RecordId, crc32c};
use furrow_rt::{Notify, Page, Pages, Pool};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The list of a window in one zone: the metadata by row in the chunk, then by stripe.
#[derive(Clone, Default)]
pub(crate) struct Listing(Vec<Vec<BlockMeta>>);

impl Listing {
    pub(crate) fn new(chunk: u32) -> Listing {
        Listing(vec![Vec::new(); chunk as usize])
    }

    /// Adds the window's next stripe; `metas` has the metadata of the rows of its chunk in order.
    pub(crate) fn push(&mut self, metas: &[u8]) {
        for (rows, bytes) in self.0.iter_mut().zip(metas.chunks(BlockMeta::SIZE)) {
            let meta = BlockMeta::read_from_bytes(bytes);
            rows.push(meta.expect("invariant: metadata are one behind the other"));
        }
    }

    /// Adds a metadata stripe, whose chunk is `pages`.
    pub(crate) fn push_own(&mut self, segment: u64, stripe: u32, pages: &[Page]) {
        for (rows, page) in self.0.iter_mut().zip(pages) {
            rows.push(own(segment, stripe, page));
        }
    }

    fn get(&self, stripe: u32, row: u32) -> Option<BlockMeta> {
        self.0[row as usize].get((stripe % WINDOW) as usize).copied()
    }

    /// The metadata blocks that hold this list, to be written as stripe `stripe` of the segment.
    pub(crate) fn blocks(&self, pool: &Pool, id: &RecordId, stripe: u32) -> Pages {
        let block = |(row, metas): (u32, &Vec<BlockMeta>)| {
            debug_assert_eq!(metas.len() as u32, stripe % WINDOW);
            let mut body = WindowBody::new_zeroed();
            body.stripe = stripe.into();
            body.row = row.into();
            let bytes = [body.as_bytes(), metas.as_bytes()].concat();
            record::seal(id, &bytes, pool).remove(0)
        };
        (0..).zip(&self.0).map(block).collect()
    }
}

/// The address (`lba`) in the metadata of every metadata block. A parity block cannot have it:
/// its address is the parity of addresses whose highest byte is zero, while its kind may have
/// any value.
const NOWHERE: u64 = u64::MAX;

/// The metadata of a metadata block itself.
fn own(segment: u64, stripe: u32, page: &Page) -> BlockMeta {
    let crc = crc32c(page.bytes());
    let identity = Identity { lba: NOWHERE, sequence: 0, crc, kind: block::WINDOW };
    seal(&identity.bytes(), segment, stripe, crc)
}

/// Whether `meta` is the metadata of a metadata block.
pub(crate) fn is_own(meta: &BlockMeta) -> bool {
    meta.kind.get() == u32::from(block::WINDOW)
        && meta.lba.get() == NOWHERE
        && meta.stripe.get() != NONE
}

/// The place to which a metadata block must have been written.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) array: Uuid,
    pub(crate) device: Uuid,
    pub(crate) segment: u64,
    pub(crate) stripe: u32,
    pub(crate) row: u32,
}

/// The list in a metadata block, by stripe; the last entry is for the block itself. `None` if the
/// block is not the metadata block of the place `at`.
///
/// A user's data may be a copy of a metadata block. The copy names another place, or another
/// segment's sequence number, since no place is written twice under one sequence number.
pub(crate) fn open(page: &Page, at: At) -> Option<Vec<BlockMeta>> {
    let expect = Expect { kind: kind::WINDOW, device: Some(at.device), object: Some(at.array) };
    let (header, body) = record::open(page.bytes(), &expect).ok()?;
    let (body, rest) = WindowBody::read_from_prefix(body).ok()?;
    let count = (at.stripe % WINDOW) as usize;
    let here = header.sequence.get() == at.segment
        && (body.stripe.get(), body.row.get()) == (at.stripe, at.row)
        && rest.len() == count * BlockMeta::SIZE;
    let metas = rest.chunks(BlockMeta::SIZE).map(|bytes| identity::open(bytes, at.segment));
    let mut metas: Vec<BlockMeta> = here.then(|| metas.collect::<Option<_>>())??;
    metas.push(own(at.segment, at.stripe, page));
    Some(metas)
}

/// A metadata stripe that other stripes wait for.
#[derive(Default)]
pub(crate) struct Cover {
    /// Drives that have their chunk of the metadata stripe, as bits, and whether a zone failed;
    /// `None` until the stripe is written.
    pub(super) told: Cell<Option<(u32, bool)>>,
    pub(super) over: Notify,
}

impl Cover {
    /// Waits for the metadata stripe. Returns the drives that have their chunk, as bits, and
    /// whether a zone failed on a drive that still answers.
    pub(crate) async fn wait(&self) -> (u32, bool) {
        loop {
            match self.told.get() {
                Some(told) => return told,
                None => self.over.wait().await,
            }
        }
    }
}

/// The windows of an open segment, and its metadata stripes.
#[derive(Default)]
pub(super) struct State {
    /// For each window whose last stripe is not written yet, by its first stripe: the list of
    /// each drive.
    pub(super) listings: BTreeMap<u32, Vec<Listing>>,
    /// The next metadata stripe to be sent.
    pub(super) next: Rc<Cover>,
    /// Number of stripes that wait for the next metadata stripe.
    pub(super) waiting: u32,
    /// Number of metadata stripes in flight.
    pub(super) writing: u32,
    /// Whether a task is going to check if the next metadata stripe is due.
    asked: bool,
}

/// The windows of an open segment that are being written.
pub(crate) struct Windows {
    chunk: u32,
    drives: u32,
    pub(super) state: RefCell<State>,
}

impl Windows {
    pub(crate) fn new(chunk: u32, drives: u32) -> Windows {
        Windows { chunk, drives, state: RefCell::default() }
    }

    /// Notes the metadata of a stripe's chunk on a drive; callers come in the order of stripes.
    pub(crate) fn note(&self, stripe: u32, drive: u32, metas: &[u8]) {
        let mut state = self.state.borrow_mut();
        self.listing(&mut state, stripe, drive).push(metas);
    }

    pub(super) fn listing<'a>(
        &self,
        state: &'a mut State,
        stripe: u32,
        drive: u32,
    ) -> &'a mut Listing {
        let (chunk, drives) = (self.chunk, self.drives as usize);
        let empty = || vec![Listing::new(chunk); drives];
        &mut state.listings.entry(start(stripe)).or_insert_with(empty)[drive as usize]
    }

    /// The metadata of row `row` of a stripe's chunk on a drive; `None` if the list of the stripe's
    /// window is not in memory, `Some(None)` if the list lacks the row.
    pub(crate) fn get(&self, stripe: u32, drive: u32, row: u32) -> Option<Option<BlockMeta>> {
        let state = self.state.borrow();
        state.listings.get(&start(stripe)).map(|all| all[drive as usize].get(stripe, row))
    }

    /// See [`OpenMeta::join`](super::open::OpenMeta::join).
    pub(crate) fn join(&self) -> (Rc<Cover>, bool) {
        let mut state = self.state.borrow_mut();
        state.waiting += 1;
        // The caller's task checks [`Windows::is_due`] after the tasks that run now, so that all
        // stripes dispatched before wait for the same metadata stripe.
        let ask = state.writing == 0 && !std::mem::replace(&mut state.asked, true);
        (state.next.clone(), ask)
    }

    /// See [`OpenMeta::is_due`](super::open::OpenMeta::is_due).
    pub(crate) fn is_due(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.asked = false;
        state.waiting > 0 && state.writing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::window::start;
    use proptest::prelude::*;

    proptest! {
        /// A metadata block opens at its place only, and lists the noted blocks.
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
                seal(&identity.bytes(), segment, stripe, row)
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
    }
}
