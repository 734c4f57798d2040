//! A zone's queue: its writes on their way to the drive.
//!
//! Invariants
//! - `done ≤ sent ≤ position ≤ capacity`. Blocks below `done` were answered with success; blocks
//!   from `done` to `sent` are in commands in flight; blocks from `sent` to `position` wait in
//!   the queue.
//! - Commands go to the drive in address order, through the one hardware queue to which the zone is
//!   bound while it is written. Their answers are taken in the same order, so a success at the
//!   front means that the whole prefix succeeded.
//! - A command refused with Zone Invalid Write is retried at the same address if it was sent while
//!   an earlier command was in flight. By the time the refusal is taken, the earlier command has
//!   succeeded, and no command precedes the refused one. So it is retried at most once.
//! - Any other refusal fails the queue for good. Its writes complete once no command is in
//!   flight. If the engine relocates, a queue that follows a failed queue waits until the failed
//!   one is closed.
//! - A queue holds its zone's permit until the drive has freed the zone's resources.
//! - Writes and Zone Appends are never in flight together. Together, the appends in flight fill
//!   exactly the blocks that were set aside for them, in an order that the drive chooses. `done`
//!   counts the blocks of appends in the order of the calls. So `done` says how many blocks were
//!   answered, not which blocks; each append keeps its own place. Waiting appends may go in one
//!   command; their blocks are then consecutive.
//! - An observer is called once for each write, while nothing here is borrowed, so it may
//!   submit writes.
//! - Nothing is sent after a block whose content is not known yet.

mod audit;
mod burst;
pub(crate) mod dispatcher;
pub(crate) mod shared;

use crate::budget::Permit;
use crate::queues::{Bound, Queues};
use crate::writer::failed_zones::Failure;
use crate::writer::zone_write::WriteObserver;
use burst::Burst;
use furrow_rt::{Completion, Page};
use furrow_zone::{Error, ErrorKind, Outcome, QueueId, Request, Result, ZoneId};
use shared::Shared;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Minimum number of blocks of a command if the waiting blocks are divided over several commands: a
/// smaller command costs the drive as much as one of this size.
const PIECE_MIN: u32 = 4;

/// The content of a write.
pub(crate) enum What {
    /// The pages at the write's position, or zeros if it has no pages.
    Here,
    /// A page that may not be known yet.
    Late(Option<Page>),
    /// The pages, at a place that the drive chooses among the blocks of the appends in flight.
    Append,
}

/// The receiver of the block at which a write begins.
#[derive(Default)]
pub(crate) enum Tell {
    #[default]
    Nobody,
    /// A cell that holds the place once the write has completed.
    Place(Rc<Cell<u32>>),
    /// The observer, and the number under which it knows the write.
    Observer(Rc<dyn WriteObserver>, u32),
}

/// Results that the dispatcher passes to observers once nothing is borrowed.
type Told = Vec<(Rc<dyn WriteObserver>, u32, Result<u32>)>;

/// One write that was submitted.
struct Dispatched {
    blocks: u32,
    end: u32,
    sequence: u64,
    fua: bool,
    /// Number of the write's pages in the queue; 0 for zeros and for a late page.
    pages: usize,
    /// Number of out-of-band bytes of the write that are not sent yet; 0 if it has none.
    oob: usize,
    what: What,
    tell: Tell,
}

impl Dispatched {
    /// The block at which the write begins, if the first block of its command, `first`, was written
    /// at `at`. The write may begin before `first`.
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
    /// The request, to be sent again if the drive refuses it. Kept only if an earlier command was
    /// in flight when the request was sent.
    again: Option<Request>,
}

