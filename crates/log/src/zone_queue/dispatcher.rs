//! The task that sends a queue's writes to the drive and takes the answers.

use super::shared::{Shared, tail_sectors};
use super::{Flight, State, Tell, Told, ZoneQueue};
use crate::address::sectors_per_block;
use crate::writer::failed_zones::Failure;
use furrow_rt::{Completion, Pages};
use furrow_zone::{BlockCount, Command, Error, ErrorKind, Lba, Outcome, Request, Status};
use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

mod join;

/// The command that is sent next.
struct Next {
    request: Request,
    end: u32,
    /// Whether earlier commands are in flight.
    behind: bool,
    append: bool,
}

/// The task that sends one queue's writes to the drive.
pub(crate) struct Dispatcher {
    zone_queue: Rc<ZoneQueue>,
    shared: Rc<Shared>,
    told: RefCell<Told>,
}

impl Future for Dispatcher {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.zone_queue.state.borrow_mut().kicked = false;
        if self.pass_predecessor(cx).is_ready() {
            self.reap(cx);
            while self.send() {
                // Take answers again: a drive that answers at once would otherwise never wake
                // this task.
                self.reap(cx);
            }
        }
        self.tell();
        let mut state = self.zone_queue.state.borrow_mut();
        state.wake_idle();
        let full = state.done == self.zone_queue.capacity && state.predecessor.is_none();
        let over = state.gone || state.over || state.failed.is_some() || full;
        if over && state.is_idle() {
            state.dispatcher = None;
            return Poll::Ready(());
        }
        if !state.dispatcher.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.dispatcher = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        // If the executor drops this task early, the writes are dropped here: their observers may
        // hold references that keep the queue alive.
        let writes = std::mem::take(&mut self.zone_queue.state.borrow_mut().writes);
        drop(writes);
    }
}

impl Dispatcher {
    pub(crate) fn new(zone_queue: Rc<ZoneQueue>, shared: Rc<Shared>) -> Dispatcher {
        Dispatcher { zone_queue, shared, told: RefCell::default() }
    }

    /// Calls observers with the results of their writes. Writes that they submit meanwhile wake
    /// this task.
    fn tell(&self) {
        let mut told = self.told.take();
        for (observer, part, at) in told.drain(..) {
            observer.on_complete(part, at);
        }
        *self.told.borrow_mut() = told;
    }

    /// Waits for the queue before this one, and takes over its permit.
    fn pass_predecessor(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(predecessor) = self.zone_queue.state.borrow().predecessor.clone() else {
            return Poll::Ready(());
        };
        let Poll::Ready(result) = predecessor.poll_free(&self.shared, cx) else {
            return Poll::Pending;
        };
        let permit = predecessor.state.borrow_mut().permit.take();
        {
            let mut state = self.zone_queue.state.borrow_mut();
            state.predecessor = None;
            if state.permit.is_none() {
                state.permit = permit;
            }
            state.wake_reached();
        }
        if let Err(error) = result {
            self.fail(error, false);
        }
        Poll::Ready(())
    }

    /// Takes the available answers, in the order of the commands.
    fn reap(&self, cx: &mut Context<'_>) {
        loop {
            let (flight, outcome) = {
                let mut state = self.zone_queue.state.borrow_mut();
                let Some(flight) = state.flights.front_mut() else { break };
                let Poll::Ready(outcome) = Pin::new(&mut flight.answer).poll(cx) else { return };
                (state.flights.pop_front(), outcome)
            };
            if let Some(flight) = flight {
                self.take_answer(flight, outcome);
            }
        }
        // No command is in flight any more: the writes of a failed queue complete.
        let mut state = self.zone_queue.state.borrow_mut();
        if state.failed.is_some() {
            let mut in_flight = self.shared.in_flight.borrow_mut();
            in_flight.sent(state.writes.len() - state.next);
            for write in state.writes.drain(..) {
                in_flight.complete(write.sequence, write.pages);
            }
            state.next = 0;
        }
    }

