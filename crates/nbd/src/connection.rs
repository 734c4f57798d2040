//! One client's connection: its socket, what was read and not yet understood, what waits to leave.
//!
//! Two tasks serve it. The reading one takes requests from the socket, many with one call; the
//! sending one writes replies, many with one call. Between them stand the requests under way, each
//! charged to the connection's budget.
//!
//! Invariants:
//! - Nothing is read for which there is no memory: a charge comes first.
//! - A client that stands still in the middle of a message, or takes no replies, is cut after
//!   [`Limits::stall`]; between messages it may be silent for [`Limits::idle`].

use crate::budget::Budget;
use crate::listen::Peer;
use crate::reply::{Outbox, Reply};
use crate::server::Limits;
use crate::status::{ConnectionStatus, Counters};
use crate::stream::Stream;
use furrow_rt::{Notify, PAGE_SIZE, Page, Pages, Permit, Pool, Rt, Semaphore, either, within};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::io::IoSliceMut;
use std::rc::Rc;

/// Bytes read ahead of what is understood.
const STAGE: usize = 64 << 10;
/// Pages that one call reads at most.
const PAGES_AT_ONCE: usize = 256;
/// Bytes a client must take or send in each [`Limits::stall`] while it is in the middle of
/// something, so that dribbling is no way to hold on to memory.
const PROGRESS: u64 = 64 << 10;

/// Of a connection's requests that have to wait for each other where they overlap (writes of parts
/// of blocks), or that take long (trims and zeroes, by their length), as many are under way at
/// once: the next client on another connection waits for no more than these.
const TURNS: u64 = 64;

/// Why a connection's reading ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client went away between two messages, or was told to.
    Orderly,
    /// It broke the protocol, stood still or vanished in the middle of a message.
    Broken,
    /// Nothing came for as long as a client may be silent.
    Idle,
}

/// What the tasks of a connection share.
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) rt: Rt,
    pub(crate) stream: Stream,
    pub(crate) outbox: Outbox,
    pub(crate) budget: Rc<Budget>,
    /// See [`TURNS`].
    turns: Semaphore,
    pub(crate) pool: Pool,
    pub(crate) counters: Counters,
    pub(crate) export: RefCell<Option<String>>,
    limits: Rc<Limits>,
    in_flight: Cell<u64>,
    /// The reading task is handling what it has read and will flush: nobody need wake the sender.
    batching: Cell<bool>,
    draining: Cell<bool>,
    ended: Cell<bool>,
    spoke: Cell<bool>,
    was_cut: Cell<bool>,
    /// Told when draining begins, and then when there may be nothing left to do.
    changed: Notify,
}

impl Link {
    pub(crate) fn new(
        id: u64,
        peer: Peer,
        rt: Rt,
        stream: Stream,
        limits: Rc<Limits>,
        budget: Budget,
        pool: Pool,
    ) -> Link {
        Link {
            id,
            peer,
            rt,
            stream,
            outbox: Outbox::default(),
            budget: Rc::new(budget),
            turns: Semaphore::new(TURNS),
            pool,
            counters: Counters::default(),
            export: RefCell::new(None),
            limits,
            in_flight: Cell::new(0),
            batching: Cell::new(false),
            draining: Cell::new(false),
            ended: Cell::new(false),
            spoke: Cell::new(false),
            was_cut: Cell::new(false),
            changed: Notify::new(),
        }
    }

