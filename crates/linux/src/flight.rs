//! Flights: what a drive gets as one command, from sending it to answering all of its parts.
//!
//! A *flight* is a read, an append, a flush, a change of a zone, or several joined writes. After an
//! error, the zone's report comes before any decision about the flight.

use crate::drive::Inner;
use crate::failure::{Asked, Verdict, is_gone, judge_cause, pause, refuses_stream, says_gone};
use crate::ioctl::{self, SECTOR};
use crate::lane::{Sent, Step};
use crate::layout;
use crate::ring::{self, Kind, Piece};
use crate::transport::{Answer, Cause, Transfer};
use crate::workers::Job;
use furrow_rt::{Nanos, Ticket};
use furrow_zone::rules::Op;
use furrow_zone::{BlockCount, Command, Lba, Outcome, Request, Status, Target, ZoneId, ZoneReport};
use rustix::io::Errno;

/// A command and its submitter's ticket.
pub(crate) struct Part {
    pub ticket: Ticket,
    pub request: Request,
    /// The write stream; 0 for none.
    pub stream: u8,
}

/// A command for the kernel, and how far it has come.
pub(crate) struct Flight {
    parts: Vec<(Step, Part)>,
    /// Zone in whose lane the flight is; `None` for commands without order.
    lane: Option<ZoneId>,
    /// Whether the kernel may have other writes of the lane at the same time.
    queued: bool,
    task: Task,
    /// Memory for the transfer from byte `done` on, which the kernel may access.
    pieces: Vec<Piece>,
    /// Out-of-band bytes of all blocks of the flight; empty if the drive has none.
    oob: Vec<u8>,
    /// Number of bytes that the kernel has transferred.
    done: u64,
    /// First block of a completed append, from the drive's answer.
    at: u64,
    /// Number of times that the command was retried.
    tries: u32,
    /// Number of times that the drive refused to report the command's zone.
    unreported: u32,
    /// The error of the command, until the zone's report explains it.
    cause: Option<Cause>,
}

#[derive(Clone, Copy)]
pub(crate) enum Task {
    Transfer(Transfer),
    Manage(Job),
}

impl Flight {
    /// A flight that is in no lane and has no memory.
    fn of(parts: Vec<(Step, Part)>, task: Task) -> Flight {
        Flight {
            parts,
            task,
            lane: None,
            queued: false,
            pieces: Vec::new(),
            oob: Vec::new(),
            done: 0,
            at: 0,
            tries: 0,
            unreported: 0,
            cause: None,
        }
    }
}

impl Inner {
    /// Makes a flight of the commands `sent`, and sends the flight. The commands come from the lane
    /// of the zone `lane`, or from no lane.
    pub(crate) fn begin(&self, sent: Sent<Part>, lane: Option<ZoneId>) {
        let Sent { mut parts, queued } = sent;
        let block = self.geometry.block_size.0;
        let sectors = |lba: u64| lba * block / SECTOR;
        let zone_sectors = sectors(self.geometry.zone_size.0);
        let (mut pieces, mut oob) = (Vec::new(), Vec::new());
        let transfer = |kind, lba: Lba, length| {
            Task::Transfer(Transfer { kind, offset: lba.0 * block, length, again: false })
        };
        let stream = parts[0].1.stream;
        let stream = if stream <= self.streams.get() { stream } else { 0 };
        let first = &mut parts[0].1.request;
        let task = match first.command {
            Command::Read { lba, blocks } => {
                let length = blocks.0 * block;
                ring::to_fill(&mut first.data, length, &mut pieces);
                oob.resize(self.oob_bytes(blocks), 0);
                transfer(Kind::Read, lba, length)
            }
            Command::Write { lba, .. } | Command::Append { zone_start: lba, .. } => {
                let kind = match first.command {
                    Command::Append { .. } => Kind::Append { fua: first.fua },
                    _ => Kind::Write { fua: first.fua, stream },
                };
                let mut length = 0;
                for (_, part) in &mut parts {
                    let (Command::Write { blocks, .. } | Command::Append { blocks, .. }) =
                        part.request.command
                    else {
                        continue;
                    };
                    ring::to_send(&part.request.data, blocks.0 * block, &mut pieces);
                    let end = oob.len() + self.oob_bytes(blocks);
                    oob.extend_from_slice(&part.request.oob);
                    oob.resize(end, 0);
                    length += blocks.0 * block;
                }
                transfer(kind, lba, length)
            }
            Command::Manage { target: Target::Zone(lba), action } => {
                let (sector, sectors) = (sectors(lba.0), zone_sectors);
                Task::Manage(Job::Manage { action, sector, sectors })
            }
            Command::Manage { target: Target::All, action } => Task::Manage(Job::ManageAll {
                action,
                sector: 0,
                sectors: zone_sectors,
                count: self.geometry.zones,
            }),
            Command::Flush => transfer(Kind::Flush, Lba(0), 0),
        };
        self.fly(Flight { lane, queued, pieces, oob, ..Flight::of(parts, task) });
    }

