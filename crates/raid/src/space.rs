//! Space: the segments that can be begun, the writers that wait for one, and the ways to free one.
//!
//! A loop asks [`plan`] for the next action and carries it out. It runs in two lanes, so that
//! cleaning, which may wait for space, never delays the reset of empty segments. When a stream
//! waits and nothing under way frees a segment, the plan uses other means, in this order: internal
//! stripes go into the segments that are open for users; members that cause the lack of space by
//! their lost zones are taken out of service, if the level tolerates it. If no means is left, the
//! volume is *out of space*: writes are refused until a segment is freed, and every acknowledged
//! block stays readable.

pub(crate) mod plan;
pub(crate) mod state;

pub(crate) use plan::Lane;

use crate::clean::is_empty;
use crate::segment::{Segment, SegmentState};
use crate::space::plan::{Action, Facts, Recovery};
use crate::volume::Volume;
use crate::write::item::Use;
use crate::write::line::SegmentWriter;
use crate::write::stream::Stream;
use furrow_array::event::Event;
use furrow_log::SuperzoneState;
use furrow_zone::{Error, ErrorKind, Result};
use std::rc::Rc;

impl Volume {
    /// Number of segments that can be begun: the minimum of the free slots and of each drive's
    /// free zones.
    pub(crate) fn free_segments(&self) -> u32 {
        let drives = self.0.array.members().iter().filter_map(|member| member.drive());
        drives.map(|drive| drive.zones().free_count()).min().unwrap_or(0).min(self.free_slots())
    }

    fn free_slots(&self) -> u32 {
        let segments = self.0.segments.borrow();
        segments.iter().filter(|s| s.state == SegmentState::Free).count() as u32
    }

    /// The reason why writes are refused for lack of space; `None` if they are not.
    pub fn out_of_space(&self) -> Option<Error> {
        self.0.space.none.borrow().as_ref().map(|(error, _)| error.clone())
    }

    /// Waits for the next event that may have freed a segment for a writer.
    ///
    /// # Errors
    /// `NoSpace` if there is no space and nothing under way will make some.
    pub(crate) async fn wait_for_space(&self, purpose: Use) -> Result<()> {
        if let Some(error) = self.out_of_space() {
            return Err(error);
        }
        let space = &self.0.space;
        let made = space.made.wait();
        let internal = purpose == Use::Internal;
        match internal {
            true => space.internal.set(true),
            false => space.users.set(space.users.get() + 1),
        }
        self.0.wanted.notify_all();
        made.await;
        match internal {
            true => space.internal.set(false),
            false => {
                space.users.set(self.less("streams that wait for space", space.users.get(), 1));
            }
        }
        Ok(())
    }

    /// Notes that a segment for users was begun: the account of what cleaning gains starts at zero
    /// again.
    pub(crate) fn space_found(&self) {
        self.0.space.fruitless.set(0);
        self.0.space.ahead.set(0);
    }

    /// Notes that a segment was cleaned.
    pub(crate) fn space_gained(&self) {
        let (fruitless, ahead) = (&self.0.space.fruitless, &self.0.space.ahead);
        let waits = self.0.space.users.get() > 0;
        fruitless.set(if waits { fruitless.get() + 1 } else { 0 });
        ahead.set(if waits { 0 } else { ahead.get() + 1 });
    }

    /// Whether cleaning gains nothing: it has cleaned more than twice the number of the volume's
    /// segments while no writer of users began a segment. If many zones are lost, the free
    /// segments may never suffice for cleaning to rest; it would clean the segments that it has
    /// just written.
    pub(crate) fn cleans_in_vain(&self) -> bool {
        let waits = self.0.space.users.get() > 0;
        let cleaned = if waits { &self.0.space.fruitless } else { &self.0.space.ahead };
        cleaned.get() > 2 * self.0.shape.slots
    }

    /// Makes writers that wait for space try again: a drive came or went, or recovery keeps fewer
    /// segments than before.
    pub(crate) fn space_changed(&self) {
        // Unreadable blocks in segments may be readable now, or may have been trimmed.
        self.0.space.changes.set(self.0.space.changes.get() + 1);
        self.space_found();
        self.space_made();
    }

    /// Whether cleaning found an unreadable block in a segment and nothing has changed since, so
    /// that cleaning the segment again is useless.
    pub(crate) fn is_stuck(&self, segment: &Segment) -> bool {
        segment.stuck == self.0.space.changes.get()
    }

