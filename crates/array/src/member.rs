//! A member of the array: its drive, its state, and its errors.

use crate::drive::Drive;
use crate::format::{self, MemberEntry};
use furrow_log::Uuid;
use furrow_log::budget::{Class, Permit};
use furrow_rt::{Notify, either};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zerocopy::FromZeros;

/// State of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// In service.
    Active,
    /// Out of service: its data is stale.
    Failed,
    /// In service for new data; a rebuild restores the older data on it.
    Rebuilding,
}

impl MemberState {
    /// The state that a byte in a record stands for.
    pub fn from_byte(byte: u8) -> Option<MemberState> {
        use MemberState::{Active, Failed, Rebuilding};
        [Active, Failed, Rebuilding].get(usize::from(byte)).copied()
    }

    /// The byte that stands for the state in records.
    pub fn byte(self) -> u8 {
        match self {
            MemberState::Active => format::member::ACTIVE,
            MemberState::Failed => format::member::FAILED,
            MemberState::Rebuilding => format::member::REBUILDING,
        }
    }
}

/// Error counts of a member's present drive, since the array was assembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Number of reads that failed.
    pub read: u64,
    /// Number of writes that failed.
    pub write: u64,
    /// Number of blocks that differed from what was written.
    pub checksum: u64,
}

/// Counts the zones in which a member refused a write, since it last wrote a zone to its end.
#[derive(Default)]
struct Refusals {
    zones: Cell<u32>,
    /// Sequence numbers of the segments whose zones were counted. Writes to several segments are in
    /// flight at a time, and their refusals come in any order.
    segments: RefCell<Vec<u64>>,
}

impl Refusals {
    /// Counts a refused write, once per zone: if one write to a segment's zone fails, all others in
    /// flight to it fail, too. Without a segment (`None`), each refusal counts.
    fn note(&self, segment: Option<u64>) -> u32 {
        let mut segments = self.segments.borrow_mut();
        if !segment.is_some_and(|segment| segments.contains(&segment)) {
            segments.extend(segment);
            self.zones.set(self.zones.get() + 1);
        }
        self.zones.get()
    }

    /// Counts from 0 again: a zone was written to its end, or another drive took the
    /// member's place.
    fn forget(&self) {
        self.zones.set(0);
        self.segments.take();
    }
}

/// A member of an array.
///
/// Invariant: a member has a drive unless it has failed.
pub struct Member {
    uuid: Cell<Uuid>,
    state: Cell<MemberState>,
    /// The array's count of events when the member was last in service.
    events: Cell<u64>,
    /// Number of the newest state record that its drive is known to have; 0: none.
    recorded: Cell<u64>,
    /// The array's count of events when the present drive took the place of another; 0: it
    /// never did.
    seated: Cell<u64>,
    errors: Cell<Errors>,
    refusals: Refusals,
    drive: RefCell<Option<Rc<Drive>>>,
    /// Signals that the member's drive was taken out of service.
    left: Notify,
}

impl Member {
    /// A member with its drive. `events` is the array's event count when the member was last in
    /// service, `recorded` the number of the newest state record on its drive.
    pub fn new(
        uuid: Uuid,
        state: MemberState,
        (events, recorded): (u64, u64),
        drive: Option<Drive>,
    ) -> Member {
        Member {
            uuid: Cell::new(uuid),
            state: Cell::new(state),
            events: Cell::new(events),
            recorded: Cell::new(recorded),
            seated: Cell::new(0),
            errors: Cell::new(Errors::default()),
            refusals: Refusals::default(),
            drive: RefCell::new(drive.map(Rc::new)),
            left: Notify::new(),
        }
    }

    /// The UUID of the member's drive in the array.
    #[inline]
    pub fn uuid(&self) -> Uuid {
        self.uuid.get()
    }

    /// The member's state.
    #[inline]
    pub fn state(&self) -> MemberState {
        self.state.get()
    }

    /// Sets the state only; [`Array::set_state`](crate::service::Array::set_state) also keeps the
    /// array's account of rebuilding members.
    pub fn set_state(&self, state: MemberState) {
        self.state.set(state);
    }

