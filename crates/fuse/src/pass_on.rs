//! Makes the kernel pass on data that only its cache has, before an answer depends on that data,
//! and drop cached pages and attributes that a write has made stale.
//!
//! Data stored through a shared map, or collected by the write-back cache, stays in the kernel's
//! cache until the kernel writes it back. The kernel cannot be asked which pages are dirty, but it
//! can be told to drop pages: it then passes on the dirty ones, and waits until these writes are
//! answered.
//!
//! - **Holes**: the kernel asks where a file has data ([`Seek`]) without writing back first. So
//!   before the server answers with a hole, the kernel drops its pages of the hole. With a
//!   write-back cache the end of the file is such a hole, because the kernel may know a later end.
//! - **Renames**: before a file replaces another one, the kernel passes on its dirty pages of the
//!   new file. So a crash does not leave an empty file under the name, even if the program has not
//!   closed the new file.
//! - **Direct writes**: the kernel does not drop pages that were read during an asynchronous direct
//!   write, nor attributes that were asked for meanwhile. So the server makes the kernel drop both.
//! - **Blocks**: the kernel does not notice that a write from its cache takes blocks. So the server
//!   makes the kernel ask for the attributes again.
//!
//! Invariants: the thread that talks to the kernel waits for writes that the server has to answer,
//! so it must not be one of the threads that answer requests. And writes need places among the
//! requests in flight, so only a few requests may wait for the thread ([`Kernel::may_wait`]).

use crate::capabilities::MAX_BACKGROUND;
use crate::channel::Notifier;
use crate::convert::node;
use crate::dispatch::{FuseServer, Shared};
use crate::known::Stale;
use crate::latency::Op;
use crate::reply::{Reply, kind};
use furrow_fs::{Fs, Ino, Seek};
use furrow_zone::Result;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Stands for the end of a hole that extends without limit.
const NO_END: u64 = i64::MAX as u64;
/// How long the kernel may keep a file's number of blocks after writes from its cache.
const BLOCKS_KEPT: Duration = Duration::from_secs(1);
/// Maximum number of requests by `/dev/fuse` that may wait for the kernel: half of the background
/// requests that the kernel may have in flight, so that the kernel's writes find places, too.
const WAITING: usize = MAX_BACKGROUND as usize / 2;
/// The same for requests by rings: half of the places of a processor's queue.
const WAITING_IN_RINGS: usize = 4;

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
    _place: Place,
}

