//! An array of drives as a profile describes it: how it is made, and how it is written to.
//!
//! The arrays that ZapRAID is compared with are the same volume with other options, so that a
//! comparison changes one thing at a time. Only partial parity has a model of its own
//! (`target/partial.rs`), because the volume's format does not support it; the model uses the same
//! zones, writer and drives.

use furrow_emu::timing::quantity::{Bytes, Time};
use furrow_policy::{
    AppendPieces, Appends, Join, Lifetimes, RaidVariant, StripeTables, ZoneWrites,
};
use furrow_raid::{Config, Level, Options, is_bare};
use furrow_rt::PAGE_SIZE;
use furrow_zone::Geometry;
use serde::{Deserialize, Serialize};

/// How stripes reach the drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Writes every chunk with a Zone Write of its own, one in flight per zone.
    ZoneWrite,
    /// Writes every open segment with Zone Append.
    ZoneAppend,
    /// Writes like Furrow: the first small-chunk segment with Zone Append, in groups; the others
    /// with Zone Write.
    #[default]
    Grouped,
    /// Like `ZoneWrite`, but the parity of an unfinished stripe goes to a log, so that no request
    /// waits for its stripe to be full (the paper's simplified RAIZN).
    PartialParity,
}

/// An array, as in the data files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Array {
    /// Number of drives, all alike.
    pub drives: u32,
    /// RAID level.
    pub level: String,
    /// How stripes reach the drives.
    pub way: Way,
    /// Number of open segments with small chunks and with large ones, as `1+3`.
    pub segments: String,
    /// Bytes of a small chunk.
    pub small: Bytes,
    /// Size of a large chunk. Requests below it go to segments with small chunks.
    pub large: Bytes,
    /// Number of stripes of a group; 0: all stripes of a segment.
    pub group: u32,
    /// Number of stripes in flight per open segment.
    pub depth: u32,
    /// Time after which a partly filled stripe is filled up with zeros.
    pub pad: Time,
    /// Space that is kept free, in percent of the volume's size.
    pub reserve: u32,
    /// Maximum amount of data written between two checkpoints; 0: no checkpoint is written.
    pub checkpoint: Bytes,
    /// Whether the place of a chunk is searched in the stripe table, as published, or looked up.
    pub search: bool,
    /// Time, in virtual time, that a search takes per 1,000 entries of a stripe table; 0: none. For
    /// each chunk, a degraded read searches the group's entries of every drive that it reads
    /// (ZapRAID, section 3.2: `k·G` entries).
    pub search_time: Time,
    /// Bytes of memory for the volume's map; 0: enough for the whole map.
    pub map: Bytes,
    /// Number of commands into which appends that wait for a zone are merged; 0: each chunk in its
    /// own command, as published.
    pub pieces: u32,
    /// For partial parity: whether the parity is written after the data instead of at the
    /// same time.
    pub after: bool,
}

impl Default for Array {
    fn default() -> Array {
        Array {
            drives: 4,
            level: "5".to_owned(),
            way: Way::Grouped,
            segments: "1+0".to_owned(),
            small: Bytes(4 << 10),
            large: Bytes(16 << 10),
            group: 256,
            depth: 16,
            pad: Time(100_000),
            reserve: 25,
            checkpoint: Bytes(1 << 30),
            search: false,
            search_time: Time(0),
            map: Bytes(0),
            pieces: 0,
            after: false,
        }
    }
}

fn blocks(bytes: Bytes) -> u32 {
    (bytes.0 / PAGE_SIZE as u64) as u32
}

impl Array {
    /// The numbers of open segments with small and with large chunks.
    ///
    /// # Errors
    /// If `segments` is invalid: the reason, in one clause.
    pub fn open(&self) -> Result<(u32, u32), String> {
        let wrong = || format!("segments `{}`: expected two numbers, as `1+3`", self.segments);
        let (small, large) = self.segments.split_once('+').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        match (number(small)?, number(large)?) {
            (0, 0) => Err("segments `0+0`: none".to_owned()),
            open => Ok(open),
        }
    }

    /// Checks the array.
    ///
    /// # Errors
    /// If the array is invalid: the reason, in one clause.
    pub fn check(&self) -> Result<(), String> {
        self.open()?;
        self.level.parse::<Level>().map_err(|error| error.to_string())?;
        for (name, bytes) in [("small", self.small), ("large", self.large)] {
            if bytes.0 == 0 || !bytes.0.is_multiple_of(PAGE_SIZE as u64) {
                return Err(format!("a {name} chunk of {bytes} is not a multiple of 4KiB"));
            }
        }
        if self.depth == 0 {
            return Err("`depth` is 0".to_owned());
        }
        if self.way == Way::PartialParity && self.level != "5" {
            return Err("partial parity is modelled for level 5".to_owned());
        }
        Ok(())
    }

