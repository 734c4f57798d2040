//! Requests by io_uring: a queue for each processor, served by a thread on that processor
//! (Linux 6.14, Documentation/filesystems/fuse/fuse-io-uring.rst).
//!
//! A request is served on the processor of the program that makes it, so that no other processor
//! has to wake up. Forgets and interrupts still come by `/dev/fuse`, where `channel.rs` reads them.
//! A kernel that has agreed to rings sends no other request until every queue is registered.

#![allow(unsafe_code, reason = "the kernel reads and writes memory that a ring entry names")]

pub(crate) mod answer;

use crate::endpoint::MAX_WRITE;
use crate::operations::Operations;
use crate::wire::{RingCommand, command};
use answer::{Given, Outbox, Part};
use anyhow::{Context as _, Result, anyhow};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::IntoBytes as _;

/// Number of requests in flight on all processors together, and the minimum and maximum of a
/// processor's share.
const DEPTH: usize = 64;
const DEPTH_LEAST: usize = 8;
const DEPTH_MOST: usize = 32;

/// Steps of nice(2) by which the threads of rings precede other threads. So when a program has sent
/// a request, the ring's thread takes the processor from it, and the program continues there after
/// the answer. Without precedence, the program may already sleep when the answer comes. The
/// scheduler then moves it to an idle processor, because the ring's thread still runs on the
/// program's own. This happened with one in ten getattr requests. An idle processor wakes so slowly
/// that the rate of requests was halved.
const AHEAD: i32 = 3;

/// How long a ring's thread waits before it tries again, if the kernel takes no commands.
const AGAIN: Duration = Duration::from_millis(1);

/// `user_data` of the poll of the bell; other commands have the number of their entry there.
const BELL: u64 = u64::MAX;

/// The file by which the owner of the machine allows rings.
const ALLOWED: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel has rings and the owner of the machine allows them.
pub fn is_allowed() -> bool {
    std::fs::read(ALLOWED).is_ok_and(|value| value.first() == Some(&b'Y'))
}

/// Advice to the user if a ring is required and the kernel offers none.
pub(crate) fn help() -> String {
    match std::fs::exists(ALLOWED) {
        Ok(true) => format!(
            "FUSE by io_uring is turned off on this machine: echo Y > {ALLOWED} (or start the \
             kernel with fuse.enable_uring=1), or leave the option io_uring out"
        ),
        _ => "this kernel has no FUSE by io_uring (Linux 6.14 or later has): leave the option \
              io_uring out"
            .to_owned(),
    }
}

/// The processors in a list such as `0-3,8`, as the kernel writes it; `None` if `list` is not such
/// a list.
fn processors(list: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?);
    }
    Some(numbers)
}

/// The processors in the kernel's list `what`, such as `online`.
fn listed(what: &str) -> Result<Vec<u16>> {
    let path = format!("/sys/devices/system/cpu/{what}");
    let list = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    processors(&list).with_context(|| format!("{path}: {list}"))
}

/// The ring of a processor, with the entries of its queue. The first ring also has an entry
/// for each processor that is not running, because the kernel requires a queue for each
/// possible processor.
struct Ring {
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    outbox: Arc<Outbox>,
    processor: u16,
    /// For each entry: the queue, the memory, and the number of the present request.
    queues: Vec<u16>,
    parts: Vec<[Part; 2]>,
    requests: Vec<u64>,
    /// Completions that have arrived and are not served yet.
    came: Vec<cqueue::Entry>,
    /// Number of entries that the kernel has or will get back when their requests are answered.
    alive: usize,
}

impl Ring {
    /// A ring with `depth` entries for the queue of `processor`, and one for each queue
    /// in `others`.
    fn new(processor: u16, others: &[u16], depth: usize) -> io::Result<Ring> {
        let mut queues = vec![processor; depth];
        queues.extend(others);
        let uring = IoUring::builder()
            // Only the ring's thread submits, and the kernel posts completions only when that
            // thread asks.
            .setup_single_issuer()
            .setup_defer_taskrun()
            // The ring starts disabled, because the thread that submits is not known before
            // it runs.
            .setup_r_disabled()
            .build((queues.len() as u32 + 1).next_power_of_two())?;
        let outbox = Arc::new(Outbox::new(queues.len(), MAX_WRITE as usize)?);
        let parts = (0..queues.len()).map(|entry| outbox.parts(entry as u16)).collect();
        let (requests, came) = (vec![0; queues.len()], Vec::new());
        Ok(Ring { uring, outbox, processor, queues, parts, requests, came, alive: 0 })
    }

