//! Reading the sync log, as far as it counts.

use super::read::{Found, written};
use crate::durability::namespace_log::{Decoder, NameOp};
use crate::durability::node_change::NodeChange;
use crate::format::{HEADS_PER_STREAM, NatEntry, Pointer, item, kind};
use crate::tree::node;
use crate::tree::xattr::Xattrs;
use crate::types::{Ino, SetAttr};
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::format::Descriptor;
use furrow_log::pool::SuperzoneState;
use furrow_log::record::{self, Expect};
use furrow_rt::{Page, Pool};
use furrow_zone::{Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneState, ZonedDevice};
use std::collections::BTreeSet;
use std::future::Future;
use std::task::Poll;
use zerocopy::FromZeros;

/// Blocks of the log read in one batch.
const AHEAD: u32 = 128;

/// Most reads of nodes, or of blocks of data, in flight.
const READS: usize = 64;

/// A sync record that counts.
#[derive(Default)]
pub(crate) struct Record {
    /// Zones that the record depends on and whose write pointers do not tell their content.
    doubtful: Vec<ZoneId>,
    pub(crate) names: Vec<(u64, NameOp)>,
    pub(crate) nodes: Vec<(u32, NatEntry)>,
    /// Changes of nodes, made after the record's nodes are in their places.
    pub(crate) changes: Vec<NodeChange>,
    pub(crate) freed: Vec<u32>,
    pub(crate) attributes: Vec<(Ino, SetAttr)>,
    /// All extended attributes of directories.
    pub(crate) xattrs: Vec<(Ino, Vec<u8>)>,
}

impl Record {
    /// Nodes that get a new place, change, or are freed.
    pub(crate) fn touched(&self) -> impl Iterator<Item = u32> + '_ {
        let nodes = self.nodes.iter().map(|(nid, _)| *nid);
        let changed = self.changes.iter().map(|change| change.nid);
        nodes.chain(changed).chain(self.freed.iter().copied())
    }
}

/// The result of reading the sync log.
pub(crate) struct SyncScan {
    pub(crate) records: Vec<Record>,
    /// First sequence that does not count.
    pub(crate) replay_end: u64,
    /// Half and block of the next record.
    pub(crate) half: u8,
    pub(crate) next: u32,
    pub(crate) descriptors: Vec<Descriptor>,
    /// Superzones that each head took; the checkpoint's superzone comes first.
    pub(crate) chains: Vec<Vec<u32>>,
}

/// Reads the sync log as far as it counts. `skip` is a built-in defect: records that do not count
/// are skipped.
pub(crate) async fn scan_sync_log(
    device: &dyn ZonedDevice,
    found: &Found,
    pages: &Pool,
    skip: bool,
) -> Result<SyncScan> {
    let body = &found.image.body;
    let mut scan = SyncScan {
        records: Vec::new(),
        replay_end: body.sync_sequence.get(),
        half: body.sync_half.get() as u8,
        next: body.sync_next.get(),
        descriptors: found.image.descriptors.clone(),
        chains: found.image.heads.iter().map(|s| s.superzone.into_iter().collect()).collect(),
    };
    let mut turned = false;
    let mut ahead = Ahead::default();
    while scan.replay_end < body.sync_limit.get() {
        let place = (scan.half, scan.next);
        let read = read_record(device, found, place, scan.replay_end, pages, &mut ahead).await?;
        let Some((blocks, bytes)) = read else {
            if turned {
                break;
            }
            // The log continues at the front of the other half, if this half had no space.
            turned = true;
            let other = 1 - scan.half;
            let there =
                read_record(device, found, (other, 0), scan.replay_end, pages, &mut ahead).await?;
            if there.is_none() {
                break;
            }
            (scan.half, scan.next) = (other, 0);
            continue;
        };
        let record = accept(device.geometry(), found, &mut scan, &bytes);
        let counts = match &record {
            Some(record) => holds(device, found, record, (&ahead, pages)).await?,
            None => false,
        };
        if !counts && !skip {
            break;
        }
        scan.records.extend(record.filter(|_| counts));
        scan.next += blocks;
        scan.replay_end += 1;
    }
    Ok(scan)
}

