//! A copy-on-write view of a drive: changes stay in memory, in order, until they are applied.
//!
//! An [`Overlay`] looks and behaves like the drive below it did when the view was made: same zone
//! states, same rules and limits ([`Machine`]), same geometry. Only out-of-band bytes are left out:
//! a view has none. Writes, resets and flushes change only the view, which records them.
//! [`Overlay::apply`] then carries them out on the drive below: it sends each command after the
//! answer to the one before. Replaying the changes in order keeps the writer's crash safety: a
//! sequence that is safe on the view is safe on the drive.
//!
//! Invariants
//! - Only [`Overlay::apply`] sends the drive below anything other than reads.
//! - Each block is read from the view if it was written there, otherwise from the drive, never as a
//!   mixture. Blocks that the drive cannot read cannot be read from the view.
//! - The view is valid only while nothing else changes the drive; `apply` checks that the zones
//!   are unchanged.
//!
//! The view may implicitly close another zone than the drive would, because zone reports do not say
//! which zone was opened first.
//!
//! Not supported: out-of-band bytes (refused), writes to conventional zones (refused), faults of
//! the drive between making the view and applying it.

use crate::machine::{Effect, Machine};
use crate::{
    BlockCount, Command, Error, ErrorKind, Geometry, Lba, Outcome, QueueId, Reports, Request,
    Result, Status, Zone, ZoneId, ZoneReport, ZoneState, ZonedDevice, reported,
};
use furrow_rt::{Completion, CompletionTable, PAGE_SIZE, Page, Pages, Rt};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A command that changed the view.
#[derive(Clone, Debug)]
pub struct Change {
    /// The command. An append is recorded as the write that it became.
    pub command: Command,
    /// Payload of the write.
    pub data: Pages,
    /// Whether the write is durable when answered.
    pub fua: bool,
}

/// A view of a drive; see the [module](self). A clone is another handle of the same view.
#[derive(Clone)]
pub struct Overlay(Rc<Inner>);

struct Inner {
    rt: Rt,
    below: Rc<dyn ZonedDevice>,
    geometry: Geometry,
    /// The drive's zone reports when the view was made.
    before: Vec<ZoneReport>,
    answers: CompletionTable<Outcome>,
    state: RefCell<State>,
}

struct State {
    machine: Machine,
    /// Zones whose state or content differs from the drive's, each with the number of the drive's
    /// blocks that the view still shows.
    touched: BTreeMap<ZoneId, BlockCount>,
    /// Written data, by first block.
    written: BTreeMap<u64, Written>,
    changes: Vec<Change>,
    bytes: u64,
}

struct Written {
    blocks: u64,
    data: Pages,
}

impl Overlay {
    /// Creates a view of `below`. Nobody else may change the drive while the view is in use.
    ///
    /// # Errors
    /// `Io` if the drive does not report its zones, `Corrupt` if its report breaks its own limits.
    pub async fn new(rt: &Rt, below: Rc<dyn ZonedDevice>) -> Result<Overlay> {
        let geometry = Geometry { oob_bytes: 0, ..below.geometry().clone() };
        let before = report(&*below).await?;
        let mut machine = Machine::new(geometry.clone())?;
        for zone in &before {
            let write_pointer =
                match zone.state == ZoneState::Full || zone.state == ZoneState::ReadOnly {
                    true => zone.capacity,
                    false => zone.write_pointer,
                };
            let to = Zone { state: zone.state, write_pointer, capacity: zone.capacity };
            machine.restore(zone.zone, to).map_err(|error| error.at(below.name()))?;
        }
        let state = State {
            machine,
            touched: BTreeMap::new(),
            written: BTreeMap::new(),
            changes: Vec::new(),
            bytes: 0,
        };
        Ok(Overlay(Rc::new(Inner {
            rt: rt.clone(),
            below,
            geometry,
            before,
            answers: CompletionTable::new(),
            state: RefCell::new(state),
        })))
    }

    /// The number of commands that changed the view.
    pub fn changes(&self) -> usize {
        self.0.state.borrow().changes.len()
    }

    /// Number of bytes written to the view, all of them in memory.
    pub fn bytes(&self) -> u64 {
        self.0.state.borrow().bytes
    }

