//! Checks the sync log behind the checkpoint, which the next mount will replay.

use super::sync_end::Later;
use super::sync_items::{Change, Input, Item, pointers};
use super::tables::Table;
use super::tree::read_node;
use super::{Fsck, Volume, xattrs};
use crate::durability::sync::record_blocks_max;
use crate::format::{BLOCK, HEADS_PER_STREAM, HOLE, NatEntry, Pointer, kind};
use crate::tree::dirent;
use crate::types::Kind;
use furrow_log::record::{self, Expect, RecordHeader, crc32c, crc32c_append};
use furrow_rt::Page;
use furrow_rt::buf::is_zero;
use furrow_zone::words::count;
use furrow_zone::{ZoneId, ZoneState};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

const RECORD: &str = "sync record";

/// The search for records ends after this many blocks without a record.
const GAP: u32 = 4096;

/// The position in the log, and the content of the records read so far.
struct Log<'a> {
    half: u32,
    next: u32,
    sequence: u64,
    /// Number that the next namespace operation must have; `None` before the first operation.
    number: Option<u64>,
    /// Generations of superzones after the changes in the records.
    generations: Vec<u32>,
    /// The NAT of the checkpoint.
    nat: &'a Table<NatEntry>,
    /// Nodes after the changes in the records; `None` for a freed node.
    nodes: BTreeMap<u32, Option<Logged>>,
    /// Places of nodes that a later record replaces. These places are checked too, because the
    /// replay reads them.
    replaced: Vec<(u32, NatEntry)>,
    /// True once a record is known to be lost.
    damaged: bool,
}

impl Log<'_> {
    /// Records that node `nid` is now as `logged` says.
    fn replace(&mut self, nid: u32, logged: Option<Logged>) {
        let before = self.nodes.insert(nid, logged).flatten();
        self.replaced.extend(before.and_then(|logged| logged.entry).map(|entry| (nid, entry)));
    }

    /// Describes what uses node id `nid`; `None` if a new node may have this id.
    fn user(&self, nid: u32) -> Option<String> {
        match self.nodes.get(&nid) {
            Some(logged) => logged.as_ref().map(|_| "one that an item before uses".to_owned()),
            None => Some(self.nat.get(nid))
                .filter(|entry| entry.ino.get() != 0 && entry.addr.get() != HOLE)
                .map(|entry| format!("one of inode {} in the checkpoint", entry.ino)),
        }
    }
}

/// A node after the changes in the log: its new place, and the changes since. Without a place, the
/// node is where the checkpoint says, or is new.
#[derive(Default)]
struct Logged {
    entry: Option<NatEntry>,
    changes: Vec<Change>,
}

/// The content of the place where a record should be.
enum Found {
    Whole(RecordHeader, Vec<u8>),
    /// The log ends here, or continues in the other half.
    End,
    Damaged(String),
}

