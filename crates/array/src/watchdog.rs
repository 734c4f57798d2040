//! Watchdog: gives up drives that have stopped answering.
//!
//! A drive that neither answers nor fails would block its callers for ever. So while an array runs,
//! and while it is assembled, a task regularly checks each drive's oldest unanswered command. If a
//! drive has not answered the same command within the limit given to [`Watchdog::new`], the task
//! gives the drive up ([`ZonedDevice::give_up`]): all its commands, and all later ones, are
//! answered with an error. The array then handles it like a drive that went away: the member is
//! taken out of service, or counts as missing.
//!
//! The task notices a command at its next check: at most half a second after the command was sent,
//! or a 64th of the limit if the limit is below 32 s. From then on the drive has the whole limit,
//! to the nanosecond.

use furrow_rt::{Nanos, Rt};
use furrow_zone::ZonedDevice;
use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// Longest time between two checks, in nanoseconds.
const CHECK_EVERY: u64 = Nanos::SECOND / 2;

/// A drive, and the number of its oldest unanswered command.
struct Watched {
    device: Rc<dyn ZonedDevice>,
    oldest: Option<u64>,
    since: Nanos,
    given_up: bool,
}

struct State {
    rt: Rt,
    /// Longest time that a drive may owe an answer, in nanoseconds.
    limit: u64,
    drives: RefCell<Vec<Watched>>,
}

/// Watches drives as long as it lives. A clone is another handle of the same watchdog.
#[derive(Clone)]
pub struct Watchdog(Rc<State>);

impl Watchdog {
    /// A watchdog that watches no drive yet. With a `limit` of 0 nanoseconds, no drive is ever
    /// given up.
    pub fn new(rt: &Rt, limit: u64) -> Watchdog {
        let state = Rc::new(State { rt: rt.clone(), limit, drives: RefCell::default() });
        if limit > 0 {
            rt.spawn_detached(look_again_and_again(Rc::downgrade(&state), rt.clone(), limit));
        }
        Watchdog(state)
    }

    /// Starts to watch `device`.
    pub fn add(&self, device: &Rc<dyn ZonedDevice>) {
        let mut drives = self.0.drives.borrow_mut();
        if self.0.limit > 0 && !drives.iter().any(|watched| Rc::ptr_eq(&watched.device, device)) {
            let device = device.clone();
            let since = self.0.rt.now();
            drives.push(Watched { device, oldest: None, since, given_up: false });
        }
    }

    /// Stops watching `device`.
    pub fn forget(&self, device: &Rc<dyn ZonedDevice>) {
        self.0.drives.borrow_mut().retain(|watched| !Rc::ptr_eq(&watched.device, device));
    }

    /// The reason why `device` was given up; `None` if it was not.
    pub fn why(&self, device: &Rc<dyn ZonedDevice>) -> Option<String> {
        let drives = self.0.drives.borrow();
        let watched = drives.iter().find(|watched| Rc::ptr_eq(&watched.device, device))?;
        let seconds = self.0.limit as f64 / Nanos::SECOND as f64;
        watched.given_up.then(|| format!("{}: no answer for {seconds} s", device.name()))
    }
}

async fn look_again_and_again(state: Weak<State>, rt: Rt, limit: u64) {
    let mut pause = limit;
    loop {
        rt.sleep(pause.min(limit / 64).clamp(1, CHECK_EVERY)).await;
        let Some(state) = state.upgrade() else { return };
        let (hung, next) = state.look();
        pause = next;
        // The list must not be borrowed here, because giving a drive up runs the code that waited
        // for its answers.
        hung.iter().for_each(|device| device.give_up());
    }
}

impl State {
    /// The drives that have not answered a command within the limit, and the number of nanoseconds
    /// until another drive may reach it.
    fn look(&self) -> (Vec<Rc<dyn ZonedDevice>>, u64) {
        let now = self.rt.now();
        let (mut hung, mut next) = (Vec::new(), self.limit);
        for watched in self.drives.borrow_mut().iter_mut().filter(|watched| !watched.given_up) {
            let oldest = watched.device.oldest();
            if oldest.is_none() || oldest != watched.oldest {
                (watched.oldest, watched.since) = (oldest, now);
            } else if now.since(watched.since) >= self.limit {
                watched.given_up = true;
                hung.push(watched.device.clone());
            } else {
                next = next.min(self.limit - now.since(watched.since));
            }
        }
        (hung, next)
    }
}
