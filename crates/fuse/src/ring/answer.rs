//! Answers for the thread of a ring, and the memory that the ring shares with the kernel.
//!
//! Invariants:
//! - An entry of a ring has one request at a time, and the request one [`Answer`]. From the arrival
//!   of the request to the answer, the entry's memory belongs to this process, and only the holder
//!   of the answer writes its payload. The ring's thread reads the payload before it passes the
//!   answer on, except for a WRITE, whose answer has no payload.
//! - The ring's thread copies the pages found by a READ into the entry's memory. The thread that
//!   gives the answer does not copy, because it holds the engine while requests of other processors
//!   wait for the engine.
//! - Only the ring's thread gives an entry back to the kernel: the commands of a ring belong to the
//!   thread that submits them.
//! - The ring's thread announces its sleep *before* its last look for answers. A thread that gives
//!   an answer puts it into the outbox *before* it looks for the announcement. So either the ring's
//!   thread finds the answer, or the answering thread wakes it.

#![allow(unsafe_code, reason = "the kernel reads and writes memory that it shares")]

use crate::decode::Request;
use crate::operations::Operations;
use crate::reply::To;
use crate::wire::{AnswerHeader, Header, RequestHeader, op};
use furrow_fs::ReadData;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::{FromBytes as _, FromZeros as _, Immutable, IntoBytes};

/// Size in bytes of an entry's memory before the payload: one page, which holds the header.
const HEAD: usize = 4096;
/// Size in bytes of the longest answer that is a structure: a directory entry together with an
/// open file.
const SMALL: usize = 144;

/// The memory of a ring's entries: header and payload of each. The system allocates a page of it
/// when the page is first used.
struct Memory {
    base: *mut u8,
    entries: usize,
    payload: usize,
}

// SAFETY: the invariants above say which thread may use which part.
unsafe impl Send for Memory {}
// SAFETY: the invariants above say which thread may use which part.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(entries: usize, payload: usize) -> std::io::Result<Memory> {
        let kind = ProtFlags::READ | ProtFlags::WRITE;
        // Most pages of this mapping are never used, so the system does not reserve memory
        // for them.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let length = entries * (HEAD + payload);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no other memory.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), length, kind, flags) }?;
        Ok(Memory { base: base.cast(), entries, payload })
    }

    fn head(&self, entry: u16) -> *mut u8 {
        assert!(usize::from(entry) < self.entries, "the ring has no entry {entry}");
        self.base.wrapping_add(usize::from(entry) * (HEAD + self.payload))
    }

    fn payload(&self, entry: u16) -> *mut u8 {
        self.head(entry).wrapping_add(HEAD)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let length = self.entries * (HEAD + self.payload);
        // SAFETY: `new` made the mapping with this length. The ring keeps the outbox while the
        // kernel may use it, and so does each answer until it is given.
        let _ = unsafe { munmap(self.base.cast::<c_void>(), length) };
    }
}

/// A piece of memory for the kernel (`struct iovec`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    base: usize,
    length: usize,
}

/// An answer that the ring's thread has to pass on.
pub(crate) struct Given {
    pub entry: u16,
    /// 0 for success, or an errno.
    pub errno: i32,
    /// Number of bytes of payload.
    length: u32,
    payload: Payload,
}

/// The place of an answer's payload.
enum Payload {
    /// The payload is in the entry's memory already.
    Entry,
    /// The payload is this structure.
    Small([u8; SMALL]),
    /// The payload is these pages of a file.
    Pages(ReadData),
}

/// The memory of a ring's entries, and the answers that wait for the ring's thread.
pub(crate) struct Outbox {
    memory: Memory,
    given: Mutex<Vec<Given>>,
    asleep: AtomicBool,
    /// An event counter that wakes the ring's thread.
    bell: OwnedFd,
}

