//! Whether the engine writes, and whether what it finds wrong is its own defect.

use crate::accounts::Broken;
use furrow_zone::Error;

/// What the engine may still do.
///
/// Invariants:
/// - Once an account is broken or a write has failed, that stays so until the mount ends.
/// - It replays only before operations of users begin.
pub(crate) struct Health {
    /// An account that went below zero: the engine fails at the end of the step under way.
    broken: Broken,
    /// All accounts agreed at the end of recovery. Only then is a contradiction a defect of the
    /// engine: what a damaged medium says may contradict itself.
    sound: bool,
    /// Why the engine no longer writes.
    failed: Option<Error>,
    /// Recovery applies what was acknowledged: it is neither throttled nor refused for space.
    replaying: bool,
}

impl Health {
    /// Nothing is wrong. A wrong account is noted in `broken`.
    pub(crate) fn new(broken: Broken) -> Health {
        Health { broken, sound: false, failed: None, replaying: false }
    }

    /// What is left of an account: see [`Broken::less`].
    pub(crate) fn less(&self, account: &str, from: u64, by: u64) -> u64 {
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

    /// The engine no longer writes; the first reason is kept.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// True if a contradiction between accounts is a defect of the engine.
    pub(crate) fn is_sound(&self) -> bool {
        self.sound
    }

    /// Whether all accounts agreed at the end of recovery.
    pub(crate) fn set_sound(&mut self, sound: bool) {
        self.sound = sound;
    }

    /// True while recovery applies what was acknowledged.
    pub(crate) fn replaying(&self) -> bool {
        self.replaying
    }

    /// Whether recovery applies what was acknowledged.
    pub(crate) fn set_replaying(&mut self, replaying: bool) {
        self.replaying = replaying;
    }
}
