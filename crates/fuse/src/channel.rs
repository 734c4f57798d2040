//! Requests by `/dev/fuse`: the handshake, the loop that reads requests, and the answers.
//!
//! A request takes one read(2), and its answer one writev(2) by the thread that gives the answer.
//! If requests come by rings (`ring.rs`), only forgets and interrupts still come by `/dev/fuse`.

use crate::capabilities;
use crate::decode::{ARGUMENT, Request};
use crate::endpoint::MAX_WRITE;
use crate::operations::Operations;
use crate::reply::To;
use crate::wire::{
    self, Accepted, AnswerHeader, DropInode, Forget, ForgetOne, Forgets, Node, Offer,
    RequestHeader, op,
};
use anyhow::{Result, bail};
use furrow_fs::ReadData;
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes as _, FromZeros as _, Immutable, IntoBytes};

/// How long the kernel gathers forgets while other requests come by rings. This delays the time
/// when the blocks of a removed file become free; see `Call::with_space`.
pub(crate) const GATHER: Duration = Duration::from_millis(2);

/// Size in bytes of the buffer for a message: the longest write, and space for its headers.
const LONGEST: usize = MAX_WRITE as usize + 4096;
/// The way by which requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// By rings if the owner of the machine has allowed rings, otherwise by `/dev/fuse`.
    #[default]
    Offered,
    /// By `/dev/fuse`.
    Channel,
    /// By rings; without rings the mount fails.
    Rings,
}

/// Reads the next message into `buffer`; `None` if the mount has ended.
fn receive<'a>(device: &OwnedFd, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(length) => return Ok(Some(&buffer[..length])),
            // The request was interrupted before this read got it.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            // Linux 6.18 may end an unmounted connection with CONNABORTED.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Splits a message into its header and the rest.
fn parse(message: &[u8]) -> Result<(RequestHeader, &[u8])> {
    match RequestHeader::read_from_prefix(message) {
        Ok((header, rest)) if header.length as usize == message.len() => Ok((header, rest)),
        _ => bail!("the kernel sent {} bytes, which are not a request", message.len()),
    }
}

/// Agrees with the kernel on a protocol version and on features, which `server` chooses. With
/// `rings`, all requests except forgets and interrupts will come by rings.
///
/// # Errors
/// An error if the kernel is too old or lacks a feature that the server needs, or if `rings` is set
/// and the kernel has no rings.
pub(crate) fn handshake(
    device: &Arc<OwnedFd>,
    server: &impl Operations,
    rings: bool,
) -> Result<()> {
    let mut buffer = vec![0; LONGEST];
    loop {
        let Some(message) = receive(device, &mut buffer)? else {
            bail!("the mount ended before the kernel sent a request");
        };
        let (header, rest) = parse(message)?;
        let answer = Answer::new(device, header.unique, 0);
        // Kernels before Linux 5.17 send a shorter offer.
        let mut bytes = [0; size_of::<Offer>()];
        let length = rest.len().min(bytes.len());
        bytes[..length].copy_from_slice(&rest[..length]);
        let offer: Offer = zerocopy::transmute!(bytes);
        if header.op != op::INIT {
            answer.error(Errno::IO);
            bail!("the kernel sent request {} in place of a handshake", header.op);
        }
        if offer.major > wire::MAJOR {
            // The kernel then sends a second offer, of the server's version.
            let (major, minor) = (wire::MAJOR, wire::MINOR);
            answer.send(&Accepted { major, minor, ..Accepted::new_zeroed() });
            continue;
        }
        if (offer.major, offer.minor) < (wire::MAJOR, wire::MINOR_LEAST) {
            answer.error(Errno::PROTO);
            bail!(
                "the kernel's FUSE has protocol {}.{}: {}.{} (Linux 5.4) or later is needed",
                offer.major,
                offer.minor,
                wire::MAJOR,
                wire::MINOR_LEAST
            );
        }
        return match capabilities::agree(&offer, server, rings) {
            Ok(accepted) => {
                answer.send(&accepted);
                Ok(())
            }
            Err(error) => {
                answer.error(Errno::IO);
                Err(error)
            }
        };
    }
}

/// Passes requests to `server` until the mount has ended. With `rings`, only forgets and interrupts
/// come by `/dev/fuse`.
///
/// # Errors
/// An error if a read fails, or if a message from the kernel is not a request.
pub(crate) fn serve(device: &Arc<OwnedFd>, server: &impl Operations, rings: bool) -> Result<()> {
    let mut buffer = vec![0; LONGEST];
    while let Some(message) = receive(device, &mut buffer)? {
        if rings {
            // Lets the kernel gather more forgets. If this thread waited in a read instead, each
            // forget would wake the thread, and the thread would occupy the engine just when the
            // next request comes by a ring.
            std::thread::sleep(GATHER);
        }
        pass(server, device, message)?;
    }
    Ok(())
}

