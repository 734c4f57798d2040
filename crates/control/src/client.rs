//! The client's side: a connection to a control socket, which waits for answers.

use crate::envelope::{self, Answer, VERSION};
use crate::socket::{self, Peer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest line of an answer in bytes, unless the client expects longer ones.
const ANSWER_MAX: u64 = 16 << 20;

/// The reason why a request has no result.
#[derive(Debug)]
pub enum Error {
    /// The server refused the request for this reason.
    Refused(String),
    /// The server speaks another version of the protocol.
    OtherVersion {
        /// The server's version, if its answer contains it.
        theirs: Option<u32>,
        /// The server's process, if the kernel knows it.
        process: Option<u32>,
    },
    /// No answer came in time.
    Late,
    /// The server has ended the connection.
    Ended,
    /// The request cannot be sent.
    Unsent(String),
    /// The connection failed.
    Failed(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(why) | Error::Unsent(why) => f.write_str(why),
            Error::OtherVersion { theirs, process } => {
                match process {
                    Some(process) => write!(f, "process {process}")?,
                    None => f.write_str("the program that runs")?,
                }
                match theirs {
                    Some(theirs) => write!(f, " speaks version {theirs}")?,
                    None => f.write_str(" speaks another version")?,
                }
                write!(
                    f,
                    " of the control protocol, and this command version {VERSION}: restart it"
                )
            }
            Error::Late => f.write_str("nothing came in time: it hangs, or is stopped"),
            Error::Ended => f.write_str("it has ended the connection"),
            Error::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Late,
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                Error::Ended
            }
            _ => Error::Failed(error),
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
    answer_max: u64,
}

impl Connection {
    /// Connects to the server at `socket`. The server must take the connection, and later send
    /// each answer, within `limit`. Without a limit, answers may take any time, and the connection
    /// ten seconds.
    ///
    /// # Errors
    /// The errors of [`socket::open`].
    pub fn open(socket: &Path, limit: Option<Duration>) -> io::Result<Connection> {
        let stream = socket::open(socket, limit.unwrap_or(Duration::from_secs(10)))?;
        stream.set_read_timeout(limit)?;
        stream.set_write_timeout(limit)?;
        Ok(Connection { stream: BufReader::new(stream), answer_max: ANSWER_MAX })
    }

    /// Expects answers whose lines have up to `bytes` bytes.
    pub fn expecting(self, bytes: u64) -> Connection {
        Connection { answer_max: bytes, ..self }
    }

    /// The process that listens at the other end, if the kernel knows it.
    pub fn process(&self) -> Option<u32> {
        Peer::of(self.stream.get_ref()).ok()?.process
    }

    /// Sends a request and returns the answer, which may be an error.
    ///
    /// # Errors
    /// An error if no answer of this version comes.
    pub fn exchange(&mut self, request: &impl Serialize) -> Result<Answer, Error> {
        let mut line = envelope::write(request).map_err(Error::Unsent)?;
        line.push(b'\n');
        // A server that refuses the connection sends the reason without reading the request. So its
        // answer is read even if the request cannot be written.
        let sent = self.stream.get_mut().write_all(&line);
        let mut line = Vec::new();
        (&mut self.stream).take(self.answer_max).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            sent?;
            return Err(match line.len() as u64 == self.answer_max {
                true => Error::Failed(ErrorKind::InvalidData.into()),
                false => Error::Ended,
            });
        }
        // Only the version of an answer, so that it can be read from an answer of any version.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let version = serde_json::from_slice(&line).ok().map(|it: Versioned| it.version);
        match serde_json::from_slice(&line) {
            Ok(answer) if version == Some(VERSION) => Ok(answer),
            _ => Err(Error::OtherVersion { theirs: version, process: self.process() }),
        }
    }

    /// Sends a request and returns its result.
    ///
    /// # Errors
    /// The errors of [`Connection::exchange`], and the server's error.
    pub fn ask(&mut self, request: &impl Serialize) -> Result<Value, Error> {
        result(self.exchange(request)?)
    }

    /// The error for an answer whose content is of another version.
    pub fn other_version(&self) -> Error {
        Error::OtherVersion { theirs: None, process: self.process() }
    }

    /// Reads the bytes that follow an answer's line.
    ///
    /// # Errors
    /// An error if they do not come.
    pub fn bytes(&mut self, count: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Waits until the server ends the connection.
    pub fn wait_for_end(&mut self) {
        // An error also means that the connection has ended.
        let _ = self.stream.read_to_end(&mut Vec::new());
    }
}

/// The result in an answer.
///
/// # Errors
/// The server's error.
pub fn result(answer: Answer) -> Result<Value, Error> {
    match (answer.ok, answer.error) {
        (Some(value), _) => Ok(value),
        (None, Some(error)) => Err(Error::Refused(error)),
        (None, None) => Err(Error::Refused("an answer without content".to_owned())),
    }
}
