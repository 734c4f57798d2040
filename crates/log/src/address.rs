//! Block addresses: physical and dense.
//!
//! A block is 4 KiB for every size of the drive's logical blocks. Zone z's block o has address z ×
//! capacity + o: the hole between a zone's capacity and its size takes no addresses, so 32 bits
//! reach 16 TiB.

use crate::format::BLOCK_SIZE;
use furrow_rt::{Pages, Pool};
use furrow_zone::{
    BlockCount, Command, Error, ErrorKind, Geometry, Lba, QueueId, Request, Result, ZoneId,
    ZoneReport, ZoneState, ZonedDevice,
};
use std::fmt;

/// Address of a 4 KiB block of a drive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockAddr(pub u32);

/// Number of logical blocks per 4 KiB block.
pub fn sectors_per_block(geometry: &Geometry) -> u64 {
    (BLOCK_SIZE as u64 / geometry.block_size.0.max(1)).max(1)
}

/// Number of out-of-band bytes of a 4 KiB block.
pub fn oob_per_block(geometry: &Geometry) -> usize {
    sectors_per_block(geometry) as usize * usize::from(geometry.oob_bytes)
}

/// Number of 4 KiB blocks that can be written per zone.
pub fn blocks_per_zone(geometry: &Geometry) -> u32 {
    let blocks = geometry.zone_capacity.0 / sectors_per_block(geometry);
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// Number of a zone's blocks that hold written data at least in part. If logical blocks are smaller
/// than 4 KiB, a torn write can leave the last of these blocks incomplete. In a full or read-only
/// zone, all blocks count. The zone's next write begins after these blocks.
pub fn blocks_begun(report: &ZoneReport, geometry: &Geometry) -> u32 {
    let capacity = blocks_per_zone(geometry);
    match report.state {
        ZoneState::Offline | ZoneState::Empty => 0,
        ZoneState::Full | ZoneState::ReadOnly => capacity,
        _ => {
            let blocks = report.write_pointer.0.div_ceil(sectors_per_block(geometry));
            blocks.min(u64::from(capacity)) as u32
        }
    }
}

/// Number of whole blocks written in a zone.
pub fn blocks_written(report: &ZoneReport, geometry: &Geometry) -> u32 {
    let whole = report.write_pointer.0 / sectors_per_block(geometry);
    match report.state {
        ZoneState::Full | ZoneState::ReadOnly => blocks_begun(report, geometry),
        _ => blocks_begun(report, geometry).min(u32::try_from(whole).unwrap_or(u32::MAX)),
    }
}

/// Size in 4 KiB blocks of the largest command to use: the drive's limit, at most 1 MiB.
pub(crate) fn blocks_per_command(geometry: &Geometry) -> u32 {
    let most = (1 << 20) / BLOCK_SIZE as u64;
    let limit =
        geometry.max_transfer.map_or(most, |sectors| sectors.0 / sectors_per_block(geometry));
    limit.clamp(1, most) as u32
}

impl BlockAddr {
    /// Stands for no block: a hole of a file, or a pointer that is not set.
    pub const HOLE: BlockAddr = BlockAddr(u32::MAX);

    /// Builds the address of block `offset` of `zone`.
    ///
    /// # Panics
    /// If the drive has more blocks than addresses: [`BlockAddr::check`] it first.
    pub fn new(geometry: &Geometry, zone: ZoneId, offset: u32) -> BlockAddr {
        let capacity = blocks_per_zone(geometry);
        debug_assert!(offset < capacity, "offset {offset} of a zone of {capacity}");
        let address = u64::from(zone.0) * u64::from(capacity) + u64::from(offset);
        BlockAddr(u32::try_from(address).expect("invariant: the drive fits 32-bit addresses"))
    }

    /// Checks that every block of a drive of `geometry` has an address.
    ///
    /// # Errors
    /// `Unsupported` if the drive is larger than 16 TiB, its logical blocks are neither 512 bytes
    /// nor 4 KiB, or its zones are smaller than 4 KiB.
    pub fn check(geometry: &Geometry) -> Result<()> {
        let size = geometry.block_size.0;
        if !matches!(size, 512 | 4096) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("logical blocks of {size} bytes: only 512 and 4096 are supported"),
            ));
        }
        if blocks_per_zone(geometry) == 0 {
            let capacity = geometry.zone_capacity;
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("zones of {capacity} logical blocks hold no block of 4 KiB"),
            ));
        }
        let blocks = u64::from(geometry.zones) * u64::from(blocks_per_zone(geometry));
        if blocks >= u64::from(u32::MAX) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{blocks} blocks of 4 KiB: at most 2^32 - 1 (16 TiB) are supported"),
            ));
        }
        Ok(())
    }

    /// True for [`BlockAddr::HOLE`].
    pub fn is_hole(self) -> bool {
        self == BlockAddr::HOLE
    }

    /// Returns the block's zone without checking it against the drive; addresses read from media go
    /// through [`BlockAddr::locate`].
    pub fn zone(self, geometry: &Geometry) -> ZoneId {
        ZoneId(self.0 / blocks_per_zone(geometry))
    }

    /// The block's offset in its zone.
    pub fn offset(self, geometry: &Geometry) -> u32 {
        self.0 % blocks_per_zone(geometry)
    }

    /// Returns zone and offset; `None` if the drive has no such block.
    pub fn locate(self, geometry: &Geometry) -> Option<(ZoneId, u32)> {
        let zone = self.0 / blocks_per_zone(geometry).max(1);
        (zone < geometry.zones).then(|| (self.zone(geometry), self.offset(geometry)))
    }

    /// The block's first logical block.
    pub fn lba(self, geometry: &Geometry) -> Lba {
        let start = geometry.start(self.zone(geometry)).0;
        Lba(start + u64::from(self.offset(geometry)) * sectors_per_block(geometry))
    }

    /// Returns the address `blocks` blocks further on.
    #[must_use]
    pub fn plus(self, blocks: u32) -> BlockAddr {
        BlockAddr(self.0.saturating_add(blocks))
    }
}

