//! Quotas: how many superzones each stream may have open.
//!
//! In each window, for data and nodes separately, stream i gets A_i = A · W_i / ΣW superzones,
//! where W_i is what it wrote and A = min(A_peak, A_avail / 2) (Z-LFS, section 4.2): no more than
//! saturate the drive, and half of what the drive's active zones allow, since parked superzones
//! hold permits too. Every stream keeps one. A stream that wrote fewer segments in the window than
//! it would get superzones gets no more than segments: more heads cannot be busy at once.
//!
//! Two things differ from the published code: a quota is reached at once, not one superzone per
//! window, and nothing stays reserved for a class that was idle for the whole window.
//!
//! Pure arithmetic; who opens, parks and closes is in `heads`.

use furrow_rt::Nanos;

/// A window, in nanoseconds.
pub(crate) const WINDOW: u64 = Nanos::SECOND;

/// Superzones that may be open per class, data or nodes: `peak` saturate the drive (0: unknown),
/// `available` are allowed by its active zones.
pub(crate) fn share(peak: u32, available: u32) -> u32 {
    let half = available / 2;
    let most = if peak == 0 { half } else { peak.min(half) };
    most.max(1)
}

/// Quotas of the streams of one class that wrote `written` blocks, of which a segment takes
/// `segment`: `None` if nothing was written, so that the last ones stay.
pub(crate) fn quotas(written: &[u64], segment: u64, share: u32, most: u32) -> Option<Vec<u32>> {
    let total: u64 = written.iter().sum();
    if total == 0 {
        return None;
    }
    let quota = |blocks: &u64| {
        let segments = blocks.div_ceil(segment.max(1));
        let fair = (u64::from(share) * blocks + total / 2) / total;
        fair.min(segments).clamp(1, u64::from(most.max(1))) as u32
    };
    Some(written.iter().map(quota).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn superzones_go_where_writes_go() {
        assert_eq!(quotas(&[0, 0, 0], 511, 8, 8), None);
        assert_eq!(quotas(&[100_000, 0, 0], 511, 8, 8), Some(vec![8, 1, 1]));
        assert_eq!(quotas(&[50_000, 50_000, 0], 511, 8, 8), Some(vec![4, 4, 1]));
        assert_eq!(quotas(&[90_000, 30_000, 0], 511, 8, 8), Some(vec![6, 2, 1]));
        // Three segments cannot keep eight superzones busy.
        assert_eq!(quotas(&[1500, 0, 0], 511, 8, 8), Some(vec![3, 1, 1]));
    }

    #[test]
    fn half_of_what_is_available_and_no_more_than_saturates() {
        assert_eq!(share(8, 23), 8);
        assert_eq!(share(8, 10), 5);
        assert_eq!(share(0, 10), 5);
        assert_eq!(share(8, 1), 1);
    }

    proptest! {
        #[test]
        fn quotas_are_bounded(
            written in prop::collection::vec(0u64..1 << 40, 1..4),
            segment in 1u64..600, share in 1u32..64, most in 1u32..9,
        ) {
            let Some(quotas) = quotas(&written, segment, share, most) else {
                prop_assert!(written.iter().all(|blocks| *blocks == 0));
                return Ok(());
            };
            prop_assert!(quotas.iter().all(|quota| (1..=most).contains(quota)));
            let streams = written.len() as u32;
            prop_assert!(quotas.iter().sum::<u32>() <= share + 2 * streams);
        }
    }
}
