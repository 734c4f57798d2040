//! From mount to unmount: the request loop, signals, and the end.

use crate::channel::{self, Notifier, Transport};
use crate::endpoint::{self, Endpoint, Root, Unmount};
use crate::operations::Operations;
use crate::page_cache;
use crate::ring::{self, Rings, Running};
use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::signal::{SigSet, Signal};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that a busy mount gets to become free after its daemon was told to end.
const PATIENCE: Duration = Duration::from_secs(2);
const TRY_EVERY: Duration = Duration::from_millis(100);

/// A server whose mount has begun. Dropping this value tells the server that the mount has ended.
struct Served<S: Operations>(Arc<S>);

impl<S: Operations> Drop for Served<S> {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

/// A mount that the kernel has accepted. Until [`Session::run`] is called, only requests that come
/// by rings are answered.
pub struct Session<S: Operations> {
    /// The channel through which the kernel sends requests.
    device: Arc<OwnedFd>,
    server: Served<S>,
    /// Device number of the mount in the mount table.
    number: Option<String>,
    /// Whether the kernel has stopped sending requests.
    ended: Arc<AtomicBool>,
    /// The rings that serve requests; `None` if requests come by `/dev/fuse`.
    rings: Option<Running>,
    directory: PathBuf,
    /// Dropping this sender ends the thread of [`Session::write_back_every`].
    write_back: Option<Sender<()>>,
}

impl<S: Operations> Session<S> {
    /// Mounts at `directory` and negotiates the protocol with the kernel. From then on, rings serve
    /// the requests; without rings, the kernel queues requests for [`Session::run`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::mount`]; also an error if rings are required but the kernel has
    /// none, or the owner of the machine does not allow them. In all cases, nothing stays mounted.
    pub fn mount(server: S, endpoint: &Endpoint, directory: &Path) -> Result<Session<S>> {
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let server = Arc::new(server);
        let by_rings = || {
            ensure!(ring::is_allowed(), ring::help());
            Session::attempt(&server, endpoint, &directory, Some(Rings::new()?))
        };
        let by_channel = || Session::attempt(&server, endpoint, &directory, None);
        match endpoint.transport {
            Transport::Rings => by_rings(),
            Transport::Offered if ring::is_allowed() => by_rings().or_else(|error| {
                let session = by_channel()?;
                server.report(&format!("requests come by /dev/fuse: {error:#}"));
                Ok(session)
            }),
            Transport::Offered | Transport::Channel => by_channel(),
        }
    }

    fn attempt(
        server: &Arc<S>,
        endpoint: &Endpoint,
        directory: &Path,
        rings: Option<Rings>,
    ) -> Result<Session<S>> {
        let device = Arc::new(endpoint.mount(directory)?);
        let ready = || -> Result<Session<S>> {
            channel::handshake(&device, &**server, rings.is_some())?;
            let served = Served(server.clone());
            server.connected(Notifier::new(&device));
            let rings = rings.map(|rings| rings.start(server, device.clone())).transpose()?;
            if let Err(error) = page_cache::raise_limits(directory) {
                server.report(&format!(
                    "the kernel reads little ahead and keeps little dirty: {error:#}"
                ));
            }
            Ok(Session {
                device: device.clone(),
                server: served,
                number: endpoint::number_of(directory),
                ended: Arc::default(),
                rings,
                directory: directory.to_owned(),
                write_back: None,
            })
        };
        let session = ready();
        session.with_context(|| format!("{}: FUSE handshake", directory.display())).inspect_err(
            |_| {
                // Without a daemon, the mount would be dead. The unmount is forced, so that the
                // kernel does not wait for an answer: no thread reads requests here.
                let _ = endpoint::unmount(directory, Unmount::Force);
            },
        )
    }

    /// Whether requests come by rings.
    pub fn has_rings(&self) -> bool {
        self.rings.is_some()
    }

