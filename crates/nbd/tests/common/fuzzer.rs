//! Sends bytes of all kinds to a server that runs in the same thread.
//!
//! A case is a function of its seed. Its stream is a session of valid and nearly valid messages, or
//! a stream of the corpus, and is then damaged. A client sends it in pieces of any size, with or
//! without reading the replies, and ends in one of several ways. After each case the connection
//! must be gone, all memory returned, and the replies well-formed; now and then a well-behaved
//! client must get correct answers.

use crate::bytes::{self, option, request};
use crate::certificates::Certificates;
use furrow_nbd::{Export, Extent, Limits, Memory, Options, Server, Tls, Volume};
use furrow_rt::{Config, Nanos, Pages, Rng, Rt};
use furrow_zone::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A volume that delays and fails requests as its random numbers decide.
pub struct Fickle {
    rt: Rt,
    memory: Memory,
    rng: RefCell<Rng>,
    /// Number of requests in flight; `failed` counts those that have failed.
    pub busy: Cell<u32>,
    pub failed: Cell<u64>,
}

impl Fickle {
    async fn whim(&self, what: &str) -> Result<()> {
        let (turns, fails, kind) = {
            let mut rng = self.rng.borrow_mut();
            let kinds =
                [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::ReadOnly, ErrorKind::Corrupt];
            let turns = if rng.one_in(3) { rng.below(4) } else { 0 };
            (turns, rng.one_in(20), kinds[rng.below(4) as usize])
        };
        self.busy.set(self.busy.get() + 1);
        for _ in 0..turns {
            self.rt.yield_now().await;
        }
        self.busy.set(self.busy.get() - 1);
        if fails {
            self.failed.set(self.failed.get() + 1);
            return Err(Error::new(kind, format!("{what} failed, as it does now and then")));
        }
        Ok(())
    }
}

impl Volume for Fickle {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }
    fn preferred_blocks(&self) -> u32 {
        3
    }
    async fn read(&self, block: u64, count: u32) -> Result<Pages> {
        self.whim("read").await?;
        self.memory.read(block, count).await
    }
    async fn write(&self, block: u64, data: Pages, fua: bool) -> Result<()> {
        self.whim("write").await?;
        self.memory.write(block, data, fua).await
    }
    async fn write_zeroes(&self, block: u64, count: u64, may_free: bool, fua: bool) -> Result<()> {
        self.whim("write_zeroes").await?;
        self.memory.write_zeroes(block, count, may_free, fua).await
    }
    async fn trim(&self, block: u64, count: u64, fua: bool) -> Result<()> {
        self.whim("trim").await?;
        self.memory.trim(block, count, fua).await
    }
    async fn flush(&self) -> Result<()> {
        self.whim("flush").await
    }
    async fn extents(&self, block: u64, count: u64, limit: usize) -> Result<Vec<Extent>> {
        self.whim("extents").await?;
        self.memory.extents(block, count, limit).await
    }
}

const BLOCKS: u64 = 1024;
const SIZE: u64 = BLOCKS * 4096;

/// A server under test with its volume.
pub struct Target {
    rt: Rt,
    server: Server<Fickle>,
    volume: Rc<Fickle>,
    limits: Limits,
}

/// Counts of what the cases did, as evidence that the fuzzer reaches the server.
#[derive(Default, Debug)]
pub struct Sums {
    pub cases: u64,
    pub sent: u64,
    pub received: u64,
    pub transmitting: u64,
    pub replies: u64,
}

impl Target {
    pub fn new(seed: u64) -> Target {
        let rt = Rt::new(Config::real());
        let limits = Limits {
            connections: 4,
            per_client: 4,
            handshakes: 2,
            idle: 0,
            handshake: 200 * Nanos::MILLI,
            stall: 200 * Nanos::MILLI,
            grace: 200 * Nanos::MILLI,
            reserve: 64 << 10,
            connection: 32 << 20,
            shared: 33 << 20,
        };
        let fickle = |seed| {
            let (memory, rng) = (Memory::new(BLOCKS), RefCell::new(Rng::new(seed)));
            let (busy, failed) = (Cell::new(0), Cell::new(0));
            Rc::new(Fickle { rt: rt.clone(), memory, rng, busy, failed })
        };
        let volume = fickle(seed);
        let exports = vec![
            Export::new("a", volume.clone()).describe("the first"),
            Export::new("b", volume.clone()).read_only(true),
            Export::new("calm", fickle(seed + 1)).read_only(true),
        ];
        // Random bytes may also arrive under TLS.
        let tls = Tls::On(Certificates::new(&format!("fuzz-{seed}")).identity(true));
        let options = Options { limits: limits.clone(), tls };
        let server = Server::bind(&rt, &[], exports, options).expect("limits are in order");
        Target { rt, server, volume, limits }
    }

