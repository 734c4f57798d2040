//! Arbitrary input to a control socket: the server keeps running, and says what is wrong.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a socket")]
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "a thread of the test enters a mount namespace")]

use furrow_control::envelope::REQUEST_MAX;
use furrow_control::socket::{self, Listener, Peer};
use furrow_control::{Connection, Error, Handler, Reply, Server, VERSION};
use furrow_rt::{Config, Nanos, Rng, Rt, either};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

#[derive(Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// Adds to the sum of this connection.
    Add {
        number: u64,
    },
    /// Returns this number of bytes.
    Bytes {
        count: usize,
    },
    /// Waits, like a request that needs the drive.
    Wait,
    Fail,
}

struct Adder(Rt);

impl Handler for Adder {
    type Request = Request;
    type Session = u64;

    async fn answer(self: Rc<Self>, request: Request, sum: &mut u64) -> Result<Reply, String> {
        match request {
            Request::Add { number } => {
                *sum += number;
                Ok(json!({ "sum": *sum }).into())
            }
            Request::Bytes { count } => {
                Ok(Reply { value: json!({ "bytes": count }), bytes: vec![7; count] })
            }
            Request::Wait => {
                self.0.sleep(2 * Nanos::SECOND).await;
                Ok(Reply::default())
            }
            Request::Fail => Err("it cannot be done".to_owned()),
        }
    }
}

/// A server in a thread.
struct Running {
    socket: PathBuf,
    end: UnixStream,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(socket: &Path) -> Running {
        let (end, ended) = UnixStream::pair().unwrap();
        let listener = Listener::bind(socket).unwrap();
        let thread = std::thread::spawn(move || {
            let rt = Rt::new(Config::real());
            let server = Server::new(&rt, listener);
            let (engine, handler) = (rt.clone(), Rc::new(Adder(rt.clone())));
            let ended = Arc::new(OwnedFd::from(ended));
            rt.block_on(async move {
                let _ = either(engine.readable(ended), server.serve(handler)).await;
            });
            rt.clear();
        });
        Running { socket: socket.to_owned(), end, thread }
    }

    fn connect(&self) -> Connection {
        Connection::open(&self.socket, LIMIT).unwrap()
    }

