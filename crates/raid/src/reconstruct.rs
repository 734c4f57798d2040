//! Reconstructs blocks of a lost drive and damaged blocks, from the other blocks of their rows.
//!
//! All needed blocks of a stripe are read at once. If all of them are whole, a minimum is read: for
//! a mirror the other block, with two parities all blocks except the second parity.

use crate::format::{BlockMeta, CODED, NONE, block};
use crate::meta::identity::{self, Identity};
use crate::read::Reading;
use crate::read::place::Loud;
use crate::read::place::{Place, Wanted};
use crate::volume::Volume;
use furrow_array::parity::reconstruct;
use furrow_log::record::crc32c;
use furrow_rt::Page;
use furrow_zone::{Error, ErrorKind, Result};

/// A block to reconstruct: its position in the request, its number, its expected identity, and
/// whether it was read and found damaged.
pub(crate) type Missing = (usize, u32, Wanted, bool);

/// A block with its metadata.
pub(crate) type Whole = (BlockMeta, Page);

/// The content that a read found at a place.
pub(crate) enum Seen {
    /// The block that was written there for the stripe.
    Whole(Whole),
    /// A block whose metadata says that it belongs to no stripe.
    Foreign,
    /// Content that does not match its metadata.
    Damaged,
    /// The drive could not read the block.
    Unread,
}

/// A reconstructed block: its coded metadata, and its content.
pub(crate) struct Reconstructed {
    pub(crate) code: [u8; CODED],
    pub(crate) page: Page,
}

impl Volume {
    /// Reconstructs blocks from the other blocks of their rows, all at once. Blocks that were read
    /// and found damaged are rewritten.
    pub(crate) async fn recover_blocks(
        &self,
        missing: Vec<Missing>,
        loud: Loud,
    ) -> Result<Vec<(usize, Page)>> {
        let mut runs: Vec<((u32, u32, u32), Vec<Missing>)> = Vec::new();
        for one in missing {
            let (slot, row, chunk) = self.0.shape.locate(one.1).expect("invariant: it has a place");
            let size = self.0.segments.borrow()[slot as usize].chunk;
            let follows = |run: &((u32, u32, u32), Vec<Missing>)| {
                let ((of, first, same), blocks) = run;
                let last = first + blocks.len() as u32 - 1;
                (*of, *same, last + 1) == (slot, chunk, row) && last / size == row / size
            };
            match runs.last_mut().filter(|run| follows(run)) {
                Some((_, blocks)) => blocks.push(one),
                None => runs.push(((slot, row, chunk), vec![one])),
            }
        }
        if runs.len() == 1
            && let Some((at, blocks)) = runs.pop()
        {
            return self.recover_run(at, blocks, loud).await;
        }
        let flights: Vec<_> = runs
            .into_iter()
            .map(|(at, blocks)| {
                let volume = self.clone();
                self.0.rt.spawn(async move { volume.recover_run(at, blocks, loud).await })
            })
            .collect();
        let mut all = Vec::new();
        for flight in flights {
            all.extend(flight.await?);
        }
        Ok(all)
    }

