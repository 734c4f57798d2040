//! The shape of an array: how zones, segments, stripes and blocks of the volume relate.
//! Arithmetic only.
//!
//! A segment is one zone on each drive: a header block, `rows` data rows, a footer. Data row r has
//! one block on each drive, and a stripe is `chunk` rows. A *physical block number* counts data
//! blocks only: (slot × rows + row) × k + data chunk. With stripe groups, the compact stripe table
//! says where in its zone a chunk landed.

use crate::format::{BlockMeta, FooterEntry, MAPPED, NONE, RING_ZONES, SegmentBody};
use crate::meta::place::MetaPlace;
use furrow_array::level::Level;
use furrow_array::placement::Placement;
use furrow_log::address::{blocks_per_zone, oob_per_block};
use furrow_log::record::blocks_for;
use furrow_zone::{Error, ErrorKind, Geometry, Result, ZonedDevice, size};

/// Active zones per drive that an array needs in addition to those of users' open segments: one
/// for the state ring, one for the segment of cleaning, one for a segment that ends while the next
/// one begins.
pub const PERMITS_RESERVED: u32 = 3;

/// Number of segments kept for cleaning: one to write to, one to begin next, and one because a
/// member may refuse a write to one of them.
pub(crate) const KEPT: u32 = 3;

/// The configuration with which an array is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// RAID level.
    pub level: Level,
    /// Name of the array, at most 64 bytes.
    pub label: String,
    /// Number of open segments with small chunks (N_s). The first takes Zone Appends, if `group` is
    /// above 1.
    pub small: u32,
    /// Number of open segments with large chunks (N_l).
    pub large: u32,
    /// Size of a small chunk (C_s) in blocks of 4 KiB.
    pub chunk_small: u32,
    /// Size of a large chunk (C_l) in blocks of 4 KiB, a multiple of `chunk_small`.
    pub chunk_large: u32,
    /// Number of stripes in a group (G); 1: Zone Write only; [`Config::UNGROUPED`]: one group
    /// per segment.
    pub group: u32,
    /// Space kept free in addition to the volume's size, in percent of that size, 7 to 100.
    pub reserve: u32,
}

impl Config {
    /// A `group` that spans the whole segment.
    pub const UNGROUPED: u32 = u32::MAX;

    /// The paper's settings (ZapRAID, section 5.1): one small-chunk segment with Zone Append, three
    /// large-chunk ones, chunks of 4 and 16 KiB, groups of 256 stripes. Drives with few active
    /// zones get fewer segments, and drives without an out-of-band area no groups.
    ///
    /// `geometry` is the geometry of the drive with the fewest active zones.
    pub fn new(level: Level, geometry: &Geometry) -> Config {
        let permits = geometry.max_active.unwrap_or(u32::MAX);
        let large = permits.saturating_sub(PERMITS_RESERVED + 1).min(3);
        Config {
            level,
            label: String::new(),
            small: 1,
            large,
            chunk_small: 1,
            chunk_large: 4,
            group: if MetaPlace::of(geometry).takes_groups() { 256 } else { 1 },
            reserve: 25,
        }
    }

    /// Number of active zones that the array needs on each drive.
    pub(crate) fn permits(&self) -> u32 {
        self.small + self.large + PERMITS_RESERVED
    }

    /// Fails if a drive allows fewer active zones than the array needs: each open segment has an
    /// active zone on every drive.
    ///
    /// # Errors
    /// `Invalid`; the message begins with `who`, which ends in a verb, such as "drive 3 has".
    pub(crate) fn check_permits(&self, who: &str, geometry: &Geometry, advice: &str) -> Result<()> {
        let permits = geometry.max_active.unwrap_or(u32::MAX);
        let needed = self.permits();
        if needed <= permits {
            return Ok(());
        }
        invalid(format!(
            "{who} {permits} active zones, {needed} are needed: {} small-chunk and {} large-chunk \
             segments, and {PERMITS_RESERVED} for the state ring, cleaning and the segment that \
             comes next: {advice}",
            self.small, self.large
        ))
    }
}

/// The shape of an array, which is fixed when the array is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The placement of a stripe's chunks on the drives.
    pub placement: Placement,
    /// First zone that belongs to segments.
    pub first_zone: u32,
    /// Number of zones of each drive that are used.
    pub zones: u32,
    /// Blocks that can be written in a zone.
    pub capacity: u32,
    /// Number of data rows in a segment.
    pub rows: u32,
    /// Number of slots for segments.
    pub slots: u32,
    /// Size of the volume in blocks.
    pub blocks: u64,
    /// Number of mapping blocks of the volume.
    pub mappings: u32,
    /// Number of segments kept for cleaning.
    pub kept: u32,
    /// Number of data blocks that cleaning can write to a segment.
    pub held: u32,
    /// The place of the metadata of blocks.
    pub meta: MetaPlace,
}

