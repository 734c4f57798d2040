//! The daemon of an array: engine, NBD server and control socket on one executor, on one thread.
//!
//! Order of starting: drives, array, sockets, and only then `ready`. Order of stopping: clients
//! finish, the volume is stopped cleanly, the sockets are removed, and the end of the process frees
//! the drives.

use super::advice::advise;
use super::devices::{self, same};
use super::metrics;
use super::notice::{Notice, Notices, now};
use super::refused::Quota;
use super::request::Request;
use super::status::{
    Damage, LastRebuild, LostRange, Member, Rebuild, Requests, Scrub, Status, VERSION,
};
use crate::device::fault;
use crate::holds::{self, Holds};
use furrow_control::{Handler, Reply};
use furrow_log::Uuid;
use furrow_nbd::{Counts, Server};
use furrow_raid::{Event, Level, MemberState, Segments, Volume};
use furrow_rt::{Nanos, Notify, Rt, within};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind, Result, ZonedDevice};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Maximum number of events in a status.
const EVENTS: usize = 32;
/// The event of refused clients; a status has at most [`REFUSED_KEPT`] of them.
const REFUSED: &str = "client-refused";
const REFUSED_KEPT: usize = 4;
/// Maximum number of damaged blocks that a status lists.
const FINDINGS: usize = 1000;
/// Nanoseconds that a stop waits until no client is connected: the server notices a disconnection
/// only some time after the client has disconnected.
const LEAVING: u64 = Nanos::SECOND;
/// Nanoseconds that a volume may take to stop; a volume whose drives are gone may never manage it.
pub const STOP_PATIENCE: u64 = 120 * Nanos::SECOND;
/// Longest time for hooks after the array has stopped.
const HOOKS_AT_END: Duration = Duration::from_secs(10);

/// The volume as a block device of the kernel.
pub type BlockDevice = furrow_ublk::Server<furrow_ublk::Exported>;

/// A drive the daemon has open.
#[derive(Clone)]
pub struct Drive {
    /// The drive's spec.
    pub spec: DeviceSpec,
    /// The open drive.
    pub device: Rc<dyn ZonedDevice>,
}

/// A member that the array counted on, but was started without.
pub struct Absent {
    /// UUID of the member's drive.
    pub uuid: Uuid,
    /// The reason why the member is missing.
    pub why: String,
    /// The drive of the member, if it was seen although nobody named it.
    pub unnamed: Option<DeviceSpec>,
}

/// A served array.
pub struct Daemon {
    rt: Rt,
    name: String,
    volume: Volume,
    server: Server<Volume>,
    /// The kernel's block device of the volume.
    block_device: RefCell<Option<BlockDevice>>,
    read_only: bool,
    /// The drive of each member, in the order of members; for a failed member its former drive.
    drives: RefCell<Vec<Option<Drive>>>,
    spares: RefCell<VecDeque<Drive>>,
    absent: Vec<Absent>,
    scrub: RefCell<Option<Scrub>>,
    /// Notified when a scrub has ended.
    scrub_over: Notify,
    /// Damaged blocks that the last scrub found and could have repaired, but did not.
    damaged: Cell<u64>,
    /// Seconds since 1970: of the start, and of the moment since which errors and losses are known.
    started: u64,
    known_since: Cell<u64>,
    events: RefCell<VecDeque<Notice>>,
    notices: RefCell<Option<Notices>>,
    /// Notified when the daemon is to stop.
    pub stop: Notify,
    stopping: Cell<bool>,
    ended: RefCell<Option<std::result::Result<(), String>>>,
    end: Notify,
}

/// The components of a daemon.
pub struct Parts {
    /// Name of the array.
    pub name: String,
    /// The array.
    pub volume: Volume,
    /// The NBD server of the array's export.
    pub server: Server<Volume>,
    /// The kernel's block device of the volume.
    pub block_device: Option<BlockDevice>,
    /// Clients may not write.
    pub read_only: bool,
    /// The members' drives, by member.
    pub drives: Vec<Option<Drive>>,
    /// Spare drives.
    pub spares: Vec<Drive>,
    /// The recipients of events.
    pub notices: Notices,
    /// Members that the array was started without.
    pub absent: Vec<Absent>,
}

