//! The layout of a drive: where every area is. mkfs computes it from the geometry; later it is read
//! from the superblock.

use crate::alloc::stripe::Stripe;
use crate::format::{
    BLOCK, COMPAT_PROOFS, CheckpointBody, HEADS_PER_STREAM, NatEntry, SitEntry, StreamState,
    SummaryEntry, SuperblockBody, UnitRef, WIDTH_MAX,
};
use crate::types::MkfsOptions;
use furrow_log::address::blocks_per_zone;
use furrow_log::format::{Descriptor, ExtentEntry, RECORD_LENGTH_MAX};
use furrow_log::record::{RecordHeader, Uuid};
use furrow_zone::words::count;
use furrow_zone::{Error, ErrorKind, Geometry, Result, ZoneId};

/// Number of zones in the checkpoint ring.
pub(crate) const RING_ZONES: u32 = 2;
/// Number of adjacent blocks of a segment in one zone of a superzone: 128 KiB.
const SUBSEGMENT: u32 = 32;
/// Number of blocks in a segment: 2 MiB.
const SEGMENT: u32 = 512;
/// Maximum number of zones in a half of the sync log. A small zone lies on one die, and a die
/// programs about ten thousand records a second. With four zones, 16 clients wrote more records
/// than four dies can program, and waiting records filled the drive's write buffer (claim Z17).
const SYNC_ZONES: u32 = 8;
/// Smallest number of superzones in the main area: one for each of the six streams, two spare, one
/// to start with.
const SUPERZONES_MIN: u32 = 9;
/// Minimum number of active zones for the logs: one each for checkpoint ring, delta log, tables and
/// sync log.
const LOG_PERMITS: u32 = 4;
/// On drives with fewer zones, NAT and SIT share a delta log and the table zone that is
/// being written.
const SEPARATE_ZONES: u32 = 128;
/// Initially the tables have space for this fraction of all node ids: one in 256.
const FEW_NODES: u32 = 256;
/// Smallest number of active zones that a drive must offer.
pub(crate) const PERMITS_MIN: u32 = 6;
/// Zones of at least this capacity, in bytes, are striped over all dies by the drive itself, so
/// superzones get width 1.
const LARGE_ZONE: u64 = 512 << 20;

/// Number of files that can be open at the same time on any drive: `mkfs` chooses zones so that a
/// checkpoint can list that many.
pub(crate) const OPEN_MIN: usize = 2048;
/// Largest number of delta log extents in a checkpoint. There are few, unless writes
/// fail repeatedly.
const EXTENTS: usize = 256;

/// The label in a superblock.
pub(crate) fn label(body: &SuperblockBody) -> String {
    let end = body.label.iter().position(|byte| *byte == 0).unwrap_or(body.label.len());
    let mut label = String::from_utf8_lossy(&body.label[..end]).into_owned();
    // A replacement character is longer than the byte that it replaces. Cut the text: the label
    // must fit the next superblock.
    while label.len() > body.label.len() {
        label.pop();
    }
    label
}

/// The content of the superblock, decoded.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) uuid: Uuid,
    pub(crate) device: Uuid,
    pub(crate) label: String,
    /// Compatible features of the file system, as bits.
    pub(crate) compat: u64,
    /// Read-only compatible features of the file system, as bits.
    pub(crate) ro_compat: u64,
    /// Incompatible features of the file system, as bits.
    pub(crate) incompat: u64,
    pub(crate) hash_seed: u64,
    pub(crate) created: i64,
    pub(crate) zones: u32,
    pub(crate) zone_size: u64,
    pub(crate) capacity: u32,
    pub(crate) ring_start: u32,
    pub(crate) delta_start: u32,
    pub(crate) delta_zones: u32,
    pub(crate) table_start: u32,
    pub(crate) table_zones: u32,
    pub(crate) sync_start: u32,
    pub(crate) sync_zones: u32,
    pub(crate) main_start: u32,
    pub(crate) superzones: u32,
    pub(crate) width: u32,
    pub(crate) segment_blocks: u32,
    pub(crate) subsegment_blocks: u32,
    pub(crate) unit_blocks: u32,
    pub(crate) nodes: u32,
    pub(crate) streams: u32,
    /// Number of delta logs, and of table zones written at the same time: 1 or 2.
    pub(crate) logs: u32,
    /// Number of segments per superzone (derived).
    pub(crate) segments: u32,
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