impl Outbox {
    /// An outbox for `entries` entries with `payload` bytes of payload each.
    ///
    /// # Errors
    /// An error if memory or descriptors run out.
    pub(crate) fn new(entries: usize, payload: usize) -> std::io::Result<Outbox> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let memory = Memory::new(entries, payload)?;
        Ok(Outbox { memory, given: Mutex::default(), asleep: AtomicBool::new(false), bell })
    }

    fn given(&self) -> std::sync::MutexGuard<'_, Vec<Given>> {
        // The list is intact even if a thread panicked while it held the lock.
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor that becomes readable when the ring's thread must wake up.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Wakes the ring's thread.
    pub(crate) fn ring(&self) {
        // The write fails only if the thread was woken before and has not reacted yet.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Resets the event counter once the thread is awake.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Announces that the ring's thread is about to sleep. Returns false if an answer waits, so
    /// that the thread must stay awake.
    pub(crate) fn may_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.given().is_empty()
    }

    /// Withdraws the announcement of sleep.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Moves the waiting answers to `into`.
    pub(crate) fn take(&self, into: &mut Vec<Given>) {
        into.append(&mut self.given());
    }

    fn give(&self, given: Given) {
        self.given().push(given);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.ring();
        }
    }

    /// The memory of the header and of the payload of `entry`, as address and length, for
    /// registration.
    pub(crate) fn parts(&self, entry: u16) -> [Part; 2] {
        let memory = &self.memory;
        [
            Part { base: memory.head(entry).expose_provenance(), length: size_of::<Header>() },
            Part { base: memory.payload(entry).expose_provenance(), length: memory.payload },
        ]
    }

    /// The header of the request in `entry`. Only the thread of the ring calls this.
    pub(crate) fn header(&self, entry: u16) -> Header {
        let mut bytes = [0; size_of::<Header>()];
        // SAFETY: within the mapping, and neither kernel nor thread writes there: the kernel has
        // passed the entry on.
        unsafe { self.memory.head(entry).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        zerocopy::transmute!(bytes)
    }

    /// The first `length` bytes of the payload of `entry`; the whole payload if it is shorter.
    ///
    /// # Safety
    /// The request has arrived, and its answer writes no payload while the slice lives.
    pub(crate) unsafe fn payload(&self, entry: u16, length: usize) -> &[u8] {
        // SAFETY: within the mapping; the caller promises that no thread writes there.
        unsafe {
            std::slice::from_raw_parts(self.memory.payload(entry), length.min(self.memory.payload))
        }
    }

    /// Puts a request into `entry`, as the kernel does.
    #[cfg(test)]
    pub(crate) fn put(&self, entry: u16, header: &Header, payload: &[u8]) {
        let (head, to) = (self.memory.head(entry), self.memory.payload(entry));
        let bytes = header.as_bytes();
        assert!(payload.len() <= self.memory.payload);
        // SAFETY: within the mapping, and the test uses only entries without a request.
        unsafe {
            head.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            to.copy_from_nonoverlapping(payload.as_ptr(), payload.len());
        }
    }

    /// Writes the answer `given` into the entry's memory, where the kernel reads it. `unique` is
    /// the number of the request.
    pub(crate) fn write(&self, given: &Given, unique: u64) {
        let (head, payload) = (self.memory.head(given.entry), self.memory.payload(given.entry));
        let mut header = Header::new_zeroed();
        let length = size_of::<AnswerHeader>() as u32 + given.length;
        let answer = AnswerHeader { length, error: -given.errno, unique };
        header.in_out[..size_of::<AnswerHeader>()].copy_from_slice(answer.as_bytes());
        (header.payload, header.commit) = (given.length, unique);
        let bytes = header.as_bytes();
        // SAFETY: within the mapping; the answer is given, so no other thread uses the entry.
        unsafe {
            head.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            match &given.payload {
                Payload::Entry => {}
                Payload::Small(small) => {
                    payload.copy_from_nonoverlapping(small.as_ptr(), given.length as usize);
                }
                // `Answer::pages` has checked that all pieces fit.
                Payload::Pages(data) => {
                    let mut to = payload;
                    for piece in data.chunks() {
                        to.copy_from_nonoverlapping(piece.as_ptr(), piece.len());
                        to = to.wrapping_add(piece.len());
                    }
                }
            }
        }
    }
}

/// Passes the request in `entry` to `server`. Returns the number of the request.
pub(crate) fn serve(server: &impl Operations, outbox: &Arc<Outbox>, entry: u16) -> u64 {
    let came = outbox.header(entry);
    let (header, _) =
        RequestHeader::read_from_prefix(&came.in_out).expect("invariant: 128 bytes hold it");
    let request = Request { header, argument: came.op };
    let to = To::Ring(Answer::new(outbox, entry, request.limit()));
    let length = came.payload as usize;
    if header.op == op::WRITE {
        // SAFETY: the request has arrived, and its answer has no payload.
        let data = unsafe { outbox.payload(entry, length) };
        request.write(server, data, to);
    } else {
        // SAFETY: the request has arrived, and the answer is not passed on yet.
        let payload = unsafe { outbox.payload(entry, length) }.to_vec();
        request.pass(server, payload, to);
    }
    header.unique
}