impl Daemon {
    /// Makes a daemon of `parts`. The daemon begins to monitor the array at once.
    pub fn start(rt: &Rt, parts: Parts) -> Rc<Daemon> {
        let Parts { name, volume, server, block_device, read_only, absent, .. } = parts;
        let (drives, spares, notices) = (parts.drives, parts.spares, parts.notices);
        let daemon = Rc::new(Daemon {
            rt: rt.clone(),
            name,
            volume,
            server,
            block_device: RefCell::new(block_device),
            read_only,
            drives: RefCell::new(drives),
            spares: RefCell::new(spares.into()),
            absent,
            scrub: RefCell::default(),
            scrub_over: Notify::new(),
            damaged: Cell::new(0),
            started: now(),
            known_since: Cell::new(now()),
            events: RefCell::default(),
            notices: RefCell::new(Some(notices)),
            stop: Notify::new(),
            stopping: Cell::new(false),
            ended: RefCell::default(),
            end: Notify::new(),
        });
        rt.spawn_detached(daemon.clone().watch());
        rt.spawn_detached(daemon.clone().watch_refusals());
        daemon
    }

    /// The drives in service, and spares.
    pub fn drives(&self) -> Vec<DeviceSpec> {
        let (drives, spares) = (self.drives.borrow(), self.spares.borrow());
        drives.iter().flatten().chain(spares.iter()).map(|drive| drive.spec.clone()).collect()
    }

    /// Sends a notice.
    pub fn note(&self, event: &str, member: Option<u32>, text: String) {
        let notice = Notice::new(event, member, text);
        if let Some(notices) = &*self.notices.borrow() {
            notices.tell(&notice);
        }
        keep(&mut self.events.borrow_mut(), notice);
    }

    /// Handles every event of the volume, and replaces failed members by spares.
    async fn watch(self: Rc<Daemon>) {
        self.use_spares().await;
        loop {
            let event = self.volume.next_event().await;
            self.note(event.name(), event.member(), event.to_string());
            if matches!(event, Event::MemberFailed { .. }) {
                self.use_spares().await;
            }
        }
    }

    /// Reports refused clients.
    async fn watch_refusals(self: Rc<Daemon>) {
        let mut quota = Quota::default();
        loop {
            let next = self.server.next_refusal();
            let next = match quota.left(self.rt.now()) {
                None => Some(next.await),
                Some(left) => within(&self.rt, left, next).await,
            };
            match next {
                Some((refusal, before)) => {
                    if quota.add(self.rt.now(), before) {
                        self.note(REFUSED, None, refusal.text);
                    }
                }
                None => match quota.end() {
                    0 => {}
                    many => {
                        let text = format!(
                            "{many} more clients were refused: the metrics count them by reason"
                        );
                        self.note(REFUSED, None, text);
                    }
                },
            }
        }
    }

    /// Replaces failed members by spares, as long as there are any.
    async fn use_spares(&self) {
        let failed = |(index, (_, state, _)): (usize, &(_, MemberState, _))| {
            (*state == MemberState::Failed).then_some(index as u32)
        };
        for member in self.volume.members().iter().enumerate().filter_map(failed) {
            while self.volume.failed().is_none() && !self.stopping.get() {
                let Some(spare) = self.spares.borrow_mut().pop_front() else { return };
                let name = spare.spec.to_string();
                match self.volume.take_spare(member, spare.device.clone()).await {
                    Ok(()) => {
                        self.drives.borrow_mut()[member as usize] = Some(spare);
                        let text = format!("the spare {name} takes the place of member {member}");
                        self.note("spare-taken", Some(member), text);
                        break;
                    }
                    Err(error) => {
                        let text = format!("the spare {name} cannot be used: {error}");
                        self.note("spare-refused", Some(member), text);
                    }
                }
            }
        }
    }

