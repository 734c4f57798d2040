//! A block device as a [`ZonedDevice`]: commands to the kernel, answers back to their tasks.
//!
//! A *flight* is what the kernel has as one command: a read, a flush, a change of a zone, or writes
//! that were joined. Flights are sent when the executor polls its sources, all new ones in one
//! call; a task of the executor waits for the drive's event and takes the answers.

use crate::failure::{Asked, Verdict, is_gone, judge};
use crate::ioctl::{self, SECTOR};
use crate::lane::{Lane, Step};
use crate::layout;
use crate::names;
use crate::ring::{self, Kind, Piece, Ring};
use crate::sysfs::{Limits, Model};
use crate::workers::{Answer, Job, Workers};
use furrow_rt::{Clock, Completion, CompletionTable, Nanos, PAGE_SIZE, Rt, Source, Ticket};
use furrow_zone::rules::Op;
use furrow_zone::{
    Action, BlockCount, Command, Error, ErrorKind, Geometry, Lba, Outcome, QueueId, Reports,
    Request, Status, Target, ZoneId, ZoneReport, ZonedDevice, reported,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// How a drive is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading and writing.
    ReadWrite,
    /// For reading: writes and changes of zones are refused.
    ReadOnly,
}

/// Refuses the device at `path` if one of `obstacles` is in the way.
pub(crate) fn refuse_obstacles(
    path: &str,
    mut obstacles: Vec<names::Obstacle>,
    access: Access,
) -> Result<(), Error> {
    obstacles.retain(|one| one.code != "read-only" || access == Access::ReadWrite);
    let Some(obstacle) = obstacles.first() else { return Ok(()) };
    let kind = match obstacle.code {
        "mounted" | "partitioned" | "held" => ErrorKind::Busy,
        "read-only" => ErrorKind::ReadOnly,
        "not-found" => ErrorKind::NotFound,
        _ => ErrorKind::WrongFormat,
    };
    Err(Error::new(kind, format!("{path}: {}", obstacle.what)))
}

/// A device node or a file, open.
pub(crate) struct Opened {
    pub name: String,
    /// Its folder in sysfs; any folder that lasts for a file.
    pub folder: PathBuf,
    pub geometry: Geometry,
    pub access: Access,
    pub file: Arc<File>,
    pub warnings: Vec<String>,
}

/// A command and its submitter's ticket.
struct Part {
    ticket: Ticket,
    request: Request,
}

/// A command of the kernel.
struct Flight {
    parts: Vec<(Step, Part)>,
    /// The zone whose lane it blocks.
    lane: Option<ZoneId>,
    task: Task,
    /// Memory that the kernel may touch, from `done` on.
    pieces: Vec<Piece>,
    /// Bytes done.
    done: u64,
    tries: u32,
    /// The error that the zone's report is to explain.
    errno: Option<Errno>,
}

#[derive(Clone, Copy)]
enum Task {
    Transfer { kind: Kind, offset: u64, length: u64 },
    Manage(Job),
}

struct Inner {
    rt: Rt,
    this: Weak<Inner>,
    name: String,
    /// The device's folder in sysfs: it disappears with the device.
    folder: PathBuf,
    geometry: Geometry,
    access: Access,
    /// False: a drive without zones.
    zoned: bool,
    event: Arc<OwnedFd>,
    ring: RefCell<Ring>,
    workers: Workers,
    table: CompletionTable<Outcome>,
    lanes: RefCell<BTreeMap<ZoneId, Lane<Part>>>,
    flights: RefCell<Slab<Flight>>,
    /// Reports that the engine asked for and has not got.
    asking: RefCell<Slab<Ticket>>,
    asked: CompletionTable<Result<Vec<ioctl::Descriptor>, Errno>>,
    gone: Cell<bool>,
    warnings: Vec<String>,
}

/// A zoned block device, opened for this process alone. Cloning shares it.
#[derive(Clone)]
pub struct Drive(Rc<Inner>);