/// The right of a request to wait for the kernel. `Some` if the request is counted in
/// [`Kernel::waiting`]; dropping the `Place` then takes the request out of that count.
struct Place(Option<Arc<AtomicUsize>>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(waiting) = &self.0 {
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The part of a request that has to wait for a [`Task`], and the request's place.
type Waiting<T> = (T, Place);

/// Called once the kernel has passed on its dirty pages.
type Then = Box<dyn FnOnce() + Send>;

/// Work for the thread that talks to the kernel.
enum Task {
    Doubt(Doubt),
    /// Tells the kernel what is stale after a direct write to the range, then answers the write.
    Direct {
        ino: Ino,
        range: Range<u64>,
        stale: Stale,
        answer: Option<Waiting<(Reply<kind::Write>, u32)>>,
    },
    /// Makes the kernel pass on its dirty pages of the inode, then calls `then`.
    PassOn {
        ino: Ino,
        then: Option<Waiting<Then>>,
    },
    /// Makes the kernel ask for the attributes of the inode again, within [`BLOCKS_KEPT`].
    Blocks(Ino),
}

/// The engine's result for a search.
struct Found {
    /// The offset found; `None` where Linux answers ENXIO.
    at: Option<u64>,
    /// The hole on which `at` relies; empty if `at` relies on no hole.
    hole: Range<u64>,
    /// The offset to answer if the whole file counts as data.
    without_holes: u64,
}

/// Messages to the kernel that are not answers, and requests that wait for them.
#[derive(Default)]
pub(crate) struct Kernel {
    notifier: Mutex<Option<Notifier>>,
    tasks: Mutex<Option<Sender<Task>>>,
    /// Number of requests that wait for the kernel and count towards the maximum.
    waiting: Arc<AtomicUsize>,
}

impl Kernel {
    fn tasks(&self) -> MutexGuard<'_, Option<Sender<Task>>> {
        // The sender is intact even if a thread panicked while it held the lock.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes `task` to the thread that talks to the kernel; returns `task` if there is no such
    /// thread.
    fn send(&self, task: Task) -> std::result::Result<(), Task> {
        match &*self.tasks() {
            Some(thread) => thread.send(task).map_err(|unsent| unsent.0),
            None => Err(task),
        }
    }

    /// The right of a request to wait for the kernel; `None` if too many wait already. A request by
    /// `/dev/fuse` is counted only if the kernel sent it in the background (`background`): other
    /// requests take no places that writes from the cache need.
    fn may_wait(&self, rings: bool, background: bool) -> Option<Place> {
        let most = match (rings, background) {
            (true, _) => WAITING_IN_RINGS,
            (false, true) => WAITING,
            (false, false) => return Some(Place(None)),
        };
        let more = |waiting| (waiting < most).then_some(waiting + 1);
        let counted = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.is_ok().then(|| Place(Some(self.waiting.clone())))
    }

    fn notifier(&self) -> MutexGuard<'_, Option<Notifier>> {
        // The notifier is intact even if a thread panicked while it held the lock.
        self.notifier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when the mount has ended. Another mount may follow, if this mount was only
    /// an attempt.
    pub fn end(&self) {
        *self.tasks() = None;
        *self.notifier() = None;
    }
}

/// Searches in the engine. `late`: whether the kernel may know a later end of the file than
/// the engine.
async fn find(fs: &Fs, Search { ino, offset, what }: Search, late: bool) -> Result<Found> {
    let size = fs.getattr(ino).await?.size;
    let at = fs.seek(ino, offset, what).await?;
    let end = if late { NO_END } else { size.max(offset) };
    let hole = match (what, at) {
        (Seek::Data, _) => offset..at.unwrap_or(end),
        (Seek::Hole, Some(at)) if at < size => {
            at..fs.seek(ino, at, Seek::Data).await?.unwrap_or(end)
        }
        (Seek::Hole, at) if late => at.unwrap_or(offset)..end,
        (Seek::Hole, _) => 0..0,
    };
    let without_holes = if what == Seek::Data { offset } else { size.max(offset) };
    Ok(Found { at, hole, without_holes })
}

impl FuseServer {
    /// Answers `search`. The kernel has already passed on its dirty pages in the range `passed_on`.
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
            let Some(place) = shared.kernel.may_wait(shared.has_rings(), false) else {
                return reply.offset(i64::try_from(without_holes).unwrap_or(i64::MAX));
            };
            let doubt = Task::Doubt(Doubt { search, hole, reply, _place: place });
            if let Err(Task::Doubt(doubt)) = shared.kernel.send(doubt) {
                // From then on, the kernel reports every file as data without holes.
                doubt.reply.error(Errno::NOSYS);
            }
        };
        let late = self.shared.writeback_cache;
        let look =
            move |call: crate::posix::Call| async move { find(&call.fs, search, late).await };
        self.run(Op::Seek, reply, look, answer);
    }

    /// Starts the thread that talks to the kernel.
    pub(crate) fn connect(&self, kernel: Notifier) {
        *self.shared.kernel.notifier() = Some(kernel.clone());
        let (sender, tasks) = channel::<Task>();
        let server = self.clone();
        let work = move || server.talk(&kernel, &tasks);
        match std::thread::Builder::new().name("pass-on".to_owned()).spawn(work) {
            Ok(_) => *self.shared.kernel.tasks() = Some(sender),
            // Without the thread, the server reports no holes, and the kernel keeps pages and
            // attributes that direct writes make stale.
            Err(error) => (self.shared.log)(&format!(
                "the kernel may keep what direct writes make stale, and is told no holes: {error}"
            )),
        }
    }

    /// Does the tasks that arrive, until the mount ends.
    fn talk(&self, kernel: &Notifier, tasks: &Receiver<Task>) {
        let mut stale: BTreeSet<Ino> = BTreeSet::new();
        let mut due = Instant::now();
        loop {
            let task = match stale.is_empty() {
                true => tasks.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => tasks.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match task {
                Ok(Task::Blocks(ino)) => {
                    if stale.is_empty() {
                        due = Instant::now() + BLOCKS_KEPT;
                    }
                    stale.insert(ino);
                }
                Ok(task) => self.tell(kernel, task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !stale.is_empty() && Instant::now() >= due {
                for ino in std::mem::take(&mut stale) {
                    let _ = kernel.drop_attributes(node(ino));
                }
            }
        }
    }

    fn tell(&self, kernel: &Notifier, task: Task) {
        match task {
            Task::Doubt(Doubt { search, hole, reply, _place }) => {
                // 0 stands for a range without end.
                let length = if hole.end == NO_END { 0 } else { hole.end - hole.start };
                match kernel.drop_cached(node(search.ino), hole.start as i64, length as i64) {
                    Ok(()) => self.seek(search, hole, reply),
                    Err(_) => reply.error(Errno::IO),
                }
            }
            Task::Direct { ino, range, stale, answer } => {
                // An error means that the kernel has nothing to drop, or that the mount has ended.
                let _ = match stale {
                    Stale::Nothing => Ok(()),
                    Stale::Attributes => kernel.drop_attributes(node(ino)),
                    Stale::Range => {
                        let length = (range.end - range.start) as i64;
                        kernel.drop_cached(node(ino), range.start as i64, length)
                    }
                    Stale::All => {
                        let done = kernel.drop_cached(node(ino), 0, 0);
                        self.shared.known.dropped(ino);
                        done
                    }
                };
                if let Some(((reply, written), _place)) = answer {
                    reply.written(written);
                }
            }
            Task::PassOn { ino, then } => {
                let _ = kernel.drop_cached(node(ino), 0, 0);
                if let Some((then, _place)) = then {
                    then();
                }
            }
            // The thread that runs `talk` collects these tasks itself.
            Task::Blocks(_) => {}
        }
    }

    /// Makes the kernel pass on its dirty pages of `ino`, then calls `then`. If too many requests
    /// wait for the kernel already, calls `then` first.
    pub(crate) fn after_passing_on(&self, ino: Ino, then: impl FnOnce() + Send + 'static) {
        let kernel = &self.shared.kernel;
        let then: Then = Box::new(then);
        let then = match kernel.may_wait(self.shared.has_rings(), false) {
            Some(place) => Some((then, place)),
            None => {
                then();
                None
            }
        };
        let unsent = kernel.send(Task::PassOn { ino, then }).err();
        if let Some(Task::PassOn { then: Some((then, _place)), .. }) = unsent {
            then();
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

impl Shared {
    /// Answers a direct write of `written` bytes to `ino` at `offset`, once the kernel has
    /// dropped its cached pages of that range. If too many requests wait for the kernel already,
    /// answers first.
    pub(crate) fn written_directly(
        &self,
        (ino, offset): (Ino, u64),
        written: u32,
        reply: Reply<kind::Write>,
    ) {
        let stale = self.known.written_directly(ino);
        // With a write-back cache, the kernel keeps sizes and times itself. So only the number of
        // blocks is stale, and the kernel learns the number later. If each write made the kernel
        // drop the attributes, the kernel would ask for them before each write.
        let blocks = stale == Stale::Attributes && self.writeback_cache;
        if stale == Stale::Nothing || blocks {
            reply.written(written);
            if blocks {
                let _ = self.kernel.send(Task::Blocks(ino));
            }
            return;
        }
        let answer = match self.kernel.may_wait(self.has_rings(), true) {
            Some(place) => Some(((reply, written), place)),
            None => {
                reply.written(written);
                None
            }
        };
        let range = offset..offset + u64::from(written);
        let unsent = self.kernel.send(Task::Direct { ino, range, stale, answer }).err();
        if let Some(Task::Direct { answer: Some(((reply, written), _place)), .. }) = unsent {
            reply.written(written);
        }
    }

    /// Makes the kernel drop its cached `size` bytes of `ino` at `offset`, whose write has failed.
    /// So readers see at once what they would see after a new mount.
    pub(crate) fn not_written(&self, ino: Ino, offset: u64, size: u32) {
        let (range, stale) = (offset..offset + u64::from(size), Stale::Range);
        // Without the thread the mount has ended.
        let _ = self.kernel.send(Task::Direct { ino, range, stale, answer: None });
    }

    /// Notes that a write from the kernel's cache has given blocks to `ino`.
    pub(crate) fn written_back(&self, ino: Ino) {
        if self.known.written_back(ino) {
            // Without the thread the mount has ended.
            let _ = self.kernel.send(Task::Blocks(ino));
        }
    }
}
