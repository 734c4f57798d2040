//! The store's position in its sequence of group commits, and the callers that wait for the
//! next one.

use crate::extent::FileId;
use furrow_rt::Notify;
use furrow_zone::Result;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// One group commit, and the callers that wait for it.
#[derive(Default)]
pub(crate) struct CommitGroup {
    files: RefCell<BTreeSet<FileId>>,
    result: RefCell<Option<Result<()>>>,
    over: Notify,
}

impl CommitGroup {
    /// Takes the files that the callers want to be durable.
    pub(crate) fn take_files(&self) -> BTreeSet<FileId> {
        std::mem::take(&mut *self.files.borrow_mut())
    }

    /// Gives all callers the result.
    pub(crate) fn end(&self, result: Result<()>) {
        *self.result.borrow_mut() = Some(result);
        self.over.notify_all();
    }

    /// Waits for the result.
    pub(crate) async fn ended(&self) -> Result<()> {
        loop {
            let over = self.over.wait();
            if let Some(result) = self.result.borrow().clone() {
                return result;
            }
            over.await;
        }
    }
}

/// The state of group commits.
#[derive(Default)]
pub(crate) struct Commits {
    /// The next group. Its commit begins when the commit under way has ended.
    next: RefCell<Option<Rc<CommitGroup>>>,
    /// Whether a task runs group commits.
    running: Cell<bool>,
    /// Whether a task will ask for a group commit when the commit interval is over.
    planned: Cell<bool>,
    /// Files that the next group commit must include though no caller synced them.
    included: RefCell<BTreeSet<FileId>>,
    /// Number of the last group commit.
    round: Cell<u64>,
    /// Number of the last record.
    record: Cell<u64>,
    /// Number of the first record of the ring that is not known to be durable.
    durable: Cell<u64>,
    /// Number of times that the ring has turned.
    turn: Cell<u64>,
    /// Whether the next group commit turns the ring.
    turn_wanted: Cell<bool>,
    /// Number of extents moved so far. If it changes during a group commit, the commit may have
    /// recorded an old place.
    moves: Cell<u64>,
}

impl Commits {
    /// Creates the state after these numbers of group commits, records and turns.
    pub(crate) fn after(round: u64, record: u64, turn: u64) -> Commits {
        Commits {
            round: Cell::new(round),
            record: Cell::new(record),
            turn: Cell::new(turn),
            ..Commits::default()
        }
    }

    /// Joins the next group commit, which will include the file. Returns the group, and whether the
    /// caller has to start the task that runs it.
    pub(crate) fn join(&self, file: Option<FileId>) -> (Rc<CommitGroup>, bool) {
        let group = self.next.borrow_mut().get_or_insert_default().clone();
        group.files.borrow_mut().extend(file);
        (group, !self.running.replace(true))
    }

    /// Takes the group that waits. If no group waits, the task that runs group commits has to end.
    pub(crate) fn take_next(&self) -> Option<Rc<CommitGroup>> {
        self.next.borrow_mut().take()
    }

    /// Notes that the task that runs group commits has ended.
    pub(crate) fn task_ended(&self) {
        self.running.set(false);
    }

    /// Whether group commits are under way.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Plans a group commit. False if one is planned already.
    pub(crate) fn plan(&self) -> bool {
        !self.planned.replace(true)
    }

    /// Notes that the planned group commit is asked for now.
    pub(crate) fn plan_is_due(&self) {
        self.planned.set(false);
    }

    /// Makes the next group commit include a file though no caller synced it.
    pub(crate) fn include(&self, file: FileId) {
        self.included.borrow_mut().insert(file);
    }

    /// Makes the next group commit leave out a file that is gone.
    pub(crate) fn leave_out(&self, file: FileId) {
        self.included.borrow_mut().remove(&file);
    }

    /// Takes the files that this group commit must include though no caller synced them.
    pub(crate) fn take_included(&self) -> BTreeSet<FileId> {
        std::mem::take(&mut *self.included.borrow_mut())
    }

    /// Begins a group commit, and returns its number.
    pub(crate) fn begin_round(&self) -> u64 {
        self.round.set(self.round.get() + 1);
        self.round.get()
    }

    /// Number of the last group commit.
    pub(crate) fn round(&self) -> u64 {
        self.round.get()
    }

    /// Begins a record, and returns its number.
    pub(crate) fn begin_record(&self) -> u64 {
        self.record.set(self.record.get() + 1);
        self.record.get()
    }

    /// Number of the next record.
    pub(crate) fn next_record(&self) -> u64 {
        self.record.get() + 1
    }

    /// Number of the first record of the ring that is not known to be durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.get()
    }

    /// Sets the number of the first record of the ring that is not known to be durable.
    pub(crate) fn set_durable(&self, before: u64) {
        self.durable.set(before);
    }

    /// Number of times that the ring has turned.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.get()
    }

    /// Counts a turn of the ring.
    pub(crate) fn begin_turn(&self) {
        self.turn.set(self.turn.get() + 1);
    }

    /// Makes the next group commit turn the ring.
    pub(crate) fn want_turn(&self) {
        self.turn_wanted.set(true);
    }

    /// Whether a caller asked this group commit to turn the ring.
    pub(crate) fn take_turn_wanted(&self) -> bool {
        self.turn_wanted.take()
    }

    /// Counts an extent that moved.
    pub(crate) fn note_move(&self) {
        self.moves.set(self.moves.get() + 1);
    }

    /// Number of extents moved so far.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.get()
    }
}
