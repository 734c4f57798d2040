//! Placement: which drive of an array has which chunk of a stripe.
//!
//! A stripe has `k` data chunks, numbered from 0, and then `m` parity chunks (mirrors for RAID-01),
//! one chunk on each of the `n = k + m` drives. RAID-5 and RAID-6 rotate chunks by one drive
//! per stripe, so that parity is spread evenly over any number of drives; the other levels do
//! not rotate.

use crate::level::{DRIVES, Level};
use furrow_zone::{Error, ErrorKind, Result};

/// The placement of chunks: the drive that has each chunk of an array's stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// RAID level.
    pub level: Level,
    /// Number of drives.
    pub n: u32,
    /// Number of data chunks per stripe.
    pub k: u32,
    /// Number of parity chunks per stripe, or of mirrors.
    pub m: u32,
}

impl Placement {
    /// The placement of `level` on `drives` drives.
    ///
    /// # Errors
    /// `Invalid` if the level does not work with this number of drives; the message says which
    /// number would work.
    pub fn new(level: Level, drives: u32) -> Result<Placement> {
        let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        if drives < level.drives_min() || !DRIVES.contains(&drives) {
            return invalid(format!(
                "{level} needs {} to {} drives, not {drives}",
                level.drives_min(),
                DRIVES.end()
            ));
        }
        if level == Level::Raid01 && drives % 2 == 1 {
            return invalid(format!(
                "{level} needs pairs of drives, not {drives}: use {} or {}",
                drives - 1,
                drives + 1
            ));
        }
        let m = match level {
            Level::Raid0 => 0,
            Level::Raid4 | Level::Raid5 => 1,
            Level::Raid6 => 2,
            Level::Raid01 => drives / 2,
        };
        Ok(Placement { level, n: drives, k: drives - m, m })
    }

    /// Number of drives that may fail, in any combination.
    pub fn tolerates(&self) -> u32 {
        match self.level {
            Level::Raid01 => 1,
            _ => self.m,
        }
    }

    /// Whether every chunk of a stripe is present or can be reconstructed from the chunks for which
    /// `has` holds.
    pub fn recoverable(&self, has: impl Fn(u32) -> bool) -> bool {
        match self.level {
            Level::Raid01 => (0..self.k).all(|chunk| has(chunk) || has(self.k + chunk)),
            _ => (0..self.n).filter(|chunk| has(*chunk)).count() as u32 >= self.k,
        }
    }

    /// The drive that has `chunk` of `stripe`.
    #[inline]
    pub fn drive(&self, stripe: u32, chunk: u32) -> u32 {
        match self.level {
            Level::Raid0 | Level::Raid4 => chunk,
            Level::Raid01 if chunk < self.k => 2 * chunk,
            Level::Raid01 => 2 * (chunk - self.k) + 1,
            Level::Raid5 | Level::Raid6 => (chunk + stripe % self.n) % self.n,
        }
    }

    /// The chunk of `stripe` that `drive` has.
    #[inline]
    pub fn chunk(&self, stripe: u32, drive: u32) -> u32 {
        match self.level {
            Level::Raid0 | Level::Raid4 => drive,
            Level::Raid01 if drive.is_multiple_of(2) => drive / 2,
            Level::Raid01 => self.k + drive / 2,
            Level::Raid5 | Level::Raid6 => (drive + self.n - stripe % self.n) % self.n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every() -> impl Iterator<Item = Placement> {
        Level::ALL
            .into_iter()
            .flat_map(|level| DRIVES.filter_map(move |n| Placement::new(level, n).ok()))
    }

    #[test]
    fn chunks_and_drives_are_one_to_one_and_parity_rotates_over_all() {
        let mut seen = 0;
        for placement in every() {
            seen += 1;
            let mut parity = vec![0; placement.n as usize];
            for stripe in (0..2 * placement.n).chain(u32::MAX - 70..=u32::MAX) {
                let mut used = vec![false; placement.n as usize];
                for chunk in 0..placement.n {
                    let drive = placement.drive(stripe, chunk);
                    assert_eq!(placement.chunk(stripe, drive), chunk);
                    assert!(!std::mem::replace(&mut used[drive as usize], true));
                    if chunk >= placement.k && stripe < 2 * placement.n {
                        parity[drive as usize] += 1;
                    }
                }
            }
            if matches!(placement.level, Level::Raid5 | Level::Raid6) {
                assert!(parity.iter().all(|count| *count == 2 * placement.m), "{placement:?}");
            }
        }
        assert_eq!(seen, 31 + 15 + 31 + 31 + 30);
    }

    #[test]
    fn any_drives_it_tolerates_may_be_gone() {
        for placement in every().filter(|placement| placement.n <= 8) {
            for lost in 0..1u32 << placement.n {
                let ok = placement.recoverable(|chunk| lost >> chunk & 1 == 0);
                if lost.count_ones() <= placement.tolerates() {
                    assert!(ok, "{placement:?} without {lost:b}");
                }
                if lost.count_ones() > placement.m {
                    assert!(!ok, "{placement:?} without {lost:b}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let refused = |level, n| Placement::new(level, n).unwrap_err().to_string();
        assert!(refused(Level::Raid5, 1).contains("2 to 32"));
        assert!(refused(Level::Raid6, 2).contains("3 to 32"));
        assert!(refused(Level::Raid01, 5).contains("use 4 or 6"));
        assert!(refused(Level::Raid0, 33).contains("33"));
        assert_eq!("RAID-10".parse::<Level>().unwrap(), Level::Raid01);
        assert_eq!("5".parse::<Level>().unwrap(), Level::Raid5);
        assert!("7".parse::<Level>().is_err() && "".parse::<Level>().is_err());
    }
}
