//! The io_uring of one drive: commands to the kernel and its answers, identified by keys.
//!
//! The device is the ring's only registered file. Memory is registered slab by slab
//! (`furrow_rt::buf`), when a page of the slab is first transferred. Then the kernel need not look
//! up and pin memory for each transfer of a single piece. Transfers of several pieces do not use
//! the registration, which only Linux 6.15 and later support for them.

#![allow(unsafe_code, reason = "the kernel reads and writes memory that a ring entry names")]

use furrow_rt::{PAGE_SIZE, Pages, SLAB_SIZE};
use io_uring::squeue::{Entry, EntryMarker};
use io_uring::{IoUring, cqueue, opcode, types};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Maximum number of commands that the kernel has at the same time; further ones wait in
/// this process.
const DEPTH: u32 = 256;

/// Maximum number of registered slabs. Together they are 2 GiB of memory, which the kernel pins.
const SLABS: u16 = 1024;

/// Index of the registered file.
pub(crate) const DEVICE: types::Fixed = types::Fixed(0);

/// Synchronous data integrity for one write (`RWF_DSYNC`, uapi/linux/fs.h): FUA, or a flush if the
/// drive does not have FUA.
const DSYNC: i32 = 2;

/// A piece of memory of a transfer (`struct iovec`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    base: *mut u8,
    length: usize,
}

/// Collects the pieces of `pages` into which a transfer of `length` bytes reads. Copies shared
/// pages before that.
pub(crate) fn to_fill(pages: &mut Pages, length: u64, pieces: &mut Vec<Piece>) {
    let mut left = length as usize;
    for page in pages {
        let length = left.min(PAGE_SIZE);
        pieces.push(Piece { base: page.make_mut().as_mut_ptr(), length });
        left -= length;
    }
}

/// Collects the pieces of `pages` from which a transfer of `length` bytes writes.
pub(crate) fn to_send(pages: &Pages, length: u64, pieces: &mut Vec<Piece>) {
    let mut left = length as usize;
    for page in pages {
        let length = left.min(PAGE_SIZE);
        pieces.push(Piece { base: page.bytes().as_ptr().cast_mut(), length });
        left -= length;
    }
}

/// Drops the first `bytes` bytes of `pieces`.
pub(crate) fn skip(pieces: &mut Vec<Piece>, mut bytes: usize) {
    pieces.retain_mut(|piece| {
        let skipped = bytes.min(piece.length);
        bytes -= skipped;
        piece.base = piece.base.wrapping_add(skipped);
        piece.length -= skipped;
        piece.length > 0
    });
}

/// The kind of a transfer; a flush counts as a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    /// A write in the write stream `stream`, which only the block layer supports; 0 for none.
    Write {
        fua: bool,
        stream: u8,
    },
    /// An append, which only NVMe commands support.
    Append {
        fua: bool,
    },
    Flush,
}

/// The block layer's entry for a transfer of `pieces` at byte `offset`. `slab` is the number under
/// which the memory of a single piece is registered; `None` if it is not.
pub(crate) fn entry(kind: Kind, pieces: &[Piece], offset: u64, slab: Option<u16>) -> Entry {
    let dsync = |fua| if fua { DSYNC } else { 0 };
    let stream = match kind {
        Kind::Write { stream, .. } => stream,
        _ => 0,
    };
    if let (&[Piece { base, length }], Some(slab)) = (pieces, slab) {
        let length = length as u32;
        match kind {
            Kind::Read => {
                let read = opcode::ReadFixed::new(DEVICE, base, length, slab);
                return read.offset(offset).build();
            }
            Kind::Write { fua, .. } | Kind::Append { fua } => {
                let write = opcode::WriteFixed::new(DEVICE, base, length, slab);
                let write = write.offset(offset).rw_flags(dsync(fua));
                return write.write_stream(stream).build();
            }
            Kind::Flush => {}
        }
    }
    let (list, count) = (pieces.as_ptr().cast(), pieces.len() as u32);
    match kind {
        Kind::Read => opcode::Readv::new(DEVICE, list, count).offset(offset).build(),
        Kind::Write { fua, .. } | Kind::Append { fua } => {
            let write = opcode::Writev::new(DEVICE, list, count);
            write.offset(offset).rw_flags(dsync(fua)).write_stream(stream).build()
        }
        Kind::Flush => opcode::Fsync::new(DEVICE).flags(types::FsyncFlags::DATASYNC).build(),
    }
}

