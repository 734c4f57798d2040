//! A store in use, read through the control socket of the program that uses it.
//!
//! The program freezes a view of the store for this connection: all names and content of one
//! instant, synced or not.

use super::running::Running;
use anyhow::{Result, anyhow};
use furrow_control::Error as Unanswered;
use furrow_control::store::{Entry, View};
use furrow_kv::{FileId, FileInfo, Lifetime, Node};
use furrow_zone::{Error, ErrorKind};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A view of a store in use.
pub struct Session {
    view: RefCell<View>,
    uuid: String,
    process: u32,
    names: BTreeMap<String, Node>,
    files: BTreeMap<FileId, FileInfo>,
}

impl Session {
    /// Asks the program that uses a store to freeze a view of it.
    ///
    /// # Errors
    /// An error if the program refuses, or speaks another version of the protocol.
    pub fn begin(store: &Running) -> Result<Session> {
        let process = store.process();
        let (view, frozen) = View::begin(store.socket()).map_err(|error| {
            let why = format!("process {process} uses the store, and cannot read it for others");
            explain(Some(process), error).context(why)
        })?;
        let (mut names, mut files) = (BTreeMap::new(), BTreeMap::new());
        for Entry { path, file } in frozen.entries {
            let Some(file) = file else {
                names.insert(path, Node::Directory);
                continue;
            };
            let id = FileId(file.file);
            names.insert(path, Node::File(id));
            let info = FileInfo {
                id,
                size: file.bytes,
                modified: file.modified,
                lifetime: Lifetime::from_byte(file.lifetime).unwrap_or_default(),
                extents: file.extents,
                blocks: file.blocks,
                names: file.names,
            };
            files.insert(id, info);
        }
        let (uuid, process) = (frozen.uuid, frozen.process);
        Ok(Session { view: RefCell::new(view), uuid, process, names, files })
    }

    /// Reads at most `bytes` bytes from a file: fewer at its end, or if the program sends fewer in
    /// one answer.
    ///
    /// # Errors
    /// An error if a block is not as it was written, or the program has ended.
    pub fn read(&self, file: FileId, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let read = self.view.borrow_mut().read(file.0, offset, bytes as u64);
        read.map_err(|error| explain(Some(self.process), error))
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

/// The error for a command that got no result from `process`, which uses the store.
pub fn explain(process: Option<u32>, error: Unanswered) -> anyhow::Error {
    let who = match process {
        Some(process) => format!("process {process}"),
        None => "the program".to_owned(),
    };
    match error {
        // A file that the program cannot read is treated as a damaged file on a drive.
        Unanswered::Refused(why) => Error::new(ErrorKind::Io, why).into(),
        Unanswered::Late => {
            anyhow!("{who}, which uses the store, gives no answer: it hangs, or is stopped")
        }
        Unanswered::Ended => anyhow!("{who} has closed the store, or ended: run this again"),
        Unanswered::OtherVersion { .. } => anyhow!(error),
        _ => anyhow!("{who}, which uses the store: {error}"),
    }
}
