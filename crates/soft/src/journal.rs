//! The journal: builds records and finds the place of the next one. Pure.

use crate::format::{BLOCK, CHANGES_FIXED, Change, Lasting, LastingState, Layout, ZoneEntry, kind};
use furrow_log::record::{self, RecordId, blocks_for};
use furrow_log::{RecordHeader, Uuid};
use furrow_rt::{Pages, Pool};
use furrow_zone::ZoneId;
use std::collections::BTreeMap;
use zerocopy::{FromBytes, FromZeros, IntoBytes, little_endian::U64};

/// Consecutive blocks of a zone that were written, with their checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// First block, counted from the zone's start.
    pub from: u32,
    /// CRC32C of each block.
    pub checksums: Vec<u32>,
}

/// A change that a record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A run of blocks was written to the zone in its life with this generation.
    Written(ZoneId, u32, Run),
    /// The zone got another lasting state.
    State(ZoneId, Lasting),
}

impl Entry {
    /// Number of bytes of an entry for a range of `blocks` blocks.
    pub(crate) const fn bytes(blocks: usize) -> usize {
        Change::SIZE + 4 * blocks
    }

    pub(crate) fn zone(&self) -> ZoneId {
        match self {
            Entry::Written(zone, ..) | Entry::State(zone, _) => *zone,
        }
    }

    fn size(&self) -> usize {
        match self {
            Entry::Written(_, _, run) => Entry::bytes(run.checksums.len()),
            Entry::State(..) => Change::SIZE,
        }
    }

    fn put(&self, body: &mut Vec<u8>) {
        let change = |kind, state, zone: ZoneId, generation: u32, from: u32, count: u32| Change {
            kind,
            state,
            reserved: [0; 2],
            zone: zone.0.into(),
            generation: generation.into(),
            from: from.into(),
            count: count.into(),
        };
        match self {
            Entry::Written(zone, generation, run) => {
                let count = run.checksums.len() as u32;
                let head = change(0, 0, *zone, *generation, run.from, count);
                body.extend_from_slice(head.as_bytes());
                run.checksums.iter().for_each(|sum| body.extend_from_slice(&sum.to_le_bytes()));
            }
            Entry::State(zone, Lasting { generation, pointer, state }) => {
                let head = change(1, *state as u8, *zone, *generation, *pointer, 0);
                body.extend_from_slice(head.as_bytes());
            }
        }
    }

    /// Applies the change to the lasting states of all zones, as if the drive had all blocks that
    /// it names.
    pub(crate) fn apply(&self, zones: &mut [Lasting]) {
        match self {
            Entry::Written(zone, _, run) => {
                if let Some(zone) = zones.get_mut(zone.0 as usize) {
                    zone.pointer = run.from + run.checksums.len() as u32;
                }
            }
            Entry::State(zone, lasting) => {
                if let Some(zone) = zones.get_mut(zone.0 as usize) {
                    *zone = *lasting;
                }
            }
        }
    }
}

/// The content of a record of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Sequence number of the table in the record's half.
    pub table: u64,
    pub entries: Vec<Entry>,
    /// The entries of the record before, if this record repeats them.
    pub before: Option<Vec<Entry>>,
}

/// Parses the body of a record of changes. `None` if the body is impossible, though its checksum
/// is right.
pub(crate) fn parse(body: &[u8], layout: &Layout) -> Option<Changes> {
    let (table, mut rest) = U64::read_from_prefix(body).ok()?;
    let (mut entries, mut own) = (Vec::new(), None);
    while !rest.is_empty() {
        let (change, behind) = Change::read_from_prefix(rest).ok()?;
        let (zone, generation) = (ZoneId(change.zone.get()), change.generation.get());
        let (from, count) = (change.from.get(), change.count.get());
        if zone.0 >= layout.zones || from > layout.zone_blocks {
            return None;
        }
        rest = behind;
        entries.push(match change.kind {
            0 if count > 0 && count <= layout.zone_blocks - from => {
                let (sums, behind) = rest.split_at_checked(4 * count as usize)?;
                rest = behind;
                let sum =
                    |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                let checksums = sums.chunks_exact(4).map(sum).collect();
                Entry::Written(zone, generation, Run { from, checksums })
            }
            1 => {
                let state = LastingState::from_byte(change.state)?;
                Entry::State(zone, Lasting { generation, pointer: from, state })
            }
            REPEATED if own.is_none() => {
                own = Some(std::mem::take(&mut entries));
                continue;
            }
            _ => return None,
        });
    }
    let (entries, before) = match own {
        Some(own) => (own, Some(entries)),
        None => (entries, None),
    };
    Some(Changes { table: table.get(), entries, before })
}

