//! Reads blocks and records of the sync log, many at a time.

use super::read::{Found, written};
use super::sync_items::{Item, parse_item};
use crate::durability::namespace_log::Decoder;
use crate::format::{BLOCK, Pointer, kind};
use crate::tree::node;
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::record::{self, Expect, RecordHeader};
use furrow_rt::buf::is_zero;
use furrow_rt::{Page, Pool};
use furrow_zone::{Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneState, ZonedDevice};
use std::collections::BTreeSet;
use std::future::Future;
use std::task::Poll;
use zerocopy::IntoBytes;

/// Number of blocks of the log read in one batch.
const AHEAD: u32 = 128;

/// Largest number of node or data blocks read at the same time.
const READS: usize = 64;

/// A place in the log: the half, and the number of the block in the half, in striping order.
pub(super) type Place = (u8, u32);

/// A reader of the sync log.
pub(super) struct LogReader<'a> {
    pub(super) device: &'a dyn ZonedDevice,
    pub(super) found: &'a Found,
    pub(super) pages: &'a Pool,
    /// The half of the log that the last batch of blocks is from.
    half: u8,
    /// The first block of the last batch.
    first: u32,
    /// The last batch of blocks; `None` for a block that is not written or could not be read.
    blocks: Vec<Option<Page>>,
    /// Address and CRC of nodes that were read many at a time and found whole. Those of their
    /// blocks that may have been lost were found whole too. These nodes are not read again.
    whole: BTreeSet<(u32, u32)>,
    /// Blocks that may have been lost and were found whole: address and CRC.
    data: BTreeSet<(u32, u32)>,
}

/// The content of a place in the log.
pub(super) enum Read {
    /// A whole record of this file system: its header and its body.
    Whole(RecordHeader, Vec<u8>),
    /// Nothing was written there, or a crash cut the record off: the drive has only its beginning.
    Nothing,
    /// Something was written there completely, but it is not a whole record: the reason, and
    /// its blocks.
    Damaged(String, Vec<u8>),
}

