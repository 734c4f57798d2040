//! The server: listeners, connections, limits, and shutdown.

use crate::budget::Budget;
use crate::connection::{End, Input, Link};
use crate::export::{Export, Exports};
use crate::handshake::{Agreed, shake_hands};
use crate::listen::{Listen, Listener, Peer};
use crate::refusal::{Reason, Refusal, Refusals};
use crate::session::Session;
use crate::status::{Status, count};
use crate::stream::Stream;
use crate::tls::Tls;
use crate::volume::Volume;
use crate::wire::PAYLOAD_MAX;
use furrow_rt::{Nanos, Notify, Pool, Rt, Semaphore, either, within};
use furrow_zone::{Error, ErrorKind, Result};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Limits for all clients together and for each one. Memory use is at most `connections × (reserve
/// + 64 KiB) + shared`, plus 1 MiB for each connection under TLS.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of connections; further ones are closed at once.
    pub connections: usize,
    /// Maximum number of connections of one client: a process, or an address. A new connection of
    /// the client replaces one that has sent nothing yet; if there is none, the new one is closed
    /// at once.
    pub per_client: usize,
    /// Maximum number of connections in the handshake. A new one replaces a connection of the
    /// client with the most handshakes: one that has sent nothing yet, otherwise the oldest.
    pub handshakes: usize,
    /// Longest time that a client may be silent between two requests, in nanoseconds; 0: no limit.
    pub idle: u64,
    /// Longest time of the whole handshake, in nanoseconds.
    pub handshake: u64,
    /// Longest time that a client may stall within a message, or not take replies, in nanoseconds.
    pub stall: u64,
    /// Longest time that a shutdown waits for clients to take their replies, in nanoseconds.
    pub grace: u64,
    /// Bytes of payload in flight that are reserved for each connection.
    pub reserve: u64,
    /// Maximum number of bytes of payload that one connection may have in flight, at least 32 MiB.
    pub connection: u64,
    /// Maximum number of bytes that all connections together may have in flight beyond
    /// their reserves.
    pub shared: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 128,
            per_client: 64,
            handshakes: 64,
            idle: 0,
            handshake: 10 * Nanos::SECOND,
            stall: 60 * Nanos::SECOND,
            grace: 10 * Nanos::SECOND,
            reserve: 1 << 20,
            connection: 64 << 20,
            shared: 512 << 20,
        }
    }
}

impl Limits {
    /// Checks that the limits agree with each other.
    ///
    /// # Errors
    /// `Invalid`; the text names the limit that is too small.
    pub fn check(&self) -> Result<()> {
        let one = u64::from(PAYLOAD_MAX) + 4096;
        let problem = if self.connections.min(self.per_client).min(self.handshakes) == 0 {
            "a server without connections serves nobody"
        } else if self.connection < u64::from(PAYLOAD_MAX) {
            "a connection needs 32 MiB in flight, the largest request"
        } else if self.reserve + self.shared < one {
            "reserve and shared part together must hold the largest request, 32 MiB and 4 KiB"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Invalid, format!("limits of the NBD server: {problem}")))
    }
}

/// Configuration of a server.
#[derive(Clone, Default)]
pub struct Options {
    /// Limits for clients.
    pub limits: Limits,
    /// Whether to offer or require TLS.
    pub tls: Tls,
}

struct Inner<V> {
    rt: Rt,
    exports: Exports<V>,
    tls: Tls,
    limits: Rc<Limits>,
    shared: Semaphore,
    pool: Pool,
    listening: RefCell<Vec<String>>,
    /// Listeners whose clients wait until [`Server::begin`].
    closed: RefCell<Vec<Listener>>,
    next: Cell<u64>,
    /// Every connection by its number, with a flag that is true during the handshake.
    links: RefCell<BTreeMap<u64, (Rc<Link>, bool)>>,
    stopping: Cell<bool>,
    stop: Notify,
    gone: Notify,
    refused: Cell<u64>,
    refusals: Refusals,
    failed: Cell<u64>,
    evicted: Cell<u64>,
    idle: Cell<u64>,
    dropped: Cell<u64>,
}

/// A running server: tasks of the executor, until [`Server::shutdown`] or until the executor is
/// cleared. A clone is another handle of the same server.
pub struct Server<V>(Rc<Inner<V>>);

impl<V> Clone for Server<V> {
    fn clone(&self) -> Server<V> {
        Server(self.0.clone())
    }
}

