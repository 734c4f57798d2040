//! The two halves of the journal as they are read, and the sequence of changes in their
//! whole records.
//!
//! A record may be missing because a power cut tore it, or because it is damaged. If a later record
//! says that the missing one was complete, the missing one is damaged, and its copy in the next
//! record counts. A missing table can be computed from the other half, which stays until the table
//! is durable.

use crate::format::{Lasting, Superblock, ZoneEntry, kind};
use crate::journal::{Changes, Entry, parse};
use crate::make::read;
use furrow_log::record::{self, Expect};
use furrow_log::{RecordHeader, Uuid};
use furrow_policy::{SoftDefect, SoftVariant};
use furrow_rt::buf::concat;
use furrow_rt::{PAGE_SIZE, Pool};
use furrow_zone::{ErrorKind, PlainDevice, Result, ZoneId};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use zerocopy::FromBytes;

/// A table that was read without damage.
pub(crate) struct Table {
    pub epoch: u64,
    pub sequence: u64,
    /// Number of the last record that was complete when the table was written.
    checkpoint: u64,
    pub zones: Vec<Lasting>,
}

/// A record of changes that was read without damage.
pub(crate) struct Record {
    epoch: u64,
    object: Uuid,
    sequence: u64,
    checkpoint: u64,
    changes: Changes,
}

/// A half of the journal.
pub(crate) struct Half {
    number: usize,
    /// The table of the half; `None` if it is not whole.
    pub table: Option<Table>,
    /// The whole records of the same turn as the table, in the order of their places; without a
    /// whole table, those of the newest turn.
    pub records: Vec<Record>,
}

/// Returns the record of `kind` at the start of `bytes`, if a whole one of `device` is there.
///
/// # Errors
/// `WrongFormat` if the record is of a newer version.
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

/// Reads half `number`.
///
/// # Errors
/// `Io` if the half cannot be read, `WrongFormat` if a record is of a newer version.
pub(crate) async fn half(
    plain: &dyn PlainDevice,
    superblock: &Superblock,
    number: usize,
    variant: SoftVariant,
    pool: &Pool,
) -> Result<Half> {
    let layout = &superblock.layout;
    let what = format!("read of half {number} of the journal");
    let bytes = concat(&read(plain, &what, layout.half_at(number), layout.half, pool).await?);
    let (front, behind) = bytes.split_at(layout.table as usize * PAGE_SIZE);
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
    let mut records = Vec::new();
    let mut block = 0;
    while block < behind.len() / PAGE_SIZE {
        let here = whole(&behind[block * PAGE_SIZE..], kind::CHANGES, superblock.uuid)?;
        block += 1;
        let Some((header, body)) = here else { continue };
        let Some(changes) = parse(body, layout) else { continue };
        block += header.blocks() as usize - 1;
        records.push(Record {
            epoch: header.epoch.get(),
            object: header.object,
            sequence: header.sequence.get(),
            checkpoint: header.checkpoint.get(),
            changes,
        });
    }
    // A failed turn of this half may have left records of the same epoch. Those records call only
    // older records complete.
    let rank = |record: &&Record| (record.epoch, record.checkpoint, record.sequence);
    let newest = || records.iter().max_by_key(rank);
    let turn = match &table {
        Some((header, _)) => Some((header.epoch.get(), header.object)),
        None => newest().map(|record| (record.epoch, record.object)),
    };
    records.retain(|record| Some((record.epoch, record.object)) == turn);
    let table = table.map(|(header, zones)| Table {
        epoch: header.epoch.get(),
        sequence: header.sequence.get(),
        checkpoint: header.checkpoint.get(),
        zones,
    });
    Ok(Half { number, table, records })
}

/// The next step of recovery.
pub(crate) enum Step {
    /// The changes that one record names. If the record is not known to be durable, they count as
    /// far as the drive holds the blocks that they name.
    Record { sequence: u64, is_durable: bool, entries: Vec<Entry> },
    /// Records with these sequence numbers were durable, are damaged, and have no copy.
    Lost(RangeInclusive<u64>),
    /// An earlier recovery read the records so far and decided where these zones end. The next
    /// change of each zone shows that decision.
    Turn(BTreeSet<ZoneId>),
}

