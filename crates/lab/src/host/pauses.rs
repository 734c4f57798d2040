//! How a Linux kernel holds up tasks that write faster than the drive: by pauses, each after many
//! writes (`balance_dirty_pages` in mm/page-writeback.c).
//!
//! A task may dirty a number of pages freely. Then it sleeps until its average rate, over writes
//! and sleep, is its share of the rate at which the drive takes write-back. The kernel chooses the
//! number of pages so that a sleep takes 10 ms, and 10 ms more for each doubling of the number of
//! tasks (`wb_min_pause`), as long as there are enough dirty pages for that: about 50 ms for 16
//! tasks. So only a few writes wait, but each waits for long, and a percentile sees either a pause
//! or none at all.
//!
//! The model is simpler than the kernel: the length of a pause is given, all tasks have the same
//! share, and the rate of write-back is measured over one interval of 200 ms instead of smoothed
//! over several seconds.

use furrow_rt::{Nanos, PAGE_SIZE, Rt};
use std::cell::Cell;

/// Time over which the rate of write-back is measured (`BANDWIDTH_INTERVAL`).
const INTERVAL: u64 = 200_000_000;

/// The longest pause (`MAX_PAUSE`).
const LONGEST: u64 = 200_000_000;

/// The rate of write-back before the first measurement, in pages per nanosecond: 100 MiB per
/// second (`INIT_BW`).
const FIRST_RATE: f64 = 25_600.0 / 1e9;

/// Dirty pages of a host, and the rate at which they are written back.
pub struct Pauses {
    rt: Rt,
    /// Intended length of a pause, in nanoseconds.
    pause: u64,
    /// Dirty pages below which nobody pauses: half-way from the background limit to the
    /// dirty limit.
    free_run: f64,
    /// Number of dirty pages at which all tasks together write as fast as the drive.
    set_point: f64,
    /// Number of dirty pages at which tasks stop.
    limit: f64,
    writers: Vec<Writer>,
    /// Number of pages dirtied by all writers since the file system was mounted.
    dirtied: Cell<u64>,
    measured: Cell<Measured>,
}

/// The state of a task that writes.
struct Writer {
    /// Number of pages dirtied since the last pause.
    dirtied: Cell<u64>,
    /// Number of pages that the task may dirty before it checks whether to pause.
    allowed: Cell<u64>,
    /// End of the last pause.
    since: Cell<Nanos>,
}

/// The rate of write-back as measured in the last interval.
#[derive(Clone, Copy)]
struct Measured {
    at: Nanos,
    /// Number of pages written back by then.
    written: u64,
    /// Pages per nanosecond.
    rate: f64,
}

impl Pauses {
    /// Makes pauses of `pause` nanoseconds for `writers` tasks of a host whose limits are
    /// `background` and `limit` dirty bytes.
    pub fn new(rt: &Rt, pause: u64, writers: u32, background: u64, limit: u64) -> Pauses {
        let pages = |bytes: u64| bytes as f64 / PAGE_SIZE as f64;
        let (background, limit) = (pages(background), pages(limit));
        let free_run = f64::midpoint(background, limit);
        let now = rt.now();
        let writer =
            |_| Writer { dirtied: Cell::new(0), allowed: Cell::new(1), since: Cell::new(now) };
        Pauses {
            rt: rt.clone(),
            pause,
            free_run,
            set_point: f64::midpoint(free_run, limit),
            limit,
            writers: (0..writers).map(writer).collect(),
            dirtied: Cell::new(0),
            measured: Cell::new(Measured { at: now, written: 0, rate: FIRST_RATE }),
        }
    }

    /// Must be called when writer `thread` has dirtied `bytes`: returns after the writer's pause,
    /// if one is due. `dirty` returns the host's bytes that are dirty or in flight.
    pub async fn dirtied(&self, thread: u32, bytes: u64, dirty: impl FnOnce() -> u64) {
        let pages = bytes.div_ceil(PAGE_SIZE as u64);
        self.dirtied.set(self.dirtied.get() + pages);
        let writer = &self.writers[thread as usize % self.writers.len()];
        writer.dirtied.set(writer.dirtied.get() + pages);
        if writer.dirtied.get() < writer.allowed.get() {
            return;
        }
        let pause = self.pause_of(writer, dirty() / PAGE_SIZE as u64);
        if pause > 0 {
            self.rt.sleep(pause).await;
        }
        writer.since.set(self.rt.now());
    }