/// Checks every record that a mount would replay, and the blocks that the records lead to.
pub(super) async fn check(fsck: &mut Fsck, volume: &Volume, nat: &Table<NatEntry>) {
    let body = &volume.body;
    let mut log = Log {
        half: body.sync_half.get(),
        next: body.sync_next.get(),
        sequence: body.sync_sequence.get(),
        number: None,
        generations: volume.superzones.iter().map(|s| s.generation).collect(),
        nat,
        nodes: BTreeMap::new(),
        replaced: Vec::new(),
        damaged: false,
    };
    while log.sequence < body.sync_limit.get() {
        let (here, place) = next_record(fsck, volume, &log).await;
        match here {
            Found::Whole(header, bytes) if is_next(volume, &header, log.sequence) => {
                (log.half, log.next) = (place.0, place.1 + header.blocks());
                log.sequence += 1;
                if !accept(fsck, volume, &mut log, &header, &bytes).await {
                    break;
                }
                fsck.report.statistics.sync_records += 1;
            }
            here => {
                (log.half, log.next) = place;
                if !missing(fsck, volume, &mut log, here).await {
                    break;
                }
            }
        }
    }
    let later = look(fsck, volume, (log.half, log.next), log.sequence).await;
    if let Some(header) = later.newer() {
        let place = format!("number {}", header.checkpoint);
        let expected = format!("a whole one, as before sync record {}", header.sequence);
        let found = format!("number {} as the newest", volume.header.checkpoint);
        fsck.add("checkpoint", place, expected, found);
    }
    let records = fsck.report.statistics.sync_records;
    check_offline(fsck, volume, (log.half, log.next));
    if volume.body.flags.get() & 1 == 1 {
        check_clean(fsck, volume, records);
    } else {
        fsck.report.notes.push(format!(
            "not unmounted cleanly: the next mount replays {records} sync records, whose names are \
             not checked here"
        ));
    }
    for (nid, entry) in std::mem::take(&mut log.replaced) {
        read_node(fsck, volume, entry, nid, entry.ino.get()).await;
    }
    check_nodes(fsck, volume, nat, log.nodes).await;
}

/// Reports if the log ends before block `next` of a half because that block is in an offline zone.
fn check_offline(fsck: &mut Fsck, volume: &Volume, (half, next): (u32, u32)) {
    let clean = volume.body.flags.get() & 1 == 1;
    let Some(addr) = block_addr(fsck, volume, half, next).filter(|_| !clean) else { return };
    let report = fsck.reports.get((addr / volume.plan.capacity) as usize);
    if report.is_some_and(|report| report.state == ZoneState::Offline) {
        fsck.add(RECORD, fsck.at(addr), "the last syncs, or its end", "an offline zone");
    }
}

/// Reads the place where the next record should be; returns its content and the place. The log
/// continues at the front of the other half if the current half has no space.
async fn next_record(fsck: &Fsck, volume: &Volume, log: &Log<'_>) -> (Found, (u32, u32)) {
    let here = record_at(fsck, volume, log.half, log.next).await;
    let next = |header: &RecordHeader| is_next(volume, header, log.sequence);
    let place = (log.half, log.next);
    if log.half != volume.body.sync_half.get()
        || matches!(&here, Found::Whole(header, _) if next(header))
    {
        return (here, place);
    }
    let other = (1 - log.half, 0);
    let there = record_at(fsck, volume, other.0, other.1).await;
    let turns = match &there {
        Found::Whole(header, _) => next(header),
        Found::End => false,
        // A damaged record in the other half counts only if it is the next record. Otherwise it is
        // an old record that was about to be reset.
        Found::Damaged(_) => {
            let addr = block_addr(fsck, volume, other.0, other.1);
            let block = fsck.read_one(addr.unwrap_or_default()).await;
            let header = block.ok().and_then(|block| record::peek(block.bytes()));
            matches!(here, Found::End) && header.as_ref().is_some_and(next)
        }
    };
    if turns { (there, other) } else { (here, place) }
}

