//! Where the sync log ends, and whether that is its end.
//!
//! A power cut leaves the last records in any state: the log ends at the first that is missing,
//! torn, or depends on a block that did not arrive. A record that was durable, and is damaged,
//! looks alike. What lies behind tells the two apart. Each record says up to which sequence the
//! records before it were durable when it was written, and records of before that number was
//! written bound it: few are in flight at a time. So a whole record behind the place proves damage
//! if it says that the missing one was durable. So does a checkpoint that names the end of the
//! log, which recovery writes when it has read everything before that end. A record that was
//! written after a later checkpoint than the newest whole one proves that this one is damaged.
//!
//! Even without such a proof, a record is damaged if the drive has all of its blocks: of a write
//! that a power cut interrupts, a zone has the beginning, as its write pointer says.

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

/// Blocks without a record after which nothing more is looked for: more than the records in flight
/// take.
const GAP: u32 = 4096;
/// Parts of a damaged record that a message names.
const SAID: usize = 4;

/// Something that was durable and is not there any more.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    /// Records, or else blocks that a record names.
    pub(crate) records: bool,
    /// What and where.
    pub(crate) what: String,
    /// Why it is taken for damaged.
    pub(crate) why: String,
}

impl Lost {
    /// Records from `first` to before `end`, at `place`. `said` is what can still be read of them.
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

    /// Blocks that a record names.
    pub(super) fn blocks(what: String, why: String) -> Lost {
        Lost { records: false, what, why }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// Proof that a later checkpoint than the newest whole one was durable.
#[derive(Clone, Debug)]
pub(crate) struct Newer {
    pub(crate) checkpoint: u64,
    /// The record that was written after it.
    pub(crate) sequence: u64,
    /// The newest whole checkpoint.
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

/// Whole records of the log behind a place, in the order of their places.
pub(super) struct Behind(Vec<(Place, RecordHeader)>);

impl Behind {
    /// Records that would count if those before them did.
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

    /// A record that was written after a later checkpoint than the newest whole one.
    pub(super) fn newer(&self, found: &Found) -> Option<RecordHeader> {
        let newer = |header: &RecordHeader| header.checkpoint.get() > found.id.checkpoint;
        self.0.iter().map(|(_, header)| *header).find(newer)
    }

    /// Records below this sequence were durable.
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

    /// The proof, in words, that record `missing` was durable.
    pub(super) fn proof(&self, found: &Found, missing: u64) -> Option<String> {
        let proves = |(_, header): &&(Place, RecordHeader)| durable_before(header) > missing;
        if let Some((_, header)) = self.of_this_log(found).find(proves) {
            let record = header.sequence;
            return Some(format!("record {record} behind it was written after it was durable"));
        }
        let limit = found.image.body.sync_limit.get();
        (limit != u64::MAX && limit > missing)
            .then(|| format!("checkpoint {} counts it", found.id.checkpoint))
    }
}

/// Records below this sequence were durable when the record of `header` was written.
fn durable_before(header: &RecordHeader) -> u64 {
    let in_flight = u64::from(RECORDS_IN_FLIGHT) - 1;
    header.durable.get().max(header.sequence.get().saturating_sub(in_flight))
}

/// The whole records from `from` on, in this half and in the other, that are not older than the
/// log's record `sequence`.
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
        // A block that cannot be read says nothing.
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
            // The half was not reset yet. It is older to its end.
            return Ok(());
        }
        found.push(((half, at), header));
        (at, gap) = (at + header.blocks(), 0);
    }
    Ok(())
}

/// The place of a record that the drive has lost, and the evidence of the loss; `None` if the log
/// ends at `place`. The caller has found no record at `place`. The evidence is a write pointer
/// behind `place`: a power cut keeps the first blocks of a write, the engine writes only records to
/// these zones, and it writes zeros only where no record has space. So an unreadable block in front
/// of the write pointer held a record.
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
    // The half is full, and the log goes on in the other.
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

/// What the items of a damaged record say, as far as they can be read: a hint for messages.
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
