//! Reads a half of the record ring, and distinguishes its end from damage.
//!
//! A power cut leaves at most the last group commit incomplete. So a gap between records is damage
//! if a later record proves that the missing ones were durable:
//!
//! - a record that states that the missing record was already durable;
//! - any later record in the same zone, because a zone is written in order;
//! - a record at least two rounds later than the last record before the gap: a round begins when
//!   the round before it is durable;
//! - any record of a round, if the gap is in the snapshot, which precedes all rounds.
//!
//! Without such a proof, the gap is the end of the half. Records after damage are applied unless
//! they depend on lost records.

use crate::format::{EntriesHead, flag, kind};
use crate::recover::{Damage, Replay};
use furrow_log::record::Uuid;
use furrow_log::ring::{FoundRecord, Piece, read_half};
use furrow_rt::Pool;
use furrow_zone::{Result, ZoneId, ZoneReport, ZonedDevice};
use zerocopy::FromBytes;

/// Identifies the half to read, and its store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfOf {
    pub(crate) store: Uuid,
    pub(crate) turn: u64,
    /// First zone of the half.
    pub(crate) first: Option<ZoneId>,
    /// Whether the half's superblock is damaged.
    pub(crate) headless: bool,
}

/// A half while it is read; afterwards, the state that its records add up to.
pub(crate) struct HalfReader {
    half: HalfOf,
    /// Whether the state of the snapshot comes from a copy, so that the snapshot's records need not
    /// be applied.
    copied: bool,
    begun: bool,
    /// Whether the last record of the snapshot was found.
    snapshot_ended: bool,
    /// Whether a record of a round follows the snapshot.
    pub(crate) has_rounds: bool,
    /// Records after a gap that do not yet prove that the gap is damage.
    pending: Vec<FoundRecord>,
    /// Number of whole records of the half.
    pub(crate) records: u64,
    pub(crate) replay: Replay,
    pub(crate) damage: Vec<Damage>,
    /// Place of the gap at the end of the half, if there is one.
    pub(crate) gap: Option<(ZoneId, u32)>,
    /// Whether the half that is read needs no help from a copy: the superblock of this half is
    /// intact, no record before the end of this half is missing, and the snapshot was read from
    /// this half.
    pub(crate) untouched: bool,
}

impl HalfReader {
    /// Creates a reader of a half; `copy` is the state of its snapshot, if another half holds
    /// a copy.
    pub(crate) fn new(half: HalfOf, copy: Option<Replay>) -> HalfReader {
        let copied = copy.is_some();
        let mut replay = copy.unwrap_or_default();
        // `before`, `same` and `turns` come from the half that holds the copy, not from the half
        // that is read.
        replay.before.clear();
        (replay.same, replay.turns) = (false, false);
        HalfReader {
            copied,
            begun: false,
            snapshot_ended: false,
            has_rounds: false,
            pending: Vec::new(),
            records: 0,
            replay,
            damage: Vec::new(),
            gap: None,
            untouched: !half.headless && !copied,
            half,
        }
    }

    /// Reads the half.
    ///
    /// # Errors
    /// The errors of [`read_half`].
    pub(crate) async fn read(
        mut self,
        device: &dyn ZonedDevice,
        reports: &[ZoneReport],
        zones: Vec<ZoneId>,
        pages: &Pool,
    ) -> Result<HalfReader> {
        let pieces = |piece| Ok(self.piece(piece));
        read_half(device, reports, zones.into_iter(), pages, pieces).await?;
        Ok(self)
    }

    /// Whether the snapshot is whole and no record of the half is damaged.
    pub(crate) fn is_sound(&self) -> bool {
        self.replay.whole && self.damage.is_empty()
    }

