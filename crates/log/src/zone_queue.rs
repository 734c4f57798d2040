//! A zone_queue: the way of one zone's writes to the drive.
//!
//! Invariants
//! - `done ≤ sent ≤ position ≤ capacity`. Blocks below `done` were answered with success; blocks
//!   from `sent` to `position` wait in the queue; those between are in commands in flight.
//! - Commands go to the drive in address order, through the one queue of the drive that the zone is
//!   bound to while it is written, and their answers are taken in that order. So a success at the
//!   front means the whole prefix succeeded.
//! - A command refused with Zone Invalid Write is sent again at the same address if it was sent
//!   while an earlier one was in flight (which has succeeded by the time its answer is looked
//!   at); then nothing is before it, so it is sent again at most once.
//! - Any other refusal fails the zone_queue for good. Its writes are over once no command is in flight.
//!   Where the engine relocates, a zone_queue that follows a failed one waits until that is closed.
//! - A zone_queue holds its zone's permit until the drive has freed the zone's resources.
//! - Writes and Zone Appends are never in flight together. Appends in flight together fill, in an
//!   order the drive chooses, exactly the blocks that were set aside for them; `done` counts them
//!   in the order of the calls, so it tells how much is answered, and each append where it is.
//!   Those that wait may go in one command: then they land one behind the other.
//! - Who is told of a write is told once, when nothing here is borrowed: he may write more.
//! - Behind a block whose content is not known yet nothing is sent.

