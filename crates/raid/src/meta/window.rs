//! Arithmetic of windows: where they begin and end, and what cleaning can put into a segment.

use crate::format::WINDOW;

/// Maximum number of data blocks that cleaning moves together, unless a stripe is larger.
const BATCH: u32 = 8192;

/// First stripe of the window of `stripe`.
pub(crate) fn start(stripe: u32) -> u32 {
    stripe - stripe % WINDOW
}

/// Whether a row is the first of its window, in a segment with chunks of `chunk` blocks.
pub(crate) fn begins(row: u32, chunk: u32) -> bool {
    row.is_multiple_of(WINDOW * chunk)
}

/// Whether `stripe` is the last of its window, in a segment of `stripes` stripes.
pub(crate) fn ends(stripe: u32, stripes: u32) -> bool {
    stripe % WINDOW == WINDOW - 1 || stripe + 1 == stripes
}

/// The last stripe of the window of `stripe`, in a segment of `stripes` stripes.
pub(crate) fn end(stripe: u32, stripes: u32) -> u32 {
    (start(stripe) + WINDOW - 1).min(stripes.saturating_sub(1))
}

/// Number of stripes, of `data` data blocks each, that cleaning writes together: those of a window,
/// up to [`BATCH`] blocks.
pub(crate) fn batch(data: u32) -> u32 {
    (BATCH / data).clamp(1, WINDOW - 1)
}

/// Minimum number of stripes, of `data` data blocks each, that cleaning can fill in a segment of
/// `stripes` stripes. It leaves out the stripes that end windows, the early metadata stripe of each
/// batch, the padding of the last batch, and the mapping blocks of the checkpoint that follows,
/// with their metadata stripes.
pub(crate) fn capacity(stripes: u32, data: u32) -> u32 {
    let taken = stripes.div_ceil(WINDOW) + stripes.div_ceil(batch(data) + 1) + 4;
    stripes.saturating_sub(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn windows_end_where_the_segment_does(stripes in 1..400u32, pick in any::<u32>()) {
            let stripe = pick % stripes;
            let last = end(stripe, stripes);
            prop_assert!(ends(last, stripes) && start(last) == start(stripe));
            prop_assert!((stripe..last).all(|other| !ends(other, stripes)));
            prop_assert!(last - start(stripe) < WINDOW && last < stripes);
        }

        /// Cleaning can fill the capacity of a segment with batches of any size, which begin
        /// anywhere in a window and end with an early metadata stripe.
        #[test]
        fn what_cleaning_writes_fits(stripes in 5..2000u32, data in 1..9000u32) {
            let (mut left, mut at) = (capacity(stripes, data), 0);
            // The padding at the end counts as one stripe.
            while left > 0 {
                let mut now = left.min(batch(data));
                left -= now;
                let mut listed = true;
                while now > 0 {
                    prop_assert!(at < stripes, "{left} stripes are left over");
                    listed = ends(at, stripes);
                    now -= u32::from(!listed);
                    at += 1;
                }
                at += u32::from(!listed);
            }
            prop_assert!(at + 2 < stripes || capacity(stripes, data) == 0);
        }
    }
}