impl Drive {
    /// Opens the block device at `path` on the executor `rt`, whose clock must be real. No other
    /// program can mount it or open it in the same way meanwhile.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `Busy` (in use), `WrongFormat` (no host-managed zones, or zones that
    /// cannot be used), `Unsupported` (no io_uring), `Io`. Nothing has been written.
    pub fn open(rt: &Rt, path: &str, access: Access) -> Result<Drive, Error> {
        if rt.config().clock == Clock::Virtual {
            let what = format!("{path}: a real drive needs a real clock");
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let at = Path::new(path);
        let refusal = |kind, what: &str| Error::new(kind, format!("{path}: {what}"));
        let folder = names::folder(at).map_err(|obstacle| {
            let kind = match obstacle.code {
                "not-found" => ErrorKind::NotFound,
                _ => ErrorKind::WrongFormat,
            };
            Error::new(kind, obstacle.what)
        })?;
        refuse_obstacles(path, names::obstacles(at), access)?;
        let limits =
            Limits::read(&folder).map_err(|what| refusal(ErrorKind::WrongFormat, &what))?;
        let file = Arc::new(open_node(at, access)?);
        let failed = |what: &str, errno: Errno| {
            Error::new(ErrorKind::Io, format!("{path}: {what}: {errno}"))
        };
        let zones = ioctl::report(&file, 0, u32::MAX).map_err(|e| failed("zone report", e))?;
        let geometry = layout::geometry(&limits, &zones)
            .map_err(|what| refusal(ErrorKind::WrongFormat, &what))?;
        let warnings = warnings(path, &geometry, zones.len());
        let opened = Opened { name: path.to_owned(), folder, geometry, access, file, warnings };
        Drive::start(rt, opened, Model::HostManaged)
    }

    /// A drive on a file that is open, with a ring and threads of its own. `model` says whether it
    /// has zones: without any, `opened` has one conventional zone, which stands for all of it.
    ///
    /// # Errors
    /// `Unsupported` (no io_uring), `Io`.
    pub(crate) fn start(rt: &Rt, opened: Opened, model: Model) -> Result<Drive, Error> {
        let Opened { name, folder, geometry, access, file, warnings } = opened;
        let failed = |what: &str, why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Io, format!("{name}: {what}: {why}"))
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed("eventfd", &errno))?;
        let event = Arc::new(event);
        let ring = Ring::new(&file, &event).map_err(|error| {
            let what = format!(
                "{name}: io_uring: {error}: real drives need it: allow it (sysctl \
                 kernel.io_uring_disabled=0, and in the container's system call filter)"
            );
            Error::new(ErrorKind::Unsupported, what)
        })?;
        let workers = Workers::start(&file, &event).map_err(|error| failed("no thread", &error))?;
        let drive = Drive(Rc::new_cyclic(|this| Inner {
            rt: rt.clone(),
            this: this.clone(),
            name,
            folder,
            warnings,
            geometry,
            access,
            zoned: model == Model::HostManaged,
            event: event.clone(),
            ring: RefCell::new(ring),
            workers,
            table: CompletionTable::new(),
            lanes: RefCell::default(),
            flights: RefCell::default(),
            asking: RefCell::default(),
            asked: CompletionTable::new(),
            gone: Cell::new(false),
        }));
        rt.add_source(Rc::new(Sender(Rc::downgrade(&drive.0))));
        let (inner, engine) = (Rc::downgrade(&drive.0), rt.clone());
        rt.spawn_detached(async move {
            loop {
                engine.readable(event.clone()).await;
                let Some(inner) = inner.upgrade() else { return };
                // Empties the counter.
                let _ = rustix::io::read(&event, &mut [0u8; 8]);
                inner.take_answers();
            }
        });
        Ok(drive)
    }

    /// Tells a drive without zones that the content of `length` bytes from `offset` on is not
    /// needed any more.
    pub(crate) fn discard(&self, offset: u64, length: u64) -> Completion<Outcome> {
        let (ticket, completion) = self.0.table.open();
        // It is refused as a change of all zones would be, and concerns none.
        let command = Command::Manage { target: Target::All, action: Action::Reset };
        let part = Part { ticket, request: Request::bare(command) };
        match self.0.refuse(&part.request) {
            Some(status) => self.0.answer(part, status),
            None => {
                let task = Task::Manage(Job::Discard { offset, length });
                self.0.fly(vec![(Step::Manage, part)], None, task, Vec::new());
            }
        }
        completion
    }
}

