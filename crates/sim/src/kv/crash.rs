//! The file store under the crash harness. Several clients create, append, sync, truncate, link,
//! rename and remove files, also open ones, make and rename directories, and declare parts of files
//! dead; after a crash, names and contents must be as promised (`promises`).

use crate::crash::{Case, Subject};
use crate::kv::promises::{
    Change, Content, Event, Expected, History, NameChange, Uid, audit, bytes, failed,
};
use crate::limits::fewer_open;
use furrow_emu::{Emulator, Fault, FaultKind, When};
use furrow_kv::{FileId, FormatOptions, Lifetime, Options, Policy, Store};
use furrow_policy::{StoreDefect, StoreVariant};
use furrow_rt::{Rng, Rt};
use furrow_zone::{BlockCount, ByteLen, ErrorKind, Geometry, Result as Answer, ZonedDevice};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const CLIENTS: u64 = 3;
const OPERATIONS: u64 = 60;
/// Number of names of each client in a directory: few, so that files get replaced.
const NAMES: u64 = 5;
/// Number of directories of each client, in addition to its home directory.
const DIRECTORIES: u64 = 2;
/// Maximum number of bytes of an append.
const APPEND_MAX: u64 = 60_000;
/// Share of the store's space that files may hold, in percent.
const FILLED: u64 = 60;

/// The store under the crash harness.
#[derive(Clone, Copy, Debug, Default)]
pub struct KvSubject {
    /// The defect built in, if any.
    pub defect: Option<StoreDefect>,
}

struct Client {
    store: Store,
    history: Rc<RefCell<History>>,
    /// Size in bytes of each existing file of all clients.
    bytes: Rc<RefCell<BTreeMap<Uid, u64>>>,
    /// Files that any client has open.
    opens: Rc<RefCell<BTreeSet<Uid>>>,
    number: u64,
    rng: Rng,
    open: Vec<Open>,
}

struct Open {
    uid: Uid,
    id: FileId,
    content: Content,
    appends: u32,
}

impl Client {
    fn tell(&self, event: Event) {
        self.history.borrow_mut().tell(event);
    }

    /// Records a change of a file's content that is about to happen. Returns the model's and the
    /// store's number of the file.
    fn change(&mut self, at: usize, change: Change) -> (Uid, FileId) {
        let Open { uid, id, content, .. } = &mut self.open[at];
        content.apply(change);
        self.bytes.borrow_mut().insert(*uid, content.size());
        self.history.borrow_mut().tell(Event::Content(*uid, change));
        (*uid, *id)
    }

    fn path(&mut self) -> String {
        // Names of blob files are drawn too: policies place blob files, and the store remembers
        // their families.
        let number = self.rng.below(NAMES);
        let kind = if number.is_multiple_of(3) { ".blob" } else { "" };
        match self.rng.one_in(4) {
            true => format!("{}/{number}{kind}", self.directory_path()),
            false => format!("c{}/{number}{kind}", self.number),
        }
    }

    fn directory_path(&mut self) -> String {
        format!("c{}/d{}", self.number, self.rng.below(DIRECTORIES))
    }

    /// Records the result of a change of names. A change that failed because a name exists or is
    /// missing, or because a directory is not empty, changed nothing. Every such failure is
    /// accepted here; the simulation in `kv::sim` checks whether it was right.
    fn named(&self, what: &str, done: Answer<()>, change: NameChange) -> Result<(), String> {
        use ErrorKind::{Exists, NotEmpty, NotFound};
        match done {
            Ok(()) => self.tell(Event::Names(change)),
            Err(error) if matches!(error.kind(), Exists | NotEmpty | NotFound) => return Ok(()),
            Err(error) => return Err(failed(what, &error)),
        }
        self.settle();
        Ok(())
    }

    /// Drops files from the space account that have no name and are not open.
    fn settle(&self) {
        let names = self.history.borrow().names();
        let named = |uid: &Uid| names.values().any(|named| *named == Some(*uid));
        let opens = self.opens.borrow();
        self.bytes.borrow_mut().retain(|uid, _| named(uid) || opens.contains(uid));
    }