    fn connect(&self) -> OwnedFd {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (ours, theirs) = pair.expect("two descriptors");
        self.server.attach(theirs, "fuzz");
        ours
    }

    /// Runs the server until it waits for a client or for time.
    fn run(&self) {
        for _ in 0..3 {
            self.rt.run_ready();
            // Sockets are polled only when the executor sleeps, so let it sleep for no time.
            let rt = self.rt.clone();
            self.rt.block_on(async move { rt.sleep(0).await });
        }
    }

    fn run_until_gone(&self, what: &str) {
        let from = self.rt.now();
        while !self.server.status().connections.is_empty() {
            let (rt, seconds) = (self.rt.clone(), self.rt.now().since(from) / Nanos::SECOND);
            assert!(seconds < 20, "{what}: the connection does not end");
            self.rt.block_on(async move { rt.sleep(20 * Nanos::MICRO).await });
        }
        assert_eq!(self.volume.busy.get(), 0, "{what}: a request is still under way");
    }

    /// Sends `stream` in a way that `rng` decides, and checks the result.
    pub fn case(&self, stream: &[u8], rng: &mut Rng, sums: &mut Sums) {
        let socket = self.connect();
        let deaf = rng.one_in(8);
        let mut heard = Vec::new();
        let mut at = 0;
        let mut refused = 0;
        while at < stream.len() && refused < 50 {
            let piece = match rng.below(4) {
                0 => 1 + rng.below(3),
                1 => 1 + rng.below(64),
                _ => 1 + rng.below(1 << 16),
            };
            let end = stream.len().min(at + piece as usize);
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&socket, &stream[at..end], flags) {
                Ok(count) => (at, refused) = (at + count, 0),
                Err(Errno::AGAIN) => refused += 1,
                Err(_) => break,
            }
            self.run();
            self.check_memory();
            if !deaf {
                hear(&socket, &mut heard);
            }
        }
        match rng.below(3) {
            0 => drop(socket),
            1 => {
                let _ = rustix::net::shutdown(&socket, Shutdown::Write);
                self.listen_to_the_end(&socket, &mut heard);
            }
            // The client stays silent until the server gives up; this is rare, since it takes time.
            _ if rng.one_in(100) => {
                let silence = self.rt.clone();
                self.rt.block_on(async move { silence.sleep(5 * Nanos::MILLI).await });
                drop(socket);
            }
            _ => drop(socket),
        }
        self.run_until_gone("case");
        sums.cases += 1;
        sums.sent += at as u64;
        sums.received += heard.len() as u64;
        let (transmitting, replies) = check_replies(&heard);
        sums.transmitting += u64::from(transmitting);
        sums.replies += replies;
        if sums.cases.is_multiple_of(64) {
            self.check_order();
        }
    }

    fn listen_to_the_end(&self, socket: &OwnedFd, heard: &mut Vec<u8>) {
        let from = self.rt.now();
        while !hear(socket, heard) {
            self.run();
            assert!(self.rt.now().since(from) < 20 * Nanos::SECOND, "no end after ours");
        }
    }

    fn check_memory(&self) {
        let limit = self.limits.connection + 4096;
        for connection in self.server.status().connections {
            assert!(connection.in_flight_bytes <= limit, "{connection:?}");
        }
    }

    /// Checks that a well-behaved client gets correct answers.
    fn check_order(&self) {
        let socket = self.connect();
        let mut stream = (bytes::FIXED | bytes::NO_ZEROES).to_be_bytes().to_vec();
        stream.extend(option(bytes::GO, &bytes::info("calm", &[])));
        stream.extend(request(bytes::READ, 0, 77, 4096, 8192));
        stream.extend(request(bytes::DISC, 0, 78, 0, 0));
        rustix::net::send(&socket, &stream, SendFlags::NOSIGNAL).expect("there is room");
        let mut heard = Vec::new();
        self.listen_to_the_end(&socket, &mut heard);
        let reply = heard.windows(16).position(|window| {
            window[..4] == 0x6744_6698u32.to_be_bytes() && window[8..] == 77u64.to_be_bytes()
        });
        let reply = reply.expect("an answer to READ");
        // The read may have failed in the volume; otherwise its data follows, which is zeroes.
        let failed = heard[reply + 4..reply + 8] != [0; 4];
        let rest = &heard[reply + 16..];
        assert!(failed && rest.is_empty() || rest == [0; 8192], "{} bytes", rest.len());
        self.run_until_gone("proper client");
    }

    /// Checks that nothing is left in use at the end.
    pub fn finish(self) {
        let server = self.server.clone();
        self.rt.block_on(async move { server.shutdown().await });
        assert!(self.volume.failed.get() > 0, "the volume has failed now and then");
        self.rt.clear();
    }
}

