//! Repair of tables: reads the readable parts, and finds nodes that the tables no longer know.
//!
//! A node names itself (`NodeHeader`), so a lost table can be rebuilt. Every block of the main area
//! that holds a node is a candidate, and the newest candidate for each id counts. If the SIT is
//! intact, only a block that it marks valid can be a node in use, so the search finds exactly the
//! lost nodes. If deltas are lost too, the search may bring back a node that had been removed; its
//! file then appears without a name.

use super::Log;
use crate::alloc::place::NODE_SLOT;
use crate::core::Inner;
use crate::durability::recover::read::{Found, read_unit};
use crate::durability::recover::replay::read_node;
use crate::durability::recover::written;
use crate::format::{
    HOLE, LEVEL_INODE, NODE_MAGIC, NatEntry, SUMMARY_MAGIC, SitEntry, SummaryEntry, SummaryHeader,
    table,
};
use crate::tables::table::Table;
use crate::tree::node::{self, as_inode, header};
use furrow_log::BlockAddr;
use furrow_log::address::{blocks_begun, read_blocks};
use furrow_log::delta::{DeltaLayout, Extent};
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_log::record::{crc32c, peek};
use furrow_rt::{Page, Pool};
use furrow_zone::{Error, ErrorKind, QueueId, Result, ZoneState, ZonedDevice};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const UNIT: &str = "table page";
const NAT: &str = "NAT entry";

/// The parts of the tables that could not be read.
#[derive(Default)]
pub(super) struct Lost {
    nat_units: BTreeSet<u32>,
    sit_units: BTreeSet<u32>,
    /// Number of the first checkpoint whose changes are missing.
    deltas_from: Option<u64>,
}

/// The parts of the tables that could be read, and those that could not.
pub(super) struct Read {
    pub(super) nat: Table<NatEntry>,
    pub(super) sit: Table<SitEntry>,
    pub(super) lost: Lost,
}

/// Reads as much of the tables as can be read; unreadable parts are empty.
pub(super) async fn read(
    device: &dyn ZonedDevice,
    found: &Found,
    pages: &Pool,
    deltas: &[DeltaLayout],
    log: &mut Log,
) -> Read {
    let layout = &found.layout;
    let mut read = Read {
        nat: Table::new(layout.nodes, layout.nat_per_unit()),
        sit: Table::new(layout.segment_count(), layout.sit_per_unit()),
        lost: Lost::default(),
    };
    let nat_units = layout.nat_units();
    let [nat, sit] = &found.table_pages;
    let units = (0..nat_units).zip(nat).chain((nat_units..).zip(sit));
    for (index, unit) in units.filter(|(_, unit)| unit.addr.get() != HOLE) {
        let bytes = read_unit(device, layout, index as usize, unit, pages).await;
        let restored = bytes.and_then(|bytes| {
            let ok = match index.checked_sub(nat_units) {
                None => read.nat.restore_table_page(index, &bytes),
                Some(unit) => read.sit.restore_table_page(unit, &bytes),
            };
            ok.then_some(()).ok_or_else(|| Error::new(ErrorKind::Corrupt, "it is too short"))
        });
        let Err(error) = restored else { continue };
        let place = (0, index.to_string());
        match index.checked_sub(nat_units) {
            None => {
                log.mended(UNIT, place, error, "made again from the nodes that are found");
                read.lost.nat_units.insert(index);
            }
            Some(unit) => {
                log.mended(UNIT, place, error, "rebuilt from the blocks that nodes refer to");
                read.lost.sit_units.insert(unit);
            }
        }
    }
    for (delta, extents) in deltas.iter().zip(&found.extents) {
        for extent in extents {
            apply(device, found, pages, (delta, extent), &mut read, log).await;
        }
    }
    make_consistent(&mut read, layout.nat_per_unit(), layout.sit_per_unit(), layout.streams);
    read
}

