//! A store in use, read through the control socket of the program that uses it.
//!
//! The program freezes a view of the store for this connection: all names and content of one
//! instant, synced or not.

use super::running::Running;
use crate::raid::client;
use anyhow::{Context as _, Result, anyhow, bail};
use furrow_kv::{FileId, FileInfo, Lifetime, Node};
use furrow_zone::Error;
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest time for the program to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest line of an answer. The names of a store fit its record ring, which is smaller.
const LINE_MAX: u64 = 1 << 30;

/// A view of a store in use.
pub struct Session {
    stream: RefCell<BufReader<UnixStream>>,
    uuid: String,
    process: u32,
    names: BTreeMap<String, Node>,
    files: BTreeMap<FileId, FileInfo>,
}

#[derive(Deserialize)]
struct Answer {
    ok: Option<Value>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Frozen {
    uuid: String,
    process: u32,
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    path: String,
    #[serde(flatten)]
    file: Option<EntryFile>,
}

#[derive(Deserialize)]
struct EntryFile {
    file: u64,
    bytes: u64,
    modified: i64,
    lifetime: u8,
    extents: u32,
    blocks: u64,
    names: u32,
}

impl Session {
    /// Asks the program that uses a store to freeze a view of it.
    ///
    /// # Errors
    /// If the program refuses, or is of another version.
    pub fn begin(store: &Running) -> Result<Session> {
        let socket = store.socket();
        let what = || socket.display().to_string();
        let stream = client::open(socket, PATIENCE).with_context(what)?;
        stream.set_read_timeout(Some(PATIENCE)).with_context(what)?;
        stream.set_write_timeout(Some(PATIENCE)).with_context(what)?;
        let mut session = Session {
            stream: RefCell::new(BufReader::new(stream)),
            uuid: String::new(),
            process: store.process(),
            names: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        let frozen = session.ask(&json!({ "request": "freeze" }));
        let frozen = frozen.with_context(|| {
            format!("process {} uses the store, and cannot read it for others", store.process())
        })?;
        let frozen: Frozen = serde_json::from_value(frozen)
            .with_context(|| format!("{}: a view of another version", what()))?;
        (session.uuid, session.process) = (frozen.uuid, frozen.process);
        for Entry { path, file } in frozen.entries {
            let Some(file) = file else {
                session.names.insert(path, Node::Directory);
                continue;
            };
            let id = FileId(file.file);
            session.names.insert(path, Node::File(id));
            let info = FileInfo {
                id,
                size: file.bytes,
                modified: file.modified,
                lifetime: Lifetime::from_byte(file.lifetime).unwrap_or_default(),
                extents: file.extents,
                blocks: file.blocks,
                names: file.names,
            };
            session.files.insert(id, info);
        }
        Ok(session)
    }

    fn ask(&self, request: &Value) -> Result<Value> {
        let mut stream = self.stream.borrow_mut();
        let mut line = Vec::new();
        let sent = stream.get_mut().write_all(format!("{request}\n").as_bytes());
        let heard = sent.and_then(|()| (&mut *stream).take(LINE_MAX).read_until(b'\n', &mut line));
        heard.map_err(|error| self.broken(&error))?;
        if line.last() != Some(&b'\n') {
            return Err(self.broken(&ErrorKind::UnexpectedEof.into()));
        }
        let answer: Answer =
            serde_json::from_slice(&line).context("an answer of another version")?;
        match (answer.ok, answer.error) {
            (Some(value), _) => Ok(value),
            // A file that the program cannot read is treated as a damaged file on a drive.
            (None, Some(error)) => Err(Error::new(furrow_zone::ErrorKind::Io, error).into()),
            (None, None) => bail!("process {}: an answer without content", self.process),
        }
    }

    fn broken(&self, error: &std::io::Error) -> anyhow::Error {
        let process = self.process;
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                anyhow!(
                    "process {process}, which uses the store, gives no answer: it hangs, or is \
                         stopped"
                )
            }
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                anyhow!("process {process} has closed the store, or ended: run this again")
            }
            _ => anyhow!("process {process}, which uses the store: {error}"),
        }
    }

    /// Reads at most `bytes` bytes from a file: fewer at its end, or if the program sends fewer
    /// at once.
    ///
    /// # Errors
    /// If a block is not as it was written, or the program has ended.
    pub fn read(&self, file: FileId, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let request =
            json!({ "request": "read", "file": file.0, "offset": offset, "bytes": bytes });
        let answer = self.ask(&request)?;
        let come = answer["bytes"].as_u64().filter(|come| *come <= bytes as u64);
        let come = come.with_context(|| format!("process {}: another version", self.process))?;
        let mut content = vec![0; come as usize];
        let read = self.stream.borrow_mut().read_exact(&mut content);
        read.map_err(|error| self.broken(&error))?;
        Ok(content)
    }

    /// UUID of the store.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// The process that uses the store.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// All paths in ascending order, each with the file or directory that it names.
    pub fn names(&self) -> impl Iterator<Item = (&str, Node)> {
        self.names.iter().map(|(path, node)| (path.as_str(), *node))
    }

    /// The file or directory that a path names. The empty path is the root, which has no entry.
    pub fn get(&self, path: &str) -> Option<Node> {
        if path.is_empty() { Some(Node::Directory) } else { self.names.get(path).copied() }
    }

    /// Information about a file of the view.
    pub fn file(&self, id: FileId) -> Option<FileInfo> {
        self.files.get(&id).cloned()
    }
}
