//! Replies: their bytes, and the queue of those that wait for the socket.
//!
//! Payload is sent from its pages, and waiting replies in as few calls as possible. Each reply
//! holds its charge until its last byte is sent.

use crate::budget::Charge;
use crate::stream::Stream;
use crate::wire::{ALLOCATION_ID, Code, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk, state};
use furrow_rt::{Notify, PAGE_SIZE, Pages};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Maximum number of buffers in one system call; the system accepts up to 1024.
const SLICES_MAX: usize = 512;
/// Maximum number of bytes of an error's message that are sent.
const MESSAGE_MAX: usize = 512;

/// Bytes in pages: `length` bytes from byte `from` of the first page on.
pub(crate) struct Body {
    pub(crate) pages: Pages,
    pub(crate) from: usize,
    pub(crate) length: usize,
}

/// A complete reply.
pub(crate) struct Reply {
    head: SmallVec<[u8; 40]>,
    body: Option<Body>,
    /// The charge for the request; dropping the reply returns it.
    _charge: Option<Charge>,
}

fn simple(cookie: u64, error: u32) -> SmallVec<[u8; 40]> {
    let mut head = SmallVec::new();
    head.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    head.extend_from_slice(&error.to_be_bytes());
    head.extend_from_slice(&cookie.to_be_bytes());
    head
}

fn last_chunk(cookie: u64, kind: u16, length: usize) -> SmallVec<[u8; 40]> {
    let mut head = SmallVec::new();
    head.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    head.extend_from_slice(&chunk::DONE.to_be_bytes());
    head.extend_from_slice(&kind.to_be_bytes());
    head.extend_from_slice(&cookie.to_be_bytes());
    head.extend_from_slice(&(length as u32).to_be_bytes());
    head
}

impl Reply {
    /// A success without data. Always a simple reply, since only READ and BLOCK_STATUS need
    /// structured ones.
    pub(crate) fn done(cookie: u64, charge: Option<Charge>) -> Reply {
        Reply { head: simple(cookie, 0), body: None, _charge: charge }
    }

    /// A failure. Only a structured reply has the message.
    pub(crate) fn error(
        cookie: u64,
        code: Code,
        message: &str,
        structured: bool,
        charge: Option<Charge>,
    ) -> Reply {
        if !structured {
            return Reply { head: simple(cookie, code as u32), body: None, _charge: charge };
        }
        let text = &message[..message.floor_char_boundary(MESSAGE_MAX)];
        let mut head = last_chunk(cookie, chunk::ERROR, 6 + text.len());
        head.extend_from_slice(&(code as u32).to_be_bytes());
        head.extend_from_slice(&(text.len() as u16).to_be_bytes());
        head.extend_from_slice(text.as_bytes());
        Reply { head, body: None, _charge: charge }
    }

    /// Data read at `offset`, in a single chunk, as the flag DF demands.
    pub(crate) fn data(
        cookie: u64,
        offset: u64,
        body: Body,
        structured: bool,
        charge: Option<Charge>,
    ) -> Reply {
        let head = if structured {
            let mut head = last_chunk(cookie, chunk::OFFSET_DATA, 8 + body.length);
            head.extend_from_slice(&offset.to_be_bytes());
            head
        } else {
            simple(cookie, 0)
        };
        Reply { head, body: Some(body), _charge: charge }
    }

    /// Extents: for each, its length in bytes and whether it is a hole.
    pub(crate) fn extents(cookie: u64, runs: &[(u32, bool)], charge: Option<Charge>) -> Reply {
        let mut head = last_chunk(cookie, chunk::BLOCK_STATUS, 4 + 8 * runs.len());
        head.extend_from_slice(&ALLOCATION_ID.to_be_bytes());
        for (bytes, hole) in runs {
            let flags = if *hole { state::HOLE | state::ZERO } else { 0 };
            head.extend_from_slice(&bytes.to_be_bytes());
            head.extend_from_slice(&flags.to_be_bytes());
        }
        Reply { head, body: None, _charge: charge }
    }

