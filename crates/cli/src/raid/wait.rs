//! Waiting for drives, as at boot.

use super::host::{Drive, open_drive};
use anyhow::{Context as _, Result, bail};
use furrow_rt::Rt;
use furrow_zone::ErrorKind;
use furrow_zone::spec::DeviceSpec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::cell::Cell;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between two inspections of drives during a wait.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The wait for drives that the option `--wait` asks for, if given. The time of the option begins
/// when this value is made, and is the limit for all drives together.
pub struct Wait {
    until: Option<Instant>,
    said: Cell<bool>,
    /// Becomes readable when a signal asks this program to end.
    ended: Arc<OwnedFd>,
    /// Whether the command that started this program waits at the other end of standard output.
    is_started: bool,
}

impl Wait {
    /// A wait that lasts for `time`, or until `ended` is readable; with `None` there is no wait.
    /// With `is_started`, the wait also ends when no process reads standard output any more.
    pub fn new(time: Option<Duration>, ended: Arc<OwnedFd>, is_started: bool) -> Wait {
        let until = time.map(|time| Instant::now() + time);
        Wait { until, said: Cell::new(false), ended, is_started }
    }

    /// Whether `--wait` was given. If so, named drives that cannot be used are left out.
    pub fn is_wanted(&self) -> bool {
        self.until.is_some()
    }

    /// Sleeps for a second, or for the rest of the waiting time if that is shorter. Returns true if
    /// the caller should inspect the drives again, and false, without a sleep, if the waiting time
    /// is over. The first call prints `why`, the reason for the wait.
    ///
    /// # Errors
    /// An error if the program should end; then the sleep stops at once.
    pub fn pause(&self, why: &str) -> Result<bool> {
        self.until.map_or(Ok(false), |until| self.pause_until(until, why))
    }

    /// Like [`Wait::pause`], with a waiting time that ends at `until`, whether or not `--wait` was
    /// given.
    ///
    /// # Errors
    /// The errors of [`Wait::pause`].
    pub fn pause_until(&self, until: Instant, why: &str) -> Result<bool> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        if !self.said.replace(true) {
            let seconds = left.as_millis().div_ceil(1000);
            crate::complain(&format!("waiting {seconds} s at most: {why}"));
        }
        self.sleep(left.min(LOOK_EVERY))?;
        Ok(true)
    }

    /// Waits for `time`.
    ///
    /// # Errors
    /// An error if the program should end; then the wait stops at once.
    fn sleep(&self, time: Duration) -> Result<()> {
        let out = std::io::stdout();
        let mut ends = vec![PollFd::from_borrowed_fd(self.ended.as_fd(), PollFlags::IN)];
        if self.is_started {
            // A pipe without a reader is in an error state, which poll(2) always reports.
            ends.push(PollFd::from_borrowed_fd(out.as_fd(), PollFlags::empty()));
        }
        let limit = Timespec::try_from(time).context("the time to wait")?;
        match poll(&mut ends, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) if ends[0].revents().is_empty() => {
                bail!("the command that started this daemon is gone: it no longer waits for drives")
            }
            Ok(_) => bail!("ended by a signal while drives were waited for; nothing was started"),
            Err(errno) => Err(errno).context("waiting for drives"),
        }
    }

    /// Opens a drive for writing. Waits if the drive is busy: a program that only looks at the
    /// drive, as udev does, must not cost the array a member.
    ///
    /// # Errors
    /// The outer result is an error if the program should end. The inner result has the errors of
    /// [`open_drive`]: `Busy` means that the drive was still busy at the end of the waiting time.
    pub fn open(&self, rt: &Rt, spec: &DeviceSpec) -> Result<furrow_zone::Result<Drive>> {
        loop {
            match open_drive(rt, spec, self.patience()) {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    if !self.pause(&error.to_string())? {
                        return Ok(Err(error));
                    }
                }
                done => return Ok(done),
            }
        }
    }

    /// How long one inspection may wait for a busy drive: with `--wait` not at all, because
    /// [`Wait::pause`] waits between inspections.
    pub fn patience(&self) -> Duration {
        match self.is_wanted() {
            true => Duration::ZERO,
            false => crate::in_use::PATIENCE,
        }
    }
}
