//! The clients of a life: their operations on content, which answers are allowed, and what must be
//! found. `names` has the operations on names.

use super::states::{Event, Expected};
use super::{BLOCK, NAMES, Plan, is_bad};
use crate::kv::promises::{
    Change, Content, NameChange, NameState, Ranges, Uid, apply, audit, failed, may_hold, same_files,
};
use furrow_emu::Emulator;
use furrow_kv::{FileId, Node, Store};
use furrow_log::ring::RingZones;
use furrow_rt::Rng;
use furrow_zone::{Error, ErrorKind, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The events of a life, and the state of the model after them.
#[derive(Default)]
pub(super) struct History {
    pub(super) events: Vec<Event>,
    pub(super) names: usize,
    pub(super) states: BTreeMap<Uid, usize>,
    /// The names as the model has them now.
    pub(super) now: NameState,
    /// Size in bytes of each file that has a name or is open.
    pub(super) bytes: BTreeMap<Uid, u64>,
    /// Files that are open.
    pub(super) open: BTreeSet<Uid>,
    pub(super) next: Uid,
}

impl History {
    /// The events that record everything so far as durable. No operation may be in progress.
    pub(super) fn all_synced(&self) -> Vec<Event> {
        let files = self.states.iter().map(|(uid, state)| Some((*uid, *state)));
        files.chain([None]).map(|file| Event::Synced(self.names, file)).collect()
    }

    pub(super) fn tell(&mut self, event: Event) {
        match &event {
            Event::Content(uid, content) => {
                *self.states.entry(*uid).or_default() += 1;
                self.bytes.insert(*uid, content.size());
            }
            Event::Synced(..) => {}
            Event::Names(change) => {
                self.names += 1;
                apply(&mut self.now, change);
                self.settle();
            }
        }
        self.events.push(event);
    }

    /// Drops files from the space account that have no name and are not open.
    pub(super) fn settle(&mut self) {
        let History { now, open, bytes, .. } = self;
        bytes.retain(|uid, _| open.contains(uid) || now.values().any(|named| *named == Some(*uid)));
    }

    /// The names of a file, ascending.
    pub(super) fn names_of(&self, uid: Uid) -> impl Iterator<Item = &String> {
        self.now.iter().filter(move |(_, named)| **named == Some(uid)).map(|(path, _)| path)
    }
}

/// The reason why a client stops.
pub(super) enum Halt {
    /// The store failed, for an allowed reason.
    Died,
    Wrong(String),
}

/// State shared by all tasks of a life.
#[derive(Clone)]
pub(super) struct Life {
    pub(super) emulator: Emulator,
    pub(super) ring: RingZones,
    pub(super) filled: u64,
    pub(super) names: u64,
    pub(super) more: bool,
    pub(super) plan: Plan,
    pub(super) history: Rc<RefCell<History>>,
    pub(super) reached: Rc<RefCell<BTreeSet<&'static str>>>,
}

impl Life {
    pub(super) fn met(&self, what: &'static str) {
        self.reached.borrow_mut().insert(what);
    }

    pub(super) fn reports(&self) -> Vec<ZoneReport> {
        let zones = self.emulator.geometry().zones;
        self.emulator.report_now(ZoneId(0), zones).unwrap_or_default()
    }

    /// Zones of content that went offline with their content.
    pub(super) fn gone(&self) -> BTreeSet<ZoneId> {
        let offline = |report: &ZoneReport| report.state == ZoneState::Offline;
        let all = self.reports();
        let gone = all.iter().filter(|report| offline(report) && !self.ring.has(report.zone));
        gone.map(|report| report.zone).collect()
    }

    /// Whether the store may run out of space although files hold little.
    pub(super) fn is_crowded(&self) -> bool {
        let small = self.names > NAMES[0];
        small || self.filled > 60 || self.plan.zones_may_fail() || self.reports().iter().any(is_bad)
    }

    /// Whether the faults so far, or lack of space, allow the store to fail with this error.
    pub(super) fn may_die(&self, error: &Error) -> bool {
        let text = error.to_string();
        let bad = self.reports().iter().filter(|r| is_bad(r) && self.ring.has(r.zone)).count();
        let failing = bad + self.plan.faults.len();
        let no_ring = text.contains("no zone of the record ring")
            && failing as u32 > self.ring.count() - self.ring.half - 1;
        let full = error.kind() == ErrorKind::NoSpace || text.contains("no space");
        self.plan.may_be_gone() || no_ring || (full && self.is_crowded())
    }

    /// Judges an error of an operation that reads nothing.
    pub(super) fn judge(&self, store: &Store, what: &str, error: &Error) -> Result<(), Halt> {
        if let Some(death) = store.failed() {
            return match self.may_die(&death) {
                true => Err(Halt::Died),
                false => Err(Halt::Wrong(format!("{what}: the store died: {death}"))),
            };
        }
        match error.kind() {
            ErrorKind::NoSpace if self.is_crowded() => {
                self.met("an operation refused for lack of space");
                Ok(())
            }
            _ => Err(Halt::Wrong(failed(what, error))),
        }
    }

    /// Judges an error of an operation that reads a file.
    pub(super) fn judge_read(&self, store: &Store, path: &str, error: &Error) -> Result<(), Halt> {
        let named = is_named(store, path, error);
        let explained = self.plan.may_misread() || !self.gone().is_empty();
        let kind = matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt);
        if store.failed().is_none() && explained && kind {
            self.met("a read that failed");
            return match named {
                true => Ok(()),
                false => Err(Halt::Wrong(format!("read of {path} does not name it: {error}"))),
            };
        }
        if self.plan.may_be_gone() && kind {
            return Ok(());
        }
        self.judge(store, &format!("read of {path}"), error)
    }
}