    /// Makes writers that wait for space try again after a segment was reset.
    pub(crate) fn space_made(&self) {
        self.0.space.none.take();
        self.0.space.made.notify_all();
        self.0.wanted.notify_all();
    }

    /// Starts one lane of the loop as a background task.
    pub(crate) fn serve_space(&self, lane: Lane) {
        let weak = Rc::downgrade(&self.0);
        self.0.rt.spawn_detached(async move {
            loop {
                let Some(inner) = weak.upgrade() else { return };
                let volume = Volume(inner);
                let ended = match lane {
                    Lane::Release => volume.has_stopped(),
                    Lane::Clean => volume.is_stopping(),
                };
                if ended || volume.failed().is_some() {
                    return;
                }
                let wait = volume.0.wanted.wait();
                let did = volume.act(plan::next(lane, &volume.facts())).await;
                drop(volume);
                if !did {
                    wait.await;
                }
            }
        });
    }

    /// Carries out an action. False if the lane has to wait for an event.
    async fn act(&self, action: Action) -> bool {
        match action {
            Action::Rest => return false,
            Action::Tell => {
                self.0.space.made.notify_all();
                return false;
            }
            Action::Release => return self.release_empty().await,
            Action::ReleaseStrays => return self.release_strays_early().await,
            Action::FinishRecovery => return self.finish_recovery().await.is_ok(),
            Action::Checkpoint => return self.checkpoint(false).await.is_ok(),
            Action::Clean(slot) => return self.clean_victim(slot).await,
            Action::TakeBack => self.take_back_stranded(),
            Action::HandOver => self.hand_over_lines(),
            Action::AllowResets => self.allow_resets(),
            Action::GiveUp(floor) => self.give_up_space(floor),
            Action::Reconsider => self.space_changed(),
        }
        true
    }

    /// The facts on which the next action depends.
    fn facts(&self) -> Facts {
        let space = &self.0.space;
        let (free, kept) = (self.free_segments(), self.0.shape.kept);
        let low = kept + self.0.config.small + self.0.config.large;
        let recovery = match &*space.recovery.borrow() {
            None => (Recovery::Finished, false),
            Some(recovery) => (recovery.stage(), !recovery.strays.is_empty()),
        };
        let state = |state| self.0.segments.borrow().iter().any(|s| s.state == state);
        let empty = self.0.segments.borrow().iter().any(is_empty);
        let written = self.0.counters.borrow().written - self.0.checkpoint.written();
        let without = |writer: &&Rc<SegmentWriter>| writer.open.borrow().is_none();
        let out = space.none.borrow().as_ref().map(|(_, used)| self.used() < *used);
        Facts {
            free,
            kept,
            low,
            users_wait: space.users.get() > 0,
            internal_waits: space.internal.get(),
            out: out.is_some(),
            eased: out == Some(true),
            recovery: recovery.0,
            still: space.is_wanted() && self.is_still(),
            empty,
            resetting: state(SegmentState::Releasing),
            strays: recovery.1,
            internal_takes: self.internal_writer().takes_more(),
            users_take: self.writers_of_users().any(|writer| writer.takes_more()),
            internal_line: self.internal_writer().line() > 0,
            users_line: self.writers_of_users().filter(without).any(|writer| writer.line() > 0),
            stranded: self.writers_of_users().filter(without).any(|w| w.has_line_of_internal()),
            checkpoint_due: written >= self.0.options.checkpoint_blocks,
            checkpoint_frees: free <= low && self.held_by_checkpoint(),
            cleans: self.0.options.clean,
            unprotected: self.unprotected(),
            victim: (free <= low).then(|| self.victim()).flatten(),
            in_vain: self.cleans_in_vain(),
        }
    }

    fn internal_writer(&self) -> Rc<SegmentWriter> {
        self.route(Use::Internal).writer.clone()
    }

    fn writers_of_users(&self) -> impl Iterator<Item = &Rc<SegmentWriter>> {
        let writers = self.0.streams.iter().map(|stream| &stream.writer);
        writers.filter(|writer| writer.purpose != Use::Internal)
    }

    /// Whether nothing is under way that could free a segment.
    fn is_still(&self) -> bool {
        let releasing =
            |s: &Segment| s.state == SegmentState::Releasing || (self.may_reset() && is_empty(s));
        // A stripe that is being filled will go into an open segment.
        let filling = |s: &Rc<Stream>| s.writer.open.borrow().is_some() && s.filled() > 0;
        self.0.segments.in_flight() == 0
            && self.0.segments.ending().is_empty()
            && !self.0.segments.is_quiesced()
            && !self.0.array.is_noting()
            && !self.0.rebuild.filling.get()
            && !self.0.streams.iter().any(filling)
            && !self.0.segments.borrow().iter().any(releasing)
    }

