//! Metrics of a daemon for Prometheus: over HTTP at an address, or in a file.
//!
//! Over HTTP one thread serves several connections at once, with time limits: a silent or slow
//! connection does not delay the others. A file is replaced as a whole every [`EVERY`], as the
//! textfile collector of node_exporter expects, and removed at the end.
//!
//! There is no encryption and no authentication. An address beyond this host is only for networks
//! that may see the metrics.

#[cfg(test)]
mod page;

use crate::daemon::log;
use crate::text_file;
use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Interval between two writes of the file.
const EVERY: Duration = Duration::from_secs(10);
/// Time limit for a client to send its request, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of connections at a time.
const CONNECTIONS: usize = 64;
/// Longest request in bytes.
const REQUEST_MAX: usize = 8 << 10;

/// The destination of the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// `GET /metrics` at this address.
    Address(SocketAddr),
    /// A file at this path.
    File(PathBuf),
}

impl FromStr for Metrics {
    type Err = String;

    fn from_str(text: &str) -> Result<Metrics, String> {
        if text.starts_with('/') {
            return Ok(Metrics::File(text.into()));
        }
        text.parse().map(Metrics::Address).map_err(|_| {
            format!(
                "'{text}' is neither an address, as 127.0.0.1:9780, nor the full path of a file"
            )
        })
    }
}

/// Metrics ready to be served: the address is bound, or the file was written.
pub enum Service {
    Listener(TcpListener),
    File(PathBuf),
}

impl Service {
    /// Binds the address or writes the file. If that is impossible, the daemon fails at once.
    ///
    /// # Errors
    /// An error if the address is taken, or the file cannot be written.
    pub fn prepare(metrics: &Metrics) -> Result<Service> {
        match metrics {
            Metrics::Address(address) => {
                let listener = TcpListener::bind(address);
                listener.map(Service::Listener).with_context(|| format!("metrics={address}"))
            }
            Metrics::File(path) => {
                let refused = text_file::check_metrics(path);
                refused.with_context(|| format!("metrics={}", path.display()))?;
                replace(path, "").with_context(|| format!("metrics={}", path.display()))?;
                Ok(Service::File(path.clone()))
            }
        }
    }

    /// Starts a thread that serves the text from `page`. If `page` returns `None`, a client gets an
    /// error, and a file of metrics keeps its old text.
    ///
    /// # Errors
    /// An error if no thread can be started.
    pub fn start(self, page: impl Fn() -> Option<String> + Send + 'static) -> Result<()> {
        let give = move || match self {
            Service::Listener(listener) => listen(&listener, &page),
            Service::File(path) => write_on(&path, &page, EVERY),
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned());
        thread.spawn(give).map(drop).context("cannot start a thread for metrics")
    }
}

/// Removes the file of metrics when the daemon ends.
pub fn end(metrics: &Metrics) {
    if let Metrics::File(path) = metrics {
        // If the removal fails, readers notice that the file is old.
        let _ = std::fs::remove_file(path);
    }
}

/// Writes `text` to a file in the directory of `path` and renames that file to `path`, so that no
/// reader finds half of the text.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    // Collectors read only files that end in .prom.
    name.push(".new");
    let new = path.with_file_name(name);
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

/// Writes the text from `page` to the file again after each interval `every`, as long as the daemon
/// runs. If an array does not answer in time, `page` returns `None`, and the file keeps its old
/// text. Readers can tell from the file's timestamp that the text is old.
fn write_on(path: &Path, page: &impl Fn() -> Option<String>, every: Duration) -> ! {
    let mut failed = false;
    loop {
        match page().map(|text| replace(path, &text)) {
            Some(Ok(())) => failed = false,
            Some(Err(error)) if !failed => {
                failed = true;
                log(&format!("metrics={}: {error}", path.display()));
            }
            Some(Err(_)) | None => {}
        }
        std::thread::sleep(every);
    }
}

/// A connection: `head` is the part of the request that has arrived.
struct Client {
    stream: TcpStream,
    until: Instant,
    head: Vec<u8>,
    /// The answer, and the number of its bytes that were sent.
    answer: Option<(Vec<u8>, usize)>,
}

/// Serves several connections at once: a silent or slow connection does not delay the others.
fn listen(listener: &TcpListener, page: &impl Fn() -> Option<String>) {
    let mut clients: VecDeque<Client> = VecDeque::new();
    // With a blocking socket, `accept` would wait and stop all connections.
    if let Err(error) = listener.set_nonblocking(true) {
        return log(&format!("metrics: {error}"));
    }
    loop {
        wait(listener, &clients);
        loop {
            match listener.accept() {
                Ok((stream, _)) => admit(&mut clients, stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // No descriptor left, or similar: do not retry at full speed.
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(100));
                    break;
                }
            }
        }
        clients.retain_mut(|client| client.go_on(page).is_ok());
    }
}

/// Adds a new connection. If there are too many, it replaces the oldest connection without a whole
/// request, or, if there is none, the oldest connection.
fn admit(clients: &mut VecDeque<Client>, stream: TcpStream) {
    if stream.set_nonblocking(true).is_err() {
        return;
    }
    if clients.len() == CONNECTIONS {
        let silent = clients.iter().position(|client| client.answer.is_none());
        clients.remove(silent.unwrap_or(0));
    }
    let until = Instant::now() + PATIENCE;
    clients.push_back(Client { stream, until, head: Vec::new(), answer: None });
}