impl fmt::Display for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_hole() { f.write_str("hole") } else { write!(f, "{}", self.0) }
    }
}

impl fmt::Debug for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads `blocks` blocks from `from` on. Each command is at most as long as the drive allows and
/// stays in one zone; all commands are in flight at once. Pages come from `pool`.
///
/// # Errors
/// `Corrupt` if the drive has no such blocks or reports that they were never written; otherwise
/// `Io` with the drive's status.
pub async fn read_blocks(
    device: &dyn ZonedDevice,
    queue: QueueId,
    from: BlockAddr,
    blocks: u32,
    pool: &Pool,
) -> Result<Pages> {
    let geometry = device.geometry();
    let (sectors, capacity) = (sectors_per_block(geometry), blocks_per_zone(geometry));
    let most = blocks_per_command(geometry);
    let mut flights: smallvec::SmallVec<[_; 1]> = smallvec::SmallVec::new();
    let mut at = from;
    let mut left = blocks;
    while left > 0 {
        let Some((zone, offset)) = at.locate(geometry) else {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("{}: block address {at} is past the end of the drive", device.name()),
            ));
        };
        let count = left.min(most).min(capacity - offset);
        let data: Pages = (0..count).map(|_| pool.take_dirty()).collect();
        let command =
            Command::Read { lba: at.lba(geometry), blocks: BlockCount(u64::from(count) * sectors) };
        flights.push((
            zone,
            offset,
            count,
            device.submit(queue, Request::with_data(command, data)),
        ));
        (at, left) = (at.plus(count), left - count);
    }
    let mut pages = Pages::new();
    for (zone, offset, count, flight) in flights {
        let outcome = flight.await;
        if !outcome.status.is_ok() || outcome.data.len() != count as usize {
            let what = format!("read of {count} blocks at zone {zone} offset {offset}");
            return Err(Error::device(&device.name(), what, outcome.status));
        }
        if pages.is_empty() {
            pages = outcome.data;
        } else {
            pages.extend(outcome.data);
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{Toy, geometry};
    use crate::writer::{Kind, Order, Writer, ZoneWrite};
    use furrow_rt::{Config, Page, Rt};
    use furrow_zone::ByteLen;
    use proptest::prelude::*;

    /// Every block has one address, and addresses leave no gaps. A block's address leads back to
    /// the block, and so does its first logical block, even if the zones' capacity is odd.
    #[test]
    fn addresses_are_dense_and_one_to_one() {
        for (capacity, sector) in [(13, 4096), (16, 4096), (8 * 13 + 5, 512)] {
            let mut shape = geometry(7, capacity);
            shape.block_size = ByteLen(sector);
            let per_zone = blocks_per_zone(&shape);
            let mut expected = 0;
            for zone in (0..7).map(ZoneId) {
                for offset in 0..per_zone {
                    let address = BlockAddr::new(&shape, zone, offset);
                    assert_eq!(address, BlockAddr(expected));
                    assert_eq!(address.locate(&shape), Some((zone, offset)));
                    assert_eq!((address.zone(&shape), address.offset(&shape)), (zone, offset));
                    let (at, sectors) = shape.locate(address.lba(&shape)).unwrap();
                    assert_eq!((at, sectors.0), (zone, u64::from(offset) * 4096 / sector));
                    expected += 1;
                }
            }
            assert_eq!(BlockAddr(expected).locate(&shape), None);
            assert_eq!(BlockAddr::HOLE.locate(&shape), None);
        }
    }

    #[test]
    fn drives_without_addresses_are_refused() {
        let refused = |change: fn(&mut Geometry)| {
            let mut shape = geometry(7, 16);
            assert!(BlockAddr::check(&shape).is_ok());
            change(&mut shape);
            BlockAddr::check(&shape).unwrap_err().to_string()
        };
        assert!(refused(|shape| shape.block_size = ByteLen(8192)).contains("8192"));
        assert!(refused(|shape| shape.zones = u32::MAX / 16 + 1).contains("16 TiB"));
        assert!(refused(|shape| shape.zone_capacity = BlockCount(0)).contains("no block"));
    }

    proptest! {
        /// A read of any range returns the blocks of that range, across zones and commands.
        #[test]
        fn reads_span_zones_and_commands(
            from in 0..39u32, blocks in 0..60u32, seed in any::<u64>(),
        ) {
            let rt = Rt::new(Config::shuffled(seed));
            let toy = Toy::on(&rt, geometry(3, 13), seed);
            let writer = Writer::new(&rt, toy.clone(), Order::Queued, 3);
            for zone in 0..3u8 {
                writer.open_empty(ZoneId(zone.into()));
                let pages: Pages =
                    (0..13u8).map(|offset| Page::from_slice(&[zone, offset])).collect();
                drop(writer.submit(ZoneWrite::pages(ZoneId(zone.into()), Kind::Data, pages)));
            }
            let read = rt.block_on(async move {
                writer.drain().await.unwrap();
                read_blocks(&*toy, QueueId(1), BlockAddr(from), blocks, &Pool::new(4)).await
            });
            rt.clear();
            if from + blocks > 39 {
                prop_assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt);
            } else {
                let found: Vec<[u8; 2]> =
                    read.unwrap().iter().map(|page| [page[0], page[1]]).collect();
                let expected: Vec<[u8; 2]> =
                    (from..from + blocks).map(|at| [(at / 13) as u8, (at % 13) as u8]).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
