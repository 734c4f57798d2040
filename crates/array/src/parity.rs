//! Parity over bytes, of chunks and of the metadata of their blocks: P (exclusive or), P + Q
//! (Reed-Solomon over GF(2⁸), polynomial 0x11d, generator 2, as in Linux md and ISA-L), mirrors.
//!
//! Encoding runs for every write, in registers ([`p_and_q`]). Reconstruction is rarer and
//! multiplies by table.

mod p_and_q;

use crate::level::Level;
use crate::placement::Placement;

/// The polynomial x⁸ + x⁴ + x³ + x² + 1 without its highest term.
const POLYNOMIAL: u8 = 0x1d;

const fn double(a: u8) -> u8 {
    (a << 1) ^ (if a & 0x80 != 0 { POLYNOMIAL } else { 0 })
}

/// Tables of the field: 2^i for each i in 0..255, and the logarithm to base 2 of each value.
const fn tables() -> ([u8; 256], [u8; 256]) {
    let (mut exp, mut log) = ([0u8; 256], [0u8; 256]);
    let (mut i, mut value) = (0, 1u8);
    while i < 255 {
        exp[i] = value;
        log[value as usize] = i as u8;
        value = double(value);
        i += 1;
    }
    exp[255] = exp[0];
    (exp, log)
}

const TABLES: ([u8; 256], [u8; 256]) = tables();

fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let (exp, log) = &TABLES;
    exp[(usize::from(log[usize::from(a)]) + usize::from(log[usize::from(b)])) % 255]
}

/// 2^i in the field.
fn power(i: u32) -> u8 {
    TABLES.0[(i % 255) as usize]
}

fn inverse(a: u8) -> u8 {
    TABLES.0[(255 - usize::from(TABLES.1[usize::from(a)])) % 255]
}

/// `to ^= from`.
fn add(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(byte, from)| *byte ^= from);
}

/// `to ^= factor · from`.
fn add_multiple(to: &mut [u8], from: &[u8], factor: u8) {
    let mut table = [0u8; 256];
    for (value, entry) in table.iter_mut().enumerate() {
        *entry = multiply(value as u8, factor);
    }
    for (byte, from) in to.iter_mut().zip(from) {
        *byte ^= table[usize::from(*from)];
    }
}

/// Computes the parity chunks of `data` into `parity`, ordered by chunk number.
///
/// # Panics
/// If `data` does not have `k` chunks, or `parity` not `m`.
pub fn encode(placement: &Placement, data: &[&[u8]], parity: &mut [&mut [u8]]) {
    let (k, m) = (placement.k as usize, placement.m as usize);
    assert!(data.len() == k && parity.len() == m, "{} + {} chunks", data.len(), parity.len());
    match (placement.level, parity) {
        (Level::Raid0, _) => {}
        (Level::Raid01, mirrors) => {
            mirrors.iter_mut().zip(data).for_each(|(mirror, data)| mirror.copy_from_slice(data));
        }
        (_, [p]) => p_and_q::sum(data, p),
        (_, [p, q]) => p_and_q::sums(data, p, q),
        (_, _) => {}
    }
}

/// The CRC of the sum (P) of blocks with the given CRCs; `zero` is the CRC of a block of zeros. A
/// CRC is linear except for its initial value, which each block's CRC contains once.
pub fn sum_of_crcs(crcs: impl Iterator<Item = u32>, zero: u32) -> u32 {
    let (sum, count) = crcs.fold((0, 0u32), |(sum, count), crc| (sum ^ crc, count + 1));
    if count.is_multiple_of(2) { sum ^ zero } else { sum }
}

/// Computes chunk `wanted` of a stripe from the present chunks, which are listed by chunk number;
/// `None` if they do not suffice.
pub fn reconstruct(
    placement: &Placement,
    chunks: &[Option<&[u8]>],
    wanted: usize,
) -> Option<Vec<u8>> {
    let k = placement.k as usize;
    if let Some(chunk) = chunks[wanted] {
        return Some(chunk.to_vec());
    }
    match placement.level {
        Level::Raid0 => None,
        Level::Raid01 if wanted < k => chunks[k + wanted].map(<[u8]>::to_vec),
        Level::Raid01 => chunks[wanted - k].map(<[u8]>::to_vec),
        Level::Raid4 | Level::Raid5 => {
            let others = (0..=k).filter(|chunk| *chunk != wanted);
            sum(others.map(|chunk| chunks[chunk]))
        }
        Level::Raid6 => reconstruct_pq(k, chunks, wanted),
    }
}

/// The sum of chunks; `None` if one is missing.
fn sum<'a>(chunks: impl Iterator<Item = Option<&'a [u8]>>) -> Option<Vec<u8>> {
    let chunks: Vec<&[u8]> = chunks.collect::<Option<_>>()?;
    let mut total = vec![0; chunks.first()?.len()];
    p_and_q::sum(&chunks, &mut total);
    Some(total)
}

