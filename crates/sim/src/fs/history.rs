//! The history of a run: every operation as it was submitted and answered, in order.
//!
//! A crash ends it: operations submitted by then may have happened, operations answered by then
//! have happened in memory, and everything that an answered fsync covers must survive.
//! [`History::cut`] computes these expectations for one point.
//!
//! Order among clients. The engine applies each name change in one stretch without an await, and an
//! fsync makes every earlier name change durable. So a prefix of the order of application survives.
//! For operations that overlap in time, that order is not visible from outside, but clients share
//! no names, so the oracle needs only two rules. A prefix of each client's own operations survives.
//! If operation B of one client began after operation A of another had been answered, B never
//! survives without A.

use crate::fs::attributes::{Allowed, Moment, Times, moment};
use crate::fs::model::{Attributes, BLOCK, Change, Content, Effect, Model, Namespace};
use crate::fs::op::{Ino, Object, Op};
use furrow_rt::Nanos;
use furrow_zone::{ErrorKind, ZoneId};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
struct Entry {
    client: u8,
    op: Op,
    effect: Effect,
    begin: usize,
    /// Event index and answer. `None` without an answer, and for an operation that failed in the
    /// middle and may have done a part.
    end: Option<(usize, Result<(), ErrorKind>)>,
}

/// The operations of a run, with their answers.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Time of each event, that is, of each submission and answer.
    times: Vec<Nanos>,
    entries: Vec<Entry>,
    inos: BTreeMap<Object, Ino>,
    /// The state at the beginning, which is durable.
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

    /// A history that continues where a recovery ended: all of `base` is durable.
    pub fn resume(base: BTreeMap<u8, Model>, inos: BTreeMap<Object, Ino>) -> History {
        History { base, inos, ..History::default() }
    }

    /// Promises that each change is durable after this many nanoseconds, even without an fsync.
    pub fn promise_commits(&mut self, interval: u64) {
        self.commit_interval = Some(interval);
    }

    /// Records that an operation is submitted.
    pub fn begin(&mut self, now: Nanos, client: u8, op: Op) -> OpId {
        let id = self.entries.len();
        let begin = self.times.len();
        self.entries.push(Entry { client, op, effect: Effect::default(), begin, end: None });
        self.times.push(now);
        OpId(id)
    }

    /// Records an effect of an operation that its arguments do not show.
    pub fn does(&mut self, id: OpId, effect: Effect) {
        self.entries[id.0].effect = effect;
    }

    /// Records the answer of the operation `id`.
    pub fn end(&mut self, now: Nanos, id: OpId, result: Result<(), ErrorKind>) {
        self.entries[id.0].end = Some((self.times.len(), result));
        self.times.push(now);
    }

    /// Records the inode number that the engine gave `object`.
    pub fn know(&mut self, object: Object, ino: Ino) {
        self.inos.insert(object, ino);
    }

    /// Records zones of the drive that hold no files.
    pub fn know_metadata(&mut self, zones: BTreeSet<ZoneId>) {
        self.metadata = zones;
    }

    /// The engine's inode number of `object`, if it was made.
    pub fn ino(&self, object: Object) -> Option<Ino> {
        self.inos.get(&object).copied()
    }

    /// All objects that were made, with their inode numbers.
    pub fn inos(&self) -> &BTreeMap<Object, Ino> {
        &self.inos
    }

    /// The length of the history, for [`History::cut`].
    pub fn mark(&self) -> usize {
        self.times.len()
    }

    /// Number of operations submitted so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if no operation was submitted yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The event up to which the commit interval alone makes everything durable.
    ///
    /// Virtual time moves only when no command is left to execute, so a commit that was due before
    /// the last event has ended by then.
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
            promised: true,
        };
        for (&client, model) in &self.base {
            let steps = ClientSteps { base: model.names.clone(), ..ClientSteps::default() };
            expected.clients.insert(client, steps);
            for (&object, attributes) in &model.attributes {
                let steps = ObjectSteps {
                    base: model.content(object),
                    later: Vec::new(),
                    begins: Vec::new(),
                    attributes: vec![attributes.clone()],
                    times: model.times.get(&object).map(TimeSteps::known).unwrap_or_default(),
                    punched: BTreeSet::new(),
                };
                expected.objects.insert(object, steps);
            }
        }
        expected
    }

    /// The expectations after a crash when the history had `mark` events.
    ///
    /// An operation that failed later was never applied, because a failed operation changes
    /// nothing.
    pub fn cut(&self, mark: usize) -> Expected {
        self.cut_with(mark, true)
    }

    /// Like [`History::cut`], but without promises: any state that existed may be found, and
    /// no other.
    pub fn cut_unpromised(&self, mark: usize) -> Expected {
        self.cut_with(mark, false)
    }

    fn cut_with(&self, mark: usize, promised: bool) -> Expected {
        let begun = |entry: &Entry| entry.begin < mark;
        let ended = |entry: &Entry| matches!(entry.end, Some((at, _)) if at < mark);
        let failed = |entry: &Entry| matches!(entry.end, Some((_, Err(_))));

        let mut expected = Expected { promised, ..self.expected_base() };
        // Events up to which answered fsyncs and syncs make changes durable: `names_floor` for name
        // changes, `all_floor` for all changes. For content there is one event per object.
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
                Op::Create { object, .. } | Op::Nameless { object, .. } => Some(object),
                ref op => op.changes_object(),
            };
            if let Some(object) = object {
                let floor = |floors: &BTreeMap<Object, usize>| {
                    floors.get(&object).copied().unwrap_or(0).max(all_floor)
                };
                let (content, mode) = (floor(&content_floors), floor(&mode_floors));
                let (torn, copied) = (!ended(entry), entry.effect.copied.clone());
                let change = Change { op: entry.op, copied, torn };
                expected.objects.entry(object).or_default().push(
                    (change, entry.begin),
                    entry.effect.attributes.as_deref(),
                    covered(entry, content),
                    covered(entry, mode),
                );
            }
            let end = entry.end.filter(|end| end.0 < mark).map(|end| moment(self.times[end.0]));
            let when = (moment(self.times[entry.begin]), end.unwrap_or((i64::MAX, 0)));
            touches(&entry.op, &entry.effect, |object, touch| {
                let floor = if entry.op.changes_names() {
                    names_floor
                } else {
                    mode_floors.get(&object).copied().unwrap_or(0).max(all_floor)
                };
                if !object.is_shared() {
                    let steps = expected.objects.entry(object).or_default();
                    steps.times.touch(touch, when, covered(entry, floor));
                }
            });
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
    /// Time at which the operation was submitted.
    pub begin: Nanos,
    /// Time of the answer, if there is one.
    pub end: Option<Nanos>,
    /// The client that submitted the operation.
    pub client: u8,
    /// The operation that was submitted.
    pub op: &'a Op,
    /// The answer, if there is one.
    pub result: Option<Result<(), ErrorKind>>,
}

