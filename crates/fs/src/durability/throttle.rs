//! The limit of dirty memory: a writer waits while too much is not on the drive yet.

use crate::blocked::{Blocked, NotApplied};
use crate::core::Core;
use crate::env::Env;

impl Env {
    /// Maximum number of pages that may be dirty or in flight before writers are throttled.
    pub(crate) fn dirty_limit(&self) -> usize {
        self.options.dirty_pages.unwrap_or(self.options.cache_pages / 2).max(64)
    }
}

impl Core {
    /// Blocks a writer while too many pages are dirty.
    pub(crate) fn throttle(&self) -> Result<(), NotApplied> {
        if !self.health.replaying()
            && self.cache.dirty_pages() + self.durability.in_flight() > self.env.dirty_limit()
        {
            return Err(Blocked::Throttle.into());
        }
        Ok(())
    }
}
