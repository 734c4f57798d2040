//! Reading the sync log, as far as it counts.

use super::read::{Found, written};
use crate::format::{NatEntry, item, kind};
use crate::names::{Decoder, NameOp};
use crate::node;
use crate::types::{Ino, SetAttr, Time};
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::format::Descriptor;
use furrow_log::pool::SuperzoneState;
use furrow_log::record::{self, Expect};
use furrow_rt::Pool;
use furrow_zone::{Geometry, QueueId, Result, ZoneId, ZoneState, ZonedDevice};
use zerocopy::FromZeros;

/// A sync record that counts.
pub(crate) struct Record {
    pub(crate) names: Vec<(u64, NameOp)>,
    pub(crate) nodes: Vec<(u32, NatEntry)>,
    pub(crate) freed: Vec<u32>,
    pub(crate) attributes: Vec<(Ino, SetAttr, Time)>,
}

/// What the sync log adds.
pub(crate) struct Roll {
    pub(crate) records: Vec<Record>,
    /// First sequence that does not count.
    pub(crate) cut: u64,
    /// Where the log goes on.
    pub(crate) half: u8,
    pub(crate) next: u32,
    pub(crate) descriptors: Vec<Descriptor>,
    /// Superzones each stream took, the checkpoint's first.
    pub(crate) chains: Vec<Vec<u32>>,
}

/// Reads the sync log as far as it counts.
pub(crate) async fn roll(device: &dyn ZonedDevice, found: &Found, pages: &Pool) -> Result<Roll> {
    let body = &found.image.body;
    let mut roll = Roll {
        records: Vec::new(),
        cut: body.sync_sequence.get(),
        half: body.sync_half.get() as u8,
        next: body.sync_next.get(),
        descriptors: found.image.descriptors.clone(),
        chains: found.image.streams.iter().map(|s| s.superzone.into_iter().collect()).collect(),
    };
    let mut turned = false;
    while roll.cut < body.sync_limit.get() {
        let read = read_record(device, found, roll.half, roll.next, roll.cut, pages).await;
        let Some((blocks, bytes)) = read else {
            if turned {
                break;
            }
            // The log goes on at the front of the other half, if this one had no room.
            turned = true;
            let other = 1 - roll.half;
            let there = read_record(device, found, other, 0, roll.cut, pages).await;
            if there.is_none() {
                break;
            }
            (roll.half, roll.next) = (other, 0);
            continue;
        };
        let Some(record) = accept(device.geometry(), found, &mut roll, &bytes) else { break };
        if !nodes_hold(device, found, &record, pages).await {
            break;
        }
        roll.records.push(record);
        roll.next += blocks;
        roll.cut += 1;
    }
    Ok(roll)
}

/// Whether the nodes a record names are in the zones whose write pointer says nothing: a power
/// cut may have moved a zone to full, and a read-only one has none.
pub(crate) async fn nodes_hold(
    device: &dyn ZonedDevice,
    found: &Found,
    record: &Record,
    pages: &Pool,
) -> bool {
    for (nid, entry) in &record.nodes {
        let addr = BlockAddr(entry.addr.get());
        let Some((zone, _)) = addr.locate(device.geometry()) else { return false };
        let state = found.reports[zone.0 as usize].state;
        if !matches!(state, ZoneState::Full | ZoneState::ReadOnly) {
            continue;
        }
        let Ok(block) = read_blocks(device, QueueId(0), addr, 1, pages).await else {
            return false;
        };
        let whole = record::crc32c(block[0].bytes()) == entry.crc.get();
        if !whole || node::check(&block[0], *nid, entry.ino.get()).is_err() {
            return false;
        }
    }
    true
}

