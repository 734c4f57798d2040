//! Members: the drives of a volume, and what becomes of one that fails.
//!
//! A member that does not answer is out of service at once. A member that answers but refuses
//! writes costs only the segments of these writes, since a zone may fail alone. But segments are
//! space: a member that refuses again and again is taken out before it has used up the space, if
//! the level tolerates it.

pub(crate) mod state;

use crate::event::Event;
use crate::member::state::MemberState;
use crate::volume::Volume;
use furrow_policy::RaidDefect;
use furrow_zone::words::count;
use furrow_zone::{Error, ErrorKind, Result};

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
