//! The promises of a file store during a run, and the check that its state after a crash
//! keeps them.
//!
//! Names change in one order for all clients. The names found must be those of one moment, at or
//! after the last change that a sync made durable. A file's content must be that of a moment at or
//! after its last sync; an append may be missing in part at its end. Blocks that the user declared
//! dead are as they were written, or zeros.

use furrow_kv::{CheckOptions, FileId, Lifetime, Node, Options, Store};
use furrow_rt::buf::is_zero;
use furrow_rt::{Rng, Rt};
use furrow_zone::ZonedDevice;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A file that the harness writes after a recovery and then removes.
const AFTER: &str = "after";

/// Number of a file in the model, in the order of creation.
pub type Uid = u32;

const BLOCK: u64 = 4096;

/// The number that stands for zeros; no append has it.
const HOLE: u32 = 0;

/// The eight bytes of a file at offset `8 × at`, if append number `append` wrote them.
fn word(uid: Uid, append: u32, at: u64) -> [u8; 8] {
    if append == HOLE {
        return [0; 8];
    }
    let word =
        (u64::from(uid) << 40 ^ u64::from(append) << 20 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word.to_le_bytes()
}

/// The `count` bytes of a file from offset `from` on, if append number `append` wrote them.
pub(crate) fn bytes(uid: Uid, append: u32, from: u64, count: u64) -> Vec<u8> {
    let first = from / 8;
    let words = (first..(from + count).div_ceil(8)).flat_map(|at| word(uid, append, at));
    words.skip((from - first * 8) as usize).take(count as usize).collect()
}

/// A change of a file's content.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// An append of `count` bytes; no other append to the file has its number.
    Append { count: u64, number: u32 },
    /// The file is truncated to this size.
    Cut(u64),
    /// The bytes from the first offset to before the second will not be read again.
    Dead(u64, u64),
}

/// Ranges of bytes, ascending; they neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn add(&mut self, from: u64, to: u64) {
        self.0.push((from, to));
        self.0.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (from, to) in self.0.drain(..).filter(|(from, to)| from < to) {
            match joined.last_mut().filter(|(_, end)| from <= *end) {
                Some((_, end)) => *end = to.max(*end),
                None => joined.push((from, to)),
            }
        }
        self.0 = joined;
    }

    pub(crate) fn join(&mut self, other: &Ranges) {
        other.0.iter().for_each(|(from, to)| self.add(*from, *to));
    }

    fn cut(&mut self, keep: u64) {
        self.0.retain(|(from, _)| *from < keep);
        self.0.iter_mut().for_each(|(_, to)| *to = keep.min(*to));
    }

    /// The end of the range that contains this byte.
    fn end_at(&self, at: u64) -> Option<u64> {
        self.0.iter().find(|(from, to)| (*from..*to).contains(&at)).map(|(_, to)| *to)
    }
}

