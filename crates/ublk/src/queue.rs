//! The one queue of a device: requests from the kernel, payload, answers.
//!
//! Each tag stands for one request at a time, which is fetched from the kernel and answered before
//! the next is fetched. All of this happens on one thread, as the kernel demands.

#![allow(unsafe_code, reason = "the kernel writes requests to memory that it shares")]

use crate::abi::{Descriptor, QueueCommand, payload_offset, queue};
use furrow_rt::{PAGE_SIZE, Pages};
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use zerocopy::IntoBytes as _;

/// The queue of an open character device.
pub(crate) struct Queue {
    ring: IoUring,
    waiting: VecDeque<Entry>,
    descriptors: *mut c_void,
    node: File,
    depth: u16,
}

impl Queue {
    /// Opens the queue of the character device `node`, and fetches a request for each of its
    /// `depth` tags. `event` becomes readable when requests have come.
    ///
    /// # Errors
    /// The error of the system call.
    pub(crate) fn open(node: File, depth: u16, event: &OwnedFd) -> io::Result<Queue> {
        let ring = IoUring::new(u32::from(depth).next_power_of_two())?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let (read, shared) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no other memory.
        let descriptors =
            unsafe { mmap(std::ptr::null_mut(), mapped(depth), read, shared, &node, 0) }?;
        let mut queue = Queue { ring, waiting: VecDeque::new(), descriptors, node, depth };
        for tag in 0..depth {
            queue.push(queue::FETCH, QueueCommand { queue: 0, tag, result: 0, appended: 0 });
        }
        Ok(queue)
    }

    /// Answers the request of `tag`, and fetches the next one. `result` is a number of bytes or a
    /// negative errno, `appended` the first sector of an append.
    pub(crate) fn answer(&mut self, tag: u16, result: i32, appended: u64) {
        let command = QueueCommand { queue: 0, tag, result, appended };
        self.push(queue::COMMIT_AND_FETCH, command);
    }

    fn push(&mut self, number: u32, command: QueueCommand) {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(command.as_bytes());
        let node = types::Fd(self.node.as_raw_fd());
        let entry = opcode::UringCmd16::new(node, number).cmd(bytes).build();
        self.waiting.push_back(entry.user_data(u64::from(command.tag)));
    }

    /// Sends the waiting entries. Returns true if any was sent.
    pub(crate) fn submit(&mut self) -> bool {
        let mut added = false;
        while let Some(entry) = self.waiting.front() {
            // SAFETY: the entry names no memory.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                break;
            }
            self.waiting.pop_front();
            added = true;
        }
        // A kernel short of memory takes no entries now; they stay in the ring.
        if !self.ring.submission().is_empty() {
            let _ = self.ring.submit();
        }
        added
    }

    /// True if entries are waiting to be sent.
    pub(crate) fn has_unsent(&mut self) -> bool {
        !self.waiting.is_empty() || !self.ring.submission().is_empty()
    }

    /// Adds to `into` each tag that the kernel has answered since the last call. A tag with 0 has a
    /// new request; a tag with a negative errno gets no more requests.
    pub(crate) fn arrivals(&mut self, into: &mut Vec<(u16, i32)>) {
        let completions = self.ring.completion();
        into.extend(completions.map(|entry| (entry.user_data() as u16, entry.result())));
    }

    /// The request of `tag`, which must have come.
    pub(crate) fn request(&self, tag: u16) -> Descriptor {
        if tag >= self.depth {
            return Descriptor { op_flags: u32::MAX, ..Descriptor::default() };
        }
        let at = self.descriptors.cast::<Descriptor>().wrapping_add(usize::from(tag));
        // SAFETY: the address is within the mapping, which has `depth` aligned descriptors, and any
        // bytes are a valid descriptor. The kernel may write at the same time only if it breaks its
        // rules, hence volatile.
        unsafe { at.read_volatile() }
    }

    /// Copies the payload of the request `tag`, `length` bytes, to `pages`.
    ///
    /// # Errors
    /// The kernel's error, for example if the request has ended in the meantime; `IO` if the
    /// payload is shorter.
    pub(crate) fn take_payload(
        &self,
        tag: u16,
        length: usize,
        pages: &mut Pages,
    ) -> Result<(), Errno> {
        let (mut left, mut slices) = (length, Vec::with_capacity(pages.len()));
        for page in pages {
            let part = left.min(PAGE_SIZE);
            slices.push(IoSliceMut::new(&mut page.make_mut()[..part]));
            left -= part;
        }
        let done = rustix::io::preadv(&self.node, &mut slices, payload_offset(tag))?;
        if done == length { Ok(()) } else { Err(Errno::IO) }
    }

    /// Copies `length` bytes of `pages` to the payload of the request `tag`.
    ///
    /// # Errors
    /// The errors of [`Queue::take_payload`].
    pub(crate) fn give_payload(&self, tag: u16, length: usize, pages: &Pages) -> Result<(), Errno> {
        let (mut left, mut slices) = (length, Vec::with_capacity(pages.len()));
        for page in pages {
            let part = left.min(PAGE_SIZE);
            slices.push(IoSlice::new(&page.bytes()[..part]));
            left -= part;
        }
        let done = rustix::io::pwritev(&self.node, &slices, payload_offset(tag))?;
        if done == length { Ok(()) } else { Err(Errno::IO) }
    }

    /// Copies `bytes` to the payload of the request `tag`.
    ///
    /// # Errors
    /// The errors of [`Queue::take_payload`].
    pub(crate) fn give_bytes(&self, tag: u16, bytes: &[u8]) -> Result<(), Errno> {
        let done = rustix::io::pwrite(&self.node, bytes, payload_offset(tag))?;
        if done == bytes.len() { Ok(()) } else { Err(Errno::IO) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `open`, with this length, and nothing refers to it.
        let _ = unsafe { munmap(self.descriptors, mapped(self.depth)) };
    }
}

/// Bytes of the descriptors of a queue's requests, rounded up to whole pages as the kernel does.
fn mapped(depth: u16) -> usize {
    usize::from(depth) * size_of::<Descriptor>()
}