/// True if the blocks that a record depends on are really in the zones whose write pointers tell
/// nothing: a power cut may leave a zone full although its last blocks were lost, and a read-only
/// zone has no pointer. For such zones, the nodes that the record names, and the blocks that these
/// nodes and the record's changes point to, are read.
async fn holds(
    device: &dyn ZonedDevice,
    found: &Found,
    record: &Record,
    (ahead, pages): (&Ahead, &Pool),
) -> Result<bool> {
    if record.doubtful.is_empty() {
        return Ok(true);
    }
    let geometry = device.geometry();
    let doubtful = |addr: BlockAddr| match addr.locate(geometry) {
        Some((zone, _)) => record.doubtful.contains(&zone),
        None => false,
    };
    let are_whole = async |pointers: &mut dyn Iterator<Item = Pointer>| {
        for pointer in pointers {
            let (addr, crc) = (BlockAddr(pointer.addr.get()), pointer.crc.get());
            let known = ahead.data.contains(&(addr.0, crc));
            if known || !doubtful(addr) || !new_since(found, geometry, addr) {
                continue;
            }
            let Some(page) = read_one(device, addr, pages).await? else { return Ok(false) };
            if record::crc32c(page.bytes()) != crc {
                return Ok(false);
            }
        }
        Ok::<bool, Error>(true)
    };
    for (nid, entry) in &record.nodes {
        if ahead.whole.contains(&(entry.addr.get(), entry.crc.get())) {
            continue;
        }
        let addr = BlockAddr(entry.addr.get());
        let Some(page) = read_one(device, addr, pages).await? else { return Ok(false) };
        let whole = record::crc32c(page.bytes()) == entry.crc.get();
        if !whole || node::check(&page, *nid, entry.ino.get()).is_err() {
            return Ok(false);
        }
        let mut pointers = node::pointers(&page).into_iter().map(|(_, pointer)| pointer);
        if !are_whole(&mut pointers).await? {
            return Ok(false);
        }
    }
    are_whole(&mut record.changes.iter().flat_map(NodeChange::pointers)).await
}

/// True if a block was written after the part of its stream that the checkpoint covers: only such
/// blocks may be lost. A block that was damaged later must not end the log.
fn new_since(found: &Found, geometry: &Geometry, addr: BlockAddr) -> bool {
    let Some((zone, offset)) = addr.locate(geometry) else { return true };
    let Some(superzone) = found.layout.superzone_of(zone) else { return true };
    let stream = found.image.heads.iter().find(|s| s.superzone == Some(superzone));
    let Some(stream) = stream else { return true };
    // The stripe is narrower by the zones that are left out.
    let missing = found.image.descriptors[superzone as usize].missing.get();
    let at = zone.0 - found.layout.superzone_start(superzone);
    let before = (missing & ((1 << at) - 1)).count_ones();
    let width = found.layout.width - missing.count_ones().min(found.layout.width - 1);
    found.layout.stripe(width).index((at - before).min(width - 1), offset) >= stream.next
}

/// Reads one block; `None` if the drive reports it as missing.
async fn read_one(device: &dyn ZonedDevice, addr: BlockAddr, pages: &Pool) -> Result<Option<Page>> {
    match read_blocks(device, QueueId(0), addr, 1, pages).await {
        Ok(mut block) => Ok(block.pop()),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
        // The block may exist: to continue without it could lose acknowledged data.
        Err(error) => Err(error.at("sync log")),
    }
}

/// Blocks of a half of the log that were read in one batch, from block `first` on.
#[derive(Default)]
struct Ahead {
    half: u8,
    first: u32,
    blocks: Vec<Option<Page>>,
    /// Address and CRC of nodes that are whole, and whose blocks that may have been lost are all
    /// whole too. They are read many at a time, and only once.
    whole: BTreeSet<(u32, u32)>,
    /// Address and CRC of such blocks that are whole.
    data: BTreeSet<(u32, u32)>,
}