    /// The mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A value with which another thread can end this mount.
    pub fn ending(&self) -> Ending {
        let server = self.server.0.clone();
        Ending {
            directory: self.directory.clone(),
            number: self.number.clone(),
            ended: self.ended.clone(),
            pass_on: Box::new(move || server.pass_on()),
        }
    }

    /// Makes the kernel write back the dirty pages of this mount every `interval` nanoseconds; the
    /// value may change at any time. Otherwise the kernel keeps a dirty page for up to half a
    /// minute (vm.dirty_expire_centisecs). For a server [with a write-back
    /// cache](crate::FuseServer::with_writeback_cache). `log` gets a line for a failure, unless the
    /// attempt before failed in the same way.
    ///
    /// # Errors
    /// An error if no thread can be started.
    pub fn write_back_every(
        &mut self,
        interval: Arc<AtomicU64>,
        log: impl Fn(&str) + Send + 'static,
    ) -> Result<()> {
        let (sender, end) = channel::<()>();
        let directory = self.directory.clone();
        let work = move || {
            let (mut known, mut said) = (None, None);
            let mut last = Instant::now();
            loop {
                let rest = Duration::from_nanos(interval.load(Ordering::Relaxed))
                    .saturating_sub(last.elapsed());
                // Looks at least once a second, because the interval may have become shorter.
                match end.recv_timeout(rest.min(Duration::from_secs(1))) {
                    Err(RecvTimeoutError::Timeout) if rest > Duration::from_secs(1) => continue,
                    Err(RecvTimeoutError::Timeout) => last = Instant::now(),
                    _ => return,
                }
                let root = match known.take() {
                    Some(root) => Ok(root),
                    None => Root::of(&directory),
                };
                match root.and_then(|root| root.write_back().map(|()| root)) {
                    Ok(root) => (known, said) = (Some(root), None),
                    // The file system was unmounted, or its daemon is ending.
                    Err(Errno::NODEV | Errno::NOENT) => return,
                    Err(errno) if endpoint::is_end(errno) => return,
                    Err(errno) if said == Some(errno) => {}
                    Err(errno) => {
                        said = Some(errno);
                        log(&format!("writing back the kernel's cache: {errno}"));
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("write-back".to_owned());
        thread.spawn(work).context("cannot start a thread")?;
        self.write_back = Some(sender);
        Ok(())
    }

    /// Answers requests until the file system is unmounted, or the kernel aborts the connection.
    ///
    /// # Errors
    /// An error if the channel to the kernel fails, or a thread of a ring has died.
    pub fn run(self) -> Result<()> {
        let _ends = self.write_back;
        let at = || format!("{}: FUSE session", self.directory.display());
        let run = channel::serve(&self.device, &*self.server.0, self.rings.is_some());
        self.ended.store(true, Ordering::Relaxed);
        drop(self.server);
        run.with_context(at)?;
        self.rings.map_or(Ok(()), Running::join).with_context(at)
    }

    /// Like [`Session::run`], but on a separate thread.
    ///
    /// # Errors
    /// An error if no thread can be started.
    pub fn spawn(self) -> Result<Background> {
        let directory = self.directory.clone();
        let thread = std::thread::Builder::new()
            .name("fuse".to_owned())
            .spawn(move || self.run())
            .context("cannot start a thread")?;
        Ok(Background { directory, thread: Some(thread) })
    }
}

/// A mount that a thread of this process serves. Dropping this value unmounts it.
pub struct Background {
    directory: PathBuf,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Background {
    /// The mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Unmounts and waits until the last request is answered.
    ///
    /// # Errors
    /// An error if the mount stays busy for two seconds, or the session failed.
    pub fn unmount(mut self) -> Result<()> {
        let mut waited = Duration::ZERO;
        loop {
            match endpoint::unmount(&self.directory, Unmount::Plain) {
                // The mount may stay busy for a moment: the kernel releases a file some time after
                // its last user has closed it.
                Err(Errno::BUSY) if waited < PATIENCE => {
                    std::thread::sleep(TRY_EVERY / 10);
                    waited += TRY_EVERY / 10;
                }
                Err(errno) => return Err(anyhow!("{}: {errno}", self.directory.display())),
                Ok(()) => return self.join(),
            }
        }
    }

    fn join(&mut self) -> Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(anyhow!("{}: the FUSE thread died", self.directory.display())),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = endpoint::unmount(&self.directory, Unmount::Force);
            let _ = self.join();
        }
    }
}

/// The signals that ask a daemon to end.
pub struct Signals(SigSet);

impl Signals {
    /// Blocks SIGTERM, SIGINT and SIGHUP in this thread and in threads that it starts, so that
    /// [`Signals::unmount_on_signal`] receives them. Without `hangup_ends`, SIGHUP has no effect.
    /// Call this before any other thread exists.
    ///
    /// # Errors
    /// An error if the kernel refuses.
    pub fn block(hangup_ends: bool) -> Result<Signals> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block().context("cannot block signals")?;
        if !hangup_ends {
            // SIGHUP stays blocked, and no thread receives it.
            set.remove(Signal::SIGHUP);
        }
        Ok(Signals(set))
    }

    /// Starts a thread that calls `act` when the first signal arrives.
    ///
    /// # Errors
    /// An error if no thread can be started.
    pub fn on_first(self, act: impl FnOnce(&str) + Send + 'static) -> Result<()> {
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                if let Ok(signal) = self.0.wait() {
                    act(signal.as_str());
                }
            })
            .context("cannot start a thread")?;
        Ok(())
    }