/// What the drive's user should know.
fn warnings(path: &str, geometry: &Geometry, zones: usize) -> Vec<String> {
    match zones - geometry.zones as usize {
        0 => Vec::new(),
        _ => vec![format!("{path}: the last zone is smaller than the others and is left out")],
    }
}

pub(crate) fn open_node(path: &Path, access: Access) -> Result<File, Error> {
    use rustix::fs::OFlags;
    let flags = OFlags::EXCL | OFlags::DIRECT | OFlags::CLOEXEC;
    OpenOptions::new()
        .read(true)
        .write(access == Access::ReadWrite)
        .custom_flags(flags.bits() as i32)
        .open(path)
        .map_err(|error| {
            let name = path.display();
            let known = names::by_id(path).map(|id| format!(" ({})", id.display()));
            let known = known.unwrap_or_default();
            let (kind, advice) = match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::BUSY) => (
                    ErrorKind::Busy,
                    ": in use: mounted, part of an array, or open in another program (lsblk and \
                     fuser show which): end that first",
                ),
                Some(Errno::ACCESS | Errno::PERM) => {
                    (ErrorKind::Denied, ": run this as root, or as a member of the node's group")
                }
                Some(Errno::NODEV | Errno::NXIO | Errno::NOENT) => {
                    (ErrorKind::NotFound, ": the drive is not there any more")
                }
                Some(Errno::ROFS) => (ErrorKind::ReadOnly, ": the device refuses writes"),
                _ => (ErrorKind::Io, ""),
            };
            Error::new(kind, format!("{name}{known}: {error}{advice}"))
        })
}

impl Inner {
    /// The status of a command that is refused without asking the kernel.
    fn refuse(&self, request: &Request) -> Option<Status> {
        if self.gone.get() {
            return Some(Status::InternalError);
        }
        let geometry = &self.geometry;
        let writes = !matches!(request.command, Command::Read { .. } | Command::Flush);
        if writes && self.access == Access::ReadOnly {
            return Some(Status::WriteFault);
        }
        match request.command {
            Command::Read { lba, blocks } | Command::Write { lba, blocks } => {
                let bytes = geometry.bytes(blocks).0;
                let pages = bytes.div_ceil(PAGE_SIZE as u64);
                let fits = pages == request.data.len() as u64 && request.oob.is_empty();
                if !fits || geometry.max_transfer.is_some_and(|most| blocks > most) {
                    return Some(Status::InvalidField);
                }
                match geometry.check_range(lba, blocks) {
                    Ok((_, offset)) if offset.0 + blocks.0 > geometry.zone_size.0 => {
                        Some(Status::ZoneBoundary)
                    }
                    Ok(_) => None,
                    Err(status) => Some(status),
                }
            }
            Command::Append { .. } => Some(Status::InvalidField),
            Command::Flush => None,
            Command::Manage { action: Action::Offline, .. } => Some(Status::InvalidField),
            Command::Manage { target: Target::All, .. } => None,
            Command::Manage { target: Target::Zone(lba), .. } => match geometry.locate(lba) {
                None => Some(Status::LbaOutOfRange),
                Some((zone, offset)) if offset.0 != 0 || geometry.is_conventional(zone) => {
                    Some(Status::InvalidField)
                }
                Some(_) => None,
            },
        }
    }

    fn accept(&self, part: Part) {
        if let Some(status) = self.refuse(&part.request) {
            return self.answer(part, status);
        }
        let manage = (Step::Manage, None);
        let (step, lane) = match part.request.command {
            Command::Write { lba, blocks } => {
                let zone = self.geometry.locate(lba).map(|(zone, _)| zone);
                let zone = zone.filter(|zone| !self.geometry.is_conventional(*zone));
                (Step::Write { at: lba.0, blocks: blocks.0, fua: part.request.fua }, zone)
            }
            Command::Manage { target: Target::Zone(lba), .. } => {
                (Step::Manage, self.geometry.locate(lba).map(|(zone, _)| zone))
            }
            _ => manage,
        };
        match lane {
            Some(zone) => {
                self.lanes.borrow_mut().entry(zone).or_default().push(step, part);
                self.pump(zone);
            }
            None => self.begin(vec![(step, part)], None),
        }
    }

