//! The client's side of control sockets: finding running arrays and asking them.

use super::request::{Answer, REQUEST_MAX, Request};
use super::status::Status;
use anyhow::{Context as _, Result, anyhow, bail};
use serde::Serialize;
use serde_json::Value;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Suffix of control sockets, after the UUID.
const ENDING: &str = ".control";
/// Most time an array may take to report its state.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most time that a daemon may take to end after its last answer.
const FAREWELL: Duration = Duration::from_secs(10);
/// Longest answer in bytes.
const ANSWER_MAX: u64 = 16 << 20;

/// A running array.
pub struct Running {
    /// Its control socket.
    pub socket: PathBuf,
    /// Its state.
    pub status: Status,
}

/// The directory with the sockets of running arrays.
pub fn runtime_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(own) = set("FURROW_RUN") {
        // The daemon changes its working directory.
        return std::path::absolute(&own).unwrap_or_else(|_| own.into());
    }
    match set("XDG_RUNTIME_DIR") {
        Some(users) => PathBuf::from(users).join("furrow"),
        None => PathBuf::from("/run/furrow"),
    }
}

/// Makes the runtime directory, for this user alone, if it is missing.
///
/// # Errors
/// If it cannot be made.
pub fn make_runtime_dir() -> Result<PathBuf> {
    let path = runtime_dir();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.with_context(|| {
        format!("{}: cannot be made: set FURROW_RUN to a directory that can", path.display())
    })?;
    Ok(path)
}

/// The control socket of the array with this UUID.
pub fn control_socket(uuid: &str) -> PathBuf {
    runtime_dir().join(format!("{uuid}{ENDING}"))
}

/// The arrays that run and answer, by name; none if this user may not see them.
pub fn running() -> Vec<Running> {
    visible().unwrap_or_default()
}

/// The arrays that run and answer, by name.
///
/// # Errors
/// If this user may not see the sockets, or not use one of them.
pub fn visible() -> Result<Vec<Running>> {
    let folder = runtime_dir();
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(denied(&folder, &error)),
    };
    let is_control = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(ENDING));
    let sockets = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_control);
    let mut found: Vec<Running> = sockets
        .filter_map(|socket| match UnixStream::connect(&socket) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Some(Err(denied(&socket, &error)))
            }
            // The socket of a dead daemon.
            Err(_) => None,
            Ok(_) => {
                let status = status(&socket).ok()?;
                Some(Ok(Running { socket, status }))
            }
        })
        .collect::<Result<_>>()?;
    found.sort_by(|a, b| (&a.status.array, &a.status.uuid).cmp(&(&b.status.array, &b.status.uuid)));
    Ok(found)
}

/// The error that running arrays cannot be listed.
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
/// If there is none, or more than one.
pub fn find(name: &str) -> Result<Running> {
    if name.contains('/') {
        let socket = PathBuf::from(name);
        return Ok(Running { status: status(&socket)?, socket });
    }
    let mut found = visible()?;
    if found.iter().any(|array| array.status.array == name) {
        found.retain(|array| array.status.array == name);
    } else {
        found.retain(|array| name.len() >= 4 && array.status.uuid.starts_with(name));
    }
    match found.len() {
        0 => bail!(
            "no array {name} runs (looked in {}): see furrow raid status, or start it with furrow \
             raid assemble",
            runtime_dir().display()
        ),
        1 => Ok(found.remove(0)),
        _ => {
            let which: Vec<&str> = found.iter().map(|array| array.status.uuid.as_str()).collect();
            bail!("{name} could be any of {}: give the UUID", which.join(", "))
        }
    }
}

/// The running array that has the image at `path` open, if there is one.
pub fn user_of(path: &Path) -> Option<Status> {
    let path = path.canonicalize().ok()?;
    let uses = |status: &Status| {
        let members = status.members.iter().filter_map(|member| member.device.as_deref());
        members.chain(status.spares.iter().map(String::as_str)).any(|spec| is_of(spec, &path))
    };
    running().into_iter().map(|array| array.status).find(uses)
}

fn is_of(spec: &str, path: &Path) -> bool {
    match spec.parse() {
        Ok(furrow_zone::spec::DeviceSpec::Image(image)) => Path::new(&image.path) == path,
        _ => false,
    }
}

/// The state of the array behind `socket`.
///
/// # Errors
/// As [`ask`].
pub fn status(socket: &Path) -> Result<Status> {
    let value = ask_within(socket, &Request::Status, Some(PATIENCE))?;
    serde_json::from_value(value)
        .with_context(|| format!("{}: status of another version", socket.display()))
}

/// Sends a request to the daemon behind `socket` and waits for the answer without limit.
///
/// # Errors
/// If nobody answers, or the request fails.
pub fn ask(socket: &Path, request: &Request) -> Result<Value> {
    ask_within(socket, request, None)
}

/// As [`ask`], with a time limit.
///
/// # Errors
/// As [`ask`].
pub fn ask_within(socket: &Path, request: &Request, limit: Option<Duration>) -> Result<Value> {
    result(socket, exchange(socket, request, limit)?.0)
}

/// As [`ask`]. If the daemon ends after its answer, whether that is a success or an error, this
/// returns only when the daemon has ended.
///
/// # Errors
/// As [`ask`].
pub fn ask_last(socket: &Path, request: &Request) -> Result<Value> {
    let (answer, mut stream) = exchange(socket, request, None)?;
    if answer.last {
        // An error also means that the connection has ended.
        let _ = stream.read_to_end(&mut Vec::new());
        let until = Instant::now() + FAREWELL;
        while UnixStream::connect(socket).is_ok() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    result(socket, answer)
}

/// As [`ask_within`], for daemons with other requests.
///
/// # Errors
/// As [`ask`].
pub fn exchange_lines(socket: &Path, request: &impl Serialize, limit: Duration) -> Result<Value> {
    result(socket, exchange(socket, request, Some(limit))?.0)
}

fn exchange(
    socket: &Path,
    request: &impl Serialize,
    limit: Option<Duration>,
) -> Result<(Answer, UnixStream)> {
    let at = || socket.display().to_string();
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => anyhow!("{}: the daemon of this array is dead", at()),
        _ => anyhow!("{}: {error}", at()),
    })?;
    stream
        .set_read_timeout(limit)
        .and_then(|()| stream.set_write_timeout(limit))
        .with_context(at)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    if line.len() > REQUEST_MAX {
        bail!("a request of {} bytes: at most {REQUEST_MAX} are taken", line.len());
    }
    stream.write_all(&line).with_context(at)?;
    let bytes = read_line(&mut stream).with_context(at)?;
    let answer: Answer = serde_json::from_slice(&bytes)
        .with_context(|| format!("{}: an answer of another version", at()))?;
    Ok((answer, stream))
}

fn result(socket: &Path, answer: Answer) -> Result<Value> {
    match (answer.ok, answer.error) {
        (Some(value), _) => Ok(value),
        (None, Some(error)) => Err(anyhow!(error)),
        (None, None) => Err(anyhow!("{}: an answer without content", socket.display())),
    }
}

fn read_line(stream: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16 << 10]);
    while bytes.last() != Some(&b'\n') {
        match stream.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => bytes.extend_from_slice(&buffer[..read]),
        }
        if bytes.len() as u64 > ANSWER_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
    }
    Ok(bytes)
}
