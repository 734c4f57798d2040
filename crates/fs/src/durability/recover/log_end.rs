//! Finds the end of the sync log, and decides whether records after that place were lost.
//!
//! A power cut leaves the last records in any state: the log ends at the first record that is
//! missing, torn, or depends on a block that did not arrive. A durable record that was damaged
//! later looks the same. There are three proofs of damage. First, a whole record behind the place
//! says that the missing record was durable: each record names the sequence below which all records
//! were durable when that record was written. A record of an older version, which names no
//! sequence, gives a weaker bound, because only a few records are in flight at a time. Second, a
//! checkpoint names an end of the log behind the place: recovery writes such a checkpoint after
//! reading everything before that end. Third, a record was written after a checkpoint newer than
//! the newest whole one: then the newer checkpoint is damaged.
//!
//! Even without such a proof, a record counts as damaged if all of its blocks are on the drive.
//! When a power cut interrupts a write, a zone keeps only the beginning of it, as the write
//! pointer shows.

use super::log_reader::{LogReader, Place, Read};
use super::read::Found;
use super::sync_items::{Item, parse_item};
use crate::durability::namespace_log::{Decoder, NameOp};
use crate::durability::sync::{RECORDS_IN_FLIGHT, record_blocks_max};
use crate::layout::Layout;
use furrow_log::record::{self, RecordHeader};
use furrow_zone::Result;
use furrow_zone::words::count;
use std::collections::BTreeSet;
use std::fmt;

/// The search ends after this many blocks without a record; records in flight take fewer blocks.
const GAP: u32 = 4096;
/// Largest number of parts of a damaged record that a message lists.
const SAID: usize = 4;

/// Data that was durable and is no longer on the drive.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    /// True if records are lost; false if blocks that a record names are lost.
    pub(crate) records: bool,
    /// The lost data, and where it was.
    pub(crate) what: String,
    /// The reason why the data counts as damaged rather than cut off by a crash.
    pub(crate) why: String,
}

impl Lost {
    /// The loss of the records from `first` to before `end`, at `place`. `said` is the part that
    /// can still be read.
    pub(super) fn records(
        (first, end, place): (u64, u64, String),
        why: String,
        said: Option<String>,
    ) -> Lost {
        let what = match end - first {
            1 => format!("sync record {first} at {place}"),
            _ => format!("sync records {first} to {} from {place} on", end - 1),
        };
        let said = said.map_or(String::new(), |said| format!(" ({said})"));
        Lost { records: true, what: what + &said, why }
    }

    /// The loss of blocks that a record names.
    pub(super) fn blocks(what: String, why: String) -> Lost {
        Lost { records: false, what, why }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// Proof that a checkpoint later than the newest whole one was durable.
#[derive(Clone, Debug)]
pub(crate) struct Newer {
    pub(crate) checkpoint: u64,
    /// The record that was written after the lost checkpoint.
    pub(crate) sequence: u64,
    /// The number of the newest whole checkpoint.
    pub(crate) whole: u64,
}

impl fmt::Display for Newer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "checkpoint {}, after which sync record {} was written, is damaged: the newest whole \
             one is {}",
            self.checkpoint, self.sequence, self.whole
        )
    }
}

/// The whole records behind a place of the log, in log order.
pub(super) struct Behind(Vec<(Place, RecordHeader)>);

impl Behind {
    /// Records that would count if the records before them were there.
    fn of_this_log<'a>(
        &'a self,
        found: &'a Found,
    ) -> impl Iterator<Item = &'a (Place, RecordHeader)> {
        let body = &found.image.body;
        self.0.iter().filter(|(_, header)| {
            header.epoch == body.sync_epoch
                && header.sequence < body.sync_limit
                && header.checkpoint.get() <= found.id.checkpoint
        })
    }

    /// A record that was written after a checkpoint newer than the newest whole one.
    pub(super) fn newer(&self, found: &Found) -> Option<RecordHeader> {
        let newer = |header: &RecordHeader| header.checkpoint.get() > found.id.checkpoint;
        self.0.iter().map(|(_, header)| *header).find(newer)
    }

    /// The sequence below which records are known to have been durable.
    pub(super) fn durable(&self, found: &Found) -> u64 {
        let limit = Some(found.image.body.sync_limit.get()).filter(|limit| *limit != u64::MAX);
        let said = self.of_this_log(found).map(|(_, header)| durable_before(header));
        said.chain(limit).max().unwrap_or(0)
    }

    /// The first record with a sequence above `missing`.
    pub(super) fn next(&self, found: &Found, missing: u64) -> Option<(Place, RecordHeader)> {
        let later = self.of_this_log(found).filter(|(_, h)| h.sequence.get() > missing);
        later.min_by_key(|(_, header)| header.sequence.get()).copied()
    }

    /// The proof, in words, that record `missing` was durable; `None` without proof.
    pub(super) fn proof(&self, found: &Found, missing: u64) -> Option<String> {
        let proves = |(_, header): &&(Place, RecordHeader)| durable_before(header) > missing;
        if let Some((_, header)) = self.of_this_log(found).find(proves) {
            let record = header.sequence;
            return Some(format!(
                "the later record {record} was written when this one was already durable"
            ));
        }
        let limit = found.image.body.sync_limit.get();
        (limit != u64::MAX && limit > missing)
            .then(|| format!("checkpoint {} counts it", found.id.checkpoint))
    }
}