    fn push(&mut self, entry: squeue::Entry128) {
        // SAFETY: an entry names memory of the outbox, which the ring keeps while the kernel uses
        // it (see `Drop`), or the list of such memory in `parts`, which is never changed.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        pushed.expect("invariant: the ring has room for each entry and the bell");
    }

    fn command(device: &OwnedFd, number: u32, command: RingCommand) -> opcode::UringCmd80 {
        let mut bytes = [0; 80];
        bytes[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), number).cmd(bytes)
    }

    /// Binds this thread to the ring's processor, unless the operator has forbidden that, and gives
    /// it precedence over other threads there.
    fn settle(&self) {
        // Without the right to a lower nice value the ring works, but more slowly.
        if let Ok(nice) = getpriority_process(None) {
            let _ = setpriority_process(None, nice - AHEAD);
        }
        let processor = usize::from(self.processor);
        let allowed = sched_getaffinity(None)
            .is_ok_and(|allowed| processor < CpuSet::MAX_CPU && allowed.is_set(processor));
        if allowed {
            let mut here = CpuSet::new();
            here.set(processor);
            // On another processor the ring works, but more slowly.
            let _ = sched_setaffinity(None, &here);
        }
    }

    /// Registers all entries with the kernel.
    ///
    /// # Errors
    /// An error if the kernel refuses an entry. The kernel then sends requests by `/dev/fuse`, or
    /// not at all.
    fn register(&mut self, device: &OwnedFd) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()?;
        for entry in 0..self.queues.len() {
            let command = RingCommand { queue: self.queues[entry], ..RingCommand::default() };
            let parts = &self.parts[entry];
            let built = Ring::command(device, command::REGISTER, command)
                .addr(Some(parts.as_ptr().addr() as u64))
                .build()
                .user_data(entry as u64);
            let built = with_length(built, parts.len() as u32);
            self.push(built);
        }
        while !self.uring.submission().is_empty() {
            self.uring.submit()?;
        }
        self.alive = self.queues.len();
        // A refused entry completes at once with an error; a completion with 0 already has
        // a request.
        self.came.extend(self.uring.completion());
        let refused = self.came.iter().map(cqueue::Entry::result).find(|result| *result < 0);
        if let Some(error) = refused {
            return Err(io::Error::from_raw_os_error(-error));
        }
        self.listen();
        Ok(())
    }

    fn listen(&mut self) {
        let bell = types::Fd(self.outbox.bell().as_raw_fd());
        // The 1 is POLLIN.
        let poll = opcode::PollAdd::new(bell, 1).multi(true).build().user_data(BELL);
        self.push(poll.into());
    }

    /// Serves requests until the mount has ended or `stop` is set.
    fn serve(&mut self, server: &impl Operations, device: &OwnedFd, stop: &AtomicBool) {
        let (mut given, mut came) = (Vec::<Given>::new(), std::mem::take(&mut self.came));
        let mut reported = false;
        loop {
            for completion in came.drain(..) {
                match (completion.user_data(), completion.result()) {
                    (BELL, _) => {
                        self.outbox.silence();
                        if !cqueue::more(completion.flags()) {
                            self.listen();
                        }
                    }
                    (entry, 0) => {
                        self.requests[entry as usize] =
                            answer::serve(server, &self.outbox, entry as u16);
                    }
                    // The kernel ends this entry because the mount ends.
                    _ => self.alive -= 1,
                }
            }
            if self.alive == 0 || stop.load(Ordering::Relaxed) {
                return;
            }
            self.outbox.take(&mut given);
            for given in given.drain(..) {
                let entry = usize::from(given.entry);
                let (queue, unique) = (self.queues[entry], self.requests[entry]);
                self.outbox.write(&given, unique);
                let command = RingCommand { unique, queue, ..RingCommand::default() };
                let commit = Ring::command(device, command::COMMIT_AND_FETCH, command);
                self.push(commit.build().user_data(entry as u64));
            }
            let wait = usize::from(self.outbox.may_sleep());
            match self.uring.submit_and_wait(wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    // The cause may be a temporary lack of memory; no other cause is known.
                    if !std::mem::replace(&mut reported, true) {
                        server.report(&format!("FUSE by io_uring, will be tried again: {error}"));
                    }
                    std::thread::sleep(AGAIN);
                }
                _ => {}
            }
            self.outbox.awake();
            came.extend(self.uring.completion());
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.alive > 0 {
            // The kernel cancels its entries some time after the ring is dropped, and may use their
            // memory until then.
            std::mem::forget(self.outbox.clone());
        }
    }
}