    /// Starts a thread that ends a mount when a signal arrives: at once if the mount is free. If it
    /// is still busy after two seconds, in this mount namespace or another, its users are
    /// disconnected. [`Session::run`] then returns. `log` gets a line for each step.
    ///
    /// # Errors
    /// An error if no thread can be started.
    pub fn unmount_on_signal(
        self,
        ending: Ending,
        log: impl Fn(&str) + Send + 'static,
    ) -> Result<()> {
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                while let Ok(signal) = self.0.wait() {
                    log(&format!("{signal}: unmounting"));
                    match ending.end(&log) {
                        Ok(()) => return,
                        Err(error) => log(&format!("cannot unmount: {error:#}")),
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(())
    }
}

/// Ends a mount from a thread that does not answer the mount's requests.
pub struct Ending {
    directory: PathBuf,
    number: Option<String>,
    ended: Arc<AtomicBool>,
    pass_on: Box<dyn Fn() + Send>,
}

impl Ending {
    fn end(&self, log: &impl Fn(&str)) -> Result<()> {
        let mut waited = Duration::ZERO;
        let mut wait = || {
            std::thread::sleep(TRY_EVERY);
            waited += TRY_EVERY;
            waited < PATIENCE
        };
        loop {
            match endpoint::unmount(&self.directory, Unmount::Plain) {
                Err(Errno::BUSY) if wait() => {}
                Err(Errno::BUSY) => {
                    log("still in use: cutting off its users");
                    // Changes that were made through memory maps may be only in the kernel.
                    if let Ok(root) = std::fs::File::open(&self.directory) {
                        let _ = rustix::fs::syncfs(&root);
                    }
                    endpoint::unmount(&self.directory, Unmount::Force)?;
                    break;
                }
                // Another program has unmounted the file system already.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        // The file system may still be mounted in other mount namespaces, or detached and in use.
        while !self.ended.load(Ordering::Relaxed) {
            if !wait() {
                return self.cut_off(log);
            }
        }
        Ok(())
    }

    fn cut_off(&self, log: &impl Fn(&str)) -> Result<()> {
        let number = self.number.as_deref().context("its number is not known")?;
        let holders = endpoint::held_elsewhere(number);
        let who = holders.first().map_or("programs".to_owned(), ToString::to_string);
        log(&format!("still in use outside this mount namespace, by {who}: cutting off its users"));
        (self.pass_on)();
        match self.ended.load(Ordering::Relaxed) {
            true => Ok(()),
            false => endpoint::abort(number).context("aborting the connection"),
        }
    }
}