/// The right to answer one request.
pub(crate) struct Answer {
    outbox: Arc<Outbox>,
    entry: u16,
    /// Number of bytes of payload so far, and its maximum.
    length: usize,
    limit: usize,
    given: bool,
}

impl Answer {
    /// The right to answer the request in `entry` with at most `limit` bytes of payload.
    pub(crate) fn new(outbox: &Arc<Outbox>, entry: u16, limit: usize) -> Answer {
        let limit = limit.min(outbox.memory.payload);
        Answer { outbox: outbox.clone(), entry, length: 0, limit, given: false }
    }

    fn give(mut self, errno: i32, length: usize, payload: Payload) {
        self.given = true;
        let (entry, length) = (self.entry, length as u32);
        self.outbox.give(Given { entry, errno, length, payload });
    }

    pub(crate) fn error(self, errno: Errno) {
        self.give(errno.raw_os_error(), 0, Payload::Entry);
    }

    /// Answers with the bytes of `answer`, a structure of the protocol.
    pub(crate) fn send<T: IntoBytes + Immutable>(self, answer: &T) {
        const { assert!(size_of::<T>() <= SMALL) };
        let mut small = [0; SMALL];
        let bytes = answer.as_bytes();
        small[..bytes.len()].copy_from_slice(bytes);
        self.give(0, bytes.len(), Payload::Small(small));
    }

    /// Answers with bytes read from a file, or with EIO if there are more bytes than the request
    /// asked for.
    pub(crate) fn pages(self, data: ReadData) {
        match data.len() <= self.limit {
            true => self.give(0, data.len(), Payload::Pages(data)),
            false => self.error(Errno::IO),
        }
    }

