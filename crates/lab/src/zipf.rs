//! Zipf's law: draws in which few items are frequent and most are rare.

use furrow_rt::Rng;
// The platform's own functions are not used, because their last digit differs between machines.
use libm::{exp, expm1, log, log1p, pow};

/// Zipf's law over `n` items: the item of rank k is drawn in proportion to 1 / k^theta.
///
/// Draws by rejection from the integral of the law (Hörmann and Derflinger), which needs no tables
/// and works for any exponent. A permutation scatters the ranks over the items. The permutation is
/// the same for all clients of a run, so their most frequent items are the same.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    n: u64,
    theta: f64,
    lowest: f64,
    highest: f64,
    accept: f64,
    /// The item of rank k is k × factor + shift, modulo n.
    factor: u64,
    shift: u64,
}

impl Zipf {
    /// The law over `n` items with exponent `theta`.
    pub(crate) fn new(n: u64, theta: f64, rng: &mut Rng) -> Zipf {
        let law = |value| integral(value, theta);
        let factor = loop {
            let factor = rng.below(n.max(2)) | 1;
            if gcd(factor, n) == 1 {
                break factor;
            }
        };
        Zipf {
            n,
            theta,
            lowest: law(1.5) - 1.0,
            highest: law(n as f64 + 0.5),
            accept: 2.0 - inverse(law(2.5) - pow(2.0, -theta), theta),
            factor,
            shift: rng.below(n),
        }
    }

    /// Draws an item.
    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        let rank = loop {
            // The precision of the fraction is 53 bits.
            let share = (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
            let value = self.highest + share * (self.lowest - self.highest);
            let x = inverse(value, self.theta);
            let rank = x.round().clamp(1.0, self.n as f64);
            let close = rank - x <= self.accept;
            if close || value >= integral(rank + 0.5, self.theta) - pow(rank, -self.theta) {
                break rank as u64 - 1;
            }
        };
        let scattered = u128::from(rank) * u128::from(self.factor) + u128::from(self.shift);
        (scattered % u128::from(self.n)) as u64
    }
}

/// The integral of x^-theta, starting at 1.
fn integral(x: f64, theta: f64) -> f64 {
    let log = log(x);
    let power = (1.0 - theta) * log;
    if power.abs() < 1e-8 { log * (1.0 + power / 2.0) } else { log * expm1(power) / power }
}

fn inverse(value: f64, theta: f64) -> f64 {
    let t = (value * (1.0 - theta)).max(-1.0);
    if t.abs() < 1e-8 { exp(value * (1.0 - t / 2.0)) } else { exp(value * log1p(t) / t) }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the draws of a seed do not depend on the machine's own mathematics.
    #[test]
    fn zipf_draws_are_the_same_everywhere() {
        let mut rng = Rng::new(42);
        let zipf = Zipf::new(1_000_003, 0.99, &mut rng);
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for _ in 0..10_000 {
            hash = (hash ^ zipf.draw(&mut rng)).wrapping_mul(0x0100_0000_01b3);
        }
        assert_eq!(hash, 0x19ea_166b_b777_fd0e);
    }
}