async fn apply(
    device: &dyn ZonedDevice,
    found: &Found,
    pages: &Pool,
    (delta, extent): (&DeltaLayout, &Extent),
    read: &mut Read,
    log: &mut Log,
) {
    let (nat, sit) = (&mut read.nat, &mut read.sit);
    let apply = |which: u8, index: u32, payload: &[u8]| {
        let ok = match which {
            table::NAT => nat.restore(index, payload),
            table::SIT => sit.restore(index, payload),
            _ => false,
        };
        let error = || Error::new(ErrorKind::Corrupt, format!("entry {index} of table {which}"));
        ok.then_some(()).ok_or_else(error)
    };
    let one = std::slice::from_ref(extent);
    let Err(error) = delta.replay(device, pages, &found.id, one, apply).await else { return };
    let since = written_by(device, delta, extent, pages).await.unwrap_or(0);
    let place = (0, format!("half {} blocks {} + {}", extent.half, extent.first, extent.blocks));
    log.mended("delta log", place, error, "made again from the nodes that are found");
    let from = read.lost.deltas_from.get_or_insert(since);
    *from = since.min(*from);
}

/// The number of the checkpoint that wrote an extent, if a block of the extent still names it.
async fn written_by(
    device: &dyn ZonedDevice,
    delta: &DeltaLayout,
    extent: &Extent,
    pages: &Pool,
) -> Option<u64> {
    let capacity = furrow_log::address::blocks_per_zone(device.geometry());
    for block in extent.first..extent.first.saturating_add(extent.blocks) {
        let zone = *delta.half_zones(extent.half).get((block / capacity) as usize)?;
        let addr = BlockAddr::new(device.geometry(), zone, block % capacity);
        let Ok(page) = read_blocks(device, QueueId(0), addr, 1, pages).await else { continue };
        let expect = furrow_log::record::Expect::default();
        let header = peek(page[0].bytes()).filter(|header| {
            let expect = furrow_log::record::Expect { kind: header.kind.get(), ..expect };
            furrow_log::record::open(page[0].bytes(), &expect).is_ok()
        });
        if let Some(header) = header {
            return Some(header.checkpoint.get());
        }
    }
    None
}

/// Makes impossible entries harmless for later steps, and marks lost table pages as changed, so
/// that they are written.
fn make_consistent(read: &mut Read, per_nat: u32, per_sit: u32, streams: u32) {
    for unit in &read.lost.nat_units {
        read.nat.update(unit * per_nat, |_| {});
    }
    for unit in &read.lost.sit_units {
        read.sit.update(unit * per_sit, |_| {});
    }
    for segment in 0..read.sit.len() {
        let entry = read.sit.get(segment);
        let set: u32 = entry.map.iter().map(|byte| byte.count_ones()).sum();
        let stream = u32::from(entry.stream) < streams;
        let zero = entry.reserved == 0 && entry.reserved2.get() == 0;
        if set != u32::from(entry.valid.get()) || !stream || !zero {
            read.sit.update(segment, |entry| {
                entry.valid = (set as u16).into();
                entry.stream = if stream { entry.stream } else { 0 };
                entry.reserved = 0;
                entry.reserved2 = 0.into();
            });
        }
    }
    let nodes = read.nat.len();
    for nid in 0..nodes {
        let entry = read.nat.get(nid);
        let ino = entry.ino.get();
        let unused = nid == 0 || ino == 0 || ino >= nodes;
        let zero = NatEntry::new_zeroed();
        if unused && entry.as_bytes() != zero.as_bytes() {
            read.nat.update(nid, |entry| *entry = zero);
        } else if entry.reserved.get() != 0 {
            read.nat.update(nid, |entry| entry.reserved = 0.into());
        }
    }
}

/// A block that contains a node.
#[derive(Clone, Copy)]
struct Candidate {
    entry: NatEntry,
    /// The age, where newer is greater: checkpoint number, whether the SIT marks the block valid,
    /// time of change, place.
    age: (u64, bool, (i64, u32), u32),
    valid: bool,
}

