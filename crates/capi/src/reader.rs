//! A store that is only read: on its drive, or through the program that uses it.
//!
//! Either way this process sees the store as it is at the moment of opening. On the drive, that is
//! the state that an opening would find, and no program can open the store for writing until this
//! view is closed. A program that uses the store freezes a view for this process through its
//! control socket, and keeps working.

use crate::engine::stopped;
use crate::error::{Failure, Outcome};
use crate::process::{config, lock};
use crate::shared::open_drive;
use furrow_control::place::Kind;
use furrow_control::store::{Entry, Request, View};
use furrow_control::{Connection, Error as Unanswered};
use furrow_kv::{FileId, Node, Snapshot, clean_path};
use furrow_rt::Port;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;

/// Time limit for a program's answer about its store.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of bytes to ask for at a time.
const PIECE: usize = 1 << 20;

/// The properties of a file that a view knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) id: FileId,
    pub(crate) size: u64,
    pub(crate) modified: i64,
}

/// A view of a store.
pub(crate) struct Reader {
    /// For each path the file that it names; `None` for a directory.
    entries: BTreeMap<String, Option<Known>>,
    sizes: BTreeMap<FileId, u64>,
    source: Source,
}

enum Source {
    Drive(Port<Rc<Snapshot>>),
    Program(Mutex<View>),
}

fn not_found(path: &str) -> Failure {
    Error::new(ErrorKind::NotFound, format!("{path}: no such file")).into()
}

impl Reader {
    /// Opens the store on a drive, which is called `name`. Also returns the store's UUID and label.
    pub(crate) fn open(spec: &DeviceSpec, name: &str) -> Outcome<(Reader, String, String)> {
        if matches!(spec, DeviceSpec::Memory(_)) {
            return Err(Failure::invalid("ro: a drive in memory begins empty: there is no store"));
        }
        match Reader::of_drive(spec.clone()) {
            Err(busy) if busy.kind() == ErrorKind::Busy => match program_with(name) {
                Ok(Some(socket)) => Reader::of_program(&socket),
                Ok(None) => Err(busy.into()),
                Err(other) => {
                    let message = format!("{busy}; the store may be that of a program: {other}");
                    Err(Error::new(ErrorKind::Busy, message).into())
                }
            },
            opened => Ok(opened?),
        }
    }

    fn of_drive(spec: DeviceSpec) -> Result<(Reader, String, String), Error> {
        let config = config().map_err(|why| Error::new(ErrorKind::Io, why.message))?;
        let port = Port::start(config, move |rt| {
            let drive = open_drive(rt, &spec, Access::ReadOnly)?;
            rt.block_on(async move { Snapshot::open(drive).await.map(Rc::new) })
        })?;
        let about = port.try_call(|_, store| {
            let entry = |(path, node): (&str, Node)| {
                let file = match node {
                    Node::Directory => None,
                    Node::File(id) => store.file(id).map(|file| Known {
                        id,
                        size: file.size,
                        modified: file.modified,
                    }),
                };
                (path.to_owned(), file)
            };
            let entries: BTreeMap<_, _> = store.names().map(entry).collect();
            std::future::ready((entries, store.uuid().to_string(), store.label().to_owned()))
        });
        let stopped = |why: furrow_rt::Stopped| Error::new(ErrorKind::Io, why.to_string());
        let (entries, uuid, label) = about.map_err(stopped)?;
        Ok((Reader::of(entries, Source::Drive(port)), uuid, label))
    }

    fn of_program(socket: &Path) -> Outcome<(Reader, String, String)> {
        let (view, frozen) = View::begin(socket).map_err(|why| broken(&why))?;
        let known = |entry: Entry| {
            let file = entry.file.map(|file| Known {
                id: FileId(file.file),
                size: file.bytes,
                modified: file.modified,
            });
            (entry.path, file)
        };
        let entries = frozen.entries.into_iter().map(known).collect();
        let reader = Reader::of(entries, Source::Program(Mutex::new(view)));
        Ok((reader, frozen.uuid, frozen.label))
    }