impl<V: Volume> Server<V> {
    /// Listens at `places` and serves `exports` on `rt`, which must have the real clock. Without
    /// places, it serves only sockets given to [`Server::attach`].
    ///
    /// # Errors
    /// `Invalid` for invalid exports or limits; the errors of [`Listener::bind`].
    pub fn bind(
        rt: &Rt,
        places: &[Listen],
        exports: Vec<Export<V>>,
        options: Options,
    ) -> Result<Server<V>> {
        let listeners = places.iter().map(Listener::bind).collect::<Result<Vec<_>>>()?;
        let server = Server::new(rt, listeners, exports, options)?;
        server.begin();
        Ok(server)
    }

    /// Like [`Server::bind`], but at sockets that listen already, and clients that connect wait
    /// until [`Server::begin`].
    ///
    /// # Errors
    /// `Invalid` for invalid exports or limits.
    pub fn new(
        rt: &Rt,
        listeners: Vec<Listener>,
        exports: Vec<Export<V>>,
        options: Options,
    ) -> Result<Server<V>> {
        options.limits.check()?;
        Ok(Server(Rc::new(Inner {
            rt: rt.clone(),
            exports: Exports::new(exports)?,
            tls: options.tls,
            shared: Semaphore::new(options.limits.shared),
            limits: Rc::new(options.limits),
            pool: Pool::new(4096),
            listening: RefCell::new(listeners.iter().map(|l| l.at.to_string()).collect()),
            closed: RefCell::new(listeners),
            next: Cell::new(0),
            links: RefCell::new(BTreeMap::new()),
            stopping: Cell::new(false),
            stop: Notify::new(),
            gone: Notify::new(),
            refused: Cell::new(0),
            refusals: Refusals::default(),
            failed: Cell::new(0),
            evicted: Cell::new(0),
            idle: Cell::new(0),
            dropped: Cell::new(0),
        })))
    }

    /// Serves the clients that have waited since [`Server::new`], and later ones.
    pub fn begin(&self) {
        for listener in self.0.closed.take() {
            self.0.rt.spawn_detached(self.clone().accept(listener));
        }
    }

    /// The addresses at which the server listens, with the ports that the system chose.
    pub fn addresses(&self) -> Vec<String> {
        self.0.listening.borrow().clone()
    }

    /// Serves a client that is connected already. The socket must be non-blocking.
    pub fn attach(&self, socket: OwnedFd, peer: impl Into<Peer>) {
        let inner = &self.0;
        let id = inner.next.get();
        inner.next.set(id + 1);
        let peer = peer.into();
        if inner.stopping.get() || !self.make_room(&peer.client) {
            return count(&inner.refused, 1);
        }
        let limits = inner.limits.clone();
        let budget = Budget::new(limits.reserve, limits.connection, inner.shared.clone());
        let (stream, pool) = (Stream::new(socket), inner.pool.clone());
        let link = Link::new(id, peer, inner.rt.clone(), stream, limits, budget, pool);
        let link = Rc::new(link);
        inner.links.borrow_mut().insert(id, (link.clone(), true));
        inner.rt.spawn_detached(self.clone().serve(link));
    }

    /// Makes space for a new connection of `client`: at a limit, cuts another connection. Returns
    /// false if the new connection must be refused, because all connections that it could replace
    /// are in use.
    fn make_room(&self, client: &str) -> bool {
        let (links, limits) = (self.0.links.borrow(), &self.0.limits);
        let here = || links.values().filter(|(link, _)| !link.was_cut());
        let theirs = here().filter(|(link, _)| link.peer.client == client).count();
        let shaking = || here().filter(|(_, shaking)| *shaking).map(|(link, _)| link);
        let silent = || shaking().filter(|link| link.is_silent());
        let (victim, must) = if theirs >= limits.per_client {
            (silent().find(|link| link.peer.client == client), true)
        } else if here().count() >= limits.connections {
            (crowd(silent()).next(), true)
        } else if shaking().count() >= limits.handshakes {
            (crowd(silent()).next().or_else(|| crowd(shaking()).next()), false)
        } else {
            return true;
        };
        if let Some(link) = victim {
            link.cut();
            count(&self.0.evicted, 1);
        }
        victim.is_some() || !must
    }

    async fn accept(self, listener: Listener) {
        let rt = &self.0.rt;
        while !self.0.stopping.get() {
            let stopped = self.0.stop.wait();
            match listener.accept() {
                Ok((socket, peer)) => {
                    self.attach(socket, peer);
                    rt.yield_now().await;
                }
                // The client disconnected before it could be accepted.
                Err(Errno::CONNABORTED | Errno::INTR) => rt.yield_now().await,
                Err(Errno::AGAIN) => {
                    let _ = either(listener.readable(rt), stopped).await;
                }
                // The system has no descriptors or memory left. Clients in service continue, and
                // will free some.
                Err(_) => {
                    let _ = either(rt.sleep(100 * Nanos::MILLI), stopped).await;
                }
            }
        }
    }

