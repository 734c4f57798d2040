//! Units and geometry. Every quantity has its own type: mixing them does not compile.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit!(
    /// Index of a zone on its drive, from 0.
    ZoneId(u32)
);
unit!(
    /// A logical block address as the drive counts: zone × zone *size* + offset.
    Lba(u64)
);
unit!(
    /// A number of logical blocks.
    BlockCount(u64)
);
unit!(
    /// A number of bytes.
    ByteLen(u64)
);
unit!(
    /// A submission queue of a drive, by number.
    QueueId(u16)
);
unit!(
    /// A drive of this process, by number.
    DeviceId(u32)
);

/// Describes a drive: shape, limits and features. Fixed for the life of the drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of zones, including conventional ones.
    pub zones: u32,
    /// Number of blocks of address space per zone (ZSZE). Need not be a power of two.
    pub zone_size: BlockCount,
    /// Number of blocks that can be written per zone (ZCAP ≤ ZSZE).
    pub zone_capacity: BlockCount,
    /// Bytes per logical block: 512 or 4096.
    pub block_size: ByteLen,
    /// Out-of-band bytes of each block; 0 if there are none.
    pub oob_bytes: u16,
    /// Number of zones, counted from the first, that may be written anywhere and have no state.
    pub conventional_zones: u32,
    /// Maximum number of open zones (MOR); `None`: no limit.
    pub max_open: Option<u32>,
    /// Maximum number of active (open or closed) zones (MAR); `None`: no limit. At
    /// least `max_open`.
    pub max_active: Option<u32>,
    /// Largest append in blocks (ZASL); `None` stands for `max_transfer`, 0 for a drive that takes
    /// no append.
    pub max_append: Option<BlockCount>,
    /// Largest read or write in blocks (MDTS); `None`: no limit.
    pub max_transfer: Option<BlockCount>,
    /// True if a read may cross into the next zone (RAZB).
    pub read_across_zones: bool,
    /// True if reading at or above the write pointer is an error (DULBE) instead of zeros.
    pub unwritten_reads_fail: bool,
    /// True if a power cut may lose completed writes until a flush (a write cache without
    /// power-loss protection).
    pub volatile_cache: bool,
    /// Number of channels, if known. Zone i is on channel i mod channels.
    pub channels: Option<u16>,
    /// Number of dies, if known. Zone i is on die i mod dies.
    pub dies: Option<u16>,
}

impl Geometry {
    /// The base of most geometries: blocks of 4 KiB, no limits, no out-of-band bytes. `zone_size`
    /// and `zone_capacity` are in blocks.
    pub fn unlimited(zones: u32, zone_size: u64, zone_capacity: u64) -> Geometry {
        Geometry {
            zones,
            zone_size: BlockCount(zone_size),
            zone_capacity: BlockCount(zone_capacity),
            block_size: ByteLen(4096),
            oob_bytes: 0,
            conventional_zones: 0,
            max_open: None,
            max_active: None,
            max_append: None,
            max_transfer: None,
            read_across_zones: false,
            unwritten_reads_fail: false,
            volatile_cache: false,
            channels: None,
            dies: None,
        }
    }

    /// First block of `zone`.
    pub fn start(&self, zone: ZoneId) -> Lba {
        Lba(u64::from(zone.0) * self.zone_size.0)
    }

    /// Returns the zone of `lba` and the block's offset in it; `None` past the end of the drive.
    pub fn locate(&self, lba: Lba) -> Option<(ZoneId, BlockCount)> {
        let zone = lba.0 / self.zone_size.0;
        (zone < u64::from(self.zones))
            .then(|| (ZoneId(zone as u32), BlockCount(lba.0 % self.zone_size.0)))
    }

    /// True if `zone` is conventional.
    pub fn is_conventional(&self, zone: ZoneId) -> bool {
        zone.0 < self.conventional_zones
    }

    /// Number of bytes that can be written on the whole drive.
    pub fn capacity(&self) -> ByteLen {
        ByteLen(u64::from(self.zones) * self.zone_capacity.0 * self.block_size.0)
    }
}
