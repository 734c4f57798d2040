//! The interface of a served volume, which has blocks of 4 KiB and runs in the server's executor.
//!
//! The server passes payload on as it came from the socket, and sends pages as the volume returned
//! them; it copies neither. A volume gets only whole blocks: for parts of blocks the server reads,
//! modifies and writes, and lets overlapping requests take turns.

use furrow_rt::{PAGE_SIZE, Pages};
use furrow_zone::Result;
use std::future::Future;

/// Size of a block in bytes.
pub const BLOCK: u64 = PAGE_SIZE as u64;

/// Consecutive blocks that are all stored, or all holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of blocks, at least 1.
    pub blocks: u64,
    /// Whether the blocks are not stored: they read as zeroes and take no space.
    pub hole: bool,
}

/// A block volume.
///
/// The server requests at least one block, and only blocks within [`Volume::blocks`]. Many requests
/// are in flight at once and may complete in any order. If requests overlap, each block ends as one
/// of them wrote it; the volume promises no more.
///
/// After a write is answered, reads on every connection return its data. The write is durable when
/// a [`Volume::flush`] that was called after this answer is answered. With `fua`, the request
/// itself is durable before its answer. Because of these promises the server can offer several
/// connections to one export.
///
/// If the future of a request is dropped, the request may take effect or not. The server drops a
/// future only when it is done or the executor is cleared.
pub trait Volume: 'static {
    /// Size in blocks, which does not change while the volume is served.
    fn blocks(&self) -> u64;

    /// A number of blocks per request that suits the volume well, such as a full stripe. The server
    /// rounds it up to a power of two.
    fn preferred_blocks(&self) -> u32 {
        1
    }

    /// Whether the volume is read-only; an export cannot change that.
    fn read_only(&self) -> bool {
        false
    }

    /// Whether a [`Volume::write_zeroes`] that may free blocks is quick for any length, because it
    /// changes tables and not data. Clients that set FAST_ZERO require that.
    fn zeroes_fast(&self) -> bool {
        true
    }

    /// Reads `count` blocks from `block` on, each into a page of its own. The server requests at
    /// most 8192 blocks (32 MiB).
    fn read(&self, block: u64, count: u32) -> impl Future<Output = Result<Pages>>;

    /// Writes `data` (a block per page, at most 8192) from `block` on.
    fn write(&self, block: u64, data: Pages, fua: bool) -> impl Future<Output = Result<()>>;

    /// Makes `count` blocks read as zeroes. If `may_free`, their space may be freed; otherwise it
    /// must stay allocated, so that a later write to them cannot fail for lack of space.
    fn write_zeroes(
        &self,
        block: u64,
        count: u64,
        may_free: bool,
        fua: bool,
    ) -> impl Future<Output = Result<()>>;

    /// Tells the volume that the content of `count` blocks is no longer needed. Until they are
    /// written, the blocks read as their earlier content or as zeroes, but always as the same.
    fn trim(&self, block: u64, count: u64, fua: bool) -> impl Future<Output = Result<()>>;

    /// Makes all requests durable that were answered before the call.
    fn flush(&self) -> impl Future<Output = Result<()>>;

    /// The allocation of `count` blocks from `block` on, as adjacent extents that begin at `block`:
    /// at least one and at most `limit` of them; further extents are left out. The last one may
    /// extend beyond the range.
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
