//! The media that store the blocks of an emulated drive.
//!
//! A medium stores blocks by zone and offset and, if it survives the process, a record of each
//! zone. It knows no states, limits or time: the drive reads only blocks that were written, and
//! passes the new state of a zone to the medium.
//!
//! | medium | payload | out-of-band | survives the process |
//! |---|---|---|---|
//! | [`Medium::Memory`] | packed | the bytes in use | no |
//! | [`Medium::Discard`] | dropped, reads give zeros | all bytes | no |
//! | [`Medium::Image`] | in a sparse file | in the file | yes, also kill -9 |

use crate::image::Image;
use crate::memory::Memory;
use crate::oob::OobStore;
use crate::transfer::{MediumError, Shape, Span, ZoneRecord};
use furrow_rt::Page;
use furrow_zone::{Geometry, ZoneId};

/// The blocks of an emulated drive.
#[derive(Debug)]
pub enum Medium {
    /// Blocks in memory, packed.
    Memory(Memory),
    /// Drops the payload; keeps out-of-band bytes in memory, if the drive has any.
    Discard(Option<OobStore>),
    /// Blocks in a file.
    Image(Box<Image>),
}

impl Medium {
    /// An empty memory medium for a drive of `geometry`.
    pub fn memory(geometry: &Geometry) -> Medium {
        Medium::Memory(Memory::new(geometry))
    }

    /// A medium that drops payload, for a drive of `geometry`.
    pub fn discard(geometry: &Geometry) -> Medium {
        let bytes = usize::from(geometry.oob_bytes);
        Medium::Discard((bytes > 0).then(|| OobStore::new(geometry.zones, bytes)))
    }

    #[inline]
    pub(crate) fn write(
        &mut self,
        span: Span,
        pages: &[Page],
        oob: &[u8],
    ) -> Result<(), MediumError> {
        match self {
            Medium::Memory(memory) => memory.write(span, pages, oob),
            Medium::Discard(None) => {}
            Medium::Discard(Some(store)) => store.write(span, oob),
            Medium::Image(image) => image.write(span, pages, oob)?,
        }
        Ok(())
    }

    /// Fills blocks `into..into + span.blocks` of `pages` and `oob`. An empty `oob` is not filled.
    pub(crate) fn read(
        &self,
        span: Span,
        pages: &mut [Page],
        into: usize,
        oob: &mut [u8],
        shape: Shape,
    ) -> Result<(), MediumError> {
        match self {
            Medium::Memory(memory) => memory.read(span, pages, into, oob),
            Medium::Discard(store) => {
                shape.zero(pages, into, span.blocks as usize, oob);
                if let Some(store) = store
                    && !oob.is_empty()
                {
                    store.read(span, into, oob);
                }
                Ok(())
            }
            Medium::Image(image) => image.read(span, pages, into, oob),
        }
    }

    /// Forgets the blocks of `zone` from `offset` on.
    pub(crate) fn truncate(&mut self, zone: ZoneId, offset: u64) {
        match self {
            Medium::Memory(memory) => memory.truncate(zone.0 as usize, offset as usize),
            Medium::Discard(Some(store)) => store.truncate(zone.0 as usize, offset as usize),
            Medium::Discard(None) => {}
            Medium::Image(image) => image.punch(zone, offset),
        }
    }

    /// Flips one bit of a block that was written.
    pub(crate) fn flip(&mut self, zone: ZoneId, offset: u64, bit: u64) -> Result<(), MediumError> {
        match self {
            Medium::Memory(memory) => memory.flip(zone.0 as usize, offset as usize, bit)?,
            // The medium keeps no payload, so there is nothing to flip.
            Medium::Discard(_) => {}
            Medium::Image(image) => image.flip(zone, offset, bit)?,
        }
        Ok(())
    }

    /// Stores the record of `zone`, so that it survives the process. It is called after the blocks
    /// are stored and before the command is answered.
    pub(crate) fn record(&mut self, zone: ZoneId, record: &ZoneRecord) -> Result<(), MediumError> {
        match self {
            Medium::Image(image) => image.record(zone, record),
            _ => Ok(()),
        }
    }

    /// True if [`Medium::record`] stores records.
    pub(crate) fn keeps_records(&self) -> bool {
        matches!(self, Medium::Image(_))
    }

    /// Makes everything survive a power cut of the host too, if the medium was opened with `sync`.
    pub(crate) fn flush(&mut self) -> Result<(), MediumError> {
        match self {
            Medium::Image(image) => image.flush(),
            _ => Ok(()),
        }
    }

    /// A copy in memory. For an image, `written` returns how many blocks of each zone to copy.
    pub(crate) fn snapshot(&self, geometry: &Geometry, written: &dyn Fn(ZoneId) -> u64) -> Medium {
        match self {
            Medium::Memory(memory) => Medium::Memory(memory.clone()),
            Medium::Discard(store) => Medium::Discard(store.clone()),
            Medium::Image(image) => Medium::Memory(image.load(geometry, written)),
        }
    }
}
