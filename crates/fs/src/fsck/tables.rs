//! Reads and checks the tables: table pages, completed by the extents of the delta log.

use super::{Fsck, Volume};
use crate::format::{HOLE, NatEntry, SitEntry, UnitRef, kind, table};
use furrow_log::format::{DeltaGroup, ExtentEntry};
use furrow_log::record::{self, Expect, RecordHeader, crc32c_append};
use furrow_rt::buf::concat;
use furrow_zone::ZoneId;
use std::collections::BTreeMap;
use zerocopy::{FromBytes, Immutable, KnownLayout};

const UNIT: &str = "table page";
const DELTA: &str = "delta log";
const EXTENT: &str = "delta log extent";

/// A table as read from the drive. Pages that were never written are not stored: their entries
/// are zeros.
pub(super) struct Table<E> {
    len: u32,
    per_unit: u32,
    units: BTreeMap<u32, Vec<E>>,
}

impl<E: FromBytes + Immutable + KnownLayout + Copy> Table<E> {
    fn new(len: u32, per_unit: u32) -> Table<E> {
        Table { len, per_unit, units: BTreeMap::new() }
    }

    /// Entry `index`; zeros where there is none.
    pub(super) fn get(&self, index: u32) -> E {
        let unit = self.units.get(&(index / self.per_unit));
        let entry = unit.and_then(|unit| unit.get((index % self.per_unit) as usize));
        entry.copied().unwrap_or_else(E::new_zeroed)
    }

    /// The entries of stored table pages, each with its index.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, E)> + '_ {
        self.units.iter().flat_map(|(unit, entries)| {
            let first = unit * self.per_unit;
            entries
                .iter()
                .enumerate()
                .map(move |(i, entry)| (first.saturating_add(i as u32), *entry))
        })
    }

    fn set(&mut self, index: u32, bytes: &[u8]) -> bool {
        let Ok(entry) = E::read_from_bytes(bytes) else { return false };
        if index >= self.len {
            return false;
        }
        let per_unit = self.per_unit as usize;
        let unit = self.units.entry(index / self.per_unit);
        let unit = unit.or_insert_with(|| vec![E::new_zeroed(); per_unit]);
        unit[index as usize % per_unit] = entry;
        true
    }

    fn set_unit(&mut self, unit: u32, bytes: &[u8]) -> bool {
        let entries = bytes.chunks_exact(size_of::<E>());
        let fits = bytes.len() == self.per_unit as usize * size_of::<E>();
        let entries: Vec<E> = entries.filter_map(|c| E::read_from_bytes(c).ok()).collect();
        self.units.insert(unit, entries);
        fits
    }
}

/// NAT and SIT as of the checkpoint.
pub(super) struct Tables {
    pub(super) nat: Table<NatEntry>,
    pub(super) sit: Table<SitEntry>,
}

/// Reads the tables. `None` if any part of them cannot be read: all further checks need them.
pub(super) async fn read(fsck: &mut Fsck, volume: &Volume) -> Option<Tables> {
    let (tables, damaged) = read_all(fsck, volume).await;
    check_unit_places(fsck, volume);
    check_extent_places(fsck, volume);
    if damaged {
        let note = "the tables are damaged: files, directories and space are not checked";
        fsck.report.notes.push(note.into());
        return None;
    }
    check_entries(fsck, volume, &tables);
    Some(tables)
}

/// The readable part of the tables, and whether any of it is damaged.
pub(super) async fn read_all(fsck: &mut Fsck, volume: &Volume) -> (Tables, bool) {
    let plan = &volume.plan;
    let per_nat = plan.nat_per_unit();
    let per_sit = plan.sit_per_unit();
    let mut tables = Tables {
        nat: Table::new(plan.nodes, per_nat),
        sit: Table::new(plan.segment_count(), per_sit),
    };
    let before = fsck.report.findings.len();
    let nat_units = plan.nodes.div_ceil(per_nat);
    let listed = volume.body.nat_units.get();
    for (index, unit) in (0..).zip(&volume.units) {
        let number = if index < listed { index } else { index - listed + nat_units };
        read_unit(fsck, volume, number, nat_units, unit, &mut tables).await;
    }
    let mut newest = [(0, 0); 2];
    for (index, extent) in volume.extents.iter().enumerate() {
        let newest = &mut newest[log_of(volume, index)];
        read_extent(fsck, volume, index, extent, newest, &mut tables).await;
    }
    let damaged = fsck.report.findings.len() > before;
    (tables, damaged)
}