    fn len(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, |body| body.length)
    }

    /// Appends slices of the reply's bytes after the first `skip`, up to [`SLICES_MAX`] slices
    /// in all.
    fn gather<'a, const N: usize>(
        &'a self,
        mut skip: usize,
        slices: &mut SmallVec<[IoSlice<'a>; N]>,
    ) {
        if skip < self.head.len() {
            slices.push(IoSlice::new(&self.head[skip..]));
            skip = 0;
        } else {
            skip -= self.head.len();
        }
        let Some(body) = &self.body else { return };
        let (mut at, end) = (body.from + skip, body.from + body.length);
        while at < end && slices.len() < SLICES_MAX {
            let within = at % PAGE_SIZE;
            let count = (PAGE_SIZE - within).min(end - at);
            let page = body.pages[at / PAGE_SIZE].bytes();
            slices.push(IoSlice::new(&page[within..within + count]));
            at += count;
        }
    }
}

/// Replies that wait for the socket, in the order in which they became ready.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: RefCell<VecDeque<Reply>>,
    /// Number of bytes of the first reply that were sent.
    sent: Cell<usize>,
    total: Cell<u64>,
    closed: Cell<bool>,
    /// Signals that the sending task has work.
    pub(crate) filled: Notify,
}

impl Outbox {
    /// Adds a reply; drops it if the client is gone.
    pub(crate) fn push(&self, reply: Reply) {
        if !self.closed.get() {
            self.queue.borrow_mut().push_back(reply);
        }
    }

    /// Drops all replies, because the client is gone.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        let dropped = std::mem::take(&mut *self.queue.borrow_mut());
        drop(dropped);
        self.filled.notify_all();
    }

    /// Whether the client is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Whether no reply waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    /// Number of bytes sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.total.get()
    }

    /// Sends as much as the socket takes now. Returns true if all replies are sent.
    pub(crate) fn write(&self, stream: &Stream) -> Result<bool, Errno> {
        let mut queue = self.queue.borrow_mut();
        while !queue.is_empty() {
            let mut slices: SmallVec<[IoSlice<'_>; 128]> = SmallVec::new();
            let mut skip = self.sent.get();
            for reply in queue.iter() {
                reply.gather(skip, &mut slices);
                skip = 0;
                if slices.len() >= SLICES_MAX {
                    break;
                }
            }
            let written = stream.write(&slices);
            drop(slices);
            let written = match written {
                Ok(written) => written,
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            };
            self.total.set(self.total.get() + written as u64);
            let mut gone = self.sent.get() + written;
            while let Some(first) = queue.front()
                && first.len() <= gone
            {
                gone -= first.len();
                // Dropping the reply returns its charge, which wakes a waiting task but does not
                // run it here.
                queue.pop_front();
            }
            self.sent.set(gone);
        }
        match stream.flush() {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::Page;

    fn bytes(reply: &Reply, skip: usize) -> Vec<u8> {
        let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        reply.gather(skip, &mut slices);
        slices.iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn a_reply_goes_on_wherever_it_was_cut() {
        let pages: Pages = (1..=3).map(|byte| Page::from_slice(&[byte; PAGE_SIZE])).collect();
        let body = Body { pages, from: 4000, length: 5000 };
        let reply = Reply::data(7, 4000, body, true, None);
        let whole = bytes(&reply, 0);
        assert_eq!(whole.len(), reply.len());
        assert_eq!(whole[..4], STRUCTURED_REPLY_MAGIC.to_be_bytes());
        assert_eq!(whole[16..20], 5008u32.to_be_bytes());
        assert_eq!(whole[20..28], 4000u64.to_be_bytes());
        assert_eq!(&whole[28..28 + 96], &[1; 96]);
        assert_eq!(&whole[28 + 96..28 + 96 + 4096], &[2; 4096]);
        assert_eq!(whole[28 + 4192..], [3; 808]);
        for skip in [1, 27, 28, 29, 28 + 95, 28 + 96, 28 + 97, 28 + 4999] {
            assert_eq!(bytes(&reply, skip), whole[skip..], "{skip}");
        }
    }

    #[test]
    fn a_message_is_cut_at_a_character() {
        let long = format!("x{}", "é".repeat(400));
        let reply = Reply::error(1, Code::Io, &long, true, None);
        let all = bytes(&reply, 0);
        let text = std::str::from_utf8(&all[26..]).unwrap();
        assert_eq!((text.len(), &all[24..26]), (511, &511u16.to_be_bytes()[..]));
        assert_eq!(bytes(&Reply::error(1, Code::Io, &long, false, None), 0).len(), 16);
    }
}