impl Layout {
    /// Plans the layout for a drive of `geometry`. The caller fills in UUIDs, hash seed and time.
    pub(crate) fn plan(geometry: &Geometry, options: &MkfsOptions) -> Result<Layout> {
        let capacity = blocks_per_zone(geometry);
        let first = geometry.conventional_zones;
        let usable = geometry.zones.saturating_sub(first);
        let permits = geometry.max_active.unwrap_or(u32::MAX).min(usable);
        if permits < PERMITS_MIN {
            return Err(invalid(format!(
                "the drive has {permits} active zones, but {PERMITS_MIN} are needed: checkpoint \
                 ring 1 + delta log 1 + tables 1 + sync log 1 + data stream 1 + node stream 1"
            )));
        }
        let for_streams = permits - LOG_PERMITS;
        let streams = match for_streams {
            0..=3 => 2,
            4..=5 => 4,
            _ => 6,
        };
        let width = choose_width(geometry, options, for_streams / streams)?;
        // A large zone keeps all dies busy, and is a large part of the drive, so NAT and SIT
        // share one.
        let own = streams == 6 && !is_large(geometry, options);
        let logs = choose_logs(options, usable, for_streams, streams * width, own)?;
        let left = for_streams - streams * width - 2 * (logs - 1);
        let segment_blocks = choose_segment(options, capacity, width)?;
        let total = u64::from(usable) * u64::from(capacity);
        let mut layout = Layout {
            uuid: Uuid::NIL,
            device: Uuid::NIL,
            label: options.label.clone(),
            compat: crate::format::COMPAT_KNOWN,
            ro_compat: 0,
            incompat: crate::format::INCOMPAT_KNOWN,
            hash_seed: 0,
            created: 0,
            zones: geometry.zones,
            zone_size: geometry.zone_size.0,
            capacity,
            ring_start: first,
            delta_start: 0,
            delta_zones: 1,
            table_start: 0,
            table_zones: 1,
            sync_start: 0,
            sync_zones: choose_sync(geometry, options, usable, left)?,
            main_start: 0,
            superzones: 0,
            width,
            segment_blocks,
            subsegment_blocks: choose_subsegment(options, capacity, segment_blocks)?,
            unit_blocks: choose_unit(options, capacity, total)?,
            // A file needs at least an inode and a block.
            nodes: (total / 2).clamp(64, u64::from(u32::MAX - 1)) as u32,
            streams,
            logs,
            segments: 0,
        };
        layout.segments = layout.stripe(width).segments();
        layout.size_areas(geometry, usable, options);
        layout.check_size(usable)?;
        Ok(layout)
    }

    /// Gives each area its zones; the main area gets the rest.
    fn size_areas(&mut self, geometry: &Geometry, usable: u32, options: &MkfsOptions) {
        let capacity = u64::from(self.capacity);
        // A half of the delta log takes a quarter of a percent of the drive, at most 16 MiB. Two
        // logs divide this between them.
        let delta_blocks = (u64::from(usable) * capacity / 400).clamp(16, 4096);
        let delta_blocks = delta_blocks / u64::from(self.logs);
        let delta_blocks =
            options.delta_blocks.map_or(delta_blocks, |least| u64::from(least.max(1)));
        self.delta_zones = delta_blocks.div_ceil(capacity).max(1) as u32;
        self.delta_start = self.ring_start + RING_ZONES;
        self.table_start = self.delta_start + 2 * self.delta_zones * self.logs;
        // Count segments as if the main area were the whole drive, which is slightly too many.
        let segments = u64::from(usable / self.width + 1) * u64::from(self.segments);
        let sit = segments.div_ceil(u64::from(self.sit_per_unit())) as u32;
        let few = (self.nodes / FEW_NODES).clamp(self.nodes.min(4096), self.nodes);
        let few = options.first_nodes.map_or(few, |few| few.clamp(1, self.nodes));
        let kept = self.table_zones_for(few.div_ceil(self.nat_per_unit()), sit);
        let (ample, tight) = (zones_with_room(kept), zones_with_room(kept) - u32::from(kept == 1));
        // Two zones are enough if one holds all table pages. Use two on the smallest drives, and on
        // drives whose zones hold all table pages many times over.
        for table_zones in [if is_large(geometry, options) { tight } else { ample }, tight] {
            self.table_zones = table_zones;
            self.sync_start = self.table_start + self.table_zones;
            self.main_start = self.sync_start + 2 * self.sync_zones;
            let end = self.ring_start + usable;
            self.superzones = end.saturating_sub(self.main_start) / self.width;
            if self.superzones >= SUPERZONES_MIN {
                break;
            }
        }
    }