    /// The configuration that the volume is made with.
    ///
    /// # Errors
    /// The errors of [`Array::check`].
    pub fn config(&self, geometry: &Geometry) -> Result<Config, String> {
        let level = self.level.parse::<Level>().map_err(|error| error.to_string())?;
        let (small, large) = self.open()?;
        // Without segments of small chunks, the segments of large chunks take all requests.
        let (small, large, chunk) =
            if small == 0 { (large, 0, self.large) } else { (small, large, self.small) };
        let published = self.open()?.0 == 0 && self.way == Way::Grouped;
        Ok(Config {
            small,
            large,
            chunk_small: blocks(chunk),
            chunk_large: blocks(self.large),
            group: match (self.way, self.group) {
                (Way::ZoneWrite | Way::PartialParity, _) => 1,
                _ if is_bare(geometry) => 1,
                // Large chunks are written with Zone Write, so they need no groups.
                (Way::Grouped, _) if published => 1,
                (_, 0) => Config::UNGROUPED,
                (_, group) => group,
            },
            reserve: self.reserve,
            ..Config::new(level, geometry)
        })
    }

    /// The options with which the volume runs.
    pub fn options(&self) -> Options {
        Options {
            variant: self.variant(),
            pad_after: self.pad.0,
            depth: self.depth,
            map_memory: self.map.0,
            checkpoint_blocks: match self.checkpoint.0 {
                0 => u64::MAX,
                bytes => bytes / PAGE_SIZE as u64,
            },
            ..Options::default()
        }
    }

    /// The rules in which the volume differs from the product's.
    fn variant(&self) -> RaidVariant {
        let (writes, join) = match self.way {
            Way::ZoneWrite | Way::PartialParity => (ZoneWrites::Blocking, Join::Never),
            Way::ZoneAppend | Way::Grouped => (ZoneWrites::Append, Join::Adjacent),
        };
        RaidVariant {
            writes,
            join,
            append_pieces: match self.pieces {
                0 => AppendPieces::Each,
                pieces => AppendPieces::Fixed(pieces),
            },
            appends: if self.way == Way::ZoneAppend { Appends::All } else { Appends::First },
            lifetimes: match self.way {
                Way::Grouped => Lifetimes::Apart,
                _ => Lifetimes::Mixed,
            },
            tables: if self.search { StripeTables::Searched } else { StripeTables::Places },
            ..RaidVariant::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_raid::APPEND_PIECES;

    fn array(text: &str) -> Result<Array, String> {
        let array: Array = toml::from_str(text).map_err(|error| error.to_string())?;
        array.check().map(|()| array)
    }

    #[test]
    fn what_is_said_reaches_the_volume() {
        let spec: furrow_zone::DeviceSpec = "mem:zn540-4t".parse().unwrap();
        let furrow_zone::DeviceSpec::Memory(memory) = spec else { panic!("a drive in memory") };
        let config = |text: &str| array(text).unwrap().config(&memory.geometry).unwrap();
        let own = config("segments = '1+3'\nlevel = '6'");
        assert_eq!((own.small, own.large, own.group, own.level), (1, 3, 256, Level::Raid6));
        let large = config("segments = '0+4'");
        assert_eq!((large.small, large.large, large.chunk_small, large.group), (4, 0, 4, 1));
        let all = array("way = 'zone-append'\ngroup = 0\nsegments = '2+2'").unwrap();
        assert_eq!(all.config(&memory.geometry).unwrap().group, Config::UNGROUPED);
        assert_eq!(all.options().variant.appends, Appends::All);
        let one = array("way = 'zone-write'\nsmall = '8KiB'\ndepth = 3").unwrap();
        assert_eq!(one.config(&memory.geometry).unwrap().group, 1);
        let options = one.options();
        assert_eq!((options.variant.writes, options.depth), (ZoneWrites::Blocking, 3));
        assert_eq!(options.variant.join, Join::Never);
        let own = Array::default().options();
        let product = Options::default();
        // Claim R-join runs the volume with the product's number of commands.
        let joined = array(&format!("pieces = {APPEND_PIECES}")).unwrap().options();
        let chosen = RaidVariant { append_pieces: AppendPieces::Chosen, ..joined.variant };
        assert_eq!(chosen, product.variant);
        assert_eq!((own.depth, own.pad_after), (product.depth, product.pad_after));
        assert_eq!(own.checkpoint_blocks, product.checkpoint_blocks);
        assert_eq!(array("checkpoint = '0'").unwrap().options().checkpoint_blocks, u64::MAX);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, word) in [
            ("segments = '1'", "1+3"),
            ("segments = '0+0'", "none"),
            ("level = '7'", "7"),
            ("small = '5KiB'", "4KiB"),
            ("depth = 0", "depth"),
            ("way = 'partial-parity'\nlevel = '6'", "level 5"),
            ("way = 'parity'", "parity"),
            ("speed = 1", "speed"),
        ] {
            let error = array(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
