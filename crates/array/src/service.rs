//! The array in service: its members, their failures, and the state records that note failures.
//!
//! Invariant: the array does not know the content of its members' zones, except their state rings.

use crate::drive::Drive;
use crate::event::{Event, Events};
use crate::format::kind;
use crate::level::Level;
use crate::member::{Errors, Member, MemberState};
use crate::placement::Placement;
use crate::record::Record;
use crate::watchdog::Watchdog;
use furrow_log::Uuid;
use furrow_log::record::{RecordId, seal};
use furrow_rt::{JoinHandle, Notify, Pool, Rt};
use furrow_zone::{Result, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The identity of an array, which is fixed when the array is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The array's UUID.
    pub uuid: Uuid,
    /// Name of the array.
    pub label: String,
    /// When the array was made, seconds since 1970.
    pub created: i64,
    /// RAID level.
    pub level: Level,
    /// Number of members.
    pub drives: u32,
}

impl Identity {
    /// The placement of the array's chunks on its drives.
    ///
    /// # Errors
    /// `Invalid` if the level does not allow this number of drives.
    pub fn placement(&self) -> Result<Placement> {
        Placement::new(self.level, self.drives)
    }
}

/// The counts with which an assembly continues the array.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Number of this assembly.
    pub epoch: u64,
    /// Number of events so far.
    pub events: u64,
    /// Number of the next state record.
    pub records: u64,
}

/// The part of a state record that the array's user provides.
#[derive(Clone, Debug)]
pub struct State {
    /// Features an older version must refuse.
    pub incompat: u64,
    /// Number of the checkpoint in the payload.
    pub checkpoint: u64,
    /// Whether the array is being stopped cleanly.
    pub clean: bool,
    /// The payload of the array's user.
    pub payload: Rc<[u8]>,
}

/// A state record that is being written to the members.
pub struct Sent {
    /// Number of the state record.
    pub number: u64,
    /// The members to which the record is being written, each with the result to wait for.
    pub flights: Vec<(u32, JoinHandle<Result<()>>)>,
}

/// An array in service.
///
/// Invariants
/// - A member has a drive unless it has failed.
/// - `lacking` has exactly the members in state rebuilding.
/// - While `noting` is set, a task records on the remaining members that others have failed.
pub struct Array {
    identity: Identity,
    placement: Placement,
    epoch: u64,
    members: Vec<Member>,
    /// Members in state rebuilding, as bits.
    lacking: Cell<u32>,
    events: Cell<u64>,
    records: Cell<u64>,
    /// Spares of this array that were found or added and have not been taken.
    spares: RefCell<Vec<Uuid>>,
    news: Events,
    /// Whether a task is recording failures on the remaining members.
    noting: Cell<bool>,
    noted: Notify,
    watchdog: Watchdog,
}

impl Array {
    /// An array of `members`, whose drives `watchdog` watches.
    pub fn new(
        identity: Identity,
        placement: Placement,
        counts: Counts,
        members: Vec<Member>,
        watchdog: Watchdog,
    ) -> Array {
        let lack = |(_, member): &(u32, &Member)| member.state() == MemberState::Rebuilding;
        let lacking = (0u32..).zip(&members).filter(lack);
        let lacking = lacking.fold(0, |set, (index, _)| set | 1 << index);
        Array {
            identity,
            placement,
            epoch: counts.epoch,
            members,
            lacking: Cell::new(lacking),
            events: Cell::new(counts.events),
            records: Cell::new(counts.records),
            spares: RefCell::default(),
            news: Events::default(),
            noting: Cell::new(false),
            noted: Notify::new(),
            watchdog,
        }
    }

    /// The array's UUID.
    #[inline]
    pub fn uuid(&self) -> Uuid {
        self.identity.uuid
    }

    /// The identity of the array.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Number of this assembly of the array, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The members, in order.
    #[inline]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// A member.
    #[inline]
    pub fn member(&self, index: u32) -> &Member {
        &self.members[index as usize]
    }

    /// Number of events so far: each event is a change of a member's drive. The number also serves
    /// as the time at which a command is sent ([`Member::is_former`]).
    #[inline]
    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// Sends a new state record to the drive of every member but `but`. Returns the record's
    /// number, and for each member the result to wait for. For each success, the caller
    /// calls [`Member::note_recorded`].
    pub fn send_records(&self, rt: &Rt, pages: &Pool, but: Option<u32>, state: &State) -> Sent {
        let number = self.records.replace(self.records.get() + 1);
        let (mut flights, members) = (Vec::new(), &self.members);
        for (index, member) in (0u32..).zip(members) {
            let Some(drive) = member.drive().filter(|_| but != Some(index)) else { continue };
            let record = Record {
                identity: self.identity.clone(),
                incompat: state.incompat,
                member: index,
                events: self.events.get(),
                clean: state.clean,
                recorded: rt.wall().0,
                members: members.iter().map(|m| m.entry(number, self.events.get())).collect(),
                payload: state.payload.clone(),
            };
            let id = RecordId {
                kind: kind::STATE,
                epoch: self.epoch,
                checkpoint: state.checkpoint,
                sequence: number,
                device: member.uuid(),
                object: self.identity.uuid,
            };
            let record = seal(&id, &record.encode(), pages);
            flights.push((index, rt.spawn(async move { drive.write_state(record).await })));
        }
        Sent { number, flights }
    }

