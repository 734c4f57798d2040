//! Pages: the reference-counted, block-aligned buffers that carry all payload.
//!
//! A [`Page`] is 4 KiB, aligned to 4 KiB, shared by atomic count. It can be written while it has a
//! single owner ([`Page::make_mut`] copies otherwise), so a page that was passed to a device or a
//! checksum can no longer change: *frozen* means *shared*. Pages come from a [`Pool`], which
//! recycles them; an empty pool allocates.
//!
//! Page memory is cut from slabs of 2 MiB. A separate allocation for each page would take three
//! pages of memory: an aligned `Arc` puts its counts in a page of their own, and the allocator's
//! header takes part of another. The kernel is asked to map a slab as one huge page: with small
//! pages, most accesses to a large cache would also miss the processor's address translations.
//! Slabs are never given back to the system: freed pages go to their pool, then to a list shared by
//! the whole process, and from there to the next caller. So the process keeps the memory of its
//! peak, which the engines' caches bound.

use crossbeam_queue::SegQueue;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::sync::{Arc, LazyLock, Mutex};

/// Bytes in a [`Page`].
pub const PAGE_SIZE: usize = 4096;

/// Size and alignment of a slab: those of a huge page. The memory of every page is part of a slab,
/// which stays mapped as long as the process runs.
pub const SLAB_SIZE: usize = 2 << 20;
const SLAB_PAGES: usize = SLAB_SIZE / PAGE_SIZE;

#[repr(C, align(4096))]
#[derive(Clone)]
struct Memory([u8; PAGE_SIZE]);

/// Page memory that no page uses, shared by the whole process; `'static` because slabs are
/// never freed.
static SPARE: LazyLock<SegQueue<&'static mut Memory>> = LazyLock::new(SegQueue::new);

/// Number of pages cut from slabs so far.
#[cfg(test)]
static ALLOCATED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Returns page memory with unspecified contents.
fn allocate() -> &'static mut Memory {
    if let Some(memory) = SPARE.pop() {
        return memory;
    }
    #[cfg(test)]
    ALLOCATED.fetch_add(SLAB_PAGES, std::sync::atomic::Ordering::Relaxed);
    let mut pages = map_slab().iter_mut();
    let first = pages.next().expect("invariant: a slab has pages");
    pages.for_each(|memory| SPARE.push(memory));
    first
}

/// Maps a new, zeroed slab.
#[allow(unsafe_code, reason = "the allocator neither aligns without touching nor gives advice")]
fn map_slab() -> &'static mut [Memory; SLAB_PAGES] {
    let (any, none) = (std::ptr::null_mut(), MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice overlaps no other memory.
    let mapped =
        unsafe { mmap_anonymous(any, 2 * SLAB_SIZE, ProtFlags::READ | ProtFlags::WRITE, none) };
    let Ok(mapped) = mapped else {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<[Memory; SLAB_PAGES]>());
    };
    let before = mapped.align_offset(SLAB_SIZE);
    // SAFETY: everything is within the mapping, which no other code knows: an aligned slab begins
    // in its first half, the unmapped parts are outside the slab, and advice changes no contents.
    // The kernel maps the slab as zeros, which are a valid value of its type; the slab is never
    // unmapped, and no other reference to it exists. The advice and the unmapping may fail
    // without harm.
    unsafe {
        let slab = mapped.byte_add(before);
        if before > 0 {
            let _ = munmap(mapped, before);
        }
        if before < SLAB_SIZE {
            let _ = munmap(slab.byte_add(SLAB_SIZE), SLAB_SIZE - before);
        }
        let _ = madvise(slab, SLAB_SIZE, Advice::LinuxHugepage);
        &mut *slab.cast::<[Memory; SLAB_PAGES]>()
    }
}

/// A list of pages, in order: the payload of one command.
pub type Pages = smallvec::SmallVec<[Page; 4]>;

/// A reference-counted buffer of 4 KiB, aligned to 4 KiB. A clone shares the buffer.
#[derive(Clone)]
pub struct Page(
    // Invariant: `Some` until drop.
    Option<Arc<Frame>>,
);

struct Frame {
    page: OwnedPage,
    /// The shelf to which the frame returns when its last page is dropped; `None` while it is on
    /// the shelf, or if it belongs to no pool.
    home: Option<Arc<Shelf>>,
}