/// Invariants, in addition to those of the module, for a queue that has not failed
/// - the commands in flight end one after the other, the first beyond `done`, the last at `sent`;
/// - every write that has not completed ends beyond `done`, and at most at `position`.
#[derive(Default)]
struct State {
    position: u32,
    sent: u32,
    done: u32,
    queue: VecDeque<Page>,
    /// Out-of-band bytes of the pages in the queue, for writes that have such bytes.
    oob: VecDeque<u8>,
    /// Writes that have not completed, in order.
    writes: VecDeque<Dispatched>,
    /// Index of the first of `writes` that is not wholly sent.
    next: usize,
    flights: VecDeque<Flight>,
    /// The last burst, until it is answered.
    burst: Option<Burst>,
    /// The first block that was set aside for the appends in flight together.
    append_from: u32,
    failed: Option<Error>,
    /// Whether the queue failed, and the drive's status blames this zone alone.
    of_zone: bool,
    /// Whether the zone takes no more writes, and the drive holds no resources for it.
    over: bool,
    /// Wakers of the tasks that wait until `done` reaches a block, in ascending order of the block.
    waiters: VecDeque<(u32, Waker)>,
    idle_waiters: Vec<Waker>,
    dispatcher: Option<Waker>,
    kicked: bool,
    permit: Option<Permit>,
    /// Whether a queue that follows this one takes over the permit when this queue is full.
    hands_over: bool,
    /// The queue before this one: nothing is sent until it is full or its zone was reset.
    predecessor: Option<Rc<ZoneQueue>>,
    /// Logical blocks of the zone to fill before the first write, so that the write pointer is at a
    /// block boundary.
    rest: Option<Range<u64>>,
    /// Whether the writer has forgotten the queue, so the dispatcher ends.
    gone: bool,
    /// Counts the zone as written through its hardware queue, until the zone is full or closed.
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
    /// The hardware queue to which the zone is bound.
    pub(crate) queue: QueueId,
    capacity: u32,
    state: RefCell<State>,
}

impl ZoneQueue {
    /// Creates a queue whose next write is at block `at`, once the logical blocks in `rest`
    /// are filled.
    pub(crate) fn new(zone: ZoneId, capacity: u32, at: u32, rest: Option<Range<u64>>) -> ZoneQueue {
        assert!(at <= capacity, "zone {zone} opened at {at}, its capacity is {capacity}");
        // With a `rest`, block `at - 1` is not done until the rest is filled: a zone counts as full
        // only when the drive has made it full.
        let done = if rest.is_some() { at - 1 } else { at };
        let state = State { position: at, sent: at, done, rest, ..State::default() };
        ZoneQueue { zone, queue: QueueId(0), capacity, state: RefCell::new(state) }
    }

    /// Binds the queue to a hardware queue. A zone that is already full is not counted there.
    pub(crate) fn bound_to(mut self, queue: QueueId, queues: &Rc<Queues>) -> ZoneQueue {
        self.queue = queue;
        let state = self.state.get_mut();
        if state.done < self.capacity {
            state.bound = Some(Bound::new(queues, queue));
        }
        self
    }

    /// Sends nothing before `predecessor` is full or reset, and then takes over its permit.
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

    /// Keeps the permit after the zone is full, for the queue that will follow.
    pub(crate) fn expect_successor(&self) {
        self.state.borrow_mut().hands_over = true;
    }

    /// Queues `blocks` more blocks, with the content `pages` or `what`. Returns the first of these
    /// blocks and the number of the write.
    pub(crate) fn push(
        &self,
        shared: &Shared,
        blocks: u32,
        (pages, oob): (Option<impl ExactSizeIterator<Item = Page>>, &[u8]),
        fua: bool,
        (what, tell): (What, Tell),
    ) -> (u32, u64) {
        let mut state = self.state.borrow_mut();
        let at = state.position;
        assert!(
            blocks <= self.capacity - at,
            "{blocks} blocks at offset {at} of zone {}, which holds {}",
            self.zone,
            self.capacity
        );
        state.position = at + blocks;
        let count = pages.as_ref().map_or(0, ExactSizeIterator::len);
        let sequence = shared.in_flight.borrow_mut().begin(count);
        if let Some(error) = &state.failed {
            let mut in_flight = shared.in_flight.borrow_mut();
            in_flight.sent(1);
            in_flight.complete(sequence, count);
            drop(in_flight);
            let (zone, of_zone, error) = (self.zone, state.of_zone, error.clone());
            if let Tell::Observer(observer, part) = tell {
                // The observer must not be called within the call that submits.
                let error = error.clone();
                shared.rt.spawn_detached(async move { observer.on_complete(part, Err(error)) });
            }
            shared.note_failure(Failure { zone, from: at, of_zone, error, sequence });
            return (at, sequence);
        }
        let end = state.position;
        let write =
            Dispatched { blocks, end, sequence, fua, pages: count, oob: oob.len(), what, tell };
        state.writes.push_back(write);
        if let Some(pages) = pages {
            state.queue.extend(pages);
        }
        state.oob.extend(oob);
        // If as many commands are in flight as the depth allows, the next answer wakes the
        // dispatcher anyway.
        if (state.flights.len() as u32) < shared.depth {
            state.kick();
        }
        (at, sequence)
    }