/// Checks the node of every entry, and searches for nodes that are not at their addresses. Marks
/// the blocks that nodes lead to as in use, so that their zones are not reset. Returns the owners
/// of blocks in superzones that are being written.
pub(super) async fn settle(
    inner: &Rc<Inner>,
    found: &Found,
    lost: Lost,
    log: &mut Log,
) -> Result<BTreeMap<u32, SummaryEntry>> {
    let mut owners = BTreeMap::new();
    let (mut bad, mut known) = (Vec::new(), BTreeMap::new());
    forget_unwritten(inner, found, log);
    let nodes = inner.core.borrow().tables.nat().len();
    for nid in 1..nodes {
        let entry = inner.core.borrow().tables.nat().get(nid);
        if entry.ino.get() == 0 {
            continue;
        }
        match read_node(inner, nid, entry).await {
            Ok(page) if is_in_segment(inner, &entry) => {
                known.insert(nid, header(&page).checkpoint.get());
                mark(inner, nid, &entry, &page, &mut owners);
            }
            _ => bad.push(nid),
        }
    }
    let missing = !lost.nat_units.is_empty() || lost.deltas_from.is_some();
    if missing || !bad.is_empty() {
        let candidates = scan(inner, found).await;
        for nid in bad {
            find_again(inner, nid, &candidates, &mut owners, log).await;
        }
        if missing {
            adopt(inner, &lost, &known, &candidates, &mut owners, log).await;
        }
    }
    let core = inner.core.borrow();
    for (index, valid) in core.alloc.valid_by_superzone() {
        let id = SuperzoneId(index);
        if valid > 0 && core.alloc.zones().state(id) == SuperzoneState::Free {
            let problem = format!("free, with {valid} blocks in use");
            log.mended("superzone descriptor", (0, index.to_string()), problem, "not free");
            core.alloc.zones().mark_full(id);
        }
    }
    Ok(owners)
}

/// Marks as free all blocks that were never written to the drive. The SIT calls such blocks in use
/// if its deltas are lost: the SIT is then from a time before the zones of these blocks were reset.
fn forget_unwritten(inner: &Rc<Inner>, found: &Found, log: &mut Log) {
    let mut blocks = 0;
    let core = &mut *inner.core.borrow_mut();
    let geometry = core.env.geometry.clone();
    let used: Vec<(u32, u32)> = core.alloc.valid_by_superzone().collect();
    for (superzone, _) in used.into_iter().filter(|(_, valid)| *valid > 0) {
        let zones = core.alloc.zones().get(SuperzoneId(superzone)).zones;
        let stripe = core.alloc.stripe(superzone);
        for v in 0..stripe.blocks() {
            let (column, offset) = stripe.place(v);
            let Some(zone) = zones.get(column as usize) else { continue };
            let report = &found.reports[zone.0 as usize];
            let addr = BlockAddr::new(&geometry, *zone, offset).0;
            let unwritten = offset >= blocks_begun(report, &geometry);
            if unwritten && report.state != ZoneState::Offline && core.alloc.is_valid(addr) {
                core.set_valid(addr, false, 0);
                blocks += 1;
            }
        }
    }
    if blocks > 0 {
        let problem = format!("{blocks} blocks that were never written are in use by it");
        log.mended("SIT entry", (0, "all".into()), problem, "not in use");
    }
}

fn is_in_segment(inner: &Rc<Inner>, entry: &NatEntry) -> bool {
    inner.core.borrow().alloc.segment_of(entry.addr.get()).is_some()
}

/// Marks a node, and the blocks that it points to, as in use.
fn mark(
    inner: &Rc<Inner>,
    nid: u32,
    entry: &NatEntry,
    page: &Page,
    owners: &mut BTreeMap<u32, SummaryEntry>,
) {
    let core = &mut *inner.core.borrow_mut();
    let mut own = |addr: u32, slot: u16| {
        let stream = core.alloc.stream_at(addr);
        core.set_valid(addr, true, stream);
        let open = core.alloc.segment_of(addr).is_some_and(|(superzone, _, _)| {
            core.alloc.zones().state(SuperzoneId(superzone)) == SuperzoneState::Active
        });
        if open {
            owners.insert(addr, SummaryEntry { node: nid.into(), slot: slot.into() });
        }
    };
    own(entry.addr.get(), NODE_SLOT);
    for (slot, pointer) in node::pointers(page) {
        own(pointer.addr.get(), slot);
    }
}

