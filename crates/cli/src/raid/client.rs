//! Finding running arrays and asking them.

use super::request::Request;
use super::status::Status;
use anyhow::{Context as _, Result, anyhow, bail};
use furrow_control::place::{self, Kind};
use furrow_control::{Connection, Error, client, socket};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::words;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Suffix of the file with the array's name. The file exists as long as the control socket, so that
/// commands know the name even if the daemon does not answer.
const NAME_ENDING: &str = "name";
/// Upper limit for the bytes of an array's name.
const NAME_MAX: u64 = 256;
/// Time limit for an array to report its state.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for a daemon to end after its last answer.
const FAREWELL: Duration = Duration::from_secs(10);
/// Time that a daemon may take between closing its socket and removing the socket's file.
const LEAVING: Duration = Duration::from_millis(100);

/// A running array.
pub struct Running {
    /// The control socket of the array.
    pub socket: PathBuf,
    /// The state of the array.
    pub status: Status,
}

/// A daemon that does not answer at its array's control socket: it hangs, is stopped, or has died
/// and left the socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Silent {
    /// Name of the array, if it is known.
    #[serde(default)]
    pub array: Option<String>,
    /// UUID of the array.
    pub uuid: String,
    /// The daemon's process id, if the kernel knows it.
    pub pid: Option<u32>,
    /// Description of the failure to answer.
    pub error: String,
    /// Whether the daemon has died.
    pub dead: bool,
    /// The reason for an answer without a result, in capitals: the daemon speaks another version of
    /// the protocol, or refuses.
    #[serde(skip)]
    pub answers: Option<&'static str>,
}

impl Silent {
    /// Name and UUID of the array; the UUID alone if the name is not known.
    pub fn name(&self) -> String {
        match &self.array {
            Some(name) => format!("{name}, UUID {}", self.uuid),
            None => format!("UUID {}", self.uuid),
        }
    }

    /// Whether `name` is the name of this array, or at least four characters from the start of
    /// its UUID.
    fn is_called(&self, name: &str) -> bool {
        self.array.as_deref() == Some(name) || (name.len() >= 4 && self.uuid.starts_with(name))
    }

    /// The problem of the daemon, in capitals.
    pub fn state(&self) -> &'static str {
        match self.answers {
            _ if self.dead => "DEAD",
            Some(how) => how,
            None => "NO ANSWER",
        }
    }

    /// The error for a command that needs an answer of this daemon.
    pub fn error(&self) -> anyhow::Error {
        let array = match &self.array {
            Some(name) => format!("{name} (UUID {})", self.uuid),
            None => self.uuid.clone(),
        };
        if self.dead {
            let socket = Kind::Array.socket(&self.uuid);
            return anyhow!(
                "the array {array} does not run: its daemon has died without a stop: furrow raid \
                 assemble recovers the array; if it is not wanted, remove {}",
                socket.display()
            );
        }
        if self.answers.is_some() {
            return anyhow!("the array {array} runs, but {}", self.error);
        }
        let daemon = match self.pid {
            Some(pid) => format!("its daemon (process {pid})"),
            None => "its daemon".to_owned(),
        };
        anyhow!(
            "the array {array} runs, but {daemon} gives no answer ({}): find out why the process \
             does not continue; if it must be killed, furrow raid assemble recovers the array",
            self.error
        )
    }
}

/// The arrays that have a daemon.
#[derive(Default)]
pub struct Seen {
    /// Arrays whose daemons answer, by name.
    pub running: Vec<Running>,
    /// Daemons that do not answer.
    pub silent: Vec<Silent>,
}

/// Makes the runtime directory, for this user alone, if it is missing.
///
/// # Errors
/// An error if the directory cannot be made.
pub fn make_runtime_dir() -> Result<PathBuf> {
    place::make_directory().with_context(|| {
        let path = place::directory();
        format!("{}: cannot be made: set FURROW_RUN to a directory that can", path.display())
    })
}

/// A file with the name of an array, for commands that get no answer from its daemon. Dropping this
/// value removes the file; a daemon that dies leaves both the file and its socket.
pub struct NameFile(PathBuf);