    /// Fills the rest of a torn block, if there is one and no write is queued.
    pub(crate) fn level(&self, shared: &Shared) {
        let mut state = self.state.borrow_mut();
        if state.rest.is_none() || state.failed.is_some() || !state.writes.is_empty() {
            return;
        }
        let sequence = shared.in_flight.borrow_mut().begin(0);
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

    /// Sets the content of the reserved block at `at`. Does nothing if the queue has failed.
    pub(crate) fn fill_reserved(&self, at: u32, page: Page) {
        let mut state = self.state.borrow_mut();
        if let Some(write) = state.writes.iter_mut().find(|write| write.end == at + 1)
            && let What::Late(late) = &mut write.what
        {
            *late = Some(page);
            state.kick();
        }
    }

    /// Resolves when all blocks below `end` are durable as requested.
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

    /// Resolves when no command is in flight or queued, whether the commands succeeded or not.
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

    /// Takes the rest of the zone out of use: nothing more can be written to the zone.
    pub(crate) fn seal(&self) {
        self.state.borrow_mut().position = self.capacity;
    }

    /// Notes that the zone takes no more writes, and that the drive holds no resources for it any
    /// more.
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

    /// Notes that the zone takes no more writes, although the drive did not finish it.
    pub(crate) fn cannot_end(&self, error: &Error) {
        let mut state = self.state.borrow_mut();
        state.failed.get_or_insert_with(|| error.clone());
        state.wake_reached();
        state.kick();
    }

    /// Wakes the waiters of a failed queue, so that they check it again.
    pub(crate) fn wake_if_failed(&self) {
        self.state.borrow_mut().wake_reached();
    }

    /// Notes that the drive made the zone full.
    pub(crate) fn finished(&self) {
        let mut state = self.state.borrow_mut();
        state.sent = self.capacity;
        self.advance(&mut state, self.capacity);
        state.kick();
    }

    /// Ends the queue because its zone was reset or takes no more writes. Returns the zone's
    /// permit, unless a following queue takes it over.
    pub(crate) fn retire(&self) -> Option<Permit> {
        let mut state = self.state.borrow_mut();
        state.gone = true;
        state.bound = None;
        state.wake_reached();
        state.kick();
        if state.hands_over { None } else { state.permit.take() }
    }

    /// Resolves when the drive holds no resources for the zone any more: the zone is full, or was
    /// reset.
    pub(crate) fn poll_free(&self, shared: &Shared, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let (over, waits) = {
            let state = self.state.borrow();
            let unwritten = state.failed.is_some() && state.done < self.capacity;
            let held = unwritten && shared.failed.are_relocated();
            (state.gone || state.over, state.predecessor.is_some() || held)
        };
        if over {
            return Poll::Ready(Ok(()));
        }
        if waits {
            // This zone may be full while the zone before it is not.
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

/// Builds the error for a zone that is not open.
pub(crate) fn not_open(zone: ZoneId) -> Error {
    Error::new(ErrorKind::Invalid, format!("zone {zone} is not open for writing"))
}