/// A file's content: the end of each piece, and the number of its append.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pieces: Vec<(u64, u32)>,
    /// The ranges that the user declared dead.
    dead: Ranges,
    /// Ranges of dead blocks that may read as zeros. A truncation may have cut the last range.
    zeros: Ranges,
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        self.pieces.last().map_or(0, |(end, _)| *end)
    }

    pub(crate) fn zeros(&self) -> &Ranges {
        &self.zeros
    }

    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::Append { count, number } => self.pieces.push((self.size() + count, number)),
            Change::Cut(keep) => {
                let cut = self.pieces.iter().find(|(end, _)| *end > keep);
                let cut = cut.map(|(_, append)| *append);
                self.pieces.retain(|(end, _)| *end <= keep);
                if self.size() < keep {
                    // The part that a truncation leaves of a piece keeps the piece's number.
                    self.pieces.extend(cut.map(|append| (keep, append)));
                }
                self.dead.cut(keep);
                self.zeros.cut(keep);
            }
            Change::Dead(from, to) => {
                self.dead.add(from, to);
                for (from, to) in self.dead.0.clone() {
                    self.zeros.add(from.div_ceil(BLOCK) * BLOCK, to / BLOCK * BLOCK);
                }
            }
        }
    }

    /// The content after a restart that found `blocks`, by their offsets. Blocks in `zeros` that
    /// were found as zeros stay zeros. The result has no dead ranges.
    pub(crate) fn restarted(&self, zeros: &Ranges, blocks: &BTreeMap<u64, Vec<u8>>) -> Content {
        let mut content = Content { pieces: self.pieces.clone(), ..Content::default() };
        for (from, to) in &zeros.0 {
            let mut at = *from;
            while at < *to {
                let end = (at / BLOCK * BLOCK + BLOCK).min(*to);
                let (start, data) = match blocks.range(..=at).next_back() {
                    Some((start, data)) if *start + data.len() as u64 >= end => (*start, data),
                    // The block cannot be read, so it may be zeros or not.
                    _ => {
                        content.zeros.add(at, end.min(content.size()));
                        at = end;
                        continue;
                    }
                };
                let found = &data[(at - start) as usize..(end - start) as usize];
                if is_zero(found) {
                    content.punch(at, end);
                }
                at = end;
            }
        }
        content
    }

    fn punch(&mut self, from: u64, to: u64) {
        let (mut pieces, mut at) = (Vec::new(), 0);
        for (end, append) in self.pieces.drain(..) {
            let parts = [
                (at, end.min(from), append),
                (at.max(from), end.min(to), HOLE),
                (at.max(to), end, append),
            ];
            let whole = parts.into_iter().filter(|(start, end, _)| start < end);
            pieces.extend(whole.map(|(_, end, append)| (end, append)));
            at = end;
        }
        self.pieces = pieces;
    }

    /// The content's first `keep` bytes.
    pub(crate) fn truncated(&self, keep: u64) -> Content {
        let mut content = self.clone();
        content.apply(Change::Cut(keep));
        content
    }

    /// The content's bytes up to `upto`.
    pub(crate) fn bytes(&self, uid: Uid, upto: u64) -> Vec<u8> {
        let (mut all, mut at) = (Vec::new(), 0);
        for (end, append) in &self.pieces {
            let count = (*end).min(upto).saturating_sub(at);
            all.extend(bytes(uid, *append, at, count));
            at += count;
        }
        all
    }

    /// The highest number of an append in the content.
    pub(crate) fn last_append(&self) -> u32 {
        self.pieces.iter().map(|(_, append)| *append).max().unwrap_or(0)
    }

    /// Whether `data` is the content from `from` on.
    pub(crate) fn holds(&self, uid: Uid, from: u64, data: &[u8]) -> bool {
        let (mut at, mut rest) = (from, data);
        let first = self.pieces.partition_point(|(end, _)| *end <= from);
        for (end, append) in &self.pieces[first..] {
            let count = ((end - at) as usize).min(rest.len());
            let (here, next) = rest.split_at(count);
            let mut compared = 0;
            while compared < count {
                let bytes = word(uid, *append, at / 8);
                let skip = (at % 8) as usize;
                let now = (8 - skip).min(count - compared);
                let there = &here[compared..compared + now];
                // Most words are whole; these are compared as one integer.
                let same = match there.try_into() {
                    Ok(word) => u64::from_le_bytes(word) == u64::from_le_bytes(bytes),
                    Err(_) => there == &bytes[skip..skip + now],
                };
                if !same {
                    return false;
                }
                (compared, at) = (compared + now, at + now as u64);
            }
            rest = next;
        }
        rest.is_empty()
    }

    /// Like [`Content::holds`], but blocks in `zeros` may also be zeros.
    pub(crate) fn holds_or_zeros(&self, uid: Uid, from: u64, data: &[u8], zeros: &Ranges) -> bool {
        let (mut at, mut rest) = (from, data);
        while !rest.is_empty() {
            let end = zeros.end_at(at);
            let next = (at / BLOCK * BLOCK + BLOCK).min(end.unwrap_or(u64::MAX));
            let (here, after) = rest.split_at(((next - at) as usize).min(rest.len()));
            let zero = end.is_some() && is_zero(here);
            if !zero && !self.holds(uid, at, here) {
                return false;
            }
            (at, rest) = (at + here.len() as u64, after);
        }
        true
    }
}