/// Handles the absence of the next record: the log ends here, or the record is damaged. True if the
/// log continues behind it.
async fn missing(fsck: &mut Fsck, volume: &Volume, log: &mut Log<'_>, mut here: Found) -> bool {
    if let Found::End = here
        && let Some((place, why)) = wiped(fsck, volume, (log.half, log.next)).await
    {
        (log.half, log.next) = place;
        here = Found::Damaged(why);
    }
    let behind = u32::from(matches!(here, Found::Damaged(_)));
    let later = look(fsck, volume, (log.half, log.next + behind), log.sequence).await;
    let place = place(fsck, volume, log);
    let (first, body) = (log.sequence, &volume.body);
    let proof = later.proof(first);
    match here {
        Found::Whole(header, _) if proof.is_none() => {
            let found = format!("sequence {} of epoch {}", header.sequence, header.epoch);
            let expected = format!("sequence {first} of epoch {}", body.sync_epoch);
            fsck.add(RECORD, place, expected, found);
            return false;
        }
        Found::End if proof.is_none() => return false,
        _ => {}
    }
    // A damaged record that was completely written does not end the log.
    let durable = later.durable().max(first + u64::from(behind));
    let next = later.next(first).filter(|(.., sequence)| *sequence <= durable);
    let end = next.map_or(durable, |(.., sequence)| sequence).min(body.sync_limit.get());
    let found = match here {
        Found::Damaged(why) => why,
        Found::Whole(header, _) => format!("record {}", header.sequence),
        Found::End => "nothing".to_owned(),
    };
    let place = match end - first {
        1 => place,
        _ => format!("{place}, to {}", end - 1),
    };
    let proof = proof.map_or(String::new(), |proof| format!(", which {proof}"));
    fsck.add(RECORD, place, format!("a whole record{proof}"), found);
    (log.sequence, log.damaged) = (end, true);
    match next {
        Some((half, block, _)) => {
            (log.half, log.next) = (half, block);
            true
        }
        None => false,
    }
}

/// Finds a place where something was written, according to the write pointers, but no record is
/// left. If this half has space for another record, the place holds zeros instead of the record. If
/// this half is full, the place is the front of the other half, which holds no record.
async fn wiped(
    fsck: &Fsck,
    volume: &Volume,
    (half, next): (u32, u32),
) -> Option<((u32, u32), String)> {
    let (plan, blocks) = (&volume.plan, volume.plan.sync_stripe().blocks());
    let zones = |half: u32| plan.sync_half(half as u8).into_iter();
    let state = |zone: ZoneId| fsck.reports.get(zone.0 as usize).map(|report| report.state);
    let exact = |half| {
        let is_exact = |state: ZoneState| state.is_active() || state == ZoneState::Empty;
        zones(half).all(|zone| state(zone).is_some_and(is_exact))
    };
    let written =
        |half, at| block_addr(fsck, volume, half, at).filter(|addr| fsck.is_written(*addr));
    if next + record_blocks_max(blocks) <= blocks {
        written(half, next).filter(|_| exact(half))?;
        let mut zeros = 0;
        for addr in (next..blocks).filter_map(|at| written(half, at)) {
            fsck.read_one(addr).await.ok().filter(|page| is_zero(page.bytes()))?;
            zeros += 1;
        }
        return Some((
            (half, next),
            format!("zeros, where {} were written", count(zeros, "block")),
        ));
    }
    let has_room = |zone: ZoneId| {
        state(zone).is_some_and(ZoneState::is_active) && fsck.written(zone) < plan.capacity
    };
    if half != volume.body.sync_half.get() || zones(half).any(has_room) {
        return None;
    }
    let other = 1 - half;
    let first = fsck.read_one(written(other, 0)?).await.ok()?;
    if is_zero(first.bytes()) && !exact(other) {
        return None;
    }
    for addr in (0..blocks).take(GAP as usize).filter_map(|at| written(other, at)) {
        if fsck.read_one(addr).await.is_ok_and(|page| record::peek(page.bytes()).is_some()) {
            return None;
        }
    }
    Some(((other, 0), "no record in a zone that was written".to_owned()))
}

/// Finds the whole records from block `from` to the end of a half, and those of the other half. The
/// search ends at records older than `sequence`.
async fn look<'a>(fsck: &Fsck, volume: &'a Volume, from: (u32, u32), sequence: u64) -> Later<'a> {
    let mut records = Vec::new();
    for (half, start) in [from, (1 - from.0.min(1), 0)] {
        let (mut block, mut gap) = (start, 0);
        while gap < GAP && block_addr(fsck, volume, half, block).is_some() {
            let Found::Whole(header, _) = record_at(fsck, volume, half, block).await else {
                (block, gap) = (block + 1, gap + 1);
                continue;
            };
            let (epoch, number) = (header.epoch, header.sequence.get());
            if epoch < volume.body.sync_epoch
                || epoch == volume.body.sync_epoch && number < sequence
            {
                break;
            }
            records.push((half, block, header));
            (block, gap) = (block + header.blocks(), 0);
        }
    }
    Later { records, checkpoint: volume.header.checkpoint.get(), body: &volume.body }
}