    /// Sends the next command of `zone` if the kernel has none.
    fn pump(&self, zone: ZoneId) {
        let parts = {
            let mut lanes = self.lanes.borrow_mut();
            let Some(lane) = lanes.get_mut(&zone) else { return };
            let parts = lane.start(self.geometry.max_transfer.map_or(u64::MAX, |most| most.0));
            if lane.is_idle() {
                lanes.remove(&zone);
            }
            parts
        };
        if !parts.is_empty() {
            self.begin(parts, Some(zone));
        }
    }

    /// Makes a flight of `parts` and sends it.
    fn begin(&self, mut parts: Vec<(Step, Part)>, lane: Option<ZoneId>) {
        let block = self.geometry.block_size.0;
        let sectors = |lba: u64| lba * block / SECTOR;
        let zone_sectors = sectors(self.geometry.zone_size.0);
        let mut pieces = Vec::new();
        let transfer =
            |kind, lba: Lba, length| Task::Transfer { kind, offset: lba.0 * block, length };
        let task = match parts[0].1.request.command {
            Command::Read { lba, blocks } => {
                let length = blocks.0 * block;
                ring::to_fill(&mut parts[0].1.request.data, length, &mut pieces);
                transfer(Kind::Read, lba, length)
            }
            Command::Write { lba, .. } => {
                let mut length = 0;
                for (_, part) in &parts {
                    let Command::Write { blocks, .. } = part.request.command else { continue };
                    ring::to_send(&part.request.data, blocks.0 * block, &mut pieces);
                    length += blocks.0 * block;
                }
                transfer(Kind::Write { fua: parts[0].1.request.fua }, lba, length)
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
            Command::Flush | Command::Append { .. } => transfer(Kind::Flush, Lba(0), 0),
        };
        self.fly(parts, lane, task, pieces);
    }

    fn fly(&self, parts: Vec<(Step, Part)>, lane: Option<ZoneId>, task: Task, pieces: Vec<Piece>) {
        let flight = Flight { parts, lane, task, pieces, done: 0, tries: 0, errno: None };
        let key = self.flights.borrow_mut().insert(flight);
        self.send(key);
    }

    /// Gives the flight `key` to the kernel, from its first byte that is not done.
    fn send(&self, key: usize) {
        let flights = self.flights.borrow();
        let flight = &flights[key];
        match flight.task {
            Task::Transfer { kind, offset, .. } => {
                let offset = offset + flight.done;
                self.ring.borrow_mut().push(key, kind, &flight.pieces, offset);
            }
            Task::Manage(job) => self.workers.ask(key, job),
        }
    }

    /// Takes the kernel's answers. True if there were any.
    fn take_answers(&self) -> bool {
        let mut answers = Vec::new();
        self.ring.borrow_mut().answers(&mut answers);
        let mut any = !answers.is_empty();
        for (key, result) in answers {
            self.transferred(key, result);
        }
        for (key, answer) in self.workers.answers() {
            any = true;
            match answer {
                Answer::Managed(Ok(())) => self.land(key, Status::Success),
                Answer::Managed(Err(errno)) => self.failed(key, errno),
                Answer::Reported(report) => self.explained(key, report),
                Answer::ReportedAll(reports) => {
                    let ticket = self.asking.borrow_mut().remove(key);
                    self.asked.complete(ticket, reports);
                }
            }
        }
        any
    }

    fn transferred(&self, key: usize, result: i32) {
        if result < 0 {
            return self.failed(key, Errno::from_raw_os_error(-result));
        }
        let complete = {
            let mut flights = self.flights.borrow_mut();
            let flight = &mut flights[key];
            let Task::Transfer { length, .. } = flight.task else { return };
            flight.done += result as u64;
            ring::skip(&mut flight.pieces, result as usize);
            flight.done >= length
        };
        match (complete, result) {
            (true, _) => self.land(key, Status::Success),
            // The kernel stops before the end of what it can transfer, and says why next time.
            (false, 1..) => self.send(key),
            (false, _) => self.failed(key, Errno::IO),
        }
    }

    /// Asks for a report of the zone of the flight `key`, which failed.
    fn failed(&self, key: usize, errno: Errno) {
        let zone = {
            let mut flights = self.flights.borrow_mut();
            let flight = &mut flights[key];
            flight.errno = Some(errno);
            self.zone_of(flight)
        };
        if is_gone(errno) || !self.folder.exists() {
            self.disappear();
            return self.land(key, Status::InternalError);
        }
        match zone {
            Some(zone) => {
                let sector = self.geometry.start(zone).0 * self.geometry.block_size.0 / SECTOR;
                self.workers.ask(key, Job::Report { sector });
            }
            None => self.judged(key, errno, None),
        }
    }

    /// The zone whose report explains an error.
    fn zone_of(&self, flight: &Flight) -> Option<ZoneId> {
        if !self.zoned {
            return None;
        }
        let (_, part) = flight.parts.first()?;
        let lba = match part.request.command {
            Command::Read { lba, .. } | Command::Write { lba, .. } => lba,
            Command::Manage { target: Target::Zone(lba), .. } => lba,
            _ => return None,
        };
        self.geometry.locate(lba).map(|(zone, _)| zone)
    }

    fn explained(&self, key: usize, report: Result<ioctl::Descriptor, Errno>) {
        let (zone, errno) = {
            let flights = self.flights.borrow();
            (self.zone_of(&flights[key]), flights[key].errno.unwrap_or(Errno::IO))
        };
        match report {
            Ok(descriptor) => {
                let report =
                    zone.map(|zone| layout::zone_report(&self.geometry, zone, &descriptor));
                self.judged(key, errno, report);
            }
            Err(why) if is_gone(why) || !self.folder.exists() => {
                self.disappear();
                self.land(key, Status::InternalError);
            }
            // The drive does not even report: that is how a way that is lost looks.
            Err(_) => self.judged(key, Errno::NOLINK, None),
        }
    }

    fn judged(&self, key: usize, errno: Errno, report: Option<ZoneReport>) {
        let (verdict, joined) = {
            let flights = self.flights.borrow();
            let flight = &flights[key];
            let asked = self.asked(flight);
            (judge(errno, asked, flight.tries, report.as_ref()), flight.parts.len() > 1)
        };
        match verdict {
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
                let (this, sleep) = (self.this.clone(), self.rt.sleep(milliseconds * Nanos::MILLI));
                self.rt.spawn_detached(async move {
                    sleep.await;
                    if let Some(inner) = this.upgrade() {
                        inner.send(key);
                    }
                });
            }
        }
    }