/// Number of blocks in a zone's footer for `rows` rows.
fn footer_blocks(placement: &Placement, rows: u32) -> u32 {
    let copies = placement.tolerates() as usize + 1;
    blocks_for(rows as usize * copies * FooterEntry::SIZE)
}

fn invalid<T>(what: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, what))
}

impl Shape {
    /// The shape of an array on drives of `geometries`.
    ///
    /// # Errors
    /// `Invalid` if an array of these drives is not possible; the message says what would
    /// be possible.
    pub fn new(config: &Config, geometries: &[&Geometry]) -> Result<Shape> {
        let placement = Placement::new(config.level, geometries.len() as u32)?;
        check_config(config)?;
        let first = geometries[0];
        check_alike(geometries)?;
        let meta = MetaPlace::of(first);
        if config.group > 1 && !meta.takes_groups() {
            return invalid(format!(
                "the drives have {} out-of-band bytes per 4 KiB, groups of stripes need {}: use \
                 groups of 1 (Zone Write only), or format them with metadata",
                oob_per_block(first),
                BlockMeta::SIZE
            ));
        }
        for (index, geometry) in geometries.iter().enumerate() {
            let advice = "have fewer segments, or drives with more active zones";
            config.check_permits(&format!("drive {index} has"), geometry, advice)?;
        }
        let zones = geometries.iter().map(|g| g.zones).min().unwrap_or(0);
        let capacity = blocks_per_zone(first);
        let align = config.chunk_large.max(config.chunk_small);
        let mut rows = capacity.saturating_sub(2) / align * align;
        while rows > 0 && 1 + rows + footer_blocks(&placement, rows) > capacity {
            rows -= align;
        }
        let first_zone = first.conventional_zones + RING_ZONES;
        let slots = zones.saturating_sub(first_zone);
        Shape::sized(config, placement, (first_zone, zones, capacity, rows, slots), meta)
    }

    fn sized(
        config: &Config,
        placement: Placement,
        (first_zone, zones, capacity, rows, slots): (u32, u32, u32, u32, u32),
        meta: MetaPlace,
    ) -> Result<Shape> {
        let per_segment = u64::from(rows) * u64::from(placement.k);
        if per_segment * u64::from(slots) >= u64::from(NONE) {
            return invalid(format!(
                "{slots} segments of {per_segment} blocks: at most 16 TiB of data are supported"
            ));
        }
        // Each open segment may be nearly empty, and cleaning needs segments of its own.
        let open = config.small + config.large + 1;
        let kept = KEPT;
        let held = held(config, &placement, rows, meta);
        let usable = u64::from(slots.saturating_sub(open + kept)) * u64::from(held);
        let blocks = usable * 100 / (100 + u64::from(config.reserve));
        // The map takes space, too: a mapping block for 1,024 blocks, and a second while it
        // is rewritten.
        let blocks = blocks.saturating_sub(2 * blocks.div_ceil(u64::from(MAPPED)));
        if rows == 0 || blocks == 0 {
            return invalid(format!(
                "drives of {zones} zones of {capacity} blocks are too small: {} zones of 64 blocks \
                 would be enough for {open} open segments",
                first_zone + open + kept + 2
            ));
        }
        let mappings = blocks.div_ceil(u64::from(MAPPED)) as u32;
        Ok(Shape {
            placement,
            first_zone,
            zones,
            capacity,
            rows,
            slots,
            blocks,
            mappings,
            kept,
            held,
            meta,
        })
    }