fn is_next(volume: &Volume, header: &RecordHeader, sequence: u64) -> bool {
    header.sequence.get() == sequence && header.epoch == volume.body.sync_epoch
}

fn place(fsck: &Fsck, volume: &Volume, log: &Log<'_>) -> String {
    let at = block_addr(fsck, volume, log.half, log.next);
    let at = at.map_or("past the log's end".into(), |addr| fsck.at(addr));
    format!("{} at {at}", log.sequence)
}

/// Address of a block in a half of the log.
fn block_addr(fsck: &Fsck, volume: &Volume, half: u32, block: u32) -> Option<u32> {
    let plan = &volume.plan;
    let stripe = plan.sync_stripe();
    if block >= stripe.blocks() {
        return None;
    }
    let (column, offset) = stripe.place(block);
    Some(fsck.addr(plan.sync_zone(half as u8, column), offset))
}

async fn record_at(fsck: &Fsck, volume: &Volume, half: u32, at: u32) -> Found {
    let mut bytes: Vec<u8> = Vec::new();
    let mut header = None;
    let mut blocks = 1;
    let mut read = 0;
    let mut doubtful = false;
    while read < blocks {
        let addr = block_addr(fsck, volume, half, at.saturating_add(read));
        let Some(addr) = addr.filter(|addr| fsck.is_written(*addr)) else {
            return torn(header.as_ref(), &bytes);
        };
        let page = match fsck.read_one(addr).await {
            Ok(page) => page,
            Err(error) => return Found::Damaged(error.to_string()),
        };
        let zone = ZoneId(addr / volume.plan.capacity);
        doubtful |= fsck.is_doubtful(zone);
        if read > 0 && fsck.is_doubtful(zone) && is_zero(page.bytes()) {
            return torn(header.as_ref(), &bytes);
        }
        if read == 0 {
            let Some(first) = record::peek(page.bytes()) else {
                let zeros = is_zero(page.bytes());
                return if zeros { Found::End } else { Found::Damaged("no record header".into()) };
            };
            blocks = first.blocks();
            header = Some(first);
        }
        bytes.extend_from_slice(page.bytes());
        read += 1;
    }
    let plan = &volume.plan;
    let expect = Expect { kind: kind::SYNC, device: Some(plan.device), object: Some(plan.uuid) };
    match record::open(&bytes, &expect) {
        Ok((header, body)) => Found::Whole(header, body.to_vec()),
        Err(_)
            if header.is_some_and(|h| h.epoch != volume.body.sync_epoch) && ends_early(&bytes) =>
        {
            Found::End
        }
        Err(_)
            if doubtful
                && fsck.is_cut_off(&bytes, header.map_or(0, |h| h.length.get() as usize)) =>
        {
            torn(header.as_ref(), &bytes)
        }
        Err(error) => Found::Damaged(error.to_string()),
    }
}

/// Whether one of the record's later blocks holds only zeros or the header of another record. If
/// so, a crash cut the record off, and the mount after the crash filled the half with zeros or
/// continued there with its own records.
fn ends_early(bytes: &[u8]) -> bool {
    let other = |block: &[u8]| is_zero(block) || record::peek(block).is_some();
    bytes.chunks(BLOCK).skip(1).any(other)
}

/// Judges a record that was only partly written, which ends the log. If its items show that the
/// record is complete, its length field is damaged instead.
fn torn(header: Option<&RecordHeader>, bytes: &[u8]) -> Found {
    match header.and_then(|header| length_by_items(header, bytes)) {
        Some(length) => Found::Damaged(format!("a length other than its {length} bytes")),
        None => Found::End,
    }
}

