//! Metrics of a daemon for Prometheus: over HTTP at an address, or in a file.
//!
//! Over HTTP one connection is served at a time, with time limits, by a thread of its own: a slow
//! or malformed request delays only the next one. A file is replaced as a whole every [`EVERY`], as
//! the textfile collector of node_exporter expects, and removed at the end.
//!
//! There is no encryption and no authentication. An address beyond this host is only for networks
//! that may see the metrics.

use crate::daemon::log;
use anyhow::{Context as _, Result};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How often the file is written.
const EVERY: Duration = Duration::from_secs(10);
/// Most time for a client to send its request, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request in bytes.
const REQUEST_MAX: usize = 8 << 10;

/// Where the metrics go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// `GET /metrics` at this address.
    Address(SocketAddr),
    /// This file.
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
    /// Binds the address or writes the file, so that a daemon fails at once if that is impossible.
    ///
    /// # Errors
    /// If the address is taken, or the file cannot be written.
    pub fn prepare(metrics: &Metrics) -> Result<Service> {
        match metrics {
            Metrics::Address(address) => {
                let listener = TcpListener::bind(address);
                listener.map(Service::Listener).with_context(|| format!("metrics={address}"))
            }
            Metrics::File(path) => {
                replace(path, "").with_context(|| format!("metrics={}", path.display()))?;
                Ok(Service::File(path.clone()))
            }
        }
    }

    /// Serves what `page` returns from a thread of its own, until it returns `None`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(self, page: impl Fn() -> Option<String> + Send + 'static) -> Result<()> {
        let give = move || match self {
            Service::Listener(listener) => listen(&listener, &page),
            Service::File(path) => write_on(&path, &page),
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned());
        thread.spawn(give).map(drop).context("cannot start a thread for metrics")
    }
}

/// Removes the file of metrics when the daemon ends.
pub fn end(metrics: &Metrics) {
    if let Metrics::File(path) = metrics {
        // If that fails, a reader sees that the file is old.
        let _ = std::fs::remove_file(path);
    }
}

/// Writes `text` to a file in the directory of `path` and renames it, so that nobody reads half of
/// it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    // Collectors read only files that end in .prom.
    name.push(".new");
    let new = path.with_file_name(name);
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

fn write_on(path: &Path, page: &impl Fn() -> Option<String>) {
    let mut failed = false;
    while let Some(text) = page() {
        match replace(path, &text) {
            Ok(()) => failed = false,
            Err(error) if !failed => {
                failed = true;
                log(&format!("metrics={}: {error}", path.display()));
            }
            Err(_) => {}
        }
        std::thread::sleep(EVERY);
    }
}

fn listen(listener: &TcpListener, page: &impl Fn() -> Option<String>) {
    loop {
        match listener.accept() {
            // A client that sends no request, or does not read, gets no answer.
            Ok((client, _)) => drop(serve(client, page)),
            // No descriptor left, or similar: do not retry at full speed.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Reads one request and answers it; `page` is the metrics, if there are any.
fn serve(mut client: TcpStream, page: impl FnOnce() -> Option<String>) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut client)?;
    let (status, kind, body) = match request.split(' ').collect::<Vec<_>>()[..] {
        ["GET" | "HEAD", "/metrics" | "/", ..] => match page() {
            Some(text) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text),
            None => ("503 Service Unavailable", "text/plain", "it has ended\n".to_owned()),
        },
        ["GET" | "HEAD", ..] => ("404 Not Found", "text/plain", "see /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "GET only\n".to_owned()),
    };
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    )?;
    if !request.starts_with("HEAD ") {
        client.write_all(body.as_bytes())?;
    }
    client.flush()
}

/// The first line of a request, once its whole head has arrived.
fn read_request(client: &mut TcpStream) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > REQUEST_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => head.extend_from_slice(&buffer[..read]),
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to `request`.
    fn answer(request: &[u8], page: Option<&str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(request).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let (server, _) = listener.accept().unwrap();
        let _ = serve(server, || page.map(str::to_owned));
        let mut text = String::new();
        // The connection is closed in the middle of a request that is too long.
        let _ = client.read_to_string(&mut text);
        text
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
