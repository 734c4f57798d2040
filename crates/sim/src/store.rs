//! The file store under the crash harness: several clients create, append, sync, cut, rename and
//! remove files; after a crash names and contents must be what was promised.
//!
//! Names change in one order for all clients: what is found must be the names as they were at one
//! moment, at or after the last that a sync made durable. A file is what it was at some moment at
//! or after its last sync; of an append a part may be missing at its end.

use crate::crash::{Case, Subject};
use furrow_emu::Emulator;
use furrow_kv::{
    Canary, CheckOptions, FileId, FormatOptions, Lifetime, Node, Options, Policy, Store,
};
use furrow_rt::{Rng, Rt};
use furrow_zone::{BlockCount, ByteLen, ErrorKind, Geometry, ZonedDevice};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const CLIENTS: u64 = 3;
const OPERATIONS: u64 = 60;
/// Names of each client: few, so that files are replaced.
const NAMES: u64 = 5;
/// Most bytes of an append.
const APPEND_MAX: u64 = 60_000;
/// What files may hold, of what the store says there is, in percent.
const FILLED: u64 = 60;

/// A file that is written after recovery, and removed again.
const AFTER: &str = "after";

/// A file of the model, by the order in which files were made.
type Uid = u32;

/// What a file holds: up to each end, bytes of an append's number.
type Content = Vec<(u64, u32)>;

fn size(content: &Content) -> u64 {
    content.last().map_or(0, |(end, _)| *end)
}

/// A byte of an append.
fn byte(uid: Uid, append: u32, at: u64) -> u8 {
    let word = (u64::from(uid) << 40 ^ u64::from(append) << 20 ^ (at / 8))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> (8 * (at % 8))) as u8
}

fn bytes(uid: Uid, content: &Content, upto: u64) -> Vec<u8> {
    let (mut all, mut at) = (Vec::new(), 0);
    for (end, append) in content {
        while at < (*end).min(upto) {
            all.push(byte(uid, *append, at));
            at += 1;
        }
    }
    all
}

#[derive(Clone, Debug)]
enum Event {
    /// A path names a file, or a directory.
    Name(String, Option<Uid>),
    Remove(String),
    Rename(String, String),
    /// What a file is going to hold.
    Content(Uid, Content),
    /// As many name changes are durable, and of a file as many states of its content.
    Synced(usize, Option<(Uid, usize)>),
}

/// The events of a run.
#[derive(Default)]
pub struct History {
    events: Vec<Event>,
    names: usize,
    states: BTreeMap<Uid, usize>,
    next: Uid,
    /// Bytes of the files there are.
    bytes: BTreeMap<Uid, u64>,
}

type NameState = BTreeMap<String, Option<Uid>>;

/// What must hold after a crash.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Names as they may be, the oldest first.
    names: Vec<NameState>,
    /// Of each file what it may hold, the oldest first.
    contents: BTreeMap<Uid, Vec<Content>>,
}

/// The store under the crash harness.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreSubject {
    /// Its defect, if any.
    pub canary: Option<Canary>,
}

struct Client {
    store: Store,
    history: Rc<RefCell<History>>,
    number: u64,
    rng: Rng,
    open: Vec<(String, Uid, FileId, Content, u32)>,
}

fn failed(what: &str, error: &furrow_zone::Error) -> String {
    format!("{what}: {error}")
}

impl Client {
    fn tell(&self, event: Event) {
        let mut history = self.history.borrow_mut();
        match &event {
            Event::Content(uid, content) => {
                *history.states.entry(*uid).or_default() += 1;
                history.bytes.insert(*uid, size(content));
            }
            Event::Synced(..) => {}
            _ => history.names += 1,
        }
        history.events.push(event);
    }

    fn path(&mut self) -> String {
        // Blob files have places, and something is remembered of them.
        let number = self.rng.below(NAMES);
        let kind = if number.is_multiple_of(3) { ".blob" } else { "" };
        format!("c{}/{number}{kind}", self.number)
    }

    fn create(&mut self) -> Result<(), String> {
        let path = self.path();
        // One writer a file, and none that is written has another's name.
        if self.open.iter().any(|open| open.0 == path) {
            return Ok(());
        }
        let uid = {
            let mut history = self.history.borrow_mut();
            history.next += 1;
            history.next
        };
        let lifetime = Lifetime::from_byte(self.rng.below(6) as u8).unwrap_or_default();
        let id = self.store.create(&path, lifetime).map_err(|e| failed("create", &e))?;
        self.forget(&path);
        self.tell(Event::Name(path.clone(), Some(uid)));
        self.tell(Event::Content(uid, Content::new()));
        self.open.push((path, uid, id, Content::new(), 0));
        Ok(())
    }

