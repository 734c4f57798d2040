//! The host of an array: its members, spares, scrubs, events and control socket.
//!
//! Clients use the array through a [`Service`], whose kind the host does not know. Order of
//! stopping: the service's clients finish, the volume is stopped cleanly, the sockets are removed,
//! and the end of the process frees the drives.

mod members;
mod report;
mod requests;
mod scrub;
mod spares;

use super::devices;
use super::notice::{Notice, Notices, now};
use super::refused::Quota;
use super::status::{Requests, Scrub};
use furrow_log::Uuid;
use furrow_raid::{Event, Volume};
use furrow_rt::{Boxed, Nanos, Notify, Rt, within};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Result, ZoneId, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Maximum number of events in a status.
const EVENTS: usize = 32;
/// Name of the event of a refused client; a status has at most [`REFUSED_KEPT`] such events.
const REFUSED: &str = "client-refused";
const REFUSED_KEPT: usize = 4;
/// Nanoseconds that a volume, or its service, may take to stop; if drives do not answer, the stop
/// may never end.
pub const STOP_PATIENCE: u64 = 120 * Nanos::SECOND;
/// Longest time for hooks after the array has stopped.
const HOOKS_AT_END: Duration = Duration::from_secs(10);

/// Receives the name and the text of an event.
pub type Note<'a> = &'a dyn Fn(&str, String);

/// The service that the clients of an array use.
pub trait Service {
    /// The addresses at which clients find the service.
    fn places(&self) -> Vec<String>;

    /// The number of connected clients.
    fn clients(&self) -> usize;

    /// Whether clients may only read.
    fn is_read_only(&self) -> bool;

    /// The requests of clients by kind.
    fn requests(&self) -> BTreeMap<String, Requests>;

    /// The metrics of the service, as Prometheus text with the array's name as a label.
    fn metrics(&self, array: &str) -> String;

    /// Waits until a client is refused. Returns the reason, and the number of earlier refusals that
    /// no call has returned.
    fn next_refusal(&self) -> Boxed<'_, (String, u64)>;

    /// Ends the service once its clients have finished, and reports problems to `note`.
    fn end<'a>(&'a self, note: Note<'a>) -> Boxed<'a, ()>;
}

/// A drive the daemon has open.
#[derive(Clone)]
pub struct Drive {
    /// The drive's spec.
    pub spec: DeviceSpec,
    /// The open drive.
    pub device: Rc<dyn ZonedDevice>,
}

/// A member without which the array was started, although the newest state record has it
/// in service.
pub struct Absent {
    /// UUID of the member's drive.
    pub uuid: Uuid,
    /// The reason why the member is missing.
    pub why: String,
    /// The drive of the member, if it was seen although it was not named.
    pub unnamed: Option<DeviceSpec>,
}

/// A running array, with its service, drives, scrub and events.
pub struct ArrayHost {
    rt: Rt,
    name: String,
    volume: Volume,
    service: Box<dyn Service>,
    /// The drive of each member, in the order of members; for a failed member its former drive.
    drives: RefCell<Vec<Option<Drive>>>,
    spares: RefCell<VecDeque<Drive>>,
    /// Spec of the spare that is about to take a member's place.
    taken: RefCell<Option<(u32, String)>>,
    absent: Vec<Absent>,
    stale: Vec<(Uuid, DeviceSpec)>,
    scrub: RefCell<Option<Scrub>>,
    /// Notified when a scrub has ended.
    scrub_over: Notify,
    /// The damaged blocks that scrubs found and could have repaired, but did not: UUID of the
    /// drive, zone, and block in the zone.
    damaged: RefCell<BTreeSet<(Uuid, ZoneId, u32)>>,
    /// Time of the start, and time since which errors and losses are known, in seconds since 1970.
    started: u64,
    known_since: Cell<u64>,
    events: RefCell<VecDeque<Notice>>,
    notices: RefCell<Option<Notices>>,
    /// Notified when the host is to stop.
    pub stop: Notify,
    stopping: Cell<bool>,
    ended: RefCell<Option<std::result::Result<(), String>>>,
    end: Notify,
}