    /// Serves one connection, from its first byte to its last.
    async fn serve(self, link: Rc<Link>) {
        let inner = &self.0;
        let mut input = Input::new(link.clone());
        let shaking = shake_hands(&link, &mut input, &inner.exports, &inner.tls);
        let agreed = within(&inner.rt, inner.limits.handshake, shaking).await;
        match agreed {
            Some(Ok(Some(agreed))) if !inner.stopping.get() => {
                self.transmit(&link, input, agreed).await;
            }
            // The client left cleanly, perhaps after checking only that the server answers.
            Some(Ok(_) | Err(End::Orderly)) => self.note_refusal(&link, None),
            Some(Err(End::Broken | End::Idle)) => self.note_refusal(&link, Some(Reason::Protocol)),
            None => self.note_refusal(&link, Some(Reason::TimedOut)),
        }
        link.stream.close();
        inner.links.borrow_mut().remove(&link.id);
        inner.gone.notify_all();
    }

    /// Reports a client as refused if it left without an export because it did not fulfil a
    /// requirement of the server, or because its handshake failed for the reason `failure`.
    fn note_refusal(&self, link: &Link, failure: Option<Reason>) {
        count(&self.0.failed, u64::from(failure.is_some()));
        let why = link.refused().or(failure.map(Into::into));
        // A connection that the server cut is not counted as refused.
        if let Some(why) = why.filter(|_| !link.was_cut()) {
            self.0.refusals.add(&link.peer.name, why);
        }
    }

    /// Waits for the next refused client. Returns it with the number of reports before it that were
    /// dropped because no caller took them. Only one task may call this at a time.
    pub async fn next_refusal(&self) -> (Refusal, u64) {
        self.0.refusals.next().await
    }

    async fn transmit(&self, link: &Rc<Link>, mut input: Input, agreed: Agreed<V>) {
        let Agreed { export, structured, allocation } = agreed;
        if let Some((_, shaking)) = self.0.links.borrow_mut().get_mut(&link.id) {
            *shaking = false;
        }
        *link.export.borrow_mut() = Some(export.name().to_owned());
        count(&export.connections, 1);
        let sender = self.0.rt.spawn(link.clone().send());
        let session = Rc::new(Session::new(link.clone(), export.clone(), structured, allocation));
        match session.run(&mut input).await {
            End::Broken => count(&self.0.dropped, 1),
            End::Idle => count(&self.0.idle, 1),
            End::Orderly => {}
        }
        // The last replies need no input buffer.
        drop(input);
        link.finish().await;
        sender.await;
        export.connections.set(export.connections.get() - 1);
    }

    /// Stops accepting, finishes requests in flight, answers new ones with ESHUTDOWN, and returns
    /// when no connection is left. A client that does not take its replies within [`Limits::grace`]
    /// is disconnected. Requests that the volume has begun are always finished. The caller owns the
    /// volume and has to flush it.
    pub async fn shutdown(&self) {
        let inner = &self.0;
        inner.stopping.set(true);
        inner.stop.notify_all();
        inner.listening.borrow_mut().clear();
        inner.closed.borrow_mut().clear();
        for (link, shaking) in inner.links.borrow().values() {
            if *shaking { link.cut() } else { link.drain() }
        }
        let deadline = inner.rt.now().after(inner.limits.grace);
        while !inner.links.borrow().is_empty() {
            let left = deadline.since(inner.rt.now());
            if within(&inner.rt, left, inner.gone.wait()).await.is_none() {
                inner.links.borrow().values().for_each(|(link, _)| link.cut());
                break;
            }
        }
        while !inner.links.borrow().is_empty() {
            inner.gone.wait().await;
        }
    }

    /// The present state of the server.
    pub fn status(&self) -> Status {
        let inner = &self.0;
        Status {
            listening: self.addresses(),
            stopping: inner.stopping.get(),
            accepted: inner.next.get() - inner.refused.get(),
            refused: inner.refused.get(),
            failed_handshakes: inner.failed.get(),
            refusals: inner.refusals.counts(),
            evicted: inner.evicted.get(),
            idle: inner.idle.get(),
            dropped: inner.dropped.get(),
            exports: inner.exports.iter().map(|export| export.status()).collect(),
            connections: inner.links.borrow().values().map(|(link, _)| link.status()).collect(),
        }
    }
}

/// The connections of the client that has the most of `links`, the oldest first.
fn crowd<'a>(links: impl Iterator<Item = &'a Rc<Link>>) -> impl Iterator<Item = &'a Rc<Link>> {
    let mut clients: BTreeMap<&str, Vec<&Rc<Link>>> = BTreeMap::new();
    links.for_each(|link| clients.entry(&link.peer.client).or_default().push(link));
    clients.into_values().max_by_key(Vec::len).into_iter().flatten()
}
