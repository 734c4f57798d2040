//! Whether a burst is written faster by one command or by several.
//!
//! A burst is the blocks that wait for a zone that has no command in flight, for example the blocks
//! of a lone client's fsync. Drives differ. On one drive, a command's latency grows with its size,
//! and commands run in parallel. On another drive, each command occupies the whole drive for a few
//! microseconds. So the writer times bursts of both kinds, and writes later bursts in the faster
//! way. Bursts of different sizes are compared separately. Blocks that wait while commands are in
//! flight are always divided: throughput limits such a zone, not latency.
//!
//! Invariant: the order in which bursts are timed as one command or as several has no period. So a
//! change of the drive's load, or a pattern in a client's writes, lengthens both means alike.

use furrow_rt::Nanos;

/// Number of first bursts of a size, all of which are timed: half of them are written as one
/// command each.
const FIRST: u32 = 64;
/// Two of this many later bursts are timed: one written as one command, one as several. So the
/// writer notices when the other way has become faster.
const EVERY: u32 = 64;
/// Maximum number of measurements that count in a mean. Each further measurement moves the mean by
/// their difference divided by this number.
const WEIGHT: u64 = 32;
/// Number of burst sizes. A size covers the numbers of blocks from one power of two up to the next;
/// the first size begins at 4 blocks, and the last one has no end.
const SIZES: usize = 7;

/// How a burst is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    One = 0,
    Several = 1,
}

/// A burst in flight to the drive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    /// The block of the zone at which the burst ends.
    pub(super) end: u32,
    way: Way,
    size: usize,
    /// When the burst was sent, if it is timed.
    sent: Option<Nanos>,
}

impl Burst {
    /// Number of commands to keep in flight: 1, or `several`.
    pub(super) fn pieces(&self, several: u32) -> u32 {
        match self.way {
            Way::One => 1,
            Way::Several => several,
        }
    }
}

/// The timing of bursts of one size.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bursts: u32,
    /// For each [`Way`], the mean nanoseconds of a burst, and the number of measurements in the
    /// mean, up to [`WEIGHT`].
    means: [(u64, u64); 2],
}

/// The timing of a drive's bursts, by size.
#[derive(Debug, Default)]
pub(crate) struct Bursts([Size; SIZES]);

impl Bursts {
    /// Begins a burst of `blocks` blocks that ends at block `end` and is sent `now`.
    pub(super) fn begin(&mut self, blocks: u32, end: u32, now: Nanos) -> Burst {
        let index = (blocks.max(4).ilog2() as usize - 2).min(SIZES - 1);
        let size = &mut self.0[index];
        let number = size.bursts;
        size.bursts = number.checked_add(1).unwrap_or(FIRST);
        let faster = if size.means[0].0 < size.means[1].0 { Way::One } else { Way::Several };
        let timed = number < FIRST || number % EVERY < 2;
        // The Thue-Morse sequence has no period, so no pattern of a client favours one way.
        let turn = if number < FIRST { number } else { number / EVERY * 2 + number % EVERY };
        let way = match (timed, turn.count_ones() % 2) {
            (true, 0) => Way::One,
            (true, _) => Way::Several,
            (false, _) => faster,
        };
        Burst { end, way, size: index, sent: timed.then_some(now) }
    }

    /// Notes that the last block of `burst` was answered at the time that `now` returns.
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
    use crate::writer::{Kind, Order, Writer, WriterOptions, ZoneWrite};
    use furrow_rt::{Config, Page, Pages, Rt};
    use furrow_zone::{DeviceSpec, ZoneId};

    /// Sends `count` bursts of 16 blocks; `times` is how long each way takes. Returns how many
    /// bursts went as several commands.
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
        // The drive's behaviour has changed: after some timed bursts the writer switches to the
        // other way.
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

    /// A latency that grows with a command's size favours four commands; a fixed cost per command
    /// favours one command.
    #[test]
    fn bursts_go_as_the_drive_answers_them_sooner() {
        for (preset, wanted) in [("j5100", 4), ("zn540-4t,model.service-spread=fixed", 1)] {
            let rt = Rt::new(Config::simulated(1));
            let spec: DeviceSpec = format!("mem:{preset},timing=virtual").parse().unwrap();
            let drive = furrow_emu::open(&rt, &spec, furrow_zone::Access::ReadWrite).unwrap();
            let options = WriterOptions {
                order: Order::Queued,
                pieces: 4,
                learns_pieces: true,
                ..WriterOptions::default()
            };
            let writer = Writer::with_options(&rt, drive, options);
            writer.open_empty(ZoneId(0));
            let (count, bursts) = (writer.clone(), 640);
            let commands = rt.block_on(async move {
                let mut before = 0;
                for burst in 0..2 * bursts {
                    if burst == bursts {
                        before = count.counters().commands;
                    }
                    let pages: Pages = (0..16).map(|_| Page::zeroed()).collect();
                    count.submit(ZoneWrite::pages(ZoneId(0), Kind::Data, pages)).await.unwrap();
                }
                count.counters().commands - before
            });
            // One burst in 64 is written the slower way, to time it.
            let other = bursts / 64;
            assert_eq!(commands, wanted * (bursts - other) + (5 - wanted) * other, "{preset}");
            rt.clear();
        }
    }
}
