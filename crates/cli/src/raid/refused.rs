//! Reports of refused NBD clients: an event for each, as long as there are few.
//!
//! Anyone who reaches the port can cause any number of refusals. So in each [`PERIOD`] only
//! [`MOST`] clients are reported one by one; the others are reported together when the period ends.
//! The metrics count all.

use furrow_rt::Nanos;

/// Length of a period in nanoseconds.
const PERIOD: u64 = 600 * Nanos::SECOND;
/// Maximum number of clients that are reported one by one in a period.
const MOST: u32 = 5;

/// The present period: its begin, and the numbers of clients that were reported one by one (`told`)
/// and that were not (`untold`).
#[derive(Default)]
pub struct Quota {
    since: Option<Nanos>,
    told: u32,
    untold: u64,
}

impl Quota {
    /// Counts a refused client, and `before` earlier ones whose details were dropped. Returns true
    /// if this client gets a report of its own.
    pub fn add(&mut self, now: Nanos, before: u64) -> bool {
        self.since.get_or_insert(now);
        self.untold += before;
        if self.told < MOST {
            self.told += 1;
            return true;
        }
        self.untold += 1;
        false
    }

    /// Nanoseconds until the period ends; `None` if none has begun.
    pub fn left(&self, now: Nanos) -> Option<u64> {
        Some(PERIOD.saturating_sub(now.since(self.since?)))
    }

    /// Ends the period. Returns the number of clients without a report of their own.
    pub fn end(&mut self) -> u64 {
        std::mem::take(self).untold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every client is reported, by itself or in a sum, and a day of refusals takes few lines.
    #[test]
    fn a_flood_of_clients_makes_few_reports_that_add_up() {
        let (mut quota, mut lines, mut told) = (Quota::default(), 0, 0);
        let mut now = Nanos(5);
        for _ in 0..86_400 {
            now = now.after(Nanos::SECOND);
            if quota.left(now) == Some(0) {
                lines += 1;
                told += quota.end();
            }
            let alone = quota.add(now, 1);
            lines += u64::from(alone);
            told += u64::from(alone);
        }
        told += quota.end();
        assert_eq!(told, 2 * 86_400);
        assert!(lines <= 6 * 145, "{lines}");
        assert_eq!(quota.left(now), None);
    }
}
