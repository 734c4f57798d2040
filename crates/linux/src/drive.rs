//! A drive of the system as a [`ZonedDevice`]: sends commands to the kernel, and passes its answers
//! to the waiting tasks.
//!
//! Commands are sent as flights (`flight.rs`) when the executor polls its sources, all new ones in
//! one call. A task waits for the drive's event and takes the kernel's answers.

use crate::claim::{self, Claim};
use crate::failure::{is_gone, pause};
use crate::flight::{Flight, Part, Task};
use crate::ioctl::{self, SECTOR};
use crate::lane::{Lane, Sent, Step};
use crate::layout;
use crate::names;
use crate::nvme;
use crate::sysfs::{Limits, Model};
use crate::transport::Transport;
use crate::workers::Job;
use furrow_rt::{Clock, Completion, CompletionTable, Nanos, PAGE_SIZE, Rt, Source, Ticket};
use furrow_zone::spec::Node;
use furrow_zone::{
    Access, Action, BlockCount, Command, Error, ErrorKind, Geometry, Lba, Outcome, QueueId,
    Reports, Request, Status, Target, ZoneId, ZonedDevice, reported,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
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
use std::time::{Duration, Instant};

/// Refuses the device at `path` if one of `obstacles` prevents its use.
pub(crate) fn refuse_obstacles(
    path: &str,
    mut obstacles: Vec<names::Obstacle>,
    access: Access,
) -> Result<(), Error> {
    obstacles.retain(|one| one.code != "read-only" || access.writes());
    let Some(obstacle) = obstacles.first() else { return Ok(()) };
    let kind = match obstacle.code {
        _ if obstacle.is_use() => ErrorKind::Busy,
        "read-only" => ErrorKind::ReadOnly,
        "not-found" => ErrorKind::NotFound,
        _ => ErrorKind::WrongFormat,
    };
    Err(Error::new(kind, format!("{path}: {}", obstacle.what)))
}

/// An open device node or file.
pub(crate) struct Opened {
    pub name: String,
    /// The device's folder in sysfs; for a file, any folder that does not disappear.
    pub folder: PathBuf,
    pub geometry: Geometry,
    pub access: Access,
    pub file: Arc<File>,
    /// Claims on this node, or on other nodes of the same device, which keep other programs from
    /// using it.
    pub claims: Vec<Arc<Claim>>,
    pub warnings: Vec<String>,
}

pub(crate) struct Inner {
    pub rt: Rt,
    pub this: Weak<Inner>,
    name: String,
    /// The device's folder in sysfs; it disappears with the device.
    pub folder: PathBuf,
    pub geometry: Geometry,
    access: Access,
    /// Whether the drive has zones.
    pub zoned: bool,
    /// Whether the user states that the drive keeps the order of writes to a zone.
    queued: bool,
    /// Number of write streams; 0 after the kernel has refused a write because of its stream.
    pub streams: Cell<u8>,
    event: Arc<OwnedFd>,
    pub transport: Transport,
    pub table: CompletionTable<Outcome>,
    pub lanes: RefCell<BTreeMap<ZoneId, Lane<Part>>>,
    pub flights: RefCell<Slab<Flight>>,
    /// Zone reports that an engine has requested and not received.
    pub asking: RefCell<Slab<Ticket>>,
    pub asked: CompletionTable<Result<Vec<ioctl::Descriptor>, Errno>>,
    pub gone: Cell<bool>,
    /// Number of commands answered with an internal error.
    pub misses: Cell<u64>,
    /// The largest number of commands of one zone that the kernel has had at once.
    most_per_zone: Cell<u32>,
    warnings: Vec<String>,
    _claims: Vec<Arc<Claim>>,
}

/// A zoned block device or generic NVMe device, opened for this process alone. A clone is another
/// handle of the same drive.
#[derive(Clone)]
pub struct Drive(pub(crate) Rc<Inner>);

/// How a drive is used: its kind, whether it keeps the order of writes, and its number of
/// write streams.
pub(crate) struct Use {
    pub model: Model,
    pub queued: bool,
    pub streams: u8,
}

impl Drive {
    /// Opens the zoned block device or generic NVMe device `node` on the executor `rt`, whose
    /// clock must be real. Until the drive is closed, no other program can mount it or open
    /// it exclusively.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `Busy` (in use), `WrongFormat` (no host-managed zones, or zones that
    /// cannot be used), `Invalid` (queued writes on a block device, or a virtual clock),
    /// `ReadOnly`, `Unsupported` (no io_uring), `Io`. Nothing has been written.
    pub fn open(rt: &Rt, node: &Node, access: Access) -> Result<Drive, Error> {
        let Node { path, queued } = node;
        if rt.config().clock == Clock::Virtual {
            let what = format!("{path}: a real drive needs a real clock");
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let at = Path::new(path);
        if nvme::is_generic(at) {
            let (opened, namespace) = nvme::open(path, access)?;
            let usage = Use { model: Model::HostManaged, queued: *queued, streams: 0 };
            return Drive::start(rt, opened, usage, |file, event| {
                Transport::nvme(file, event, namespace)
            });
        }
        if *queued {
            let what = format!(
                "{path}: order=queued is for generic NVMe devices (/dev/ng0n1): the kernel keeps \
                 no order among the writes of a block device"
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
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
        let Held { file, claim } = open_node(at, access)?;
        let file = Arc::new(file);
        let failed = |what: &str, errno: Errno| {
            Error::new(ErrorKind::Io, format!("{path}: {what}: {errno}"))
        };
        let zones = ioctl::report(&file, 0, u32::MAX).map_err(|e| failed("zone report", e))?;
        let geometry = layout::geometry(&limits, &zones)
            .map_err(|what| refusal(ErrorKind::WrongFormat, &what))?;
        let warnings = warnings(path, &geometry, zones.len());
        let (name, claims) = (path.to_owned(), vec![Arc::new(claim)]);
        let opened = Opened { name, folder, geometry, access, file, claims, warnings };
        let usage = Use { model: Model::HostManaged, queued: false, streams: 0 };
        Drive::start(rt, opened, usage, Transport::block)
    }

    /// Starts a drive on an open file, with the transport that `make` creates. `usage` says
    /// whether the drive has zones; if not, `opened` has one conventional zone, which stands for
    /// the whole drive.
    ///
    /// # Errors
    /// `Unsupported` (no io_uring), `Io`.
    pub(crate) fn start(
        rt: &Rt,
        opened: Opened,
        usage: Use,
        make: impl FnOnce(&Arc<File>, &Arc<OwnedFd>) -> std::io::Result<Transport>,
    ) -> Result<Drive, Error> {
        let Opened { name, folder, geometry, access, file, claims, warnings } = opened;
        let failed = |what: &str, why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Io, format!("{name}: {what}: {why}"))
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed("eventfd", &errno))?;
        let event = Arc::new(event);
        let transport = make(&file, &event).map_err(|error| {
            let what = format!(
                "{name}: io_uring: {error}: real drives need it: allow it (sysctl \
                 kernel.io_uring_disabled=0, and in the container's system call filter)"
            );
            Error::new(ErrorKind::Unsupported, what)
        })?;
        let table = CompletionTable::new();
        // A report that never comes holds up the drive like a command, so both are
        // numbered together.
        let asked = table.numbered_together();
        let drive = Drive(Rc::new_cyclic(|this| Inner {
            rt: rt.clone(),
            this: this.clone(),
            name,
            folder,
            warnings,
            geometry,
            access,
            zoned: usage.model == Model::HostManaged,
            queued: usage.queued,
            streams: Cell::new(usage.streams),
            event: event.clone(),
            transport,
            table,
            lanes: RefCell::default(),
            flights: RefCell::default(),
            asking: RefCell::default(),
            asked,
            gone: Cell::new(false),
            misses: Cell::new(0),
            most_per_zone: Cell::new(0),
            _claims: claims,
        }));
        rt.add_source(Rc::new(Sender(Rc::downgrade(&drive.0))));
        let (inner, engine) = (Rc::downgrade(&drive.0), rt.clone());
        rt.spawn_detached(async move {
            loop {
                engine.readable(event.clone()).await;
                let Some(inner) = inner.upgrade() else { return };
                // The read resets the counter to 0.
                let _ = rustix::io::read(&event, &mut [0u8; 8]);
                inner.take_answers();
            }
        });
        Ok(drive)
    }

    /// Number of write streams of a drive without zones; 0 if it has none, or the kernel has
    /// refused one.
    pub(crate) fn streams(&self) -> u8 {
        self.0.streams.get()
    }

    /// Carries out a write to a drive without zones, in write stream `stream` if the drive has it.
    pub(crate) fn write(&self, request: Request, stream: u8) -> Completion<Outcome> {
        let (ticket, completion) = self.0.table.open();
        self.0.accept(Part { ticket, request, stream });
        completion
    }

    /// Tells a drive without zones that the content of `length` bytes from `offset` on is no
    /// longer needed.
    pub(crate) fn discard(&self, offset: u64, length: u64) -> Completion<Outcome> {
        let (ticket, completion) = self.0.table.open();
        // A discard is refused in the same cases as a reset of all zones, so the check uses such a
        // reset.
        let command = Command::Manage { target: Target::All, action: Action::Reset };
        let part = Part { ticket, request: Request::bare(command), stream: 0 };
        match self.0.refuse(&part.request) {
            Some(status) => self.0.answer(part, status),
            None => self.0.begin_bare(part, Task::Manage(Job::Discard { offset, length })),
        }
        completion
    }

    /// The largest number of commands of one zone that the kernel has had at once since the drive
    /// was opened.
    pub fn most_per_zone(&self) -> u32 {
        self.0.most_per_zone.get()
    }
}

/// Warnings for the user of the drive at `path`, about zones that the geometry leaves out.
fn warnings(path: &str, geometry: &Geometry, zones: usize) -> Vec<String> {
    match zones - geometry.zones as usize {
        0 => Vec::new(),
        _ => vec![format!("{path}: the last zone is smaller than the others and is left out")],
    }
}

/// A block device that this process alone uses.
pub(crate) struct Held {
    pub file: File,
    pub claim: Claim,
}

fn open_with(path: &Path, write: bool, flags: OFlags) -> std::io::Result<File> {
    let flags = flags | OFlags::CLOEXEC;
    OpenOptions::new().read(true).write(write).custom_flags(flags.bits() as i32).open(path)
}

/// How long an exclusive open waits for a busy device. udev's rules read a device after every close
/// by a writer, and the next command must not fail because of that read.
const LOOKED_AT: Duration = Duration::from_millis(500);

/// Opens a block device exclusively, only to keep other users away.
pub(crate) fn open_exclusively(path: &Path) -> std::io::Result<File> {
    let begun = Instant::now();
    loop {
        match open_with(path, false, OFlags::EXCL) {
            Err(error)
                if error.raw_os_error() == Some(Errno::BUSY.raw_os_error())
                    && begun.elapsed() < LOOKED_AT =>
            {
                std::thread::sleep(LOOKED_AT / 50);
            }
            opened => return opened,
        }
    }
}

/// How long the server of a mount may keep the device open while the kernel does not hold it.
const LEFT_WITHIN: Duration = Duration::from_secs(10);

/// Opens and claims a block device.
fn open_and_claim(path: &Path, access: Access) -> std::io::Result<Held> {
    let (begun, mut file) = (Instant::now(), None);
    loop {
        match try_claim(path, access, &mut file)? {
            Some(held) => return Ok(held),
            None if begun.elapsed() >= LEFT_WITHIN => return Err(Errno::BUSY.into()),
            None => std::thread::sleep(LEFT_WITHIN / 1000),
        }
    }
}

/// Opens and claims a block device, unless the server of a mount has it open: one whose mount is
/// gone, which may still write its last blocks although the kernel has already told umount(8) that
/// everything is durable, or one that has given up its claim so that the kernel can mount the
/// device. This process then keeps no claim, because that mount needs it.
///
/// Commands go through a second file, so that the exclusive one can be closed when the kernel
/// mounts the device. It stays open in `kept` for the next attempt: udev looks at a device again
/// whenever a file that may have written to it is closed.
fn try_claim(
    path: &Path,
    access: Access,
    kept: &mut Option<File>,
) -> std::io::Result<Option<Held>> {
    let write = access.writes();
    let claim = Claim::by(open_exclusively(path)?)?;
    let file = match kept.take() {
        Some(file) => file,
        None => open_with(path, write, OFlags::DIRECT)?,
    };
    match claim::lock(&file, write) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            *kept = Some(file);
            Ok(None)
        }
        locked => locked.map(|()| Some(Held { file, claim })),
    }
}

