//! The transport of commands to a drive: the kernel's block layer, or NVMe commands that bypass it.

use crate::ioctl::Descriptor;
use crate::nvme::{self, Commands};
use crate::ring::{self, Kind, Piece, Ring};
use crate::workers::{Job, Workers};
use io_uring::squeue::Flags;
use io_uring::{cqueue, squeue};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A transfer of data, or a flush. Offset and length are in bytes from the start of the drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub kind: Kind,
    pub offset: u64,
    pub length: u64,
    /// Whether this is a retry. Then a kernel thread that can wait must carry it out; see
    /// `WRITE_TRIES` in `failure.rs`.
    pub again: bool,
}

/// The reason why a command failed, as the transport reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// An errno of the kernel.
    Errno(Errno),
    /// A status of the drive: code type and code, with the flags that the kernel leaves in it.
    Nvme(u16),
}

/// The answer to a command; the transport returns it with the command's key.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The command was carried out. `bytes` is the number of bytes transferred, `None` for all;
    /// `at` is the first block of an append.
    Done { bytes: Option<u64>, at: u64 },
    /// The command failed.
    Failed(Cause),
    /// A report of the zone of a failed command.
    Reported(Result<Descriptor, Errno>),
    /// Reports of the requested zones from the first on; there may be fewer than requested.
    ReportedAll(Result<Vec<Descriptor>, Errno>),
}

type BlockRing = Ring<squeue::Entry, cqueue::Entry>;

/// A transport. The owner of a command keeps the command's memory until the transport has answered.
pub(crate) enum Transport {
    /// Transfers go through a ring, other calls through threads.
    Block { ring: RefCell<BlockRing>, workers: Workers },
    /// All commands go through a ring.
    Nvme(Commands),
    /// No drive: a test scripts the answers.
    #[cfg(test)]
    Scripted(RefCell<Script>),
}

/// Answers that a test scripts, in the order of the commands, each with its command in words.
#[cfg(test)]
pub(crate) struct Script {
    pub steps: std::collections::VecDeque<(&'static str, Option<Answer>)>,
    pub ready: Vec<(usize, Answer)>,
}

#[cfg(test)]
impl Script {
    /// Takes a command, which must be the script's next. If the script has no answer for it, the
    /// command is never answered.
    fn take(&mut self, key: usize, what: &str) {
        let (expected, answer) = self.steps.pop_front().unwrap_or(("nothing more", None));
        assert_eq!(what, expected);
        self.ready.extend(answer.map(|answer| (key, answer)));
    }
}

impl Transport {
    /// Creates the transport through the block layer; `event` becomes readable when answers
    /// have come.
    ///
    /// # Errors
    /// If the kernel has no io_uring or forbids it, or a thread cannot be started.
    pub(crate) fn block(file: &Arc<File>, event: &Arc<OwnedFd>) -> io::Result<Transport> {
        let ring = RefCell::new(Ring::new(file, event)?);
        Ok(Transport::Block { ring, workers: Workers::start(file, event)? })
    }

    /// Creates the transport to an NVMe namespace; `event` becomes readable when answers have come.
    ///
    /// # Errors
    /// If the kernel has no io_uring for NVMe commands, or forbids it.
    pub(crate) fn nvme(
        file: &Arc<File>,
        event: &Arc<OwnedFd>,
        namespace: nvme::Namespace,
    ) -> io::Result<Transport> {
        Commands::new(file, event, namespace).map(Transport::Nvme)
    }

    /// Adds the transfer `what` with the memory `pieces`, and with the out-of-band bytes `oob` if
    /// the transport supports them.
    pub(crate) fn transfer(&self, key: usize, what: Transfer, pieces: &[Piece], oob: &[u8]) {
        match self {
            Transport::Block { ring, .. } => {
                let mut ring = ring.borrow_mut();
                let slab = ring.slab(pieces);
                let entry = ring::entry(what.kind, pieces, what.offset, slab);
                let flags = if what.again { Flags::ASYNC } else { Flags::empty() };
                ring.push(entry.user_data(key as u64).flags(flags));
            }
            Transport::Nvme(commands) => commands.transfer(key, what, pieces, oob),
            #[cfg(test)]
            Transport::Scripted(script) => {
                let kind = match what.kind {
                    Kind::Read => "read",
                    Kind::Write { .. } => "write",
                    Kind::Append { .. } => "append",
                    Kind::Flush => "flush",
                };
                let again = if what.again { " again" } else { "" };
                let (offset, length) = (what.offset / 4096, what.length / 4096);
                let words = format!("{kind} {offset}+{length}{again}");
                script.borrow_mut().take(key, &words);
            }
        }
    }

    /// Adds a change of zones, a zone report or a discard.
    pub(crate) fn ask(&self, key: usize, job: Job) {
        match self {
            Transport::Block { workers, .. } => workers.ask(key, job),
            Transport::Nvme(commands) => commands.ask(key, job),
            #[cfg(test)]
            Transport::Scripted(script) => {
                let words = match job {
                    Job::Report { sector } => format!("report {}", sector / 8),
                    Job::ReportAll { sector, count } => format!("report {}+{count}", sector / 8),
                    other => format!("{other:?}"),
                };
                script.borrow_mut().take(key, &words);
            }
        }
    }

    /// Sends the waiting commands. True if any was sent.
    pub(crate) fn submit(&self) -> bool {
        match self {
            Transport::Block { ring, .. } => {
                let mut ring = ring.borrow_mut();
                ring.has_unsent() && ring.submit()
            }
            Transport::Nvme(commands) => commands.submit(),
            #[cfg(test)]
            Transport::Scripted(script) => !script.borrow().ready.is_empty(),
        }
    }

    /// Appends the answers that have come, each with its key, to `into`.
    pub(crate) fn answers(&self, into: &mut Vec<(usize, Answer)>) {
        match self {
            Transport::Block { ring, workers } => {
                ring.borrow_mut().answers(|entry| {
                    let answer = match entry.result() {
                        bytes @ 0.. => Answer::Done { bytes: Some(bytes as u64), at: 0 },
                        errno => Answer::Failed(Cause::Errno(Errno::from_raw_os_error(-errno))),
                    };
                    into.push((entry.user_data() as usize, answer));
                });
                into.append(&mut workers.answers());
            }
            Transport::Nvme(commands) => commands.answers(into),
            #[cfg(test)]
            Transport::Scripted(script) => into.append(&mut script.borrow_mut().ready),
        }
    }

    /// Waits until the kernel has answered all transfers that were sent: until then it may access
    /// their memory.
    pub(crate) fn wait_for_all(&mut self) {
        match self {
            Transport::Block { ring, .. } => ring.get_mut().wait_for_all(),
            Transport::Nvme(commands) => commands.wait_for_all(),
            #[cfg(test)]
            Transport::Scripted(_) => {}
        }
    }
}