    /// Reconstructs the blocks of consecutive rows of a chunk.
    async fn recover_run(
        &self,
        (slot, row, chunk): (u32, u32, u32),
        blocks: Vec<Missing>,
        loud: Loud,
    ) -> Result<Vec<(usize, Page)>> {
        let made = self.reconstruct_rows((slot, row), blocks.len() as u32, chunk, loud).await?;
        // Rewriting single blocks takes whole stripes, and must not take the space that
        // cleaning needs.
        let repairs = self.0.options.clean && self.free_segments() > self.0.shape.kept;
        let (mut all, mut damage) = (Vec::new(), Vec::new());
        for ((row, made), (i, number, wanted, damaged)) in (row..).zip(made).zip(blocks) {
            let (identity, page) = self.believed((slot, row, chunk), made?)?;
            let (kind, lba) = wanted;
            if identity.map(|identity| (identity.kind, identity.lba)) != Some(wanted) {
                let what = format!(
                    "block {lba} (kind {kind}): segment {slot} row {row} holds {identity:?}"
                );
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            self.count(|counters| counters.reconstructed += 1);
            if damaged && kind == block::DATA && repairs {
                let identity = identity.expect("invariant: compared above");
                // The reader's pins still hold the segment, so `number` still leads to this
                // block's segment.
                damage.push((identity, page.clone(), self.origin(number)));
            }
            all.push((i, page));
        }
        if !damage.is_empty() {
            // The repair is a task of its own, so that the read does not wait for it.
            let volume = self.clone();
            self.0.rt.spawn_detached(async move {
                let count = damage.len() as u64;
                if volume.move_blocks(damage).await.is_ok() {
                    volume.count(|counters| counters.repaired += count);
                }
            });
        }
        Ok(all)
    }

    /// Reconstructs a block from the other blocks of its row. Returns its identity (`None`:
    /// parity), and its content.
    ///
    /// # Errors
    /// `Io` if too few of the other blocks can be read, `Corrupt` if the result does not match the
    /// block's checksum.
    pub(crate) async fn make(
        &self,
        slot: u32,
        row: u32,
        chunk: u32,
        loud: Loud,
    ) -> Result<(Option<Identity>, Page)> {
        let made = self.reconstruct_rows((slot, row), 1, chunk, loud).await?;
        let one = made.into_iter().next().expect("invariant: one row was asked for");
        self.believed((slot, row, chunk), one?)
    }

    /// The identity (`None`: parity) and content of a reconstructed block, if they match.
    fn believed(
        &self,
        (slot, row, chunk): (u32, u32, u32),
        Reconstructed { code, page }: Reconstructed,
    ) -> Result<(Option<Identity>, Page)> {
        if chunk >= self.0.shape.placement.k {
            return Ok((None, page));
        }
        let identity =
            Identity::from_bytes(&code).filter(|identity| identity.crc == crc32c(page.bytes()));
        match identity {
            Some(identity) => Ok((Some(identity), page)),
            None => Err(Error::new(
                ErrorKind::Corrupt,
                format!("segment {slot} row {row}: chunk {chunk} made from the others is damaged"),
            )),
        }
    }

    /// Reconstructs the blocks of `count` rows of a chunk, within one stripe, from the
    /// other chunks.
    ///
    /// # Errors
    /// An error if places in the segment cannot be computed; for each row, `Io` if too few other
    /// blocks can be read.
    pub(crate) async fn reconstruct_rows(
        &self,
        (slot, row): (u32, u32),
        count: u32,
        chunk: u32,
        loud: Loud,
    ) -> Result<Vec<Result<Reconstructed>>> {
        self.ready(slot).await?;
        let n = self.0.shape.placement.n;
        let first = self.enough(slot, row, chunk);
        // Blocks that were read: by chunk, then by row.
        let mut found: Vec<Vec<Option<Whole>>> = vec![vec![None; count as usize]; n as usize];
        self.read_rows((slot, row), &first, &mut found, loud).await;
        let mut made: Vec<Option<Reconstructed>> =
            (0..count as usize).map(|at| self.combine(&found, at, chunk)).collect();
        let rest: Vec<u32> = (0..n).filter(|c| *c != chunk && !first.contains(c)).collect();
        if made.iter().any(Option::is_none) && !rest.is_empty() {
            self.read_rows((slot, row), &rest, &mut found, loud).await;
            for (at, made) in made.iter_mut().enumerate().filter(|(_, made)| made.is_none()) {
                *made = self.combine(&found, at, chunk);
            }
        }
        let told = made
            .into_iter()
            .enumerate()
            .map(|(at, made)| made.ok_or_else(|| self.too_few(&found, (slot, row), at, chunk)));
        Ok(told.collect())
    }

    /// Chunks that suffice to reconstruct `chunk` if all of their blocks are whole.
    fn enough(&self, slot: u32, row: u32, chunk: u32) -> Vec<u32> {
        let placement = self.0.shape.placement;
        let others = || (0..placement.n).filter(|other| *other != chunk);
        if placement.m == placement.k && placement.level == furrow_array::level::Level::Raid01 {
            let mirror =
                if chunk < placement.k { chunk + placement.k } else { chunk - placement.k };
            return vec![mirror];
        }
        let there = others().filter(|other| self.place_now(slot, row, *other).is_some());
        there.take(placement.k as usize).collect()
    }

    /// Computes a row's block of `chunk` from the blocks in `found`.
    fn combine(
        &self,
        found: &[Vec<Option<Whole>>],
        at: usize,
        chunk: u32,
    ) -> Option<Reconstructed> {
        let placement = self.0.shape.placement;
        let row = || found.iter().map(|rows| rows[at].as_ref());
        let bytes: Vec<Option<&[u8]>> =
            row().map(|found| found.map(|(_, page)| &page.bytes()[..])).collect();
        let codes: Vec<Option<[u8; CODED]>> =
            row().map(|found| found.map(|(meta, _)| identity::coded(meta))).collect();
        let codes: Vec<Option<&[u8]>> =
            codes.iter().map(|code| code.as_ref().map(|code| &code[..])).collect();
        let code = reconstruct(&placement, &codes, chunk as usize)?;
        let data = reconstruct(&placement, &bytes, chunk as usize)?;
        Some(Reconstructed { code: code.try_into().ok()?, page: Page::from_slice(&data) })
    }

    fn too_few(
        &self,
        found: &[Vec<Option<Whole>>],
        (slot, row): (u32, u32),
        at: usize,
        chunk: u32,
    ) -> Error {
        let placement = self.0.shape.placement;
        let there = found.iter().filter(|rows| rows[at].is_some()).count();
        Error::new(
            ErrorKind::Io,
            format!(
                "segment {slot} row {}: chunk {chunk} is lost, and only {there} others of {} can \
                 be read, {} are needed",
                row + at as u32,
                placement.n - 1,
                placement.k
            ),
        )
    }

    /// Reads rows of some chunks, from `row` on, all at once. The caller has called
    /// [`Volume::ready`] for the segment.
    async fn read_rows(
        &self,
        (slot, row): (u32, u32),
        chunks: &[u32],
        found: &mut [Vec<Option<Whole>>],
        loud: Loud,
    ) {
        let mut flights = Vec::new();
        for chunk in chunks {
            let rows = row..row + found[*chunk as usize].len() as u32;
            let places: Vec<Option<Place>> =
                rows.map(|row| self.place_now(slot, row, *chunk)).collect();
            flights.push((*chunk, self.start(&places), places));
        }
        for (chunk, readings, places) in flights {
            let into = &mut found[chunk as usize];
            for reading in readings {
                self.take_whole(reading, &places, into, loud).await;
            }
        }
    }

    /// Takes those blocks that a command read and that match their metadata. If the command failed,
    /// reads its blocks one by one.
    async fn take_whole(
        &self,
        reading: Reading,
        places: &[Option<Place>],
        into: &mut [Option<Whole>],
        loud: Loud,
    ) {
        let asked = (reading.index, reading.since);
        let (outcome, of, metas) = reading.over().await;
        if !outcome.status.is_ok() && of.len() > 1 {
            for i in of {
                let place = places[i].expect("invariant: what was read has a place");
                into[i] = self.whole_at(place, loud).await;
            }
            return;
        }
        if !outcome.status.is_ok() {
            self.note_unread(asked, of.first().and_then(|i| places[*i]), loud);
            return;
        }
        for (n, (i, page)) in of.into_iter().zip(outcome.data).enumerate() {
            let place = places[i].expect("invariant: what was read has a place");
            into[i] = match is_whole(place, metas.of(&outcome.oob, n), page) {
                Seen::Whole(whole) => Some(whole),
                Seen::Damaged if loud == Loud::Yes => {
                    self.note_mismatch(asked);
                    None
                }
                _ => None,
            };
        }
    }

    /// Counts a failed read of a block, sent at `since`. If the drive does not answer, its member
    /// is taken out of service.
    fn note_unread(&self, (index, since): (u32, u64), place: Option<Place>, loud: Loud) {
        if loud == Loud::Yes {
            self.0.array.member(index).count(since, |errors| errors.read += 1);
        }
        if let Some(place) = place.filter(|_| !self.notice_gone()) {
            self.note_lost_zone(place.index, place.zone);
        }
    }

    /// The block at a place, if it is whole.
    async fn whole_at(&self, place: Place, loud: Loud) -> Option<Whole> {
        match self.look_at(place, loud).await {
            Seen::Whole(whole) => Some(whole),
            _ => None,
        }
    }

    /// Reads and checks the block at a place.
    pub(crate) async fn look_at(&self, place: Place, loud: Loud) -> Seen {
        let Some(drive) = self.0.array.member(place.index).drive() else {
            return Seen::Unread;
        };
        let asked = (place.index, self.asked());
        let (outcome, _, metas) = self.read_at(&drive, place, vec![0]).over().await;
        match outcome.data.into_iter().next().filter(|_| outcome.status.is_ok()) {
            Some(page) => {
                let seen = is_whole(place, metas.of(&outcome.oob, 0), page);
                if matches!(seen, Seen::Damaged) && loud == Loud::Yes {
                    self.note_mismatch(asked);
                }
                seen
            }
            None => {
                self.note_unread(asked, Some(place), loud);
                Seen::Unread
            }
        }
    }
}

/// Checks a block that was read at a place against its metadata.
fn is_whole(place: Place, meta: Option<BlockMeta>, page: Page) -> Seen {
    match meta {
        // A block that belongs to no stripe is not counted as damaged.
        Some(meta) if meta.stripe.get() == NONE => Seen::Foreign,
        Some(meta)
            if meta.stripe.get() == place.stripe && meta.own_crc.get() == crc32c(page.bytes()) =>
        {
            Seen::Whole((meta, page))
        }
        _ => Seen::Damaged,
    }
}
