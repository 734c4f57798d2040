//! Quotas: how many superzones each stream may have open.
//!
//! In each window, for data and nodes separately, stream i gets A_i = A · W_i / ΣW superzones,
//! where W_i is the number of blocks it wrote and A = min(A_peak, A_avail / 2) (Z-LFS, section
//! 4.2): no more superzones than saturate the drive, and at most half of the superzones that the
//! drive's active zones allow, since parked superzones hold permits too. Every stream keeps at
//! least one superzone. If A_i exceeds the number of segments that the stream wrote in the window,
//! the stream gets one superzone per segment: more heads cannot be busy at once.
//!
//! Three things differ from the published code. A quota is reached at once, not one superzone per
//! window. Nothing stays reserved for a class that was idle for the whole window. A stream that
//! writes much need not wait for the window's end: a class is *sampled* whenever it has written
//! [`SAMPLE`] segments for each superzone of its share. A stream whose quota would at least double
//! by this sample gets the larger quota at once. A new mount and a change of load are thus noticed
//! after about 64 MiB, instead of after a second: on a drive that takes 64 MiB in 30 ms, this is 30
//! ms. Samples never lower a quota: two streams that write alternate bursts would take superzones
//! from each other that they will soon need again. A stream loses superzones only at the window's
//! end, by the writes of the whole window.
//!
//! Pure arithmetic; opening, parking and closing superzones is in `heads`.

use furrow_rt::Nanos;

/// Length of a window, in nanoseconds.
pub(crate) const WINDOW: u64 = Nanos::SECOND;

/// Number of segments in a sample, for each superzone that a class may have open. Four are enough
/// to distinguish an eighth of the writes from a quarter.
const SAMPLE: u64 = 4;

/// Number of superzones that a class (data or nodes) may have open. `peak` is the number that
/// saturates the drive (0 if unknown), `available` the number that the active zones of the
/// drive allow.
pub(crate) fn share(peak: u32, available: u32) -> u32 {
    let half = available / 2;
    let most = if peak == 0 { half } else { peak.min(half) };
    most.max(1)
}

/// Quotas of the streams of one class, which wrote `written` blocks each; a segment holds `segment`
/// blocks. `share` is the number of superzones for the class, `most` the largest quota of a stream.
/// `None` if nothing was written, so that the previous quotas stay.
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

/// True if the blocks that the streams of a class have written since the last sample, `sampled`,
/// are enough for the next sample.
pub(crate) fn is_sample(sampled: &[u64], segment: u64, share: u32) -> bool {
    sampled.iter().sum::<u64>() >= SAMPLE * u64::from(share) * segment
}

/// Quotas that the streams of one class get at once, after writing `sampled` blocks with the quotas
/// `current`. `None` for a stream whose quota would not at least double.
pub(crate) fn raised(
    sampled: &[u64],
    current: &[u32],
    segment: u64,
    share: u32,
    most: u32,
) -> Vec<Option<u32>> {
    let fair = quotas(sampled, segment, share, most).unwrap_or_else(|| current.to_vec());
    let raised = |(fair, current): (u32, &u32)| (fair >= current.saturating_mul(2)).then_some(fair);
    fair.into_iter().zip(current).map(raised).collect()
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
        // A stream that wrote three segments cannot keep eight superzones busy.
        assert_eq!(quotas(&[1500, 0, 0], 511, 8, 8), Some(vec![3, 1, 1]));
    }

    #[test]
    fn half_of_what_is_available_and_no_more_than_saturates() {
        assert_eq!(share(8, 23), 8);
        assert_eq!(share(8, 10), 5);
        assert_eq!(share(0, 10), 5);
        assert_eq!(share(8, 1), 1);
    }

    #[test]
    fn a_sample_gives_to_who_lacks_much_and_takes_from_nobody() {
        assert!(is_sample(&[0, 32 * 511, 0], 511, 8) && !is_sample(&[0, 32 * 510, 0], 511, 8));
        let raised = |sampled: [u64; 3], current| super::raised(&sampled, current, 511, 8, 8);
        assert_eq!(raised([0, 17_000, 0], &[1, 1, 1]), [None, Some(8), None]);
        // The writes of two streams were seven to one and are now one to one: the stream that was
        // busy keeps its quota.
        assert_eq!(raised([0, 8_500, 8_500], &[1, 7, 1]), [None, None, Some(4)]);
        // A slightly larger quota waits for the window's end.
        assert_eq!(raised([0, 6_000, 11_000], &[1, 4, 4]), [None, None, None]);
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
