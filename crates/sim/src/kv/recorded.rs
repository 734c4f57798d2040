//! Recorded runs of an engine under the crash harness. The calls of a program to its store are
//! repeated on a store whose drive loses power at each command; then names and contents must be as
//! promised (`promises`).
//!
//! Each thread of the recording is a task here. A call begins once all calls have ended that had
//! ended before it in the recording ([`Recording::causes`]). Calls that overlapped overlap here
//! too; the seed decides which of them gets the engine first. Failed calls and queries are left
//! out. Content is made up, and reads are compared with it.

use crate::crash::{Case, Subject};
use crate::kv::promises::{
    Change, Content, Event, Expected, History, NameChange, Uid, audit, bytes, failed,
};
use furrow_emu::Emulator;
use furrow_kv::trace::{Cause, Op, Record, Recording};
use furrow_kv::{FileId, FormatOptions, Options, Policy, PreparedAppend, Store};
use furrow_policy::{StoreDefect, StoreVariant};
use furrow_rt::{Notify, PAGE_SIZE, Page, Pool, Rng, Rt};
use furrow_zone::{BlockCount, ByteLen, Geometry, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of bytes per read.
const READ_MAX: u64 = 1 << 20;

/// A recorded run under the crash harness.
#[derive(Clone)]
pub struct RecordedSubject {
    name: String,
    recording: Arc<Recording>,
    causes: Arc<Vec<Cause>>,
    /// Peak number of blocks in the files, judged by the order of the calls.
    peak: u64,
    files: u64,
    /// The defect built in, if any.
    pub defect: Option<StoreDefect>,
}

/// A path as the store lists it.
fn clean(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    parts.join("/")
}

impl RecordedSubject {
    /// The subject that replays the recording in `bytes`; `name` is the name of its file.
    ///
    /// # Errors
    /// If the bytes are not a recording, or the recording began on a store that held files.
    pub fn new(
        name: &str,
        bytes: &[u8],
        defect: Option<StoreDefect>,
    ) -> Result<RecordedSubject, String> {
        let recording = Recording::decode(bytes).map_err(|error| error.to_string())?;
        let (mut now, mut peak, mut files) = (BTreeMap::new(), 0, 0);
        let mut names = BTreeMap::new();
        let blocks = |size: u64| size.div_ceil(PAGE_SIZE as u64) + 1;
        for record in recording.records.iter().filter(|record| record.answer == 0) {
            match &record.op {
                Op::Found { path, .. } => {
                    return Err(format!(
                        "the recording began when {path} was there: record from an empty store on"
                    ));
                }
                Op::Create { file, path, .. } => {
                    now.insert(*file, 0);
                    names.insert(clean(path), *file).map(|before| now.remove(&before));
                }
                Op::Append { file, offset, len, .. } | Op::AppendAt { file, offset, len, .. } => {
                    now.insert(*file, offset + len);
                }
                Op::Rename { from, to } => {
                    if let Some(file) = names.remove(&clean(from)) {
                        names.insert(clean(to), file).map(|before| now.remove(&before));
                    }
                }
                Op::Remove { path } => {
                    names.remove(&clean(path)).map(|file| now.remove(&file));
                }
                _ => continue,
            }
            peak = peak.max(now.values().map(|size| blocks(*size)).sum());
            files = files.max(now.len() as u64);
        }
        if peak == 0 || peak > 1 << 20 {
            return Err(format!("files of {peak} blocks: replayed are 1 to 1048576"));
        }
        let causes = Arc::new(recording.causes());
        let (name, recording) = (name.to_owned(), Arc::new(recording));
        Ok(RecordedSubject { name, recording, causes, peak, files, defect })
    }

    /// The number of calls in the recording.
    pub fn calls(&self) -> usize {
        self.recording.records.len()
    }

    fn options(&self, seed: u64) -> Options {
        let policy = Policy::NAMES[(seed % Policy::NAMES.len() as u64) as usize].1;
        let defect = self.defect;
        Options {
            variant: StoreVariant { defect },
            policy,
            commit_interval: 50_000_000,
            ..Options::default()
        }
    }
}

/// A file of the recording, as the replay knows it.
struct Held {
    uid: Uid,
    id: FileId,
    content: Content,
    /// The file's end and last page, as kept by a program that wrote the whole file.
    end: Option<(u64, Page)>,
    /// Number of changes of the file in progress.
    changing: u32,
}

/// A replay in progress.
struct Run {
    store: Store,
    history: Rc<RefCell<History>>,
    recording: Arc<Recording>,
    causes: Arc<Vec<Cause>>,
    pages: Pool,
    files: RefCell<BTreeMap<u64, Held>>,
    /// Whether each call has ended, in the order in which the calls ended when recorded.
    ended: RefCell<Vec<bool>>,
    /// The number of leading calls in `ended` that have all ended.
    all_ended: Cell<usize>,
    progress: Notify,
    failed: RefCell<Option<String>>,
    /// Whether threads pause between their calls, as they did when recorded.
    gaps: bool,
}

impl Run {
    fn tell(&self, event: Event) {
        self.history.borrow_mut().tell(event);
    }

    fn with<T>(&self, file: u64, look: impl FnOnce(&mut Held) -> T) -> Result<T, String> {
        let mut files = self.files.borrow_mut();
        let held = files.get_mut(&file);
        Ok(look(held.ok_or_else(|| format!("file {file} was never made or opened"))?))
    }

    /// Records a change of a file's content that is about to happen.
    fn begin(&self, file: u64, change: Change) -> Result<(Uid, FileId), String> {
        let (uid, id) = self.with(file, |held| {
            held.content.apply(change);
            held.changing += 1;
            (held.uid, held.id)
        })?;
        self.tell(Event::Content(uid, change));
        Ok((uid, id))
    }

    fn finish(&self, file: u64, uid: Uid) -> Result<(), String> {
        self.history.borrow_mut().done(uid);
        self.with(file, |held| held.changing -= 1)
    }

    async fn cut(&self, file: u64, size: u64) -> Result<(), String> {
        if self.with(file, |held| held.content.size())? == size {
            return Ok(());
        }
        let (uid, id) = self.begin(file, Change::Cut(size))?;
        self.with(file, |held| held.end = None)?;
        self.store.truncate(id, size).await.map_err(|e| failed("truncate", &e))?;
        self.finish(file, uid)
    }

    /// Appends as the C library does: the caller prepares the append if its handle wrote the
    /// whole file.
    async fn append(&self, file: u64, offset: u64, count: u64, number: u32) -> Result<(), String> {
        let size = self.with(file, |held| held.content.size())?;
        if size != offset {
            return Err(format!("file {file} ends at {size}, recorded is an append at {offset}"));
        }
        let (uid, id) = self.begin(file, Change::Append { count, number })?;
        let data = bytes(uid, number, offset, count);
        let end = self.with(file, |held| held.end.take())?;
        if let Some((from, tail)) = end.filter(|(from, _)| *from == offset) {
            let prepared = PreparedAppend::new(from, &tail, &data, &self.pages);
            let after = (offset + count, prepared.tail().clone());
            let fits = self.store.append_prepared(id, prepared).await;
            if fits.map_err(|e| failed("append", &e))? {
                self.with(file, |held| held.end = Some(after))?;
                return self.finish(file, uid);
            }
        }
        self.store.append(id, &data).await.map_err(|e| failed("append", &e))?;
        self.finish(file, uid)
    }

    /// Checks that a read returns what was written, whether it comes from memory or the drive.
    async fn read(&self, file: u64, offset: u64, count: u64) -> Result<(), String> {
        let look = |held: &mut Held| (held.id, held.changing, held.content.size());
        let before = self.with(file, look)?;
        let count = count.min(READ_MAX);
        let data = self.store.read(before.0, offset, count as usize).await;
        let data = data.map_err(|e| failed("read", &e))?.to_vec();
        if before.1 > 0 || self.with(file, look)? != before {
            return Ok(());
        }
        let whole = data.len() as u64 == count.min(before.2.saturating_sub(offset));
        match whole && self.with(file, |held| held.content.holds(held.uid, offset, &data))? {
            true => Ok(()),
            false => Err(format!("file {file}: {count} bytes from {offset} are not as written")),
        }
    }

    fn hold(&self, file: u64, path: &str, id: FileId) -> Result<(), String> {
        match self.with(file, |held| held.id)? == id {
            true => Ok(()),
            false => Err(format!("{path} is not the file {file} that was opened by that name")),
        }
    }

    /// Runs `work`, which makes all earlier changes durable, and records that.
    async fn all_synced<F>(&self, work: impl FnOnce() -> F) -> Result<(), String>
    where
        F: Future<Output = furrow_zone::Result<()>>,
    {
        let synced = self.history.borrow().all_synced();
        work().await.map_err(|e| failed("sync of all", &e))?;
        synced.into_iter().for_each(|event| self.tell(event));
        Ok(())
    }

    /// Performs a call, and audits the store's accounts.
    async fn perform_audited(&self, index: usize) -> Result<(), String> {
        self.perform(index).await?;
        audit(&self.store)
    }

    async fn perform(&self, index: usize) -> Result<(), String> {
        let (store, record) = (&self.store, &self.recording.records[index]);
        let number = index as u32 + 1;
        match &record.op {
            Op::MakeDirectory { path } => {
                store.make_directory(path).map_err(|e| failed("mkdir", &e))?;
                self.tell(Event::Names(NameChange::Name(clean(path), None)));
            }
            Op::RemoveDirectory { path } => {
                store.remove_directory(path).map_err(|e| failed("rmdir", &e))?;
                self.tell(Event::Names(NameChange::Remove(clean(path))));
            }
            Op::Create { file, lifetime, path } => {
                let id = store.create(path, *lifetime).map_err(|e| failed("create", &e))?;
                let uid = self.history.borrow_mut().file();
                self.tell(Event::Names(NameChange::Name(clean(path), Some(uid))));
                let (content, end) = (Content::default(), Some((0, Page::zeroed())));
                let held = Held { uid, id, content, end, changing: 0 };
                self.files.borrow_mut().insert(*file, held);
            }
            Op::Open { file, path } => {
                let id = store.open_file(path).map_err(|e| failed("open", &e))?;
                self.hold(*file, path, id)?;
            }
            Op::Close { file } => {
                let id = self.with(*file, |held| held.id)?;
                store.close(id).await.map_err(|e| failed("close", &e))?;
            }
            Op::Append { file, offset, len, .. } => {
                self.append(*file, *offset, *len, number).await?;
            }
            Op::AppendAt { file, offset, len, .. } => {
                self.cut(*file, *offset).await?;
                self.append(*file, *offset, *len, number).await?;
            }
            Op::Truncate { file, size } => self.cut(*file, *size).await?,
            Op::Sync { file } => {
                let (uid, id) = self.with(*file, |held| (held.uid, held.id))?;
                let synced = self.history.borrow().synced(Some(uid));
                store.sync(id).await.map_err(|e| failed("sync", &e))?;
                self.tell(synced);
            }
            Op::SyncNames => {
                let synced = self.history.borrow().synced(None);
                store.sync_names().await.map_err(|e| failed("sync of names", &e))?;
                self.tell(synced);
            }
            Op::SyncAll => self.all_synced(|| store.sync_all()).await?,
            Op::SetLifetime { file, lifetime } => {
                let id = self.with(*file, |held| held.id)?;
                store.set_lifetime(id, *lifetime).map_err(|e| failed("lifetime", &e))?;
            }
            Op::SetFamily { path, family } => {
                store.set_family(path, family).map_err(|e| failed("family", &e))?;
            }
            Op::Rename { from, to } => {
                store.rename(from, to).map_err(|e| failed("rename", &e))?;
                self.tell(Event::Names(NameChange::Rename(clean(from), clean(to))));
            }
            Op::Link { from, to } => {
                store.link(from, to).map_err(|e| failed("link", &e))?;
                let uid = self.history.borrow().names().get(&clean(from)).copied().flatten();
                self.tell(Event::Names(NameChange::Name(clean(to), uid)));
            }
            Op::Remove { path } => {
                store.remove(path).map_err(|e| failed("remove", &e))?;
                self.tell(Event::Names(NameChange::Remove(clean(path))));
            }
            Op::Read { file, offset, len, .. } | Op::ReadBegin { file, offset, len, .. } => {
                self.read(*file, *offset, *len).await?;
            }
            Op::Found { .. }
            | Op::FoundDirectory { .. }
            | Op::Flush { .. }
            | Op::RangeSync { .. }
            | Op::ReadWait { .. }
            | Op::Stat { .. }
            | Op::List { .. } => {}
        }
        Ok(())
    }

    /// Waits until the first `after` calls have ended, in the order in which the calls ended when
    /// recorded. Returns false if a call failed.
    async fn may_begin(&self, after: u32) -> bool {
        loop {
            let progress = self.progress.wait();
            if self.failed.borrow().is_some() {
                return false;
            }
            if self.all_ended.get() >= after as usize {
                return true;
            }
            progress.await;
        }
    }

    fn end(&self, ended: u32) {
        let mut all = self.ended.borrow_mut();
        all[ended as usize] = true;
        let mut count = self.all_ended.get();
        while all.get(count).is_some_and(|ended| *ended) {
            count += 1;
        }
        self.all_ended.set(count);
        self.progress.notify_all();
    }

    /// Performs the calls of one thread.
    async fn thread(self: Rc<Self>, rt: Rt, calls: Vec<usize>) {
        for index in calls {
            let (record, cause) = (&self.recording.records[index], self.causes[index]);
            if !self.may_begin(cause.after).await {
                return;
            }
            if self.gaps {
                rt.sleep(record.gap).await;
            }
            let done = if record.answer == 0 { self.perform_audited(index).await } else { Ok(()) };
            if let Err(why) = done {
                let Record { order, op, .. } = record;
                let why = format!("call {order} ({}): {why}", op.name());
                self.failed.borrow_mut().get_or_insert(why);
            }
            self.end(cause.ended);
        }
    }
}

impl Subject for RecordedSubject {
    type History = History;
    type Expected = Expected;

    fn name(&self) -> String {
        // The subject as given on a command line, so that a failure can be replayed.
        match self.defect {
            None => format!("recorded --recording {}", self.name),
            Some(defect) => format!("recorded:{defect:?} --recording {}", self.name),
        }
    }

    /// Draws the drive's size: from barely enough space, where zones are cleaned all the time, to
    /// about three times as much.
    fn drive(&self, case: Case) -> Geometry {
        let mut rng = Rng::new(case.seed ^ 0x4e91a);
        let small = rng.one_in(3);
        let zones = 16 + 2 * rng.below(16);
        // The ring and cleaning need two zones each; each kind of file has an open zone.
        let wanted = self.peak * (14 + rng.below(20)) / 10 + 2 * self.files;
        let pages = (wanted / (zones - 10)).max(16);
        let capacity = if small { pages * 8 } else { pages };
        let active = [None, Some(4), Some(6), Some(14)][rng.below(4) as usize];
        let transfer = if small { 8 * (1 + rng.below(32)) } else { 1 + rng.below(32) };
        Geometry {
            block_size: ByteLen(if small { 512 } else { 4096 }),
            max_open: active,
            max_active: active,
            max_transfer: Some(BlockCount(transfer)),
            unwritten_reads_fail: true,
            volatile_cache: case.volatile,
            ..Geometry::unlimited(zones as u32, capacity.next_power_of_two(), capacity)
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
        let (rt2, options) = (rt.clone(), self.options(case.seed));
        let (recording, causes) = (self.recording.clone(), self.causes.clone());
        let mut threads: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, record) in recording.records.iter().enumerate() {
            threads.entry(record.thread).or_default().push(index);
        }
        // A thread's calls run in the order of their ends. Their numbers do not give that order: a
        // call is numbered when it gets the engine, and some calls never got it.
        threads.values_mut().for_each(|calls| calls.sort_by_key(|index| causes[*index].ended));
        rt.block_on(async move {
            let opened = Store::open(&rt2, device, options).await;
            let store = opened.map_err(|error| failed("open", &error))?;
            audit(&store)?;
            let run = Rc::new(Run {
                store,
                history,
                ended: RefCell::new(vec![false; recording.records.len()]),
                recording,
                causes,
                pages: Pool::new(256),
                files: RefCell::default(),
                all_ended: Cell::new(0),
                progress: Notify::new(),
                failed: RefCell::default(),
                gaps: case.seed.is_multiple_of(3),
            });
            let tasks: Vec<_> = threads
                .into_values()
                .map(|calls| rt2.spawn(run.clone().thread(rt2.clone(), calls)))
                .collect();
            for task in tasks {
                task.await;
            }
            if let Some(why) = run.failed.borrow().clone() {
                return Err(why);
            }
            run.all_synced(|| run.store.stop()).await
        })
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
        let (rt2, expected) = (rt.clone(), expected.clone());
        let options = self.options(case.seed);
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        rt.block_on(async move {
            let checks = case.seed.is_multiple_of(4);
            expected.hold(&rt2, device, options, case.seed, checks).await
        })
    }
}
