//! The real clock. The only place of the core that reads the machine's.

use crate::exec::Nanos;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) struct RealClock {
    start: Instant,
}

impl RealClock {
    pub(crate) fn start() -> RealClock {
        RealClock { start: Instant::now() }
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    pub(crate) fn wall(&self) -> (i64, u32) {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
            Err(_) => (0, 0),
        }
    }

    pub(crate) fn wait_until(&self, at: Nanos) {
        let wait = at.since(self.now());
        if wait > 0 {
            std::thread::sleep(Duration::from_nanos(wait));
        }
    }
}
