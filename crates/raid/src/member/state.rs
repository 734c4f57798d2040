//! What is known of a member.

use crate::drive::Drive;
use crate::format;
use furrow_log::Uuid;
use furrow_log::budget::{Class, Permit};
use furrow_rt::{Notify, either};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

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
    pub(crate) fn from_byte(byte: u8) -> Option<MemberState> {
        use MemberState::{Active, Failed, Rebuilding};
        [Active, Failed, Rebuilding].get(usize::from(byte)).copied()
    }

    pub(crate) fn byte(self) -> u8 {
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
pub(crate) struct Refusals {
    pub(super) zones: Cell<u32>,
    /// Sequence numbers of the segments whose zones were counted: writes to several segments are in
    /// flight at a time, and their refusals come in any order.
    segments: RefCell<Vec<u64>>,
}

impl Refusals {
    /// Counts a refused write, once for each zone: many writes are in flight for a segment's zone,
    /// and a write that fails fails all of them. With `None` the refusal counts in any case.
    pub(super) fn note(&self, segment: Option<u64>) -> u32 {
        let mut segments = self.segments.borrow_mut();
        if !segment.is_some_and(|segment| segments.contains(&segment)) {
            segments.extend(segment);
            self.zones.set(self.zones.get() + 1);
        }
        self.zones.get()
    }

    /// A zone was written to its end, or another drive took the member's place.
    pub(crate) fn forget(&self) {
        self.zones.set(0);
        self.segments.take();
    }
}

/// A member.
///
/// Invariants
/// - A member has a drive unless it has failed.
/// - A member is in state rebuilding exactly if the rebuild is for it
///   (`rebuild::state::State::members`).
pub(crate) struct Member {
    pub(crate) uuid: Cell<Uuid>,
    pub(crate) state: Cell<MemberState>,
    /// `events` when the member was last in service.
    pub(crate) events: Cell<u64>,
    /// Number of the newest state record that its drive is known to have; 0: none.
    pub(crate) recorded: Cell<u64>,
    /// `events` of the array when its drive took the place of another one; 0: at no time.
    pub(crate) seated: Cell<u64>,
    pub(crate) errors: Cell<Errors>,
    pub(crate) refusals: Refusals,
    pub(crate) drive: RefCell<Option<Rc<Drive>>>,
    /// Signals that its drive was taken out of service.
    pub(crate) left: Notify,
}

impl Member {
    /// The drive, with a permit for a zone of it; `None` if the member has failed. A drive that
    /// hung may never give its permits back: if it is taken out of service, the wait goes on for
    /// the one that takes its place.
    pub(crate) async fn permit(&self) -> Option<(Rc<Drive>, Permit)> {
        loop {
            let drive = self.drive()?;
            let left = self.left.wait();
            if let Ok(permit) = either(drive.budget.acquire(Class::User, 1), left).await {
                return Some((drive, permit));
            }
        }
    }

    /// The drive, if it is in service.
    pub(crate) fn drive(&self) -> Option<Rc<Drive>> {
        if self.state.get() == MemberState::Failed {
            return None;
        }
        self.drive.borrow().clone()
    }

    /// Whether a command that was sent at `since` ([`Volume::asked`]) was not for the drive that is
    /// there now, but for the one before it.
    pub(crate) fn is_former(&self, since: u64) -> bool {
        since < self.seated.get()
    }

    /// Counts an error of a command that was sent at `since`. An error of the drive that was there
    /// before is none of the present one's.
    pub(crate) fn count(&self, since: u64, change: impl FnOnce(&mut Errors)) {
        if self.is_former(since) {
            return;
        }
        let mut errors = self.errors.get();
        change(&mut errors);
        self.errors.set(errors);
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
