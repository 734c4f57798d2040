//! The requests to a store that a program uses, and the view of its files for other programs.
//!
//! The answer to `freeze` has the names and files of a view of the store; the view lives as long
//! as the connection. The answer to `read` of a file of the view has the number of bytes that
//! follow the line. There are fewer bytes than requested only at the file's end, or if very many
//! were requested.

use crate::client::{Connection, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Longest time that the program may take to answer about a view.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest line with a view, in bytes. The names of a store fit its record ring, which is smaller.
const VIEW_MAX: u64 = 1 << 30;

/// A request to the program that uses a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Ask for space, counters and sums by kind.
    Stat,
    /// Ask for the content of each zone.
    Zones,
    /// Ask for the running or last scrub.
    Scrub {
        /// An order to carry out first: start, repair, pause, resume or stop.
        #[serde(default)]
        order: Option<String>,
    },
    /// Freeze a view of the store for this connection.
    Freeze,
    /// Read from a file of the view.
    Read {
        /// The file's number.
        file: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Maximum number of bytes to return.
        bytes: u64,
    },
}

/// A view of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// The name of the store's drive.
    pub device: String,
    /// The UUID of the store.
    pub uuid: String,
    /// The label of the store.
    pub label: String,
    /// The process that uses the store.
    pub process: u32,
    /// All names in ascending order.
    pub entries: Vec<Entry>,
}

/// A name in a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The path.
    pub path: String,
    /// The file that the path names; `None` for a directory.
    #[serde(flatten)]
    pub file: Option<File>,
}

/// A file in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Number of the file.
    pub file: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last write in seconds since 1970.
    pub modified: i64,
    /// The number that stands for the file's expected lifetime.
    pub lifetime: u8,
    /// Number of extents.
    pub extents: u32,
    /// Number of blocks that the file takes on the drive.
    pub blocks: u64,
    /// Number of names.
    pub names: u32,
}

/// A connection to a program that keeps a view for it.
#[derive(Debug)]
pub struct View(Connection);

impl View {
    /// Lets the program at `socket` freeze a view.
    ///
    /// # Errors
    /// An error if the program refuses, or does not answer.
    pub fn begin(socket: &Path) -> Result<(View, Frozen), Error> {
        let mut connection = Connection::open(socket, Some(PATIENCE))?.expecting(VIEW_MAX);
        let frozen = connection.ask(&Request::Freeze)?;
        let frozen = serde_json::from_value(frozen).map_err(|_| connection.other_version())?;
        Ok((View(connection), frozen))
    }

    /// Reads at most `bytes` bytes of a file: fewer at its end, or if the program sends fewer in
    /// one answer.
    ///
    /// # Errors
    /// An error if a block is not as it was written, or the program has ended.
    pub fn read(&mut self, file: u64, offset: u64, bytes: u64) -> Result<Vec<u8>, Error> {
        let answer: Value = self.0.ask(&Request::Read { file, offset, bytes })?;
        let come = answer["bytes"].as_u64().filter(|come| *come <= bytes);
        self.0.bytes(come.ok_or_else(|| self.0.other_version())? as usize)
    }
}
