//! From mount to unmount: the request loop, signals, and the end.

use crate::channel::{Channel, Transport};
use crate::endpoint::{self, Endpoint, Root, Unmount};
use crate::operations::Operations;
use crate::page_cache;
use crate::ring::{self, Rings, Running};
use anyhow::{Context as _, Result, anyhow, ensure};
use fuser::{Config, SessionACL};
use nix::sys::signal::{SigSet, Signal};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a busy mount may take to become free when its daemon is told to end.
const PATIENCE: Duration = Duration::from_secs(2);
const TRY_EVERY: Duration = Duration::from_millis(100);

/// A mount that the kernel has accepted. Nobody answers its requests before [`Session::run`], but
/// for those that come by rings.
pub struct Session<S: Operations> {
    session: fuser::Session<Channel<S>>,
    /// Rings that serve requests.
    rings: Option<Running>,
    directory: PathBuf,
    /// Dropped, it ends the thread that has the kernel write back.
    write_back: Option<Sender<()>>,
}

impl<S: Operations> Session<S> {
    /// Mounts at `directory` and negotiates the protocol with the kernel. From then on every access
    /// to the mount is served by rings, or is queued for [`Session::run`].
    ///
    /// # Errors
    /// See [`Endpoint::mount`]; if rings are demanded and the kernel has none, or the owner of the
    /// machine does not allow them. Nothing is mounted then.
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
        let device = endpoint.mount(directory)?;
        let ready = || -> Result<Session<S>> {
            let own = device.try_clone()?;
            let channel = Channel::new(server.clone(), rings.is_some());
            let mut config = Config::default();
            config.n_threads = Some(1);
            config.acl = SessionACL::All;
            let session = fuser::Session::from_fd(channel, device, SessionACL::All, config)?;
            let rings = rings.map(|rings| rings.start(server, own)).transpose()?;
            if let Err(error) = page_cache::raise_limits(directory) {
                server.report(&format!(
                    "the kernel reads little ahead and keeps little dirty: {error:#}"
                ));
            }
            Ok(Session { session, rings, directory: directory.to_owned(), write_back: None })
        };
        ready().with_context(|| format!("{}: FUSE handshake", directory.display())).inspect_err(
            |_| {
                // Without a daemon the mount would be dead.
                let _ = endpoint::unmount(directory, Unmount::Lazy);
            },
        )
    }

    /// True if requests come by rings.
    pub fn has_rings(&self) -> bool {
        self.rings.is_some()
    }

    /// The mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Has the kernel pass on, every `interval`, what it has collected in its page cache: without
    /// this it keeps a page for up to half a minute (vm.dirty_expire_centisecs). For a server
    /// [with a write-back cache](crate::FuseServer::with_writeback_cache). `log` gets a line when
    /// that fails.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn write_back_every(
        &mut self,
        interval: Duration,
        log: impl Fn(&str) + Send + 'static,
    ) -> Result<()> {
        let (sender, end) = channel::<()>();
        let directory = self.directory.clone();
        let work = move || {
            let mut known = None;
            while end.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let root = match known.take() {
                    Some(root) => Ok(root),
                    None => Root::of(&directory),
                };
                match root.and_then(|root| root.write_back().map(|()| root)) {
                    Ok(root) => known = Some(root),
                    // It was unmounted, or its daemon is about to end.
                    Err(Errno::NODEV | Errno::NOENT) => return,
                    Err(errno) if endpoint::is_end(errno) => return,
                    Err(errno) => log(&format!("writing back the kernel's cache: {errno}")),
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
    /// If the channel to the kernel fails.
    pub fn run(self) -> Result<()> {
        let _ends = self.write_back;
        let at = || format!("{}: FUSE session", self.directory.display());
        match self.session.run() {
            // Linux 6.18 has been seen to end an unmounted connection so, in place of ENODEV.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::CONNABORTED) => {}
            ended => ended.with_context(at)?,
        }
        self.rings.map_or(Ok(()), Running::join).with_context(at)
    }

    /// As [`Session::run`], on a thread of its own.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn spawn(self) -> Result<Background> {
        let directory = self.directory.clone();
        let thread = std::thread::Builder::new()
            .name("fuse".to_owned())
            .spawn(move || self.run())
            .context("cannot start a thread")?;
        Ok(Background { directory, thread: Some(thread) })
    }
}

/// A mount served by a thread of this process. Dropping it unmounts.
pub struct Background {
    directory: PathBuf,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Background {
    /// The mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Unmounts and waits for the last request.
    ///
    /// # Errors
    /// If the mount stays busy for two seconds, or the session failed.
    pub fn unmount(mut self) -> Result<()> {
        let mut waited = Duration::ZERO;
        loop {
            match endpoint::unmount(&self.directory, Unmount::Plain) {
                // The kernel releases a file some time after its last user has closed it.
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
    /// Blocks SIGTERM, SIGINT and SIGHUP in this thread and in threads it starts, so that
    /// [`Signals::unmount_on_signal`] receives them. Call this before any other thread exists.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn block() -> Result<Signals> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block().context("cannot block signals")?;
        Ok(Signals(set))
    }

    /// Starts a thread that calls `act` when the first signal arrives.
    ///
    /// # Errors
    /// If no thread can be started.
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

    /// Starts a thread that unmounts `directory` when a signal arrives: at once if it is free, and
    /// by disconnecting its users if it is still busy after two seconds. [`Session::run`] then
    /// returns. `log` gets a line for each step.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn unmount_on_signal(
        self,
        directory: PathBuf,
        log: impl Fn(&str) + Send + 'static,
    ) -> Result<()> {
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                while let Ok(signal) = self.0.wait() {
                    log(&format!("{signal}: unmounting"));
                    match end_mount(&directory, &log) {
                        Ok(()) => return,
                        Err(errno) => log(&format!("cannot unmount: {errno}")),
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(())
    }
}

fn end_mount(directory: &Path, log: &impl Fn(&str)) -> Result<(), Errno> {
    let mut waited = Duration::ZERO;
    loop {
        match endpoint::unmount(directory, Unmount::Plain) {
            Err(Errno::BUSY) if waited < PATIENCE => {
                std::thread::sleep(TRY_EVERY);
                waited += TRY_EVERY;
            }
            Err(Errno::BUSY) => {
                log("still in use: cutting off its users");
                // Changes through memory maps are so far only in the kernel.
                if let Ok(root) = std::fs::File::open(directory) {
                    let _ = rustix::fs::syncfs(&root);
                }
                return endpoint::unmount(directory, Unmount::Force);
            }
            // Not mounted any more: somebody else was faster.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            done => return done,
        }
    }
}
