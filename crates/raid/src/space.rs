//! Space: segments that can be begun, who waits for one, and what happens when none will come.
//!
//! A task of its own resets the segments of which nothing counts, whatever cleaning waits for. When
//! somebody waits and nothing is under way that could make room, it is made otherwise, in this
//! order: what the volume moves goes into the segments that are open for users; members that lost
//! so many zones that they alone are in the way are taken out of service, as far as the level
//! tolerates it; else the volume is *out of room*: writes are refused until there is some, and
//! everything that was acknowledged stays readable.

use crate::event::Event;
use crate::recover::finish::{Stage, UnfinishedRecovery};
use crate::volume::{SegmentState, Volume};
use crate::write::item::Use;
use crate::write::segment::SegmentWriter;
use crate::write::stripe::Stream;
use furrow_log::SuperzoneState;
use furrow_rt::Notify;
use furrow_zone::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Who waits for room, and what is known of it.
#[derive(Default)]
pub(crate) struct Space {
    /// Something happened that may make room.
    pub(crate) made: Notify,
    /// Streams of users' requests that wait for it.
    users: Cell<u32>,
    /// The internal stream waits for it.
    internal: Cell<bool>,
    /// Segments cleaned since users got one, while they wait.
    fruitless: Cell<u32>,
    /// The same, while they do not.
    ahead: Cell<u32>,
    /// There is none, and why; blocks that counted when that was found.
    none: RefCell<Option<(Error, u64)>>,
    /// What recovery has still to do before anything may be reset.
    pub(crate) recovery: RefCell<Option<UnfinishedRecovery>>,
}

impl Space {
    /// Whether somebody waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.users.get() > 0 || self.internal.get()
    }

    /// Whether what the volume moves waits.
    pub(crate) fn waits_internal(&self) -> bool {
        self.internal.get()
    }
}

impl Volume {
    /// Slots in which a segment can be begun, as far as every drive has zones.
    pub(crate) fn free_segments(&self) -> u32 {
        let drives = self.0.members.iter().filter_map(|member| member.drive());
        drives.map(|drive| drive.zones.free_count()).min().unwrap_or(0).min(self.free_slots())
    }

    fn free_slots(&self) -> u32 {
        let segments = self.0.segments.borrow();
        segments.iter().filter(|s| s.state == SegmentState::Free).count() as u32
    }

    /// Why nothing can be written for want of room, if so.
    pub fn out_of_space(&self) -> Option<Error> {
        self.0.space.none.borrow().as_ref().map(|(error, _)| error.clone())
    }