    /// Fails if a drive cannot take the place of a member.
    ///
    /// # Errors
    /// `Invalid` if the drive does not fit.
    pub fn check_replacement(&self, config: &Config, device: &dyn ZonedDevice) -> Result<()> {
        let geometry = device.geometry();
        let advice = "choose a drive with more active zones";
        config.check_permits(&format!("{} has", device.name()), geometry, advice)?;
        let capacity = blocks_per_zone(geometry);
        let beside = oob_per_block(geometry);
        if geometry.zones >= self.zones
            && capacity == self.capacity
            && MetaPlace::of(geometry) == self.meta
            && geometry.conventional_zones + RING_ZONES == self.first_zone
        {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{}: {} zones of {capacity} blocks with {beside} out-of-band bytes: the array \
                 needs {} zones of {} {}, or more zones: choose another drive",
                device.name(),
                geometry.zones,
                self.zones,
                self.capacity,
                self.meta.needs()
            ),
        ))
    }

    /// Number of slots needed so that users can overwrite the full volume for ever: open segments
    /// may be nearly empty, cleaning needs segments of its own, and cleaning gains space only if
    /// the remaining segments have a segment's worth of garbage.
    pub fn least(&self, config: &Config) -> u32 {
        let blocks = self.blocks + 2 * u64::from(self.mappings);
        let full = blocks.div_ceil(u64::from(self.held)) as u32;
        full + 1 + config.small + config.large + 1 + self.kept
    }

    /// Number of data blocks in a segment.
    pub fn per_segment(&self) -> u32 {
        self.rows * self.placement.k
    }

    /// Number of stripes in a segment with chunks of `chunk` blocks.
    pub fn stripes(&self, chunk: u32) -> u32 {
        self.rows / chunk
    }

    /// The block of a zone that holds the zone's data row `row`: the rows follow the header block.
    pub fn offset(&self, row: u32) -> u32 {
        1 + row
    }

    /// First block of the footer in a zone.
    pub fn footer_start(&self) -> u32 {
        self.capacity - self.footer_blocks()
    }

    /// Number of blocks in the footer.
    pub fn footer_blocks(&self) -> u32 {
        footer_blocks(&self.placement, self.rows)
    }

    /// Number of zones whose footers describe a zone.
    pub fn footer_copies(&self) -> u32 {
        self.placement.tolerates() + 1
    }

    /// The physical block number of a data block.
    pub fn number(&self, slot: u32, row: u32, chunk: u32) -> u32 {
        (slot * self.rows + row) * self.placement.k + chunk
    }

    /// Slot, row and data chunk of a physical block number; `None` if the number is out of range.
    pub fn locate(&self, number: u32) -> Option<(u32, u32, u32)> {
        let (row, chunk) = (number / self.placement.k, number % self.placement.k);
        let slot = row / self.rows;
        (slot < self.slots).then_some((slot, row % self.rows, chunk))
    }

    /// The slot of a physical block number.
    pub fn slot(&self, number: u32) -> u32 {
        number / self.per_segment()
    }

    /// Whether a segment header's slot and sizes are possible in this array.
    pub fn fits(&self, header: &SegmentBody) -> bool {
        let chunk = header.chunk.get();
        header.slot.get() < self.slots
            && header.member.get() < self.placement.n
            && header.rows.get() == self.rows
            && chunk != 0
            && self.rows.is_multiple_of(chunk)
            && header.group.get() != 0
    }
}

/// Number of blocks in a chunk of the segments for internal writes.
pub(crate) fn internal_chunk(config: &Config) -> u32 {
    if config.large > 0 { config.chunk_large } else { config.chunk_small }
}

/// Number of data blocks that cleaning can write to a segment: with in-band metadata fewer than
/// the segment has. Segments of users' small writes hold fewer still, but cleaning does not
/// write those.
pub(crate) fn held(config: &Config, placement: &Placement, rows: u32, meta: MetaPlace) -> u32 {
    let data = internal_chunk(config).saturating_mul(placement.k);
    let all = rows.saturating_mul(placement.k);
    meta.capacity(all, data)
}

fn check_config(config: &Config) -> Result<()> {
    if config.label.len() > 64 {
        return invalid(format!("the label is {} bytes long, 64 fit", config.label.len()));
    }
    if config.small == 0 {
        return invalid("no small-chunk segment: at least one is needed".into());
    }
    if config.chunk_small == 0
        || config.chunk_large == 0
        || !config.chunk_large.is_multiple_of(config.chunk_small)
        || config.chunk_large > 256
    {
        return invalid(format!(
            "chunks of {} KiB and {} KiB: the large one must be a multiple of the small one, and \
             at most 1024 KiB",
            4 * u64::from(config.chunk_small),
            4 * u64::from(config.chunk_large)
        ));
    }
    if config.group == 0 {
        return invalid("groups of 0 stripes: 1 means Zone Write only".into());
    }
    if !(7..=100).contains(&config.reserve) {
        return invalid(format!("a reserve of {} %: must be 7 to 100", config.reserve));
    }
    Ok(())
}