    /// The file at a path takes no room any more.
    fn forget(&self, path: &str) {
        let mut history = self.history.borrow_mut();
        let mut names = NameState::new();
        history.events.iter().for_each(|event| apply(&mut names, event));
        if let Some(Some(uid)) = names.get(path) {
            history.bytes.remove(uid);
        }
    }

    async fn append(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let most = [100, 5000, APPEND_MAX][self.rng.below(3) as usize];
        let count = 1 + self.rng.below(most);
        let held: u64 = self.history.borrow().bytes.values().map(|size| size + 8192).sum();
        if held + count > self.store.space().capacity * FILLED / 100 {
            return Ok(());
        }
        let (_, uid, id, content, appends) = &mut self.open[at];
        *appends += 1;
        let from = size(content);
        content.push((from + count, *appends));
        let (uid, id, content) = (*uid, *id, content.clone());
        let data: Vec<u8> = bytes(uid, &content, u64::MAX)[from as usize..].to_vec();
        self.tell(Event::Content(uid, content));
        self.store.append(id, &data).await.map_err(|e| failed("append", &e))
    }

    async fn truncate(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (_, uid, id, content, _) = &mut self.open[at];
        let keep = self.rng.below(size(content) + 1);
        // Within the append that is cut its number stays.
        let cut = content.iter().find(|(end, _)| *end > keep).map(|(_, append)| (keep, *append));
        content.retain(|(end, _)| *end <= keep);
        if size(content) < keep {
            content.extend(cut);
        }
        let (uid, id, content) = (*uid, *id, content.clone());
        self.tell(Event::Content(uid, content));
        self.store.truncate(id, keep).await.map_err(|e| failed("truncate", &e))
    }