    /// Takes the answer of the oldest command: its writes complete, or the command is retried, or
    /// the queue fails.
    fn take_answer(&self, flight: Flight, outcome: Outcome) {
        let mut state = self.zone_queue.state.borrow_mut();
        if state.failed.is_some() {
            return;
        }
        if outcome.status.is_ok() {
            let first = state.done;
            let mut at = first;
            if flight.append {
                at = match self.appended_at(&state, flight.end, outcome.lba) {
                    Ok(at) => at,
                    Err((error, of_zone)) => {
                        drop(state);
                        return self.fail(error, of_zone);
                    }
                };
            }
            let mut in_flight = self.shared.in_flight.borrow_mut();
            let mut told = self.told.borrow_mut();
            while state.writes.front().is_some_and(|write| write.end <= flight.end) {
                if let Some(write) = state.writes.pop_front() {
                    in_flight.complete(write.sequence, write.pages);
                    state.next -= 1;
                    let place = write.place(first, at);
                    match write.tell {
                        Tell::Nobody => {}
                        Tell::Place(told) => told.set(place),
                        Tell::Observer(observer, part) => told.push((observer, part, Ok(place))),
                    }
                }
            }
            drop((in_flight, told));
            if let Some(burst) = state.burst.take_if(|burst| burst.end <= flight.end) {
                self.shared.bursts.borrow_mut().ended(burst, || self.shared.rt.now());
            }
            self.zone_queue.advance(&mut state, flight.end);
            return;
        }
        if let (Status::ZoneInvalidWrite, Some(again)) = (outcome.status, flight.again) {
            self.shared.counters.borrow_mut().retries += 1;
            let answer = self.submit(again);
            state.flights.push_front(Flight { answer, again: None, ..flight });
            return;
        }
        let (first, zone) = (state.done, self.zone_queue.zone);
        drop(state);
        let what = format!("write of {} blocks at zone {zone} offset {first}", flight.end - first);
        // These statuses blame the zone alone. Any other concerns the drive as a whole, or shows a
        // defect of this program.
        let of_zone = matches!(
            outcome.status,
            Status::WriteFault | Status::ZoneFull | Status::ZoneReadOnly | Status::ZoneOffline
        );
        self.fail(Error::device(&self.shared.device.name(), what, outcome.status), of_zone);
    }

    /// Returns the block at which an append begins, if this block is among the blocks set aside for
    /// the appends in flight. Otherwise returns the error, and whether the error concerns this zone
    /// alone: true if another append, torn within a block, has shifted this append.
    fn appended_at(
        &self,
        state: &State,
        end: u32,
        lba: Lba,
    ) -> std::result::Result<u32, (Error, bool)> {
        let geometry = self.shared.device.geometry();
        let per_block = sectors_per_block(geometry);
        let blocks = u64::from(end - state.done);
        let sectors = lba.0.wrapping_sub(geometry.start(self.zone_queue.zone).0);
        let at = sectors / per_block;
        let fits = at >= u64::from(state.append_from) && at + blocks <= u64::from(state.sent);
        if !sectors.is_multiple_of(per_block) || !fits {
            let (name, zone) = (self.shared.device.name(), self.zone_queue.zone);
            let (from, to) = (state.append_from, state.sent);
            let message = format!(
                "{name}: append of {blocks} blocks to zone {zone} landed at LBA {lba}, expected \
                 offset {from} to {to}"
            );
            let within = (u64::from(from)..u64::from(to)).contains(&at);
            let shifted = within && !sectors.is_multiple_of(per_block);
            return Err((Error::new(ErrorKind::Io, message), shifted));
        }
        Ok(at as u32)
    }