/// The kind of a change that only marks the start of the entries repeated from the record before.
const REPEATED: u8 = 2;

/// Changes that no record names yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    runs: BTreeMap<ZoneId, (u32, Run)>,
    states: Vec<(ZoneId, Lasting)>,
    blocks: u64,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.states.is_empty()
    }

    /// Whether blocks of `zone` are pending.
    pub(crate) fn has_blocks(&self, zone: ZoneId) -> bool {
        self.runs.contains_key(&zone)
    }

    /// Number of pending blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Number of bytes of entries for all pending changes.
    pub(crate) fn bytes(&self) -> usize {
        (self.runs.len() + self.states.len()) * Change::SIZE + 4 * self.blocks as usize
    }

    /// Adds blocks of a zone from block `from` on, which directly follow its pending blocks.
    pub(crate) fn wrote(
        &mut self,
        zone: ZoneId,
        generation: u32,
        from: u32,
        sums: impl Iterator<Item = u32>,
    ) {
        let fresh = || (generation, Run { from, checksums: Vec::new() });
        let (_, run) = self.runs.entry(zone).or_insert_with(fresh);
        let before = run.checksums.len();
        run.checksums.extend(sums);
        self.blocks += (run.checksums.len() - before) as u64;
    }

    /// Adds a change of state.
    pub(crate) fn changed(&mut self, zone: ZoneId, to: Lasting) {
        self.states.push((zone, to));
    }

    /// Removes the zone's blocks from `from` on.
    pub(crate) fn forget(&mut self, zone: ZoneId, from: u32) {
        let Some((_, run)) = self.runs.get_mut(&zone) else { return };
        let kept = from.saturating_sub(run.from) as usize;
        self.blocks -= run.checksums.len().saturating_sub(kept) as u64;
        run.checksums.truncate(kept);
        if run.checksums.is_empty() {
            self.runs.remove(&zone);
        }
    }

    /// Removes the zone's blocks from `from` on, where a write failed, and the requested changes of
    /// its state: the failure decides the state.
    pub(crate) fn fail(&mut self, zone: ZoneId, from: u32) {
        self.forget(zone, from);
        self.states.retain(|(other, _)| *other != zone);
    }

    /// Takes entries of at most `most` bytes in total, or of a single block if that is larger.
    /// Ranges come before changes of state, because these were requested later.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Entry> {
        let (mut taken, mut left) = (Vec::new(), most.max(Entry::bytes(1)));
        while let Some(entry) = self.runs.first_entry() {
            let zone = *entry.key();
            let (generation, mut run) = entry.remove();
            let fit = left.saturating_sub(Change::SIZE) / 4;
            let rest = run.checksums.split_off(fit.min(run.checksums.len()));
            let from = run.from + run.checksums.len() as u32;
            if !run.checksums.is_empty() {
                left -= Entry::bytes(run.checksums.len());
                self.blocks -= run.checksums.len() as u64;
                taken.push(Entry::Written(zone, generation, run));
            }
            if !rest.is_empty() {
                self.runs.insert(zone, (generation, Run { from, checksums: rest }));
                return taken;
            }
        }
        let fit = (left / Change::SIZE).min(self.states.len());
        taken.extend(self.states.drain(..fit).map(|(zone, to)| Entry::State(zone, to)));
        taken
    }
}

/// Blocks for one place on the plain drive: a record, a table, or content of a zone.
#[derive(Debug)]
pub(crate) struct Placed {
    /// First byte on the plain drive.
    pub at: u64,
    pub pages: Pages,
}

