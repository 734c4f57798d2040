//! Shared by the tests: a server on a separate thread, and a client under the test's control.

#![allow(dead_code, reason = "no test needs all of it")]

pub mod bytes;

use bytes::{info, option, request};
use furrow_nbd::{
    Export, Extent, Limits, Listen, Memory, Options, Refusal, Server, Status, Volume,
};
use furrow_rt::{Config, Nanos, Pages, Rt};
use furrow_zone::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of the served volumes.
pub const SIZE: u64 = 64 << 20;

/// A volume in memory that can be made slow, made to fail, or made to wait.
pub struct Moody {
    rt: Rt,
    memory: Memory,
    mood: Arc<Mood>,
    now: Cell<u64>,
    peak: Cell<u64>,
}

/// The behaviour of volumes, set by the test's thread.
#[derive(Default)]
pub struct Mood {
    /// Milliseconds that every request takes.
    pub slow: AtomicU32,
    /// The kind of error with which every request fails: an index in [`KINDS`], from 1; 0 for none.
    pub fails: AtomicU32,
    /// Maximum number of requests that were in flight at once.
    pub peak: AtomicU32,
}

pub const KINDS: [ErrorKind; 5] = [
    ErrorKind::Io,
    ErrorKind::NoSpace,
    ErrorKind::ReadOnly,
    ErrorKind::Unsupported,
    ErrorKind::Corrupt,
];

impl Moody {
    async fn act(&self) -> Result<()> {
        self.now.set(self.now.get() + 1);
        self.peak.set(self.peak.get().max(self.now.get()));
        self.mood.peak.store(self.peak.get() as u32, Ordering::Relaxed);
        let slow = self.mood.slow.load(Ordering::Relaxed);
        if slow > 0 {
            self.rt.sleep(u64::from(slow) * Nanos::MILLI).await;
        }
        self.now.set(self.now.get() - 1);
        match self.mood.fails.load(Ordering::Relaxed) {
            0 => Ok(()),
            kind => Err(Error::new(KINDS[kind as usize - 1], "drive 3 is on fire")),
        }
    }
}

impl Volume for Moody {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }
    fn preferred_blocks(&self) -> u32 {
        16
    }
    async fn read(&self, block: u64, count: u32) -> Result<Pages> {
        let pages = self.memory.read(block, count).await?;
        self.act().await?;
        Ok(pages)
    }
    async fn write(&self, block: u64, data: Pages, fua: bool) -> Result<()> {
        self.act().await?;
        self.memory.write(block, data, fua).await
    }
    async fn write_zeroes(&self, block: u64, count: u64, may_free: bool, fua: bool) -> Result<()> {
        self.act().await?;
        self.memory.write_zeroes(block, count, may_free, fua).await
    }
    async fn trim(&self, block: u64, count: u64, fua: bool) -> Result<()> {
        self.act().await?;
        self.memory.trim(block, count, fua).await
    }
    async fn flush(&self) -> Result<()> {
        self.act().await?;
        self.memory.flush().await
    }
    async fn extents(&self, block: u64, count: u64, limit: usize) -> Result<Vec<Extent>> {
        self.act().await?;
        self.memory.extents(block, count, limit).await
    }
}

enum Order {
    Status,
    Refusal(mpsc::Sender<Refusal>),
    Stop,
}

