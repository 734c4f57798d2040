//! Handles members that fail.
//!
//! A member that does not answer is taken out of service at once. If a member answers but refuses
//! writes, only the segments of these writes end, since a zone may fail alone. But each segment
//! lost is space lost: a member that refuses again and again is taken out of service before it has
//! used up the space, if the level tolerates it.

use crate::volume::Volume;
use furrow_array::member::MemberState;
use furrow_policy::RaidDefect;
use furrow_zone::words::count;
use furrow_zone::{Error, ErrorKind, Result};

/// Number of zones in a row in which a member that answers must refuse writes before it is taken
/// out of service.
const REFUSALS: u32 = 10;

/// The limit instead of [`REFUSALS`] while at most [`LAST_SEGMENTS`] segments are free: if the last
/// free segment were truncated, cleaning could not write, and so could free no more space.
const REFUSALS_LAST: u32 = 2;
const LAST_SEGMENTS: u32 = 1;

impl Volume {
    /// Number of changes of members' drives so far. A caller notes it before it sends a command, to
    /// recognize an answer of a former drive.
    pub(crate) fn asked(&self) -> u64 {
        self.0.array.events()
    }

    /// Notes a failed write to a member, which was sent at `since` ([`Volume::asked`]). `segment`
    /// is the sequence number of the zone's segment, if it has one. True if the member is out of
    /// service, false if only the zone is lost.
    pub(crate) fn note_write_error(
        &self,
        (index, since): (u32, u64),
        segment: Option<u64>,
        error: &Error,
    ) -> bool {
        let member = self.0.array.member(index);
        member.count(since, |errors| errors.write += 1);
        let Some(drive) = member.drive().filter(|_| !member.is_former(since)) else { return true };
        let zones = member.note_refusal(segment);
        if !drive.answers() {
            self.member_failed(index, error.clone());
            return true;
        }
        let most = match self.survives_without(&[index]) {
            // The array needs the member: only the number of slots limits its refusals.
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

    /// Notes that a write to a member succeeded.
    pub(crate) fn note_written(&self, index: u32) {
        let member = self.0.array.member(index);
        // If the array needs the member, any write that the member takes resets its count
        // of refusals.
        if member.has_refused() && !self.survives_without(&[index]) {
            member.forget_refusals();
        }
    }

    /// Takes a member out of service: from now on stripes are written without it, and no write is
    /// acknowledged before the other members have recorded the failure.
    pub(crate) fn member_failed(&self, index: u32, error: Error) {
        let member = self.0.array.member(index);
        if member.state() == MemberState::Failed || self.failed().is_some() {
            return;
        }
        let answers = member.drive().is_some_and(|drive| drive.answers());
        let hung = self.0.array.given_up(index);
        if answers && self.survives() && !self.survives_without(&[index]) {
            // The member's data can still be read: a read-only array is better than a failed one.
            let message = format!(
                "member {index} cannot be written any more ({error}), and without it data is \
                 missing: only reads are answered"
            );
            return self.die(Error::new(ErrorKind::Io, message));
        }
        self.0.array.take_out(index, hung.unwrap_or_else(|| error.to_string()));
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
                self.0.array.members().iter().filter(|m| m.drive().is_some()).count(),
                self.0.array.members().len()
            );
            return self.die(Error::new(ErrorKind::Io, message));
        }
        self.0.array.raise_events();
        // Lost zones of this member no longer limit the space.
        self.space_changed();
        if self.0.array.begin_noting() {
            self.0.rt.spawn_detached(note_failure(self.clone()));
        }
    }

    /// Whether all data can be read from the members that are in service.
    pub(crate) fn survives(&self) -> bool {
        self.survives_without(&[])
    }

    /// Whether all data can be read from the members in service without the members `lost`.
    pub(crate) fn survives_without(&self, lost: &[u32]) -> bool {
        self.0.array.survives_without(lost)
    }

    /// Waits until every failure so far is recorded on the remaining members.
    ///
    /// # Errors
    /// An error if too few members are left.
    pub(crate) async fn failures_noted(&self) -> Result<()> {
        while self.0.array.is_noting() && self.failed().is_none() {
            self.0.array.noted().await;
        }
        self.failed().map_or(Ok(()), Err)
    }
}

/// Records on the remaining members that others have failed.
async fn note_failure(volume: Volume) {
    if volume.has(RaidDefect::EarlyDegradedAck) {
        // The delay gives the seeded bug time to show.
        volume.0.rt.sleep(1_000_000).await;
    }
    loop {
        let events = volume.0.array.events();
        volume.write_state(false).await;
        if volume.failed().is_some() || volume.0.array.events() == events {
            break;
        }
    }
    volume.0.array.end_noting();
    volume.0.wanted.notify_all();
    for stream in &volume.0.streams {
        volume.dispatch_ready(&stream.writer);
    }
}
