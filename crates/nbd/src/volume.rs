//! The interface of a served volume: 4 KiB blocks, in this executor.
//!
//! The server passes payload on as it came from the socket and sends pages as the volume returned
//! them; neither side copies. Requests that are no multiple of a block never reach a volume: the
//! server reads, modifies and writes, in turn where they overlap.

use furrow_rt::{PAGE_SIZE, Pages};
use furrow_zone::Result;
use std::future::Future;

/// Bytes of a block.
pub const BLOCK: u64 = PAGE_SIZE as u64;

/// A run of blocks in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The number of blocks, at least 1.
    pub blocks: u64,
    /// The blocks are not stored: they read as zeroes and take no space.
    pub hole: bool,
}

/// A block volume.
///
/// The server requests at least one block, and only blocks within [`Volume::blocks`]. Many requests
/// are in flight at once and may complete in any order. Overlapping requests are the client's
/// responsibility: each block ends as one of them wrote it.
///
/// What every answer means: a write that was answered is seen by each later read, whichever
/// connection it comes through, and it is durable once a [`Volume::flush`] that was called after
/// that answer has been answered. `fua` asks for that at once, for this request alone. The server
/// offers several connections to one export on the strength of this.
///
/// A dropped future may or may not take effect; the server drops none before it is done, unless the
/// executor is cleared.
pub trait Volume: 'static {
    /// Size in blocks. It does not change while it is served.
    fn blocks(&self) -> u64;

    /// Blocks of a request that suits the volume well (such as a stripe): a power of two.
    fn preferred_blocks(&self) -> u32 {
        1
    }

    /// True if the volume is read-only, whatever the export says.
    fn read_only(&self) -> bool {
        false
    }

    /// True if [`Volume::write_zeroes`] that may free blocks is quick for any length: it changes
    /// tables, not data. Clients ask for that with FAST_ZERO.
    fn zeroes_fast(&self) -> bool {
        true
    }

    /// Reads `count` blocks from `block` on, a page each. At most 8192 (32 MiB) are requested.
    fn read(&self, block: u64, count: u32) -> impl Future<Output = Result<Pages>>;

    /// Writes `data` (a block per page, at most 8192) from `block` on.
    fn write(&self, block: u64, data: Pages, fua: bool) -> impl Future<Output = Result<()>>;

    /// Makes `count` blocks read as zeroes. If `may_free`, their space may be freed; otherwise they
    /// must stay allocated: a later write to them must not fail for lack of space.
    fn write_zeroes(
        &self,
        block: u64,
        count: u64,
        may_free: bool,
        fua: bool,
    ) -> impl Future<Output = Result<()>>;

    /// The client does not need the content of `count` blocks any more. They may read as earlier
    /// content or as zeroes, but always the same until they are written.
    fn trim(&self, block: u64, count: u64, fua: bool) -> impl Future<Output = Result<()>>;

    /// Makes requests durable that were answered before this call.
    fn flush(&self) -> impl Future<Output = Result<()>>;

    /// The allocation of `count` blocks from `block` on: adjacent extents, the first of which
    /// begins at `block`. At least one, at most `limit`; the rest is left out. The last may extend
    /// beyond the range.
    fn extents(
        &self,
        block: u64,
        count: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Extent>>>;

    /// Loads `count` blocks from `block` on into the volume's cache, if it has one.
    fn cache(&self, _block: u64, _count: u64) -> impl Future<Output = Result<()>> {
        std::future::ready(Ok(()))
    }
}