/// Handles an entry whose node is not at its address: searches the whole drive for the block with
/// the node's checksum.
async fn find_again(
    inner: &Rc<Inner>,
    nid: u32,
    candidates: &BTreeMap<u32, Vec<Candidate>>,
    owners: &mut BTreeMap<u32, SummaryEntry>,
    log: &mut Log,
) {
    let entry = inner.core.borrow().tables.nat().get(nid);
    let fits = |other: &&Candidate| other.entry.crc == entry.crc && other.entry.ino == entry.ino;
    let Some(other) = candidates.get(&nid).and_then(|all| all.iter().find(fits)) else { return };
    let Ok(page) = read_node(inner, nid, other.entry).await else { return };
    let problem = format!("block {} is not that node", entry.addr);
    let action = format!("block {} is, by its checksum", other.entry.addr);
    log.mended(NAT, (entry.ino.get(), format!("{nid}: addr")), problem, action);
    inner.core.borrow_mut().tables.set_node(nid, other.entry);
    mark(inner, nid, &other.entry, &page, owners);
}

/// Adopts nodes that a lost part of the table may have contained.
async fn adopt(
    inner: &Rc<Inner>,
    lost: &Lost,
    known: &BTreeMap<u32, u64>,
    candidates: &BTreeMap<u32, Vec<Candidate>>,
    owners: &mut BTreeMap<u32, SummaryEntry>,
    log: &mut Log,
) {
    let per_table_page = inner.core.borrow().env.layout.nat_per_unit();
    let sit_whole = lost.sit_units.is_empty() && lost.deltas_from.is_none();
    let mut taken = 0;
    for (nid, all) in candidates {
        let Some(best) = all.iter().max_by_key(|candidate| candidate.age) else { continue };
        let now = inner.core.borrow().tables.nat().get(*nid);
        let in_lost_unit = lost.nat_units.contains(&(nid / per_table_page));
        // A node names the checkpoint that was the newest durable one when the node was written.
        // The node's entry is in the deltas of the next checkpoint. If the snapshot of the next
        // checkpoint had been taken already, the entry is in the deltas of the checkpoint after the
        // next.
        let in_lost_delta = lost.deltas_from.is_some_and(|from| best.age.0 + 2 >= from);
        let newer = match known.get(nid) {
            Some(checkpoint) => in_lost_delta && best.age.0 > *checkpoint,
            None if now.ino.get() == 0 => in_lost_unit || in_lost_delta,
            // The present entry leads to a damaged node, which the walk of the trees will report.
            None => in_lost_delta,
        };
        if !newer || sit_whole && !best.valid || now.addr == best.entry.addr {
            continue;
        }
        let Ok(page) = read_node(inner, *nid, best.entry).await else { continue };
        {
            let core = &mut *inner.core.borrow_mut();
            core.tables.adopt_node(*nid, best.entry);
        }
        mark(inner, *nid, &best.entry, &page, owners);
        taken += 1;
    }
    let problem = "parts of the node address table are lost";
    log.mended(NAT, (0, "all".into()), problem, format!("{taken} nodes found by looking for them"));
}

/// Finds every block on the drive that may be a node of the checkpoint. Returns them by node id.
async fn scan(inner: &Rc<Inner>, found: &Found) -> BTreeMap<u32, Vec<Candidate>> {
    let mut candidates: BTreeMap<u32, Vec<Candidate>> = BTreeMap::new();
    let superzones = inner.core.borrow().alloc.zones().total();
    for superzone in 0..superzones {
        let id = SuperzoneId(superzone);
        let (free, stripe) = {
            let core = inner.core.borrow();
            (core.alloc.zones().state(id) == SuperzoneState::Free, core.alloc.stripe(superzone))
        };
        // The checkpoint has no nodes in this superzone, and records name the nodes that they need.
        let then = found.image.descriptors.get(superzone as usize).map(|then| then.state);
        let newer = then == Some(SuperzoneState::Free as u8);
        if free || newer || inner.core.borrow().alloc.zones().width(id) == 0 {
            continue;
        }
        for segment in 0..stripe.segments() {
            scan_segment(inner, found, (superzone, segment), &mut candidates).await;
        }
    }
    candidates
}

