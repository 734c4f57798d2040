//! Threads that make blocking calls: zone management, zone reports and discards.
//!
//! A reset of a disk's zone takes up to a second, and an engine's thread must not wait for that.
//! The threads put their answers into a list, and make the drive's event readable.

use crate::ioctl;
use crate::transport::{Answer, Cause};
use furrow_zone::Action;
use furrow_zone::rules;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Number of threads, and so of simultaneous calls.
const THREADS: usize = 4;

/// A call for a thread; addresses and lengths of zones are in sectors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// Change the state of a zone.
    Manage { action: Action, sector: u64, sectors: u64 },
    /// Change the state of those of `count` zones to which the action applies. Each zone has
    /// `sectors` sectors; the first zone begins at `sector`.
    ManageAll { action: Action, sector: u64, sectors: u64, count: u32 },
    /// Report the zone of a command that failed.
    Report { sector: u64 },
    /// Report `count` zones.
    ReportAll { sector: u64, count: u32 },
    /// Tell a block device without zones that these bytes are no longer needed.
    Discard { offset: u64, length: u64 },
}

type Answers = Arc<Mutex<Vec<(usize, Answer)>>>;

/// The threads of a drive.
pub(crate) struct Workers {
    jobs: Option<Sender<(usize, Job)>>,
    answers: Answers,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts the threads, which make `event` readable after each call.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start(device: &Arc<File>, event: &Arc<OwnedFd>) -> std::io::Result<Workers> {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let answers = Answers::default();
        let mut workers =
            Workers { jobs: Some(jobs), answers: answers.clone(), threads: Vec::new() };
        for _ in 0..THREADS {
            let (device, event) = (device.clone(), event.clone());
            let (queue, answers) = (queue.clone(), answers.clone());
            let work = move || work(&device, &event, &queue, &answers);
            let thread = std::thread::Builder::new().name("furrow-zones".into()).spawn(work)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Gives `job` to a thread; the answer has the key `key`.
    pub(crate) fn ask(&self, key: usize, job: Job) {
        if let Some(jobs) = &self.jobs {
            // Sending cannot fail: the threads end only after this sender is dropped.
            let _ = jobs.send((key, job));
        }
    }

    /// Takes the answers that have come, each with its key.
    pub(crate) fn answers(&self) -> Vec<(usize, Answer)> {
        std::mem::take(&mut self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Workers {
    /// Waits for the threads to end, because they keep the device open and so prevent its exclusive
    /// use by others.
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(
    device: &File,
    event: &OwnedFd,
    queue: &Mutex<Receiver<(usize, Job)>>,
    answers: &Mutex<Vec<(usize, Answer)>>,
) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((key, job)) = next else { return };
        let answer = carry_out(device, job);
        answers.lock().unwrap_or_else(PoisonError::into_inner).push((key, answer));
        // The write fails only if the counter is full, and then the event is readable.
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }
}

fn carry_out(device: &File, job: Job) -> Answer {
    let done = |result: Result<(), Errno>| match result {
        Ok(()) => Answer::Done { bytes: Some(0), at: 0 },
        Err(errno) => Answer::Failed(Cause::Errno(errno)),
    };
    match job {
        Job::Manage { action, sector, sectors } => {
            done(ioctl::manage(device, action, sector, sectors))
        }
        Job::ManageAll { action, sector, sectors, count } => {
            done(manage_all(device, action, (sector, sectors, count)))
        }
        Job::Discard { offset, length } => done(ioctl::discard(device, offset, length)),
        Job::Report { sector } => {
            let report = ioctl::report(device, sector, 1);
            Answer::Reported(report.and_then(|zones| zones.first().copied().ok_or(Errno::NXIO)))
        }
        Job::ReportAll { sector, count } => {
            Answer::ReportedAll(ioctl::report(device, sector, count))
        }
    }
}

fn manage_all(
    device: &File,
    action: Action,
    (sector, sectors, count): (u64, u64, u32),
) -> Result<(), Errno> {
    for zone in ioctl::report(device, sector, count)? {
        let state = crate::layout::state(&zone);
        if zone.kind != ioctl::CONVENTIONAL
            && state.is_some_and(|state| rules::selected(action, state))
        {
            ioctl::manage(device, action, zone.start, sectors)?;
        }
    }
    Ok(())
}