    /// What the flight asks of its zone from its first byte on that is not done.
    fn asked(&self, flight: &Flight) -> Asked {
        let block = self.geometry.block_size.0;
        match (flight.task, flight.parts.first().map(|(_, part)| part.request.command)) {
            (Task::Transfer { kind, offset, length }, Some(command)) => {
                let (from, end) = ((offset + flight.done) / block, (offset + length) / block);
                let Some((_, within)) = self.geometry.locate(Lba(from)) else {
                    return Asked::Other;
                };
                let blocks = BlockCount(end - from);
                match (kind, command) {
                    (Kind::Read, _) => Asked::Read { end: within.0 + blocks.0 },
                    (Kind::Write { .. }, _) if flight.lane.is_some() => {
                        Asked::Zone(Op::Write { offset: within, blocks })
                    }
                    _ => Asked::Other,
                }
            }
            (Task::Manage(Job::Manage { action, .. }), _) => Asked::Zone(Op::Manage(action)),
            _ => Asked::Other,
        }
    }

    /// Answers or sends again, one by one, the writes of a joined flight that was refused. If none
    /// of it was written each is tried alone; otherwise what was written is unknown, and all fail.
    fn part(&self, key: usize, status: Status, report: Option<ZoneReport>) {
        let first = match self.flights.borrow()[key].task {
            Task::Transfer { offset, .. } => offset / self.geometry.block_size.0,
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
        self.pump(zone);
    }

    /// The drive wrote what it could not answer. What must be durable needs a flush.
    fn landed_late(&self, key: usize) {
        let flush = {
            let mut flights = self.flights.borrow_mut();
            let flight = &mut flights[key];
            let durable =
                matches!(flight.task, Task::Transfer { kind: Kind::Write { fua: true }, .. });
            if durable {
                flight.task = Task::Transfer { kind: Kind::Flush, offset: 0, length: 0 };
                flight.pieces.clear();
                (flight.done, flight.tries) = (0, 0);
            }
            durable
        };
        if flush { self.send(key) } else { self.land(key, Status::Success) }
    }

    /// Answers the commands of the flight `key`, and sends what waits behind it.
    fn land(&self, key: usize, status: Status) {
        let flight = self.flights.borrow_mut().remove(key);
        if let Some(zone) = flight.lane
            && let Some(lane) = self.lanes.borrow_mut().get_mut(&zone)
        {
            lane.answered();
        }
        for (_, part) in flight.parts {
            self.answer(part, status);
        }
        if let Some(zone) = flight.lane {
            self.pump(zone);
        }
    }

    fn answer(&self, part: Part, status: Status) {
        let Part { ticket, mut request } = part;
        let lba = match request.command {
            Command::Write { lba, .. } => lba,
            _ => Lba(0),
        };
        let data = match request.command {
            Command::Read { .. } => std::mem::take(&mut request.data),
            _ => Default::default(),
        };
        self.table.complete(ticket, Outcome { status, lba, data, oob: Vec::new() });
    }

    /// The drive was removed: what waits and what comes later fails.
    fn disappear(&self) {
        self.gone.set(true);
        let waiting: Vec<Part> =
            self.lanes.borrow_mut().values_mut().flat_map(|lane| lane.drain()).collect();
        for part in waiting {
            self.answer(part, Status::InternalError);
        }
    }
}

impl Drop for Inner {
    /// Waits for the kernel: it may still write to pages.
    fn drop(&mut self) {
        self.ring.get_mut().wait_for_all();
        // Ends the task that waits for the event.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// Sends new flights and takes answers whenever the executor polls its sources.
struct Sender(Weak<Inner>);

impl Source for Sender {
    fn poll(&self) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        let sent = {
            let mut ring = inner.ring.borrow_mut();
            ring.has_unsent() && ring.submit()
        };
        inner.take_answers() | sent
    }
}

impl ZonedDevice for Drive {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, _: QueueId, request: Request) -> Completion<Outcome> {
        let (ticket, completion) = self.0.table.open();
        self.0.accept(Part { ticket, request });
        completion
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        let inner = &*self.0;
        let geometry = &inner.geometry;
        if inner.gone.get() {
            return reported(Err(Status::InternalError));
        }
        let count = count.min(geometry.zones.saturating_sub(first.0));
        let sector = geometry.start(first).0 * geometry.block_size.0 / SECTOR;
        let (ticket, answer) = inner.asked.open();
        let key = inner.asking.borrow_mut().insert(ticket);
        inner.workers.ask(key, Job::ReportAll { sector, count });
        Box::pin(async move {
            match answer.await {
                Ok(zones) => Ok((first.0..)
                    .map(ZoneId)
                    .zip(&zones)
                    .map(|(zone, from)| layout::zone_report(geometry, zone, from))
                    .collect()),
                Err(errno) => {
                    if is_gone(errno) || !inner.folder.exists() {
                        inner.disappear();
                    }
                    Err(Status::InternalError)
                }
            }
        })
    }

    fn answers(&self) -> bool {
        !self.0.gone.get() && self.0.folder.exists()
    }

    fn oldest(&self) -> Option<u64> {
        self.0.table.oldest()
    }

    fn give_up(&self) {
        self.0.disappear();
        let lost = || Outcome {
            status: Status::InternalError,
            lba: Lba(0),
            data: Default::default(),
            oob: Vec::new(),
        };
        self.0.table.give_up(lost);
        self.0.asked.give_up(|| Err(Errno::NODEV));
    }

    fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }
}

impl std::fmt::Debug for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Drive({})", self.0.name)
    }
}