/// Computes the length from the items. Returns it if the record's checksum is right with this
/// length: only the length in the header is then damaged.
fn length_by_items(header: &RecordHeader, bytes: &[u8]) -> Option<usize> {
    let body = bytes.get(size_of::<RecordHeader>()..)?;
    let mut input = Input(body);
    while let Some(Some(_)) = input.0.first().filter(|tag| **tag != 0).map(|_| input.item()) {}
    let length = bytes.len() - input.0.len();
    let mut bare = *header;
    bare.crc = 0.into();
    bare.length = (length as u32).into();
    let body = &bytes[size_of::<RecordHeader>()..length];
    (crc32c_append(crc32c(bare.as_bytes()), body) == header.crc.get()).then_some(length)
}

/// Checks a record's items and adds them to `log`. Returns false if the items cannot be read, or if
/// blocks that the record depends on never reached the drive: the log then ends before the record.
async fn accept(
    fsck: &mut Fsck,
    volume: &Volume,
    log: &mut Log<'_>,
    header: &RecordHeader,
    body: &[u8],
) -> bool {
    let place = format!("{}", header.sequence);
    fsck.expect_zero(RECORD, || format!("{place}: header, reserved"), &header.reserved);
    let (sequence, durable) = (header.sequence.get(), header.durable.get());
    let possible = match volume.plan.has_proofs() {
        false => 0..=0,
        true => sequence.saturating_sub(3)..=sequence,
    };
    if !possible.contains(&durable) {
        let expected = format!("{} to {}", possible.start(), possible.end());
        fsck.add(RECORD, format!("{place}: header, durable"), expected, durable);
    }
    if header.checkpoint > volume.header.checkpoint {
        let expected = format!("at most {}", volume.header.checkpoint);
        fsck.add(RECORD, format!("{place}: checkpoint"), expected, header.checkpoint);
    }
    let mut items = Vec::new();
    let mut input = Input(body);
    while !input.0.is_empty() {
        let Some(item) = input.item() else {
            let tag = input.0[0];
            fsck.add(RECORD, place, "items up to its end", format!("tag {tag} and its fields"));
            return false;
        };
        items.push(item);
    }
    for item in &items {
        if let Item::Allocated { superzone, generation, .. } = item
            && let Some(known) = log.generations.get_mut(*superzone as usize)
        {
            *known = *generation;
        }
    }
    let (mut doubtful, mut lacks) = (Vec::new(), false);
    for item in &items {
        let Item::Depends { zone, generation, end } = item else { continue };
        match holds(fsck, volume, log, (*zone, *generation, *end), &place) {
            Holds::Yes => {}
            Holds::No => lacks = true,
            Holds::Perhaps => doubtful.push(*zone),
        }
    }
    if lacks || !doubtful.is_empty() && !arrived(fsck, volume, &items, &doubtful).await {
        let later = look(fsck, volume, (log.half, log.next), log.sequence).await;
        let Some(proof) = later.proof(header.sequence.get()) else {
            let note = format!("sync record {place}: blocks that it depends on were lost");
            fsck.report.notes.extend((!lacks).then_some(note));
            return false;
        };
        let expected = format!("all that it needs, as the record {proof}");
        fsck.add(RECORD, format!("{place}: blocks"), expected, "blocks that were never written");
    }
    // Apply changes after the record's nodes are in their places.
    let (changes, others): (Vec<Item>, Vec<Item>) =
        items.into_iter().partition(|item| matches!(item, Item::Change(_)));
    let (ranges, others): (Vec<Item>, Vec<Item>) =
        others.into_iter().partition(|item| matches!(item, Item::Range { .. }));
    for item in others.into_iter().chain(changes).chain(ranges) {
        check_item(fsck, volume, log, &place, item);
    }
    true
}

