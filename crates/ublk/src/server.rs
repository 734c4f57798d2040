//! A served device, from its start to its end.

use crate::backend::{Backend, Done, Properties};
use crate::control::Control;
use crate::kept;
use crate::queue::Queue;
use crate::request::{Operation, Request};
use furrow_rt::{Clock, Nanos, Notify, PAGE_SIZE, Pages, Pool, Rt, Source, either, within};
use furrow_zone::{Error, ErrorKind};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of requests in flight at once.
pub(crate) const DEPTH: u16 = 64;

/// Number of pages kept for reuse: enough for four of the largest writes.
const PAGES: usize = 1024;

/// Nanoseconds that udev may take to make a node.
const NODE_PATIENCE: u64 = 5 * Nanos::SECOND;

/// Nanoseconds that the kernel may take to start a device; it reads from the device during
/// the start.
const START_PATIENCE: u64 = 120 * Nanos::SECOND;

/// Nanoseconds that requests may take to end after the device was stopped.
const STOP_PATIENCE: u64 = 30 * Nanos::SECOND;

/// Options for making a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// N of `/dev/ublkbN`; `None` leaves the choice to the kernel.
    pub number: Option<u32>,
    /// With a key, the device outlives a server that is killed. Its requests wait until a server
    /// with the same key takes the device over, and that server gets the unanswered requests again.
    /// So carrying out a request twice must do no harm, which is true for a volume, but not for a
    /// zoned drive.
    pub kept_for: Option<u64>,
}

/// A block device that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The number of the device.
    pub number: u32,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/dev/ublkb{}", self.number)
    }
}

/// The server of one block device. It must run on the thread that started it.
pub struct Server<B: Backend>(Rc<Inner<B>>);

struct Inner<B> {
    rt: Rt,
    this: Weak<Inner<B>>,
    backend: B,
    properties: Properties,
    device: Device,
    queue: RefCell<Option<Queue>>,
    event: Arc<OwnedFd>,
    pool: Pool,
    /// Number of tags that the kernel still uses.
    tags: Cell<u16>,
    /// The error with which a tag ended, if it was not just the end of the device.
    failed: Cell<Option<Errno>>,
    /// Notified when the kernel no longer uses any tag.
    over: Notify,
}

impl<B: Backend> Server<B> {
    /// Makes a block device for `backend`, and serves it on the executor `rt`, whose clock must be
    /// real. First removes the devices that killed servers have left.
    ///
    /// # Errors
    /// `Unsupported` if the kernel has no ublk, or cannot have such a device; `Denied`; `Exists` if
    /// the number is taken; `Busy` if another process serves the kept device; `Invalid` if the kept
    /// device does not match `backend`, or the clock is virtual; `Io`. After an error no device is
    /// left, except for one that was kept.
    pub async fn start(rt: &Rt, backend: B, options: Options) -> Result<Server<B>, Error> {
        if rt.config().clock == Clock::Virtual {
            return Err(Error::new(ErrorKind::Invalid, "a block device needs a real clock"));
        }
        let properties = backend.properties();
        let mut control = Control::open()?;
        control.remove_left();
        let zoned = properties.zones.is_some();
        let waiting = match options.kept_for {
            Some(key) => kept::waiting(rt, key).await?.map(|device| device.number),
            None => None,
        };
        if let Some(number) = waiting {
            kept::check(&mut control, number, &properties)?;
            let until = rt.now().after(NODE_PATIENCE);
            while let Err(error) = control.start_recovery(number) {
                if error.kind() != ErrorKind::Busy || rt.now() >= until {
                    return Err(error);
                }
                rt.sleep(10 * Nanos::MILLI).await;
            }
        }
        let device = match waiting {
            Some(number) => Device { number },
            None => {
                let Options { number, kept_for } = options;
                let bytes = properties.transfer_bytes;
                let info = control.add(number, DEPTH, bytes, zoned, kept_for)?;
                if let Err(error) = control.set(info.device, &properties.parameters()) {
                    let _ = control.delete(info.device);
                    return Err(error);
                }
                Device { number: info.device }
            }
        };
        let is_kept = waiting.is_some();
        match Server::serve(rt, backend, properties, device.clone(), is_kept).await {
            Ok(server) => Ok(server),
            // The requests of a kept device wait for another attempt.
            Err(error) if is_kept => Err(error),
            Err(error) => {
                let number = device.number;
                let _ = on_thread(rt, move || control.delete(number)).await;
                Err(error)
            }
        }
    }