impl Ahead {
    /// Block `at` of a half, if it can be read together with the following blocks.
    async fn block(
        &mut self,
        device: &dyn ZonedDevice,
        found: &Found,
        (half, at): (u8, u32),
        pages: &Pool,
    ) -> Option<Page> {
        let known = self.first..self.first + self.blocks.len() as u32;
        if half != self.half || !known.contains(&at) {
            (self.half, self.first, self.blocks) = (half, at, Vec::new());
            self.read(device, found, pages).await;
            self.check_nodes(device, found, pages).await;
        }
        self.blocks.get_mut((at - self.first) as usize).and_then(Option::take)
    }

    async fn read(&mut self, device: &dyn ZonedDevice, found: &Found, pages: &Pool) {
        let (stripe, zones) = (found.layout.sync_stripe(), found.layout.sync_half(self.half));
        let upto = (self.first + AHEAD).min(stripe.blocks());
        self.blocks.resize((upto - self.first) as usize, None);
        for (column, zone) in zones.iter().enumerate() {
            let end = written(&found.reports[zone.0 as usize], device.geometry());
            let places = (self.first..upto).map(|at| (at, stripe.place(at)));
            let own: Vec<(u32, u32)> = places
                .filter(|(_, (of, offset))| *of as usize == column && *offset < end)
                .map(|(at, (_, offset))| (at, offset))
                .collect();
            let Some((_, first)) = own.first().copied() else { continue };
            let addr = BlockAddr::new(device.geometry(), *zone, first);
            // Blocks that cannot be read in this batch are read one by one, when they are asked
            // for.
            let read = read_blocks(device, QueueId(0), addr, own.len() as u32, pages).await;
            for ((at, _), page) in own.iter().zip(read.into_iter().flatten()) {
                self.blocks[(at - self.first) as usize] = Some(page);
            }
        }
    }
}

impl Ahead {
    /// Checks the nodes and the pointers that the records in these blocks hold, as [`holds`] does.
    /// `holds` checks again what is not found to be whole here.
    async fn check_nodes(&mut self, device: &dyn ZonedDevice, found: &Found, pages: &Pool) {
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
            let body = block.bytes().get(record::RecordHeader::SIZE..length as usize);
            let mut input = Decoder(body.unwrap_or_default());
            // The list ends at bytes that are not an item.
            while let Some(parsed) = parse_item(&mut input, &found.layout) {
                match parsed {
                    Item::Node(nid, entry) => named.push((nid, entry)),
                    Item::Change(change) => wanted.extend(change.pointers().filter_map(lost)),
                    _ => {}
                }
            }
        }
        self.read_data(device, wanted, pages).await;
        named.retain(|(_, entry)| !self.whole.contains(&(entry.addr.get(), entry.crc.get())));
        named.sort_unstable_by_key(|(nid, entry)| (entry.addr.get(), *nid));
        named.dedup_by_key(|(nid, entry)| (entry.addr.get(), *nid));
        for some in named.chunks(READS) {
            let addrs: Vec<u32> = some.iter().map(|(_, entry)| entry.addr.get()).collect();
            let read = read_each(device, &addrs, pages).await;
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
            self.read_data(device, wanted, pages).await;
            let whole = nodes.iter().filter(|(_, lost)| lost.iter().all(|b| self.data.contains(b)));
            self.whole.extend(whole.map(|(node, _)| *node));
        }
    }

    /// Reads the blocks `wanted`, each an address and a CRC, and notes those that are whole.
    async fn read_data(
        &mut self,
        device: &dyn ZonedDevice,
        mut wanted: Vec<(u32, u32)>,
        pages: &Pool,
    ) {
        wanted.retain(|block| !self.data.contains(block));
        wanted.sort_unstable();
        wanted.dedup();
        for some in wanted.chunks(READS) {
            let addrs: Vec<u32> = some.iter().map(|(addr, _)| *addr).collect();
            let read = read_each(device, &addrs, pages).await;
            for (block, page) in some.iter().zip(read) {
                if page.is_some_and(|page| record::crc32c(page.bytes()) == block.1) {
                    self.data.insert(*block);
                }
            }
        }
    }
}