/// A name change that may have been applied.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub op: Op,
    pub begin: usize,
    /// Event of the answer, if it came before the cut.
    pub end: Option<usize>,
}

/// The expected names of one client: `base` and a prefix of `steps`, at least `durable` long.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientSteps {
    pub base: Namespace,
    pub steps: Vec<Step>,
    pub durable: usize,
}

/// The expected content of one object: block by block, the base or a later state.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectSteps {
    /// The durable content.
    pub base: Content,
    /// Changes that came after `base`, in order.
    pub later: Vec<Change>,
    /// Events at which the changes in `later` began.
    pub begins: Vec<usize>,
    /// Attributes that may be found.
    pub attributes: Vec<Attributes>,
    /// Timestamps that may be found.
    pub times: TimeSteps,
    /// Blocks that may be holes now; the oracle checks them nevertheless.
    pub punched: BTreeSet<u64>,
}

impl ObjectSteps {
    fn push(
        &mut self,
        (change, begin): (Change, usize),
        attributes: Option<&Attributes>,
        content_durable: bool,
        attributes_durable: bool,
    ) {
        match change.op {
            Op::Fallocate { offset, length, .. } | Op::Copy { to: (_, offset), length, .. } => {
                self.punched.extend(offset / BLOCK..(offset + length).div_ceil(BLOCK));
            }
            _ => {}
        }
        match &change.op {
            Op::Create { .. }
            | Op::Nameless { .. }
            | Op::SetXattr { .. }
            | Op::Chmod { .. }
            | Op::Chown { .. } => {
                // An operation that makes an object sets all of its attributes, so no earlier ones
                // are allowed.
                if attributes_durable || !change.op.is_attribute() {
                    self.attributes.clear();
                }
                self.attributes.extend(attributes.cloned());
            }
            _ if content_durable => change.apply(&mut self.base, |_| {}),
            _ => {
                self.later.push(change);
                self.begins.push(begin);
            }
        }
    }

    /// Makes all changes durable that began before event `floor`, except torn ones: how much of a
    /// torn change is done is unknown.
    fn raise(&mut self, floor: usize) {
        let later = std::mem::take(&mut self.later).into_iter();
        for (change, begin) in later.zip(std::mem::take(&mut self.begins)) {
            if begin < floor && !change.torn {
                change.apply(&mut self.base, |_| {});
            } else {
                self.later.push(change);
                self.begins.push(begin);
            }
        }
    }
}

/// The effect of an operation on times.
#[derive(Clone, Copy)]
enum Touch {
    /// All times of a new object are set.
    Made,
    /// The operation changes content and inode.
    Content,
    /// The operation may change content and inode.
    MayContent,
    /// The operation changes the inode.
    Inode,
    /// The times of content and access are set to these, in seconds.
    Given(Option<i64>, Option<i64>),
}