    /// Table pages in a zone: no table page straddles zones.
    pub(crate) fn units_per_zone(&self) -> u32 {
        self.capacity / self.unit_blocks
    }

    /// Number of zones that `nat` table pages of the NAT and `sit` table pages of the SIT fill.
    pub(crate) fn table_zones_for(&self, nat: u32, sit: u32) -> u32 {
        let per_zone = self.units_per_zone();
        match self.logs {
            1 => nat.saturating_add(sit).div_ceil(per_zone),
            _ => nat.div_ceil(per_zone) + sit.div_ceil(per_zone),
        }
    }

    /// Number of node ids that `zones` table zones have space for, in addition to the whole SIT.
    pub(crate) fn nodes_in(&self, zones: u32) -> u32 {
        let kept = zones_kept_of(zones);
        let per_zone = u64::from(self.units_per_zone());
        let sit = u64::from(self.sit_units());
        let units = match self.logs {
            1 => (u64::from(kept) * per_zone).saturating_sub(sit),
            _ => u64::from(kept).saturating_sub(sit.div_ceil(per_zone)) * per_zone,
        };
        (units * u64::from(self.nat_per_unit())).min(u64::from(self.nodes)) as u32
    }

    fn check_size(&self, usable: u32) -> Result<()> {
        if self.superzones < SUPERZONES_MIN {
            let logs = self.main_start - self.ring_start;
            let need = logs + SUPERZONES_MIN * self.width;
            return Err(invalid(format!(
                "the drive is too small: {need} sequential zones are needed ({logs} for the logs + \
                 {SUPERZONES_MIN} superzones of {}), but it has {usable}: take a larger drive, or \
                 make smaller zones",
                count(self.width.into(), "zone")
            )));
        }
        Ok(())
    }

    fn per_table_page(&self, entry: usize) -> u32 {
        ((self.unit_blocks as usize * BLOCK - RecordHeader::SIZE) / entry) as u32
    }

    /// Number of NAT entries in a table page.
    pub(crate) fn nat_per_unit(&self) -> u32 {
        self.per_table_page(size_of::<NatEntry>())
    }

    /// Number of SIT entries in a table page.
    pub(crate) fn sit_per_unit(&self) -> u32 {
        self.per_table_page(size_of::<SitEntry>())
    }

    /// Number of segments in the main area.
    pub(crate) fn segment_count(&self) -> u32 {
        self.superzones * self.segments
    }

    /// Number of table pages of the NAT.
    pub(crate) fn nat_units(&self) -> u32 {
        self.nodes.div_ceil(self.nat_per_unit())
    }

    /// Number of table pages of the SIT.
    pub(crate) fn sit_units(&self) -> u32 {
        self.segment_count().div_ceil(self.sit_per_unit())
    }

    /// Striping of a superzone of `width` zones.
    pub(crate) fn stripe(&self, width: u32) -> Stripe {
        Stripe {
            width,
            capacity: self.capacity,
            sub: self.subsegment_blocks,
            segment: self.segment_blocks,
        }
    }

    /// Number of interference groups: superzones i and j share dies if i ≡ j modulo this number. It
    /// is 1 if the dies are not known or a superzone is on all of them. If the width does not
    /// divide the number of dies, neighbouring groups overlap a little.
    pub(crate) fn groups(&self, geometry: &Geometry) -> u32 {
        (u32::from(geometry.dies.unwrap_or(1)) / self.width).max(1)
    }

    /// Striping of a half of the sync log, one block per zone at a time, since most records are
    /// one block.
    pub(crate) fn sync_stripe(&self) -> Stripe {
        Stripe { sub: 1, ..self.stripe(self.sync_zones) }
    }

