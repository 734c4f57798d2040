//! The array: which drives are its members, what became of them, and who knows of it.
//!
//! Invariant: the array does not know what is in the members' zones, but for their rings.

use crate::array::member::{Errors, Member, MemberState};
use crate::event::{Event, Events};
use crate::level::Placement;
use crate::watchdog::Watchdog;
use furrow_log::Uuid;
use furrow_rt::Notify;
use furrow_zone::ZonedDevice;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub(crate) mod member;

/// What an array is. It is fixed when the array is made.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The array's UUID.
    pub(crate) uuid: Uuid,
    /// Name of the array.
    pub(crate) label: String,
    /// When the array was made, seconds since 1970.
    pub(crate) created: i64,
    /// Its level, and where chunks are.
    pub(crate) placement: Placement,
}

/// What an array counts, as of its assembly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Number of the assembly.
    pub(crate) epoch: u64,
    /// Events so far.
    pub(crate) events: u64,
    /// Number of the next state record.
    pub(crate) records: u64,
}

/// An array in service.
///
/// Invariants
/// - A member has a drive unless it has failed.
/// - `lacking` has exactly the members in state rebuilding.
/// - While `noting` is set, a task records on the remaining members that others have failed.
pub(crate) struct Array {
    identity: Identity,
    epoch: u64,
    members: Vec<Member>,
    /// Members that lack data from before they came, as bits.
    lacking: Cell<u32>,
    events: Cell<u64>,
    records: Cell<u64>,
    /// Drives that claim to be spares of this array and have not been taken.
    spares: RefCell<Vec<Uuid>>,
    news: Events,
    /// A failure is being recorded on the remaining members.
    noting: Cell<bool>,
    noted: Notify,
    watchdog: Watchdog,
}

impl Array {
    /// An array of `members`, whose drives `watchdog` watches.
    pub(crate) fn new(
        identity: Identity,
        counts: Counts,
        members: Vec<Member>,
        watchdog: Watchdog,
    ) -> Array {
        let lack = |(_, member): &(u32, &Member)| member.state() == MemberState::Rebuilding;
        let lacking = (0u32..).zip(&members).filter(lack);
        let lacking = lacking.fold(0, |set, (index, _)| set | 1 << index);
        Array {
            identity,
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
    pub(crate) fn uuid(&self) -> Uuid {
        self.identity.uuid
    }

    /// What the array is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Number of this assembly of the array, from 1.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The members, in order.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// A member.
    pub(crate) fn member(&self, index: u32) -> &Member {
        &self.members[index as usize]
    }

    /// Events so far: changes of the members' drives. It is also the time at which commands are
    /// sent ([`Member::is_former`]).
    pub(crate) fn events(&self) -> u64 {
        self.events.get()
    }

    /// Takes the number of a new state record.
    pub(crate) fn next_record(&self) -> u64 {
        self.records.replace(self.records.get() + 1)
    }

    /// Members that lack data from before they came, as bits.
    pub(crate) fn lacking(&self) -> u32 {
        self.lacking.get()
    }

    /// Whether all data can be read without some of the members.
    pub(crate) fn survives_without(&self, lost: &[u32]) -> bool {
        let placement = &self.identity.placement;
        let up = |index: u32| {
            let state = self.member(index).state();
            state == MemberState::Active && !lost.contains(&index)
        };
        // Rotation brings every drive into every role, so stripe 0 stands for all.
        placement.recoverable(|chunk| up(placement.drive(0, chunk)))
    }

    /// The one place where a member changes its state.
    pub(crate) fn set_state(&self, index: u32, state: MemberState) {
        self.member(index).set_state(state);
        self.lacking.set(match state {
            MemberState::Rebuilding => self.lacking.get() | 1 << index,
            MemberState::Active | MemberState::Failed => self.lacking.get() & !(1 << index),
        });
    }

    /// Takes a member out of service, and reports that. Its drive is closed when the last command
    /// has ended. The event counts only after [`Array::raise_events`].
    pub(crate) fn take_out(&self, index: u32, why: String) {
        self.set_state(index, MemberState::Failed);
        if let Some(drive) = self.member(index).leave(self.events.get()) {
            self.watchdog.forget(&drive.device);
        }
        self.tell(Event::MemberFailed { member: index, why });
    }

    /// Counts an event.
    pub(crate) fn raise_events(&self) {
        self.events.set(self.events.get() + 1);
    }

    /// Puts a drive in the place of member `index`, which is to be rebuilt: an event. Returns the
    /// errors of the drive that was there before.
    pub(crate) fn seat(&self, index: u32, uuid: Uuid, drive: Rc<crate::drive::Drive>) -> Errors {
        self.raise_events();
        let former = self.member(index).seat(uuid, drive, self.events.get());
        self.set_state(index, MemberState::Rebuilding);
        former
    }

    /// Spares that are known and have not been taken.
    pub(crate) fn spares(&self) -> Vec<Uuid> {
        self.spares.borrow().clone()
    }

    /// Adds a spare, unless it is known.
    pub(crate) fn add_spare(&self, uuid: Uuid) {
        let mut spares = self.spares.borrow_mut();
        if !spares.contains(&uuid) {
            spares.push(uuid);
        }
    }

    /// A spare is taken, or is none any more.
    pub(crate) fn remove_spare(&self, uuid: Uuid) {
        self.spares.borrow_mut().retain(|spare| *spare != uuid);
    }

    /// Waits for the next event to report. For one listener.
    pub(crate) async fn next_event(&self) -> Event {
        self.news.next().await
    }

    /// Reports an event.
    pub(crate) fn tell(&self, event: Event) {
        self.news.tell(event);
    }

    /// Watches a drive that may stop answering.
    pub(crate) fn watch(&self, device: &Rc<dyn ZonedDevice>) {
        self.watchdog.add(device);
    }

    /// Watches a drive no longer.
    pub(crate) fn forget(&self, device: &Rc<dyn ZonedDevice>) {
        self.watchdog.forget(device);
    }

    /// The reason why a member's drive was given up, if it was.
    pub(crate) fn given_up(&self, index: u32) -> Option<String> {
        self.member(index).drive().and_then(|drive| self.watchdog.why(&drive.device))
    }

    /// Whether a failure is being recorded on the remaining members.
    pub(crate) fn is_noting(&self) -> bool {
        self.noting.get()
    }

    /// A failure is to be recorded. False if a task does that already.
    pub(crate) fn begin_noting(&self) -> bool {
        !self.noting.replace(true)
    }

    /// Every failure so far is recorded.
    pub(crate) fn end_noting(&self) {
        self.noting.set(false);
        self.noted.notify_all();
    }

    /// Waits until every failure so far may be recorded, or recording may have been given up.
    pub(crate) async fn noted(&self) {
        self.noted.wait().await;
    }

    /// Wakes tasks that wait for failures to be recorded: nothing can be written any more.
    pub(crate) fn give_up_noting(&self) {
        self.noted.notify_all();
    }
}