    /// Ends the service: clients finish, then the volume is stopped cleanly.
    ///
    /// # Errors
    /// Why the volume could not be stopped cleanly.
    pub async fn shut_down(&self) -> std::result::Result<(), String> {
        self.stopping.set(true);
        self.volume.stop_scrub();
        // A drive that does not answer may block requests forever.
        let block_device = self.block_device.take();
        if let Some(device) = block_device {
            let stopped = within(&self.rt, STOP_PATIENCE, device.stop()).await;
            if let Some(Err(error)) = stopped {
                self.note("block-device-left", None, error.to_string());
            }
        }
        let _ = within(&self.rt, STOP_PATIENCE, self.server.shutdown()).await;
        let _ = within(&self.rt, STOP_PATIENCE, self.scrub_ended()).await;
        let stopped = within(&self.rt, STOP_PATIENCE, self.volume.stop()).await;
        let forgotten = super::status::describe_forgotten(self.volume.lost().0);
        let forgotten = forgotten.map_or_else(String::new, |what| format!("; {what}"));
        let result = match (stopped, self.volume.failed()) {
            (Some(Ok(())), _) => Ok(()),
            (_, Some(error)) | (Some(Err(error)), _) => Err(error.to_string()),
            (None, None) => Err("it takes too long".to_owned()),
        };
        match &result {
            Ok(()) => self.note("stopped", None, format!("stopped in order{forgotten}")),
            Err(error) => {
                let text = format!("stopped, not in order: {error}{forgotten}");
                self.note("stopped", None, text);
            }
        }
        // The array stays visible until its notices are delivered, since its daemon still exists.
        let notices = self.notices.borrow_mut().take();
        if let Some(ending) = notices.map(|notices| notices.end(HOOKS_AT_END)) {
            while !ending.is_over() {
                self.rt.sleep(Nanos::MILLI).await;
            }
        }
        *self.ended.borrow_mut() = Some(result.clone());
        self.end.notify_all();
        result
    }

