//! A suite that tests a drive against the rules of zones, on any [`ZonedDevice`].
//!
//! It walks at random, by seed, through commands and states of a few zones. Before each command,
//! the state machine ([`Machine`]) says what the drive must answer; afterwards the suite compares
//! the zone's report. A read must return the blocks that were written, including out-of-band bytes,
//! and an append must return its place. The suite notes each difference, and the machine continues
//! from the drive's report. Then the suite opens zones until the drive refuses. At the beginning
//! and at the end, the suite resets the zones that it uses: their content is lost.

#![allow(dead_code, reason = "no program uses all of it")]

use furrow_rt::{PAGE_SIZE, Page, Pages, Rng};
use furrow_zone::{
    Action, BlockCount, Command, Geometry, Lba, Machine, QueueId, Request, Status, Target, Zone,
    ZoneId, ZoneState, ZonedDevice,
};
use std::collections::BTreeMap;

/// Number of zones that the walk uses.
const ZONES: u32 = 4;

/// A command in some state of its zone, with the status that the rules demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// The command, in two or three words.
    pub what: &'static str,
    /// State of the zone before the command, as an index of [`STATES`].
    state: usize,
    demanded: u16,
}

/// All zone states with their names.
const STATES: [(ZoneState, &str); 7] = [
    (ZoneState::Empty, "empty"),
    (ZoneState::ImplicitlyOpen, "implicitly open"),
    (ZoneState::ExplicitlyOpen, "explicitly open"),
    (ZoneState::Closed, "closed"),
    (ZoneState::Full, "full"),
    (ZoneState::ReadOnly, "read-only"),
    (ZoneState::Offline, "offline"),
];

/// How the drive behaved in a case.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Number of times that the case occurred.
    pub times: u64,
    /// Descriptions of differences, and how often each occurred.
    pub differences: BTreeMap<String, u64>,
    demanded: String,
}

/// The results of a run of the suite, by case.
#[derive(Debug, Default)]
pub struct Findings {
    rows: BTreeMap<Case, Row>,
}

impl Findings {
    /// Number of commands that were checked.
    pub fn commands(&self) -> u64 {
        self.rows.values().map(|row| row.times).sum()
    }

    /// Number of cases that occurred, and how many of them had a difference.
    pub fn cases(&self) -> (usize, usize) {
        let differ = self.rows.values().filter(|row| !row.differences.is_empty()).count();
        (self.rows.len(), differ)
    }

    /// Formats a Markdown table with one line per case.
    pub fn table(&self) -> Vec<String> {
        let mut lines = vec![
            "| command | state before | the rules say | times | the drive |".to_owned(),
            "|---|---|---|---|---|".to_owned(),
        ];
        for (case, row) in &self.rows {
            let found = match row.differences.is_empty() {
                true => "equal".to_owned(),
                false => {
                    let list = row.differences.iter().map(|(what, n)| format!("{what} ({n}×)"));
                    list.collect::<Vec<_>>().join("; ")
                }
            };
            let state = STATES[case.state].1;
            let Row { times, demanded, .. } = row;
            lines.push(format!("| {} | {state} | {demanded} | {times} | {found} |", case.what));
        }
        lines
    }

    /// Describes each case with a difference in one line: command, state before, what the rules
    /// say, and what the drive does, but not how often. For one drive and seed, every run gives the
    /// same lines.
    pub fn differences(&self) -> Vec<String> {
        let line = |(case, row): (&Case, &Row)| {
            let found = row.differences.keys().map(String::as_str).collect::<Vec<_>>().join("; ");
            format!("{} | {} | {} | {found}", case.what, STATES[case.state].1, row.demanded)
        };
        self.rows.iter().filter(|(_, row)| !row.differences.is_empty()).map(line).collect()
    }

    fn note(&mut self, what: &'static str, state: ZoneState, demanded: Status) -> &mut Row {
        let state = STATES.iter().position(|(known, _)| *known == state).unwrap_or(0);
        let row = self.rows.entry(Case { what, state, demanded: demanded.code() }).or_default();
        row.times += 1;
        row.demanded = demanded.to_string();
        row
    }
}

fn differ(row: &mut Row, what: String) {
    *row.differences.entry(what).or_default() += 1;
}

/// Fills a page with the content of the blocks from `lba` on, as the walk wrote them in the
/// `life`-th life of their zone.
fn fill(page: &mut Page, lba: u64, life: u64, block: usize) {
    for (index, bytes) in page.make_mut().chunks_mut(block).enumerate() {
        bytes.fill(0xa5);
        bytes[..8].copy_from_slice(&(lba + index as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&life.to_le_bytes());
    }
}

/// The out-of-band bytes of `blocks` blocks from `lba` on, with `each` bytes per block.
fn oob(lba: u64, blocks: u64, life: u64, each: u16) -> Vec<u8> {
    let block = |lba: u64| {
        let word = lba.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(life).to_le_bytes();
        word.into_iter().cycle().take(usize::from(each))
    };
    (lba..lba + blocks).flat_map(block).collect()
}

struct Walk<'a> {
    device: &'a dyn ZonedDevice,
    geometry: Geometry,
    machine: Machine,
    rng: Rng,
    first: u32,
    granule: u64,
    lives: [u64; ZONES as usize],
    found: Findings,
}