impl<'a> LogReader<'a> {
    pub(super) fn new(
        device: &'a dyn ZonedDevice,
        found: &'a Found,
        pages: &'a Pool,
    ) -> LogReader<'a> {
        LogReader {
            device,
            found,
            pages,
            half: 0,
            first: 0,
            blocks: Vec::new(),
            whole: BTreeSet::new(),
            data: BTreeSet::new(),
        }
    }

    /// The zone and the block in it for a place; `None` past the end of the half.
    pub(super) fn locate(&self, (half, at): Place) -> Option<(ZoneId, u32)> {
        let layout = &self.found.layout;
        let stripe = layout.sync_stripe();
        (at < stripe.blocks()).then(|| {
            let (column, offset) = stripe.place(at);
            (layout.sync_zone(half, column), offset)
        })
    }

    /// Names a place in messages.
    pub(super) fn name(&self, place: Place) -> String {
        match self.locate(place) {
            Some((zone, offset)) => format!("zone {zone} offset {offset}"),
            None => "the log's end".to_owned(),
        }
    }

    fn state(&self, zone: ZoneId) -> ZoneState {
        self.found.reports[zone.0 as usize].state
    }

    /// True if the write pointer of `zone` says nothing about its content.
    pub(super) fn is_doubtful(&self, zone: ZoneId) -> bool {
        matches!(self.state(zone), ZoneState::Full | ZoneState::ReadOnly)
    }

    /// Whether the log may continue in the other half. If the first zone of the other half is
    /// offline, the other half can hold an acknowledged record only if `half` is full, because
    /// `half` is filled first.
    pub(super) fn may_continue(&self, half: u8) -> bool {
        let first = self.found.layout.sync_zone(1 - half, 0);
        self.state(first) != ZoneState::Offline || !self.has_room(half)
    }

    /// Whether a zone of `half` can still be written.
    pub(super) fn has_room(&self, half: u8) -> bool {
        let layout = &self.found.layout;
        layout.sync_half(half).into_iter().any(|zone| {
            let report = &self.found.reports[zone.0 as usize];
            let end = written(report, self.device.geometry());
            report.state.is_active() && end < layout.capacity
        })
    }

    /// Whether the write pointers of all zones of `half` show what was written.
    pub(super) fn is_exact(&self, half: u8) -> bool {
        let exact = |state: ZoneState| state.is_active() || state == ZoneState::Empty;
        self.found.layout.sync_half(half).into_iter().all(|zone| exact(self.state(zone)))
    }

    /// Whether the write pointer says that the block at `place` was written.
    pub(super) fn is_written(&self, place: Place) -> bool {
        self.locate(place).is_some_and(|(zone, offset)| {
            offset < written(&self.found.reports[zone.0 as usize], self.device.geometry())
        })
    }

    /// Whether the block at `place` contains only zeros.
    ///
    /// # Errors
    /// The errors of [`LogReader::block`].
    pub(super) async fn is_zeros(&mut self, place: Place) -> Result<bool> {
        let block = self.block(place).await?;
        Ok(block.is_some_and(|block| is_zero(block.bytes())))
    }

    /// Reads the block at a place; `None` if the drive has no block there.
    ///
    /// # Errors
    /// If the drive cannot read the block.
    pub(super) async fn block(&mut self, place: Place) -> Result<Option<Page>> {
        let Some((zone, offset)) = self.locate(place) else { return Ok(None) };
        if offset >= written(&self.found.reports[zone.0 as usize], self.device.geometry()) {
            return Ok(None);
        }
        match self.ahead(place).await {
            Some(block) => Ok(Some(block)),
            None => self.read_one(BlockAddr::new(self.device.geometry(), zone, offset)).await,
        }
    }

    /// Returns block `at` of a half, reading it together with the following blocks; `None` if
    /// that fails.
    async fn ahead(&mut self, (half, at): Place) -> Option<Page> {
        let known = self.first..self.first + self.blocks.len() as u32;
        if half != self.half || !known.contains(&at) {
            (self.half, self.first, self.blocks) = (half, at, Vec::new());
            self.fill().await;
            self.check_nodes().await;
        }
        self.blocks.get((at - self.first) as usize).cloned().flatten()
    }

    async fn fill(&mut self) {
        let layout = &self.found.layout;
        let (stripe, zones) = (layout.sync_stripe(), layout.sync_half(self.half));
        let geometry = self.device.geometry();
        let upto = (self.first + AHEAD).min(stripe.blocks());
        self.blocks.resize((upto - self.first) as usize, None);
        for (column, zone) in zones.iter().enumerate() {
            let end = written(&self.found.reports[zone.0 as usize], geometry);
            let places = (self.first..upto).map(|at| (at, stripe.place(at)));
            let own: Vec<(u32, u32)> = places
                .filter(|(_, (of, offset))| *of as usize == column && *offset < end)
                .map(|(at, (_, offset))| (at, offset))
                .collect();
            let Some((_, first)) = own.first().copied() else { continue };
            let addr = BlockAddr::new(geometry, *zone, first);
            // Blocks that cannot be read in this batch are read one by one when they are needed.
            let read = read_blocks(self.device, QueueId(0), addr, own.len() as u32, self.pages);
            for ((at, _), page) in own.iter().zip(read.await.into_iter().flatten()) {
                self.blocks[(at - self.first) as usize] = Some(page);
            }
        }
    }

    /// Reads the content of a place in the log.
    ///
    /// # Errors
    /// If the drive cannot read the place, or if its zone is offline and may have held the last
    /// syncs.
    pub(super) async fn record(&mut self, (half, at): Place) -> Result<Read> {
        let layout = &self.found.layout;
        let (mut bytes, mut header): (Vec<u8>, Option<RecordHeader>) = (Vec::new(), None);
        let (mut doubtful, mut read) = (false, 0);
        while read < header.as_ref().map_or(1, RecordHeader::blocks) {
            let Some((zone, _)) = self.locate((half, at.saturating_add(read))) else {
                return Ok(self.cut_off(header.as_ref(), bytes));
            };
            if self.state(zone) == ZoneState::Offline && !self.found.image.is_clean() {
                // The zone may have held the records acknowledged last; nothing shows whether
                // it did.
                let message = format!(
                    "{}: sync log: zone {zone} is offline and may have held the last syncs",
                    self.device.name()
                );
                return Err(Error::new(ErrorKind::Io, message));
            }
            let Some(block) = self.block((half, at + read)).await? else {
                return Ok(self.cut_off(header.as_ref(), bytes));
            };
            doubtful |= self.is_doubtful(zone);
            let zeros = is_zero(block.bytes());
            if zeros && (read == 0 || self.is_doubtful(zone)) {
                return Ok(self.cut_off(header.as_ref(), bytes));
            }
            bytes.extend_from_slice(block.bytes());
            if read == 0 {
                header = record::peek(block.bytes());
                if header.is_none() {
                    return Ok(Read::Damaged("no record header".into(), bytes));
                }
            }
            read += 1;
        }
        let expect =
            Expect { kind: kind::SYNC, device: Some(layout.device), object: Some(layout.uuid) };
        let of_another =
            header.as_ref().is_some_and(|h| h.epoch != self.found.image.body.sync_epoch);
        let used = header.map_or(0, |header| header.length.get() as usize);
        Ok(match record::open(&bytes, &expect) {
            Ok((header, body)) => Read::Whole(header, body.to_vec()),
            // After a crash, a mount continued the log inside the record that the crash had
            // cut off.
            Err(_) if of_another && ends_early(&bytes) => Read::Nothing,
            Err(_) if doubtful && self.is_cut_off(&bytes, used) => Read::Nothing,
            Err(error) => Read::Damaged(error.to_string(), bytes),
        })
    }

    /// Decides whether an incomplete record was cut off or is damaged; `bytes` are the blocks of
    /// the record that the drive has. A crash cut the record off, unless its items show that the
    /// record is complete and its length field is damaged.
    fn cut_off(&self, header: Option<&RecordHeader>, bytes: Vec<u8>) -> Read {
        let Some(header) = header else { return Read::Nothing };
        let mut input = Decoder(&bytes[RecordHeader::SIZE..]);
        while input.0.first().is_some_and(|tag| *tag != 0) {
            let before = input.0;
            if parse_item(&mut input, &self.found.layout).is_none() {
                input.0 = before;
                break;
            }
        }
        let length = bytes.len() - input.0.len();
        let whole = RecordHeader { length: (length as u32).into(), ..*header };
        let mut bare = whole;
        bare.crc = 0.into();
        let crc = record::crc32c(bare.as_bytes());
        match record::crc32c_append(crc, &bytes[RecordHeader::SIZE..length]) == header.crc.get() {
            true => Read::Damaged(format!("a length other than its {length} bytes"), bytes),
            false => Read::Nothing,
        }
    }

    /// True if a power cut may have torn one of the blocks in `bytes`, whose first `used` bytes
    /// have content. In a torn block, the last sector that should have content holds zeros.
    fn is_cut_off(&self, bytes: &[u8], used: usize) -> bool {
        let size = self.device.geometry().block_size.0 as usize;
        let torn = |block: &[u8]| is_zero(&block[(block.len() - 1) / size * size..]);
        size < BLOCK && bytes[..used.min(bytes.len())].chunks(BLOCK).any(torn)
    }

    /// Reads one block; `None` if the drive reports it as missing.
    ///
    /// # Errors
    /// If the drive cannot read the block: continuing without it could lose acknowledged data.
    pub(super) async fn read_one(&self, addr: BlockAddr) -> Result<Option<Page>> {
        match read_blocks(self.device, QueueId(0), addr, 1, self.pages).await {
            Ok(mut block) => Ok(block.pop()),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error.at("sync log")),
        }
    }

    /// True if a node is known to be whole, as are all its blocks that may have been lost.
    pub(super) fn knows_node(&self, addr: u32, crc: u32) -> bool {
        self.whole.contains(&(addr, crc))
    }

    /// True if a block is known to be whole.
    pub(super) fn knows_block(&self, addr: u32, crc: u32) -> bool {
        self.data.contains(&(addr, crc))
    }

    /// Checks the nodes and pointers of the records in `blocks` before the scan reaches these
    /// records. The scan then checks only the nodes and pointers again that were not found whole.
    async fn check_nodes(&mut self) {
        let (device, found) = (self.device, self.found);
        let geometry = device.geometry();
        let closed = |addr: u32| {
            let zone = BlockAddr(addr).locate(geometry).map(|(zone, _)| zone.0 as usize);
            let state = zone.and_then(|zone| found.reports.get(zone)).map(|report| report.state);
            matches!(state, Some(ZoneState::Full | ZoneState::ReadOnly))
        };
        if !found.reports.iter().any(|report| report.state == ZoneState::Full) {
            return;
        }
        let lost = |pointer: Pointer| {
            let (at, crc) = (pointer.addr.get(), pointer.crc.get());
            (closed(at) && new_since(found, geometry, BlockAddr(at))).then_some((at, crc))
        };
        let (mut named, mut wanted) = (Vec::new(), Vec::new());
        for block in self.blocks.iter().flatten() {
            let length = record::peek(block.bytes()).map_or(0, |header| header.length.get());
            let body = block.bytes().get(RecordHeader::SIZE..length as usize);
            let mut input = Decoder(body.unwrap_or_default());
            // The items end at the first bytes that are not an item.
            while let Some(parsed) = parse_item(&mut input, &found.layout) {
                match parsed {
                    Item::Node(nid, entry) => named.push((nid, entry)),
                    Item::Change(change) => wanted.extend(change.pointers().filter_map(lost)),
                    _ => {}
                }
            }
        }
        self.read_data(wanted).await;
        named.retain(|(_, entry)| !self.whole.contains(&(entry.addr.get(), entry.crc.get())));
        named.sort_unstable_by_key(|(nid, entry)| (entry.addr.get(), *nid));
        named.dedup_by_key(|(nid, entry)| (entry.addr.get(), *nid));
        for some in named.chunks(READS) {
            let addrs: Vec<u32> = some.iter().map(|(_, entry)| entry.addr.get()).collect();
            let read = read_each(device, &addrs, self.pages).await;
            let mut nodes = Vec::new();
            for ((nid, entry), page) in some.iter().zip(read) {
                let Some(page) = page else { continue };
                let (addr, crc) = (entry.addr.get(), entry.crc.get());
                if record::crc32c(page.bytes()) != crc
                    || node::check(&page, *nid, entry.ino.get()).is_err()
                {
                    continue;
                }
                let pointers = node::pointers(&page).into_iter().map(|(_, p)| p);
                let lost: Vec<(u32, u32)> = pointers.filter_map(lost).collect();
                nodes.push(((addr, crc), lost));
            }
            let wanted = nodes.iter().flat_map(|(_, lost)| lost).copied().collect();
            self.read_data(wanted).await;
            let whole = nodes.iter().filter(|(_, lost)| lost.iter().all(|b| self.data.contains(b)));
            self.whole.extend(whole.map(|(node, _)| *node));
        }
    }

    /// Reads the blocks `wanted`, given by address and CRC, and notes which of them are whole.
    async fn read_data(&mut self, mut wanted: Vec<(u32, u32)>) {
        wanted.retain(|block| !self.data.contains(block));
        wanted.sort_unstable();
        wanted.dedup();
        for some in wanted.chunks(READS) {
            let addrs: Vec<u32> = some.iter().map(|(addr, _)| *addr).collect();
            let read = read_each(self.device, &addrs, self.pages).await;
            for (block, page) in some.iter().zip(read) {
                if page.is_some_and(|page| record::crc32c(page.bytes()) == block.1) {
                    self.data.insert(*block);
                }
            }
        }
    }
}

