//! Listening on Unix and TCP sockets.

use furrow_control::socket::{self, cannot_listen};
use furrow_rt::Rt;
use furrow_rt::exec::Readiness;
use furrow_zone::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with, sockopt};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Size in bytes of the send buffer requested for a Unix socket, so that a large reply takes few
/// calls. The system applies its own limit.
const UNIX_SEND_BUFFER: usize = 1 << 20;
/// Time of silence after which TCP probes whether the peer is still there, in seconds.
const KEEPALIVE: u64 = 60;

/// A place at which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket at this path, for its owner alone. The socket of a dead server is replaced; a
    /// socket in use, or a file of another kind, is not touched.
    Unix(PathBuf),
    /// TCP at this address; port 0 selects a free port.
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl std::str::FromStr for Listen {
    type Err = Error;

    /// Parses `unix:PATH`, `tcp:ADDRESS:PORT`, or either without its prefix. A text without a
    /// prefix that is not an address is a path if it contains a slash.
    fn from_str(text: &str) -> Result<Listen> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Listen::Unix(path.into()));
        }
        match text.strip_prefix("tcp:").unwrap_or(text).parse() {
            Ok(address) => Ok(Listen::Tcp(address)),
            Err(_) if text.contains('/') => Ok(Listen::Unix(text.into())),
            Err(_) => Err(Error::new(
                ErrorKind::Invalid,
                format!("cannot listen at '{text}'; expected unix:PATH or tcp:ADDRESS:PORT"),
            )),
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// A name for messages.
    pub name: String,
    /// The key that all connections of a client share: the process for a Unix socket, the address
    /// for TCP; for IPv6 the host's 64-bit network.
    pub client: String,
}

impl From<&str> for Peer {
    fn from(name: &str) -> Peer {
        Peer { name: name.to_owned(), client: name.to_owned() }
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        let client = match address.ip() {
            IpAddr::V4(host) => host.to_string(),
            IpAddr::V6(host) => match host.to_ipv4_mapped() {
                Some(host) => host.to_string(),
                None => {
                    let [a, b, c, d, ..] = host.segments();
                    format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
                }
            },
        };
        Peer { name: address.to_string(), client }
    }
}

/// A listening socket. Dropping it removes the file of a Unix socket, unless that file
/// was replaced.
pub struct Listener {
    socket: Arc<OwnedFd>,
    pub(crate) at: Listen,
    /// Removes the file of a Unix socket when dropped; `None` for TCP.
    _unix: Option<socket::Listener>,
}

impl Listener {
    /// Listens at `at`.
    ///
    /// # Errors
    /// `Busy` if another server answers there, `Exists` if a file other than a socket is there,
    /// `NotFound` if the socket's directory does not exist, `Denied`, `Invalid`, `Io`.
    pub fn bind(at: &Listen) -> Result<Listener> {
        match at {
            Listen::Unix(path) => {
                let unix = socket::Listener::bind(path)?;
                Ok(Listener { socket: unix.socket.clone(), at: at.clone(), _unix: Some(unix) })
            }
            Listen::Tcp(address) => {
                let advice = "expected an address of this machine and a free port";
                let failed = |error: io::Error| cannot_listen(&at.to_string(), &error, advice);
                let bound = TcpListener::bind(address).map_err(failed)?;
                let address = bound
                    .set_nonblocking(true)
                    .and_then(|()| bound.local_addr())
                    .map_err(failed)?;
                let at = Listen::Tcp(address);
                Ok(Listener { socket: Arc::new(bound.into()), at, _unix: None })
            }
        }
    }

    /// Waits until a client may have connected.
    pub fn readable(&self, rt: &Rt) -> Readiness {
        rt.readable(self.socket.clone())
    }