/// Reads the blocks at these addresses at the same time; `None` for a block that cannot be read.
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

/// The whole record with `sequence` at this place, if there is one.
async fn read_record(
    device: &dyn ZonedDevice,
    found: &Found,
    (half, at): (u8, u32),
    sequence: u64,
    pages: &Pool,
    ahead: &mut Ahead,
) -> Result<Option<(u32, Vec<u8>)>> {
    let layout = &found.layout;
    let (stripe, zones) = (layout.sync_stripe(), layout.sync_half(half));
    let mut bytes: Vec<u8> = Vec::new();
    let mut blocks = 1;
    let mut read = 0;
    while read < blocks {
        if at + read >= stripe.blocks() {
            return Ok(None);
        }
        let (column, offset) = stripe.place(at + read);
        let zone = zones[column as usize];
        let report = &found.reports[zone.0 as usize];
        if report.state == ZoneState::Offline && !found.image.is_clean() {
            // The zone may hold the records acknowledged last: nobody can tell.
            let message = format!(
                "{}: sync log: zone {zone} is offline, the last syncs are lost: restore from a \
                 copy",
                device.name()
            );
            return Err(Error::new(ErrorKind::Io, message));
        }
        if offset >= written(report, device.geometry()) {
            return Ok(None);
        }
        let block = match ahead.block(device, found, (half, at + read), pages).await {
            Some(block) => Some(block),
            None => {
                let addr = BlockAddr::new(device.geometry(), zone, offset);
                read_one(device, addr, pages).await?
            }
        };
        let Some(block) = block else { return Ok(None) };
        if read == 0 {
            let Some(header) = record::peek(block.bytes()) else { return Ok(None) };
            blocks = header.blocks();
        }
        bytes.extend_from_slice(block.bytes());
        read += 1;
    }
    let expect =
        Expect { kind: kind::SYNC, device: Some(layout.device), object: Some(layout.uuid) };
    let Ok((header, body)) = record::open(&bytes, &expect) else { return Ok(None) };
    let expected = header.sequence.get() == sequence && header.epoch == found.image.body.sync_epoch;
    let (behind, newest) = (header.checkpoint.get(), found.id.checkpoint);
    if expected && behind > newest && found.older {
        return Ok(None);
    }
    if expected && behind > newest {
        let what = format!("written after checkpoint {behind}, the newest found is {newest}");
        let message =
            format!("{}: sync record {sequence} was {what}: run furrow fsck", device.name());
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(expected.then(|| (blocks, body.to_vec())))
}

/// Parses a record and checks that all blocks it depends on exist; `None` ends the log.
pub(crate) fn accept(
    geometry: &Geometry,
    found: &Found,
    scan: &mut SyncScan,
    body: &[u8],
) -> Option<Record> {
    let layout = &found.layout;
    let mut descriptors = scan.descriptors.clone();
    let mut chains = scan.chains.clone();
    let mut record = Record::default();
    let mut depends = Vec::new();
    let mut input = Decoder(body);
    while !input.0.is_empty() {
        match parse_item(&mut input, layout)? {
            Item::Name(number, op) => record.names.push((number, op)),
            Item::Xattrs(ino, packed) => record.xattrs.push((ino, packed)),
            Item::Node(nid, entry) => record.nodes.push((nid, entry)),
            Item::Change(change) => record.changes.push(change),
            Item::Freed(nid) => record.freed.push(nid),
            Item::Allocated(head, superzone, generation) => {
                let descriptor = descriptors.get_mut(superzone as usize)?;
                // The checkpoint includes this superzone, and may have permitted its release since.
                let then = &found.image.descriptors[superzone as usize];
                let free = then.state == SuperzoneState::Free as u8;
                if then.generation.get() == generation && !free {
                    continue;
                }
                descriptor.generation = generation.into();
                descriptor.state = SuperzoneState::Active as u8;
                if head >= (layout.streams * HEADS_PER_STREAM) as usize {
                    return None;
                }
                chains.resize(chains.len().max(head + 1), Vec::new());
                let chain = &mut chains[head];
                if !chain.contains(&superzone) {
                    chain.push(superzone);
                }
            }
            Item::Depends(zone, generation, end) => depends.push((zone, generation, end)),
            Item::Attributes(ino, changes) => record.attributes.push((ino, changes)),
            Item::Range => {}
        }
    }
    for (zone, generation, end) in depends {
        let superzone = layout.superzone_of(ZoneId(zone))? as usize;
        // A superzone that was full at the checkpoint's snapshot was durable before the checkpoint,
        // and so was one that has been released since. The zone may now be empty, or hold other
        // data.
        let then = &found.image.descriptors[superzone];
        let full = then.state == SuperzoneState::Full as u8;
        if then.generation.get() > generation || (full && then.generation.get() == generation) {
            continue;
        }
        let known = descriptors[superzone].generation.get();
        let report = &found.reports[zone as usize];
        if known == generation && report.state == ZoneState::Offline {
            // The blocks may have been there: the rest of the record may be whole.
            continue;
        }
        if known != generation || written(report, geometry) < end {
            return None;
        }
        if matches!(report.state, ZoneState::Full | ZoneState::ReadOnly) {
            record.doubtful.push(ZoneId(zone));
        }
    }
    scan.descriptors = descriptors;
    scan.chains = chains;
    Some(record)
}

/// One item of a record.
enum Item {
    Name(u64, NameOp),
    Xattrs(Ino, Vec<u8>),
    Node(u32, NatEntry),
    Change(NodeChange),
    Freed(u32),
    /// A head took a superzone, which then had this generation.
    Allocated(usize, u32, u32),
    /// A zone of a superzone of this generation must be written up to a block.
    Depends(u32, u32, u32),
    Attributes(Ino, SetAttr),
    /// An item that only fsck reads.
    Range,
}

/// Takes the next item from the front; `None` if the bytes are not an item.
fn parse_item(input: &mut Decoder<'_>, layout: &crate::layout::Layout) -> Option<Item> {
    Some(match input.u8()? {
        tag @ (item::CREATE | item::CREATE_WITH | item::LINK | item::REMOVE | item::RENAME) => {
            let (number, op) = NameOp::decode(tag, input)?;
            Item::Name(number, op)
        }
        item::XATTRS => {
            let (ino, packed) = (Ino(input.u32()?), input.long_bytes()?);
            Xattrs::parse(&packed)?;
            Item::Xattrs(ino, packed)
        }
        item::NODE => {
            let (nid, ino) = (input.u32()?, input.u32()?);
            let mut entry = NatEntry::new_zeroed();
            entry.ino = ino.into();
            entry.addr = input.u32()?.into();
            entry.crc = input.u32()?.into();
            if nid == 0 || nid >= layout.nodes || ino == 0 || ino >= layout.nodes {
                return None;
            }
            Item::Node(nid, entry)
        }
        tag @ (item::CHANGE | item::NEW) => {
            let change = NodeChange::decode(tag, input)?;
            let known = |id| id != 0 && id < layout.nodes;
            if !known(change.nid) || !known(change.ino) {
                return None;
            }
            Item::Change(change)
        }
        item::FREED => {
            let (nid, _) = (input.u32()?, input.u32()?);
            Item::Freed(nid)
        }
        item::ALLOCATED => Item::Allocated(usize::from(input.u8()?), input.u32()?, input.u32()?),
        item::DEPENDS => Item::Depends(input.u32()?, input.u32()?, input.u32()?),
        item::ATTRIBUTES => {
            let ino = Ino(input.u32()?);
            let changes = SetAttr {
                mode: Some(input.u16()?),
                uid: Some(input.u32()?),
                gid: Some(input.u32()?),
                size: None,
                atime: Some(input.time()?),
                mtime: Some(input.time()?),
                ctime: Some(input.time()?),
            };
            Item::Attributes(ino, changes)
        }
        item::RANGE => {
            let _ = (input.u32()?, input.u32()?, input.u32()?);
            Item::Range
        }
        _ => return None,
    })
}
