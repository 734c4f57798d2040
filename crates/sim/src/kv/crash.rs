//! The file store under the crash harness. Several clients create, append, sync, truncate, rename
//! and remove files; after a crash, names and contents must be as promised (`promises`).

use crate::crash::{Case, Subject};
use crate::kv::promises::{
    Change, Content, Event, Expected, History, NameChange, Uid, audit, bytes, failed,
};
use crate::limits::fewer_open;
use furrow_emu::{Emulator, Fault, FaultKind, When};
use furrow_kv::{FileId, FormatOptions, Lifetime, Options, Policy, Store};
use furrow_policy::{StoreDefect, StoreVariant};
use furrow_rt::{Rng, Rt};
use furrow_zone::{BlockCount, ByteLen, ErrorKind, Geometry, ZonedDevice};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const CLIENTS: u64 = 3;
const OPERATIONS: u64 = 60;
/// Names of each client: few, so that files get replaced.
const NAMES: u64 = 5;
/// Most bytes of an append.
const APPEND_MAX: u64 = 60_000;
/// Share of the store's space that files may hold, in percent.
const FILLED: u64 = 60;

/// The store under the crash harness.
#[derive(Clone, Copy, Debug, Default)]
pub struct KvSubject {
    /// Its defect, if any.
    pub defect: Option<StoreDefect>,
}

struct Client {
    store: Store,
    history: Rc<RefCell<History>>,
    /// Bytes of the existing files of all clients.
    bytes: Rc<RefCell<BTreeMap<Uid, u64>>>,
    number: u64,
    rng: Rng,
    open: Vec<(String, Uid, FileId, Content, u32)>,
}

impl Client {
    fn tell(&self, event: Event) {
        self.history.borrow_mut().tell(event);
    }

    /// Records a change of a file's content that is about to happen. Returns what the file then
    /// holds.
    fn change(&mut self, at: usize, change: Change) -> (Uid, FileId) {
        let (_, uid, id, content, _) = &mut self.open[at];
        content.apply(change);
        self.bytes.borrow_mut().insert(*uid, content.size());
        self.history.borrow_mut().tell(Event::Content(*uid, change));
        (*uid, *id)
    }

    fn path(&mut self) -> String {
        // Blob files are placed by policies, and the store remembers their families.
        let number = self.rng.below(NAMES);
        let kind = if number.is_multiple_of(3) { ".blob" } else { "" };
        format!("c{}/{number}{kind}", self.number)
    }

    fn create(&mut self) -> Result<(), String> {
        let path = self.path();
        // A file has one writer, and no file being written is replaced.
        if self.open.iter().any(|open| open.0 == path) {
            return Ok(());
        }
        let uid = self.history.borrow_mut().file();
        let lifetime = Lifetime::from_byte(self.rng.below(6) as u8).unwrap_or_default();
        let id = self.store.create(&path, lifetime).map_err(|e| failed("create", &e))?;
        self.forget(&path);
        self.tell(Event::Names(NameChange::Name(path.clone(), Some(uid))));
        self.bytes.borrow_mut().insert(uid, 0);
        self.open.push((path, uid, id, Content::default(), 0));
        Ok(())
    }

    /// The file at a path takes no space any more.
    fn forget(&self, path: &str) {
        if let Some(Some(uid)) = self.history.borrow().names().get(path) {
            self.bytes.borrow_mut().remove(uid);
        }
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
        let (_, _, _, content, appends) = &mut self.open[at];
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
        let keep = self.rng.below(self.open[at].3.size() + 1);
        let (uid, id) = self.change(at, Change::Cut(keep));
        self.store.truncate(id, keep).await.map_err(|e| failed("truncate", &e))?;
        self.history.borrow_mut().done(uid);
        Ok(())
    }

    async fn sync(&mut self) -> Result<(), String> {
        if self.open.is_empty() || self.rng.one_in(6) {
            let synced = self.history.borrow().synced(None);
            self.store.sync_names().await.map_err(|e| failed("sync of names", &e))?;
            self.tell(synced);
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (uid, id) = (self.open[at].1, self.open[at].2);
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
                self.tell(Event::Names(NameChange::Remove(path)));
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
                self.tell(Event::Names(NameChange::Rename(from, to)));
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("rename", &error)),
        }
    }

    /// A read returns what was written, whether it comes from memory or the drive.
    async fn read(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (path, uid, id, content, _) = &self.open[at];
        let from = self.rng.below(content.size() + 1);
        let count = self.rng.below(40_000);
        let data = self.store.read(*id, from, count as usize).await;
        let data = data.map_err(|e| failed("read", &e))?.to_vec();
        let whole = data.len() as u64 == count.min(content.size() - from);
        match whole && content.holds(*uid, from, &data) {
            true => Ok(()),
            false => Err(format!("{path}: {count} bytes from {from} are not what was written")),
        }
    }

    async fn work(mut self) -> Result<(), String> {
        let directory = format!("c{}", self.number);
        self.store.make_directory(&directory).map_err(|e| failed("mkdir", &e))?;
        self.tell(Event::Names(NameChange::Name(directory, None)));
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
            audit(&self.store)?;
        }
        while !self.open.is_empty() {
            self.close().await?;
            audit(&self.store)?;
        }
        Ok(())
    }
}

/// In one run of five every write fails for a time: the store may fail then, and loses nothing.
fn fails(case: Case) -> bool {
    case.seed % 5 == 3
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
        let geometry = Geometry {
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
        };
        fewer_open(geometry, case.seed)
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
        let (rt2, defect) = (rt.clone(), self.defect);
        rt.block_on(async move {
            let opened = Store::open(&rt2, device, options(defect, case.seed)).await;
            let store = opened.map_err(|error| failed("open", &error))?;
            audit(&store)?;
            let bytes: Rc<RefCell<BTreeMap<Uid, u64>>> = Rc::default();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let client = Client {
                        store: store.clone(),
                        history: history.clone(),
                        bytes: bytes.clone(),
                        number,
                        rng: Rng::new(case.seed ^ (number + 1) << 32),
                        open: Vec::new(),
                    };
                    rt2.spawn(client.work())
                })
                .collect();
            // A store that failed, or has no space because zones failed, has kept its promises.
            let may_end =
                |why: &str| fails(case) && (store.failed().is_some() || why.contains("no space"));
            for client in clients {
                client.await.or_else(|why| if may_end(&why) { Ok(()) } else { Err(why) })?;
            }
            let synced = history.borrow().synced(None);
            match store.stop().await.map_err(|error| failed("stop", &error)) {
                Ok(()) => history.borrow_mut().tell(synced),
                Err(why) if may_end(&why) => {}
                Err(why) => return Err(why),
            }
            Ok(())
        })
    }

    fn provoke(&self, emulator: &Emulator, case: Case) {
        let mut rng = Rng::new(case.seed ^ 0xb2_1c57);
        let (first, count) = (1 + rng.below(200), 4 + rng.below(30));
        for nth in (first..first + count).filter(|_| fails(case)) {
            // These faults name no place, so the drive cannot refuse them.
            let fault = Fault::new(FaultKind::WriteError).when(When::Nth(nth)).times(1);
            let _ = emulator.inject(fault);
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
        // The drive is well again.
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
