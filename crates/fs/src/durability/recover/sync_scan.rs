//! Scans the sync log up to its end.

use super::log_end::{Lost, Newer, behind, said};
use super::log_reader::{LogReader, Place, Read, new_since};
use super::read::{Found, written};
use super::sync_items::{Item, parse_item};
use crate::durability::namespace_log::{Decoder, NameOp};
use crate::durability::node_change::NodeChange;
use crate::format::{BLOCK, HEADS_PER_STREAM, NatEntry, Pointer};
use crate::tree::node;
use crate::types::{Ino, SetAttr};
use furrow_log::address::BlockAddr;
use furrow_log::format::Descriptor;
use furrow_log::pool::SuperzoneState;
use furrow_log::record::{self, RecordHeader};
use furrow_rt::buf::is_zero;
use furrow_rt::{Page, Pool};
use furrow_zone::{Error, ErrorKind, Geometry, Result, ZoneId, ZoneState, ZonedDevice};

/// A sync record that recovery replays.
#[derive(Default)]
pub(crate) struct Record {
    /// Zones that the record depends on and whose write pointers say nothing about their content.
    doubtful: Vec<ZoneId>,
    pub(crate) names: Vec<(u64, NameOp)>,
    pub(crate) nodes: Vec<(u32, NatEntry)>,
    /// Changes of nodes, to be applied after the record's nodes are in their places.
    pub(crate) changes: Vec<NodeChange>,
    pub(crate) freed: Vec<u32>,
    pub(crate) attributes: Vec<(Ino, SetAttr)>,
    /// Directories with all of their extended attributes, packed.
    pub(crate) xattrs: Vec<(Ino, Vec<u8>)>,
    /// Blocks of files that were written: inode, first block, number of blocks.
    pub(crate) ranges: Vec<(u32, u32, u32)>,
}

impl Record {
    /// Ids of nodes that the record moves, changes or frees.
    pub(crate) fn touched(&self) -> impl Iterator<Item = u32> + '_ {
        let nodes = self.nodes.iter().map(|(nid, _)| *nid);
        let changed = self.changes.iter().map(|change| change.nid);
        nodes.chain(changed).chain(self.freed.iter().copied())
    }
}

/// The result of reading the sync log.
pub(crate) struct SyncScan {
    pub(crate) records: Vec<Record>,
    /// The sequence of the first record that is not replayed.
    pub(crate) replay_end: u64,
    /// Half to which the next record goes.
    pub(crate) half: u8,
    /// Block at which the next record begins.
    pub(crate) next: u32,
    pub(crate) descriptors: Vec<Descriptor>,
    /// For each head, the superzones that it took; the checkpoint's superzone comes first.
    pub(crate) chains: Vec<Vec<u32>>,
    /// Data that was durable and is no longer on the drive, in log order.
    pub(crate) lost: Vec<Lost>,
    /// Proof that a checkpoint newer than the newest whole one was durable.
    pub(crate) newer: Option<Newer>,
}

impl SyncScan {
    /// The error of a mount that must not continue because durable data is lost; `None` if nothing
    /// is lost.
    pub(crate) fn refusal(&self, device: &str) -> Option<Error> {
        let what = match (&self.newer, self.lost.first()) {
            (Some(newer), _) => newer.to_string(),
            (None, Some(lost)) => lost.to_string(),
            (None, None) => return None,
        };
        let more = match self.lost.len() + usize::from(self.newer.is_some()) - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(Error::new(ErrorKind::Corrupt, format!("{device}: {what}{more}")))
    }

    /// Notes a record that was written after a newer checkpoint; no effect if that checkpoint was
    /// given up.
    fn note_newer(&mut self, found: &Found, header: &RecordHeader) {
        if !found.older && self.newer.is_none() {
            self.newer = Some(Newer {
                checkpoint: header.checkpoint.get(),
                sequence: header.sequence.get(),
                whole: found.id.checkpoint,
            });
        }
    }
}

