//! A member of the array: its drive, its state, and what is known of both.

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
    /// In service for new data; older data is being rebuilt on it.
    Rebuilding,
}

impl MemberState {
    /// The state of a byte in a record.
    pub fn from_byte(byte: u8) -> Option<MemberState> {
        use MemberState::{Active, Failed, Rebuilding};
        [Active, Failed, Rebuilding].get(usize::from(byte)).copied()
    }

    /// The state as a byte in a record.
    pub fn byte(self) -> u8 {
        match self {
            MemberState::Active => format::member::ACTIVE,
            MemberState::Failed => format::member::FAILED,
            MemberState::Rebuilding => format::member::REBUILDING,
        }
    }
}

/// Errors of a member since the array was assembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Reads that failed.
    pub read: u64,
    /// Writes that failed.
    pub write: u64,
    /// Blocks that differed from what was written.
    pub checksum: u64,
}

/// Zones in a row in which a member refused a write, without a zone in between that was written to
/// its end.
#[derive(Default)]
struct Refusals {
    zones: Cell<u32>,
    /// Sequence numbers of the segments whose zones were counted: writes to several segments are in
    /// flight at a time, and their refusals come in any order.
    segments: RefCell<Vec<u64>>,
}

impl Refusals {
    /// Counts a refused write, once for each zone: many writes are in flight for a segment's zone,
    /// and a write that fails fails all of them. With `None` the refusal counts in any case.
    fn note(&self, segment: Option<u64>) -> u32 {
        let mut segments = self.segments.borrow_mut();
        if !segment.is_some_and(|segment| segments.contains(&segment)) {
            segments.extend(segment);
            self.zones.set(self.zones.get() + 1);
        }
        self.zones.get()
    }

    /// A zone was written to its end, or another drive took the member's place.
    fn forget(&self) {
        self.zones.set(0);
        self.segments.take();
    }
}

/// A member.
///
/// Invariant: a member has a drive unless it has failed.
pub struct Member {
    uuid: Cell<Uuid>,
    state: Cell<MemberState>,
    /// `events` of the array when the member was last in service.
    events: Cell<u64>,
    /// Number of the newest state record that its drive is known to have; 0: none.
    recorded: Cell<u64>,
    /// `events` of the array when its drive took the place of another one; 0: at no time.
    seated: Cell<u64>,
    errors: Cell<Errors>,
    refusals: Refusals,
    drive: RefCell<Option<Rc<Drive>>>,
    /// Signals that its drive was taken out of service.
    left: Notify,
}

impl Member {
    /// A member, with the events it last knew of and the number of the newest state record on its
    /// drive.
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

    /// Sets the state alone; [`Array::set_state`](crate::service::Array::set_state) keeps the
    /// array's account of it, too.
    pub fn set_state(&self, state: MemberState) {
        self.state.set(state);
    }

    /// The member's entry in a state record with the number `record`, written after `events`.
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
        // Of a failed member, too: an older image of it must not look as if it had gone on.
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

    /// The drive has acknowledged state record `record`.
    pub fn note_recorded(&self, record: u64) {
        self.recorded.set(record);
    }

    /// The errors of the present drive.
    pub fn errors(&self) -> Errors {
        self.errors.get()
    }

    /// Counts errors from 0 again.
    pub fn clear_errors(&self) {
        self.errors.set(Errors::default());
    }

    /// The drive, with a permit for a zone of it; `None` if the member has failed. A drive that
    /// hung may never give its permits back: if it is taken out of service, the wait goes on for
    /// the one that takes its place.
    pub async fn permit(&self) -> Option<(Rc<Drive>, Permit)> {
        loop {
            let drive = self.drive()?;
            let left = self.left.wait();
            if let Ok(permit) = either(drive.budget.acquire(Class::User, 1), left).await {
                return Some((drive, permit));
            }
        }
    }

    /// The drive, if it is in service.
    #[inline]
    pub fn drive(&self) -> Option<Rc<Drive>> {
        if self.state.get() == MemberState::Failed {
            return None;
        }
        self.drive.borrow().clone()
    }

    /// Whether there is a drive, in service or not.
    pub fn has_drive(&self) -> bool {
        self.drive.borrow().is_some()
    }

    /// The member is out of service after `events` events. Returns its drive.
    pub(crate) fn leave(&self, events: u64) -> Option<Rc<Drive>> {
        self.events.set(events);
        let drive = self.drive.take();
        if drive.is_some() {
            self.left.notify_all();
        }
        drive
    }

    /// Another drive takes the place of the former one, as event number `events`. Returns the
    /// errors of the former one.
    pub(crate) fn seat(&self, uuid: Uuid, drive: Rc<Drive>, events: u64) -> Errors {
        self.uuid.set(uuid);
        self.drive.replace(Some(drive));
        self.recorded.set(0);
        self.seated.set(events);
        self.refusals.forget();
        self.errors.take()
    }

    /// Whether a command that was sent at `since`, in events of the array
    /// ([`Array::events`](crate::service::Array::events)), was not for the drive that is there now,
    /// but for the one before it.
    #[inline]
    pub fn is_former(&self, since: u64) -> bool {
        since < self.seated.get()
    }

    /// Counts an error of a command that was sent at `since`. An error of the drive that was there
    /// before is none of the present one's.
    pub fn count(&self, since: u64, change: impl FnOnce(&mut Errors)) {
        if self.is_former(since) {
            return;
        }
        let mut errors = self.errors.get();
        change(&mut errors);
        self.errors.set(errors);
    }

    /// Counts a refused write. Returns the number of zones in a row in which the member refused
    /// one; `segment` says to which of the array's segments the zone belongs, if to any.
    pub fn note_refusal(&self, segment: Option<u64>) -> u32 {
        self.refusals.note(segment)
    }

    /// A zone was written to its end: refusals are counted from 0 again.
    pub fn forget_refusals(&self) {
        self.refusals.forget();
    }

    /// Whether the member refused a write since a zone was last written to its end.
    #[inline]
    pub fn has_refused(&self) -> bool {
        self.refusals.zones.get() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes to two segments are refused in turn: these are two zones, and a zone of no segment is
    /// a third.
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
