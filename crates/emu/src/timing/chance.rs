//! The model's random numbers: a hash of seed, zone and command number, so that a run repeats to
//! the nanosecond on every machine. Only integers are used, because the logarithm of a machine's
//! library may differ in its last bit.

/// The number 1 in the fixed-point form used here, which counts units of 2^-32.
const ONE: u64 = 1 << 32;

/// Number of steps in the table of logarithms.
const STEPS: usize = 1024;

/// ln(1 + i/1024) in units of 2^-32, computed at compile time, where arithmetic is the same
/// everywhere. −ln(u) of a uniform u is exponentially distributed.
const LOGARITHMS: [u64; STEPS + 1] = {
    let mut table = [0; STEPS + 1];
    let mut step = 0;
    while step <= STEPS {
        // ln(1 + f) = 2 artanh(f / (2 + f)), whose series converges most slowly at f = 1: as 9^-k.
        let f = step as f64 / STEPS as f64;
        let z = f / (2.0 + f);
        let (mut power, mut sum, mut odd) = (z, 0.0, 1.0);
        while odd < 40.0 {
            sum += power / odd;
            power *= z * z;
            odd += 2.0;
        }
        table[step] = (2.0 * sum * ONE as f64 + 0.5) as u64;
        step += 1;
    }
    table
};

/// A pseudorandom number from `seed`, `zone`, `command` and `draw`.
#[inline]
pub(super) fn hash(seed: u64, zone: u32, command: u64, draw: u32) -> u64 {
    let mut z = seed
        ^ command.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (u64::from(zone) << 32 | u64::from(draw)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An exponentially distributed number of mean `mean`, from 64 random bits.
#[inline]
pub(super) fn exponential(mean: u64, random: u64) -> u64 {
    let random = random | 1;
    let zeros = random.leading_zeros();
    // u = m · 2^-(zeros + 1) with m in [1, 2).
    let fraction = (random << zeros) << 1;
    let step = (fraction >> 54) as usize;
    let within = (fraction >> 22) & (ONE - 1);
    let (low, high) = (LOGARITHMS[step], LOGARITHMS[step + 1]);
    let logarithm = low + (((high - low) * within) >> 32);
    let minus_ln = (u64::from(zeros) + 1) * LOGARITHMS[STEPS] - logarithm;
    ((u128::from(mean) * u128::from(minus_ln)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_one() {
        let draws: Vec<u64> =
            (0..200_000).map(|n| exponential(1_000_000, hash(7, 3, n, 0))).collect();
        let mean = draws.iter().sum::<u64>() as f64 / draws.len() as f64;
        assert!((mean / 1e6 - 1.0).abs() < 0.01, "{mean}");
        for quantile in [0.1, 0.5, 0.9, 0.99, 0.999] {
            let below = -(1.0f64 - quantile).ln() * 1e6;
            let share = draws.iter().filter(|draw| (**draw as f64) < below).count() as f64
                / draws.len() as f64;
            let error = (quantile * (1.0 - quantile) / draws.len() as f64).sqrt();
            assert!((share - quantile).abs() < 5.0 * error, "{quantile}: {share}");
        }
    }

    /// The values are fixed, because every machine must compute the same.
    #[test]
    fn the_numbers_are_these() {
        assert_eq!(LOGARITHMS[STEPS], 2_977_044_472);
        assert_eq!(hash(1, 2, 3, 4), 11_724_071_865_219_909_936);
        assert_eq!(exponential(1 << 40, 1), 48_775_896_629_248);
        assert_eq!(exponential(1 << 40, u64::MAX), 256);
        assert_eq!(exponential(1_000_000, 1 << 63), 693_147);
    }
}
