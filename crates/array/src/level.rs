//! RAID levels: their names, and how many drives each needs.

use furrow_zone::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;

/// Minimum and maximum number of members of an array.
pub const DRIVES: std::ops::RangeInclusive<u32> = 2..=32;

/// A RAID level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Level {
    /// Stripes without redundancy.
    Raid0 = 0,
    /// Stripes over mirrored pairs.
    Raid01 = 1,
    /// One parity, on the last drive. With two drives: a mirror.
    Raid4 = 4,
    /// One parity, rotating. With two drives: a mirror.
    Raid5 = 5,
    /// Two parities (P + Q), rotating.
    Raid6 = 6,
}

impl Level {
    /// All levels, in the order of their numbers.
    pub const ALL: [Level; 5] =
        [Level::Raid0, Level::Raid01, Level::Raid4, Level::Raid5, Level::Raid6];

    /// The level as users write it: "0", "01", "4", "5", "6".
    pub fn name(self) -> &'static str {
        match self {
            Level::Raid0 => "0",
            Level::Raid01 => "01",
            Level::Raid4 => "4",
            Level::Raid5 => "5",
            Level::Raid6 => "6",
        }
    }

    /// The level with this number in a record; `None` if there is no such level.
    pub fn from_byte(byte: u8) -> Option<Level> {
        Level::ALL.into_iter().find(|level| *level as u8 == byte)
    }

    /// Minimum number of drives for the level.
    pub fn drives_min(self) -> u32 {
        match self {
            Level::Raid0 | Level::Raid4 | Level::Raid5 => 2,
            Level::Raid6 => 3,
            Level::Raid01 => 4,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RAID-{}", self.name())
    }
}

impl FromStr for Level {
    type Err = Error;

    /// Parses "5", "raid5" or "RAID-5"; "10" means "01".
    fn from_str(text: &str) -> Result<Level> {
        let lower = text.to_ascii_lowercase();
        let number = lower.strip_prefix("raid").unwrap_or(&lower);
        let number = number.strip_prefix('-').unwrap_or(number);
        let number = if number == "10" { "01" } else { number };
        Level::ALL.into_iter().find(|level| level.name() == number).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("\"{text}\" is no RAID level: expected 0, 01, 4, 5 or 6"),
            )
        })
    }
}