/// The components of a host.
pub struct Parts {
    /// Name of the array.
    pub name: String,
    /// The array.
    pub volume: Volume,
    /// The service that clients use.
    pub service: Box<dyn Service>,
    /// The members' drives, by member.
    pub drives: Vec<Option<Drive>>,
    /// Spare drives.
    pub spares: Vec<Drive>,
    /// The recipients of events.
    pub notices: Notices,
    /// Members that the array was started without.
    pub absent: Vec<Absent>,
    /// Former drives of members that the assembly left out: UUID and drive.
    pub stale: Vec<(Uuid, DeviceSpec)>,
}

impl ArrayHost {
    /// Makes a host of `parts`. The host begins to monitor the array at once.
    pub fn start(rt: &Rt, parts: Parts) -> Rc<ArrayHost> {
        let Parts { name, volume, service, drives, spares, notices, absent, stale } = parts;
        let host = Rc::new(ArrayHost {
            rt: rt.clone(),
            name,
            volume,
            service,
            drives: RefCell::new(drives),
            spares: RefCell::new(spares.into()),
            taken: RefCell::default(),
            absent,
            stale,
            scrub: RefCell::default(),
            scrub_over: Notify::new(),
            damaged: RefCell::default(),
            started: now(),
            known_since: Cell::new(now()),
            events: RefCell::default(),
            notices: RefCell::new(Some(notices)),
            stop: Notify::new(),
            stopping: Cell::new(false),
            ended: RefCell::default(),
            end: Notify::new(),
        });
        rt.spawn_detached(host.clone().watch());
        rt.spawn_detached(host.clone().watch_refusals());
        host
    }

    /// The specs of the members' drives, including the former drives of failed members, and of
    /// the spares.
    pub fn drives(&self) -> Vec<DeviceSpec> {
        let (drives, spares) = (self.drives.borrow(), self.spares.borrow());
        drives.iter().flatten().chain(spares.iter()).map(|drive| drive.spec.clone()).collect()
    }

    /// Sends a notice to its recipients, and keeps it for the status.
    pub fn note(&self, event: &str, member: Option<u32>, text: String) {
        let notice = Notice::new(event, member, text);
        if let Some(notices) = &*self.notices.borrow() {
            notices.tell(&notice);
        }
        keep(&mut self.events.borrow_mut(), notice);
    }

    /// Handles every event of the volume, and replaces failed members by spares.
    async fn watch(self: Rc<ArrayHost>) {
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
    async fn watch_refusals(self: Rc<ArrayHost>) {
        let mut quota = Quota::default();
        loop {
            let next = self.service.next_refusal();
            let next = match quota.left(self.rt.now()) {
                None => Some(next.await),
                Some(left) => within(&self.rt, left, next).await,
            };
            match next {
                Some((text, before)) => {
                    if quota.add(self.rt.now(), before) {
                        self.note(REFUSED, None, text);
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

    /// Ends the service: clients finish, then the volume is stopped cleanly.
    ///
    /// # Errors
    /// The reason why the volume could not be stopped cleanly.
    pub async fn shut_down(&self) -> std::result::Result<(), String> {
        self.stopping.set(true);
        self.volume.stop_scrub();
        self.service.end(&|event, text| self.note(event, None, text)).await;
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
            Ok(()) => self.note("stopped", None, format!("stopped cleanly{forgotten}")),
            Err(error) => {
                let text = format!("stopped, but not cleanly: {error}{forgotten}");
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
}

/// Adds a notice to the list of the last ones. The list holds at most [`REFUSED_KEPT`] notices of
/// refused clients; a further one replaces the oldest of them. Anyone can cause such notices, so
/// they must not displace other events.
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

/// Opens the drive of a member or spare for a daemon.
///
/// # Errors
/// The errors of [`devices::open`].
pub fn open_drive(rt: &Rt, spec: &DeviceSpec, patience: Duration) -> Result<Drive> {
    Ok(Drive { spec: spec.clone(), device: devices::open(rt, spec, patience)? })
}
