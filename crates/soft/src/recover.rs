//! Reads a plain drive to find its journal and where each zone ends. Writes nothing.
//!
//! Recovery reads and compares only ranges that no later record calls complete. An unreadable part
//! of the drive is an error, and not taken for unwritten.

use crate::format::{BLOCK, Lasting, LastingState, Superblock};
use crate::halves::{Half, Step, half, steps};
use crate::journal::{Entry, Journal, Placed, Run};
use crate::make::read;
use crate::superblock;
use furrow_log::{Uuid, crc32c};
use furrow_policy::{SoftDefect, SoftVariant};
use furrow_rt::{Pages, Pool};
use furrow_zone::{Error, ErrorKind, PlainDevice, Result, ZoneId};
use std::ops::{Range, RangeInclusive};

/// The findings of recovery.
#[derive(Debug)]
pub(crate) struct Found {
    pub superblock: Superblock,
    /// The damaged copy of the superblock, if there is one; it will be rewritten.
    pub damaged: Option<Placed>,
    pub zones: Vec<Lasting>,
    /// Blocks that recovery accepted by their checksum alone.
    pub believed: Vec<Believed>,
    /// The journal, ready to continue at its end.
    pub journal: Journal,
    pub warnings: Vec<String>,
    /// A message about what damage of the journal has lost; `None` if nothing is lost.
    pub lost: Option<String>,
    /// For each zone, whether its state may differ from what the records read so far say.
    doubt: Vec<bool>,
}

/// Maximum number of ranges of zones that a message names.
const ZONES_NAMED: usize = 8;

/// Blocks of a zone that recovery accepted by their checksum alone.
#[derive(Debug)]
pub(crate) struct Believed {
    zone: ZoneId,
    generation: u32,
    from: u32,
    pages: Pages,
}

impl Found {
    /// Takes the blocks that recovery accepted by their checksum, each run with its zone and its
    /// place on the plain drive.
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

fn damaged(what: String) -> Error {
    let advice = "what the zones hold is not known: restore a copy";
    Error::new(
        ErrorKind::Corrupt,
        format!("{what} of the journal of its soft zones is damaged: {advice}"),
    )
}

/// Reads everything that recovery needs, and decides where zones end; writes nothing.
pub(crate) async fn look(
    plain: &dyn PlainDevice,
    variant: SoftVariant,
    pool: &Pool,
) -> Result<Found> {
    let Some(copies) = superblock::find(plain, pool).await? else {
        let what = format!("{}: no soft zones", plain.name());
        return Err(Error::new(ErrorKind::WrongFormat, what));
    };
    let superblock = copies.superblock;
    let place = |error: Error| error.at(plain.name());
    let halves = [
        half(plain, &superblock, 0, variant, pool).await.map_err(place)?,
        half(plain, &superblock, 1, variant, pool).await.map_err(place)?,
    ];
    let epoch = |half: &Half| half.table.as_ref().map(|table| table.epoch);
    let chosen = usize::from(epoch(&halves[1]) > epoch(&halves[0]));
    let Some(table) = &halves[chosen].table else {
        return Err(place(damaged("the table of each half".to_owned())));
    };
    let told = steps(table, &halves[chosen].records, &halves[1 - chosen]);
    let journal = Journal {
        device: superblock.uuid,
        half: chosen,
        turn: told.epoch,
        nonce: Uuid::NIL,
        next: 0,
        sequence: told.sequence,
        table: table.sequence,
        complete: told.complete,
        anchored: false,
        before: superblock.repeats.then(Vec::new),
    };
    let (damaged_copy, warning) = copies.damaged.unzip();
    let mended = told.mended.iter().map(|what| format!("{}: soft zones: {what}", plain.name()));
    let mut found = Found {
        superblock,
        damaged: damaged_copy,
        zones: table.zones.clone(),
        believed: Vec::new(),
        journal,
        warnings: warning.into_iter().chain(mended).collect(),
        lost: None,
        doubt: vec![false; table.zones.len()],
    };
    let mut lost = Vec::new();
    for step in told.steps {
        let (sequence, is_durable, entries) = match step {
            Step::Record { sequence, is_durable, entries } => (sequence, is_durable, entries),
            Step::Lost(records) => {
                found.doubt.fill(true);
                lost.push(records);
                continue;
            }
            Step::Turn(zones) => {
                zones.into_iter().for_each(|zone| found.doubt[zone.0 as usize] = true);
                continue;
            }
        };
        for entry in &entries {
            found.rebase(entry);
            if is_durable || variant.has(SoftDefect::UncheckedRange) {
                found
                    .trust(entry)
                    .map_err(|what| place(damaged(format!("record {sequence} ({what})"))))?;
            } else {
                found.check(plain, entry, pool).await?;
            }
        }
    }
    found.lost = (!lost.is_empty()).then(|| found.losses(&lost));
    Ok(found)
}

impl Found {
    /// A message about the consequences of losing `records`.
    fn losses(&self, records: &[RangeInclusive<u64>]) -> String {
        let record = |lost: &RangeInclusive<u64>| match lost.end() - lost.start() {
            0 => format!("record {}", lost.start()),
            _ => format!("records {} to {}", lost.start(), lost.end()),
        };
        let records: Vec<String> = records.iter().map(record).collect();
        let mut zones: Vec<(usize, usize)> = Vec::new();
        for zone in (0..self.doubt.len()).filter(|zone| self.doubt[*zone]) {
            match zones.last_mut() {
                Some((_, last)) if *last + 1 == zone => *last = zone,
                _ => zones.push((zone, zone)),
            }
        }
        let range = |&(first, last): &(usize, usize)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        let mut named: Vec<String> = zones.iter().take(ZONES_NAMED).map(range).collect();
        if zones.len() > ZONES_NAMED {
            named.push(format!("{} more ranges", zones.len() - ZONES_NAMED));
        }
        let what = match named.is_empty() {
            true => "later records name every zone: nothing is lost".to_owned(),
            false => format!(
                "blocks that were written last, or a reset or finish, may be lost in zones {}",
                named.join(", ")
            ),
        };
        let records = records.join(", ");
        format!(
            "{records} of the journal of its soft zones: damaged, with whole records behind: {what}"
        )
    }

    /// If the zone's state is in doubt, sets it to the state from which `entry` continues:
    /// everything before a later change was durable.
    fn rebase(&mut self, entry: &Entry) {
        let (zone, generation, pointer) = match entry {
            Entry::Written(zone, generation, run) => (*zone, *generation, run.from),
            Entry::State(zone, to) => (*zone, to.generation, to.pointer),
        };
        let index = zone.0 as usize;
        if std::mem::take(&mut self.doubt[index]) {
            self.zones[index] = Lasting { generation, pointer, state: LastingState::Writable };
        }
    }

    /// Applies a change that is durable. Returns a description of the zone if the change does not
    /// follow from the zone's state.
    fn trust(&mut self, entry: &Entry) -> std::result::Result<(), String> {
        let zone = entry.zone();
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

    /// Applies a change that may not be durable, as far as the drive holds the blocks that
    /// it names.
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

    /// The blocks of `run` before the first one whose checksum differs.
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

    /// Reads one by one the blocks of a zone that could not be read together. A flush may have
    /// covered each of them, although no record says so, so an unreadable block is not taken
    /// for unwritten.
    ///
    /// # Errors
    /// The error names the first unreadable block, and what the user can do.
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
