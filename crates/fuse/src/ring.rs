//! Requests by io_uring: a queue for each processor, served by a thread on that processor
//! (Linux 6.14, Documentation/filesystems/fuse/fuse-io-uring.rst).
//!
//! A request is served where the program that asks runs, so that no other processor has to wake up
//! for it. Forgets and interrupts still come by `/dev/fuse`, and so does every request until all
//! queues are registered; `channel.rs` reads them.
//!
//! Why not a crate: `fuser` has no ring yet, and no way to pass a request to its dispatcher. Of the
//! protocol this folder has what a ring carries, and nothing else refers to it but `reply.rs`, so
//! that it can go.

#![allow(unsafe_code, reason = "the kernel reads and writes memory that a ring entry names")]

pub(crate) mod answer;
mod request;
pub(crate) mod wire;

use crate::endpoint::MAX_WRITE;
use crate::operations::Operations;
use answer::{Given, Outbox, Part};
use anyhow::{Context as _, Result};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use wire::{RingCommand, command};
use zerocopy::IntoBytes as _;

/// Requests in flight of all processors together, and bounds for one of them.
const DEPTH: usize = 64;
const DEPTH_LEAST: usize = 8;
const DEPTH_MOST: usize = 32;

/// `user_data` of the bell; entries have their numbers.
const BELL: u64 = u64::MAX;

/// Where the owner of the machine allows rings.
const ALLOWED: &str = "/sys/module/fuse/parameters/enable_uring";

/// True if the kernel has rings and the owner of the machine allows them.
pub fn is_allowed() -> bool {
    std::fs::read(ALLOWED).is_ok_and(|value| value.first() == Some(&b'Y'))
}

/// What to do if a ring is wanted and the kernel offers none.
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

/// The processors that a list of the kernel's names, such as `0-3,8`; `None` if it is not one.
fn processors(list: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?);
    }
    Some(numbers)
}

/// Reads such a list.
fn listed(what: &str) -> Result<Vec<u16>> {
    let path = format!("/sys/devices/system/cpu/{what}");
    let list = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    processors(&list).with_context(|| format!("{path}: {list}"))
}

/// The ring of a processor, with the entries of its queue. The first one has those of processors
/// that are not running, too: the kernel wants a queue for each that there could be.
struct Ring {
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    outbox: Arc<Outbox>,
    processor: u16,
    /// By entry: its queue, and the number of its request.
    queues: Vec<u16>,
    requests: Vec<u64>,
    /// Entries that the kernel has not given back for good.
    alive: usize,
}

impl Ring {
    fn new(processor: u16, queues: &[u16], depth: usize) -> io::Result<Ring> {
        let queues: Vec<u16> =
            queues.iter().flat_map(|queue| std::iter::repeat_n(*queue, depth)).collect();
        let uring = IoUring::builder()
            // One thread submits, and takes what has come when it asks for it.
            .setup_single_issuer()
            .setup_defer_taskrun()
            // Which thread that is will be known when it starts.
            .setup_r_disabled()
            .build((queues.len() as u32 + 1).next_power_of_two())?;
        let outbox = Arc::new(Outbox::new(queues.len(), MAX_WRITE as usize)?);
        let requests = vec![0; queues.len()];
        Ok(Ring { uring, outbox, processor, queues, requests, alive: 0 })
    }

    fn push(&mut self, entry: squeue::Entry128) {
        // SAFETY: an entry names memory of the outbox, which outlives its use by the kernel (see
        // `Drop`), or pointers that the kernel reads when it takes the entry, in `register`.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        pushed.expect("invariant: the ring has room for each entry and the bell");
    }