/// The state of the journal from which the next record continues.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    pub device: Uuid,
    /// The half to which records are written.
    pub half: usize,
    /// Number of the turn: how many halves have been begun.
    pub turn: u64,
    /// Random number of this turn, which distinguishes its records from those of other turns at the
    /// same place.
    pub nonce: Uuid,
    /// The next free block for records in the half.
    pub next: u32,
    /// Sequence number of the record written last.
    pub sequence: u64,
    /// Sequence number of the half's table.
    pub table: u64,
    /// Number of the last record up to which all records, and all blocks that they name,
    /// are durable.
    pub complete: u64,
    /// Whether the half's table is known to be durable.
    pub anchored: bool,
    /// Entries of the record written last, which the next record repeats, so that every record but
    /// the last exists twice. Empty if the table was written last. `None` on drives whose records
    /// do not repeat others.
    pub before: Option<Vec<Entry>>,
}

impl Journal {
    fn id(&self, kind: u16) -> RecordId {
        RecordId {
            kind,
            epoch: self.turn,
            checkpoint: self.complete,
            sequence: self.sequence,
            device: self.device,
            object: self.nonce,
        }
    }

    /// Size in bytes of the entries that fit in one record, in an empty half.
    pub(crate) fn most(layout: &Layout) -> usize {
        layout.records() as usize * BLOCK as usize - RecordHeader::SIZE - CHANGES_FIXED
    }

    /// The entries that the next record repeats.
    fn repeated(&self) -> &[Entry] {
        self.before.as_deref().unwrap_or_default()
    }

    /// Whether a record of `entries` fits in the rest of the half.
    pub(crate) fn fits(&self, entries: &[Entry], layout: &Layout) -> bool {
        let size = |entries: &[Entry]| entries.iter().map(Entry::size).sum::<usize>();
        let repeated = match self.repeated() {
            [] => 0,
            before => Change::SIZE + size(before),
        };
        self.next + blocks_for(CHANGES_FIXED + size(entries) + repeated) <= layout.records()
    }

    /// Continues in the other half, and writes `zones` as its table. This overwrites the old table
    /// there, so the table of the present half must be durable.
    pub(crate) fn turn(
        &mut self,
        nonce: Uuid,
        zones: &[Lasting],
        layout: &Layout,
        pool: &Pool,
    ) -> Placed {
        assert!(self.anchored, "the only table known to be durable would be overwritten");
        self.anchored = false;
        self.half ^= 1;
        self.turn += 1;
        self.nonce = nonce;
        self.next = 0;
        self.sequence += 1;
        self.table = self.sequence;
        if let Some(before) = &mut self.before {
            before.clear();
        }
        let mut body = Vec::with_capacity(zones.len() * ZoneEntry::SIZE);
        zones.iter().for_each(|zone| body.extend_from_slice(zone.entry().as_bytes()));
        let pages = record::seal(&self.id(kind::TABLE), &body, pool);
        Placed { at: layout.half_at(self.half), pages }
    }