/// Whether the drive has the blocks that a record depends on.
enum Holds {
    Yes,
    No,
    /// The zone's write pointer cannot tell.
    Perhaps,
}

/// Decides from the zone's write pointer whether the drive has the blocks that a record depends on.
fn holds(
    fsck: &mut Fsck,
    volume: &Volume,
    log: &Log<'_>,
    (zone, generation, end): (u32, u32, u32),
    place: &str,
) -> Holds {
    let superzone = zone.checked_sub(volume.plan.main_start).map(|z| z / volume.plan.width);
    // A superzone that was full at the checkpoint's snapshot was durable then, even if it was
    // released later.
    if let Some(then) = superzone.and_then(|index| volume.superzones.get(index as usize))
        && (then.generation > generation
            || then.state == super::state::FULL && then.generation == generation)
    {
        return Holds::Yes;
    }
    let known = superzone.and_then(|index| log.generations.get(index as usize)).copied();
    if known != Some(generation) || end > volume.plan.capacity {
        let known = known.map_or("none: no zone of the main area".into(), |g| g.to_string());
        let found = format!("generation {generation}, block {end} of zone {zone}");
        let expected = format!("generation {known}, at most {} blocks", volume.plan.capacity);
        fsck.add(RECORD, format!("{place}: depends"), expected, found);
        return Holds::No;
    }
    let id = ZoneId(zone);
    let offline = fsck.reports.get(zone as usize).is_some_and(|r| r.state == ZoneState::Offline);
    if fsck.is_doubtful(id) {
        Holds::Perhaps
    } else if offline || fsck.written(id) >= end {
        Holds::Yes
    } else {
        Holds::No
    }
}

/// Whether the drive has the nodes that a record names, and the blocks that these nodes and the
/// record's changes point to. Only blocks in the zones `doubtful` are checked, and only those that
/// the checkpoint does not cover.
async fn arrived(fsck: &Fsck, volume: &Volume, items: &[Item], doubtful: &[u32]) -> bool {
    let is_doubtful = |addr: u32| doubtful.contains(&(addr / volume.plan.capacity));
    for item in items {
        let set = match item {
            Item::Change(change) => change.set(),
            Item::Node(_, entry) => {
                let addr = entry.addr.get();
                // A node that cannot be read is reported where nodes are checked.
                let Ok(page) = fsck.read_one(addr).await else { continue };
                if crc32c(page.bytes()) != entry.crc.get() {
                    // A node with wrong content is reported where nodes are checked, unless its
                    // block was never written.
                    if is_doubtful(addr) && never_written(fsck, &page) {
                        return false;
                    }
                    continue;
                }
                pointers(&page)
            }
            _ => continue,
        };
        for pointer in set {
            let addr = pointer.addr.get();
            if addr == HOLE || !is_doubtful(addr) || !volume.is_behind(addr) {
                continue;
            }
            let Ok(block) = fsck.read_one(addr).await else { continue };
            if crc32c(block.bytes()) != pointer.crc.get() && never_written(fsck, &block) {
                return false;
            }
        }
    }
    true
}

/// True if the block's last sector is zeros, so that the block was not completely written: writes
/// are torn between sectors.
fn never_written(fsck: &Fsck, block: &Page) -> bool {
    let sector = (fsck.geometry.block_size.0 as usize).min(block.bytes().len());
    is_zero(&block.bytes()[block.bytes().len() - sector..])
}