/// The whole record with `sequence` at that place, if there is one.
pub(crate) async fn read_record(
    device: &dyn ZonedDevice,
    found: &Found,
    half: u8,
    at: u32,
    sequence: u64,
    pages: &Pool,
) -> Option<(u32, Vec<u8>)> {
    let layout = &found.layout;
    let (stripe, zones) = (layout.sync_stripe(), layout.sync_half(half));
    let mut bytes: Vec<u8> = Vec::new();
    let mut blocks = 1;
    let mut read = 0;
    while read < blocks {
        if at + read >= stripe.blocks() {
            return None;
        }
        let (column, offset) = stripe.place(at + read);
        let zone = zones[column as usize];
        if offset >= written(&found.reports[zone.0 as usize], device.geometry()) {
            return None;
        }
        let addr = BlockAddr::new(device.geometry(), zone, offset);
        let block = read_blocks(device, QueueId(0), addr, 1, pages).await.ok()?;
        if read == 0 {
            blocks = record::peek(block[0].bytes())?.blocks();
        }
        bytes.extend_from_slice(block[0].bytes());
        read += 1;
    }
    let expect =
        Expect { kind: kind::SYNC, device: Some(layout.device), object: Some(layout.uuid) };
    let (header, body) = record::open(&bytes, &expect).ok()?;
    let epoch = found.image.body.sync_epoch;
    (header.sequence.get() == sequence && header.epoch == epoch).then(|| (blocks, body.to_vec()))
}

/// Parses a record and checks that all it depends on is there; `None` cuts the log.
pub(crate) fn accept(
    geometry: &Geometry,
    found: &Found,
    roll: &mut Roll,
    body: &[u8],
) -> Option<Record> {
    let layout = &found.layout;
    let mut descriptors = roll.descriptors.clone();
    let mut chains = roll.chains.clone();
    let mut record = Record { names: vec![], nodes: vec![], freed: vec![], attributes: vec![] };
    let mut depends = Vec::new();
    let mut input = Decoder(body);
    while !input.0.is_empty() {
        match input.u8()? {
            tag @ (item::CREATE | item::LINK | item::REMOVE | item::RENAME) => {
                record.names.push(NameOp::decode(tag, &mut input)?);
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
                record.nodes.push((nid, entry));
            }
            item::FREED => {
                let (nid, _) = (input.u32()?, input.u32()?);
                record.freed.push(nid);
            }
            item::ALLOCATED => {
                let (stream, superzone) = (input.u8()?, input.u32()?);
                let generation = input.u32()?;
                let descriptor = descriptors.get_mut(superzone as usize)?;
                // The checkpoint has it already, and perhaps let it be released since.
                let then = &found.image.descriptors[superzone as usize];
                let free = then.state == SuperzoneState::Free as u8;
                if then.generation.get() == generation && !free {
                    continue;
                }
                descriptor.generation = generation.into();
                descriptor.state = SuperzoneState::Active as u8;
                let chain = chains.get_mut(usize::from(stream))?;
                if !chain.contains(&superzone) {
                    chain.push(superzone);
                }
            }
            item::DEPENDS => depends.push((input.u32()?, input.u32()?, input.u32()?)),
            item::ATTRIBUTES => {
                let ino = Ino(input.u32()?);
                let changes = SetAttr {
                    mode: Some(input.u16()?),
                    uid: Some(input.u32()?),
                    gid: Some(input.u32()?),
                    size: None,
                    atime: Some(input.time()?),
                    mtime: Some(input.time()?),
                };
                record.attributes.push((ino, changes, input.time()?));
            }
            item::RANGE => {
                let _ = (input.u32()?, input.u32()?, input.u32()?);
            }
            _ => return None,
        }
    }
    for (zone, generation, end) in depends {
        let superzone = layout.superzone_of(ZoneId(zone))? as usize;
        // What was full at the checkpoint's cut was durable before it; so was what has been
        // released since. The zone may be empty by now, or hold something else.
        let then = &found.image.descriptors[superzone];
        let full = then.state == SuperzoneState::Full as u8;
        if then.generation.get() > generation || (full && then.generation.get() == generation) {
            continue;
        }
        let known = descriptors[superzone].generation.get();
        if known != generation || written(&found.reports[zone as usize], geometry) < end {
            return None;
        }
    }
    roll.descriptors = descriptors;
    roll.chains = chains;
    Some(record)
}