fn reconstruct_pq(k: usize, chunks: &[Option<&[u8]>], wanted: usize) -> Option<Vec<u8>> {
    let (p, q) = (chunks[k], chunks[k + 1]);
    let missing: Vec<usize> = (0..k).filter(|i| chunks[*i].is_none()).collect();
    let length = chunks.iter().flatten().next()?.len();
    // Σ 2^i · d_i over the present data chunks.
    let weighted = || {
        let mut total = vec![0; length];
        let present = (0..k).filter_map(|i| chunks[i].map(|data| (i, data)));
        present.for_each(|(i, data)| add_multiple(&mut total, data, power(i as u32)));
        total
    };
    let plain = || {
        let mut total = vec![0; length];
        chunks[..k].iter().flatten().for_each(|data| add(&mut total, data));
        total
    };
    let scaled = |bytes: &[u8], factor| {
        let mut scaled = vec![0; length];
        add_multiple(&mut scaled, bytes, factor);
        scaled
    };
    match (&missing[..], p, q) {
        // All data chunks are there, so the parity is computed from them.
        ([], ..) if wanted == k => Some(plain()),
        ([], ..) => Some(weighted()),
        ([x], Some(p), _) if wanted == *x => {
            let mut data = plain();
            add(&mut data, p);
            Some(data)
        }
        ([x], None, Some(q)) => {
            let mut rest = weighted();
            add(&mut rest, q);
            let data = scaled(&rest, inverse(power(*x as u32)));
            if wanted == *x {
                return Some(data);
            }
            let mut p = plain();
            add(&mut p, &data);
            Some(p)
        }
        // Q is wanted, and one data chunk is missing.
        ([x], Some(p), None) => {
            let mut data = plain();
            add(&mut data, p);
            let mut q = weighted();
            add_multiple(&mut q, &data, power(*x as u32));
            Some(q)
        }
        ([x, y], Some(p), Some(q)) => {
            // d_x + d_y = a and 2^x d_x + 2^y d_y = b.
            let (mut a, mut b) = (plain(), weighted());
            add(&mut a, p);
            add(&mut b, q);
            let (gx, gy) = (power(*x as u32), power(*y as u32));
            add_multiple(&mut b, &a, gy);
            let dx = scaled(&b, inverse(gx ^ gy));
            if wanted == *x {
                return Some(dx);
            }
            add(&mut a, &dx);
            Some(a)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_log::record::crc32c;
    use furrow_rt::Rng;
    use proptest::prelude::*;

    /// P and Q computed by their definition, byte by byte.
    fn by_definition(data: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
        let length = data[0].len();
        let p = (0..length).map(|at| data.iter().fold(0, |sum, d| sum ^ d[at])).collect();
        let weigh = |at: usize| {
            let terms = data.iter().enumerate();
            terms.fold(0, |sum, (i, d)| sum ^ multiply(power(i as u32), d[at]))
        };
        (p, (0..length).map(weigh).collect())
    }

    #[test]
    fn the_field_is_a_field() {
        for a in 1..=255u8 {
            assert_eq!(multiply(a, inverse(a)), 1);
            assert_eq!(multiply(a, 2), double(a));
        }
        // Known products of this field (0x11d).
        assert_eq!((double(0x80), multiply(0x53, 0xca), power(8)), (0x1d, 0x8f, 0x1d));
    }

    proptest! {
        /// At every level, parity matches its definition, and every chunk can be reconstructed from
        /// any sufficient set of others. From too few others, no wrong chunk is computed.
        #[test]
        fn what_is_lost_comes_back(
            level in prop::sample::select(Level::ALL.to_vec()),
            drives in 2..20u32, length in 1..300usize, seed in any::<u64>(), lost in any::<u32>(),
        ) {
            let Ok(placement) = Placement::new(level, drives) else { return Ok(()) };
            let mut rng = Rng::new(seed);
            let data: Vec<Vec<u8>> = (0..placement.k)
                .map(|_| (0..length).map(|_| rng.next() as u8).collect())
                .collect();
            let mut parity = vec![vec![0xa5; length]; placement.m as usize];
            let slices: Vec<&[u8]> = data.iter().map(|data| &data[..]).collect();
            let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
            encode(&placement, &slices, &mut outputs);
            let (p, q) = by_definition(&data);
            match level {
                Level::Raid0 => {}
                Level::Raid01 => prop_assert_eq!(&parity, &data),
                Level::Raid4 | Level::Raid5 => prop_assert_eq!(&parity[0], &p),
                Level::Raid6 => prop_assert_eq!((&parity[0], &parity[1]), (&p, &q)),
            }
            let crcs = data.iter().map(|data| crc32c(data));
            prop_assert_eq!(sum_of_crcs(crcs, crc32c(&vec![0; length])), crc32c(&p));
            let all: Vec<&Vec<u8>> = data.iter().chain(&parity).collect();
            // At most three chunks are lost: with more, reconstruction is hardly ever possible.
            let gone: Vec<u32> =
                (0..3).map(|i| (lost >> (8 * i)) % (placement.n + 4)).collect();
            let has = |chunk: u32| !gone.contains(&chunk);
            let chunks: Vec<Option<&[u8]>> =
                (0..placement.n).map(|i| has(i).then(|| &all[i as usize][..])).collect();
            for (wanted, chunk) in all.iter().enumerate() {
                let found = reconstruct(&placement, &chunks, wanted);
                if placement.recoverable(has) {
                    prop_assert_eq!(found.as_ref(), Some(*chunk));
                } else if let Some(found) = found {
                    prop_assert_eq!(&found, *chunk);
                }
            }
        }
    }
}
