//! The daemon's side of an array's control socket.
//!
//! It consists of tasks on the engine's executor, like the NBD server; nothing here blocks in a
//! system call. Only the owner may use the socket (0600). Still, whatever bytes arrive, the worst
//! outcome is an error and the end of that connection: requests have a maximum length and a time
//! limit, and the number of connections is limited.

use super::request::{Answer, REQUEST_MAX, Request};
use furrow_nbd::{Listen, Listener};
use furrow_rt::{Nanos, Notify, Rt, within};
use furrow_zone::Result;
use rustix::io::Errno;
use serde_json::Value;
use std::cell::Cell;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of connections at a time; further ones are closed at once.
const CONNECTIONS: u32 = 64;
/// Nanoseconds within which a request must arrive, or an answer must be read.
const PATIENCE: u64 = 30 * Nanos::SECOND;

/// Executes requests.
pub trait Handle: 'static {
    /// Executes a request.
    fn handle(
        self: Rc<Self>,
        request: Request,
    ) -> impl Future<Output = std::result::Result<Value, String>>;

    /// True if no more requests are accepted: the connection ends after the answer.
    fn is_over(&self) -> bool;
}

/// A listening control socket. Dropping it removes the socket.
pub struct Control {
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

impl Control {
    /// Listens at `path`.
    ///
    /// # Errors
    /// `Busy` if a daemon answers there already.
    pub fn bind(rt: &Rt, path: &Path) -> Result<Control> {
        let listener = Listener::bind(&Listen::Unix(path.to_owned()))?;
        Ok(Control { listener, rt: rt.clone(), open: Rc::default() })
    }

    /// The open connections.
    pub fn connections(&self) -> Rc<Open> {
        self.open.clone()
    }

    /// Serves every client that connects, until the future is dropped.
    pub async fn serve<H: Handle>(self, handler: Rc<H>) {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) if self.open.number.get() < CONNECTIONS => {
                    let (rt, open, handler) = (self.rt.clone(), self.open.clone(), handler.clone());
                    open.number.set(open.number.get() + 1);
                    self.rt.spawn_detached(async move {
                        let _ = converse(&rt, Arc::new(socket), &handler).await;
                        open.number.set(open.number.get() - 1);
                        open.fewer.notify_all();
                    });
                }
                Ok(_) => self.rt.yield_now().await,
                Err(Errno::AGAIN) => self.listener.readable(&self.rt).await,
                Err(_) => self.rt.sleep(100 * Nanos::MILLI).await,
            }
        }
    }
}

impl Open {
    /// Waits until no connection is left, at most this many nanoseconds.
    pub async fn wait_for_end(&self, rt: &Rt, limit: u64) {
        let ended = async {
            while self.number.get() > 0 {
                self.fewer.wait().await;
            }
        };
        let _ = within(rt, limit, ended).await;
    }
}

/// Answers the requests of a connection until it ends or sends an invalid one.
async fn converse<H: Handle>(rt: &Rt, socket: Arc<OwnedFd>, handler: &Rc<H>) -> Result<(), Errno> {
    let mut bytes = Vec::new();
    loop {
        let line = within(rt, PATIENCE, read_line(rt, &socket, &mut bytes)).await;
        let Some(line) = line.ok_or(Errno::TIMEDOUT)?? else { return Ok(()) };
        let request = match line {
            Line::Whole(line) => serde_json::from_slice(&line).map_err(|error| error.to_string()),
            Line::TooLong => Err(format!("longer than {REQUEST_MAX} bytes")),
        };
        let (answer, go_on) = match request {
            Ok(request) => (Answer::of(handler.clone().handle(request).await), true),
            Err(error) => (Answer::of(Err(format!("not a request: {error}"))), false),
        };
        let answer = Answer { last: handler.is_over(), ..answer };
        let mut text = serde_json::to_vec(&answer).unwrap_or_default();
        text.push(b'\n');
        within(rt, PATIENCE, write_all(rt, &socket, &text)).await.ok_or(Errno::TIMEDOUT)??;
        if !go_on || answer.last {
            return Ok(());
        }
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
    loop {
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let rest = bytes.split_off(end + 1);
            let mut line = std::mem::replace(bytes, rest);
            line.pop();
            return Ok(Some(Line::Whole(line)));
        }
        if bytes.len() > REQUEST_MAX {
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

async fn write_all(rt: &Rt, socket: &Arc<OwnedFd>, mut bytes: &[u8]) -> Result<(), Errno> {
    use rustix::net::{SendFlags, send};
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::AGAIN) => rt.writable(socket.clone()).await,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