/// Reads all bytes that have arrived. Returns true at the end of the connection.
fn hear(socket: &OwnedFd, heard: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 1 << 16];
    loop {
        match rustix::io::read(socket, &mut buffer) {
            Ok(0) => return true,
            Ok(count) => heard.extend(&buffer[..count]),
            Err(Errno::AGAIN) => return false,
            Err(_) => return true,
        }
    }
}

/// Checks that replies follow each other without gaps. Returns whether a GO reached transmission,
/// and the number of replies. The last reply may be incomplete.
fn check_replies(heard: &[u8]) -> (bool, u64) {
    let number =
        |at: usize| heard.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let (mut at, mut count, mut transmitting) = (18, 0, false);
    while let Some(magic) = number(at) {
        match magic {
            0x0003_e889 => {
                let (Some(of), Some(kind), Some(length)) =
                    (number(at + 8), number(at + 12), number(at + 16))
                else {
                    break;
                };
                assert_eq!(number(at + 4), Some(0x0455_65a9), "second half of the magic");
                transmitting |= of == bytes::GO && kind == 1;
                at += 20 + length as usize;
            }
            // The data of a READ follows its simple reply, and only the client knows the length.
            0x6744_6698 => return (transmitting, count + 1),
            0x668e_33ef => {
                let Some(length) = number(at + 16) else { break };
                assert!(length <= (32 << 20) + 8, "a chunk of {length} bytes");
                at += 20 + length as usize;
            }
            // The answer to EXPORT_NAME has no magic.
            _ => {
                assert!(!transmitting, "neither reply nor end at {at} of {}", heard.len());
                return (transmitting, count);
            }
        }
        count += 1;
    }
    (transmitting, count)
}

/// A session of messages that are valid or almost valid.
pub fn session(rng: &mut Rng) -> Vec<u8> {
    let mut out = match rng.below(20) {
        0 => (rng.next() as u32).to_be_bytes().to_vec(),
        _ => (rng.below(4) as u32).to_be_bytes().to_vec(),
    };
    for _ in 0..rng.below(5) {
        out.extend(any_option(rng));
    }
    let name = ["a", "a", "a", "b", "calm", "", "nobody"][rng.below(7) as usize];
    if !rng.one_in(4) {
        out.extend(option(bytes::STRUCTURED, &[]));
        if !rng.one_in(3) {
            out.extend(option(bytes::SET_META, &bytes::contexts(name, &["base:allocation"])));
        }
    }
    match rng.below(10) {
        0 => out.extend(option(bytes::EXPORT_NAME, name.as_bytes())),
        _ => out.extend(option(bytes::GO, &bytes::info(name, &[3]))),
    }
    for cookie in 0..rng.below(40) {
        out.extend(any_request(rng, cookie));
    }
    out
}