    fn of(entries: BTreeMap<String, Option<Known>>, source: Source) -> Reader {
        let sizes = entries.values().flatten().map(|file| (file.id, file.size)).collect();
        Reader { entries, sizes, source }
    }

    /// The file at a path; `None` if the path names a directory.
    pub(crate) fn get(&self, path: &str) -> Outcome<Option<Known>> {
        let path = clean_path(path)?;
        match self.entries.get(&path) {
            _ if path.is_empty() => Ok(None),
            Some(entry) => Ok(*entry),
            None => Err(not_found(&path)),
        }
    }

    /// The file at a path.
    pub(crate) fn file(&self, path: &str) -> Outcome<FileId> {
        let directory = || Error::new(ErrorKind::IsDirectory, format!("{path}: a directory"));
        Ok(self.get(path)?.ok_or_else(directory)?.id)
    }

    /// The names in a directory in ascending order.
    pub(crate) fn list(&self, path: &str) -> Outcome<Vec<(String, Option<Known>)>> {
        if self.get(path)?.is_some() {
            let message = format!("{path}: not a directory");
            return Err(Error::new(ErrorKind::NotDirectory, message).into());
        }
        let path = clean_path(path)?;
        let prefix = if path.is_empty() { path } else { format!("{path}/") };
        let inside = self.entries.range(prefix.clone()..);
        let inside = inside.map_while(|(path, file)| Some((path.strip_prefix(&prefix)?, *file)));
        let here = inside.filter(|(name, _)| !name.contains('/'));
        Ok(here.map(|(name, file)| (name.to_owned(), file)).collect())
    }

    /// The size of a file in bytes.
    pub(crate) fn size(&self, id: FileId) -> u64 {
        self.sizes.get(&id).copied().unwrap_or(0)
    }

    /// Reads `len` bytes; fewer only at the end of the file.
    pub(crate) fn read(&self, id: FileId, offset: u64, len: usize) -> Outcome<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let at = offset.saturating_add(bytes.len() as u64);
            let piece = (len - bytes.len()).min(PIECE);
            let read = match &self.source {
                Source::Drive(port) => {
                    let read = port.try_call(move |_, store| {
                        let store = store.clone();
                        async move { store.read(id, at, piece).await }
                    });
                    read.map_err(stopped)??
                }
                Source::Program(view) => {
                    let read = lock(view).read(id.0, at, piece as u64);
                    read.map_err(|why| broken(&why))?
                }
            };
            if read.is_empty() {
                break;
            }
            bytes.extend(read);
        }
        Ok(bytes)
    }
}

/// The control socket of the program that uses the store on the drive called `name`.
///
/// # Errors
/// The error of a program that speaks another version of the protocol, if no other program uses
/// the store.
fn program_with(name: &str) -> Result<Option<PathBuf>, Unanswered> {
    let mut other = None;
    for socket in Kind::Store.sockets().unwrap_or_default() {
        let Ok(mut client) = Connection::open(&socket, Some(PATIENCE)) else { continue };
        match client.ask(&Request::Stat) {
            Ok(stat) if stat["device"].as_str() == Some(name) => return Ok(Some(socket)),
            Err(why @ Unanswered::OtherVersion { .. }) => other = Some(why),
            _ => {}
        }
    }
    other.map_or(Ok(None), Err)
}

/// The error for a program that sends an error or no answer.
fn broken(why: &Unanswered) -> Error {
    let message = match why {
        Unanswered::OtherVersion { .. } => {
            return Error::new(ErrorKind::Unsupported, format!("the store is in use: {why}"));
        }
        Unanswered::Refused(why) => why.clone(),
        Unanswered::Late => "the program that uses the store gives no answer".to_owned(),
        _ => format!("the program that used the store has closed it, or ended ({why})"),
    };
    Error::new(ErrorKind::Io, message)
}