use crate::address::{blocks_per_command, oob_per_block, sectors_per_block};
use crate::budget::Permit;
use crate::queues::{Bound, Queues};
use crate::writer::{Failure, Shared, WriteObserver};
use furrow_rt::{Completion, Page, Pages};
use furrow_zone::{
    BlockCount, Command, Error, ErrorKind, Geometry, Lba, Outcome, QueueId, Request, Result,
    Status, ZoneId,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Smallest piece of what waits, in blocks: smaller commands cost a drive as much.
const PIECE_MIN: u32 = 4;

/// What a call asks to have written.
pub(crate) enum What {
    /// Its pages, or zeros if it has none.
    Here,
    /// A page that is not known yet.
    Late(Option<Page>),
    /// Its pages, where the drive likes among the appends in flight.
    Append,
}

/// Who is told where a write is.
#[derive(Default)]
pub(crate) enum Tell {
    #[default]
    Nobody,
    /// It is read here when the write is over.
    Place(Rc<Cell<u32>>),
    /// The party, and which of its writes it is.
    WriteObserver(Rc<dyn WriteObserver>, u32),
}

/// What parties are to be told.
type Told = Vec<(Rc<dyn WriteObserver>, u32, Result<u32>)>;

/// One call of `write`, `fill`, `append` or `reserve_block`.
struct Dispatched {
    blocks: u32,
    end: u32,
    sequence: u64,
    fua: bool,
    /// Its pages in the queue; of zeros and late pages there are none.
    pages: usize,
    /// Out-of-band bytes in their queue, of what is not sent yet; 0: there are none.
    oob: usize,
    what: What,
    tell: Tell,
}

impl Dispatched {
    /// Where it is, if blocks from `first` on came to lie at `at`. It may begin before those.
    fn place(&self, first: u32, at: u32) -> u32 {
        self.end - self.blocks + at - first
    }

    fn is_append(&self) -> bool {
        matches!(self.what, What::Append)
    }
}

struct Flight {
    answer: Completion<Outcome>,
    end: u32,
    append: bool,
    /// What to send again, if an earlier command was in flight when this one was sent.
    again: Option<Request>,
}

#[derive(Default)]
struct State {
    position: u32,
    sent: u32,
    done: u32,
    queue: VecDeque<Page>,
    /// What lies beside the pages in the queue, where a write has that.
    oob: VecDeque<u8>,
    /// Writes not over, in order.
    writes: VecDeque<Dispatched>,
    /// The first of `writes` that is not wholly sent.
    next: usize,
    flights: VecDeque<Flight>,
    /// Where the first of the appends in flight together may have landed.
    append_from: u32,
    failed: Option<Error>,
    /// It failed, and the drive says that it was this zone.
    of_zone: bool,
    /// Nothing is written any more, and the drive holds no resources for the zone.
    over: bool,
    /// Sorted by the offset waited for.
    waiters: VecDeque<(u32, Waker)>,
    idle_waiters: Vec<Waker>,
    dispatcher: Option<Waker>,
    kicked: bool,
    permit: Option<Permit>,
    /// A zone_queue that follows this one takes the permit over when this one is full.
    hands_over: bool,
    /// Nothing is sent before this zone_queue is full, or its zone reset.
    predecessor: Option<Rc<ZoneQueue>>,
    /// Logical blocks of the zone to write before anything else, to stand at a whole block.
    rest: Option<Range<u64>>,
    /// Forgotten by the writer: the dispatcher ends.
    gone: bool,
    /// Counts as written through its queue, until it is full or ended otherwise.
    bound: Option<Bound>,
}

impl State {
    fn is_idle(&self) -> bool {
        self.writes.is_empty() && self.flights.is_empty()
    }

    fn kick(&mut self) {
        if !self.kicked {
            self.kicked = true;
            if let Some(dispatcher) = &self.dispatcher {
                dispatcher.wake_by_ref();
            }
        }
    }

    fn wake_reached(&mut self) {
        let all = self.failed.is_some() || self.gone;
        while self.waiters.front().is_some_and(|(end, _)| all || *end <= self.done) {
            if let Some((_, waker)) = self.waiters.pop_front() {
                waker.wake();
            }
        }
    }

    fn wake_idle(&mut self) {
        if self.is_idle() {
            self.idle_waiters.drain(..).for_each(Waker::wake);
        }
    }
}

pub(crate) struct ZoneQueue {
    pub(crate) zone: ZoneId,
    /// The hardware queue it is bound to.
    pub(crate) queue: QueueId,
    capacity: u32,
    state: RefCell<State>,
}

impl ZoneQueue {
    /// A zone_queue that goes on at block `at`, when the logical blocks in `rest` are written.
    pub(crate) fn new(zone: ZoneId, capacity: u32, at: u32, rest: Option<Range<u64>>) -> ZoneQueue {
        assert!(at <= capacity, "zone {zone} opened at {at}, its capacity is {capacity}");
        // Full is what the drive has made full.
        let done = if rest.is_some() { at - 1 } else { at };
        let state = State { position: at, sent: at, done, rest, ..State::default() };
        ZoneQueue { zone, queue: QueueId(0), capacity, state: RefCell::new(state) }
    }

    /// The same, bound to a hardware queue. A zone that is full already is not written.
    pub(crate) fn bound_to(mut self, queue: QueueId, queues: &Rc<Queues>) -> ZoneQueue {
        self.queue = queue;
        let state = self.state.get_mut();
        if state.done < self.capacity {
            state.bound = Some(Bound::new(queues, queue));
        }
        self
    }

    /// Lets nothing pass before `predecessor` is full or reset, and then takes over its permit.
    pub(crate) fn follow(&self, predecessor: Rc<ZoneQueue>) {
        predecessor.expect_successor();
        self.state.borrow_mut().predecessor = Some(predecessor);
    }

    pub(crate) fn position(&self) -> u32 {
        self.state.borrow().position
    }

    pub(crate) fn done(&self) -> u32 {
        self.state.borrow().done
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state.borrow().is_idle()
    }

    pub(crate) fn failed(&self) -> Option<Error> {
        self.state.borrow().failed.clone()
    }

    pub(crate) fn attach(&self, permit: Permit) {
        let mut state = self.state.borrow_mut();
        if state.done < self.capacity || state.hands_over {
            state.permit = Some(permit);
        }
    }

    /// Keeps the permit beyond the zone's end, for the zone_queue that will follow.
    pub(crate) fn expect_successor(&self) {
        self.state.borrow_mut().hands_over = true;
    }

    /// Queues `blocks` more blocks: `pages`, or as `what` has it. Answers where.
    pub(crate) fn push(
        &self,
        shared: &Shared,
        blocks: u32,
        (pages, oob): (impl ExactSizeIterator<Item = Page>, &[u8]),
        fua: bool,
        (what, tell): (What, Tell),
    ) -> u32 {
        let mut state = self.state.borrow_mut();
        let at = state.position;
        assert!(
            blocks <= self.capacity - at,
            "{blocks} blocks at offset {at} of zone {}, which holds {}",
            self.zone,
            self.capacity
        );
        state.position = at + blocks;
        let count = pages.len();
        let sequence = shared.window.borrow_mut().open(count);
        if let Some(error) = &state.failed {
            shared.window.borrow_mut().close(sequence, count);
            let (zone, of_zone, error) = (self.zone, state.of_zone, error.clone());
            if let Tell::WriteObserver(party, part) = tell {
                // Not on the way of who just asked.
                let error = error.clone();
                shared.rt.spawn_detached(async move { party.on_complete(part, Err(error)) });
            }
            shared.note_failure(Failure { zone, from: at, of_zone, error, sequence });
            return at;
        }
        let end = state.position;
        let write =
            Dispatched { blocks, end, sequence, fua, pages: count, oob: oob.len(), what, tell };
        state.writes.push_back(write);
        state.queue.extend(pages);
        state.oob.extend(oob);
        // With commands in flight up to the depth, the next answer comes by anyway.
        if (state.flights.len() as u32) < shared.depth {
            state.kick();
        }
        at
    }

    /// Has what is missing of a torn block written, if something is and no write is to come.
    pub(crate) fn level(&self, shared: &Shared) {
        let mut state = self.state.borrow_mut();
        if state.rest.is_none() || state.failed.is_some() || !state.writes.is_empty() {
            return;
        }
        let sequence = shared.window.borrow_mut().open(0);
        let (what, tell, end) = (What::Here, Tell::Nobody, state.position);
        let fua = false;
        state.writes.push_back(Dispatched {
            blocks: 0,
            end,
            sequence,
            fua,
            pages: 0,
            oob: 0,
            what,
            tell,
        });
        state.kick();
    }

    /// Tells the content of the late block at `at`; of no effect if its zone_queue has failed.
    pub(crate) fn fill_reserved(&self, at: u32, page: Page) {
        let mut state = self.state.borrow_mut();
        if let Some(write) = state.writes.iter_mut().find(|write| write.end == at + 1)
            && let What::Late(late) = &mut write.what
        {
            *late = Some(page);
            state.kick();
        }
    }

    /// Whether all blocks below `end` are durable as asked.
    pub(crate) fn poll_reached(&self, end: u32, cx: &mut Context<'_>) -> Poll<Result<()>> {
        {
            let state = self.state.borrow();
            if end <= state.done {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = &state.failed {
                return Poll::Ready(Err(error.clone()));
            }
        }
        self.wake_at(end, cx.waker());
        Poll::Pending
    }

    /// Whether no command is in flight or queued, whatever became of them.
    pub(crate) fn poll_idle(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.is_idle() {
            return Poll::Ready(());
        }
        if !state.idle_waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.idle_waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Takes the rest of the zone out of use: nothing can be written to it any more.
    pub(crate) fn seal(&self) {
        self.state.borrow_mut().position = self.capacity;
    }

    /// The drive holds no resources for the zone any more, and nothing is written to it.
    pub(crate) fn is_over(&self) {
        let mut state = self.state.borrow_mut();
        state.over = true;
        state.bound = None;
        if !state.hands_over {
            state.permit = None;
        }
        state.waiters.drain(..).for_each(|(_, waker)| waker.wake());
        state.kick();
    }

    /// It is not written any further, but the drive did not let it end.
    pub(crate) fn cannot_end(&self, error: &Error) {
        let mut state = self.state.borrow_mut();
        state.failed.get_or_insert_with(|| error.clone());
        state.wake_reached();
        state.kick();
    }

    /// Lets those who wait for a failed zone_queue look again.
    pub(crate) fn wake_if_failed(&self) {
        self.state.borrow_mut().wake_reached();
    }

    /// The drive made the zone full.
    pub(crate) fn finished(&self) {
        let mut state = self.state.borrow_mut();
        state.sent = self.capacity;
        self.advance(&mut state, self.capacity);
        state.kick();
    }

    /// Ends the zone_queue: the zone was reset, or is not written any more.
    pub(crate) fn retire(&self) -> Option<Permit> {
        let mut state = self.state.borrow_mut();
        state.gone = true;
        state.bound = None;
        state.wake_reached();
        state.kick();
        if state.hands_over { None } else { state.permit.take() }
    }

    /// Whether the drive holds no resources for the zone any more: it is full, or was reset.
    pub(crate) fn poll_free(&self, shared: &Shared, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let (over, waits) = {
            let state = self.state.borrow();
            let unwritten = state.failed.is_some() && state.done < self.capacity;
            let held = unwritten && shared.relocates.get();
            (state.gone || state.over, state.predecessor.is_some() || held)
        };
        if over {
            return Poll::Ready(Ok(()));
        }
        if waits {
            // Full since long ago, perhaps, but the zone_queue before it may not be.
            self.wake_at(self.capacity, cx.waker());
            return Poll::Pending;
        }
        self.poll_reached(self.capacity, cx)
    }

    fn wake_at(&self, end: u32, waker: &Waker) {
        let mut state = self.state.borrow_mut();
        let at = state.waiters.partition_point(|(other, _)| *other <= end);
        let mut same = state.waiters.range(..at).rev().take_while(|(other, _)| *other == end);
        if !same.any(|(_, other)| other.will_wake(waker)) {
            state.waiters.insert(at, (end, waker.clone()));
        }
    }

    fn advance(&self, state: &mut State, done: u32) {
        state.done = done;
        if done == self.capacity {
            state.bound = None;
            if !state.hands_over {
                state.permit = None;
            }
        }
        state.wake_reached();
    }
}

/// The command that is sent next.
struct Next {
    request: Request,
    end: u32,
    /// Others are in flight before it.
    behind: bool,
    append: bool,
}

/// The task that moves one zone_queue's writes to the drive.
pub(crate) struct Dispatcher {
    zone_queue: Rc<ZoneQueue>,
    shared: Rc<Shared>,
    told: RefCell<Told>,
}

impl Future for Dispatcher {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.zone_queue.state.borrow_mut().kicked = false;
        if self.pass_gate(cx).is_ready() {
            self.reap(cx);
            while self.send() {
                // A drive that answers at once would otherwise never wake us: look again.
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
        // With the executor it ends before its writes: parties may keep what keeps the zone_queue.
        let writes = std::mem::take(&mut self.zone_queue.state.borrow_mut().writes);
        drop(writes);
    }
}

impl Dispatcher {
    pub(crate) fn new(zone_queue: Rc<ZoneQueue>, shared: Rc<Shared>) -> Dispatcher {
        Dispatcher { zone_queue, shared, told: RefCell::default() }
    }

    /// Tells parties what became of their writes. What they write thereupon wakes this task.
    fn tell(&self) {
        let mut told = self.told.take();
        for (party, part, at) in told.drain(..) {
            party.on_complete(part, at);
        }
        *self.told.borrow_mut() = told;
    }

    /// Waits for the zone_queue before this one and takes over its permit.
    fn pass_gate(&self, cx: &mut Context<'_>) -> Poll<()> {
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

    /// Takes the answers that are there, from the front.
    fn reap(&self, cx: &mut Context<'_>) {
        loop {
            let (flight, outcome) = {
                let mut state = self.zone_queue.state.borrow_mut();
                let Some(flight) = state.flights.front_mut() else { break };
                let Poll::Ready(outcome) = Pin::new(&mut flight.answer).poll(cx) else { return };
                (state.flights.pop_front(), outcome)
            };
            if let Some(flight) = flight {
                self.settle(flight, outcome);
            }
        }
        // Nothing in flight any more: a failed zone_queue's writes are over.
        let mut state = self.zone_queue.state.borrow_mut();
        if state.failed.is_some() {
            let mut window = self.shared.window.borrow_mut();
            for write in state.writes.drain(..) {
                window.close(write.sequence, write.pages);
            }
            state.next = 0;
        }
    }

    fn settle(&self, flight: Flight, outcome: Outcome) {
        let mut state = self.zone_queue.state.borrow_mut();
        if state.failed.is_some() {
            return;
        }
        if outcome.status.is_ok() {
            let first = state.done;
            let mut at = first;
            if flight.append {
                at = match self.on_complete(&state, flight.end, outcome.lba) {
                    Ok(at) => at,
                    Err((error, of_zone)) => {
                        drop(state);
                        return self.fail(error, of_zone);
                    }
                };
            }
            let mut window = self.shared.window.borrow_mut();
            let mut told = self.told.borrow_mut();
            while state.writes.front().is_some_and(|write| write.end <= flight.end) {
                if let Some(write) = state.writes.pop_front() {
                    window.close(write.sequence, write.pages);
                    state.next -= 1;
                    let place = write.place(first, at);
                    match write.tell {
                        Tell::Nobody => {}
                        Tell::Place(told) => told.set(place),
                        Tell::WriteObserver(party, part) => told.push((party, part, Ok(place))),
                    }
                }
            }
            drop((window, told));
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
        // What else it may say is about the drive, or about us.
        let of_zone = matches!(
            outcome.status,
            Status::WriteFault | Status::ZoneFull | Status::ZoneReadOnly | Status::ZoneOffline
        );
        self.fail(Error::device(&self.shared.device.name(), what, outcome.status), of_zone);
    }

    /// Where an append landed: among the blocks set aside for those in flight with it. Else the
    /// error, and whether it is only the zone's: one torn within a block of ours shifts the others.
    fn on_complete(
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
                Tell::WriteObserver(party, part) => told.push((party, part, Err(error.clone()))),
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
        // Only a write that can overtake an earlier one can have to be sent again.
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

    /// The next command: what is queued and adjacent in one, if it may.
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
            // One that is there for this alone is sent with it.
            state.next += usize::from(write.blocks == 0);
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
            // What is left below a whole block is written too: a zone is to become full.
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

    /// Takes what goes in the next command out of the queue: pages and what lies beside them.
    fn gather(&self, state: &mut State, (fua, append): (bool, bool)) -> (Pages, Vec<u8>) {
        let (from, shared) = (state.sent, &self.shared);
        let (limit, join) = if append {
            let most = shared.blocks_per_append;
            (self.piece(state, shared.append_pieces, most), shared.append_pieces > 0)
        } else {
            (self.piece(state, shared.pieces, shared.blocks_per_command), shared.join)
        };
        let most = limit.min(state.position - from) as usize;
        let (mut data, mut oob) = (Pages::with_capacity(most), Vec::new());
        let block_oob = oob_per_block(shared.device.geometry());
        let alike = |write: &&mut Dispatched| write.fua == fua && write.is_append() == append;
        while let Some(write) = state.writes.get_mut(state.next).filter(alike) {
            let left = write.end - state.sent;
            // An append may be longer than a piece, and lands as a whole.
            let room = (from + limit).saturating_sub(state.sent);
            if append && left > room && state.sent > from {
                break;
            }
            let count = if append { left } else { left.min(room) };
            match &write.what {
                What::Here if write.pages == 0 => {
                    data.extend((0..count).map(|_| shared.zero.clone()));
                }
                What::Here | What::Append => {
                    data.extend((0..count).filter_map(|_| state.queue.pop_front()));
                }
                What::Late(Some(page)) => data.extend((count > 0).then(|| page.clone())),
                What::Late(None) => break,
            }
            if write.oob > 0 {
                if oob.is_empty() {
                    oob.reserve_exact(most * block_oob);
                }
                // What was taken before may have no more than zeros.
                oob.resize((state.sent - from) as usize * block_oob, 0);
                let now = (count as usize * block_oob).min(write.oob);
                write.oob -= now;
                take(&mut state.oob, now, &mut oob);
            }
            state.sent += count;
            if state.sent < write.end {
                break;
            }
            state.next += 1;
            if !join {
                break;
            }
        }
        (data, oob)
    }

    /// Blocks of the next command: all that wait, unless they are to keep several dies busy.
    fn piece(&self, state: &State, pieces: u32, most: u32) -> u32 {
        let missing = pieces.saturating_sub(state.flights.len() as u32).max(1);
        let waiting = state.position - state.sent;
        if missing == 1 { most } else { waiting.div_ceil(missing).max(PIECE_MIN).min(most) }
    }

    /// Zeros for the rest of a block in which a torn write left the write pointer, and of the zone
    /// behind its last block.
    fn level(&self, rest: Range<u64>) -> Request {
        let geometry = self.shared.device.geometry();
        let blocks = BlockCount(rest.end - rest.start);
        let lba = Lba(geometry.start(self.zone_queue.zone).0 + rest.start);
        let pages = blocks.0.div_ceil(sectors_per_block(geometry));
        let zeros = (0..pages).map(|_| self.shared.zero.clone());
        Request::with_data(Command::Write { lba, blocks }, zeros.collect::<Pages>())
    }
}

/// Moves the first `count` bytes of `from` to the end of `to`.
fn take(from: &mut VecDeque<u8>, count: usize, to: &mut Vec<u8>) {
    let (first, second) = from.as_slices();
    let here = count.min(first.len());
    to.extend_from_slice(&first[..here]);
    to.extend_from_slice(&second[..count - here]);
    from.drain(..count);
}

/// Logical blocks at the end of a zone that make no whole block.
pub(crate) fn tail_sectors(geometry: &Geometry) -> u64 {
    geometry.zone_capacity.0 % sectors_per_block(geometry)
}

/// Blocks a write command may have: leaves room for a zone's tail below a whole block.
pub(crate) fn largest_command(geometry: &Geometry) -> u32 {
    let most = blocks_per_command(geometry);
    if tail_sectors(geometry) > 0 { most.saturating_sub(1).max(1) } else { most }
}

/// Blocks an append may have.
pub(crate) fn largest_append(geometry: &Geometry) -> u32 {
    let limit = geometry.append_limit().map_or(u64::MAX, |limit| limit.0);
    (limit / sectors_per_block(geometry)).min(u64::from(blocks_per_command(geometry))) as u32
}

/// The error of a zone nobody opened.
pub(crate) fn not_open(zone: ZoneId) -> Error {
    Error::new(ErrorKind::Invalid, format!("zone {zone} is not open for writing"))
}
