//! Unix sockets in the file system: paths of any length, the sockets of dead servers, peers.
//!
//! A socket's address holds 107 bytes of a path. A longer path is reached through a descriptor of
//! its directory or of the socket itself, as `/proc/self/fd/N`. Because sockets lie in the file
//! system, a client in another mount namespace reaches them wherever the runtime directory is
//! mounted there, and otherwise through `/proc/PID/root`.

use furrow_zone::{Error, ErrorKind as Kind, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest path that fits an address, in bytes.
const ADDRESS_MAX: usize = 107;
/// The id that the kernel reports for a user whom a user namespace does not know
/// (`/proc/sys/kernel/overflowuid`).
const UNKNOWN_USER: u32 = 65534;
/// Time between two attempts of a client to connect while the server's queue of connections
/// is full.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A listening socket, for its owner alone. Dropping it removes the socket's file, unless the file
/// was replaced.
#[derive(Debug)]
pub struct Listener {
    /// The socket, which does not block.
    pub socket: Arc<OwnedFd>,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl Listener {
    /// Listens at `path`. The socket of a dead server is replaced; a socket in use, or a file of
    /// another kind, is not touched.
    ///
    /// # Errors
    /// `Busy` if another server answers there, `Exists` if a file other than a socket is there,
    /// `NotFound` if the directory does not exist, `Denied`, `Invalid`, `Io`.
    pub fn bind(path: &Path) -> Result<Listener> {
        let at = format!("unix:{}", path.display());
        clear(path, &at)?;
        let own = std::fs::Permissions::from_mode(0o600);
        let restrict = |bound: UnixListener| {
            std::fs::set_permissions(path, own)?;
            bound.set_nonblocking(true)?;
            Ok((bound, std::fs::symlink_metadata(path)?))
        };
        let bound = listen(path).and_then(|bound| {
            // No server listens at a socket that could not be restricted.
            restrict(bound).inspect_err(|_: &io::Error| drop(std::fs::remove_file(path)))
        });
        let advice = "expected a path in a directory that can be written to";
        let (bound, found) = bound.map_err(|error| cannot_listen(&at, &error, advice))?;
        let (path, file) = (path.to_owned(), (found.dev(), found.ino()));
        Ok(Listener { socket: Arc::new(bound.into()), path, file })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            // If the socket cannot be removed, the next server notices that it is dead.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The error of a server that cannot listen at `at`, with advice.
pub fn cannot_listen(at: &str, error: &io::Error, advice: &str) -> Error {
    let kind = match error.kind() {
        ErrorKind::AddrInUse => Kind::Busy,
        ErrorKind::PermissionDenied => Kind::Denied,
        ErrorKind::NotFound => Kind::NotFound,
        ErrorKind::InvalidInput | ErrorKind::AddrNotAvailable => Kind::Invalid,
        _ => Kind::Io,
    };
    Error::new(kind, format!("cannot listen at {at}: {error}; {advice}"))
}

/// Removes the socket of a dead server.
fn clear(path: &Path, at: &str) -> Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        let message = format!("cannot listen at {at}: a file that is not a socket is there");
        return Err(Error::new(Kind::Exists, message + "; choose another path"));
    }
    match open(path, Duration::ZERO).map_err(|error| (error.kind(), error)) {
        // A server whose queue of connections is full is alive.
        Ok(_) | Err((ErrorKind::TimedOut, _)) => {
            let message = format!("cannot listen at {at}: another server answers there");
            Err(Error::new(Kind::Busy, message + "; stop it or choose another path"))
        }
        Err((ErrorKind::ConnectionRefused, _)) => {
            let removed = std::fs::remove_file(path);
            removed
                .map_err(|error| cannot_listen(at, &error, "a dead server's socket is in the way"))
        }
        Err((_, error)) => {
            let advice = "a socket is there, and the server behind it cannot be asked";
            Err(cannot_listen(at, &error, advice))
        }
    }
}

fn is_long(path: &Path) -> bool {
    path.as_os_str().as_bytes().len() > ADDRESS_MAX
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let (Some(parent), Some(name), true) = (path.parent(), path.file_name(), is_long(path)) else {
        return UnixListener::bind(path);
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(parent, flags, Mode::empty())?;
    UnixListener::bind(through(&folder).join(name))
}

/// The path by which this process reaches the file of `descriptor`.
fn through(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

/// Connects to a socket, within `limit`. Without a limit, the kernel would wait for ever when the
/// server hangs and its queue of connections is full.
///
/// # Errors
/// `TimedOut` if the server takes no connection in that time; `ConnectionRefused` if the socket is
/// dead; `NotFound` if no socket is there; other errors of the system.
pub fn open(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let until = Instant::now() + limit;
    let held = match is_long(path) {
        true => Some(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?),
        false => None,
    };
    let address = match &held {
        Some(held) => SocketAddrUnix::new(through(held))?,
        None => SocketAddrUnix::new(path)?,
    };
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let end: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&end, &address) {
            Ok(()) => {
                let stream = UnixStream::from(end);
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(ASK_EVERY),
            Err(Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether no server listens at a socket any more.
pub fn is_dead(path: &Path) -> bool {
    let dead = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
    open(path, Duration::ZERO).is_err_and(|error| dead.contains(&error.kind()))
}

/// The process at the other end of a connection, at the time when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's process id; `None` for a process in a PID namespace that this process cannot see.
    pub process: Option<u32>,
    /// The peer's user id; 65534 if the user does not exist in this process's user namespace.
    pub user: u32,
}

impl Peer {
    /// The peer of a connected Unix socket.
    ///
    /// # Errors
    /// The system's error.
    #[allow(unsafe_code, reason = "rustix cannot hold the process id 0 of a foreign namespace")]
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let descriptor = socket.as_fd().as_raw_fd();
        // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `found`,
        // which consists of integers.
        let failed = unsafe {
            libc::getsockopt(
                descriptor,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        let process = u32::try_from(found.pid).ok().filter(|pid| *pid > 0);
        Ok(Peer { process, user: found.uid })
    }

    /// Whether this is a process of root, or of the user who runs this process. A user whom this
    /// process's user namespace does not know may be root of the host; such a user is admitted,
    /// because the socket's mode lets only its owner and root connect.
    pub fn may_ask(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        [0, UNKNOWN_USER, own].contains(&self.user)
    }
}