/// The sequence below which records were durable when the record of `header` was written.
fn durable_before(header: &RecordHeader) -> u64 {
    let in_flight = u64::from(RECORDS_IN_FLIGHT) - 1;
    header.durable.get().max(header.sequence.get().saturating_sub(in_flight))
}

/// Reads the whole records from `from` to the end of this half, and those of the other half.
/// Records older than sequence `sequence` of this log are left out.
pub(super) async fn behind(log: &mut LogReader<'_>, from: Place, sequence: u64) -> Result<Behind> {
    let mut found = Vec::new();
    look(log, from, sequence, &mut found).await?;
    look(log, (1 - from.0, 0), sequence, &mut found).await?;
    Ok(Behind(found))
}

async fn look(
    log: &mut LogReader<'_>,
    (half, mut at): Place,
    sequence: u64,
    found: &mut Vec<(Place, RecordHeader)>,
) -> Result<()> {
    let epoch = log.found.image.body.sync_epoch.get();
    let mut gap = 0;
    while gap < GAP && log.locate((half, at)).is_some() {
        // A block that cannot be read proves nothing.
        let read = match log.block((half, at)).await {
            Ok(Some(_)) => log.record((half, at)).await.unwrap_or(Read::Nothing),
            _ => Read::Nothing,
        };
        let Read::Whole(header, _) = read else {
            (at, gap) = (at + 1, gap + 1);
            continue;
        };
        let age = (header.epoch.get(), header.sequence.get());
        if age < (epoch, sequence) {
            // This half was not reset yet: the rest of it is older too.
            return Ok(());
        }
        found.push(((half, at), header));
        (at, gap) = (at + header.blocks(), 0);
    }
    Ok(())
}

/// Finds a record that the drive has lost after acknowledging it: its place, and the evidence of
/// the loss. Returns `None` if the log ends at `place`, where the caller has found no record. The
/// evidence is a write pointer behind blocks without a record: zeros from `place` on or, if this
/// half is full, another half without any record. Such blocks held a record: a power cut keeps the
/// first blocks of a write, the engine writes only records to these zones, and writes zeros only
/// where no record fits.
pub(super) async fn wiped(
    log: &mut LogReader<'_>,
    place: Place,
) -> Result<Option<(Place, String)>> {
    let (blocks, half) = (log.found.layout.sync_stripe().blocks(), place.0);
    if place.1.saturating_add(record_blocks_max(blocks)) <= blocks {
        if !log.is_written(place) || !log.is_exact(half) {
            return Ok(None);
        }
        let mut zeros = 0;
        for at in place.1..blocks {
            if log.is_written((half, at)) {
                if !log.is_zeros((half, at)).await? {
                    return Ok(None);
                }
                zeros += 1;
            }
        }
        return Ok(Some((place, format!("zeros, where {} were written", count(zeros, "block")))));
    }
    // This half is full, so the log continues in the other half.
    let other = (1 - half, 0);
    let turned = u32::from(half) == log.found.image.body.sync_half.get() && !log.has_room(half);
    if !turned || !log.is_written(other) || log.is_zeros(other).await? && !log.is_exact(other.0) {
        return Ok(None);
    }
    for at in (0..blocks).take(GAP as usize) {
        let block = log.block((other.0, at)).await?;
        if block.is_some_and(|block| record::peek(block.bytes()).is_some()) {
            return Ok(None);
        }
    }
    Ok(Some((other, "no record in a zone that was written".to_owned())))
}

/// The readable items of a damaged record, in words: a hint for messages.
pub(super) fn said(bytes: &[u8], layout: &Layout) -> Option<String> {
    let mut input = Decoder(bytes.get(RecordHeader::SIZE..)?);
    let (mut parts, mut inodes) = (Vec::new(), BTreeSet::new());
    while let Some(item) = parse_item(&mut input, layout) {
        match item {
            Item::Name(_, op) => {
                inodes.extend(match &op {
                    NameOp::Create { ino, .. } | NameOp::Link { ino, .. } => Some(*ino),
                    _ => None,
                });
                parts.push(op.to_string());
            }
            Item::Node(_, entry) if inodes.insert(entry.ino.get()) => {
                parts.push(format!("content of inode {}", entry.ino));
            }
            Item::Change(change) if inodes.insert(change.ino) => {
                parts.push(format!("content of inode {}", change.ino));
            }
            Item::Attributes(ino, _) if inodes.insert(ino.0) => {
                parts.push(format!("attributes of inode {ino}"));
            }
            _ => {}
        }
    }
    let more = parts.len().saturating_sub(SAID);
    parts.truncate(SAID);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!parts.is_empty()).then(|| format!("it says: {}{more}", parts.join("; ")))
}
