//! One client's connection: the socket, input that is not parsed yet, output that waits.
//!
//! Two tasks serve a connection. The reading task takes requests from the socket, many per system
//! call; the sending task writes replies, many per system call. Each request in flight is charged
//! to the connection's budget.
//!
//! Invariants:
//! - Nothing is read before its memory is charged.
//! - A client that stalls within a message, or does not take replies, is disconnected after
//!   [`Limits::stall`]; between messages it may be silent for [`Limits::idle`].

use crate::budget::Budget;
use crate::listen::Peer;
use crate::refusal::Why;
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

/// Size in bytes of the buffer for input that is read ahead of the parser.
const STAGE: usize = 64 << 10;
/// Maximum number of pages that one system call reads.
const PAGES_AT_ONCE: usize = 256;
/// Number of bytes that a client must send or take in each [`Limits::stall`] within a message, so
/// that a slow trickle cannot hold memory.
const PROGRESS: u64 = 64 << 10;

/// Number of permits of a connection for requests that other clients may have to wait for. Writes
/// of parts of blocks take turns where they overlap; trims and zeroes take long, and longer ones
/// need more permits. So a client on another connection waits for at most this number of
/// such requests.
const TURNS: u64 = 64;

/// The reason why a connection is no longer read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client left between two messages, or the server ended the connection there.
    Orderly,
    /// The client broke the protocol, stalled, or left within a message.
    Broken,
    /// The client was silent for too long.
    Idle,
}