    /// Whether segments may be reset: once recovery is finished, or while it lacks space.
    pub(crate) fn may_reset(&self) -> bool {
        self.0.space.recovery.borrow().as_ref().is_none_or(|recovery| recovery.starved)
    }

    /// Takes back the internal stripes that were handed to writers of users and wait there for
    /// a segment.
    fn take_back_stranded(&self) {
        let internal = self.internal_writer();
        for writer in self.writers_of_users() {
            if writer.open.borrow().is_none() && writer.has_line_of_internal() {
                self.take_back(writer, &internal);
            }
        }
    }

    /// Hands the stripes of writers that wait for a segment to a writer of users that has one.
    fn hand_over_lines(&self) {
        let Some(to) = self.writers_of_users().find(|writer| writer.takes_more()) else { return };
        let internal = self.internal_writer();
        if internal.line() == 0 {
            for writer in self.writers_of_users() {
                if writer.open.borrow().is_none() && writer.line() > 0 {
                    self.hand_over(writer, to);
                }
            }
        }
        self.hand_over(&internal, to);
    }

    /// Lets segments be reset before recovery is finished, because recovery needs space.
    fn allow_resets(&self) {
        if let Some(recovery) = &mut *self.0.space.recovery.borrow_mut() {
            recovery.starved = true;
        }
    }

    /// Called when nothing can make more than `floor` segments free: takes worn-out members out of
    /// service, or refuses writes.
    fn give_up_space(&self, floor: u32) {
        let worn = self.worn_out(floor);
        if !worn.is_empty() {
            for index in worn {
                let lost = self.lost_zones(index);
                let what = format!(
                    "it lost {lost} zones, and without them there is no space: replace the drive"
                );
                self.member_failed(index, Error::new(ErrorKind::NoSpace, what));
            }
            return;
        }
        let lost: Vec<String> = (0..self.0.array.members().len() as u32)
            .map(|index| (index, self.lost_zones(index)))
            .filter(|(_, lost)| *lost > 0)
            .map(|(index, lost)| format!("member {index} has lost {lost} zones"))
            .collect();
        let why = match lost.is_empty() {
            true => "no segment can be made free".to_owned(),
            false => format!("{}: replace it", lost.join(", ")),
        };
        let what = format!("the volume is out of space, and only reads are answered: {why}");
        let error = Error::new(ErrorKind::NoSpace, what);
        self.tell(Event::OutOfSpace { why });
        *self.0.space.none.borrow_mut() = Some((error, self.used()));
        self.0.space.made.notify_all();
    }

    /// Number of zones of a member that are known to be lost for writing.
    pub fn lost_zones(&self, index: u32) -> u32 {
        let drive = self.0.array.member(index).drive();
        drive.map_or(0, |drive| drive.zones().count(SuperzoneState::Retired))
    }

    /// The members to take out of service because their lost zones keep the number of free segments
    /// at `floor` or below: as few as suffice, and none if the array needs them.
    fn worn_out(&self, floor: u32) -> Vec<u32> {
        let free = |index: u32| {
            let drive = self.0.array.member(index).drive()?;
            Some((drive.zones().free_count(), index))
        };
        let mut by_free: Vec<(u32, u32)> =
            (0..self.0.array.members().len() as u32).filter_map(free).collect();
        by_free.sort_unstable();
        let narrow = by_free.iter().take_while(|(free, _)| *free <= floor).count();
        let enough = by_free.len() > narrow && self.free_slots() > floor;
        let worn: Vec<u32> = by_free[..narrow].iter().map(|(_, index)| *index).collect();
        let survives = self.survives_without(&worn);
        let lost = worn.iter().all(|index| self.lost_zones(*index) > 0);
        if enough && survives && lost { worn } else { Vec::new() }
    }

    /// Takes members that do not answer out of service. True if there were any.
    pub(crate) fn notice_gone(&self) -> bool {
        let mut gone = false;
        // An assembly is tried again if a drive was gone for a moment.
        if !self.0.life.serves.get() {
            return false;
        }
        for index in 0..self.0.array.members().len() as u32 {
            let drive = self.0.array.member(index).drive();
            if let Some(drive) = drive.filter(|drive| !drive.answers()) {
                let what = format!("{}: it does not answer", drive.device().name());
                self.member_failed(index, Error::new(ErrorKind::Io, what));
                gone = true;
            }
        }
        gone
    }
}