/// The number of the delta log that contains the extent with index `extent`.
fn log_of(volume: &Volume, extent: usize) -> usize {
    usize::from(extent >= volume.body.log_extents.get() as usize)
}

async fn read_unit(
    fsck: &mut Fsck,
    volume: &Volume,
    index: u32,
    nat_units: u32,
    unit: &UnitRef,
    tables: &mut Tables,
) {
    let plan = &volume.plan;
    let addr = unit.addr.get();
    if addr == HOLE {
        fsck.expect(UNIT, || format!("{index}: crc of a page never written"), 0, unit.crc.get());
        return;
    }
    let place = format!("{index} at {}", fsck.at(addr));
    let zone = addr / plan.capacity;
    if !volume.is_of_tables(zone) || plan.capacity - addr % plan.capacity < plan.unit_blocks {
        fsck.add(UNIT, place, "whole, in a zone of the tables", "elsewhere");
        return;
    }
    let bytes = match fsck.read(addr, plan.unit_blocks).await {
        Ok(pages) => concat(&pages),
        Err(error) => return fsck.add(UNIT, place, "a table page that can be read", error),
    };
    fsck.report.statistics.table_blocks += u64::from(plan.unit_blocks);
    let expect = Expect { kind: kind::UNIT, device: Some(plan.device), object: Some(plan.uuid) };
    let (header, body) = match record::open(&bytes, &expect) {
        Ok(opened) => opened,
        Err(error) => return fsck.add(UNIT, place, "a whole record", error),
    };
    let expected = format!("{:08x}", unit.crc.get());
    fsck.expect(UNIT, || format!("{place}: crc"), expected, format!("{:08x}", header.crc.get()));
    fsck.expect(UNIT, || format!("{place}: sequence"), u64::from(index), header.sequence.get());
    check_age(fsck, UNIT, &place, &header, volume, (0, 0));
    let fits = match index.checked_sub(nat_units) {
        None => tables.nat.set_unit(index, body),
        Some(unit) => tables.sit.set_unit(unit, body),
    };
    if !fits {
        fsck.add(UNIT, place, "as many entries as fit", format!("{} bytes", body.len()));
    }
}

/// Checks a record's reserved bytes and that it is not newer than the checkpoint that lists it,
/// nor older than `least`.
fn check_age(
    fsck: &mut Fsck,
    structure: &'static str,
    place: &str,
    header: &RecordHeader,
    volume: &Volume,
    least: (u64, u64),
) {
    fsck.expect_zero(structure, || format!("{place}: header, reserved"), &header.reserved);
    fsck.expect(structure, || format!("{place}: header, durable"), 0, header.durable.get());
    let age = (header.epoch.get(), header.checkpoint.get());
    let most = (volume.header.epoch.get(), volume.header.checkpoint.get());
    if age < least || age > most {
        let expected = format!("(epoch, checkpoint) from {least:?} to {most:?}");
        fsck.add(structure, place, expected, format!("{age:?}"));
    }
}

/// Checks that table pages do not overlap.
fn check_unit_places(fsck: &mut Fsck, volume: &Volume) {
    let plan = &volume.plan;
    let units = volume.units.iter().enumerate();
    let mut places: Vec<(u32, usize)> =
        units.map(|(i, unit)| (unit.addr.get(), i)).filter(|(addr, _)| *addr != HOLE).collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        let ((first, a), (second, b)) = (pair[0], pair[1]);
        if second - first < plan.unit_blocks {
            fsck.add(UNIT, format!("{a} and {b}"), "table pages that do not overlap", "overlap");
        }
    }
}