/// Sets the number of memory pieces in `entry` to `length`; `UringCmd80` has no field for it.
fn with_length(mut entry: squeue::Entry128, length: u32) -> squeue::Entry128 {
    /// Offset of `len` in `struct io_uring_sqe` (include/uapi/linux/io_uring.h).
    const AT: usize = 24;
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    // SAFETY: the entry is the kernel's structure (`repr(C)`). The four bytes are a number in it,
    // and any value is valid.
    unsafe { (&raw mut entry).byte_add(AT).cast::<u32>().write(length) };
    entry
}

/// The rings of a mount that has not begun yet, one for each running processor.
pub(crate) struct Rings(Vec<Ring>);

impl Rings {
    /// # Errors
    /// An error if the kernel has no io_uring, or forbids it, or memory or descriptors run out.
    pub(crate) fn new() -> Result<Rings> {
        let (mut others, online) = (listed("possible")?, listed("online")?);
        others.retain(|queue| !online.contains(queue));
        let depth = (DEPTH / online.len().max(1)).clamp(DEPTH_LEAST, DEPTH_MOST);
        let ring = |(at, processor): (usize, &u16)| {
            Ring::new(*processor, if at == 0 { &others } else { &[] }, depth)
        };
        let rings: io::Result<_> = online.iter().enumerate().map(ring).collect();
        let advice = |error: &io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => {
                ": allow it (sysctl kernel.io_uring_disabled=0, and in the container's system call \
                 filter)"
            }
            _ => "",
        };
        rings.map(Rings).map_err(|error| anyhow!("io_uring: {error}{}", advice(&error)))
    }

    /// Starts a thread for each ring, and waits until all entries are registered. From then on,
    /// `server` gets the requests of the mount. `device` is the mount's channel, on which the
    /// handshake must be done.
    ///
    /// # Errors
    /// An error if a thread cannot be started, or the kernel refuses an entry. The caller must then
    /// unmount, because the kernel may hold all requests back until every queue is registered.
    pub(crate) fn start<S: Operations>(
        self,
        server: &Arc<S>,
        device: Arc<OwnedFd>,
    ) -> Result<Running> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut running = Running { threads: Vec::new(), stop: stop.clone() };
        let (sender, registered) = channel();
        for mut ring in self.0 {
            let (server, device, stop) = (server.clone(), device.clone(), stop.clone());
            let (sender, outbox) = (sender.clone(), ring.outbox.clone());
            let work = move || {
                ring.settle();
                let done = ring.register(&device);
                let able = done.is_ok();
                // The send cannot fail: the receiver waits below.
                let _ = sender.send(done);
                // The receiver waits until the last sender is dropped.
                drop(sender);
                if able {
                    ring.serve(&*server, &device, &stop);
                }
            };
            let thread = std::thread::Builder::new().name("fuse-ring".to_owned());
            let thread = thread.spawn(work).context("cannot start a thread")?;
            running.threads.push((thread, outbox));
        }
        drop(sender);
        // Each thread sends one result.
        registered.iter().collect::<io::Result<()>>().context("the kernel takes no queue")?;
        Ok(running)
    }
}

/// The threads of the rings of a mount. Dropping this value ends them.
pub(crate) struct Running {
    threads: Vec<(JoinHandle<()>, Arc<Outbox>)>,
    stop: Arc<AtomicBool>,
}

impl Running {
    /// Waits for the threads, which end when the mount ends.
    pub(crate) fn join(mut self) -> Result<()> {
        let ended: Vec<_> = self.threads.drain(..).map(|(thread, _)| thread.join()).collect();
        let died = ended.iter().any(std::result::Result::is_err);
        anyhow::ensure!(!died, "a thread of FUSE by io_uring died");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for (thread, outbox) in self.threads.drain(..) {
            outbox.ring();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_the_kernels() {
        assert_eq!(processors("0\n"), Some(vec![0]));
        assert_eq!(processors("0-2,7,9-10\n"), Some(vec![0, 1, 2, 7, 9, 10]));
        assert_eq!((processors(""), processors("a-b")), (None, None));
    }
}
