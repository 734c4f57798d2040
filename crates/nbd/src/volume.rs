//! The interface of a served volume: 4 KiB blocks, in this executor.
//!
//! The server passes payload on as it came from the socket and sends pages as the volume returned
//! them; neither side copies. Requests for parts of blocks never reach a volume: the server reads,
//! modifies and writes whole blocks, and lets overlapping requests take turns.

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
    /// True if the blocks are not stored: they read as zeroes and take no space.
    pub hole: bool,
}

/// A block volume.
///
/// The server requests at least one block, and only blocks within [`Volume::blocks`]. Many requests
/// are in flight at once and may complete in any order. Overlapping requests are the client's
/// responsibility: each block ends as one of them wrote it.
///
/// An answered write is seen by each later read, whichever connection that read comes through, and
/// the write is durable once a [`Volume::flush`] that was called after the write's answer has been
/// answered. `fua` makes one request durable before its answer. Because of these promises the
/// server can offer several connections to one export.
///
/// A request whose future is dropped may or may not take effect; the server drops no future before
/// it is done, unless the executor is cleared.
pub trait Volume: 'static {
    /// Size in blocks. The size does not change while the volume is served.
    fn blocks(&self) -> u64;

    /// A number of blocks per request that suits the volume well (such as a stripe): a power
    /// of two.
    fn preferred_blocks(&self) -> u32 {
        1
    }

    /// True if the volume is read-only, whatever the export says.
    fn read_only(&self) -> bool {
        false
    }

    /// True if a [`Volume::write_zeroes`] that may free blocks is quick for any length, because it
    /// changes tables and not data. Clients require that with FAST_ZERO.
    fn zeroes_fast(&self) -> bool {
        true
    }

    /// Reads `count` blocks from `block` on, one page each. At most 8192 blocks (32 MiB)
    /// are requested.
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

    /// Tells the volume that the client does not need the content of `count` blocks any more. The
    /// blocks may then read as their earlier content or as zeroes, but always the same until they
    /// are written.
    fn trim(&self, block: u64, count: u64, fua: bool) -> impl Future<Output = Result<()>>;

    /// Makes all requests durable that were answered before this call.
    fn flush(&self) -> impl Future<Output = Result<()>>;

    /// The allocation of `count` blocks from `block` on: adjacent extents, the first of which
    /// begins at `block`. There is at least one extent, and at most `limit`; further ones are left
    /// out. The last one may extend beyond the range.
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
