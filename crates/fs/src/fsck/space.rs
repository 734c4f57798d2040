//! Checks space: each block has one owner, the SIT and the summaries agree with the owners, and
//! zones are written up to the positions of the streams.

use super::tables::Tables;
use super::tree::{NODE_SLOT, Owner, Walk};
use super::{Fsck, Volume, state};
use crate::format::{INODE_POINTERS, SUMMARY_MAGIC, SitEntry, SummaryEntry, SummaryHeader};
use furrow_log::record::crc32c;
use furrow_rt::Page;
use furrow_rt::buf::is_zero;
use furrow_zone::{ZoneId, ZoneState};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::{FromBytes, IntoBytes};

const SIT: &str = "SIT entry";
const SUMMARY: &str = "summary";
const STREAM: &str = "stream";
const SUPERZONE: &str = "superzone descriptor";

/// A segment's map of valid blocks.
type Map = [u8; 64];

/// The blocks that have owners, by address, and the maps of valid blocks that result from them.
struct Space {
    owners: Vec<Owner>,
    /// The inode of each leaf that covers block 0 of its file, by the leaf's node id.
    first_leaves: BTreeMap<u32, u32>,
    maps: BTreeMap<u32, Map>,
    /// Number of valid blocks in each superzone.
    valid: Vec<u32>,
}

/// Checks space, using the owners that the walk found.
pub(super) async fn check(fsck: &mut Fsck, volume: &Volume, tables: &Tables, walk: Walk) {
    let complete = walk.damaged.is_empty();
    let mut owners = walk.owners;
    owners.sort_unstable();
    check_owned_once(fsck, &owners);
    let mut space = Space {
        owners,
        first_leaves: walk.first_leaves,
        maps: BTreeMap::new(),
        valid: vec![0; volume.superzones.len()],
    };
    for owner in &space.owners {
        // Owners of blocks outside segments were reported earlier and are not in the list.
        let Some((superzone, segment, block)) = volume.locate(owner.addr) else { continue };
        let map = space.maps.entry(segment).or_insert([0; 64]);
        let bit = 1 << (block % 8);
        if map[(block / 8) as usize] & bit == 0 {
            map[(block / 8) as usize] |= bit;
            space.valid[superzone as usize] += 1;
        }
    }
    check_sit(fsck, tables, &space, complete);
    check_streams(fsck, volume, &space);
    check_superzones(fsck, volume, &space);
    check_summaries(fsck, volume, tables, &space).await;
}

fn check_owned_once(fsck: &mut Fsck, owners: &[Owner]) {
    for pair in owners.windows(2) {
        if pair[0].addr == pair[1].addr {
            let show = |o: &Owner| format!("node {} slot {}", o.node, o.slot);
            let found = format!("{} and {}", show(&pair[0]), show(&pair[1]));
            fsck.add("pointer", format!("block at {}", fsck.at(pair[0].addr)), "one owner", found);
        }
    }
}

/// Compares the SIT with the maps. If the walk is not `complete`, blocks of damaged files are
/// unknown, so a set bit without an owner is ignored.
fn check_sit(fsck: &mut Fsck, tables: &Tables, space: &Space, complete: bool) {
    let empty = [0; 64];
    let compare = |fsck: &mut Fsck, segment: u32, entry: &SitEntry| {
        let map = space.maps.get(&segment).unwrap_or(&empty);
        for (byte, (said, owned)) in entry.map.iter().zip(map).enumerate() {
            let (unsaid, unowned) = (owned & !said, said & !owned);
            let place = || format!("{segment}: map, blocks {} to {}", byte * 8, byte * 8 + 7);
            if unsaid != 0 {
                fsck.add(SIT, place(), format!("bits {owned:08b}, in use"), format!("{said:08b}"));
            } else if unowned != 0 && complete {
                fsck.add(SIT, place(), format!("bits {owned:08b}"), format!("{said:08b}"));
            }
        }
    };
    // After the loop, `left` has the segments whose table page does not exist.
    let mut left: BTreeSet<u32> = space.maps.keys().copied().collect();
    for (segment, entry) in tables.sit.iter() {
        compare(fsck, segment, &entry);
        left.remove(&segment);
    }
    for segment in left {
        compare(fsck, segment, &tables.sit.get(segment));
    }
}