impl NameFile {
    /// Writes the name `name` of the array with UUID `uuid` to such a file.
    ///
    /// # Errors
    /// An error if the file cannot be written.
    pub fn write(uuid: &str, name: &str) -> Result<NameFile> {
        let path = Kind::Array.socket(uuid).with_extension(NAME_ENDING);
        std::fs::write(&path, name).with_context(|| path.display().to_string())?;
        Ok(NameFile(path))
    }
}

impl Drop for NameFile {
    fn drop(&mut self) {
        // If the file cannot be removed, the next daemon of the array overwrites it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The array's name from the file next to its control socket; `None` if that file cannot be read.
fn name_beside(socket: &Path) -> Option<String> {
    let file = std::fs::File::open(socket.with_extension(NAME_ENDING)).ok()?;
    let mut name = String::new();
    file.take(NAME_MAX).read_to_string(&mut name).ok()?;
    (!name.is_empty()).then(|| crate::show::printable(&name))
}

/// The arrays whose daemons answer, sorted by name; none if this user may not see them.
pub fn running() -> Vec<Running> {
    visible().unwrap_or_default().running
}

/// The arrays that have a daemon. Asks all daemons at the same time.
///
/// # Errors
/// An error if this user may not see the sockets, or may not use one of them.
pub fn visible() -> Result<Seen> {
    let folder = place::directory();
    let sockets = Kind::Array.sockets().map_err(|error| denied(&folder, &error))?;
    let (myself, mut seen) = (std::process::id(), Seen::default());
    std::thread::scope(|scope| {
        let asked: Vec<_> = sockets
            .iter()
            .map(|socket| (socket, scope.spawn(|| look(socket, PATIENCE, myself))))
            .collect();
        for (socket, answer) in asked {
            match answer.join().unwrap_or_else(|_| Err(anyhow!("{}: no answer", socket.display())))
            {
                Ok(None) => {}
                Ok(Some(Ok(status))) => {
                    seen.running.push(Running { socket: socket.clone(), status });
                }
                Ok(Some(Err(silent))) => seen.silent.push(silent),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })?;
    seen.running.sort_by_key(|one| (one.status.array.clone(), one.status.uuid.clone()));
    seen.silent.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    Ok(seen)
}

/// Asks the daemon behind a socket for its status; `None` if the socket is gone, because the daemon
/// has stopped cleanly, or if the process `asker`, which asks, is itself that daemon.
fn look(
    socket: &Path,
    patience: Duration,
    asker: u32,
) -> Result<Option<std::result::Result<Status, Silent>>> {
    let silent = |process, error: String| Silent {
        array: name_beside(socket),
        uuid: place::name_of(socket),
        pid: process,
        error,
        dead: false,
        answers: None,
    };
    let mut connection = match open_or_dead(socket, patience) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(denied(socket, &error));
        }
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            let error = format!("{}: it takes no connection", socket.display());
            return Ok(Some(Err(silent(None, error))));
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return Ok(Some(Err(Silent { dead: true, ..silent(None, error.to_string()) })));
        }
        Err(_) => return Ok(None),
        Ok(connection) => connection,
    };
    let process = connection.process();
    // A daemon binds its socket before it has its drives, and does not answer itself.
    if process == Some(asker) {
        return Ok(None);
    }
    Ok(match connection.ask(&Request::Status) {
        Ok(status) => Some(match read_status(socket, status) {
            Ok(status) => Ok(status),
            Err(error) => Err(silent(process, format!("{error:#}"))),
        }),
        // The daemon has ended since it took the connection.
        Err(_) if socket::is_dead(socket) => return look(socket, patience, asker),
        Err(error) => {
            let answers = match &error {
                Error::OtherVersion { .. } => Some("OTHER VERSION"),
                Error::Refused(_) => Some("REFUSES"),
                _ => None,
            };
            let error = format!("{:#}", explain(socket, error, Some(patience)));
            Some(Err(Silent { answers, ..silent(process, error) }))
        }
    })
}

/// Connects to `socket`. If no process listens there, tries again after a moment, in which a daemon
/// that is ending removes its socket.
fn open_or_dead(socket: &Path, limit: Duration) -> std::io::Result<Connection> {
    let opened = Connection::open(socket, Some(limit));
    if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        std::thread::sleep(LEAVING);
        return Connection::open(socket, Some(limit));
    }
    opened
}

