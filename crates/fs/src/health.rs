//! Whether the engine writes, and whether what it finds wrong is its own defect.

use crate::accounts::{Broken, Count};
use furrow_zone::Error;

/// Whether the engine may still write.
///
/// Invariants:
/// - Once an account is broken or a write has failed, the engine stays failed until the mount ends.
/// - The engine replays only before operations of users begin.
pub(crate) struct Health {
    /// An account that went below zero: the engine fails at the end of the step under way.
    broken: Broken,
    /// All accounts agreed at the end of recovery. Only then is a contradiction a defect of the
    /// engine: the structures of a damaged medium may contradict each other.
    sound: bool,
    /// Why the engine no longer writes.
    failed: Option<Error>,
    /// Recovery applies acknowledged changes: no such change is throttled, or refused because space
    /// is short or the mount is read-only.
    replaying: bool,
}

impl Health {
    /// The state without a fault. A wrong account is noted in `broken`.
    pub(crate) fn new(broken: Broken) -> Health {
        Health { broken, sound: false, failed: None, replaying: false }
    }

    /// The remainder of an account: see [`Broken::less`].
    pub(crate) fn less<T: Count>(&self, account: &str, from: T, by: T) -> T {
        self.broken.less(account, from, by)
    }

    /// An account that went below zero.
    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.get()
    }

    /// Why the engine no longer writes.
    pub(crate) fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Notes that the engine no longer writes; the first reason is kept.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
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
