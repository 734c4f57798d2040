//! A store that is open in this process, and its callers' access to it.

use crate::control::{Control, Source};
use crate::error::{Failure, Outcome, furrow_kind};
use crate::reader::Reader;
use crate::record::{Recorder, recorded};
use crate::tally::{Counted, Tally};
pub(crate) use furrow_drives::open as open_drive;
use furrow_kv::trace::Op;
use furrow_kv::{FormatOptions, Frozen, Options, Store};
use furrow_rt::{Config, Pool, Port, Rt, Stopped};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind, ZonedDevice};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::future::Future;
use std::io::Read as _;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};

/// Maximum number of pages for copies of callers' bytes, in addition to those of the engine.
const PAGES: usize = 16 << 10;

/// True in the child of a fork.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Open stores by the name of their drive.
static OPEN: Mutex<BTreeMap<String, Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// A function that changes options.
type Change = Box<dyn Fn(&mut Options) + Send + Sync>;

/// The change of every store's options that a test has set.
static CHANGE: OnceLock<Change> = OnceLock::new();

/// Lets `change` modify the options of every store that is opened from now on. It is for tests that
/// build a defect in, to show that another test notices it; nothing in this library calls it.
/// Returns false if another change was set before.
pub fn change_options(change: impl Fn(&mut Options) + Send + Sync + 'static) -> bool {
    CHANGE.set(Box::new(change)).is_ok()
}

unsafe extern "C" {
    // POSIX: https://pubs.opengroup.org/onlinepubs/9699919799/functions/pthread_atfork.html
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> i32;
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Registers the handler for forks.
fn notice_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function that is passed lives as long as the process; it stores to an atomic,
        // which is safe between fork and exec.
        let failed = unsafe { pthread_atfork(None, None, Some(in_child)) };
        assert!(failed == 0, "no memory to register the handler of forks");
    });
}

/// Fails if this process is the child of a fork.
pub(crate) fn check_fork() -> Outcome {
    if !FORKED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let message = "the store belongs to the process that this one was forked from: a program that \
                   forks and uses stores must exec";
    Err(Failure::new(furrow_kind::FURROW_FORKED, message))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded values are consistent after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The values that the engine's thread owns.
pub(crate) struct Engine {
    pub(crate) store: Store,
    /// Views that clients of the control socket read, by the views' numbers.
    pub(crate) views: RefCell<BTreeMap<u64, Rc<Frozen>>>,
    /// The drive, which lives as long as the store.
    _device: Rc<dyn ZonedDevice>,
}

/// An open store. The last user closes it.
pub(crate) struct Shared {
    /// The engine; `None` if the store is only read.
    port: Option<Port<Engine>>,
    pub(crate) reader: Option<Reader>,
    pub(crate) pages: Pool,
    /// The name of the store's drive.
    name: String,
    uuid: String,
    label: String,
    pub(crate) locks: Mutex<BTreeSet<String>>,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) tally: Arc<Tally>,
    /// The nice value of the thread that opened the store, and so of the thread that serves it.
    nice: i32,
    control: Mutex<Option<Control>>,
}

/// The nice value of this thread: a higher value is a lower priority.
fn nice() -> i32 {
    // On Linux this is the value of the calling thread.
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// Configuration with real time and an unpredictable seed.
pub(crate) fn config() -> Outcome<Config> {
    let mut seed = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed));
    read.map_err(|why| Failure::new(furrow_kind::FURROW_IO, format!("/dev/urandom: {why}")))?;
    Ok(Config { seed: u64::from_ne_bytes(seed), ..Config::real() })
}

/// A name that stays the same whichever name a drive is given by.
fn name_of(spec: &DeviceSpec) -> String {
    let path = spec.path().and_then(|path| std::fs::canonicalize(path).ok());
    path.map_or_else(|| spec.to_string(), |path| path.display().to_string())
}

fn start(rt: &Rt, spec: &DeviceSpec, mut options: Options) -> Result<Engine, Error> {
    if let Some(change) = CHANGE.get() {
        change(&mut options);
    }
    let device = open_drive(rt, spec, Access::ReadWrite)?;
    let drive = device.clone();
    let in_memory = matches!(spec, DeviceSpec::Memory(_));
    let (inner, theirs) = (rt.clone(), device.clone());
    let store = rt.block_on(async move {
        if in_memory {
            Store::format(&inner, theirs.clone(), &FormatOptions::default()).await?;
        }
        Store::open(&inner, theirs.clone(), options).await
    });
    let store = store.map_err(|error| match error.kind() {
        ErrorKind::WrongFormat => {
            let hint = "furrow kv ls says what the drive holds, furrow kv mkfs makes a store on an \
                        empty one";
            Error::new(ErrorKind::WrongFormat, format!("{error}: {hint}"))
        }
        _ => error,
    })?;
    Ok(Engine { store, views: RefCell::default(), _device: drive })
}

pub(crate) fn stopped(why: Stopped) -> Failure {
    Failure::new(furrow_kind::FURROW_IO, why.to_string())
}

fn parse(device: &str) -> Outcome<DeviceSpec> {
    device.parse().map_err(|error| Failure::invalid(format!("{device}: not a device: {error}")))
}

