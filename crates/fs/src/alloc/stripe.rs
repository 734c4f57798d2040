//! Striping of a superzone: where its linear space lies in its zones.
//!
//! A superzone of `width` zones with `capacity` blocks each is one *virtual* space of `width ×
//! capacity` blocks. It is filled row by row: a row has `sub` blocks (a *subsegment*) of each zone,
//! one zone after the other. Where the capacity is not a multiple of `sub`, the last row is
//! shorter: it has `capacity % sub` blocks per zone. The space is cut into *segments* of `segment`
//! blocks whose last block is the summary. The blocks left at the end are a short last segment if
//! they can hold a data block and its summary, otherwise padding.
//!
//! Invariants (property-tested): [`Stripe::place`] and [`Stripe::index`] are each other's inverse
//! on `[0, width × capacity)`; as the virtual index ascends, the offsets visited within each zone
//! ascend by one from 0 (the sequential-write rule); each zone gets exactly `capacity` blocks.
//!
//! Not here: which zones form a superzone (the pool's descriptors) and physical addresses.

use std::ops::Range;

/// Number of blocks of a subsegment by default: 128 KiB.
pub const DEFAULT_SUB: u32 = 32;
/// Number of blocks of a segment by default: 2 MiB, which is 511 blocks and the summary.
pub const DEFAULT_SEGMENT: u32 = 512;

/// The reason why a [`Stripe`] cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StripeError {
    /// One of the four numbers is zero, or a segment cannot hold a data block and its summary.
    #[error(
        "stripe of width {width}, capacity {capacity}, subsegment {sub}, segment {segment} blocks: \
         each must be at least 1 and a segment at least 2"
    )]
    Degenerate {
        /// Number of zones.
        width: u32,
        /// Number of blocks per zone.
        capacity: u32,
        /// Number of blocks per subsegment.
        sub: u32,
        /// Number of blocks per segment.
        segment: u32,
    },
    /// The superzone has 2^32 blocks or more.
    #[error("superzone of {width} zones of {capacity} blocks: 2^32 blocks or more")]
    TooLarge {
        /// Number of zones.
        width: u32,
        /// Number of blocks per zone.
        capacity: u32,
    },
}

/// The shape of one superzone; all numbers are in blocks except `width`, which is in zones.
///
/// Build it with [`Stripe::new`] when the numbers come from a medium: the methods divide by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripe {
    /// Number of zones.
    pub width: u32,
    /// Number of usable blocks in each zone.
    pub capacity: u32,
    /// Number of blocks of a subsegment, which are adjacent in one zone.
    pub sub: u32,
    /// Number of blocks in a segment, including its summary.
    pub segment: u32,
}

impl Stripe {
    /// Builds a stripe after checking its numbers.
    pub fn new(width: u32, capacity: u32, sub: u32, segment: u32) -> Result<Stripe, StripeError> {
        if width == 0 || capacity == 0 || sub == 0 || segment < 2 {
            return Err(StripeError::Degenerate { width, capacity, sub, segment });
        }
        if width.checked_mul(capacity).is_none() {
            return Err(StripeError::TooLarge { width, capacity });
        }
        Ok(Stripe { width, capacity, sub, segment })
    }

    /// Builds a checked stripe with the default sizes of subsegments and segments.
    pub fn with_defaults(width: u32, capacity: u32) -> Result<Stripe, StripeError> {
        Stripe::new(width, capacity, DEFAULT_SUB, DEFAULT_SEGMENT)
    }

    /// Number of blocks in the virtual space.
    pub fn blocks(&self) -> u32 {
        self.width * self.capacity
    }

    /// Number of blocks of one zone that lie in full rows.
    fn full_per_zone(&self) -> u32 {
        self.capacity - self.capacity % self.sub
    }

    /// Returns the zone within the superzone, and the block within that zone, of virtual block `v`,
    /// which must be below [`Stripe::blocks`].
    pub fn place(&self, v: u32) -> (u32, u32) {
        debug_assert!(v < self.blocks(), "virtual block {v} of {}", self.blocks());
        let full = self.full_per_zone() * self.width;
        if v < full {
            // Full rows exist, so sub <= capacity and the row size fits.
            let (row, within) = (v / (self.width * self.sub), v % (self.width * self.sub));
            (within / self.sub, row * self.sub + within % self.sub)
        } else {
            let rest = self.capacity % self.sub;
            ((v - full) / rest, self.full_per_zone() + (v - full) % rest)
        }
    }

    /// Virtual block at `offset` of zone `column`: the inverse of [`Stripe::place`].
    pub fn index(&self, column: u32, offset: u32) -> u32 {
        debug_assert!(column < self.width && offset < self.capacity);
        let full = self.full_per_zone();
        if offset < full {
            let (row, within) = (offset / self.sub, offset % self.sub);
            (row * self.width + column) * self.sub + within
        } else {
            full * self.width + column * (self.capacity % self.sub) + (offset - full)
        }
    }

    /// Number of blocks from `v` on, `v` included, that are adjacent in the zone of `v`: the
    /// longest write to that zone before the stripe continues in another zone.
    pub fn run(&self, v: u32) -> u32 {
        let (_, offset) = self.place(v);
        let full = self.full_per_zone();
        let end = if offset < full { (offset / self.sub + 1) * self.sub } else { self.capacity };
        // With only one zone, consecutive rows are adjacent in it.
        if self.width == 1 { self.capacity - offset } else { end - offset }
    }

