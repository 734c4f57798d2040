//! A segment's footers, written or to be written: on drives without an out-of-band area, they stand
//! in for metadata blocks that cannot be read.
//!
//! Footers do not have the coded part of parity blocks, so that part is computed from the coded
//! parts of the row's data blocks. The entries of all these data blocks are there, because the
//! footers of any sufficient set of drives describe the zones of all drives.

use crate::format::{BlockMeta, CODED, FooterEntry};
use crate::meta::footer::open_entry;
use crate::meta::identity::{self, Identity};
use crate::meta::scan::footers_of;
use crate::segment::Segment;
use crate::volume::Volume;
use crate::write::open::Open;
use furrow_array::parity::reconstruct;
use furrow_array::placement::Placement;
use std::ops::Range;

/// The footers of a segment whose chunks are at their own rows.
pub(crate) struct Footers {
    placement: Placement,
    sequence: u64,
    chunk: u32,
    /// Row that the first entry of each list in `entries` describes.
    first: u32,
    /// For each drive, the entries for its zone; `None` if no readable footer describes the zone.
    entries: Vec<Option<Vec<FooterEntry>>>,
}

impl Footers {
    pub(crate) async fn read(volume: &Volume, segment: &Segment) -> Footers {
        Footers {
            placement: volume.shape().placement,
            sequence: segment.sequence,
            chunk: segment.chunk,
            first: 0,
            entries: footers_of(volume, segment).await,
        }
    }

    /// The entries that the footers of an open segment will have for some rows.
    pub(crate) fn coming(volume: &Volume, open: &Open, rows: Range<usize>) -> Footers {
        let entries = open.footers.borrow();
        Footers {
            placement: volume.shape().placement,
            sequence: open.sequence,
            chunk: open.groups.chunk,
            first: rows.start as u32,
            entries: entries.iter().map(|of| Some(of[rows.clone()].to_vec())).collect(),
        }
    }

    /// Whether there are entries for a drive's zone.
    pub(crate) fn describe(&self, drive: u32) -> bool {
        self.entries[drive as usize].is_some()
    }

    /// The identity of the block in a row of a drive's zone (`None`: parity), and its CRC; `None`
    /// if the block belongs to no stripe.
    fn entry(&self, drive: u32, row: u32) -> Option<(Option<Identity>, u32)> {
        let at = row.checked_sub(self.first)? as usize;
        let entry = self.entries[drive as usize].as_ref()?.get(at)?;
        let (identity, stripe) = open_entry(entry)?;
        (stripe == row / self.chunk).then(|| (identity, entry.crc.get()))
    }

    /// The metadata, as a metadata block lists it, for a row of a drive's zone; `None` if the row
    /// belongs to no stripe.
    pub(crate) fn meta(&self, drive: u32, row: u32) -> Option<BlockMeta> {
        let (identity, crc) = self.entry(drive, row)?;
        let code = match identity {
            Some(identity) => identity.bytes(),
            None => self.parity_code(drive, row)?,
        };
        Some(identity::seal(&code, self.sequence, row / self.chunk, crc))
    }

    fn parity_code(&self, drive: u32, row: u32) -> Option<[u8; CODED]> {
        let (placement, stripe) = (&self.placement, row / self.chunk);
        let code = |chunk: u32| {
            let (identity, _) = self.entry(placement.drive(stripe, chunk), row)?;
            Some(identity?.bytes())
        };
        let codes: Vec<Option<[u8; CODED]>> = (0..placement.n).map(code).collect();
        let codes: Vec<Option<&[u8]>> =
            codes.iter().map(|code| code.as_ref().map(|code| &code[..])).collect();
        let chunk = placement.chunk(stripe, drive) as usize;
        reconstruct(placement, &codes, chunk)?.try_into().ok()
    }
}
