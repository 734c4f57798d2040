//! The engine's state and how operations run on it.
//!
//! An operation is a synchronous function over [`Core`]. The operation first *prepares*: it looks
//! up the pages that it needs. If a page is not in the cache, or if there is no space, the
//! operation stops with a [`NotApplied`] before it has changed anything. Then the operation
//! *applies* its changes, and can no longer fail. [`Inner::run`] is the loop around an operation:
//! it provides the missing page or space and retries. So operations hold no borrow across an await,
//! and a cancelled operation has changed nothing.

use crate::alloc::Allocator;
use crate::blocked::{Blocked, NotApplied};
use crate::clean::options::CleanState;
use crate::durability::Durability;
use crate::env::Env;
use crate::fetch::{Fetches, Pins};
use crate::format::INCOMPAT_CHANGES;
use crate::health::Health;
use crate::layout::Layout;
use crate::reserve::queue::{SpaceQueue, Tried};
use crate::stats::Stats;
use crate::tables::Tables;
use crate::tree::Tree;
use crate::tree::cache::Cache;
use crate::types::{MountOptions, Time};
use furrow_log::scrub::Scrub;
use furrow_log::writer::Writer;
use furrow_rt::{Nanos, Notify, Semaphore};
use furrow_rt::{PAGE_SIZE, Pool, Rt};
use furrow_zone::{Error, ErrorKind, Result, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The state of a mounted file system. The fields of each part are private to the part's
/// folder. Exceptions are the fields of [`Env`], the counters of [`Stats`], and the delta logs
/// of [`Tables`].
///
/// Invariants, while no operation is being applied ([`Core::audit`]):
/// - The parts agree on each block: a valid block is a bit in the SIT, and a pointer or a NAT entry
///   that names it.
/// - One block of space is promised to each dirty page, so all dirty pages can be written.
/// - The pages that the cache has handed to the writer are those that `durability` counts as
///   in flight.
/// - While requests wait in `space`, only the first of them, and removals, get space.
pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) alloc: Allocator,
    pub(crate) tables: Tables,
    pub(crate) cache: Cache,
    pub(crate) tree: Tree,
    pub(crate) durability: Durability,
    pub(crate) space: SpaceQueue,
    pub(crate) clean: CleanState,
    pub(crate) stats: Stats,
    pub(crate) health: Health,
}

/// The reason why an operation failed.
pub(crate) enum Failed {
    /// A block that the operation needs cannot be read.
    Load(Error),
    Other(Error),
}

impl Failed {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Failed::Load(error) | Failed::Other(error) => error,
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Other(error)
    }
}

/// A mounted file system: its state, and the locks and notifications through which tasks wait for
/// changes of the state.
pub(crate) struct Inner {
    pub(crate) rt: Rt,
    pub(crate) pages: Pool,
    pub(crate) core: RefCell<Core>,
    /// Wakes throttled operations and other tasks that wait for progress.
    pub(crate) progress: Notify,
    /// Wakes tasks when options have changed.
    pub(crate) reconfigured: Notify,
    /// The reads that are in flight.
    pub(crate) fetches: Fetches,
    /// Held while a checkpoint is made: one at a time.
    pub(crate) checkpoint_lock: Semaphore,
    /// Held while cleaning runs: one cleaning at a time.
    pub(crate) clean_lock: Semaphore,
    /// The scrub, if one runs or has run.
    pub(crate) scrub: Scrub,
    /// True while background cleaning runs.
    pub(crate) cleaner_running: Cell<bool>,
    /// Set once: the engine is about to end, and begins nothing new.
    pub(crate) closing: Cell<bool>,
    /// Set once: the engine has ended.
    pub(crate) ended: Cell<bool>,
    pub(crate) write_back_running: Cell<bool>,
    pub(crate) merge_running: Cell<bool>,
    /// The parts of a damaged file system that its read-only mount does not show.
    pub(crate) losses: RefCell<Vec<String>>,
    /// The number of the command that the drive has left unanswered for longest, and the time at
    /// which the engine noticed that command. `None` if the drive owes no answer or is not watched.
    pub(crate) owed: Cell<Option<(u64, Nanos)>>,
}

/// The parts of [`Core`] that a mount builds from the content of the drive.
pub(crate) struct Parts {
    pub(crate) alloc: Allocator,
    pub(crate) tables: Tables,
    pub(crate) tree: Tree,
    pub(crate) durability: Durability,
}

/// The number of blocks to load before the operation is attempted again; `None` if the operation
/// was applied, or failed for good.
fn lacks<T>(done: &Result<T, NotApplied>) -> Option<usize> {
    match done {
        Ok(_) | Err(NotApplied::Failed(_)) => None,
        Err(NotApplied::Blocked(Blocked::Load(fetches))) => {
            // All blocks of a long read may lack the same node.
            let places: BTreeSet<u32> =
                fetches.iter().map(|fetch| fetch.pointer.addr.get()).collect();
            Some(places.len())
        }
        Err(NotApplied::Blocked(_)) => Some(0),
    }
}

