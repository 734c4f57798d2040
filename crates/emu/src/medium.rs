//! Where an emulated drive keeps its blocks: the third of its parts.
//!
//! A medium stores blocks by zone and offset and, if it survives the process, a record of each
//! zone. It knows nothing of states, limits or time: the drive asks it only for blocks that were
//! written, and tells it what a zone has become.
//!
//! | medium | payload | out-of-band | survives the process |
//! |---|---|---|---|
//! | [`Medium::Memory`] | packed | the bytes in use | no |
//! | [`Medium::Discard`] | dropped, reads give zeros | all bytes | no |
//! | [`Medium::Image`] | in a sparse file | in the file | yes, also kill -9 |

use crate::image::Image;
use crate::memory::Memory;
use crate::oob::OobStore;
use furrow_rt::{PAGE_SIZE, Page};
use furrow_zone::{Geometry, Status, Zone, ZoneId};
use std::io::ErrorKind as IoKind;
use std::sync::LazyLock;

/// A block of nothing.
static ZEROS: LazyLock<Page> = LazyLock::new(Page::zeroed);

/// The medium did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediumError {
    /// Reads fail, or the host's file system refused.
    Failed,
    /// The host's file system, or what its user may have of it, is full.
    Full,
}

impl MediumError {
    /// What a drive answers to a write that could not be kept.
    pub fn of_write(self) -> Status {
        match self {
            MediumError::Failed => Status::WriteFault,
            MediumError::Full => Status::CapacityExceeded,
        }
    }
}

impl From<std::io::Error> for MediumError {
    fn from(error: std::io::Error) -> MediumError {
        match error.kind() {
            IoKind::StorageFull | IoKind::QuotaExceeded => MediumError::Full,
            _ => MediumError::Failed,
        }
    }
}

/// Consecutive blocks within one zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub zone: ZoneId,
    /// Blocks from the zone's start.
    pub offset: u64,
    pub blocks: u64,
}

/// What a medium that survives the process keeps of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneRecord {
    /// The zone.
    pub zone: Zone,
    /// Blocks that outlive a power cut.
    pub durable: u64,
}

/// The blocks of an emulated drive.
#[derive(Debug)]
pub enum Medium {
    /// In memory, packed.
    Memory(Memory),
    /// Payload nowhere, out-of-band bytes in memory, if the drive has such.
    Discard(Option<OobStore>),
    /// In a file.
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

    /// Fills blocks `into..into + span.blocks` of `pages` and `oob` (empty: not wanted).
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
            // No payload, no bit of it.
            Medium::Discard(_) => {}
            Medium::Image(image) => image.flip(zone, offset, bit)?,
        }
        Ok(())
    }

    /// Makes what `zone` has become survive the process. After the blocks, before the answer.
    pub(crate) fn record(&mut self, zone: ZoneId, record: &ZoneRecord) -> Result<(), MediumError> {
        match self {
            Medium::Image(image) => image.record(zone, record),
            _ => Ok(()),
        }
    }

    /// True if [`Medium::record`] does something.
    pub(crate) fn keeps_records(&self) -> bool {
        matches!(self, Medium::Image(_))
    }

    /// Makes everything survive the host's power too, if the medium was asked to.
    pub(crate) fn flush(&mut self) -> Result<(), MediumError> {
        match self {
            Medium::Image(image) => image.flush(),
            _ => Ok(()),
        }
    }

    /// A copy in memory. `written` gives the blocks to copy of each zone of a file.
    pub(crate) fn snapshot(&self, geometry: &Geometry, written: &dyn Fn(ZoneId) -> u64) -> Medium {
        match self {
            Medium::Memory(memory) => Medium::Memory(memory.clone()),
            Medium::Discard(store) => Medium::Discard(store.clone()),
            Medium::Image(image) => Medium::Memory(image.load(geometry, written)),
        }
    }
}

/// How the blocks of a transfer lie in its pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub block_size: usize,
    pub oob_bytes: usize,
}

impl Shape {
    pub(crate) fn of(geometry: &Geometry) -> Shape {
        Shape {
            block_size: geometry.block_size.0 as usize,
            oob_bytes: usize::from(geometry.oob_bytes),
        }
    }

    /// Pages that `blocks` need.
    pub(crate) fn pages(self, blocks: u64) -> u64 {
        let per_page = (PAGE_SIZE / self.block_size) as u64;
        blocks.div_ceil(per_page)
    }

    /// Makes blocks `from..from + count` of a transfer zeros.
    pub(crate) fn zero(self, pages: &mut [Page], from: usize, count: usize, oob: &mut [u8]) {
        for at in (from..from + count).map(|block| block * self.block_size) {
            if self.block_size == PAGE_SIZE {
                // Shared by all: a page is frozen while it is.
                pages[at / PAGE_SIZE] = ZEROS.clone();
                continue;
            }
            pages[at / PAGE_SIZE].make_mut()[at % PAGE_SIZE..][..self.block_size].fill(0);
        }
        if !oob.is_empty() {
            oob[from * self.oob_bytes..(from + count) * self.oob_bytes].fill(0);
        }
    }
}