fn check_streams(fsck: &mut Fsck, volume: &Volume, space: &Space) {
    let plan = &volume.plan;
    let mut taken: BTreeMap<u32, usize> = BTreeMap::new();
    for (index, stream) in volume.streams.iter().enumerate() {
        let place = |field: &'static str| move || format!("{index}: {field}");
        fsck.expect_zero(STREAM, place("reserved"), &stream.reserved.to_bytes());
        let (id, next) = (stream.superzone.get(), stream.next.get());
        let entries = &volume.summaries[index];
        if id == u32::MAX {
            fsck.expect(STREAM, place("next, without a superzone"), 0, next);
            fsck.expect(STREAM, place("summary, without a superzone"), 0, entries.len());
            continue;
        }
        let Some(superzone) = volume.superzones.get(id as usize) else {
            fsck.add(STREAM, place("superzone")(), format!("below {}", plan.superzones), id);
            continue;
        };
        if let Some(other) = taken.insert(id, index) {
            fsck.add(STREAM, place("superzone")(), "one of its own", format!("{other}'s, {id}"));
        }
        fsck.expect(STREAM, place("state of its superzone"), state::ACTIVE, superzone.state);
        let stripe = plan.stripe(superzone.zones.len() as u32);
        if superzone.zones.is_empty()
            || next >= stripe.blocks()
            || stripe.is_summary(next)
            || stripe.is_padding(next)
        {
            fsck.add(STREAM, place("next")(), "a block for data or a node", next);
            continue;
        }
        let begun = next % stripe.segment;
        fsck.expect(STREAM, place("summary"), begun as usize, entries.len());
        for (column, zone) in superzone.zones.iter().enumerate() {
            let (least, found) = (stripe.fill(column as u32, next), fsck.written(*zone));
            if found < least {
                let expected = format!("written up to {least}, where stream {index} is");
                fsck.add("zone", zone.to_string(), expected, found);
            }
        }
        let k = next / stripe.segment;
        let segment = id * plan.segments + k;
        check_entries(fsck, volume, space, segment, (id, k), entries);
    }
    for (index, superzone) in volume.superzones.iter().enumerate() {
        if superzone.state == state::ACTIVE && !taken.contains_key(&(index as u32)) {
            let place = format!("superzone {index}: state");
            fsck.add(SUPERZONE, place, "a state other than active: no stream has it", "active");
        }
    }
}

/// Compares the entries of a summary with the owners of valid blocks.
fn check_entries(
    fsck: &mut Fsck,
    volume: &Volume,
    space: &Space,
    segment: u32,
    (superzone, k): (u32, u32),
    entries: &[SummaryEntry],
) {
    let Some(map) = space.maps.get(&segment) else { return };
    let zones = &volume.superzones[superzone as usize].zones;
    let stripe = volume.plan.stripe(zones.len() as u32);
    let start = stripe.segment_range(k).start;
    for (block, entry) in entries.iter().enumerate() {
        let place = || format!("superzone {superzone} segment {k} block {block}");
        if map.get(block / 8).is_none_or(|byte| byte >> (block % 8) & 1 == 0) {
            continue;
        }
        let (column, offset) = stripe.place(start + block as u32);
        let addr = fsck.addr(zones[column as usize], offset);
        let Ok(at) = space.owners.binary_search_by_key(&addr, |owner| owner.addr) else { continue };
        let owner = space.owners[at];
        let (node, slot) = (entry.node.get(), entry.slot.get());
        // As a file grows, a pointer that the inode held moves to the first leaf; the summary still
        // names the inode.
        let moved = slot == owner.slot
            && slot != NODE_SLOT
            && usize::from(slot) < INODE_POINTERS
            && space.first_leaves.get(&owner.node) == Some(&node);
        if (node, slot) != (owner.node, owner.slot) && !moved {
            let expected = format!("node {} slot {}", owner.node, owner.slot);
            fsck.add(SUMMARY, place(), expected, format!("node {node} slot {slot}"));
        }
    }
    // Report valid blocks for which the summary has no entry.
    for block in entries.len()..512 {
        if map[block / 8] >> (block % 8) & 1 == 1 {
            let place = format!("superzone {superzone} segment {k} block {block}");
            fsck.add(SUMMARY, place, "a block behind the stream, not in use", "one in use");
        }
    }
}

/// Checks descriptors against the valid blocks in their zones.
fn check_superzones(fsck: &mut Fsck, volume: &Volume, space: &Space) {
    for (index, superzone) in volume.superzones.iter().enumerate() {
        let valid = space.valid[index];
        if matches!(superzone.state, state::FREE | state::TABLES) && valid > 0 {
            let place = format!("superzone {index}: state");
            fsck.add(
                SUPERZONE,
                place,
                format!("in use, for {valid} valid blocks"),
                superzone.state,
            );
        }
    }
}

/// Checks the summary of each closed segment, in superzones with valid blocks.
async fn check_summaries(fsck: &mut Fsck, volume: &Volume, tables: &Tables, space: &Space) {
    let plan = &volume.plan;
    for (index, superzone) in volume.superzones.iter().enumerate() {
        // A superzone without valid blocks may have been reset, and even written again, since the
        // checkpoint.
        if space.valid[index] == 0 || superzone.zones.is_empty() {
            continue;
        }
        let stripe = plan.stripe(superzone.zones.len() as u32);
        let stream = volume.streams.iter().find(|s| s.superzone.get() == index as u32);
        let end = stream.map_or(stripe.blocks(), |stream| stream.next.get());
        for k in 0..stripe.segments() {
            if stripe.segment_range(k).end <= end {
                let before = fsck.count();
                check_summary(fsck, volume, tables, space, (index as u32, k)).await;
                if fsck.count() > before {
                    fsck.report.bad_summaries.insert(index as u32);
                }
            }
        }
    }
}

