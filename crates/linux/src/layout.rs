//! Converts the kernel's zone descriptors and limits to a [`Geometry`] and to zone reports in
//! its units.
//!
//! Conventional zones are used only if they come before all sequential zones. Conventional zones
//! elsewhere are reported offline and without capacity, so that no engine uses them. A smaller last
//! zone is left out.

use crate::ioctl::{CONVENTIONAL, Descriptor, SECTOR};
use crate::sysfs::Limits;
use furrow_zone::{BlockCount, ByteLen, Geometry, ZoneId, ZoneReport, ZoneState};

/// Maximum number of bytes in a command: larger commands gain nothing, and the pages of such a
/// command fit into one list of memory pieces.
const LARGEST: u64 = 1 << 20;
const PAGE: u64 = furrow_rt::PAGE_SIZE as u64;

/// The geometry of a drive with these limits and zones.
///
/// # Errors
/// A sentence that says why, if the engines cannot use such a drive.
pub(crate) fn geometry(limits: &Limits, zones: &[Descriptor]) -> Result<Geometry, String> {
    let block = limits.logical_block.max(limits.write_granularity);
    if !matches!(block, 512 | 4096) {
        return Err(format!(
            "it is written in units of {block} bytes, but only 512 and 4096 can be used: format it \
             with such blocks (nvme format, sg_format)"
        ));
    }
    let size = zones.first().map_or(0, |zone| zone.length);
    let sectors = block / SECTOR;
    if size == 0 || !size.is_multiple_of(sectors) || limits.zone_sectors != size {
        return Err(format!(
            "its first zone has {size} sectors, but the kernel's chunk_sectors is {}: they must be \
             equal, and a multiple of the block of {block} bytes",
            limits.zone_sectors
        ));
    }
    let usable = zones.iter().take_while(|zone| zone.length == size).count();
    if usable + 1 < zones.len() {
        return Err(format!(
            "zone {usable} has {} sectors and zone 0 has {size}: only the last may differ",
            zones[usable].length
        ));
    }
    let zones = &zones[..usable];
    let conventional = zones.iter().take_while(|zone| zone.kind == CONVENTIONAL).count();
    let sequential = zones.iter().filter(|zone| zone.kind != CONVENTIONAL);
    let Some(capacity) = sequential.map(capacity).max() else {
        return Err("all its zones are conventional".to_owned());
    };
    let limit = |limit: u32| (limit > 0).then_some(limit);
    let max_active = limit(limits.max_active);
    let max_open = match (limit(limits.max_open), max_active) {
        (Some(open), Some(active)) => Some(open.min(active)),
        (open, active) => open.or(active),
    };
    let transfer = LARGEST.min(limits.max_kib.saturating_mul(1024)).min(limits.max_segments * PAGE)
        / PAGE
        * PAGE;
    let geometry = Geometry {
        zones: u32::try_from(usable).map_err(|_| format!("it has {usable} zones"))?,
        zone_size: BlockCount(size / sectors),
        zone_capacity: BlockCount(capacity / sectors),
        block_size: ByteLen(block),
        oob_bytes: 0,
        conventional_zones: conventional as u32,
        max_open,
        max_active,
        // Only the kernel's own file systems can append.
        max_append: Some(BlockCount(0)),
        max_transfer: Some(BlockCount(transfer.max(PAGE) / block)),
        read_across_zones: false,
        // Some drives return zeros, others an error, and the kernel does not say which.
        unwritten_reads_fail: true,
        volatile_cache: limits.write_back,
        channels: None,
        dies: None,
    };
    geometry.validate().map_err(|error| error.to_string())?;
    Ok(geometry)
}

/// The geometry that stands for a drive of `size` bytes without zones: one conventional zone with
/// blocks of 4 KiB. `limits` are those of a block device; a file has none.
///
/// # Errors
/// A sentence that says why, if the drive cannot be used.
pub(crate) fn plain_geometry(size: u64, limits: Option<&Limits>) -> Result<Geometry, String> {
    let mut transfer = LARGEST;
    if let Some(limits) = limits {
        if limits.logical_block > PAGE {
            let block = limits.logical_block;
            return Err(format!("it has blocks of {block} bytes, but at most 4096 can be used"));
        }
        transfer = transfer.min(limits.max_kib.saturating_mul(1024));
        transfer = transfer.min(limits.max_segments * PAGE);
    }
    let blocks = size / PAGE;
    let geometry = Geometry {
        conventional_zones: 1,
        max_append: Some(BlockCount(0)),
        max_transfer: Some(BlockCount((transfer / PAGE).max(1))),
        volatile_cache: true,
        ..Geometry::unlimited(1, blocks, blocks)
    };
    geometry.validate().map_err(|_| format!("{size} bytes: too small"))?;
    Ok(geometry)
}

/// Number of sectors that can be written in a zone.
fn capacity(zone: &Descriptor) -> u64 {
    if zone.capacity == 0 { zone.length } else { zone.capacity.min(zone.length) }
}