    /// True if sync records say which earlier records were durable, and checkpoints are
    /// written twice.
    pub(crate) fn has_proofs(&self) -> bool {
        self.compat & COMPAT_PROOFS != 0
    }

    /// Number of blocks that a checkpoint of `blocks` blocks takes, including its second copy if a
    /// zone of the ring has space for both.
    pub(crate) fn checkpoint_span(&self, blocks: u32) -> u32 {
        let both = 2 * blocks;
        if self.has_proofs() && both < self.capacity { both } else { blocks }
    }

    /// Largest size of a checkpoint's record in bytes, not counting its list of removed files.
    fn checkpoint_bytes(&self) -> usize {
        let heads = (self.streams * HEADS_PER_STREAM) as usize;
        let summary = self.segment_blocks as usize * size_of::<SummaryEntry>();
        let units = (self.nat_units() + self.sit_units()) as usize;
        RecordHeader::SIZE
            + CheckpointBody::SIZE
            + SuperblockBody::SIZE
            + heads * (StreamState::SIZE + summary)
            + units * UnitRef::SIZE
            + self.superzones as usize * Descriptor::SIZE
            + EXTENTS * ExtentEntry::SIZE
    }

    /// Number of files that may be open at the same time. Each may be removed while it is open, and
    /// a checkpoint, which is one record in a zone of the ring, lists the removed ones. Half of the
    /// space is left for removed files that cannot be freed because they are damaged.
    pub(crate) fn open_max(&self) -> usize {
        let zone = (self.capacity as usize).saturating_sub(1) * BLOCK;
        (zone.saturating_sub(self.checkpoint_bytes()) / 2 / size_of::<u32>()).max(OPEN_MIN)
    }

    /// First zone of superzone `index`.
    pub(crate) fn superzone_start(&self, index: u32) -> u32 {
        self.main_start + index * self.width
    }

    /// The superzone that main-area zone `zone` belongs to.
    pub(crate) fn superzone_of(&self, zone: ZoneId) -> Option<u32> {
        let superzone = zone.0.checked_sub(self.main_start)? / self.width;
        (superzone < self.superzones).then_some(superzone)
    }

    /// First zone of a half of a delta log.
    pub(crate) fn delta_first(&self, log: usize, half: u8) -> u32 {
        self.delta_start + (2 * log as u32 + u32::from(half)) * self.delta_zones
    }

    /// Zones of a half of a delta log.
    pub(crate) fn delta_half(&self, log: usize, half: u8) -> Vec<ZoneId> {
        let first = self.delta_first(log, half);
        (first..first + self.delta_zones).map(ZoneId).collect()
    }

    /// Zones of the tables that are outside the main area.
    pub(crate) fn table_area(&self) -> impl Iterator<Item = ZoneId> + use<> {
        (self.table_start..self.table_start + self.table_zones).map(ZoneId)
    }

    /// Number of active zones that the checkpoint ring, delta logs, tables and sync log need.
    pub(crate) fn log_permits(&self) -> u32 {
        1 + 2 * self.logs + self.sync_zones
    }

    /// Zone `column` of a half of the sync log.
    pub(crate) fn sync_zone(&self, half: u8, column: u32) -> ZoneId {
        debug_assert!(column < self.sync_zones, "zone {column} of {}", self.sync_zones);
        ZoneId(self.sync_start + u32::from(half) * self.sync_zones + column)
    }

    /// Zones of a half of the sync log.
    pub(crate) fn sync_half(&self, half: u8) -> Vec<ZoneId> {
        half_of(self.sync_start, self.sync_zones, half)
    }

    /// True if the drive itself stripes each zone over many dies.
    pub(crate) fn has_large_zones(&self) -> bool {
        u64::from(self.capacity) * BLOCK as u64 >= LARGE_ZONE
    }

    /// The profile chosen for a drive of `geometry`, in words.
    pub(crate) fn profile(&self, geometry: &Geometry, options: &MkfsOptions) -> String {
        let kind = if is_large(geometry, options) { "large zones" } else { "small zones" };
        let width = match self.width {
            1 => "superzones of 1 zone".to_owned(),
            width => format!("superzones of {width} zones"),
        };
        let logs = match self.logs {
            1 => "one log and area for all tables",
            _ => "a log and area for each table",
        };
        let sync = match self.sync_zones {
            1 => "sync log in 1 zone".to_owned(),
            zones => format!("sync log striped over {zones} zones"),
        };
        format!("{kind}: {width}, {} streams, {logs}, {sync}", self.streams)
    }