pub(crate) fn open_node(path: &Path, access: Access) -> Result<Held, Error> {
    open_and_claim(path, access).map_err(|error| {
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
    /// The status of a command that this process refuses without asking the kernel; `None` if the
    /// kernel decides.
    fn refuse(&self, request: &Request) -> Option<Status> {
        if self.gone.get() {
            return Some(Status::InternalError);
        }
        let geometry = &self.geometry;
        let writes = !matches!(request.command, Command::Read { .. } | Command::Flush);
        if writes && !self.access.writes() {
            return Some(Status::WriteFault);
        }
        match request.command {
            Command::Read { lba, blocks } | Command::Write { lba, blocks } => {
                let most = geometry.max_transfer;
                if !self.fits(request, blocks) || most.is_some_and(|most| blocks > most) {
                    return Some(Status::InvalidField);
                }
                let reads = matches!(request.command, Command::Read { .. });
                let crosses = reads && geometry.read_across_zones;
                match geometry.check_range(lba, blocks) {
                    Ok((_, offset)) if !crosses && offset.0 + blocks.0 > geometry.zone_size.0 => {
                        Some(Status::ZoneBoundary)
                    }
                    Ok(_) => None,
                    Err(status) => Some(status),
                }
            }
            Command::Append { zone_start, blocks } => {
                let most = geometry.append_limit();
                let fits = self.fits(request, blocks) && most.is_none_or(|most| blocks <= most);
                match geometry.zone_at(zone_start) {
                    Some(zone) if fits && blocks.0 > 0 && !geometry.is_conventional(zone) => None,
                    _ => Some(Status::InvalidField),
                }
            }
            Command::Flush => None,
            Command::Manage { action: Action::Offline, .. } if !self.has_offline() => {
                Some(Status::InvalidField)
            }
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

    /// Whether the payload of `request` has the size of `blocks` blocks.
    fn fits(&self, request: &Request, blocks: BlockCount) -> bool {
        let pages = self.geometry.bytes(blocks).0.div_ceil(PAGE_SIZE as u64);
        let oob = blocks.0.saturating_mul(u64::from(self.geometry.oob_bytes));
        let reads = matches!(request.command, Command::Read { .. });
        let given = request.oob.len() as u64;
        pages == request.data.len() as u64 && (given == 0 || (!reads && given == oob))
    }

    /// Whether the drive can take a zone offline by command; the kernel's block layer has no
    /// such command.
    fn has_offline(&self) -> bool {
        matches!(self.transport, Transport::Nvme(_))
    }

    fn accept(&self, part: Part) {
        if let Some(status) = self.refuse(&part.request) {
            return self.answer(part, status);
        }
        let alone = (Step::Manage, None);
        let (step, lane) = match part.request.command {
            Command::Write { lba, blocks } => {
                let zone = self.geometry.locate(lba).map(|(zone, _)| zone);
                let zone = zone.filter(|zone| !self.geometry.is_conventional(*zone));
                (Step::Write { at: lba.0, blocks: blocks.0, fua: part.request.fua }, zone)
            }
            Command::Append { zone_start, .. } => {
                (Step::Append, self.geometry.locate(zone_start).map(|(zone, _)| zone))
            }
            Command::Manage { target: Target::Zone(lba), .. } => {
                (Step::Manage, self.geometry.locate(lba).map(|(zone, _)| zone))
            }
            _ => alone,
        };
        match lane {
            Some(zone) => {
                self.lanes.borrow_mut().entry(zone).or_default().push(step, part);
                self.send_next(zone);
            }
            None => self.begin(Sent { parts: vec![(step, part)], queued: false }, None),
        }
    }

    /// Sends the next commands of `zone` that the kernel may have at the same time as the commands
    /// sent before.
    pub(crate) fn send_next(&self, zone: ZoneId) {
        let most = self.geometry.max_transfer.map_or(u64::MAX, |most| most.0);
        loop {
            let sent = {
                let mut lanes = self.lanes.borrow_mut();
                let Some(lane) = lanes.get_mut(&zone) else { return };
                let sent = lane.start(most, self.queued);
                self.most_per_zone.set(self.most_per_zone.get().max(lane.with_kernel()));
                if lane.is_idle() {
                    lanes.remove(&zone);
                }
                sent
            };
            match sent {
                Some(sent) => self.begin(sent, Some(zone)),
                None => return,
            }
        }
    }
}

impl Drop for Inner {
    /// Waits until the kernel, which may still write to pages, has answered all commands.
    fn drop(&mut self) {
        self.transport.wait_for_all();
        // Ends the task that waits for the event.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// Sends new flights and takes answers whenever the executor polls its sources.
struct Sender(Weak<Inner>);

impl Source for Sender {
    fn poll(&self) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        let sent = inner.transport.submit();
        inner.take_answers() | sent
    }
}

impl ZonedDevice for Drive {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, _: QueueId, request: Request) -> Completion<Outcome> {
        let (ticket, completion) = self.0.table.open();
        self.0.accept(Part { ticket, request, stream: 0 });
        completion
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        let inner = &*self.0;
        let geometry = &inner.geometry;
        if inner.gone.get() {
            return reported(Err(Status::InternalError));
        }
        let end = first.0 + count.min(geometry.zones.saturating_sub(first.0));
        Box::pin(async move {
            let (mut reports, mut tries) = (Vec::new(), 0);
            // A report may have fewer zones than were requested.
            loop {
                let next = ZoneId(first.0 + reports.len() as u32);
                if next.0 >= end {
                    return Ok(reports);
                }
                let sector = geometry.start(next).0 * geometry.block_size.0 / SECTOR;
                let (ticket, answer) = inner.asked.open();
                let key = inner.asking.borrow_mut().insert(ticket);
                inner.transport.ask(key, Job::ReportAll { sector, count: end - next.0 });
                match answer.await {
                    Ok(zones) if !zones.is_empty() => {
                        let known = (next.0..end).map(ZoneId).zip(&zones);
                        reports.extend(
                            known.map(|(zone, from)| layout::zone_report(geometry, zone, from)),
                        );
                    }
                    Ok(_) => return Err(Status::InternalError),
                    Err(errno) => {
                        if is_gone(errno) || !inner.folder.exists() {
                            inner.disappear();
                        }
                        let pause = pause(tries).filter(|_| !inner.gone.get());
                        let Some(pause) = pause else { return Err(Status::InternalError) };
                        tries += 1;
                        inner.rt.sleep(pause * Nanos::MILLI).await;
                        if inner.gone.get() {
                            return Err(Status::InternalError);
                        }
                    }
                }
            }
        })
    }

    fn answers(&self) -> bool {
        !self.0.gone.get() && self.0.folder.exists()
    }

    fn misses(&self) -> u64 {
        self.0.misses.get()
    }

    fn oldest(&self) -> Option<u64> {
        self.0.table.oldest().into_iter().chain(self.0.asked.oldest()).min()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that looked at the drive used to keep its claim for 10 s while it waited for the
    /// lock of a server whose mount needed that claim: `mount` failed at boot, beside an array that
    /// searched the devices for a member.
    #[test]
    fn who_waits_for_the_server_of_a_mount_does_not_claim_the_drive() {
        let path = std::env::temp_dir().join(format!("furrow-claim-{}", std::process::id()));
        std::fs::write(&path, [0; PAGE_SIZE]).expect("a file");
        let number = 0; // Every regular file has this device number.
        let server = open_with(&path, true, OFlags::empty()).expect("a file");
        claim::lock(&server, true).expect("no other lock");
        assert!(try_claim(&path, Access::ReadOnly, &mut None).expect("a claim").is_none());
        assert!(!claim::is_held(number));
        drop(server);
        let held = try_claim(&path, Access::ReadOnly, &mut None).expect("a claim");
        let held = held.expect("no lock");
        assert!(claim::is_held(number));
        drop(held);
        assert!(!claim::is_held(number));
        std::fs::remove_file(&path).expect("ours");
    }
}
