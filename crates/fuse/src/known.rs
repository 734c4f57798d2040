//! The inodes to which the kernel refers, and which of them have lost their last name.
//!
//! The kernel counts every answer that names an inode, and a forget says how many of these answers
//! it forgets. The kernel stops referring to the inode only when it has forgotten all of them. A
//! single forget is not enough: it comes by `/dev/fuse`, and a lookup of the same inode that comes
//! by a ring may overtake it.
//!
//! Invariant: the server counts an answer before it gives the answer, so the kernel never forgets
//! more answers than were counted.
//!
//! For each inode, the map also notes which copies the kernel may have. The kernel may have
//! attributes once the server has sent them, and pages once the kernel has read or written a page
//! in its cache. Two kinds of writes make such copies stale: a write from the page cache that adds
//! blocks to the file, and an asynchronous direct write while the kernel reads the same range.

use furrow_fs::Ino;
use furrow_fs::tree::cache::FixedHasher;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The kernel's references to one inode.
#[derive(Clone, Copy, Default)]
struct Reference {
    /// Number of answers that named the inode and that the kernel has not forgotten.
    answers: u64,
    /// Whether the inode has lost its last name and is held open for the kernel.
    kept: bool,
    /// Whether the server has sent the attributes since it last reported them stale.
    shown: bool,
    /// Whether the kernel may have pages of the inode in its cache.
    cached: bool,
    /// Number of direct writes since the kernel last read or wrote pages of its cache.
    direct: u8,
    /// Whether the kernel was told to drop all pages, and has not used any since.
    dropping: bool,
}

impl Reference {
    fn use_pages(&mut self) {
        (self.cached, self.direct, self.dropping) = (true, 0, false);
    }
}

/// What a direct write may have made stale in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    /// The kernel has nothing cached.
    Nothing,
    /// Attributes.
    Attributes,
    /// Attributes, and pages of the range that was written.
    Range,
    /// Like `Range`, but the kernel should drop all pages of the file: the kernel has not used them
    /// during [`QUIET`] direct writes, and without cached pages, later direct writes need not be
    /// reported.
    All,
}

/// Number of direct writes to a file, without another use of its cached pages, after which the
/// kernel is told to drop all of them.
const QUIET: u8 = 64;

type References = HashMap<Ino, Reference, BuildHasherDefault<FixedHasher>>;

/// The inodes to which the kernel refers.
#[derive(Default)]
pub(crate) struct Known {
    inodes: Mutex<References>,
    /// Number of inodes that were kept and are not freed yet.
    kept: AtomicUsize,
}

impl Known {
    fn inodes(&self) -> MutexGuard<'_, References> {
        // The map is intact even if a thread panicked while it held the lock.
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an answer that is about to name `ino` to the kernel.
    pub fn told(&self, ino: Ino) {
        let mut inodes = self.inodes();
        let references = inodes.entry(ino).or_default();
        references.answers += 1;
        references.shown = true;
    }

    /// Notes that the kernel is about to learn the attributes of `ino`.
    pub fn shown(&self, ino: Ino) {
        if let Some(references) = self.inodes().get_mut(&ino) {
            references.shown = true;
        }
    }

    /// Notes that a write from the kernel's cache has changed the attributes of `ino`. Returns
    /// whether the kernel may have cached older attributes.
    pub fn written_back(&self, ino: Ino) -> bool {
        let mut inodes = self.inodes();
        let Some(references) = inodes.get_mut(&ino) else { return false };
        references.use_pages();
        std::mem::take(&mut references.shown)
    }

    /// Notes that the kernel reads or writes pages of `ino` that it keeps in its cache.
    pub fn cached(&self, ino: Ino) {
        if let Some(references) = self.inodes().get_mut(&ino) {
            references.use_pages();
        }
    }

    /// Notes that the kernel has dropped all pages of `ino`, as [`Stale::All`] asks, including
    /// those that reads in flight were filling. Does nothing if the kernel has used pages of `ino`
    /// since the order to drop them: the kernel may have new pages.
    pub fn dropped(&self, ino: Ino) {
        if let Some(references) = self.inodes().get_mut(&ino)
            && std::mem::take(&mut references.dropping)
        {
            (references.cached, references.direct) = (false, 0);
        }
    }

    /// Notes that a direct write to `ino` was carried out. Returns which of the kernel's copies may
    /// be stale now; the caller must report them to the kernel.
    pub fn written_directly(&self, ino: Ino) -> Stale {
        let mut inodes = self.inodes();
        let Some(references) = inodes.get_mut(&ino) else { return Stale::Nothing };
        let shown = std::mem::take(&mut references.shown);
        if !references.cached {
            return if shown { Stale::Attributes } else { Stale::Nothing };
        }
        references.direct = references.direct.saturating_add(1);
        // Until the kernel has dropped its pages, this write may make some of them stale.
        if references.direct < QUIET || references.dropping {
            return Stale::Range;
        }
        references.dropping = true;
        Stale::All
    }