    fn command(device: &OwnedFd, number: u32, command: RingCommand) -> opcode::UringCmd80 {
        let mut bytes = [0; 80];
        bytes[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), number).cmd(bytes)
    }

    /// Gives the kernel all entries. It reads `parts` when it takes them, before `submit` returns.
    fn register(&mut self, device: &OwnedFd) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()?;
        let parts: Vec<[Part; 2]> =
            (0..self.queues.len()).map(|entry| self.outbox.parts(entry as u16)).collect();
        for (entry, parts) in parts.iter().enumerate() {
            let command = RingCommand { queue: self.queues[entry], ..RingCommand::default() };
            let built = Ring::command(device, command::REGISTER, command)
                .addr(Some(parts.as_ptr().addr() as u64))
                .build()
                .user_data(entry as u64);
            self.push(with_length(built, parts.len() as u32));
        }
        self.uring.submit()?;
        self.alive = self.queues.len();
        self.listen();
        Ok(())
    }

    fn listen(&mut self) {
        let bell = types::Fd(self.outbox.bell().as_raw_fd());
        // POLLIN
        let poll = opcode::PollAdd::new(bell, 1).multi(true).build().user_data(BELL);
        self.push(poll.into());
    }

    /// Serves requests until the mount has ended, or `stop`.
    fn serve(&mut self, server: &impl Operations, device: &OwnedFd, stop: &AtomicBool) {
        let (mut given, mut came) = (Vec::<Given>::new(), Vec::new());
        while self.alive > 0 && !stop.load(Ordering::Relaxed) {
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
            // An error is a signal, or a lack of memory that passes.
            let _ = self.uring.submit_and_wait(wait);
            self.outbox.awake();
            came.extend(self.uring.completion());
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
                            request::serve(server, &self.outbox, entry as u16);
                    }
                    (entry, error) => {
                        self.alive -= 1;
                        self.ended(server, entry, error);
                    }
                }
            }
        }
    }

    /// The kernel has given an entry back for good.
    fn ended(&self, server: &impl Operations, entry: u64, error: i32) {
        let errno = rustix::io::Errno::from_raw_os_error(-error);
        use rustix::io::Errno;
        // The end of the mount.
        if !matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) {
            let queue = self.queues.get(entry as usize).copied().unwrap_or_default();
            server.report(&format!("FUSE by io_uring: queue {queue}: {errno}"));
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.alive > 0 {
            // The kernel cancels what it has some time after this, and may still use the memory.
            std::mem::forget(self.outbox.clone());
        }
    }
}

/// `entry`, which names a list of `length` pieces of memory: `UringCmd80` has no field for that.
fn with_length(mut entry: squeue::Entry128, length: u32) -> squeue::Entry128 {
    /// Of `len` in `struct io_uring_sqe` (include/uapi/linux/io_uring.h).
    const AT: usize = 24;
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    // SAFETY: the entry is the kernel's structure, `repr(C)`, of which these four bytes are a
    // number that any value may have.
    unsafe { (&raw mut entry).byte_add(AT).cast::<u32>().write(length) };
    entry
}

/// The rings of a mount, one for each processor that runs, before the mount.
pub(crate) struct Rings(Vec<Ring>);

impl Rings {
    /// # Errors
    /// If the kernel has no io_uring, or forbids it, or memory is short.
    pub(crate) fn new() -> Result<Rings> {
        let (mut all, online) = (listed("possible")?, listed("online")?);
        all.retain(|queue| !online.contains(queue));
        let depth = (DEPTH / online.len().max(1)).clamp(DEPTH_LEAST, DEPTH_MOST);
        let ring = |(at, processor): (usize, &u16)| {
            let others: &[u16] = if at == 0 { &all } else { &[] };
            Ring::new(*processor, &[&[*processor], others].concat(), depth)
        };
        let rings = online.iter().enumerate().map(ring).collect::<io::Result<_>>();
        Ok(Rings(rings.context(
            "io_uring: FUSE by io_uring needs it: allow it (sysctl kernel.io_uring_disabled=0, and \
             in the container's system call filter)",
        )?))
    }

    /// Starts a thread for each ring. From now on `server` gets requests of the mount behind
    /// `device`, whose handshake is done.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start<S: Operations>(self, server: &Arc<S>, device: OwnedFd) -> Result<Running> {
        let (device, stop) = (Arc::new(device), Arc::new(AtomicBool::new(false)));
        let mut running = Running { threads: Vec::new(), stop: stop.clone() };
        for mut ring in self.0 {
            let (server, device, stop) = (server.clone(), device.clone(), stop.clone());
            let outbox = ring.outbox.clone();
            let work = move || {
                let mut here = CpuSet::new();
                here.set(usize::from(ring.processor));
                // Elsewhere it works, too, but slower.
                let _ = sched_setaffinity(None, &here);
                match ring.register(&device) {
                    Ok(()) => ring.serve(&*server, &device, &stop),
                    Err(error) => server.report(&format!("FUSE by io_uring: {error}")),
                }
            };
            let thread = std::thread::Builder::new().name("fuse-ring".to_owned());
            let thread = thread.spawn(work).context("cannot start a thread")?;
            running.threads.push((thread, outbox));
        }
        Ok(running)
    }
}

/// The threads of the rings of a mount. Dropped, it ends them.
pub(crate) struct Running {
    threads: Vec<(JoinHandle<()>, Arc<Outbox>)>,
    stop: Arc<AtomicBool>,
}

impl Running {
    /// Waits for the end of the threads, for which the kernel asks at the end of the mount.
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