/// The free pages of a pool. The shelf outlives its pool until the last page in use has returned to
/// the shelf. Then the memory of all frames of the shelf goes to the common list ([`SPARE`]).
///
/// The page freed last is taken first, because the processor's caches still hold it. Threads do not
/// wait for the lock: a thread that finds it taken uses the common list.
struct Shelf {
    /// Free frames, each still in its `Arc`, so that taking one allocates no memory.
    free: Mutex<Vec<Arc<Frame>>>,
    most: usize,
}

impl Shelf {
    /// Takes a page with unspecified contents that will return to this shelf.
    fn take(self: &Arc<Shelf>) -> Page {
        let free = self.free.try_lock().ok().and_then(|mut free| free.pop());
        let mut frame = free.unwrap_or_else(|| Frame::around(allocate()));
        let alone = Arc::get_mut(&mut frame).expect("invariant: a free frame has one owner");
        alone.home = Some(self.clone());
        Page(Some(frame))
    }

    /// Takes an unused frame back; if the shelf is full, the frame's memory goes to the
    /// common list.
    fn put(&self, frame: Arc<Frame>) {
        if let Ok(mut free) = self.free.try_lock()
            && free.len() < self.most
        {
            free.push(frame);
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // If the last two owners are dropped at the same time, each still sees the other, and
        // neither returns the frame to the shelf. Then its memory goes to the common list with
        // its `Arc`.
        if let Some(mut frame) = self.0.take()
            && let Some(alone) = Arc::get_mut(&mut frame)
            && let Some(home) = alone.home.take()
        {
            home.put(frame);
        }
    }
}

impl Frame {
    fn around(memory: &'static mut Memory) -> Arc<Frame> {
        Arc::new(Frame { page: OwnedPage(Some(memory)), home: None })
    }
}

impl Page {
    /// A zeroed page that belongs to no pool.
    pub fn zeroed() -> Page {
        Page(Some(Arc::new(Frame { page: OwnedPage::zeroed(), home: None })))
    }

    fn frame(&self) -> &Arc<Frame> {
        self.0.as_ref().expect("invariant: a live page has its frame")
    }

    /// A page that holds `bytes` (at most 4 KiB), zero-padded.
    ///
    /// # Panics
    /// If `bytes` is longer than a page.
    pub fn from_slice(bytes: &[u8]) -> Page {
        let memory = allocate();
        memory.0[..bytes.len()].copy_from_slice(bytes);
        memory.0[bytes.len()..].fill(0);
        Page(Some(Frame::around(memory)))
    }

    /// The bytes, for reading.
    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        &self.frame().page
    }

    /// The bytes, for writing. Copies first if the page is shared (frozen).
    pub fn make_mut(&mut self) -> &mut [u8; PAGE_SIZE] {
        // No weak references exist, so a single owner has exclusive access.
        if self.is_shared() {
            let mut copy = match &self.frame().home {
                Some(home) => home.take(),
                None => Page(Some(Frame::around(allocate()))),
            };
            copy.alone().copy_from_slice(self.bytes());
            *self = copy;
        }
        self.alone()
    }

    fn alone(&mut self) -> &mut [u8; PAGE_SIZE] {
        let frame = self.0.as_mut().expect("invariant: a live page has its frame");
        &mut Arc::get_mut(frame).expect("invariant: it has one owner").page
    }

    /// True if another owner exists, so that a write would copy.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(self.frame()) > 1
    }
}

impl std::ops::Deref for Page {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &Self::Target {
        self.bytes()
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Page({:02x?}…)", &self.bytes()[..8])
    }
}

/// A buffer of 4 KiB, aligned to 4 KiB, with a single owner, for memory that is kept and read but
/// never sent. It is one word that points directly to the memory.
pub struct OwnedPage(
    // Invariant: `Some` until drop.
    Option<&'static mut Memory>,
);

impl OwnedPage {
    /// A zeroed page.
    pub fn zeroed() -> OwnedPage {
        let memory = allocate();
        memory.0.fill(0);
        OwnedPage(Some(memory))
    }
}

impl std::ops::Deref for OwnedPage {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &Self::Target {
        &self.0.as_deref().expect("invariant: a live page has its memory").0
    }
}

impl std::ops::DerefMut for OwnedPage {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0.as_deref_mut().expect("invariant: a live page has its memory").0
    }
}

impl Drop for OwnedPage {
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            SPARE.push(memory);
        }
    }
}