/// The ring, with entries of either size. Its owner keeps the pages and pieces of a command until
/// the answer has come, and drops them and the ring only after [`Ring::wait_for_all`].
pub(crate) struct Ring<S: EntryMarker, C: cqueue::EntryMarker> {
    uring: IoUring<S, C>,
    waiting: VecDeque<S>,
    with_kernel: u32,
    /// Slabs by address, each with its number if the kernel has registered it.
    slabs: HashMap<usize, Option<u16>>,
    /// Numbers that no slab has yet.
    free: std::ops::Range<u16>,
}

impl<S: EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    /// Creates a ring for `device`; `event` becomes readable when answers have come.
    ///
    /// # Errors
    /// If the kernel has no io_uring, or forbids it.
    pub(crate) fn new(device: &File, event: &OwnedFd) -> io::Result<Self> {
        let uring = IoUring::<S, C>::builder().build(DEPTH)?;
        uring.submitter().register_files(&[device.as_raw_fd()])?;
        uring.submitter().register_eventfd(event.as_raw_fd())?;
        let (waiting, slabs) = (VecDeque::new(), HashMap::new());
        Ok(Ring { uring, waiting, with_kernel: 0, slabs, free: 0..SLABS })
    }

    /// The number under which the memory of `pieces` is registered, if it is a single piece within
    /// a page; registers its slab if necessary. `None` for several pieces, or if the kernel pins no
    /// more memory: an unprivileged user may pin only little (`RLIMIT_MEMLOCK`).
    pub(crate) fn slab(&mut self, pieces: &[Piece]) -> Option<u16> {
        let [piece] = pieces else { return None };
        let base = piece.base.map_addr(|address| address & !(SLAB_SIZE - 1));
        if let Some(known) = self.slabs.get(&base.addr()) {
            return *known;
        }
        let number = self.free.next()?;
        let submitter = self.uring.submitter();
        // Older kernels do not support a table of slabs that is filled later.
        if number == 0 && submitter.register_buffers_sparse(SLABS.into()).is_err() {
            self.free = 0..0;
            return None;
        }
        let memory = libc::iovec { iov_base: base.cast(), iov_len: SLAB_SIZE };
        // SAFETY: every page is part of an aligned slab, which stays mapped.
        let update = unsafe { submitter.register_buffers_update(number.into(), &[memory], None) };
        let registered = update.is_ok().then_some(number);
        if registered.is_none() {
            self.free = 0..0;
        }
        self.slabs.insert(base.addr(), registered);
        registered
    }

    /// Adds a command; [`Ring::submit`] sends it.
    pub(crate) fn push(&mut self, entry: S) {
        self.waiting.push_back(entry);
    }

    /// Sends the waiting commands. True if any was added to the kernel's queue.
    pub(crate) fn submit(&mut self) -> bool {
        let mut added = false;
        while self.with_kernel < DEPTH
            && let Some(entry) = self.waiting.front()
        {
            // SAFETY: the owner keeps the memory that the entry names until the kernel
            // has answered.
            if unsafe { self.uring.submission().push(entry) }.is_err() {
                break;
            }
            self.waiting.pop_front();
            self.with_kernel += 1;
            added = true;
        }
        // A kernel that is short of memory takes no entries now; they stay in the ring.
        let unsent = !self.uring.submission().is_empty();
        if unsent {
            let _ = self.uring.submit();
        }
        added
    }

    /// Whether there are commands that can be sent now.
    pub(crate) fn has_unsent(&mut self) -> bool {
        !self.uring.submission().is_empty()
            || (!self.waiting.is_empty() && self.with_kernel < DEPTH)
    }

    /// Passes each answer that has come to `take`.
    pub(crate) fn answers(&mut self, mut take: impl FnMut(C)) {
        for entry in self.uring.completion() {
            self.with_kernel -= 1;
            take(entry);
        }
    }

    /// Waits until the kernel has answered all commands that were sent, and drops the ones that
    /// were not.
    pub(crate) fn wait_for_all(&mut self) {
        self.waiting.clear();
        loop {
            self.answers(drop);
            if self.with_kernel == 0 {
                // The kernel ends a ring some time after its user has dropped it. If the device
                // stayed registered, the ring would keep it open until then, and so prevent its
                // exclusive use by others.
                let _ = self.uring.submitter().unregister_files();
                let _ = self.uring.submitter().unregister_buffers();
                return;
            }
            // An error here means a signal, or a temporary lack of memory.
            let _ = self.uring.submit_and_wait(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::Page;

    /// Each page is written to a file and read back by a transfer of its own, which uses the
    /// registration of the page's slab.
    #[test]
    fn a_page_is_moved_by_the_registration_of_its_slab() {
        let path = std::env::temp_dir().join(format!("furrow-ring-{}", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags).unwrap();
        let mut ring: Ring<Entry, cqueue::Entry> = Ring::new(&file, &event).unwrap();
        // More pages than one slab has, so that several slabs are registered.
        let count = SLAB_SIZE / PAGE_SIZE + 40;
        let mut numbers = std::collections::BTreeSet::new();
        let mut carry_out = |kind, pages: &mut Pages, at: u64| {
            let mut pieces = Vec::new();
            match kind {
                Kind::Read => to_fill(pages, PAGE_SIZE as u64, &mut pieces),
                _ => to_send(pages, PAGE_SIZE as u64, &mut pieces),
            }
            let slab = ring.slab(&pieces);
            numbers.insert(slab);
            assert_eq!(ring.slab(&pieces), slab);
            ring.push(entry(kind, &pieces, at * PAGE_SIZE as u64, slab));
            ring.submit();
            while ring.with_kernel > 0 {
                ring.uring.submit_and_wait(1).unwrap();
                ring.answers(|answer| assert_eq!(answer.result(), PAGE_SIZE as i32));
            }
        };
        let content = |at: usize| [(at % 251) as u8; PAGE_SIZE];
        let written: Vec<Pages> =
            (0..count).map(|at| Pages::from_iter([Page::from_slice(&content(at))])).collect();
        for (at, page) in written.iter().enumerate() {
            let fua = at % 2 == 0;
            // A file system that does not know streams accepts the number and ignores it.
            let kind = Kind::Write { fua, stream: (at % 3) as u8 };
            carry_out(kind, &mut page.clone(), at as u64);
        }
        for at in (0..count).rev() {
            let mut page = Pages::from_iter([Page::zeroed()]);
            carry_out(Kind::Read, &mut page, at as u64);
            assert_eq!(page[0].bytes(), &content(at), "page {at}");
        }
        // The kernel may forbid an unprivileged user to register any slab.
        let refused = numbers == [None].into();
        assert!(refused || numbers.len() > 1, "several slabs: {numbers:?}");
        let mut both = Vec::new();
        let mut pages = Pages::from_iter([Page::zeroed(), Page::zeroed()]);
        to_fill(&mut pages, 2 * PAGE_SIZE as u64, &mut both);
        assert_eq!(ring.slab(&both), None, "a transfer of two pieces");
        ring.wait_for_all();
    }

    /// `write_stream` is byte 44 of `struct io_uring_sqe` (include/uapi/linux/io_uring.h); the
    /// three bytes after it, and the whole field in other commands, are zero.
    #[test]
    fn the_stream_is_where_the_kernel_reads_it() {
        let mut pages = Pages::from_iter([Page::zeroed(), Page::zeroed()]);
        let mut both = Vec::new();
        to_fill(&mut pages, 2 * PAGE_SIZE as u64, &mut both);
        let field = |kind, pieces: &[Piece], slab| {
            assert_eq!(size_of::<Entry>(), 64);
            let entry = entry(kind, pieces, 0, slab);
            // SAFETY: an entry is 64 bytes of numbers without gaps.
            let bytes = unsafe { std::mem::transmute_copy::<Entry, [u8; 64]>(&entry) };
            [bytes[44], bytes[45], bytes[46], bytes[47]]
        };
        for (pieces, slab) in [(&both[..], None), (&both[..1], Some(3)), (&both[..1], None)] {
            for stream in [0, 1, 255] {
                let kind = Kind::Write { fua: true, stream };
                assert_eq!(field(kind, pieces, slab), [stream, 0, 0, 0]);
            }
            assert_eq!(field(Kind::Read, pieces, slab), [0; 4]);
        }
        assert_eq!(field(Kind::Flush, &[], None), [0; 4]);
    }

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