/// An event of a run.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Names(NameChange),
    /// A change of a file's content is about to happen.
    Content(Uid, Change),
    /// Numbers of durable name changes and of durable changes of the file's content.
    Synced(usize, Option<(Uid, usize)>),
}

/// The events of a run.
#[derive(Default)]
pub struct History {
    events: Vec<Event>,
    names: usize,
    done: BTreeMap<Uid, usize>,
    files: Uid,
}

impl History {
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn tell(&mut self, event: Event) {
        if let Event::Names(_) = event {
            self.names += 1;
        }
        self.events.push(event);
    }

    /// Returns a number for a new file.
    pub(crate) fn file(&mut self) -> Uid {
        self.files += 1;
        self.files
    }

    /// Notes that the oldest pending change of a file's content has happened.
    pub(crate) fn done(&mut self, uid: Uid) {
        *self.done.entry(uid).or_default() += 1;
    }

    /// The event of a sync that begins now, to be recorded when it returns.
    pub(crate) fn synced(&self, uid: Option<Uid>) -> Event {
        let file = uid.map(|uid| (uid, self.done.get(&uid).copied().unwrap_or(0)));
        Event::Synced(self.names, file)
    }

    /// Like [`History::synced`], for all names and all files.
    pub(crate) fn all_synced(&self) -> Vec<Event> {
        let files = (1..=self.files).map(|uid| self.synced(Some(uid)));
        files.chain([self.synced(None)]).collect()
    }

    /// The names at the end of the history.
    pub(crate) fn names(&self) -> NameState {
        let mut names = NameState::new();
        for event in &self.events {
            if let Event::Names(change) = event {
                apply(&mut names, change);
            }
        }
        names
    }

    /// What must hold after a crash when the history had `mark` events.
    pub(crate) fn expect(&self, mark: usize) -> Expected {
        let events = &self.events[..mark];
        let synced = events.iter().filter_map(|event| match event {
            Event::Synced(names, file) => Some((*names, *file)),
            _ => None,
        });
        let (mut durable, mut contents) = (0, BTreeMap::<Uid, Promise>::new());
        for (names, file) in synced {
            durable = durable.max(names);
            if let Some((uid, changes)) = file {
                let promise = contents.entry(uid).or_default();
                promise.synced = promise.synced.max(changes);
            }
        }
        let (mut now, mut changes) = (NameState::new(), 0);
        let mut names = Vec::new();
        for event in events {
            match event {
                Event::Content(uid, change) => {
                    contents.entry(*uid).or_default().changes.push(*change);
                }
                Event::Synced(..) => {}
                Event::Names(change) => {
                    if changes >= durable {
                        names.push(now.clone());
                    }
                    apply(&mut now, change);
                    changes += 1;
                }
            }
        }
        names.push(now);
        Expected { names, contents: Rc::new(contents) }
    }
}

/// Files by their paths; `None` is a directory.
pub(crate) type NameState = BTreeMap<String, Option<Uid>>;

/// A change of names.
#[derive(Clone, Debug)]
pub(crate) enum NameChange {
    /// A path names a file, or a directory.
    Name(String, Option<Uid>),
    Remove(String),
    Rename(String, String),
}