/// Reads the sync log up to its end. If a record is missing where the log does not end
/// ([`log_end`](super::log_end)), the loss is noted, and the records behind it are read. With
/// `skip`, a built-in defect, a record whose blocks are missing is skipped and does not end the
/// log.
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
        lost: Vec::new(),
        newer: None,
    };
    let mut log = LogReader::new(device, found, pages);
    while scan.replay_end < body.sync_limit.get() {
        let (place, header, bytes) = match next_record(&mut log, &scan).await? {
            Next::Record(place, header, bytes) => (place, header, bytes),
            Next::Missing(place, read) => match missing(&mut log, &mut scan, place, read).await? {
                true => continue,
                false => return Ok(scan),
            },
        };
        if header.checkpoint.get() > found.id.checkpoint {
            scan.note_newer(found, &header);
            return Ok(scan);
        }
        (scan.half, scan.next) = (place.0, place.1 + header.blocks());
        let Some(accepted) = accept(device.geometry(), found, &scan, &bytes) else {
            let read = Read::Damaged("items that cannot be read".into(), Vec::new());
            match missing(&mut log, &mut scan, place, read).await? {
                true => continue,
                false => return Ok(scan),
            }
        };
        let mut lacks = accepted.lacks.clone();
        // If write pointers show that blocks are missing, the record cannot be used at all: the
        // zone is written again from its write pointer on.
        let usable = lacks.is_none();
        if usable {
            lacks = arrived(&log, &accepted.record, &mut scan.lost).await?;
        }
        if let Some(why) = &lacks
            && !skip
        {
            let later = behind(&mut log, (scan.half, scan.next), scan.replay_end + 1).await?;
            let Some(proof) = later.proof(found, scan.replay_end) else { return Ok(scan) };
            let (why, number) = (format!("{why}; {proof}"), scan.replay_end);
            scan.lost.push(match usable {
                true => Lost::blocks(format!("blocks that sync record {number} needs"), why),
                false => Lost::records((number, number + 1, log.name(place)), why, None),
            });
        }
        if lacks.is_none() || usable && !skip {
            (scan.descriptors, scan.chains) = (accepted.descriptors, accepted.chains);
            scan.records.push(accepted.record);
        }
        scan.replay_end += 1;
    }
    // Records behind this place may have been written after a newer checkpoint than the newest
    // whole one.
    let later = behind(&mut log, (scan.half, scan.next), scan.replay_end).await?;
    if let Some(header) = later.newer(found) {
        scan.note_newer(found, &header);
    }
    Ok(scan)
}

/// The next record, or its absence.
enum Next {
    Record(Place, RecordHeader, Vec<u8>),
    /// No record with the expected sequence was found; the place where the record should be, and
    /// the content there.
    Missing(Place, Read),
}

async fn next_record(log: &mut LogReader<'_>, scan: &SyncScan) -> Result<Next> {
    let body = &log.found.image.body;
    let is_next = |header: &RecordHeader| {
        header.sequence.get() == scan.replay_end && header.epoch == body.sync_epoch
    };
    let place = (scan.half, scan.next);
    let read = log.record(place).await?;
    match read {
        Read::Whole(header, bytes) if is_next(&header) => {
            return Ok(Next::Record(place, header, bytes));
        }
        _ => {}
    }
    // The log continues at the start of the other half if this half had no space for the record.
    if u32::from(scan.half) == body.sync_half.get() && log.may_continue(scan.half) {
        let other = (1 - scan.half, 0);
        match log.record(other).await? {
            Read::Whole(header, bytes) if is_next(&header) => {
                return Ok(Next::Record(other, header, bytes));
            }
            Read::Damaged(why, bytes)
                if matches!(read, Read::Nothing)
                    && record::peek(&bytes).as_ref().is_some_and(is_next) =>
            {
                return Ok(Next::Missing(other, Read::Damaged(why, bytes)));
            }
            _ => {}
        }
    }
    Ok(Next::Missing(place, read))
}

/// Handles the absence of the next record at `place`: either a torn end of the log, or damage,
/// which is noted. Returns true if the log continues.
async fn missing(
    log: &mut LogReader<'_>,
    scan: &mut SyncScan,
    mut place: Place,
    mut read: Read,
) -> Result<bool> {
    let found = log.found;
    if let Read::Nothing = read
        && let Some((at, why)) = super::log_end::wiped(log, place).await?
    {
        (place, read) = (at, Read::Damaged(why, Vec::new()));
    }
    let from = match &read {
        Read::Damaged(..) => (place.0, place.1 + 1),
        _ => place,
    };
    let first = scan.replay_end;
    let later = behind(log, from, first).await?;
    if let Some(header) = later.newer(found) {
        scan.note_newer(found, &header);
    }
    // A record that is complete but not whole is damaged: when a power cut interrupts a write, a
    // zone keeps only the beginning of it.
    let complete = matches!(read, Read::Damaged(..));
    let proof = later.proof(found, first);
    if proof.is_none() && !complete {
        return Ok(false);
    }
    let durable = later.durable(found).max(if complete { first + 1 } else { 0 });
    let next = later.next(found, first).filter(|(_, header)| header.sequence.get() <= durable);
    let end = next.as_ref().map_or(durable, |(_, header)| header.sequence.get());
    let (why, bytes) = match read {
        Read::Damaged(why, bytes) => (why, bytes),
        Read::Whole(header, _) => {
            (format!("record {} of epoch {} is there", header.sequence, header.epoch), Vec::new())
        }
        Read::Nothing => ("nothing is there".to_owned(), Vec::new()),
    };
    let why = proof.map_or(why.clone(), |proof| format!("{why}; {proof}"));
    let what = (first, end, log.name(place));
    scan.lost.push(Lost::records(what, why, said(&bytes, &found.layout)));
    scan.replay_end = end;
    if let Some((place, _)) = next {
        (scan.half, scan.next) = place;
    }
    Ok(next.is_some())
}