    /// Notes that `ino` was opened to keep it for the kernel. Returns false if the kernel does not
    /// refer to the inode, or if it is kept already.
    pub fn keep(&self, ino: Ino) -> bool {
        let mut inodes = self.inodes();
        let references = inodes.get_mut(&ino);
        let new =
            references.is_some_and(|references| !std::mem::replace(&mut references.kept, true));
        self.kept.fetch_add(usize::from(new), Ordering::Relaxed);
        new
    }

    /// Notes that the kernel forgets `answers` of the answers that named `ino`. Returns true if the
    /// kernel has now forgotten all answers and the inode was kept: the caller must free the inode.
    pub fn forget(&self, ino: Ino, answers: u64) -> bool {
        let mut inodes = self.inodes();
        let Some(references) = inodes.get_mut(&ino) else { return false };
        references.answers = references.answers.saturating_sub(answers);
        if references.answers > 0 {
            return false;
        }
        inodes.remove(&ino).is_some_and(|references| references.kept)
    }

    /// Notes that an inode was freed, after [`Known::forget`] has returned true for it.
    pub fn freed(&self) {
        self.kept.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether an inode that was kept still takes space.
    pub fn has_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed) > 0
    }

    /// All inodes to which the kernel refers.
    pub fn all(&self) -> Vec<Ino> {
        self.inodes().keys().copied().collect()
    }

    /// Forgets all inodes. Returns the ones that were kept, for the caller to free.
    pub fn end(&self) -> Vec<Ino> {
        let all = std::mem::take(&mut *self.inodes());
        let mut kept: Vec<Ino> =
            all.into_iter().filter(|(_, references)| references.kept).map(|(ino, _)| ino).collect();
        kept.sort_unstable();
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_kept_until_every_answer_is_forgotten() {
        let known = Known::default();
        known.told(Ino(7));
        // A second lookup and the removal overtake the forget of the first lookup.
        known.told(Ino(7));
        assert!(known.keep(Ino(7)));
        assert!(!known.keep(Ino(7)), "kept once");
        assert!(!known.forget(Ino(7), 1), "it was told of it twice");
        assert!(known.has_kept());
        assert!(known.forget(Ino(7), 1) && known.has_kept());
        known.freed();
        assert!(!known.has_kept());
        assert!(!known.forget(Ino(7), 1) && known.end().is_empty());
    }

    #[test]
    fn an_inode_that_the_kernel_does_not_know_is_not_kept() {
        let known = Known::default();
        assert!(!known.keep(Ino(7)));
        known.told(Ino(7));
        assert!(!known.forget(Ino(7), 1), "it has its name");
        assert!(!known.keep(Ino(7)));
    }

    #[test]
    fn a_direct_write_makes_stale_what_the_kernel_has_cached() {
        let known = Known::default();
        assert_eq!(known.written_directly(Ino(7)), Stale::Nothing, "the kernel does not know it");
        known.told(Ino(7));
        assert_eq!(known.written_directly(Ino(7)), Stale::Attributes);
        assert_eq!(known.written_directly(Ino(7)), Stale::Nothing);
        known.cached(Ino(7));
        for _ in 1..QUIET {
            assert_eq!(known.written_directly(Ino(7)), Stale::Range);
        }
        assert_eq!(known.written_directly(Ino(7)), Stale::All);
        assert_eq!(known.written_directly(Ino(7)), Stale::Range, "not dropped yet");
        known.dropped(Ino(7));
        assert_eq!(known.written_directly(Ino(7)), Stale::Nothing);
        known.cached(Ino(7));
        for _ in 1..QUIET {
            assert_eq!(known.written_directly(Ino(7)), Stale::Range);
        }
        assert_eq!(known.written_directly(Ino(7)), Stale::All);
        known.cached(Ino(7));
        known.dropped(Ino(7));
        assert_eq!(known.written_directly(Ino(7)), Stale::Range, "read meanwhile");
        known.shown(Ino(7));
        assert!(known.written_back(Ino(7)) && !known.written_back(Ino(7)));
        assert_eq!(known.written_directly(Ino(7)), Stale::Range);
    }

    #[test]
    fn the_end_of_a_mount_returns_what_is_kept() {
        let known = Known::default();
        for ino in [3, 9, 5] {
            known.told(Ino(ino));
        }
        assert!(known.keep(Ino(9)) && known.keep(Ino(3)));
        assert_eq!(known.end(), [Ino(3), Ino(9)]);
    }
}