/// Whether one of the record's later blocks holds only zeros or the header of another record.
fn ends_early(bytes: &[u8]) -> bool {
    let other = |block: &[u8]| is_zero(block) || record::peek(block).is_some();
    bytes.chunks(BLOCK).skip(1).any(other)
}

/// True if a block may be newer than the checkpoint: it lies behind the position of the head in its
/// superzone, or the checkpoint has no head in that superzone. A power cut can lose only such
/// blocks. An older block that was damaged must not end the log.
pub(super) fn new_since(found: &Found, geometry: &Geometry, addr: BlockAddr) -> bool {
    let Some((zone, offset)) = addr.locate(geometry) else { return true };
    let Some(superzone) = found.layout.superzone_of(zone) else { return true };
    let stream = found.image.heads.iter().find(|s| s.superzone == Some(superzone));
    let Some(stream) = stream else { return true };
    // The stripe is narrower if zones of the superzone are missing.
    let missing = found.image.descriptors[superzone as usize].missing.get();
    let at = zone.0 - found.layout.superzone_start(superzone);
    let before = (missing & ((1 << at) - 1)).count_ones();
    let width = found.layout.width - missing.count_ones().min(found.layout.width - 1);
    found.layout.stripe(width).index((at - before).min(width - 1), offset) >= stream.next
}

/// Reads the blocks at these addresses in parallel; `None` for each block that cannot be read.
async fn read_each(device: &dyn ZonedDevice, addrs: &[u32], pages: &Pool) -> Vec<Option<Page>> {
    let mut flights: Vec<_> = addrs
        .iter()
        .map(|addr| Box::pin(read_blocks(device, QueueId(0), BlockAddr(*addr), 1, pages)))
        .collect();
    let mut read: Vec<Option<Option<Page>>> = vec![None; addrs.len()];
    std::future::poll_fn(|cx| {
        for (flight, read) in flights.iter_mut().zip(&mut read) {
            if read.is_none()
                && let Poll::Ready(answer) = flight.as_mut().poll(cx)
            {
                *read = Some(answer.ok().and_then(|mut pages| pages.pop()));
            }
        }
        if read.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    read.into_iter().map(Option::flatten).collect()
}
