//! Parity of many chunks in one pass, in the widest registers the processor has.
//!
//! The loops are plain Rust over arrays of [`LANE`] bytes, which the compiler vectorises. They are
//! compiled twice, for any processor and for processors with AVX2; each call chooses at run time.
//! Both versions give the same bytes, so a run stays a function of its seed.

#![allow(unsafe_code, reason = "code for a processor that was asked whether it is one")]

/// Number of bytes that the loops hold in registers at once.
const LANE: usize = 128;

/// Writes the sum (exclusive or) of `data` to `p`. All have the same length, and `data` is
/// not empty.
pub(super) fn sum(data: &[&[u8]], p: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { sum_avx2(data, p) };
    }
    sum_any(data, p);
}

/// Writes the sum of `data` to `p`, and Σ 2^i · data_i to `q`. All have the same length, and `data`
/// is not empty.
pub(super) fn sums(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { sums_avx2(data, p, q) };
    }
    sums_any(data, p, q);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(data: &[&[u8]], p: &mut [u8]) {
    sum_any(data, p);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sums_avx2(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    sums_any(data, p, q);
}

#[inline(always)]
fn sum_any(data: &[&[u8]], p: &mut [u8]) {
    let whole = p.len() / LANE * LANE;
    for at in (0..whole).step_by(LANE) {
        sum_lane::<LANE>(data, at, p);
    }
    for at in whole..p.len() {
        sum_lane::<1>(data, at, p);
    }
}

#[inline(always)]
fn sums_any(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    let whole = p.len() / LANE * LANE;
    for at in (0..whole).step_by(LANE) {
        sums_lane::<LANE>(data, at, p, q);
    }
    for at in whole..p.len() {
        sums_lane::<1>(data, at, p, q);
    }
}

/// The `N` bytes of a chunk from `at` on.
#[inline(always)]
fn lane<const N: usize>(chunk: &[u8], at: usize) -> &[u8; N] {
    chunk[at..at + N].try_into().expect("invariant: a slice of N bytes")
}

#[inline(always)]
fn sum_lane<const N: usize>(data: &[&[u8]], at: usize, p: &mut [u8]) {
    let mut sum = *lane::<N>(data[0], at);
    for chunk in &data[1..] {
        let chunk = lane::<N>(chunk, at);
        for i in 0..N {
            sum[i] ^= chunk[i];
        }
    }
    p[at..at + N].copy_from_slice(&sum);
}

#[inline(always)]
fn sums_lane<const N: usize>(data: &[&[u8]], at: usize, p: &mut [u8], q: &mut [u8]) {
    let last = data.len() - 1;
    let mut sum = *lane::<N>(data[last], at);
    let mut weighted = sum;
    // Horner's rule, beginning with the chunk of the highest power.
    for chunk in data[..last].iter().rev() {
        let chunk = lane::<N>(chunk, at);
        for i in 0..N {
            sum[i] ^= chunk[i];
            weighted[i] = super::double(weighted[i]) ^ chunk[i];
        }
    }
    p[at..at + N].copy_from_slice(&sum);
    q[at..at + N].copy_from_slice(&weighted);
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::Rng;

    /// The portable code and the code for this processor give the same bytes for all lengths.
    #[test]
    fn all_code_for_it_gives_the_same_bytes() {
        let mut rng = Rng::new(4);
        for length in (0..5).chain([LANE - 1, LANE, LANE + 1, 3 * LANE + 7, 4096]) {
            for chunks in [1, 2, 3, 7, 31] {
                let data: Vec<Vec<u8>> =
                    (0..chunks).map(|_| (0..length).map(|_| rng.next() as u8).collect()).collect();
                let data: Vec<&[u8]> = data.iter().map(|chunk| &chunk[..]).collect();
                let empty = || vec![0x5a; length];
                let (mut p, mut q, mut alone) = (empty(), empty(), empty());
                sums(&data, &mut p, &mut q);
                sum(&data, &mut alone);
                let (mut plain_p, mut plain_q) = (empty(), empty());
                sums_any(&data, &mut plain_p, &mut plain_q);
                assert_eq!((&p, &q, &alone), (&plain_p, &plain_q, &plain_p));
            }
        }
    }
}