    /// True once the server wants to be rid of it: nothing new is begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Begins nothing new, and ends when what is under way has ended.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.changed.notify_all();
    }

    /// Ends it at once. What is under way in the volume goes on there.
    pub(crate) fn cut(&self) {
        self.was_cut.set(true);
        self.outbox.close();
        self.stream.cut();
    }

    /// Nothing has come from the client yet.
    pub(crate) fn is_silent(&self) -> bool {
        !self.spoke.get()
    }

    /// It has been cut, and is about to end.
    pub(crate) fn was_cut(&self) -> bool {
        self.was_cut.get()
    }

    /// Waits for the turn of a request on `blocks` blocks of which only few may be under way.
    pub(crate) async fn turn(&self, blocks: u64) -> Permit {
        self.turns.acquire(blocks.div_ceil(4096).clamp(1, TURNS / 4)).await
    }

    /// The reading task begins to handle what it has read, and will flush before it waits.
    pub(crate) fn batch(&self) {
        self.batching.set(true);
    }

    /// A request begins.
    pub(crate) fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// A request has ended: its reply is sent.
    pub(crate) fn answer(&self, reply: Reply) {
        self.outbox.push(reply);
        if !self.batching.get() {
            self.outbox.filled.notify_all();
        }
    }

    /// The counterpart of [`Link::begin`], after the answer.
    pub(crate) fn end(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 && self.draining.get() {
            self.changed.notify_all();
        }
    }

    /// Sends what waits, as far as the socket takes it now; the sending task does the rest.
    /// Before every wait of the reading task.
    pub(crate) fn flush(&self) {
        self.batching.set(false);
        if !self.outbox.is_empty() && !matches!(self.outbox.write(&self.stream), Ok(true)) {
            self.outbox.filled.notify_all();
        }
    }

    fn is_idle(&self) -> bool {
        self.in_flight.get() == 0 && self.outbox.is_empty() && self.stream.is_drained()
    }

    /// The sending task.
    pub(crate) async fn send(self: Rc<Self>) {
        loop {
            match self.outbox.write(&self.stream) {
                Ok(true) => {
                    if self.draining.get() {
                        self.changed.notify_all();
                    }
                    if self.ended.get() {
                        return;
                    }
                    self.outbox.filled.wait().await;
                }
                Ok(false) => {
                    if !self.wait_to_send().await {
                        return self.cut();
                    }
                }
                Err(_) => return self.cut(),
            }
            if self.outbox.is_closed() {
                return;
            }
        }
    }

    /// Sends until nothing is left. False if the client does not take it.
    async fn wait_to_send(&self) -> bool {
        let mut since = self.rt.now();
        let mut from = self.outbox.sent();
        loop {
            let patience = self.limits.stall.saturating_sub(self.rt.now().since(since));
            if within(&self.rt, patience, self.stream.writable(&self.rt)).await.is_none() {
                return false;
            }
            match self.outbox.write(&self.stream) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(_) => return false,
            }
            if self.outbox.sent() - from >= PROGRESS {
                (since, from) = (self.rt.now(), self.outbox.sent());
            }
        }
    }

    /// Waits until what was under way has ended and its replies were sent.
    pub(crate) async fn finish(&self) {
        self.draining.set(true);
        // No batch goes on: each answer leaves when it is there.
        self.flush();
        while self.in_flight.get() > 0 {
            self.changed.wait().await;
        }
        self.ended.set(true);
        self.outbox.filled.notify_all();
    }

    pub(crate) fn status(&self) -> ConnectionStatus {
        ConnectionStatus {
            id: self.id,
            peer: self.peer.name.clone(),
            export: self.export.borrow().clone(),
            tls: self.stream.is_tls(),
            in_flight: self.in_flight.get(),
            in_flight_bytes: self.budget.used(),
            counts: self.counters.get(),
        }
    }
}

/// Bytes from the client, in order.
pub(crate) struct Input {
    link: Rc<Link>,
    stage: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes of the stage that the next read may fill.
    ahead: usize,
    /// The last read took all there was: the next would likely find nothing.
    dry: bool,
    /// Messages taken since the last read.
    taken: u32,
}

impl Input {
    pub(crate) fn new(link: Rc<Link>) -> Input {
        Input {
            link,
            stage: vec![0; STAGE].into_boxed_slice(),
            start: 0,
            end: 0,
            ahead: STAGE,
            dry: false,
            taken: 0,
        }
    }