    fn create(&mut self) -> Result<(), String> {
        let path = self.path();
        let uid = self.history.borrow_mut().file();
        let lifetime = Lifetime::from_byte(self.rng.below(6) as u8).unwrap_or_default();
        let id = match self.store.create(&path, lifetime) {
            Ok(id) => id,
            // The directory of the path does not exist.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("create", &error)),
        };
        self.opens.borrow_mut().insert(uid);
        self.bytes.borrow_mut().insert(uid, 0);
        self.open.push(Open { uid, id, content: Content::default(), appends: 0 });
        self.named("create", Ok(()), NameChange::Name(path, Some(uid)))
    }

    /// Declares a part of a file dead. The content of a file with several names stays as it is.
    fn declare_dead(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let Open { uid, id, content, .. } = &self.open[at];
        let (uid, id, size) = (*uid, *id, content.size());
        let from = self.rng.below(size + 1);
        let to = from + self.rng.below(size - from + 1);
        self.store.forget(id, from, to - from).map_err(|e| failed("forget", &e))?;
        let names = self.history.borrow().names();
        if names.values().filter(|named| **named == Some(uid)).count() < 2 {
            self.change(at, Change::Dead(from, to));
            self.history.borrow_mut().done(uid);
        }
        Ok(())
    }

    async fn append(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let most = [100, 5000, APPEND_MAX][self.rng.below(3) as usize];
        let count = 1 + self.rng.below(most);
        let held: u64 = self.bytes.borrow().values().map(|size| size + 8192).sum();
        if held + count > self.store.space().capacity * FILLED / 100 {
            return Ok(());
        }
        let Open { content, appends, .. } = &mut self.open[at];
        *appends += 1;
        let (from, number) = (content.size(), *appends);
        let (uid, id) = self.change(at, Change::Append { count, number });
        let data = bytes(uid, number, from, count);
        self.store.append(id, &data).await.map_err(|e| failed("append", &e))?;
        self.history.borrow_mut().done(uid);
        Ok(())
    }

    async fn truncate(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let keep = self.rng.below(self.open[at].content.size() + 1);
        let (uid, id) = self.change(at, Change::Cut(keep));
        self.store.truncate(id, keep).await.map_err(|e| failed("truncate", &e))?;
        self.history.borrow_mut().done(uid);
        Ok(())
    }