    /// Adds `bytes` to the payload. If they do not fit, adds nothing and returns false.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.limit - self.length {
            return false;
        }
        let to = self.outbox.memory.payload(self.entry).wrapping_add(self.length);
        // SAFETY: within the payload, which only this answer writes.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.length += bytes.len();
        true
    }

    /// Adds a record of a listing to the payload, padded to a multiple of 8 bytes. If it does not
    /// fit, adds nothing and returns false.
    pub(crate) fn add_record(&mut self, parts: &[&[u8]]) -> bool {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let padded = length.next_multiple_of(8);
        if padded > self.limit - self.length {
            return false;
        }
        parts.iter().all(|part| self.add(part)) && self.add(&[0; 8][..padded - length])
    }

    /// Answers with the payload added so far.
    pub(crate) fn finish(self) {
        let length = self.length;
        self.give(0, length, Payload::Entry);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.given {
            let (entry, errno) = (self.entry, Errno::IO.raw_os_error());
            let payload = Payload::Entry;
            self.outbox.give(Given { entry, errno, length: 0, payload });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::Null;
    use crate::wire::Written;
    use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, WriteData};
    use furrow_rt::{Config, Pool, Rt};
    use furrow_zone::Access;
    use std::time::Duration;

    fn given(outbox: &Outbox) -> Vec<Given> {
        let mut given = Vec::new();
        outbox.take(&mut given);
        given
    }

    #[test]
    fn what_is_given_is_where_the_kernel_looks() {
        let outbox = Arc::new(Outbox::new(2, 8192).unwrap());
        Answer::new(&outbox, 1, 0).send(&Written { bytes: 7, padding: 0 });
        let mut data = Answer::new(&outbox, 0, 10);
        assert!(data.add(b"0123456") && !data.add(b"7890"), "no more than was asked for");
        data.finish();
        for given in given(&outbox) {
            outbox.write(&given, 40 + u64::from(given.entry));
        }
        for (entry, length, content) in [(0, 7, &b"0123456"[..]), (1, 8, &[7, 0, 0, 0])] {
            let header = outbox.header(entry);
            let (answer, _) = AnswerHeader::read_from_prefix(&header.in_out).unwrap();
            let known = (answer.error, answer.unique, answer.length, header.payload);
            assert_eq!(known, (0, 40 + u64::from(entry), 16 + length, length));
            // SAFETY: all answers are given.
            let payload = unsafe { outbox.payload(entry, 100) };
            assert_eq!(&payload[..content.len()], content);
        }
    }

    #[test]
    fn whatever_is_in_an_entry_is_answered_once() {
        let mut state = 7u64;
        let mut noise = |into: &mut [u8]| {
            for byte in into {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
        };
        for round in 0..50 {
            for op in 0..64 {
                let outbox = Arc::new(Outbox::new(1, 8192).unwrap());
                let (node, unique) = (1, 99);
                let (length, uid, gid, thread, padding) = (40, 0, 0, 0, 0);
                let request = RequestHeader { length, op, unique, node, uid, gid, thread, padding };
                let mut header = Header::new_zeroed();
                header.in_out[..40].copy_from_slice(request.as_bytes());
                header.payload = [0, 7, 64, 8192, u32::MAX][round % 5];
                noise(&mut header.op);
                let mut payload = [0; 64];
                noise(&mut payload);
                outbox.put(0, &header, &payload);
                assert_eq!(serve(&Null::new(Duration::ZERO), &outbox, 0), 99);
                let given = given(&outbox);
                assert_eq!(given.len(), 1, "answered once");
                outbox.write(&given[0], 99);
            }
        }
    }

    #[test]
    fn pages_are_copied_as_they_were_read_though_the_file_has_changed() {
        let rt = Rt::new(Config::simulated(1));
        let engine = rt.clone();
        rt.block_on(async move {
            let spec = "mem:zones=64,zone-size=1MiB".parse().unwrap();
            let drive = furrow_emu::open(&engine, &spec, Access::ReadWrite).unwrap();
            Fs::format(&engine, drive.clone(), &MkfsOptions::default()).await.unwrap();
            let fs = Fs::mount(&engine, drive, MountOptions::default()).await.unwrap();
            let file = fs.create(Ino::ROOT, b"file", &NewNode::file()).await.unwrap().ino;
            let pool = Pool::new(8);
            // The file has a page of data, a hole, and the start of another page.
            for (offset, length) in [(0, 4096), (8192, 100)] {
                let data = WriteData::copy(&pool, offset, &vec![7; length]);
                fs.write(file, data).await.unwrap();
            }
            let outbox = Arc::new(Outbox::new(2, 8192).unwrap());
            let read = fs.read(file, 4000, 8192).await.unwrap();
            Answer::new(&outbox, 0, 8192).pages(read);
            let read = fs.read(file, 0, 101).await.unwrap();
            Answer::new(&outbox, 1, 100).pages(read);
            fs.write(file, WriteData::copy(&pool, 0, &[9; 8292])).await.unwrap();
            let given = given(&outbox);
            given.iter().for_each(|given| outbox.write(given, 1));
            let found: Vec<_> = given.iter().map(|given| (given.errno, given.length)).collect();
            assert_eq!(found, [(0, 4292), (Errno::IO.raw_os_error(), 0)], "too long is an error");
            let expected = [&[7; 96][..], &[0; 4096], &[7; 100], &[0; 3900]].concat();
            // SAFETY: all answers are given.
            assert!(unsafe { outbox.payload(0, 8192) } == expected, "with nothing after the end");
            // SAFETY: all answers are given.
            assert!(unsafe { outbox.payload(1, 100) } == [0; 100], "nothing of it is copied");
            fs.unmount().await.unwrap();
        });
        rt.clear();
    }

    #[test]
    fn an_answer_that_is_dropped_is_an_error() {
        let outbox = Arc::new(Outbox::new(1, 4096).unwrap());
        drop(Answer::new(&outbox, 0, 0));
        assert_eq!(given(&outbox)[0].errno, Errno::IO.raw_os_error());
    }

    #[test]
    fn records_are_added_whole_or_not() {
        let outbox = Arc::new(Outbox::new(1, 4096).unwrap());
        let mut answer = Answer::new(&outbox, 0, 31);
        assert!(answer.add_record(&[b"0123456789", b"abc"]), "13 bytes, padded to 16");
        assert!(!answer.add_record(&[b"0123456789"]), "10 would be padded to 16, of which 15 fit");
        answer.finish();
        assert_eq!(given(&outbox)[0].length, 16);
    }

    #[test]
    fn a_thread_that_will_sleep_is_woken_once() {
        let outbox = Arc::new(Outbox::new(2, 4096).unwrap());
        let rang = || {
            let mut bytes = [0; 8];
            rustix::io::read(outbox.bell(), &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
        };
        drop(Answer::new(&outbox, 0, 0));
        assert!(!outbox.may_sleep(), "an answer waits");
        outbox.awake();
        given(&outbox);
        assert_eq!((outbox.may_sleep(), rang()), (true, 0));
        drop(Answer::new(&outbox, 0, 0));
        drop(Answer::new(&outbox, 1, 0));
        assert_eq!(rang(), 1);
    }
}