    async fn sync(&mut self) -> Result<(), String> {
        let names = self.history.borrow().names;
        if self.open.is_empty() || self.rng.one_in(6) {
            self.store.sync_names().await.map_err(|e| failed("sync of names", &e))?;
            self.tell(Event::Synced(names, None));
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (uid, id) = (self.open[at].1, self.open[at].2);
        let state = self.history.borrow().states[&uid];
        self.store.sync(id).await.map_err(|e| failed("sync", &e))?;
        self.tell(Event::Synced(names, Some((uid, state))));
        Ok(())
    }

    async fn close(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let open = self.open.remove(at);
        self.store.close(open.2).await.map_err(|e| failed("close", &e))
    }

    fn remove(&mut self) -> Result<(), String> {
        let path = self.path();
        if self.open.iter().any(|open| open.0 == path) {
            return Ok(());
        }
        match self.store.remove(&path) {
            Ok(()) => {
                self.forget(&path);
                self.tell(Event::Remove(path));
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("remove", &error)),
        }
    }

    fn rename(&mut self) -> Result<(), String> {
        let (from, to) = (self.path(), self.path());
        if from == to || self.open.iter().any(|open| open.0 == from || open.0 == to) {
            return Ok(());
        }
        match self.store.rename(&from, &to) {
            Ok(()) => {
                self.forget(&to);
                self.tell(Event::Rename(from, to));
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("rename", &error)),
        }
    }

    /// What is in memory, and what is on the drive, is what was written.
    async fn read(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (path, uid, id, content, _) = &self.open[at];
        let whole = bytes(*uid, content, u64::MAX);
        let from = self.rng.below(whole.len() as u64 + 1);
        let count = self.rng.below(40_000) as usize;
        let data = self.store.read(*id, from, count).await.map_err(|e| failed("read", &e))?;
        let expected = &whole[from as usize..(from as usize + count).min(whole.len())];
        match data.to_vec() == expected {
            true => Ok(()),
            false => Err(format!("{path}: {count} bytes from {from} are not what was written")),
        }
    }

    async fn work(mut self) -> Result<(), String> {
        let directory = format!("c{}", self.number);
        self.store.make_directory(&directory).map_err(|e| failed("mkdir", &e))?;
        self.tell(Event::Name(directory, None));
        for _ in 0..OPERATIONS {
            match self.rng.below(16) {
                0 | 1 => self.create()?,
                2..=6 => self.append().await?,
                7..=9 => self.sync().await?,
                10 => self.truncate().await?,
                11 => self.close().await?,
                12 => self.remove()?,
                13 => self.rename()?,
                _ => self.read().await?,
            }
        }
        while !self.open.is_empty() {
            self.close().await?;
        }
        Ok(())
    }
}

fn apply(names: &mut NameState, event: &Event) {
    match event {
        Event::Name(path, uid) => drop(names.insert(path.clone(), *uid)),
        Event::Remove(path) => drop(names.remove(path)),
        Event::Rename(from, to) => {
            if let Some(uid) = names.remove(from) {
                names.insert(to.clone(), uid);
            }
        }
        Event::Content(..) | Event::Synced(..) => {}
    }
}

fn options(canary: Option<Canary>, seed: u64) -> Options {
    let policy = Policy::NAMES[(seed % Policy::NAMES.len() as u64) as usize].1;
    Options { canary, policy, commit_interval: 50_000_000, ..Options::default() }
}

/// What a crash left is no damage, neither as it is nor when it was put in order.
async fn check_clean(device: &dyn ZonedDevice, when: &str) -> Result<(), String> {
    let report = furrow_kv::check(device, &CheckOptions::default()).await;
    let report = report.map_err(|error| failed(when, &error))?;
    match report.problems.first() {
        None => Ok(()),
        Some(problem) => Err(format!("{when} finds: {problem}")),
    }
}

/// What a store holds must be one of what is expected.
async fn compare(store: &Store, expected: &Expected) -> Result<(), String> {
    let mut found: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for (name, node) in store.list(&directory).map_err(|e| failed("list", &e))? {
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            match node {
                // Of a reopening that was cut.
                _ if path == AFTER => {}
                Node::Directory => {
                    found.insert(path.clone(), None);
                    directories.push(path);
                }
                Node::File(id) => {
                    let size = store.size(id).map_err(|e| failed("size", &e))?;
                    let data = store.read(id, 0, size as usize).await;
                    let data = data.map_err(|e| failed(&format!("read of {path}"), &e))?;
                    found.insert(path, Some(data.to_vec()));
                }
            }
        }
    }
    let mut why = "no names fit".to_owned();
    for names in expected.names.iter().rev() {
        let same = names.len() == found.len()
            && names
                .iter()
                .all(|(path, uid)| found.get(path).is_some_and(|f| f.is_some() == uid.is_some()));
        if !same {
            continue;
        }
        let wrong = names.iter().find_map(|(path, uid)| {
            let (uid, data) = ((*uid)?, found[path].as_ref()?);
            (!may_hold(uid, &expected.contents[&uid], data)).then(|| {
                format!(
                    "{path}: {} bytes that it cannot hold: {:?}",
                    data.len(),
                    expected.contents[&uid]
                )
            })
        });
        match wrong {
            None => return Ok(()),
            Some(wrong) => why = wrong,
        }
    }
    let paths: Vec<&String> = found.keys().collect();
    Err(format!(
        "{why}; found {paths:?}, last of {} states: {:?}",
        expected.names.len(),
        expected.names.last()
    ))
}

/// Whether a file may hold `data`: as it was at some moment, or in the middle of an append.
fn may_hold(uid: Uid, states: &[Content], data: &[u8]) -> bool {
    let length = data.len() as u64;
    let matches = |content: &Content| bytes(uid, content, length) == data;
    states.iter().enumerate().any(|(index, content)| {
        let least = match index.checked_sub(1).map(|before| size(&states[before])) {
            Some(before) if before <= size(content) => before,
            _ => size(content),
        };
        (least..=size(content)).contains(&length) && matches(content)
    })
}

impl Subject for StoreSubject {
    type History = History;
    type Expected = Expected;

    fn name(&self) -> String {
        match self.canary {
            None => "kv".to_owned(),
            Some(canary) => format!("kv:{canary:?}"),
        }
    }