    /// The permits that logs and streams need, as the lines of a sum: each with a name
    /// and a number.
    pub(crate) fn budget(&self) -> Vec<(String, u32)> {
        let logs: &[&str] = match self.logs {
            1 => &["checkpoint ring", "delta log", "tables"],
            _ => &["checkpoint ring", "delta log of NAT", "delta log of SIT", "NAT", "SIT"],
        };
        let logs = logs.iter().map(|name| (*name, 1));
        let streams = crate::format::stream_names(self.streams);
        let streams = streams.iter().map(|name| (*name, self.width));
        let lines = logs.chain([("sync log", self.sync_zones)]).chain(streams);
        lines.map(|(name, permits)| (name.to_string(), permits)).collect()
    }

    /// The body of the superblock.
    pub(crate) fn encode(&self) -> SuperblockBody {
        let mut label = [0; 64];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        SuperblockBody {
            compat: self.compat.into(),
            ro_compat: self.ro_compat.into(),
            incompat: self.incompat.into(),
            label,
            hash_seed: self.hash_seed.into(),
            created: self.created.into(),
            zone_size: self.zone_size.into(),
            zone_capacity: self.capacity.into(),
            zones: self.zones.into(),
            ring_start: self.ring_start.into(),
            delta_start: self.delta_start.into(),
            delta_zones: self.delta_zones.into(),
            table_start: self.table_start.into(),
            table_zones: self.table_zones.into(),
            sync_start: self.sync_start.into(),
            sync_zones: self.sync_zones.into(),
            main_start: self.main_start.into(),
            superzones: self.superzones.into(),
            width: self.width.into(),
            segment_blocks: self.segment_blocks.into(),
            subsegment_blocks: self.subsegment_blocks.into(),
            unit_blocks: self.unit_blocks.into(),
            nodes: self.nodes.into(),
            streams: self.streams.into(),
            logs: self.logs.into(),
        }
    }

    /// Decodes and checks the layout in a superblock.
    pub(crate) fn decode(
        body: &SuperblockBody,
        uuid: Uuid,
        device: Uuid,
        geometry: &Geometry,
    ) -> Result<Layout> {
        Layout::read(body, uuid, device).checked(geometry).map_err(|problems| {
            let what = problems.first().map(|(field, expected, found)| {
                format!("superblock: {field} is {found}, expected {expected}")
            });
            Error::new(ErrorKind::Corrupt, what.unwrap_or_default())
        })
    }

    /// The layout that a superblock describes, unchecked.
    pub(crate) fn read(body: &SuperblockBody, uuid: Uuid, device: Uuid) -> Layout {
        Layout {
            uuid,
            device,
            label: label(body),
            compat: body.compat.get(),
            ro_compat: body.ro_compat.get(),
            incompat: body.incompat.get(),
            hash_seed: body.hash_seed.get(),
            created: body.created.get(),
            zones: body.zones.get(),
            zone_size: body.zone_size.get(),
            capacity: body.zone_capacity.get(),
            ring_start: body.ring_start.get(),
            delta_start: body.delta_start.get(),
            delta_zones: body.delta_zones.get(),
            table_start: body.table_start.get(),
            table_zones: body.table_zones.get(),
            sync_start: body.sync_start.get(),
            sync_zones: body.sync_zones.get(),
            main_start: body.main_start.get(),
            superzones: body.superzones.get(),
            width: body.width.get(),
            segment_blocks: body.segment_blocks.get(),
            subsegment_blocks: body.subsegment_blocks.get(),
            unit_blocks: body.unit_blocks.get(),
            nodes: body.nodes.get(),
            streams: body.streams.get(),
            logs: body.logs.get(),
            segments: 0,
        }
    }

