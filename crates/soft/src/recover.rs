//! What a plain drive holds: its superblock, its journal, and where each zone ends. Reads only.
//!
//! Only ranges of records that no later record calls complete are read and compared. A part of the
//! drive that cannot be read is an error: it decides nothing.

use crate::format::{
    BLOCK, INCOMPAT_KNOWN, Lasting, LastingState, Layout, Superblock, SuperblockBody, TITLE,
    ZoneEntry, kind,
};
use crate::journal::{Entry, Journal, Placed, Run, parse};
use crate::make::read;
use furrow_log::record::{self, Expect};
use furrow_log::{RecordHeader, Uuid, crc32c};
use furrow_policy::{SoftDefect, SoftVariant};
use furrow_rt::{PAGE_SIZE, Pages, Pool};
use furrow_zone::{Error, ErrorKind, PlainDevice, Result, ZoneId};
use std::ops::Range;
use zerocopy::FromBytes;

/// What recovery found.
#[derive(Debug)]
pub(crate) struct Found {
    pub superblock: Superblock,
    pub zones: Vec<Lasting>,
    /// What was believed by checksum only.
    pub believed: Vec<Believed>,
    /// The journal's end.
    pub journal: Journal,
    pub warnings: Vec<String>,
}

/// Blocks that were believed by checksum.
#[derive(Debug)]
pub(crate) struct Believed {
    zone: ZoneId,
    generation: u32,
    from: u32,
    pages: Pages,
}

impl Found {
    /// The blocks that were believed by checksum, their zone, and where they begin on the plain
    /// drive.
    pub(crate) fn take_believed(&mut self) -> Vec<(ZoneId, Placed)> {
        let (layout, zones) = (self.superblock.layout, &self.zones);
        let place = |mut believed: Believed| {
            let zone = zones[believed.zone.0 as usize];
            if zone.generation != believed.generation {
                return None;
            }
            believed.pages.truncate(zone.pointer.saturating_sub(believed.from) as usize);
            let at = layout.at(believed.zone, believed.from);
            let placed = Placed { at, pages: believed.pages };
            (!placed.pages.is_empty()).then_some((believed.zone, placed))
        };
        std::mem::take(&mut self.believed).into_iter().filter_map(place).collect()
    }
}

fn flat(pages: &Pages) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pages.len() * PAGE_SIZE);
    pages.iter().for_each(|page| bytes.extend_from_slice(page.bytes()));
    bytes
}

/// Whether `block`, the first 4 KiB of a drive, looks like the superblock of soft zones, damaged or
/// not.
pub fn is_superblock(block: &[u8]) -> bool {
    record::peek(block).is_some_and(|header| header.kind.get() == kind::SUPERBLOCK)
}

/// The superblock in `block`. `None` if there is something else, an error if one is there that
/// cannot be used.
fn parse_superblock(block: &[u8]) -> Result<Option<Superblock>> {
    if !is_superblock(block) {
        return Ok(None);
    }
    let expect = Expect { kind: kind::SUPERBLOCK, ..Expect::default() };
    let (header, body) = record::open(block, &expect)?;
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, what);
    let body = SuperblockBody::read_from_bytes(body).map_err(|_| corrupt("of another length"))?;
    if body.title != TITLE {
        return Err(corrupt("without its title"));
    }
    let unknown = body.incompat.get() & !INCOMPAT_KNOWN;
    if unknown != 0 {
        let what = format!("features {unknown:#x} are not known here: use a newer furrow");
        return Err(Error::new(ErrorKind::WrongFormat, what));
    }
    Ok(Some(Superblock { uuid: header.device, layout: Layout::of(&body)? }))
}