/// The error if this user cannot use `path`, the runtime directory or a control socket in it.
fn denied(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let what = match error.kind() {
        ErrorKind::PermissionDenied => "permission denied",
        _ => return anyhow!("{}: {error}", path.display()),
    };
    let owner = std::fs::metadata(path).map(|meta| std::os::unix::fs::MetadataExt::uid(&meta));
    let owner = owner.map_or_else(|_| "its owner".to_owned(), |uid| format!("user {uid}"));
    anyhow!(
        "{}: {what}: only {owner} and root can see and ask the arrays there: run this as one of \
         them, or set FURROW_RUN to where your arrays are",
        path.display()
    )
}

/// Finds a running array by name, UUID, start of a UUID, or control socket.
///
/// # Errors
/// An error if there is none, or more than one.
pub fn find(name: &str) -> Result<Running> {
    if name.contains('/') {
        let socket = PathBuf::from(name);
        return Ok(Running { status: status(&socket)?, socket });
    }
    let Seen { running: mut found, silent } = visible()?;
    let names: Vec<String> = found.iter().map(|array| array.status.array.clone()).collect();
    if names.iter().any(|known| known == name) {
        found.retain(|array| array.status.array == name);
    } else {
        found.retain(|array| name.len() >= 4 && array.status.uuid.starts_with(name));
    }
    match found.len() {
        0 if !silent.is_empty() => {
            let asked = silent.iter().find(|one| one.is_called(name));
            match asked {
                Some(one) => bail!(one.error()),
                None => bail!(
                    "{name}: no array that answers has this name, but {}",
                    silent.iter().map(|one| one.error().to_string()).collect::<Vec<_>>().join("; ")
                ),
            }
        }
        0 => bail!(
            "no array {name} runs{} (looked in {}): see furrow raid status, or start it with \
             furrow raid assemble",
            words::hint(name, names.iter().map(String::as_str)),
            place::directory().display()
        ),
        1 => Ok(found.remove(0)),
        _ => {
            let which: Vec<&str> = found.iter().map(|array| array.status.uuid.as_str()).collect();
            bail!("{name} could be any of {}: give the UUID", which.join(", "))
        }
    }
}

/// The status of each array whose daemon answers; none if this user may not see them.
pub fn statuses() -> Vec<Status> {
    running().into_iter().map(|array| array.status).collect()
}

/// The running array that has the image or device at `path` open, if there is one.
pub fn user_of(path: &Path) -> Option<Status> {
    user_among(&statuses(), path).cloned()
}

/// The array among `arrays` that has the image or device at `path` open, if there is one.
pub fn user_among<'a>(arrays: &'a [Status], path: &Path) -> Option<&'a Status> {
    let path = path.canonicalize().ok()?;
    let uses = |status: &&Status| {
        let members = status.members.iter().filter_map(|member| member.device.as_deref());
        members.chain(status.spares.iter().map(String::as_str)).any(|spec| is_of(spec, &path))
    };
    arrays.iter().find(uses)
}

fn is_of(spec: &str, path: &Path) -> bool {
    match spec.parse() {
        Ok(DeviceSpec::Image(image)) => Path::new(&image.path) == path,
        // A device has several names: names in /dev/disk are links.
        Ok(DeviceSpec::Node(node)) => {
            Path::new(&node.path).canonicalize().is_ok_and(|full| full == path)
        }
        _ => false,
    }
}

/// The state of the array behind `socket`.
///
/// # Errors
/// The errors of [`ask`].
pub fn status(socket: &Path) -> Result<Status> {
    read_status(socket, ask_within(socket, &Request::Status, Some(PATIENCE))?)
}