    /// Accepts the next waiting client. Returns its socket, and who it is. [`Errno::AGAIN`] means
    /// that no client waits.
    pub fn accept(&self) -> Result<(OwnedFd, Peer), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, address) = acceptfrom_with(&self.socket, flags)?;
        let peer = match &self.at {
            Listen::Unix(_) => {
                // If the system refuses, the only effect is that replies take more calls.
                let _ = sockopt::set_socket_send_buffer_size(&socket, UNIX_SEND_BUFFER);
                peer_process(&socket)
            }
            Listen::Tcp(_) => {
                tune_tcp(&socket);
                address.and_then(internet).map_or_else(|| "tcp".into(), Peer::from)
            }
        };
        Ok((socket, peer))
    }
}

/// The process at the other end of a Unix socket.
fn peer_process(connection: &OwnedFd) -> Peer {
    let name = match socket::Peer::of(connection) {
        Ok(socket::Peer { process: Some(process), user }) => {
            format!("process {process} of user {user}")
        }
        Ok(socket::Peer { process: None, user }) => format!("user {user}"),
        Err(_) => "unix".to_owned(),
    };
    Peer::from(&*name)
}

fn internet(address: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(address).ok()
}

/// Makes TCP send replies at once and notice dead peers. Failures are ignored.
fn tune_tcp(socket: &impl AsFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(KEEPALIVE));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("furrow-nbd-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_a_live_ones_is_not() {
        let folder = folder("listen");
        let path = folder.join("socket");
        let at = Listen::Unix(path.clone());
        // Like a killed server, the listener of `std` leaves its file behind.
        drop(UnixListener::bind(&path).unwrap());
        let live = Listener::bind(&at).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = Listener::bind(&at).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert!(UnixStream::connect(&path).is_ok(), "the live one still listens");
        drop(live);
        assert!(!path.exists(), "it takes its socket with it");
        std::fs::write(&path, b"precious").unwrap();
        let refused = Listener::bind(&at).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn connections_of_one_host_are_one_clients() {
        let client = |address: &str| Peer::from(address.parse::<SocketAddr>().unwrap()).client;
        assert_eq!(client("10.0.0.1:5"), client("10.0.0.1:6"));
        assert_ne!(client("10.0.0.1:5"), client("10.0.0.2:5"));
        assert_eq!(client("[::ffff:10.0.0.1]:5"), client("10.0.0.1:5"));
        assert_eq!(client("[2001:db8::1]:5"), client("[2001:db8::2]:6"));
        assert_ne!(client("[2001:db8::1]:5"), client("[2001:db8:0:1::1]:5"));
    }

    #[test]
    fn places_are_read_as_they_are_written() {
        for place in ["unix:/run/a", "unix:socket", "tcp:127.0.0.1:10809", "tcp:[::1]:0"] {
            assert_eq!(place.parse::<Listen>().unwrap().to_string(), place);
        }
        assert_eq!("./a".parse::<Listen>().unwrap(), Listen::Unix("./a".into()));
        assert_eq!("0.0.0.0:1".parse::<Listen>().unwrap().to_string(), "tcp:0.0.0.0:1");
        for nowhere in ["", "unix:", "tcp:", "tcp:localhost", "socket", "1.2.3.4"] {
            let error = nowhere.parse::<Listen>().unwrap_err();
            assert!(error.to_string().contains("tcp:ADDRESS:PORT"), "{error}");
        }
    }

    #[test]
    fn a_server_does_not_remove_its_successors_socket() {
        let folder = folder("successor");
        let path = folder.join("socket");
        let old = Listener::bind(&Listen::Unix(path.clone())).unwrap();
        std::fs::rename(&path, folder.join("moved")).unwrap();
        let new = Listener::bind(&Listen::Unix(path.clone())).unwrap();
        drop(old);
        assert!(UnixStream::connect(&path).is_ok());
        drop(new);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_free_port_is_told_and_a_taken_one_is_refused() {
        let first = Listener::bind(&Listen::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let Listen::Tcp(address) = first.at else { panic!("tcp") };
        assert_ne!(address.port(), 0);
        let refused = Listener::bind(&Listen::Tcp(address)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        let nowhere = Listener::bind(&Listen::Unix("/nonexistent/socket".into())).err().unwrap();
        assert_eq!(nowhere.kind(), ErrorKind::NotFound, "{nowhere}");
    }
}