/// The superblock of `plain`, and a warning if its first copy is damaged. `None` if the drive has
/// no soft zones.
async fn superblock(
    plain: &dyn PlainDevice,
    pool: &Pool,
) -> Result<Option<(Superblock, Option<String>)>> {
    let blocks = plain.size().0 / BLOCK;
    if blocks < 2 {
        return Ok(None);
    }
    let front = flat(&read(plain, "read of the superblock", 0, 1, pool).await?);
    let what = match parse_superblock(&front) {
        Ok(None) => return Ok(None),
        Ok(Some(superblock)) if superblock.layout.blocks > blocks => {
            let what = format!(
                "{}: {blocks} blocks of 4096 bytes, and its soft zones need {}: it was cut short: \
                 restore its size",
                plain.name(),
                superblock.layout.blocks
            );
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Ok(Some(superblock)) => return Ok(Some((superblock, None))),
        Err(error) if error.kind() == ErrorKind::WrongFormat => {
            return Err(error.at(format!("{}: superblock", plain.name())));
        }
        Err(error) => error,
    };
    // It looks like ours and is damaged: not what another program wrote over it.
    let name = plain.name();
    let at = (blocks - 1) * BLOCK;
    let copy = flat(&read(plain, "read of the superblock's copy", at, 1, pool).await?);
    match parse_superblock(&copy) {
        Ok(Some(superblock)) if superblock.layout.blocks == blocks => {
            let warning = format!("{name}: the superblock is damaged ({what}), its copy is used");
            Ok(Some((superblock, Some(warning))))
        }
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            format!("{name}: the superblock of its soft zones and the copy are damaged: {what}"),
        )),
    }
}

/// The superblock of `plain`; `None` if the drive has no soft zones.
///
/// # Errors
/// `Io` if it cannot be read, `Corrupt` if it is damaged or the drive is too small, `WrongFormat`
/// if it is of a newer version.
pub async fn identify(plain: &dyn PlainDevice) -> Result<Option<Superblock>> {
    let found = superblock(plain, &Pool::new(4)).await?;
    Ok(found.map(|(superblock, _)| superblock))
}

/// A half of the journal.
struct Half {
    /// Header of its table, and the zones; `None` if there is no whole table.
    table: Option<(RecordHeader, Vec<Lasting>)>,
    /// The blocks behind the table.
    records: Vec<u8>,
}

/// The record of `kind` at the start of `bytes`, if a whole one of `device` is there.
///
/// # Errors
/// `WrongFormat` if it is of a newer version.
fn whole(bytes: &[u8], kind: u16, device: Uuid) -> Result<Option<(RecordHeader, &[u8])>> {
    if record::peek(bytes).is_none_or(|header| header.kind.get() != kind) {
        return Ok(None);
    }
    match record::open(bytes, &Expect { kind, ..Expect::default() }) {
        Ok((header, body)) => Ok((header.device == device).then_some((header, body))),
        Err(error) if error.kind() == ErrorKind::WrongFormat => Err(error),
        Err(_) => Ok(None),
    }
}

async fn half(
    plain: &dyn PlainDevice,
    superblock: &Superblock,
    number: usize,
    variant: SoftVariant,
    pool: &Pool,
) -> Result<Half> {
    let layout = &superblock.layout;
    let what = format!("read of half {number} of the journal");
    let bytes = flat(&read(plain, &what, layout.half_at(number), layout.half, pool).await?);
    let (front, records) = bytes.split_at(layout.table as usize * PAGE_SIZE);
    let mut table = whole(front, kind::TABLE, superblock.uuid)?;
    if table.is_none() && variant.has(SoftDefect::TornTable) {
        let torn = record::peek(front).filter(|header| header.kind.get() == kind::TABLE);
        table = torn.and_then(|header| {
            Some((header, front.get(RecordHeader::SIZE..header.length.get() as usize)?))
        });
    }
    let zones = |body: &[u8]| {
        let entries = <[ZoneEntry]>::ref_from_bytes(body).ok()?;
        let all = entries.iter().map(|entry| Lasting::of(entry, layout.zone_blocks));
        all.collect::<Option<Vec<_>>>().filter(|zones| zones.len() == layout.zones as usize)
    };
    let table = table.and_then(|(header, body)| Some((header, zones(body)?)));
    Ok(Half { table, records: records.to_vec() })
}

