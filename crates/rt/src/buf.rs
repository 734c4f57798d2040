//! Pages: the reference-counted, block-aligned buffers all payload travels in.
//!
//! A [`Page`] is 4 KiB, aligned to 4 KiB, shared by atomic count. It is written while only one
//! owner exists ([`Page::make_mut`] copies when it does not), so a page that was handed to a
//! device or a checksum can no longer change: *frozen* means *shared*. Pages come from a
//! [`Pool`], which recycles them; a pool that is empty allocates.

use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

/// Bytes in a [`Page`].
pub const PAGE_SIZE: usize = 4096;

#[repr(C, align(4096))]
#[derive(Clone)]
struct Aligned([u8; PAGE_SIZE]);

/// A list of pages, in order: the payload of one command.
pub type Pages = smallvec::SmallVec<[Page; 4]>;

/// One 4 KiB, 4 KiB-aligned, reference-counted buffer. Cloning shares it.
#[derive(Clone)]
pub struct Page {
    // Invariant: `Some` until drop.
    inner: Option<Arc<Aligned>>,
    home: Option<Arc<Shelf>>,
}

type Shelf = ArrayQueue<Arc<Aligned>>;

impl Page {
    /// A zeroed page that belongs to no pool.
    pub fn zeroed() -> Page {
        Page { inner: Some(Arc::new(Aligned([0; PAGE_SIZE]))), home: None }
    }

    /// A page that holds `bytes` (at most 4 KiB), zero-padded.
    pub fn from_slice(bytes: &[u8]) -> Page {
        let mut page = Page::zeroed();
        page.make_mut()[..bytes.len()].copy_from_slice(bytes);
        page
    }

    fn arc(&self) -> &Arc<Aligned> {
        self.inner.as_ref().expect("invariant: a live page has its memory")
    }

    /// The bytes, for reading.
    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        &self.arc().0
    }

    /// The bytes, for writing. Copies first if the page is shared (frozen).
    pub fn make_mut(&mut self) -> &mut [u8; PAGE_SIZE] {
        let arc = self.inner.as_mut().expect("invariant: a live page has its memory");
        &mut Arc::make_mut(arc).0
    }

    /// True if another owner exists, so that a write would copy.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(self.arc()) > 1
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let (Some(arc), Some(home)) = (self.inner.take(), self.home.take())
            // Two last owners dropping at once both see a count of two: the memory is then freed
            // instead of recycled, which is harmless.
            && Arc::strong_count(&arc) == 1
        {
            let _ = home.push(arc);
        }
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

/// A pool of pages. Cloning shares it; it is `Send + Sync`.
#[derive(Clone)]
pub struct Pool {
    shelf: Arc<Shelf>,
}

impl Pool {
    /// A pool that keeps at most `pages` free pages for reuse.
    pub fn new(pages: usize) -> Pool {
        Pool { shelf: Arc::new(ArrayQueue::new(pages.max(1))) }
    }

    /// A page with unspecified contents (of this process's earlier use: overwrite all of it).
    pub fn take_dirty(&self) -> Page {
        while let Some(mut arc) = self.shelf.pop() {
            if Arc::get_mut(&mut arc).is_some() {
                return Page { inner: Some(arc), home: Some(self.shelf.clone()) };
            }
        }
        Page { inner: Some(Arc::new(Aligned([0; PAGE_SIZE]))), home: Some(self.shelf.clone()) }
    }

    /// A zeroed page.
    pub fn take(&self) -> Page {
        let mut page = self.take_dirty();
        page.make_mut().fill(0);
        page
    }

    /// Pages that wait for reuse.
    pub fn free_pages(&self) -> usize {
        self.shelf.len()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} free)", self.shelf.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_page_is_copied_before_a_write_and_memory_is_recycled() {
        let pool = Pool::new(4);
        let mut a = pool.take();
        a.make_mut()[0] = 1;
        let frozen = a.clone();
        a.make_mut()[0] = 2;
        assert_eq!((frozen[0], a[0]), (1, 2));
        assert_eq!(a.bytes().as_ptr() as usize % PAGE_SIZE, 0);
        drop(frozen);
        drop(a);
        assert!(pool.free_pages() >= 1);
        assert_eq!(pool.take()[0], 0);
    }
}