/// State that the tasks of a connection share.
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) rt: Rt,
    pub(crate) stream: Stream,
    pub(crate) outbox: Outbox,
    pub(crate) budget: Rc<Budget>,
    /// Permits for the requests that [`TURNS`] limits.
    turns: Semaphore,
    pub(crate) pool: Pool,
    pub(crate) counters: Counters,
    pub(crate) export: RefCell<Option<String>>,
    limits: Rc<Limits>,
    in_flight: Cell<u64>,
    /// Whether the reading task is handling a batch. It flushes after the batch, so the sending
    /// task need not be woken.
    batching: Cell<bool>,
    draining: Cell<bool>,
    ended: Cell<bool>,
    spoke: Cell<bool>,
    /// The reason to refuse the client, unless it still fulfils the server's requirement.
    refused: RefCell<Option<Why>>,
    was_cut: Cell<bool>,
    /// Signals that draining begins, and later that the last request may have ended.
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
            refused: RefCell::default(),
            was_cut: Cell::new(false),
            changed: Notify::new(),
        }
    }

    /// Whether the server wants to close the connection; no new request begins then.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Stops new requests; the connection ends when those in flight have ended.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.changed.notify_all();
    }

    /// Ends the connection at once. The volume still carries out the requests in flight.
    pub(crate) fn cut(&self) {
        self.was_cut.set(true);
        self.outbox.close();
        self.stream.cut();
    }

    /// Whether nothing has come from the client yet.
    pub(crate) fn is_silent(&self) -> bool {
        !self.spoke.get()
    }

    /// Notes the reason for which the client is refused; `None` clears that.
    pub(crate) fn note_refused(&self, why: Option<Why>) {
        *self.refused.borrow_mut() = why;
    }

    /// The reason that [`Link::note_refused`] has noted last.
    pub(crate) fn refused(&self) -> Option<Why> {
        self.refused.borrow().clone()
    }

    /// Whether the server has cut the connection, which is about to end.
    pub(crate) fn was_cut(&self) -> bool {
        self.was_cut.get()
    }

    /// Waits for permission to begin a request on `blocks` blocks, of a kind that [`TURNS`] limits.
    pub(crate) async fn turn(&self, blocks: u64) -> Permit {
        self.turns.acquire(blocks.div_ceil(4096).clamp(1, TURNS / 4)).await
    }

    /// Notes that the reading task begins a batch; it flushes before it waits.
    pub(crate) fn batch(&self) {
        self.batching.set(true);
    }

    /// Counts a request as in flight.
    pub(crate) fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Sends the reply of a request that has ended.
    pub(crate) fn answer(&self, reply: Reply) {
        self.outbox.push(reply);
        if !self.batching.get() {
            self.outbox.filled.notify_all();
        }
    }

    /// Ends a request that [`Link::begin`] counted; called after its answer.
    pub(crate) fn end(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 && self.draining.get() {
            self.changed.notify_all();
        }
    }

    /// Sends as much as the socket takes now, and leaves the rest to the sending task. The reading
    /// task calls this before every wait.
    pub(crate) fn flush(&self) {
        self.batching.set(false);
        if !self.outbox.is_empty() && !matches!(self.outbox.write(&self.stream), Ok(true)) {
            self.outbox.filled.notify_all();
        }
    }

    fn is_idle(&self) -> bool {
        self.in_flight.get() == 0 && self.outbox.is_empty() && self.stream.is_drained()
    }

    /// The sending task: sends replies when they are ready, until the connection ends.
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

    /// Sends all waiting replies. Returns false if the client does not take them.
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

    /// Waits until all requests in flight have ended. The sending task then sends their replies,
    /// and ends.
    pub(crate) async fn finish(&self) {
        self.draining.set(true);
        // No more batches come, so from here on each reply is sent when it is ready.
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

/// The bytes that a client sends, in order.
pub(crate) struct Input {
    link: Rc<Link>,
    stage: Box<[u8]>,
    start: usize,
    end: usize,
    /// Number of bytes of the stage that the next read may fill.
    ahead: usize,
    /// Whether the last read emptied the socket, so that the next one would probably find nothing.
    dry: bool,
    /// Number of messages taken since the last read.
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

    /// The bytes that were read and are not taken yet.
    pub(crate) fn held(&self) -> &[u8] {
        &self.stage[self.start..self.end]
    }

    /// Takes the first `count` bytes of [`Input::held`].
    pub(crate) fn take(&mut self, count: usize) -> &[u8] {
        debug_assert!(count <= self.end - self.start);
        let from = self.start;
        self.start += count;
        self.taken += 1;
        &self.stage[from..from + count]
    }

    /// Lets the next read fill the whole stage, because small messages are expected, not a payload.
    pub(crate) fn expect_small(&mut self) {
        self.ahead = STAGE;
    }

    fn compact(&mut self) {
        if self.start > 0 {
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Reads once: into `pages` from byte `at` to `until`, then into the rest of the stage. Returns
    /// the number of bytes read into the pages.
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
                // TLS may hold decrypted bytes that it has not delivered yet.
                self.dry = count < room && !self.link.stream.is_tls();
                let landed = count.min(until - at);
                self.end += count - landed;
                Ok(landed)
            }
        }
    }

    /// Waits for input between two messages. An error ends the connection.
    pub(crate) async fn more(&mut self) -> Result<(), End> {
        self.compact();
        let middle = self.end > 0;
        self.link.flush();
        // Lets other tasks run, even if this client never stops sending.
        self.link.rt.yield_now().await;
        // A client that sends one request at a time has not sent the next one yet, so the first
        // read is skipped.
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
                // Whichever event comes, the loop checks again.
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

    /// Waits until at least `count` bytes (at most the stage's 64 KiB) are read. Only for the
    /// handshake, which has a time limit as a whole.
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

    /// Takes a request's payload of `length` bytes into new pages, from byte `from` of the first
    /// page on. Bytes that have not arrived yet are read from the socket directly into the pages.
    pub(crate) async fn payload(&mut self, from: usize, length: usize) -> Result<Pages, End> {
        let until = from + length;
        let mut pages = Pages::with_capacity(until.div_ceil(PAGE_SIZE));
        let mut at = from;
        // With a large payload, the read also takes the header of the next request, but no more.
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
            // The read may fill the stage only if it can also take the whole rest of the payload,
            // which comes first.
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

    /// Moves bytes of a payload that were read already from the stage to `pages`.
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

    /// Reads and drops `length` bytes of payload.
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
                // The payload may be large, so other tasks get a turn.
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

    /// Waits for more bytes of a message; `done` bytes of it have arrived.
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

/// Checks that a message that arrives in parts makes progress.
struct Watch {
    since: Option<furrow_rt::Nanos>,
    done: usize,
}