/// The report of `zone`, from the kernel's descriptor.
pub(crate) fn zone_report(geometry: &Geometry, zone: ZoneId, from: &Descriptor) -> ZoneReport {
    let sectors = geometry.block_size.0 / SECTOR;
    let capacity = BlockCount(capacity(from) / sectors);
    let none = BlockCount(0);
    let (state, capacity, write_pointer) = match (state(from), from.kind == CONVENTIONAL) {
        (Some(state @ (ZoneState::ReadOnly | ZoneState::Offline)), _) => (state, capacity, none),
        (_, true) if geometry.is_conventional(zone) => (ZoneState::Full, capacity, capacity),
        (_, true) | (None, _) => (ZoneState::Offline, none, none),
        (Some(ZoneState::Full), _) => (ZoneState::Full, capacity, capacity),
        (Some(state), _) => {
            // If part of a block is written, the rest of that block can no longer be used.
            let written = from.write_pointer.saturating_sub(from.start).div_ceil(sectors);
            (state, capacity, BlockCount(written.min(capacity.0)))
        }
    };
    ZoneReport { zone, state, capacity, write_pointer }
}

/// The state of a zone, from its condition (`enum blk_zone_cond`). `None` for a zone without a
/// write pointer, or for a condition that only a newer kernel knows.
pub(crate) fn state(zone: &Descriptor) -> Option<ZoneState> {
    Some(match zone.condition {
        1 => ZoneState::Empty,
        2 => ZoneState::ImplicitlyOpen,
        3 => ZoneState::ExplicitlyOpen,
        4 => ZoneState::Closed,
        0xd => ZoneState::ReadOnly,
        0xe => ZoneState::Full,
        0xf => ZoneState::Offline,
        // "Active", from the kernel's cache: the zone is open or closed.
        0xff => ZoneState::ImplicitlyOpen,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1024;

    fn limits() -> Limits {
        Limits { zone_sectors: SIZE, max_open: 4, max_active: 8, ..Limits::example() }
    }

    fn zone(number: u64, kind: u8, condition: u8) -> Descriptor {
        let (start, length) = (number * SIZE, SIZE);
        Descriptor { start, length, write_pointer: start, kind, condition, ..Default::default() }
    }

    fn smr() -> Vec<Descriptor> {
        let mut zones: Vec<_> = (0..2).map(|number| zone(number, CONVENTIONAL, 0)).collect();
        zones.extend((2..6).map(|number| zone(number, 2, 1)));
        zones[4].kind = CONVENTIONAL;
        zones.push(Descriptor { length: 100, ..zone(6, 2, 1) });
        zones
    }

    #[test]
    fn an_smr_disk_has_conventional_zones_in_front_and_no_small_last_zone() {
        let found = geometry(&limits(), &smr()).expect("usable");
        assert_eq!((found.zones, found.conventional_zones), (6, 2));
        assert_eq!((found.zone_size, found.zone_capacity), (BlockCount(128), BlockCount(128)));
        assert_eq!((found.block_size, found.append_limit()), (ByteLen(4096), Some(BlockCount(0))));
        assert_eq!(found.max_transfer, Some(BlockCount(127)));
        let report = |number: u32| zone_report(&found, ZoneId(number), &smr()[number as usize]);
        assert_eq!((report(0).state, report(0).write_pointer.0), (ZoneState::Full, 128));
        assert_eq!((report(4).state, report(4).capacity.0), (ZoneState::Offline, 0));
        assert_eq!((report(2).state, report(2).write_pointer.0), (ZoneState::Empty, 0));
    }

    #[test]
    fn states_and_write_pointers_are_read() {
        let found = geometry(&limits(), &smr()).expect("usable");
        let state = |condition, written| {
            let mut from = zone(3, 2, condition);
            from.write_pointer += written;
            from.capacity = 800;
            let report = zone_report(&found, ZoneId(3), &from);
            (report.state, report.write_pointer.0, report.capacity.0)
        };
        assert_eq!(state(2, 16), (ZoneState::ImplicitlyOpen, 2, 100));
        assert_eq!(state(3, 17), (ZoneState::ExplicitlyOpen, 3, 100));
        assert_eq!(state(4, 800), (ZoneState::Closed, 100, 100));
        assert_eq!(state(0xe, 8), (ZoneState::Full, 100, 100));
        assert_eq!(state(0xd, 8), (ZoneState::ReadOnly, 0, 100));
        assert_eq!(state(0xf, 8), (ZoneState::Offline, 0, 100));
        assert_eq!(state(0xff, 8), (ZoneState::ImplicitlyOpen, 1, 100));
        assert_eq!(state(0x77, 8), (ZoneState::Offline, 0, 0), "of a newer kernel: hands off");
    }

    #[test]
    fn drives_that_cannot_be_used_say_why() {
        let refusal = |limits: &Limits, zones: &[Descriptor]| geometry(limits, zones).unwrap_err();
        let coarse = Limits { write_granularity: 16_384, ..limits() };
        assert!(refusal(&coarse, &smr()).contains("units of 16384 bytes"));
        assert!(refusal(&limits(), &[]).contains("0 sectors"));
        assert!(refusal(&limits(), &smr()[..2]).contains("conventional"));
        let mut ragged = smr();
        ragged[3].length = 8;
        assert!(refusal(&limits(), &ragged).contains("zone 3 has 8 sectors"));
    }

    #[test]
    fn without_limits_none_are_made_up() {
        let free = Limits { max_open: 0, max_active: 0, max_kib: u64::MAX, ..limits() };
        let found = geometry(&free, &smr()).expect("usable");
        assert_eq!((found.max_open, found.max_active), (None, None));
        let active = Limits { max_open: 0, ..limits() };
        let found = geometry(&active, &smr()).expect("usable");
        assert_eq!((found.max_open, found.max_active), (Some(8), Some(8)));
    }
}