    /// Returns the layout if it is possible on a drive of `geometry`, so that no later code divides
    /// by zero, accesses zones past the drive's end or allocates without bound.
    pub(crate) fn checked(mut self, geometry: &Geometry) -> Result<Layout, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut range = |field: &'static str, value: u64, low: u64, high: u64| {
            if !(low..=high).contains(&value) {
                let expected =
                    if low == high { low.to_string() } else { format!("{low} to {high}") };
                problems.push((field, expected, value));
            }
        };
        let zones = u64::from(geometry.zones);
        let capacity = u64::from(blocks_per_zone(geometry));
        range("zones", u64::from(self.zones), zones, zones);
        range("zone_size", self.zone_size, geometry.zone_size.0, geometry.zone_size.0);
        range("zone_capacity", u64::from(self.capacity), capacity, capacity);
        range("width", u64::from(self.width), 1, u64::from(WIDTH_MAX));
        let mut start = u64::from(geometry.conventional_zones);
        range("logs", u64::from(self.logs), 1, 2);
        let wide = u64::from(WIDTH_MAX);
        for (field, value, count, length, times, most) in [
            ("ring_start", self.ring_start, "", RING_ZONES, 1, 0),
            (
                "delta_start",
                self.delta_start,
                "delta_zones",
                self.delta_zones,
                2 * self.logs.min(2),
                zones,
            ),
            ("table_start", self.table_start, "table_zones", self.table_zones, 1, zones),
            ("sync_start", self.sync_start, "sync_zones", self.sync_zones, 2, wide),
            ("main_start", self.main_start, "", 0, 0, 0),
        ] {
            range(field, u64::from(value), start, start);
            if !count.is_empty() {
                range(count, u64::from(length), 1, most);
            }
            start = u64::from(value) + u64::from(times) * u64::from(length);
        }
        let main = u64::from(self.superzones) * u64::from(self.width);
        range("superzones × width", main, 1, zones);
        range("end of the main area", u64::from(self.main_start) + main, 1, zones);
        let space = (u64::from(self.width) * capacity).min(u64::from(u32::MAX));
        range("segment_blocks", u64::from(self.segment_blocks), 2, space.clamp(2, SEGMENT.into()));
        range("subsegment_blocks", u64::from(self.subsegment_blocks), 1, capacity);
        let most = unit_most(blocks_per_zone(geometry));
        range("unit_blocks", u64::from(self.unit_blocks), 1, u64::from(most));
        let most = (zones * capacity).clamp(64, u64::from(u32::MAX - 1));
        range("nodes", u64::from(self.nodes), 2, most);
        if ![2, 4, 6].contains(&self.streams) {
            problems.push(("streams", "2, 4 or 6".into(), u64::from(self.streams)));
        }
        if problems.is_empty() {
            let (sub, segment) = (self.subsegment_blocks, self.segment_blocks);
            let whole = Stripe::new(self.width, self.capacity, sub, segment);
            self.segments = whole.map_or(0, |stripe| stripe.segments());
            if self.segments == 0 {
                let expected = "a superzone below 2^32 blocks".to_owned();
                problems.push(("width", expected, u64::from(self.width)));
            }
        }
        if problems.is_empty() { Ok(self) } else { Err(problems) }
    }
}

