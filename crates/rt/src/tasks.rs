//! The task table, wakers, and the inbox for wakes from any thread.
//!
//! Invariants:
//! - A waker's `queued` flag is set from the wake until just before the poll: a woken task is
//!   queued once, and a wake during the poll queues it again, so no wake is lost.
//! - Slots keep their waker from task to task (a spawn allocates only the task). So a late wake of
//!   a finished task reaches an empty slot, or polls the slot's next task once too often, which
//!   every future allows.
//! - The table is never borrowed while a task is polled or dropped: both may spawn.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The list of wakes, which wakers on any thread extend. A lock is cheaper here than a lock-free
/// queue: it is almost always free, and the owner takes all wakes at once.
pub(crate) struct Inbox {
    woken: Mutex<Vec<usize>>,
    /// Whether the list has wakes; changed under the lock.
    any: AtomicBool,
    /// Called after each wake, so that the owner of the engine checks the inbox.
    bell: Box<dyn Fn() + Send + Sync>,
}

impl Inbox {
    pub(crate) fn new(bell: Box<dyn Fn() + Send + Sync>) -> Inbox {
        Inbox { woken: Mutex::default(), any: AtomicBool::new(false), bell }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::SeqCst)
    }

    fn push(&self, key: usize) {
        {
            let mut woken = self.lock();
            woken.push(key);
            if woken.len() == 1 {
                // This store is ordered with the sleeper's announcement: the sleeper sees the wake,
                // or the bell sees the sleeper.
                self.any.store(true, Ordering::SeqCst);
            }
        }
        (self.bell)();
    }

    /// Takes all wakes in the order of arrival; `into` is empty.
    pub(crate) fn take(&self, into: &mut Vec<usize>) {
        let mut woken = self.lock();
        std::mem::swap(&mut *woken, into);
        self.any.store(false, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        // Only a failed allocation can panic under the lock, and it leaves the list consistent.
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct TaskWaker {
    key: usize,
    queued: AtomicBool,
    inbox: Arc<Inbox>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.inbox.push(self.key);
        }
    }
}

/// A task that is being polled, with its slot.
pub(crate) struct Running {
    pub(crate) key: usize,
    generation: u64,
    pub(crate) waker: Waker,
}

struct Slot {
    /// Number of tasks that this slot has had, so that reuse of the slot during a poll is noticed.
    generation: u64,
    alive: bool,
    task: Option<Task>,
    shared: Arc<TaskWaker>,
    /// Kept as a `Waker`, so that a poll changes no reference count. `None` while the task
    /// is polled.
    waker: Option<Waker>,
}

pub(crate) struct Tasks {
    inbox: Arc<Inbox>,
    slots: Vec<Slot>,
    free: Vec<usize>,
}

impl Tasks {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Tasks {
        Tasks { inbox, slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn alive(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Reserves a slot for a task that is about to be polled. Until the poll, the task counts as
    /// queued.
    pub(crate) fn reserve(&mut self) -> usize {
        let Some(key) = self.free.pop() else {
            let key = self.slots.len();
            let shared = self.new_waker(key);
            let waker = Some(Waker::from(shared.clone()));
            self.slots.push(Slot { generation: 0, alive: true, task: None, shared, waker });
            return key;
        };
        if self.slots[key].waker.is_none() {
            // The table was cleared while the slot's last task was polled, and the waker was
            // dropped with it.
            self.slots[key].waker = Some(Waker::from(self.slots[key].shared.clone()));
        }
        let slot = &mut self.slots[key];
        slot.shared.queued.store(true, Ordering::Release);
        slot.generation += 1;
        slot.alive = true;
        key
    }

    fn new_waker(&self, key: usize) -> Arc<TaskWaker> {
        Arc::new(TaskWaker { key, queued: AtomicBool::new(true), inbox: self.inbox.clone() })
    }

    pub(crate) fn insert(&mut self, task: Task) -> usize {
        let key = self.reserve();
        self.slots[key].task = Some(task);
        key
    }

    /// Marks the slot's task as running. `None` if it is running already (a poll inside its own
    /// poll) or the slot is empty.
    pub(crate) fn enter(&mut self, key: usize) -> Option<Running> {
        let slot = self.slots.get_mut(key).filter(|slot| slot.alive)?;
        let waker = slot.waker.take()?;
        // The flag is cleared before the poll, so that a wake during the poll is not lost.
        slot.shared.queued.store(false, Ordering::Release);
        Some(Running { key, generation: slot.generation, waker })
    }

    /// Takes the task out of a slot that was entered.
    pub(crate) fn take(&mut self, running: &Running) -> Option<Task> {
        self.slots[running.key].task.take()
    }

    /// Ends a poll: puts the task back, or frees its slot. If the table was cleared meanwhile,
    /// returns the task, which the caller drops outside the borrow.
    #[must_use]
    pub(crate) fn leave(&mut self, running: Running, task: Option<Task>) -> Option<Task> {
        let Running { key, generation, waker } = running;
        let Some(slot) =
            self.slots.get_mut(key).filter(|slot| slot.alive && slot.generation == generation)
        else {
            return task;
        };
        slot.waker = Some(waker);
        match task {
            Some(_) => slot.task = task,
            None => {
                slot.alive = false;
                self.free.push(key);
            }
        }
        None
    }

    /// Empties the table. The caller drops the tasks outside the borrow.
    #[must_use]
    pub(crate) fn drain(&mut self) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (key, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.alive) {
            slot.alive = false;
            tasks.extend(slot.task.take());
            self.free.push(key);
        }
        tasks
    }
}