    /// The pause, in nanoseconds, of a writer that has used up its allowance; sets its
    /// next allowance.
    fn pause_of(&self, writer: &Writer, dirty: u64) -> u64 {
        let rate = self.measure(dirty);
        let dirtied = writer.dirtied.replace(0) as f64;
        let dirty = dirty as f64;
        if dirty <= self.free_run || rate == 0.0 {
            // The kernel checks again after a number of pages that is the square root of the pages
            // left to the limit (`dirty_poll_interval`).
            writer.allowed.set(((self.limit - dirty).max(1.0).sqrt() as u64).max(1));
            return 0;
        }
        let share = rate / self.writers.len() as f64 * self.position(dirty);
        let due = dirtied / share;
        let taken = self.rt.now().since(writer.since.get()) as f64;
        writer.allowed.set(((share * self.pause as f64) as u64).max(1));
        ((due - taken).max(0.0) as u64).min(LONGEST)
    }

    /// The factor that brings the number of dirty pages to the set point (`pos_ratio_polynom`).
    fn position(&self, dirty: f64) -> f64 {
        let off = (self.set_point - dirty) / (self.limit - self.set_point).max(1.0);
        (1.0 + off * off * off).clamp(0.01, 2.0)
    }

    /// The rate of write-back in pages per nanosecond. It is measured again once an interval
    /// has ended.
    fn measure(&self, dirty: u64) -> f64 {
        let mut measured = self.measured.get();
        let (now, written) = (self.rt.now(), self.dirtied.get().saturating_sub(dirty));
        let time = now.since(measured.at);
        if time >= INTERVAL {
            let more = written.saturating_sub(measured.written);
            measured = Measured { at: now, written, rate: more as f64 / time as f64 };
            self.measured.set(measured);
        }
        measured.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::Config;
    use std::rc::Rc;

    const MIB: u64 = 1 << 20;

    /// Simulates four writers that take 1 µs per page, over a drive that takes `rate` pages per
    /// millisecond, for five seconds. Returns pages written per second, pauses per thousand writes
    /// of the last second, and the longest write of that second, in nanoseconds.
    fn host(rate: u64) -> (u64, f64, u64) {
        let rt = Rt::new(Config::simulated(1));
        let dirty = Rc::new(Cell::new(0u64));
        let pauses = Rc::new(Pauses::new(&rt, 30_000_000, 4, 64 * MIB, 128 * MIB));
        let counts = Rc::new(Cell::new((0u64, 0u64, 0u64)));
        for thread in 0..4 {
            let (rt2, dirty, pauses, counts) =
                (rt.clone(), dirty.clone(), pauses.clone(), counts.clone());
            rt.spawn_detached(async move {
                loop {
                    rt2.sleep(1_000).await;
                    dirty.set(dirty.get() + 4096);
                    let began = rt2.now();
                    pauses.dirtied(thread, 4096, || dirty.get()).await;
                    let taken = rt2.now().since(began);
                    if began.0 >= 4_000_000_000 && began.0 < 5_000_000_000 {
                        let (writes, paused, longest) = counts.get();
                        let paused = paused + u64::from(taken > 0);
                        counts.set((writes + 1, paused, longest.max(taken)));
                    }
                }
            });
        }
        let rt2 = rt.clone();
        rt.block_on(async move {
            for _ in 0..5_300 {
                rt2.sleep(1_000_000).await;
                dirty.set(dirty.get().saturating_sub(rate * 4096));
                assert!(dirty.get() <= 128 * MIB, "the limit holds");
            }
        });
        rt.clear();
        let (writes, paused, longest) = counts.get();
        (writes, 1_000.0 * paused as f64 / writes as f64, longest)
    }

    #[test]
    fn writers_are_as_fast_as_the_drive_and_pause_seldom_and_for_long() {
        let (writes, share, longest) = host(100);
        assert!((90_000..110_000).contains(&writes), "{writes} writes a second");
        // At 25,000 pages per second, each writer makes 750 writes in 30 ms, so one write in
        // 750 pauses.
        assert!((1.0..2.0).contains(&share), "{share} pauses in 1,000 writes");
        assert!((20_000_000..80_000_000).contains(&longest), "{longest} ns");
    }

    #[test]
    fn the_slower_the_drive_the_more_writes_pause() {
        let (writes, share, _) = host(10);
        assert!((9_000..11_000).contains(&writes), "{writes} writes a second");
        assert!((10.0..20.0).contains(&share), "{share} pauses in 1,000 writes");
    }

    #[test]
    fn writers_slower_than_the_drive_do_not_pause() {
        let (writes, share, _) = host(5_000);
        assert!(writes > 3_900_000 && share == 0.0, "{writes} writes, {share} pauses");
    }
}