    async fn serve(
        rt: &Rt,
        backend: B,
        properties: Properties,
        device: Device,
        is_kept: bool,
    ) -> Result<Server<B>, Error> {
        let number = device.number;
        let node = open_node(rt, number).await?;
        let failed = |what: &str, why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Io, format!("/dev/ublkc{number}: {what}: {why}"))
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed("eventfd", &errno))?;
        let event = Arc::new(event);
        let queue =
            Queue::open(node, DEPTH, &event).map_err(|error| failed("its queue", &error))?;
        let server = Server(Rc::new_cyclic(|this| Inner {
            rt: rt.clone(),
            this: this.clone(),
            backend,
            properties,
            device,
            queue: RefCell::new(Some(queue)),
            event: event.clone(),
            pool: Pool::new(PAGES),
            tags: Cell::new(DEPTH),
            failed: Cell::new(None),
            over: Notify::new(),
        }));
        rt.add_source(Rc::new(Sender(Rc::downgrade(&server.0))));
        let (inner, engine) = (Rc::downgrade(&server.0), rt.clone());
        rt.spawn_detached(async move {
            loop {
                engine.readable(event.clone()).await;
                // Resets the event counter.
                let _ = rustix::io::read(&event, &mut [0u8; 8]);
                let Some(inner) = inner.upgrade() else { return };
                inner.take_arrivals();
            }
        });
        // The kernel reads from the device before it answers, so this thread must serve
        // requests meanwhile.
        let starting = on_thread(rt, move || match is_kept {
            true => Control::open()?.end_recovery(number),
            false => Control::open()?.start(number),
        });
        let started = either(within(rt, START_PATIENCE, starting), server.gone()).await;
        let error = match started {
            Ok(Some(Ok(()))) => return Ok(server),
            Ok(Some(Err(error))) => error,
            Ok(None) => failed("start", &"the kernel does not answer"),
            Err(()) => {
                let errno = server.0.failed.get().unwrap_or(Errno::NODEV);
                failed("the kernel refuses its queue", &errno)
            }
        };
        match is_kept {
            true => drop(server.0.queue.take()),
            false => drop(server.end().await),
        }
        Err(error)
    }

    /// The block device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits until the kernel no longer uses this server, because another process has removed
    /// the device.
    pub async fn gone(&self) {
        while self.0.tags.get() > 0 {
            self.0.over.wait().await;
        }
    }

    /// Removes the block device, after its dirty pages were written. A file system that is still
    /// mounted on the device then gets errors.
    ///
    /// # Errors
    /// `Io`, or an error of opening `/dev/ublk-control`. In that case, the kernel removes the
    /// device when the process ends.
    pub async fn stop(self) -> Result<(), Error> {
        let number = self.0.device.number;
        self.end().await?;
        on_thread(&self.0.rt.clone(), move || Control::open()?.delete(number)).await
    }

    /// Stops the device and closes its queue.
    async fn end(&self) -> Result<(), Error> {
        let (rt, number) = (self.0.rt.clone(), self.0.device.number);
        let stopped = on_thread(&rt, move || Control::open()?.stop(number)).await;
        let ended = within(&rt, STOP_PATIENCE, self.gone()).await;
        drop(self.0.queue.take());
        match (stopped, ended) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(())) => Ok(()),
            (Ok(()), None) => {
                let what = format!("{}: requests did not end", self.0.device);
                Err(Error::new(ErrorKind::Io, what))
            }
        }
    }
}

impl<B: Backend> Inner<B> {
    /// Starts a task for each request that has come. Returns true if there were any.
    fn take_arrivals(&self) -> bool {
        let mut arrivals = Vec::new();
        if let Some(queue) = &mut *self.queue.borrow_mut() {
            queue.arrivals(&mut arrivals);
        }
        for (tag, result) in &arrivals {
            match result {
                0 => {
                    let Some(this) = self.this.upgrade() else { return false };
                    let tag = *tag;
                    self.rt.spawn_detached(async move { this.serve(tag).await });
                }
                error if *error < 0 => self.end_tag(Errno::from_raw_os_error(-error)),
                // The kernel must not answer a fetch with any other number.
                _ => self.end_tag(Errno::PROTO),
            }
        }
        !arrivals.is_empty()
    }