pub(crate) fn apply(names: &mut NameState, change: &NameChange) {
    match change {
        NameChange::Name(path, uid) => drop(names.insert(path.clone(), *uid)),
        NameChange::Remove(path) => drop(names.remove(path)),
        NameChange::Rename(from, to) => {
            let below = format!("{from}/");
            let inside = names.range(below.clone()..).map(|(path, _)| path);
            let inside = inside.take_while(|path| path.starts_with(&below)).cloned();
            let moved: Vec<String> = inside.chain([from.clone()]).collect();
            for path in moved {
                if let Some(uid) = names.remove(&path) {
                    names.insert(format!("{to}{}", &path[from.len()..]), uid);
                }
            }
        }
    }
}

/// The changes of a file, and how many of them are durable.
#[derive(Clone, Debug, Default)]
struct Promise {
    changes: Vec<Change>,
    /// Number of changes that are durable.
    synced: usize,
}

impl Promise {
    /// Whether the file may hold `data`: its content at some moment, or in the middle of an append.
    /// Ranges declared dead later may already be zeros, since cleaning does not wait for syncs of
    /// the file.
    fn may_hold(&self, uid: Uid, data: &[u8]) -> bool {
        let mut content = Content::default();
        let mut states = vec![content.clone()];
        for change in &self.changes {
            content.apply(*change);
            states.push(content.clone());
        }
        may_hold(uid, &states, self.synced, data)
    }
}

/// Whether a file may hold `data`: one of these states, from `synced` on, or a state in the middle
/// of the append that led to one of them.
pub(crate) fn may_hold(uid: Uid, states: &[Content], synced: usize, data: &[u8]) -> bool {
    let (length, mut zeros) = (data.len() as u64, Ranges::default());
    for (index, content) in states.iter().enumerate().skip(synced).rev() {
        zeros.join(content.zeros());
        let before = index.checked_sub(1).map(|before| states[before].size());
        let least = match before {
            Some(before) if index > synced && before <= content.size() => before,
            _ => content.size(),
        };
        if (least..=content.size()).contains(&length)
            && content.holds_or_zeros(uid, 0, data, &zeros)
        {
            return true;
        }
    }
    false
}

/// Checks that two paths name the same file if and only if they do so in the model.
pub(crate) fn same_files<'a>(
    names: &NameState,
    found: impl Fn(&str) -> Option<FileId> + 'a,
) -> Result<(), String> {
    let (mut ids, mut uids) = (BTreeMap::new(), BTreeMap::new());
    for (path, uid) in names {
        let (Some(uid), Some(id)) = (*uid, found(path)) else { continue };
        if *ids.entry(uid).or_insert(id) != id {
            return Err(format!("{path}: a file of its own, and a link of another was promised"));
        }
        if *uids.entry(id).or_insert(uid) != uid {
            return Err(format!("{path}: a link of another file, which was not made"));
        }
    }
    Ok(())
}

/// What must hold after a crash.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// The names that may be found, oldest first.
    names: Vec<NameState>,
    contents: Rc<BTreeMap<Uid, Promise>>,
}

pub(crate) fn failed(what: &str, error: &furrow_zone::Error) -> String {
    format!("{what}: {error}")
}

/// Checks that the store's accounts in memory agree with what they count.
pub(crate) fn audit(store: &Store) -> Result<(), String> {
    store.audit().map_err(|error| failed("the store's accounts", &error))
}

/// Checks that fsck finds no damage: neither a crash nor recovery leaves any.
pub(crate) async fn check_clean(device: &dyn ZonedDevice, when: &str) -> Result<(), String> {
    let report = furrow_kv::check(device, &CheckOptions::default()).await;
    let report = report.map_err(|error| failed(when, &error))?;
    match report.problems.first() {
        None => Ok(()),
        Some(problem) => Err(format!("{when} finds: {problem}")),
    }
}