/// Passes one message to `server`.
pub(crate) fn pass(server: &impl Operations, device: &Arc<OwnedFd>, message: &[u8]) -> Result<()> {
    let (header, rest) = parse(message)?;
    match header.op {
        op::FORGET => {
            if let Ok((forget, _)) = Forget::read_from_prefix(rest) {
                server.forget(Node(header.node), forget.answers);
            }
            return Ok(());
        }
        op::BATCH_FORGET => {
            let mut rest = rest.get(size_of::<Forgets>()..).unwrap_or_default();
            while let Ok((forget, others)) = ForgetOne::read_from_prefix(rest) {
                server.forget(Node(forget.node), forget.answers);
                rest = others;
            }
            return Ok(());
        }
        _ => {}
    }
    let length = wire::argument(header.op);
    let Some((structure, payload)) = rest.split_at_checked(length) else {
        Answer::new(device, header.unique, 0).error(Errno::INVAL);
        return Ok(());
    };
    let mut argument = [0; ARGUMENT];
    argument[..length].copy_from_slice(structure);
    let request = Request { header, argument };
    let to = To::Channel(Answer::new(device, header.unique, request.limit()));
    match header.op {
        op::WRITE => request.write(server, payload, to),
        _ => request.pass(server, payload.to_vec(), to),
    }
    Ok(())
}

/// Sends an answer. A failure means that no program waits for the answer: the program was
/// interrupted, or the mount has ended.
fn send(device: &OwnedFd, parts: &[IoSlice<'_>]) {
    let _ = rustix::io::writev(device, parts);
}

/// The right to answer one request.
pub(crate) struct Answer {
    device: Arc<OwnedFd>,
    unique: u64,
    payload: Vec<u8>,
    /// Maximum number of bytes of payload that the answer may have.
    limit: usize,
    given: bool,
}

impl Answer {
    /// The right to answer request number `unique` with at most `limit` bytes of payload.
    pub(crate) fn new(device: &Arc<OwnedFd>, unique: u64, limit: usize) -> Answer {
        let limit = limit.min(MAX_WRITE as usize);
        Answer { device: device.clone(), unique, payload: Vec::new(), limit, given: false }
    }

    /// Gives the answer: an errno, or 0 and `length` bytes of payload. Calls `write` with the
    /// header, which `write` must send before the payload.
    fn give(&mut self, errno: i32, length: usize, write: impl FnOnce(&OwnedFd, IoSlice<'_>)) {
        self.given = true;
        let length = (size_of::<AnswerHeader>() + length) as u32;
        let header = AnswerHeader { length, error: -errno, unique: self.unique };
        write(&self.device, IoSlice::new(header.as_bytes()));
    }

    pub(crate) fn error(mut self, errno: Errno) {
        self.fail(errno);
    }

    fn fail(&mut self, errno: Errno) {
        self.give(errno.raw_os_error(), 0, |device, header| send(device, &[header]));
    }

    /// Answers with the bytes of `answer`, a structure of the protocol.
    pub(crate) fn send<T: IntoBytes + Immutable>(mut self, answer: &T) {
        self.bytes(answer.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.give(0, bytes.len(), |device, header| send(device, &[header, IoSlice::new(bytes)]));
    }

    /// Answers with bytes read from a file, or with EIO if there are more bytes than the request
    /// asked for.
    pub(crate) fn pages(mut self, data: ReadData) {
        if data.len() > self.limit {
            return self.error(Errno::IO);
        }
        self.give(0, data.len(), |device, header| {
            let pieces = data.chunks().map(IoSlice::new);
            send(device, &std::iter::once(header).chain(pieces).collect::<Vec<_>>());
        });
    }

    /// Adds `bytes` to the payload. If they do not fit, adds nothing and returns false.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.limit - self.payload.len();
        if fits {
            self.payload.extend_from_slice(bytes);
        }
        fits
    }

    /// Adds a record of a listing to the payload, padded to a multiple of 8 bytes. If it does not
    /// fit, adds nothing and returns false.
    pub(crate) fn add_record(&mut self, parts: &[&[u8]]) -> bool {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let padded = length.next_multiple_of(8);
        let fits = padded <= self.limit - self.payload.len();
        if fits {
            let end = self.payload.len() + padded;
            parts.iter().for_each(|part| self.payload.extend_from_slice(part));
            self.payload.resize(end, 0);
        }
        fits
    }

    /// Answers with the payload added so far.
    pub(crate) fn finish(mut self) {
        let payload = std::mem::take(&mut self.payload);
        self.bytes(&payload);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.given {
            self.fail(Errno::IO);
        }
    }
}

/// Sends messages to the kernel that are not answers.
#[derive(Clone)]
pub struct Notifier(Arc<OwnedFd>);

impl Notifier {
    pub(crate) fn new(device: &Arc<OwnedFd>) -> Notifier {
        Notifier(device.clone())
    }

    /// Makes the kernel drop its cached pages of an inode: `length` bytes from `offset` (0: to the
    /// end of the file). The kernel first writes back those that are dirty; the call returns when
    /// the server has answered these writes. An inode that the kernel does not know is skipped.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn drop_cached(&self, node: Node, offset: i64, length: i64) -> Result<(), Errno> {
        self.drop_inode(node, offset, length)
    }

    /// Makes the kernel ask for the attributes of an inode again. Its cached pages stay.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn drop_attributes(&self, node: Node) -> Result<(), Errno> {
        self.drop_inode(node, -1, 0)
    }

    fn drop_inode(&self, node: Node, offset: i64, length: i64) -> Result<(), Errno> {
        let body = DropInode { node: node.0, offset, length };
        let whole = (size_of::<AnswerHeader>() + size_of::<DropInode>()) as u32;
        let header = AnswerHeader { length: whole, error: wire::DROP_INODE, unique: 0 };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body.as_bytes())];
        match rustix::io::writev(&*self.0, &parts) {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