    /// Sends `task` for `part`, which is in no lane and has no payload.
    pub(crate) fn begin_bare(&self, part: Part, task: Task) {
        self.fly(Flight::of(vec![(Step::Manage, part)], task));
    }

    fn fly(&self, flight: Flight) {
        let key = self.flights.borrow_mut().insert(flight);
        self.send(key);
    }

    /// Number of out-of-band bytes for `blocks`.
    fn oob_bytes(&self, blocks: BlockCount) -> usize {
        blocks.0 as usize * usize::from(self.geometry.oob_bytes)
    }

    /// Gives the kernel the rest of the flight `key`, from its first byte that is not done. A drive
    /// that was given up gets no more commands.
    fn send(&self, key: usize) {
        if self.gone.get() {
            return self.land(key, Status::InternalError);
        }
        let flights = self.flights.borrow();
        let flight = &flights[key];
        match flight.task {
            Task::Transfer(Transfer { kind, offset, length, .. }) => {
                let (offset, length) = (offset + flight.done, length - flight.done);
                let done = BlockCount(flight.done / self.geometry.block_size.0);
                let oob = flight.oob.get(self.oob_bytes(done)..).unwrap_or_default();
                let what = Transfer { kind, offset, length, again: flight.tries > 0 };
                self.transport.transfer(key, what, &flight.pieces, oob);
            }
            Task::Manage(job) => self.transport.ask(key, job),
        }
    }

    /// Takes the kernel's answers. True if there were any.
    pub(crate) fn take_answers(&self) -> bool {
        let mut answers = Vec::new();
        self.transport.answers(&mut answers);
        let any = !answers.is_empty();
        for (key, answer) in answers {
            match answer {
                Answer::Done { bytes, at } => self.carried_out(key, bytes, at),
                Answer::Failed(cause) => self.failed(key, cause),
                Answer::Reported(report) => self.explained(key, report),
                Answer::ReportedAll(reports) => {
                    let ticket = self.asking.borrow_mut().remove(key);
                    self.asked.complete(ticket, reports);
                }
            }
        }
        any
    }

    fn carried_out(&self, key: usize, bytes: Option<u64>, at: u64) {
        let complete = {
            let mut flights = self.flights.borrow_mut();
            let flight = &mut flights[key];
            flight.at = at;
            let Task::Transfer(Transfer { length, .. }) = flight.task else {
                drop(flights);
                return self.land(key, Status::Success);
            };
            let bytes = bytes.unwrap_or(length - flight.done);
            flight.done += bytes;
            ring::skip(&mut flight.pieces, bytes as usize);
            flight.done >= length
        };
        match (complete, bytes) {
            (true, _) => self.land(key, Status::Success),
            // The kernel stopped early; it reports the reason when the rest is sent.
            (false, Some(1..)) => self.send(key),
            (false, _) => self.failed(key, Cause::Errno(Errno::IO)),
        }
    }

    /// Handles the failure of the flight `key`: requests a report of its zone. If the write stream
    /// may be the reason, retries the write without a stream instead.
    fn failed(&self, key: usize, cause: Cause) {
        if refuses_stream(cause) && self.leave_stream(key) {
            return self.send(key);
        }
        let zone = {
            let mut flights = self.flights.borrow_mut();
            let flight = &mut flights[key];
            flight.cause = Some(cause);
            self.zone_of(flight)
        };
        if says_gone(cause) || !self.folder.exists() {
            self.disappear();
            return self.land(key, Status::InternalError);
        }
        match zone {
            Some(zone) => self.ask_for_report(key, zone),
            None => self.judged(key, cause, None),
        }
    }

    fn ask_for_report(&self, key: usize, zone: ZoneId) {
        if self.gone.get() {
            return self.land(key, Status::InternalError);
        }
        let sector = self.geometry.start(zone).0 * self.geometry.block_size.0 / SECTOR;
        self.transport.ask(key, Job::Report { sector });
    }