/// Fails if the drives differ in their blocks or zones, except in the number of zones.
fn check_alike(geometries: &[&Geometry]) -> Result<()> {
    let first = geometries[0];
    for (index, other) in geometries.iter().enumerate() {
        let properties = |of: &Geometry| {
            [
                format!("blocks of {} bytes", of.block_size.0),
                format!("zones that hold {}", size::show(of.bytes(of.zone_capacity))),
                format!("{} out-of-band bytes per block", of.oob_bytes),
                format!("{} conventional zones", of.conventional_zones),
            ]
        };
        let mut both = properties(other).into_iter().zip(properties(first));
        if let Some((found, expected)) = both.find(|(found, expected)| found != expected) {
            return invalid(format!(
                "drive {index} has {found}, drive 0 has {expected}: all drives of an array need \
                 the same; only how many zones they have may differ"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn geometry(zones: u32, capacity: u64) -> Geometry {
        Geometry {
            oob_bytes: 64,
            max_open: Some(8),
            max_active: Some(8),
            ..Geometry::unlimited(zones, capacity.next_power_of_two(), capacity)
        }
    }

    proptest! {
        /// Header, rows and footer fit the zone; block numbers and places correspond one to one.
        #[test]
        fn numbers_are_one_to_one(
            level in prop::sample::select(Level::ALL.to_vec()), drives in 2..12usize,
            zones in 8..40u32, capacity in 12..300u64, picks in any::<u32>(),
        ) {
            let geometry = geometry(zones, capacity);
            let config = Config::new(level, &geometry);
            let Ok(shape) = Shape::new(&config, &vec![&geometry; drives]) else { return Ok(()) };
            prop_assert!(1 + shape.rows + shape.footer_blocks() <= shape.capacity);
            prop_assert_eq!(shape.rows % config.chunk_large, 0);
            let total = shape.slots * shape.per_segment();
            prop_assert!(shape.blocks < u64::from(total));
            for number in [0, total - 1, picks % total] {
                let (slot, row, chunk) = shape.locate(number).unwrap();
                prop_assert!(slot < shape.slots && row < shape.rows && chunk < shape.placement.k);
                prop_assert_eq!(shape.number(slot, row, chunk), number);
                prop_assert_eq!(shape.slot(number), slot);
            }
            prop_assert_eq!(shape.locate(total), None);
        }
    }

    #[test]
    fn without_an_out_of_band_area_it_is_smaller_by_what_the_windows_take() {
        let with = furrow_zone::presets::preset("zn540-4t").unwrap();
        let bare = Geometry { oob_bytes: 0, ..with.clone() };
        let shape = |g: &Geometry| Shape::new(&Config::new(Level::Raid5, g), &[g; 4]).unwrap();
        let (with, bare) = (shape(&with), shape(&bare));
        assert_eq!(bare.rows, with.rows);
        assert_eq!((bare.meta, with.meta), (MetaPlace::InBand, MetaPlace::OutOfBand));
        let share = bare.blocks as f64 / with.blocks as f64;
        assert!((0.96..0.975).contains(&share), "{share}");
        let tiny = Geometry { oob_bytes: 8, ..geometry(16, 12) };
        let none = Shape::new(&Config::new(Level::Raid5, &tiny), &[&tiny; 4]);
        assert!(none.unwrap_err().to_string().contains("too small"));
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_would_work() {
        let small = geometry(16, 64);
        let config = Config::new(Level::Raid5, &small);
        let refused =
            |config: &Config, all: &[&Geometry]| Shape::new(config, all).unwrap_err().to_string();
        assert!(Shape::new(&config, &[&small; 4]).is_ok());
        let tiny = geometry(4, 64);
        assert!(refused(&config, &[&tiny; 4]).contains("too small"));
        let other = geometry(16, 65);
        assert!(
            refused(&config, &[&small, &small, &other]).contains("drive 2 has zones that hold")
        );
        let bare = Geometry { oob_bytes: 0, ..small.clone() };
        assert!(refused(&config, &[&bare; 4]).contains("groups of 1 (Zone Write only)"));
        assert!(
            refused(&config, &[&small, &bare])
                .contains("drive 1 has 0 out-of-band bytes per block, drive 0 has 64")
        );
        let few = Geometry { max_active: Some(4), max_open: Some(4), ..small.clone() };
        let why = refused(&config, &[&small, &few, &small]);
        assert!(why.starts_with("drive 1 has 4 active zones") && why.contains("fewer segments"));
        for (change, word) in [
            (Config { reserve: 5, ..config.clone() }, "7 to 100"),
            (Config { group: 0, ..config.clone() }, "Zone Write"),
            (Config { chunk_large: 3, chunk_small: 2, ..config.clone() }, "multiple"),
            (Config { small: 0, ..config.clone() }, "small-chunk"),
        ] {
            assert!(refused(&change, &[&small; 4]).contains(word));
        }
        // The paper's settings fit the drive of the measurements.
        let zn540 = furrow_zone::presets::preset("zn540-4t").unwrap();
        let shape = Shape::new(&Config::new(Level::Raid5, &zn540), &[&zn540; 4]).unwrap();
        assert!(shape.footer_blocks() * 80 < shape.capacity, "the footer is 1.2 % at most");
    }
}