impl Expected {
    /// Checks that the store holds one of the expected states.
    async fn compare(&self, store: &Store) -> Result<(), String> {
        let mut found: BTreeMap<String, Option<(FileId, Vec<u8>)>> = BTreeMap::new();
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            for (name, node) in store.list(&directory).map_err(|e| failed("list", &e))? {
                let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
                match node {
                    // An interrupted reopening may leave this file.
                    _ if path == AFTER => {}
                    Node::Directory => {
                        found.insert(path.clone(), None);
                        directories.push(path);
                    }
                    Node::File(id) => {
                        let size = store.size(id).map_err(|e| failed("size", &e))?;
                        let data = store.read(id, 0, size as usize).await;
                        let data = data.map_err(|e| failed(&format!("read of {path}"), &e))?;
                        found.insert(path, Some((id, data.to_vec())));
                    }
                }
            }
        }
        let mut why = "no names fit".to_owned();
        for names in self.names.iter().rev() {
            let fits = |path: &String, uid: &Option<Uid>| {
                found.get(path).is_some_and(|found| found.is_some() == uid.is_some())
            };
            if names.len() != found.len() || !names.iter().all(|(path, uid)| fits(path, uid)) {
                continue;
            }
            let nothing = Promise::default();
            let wrong = names.iter().find_map(|(path, uid)| {
                let (uid, (_, data)) = ((*uid)?, found[path].as_ref()?);
                let promise = self.contents.get(&uid).unwrap_or(&nothing);
                let (made, synced) = (promise.changes.len(), promise.synced);
                (!promise.may_hold(uid, data)).then(|| {
                    format!(
                        "{path}: {} bytes that it cannot hold after {made} changes, {synced} of \
                         them synced; the last: {:?}",
                        data.len(),
                        &promise.changes[made.saturating_sub(3)..]
                    )
                })
            });
            match wrong {
                None => match same_files(names, |path| Some(found[path].as_ref()?.0)) {
                    Ok(()) => return Ok(()),
                    Err(wrong) => why = wrong,
                },
                Some(wrong) => why = wrong,
            }
        }
        let paths: Vec<&String> = found.keys().collect();
        Err(format!(
            "{why}; found {paths:?}, last of {} states: {:?}",
            self.names.len(),
            self.names.last()
        ))
    }

    /// Opens the store after a crash and compares it. The store must then be usable, and its state
    /// must stay. With `checks`, the drive is also checked as `furrow kv fsck` does.
    pub(crate) async fn hold(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        options: Options,
        seed: u64,
        checks: bool,
    ) -> Result<(), String> {
        if checks {
            check_clean(&*device, "a check after the crash").await?;
        }
        let opened = Store::open(rt, device.clone(), options.clone()).await;
        let store = opened.map_err(|error| failed("open", &error))?;
        audit(&store)?;
        self.compare(&store).await?;
        // The store must be usable, and must keep the content that was found.
        let count = 1 + Rng::new(seed ^ 0xaf7e5).below(30_000);
        let data = bytes(0, 1, 0, count);
        let id = store.create(AFTER, Lifetime::Short).map_err(|e| failed("create", &e))?;
        store.append(id, &data).await.map_err(|e| failed("append", &e))?;
        store.sync(id).await.map_err(|e| failed("sync", &e))?;
        store.close(id).await.map_err(|e| failed("close", &e))?;
        audit(&store)?;
        store.stop().await.map_err(|e| failed("stop", &e))?;
        if checks {
            check_clean(&*device, "a check after recovery").await?;
        }
        let again = Store::open(rt, device, options).await;
        let store = again.map_err(|error| failed("second open", &error))?;
        let id = store.open_file(AFTER).map_err(|e| failed("open after", &e))?;
        let found = store.read(id, 0, data.len() + 1).await;
        if found.map_err(|e| failed("read after", &e))?.to_vec() != data {
            return Err("a file written after recovery is not what was written".to_owned());
        }
        store.close(id).await.map_err(|e| failed("close", &e))?;
        store.remove(AFTER).map_err(|e| failed("remove", &e))?;
        self.compare(&store).await
    }
}