/// A pool of pages. A clone is another handle of the same pool; pools are `Send + Sync`.
#[derive(Clone)]
pub struct Pool {
    shelf: Arc<Shelf>,
}

impl Pool {
    /// A pool that keeps at most `pages` free pages for reuse.
    pub fn new(pages: usize) -> Pool {
        let free = Mutex::new(Vec::with_capacity(pages.max(1)));
        Pool { shelf: Arc::new(Shelf { free, most: pages.max(1) }) }
    }

    /// A page with unspecified contents from earlier use in this process: overwrite all of it.
    pub fn take_dirty(&self) -> Page {
        self.shelf.take()
    }

    /// A zeroed page.
    pub fn take(&self) -> Page {
        let mut page = self.shelf.take();
        page.alone().fill(0);
        page
    }

    /// Number of pages ready for reuse.
    pub fn free_pages(&self) -> usize {
        self.shelf.free.lock().map_or(0, |free| free.len())
    }
}

/// The bytes of `pages` in one piece.
pub fn concat(pages: &[Page]) -> Vec<u8> {
    let mut all = Vec::with_capacity(pages.len() * PAGE_SIZE);
    pages.iter().for_each(|page| all.extend_from_slice(page.bytes()));
    all
}

/// Whether all `bytes` are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Checks whole lines of 64 bytes, because a loop that may end at each byte is slower. With data
    // other than zeros, the loop usually ends at the first line.
    let (lines, rest) = bytes.as_chunks::<64>();
    lines.iter().all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} free)", self.free_pages())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn shared_page_is_copied_before_a_write_and_memory_is_recycled() {
        let pool = Pool::new(4);
        let mut a = pool.take();
        a.make_mut()[0] = 1;
        let frozen = a.clone();
        assert!(a.is_shared());
        a.make_mut()[0] = 2;
        assert!(!a.is_shared());
        assert_eq!((frozen[0], a[0]), (1, 2));
        assert_eq!(a.bytes().as_ptr() as usize % PAGE_SIZE, 0);
        drop(frozen);
        drop(a);
        assert_eq!(pool.free_pages(), 2);
        assert_eq!(pool.take()[0], 0);
    }

    /// Regression: a pool that ended used to keep its pages forever, so a process that mounts
    /// repeatedly grew without bound.
    #[test]
    fn a_pool_that_ends_passes_its_pages_on() {
        // Far more than the few pages that concurrent tests use at the same time.
        const PAGES: usize = 8 * 1024;
        let mut most = 0;
        for round in 0..8 {
            let pool = Pool::new(PAGES);
            let pages: Vec<Page> = (0..PAGES).map(|_| pool.take_dirty()).collect();
            most = most.max(ALLOCATED.load(Ordering::Relaxed));
            drop(pages);
            assert!(pool.free_pages() > 0, "round {round}: the pool keeps them while it lives");
        }
        assert!(most < 2 * PAGES, "{most} pages were allocated for {PAGES} in use at once");
    }

    #[test]
    fn pages_are_aligned_padded_and_a_full_pool_loses_none() {
        let pool = Pool::new(1);
        let pages: Vec<Page> = (0..200).map(|_| pool.take()).collect();
        for page in &pages {
            assert_eq!(page.bytes().as_ptr() as usize % PAGE_SIZE, 0);
        }
        let mut addresses: Vec<_> = pages.iter().map(|page| page.bytes().as_ptr()).collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 200, "no two pages share memory");
        drop(pages);
        assert_eq!(pool.free_pages(), 1);
        let page = Page::from_slice(&[7; 10]);
        assert_eq!(page[..12], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0]);
        assert!(page[10..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn one_byte_anywhere_is_not_zero_and_pages_in_one_piece_keep_their_order() {
        for length in [0, 1, 63, 64, 65, 128, 200] {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes));
            for at in 0..length {
                bytes[at] = 0x80;
                assert!(!is_zero(&bytes), "byte {at} of {length}");
                bytes[at] = 0;
            }
        }
        let pages = [Page::from_slice(&[1]), Page::zeroed(), Page::from_slice(&[3])];
        let all = concat(&pages);
        assert_eq!(all.len(), 3 * PAGE_SIZE);
        assert_eq!([all[0], all[2 * PAGE_SIZE]], [1, 3]);
        assert!(is_zero(&all[1..2 * PAGE_SIZE]));
        assert!(concat(&[]).is_empty());
    }
}
