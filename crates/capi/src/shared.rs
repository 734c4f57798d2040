//! A store that is open in this process, and its callers' access to it.

use crate::control::Control;
use crate::engine::{Engine, Source, stopped};
use crate::error::{Failure, Outcome, furrow_kind};
use crate::process::{check_fork, config, lock, nice, notice_forks};
use crate::reader::Reader;
use crate::record::{Recorder, recorded};
use crate::tally::{Counted, Tally};
pub(crate) use furrow_drives::open as open_drive;
use furrow_kv::trace::Op;
use furrow_kv::{FormatOptions, Options, Store};
use furrow_rt::{Pool, Port, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Maximum number of pages for copies of callers' bytes, in addition to those of the engine.
const PAGES: usize = 16 << 10;

/// Open stores by the name of their drive.
static OPEN: Mutex<BTreeMap<String, Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// A function that changes options.
type Change = Box<dyn Fn(&mut Options) + Send + Sync>;

/// The change of every store's options that a test has set.
static CHANGE: OnceLock<Change> = OnceLock::new();

/// Lets `change` modify the options of every store that is opened from now on. It is for tests that
/// build in a defect, to show that another test notices it; this library never calls it. Returns
/// false if another change was set before.
pub fn change_options(change: impl Fn(&mut Options) + Send + Sync + 'static) -> bool {
    CHANGE.set(Box::new(change)).is_ok()
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

/// A name for a drive; it is the same whatever path the caller gives.
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
            // Each read-only view is separate. It has no name, since no other caller may share it
            // as if it were the open store.
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

    /// The store on `device`, which is opened if this process does not have it open already. If it
    /// is opened now and `record` names a file, its calls are recorded there.
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
        if let Some(recorder) = shared.recorder.clone() {
            shared.now(Counted::Other, move |store| recorder.found(store))?;
        }
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
            // No other thread can change the count now, because the list of open stores is locked.
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

    /// Like [`Shared::call`], for a function that does not wait for the drive.
    pub(crate) fn now<T: Send + 'static>(
        &self,
        what: Counted,
        f: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
    ) -> Outcome<T> {
        self.call(what, move |store| std::future::ready(f(&store)))
    }
}