    /// The member's entry in the state record with number `record`; `events` is the array's count
    /// of events.
    pub fn entry(&self, record: u64, events: u64) -> MemberEntry {
        let mut entry = MemberEntry::new_zeroed();
        entry.uuid = self.uuid.get();
        entry.state = self.state.get().byte();
        let served = match self.state.get() {
            MemberState::Failed => self.events.get(),
            _ => events,
        };
        entry.events = served.into();
        let recorded = self.recorded.get();
        // Entries of failed members have this number as well, so that an older image of a failed
        // member is not taken for a drive that continued.
        if recorded > 0 {
            let behind = u32::try_from(record.saturating_sub(recorded));
            entry.behind = behind.unwrap_or(0).into();
        }
        entry
    }

    /// Number of the newest state record that the drive is known to have; 0: none.
    pub fn recorded(&self) -> u64 {
        self.recorded.get()
    }

    /// Notes that the drive has acknowledged state record `record`.
    pub fn note_recorded(&self, record: u64) {
        self.recorded.set(record);
    }

    /// Error counts of the present drive.
    pub fn errors(&self) -> Errors {
        self.errors.get()
    }

    /// Counts errors from 0 again.
    pub fn clear_errors(&self) {
        self.errors.set(Errors::default());
    }

    /// Waits for a permit for a zone of the drive. `None` if the member has failed. A drive that
    /// hangs may never give permits back. When such a drive is taken out of service, the wait ends,
    /// or continues for the drive that takes its place.
    pub async fn permit(&self) -> Option<(Rc<Drive>, Permit)> {
        loop {
            let drive = self.drive()?;
            let left = self.left.wait();
            if let Ok(permit) = either(drive.budget.acquire(Class::User, 1), left).await {
                return Some((drive, permit));
            }
        }
    }

    /// The drive; `None` if the member has failed.
    #[inline]
    pub fn drive(&self) -> Option<Rc<Drive>> {
        if self.state.get() == MemberState::Failed {
            return None;
        }
        self.drive.borrow().clone()
    }

    /// Whether the member has a drive, in service or not.
    pub fn has_drive(&self) -> bool {
        self.drive.borrow().is_some()
    }

    /// Takes the drive out, at the array's event count `events`. Returns the drive.
    pub(crate) fn leave(&self, events: u64) -> Option<Rc<Drive>> {
        self.events.set(events);
        let drive = self.drive.take();
        if drive.is_some() {
            self.left.notify_all();
        }
        drive
    }

    /// Puts a drive in the place of the former one, at the array's event count `events`. Returns
    /// the error counts of the former drive.
    pub(crate) fn seat(&self, uuid: Uuid, drive: Rc<Drive>, events: u64) -> Errors {
        self.uuid.set(uuid);
        self.drive.replace(Some(drive));
        self.recorded.set(0);
        self.seated.set(events);
        self.refusals.forget();
        self.errors.take()
    }

    /// Whether a command was sent to the member's former drive. `since` is the array's event count
    /// ([`Array::events`](crate::service::Array::events)) at which it was sent.
    #[inline]
    pub fn is_former(&self, since: u64) -> bool {
        since < self.seated.get()
    }

    /// Counts an error of a command sent at event count `since`, unless the command was sent to the
    /// member's former drive.
    pub fn count(&self, since: u64, change: impl FnOnce(&mut Errors)) {
        if self.is_former(since) {
            return;
        }
        let mut errors = self.errors.get();
        change(&mut errors);
        self.errors.set(errors);
    }

    /// Counts a refused write. Returns the number of zones in which the member refused a write
    /// since it last wrote a zone to its end. `segment` is the sequence number of the zone's
    /// segment, if it has one.
    pub fn note_refusal(&self, segment: Option<u64>) -> u32 {
        self.refusals.note(segment)
    }

    /// Counts refusals from 0 again, because a zone was written to its end.
    pub fn forget_refusals(&self) {
        self.refusals.forget();
    }

    /// Whether the member refused a write since it last wrote a zone to its end.
    #[inline]
    pub fn has_refused(&self) -> bool {
        self.refusals.zones.get() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refused writes to two segments in turn count as two zones; a zone without a segment counts
    /// as a third.
    #[test]
    fn a_zone_is_counted_once() {
        let refusals = Refusals::default();
        for segment in [4, 5, 4, 5, 4] {
            refusals.note(Some(segment));
        }
        assert_eq!((refusals.note(Some(5)), refusals.note(None)), (2, 3));
        refusals.forget();
        assert_eq!(refusals.note(Some(5)), 1);
    }
}
