//! Decides whether the sync log ends where a record is missing.
//!
//! The log does not end there if a record behind that place was written when the missing record was
//! already durable, or if a checkpoint counts the missing record.

use crate::format::CheckpointBody;
use furrow_log::record::RecordHeader;

/// Largest number of records that are written at the same time.
const IN_FLIGHT: u64 = 4;

/// The whole records found behind a place.
pub(super) struct Later<'a> {
    /// Half, block and header of each record.
    pub(super) records: Vec<(u32, u32, RecordHeader)>,
    pub(super) checkpoint: u64,
    pub(super) body: &'a CheckpointBody,
}

impl Later<'_> {
    /// The first record that was written after a checkpoint newer than the newest whole one.
    pub(super) fn newer(&self) -> Option<RecordHeader> {
        let mut all = self.records.iter().map(|(.., header)| *header);
        all.find(|header| header.checkpoint.get() > self.checkpoint)
    }

    fn in_log(&self) -> impl Iterator<Item = &(u32, u32, RecordHeader)> {
        self.records.iter().filter(|(.., header)| {
            header.epoch == self.body.sync_epoch
                && header.sequence < self.body.sync_limit
                && header.checkpoint.get() <= self.checkpoint
        })
    }

    /// The first sequence that is not known to have been durable.
    pub(super) fn durable(&self) -> u64 {
        let limit = self.body.sync_limit.get();
        let named = if limit == u64::MAX { 0 } else { limit };
        self.in_log().map(|(.., header)| known(header)).max().unwrap_or(0).max(named)
    }

    /// Half, block and sequence of the first record after `missing`.
    pub(super) fn next(&self, missing: u64) -> Option<(u32, u32, u64)> {
        let all = self.in_log().map(|(half, block, h)| (*half, *block, h.sequence.get()));
        all.filter(|(.., sequence)| *sequence > missing).min_by_key(|(.., sequence)| *sequence)
    }

    /// The proof, in words, that record `missing` was durable; `None` without proof.
    pub(super) fn proof(&self, missing: u64) -> Option<String> {
        if let Some((.., header)) = self.in_log().find(|(.., h)| known(h) > missing) {
            return Some(format!("was durable before record {}", header.sequence));
        }
        let counted = self.durable() > missing;
        counted.then(|| format!("is counted by checkpoint {}", self.checkpoint))
    }
}

/// The sequence below which records were durable when the record of `header` was written.
fn known(header: &RecordHeader) -> u64 {
    header.durable.get().max((header.sequence.get() + 1).saturating_sub(IN_FLIGHT))
}