/// Waits until a socket is ready or the time limit of a connection has passed.
fn wait(listener: &TcpListener, clients: &VecDeque<Client>) {
    let events = |client: &Client| match client.answer {
        None => PollFlags::IN,
        Some(_) => PollFlags::OUT,
    };
    let all = clients.iter().map(|client| PollFd::new(&client.stream, events(client)));
    let mut all: Vec<PollFd<'_>> = all.chain([PollFd::new(listener, PollFlags::IN)]).collect();
    let next = clients.iter().map(|client| client.until).min();
    let left = next.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    if poll(&mut all, left.as_ref()).is_err_and(|errno| errno != Errno::INTR) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

impl Client {
    /// Reads and writes as much as is possible without waiting. An error ends the connection.
    fn go_on(&mut self, page: &impl Fn() -> Option<String>) -> io::Result<()> {
        let waits = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if self.answer.is_none() {
            match self.read() {
                Ok(None) => {}
                Ok(Some(request)) => self.answer = Some((answer(&request, page), 0)),
                Err(error) if waits(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some((answer, sent)) = &mut self.answer {
            while *sent < answer.len() {
                match self.stream.write(&answer[*sent..]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => *sent += count,
                    Err(error) if waits(&error) => break,
                    Err(error) => return Err(error),
                }
            }
            if *sent == answer.len() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        match self.until > Instant::now() {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Reads more of the request. Returns its first line once all its headers have arrived.
    fn read(&mut self) -> io::Result<Option<String>> {
        let mut buffer = [0; 1024];
        while !self.head.windows(4).any(|end| end == b"\r\n\r\n") {
            if self.head.len() > REQUEST_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.head.extend_from_slice(&buffer[..read]),
            }
        }
        let line = self.head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(line).into_owned()))
    }
}

/// The answer to a request; `page` is the metrics, if there are any.
fn answer(request: &str, page: impl FnOnce() -> Option<String>) -> Vec<u8> {
    let (status, kind, body) = match request.split(' ').collect::<Vec<_>>()[..] {
        ["GET" | "HEAD", "/metrics" | "/", ..] => match page() {
            Some(text) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text),
            None => ("503 Service Unavailable", "text/plain", "no answer\n".to_owned()),
        },
        ["GET" | "HEAD", ..] => ("404 Not Found", "text/plain", "see /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "GET only\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let body = if request.starts_with("HEAD ") { "" } else { &body };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a server of `page`, and returns its address.
    fn served(page: Option<&'static str>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || listen(&listener, &|| page.map(str::to_owned)));
        address
    }

    fn asked(address: SocketAddr, request: &[u8]) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        let _ = client.write_all(request);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut text = String::new();
        // Fails if the server closes the connection in the middle of a request that is too long.
        let _ = client.read_to_string(&mut text);
        text
    }

    #[test]
    fn a_file_is_written_again_after_a_page_that_failed() {
        let path = std::env::temp_dir().join(format!("furrow-metrics-{}", std::process::id()));
        let file = path.clone();
        let asked = std::sync::atomic::AtomicU32::new(0);
        // The thread ends with the process.
        std::thread::spawn(move || {
            let page = || match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                number @ (0 | 2) => Some(number.to_string()),
                _ => None,
            };
            write_on(&file, &page, Duration::from_millis(1))
        });
        let begun = Instant::now();
        let number = || std::fs::read_to_string(&path).ok()?.parse::<u32>().ok();
        while number() != Some(2) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", number());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// The server's answer to `request`.
    fn answer(request: &[u8], page: Option<&'static str>) -> String {
        asked(served(page), request)
    }

    /// A request is answered at once, however many other connections send nothing or read nothing.
    /// If connections were served one after the other, their time limits would add up to minutes.
    #[test]
    fn silent_connections_hold_nobody_up_and_have_a_bound() {
        let text: &'static str = Box::leak("a 1\n".repeat(2 << 20).into_boxed_str());
        let (address, begun) = (served(Some(text)), Instant::now());
        let silent: Vec<TcpStream> =
            (0..3 * CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        let slow: Vec<TcpStream> = (0..CONNECTIONS / 2)
            .map(|_| {
                let mut client = TcpStream::connect(address).unwrap();
                client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
                client
            })
            .collect();
        for _ in 0..3 {
            let text = asked(address, b"HEAD / HTTP/1.1\r\n\r\n");
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        }
        assert!(begun.elapsed() < 20 * PATIENCE);
        // The oldest connections were closed in favour of later ones.
        silent[0].set_read_timeout(Some(4 * PATIENCE)).unwrap();
        assert!(matches!((&silent[0]).read(&mut [0; 1]), Ok(0) | Err(_)));
        drop(slow);
    }

    #[test]
    fn http_is_answered_as_far_as_it_is_understood() {
        let text = answer(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some("a 1\n"));
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\na 1\n"),
            "{text}"
        );
        assert!(text.contains("Content-Length: 4\r\n"), "{text}");
        let text = answer(b"HEAD / HTTP/1.0\r\n\r\n", Some("a 1\n"));
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\n"), "{text}");
        for (request, status) in [
            (&b"GET /else HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\xff\r\n\r\n", "405"),
        ] {
            let text = answer(request, Some("a 1\n"));
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
        }
        let text = answer(b"GET /metrics HTTP/1.1\r\n\r\n", None);
        assert!(text.starts_with("HTTP/1.1 503"), "{text}");
        assert_eq!(answer(b"GET /metrics HTTP/1.1\r\n", Some("a 1\n")), "");
        assert_eq!(answer(&[b'x'; 3 * REQUEST_MAX], Some("a 1\n")), "");
    }

    #[test]
    fn addresses_and_files_are_told_apart() {
        assert_eq!("/a/b.prom".parse(), Ok(Metrics::File("/a/b.prom".into())));
        assert!(matches!("[::1]:9780".parse(), Ok(Metrics::Address(_))));
        for wrong in ["9780", "b.prom", "", "localhost:9780"] {
            assert!(wrong.parse::<Metrics>().unwrap_err().contains("127.0.0.1:9780"), "{wrong}");
        }
    }
}