    /// Takes the next piece. Returns whether to continue.
    fn piece(&mut self, piece: Piece) -> bool {
        let record = match piece {
            Piece::Gap(zone, at) => {
                self.gap.get_or_insert((zone, at));
                return true;
            }
            Piece::Record(record) => record,
        };
        let header = &record.header;
        let (object, epoch) = (header.object, header.epoch.get());
        let ours = object == self.half.store && epoch == self.half.turn;
        let sequence = header.sequence.get();
        if ours && header.kind.get() == kind::SUPERBLOCK && !self.begun && self.gap.is_none() {
            (self.begun, self.replay.record, self.records) = (true, sequence, 1);
            return true;
        }
        if !ours || header.kind.get() != kind::ENTRIES {
            return self.gap.is_some();
        }
        if !self.begun {
            // The superblock is one block: if the snapshot follows in block 1, only the superblock
            // is missing.
            let follows = self.half.first.is_some_and(|first| record.place == (first, 1));
            self.begun = true;
            self.replay.record = sequence.saturating_sub(1);
            match follows || self.copied && is_snapshot(&record) {
                true => self.gap = None,
                false => self.replay.record = sequence.saturating_sub(2),
            }
        }
        if sequence <= self.replay.record {
            return self.gap.is_some();
        }
        let Some(gap) = self.gap else {
            let next = sequence == self.replay.record + 1;
            if next {
                self.apply(&record);
            }
            return next;
        };
        // The gap is only the unused end of a zone: no record is missing.
        if self.pending.is_empty() && sequence == self.replay.record + 1 && record.place.1 == 0 {
            self.gap = None;
            self.apply(&record);
            return true;
        }
        let round = header.checkpoint.get();
        let snapshot = is_snapshot(&record);
        let proof = record.place.0 == gap.0
            || header.durable.get() > self.replay.record + 1
            || (!snapshot && (!self.snapshot_ended || round > self.replay.round + 1));
        self.pending.push(record);
        if proof {
            for record in std::mem::take(&mut self.pending) {
                self.lost_before(gap, &record);
                self.apply(&record);
            }
            self.gap = None;
        }
        true
    }

    /// Notes that the records before `record` are lost, unless `record` is the next in sequence.
    fn lost_before(&mut self, gap: (ZoneId, u32), record: &FoundRecord) {
        let (first, next) = (self.replay.record + 1, record.header.sequence.get());
        if next == first {
            return;
        }
        self.untouched = false;
        let in_snapshot = is_snapshot(record);
        // `behind`: `record` is the first record of the first round after the snapshot. Then only
        // records of the snapshot are missing, and the copy has them.
        let behind = record.header.checkpoint.get() == self.replay.round + 1
            && record.header.durable.get() == next;
        if self.copied && !self.snapshot_ended && (in_snapshot || behind) {
            return;
        }
        let part = if in_snapshot || !self.snapshot_ended { " of the snapshot" } else { "" };
        let what = match next - first {
            1 => format!("record {first}{part} is damaged, and whole records lie behind it"),
            _ => {
                let last = next - 1;
                format!(
                    "records {first} to {last}{part} are damaged, and whole ones lie behind them"
                )
            }
        };
        self.damaged(gap, what);
    }

    fn damaged(&mut self, place: (ZoneId, u32), what: String) {
        self.replay.lossy = true;
        self.damage.push(Damage { place, what });
    }

    fn apply(&mut self, record: &FoundRecord) {
        let sequence = record.header.sequence.get();
        self.records += 1;
        if is_snapshot(record) && self.copied {
            self.replay.record = sequence;
        } else if let Err(error) = self.replay.apply(record) {
            // A whole record with impossible content is damage, not the end of the half.
            self.replay.record = sequence;
            self.damaged(record.place, format!("record {sequence} cannot be applied: {error}"));
        }
        match flags(record) {
            Some(flags) if flags & flag::SNAPSHOT != 0 => {
                self.snapshot_ended |= flags & flag::WHOLE != 0;
            }
            _ => (self.snapshot_ended, self.has_rounds) = (true, true),
        }
    }
}

fn flags(record: &FoundRecord) -> Option<u32> {
    let (head, _) = EntriesHead::read_from_prefix(&record.body).ok()?;
    Some(head.flags.get())
}

fn is_snapshot(record: &FoundRecord) -> bool {
    flags(record).is_some_and(|flags| flags & flag::SNAPSHOT != 0)
}
