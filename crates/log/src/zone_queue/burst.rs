//! Whether a burst is written faster by one command or by several.
//!
//! A burst is what waits for a zone of which no command is in flight: the blocks of a lone client's
//! fsync, say. Drives differ. On one, a command's latency grows with its size and commands work
//! side by side; on another each command takes the whole drive for some microseconds. So the writer
//! tries both ways and goes on with the faster one, for each size of bursts. What waits while
//! commands are in flight is always divided: it is throughput that counts then.
//!
//! Invariant: the two means of a size come from bursts that took turns, so that other load of the
//! drive lengthened both alike.

use furrow_rt::Nanos;

/// Bursts of a size that are written both ways in turn, before the faster way is known.
const FIRST: u32 = 64;
/// One of so many later bursts is written the other way, and the one before it counts, too: the
/// drive's load may change.
const EVERY: u32 = 64;
/// Times that a mean is of: a new time counts as much as one of so many.
const WEIGHT: u64 = 32;
/// Sizes that are told apart: by powers of two, from 4 blocks to 256 and more.
const SIZES: usize = 7;

/// How a burst is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    One = 0,
    Several = 1,
}

/// A burst on its way to the drive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    /// The block of the zone at which it ends.
    pub(super) end: u32,
    way: Way,
    size: usize,
    /// When it was sent, if its time counts.
    sent: Option<Nanos>,
}

impl Burst {
    /// Commands that are to be in flight: 1, or `several`.
    pub(super) fn pieces(&self, several: u32) -> u32 {
        match self.way {
            Way::One => 1,
            Way::Several => several,
        }
    }
}

/// Bursts of one size.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bursts: u32,
    /// Mean nanoseconds of a burst, by [`Way`], and the number of times in it, up to [`WEIGHT`].
    means: [(u64, u64); 2],
}

/// What is known of the bursts of a drive.
#[derive(Debug, Default)]
pub(crate) struct Bursts([Size; SIZES]);

impl Bursts {
    /// A burst of `blocks` that ends at block `end` and is sent `now`.
    pub(super) fn begin(&mut self, blocks: u32, end: u32, now: Nanos) -> Burst {
        let index = (blocks.max(4).ilog2() as usize - 2).min(SIZES - 1);
        let size = &mut self.0[index];
        let number = size.bursts;
        size.bursts = number.checked_add(1).unwrap_or(FIRST);
        let faster = if size.means[0].0 < size.means[1].0 { Way::One } else { Way::Several };
        let other = if faster == Way::One { Way::Several } else { Way::One };
        let (way, counts) = match (number < FIRST, number % EVERY) {
            (true, turn) => (if turn % 2 == 0 { Way::One } else { Way::Several }, true),
            (false, 0) => (faster, true),
            (false, 1) => (other, true),
            (false, _) => (faster, false),
        };
        Burst { end, way, size: index, sent: counts.then_some(now) }
    }

    /// The last block of `burst` was answered at the time that `now` tells.
    pub(super) fn ended(&mut self, burst: Burst, now: impl FnOnce() -> Nanos) {
        let Some(sent) = burst.sent else { return };
        let (mean, times) = &mut self.0[burst.size].means[burst.way as usize];
        let time = now().0.saturating_sub(sent.0);
        *times = (*times + 1).min(WEIGHT);
        *mean = *mean - *mean / *times + time / *times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `count` bursts of 16 blocks, which take `times`, by way; returns how many went in
    /// several commands.
    fn several(bursts: &mut Bursts, count: u32, times: [u64; 2]) -> u32 {
        let mut several = 0;
        for _ in 0..count {
            let burst = bursts.begin(16, 16, Nanos(1_000));
            several += u32::from(burst.way == Way::Several);
            bursts.ended(burst, || Nanos(1_000 + times[burst.way as usize]));
        }
        several
    }

    #[test]
    fn the_faster_way_is_found_and_found_again() {
        let mut bursts = Bursts::default();
        assert_eq!(several(&mut bursts, FIRST, [50_000, 30_000]), FIRST / 2);
        assert_eq!(several(&mut bursts, 640, [50_000, 30_000]), 630);
        // The drive is a different one now: some turns later the other way is taken.
        several(&mut bursts, 60 * EVERY, [20_000, 30_000]);
        assert_eq!(several(&mut bursts, 640, [20_000, 30_000]), 10);
    }

    #[test]
    fn sizes_are_told_apart_and_numbers_may_wrap() {
        let mut bursts = Bursts::default();
        several(&mut bursts, FIRST, [10, 20]);
        assert_eq!(bursts.begin(255, 0, Nanos(0)).size, 5);
        assert_eq!(bursts.begin(u32::MAX, 0, Nanos(0)).size, SIZES - 1);
        assert_eq!(bursts.begin(1, 0, Nanos(0)).size, 0);
        bursts.0[2].bursts = u32::MAX;
        several(&mut bursts, 3, [10, 20]);
        assert!(bursts.0[2].bursts >= FIRST, "{bursts:?}");
    }
}