/// Makes a store on an empty drive.
pub(crate) fn format(device: &str, label: String) -> Outcome {
    notice_forks();
    check_fork()?;
    let spec = parse(device)?;
    let rt = Rt::new(config()?);
    let engine = rt.clone();
    let made = open_drive(&rt, &spec, Access::ReadWrite).and_then(|drive| {
        let options = FormatOptions { label, ..FormatOptions::default() };
        rt.block_on(async move { Store::format(&engine, drive, &options).await })
    });
    rt.clear();
    Ok(made.map(drop)?)
}

impl Shared {
    /// Opens a view of the store on `device`, which is only read.
    pub(crate) fn open_to_read(device: &str) -> Outcome<Arc<Shared>> {
        notice_forks();
        check_fork()?;
        let spec = parse(device)?;
        let name = name_of(&spec);
        let (reader, uuid, label) = Reader::open(&spec, &name)?;
        Ok(Arc::new(Shared {
            port: None,
            reader: Some(reader),
            pages: Pool::new(0),
            // Each read-only view is separate. The view has no name, since nobody may share it as
            // if it were the open store.
            name: String::new(),
            uuid,
            label,
            locks: Mutex::default(),
            recorder: None,
            tally: Arc::default(),
            nice: nice(),
            control: Mutex::default(),
        }))
    }

    /// The port to the engine.
    pub(crate) fn port(&self) -> Outcome<&Port<Engine>> {
        let message = "the store was opened to be read only (ro)";
        let failure = || Failure::new(furrow_kind::FURROW_READ_ONLY, message);
        self.port.as_ref().ok_or_else(failure)
    }

    /// The store on `device`: the one that this process has open already, or else one opened now.
    /// If it is opened now, its calls are recorded in the file `record`, if one is given.
    pub(crate) fn open(
        device: &str,
        options: Options,
        record: Option<&str>,
    ) -> Outcome<Arc<Shared>> {
        notice_forks();
        check_fork()?;
        let spec = parse(device)?;
        let name = name_of(&spec);
        let mut open = lock(&OPEN);
        if let Some(shared) = open.get(&name).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        let port = Port::start(config()?, move |rt| start(rt, &spec, options))?;
        let about = port.try_call(|_, engine| {
            std::future::ready((engine.store.uuid().to_string(), engine.store.label().to_owned()))
        });
        let (uuid, label) = about.map_err(stopped)?;
        let shared = Arc::new(Shared {
            port: Some(port.clone()),
            reader: None,
            pages: Pool::new(PAGES),
            name: name.clone(),
            uuid,
            label,
            locks: Mutex::default(),
            recorder: record.map(Recorder::create).transpose()?,
            tally: Arc::default(),
            nice: nice(),
            control: Mutex::default(),
        });
        *lock(&shared.control) = Control::start(Source {
            port,
            tally: shared.tally.clone(),
            device: shared.name.clone(),
            uuid: shared.uuid.clone(),
            label: shared.label.clone(),
        });
        shared.record_found()?;
        open.insert(name, Arc::downgrade(&shared));
        Ok(shared)
    }

    /// Ends one user's access to the store; the last user makes everything durable and closes
    /// the store.
    pub(crate) fn leave(shared: Arc<Shared>) -> Outcome {
        if let Err(failure) = check_fork() {
            // The store's threads are in the parent process: closing would wait for them forever.
            std::mem::forget(shared);
            return Err(failure);
        }
        let mut open = lock(&OPEN);
        if Arc::strong_count(&shared) > 1 {
            // Nobody else can change the count now, because the list of open stores is locked.
            drop(shared);
            return Ok(());
        }
        // From here on, the control socket takes no more requests.
        drop(lock(&shared.control).take());
        let Some(port) = shared.port.clone() else { return Ok(()) };
        let stop = || {
            let ended = port.try_stop(|_, engine| {
                let store = engine.store.clone();
                async move { store.stop().await }
            });
            match ended {
                Ok(result) => Ok(result?),
                Err(why) => Err(stopped(why)),
            }
        };
        let recorder = shared.recorder.as_deref();
        let ended = recorded(recorder, stop, || None, |_| Op::SyncAll);
        recorder.into_iter().for_each(Recorder::end);
        // Only from now on may the store be opened again.
        open.remove(&shared.name);
        ended
    }

    /// Runs a function on the engine and waits for the result. The calling thread runs the engine
    /// itself, unless another thread has it or the caller has a low priority.
    pub(crate) fn call<T, F>(
        &self,
        what: Counted,
        f: impl FnOnce(Store) -> F + Send + 'static,
    ) -> Outcome<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        check_fork()?;
        let caller = std::thread::current().id();
        let run = move |_: &Rt, engine: &Engine| {
            let hop = std::thread::current().id() != caller;
            let future = f(engine.store.clone());
            async move { (hop, future.await) }
        };
        let port = self.port()?;
        let result = if nice() > self.nice {
            self.tally.count_handed();
            port.try_call_by_others(run)
        } else {
            port.try_call(run)
        };
        let (hop, result) = result.map_err(stopped)?;
        self.tally.count(what, hop);
        Ok(result?)
    }
    /// As [`Shared::call`], for a function that does not wait for the drive.
    pub(crate) fn now<T: Send + 'static>(
        &self,
        what: Counted,
        f: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
    ) -> Outcome<T> {
        self.call(what, move |store| std::future::ready(f(&store)))
    }
}