    /// Builds the next record, of `entries`, for the next place in the half.
    pub(crate) fn append(&mut self, entries: &[Entry], layout: &Layout, pool: &Pool) -> Placed {
        self.sequence += 1;
        let mut body = self.table.to_le_bytes().to_vec();
        entries.iter().for_each(|entry| entry.put(&mut body));
        if !self.repeated().is_empty() {
            let repeated = Change { kind: REPEATED, ..Change::new_zeroed() };
            body.extend_from_slice(repeated.as_bytes());
            self.repeated().iter().for_each(|entry| entry.put(&mut body));
        }
        if let Some(before) = &mut self.before {
            before.clear();
            before.extend_from_slice(entries);
        }
        let pages = record::seal(&self.id(kind::CHANGES), &body, pool);
        let block = u64::from(layout.table + self.next);
        self.next += pages.len() as u32;
        Placed { at: layout.half_at(self.half) + block * BLOCK, pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::buf::concat;
    use furrow_zone::ByteLen;
    use proptest::prelude::*;

    fn layout() -> Layout {
        Layout::plan(ByteLen(4 << 20), ByteLen(64 << 10), Some(4)).expect("it fits")
    }

    fn journal() -> Journal {
        let (device, nonce) = (Uuid([1; 16]), Uuid([2; 16]));
        let (before, complete, anchored) = (Some(Vec::new()), 1, true);
        let (half, next, turn, sequence, table) = (0, 0, 1, 1, 1);
        Journal { device, half, turn, nonce, next, sequence, table, complete, anchored, before }
    }

    proptest! {
        /// Entries taken in parts are exactly those that were added, and are parsed as they
        /// were built.
        #[test]
        fn entries_are_taken_whole_and_read_back(
            writes in proptest::collection::vec((0u32..20, 1usize..9), 1..40),
            most in 0usize..400,
        ) {
            let (mut pending, mut ends) = (Pending::default(), [0u32; 20]);
            let mut zones = vec![Lasting::default(); 20];
            for (zone, blocks) in &writes {
                let end = &mut ends[*zone as usize];
                if *end as usize + blocks > 16 { continue; }
                let sums = (*end..).take(*blocks);
                pending.wrote(ZoneId(*zone), 0, *end, sums);
                *end += *blocks as u32;
            }
            pending.changed(ZoneId(3), Lasting { pointer: ends[3], ..Lasting::default() });
            let (mut all, pool, mut journal) = (0, Pool::new(4), journal());
            let mut before = None;
            while !pending.is_empty() {
                let entries = pending.take(most);
                prop_assert!(!entries.is_empty());
                let placed = journal.append(&entries, &layout(), &pool);
                let bytes = concat(&placed.pages);
                let expect = record::Expect { kind: kind::CHANGES, ..Default::default() };
                let (_, body) = record::open(&bytes, &expect).expect("just sealed");
                let told = Changes { table: 1, entries: entries.clone(), before };
                prop_assert_eq!(parse(body, &layout()), Some(told));
                before = Some(entries.clone());
                for entry in &entries {
                    if let Entry::Written(zone, _, run) = entry {
                        prop_assert_eq!(zones[zone.0 as usize].pointer, run.from);
                        prop_assert_eq!(run.checksums[0], run.from, "the sums above");
                        all += run.checksums.len() as u64;
                    }
                    entry.apply(&mut zones);
                }
            }
            prop_assert_eq!(all, ends.iter().map(|end| u64::from(*end)).sum::<u64>());
            prop_assert_eq!((pending.blocks(), pending.bytes()), (0, 0));
            let pointers: Vec<u32> = zones.iter().map(|zone| zone.pointer).collect();
            prop_assert_eq!(pointers, ends.to_vec());
        }

        /// No body of a record causes a panic.
        #[test]
        fn any_body_is_parsed_or_refused(body in proptest::collection::vec(0u8..4, 0..100)) {
            let _ = parse(&body, &layout());
        }
    }

    #[test]
    fn what_failed_is_forgotten() {
        let mut pending = Pending::default();
        pending.wrote(ZoneId(1), 0, 4, 0..6);
        pending.forget(ZoneId(1), 7);
        assert_eq!(pending.blocks(), 3);
        pending.forget(ZoneId(1), 2);
        assert!(pending.is_empty() && pending.blocks() == 0);
    }

    #[test]
    fn a_half_that_is_full_turns() {
        let (mut journal, layout, pool) = (journal(), layout(), Pool::new(4));
        let state = [Entry::State(ZoneId(0), Lasting::default())];
        for _ in 0..4 {
            assert!(journal.fits(&state, &layout));
            journal.append(&state, &layout, &pool);
        }
        assert!(!journal.fits(&state, &layout));
        let zones = vec![Lasting::default(); layout.zones as usize];
        let table = journal.turn(Uuid([3; 16]), &zones, &layout, &pool);
        assert_eq!((table.at, journal.half, journal.turn), (layout.half_at(1), 1, 2));
        assert!(journal.fits(&state, &layout));
    }
}
