//! Waiting for drives, as at boot.

use super::serve::{Drive, open_drive};
use furrow_rt::Rt;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Error, ErrorKind};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often drives are looked at while they are waited for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The time in which drives are waited for, if any. The time begins when this is made, and is one
/// for all drives together.
pub struct Wait {
    until: Option<Instant>,
    said: Cell<bool>,
}

impl Wait {
    /// Waits for `time`; with `None` no drive is waited for.
    pub fn new(time: Option<Duration>) -> Wait {
        Wait { until: time.map(|time| Instant::now() + time), said: Cell::new(false) }
    }

    /// Whether drives are waited for. Then named drives that cannot be used are left out.
    pub fn is_wanted(&self) -> bool {
        self.until.is_some()
    }

    /// Waits until drives are to be looked at again; false, at once, if the time is over. The
    /// first time, tells the operator `why`.
    pub fn pause(&self, why: &str) -> bool {
        let Some(until) = self.until else { return false };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        if !self.said.replace(true) {
            let seconds = left.as_millis().div_ceil(1000);
            crate::complain(&format!("waiting {seconds} s at most: {why}"));
        }
        std::thread::sleep(left.min(LOOK_EVERY));
        true
    }

    /// Opens a drive that was found, for writing. A drive that is busy is waited for: a program
    /// that only looks at it (as udev does) must not cost the array a member.
    ///
    /// # Errors
    /// As [`open_drive`]; `Busy` only after the time is over.
    pub fn open(&self, rt: &Rt, spec: &DeviceSpec) -> Result<Drive, Error> {
        loop {
            match open_drive(rt, spec, self.patience()) {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    if !self.pause(&error.to_string()) {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// How long one look at a drive may wait for it.
    pub fn patience(&self) -> Duration {
        match self.is_wanted() {
            true => Duration::ZERO,
            false => crate::in_use::PATIENCE,
        }
    }
}
