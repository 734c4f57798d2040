//! Runs requests on the engine and answers them: the code that all requests share.
//!
//! Invariants: a request is answered exactly once (a reply that is dropped answers EIO). An inode
//! that loses its last name is kept alive ([`Known`]) until the kernel forgets it, so that stat
//! works on a removed working directory or an `O_PATH` descriptor.

use crate::convert::{attributes, errno, generation, ino};
use crate::known::Known;
use crate::latency::{Latencies, Op};
use crate::pass_on::Kernel;
use crate::posix::Call;
use crate::reply::{Fail, Listing, Reply, kind};
use crate::report::{self, Info, Remount, Stat};
use crate::wire::{self, Node};
use furrow_fs::{Attr, Fs, Ino, Kind};
use furrow_rt::{Pool, Port, Rt};
use furrow_zone::{Error, ErrorKind};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of different errors of the drive that are logged; `furrow stat` counts all.
const LOGGED_MAX: usize = 1000;

/// State that the callbacks share with the tasks that they start.
pub(crate) struct Shared {
    /// How long the kernel may cache names and attributes.
    pub ttl: Duration,
    /// Properties of the mount that do not change.
    pub info: Info,
    /// Inodes to which the kernel refers.
    pub known: Known,
    /// Messages to the kernel that are not answers to requests.
    pub kernel: Kernel,
    /// Whether the end of the engine was logged.
    ended: AtomicBool,
    /// Whether the failure of the engine was logged.
    failed: AtomicBool,
    /// Writes a line for the operator.
    pub log: Box<dyn Fn(&str) + Send + Sync>,
    /// Latencies of requests.
    pub latencies: Latencies,
    /// Whether the kernel can find files by file handles.
    pub handles: bool,
    /// Whether the kernel may have many direct requests of one program in flight.
    pub async_dio: bool,
    /// Whether the kernel collects writes in its page cache.
    pub writeback_cache: bool,
    /// Whether requests come by rings.
    pub rings: AtomicBool,
    /// Whether the kernel opens files without asking the server.
    pub no_open: AtomicBool,
    /// Time of the mount.
    since: Instant,
    /// Result with which the engine unmounted, if it did so because the kernel unmounted a
    /// block device.
    left: Mutex<Option<furrow_zone::Result<()>>>,
    /// Errors of the drive that were logged.
    logged: Mutex<BTreeSet<String>>,
    /// Reports and changes the mount's options, if the mount has any.
    pub remount: Option<Box<dyn Remount>>,
}

impl Shared {
    /// The attributes in the kernel's form. A file without blocks may have data in the kernel's
    /// cache that is not written back yet, and programs take a file with 0 blocks for one hole
    /// without reading it. So such a file is shown with one block of 512 bytes.
    pub(crate) fn attributes(&self, attr: &Attr) -> wire::Attr {
        let mut shown = attributes(attr);
        if attr.kind == Kind::File && (attr.size > 0 || self.writeback_cache) {
            shown.blocks = shown.blocks.max(1);
        }
        shown
    }

    pub(crate) fn has_rings(&self) -> bool {
        self.rings.load(Ordering::Relaxed)
    }

    pub(crate) fn left(&self) -> MutexGuard<'_, Option<furrow_zone::Result<()>>> {
        // The result is intact even if a thread panicked while it held the lock.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present figures of `fs`.
    pub(crate) fn stat(&self, fs: &Fs) -> Stat {
        let seconds = self.since.elapsed().as_secs_f64();
        report::stat(fs, &self.info, seconds, self.latencies.operations())
    }

    /// Logs an error of the drive only the first time, so that a program that reads a damaged block
    /// repeatedly does not fill the log.
    fn log_once(&self, error: &Error) {
        let line = error.to_string();
        // The set is intact even if a thread panicked while it held the lock.
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < LOGGED_MAX && logged.insert(line.clone()) {
            (self.log)(&line);
        }
    }

    /// The error with which `fs` has failed, if it has; logs it the first time.
    fn look_for_failure(&self, fs: &Fs) -> Option<Error> {
        let error = fs.failure()?;
        if !self.failed.swap(true, Ordering::Relaxed) {
            let lost = match fs.failed_without_loss() {
                true => "",
                false => ", and changes that were not durable are lost",
            };
            (self.log)(&format!("{}: writing has stopped{lost}: {error}", self.info.device));
        }
        Some(error)
    }
}

/// How long the kernel may cache names and attributes: a day, because every change goes through
/// this kernel, so its cache stays correct. The server reports to the kernel the few changes that
/// the kernel does not notice.
pub const USUAL_TTL: Duration = Duration::from_secs(86_400);

/// The FUSE server of one mounted file system.
#[derive(Clone)]
pub struct FuseServer {
    pub(crate) port: Port<Fs>,
    pub(crate) pool: Pool,
    pub(crate) shared: Arc<Shared>,
}