    /// Fails if a new client is not answered soon. A client that is told to try again does.
    fn check(&self) {
        let begun = Instant::now();
        let sum = loop {
            match self.connect().ask(&Request::Add { number: 5 }) {
                // The server may not have seen yet that others have gone.
                Err(Error::Refused(why)) if why.contains("try again") => {
                    assert!(begun.elapsed() < Duration::from_secs(5), "{why}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                answer => break answer.unwrap(),
            }
        };
        assert_eq!(sum, json!({ "sum": 5 }));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }

    /// Sends bytes and the end of the connection, and returns everything that comes.
    fn said(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(LIMIT).unwrap();
        // The server may have ended the connection in the meantime.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn stop(self) {
        drop(self.end);
        self.thread.join().unwrap();
        assert!(!self.socket.exists(), "a server takes its socket with it");
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn requests_are_answered_in_order_and_a_connection_keeps_its_state() {
    let server = Running::start(&folder("order").join("socket"));
    let mut client = server.connect();
    for sum in [1, 2, 3] {
        assert_eq!(client.ask(&Request::Add { number: 1 }).unwrap()["sum"], sum);
    }
    let error = client.ask(&Request::Fail).unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why == "it cannot be done"), "{error}");
    assert_eq!(client.ask(&Request::Bytes { count: 3_000_000 }).unwrap()["bytes"], 3_000_000);
    assert!(client.bytes(3_000_000).unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(client.process(), Some(std::process::id()));
    // The sum of another client is separate, and that client is served while this one waits.
    let waits = std::thread::spawn(move || client.ask(&Request::Wait).map(drop));
    server.check();
    waits.join().unwrap().unwrap_err();
    server.stop();
}

#[test]
fn whatever_comes_the_server_goes_on_and_says_what_is_wrong() {
    let server = Running::start(&folder("hostile").join("socket"));
    let good = format!("{{\"version\":{VERSION},\"request\":\"add\",\"number\":1}}\n");
    let endless = vec![b'x'; 100 * REQUEST_MAX];
    for hostile in [
        &b"\n"[..],
        b"{}\n",
        b"null\n",
        b"\xff\xfe\0\n",
        b"{\"request\":\"add\",\"number\":1}\n",
        b"{\"version\":99,\"request\":\"add\",\"number\":1}\n",
        format!("{{\"version\":{VERSION},\"request\":\"melt\"}}\n").as_bytes(),
        format!("{}\n", "[".repeat(REQUEST_MAX)).as_bytes(),
        format!("{}\n", "{\"a\":".repeat(10_000)).as_bytes(),
    ] {
        let answer = server.said(hostile);
        assert!(answer.contains("not a request") && answer.ends_with('\n'), "{answer}");
    }
    // The rest of a line that is too long may arrive after the end of the connection.
    let answer = server.said(&endless);
    assert!(answer.is_empty() || answer.contains("longer than"), "{answer}");
    assert_eq!(server.said(&good.as_bytes()[..good.len() - 1]), "", "half a line is no request");
    server.check();

    // Lines that are nearly right, whole, cut or joined.
    let mut rng = Rng::new(1);
    for _ in 0..500 {
        let mut bytes = Vec::new();
        for _ in 0..=rng.below(3) {
            let mut line = good.clone().into_bytes();
            for _ in 0..rng.below(4) {
                let at = rng.below(line.len() as u64) as usize;
                match rng.below(3) {
                    0 => line[at] = rng.below(256) as u8,
                    1 => drop(line.remove(at)),
                    _ => line.insert(at, b"{}[]\",:\n\\0"[rng.below(10) as usize]),
                }
            }
            bytes.extend(line);
        }
        for line in server.said(&bytes).lines() {
            let answer: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(answer["version"], VERSION, "{answer}");
            assert!(answer["ok"].is_object() != answer["error"].is_string(), "{answer}");
        }
    }
    server.check();
    server.stop();
}

#[test]
fn clients_that_never_read_or_never_end_a_line_keep_nobody_waiting() {
    let server = Running::start(&folder("silent").join("socket"));
    let many = format!("{{\"version\":{VERSION},\"request\":\"bytes\",\"count\":1000000}}\n");
    let mut held = Vec::new();
    for index in 0..60 {
        let mut stream = UnixStream::connect(&server.socket).unwrap();
        // Half of the clients ask for more than they take; the others send half a line.
        let bytes = if index % 2 == 0 { many.repeat(20) } else { many[..20].to_owned() };
        stream.write_all(bytes.as_bytes()).unwrap();
        held.push(stream);
    }
    server.check();
    // Beyond the limit of connections, a client gets an error.
    let mut refused = false;
    for _ in 0..10 {
        let stream = UnixStream::connect(&server.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut line = String::new();
        if BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).is_ok() {
            assert!(line.contains("too many clients"), "{line}");
            refused = true;
        }
        held.push(stream);
    }
    assert!(refused);
    let told = Connection::open(&server.socket, LIMIT).unwrap().ask(&Request::Fail).unwrap_err();
    assert!(told.to_string().contains("too many clients"), "{told}");
    drop(held);
    server.check();
    // A client that is being served does not keep the server from ending.
    let _idle = server.connect();
    server.stop();
}

#[test]
fn a_socket_may_have_a_long_path_and_be_seen_from_another_mount_namespace() {
    let deep = folder("deep");
    let long = deep.join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&long).unwrap();
    // The socket of a dead server is replaced, but not that of a living one.
    let socket = long.join("socket");
    let server = Running::start(&socket);
    server.check();
    assert!(Listener::bind(&socket).is_err() && !socket::is_dead(&socket));
    let other = deep.join("elsewhere").join("f".repeat(120));
    std::fs::create_dir_all(&other).unwrap();
    let (from, at) = (long.clone(), other.clone());
    let seen = std::thread::spawn(move || {
        use rustix::mount::{MountPropagationFlags as Propagation, mount_bind, mount_change};
        // SAFETY: only this thread leaves the common mount namespace; no descriptor is unshared.
        if unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.is_err() {
            return None;
        }
        mount_change("/", Propagation::PRIVATE | Propagation::REC).unwrap();
        mount_bind(&from, &at).unwrap();
        Some(Connection::open(&at.join("socket"), LIMIT).unwrap().ask(&Request::Fail).unwrap_err())
    });
    match seen.join().unwrap() {
        Some(error) => assert!(matches!(error, Error::Refused(_)), "{error}"),
        None => eprintln!("skipped: no privilege for a mount namespace"),
    }
    let outside = PathBuf::from(format!("/proc/{}/root", std::process::id()));
    let through = outside.join(socket.strip_prefix("/").unwrap());
    assert!(Connection::open(&through, LIMIT).unwrap().ask(&Request::Fail).is_err());
    server.stop();
    assert!(socket::is_dead(&socket));
}

#[test]
fn the_socket_of_a_dead_server_is_replaced() {
    let socket = folder("dead").join("socket");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket::is_dead(&socket));
    let server = Running::start(&socket);
    server.check();
    server.stop();
}

#[test]
fn only_root_and_the_owner_may_ask() {
    let own = rustix::process::geteuid().as_raw();
    let (one, other) = UnixStream::pair().unwrap();
    let peer = Peer::of(&one).unwrap();
    assert_eq!(peer, Peer { process: Some(std::process::id()), user: own });
    assert!(peer.may_ask() && Peer { process: None, user: 0 }.may_ask());
    assert!(!Peer { process: Some(1), user: own + 1 }.may_ask());
    drop(other);
}

#[test]
fn a_server_of_another_version_is_to_be_restarted() {
    let socket = folder("version").join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    // Answers of daemons of version 1, and possible answers of later versions.
    let lines = [
        r#"{"version":1,"error":"not a request: unknown field `version`","last":false}"#,
        r#"{"version":7,"result":[]}"#,
        "hello",
    ];
    let server = std::thread::spawn(move || {
        for line in lines {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
    });
    for theirs in [Some(1), Some(7), None] {
        let error = Connection::open(&socket, LIMIT).unwrap().ask(&Request::Fail).unwrap_err();
        assert!(matches!(error, Error::OtherVersion { theirs: it, .. } if it == theirs), "{error}");
        let text = error.to_string();
        let process = format!("process {}", std::process::id());
        assert!(text.contains(&process) && text.contains("restart it"), "{text}");
    }
    server.join().unwrap();
}