pub(super) struct Open {
    pub(super) uid: Uid,
    pub(super) id: FileId,
    pub(super) content: Content,
    pub(super) appends: u32,
}

pub(super) struct Client {
    pub(super) life: Life,
    pub(super) store: Store,
    pub(super) number: u64,
    pub(super) rng: Rng,
    pub(super) open: Vec<Open>,
}

pub(super) type Worked = Result<(), Halt>;

impl Client {
    pub(super) fn tell(&self, event: Event) {
        self.life.history.borrow_mut().tell(event);
    }

    /// The name of an open file for messages: its first name, if it has one.
    fn called(&self, at: usize) -> String {
        let Open { uid, id, .. } = &self.open[at];
        let history = self.life.history.borrow();
        let name = history.names_of(*uid).next().cloned();
        name.unwrap_or_else(|| format!("file {} without a name", id.0))
    }

    pub(super) fn pick(&mut self) -> Option<usize> {
        let count = self.open.len() as u64;
        (count > 0).then(|| self.rng.below(count) as usize)
    }

    pub(super) async fn append(&mut self) -> Worked {
        let Some(at) = self.pick() else { return Ok(()) };
        let capacity = self.store.space().capacity;
        let small = self.life.names > NAMES[0];
        let most = [100, 5000, 60_000, capacity / 10];
        let most = most[self.rng.below(if small { 2 } else { 4 }) as usize];
        let count = 1 + self.rng.below(most.max(1));
        let held: u64 = {
            let history = self.life.history.borrow();
            history.bytes.values().map(|size| size + 2 * BLOCK).sum()
        };
        if held + count > capacity * self.life.filled / 100 {
            return Ok(());
        }
        let path = self.called(at);
        let Open { uid, id, content, appends } = &mut self.open[at];
        let before = content.clone();
        let from = content.size();
        *appends += 1;
        content.apply(Change::Append { count, number: *appends });
        let (uid, id, content) = (*uid, *id, content.clone());
        let data: Vec<u8> = content.bytes(uid, u64::MAX)[from as usize..].to_vec();
        self.tell(Event::Content(uid, content));
        let Err(error) = self.store.append(id, &data).await else { return Ok(()) };
        if self.store.size(id).is_ok_and(|size| size == from) {
            // The file's last block could not be read, so the append changed nothing.
            self.tell(Event::Content(uid, before.clone()));
            self.open[at].content = before;
            return self.life.judge_read(&self.store, &path, &error);
        }
        self.life.judge(&self.store, "append", &error)
    }

    pub(super) async fn truncate(&mut self) -> Worked {
        let Some(at) = self.pick() else { return Ok(()) };
        let from = self.open[at].content.size();
        let keep = self.rng.below(from + 1);
        let path = self.called(at);
        let Open { uid, id, content, .. } = &mut self.open[at];
        let before = content.clone();
        *content = content.truncated(keep);
        let (uid, id, content) = (*uid, *id, content.clone());
        self.tell(Event::Content(uid, content));
        let Err(error) = self.store.truncate(id, keep).await else { return Ok(()) };
        self.tell(Event::Content(uid, before.clone()));
        self.open[at].content = before;
        self.life.judge_read(&self.store, &path, &error)
    }