    async fn sync(&mut self) -> Result<(), String> {
        if self.open.is_empty() || self.rng.one_in(6) {
            // A copy of the random generator draws this choice, so that seeds that once failed keep
            // their runs.
            if self.rng.clone().one_in(3) {
                let synced = self.history.borrow().all_synced();
                self.store.sync_all().await.map_err(|e| failed("sync of all", &e))?;
                synced.into_iter().for_each(|event| self.tell(event));
                return Ok(());
            }
            let synced = self.history.borrow().synced(None);
            self.store.sync_names().await.map_err(|e| failed("sync of names", &e))?;
            self.tell(synced);
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (uid, id) = (self.open[at].uid, self.open[at].id);
        let synced = self.history.borrow().synced(Some(uid));
        self.store.sync(id).await.map_err(|e| failed("sync", &e))?;
        self.tell(synced);
        Ok(())
    }

    async fn close(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let open = self.open.remove(at);
        self.opens.borrow_mut().remove(&open.uid);
        self.settle();
        self.store.close(open.id).await.map_err(|e| failed("close", &e))
    }

    fn remove(&mut self) -> Result<(), String> {
        let path = self.path();
        let done = self.store.remove(&path);
        self.named("remove", done, NameChange::Remove(path))
    }

    fn rename(&mut self) -> Result<(), String> {
        let (from, to) = (self.path(), self.path());
        if from == to {
            return Ok(());
        }
        let done = self.store.rename(&from, &to);
        self.named("rename", done, NameChange::Rename(from, to))
    }

    fn link(&mut self) -> Result<(), String> {
        let (from, to) = (self.path(), self.path());
        let uid = self.history.borrow().names().get(&from).copied().flatten();
        let done = self.store.link(&from, &to);
        self.named("link", done, NameChange::Name(to, uid))
    }

    /// Makes or removes a directory, or renames one with its content.
    fn directory(&mut self) -> Result<(), String> {
        let (from, to) = (self.directory_path(), self.directory_path());
        match self.rng.below(4) {
            0 | 1 => {
                let done = self.store.make_directory(&from);
                self.named("mkdir", done, NameChange::Name(from, None))
            }
            2 if from != to => {
                let done = self.store.rename(&from, &to);
                self.named("rename of a directory", done, NameChange::Rename(from, to))
            }
            _ => {
                let done = self.store.remove_directory(&from);
                self.named("rmdir", done, NameChange::Remove(from))
            }
        }
    }

    /// Checks that a read returns what was written, whether it comes from memory or the drive.
    async fn read(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let Open { uid, id, content, .. } = &self.open[at];
        let from = self.rng.below(content.size() + 1);
        let count = self.rng.below(40_000);
        let data = self.store.read(*id, from, count as usize).await;
        let data = data.map_err(|e| failed("read", &e))?.to_vec();
        let whole = data.len() as u64 == count.min(content.size() - from);
        match whole && content.holds_or_zeros(*uid, from, &data, content.zeros()) {
            true => Ok(()),
            false => {
                let message = format!("{count} bytes from {from} are not what was written");
                Err(format!("file {} of the model: {message}", *uid))
            }
        }
    }

    async fn work(mut self) -> Result<(), String> {
        let directory = format!("c{}", self.number);
        self.store.make_directory(&directory).map_err(|e| failed("mkdir", &e))?;
        self.tell(Event::Names(NameChange::Name(directory, None)));
        for _ in 0..OPERATIONS {
            match self.rng.below(20) {
                0 | 1 => self.create()?,
                2..=6 => self.append().await?,
                7..=9 => self.sync().await?,
                10 => self.truncate().await?,
                11 => self.close().await?,
                12 => self.remove()?,
                13 => self.rename()?,
                14 => self.link()?,
                15 => self.directory()?,
                16 | 17 => self.declare_dead()?,
                _ => self.read().await?,
            }
            audit(&self.store)?;
        }
        while !self.open.is_empty() {
            self.close().await?;
            audit(&self.store)?;
        }
        Ok(())
    }
}

/// Whether every write fails for a time: in one run of five.
fn fails_for_a_time(case: Case) -> bool {
    case.seed % 5 == 3
}

/// Whether a few single writes fail: in another run of five.
fn fails_at_times(case: Case) -> bool {
    case.seed % 5 == 1
}

/// Whether writes fail in this run: then the store may fail, but must lose nothing.
fn fails(case: Case) -> bool {
    fails_for_a_time(case) || fails_at_times(case)
}

/// Whether each half of the record ring has two zones, on a drive with enough zones: in one run
/// of six.
fn has_long_halves(case: Case) -> bool {
    case.seed % 6 == 4
}

fn options(defect: Option<StoreDefect>, seed: u64) -> Options {
    let policy = Policy::NAMES[(seed % Policy::NAMES.len() as u64) as usize].1;
    Options {
        variant: StoreVariant { defect },
        policy,
        commit_interval: 50_000_000,
        ..Options::default()
    }
}

impl Subject for KvSubject {
    type History = History;
    type Expected = Expected;

    fn name(&self) -> String {
        match self.defect {
            None => "kv".to_owned(),
            Some(defect) => format!("kv:{defect:?}"),
        }
    }

