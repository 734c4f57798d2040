//! A part of a drive's zones as a drive of its own.
//!
//! An array's drives are parts of one emulated drive, so that the harness can cut the power of all
//! at once, with every fate of commands in flight. Each part has a cache of its own
//! ([`own_caches`]). A part can be made to disappear: it then answers only with errors, like a
//! drive that was pulled. A part that hangs answers nothing until it is given up.

use furrow_emu::{Emulator, Parts};
use furrow_rt::{Completion, CompletionTable, Rt};
use furrow_zone::{
    Command, Geometry, Lba, Outcome, QueueId, Reports, Request, Status, Target, ZoneId, ZonedDevice,
};
use std::cell::Cell;
use std::rc::Rc;

/// Number of queues that each part has on the one drive: different parts use different queues.
const QUEUES: u16 = 16;

/// Gives each part of `drive`, of `count` parts, a cache of its own: a flush of a part makes
/// nothing durable in other parts, and a power cut draws a fate for each cache.
pub fn own_caches(drive: &Emulator, count: u32) {
    let zones = drive.geometry().zones / count;
    drive.split_cache(Parts { zones, queues: QUEUES });
}

/// A period during which a drive is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The first command that the drive refuses, counted from 0.
    pub at: u64,
    /// The number of commands that the drive refuses.
    pub commands: u64,
}

/// A part of a drive, used as a drive.
pub struct Part {
    rt: Rt,
    base: Rc<dyn ZonedDevice>,
    geometry: Geometry,
    first: u32,
    name: String,
    gone: Cell<bool>,
    hangs: Cell<bool>,
    /// Number of commands so far.
    asked: Cell<u64>,
    /// Number of commands answered with an internal error.
    misses: Cell<u64>,
    /// The period during which the part is gone.
    absence: Cell<Option<Absence>>,
    table: Rc<CompletionTable<Outcome>>,
}

impl Part {
    /// Splits the drive `base` into `count` equal parts, which share zones and permits.
    pub fn split(rt: &Rt, base: &Rc<dyn ZonedDevice>, count: u32) -> Vec<Rc<Part>> {
        let whole = base.geometry();
        let geometry = Geometry {
            zones: whole.zones / count,
            max_open: whole.max_open.map(|open| open / count),
            max_active: whole.max_active.map(|active| active / count),
            ..whole.clone()
        };
        let part = |index: u32| {
            Rc::new(Part {
                rt: rt.clone(),
                base: base.clone(),
                first: index * geometry.zones,
                geometry: geometry.clone(),
                name: format!("part {index}"),
                gone: Cell::new(false),
                hangs: Cell::new(false),
                asked: Cell::new(0),
                misses: Cell::new(0),
                absence: Cell::new(None),
                table: Rc::new(CompletionTable::new()),
            })
        };
        (0..count).map(part).collect()
    }

    /// Pulls the drive, or puts it back.
    pub fn set_gone(&self, gone: bool) {
        self.gone.set(gone);
        self.hangs.set(false);
        self.absence.set(None);
    }

    /// Makes the drive disappear for a period.
    pub fn leave(&self, absence: Absence) {
        self.absence.set(Some(absence));
    }

    /// Makes the drive hang: it answers nothing from now on.
    pub fn hang(&self) {
        self.hangs.set(true);
    }

    /// True if the drive hangs and was not given up.
    pub fn hangs(&self) -> bool {
        self.hangs.get() && !self.gone.get()
    }

    /// True if the drive hung and was given up.
    pub fn was_given_up(&self) -> bool {
        self.hangs.get() && self.gone.get()
    }

    fn is_gone(&self) -> bool {
        let asked = self.asked.get();
        let away = |absence: Absence| {
            (absence.at..absence.at.saturating_add(absence.commands)).contains(&asked)
        };
        self.gone.get() || self.absence.get().is_some_and(away)
    }

    fn shift(&self, lba: Lba) -> Lba {
        Lba(lba.0 + u64::from(self.first) * self.geometry.zone_size.0)
    }

    fn refuse(&self, status: Status) -> Completion<Outcome> {
        let (ticket, completion) = self.table.open();
        self.misses.update(|misses| misses + u64::from(status == Status::InternalError));
        let (data, oob) = Default::default();
        self.table.complete(ticket, Outcome { status, lba: Lba(0), data, oob });
        completion
    }
}

impl ZonedDevice for Part {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, queue: QueueId, mut request: Request) -> Completion<Outcome> {
        let gone = self.is_gone();
        self.asked.set(self.asked.get() + 1);
        if gone {
            return self.refuse(Status::InternalError);
        }
        if self.hangs.get() {
            return self.table.open().1;
        }
        match &mut request.command {
            Command::Read { lba, blocks } | Command::Write { lba, blocks } => {
                if lba.0 + blocks.0 > self.geometry.blocks().0 {
                    return self.refuse(Status::LbaOutOfRange);
                }
                *lba = self.shift(*lba);
            }
            Command::Append { zone_start, .. } => *zone_start = self.shift(*zone_start),
            Command::Manage { target: Target::Zone(lba), .. } => *lba = self.shift(*lba),
            Command::Manage { target: Target::All, .. } => {
                return self.refuse(Status::InvalidField);
            }
            Command::Flush => {}
        }
        let append = matches!(request.command, Command::Append { .. });
        let queue = QueueId(queue.0 + QUEUES * (self.first / self.geometry.zones) as u16);
        let answer = self.base.submit(queue, request);
        if !append {
            return answer;
        }
        // The address is reported in this part's numbering.
        let (ticket, completion) = self.table.open();
        let (table, shift) = (self.table.clone(), self.shift(Lba(0)).0);
        self.rt.spawn_detached(async move {
            let mut outcome = answer.await;
            outcome.lba = Lba(outcome.lba.0.saturating_sub(shift));
            table.complete(ticket, outcome);
        });
        completion
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        Box::pin(async move {
            if self.is_gone() {
                return Err(Status::InternalError);
            }
            let count = count.min(self.geometry.zones.saturating_sub(first.0));
            let mut reports = self.base.report(ZoneId(self.first + first.0), count).await?;
            for report in &mut reports {
                report.zone.0 -= self.first;
            }
            Ok(reports)
        })
    }

    fn answers(&self) -> bool {
        !self.is_gone() && self.base.answers()
    }

    fn misses(&self) -> u64 {
        self.misses.get() + self.base.misses()
    }

    fn oldest(&self) -> Option<u64> {
        self.table.oldest()
    }

    fn give_up(&self) {
        self.gone.set(true);
        let (data, oob) = <(furrow_rt::Pages, Vec<u8>)>::default();
        let instead = || {
            let (data, oob) = (data.clone(), oob.clone());
            Outcome { status: Status::InternalError, lba: Lba(0), data, oob }
        };
        self.table.give_up(instead);
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