/// A server on a separate thread. It has the exports `disk` and `fixed` (read-only) of one volume,
/// and `other` of another volume. It ends with the test.
pub struct Fixture {
    pub folder: PathBuf,
    pub mood: Arc<Mood>,
    pub tcp: String,
    orders: mpsc::Sender<Order>,
    bell: UnixStream,
    statuses: mpsc::Receiver<Status>,
    thread: Option<JoinHandle<()>>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Fixture {
    pub fn start() -> Fixture {
        Fixture::with(Options::default())
    }

    pub fn limited(limits: Limits) -> Fixture {
        Fixture::with(Options { limits, ..Options::default() })
    }

    pub fn with(options: Options) -> Fixture {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("furrow-nbd-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let (orders, taken) = mpsc::channel();
        let (told, statuses) = mpsc::channel();
        let (bell, ear) = UnixStream::pair().unwrap();
        let mood = Arc::new(Mood::default());
        let (socket, theirs) = (folder.join("socket"), mood.clone());
        let (ready, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            serve(socket, options, &theirs, &taken, &told, ear, &ready);
        });
        let tcp = started.recv().unwrap();
        Fixture { folder, mood, tcp, orders, bell, statuses, thread: Some(thread) }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    pub fn connect(&self) -> Client {
        Client::new(UnixStream::connect(self.socket()).unwrap())
    }

    /// Connects a client to `disk`, ready for transmission, with or without structured replies.
    pub fn disk(&self, structured: bool) -> Client {
        let mut client = self.connect();
        client.greet(bytes::FIXED | bytes::NO_ZEROES);
        client.go("disk", structured);
        client
    }

    fn order(&mut self, order: Order) {
        let _ = self.orders.send(order);
        let _ = self.bell.write(b"!");
    }

    pub fn status(&mut self) -> Status {
        self.order(Order::Status);
        self.statuses.recv().unwrap()
    }

    /// Waits for the next refused client.
    pub fn refusal(&mut self) -> Refusal {
        let (told, next) = mpsc::channel();
        self.order(Order::Refusal(told));
        next.recv().unwrap()
    }

    /// Waits until the status satisfies `wanted`.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        for _ in 0..2000 {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("ten seconds have passed, and still not {what}: {:?}", self.status());
    }

    /// Begins a shutdown; [`Fixture::stopped`] waits for its end.
    pub fn stop(&mut self) {
        self.order(Order::Stop);
    }

    pub fn stopped(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.order(Order::Stop);
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the server ends in good order");
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn serve(
    socket: PathBuf,
    options: Options,
    mood: &Arc<Mood>,
    orders: &mpsc::Receiver<Order>,
    told: &mpsc::Sender<Status>,
    ear: UnixStream,
    ready: &mpsc::Sender<String>,
) {
    let rt = Rt::new(Config::real());
    let volume = || {
        let memory = Memory::new(SIZE / 4096);
        let (now, peak) = (Cell::new(0), Cell::new(0));
        Rc::new(Moody { rt: rt.clone(), memory, mood: mood.clone(), now, peak })
    };
    let disk = volume();
    let exports = vec![
        Export::new("disk", disk.clone()).describe("a disk"),
        Export::new("fixed", disk).read_only(true),
        Export::new("other", volume()),
    ];
    let places = [Listen::Unix(socket), Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    let server = Server::bind(&rt, &places, exports, options).unwrap();
    let tcp = server.addresses()[1].trim_start_matches("tcp:").to_owned();
    ready.send(tcp).unwrap();
    ear.set_nonblocking(true).unwrap();
    let ear = Arc::new(std::os::fd::OwnedFd::from(ear));
    loop {
        let (wait, hears) = (rt.clone(), ear.clone());
        rt.block_on(async move { wait.readable(hears).await });
        rustix::io::read(&ear, &mut [0u8; 1]).unwrap();
        match orders.recv() {
            Ok(Order::Status) => told.send(server.status()).unwrap(),
            Ok(Order::Refusal(told)) => {
                let server = server.clone();
                let next = rt.block_on(async move { server.next_refusal().await });
                told.send(next.0).unwrap();
            }
            Ok(Order::Stop) | Err(_) => break,
        }
    }
    rt.block_on(async move { server.shutdown().await });
    assert_eq!(rt.task_count(), 0, "no task outlives the server");
}

/// The client's end of a connection, blocking, with a time limit for every operation.
pub struct Client<S = UnixStream> {
    pub stream: S,
    pub structured: bool,
}

/// A reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A simple reply, without the data of READ.
    Simple(u64, u32),
    /// A chunk of a structured reply: cookie, flags, type, payload.
    Chunk(u64, u16, u16, Vec<u8>),
}

impl Client<UnixStream> {
    pub fn new(stream: UnixStream) -> Client {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { stream, structured: false }
    }
}

impl<S: Read + Write> Client<S> {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn number(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn greet(&mut self, flags: u32) {
        assert_eq!(self.take(18), b"NBDMAGICIHAVEOPT\x00\x03");
        self.send(&flags.to_be_bytes());
    }

    /// Sends an option and returns its replies, each with type and data.
    pub fn ask(&mut self, which: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(&option(which, data));
        self.option_replies(which)
    }

    pub fn option_replies(&mut self, which: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.take(8), 0x0003_e889_0455_65a9u64.to_be_bytes());
            assert_eq!(self.number(), which);
            let (kind, length) = (self.number(), self.number());
            replies.push((kind, self.take(length as usize)));
            if kind == 1 || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    /// Negotiates structured replies and allocation, if `structured`, and then sends GO.
    pub fn go(&mut self, name: &str, structured: bool) {
        if structured {
            assert_eq!(self.ask(bytes::STRUCTURED, &[]), [(1, vec![])]);
            let set = self.ask(bytes::SET_META, &bytes::contexts(name, &["base:allocation"]));
            assert_eq!(set.len(), 2);
        }
        self.structured = structured;
        let replies = self.ask(bytes::GO, &info(name, &[]));
        assert_eq!(replies.last(), Some(&(1, vec![])), "{replies:?}");
    }

    pub fn answer(&mut self) -> Answer {
        match self.number() {
            0x6744_6698 => {
                let error = self.number();
                Answer::Simple(u64::from_be_bytes(self.take(8).try_into().unwrap()), error)
            }
            0x668e_33ef => {
                let head = self.take(16);
                let length = u32::from_be_bytes(head[12..].try_into().unwrap());
                let cookie = u64::from_be_bytes(head[4..12].try_into().unwrap());
                let (flags, kind) = ([head[0], head[1]], [head[2], head[3]]);
                let (flags, kind) = (u16::from_be_bytes(flags), u16::from_be_bytes(kind));
                Answer::Chunk(cookie, flags, kind, self.take(length as usize))
            }
            magic => panic!("{magic:#x} is no reply"),
        }
    }

    /// Sends a request without data, and returns the error of its reply; 0 is success.
    pub fn call(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> u32 {
        self.send(&request(kind, flags, 7, offset, length));
        self.error(7)
    }

    /// The error of the next reply, which must answer `cookie` and have no data.
    pub fn error(&mut self, cookie: u64) -> u32 {
        match self.answer() {
            Answer::Simple(found, error) => {
                assert_eq!(found, cookie);
                error
            }
            Answer::Chunk(found, flags, kind, data) => {
                assert_eq!((found, flags, kind), (cookie, 1, 0x8001), "an error chunk");
                let told = usize::from(u16::from_be_bytes([data[4], data[5]]));
                assert!(told > 0 && std::str::from_utf8(&data[6..6 + told]).is_ok());
                u32::from_be_bytes(data[..4].try_into().unwrap())
            }
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.send(&bytes::write(0, 7, offset, data));
        self.error(7)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        self.send(&request(bytes::READ, 0, 9, offset, length));
        self.data(9, offset, length)
    }

    /// The data in the reply to a READ that was sent before.
    pub fn data(&mut self, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        match self.answer() {
            Answer::Simple(found, 0) => {
                assert!(!self.structured, "READ must be answered by a structured reply");
                assert_eq!(found, cookie);
                self.take(length as usize)
            }
            Answer::Chunk(found, 1, 1, data) => {
                assert_eq!((found, data.len()), (cookie, length as usize + 8));
                assert_eq!(data[..8], offset.to_be_bytes());
                data[8..].to_vec()
            }
            other => panic!("no data: {other:?}"),
        }
    }

    /// Like [`Client::at_end`], after reading the next `count` bytes.
    pub fn at_end_after(&mut self, count: usize) -> bool {
        self.take(count);
        self.at_end()
    }

    /// True if the server has closed the connection without sending more.
    pub fn at_end(&mut self) -> bool {
        match self.stream.read(&mut [0; 64]) {
            Ok(count) => count == 0,
            Err(error) => matches!(error.kind(), IoKind::ConnectionReset | IoKind::UnexpectedEof),
        }
    }
}