    fn fail(&self, error: Error, of_zone: bool) {
        let mut state = self.zone_queue.state.borrow_mut();
        if let Some(write) = state.writes.front() {
            let (zone, from, sequence) = (self.zone_queue.zone, state.done, write.sequence);
            let error = error.clone();
            self.shared.note_failure(Failure { zone, from, of_zone, error, sequence });
        }
        let mut told = self.told.borrow_mut();
        for write in &mut state.writes {
            match std::mem::take(&mut write.tell) {
                Tell::Observer(observer, part) => told.push((observer, part, Err(error.clone()))),
                Tell::Nobody | Tell::Place(_) => {}
            }
        }
        state.queue.clear();
        state.oob.clear();
        (state.failed, state.of_zone) = (Some(error), of_zone);
        state.wake_reached();
    }

    fn submit(&self, request: Request) -> Completion<Outcome> {
        let shared = &self.shared;
        shared.counters.borrow_mut().commands += 1;
        shared.device.submit(self.zone_queue.queue, request)
    }

    /// Sends the next command, if there is one and the depth allows it.
    fn send(&self) -> bool {
        let Some(Next { request, end, behind, append }) = self.next_request() else {
            return false;
        };
        // Keep a copy for a retry only for a write that may overtake an earlier command.
        let again = (behind && !append).then(|| Request {
            command: request.command,
            data: request.data.clone(),
            oob: request.oob.clone(),
            fua: request.fua,
        });
        let answer = self.submit(request);
        self.zone_queue.state.borrow_mut().flights.push_back(Flight { answer, end, append, again });
        true
    }

    /// Builds the next command, which joins adjacent queued writes where that is allowed.
    fn next_request(&self) -> Option<Next> {
        let state = &mut *self.zone_queue.state.borrow_mut();
        let (from, depth) = (state.sent, self.shared.depth as usize);
        if state.failed.is_some() || state.flights.len() >= depth {
            return None;
        }
        let write = state.writes.get(state.next)?;
        let (fua, append) = (write.fua, write.is_append());
        let behind = !state.flights.is_empty();
        let among = state.flights.front().is_some_and(|flight| flight.append);
        if behind && among != append {
            return None;
        }
        if let Some(rest) = state.rest.take() {
            // A write without blocks only triggers the filling of the torn block, and counts as
            // sent with it.
            if write.blocks == 0 {
                state.next += 1;
                self.shared.in_flight.borrow_mut().sent(1);
            }
            let request = self.level(rest);
            return Some(Next { request, end: from, behind, append: false });
        }
        if append && !behind {
            state.append_from = from;
        }
        let (mut data, mut oob) = self.gather(state, (fua, append));
        if state.sent == from {
            return None;
        }
        let geometry = self.shared.device.geometry();
        let per_block = sectors_per_block(geometry);
        let mut sectors = u64::from(state.sent - from) * per_block;
        if state.sent == self.zone_queue.capacity {
            // The tail, which is less than a block, is written too, so that the zone becomes full.
            let tail = tail_sectors(geometry);
            sectors += tail;
            data.extend((tail > 0).then(|| self.shared.zero.clone()));
        }
        let (zone_start, blocks) = (geometry.start(self.zone_queue.zone), BlockCount(sectors));
        let command = if append {
            Command::Append { zone_start, blocks }
        } else {
            Command::Write { lba: Lba(zone_start.0 + u64::from(from) * per_block), blocks }
        };
        if !oob.is_empty() {
            oob.resize(sectors as usize * usize::from(geometry.oob_bytes), 0);
        }
        let request = Request { command, data, oob, fua };
        Some(Next { request, end: state.sent, behind, append })
    }

    /// Builds a write of zeros to the logical blocks `rest` of the zone: the rest of a block in
    /// which a torn write left the write pointer and, after the zone's last block, the tail of
    /// the zone.
    fn level(&self, rest: Range<u64>) -> Request {
        let geometry = self.shared.device.geometry();
        let blocks = BlockCount(rest.end - rest.start);
        let lba = Lba(geometry.start(self.zone_queue.zone).0 + rest.start);
        let pages = blocks.0.div_ceil(sectors_per_block(geometry));
        let zeros = (0..pages).map(|_| self.shared.zero.clone());
        Request::with_data(Command::Write { lba, blocks }, zeros.collect::<Pages>())
    }
}