    /// Runs `work` after `milliseconds`.
    fn later(&self, milliseconds: u64, work: impl FnOnce(&Inner) + 'static) {
        let (this, sleep) = (self.this.clone(), self.rt.sleep(milliseconds * Nanos::MILLI));
        self.rt.spawn_detached(async move {
            sleep.await;
            if let Some(inner) = this.upgrade() {
                work(&inner);
            }
        });
    }

    /// Takes the flight `key` out of its write stream; false if it has none. Later writes do not
    /// use streams either: the device has fewer of them than when it was opened, and the kernel
    /// would refuse each write.
    fn leave_stream(&self, key: usize) -> bool {
        let mut flights = self.flights.borrow_mut();
        let Task::Transfer(Transfer { kind: Kind::Write { stream: stream @ 1.., .. }, .. }) =
            &mut flights[key].task
        else {
            return false;
        };
        *stream = 0;
        self.streams.set(0);
        true
    }

    /// The zone whose report explains an error of the flight; `None` if the flight concerns no
    /// single zone.
    fn zone_of(&self, flight: &Flight) -> Option<ZoneId> {
        if !self.zoned {
            return None;
        }
        let (_, part) = flight.parts.first()?;
        let lba = match part.request.command {
            Command::Read { lba, .. } | Command::Write { lba, .. } => lba,
            Command::Append { zone_start, .. } => zone_start,
            Command::Manage { target: Target::Zone(lba), .. } => lba,
            _ => return None,
        };
        self.geometry.locate(lba).map(|(zone, _)| zone)
    }

    fn explained(&self, key: usize, report: Result<ioctl::Descriptor, Errno>) {
        let (zone, cause) = {
            let flights = self.flights.borrow();
            let cause = flights[key].cause.unwrap_or(Cause::Errno(Errno::IO));
            (self.zone_of(&flights[key]), cause)
        };
        match report {
            Ok(descriptor) => {
                let report =
                    zone.map(|zone| layout::zone_report(&self.geometry, zone, &descriptor));
                self.judged(key, cause, report);
            }
            Err(why) if is_gone(why) || !self.folder.exists() => {
                self.disappear();
                self.land(key, Status::InternalError);
            }
            // The drive refuses to report, for example because the transport has failed. Without a
            // report it is unknown what the command did, so the command is not retried before a
            // report has come.
            Err(_) => self.unreported(key),
        }
    }

    /// After a pause, requests a report of the zone of the flight `key` once more.
    fn unreported(&self, key: usize) {
        let (zone, pause) = {
            let mut flights = self.flights.borrow_mut();
            let flight = &mut flights[key];
            flight.unreported += 1;
            (self.zone_of(flight), pause(flight.unreported - 1))
        };
        match (zone, pause) {
            (Some(zone), Some(pause)) => {
                self.later(pause, move |inner| inner.ask_for_report(key, zone));
            }
            _ => self.land(key, Status::InternalError),
        }
    }

    fn judged(&self, key: usize, cause: Cause, report: Option<ZoneReport>) {
        let (verdict, joined, overtaken) = {
            let flights = self.flights.borrow();
            let flight = &flights[key];
            let verdict = judge_cause(cause, self.asked(flight), flight.tries, report.as_ref());
            let overtaken = flight.queued
                && flight.done == 0
                && verdict == Verdict::Answer(Status::ZoneInvalidWrite);
            (verdict, flight.parts.len() > 1, overtaken && !self.gone.get())
        };
        match verdict {
            Verdict::Answer(_) if overtaken => self.keep_refused(key),
            Verdict::Answer(status) if joined && !status.is_ok() && !self.gone.get() => {
                self.part(key, status, report);
            }
            Verdict::Answer(Status::Success) => self.landed_late(key),
            Verdict::Answer(status) => self.land(key, status),
            Verdict::Again { milliseconds, done } => {
                let bytes = done * self.geometry.block_size.0;
                {
                    let mut flights = self.flights.borrow_mut();
                    let flight = &mut flights[key];
                    flight.tries += 1;
                    flight.done += bytes;
                    ring::skip(&mut flight.pieces, bytes as usize);
                }
                if milliseconds == 0 {
                    return self.send(key);
                }
                self.later(milliseconds, move |inner| inner.send(key));
            }
        }
    }