/// Checks that the blocks that a record depends on are really on the drive, if they are in zones
/// whose write pointers say nothing. A power cut may leave a zone full although its last blocks
/// were lost, and a read-only zone has no pointer. In such zones, the check reads the nodes that
/// the record names, and the blocks that these nodes and the record's changes point to. A lost
/// block has no content. A block with wrong content was damaged, which is noted in `lost` if the
/// block is a node.
///
/// Returns a description of the lost blocks, if any are lost.
async fn arrived(
    log: &LogReader<'_>,
    record: &Record,
    lost: &mut Vec<Lost>,
) -> Result<Option<String>> {
    if record.doubtful.is_empty() {
        return Ok(None);
    }
    let geometry = log.device.geometry();
    let doubtful = |addr: BlockAddr| match addr.locate(geometry) {
        Some((zone, _)) => record.doubtful.contains(&zone),
        None => false,
    };
    let at = |addr: BlockAddr| match addr.locate(geometry) {
        Some((zone, offset)) => format!("zone {zone} offset {offset}"),
        None => format!("block {addr}"),
    };
    let gone = async |pointers: &mut dyn Iterator<Item = Pointer>| {
        for pointer in pointers {
            let (addr, crc) = (BlockAddr(pointer.addr.get()), pointer.crc.get());
            let known = log.knows_block(addr.0, crc);
            if known || !doubtful(addr) || !new_since(log.found, geometry, addr) {
                continue;
            }
            let page = log.read_one(addr).await?;
            if page.is_none_or(|page| {
                record::crc32c(page.bytes()) != crc && never_written(geometry, &page)
            }) {
                return Ok(Some(format!("a block at {} was never written", at(addr))));
            }
        }
        Ok::<_, furrow_zone::Error>(None)
    };
    for (nid, entry) in &record.nodes {
        if log.knows_node(entry.addr.get(), entry.crc.get()) {
            continue;
        }
        let addr = BlockAddr(entry.addr.get());
        let page = log.read_one(addr).await?;
        let whole = |page: &Page| {
            record::crc32c(page.bytes()) == entry.crc.get()
                && node::check(page, *nid, entry.ino.get()).is_ok()
        };
        let unwritten = page.as_ref().is_none_or(|page| never_written(geometry, page));
        let Some(page) = page.filter(whole) else {
            if unwritten && doubtful(addr) {
                return Ok(Some(format!("node {nid} at {} was never written", at(addr))));
            }
            let what = format!("node {nid} of inode {} at {}", entry.ino, at(addr));
            lost.push(Lost::blocks(what, "its checksum is wrong".to_owned()));
            continue;
        };
        let mut pointers = node::pointers(&page).into_iter().map(|(_, pointer)| pointer);
        if let Some(block) = gone(&mut pointers).await? {
            return Ok(Some(block));
        }
    }
    gone(&mut record.changes.iter().flat_map(NodeChange::pointers)).await
}

/// True if the block's last sector is zeros, so that the block was not completely written: writes
/// are torn between sectors.
fn never_written(geometry: &Geometry, block: &Page) -> bool {
    let sector = (geometry.block_size.0 as usize).min(BLOCK);
    is_zero(&block.bytes()[BLOCK - sector..])
}

/// A record, and the changes it makes to the pool.
struct Accepted {
    record: Record,
    descriptors: Vec<Descriptor>,
    chains: Vec<Vec<u32>>,
    /// The missing blocks that the record depends on, according to the write pointers.
    lacks: Option<String>,
}

/// Parses a record and checks its dependencies; `None` if its items cannot be read.
fn accept(geometry: &Geometry, found: &Found, scan: &SyncScan, body: &[u8]) -> Option<Accepted> {
    let layout = &found.layout;
    let mut lacks = None;
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
                // The checkpoint includes this allocation, and the superzone may have been
                // released since.
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
            Item::Range(ino, first, blocks) => record.ranges.push((ino, first, blocks)),
        }
    }
    for (zone, generation, end) in depends {
        let superzone = layout.superzone_of(ZoneId(zone))? as usize;
        // Blocks of a superzone that was full at the checkpoint's snapshot were durable before the
        // checkpoint. So were the blocks of a superzone that has been released since: its zones may
        // now be empty, or hold other data.
        let then = &found.image.descriptors[superzone];
        let full = then.state == SuperzoneState::Full as u8;
        if then.generation.get() > generation || (full && then.generation.get() == generation) {
            continue;
        }
        let known = descriptors[superzone].generation.get();
        let report = &found.reports[zone as usize];
        if known == generation && report.state == ZoneState::Offline {
            // Nobody can tell whether the blocks were there. Keep the record: the rest of it may
            // be whole.
            continue;
        }
        if known != generation || written(report, geometry) < end {
            let holds = written(report, geometry);
            lacks = Some(format!("zone {zone} holds {holds} blocks, but the record needs {end}"));
            continue;
        }
        if matches!(report.state, ZoneState::Full | ZoneState::ReadOnly) {
            record.doubtful.push(ZoneId(zone));
        }
    }
    Some(Accepted { record, descriptors, chains, lacks })
}