    /// Declares a part of a file dead. The content of a file with several names stays as it is.
    pub(super) fn declare_dead(&mut self) -> Worked {
        let Some(at) = self.pick() else { return Ok(()) };
        let Open { uid, id, content, .. } = &self.open[at];
        let (uid, id, size) = (*uid, *id, content.size());
        let from = self.rng.below(size + 1);
        let to = if self.rng.one_in(4) { size } else { from + self.rng.below(size - from + 1) };
        if self.rng.one_in(8) {
            let outside = self.store.forget(id, from, size - from + 1).map_err(|e| e.kind());
            if outside != Err(ErrorKind::Invalid) && self.store.failed().is_none() {
                return Err(Halt::Wrong(format!("dead bytes behind the end: {outside:?}")));
            }
        }
        if let Err(error) = self.store.forget(id, from, to - from) {
            return self.life.judge(&self.store, "forget", &error);
        }
        if self.life.history.borrow().names_of(uid).count() < 2 {
            self.open[at].content.apply(Change::Dead(from, to));
            self.tell(Event::Content(uid, self.open[at].content.clone()));
            self.life.met("a part of a file declared dead");
        }
        Ok(())
    }

    pub(super) async fn sync(&mut self) -> Worked {
        let names = self.life.history.borrow().names;
        let Some(at) = self.pick().filter(|_| !self.rng.clone().one_in(6)) else {
            return match self.store.sync_names().await {
                Ok(()) => {
                    self.tell(Event::Synced(names, None));
                    Ok(())
                }
                Err(error) => self.life.judge(&self.store, "sync of names", &error),
            };
        };
        let (uid, id) = (self.open[at].uid, self.open[at].id);
        let state = self.life.history.borrow().states.get(&uid).copied().unwrap_or_default();
        match self.store.sync(id).await {
            Ok(()) => {
                self.tell(Event::Synced(names, Some((uid, state))));
                Ok(())
            }
            Err(error) => self.life.judge(&self.store, "sync", &error),
        }
    }

    pub(super) async fn close(&mut self) -> Worked {
        let Some(at) = self.pick() else { return Ok(()) };
        let open = self.open.remove(at);
        {
            let mut history = self.life.history.borrow_mut();
            history.open.remove(&open.uid);
            history.settle();
        }
        match self.store.close(open.id).await {
            Ok(()) => Ok(()),
            Err(error) => self.life.judge(&self.store, "close", &error),
        }
    }

    /// Checks that a read returns what was written, whether it comes from memory or the drive.
    pub(super) async fn read(&mut self) -> Worked {
        let Some(at) = self.pick() else { return Ok(()) };
        let path = self.called(at);
        let Open { uid, id, content, .. } = &self.open[at];
        let from = self.rng.below(content.size() + 1);
        let count = self.rng.below(80_000);
        match self.store.read(*id, from, count as usize).await {
            Ok(data) => {
                let data = data.to_vec();
                let whole = data.len() as u64 == count.min(content.size() - from);
                if whole && content.holds_or_zeros(*uid, from, &data, content.zeros()) {
                    return Ok(());
                }
                let what = format!("{path}: {count} bytes from {from} are not what was written");
                Err(Halt::Wrong(what))
            }
            Err(error) => self.life.judge_read(&self.store, &path, &error),
        }
    }

    /// Opens an existing file that this client does not have open, and continues it.
    pub(super) fn reopen(&mut self) -> Worked {
        let path = self.path();
        let found = {
            let history = self.life.history.borrow();
            let uid = history.now.get(&path).copied().flatten();
            uid.and_then(|uid| {
                let last = history.events.iter().rev().find_map(|event| match event {
                    Event::Content(of, content) if *of == uid => Some(content.clone()),
                    _ => None,
                });
                last.map(|content| (uid, content))
            })
        };
        let is_open = |uid| self.open.iter().any(|open| open.uid == uid);
        let Some((uid, content)) = found.filter(|(uid, _)| !is_open(*uid)) else { return Ok(()) };
        let id = match self.store.open_file(&path) {
            Ok(id) => id,
            Err(error) => return Err(Halt::Wrong(failed(&format!("opening {path}"), &error))),
        };
        let appends = content.last_append() + 1000;
        self.life.history.borrow_mut().open.insert(uid);
        self.open.push(Open { uid, id, content, appends });
        Ok(())
    }

    pub(super) async fn work(mut self) -> Worked {
        let directory = format!("c{}", self.number);
        match self.store.make_directory(&directory) {
            Ok(()) => self.tell(Event::Names(NameChange::Name(directory, None))),
            Err(error) if error.kind() == ErrorKind::Exists => {}
            Err(error) => self.life.judge(&self.store, "mkdir", &error)?,
        }
        for _ in 0..self.life.plan.operations {
            match self.rng.below(if self.life.more { 23 } else { 18 }) {
                0 | 1 => self.create()?,
                2..=7 => self.append().await?,
                8..=10 => self.sync().await?,
                11 => self.truncate().await?,
                12 => self.close().await?,
                13 | 14 => self.rename_or_remove()?,
                15 => self.reopen()?,
                18 => self.link()?,
                19 | 20 => self.directory()?,
                21 | 22 => self.declare_dead()?,
                _ => self.read().await?,
            }
            audit(&self.store).map_err(Halt::Wrong)?;
        }
        Ok(())
    }
}