fn any_option(rng: &mut Rng) -> Vec<u8> {
    let names = ["a", "b", "", "x", "base:allocation", "base:", "\u{0}"];
    let name = |rng: &mut Rng| names[rng.below(7) as usize];
    let which = match rng.below(16) {
        0 => rng.next() as u32,
        _ => rng.below(12) as u32,
    };
    let data = match which {
        bytes::INFO => {
            let wanted: Vec<u16> = (0..rng.below(6)).map(|_| rng.below(6) as u16).collect();
            bytes::info(name(rng), &wanted)
        }
        bytes::LIST_META | bytes::SET_META => {
            let queries: Vec<&str> = (0..rng.below(4)).map(|_| name(rng)).collect();
            bytes::contexts(name(rng), &queries)
        }
        // These options would end the handshake, so they are rare.
        bytes::EXPORT_NAME | bytes::GO | bytes::ABORT if !rng.one_in(8) => {
            return option(bytes::LIST, &[]);
        }
        _ if rng.one_in(3) => (0..rng.below(300)).map(|_| rng.next() as u8).collect(),
        _ => Vec::new(),
    };
    option(which, &data)
}

fn any_request(rng: &mut Rng, cookie: u64) -> Vec<u8> {
    let kind = if rng.one_in(30) { rng.next() as u16 } else { rng.below(8) as u16 };
    if kind == bytes::DISC && !rng.one_in(6) {
        return request(bytes::FLUSH, 0, cookie, 0, 0);
    }
    let flags = match rng.below(12) {
        0 => rng.next() as u16,
        1..4 => 1 << rng.below(5),
        _ => 0,
    };
    let offset = match rng.below(12) {
        0 => rng.next(),
        1 => SIZE - rng.below(10_000),
        2..6 => rng.below(SIZE),
        _ => rng.below(BLOCKS) * 4096,
    };
    let length = match rng.below(24) {
        0 => rng.next() as u32,
        1 => rng.below(3 << 20) as u32,
        2..8 => rng.below(20_000) as u32,
        _ => (1 + rng.below(8) as u32) * 4096,
    };
    let mut out = request(kind, flags, cookie, offset, length);
    if kind == bytes::WRITE {
        // A large payload is rarely sent whole, and sometimes the length is wrong.
        let sent = if rng.one_in(40) { rng.below(9000) } else { u64::from(length).min(1 << 20) };
        out.resize(out.len() + sent as usize, cookie as u8);
    }
    out
}

/// Damages `stream` in some places.
pub fn mutate(stream: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        if stream.is_empty() {
            return;
        }
        // Half of the damage hits the beginning of a stream, where decisions are made.
        let reach = if rng.one_in(2) { stream.len().min(400) } else { stream.len() };
        let at = rng.below(reach as u64) as usize;
        let some = stream.len().min(at + 1 + rng.below(64) as usize);
        match rng.below(7) {
            0 => stream[at] ^= 1 << rng.below(8),
            1 => stream[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            2 => stream.truncate(at),
            3 => {
                let part = stream[at..some].to_vec();
                let to = rng.below(stream.len() as u64) as usize;
                stream.splice(to..to, part);
            }
            4 => {
                stream.drain(at..some);
            }
            5 => {
                let noise: Vec<u8> = (0..rng.below(40)).map(|_| rng.next() as u8).collect();
                stream.splice(at..at, noise);
            }
            _ => {
                let word =
                    [0u32, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 32 << 20][rng.below(6) as usize];
                for (byte, new) in stream[at..].iter_mut().zip(word.to_be_bytes()) {
                    *byte = new;
                }
            }
        }
    }
}

/// Makes the stream of a case.
pub fn stream(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = match rng.below(10) {
        0..3 if !corpus.is_empty() => corpus[rng.below(corpus.len() as u64) as usize].clone(),
        3 => (0..rng.below(3000)).map(|_| rng.next() as u8).collect(),
        _ => session(rng),
    };
    if rng.one_in(2) {
        mutate(&mut stream, rng);
    }
    stream
}

/// Runs the case with the seed `seed`.
pub fn run(target: &Target, seed: u64, corpus: &[Vec<u8>], sums: &mut Sums) {
    let mut rng = Rng::new(seed);
    let stream = stream(&mut rng, corpus);
    target.case(&stream, &mut rng, sums);
}

/// The stored streams, by file name.
pub fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut found: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .expect("the corpus is beside the tests")
        .map(|entry| {
            let path = entry.expect("the corpus can be listed").path();
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            (name, std::fs::read(path).expect("the corpus can be read"))
        })
        .collect();
    found.sort();
    found
}
