//! The history of a run: every operation as it was submitted and answered, in order.
//!
//! A crash cuts it: what had been submitted by then may have happened, what had been answered by
//! then has happened in memory, what an answered fsync covers must survive. [`History::cut`]
//! says all that of one point.
//!
//! Order among clients. The engine applies each name change in one stretch without an await, and
//! an fsync makes every earlier name change durable, so what survives is a prefix of the order of
//! application. That order is not visible from outside for operations that overlap in time; but
//! clients share no names, so it does not matter to any name: what survives of each client is a
//! prefix of its own operations, and if operation B of one client began after operation A of
//! another had been answered, B never survives without A. The oracle checks exactly this.

use crate::model::{Content, Model, Namespace, Xattrs};
use crate::op::{Ino, Object, Op, SECTORS_PER_BLOCK};
use furrow_rt::Nanos;
use furrow_zone::{ErrorKind, ZoneId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
struct Entry {
    client: u8,
    op: Op,
    begin: usize,
    /// Event index and answer.
    end: Option<(usize, Result<(), ErrorKind>)>,
}

/// The log of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// When each submission and answer was.
    times: Vec<Nanos>,
    entries: Vec<Entry>,
    inos: BTreeMap<Object, Ino>,
    /// What was there at the beginning, durable.
    base: BTreeMap<u8, Model>,
    /// Nanoseconds after which a change is durable without an fsync.
    commit_interval: Option<u64>,
    /// Zones of the drive that hold no files.
    metadata: BTreeSet<ZoneId>,
}

/// An operation's place in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpId(usize);

impl History {
    /// An empty history.
    pub fn new() -> History {
        let mut history = History::default();
        history.inos.insert(Object::ROOT, Ino::ROOT);
        history
    }

    /// A history that goes on where a recovery ended: all of `base` is durable.
    pub fn resume(base: BTreeMap<u8, Model>, inos: BTreeMap<Object, Ino>) -> History {
        History { base, inos, ..History::default() }
    }

    /// From now on, changes are durable after this many nanoseconds without an fsync.
    pub fn promise_commits(&mut self, interval: u64) {
        self.commit_interval = Some(interval);
    }

    /// An operation is submitted.
    pub fn begin(&mut self, now: Nanos, client: u8, op: Op) -> OpId {
        let id = self.entries.len();
        self.entries.push(Entry { client, op, begin: self.times.len(), end: None });
        self.times.push(now);
        OpId(id)
    }

    /// It is answered.
    pub fn end(&mut self, now: Nanos, id: OpId, result: Result<(), ErrorKind>) {
        self.entries[id.0].end = Some((self.times.len(), result));
        self.times.push(now);
    }

    /// The engine calls `object` by this number.
    pub fn know(&mut self, object: Object, ino: Ino) {
        self.inos.insert(object, ino);
    }

    /// These zones of the drive hold no files.
    pub fn know_metadata(&mut self, zones: BTreeSet<ZoneId>) {
        self.metadata = zones;
    }

    /// The engine's number of `object`, if it was made.
    pub fn ino(&self, object: Object) -> Option<Ino> {
        self.inos.get(&object).copied()
    }

    /// All objects and their numbers.
    pub fn inos(&self) -> &BTreeMap<Object, Ino> {
        &self.inos
    }

    /// How long the log is: a mark that [`History::cut`] takes.
    pub fn mark(&self) -> usize {
        self.times.len()
    }

    /// Operations submitted so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing happened yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Up to which event the commit interval alone makes everything durable.
    ///
    /// In virtual time the clock moves only when no command is left to carry out, so a commit
    /// that was due before the last event is over at the last event.
    fn committed(&self, mark: usize) -> usize {
        let (Some(interval), Some(last)) = (self.commit_interval, self.times[..mark].last()) else {
            return 0;
        };
        self.times.partition_point(|time| time.after(interval) < *last)
    }

