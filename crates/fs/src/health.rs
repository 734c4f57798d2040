//! The health of the engine: whether it may write, and whether a contradiction that it finds is its
//! own defect.

mod read_only;

use furrow_log::audit::{Broken, Count};
use furrow_zone::Error;

/// The health of an engine.
///
/// Invariants:
/// - Once an account is broken or a write has failed, the engine stays failed until the mount ends.
/// - The engine replays only before operations of users begin.
pub(crate) struct Health {
    /// The first account that would have gone below zero. If there is one, the engine fails at the
    /// end of the step under way.
    broken: Broken,
    /// True if all accounts agreed at the end of recovery. Only then is a later contradiction a
    /// defect of the engine, because the structures of a damaged medium may contradict each other.
    sound: bool,
    /// The reason why the engine no longer writes.
    failed: Option<Error>,
    /// The reason why the engine is about to stop writing: it accepts no more changes, but still
    /// writes those that it has accepted.
    stopping: Option<Error>,
    /// True if everything accepted was durable when the engine stopped writing.
    nothing_lost: bool,
    /// True once recovery has ended, and operations of users begin.
    in_use: bool,
    /// True while recovery applies acknowledged changes. Such a change is always applied, even if
    /// writers would be throttled, space is short, or the mount is read-only.
    replaying: bool,
}

impl Health {
    /// A healthy state. `broken` records the first account that would go below zero.
    pub(crate) fn new(broken: Broken) -> Health {
        Health {
            broken,
            sound: false,
            failed: None,
            stopping: None,
            nothing_lost: false,
            in_use: false,
            replaying: false,
        }
    }

    /// Returns `from` less `by`: see [`Broken::less`].
    pub(crate) fn less<T: Count>(&self, account: &str, from: T, by: T) -> T {
        self.broken.less(account, from, by)
    }

    /// The error of an account that went below zero, if any.
    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.first()
    }

    /// The reason why the engine no longer writes.
    pub(crate) fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Notes that the engine no longer writes; keeps the first reason.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// The reason why the engine is about to stop writing.
    pub(crate) fn stopping(&self) -> Option<&Error> {
        self.stopping.as_ref()
    }

    /// Notes that the engine accepts no more changes; keeps the first reason.
    pub(crate) fn stop(&mut self, error: Error) {
        self.stopping.get_or_insert(error);
    }

    /// Notes that everything accepted is durable and that the engine now stops writing.
    pub(crate) fn stopped_whole(&mut self) {
        self.nothing_lost = self.failed.is_none();
    }

    /// True if everything accepted was durable when the engine stopped writing.
    pub(crate) fn is_nothing_lost(&self) -> bool {
        self.nothing_lost
    }

    /// True once recovery has ended.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// Notes that recovery has ended.
    pub(crate) fn begin_use(&mut self) {
        self.in_use = true;
    }

    /// True if a contradiction between accounts is a defect of the engine.
    pub(crate) fn is_sound(&self) -> bool {
        self.sound
    }

    /// Sets whether all accounts agreed at the end of recovery.
    pub(crate) fn set_sound(&mut self, sound: bool) {
        self.sound = sound;
    }

    /// True while recovery applies acknowledged changes.
    pub(crate) fn replaying(&self) -> bool {
        self.replaying
    }

    /// Sets whether recovery applies acknowledged changes.
    pub(crate) fn set_replaying(&mut self, replaying: bool) {
        self.replaying = replaying;
    }
}