    /// Records that the kernel no longer uses a tag, because of `errno`.
    fn end_tag(&self, errno: Errno) {
        if errno != Errno::NODEV {
            self.failed.set(Some(errno));
        }
        self.tags.set(self.tags.get().saturating_sub(1));
        if self.tags.get() == 0 {
            self.over.notify_all();
        }
    }

    /// Carries out the request of `tag` and answers it.
    async fn serve(&self, tag: u16) {
        let (result, appended) = match self.carry_out(tag).await {
            Ok(answer) => answer,
            Err(errno) => (-errno.raw_os_error(), 0),
        };
        if let Some(queue) = &mut *self.queue.borrow_mut() {
            queue.answer(tag, result, appended);
        }
    }

    /// Carries out the request of `tag`. Returns the bytes done, and the first sector of an append.
    async fn carry_out(&self, tag: u16) -> Result<(i32, u64), Errno> {
        let descriptor = self.with_queue(|queue| Ok(queue.request(tag)))?;
        let request = Request::parse(descriptor, &self.properties)?;
        let bytes = request.bytes();
        let mut data = Pages::new();
        if matches!(request.operation, Operation::Write | Operation::Append) {
            data.extend((0..bytes.div_ceil(PAGE_SIZE)).map(|_| self.pool.take_dirty()));
            if let Some(last) = data.last_mut().filter(|_| !bytes.is_multiple_of(PAGE_SIZE)) {
                last.make_mut().fill(0);
            }
            self.with_queue(|queue| queue.take_payload(tag, bytes, &mut data))?;
        }
        match self.backend.carry_out(request, data).await? {
            Done::Plain => Ok((bytes as i32, 0)),
            Done::Appended(sector) => Ok((bytes as i32, sector)),
            Done::Read(pages) => {
                self.with_queue(|queue| queue.give_payload(tag, bytes, &pages))?;
                Ok((bytes as i32, 0))
            }
            Done::Report(zones) => {
                self.with_queue(|queue| queue.give_bytes(tag, &zones))?;
                // The kernel's buffer may be larger than the report. The kernel ends the request
                // only if the answer covers the whole buffer, and cuts a longer answer off.
                Ok((self.properties.transfer_bytes as i32, 0))
            }
        }
    }

    fn with_queue<T>(&self, act: impl FnOnce(&Queue) -> Result<T, Errno>) -> Result<T, Errno> {
        self.queue.borrow().as_ref().map_or(Err(Errno::NODEV), act)
    }
}

impl<B> Drop for Inner<B> {
    fn drop(&mut self) {
        // Wakes and so ends the task that waits for the event.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// Sends answers and takes requests whenever the executor polls its sources.
struct Sender<B>(Weak<Inner<B>>);

impl<B: Backend> Source for Sender<B> {
    fn poll(&self) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        let sent = match &mut *inner.queue.borrow_mut() {
            Some(queue) => queue.has_unsent() && queue.submit(),
            None => return false,
        };
        inner.take_arrivals() | sent
    }
}

/// Opens the character device; udev may still have to make its node.
async fn open_node(rt: &Rt, number: u32) -> Result<File, Error> {
    let path = format!("/dev/ublkc{number}");
    let until = rt.now().after(NODE_PATIENCE);
    loop {
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(node) => return Ok(node),
            Err(error) if rt.now() >= until => {
                return Err(Error::new(ErrorKind::Io, format!("{path}: {error}")));
            }
            Err(_) => rt.sleep(10 * Nanos::MILLI).await,
        }
    }
}

/// Makes a blocking call on a separate thread.
pub(crate) async fn on_thread<T: Send + 'static>(
    rt: &Rt,
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let failed = |why: &dyn std::fmt::Display| Error::new(ErrorKind::Io, format!("ublk: {why}"));
    let event =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed(&e))?;
    let (event, answer) = (Arc::new(event), Arc::new(Mutex::new(None)));
    let (theirs, place) = (event.clone(), answer.clone());
    std::thread::Builder::new()
        .name("furrow-ublk".into())
        .spawn(move || {
            let result = call();
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            let _ = rustix::io::write(&theirs, &1u64.to_ne_bytes());
        })
        .map_err(|error| failed(&error))?;
    loop {
        rt.readable(event.clone()).await;
        if let Some(result) = answer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return result;
        }
        let _ = rustix::io::read(&event, &mut [0u8; 8]);
    }
}