/// Reports on the file system of a [`FuseServer`] from any thread.
pub struct Reporter {
    port: Port<Fs>,
    shared: Arc<Shared>,
}

impl Reporter {
    /// Takes the result of the engine's unmount; `None` unless the kernel's unmount of a block
    /// device made the engine unmount. When the result is there, the engine no longer writes to the
    /// device.
    pub fn left(&self) -> Option<furrow_zone::Result<()>> {
        self.shared.left().take()
    }

    /// The present figures; `None` if the engine has ended.
    pub fn stat(&self) -> Option<Stat> {
        let shared = self.shared.clone();
        let stat = self.port.try_call(move |_, fs| {
            let stat = shared.stat(fs);
            async move { stat }
        });
        stat.ok()
    }
}

impl FuseServer {
    /// A server for the file system behind `port`. Payload is copied to pages of `pool`; `log` gets
    /// a line for each different error of the drive and each corruption.
    pub fn new(
        port: Port<Fs>,
        pool: Pool,
        ttl: Duration,
        info: Info,
        log: Box<dyn Fn(&str) + Send + Sync>,
    ) -> FuseServer {
        let (ended, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (latencies, since) = (Latencies::default(), Instant::now());
        let shared = Shared {
            ttl,
            info,
            known: Known::default(),
            kernel: Kernel::default(),
            ended,
            failed,
            log,
            latencies,
            handles: false,
            async_dio: false,
            writeback_cache: false,
            rings: AtomicBool::new(false),
            no_open: AtomicBool::new(false),
            since,
            left: Mutex::default(),
            logged: Mutex::default(),
            remount: None,
        };
        FuseServer { port, pool, shared: Arc::new(shared) }
    }

    /// Sets the object that reports and changes the mount's options.
    #[must_use]
    pub fn with_remount(mut self, remount: Box<dyn Remount>) -> FuseServer {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.remount = Some(remount);
        }
        self
    }

