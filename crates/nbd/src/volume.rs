//! What is served: a volume of 4 KiB blocks that lives in this executor.
//!
//! The server hands payload on as it came from the socket and sends pages as the volume gave them;
//! neither side copies. Requests that are no multiple of a block never reach a volume: the server
//! reads, modifies and writes, one after the other where they overlap.

use furrow_rt::{PAGE_SIZE, Pages};
use furrow_zone::Result;
use std::future::Future;

/// Bytes of a block.
pub const BLOCK: u64 = PAGE_SIZE as u64;

/// A run of blocks that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many blocks, at least 1.
    pub blocks: u64,
    /// Nothing is stored for them: they read as zeroes and take no room.
    pub hole: bool,
}

/// A block volume.
///
/// The server only asks for what lies within [`Volume::blocks`], and for at least one block. Many
/// requests are under way at once and may complete in any order. Two that overlap are the client's
/// business: each block ends as one of them has it.
///
/// What every answer means: a write that was answered is seen by each later read, whichever
/// connection it comes through, and it is durable once a [`Volume::flush`] that was called after
/// that answer has been answered. `fua` asks for that at once, for this request alone. The server
/// offers several connections to one export on the strength of this.
///
/// A future that is dropped may or may not take effect; the server drops none before it is done,
/// unless the executor is cleared.
pub trait Volume: 'static {
    /// Size, in blocks. Does not change while it is served.
    fn blocks(&self) -> u64;

    /// Blocks of a request that suits the volume well (a stripe, say): a power of two.
    fn preferred_blocks(&self) -> u32 {
        1
    }

    /// True if nothing may be written, whatever the export says.
    fn read_only(&self) -> bool {
        false
    }

    /// True if [`Volume::write_zeroes`] that may free is quick however long the range: a change of
    /// tables, not of data. What clients ask with FAST_ZERO.
    fn zeroes_fast(&self) -> bool {
        true
    }

    /// Reads `count` blocks from `block` on: as many pages. At most 8192 (32 MiB) are asked for.
    fn read(&self, block: u64, count: u32) -> impl Future<Output = Result<Pages>>;

    /// Writes `data` (a block a page, at most 8192) to `block` and on.
    fn write(&self, block: u64, data: Pages, fua: bool) -> impl Future<Output = Result<()>>;

    /// Makes `count` blocks read as zeroes. If `may_free`, their room may be given back; else they
    /// must stay as good as written: a later write to them must not fail for lack of space.
    fn write_zeroes(
        &self,
        block: u64,
        count: u64,
        may_free: bool,
        fua: bool,
    ) -> impl Future<Output = Result<()>>;

    /// The client does not need what is in `count` blocks any more. They may read as anything they
    /// held or as zeroes, but always as the same until they are written.
    fn trim(&self, block: u64, count: u64, fua: bool) -> impl Future<Output = Result<()>>;

    /// Makes durable what was answered before this call.
    fn flush(&self) -> impl Future<Output = Result<()>>;

    /// How `count` blocks from `block` on are allocated: neighbouring extents, the first of which
    /// begins at `block`. At least one; at most `limit`, and then the rest is left out. The last
    /// one may reach further than asked for.
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