    /// Waits until no scrub runs.
    async fn scrub_ended(&self) {
        while self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.running) {
            self.scrub_over.wait().await;
        }
    }

    /// The state of the array.
    pub fn status(&self) -> Status {
        let (volume, server) = (&self.volume, self.server.status());
        let drives = self.drives.borrow();
        let members: Vec<Member> = (0u32..)
            .zip(volume.members())
            .map(|(member, (uuid, state, errors))| {
                let drive = drives[member as usize].as_ref();
                let state = match state {
                    MemberState::Active => "online",
                    MemberState::Rebuilding => "rebuilding",
                    MemberState::Failed if drive.is_none() => "missing",
                    MemberState::Failed => "failed",
                };
                let absent = self.absent.iter().find(|absent| absent.uuid == uuid);
                Member {
                    member,
                    absent: absent.map(|absent| absent.why.clone()),
                    unnamed: absent.and_then(|absent| Some(absent.unnamed.as_ref()?.to_string())),
                    uuid: uuid.to_string(),
                    device: drive.map(|drive| drive.spec.to_string()),
                    state: state.to_owned(),
                    read_errors: errors.read,
                    write_errors: errors.write,
                    checksum_errors: errors.checksum,
                }
            })
            .collect();
        let rebuild = self.rebuild_status();
        let down = members.iter().filter(|member| member.state != "online").count() as u32;
        let placement = volume.shape().placement;
        let may_fail = match placement.level {
            Level::Raid01 => u32::from(down == 0),
            _ => placement.tolerates().saturating_sub(down),
        };
        let (lost_blocks, lost) = volume.lost();
        let range =
            |range: &Range<u64>| LostRange { first: range.start, blocks: range.end - range.start };
        let mut listening = server.listening.clone();
        listening.extend(self.block_device.borrow().iter().map(|d| d.device().to_string()));
        let mut status = Status {
            version: VERSION,
            array: self.name.clone(),
            uuid: volume.uuid().to_string(),
            pid: std::process::id(),
            level: placement.level.name().to_owned(),
            state: if down == 0 { "online" } else { "degraded" }.to_owned(),
            error: volume.failed().map(|error| error.to_string()),
            out_of_space: volume.out_of_space().map(|error| error.to_string()),
            problem: None,
            action: None,
            started: self.started,
            known_since: self.known_since.get(),
            size_bytes: volume.blocks() * 4096,
            used_bytes: volume.used() * 4096,
            map_memory_bytes: volume.memory().0 as u64,
            map_memory_limit_bytes: volume.map_memory_limit(),
            table_memory_bytes: volume.memory().1 as u64,
            lost_blocks,
            lost: lost.iter().take(FINDINGS).map(range).collect(),
            damaged_blocks: self.damaged.get(),
            may_fail: if volume.failed().is_some() { 0 } else { may_fail },
            read_only: self.read_only,
            listening,
            clients: server.connections.len() as u64,
            members,
            spares: self.spares.borrow().iter().map(|spare| spare.spec.to_string()).collect(),
            rebuild,
            last_rebuild: volume.last_rebuild().map(|event| LastRebuild {
                ok: event == Event::RebuildFinished,
                text: event.to_string(),
            }),
            scrub: self.scrub.borrow().clone(),
            counters: volume.counters().each().iter().map(|c| (c.0.to_owned(), c.2)).collect(),
            segments: segments(volume.segments()),
            requests: requests(&server),
            events: self.events.borrow().iter().cloned().collect(),
        };
        advise(&mut status);
        if self.stopping.get() {
            status.state = "stopping".to_owned();
            status.action = Some("wait: it ends when everything is durable".to_owned());
        }
        status
    }

    fn rebuild_status(&self) -> Option<Rebuild> {
        let running = self.volume.rebuilding().is_some();
        let progress = self.volume.rebuilt()?;
        let seconds = |nanoseconds: u64| nanoseconds as f64 / Nanos::SECOND as f64;
        Some(Rebuild {
            running,
            segments: progress.total,
            segments_done: progress.done,
            percent: percent(progress.done, progress.total),
            seconds: seconds(progress.elapsed),
            seconds_left: progress.remaining().map(seconds),
            pause_us: self.volume.rebuild_pause() / 1000,
        })
    }

    /// The number of the member that `name` stands for; `name` is a number or a drive.
    fn member(&self, name: &str) -> Result<u32> {
        let drives = self.drives.borrow();
        if let Ok(number) = name.parse::<u32>()
            && (number as usize) < drives.len()
        {
            return Ok(number);
        }
        if let Ok(spec) = name.parse::<DeviceSpec>() {
            let is = |drive: &Option<Drive>| drive.as_ref().is_some_and(|d| same(&d.spec, &spec));
            if let Some(index) = drives.iter().position(is) {
                return Ok(index as u32);
            }
        }
        let message = format!(
            "{} has no member {name}: members are 0 to {}, or named by their drives",
            self.name,
            drives.len() - 1
        );
        Err(Error::new(ErrorKind::NotFound, message))
    }

    /// Opens a drive for the array. If it is the former drive of a failed member, it is still
    /// open here.
    fn open(&self, device: &str) -> Result<Drive> {
        let spec: DeviceSpec = device.parse().map_err(Error::from)?;
        devices::check_lasting(&spec)?;
        let refuse = |kind, what: &str| Err(Error::new(kind, format!("{device}: {what}")));
        if self.spares.borrow().iter().any(|spare| same(&spare.spec, &spec)) {
            let what = "is a spare of this array already, for the next member that fails";
            return refuse(ErrorKind::Busy, what);
        }
        let drives = self.drives.borrow();
        let members = self.volume.members();
        for (drive, (_, state, _)) in drives.iter().zip(&members) {
            let Some(drive) = drive.as_ref().filter(|drive| same(&drive.spec, &spec)) else {
                continue;
            };
            if *state != MemberState::Failed {
                let what = "is a member of this array, in service: choose an empty drive";
                return refuse(ErrorKind::Busy, what);
            }
            // Commands that were sent to the drive as the failed member must not reach it as the
            // new one.
            if Rc::strong_count(&drive.device) > 1 {
                return refuse(ErrorKind::Busy, "commands to it are still under way: try again");
            }
            return Ok(drive.clone());
        }
        let opened = holds::open(&self.rt, &spec, Access::ReadWrite);
        let device = opened.map_err(|error| match error.kind() {
            // A drive that does not exist must not be created as an empty one: its name may
            // be mistyped.
            ErrorKind::NotFound => {
                let what = format!("{device}: there is no such drive: check the name");
                Error::new(ErrorKind::NotFound, what)
            }
            _ => error,
        })?;
        Ok(Drive { spec, device })
    }

    /// Adds the content of a drive to the `error` that the drive is not empty. For a former member
    /// of this array the advice is `--force`: no command can use the old content of such a drive.
    async fn explain_used(&self, device: &dyn ZonedDevice, error: Error) -> Error {
        if error.kind() == ErrorKind::Exists
            && let Ok(Holds::Member(examined)) = Holds::of(device).await
            && examined.array == self.volume.uuid()
            && let Some(member) = examined.member
        {
            let what = format!(
                "{}: not empty: it was member {member} of this array, which has gone on without \
                 it: --force takes it as a new drive, and erases it",
                device.name()
            );
            return Error::new(ErrorKind::Exists, what);
        }
        holds::explain_used(device, error).await
    }

    async fn replace(&self, member: &str, device: &str, force: bool) -> Result<Value> {
        let index = self.member(member)?;
        device.parse::<DeviceSpec>().map_err(Error::from)?;
        self.check_replaced(index)?;
        let drive = self.open(device)?;
        if let Err(error) = self.volume.replace(index, drive.device.clone(), force).await {
            return Err(self.explain_used(&*drive.device, error).await);
        }
        self.drives.borrow_mut()[index as usize] = Some(drive);
        // Whoever waits for the rebuild must be able to tell this drive from a later replacement.
        Ok(json!({ "member": index, "uuid": self.volume.members()[index as usize].0.to_string() }))
    }

    /// Refuses to replace a member that is in service, and says what can be done instead.
    fn check_replaced(&self, index: u32) -> Result<()> {
        let in_service = self.volume.members()[index as usize].1 != MemberState::Failed;
        if !in_service || self.volume.failed().is_some() {
            return Ok(());
        }
        let name = &self.name;
        let what = self.why_needed(index).unwrap_or_else(|| {
            format!(
                "take it out first: furrow raid fail {name} {index} (until the rebuild has ended, \
                 one drive less may fail)"
            )
        });
        let what = format!("member {index} of {name} is in service: {what}");
        Err(Error::new(ErrorKind::Invalid, what))
    }

    /// Why the array cannot do without a member, and what can be done about it; `None` if it can.
    fn why_needed(&self, index: u32) -> Option<String> {
        if self.volume.can_do_without(index) {
            return None;
        }
        let members = self.volume.members();
        let other = |state| (0..).zip(&members).find(|(at, m)| *at != index && m.1 == state);
        let name = &self.name;
        let (failed, rebuilding) = (other(MemberState::Failed), other(MemberState::Rebuilding));
        let why = match (failed, rebuilding) {
            (Some((other, _)), _) => {
                format!("replace member {other} first: furrow raid replace {name} {other} DEV")
            }
            (_, Some(_)) => format!("wait for the rebuild: furrow raid rebuild {name} --wait"),
            _ => "its level has no redundancy: copy the data to another array".to_owned(),
        };
        Some(format!("the array cannot do without member {index}: {why}"))
    }

    async fn fail(&self, member: &str) -> Result<Value> {
        let index = self.member(member)?;
        match self.why_needed(index).filter(|_| self.volume.failed().is_none()) {
            Some(why) => Err(Error::new(ErrorKind::Invalid, why)),
            None => self.volume.fail(index).await.map(|()| json!({})),
        }
    }

    async fn add_spare(&self, device: &str, force: bool) -> Result<Value> {
        let drive = self.open(device)?;
        if let Err(error) = self.volume.add_spare(drive.device.clone(), force).await {
            return Err(self.explain_used(&*drive.device, error).await);
        }
        self.note("spare-added", None, format!("{} is a spare", drive.spec));
        self.spares.borrow_mut().push_back(drive);
        self.use_spares().await;
        Ok(json!({}))
    }

    fn rebuild(&self, pause_us: Option<u64>) -> Result<Value> {
        if let Some(pause) = pause_us {
            self.volume.set_rebuild_pause(pause.saturating_mul(1000));
        }
        let waits = |(_, state, _): &(_, MemberState, _)| *state == MemberState::Rebuilding;
        if !self.volume.members().iter().any(waits) && pause_us.is_none() {
            let message = "nothing is to be rebuilt: furrow raid replace puts a drive in the place \
                           of a failed one";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.volume.start_rebuild();
        Ok(json!({}))
    }

    /// Begins a scrub.
    fn begin_scrub(self: &Rc<Self>, repair: bool) -> Result<Value> {
        if self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.running) {
            return Err(Error::new(ErrorKind::Busy, "a scrub is running already"));
        }
        if let Some(error) = self.volume.failed() {
            return Err(error);
        }
        *self.scrub.borrow_mut() = Some(Scrub { running: true, repair, ..Scrub::default() });
        let text = if repair { "a scrub that mends begins" } else { "a scrub begins" };
        self.note("scrub-started", None, text.to_owned());
        self.rt.spawn_detached(self.clone().scrub(repair));
        Ok(json!({}))
    }

    /// Stops the running scrub; its findings so far stay visible.
    fn stop_scrub(&self) -> Result<Value> {
        if !self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.running) {
            return Err(Error::new(ErrorKind::Invalid, "no scrub is running"));
        }
        self.volume.stop_scrub();
        Ok(json!({}))
    }

    /// Clears errors and records of damage.
    fn clear(&self) -> Result<Value> {
        if self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.running) {
            let message = "a scrub is running: stop it first, or wait for it";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        self.volume.clear();
        self.damaged.set(0);
        self.known_since.set(now());
        *self.scrub.borrow_mut() = None;
        self.note("cleared", None, "errors and known damage are cleared".to_owned());
        Ok(json!({}))
    }

    async fn scrub(self: Rc<Self>, repair: bool) {
        let (began, progress) = (self.rt.now(), self.clone());
        let result = self.volume.scrub(repair, |done, total| progress.scrubbed(began, done, total));
        let result = result.await;
        let mut scrub = self.scrub.borrow().clone().unwrap_or_default();
        scrub.running = false;
        scrub.seconds = self.rt.now().since(began) as f64 / Nanos::SECOND as f64;
        scrub.seconds_left = None;
        match result {
            Ok(found) => {
                scrub.blocks = found.blocks;
                scrub.damaged = found.findings.len() as u64;
                // A scrub that was stopped may have missed what an earlier scrub has found.
                let left = found.findings.iter().filter(|f| !f.repaired && !f.lost).count() as u64;
                self.damaged.set(if found.stopped { self.damaged.get().max(left) } else { left });
                scrub.mendable = left;
                scrub.repaired = found.findings.iter().filter(|f| f.repaired).count() as u64;
                scrub.lost = found.lost;
                let drives = self.drives.borrow();
                let members = self.volume.members();
                let here = |finding: &furrow_raid::Finding| {
                    let member = finding.member as usize;
                    // By now another drive may have taken the place of the damaged drive.
                    drives[member].as_ref().filter(|_| members[member].0 == finding.drive)
                };
                let damage = |finding: &furrow_raid::Finding| Damage {
                    member: finding.member,
                    device: here(finding).map(|drive| drive.spec.to_string()),
                    zone: finding.zone.0,
                    block: finding.block,
                    what: finding.what.to_owned(),
                    repaired: finding.repaired,
                    lost: finding.lost,
                };
                scrub.stopped = found.stopped;
                scrub.findings = found.findings.iter().take(FINDINGS).map(damage).collect();
            }
            Err(error) => scrub.error = Some(error.to_string()),
        }
        let event = if scrub.damaged > 0 { "scrub-damaged" } else { "scrub-finished" };
        let text = format!("scrub: {}", super::status::describe_scrub(&self.name, &scrub));
        *self.scrub.borrow_mut() = Some(scrub);
        self.scrub_over.notify_all();
        self.note(event, None, text);
    }

    fn scrubbed(&self, began: Nanos, done: u32, total: u32) {
        if let Some(scrub) = &mut *self.scrub.borrow_mut() {
            scrub.segments = total;
            scrub.segments_done = done;
            scrub.percent = percent(done, total);
            scrub.seconds = self.rt.now().since(began) as f64 / Nanos::SECOND as f64;
            let each = (done > 0).then(|| scrub.seconds / f64::from(done));
            scrub.seconds_left = each.map(|each| each * f64::from(total - done));
        }
    }

    async fn end(&self, force: bool) -> std::result::Result<Value, String> {
        let clients = || match force || self.stopping.get() {
            true => 0,
            false => self.server.status().connections.len(),
        };
        let until = self.rt.now().after(LEAVING);
        while clients() > 0 && self.rt.now() < until {
            self.rt.sleep(LEAVING / 50).await;
        }
        let clients = clients();
        if clients > 0 {
            return Err(format!(
                "{}: in use by {}: disconnect, or use --force",
                self.name,
                crate::show::count(clients as u64, "client")
            ));
        }
        self.stop.notify_all();
        loop {
            if let Some(result) = self.ended.borrow().clone() {
                return result
                    .map(|()| json!({}))
                    .map_err(|error| format!("{}: stopped, but not in order: {error}", self.name));
            }
            self.end.wait().await;
        }
    }

    fn fault(&self, member: Option<&str>, words: &[String]) -> anyhow::Result<Value> {
        let chosen = member.map(|member| self.member(member)).transpose()?;
        let mut text = Vec::new();
        for (index, drive) in self.drives.borrow().iter().enumerate() {
            let Some(drive) = drive.as_ref() else { continue };
            if chosen.is_none_or(|chosen| chosen as usize == index) {
                let (name, seed) = (drive.spec.to_string(), self.rt.random());
                fault::apply_words(&*drive.device, &name, words, seed, &mut text)?;
            }
        }
        Ok(json!(String::from_utf8_lossy(&text)))
    }
}