/// A record of the journal.
struct Record {
    header: RecordHeader,
    entries: Vec<Entry>,
    /// Of the table of its half.
    table: u64,
}

fn record_at(records: &[u8], block: usize, superblock: &Superblock) -> Result<Option<Record>> {
    let bytes = &records[block * PAGE_SIZE..];
    let Some((header, body)) = whole(bytes, kind::CHANGES, superblock.uuid)? else {
        return Ok(None);
    };
    let parsed = parse(body, &superblock.layout);
    Ok(parsed.map(|(table, entries)| Record { header, entries, table }))
}

fn damaged(what: String) -> Error {
    let advice = "what the zones hold is not known: restore a copy";
    Error::new(
        ErrorKind::Corrupt,
        format!("{what} of the journal of its soft zones is damaged: {advice}"),
    )
}

/// The records of the half whose table has `header`, in order, and the block behind the last.
fn chain(
    half: &Half,
    header: &RecordHeader,
    superblock: &Superblock,
) -> Result<(Vec<Record>, u32)> {
    let mut found: Vec<Record> = Vec::new();
    let (mut at, end) = (0, half.records.len() / PAGE_SIZE);
    let same = |record: &Record| {
        record.header.object == header.object && record.header.epoch == header.epoch
    };
    let mut next = header.sequence.get() + 1;
    while at < end
        && let Some(record) = record_at(&half.records, at, superblock)?
        && same(&record)
        && record.header.sequence.get() == next
    {
        at += record.header.blocks() as usize;
        next += 1;
        found.push(record);
    }
    // A record that was lost by a power cut is one that no later record calls complete.
    for block in at..end {
        let later = record_at(&half.records, block, superblock)?.filter(same);
        if later.is_some_and(|record| record.header.checkpoint.get() >= next) {
            return Err(damaged(format!("record {next}")));
        }
    }
    Ok((found, at as u32))
}

/// Looks at everything. Nothing is written.
pub(crate) async fn look(
    plain: &dyn PlainDevice,
    variant: SoftVariant,
    pool: &Pool,
) -> Result<Found> {
    let Some((superblock, warning)) = superblock(plain, pool).await? else {
        let what = format!("{}: no soft zones", plain.name());
        return Err(Error::new(ErrorKind::WrongFormat, what));
    };
    let place = |error: Error| error.at(plain.name());
    let halves = [
        half(plain, &superblock, 0, variant, pool).await.map_err(place)?,
        half(plain, &superblock, 1, variant, pool).await.map_err(place)?,
    ];
    let turn = |half: &Half| half.table.as_ref().map(|(header, _)| header.epoch.get());
    let chosen = usize::from(turn(&halves[1]) > turn(&halves[0]));
    let Some((header, zones)) = &halves[chosen].table else {
        return Err(place(damaged("the table of each half".to_owned())));
    };
    let (records, next) = chain(&halves[chosen], header, &superblock).map_err(place)?;
    let other = &halves[1 - chosen];
    if other.table.is_none() {
        for block in 0..other.records.len() / PAGE_SIZE {
            let record = record_at(&other.records, block, &superblock).map_err(place)?;
            let newer = |record: &Record| {
                record.header.epoch.get() > header.epoch.get()
                    && record.header.checkpoint.get() >= record.table
            };
            if record.as_ref().is_some_and(newer) {
                return Err(place(damaged(format!("the table of half {}", 1 - chosen))));
            }
        }
    }
    let last = records.last().map_or(header, |record| &record.header);
    let complete = last.checkpoint.get();
    let journal = Journal {
        device: superblock.uuid,
        half: chosen,
        turn: header.epoch.get(),
        nonce: header.object,
        next,
        sequence: last.sequence.get(),
        table: header.sequence.get(),
        complete,
    };
    let warnings = warning.into_iter().collect();
    let zones = zones.clone();
    let mut found = Found { superblock, zones, believed: Vec::new(), journal, warnings };
    for record in &records {
        let sequence = record.header.sequence.get();
        for entry in &record.entries {
            if sequence <= complete || variant.has(SoftDefect::UncheckedRange) {
                found
                    .trust(entry)
                    .map_err(|what| place(damaged(format!("record {sequence} ({what})"))))?;
            } else {
                found.check(plain, entry, pool).await?;
            }
        }
    }
    Ok(found)
}

