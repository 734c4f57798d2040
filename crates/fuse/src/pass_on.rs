//! Makes the kernel pass on data that only its cache has, before an answer depends on that data.
//!
//! Data stored through a shared map stays in the kernel's cache until the kernel writes it back,
//! and the kernel asks where a file has data ([`Seek`]) without writing back first. So before the
//! server answers with a hole, it tells the kernel to drop its cached pages of the hole: the kernel
//! then passes on the dirty pages, and waits until these writes are answered. The kernel cannot be
//! asked which pages are dirty.
//!
//! Invariant: the thread that tells the kernel waits for writes that the server has to answer, so
//! it must not be one of the threads that answer requests.

use crate::channel::Notifier;
use crate::convert::node;
use crate::dispatch::{FuseServer, Shared};
use crate::latency::Op;
use crate::reply::{Reply, kind};
use furrow_fs::{Fs, Ino, Seek};
use furrow_zone::Result;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A search for data or for a hole in a file, from an offset on.
#[derive(Clone, Copy)]
pub(crate) struct Search {
    pub ino: Ino,
    pub offset: u64,
    pub what: Seek,
}

/// A search whose answer is a hole unless the kernel has dirty pages there.
struct Doubt {
    search: Search,
    hole: Range<u64>,
    reply: Reply<kind::Seek>,
}

/// The engine's result for a search.
struct Found {
    /// The offset found; `None` where Linux answers ENXIO.
    at: Option<u64>,
    /// The range that this result counts as a hole; empty if there is none.
    hole: Range<u64>,
    /// The offset to answer if the whole file counts as data.
    without_holes: u64,
}

/// Messages to the kernel that are not answers, and searches that wait for them.
#[derive(Default)]
pub(crate) struct Kernel {
    notifier: Mutex<Option<Notifier>>,
    doubts: Mutex<Option<Sender<Doubt>>>,
}

impl Kernel {
    fn doubts(&self) -> MutexGuard<'_, Option<Sender<Doubt>>> {
        // The sender is intact even if a thread panicked while it held the lock.
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notifier(&self) -> MutexGuard<'_, Option<Notifier>> {
        // The notifier is intact even if a thread panicked while it held the lock.
        self.notifier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when the mount has ended. Another mount may follow, if this mount was only
    /// an attempt.
    pub fn end(&self) {
        *self.doubts() = None;
        *self.notifier() = None;
    }
}

async fn find(fs: &Fs, Search { ino, offset, what }: Search) -> Result<Found> {
    let size = fs.getattr(ino).await?.size;
    let at = fs.seek(ino, offset, what).await?;
    let hole = match (what, at) {
        (Seek::Data, _) => offset..at.unwrap_or(size.max(offset)),
        (Seek::Hole, Some(at)) if at < size => {
            at..fs.seek(ino, at, Seek::Data).await?.unwrap_or(size)
        }
        (Seek::Hole, _) => 0..0,
    };
    let without_holes = if what == Seek::Data { offset } else { size };
    Ok(Found { at, hole, without_holes })
}

impl FuseServer {
    /// Answers where data or a hole is. The kernel has already passed on its dirty pages in the
    /// range `passed_on`.
    pub(crate) fn seek(&self, search: Search, passed_on: Range<u64>, reply: Reply<kind::Seek>) {
        let answer = move |reply: Reply<kind::Seek>, found: Found, shared: &Shared| {
            let Found { at, hole, without_holes } = found;
            let sure = passed_on.start <= hole.start && hole.end <= passed_on.end;
            if hole.is_empty() || sure {
                return match at.and_then(|at| i64::try_from(at).ok()) {
                    Some(at) => reply.offset(at),
                    None => reply.error(Errno::NXIO),
                };
            }
            let doubt = Doubt { search, hole, reply };
            let reply = match &*shared.kernel.doubts() {
                Some(thread) => match thread.send(doubt) {
                    Ok(()) => return,
                    Err(unsent) => unsent.0.reply,
                },
                None => doubt.reply,
            };
            reply.offset(i64::try_from(without_holes).unwrap_or(i64::MAX));
        };
        let look = move |call: crate::posix::Call| async move { find(&call.fs, search).await };
        self.run(Op::Seek, reply, look, answer);
    }

    /// Starts the thread that makes the kernel pass on its dirty pages in supposed holes.
    pub(crate) fn connect(&self, kernel: Notifier) {
        *self.shared.kernel.notifier() = Some(kernel.clone());
        let (sender, doubts) = channel::<Doubt>();
        let server = self.clone();
        let work = move || {
            for Doubt { search, hole, reply } in doubts {
                let (start, length) = (hole.start as i64, (hole.end - hole.start) as i64);
                match kernel.drop_cached(node(search.ino), start, length) {
                    Ok(()) => server.seek(search, hole, reply),
                    Err(_) => reply.error(Errno::IO),
                }
            }
        };
        match std::thread::Builder::new().name("pass-on".to_owned()).spawn(work) {
            Ok(_) => *self.shared.kernel.doubts() = Some(sender),
            // Without the thread, the server reports every file as data without holes.
            Err(error) => (self.shared.log)(&format!("holes of files are not reported: {error}")),
        }
    }

    /// Makes the kernel pass on its dirty pages of every file, and waits until it has.
    pub(crate) fn pass_on_all(&self) {
        let Some(kernel) = self.shared.kernel.notifier().clone() else { return };
        for ino in self.shared.known.all() {
            // If the kernel has forgotten the inode meanwhile, it has nothing to pass on.
            let _ = kernel.drop_cached(node(ino), 0, 0);
        }
    }
}