/// Adds a notice to the list of the last ones. A refused client only replaces another refused
/// client: since anybody can cause such notices, they must not displace other events.
fn keep(events: &mut VecDeque<Notice>, notice: Notice) {
    let is_refused = |one: &Notice| one.event == REFUSED;
    let refused = events.iter().filter(|one| is_refused(one)).count();
    if is_refused(&notice) && refused == REFUSED_KEPT {
        let oldest = events.iter().position(is_refused);
        oldest.map(|oldest| events.remove(oldest));
    } else if events.len() == EVENTS {
        events.pop_front();
    }
    events.push_back(notice);
}

fn percent(done: u32, of: u32) -> f64 {
    if of == 0 { 100.0 } else { f64::from(done) * 100.0 / f64::from(of) }
}

impl Handler for Daemon {
    type Request = Request;
    type Session = ();

    async fn answer(
        self: Rc<Self>,
        request: Request,
        (): &mut (),
    ) -> std::result::Result<Reply, String> {
        let done = match request {
            Request::Status => {
                let status = serde_json::to_value(self.status());
                return status.map(Reply::from).map_err(|error| error.to_string());
            }
            Request::Metrics => {
                let text = metrics::text(&self.status(), &self.volume.counters());
                let server = self.server.status();
                let text = text + &server.prometheus(&[("array", &self.name)]);
                return Ok(json!(text).into());
            }
            Request::Stop { force } => return self.end(force).await.map(Reply::from),
            Request::Fault { member, words } => {
                let text = self.fault(member.as_deref(), &words);
                return text.map(Reply::from).map_err(|error| format!("{error:#}"));
            }
            _ if self.stopping.get() => {
                Err(Error::new(ErrorKind::Busy, "the array is being stopped"))
            }
            Request::Fail { member } => self.fail(&member).await,
            Request::Replace { member, device, force } => {
                self.replace(&member, &device, force).await
            }
            Request::AddSpare { device, force } => self.add_spare(&device, force).await,
            Request::Rebuild { pause_us } => self.rebuild(pause_us),
            Request::Scrub { repair } => self.begin_scrub(repair),
            Request::StopScrub => self.stop_scrub(),
            Request::Clear => self.clear(),
        };
        done.map(Reply::from).map_err(|error| error.to_string())
    }