    /// Waits until something happened that may have made room for a segment of the stream.
    ///
    /// # Errors
    /// `NoSpace` if there is none and will not be any.
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
            false => self.lower("streams that wait for space", &space.users),
        }
        Ok(())
    }

    /// A segment for users was begun.
    pub(crate) fn space_found(&self) {
        self.0.space.fruitless.set(0);
        self.0.space.ahead.set(0);
    }

    /// A segment was cleaned.
    pub(crate) fn space_gained(&self) {
        let (fruitless, ahead) = (&self.0.space.fruitless, &self.0.space.ahead);
        let waits = self.0.space.users.get() > 0;
        fruitless.set(if waits { fruitless.get() + 1 } else { 0 });
        ahead.set(if waits { 0 } else { ahead.get() + 1 });
    }

    /// Whether cleaning goes round in circles: everything was moved twice, and users still wait, or
    /// have not begun a segment. Where zones are lost, what is free may never be enough to rest,
    /// and what was just cleaned is the next that is worth it.
    pub(crate) fn cleans_in_vain(&self) -> bool {
        let waits = self.0.space.users.get() > 0;
        let cleaned = if waits { &self.0.space.fruitless } else { &self.0.space.ahead };
        cleaned.get() > 2 * self.0.shape.slots
    }

    /// Lets those who wait for room look again: a drive came or went, or less is held.
    pub(crate) fn space_changed(&self) {
        self.space_found();
        self.space_made();
    }

    /// The same: a segment was reset.
    pub(crate) fn space_made(&self) {
        self.0.space.none.take();
        self.0.space.made.notify_all();
        self.0.wanted.notify_all();
    }

    /// Starts the task that resets what is empty.
    pub(crate) fn serve_space(&self) {
        let weak = Rc::downgrade(&self.0);
        self.0.rt.spawn_detached(async move {
            loop {
                let Some(inner) = weak.upgrade() else { return };
                let volume = Volume(inner);
                if volume.0.stopped.get() || volume.failed().is_some() {
                    return;
                }
                let wait = volume.0.wanted.wait();
                let did = volume.release_empty().await
                    || volume.relieve_stranded()
                    || volume.relieve_internal();
                drop(volume);
                if !did {
                    wait.await;
                }
            }
        });
    }

    fn internal_writer(&self) -> Rc<SegmentWriter> {
        self.route(Use::Internal).writer.clone()
    }

    fn writers_of_users(&self) -> impl Iterator<Item = &Rc<SegmentWriter>> {
        let writers = self.0.streams.iter().map(|stream| &stream.writer);
        writers.filter(|writer| writer.purpose != Use::Internal)
    }

    /// Whether nothing is under way that could make room.
    fn is_still(&self) -> bool {
        let releasing = |s: &crate::volume::Segment| {
            s.state == SegmentState::Releasing || (self.may_reset() && crate::clean::is_empty(s))
        };
        // A stripe that is filled soon goes into an open segment.
        let filling = |s: &Rc<Stream>| s.writer.open.borrow().is_some() && s.filled() > 0;
        self.0.in_flight.get() == 0
            && self.0.ending.borrow().is_empty()
            && self.0.quiesced.get() == 0
            && !self.0.noting.get()
            && !self.0.rebuild.filling.get()
            && !self.0.streams.iter().any(filling)
            && !self.0.segments.borrow().iter().any(releasing)
    }

    /// Whether segments may be reset: not before recovery is over.
    pub(crate) fn may_reset(&self) -> bool {
        self.0.space.recovery.borrow().as_ref().is_none_or(|recovery| recovery.starved)
    }

    /// Whether more than `floor` segments are free. Who waits for one was told so and has perhaps
    /// not run yet: it still counts as waiting, but nothing has to be done for it.
    fn has_space(&self, floor: u32) -> bool {
        let enough = self.free_segments() > floor;
        if enough {
            self.0.space.made.notify_all();
        }
        enough
    }

    /// Makes room for what the volume moves, if it waits and nothing under way will. True if
    /// something was done about it.
    fn relieve_internal(&self) -> bool {
        let space = &self.0.space;
        let internal = self.internal_writer();
        // Who was told that there is none has perhaps not run yet, and counts as waiting.
        if !space.internal.get() || self.out_of_space().is_some() || !self.is_still() {
            return false;
        }
        if self.has_space(0) {
            return false;
        }
        let of_users = self.writers_of_users().find(|writer| writer.takes_more());
        if internal.line() == 0 && !self.relieve_handed_over(&internal, of_users) {
            return false;
        }
        if let Some(writer) = of_users {
            self.hand_over(&internal, writer);
            return true;
        }
        if let Some(recovery) = &mut *space.recovery.borrow_mut()
            && recovery.stage > Stage::Applying
            && !std::mem::replace(&mut recovery.starved, true)
        {
            return true;
        }
        self.give_up_space(0);
        true
    }

    /// What the volume was to move was handed over to users' streams and waits with them for room,
    /// and by now it has a segment of its own: it goes there. True if there was any.
    fn relieve_stranded(&self) -> bool {
        let internal = self.internal_writer();
        let waits = |writer: &&Rc<SegmentWriter>| {
            writer.open.borrow().is_none() && writer.has_line_of_internal()
        };
        let stranded = self.writers_of_users().filter(waits).filter(|_| internal.takes_more());
        stranded.map(|writer| self.take_back(writer, &internal)).count() > 0
    }

    /// What the volume was to move was handed over to users' streams, and waits with them for room.
    /// It goes where another of them writes, or back. True if there was any.
    fn relieve_handed_over(
        &self,
        internal: &Rc<SegmentWriter>,
        of_users: Option<&Rc<SegmentWriter>>,
    ) -> bool {
        let waits =
            |writer: &&Rc<SegmentWriter>| writer.open.borrow().is_none() && writer.line() > 0;
        let mut any = false;
        for writer in self.writers_of_users().filter(waits) {
            any = true;
            match of_users {
                Some(to) => self.hand_over(writer, to),
                None => self.take_back(writer, internal),
            }
        }
        any && (of_users.is_some() || internal.line() > 0)
    }

    /// Users wait, and cleaning gains nothing. True if something was done about it.
    pub(crate) fn relieve_users(&self) -> bool {
        let wanted = self.0.space.users.get() > 0 && !self.0.space.internal.get();
        if !wanted || !self.is_still() || self.has_space(self.0.shape.kept) {
            return false;
        }
        self.give_up_space(self.0.shape.kept);
        true
    }

    /// Nothing will make more than `floor` segments free: does without members that are worn out,
    /// or refuses.
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
        let lost: Vec<String> = (0..self.0.members.len() as u32)
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

    /// Blocks were overwritten or trimmed since there was no room: it may be worth another try.
    pub(crate) fn reconsider_space(&self) {
        let gained = |none: &(Error, u64)| self.used() < none.1;
        if self.0.space.none.borrow().as_ref().is_some_and(gained) {
            self.space_changed();
        }
    }

    /// Zones of a member that can never be written again, as far as that was found out.
    pub fn lost_zones(&self, index: u32) -> u32 {
        let drive = self.0.members[index as usize].drive();
        drive.map_or(0, |drive| drive.zones.count(SuperzoneState::Retired))
    }

    /// Members that lost zones and without which more than `floor` segments are free, as few as
    /// do, if the array can do without them.
    fn worn_out(&self, floor: u32) -> Vec<u32> {
        let free = |index: u32| {
            let drive = self.0.members[index as usize].drive()?;
            Some((drive.zones.free_count(), index))
        };
        let mut by_free: Vec<(u32, u32)> =
            (0..self.0.members.len() as u32).filter_map(free).collect();
        by_free.sort_unstable();
        let narrow = by_free.iter().take_while(|(free, _)| *free <= floor).count();
        let enough = by_free.len() > narrow && self.free_slots() > floor;
        let worn: Vec<u32> = by_free[..narrow].iter().map(|(_, index)| *index).collect();
        let survives = self.survives_without(&worn);
        let lost = worn.iter().all(|index| self.lost_zones(*index) > 0);
        if enough && survives && lost { worn } else { Vec::new() }
    }

    /// Takes out of service whoever does not answer. True if that was somebody.
    pub(crate) fn notice_gone(&self) -> bool {
        let mut gone = false;
        for index in 0..self.0.members.len() as u32 {
            let drive = self.0.members[index as usize].drive();
            if let Some(drive) = drive.filter(|drive| !drive.answers()) {
                let what = format!("{}: it does not answer", drive.device.name());
                self.member_failed(index, Error::new(ErrorKind::Io, what));
                gone = true;
            }
        }
        gone
    }
}