    fn drive(&self, case: Case) -> Geometry {
        let mut rng = Rng::new(case.seed ^ 0x57_09e);
        let small = rng.one_in(3);
        let blocks = 16 + rng.below(60);
        let capacity = if small { blocks * 8 } else { blocks };
        let active = [None, Some(4), Some(6), Some(14)][rng.below(4) as usize];
        let transfer = if small { 8 * (1 + rng.below(16)) } else { 1 + rng.below(16) };
        Geometry {
            block_size: ByteLen(if small { 512 } else { 4096 }),
            max_open: active,
            max_active: active,
            max_transfer: Some(BlockCount(transfer)),
            unwritten_reads_fail: true,
            volatile_cache: case.volatile,
            ..Geometry::unlimited(
                12 + 2 * rng.below(10) as u32,
                capacity.next_power_of_two(),
                capacity,
            )
        }
    }

    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, _: Case) -> Result<(), String> {
        let rt2 = rt.clone();
        let made = rt.block_on(async move {
            let options = FormatOptions { half_bytes: Some(1), ..FormatOptions::default() };
            Store::format(&rt2, device, &options).await
        });
        made.map(drop).map_err(|error| error.to_string())
    }

    fn run(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        case: Case,
        history: Rc<RefCell<History>>,
    ) -> Result<(), String> {
        let (rt2, canary) = (rt.clone(), self.canary);
        rt.block_on(async move {
            let opened = Store::open(&rt2, device, options(canary, case.seed)).await;
            let store = opened.map_err(|error| failed("open", &error))?;
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let client = Client {
                        store: store.clone(),
                        history: history.clone(),
                        number,
                        rng: Rng::new(case.seed ^ (number + 1) << 32),
                        open: Vec::new(),
                    };
                    rt2.spawn(client.work())
                })
                .collect();
            for client in clients {
                client.await?;
            }
            let names = history.borrow().names;
            store.stop().await.map_err(|error| failed("stop", &error))?;
            let mut history = history.borrow_mut();
            history.events.push(Event::Synced(names, None));
            Ok(())
        })
    }

    fn mark(history: &History) -> usize {
        history.events.len()
    }

    fn expect(&self, history: &History, mark: usize) -> Expected {
        let (mut all, mut durable) = (vec![NameState::new()], 0);
        let mut contents: BTreeMap<Uid, Vec<Content>> = BTreeMap::new();
        let mut synced: BTreeMap<Uid, usize> = BTreeMap::new();
        for event in &history.events[..mark] {
            match event {
                Event::Content(uid, content) => {
                    contents.entry(*uid).or_default().push(content.clone());
                }
                Event::Synced(names, file) => {
                    durable = durable.max(*names);
                    if let Some((uid, state)) = file {
                        let known = synced.entry(*uid).or_default();
                        *known = state.saturating_sub(1).max(*known);
                    }
                }
                change => {
                    let mut next = all.last().cloned().unwrap_or_default();
                    apply(&mut next, change);
                    all.push(next);
                }
            }
        }
        for (uid, state) in synced {
            // What it was before counts no more.
            contents.entry(uid).or_default().drain(..state);
        }
        Expected { names: all.split_off(durable), contents }
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Expected,
    ) -> Result<(), String> {
        let (rt2, canary, expected) = (rt.clone(), self.canary, expected.clone());
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        rt.block_on(async move {
            let checks = case.seed.is_multiple_of(4);
            if checks {
                check_clean(&*device, "a check after the crash").await?;
            }
            let opened = Store::open(&rt2, device.clone(), options(canary, case.seed)).await;
            let store = opened.map_err(|error| failed("open", &error))?;
            compare(&store, &expected).await?;
            // It can be used, and what was found stays.
            let mut rng = Rng::new(case.seed ^ 0xaf7e5);
            let path = AFTER.to_owned();
            let id = store.create(&path, Lifetime::Short).map_err(|e| failed("create", &e))?;
            let content = vec![(1 + rng.below(30_000), 1)];
            let data = bytes(0, &content, u64::MAX);
            store.append(id, &data).await.map_err(|e| failed("append", &e))?;
            store.sync(id).await.map_err(|e| failed("sync", &e))?;
            store.close(id).await.map_err(|e| failed("close", &e))?;
            store.stop().await.map_err(|e| failed("stop", &e))?;
            if checks {
                check_clean(&*device, "a check after recovery").await?;
            }
            let again = Store::open(&rt2, device, options(canary, case.seed)).await;
            let store = again.map_err(|error| failed("second open", &error))?;
            let id = store.open_file(&path).map_err(|e| failed("open after", &e))?;
            let found = store.read(id, 0, data.len() + 1).await;
            if found.map_err(|e| failed("read after", &e))?.to_vec() != data {
                return Err("a file written after recovery is not what was written".to_owned());
            }
            store.close(id).await.map_err(|e| failed("close", &e))?;
            store.remove(&path).map_err(|e| failed("remove", &e))?;
            compare(&store, &expected).await
        })
    }
}