    fn is_over(&self) -> bool {
        self.ended.borrow().is_some()
    }
}

fn segments(all: Segments) -> BTreeMap<String, u64> {
    let Segments { free, open, sealed, truncated, releasing } = all;
    let states = [
        ("free", free),
        ("open", open),
        ("sealed", sealed),
        ("truncated", truncated),
        ("releasing", releasing),
    ];
    states.map(|(state, count)| (state.to_owned(), u64::from(count))).into()
}

/// The sum of the requests to all exports.
fn requests(server: &furrow_nbd::Status) -> BTreeMap<String, Requests> {
    let sum = |of: fn(&Counts) -> (u64, u64)| {
        let each = server.exports.iter().map(|export| of(&export.counts));
        let (count, total_ns) = each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Requests { count, total_ns }
    };
    BTreeMap::from([
        ("read".to_owned(), sum(|counts| (counts.reads, counts.read_ns))),
        ("write".to_owned(), sum(|counts| (counts.writes, counts.write_ns))),
        ("flush".to_owned(), sum(|counts| (counts.flushes, counts.flush_ns))),
    ])
}

/// Opens the drives of members or spares for a daemon.
///
/// # Errors
/// As [`devices::open`].
pub fn open_drive(rt: &Rt, spec: &DeviceSpec, patience: Duration) -> Result<Drive> {
    Ok(Drive { spec: spec.clone(), device: devices::open(rt, spec, patience)? })
}