    /// Lets the kernel find files by file handles (`handles`). An overlay file system on the mount
    /// then also looks up the lower file of a copied-up file by a handle, and FUSE takes that inode
    /// for outdated (seen with Linux 6.18), so access to the copied-up file fails with ESTALE.
    #[must_use]
    pub fn with_handles(mut self, wanted: bool) -> FuseServer {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.handles = wanted;
        }
        self
    }

    /// Lets the kernel have many direct requests of one program in flight (`async_dio`). The kernel
    /// then leaves `O_DSYNC` to the server, and learns from the server which of its cached pages
    /// are stale.
    #[must_use]
    pub fn with_async_dio(mut self, wanted: bool) -> FuseServer {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.async_dio = wanted;
        }
        self
    }

    /// Lets the kernel answer writes from its page cache, join them and pass them on later
    /// (`writeback_cache`). Until then, the kernel itself keeps sizes and times of regular files.
    /// [`Session::write_back_every`](crate::Session::write_back_every) limits the delay.
    #[must_use]
    pub fn with_writeback_cache(mut self, wanted: bool) -> FuseServer {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.writeback_cache = wanted;
        }
        self
    }

    /// A reporter for use by other threads.
    pub fn reporter(&self) -> Reporter {
        Reporter { port: self.port.clone(), shared: self.shared.clone() }
    }

    /// Passes `request` to the engine. If the engine has ended, drops `request`, which answers EIO.
    pub(crate) fn submit(&self, request: impl FnOnce(&Rt, &Fs) + Send + 'static) {
        self.port.submit(request);
        if let Some(stopped) = self.port.stopped()
            && !self.shared.ended.swap(true, Ordering::Relaxed)
        {
            (self.shared.log)(&format!("every request now fails: {stopped}"));
        }
    }

    /// Runs `operation` on the engine. Answers with its error, or calls `answer` with its result.
    pub(crate) fn run<R, T, F>(
        &self,
        op: Op,
        reply: R,
        operation: impl FnOnce(Call) -> F + Send + 'static,
        answer: impl FnOnce(R, T, &Shared) + Send + 'static,
    ) where
        R: Fail,
        T: 'static,
        F: Future<Output = furrow_zone::Result<T>> + 'static,
    {
        let shared = self.shared.clone();
        let started = shared.latencies.start(op);
        self.submit(move |rt, fs| {
            let call = Call { rt: rt.clone(), fs: fs.clone(), shared: shared.clone() };
            let (fs, engine) = (fs.clone(), rt.clone());
            rt.run_now(async move {
                let failed_before = fs.failure().is_some();
                let done = operation(call).await;
                // A missing object is an answer, not an error.
                let absent = [ErrorKind::NotFound, ErrorKind::NoAttribute];
                let failed = done.as_ref().is_err_and(|error| !absent.contains(&error.kind()));
                let failure = shared.look_for_failure(&fs);
                match done {
                    Ok(value) => answer(reply, value, &shared),
                    Err(error) => {
                        let kind = error.kind();
                        let known = failure.as_ref().map(ToString::to_string);
                        let known = known.is_some_and(|known| error.to_string().ends_with(&known));
                        if matches!(kind, ErrorKind::Io | ErrorKind::Corrupt) && !known {
                            shared.log_once(&error);
                        }
                        if fs.is_stopping() {
                            let (fs, shared) = (fs.clone(), shared.clone());
                            let told = async move {
                                fs.settled().await;
                                shared.look_for_failure(&fs);
                            };
                            engine.spawn_detached(told);
                        }
                        // A request in flight when the engine failed gets the device's error, not
                        // the read-only error that follows from it.
                        let struck = failure.is_some() && !failed_before;
                        reply.fail(match kind {
                            ErrorKind::ReadOnly if struck => Errno::IO,
                            _ => errno(&error),
                        });
                    }
                }
                shared.latencies.end(started, failed);
            });
        });
    }

    /// Like [`FuseServer::run`], for replies with an inode.
    pub(crate) fn entry<F>(
        &self,
        op: Op,
        reply: Reply<kind::Entry>,
        operation: impl FnOnce(Call) -> F + Send + 'static,
    ) where
        F: Future<Output = furrow_zone::Result<Attr>> + 'static,
    {
        self.run(op, reply, operation, |reply, attr, shared| {
            shared.known.told(attr.ino);
            reply.entry(&shared.ttl, &shared.attributes(&attr), generation(&attr));
        });
    }

    /// Like [`FuseServer::run`], for replies without content.
    pub(crate) fn empty<F>(
        &self,
        op: Op,
        reply: Reply<kind::Empty>,
        operation: impl FnOnce(Call) -> F + Send + 'static,
    ) where
        F: Future<Output = furrow_zone::Result<()>> + 'static,
    {
        self.run(op, reply, operation, |reply, (), _| reply.ok());
    }

    /// Lists a directory on the engine: `list` fills the reply.
    pub(crate) fn listing<R: Listing, F>(
        &self,
        reply: R,
        list: impl FnOnce(Call, R) -> F + Send + 'static,
    ) where
        F: Future<Output = (R, furrow_zone::Result<()>)> + 'static,
    {
        let shared = self.shared.clone();
        let started = shared.latencies.start(Op::Readdir);
        self.submit(move |rt, fs| {
            let call = Call { rt: rt.clone(), fs: fs.clone(), shared: shared.clone() };
            rt.run_now(async move {
                let (reply, listed) = list(call, reply).await;
                shared.latencies.end(started, listed.is_err());
                match listed {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.fail(errno(&error)),
                }
            });
        });
    }

    /// Answers a read of a control attribute of the root directory.
    pub(crate) fn question(
        &self,
        ino: Ino,
        name: &[u8],
        size: u32,
        uid: u32,
        reply: Reply<kind::Xattr>,
    ) {
        let question = report::Question::parse(name).filter(|_| ino == Ino::ROOT);
        let Some(question) = question else { return reply.error(Errno::NODATA) };
        if question.is_for_root() && uid != 0 {
            return reply.error(Errno::PERM);
        }
        if size == 0 {
            // The kernel asks only for the length. The query is not executed just for its length,
            // because it may be a sync.
            return reply.size(report::MAX_ANSWER as u32);
        }
        // The request counts as "other", because its duration says nothing about the file system.
        self.run(
            Op::Other,
            reply,
            move |call| async move {
                report::answer(&call.fs, &call.shared, question, uid == 0).await
            },
            move |reply, text: String, _| sized(reply, text.as_bytes(), size),
        );
    }

    /// Handles a forget: the kernel forgets `answers` of the answers that named `node`.
    pub(crate) fn forgotten(&self, node: Node, answers: u64) {
        let Some(ino) = ino(node) else { return };
        if self.shared.known.forget(ino, answers) {
            let shared = self.shared.clone();
            self.submit(move |rt, fs| {
                let fs = fs.clone();
                rt.run_now(async move {
                    if let Err(error) = fs.release(ino).await {
                        (shared.log)(&error.at(format!("inode {ino}")).to_string());
                    }
                    shared.known.freed();
                });
            });
        }
    }
}

/// Answers with `value`; with its length if `size` is 0; with ERANGE if it is longer than `size`.
pub(crate) fn sized(reply: Reply<kind::Xattr>, value: &[u8], size: u32) {
    match size as usize {
        0 => reply.size(value.len() as u32),
        room if value.len() > room => reply.error(Errno::RANGE),
        _ => reply.data(value),
    }
}