fn check_item(fsck: &mut Fsck, volume: &Volume, log: &mut Log<'_>, place: &str, item: Item) {
    let nodes = volume.plan.nodes;
    let inode = |fsck: &mut Fsck, what: &str, ino: u32| {
        if ino == 0 || ino >= nodes {
            fsck.add(RECORD, format!("{place}: {what}"), format!("inode 1 to {}", nodes - 1), ino);
        }
    };
    match item {
        Item::Name { number, inodes, kind, names, xattrs: packed } => {
            if let Some(found) = xattrs::fault(&packed) {
                fsck.add(RECORD, format!("{place}: extended attributes"), "whole ones", found);
            }
            // A file that was made without a name is in no directory.
            let unnamed = kind == Some(Kind::File.code())
                && inodes.first() == Some(&0)
                && names.first().is_some_and(Vec::is_empty);
            let (inodes, names) = match unnamed {
                true => (&inodes[1..], &names[1..]),
                false => (&inodes[..], &names[..]),
            };
            inodes.iter().for_each(|ino| inode(fsck, "namespace operation", *ino));
            let first = log.damaged.then(|| volume.body.namespace_sequence.get());
            let expected = log.number.replace(number.wrapping_add(1)).or(first);
            match expected {
                Some(expected) if log.damaged && number > expected => {
                    let changes = format!("name changes {expected} to {}", number - 1);
                    fsck.add(RECORD, changes, "in a record", "in none that can be read");
                }
                // The operation is the first one after the checkpoint, or the checkpoint already
                // contains it.
                Some(expected) if log.damaged && Some(expected) == first => {}
                Some(expected) => {
                    fsck.expect(RECORD, || format!("{place}: number"), expected, number);
                }
                None => {}
            }
            if kind.is_some_and(|kind| Kind::from_code(kind).is_none()) {
                fsck.add(RECORD, format!("{place}: kind"), "1 to 7", kind.unwrap_or(0));
            }
            for name in names {
                if let Err(error) = dirent::validate_name(name) {
                    fsck.add(RECORD, format!("{place}: name"), "a name", error);
                }
            }
        }
        Item::Node(nid, entry) => {
            inode(fsck, "node", nid);
            inode(fsck, "node's inode", entry.ino.get());
            let logged = Logged { entry: Some(entry), changes: Vec::new() };
            log.replace(nid, Some(logged));
        }
        Item::Change(change) => {
            inode(fsck, "change", change.nid);
            inode(fsck, "change's inode", change.ino);
            if let Some(found) = change.fault() {
                let place = format!("{place}: change of node {}", change.nid);
                return fsck.add(RECORD, place, "whole words of a node, ascending", found);
            }
            if change.new {
                if let Some(user) = log.user(change.nid) {
                    let place = format!("{place}: new node {}", change.nid);
                    fsck.add(RECORD, place, "an id that is free", user);
                }
                log.replace(change.nid, Some(Logged::default()));
            }
            let known = log.nodes.entry(change.nid).or_insert_with(|| Some(Logged::default()));
            match known {
                Some(logged) => logged.changes.push(change),
                None => {
                    let place = format!("{place}: change of node {}", change.nid);
                    fsck.add(RECORD, place, "a node in use", "one that a record freed");
                }
            }
        }
        Item::Freed(nid) => {
            inode(fsck, "freed", nid);
            log.replace(nid, None);
        }
        Item::Allocated { stream, superzone, .. } => {
            let heads = volume.plan.streams * HEADS_PER_STREAM;
            if u32::from(stream) >= heads || superzone >= volume.plan.superzones {
                let found = format!("stream {stream}, superzone {superzone}");
                fsck.add(RECORD, format!("{place}: allocated"), "ones that exist", found);
            }
        }
        Item::Depends { .. } => {}
        Item::Attributes { ino, nanoseconds } => {
            inode(fsck, "attributes", ino);
            if nanoseconds.iter().any(|ns| *ns >= 1_000_000_000) {
                let found = format!("{nanoseconds:?}");
                fsck.add(RECORD, format!("{place}: attributes"), "nanoseconds below 10^9", found);
            }
        }
        Item::Xattrs { ino, packed } => {
            inode(fsck, "extended attributes", ino);
            if let Some(found) = xattrs::fault(&packed) {
                fsck.add(RECORD, format!("{place}: extended attributes"), "whole ones", found);
            }
        }
        Item::Range { ino, first, count } => {
            inode(fsck, "range", ino);
            let of_file = |logged: &Logged| match logged.changes.last() {
                Some(change) => change.ino == ino,
                None => logged.entry.is_some_and(|entry| entry.ino.get() == ino),
            };
            if !log.nodes.values().flatten().any(of_file) {
                fsck.add(RECORD, format!("{place}: range"), "a file with nodes in the log", ino);
            }
            if count == 0 || first.checked_add(count).is_none() {
                let found = format!("{count} blocks from {first}");
                fsck.add(RECORD, format!("{place}: range"), "blocks of a file", found);
            }
        }
    }
}