/// Checks that the position `next` in a half is neither before the end of the blocks in use nor
/// after the end of the written blocks.
fn check_next(fsck: &mut Fsck, field: &'static str, half: &[ZoneId], used: u32, next: u32) {
    let capacity = fsck.capacity();
    let mut written = 0;
    for (index, zone) in half.iter().enumerate() {
        let blocks = fsck.begun(*zone);
        if blocks > 0 {
            written = index as u32 * capacity + blocks;
        }
    }
    if next < used || next > written {
        let expected = format!("{used} to {written}, the blocks in use and written");
        fsck.add("checkpoint", field, expected, next);
    }
}

async fn read_extent(
    fsck: &mut Fsck,
    volume: &Volume,
    index: usize,
    extent: &ExtentEntry,
    newest: &mut (u64, u64),
    tables: &mut Tables,
) {
    let plan = &volume.plan;
    let (first, blocks) = (extent.first.get(), extent.blocks.get());
    fsck.expect_zero(EXTENT, || format!("{index}: reserved"), &extent.reserved);
    let room = u64::from(plan.delta_zones) * u64::from(plan.capacity);
    if extent.half > 1 || blocks == 0 || u64::from(first) + u64::from(blocks) > room {
        let found = format!("half {}, blocks {first} + {blocks}", extent.half);
        fsck.add(EXTENT, index.to_string(), format!("blocks below {room} of half 0 or 1"), found);
        return;
    }
    let zone = plan.delta_first(log_of(volume, index), extent.half);
    let mut crc = 0;
    for block in first..first + blocks {
        let addr = zone * plan.capacity + block;
        let place = fsck.at(addr);
        let page = match fsck.read_one(addr).await {
            Ok(page) => page,
            Err(error) => return fsck.add(DELTA, place, "a block that can be read", error),
        };
        fsck.report.statistics.table_blocks += 1;
        crc = crc32c_append(crc, page.bytes());
        let expect =
            Expect { kind: kind::DELTA, device: Some(plan.device), object: Some(plan.uuid) };
        let (header, body) = match record::open(page.bytes(), &expect) {
            Ok(opened) => opened,
            Err(error) => {
                fsck.add(DELTA, place, "a whole record", error);
                continue;
            }
        };
        let sequence = u64::from(extent.half) << 32 | u64::from(block);
        let found = header.sequence.get();
        fsck.expect(DELTA, || format!("{place}: sequence"), sequence, found);
        check_age(fsck, DELTA, &place, &header, volume, *newest);
        *newest = (header.epoch.get(), header.checkpoint.get());
        apply(fsck, &place, body, tables);
    }
    let (expected, found) = (format!("{:08x}", extent.crc.get()), format!("{crc:08x}"));
    fsck.expect(EXTENT, || format!("{index}: crc of its blocks"), expected, found);
}

fn apply(fsck: &mut Fsck, place: &str, mut body: &[u8], tables: &mut Tables) {
    while let Ok((group, rest)) = DeltaGroup::read_from_prefix(body) {
        let (count, size) = (usize::from(group.entries.get()), usize::from(group.payload.get()));
        let known = match group.table {
            table::NAT => size_of::<NatEntry>(),
            table::SIT => size_of::<SitEntry>(),
            _ => 0,
        };
        fsck.expect_zero(DELTA, || format!("{place}: group, reserved"), &[group.reserved]);
        fsck.expect_zero(DELTA, || format!("{place}: group, reserved2"), &group.reserved2);
        let entries = rest.get(..count * (4 + size));
        let (Some(entries), true) = (entries, known == size && count > 0) else {
            let found = format!("{count} entries of {size} bytes of table {}", group.table);
            return fsck.add(DELTA, place, "a group of entries of NAT or SIT", found);
        };
        for entry in entries.chunks_exact(4 + size) {
            let index = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            let set = match group.table {
                table::NAT => tables.nat.set(index, &entry[4..]),
                _ => tables.sit.set(index, &entry[4..]),
            };
            if !set {
                fsck.add(DELTA, place, "an index of the table", index);
            }
        }
        body = &rest[count * (4 + size)..];
    }
    if !body.is_empty() {
        fsck.add(DELTA, place, "groups up to the end", format!("{} bytes more", body.len()));
    }
}

