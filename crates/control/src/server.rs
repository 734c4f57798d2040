//! The server's side: tasks of an executor that answer requests.

use crate::envelope::{self, Answer, REQUEST_MAX};
use crate::socket::{Listener, Peer};
use furrow_rt::{Nanos, Notify, Rt, within};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::cell::Cell;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of connections at a time.
const CONNECTIONS: u32 = 64;
/// Nanoseconds within which a request must arrive, and the client must take a short answer.
const PATIENCE: u64 = 30 * Nanos::SECOND;
/// Additional nanoseconds that a client may take for each byte of an answer: 64 KiB a second.
const SLOWEST: u64 = Nanos::SECOND / (64 << 10);
/// Nanoseconds between attempts to accept a connection while the system refuses, for example
/// because no descriptor is free.
const PAUSE: u64 = 100 * Nanos::MILLI;

/// Answers the requests to a server.
pub trait Handler: 'static {
    /// A request, whose type and names are the protocol of the server.
    type Request: DeserializeOwned;
    /// The state that a connection keeps between requests.
    type Session: Default;

    /// Answers a request.
    fn answer(
        self: Rc<Self>,
        request: Self::Request,
        session: &mut Self::Session,
    ) -> impl Future<Output = Result<Reply, String>>;

    /// Whether no more requests are accepted, so that a connection ends after its answer.
    fn is_over(&self) -> bool {
        false
    }

    /// True if the client may be silent without limit before its next request.
    fn may_rest(&self, session: &Self::Session) -> bool {
        let _ = session;
        false
    }
}

/// A result, and bytes that follow its line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The result.
    pub value: Value,
    /// Bytes sent after the line of the result, which contains their number.
    pub bytes: Vec<u8>,
}

impl From<Value> for Reply {
    fn from(value: Value) -> Reply {
        Reply { value, bytes: Vec::new() }
    }
}

/// A server at a control socket. Dropping it removes the socket.
pub struct Server {
    listener: Listener,
    rt: Rt,
    open: Rc<Open>,
}

/// The number of open connections.
#[derive(Default)]
pub struct Open {
    number: Cell<u32>,
    fewer: Notify,
}

/// A place among the open connections, for one connection.
struct Seat(Rc<Open>);

impl Seat {
    fn take(open: &Rc<Open>) -> Option<Seat> {
        let number = open.number.get();
        (number < CONNECTIONS).then(|| {
            open.number.set(number + 1);
            Seat(open.clone())
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.number.set(self.0.number.get() - 1);
        self.0.fewer.notify_all();
    }
}

impl Open {
    /// Waits until no connection is left, but at most `limit` nanoseconds.
    pub async fn wait_for_end(&self, rt: &Rt, limit: u64) {
        let ended = async {
            while self.number.get() > 0 {
                self.fewer.wait().await;
            }
        };
        let _ = within(rt, limit, ended).await;
    }
}

impl Server {
    /// A server for the clients that connect to `listener`.
    pub fn new(rt: &Rt, listener: Listener) -> Server {
        Server { listener, rt: rt.clone(), open: Rc::default() }
    }

    /// The open connections.
    pub fn connections(&self) -> Rc<Open> {
        self.open.clone()
    }

    /// Serves every client that connects, until the future is dropped.
    pub async fn serve<H: Handler>(self, handler: Rc<H>) {
        let arrivals = self.listener.socket.clone();
        loop {
            match accept_with(&arrivals, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    self.admit(socket, &handler);
                    self.rt.yield_now().await;
                }
                Err(Errno::AGAIN) => self.rt.readable(arrivals.clone()).await,
                Err(_) => self.rt.sleep(PAUSE).await,
            }
        }
    }

    /// Begins to serve a client, or sends the reason for refusing it.
    fn admit<H: Handler>(&self, socket: OwnedFd, handler: &Rc<H>) {
        let seat = match Peer::of(&socket) {
            Ok(peer) if peer.may_ask() => {
                Seat::take(&self.open).ok_or_else(|| "too many clients ask: try again".to_owned())
            }
            Ok(peer) => Err(format!("user {} may not ask: only the owner and root may", peer.user)),
            Err(error) => Err(format!("nobody knows who asks: {error}")),
        };
        match seat {
            Ok(seat) => {
                let (rt, handler) = (self.rt.clone(), handler.clone());
                self.rt.spawn_detached(async move {
                    // Whatever the result, only this connection ends.
                    let _ = converse(&rt, Arc::new(socket), &handler).await;
                    drop(seat);
                });
            }
            // This line fits into the buffer of a new connection.
            Err(why) => drop(send(&socket, &Answer::of(Err(why)).line(), QUIETLY)),
        }
    }
}

/// Answers the requests of a connection until it ends or sends an invalid one.
async fn converse<H: Handler>(rt: &Rt, socket: Arc<OwnedFd>, handler: &Rc<H>) -> Result<(), Errno> {
    let (mut bytes, mut session) = (Vec::new(), H::Session::default());
    loop {
        if bytes.is_empty() && handler.may_rest(&session) {
            rt.readable(socket.clone()).await;
        }
        let line = within(rt, PATIENCE, read_line(rt, &socket, &mut bytes)).await;
        let Some(line) = line.ok_or(Errno::TIMEDOUT)?? else { return Ok(()) };
        let request = match line {
            Line::Whole(line) => envelope::read(&line),
            Line::TooLong => Err(envelope::too_long()),
        };
        let is_valid = request.is_ok();
        let reply = match request {
            Ok(request) => handler.clone().answer(request, &mut session).await,
            Err(error) => Err(error),
        };
        let (result, more) = match reply {
            Ok(Reply { value, bytes }) => (Ok(value), bytes),
            Err(error) => (Err(error), Vec::new()),
        };
        let answer = Answer { last: handler.is_over(), ..Answer::of(result) };
        let line = answer.line();
        let limit = PATIENCE + (line.len() + more.len()) as u64 * SLOWEST;
        let sent = within(rt, limit, async {
            write_all(rt, &socket, &line).await?;
            write_all(rt, &socket, &more).await
        });
        sent.await.ok_or(Errno::TIMEDOUT)??;
        if !is_valid || answer.last {
            return Ok(());
        }
        // A client that sends without end must not keep other tasks from running.
        rt.yield_now().await;
    }
}

enum Line {
    Whole(Vec<u8>),
    TooLong,
}

/// The next line without its line end; the bytes after it stay in `bytes`. `None` at the end of
/// the connection.
async fn read_line(
    rt: &Rt,
    socket: &Arc<OwnedFd>,
    bytes: &mut Vec<u8>,
) -> Result<Option<Line>, Errno> {
    let mut buffer = [0; 4096];
    let mut searched = 0;
    loop {
        if let Some(end) = bytes[searched..].iter().position(|byte| *byte == b'\n') {
            let rest = bytes.split_off(searched + end + 1);
            let mut line = std::mem::replace(bytes, rest);
            line.pop();
            return Ok(Some(Line::Whole(line)));
        }
        searched = bytes.len();
        if searched > REQUEST_MAX {
            return Ok(Some(Line::TooLong));
        }
        match rustix::io::read(socket, &mut buffer) {
            Ok(0) => return Ok(None),
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(Errno::AGAIN) => rt.readable(socket.clone()).await,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Flags of a send that neither blocks nor kills the process if the client has gone.
const QUIETLY: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Sends bytes to a client.
async fn write_all(rt: &Rt, socket: &Arc<OwnedFd>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match send(socket, bytes, QUIETLY) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::AGAIN) => rt.writable(socket.clone()).await,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