async fn scan_segment(
    inner: &Rc<Inner>,
    found: &Found,
    (superzone, segment): (u32, u32),
    candidates: &mut BTreeMap<u32, Vec<Candidate>>,
) {
    let (stripe, zones, geometry) = {
        let core = inner.core.borrow();
        let zones = core.alloc.zones().get(SuperzoneId(superzone)).zones;
        (core.alloc.stripe(superzone), zones, core.env.geometry.clone())
    };
    let addr = |v: u32| {
        let (column, offset) = stripe.place(v);
        let zone = *zones.get(column as usize)?;
        let there = offset < written(&found.reports[zone.0 as usize], &geometry);
        there.then(|| BlockAddr::new(&geometry, zone, offset))
    };
    let range = stripe.segment_range(segment);
    let head = found.image.heads.iter().find(|head| head.superzone == Some(superzone));
    let end = head.map_or(u32::MAX, |head| head.next);
    let entries = match addr(stripe.summary_index(segment)) {
        Some(at) => summary(inner, at, (superzone, segment)).await,
        None => None,
    };
    for (block, v) in range.enumerate().take_while(|(_, v)| *v < end) {
        // A block that its summary calls file content is not a node.
        let known = entries.as_ref().and_then(|entries| entries.get(block));
        if known.is_some_and(|entry| entry.slot.get() != NODE_SLOT) {
            continue;
        }
        let Some(at) = addr(v) else { continue };
        let Some(page) = read_one(inner, at).await else { continue };
        if let Some((nid, candidate)) = candidate(inner, at, v, &page) {
            candidates.entry(nid).or_default().push(candidate);
        }
    }
}

/// The block as a candidate, if it may be a node.
fn candidate(inner: &Rc<Inner>, at: BlockAddr, v: u32, page: &Page) -> Option<(u32, Candidate)> {
    let core = inner.core.borrow();
    let head = header(page);
    let (nid, ino) = (head.nid.get(), head.ino.get());
    let nodes = core.env.layout.nodes;
    let possible = head.magic.get() == NODE_MAGIC && (1..nodes).contains(&nid);
    if !possible || !(1..nodes).contains(&ino) || node::check(page, nid, ino).is_err() {
        return None;
    }
    // A node that is newer than the file system's checkpoint belongs to another file system, or
    // is damaged.
    if head.checkpoint.get() > core.durability.checkpoint_id() {
        return None;
    }
    let valid = core.alloc.segment_of(at.0).is_some_and(|(_, segment, block)| {
        core.alloc.sit().get(segment).map[(block / 8) as usize] >> (block % 8) & 1 == 1
    });
    let changed = match head.level {
        LEVEL_INODE => {
            let time = as_inode(page).head.ctime;
            (time.seconds.get(), time.nanoseconds.get())
        }
        _ => (0, 0),
    };
    let mut entry = NatEntry::new_zeroed();
    entry.addr = at.0.into();
    entry.crc = crc32c(page.bytes()).into();
    entry.ino = ino.into();
    let age = (head.checkpoint.get(), valid, changed, v);
    Some((nid, Candidate { entry, age, valid }))
}

async fn read_one(inner: &Rc<Inner>, at: BlockAddr) -> Option<Page> {
    let (device, pages) = {
        let core = inner.core.borrow();
        (core.env.device.clone(), core.env.pages.clone())
    };
    read_blocks(&*device, QueueId(0), at, 1, &pages).await.ok()?.pop()
}

/// The entries of the segment's summary, if the summary is whole.
async fn summary(
    inner: &Rc<Inner>,
    at: BlockAddr,
    (superzone, segment): (u32, u32),
) -> Option<Vec<SummaryEntry>> {
    let page = read_one(inner, at).await?;
    let (mut head, rest) = SummaryHeader::read_from_prefix(page.bytes()).ok()?;
    let stored = std::mem::take(&mut head.crc);
    let mut bytes = *page.bytes();
    bytes[..size_of::<SummaryHeader>()].copy_from_slice(head.as_bytes());
    let generation = inner.core.borrow().alloc.zones().generation(SuperzoneId(superzone));
    let whole = head.magic.get() == SUMMARY_MAGIC
        && stored.get() == crc32c(&bytes)
        && (head.superzone.get(), head.segment.get()) == (superzone, segment)
        && head.generation.get() == generation;
    let entries = rest.chunks_exact(size_of::<SummaryEntry>()).take(head.count.get().into());
    whole.then(|| entries.filter_map(|e| SummaryEntry::read_from_bytes(e).ok()).collect())
}