    fn expected_base(&self) -> Expected {
        let mut expected = Expected {
            clients: BTreeMap::new(),
            objects: BTreeMap::new(),
            inos: self.inos.clone(),
            metadata: self.metadata.clone(),
        };
        for (&client, model) in &self.base {
            let steps = ClientSteps { base: model.names.clone(), ..ClientSteps::default() };
            expected.clients.insert(client, steps);
            for (&object, &mode) in &model.modes {
                let steps = ObjectSteps {
                    base: model.content(object),
                    later: Vec::new(),
                    modes: vec![mode],
                    xattrs: vec![model.xattrs.get(&object).cloned().unwrap_or_default()],
                    punched: BTreeSet::new(),
                };
                expected.objects.insert(object, steps);
            }
        }
        expected
    }

    /// What a crash when the log had `mark` events leaves to expect.
    ///
    /// Operations that failed later are known never to have been applied: an operation that
    /// fails has changed nothing.
    pub fn cut(&self, mark: usize) -> Expected {
        self.cut_with(mark, true)
    }

    /// The same, if no promise holds: any state there ever was, but no other.
    pub fn cut_unpromised(&self, mark: usize) -> Expected {
        self.cut_with(mark, false)
    }

    fn cut_with(&self, mark: usize, promised: bool) -> Expected {
        let begun = |entry: &Entry| entry.begin < mark;
        let ended = |entry: &Entry| matches!(entry.end, Some((at, _)) if at < mark);
        let failed = |entry: &Entry| matches!(entry.end, Some((_, Err(_))));

        let mut expected = self.expected_base();
        // Up to which event an answered fsync or sync covers name changes; per object for content.
        let (mut names_floor, mut all_floor) = (0, 0);
        if promised {
            all_floor = self.committed(mark);
        }
        let mut content_floors: BTreeMap<Object, usize> = BTreeMap::new();
        let mut mode_floors: BTreeMap<Object, usize> = BTreeMap::new();
        let acknowledged = |e: &&Entry| promised && begun(e) && ended(e) && !failed(e);
        for entry in self.entries.iter().filter(acknowledged) {
            let raise = |floors: &mut BTreeMap<Object, usize>, object| {
                let floor = floors.entry(object).or_insert(0);
                *floor = (*floor).max(entry.begin);
            };
            match entry.op {
                Op::Fsync { object, data_only, .. } => {
                    names_floor = names_floor.max(entry.begin);
                    raise(&mut content_floors, object);
                    if !data_only {
                        raise(&mut mode_floors, object);
                    }
                }
                Op::Sync => all_floor = all_floor.max(entry.begin),
                _ => {}
            }
        }
        names_floor = names_floor.max(all_floor);
        let covered =
            |entry: &Entry, floor: usize| matches!(entry.end, Some((at, _)) if at < floor);

        for entry in self.entries.iter().filter(|e| begun(e) && !failed(e)) {
            if entry.op.changes_names() {
                let client = expected.clients.entry(entry.client).or_default();
                if covered(entry, names_floor) {
                    client.durable = client.steps.len() + 1;
                }
                client.steps.push(Step {
                    op: entry.op,
                    begin: entry.begin,
                    end: entry.end.map(|e| e.0).filter(|&at| at < mark),
                });
            }
            let object = match entry.op {
                Op::Create { object, .. } => Some(object),
                ref op => op.changes_object(),
            };
            if let Some(object) = object {
                let floor = |floors: &BTreeMap<Object, usize>| {
                    floors.get(&object).copied().unwrap_or(0).max(all_floor)
                };
                let (content, mode) = (floor(&content_floors), floor(&mode_floors));
                expected.objects.entry(object).or_default().push(
                    &entry.op,
                    covered(entry, content),
                    covered(entry, mode),
                );
            }
        }
        expected
    }

    /// The operations, for printing.
    pub fn operations(&self) -> impl Iterator<Item = Line<'_>> {
        self.entries.iter().map(|entry| Line {
            begin: self.times[entry.begin],
            end: entry.end.map(|end| self.times[end.0]),
            client: entry.client,
            op: &entry.op,
            result: entry.end.map(|end| end.1),
        })
    }
}