/// A field that makes a superblock impossible: its name, what was expected, what was found.
pub(crate) type Problem = (&'static str, String, u64);

/// Number of table zones needed if `kept` zones hold all table pages: as many again are always
/// empty, so that all table pages can be rewritten, and as many again serve a merge.
fn zones_with_room(kept: u32) -> u32 {
    3 * kept
}

/// The inverse of [`zones_with_room`], but at least one if there are two or more zones.
fn zones_kept_of(zones: u32) -> u32 {
    (zones / 3).max(u32::from(zones >= 2))
}

fn half_of(start: u32, zones: u32, half: u8) -> Vec<ZoneId> {
    let first = start + u32::from(half) * zones;
    (first..first + zones).map(ZoneId).collect()
}

/// True if the drive itself stripes each zone over all dies, as far as is known.
fn is_large(geometry: &Geometry, options: &MkfsOptions) -> bool {
    let holds = geometry.zone_capacity.0 * geometry.block_size.0;
    options.large_zones.unwrap_or(holds >= LARGE_ZONE)
}

fn choose_width(geometry: &Geometry, options: &MkfsOptions, most: u32) -> Result<u32> {
    let most = most.min(WIDTH_MAX);
    if let Some(width) = options.width {
        if width == 0 || width > most {
            return Err(invalid(format!(
                "width {width}: this drive's active zones allow 1 to {most}"
            )));
        }
        return Ok(width);
    }
    if is_large(geometry, options) {
        return Ok(1);
    }
    let channels = u32::from(geometry.channels.unwrap_or(8)).max(1);
    // With few superzones, the space reserved in superzones would be a large part of the drive.
    let by_count = (geometry.zones / 32).max(1);
    Ok(channels.min(most).min(by_count).max(1))
}

/// Chooses the number of zones that sync records are spread over: many small records are in flight
/// at the same time, and a small zone takes them one after the other. `left` is the number of
/// unused active zones.
fn choose_sync(geometry: &Geometry, options: &MkfsOptions, usable: u32, left: u32) -> Result<u32> {
    let most = (left + 1).min(WIDTH_MAX);
    if let Some(zones) = options.sync_zones {
        if !(1..=most).contains(&zones) {
            return Err(invalid(format!(
                "sync log of {zones} zones: this drive's active zones allow 1 to {most}"
            )));
        }
        return Ok(zones);
    }
    if is_large(geometry, options) {
        return Ok(1);
    }
    // Most of the unused active zones are kept for streams that write much, and most of the drive
    // for files.
    Ok((1 + left / 4).min(usable / 128).clamp(1, SYNC_ZONES))
}

/// Chooses whether NAT and SIT each have a log and a table zone of their own, which must not take
/// permits from the streams. `for_streams` is the number of permits left if logs are shared,
/// `needed` is the minimum number that the streams hold, and `own` says that there are six streams
/// and zones are not large.
fn choose_logs(
    options: &MkfsOptions,
    usable: u32,
    for_streams: u32,
    needed: u32,
    own: bool,
) -> Result<u32> {
    let allowed = for_streams >= needed + 2;
    match options.logs {
        None => Ok(1 + u32::from(allowed && own && usable >= SEPARATE_ZONES)),
        Some(2) if !allowed => Err(invalid(format!(
            "two delta logs: with one log this drive has {for_streams} active zones left; {} are \
             needed",
            needed + 2
        ))),
        Some(logs @ 1..=2) => Ok(logs),
        Some(logs) => Err(invalid(format!("{logs} delta logs: expected 1 or 2"))),
    }
}

fn choose_segment(options: &MkfsOptions, capacity: u32, width: u32) -> Result<u32> {
    let space = capacity.saturating_mul(width);
    // In tiny superzones, segments are shorter, so that each superzone has at least two.
    let segment = options.segment_blocks.unwrap_or(SEGMENT.min((space / 2).max(2)));
    if segment < 2 || segment > SEGMENT.min(space) {
        return Err(invalid(format!(
            "segment of {segment} blocks: 2 to {} fit this drive's superzones",
            SEGMENT.min(space)
        )));
    }
    Ok(segment)
}

/// Maximum number of blocks in a table page: it must fit into a zone and into a record.
pub(crate) fn unit_most(capacity: u32) -> u32 {
    capacity.min(RECORD_LENGTH_MAX / BLOCK as u32)
}

fn choose_unit(options: &MkfsOptions, capacity: u32, total: u64) -> Result<u32> {
    // On large drives, larger table pages keep the index in each checkpoint short.
    let by_size = match total {
        0..0x4_0000 => 1,
        0x4_0000..0x4000_0000 => 16,
        _ => 64,
    };
    let unit = options.unit_blocks.unwrap_or(by_size);
    let most = unit_most(capacity);
    if !(1..=most).contains(&unit) {
        return Err(invalid(format!(
            "table pages of {unit} blocks: 1 to {most} fit this drive's zones"
        )));
    }
    Ok(unit)
}

fn choose_subsegment(options: &MkfsOptions, capacity: u32, segment: u32) -> Result<u32> {
    // At most a whole segment goes to one zone before the next zone, as in the widest stripe of
    // F2FS.
    let most = segment.min(capacity);
    let chosen = SUBSEGMENT.min(segment / 2).min(capacity).max(1);
    let subsegment = options.subsegment_blocks.unwrap_or(chosen);
    if subsegment < 1 || subsegment > most {
        return Err(invalid(format!(
            "subsegment of {subsegment} blocks: 1 to {most} fit this drive's segments"
        )));
    }
    Ok(subsegment)
}

#[cfg(test)]
mod tests;