    /// Applies the changes of the view to the drive below, in order, and flushes. `progress`
    /// is called with the number of commands done, and their total. The view must not be
    /// used afterwards.
    ///
    /// # Errors
    /// `Busy` if the drive's zones have changed since the view was made (then nothing is written);
    /// `Io` if the drive does not report its zones, or with the command that failed, after all
    /// earlier commands were carried out.
    pub async fn apply(&self, mut progress: impl FnMut(usize, usize)) -> Result<()> {
        let below = self.0.below.clone();
        let same = |(a, b): (&ZoneReport, &ZoneReport)| {
            // The drive may have closed or opened zones by itself, which is not a difference.
            let kind = |report: &ZoneReport| (report.state.is_active(), report.write_pointer);
            a.state == b.state || (kind(a) == kind(b) && a.state.is_active())
        };
        let now = report(&*below).await?;
        if let Some((was, is)) = self.0.before.iter().zip(&now).find(|pair| !same(*pair)) {
            let message = format!(
                "{}: zone {} was {:?} at {} and is {:?} at {} now: another program uses the drive",
                below.name(),
                was.zone,
                was.state,
                was.write_pointer,
                is.state,
                is.write_pointer
            );
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let changes = std::mem::take(&mut self.0.state.borrow_mut().changes);
        let total = changes.len();
        for (done, change) in changes.into_iter().enumerate() {
            let Change { command, data, fua } = change;
            progress(done, total);
            let request = Request { fua, ..Request::with_data(command, data) };
            let outcome = below.submit(QueueId(0), request).await;
            if !outcome.status.is_ok() {
                let what = format!("{command:?}, change {done} of {total}");
                return Err(Error::device(&below.name(), what, outcome.status));
            }
        }
        let outcome = below.submit(QueueId(0), Request::bare(Command::Flush)).await;
        if !outcome.status.is_ok() {
            return Err(Error::device(&below.name(), "flush", outcome.status));
        }
        progress(total, total);
        Ok(())
    }

    fn answer(&self, outcome: Outcome) -> Completion<Outcome> {
        let (ticket, completion) = self.0.answers.open();
        self.0.answers.complete(ticket, outcome);
        completion
    }

    fn read(&self, lba: Lba, blocks: BlockCount, data: Pages) -> Completion<Outcome> {
        let parts = match self.parts(lba, blocks) {
            Ok(parts) => parts,
            Err(status) => return self.answer(Outcome { data, ..bare(status) }),
        };
        if let [Part::Below { .. }] = parts[..] {
            let command = Command::Read { lba, blocks };
            return self.0.below.submit(QueueId(0), Request::with_data(command, data));
        }
        let (ticket, completion) = self.0.answers.open();
        let inner = self.0.clone();
        self.0.rt.spawn_detached(async move {
            let outcome = inner.gather(parts, data).await;
            inner.answers.complete(ticket, outcome);
        });
        completion
    }

    /// The parts from which a read is put together, in order.
    fn parts(&self, lba: Lba, blocks: BlockCount) -> Result<Vec<Part>, Status> {
        let state = self.0.state.borrow();
        let geometry = state.machine.geometry();
        let (mut at, end) = (lba.0, lba.0.saturating_add(blocks.0));
        let mut parts: Vec<Part> = Vec::new();
        while at < end {
            let (zone, offset) = geometry.locate(Lba(at)).ok_or(Status::LbaOutOfRange)?;
            let below = state.touched.get(&zone).copied();
            let zone_end = end.min(geometry.start(zone).0 + geometry.zone_size.0);
            let Some(below) = below else {
                // No command changed this zone in the view, so the drive itself answers.
                Part::below(&mut parts, at, zone_end - at);
                at = zone_end;
                continue;
            };
            let status = state.machine.check(&Command::Read { lba, blocks });
            if !status.is_ok() {
                return Err(status);
            }
            if offset < below {
                let count = (below.0 - offset.0).min(zone_end - at);
                Part::below(&mut parts, at, count);
                at += count;
                continue;
            }
            let (part, count) = state.part_at(at, zone_end);
            parts.push(part);
            at += count;
        }
        Ok(parts)
    }
}

/// The place of some consecutive blocks of a read.
enum Part {
    /// The blocks are on the drive.
    Below { lba: u64, blocks: u64 },
    /// The blocks are in memory, from byte `from` on.
    Here { data: Pages, from: usize, blocks: u64 },
    /// The blocks were never written.
    Zeros { blocks: u64 },
}

impl Part {
    /// Adds blocks of the drive; if they follow the last part, extends that part.
    fn below(parts: &mut Vec<Part>, lba: u64, count: u64) {
        match parts.last_mut() {
            Some(Part::Below { lba: first, blocks }) if *first + *blocks == lba => *blocks += count,
            _ => parts.push(Part::Below { lba, blocks: count }),
        }
    }
}

impl State {
    /// Returns the part of the view that begins at `at` and ends at `end` at the latest, and its
    /// number of blocks.
    fn part_at(&self, at: u64, end: u64) -> (Part, u64) {
        let size = self.machine.geometry().block_size.0;
        if let Some((first, written)) = self.written.range(..=at).next_back()
            && at < first + written.blocks
        {
            let count = (first + written.blocks - at).min(end - at);
            let from = ((at - first) * size) as usize;
            return (Part::Here { data: written.data.clone(), from, blocks: count }, count);
        }
        let next = self.written.range(at..end).next().map_or(end, |(first, _)| *first);
        (Part::Zeros { blocks: next - at }, next - at)
    }