/// Checks that extents are in the order in which they were written and do not overlap, and that the
/// log continues after them.
fn check_extent_places(fsck: &mut Fsck, volume: &Volume) {
    let (plan, body) = (&volume.plan, &volume.body);
    let mut places: Vec<(usize, u8, u64, u64)> = Vec::new();
    for (index, extent) in volume.extents.iter().enumerate() {
        let first = u64::from(extent.first.get());
        let end = first + u64::from(extent.blocks.get());
        places.push((log_of(volume, index), extent.half, first, end));
    }
    for (index, pair) in places.windows(2).enumerate() {
        if (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1) && pair[1].2 < pair[0].3 {
            let place = format!("{index} and {}", index + 1);
            fsck.add(EXTENT, place, "ascending ones", "overlap");
        }
    }
    let nexts = [
        ("delta_next", body.delta_half.get(), body.delta_next.get()),
        ("sit_next", body.sit_half.get(), body.sit_next.get()),
    ];
    for (log, (field, half, next)) in (0..plan.logs as usize).zip(nexts) {
        let last = places.iter().rfind(|(l, h, ..)| (*l, u32::from(*h)) == (log, half));
        let used = last.map_or(0, |(_, _, _, end)| (*end).min(u64::from(u32::MAX)) as u32);
        check_next(fsck, field, &plan.delta_half(log, half as u8), used, next);
    }
}

/// Checks each table entry, without comparing it with other entries.
fn check_entries(fsck: &mut Fsck, volume: &Volume, tables: &Tables) {
    const NAT: &str = "NAT entry";
    const SIT: &str = "SIT entry";
    let plan = &volume.plan;
    let mut inodes = 0;
    for (nid, entry) in tables.nat.iter() {
        let (addr, ino) = (entry.addr.get(), entry.ino.get());
        fsck.expect_zero(NAT, || format!("{nid}: reserved"), &entry.reserved.to_bytes());
        if nid == 0 || nid >= plan.nodes || ino == 0 {
            if (addr, entry.crc.get(), ino) != (0, 0, 0) {
                let found = format!("address {addr}, crc {:08x}, inode {ino}", entry.crc);
                fsck.add(NAT, nid.to_string(), "zeros, as the node is not in use", found);
            }
            continue;
        }
        inodes += u64::from(ino == nid);
        if ino >= plan.nodes {
            fsck.add(NAT, format!("{nid}: ino"), format!("below {}", plan.nodes), ino);
        }
        if volume.locate(addr).is_none() {
            fsck.add(NAT, format!("{nid}: addr"), "a block of a segment", addr);
        }
    }
    fsck.expect("checkpoint", || "inodes".into(), inodes, volume.body.inodes.get());
    for (segment, entry) in tables.sit.iter() {
        let bits: u32 = entry.map.iter().map(|byte| byte.count_ones()).sum();
        let valid = u32::from(entry.valid.get());
        fsck.expect(SIT, || format!("{segment}: valid, as its map has"), bits, valid);
        fsck.expect_zero(SIT, || format!("{segment}: reserved"), &[entry.reserved]);
        fsck.expect_zero(SIT, || format!("{segment}: reserved2"), &entry.reserved2.to_bytes());
        if u32::from(entry.stream) >= plan.streams {
            let expected = format!("below {}", plan.streams);
            fsck.add(SIT, format!("{segment}: stream"), expected, entry.stream);
        }
        if segment >= plan.segment_count() && bits > 0 {
            fsck.add(SIT, segment.to_string(), "zeros past the last segment", bits);
        }
    }
}