async fn check_summary(
    fsck: &mut Fsck,
    volume: &Volume,
    tables: &Tables,
    space: &Space,
    (index, k): (u32, u32),
) {
    let superzone = &volume.superzones[index as usize];
    let stripe = volume.plan.stripe(superzone.zones.len() as u32);
    let (column, offset) = stripe.place(stripe.summary_index(k));
    let addr = fsck.addr(superzone.zones[column as usize], offset);
    let place = format!("superzone {index} segment {k} at {}", fsck.at(addr));
    let written = fsck.is_written(addr);
    let segment = index * volume.plan.segments + k;
    let read = fsck.read_one(addr).await;
    // Tolerate a missing summary in the following cases, as the nodes still name the owners of all
    // blocks. A power cut may leave a zone full although its last blocks, including a summary, were
    // lost. The drive itself may make a zone full or read-only, so that it cannot be written any
    // more. The engine itself leaves zeros where appends failed, and closes a superzone with a dead
    // zone without further writes.
    let dead = |zone: &ZoneId| {
        let report = fsck.reports.get(zone.0 as usize);
        report.is_some_and(|r| matches!(r.state, ZoneState::ReadOnly | ZoneState::Offline))
    };
    let zone = superzone.zones[column as usize];
    let closed = fsck.is_doubtful(zone) || superzone.zones.iter().any(dead);
    // A write may also be torn within a block, if the drive's sectors are smaller.
    let torn = |page: &Page| {
        let used = size_of::<SummaryHeader>() + summary_entries(page).len() * SummaryEntry::SIZE;
        let sound = summary_checksum(page).is_some_and(|(stored, found)| stored == found);
        !sound && fsck.is_cut_off(page.bytes(), used)
    };
    let zeros = |page: &Page| is_zero(page.bytes());
    let empty = read.as_ref().is_ok_and(|page| zeros(page) || torn(page));
    if (empty && written) || (closed && (empty || read.is_err())) {
        if space.maps.contains_key(&segment) {
            let why = "no summary, lost when the power was cut or a zone failed";
            fsck.report.notes.push(format!("{place}: {why}"));
        }
        return;
    }
    let page = match read {
        Ok(page) if written => page,
        Ok(_) => return fsck.add(SUMMARY, place, "a written block", "not written"),
        Err(error) => return fsck.add(SUMMARY, place, "a block that can be read", error),
    };
    fsck.report.statistics.summaries += 1;
    let head = SummaryHeader::read_from_prefix(page.bytes());
    let (Ok((head, rest)), Some((stored, found))) = (head, summary_checksum(&page)) else { return };
    let expected = format!("checksum {stored:08x}");
    if stored != found {
        return fsck.add(SUMMARY, place, expected, format!("{found:08x}"));
    }
    let field = |name: &'static str| {
        let place = place.clone();
        move || format!("{place}: {name}")
    };
    let count = stripe.segment_range(k).len() as u32 - 1;
    let object = volume.plan.uuid.0;
    let object = u64::from_le_bytes([
        object[0], object[1], object[2], object[3], object[4], object[5], object[6], object[7],
    ]);
    fsck.expect(SUMMARY, field("magic"), SUMMARY_MAGIC, head.magic.get());
    fsck.expect(SUMMARY, field("superzone"), index, head.superzone.get());
    fsck.expect(SUMMARY, field("segment"), k, head.segment.get());
    fsck.expect(SUMMARY, field("generation"), superzone.generation, head.generation.get());
    fsck.expect(SUMMARY, field("object"), object, head.object.get());
    fsck.expect_zero(SUMMARY, field("reserved"), &[head.reserved]);
    if space.maps.contains_key(&segment) {
        let stream = tables.sit.get(segment).stream;
        fsck.expect(SUMMARY, field("stream, by the SIT"), stream, head.stream);
    }
    if !fsck.expect(SUMMARY, field("count"), count, u32::from(head.count.get())) {
        return;
    }
    let size = count as usize * size_of::<SummaryEntry>();
    let slack = rest.get(size..).unwrap_or_default();
    fsck.expect_zero(SUMMARY, field("after its entries"), slack);
    let entries = summary_entries(&page);
    check_entries(fsck, volume, space, segment, (index, k), &entries);
}

/// The checksum stored in a summary block and the correct one; `None` if it holds no summary.
pub(super) fn summary_checksum(page: &Page) -> Option<(u32, u32)> {
    if is_zero(page.bytes()) {
        return None;
    }
    let (mut head, _) = SummaryHeader::read_from_prefix(page.bytes()).ok()?;
    let stored = head.crc.get();
    head.crc = 0.into();
    let mut bytes = *page.bytes();
    bytes[..size_of::<SummaryHeader>()].copy_from_slice(head.as_bytes());
    Some((stored, crc32c(&bytes)))
}

/// The entries of a summary block: as many as its count says, but no more than fit into the block.
pub(super) fn summary_entries(page: &Page) -> Vec<SummaryEntry> {
    let Ok((head, rest)) = SummaryHeader::read_from_prefix(page.bytes()) else { return Vec::new() };
    let entries = rest.chunks_exact(size_of::<SummaryEntry>());
    let entries = entries.filter_map(|chunk| SummaryEntry::read_from_bytes(chunk).ok());
    entries.take(usize::from(head.count.get())).collect()
}
