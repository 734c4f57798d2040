//! Out-of-band metadata, kept in the out-of-band area of each block.

use crate::format::BlockMeta;
use furrow_log::address::oob_per_block;
use furrow_zone::Geometry;
use zerocopy::IntoBytes;

/// Maximum number of data blocks that cleaning moves together, unless a stripe is larger.
const BATCH: u32 = 128;

/// Number of stripes, of `data` data blocks each, that cleaning writes together.
pub(crate) fn batch(data: u32) -> u32 {
    (BATCH / data).max(1)
}

/// Whether a drive has out-of-band space for a block's metadata.
pub(crate) fn fits(geometry: &Geometry) -> bool {
    oob_per_block(geometry) >= BlockMeta::SIZE
}

/// Size of the buffer for a block's metadata: its out-of-band bytes, or the size of the metadata if
/// it does not fit into them.
pub(crate) fn bytes(geometry: &Geometry) -> usize {
    oob_per_block(geometry).max(BlockMeta::SIZE)
}

/// Out-of-band bytes of `count` blocks that all have the metadata `meta`; zeros if it does not fit.
pub(crate) fn repeat(geometry: &Geometry, count: usize, meta: &BlockMeta) -> Vec<u8> {
    if !fits(geometry) {
        return vec![0; count * oob_per_block(geometry)];
    }
    let mut oob = vec![0; count * bytes(geometry)];
    for beside in oob.chunks_exact_mut(bytes(geometry)) {
        beside[..BlockMeta::SIZE].copy_from_slice(meta.as_bytes());
    }
    oob
}