    fn drive(&self, case: Case) -> Geometry {
        let mut rng = Rng::new(case.seed ^ 0x57_09e);
        let small = rng.one_in(3);
        let blocks = 16 + rng.below(60);
        let capacity = if small { blocks * 8 } else { blocks };
        let active = [None, Some(4), Some(6), Some(14)][rng.below(4) as usize];
        let transfer = if small { 8 * (1 + rng.below(16)) } else { 1 + rng.below(16) };
        let zones = 12 + 2 * rng.below(10) as u32;
        let zones = if has_long_halves(case) { zones + 24 } else { zones };
        let geometry = Geometry {
            block_size: ByteLen(if small { 512 } else { 4096 }),
            max_open: active,
            max_active: active,
            max_transfer: Some(BlockCount(transfer)),
            unwritten_reads_fail: true,
            volatile_cache: case.volatile,
            ..Geometry::unlimited(zones, capacity.next_power_of_two(), capacity)
        };
        fewer_open(geometry, case.seed)
    }

    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, case: Case) -> Result<(), String> {
        let rt2 = rt.clone();
        let made = rt.block_on(async move {
            let geometry = device.geometry();
            let zone = geometry.bytes(geometry.zone_capacity).0;
            let half_bytes = Some(if has_long_halves(case) { 2 * zone } else { 1 });
            let options = FormatOptions { half_bytes, ..FormatOptions::default() };
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
        let (rt2, defect) = (rt.clone(), self.defect);
        rt.block_on(async move {
            let opened = Store::open(&rt2, device, options(defect, case.seed)).await;
            let store = match opened {
                // The open failed because no zone of the ring took a record.
                Err(error) if fails(case) && error.kind() == ErrorKind::Io => return Ok(()),
                opened => opened.map_err(|error| failed("open", &error))?,
            };
            audit(&store)?;
            let bytes: Rc<RefCell<BTreeMap<Uid, u64>>> = Rc::default();
            let opens: Rc<RefCell<BTreeSet<Uid>>> = Rc::default();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let client = Client {
                        store: store.clone(),
                        history: history.clone(),
                        bytes: bytes.clone(),
                        opens: opens.clone(),
                        number,
                        rng: Rng::new(case.seed ^ (number + 1) << 32),
                        open: Vec::new(),
                    };
                    rt2.spawn(client.work())
                })
                .collect();
            // A store that failed, or has no space because zones failed, may end the run: its
            // promises are checked all the same.
            let may_end =
                |why: &str| fails(case) && (store.failed().is_some() || why.contains("no space"));
            for client in clients {
                client.await.or_else(|why| if may_end(&why) { Ok(()) } else { Err(why) })?;
            }
            let synced = history.borrow().all_synced();
            match store.stop().await.map_err(|error| failed("stop", &error)) {
                Ok(()) => synced.into_iter().for_each(|event| history.borrow_mut().tell(event)),
                Err(why) if may_end(&why) => {}
                Err(why) => return Err(why),
            }
            Ok(())
        })
    }

    fn provoke(&self, emulator: &Emulator, case: Case) {
        let mut rng = Rng::new(case.seed ^ 0xb2_1c57);
        let (first, count) = (1 + rng.below(200), 4 + rng.below(30));
        // These faults name no place, so the drive cannot refuse them.
        let fault = |kind, nth| emulator.inject(Fault::new(kind).when(When::Nth(nth)).times(1));
        for nth in (first..first + count).filter(|_| fails_for_a_time(case)) {
            let _ = fault(FaultKind::WriteError, nth);
        }
        for _ in (0..1 + rng.below(3)).filter(|_| fails_at_times(case)) {
            let kind = [FaultKind::WriteError, FaultKind::WriteTorn][rng.below(2) as usize];
            let _ = fault(kind, 1 + rng.below(300));
        }
    }

    fn mark(history: &History) -> usize {
        history.len()
    }

    fn expect(&self, history: &History, mark: usize) -> Expected {
        history.expect(mark)
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Expected,
    ) -> Result<(), String> {
        // Faults strike only during the run: the store is reopened on a drive without faults.
        drive.clear_faults(None).map_err(|error| error.to_string())?;
        let (rt2, expected) = (rt.clone(), expected.clone());
        let options = options(self.defect, case.seed);
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        rt.block_on(async move {
            let checks = case.seed.is_multiple_of(4);
            expected.hold(&rt2, device, options, case.seed, checks).await
        })
    }
}
