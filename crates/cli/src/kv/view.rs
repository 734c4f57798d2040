//! The files of a store, to be read: on its drive, or through the program that uses it.

use super::drive::{Looked, PIECE, plain};
use super::running;
use super::session::Session;
use anyhow::{Result, bail};
use furrow_kv::{FileId, FileInfo, Node};

/// A view of a store.
pub enum View {
    /// No program uses the store, and it is read from the drive.
    Drive(Looked),
    /// A program uses the store, and reads it for this command.
    Program(Session),
}

impl View {
    /// Opens the store on `device`; with `accept_loss` also a store whose record ring is damaged.
    ///
    /// # Errors
    /// An error if there is no store, or the program that uses it does not serve other processes.
    pub fn open(device: &str, accept_loss: bool) -> Result<View> {
        match Looked::open_with(device, accept_loss) {
            Ok(looked) => Ok(View::Drive(looked)),
            Err(error) => Ok(View::Program(Session::begin(&running::instead(device, error)?)?)),
        }
    }

    /// The process that uses the store, if there is one.
    pub fn process(&self) -> Option<u32> {
        match self {
            View::Drive(_) => None,
            View::Program(session) => Some(session.process()),
        }
    }

    /// UUID of the store.
    pub fn uuid(&self) -> String {
        match self {
            View::Drive(looked) => looked.store().uuid().to_string(),
            View::Program(session) => session.uuid().to_owned(),
        }
    }

    /// The file or directory that a path names.
    ///
    /// # Errors
    /// An error if the path names nothing, or leads out of the store.
    pub fn node(&self, path: &str) -> Result<Node> {
        match self {
            View::Drive(looked) => Ok(looked.store().node(path)?),
            View::Program(session) => {
                let path = furrow_kv::clean_path(path)?;
                match session.get(&path) {
                    Some(node) => Ok(node),
                    None => bail!("{path}: no such file"),
                }
            }
        }
    }

    /// Information about a file.
    pub fn info(&self, id: FileId) -> Option<FileInfo> {
        match self {
            View::Drive(looked) => looked.store().file(id),
            View::Program(session) => session.file(id),
        }
    }

    /// The file that a path names.
    ///
    /// # Errors
    /// An error if the path names no file.
    pub fn file(&self, path: &str) -> Result<FileInfo> {
        match self.node(path)? {
            Node::Directory => bail!("{path}: a directory"),
            Node::File(id) => match self.info(id) {
                Some(file) => Ok(file),
                None => bail!("{path}: no such file"),
            },
        }
    }

    /// Passes the bytes of a file to `each`, in pieces.
    ///
    /// # Errors
    /// An error if a block is damaged, or an error of `each`.
    pub fn read(&self, file: &FileInfo, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut at = 0;
        while at < file.size {
            let bytes = match self {
                View::Drive(looked) => looked.read(file.id, at, PIECE)?,
                View::Program(session) => session.read(file.id, at, PIECE)?,
            };
            if bytes.is_empty() {
                bail!("file {}: {at} of {} bytes are there", file.id.0, file.size);
            }
            at += bytes.len() as u64;
            each(&bytes)?;
        }
        Ok(())
    }

    /// All names at and below a path, ascending and relative to it. The path itself is the empty
    /// name if it is a directory, and its last part if it is a file.
    ///
    /// # Errors
    /// An error if there is no such path.
    pub fn below(&self, path: &str) -> Result<Vec<(String, Node)>> {
        let node = self.node(path)?;
        let path = plain(path);
        if let Node::File(_) = node {
            let last = path.rsplit('/').next().unwrap_or_default();
            return Ok(vec![(last.to_owned(), node)]);
        }
        let prefix = if path.is_empty() { path } else { format!("{path}/") };
        let inside = |(name, node): (&str, Node)| {
            let name = name.strip_prefix(&prefix).filter(|name| !name.is_empty())?;
            Some((name.to_owned(), node))
        };
        let mut all = vec![(String::new(), Node::Directory)];
        match self {
            View::Drive(looked) => all.extend(looked.store().names().filter_map(inside)),
            View::Program(session) => all.extend(session.names().filter_map(inside)),
        }
        Ok(all)
    }
}