    /// Executes a command that changes the view.
    fn change(&mut self, request: Request) -> Outcome {
        let Request { command, data, fua, oob } = request;
        let geometry = self.machine.geometry().clone();
        if !oob.is_empty() {
            return bare(Status::InvalidField);
        }
        if let Command::Write { lba, .. } = command
            && geometry.zone_at(lba).is_some_and(|zone| geometry.is_conventional(zone))
        {
            return bare(Status::InvalidField);
        }
        let mut changed = Vec::new();
        let noted = &mut changed;
        let applied = self.machine.apply_observed(&command, |zone, before, after| {
            noted.push((zone, *before, *after));
        });
        let effect = match applied {
            Ok(effect) => effect,
            Err(status) => return bare(status),
        };
        for (zone, before, after) in changed {
            let kept = self.touched.entry(zone).or_insert(before.write_pointer);
            if after.write_pointer < before.write_pointer {
                *kept = BlockCount(0);
                self.forget(geometry.start(zone), geometry.zone_size);
            }
        }
        let mut outcome = bare(Status::Success);
        let command = match (effect, command) {
            (
                Effect::Written { lba, .. },
                Command::Write { blocks, .. } | Command::Append { blocks, .. },
            ) => {
                outcome.lba = lba;
                self.bytes += geometry.bytes(blocks).0;
                let written = Written { blocks: blocks.0, data: data.clone() };
                self.written.insert(lba.0, written);
                Command::Write { lba, blocks }
            }
            _ => command,
        };
        self.changes.push(Change { command, data, fua });
        outcome
    }

    /// Drops data written to a zone that was reset.
    fn forget(&mut self, start: Lba, blocks: BlockCount) {
        let gone: Vec<u64> =
            self.written.range(start.0..start.0 + blocks.0).map(|(lba, _)| *lba).collect();
        for lba in gone {
            self.written.remove(&lba);
        }
    }
}

impl Inner {
    /// Fills the given pages from the parts of a read.
    async fn gather(&self, parts: Vec<Part>, mut data: Pages) -> Outcome {
        let size = self.below.geometry().block_size.0 as usize;
        let mut at = 0;
        for part in parts {
            match part {
                Part::Below { lba, blocks } => {
                    let bytes = blocks as usize * size;
                    let pages = (0..bytes.div_ceil(PAGE_SIZE)).map(|_| Page::zeroed()).collect();
                    let command = Command::Read { lba: Lba(lba), blocks: BlockCount(blocks) };
                    let read = self.below.submit(QueueId(0), Request::with_data(command, pages));
                    let outcome = read.await;
                    if !outcome.status.is_ok() {
                        return Outcome { data, ..bare(outcome.status) };
                    }
                    copy(&mut data, at, &outcome.data, 0, bytes);
                    at += bytes;
                }
                Part::Here { data: from, from: offset, blocks } => {
                    let bytes = blocks as usize * size;
                    copy(&mut data, at, &from, offset, bytes);
                    at += bytes;
                }
                Part::Zeros { blocks } => {
                    let bytes = blocks as usize * size;
                    fill(&mut data, at, bytes);
                    at += bytes;
                }
            }
        }
        Outcome { data, ..bare(Status::Success) }
    }
}

impl ZonedDevice for Overlay {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, _: QueueId, request: Request) -> Completion<Outcome> {
        if let Command::Read { lba, blocks } = request.command {
            return self.read(lba, blocks, request.data);
        }
        let outcome = self.0.state.borrow_mut().change(request);
        self.answer(outcome)
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        reported(Ok(self.0.state.borrow().machine.report(first, count)))
    }

    fn answers(&self) -> bool {
        self.0.below.answers()
    }

    fn misses(&self) -> u64 {
        self.0.below.misses()
    }

    fn name(&self) -> String {
        self.0.below.name()
    }
}

fn bare(status: Status) -> Outcome {
    Outcome { status, lba: Lba(0), data: Pages::new(), oob: Vec::new() }
}

async fn report(device: &dyn ZonedDevice) -> Result<Vec<ZoneReport>> {
    let zones = device.geometry().zones;
    let reports = device.report(ZoneId(0), zones).await;
    let reports =
        reports.map_err(|status| Error::device(&device.name(), "report zones", status))?;
    if reports.len() != zones as usize {
        let message = format!("{}: {} of {zones} zones reported", device.name(), reports.len());
        return Err(Error::new(ErrorKind::Io, message));
    }
    Ok(reports)
}

/// Copies `bytes` bytes from byte `offset` of `from` to byte `at` of `to`, across pages.
fn copy(to: &mut Pages, mut at: usize, from: &Pages, mut offset: usize, mut bytes: usize) {
    while bytes > 0 {
        let length = bytes.min(PAGE_SIZE - at % PAGE_SIZE).min(PAGE_SIZE - offset % PAGE_SIZE);
        let (Some(target), Some(source)) =
            (to.get_mut(at / PAGE_SIZE), from.get(offset / PAGE_SIZE))
        else {
            return;
        };
        let source = &source.bytes()[offset % PAGE_SIZE..][..length];
        target.make_mut()[at % PAGE_SIZE..][..length].copy_from_slice(source);
        (at, offset, bytes) = (at + length, offset + length, bytes - length);
    }
}

fn fill(to: &mut Pages, mut at: usize, mut bytes: usize) {
    while bytes > 0 {
        let length = bytes.min(PAGE_SIZE - at % PAGE_SIZE);
        let Some(target) = to.get_mut(at / PAGE_SIZE) else { return };
        target.make_mut()[at % PAGE_SIZE..][..length].fill(0);
        (at, bytes) = (at + length, bytes - length);
    }
}