impl Core {
    /// Builds the state of a file system from `parts`, with nothing under way.
    pub(crate) fn new(
        rt: &Rt,
        (device, writer): (Rc<dyn ZonedDevice>, Writer),
        layout: Rc<Layout>,
        options: MountOptions,
        pages: Pool,
        parts: Parts,
    ) -> Core {
        let Parts { alloc, mut tables, mut tree, mut durability } = parts;
        let geometry = device.geometry().clone();
        let broken = alloc.broken();
        tables.note_broken_in(&broken);
        tree.note_broken_in(&broken);
        durability.note_broken_in(&broken);
        let mut cache = Cache::new(options.cache_pages.max(256)).noting_broken_in(&broken);
        if layout.incompat & INCOMPAT_CHANGES != 0 {
            cache.keep_logged_contents();
        }
        Core {
            health: Health::new(broken),
            cache,
            env: Env { rt: rt.clone(), device, geometry, layout, options, pages, writer },
            alloc,
            tables,
            tree,
            durability,
            space: SpaceQueue::default(),
            clean: CleanState::default(),
            stats: Stats::default(),
        }
    }

    /// The error for bytes on the medium that differ from the bytes written.
    pub(crate) fn corrupt(&self, message: String) -> NotApplied {
        NotApplied::Failed(Error::new(
            ErrorKind::Corrupt,
            format!("{}: {message}", self.env.device.name()),
        ))
    }

    /// Returns the time of day, and passes it to the allocator for the times in SIT entries.
    pub(crate) fn now(&self) -> Time {
        let (seconds, nanoseconds) = self.env.rt.wall();
        self.alloc.set_seconds(seconds as u32);
        Time { seconds, nanoseconds }
    }

    /// True if the present stretch has taken so long that other tasks should run.
    fn is_long(&self) -> bool {
        self.stats.is_long(self.cache.looked(), self.env.rt.turn())
    }

    fn begin_step(&mut self) {
        self.stats.begin_step(self.cache.looked(), &self.env.rt);
    }

    fn end_step(&mut self) {
        self.stats.end_step(self.cache.looked(), &self.env.rt);
    }
}

impl Inner {
    /// Builds the engine of `core`, with no operation waiting.
    pub(crate) fn new(core: Core) -> Inner {
        Inner {
            rt: core.env.rt.clone(),
            pages: core.env.pages.clone(),
            core: RefCell::new(core),
            progress: Notify::new(),
            reconfigured: Notify::new(),
            fetches: Fetches::default(),
            checkpoint_lock: Semaphore::new(1),
            clean_lock: Semaphore::new(1),
            scrub: Scrub::default(),
            cleaner_running: Cell::new(false),
            closing: Cell::new(false),
            ended: Cell::new(false),
            write_back_running: Cell::new(false),
            merge_running: Cell::new(false),
            losses: RefCell::default(),
            owed: Cell::default(),
        }
    }

    /// Runs `operation` until it is applied or fails.
    pub(crate) async fn run<T>(
        self: &Rc<Self>,
        operation: impl FnMut(&mut Core) -> Result<T, NotApplied>,
    ) -> Result<T> {
        let done = self.run_quietly(operation).await;
        if let Err(Failed::Load(error)) = &done {
            self.note_damage(error);
        }
        done.map_err(Failed::into_error)
    }

    /// Like [`Inner::run`], for operations that no user requested: damage that they find does not
    /// stop writing.
    pub(crate) async fn run_quietly<T>(
        self: &Rc<Self>,
        mut operation: impl FnMut(&mut Core) -> Result<T, NotApplied>,
    ) -> std::result::Result<T, Failed> {
        // The operation's place in the queue for space, once it lacks space, and the attempts made
        // to gain space for it.
        let (mut turn, mut tried) = (None, Tried::default());
        // Keep blocks that were loaded for this operation until it is applied; otherwise they might
        // be evicted before every retry.
        let mut pins = Pins::new(self);
        let mut missed = 0;
        loop {
            self.check_ended()?;
            if self.core.borrow().is_long() {
                self.rt.give_way().await;
                continue;
            }
            let (done, write_back) = {
                let core = &mut *self.core.borrow_mut();
                core.begin_step();
                core.cache.hold();
                core.space.set_first(turn.is_some());
                let hits = core.cache.stats().hits;
                let done = operation(core);
                missed = core.cache.count_attempt(hits, lacks(&done), missed);
                core.cache.lend((core.tree.directories().bytes() / PAGE_SIZE as u64) as usize);
                core.space.set_first(false);
                core.note_memory();
                core.cache.unhold();
                core.end_step();
                (done, core.write_back_is_due())
            };
            self.fail_if_broken();
            let stop = match done {
                Ok(value) => {
                    if write_back && !self.closing.get() {
                        self.start_write_back();
                    }
                    return Ok(value);
                }
                Err(stop) => stop,
            };
            match stop {
                NotApplied::Failed(error) => return Err(Failed::Other(error)),
                NotApplied::Blocked(Blocked::Load(fetches)) => {
                    self.load(fetches, &mut pins).await.map_err(Failed::Load)?;
                }
                NotApplied::Blocked(Blocked::Throttle) => {
                    self.start_write_back();
                    self.progress.wait().await;
                }
                // Wait in line first, because the space gained for earlier requests may suffice.
                NotApplied::Blocked(Blocked::Space(_)) if turn.is_none() => {
                    turn = Some(self.wait_in_line().await)
                }
                NotApplied::Blocked(Blocked::Space(lack)) => {
                    if !Box::pin(self.gain_space(lack, &mut tried)).await? {
                        return Err(Failed::Other(lack.error()));
                    }
                }
            }
        }
    }

    pub(crate) fn check_ended(&self) -> Result<()> {
        if self.ended.get() {
            return Err(Error::new(ErrorKind::Io, "the file system is unmounted"));
        }
        Ok(())
    }
}