/// Runs `steps` random commands by `seed` on `device`, then tests its limits of open and active
/// zones. All lengths are multiples of `granule` blocks, for drives that require it.
///
/// # Errors
/// A sentence, if the drive does not report its zones or a zone cannot be reset.
pub async fn run(
    device: &dyn ZonedDevice,
    seed: u64,
    steps: u64,
    granule: u64,
) -> Result<Findings, String> {
    let geometry = device.geometry().clone();
    let machine = Machine::new(geometry.clone()).map_err(|error| error.to_string())?;
    let first = geometry.conventional_zones;
    if geometry.zones < first + ZONES {
        return Err(format!("it has fewer than {ZONES} sequential zones"));
    }
    let (rng, found) = (Rng::new(seed), Findings::default());
    let granule = granule.max(1);
    let mut walk = Walk { device, geometry, machine, rng, first, granule, lives: [0; 4], found };
    walk.reset().await?;
    for _ in 0..steps {
        walk.step().await?;
    }
    walk.reset().await?;
    walk.limits().await?;
    walk.reset().await?;
    Ok(walk.found)
}

impl Walk<'_> {
    /// Resets all sequential zones, on the drive and in the machine.
    async fn reset(&mut self) -> Result<(), String> {
        self.machine = Machine::new(self.geometry.clone()).map_err(|error| error.to_string())?;
        for zone in (self.first..self.geometry.zones).map(ZoneId) {
            if self.report(zone).await?.state != ZoneState::Empty {
                self.manage(zone, Action::Reset).await;
            }
            let report = self.report(zone).await?;
            if report.state != ZoneState::Empty {
                return Err(format!("zone {zone} is {:?} after a reset", report.state));
            }
            self.adopt(zone).await?;
        }
        self.lives.iter_mut().for_each(|life| *life += 1);
        Ok(())
    }

    async fn report(&self, zone: ZoneId) -> Result<Zone, String> {
        let reports =
            self.device.report(zone, 1).await.map_err(|status| format!("report: {status}"))?;
        let report = reports.first().ok_or("an empty report")?;
        let (state, write_pointer) = (report.state, report.write_pointer);
        Ok(Zone { state, capacity: report.capacity, write_pointer })
    }

    /// Sets the zone in the machine to the drive's report.
    async fn adopt(&mut self, zone: ZoneId) -> Result<(), String> {
        let report = self.report(zone).await?;
        self.machine.restore(zone, report).map_err(|error| error.to_string())
    }

    async fn manage(&self, zone: ZoneId, action: Action) -> Status {
        let target = Target::Zone(self.geometry.start(zone));
        let request = Request::bare(Command::Manage { target, action });
        self.device.submit(QueueId(0), request).await.status
    }

    /// Executes a random command and compares the drive's answer.
    async fn step(&mut self) -> Result<(), String> {
        let index = self.rng.below(u64::from(ZONES));
        let zone = ZoneId(self.first + index as u32);
        let start = self.geometry.start(zone).0;
        let now = self.report(zone).await?;
        let most = self.geometry.max_transfer.map_or(64, |most| most.0.min(64));
        let per_page = PAGE_SIZE as u64 / self.geometry.block_size.0;
        let blocks = match self.granule {
            1 => 1 + self.rng.below(most / per_page) * per_page,
            granule => (1 + self.rng.below((most / granule).max(1))) * granule,
        };
        let pointer = now.write_pointer.0;
        let target = Target::Zone(Lba(start));
        let manage = |action| Command::Manage { target, action };
        let write = |at: u64, blocks| Command::Write { lba: Lba(at), blocks: BlockCount(blocks) };
        let read = |at: u64, blocks| Command::Read { lba: Lba(at), blocks: BlockCount(blocks) };
        let size = self.geometry.zone_size.0;
        let (what, command) = match self.rng.below(20) {
            0..=5 => ("write at the pointer", write(start + pointer.min(size - blocks), blocks)),
            6 => ("write elsewhere", write(start + self.rng.below(size - blocks), blocks)),
            7 => {
                let at = now.capacity.0.saturating_sub(self.rng.below(blocks)).min(size - blocks);
                ("write to the end", write(start + at, blocks))
            }
            8..=10 if pointer > 0 => {
                let blocks = blocks.min(pointer);
                ("read what is written", read(start + self.rng.below(pointer - blocks + 1), blocks))
            }
            11 => ("read beyond the pointer", read(start + pointer.min(size - 1), 1)),
            12 => ("read across zones", read(start + size - 1, 2)),
            13 => ("open", manage(Action::Open)),
            14 | 15 => ("close", manage(Action::Close)),
            16 if self.rng.one_in(3) => ("finish", manage(Action::Finish)),
            17 => ("reset", manage(Action::Reset)),
            18 => {
                let (zone_start, blocks) = (Lba(start), BlockCount(blocks));
                ("append", Command::Append { zone_start, blocks })
            }
            _ => ("flush", Command::Flush),
        };
        self.check(what, zone, index as usize, now, command).await
    }

    async fn check(
        &mut self,
        what: &'static str,
        zone: ZoneId,
        index: usize,
        before: Zone,
        command: Command,
    ) -> Result<(), String> {
        let demanded = self.machine.check(&command);
        let life = self.lives[index];
        let block = self.geometry.block_size.0 as usize;
        let per_page = (PAGE_SIZE / block) as u64;
        let each = self.geometry.oob_bytes;
        let mut marks = Vec::new();
        let data = match command {
            Command::Read { blocks, .. } => {
                (0..blocks.0.div_ceil(per_page)).map(|_| Page::zeroed()).collect()
            }
            Command::Write { lba, blocks } | Command::Append { zone_start: lba, blocks } => {
                let at = match command {
                    Command::Append { .. } => lba.0 + before.write_pointer.0,
                    _ => lba.0,
                };
                let page = |number| {
                    let mut page = Page::zeroed();
                    fill(&mut page, at + number * per_page, life, block);
                    page
                };
                marks = oob(at, blocks.0, life, each);
                (0..blocks.0.div_ceil(per_page)).map(page).collect()
            }
            _ => Pages::new(),
        };
        let request = Request { oob: marks, ..Request::with_data(command, data) };
        let outcome = self.device.submit(QueueId(0), request).await;
        // The geometry does not say whether reads of blocks that were never written return zeros or
        // an error.
        let open = demanded == Status::Unwritten && outcome.status.is_ok();
        // If the write pointer lies within the write's range or at its end, the kernel's error does
        // not show whether the write arrived. Such a write may count as failed.
        let overlaps = |lba: Lba, blocks: BlockCount| {
            let pointer = self.geometry.start(zone).0 + before.write_pointer.0;
            lba.0 < pointer && pointer <= lba.0 + blocks.0
        };
        let lenient = open
            || matches!(command, Command::Write { lba, blocks } if overlaps(lba, blocks))
                && (demanded, outcome.status) == (Status::ZoneInvalidWrite, Status::WriteFault);
        let answered = if lenient { demanded } else { outcome.status };
        let row = self.found.note(what, before.state, demanded);
        if answered != demanded {
            differ(row, format!("answers {answered}"));
        } else if let (Command::Append { zone_start, .. }, true) = (command, demanded.is_ok()) {
            let at = zone_start.0 + before.write_pointer.0;
            if outcome.lba != Lba(at) {
                differ(row, format!("says that it is at block {}, not {at}", outcome.lba));
            }
        } else if let (Command::Read { lba, blocks }, true) = (command, demanded.is_ok()) {
            let end = self.geometry.start(zone).0 + before.write_pointer.0;
            let marks = oob(lba.0, blocks.0, life, each);
            // For a full zone, the walk does not know where the data ends.
            let known = lba.0 + blocks.0 <= end && before.state != ZoneState::Full;
            if outcome.oob.len() != marks.len() || (known && outcome.oob != marks) {
                differ(row, "other out-of-band bytes".to_owned());
            }
            for (number, page) in outcome.data.iter().enumerate() {
                let at = lba.0 + number as u64 * per_page;
                let mut expected = Page::zeroed();
                fill(&mut expected, at, life, block);
                let length = block * (blocks.0 - number as u64 * per_page).min(per_page) as usize;
                let written = at + per_page <= end;
                if written
                    && before.state != ZoneState::Full
                    && page[..length] != expected[..length]
                {
                    differ(row, "other bytes".to_owned());
                    break;
                }
            }
        }
        let _ = self.machine.apply(&command);
        if matches!(command, Command::Manage { action: Action::Reset, .. }) {
            self.lives[index] += 1;
        }
        let after = self.report(zone).await?;
        let wanted = self.machine.zone(zone).ok_or("no such zone")?;
        let reported = (wanted.state, wanted.reported_pointer());
        if reported != (after.state, after.write_pointer) {
            let row = self.found.note(what, before.state, demanded);
            row.times -= 1;
            let (state, at) = (after.state, after.write_pointer);
            differ(row, format!("then {state:?} at {at}, not {:?} at {}", reported.0, reported.1));
            self.adopt(zone).await?;
        }
        Ok(())
    }

    /// Opens zones until the drive refuses.
    async fn limits(&mut self) -> Result<(), String> {
        let most = self.geometry.max_open.unwrap_or(0) + 2;
        let zones = most.min(self.geometry.zones - self.first);
        for zone in (self.first..self.first + zones).map(ZoneId) {
            let target = Target::Zone(self.geometry.start(zone));
            let command = Command::Manage { target, action: Action::Open };
            let demanded = self.machine.check(&command);
            let answered = self.manage(zone, Action::Open).await;
            let row = self.found.note("open one more", ZoneState::Empty, demanded);
            if answered != demanded {
                differ(row, format!("answers {answered}"));
            }
            let _ = self.machine.apply(&command);
            self.adopt(zone).await?;
        }
        Ok(())
    }
}