    /// Members in state rebuilding, as bits.
    #[inline]
    pub fn lacking(&self) -> u32 {
        self.lacking.get()
    }

    /// Whether all data can be read without the members `lost`, and without those out of service
    /// or rebuilding.
    pub fn survives_without(&self, lost: &[u32]) -> bool {
        let placement = &self.placement;
        let up = |index: u32| {
            let state = self.member(index).state();
            state == MemberState::Active && !lost.contains(&index)
        };
        // With rotation every drive plays every role, so stripe 0 stands for all stripes.
        placement.recoverable(|chunk| up(placement.drive(0, chunk)))
    }

    /// Changes a member's state; all changes go through this function.
    pub fn set_state(&self, index: u32, state: MemberState) {
        self.member(index).set_state(state);
        self.lacking.set(match state {
            MemberState::Rebuilding => self.lacking.get() | 1 << index,
            MemberState::Active | MemberState::Failed => self.lacking.get() & !(1 << index),
        });
    }

    /// Takes a member out of service, and reports this event. The member's drive is closed when the
    /// last command to it has ended. The caller counts the event, by [`Array::raise_events`].
    pub fn take_out(&self, index: u32, why: String) {
        self.set_state(index, MemberState::Failed);
        if let Some(drive) = self.member(index).leave(self.events.get()) {
            self.watchdog.forget(&drive.device);
        }
        self.tell(Event::MemberFailed { member: index, why });
    }

    /// Counts an event.
    pub fn raise_events(&self) {
        self.events.set(self.events.get() + 1);
    }

    /// Puts a drive in the place of member `index`, which is to be rebuilt, and counts the event.
    /// Returns the error counts of the former drive.
    pub fn seat(&self, index: u32, uuid: Uuid, drive: Rc<Drive>) -> Errors {
        self.raise_events();
        let former = self.member(index).seat(uuid, drive, self.events.get());
        self.set_state(index, MemberState::Rebuilding);
        former
    }

    /// UUIDs of known spares that have not been taken.
    pub fn spares(&self) -> Vec<Uuid> {
        self.spares.borrow().clone()
    }

    /// Adds a spare, if it is not known yet.
    pub fn add_spare(&self, uuid: Uuid) {
        let mut spares = self.spares.borrow_mut();
        if !spares.contains(&uuid) {
            spares.push(uuid);
        }
    }

    /// Removes a spare, which was taken or is no longer one.
    pub fn remove_spare(&self, uuid: Uuid) {
        self.spares.borrow_mut().retain(|spare| *spare != uuid);
    }

    /// Waits for the next event. Each event goes to one caller only.
    pub async fn next_event(&self) -> Event {
        self.news.next().await
    }

    /// Reports an event.
    pub fn tell(&self, event: Event) {
        self.news.tell(event);
    }

    /// Watches a drive that may stop answering.
    pub fn watch(&self, device: &Rc<dyn ZonedDevice>) {
        self.watchdog.add(device);
    }

    /// Stops watching a drive.
    pub fn forget(&self, device: &Rc<dyn ZonedDevice>) {
        self.watchdog.forget(device);
    }

    /// The reason why a member's drive was given up; `None` if it was not.
    pub fn given_up(&self, index: u32) -> Option<String> {
        self.member(index).drive().and_then(|drive| self.watchdog.why(&drive.device))
    }

    /// Whether a task is recording failures on the remaining members.
    #[inline]
    pub fn is_noting(&self) -> bool {
        self.noting.get()
    }

    /// Requests that a failure be recorded. Returns true if the caller must start the recording
    /// task, false if the task already runs.
    pub fn begin_noting(&self) -> bool {
        !self.noting.replace(true)
    }

    /// Notes that every failure so far is recorded.
    pub fn end_noting(&self) {
        self.noting.set(false);
        self.noted.notify_all();
    }

    /// Waits until failures were recorded or recording was given up. The caller checks which of the
    /// two happened.
    pub async fn noted(&self) {
        self.noted.wait().await;
    }

    /// Wakes the tasks in [`Array::noted`], because nothing can be written any more.
    pub fn give_up_noting(&self) {
        self.noted.notify_all();
    }
}
