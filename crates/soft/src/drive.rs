//! A plain drive as a [`ZonedDevice`]: commands, rounds of the journal, resets.
//!
//! A *round* writes a record of all changes that no record names yet, while their data may still be
//! in flight. The round then waits for the record and the data, and flushes the plain drive.
//! Requests made meanwhile wait for the next round. If a write that the record names fails, another
//! record says so before the flush.
//!
//! A zone that is being reset has a *gate*, where later commands of the zone wait in order. Records
//! name the zone's earlier writes and failures before they name its reset.
//!
//! After a failed round, only reads are still accepted. Every other command fails, even one that
//! waited at a gate.

use crate::format::{BLOCK, Lasting, LastingState, Layout, Superblock};
use crate::journal::{Entry, Journal, Placed};
use crate::make::{checked, write, write_in};
use crate::recover::{Found, look};
use crate::state::{DataWrite, Later, State};
use crate::streams::Streams;
use crate::superblock;
use furrow_log::{Uuid, crc32c};
use furrow_policy::{SoftDefect, SoftVariant};
use furrow_rt::{Completion, CompletionTable, Notify, Page, Pages, Pool, Rng, Rt, Ticket};
use furrow_zone::machine::Effect;
use furrow_zone::rules::selected;
use furrow_zone::{
    Access, Action, Command, Error, ErrorKind, Geometry, Lba, Outcome, PlainDevice, QueueId,
    Reports, Request, Status, Target, ZoneId, ZoneState, ZonedDevice, reported,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Number of blocks written since the last record at which a round begins, even if nobody requests
/// a flush. Writers wait while twice this number of blocks is in no record, so recovery reads at
/// most about that many.
const ROUND: u64 = (64 << 20) / BLOCK;

struct Inner {
    rt: Rt,
    plain: Rc<dyn PlainDevice>,
    superblock: Superblock,
    geometry: Geometry,
    access: Access,
    variant: SoftVariant,
    /// Blocks that a read-only opening accepted by their checksum; reads take them from here.
    kept: BTreeMap<u64, Page>,
    pool: Pool,
    table: CompletionTable<Outcome>,
    state: RefCell<State>,
    /// Signals every event for which a task of this drive may wait.
    changed: Notify,
    warnings: Vec<String>,
    lost: Option<String>,
    /// Number of flushes of the plain drive since it was opened.
    flushes: Cell<u64>,
}

/// Open soft zones. A clone is another handle of the same drive.
#[derive(Clone)]
pub struct SoftDrive(Rc<Inner>);

/// The result of a recovery, from which the drive can be started.
#[derive(Debug)]
pub struct Recovered {
    found: Found,
    kept: BTreeMap<u64, Page>,
    access: Access,
    variant: SoftVariant,
}

/// Recovers the soft zones on `plain`, to which nobody else may write. With [`Access::ReadWrite`],
/// the decisions of recovery are written down and durable afterwards. `rng` must return numbers
/// that no other opening of the drive had.
///
/// # Errors
/// `WrongFormat` if the drive has no soft zones, or a newer version of them; `Corrupt` if they are
/// damaged, unless they are opened for reading or the loss is accepted; `Io`.
pub async fn recover(
    plain: &dyn PlainDevice,
    access: Access,
    rng: &mut Rng,
    variant: SoftVariant,
) -> Result<Recovered, Error> {
    let pool = Pool::new(64);
    let mut found = look(plain, variant, &pool).await?;
    let mut kept = BTreeMap::new();
    if let Some(lost) = found.lost.take() {
        let name = plain.name();
        if access == Access::ReadWrite {
            let advice = format!(
                "restore a copy, or continue without it: furrow device check {name} --repair"
            );
            return Err(Error::new(ErrorKind::Corrupt, format!("{name}: {lost}: {advice}")));
        }
        let lost = format!("{name}: {lost}");
        found.warnings.push(lost.clone());
        found.lost = Some(lost);
    }
    match access {
        Access::ReadWrite | Access::AcceptLoss => {
            if let Some(damaged) = found.damaged.take() {
                superblock::mend(plain, damaged).await;
            }
            settle(plain, &mut found, Uuid::random(rng), variant, &pool).await?;
        }
        // These blocks need not be durable, and they are not written again here. So the next read
        // of them from the drive may return something else.
        Access::ReadOnly => {
            for (_, Placed { at, pages }) in found.take_believed() {
                kept.extend((at / BLOCK..).zip(pages));
            }
        }
    }
    Ok(Recovered { found, kept, access, variant })
}

impl SoftDrive {
    /// Opens the soft zones on `plain`: calls [`recover`] and [`SoftDrive::start`].
    ///
    /// # Errors
    /// The errors of [`recover`].
    pub async fn open(
        rt: &Rt,
        plain: Rc<dyn PlainDevice>,
        access: Access,
        variant: SoftVariant,
    ) -> Result<SoftDrive, Error> {
        let mut rng = Rng::new(rt.random());
        let recovered = recover(&*plain, access, &mut rng, variant).await?;
        SoftDrive::start(rt, plain, recovered)
    }

    /// Starts the drive that was recovered on `plain`. Nothing may have written to `plain` since.
    ///
    /// # Errors
    /// `Corrupt` if the state of a zone is impossible.
    pub fn start(
        rt: &Rt,
        plain: Rc<dyn PlainDevice>,
        recovered: Recovered,
    ) -> Result<SoftDrive, Error> {
        let Recovered { found, kept, access, variant } = recovered;
        let layout = found.superblock.layout;
        let geometry = layout.geometry(plain.max_transfer());
        let mut warnings = found.warnings;
        warnings.extend_from_slice(plain.warnings());
        let (zones, journal, streams) = (found.zones, found.journal, plain.streams());
        let state = State::new(geometry.clone(), zones, journal, &layout, streams)
            .map_err(|error| error.at(plain.name()))?;
        Ok(SoftDrive(Rc::new(Inner {
            rt: rt.clone(),
            plain,
            superblock: found.superblock,
            geometry,
            access,
            variant,
            kept,
            pool: Pool::new(64),
            table: CompletionTable::new(),
            state: RefCell::new(state),
            changed: Notify::new(),
            warnings,
            lost: found.lost,
            flushes: Cell::new(0),
        })))
    }

    /// The superblock of the drive.
    pub fn superblock(&self) -> &Superblock {
        &self.0.superblock
    }

    /// Number of write streams of the plain drive, for zones and journal; 0 if it has none.
    pub fn streams(&self) -> u8 {
        self.0.plain.streams()
    }

    /// A warning about what damage of the journal has lost; `None` if nothing is lost.
    pub fn lost(&self) -> Option<&str> {
        self.0.lost.as_deref()
    }

    /// Number of flushes of the plain drive since it was opened.
    pub fn flushes(&self) -> u64 {
        self.0.flushes.get()
    }
}

/// Writes the decisions of recovery to the drive: first the blocks that recovery accepted by their
/// checksum, then the table of zones, to the half that recovery did not use.
async fn settle(
    plain: &dyn PlainDevice,
    found: &mut Found,
    nonce: Uuid,
    variant: SoftVariant,
    pool: &Pool,
) -> Result<(), Error> {
    let again = found.take_believed();
    if !variant.has(SoftDefect::DiscardBelieved) {
        let mut streams = Streams::new(plain.streams());
        for (zone, place) in again {
            let stream = streams.of(zone);
            write_in(plain, "write of recovered blocks", place, stream).await?;
        }
    }
    // The table that recovery read may be only in the drive's cache, like the blocks just written.
    if !variant.has(SoftDefect::UnflushedRecovery) {
        checked(plain, "flush", &plain.flush().await)?;
    }
    found.journal.anchored = true;
    let layout = found.superblock.layout;
    let table = found.journal.turn(nonce, &found.zones, &layout, pool);
    write(plain, "write of the table of zones", table).await?;
    checked(plain, "flush", &plain.flush().await)?;
    found.journal.complete = found.journal.sequence;
    found.journal.anchored = true;
    Ok(())
}

fn outcome(status: Status, lba: Lba) -> Outcome {
    Outcome { status, lba, data: Default::default(), oob: Vec::new() }
}

impl Inner {
    fn layout(&self) -> &Layout {
        &self.superblock.layout
    }

    fn answer(&self, ticket: Ticket, status: Status) {
        self.table.complete(ticket, outcome(status, Lba(0)));
    }

    /// Reads the plain drive from byte `at` on; takes blocks in `kept` from memory.
    fn read(self: &Rc<Self>, at: u64, data: Pages) -> Completion<Outcome> {
        let blocks = at / BLOCK..at / BLOCK + data.len() as u64;
        let read = self.plain.read(at, data);
        if self.kept.range(blocks.clone()).next().is_none() {
            return read;
        }
        let (ticket, completion) = self.table.open();
        let this = self.clone();
        self.rt.spawn_detached(async move {
            let mut outcome = read.await;
            for (block, page) in blocks.zip(&mut outcome.data) {
                if let Some(kept) = this.kept.get(&block) {
                    *page = kept.clone();
                }
            }
            this.table.complete(ticket, outcome);
        });
        completion
    }

    /// The status of a command that is refused regardless of its zone; `None` if the zone decides.
    fn refuse(&self, request: &Request) -> Option<Status> {
        let writes = !matches!(request.command, Command::Read { .. } | Command::Flush);
        if writes && !self.access.writes() {
            return Some(Status::WriteFault);
        }
        if let Some(status) = self.state.borrow().broken
            && !matches!(request.command, Command::Read { .. })
        {
            return Some(status);
        }
        match request.command {
            Command::Read { blocks, .. }
            | Command::Write { blocks, .. }
            | Command::Append { blocks, .. } => {
                let fits = blocks.0 == request.data.len() as u64 && request.oob.is_empty();
                (!fits).then_some(Status::InvalidField)
            }
            Command::Manage { action: Action::Offline, .. } => Some(Status::InvalidField),
            _ => None,
        }
    }

    fn accept(self: &Rc<Self>, request: Request, ticket: Ticket) {
        let command = request.command;
        if let Command::Manage { target: Target::All, action } = command {
            return self.accept_all(action, ticket);
        }
        let applied = self.state.borrow_mut().machine.apply(&command);
        match applied {
            Err(status) => self.answer(ticket, status),
            Ok(Effect::Written { lba, zone, offset, .. }) => {
                let from = offset.0 as u32;
                self.gated(zone, Later::Write(DataWrite { request, zone, from, lba, ticket }));
            }
            Ok(Effect::Managed { zone, before: old }) => match command {
                Command::Manage { action: Action::Reset, .. } => {
                    let end = (old.state != ZoneState::Empty).then_some(old.write_pointer.0);
                    let end = end.map(|end| end as u32);
                    self.gated(zone, Later::Reset(zone, end, ticket));
                }
                Command::Manage { action: Action::Finish, .. } if old.state != ZoneState::Full => {
                    let end = old.write_pointer.0 as u32;
                    self.gated(zone, Later::Finish(zone, end, ticket));
                }
                // The journal does not record which zones are open or closed.
                _ => {
                    if let Command::Manage { action: Action::Close, .. } = command {
                        self.state.borrow_mut().streams.done(zone);
                    }
                    self.answer(ticket, Status::Success);
                }
            },
            Ok(Effect::Flushed) => {
                let this = self.clone();
                let held_back = self.state.borrow().holds_back();
                let asked = (!held_back).then(|| self.ask());
                self.rt.spawn_detached(async move {
                    let round = match asked {
                        Some(round) => round,
                        None => this.ask_behind_gates().await,
                    };
                    let status = this.wait_for(round).await;
                    this.answer(ticket, status);
                });
            }
            Ok(_) => self.answer(ticket, Status::Success),
        }
    }

    /// Applies the action to every zone where it does something, by one command each.
    fn accept_all(self: &Rc<Self>, action: Action, ticket: Ticket) {
        let zones = (0..self.geometry.zones).map(ZoneId);
        let state = |zone| self.state.borrow().machine.zone(zone).map(|zone| zone.state);
        let chosen: Vec<ZoneId> =
            zones.filter(|zone| state(*zone).is_some_and(|now| selected(action, now))).collect();
        let mut answers = Vec::new();
        for zone in chosen {
            let (one, completion) = self.table.open();
            answers.push(completion);
            let target = Target::Zone(self.geometry.start(zone));
            self.accept(Request::bare(Command::Manage { target, action }), one);
        }
        let this = self.clone();
        self.rt.spawn_detached(async move {
            let mut status = Status::Success;
            for answer in answers {
                let one = answer.await.status;
                status = if status.is_ok() { one } else { status };
            }
            this.answer(ticket, status);
        });
    }

    /// Carries out `later`, or queues it at the gate of its zone.
    fn gated(self: &Rc<Self>, zone: ZoneId, later: Later) {
        if let Some(waiting) = self.state.borrow_mut().gates.get_mut(&zone) {
            return waiting.push_back(later);
        }
        self.carry_out(later);
    }

    fn carry_out(self: &Rc<Self>, later: Later) {
        let broken = self.state.borrow().broken;
        if let Some(status) = broken {
            return self.answer(later.into_ticket(), status);
        }
        match later {
            Later::Write(write) => self.begin_write(write),
            Later::Finish(zone, end, ticket) => self.begin_finish(zone, end, ticket),
            Later::Reset(zone, end, ticket) => self.begin_reset(zone, end, ticket),
        }
    }

    fn begin_write(self: &Rc<Self>, write: DataWrite) {
        let DataWrite { request, zone, from, lba, ticket } = write;
        let (number, stream, round, asks) = {
            let mut state = self.state.borrow_mut();
            let generation = state.generation(zone);
            let sums = request.data.iter().map(|page| crc32c(&page[..]));
            state.pending.wrote(zone, generation, from, sums);
            let stream = state.stream(zone, from, request.data.len());
            let number = state.next;
            state.next += 1;
            state.in_flight.insert(number, zone);
            let blocks = state.pending.blocks() + state.taking.blocks();
            // If too many changes are in no record yet, the writer waits for the round under way.
            let most = Journal::most(self.layout()) / 2;
            let bytes = state.pending.bytes() + state.taking.bytes();
            let held = blocks >= 2 * ROUND || bytes > most;
            let asked = (request.fua || held || blocks >= ROUND).then(|| state.ask());
            let round = match asked {
                Some(round) if request.fua => Some(round),
                Some(round) if held => Some(round - 1),
                _ => None,
            };
            let asks = asked.is_some();
            (number, stream, round, asks)
        };
        let answer = self.plain.write(self.layout().at(zone, from), request.data, stream);
        // The round's record goes to the drive along with the data.
        if asks {
            self.run();
        }
        let this = self.clone();
        self.rt.spawn_detached(async move {
            let mut status = answer.await.status;
            {
                let mut state = this.state.borrow_mut();
                if !status.is_ok() {
                    state.fail(zone, from);
                } else if !state.holds(zone, from) {
                    // The zone now ends at an earlier write that failed, so this write counts as
                    // failed, too.
                    status = Status::WriteFault;
                }
                state.in_flight.remove(&number);
            }
            this.changed.notify_all();
            if let Some(round) = round
                && status.is_ok()
            {
                status = this.wait_for(round).await;
                if status.is_ok() && !this.state.borrow().holds(zone, from) {
                    status = Status::WriteFault;
                }
            }
            this.table.complete(ticket, outcome(status, lba));
        });
    }

    /// Finishes `zone`, whose first `pointer` blocks are written.
    fn begin_finish(self: &Rc<Self>, zone: ZoneId, pointer: u32, ticket: Ticket) {
        let round = {
            let mut state = self.state.borrow_mut();
            let generation = state.generation(zone);
            let to = Lasting { generation, pointer, state: LastingState::Full };
            state.pending.changed(zone, to);
            state.streams.done(zone);
            state.ask()
        };
        self.run();
        let this = self.clone();
        self.rt.spawn_detached(async move {
            let status = this.wait_for(round).await;
            this.answer(ticket, status);
        });
    }

    /// Resets `zone`, whose first `end` blocks are written; `None` if it is empty already.
    fn begin_reset(self: &Rc<Self>, zone: ZoneId, end: Option<u32>, ticket: Ticket) {
        let Some(end) = end else { return self.answer(ticket, Status::Success) };
        {
            let mut state = self.state.borrow_mut();
            state.streams.done(zone);
            state.gates.entry(zone).or_default();
        }
        let this = self.clone();
        self.rt.spawn_detached(async move {
            let status = this.reset(zone, end).await;
            this.answer(ticket, status);
            this.open_gate(zone);
        });
    }

    async fn reset(self: &Rc<Self>, zone: ZoneId, end: u32) -> Status {
        loop {
            let waiting = self.changed.wait();
            if !self.state.borrow().is_written(zone) {
                break;
            }
            waiting.await;
        }
        let failed = {
            let mut state = self.state.borrow_mut();
            state.has_unnamed_failure(zone).then(|| state.ask())
        };
        if let Some(round) = failed {
            self.run();
            let status = self.wait_for(round).await;
            if !status.is_ok() {
                return status;
            }
        }
        let length = u64::from(end) * BLOCK;
        let discard = || self.plain.discard(self.layout().at(zone, 0), length);
        if self.variant.has(SoftDefect::VolatileGeneration) && end > 0 {
            discard().await;
        }
        let (round, generation) = {
            let mut state = self.state.borrow_mut();
            let generation = state.generation(zone) + 1;
            let to = Lasting { generation, ..Lasting::default() };
            state.pending.changed(zone, to);
            (state.ask(), generation)
        };
        if self.variant.has(SoftDefect::VolatileGeneration) {
            let mut state = self.state.borrow_mut();
            state.pending.forget(zone, 0);
            state.failures.remove(&zone);
            state.lasting[zone.0 as usize].generation = generation;
            return Status::Success;
        }
        self.run();
        let status = self.wait_for(round).await;
        if status.is_ok() {
            self.state.borrow_mut().failures.remove(&zone);
        }
        if !status.is_ok() || end == 0 {
            return status;
        }
        if self.variant.has(SoftDefect::EarlyLife) {
            // The defect: the discard is sent when the zone may already be written again.
            let this = self.clone();
            self.rt.spawn_detached(async move {
                this.rt.yield_now().await;
                this.plain.discard(this.layout().at(zone, 0), length).await;
            });
            return Status::Success;
        }
        // If the drive refuses discards, it keeps the old data, which no record names any more.
        match discard().await.status {
            Status::InternalError => Status::InternalError,
            _ => Status::Success,
        }
    }

    /// Carries out the commands at the gate of `zone` in order, then removes the gate. Stops at a
    /// reset that takes time: when the reset ends, it calls `open_gate` again.
    fn open_gate(self: &Rc<Self>, zone: ZoneId) {
        loop {
            let later = {
                let mut state = self.state.borrow_mut();
                let Some(waiting) = state.gates.get_mut(&zone) else { return };
                match waiting.pop_front() {
                    Some(later) => later,
                    None => {
                        state.gates.remove(&zone);
                        drop(state);
                        self.changed.notify_all();
                        return;
                    }
                }
            };
            let broken = self.state.borrow().broken.is_some();
            let ends = matches!(later, Later::Reset(_, Some(_), _)) && !broken;
            self.carry_out(later);
            if ends {
                return;
            }
        }
    }

    /// Requests a round, and begins it unless another is under way. Returns its number.
    fn ask(self: &Rc<Self>) -> u64 {
        let round = self.state.borrow_mut().ask();
        self.run();
        round
    }

    /// Like [`Inner::ask`], but waits first until no command is at a gate, since a flush covers
    /// every write submitted before it.
    async fn ask_behind_gates(self: &Rc<Self>) -> u64 {
        loop {
            let waiting = self.changed.wait();
            {
                let state = self.state.borrow();
                if state.broken.is_some() || !state.holds_back() {
                    break;
                }
            }
            waiting.await;
        }
        self.ask()
    }

    /// Waits until the round with this number is done. Returns the status of its record and flush.
    async fn wait_for(&self, round: u64) -> Status {
        loop {
            let waiting = self.changed.wait();
            {
                let state = self.state.borrow();
                if state.done >= round {
                    return Status::Success;
                }
                if let Some(status) = state.broken {
                    return status;
                }
            }
            waiting.await;
        }
    }

    /// Begins requested rounds one after the other, unless one is under way.
    fn run(self: &Rc<Self>) {
        {
            let mut state = self.state.borrow_mut();
            if state.running || state.broken.is_some() || state.asked <= state.begun {
                return;
            }
            state.running = true;
        }
        let this = self.clone();
        self.rt.spawn_detached(async move {
            let failed = this.rounds().await.err();
            {
                let mut state = this.state.borrow_mut();
                state.running = false;
                if let Some(error) = failed {
                    let gone = error.is_gone();
                    state.broken =
                        Some(if gone { Status::InternalError } else { Status::WriteFault });
                }
            }
            this.changed.notify_all();
        });
    }

    async fn rounds(&self) -> Result<(), Error> {
        loop {
            {
                let mut state = self.state.borrow_mut();
                if state.asked <= state.begun {
                    return Ok(());
                }
                state.begun += 1;
                // Changes made from here on belong to the next round.
                state.taking = std::mem::take(&mut state.pending);
            }
            // One record takes at most as many changes as fill half of a journal half. So a record
            // of the failures of these writes fits, too.
            loop {
                let most = Journal::most(self.layout()) / 2;
                let entries = self.state.borrow_mut().taking.take(most);
                self.round(entries).await?;
                if self.state.borrow().taking.is_empty() {
                    break;
                }
            }
            {
                let mut state = self.state.borrow_mut();
                state.done = state.begun;
            }
            self.changed.notify_all();
        }
    }

    /// Makes `entries`, and the data that they name, durable.
    async fn round(&self, mut entries: Vec<Entry>) -> Result<(), Error> {
        let last = self.state.borrow().next;
        let late = self.variant.has(SoftDefect::LateRecord);
        if !late {
            self.append(&entries).await?;
        }
        // Waits for the writes sent before the record, and not for later ones.
        loop {
            let waiting = self.changed.wait();
            let first = self.state.borrow().in_flight.keys().next().copied();
            if first.is_none_or(|first| first >= last) {
                break;
            }
            waiting.await;
        }
        let failures = self.state.borrow_mut().take_failures();
        if !failures.is_empty() {
            let fits = self.state.borrow().journal.fits(&failures, self.layout());
            let first = entries.len();
            entries.extend(failures);
            // If the failures do not fit into this half of the journal, their record goes to the
            // other half. The table there does not show this round, so the record has all of the
            // round's entries.
            self.append(if fits { &entries[first..] } else { &entries }).await?;
        }
        if !self.variant.has(SoftDefect::SkippedFlush) {
            self.flush().await?;
        }
        if late {
            self.append(&entries).await?;
        }
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        entries.iter().for_each(|entry| entry.apply(&mut state.lasting));
        state.journal.complete = state.journal.sequence;
        state.journal.anchored = true;
        Ok(())
    }

    async fn flush(&self) -> Result<(), Error> {
        self.flushes.set(self.flushes.get() + 1);
        checked(&*self.plain, "flush", &self.plain.flush().await)?;
        self.state.borrow_mut().journal.anchored = true;
        Ok(())
    }

    /// Writes a record; if this half is full, a table and the record go to the other half.
    async fn append(&self, entries: &[Entry]) -> Result<(), Error> {
        let overwrites = {
            let state = self.state.borrow();
            let journal = &state.journal;
            !journal.fits(entries, self.layout()) && !journal.anchored
        };
        if overwrites {
            // Only the table of the other half is known to be durable, and it is about to
            // be overwritten.
            self.flush().await?;
        }
        let (table, record) = {
            let mut state = self.state.borrow_mut();
            let layout = self.layout();
            let State { journal, lasting, .. } = &mut *state;
            let table = (!journal.fits(entries, layout)).then(|| {
                let nonce = Uuid::random(&mut Rng::new(self.rt.random()));
                journal.turn(nonce, lasting, layout, &self.pool)
            });
            if !journal.fits(entries, layout) {
                let (name, count) = (self.plain.name(), entries.len());
                let what = format!(
                    "{name}: {count} changes at once are more than the journal of its soft zones \
                     holds: open it again"
                );
                return Err(Error::new(ErrorKind::NoSpace, what));
            }
            (table, journal.append(entries, layout, &self.pool))
        };
        let plain = &*self.plain;
        match table {
            None => write(plain, "write of the journal", record).await,
            Some(table) => {
                let written = write(plain, "write of the table of zones", table).await;
                written.and(write(plain, "write of the journal", record).await)
            }
        }
    }
}

impl ZonedDevice for SoftDrive {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, _: QueueId, request: Request) -> Completion<Outcome> {
        let inner = &self.0;
        let refused = inner.refuse(&request);
        if let (Command::Read { lba, .. }, None) = (request.command, refused)
            && inner.state.borrow().machine.check(&request.command).is_ok()
            && let Some((zone, offset)) = inner.geometry.locate(lba)
        {
            return inner.read(inner.layout().at(zone, offset.0 as u32), request.data);
        }
        let (ticket, completion) = inner.table.open();
        match refused {
            Some(status) => inner.answer(ticket, status),
            None => inner.accept(request, ticket),
        }
        completion
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        reported(match self.answers() {
            false => Err(Status::InternalError),
            true => Ok(self.0.state.borrow().machine.report(first, count)),
        })
    }

    fn answers(&self) -> bool {
        self.0.state.borrow().broken != Some(Status::InternalError)
    }

    fn misses(&self) -> u64 {
        self.0.plain.misses()
    }

    /// A flush waits for resets that hold writes back, then begins a round. The round waits for all
    /// earlier writes, then flushes the plain drive.
    fn flush_covers_submitted(&self) -> bool {
        true
    }

    fn oldest(&self) -> Option<u64> {
        // The plain drive's oldest command, since it delays ours. If the plain drive has none, our
        // own oldest command; bit 63 keeps the numbers of the two apart.
        let waiting = || self.0.table.oldest().map(|number| number | 1 << 63);
        self.0.plain.oldest().or_else(waiting)
    }

    fn give_up(&self) {
        self.0.state.borrow_mut().broken = Some(Status::InternalError);
        self.0.plain.give_up();
        self.0.table.give_up(|| outcome(Status::InternalError, Lba(0)));
        self.0.changed.notify_all();
    }

    fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    fn name(&self) -> String {
        self.0.plain.name()
    }
}

impl std::fmt::Debug for SoftDrive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SoftDrive({})", self.0.plain.name())
    }
}