/// One operation of a history.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// When it was submitted.
    pub begin: Nanos,
    /// When it was answered, if it was.
    pub end: Option<Nanos>,
    /// Who submitted it.
    pub client: u8,
    /// What it is.
    pub op: &'a Op,
    /// The answer.
    pub result: Option<Result<(), ErrorKind>>,
}

/// One name change that may have been applied.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub op: Op,
    pub begin: usize,
    /// Event of the answer, if that was before the cut.
    pub end: Option<usize>,
}

/// What is expected of one client's names: `base` and some prefix of `steps`, at least `durable`
/// long.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientSteps {
    pub base: Namespace,
    pub steps: Vec<Step>,
    pub durable: usize,
}

/// What is expected of one object's content: block by block, the base or a later state.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectSteps {
    /// Content that is durable.
    pub base: Content,
    /// Changes since, in order.
    pub later: Vec<Op>,
    /// Permission bits that may be found.
    pub modes: Vec<u16>,
    /// Extended attributes that may be found.
    pub xattrs: Vec<Xattrs>,
    /// Blocks that were made holes: to be looked at, though nothing may be in them.
    pub punched: BTreeSet<u64>,
}

impl ObjectSteps {
    fn push(&mut self, op: &Op, content_durable: bool, mode_durable: bool) {
        if let Op::Punch { sector, sectors, .. } = op {
            let end = (sector + u64::from(*sectors)).div_ceil(SECTORS_PER_BLOCK);
            self.punched.extend(sector / SECTORS_PER_BLOCK..end);
        }
        match op {
            Op::Create { mode, .. } => {
                self.modes = vec![*mode];
                self.xattrs = vec![Xattrs::new()];
            }
            Op::SetXattr { slot, value, .. } => {
                let mut next = self.xattrs.last().cloned().unwrap_or_default();
                match value {
                    Some(value) => next.insert(*slot, *value),
                    None => next.remove(slot),
                };
                if mode_durable {
                    self.xattrs.clear();
                }
                self.xattrs.push(next);
            }
            Op::Chmod { mode, .. } => {
                if mode_durable {
                    self.modes.clear();
                }
                self.modes.push(*mode);
            }
            _ if content_durable => self.base.apply(op),
            _ => self.later.push(*op),
        }
    }
}

/// What may be found after a crash at one point of a history.
#[derive(Clone, Debug)]
pub struct Expected {
    pub(crate) clients: BTreeMap<u8, ClientSteps>,
    pub(crate) objects: BTreeMap<Object, ObjectSteps>,
    pub(crate) inos: BTreeMap<Object, Ino>,
    /// Zones of the drive that hold no files, if it is known which.
    pub(crate) metadata: BTreeSet<ZoneId>,
}

impl Expected {
    /// The same, if nothing may be lost.
    #[must_use]
    pub fn all_durable(mut self) -> Expected {
        for client in self.clients.values_mut() {
            client.durable = client.steps.len();
        }
        for object in self.objects.values_mut() {
            for op in object.later.drain(..) {
                object.base.apply(&op);
            }
            let last = object.modes.len().saturating_sub(1);
            object.modes.drain(..last);
            let last = object.xattrs.len().saturating_sub(1);
            object.xattrs.drain(..last);
        }
        self
    }

    /// The names after the first `count` name changes of `client`.
    pub(crate) fn names_after(&self, client: u8, count: usize) -> Namespace {
        let mut names = self.clients.get(&client).map_or_else(Namespace::new, |c| c.base.clone());
        if let Some(steps) = self.clients.get(&client) {
            for step in &steps.steps[..count.min(steps.steps.len())] {
                // Opens are not replayed: an object without names is gone after a crash.
                let applied = names.apply(&step.op);
                debug_assert!(applied.is_ok(), "a successful step replays: {}", step.op);
            }
        }
        names
    }
}