    /// What is here and not yet taken.
    pub(crate) fn held(&self) -> &[u8] {
        &self.stage[self.start..self.end]
    }

    /// Takes the first `count` bytes of what is here.
    pub(crate) fn take(&mut self, count: usize) -> &[u8] {
        debug_assert!(count <= self.end - self.start);
        let from = self.start;
        self.start += count;
        self.taken += 1;
        &self.stage[from..from + count]
    }

    /// What follows is likely many small messages, not the payload of one.
    pub(crate) fn expect_small(&mut self) {
        self.ahead = STAGE;
    }

    fn compact(&mut self) {
        if self.start > 0 {
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Reads once into `pages` (from byte `at` of them to `until`) and what is left of the stage.
    /// Returns the bytes that came for the pages.
    fn read(&mut self, pages: &mut [Page], at: usize, until: usize) -> Result<usize, Errno> {
        let mut buffers: SmallVec<[IoSliceMut<'_>; 32]> = SmallVec::new();
        for (i, page) in pages.iter_mut().enumerate() {
            let first = at.saturating_sub(i * PAGE_SIZE).min(PAGE_SIZE);
            let last = until.saturating_sub(i * PAGE_SIZE).min(PAGE_SIZE);
            if first < last {
                buffers.push(IoSliceMut::new(&mut page.make_mut()[first..last]));
            }
        }
        let limit = (self.end + self.ahead).min(STAGE);
        buffers.push(IoSliceMut::new(&mut self.stage[self.end..limit]));
        let room = until - at + limit - self.end;
        (self.dry, self.taken) = (false, 0);
        match self.link.stream.read(&mut buffers)? {
            0 => Err(Errno::PIPE),
            count => {
                self.link.spoke.set(true);
                // Under TLS there may be more that was read, but not given out.
                self.dry = count < room && !self.link.stream.is_tls();
                let landed = count.min(until - at);
                self.end += count - landed;
                Ok(landed)
            }
        }
    }

    /// Waits, between two messages, until there is more. An error ends the connection.
    pub(crate) async fn more(&mut self) -> Result<(), End> {
        self.compact();
        let middle = self.end > 0;
        self.link.flush();
        // A client that always sends more must not keep others waiting.
        self.link.rt.yield_now().await;
        // Who sends one request at a time has not sent the next yet.
        let mut first_wait = self.dry && self.taken <= 1;
        loop {
            if !std::mem::take(&mut first_wait) {
                match self.read(&mut [], 0, 0) {
                    Ok(_) => {
                        self.link.batch();
                        return Ok(());
                    }
                    Err(Errno::AGAIN) => {}
                    Err(_) if middle => return Err(End::Broken),
                    Err(_) => return Err(End::Orderly),
                }
            }
            if self.link.is_draining() && self.link.is_idle() {
                return Err(End::Orderly);
            }
            let link = &self.link;
            let readable = link.stream.readable(&link.rt);
            if middle {
                within(&link.rt, link.limits.stall, readable).await.ok_or(End::Broken)?;
            } else {
                // Either is reason to look again.
                let news = either(readable, link.changed.wait());
                match link.limits.idle {
                    0 => drop(news.await),
                    idle if within(&link.rt, idle, news).await.is_none() && link.is_idle() => {
                        return Err(End::Idle);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Waits until at least `count` bytes (of the stage's 64 KiB) are here. For the handshake,
    /// whose time is limited as a whole.
    pub(crate) async fn need(&mut self, count: usize) -> Result<(), End> {
        while self.end - self.start < count {
            self.compact();
            match self.read(&mut [], 0, 0) {
                Ok(_) => {}
                Err(Errno::AGAIN) => self.link.stream.readable(&self.link.rt).await,
                Err(_) if self.end == 0 => return Err(End::Orderly),
                Err(_) => return Err(End::Broken),
            }
        }
        Ok(())
    }

    /// Takes a request's payload: `length` bytes, at byte `from` of the first of the pages that
    /// are returned. What has not come yet goes from the socket to its page.
    pub(crate) async fn payload(&mut self, from: usize, length: usize) -> Result<Pages, End> {
        let until = from + length;
        let mut pages = Pages::with_capacity(until.div_ceil(PAGE_SIZE));
        let mut at = from;
        // Where payload is large, read it without the head of what follows it.
        self.ahead = if length > STAGE / 4 { crate::wire::REQUEST_HEADER } else { STAGE };
        self.unstage(&mut pages, &mut at, until);
        let mut watch = self.watch();
        while at < until {
            self.compact();
            let whole = pages.len();
            let first = at / PAGE_SIZE;
            let last = until.div_ceil(PAGE_SIZE).min(first + PAGES_AT_ONCE);
            pages.extend((whole..last).map(|_| self.link.pool.take_dirty()));
            let base = first * PAGE_SIZE;
            let stop = until.min(last * PAGE_SIZE);
            // The stage follows the payload only where this call may read all of the payload.
            let ahead = std::mem::replace(&mut self.ahead, 0);
            self.ahead = if stop == until { ahead } else { 0 };
            let landed = self.read(&mut pages[first..last], at - base, stop - base);
            self.ahead = ahead;
            match landed {
                Ok(count) => at += count,
                Err(Errno::AGAIN) => {}
                Err(_) => return Err(End::Broken),
            }
            if at < until && (landed.is_err() || self.dry) {
                self.wait(&mut watch, at - from).await?;
            }
        }
        self.link.batch();
        Ok(pages)
    }

    /// Moves what is here already of a payload to its pages.
    fn unstage(&mut self, pages: &mut Pages, at: &mut usize, until: usize) {
        while *at < until && self.start < self.end {
            let within = *at % PAGE_SIZE;
            if within == 0 || pages.is_empty() {
                pages.push(self.link.pool.take_dirty());
            }
            let count = (PAGE_SIZE - within).min(until - *at).min(self.end - self.start);
            let page = pages.last_mut().expect("invariant: one was pushed");
            let bytes = &self.stage[self.start..self.start + count];
            page.make_mut()[within..within + count].copy_from_slice(bytes);
            self.start += count;
            *at += count;
        }
    }

    /// Takes `length` bytes of payload that nobody wants.
    pub(crate) async fn discard(&mut self, length: u64) -> Result<(), End> {
        let mut left = length;
        let mut watch = self.watch();
        self.expect_small();
        loop {
            let count = left.min((self.end - self.start) as u64);
            self.take(count as usize);
            left -= count;
            if left == 0 {
                return Ok(());
            }
            self.compact();
            match self.read(&mut [], 0, 0) {
                // Much may be thrown away: others get their turn.
                Ok(_) => {
                    self.link.flush();
                    self.link.rt.yield_now().await;
                }
                Err(Errno::AGAIN) => self.wait(&mut watch, (length - left) as usize).await?,
                Err(_) => return Err(End::Broken),
            }
        }
    }

    fn watch(&self) -> Watch {
        Watch { since: None, done: 0 }
    }

    /// Waits for more of a message of which `done` bytes have come.
    async fn wait(&self, watch: &mut Watch, done: usize) -> Result<(), End> {
        let link = &self.link;
        link.flush();
        let now = link.rt.now();
        let since = *watch.since.get_or_insert(now);
        let patience = link.limits.stall.saturating_sub(now.since(since));
        let readable = link.stream.readable(&link.rt);
        within(&link.rt, patience, readable).await.ok_or(End::Broken)?;
        if (done - watch.done) as u64 >= PROGRESS {
            *watch = Watch { since: Some(link.rt.now()), done };
        }
        Ok(())
    }
}

/// How a message that comes in pieces gets on.
struct Watch {
    since: Option<furrow_rt::Nanos>,
    done: usize,
}