/// Calls `touch` for each object whose times an operation changes.
fn touches(op: &Op, effect: &Effect, mut touch: impl FnMut(Object, Touch)) {
    match *op {
        Op::Create { object, dir, .. } => {
            touch(object, Touch::Made);
            touch(dir, Touch::Content);
        }
        Op::Nameless { object, .. } => touch(object, Touch::Made),
        Op::Link { dir, .. } | Op::Unlink { dir, .. } | Op::Rmdir { dir, .. } => {
            touch(dir, Touch::Content);
        }
        // A rename between two names of one file changes nothing.
        Op::Rename { from, to, .. } if !effect.renamed.is_empty() => {
            touch(from.0, Touch::Content);
            touch(to.0, Touch::Content);
        }
        Op::Write { object, .. } | Op::Truncate { object, .. } => touch(object, Touch::Content),
        Op::Fallocate { object, .. } | Op::Copy { to: (object, _), .. } => {
            touch(object, Touch::MayContent);
        }
        Op::SetXattr { object, .. } | Op::Chmod { object, .. } | Op::Chown { object, .. } => {
            touch(object, Touch::Inode);
        }
        Op::Utimens { object, mtime, atime } => touch(object, Touch::Given(mtime, atime)),
        _ => {}
    }
    effect.renamed.iter().for_each(|&object| touch(object, Touch::Inode));
}

/// Times of an object that may be found.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeSteps {
    pub atime: Allowed,
    pub mtime: Allowed,
    pub ctime: Allowed,
}

impl TimeSteps {
    /// Allows exactly these times.
    fn known(times: &Times) -> TimeSteps {
        let mut steps = TimeSteps::default();
        steps.atime.set((times.atime, times.atime), true);
        steps.mtime.set((times.mtime, times.mtime), true);
        steps.ctime.set((times.ctime, times.ctime), true);
        steps
    }

    fn touch(&mut self, touch: Touch, when: (Moment, Moment), durable: bool) {
        match touch {
            Touch::Made => {
                self.atime.set(when, true);
                self.mtime.set(when, true);
                self.ctime.set(when, true);
            }
            Touch::Content => {
                self.mtime.set(when, durable);
                self.ctime.set(when, durable);
            }
            Touch::MayContent => {
                self.mtime.may_be(when);
                self.ctime.may_be(when);
            }
            Touch::Inode => self.ctime.set(when, durable),
            Touch::Given(mtime, atime) => {
                let given = |seconds| ((seconds, 999_999_999), (seconds, 999_999_999));
                if let Some(mtime) = mtime {
                    self.mtime.set(given(mtime), durable);
                }
                if let Some(atime) = atime {
                    self.atime.set(given(atime), durable);
                }
                self.ctime.set(when, durable);
            }
        }
    }
}

/// The states that may be found after a crash at one point of a history.
#[derive(Clone, Debug)]
pub struct Expected {
    pub(crate) clients: BTreeMap<u8, ClientSteps>,
    pub(crate) objects: BTreeMap<Object, ObjectSteps>,
    pub(crate) inos: BTreeMap<Object, Ino>,
    /// Zones of the drive that hold no files, if they are known.
    pub(crate) metadata: BTreeSet<ZoneId>,
    /// False if any state that ever existed may be found.
    pub(crate) promised: bool,
}

impl Expected {
    /// The same expectations, if no change may be lost.
    #[must_use]
    pub fn all_durable(mut self) -> Expected {
        for client in self.clients.values_mut() {
            client.durable = client.steps.len();
        }
        for object in self.objects.values_mut() {
            object.raise(usize::MAX);
            let last = object.attributes.len().saturating_sub(1);
            object.attributes.drain(..last);
            object.times.atime.all_durable();
            object.times.mtime.all_durable();
            object.times.ctime.all_durable();
        }
        self
    }

    /// The expectations once it is known how many name changes of each client survived: a file that
    /// replaced another one by a rename has at least the content it had at the rename.
    #[must_use]
    pub fn carried(&self, prefixes: &BTreeMap<u8, usize>) -> Cow<'_, Expected> {
        let mut expected = Cow::Borrowed(self);
        for (client, count) in prefixes.iter().filter(|_| self.promised) {
            let Some(steps) = self.clients.get(client) else { continue };
            let mut names = steps.base.clone();
            for step in &steps.steps[..(*count).min(steps.steps.len())] {
                for object in names.replacing(&step.op) {
                    let later = self.objects.get(&object).map_or(&[][..], |steps| &steps.begins);
                    if later.first().is_some_and(|begin| *begin < step.begin)
                        && let Some(steps) = expected.to_mut().objects.get_mut(&object)
                    {
                        steps.raise(step.begin);
                    }
                }
                let applied = names.apply(&step.op);
                debug_assert!(applied.is_ok(), "a successful step replays: {}", step.op);
            }
        }
        expected
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