/// The journal since a table, as read from both halves.
pub(crate) struct Told {
    pub steps: Vec<Step>,
    /// Epoch of the newest half.
    pub epoch: u64,
    /// Sequence number of the last record.
    pub sequence: u64,
    /// Number of the last record that is known to be complete.
    pub complete: u64,
    /// Damage that copies could repair, as messages.
    pub mended: Vec<String>,
}

/// Collects the changes since `table`, from the `records` in its half and from the half `other`.
pub(crate) fn steps(table: &Table, records: &[Record], other: &Half) -> Told {
    let (epoch, sequence, complete) = (table.epoch, table.sequence, table.checkpoint);
    let mut told = Told { steps: Vec::new(), epoch, sequence, complete, mended: Vec::new() };
    // The other half can be newer only if its table is torn or damaged; otherwise that table would
    // have been chosen.
    let later = match (&other.table, other.records.as_slice()) {
        (None, records @ [first, ..]) if first.epoch > table.epoch => Some((records, first)),
        _ => None,
    };
    let Some((behind, first)) = later else {
        told.take(records, durable(records, table.checkpoint));
        return told;
    };
    let its_table = first.changes.table;
    let calls_complete = durable(behind, 0) >= its_table;
    let has_first = first.sequence == its_table + 1;
    if !has_first && !calls_complete {
        // A power cut tore the other half's table and the record that was sent with it.
        told.take(records, durable(records, table.checkpoint));
        told.epoch = first.epoch;
        return told;
    }
    if calls_complete {
        let what = format!("the table of half {}", other.number);
        told.mended
            .push(format!("{what} of the journal is damaged: it was computed from the other half"));
    }
    if has_first && first.checkpoint < its_table {
        // The lost table showed the changes that were complete, and the first record after it has
        // all later changes.
        let until = records.iter().take_while(|record| record.sequence <= first.checkpoint);
        let until = until.count();
        told.take(&records[..until], first.checkpoint);
        told.expect(first.checkpoint);
    } else {
        // The lost table showed the decisions of an earlier recovery.
        told.take(records, durable(records, table.checkpoint));
        told.steps.push(Step::Turn(told.in_doubt()));
    }
    told.sequence = its_table;
    told.epoch = first.epoch;
    told.take(behind, durable(behind, 0));
    told
}

/// Number of the last record that any of `records` calls complete, or `least` if that is higher.
fn durable(records: &[Record], least: u64) -> u64 {
    records.iter().map(|record| record.checkpoint).max().unwrap_or(least).max(least)
}

impl Told {
    /// Adds the next records. The ones up to number `durable` are known to be durable.
    fn take(&mut self, records: &[Record], durable: u64) {
        for record in records {
            let (next, sequence) = (self.sequence + 1, record.sequence);
            if sequence < next {
                continue;
            }
            if sequence > next && durable < next {
                // A power cut tore the record before, on which this one depends.
                return;
            }
            if sequence > next {
                let copy = record.changes.before.as_ref();
                self.expect(sequence - 1 - u64::from(copy.is_some()));
                if let Some(entries) = copy {
                    let what = format!("record {} of the journal is damaged", sequence - 1);
                    self.mended.push(format!("{what}: the next record has a copy"));
                    self.add(sequence - 1, durable, entries);
                }
            }
            self.add(sequence, durable, &record.changes.entries);
            self.complete = record.checkpoint;
        }
    }

    fn add(&mut self, sequence: u64, durable: u64, entries: &[Entry]) {
        let (is_durable, entries) = (sequence <= durable, entries.to_vec());
        self.steps.push(Step::Record { sequence, is_durable, entries });
        self.sequence = sequence;
    }

    /// Notes that records up to `last` were durable, so that missing ones among them are lost.
    fn expect(&mut self, last: u64) {
        if self.sequence < last {
            self.steps.push(Step::Lost(self.sequence + 1..=last));
            self.sequence = last;
        }
    }

    /// The zones that are named by records which may not be durable.
    fn in_doubt(&self) -> BTreeSet<ZoneId> {
        let entries = self.steps.iter().flat_map(|step| match step {
            Step::Record { is_durable: false, entries, .. } => entries.as_slice(),
            _ => &[],
        });
        entries.map(Entry::zone).collect()
    }
}