impl Found {
    /// Applies a change that is durable.
    fn trust(&mut self, entry: &Entry) -> std::result::Result<(), String> {
        let zone = match entry {
            Entry::Written(zone, ..) | Entry::State(zone, _) => *zone,
        };
        let now = self.zones[zone.0 as usize];
        let follows = match entry {
            Entry::Written(_, generation, run) => {
                *generation == now.generation && run.from == now.pointer
            }
            Entry::State(_, to) => {
                to.generation == now.generation || to.generation == now.generation + 1
            }
        };
        if !follows {
            return Err(format!("zone {zone} is {now:?}"));
        }
        entry.apply(&mut self.zones);
        Ok(())
    }

    /// Applies a change that may not be durable, as far as the drive holds what it names.
    async fn check(&mut self, plain: &dyn PlainDevice, entry: &Entry, pool: &Pool) -> Result<()> {
        match entry {
            Entry::Written(zone, generation, run) => {
                let now = self.zones[zone.0 as usize];
                if *generation == now.generation && run.from == now.pointer {
                    let pages = self.compare(plain, *zone, run, pool).await?;
                    self.zones[zone.0 as usize].pointer += pages.len() as u32;
                    let (zone, generation, from) = (*zone, *generation, run.from);
                    self.believed.push(Believed { zone, generation, from, pages });
                }
            }
            Entry::State(zone, to) => {
                let now = &mut self.zones[zone.0 as usize];
                if to.generation != now.generation {
                    *now = *to;
                } else if to.state != LastingState::Writable {
                    now.pointer = now.pointer.min(to.pointer);
                    now.state = to.state;
                }
            }
        }
        Ok(())
    }

    /// The blocks of `run` up to the first that has another checksum.
    async fn compare(
        &self,
        plain: &dyn PlainDevice,
        zone: ZoneId,
        run: &Run,
        pool: &Pool,
    ) -> Result<Pages> {
        let most = (plain.max_transfer().0 / BLOCK).max(1) as usize;
        let (mut same, mut at) = (Pages::new(), run.from);
        for sums in run.checksums.chunks(most) {
            let byte = self.superblock.layout.at(zone, at);
            let what = format!("read of zone {zone} from block {at} on");
            let pages = match read(plain, &what, byte, sums.len() as u32, pool).await {
                Err(error) if !error.is_gone() => {
                    self.one_by_one(plain, zone, at..at + sums.len() as u32, pool).await?
                }
                pages => pages?,
            };
            at += sums.len() as u32;
            for (page, sum) in pages.into_iter().zip(sums) {
                if crc32c(&page[..]) != *sum {
                    return Ok(same);
                }
                same.push(page);
            }
        }
        Ok(same)
    }

    /// Reads blocks of a zone that could not be read together. A flush may have covered each of
    /// them, although no record says so: one that cannot be read is not taken for unwritten.
    ///
    /// # Errors
    /// With the first block that cannot be read, and what to do.
    async fn one_by_one(
        &self,
        plain: &dyn PlainDevice,
        zone: ZoneId,
        blocks: Range<u32>,
        pool: &Pool,
    ) -> Result<Pages> {
        let mut pages = Pages::new();
        for block in blocks {
            let byte = self.superblock.layout.at(zone, block);
            let what = format!("read of zone {zone} block {block}, byte {byte} of the drive");
            let page = read(plain, &what, byte, 1, pool).await.map_err(|error| match error {
                error if error.is_gone() => error,
                error => {
                    let advice = "it may have been flushed: try again, or restore a copy; zeros \
                                  written over these 4096 bytes give up the block, and what \
                                  follows it in its zone";
                    Error::new(error.kind(), format!("{error}: {advice}"))
                }
            })?;
            pages.extend(page);
        }
        Ok(pages)
    }
}