/// Checks nodes as the records leave them, and the blocks that they point to.
async fn check_nodes(
    fsck: &mut Fsck,
    volume: &Volume,
    nat: &Table<NatEntry>,
    nodes: BTreeMap<u32, Option<Logged>>,
) {
    for (nid, logged) in nodes {
        let Some(Logged { entry, changes }) = logged else { continue };
        let new = changes.first().filter(|change| change.new);
        let known = || (nid < volume.plan.nodes).then(|| nat.get(nid));
        let Some(entry) = entry.or_else(known) else { continue };
        let ino = new.map_or(entry.ino.get(), |change| change.ino);
        if ino == 0 {
            fsck.add(RECORD, format!("change of node {nid}"), "a node in use", "one that is free");
            continue;
        }
        let page = match new {
            Some(change) => Some(change.empty()),
            None => read_node(fsck, volume, entry, nid, ino).await,
        };
        let Some(mut page) = page else { continue };
        let wrong = changes.iter().find_map(|change| change.make(&mut page, ino).err());
        if let Some((expected, found)) = wrong {
            fsck.add(RECORD, format!("change of node {nid} of inode {ino}"), expected, found);
            continue;
        }
        let pointers = pointers(&page);
        if !fsck.options.verify_data {
            continue;
        }
        fsck.inode = Some(ino);
        for (slot, pointer) in pointers.iter().enumerate() {
            if pointer.addr.get() != HOLE {
                check_pointer(fsck, volume, (nid, slot), pointer).await;
            }
        }
        fsck.inode = None;
    }
}

async fn check_pointer(
    fsck: &mut Fsck,
    volume: &Volume,
    (nid, slot): (u32, usize),
    pointer: &Pointer,
) {
    let addr = pointer.addr.get();
    let place = format!("node {nid} slot {slot} at {}", fsck.at(addr));
    if volume.locate(addr).is_none() || !fsck.is_written(addr) {
        return fsck.add("pointer", place, "a written block of a segment", addr);
    }
    match fsck.read_one(addr).await {
        Ok(page) => {
            let (expected, found) = (pointer.crc.get(), crc32c(page.bytes()));
            if expected != found {
                let expected = format!("checksum {expected:08x}");
                fsck.add("data", place, expected, format!("{found:08x}"));
            }
        }
        Err(error) => fsck.add("data", place, "a block that can be read", error),
    }
}

/// Checks that after a clean unmount the log holds no record to replay, and that it is written up
/// to the next block.
fn check_clean(fsck: &mut Fsck, volume: &Volume, records: u64) {
    fsck.expect(RECORD, || "count after a clean unmount".into(), 0, records);
    let (plan, body) = (&volume.plan, &volume.body);
    let stripe = plan.sync_stripe();
    // A half that was left because one of its zones failed counts as full, even if its other zones
    // are not.
    if body.sync_next.get() >= stripe.blocks() {
        return;
    }
    let zones = plan.sync_half(body.sync_half.get() as u8);
    for (column, zone) in zones.into_iter().enumerate() {
        let least = stripe.fill(column as u32, body.sync_next.get());
        let found = fsck.written(zone);
        if found < least {
            let expected = format!("at most what is written of zone {zone}, {found}");
            fsck.add("checkpoint", "sync_next", expected, least);
        }
    }
}
