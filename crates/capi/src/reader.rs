//! A store that is only read: on its drive, or through the program that uses it.
//!
//! Either way this process sees the store as it is at the moment of opening. On its drive, that is
//! the state that an opening would find, and no program can open the store for writing until this
//! view is closed. A program that uses the store freezes a view for this process through its
//! control socket (`session`), and goes on working.

use crate::control::directory;
use crate::error::{Failure, Outcome};
use crate::shared::{config, lock, open_drive, stopped};
use furrow_kv::{FileId, Node, Snapshot, clean_path};
use furrow_rt::Port;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;

/// Time limit for a program's answer.
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
    Program(Mutex<Client>),
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
            Err(busy) if busy.kind() == ErrorKind::Busy => {
                Client::of_store(name).map_or(Err(busy.into()), Reader::of_program)
            }
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

    fn of_program(mut client: Client) -> Outcome<(Reader, String, String)> {
        let view = client.ask(&json!({ "request": "freeze" }))?;
        let text = |field: &str| view[field].as_str().unwrap_or_default().to_owned();
        let known = |entry: &Value| {
            let file = entry["file"].as_u64().map(|id| {
                Some(Known {
                    id: FileId(id),
                    size: entry["bytes"].as_u64()?,
                    modified: entry["modified"].as_i64()?,
                })
            });
            let file = match file {
                Some(file) => Some(file?),
                None => None,
            };
            Some((entry["path"].as_str()?.to_owned(), file))
        };
        let entries = view["entries"].as_array().into_iter().flatten().map(known).collect();
        let entries: Option<BTreeMap<_, _>> = entries;
        let entries = entries.ok_or_else(other_version)?;
        let (uuid, label) = (text("uuid"), text("label"));
        Ok((Reader::of(entries, Source::Program(Mutex::new(client))), uuid, label))
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
                Source::Program(client) => lock(client).read(id, at, piece)?,
            };
            if read.is_empty() {
                break;
            }
            bytes.extend(read);
        }
        Ok(bytes)
    }
}

fn other_version() -> Error {
    let message = "the program that uses the store answers as one of another version";
    Error::new(ErrorKind::Unsupported, message)
}

/// A connection to the control socket of another program.
struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the program that uses the store on the drive called `name`.
    fn of_store(name: &str) -> Option<Client> {
        let entries = std::fs::read_dir(directory()).ok()?;
        let sockets = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let is_socket = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "store");
        let serves = |socket: &PathBuf| {
            let mut client = Client::connect(socket).ok()?;
            let stat = client.ask(&json!({ "request": "stat" })).ok()?;
            (stat["device"].as_str() == Some(name)).then_some(())
        };
        let socket = sockets.filter(is_socket).find(|socket| serves(socket).is_some())?;
        Client::connect(&socket).ok()
    }

    fn connect(socket: &Path) -> std::io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    fn ask(&mut self, request: &Value) -> Result<Value, Error> {
        let mut line = Vec::new();
        let sent = self.stream.get_mut().write_all(format!("{request}\n").as_bytes());
        sent.and_then(|()| self.stream.read_until(b'\n', &mut line)).map_err(|why| broken(&why))?;
        if line.last() != Some(&b'\n') {
            return Err(broken(&std::io::ErrorKind::UnexpectedEof.into()));
        }
        let mut answer: Value = serde_json::from_slice(&line).map_err(|_| other_version())?;
        match answer["error"].as_str() {
            Some(why) => Err(Error::new(ErrorKind::Io, why)),
            None => Ok(answer["ok"].take()),
        }
    }

    fn read(&mut self, id: FileId, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        let request = json!({ "request": "read", "file": id.0, "offset": offset, "bytes": bytes });
        let come = self.ask(&request)?["bytes"].as_u64().filter(|come| *come <= bytes as u64);
        let mut read = vec![0; come.ok_or_else(other_version)? as usize];
        self.stream.read_exact(&mut read).map_err(|why| broken(&why))?;
        Ok(read)
    }
}

fn broken(why: &std::io::Error) -> Error {
    let message = match why.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            "the program that uses the store gives no answer".to_owned()
        }
        _ => format!("the program that used the store has closed it, or ended ({why})"),
    };
    Error::new(ErrorKind::Io, message)
}