fn read_status(socket: &Path, value: Value) -> Result<Status> {
    serde_json::from_value(value)
        .with_context(|| format!("{}: status of another version", socket.display()))
}

/// Sends a request to the daemon behind `socket` and waits for the answer without limit.
///
/// # Errors
/// An error if no daemon answers, or the request fails.
pub fn ask(socket: &Path, request: &Request) -> Result<Value> {
    ask_within(socket, request, None)
}

/// Like [`ask`], with a time limit.
///
/// # Errors
/// The errors of [`ask`].
pub fn ask_within(
    socket: &Path,
    request: &impl Serialize,
    limit: Option<Duration>,
) -> Result<Value> {
    let answer = connect(socket, limit)?.ask(request);
    answer.map_err(|error| explain(socket, error, limit))
}

/// Like [`ask`], for a request whose answer (a success or an error) may be the daemon's last one.
/// If so, this function waits until the daemon has closed the connection, and then for up to 10 s
/// until the daemon's socket is dead.
///
/// # Errors
/// The errors of [`ask`].
pub fn ask_last(socket: &Path, request: &Request) -> Result<Value> {
    let mut connection = connect(socket, None)?;
    let answer = connection.exchange(request).map_err(|error| explain(socket, error, None))?;
    if answer.last {
        connection.wait_for_end();
        let until = Instant::now() + FAREWELL;
        while !socket::is_dead(socket) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    client::result(answer).map_err(|error| explain(socket, error, None))
}

fn connect(socket: &Path, limit: Option<Duration>) -> Result<Connection> {
    let at = socket.display();
    Connection::open(socket, limit).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => anyhow!("{at}: the daemon of this array is dead"),
        ErrorKind::TimedOut => anyhow!("{at}: its daemon takes no connection: it hangs"),
        _ => anyhow!("{at}: {error}"),
    })
}

/// The error of a command that got no result from the daemon behind `socket`.
fn explain(socket: &Path, error: Error, limit: Option<Duration>) -> anyhow::Error {
    let at = socket.display();
    match error {
        Error::Refused(why) | Error::Unsent(why) => anyhow!(why),
        Error::Late => {
            let seconds = limit.unwrap_or_default().as_secs();
            anyhow!("{at}: nothing came within {seconds} s: the daemon hangs, or is stopped")
        }
        Error::OtherVersion { process: Some(process), .. } => {
            anyhow!("{error}: stop it cleanly (kill {process}), then furrow raid assemble")
        }
        _ => anyhow!("{at}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// The id of a process other than this one: `look` skips the sockets of the process that asks.
    const OTHER: u32 = 0;

    /// A socket that is open but does not answer belongs to a live daemon, however many connections
    /// are waiting there; a socket at which no process listens belongs to a dead one.
    #[test]
    fn a_daemon_that_does_not_answer_is_one() {
        let folder = std::env::temp_dir().join(format!("furrow-silent-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let socket = folder.join("uuid.control");
        std::fs::write(folder.join(format!("uuid.{NAME_ENDING}")), "tank").expect("a name");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let limit = Duration::from_millis(50);
        let mut waiting = Vec::new();
        for _ in 0..2 {
            let silent = look(&socket, limit, OTHER).expect("seen").expect("there");
            let silent = silent.expect_err("no answer");
            assert_eq!(silent.uuid, "uuid");
            let error = silent.error().to_string();
            assert!(error.contains("tank") && error.contains("gives no answer"), "{error}");
            assert!(silent.is_called("tank") && silent.is_called("uuid"));
            // Fills the kernel's queue of waiting connections.
            while let Ok(stream) = socket::open(&socket, Duration::ZERO) {
                waiting.push(stream);
            }
        }
        drop(listener);
        let dead = look(&socket, limit, OTHER).expect("seen").expect("there").expect_err("dead");
        assert!(dead.dead && dead.error().to_string().contains("has died"), "{dead:?}");
        std::fs::remove_file(&socket).expect("ours");
        assert!(look(&socket, limit, OTHER).expect("seen").is_none());
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