    /// The operation that the unfinished part of the flight asks of its zone.
    fn asked(&self, flight: &Flight) -> Asked {
        let block = self.geometry.block_size.0;
        match flight.task {
            Task::Transfer(Transfer { kind, offset, length, .. }) => {
                let (from, end) = ((offset + flight.done) / block, (offset + length) / block);
                let Some((_, within)) = self.geometry.locate(Lba(from)) else {
                    return Asked::Other;
                };
                let blocks = BlockCount(end - from);
                match kind {
                    Kind::Read => Asked::Read { end: within.0 + blocks.0 },
                    Kind::Append { .. } => Asked::Append,
                    Kind::Write { .. } if flight.lane.is_some() => {
                        Asked::Zone(Op::Write { offset: within, blocks })
                    }
                    _ => Asked::Other,
                }
            }
            Task::Manage(Job::Manage { action, .. }) => Asked::Zone(Op::Manage(action)),
            Task::Manage(_) => Asked::Other,
        }
    }

    /// Keeps a queued write, which was refused because another write overtook it, until the zone's
    /// other writes are answered.
    fn keep_refused(&self, key: usize) {
        let flight = self.flights.borrow_mut().remove(key);
        let Some(zone) = flight.lane else { return };
        if let Some(lane) = self.lanes.borrow_mut().get_mut(&zone) {
            lane.keep_refused(flight.parts);
            lane.answered();
        }
        self.send_next(zone);
    }

    /// Handles joined writes that the drive refused. If none of their blocks was written, each
    /// write is retried alone; otherwise it is unknown which blocks were written, and all the
    /// writes fail.
    fn part(&self, key: usize, status: Status, report: Option<ZoneReport>) {
        let first = match self.flights.borrow()[key].task {
            Task::Transfer(Transfer { offset, .. }) => offset / self.geometry.block_size.0,
            Task::Manage(_) => 0,
        };
        let untouched = report.is_some_and(|report| {
            self.geometry.start(report.zone).0 + report.write_pointer.0 == first
        });
        let lane = self.flights.borrow()[key].lane;
        let Some(zone) = lane.filter(|_| untouched) else { return self.land(key, status) };
        let flight = self.flights.borrow_mut().remove(key);
        if let Some(lane) = self.lanes.borrow_mut().get_mut(&zone) {
            lane.put_back(flight.parts);
            lane.answered();
        }
        self.send_next(zone);
    }

    /// Handles a write that the drive carried out without being able to answer. If the write must
    /// be durable, it still needs a flush.
    fn landed_late(&self, key: usize) {
        let flush = {
            let mut flights = self.flights.borrow_mut();
            let flight = &mut flights[key];
            let durable = matches!(
                flight.task,
                Task::Transfer(Transfer { kind: Kind::Write { fua: true, .. }, .. })
            );
            if durable {
                let (kind, offset, length) = (Kind::Flush, 0, 0);
                flight.task = Task::Transfer(Transfer { kind, offset, length, again: false });
                flight.pieces.clear();
                flight.oob.clear();
                (flight.done, flight.tries) = (0, 0);
            }
            durable
        };
        if flush { self.send(key) } else { self.land(key, Status::Success) }
    }

    /// Answers the commands of the flight `key`, then sends the next commands of its lane.
    fn land(&self, key: usize, status: Status) {
        let Flight { parts, lane, mut oob, at, .. } = self.flights.borrow_mut().remove(key);
        if let Some(zone) = lane
            && let Some(lane) = self.lanes.borrow_mut().get_mut(&zone)
        {
            lane.answered();
        }
        for (_, mut part) in parts {
            match part.request.command {
                Command::Read { .. } => part.request.oob = std::mem::take(&mut oob),
                // From here on, the command names the place that the drive chose for the append.
                Command::Append { blocks, .. } if status.is_ok() => {
                    part.request.command = Command::Append { zone_start: Lba(at), blocks };
                }
                _ => {}
            }
            self.answer(part, status);
        }
        if let Some(zone) = lane {
            self.send_next(zone);
        }
    }

    pub(crate) fn answer(&self, part: Part, status: Status) {
        let Part { ticket, mut request, .. } = part;
        let lba = match request.command {
            Command::Write { lba, .. } | Command::Append { zone_start: lba, .. } => lba,
            _ => Lba(0),
        };
        let (data, oob) = match request.command {
            Command::Read { .. } => {
                (std::mem::take(&mut request.data), std::mem::take(&mut request.oob))
            }
            _ => Default::default(),
        };
        self.misses.update(|misses| misses + u64::from(status == Status::InternalError));
        self.table.complete(ticket, Outcome { status, lba, data, oob });
    }

    /// Notes that the drive is gone: waiting and later commands fail.
    pub(crate) fn disappear(&self) {
        self.gone.set(true);
        let waiting: Vec<Part> =
            self.lanes.borrow_mut().values_mut().flat_map(|lane| lane.drain()).collect();
        for part in waiting {
            self.answer(part, Status::InternalError);
        }
    }
}

#[cfg(test)]
mod tests;
