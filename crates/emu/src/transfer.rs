//! What passes between a drive and its medium: runs of blocks, their layout in pages, the records
//! of zones, and failures.

use furrow_rt::{PAGE_SIZE, Page};
use furrow_zone::{Geometry, Status, Zone, ZoneId};
use std::io::ErrorKind as IoKind;
use std::sync::LazyLock;

static ZEROS: LazyLock<Page> = LazyLock::new(Page::zeroed);

/// The reason why the medium failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediumError {
    /// A block cannot be read, or the host's file system failed.
    Failed,
    /// The host's file system, or its user's quota, is full.
    Full,
}

impl MediumError {
    /// The drive's answer to a write that could not be stored.
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
    /// The first block, counted from the zone's start.
    pub offset: u64,
    pub blocks: u64,
}

/// The record of a zone on a medium that survives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneRecord {
    /// The state of the zone.
    pub zone: Zone,
    /// Number of blocks that survive a power cut.
    pub durable: u64,
}

/// The layout of a transfer's blocks in its pages.
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

    /// Number of pages for `blocks` blocks.
    pub(crate) fn pages(self, blocks: u64) -> u64 {
        let per_page = (PAGE_SIZE / self.block_size) as u64;
        blocks.div_ceil(per_page)
    }

    /// Sets blocks `from..from + count` of a transfer to zeros.
    pub(crate) fn zero(self, pages: &mut [Page], from: usize, count: usize, oob: &mut [u8]) {
        for at in (from..from + count).map(|block| block * self.block_size) {
            if self.block_size == PAGE_SIZE {
                // All transfers share this page, since a shared page cannot be changed.
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