/// A file as found: its size, and the blocks that can be read.
pub(super) struct Found {
    pub(super) id: FileId,
    pub(super) size: u64,
    pub(super) blocks: BTreeMap<u64, Vec<u8>>,
}

impl Found {
    /// The content of the file, if one of `states` allows what was found; otherwise `None`.
    pub(super) fn fits(&self, uid: Uid, states: &[Content]) -> Option<Content> {
        let mut zeros = Ranges::default();
        for content in states.iter().rev() {
            // Ranges declared dead later may already be zeros.
            zeros.join(content.zeros());
            let holds =
                |(at, block): (&u64, &Vec<u8>)| content.holds_or_zeros(uid, *at, block, &zeros);
            if self.size <= content.size() && self.blocks.iter().all(holds) {
                let all = content.bytes(uid, self.size);
                let found = content.truncated(self.size).restarted(&zeros, &self.blocks);
                return may_hold(uid, states, 0, &all).then_some(found);
            }
        }
        None
    }
}

/// Whether an error names the file at `path`, by this or another name of the file.
fn is_named(store: &Store, path: &str, error: &Error) -> bool {
    let node = |path: &str| {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let all = store.list(parent).ok()?;
        all.into_iter().find(|(other, _)| other == name).map(|(_, node)| node)
    };
    let text = error.to_string();
    let said = text.split(": ").next().and_then(node);
    text.contains(path) || said.is_some() && said == node(path)
}

/// Reads everything that a store holds, by path. Only the files in `lossy` may have
/// unreadable blocks.
pub(super) async fn look_through(
    life: &Life,
    store: &Store,
    lossy: &BTreeSet<FileId>,
) -> Result<BTreeMap<String, Option<Found>>, String> {
    let mut found = BTreeMap::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for (name, node) in store.list(&directory).map_err(|e| failed("list", &e))? {
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            let Node::File(id) = node else {
                found.insert(path.clone(), None);
                directories.push(path);
                continue;
            };
            let size = store.size(id).map_err(|e| failed("size", &e))?;
            let mut file = Found { id, size, blocks: BTreeMap::new() };
            match store.read(id, 0, size as usize).await {
                Ok(data) => drop(file.blocks.insert(0, data.to_vec())),
                Err(error) if lossy.contains(&id) => {
                    if !is_named(store, &path, &error) {
                        return Err(format!("read of {path} does not name it: {error}"));
                    }
                    life.met("a file with blocks in a zone that is offline");
                    for at in (0..size).step_by(BLOCK as usize) {
                        if let Ok(data) = store.read(id, at, BLOCK as usize).await {
                            file.blocks.insert(at, data.to_vec());
                        }
                    }
                }
                Err(error) => return Err(failed(&format!("read of {path}"), &error)),
            }
            found.insert(path, Some(file));
        }
    }
    Ok(found)
}

/// Finds the expected state that the store holds.
pub(super) fn compare(
    found: &BTreeMap<String, Option<Found>>,
    expected: &Expected,
) -> Result<Expected, String> {
    let mut why = "no names fit".to_owned();
    for names in expected.names.iter().rev() {
        let kind = |(path, uid): (&String, &Option<Uid>)| {
            found.get(path).is_some_and(|file| file.is_some() == uid.is_some())
        };
        if names.len() != found.len() || !names.iter().all(kind) {
            continue;
        }
        let (mut contents, mut wrong) = (BTreeMap::new(), None);
        for (path, uid) in names {
            let (Some(uid), Some(Some(file))) = (uid, found.get(path)) else { continue };
            let states = expected.contents.get(uid).map_or(&[][..], Vec::as_slice);
            match file.fits(*uid, states) {
                Some(content) => drop(contents.insert(*uid, vec![content])),
                None => wrong = Some((path, file.size, states)),
            }
        }
        let same = same_files(names, |path| Some(found.get(path)?.as_ref()?.id));
        match wrong {
            None => match same {
                Ok(()) => return Ok(Expected { names: vec![names.clone()], contents }),
                Err(wrong) => why = wrong,
            },
            Some((path, size, states)) => {
                why = format!("{path}: {size} bytes that it cannot hold: {states:?}");
            }
        }
    }
    let paths: Vec<&String> = found.keys().collect();
    let last = expected.names.last();
    let states = expected.names.len();
    Err(format!("{why}; found {paths:?}, last of {states} states: {last:?}"))
}
