//! Members: the drives of a volume, and what becomes of one that fails.
//!
//! A member that does not answer is out of service at once. A member that answers but refuses
//! writes costs only the segments of these writes, since a zone may fail alone. But segments are
//! space: a member that refuses again and again is taken out before it has used up the space, if
//! the level tolerates it.

use crate::drive::Drive;
use crate::event::Event;
use crate::format;
use crate::volume::Volume;
use furrow_log::Uuid;
use furrow_log::budget::{Class, Permit};
use furrow_policy::RaidDefect;
use furrow_rt::{Notify, either};
use furrow_zone::words::count;
use furrow_zone::{Error, ErrorKind, Result};
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

/// Zones in a row in which a member that answers may refuse writes.
const REFUSALS: u32 = 10;

/// The same, when no more than [`LAST_SEGMENTS`] are free: if the last free segment were truncated,
/// cleaning would have no segment to write to, and nothing could be written ever again.
const REFUSALS_LAST: u32 = 2;
const LAST_SEGMENTS: u32 = 1;

impl Volume {
    /// The time at which a command is sent, in changes of the members' drives.
    pub(crate) fn asked(&self) -> u64 {
        self.0.events.get()
    }

    /// A write to a member, sent at `since`, failed, in its zone of the segment with sequence
    /// number `segment`, or in a zone that belongs to no segment yet. True if the member is gone,
    /// false if only the zone is.
    pub(crate) fn note_write_error(
        &self,
        (index, since): (u32, u64),
        segment: Option<u64>,
        error: &Error,
    ) -> bool {
        let member = &self.0.members[index as usize];
        member.count(since, |errors| errors.write += 1);
        let Some(drive) = member.drive().filter(|_| !member.is_former(since)) else { return true };
        let zones = member.refusals.note(segment);
        if !drive.answers() {
            self.member_failed(index, error.clone());
            return true;
        }
        let most = match self.survives_without(&[index]) {
            // The array needs the member, so the limit is the number of segments there can be.
            false => self.0.shape.slots,
            true if self.free_segments() <= LAST_SEGMENTS => REFUSALS_LAST,
            true => REFUSALS,
        };
        if zones < most {
            return false;
        }
        let zones = count(zones.into(), "zone");
        let what = format!("it refused writes in {zones} in a row, at last: {error}");
        self.member_failed(index, Error::new(ErrorKind::Io, what));
        true
    }

    /// A write to a member succeeded.
    pub(crate) fn note_written(&self, index: u32) {
        let refusals = &self.0.members[index as usize].refusals;
        // The array needs this member: any write that it takes resets the count.
        if refusals.zones.get() > 0 && !self.survives_without(&[index]) {
            refusals.forget();
        }
    }

    /// The one place where a member changes its state.
    pub(crate) fn set_member_state(&self, index: u32, state: MemberState) {
        self.0.members[index as usize].state.set(state);
        let lacking = &self.0.rebuild.members;
        lacking.set(match state {
            MemberState::Rebuilding => lacking.get() | 1 << index,
            MemberState::Active | MemberState::Failed => lacking.get() & !(1 << index),
        });
    }

    /// Takes a member out of service: from now on stripes are written without it, and nothing is
    /// acknowledged before the other members have recorded that.
    pub(crate) fn member_failed(&self, index: u32, error: Error) {
        let member = &self.0.members[index as usize];
        if member.state.get() == MemberState::Failed || self.failed().is_some() {
            return;
        }
        let answers = member.drive().is_some_and(|drive| drive.answers());
        let hung = member.drive().and_then(|drive| self.0.watchdog.why(&drive.device));
        if answers && self.survives() && !self.survives_without(&[index]) {
            // The member's data can still be read: keeping it leaves more than failing it.
            let message = format!(
                "member {index} cannot be written any more ({error}), and without it data is \
                 missing: only reads are answered"
            );
            return self.die(Error::new(ErrorKind::Io, message));
        }
        self.set_member_state(index, MemberState::Failed);
        member.events.set(self.0.events.get());
        // The drive is closed when its last command has ended.
        if let Some(drive) = member.drive.take() {
            self.0.watchdog.forget(&drive.device);
            member.left.notify_all();
        }
        let why = hung.unwrap_or_else(|| error.to_string());
        self.tell(Event::MemberFailed { member: index, why });
        // The member's zones are not written any more: open segments end, so that new ones begin
        // without it.
        for stream in &self.0.streams {
            if let Some(open) = &*stream.writer.open.borrow() {
                open.broken.set(true);
            }
        }
        if !self.survives() {
            let message = format!(
                "member {index} failed ({error}), and without it data is missing: {} of {} drives \
                 are left",
                self.0.members.iter().filter(|m| m.drive().is_some()).count(),
                self.0.members.len()
            );
            return self.die(Error::new(ErrorKind::Io, message));
        }
        self.0.events.set(self.0.events.get() + 1);
        // The member's zones no longer limit the space.
        self.space_changed();
        if !self.0.noting.replace(true) {
            self.0.rt.spawn_detached(note_failure(self.clone()));
        }
    }

    /// Whether all data can be read from the members that are in service.
    pub(crate) fn survives(&self) -> bool {
        self.survives_without(&[])
    }

    /// Whether all data can be read without some of them.
    pub(crate) fn survives_without(&self, lost: &[u32]) -> bool {
        let placement = &self.0.shape.placement;
        let up = |index: u32| {
            let state = self.0.members[index as usize].state.get();
            state == MemberState::Active && !lost.contains(&index)
        };
        // Rotation brings every drive into every role, so stripe 0 stands for all.
        placement.recoverable(|chunk| up(placement.drive(0, chunk)))
    }

    /// Waits until every failure so far is recorded on the remaining members.
    ///
    /// # Errors
    /// If too few members are left.
    pub(crate) async fn failures_noted(&self) -> Result<()> {
        while self.0.noting.get() && self.failed().is_none() {
            self.0.noted.wait().await;
        }
        self.failed().map_or(Ok(()), Err)
    }
}

/// Records on the remaining members that others have failed.
async fn note_failure(volume: Volume) {
    if volume.has(RaidDefect::EarlyDegradedAck) {
        // The delay gives the defect time to show.
        volume.0.rt.sleep(1_000_000).await;
    }
    loop {
        let events = volume.0.events.get();
        volume.write_state(false).await;
        if volume.failed().is_some() || volume.0.events.get() == events {
            break;
        }
    }
    volume.0.noting.set(false);
    volume.0.noted.notify_all();
    volume.0.wanted.notify_all();
    for stream in &volume.0.streams {
        volume.dispatch_ready(&stream.writer);
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