    /// Number of blocks of zone `column` that have a virtual index below `v`. This is the zone's
    /// write pointer when exactly `[0, v)` is written. `v` may be [`Stripe::blocks`].
    pub fn fill(&self, column: u32, v: u32) -> u32 {
        let full = self.full_per_zone();
        if v < full * self.width {
            let row_size = self.width * self.sub;
            let (row, within) = (v / row_size, v % row_size);
            row * self.sub + within.saturating_sub(column * self.sub).min(self.sub)
        } else {
            let rest = self.capacity % self.sub;
            full + (v - full * self.width).saturating_sub(column * rest).min(rest)
        }
    }

    /// Number of segments in the superzone, including a short last one.
    pub fn segments(&self) -> u32 {
        let (whole, tail) = (self.blocks() / self.segment, self.blocks() % self.segment);
        whole + u32::from(tail >= 2)
    }

    /// Virtual blocks of segment `k` (below [`Stripe::segments`]), including its summary.
    pub fn segment_range(&self, k: u32) -> Range<u32> {
        debug_assert!(k < self.segments(), "segment {k} of {}", self.segments());
        let start = k * self.segment;
        start..start + (self.blocks() - start).min(self.segment)
    }

    /// The segment that holds virtual block `v`; `None` if `v` is padding.
    pub fn segment_of(&self, v: u32) -> Option<u32> {
        let k = v / self.segment;
        (k < self.segments()).then_some(k)
    }

    /// Virtual block of the summary of segment `k`: its last one.
    pub fn summary_index(&self, k: u32) -> u32 {
        self.segment_range(k).end - 1
    }

    /// True if `v` is the summary block of its segment.
    pub fn is_summary(&self, v: u32) -> bool {
        self.segment_of(v).is_some_and(|k| self.summary_index(k) == v)
    }

    /// True if `v` belongs to no segment: such a block is written once, with zeros, to fill
    /// the zone.
    pub fn is_padding(&self, v: u32) -> bool {
        self.segment_of(v).is_none()
    }

    /// Number of blocks that can hold data or nodes: all except summaries and padding.
    pub fn payload_blocks(&self) -> u32 {
        let tail = self.blocks() % self.segment;
        let padding = if tail == 1 { 1 } else { 0 };
        self.blocks() - self.segments() - padding
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn walk(s: Stripe) {
        let mut next = vec![0u32; s.width as usize];
        let mut payload = 0;
        for v in 0..s.blocks() {
            for (column, &wp) in next.iter().enumerate() {
                assert_eq!(s.fill(column as u32, v), wp, "{s:?} fill at {v}");
            }
            let (column, offset) = s.place(v);
            assert_eq!(offset, next[column as usize], "{s:?}: zone {column} is not sequential");
            next[column as usize] += 1;
            assert_eq!(s.index(column, offset), v, "{s:?}");
            let run = s.run(v);
            assert!(run >= 1);
            for ahead in 0..run {
                assert_eq!(s.place(v + ahead), (column, offset + ahead), "{s:?} run at {v}");
            }
            if s.width > 1 && v + run < s.blocks() {
                assert_ne!(s.place(v + run).0, column, "{s:?}: run at {v} ends too early");
            }
            match s.segment_of(v) {
                Some(k) => {
                    assert!(s.segment_range(k).contains(&v));
                    assert_eq!(s.is_summary(v), v == s.summary_index(k));
                    payload += u32::from(!s.is_summary(v));
                }
                None => assert!(s.is_padding(v) && v + 1 == s.blocks()),
            }
        }
        assert!(next.iter().all(|&wp| wp == s.capacity), "{s:?}: {next:?}");
        assert!((0..s.width).all(|c| s.fill(c, s.blocks()) == s.capacity));
        assert_eq!(payload, s.payload_blocks(), "{s:?}");
        let mut at = 0;
        for k in 0..s.segments() {
            let range = s.segment_range(k);
            assert_eq!(range.start, at);
            assert!(range.len() >= 2, "a segment holds a block and its summary");
            at = range.end;
        }
        assert!(s.blocks() - at <= 1);
    }

    #[test]
    fn known_shapes() {
        walk(Stripe::with_defaults(4, 1077).unwrap());
        walk(Stripe::with_defaults(1, 513).unwrap()); // one block of padding
        walk(Stripe::with_defaults(3, 7).unwrap()); // capacity below a subsegment
        let s = Stripe::new(2, 5, 2, 4).unwrap();
        let placed: Vec<_> = (0..10).map(|v| s.place(v)).collect();
        let rows = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (0, 4), (1, 4)];
        assert_eq!(placed, rows);
        assert_eq!((s.segments(), s.segment_range(2)), (3, 8..10));
    }

    #[test]
    fn bad_shapes_are_refused() {
        for (w, c, b, g) in [(0, 1, 1, 2), (1, 0, 1, 2), (1, 1, 0, 2), (1, 1, 1, 1)] {
            assert!(matches!(Stripe::new(w, c, b, g), Err(StripeError::Degenerate { .. })));
        }
        assert!(matches!(Stripe::new(65536, 65536, 32, 512), Err(StripeError::TooLarge { .. })));
    }

    #[test]
    fn largest_shape_does_not_overflow() {
        let s = Stripe::new(65535, 65537, 32, 512).unwrap();
        for v in [0, 1, s.blocks() / 2, s.blocks() - 1] {
            let (column, offset) = s.place(v);
            assert_eq!(s.index(column, offset), v);
            assert!(s.fill(column, v) == offset && s.run(v) >= 1);
        }
        assert_eq!(s.segment_range(s.segments() - 1).end, u32::MAX);
    }

    proptest! {
        #[test]
        fn bijection_and_sequential_for_odd_shapes(
            width in 1u32..9, capacity in 1u32..300, sub in 1u32..40, segment in 2u32..70,
        ) {
            walk(Stripe::new(width, capacity, sub, segment).unwrap());
        }
    }
}
