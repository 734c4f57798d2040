//! The io_uring of one drive: commands to the kernel and its answers, by key.
//!
//! The device is the ring's only registered file. Buffers are not registered: pages come from
//! slabs that grow with the engines' caches (`furrow_rt::buf`), so there is no fixed set of them.

#![allow(unsafe_code, reason = "the kernel reads and writes memory that a ring entry names")]

use furrow_rt::{PAGE_SIZE, Pages};
use io_uring::squeue::{Entry, EntryMarker};
use io_uring::{IoUring, cqueue, opcode, types};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Commands with the kernel at once; the others wait here.
const DEPTH: u32 = 256;

/// The registered file.
pub(crate) const DEVICE: types::Fixed = types::Fixed(0);

/// Synchronous integrity of data for one write (`RWF_DSYNC`, uapi/linux/fs.h): FUA, or a flush
/// where the drive has none.
const DSYNC: i32 = 2;

/// A piece of memory of a transfer (`struct iovec`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    base: *mut u8,
    length: usize,
}

/// The pieces of `pages` that a transfer of `length` bytes reads into; a shared page is copied
/// first.
pub(crate) fn to_fill(pages: &mut Pages, length: u64, pieces: &mut Vec<Piece>) {
    let mut left = length as usize;
    for page in pages {
        let length = left.min(PAGE_SIZE);
        pieces.push(Piece { base: page.make_mut().as_mut_ptr(), length });
        left -= length;
    }
}

/// The pieces of `pages` that a transfer of `length` bytes writes.
pub(crate) fn to_send(pages: &Pages, length: u64, pieces: &mut Vec<Piece>) {
    let mut left = length as usize;
    for page in pages {
        let length = left.min(PAGE_SIZE);
        pieces.push(Piece { base: page.bytes().as_ptr().cast_mut(), length });
        left -= length;
    }
}

/// Leaves out the first `bytes` bytes of `pieces`.
pub(crate) fn skip(pieces: &mut Vec<Piece>, mut bytes: usize) {
    pieces.retain_mut(|piece| {
        let skipped = bytes.min(piece.length);
        bytes -= skipped;
        piece.base = piece.base.wrapping_add(skipped);
        piece.length -= skipped;
        piece.length > 0
    });
}

/// A transfer or flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write {
        fua: bool,
    },
    /// Only NVMe commands can append.
    Append {
        fua: bool,
    },
    Flush,
}

/// The entry of a transfer of `pieces` at `offset` bytes by the block layer.
pub(crate) fn entry(kind: Kind, pieces: &[Piece], offset: u64) -> Entry {
    let (list, count) = (pieces.as_ptr().cast(), pieces.len() as u32);
    match kind {
        Kind::Read => opcode::Readv::new(DEVICE, list, count).offset(offset).build(),
        Kind::Write { fua } | Kind::Append { fua } => opcode::Writev::new(DEVICE, list, count)
            .offset(offset)
            .rw_flags(if fua { DSYNC } else { 0 })
            .build(),
        Kind::Flush => opcode::Fsync::new(DEVICE).flags(types::FsyncFlags::DATASYNC).build(),
    }
}

/// The ring, with entries of either size. Its owner keeps pages and pieces of a command until the
/// answer has come, and drops neither them nor the ring before [`Ring::wait_for_all`].
pub(crate) struct Ring<S: EntryMarker, C: cqueue::EntryMarker> {
    uring: IoUring<S, C>,
    waiting: VecDeque<S>,
    with_kernel: u32,
}

impl<S: EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    /// A ring for `device`; `event` becomes readable when answers have come.
    ///
    /// # Errors
    /// If the kernel has no io_uring, or forbids it.
    pub(crate) fn new(device: &File, event: &OwnedFd) -> io::Result<Self> {
        let uring = IoUring::<S, C>::builder().build(DEPTH)?;
        uring.submitter().register_files(&[device.as_raw_fd()])?;
        uring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(Ring { uring, waiting: VecDeque::new(), with_kernel: 0 })
    }

    /// Adds a command; [`Ring::submit`] sends it.
    pub(crate) fn push(&mut self, entry: S) {
        self.waiting.push_back(entry);
    }

    /// Sends what waits. True if anything was sent.
    pub(crate) fn submit(&mut self) -> bool {
        let mut added = false;
        while self.with_kernel < DEPTH
            && let Some(entry) = self.waiting.front()
        {
            // SAFETY: the owner keeps the memory that the entry names until the answer has come.
            if unsafe { self.uring.submission().push(entry) }.is_err() {
                break;
            }
            self.waiting.pop_front();
            self.with_kernel += 1;
            added = true;
        }
        // A kernel short of memory takes nothing now; the entries stay in the ring.
        let unsent = !self.uring.submission().is_empty();
        if unsent {
            let _ = self.uring.submit();
        }
        added
    }

    /// True if entries are to be sent.
    pub(crate) fn has_unsent(&mut self) -> bool {
        !self.uring.submission().is_empty()
            || (!self.waiting.is_empty() && self.with_kernel < DEPTH)
    }

    /// Takes the answers that have come.
    pub(crate) fn answers(&mut self, mut take: impl FnMut(C)) {
        for entry in self.uring.completion() {
            self.with_kernel -= 1;
            take(entry);
        }
    }

    /// Waits until the kernel has answered everything that was sent, and forgets what was not.
    pub(crate) fn wait_for_all(&mut self) {
        self.waiting.clear();
        loop {
            self.answers(drop);
            if self.with_kernel == 0 {
                // The kernel ends a ring some time after its user: until then the ring would keep
                // the device open, and with it the right to it.
                let _ = self.uring.submitter().unregister_files();
                return;
            }
            // An error is a signal, or a lack of memory that passes.
            let _ = self.uring.submit_and_wait(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::Page;

    #[test]
    fn pieces_are_the_pages_and_a_part_of_the_last() {
        assert_eq!(size_of::<Piece>(), 16);
        let mut pages = Pages::from_iter([Page::zeroed(), Page::zeroed()]);
        let shared = pages[1].clone();
        let mut pieces = Vec::new();
        to_fill(&mut pages, 4096 + 512, &mut pieces);
        assert_eq!(pieces.iter().map(|piece| piece.length).collect::<Vec<_>>(), [4096, 512]);
        assert_ne!(
            pieces[1].base.cast_const(),
            shared.bytes().as_ptr(),
            "copied before it is filled"
        );
        skip(&mut pieces, 4096 + 100);
        assert_eq!((pieces.len(), pieces[0].length), (1, 412));
        let mut pieces = Vec::new();
        to_send(&pages, 8192, &mut pieces);
        skip(&mut pieces, 512);
        assert_eq!((pieces.len(), pieces[0].length, pieces[1].length), (2, 3584, 4096));
        assert_eq!(pieces[0].base.cast_const(), pages[0].bytes()[512..].as_ptr());
    }
}
